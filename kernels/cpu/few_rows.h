/* GEMM for a few rows. */
#pragma once

#include "kernels/cpu/cpu.h"

/* few_rows_gemm - compute y = x w^T + bias, or y += x w^T if `accumulate` is true.
 *
 * Shapes    y [N, M] f32 or of x's dtype;  x [N, K];  w [M, K];  bias f32 [1, M] or absent;  N <=
 *           KERNELS_FEW_ROWS
 * Numerics  f32 sums; the bits of a row depend neither on the number of threads nor on the other
 *           rows */
void CPU(few_rows_gemm)(struct kernels *k, struct tensor y, struct tensor x, struct tensor w,
                        struct tensor bias, bool accumulate);
