/* Common parts of the attention kernels: the kernel argument, the mask, and the element indices
 * of dropout.
 *
 * There are two families of kernels.
 *   tiles     attention.cu, attention_backward.cu: bf16 on tensor cores (mma.sync), head widths of
 *             32, 64, 96 and 128, rows that can be read 16 bytes at a time. attention_wgmma.cu: the
 *             forward pass on sm_90a
 *   rows      attention_rows.cu: any type, alignment and head width up to 256, one warp for each
 *             row; for fp32 and for all cases that tiles do not support
 *
 * Order     One block or warp computes each output element and adds in an order that depends on the
 *           shape alone. The results of a sequence do not depend on the other sequences of
 *           the call. */
#pragma once

#include "kernels/cuda/random.cuh"

template <typename T> struct attention_task {
    matrix<const T> q, keys, values, o, d_o;
    matrix<T> out; /* o in the forward pass, dq in the backward pass */
    matrix<T> dkeys, dvalues;
    float *lse; /* [heads, rows of q]; may be absent in the forward pass */
    int64_t lse_stride;
    float *delta;    /* [heads, rows of q]: d_o . o */
    uint32_t *turns; /* backward with wgmma: [heads, rows of q], then a ticket counter */
    int64_t rows_q;
    const int32_t *cu_q, *cu_k, *shared_prefix_offsets;
    int heads, group;          /* group: query heads for each key-value head */
    int first_head, all_heads; /* first head of this rank, and heads of the model; for dropout */
    int64_t width, window, longest_k;
    int64_t tiles; /* blocks of each sequence in the grid */
    bool causal;
    bool fuses_dq;     /* backward: a block that has all keys of a sequence also computes dq */
    float scale;       /* of the products q k^T */
    float score_scale; /* of the scores in a tile; 1 if the call modifies them */
    float softcap, softcap_inverse; /* 0: none */
    const float *bias;              /* [heads, span] by distance; may be absent */
    const int32_t *buckets;         /* [span] */
    float *bias_parts;              /* [BIAS_PARTS, heads, bucket_count]; may be absent */
    int64_t span;
    int64_t sequences;
    int bucket_count;
    struct dropout dropout;
    int64_t dropout_pitch; /* dropout elements of a query and head */
};

/* The first rows and the lengths of a sequence. */
struct attention_sequence {
    int first_q, queries, first_k, keys;
};

template <typename T>
GPU_INLINE struct attention_sequence get_sequence(const attention_task<T> &a, int64_t i)
{
    return {a.cu_q[i], a.cu_q[i + 1] - a.cu_q[i], a.cu_k[i], a.cu_k[i + 1] - a.cu_k[i]};
}

/* visible_end - return the end of the keys to which query i attends. */
template <typename T>
GPU_INLINE int visible_end(const attention_task<T> &a, const struct attention_sequence &s, int i)
{
    int position = i + s.keys - s.queries, window = static_cast<int>(a.window);
    int end = a.causal ? position + 1 : window > 0 ? position + window : s.keys;
    return end < 0 ? 0 : end < s.keys ? end : s.keys;
}

/* visible_begin - return the first key to which query i attends. */
template <typename T>
GPU_INLINE int visible_begin(const attention_task<T> &a, const struct attention_sequence &s, int i)
{
    int begin = i + s.keys - s.queries + 1 - static_cast<int>(a.window);
    return a.window > 0 && begin > 0 ? begin : 0;
}

/* Keys [begin, end) of the block's sequence to which the queries from `end` on do not attend: the
 * first of two responses to one prompt (struct attention, shared_prefix_offsets). */
struct hidden_keys {
    int begin, end;
};

template <typename T> GPU_INLINE struct hidden_keys get_hidden_keys(const attention_task<T> &a)
{
    if (a.shared_prefix_offsets == nullptr) {
        return {0, 0};
    }
    const int32_t *offsets = a.shared_prefix_offsets + 2 * (blockIdx.x / a.tiles);
    return {offsets[0], offsets[1]};
}

GPU_INLINE bool is_hidden(const struct hidden_keys &h, int64_t query, int64_t key)
{
    return query >= h.end && key >= h.begin && key < h.end;
}

/* The template argument MODIFIED of the kernels states whether the scores have a soft-cap or a
 * bias. Other calls need no instructions and registers for them. */

/* Returns the derivative of the soft-cap at a score. */
template <typename T> GPU_INLINE float softcap_derivative(const attention_task<T> &a, float score)
{
    float t = score * a.softcap_inverse;
    return 1.0f - t * t;
}

/* Returns the element of the distances for j - i = 0 in a sequence. */
template <typename T>
GPU_INLINE int64_t attention_distance_zero(const attention_task<T> &a,
                                           const struct attention_sequence &s)
{
    return a.longest_k - 1 + CUDA_BIAS_PADDING - (s.keys - s.queries);
}

/* Returns the bias of key 0 for query 0 of a sequence. The bias of query i and key j is j - i
 * elements later. */
template <typename T>
GPU_INLINE const float *attention_bias_origin(const attention_task<T> &a,
                                              const struct attention_sequence &s, int head)
{
    return a.bias + head * a.span + attention_distance_zero(a, s);
}

/* Returns the dropout element of a key. `row` is the row of the query, `key` the index within
 * the sequence. */
template <typename T>
GPU_INLINE int64_t attention_dropout_element(const attention_task<T> &a, int64_t row, int head,
                                             int64_t key)
{
    return (row * a.all_heads + a.first_head + head) * a.dropout_pitch + key;
}

/* Returns whether dropout keeps an element. */
template <typename T>
GPU_INLINE bool attention_is_kept(const attention_task<T> &a, int64_t row, int head, int64_t key)
{
    return !(a.dropout.probability > 0) ||
           dropout_is_kept(a.dropout, attention_dropout_element(a, row, head, key));
}

template <typename T> GPU_INLINE float attention_dropout_scale(const attention_task<T> &a)
{
    return a.dropout.probability > 0 ? get_dropout_scale(a.dropout) : 1.0f;
}

/* ---- host ---- */

/* The bias of a call by distance, in scratch memory. Element i belongs to the distance
 * i - (longest_k - 1) - PADDING. */
struct attention_distances {
    int64_t span;
    float *values;    /* [heads, span]; NULL: no bias */
    int32_t *buckets; /* [span] */
    float *parts;     /* [BIAS_PARTS, heads, buckets] partial gradients; NULL: no gradient */
};

/* A call: its settings and its bias. */
struct attention_call {
    const struct attention *a;
    struct attention_distances distances;
};

static inline bool attention_is_modified(const struct attention_call *call)
{
    return call->a->softcap > 0 || call->distances.values != NULL;
}

template <typename T>
static inline attention_task<T> make_attention_task(struct tensor q, struct tensor keys,
                                                    struct tensor values, struct tensor lse,
                                                    const struct attention_call *call)
{
    const struct attention *a = call->a;
    attention_task<T> t = {};
    t.q = make_matrix<const T>(q);
    t.keys = make_matrix<const T>(keys);
    t.values = make_matrix<const T>(values);
    t.lse = static_cast<float *>(lse.data);
    t.lse_stride = lse.stride;
    t.rows_q = q.rows;
    t.cu_q = a->cu_q;
    t.cu_k = a->cu_k;
    t.shared_prefix_offsets = a->shared_prefix_offsets;
    t.heads = a->heads;
    t.first_head = a->first_head;
    t.all_heads = a->all_heads > 0 ? a->all_heads : a->heads;
    t.group = a->heads / a->kv_heads;
    t.width = a->head_width;
    t.window = number_min(a->window, a->longest_q + a->longest_k); /* an int in the kernels */
    t.longest_k = a->longest_k;
    t.causal = a->causal;
    t.scale = a->scale;
    t.score_scale = attention_is_modified(call) ? 1.0f : a->scale;
    t.softcap = a->softcap;
    t.softcap_inverse = a->softcap > 0 ? 1.0f / a->softcap : 0.0f;
    t.dropout = a->dropout;
    t.dropout_pitch = attention_dropout_pitch(a->longest_k);
    t.bias = call->distances.values;
    t.buckets = call->distances.buckets;
    t.bias_parts = call->distances.parts;
    t.span = call->distances.span;
    t.bucket_count = static_cast<int>(a->bias.table.rows);
    t.sequences = a->sequences;
    return t;
}

/* attention_fits_tiles - return whether the tile kernels support this head width, type
 * and alignment. */
static inline bool attention_fits_tiles(const struct attention *a, const struct tensor *tensors,
                                        int count)
{
    int64_t d = a->head_width;
    bool fits = d == 32 || d == 64 || d == 96 || d == 128;
    for (int i = 0; i < count; i++) {
        fits = fits && tensors[i].dtype == DTYPE_BF16 && operation_is_aligned(tensors[i]);
    }
    return fits;
}

/* attention_wgmma_forward - compute the forward pass with wgmma if the GPU and the call support it.
 *
 * *done is set to whether it did. It supports head widths of 64 and 128, without dropout and
 * shared prefixes. */
status attention_wgmma_forward(struct kernels *k, struct tensor o, struct tensor lse,
                               struct tensor q, struct tensor keys, struct tensor values,
                               const struct attention_call *call, bool *done);

/* attention_wgmma_supports_backward - return whether the backward pass with wgmma supports the GPU
 * and the call: head widths of 64 and 128. */
bool attention_wgmma_supports_backward(const struct attention *a);

/* attention_wgmma_backward - compute the backward pass with wgmma, for calls that
 * attention_wgmma_supports_backward accepts.
 *
 * *done is false if the driver refused a TMA map; nothing was queued then.
 *
 * Memory    sums f32 [heads, rows of q, head_width], or NULL if longest_k is at most
 *           CUDA_ATTENTION_KEYS; t.turns zero */
status attention_wgmma_backward(struct kernels *k, const attention_task<bf16> &t, struct tensor d_o,
                                struct tensor q, struct tensor keys, struct tensor values,
                                float *sums, const struct attention_call *call, bool *done);

/* attention_rows_forward - implement attention_forward with one warp for each row. */
status attention_rows_forward(struct kernels *k, struct tensor o, struct tensor lse,
                              struct tensor q, struct tensor keys, struct tensor values,
                              const struct attention_call *call);

/* attention_rows_backward - implement attention_backward with one warp for each row.
 *
 * Shapes    delta f32 [heads, rows of q]: row sums of d_o * o */
status attention_rows_backward(struct kernels *k, struct tensor dq, struct tensor dkeys,
                               struct tensor dvalues, struct tensor d_o, struct tensor q,
                               struct tensor keys, struct tensor values, struct tensor lse,
                               const float *delta, const struct attention_call *call);

/* attention_bias_expand - compute the bias of each distance, if the call has one.
 *
 * Memory    *d is in scratch memory that the caller releases; parts only if `gradient` is set */
status attention_bias_expand(struct kernels *k, struct attention_distances *d,
                             const struct attention *a, bool gradient);

/* attention_tiles_bias_gradient - compute the partial gradients of the bias, for calls that
 * attention_fits_tiles accepts.
 *
 * Shapes    t has the operands of the backward pass */
status attention_tiles_bias_gradient(struct kernels *k, const attention_task<bf16> &t);

/* attention_bias_finish - add the partial gradients to the gradient of the table, if it has one. */
status attention_bias_finish(struct kernels *k, const struct attention_distances *d,
                             const struct attention *a);
