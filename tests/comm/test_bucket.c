/* Gradient buckets in all their ways: sums for all ranks or for the owner alone, segments that pass through
 * two slots, several rounds of which some ranks have fewer, sums in the order of the micro-batches, and the
 * gathering of what owners made. Values are small whole numbers, so that sums are exact in any order; ordered
 * ones are not. */
#include "comm/bucket.h"
#include "tests/check.h"
#include "tests/comm/world.h"

static struct comm *world;
static int rank, ranks;

enum { SEGMENTS = 7, STEPS = 3 };
static const int64_t counts[SEGMENTS] = {37, 1000, 333, 1, 2048, 640, 77};
static const bool passes[SEGMENTS] = {false, true, true, true, true, true, false};

static int64_t elements(void)
{
    int64_t sum = 0;
    for (int s = 0; s < SEGMENTS; s++) {
        sum += counts[s];
    }
    return sum;
}

/* Micro-batches of a step over all ranks; 0: sums are not ordered. */
static int64_t ordered;
static bool narrow; /* sums are of bf16 */

static float value(int from, int64_t element, int64_t round, int step)
{
    float whole = (float)((element * 7 + round * 131 + step * 17 + from * 1009) % 1001 - 500);
    return ordered > 0 ? 0.1F * whole : whole;
}

/* Odd ranks have one micro-batch less, as where a global batch does not divide; ordered, the last one has. */
static int64_t rounds_of(int from, int64_t rounds)
{
    if (ordered > 0) {
        return (ordered - from + ranks - 1) / ranks;
    }
    return rounds > 1 ? rounds - from % 2 : rounds;
}

static float sum_at(int64_t element, int64_t rounds, int step)
{
    float sum = ordered > 0 ? value(0, element, 0, step) : 0;
    for (int64_t i = 1; i < ordered; i++) {
        sum += value((int)(i % ranks), element, i / ranks, step);
    }
    if (ordered > 0) {
        return sum;
    }
    for (int r = 0; r < ranks; r++) {
        for (int64_t i = 0; i < rounds_of(r, rounds); i++) {
            sum += value(r, element, i, step);
        }
    }
    return sum;
}

/* As a model's backward does: segments from the end downwards, each told when it is final. */
static void backward(struct bucket_set *set, int64_t round, int step)
{
    CHECK_OK(bucket_begin_round(set));
    int64_t first = elements();
    for (int s = SEGMENTS - 1; s >= 0; s--) {
        first -= counts[s];
        float *gradients = bucket_place(set, first);
        for (int64_t e = 0; e < counts[s]; e++) {
            float one = value(rank, first + e, round, step);
            gradients[e] = ordered > 0 ? one : gradients[e] + one;
        }
        if (s % 2 == rank % 2) { /* ranks may advance by different strides */
            CHECK_OK(bucket_advance(set, first + counts[s] / 2));
        }
        CHECK_OK(bucket_advance(set, first));
    }
    CHECK_OK(bucket_end_round(set));
}

/* Of at most 500 for each rank and round, rounded to 8 bits by each rank, and with each sum again. */
static bool is_near(float sum, float wanted, int64_t rounds)
{
    double most = 500 * (double)(rounds * ranks);
    return narrow ? fabs((double)sum - (double)wanted) <= most / 128 : sum == wanted;
}

/* Rounded or not, all ranks have the same bits. */
static void check_equal(struct bucket_set *set)
{
    size_t bytes = (size_t)elements() * sizeof(float);
    float *mine = malloc(bytes), *first = malloc(bytes);
    CHECK(mine != NULL && first != NULL);
    for (int64_t e = 0; e < elements(); e++) {
        first[e] = mine[e] = *bucket_place(set, e);
    }
    CHECK_OK(comm_broadcast(world, first, bytes, 0));
    CHECK(memcmp(first, mine, bytes) == 0);
    free(mine);
    free(first);
}

static void check_sums(struct bucket_set *set, bool scatter, int64_t rounds, int step)
{
    double owned = 0;
    for (int b = 0; b < bucket_count(set); b++) {
        struct range share = bucket_share(set, b);
        const float *sums = bucket_sum(set, b, share.first);
        for (int64_t e = 0; e < share.count; e++) {
            CHECK(is_near(sums[e], sum_at(share.first + e, rounds, step), rounds));
        }
        owned += (double)share.count;
    }
    CHECK_OK(comm_sum_doubles(world, &owned, 1));
    CHECK_EQUAL(owned, elements());
    for (int64_t e = 0; e < elements() && !scatter; e++) {
        CHECK(is_near(*bucket_place(set, e), sum_at(e, rounds, step), rounds));
    }
    if (!scatter) {
        check_equal(set);
    }
}

/* What owners write reaches all. */
static void check_gather(struct bucket_set *set, unsigned short *data, int step)
{
    memset(data, 0xff, (size_t)elements() * sizeof *data);
    for (int b = 0; b < bucket_count(set); b++) {
        struct range share = bucket_share(set, b);
        for (int64_t e = share.first; e < share.first + share.count; e++) {
            data[e] = (unsigned short)(e * 3 + step);
        }
        CHECK_OK(bucket_gather_start(set, b, data, sizeof *data));
    }
    CHECK_OK(bucket_gather_finish(set));
    for (int64_t e = 0; e < elements(); e++) {
        CHECK_EQUAL(data[e], (unsigned short)(e * 3 + step));
    }
    CHECK_OK(comm_barrier(world)); /* nobody spoils the memory that others still read */
}

static void test_buckets(int64_t bucket_elems, bool scatter, bool passing, int64_t rounds)
{
    struct bucket_segment segments[SEGMENTS];
    for (int s = 0; s < SEGMENTS; s++) {
        segments[s] = (struct bucket_segment){counts[s], passing && passes[s]};
    }
    struct bucket_options options = {.comm = world,
                                     .segments = segments,
                                     .segment_count = SEGMENTS,
                                     .bucket_elems = bucket_elems,
                                     .scatter = scatter,
                                     .rounds = rounds,
                                     .ordered = ordered,
                                     .narrow = narrow};
    struct bucket_set *set = NULL;
    unsigned short *shared = NULL, *own = malloc((size_t)elements() * sizeof *own);
    CHECK(own != NULL);
    CHECK_OK(comm_allocate(world, (size_t)elements() * sizeof *shared, (void **)&shared));
    CHECK_OK(bucket_create(&options, &set));
    for (int step = 0; step < STEPS; step++) {
        for (int64_t round = 0; round < rounds_of(rank, rounds); round++) {
            backward(set, round, step);
        }
        CHECK_OK(bucket_finish(set));
        check_sums(set, scatter, rounds, step);
        check_gather(set, shared, step);
        check_gather(set, own, step);
        CHECK_OK(bucket_clear(set));
    }
    CHECK_OK(bucket_advance(set, 50));
    CHECK_FAILS(bucket_advance(set, 51), STATUS_INTERNAL, "must fall");
    CHECK_OK(bucket_finish(set));
    CHECK_OK(bucket_destroy(&set));
    CHECK_OK(comm_free(world, shared));
    free(own);
}

/* Passing segments share two slots; a plan knows the sizes beforehand. */
static void test_memory(void)
{
    const struct bucket_segment segments[] = {{1000, false}, {600, true}, {600, true}, {900, true}};
    struct bucket_options options = {
        .segments = segments, .segment_count = 4, .bucket_elems = 4096};
    int64_t shared = 0, own = 0, all = 0;
    for (int r = 0; r < 3; r++) {
        bucket_memory_bytes(&options, 3, r, &shared, &own);
        CHECK_EQUAL(shared, (1000 + 2 * 900) * 4);
        all += own;
    }
    CHECK_EQUAL(all, (600 + 600 + 900) * 4);
    options.narrow = true;
    bucket_memory_bytes(&options, 3, 0, &shared, &own);
    CHECK_EQUAL(shared, (1000 + 2 * 900) * 6);
    bucket_memory_bytes(&options, 1, 0, &shared, &own);
    CHECK_EQUAL(shared, (1000 + 2 * 900) * 4); /* alone nothing travels */
    options.narrow = false;
    options.ordered = 7;
    all = 0;
    for (int r = 0; r < 3; r++) {
        bucket_memory_bytes(&options, 3, r, &shared, &own);
        CHECK_EQUAL(shared, (1000 + 2 * 900) * 4);
        all += own;
    }
    CHECK_EQUAL(all, (1000 + 600 + 600 + 900) * 4);
}

int main(int argc, char **argv)
{
    static const int64_t widths[] = {1 << 20, 100, 64, 333};
    CHECK_OK(test_world_create(&argc, &argv, 0, &world));
    rank = comm_rank(world);
    ranks = comm_size(world);
    for (int w = 0; w < 4; w++) {
        for (int64_t rounds = 1; rounds <= 3; rounds += 2) {
            test_buckets(widths[w], false, false, rounds);
            test_buckets(widths[w], true, false, rounds);
            test_buckets(widths[w], true, true, rounds);
            if (strcmp(comm_kind(world), "self") != 0 && strcmp(comm_kind(world), "mpi") != 0) {
                continue; /* ordered sums are made in host memory alone */
            }
            ordered = rounds * ranks - (rounds > 1);
            test_buckets(widths[w], false, false, rounds);
            test_buckets(widths[w], true, false, rounds);
            test_buckets(widths[w], true, true, rounds);
            ordered = 0;
        }
    }
    narrow = true;
    test_buckets(333, false, false, 3);
    test_buckets(333, true, true, 3);
    narrow = false;
    test_memory();
    CHECK_OK(comm_destroy(&world));
    return 0;
}
