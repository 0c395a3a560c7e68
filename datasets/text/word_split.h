/* Splits a text into words before a tokenizer's model encodes them: the simple pre-tokenizers of
 * Hugging Face `tokenizers`. pretokenizer.h has the pre-tokenizers with a regular expression. */
#pragma once

#include "datasets/text/unicode_form.h"

enum word_split_kind {
    WORD_SPLIT_DIGITS,      /* a run of digits is a word */
    WORD_SPLIT_EACH_DIGIT,  /* each digit is a word */
    WORD_SPLIT_WHITE_SPACE, /* white space separates words and is removed */
    WORD_SPLIT_AFTER_TEXT,  /* a word ends after each `text` */
    WORD_SPLIT_METASPACE,   /* spaces become `text`; no split */
    WORD_SPLIT_METASPACES   /* spaces become `text`; a word begins before each `text` */
};

/* When Metaspace puts its character before a word that does not begin with it. */
enum word_split_prepend { WORD_SPLIT_NEVER, WORD_SPLIT_FIRST, WORD_SPLIT_ALWAYS };

struct word_split_step {
    enum word_split_kind kind;
    enum word_split_prepend prepend; /* FIRST: only at the beginning of the whole text */
    char text[8];                    /* Metaspace: one character */
};

enum { WORD_SPLIT_STEPS = 4 };

/* A split of all zeros leaves the text as one word. */
struct word_split {
    struct word_split_step steps[WORD_SPLIT_STEPS];
    int count;
};

/* Called with a word, which is valid only during the call. offset: bytes of the text before the
 * word, or before the part of the text that contains it. */
typedef status word_split_visit(void *context, const char *word, size_t bytes, size_t offset);

/* word_split_run - call visit for each word of text[0, bytes), in order.
 *
 * Each step splits the words of the step before. at_start: the text is the beginning of the whole
 * text. continued: the text continues an earlier one, so that no character is put before it.
 *
 * Errors    an error of visit ends the scan; STATUS_INTERNAL (out of memory) */
status word_split_run(const struct word_split *split, const char *text, size_t bytes, bool at_start,
                      bool continued, word_split_visit *visit, void *context);
