/* Generation: new rows of each sequence attend to cached keys and values. */
#pragma once

#include "trainer/model/model.h"

/* model_cache_create - create a key-value cache for `sequences` sequences of up to `tokens` tokens.
 * The sequences of an encoder-decoder model have sources of up to `source_tokens` tokens.
 *
 * Memory    2 L G D tokens sequences elements (L layers of the decoder, G of this rank) on the
 *           model's device; with an encoder also 2 L H D source_tokens sequences
 * Errors    STATUS_USAGE if the model has fewer positions than `tokens` or `source_tokens` */
status model_cache_create(struct model *m, int64_t sequences, int64_t tokens, int64_t source_tokens,
                          struct model_cache **out);

/* model_cache_destroy - free a cache and set *cache to NULL. */
status model_cache_destroy(struct model_cache **cache);

/* model_cache_read_source - run the encoder of an encoder-decoder model on the source of one
 * sequence, and store the keys and values of cross-attention.
 *
 * Shapes    tokens [count] on the host
 * Order     before the first model_forward_cached with this sequence; collective over the
 *           tensor-parallel group
 * Errors    STATUS_INTERNAL if the source is longer than planned */
status model_cache_read_source(struct model *m, struct model_cache *cache, int64_t sequence,
                               const int32_t *tokens, int64_t count);

/* model_forward_cached - run counts[i] new tokens of each sequence i against the cache.
 * Their keys and values are appended to the cache.
 *
 * Shapes    tokens [sum of counts], the sequences one after the other; counts[i] may be 0;
 *           hidden [sum of counts, C] after the final norm
 * Order     collective over the tensor-parallel group
 * Errors    STATUS_INTERNAL if the cache overflows */
status model_forward_cached(struct model *m, struct model_cache *cache, const int32_t *tokens,
                            const int64_t *counts, struct tensor *hidden);

/* model_cache_reorder - replace sequence i by a copy of sequence from[i], for all i (beam search).
 * Both then share the memory of a source.
 *
 * Memory    the first call allocates a second cache of the same size */
status model_cache_reorder(struct model *m, struct model_cache *cache, const int32_t *from);

/* model_cache_clear - remove all tokens of one sequence. Its source remains. */
void model_cache_clear(struct model_cache *cache, int64_t sequence);

/* model_cache_length - return the number of cached tokens of one sequence. */
int64_t model_cache_length(const struct model_cache *cache, int64_t sequence);
