/* The layout of gradient buckets: which elements a bucket and a shard contain, and the sizes of the
 * memory. bucket.h defines buckets, shards and segments.
 *
 * The functions depend only on the options and the number of ranks. `bireme plan` uses them through
 * bucket_memory_bytes, bucket_window_bytes and bucket_owned_elems (bucket.h). */
#pragma once

#include "comm/bucket/bucket.h"

#define BUCKET_LAYOUT_SLOTS 2 /* slots of transient segments */

/* bucket_layout_shard_unit - return the unit of shards, in elements. */
int64_t bucket_layout_shard_unit(const struct bucket_options *o);

/* bucket_layout_shard - return the shard of a rank in a bucket.
 *
 * Without reproducible sums, all ranks have equal shards, so that NCCL needs one collective per
 * bucket. A remainder belongs to rank 0. */
struct comm_range bucket_layout_shard(struct comm_range bucket, int64_t shard_unit, int ranks,
                                      int rank);

/* bucket_layout_count - return the number of buckets of a segment of `count` elements. */
int64_t bucket_layout_count(int64_t count, int64_t bucket_elems);

/* bucket_layout_range - return bucket `index` of the segment [first, first + count).
 *
 * The sizes of the buckets differ by at most one unit. The unit is one shard unit per rank. With
 * reproducible sums it is BUCKET_BLOCK, so that buckets do not depend on the number of ranks. */
struct comm_range bucket_layout_range(int64_t first, int64_t count, const struct bucket_options *o,
                                      int ranks, int index);

/* Totals over all segments, in elements. */
struct bucket_sizes {
    int64_t resident_elems; /* of segments that are not transient */
    int64_t largest;        /* size of the largest transient segment; 0: none */
    int64_t buckets;        /* number of buckets */
    int64_t owned;          /* of the rank's shards */
    int64_t sums;           /* of the rank's shards with a separate accumulator */
};

/* bucket_layout_sizes - compute the sizes for one rank. Rank 0 has the largest shards. */
struct bucket_sizes bucket_layout_sizes(const struct bucket_options *o, int ranks, int rank);
