/* bireme fill-mask: the most probable tokens of a masked language model at each [MASK]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "trainer/cli/batch_query.h"
#include "trainer/cli/command.h"
#include "trainer/cli/output/json_output.h"
#include "trainer/inference/prediction/prediction.h"
#include "trainer/inference/prediction/text_input.h"

enum { TOP_MAX = 1000 };

struct request {
    struct batch_query_request shared;
    int64_t top_k;
};

struct fill_state {
    const struct request *q;
    int32_t masks[TEXT_BATCH_TEXTS + 1]; /* first mask of each text in masked_rows */
    int32_t *masked_rows;                /* [rows of a batch] */
    float *logits;                       /* [V] */
    struct top_score *best;              /* [top_k] */
};

static status create_state(struct fill_state *state, const struct batch_query *b)
{
    TRY(ALLOCATE(state->masked_rows, b->batch.max_rows, "a batch of tokens"));
    TRY(ALLOCATE(state->logits, model_get_config(b->session.model)->vocabulary, "the logits"));
    return ALLOCATE(state->best, state->q->top_k, "the best tokens");
}

static void destroy_state(struct fill_state *state)
{
    free(state->masked_rows);
    free(state->logits);
    free(state->best);
}

/* Builds the JSON list of the most probable tokens at row `mask`. */
static status predict_mask(const struct fill_state *state, const struct batch_query *b,
                           struct tensor hidden, int32_t mask, json_t **out)
{
    int64_t vocabulary = model_get_config(b->session.model)->vocabulary;
    TRY(text_batch_logits(&b->batch, tensor_rows(hidden, mask, 1), state->logits));
    int64_t count = top_scores_select(state->logits, vocabulary, state->q->top_k, state->best);
    *out = json_array();
    for (int64_t i = 0; i < count; i++) {
        int32_t id = (int32_t)state->best[i].index;
        char *text = NULL;
        size_t bytes = 0;
        TRY(tokenizer_decode(b->session.tokenizer, &id, 1, false, &text, &bytes));
        json_t *token = json_stringn(text, bytes);
        free(text);
        json_array_append_new(*out, json_pack("{s:o, s:i, s:f}", "text",
                                              token != NULL ? token : json_null(), "token", (int)id,
                                              "probability", state->best[i].probability));
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
        result = predict_mask(state, b, hidden, m, &list);
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
static void find_masks(struct fill_state *state, const struct text_batch *batch)
{
    for (int i = 0; i < batch->count; i++) {
        state->masks[i + 1] = state->masks[i] + (int32_t)text_batch_mask_rows(
                                                    batch, i, state->masked_rows + state->masks[i]);
    }
}

static status process_batch(struct batch_query *b)
{
    struct fill_state *state = b->user;
    int count = b->batch.count;
    struct tensor hidden;
    find_masks(state, &b->batch);
    TRY(text_batch_vocabulary_rows(&b->batch, state->masked_rows, state->masks[count], &hidden));
    for (int i = 0; i < count; i++) {
        TRY(process_text(state, b, hidden, i));
    }
    return STATUS_OK;
}

static status visit_text(void *user, const char *text, size_t bytes, const char *second)
{
    struct batch_query *b = user;
    const struct text whole = {text, bytes}, none = {NULL, 0};
    struct token_list ids = {0};
    int64_t first = 0;
    (void)second;
    status result = text_input_encode_masked(&b->session, &whole, &none, &ids, &first);
    if (result == STATUS_OK) {
        result = text_input_require_mask(&b->session, &ids, &whole);
    }
    if (result == STATUS_OK) {
        result = batch_query_add_tokens(b, text, &ids, first);
    }
    token_list_free(&ids);
    return result;
}

static status process_input(struct batch_query *b, const struct request *q)
{
    struct fill_state *state = b->user;
    char *const *operands = q->shared.operands;
    int count = q->shared.operand_count;
    TRY(batch_query_open(b, &q->shared));
    TRY(prediction_require_masks(&b->session, q->shared.checkpoint));
    TRY(create_state(state, b));
    for (int i = 0; i < count; i++) {
        TRY(text_input_check(&(struct text){operands[i], strlen(operands[i])}));
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
    struct batch_query b = {.command = "fill-mask", .process_batch = process_batch, .user = &state};
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
        .usage = "bireme fill-mask --checkpoint DIR ['TEXT with [MASK]'...] [options]",
        .description = "Prints the most probable tokens and their probabilities for each mask of "
                       "each TEXT, one line for each mask. Without a TEXT, the texts are read from "
                       "standard input, one per line.",
        .table = table,
        .count = COUNT(table),
        .examples = "bireme fill-mask --checkpoint runs/bert_manual \\\n"
                    "    --top-k 3 'the function returns a [MASK] pointer'",
        .operand_name = "TEXT",
        .operands_min = 0,
        .operands_max = -1,
    };
    return batch_query_run_command(&options, false, argc, argv, &q.shared, run_fill_mask);
}
