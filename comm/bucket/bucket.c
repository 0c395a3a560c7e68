#include "comm/bucket/bucket.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "comm/bucket/layout.h"

struct segment {
    int64_t first, count;
    int first_bucket, buckets;
    float *gradients; /* resident memory or a slot */
    int slot;         /* -1: not transient */
};

struct bucket {
    struct comm_range range;
    int segment;
    float *sums; /* accumulator of this rank's shard, if it has one */
    struct comm_request *request, *gather;
    bool in_bf16; /* the reduction in flight is in bf16 */
};

/* The segment and micro-batch that use a slot of transient segments; -1: none. */
struct slot {
    int segment;
    int64_t micro_batch;
};

struct bucket_set {
    struct comm *comm;
    bool scatter;
    int64_t micro_batches, micro_batch, reproducible_micro_batches;
    int64_t shard_unit; /* unit of shards, in elements */
    int64_t count;
    struct segment *segments;
    int segment_count;
    struct bucket *buckets;
    int bucket_count;
    float *resident; /* gradients of the segments that are not transient */
    int64_t resident_elems;
    struct device *device; /* NULL: the host */
    struct stream *stream;
    bucket_add_fn add;
    bucket_cast_fn cast;
    void *user;
    /* send buffer, laid out as resident and then slots; NULL: no bf16 transport */
    bf16 *bf16_data;
    int64_t sums_elems;
    float *slots; /* memory of transient segments; NULL: none */
    float *sums;  /* for transient segments, or for all with reproducible sums; NULL: none */
    struct slot slot[BUCKET_LAYOUT_SLOTS];
    struct comm_range *ranges, *source_ranges; /* [ranks] */
    /* [buckets][ranks]: where a rank's shard is in its resident memory or its sums, for
     * the gather */
    int64_t *source_offsets;
    /* the bucket that is reduced next, from the last one down; -1: none */
    int next_bucket;
    /* all gradients from this element on are final */
    int64_t final_from;
};

/* ---- creation and destruction ---- */

/* Returns the device, if its memory is not host memory; else NULL. */
static struct device *get_accelerator(const struct bucket_set *set)
{
    return set->device != NULL && !device_is_host(set->device) ? set->device : NULL;
}

static status allocate_sums(struct bucket_set *set, size_t bytes)
{
    set->sums_elems = (int64_t)(bytes / sizeof *set->sums);
    if (get_accelerator(set) != NULL) {
        return device_allocate(set->device, bytes, "the sums of gradients", (void **)&set->sums);
    }
    return comm_allocate(set->comm, bytes, (void **)&set->sums);
}

static status release_sums(struct bucket_set *set)
{
    if (get_accelerator(set) == NULL) {
        return comm_free(set->comm, set->sums);
    }
    device_release(set->device, set->sums, (size_t)set->sums_elems * sizeof *set->sums);
    return STATUS_OK;
}

static status allocate_memory(struct bucket_set *set, const struct bucket_options *o)
{
    /* rank 0 has the largest shards */
    struct bucket_sizes sizes = bucket_layout_sizes(o, comm_size(o->comm), 0);
    size_t ranks = (size_t)comm_size(o->comm);
    TRY(ALLOCATE(set->segments, o->segment_count + 1, "the segments of buckets"));
    TRY(ALLOCATE(set->buckets, sizes.buckets + 1, "buckets"));
    TRY(ALLOCATE(set->ranges, ranks, "the ranges of ranks"));
    TRY(ALLOCATE(set->source_ranges, ranks, "the ranges of ranks"));
    TRY(ALLOCATE(set->source_offsets, (size_t)(sizes.buckets + 1) * ranks, "offsets of buckets"));
    set->resident_elems = sizes.resident_elems;
    int64_t windows[BUCKET_WINDOWS];
    bucket_window_bytes(o, comm_size(o->comm), windows);
    void **const memory[BUCKET_WINDOW_SUMS] = {[BUCKET_WINDOW_RESIDENT] = (void **)&set->resident,
                                               [BUCKET_WINDOW_SLOTS] = (void **)&set->slots,
                                               [BUCKET_WINDOW_BF16] = (void **)&set->bf16_data};
    for (int i = 0; i < BUCKET_WINDOW_SUMS; i++) {
        TRY(windows[i] >= 0 ? comm_allocate(o->comm, (size_t)windows[i], memory[i]) : STATUS_OK);
    }
    int64_t sums_bytes = windows[BUCKET_WINDOW_SUMS];
    return sums_bytes >= 0 ? allocate_sums(set, (size_t)sums_bytes) : STATUS_OK;
}

/* Assigns the accumulators, which are adjacent and have the same order on each rank. Their offsets
 * are also the source offsets of the gather. */
static void assign_rank_offsets(struct bucket_set *set, int rank)
{
    int64_t sums_offset = 0;
    for (int i = 0; i < set->bucket_count; i++) {
        struct bucket *b = &set->buckets[i];
        const struct segment *segment = &set->segments[b->segment];
        struct comm_range shard =
            bucket_layout_shard(b->range, set->shard_unit, comm_size(set->comm), rank);
        int64_t resident_offset = segment->gradients - set->resident + shard.first - segment->first;
        set->source_offsets[i * comm_size(set->comm) + rank] =
            segment->slot >= 0 ? sums_offset : resident_offset;
        if (rank == comm_rank(set->comm)) {
            b->sums = set->sums + sums_offset;
        }
        sums_offset += segment->slot >= 0 || set->reproducible_micro_batches > 0 ? shard.count : 0;
    }
}

static void lay_out_buckets(struct bucket_set *set, const struct bucket_options *o)
{
    int64_t largest = bucket_layout_sizes(o, 1, 0).largest, resident_offset = 0;
    int transient_count = 0;
    for (int s = 0; s < o->segment_count; s++) {
        struct segment *segment = &set->segments[set->segment_count++];
        *segment = (struct segment){
            .first = set->count,
            .count = o->segments[s].count,
            .first_bucket = set->bucket_count,
            .buckets = (int)bucket_layout_count(o->segments[s].count, o->bucket_elems),
            .slot = o->segments[s].transient ? transient_count++ % BUCKET_LAYOUT_SLOTS : -1};
        segment->gradients = segment->slot < 0 ? set->resident + resident_offset
                                               : set->slots + segment->slot * largest;
        resident_offset += segment->slot < 0 ? segment->count : 0;
        set->count += segment->count;
        for (int i = 0; i < segment->buckets; i++) {
            struct bucket *bucket = &set->buckets[set->bucket_count++];
            bucket->segment = s;
            bucket->range =
                bucket_layout_range(segment->first, segment->count, o, comm_size(set->comm), i);
        }
    }
    for (int r = 0; r < comm_size(set->comm); r++) {
        assign_rank_offsets(set, r);
    }
}

static void reset_cursor(struct bucket_set *set)
{
    set->next_bucket = set->bucket_count - 1;
    set->final_from = set->count;
}

status bucket_create(const struct bucket_options *o, struct bucket_set **out)
{
    *out = NULL;
    REQUIRE(o->bucket_elems > 0 && o->micro_batches > 0, STATUS_INTERNAL,
            "buckets of %" PRId64 " elements, %" PRId64 " micro-batches: both must be above 0",
            o->bucket_elems, o->micro_batches);
    REQUIRE(!o->bf16_transport || o->reproducible_micro_batches == 0, STATUS_INTERNAL,
            "reproducible_micro_batches and bf16_transport exclude each other");
    struct bucket_set *set = NULL;
    TRY(ALLOCATE(set, 1, "a bucket set"));
    *set = (struct bucket_set){.comm = o->comm,
                               .scatter = o->scatter,
                               .micro_batches = o->micro_batches,
                               .reproducible_micro_batches = o->reproducible_micro_batches,
                               .shard_unit = bucket_layout_shard_unit(o),
                               .device = o->device,
                               .stream = o->stream,
                               .add = o->add,
                               .cast = o->cast,
                               .user = o->user};
    status result = comm_abort_on_error(o->comm, allocate_memory(set, o));
    if (result != STATUS_OK) {
        (void)bucket_destroy(&set);
        return result;
    }
    lay_out_buckets(set, o);
    for (int i = 0; i < BUCKET_LAYOUT_SLOTS; i++) {
        set->slot[i].segment = -1;
    }
    reset_cursor(set);
    *out = set;
    return STATUS_OK;
}

status bucket_destroy(struct bucket_set **out)
{
    struct bucket_set *set = *out;
    if (set == NULL) {
        return STATUS_OK;
    }
    status result = bucket_gather_finish(set);
    for (int i = set->bucket_count - 1; i >= 0; i--) {
        KEEP_FIRST(result, comm_wait(set->comm, &set->buckets[i].request));
    }
    KEEP_FIRST(result, comm_free(set->comm, set->resident));
    KEEP_FIRST(result, comm_free(set->comm, set->slots));
    KEEP_FIRST(result, comm_free(set->comm, set->bf16_data));
    KEEP_FIRST(result, release_sums(set));
    free(set->segments);
    free(set->buckets);
    free(set->ranges);
    free(set->source_ranges);
    free(set->source_offsets);
    free(set);
    *out = NULL;
    return result;
}

/* ---- access ---- */

static const struct segment *find_segment(const struct bucket_set *set, int64_t element)
{
    int low = 0, high = set->segment_count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (set->segments[middle].first <= element) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return &set->segments[low];
}

static float *get_gradient(const struct segment *segment, int64_t element)
{
    return segment->gradients + (element - segment->first);
}

float *bucket_gradient(const struct bucket_set *set, int64_t element)
{
    return get_gradient(find_segment(set, element), element);
}

int bucket_count(const struct bucket_set *set)
{
    return set->bucket_count;
}

struct comm_range bucket_shard(const struct bucket_set *set, int bucket)
{
    return bucket_layout_shard(set->buckets[bucket].range, set->shard_unit, comm_size(set->comm),
                               comm_rank(set->comm));
}

float *bucket_reduced_gradient(const struct bucket_set *set, int bucket, int64_t element)
{
    const struct bucket *b = &set->buckets[bucket];
    const struct segment *segment = &set->segments[b->segment];
    bool separate = segment->slot >= 0 || (set->reproducible_micro_batches > 0 && set->scatter);
    return separate ? b->sums + (element - bucket_shard(set, bucket).first)
                    : get_gradient(segment, element);
}

static status zero_range(struct bucket_set *set, float *data, int64_t count)
{
    size_t bytes = (size_t)count * sizeof *data;
    if (set->device != NULL) {
        return device_zero(set->device, set->stream, data, bytes);
    }
    memset(data, 0, bytes);
    return STATUS_OK;
}

status bucket_clear(struct bucket_set *set)
{
    TRY(bucket_gather_finish(set));
    return zero_range(set, set->resident, set->resident_elems);
}

/* ---- reduction ---- */

/* Returns the shards of all ranks, relative to the start of the bucket. */
static const struct comm_range *compute_shards(struct bucket_set *set, const struct bucket *b)
{
    struct comm_range whole = {0, b->range.count};
    for (int r = 0; r < comm_size(set->comm); r++) {
        set->ranges[r] = bucket_layout_shard(whole, set->shard_unit, comm_size(set->comm), r);
    }
    return set->ranges;
}

/* Adds from[count] to to[count], or copies it in the first micro-batch of a step. */
static status accumulate_range(struct bucket_set *set, float *to, const float *from, int64_t count,
                               bool first)
{
    if (set->add != NULL) {
        return first ? device_copy(set->device, set->stream, to, from, (size_t)count * sizeof *to)
                     : set->add(set->user, to, from, count);
    }
    for (int64_t e = 0; e < count; e++) {
        to[e] = first ? from[e] : to[e] + from[e];
    }
    return STATUS_OK;
}

/* ---- bf16 transport ---- */

/* Returns the bf16 send buffer of a bucket. */
static bf16 *get_bf16_data(const struct bucket_set *set, const struct bucket *b)
{
    const struct segment *segment = &set->segments[b->segment];
    const float *data = get_gradient(segment, b->range.first);
    return set->bf16_data +
           (segment->slot >= 0 ? set->resident_elems + (data - set->slots) : data - set->resident);
}

static status cast_range(const struct bucket_set *set, float *f32_data, bf16 *bf16_data,
                         int64_t count, bool to_f32)
{
    if (set->cast != NULL) {
        struct tensor f32_tensor = tensor_view(f32_data, DTYPE_F32, 1, count);
        struct tensor bf16_tensor = tensor_view(bf16_data, DTYPE_BF16, 1, count);
        return count == 0 ? STATUS_OK
                          : set->cast(set->user, to_f32 ? f32_tensor : bf16_tensor,
                                      to_f32 ? bf16_tensor : f32_tensor);
    }
    for (int64_t i = 0; i < count && to_f32; i++) {
        f32_data[i] = bf16_to_f32(bf16_data[i]);
    }
    for (int64_t i = 0; i < count && !to_f32; i++) {
        bf16_data[i] = f32_to_bf16(f32_data[i]);
    }
    return STATUS_OK;
}

static status start_bf16_reduction(struct bucket_set *set, struct bucket *b, float *data)
{
    bf16 *bf16_data = get_bf16_data(set, b);
    TRY(cast_range(set, data, bf16_data, b->range.count, false));
    b->in_bf16 = true;
    return set->scatter
               ? comm_reduce_scatter_bf16_start(set->comm, bf16_data, compute_shards(set, b),
                                                &b->request)
               : comm_all_reduce_bf16_start(set->comm, bf16_data, b->range.count, &b->request);
}

/* Waits for the reduction of a bucket, which replaces the gradients by the sums. */
static status finish_reduction(struct bucket_set *set, int index)
{
    struct bucket *b = &set->buckets[index];
    TRY(comm_wait(set->comm, &b->request));
    if (!b->in_bf16) {
        return STATUS_OK;
    }
    b->in_bf16 = false;
    struct comm_range summed = set->scatter ? bucket_shard(set, index) : b->range;
    return cast_range(set, get_gradient(&set->segments[b->segment], summed.first),
                      get_bf16_data(set, b) + (summed.first - b->range.first), summed.count, true);
}

/* Adds the reduced gradients of the segment in a slot to its accumulators; the slot is
 * free then. */
static status accumulate_slot(struct bucket_set *set, struct slot *slot)
{
    int s = slot->segment;
    slot->segment = -1;
    for (int i = 0; s >= 0 && i < set->segments[s].buckets; i++) {
        int index = set->segments[s].first_bucket + i;
        struct bucket *b = &set->buckets[index];
        TRY(finish_reduction(set, index));
        struct comm_range shard = bucket_shard(set, index);
        const float *from = get_gradient(&set->segments[s], shard.first);
        if (set->reproducible_micro_batches == 0) {
            TRY(accumulate_range(set, b->sums, from, shard.count, slot->micro_batch == 0));
        }
    }
    return STATUS_OK;
}

/* Assigns a zeroed slot to a transient segment. */
static status claim_slot(struct bucket_set *set, int s)
{
    struct segment *segment = &set->segments[s];
    if (segment->slot < 0) {
        return STATUS_OK;
    }
    struct slot *slot = &set->slot[segment->slot];
    if (slot->segment == s && slot->micro_batch == set->micro_batch) {
        return STATUS_OK;
    }
    TRY(accumulate_slot(set, slot));
    TRY(zero_range(set, segment->gradients, segment->count));
    *slot = (struct slot){s, set->micro_batch};
    return STATUS_OK;
}

/* Assigns a slot to the transient segment that backward writes next, if all elements from `first`
 * on are final. */
static status claim_next_slot(struct bucket_set *set, int64_t first)
{
    for (int s = set->segment_count - 1; s >= 0; s--) {
        const struct segment *segment = &set->segments[s];
        if (segment->slot >= 0 && segment->first + segment->count <= first) {
            return claim_slot(set, s);
        }
    }
    return STATUS_OK;
}

/* Returns the number of ranks that have a micro-batch in this iteration; these are the
 * first ranks. */
static int count_contributors(const struct bucket_set *set)
{
    int64_t left = set->reproducible_micro_batches - set->micro_batch * comm_size(set->comm);
    return left < comm_size(set->comm) ? (int)left : comm_size(set->comm);
}

static status start_reduction(struct bucket_set *set, struct bucket *b)
{
    float *data = get_gradient(&set->segments[b->segment], b->range.first);
    if (set->reproducible_micro_batches > 0) {
        struct comm_accumulation accumulation = {b->sums, set->micro_batch == 0,
                                                 count_contributors(set)};
        return comm_accumulate_start(set->comm, &accumulation, data, compute_shards(set, b),
                                     &b->request);
    }
    if (set->bf16_data != NULL) {
        return start_bf16_reduction(set, b, data);
    }
    if (set->scatter) {
        return comm_reduce_scatter_start(set->comm, data, compute_shards(set, b), &b->request);
    }
    return comm_all_reduce_start(set->comm, data, b->range.count, &b->request);
}

static status start_next_bucket(struct bucket_set *set)
{
    struct bucket *b = &set->buckets[set->next_bucket--];
    TRY(claim_slot(set, b->segment));
    bool is_deferred =
        set->segments[b->segment].slot < 0 && set->micro_batch < set->micro_batches - 1;
    return is_deferred && set->reproducible_micro_batches == 0 ? STATUS_OK
                                                               : start_reduction(set, b);
}

status bucket_begin_micro_batch(struct bucket_set *set)
{
    TRY(bucket_gather_finish(set));
    for (int i = set->bucket_count - 1; i >= 0 && set->reproducible_micro_batches > 0; i--) {
        if (set->segments[set->buckets[i].segment].slot < 0) {
            TRY(comm_wait(set->comm, &set->buckets[i].request));
        }
    }
    return claim_next_slot(set, set->count);
}

status bucket_advance(struct bucket_set *set, int64_t first)
{
    REQUIRE(first >= 0 && first <= set->final_from, STATUS_INTERNAL,
            "gradients are final from element %" PRId64 " on, after %" PRId64
            " before: the index must not increase",
            first, set->final_from);
    set->final_from = first;
    while (set->next_bucket >= 0 && set->buckets[set->next_bucket].range.first >= first) {
        TRY(start_next_bucket(set));
    }
    TRY(claim_next_slot(set, first));
    return comm_progress(set->comm);
}

status bucket_end_micro_batch(struct bucket_set *set)
{
    status result = bucket_advance(set, 0);
    set->micro_batch++;
    reset_cursor(set);
    return result;
}

/* All-gathers the ordered sums into the resident gradients of all ranks. */
static status gather_sums(struct bucket_set *set)
{
    for (int i = 0; i < set->bucket_count; i++) {
        struct comm_range shard = bucket_shard(set, i);
        if (shard.count > 0) {
            memcpy(set->resident + shard.first, set->buckets[i].sums,
                   (size_t)shard.count * sizeof *set->resident);
        }
        TRY(bucket_gather_start(set, i, set->resident, sizeof *set->resident));
    }
    return bucket_gather_finish(set);
}

status bucket_finish(struct bucket_set *set)
{
    status result = STATUS_OK;
    while (set->micro_batch < set->micro_batches) {
        KEEP_FIRST(result, bucket_begin_micro_batch(set));
        KEEP_FIRST(result, bucket_end_micro_batch(set));
    }
    for (int i = 0; i < BUCKET_LAYOUT_SLOTS; i++) {
        KEEP_FIRST(result, accumulate_slot(set, &set->slot[i]));
    }
    for (int i = set->bucket_count - 1; i >= 0; i--) {
        KEEP_FIRST(result, finish_reduction(set, i));
    }
    if (set->reproducible_micro_batches > 0 && !set->scatter) {
        KEEP_FIRST(result, gather_sums(set));
    }
    set->micro_batch = 0;
    return result;
}

/* ---- all-gather of weights ---- */

status bucket_gather_start(struct bucket_set *set, int bucket, void *data, size_t element_bytes)
{
    struct bucket *b = &set->buckets[bucket];
    char *first = (char *)data + (size_t)b->range.first * element_bytes;
    const struct comm_range *ranges = compute_shards(set, b);
    if (get_accelerator(set) != NULL) {
        return comm_all_gather_start(set->comm, first, element_bytes, ranges, &b->gather);
    }
    for (int r = 0, ranks = comm_size(set->comm); r < ranks; r++) {
        int64_t bytes = set->source_offsets[bucket * ranks + r] * (int64_t)sizeof(float);
        set->source_ranges[r] =
            (struct comm_range){bytes / (int64_t)element_bytes, ranges[r].count};
    }
    bool separate = set->segments[b->segment].slot >= 0;
    return comm_lazy_gather_start(set->comm, first, element_bytes, ranges,
                                  separate ? set->sums : set->resident, set->source_ranges,
                                  &b->gather);
}

status bucket_gather_until(struct bucket_set *set, int64_t end)
{
    for (int i = 0; i < set->bucket_count && set->buckets[i].range.first < end; i++) {
        TRY(comm_gather_pull(set->comm, &set->buckets[i].gather));
    }
    return comm_progress(set->comm);
}

status bucket_gather_finish(struct bucket_set *set)
{
    status result = STATUS_OK;
    for (int i = 0; i < set->bucket_count; i++) {
        KEEP_FIRST(result, comm_wait(set->comm, &set->buckets[i].gather));
    }
    return result;
}

/* ---- calibration ---- */

/* Returns the largest bucket of a resident segment. */
static int find_largest_bucket(const struct bucket_set *set)
{
    int best = set->bucket_count - 1;
    for (int i = 0; i < set->bucket_count; i++) {
        const struct bucket *b = &set->buckets[i];
        bool is_resident = set->segments[b->segment].slot < 0;
        best = is_resident && b->range.count > set->buckets[best].range.count ? i : best;
    }
    return best;
}

static status reduce_one(void *user)
{
    struct bucket_set *set = user;
    int index = find_largest_bucket(set);
    TRY(start_reduction(set, &set->buckets[index]));
    return finish_reduction(set, index);
}

status bucket_calibrate(struct bucket_set *set)
{
    return comm_calibrate(set->comm, reduce_one, set);
}

struct gather_arguments {
    struct bucket_set *set;
    void *data;
    size_t element_bytes;
};

static status gather_one(void *user)
{
    struct gather_arguments *g = user;
    TRY(bucket_gather_start(g->set, find_largest_bucket(g->set), g->data, g->element_bytes));
    return bucket_gather_finish(g->set);
}

status bucket_calibrate_gather(struct bucket_set *set, void *data, size_t element_bytes)
{
    struct gather_arguments g = {set, data, element_bytes};
    TRY(comm_calibrate(set->comm, gather_one, &g));
    return bucket_clear(set);
}
