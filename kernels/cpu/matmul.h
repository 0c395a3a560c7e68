/* GEMMs on the CPU, with oneDNN, or with AMX for bf16 (gemm/panels.h).
 *
 *   block     a rectangle of the output, which one thread computes; a unit of grid.h
 *   plan      the objects of oneDNN that compute a block of one size
 *   prologue  a function of the caller that runs before each block
 *   epilogue  a function of the caller that runs after each block or some of its rows
 *
 * Calls     matmul_create once for each context, matmul_run for each GEMM, matmul_destroy */
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

/* matmul_permits_amx - return whether the processor has AMX for bf16, and neither the operating
 * system nor the environment variable DNNL_MAX_CPU_ISA excludes it. */
bool matmul_permits_amx(void);

/* matmul_library_bytes - estimate the library's largest workspace over all threads.
 *
 * The estimate was measured with oneDNN 2.6.3. For bf16 outputs it keeps the sums of a unit in f32,
 * and it packs panels of both matrices. */
size_t matmul_library_bytes(enum dtype dtype, int threads, const struct kernels_limits *limits);

/* A block of the output of a GEMM, and the thread that computes it. inner_block is as in
 * struct grid_strip. */
struct matmul_block {
    int64_t row, rows, column, columns;
    int thread;
    int64_t inner_block;
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
 *           with keep_columns only by rows. With AMX, unit_rows has an effect only with keep_units,
 *           and unit_columns only with keep_units or keep_columns
 * Callbacks `before` is called once with the whole block. With keep_units, `after` is also called
 *           once with the whole block. Otherwise it may be called several times, each time with the
 *           next rows of the block
 * Memory    private_elements > 0: c.data holds one block for each thread, this many elements apart
 *           and with stride c.stride. The rows of a call of `after` are stored at the beginning of
 *           the block of its thread. c as a whole is not stored. Such a call sets keep_columns, has
 *           at most 768 unit_columns, and does not accumulate */
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

/* The largest inner block, in elements. */
enum { MATMUL_INNER_BLOCK = 256 };

/* matmul_inner_block - return the inner block with which small units have the bits of a unit of
 * this size. 0: small units have the same bits anyway, or the order of additions is not known.
 *
 * With AVX2 and without AVX-512, oneDNN packs the operands of large units. It divides the inner
 * size into blocks of 192 and adds the blocks to the output in order. It does not pack small units.
 * Their blocks have 256 elements, or 96 if a is transposed. Six rows are computed at a time. If one
 * to three rows are left, their products are added in two sums.
 *
 * A small unit therefore has the order of a large one under three conditions. It is computed in
 * blocks of the returned size. If transpose_a is set, a is transposed in advance. The number of
 * rows modulo six is 0, 4 or 5. If the large unit is not packed, the block is the inner size.
 * divisions.c compares the bits. */
int64_t matmul_inner_block(const struct matmul_call *call, int64_t rows, int64_t columns);

struct grid;

/* matmul_has_few_parts - return whether the units of strips with inner blocks can run: each has
 * rows, and the parts of its rows have few different sizes. */
bool matmul_has_few_parts(const struct matmul_call *call, const struct grid *g);

/* The largest copies of the operands of a unit that is computed densely. */
enum { MATMUL_COPIES_BYTES = 4 << 20 };

/* matmul_dense_bytes - return the bytes of the copies if a unit of this size is computed densely.
 *
 * oneDNN has other code for matrices without gaps between their rows, and this code adds in another
 * order. If the units of grid_make have no gaps, a smaller unit has their bits if its operands with
 * gaps are copied. */
size_t matmul_dense_bytes(const struct matmul_call *call, int64_t rows, int64_t columns);

/* matmul_run - run a GEMM on all threads of the context.
 *
 * Memory    allocates at the first use of a shape only. If blocks may be divided, a comparison also
 *           allocates operands and outputs and frees them
 * Numerics  the bits do not depend on the number of threads */
status matmul_run(struct kernels *k, const struct matmul_call *call);

/* matmul_run_unsplit - run a GEMM as one block that oneDNN splits over the threads, for
 * comparison. */
status matmul_run_unsplit(struct kernels *k, const struct matmul_call *call);
