/* AdamW update over flat slices of parameters, in one pass.
 *
 *   g = gradient gradient_scale;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
 *   w -= learning_rate (m / c1 / (sqrt(v / c2) + epsilon) + weight_decay w)
 *
 * Traffic   reads 16 bytes and writes 12 bytes for each parameter, and 2 more for its bf16 copy;
 *           with bf16 moments it reads 12 and writes 8
 * Launch    grid ceil(count / 2048); block 256; no shared memory. A thread updates two groups of
 *           four elements, 1024 elements apart, so that each access of a warp has consecutive
 *           addresses. With bf16 moments or stochastic rounding, the two groups are consecutive
 *           (moments.cuh). A second launch with scalar accesses updates the last count % 8
 *           elements, or all elements if an array is not 16-byte aligned. adamw_parts_update uses
 *           one launch for all parts; a block updates 2048 elements of one part
 * Source    Loshchilov, Hutter 2019, arXiv:1711.05101 */
#include "kernels/cuda/moments.cuh"

enum { ADAMW_THREADS = 256, APART = ADAMW_THREADS * VECTOR_ELEMS };

struct adamw_slices {
    float *weights;
    void *moment1, *moment2;
    const float *gradient;
    bf16 *copy;
    int64_t count;
};

/* The eight elements that a thread updates. */
struct adamw_elements {
    float w[LANE_ELEMS], m[LANE_ELEMS], v[LANE_ELEMS], g[LANE_ELEMS];
};

template <class MOMENT, bool ALIGNED, int DISTANCE>
GPU_INLINE void load_elements(struct adamw_elements &e, const struct adamw_slices &p, int64_t first,
                              int64_t left)
{
    load_groups<ALIGNED, DISTANCE>(e.w, p.weights + first, left);
    load_groups<ALIGNED, DISTANCE>(e.m, static_cast<const MOMENT *>(p.moment1) + first, left);
    load_groups<ALIGNED, DISTANCE>(e.v, static_cast<const MOMENT *>(p.moment2) + first, left);
    load_groups<ALIGNED, DISTANCE>(e.g, p.gradient + first, left);
}

GPU_INLINE void update_elements(struct adamw_elements &e, const struct adamw &s,
                                const struct moment_rates &rates, float scale, float weight_decay)
{
#pragma unroll
    for (int j = 0; j < LANE_ELEMS; j += VECTOR_ELEMS) {
        float steps[VECTOR_ELEMS];
#pragma unroll
        for (int i = j; i < j + VECTOR_ELEMS; i++) {
            float scaled = e.g[i] * scale;
            e.m[i] = update_moment(rates.first, e.m[i], scaled);
            e.v[i] = update_moment(rates.second, e.v[i], scaled * scaled);
        }
        compute_steps(steps, e.m + j, e.v + j, rates, s.epsilon);
#pragma unroll
        for (int i = 0; i < VECTOR_ELEMS; i++) {
            e.w[j + i] -= s.learning_rate * (steps[i] + weight_decay * e.w[j + i]);
        }
    }
}

/* Rounds and stores the elements. */
template <class MOMENT, bool ALIGNED, int DISTANCE>
GPU_INLINE void store_elements(const struct adamw_slices &p, struct adamw_elements &e,
                               const struct adamw &s, int64_t first, int64_t left)
{
    MOMENT *moment1 = static_cast<MOMENT *>(p.moment1) + first;
    MOMENT *moment2 = static_cast<MOMENT *>(p.moment2) + first;
    store_groups<ALIGNED, DISTANCE>(p.weights + first, e.w, left);
    round_moments(e.m, moment1, s, 0, first);
    round_moments(e.v, moment2, s, 1, first);
    store_groups<ALIGNED, DISTANCE>(moment1, e.m, left);
    store_groups<ALIGNED, DISTANCE>(moment2, e.v, left);
    if (p.copy != nullptr) {
        if (DISTANCE == VECTOR_ELEMS) {
            round_eight(e.w, s.rounding, first);
        }
        store_groups<ALIGNED, DISTANCE>(p.copy + first, e.w, left);
    }
}

template <class MOMENT, bool ALIGNED, int DISTANCE>
__global__ void __launch_bounds__(ADAMW_THREADS)
    adamw_step(const struct adamw_slices p, const struct adamw s, const struct moment_rates rates)
{
    int64_t first = static_cast<int64_t>(blockIdx.x) * ADAMW_PARTS_BLOCK +
                    threadIdx.x * (DISTANCE == VECTOR_ELEMS ? 2 * VECTOR_ELEMS : VECTOR_ELEMS);
    int64_t left = p.count - first;
    struct adamw_elements e;
    if (left > 0 && !is_skipped(s)) {
        load_elements<MOMENT, ALIGNED, DISTANCE>(e, p, first, left);
        update_elements(e, s, rates, get_gradient_scale(s), s.weight_decay);
        store_elements<MOMENT, ALIGNED, DISTANCE>(p, e, s, first, left);
    }
}

/* A block updates elements of one part. */
__global__ void __launch_bounds__(ADAMW_THREADS)
    adamw_parts_step(struct adamw_slices p, const struct adamw_part *parts, int part_count,
                     int64_t first_block, int64_t origin, bool aligned, const struct adamw s,
                     const struct moment_rates rates)
{
    int64_t block = first_block + blockIdx.x;
    const struct adamw_part part =
        parts[find_part<&adamw_part::first_block>(parts, part_count, block)];
    const bool skipped = is_skipped(s);
    const float scale = get_gradient_scale(s);
    int64_t block_first = (block - part.first_block) * ADAMW_PARTS_BLOCK;
    int64_t first = block_first + threadIdx.x * VECTOR_ELEMS, begin = part.first - origin;
    if (first >= part.count || skipped) {
        return;
    }
    p.weights += begin;
    p.gradient += begin;
    p.copy = p.copy == nullptr ? nullptr : p.copy + begin;
    p.moment1 = static_cast<float *>(p.moment1) + part.moment;
    p.moment2 = static_cast<float *>(p.moment2) + part.moment;
    bool whole_groups =
        part.count - block_first >= ADAMW_PARTS_BLOCK || part.count % VECTOR_ELEMS == 0;
    int64_t left = part.count - first;
    struct adamw_elements e;
    aligned =
        aligned && begin % VECTOR_ELEMS == 0 && part.moment % VECTOR_ELEMS == 0 && whole_groups;
    if (aligned) {
        load_elements<float, true, APART>(e, p, first, left);
    } else {
        load_elements<float, false, APART>(e, p, first, left);
    }
    update_elements(e, s, rates, scale, part.weight_decay);
    if (aligned) {
        store_elements<float, true, APART>(p, e, s, first, left);
    } else {
        store_elements<float, false, APART>(p, e, s, first, left);
    }
}

static bool is_aligned(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

template <class MOMENT, bool ALIGNED, int DISTANCE>
static status launch_step(struct kernels *k, const struct adamw_slices &p, const struct adamw &s)
{
    if (p.count > 0) {
        LAUNCH(k, (adamw_step<MOMENT, ALIGNED, DISTANCE>), count_blocks(p.count, ADAMW_PARTS_BLOCK),
               ADAMW_THREADS, 0, p, s, make_moment_rates(&s));
    }
    return STATUS_OK;
}

template <bool ALIGNED>
static status launch_for_dtype(struct kernels *k, const struct adamw_slices &p,
                               const struct adamw &s)
{
    if (s.moment_dtype == DTYPE_BF16) {
        return launch_step<bf16, ALIGNED, VECTOR_ELEMS>(k, p, s);
    }
    return s.rounding.stochastic ? launch_step<float, ALIGNED, VECTOR_ELEMS>(k, p, s)
                                 : launch_step<float, ALIGNED, APART>(k, p, s);
}

/* Groups of eight elements use 16-byte accesses; the remaining elements use scalar accesses. */
extern "C" status cuda_adamw_update(struct kernels *k, float *weights, bf16 *copy, void *moment1,
                                    void *moment2, const float *gradient, int64_t count,
                                    const struct adamw *settings)
{
    bool aligned = is_aligned(weights) && is_aligned(moment1) && is_aligned(moment2) &&
                   is_aligned(gradient) && is_aligned(copy);
    int64_t vectorized = aligned ? count / LANE_ELEMS * LANE_ELEMS : 0;
    struct adamw_slices p = {weights, moment1, moment2, gradient, copy, vectorized};
    TRY(launch_for_dtype<true>(k, p, *settings));
    p = {weights + vectorized,
         get_moment_address(moment1, settings->moment_dtype, vectorized),
         get_moment_address(moment2, settings->moment_dtype, vectorized),
         gradient + vectorized,
         copy,
         count - vectorized};
    p.copy = copy == NULL ? NULL : copy + vectorized;
    struct adamw rest = *settings;
    rest.rounding.offset += vectorized;
    return launch_for_dtype<false>(k, p, rest);
}

extern "C" status cuda_adamw_parts_update(struct kernels *k, float *weights, bf16 *copy,
                                          float *moment1, float *moment2, const float *gradient,
                                          const struct adamw_parts *p, const struct adamw *settings)
{
    static_assert(ADAMW_PARTS_BLOCK == ADAMW_THREADS * LANE_ELEMS,
                  "a block updates these elements");
    const struct adamw_slices slices = {weights, moment1, moment2, gradient, copy, p->elements};
    bool aligned = is_aligned(weights) && is_aligned(moment1) && is_aligned(moment2) &&
                   is_aligned(gradient) && is_aligned(copy);
    LAUNCH(k, adamw_parts_step, static_cast<unsigned>(p->blocks), ADAMW_THREADS, 0, slices,
           p->parts, static_cast<int>(p->part_count), p->first_block, p->origin, aligned, *settings,
           make_moment_rates(settings));
    return STATUS_OK;
}
