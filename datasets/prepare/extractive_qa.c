/* Questions whose answer stands in a text: {"question", "context", "answer", "answer_start"}, or SQuAD's "answers" with a
 * list of texts and one of places, of which the first is learned and all are right. An empty answer, or an empty list: the
 * text has none.
 *
 * Each window of the text (answers.h) is an example; all windows of a row go to the same side. */
#include <math.h>
#include <string.h>

#include "datasets/tokenizer/qa_windows.h"
#include "datasets/prepare/input.h"

struct questions {
    const struct prepare_options *options;
    struct prepare_report *report;
    struct output *output;
    enum output_side side;
    int64_t rows, row;            /* in all; the next one's number */
    int64_t stratum, drawn, ends; /* of a split by chance */
    struct token_list ids, begin, end, right;
};

/* ---- fields ---- */

struct answer {
    struct text text;
    int64_t start; /* code points */
};

/* All right answers of a row, the one that is learned first; none: the text has none. */
struct answers_given {
    struct answer each[EXAMPLE_RIGHT_MOST];
    int count;
};

/* Those beyond the most are left out, as the same one again is. */
static void give(struct answers_given *g, struct answer one)
{
    bool known = one.text.count == 0 || g->count == EXAMPLE_RIGHT_MOST;
    for (int i = 0; i < g->count && !known; i++) {
        known = g->each[i].start == one.start && g->each[i].text.count == one.text.count;
    }
    if (!known) {
        g->each[g->count++] = one;
    }
}

static status read_list(const json_t *answers, struct answers_given *out)
{
    const json_t *texts = json_object_get(answers, "text");
    const json_t *starts = json_object_get(answers, "answer_start");
    REQUIRE(json_is_array(texts) && json_is_array(starts) &&
                json_array_size(texts) == json_array_size(starts),
            STATUS_DATA, "the field \"answers\" has no two lists \"text\" and \"answer_start\"");
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i), *start = json_array_get(starts, i);
        REQUIRE(json_is_string(text) && json_is_integer(start), STATUS_DATA,
                "an answer is no text, or its place no integer");
        give(out, (struct answer){{json_string_value(text), json_string_length(text)},
                                  json_integer_value(start)});
    }
    return STATUS_OK;
}

static status read_answers(const json_t *row, struct answers_given *out)
{
    const json_t *answers = json_object_get(row, "answers");
    const json_t *start = json_object_get(row, "answer_start");
    struct answer one = {0};
    if (answers != NULL) {
        return read_list(answers, out);
    }
    TRY(jsonl_text(row, "answer", &one.text.bytes, &one.text.count));
    if (one.text.count == 0) {
        return STATUS_OK;
    }
    REQUIRE(json_is_integer(start), STATUS_DATA, "no field \"answer_start\" that is an integer");
    one.start = json_integer_value(start);
    give(out, one);
    return STATUS_OK;
}

static status check_answer(const struct text *context, const struct answer *a)
{
    REQUIRE(a->start >= 0 && a->start < answers_points(context), STATUS_DATA,
            "answer_start is %lld, the context has %lld characters", (long long)a->start,
            (long long)answers_points(context));
    size_t at = answers_byte(context, a->start);
    bool there = a->text.count <= context->count - at &&
                 memcmp(context->bytes + at, a->text.bytes, a->text.count) == 0;
    REQUIRE(there, STATUS_DATA, "the context does not hold the answer at character %lld",
            (long long)a->start);
    return STATUS_OK;
}

/* ---- rows ---- */

static status count_row(void *user, struct jsonl_row *row)
{
    (void)row;
    ((struct questions *)user)->rows++;
    return STATUS_OK;
}

/* Of a fraction that is held out; the windows of a row stay together. */
static enum output_side side_of(struct questions *q, int64_t row)
{
    double fraction = q->options->validation_fraction;
    if (q->side != OUTPUT_AS_SPLIT || fraction <= 0.0 || q->rows < 2) {
        return q->side;
    }
    if (q->options->shuffle_split) {
        while (row >= q->ends) {
            q->drawn = output_stratum(q->options, q->stratum++, &q->ends);
        }
        return row == q->drawn ? OUTPUT_VALIDATION : OUTPUT_TRAIN;
    }
    int64_t held = (int64_t)floor((double)q->rows * fraction + 0.5);
    held = held < 1 ? 1 : held > q->rows - 1 ? q->rows - 1 : held;
    return row >= q->rows - held ? OUTPUT_VALIDATION : OUTPUT_TRAIN;
}

/* First and last of the context's tokens. */
struct span {
    int64_t first, last;
};

/* Places of the window's tokens in the context, and which answers they are parts of; 0 of other tokens. */
static status give_places(struct questions *q, const struct answers *a,
                          const struct answers_window *w, const struct span *spans, int count)
{
    struct token_list *to[] = {&q->begin, &q->end, &q->right};
    const struct token_list *from[] = {&a->begin, &a->end, NULL};
    for (int i = 0; i < 3; i++) {
        to[i]->count = 0;
        TRY(token_list_reserve(to[i], q->ids.count));
        to[i]->count = q->ids.count;
        memset(to[i]->ids, 0, (size_t)q->ids.count * sizeof *to[i]->ids);
        if (from[i] != NULL) {
            memcpy(to[i]->ids + w->context, from[i]->ids + w->token,
                   (size_t)w->tokens * sizeof *to[i]->ids);
        }
    }
    for (int64_t t = 0; t < w->tokens; t++) {
        for (int k = 0; k < count; k++) {
            bool inside = w->token + t >= spans[k].first && w->token + t <= spans[k].last;
            q->right.ids[w->context + t] |= inside ? 1 << k : 0;
        }
    }
    return STATUS_OK;
}

/* A row on its way into windows. */
struct row {
    const struct answers *encoded;
    struct span spans[EXAMPLE_RIGHT_MOST];
    int count;
    enum output_side side;
    int64_t number;
};

static status write_window(struct questions *q, const struct row *r, int64_t window)
{
    struct answers_window w;
    struct span s = r->count > 0 ? r->spans[0] : (struct span){-1, -1};
    q->ids.count = 0;
    TRY(answers_window(r->encoded, window, &q->ids, &w));
    TRY(give_places(q, r->encoded, &w, r->spans, r->count));
    bool inside = s.first >= w.token && s.last < w.token + w.tokens;
    const uint32_t begin = inside ? (uint32_t)(w.context + s.first - w.token) : 0;
    const uint32_t end = inside ? (uint32_t)(w.context + s.last - w.token) : 0;
    const uint32_t segment = (uint32_t)w.first, number = (uint32_t)r->number;
    const uint32_t *const values[] = {
        [EXAMPLE_ANSWER_FIRST_SEGMENT] = &segment,
        [EXAMPLE_ANSWER_BEGIN] = &begin,
        [EXAMPLE_ANSWER_END] = &end,
        [EXAMPLE_ANSWER_ROW] = &number,
        [EXAMPLE_ANSWER_FROM] = (const uint32_t *)q->begin.ids,
        [EXAMPLE_ANSWER_TO] = (const uint32_t *)q->end.ids,
        [EXAMPLE_ANSWER_RIGHT] = (const uint32_t *)q->right.ids,
    };
    prepare_count(q->report, q->ids.count, 0);
    return output_example(q->output, r->side, q->ids.ids, q->ids.count, values);
}

static status use_encoded(struct questions *q, struct jsonl_row *row,
                          const struct answers_given *given, struct row *r)
{
    for (; r->count < given->count; r->count++) {
        const struct answer *one = &given->each[r->count];
        struct span *s = &r->spans[r->count];
        REQUIRE(answers_find(r->encoded, one->start, one->start + answers_points(&one->text),
                             &s->first, &s->last),
                STATUS_DATA, "the answer has no token");
    }
    row->blameless = true;
    for (int64_t i = 0; i < r->encoded->windows; i++) {
        TRY(write_window(q, r, i));
    }
    return STATUS_OK;
}

static status use_row(void *user, struct jsonl_row *row)
{
    struct questions *q = user;
    struct text question = {0}, context = {0};
    struct answers_given given = {.count = 0};
    struct answers a = {0};
    struct row r = {.encoded = &a, .number = q->row++};
    r.side = side_of(q, r.number);
    TRY(jsonl_text(row->value, "question", &question.bytes, &question.count));
    TRY(jsonl_text(row->value, "context", &context.bytes, &context.count));
    TRY(read_answers(row->value, &given));
    for (int i = 0; i < given.count; i++) {
        TRY(check_answer(&context, &given.each[i]));
    }
    status result =
        answers_encode(q->options->tokenizer, &question, &context, q->options->sequence_tokens, &a);
    if (result == STATUS_OK) {
        result = use_encoded(q, row, &given, &r);
    }
    answers_free(&a);
    return result;
}

status prepare_answer(const struct prepare_options *options, struct prepare_report *out)
{
    *out = (struct prepare_report){0};
    struct questions q = {.options = options, .report = out};
    status result = prepare_check(options);
    if (result == STATUS_OK && options->validation_fraction > 0.0) {
        result = rows_survey(options, count_row, &q);
    }
    if (result == STATUS_OK) {
        result = rows_prepare(&(struct row_preparation){
            options, out, EXAMPLE_ANSWER, "windows", &q.output, &q.side, use_row, &q, NULL, NULL});
    }
    token_list_free(&q.ids);
    token_list_free(&q.begin);
    token_list_free(&q.end);
    token_list_free(&q.right);
    return result;
}
