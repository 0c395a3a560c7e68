/* bireme fill-mask: the most probable tokens of a masked language model at each [MASK] of a
 * text. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trainer/cli/batch_query.h"
#include "trainer/cli/command.h"
#include "trainer/cli/json_output.h"
#include "trainer/inference/finite_outputs.h"
#include "trainer/setup/session.h"

enum { TOP_MAX = 1000 };

struct request {
    struct batch_query_request shared;
    int64_t top_k;
};

struct fill_state {
    const struct request *q;
    int32_t masks[BATCH_QUERY_TEXTS + 1]; /* first mask of each text in masked_rows */
    int32_t *masked_rows;                 /* [rows of a batch] */
    float *logits;                        /* [V] */
    int32_t *best;                        /* [top_k] ids, the most probable first */
};

static status create_state(struct fill_state *state, const struct batch_query *b)
{
    state->masked_rows = calloc((size_t)b->max_rows, sizeof *state->masked_rows);
    state->logits =
        calloc((size_t)model_get_config(b->session.model)->vocabulary, sizeof *state->logits);
    state->best = calloc((size_t)state->q->top_k, sizeof *state->best);
    REQUIRE(state->masked_rows != NULL && state->logits != NULL && state->best != NULL,
            STATUS_INTERNAL, "out of memory for a batch of %" PRId64 " tokens", b->max_rows);
    return STATUS_OK;
}

static void destroy_state(struct fill_state *state)
{
    free(state->masked_rows);
    free(state->logits);
    free(state->best);
}

/* Writes the ids of the top_k largest logits to best, the largest first. Returns the logarithm
 * of the sum of the exponentials of all logits. */
static double select_top_k(const struct fill_state *state, int64_t vocabulary, int64_t top_k)
{
    int64_t count = 0;
    double sum = 0;
    for (int64_t v = 0; v < vocabulary; v++) {
        int64_t slot = count < top_k ? count++ : top_k;
        for (; slot > 0 && state->logits[v] > state->logits[state->best[slot - 1]]; slot--) {
            if (slot < top_k) {
                state->best[slot] = state->best[slot - 1];
            }
        }
        if (slot < top_k) {
            state->best[slot] = (int32_t)v;
        }
    }
    for (int64_t v = 0; v < vocabulary; v++) {
        sum += exp((double)state->logits[v] - (double)state->logits[state->best[0]]);
    }
    return state->logits[state->best[0]] + log(sum);
}

/* Builds the JSON list of the most probable tokens at row `mask`. */
static status predict_mask(const struct fill_state *state, const struct session *s,
                           struct tensor hidden, int32_t mask, json_t **out)
{
    struct model *m = s->model;
    int64_t vocabulary = model_get_config(m)->vocabulary, top_k = state->q->top_k;
    TRY(classifier_logits(s->kernels, tensor_view(state->logits, DTYPE_F32, 1, vocabulary),
                          tensor_rows(hidden, mask, 1), model_lm_head(m), model_lm_head_bias(m)));
    TRY(finite_outputs_check(state->logits, vocabulary));
    double log_sum = select_top_k(state, vocabulary, top_k);
    *out = json_array();
    for (int64_t i = 0; i < top_k && i < vocabulary; i++) {
        char *text = NULL;
        size_t bytes = 0;
        TRY(tokenizer_decode(s->tokenizer, &state->best[i], 1, false, &text, &bytes));
        json_t *token = json_stringn(text, bytes);
        free(text);
        json_array_append_new(
            *out, json_pack("{s:o, s:i, s:f}", "text", token != NULL ? token : json_null(), "token",
                            (int)state->best[i], "probability",
                            exp((double)state->logits[state->best[i]] - log_sum)));
    }
    return STATUS_OK;
}

static void print_text(const json_t *masks)
{
    size_t i, j;
    json_t *list, *one;
    json_array_foreach(masks, i, list)
    {
        json_array_foreach(list, j, one)
        {
            const char *text = json_string_value(json_object_get(one, "text"));
            printf("%s%s %.4f", j > 0 ? "\t" : "", text != NULL ? text : "?",
                   json_real_value(json_object_get(one, "probability")));
        }
        putchar('\n');
    }
}

static status process_text(const struct fill_state *state, const struct batch_query *b,
                           struct tensor hidden, int index)
{
    json_t *masks = json_array();
    status result = STATUS_OK;
    for (int32_t m = state->masks[index]; m < state->masks[index + 1] && result == STATUS_OK; m++) {
        json_t *list = NULL;
        result = predict_mask(state, &b->session, hidden, m, &list);
        json_array_append_new(masks, list);
    }
    if (result == STATUS_OK && state->q->shared.json) {
        return json_output_print(json_pack("{s:s, s:o}", "text", b->texts[index], "masks", masks));
    }
    if (result == STATUS_OK) {
        print_text(masks);
    }
    json_decref(masks);
    return result;
}

/* Collects the rows of the mask tokens of the batch. */
static void find_masks(struct fill_state *state, const struct batch_query *b)
{
    int32_t mask = tokenizer_get_specials(b->session.tokenizer).mask, found = 0;
    for (int i = 0; i < b->count; i++) {
        for (int32_t row = b->cu_rows[i]; row < b->cu_rows[i + 1]; row++) {
            if (b->ids[row] == mask) {
                state->masked_rows[found++] = row;
            }
        }
        state->masks[i + 1] = found;
    }
}

static status process_batch(struct batch_query *b)
{
    struct fill_state *state = b->user;
    struct tensor hidden;
    find_masks(state, b);
    struct model_input input = batch_query_model_input(b);
    input.output_rows = state->masked_rows;
    input.outputs = state->masks[b->count];
    TRY(model_forward(b->session.model, &input, &hidden));
    for (int i = 0; i < b->count; i++) {
        TRY(process_text(state, b, hidden, i));
    }
    return STATUS_OK;
}

static status visit_text(void *user, const char *text, size_t bytes, const char *second)
{
    struct batch_query *b = user;
    (void)bytes;
    (void)second;
    TRY(batch_query_add(b, text, NULL));
    int32_t mask = tokenizer_get_specials(b->session.tokenizer).mask;
    for (int32_t row = b->cu_rows[b->count - 1]; row < b->cu_rows[b->count]; row++) {
        if (b->ids[row] == mask) {
            return STATUS_OK;
        }
    }
    char *mask_text = NULL, shown[64];
    TRY(tokenizer_decode(b->session.tokenizer, &mask, 1, false, &mask_text, NULL));
    snprintf(shown, sizeof shown, "%s", mask_text);
    free(mask_text);
    RAISE(STATUS_DATA,
          "the text has no mask token; write %s in place of the word to predict: \"%.100s\"", shown,
          text);
}

static status require_masks(const struct session *s, const char *checkpoint)
{
    REQUIRE(s->recipe.objective == OBJECTIVE_MLM, STATUS_DATA,
            "%s was trained with objective %s; fill-mask needs a model that was trained with "
            "objective mlm",
            checkpoint, recipe_objective_name(s->recipe.objective));
    REQUIRE(tokenizer_get_specials(s->tokenizer).mask >= 0, STATUS_DATA,
            "the tokenizer of %s has no mask token, which fill-mask needs", checkpoint);
    return STATUS_OK;
}

static status process_input(struct batch_query *b, const struct request *q)
{
    struct fill_state *state = b->user;
    char *const *operands = q->shared.operands;
    int count = q->shared.operand_count;
    TRY(batch_query_open(b, &q->shared));
    TRY(require_masks(&b->session, q->shared.checkpoint));
    TRY(create_state(state, b));
    for (int i = 0; i < count; i++) {
        TRY(batch_query_check_text(operands[i], strlen(operands[i])));
        TRY(visit_text(b, operands[i], strlen(operands[i]), NULL));
    }
    const struct text_lines source = {.field = "text"};
    TRY(count == 0 ? batch_query_read_texts(b, &source, visit_text) : STATUS_OK);
    return batch_query_finish(b);
}

static status run_fill_mask(const struct batch_query_request *shared)
{
    const struct request *q = (const struct request *)shared;
    struct fill_state state = {.q = q};
    struct batch_query b = {.command = "fill-mask",
                            .process_batch = process_batch,
                            .user = &state,
                            .parse_special_tokens = true};
    status result = process_input(&b, q);
    destroy_state(&state);
    KEEP_FIRST(result, batch_query_close(&b));
    return result;
}

status command_fill_mask(int argc, char **argv)
{
    struct request q = {0};
    const struct option table[] = {
        {"top-k", OPTION_INTEGER, &q.top_k, "K", "5", "number of tokens to print for each mask",
         .min = 1, .max = TOP_MAX},
    };
    struct options options = {
        .usage = "bireme fill-mask --checkpoint DIR [\"TEXT with [MASK]\"...] [options]",
        .description = "Prints the most probable tokens and their probabilities for each mask of "
                       "each TEXT, one line for each mask. Without a TEXT, the texts are read from "
                       "standard input, one per line.",
        .table = table,
        .count = sizeof table / sizeof table[0],
        .operand_name = "TEXT",
        .operands_min = 0,
        .operands_max = -1,
    };
    return batch_query_run_command(&options, false, argc, argv, &q.shared, run_fill_mask);
}
