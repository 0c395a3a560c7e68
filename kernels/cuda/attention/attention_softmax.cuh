/* The online softmax of the attention forward pass, on the rows of scores in the mma accumulators
 * of a warp.
 *
 *   m' = max(m, max_j s_j);  sum' = sum 2^(c (m - m')) + sum_j 2^(c (s_j - m'));  c = scale log2(e)
 *
 * Exponents An exponent is one fused multiply-add, c s_j - b with b = c m' rounded. All exponents
 *           of a row have the same error c m' - b, which cancels in o, and which lse subtracts.
 *           If |b| is 2^29 or more, the error could exceed the exponent range of f32, but then
 *           the distance of the two largest scores is at least 32. For these rows c is rounded up
 *           to a power of two: b is exact, and all other probabilities are still below 2^-32.
 *
 * Layout    A warp has M tiles of 16 rows; [m][r] is row 16 m + 8 r + lane / 4 of them, and four
 *           lanes share a row. Exponentials have base two, so that scale and log2(e) are
 *           one factor.
 * Source    Milakov, Gimelshein 2018, arXiv:1805.02867; Dao 2023, arXiv:2307.08691 */
#pragma once

#include "kernels/cuda/attention/attention_tile.cuh"

/* The running maximum of the unscaled scores of each query, and the lane's part of its sum
 * of exponentials. */
template <int M> struct running_softmax {
    float largest[M][2], sum[M][2];
};

template <int M> GPU_INLINE void clear_running(struct running_softmax<M> &run)
{
#pragma unroll
    for (int m = 0; m < M; m++) {
        run.largest[m][0] = run.largest[m][1] = -INFINITY;
        run.sum[m][0] = run.sum[m][1] = 0;
    }
}

/* Masks accumulators `from` to `to` - 1: a score becomes -infinity if its query does not attend to
 * its key. */
template <int M, int N>
GPU_INLINE void mask_scores(float (&s)[M][N][4], const attention_task<bf16> &a,
                            const struct attention_sequence &sequence, int query, int key,
                            int from = 0, int to = N)
{
    int lane_key = key + static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int end = visible_end(a, sequence, query + 16 * m + 8 * r) - lane_key;
#pragma unroll
            for (int n = from; n < to; n++) {
                s[m][n][2 * r] = 8 * n < end ? s[m][n][2 * r] : -INFINITY;
                s[m][n][2 * r + 1] = 8 * n + 1 < end ? s[m][n][2 * r + 1] : -INFINITY;
            }
        }
    }
    if (a.window == 0) {
        return;
    }
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int begin = visible_begin(a, sequence, query + 16 * m + 8 * r) - lane_key;
#pragma unroll
            for (int n = from; n < to; n++) {
                s[m][n][2 * r] = 8 * n >= begin ? s[m][n][2 * r] : -INFINITY;
                s[m][n][2 * r + 1] = 8 * n + 1 >= begin ? s[m][n][2 * r + 1] : -INFINITY;
            }
        }
    }
}

/* Returns c of a row, where c is the scale of the exponents and `largest` the maximum. */
GPU_INLINE float get_row_scale(float largest, float scale)
{
    float power = gpu_from_bits((gpu_bits(scale) + 0x7fffff) & 0xff800000);
    return fabsf(largest * scale) >= 0x1p29f ? power : scale;
}

/* Replaces the scores s by their exponentials and updates maximum and sum. `rescale` is the factor
 * by which earlier sums must be multiplied, because the maximum may have grown. */
template <int M, int N>
GPU_INLINE void update_softmax(float (&s)[M][N][4], struct running_softmax<M> &run,
                               float (&rescale)[M][2], float scale)
{
#pragma unroll
    for (int m = 0; m < M; m++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float before = run.largest[m][r], largest = before;
#pragma unroll
            for (int n = 0; n < N; n++) {
                largest = fmaxf(largest, fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
            }
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
            float row_scale = get_row_scale(largest, scale);
            float base = largest == -INFINITY ? 0.0f : gpu_multiply(largest, row_scale);
            float base_before = gpu_multiply(before, get_row_scale(before, scale));
            rescale[m][r] = gpu_exp2(base_before - base);
            run.largest[m][r] = largest;
            float sum = 0;
#pragma unroll
            for (int n = 0; n < N; n++) {
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    float p = gpu_exp2(fmaf(s[m][n][2 * r + e], row_scale, -base));
                    s[m][n][2 * r + e] = p;
                    sum += p;
                }
            }
            run.sum[m][r] = run.sum[m][r] * rescale[m][r] + sum;
        }
    }
}

/* Returns lse of a row. */
GPU_INLINE float compute_lse(float largest, float sum, float score_scale)
{
    float scale = score_scale * log2_e, row_scale = get_row_scale(largest, scale);
    float excess = fmaf(largest, row_scale, -gpu_multiply(largest, row_scale));
    return largest * score_scale + (logf(sum) - excess * ln_2);
}

template <int N> GPU_INLINE void rescale_sums(float (&o)[N][4], const float (&rescale)[2])
{
#pragma unroll
    for (int n = 0; n < N; n++) {
#pragma unroll
        for (int e = 0; e < 4; e++) {
            o[n][e] *= rescale[e / 2];
        }
    }
}

/* Stores rows lane / 4 and lane / 4 + 8 of 16, each multiplied by its factor. Pairs of lanes
 * exchange columns, so that each lane stores eight bytes, and the four lanes of a row a sector. */
template <int D>
GPU_INLINE void store_sectors(const matrix<bf16> &to, const float (&sums)[D / 8][4], int64_t first,
                              int64_t valid, int64_t column, const float (&factor)[2])
{
    int lane = threadIdx.x % 32, odd = lane % 2;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int row = lane / 4 + 8 * r;
        bf16 *at = to.data + (first + row) * to.stride + column + 8 * odd + lane % 4 / 2 * 4;
#pragma unroll
        for (int n = 0; n < D / 8; n += 2) {
            const float *even_sums = &sums[n][2 * r], *odd_sums = &sums[n + 1][2 * r];
            uint32_t even_pair = gpu_pack(even_sums[0] * factor[r], even_sums[1] * factor[r]);
            uint32_t odd_pair = gpu_pack(odd_sums[0] * factor[r], odd_sums[1] * factor[r]);
            uint32_t other = __shfl_xor_sync(~0u, odd ? even_pair : odd_pair, 1);
            if (row < valid) {
                uint64_t low = odd ? other : even_pair, high = odd ? odd_pair : other;
                *reinterpret_cast<uint64_t *>(at + 8 * n) = high << 32 | low;
            }
        }
    }
}

/* Stores o and lse of the rows of a warp. `query` is the first query of the lane, counted within
 * the sequence. */
template <int D, int M>
GPU_INLINE void store_rows(const attention_task<bf16> &a, const float (&o)[M][D / 8][4],
                           const struct running_softmax<M> &run, const struct attention_sequence &s,
                           int query, int head)
{
#pragma unroll
    for (int m = 0; m < M; m++) {
        float factor[2];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float sum = run.sum[m][r];
            sum += __shfl_xor_sync(~0u, sum, 1);
            sum += __shfl_xor_sync(~0u, sum, 2);
            int i = query + 16 * m + 8 * r;
            factor[r] = sum == 0 ? 0.0f : attention_dropout_scale(a) / sum;
            if (a.lse != nullptr && threadIdx.x % 4 == 0 && i < s.queries) {
                a.lse[head * a.lse_stride + s.first_q + i] =
                    sum == 0 ? -INFINITY : compute_lse(run.largest[m][r], sum, a.score_scale);
            }
        }
        int first = query - static_cast<int>(threadIdx.x % 32 / 4) + 16 * m;
        store_sectors<D>(a.out, o[m], s.first_q + first, s.queries - first, head * D, factor);
    }
}
