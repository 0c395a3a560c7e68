/* Rows of the objective seq2seq, such as a text and its translation or summary:
 * {"source", "target"}, or {"translation": {"en": ..., "es": ...}} with the codes of the two
 * languages.
 *
 * Both texts are encoded separately, each as the input of an encoder: between the special tokens of
 * the post-processor ([CLS] or <s>, [SEP] or </s>), with its language token (mBART), or with the
 * end token at the end. A prefix can name the task ("translate English to Spanish: "). Texts are
 * not truncated. A row is bad if a field is missing or empty, or if a text has more than
 * sequence_tokens tokens. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/number.h"
#include "datasets/prepare/output.h"
#include "datasets/prepare/prepare.h"
#include "datasets/prepare/row_field_impl.h"
#include "datasets/prepare/seq2seq_impl.h"
#include "datasets/rows/columns.h"

/* ---- fields of a row ---- */

/* Finds the field of a language. Its name is the code or, if this field is missing, the part of the
 * code before "_", as in the examples of transformers: "en" for en_XX. */
static const char *find_language(const json_t *translation, const char *language, char *out,
                                 size_t bytes)
{
    snprintf(out, bytes, "%.*s", (int)strcspn(language, "_"), language);
    return json_object_get(translation, language) == NULL &&
                   json_object_get(translation, out) != NULL
               ? out
               : language;
}

static status read_translation(const json_t *translation, const char *language, struct text *out)
{
    char family[64];
    REQUIRE(json_is_object(translation), STATUS_DATA,
            "the field 'translation' is not an object with a string for each language");
    REQUIRE(language != NULL, STATUS_USAGE,
            "rows with the field 'translation' need --source-lang and --target-lang, for example "
            "--source-lang en --target-lang es");
    return row_field_text(translation, find_language(translation, language, family, sizeof family),
                          out);
}

static status read_fields(const struct prepare_options *o, const json_t *row, struct text *source,
                          struct text *target)
{
    const json_t *translation = json_object_get(row, "translation");
    if (translation != NULL) {
        TRY(read_translation(translation, o->source_language, source));
        return read_translation(translation, o->target_language, target);
    }
    TRY(json_object_get(row, "source") != NULL || json_object_get(row, "target") != NULL
            ? STATUS_OK
            : columns_raise_missing(row, "source' with 'target', or 'translation"));
    TRY(row_field_text(row, "source", source));
    return row_field_text(row, "target", target);
}

/* ---- texts to tokens ---- */

/* Finds the language tokens of sources and targets; -1: the tokenizer has none. */
static status find_languages(const struct prepare_options *o, int32_t *source, int32_t *target)
{
    *source = *target = -1;
    if (tokenizer_language_place(o->tokenizer) == TOKENIZER_LANGUAGE_NONE) {
        return STATUS_OK;
    }
    REQUIRE(o->source_language != NULL && o->target_language != NULL, STATUS_USAGE,
            "the tokenizer has language tokens; use --source-lang and --target-lang, for "
            "example --source-lang en_XX --target-lang es_XX");
    TRY(tokenizer_find_language(o->tokenizer, o->source_language, "--source-lang", source));
    return tokenizer_find_language(tokenizer_target(o->tokenizer), o->target_language,
                                   "--target-lang", target);
}

static status check_length(const struct prepare_options *o, const char *name, int64_t tokens)
{
    REQUIRE(tokens <= o->sequence_tokens, STATUS_DATA,
            "the %s has %" PRId64 " tokens, more than %" PRId64 " (--sequence-length)", name,
            tokens, o->sequence_tokens);
    return STATUS_OK;
}

status seq2seq_finish_pair(const struct prepare_options *options, int64_t source_tokens,
                           struct rows_example *out)
{
    int64_t target_tokens = out->text.ids.count - source_tokens;
    TRY(check_length(options, "source", source_tokens));
    TRY(check_length(options, "target", target_tokens));
    out->source_tokens = (uint32_t)source_tokens;
    out->values[EXAMPLE_SOURCE] = &out->source_tokens;
    out->longest_tokens = number_max(source_tokens, target_tokens);
    out->learned_tokens = target_tokens;
    return STATUS_OK;
}

status seq2seq_encode_pair(const struct prepare_options *options, const struct text *source,
                           const struct text *target, struct rows_example *out)
{
    struct token_list *ids = &out->text.ids;
    int32_t source_language, target_language;
    TRY(find_languages(options, &source_language, &target_language));
    TRY(text_pair_encode_sequence(options->tokenizer, options->source_prefix, source, TEXT_SOURCE,
                                  source_language, ids));
    int64_t source_tokens = ids->count;
    TRY(text_pair_encode_sequence(options->tokenizer, NULL, target, TEXT_TARGET, target_language,
                                  ids));
    return seq2seq_finish_pair(options, source_tokens, out);
}

static status encode_row(const struct prepare_options *options, const json_t *row,
                         struct rows_example *out)
{
    struct text source = {0}, target = {0};
    TRY(read_fields(options, row, &source, &target));
    return seq2seq_encode_pair(options, &source, &target, out);
}

static status check_end(const struct tokenizer *t, const char *name)
{
    REQUIRE(text_pair_has_segment_tokens(t) || tokenizer_eos(t) >= 0, STATUS_DATA,
            "the tokenizer%s has no end token, so generation could not end; train one with "
            "--special-tokens '<|endoftext|>'",
            name);
    return STATUS_OK;
}

status seq2seq_check_options(const struct prepare_options *options)
{
    TRY(check_end(options->tokenizer, ""));
    TRY(check_end(tokenizer_target(options->tokenizer), " of the targets"));
    REQUIRE(options->sequence_tokens >= 2, STATUS_USAGE,
            "the sequence length is %" PRId64 " tokens; a text and its end token need at least 2",
            options->sequence_tokens);
    int32_t source_language, target_language;
    return find_languages(options, &source_language, &target_language);
}

status prepare_seq2seq(const struct prepare_options *options, struct prepare_report *out)
{
    *out = (struct prepare_report){0};
    TRY(seq2seq_check_options(options));
    return rows_prepare(&(struct rows_preparation){.options = options,
                                                   .report = out,
                                                   .kind = EXAMPLE_SEQ2SEQ,
                                                   .unit_name = "pairs",
                                                   .encode_row = encode_row});
}
