/* Unicode normal forms, lower case and the removal of accents, as the normalizers of Hugging Face
 * `tokenizers` apply them.
 *
 * That package has the tables of an older Unicode version for normal forms and accents. Characters
 * that are newer than its tables stay as they are, and separate the characters around them.
 * Therefore the result does not depend on the version of utf8proc. Bytes that are not UTF-8 stay as
 * they are. */
#pragma once

#include <stdbool.h>

#include "base/text_buffer.h"

enum unicode_form { UNICODE_FORM_NFC, UNICODE_FORM_NFD, UNICODE_FORM_NFKC, UNICODE_FORM_NFKD };

/* unicode_form_apply - append a text in a normal form.
 *
 * Errors    STATUS_INTERNAL (out of memory)
 * Source    Unicode Standard Annex 15 */
status unicode_form_apply(enum unicode_form form, const char *text, size_t bytes,
                          struct text_buffer *out);

/* unicode_form_lower - append a text in lower case, each character for itself.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
status unicode_form_lower(const char *text, size_t bytes, struct text_buffer *out);

/* unicode_form_strip_accents - append a text without its combining marks.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
status unicode_form_strip_accents(const char *text, size_t bytes, struct text_buffer *out);

/* unicode_form_lower_char - return the lower case of a character other than U+0130, which has a
 * lower case of two characters. */
uint32_t unicode_form_lower_char(uint32_t code);

/* unicode_form_is_white_space - return whether a character is Unicode's White_Space. */
bool unicode_form_is_white_space(uint32_t code);
