/* The exchange of the pairs of a global batch between ranks, for a loss that reads all pairs.
 *
 * Each rank stores its pairs in an array of all pairs. Pair i of the training data has the index i
 * modulo the size. The pairs of a rank are consecutive, except on a CPU with interleaved
 * micro-batches. On a GPU the exchange is queued, and the host does not wait for the device.
 *
 * Calls     pair_exchange_create; for each global batch: pair_exchange_clear, pair_exchange_add for
 *           each micro-batch of this rank, pair_exchange_count, pair_exchange_gather */
#pragma once

#include "comm/comm.h"

struct pair_exchange_rank;

struct pair_exchange {
    int64_t size;                    /* pairs of a full global batch */
    int64_t first, added;            /* of this rank */
    int64_t count;                   /* pairs of all ranks, after pair_exchange_count */
    struct pair_exchange_rank *rank; /* [ranks] */
    struct comm_range *ranges;       /* [ranks] */
};

/* pair_exchange_create - create an exchange of `size` pairs between `ranks` data-parallel ranks.
 *
 * Errors    STATUS_INTERNAL if memory is exhausted */
status pair_exchange_create(int64_t size, int ranks, struct pair_exchange *out);

/* pair_exchange_destroy - free the memory and set *x to zeros; no-op on zeros. */
void pair_exchange_destroy(struct pair_exchange *x);

/* pair_exchange_clear - remove all pairs. */
void pair_exchange_clear(struct pair_exchange *x);

/* pair_exchange_add - record that this rank stores the pairs with indices [first, first + count),
 * modulo the size. If `consecutive` is true, the pairs must follow those of the previous call.
 * pair_exchange_gather needs consecutive pairs.
 *
 * Errors    STATUS_INTERNAL if `consecutive` is true and the pairs do not follow */
status pair_exchange_add(struct pair_exchange *x, int64_t first, int64_t count, bool consecutive);

/* pair_exchange_count - count the pairs of all ranks.
 *
 * Order     collective over the data-parallel group. A rank that has not stored all of its pairs
 *           passes complete = false. Then *failed is true on all ranks
 * Errors    STATUS_INTERNAL, on all ranks, if an incomplete batch does not begin with index 0 */
status pair_exchange_count(struct pair_exchange *x, struct comm *data, bool complete, bool *failed);

/* pair_exchange_gather - gather the pairs of all ranks, which must be consecutive.
 *
 * Shapes    pairs [size] elements of `bytes` bytes, in memory of the communicator's device
 * Order     queued; collective, after pair_exchange_count */
status pair_exchange_gather(struct pair_exchange *x, struct comm *data, void *pairs, size_t bytes);
