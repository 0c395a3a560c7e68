#include "trainer/inference/source_text.h"

#include <stdio.h>

/* Finds the token before each source that selects the language of the target. */
static status find_command(const struct tokenizer *t, struct source_text *source)
{
    char token[64];
    REQUIRE(source->from == NULL, STATUS_USAGE,
            "--source-lang %s: the tokenizer has no language tokens; omit the option",
            source->from);
    if (source->to == NULL) {
        return STATUS_OK;
    }
    snprintf(token, sizeof token, ">>%.40s<<", source->to);
    source->command = tokenizer_find(t, token);
    REQUIRE(source->command >= 0, STATUS_USAGE,
            "--target-lang %s: the tokenizer has no token %s; a model with one target language "
            "needs no --target-lang",
            source->to, token);
    return STATUS_OK;
}

void source_text_set_target(const struct tokenizer *t, int32_t language,
                            struct generate_options *options)
{
    if (tokenizer_language_place(t) == TOKENIZER_LANGUAGE_FIRST) {
        options->constraints.has_first = true;
        options->constraints.first_token = language;
    } else {
        options->decoder_start = language;
    }
}

status source_text_resolve(const struct tokenizer *t, struct source_text *source,
                           struct generate_options *options)
{
    enum tokenizer_language place = tokenizer_language_place(t);
    source->language = source->target = source->command = -1;
    if (place == TOKENIZER_LANGUAGE_NONE) {
        return find_command(t, source);
    }
    if (source->from != NULL) {
        TRY(tokenizer_find_language(t, source->from, "--source-lang", &source->language));
    }
    if (source->to != NULL) {
        TRY(tokenizer_find_language(tokenizer_target(t), source->to, "--target-lang",
                                    &source->target));
    }
    if (source->target >= 0) {
        source_text_set_target(t, source->target, options);
    }
    REQUIRE(options->decoder_start >= 0, STATUS_USAGE,
            "the decoder begins with the language of the target; give it with --target-lang, for "
            "example --target-lang es_XX");
    return STATUS_OK;
}

status source_text_encode(const struct tokenizer *t, const struct source_text *source,
                          const struct text *text, struct token_list *out)
{
    if (source->command >= 0) {
        TRY(token_list_add(out, source->command));
    }
    return text_pair_encode_sequence(t, source->prefix, text, TEXT_SOURCE, source->language, out);
}
