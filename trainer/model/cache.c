/* Generation: new tokens attend to the keys and values of all tokens before them, kept in a cache.
 *
 * Layout: per layer [sequences, tokens, G D] keys, then as many values; sequence i fills its part from the
 * front. A second set of the same size is where beams are copied to when they change places; it is made
 * at the first reordering. */
#include <stdlib.h>

#include "base/mirror.h"
#include "trainer/model/model_impl.h"

static const double added_seconds = 300; /* for what is queued before new tokens */

struct model_cache {
    struct model *model;
    int64_t sequences, tokens;
    int64_t *lengths; /* [sequences] */
    struct mirror
        added; /* int32: of the tokens being added, ids [rows] and positions [rows]; then of each
                          * sequence cu_q [2] and cu_k [2] */
    char *memory, *other;
    size_t bytes;
};

static size_t added_bytes(const struct model_cache *cache)
{
    return (size_t)(2 * cache->model->rows + 4 * cache->sequences) * sizeof(int32_t);
}

/* Where the bounds of a sequence's queries, and behind them those of its keys, lie on one side. */
static int32_t *bounds_of(const struct model_cache *cache, void *side, int64_t sequence)
{
    return (int32_t *)side + 2 * cache->model->rows + 4 * sequence;
}

status model_cache_create(struct model *m, int64_t sequences, int64_t tokens,
                          struct model_cache **out)
{
    *out = NULL;
    REQUIRE(tokens <= m->config.positions, STATUS_USAGE,
            "%lld tokens do not fit: the model has %lld positions", (long long)tokens,
            (long long)m->config.positions);
    struct model_cache *cache = calloc(1, sizeof *cache);
    REQUIRE(cache != NULL, STATUS_INTERNAL, "out of memory for a key-value cache");
    status result = STATUS_OK;
    size_t elements = (size_t)(2 * m->config.layers * sequences * tokens * m->share.kv_width);
    *cache = (struct model_cache){.model = m, .sequences = sequences, .tokens = tokens};
    cache->bytes = elements * dtype_bytes(kernels_dtype(m->kernels));
    cache->lengths = calloc((size_t)sequences, sizeof *cache->lengths);
    REQUIRE_GOTO(result, fail, cache->lengths != NULL, STATUS_INTERNAL,
                 "out of memory for a key-value cache");
    TRY_GOTO(result, fail,
             mirror_create(kernels_device(m->kernels), kernels_stream(m->kernels),
                           added_bytes(cache), "new tokens", &cache->added));
    TRY_GOTO(result, fail,
             device_allocate(kernels_device(m->kernels), cache->bytes, "the key-value cache",
                             (void **)&cache->memory));
    *out = cache;
    return STATUS_OK;
fail:
    (void)model_cache_destroy(&cache);
    return result;
}

status model_cache_destroy(struct model_cache **cache)
{
    if (*cache != NULL) {
        struct device *dev = kernels_device((*cache)->model->kernels);
        device_release(dev, (*cache)->memory, (*cache)->bytes);
        device_release(dev, (*cache)->other, (*cache)->bytes);
        mirror_destroy(&(*cache)->added);
        free((*cache)->lengths);
        free(*cache);
        *cache = NULL;
    }
    return STATUS_OK;
}

/* Keys (which = 0) or values (1) of one sequence in one layer. */
static struct tensor cached(const struct model_cache *cache, char *memory, int64_t layer, int which,
                            int64_t sequence)
{
    const struct model *m = cache->model;
    enum dtype dtype = kernels_dtype(m->kernels);
    int64_t slot = (2 * layer + which) * cache->sequences + sequence;
    size_t row_bytes = (size_t)m->share.kv_width * dtype_bytes(dtype);
    return tensor_view(memory + (size_t)(slot * cache->tokens) * row_bytes, dtype, cache->tokens,
                       m->share.kv_width);
}

static status store_rows(const struct model *m, struct tensor to, struct tensor from)
{
    size_t bytes = (size_t)from.columns * dtype_bytes(from.dtype);
    for (int64_t i = 0; i < from.rows; i++) {
        TRY(device_copy(kernels_device(m->kernels), kernels_stream(m->kernels),
                        tensor_rows(to, i, 1).data, tensor_rows(from, i, 1).data, bytes));
    }
    return STATUS_OK;
}

static status extend_sequence(struct model *m, struct model_cache *cache, int64_t layer,
                              int64_t sequence, int64_t row, int64_t count)
{
    int64_t length = cache->lengths[sequence];
    struct layer_activations *a = &m->activations.layers[layer];
    struct tensor qkv = tensor_rows(a->qkv, row, count);
    struct tensor keys = cached(cache, cache->memory, layer, 0, sequence);
    struct tensor values = cached(cache, cache->memory, layer, 1, sequence);
    TRY(store_rows(m, tensor_rows(keys, length, count), model_keys(m, qkv)));
    TRY(store_rows(m, tensor_rows(values, length, count), model_values(m, qkv)));
    const int32_t *bounds = bounds_of(cache, cache->added.placed, sequence);
    struct model_input input = {.segments = 1, .cu_rows = bounds, .longest = count};
    struct attention attention = model_attention(m, &input, layer);
    attention.cu_k = bounds + 2;
    attention.longest_k = length + count;
    return attention_forward(m->kernels, tensor_rows(a->attended, row, count), tensor_absent(),
                             model_queries(m, qkv), tensor_rows(keys, 0, length + count),
                             tensor_rows(values, 0, length + count), &attention);
}

static status extend_layer(struct model *m, struct model_cache *cache,
                           const struct model_input *input, const int64_t *counts, int64_t layer)
{
    TRY(model_project_qkv(m, input, layer));
    for (int64_t i = 0, row = 0; i < cache->sequences; row += counts[i], i++) {
        if (counts[i] > 0) {
            TRY(extend_sequence(m, cache, layer, i, row, counts[i]));
        }
    }
    TRY(model_project_attended(m, input, layer));
    return model_layer_rest(m, input, layer);
}

/* What the kernels read of the new tokens; *count of them. */
static status place_added(struct model_cache *cache, const int32_t *tokens, const int64_t *counts,
                          int64_t *count)
{
    struct model *m = cache->model;
    int32_t *ids = cache->added.host, *positions = ids + m->rows;
    int64_t rows = 0;
    /* What was sent before has arrived before its place is used again. */
    TRY(device_wait(cache->added.device, cache->added.stream, added_seconds));
    for (int64_t i = 0; i < cache->sequences; i++) {
        REQUIRE(cache->lengths[i] + counts[i] <= cache->tokens && rows + counts[i] <= m->rows,
                STATUS_INTERNAL, "a key-value cache of %lld tokens overflows",
                (long long)cache->tokens);
        for (int64_t j = 0; j < counts[i]; j++) {
            ids[rows] = tokens[rows];
            positions[rows++] = (int32_t)(cache->lengths[i] + j);
        }
        int32_t *bounds = bounds_of(cache, cache->added.host, i);
        bounds[0] = bounds[2] = 0;
        bounds[1] = (int32_t)counts[i];
        bounds[3] = (int32_t)(cache->lengths[i] + counts[i]);
    }
    *count = rows;
    return mirror_push(&cache->added, 0, cache->added.bytes);
}

status model_extend(struct model *m, struct model_cache *cache, const int32_t *tokens,
                    const int64_t *counts, struct tensor *hidden)
{
    int64_t rows = 0;
    TRY(place_added(cache, tokens, counts, &rows));
    const int32_t *ids = cache->added.placed;
    struct model_input input = {.rows = rows, .tokens = ids, .positions = ids + m->rows};
    TRY(model_embed(m, &input));
    TRY(model_first_norm(m, &input));
    for (int64_t layer = 0; layer < m->config.layers; layer++) {
        TRY(extend_layer(m, cache, &input, counts, layer));
    }
    for (int64_t i = 0; i < cache->sequences; i++) {
        cache->lengths[i] += counts[i];
    }
    return model_hidden(m, rows, hidden);
}

status model_cache_reorder(struct model *m, struct model_cache *cache, const int32_t *from)
{
    struct device *dev = kernels_device(m->kernels);
    if (cache->other == NULL) {
        TRY(device_allocate(dev, cache->bytes, "the beams' cache", (void **)&cache->other));
    }
    size_t row_bytes = (size_t)m->share.kv_width * dtype_bytes(kernels_dtype(m->kernels));
    for (int64_t layer = 0; layer < m->config.layers; layer++) {
        for (int which = 0; which < 2; which++) {
            for (int64_t i = 0; i < cache->sequences; i++) {
                size_t bytes = (size_t)cache->lengths[from[i]] * row_bytes;
                TRY(device_copy(dev, kernels_stream(m->kernels),
                                cached(cache, cache->other, layer, which, i).data,
                                cached(cache, cache->memory, layer, which, from[i]).data, bytes));
            }
        }
    }
    char *memory = cache->memory;
    cache->memory = cache->other;
    cache->other = memory;
    int64_t *lengths = malloc((size_t)cache->sequences * sizeof *lengths);
    REQUIRE(lengths != NULL, STATUS_INTERNAL, "out of memory for beams");
    for (int64_t i = 0; i < cache->sequences; i++) {
        lengths[i] = cache->lengths[from[i]];
    }
    memcpy(cache->lengths, lengths, (size_t)cache->sequences * sizeof *lengths);
    free(lengths);
    return STATUS_OK;
}

void model_cache_clear(struct model_cache *cache, int64_t sequence)
{
    cache->lengths[sequence] = 0;
}

int64_t model_cache_length(const struct model_cache *cache, int64_t sequence)
{
    return cache->lengths[sequence];
}
