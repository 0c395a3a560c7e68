/* Generation with a key-value cache: new tokens attend to the cached keys and values of all earlier
 * tokens.
 *
 * New tokens run through the layers of the forward pass (model_run_stack). attention.c and
 * cross_attention.c read and extend the cache.
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
#include "base/memory.h"
#include "base/number.h"
#include "trainer/model/cache_impl.h"
#include "trainer/model/cross_attention_impl.h"

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
    int64_t longest = number_max(tokens, source_tokens);
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

const int32_t *model_cache_bounds(const struct model_cache *cache, int64_t sequence)
{
    return find_bounds(cache, cache->upload.device_data, sequence);
}

/* Returns a view of the keys or values of one sequence in one layer, in one of the two buffers. */
static struct tensor view_cached(const struct model_cache *cache, char *memory, int64_t layer,
                                 enum cache_kind kind, int64_t sequence)
{
    const struct model *m = cache->model;
    enum dtype dtype = kernels_dtype(m->kernels);
    int64_t slot = (2 * (layer - cache->stack->first) + kind) * cache->sequences + sequence;
    size_t row_bytes = (size_t)m->local.kv_width * dtype_bytes(dtype);
    return tensor_view(memory + (size_t)(slot * cache->tokens) * row_bytes, dtype, cache->tokens,
                       m->local.kv_width);
}

struct tensor model_cache_view(const struct model_cache *cache, int64_t layer, enum cache_kind kind,
                               int64_t sequence)
{
    return view_cached(cache, cache->memory, layer, kind, sequence);
}

struct tensor model_cache_view_source(const struct model_cache *cache, int64_t layer,
                                      int64_t sequence)
{
    const struct model *m = cache->model;
    enum dtype dtype = kernels_dtype(m->kernels);
    int64_t block = cache->source_block[sequence];
    int64_t first = ((layer - cache->stack->first) * cache->sequences + block) *
                    cache->source_tokens * 2 * m->local.width;
    return tensor_view(cache->sources + (size_t)first * dtype_bytes(dtype), dtype,
                       cache->source_count[block], 2 * m->local.width);
}

static void set_bounds(int32_t *bounds, int64_t count)
{
    bounds[0] = 0;
    bounds[1] = (int32_t)count;
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
        set_bounds(bounds + BOUNDS_QUERIES, counts[i]);
        set_bounds(bounds + BOUNDS_KEYS, cache->lengths[i] + counts[i]);
        set_bounds(bounds + BOUNDS_SOURCE, cache->source_count[cache->source_block[i]]);
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
    TRY(model_run_stack(m, &input));
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
    set_bounds(bounds + BOUNDS_QUERIES, count);
    TRY(mirror_upload(&cache->upload, 0, cache->upload.bytes));
    const int32_t *device_ids = cache->upload.device_data;
    const struct model_input input = {
        .is_source = true,
        .rows = count,
        .tokens = device_ids,
        .positions = device_ids + m->rows,
        .segments = 1,
        .cu_rows = model_cache_bounds(cache, sequence) + BOUNDS_QUERIES,
        .longest = count,
    };
    TRY(model_run_stack(m, &input));
    cache->source_block[sequence] = sequence;
    cache->source_count[sequence] = count;
    for (int64_t layer = cache->stack->first; layer < cache->stack->end; layer++) {
        TRY(model_project_source(m, &input, layer,
                                 model_cache_view_source(cache, layer, sequence)));
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
        for (int kind = CACHE_KEYS; kind <= CACHE_VALUES; kind++) {
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
