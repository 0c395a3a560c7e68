/* Internal header of the CUDA back-end: the state of a context, and functions that operations
 * share.
 *
 * Every operation of kernels.h is a function cuda_<name> in the file of its stem. It queues kernels
 * on the stream of the context, takes scratch memory from the arena and releases it at once:
 * operations of one context run in order, so the next operation may use the same memory. Grids and
 * the order of sums depend on shapes alone, never on the GPU: the same calls give the same bits on
 * every GPU. */
#pragma once

#include "base/arena.h"
#include "kernels/kernels_table.h"

enum { CUDA_MIN_CAPABILITY = 8 };

#define CUDA_GEMM_WORKSPACE_BYTES ((size_t)32 << 20) /* for cuBLASLt; Hopper needs 32 MiB */
#define CUDA_WAIT_SECONDS 300.0                      /* time limit of a wait for the stream */

struct cuda_gemm_context; /* cuBLASLt, and a plan for each GEMM shape (gemm.h) */
struct cuda_graphs;       /* captured launches (graph.c) */

struct cuda_state {
    struct arena scratch;
    int64_t classifier_rows; /* rows of a chunk of logits */
    struct cuda_gemm_context *gemm;
    struct cuda_graphs *graphs;
};

extern const struct device_driver cuda_device_driver;

/* cuda_create - fill in a context of the CUDA back-end (struct kernels_driver in kernels_table.h).
 * classifier_rows is the number of rows of logits that exist at a time. */
status cuda_create(struct kernels *k, int64_t classifier_rows);

/* cuda_get_state - return the CUDA state of a context. */
static inline struct cuda_state *cuda_get_state(const struct kernels *k)
{
    return (struct cuda_state *)k->state;
}

#define CUDA_PROTOTYPE(name) __typeof__(name) cuda_##name;
KERNELS_OPERATIONS(CUDA_PROTOTYPE)
#undef CUDA_PROTOTYPE

/* ---- workspace.c: linked into every program, with or without CUDA ---- */

enum {
    CUDA_NORM_BLOCKS = 256,
    CUDA_COLUMN_SLICES = 64,
    CUDA_REDUCE_BLOCKS_MAX = 1 << 18,
    CUDA_ROW_STATS_BYTES = 24 /* statistics of a row that vocabulary shards exchange */
};

/* cuda_scratch_bytes - return the largest amount of scratch that one operation takes from the
 * arena. */
size_t cuda_scratch_bytes(enum dtype dtype, int64_t classifier_rows,
                          const struct kernels_limits *limits);

/* cuda_classifier_rows - return the number of rows of logits that exist at a time. */
int64_t cuda_classifier_rows(const struct kernels_limits *limits);

/* cuda_gemm_vector_bytes - return the size of the buffer for a converted bias or a bias
 * gradient. */
size_t cuda_gemm_vector_bytes(const struct kernels_limits *limits);

/* cuda_logits_stride - return the row stride of the logits: the vocabulary rounded up to eight. */
int64_t cuda_logits_stride(int64_t vocabulary);

/* cuda_logits_bytes, cuda_row_stats_bytes - return the bytes of f32 logits, and of the statistics
 * of rows over `parts` vocabulary shards. */
size_t cuda_logits_bytes(int64_t rows, int64_t vocabulary);
size_t cuda_row_stats_bytes(int64_t rows, int parts);

/* ---- functions that several operations use ---- */

/* cuda_align_bytes - round a size up to a multiple of 64. */
static inline size_t cuda_align_bytes(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* cuda_reduce_slice - return the number of elements that each block sums, where `sums` sums over
 * `count` elements are computed. The sums of all blocks fit into CUDA_REDUCE_BLOCKS_MAX doubles. */
int64_t cuda_reduce_slice(int64_t count, int64_t sums);

/* cuda_reduce_doubles - *out = the sum of parts f64 [count], in a fixed order; all on the
 * device. */
status cuda_reduce_doubles(struct kernels *k, double *out, const double *parts, int64_t count);

/* cuda_reduce_parts - out[c] += the sum over r of parts[r, c], in a fixed order; overwrite: `=`.
 *
 * Shapes    out f32 [columns], parts f32 [rows, stride] */
status cuda_reduce_parts(struct kernels *k, float *out, const float *parts, int64_t rows,
                         int64_t stride, int64_t columns, bool overwrite);

/* cuda_column_sums - out[c] += the sum of column c of dy; overwrite: `=`.
 *
 * Shapes    out f32 [M], dy [N, M]; scratch of cuda_column_sums_scratch(M) bytes
 * Numerics  the order of the sum depends on the shape alone */
status cuda_column_sums(struct kernels *k, float *out, struct tensor dy, bool overwrite,
                        void *scratch);

/* cuda_column_sums_scratch - return the scratch bytes of cuda_column_sums. */
size_t cuda_column_sums_scratch(int64_t columns);

/* cuda_bias_gradient - like cuda_column_sums, with scratch memory of the context.
 *
 * Shapes    dbias f32 [1, M], dy [N, M] */
status cuda_bias_gradient(struct kernels *k, struct tensor dbias, struct tensor dy, bool overwrite);

/* cuda_activation_apply - y = act(a). */
status cuda_activation_apply(struct kernels *k, struct tensor y, struct tensor a,
                             enum activation act);

/* cuda_fill_rows - copy one row to every row of c. Shapes: c [rows, n], row f32 [1, n]. */
status cuda_fill_rows(struct kernels *k, struct tensor c, struct tensor row);

/* ---- launches: graph.c ---- */

/* A kernel launch without its arguments. */
struct cuda_launch {
    const char *name;
    const void *kernel;
    unsigned grid[3], block[3];
    size_t shared_bytes;
    int count;           /* number of arguments */
    const size_t *sizes; /* [count] bytes of each argument; static storage */
};

/* cuda_launch_kernel - queue a kernel on the stream of k, or handle it as part of the current
 * graph.
 *
 * Errors    STATUS_INTERNAL if the launch fails */
status cuda_launch_kernel(struct kernels *k, const struct cuda_launch *launch,
                          void *const *arguments);

/* A call of a library (cuBLASLt, CUB) that queues work on the stream of k. */
typedef status cuda_library_call(struct kernels *k, const void *argument);
/* cuda_launch_call - like cuda_launch_kernel, for a library call. Two calls are the same if their
 * `bytes` bytes of argument are equal, so every byte, padding included, must be defined. */
status cuda_launch_call(struct kernels *k, cuda_library_call *call, const void *argument,
                        size_t bytes);

/* cuda_graph_end_segment - start the launches that the calling thread has deferred for this stream
 * (NULL: any stream). Call it before any stream operation that is not a launch. */
status cuda_graph_end_segment(const void *stream);

/* cuda_graphs_create - create the graphs of a context, disabled, and set the graph functions of its
 * table. cuda_graphs_destroy - release all graphs of a context. */
status cuda_graphs_create(struct kernels *k);
void cuda_graphs_destroy(struct kernels *k);

/* ---- libraries: cuBLASLt and CUB on a GPU, plain loops in the emulator of the tests ---- */

/* A GEMM with its epilogue. Absent tensors disable a part of the epilogue. */
struct cuda_gemm {
    struct tensor c; /* [m, n], f32 or the type of a and b */
    struct tensor a; /* [m, k], or [k, m] with transpose_a */
    struct tensor b; /* [k, n], or [n, k] with transpose_b */
    bool transpose_a, transpose_b;
    bool accumulate;     /* add to c and sums; not with a bias or an activation */
    struct tensor bias;  /* f32 [1, n], added to every row; absent */
    enum activation act; /* applied after the bias */
    bool derivative;     /* multiply by the activation's derivative at `aux` instead */
    struct tensor aux;   /* [m, n]: input of the activation, written for backward; absent */
    struct tensor sums;  /* f32 [1, m] (+)= sums of op(a) over k; requires transpose_a; absent */
};

/* cuda_gemm_run - c (+)= act(op(a) op(b) + bias).
 *
 * Order     queued on the stream of k, or handled as part of the current graph
 * Numerics  f32 sums, in an order that depends on the shape and on the algorithm of the plan
 *           (gemm.h)
 * Errors    STATUS_INTERNAL if cuBLASLt fails or accumulate is combined with a bias or an
 *           activation */
status cuda_gemm_run(struct kernels *k, const struct cuda_gemm *p);
/* cuda_gemm_launch - call cuBLASLt at once; cuda_gemm_run calls it through cuda_launch_call. */
status cuda_gemm_launch(struct kernels *k, const struct cuda_gemm *p);

/* cuda_tune, cuda_tuned - implement kernels_tune and kernels_tune_import. */
status cuda_tune(struct kernels *k, bool measure, char **text);
status cuda_tuned(struct kernels *k, const char *text);

/* cuda_gemm_create - open cuBLASLt, allocate its workspace and read the file of tuned plans.
 *
 * Errors    STATUS_UNAVAILABLE with the name of the missing library */
status cuda_gemm_create(struct kernels *k, struct cuda_gemm_context **out);
void cuda_gemm_destroy(struct cuda_gemm_context **gemm);

/* cuda_gemm_library_name - return name and version of the library, such as "cuBLASLt 13.1.0". */
const char *cuda_gemm_library_name(const struct cuda_gemm_context *gemm);

/* cuda_sort_rows - sort the rows 0 .. count - 1 by their ids; the sort is stable.
 *
 * Shapes    ids, sorted_ids, sorted_rows int32 [count]
 * Memory    scratch of cuda_sort_scratch(count) bytes */
status cuda_sort_rows(struct kernels *k, int32_t *sorted_ids, int32_t *sorted_rows,
                      const int32_t *ids, int64_t count, void *scratch);
/* cuda_sort_launch - sort at once; cuda_sort_rows calls it through cuda_launch_call. */
status cuda_sort_launch(struct kernels *k, int32_t *sorted_ids, int32_t *sorted_rows,
                        const int32_t *ids, int64_t count, void *scratch);
/* cuda_sort_scratch - return the scratch bytes of cuda_sort_rows for `count` ids. */
size_t cuda_sort_scratch(int64_t count);
