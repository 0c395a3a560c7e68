/* GEMMs on the CPU. */
#pragma once

#include "kernels/cpu/cpu.h"

/* matmul_create - create the oneDNN plans of a context; release them with matmul_destroy. */
status matmul_create(struct kernels *k, struct matmul **out);

/* matmul_destroy - release the plans and set *m to NULL. */
void matmul_destroy(struct matmul **m);

/* matmul_description - return the name and version of the library. */
const char *matmul_description(void);

/* matmul_supports - return whether this processor has instructions for GEMMs of dtype. */
bool matmul_supports(enum dtype dtype);

/* matmul_library_bytes - estimate the library's largest workspace over all threads.
 *
 * The estimate was measured with oneDNN 2.6.3. For bf16 outputs it keeps the sums of a unit in f32,
 * and it packs panels of both matrices. */
size_t matmul_library_bytes(enum dtype dtype, int threads, const struct kernels_limits *limits);

/* A block of the output of a GEMM, and the thread that computes it. */
struct matmul_block {
    int64_t row, rows, column, columns;
    int thread;
};

/* A prologue or epilogue of a block. The thread that computes the block calls it. */
typedef void matmul_callback(void *context, struct matmul_block block);

/* The arguments of a GEMM: c = a b + bias, or c += a b. The operands may be transposed.
 *
 * Shapes    c [rows, columns];  a [rows, inner], or [inner, rows] if transpose_a;  b [inner,
 *           columns], or [columns, inner] if transpose_b;  a and b of one dtype;  c f32 or of that
 *           dtype;  bias f32 [1, columns] or absent
 * Units     unit_rows and unit_columns are the sizes of the blocks; 0: chosen from the shape. If
 *           there are too few blocks for the threads, blocks are divided, except with keep_units;
 *           with keep_columns only by rows
 * Memory    private_elements > 0: c.data holds one block for each thread, this many elements apart
 *           and with stride c.stride; `after` reads the block, and c as a whole is not stored */
struct matmul_call {
    struct tensor c, a, b, bias;
    bool transpose_a, transpose_b, accumulate, keep_units, keep_columns;
    int64_t unit_rows, unit_columns, private_elements;
    matmul_callback *before, *after;
    void *context;
};

/* matmul_inner_size - return the inner size of a GEMM. */
static inline int64_t matmul_inner_size(const struct matmul_call *call)
{
    return call->transpose_a ? call->a.rows : call->a.columns;
}

/* matmul_run - run a GEMM on all threads of the context.
 *
 * Memory    allocates at the first use of a shape only; if blocks may be divided, also the operands
 *           of one block for a comparison, which are freed
 * Numerics  the bits do not depend on the number of threads */
status matmul_run(struct kernels *k, const struct matmul_call *call);

/* matmul_run_unsplit - run a GEMM as one block that oneDNN splits over the threads, for
 * comparison. */
status matmul_run_unsplit(struct kernels *k, const struct matmul_call *call);
