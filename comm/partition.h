/* Division of a range of elements into contiguous shards, one for each rank. All functions are
 * pure, so that every rank computes the same shards without communication. */
#pragma once

#include "comm/comm.h"

/* partition_shard - return shard `index` of [0, count), divided into `shards` at multiples of
 * `unit`. The shards differ by at most one unit.
 *
 * Any count and any number of shards are allowed; some shards may be empty. */
struct comm_range partition_shard(int64_t count, int64_t unit, int shards, int index);

/* partition_equal_shard - return shard `index` of [0, count), divided into `shards` of equal size,
 * a multiple of `unit`. Shard 0 also contains the rest, less than one unit per shard. */
struct comm_range partition_equal_shard(int64_t count, int64_t unit, int shards, int index);
