/* The moments of AdamW and LAMB: averages with weights beta and 1 - beta.
 *
 * The sum of two floats represents beta, and bf16 moments are rounded stochastically, as on the CPU
 * (kernels/cpu/moments.h).
 *
 * A thread updates eight elements: two groups of four, which begin DISTANCE elements apart. With
 * DISTANCE = VECTOR_ELEMS they are consecutive, as stochastic rounding and moments in bf16 require.
 * With DISTANCE = VECTOR_ELEMS * threads, each load and each store of a warp has consecutive
 * addresses. */
#pragma once

#include "kernels/cuda/random.cuh"

struct moment_rate {
    float beta, beta_remainder, one_minus_beta;
    float correction, reciprocal; /* 1 - beta^t, which divides the moments, and 1 / correction */
};

struct moment_rates {
    struct moment_rate first, second;
};

/* ---- host ---- */

static inline struct moment_rate make_moment_rate(double beta, float correction)
{
    float rounded = static_cast<float>(beta);
    return {rounded, static_cast<float>(beta - static_cast<double>(rounded)),
            static_cast<float>(1.0 - beta), correction, 1.0f / correction};
}

static inline struct moment_rates make_moment_rates(const struct adamw *s)
{
    return {make_moment_rate(s->beta1, s->correction1), make_moment_rate(s->beta2, s->correction2)};
}

/* Returns the address of element `index` of an array of moments. */
static inline void *get_moment_address(const void *moments, enum dtype dtype, int64_t index)
{
    return static_cast<char *>(const_cast<void *>(moments)) +
           static_cast<size_t>(index) * dtype_bytes(dtype);
}

/* ---- device ---- */

GPU_INLINE bool is_skipped(const struct adamw &s)
{
    return s.control != nullptr && s.control->skip != 0;
}

/* Returns the factor of the gradients. */
GPU_INLINE float get_gradient_scale(const struct adamw &s)
{
    return s.control != nullptr ? s.control->gradient_scale : s.gradient_scale;
}

/* Returns beta moment + (1 - beta) value. */
GPU_INLINE float update_moment(const struct moment_rate &r, float moment, float value)
{
    return r.beta * moment + (r.beta_remainder * moment + r.one_minus_beta * value);
}

/* Returns x / divisor. reciprocal: 1 / divisor, rounded or with an error in the last bit. */
GPU_INLINE float compute_quotient(float x, float divisor, float reciprocal)
{
    float quotient = x * reciprocal;
    return fmaf(fmaf(-quotient, divisor, x), reciprocal, quotient);
}

/* compute_steps - compute m / c1 / (sqrt(v / c2) + epsilon) for four elements.
 *
 * The results have the same bits as with the operator / and sqrtf. For usual operands, nvcc
 * compiles a division or a square root to the operations below and a branch. Here, four elements
 * share one branch. The bounds exclude overflow and underflow for corrections from 2^-26 to 1 and
 * an epsilon up to 2^40. */
GPU_INLINE void compute_steps(float *steps, const float *m, const float *v,
                              const struct moment_rates &rates, float epsilon)
{
    float m_least = 1.0f, m_most = 1.0f, v_least = 1.0f, v_most = 1.0f;
#pragma unroll
    for (int i = 0; i < VECTOR_ELEMS; i++) {
        m_least = fminf(m_least, fabsf(m[i]));
        m_most = fmaxf(m_most, fabsf(m[i]));
        v_least = fminf(v_least, v[i]);
        v_most = fmaxf(v_most, v[i]);
        float square = compute_quotient(v[i], rates.second.correction, rates.second.reciprocal);
        float inverse = rsqrtf(square), root = square * inverse;
        float divisor = fmaf(fmaf(-root, root, square), 0.5f * inverse, root) + epsilon;
        float about = __fdividef(1.0f, divisor);
        float reciprocal = fmaf(fmaf(-divisor, about, 1.0f), about, about);
        float corrected = compute_quotient(m[i], rates.first.correction, rates.first.reciprocal);
        steps[i] = compute_quotient(corrected, divisor, reciprocal);
    }
    if (m_least < 0x1p-80f || m_most > 0x1p40f || v_least < 0x1p-100f || v_most > 0x1p60f) {
#pragma unroll
        for (int i = 0; i < VECTOR_ELEMS; i++) {
            steps[i] =
                m[i] / rates.first.correction / (sqrtf(v[i] / rates.second.correction) + epsilon);
        }
    }
}

/* load_groups, store_groups - load or store the two groups of a thread.
 *
 * p points to the first group; `left` elements of the slice begin there. ALIGNED requires that p is
 * aligned to four elements and that `left` is a multiple of four. */
template <bool ALIGNED, int DISTANCE>
GPU_INLINE void load_groups(float (&x)[LANE_ELEMS], const float *p, int64_t left)
{
    load_four<ALIGNED>(x, p, left);
    load_four<ALIGNED>(x + VECTOR_ELEMS, p + DISTANCE, left - DISTANCE);
}

template <bool ALIGNED, int DISTANCE>
GPU_INLINE void load_groups(float (&x)[LANE_ELEMS], const bf16 *p, int64_t left)
{
    static_assert(DISTANCE == VECTOR_ELEMS, "eight consecutive elements");
    load_eight<ALIGNED>(x, p, left);
}

template <bool ALIGNED, int DISTANCE, typename T>
GPU_INLINE void store_groups(T *p, const float (&x)[LANE_ELEMS], int64_t left)
{
    if (DISTANCE == VECTOR_ELEMS) {
        store_eight<ALIGNED>(p, x, left);
    } else {
        store_four<ALIGNED>(p, x, left);
        store_four<ALIGNED>(p + DISTANCE, x + VECTOR_ELEMS, left - DISTANCE);
    }
}

/* Rounds eight moments of a slice, from `first` on, to values of the type that stores them. index:
 * 0 or 1, the moment. */
GPU_INLINE void round_moments(float (&)[LANE_ELEMS], const float *, const struct adamw &, int,
                              int64_t)
{
}

GPU_INLINE void round_moments(float (&x)[LANE_ELEMS], const bf16 *, const struct adamw &s,
                              int index, int64_t first)
{
    struct rounding rounding = s.rounding;
    rounding.stochastic = true;
    rounding.key = s.moment_keys[index];
    round_eight(x, rounding, first);
}

/* find_part - return the last part that begins at `block` or before it. FIRST is the number of
 * blocks before a part. Each lane of a warp tests one of 32 parts at equal distances, so that the
 * search among 1024 parts takes two loads. */
template <int64_t adamw_part::*FIRST>
GPU_INLINE int find_part(const struct adamw_part *parts, int count, int64_t block)
{
    int low = 0;
    while (count > 1) {
        int distance = (count + 31) / 32, offset = threadIdx.x % 32 * distance;
        bool begins = offset < count && parts[low + offset].*FIRST <= block;
        int skipped = (__popc(__ballot_sync(~0u, begins)) - 1) * distance;
        low += skipped;
        count = count - skipped < distance ? count - skipped : distance;
    }
    return low;
}
