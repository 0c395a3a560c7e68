/* Division of a range into contiguous shards that differ by at most one unit. */
#pragma once

#include "comm/comm.h"

/* partition_shard - return shard `index` of [0, count), divided into `shards` at multiples of
 * `unit`.
 *
 * Any count and any number of shards are allowed; some shards may be empty. */
struct comm_range partition_shard(int64_t count, int64_t unit, int shards, int index);
