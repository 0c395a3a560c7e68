#include "trainer/objective/pair_exchange.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/memory.h"

struct pair_exchange_rank {
    int64_t first, count, failed;
};

status pair_exchange_create(int64_t size, int ranks, struct pair_exchange *out)
{
    *out = (struct pair_exchange){.size = size};
    status result = ALLOCATE(out->rank, ranks, "the pairs of the ranks");
    KEEP_FIRST(result, ALLOCATE(out->ranges, ranks, "the pairs of the ranks"));
    if (result != STATUS_OK) {
        pair_exchange_destroy(out);
    }
    return result;
}

void pair_exchange_destroy(struct pair_exchange *x)
{
    free(x->rank);
    free(x->ranges);
    *x = (struct pair_exchange){0};
}

void pair_exchange_clear(struct pair_exchange *x)
{
    x->first = x->added = x->count = 0;
}

status pair_exchange_add(struct pair_exchange *x, int64_t first, int64_t count, bool consecutive)
{
    REQUIRE(!consecutive || x->added == 0 || first == (x->first + x->added) % x->size,
            STATUS_INTERNAL, "pair %" PRId64 " follows %" PRId64 " pairs from %" PRId64, first,
            x->added, x->first);
    x->first = x->added == 0 ? first : x->first;
    x->added += count;
    return STATUS_OK;
}

status pair_exchange_count(struct pair_exchange *x, struct comm *data, bool complete, bool *failed)
{
    const struct pair_exchange_rank own = {x->first, x->added, !complete};
    TRY(comm_all_gather_bytes(data, x->rank, &own, sizeof own));
    *failed = false;
    x->count = 0;
    for (int r = 0; r < comm_size(data); r++) {
        *failed = *failed || x->rank[r].failed;
        x->count += x->rank[r].count;
    }
    REQUIRE(*failed || x->count == x->size || x->rank[0].first == 0, STATUS_INTERNAL,
            "a batch of %" PRId64 " pairs begins with pair %" PRId64 " of %" PRId64, x->count,
            x->rank[0].first, x->size);
    return STATUS_OK;
}

/* Gathers the pairs of one part: those up to the end of the array, or those that wrap around. */
static status gather_part(struct pair_exchange *x, struct comm *data, struct comm_range part,
                          void *pairs, size_t bytes)
{
    struct comm_request *request = NULL;
    for (int r = 0; r < comm_size(data); r++) {
        const struct comm_range own = {x->rank[r].first, x->rank[r].count};
        x->ranges[r] = comm_range_intersect(own, part);
        x->ranges[r].first -= part.first;
    }
    TRY(comm_all_gather_start(data, pairs, bytes, x->ranges, &request));
    return comm_wait(data, &request);
}

status pair_exchange_gather(struct pair_exchange *x, struct comm *data, void *pairs, size_t bytes)
{
    bool wraps = false;
    for (int r = 0; r < comm_size(data); r++) {
        wraps = wraps || x->rank[r].first + x->rank[r].count > x->size;
    }
    if (comm_size(data) == 1) {
        return STATUS_OK;
    }
    TRY(gather_part(x, data, (struct comm_range){0, x->size}, pairs, bytes));
    return wraps ? gather_part(x, data, (struct comm_range){x->size, x->size}, pairs, bytes)
                 : STATUS_OK;
}
