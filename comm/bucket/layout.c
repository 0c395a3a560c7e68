#include "comm/bucket/layout.h"

#include "base/number.h"
#include "comm/partition.h"

#define SHARD_UNIT_ELEMS 32 /* shards are whole cache lines, in f32 and in bf16 */

int64_t bucket_layout_shard_unit(const struct bucket_options *o)
{
    return o->reproducible_micro_batches > 0 ? BUCKET_BLOCK : SHARD_UNIT_ELEMS;
}

struct comm_range bucket_layout_shard(struct comm_range bucket, int64_t shard_unit, int ranks,
                                      int rank)
{
    struct comm_range shard = shard_unit == BUCKET_BLOCK
                                  ? partition_shard(bucket.count, shard_unit, ranks, rank)
                                  : partition_equal_shard(bucket.count, shard_unit, ranks, rank);
    shard.first += bucket.first;
    return shard;
}

int64_t bucket_layout_count(int64_t count, int64_t bucket_elems)
{
    return number_divide_up(count, bucket_elems);
}

struct comm_range bucket_layout_range(int64_t first, int64_t count, const struct bucket_options *o,
                                      int ranks, int index)
{
    int64_t unit = o->reproducible_micro_batches > 0 ? BUCKET_BLOCK : SHARD_UNIT_ELEMS * ranks;
    struct comm_range range =
        partition_shard(count, unit, (int)bucket_layout_count(count, o->bucket_elems), index);
    range.first += first;
    return range;
}

struct bucket_sizes bucket_layout_sizes(const struct bucket_options *o, int ranks, int rank)
{
    struct bucket_sizes sizes = {0};
    for (int s = 0; s < o->segment_count; s++) {
        const struct bucket_segment *segment = &o->segments[s];
        int buckets = (int)bucket_layout_count(segment->count, o->bucket_elems);
        sizes.buckets += buckets;
        int64_t owned = 0;
        for (int i = 0; i < buckets; i++) {
            struct comm_range bucket = bucket_layout_range(0, segment->count, o, ranks, i);
            owned += bucket_layout_shard(bucket, bucket_layout_shard_unit(o), ranks, rank).count;
        }
        sizes.owned += owned;
        sizes.sums += segment->transient || o->reproducible_micro_batches > 0 ? owned : 0;
        sizes.resident_elems += segment->transient ? 0 : segment->count;
        sizes.largest =
            segment->transient && segment->count > sizes.largest ? segment->count : sizes.largest;
    }
    return sizes;
}

static bool is_bf16_transport(const struct bucket_options *o, int ranks)
{
    return o->bf16_transport && ranks > 1;
}

void bucket_memory_bytes(const struct bucket_options *options, int ranks, int rank, int64_t *shared,
                         int64_t *own)
{
    struct bucket_sizes sizes = bucket_layout_sizes(options, ranks, rank);
    *shared = (sizes.resident_elems + BUCKET_LAYOUT_SLOTS * sizes.largest) *
              (int64_t)(sizeof(float) + (is_bf16_transport(options, ranks) ? sizeof(bf16) : 0));
    *own = sizes.sums * (int64_t)sizeof(float);
}

void bucket_window_bytes(const struct bucket_options *options, int ranks,
                         int64_t windows[BUCKET_WINDOWS])
{
    struct bucket_sizes sizes =
        bucket_layout_sizes(options, ranks, 0); /* rank 0 has the largest shards */
    int64_t slots = BUCKET_LAYOUT_SLOTS * sizes.largest, gradients = sizes.resident_elems + slots;
    windows[BUCKET_WINDOW_RESIDENT] = sizes.resident_elems * (int64_t)sizeof(float);
    windows[BUCKET_WINDOW_SLOTS] = slots > 0 ? slots * (int64_t)sizeof(float) : -1;
    windows[BUCKET_WINDOW_BF16] =
        is_bf16_transport(options, ranks) ? gradients * (int64_t)sizeof(bf16) : -1;
    windows[BUCKET_WINDOW_SUMS] = sizes.sums > 0 ? sizes.sums * (int64_t)sizeof(float) : -1;
}

int64_t bucket_owned_elems(const struct bucket_options *options, int ranks, int rank)
{
    return bucket_layout_sizes(options, ranks, rank).owned;
}
