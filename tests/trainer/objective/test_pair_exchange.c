/* The exchange of the pairs of a global batch (pair_exchange.h), on any number of ranks.
 *
 * ctest: ranks 2 3 */
#include "base/memory.h"
#include "comm/partition.h"
#include "tests/check.h"
#include "trainer/objective/pair_exchange.h"

enum { SIZE = 7, VALUES = 3 };

/* Gathers `count` pairs that begin with index `begin`. Value v of pair i is 10 i + v. */
static void test_gather(struct comm *world, struct pair_exchange *x, int64_t begin, int64_t count)
{
    double pairs[SIZE][VALUES];
    bool failed = true;
    const struct comm_range own = partition_shard(count, 1, comm_size(world), comm_rank(world));
    memset(pairs, 0xff, sizeof pairs);
    pair_exchange_clear(x);
    for (int64_t i = own.first; i < own.first + own.count; i++) {
        int64_t index = (begin + i) % SIZE;
        CHECK_OK(pair_exchange_add(x, index, 1, true));
        for (int v = 0; v < VALUES; v++) {
            pairs[index][v] = (double)(10 * index + v);
        }
    }
    CHECK_OK(pair_exchange_count(x, world, true, &failed));
    CHECK(!failed && x->count == count);
    CHECK_OK(pair_exchange_gather(x, world, pairs, sizeof pairs[0]));
    for (int64_t i = 0; i < count * VALUES; i++) {
        int64_t index = (begin + i / VALUES) % SIZE;
        CHECK(pairs[index][i % VALUES] == (double)(10 * index + i % VALUES));
    }
}

/* Tests a rank that reports missing pairs, pairs that are not consecutive, and an incomplete batch
 * that does not begin with pair 0. */
static void test_errors(struct comm *world, struct pair_exchange *x)
{
    bool failed = false, is_last = comm_rank(world) == comm_size(world) - 1;
    pair_exchange_clear(x);
    CHECK_OK(pair_exchange_count(x, world, !is_last, &failed));
    CHECK(failed);
    CHECK_OK(pair_exchange_add(x, 5, 2, true));
    CHECK_OK(pair_exchange_add(x, 0, 1, true));
    CHECK_FAILS(pair_exchange_add(x, 3, 1, true), STATUS_INTERNAL, "pair 3 follows 3 pairs from 5");
    CHECK_OK(pair_exchange_add(x, 3, 1, false));
    pair_exchange_clear(x);
    CHECK_OK(pair_exchange_add(x, 2, 1, true));
    CHECK_FAILS(pair_exchange_count(x, world, true, &failed), STATUS_INTERNAL,
                "begins with pair 2 of 7");
}

int main(int argc, char **argv)
{
    struct comm *world = NULL;
    struct pair_exchange x;
    CHECK_OK(comm_world_create(&argc, &argv, &world));
    CHECK_OK(pair_exchange_create(SIZE, comm_size(world), &x));
    test_gather(world, &x, 0, SIZE);
    test_gather(world, &x, 0, 4);
    for (int64_t begin = 1; begin < SIZE; begin++) {
        test_gather(world, &x, begin, SIZE); /* the pairs of one rank can wrap around */
    }
    test_errors(world, &x);
    pair_exchange_destroy(&x);
    CHECK_OK(comm_destroy(&world));
    return 0;
}
