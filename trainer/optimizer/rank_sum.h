/* Sums over ranks in device memory, in rank order, with the bits of comm_sum_doubles. */
#pragma once

#include "comm/comm.h"
#include "kernels/kernels.h"

/* rank_sum_queue - gather the rows of all ranks, and queue out[c] = the sum of column c.
 *
 * Shapes    out f64 [columns];  all f64 [ranks, columns] on the device: the caller has set the row
 *           of this rank;  ranges [ranks]: scratch memory on the host
 * Order     collective */
status rank_sum_queue(struct kernels *k, struct comm *comm, double *out, double *all,
                      int64_t columns, struct comm_range *ranges);
