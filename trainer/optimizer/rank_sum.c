#include "trainer/optimizer/rank_sum.h"

status rank_sum_queue(struct kernels *k, struct comm *comm, double *out, double *all,
                      int64_t columns, struct comm_range *ranges)
{
    struct comm_request *request = NULL;
    for (int r = 0; r < comm_size(comm); r++) {
        ranges[r] = (struct comm_range){r * columns, columns};
    }
    TRY(comm_all_gather_start(comm, all, sizeof *all, ranges, &request));
    TRY(comm_wait(comm, &request));
    return control_sum_rows(k, out, all, NULL, comm_size(comm), columns);
}
