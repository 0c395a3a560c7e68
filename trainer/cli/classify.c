/* bireme classify: predictions of a fine-tuned model. The objective of the model selects the
 * kind: a label for each text (classify), a number (regress), a label for each word
 * (classify_tokens) or the index of the best choice (choose). */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "datasets/tokenizer/text_pair.h"
#include "trainer/cli/batch_query.h"
#include "trainer/cli/command.h"
#include "trainer/cli/json_output.h"
#include "trainer/setup/objective_spec.h"

enum { LABEL_BYTES = 32, CHOICES_MAX = 4096 };

struct request {
    struct batch_query_request shared;
    int64_t top_k;
};

struct classify_state {
    const struct request *q;
    enum model_head_kind task;
    bool is_regression;
    int64_t labels;
    int32_t *rows;         /* rows that the head reads, [rows of a batch] */
    float *outputs;        /* [rows of a batch, labels] */
    double *probabilities; /* [labels]; for choose: the logits of the choices, then their softmax */
    int64_t choices;       /* number of choices of the current line in probabilities */
    int32_t first_word[BATCH_QUERY_TEXTS + 1]; /* index in rows of the first word of each text */
};

static const char *get_label_name(const struct batch_query *b, int64_t label,
                                  char text[LABEL_BYTES])
{
    const struct labels *names = &b->session.labels;
    snprintf(text, LABEL_BYTES, "%" PRId64, label);
    return label < names->count ? names->names[label] : text;
}

/* Computes the softmax of outputs and returns the index of the largest value. */
static int64_t compute_softmax(const float *outputs, int64_t count, double *probabilities)
{
    int64_t best = 0;
    double sum = 0;
    for (int64_t i = 1; i < count; i++) {
        best = outputs[i] > outputs[best] ? i : best;
    }
    for (int64_t i = 0; i < count; i++) {
        probabilities[i] = exp((double)outputs[i] - (double)outputs[best]);
        sum += probabilities[i];
    }
    for (int64_t i = 0; i < count; i++) {
        probabilities[i] /= sum;
    }
    return best;
}

/* Prints a label of a foreign file without its control characters. */
static void print_label(const char *label)
{
    for (const char *c = label; *c != '\0'; c++) {
        putchar((*c >= 0 && *c < ' ') || *c == 0x7f ? '?' : *c);
    }
}

/* ---- classify, regress: a label or a number for each text ---- */

/* Prints the top_k labels, the most probable first. Overwrites the probability of a printed label
 * with -1. */
static status print_labels(const struct batch_query *b, const char *text, const float *outputs)
{
    struct classify_state *state = b->user;
    char name[LABEL_BYTES];
    json_t *list = json_array();
    int64_t best = compute_softmax(outputs, state->labels, state->probabilities);
    for (int64_t printed = 0; printed < state->q->top_k && printed < state->labels; printed++) {
        for (int64_t l = 0; l < state->labels; l++) {
            best = state->probabilities[l] > state->probabilities[best] ? l : best;
        }
        const char *label = get_label_name(b, best, name);
        if (state->q->shared.json) {
            json_array_append_new(list, json_pack("{s:s, s:f}", "label", label, "probability",
                                                  state->probabilities[best]));
        } else {
            fputs(printed > 0 ? "\t" : "", stdout);
            print_label(label);
            printf("\t%.4f", state->probabilities[best]);
        }
        state->probabilities[best] = -1;
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

/* Computes one output row per text. The head of an encoder reads the first row of the text; the
 * head of a causal model reads the last row. */
static status compute_text_outputs(struct batch_query *b)
{
    struct classify_state *state = b->user;
    bool last = objective_spec_reads_last_row(&b->session.recipe);
    for (int i = 0; i < b->count; i++) {
        state->rows[i] = last ? b->cu_rows[i + 1] - 1 : b->cu_rows[i];
    }
    return batch_query_head_outputs(b, state->rows, b->count, state->outputs);
}

static status process_texts(struct batch_query *b)
{
    struct classify_state *state = b->user;
    TRY(compute_text_outputs(b));
    for (int i = 0; i < b->count; i++) {
        const float *outputs = state->outputs + i * state->labels;
        TRY(state->is_regression ? print_number(state, b->texts[i], (double)outputs[0])
                                 : print_labels(b, b->texts[i], outputs));
    }
    return STATUS_OK;
}

/* A row has a text and perhaps a second one. A line is a text, or two texts with a tab between
 * them. */
static status visit_text(void *user, const char *line, size_t bytes, const char *second)
{
    struct batch_query *b = user;
    const struct classify_state *state = b->user;
    bool is_row = state->q->shared.columns != NULL;
    char *text = strdup(line);
    REQUIRE(text != NULL, STATUS_INTERNAL, "out of memory for a line of %zu bytes", bytes);
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

/* Returns the next word of *text, sets *bytes to its length and moves *text to its end. */
static const char *read_word(const char **text, int *bytes)
{
    const char *word = *text + strspn(*text, " \t");
    *bytes = (int)strcspn(word, " \t");
    *text = word + *bytes;
    return word;
}

static status print_words(const struct batch_query *b, int index)
{
    struct classify_state *state = b->user;
    const char *rest = b->texts[index];
    char name[LABEL_BYTES];
    json_t *list = json_array();
    for (int32_t w = state->first_word[index]; w < state->first_word[index + 1]; w++) {
        int bytes = 0;
        const char *word = read_word(&rest, &bytes);
        int64_t best = compute_softmax(state->outputs + w * state->labels, state->labels,
                                       state->probabilities);
        const char *label = get_label_name(b, best, name);
        if (state->q->shared.json) {
            json_array_append_new(list,
                                  json_pack("{s:s#, s:s, s:f}", "token", word, bytes, "label",
                                            label, "probability", state->probabilities[best]));
        } else {
            printf("%.*s\t", bytes, word);
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
    TRY(batch_query_head_outputs(b, state->rows, state->first_word[b->count], state->outputs));
    for (int i = 0; i < b->count; i++) {
        TRY(print_words(b, i));
    }
    return STATUS_OK;
}

static status add_special_token(const struct batch_query *b, int32_t id, struct token_list *ids)
{
    TRY(token_list_reserve(ids, batch_query_is_encoder(b)));
    if (batch_query_is_encoder(b)) {
        ids->ids[ids->count++] = id;
    }
    return STATUS_OK;
}

/* Encodes the words of a line. Appends the index of the first token of each word to begins. */
static status encode_words(const struct batch_query *b, const char *line, struct token_list *ids,
                           struct token_list *begins)
{
    struct tokenizer_specials special = tokenizer_get_specials(b->session.tokenizer);
    int bytes = 0;
    TRY(add_special_token(b, special.cls, ids));
    for (const char *rest = line, *word; word = read_word(&rest, &bytes), bytes > 0;) {
        struct text text = {word, (size_t)bytes};
        int64_t begin = 0;
        TRY(text_pair_encode_word(b->session.tokenizer, &text, begins->count == 0, ids, &begin));
        TRY(token_list_reserve(begins, 1));
        begins->ids[begins->count++] = (int32_t)begin;
    }
    REQUIRE(begins->count > 0, STATUS_DATA, "the line contains no word");
    return add_special_token(b, special.sep, ids);
}

static status visit_words(void *user, const char *line, size_t bytes, const char *second)
{
    struct batch_query *b = user;
    struct classify_state *state = b->user;
    struct token_list ids = {0}, begins = {0};
    (void)bytes;
    (void)second;
    status result = encode_words(b, line, &ids, &begins);
    if (result == STATUS_OK) {
        result = batch_query_add_tokens(b, line, &ids, ids.count);
    }
    if (result == STATUS_OK) {
        int32_t row = b->cu_rows[b->count - 1], word = state->first_word[b->count - 1];
        for (int64_t i = 0; i < begins.count; i++) {
            state->rows[word + i] = row + begins.ids[i];
        }
        state->first_word[b->count] = word + (int32_t)begins.count;
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
    for (int i = 0; i < b->count && state->choices < CHOICES_MAX; i++) {
        state->probabilities[state->choices++] = (double)state->outputs[i];
    }
    return STATUS_OK;
}

static status print_choice(struct classify_state *state, const char *text)
{
    float outputs[CHOICES_MAX];
    for (int64_t i = 0; i < state->choices; i++) {
        outputs[i] = (float)state->probabilities[i];
    }
    int64_t best = compute_softmax(outputs, state->choices, state->probabilities);
    if (!state->q->shared.json) {
        printf("%" PRId64 "\t%.4f\n", best, state->probabilities[best]);
        return STATUS_OK;
    }
    json_t *list = json_array();
    for (int64_t i = 0; i < state->choices; i++) {
        json_array_append_new(list, json_real(state->probabilities[i]));
    }
    return json_output_print(json_pack("{s:s, s:I, s:o}", "text", text, "choice", (json_int_t)best,
                                       "probabilities", list));
}

/* A line is a text and two or more choices, separated by tabs. */
static status visit_choices(void *user, const char *line, size_t bytes, const char *second)
{
    (void)second;
    struct batch_query *b = user;
    struct classify_state *state = b->user;
    char *text = strdup(line), *rest = NULL;
    REQUIRE(text != NULL, STATUS_INTERNAL, "out of memory for a line of %zu bytes", bytes);
    status result = STATUS_OK;
    char *choice = strtok_r(text, "\t", &rest);
    int count = 0;
    state->choices = 0;
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
    const char *objective = recipe_objective_name(b->session.recipe.objective);
    state->task = objective_spec_head(&b->session.recipe);
    state->is_regression = b->session.recipe.objective == OBJECTIVE_REGRESS;
    REQUIRE(state->task == MODEL_HEAD_SEQUENCE || state->task == MODEL_HEAD_TOKEN ||
                state->task == MODEL_HEAD_MULTIPLE_CHOICE,
            STATUS_DATA,
            "%s was trained with objective %s; classify needs a model that was trained with "
            "objective classify, regress, classify_tokens or choose",
            checkpoint, objective);
    state->labels = batch_query_label_count(b);
    state->rows = calloc((size_t)b->max_rows, sizeof *state->rows);
    state->outputs = calloc((size_t)(b->max_rows * state->labels), sizeof *state->outputs);
    state->probabilities =
        calloc((size_t)(state->labels > CHOICES_MAX ? state->labels : CHOICES_MAX),
               sizeof *state->probabilities);
    REQUIRE(state->rows != NULL && state->outputs != NULL && state->probabilities != NULL,
            STATUS_INTERNAL, "out of memory for the outputs of %" PRId64 " rows", b->max_rows);
    b->process_batch = state->task == MODEL_HEAD_SEQUENCE ? process_texts
                       : state->task == MODEL_HEAD_TOKEN  ? process_words
                                                          : process_choices;
    return STATUS_OK;
}

static status process_input(struct batch_query *b, const struct request *q)
{
    const struct classify_state *state = b->user;
    const struct recipe *recipe = &b->session.recipe;
    TRY(batch_query_open(b, &q->shared));
    TRY(prepare_state(b, q->shared.checkpoint));
    text_lines_visit visit = state->task == MODEL_HEAD_SEQUENCE ? visit_text
                             : state->task == MODEL_HEAD_TOKEN  ? visit_words
                                                                : visit_choices;
    const struct text_lines source = {
        .path = q->shared.path,
        .columns = q->shared.columns,
        .field = "text",
        .second = state->task == MODEL_HEAD_SEQUENCE ? "text_pair" : NULL,
        .list = state->task == MODEL_HEAD_MULTIPLE_CHOICE ? "choices" : NULL,
        .splits_tabs = state->task == MODEL_HEAD_MULTIPLE_CHOICE || recipe->data.text_pairs};
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
    free(state.probabilities);
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
        .count = sizeof table / sizeof table[0],
        .operand_name = "FILE",
        .operands_max = 1,
    };
    return batch_query_run_command(&options, true, argc, argv, &q.shared, run_classify);
}
