/* Rows of the objective classify_tokens, words with one label per word:
 * {"tokens": [...], "labels": [...]}, or "tags".
 *
 * Every word is encoded separately. For encoder models the words are encoded unchanged, between
 * [CLS] and [SEP]. Byte-level tokenizers encode a space before each word, as in running text.
 * Character tokenizers get a space between words. The first token of a word gets its label and the
 * other tokens get none, as in the examples of transformers. Tokens beyond sequence_tokens are
 * removed, even inside of a word. */
#include <inttypes.h>
#include <string.h>

#include "datasets/prepare/output.h"
#include "datasets/prepare/prepare.h"
#include "datasets/prepare/row_field_impl.h"
#include "datasets/prepare/rows.h"
#include "datasets/rows/columns.h"
#include "datasets/tokenizer/text_pair.h"

struct token_classification {
    struct rows_preparation rows;
    struct labels labels;
    struct token_list ids, token_labels; /* token_labels: an index, or EXAMPLE_NO_LABEL */
};

/* ---- fields ---- */

static const json_t *get_labels(const json_t *row)
{
    const json_t *labels = json_object_get(row, "labels");
    return labels != NULL ? labels : json_object_get(row, "tags");
}

static status check_row(const json_t *row)
{
    const json_t *words = json_object_get(row, "tokens"), *labels = get_labels(row);
    TRY(row_field_require(row, "tokens", &words));
    TRY(labels != NULL ? STATUS_OK : columns_raise_missing(row, "labels' or 'tags"));
    REQUIRE(json_is_array(words) && json_is_array(labels), STATUS_DATA,
            "the fields 'tokens' and 'labels' (or 'tags') must be lists");
    REQUIRE(json_array_size(words) > 0, STATUS_DATA, "the field 'tokens' is an empty list");
    REQUIRE(json_array_size(words) == json_array_size(labels), STATUS_DATA,
            "the row has %zu tokens, but %zu labels; the lists must have equal length",
            json_array_size(words), json_array_size(labels));
    return STATUS_OK;
}

static status collect_labels(void *user, struct jsonl_row *row)
{
    char name[ROW_FIELD_LABEL_BYTES];
    TRY(check_row(row->value));
    const json_t *labels = get_labels(row->value);
    for (size_t i = 0; i < json_array_size(labels); i++) {
        TRY(row_field_label_name(json_array_get(labels, i), name));
        TRY(labels_add(user, name));
    }
    return STATUS_OK;
}

/* ---- words to tokens ---- */

/* Adds labels for all tokens that have none yet. The first of them gets this label. */
static status add_token_labels(struct token_classification *c, int32_t first)
{
    int64_t count = c->ids.count - c->token_labels.count;
    TRY(token_list_reserve(&c->token_labels, count));
    for (int64_t i = 0; i < count; i++) {
        c->token_labels.ids[c->token_labels.count++] = i == 0 ? first : EXAMPLE_NO_LABEL;
    }
    return STATUS_OK;
}

static status add_word(struct token_classification *c, size_t index, const json_t *word,
                       const json_t *label)
{
    uint32_t number = 0;
    int64_t begin = 0, before = c->ids.count;
    struct text text = {json_string_value(word), json_string_length(word)};
    REQUIRE(json_is_string(word), STATUS_DATA, "the field 'tokens': element %zu is not a string",
            index);
    TRY(row_field_label_index(&c->labels, label, &number));
    TRY(text_pair_encode_word(c->rows.options->tokenizer, &text, index == 0, &c->ids, &begin));
    if (begin > before) { /* a space before the word, without a label */
        int64_t end = c->ids.count;
        c->ids.count = begin;
        TRY(add_token_labels(c, EXAMPLE_NO_LABEL));
        c->ids.count = end;
    }
    return add_token_labels(c, (int32_t)number);
}

static status add_words(struct token_classification *c, const json_t *row, int32_t begin)
{
    const json_t *words = json_object_get(row, "tokens"), *labels = get_labels(row);
    c->ids.count = c->token_labels.count = 0;
    if (begin >= 0) {
        TRY(token_list_add(&c->ids, begin));
        TRY(add_token_labels(c, EXAMPLE_NO_LABEL));
    }
    for (size_t i = 0; i < json_array_size(words); i++) {
        TRY(add_word(c, i, json_array_get(words, i), json_array_get(labels, i)));
    }
    return STATUS_OK;
}

static status write_row(void *user, struct jsonl_row *row)
{
    struct token_classification *c = user;
    struct tokenizer_specials s = tokenizer_get_specials(c->rows.options->tokenizer);
    bool encoder = s.cls >= 0 && s.sep >= 0;
    int64_t capacity = c->rows.options->sequence_tokens - encoder;
    TRY(check_row(row->value));
    TRY(add_words(c, row->value, encoder ? s.cls : -1));
    row->fatal = true;
    int64_t truncated = c->ids.count > capacity && capacity > 0 ? c->ids.count - capacity : 0;
    c->ids.count -= truncated;
    c->token_labels.count -= truncated;
    if (encoder) {
        TRY(token_list_add(&c->ids, s.sep));
        TRY(add_token_labels(c, EXAMPLE_NO_LABEL));
    }
    rows_count_example(c->rows.report, c->ids.count, truncated);
    const uint32_t *const values[] = {[EXAMPLE_TOKEN_LABEL] =
                                          (const uint32_t *)c->token_labels.ids};
    return prepare_output_write_example(c->rows.output, row_split_choose(&c->rows.split, 0),
                                        c->ids.ids, c->ids.count, values);
}

status prepare_classify_tokens(const struct prepare_options *options, struct prepare_report *out)
{
    *out = (struct prepare_report){0};
    struct token_classification c = {0};
    REQUIRE(options->sequence_tokens >= 3, STATUS_USAGE,
            "the sequence length is %" PRId64 " tokens; it must be at least 3",
            options->sequence_tokens);
    c.rows = (struct rows_preparation){.options = options,
                                       .report = out,
                                       .kind = EXAMPLE_CLASSIFY_TOKENS,
                                       .unit_name = "rows",
                                       .process_row = write_row,
                                       .user = &c,
                                       .labels = &c.labels,
                                       .collect_labels = collect_labels};
    status result = rows_prepare(&c.rows);
    token_list_free(&c.ids);
    token_list_free(&c.token_labels);
    labels_free(&c.labels);
    return result;
}
