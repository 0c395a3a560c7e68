/* The units with which GEMMs run.
 *
 * If the units of grid_make are too few for the threads, they are divided into pieces. A unit is
 * computed as a whole and in pieces with random numbers; the pieces are used if all bits are equal.
 * The result is kept for later calls with the same shape. */
#pragma once

#include "kernels/cpu/grid.h"

enum { DIVISIONS = 256, DIVISION_FIELDS = 14 };

struct division {
    int64_t call[DIVISION_FIELDS]; /* the sizes, strides, dtypes and options of the call */
    bool is_compared;
    struct grid grid;
    uint64_t used; /* time of the last use; the least recently used division is replaced */
};

/* Zero it before the first call. */
struct divisions {
    int count;
    uint64_t clock;
    struct division list[DIVISIONS];
};

/* divisions_choose - return the units of a call.
 *
 * The comparison takes longer than a GEMM, so it is made when a shape is used for the second time:
 * the number of rows of unpadded batches differs in each step.
 *
 * Memory    the operands of one unit for the comparison; they are freed. Units with operands above
 *           256 MiB are not divided.
 * Errors    of matmul_run_grid */
status divisions_choose(struct divisions *d, struct matmul *m, const struct matmul_call *call,
                        int threads, struct grid *out);
