/* The order of samples: pure functions of (seed, number of the sample). There is no index file.
 *
 * With one source of n samples, sample g of the run belongs to epoch = g / n. It is sample
 * permute(key(seed, epoch, source), g mod n) of the source. In the first epoch the windows of a
 * source are contiguous. In each later epoch all windows are shifted by the same number of tokens,
 * below the length of a window. A text is then split at other positions when it is read again. The
 * loss after a few epochs is therefore about the same as with windows at random positions.
 *
 * A mixture of k sources with integer weights is a binary tree: the list of sources is split in
 * halves, recursively. Each node divides the samples that reach it: floor(n W_left / W) of the
 * first n samples go to its left half, the others to its right half. Sample n goes left if that
 * number increases from n to n + 1. After any number of samples each source has its proportional
 * number of samples, within ceil(log2 k) samples (one, for two sources). Finding the position of a
 * sample costs O(log k), independent of its number. Each source has its own epochs. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum { SAMPLE_ORDER_SOURCES_MAX = 64 };

struct sample_order {
    int sources;
    bool shuffle;
    uint64_t seed;
    /* tokens of a sample; 0, set by sample_order_init: windows are not shifted */
    int64_t window_tokens;
    int64_t samples[SAMPLE_ORDER_SOURCES_MAX]; /* samples of one epoch of each source, > 0 */
    /* sum of the weights of all sources before source i; the total is close to 2^32 */
    uint64_t weight_offsets[SAMPLE_ORDER_SOURCES_MAX + 1];
};

/* The position of a sample in the data. */
struct sample_position {
    int source;
    int64_t epoch;  /* of the source */
    int64_t sample; /* 0 .. samples - 1 of the source */
    int64_t shift;  /* tokens by which the windows of the epoch are shifted, < window_tokens */
};

/* sample_order_init - set the sources and weights.
 *
 * Without shuffle, each source is read sequentially.
 *
 * Numerics  weights are rounded to multiples of 2^-32 of their sum, equally on every machine
 * Errors    STATUS_RECIPE: a weight that is not positive and finite; too many sources */
status sample_order_init(struct sample_order *order, const int64_t *samples, const double *weights,
                         int sources, uint64_t seed, bool shuffle);

/* sample_order_find - return the position of sample `number` of the run, from 0. */
struct sample_position sample_order_find(const struct sample_order *order, int64_t number);

/* sample_order_count - return how many of the first `number` samples belong to a source; for
 * tests. */
int64_t sample_order_count(const struct sample_order *order, int source, int64_t number);

/* sample_order_epoch_samples - return the number of samples until the first source ends.
 *
 * For a single source this is its number of samples. */
int64_t sample_order_epoch_samples(const struct sample_order *order);
