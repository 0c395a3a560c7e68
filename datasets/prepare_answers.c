/* Questions whose answer stands in a text: {"question", "context", "answer", "answer_start"}, or SQuAD's "answers" with a
 * list of texts and one of places, of which the first is learned. An empty answer, or an empty list: the text has none.
 *
 * Each window of the text (answers.h) is an example; all windows of a row go to the same side. */
#include <math.h>
#include <string.h>

#include "datasets/answers.h"
#include "datasets/prepare_impl.h"

struct questions {
    const struct prepare_options *options;
    struct prepare_report *report;
    struct output *output;
    enum output_side side;
    int64_t rows, row;            /* in all; the next one's number */
    int64_t stratum, drawn, ends; /* of a split by chance */
    struct token_list ids, begin, end;
};

/* ---- fields ---- */

struct answer {
    struct text text;
    int64_t start; /* code points */
};

static status read_list(const json_t *answers, struct answer *out)
{
    const json_t *texts = json_object_get(answers, "text");
    const json_t *starts = json_object_get(answers, "answer_start");
    REQUIRE(json_is_array(texts) && json_is_array(starts) &&
                json_array_size(texts) == json_array_size(starts),
            STATUS_DATA, "the field \"answers\" has no two lists \"text\" and \"answer_start\"");
    const json_t *text = json_array_get(texts, 0), *start = json_array_get(starts, 0);
    if (text == NULL) {
        return STATUS_OK;
    }
    REQUIRE(json_is_string(text) && json_is_integer(start), STATUS_DATA,
            "an answer is no text, or its place no integer");
    *out = (struct answer){{json_string_value(text), json_string_length(text)},
                           json_integer_value(start)};
    return STATUS_OK;
}

static status read_answer(const json_t *row, struct answer *out)
{
    const json_t *answers = json_object_get(row, "answers");
    const json_t *start = json_object_get(row, "answer_start");
    if (answers != NULL) {
        return read_list(answers, out);
    }
    TRY(jsonl_text(row, "answer", &out->text.bytes, &out->text.count));
    if (out->text.count == 0) {
        return STATUS_OK;
    }
    REQUIRE(json_is_integer(start), STATUS_DATA, "no field \"answer_start\" that is an integer");
    out->start = json_integer_value(start);
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

/* Places of the window's tokens in the context; those of other tokens are 0. */
static status give_places(struct questions *q, const struct answers *a,
                          const struct answers_window *w)
{
    struct token_list *to[] = {&q->begin, &q->end};
    const struct token_list *from[] = {&a->begin, &a->end};
    for (int i = 0; i < 2; i++) {
        to[i]->count = 0;
        TRY(token_list_reserve(to[i], q->ids.count));
        to[i]->count = q->ids.count;
        memset(to[i]->ids, 0, (size_t)q->ids.count * sizeof *to[i]->ids);
        memcpy(to[i]->ids + w->context, from[i]->ids + w->token,
               (size_t)w->tokens * sizeof *to[i]->ids);
    }
    return STATUS_OK;
}

static status write_window(struct questions *q, const struct answers *a, int64_t window,
                           int64_t first, int64_t last, enum output_side side, int64_t row)
{
    struct answers_window w;
    q->ids.count = 0;
    TRY(answers_window(a, window, &q->ids, &w));
    TRY(give_places(q, a, &w));
    bool inside = first >= w.token && last < w.token + w.tokens;
    const uint32_t begin = inside ? (uint32_t)(w.context + first - w.token) : 0;
    const uint32_t end = inside ? (uint32_t)(w.context + last - w.token) : 0;
    const uint32_t segment = (uint32_t)w.first, number = (uint32_t)row;
    const uint32_t *const values[] = {
        [EXAMPLE_ANSWER_FIRST_SEGMENT] = &segment,
        [EXAMPLE_ANSWER_BEGIN] = &begin,
        [EXAMPLE_ANSWER_END] = &end,
        [EXAMPLE_ANSWER_ROW] = &number,
        [EXAMPLE_ANSWER_FROM] = (const uint32_t *)q->begin.ids,
        [EXAMPLE_ANSWER_TO] = (const uint32_t *)q->end.ids,
    };
    prepare_count(q->report, q->ids.count, 0);
    return output_example(q->output, side, q->ids.ids, q->ids.count, values);
}

static status use_encoded(struct questions *q, struct jsonl_row *row, const struct answers *a,
                          const struct answer *answer, enum output_side side, int64_t number)
{
    int64_t first = -1, last = -1;
    bool found = answer->text.count == 0 ||
                 answers_find(a, answer->start, answer->start + answers_points(&answer->text),
                              &first, &last);
    REQUIRE(found, STATUS_DATA, "the answer has no token");
    row->blameless = true;
    for (int64_t i = 0; i < a->windows; i++) {
        TRY(write_window(q, a, i, first, last, side, number));
    }
    return STATUS_OK;
}

static status use_row(void *user, struct jsonl_row *row)
{
    struct questions *q = user;
    struct text question = {0}, context = {0};
    struct answer answer = {0};
    struct answers a = {0};
    int64_t number = q->row++;
    enum output_side side = side_of(q, number);
    TRY(jsonl_text(row->value, "question", &question.bytes, &question.count));
    TRY(jsonl_text(row->value, "context", &context.bytes, &context.count));
    TRY(read_answer(row->value, &answer));
    TRY(answer.text.count > 0 ? check_answer(&context, &answer) : STATUS_OK);
    status result =
        answers_encode(q->options->tokenizer, &question, &context, q->options->sequence_tokens, &a);
    if (result == STATUS_OK) {
        result = use_encoded(q, row, &a, &answer, side, number);
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
    return result;
}
