/* The sources of an encoder-decoder, with the languages of --source-lang and --target-lang. A model
 * represents the languages in one of these ways, or has no language tokens:
 *
 *   Marian    >>es<< before each source is the language of the target
 *   mBART     en_XX in each source is its language; the language of the target is the first token
 *             of the target, or the start token of the decoder */
#pragma once

#include "datasets/tokenizer/text_pair.h"
#include "trainer/inference/generate_options.h"

struct source_text {
    const char *prefix;    /* text before each source; NULL: none */
    const char *from, *to; /* values of --source-lang and --target-lang; NULL: not given */
    int32_t language;      /* token of the source's language; -1: none */
    int32_t target;        /* token of the target's language; -1: none */
    int32_t command;       /* token before each source; -1: none */
};

/* source_text_resolve - find the language tokens, and set the first token of the targets in the
 * options.
 *
 * Order     after generation_config_complete: the target language replaces the tokens of the file
 * Errors    STATUS_USAGE: the tokenizer has no token of a language, or a language is missing */
status source_text_resolve(const struct tokenizer *t, struct source_text *source,
                           struct generate_options *options);

/* source_text_set_target - set the language token of the targets in the options. The tokenizer has
 * language tokens. */
void source_text_set_target(const struct tokenizer *t, int32_t language,
                            struct generate_options *options);

/* source_text_encode - append the ids of a source.
 *
 * Errors    as text_pair_encode_sequence */
status source_text_encode(const struct tokenizer *t, const struct source_text *source,
                          const struct text *text, struct token_list *out);
