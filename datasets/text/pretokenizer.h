/* Pre-tokenizer of byte-level BPE: splits a text into words. Merges never cross a word boundary.
 *
 * The patterns come from published tokenizers and are matched with PCRE2 (UTF, Unicode properties,
 * JIT). They were written for other regex engines, in which \s is exactly Unicode's White_Space.
 * PCRE2's \s contains more (U+180E), so our patterns spell the class out. A pattern from a file is
 * only looked up in the table and never compiled. An unknown pattern is an error, so no file can
 * supply a pattern with exponential run time.
 *
 * The text need not be UTF-8. Each maximal run of bytes that are not UTF-8 is one word. The text
 * before and after such a run is matched separately. The words, in order, cover the whole text. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum pretokenizer_pattern {
    PRETOKENIZER_NONE, /* the whole text is one word */
    PRETOKENIZER_GPT2,
    PRETOKENIZER_LLAMA3,
    PRETOKENIZER_QWEN2,
    PRETOKENIZER_CL100K,
    PRETOKENIZER_O200K,
    PRETOKENIZER_PATTERNS
};

/* pretokenizer_published_regex - return the pattern as tokenizer.json files spell it; NULL for
 * PRETOKENIZER_NONE. */
const char *pretokenizer_published_regex(enum pretokenizer_pattern pattern);

/* pretokenizer_find_pattern - return the pattern with this spelling; PRETOKENIZER_NONE: unknown. */
enum pretokenizer_pattern pretokenizer_find_pattern(const char *published);

/* A compiled pattern. Immutable; threads may share it. */
struct pretokenizer;

/* pretokenizer_create - compile a pattern.
 *
 * Errors    STATUS_INTERNAL: out of memory, or PCRE2 rejects the pattern */
status pretokenizer_create(enum pretokenizer_pattern pattern, struct pretokenizer **out);

/* pretokenizer_destroy - free a compiled pattern; NULL is allowed. */
void pretokenizer_destroy(struct pretokenizer *p);

/* The matching state of one thread. */
struct pretokenizer_scanner;

/* pretokenizer_scanner_create - create a scanner for a compiled pattern.
 *
 * Memory    p is borrowed and must outlive the scanner
 * Errors    STATUS_INTERNAL (out of memory) */
status pretokenizer_scanner_create(const struct pretokenizer *p, struct pretokenizer_scanner **out);

/* pretokenizer_scanner_destroy - free a scanner; NULL is allowed. */
void pretokenizer_scanner_destroy(struct pretokenizer_scanner *s);

/* pretokenizer_scanner_start - begin to scan a text, which is borrowed. */
void pretokenizer_scanner_start(struct pretokenizer_scanner *s, const char *text, size_t bytes);

/* pretokenizer_scanner_next - find the next word: text[*start, *end).
 *
 * *start == *end at the end of the text.
 *
 * Errors    STATUS_DATA with the byte offset, if PCRE2 exceeds its limits */
status pretokenizer_scanner_next(struct pretokenizer_scanner *s, size_t *start, size_t *end);
