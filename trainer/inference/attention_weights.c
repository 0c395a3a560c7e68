#include "trainer/inference/attention_weights.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

static double read_element(struct tensor t, int64_t row, int64_t column)
{
    int64_t at = row * t.stride + column;
    return t.dtype == DTYPE_F32 ? (double)((const float *)t.data)[at]
                                : (double)bf16_to_f32(((const bf16 *)t.data)[at]);
}

static double compute_score(const struct attention *a, struct tensor queries, struct tensor keys,
                            int64_t head, int64_t query, int64_t key)
{
    int64_t kv_head = head / (a->heads / a->kv_heads);
    double sum = 0;
    for (int64_t d = 0; d < a->head_width; d++) {
        sum += read_element(queries, query, head * a->head_width + d) *
               read_element(keys, key, kv_head * a->head_width + d);
    }
    double cap = (double)a->softcap, score = (double)a->scale * sum;
    double bias = 0;
    if (a->bias.table.data != NULL) {
        bias = read_element(a->bias.table, attention_bucket(a, key - query), head);
    }
    return (cap > 0 ? cap * tanh(score / cap) : score) + bias;
}

/* Computes the softmax of the scores of one query over the keys that it sees. */
static status compute_row(const struct attention *a, struct tensor queries, struct tensor keys,
                          int64_t head, int64_t query, int64_t tokens, double *scores, float *row)
{
    int64_t end = a->causal ? query + 1 : tokens;
    int64_t first = a->window > 0 && end > a->window ? end - a->window : 0;
    double largest = -INFINITY, sum = 0;
    for (int64_t key = first; key < end; key++) {
        scores[key] = compute_score(a, queries, keys, head, query, key);
        largest = fmax(largest, scores[key]);
    }
    for (int64_t key = first; key < end; key++) {
        scores[key] = exp(scores[key] - largest);
        sum += scores[key];
    }
    REQUIRE(isfinite(sum), STATUS_NOT_FINITE,
            "the attention scores of token %" PRId64 " are not finite: the weights are damaged",
            query);
    for (int64_t key = first; key < end; key++) {
        row[key] = (float)(scores[key] / sum);
    }
    return STATUS_OK;
}

static float *get_row(const struct attention_weights *w, int64_t layer, int64_t head, int64_t query)
{
    return w->values + ((layer * w->heads + head) * w->tokens + query) * w->tokens;
}

const float *attention_weights_row(const struct attention_weights *w, int64_t layer, int64_t head,
                                   int64_t query)
{
    return get_row(w, layer, head, query);
}

static status compute_layer(void *user, int64_t layer, const struct attention *a,
                            struct tensor queries, struct tensor keys)
{
    const struct attention_weights *w = user;
    double *scores = calloc((size_t)w->tokens, sizeof *scores);
    REQUIRE(scores != NULL, STATUS_INTERNAL,
            "out of memory for the attention of %" PRId64 " tokens", w->tokens);
    status result = STATUS_OK;
    for (int64_t head = 0; head < w->heads; head++) {
        for (int64_t query = 0; query < w->tokens && result == STATUS_OK; query++) {
            result = compute_row(a, queries, keys, head, query, w->tokens, scores,
                                 get_row(w, layer, head, query));
        }
    }
    free(scores);
    return result;
}

status attention_weights_compute(struct model *m, const struct model_input *input,
                                 struct attention_weights *out)
{
    const struct model_config *config = model_get_config(m);
    struct model_input hooked = *input;
    struct tensor hidden;
    *out = (struct attention_weights){config->layers, config->heads, input->rows, NULL};
    size_t count = (size_t)(out->layers * out->heads) * (size_t)out->tokens * (size_t)out->tokens;
    out->values = calloc(count, sizeof *out->values);
    REQUIRE(out->values != NULL, STATUS_INTERNAL,
            "out of memory for %zu bytes of attention weights", count * sizeof *out->values);
    hooked.attention_hook = compute_layer;
    hooked.user = out;
    return model_forward(m, &hooked, &hidden);
}

void attention_weights_free(struct attention_weights *w)
{
    free(w->values);
    w->values = NULL;
}
