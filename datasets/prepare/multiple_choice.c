/* Rows of several texts: one of them to be chosen ("text" or "context", "choices", "label"), or two that belong together
 * ("text", "text_pair").
 *
 * Each text is encoded by itself, every choice as a pair with the text that it goes on in (texts.h), and all of a row lie
 * one after the other in one example. A row's label is the number of its right choice, from 0; its name among the labels
 * is that number, so that shards of up to four choices have the labels "0" to "3". */
#include <string.h>

#include "datasets/prepare/input.h"
#include "datasets/tokenizer/text_pair.h"

struct several {
    const struct prepare_options *options;
    struct prepare_report *report;
    struct output *output;
    enum output_side side;
    struct labels labels;
    struct token_list ids, marks;
    int64_t cut;
};

static status add_text(struct several *s, const struct text *text, const struct text *pair)
{
    int64_t before = s->ids.count, first = 0, cut = 0;
    TRY(texts_encode(s->options->tokenizer, text, pair, s->options->sequence_tokens, &s->ids,
                     &first, &cut));
    int64_t more = s->ids.count - before;
    TRY(token_list_reserve(&s->marks, more));
    for (int64_t i = 0; i < more; i++) {
        s->marks.ids[s->marks.count++] =
            (i == 0 ? EXAMPLE_BEGINS_TEXT : 0) | (i >= first ? EXAMPLE_SECOND_SEGMENT : 0);
    }
    s->cut += cut;
    return STATUS_OK;
}

static void begin_row(struct several *s)
{
    s->ids.count = s->marks.count = s->cut = 0;
}

static status write_row(struct several *s, uint32_t label)
{
    const uint32_t *const values[] = {
        [EXAMPLE_SEVERAL_MARK] = (const uint32_t *)s->marks.ids,
        [EXAMPLE_SEVERAL_LABEL] = &label,
    };
    prepare_count(s->report, s->ids.count, s->cut);
    return output_example(s->output, s->side, s->ids.ids, s->ids.count, values);
}

/* ---- choices ---- */

static status read_choices(const json_t *row, struct text *text, const json_t **out)
{
    const char *field = json_object_get(row, "text") != NULL ? "text" : "context";
    TRY(prepare_text_field(row, field, text));
    *out = json_object_get(row, "choices");
    REQUIRE(json_is_array(*out) && json_array_size(*out) >= 2, STATUS_DATA,
            "no field \"choices\" with a list of at least two texts");
    return STATUS_OK;
}

/* Names for as many choices as the longest list has. */
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

static status use_choices(void *user, struct jsonl_row *row)
{
    struct several *s = user;
    struct text text = {0};
    const json_t *choices = NULL;
    uint32_t label = 0;
    TRY(read_choices(row->value, &text, &choices));
    TRY(prepare_label_number(&s->labels, json_object_get(row->value, "label"), &label));
    size_t count = json_array_size(choices);
    REQUIRE(label < count && count <= (size_t)s->labels.count, STATUS_DATA,
            "%zu choices and the label %u; there are %d labels", count, label, s->labels.count);
    begin_row(s);
    for (size_t i = 0; i < count; i++) {
        const json_t *choice = json_array_get(choices, i);
        struct text pair = {json_string_value(choice), json_string_length(choice)};
        REQUIRE(json_is_string(choice) && pair.count > 0, STATUS_DATA,
                "choice %zu is no text, or empty", i);
        TRY(add_text(s, &text, &pair));
    }
    row->blameless = true;
    return write_row(s, label);
}

/* ---- pairs that belong together ---- */

static status use_pair(void *user, struct jsonl_row *row)
{
    struct several *s = user;
    struct text text = {0}, pair = {0};
    TRY(prepare_text_field(row->value, "text", &text));
    TRY(prepare_text_field(row->value, "text_pair", &pair));
    begin_row(s);
    TRY(add_text(s, &text, NULL));
    TRY(add_text(s, &pair, NULL));
    row->blameless = true;
    return write_row(s, 0);
}

static status prepare_kind(const struct prepare_options *options, enum example_kind kind,
                           struct prepare_report *out)
{
    *out = (struct prepare_report){0};
    struct several s = {.options = options, .report = out};
    bool labelled = kind == EXAMPLE_CHOOSE;
    status result = rows_prepare(&(struct row_preparation){
        options, out, kind, "rows", &s.output, &s.side, labelled ? use_choices : use_pair, &s,
        labelled ? &s.labels : NULL, collect_choices});
    token_list_free(&s.ids);
    token_list_free(&s.marks);
    labels_free(&s.labels);
    return result;
}

status prepare_choose(const struct prepare_options *options, struct prepare_report *out)
{
    return prepare_kind(options, EXAMPLE_CHOOSE, out);
}

status prepare_embed(const struct prepare_options *options, struct prepare_report *out)
{
    return prepare_kind(options, EXAMPLE_EMBED, out);
}
