/* The division of the classifier: chunks of rows, and the units of its GEMMs (cross_entropy.c). */
#pragma once

#include "base/number.h"
#include "kernels/cpu/division.h"
#include "kernels/cpu/matmul.h"

/* The rows of a chunk, and the rows and ids of a block of logits. Measured at V = 50,304, C = 768.
 * Each chunk reads and writes all of dw. */
enum { CLASSIFIER_CHUNK = 512, CLASSIFIER_BLOCK_ROWS = 256, CLASSIFIER_TILE = 384 };

/* classifier_count_tiles - return the number of tiles of a vocabulary. */
static inline int64_t classifier_count_tiles(int64_t vocabulary)
{
    return number_divide_up(vocabulary, CLASSIFIER_TILE);
}

/* classifier_has_few_tiles - return whether there are few tiles for the threads. The GEMM of dw is
 * then divided into more than one unit for each tile. */
static inline bool classifier_has_few_tiles(int64_t vocabulary, int threads)
{
    enum { TILES_PER_THREAD = 8 };
    return classifier_count_tiles(vocabulary) < (int64_t)TILES_PER_THREAD * threads;
}

/* classifier_gradient_ids - return the number of ids that a thread processes at a time if dz is
 * computed before the GEMM of dw: a tile, or a part of it if otherwise many threads would be
 * idle. */
static inline int64_t classifier_gradient_ids(int64_t vocabulary, int threads)
{
    return division_columns(vocabulary, CLASSIFIER_TILE, CLASSIFIER_TILE / 8, threads);
}

/* classifier_logits_call - return the GEMM of the logits z. is_private: z is one block for each
 * thread. */
static inline struct matmul_call classifier_logits_call(struct tensor z, struct tensor x,
                                                        struct tensor w, struct tensor bias,
                                                        bool is_private)
{
    return (struct matmul_call){
        .c = z,
        .a = x,
        .b = w,
        .transpose_b = true,
        .bias = bias,
        .unit_rows = CLASSIFIER_BLOCK_ROWS,
        .unit_columns = CLASSIFIER_TILE,
        .keep_columns = true,
        .private_elements = is_private ? CLASSIFIER_BLOCK_ROWS * CLASSIFIER_TILE : 0,
    };
}

/* classifier_weight_call - return the GEMM of dw from dz. */
static inline struct matmul_call classifier_weight_call(struct tensor dw, struct tensor dz,
                                                        struct tensor x, bool accumulate,
                                                        int threads)
{
    return (struct matmul_call){
        .c = dw,
        .a = dz,
        .transpose_a = true,
        .b = x,
        .accumulate = accumulate,
        .unit_rows = CLASSIFIER_TILE,
        .unit_columns = dw.columns,
        .keep_units = !classifier_has_few_tiles(dw.rows, threads),
    };
}
