/* Classes of characters: the general categories of Unicode, and white space. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* char_class_is_number - return whether the category of a character is Nd, Nl or No. */
bool char_class_is_number(uint32_t code);

/* char_class_is_punctuation - return whether the category is one of Pc, Pd, Pe, Pf, Pi, Po, Ps. */
bool char_class_is_punctuation(uint32_t code);

/* char_class_is_symbol - return whether the category of a character is Sc, Sk, Sm or So. */
bool char_class_is_symbol(uint32_t code);

/* char_class_is_space - return whether Python's str.split() divides a text at a character:
 * Unicode's White_Space and the separators U+001C to U+001F. */
bool char_class_is_space(uint32_t code);

/* char_class_to_lower - return the simple lower case mapping of a character. */
uint32_t char_class_to_lower(uint32_t code);

/* char_class_to_upper - return the simple upper case mapping of a character. */
uint32_t char_class_to_upper(uint32_t code);

/* char_class_read - decode the character at text[0] and return its length in bytes. A byte that is
 * not UTF-8 counts as the character U+FFFD.
 *
 * Units     bytes > 0; the result is 1 to 4 */
size_t char_class_read(const char *text, size_t bytes, uint32_t *code);
