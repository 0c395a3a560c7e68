/* Generation with a key-value cache: new tokens attend to the cached keys and values of all earlier
 * tokens.
 *
 * Layout: per layer [sequences, tokens, G D] keys, then values of the same shape. Sequence i fills
 * its block from the start. Beam search copies the sequences to a second buffer of the same size
 * when it reorders them. The first reordering allocates that buffer.
 *
 * The cache of an encoder-decoder model has the layers of its decoder. The keys and values of
 * cross-attention are computed once: per layer [sequences, source_tokens, 2 W]. Reordered sequences
 * share the block of a source, because the hypotheses of beam search have the same source. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/deadlines.h"
#include "base/device/mirror.h"
#include "base/memory.h"
#include "trainer/model/cache.h"
#include "trainer/model/sublayers.h"

struct model_cache {
    struct model *model;
    const struct stack *stack; /* the layers that have a cache */
    int64_t sequences, tokens, source_tokens;
    int64_t *lengths;      /* [sequences] cached tokens */
    int64_t *source_block; /* [sequences] block with the source of a sequence */
    int64_t *source_count; /* [sequences] tokens of the source in a block */
    const int64_t *counts; /* [sequences] new tokens of this pass */
    /* int32: ids [rows] and positions [rows] of the new tokens; then the bounds of each sequence */
    struct mirror upload;
    char *memory, *spare; /* keys and values; the second buffer for reordering, or NULL */
    size_t bytes;         /* of each buffer */
    char *sources;        /* keys and values of cross-attention; NULL: none */
    size_t source_bytes;
};

enum { BOUNDS = 6 }; /* row bounds of the queries [2], the keys [2] and the source [2] */

static size_t compute_upload_bytes(const struct model_cache *cache)
{
    return (size_t)(2 * cache->model->rows + BOUNDS * cache->sequences) * sizeof(int32_t);
}

/* Returns the bounds of a sequence, on the host or the device. */
static int32_t *find_bounds(const struct model_cache *cache, void *base, int64_t sequence)
{
    return (int32_t *)base + 2 * cache->model->rows + BOUNDS * sequence;
}

static status allocate_buffers(struct model_cache *cache)
{
    const struct model *m = cache->model;
    struct device *dev = kernels_device(m->kernels);
    size_t layers = (size_t)(cache->stack->end - cache->stack->first),
           element_bytes = dtype_bytes(kernels_dtype(m->kernels)),
           rows = 2 * layers * (size_t)cache->sequences;
    TRY(mirror_create(dev, kernels_stream(m->kernels), compute_upload_bytes(cache), "new tokens",
                      &cache->upload));
    cache->bytes = rows * (size_t)(cache->tokens * m->local.kv_width) * element_bytes;
    TRY(device_allocate(dev, cache->bytes, "the key-value cache", (void **)&cache->memory));
    if (m->stack_count == 1) {
        return STATUS_OK;
    }
    cache->source_bytes = rows * (size_t)(cache->source_tokens * m->local.width) * element_bytes;
    return device_allocate(dev, cache->source_bytes, "the cache of sources",
                           (void **)&cache->sources);
}

status model_cache_create(struct model *m, int64_t sequences, int64_t tokens, int64_t source_tokens,
                          struct model_cache **out)
{
    *out = NULL;
    int64_t longest = tokens > source_tokens ? tokens : source_tokens;
    REQUIRE(longest <= m->config.positions, STATUS_USAGE,
            "%" PRId64 " tokens do not fit: the model has %" PRId64
            " positions; request fewer tokens",
            longest, m->config.positions);
    struct model_cache *cache = NULL;
    TRY(ALLOCATE(cache, 1, "a key-value cache"));
    status result = STATUS_OK;
    *cache = (struct model_cache){.model = m,
                                  .stack = &m->stacks[m->stack_count - 1],
                                  .sequences = sequences,
                                  .tokens = tokens,
                                  .source_tokens = source_tokens};
    TRY_GOTO(result, fail, ALLOCATE(cache->lengths, 3 * (size_t)sequences, "a key-value cache"));
    cache->source_block = cache->lengths + sequences;
    cache->source_count = cache->source_block + sequences;
    for (int64_t i = 0; i < sequences; i++) {
        cache->source_block[i] = i;
    }
    TRY_GOTO(result, fail, allocate_buffers(cache));
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
        device_release(dev, (*cache)->sources, (*cache)->source_bytes);
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
    int64_t slot = (2 * (layer - cache->stack->first) + kind) * cache->sequences + sequence;
    size_t row_bytes = (size_t)m->local.kv_width * dtype_bytes(dtype);
    return tensor_view(memory + (size_t)(slot * cache->tokens) * row_bytes, dtype, cache->tokens,
                       m->local.kv_width);
}

/* Returns a view of the keys and values of a source in one layer. */
static struct tensor view_source(const struct model_cache *cache, int64_t layer, int64_t block)
{
    const struct model *m = cache->model;
    enum dtype dtype = kernels_dtype(m->kernels);
    int64_t first = ((layer - cache->stack->first) * cache->sequences + block) *
                    cache->source_tokens * 2 * m->local.width;
    return tensor_view(cache->sources + (size_t)first * dtype_bytes(dtype), dtype,
                       cache->source_count[block], 2 * m->local.width);
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
        bounds[4] = 0;
        bounds[5] = (int32_t)cache->source_count[cache->source_block[i]];
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
    struct model_input input = {
        .rows = rows, .tokens = ids, .positions = ids + m->rows, .cache = cache};
    cache->counts = counts;
    TRY(model_embed(m, &input));
    TRY(model_first_norm(m, &input));
    for (int64_t layer = cache->stack->first; layer < cache->stack->end; layer++) {
        TRY(extend_layer(m, cache, &input, counts, layer));
    }
    for (int64_t i = 0; i < cache->sequences; i++) {
        cache->lengths[i] += counts[i];
    }
    return model_gather_hidden(m, rows, hidden);
}

/* ---- sources ---- */

status model_cache_read_source(struct model *m, struct model_cache *cache, int64_t sequence,
                               const int32_t *tokens, int64_t count)
{
    int32_t *ids = cache->upload.host, *bounds = find_bounds(cache, ids, sequence);
    REQUIRE(m->stack_count > 1 && count <= cache->source_tokens && count <= m->rows,
            STATUS_INTERNAL, "a source has %" PRId64 " tokens; %" PRId64 " are planned", count,
            cache->source_tokens);
    TRY(device_wait(cache->upload.device, cache->upload.stream, DEADLINE_DEVICE_SECONDS));
    for (int64_t i = 0; i < count; i++) {
        ids[i] = tokens[i];
        ids[m->rows + i] = (int32_t)i;
    }
    bounds[0] = 0;
    bounds[1] = (int32_t)count;
    TRY(mirror_upload(&cache->upload, 0, cache->upload.bytes));
    const int32_t *device_ids = cache->upload.device_data;
    const struct model_input input = {
        .is_source = true,
        .rows = count,
        .tokens = device_ids,
        .positions = device_ids + m->rows,
        .segments = 1,
        .cu_rows = find_bounds(cache, cache->upload.device_data, sequence),
        .longest = count,
    };
    TRY(model_run_stack(m, &input));
    cache->source_block[sequence] = sequence;
    cache->source_count[sequence] = count;
    for (int64_t layer = cache->stack->first; layer < cache->stack->end; layer++) {
        TRY(model_project_source(m, &input, layer, view_source(cache, layer, sequence)));
    }
    return STATUS_OK;
}

status model_cache_attend_source(struct model *m, const struct model_input *input, int64_t layer,
                                 struct tensor attended, struct tensor query)
{
    const struct model_cache *cache = input->cache;
    for (int64_t i = 0, row = 0; i < cache->sequences; row += cache->counts[i], i++) {
        int64_t count = cache->counts[i], block = cache->source_block[i];
        const int32_t *bounds = find_bounds(cache, cache->upload.device_data, i);
        const struct model_input sequence = {
            .segments = 1,
            .cu_rows = bounds,
            .longest = count,
            .source = {.cu_rows = bounds + 4, .longest = cache->source_count[block]}};
        if (count > 0) {
            TRY(model_attend_source(m, &sequence, layer, tensor_rows(attended, row, count),
                                    tensor_absent(), tensor_rows(query, row, count),
                                    view_source(cache, layer, block)));
        }
    }
    return STATUS_OK;
}

/* ---- beams ---- */

/* Replaces values[i] by values[from[i]] for all sequences. */
static void reorder_values(int64_t *values, int64_t *old, int64_t count, const int32_t *from)
{
    memcpy(old, values, (size_t)count * sizeof *old);
    for (int64_t i = 0; i < count; i++) {
        values[i] = old[from[i]];
    }
}

status model_cache_reorder(struct model *m, struct model_cache *cache, const int32_t *from)
{
    struct device *dev = kernels_device(m->kernels);
    if (cache->spare == NULL) {
        TRY(device_allocate(dev, cache->bytes, "the beams' cache", (void **)&cache->spare));
    }
    size_t row_bytes = (size_t)m->local.kv_width * dtype_bytes(kernels_dtype(m->kernels));
    for (int64_t layer = cache->stack->first; layer < cache->stack->end; layer++) {
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
    int64_t *old = NULL;
    TRY(ALLOCATE(old, cache->sequences, "beams"));
    reorder_values(cache->lengths, old, cache->sequences, from);
    reorder_values(cache->source_block, old, cache->sequences, from);
    free(old);
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
