/* Sums over rows: the gradients of biases. */
#pragma once

#include "kernels/cpu/cpu.h"

/* column_sums - sums[c] += the sum of column c of dy over its rows, overwrite: `=`, for these columns; on the
 * caller's thread.
 *
 * Shapes    sums f32 [M], dy [N, M]; columns from a multiple of 32 on
 * Numerics  in two levels, so that the error grows with the root of the number of rows at most */
void CPU(column_sums)(float *sums, struct tensor dy, struct cpu_range columns, bool overwrite);
