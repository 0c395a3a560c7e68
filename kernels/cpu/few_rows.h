/* GEMM for a few rows. */
#pragma once

#include "kernels/cpu/cpu.h"

enum { FEW_ROWS = 4 }; /* largest number of rows */

/* few_rows_gemm - compute y = x w^T + bias.
 *
 * Shapes    y [N, M] f32 or of x's dtype;  x [N, K];  w [M, K];  bias f32 [1, M] or absent;  N <=
 *           FEW_ROWS
 * Numerics  f32 sums; the bits do not depend on the number of threads */
void CPU(few_rows_gemm)(struct kernels *k, struct tensor y, struct tensor x, struct tensor w,
                        struct tensor bias);
