/* The sources of an encoder-decoder: the languages that the options --source-lang and --target-lang
 * select. A model has them in one of three ways:
 *
 *   >>es<< before each source (Marian): the language of the target
 *   en_XX in each source (mBART): its language; that of the target is the first token of the
 *   target, or the start token of the decoder */
#pragma once

#include "datasets/tokenizer/text_pair.h"
#include "trainer/inference/generate_options.h"

struct source_text {
    const char *prefix;    /* text before each source; NULL: none */
    const char *from, *to; /* values of --source-lang and --target-lang; NULL: not given */
    int32_t language,
        command; /* token of the source's language; token before each source. -1: none */
};

/* source_text_resolve - find the tokens of the languages, and set the first token of the targets in
 * the options.
 *
 * Order     after generation_config_complete: the target language replaces the tokens of the file
 * Errors    STATUS_USAGE: the tokenizer has no token of a language, or a language is missing */
status source_text_resolve(const struct tokenizer *t, struct source_text *source,
                           struct generate_options *options);

/* source_text_encode - append the ids of a source.
 *
 * Errors    those of text_pair_encode_sequence */
status source_text_encode(const struct tokenizer *t, const struct source_text *source,
                          const struct text *text, struct token_list *out);
