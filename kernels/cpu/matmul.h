/* Matrix products, and the linear layer made of them, on the CPU. */
#pragma once

#include "kernels/cpu/cpu.h"

/* matmul_create - the cache of product plans of a context. */
status matmul_create(struct kernels *k, struct matmul **out);
void matmul_destroy(struct matmul **m);

/* matmul_description - the library and its version. */
const char *matmul_description(void);

/* matmul_supports - whether this processor has instructions for products of dtype. */
bool matmul_supports(enum dtype dtype);

/* matmul_product - c = a b + bias (accumulate: c += a b), the operands optionally transposed.
 *
 * Shapes    c [rows, columns]; a [rows, inner], or [inner, rows] where transpose_a;
 *           b [inner, columns], or [columns, inner] where transpose_b; a and b of one type, c f32 or
 *           of that type; bias f32 [1, columns] or absent
 * Memory    allocates at the first use of a shape only */
status matmul_product(struct kernels *k, struct tensor c, struct tensor a, bool transpose_a,
                      struct tensor b, bool transpose_b, struct tensor bias, bool accumulate);

__typeof__(kernels_floor) matmul_floor;
