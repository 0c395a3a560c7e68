/* Parts of linear layers: a GEMM for a few rows, as in generation with a small batch (few_rows.c),
 * and column sums, the gradients of biases (column_sums.c). */
#pragma once

#include "kernels/cpu/cpu.h"

/* few_rows_gemm - compute y = x w^T + bias, or y += x w^T if `accumulate` is true.
 *
 * Shapes    y [N, M] f32 or of x's dtype;  x [N, K];  w [M, K] of x's dtype;  bias f32 [1, M] or
 *           absent;  N <= KERNELS_FEW_ROWS
 * Numerics  f32 sums; the bits of a row depend neither on the number of threads nor on the
 *           other rows */
void CPU(few_rows_gemm)(struct kernels *k, struct tensor y, struct tensor x, struct tensor w,
                        struct tensor bias, bool accumulate);

/* column_sums - compute sums[c] += the sum of column c of dy, for the given columns.
 *
 * Runs on the calling thread only.
 *
 * Shapes    sums f32 [M];  dy [N, M];  columns begin at a multiple of 32
 * Memory    overwrite: sums is set, not added to
 * Numerics  sums in two levels: the rounding error grows at most with the square root of N */
void CPU(column_sums)(float *sums, struct tensor dy, struct cpu_range columns, bool overwrite);

/* bias_gradient - compute column_sums of all columns, on all threads. Does nothing if dbias.sums
 * is absent.
 *
 * Memory    takes at most CPU(column_sums_scratch) bytes from the scratch arena
 * Numerics  the bits of column_sums, with any number of threads */
status CPU(bias_gradient)(struct kernels *k, struct bias_gradient dbias, struct tensor dy);
