/* Losses of preference pairs and their gradients, in double precision on the host. The names and
 * the formulas are in kernels/preference_loss.h.
 *
 * aot, aot_unpaired and sft read all pairs of the global batch, so that gradient accumulation and
 * the number of ranks do not change the result. Kernels compute the other losses in a step. */
#pragma once

#include <stdbool.h>

#include "kernels/preference_loss.h"

/* preference_find - find a loss by name; PREFERENCE_LOSSES if there is none. */
enum preference_loss preference_find(const char *name);

/* preference_needs_whole_batch - check whether a loss reads all pairs of the global batch. */
bool preference_needs_whole_batch(const struct preference_settings *s);

/* preference_gradients - compute losses and gradients of `count` pairs.
 *
 * Shapes    pairs, out [count]; all pairs of the global batch if preference_needs_whole_batch
 * Numerics  no overflow of intermediate values; only discopop's exponential can become infinite
 * Errors    STATUS_INTERNAL if memory for sorting is exhausted */
status preference_gradients(const struct preference_settings *s,
                            const struct preference_pair *pairs, int64_t count,
                            struct preference_gradient *out);
