/* A thread pool with results in the order of submission.
 *
 * The calling thread fills a slot and submits it. A worker thread processes the slot. The calling
 * thread consumes the processed slots in the order in which it submitted them. */
#pragma once

#include <stddef.h>

#include "base/status.h"

struct ordered_pool;

/* The operations on a slot; `user` is the argument of ordered_pool_open. */
struct ordered_pool_callbacks {
    size_t slot_bytes; /* size of a slot */
    /* Initializes a slot, which is zeroed. NULL: nothing to do. */
    status (*open_slot)(void *slot);
    /* Processes a filled slot in a worker thread. It stores an error in the slot. */
    void (*process_slot)(void *user, void *slot);
    /* Consumes a processed slot in the calling thread, in order. Afterwards the slot is free. */
    status (*consume_slot)(void *user, void *slot);
    /* Frees the memory of a slot that was opened. */
    void (*close_slot)(void *slot);
};

/* ordered_pool_open - allocate the slots and start the threads.
 *
 * Units     workers: number of threads; 0: one per core
 * Memory    2 * workers + 2 slots; callbacks is borrowed until ordered_pool_close
 * Errors    STATUS_INTERNAL (out of memory, threads); as open_slot */
status ordered_pool_open(const struct ordered_pool_callbacks *callbacks, void *user, int workers,
                         struct ordered_pool **out);

/* ordered_pool_slot - return the free slot that the next submission uses. */
void *ordered_pool_slot(const struct ordered_pool *p);

/* ordered_pool_submit - submit the slot of ordered_pool_slot. If all slots are in use, wait for
 * the oldest one and consume it.
 *
 * Errors    as consume_slot, in the order of the slots */
status ordered_pool_submit(struct ordered_pool *p);

/* ordered_pool_drain - wait for all submitted slots and consume them.
 *
 * Errors    as consume_slot, in the order of the slots */
status ordered_pool_drain(struct ordered_pool *p);

/* ordered_pool_close - stop the threads, free the slots and set *pool to NULL; NULL is allowed. */
void ordered_pool_close(struct ordered_pool **pool);
