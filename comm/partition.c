#include "comm/partition.h"

struct comm_range partition_shard(int64_t count, int64_t unit, int shards, int index)
{
    int64_t units = (count + unit - 1) / unit;
    int64_t units_per_shard = units / shards;
    int64_t remainder = units % shards; /* the first shards have one more unit */
    int64_t first = unit * (index * units_per_shard + (index < remainder ? index : remainder));
    int64_t end = first + unit * (units_per_shard + (index < remainder ? 1 : 0));
    first = first < count ? first : count;
    end = end < count ? end : count;
    return (struct comm_range){first, end - first};
}

struct comm_range partition_equal_shard(int64_t count, int64_t unit, int shards, int index)
{
    int64_t rest = count % (unit * shards), each = (count - rest) / shards;
    return index == 0 ? (struct comm_range){0, rest + each}
                      : (struct comm_range){rest + index * each, each};
}
