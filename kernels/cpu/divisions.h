/* The units with which GEMMs run.
 *
 * If the units of grid_make are too few for the threads, they are divided into pieces. A unit of a
 * call is computed as a whole and in pieces; the pieces are used if all bits are equal. The result
 * is kept for later calls with the same shape. */
#pragma once

#include "kernels/cpu/grid.h"

enum { DIVISIONS = 256, DIVISION_FIELDS = 16 };

struct division {
    int64_t call[DIVISION_FIELDS]; /* the sizes, strides, dtypes and options of the call */
    bool is_compared;
    struct grid grid;
};

/* The divisions of the first DIVISIONS shapes; the units of later shapes are not divided. Zero it
 * before the first call. */
struct divisions {
    int count;
    struct division list[DIVISIONS];
};

/* divisions_choose - return the units of a call.
 *
 * The comparison takes longer than a GEMM, so the first call of a shape makes none. The first later
 * call with operands that are mostly finite and not 0 makes it.
 * The limit of the number bounds the time of all comparisons: the number of rows of unpadded
 * batches differs in each step.
 *
 * Memory    a comparison allocates two outputs of one unit and frees them
 * Errors    of matmul_run_grid */
status divisions_choose(struct divisions *d, struct matmul *m, const struct matmul_call *call,
                        int threads, struct grid *out);

/* divisions_bytes - estimate the memory of a comparison, without gaps between rows. */
size_t divisions_bytes(int threads, const struct kernels_limits *limits);
