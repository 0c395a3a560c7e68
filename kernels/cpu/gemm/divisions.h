/* The choice of the units with which a GEMM runs. grid.h defines units, pieces and strips.
 *
 * The units of grid_make depend on the shape only. If they are too few for the threads, smaller
 * units are tried:
 *
 *   1. Candidates are strips and equal pieces that are faster according to grid_estimate_time.
 *      Strips need more than two threads and an output of at most GRID_STRIPS_ELEMS elements.
 *   2. A part of the output is computed twice from random operands: with the units of grid_make and
 *      with the candidate. The part is the whole output for strips, and up to four units
 *      for pieces.
 *   3. The first candidate with equal bits is used. If there is none, the units of grid_make stay.
 *   4. On some processors, oneDNN adds the products of small and large units in different orders.
 *      More kinds of strips are then tried: units with copies of their operands
 *      (matmul_dense_bytes), units with the rows of grid_make, units that are computed in blocks of
 *      the inner size (matmul_inner_block), and such units that begin at a group of rows
 *      (grid_find_part).
 *
 * The choice depends only on the shape, the number of threads, the processor and the library. A run
 * and its resume therefore have the same units. The choice is kept for later calls with the
 * same shape.
 *
 * Calls     divisions_choose before each GEMM, then matmul_run_grid with its result */
#pragma once

#include "kernels/cpu/gemm/grid.h"

enum { DIVISIONS = 256, DIVISION_FIELDS = 16 };

/* The units that were chosen for a shape. */
struct division {
    int64_t call[DIVISION_FIELDS]; /* the sizes, strides, dtypes and options of the call */
    struct grid grid;
};

/* The divisions of the first DIVISIONS shapes. Later shapes keep the units of grid_make. Set it to
 * zeros before the first call. */
struct divisions {
    int count;
    struct division list[DIVISIONS];
};

/* divisions_choose - return the units of a call. Small GEMMs keep the units of grid_make.
 *
 * Unpadded batches have another number of rows in each step, so that new shapes never end. The
 * limit DIVISIONS therefore bounds the time of all comparisons.
 *
 * Memory    a comparison allocates the operands and two outputs and frees them. Outputs or units
 *           with operands larger than 384 MiB are not compared and not divided. This size includes
 *           the pages that gaps between rows use
 * Errors    as matmul_run_grid */
status divisions_choose(struct divisions *d, struct matmul *m, const struct matmul_call *call,
                        int threads, struct grid *out);

/* divisions_bytes - estimate the memory of a comparison, without gaps between rows. */
size_t divisions_bytes(int threads, const struct kernels_limits *limits);
