/* Rows of the objectives classify and regress: {"text", "label"}, optionally with "text_pair".
 *
 * Labels are numbered before anything is written, in a separate pass over all rows: integers by
 * value, other names by their bytes. The caller may give another order. Every shard of both splits
 * stores all names. */
#include <math.h>
#include <string.h>

#include "base/text.h"
#include "datasets/prepare/output.h"
#include "datasets/prepare/prepare.h"
#include "datasets/prepare/row_field_impl.h"
#include "datasets/prepare/rows.h"
#include "datasets/tokenizer/text_pair.h"

struct classification {
    struct rows_preparation rows;
    enum example_kind kind;
    struct labels labels;
    struct token_list ids;
    bool has_first_row, rows_have_pair; /* rows_have_pair: of the first usable row, and of all */
};

/* ---- fields ---- */

/* Reads the text of a row, and its second text. Either all rows have a second text or none. */
static status read_texts(const struct classification *c, const json_t *row, struct text *text,
                         struct text *pair)
{
    const json_t *second = json_object_get(row, "text_pair");
    bool has_pair = second != NULL && !json_is_null(second);
    TRY(row_field_text(row, "text", text));
    TRY(has_pair ? row_field_text(row, "text_pair", pair) : STATUS_OK);
    REQUIRE(!c->has_first_row || has_pair == c->rows_have_pair, STATUS_DATA,
            "the row has %s field 'text_pair', but the first row has %s; either all rows must have "
            "this field, or none",
            has_pair ? "the" : "no", has_pair ? "none" : "it");
    return STATUS_OK;
}

/* Reads the label as a float. In CSV the number is a string. */
static status read_number(const json_t *value, uint32_t *bits)
{
    char reason[TEXT_REASON_BYTES];
    double number = json_number_value(value);
    REQUIRE(json_is_number(value) || json_is_string(value), STATUS_DATA,
            "the field 'label' is not a number");
    if (json_is_string(value)) {
        bool good = text_to_number(json_string_value(value), &number, reason);
        REQUIRE(good, STATUS_DATA, "the field 'label': %s", reason);
    }
    float value_f32 = (float)number;
    REQUIRE(isfinite(value_f32), STATUS_DATA, "the field 'label' is %g, too large for a float",
            number);
    memcpy(bits, &value_f32, sizeof value_f32);
    return STATUS_OK;
}

/* ---- labels, in a separate pass ---- */

static status collect_label(void *user, struct jsonl_row *row)
{
    struct labels *labels = user;
    char name[ROW_FIELD_LABEL_BYTES];
    const json_t *value = NULL;
    TRY(row_field_require(row->value, "label", &value));
    TRY(row_field_label_name(value, name));
    return labels_add(labels, name);
}

/* ---- rows ---- */

/* Reads the fields of a row. The first row that has them determines whether rows have pairs. */
static status read_row(struct classification *c, const json_t *row, struct text *text,
                       struct text *pair, uint32_t *label_bits)
{
    const json_t *label = NULL;
    TRY(read_texts(c, row, text, pair));
    TRY(row_field_require(row, "label", &label));
    TRY(c->kind == EXAMPLE_REGRESS ? read_number(label, label_bits)
                                   : row_field_label_index(&c->labels, label, label_bits));
    c->rows_have_pair = c->has_first_row ? c->rows_have_pair : pair->count > 0;
    c->has_first_row = true;
    return STATUS_OK;
}

static status find_stratum(void *user, const json_t *row, int *out)
{
    struct text text = {0}, pair = {0};
    uint32_t label = 0;
    TRY(read_row(user, row, &text, &pair, &label));
    *out = (int)label;
    return STATUS_OK;
}

static status write_row(void *user, struct jsonl_row *row)
{
    struct classification *c = user;
    struct text text = {0}, pair = {0};
    uint32_t label_bits = 0;
    int64_t first_segment_tokens = 0, truncated = 0;
    c->ids.count = 0;
    TRY(read_row(c, row->value, &text, &pair, &label_bits));
    TRY(text_pair_encode(c->rows.options->tokenizer, &text, &pair, c->rows.options->sequence_tokens,
                         &c->ids, &first_segment_tokens, &truncated));
    row->fatal = true;
    rows_count_example(c->rows.report, c->ids.count, truncated);
    uint32_t segment = (uint32_t)first_segment_tokens;
    const uint32_t *const values[] = {
        [EXAMPLE_TASK_FIRST_SEGMENT] = &segment, [EXAMPLE_TASK_LABEL] = &label_bits};
    int stratum = c->kind == EXAMPLE_CLASSIFY ? (int)label_bits : 0;
    return prepare_output_write_example(c->rows.output, row_split_choose(&c->rows.split, stratum),
                                        c->ids.ids, c->ids.count, values);
}

static status prepare_objective(const struct prepare_options *options, enum example_kind kind,
                                struct prepare_report *out)
{
    *out = (struct prepare_report){0};
    struct classification c = {.kind = kind};
    bool has_labels = kind == EXAMPLE_CLASSIFY;
    c.rows = (struct rows_preparation){.options = options,
                                       .report = out,
                                       .kind = kind,
                                       .unit_name = "rows",
                                       .process_row = write_row,
                                       .user = &c,
                                       .labels = has_labels ? &c.labels : NULL,
                                       .collect_labels = collect_label,
                                       .find_stratum = has_labels ? find_stratum : NULL};
    status result = rows_prepare(&c.rows);
    token_list_free(&c.ids);
    labels_free(&c.labels);
    return result;
}

status prepare_classify(const struct prepare_options *options, struct prepare_report *out)
{
    return prepare_objective(options, EXAMPLE_CLASSIFY, out);
}

status prepare_regress(const struct prepare_options *options, struct prepare_report *out)
{
    return prepare_objective(options, EXAMPLE_REGRESS, out);
}
