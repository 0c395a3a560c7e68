#include "comm/bucket.h"

#include <stdlib.h>
#include <string.h>

#include "comm/partition.h"

#define SHARE_ELEMENTS 32 /* shares are whole cache lines, of f32 and of bf16 */
#define SLOTS 2

struct segment {
    int64_t first, count;
    int first_bucket, buckets;
    float *memory; /* its own, or its slot */
    int slot;      /* -1: it does not pass */
};

struct bucket {
    struct range range;
    int segment;
    float *sums; /* of this rank's share, where the segment passes */
    struct comm_request *request, *gather;
    bool narrow; /* its sum is on its way as bf16 */
};

/* What was written there last: a segment, in a round; -1: nothing. */
struct slot {
    int segment;
    int64_t round;
};

struct bucket_set {
    struct comm *comm;
    bool scatter;
    int64_t rounds, round, ordered;
    int64_t unit; /* of shares */
    int64_t count;
    struct segment *segments;
    int segment_count;
    struct bucket *buckets;
    int bucket_count;
    float *memory; /* of the segments that do not pass */
    int64_t memory_elems;
    struct device *device; /* NULL: the host */
    struct stream *stream;
    bucket_add add;
    bucket_convert convert;
    void *user;
    bf16 *
        narrow; /* what travels: as memory and then the slots, but bf16; NULL: they do themselves */
    int64_t sums_elems;
    float *slots, *sums; /* NULL where nothing passes */
    struct slot slot[SLOTS];
    struct range *ranges, *places; /* [ranks] */
    int64_t *lent; /* [buckets][ranks] of each rank's share, from the first of its memory or sums */
    int next;      /* the bucket that starts next, from the last one down; -1: all have started */
    int64_t final; /* everything from this element on is final */
};

/* ---- the cut ---- */

static int64_t unit_of(const struct bucket_options *o)
{
    return o->ordered > 0 ? BUCKET_BLOCK : SHARE_ELEMENTS;
}

static struct range share_of(struct range bucket, int64_t unit, int ranks, int rank)
{
    struct range share = partition_share(bucket.count, unit, ranks, rank);
    share.first += bucket.first;
    return share;
}

static int64_t buckets_of(int64_t count, int64_t bucket_elems)
{
    return (count + bucket_elems - 1) / bucket_elems;
}

/* Buckets of a segment are as equal as whole units allow. */
static struct range bucket_of(int64_t first, int64_t count, const struct bucket_options *o,
                              int index)
{
    struct range range =
        partition_share(count, unit_of(o), (int)buckets_of(count, o->bucket_elems), index);
    range.first += first;
    return range;
}

struct sizes {
    int64_t resident, largest, buckets;
    int64_t owned, sums; /* elements of this rank's shares; of these, kept beside the gradients */
};

static struct sizes sizes_of(const struct bucket_options *o, int ranks, int rank)
{
    struct sizes sizes = {0};
    for (int s = 0; s < o->segment_count; s++) {
        const struct bucket_segment *segment = &o->segments[s];
        int buckets = (int)buckets_of(segment->count, o->bucket_elems);
        sizes.buckets += buckets;
        int64_t owned = 0;
        for (int i = 0; i < buckets; i++) {
            struct range bucket = bucket_of(0, segment->count, o, i);
            owned += share_of(bucket, unit_of(o), ranks, rank).count;
        }
        sizes.owned += owned;
        sizes.sums += segment->passing || o->ordered > 0 ? owned : 0;
        sizes.resident += segment->passing ? 0 : segment->count;
        sizes.largest =
            segment->passing && segment->count > sizes.largest ? segment->count : sizes.largest;
    }
    return sizes;
}

static bool is_narrow(const struct bucket_options *o, int ranks)
{
    return o->narrow && ranks > 1;
}

void bucket_memory_bytes(const struct bucket_options *options, int ranks, int rank, int64_t *shared,
                         int64_t *own)
{
    struct sizes sizes = sizes_of(options, ranks, rank);
    *shared = (sizes.resident + SLOTS * sizes.largest) *
              (int64_t)(sizeof(float) + (is_narrow(options, ranks) ? sizeof(bf16) : 0));
    *own = sizes.sums * (int64_t)sizeof(float);
}

int64_t bucket_owned_elements(const struct bucket_options *options, int ranks, int rank)
{
    return sizes_of(options, ranks, rank).owned;
}

/* ---- making ---- */

/* Device memory where the collectives' is; else NULL. */
static struct device *away(const struct bucket_set *set)
{
    return set->device != NULL && !device_is_host(set->device) ? set->device : NULL;
}

static status allocate_sums(struct bucket_set *set, int64_t elements)
{
    set->sums_elems = elements;
    size_t bytes = (size_t)elements * sizeof *set->sums;
    if (away(set) != NULL) {
        return device_allocate(set->device, bytes, "the sums of gradients", (void **)&set->sums);
    }
    return comm_allocate(set->comm, bytes, (void **)&set->sums);
}

static status release_sums(struct bucket_set *set)
{
    if (away(set) == NULL) {
        return comm_free(set->comm, set->sums);
    }
    device_release(set->device, set->sums, (size_t)set->sums_elems * sizeof *set->sums);
    return STATUS_OK;
}

static status allocate(struct bucket_set *set, const struct bucket_options *o)
{
    struct sizes sizes = sizes_of(o, comm_size(o->comm), 0); /* no rank's shares are larger */
    size_t ranks = (size_t)comm_size(o->comm);
    set->segments = calloc((size_t)o->segment_count + 1, sizeof *set->segments);
    set->buckets = calloc((size_t)sizes.buckets + 1, sizeof *set->buckets);
    set->ranges = calloc(ranks, sizeof *set->ranges);
    set->places = calloc(ranks, sizeof *set->places);
    set->lent = calloc(((size_t)sizes.buckets + 1) * ranks, sizeof *set->lent);
    REQUIRE(set->segments != NULL && set->buckets != NULL && set->ranges != NULL &&
                set->places != NULL && set->lent != NULL,
            STATUS_INTERNAL, "out of memory: %lld buckets", (long long)sizes.buckets);
    set->memory_elems = sizes.resident;
    TRY(comm_allocate(o->comm, (size_t)sizes.resident * sizeof(float), (void **)&set->memory));
    if (sizes.largest > 0) {
        TRY(comm_allocate(o->comm, (size_t)(SLOTS * sizes.largest) * sizeof(float),
                          (void **)&set->slots));
    }
    if (is_narrow(o, comm_size(o->comm))) {
        size_t elements = (size_t)(sizes.resident + SLOTS * sizes.largest);
        TRY(comm_allocate(o->comm, elements * sizeof(bf16), (void **)&set->narrow));
    }
    return sizes.sums > 0 ? allocate_sums(set, sizes.sums) : STATUS_OK;
}

/* Sums that are kept beside the gradients lie one after the other, on each rank its own; so does what is lent. */
static void lay_out_rank(struct bucket_set *set, int rank)
{
    int64_t beside = 0;
    for (int i = 0; i < set->bucket_count; i++) {
        struct bucket *b = &set->buckets[i];
        const struct segment *segment = &set->segments[b->segment];
        struct range share = share_of(b->range, set->unit, comm_size(set->comm), rank);
        int64_t resident = segment->memory - set->memory + share.first - segment->first;
        set->lent[i * comm_size(set->comm) + rank] = segment->slot >= 0 ? beside : resident;
        if (rank == comm_rank(set->comm)) {
            b->sums = set->sums + beside;
        }
        beside += segment->slot >= 0 || set->ordered > 0 ? share.count : 0;
    }
}

static void lay_out(struct bucket_set *set, const struct bucket_options *o)
{
    int64_t largest = sizes_of(o, 1, 0).largest, resident = 0;
    int passing = 0;
    for (int s = 0; s < o->segment_count; s++) {
        struct segment *segment = &set->segments[set->segment_count++];
        *segment =
            (struct segment){.first = set->count,
                             .count = o->segments[s].count,
                             .first_bucket = set->bucket_count,
                             .buckets = (int)buckets_of(o->segments[s].count, o->bucket_elems),
                             .slot = o->segments[s].passing ? passing++ % SLOTS : -1};
        segment->memory =
            segment->slot < 0 ? set->memory + resident : set->slots + segment->slot * largest;
        resident += segment->slot < 0 ? segment->count : 0;
        set->count += segment->count;
        for (int i = 0; i < segment->buckets; i++) {
            struct bucket *bucket = &set->buckets[set->bucket_count++];
            bucket->segment = s;
            bucket->range = bucket_of(segment->first, segment->count, o, i);
        }
    }
    for (int r = 0; r < comm_size(set->comm); r++) {
        lay_out_rank(set, r);
    }
}

static void rewind_round(struct bucket_set *set)
{
    set->next = set->bucket_count - 1;
    set->final = set->count;
}

status bucket_create(const struct bucket_options *o, struct bucket_set **out)
{
    *out = NULL;
    REQUIRE(o->bucket_elems > 0 && o->rounds > 0, STATUS_INTERNAL,
            "buckets of %lld elements, %lld rounds: both must be positive",
            (long long)o->bucket_elems, (long long)o->rounds);
    REQUIRE(!o->narrow || o->ordered == 0, STATUS_INTERNAL, "ordered sums are not narrow");
    struct bucket_set *set = calloc(1, sizeof *set);
    REQUIRE(set != NULL, STATUS_INTERNAL, "out of memory: a bucket set");
    *set = (struct bucket_set){.comm = o->comm,
                               .scatter = o->scatter,
                               .rounds = o->rounds,
                               .ordered = o->ordered,
                               .unit = unit_of(o),
                               .device = o->device,
                               .stream = o->stream,
                               .add = o->add,
                               .convert = o->convert,
                               .user = o->user};
    status result = allocate(set, o);
    if (result != STATUS_OK) {
        (void)bucket_destroy(&set);
        return result;
    }
    lay_out(set, o);
    for (int i = 0; i < SLOTS; i++) {
        set->slot[i].segment = -1;
    }
    rewind_round(set);
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
    KEEP_FIRST(result, comm_free(set->comm, set->memory));
    KEEP_FIRST(result, comm_free(set->comm, set->slots));
    KEEP_FIRST(result, comm_free(set->comm, set->narrow));
    KEEP_FIRST(result, release_sums(set));
    free(set->segments);
    free(set->buckets);
    free(set->ranges);
    free(set->places);
    free(set->lent);
    free(set);
    *out = NULL;
    return result;
}

/* ---- places ---- */

static const struct segment *segment_of(const struct bucket_set *set, int64_t element)
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

static float *place_in(const struct segment *segment, int64_t element)
{
    return segment->memory + (element - segment->first);
}

float *bucket_place(const struct bucket_set *set, int64_t element)
{
    return place_in(segment_of(set, element), element);
}

int bucket_count(const struct bucket_set *set)
{
    return set->bucket_count;
}

struct range bucket_share(const struct bucket_set *set, int bucket)
{
    return share_of(set->buckets[bucket].range, set->unit, comm_size(set->comm),
                    comm_rank(set->comm));
}

float *bucket_sum(const struct bucket_set *set, int bucket, int64_t element)
{
    const struct bucket *b = &set->buckets[bucket];
    const struct segment *segment = &set->segments[b->segment];
    bool beside = segment->slot >= 0 || (set->ordered > 0 && set->scatter);
    return beside ? b->sums + (element - bucket_share(set, bucket).first)
                  : place_in(segment, element);
}

static status clear(struct bucket_set *set, float *data, int64_t count)
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
    return clear(set, set->memory, set->memory_elems);
}

/* ---- the sums ---- */

/* The shares of all ranks, in the bucket's own elements. */
static const struct range *shares(struct bucket_set *set, const struct bucket *b)
{
    struct range whole = {0, b->range.count};
    for (int r = 0; r < comm_size(set->comm); r++) {
        set->ranges[r] = share_of(whole, set->unit, comm_size(set->comm), r);
    }
    return set->ranges;
}

/* to[count] += from[count], or = in a step's first round. */
static status join(struct bucket_set *set, float *to, const float *from, int64_t count, bool first)
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

/* ---- narrow ---- */

/* Where what travels of a bucket lies. */
static bf16 *narrow_of(const struct bucket_set *set, const struct bucket *b)
{
    const struct segment *segment = &set->segments[b->segment];
    const float *data = place_in(segment, b->range.first);
    return set->narrow +
           (segment->slot >= 0 ? set->memory_elems + (data - set->slots) : data - set->memory);
}

static status convert_range(const struct bucket_set *set, float *wide, bf16 *narrow, int64_t count,
                            bool back)
{
    if (set->convert != NULL) {
        struct tensor f32 = tensor_view(wide, DTYPE_F32, 1, count);
        struct tensor half = tensor_view(narrow, DTYPE_BF16, 1, count);
        return count == 0 ? STATUS_OK
                          : set->convert(set->user, back ? f32 : half, back ? half : f32);
    }
    for (int64_t i = 0; i < count && back; i++) {
        wide[i] = bf16_to_f32(narrow[i]);
    }
    for (int64_t i = 0; i < count && !back; i++) {
        narrow[i] = f32_to_bf16(wide[i]);
    }
    return STATUS_OK;
}

static status start_narrow(struct bucket_set *set, struct bucket *b, float *data)
{
    bf16 *narrow = narrow_of(set, b);
    TRY(convert_range(set, data, narrow, b->range.count, false));
    b->narrow = true;
    return set->scatter
               ? comm_reduce_scatter_bf16_start(set->comm, narrow, shares(set, b), &b->request)
               : comm_all_reduce_bf16_start(set->comm, narrow, b->range.count, &b->request);
}

/* The end of a bucket's sum: it is where the gradients are. */
static status finish_sum(struct bucket_set *set, int index)
{
    struct bucket *b = &set->buckets[index];
    TRY(comm_wait(set->comm, &b->request));
    if (!b->narrow) {
        return STATUS_OK;
    }
    b->narrow = false;
    struct range summed = set->scatter ? bucket_share(set, index) : b->range;
    return convert_range(set, place_in(&set->segments[b->segment], summed.first),
                         narrow_of(set, b) + (summed.first - b->range.first), summed.count, true);
}

/* The sums of a slot's segment join those of the rounds before; the slot is free then. */
static status collect(struct bucket_set *set, struct slot *slot)
{
    int s = slot->segment;
    slot->segment = -1;
    for (int i = 0; s >= 0 && i < set->segments[s].buckets; i++) {
        int index = set->segments[s].first_bucket + i;
        struct bucket *b = &set->buckets[index];
        TRY(finish_sum(set, index));
        struct range share = bucket_share(set, index);
        const float *from = place_in(&set->segments[s], share.first);
        if (set->ordered == 0) {
            TRY(join(set, b->sums, from, share.count, slot->round == 0));
        }
    }
    return STATUS_OK;
}

/* A passing segment gets its slot, zero. */
static status prepare(struct bucket_set *set, int s)
{
    struct segment *segment = &set->segments[s];
    if (segment->slot < 0) {
        return STATUS_OK;
    }
    struct slot *slot = &set->slot[segment->slot];
    if (slot->segment == s && slot->round == set->round) {
        return STATUS_OK;
    }
    TRY(collect(set, slot));
    TRY(clear(set, segment->memory, segment->count));
    *slot = (struct slot){s, set->round};
    return STATUS_OK;
}

/* The segment that is written next, once everything from `first` on is final. */
static status prepare_below(struct bucket_set *set, int64_t first)
{
    for (int s = set->segment_count - 1; s >= 0; s--) {
        const struct segment *segment = &set->segments[s];
        if (segment->slot >= 0 && segment->first + segment->count <= first) {
            return prepare(set, s);
        }
    }
    return STATUS_OK;
}

/* Ranks whose micro-batch of this round exists: the first so many. */
static int addends(const struct bucket_set *set)
{
    int64_t left = set->ordered - set->round * comm_size(set->comm);
    return left < comm_size(set->comm) ? (int)left : comm_size(set->comm);
}

static status start_sum(struct bucket_set *set, struct bucket *b)
{
    float *data = place_in(&set->segments[b->segment], b->range.first);
    if (set->ordered > 0) {
        struct comm_addition addition = {b->sums, set->round == 0, addends(set)};
        return comm_add_start(set->comm, &addition, data, shares(set, b), &b->request);
    }
    if (set->narrow != NULL) {
        return start_narrow(set, b, data);
    }
    if (set->scatter) {
        return comm_reduce_scatter_start(set->comm, data, shares(set, b), &b->request);
    }
    return comm_all_reduce_start(set->comm, data, b->range.count, &b->request);
}

static status start_next(struct bucket_set *set)
{
    struct bucket *b = &set->buckets[set->next--];
    TRY(prepare(set, b->segment));
    bool waits = set->segments[b->segment].slot < 0 && set->round < set->rounds - 1;
    return waits && set->ordered == 0 ? STATUS_OK : start_sum(set, b);
}

status bucket_begin_round(struct bucket_set *set)
{
    TRY(bucket_gather_finish(set));
    for (int i = set->bucket_count - 1; i >= 0 && set->ordered > 0; i--) {
        if (set->segments[set->buckets[i].segment].slot < 0) {
            TRY(comm_wait(set->comm, &set->buckets[i].request));
        }
    }
    return prepare_below(set, set->count);
}

status bucket_advance(struct bucket_set *set, int64_t first)
{
    REQUIRE(first >= 0 && first <= set->final, STATUS_INTERNAL,
            "gradients became final from element %lld on after %lld: the number must fall",
            (long long)first, (long long)set->final);
    set->final = first;
    while (set->next >= 0 && set->buckets[set->next].range.first >= first) {
        TRY(start_next(set));
    }
    TRY(prepare_below(set, first));
    return comm_progress(set->comm);
}

status bucket_end_round(struct bucket_set *set)
{
    status result = bucket_advance(set, 0);
    set->round++;
    rewind_round(set);
    return result;
}

/* All ranks get all ordered sums, where the gradients were. */
static status spread_sums(struct bucket_set *set)
{
    for (int i = 0; i < set->bucket_count; i++) {
        struct range share = bucket_share(set, i);
        if (share.count > 0) {
            memcpy(set->memory + share.first, set->buckets[i].sums,
                   (size_t)share.count * sizeof *set->memory);
        }
        TRY(bucket_gather_start(set, i, set->memory, sizeof *set->memory));
    }
    return bucket_gather_finish(set);
}

status bucket_finish(struct bucket_set *set)
{
    status result = STATUS_OK;
    while (set->round < set->rounds) {
        KEEP_FIRST(result, bucket_begin_round(set));
        KEEP_FIRST(result, bucket_end_round(set));
    }
    for (int i = 0; i < SLOTS; i++) {
        KEEP_FIRST(result, collect(set, &set->slot[i]));
    }
    for (int i = set->bucket_count - 1; i >= 0; i--) {
        KEEP_FIRST(result, finish_sum(set, i));
    }
    if (set->ordered > 0 && !set->scatter) {
        KEEP_FIRST(result, spread_sums(set));
    }
    set->round = 0;
    return result;
}

/* ---- the way back ---- */

status bucket_gather_start(struct bucket_set *set, int bucket, void *data, size_t element_bytes)
{
    struct bucket *b = &set->buckets[bucket];
    char *first = (char *)data + (size_t)b->range.first * element_bytes;
    const struct range *ranges = shares(set, b);
    if (away(set) != NULL) {
        return comm_all_gather_start(set->comm, first, element_bytes, ranges, &b->gather);
    }
    for (int r = 0, ranks = comm_size(set->comm); r < ranks; r++) {
        int64_t bytes = set->lent[bucket * ranks + r] * (int64_t)sizeof(float);
        set->places[r] = (struct range){bytes / (int64_t)element_bytes, ranges[r].count};
    }
    bool beside = set->segments[b->segment].slot >= 0;
    return comm_lend_start(set->comm, first, element_bytes, ranges,
                           beside ? set->sums : set->memory, set->places, &b->gather);
}

status bucket_gather_until(struct bucket_set *set, int64_t end)
{
    for (int i = 0; i < set->bucket_count && set->buckets[i].range.first < end; i++) {
        TRY(comm_fetch(set->comm, &set->buckets[i].gather));
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

/* ---- rehearsals ---- */

/* The largest bucket with memory of its own. */
static int widest(const struct bucket_set *set)
{
    int best = set->bucket_count - 1;
    for (int i = 0; i < set->bucket_count; i++) {
        const struct bucket *b = &set->buckets[i];
        bool stays = set->segments[b->segment].slot < 0;
        best = stays && b->range.count > set->buckets[best].range.count ? i : best;
    }
    return best;
}

static status sum_one(void *user)
{
    struct bucket_set *set = user;
    int index = widest(set);
    TRY(start_sum(set, &set->buckets[index]));
    return finish_sum(set, index);
}

status bucket_rehearse(struct bucket_set *set)
{
    return comm_rehearse(set->comm, sum_one, set);
}

struct gathered {
    struct bucket_set *set;
    void *data;
    size_t element_bytes;
};

static status gather_one(void *user)
{
    struct gathered *g = user;
    TRY(bucket_gather_start(g->set, widest(g->set), g->data, g->element_bytes));
    return bucket_gather_finish(g->set);
}

status bucket_rehearse_gather(struct bucket_set *set, void *data, size_t element_bytes)
{
    struct gathered g = {set, data, element_bytes};
    TRY(comm_rehearse(set->comm, gather_one, &g));
    return bucket_clear(set);
}
