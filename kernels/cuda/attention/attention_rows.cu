/* Attention of any type and head width up to 256, one warp for each row: the cases that the tile
 * kernels do not support.
 *
 *   s_j = scale q . k_j,  p = softmax(s),  o = sum_j m_j p_j v_j     (m: dropout factors)
 *   ds_j = p_j (m_j (d_o . v_j) - d_o . o),  dq = scale sum_j ds_j k_j,
 *   dk_j = scale sum_i ds_ij q_i,  dv_j = sum_i m_ij p_ij d_o_i
 *   with a soft-cap c: s_j = c tanh(scale q . k_j / c), and ds_j *= 1 - (s_j / c)^2
 *   with a bias: s_j = scale q . k_j + bias_j, and its gradient is ds_j
 *
 * Launch    block 256, eight rows. Forward and dq: grid (sequences ceil(longest_q / 8), heads). dk
 *           and dv: grid (sequences ceil(longest_k / 8), kv_heads). 1 KiB of shared memory
 * Bias      grid (BIAS_PARTS, heads): each warp adds the gradients of every 512th query by bucket
 * Layout    A warp processes 32 keys (or queries) at a time. Each lane computes the dot products of
 *           one of them, and the columns lane, lane + 32, ... of the sums. The warp of a key
 *           iterates over the query heads of its group in order. */
#include "kernels/cuda/attention/attention.cuh"

enum { ROWS_THREADS = 256, ROWS_EACH = ROWS_THREADS / 32, COLUMNS_EACH = ATTENTION_WIDTH_MAX / 32 };
enum { BUCKETS_EACH = ATTENTION_BUCKETS_MAX / 32 };

template <typename T> GPU_INLINE float compute_dot(const T *a, const T *b, int64_t width)
{
    float sum = 0;
    for (int64_t d = 0; d < width; d++) {
        sum += gpu_float(a[d]) * gpu_float(b[d]);
    }
    return sum;
}

/* Returns the address of an element. */
template <typename T> GPU_INLINE T *get_element(const matrix<T> &m, int64_t row, int64_t column)
{
    return m.data + row * m.stride + column;
}

/* Returns the number of lanes that process an element, if `left` elements are left. */
GPU_INLINE int count_lanes(int64_t left)
{
    return static_cast<int>(left < 32 ? left : 32);
}

/* Returns the number of the warp's row (query or key) in the sequence of the block. */
template <typename T> GPU_INLINE int64_t get_warp_row(const attention_task<T> &a)
{
    return blockIdx.x % a.tiles * ROWS_EACH + threadIdx.x / 32;
}

/* Returns the score of query row q, number i, and key row k, number j, of a sequence. */
template <bool MODIFIED, typename T>
GPU_INLINE float compute_score(const attention_task<T> &a, const struct attention_sequence &s,
                               int head, const T *q, const T *k, int64_t i, int64_t j)
{
    float score = gpu_multiply(a.scale, compute_dot(q, k, a.width));
    if (MODIFIED && a.softcap > 0) {
        score = a.softcap * tanhf(score * a.softcap_inverse);
    }
    if (MODIFIED && a.bias != nullptr) {
        score += attention_bias_origin(a, s, head)[j - i];
    }
    return score;
}

/* Returns the probability of a score, for the backward pass. lse is rounded, and the compiler may
 * compute a score with another rounding than in the forward pass. The difference of a huge score
 * and lse can therefore be a large positive number. The probability is then 1. */
GPU_INLINE float get_probability(float score, float lse)
{
    float exponent = score - lse;
    return expf(exponent > 0.0f ? 0.0f : exponent);
}

/* A query of a head, and the keys that it attends to. */
template <typename T> struct query_row {
    int64_t row, kv_column; /* of the query, and of the head's keys and values */
    int64_t begin, end;     /* visible keys of its sequence */
    const T *q;
};

template <typename T>
GPU_INLINE query_row<T> get_query_row(const attention_task<T> &a,
                                      const struct attention_sequence &s, int head, int64_t i)
{
    int64_t row = s.first_q + i;
    return {row, head / a.group * a.width, visible_begin(a, s, i), visible_end(a, s, i),
            get_element(a.q, row, head * a.width)};
}

/* sums += sum over the lanes of factor times the lane's row. The rows are `stride` elements apart,
 * from `first` on. The lanes exchange their factors through the warp's part of scratch. */
template <typename T>
GPU_INLINE void accumulate_rows(float (&sums)[COLUMNS_EACH], float *scratch, float factor,
                                const T *first, int64_t stride, int count, int64_t width)
{
    int lane = threadIdx.x % 32;
    float *factors = scratch + threadIdx.x / 32 * 32;
    factors[lane] = factor;
    __syncwarp();
    for (int j = 0; j < count; j++) {
        float f = factors[j];
#pragma unroll
        for (int c = 0; c < COLUMNS_EACH; c++) {
            if (f != 0 && lane + 32 * c < width) {
                sums[c] += f * gpu_float(first[j * stride + lane + 32 * c]);
            }
        }
    }
    __syncwarp();
}

GPU_INLINE void store_element(float *p, float x)
{
    *p = x;
}
GPU_INLINE void store_element(bf16 *p, float x)
{
    *p = gpu_bf16(x);
}

template <typename T>
GPU_INLINE void store_row(T *row, const float (&sums)[COLUMNS_EACH], float factor, int64_t width)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int c = 0; c < COLUMNS_EACH; c++) {
        if (lane + 32 * c < width) {
            store_element(row + lane + 32 * c, sums[c] * factor);
        }
    }
}

GPU_INLINE float warp_max(float x)
{
    for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2) {
        x = fmaxf(x, __shfl_xor_sync(~0u, x, lane_mask));
    }
    return x;
}

template <typename T, bool MODIFIED>
__global__ void __launch_bounds__(ROWS_THREADS) rows_forward(const attention_task<T> a)
{
    GPU_SHARED(float, scratch, ROWS_THREADS);
    struct attention_sequence s = get_sequence(a, blockIdx.x / a.tiles);
    int64_t i = get_warp_row(a);
    if (i >= s.queries) {
        return;
    }
    int lane = threadIdx.x % 32, head = blockIdx.y;
    const auto [row, kv_column, begin, end, q] = get_query_row(a, s, head, i);
    struct hidden_keys h = get_hidden_keys(a);
    float sums[COLUMNS_EACH] = {}, largest = -INFINITY, sum = 0;
    for (int64_t j = begin; j < end; j += 32) {
        int count = count_lanes(end - j);
        int64_t key = s.first_k + j;
        float score = -INFINITY;
        if (lane < count && !is_hidden(h, i, j + lane)) {
            const T *k = get_element(a.keys, key + lane, kv_column);
            score = compute_score<MODIFIED>(a, s, head, q, k, i, j + lane);
        }
        float largest_new = fmaxf(largest, warp_max(score));
        float rescale = largest == largest_new ? 1.0f : expf(largest - largest_new);
        float p = score == -INFINITY ? 0.0f : expf(score - largest_new);
        largest = largest_new;
        sum = sum * rescale + team_sum<32>(p, nullptr);
#pragma unroll
        for (int c = 0; c < COLUMNS_EACH; c++) {
            sums[c] *= rescale;
        }
        p = lane < count && !attention_is_kept(a, row, head, j + lane) ? 0.0f : p;
        accumulate_rows(sums, scratch, p, get_element(a.values, key, kv_column), a.values.stride,
                        count, a.width);
    }
    bool seen = begin < end;
    store_row(get_element(a.out, row, head * a.width), sums,
              seen ? attention_dropout_scale(a) / sum : 0.0f, a.width);
    if (lane == 0 && a.lse != nullptr) {
        a.lse[head * a.lse_stride + row] = seen ? largest + logf(sum) : -INFINITY;
    }
}

template <typename T, bool MODIFIED>
__global__ void __launch_bounds__(ROWS_THREADS) rows_backward_queries(const attention_task<T> a)
{
    GPU_SHARED(float, scratch, ROWS_THREADS);
    struct attention_sequence s = get_sequence(a, blockIdx.x / a.tiles);
    int64_t i = get_warp_row(a);
    if (i >= s.queries) {
        return;
    }
    int lane = threadIdx.x % 32, head = blockIdx.y;
    const auto [row, kv_column, begin, end, q] = get_query_row(a, s, head, i);
    const T *d_o = get_element(a.d_o, row, head * a.width);
    float lse = a.lse[head * a.lse_stride + row], delta = a.delta[head * a.rows_q + row];
    struct hidden_keys h = get_hidden_keys(a);
    float sums[COLUMNS_EACH] = {}, keep_scale = attention_dropout_scale(a);
    for (int64_t j = begin; j < end; j += 32) {
        int count = count_lanes(end - j);
        int64_t key = s.first_k + j;
        float ds = 0;
        if (lane < count && !is_hidden(h, i, j + lane)) {
            const T *k = get_element(a.keys, key + lane, kv_column);
            const T *v = get_element(a.values, key + lane, kv_column);
            float m = attention_is_kept(a, row, head, j + lane) ? keep_scale : 0.0f;
            float score = compute_score<MODIFIED>(a, s, head, q, k, i, j + lane);
            ds = get_probability(score, lse) * (m * compute_dot(d_o, v, a.width) - delta);
            ds *= MODIFIED ? softcap_derivative(a, score) : 1.0f;
        }
        accumulate_rows(sums, scratch, ds, get_element(a.keys, key, kv_column), a.keys.stride,
                        count, a.width);
    }
    store_row(get_element(a.out, row, head * a.width), sums, a.scale, a.width);
}

template <typename T, bool MODIFIED>
__global__ void __launch_bounds__(ROWS_THREADS) rows_backward_keys(const attention_task<T> a)
{
    GPU_SHARED(float, scratch, ROWS_THREADS);
    struct attention_sequence s = get_sequence(a, blockIdx.x / a.tiles);
    int64_t j = get_warp_row(a);
    if (j >= s.keys) {
        return;
    }
    int lane = threadIdx.x % 32;
    int64_t key = s.first_k + j, at = blockIdx.y * a.width;
    const T *k = get_element(a.keys, key, at);
    const T *v = get_element(a.values, key, at);
    struct hidden_keys h = get_hidden_keys(a);
    float dk[COLUMNS_EACH] = {}, dv[COLUMNS_EACH] = {}, keep_scale = attention_dropout_scale(a);
    for (int head = blockIdx.y * a.group; head < static_cast<int>(blockIdx.y + 1) * a.group;
         head++) {
        for (int64_t i = 0; i < s.queries; i += 32) {
            int count = count_lanes(s.queries - i);
            int64_t row = s.first_q + i + lane, end = visible_end(a, s, i + lane);
            float p = 0, ds = 0;
            bool is_visible =
                j < end && j >= visible_begin(a, s, i + lane) && !is_hidden(h, i + lane, j);
            if (lane < count && is_visible) {
                const T *q = get_element(a.q, row, head * a.width);
                const T *d_o = get_element(a.d_o, row, head * a.width);
                float m = attention_is_kept(a, row, head, j) ? keep_scale : 0.0f;
                float score = compute_score<MODIFIED>(a, s, head, q, k, i + lane, j);
                p = get_probability(score, a.lse[head * a.lse_stride + row]);
                ds = p * (m * compute_dot(d_o, v, a.width) - a.delta[head * a.rows_q + row]);
                ds *= MODIFIED ? softcap_derivative(a, score) : 1.0f;
                p *= m;
            }
            int64_t first = s.first_q + i;
            accumulate_rows(dv, scratch, p, get_element(a.d_o, first, head * a.width), a.d_o.stride,
                            count, a.width);
            accumulate_rows(dk, scratch, ds, get_element(a.q, first, head * a.width), a.q.stride,
                            count, a.width);
        }
    }
    store_row(get_element(a.dkeys, key, at), dk, a.scale, a.width);
    store_row(get_element(a.dvalues, key, at), dv, 1.0f, a.width);
}

/* Adds the gradients of the scores of 32 keys to the sums of the lane's buckets, lane + 32 c. The
 * lanes exchange gradients and buckets through the warp's part of scratch. */
GPU_INLINE void accumulate_buckets(float (&sums)[BUCKETS_EACH], float *scratch, int *buckets,
                                   float ds, int bucket)
{
    int lane = threadIdx.x % 32, first = threadIdx.x / 32 * 32;
    scratch[first + lane] = ds;
    buckets[first + lane] = bucket;
    __syncwarp();
    for (int i = first; i < first + 32; i++) {
#pragma unroll
        for (int c = 0; c < BUCKETS_EACH; c++) {
            sums[c] += buckets[i] == lane + 32 * c ? scratch[i] : 0.0f;
        }
    }
    __syncwarp();
}

/* Adds the gradients of the bias of one query of a head. A warp calls it together. */
template <typename T>
GPU_INLINE void accumulate_query(float (&sums)[BUCKETS_EACH], float *scratch, int *buckets,
                                 const attention_task<T> &a, const struct attention_sequence &s,
                                 int head, int64_t i)
{
    int lane = threadIdx.x % 32;
    const auto [row, kv_column, begin, end, q] = get_query_row(a, s, head, i);
    const T *d_o = get_element(a.d_o, row, head * a.width);
    float lse = a.lse[head * a.lse_stride + row], delta = a.delta[head * a.rows_q + row];
    for (int64_t first = begin; first < end; first += 32) {
        int64_t j = first + lane;
        float ds = 0;
        int bucket = 0;
        if (j < end) {
            const T *k = get_element(a.keys, s.first_k + j, kv_column);
            const T *v = get_element(a.values, s.first_k + j, kv_column);
            float m = attention_is_kept(a, row, head, j) ? attention_dropout_scale(a) : 0.0f;
            ds = get_probability(compute_score<true>(a, s, head, q, k, i, j), lse) *
                 (m * compute_dot(d_o, v, a.width) - delta);
            bucket = a.buckets[attention_distance_zero(a, s) + j - i];
        }
        accumulate_buckets(sums, scratch, buckets, ds, bucket);
    }
}

template <typename T>
__global__ void __launch_bounds__(ROWS_THREADS) rows_bias_gradient(const attention_task<T> a)
{
    GPU_SHARED(float, scratch, ROWS_THREADS);
    GPU_SHARED(int, buckets, ROWS_THREADS);
    GPU_SHARED(float, warp_sums, ROWS_EACH *ATTENTION_BUCKETS_MAX);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.y;
    int64_t number = 0;
    float sums[BUCKETS_EACH] = {};
    for (int64_t sequence = 0; sequence < a.sequences; sequence++) {
        struct attention_sequence s = get_sequence(a, sequence);
        for (int64_t i = 0; i < s.queries; i++, number++) {
            if (number % (CUDA_BIAS_PARTS * ROWS_EACH) == blockIdx.x * ROWS_EACH + warp) {
                accumulate_query(sums, scratch, buckets, a, s, head, i);
            }
        }
    }
#pragma unroll
    for (int c = 0; c < BUCKETS_EACH; c++) {
        warp_sums[warp * ATTENTION_BUCKETS_MAX + lane + 32 * c] = sums[c];
    }
    __syncthreads();
    int bucket = threadIdx.x;
    if (bucket < a.bucket_count) {
        float sum = 0;
        for (int i = 0; i < ROWS_EACH; i++) {
            sum += warp_sums[i * ATTENTION_BUCKETS_MAX + bucket];
        }
        a.bias_parts[(static_cast<int64_t>(blockIdx.x) * a.heads + head) * a.bucket_count +
                     bucket] = sum;
    }
}

/* ---- host ---- */

static dim3 make_grid(int64_t *tiles, int64_t sequences, int64_t longest, int heads)
{
    *tiles = number_divide_up(longest, ROWS_EACH);
    return dim3(static_cast<unsigned>(sequences * *tiles), static_cast<unsigned>(heads));
}

template <typename T, bool MODIFIED>
static status launch_forward(struct kernels *k, attention_task<T> t, struct tensor o,
                             const struct attention *a)
{
    t.out = make_matrix<T>(o);
    dim3 grid = make_grid(&t.tiles, a->sequences, a->longest_q, a->heads);
    if (grid.x > 0) {
        LAUNCH(k, (rows_forward<T, MODIFIED>), grid, ROWS_THREADS, 0, t);
    }
    return STATUS_OK;
}

status attention_rows_forward(struct kernels *k, struct tensor o, struct tensor lse,
                              struct tensor q, struct tensor keys, struct tensor values,
                              const struct attention_call *call)
{
    const struct attention *a = call->a;
    bool is_modified = attention_is_modified(call);
    if (k->dtype == DTYPE_F32) {
        attention_task<float> t = make_attention_task<float>(q, keys, values, lse, call);
        return is_modified ? launch_forward<float, true>(k, t, o, a)
                           : launch_forward<float, false>(k, t, o, a);
    }
    attention_task<bf16> t = make_attention_task<bf16>(q, keys, values, lse, call);
    return is_modified ? launch_forward<bf16, true>(k, t, o, a)
                       : launch_forward<bf16, false>(k, t, o, a);
}

template <typename T, bool MODIFIED>
static status launch_backward(struct kernels *k, attention_task<T> t, struct tensor dq,
                              struct tensor dkeys, struct tensor dvalues, struct tensor d_o,
                              const float *delta, const struct attention *a)
{
    t.out = make_matrix<T>(dq);
    t.dkeys = make_matrix<T>(dkeys);
    t.dvalues = make_matrix<T>(dvalues);
    t.d_o = make_matrix<const T>(d_o);
    t.delta = const_cast<float *>(delta);
    if (t.bias_parts != NULL) {
        dim3 parts(CUDA_BIAS_PARTS, static_cast<unsigned>(a->heads));
        LAUNCH(k, rows_bias_gradient<T>, parts, ROWS_THREADS, 0, t);
    }
    dim3 grid = make_grid(&t.tiles, a->sequences, a->longest_q, a->heads);
    if (grid.x > 0) {
        LAUNCH(k, (rows_backward_queries<T, MODIFIED>), grid, ROWS_THREADS, 0, t);
    }
    grid = make_grid(&t.tiles, a->sequences, a->longest_k, a->kv_heads);
    if (grid.x > 0) {
        LAUNCH(k, (rows_backward_keys<T, MODIFIED>), grid, ROWS_THREADS, 0, t);
    }
    return STATUS_OK;
}

status attention_rows_backward(struct kernels *k, struct tensor dq, struct tensor dkeys,
                               struct tensor dvalues, struct tensor d_o, struct tensor q,
                               struct tensor keys, struct tensor values, struct tensor lse,
                               const float *delta, const struct attention_call *call)
{
    const struct attention *a = call->a;
    bool is_modified = attention_is_modified(call);
    if (k->dtype == DTYPE_F32) {
        attention_task<float> t = make_attention_task<float>(q, keys, values, lse, call);
        return is_modified ? launch_backward<float, true>(k, t, dq, dkeys, dvalues, d_o, delta, a)
                           : launch_backward<float, false>(k, t, dq, dkeys, dvalues, d_o, delta, a);
    }
    attention_task<bf16> t = make_attention_task<bf16>(q, keys, values, lse, call);
    return is_modified ? launch_backward<bf16, true>(k, t, dq, dkeys, dvalues, d_o, delta, a)
                       : launch_backward<bf16, false>(k, t, dq, dkeys, dvalues, d_o, delta, a);
}
