/* Rows of words, each with a label: {"tokens": [...], "labels": [...]}, or "tags".
 *
 * Every word is encoded by itself: for encoders as it is, between [CLS] and [SEP]; by byte-level tokenizers with a blank
 * in front, as in running text; by characters as it is, blanks between. Its first token has its label, its others have
 * none, as in transformers' examples. What is longer than sequence_tokens is cut off behind a whole token. */
#include <string.h>

#include "datasets/prepare/input.h"
#include "datasets/tokenizer/text_pair.h"

struct words {
    const struct prepare_options *options;
    struct prepare_report *report;
    struct output *output;
    enum output_side side;
    struct labels labels;
    struct token_list ids, marks; /* marks: a label, or EXAMPLE_NO_LABEL */
};

/* ---- fields ---- */

static const json_t *labels_of(const json_t *row)
{
    const json_t *labels = json_object_get(row, "labels");
    return labels != NULL ? labels : json_object_get(row, "tags");
}

static status check_row(const json_t *row)
{
    const json_t *words = json_object_get(row, "tokens"), *labels = labels_of(row);
    REQUIRE(words != NULL, STATUS_DATA, "no field \"tokens\"");
    REQUIRE(labels != NULL, STATUS_DATA, "no field \"labels\" or \"tags\"");
    REQUIRE(json_is_array(words) && json_is_array(labels), STATUS_DATA,
            "tokens and labels are not two lists");
    REQUIRE(json_array_size(words) > 0, STATUS_DATA, "there are no tokens");
    REQUIRE(json_array_size(words) == json_array_size(labels), STATUS_DATA,
            "%zu tokens and %zu labels", json_array_size(words), json_array_size(labels));
    return STATUS_OK;
}

static status collect_labels(void *user, struct jsonl_row *row)
{
    char name[PREPARE_LABEL_BYTES];
    TRY(check_row(row->value));
    const json_t *labels = labels_of(row->value);
    for (size_t i = 0; i < json_array_size(labels); i++) {
        TRY(prepare_label(json_array_get(labels, i), name));
        TRY(labels_add(user, name));
    }
    return STATUS_OK;
}

/* ---- words to tokens ---- */

static status add_token(struct words *w, int32_t id)
{
    TRY(token_list_reserve(&w->ids, 1));
    w->ids.ids[w->ids.count++] = id;
    return STATUS_OK;
}

/* Marks for all tokens that have none yet; the first of them gets this one. */
static status add_marks(struct words *w, int32_t first)
{
    int64_t more = w->ids.count - w->marks.count;
    TRY(token_list_reserve(&w->marks, more));
    for (int64_t i = 0; i < more; i++) {
        w->marks.ids[w->marks.count++] = i == 0 ? first : EXAMPLE_NO_LABEL;
    }
    return STATUS_OK;
}

static status add_word(struct words *w, size_t index, const json_t *word, const json_t *label)
{
    uint32_t number = 0;
    int64_t begin = 0, before = w->ids.count;
    struct text text = {json_string_value(word), json_string_length(word)};
    REQUIRE(json_is_string(word), STATUS_DATA, "token %zu is no text", index);
    TRY(prepare_label_number(&w->labels, label, &number));
    TRY(texts_encode_word(w->options->tokenizer, &text, index == 0, &w->ids, &begin));
    if (begin > before) { /* a blank in front */
        int64_t end = w->ids.count;
        w->ids.count = begin;
        TRY(add_marks(w, EXAMPLE_NO_LABEL));
        w->ids.count = end;
    }
    return add_marks(w, (int32_t)number);
}

static status add_words(struct words *w, const json_t *row, int32_t begin)
{
    const json_t *words = json_object_get(row, "tokens"), *labels = labels_of(row);
    w->ids.count = w->marks.count = 0;
    if (begin >= 0) {
        TRY(add_token(w, begin));
        TRY(add_marks(w, EXAMPLE_NO_LABEL));
    }
    for (size_t i = 0; i < json_array_size(words); i++) {
        TRY(add_word(w, i, json_array_get(words, i), json_array_get(labels, i)));
    }
    return STATUS_OK;
}

static status use_row(void *user, struct jsonl_row *row)
{
    struct words *w = user;
    struct tokenizer_specials s = tokenizer_specials_of(w->options->tokenizer);
    bool encoder = s.cls >= 0 && s.sep >= 0;
    int64_t most = w->options->sequence_tokens - encoder;
    TRY(check_row(row->value));
    TRY(add_words(w, row->value, encoder ? s.cls : -1));
    row->blameless = true;
    int64_t cut = w->ids.count > most && most > 0 ? w->ids.count - most : 0;
    w->ids.count -= cut;
    w->marks.count -= cut;
    if (encoder) {
        TRY(add_token(w, s.sep));
        TRY(add_marks(w, EXAMPLE_NO_LABEL));
    }
    prepare_count(w->report, w->ids.count, cut);
    const uint32_t *const values[] = {[EXAMPLE_TOKEN_LABEL] = (const uint32_t *)w->marks.ids};
    return output_example(w->output, w->side, w->ids.ids, w->ids.count, values);
}

status prepare_classify_tokens(const struct prepare_options *options, struct prepare_report *out)
{
    *out = (struct prepare_report){0};
    struct words words = {.options = options, .report = out};
    REQUIRE(options->sequence_tokens >= 3, STATUS_USAGE,
            "sequences of %lld tokens leave no room for a word",
            (long long)options->sequence_tokens);
    status result = rows_prepare(
        &(struct row_preparation){options, out, EXAMPLE_CLASSIFY_TOKENS, "rows", &words.output,
                                  &words.side, use_row, &words, &words.labels, collect_labels});
    token_list_free(&words.ids);
    token_list_free(&words.marks);
    labels_free(&words.labels);
    return result;
}
