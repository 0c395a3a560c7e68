/* Generation with a key-value cache: new tokens attend to the cached keys and values of all earlier
 * tokens.
 *
 * Layout: per layer [sequences, tokens, G D] keys, then values of the same shape. Sequence i fills
 * its block from the start. Beam search copies the sequences to a second buffer of the same size
 * when it reorders them. The first reordering allocates that buffer. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/deadlines.h"
#include "base/mirror.h"
#include "trainer/model/model_impl.h"

struct model_cache {
    struct model *model;
    int64_t sequences, tokens;
    int64_t *lengths; /* [sequences] cached tokens */
    /* int32: ids [rows] and positions [rows] of the new tokens; then cu_q [2] and cu_k [2] of each
     * sequence */
    struct mirror upload;
    char *memory, *spare; /* keys and values; the second buffer for reordering, or NULL */
    size_t bytes;         /* of each buffer */
};

static size_t compute_upload_bytes(const struct model_cache *cache)
{
    return (size_t)(2 * cache->model->rows + 4 * cache->sequences) * sizeof(int32_t);
}

/* Returns the row bounds of a sequence's queries [2] and keys [2], on the host or the device. */
static int32_t *find_bounds(const struct model_cache *cache, void *base, int64_t sequence)
{
    return (int32_t *)base + 2 * cache->model->rows + 4 * sequence;
}

status model_cache_create(struct model *m, int64_t sequences, int64_t tokens,
                          struct model_cache **out)
{
    *out = NULL;
    REQUIRE(tokens <= m->config.positions, STATUS_USAGE,
            "%" PRId64 " tokens do not fit: the model has %" PRId64
            " positions; request fewer tokens",
            tokens, m->config.positions);
    struct model_cache *cache = calloc(1, sizeof *cache);
    REQUIRE(cache != NULL, STATUS_INTERNAL, "out of memory for a key-value cache");
    status result = STATUS_OK;
    size_t elements = (size_t)(2 * m->config.layers * sequences * tokens * m->local.kv_width);
    *cache = (struct model_cache){.model = m, .sequences = sequences, .tokens = tokens};
    cache->bytes = elements * dtype_bytes(kernels_dtype(m->kernels));
    cache->lengths = calloc((size_t)sequences, sizeof *cache->lengths);
    REQUIRE_GOTO(result, fail, cache->lengths != NULL, STATUS_INTERNAL,
                 "out of memory for a key-value cache");
    TRY_GOTO(result, fail,
             mirror_create(kernels_device(m->kernels), kernels_stream(m->kernels),
                           compute_upload_bytes(cache), "new tokens", &cache->upload));
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
        device_release(dev, (*cache)->spare, (*cache)->bytes);
        mirror_destroy(&(*cache)->upload);
        free((*cache)->lengths);
        free(*cache);
        *cache = NULL;
    }
    return STATUS_OK;
}

/* Returns a view of the keys (kind = 0) or values (1) of one sequence in one layer. */
static struct tensor view_cached(const struct model_cache *cache, char *memory, int64_t layer,
                                 int kind, int64_t sequence)
{
    const struct model *m = cache->model;
    enum dtype dtype = kernels_dtype(m->kernels);
    int64_t slot = (2 * layer + kind) * cache->sequences + sequence;
    size_t row_bytes = (size_t)m->local.kv_width * dtype_bytes(dtype);
    return tensor_view(memory + (size_t)(slot * cache->tokens) * row_bytes, dtype, cache->tokens,
                       m->local.kv_width);
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
    struct tensor qk = tensor_rows(model_query_keys(m, a), row, count);
    struct tensor keys = view_cached(cache, cache->memory, layer, 0, sequence);
    struct tensor values = view_cached(cache, cache->memory, layer, 1, sequence);
    TRY(store_rows(m, tensor_rows(keys, length, count), model_keys(m, qk)));
    TRY(store_rows(m, tensor_rows(values, length, count), model_values(m, qkv)));
    const int32_t *bounds = find_bounds(cache, cache->upload.device_data, sequence);
    struct model_input input = {.segments = 1, .cu_rows = bounds, .longest = count};
    struct attention attention = model_attention(m, &input, layer);
    attention.cu_k = bounds + 2;
    attention.longest_k = length + count;
    return attention_forward(m->kernels, tensor_rows(a->attended, row, count), tensor_absent(),
                             model_queries(m, qk), tensor_rows(keys, 0, length + count),
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
    return model_finish_layer(m, input, layer);
}

/* Copies ids, positions and bounds of the *count new tokens to the device. */
static status upload_tokens(struct model_cache *cache, const int32_t *tokens, const int64_t *counts,
                            int64_t *count)
{
    struct model *m = cache->model;
    int32_t *ids = cache->upload.host, *positions = ids + m->rows;
    int64_t rows = 0;
    /* The last upload must be complete before its host buffer is overwritten. */
    TRY(device_wait(cache->upload.device, cache->upload.stream, DEADLINE_DEVICE_SECONDS));
    for (int64_t i = 0; i < cache->sequences; i++) {
        REQUIRE(cache->lengths[i] + counts[i] <= cache->tokens && rows + counts[i] <= m->rows,
                STATUS_INTERNAL, "a key-value cache of %" PRId64 " tokens overflows",
                cache->tokens);
        for (int64_t j = 0; j < counts[i]; j++) {
            ids[rows] = tokens[rows];
            positions[rows++] = (int32_t)(cache->lengths[i] + j);
        }
        int32_t *bounds = find_bounds(cache, cache->upload.host, i);
        bounds[0] = bounds[2] = 0;
        bounds[1] = (int32_t)counts[i];
        bounds[3] = (int32_t)(cache->lengths[i] + counts[i]);
    }
    *count = rows;
    return mirror_upload(&cache->upload, 0, cache->upload.bytes);
}

status model_forward_cached(struct model *m, struct model_cache *cache, const int32_t *tokens,
                            const int64_t *counts, struct tensor *hidden)
{
    int64_t rows = 0;
    TRY(upload_tokens(cache, tokens, counts, &rows));
    const int32_t *ids = cache->upload.device_data;
    struct model_input input = {.rows = rows, .tokens = ids, .positions = ids + m->rows};
    TRY(model_embed(m, &input));
    TRY(model_first_norm(m, &input));
    for (int64_t layer = 0; layer < m->config.layers; layer++) {
        TRY(extend_layer(m, cache, &input, counts, layer));
    }
    for (int64_t i = 0; i < cache->sequences; i++) {
        cache->lengths[i] += counts[i];
    }
    return model_gather_hidden(m, rows, hidden);
}

status model_cache_reorder(struct model *m, struct model_cache *cache, const int32_t *from)
{
    struct device *dev = kernels_device(m->kernels);
    if (cache->spare == NULL) {
        TRY(device_allocate(dev, cache->bytes, "the beams' cache", (void **)&cache->spare));
    }
    size_t row_bytes = (size_t)m->local.kv_width * dtype_bytes(kernels_dtype(m->kernels));
    for (int64_t layer = 0; layer < m->config.layers; layer++) {
        for (int kind = 0; kind < 2; kind++) {
            for (int64_t i = 0; i < cache->sequences; i++) {
                size_t bytes = (size_t)cache->lengths[from[i]] * row_bytes;
                TRY(device_copy(dev, kernels_stream(m->kernels),
                                view_cached(cache, cache->spare, layer, kind, i).data,
                                view_cached(cache, cache->memory, layer, kind, from[i]).data,
                                bytes));
            }
        }
    }
    char *memory = cache->memory;
    cache->memory = cache->spare;
    cache->spare = memory;
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
