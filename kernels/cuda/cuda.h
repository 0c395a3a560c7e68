/* The CUDA back-end's inside: the context's working memory, and what the operations share.
 *
 * Every operation of kernels.h is a function cuda_<name> in the file of its stem. It queues kernels on
 * the context's stream, takes scratch from the arena and gives it back at once: operations of one
 * context run in order, so that the next one may use the same memory. Grids and the order of sums
 * depend on shapes alone, never on the GPU: the same calls give the same bits on all of them. */
#pragma once

#include "base/arena.h"
#include "kernels/kernels_table.h"

enum { CUDA_CAPABILITY_LEAST = 8 };

#define CUDA_PRODUCT_WORKSPACE ((size_t)32 << 20) /* of the matrix library, what Hopper asks for */
#define CUDA_WAIT_SECONDS 300.0                   /* for what the stream holds */

struct cuda_products; /* the matrix library, and how it does each shape */
struct cuda_graphs;   /* launches that come again (graph.c) */

struct cuda_state {
    struct arena scratch;
    int64_t classifier_rows; /* of logits that exist at a time */
    struct cuda_products *products;
    struct cuda_graphs *graphs;
};

extern const struct device_driver cuda_device_driver;

/* cuda_create - a context as kernels_table.h says, with so many rows of logits at a time. */
status cuda_create(struct kernels *k, int64_t classifier_rows);

static inline struct cuda_state *cuda_of(const struct kernels *k)
{
    return (struct cuda_state *)k->state;
}

#define CUDA_PROTOTYPE(name) __typeof__(name) cuda_##name;
KERNELS_OPERATIONS(CUDA_PROTOTYPE)
#undef CUDA_PROTOTYPE

/* ---- workspace.c, in every program ---- */

enum {
    CUDA_NORM_BLOCKS = 256,
    CUDA_COLUMN_SLICES = 64,
    CUDA_REDUCE_BLOCKS_MAX = 1 << 18,
    CUDA_LINE_BYTES = 24 /* what parts of a vocabulary tell of a row */
};

/* cuda_scratch_bytes - what the operations take from the arena at worst. */
size_t cuda_scratch_bytes(enum dtype dtype, int64_t classifier_rows,
                          const struct kernels_limits *limits);

/* cuda_classifier_rows - rows of logits that exist at a time. */
int64_t cuda_classifier_rows(const struct kernels_limits *limits);

/* cuda_product_vector_bytes - of a bias or its gradient on its way to the matrix library. */
size_t cuda_product_vector_bytes(const struct kernels_limits *limits);

int64_t cuda_logits_stride(int64_t vocabulary);
size_t cuda_logits_bytes(int64_t rows, int64_t vocabulary);
size_t cuda_lines_bytes(int64_t rows, int parts);

/* ---- what operations share ---- */

static inline size_t cuda_rounded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* cuda_reduce_slice - elements of a block where `count` of them are summed in `sums` ways, so that the blocks'
 * sums fit into cuda_reduce_scratch. */
int64_t cuda_reduce_slice(int64_t count, int64_t sums);

/* cuda_doubles_add - *out = the sum of parts f64 [count], in a fixed order; all on the device. */
status cuda_doubles_add(struct kernels *k, double *out, const double *parts, int64_t count);

/* cuda_columns_add - out[c] = (overwrite ? 0 : out[c]) + the sum over r of parts[r * stride + c], in a
 * fixed order. Shapes: out f32 [columns], parts f32 [rows, stride]. */
status cuda_columns_add(struct kernels *k, float *out, const float *parts, int64_t rows,
                        int64_t stride, int64_t columns, bool overwrite);

/* cuda_column_sums - out[c] += the sum of column c of dy over its rows, overwrite: `=`; in an order that depends
 * on the shape alone.
 *
 * Shapes    out f32 [M], dy [N, M]; scratch of cuda_column_sums_scratch(M) bytes */
status cuda_column_sums(struct kernels *k, float *out, struct tensor dy, bool overwrite,
                        void *scratch);
size_t cuda_column_sums_scratch(int64_t columns);

/* cuda_bias_gradient - cuda_column_sums with scratch of the context's. Shapes: dbias f32 [1, M], dy [N, M] */
status cuda_bias_gradient(struct kernels *k, struct tensor dbias, struct tensor dy, bool overwrite);

/* cuda_activation_apply - y = act(a). */
status cuda_activation_apply(struct kernels *k, struct tensor y, struct tensor a,
                             enum activation act);

/* cuda_rows_fill - every row of c becomes this one. Shapes: c [rows, n], row f32 [1, n]. */
status cuda_rows_fill(struct kernels *k, struct tensor c, struct tensor row);

/* ---- launches: graph.c ---- */

struct cuda_launch {
    const char *name;
    const void *kernel;
    unsigned grid[3], block[3];
    size_t shared_bytes;
    int count;           /* of its arguments */
    const size_t *sizes; /* [count], there as long as the program */
};

/* cuda_queue_kernel - on k's stream, or as a part of the graph that is being made or held back.
 *
 * Errors    STATUS_INTERNAL: the GPU refused it */
status cuda_queue_kernel(struct kernels *k, const struct cuda_launch *launch,
                         void *const *arguments);

/* cuda_queue_call - likewise of a library's call, which is known by its argument[bytes]: no byte of it is undefined. */
typedef status cuda_call(struct kernels *k, const void *argument);
status cuda_queue_call(struct kernels *k, cuda_call *call, const void *argument, size_t bytes);

/* cuda_graph_cut - what the calling thread has held back for this stream (NULL: any) goes out now: something other than
 * a launch follows. */
status cuda_graph_cut(const void *stream);

status cuda_graphs_create(struct kernels *k);
void cuda_graphs_destroy(struct kernels *k);

/* ---- libraries: cuBLASLt and CUB on a GPU, plain loops where the tests emulate one ---- */

struct cuda_product {
    struct tensor c; /* [m, n] f32 or the operands' type */
    struct tensor a; /* [m, k], or [k, m] where transpose_a */
    struct tensor b; /* [k, n], or [n, k] where transpose_b */
    bool transpose_a, transpose_b;
    bool add;            /* to what c and sums hold; not with a bias or an activation */
    struct tensor bias;  /* f32 [1, n], added to every row; absent */
    enum activation act; /* of all that */
    bool slope;          /* not the activation, but times its slope at `kept` */
    struct tensor kept;  /* [m, n]: receives what the activation is applied to; absent */
    struct tensor sums;  /* f32 [1, m] (+)= those of op(a) over k, with transpose_a; absent */
};

/* cuda_product_run - c (+)= act(op(a) op(b) + bias); sums in f32, in an order that depends on the shape and on how it
 * is done: by the library in one pass or in several (products.h). */
status cuda_product_run(struct kernels *k, const struct cuda_product *p);
status cuda_product_queue(struct kernels *k, const struct cuda_product *p); /* the call itself */

/* cuda_tune, cuda_tuned - kernels_tune and kernels_tuned. */
status cuda_tune(struct kernels *k, bool measure, char **text);
status cuda_tuned(struct kernels *k, const char *text);

/* cuda_products_create - what products need beside their operands.
 *
 * Errors    STATUS_UNAVAILABLE naming the library that is missing */
status cuda_products_create(struct kernels *k, struct cuda_products **out);
void cuda_products_destroy(struct cuda_products **products);
const char *cuda_products_library(const struct cuda_products *products);

/* cuda_sort_rows - the rows 0..count-1 by their ids, rows of one id in their order.
 *
 * Shapes    ids, sorted_ids, sorted_rows int32 [count]
 * Memory    scratch of cuda_sort_scratch(count) bytes */
status cuda_sort_rows(struct kernels *k, int32_t *sorted_ids, int32_t *sorted_rows,
                      const int32_t *ids, int64_t count, void *scratch);
status cuda_sort_queue(struct kernels *k, int32_t *sorted_ids, int32_t *sorted_rows,
                       const int32_t *ids, int64_t count, void *scratch);
size_t cuda_sort_scratch(int64_t count);
