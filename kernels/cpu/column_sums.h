/* Column sums: the gradients of biases. */
#pragma once

#include "kernels/cpu/cpu.h"

/* column_sums - compute sums[c] += the sum of column c of dy, for the given columns.
 *
 * Runs on the calling thread only.
 *
 * Shapes    sums f32 [M];  dy [N, M];  columns begin at a multiple of 32
 * Memory    overwrite: sums is set, not added to
 * Numerics  sums in two levels: the rounding error grows at most with the square root of N */
void CPU(column_sums)(float *sums, struct tensor dy, struct cpu_range columns, bool overwrite);

/* bias_gradient - compute column_sums of all columns, on all threads. Does nothing if dbias.sums is
 * absent. */
void CPU(bias_gradient)(struct kernels *k, struct bias_gradient dbias, struct tensor dy);
