/* Text to words: where a byte-level tokenizer may not merge across.
 *
 * The patterns are those of published tokenizers, matched with PCRE2 (UTF, Unicode properties,
 * JIT). They are written for other regex engines, where \s is exactly Unicode's White_Space; in
 * PCRE2 it is more (U+180E), so the class is spelled out. A pattern that a file brings along is
 * looked up in the table and never compiled itself: an unknown one is refused, so no file can bring
 * a pattern that takes exponential time.
 *
 * Text need not be UTF-8: each longest run of bytes that is no UTF-8 is one word, and the text
 * before and after it is matched as if it stood alone. The words of a text are always the whole
 * text, in order. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum pretokenise_pattern {
    PRETOKENISE_NONE, /* the whole text is one word */
    PRETOKENISE_GPT2,
    PRETOKENISE_LLAMA3,
    PRETOKENISE_QWEN2,
    PRETOKENISE_CL100K,
    PRETOKENISE_O200K,
    PRETOKENISE_PATTERNS
};

/* pretokenise_published - a pattern as the tokenizers' files spell it; NULL for NONE. */
const char *pretokenise_published(enum pretokenise_pattern pattern);

/* pretokenise_lookup - the pattern with this spelling; PRETOKENISE_NONE: not one of ours. */
enum pretokenise_pattern pretokenise_lookup(const char *published);

/* pretokenise_character - the bytes of the UTF-8 character at text[0] and its code point; 0: none.
 *
 * Source    Unicode 15, table 3-7 (no overlong forms, no surrogates, at most U+10FFFF) */
size_t pretokenise_character(const char *text, size_t bytes, uint32_t *code);

/* pretokenise_put - a code point as UTF-8; returns its bytes. */
size_t pretokenise_put(uint32_t code, char text[4]);

/* A compiled pattern: immutable, shared by threads. */
struct pretokeniser;
status pretokeniser_create(enum pretokenise_pattern pattern, struct pretokeniser **out);
void pretokeniser_destroy(struct pretokeniser *p);

/* One thread's matching state. */
struct scanner;
status scanner_create(const struct pretokeniser *p, struct scanner **out);
void scanner_destroy(struct scanner *s);

/* scanner_start - begin with this text (borrowed). */
void scanner_start(struct scanner *s, const char *text, size_t bytes);

/* scanner_next - the next word: text[*start, *end); *start == *end at the end of the text.
 *
 * Errors    STATUS_DATA if PCRE2 gives up (its limits), with the byte offset */
status scanner_next(struct scanner *s, size_t *start, size_t *end);
