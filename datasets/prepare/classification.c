/* Rows with a text, or a pair of texts, and what is to be learned of it: a label (classify) or a number (regress).
 *
 * Labels are numbered before anything is written, in a reading of their own: integers by their value, others by their
 * bytes, unless the caller gives their order. Every shard of both sides has all names. */
#include <math.h>
#include <string.h>

#include "base/text.h"
#include "datasets/prepare/input.h"
#include "datasets/tokenizer/text_pair.h"

struct texts {
    const struct prepare_options *options;
    struct prepare_report *report;
    struct output *output;
    enum output_side side;
    enum example_kind kind;
    struct labels labels;
    struct token_list ids;
};

/* ---- fields ---- */

status prepare_text_field(const json_t *row, const char *field, struct text *out)
{
    TRY(jsonl_text(row, field, &out->bytes, &out->count));
    REQUIRE(!prepare_is_blank(out->bytes, out->count), STATUS_DATA, "the field \"%s\" is empty",
            field);
    return STATUS_OK;
}

static status read_texts(const json_t *row, struct text *text, struct text *pair)
{
    const json_t *second = json_object_get(row, "text_pair");
    TRY(prepare_text_field(row, "text", text));
    return second != NULL && !json_is_null(second) ? prepare_text_field(row, "text_pair", pair)
                                                   : STATUS_OK;
}

status prepare_label(const json_t *value, char out[PREPARE_LABEL_BYTES])
{
    REQUIRE(value != NULL, STATUS_DATA, "no field \"label\"");
    REQUIRE(json_is_string(value) || json_is_integer(value), STATUS_DATA,
            "a label is neither a text nor an integer");
    if (json_is_integer(value)) {
        snprintf(out, PREPARE_LABEL_BYTES, "%lld", (long long)json_integer_value(value));
        return STATUS_OK;
    }
    size_t bytes = json_string_length(value);
    REQUIRE(bytes > 0 && bytes < PREPARE_LABEL_BYTES && strlen(json_string_value(value)) == bytes,
            STATUS_DATA, "a label of %zu bytes; 1 to %d are possible, and no NUL", bytes,
            PREPARE_LABEL_BYTES - 1);
    memcpy(out, json_string_value(value), bytes + 1);
    return STATUS_OK;
}

status prepare_label_number(const struct labels *labels, const json_t *value, uint32_t *out)
{
    char name[PREPARE_LABEL_BYTES];
    TRY(prepare_label(value, name));
    int number = labels_find(labels, name);
    REQUIRE(number >= 0, STATUS_DATA, "the label \"%s\" is not one of --labels", name);
    *out = (uint32_t)number;
    return STATUS_OK;
}

/* In CSV numbers are texts. */
static status read_number(const json_t *row, uint32_t *bits)
{
    const json_t *value = json_object_get(row, "label");
    char reason[TEXT_REASON_BYTES];
    double number = json_number_value(value);
    REQUIRE(value != NULL, STATUS_DATA, "no field \"label\"");
    REQUIRE(json_is_number(value) || json_is_string(value), STATUS_DATA,
            "the field \"label\" is no number");
    if (json_is_string(value)) {
        bool good = text_to_number(json_string_value(value), &number, reason);
        REQUIRE(good, STATUS_DATA, "the field \"label\": %s", reason);
    }
    float narrow = (float)number;
    REQUIRE(isfinite(narrow), STATUS_DATA, "the field \"label\" is %g, too large for a float",
            number);
    memcpy(bits, &narrow, sizeof narrow);
    return STATUS_OK;
}

/* ---- labels, before anything else ---- */

static status collect_label(void *user, struct jsonl_row *row)
{
    struct labels *labels = user;
    char name[PREPARE_LABEL_BYTES];
    TRY(prepare_label(json_object_get(row->value, "label"), name));
    return labels_add(labels, name);
}

/* ---- rows ---- */

static status use_row(void *user, struct jsonl_row *row)
{
    struct texts *r = user;
    struct text text = {0}, pair = {0};
    uint32_t learned = 0;
    int64_t first = 0, cut = 0;
    r->ids.count = 0;
    TRY(read_texts(row->value, &text, &pair));
    TRY(r->kind == EXAMPLE_REGRESS
            ? read_number(row->value, &learned)
            : prepare_label_number(&r->labels, json_object_get(row->value, "label"), &learned));
    TRY(texts_encode(r->options->tokenizer, &text, &pair, r->options->sequence_tokens, &r->ids,
                     &first, &cut));
    row->blameless = true;
    prepare_count(r->report, r->ids.count, cut);
    uint32_t segment = (uint32_t)first;
    const uint32_t *const values[] = {
        [EXAMPLE_TASK_FIRST_SEGMENT] = &segment, [EXAMPLE_TASK_LABEL] = &learned};
    return output_example(r->output, r->side, r->ids.ids, r->ids.count, values);
}

void prepare_count(struct prepare_report *report, int64_t tokens, int64_t cut)
{
    report->longest = tokens > report->longest ? tokens : report->longest;
    report->over_long += cut > 0;
    report->cut_tokens += cut;
    report->examples++;
}

static status prepare_kind(const struct prepare_options *options, enum example_kind kind,
                           struct prepare_report *out)
{
    *out = (struct prepare_report){0};
    struct texts rows = {.options = options, .report = out, .kind = kind};
    bool labelled = kind == EXAMPLE_CLASSIFY;
    status result = rows_prepare(
        &(struct row_preparation){options, out, kind, "rows", &rows.output, &rows.side, use_row,
                                  &rows, labelled ? &rows.labels : NULL, collect_label});
    token_list_free(&rows.ids);
    labels_free(&rows.labels);
    return result;
}

status prepare_classify(const struct prepare_options *options, struct prepare_report *out)
{
    return prepare_kind(options, EXAMPLE_CLASSIFY, out);
}

status prepare_regress(const struct prepare_options *options, struct prepare_report *out)
{
    return prepare_kind(options, EXAMPLE_REGRESS, out);
}
