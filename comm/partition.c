#include "comm/partition.h"

#include "base/number.h"

struct comm_range partition_shard(int64_t count, int64_t unit, int shards, int index)
{
    int64_t units = number_divide_up(count, unit);
    int64_t units_per_shard = units / shards;
    int64_t remainder = units % shards; /* the first shards have one more unit */
    int64_t first = unit * (index * units_per_shard + number_min(index, remainder));
    int64_t end = first + unit * (units_per_shard + (index < remainder ? 1 : 0));
    first = number_min(first, count);
    end = number_min(end, count);
    return (struct comm_range){first, end - first};
}

struct comm_range partition_equal_shard(int64_t count, int64_t unit, int shards, int index)
{
    int64_t rest = count % (unit * shards), each = (count - rest) / shards;
    return index == 0 ? (struct comm_range){0, rest + each}
                      : (struct comm_range){rest + index * each, each};
}
