/* What the attention kernels share: the problem as they see it, who sees whom, dropout's elements.
 *
 * Two families. Tiles (attention.cu, attention_backward.cu): bf16 on tensor cores, head widths of 32, 64,
 * 96 and 128, rows that can be read 16 bytes at a time; attention_wgmma.cu: the forward pass where the GPU has more.
 * Rows (attention_rows.cu): any type, width up to
 * 256 and alignment, a warp for each row; for fp32 and for what tiles do not have.
 *
 * Order     every output has one owner that adds in an order which depends on the shape alone; a sequence's
 *           results do not depend on the others in the call */
#pragma once

#include "kernels/cuda/dropout.cuh"

enum { ATTENTION_WIDTH_MAX = 256 };

template <typename T> struct attention_task {
    matrix<const T> q, keys, values, o, d_o;
    matrix<T> out; /* o forward, dq backward */
    matrix<T> dkeys, dvalues;
    float *lse; /* [heads, rows of q], may be absent forward */
    int64_t lse_stride;
    float *delta; /* [heads, rows of q]: d_o . o */
    int64_t rows_q;
    const int32_t *cu_q, *cu_k, *branches;
    int heads, group;          /* group: query heads on one key-value head */
    int first_head, all_heads; /* of the model, for dropout */
    int64_t width, window, longest_k;
    int64_t tiles; /* of a sequence, in the grid */
    bool causal;
    float scale;
    struct dropout dropout;
};

/* A sequence: its first rows and lengths. */
struct attention_sequence {
    int first_q, queries, first_k, keys;
};

template <typename T>
GPU_INLINE struct attention_sequence sequence_of(const attention_task<T> &a, int64_t i)
{
    return {a.cu_q[i], a.cu_q[i + 1] - a.cu_q[i], a.cu_k[i], a.cu_k[i + 1] - a.cu_k[i]};
}

/* The end of the keys that query i sees, and their beginning. */
template <typename T>
GPU_INLINE int visible_end(const attention_task<T> &a, const struct attention_sequence &s, int i)
{
    int end = a.causal ? i + s.keys - s.queries + 1 : s.keys;
    return end < 0 ? 0 : end;
}

template <typename T> GPU_INLINE int visible_begin(const attention_task<T> &a, int end)
{
    return a.window > 0 && end > a.window ? end - static_cast<int>(a.window) : 0;
}

/* Keys [begin, end) of the block's sequence, which its queries from `end` on do not see. */
struct hidden_keys {
    int begin, end;
};

template <typename T> GPU_INLINE struct hidden_keys hidden_of(const attention_task<T> &a)
{
    if (a.branches == nullptr) {
        return {0, 0};
    }
    const int32_t *branch = a.branches + 2 * (blockIdx.x / a.tiles);
    return {branch[0], branch[1]};
}

GPU_INLINE bool is_hidden(const struct hidden_keys &h, int64_t query, int64_t key)
{
    return query >= h.end && key >= h.begin && key < h.end;
}

/* Dropout's factor without its scale, of a query's row, a head and a key counted in the sequence. */
template <typename T>
GPU_INLINE bool attention_keeps(const attention_task<T> &a, int64_t row, int head, int64_t key)
{
    return !(a.dropout.probability > 0) ||
           dropout_keeps(a.dropout, (row * a.all_heads + a.first_head + head) * a.longest_k + key);
}

template <typename T> GPU_INLINE float attention_scale_kept(const attention_task<T> &a)
{
    return a.dropout.probability > 0 ? dropout_scale(a.dropout) : 1.0f;
}

/* ---- host ---- */

template <typename T>
static inline attention_task<T> attention_task_of(struct tensor q, struct tensor keys,
                                                  struct tensor values, struct tensor lse,
                                                  const struct attention *a)
{
    attention_task<T> t = {};
    t.q = matrix_of<const T>(q);
    t.keys = matrix_of<const T>(keys);
    t.values = matrix_of<const T>(values);
    t.lse = static_cast<float *>(lse.data);
    t.lse_stride = lse.stride;
    t.rows_q = q.rows;
    t.cu_q = a->cu_q;
    t.cu_k = a->cu_k;
    t.branches = a->branches;
    t.heads = a->heads;
    t.first_head = a->first_head;
    t.all_heads = a->all_heads > 0 ? a->all_heads : a->heads;
    t.group = a->heads / a->kv_heads;
    t.width = a->head_width;
    t.window = a->window;
    t.longest_k = a->longest_k;
    t.causal = a->causal;
    t.scale = a->scale;
    t.dropout = a->dropout;
    return t;
}

/* attention_fits_tiles - whether the tensor-core kernels have this width, type and alignment. */
static inline bool attention_fits_tiles(const struct attention *a, const struct tensor *tensors,
                                        int count)
{
    int64_t d = a->head_width;
    bool fits = d == 32 || d == 64 || d == 96 || d == 128;
    for (int i = 0; i < count; i++) {
        fits = fits && tensors[i].dtype == DTYPE_BF16 && operation_wide(tensors[i]);
    }
    return fits;
}

/* attention_wgmma_forward - on a GPU that has wgmma, for what that is written for; *done: it was. */
status attention_wgmma_forward(struct kernels *k, struct tensor o, struct tensor lse,
                               struct tensor q, struct tensor keys, struct tensor values,
                               const struct attention *a, bool *done);
status attention_rows_forward(struct kernels *k, struct tensor o, struct tensor lse,
                              struct tensor q, struct tensor keys, struct tensor values,
                              const struct attention *a);
status attention_rows_backward(struct kernels *k, struct tensor dq, struct tensor dkeys,
                               struct tensor dvalues, struct tensor d_o, struct tensor q,
                               struct tensor keys, struct tensor values, struct tensor lse,
                               const float *delta, const struct attention *a);
