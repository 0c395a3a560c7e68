/* Rows of the objectives choose ("text" or "context", "choices", "label") and embed ("text",
 * "text_pair"): examples of several texts.
 *
 * Each text is encoded separately. A choice is encoded as a pair with the text that it continues
 * (text_pair.h). All texts of a row are concatenated in one example. The label of a row is the
 * index of the correct choice, from 0. The label names are these indices: shards with up to four
 * choices have the names "0" to "3". */
#include <stdio.h>

#include "datasets/prepare/output.h"
#include "datasets/prepare/prepare.h"
#include "datasets/prepare/row_field_impl.h"
#include "datasets/prepare/rows.h"
#include "datasets/tokenizer/text_pair.h"

struct multiple_choice {
    struct rows_preparation rows;
    struct labels labels;
    struct token_list ids, token_flags; /* token_flags: bits of the column `mark` (example.h) */
    int64_t truncated_tokens;
};

static status add_text(struct multiple_choice *m, const struct text *text, const struct text *pair)
{
    int64_t before = m->ids.count, first_segment_tokens = 0, truncated = 0;
    TRY(text_pair_encode(m->rows.options->tokenizer, text, pair, m->rows.options->sequence_tokens,
                         &m->ids, &first_segment_tokens, &truncated));
    int64_t count = m->ids.count - before;
    TRY(token_list_reserve(&m->token_flags, count));
    for (int64_t i = 0; i < count; i++) {
        m->token_flags.ids[m->token_flags.count++] =
            (i == 0 ? EXAMPLE_BEGINS_TEXT : 0) |
            (i >= first_segment_tokens ? EXAMPLE_SECOND_SEGMENT : 0);
    }
    m->truncated_tokens += truncated;
    return STATUS_OK;
}

static void begin_row(struct multiple_choice *m)
{
    m->ids.count = m->token_flags.count = m->truncated_tokens = 0;
}

static status write_example(struct multiple_choice *m, uint32_t label, int stratum)
{
    const uint32_t *const values[] = {
        [EXAMPLE_TEXTS_MARK] = (const uint32_t *)m->token_flags.ids,
        [EXAMPLE_TEXTS_LABEL] = &label,
    };
    rows_count_example(m->rows.report, m->ids.count, m->truncated_tokens);
    return prepare_output_write_example(m->rows.output, row_split_choose(&m->rows.split, stratum),
                                        m->ids.ids, m->ids.count, values);
}

/* ---- choices ---- */

static status read_choices(const json_t *row, struct text *text, const json_t **out)
{
    const char *field = json_object_get(row, "context") != NULL ? "context" : "text";
    field = json_object_get(row, "text") != NULL ? "text" : field;
    TRY(row_field_text(row, field, text));
    *out = json_object_get(row, "choices");
    REQUIRE(
        json_is_array(*out) && json_array_size(*out) >= 2, STATUS_DATA,
        "the field 'choices' is missing or not a list of at least two strings; for a table with "
        "a column for each choice, write --columns choices=A,choices=B");
    return STATUS_OK;
}

/* Adds label names until there is one for every choice of the row. */
static status collect_choices(void *user, struct jsonl_row *row)
{
    struct labels *labels = user;
    const json_t *choices = NULL;
    struct text text;
    char name[16];
    TRY(read_choices(row->value, &text, &choices));
    while ((size_t)labels->count < json_array_size(choices)) {
        snprintf(name, sizeof name, "%d", labels->count);
        TRY(labels_add(labels, name));
    }
    return STATUS_OK;
}

static status find_stratum(void *user, const json_t *row, int *out)
{
    struct multiple_choice *m = user;
    const json_t *value = NULL;
    uint32_t label = 0;
    TRY(row_field_require(row, "label", &value));
    status result = row_field_label_index(&m->labels, value, &label);
    struct status_note note;
    if (result == STATUS_DATA) {
        status_take(&note);
        RAISE(STATUS_DATA, "%s; the label of a choice is its index, from 0", note.text);
    }
    TRY(result);
    *out = (int)label;
    return STATUS_OK;
}

static status write_choices(void *user, struct jsonl_row *row)
{
    struct multiple_choice *m = user;
    struct text text = {0};
    const json_t *choices = NULL;
    int label = 0;
    TRY(read_choices(row->value, &text, &choices));
    TRY(find_stratum(m, row->value, &label));
    size_t count = json_array_size(choices);
    REQUIRE((size_t)label < count && count <= (size_t)m->labels.count, STATUS_DATA,
            "the label is %d, but the row has %zu choices and there are %d labels", label, count,
            m->labels.count);
    begin_row(m);
    for (size_t i = 0; i < count; i++) {
        const json_t *choice = json_array_get(choices, i);
        struct text pair = {json_string_value(choice), json_string_length(choice)};
        REQUIRE(json_is_string(choice) && pair.count > 0, STATUS_DATA,
                "the field 'choices': element %zu is not a string, or is empty", i);
        TRY(add_text(m, &text, &pair));
    }
    row->fatal = true;
    return write_example(m, (uint32_t)label, label);
}

/* ---- pairs of related texts ---- */

static status write_pair(void *user, struct jsonl_row *row)
{
    struct multiple_choice *m = user;
    struct text text = {0}, pair = {0};
    TRY(row_field_text(row->value, "text", &text));
    TRY(row_field_text(row->value, "text_pair", &pair));
    begin_row(m);
    TRY(add_text(m, &text, NULL));
    TRY(add_text(m, &pair, NULL));
    row->fatal = true;
    return write_example(m, 0, 0);
}

static status prepare_objective(const struct prepare_options *options, enum example_kind kind,
                                struct prepare_report *out)
{
    *out = (struct prepare_report){0};
    struct multiple_choice m = {0};
    bool has_labels = kind == EXAMPLE_CHOOSE;
    m.rows = (struct rows_preparation){.options = options,
                                       .report = out,
                                       .kind = kind,
                                       .unit_name = "rows",
                                       .process_row = has_labels ? write_choices : write_pair,
                                       .user = &m,
                                       .labels = has_labels ? &m.labels : NULL,
                                       .collect_labels = collect_choices,
                                       .find_stratum = has_labels ? find_stratum : NULL};
    status result = rows_prepare(&m.rows);
    token_list_free(&m.ids);
    token_list_free(&m.token_flags);
    labels_free(&m.labels);
    return result;
}

status prepare_choose(const struct prepare_options *options, struct prepare_report *out)
{
    return prepare_objective(options, EXAMPLE_CHOOSE, out);
}

status prepare_embed(const struct prepare_options *options, struct prepare_report *out)
{
    return prepare_objective(options, EXAMPLE_EMBED, out);
}
