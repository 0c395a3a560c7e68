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

/* matmul_library_bytes - what the library works in at most, on all threads: measured with oneDNN 2.6.3, which keeps
 * a unit's sums in f32 where it stores bf16, and packs panels of both matrices. */
size_t matmul_library_bytes(enum dtype dtype, int threads, const struct kernels_limits *limits);

/* matmul_taken_bytes - what it has asked for so far. */
size_t matmul_taken_bytes(const struct kernels *k);

/* A part of a product's output, and which of the context's threads computes it. */
struct matmul_block {
    int64_t row, rows, column, columns;
    int thread;
};

/* What is done to a block by the thread that computes it, right before or after. */
typedef void matmul_step(void *context, struct matmul_block block);

/* c = a b + bias, or c += a b; the operands may lie transposed.
 *
 * Shapes    c [rows, columns]; a [rows, inner], or [inner, rows] where transpose_a;
 *           b [inner, columns], or [columns, inner] where transpose_b; a and b of one type, c f32 or
 *           of that type; bias f32 [1, columns] or absent
 * Units     the sizes of the blocks; 0: chosen by the shape
 * Memory    private_elements > 0: c.data holds a block for each thread, this many elements apart and
 *           c.stride wide, which the step `after` reads; c as a whole is nowhere */
struct matmul_call {
    struct tensor c, a, b, bias;
    bool transpose_a, transpose_b, accumulate;
    int64_t unit_rows, unit_columns, private_elements;
    matmul_step *before, *after;
    void *context;
};

/* matmul_product - do it on all threads of the context.
 *
 * Memory    allocates at the first use of a shape only
 * Numerics  the same bits at any number of threads */
status matmul_product(struct kernels *k, const struct matmul_call *call);

/* matmul_product_whole - the same in one block, divided by the library: for comparison. */
status matmul_product_whole(struct kernels *k, const struct matmul_call *call);

/* matmul_floor - kernels_floor on the CPU. */
__typeof__(kernels_floor) matmul_floor;

/* matmul_floor_destroy - let go of the operands that it keeps. */
void matmul_floor_destroy(struct kernels *k);
