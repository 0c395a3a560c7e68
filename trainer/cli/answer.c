/* bireme answer: extractive question answering with a model that was trained with objective answer.
 *
 * A long text is split into windows, and answer_search.h selects the best span of all of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "trainer/cli/batch_query.h"
#include "trainer/cli/command.h"
#include "trainer/cli/output/json_output.h"
#include "trainer/inference/prediction/prediction.h"
#include "trainer/inference/prediction/text_input.h"

struct request {
    struct batch_query_request shared;
    const char *question;
    int64_t max_answer_tokens;
};

/* A line of the input. It is kept until all its windows are processed. */
struct line {
    char *text; /* "question\0context", or the context only */
    const char *question, *context;
    struct answer_search search;
    int64_t windows_left; /* not processed yet */
    struct line *next;
};

struct answer_state {
    const struct request *q;
    struct line *lines; /* lines that are not printed yet, the oldest first */
    struct line *batch_lines[TEXT_BATCH_TEXTS]; /* the line of each text in the batch */
    struct qa_windows_window batch_windows[TEXT_BATCH_TEXTS]; /* the window of each text */
    int32_t *rows;                                            /* 0, 1, ... */
    float *outputs;                                           /* [rows of a batch, 2] */
};

static void remove_first_line(struct answer_state *state)
{
    struct line *l = state->lines;
    state->lines = l->next;
    answer_search_close(&l->search);
    free(l->text);
    free(l);
}

/* ---- output ---- */

static status print_answer(const struct answer_state *state, const struct line *l)
{
    struct answer a = answer_search_end(&l->search);
    const char *text = l->context + a.begin_bytes;
    int bytes = (int)(a.end_bytes - a.begin_bytes);
    if (!state->q->shared.json) {
        printf("%.*s\t%.4f\n", bytes, text, a.probability);
        return STATUS_OK;
    }
    return json_output_print(json_pack("{s:s, s:s#, s:I, s:I, s:f}", "question", l->question,
                                       "answer", text, bytes, "begin", (json_int_t)a.begin, "end",
                                       (json_int_t)a.end, "probability", a.probability));
}

static status process_batch(struct batch_query *b)
{
    struct answer_state *state = b->user;
    const int32_t *cu_rows = b->batch.cu_rows;
    TRY(text_batch_head_outputs(&b->batch, state->rows, cu_rows[b->batch.count], state->outputs));
    for (int i = 0; i < b->batch.count; i++) {
        answer_search_add(&state->batch_lines[i]->search, &state->batch_windows[i],
                          state->outputs + 2 * cu_rows[i], cu_rows[i + 1] - cu_rows[i],
                          state->q->max_answer_tokens);
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
    status result = qa_windows_window(&l->search.windows, window, &ids, &w);
    if (result == STATUS_OK) {
        result = batch_query_add_tokens(b, l->question, &ids, w.first_segment_tokens);
    }
    if (result == STATUS_OK) {
        state->batch_lines[b->batch.count - 1] = l;
        state->batch_windows[b->batch.count - 1] = w;
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
    struct line *l = NULL, **end = &state->lines;
    TRY(ALLOCATE(l, 1, "a question"));
    while (*end != NULL) {
        end = &(*end)->next;
    }
    *out = *end = l;
    bool is_row = state->q->shared.columns != NULL;
    size_t row_bytes = row_question != NULL ? strlen(row_question) : 0;
    size_t bytes = row_bytes + strlen(text) + 2;
    TRY(ALLOCATE(l->text, bytes, "a line"));
    snprintf(l->text, bytes, "%s%s%s", row_bytes > 0 ? row_question : "", row_bytes > 0 ? "\t" : "",
             text);
    char *tab = question != NULL ? NULL
                : !is_row        ? strchr(l->text, '\t')
                : row_bytes > 0  ? l->text + row_bytes
                                 : NULL;
    REQUIRE(question != NULL || tab != NULL, STATUS_DATA, "%s, or give --question",
            is_row ? "no field 'question'; give --columns question=COLUMN"
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
    (void)bytes;
    TRY(make_line(b->user, text, q->question == NULL ? second : NULL, &l));
    struct text question = {l->question, strlen(l->question)};
    struct text context = {l->context, strlen(l->context)};
    TRY(answer_search_open(&b->session, &question, &context, &l->search));
    l->windows_left = l->search.windows.window_count;
    for (int64_t w = 0, windows = l->windows_left; w < windows; w++) {
        TRY(add_window(b, l, w));
    }
    return STATUS_OK;
}

/* ---- the command ---- */

static status prepare_state(struct batch_query *b, const char *checkpoint)
{
    struct answer_state *state = b->user;
    TRY(prediction_require_answers(&b->session, checkpoint));
    const char *question = state->q->question != NULL ? state->q->question : "";
    TRY(text_input_check(&(struct text){question, strlen(question)}));
    TRY(ALLOCATE(state->rows, b->batch.max_rows, "the rows of a batch"));
    TRY(ALLOCATE(state->outputs, 2 * b->batch.max_rows, "the outputs of a batch"));
    for (int64_t i = 0; i < b->batch.max_rows; i++) {
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
        .count = COUNT(table),
        .examples = "echo 'ls lists the files of a folder.' |\n"
                    "    bireme answer --checkpoint runs/answers \\\n"
                    "    --question 'What does ls list?'",
        .operand_name = "FILE",
        .operands_max = 1,
    };
    return batch_query_run_command(&options, false, argc, argv, &q.shared, run_answer);
}
