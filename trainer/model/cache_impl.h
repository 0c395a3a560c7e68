/* The key-value cache: its memory, and the views of it that attention and cross-attention read. */
#pragma once

#include "base/device/mirror.h"
#include "trainer/model/cache.h"
#include "trainer/model/model_impl.h"

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

/* Row bounds of a sequence on the device, two of each: cu_rows of struct model_input, cu_k of its
 * self-attention, cu_k of its cross-attention. */
enum { BOUNDS_QUERIES = 0, BOUNDS_KEYS = 2, BOUNDS_SOURCE = 4, BOUNDS = 6 };

enum cache_kind { CACHE_KEYS, CACHE_VALUES };

/* model_cache_bounds - return the bounds [BOUNDS] of a sequence on the device. */
const int32_t *model_cache_bounds(const struct model_cache *cache, int64_t sequence);

/* model_cache_view - return the cached keys or values of a sequence in one layer.
 *
 * Shapes    [tokens, G D / t]; lengths[sequence] rows are valid */
struct tensor model_cache_view(const struct model_cache *cache, int64_t layer, enum cache_kind kind,
                               int64_t sequence);

/* model_cache_view_source - return the keys and values of the source of a sequence in one layer.
 *
 * Shapes    [source_count, 2 H D / t] */
struct tensor model_cache_view_source(const struct model_cache *cache, int64_t layer,
                                      int64_t sequence);
