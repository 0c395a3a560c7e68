/* Which sample comes when: pure functions of (seed, number of the sample), no state and no index file.
 *
 * One source: sample g of the run is sample permute(key(seed, epoch, source), g mod n) of the source,
 * epoch = g / n. In the first epoch the windows of a source lie end to end; in each later one all of them
 * are moved on by the same number of tokens below a window's length, so that a text read again is cut at
 * other places (a few epochs then teach as much as windows drawn anywhere).
 *
 * A mixture of k sources with integer weights is split in two halves of the list again and again: of
 * the first n samples that reach a node, its left half gets floor(n W_left / W), its right half the
 * others. Sample n goes left where that share grows from n to n + 1. So after any number of samples each
 * source has its proportional share to within ceil(log2 k) samples (one, for two sources), and the place
 * of a sample costs O(log k) whatever its number. Each source wraps through epochs of its own. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { ORDER_SOURCES_MAX = 64 };

struct order {
    int sources;
    bool shuffle;
    uint64_t seed;
    int64_t window; /* tokens of a sample; 0, as order_set leaves it: windows are not moved */
    int64_t samples[ORDER_SOURCES_MAX]; /* of one epoch of the source, > 0 */
    uint64_t
        before[ORDER_SOURCES_MAX + 1]; /* sum of the weights before source i; in all near 2^32 */
};

struct order_place {
    int source;
    int64_t epoch;  /* of the source */
    int64_t sample; /* 0 .. samples - 1 of the source */
    int64_t shift;  /* tokens that the epoch's windows are moved on, 0 .. window - 1 */
};

/* order_set - shuffle false: sources are read from their beginning to their end.
 *
 * Numerics  weights are rounded to multiples of 2^-32 of their sum, equally on every machine
 * Errors    STATUS_RECIPE: a weight that is not above 0 and finite; too many sources */
status order_set(struct order *order, const int64_t *samples, const double *weights, int sources,
                 uint64_t seed, bool shuffle);

/* order_at - the place of sample `number` of the run, from 0. */
struct order_place order_at(const struct order *order, int64_t number);

/* order_count - how many of the first `number` samples of the run belong to this source. */
int64_t order_count(const struct order *order, int source, int64_t number);

/* order_epoch - samples of the run until the first source is through: n for a single source. */
int64_t order_epoch(const struct order *order);
