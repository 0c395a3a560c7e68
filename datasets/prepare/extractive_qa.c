/* Rows of the objective answer, extractive question answering. They have "question", "context", and
 * either "answer" and "answer_start" or SQuAD's "answers" with a list of texts and a list of
 * character offsets. Files in SQuAD's own JSON give the same rows (squad.h). The model learns the
 * first answer; all of them are correct. An empty answer or an empty list means that the context
 * contains no answer.
 *
 * Each window of the context (qa_windows.h) is one example. All windows of a row go to the same
 * split. With a random split, all rows with the same context go to the same split too. */
#include <inttypes.h>
#include <string.h>

#include "datasets/prepare/output.h"
#include "datasets/prepare/prepare.h"
#include "datasets/prepare/rows.h"
#include "datasets/tokenizer/qa_windows.h"

struct extractive_qa {
    struct rows_preparation rows;
    struct row_groups contexts;                               /* random split */
    int64_t row_count, next_row;                              /* next_row: index of the next row */
    struct token_list ids, char_begin, char_end, answer_bits; /* columns of a window */
};

/* ---- fields ---- */

struct answer {
    struct text text;
    int64_t start; /* in code points */
};

/* The correct answers of a row; the model learns the first one. An empty list: the context
 * contains no answer. */
struct answer_list {
    struct answer items[EXAMPLE_ANSWERS_MAX];
    int count;
};

/* Adds an answer. Empty answers, duplicates, and answers beyond the maximum are left out. */
static void add_answer(struct answer_list *list, struct answer answer)
{
    bool skip = answer.text.count == 0 || list->count == EXAMPLE_ANSWERS_MAX;
    for (int i = 0; i < list->count && !skip; i++) {
        skip =
            list->items[i].start == answer.start && list->items[i].text.count == answer.text.count;
    }
    if (!skip) {
        list->items[list->count++] = answer;
    }
}

static status read_squad_answers(const json_t *value, struct answer_list *out)
{
    const json_t *texts = json_object_get(value, "text");
    const json_t *starts = json_object_get(value, "answer_start");
    REQUIRE(json_is_array(texts) && json_is_array(starts) &&
                json_array_size(texts) == json_array_size(starts),
            STATUS_DATA,
            "the field 'answers' must have two lists of equal length, 'text' and 'answer_start'");
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i), *start = json_array_get(starts, i);
        REQUIRE(json_is_string(text) && json_is_integer(start), STATUS_DATA,
                "the field 'answers': element %zu of 'text' is not a string, or element %zu of "
                "'answer_start' is not an integer",
                i, i);
        add_answer(out, (struct answer){{json_string_value(text), json_string_length(text)},
                                        json_integer_value(start)});
    }
    return STATUS_OK;
}

static status read_answers(const json_t *row, struct answer_list *out)
{
    const json_t *squad = json_object_get(row, "answers");
    const json_t *start = json_object_get(row, "answer_start");
    struct answer answer = {0};
    if (squad != NULL) {
        return read_squad_answers(squad, out);
    }
    TRY(jsonl_get_string(row, "answer", &answer.text.bytes, &answer.text.count));
    if (answer.text.count == 0) {
        return STATUS_OK;
    }
    REQUIRE(json_is_integer(start), STATUS_DATA,
            "the field 'answer_start' is missing or not an integer");
    answer.start = json_integer_value(start);
    add_answer(out, answer);
    return STATUS_OK;
}

static status check_answer(const struct text *context, const struct answer *a)
{
    REQUIRE(a->start >= 0 && a->start < qa_windows_count_code_points(context), STATUS_DATA,
            "answer_start is %" PRId64 ", but the context has %" PRId64 " characters", a->start,
            qa_windows_count_code_points(context));
    size_t offset = qa_windows_byte_offset(context, a->start);
    bool matches = a->text.count <= context->count - offset &&
                   memcmp(context->bytes + offset, a->text.bytes, a->text.count) == 0;
    REQUIRE(matches, STATUS_DATA, "the context does not contain the answer at character %" PRId64,
            a->start);
    return STATUS_OK;
}

/* ---- rows ---- */

static status count_row(void *user, struct jsonl_row *row)
{
    struct extractive_qa *q = user;
    struct text context = {0};
    q->row_count++;
    if (!q->rows.options->shuffle_split) {
        return STATUS_OK;
    }
    TRY(jsonl_get_string(row->value, "context", &context.bytes, &context.count));
    return row_split_group_add(&q->contexts, context.bytes, context.count);
}

/* Reads all rows to plan the split. */
static status plan_split(struct extractive_qa *q)
{
    const struct prepare_options *o = q->rows.options;
    TRY(rows_prescan(o, count_row, q));
    return o->shuffle_split && q->contexts.rows > 1
               ? row_split_group_plan(&q->contexts, o->validation_fraction, o->split_seed)
               : STATUS_OK;
}

static status choose_split(const struct extractive_qa *q, int64_t row, const struct text *context,
                           enum prepare_split *out)
{
    bool in_validation = false;
    double fraction = q->rows.options->validation_fraction;
    *out = q->rows.split.input;
    if (q->rows.split.input != PREPARE_SPLIT_BY_FRACTION || fraction <= 0.0 || q->row_count < 2) {
        return STATUS_OK;
    }
    if (q->contexts.is_validation != NULL) {
        TRY(row_split_group_is_validation(&q->contexts, context->bytes, context->count,
                                          &in_validation));
        *out = in_validation ? PREPARE_SPLIT_VALIDATION : PREPARE_SPLIT_TRAIN;
        return STATUS_OK;
    }
    int64_t validation_rows = prepare_output_count_validation(q->row_count, fraction);
    *out = row >= q->row_count - validation_rows ? PREPARE_SPLIT_VALIDATION : PREPARE_SPLIT_TRAIN;
    return STATUS_OK;
}

/* First and last context token of an answer. */
struct token_span {
    int64_t first, last;
};

/* Fills the columns that have one value per token: the code points of a context token, and a bit
 * for each answer that it belongs to. Other tokens get 0. */
static status fill_token_columns(struct extractive_qa *q, const struct qa_windows *a,
                                 const struct qa_windows_window *w, const struct token_span *spans,
                                 int count)
{
    struct token_list *to[] = {&q->char_begin, &q->char_end, &q->answer_bits};
    const struct token_list *from[] = {&a->char_begin, &a->char_end, NULL};
    for (int i = 0; i < 3; i++) {
        to[i]->count = 0;
        TRY(token_list_reserve(to[i], q->ids.count));
        to[i]->count = q->ids.count;
        memset(to[i]->ids, 0, (size_t)q->ids.count * sizeof *to[i]->ids);
        if (from[i] != NULL) {
            memcpy(to[i]->ids + w->context_start, from[i]->ids + w->first_context_token,
                   (size_t)w->context_tokens * sizeof *to[i]->ids);
        }
    }
    for (int64_t t = 0; t < w->context_tokens; t++) {
        for (int k = 0; k < count; k++) {
            bool inside = w->first_context_token + t >= spans[k].first &&
                          w->first_context_token + t <= spans[k].last;
            q->answer_bits.ids[w->context_start + t] |= inside ? 1 << k : 0;
        }
    }
    return STATUS_OK;
}

/* The row of the windows that are being written. */
struct qa_row {
    const struct qa_windows *encoded;
    struct token_span spans[EXAMPLE_ANSWERS_MAX];
    int count; /* of spans */
    enum prepare_split split;
    int64_t index;
};

static status write_window(struct extractive_qa *q, const struct qa_row *r, int64_t window)
{
    struct qa_windows_window w;
    struct token_span s = r->count > 0 ? r->spans[0] : (struct token_span){-1, -1};
    q->ids.count = 0;
    TRY(qa_windows_window(r->encoded, window, &q->ids, &w));
    TRY(fill_token_columns(q, r->encoded, &w, r->spans, r->count));
    bool inside =
        s.first >= w.first_context_token && s.last < w.first_context_token + w.context_tokens;
    const uint32_t begin =
        inside ? (uint32_t)(w.context_start + s.first - w.first_context_token) : 0;
    const uint32_t end = inside ? (uint32_t)(w.context_start + s.last - w.first_context_token) : 0;
    const uint32_t segment = (uint32_t)w.first_segment_tokens, row = (uint32_t)r->index;
    const uint32_t *const values[] = {
        [EXAMPLE_ANSWER_FIRST_SEGMENT] = &segment,
        [EXAMPLE_ANSWER_BEGIN] = &begin,
        [EXAMPLE_ANSWER_END] = &end,
        [EXAMPLE_ANSWER_ROW] = &row,
        [EXAMPLE_ANSWER_FROM] = (const uint32_t *)q->char_begin.ids,
        [EXAMPLE_ANSWER_TO] = (const uint32_t *)q->char_end.ids,
        [EXAMPLE_ANSWER_RIGHT] = (const uint32_t *)q->answer_bits.ids,
    };
    rows_count_example(q->rows.report, q->ids.count, 0);
    return prepare_output_write_example(q->rows.output, r->split, q->ids.ids, q->ids.count, values);
}

static status write_windows(struct extractive_qa *q, struct jsonl_row *row,
                            const struct answer_list *list, struct qa_row *r)
{
    for (; r->count < list->count; r->count++) {
        const struct answer *answer = &list->items[r->count];
        struct token_span *s = &r->spans[r->count];
        REQUIRE(qa_windows_find_tokens(r->encoded, answer->start,
                                       answer->start + qa_windows_count_code_points(&answer->text),
                                       &s->first, &s->last),
                STATUS_DATA, "no token of the context overlaps the answer");
    }
    row->fatal = true;
    for (int64_t i = 0; i < r->encoded->window_count; i++) {
        TRY(write_window(q, r, i));
    }
    return STATUS_OK;
}

static status write_row(void *user, struct jsonl_row *row)
{
    struct extractive_qa *q = user;
    struct text question = {0}, context = {0};
    struct answer_list list = {.count = 0};
    struct qa_windows a = {0};
    struct qa_row r = {.encoded = &a, .index = q->next_row++};
    TRY(jsonl_get_string(row->value, "question", &question.bytes, &question.count));
    TRY(jsonl_get_string(row->value, "context", &context.bytes, &context.count));
    TRY(choose_split(q, r.index, &context, &r.split));
    TRY(read_answers(row->value, &list));
    for (int i = 0; i < list.count; i++) {
        TRY(check_answer(&context, &list.items[i]));
    }
    status result = qa_windows_encode(q->rows.options->tokenizer, &question, &context,
                                      q->rows.options->sequence_tokens, &a);
    if (result == STATUS_OK) {
        result = write_windows(q, row, &list, &r);
    }
    qa_windows_free(&a);
    return result;
}

status prepare_answer(const struct prepare_options *options, struct prepare_report *out)
{
    *out = (struct prepare_report){0};
    struct prepare_options o = *options;
    o.format.has_squad = true;
    struct extractive_qa q = {0};
    q.rows = (struct rows_preparation){.options = &o,
                                       .report = out,
                                       .kind = EXAMPLE_ANSWER,
                                       .unit_name = "windows",
                                       .chooses_split = true,
                                       .process_row = write_row,
                                       .user = &q};
    status result = prepare_options_check(&o);
    if (result == STATUS_OK && o.validation_fraction > 0.0) {
        result = plan_split(&q);
    }
    if (result == STATUS_OK) {
        result = rows_prepare(&q.rows);
    }
    row_split_group_close(&q.contexts);
    token_list_free(&q.ids);
    token_list_free(&q.char_begin);
    token_list_free(&q.char_end);
    token_list_free(&q.answer_bits);
    return result;
}
