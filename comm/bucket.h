/* Gradient buckets: backward finishes gradients from the end of the flat buffer downwards; as soon as
 * a bucket's range is final its collective starts, behind the rest of backward.
 *
 * The buffer is [0, count) f32 elements. bucket_advance is told "final from element `first` on" with
 * falling numbers; buckets are fixed ranges, so that the same layout always sums the same pieces. */
#pragma once

#include "comm/comm.h"

struct bucket_set;

/* bucket_create - buckets of about bucket_elems elements over data[0, count), data from comm_allocate.
 *
 * Memory    no copy of the gradients */
status bucket_create(struct comm *comm, float *data, int64_t count, int64_t bucket_elems,
                     struct bucket_set **out);
status bucket_destroy(struct bucket_set **set);

/* bucket_advance - everything from element `first` on is final: start what is complete. */
status bucket_advance(struct bucket_set *set, int64_t first);

/* bucket_finish - start the rest (as if advanced to 0) and wait for all. */
status bucket_finish(struct bucket_set *set);
