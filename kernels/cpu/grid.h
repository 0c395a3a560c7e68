/* The division of the output of a GEMM into units. One thread computes a unit.
 *
 * The order in which oneDNN adds depends on the sizes of a unit on some processors. So the units of
 * grid_make depend on the shape only. If the threads would get unequal numbers of units,
 * divisions.h divides the units into equal pieces. It uses the pieces only if they give the same
 * bits. */
#pragma once

#include "kernels/cpu/matmul.h"

/* The largest units of grid_make. */
enum { GRID_UNIT_ROWS = 1024, GRID_UNIT_COLUMNS = 768 };

/* Sizes of a unit, except at the lower and right edges; the number of units down and across. */
struct grid {
    int64_t unit_rows, unit_columns, rows, columns;
};

/* grid_make - choose the units from the shape of a GEMM. */
struct grid grid_make(const struct matmul_call *call);

/* grid_divide - divide the output c into units of these sizes. */
struct grid grid_divide(int64_t unit_rows, int64_t unit_columns, const struct tensor *c);

/* grid_block - return unit `index`. Units are numbered down the columns, so that neighbours share
 * their part of b. */
struct matmul_block grid_block(const struct grid *g, const struct tensor *c, int64_t index);

/* grid_estimate_time - estimate the time of a GEMM with these units.
 *
 * Units     the time in which one thread computes one element of a large unit */
double grid_estimate_time(const struct grid *g, int threads);

/* matmul_run_grid - run a GEMM with these units. */
status matmul_run_grid(struct matmul *m, const struct matmul_call *call, const struct grid *g,
                       int threads);

/* grid_is_balanced - return true if the threads have almost equal numbers of units, so that smaller
 * pieces are not faster. */
bool grid_is_balanced(const struct grid *g, int threads);

enum { GRID_REFINEMENTS = 6 };

/* grid_refine - list divisions of the units of `base` into equal pieces that are faster than it
 * with this number of threads, the fastest first; with rows_only, the pieces have all columns of
 * the unit. Returns their number; 0: none is faster. */
int grid_refine(const struct grid *base, const struct matmul_call *call, int threads,
                bool rows_only, struct grid out[GRID_REFINEMENTS]);
