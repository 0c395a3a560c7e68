/* Tests every collective against sums that are computed here. Without a launcher the world is one
 * rank. With a launcher it is 2, 3 or 4 ranks, also on several simulated nodes (BIREME_COMM_NODES).
 *
 * Inputs are functions of (rank, index), so that each rank can compute the inputs of all ranks. */
#include <stdint.h>
#include <unistd.h>

#include "base/memory.h"
#include "comm/comm.h"
#include "comm/mesh.h"
#include "comm/partition.h"
#include "tests/check.h"
#include "tests/comm/world.h"

static const int64_t sizes[] = {0, 1, 7, 16, 1009, 65536 + 3, 300007};
#define SIZES COUNT(sizes)
#define LARGEST 300007

static struct comm *world;

/* Returns a value of varying magnitude, so that sums in another order have other bits. */
static float get_value(int rank, int64_t index, int seed)
{
    uint64_t x = ((uint64_t)rank << 48) ^ ((uint64_t)seed << 40) ^ (uint64_t)index;
    x = (x ^ (x >> 31)) * 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 29)) * 0xbf58476d1ce4e5b9u;
    float mantissa = (float)((int64_t)(x >> 40) - (1 << 23)) / (float)(1 << 23);
    return ldexpf(mantissa, (int)(x & 15) - 8);
}

static void fill_data(float *data, int64_t count, int rank, int seed)
{
    for (int64_t i = 0; i < count; i++) {
        data[i] = get_value(rank, i, seed);
    }
}

static float *allocate_zeroed(struct comm *comm, int64_t count)
{
    void *memory = NULL;
    CHECK_OK(comm_allocate(comm, (size_t)count * sizeof(float), &memory));
    CHECK((uintptr_t)memory % 64 == 0);
    for (int64_t i = 0; i < count; i += 997) {
        CHECK(((float *)memory)[i] == 0);
    }
    return memory;
}

/* Returns whether large sums are added in rank order: only on one node. */
static bool is_rank_order(void)
{
    return getenv("BIREME_COMM_NODES") == NULL;
}

static void check_sum(const float *data, int64_t first, int64_t count, int ranks, int seed)
{
    for (int64_t i = first; i < first + count; i++) {
        float sum = get_value(0, i, seed);
        double exact = get_value(0, i, seed);
        double size = fabs(exact);
        for (int r = 1; r < ranks; r++) {
            sum += get_value(r, i, seed);
            exact += get_value(r, i, seed);
            size += fabs(get_value(r, i, seed));
        }
        CHECK(!is_rank_order() || memcmp(&sum, &data[i], sizeof sum) == 0);
        CHECK_NEAR(data[i], exact, 4e-7 * size);
    }
}

static void check_equal_on_all_ranks(const void *data, size_t bytes)
{
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < bytes; i++) {
        hash = (hash ^ ((const unsigned char *)data)[i]) * 1099511628211u;
    }
    uint64_t all[64];
    CHECK(comm_size(world) <= 64);
    CHECK_OK(comm_all_gather_bytes(world, all, &hash, sizeof hash));
    for (int r = 0; r < comm_size(world); r++) {
        CHECK(all[r] == all[0]);
    }
}

static void test_all_reduce(float *data)
{
    for (int s = 0; s < SIZES; s++) {
        uint64_t repeated = 0;
        for (int repeat = 0; repeat < 3; repeat++) {
            fill_data(data, sizes[s], comm_rank(world), s);
            CHECK_OK(comm_all_reduce(world, data, sizes[s]));
            check_sum(data, 0, sizes[s], comm_size(world), s);
            uint64_t hash = 0;
            for (int64_t i = 0; i < sizes[s]; i++) {
                uint32_t bits;
                memcpy(&bits, &data[i], sizeof bits);
                hash = hash * 31 + bits;
            }
            CHECK(repeat == 0 || hash == repeated);
            repeated = hash;
        }
        check_equal_on_all_ranks(data, (size_t)sizes[s] * sizeof *data);
    }
}

/* Creates ranges of different sizes with gaps between them. With 3 or more ranks one is empty. */
static void make_ranges(struct comm_range *ranges, int64_t count)
{
    int size = comm_size(world);
    for (int r = 0; r < size; r++) {
        struct comm_range shard = partition_shard(count, 1, size, r);
        int64_t gap = shard.count / 5;
        ranges[r] = (struct comm_range){shard.first + gap / 2, shard.count - gap};
    }
    if (size > 2) {
        ranges[1].count = 0;
    }
}

static void test_reduce_scatter(float *data)
{
    struct comm_range ranges[64];
    for (int s = 0; s < SIZES; s++) {
        make_ranges(ranges, sizes[s]);
        fill_data(data, sizes[s], comm_rank(world), s);
        struct comm_request *request = NULL;
        CHECK_OK(comm_reduce_scatter_start(world, data, ranges, &request));
        CHECK_OK(comm_wait(world, &request));
        CHECK(request == NULL);
        struct comm_range own = ranges[comm_rank(world)];
        check_sum(data, own.first, own.count, comm_size(world), s);
    }
}

/* The sums have the bits of a single rank that adds all values, on any number of nodes. In the
 * second round the last rank has no data. */
static void test_accumulate(float *data)
{
    int size = comm_size(world);
    static float sums[LARGEST];
    struct comm_range ranges[64];
    struct comm_request *failed_request = NULL;
    if (strcmp(comm_kind(world), "self") != 0 && strcmp(comm_kind(world), "mpi") != 0) {
        struct comm_accumulation accumulation = {sums, true, size};
        make_ranges(ranges, sizes[0]);
        CHECK_FAILS(comm_accumulate_start(world, &accumulation, data, ranges, &failed_request),
                    STATUS_UNAVAILABLE, "only host memory does");
        return;
    }
    for (int s = 0; s < SIZES; s++) {
        make_ranges(ranges, sizes[s]);
        struct comm_range own = ranges[comm_rank(world)];
        for (int round = 0; round < 2; round++) {
            struct comm_accumulation accumulation = {sums, round == 0,
                                                     round == 0 ? size : size - 1};
            fill_data(data, sizes[s], comm_rank(world), s + round);
            struct comm_request *request = NULL;
            CHECK_OK(comm_accumulate_start(world, &accumulation, data, ranges, &request));
            CHECK_OK(comm_wait(world, &request));
            CHECK_OK(comm_barrier(world)); /* no rank overwrites data that others still read */
        }
        for (int64_t k = 0; k < own.count; k++) {
            int64_t i = own.first + k;
            float sum = get_value(0, i, s);
            for (int r = 1; r < 2 * size - 1; r++) {
                sum += get_value(r % size, i, s + r / size);
            }
            CHECK(memcmp(&sum, &sums[k], sizeof sum) == 0);
        }
    }
    struct comm_accumulation too_many = {sums, true, size + 1};
    CHECK_FAILS(comm_accumulate_start(world, &too_many, data, ranges, &failed_request),
                STATUS_INTERNAL, "ordered sum of");
}

static void test_all_gather(float *data)
{
    struct comm_range ranges[64];
    for (int s = 0; s < SIZES; s++) {
        make_ranges(ranges, sizes[s]);
        for (int64_t i = 0; i < sizes[s]; i++) {
            data[i] = -1;
        }
        struct comm_range own = ranges[comm_rank(world)];
        for (int64_t i = own.first; i < own.first + own.count; i++) {
            data[i] = get_value(comm_rank(world), i, s);
        }
        struct comm_request *request = NULL;
        CHECK_OK(comm_all_gather_start(world, data, sizeof *data, ranges, &request));
        CHECK_OK(comm_wait(world, &request));
        int64_t at = 0;
        for (int r = 0; r < comm_size(world); r++) {
            for (; at < ranges[r].first; at++) {
                CHECK(data[at] == -1); /* gaps do not change */
            }
            for (; at < ranges[r].first + ranges[r].count; at++) {
                CHECK(data[at] == get_value(r, at, s));
            }
        }
    }
}

/* Gathers 16-bit elements through shared f32 memory, at a different offset on each rank. On one
 * node of an mpi communicator, rank 1 pulls after rank 0 has all data: no rank waits for a rank
 * that comes later. */
static void test_lazy_gather(float *shared_source)
{
    enum { CHUNKS = 3 };
    static unsigned short data[LARGEST];
    struct comm_range ranges[64], source_ranges[64];
    struct comm_request *requests[CHUNKS] = {NULL};
    int64_t chunk_elems = LARGEST / CHUNKS;
    char path[64];
    snprintf(path, sizeof path, "/tmp/bireme-gather-%ld", (long)getppid());
    for (int p = 0; p < CHUNKS; p++) {
        memset(data + p * chunk_elems, 0xff, (size_t)chunk_elems * sizeof *data);
        make_ranges(ranges, chunk_elems);
        for (int r = 0; r < comm_size(world); r++) {
            source_ranges[r] = (struct comm_range){2 * (p * chunk_elems + r), ranges[r].count};
        }
        struct comm_range own = ranges[comm_rank(world)];
        for (int64_t i = own.first; i < own.first + own.count; i++) {
            data[p * chunk_elems + i] = (unsigned short)(i * 7 + p);
        }
        CHECK_OK(comm_lazy_gather_start(world, data + p * chunk_elems, sizeof *data, ranges,
                                        shared_source, source_ranges, &requests[p]));
    }
    bool is_eager = comm_size(world) == 1 || !is_rank_order() ||
                    strcmp(comm_kind(world), "mpi") != 0 ||
                    getenv("BIREME_TEST_LITTLE_SHARED_MEMORY") != NULL;
    while (!is_eager && comm_rank(world) == 1 && access(path, F_OK) != 0) {
        usleep(100); /* until rank 0 has pulled */
    }
    for (int p = CHUNKS - 1; p >= 0; p--) {
        CHECK_OK(comm_gather_pull(world, &requests[p]));
        CHECK_OK(comm_gather_pull(world, &requests[p]));
    }
    if (!is_eager && comm_rank(world) == 0) {
        CHECK(fclose(fopen(path, "w")) == 0);
    }
    for (int p = 0; p < CHUNKS; p++) {
        CHECK_OK(comm_wait(world, &requests[p]));
        CHECK(requests[p] == NULL);
        for (int r = 0; r < comm_size(world); r++) {
            for (int64_t i = ranges[r].first; i < ranges[r].first + ranges[r].count; i++) {
                CHECK_EQUAL(data[p * chunk_elems + i], (unsigned short)(i * 7 + p));
            }
        }
    }
    CHECK_OK(comm_barrier(world));
    (void)unlink(path);
    source_ranges[comm_rank(world)].first = -1;
    CHECK_FAILS(comm_lazy_gather_start(world, data, sizeof *data, ranges, shared_source,
                                       source_ranges, &requests[0]),
                STATUS_INTERNAL, "must not be negative");
}

static void test_many_in_flight(float *data)
{
    enum { CHUNKS = 150 }; /* more than the maximum in flight */
    static struct comm_request *requests[CHUNKS];
    int64_t chunk_elems = LARGEST / CHUNKS;
    fill_data(data, LARGEST, comm_rank(world), 50);
    for (int i = 0; i < CHUNKS; i++) {
        CHECK_OK(comm_all_reduce_start(world, data + i * chunk_elems, chunk_elems, &requests[i]));
        if (i % 7 == comm_rank(world)) {
            CHECK_OK(comm_progress(world));
        }
    }
    CHECK_OK(comm_barrier(world)); /* small collectives are allowed in between */
    for (int i = CHUNKS - 1; i >= 0; i--) {
        CHECK_OK(comm_wait(world, &requests[i]));
        CHECK(requests[i] == NULL);
    }
    check_sum(data, 0, chunk_elems * CHUNKS, comm_size(world), 50);
}

static void test_broadcast(float *data)
{
    int root = comm_size(world) - 1;
    for (int s = 0; s < SIZES; s++) {
        fill_data(data, sizes[s], comm_rank(world), s);
        size_t bytes = (size_t)sizes[s] * sizeof *data;
        bytes -= bytes > 0; /* an odd number of bytes */
        CHECK_OK(comm_broadcast(world, data, bytes, root));
        for (int64_t i = 0; i + 1 < sizes[s]; i++) {
            CHECK(data[i] == get_value(root, i, s));
        }
    }
}

static void test_small_data(void)
{
    int size = comm_size(world);
    enum { COUNT = 1300 }; /* too many for one exchange */
    static double data[COUNT];
    for (int i = 0; i < COUNT; i++) {
        data[i] = (double)get_value(comm_rank(world), i, 60);
    }
    CHECK_OK(comm_sum_doubles(world, data, COUNT));
    for (int i = 0; i < COUNT; i++) {
        double sum = (double)get_value(0, i, 60);
        for (int r = 1; r < size; r++) {
            sum += (double)get_value(r, i, 60);
        }
        CHECK(memcmp(&sum, &data[i], sizeof sum) == 0); /* rank order, also on several nodes */
    }
    enum { BYTES = 10007 };
    static char own[BYTES];
    char *all = malloc((size_t)size * BYTES);
    CHECK(all != NULL);
    memset(own, 'a' + comm_rank(world), sizeof own);
    own[BYTES - 1] = 'z';
    CHECK_OK(comm_all_gather_bytes(world, all, own, BYTES));
    for (int r = 0; r < size; r++) {
        CHECK(all[(size_t)r * BYTES] == 'a' + r && all[(size_t)(r + 1) * BYTES - 2] == 'a' + r);
        CHECK(all[(size_t)(r + 1) * BYTES - 1] == 'z');
    }
    free(all);
    bool any = true;
    CHECK_OK(comm_agree_flag(world, false, &any));
    CHECK(!any);
    CHECK_OK(comm_agree_flag(world, comm_rank(world) == size - 1, &any));
    CHECK(any);
    for (int i = 0; i < 500; i++) {
        CHECK_OK(comm_barrier(world));
    }
}

/* An exact sum has the same bits for any distribution of the terms over ranks. */
static void test_exact_sums(void)
{
    enum { TERMS = 3000 };
    struct exact_sum single = {0}, shared[2] = {{{0}, 0, 0}};
    for (int i = 0; i < TERMS; i++) {
        double term = ldexp((double)get_value(1, i, 70), i % 90 - 45);
        exact_add(&single, term);
        if (i % comm_size(world) == comm_rank(world)) {
            exact_add(&shared[0], term);
        }
    }
    exact_add(&shared[1], comm_rank(world) == 0 ? (double)INFINITY : 1);
    CHECK_OK(comm_sum_exact(world, shared, 2));
    double one = exact_value(&single), all = exact_value(&shared[0]);
    CHECK(memcmp(&one, &all, sizeof one) == 0);
    CHECK(isinf(exact_value(&shared[1])));
}

static void test_split(void)
{
    int rank = comm_rank(world);
    int size = comm_size(world);
    struct comm *group = NULL;
    CHECK_FAILS(comm_split(world, -1, 0, &group), STATUS_INTERNAL, "color -1");
    CHECK_OK(comm_split(world, rank % 2, -rank, &group)); /* even or odd ranks, descending */
    int members = (size + 1 - rank % 2) / 2;
    CHECK_EQUAL(comm_size(group), members);
    CHECK_EQUAL(comm_rank(group), members - 1 - rank / 2);
    CHECK_EQUAL(comm_local_size(group), members);
    double sum = rank;
    CHECK_OK(comm_sum_doubles(group, &sum, 1));
    double expected = 0;
    for (int r = rank % 2; r < size; r += 2) {
        expected += r;
    }
    CHECK(sum == expected);
    float *data = allocate_zeroed(group, 5000);
    for (int i = 0; i < 5000; i++) {
        data[i] = (float)(rank + i);
    }
    CHECK_OK(comm_all_reduce(group, data, 5000));
    for (int i = 0; i < 5000; i++) {
        CHECK(data[i] == (float)(expected + members * i));
    }
    CHECK_OK(comm_free(group, data));
    CHECK_OK(comm_destroy(&group));
    CHECK(group == NULL);
    CHECK_OK(comm_destroy(&group));
}

static void check_mesh(const struct mesh *mesh, int tensor)
{
    int size = comm_size(world), rank = comm_rank(world);
    CHECK(mesh->world == world);
    CHECK_EQUAL(comm_size(mesh->tensor), tensor);
    CHECK_EQUAL(comm_size(mesh->data), size / tensor);
    CHECK_EQUAL(comm_rank(mesh->tensor), rank % tensor);
    CHECK_EQUAL(comm_rank(mesh->data), rank / tensor);
    float row[3] = {(float)rank, 1, 2};
    CHECK_OK(comm_all_reduce(mesh->data, row, 3));
    float expected = 0;
    for (int r = rank % tensor; r < size; r += tensor) {
        expected += (float)r;
    }
    CHECK(row[0] == expected);
    row[1] = (float)rank;
    CHECK_OK(comm_all_reduce(mesh->tensor, row, 2));
    expected = 0;
    for (int r = rank / tensor * tensor; r < (rank / tensor + 1) * tensor; r++) {
        expected += (float)r;
    }
    CHECK(row[1] == expected);
}

static void test_mesh(void)
{
    struct mesh mesh;
    struct comm *all = NULL;
    int size = comm_size(world);
    if (size == 4) {
        CHECK_FAILS(mesh_create(world, 3, &mesh), STATUS_RECIPE, "to one of 1, 2, 4");
    }
    CHECK_FAILS(mesh_create(world, 0, &mesh), STATUS_RECIPE, "parallel.tensor is 0");
    int tensor = size % 2 == 0 ? 2 : 1;
    CHECK_OK(mesh_create(world, tensor, &mesh));
    check_mesh(&mesh, tensor);
    CHECK_OK(comm_split(world, 0, comm_rank(world), &all));
    CHECK_OK(mesh_regroup(&mesh, all));
    CHECK_OK(comm_destroy(&all));
    check_mesh(&mesh, tensor);
    CHECK_OK(mesh_destroy(&mesh));
}

static void test_check_equal(void)
{
    CHECK_OK(comm_check_equal(world, "recipe", "0123456789abcdef"));
    if (comm_size(world) > 1) {
        bool last = comm_rank(world) == comm_size(world) - 1;
        status result = comm_check_equal(world, "recipe", last ? "ffff" : "0123456789abcdef");
        CHECK(result == STATUS_RECIPE);
        char text[64];
        snprintf(text, sizeof text, "ranks %d do not", comm_size(world) - 1);
        CHECK(strstr(status_pending()->text, text) != NULL);
        status_clear();
        /* two values of 64 characters that differ in the last one */
        char digest[65];
        memset(digest, 'a', 64);
        digest[63] = last ? '1' : '0';
        digest[64] = '\0';
        CHECK(comm_check_equal(world, "recipe", digest) == STATUS_RECIPE);
        status_clear();
    }
    CHECK_OK(comm_barrier(world));
}

static status sum_largest(void *data)
{
    return comm_all_reduce(world, data, LARGEST);
}

static void test_times(float *data)
{
    struct comm_times times;
    comm_take_times(world, &times);
    struct comm_request *request = NULL;
    CHECK_OK(comm_all_reduce_start(world, data, LARGEST, &request));
    CHECK_OK(comm_wait(world, &request));
    comm_take_times(world, &times);
    CHECK(comm_size(world) == 1 || (times.exposed_seconds > 0 && times.bytes > 0));
    CHECK(times.small_seconds == 0);
    CHECK_OK(comm_calibrate(world, sum_largest, data));
    comm_take_times(world, &times);
    CHECK(times.exposed_seconds == 0 && times.small_seconds == 0 && times.bytes == 0);
    CHECK_OK(sum_largest(data));
    CHECK_OK(comm_barrier(world));
    comm_take_times(world, &times);
    CHECK(comm_size(world) == 1 || (times.alone_seconds > 0 && times.small_seconds > 0));
    times = (struct comm_times){.alone_seconds = 4, .exposed_seconds = 1};
    CHECK(comm_hidden_share(&times) == 0.75);
    times.exposed_seconds = 5;
    CHECK(comm_hidden_share(&times) == 0);
}

static void test_partition(void)
{
    for (int parts = 1; parts < 9; parts++) {
        for (int64_t count = 0; count < 200; count += 13) {
            int64_t next = 0;
            for (int i = 0; i < parts; i++) {
                struct comm_range shard = partition_shard(count, 16, parts, i);
                CHECK(shard.first == next && shard.count >= 0);
                CHECK(shard.first % 16 == 0 || shard.first == count);
                next = shard.first + shard.count;
            }
            CHECK(next == count);
        }
    }
}

int main(int argc, char **argv)
{
    CHECK_OK(test_world_create(&argc, &argv, 0, &world));
    bool launched = getenv("OMPI_COMM_WORLD_SIZE") != NULL || getenv("PMIX_RANK") != NULL;
    const char *kind = test_comm()[0] != '\0' ? test_comm() : launched ? "mpi" : "self";
    CHECK_TEXT(comm_kind(world), kind);
    float *shared = allocate_zeroed(world, LARGEST);
    float *own = malloc(LARGEST * sizeof *own);
    CHECK(own != NULL);
    float *memories[] = {shared, own};
    test_partition();
    test_small_data();
    test_exact_sums();
    for (int m = 0; m < 2; m++) {
        test_all_reduce(memories[m]);
        test_reduce_scatter(memories[m]);
        test_accumulate(memories[m]);
        test_all_gather(memories[m]);
        test_broadcast(memories[m]);
        test_many_in_flight(memories[m]);
        test_times(memories[m]);
    }
    test_lazy_gather(shared);
    test_split();
    test_mesh();
    test_check_equal();
    free(own);
    CHECK_OK(comm_free(world, shared));
    CHECK_OK(comm_destroy(&world));
    return 0;
}
