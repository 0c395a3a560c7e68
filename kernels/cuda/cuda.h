/* Internal header of the CUDA back-end: the state of a context, and functions that
 * operations share.
 *
 * Each operation of kernels.h is a function cuda_<name>. It queues kernels on the stream of the
 * context, takes scratch memory from the arena and releases it at once. Operations of one context
 * run in order, so the next operation may use the same memory. Grids and the order of sums depend
 * only on shapes, so equal calls give equal bits on every GPU. GEMMs are the exception (gemm.h).
 *
 * Errors    unless stated otherwise, STATUS_INTERNAL if a call of CUDA or cuBLASLt fails, or if the
 *           arena is too small */
#pragma once

#include "base/device/arena.h"
#include "kernels/kernels_table.h"

enum {
    CUDA_MIN_CAPABILITY = 8,
    CUDA_MIN_CAPABILITY_FP8 = 89,     /* in the units of cuda_device_capability */
    CUDA_MAJOR_CAPABILITY_ROWWISE = 9 /* of FP8 GEMMs with a scale for each row */
};

#define CUDA_GEMM_WORKSPACE_BYTES ((size_t)32 << 20) /* for cuBLASLt; Hopper needs 32 MiB */

struct cuda_gemm_context; /* cuBLASLt, and a plan for each GEMM shape (gemm.h) */
struct cuda_graphs;       /* captured launches (graph.c) */

struct cuda_state {
    struct arena scratch;
    int64_t classifier_rows; /* rows of a chunk of logits */
    struct cuda_gemm_context *gemm;
    struct cuda_graphs *graphs;
};

extern const struct device_driver cuda_device_driver;

/* cuda_device_capability - return 10 times the compute capability of a GPU: 90 is 9.0. */
int cuda_device_capability(const struct device *dev);

/* cuda_create - implement `create` of struct kernels_driver (kernels_table.h).
 *
 * Units     classifier_rows: number of rows of logits that exist at a time */
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
    CUDA_NORM_BLOCKS = 132, /* blocks of the backward pass of a norm */
    CUDA_FP8_PARTS = 16, /* parts of the columns of an FP8 operand that are measured separately */
    CUDA_COLUMN_SLICES = 128,
    CUDA_EMBEDDING_SEGMENT = 64, /* sorted rows of a partial sum of an embedding gradient */
    CUDA_REDUCE_BLOCKS_MAX = 1 << 18,
    CUDA_ROW_STATS_BYTES = 24, /* statistics of a row that vocabulary shards exchange */
    CUDA_BIAS_PARTS = 64,      /* partial gradients of a relative position bias */
    CUDA_BIAS_PADDING = 256,   /* distances of rows in tiles after the end of a sequence */
    CUDA_ATTENTION_KEYS = 128  /* keys of a block of the attention backward pass with wgmma */
};

/* cuda_bias_span - return the number of distances for which attention expands its bias. */
int64_t cuda_bias_span(int64_t longest_q, int64_t longest_k);

/* cuda_bias_part_bytes - return the bytes of the partial gradients of a bias. */
size_t cuda_bias_part_bytes(int64_t heads, int64_t buckets);

/* cuda_scratch_bytes - return the maximum number of scratch bytes that one operation takes from
 * the arena. */
size_t cuda_scratch_bytes(enum dtype dtype, int64_t classifier_rows,
                          const struct kernels_limits *limits);

/* cuda_classifier_rows - return the number of rows of logits that exist at a time. */
int64_t cuda_classifier_rows(enum dtype dtype, const struct kernels_limits *limits);

/* cuda_gemm_vector_bytes - return the size of the buffer for a converted bias or a
 * bias gradient. */
size_t cuda_gemm_vector_bytes(const struct kernels_limits *limits);

/* cuda_logits_stride - return the row stride of the logits: the vocabulary rounded up to eight. */
int64_t cuda_logits_stride(int64_t vocabulary);

/* cuda_logits_bytes - return the size of the logits of these rows. */
size_t cuda_logits_bytes(enum dtype dtype, int64_t rows, int64_t vocabulary);

/* cuda_f32_rows - return the number of rows of a chunk with f32 logits: half of `rows`, the number
 * of rows in bf16, rounded up. */
int64_t cuda_f32_rows(int64_t rows);

/* cuda_row_stats_bytes - return the size of the statistics of rows over `parts`
 * vocabulary shards. */
size_t cuda_row_stats_bytes(int64_t rows, int parts);

/* cuda_head_loss_bytes - return the size of the terms of `count` losses of a fine-tuning head. */
size_t cuda_head_loss_bytes(int64_t count);

/* cuda_embedding_parts_stride - return the row stride of the partial sums of an
 * embedding gradient. */
int64_t cuda_embedding_parts_stride(int64_t columns);

/* cuda_embedding_parts_bytes - return the size of these partial sums, for `rows` ids. */
size_t cuda_embedding_parts_bytes(int64_t rows, int64_t columns);

/* ---- functions that several operations use ---- */

/* cuda_align_bytes - round a size up to a multiple of 64. */
static inline size_t cuda_align_bytes(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* cuda_take_scratch - return scratch memory for the kernels that the calling operation queues. The
 * memory is released at once: kernels of later operations run after them on the stream.
 *
 * Memory    one call for each operation; a second one returns the same memory
 * Errors    as arena_take */
static inline status cuda_take_scratch(struct kernels *k, size_t bytes, void **out)
{
    struct arena *scratch = &cuda_get_state(k)->scratch;
    size_t mark = arena_mark(scratch);
    TRY(arena_take(scratch, bytes, out));
    arena_release(scratch, mark);
    return STATUS_OK;
}

/* cuda_reduce_slice - return the number of elements that one block adds up, for `sums` sums of
 * `count` elements each. All sums together use at most CUDA_REDUCE_BLOCKS_MAX blocks. */
int64_t cuda_reduce_slice(int64_t count, int64_t sums);

/* cuda_reduce_doubles - compute *out = the sum of parts.
 *
 * Shapes    out f64 [1], parts f64 [count], on the device
 * Numerics  fixed order */
status cuda_reduce_doubles(struct kernels *k, double *out, const double *parts, int64_t count);

enum { CUDA_PARTS_SUMS_MAX = 3 };

/* A sum of partial results. */
struct cuda_parts_sum {
    float *out;     /* f32 [columns]; NULL: not computed */
    bool overwrite; /* out is set, not added to */
};

/* cuda_reduce_parts - compute sums[i].out[c] += the sum over r of parts[r, i, c].
 *
 * Shapes    parts f32 [rows, count, columns]; count is at most CUDA_PARTS_SUMS_MAX
 * Numerics  fixed order */
status cuda_reduce_parts(struct kernels *k, const struct cuda_parts_sum *sums, int count,
                         const float *parts, int64_t rows, int64_t columns);

/* cuda_column_sums - compute sums[c] += the sum of column c of dy.
 *
 * Shapes    sums f32 [1, M], dy [N, M]
 * Memory    scratch has cuda_column_sums_scratch(M) bytes
 * Numerics  the order of the sum depends only on the shape */
status cuda_column_sums(struct kernels *k, struct bias_gradient sums, struct tensor dy,
                        void *scratch);

/* cuda_column_sums_scratch - return the scratch bytes of cuda_column_sums. */
size_t cuda_column_sums_scratch(int64_t columns);

/* cuda_bias_gradient - call cuda_column_sums with scratch memory of the context.
 *
 * Shapes    dbias f32 [1, M], dy [N, M] */
status cuda_bias_gradient(struct kernels *k, struct bias_gradient dbias, struct tensor dy);

/* cuda_activation_backward_sums - compute dx = dy * act', and the sums of its columns, as
 * activation_backward and cuda_bias_gradient do.
 *
 * Shapes    dx, dy, saved [N, M], dbias f32 [1, M] */
status cuda_activation_backward_sums(struct kernels *k, struct tensor dx,
                                     struct bias_gradient dbias, struct tensor dy,
                                     struct tensor saved, enum activation act);

/* cuda_activation_apply - compute y = act(a). */
status cuda_activation_apply(struct kernels *k, struct tensor y, struct tensor a,
                             enum activation act);

/* cuda_fill_rows - copy one row to every row of c.
 *
 * Shapes    c [rows, n];  row [1, n], f32 or the dtype of c */
status cuda_fill_rows(struct kernels *k, struct tensor c, struct tensor row);

/* ---- launches: graph.c, graph_ops.c ---- */

/* A kernel launch without its arguments. */
struct cuda_launch {
    const char *name;
    const void *kernel;
    unsigned grid[3], block[3];
    size_t shared_bytes;
    int count;           /* number of arguments */
    const size_t *sizes; /* [count] bytes of each argument; static storage */
};

/* cuda_launch_kernel - queue a kernel on the stream of k. Inside a region of graphs, capture it or
 * compare it with the captured launch instead (graph.c).
 *
 * Errors    STATUS_INTERNAL if the launch fails */
status cuda_launch_kernel(struct kernels *k, const struct cuda_launch *launch,
                          void *const *arguments);

/* A call of a library (cuBLASLt, CUB) that queues work on the stream of k. */
typedef status cuda_library_call(struct kernels *k, const void *argument);

/* cuda_launch_call - queue a library call as cuda_launch_kernel queues a kernel.
 *
 * Memory    argument [bytes]: two calls are equal if the function and these bytes are equal, so
 *           every byte must be defined, padding included
 * Errors    errors of the call */
status cuda_launch_call(struct kernels *k, cuda_library_call *call, const void *argument,
                        size_t bytes);

/* cuda_graph_end_segment - start the launches that the calling thread has deferred for this stream
 * (NULL: any stream). Call it before any stream operation that is not a launch. */
status cuda_graph_end_segment(const void *stream);

/* cuda_graph_is_active - return whether the calling thread is in a region of this stream. */
bool cuda_graph_is_active(const void *stream);

/* cuda_graph_queue_work - implement device_queue_work. */
status cuda_graph_queue_work(const void *stream, const struct device_work *work,
                             const void *argument, size_t bytes);

/* cuda_graphs_create - create the graphs of a context, disabled, and set the graph functions of
 * its table.
 *
 * Errors    STATUS_INTERNAL out of memory */
status cuda_graphs_create(struct kernels *k);

/* cuda_graphs_destroy - release all graphs of a context. */
void cuda_graphs_destroy(struct kernels *k);

/* ---- libraries: cuBLASLt and CUB on a GPU, plain loops in the emulator of the tests ---- */

/* A GEMM with its epilogue. Absent tensors disable a part of the epilogue. */
struct cuda_gemm {
    struct tensor c; /* [m, n], f32 or the type of a and b */
    struct tensor a; /* [m, k], or [k, m] with transpose_a */
    struct tensor b; /* [k, n], or [n, k] with transpose_b, as FP8 operands are */
    bool transpose_a, transpose_b;
    bool accumulate;     /* add to c; not with a bias or an activation */
    struct tensor bias;  /* [1, n], f32 or the dtype of c, added to every row; absent */
    enum activation act; /* applied after the bias */
    bool derivative;     /* multiply by the activation's derivative at `aux` instead */
    struct tensor aux;   /* [m, n]: input of the activation, written for backward; absent */
    /* a bias gradient: with transpose_a f32 [1, m], sums of op(a) over k; otherwise f32 [1, n],
     * sums of c over m; absent */
    struct bias_gradient sums;
    const float *scale_a, *scale_b; /* factors of FP8 operands, on the device; NULL: 1 */
    bool scales_rows; /* scale_a has m factors for the rows of c, scale_b n for its columns */
};

/* cuda_gemm_run - compute c (+)= act(op(a) op(b) + bias).
 *
 * Order     as cuda_launch_call
 * Numerics  f32 sums, in an order that depends on the shape and on the algorithm of the
 *           plan (gemm.h)
 * Errors    STATUS_INTERNAL if cuBLASLt fails or accumulate is combined with a bias or
 *           an activation */
status cuda_gemm_run(struct kernels *k, const struct cuda_gemm *p);

/* cuda_gemm_launch - call cuBLASLt at once; cuda_gemm_run calls it through cuda_launch_call. */
status cuda_gemm_launch(struct kernels *k, const struct cuda_gemm *p);

/* cuda_tune - implement kernels_tune. */
status cuda_tune(struct kernels *k, bool measure, char **text);

/* cuda_tune_import - implement kernels_tune_import. */
status cuda_tune_import(struct kernels *k, const char *text);

/* cuda_gemm_create - open cuBLASLt, allocate its workspace and read the file of tuned plans.
 *
 * Errors    STATUS_UNAVAILABLE with the name of the missing library */
status cuda_gemm_create(struct kernels *k, struct cuda_gemm_context **out);

/* cuda_gemm_destroy - release the plans, the workspace and cuBLASLt, and set *gemm to NULL. */
void cuda_gemm_destroy(struct cuda_gemm_context **gemm);

/* cuda_gemm_library_name - return name and version of the library, such as "cuBLASLt 13.1.0". */
const char *cuda_gemm_library_name(const struct cuda_gemm_context *gemm);

/* cuda_sort_rows - sort the rows 0 .. count - 1 by their ids; the sort is stable.
 *
 * Shapes    ids, sorted_ids, sorted_rows int32 [count]
 * Memory    scratch has cuda_sort_scratch(count) bytes */
status cuda_sort_rows(struct kernels *k, int32_t *sorted_ids, int32_t *sorted_rows,
                      const int32_t *ids, int64_t count, void *scratch);

/* cuda_sort_launch - sort at once; cuda_sort_rows calls it through cuda_launch_call. */
status cuda_sort_launch(struct kernels *k, int32_t *sorted_ids, int32_t *sorted_rows,
                        const int32_t *ids, int64_t count, void *scratch);

/* cuda_sort_scratch - return the scratch bytes of cuda_sort_rows for `count` ids. */
size_t cuda_sort_scratch(int64_t count);
