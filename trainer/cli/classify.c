/* bireme classify: predictions of a fine-tuned model. The objective of the model selects the
 * kind: a label for each text (classify), a number (regress), a label for each word
 * (classify_tokens) or the index of the best choice (choose). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/text.h"
#include "datasets/shard/labels.h"
#include "trainer/cli/batch_query.h"
#include "trainer/cli/command.h"
#include "trainer/cli/output/json_output.h"
#include "trainer/inference/prediction/prediction.h"
#include "trainer/inference/prediction/text_input.h"

enum { CHOICES_MAX = 4096 };

struct request {
    struct batch_query_request shared;
    int64_t top_k;
};

struct classify_state {
    const struct request *q;
    bool is_regression;
    int64_t labels;
    int32_t *rows;          /* rows that the head reads, [rows of a batch] */
    float *outputs;         /* [rows of a batch, labels] */
    struct top_score *best; /* [labels, or CHOICES_MAX] */
    float *choices;         /* [CHOICES_MAX] logits of the choices of the current line */
    int64_t choice_count;
    int32_t first_word[TEXT_BATCH_TEXTS + 1]; /* index in rows of the first word of each text */
};

/* Prints a label of a foreign file without its control characters. */
static void print_label(const char *label)
{
    char text[LABELS_TEXT_BYTES];
    snprintf(text, sizeof text, "%s", label);
    text_replace_controls(text, "");
    fputs(text, stdout);
}

/* ---- classify, regress: a label or a number for each text ---- */

/* Prints the top_k labels, the most probable first. */
static status print_labels(const struct batch_query *b, const char *text, const float *outputs)
{
    const struct classify_state *state = b->user;
    char name[PREDICTION_NAME_BYTES];
    json_t *list = json_array();
    int64_t count = top_scores_select(outputs, state->labels, state->q->top_k, state->best);
    for (int64_t i = 0; i < count; i++) {
        const char *label = prediction_label_name(&b->session, state->best[i].index, name);
        if (state->q->shared.json) {
            json_array_append_new(list, json_pack("{s:s, s:f}", "label", label, "probability",
                                                  state->best[i].probability));
        } else {
            fputs(i > 0 ? "\t" : "", stdout);
            print_label(label);
            printf("\t%.4f", state->best[i].probability);
        }
    }
    if (state->q->shared.json) {
        return json_output_print(json_pack("{s:s, s:o}", "text", text, "labels", list));
    }
    json_decref(list);
    putchar('\n');
    return STATUS_OK;
}

static status print_number(const struct classify_state *state, const char *text, double number)
{
    if (state->q->shared.json) {
        return json_output_print(json_pack("{s:s, s:f}", "text", text, "value", number));
    }
    printf("%.6g\n", number);
    return STATUS_OK;
}

/* Computes one output row per text. */
static status compute_text_outputs(struct batch_query *b)
{
    struct classify_state *state = b->user;
    for (int i = 0; i < b->batch.count; i++) {
        state->rows[i] = text_batch_head_row(&b->batch, i);
    }
    return text_batch_head_outputs(&b->batch, state->rows, b->batch.count, state->outputs);
}

static status process_texts(struct batch_query *b)
{
    struct classify_state *state = b->user;
    TRY(compute_text_outputs(b));
    for (int i = 0; i < b->batch.count; i++) {
        const float *outputs = state->outputs + i * state->labels;
        TRY(state->is_regression ? print_number(state, b->texts[i], (double)outputs[0])
                                 : print_labels(b, b->texts[i], outputs));
    }
    return STATUS_OK;
}

/* Reads a row or a line. A row has one or two texts. A line is a text, or two texts with a tab
 * between them. */
static status visit_text(void *user, const char *line, size_t bytes, const char *second)
{
    struct batch_query *b = user;
    const struct classify_state *state = b->user;
    bool is_row = state->q->shared.columns != NULL;
    char *text = NULL;
    TRY(memory_copy_bytes(&text, line, bytes, "a line"));
    char *tab = is_row ? NULL : strchr(text, '\t');
    if (tab != NULL) {
        *tab = '\0';
        second = tab + 1;
    }
    status result = STATUS_OK;
    REQUIRE_GOTO(
        result, done, !b->session.recipe.data.text_pairs || (second != NULL && *second != '\0'),
        STATUS_DATA, "the %s has no second text, but the model was trained on pairs of texts; %s",
        is_row ? "row" : "line",
        is_row ? "give --columns text_pair=COLUMN" : "write TEXT<tab>TEXT");
    result = batch_query_add(b, text, second);
done:
    free(text);
    return result;
}

/* ---- classify_tokens: a label for each word ---- */

static status print_words(const struct batch_query *b, int index)
{
    const struct classify_state *state = b->user;
    struct text rest = {b->texts[index], strlen(b->texts[index])};
    char name[PREDICTION_NAME_BYTES];
    json_t *list = json_array();
    for (int32_t w = state->first_word[index]; w < state->first_word[index + 1]; w++) {
        struct text word = text_input_next_word(&rest);
        top_scores_select(state->outputs + w * state->labels, state->labels, 1, state->best);
        const char *label = prediction_label_name(&b->session, state->best[0].index, name);
        if (state->q->shared.json) {
            json_array_append_new(list, json_pack("{s:s#, s:s, s:f}", "token", word.bytes,
                                                  (int)word.count, "label", label, "probability",
                                                  state->best[0].probability));
        } else {
            printf("%.*s\t", (int)word.count, word.bytes);
            print_label(label);
            putchar('\n');
        }
    }
    if (state->q->shared.json) {
        return json_output_print(json_pack("{s:s, s:o}", "text", b->texts[index], "tokens", list));
    }
    json_decref(list);
    putchar('\n');
    return STATUS_OK;
}

static status process_words(struct batch_query *b)
{
    struct classify_state *state = b->user;
    int count = b->batch.count;
    TRY(text_batch_head_outputs(&b->batch, state->rows, state->first_word[count], state->outputs));
    for (int i = 0; i < count; i++) {
        TRY(print_words(b, i));
    }
    return STATUS_OK;
}

static status visit_words(void *user, const char *line, size_t bytes, const char *second)
{
    struct batch_query *b = user;
    struct classify_state *state = b->user;
    struct token_list ids = {0}, begins = {0};
    (void)second;
    status result =
        text_input_encode_words(&b->session, &(struct text){line, bytes}, &ids, &begins);
    if (result == STATUS_OK) {
        result = batch_query_add_tokens(b, line, &ids, ids.count);
    }
    if (result == STATUS_OK) {
        int count = b->batch.count;
        int32_t row = b->batch.cu_rows[count - 1], word = state->first_word[count - 1];
        for (int64_t i = 0; i < begins.count; i++) {
            state->rows[word + i] = row + begins.ids[i];
        }
        state->first_word[count] = word + (int32_t)begins.count;
    }
    token_list_free(&ids);
    token_list_free(&begins);
    return result;
}

/* ---- choose: the index of the right choice ---- */

static status process_choices(struct batch_query *b)
{
    struct classify_state *state = b->user;
    TRY(compute_text_outputs(b));
    for (int i = 0; i < b->batch.count && state->choice_count < CHOICES_MAX; i++) {
        state->choices[state->choice_count++] = state->outputs[i];
    }
    return STATUS_OK;
}

static status print_choice(const struct classify_state *state, const char *text)
{
    struct top_score *best = state->best;
    int64_t count = state->choice_count;
    top_scores_select(state->choices, count, count, best);
    if (!state->q->shared.json) {
        printf("%" PRId64 "\t%.4f\n", best[0].index, best[0].probability);
        return STATUS_OK;
    }
    double probabilities[CHOICES_MAX];
    for (int64_t i = 0; i < count; i++) {
        probabilities[best[i].index] = best[i].probability;
    }
    json_t *list = json_array();
    for (int64_t i = 0; i < count; i++) {
        json_array_append_new(list, json_real(probabilities[i]));
    }
    return json_output_print(json_pack("{s:s, s:I, s:o}", "text", text, "choice",
                                       (json_int_t)best[0].index, "probabilities", list));
}

/* A line is a text and two or more choices, separated by tabs. */
static status visit_choices(void *user, const char *line, size_t bytes, const char *second)
{
    (void)second;
    struct batch_query *b = user;
    struct classify_state *state = b->user;
    char *text = NULL, *rest = NULL;
    TRY(memory_copy_bytes(&text, line, bytes, "a line"));
    status result = STATUS_OK;
    char *choice = strtok_r(text, "\t", &rest);
    int count = 0;
    state->choice_count = 0;
    while (result == STATUS_OK && (choice = strtok_r(NULL, "\t", &rest)) != NULL) {
        result = batch_query_add(b, text, choice);
        count++;
    }
    REQUIRE_GOTO(
        result, done, result != STATUS_OK || (count > 1 && count <= CHOICES_MAX), STATUS_DATA,
        "the line has %d choices; write TEXT<tab>CHOICE<tab>CHOICE... with 2 to %d choices", count,
        CHOICES_MAX);
    TRY_GOTO(result, done, result);
    TRY_GOTO(result, done, batch_query_flush(b));
    result = print_choice(state, text);
done:
    free(text);
    return result;
}

/* ---- the command ---- */

static status prepare_state(struct batch_query *b, const char *checkpoint)
{
    struct classify_state *state = b->user;
    const struct session *s = &b->session;
    bool has_words = prediction_supports(s, PREDICTION_WORDS);
    bool has_choices = prediction_supports(s, PREDICTION_CHOICES);
    TRY(prediction_require_labels(s, checkpoint));
    state->is_regression = s->recipe.objective == OBJECTIVE_REGRESS;
    state->labels = model_get_config(s->model)->labels;
    int64_t scores = number_max(state->labels, CHOICES_MAX);
    TRY(ALLOCATE(state->rows, b->batch.max_rows, "the rows of a batch"));
    TRY(ALLOCATE(state->outputs, b->batch.max_rows * state->labels, "the outputs of a batch"));
    TRY(ALLOCATE(state->best, scores, "the best labels"));
    TRY(ALLOCATE(state->choices, CHOICES_MAX, "choices"));
    b->process_batch = has_words ? process_words : has_choices ? process_choices : process_texts;
    return STATUS_OK;
}

static status process_input(struct batch_query *b, const struct request *q)
{
    const struct session *s = &b->session;
    TRY(batch_query_open(b, &q->shared));
    TRY(prepare_state(b, q->shared.checkpoint));
    bool has_words = prediction_supports(s, PREDICTION_WORDS);
    bool has_choices = prediction_supports(s, PREDICTION_CHOICES);
    text_lines_visit visit = has_words ? visit_words : has_choices ? visit_choices : visit_text;
    const struct text_lines source = {.path = q->shared.path,
                                      .columns = q->shared.columns,
                                      .field = "text",
                                      .second = visit == visit_text ? "text_pair" : NULL,
                                      .list = has_choices ? "choices" : NULL,
                                      .splits_tabs = has_choices || s->recipe.data.text_pairs};
    TRY(batch_query_read_texts(b, &source, visit));
    return batch_query_finish(b);
}

static status run_classify(const struct batch_query_request *shared)
{
    const struct request *q = (const struct request *)shared;
    struct classify_state state = {.q = q};
    struct batch_query b = {.command = "classify", .user = &state};
    status result = process_input(&b, q);
    free(state.rows);
    free(state.outputs);
    free(state.best);
    free(state.choices);
    KEEP_FIRST(result, batch_query_close(&b));
    return result;
}

status command_classify(int argc, char **argv)
{
    struct request q = {0};
    const struct option table[] = {
        {"top-k", OPTION_INTEGER, &q.top_k, "K", "1", "number of labels to print for each text",
         .min = 1, .max = 1e6},
        BATCH_QUERY_COLUMNS(&q.shared, "text, text_pair; choose: text, "
                                       "choices, for example text=question,choices=A,choices=B"),
    };
    struct options options = {
        .usage = "bireme classify --checkpoint DIR [FILE] [options]",
        .description = "Prints the prediction of a fine-tuned model for each line of FILE or of "
                       "standard input.\n"
                       "The objective of the model selects the input and the output:\n"
                       "  classify         TEXT, or TEXT<tab>TEXT if the model was trained on "
                       "pairs: label and probability\n"
                       "  regress          the same: a number\n"
                       "  classify_tokens  words: a line with word and label for each word, then "
                       "an empty line\n"
                       "  choose           TEXT<tab>CHOICE<tab>CHOICE...: index of the choice from "
                       "0, and probability",
        .table = table,
        .count = COUNT(table),
        .examples = "echo 'list directory contents' |\n"
                    "    bireme classify --checkpoint runs/rows --top-k 3\n"
                    "bireme classify --checkpoint runs/rows \\\n"
                    "    --columns text=review reviews.csv",
        .operand_name = "FILE",
        .operands_max = 1,
    };
    return batch_query_run_command(&options, true, argc, argv, &q.shared, run_classify);
}
