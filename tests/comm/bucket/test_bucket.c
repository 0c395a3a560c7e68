/* Tests gradient buckets: all-reduce and reduce-scatter, transient segments, ranks with fewer
 * micro-batches than others, reproducible sums, bf16 transport, and the all-gather of shards.
 * Values are small integers, so that sums are exact in any order. In the tests of reproducible sums
 * they are not integers, so that the order matters. */
#include "base/number.h"
#include "comm/bucket/bucket.h"
#include "tests/check.h"
#include "tests/comm/device/nccl_mock.h"
#include "tests/comm/world.h"

static struct comm *world;
static int rank, ranks;

enum { SEGMENTS = 7, STEPS = 3 };
static const int64_t counts[SEGMENTS] = {37, 1000, 333, 1, 2048, 640, 77};
static const bool is_transient[SEGMENTS] = {false, true, true, true, true, true, false};

static int64_t count_elements(void)
{
    int64_t sum = 0;
    for (int s = 0; s < SEGMENTS; s++) {
        sum += counts[s];
    }
    return sum;
}

/* Options of the buckets under test (bucket.h). */
static int64_t reproducible_micro_batches;
static bool bf16_transport;

static float get_value(int source, int64_t element, int64_t micro_batch, int step)
{
    float integer =
        (float)((element * 7 + micro_batch * 131 + step * 17 + source * 1009) % 1001 - 500);
    return reproducible_micro_batches > 0 ? 0.1F * integer : integer;
}

/* Returns the number of micro-batches of a rank. Odd ranks have one less, as for a global batch of
 * an odd size. For reproducible sums the last ranks have one less. */
static int64_t count_micro_batches(int source, int64_t micro_batches)
{
    if (reproducible_micro_batches > 0) {
        return number_divide_up(reproducible_micro_batches - source, ranks);
    }
    return micro_batches > 1 ? micro_batches - source % 2 : micro_batches;
}

static float compute_sum(int64_t element, int64_t micro_batches, int step)
{
    float sum = reproducible_micro_batches > 0 ? get_value(0, element, 0, step) : 0;
    for (int64_t i = 1; i < reproducible_micro_batches; i++) {
        sum += get_value((int)(i % ranks), element, i / ranks, step);
    }
    if (reproducible_micro_batches > 0) {
        return sum;
    }
    for (int r = 0; r < ranks; r++) {
        for (int64_t i = 0; i < count_micro_batches(r, micro_batches); i++) {
            sum += get_value(r, element, i, step);
        }
    }
    return sum;
}

/* Writes gradients as the backward pass of a model does, from the last segment to the first. Each
 * segment is reported as final after it is written. */
static void run_backward(struct bucket_set *set, int64_t micro_batch, int step)
{
    CHECK_OK(bucket_begin_micro_batch(set));
    int64_t first = count_elements();
    for (int s = SEGMENTS - 1; s >= 0; s--) {
        first -= counts[s];
        float *gradients = bucket_gradient(set, first);
        for (int64_t e = 0; e < counts[s]; e++) {
            float value = get_value(rank, first + e, micro_batch, step);
            gradients[e] = reproducible_micro_batches > 0 ? value : gradients[e] + value;
        }
        if (s % 2 == rank % 2) { /* ranks may advance in different steps */
            CHECK_OK(bucket_advance(set, first + counts[s] / 2));
        }
        CHECK_OK(bucket_advance(set, first));
    }
    CHECK_OK(bucket_end_micro_batch(set));
}

/* Compares a sum. The tolerance of bf16 follows from two facts: values are at most 500 per rank and
 * micro-batch, and each rank and each sum rounds to 8 bits. */
static bool is_near(float sum, float expected, int64_t micro_batches)
{
    double max_sum = 500 * (double)(micro_batches * ranks);
    return bf16_transport ? fabs((double)sum - (double)expected) <= max_sum / 128 : sum == expected;
}

/* Checks that all ranks have the same bits, rounded or not. */
static void check_equal_on_all_ranks(struct bucket_set *set)
{
    size_t bytes = (size_t)count_elements() * sizeof(float);
    float *own = malloc(bytes), *first = malloc(bytes);
    CHECK(own != NULL && first != NULL);
    for (int64_t e = 0; e < count_elements(); e++) {
        first[e] = own[e] = *bucket_gradient(set, e);
    }
    CHECK_OK(comm_broadcast(world, first, bytes, 0));
    CHECK(memcmp(first, own, bytes) == 0);
    free(own);
    free(first);
}

static void check_sums(struct bucket_set *set, bool scatter, int64_t micro_batches, int step)
{
    double owned = 0;
    for (int b = 0; b < bucket_count(set); b++) {
        struct comm_range shard = bucket_shard(set, b);
        const float *sums = bucket_reduced_gradient(set, b, shard.first);
        for (int64_t e = 0; e < shard.count; e++) {
            CHECK(
                is_near(sums[e], compute_sum(shard.first + e, micro_batches, step), micro_batches));
        }
        owned += (double)shard.count;
    }
    CHECK_OK(comm_sum_doubles(world, &owned, 1));
    CHECK_EQUAL(owned, count_elements());
    for (int64_t e = 0; e < count_elements() && !scatter; e++) {
        CHECK(
            is_near(*bucket_gradient(set, e), compute_sum(e, micro_batches, step), micro_batches));
    }
    if (!scatter) {
        check_equal_on_all_ranks(set);
    }
}

/* Checks that all ranks receive the values that the owners write. */
static void check_gather(struct bucket_set *set, unsigned short *data, int step)
{
    memset(data, 0xff, (size_t)count_elements() * sizeof *data);
    for (int b = 0; b < bucket_count(set); b++) {
        struct comm_range shard = bucket_shard(set, b);
        for (int64_t e = shard.first; e < shard.first + shard.count; e++) {
            data[e] = (unsigned short)(e * 3 + step);
        }
        CHECK_OK(bucket_gather_start(set, b, data, sizeof *data));
    }
    CHECK_OK(bucket_gather_finish(set));
    for (int64_t e = 0; e < count_elements(); e++) {
        CHECK_EQUAL(data[e], (unsigned short)(e * 3 + step));
    }
    CHECK_OK(comm_barrier(world)); /* no rank overwrites data that others still read */
}

static void test_buckets(int64_t bucket_elems, bool scatter, bool transient, int64_t micro_batches)
{
    struct bucket_segment segments[SEGMENTS];
    for (int s = 0; s < SEGMENTS; s++) {
        segments[s] = (struct bucket_segment){counts[s], transient && is_transient[s]};
    }
    struct bucket_options options = {.comm = world,
                                     .segments = segments,
                                     .segment_count = SEGMENTS,
                                     .bucket_elems = bucket_elems,
                                     .scatter = scatter,
                                     .micro_batches = micro_batches,
                                     .reproducible_micro_batches = reproducible_micro_batches,
                                     .bf16_transport = bf16_transport};
    struct bucket_set *set = NULL;
    unsigned short *shared = NULL, *own = malloc((size_t)count_elements() * sizeof *own);
    CHECK(own != NULL);
    CHECK_OK(comm_allocate(world, (size_t)count_elements() * sizeof *shared, (void **)&shared));
    CHECK_OK(bucket_create(&options, &set));
    for (int step = 0; step < STEPS; step++) {
        for (int64_t micro_batch = 0; micro_batch < count_micro_batches(rank, micro_batches);
             micro_batch++) {
            run_backward(set, micro_batch, step);
        }
        CHECK_OK(bucket_finish(set));
        check_sums(set, scatter, micro_batches, step);
        check_gather(set, shared, step);
        check_gather(set, own, step);
        CHECK_OK(bucket_clear(set));
    }
    CHECK_OK(bucket_advance(set, 50));
    CHECK_FAILS(bucket_advance(set, 51), STATUS_INTERNAL, "must not increase");
    CHECK_OK(bucket_finish(set));
    CHECK_OK(bucket_destroy(&set));
    CHECK_OK(comm_free(world, shared));
    free(own);
}

/* NCCL reduces and gathers a bucket with one collective of all ranks. Only the rest of a segment,
 * less than 32 elements per rank, is a collective of one rank. */
static void test_rooted(int64_t count, int64_t bucket_elems)
{
    if (strcmp(comm_kind(world), "nccl") != 0) {
        return;
    }
    struct bucket_segment segment = {count, false};
    struct bucket_options options = {.comm = world,
                                     .segments = &segment,
                                     .segment_count = 1,
                                     .bucket_elems = bucket_elems,
                                     .scatter = true,
                                     .micro_batches = 1};
    struct bucket_set *set = NULL;
    unsigned short *data = calloc((size_t)count, sizeof *data);
    CHECK(data != NULL);
    CHECK_OK(bucket_create(&options, &set));
    const struct nccl_mock_counts *found = nccl_mock_get_counts();
    int rooted = found->rooted;
    int64_t rooted_bytes = found->rooted_bytes;
    CHECK_OK(bucket_begin_micro_batch(set));
    CHECK_OK(bucket_end_micro_batch(set));
    CHECK_OK(bucket_finish(set));
    for (int b = 0; b < bucket_count(set); b++) {
        CHECK_OK(bucket_gather_start(set, b, data, sizeof *data));
    }
    CHECK_OK(bucket_gather_finish(set));
    int64_t rest = count % (int64_t)(32 * ranks);
    CHECK_EQUAL(found->rooted - rooted, ranks > 1 && rest > 0 ? 2 : 0);
    CHECK_EQUAL(found->rooted_bytes - rooted_bytes,
                ranks > 1 ? rest * (int64_t)(sizeof(float) + sizeof *data) : 0);
    CHECK_OK(bucket_destroy(&set));
    free(data);
}

/* Transient segments share two slots; bucket_memory_bytes computes the sizes in advance. */
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
    options.bf16_transport = true;
    bucket_memory_bytes(&options, 3, 0, &shared, &own);
    CHECK_EQUAL(shared, (1000 + 2 * 900) * 6);
    bucket_memory_bytes(&options, 1, 0, &shared, &own);
    CHECK_EQUAL(shared, (1000 + 2 * 900) * 4); /* a single rank sends nothing */
    options.bf16_transport = false;
    options.reproducible_micro_batches = 7;
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
    static const int64_t bucket_sizes[] = {1 << 20, 100, 64, 333};
    CHECK_OK(test_world_create(&argc, &argv, 0, &world));
    rank = comm_rank(world);
    ranks = comm_size(world);
    for (int i = 0; i < 4; i++) {
        for (int64_t micro_batches = 1; micro_batches <= 3; micro_batches += 2) {
            test_buckets(bucket_sizes[i], false, false, micro_batches);
            test_buckets(bucket_sizes[i], true, false, micro_batches);
            test_buckets(bucket_sizes[i], true, true, micro_batches);
            if (strcmp(comm_kind(world), "self") != 0 && strcmp(comm_kind(world), "mpi") != 0) {
                continue; /* reproducible sums need host memory */
            }
            reproducible_micro_batches = micro_batches * ranks - (micro_batches > 1);
            test_buckets(bucket_sizes[i], false, false, micro_batches);
            test_buckets(bucket_sizes[i], true, false, micro_batches);
            test_buckets(bucket_sizes[i], true, true, micro_batches);
            reproducible_micro_batches = 0;
        }
    }
    bf16_transport = true;
    test_buckets(333, false, false, 3);
    test_buckets(333, true, true, 3);
    bf16_transport = false;
    test_rooted((int64_t)96 * ranks, 1 << 20);
    test_rooted((int64_t)96 * ranks, (int64_t)32 * ranks + 5);
    test_rooted(10007, 1 << 20);
    test_rooted(10007, 1000);
    test_rooted(31, 1000);
    test_memory();
    CHECK_OK(comm_destroy(&world));
    return 0;
}
