/* The normalizer of a tokenizer: a list of steps that change a text before it is split into words.
 * Hugging Face `tokenizers` has the same steps, with the same results.
 *
 * The steps run in the order in which they were added. Each step reads the output of the step
 * before it.
 *
 * Calls     normalizer_add for each step of a tokenizer, normalizer_run for each text,
 *           normalizer_free */
#pragma once

#include "datasets/text/precompiled.h"
#include "datasets/text/unicode_form.h"

enum { NORMALIZER_GROWTH = 64 }; /* limit of the growth of a text, against malicious files */

enum normalizer_kind {
    NORMALIZER_NFC,
    NORMALIZER_NFD,
    NORMALIZER_NFKC,
    NORMALIZER_NFKD,
    NORMALIZER_LOWERCASE,
    NORMALIZER_STRIP_ACCENTS,
    NORMALIZER_STRIP,          /* removes white space at the left end, the right end or both */
    NORMALIZER_PREPEND,        /* puts `to` before a text that is not empty */
    NORMALIZER_REPLACE,        /* replaces each `from` by `to` */
    NORMALIZER_REPLACE_BLANKS, /* replaces each run of two or more spaces by `to` */
    NORMALIZER_PRECOMPILED     /* precompiled.h; `from` is the map in base64 */
};

struct normalizer_step {
    enum normalizer_kind kind;
    char *from, *to; /* NULL if the kind does not use them */
    bool left, right;
    struct charsmap *map; /* NORMALIZER_PRECOMPILED: the decoded map */
};

/* A normalizer of all zeros changes nothing. */
struct normalizer {
    struct normalizer_step *steps;
    int count;
};

/* normalizer_add - add a step at the end.
 *
 * Memory    the texts of the step are copied; the normalizer takes its map, also after an error
 * Errors    STATUS_INTERNAL (out of memory) */
status normalizer_add(struct normalizer *n, const struct normalizer_step *step);

/* normalizer_run - append the normalized form of text[0, bytes) to *out, which is empty.
 *
 * continued: the text continues an earlier one, so that NORMALIZER_PREPEND adds nothing.
 *
 * Errors    STATUS_DATA: the text grows more than NORMALIZER_GROWTH times; STATUS_INTERNAL (out
 *           of memory) */
status normalizer_run(const struct normalizer *n, const char *text, size_t bytes, bool continued,
                      struct text_buffer *out);

/* normalizer_free - free the steps. */
void normalizer_free(struct normalizer *n);
