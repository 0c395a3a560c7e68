#include "trainer/inference/attention_weights.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/number.h"

static double compute_score(const struct attention *a, struct tensor queries, struct tensor keys,
                            int64_t head, int64_t query, int64_t key)
{
    int64_t kv_head = head / (a->heads / a->kv_heads);
    double sum = 0;
    for (int64_t d = 0; d < a->head_width; d++) {
        sum += (double)tensor_get(queries, query, head * a->head_width + d) *
               (double)tensor_get(keys, key, kv_head * a->head_width + d);
    }
    double cap = (double)a->softcap, score = (double)a->scale * sum;
    double bias = 0;
    if (a->bias.table.data != NULL) {
        bias = (double)tensor_get(a->bias.table, attention_bucket(a, key - query), head);
    }
    return (cap > 0 ? cap * tanh(score / cap) : score) + bias;
}

struct key_range {
    int64_t first, end;
};

/* Returns the keys that a query attends to. With a window, queries and keys are of one text. */
static struct key_range get_visible_keys(const struct attention *a, int64_t query, int64_t keys)
{
    int64_t window = a->window > 0 ? a->window : keys + query;
    int64_t end = a->causal ? query + 1 : query + window;
    int64_t first = query + 1 - window;
    return (struct key_range){number_max(first, 0), number_min(end, keys)};
}

/* Computes the softmax of the scores of one query over the keys that it attends to. */
static status compute_row(const struct attention *a, struct tensor queries, struct tensor keys,
                          int64_t head, int64_t query, double *scores, float *row)
{
    struct key_range seen = get_visible_keys(a, query, keys.rows);
    double largest = -INFINITY, sum = 0;
    for (int64_t key = seen.first; key < seen.end; key++) {
        scores[key] = compute_score(a, queries, keys, head, query, key);
        largest = fmax(largest, scores[key]);
    }
    for (int64_t key = seen.first; key < seen.end; key++) {
        scores[key] = exp(scores[key] - largest);
        sum += scores[key];
    }
    REQUIRE(isfinite(sum), STATUS_NOT_FINITE,
            "the attention scores of token %" PRId64 " are not finite: the weights are damaged",
            query);
    for (int64_t key = seen.first; key < seen.end; key++) {
        row[key] = (float)(scores[key] / sum);
    }
    return STATUS_OK;
}

static float *get_row(const struct attention_weights *w, int64_t layer, int64_t head, int64_t query)
{
    return w->values + ((layer * w->heads + head) * w->queries + query) * w->keys;
}

const float *attention_weights_row(const struct attention_weights *w, int64_t layer, int64_t head,
                                   int64_t query)
{
    return get_row(w, layer, head, query);
}

struct run {
    struct attention_weights *out; /* [ATTENTION_KINDS] */
    int64_t encoder_layers;
};

static status compute_layer(void *user, int64_t layer, bool is_cross, const struct attention *a,
                            struct tensor queries, struct tensor keys)
{
    const struct run *r = user;
    bool is_first_stack = r->encoder_layers == 0 || layer < r->encoder_layers;
    const struct attention_weights *w = &r->out[is_cross         ? ATTENTION_CROSS
                                                : is_first_stack ? ATTENTION_SELF
                                                                 : ATTENTION_DECODER];
    int64_t block = is_first_stack ? layer : layer - r->encoder_layers;
    double *scores = NULL;
    TRY(ALLOCATE(scores, w->keys, "the attention to tokens"));
    status result = STATUS_OK;
    for (int64_t head = 0; head < w->heads; head++) {
        for (int64_t query = 0; query < w->queries && result == STATUS_OK; query++) {
            result =
                compute_row(a, queries, keys, head, query, scores, get_row(w, block, head, query));
        }
    }
    free(scores);
    return result;
}

static status allocate_weights(struct attention_weights *w, int64_t layers, int64_t heads,
                               int64_t queries, int64_t keys)
{
    size_t count = (size_t)(layers * heads) * (size_t)queries * (size_t)keys;
    *w = (struct attention_weights){layers, heads, queries, keys, NULL};
    return ALLOCATE(w->values, count, "attention weights");
}

status attention_weights_compute(struct model *m, const struct model_input *input,
                                 struct attention_weights out[ATTENTION_KINDS])
{
    const struct model_config *c = model_get_config(m);
    int64_t encoder = c->encoder_layers, decoder = c->layers - encoder;
    int64_t rows = input->rows, sources = input->source.rows;
    struct run run = {out, encoder};
    struct model_input hooked = *input;
    struct tensor hidden;
    for (int kind = 0; kind < ATTENTION_KINDS; kind++) {
        out[kind] = (struct attention_weights){0};
    }
    if (encoder == 0) {
        TRY(allocate_weights(&out[ATTENTION_SELF], decoder, c->heads, rows, rows));
    } else {
        TRY(allocate_weights(&out[ATTENTION_SELF], encoder, c->heads, sources, sources));
        TRY(allocate_weights(&out[ATTENTION_DECODER], decoder, c->heads, rows, rows));
        TRY(allocate_weights(&out[ATTENTION_CROSS], decoder, c->heads, rows, sources));
    }
    hooked.attention_hook = compute_layer;
    hooked.user = &run;
    return model_forward(m, &hooked, &hidden);
}

void attention_weights_free(struct attention_weights weights[ATTENTION_KINDS])
{
    for (int kind = 0; kind < ATTENTION_KINDS; kind++) {
        free(weights[kind].values);
        weights[kind].values = NULL;
    }
}
