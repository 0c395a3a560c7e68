/* bireme answer: extractive question answering with a model that was trained with objective answer.
 *
 * A long text is split into windows (qa_windows.h). The command prints the best span of all
 * windows. It prints no answer if the no-answer score of every window is better, as in run_qa.py
 * of Hugging Face transformers. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "datasets/tokenizer/qa_windows.h"
#include "trainer/cli/batch_query.h"
#include "trainer/cli/command.h"
#include "trainer/cli/json_output.h"
#include "trainer/inference/answer_span.h"

struct request {
    struct batch_query_request shared;
    const char *question;
    int64_t max_answer_tokens;
};

/* A line of the input. It is kept until all its windows are processed. */
struct line {
    char *text; /* "question\0context", or the context only */
    const char *question, *context;
    struct qa_windows qa_windows;
    int64_t windows_left; /* not processed yet */
    struct answer_span best;
    int64_t begin, end;      /* of the best span, in code points of the context */
    struct answer_span none; /* the no-answer span with the lowest score of all windows */
    struct line *next;
};

struct answer_state {
    const struct request *q;
    struct line *lines; /* lines that are not printed yet, the oldest first */
    struct line *batch_lines[BATCH_QUERY_TEXTS]; /* the line of each text in the batch */
    struct qa_windows_window batch_windows[BATCH_QUERY_TEXTS]; /* the window of each text */
    double no_answer_threshold;
    int32_t *rows;  /* 0, 1, ... */
    float *outputs; /* [rows of a batch, 2] */
};

static void remove_first_line(struct answer_state *state)
{
    struct line *l = state->lines;
    state->lines = l->next;
    qa_windows_free(&l->qa_windows);
    free(l->text);
    free(l);
}

/* ---- output ---- */

static status print_answer(const struct answer_state *state, const struct line *l)
{
    struct text context = {l->context, strlen(l->context)};
    bool found = !(l->none.score - l->best.score > state->no_answer_threshold);
    double probability = found ? l->best.probability : l->none.probability;
    size_t begin = found ? qa_windows_byte_offset(&context, l->begin) : 0;
    size_t end = found ? qa_windows_byte_offset(&context, l->end) : 0;
    if (!state->q->shared.json) {
        printf("%.*s\t%.4f\n", (int)(end - begin), l->context + begin, probability);
        return STATUS_OK;
    }
    return json_output_print(json_pack(
        "{s:s, s:s#, s:I, s:I, s:f}", "question", l->question, "answer", l->context + begin,
        (int)(end - begin), "begin", (json_int_t)(found ? l->begin : 0), "end",
        (json_int_t)(found ? l->end : 0), "probability", probability));
}

/* Updates the best span and the no-answer span of the line with the outputs of one window. */
static void add_window_result(const struct answer_state *state, struct line *l,
                              const struct qa_windows_window *w, const float *outputs,
                              int64_t tokens)
{
    struct answer_span s = answer_span_best(outputs, tokens, w->context_start, w->context_tokens,
                                            state->q->max_answer_tokens);
    if (s.score > l->best.score) {
        l->best = s;
        l->begin =
            l->qa_windows.char_begin.ids[w->first_context_token + s.first - w->context_start];
        l->end = l->qa_windows.char_end.ids[w->first_context_token + s.last - w->context_start];
    }
    struct answer_span none = answer_span_none(outputs, tokens);
    l->none = none.score < l->none.score ? none : l->none;
}

static status process_batch(struct batch_query *b)
{
    struct answer_state *state = b->user;
    TRY(batch_query_head_outputs(b, state->rows, b->cu_rows[b->count], state->outputs));
    for (int i = 0; i < b->count; i++) {
        int32_t row = b->cu_rows[i];
        add_window_result(state, state->batch_lines[i], &state->batch_windows[i],
                          state->outputs + 2 * row, b->cu_rows[i + 1] - row);
        if (--state->batch_lines[i]->windows_left == 0) { /* Lines are completed in input order. */
            TRY(print_answer(state, state->batch_lines[i]));
            remove_first_line(state);
        }
    }
    return STATUS_OK;
}

/* ---- input ---- */

static status add_window(struct batch_query *b, struct line *l, int64_t window)
{
    struct answer_state *state = b->user;
    struct token_list ids = {0};
    struct qa_windows_window w;
    status result = qa_windows_window(&l->qa_windows, window, &ids, &w);
    if (result == STATUS_OK) {
        result = batch_query_add_tokens(b, l->question, &ids, w.first_segment_tokens);
    }
    if (result == STATUS_OK) {
        state->batch_lines[b->count - 1] = l;
        state->batch_windows[b->count - 1] = w;
    }
    token_list_free(&ids);
    return result;
}

/* Makes a question of a row, which has `row_question`, or of a line, with the question before a
 * tab. The option --question replaces both. */
static status make_line(struct answer_state *state, const char *text, const char *row_question,
                        struct line **out)
{
    const char *question = state->q->question;
    struct line *l = calloc(1, sizeof *l), **end = &state->lines;
    REQUIRE(l != NULL, STATUS_INTERNAL, "out of memory for a question");
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *out = *end = l;
    l->best.score = -INFINITY;
    l->none.score = INFINITY;
    bool is_row = state->q->shared.columns != NULL;
    size_t row_bytes = row_question != NULL ? strlen(row_question) : 0;
    size_t bytes = row_bytes + strlen(text) + 2;
    l->text = malloc(bytes);
    REQUIRE(l->text != NULL, STATUS_INTERNAL, "out of memory for a line of %zu bytes",
            strlen(text));
    snprintf(l->text, bytes, "%s%s%s", row_bytes > 0 ? row_question : "", row_bytes > 0 ? "\t" : "",
             text);
    char *tab = question != NULL ? NULL
                : !is_row        ? strchr(l->text, '\t')
                : row_bytes > 0  ? l->text + row_bytes
                                 : NULL;
    REQUIRE(question != NULL || tab != NULL, STATUS_DATA, "%s, or give --question",
            is_row ? "no field \"question\"; give --columns question=COLUMN"
                   : "the line has no tab; write QUESTION<tab>TEXT on each line");
    l->question = question != NULL ? question : l->text;
    l->context = question != NULL ? l->text : tab + 1;
    if (tab != NULL) {
        *tab = '\0';
    }
    return STATUS_OK;
}

static status visit_text(void *user, const char *text, size_t bytes, const char *second)
{
    struct batch_query *b = user;
    const struct request *q = ((struct answer_state *)b->user)->q;
    struct line *l;
    int64_t positions = model_positions(model_get_config(b->session.model));
    int64_t length = b->session.recipe.data.sequence_length;
    (void)bytes;
    TRY(make_line(b->user, text, q->question == NULL ? second : NULL, &l));
    struct text question = {l->question, strlen(l->question)};
    struct text context = {l->context, strlen(l->context)};
    TRY(qa_windows_encode(b->session.tokenizer, &question, &context,
                          length < positions ? length : positions, &l->qa_windows));
    l->windows_left = l->qa_windows.window_count;
    for (int64_t w = 0, windows = l->windows_left; w < windows; w++) {
        TRY(add_window(b, l, w));
    }
    return STATUS_OK;
}

/* ---- the command ---- */

static status prepare_state(struct batch_query *b, const char *checkpoint)
{
    struct answer_state *state = b->user;
    REQUIRE(b->session.recipe.objective == OBJECTIVE_ANSWER, STATUS_DATA,
            "%s was trained with objective %s; answer needs a model that was trained with "
            "objective answer",
            checkpoint, recipe_objective_name(b->session.recipe.objective));
    const char *question = state->q->question != NULL ? state->q->question : "";
    TRY(batch_query_check_text(question, strlen(question)));
    state->no_answer_threshold = b->session.recipe.answer.no_answer_threshold;
    state->rows = calloc((size_t)b->max_rows, sizeof *state->rows);
    state->outputs = calloc((size_t)(2 * b->max_rows), sizeof *state->outputs);
    REQUIRE(state->rows != NULL && state->outputs != NULL, STATUS_INTERNAL,
            "out of memory for the outputs of %" PRId64 " rows", b->max_rows);
    for (int64_t i = 0; i < b->max_rows; i++) {
        state->rows[i] = (int32_t)i;
    }
    return STATUS_OK;
}

static status process_input(struct batch_query *b, const struct request *q)
{
    TRY(batch_query_open(b, &q->shared));
    TRY(prepare_state(b, q->shared.checkpoint));
    const struct text_lines source = {.path = q->shared.path,
                                      .columns = q->shared.columns,
                                      .field = "context",
                                      .second = "question",
                                      .splits_tabs = q->question == NULL};
    TRY(batch_query_read_texts(b, &source, visit_text));
    return batch_query_finish(b);
}

static status run_answer(const struct batch_query_request *shared)
{
    const struct request *q = (const struct request *)shared;
    struct answer_state state = {.q = q};
    struct batch_query b = {.command = "answer", .process_batch = process_batch, .user = &state};
    status result = process_input(&b, q);
    while (state.lines != NULL) {
        remove_first_line(&state);
    }
    free(state.rows);
    free(state.outputs);
    KEEP_FIRST(result, batch_query_close(&b));
    return result;
}

status command_answer(int argc, char **argv)
{
    struct request q = {0};
    const struct option table[] = {
        {"question", OPTION_TEXT, &q.question, "TEXT", NULL,
         "the question for every line; if not given, each line is QUESTION<tab>TEXT"},
        {"max-answer-tokens", OPTION_INTEGER, &q.max_answer_tokens, "N", "30",
         "maximum length of an answer in tokens", .min = 1, .max = 1e6},
        BATCH_QUERY_COLUMNS(&q.shared, "context, question"),
    };
    struct options options = {
        .usage = "bireme answer --checkpoint DIR [--question TEXT] [FILE] [options]",
        .description = "Finds the answer to a question in each line of FILE or of standard input. "
                       "Prints the answer, a tab and its probability. The answer is empty if the "
                       "text does not contain one. Long texts are split into windows.",
        .table = table,
        .count = sizeof table / sizeof table[0],
        .operand_name = "FILE",
        .operands_max = 1,
    };
    return batch_query_run_command(&options, false, argc, argv, &q.shared, run_answer);
}
