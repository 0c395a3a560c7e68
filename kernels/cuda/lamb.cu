/* LAMB update over a slice of a tensor, in two passes.
 *
 *   g = gradient gradient_scale;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
 *   u = m / c1 / (sqrt(v / c2) + epsilon) + weight_decay w
 *   w -= learning_rate u;  learning_rate includes the trust ratio |w| / |u| of the tensor
 *
 * Traffic   24 bytes (first pass) and 16 bytes (second pass) for each parameter, or 16 and 12 with
 *           bf16 moments, and 2 more for its bf16 copy. Both passes compute u: storing it would
 *           cost 8 bytes
 * Launch    block 256; a thread handles eight elements at a time. First pass: a block for each
 *           slice of cuda_reduce_slice(count, 2) elements, 2 KiB of shared memory. Second pass:
 *           grid ceil(count / 2048). lamb_parts_moments and lamb_parts_apply have one launch for
 *           all parts, with blocks of LAMB_PARTS_SUM and ADAMW_PARTS_BLOCK elements of one part
 * Numerics  sums of squares are in double precision, in an order that depends on the length alone
 * Source    You et al. 2019, arXiv:1904.00962 */
#include "kernels/cuda/moments.cuh"

enum { LAMB_THREADS = 256, APART = LAMB_THREADS * VECTOR_ELEMS };

struct lamb_slices {
    float *weights;
    void *moment1, *moment2;
    const float *gradient;
    bf16 *copy;
    int64_t count;
    int64_t slice; /* elements of each block in the first pass */
};

/* Computes u for eight elements. */
GPU_INLINE void compute_updates(float (&u)[LANE_ELEMS], const float (&w)[LANE_ELEMS],
                                const float (&m)[LANE_ELEMS], const float (&v)[LANE_ELEMS],
                                const struct adamw &s, const struct moment_rates &rates,
                                float weight_decay)
{
#pragma unroll
    for (int j = 0; j < LANE_ELEMS; j += VECTOR_ELEMS) {
        compute_steps(u + j, m + j, v + j, rates, s.epsilon);
    }
#pragma unroll
    for (int i = 0; i < LANE_ELEMS; i++) {
        u[i] += weight_decay * w[i];
    }
}

/* Updates the moments of eight elements from `first` on, and adds the squares of their weights and
 * updates to sums. */
template <class MOMENT, bool ALIGNED>
GPU_INLINE void update_moments_eight(const struct lamb_slices &p, const struct adamw &s,
                                     const struct moment_rates &rates, float scale,
                                     float weight_decay, int64_t first, double (&sums)[2])
{
    float w[LANE_ELEMS], m[LANE_ELEMS], v[LANE_ELEMS], g[LANE_ELEMS], u[LANE_ELEMS];
    int64_t left = p.count - first;
    MOMENT *moment1 = static_cast<MOMENT *>(p.moment1) + first;
    MOMENT *moment2 = static_cast<MOMENT *>(p.moment2) + first;
    load_eight<ALIGNED>(w, p.weights + first, left);
    load_eight<ALIGNED>(m, moment1, left);
    load_eight<ALIGNED>(v, moment2, left);
    load_eight<ALIGNED>(g, p.gradient + first, left);
#pragma unroll
    for (int i = 0; i < LANE_ELEMS; i++) {
        float scaled = g[i] * scale;
        m[i] = update_moment(rates.first, m[i], scaled);
        v[i] = update_moment(rates.second, v[i], scaled * scaled);
    }
    round_moments(m, moment1, s, 0, first);
    round_moments(v, moment2, s, 1, first);
    compute_updates(u, w, m, v, s, rates, weight_decay);
#pragma unroll
    for (int i = 0; i < LANE_ELEMS; i++) {
        double weight = static_cast<double>(w[i]);
        double update = i < left ? static_cast<double>(u[i]) : 0.0;
        sums[0] += weight * weight;
        sums[1] += update * update;
    }
    store_eight<ALIGNED>(moment1, m, left);
    store_eight<ALIGNED>(moment2, v, left);
}

template <class MOMENT, bool ALIGNED>
__global__ void __launch_bounds__(LAMB_THREADS, 4)
    lamb_moments_pass(double *parts, const struct lamb_slices p, const struct adamw s,
                      const struct moment_rates rates)
{
    GPU_SHARED(double, scratch, LAMB_THREADS);
    int64_t from = static_cast<int64_t>(blockIdx.x) * p.slice;
    int64_t to = from + p.slice < p.count ? from + p.slice : p.count;
    to = is_skipped(s) ? from : to;
    const float scale = get_gradient_scale(s);
    double sums[2] = {};
    for (int64_t first = from + threadIdx.x * LANE_ELEMS; first < to;
         first += LAMB_THREADS * LANE_ELEMS) {
        if (ALIGNED && first + LANE_ELEMS <= p.count) {
            update_moments_eight<MOMENT, true>(p, s, rates, scale, s.weight_decay, first, sums);
        } else {
            update_moments_eight<MOMENT, false>(p, s, rates, scale, s.weight_decay, first, sums);
        }
    }
    for (int i = 0; i < 2; i++) {
        double sum = block_sum<LAMB_THREADS>(sums[i], scratch);
        if (threadIdx.x == 0) {
            parts[i * gridDim.x + blockIdx.x] = sum;
        }
        __syncthreads();
    }
}

/* Updates the weights of two groups of four elements that begin DISTANCE apart (moments.cuh). */
template <class MOMENT, bool ALIGNED, int DISTANCE>
GPU_INLINE void apply_updates(const struct lamb_slices &p, const struct adamw &s,
                              const struct moment_rates &rates, float rate, float weight_decay,
                              int64_t first)
{
    float w[LANE_ELEMS], m[LANE_ELEMS], v[LANE_ELEMS], u[LANE_ELEMS];
    int64_t left = p.count - first;
    load_groups<ALIGNED, DISTANCE>(w, p.weights + first, left);
    load_groups<ALIGNED, DISTANCE>(m, static_cast<const MOMENT *>(p.moment1) + first, left);
    load_groups<ALIGNED, DISTANCE>(v, static_cast<const MOMENT *>(p.moment2) + first, left);
    compute_updates(u, w, m, v, s, rates, weight_decay);
#pragma unroll
    for (int i = 0; i < LANE_ELEMS; i++) {
        w[i] -= rate * u[i];
    }
    store_groups<ALIGNED, DISTANCE>(p.weights + first, w, left);
    if (p.copy != nullptr) {
        if (DISTANCE == VECTOR_ELEMS) {
            round_eight(w, s.rounding, first);
        }
        store_groups<ALIGNED, DISTANCE>(p.copy + first, w, left);
    }
}

template <class MOMENT, bool ALIGNED, int DISTANCE>
__global__ void __launch_bounds__(LAMB_THREADS)
    lamb_apply_pass(const struct lamb_slices p, const struct adamw s,
                    const struct moment_rates rates)
{
    int64_t from = static_cast<int64_t>(blockIdx.x) * LAMB_THREADS * LANE_ELEMS;
    int64_t first =
        from + threadIdx.x * (DISTANCE == VECTOR_ELEMS ? 2 * VECTOR_ELEMS : VECTOR_ELEMS);
    if (is_skipped(s)) {
        return;
    }
    const float rate = s.trust_ratio == nullptr ? s.learning_rate
                                                : static_cast<float>(s.base_rate * *s.trust_ratio);
    if (ALIGNED && from + LAMB_THREADS * LANE_ELEMS <= p.count) {
        apply_updates<MOMENT, true, DISTANCE>(p, s, rates, rate, s.weight_decay, first);
    } else if (first < p.count) {
        apply_updates<MOMENT, false, DISTANCE>(p, s, rates, rate, s.weight_decay, first);
    }
}

/* ---- all parts in one launch ---- */

/* Returns the elements of a part. */
GPU_INLINE struct lamb_slices get_part(struct lamb_slices p, const struct adamw_part &part,
                                       int64_t origin)
{
    int64_t begin = part.first - origin;
    p.weights += begin;
    p.gradient = p.gradient == nullptr ? nullptr : p.gradient + begin;
    p.copy = p.copy == nullptr ? nullptr : p.copy + begin;
    p.moment1 = static_cast<float *>(p.moment1) + part.moment;
    p.moment2 = static_cast<float *>(p.moment2) + part.moment;
    p.count = part.count;
    return p;
}

/* Returns whether groups of four elements of a part can be accessed together. */
GPU_INLINE bool is_part_aligned(const struct adamw_part &part, int64_t origin)
{
    return (part.first - origin) % VECTOR_ELEMS == 0 && part.moment % VECTOR_ELEMS == 0;
}

/* Each block stores the sums of LAMB_PARTS_SUM elements of a part: blocks [2, gridDim.x]. */
__global__ void __launch_bounds__(LAMB_THREADS, 4)
    lamb_parts_moments_pass(double *blocks, const struct lamb_slices all,
                            const struct adamw_part *parts, int part_count, int64_t first_sum,
                            int64_t origin, bool aligned, const struct adamw s,
                            const struct moment_rates rates)
{
    GPU_SHARED(double, scratch, LAMB_THREADS);
    int64_t block = first_sum + blockIdx.x;
    const struct adamw_part part =
        parts[find_part<&adamw_part::first_sum>(parts, part_count, block)];
    struct lamb_slices p = get_part(all, part, origin);
    const int64_t from = (block - part.first_sum) * LAMB_PARTS_SUM;
    p.weights += from;
    p.gradient += from;
    p.moment1 = static_cast<float *>(p.moment1) + from;
    p.moment2 = static_cast<float *>(p.moment2) + from;
    p.count = part.count - from;
    int count = p.count < LAMB_PARTS_SUM ? static_cast<int>(p.count) : int{LAMB_PARTS_SUM};
    count = is_skipped(s) ? 0 : count;
    aligned = aligned && is_part_aligned(part, origin);
    const float scale = get_gradient_scale(s), decay = part.weight_decay;
    double sums[2] = {};
    for (int first = threadIdx.x * LANE_ELEMS; first < count; first += LAMB_THREADS * LANE_ELEMS) {
        if (aligned && first + LANE_ELEMS <= count) {
            update_moments_eight<float, true>(p, s, rates, scale, decay, first, sums);
        } else {
            update_moments_eight<float, false>(p, s, rates, scale, decay, first, sums);
        }
    }
    for (int i = 0; i < 2; i++) {
        double sum = block_sum<LAMB_THREADS>(sums[i], scratch);
        if (threadIdx.x == 0) {
            blocks[i * gridDim.x + blockIdx.x] = sum;
        }
        __syncthreads();
    }
}

/* Adds the sums of a part in the order of cuda_reduce_doubles: sums [part_count, 2]. */
__global__ void __launch_bounds__(LAMB_THREADS)
    add_part_sums(double *sums, const double *blocks, int64_t block_count,
                  const struct adamw_part *parts, int64_t first_sum)
{
    GPU_SHARED(double, scratch, LAMB_THREADS);
    int64_t from = parts[blockIdx.x].first_sum - first_sum + blockIdx.y * block_count;
    int64_t count = (parts[blockIdx.x].count + LAMB_PARTS_SUM - 1) / LAMB_PARTS_SUM;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += LAMB_THREADS) {
        sum += blocks[from + i];
    }
    sum = block_sum<LAMB_THREADS>(sum, scratch);
    if (threadIdx.x == 0) {
        sums[2 * blockIdx.x + blockIdx.y] = sum;
    }
}

/* Each block updates ADAMW_PARTS_BLOCK elements of a part. */
__global__ void __launch_bounds__(LAMB_THREADS)
    lamb_parts_apply_pass(const struct lamb_slices all, const struct adamw_part *parts,
                          int part_count, const double *ratios, int64_t first_block, int64_t origin,
                          bool aligned, const struct adamw s, const struct moment_rates rates)
{
    int64_t block = first_block + blockIdx.x;
    int index = find_part<&adamw_part::first_block>(parts, part_count, block);
    const struct adamw_part part = parts[index];
    const struct lamb_slices p = get_part(all, part, origin);
    int64_t from = (block - part.first_block) * ADAMW_PARTS_BLOCK;
    int64_t first = from + threadIdx.x * VECTOR_ELEMS;
    if (is_skipped(s)) {
        return;
    }
    const float rate = static_cast<float>(s.base_rate * ratios[index]);
    if (aligned && is_part_aligned(part, origin) && from + ADAMW_PARTS_BLOCK <= p.count) {
        apply_updates<float, true, APART>(p, s, rates, rate, part.weight_decay, first);
    } else if (first < p.count) {
        apply_updates<float, false, APART>(p, s, rates, rate, part.weight_decay, first);
    }
}

/* ---- host ---- */

static bool is_aligned(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

template <class MOMENT>
static status launch_moments(struct kernels *k, double *parts, const struct lamb_slices &p,
                             unsigned blocks, const struct adamw *settings)
{
    const struct moment_rates rates = make_moment_rates(settings);
    if (is_aligned(p.weights) && is_aligned(p.moment1) && is_aligned(p.moment2) &&
        is_aligned(p.gradient)) {
        LAUNCH(k, (lamb_moments_pass<MOMENT, true>), blocks, LAMB_THREADS, 0, parts, p, *settings,
               rates);
    } else {
        LAUNCH(k, (lamb_moments_pass<MOMENT, false>), blocks, LAMB_THREADS, 0, parts, p, *settings,
               rates);
    }
    return STATUS_OK;
}

extern "C" status cuda_lamb_moments(struct kernels *k, double *sums, const float *weights,
                                    void *moment1, void *moment2, const float *gradient,
                                    int64_t count, const struct adamw *settings)
{
    struct lamb_slices p = {const_cast<float *>(weights), moment1, moment2, gradient, NULL, count,
                            cuda_reduce_slice(count, 2)};
    unsigned blocks = count_blocks(count, p.slice);
    void *memory;
    TRY(cuda_take_scratch(k, 2 * blocks * sizeof(double), &memory));
    double *parts = static_cast<double *>(memory);
    TRY(settings->moment_dtype == DTYPE_BF16
            ? launch_moments<bf16>(k, parts, p, blocks, settings)
            : launch_moments<float>(k, parts, p, blocks, settings));
    TRY(cuda_reduce_doubles(k, sums, parts, blocks));
    return cuda_reduce_doubles(k, sums + 1, parts + blocks, blocks);
}

template <class MOMENT, int DISTANCE>
static status launch_apply(struct kernels *k, const struct lamb_slices &p,
                           const struct adamw *settings)
{
    const struct moment_rates rates = make_moment_rates(settings);
    unsigned blocks = count_blocks(p.count, LAMB_THREADS * LANE_ELEMS);
    if (is_aligned(p.weights) && is_aligned(p.moment1) && is_aligned(p.moment2) &&
        is_aligned(p.copy)) {
        LAUNCH(k, (lamb_apply_pass<MOMENT, true, DISTANCE>), blocks, LAMB_THREADS, 0, p, *settings,
               rates);
    } else {
        LAUNCH(k, (lamb_apply_pass<MOMENT, false, DISTANCE>), blocks, LAMB_THREADS, 0, p, *settings,
               rates);
    }
    return STATUS_OK;
}

extern "C" status cuda_lamb_apply(struct kernels *k, float *weights, bf16 *copy,
                                  const void *moment1, const void *moment2, int64_t count,
                                  const struct adamw *settings)
{
    struct lamb_slices p = {
        weights, const_cast<void *>(moment1), const_cast<void *>(moment2), NULL, copy, count, 0};
    if (settings->moment_dtype == DTYPE_BF16) {
        return launch_apply<bf16, VECTOR_ELEMS>(k, p, settings);
    }
    return settings->rounding.stochastic ? launch_apply<float, VECTOR_ELEMS>(k, p, settings)
                                         : launch_apply<float, APART>(k, p, settings);
}

extern "C" status cuda_lamb_parts_moments(struct kernels *k, double *sums, const float *weights,
                                          float *moment1, float *moment2, const float *gradient,
                                          const struct adamw_parts *p, const struct adamw *settings)
{
    struct lamb_slices all = {
        const_cast<float *>(weights), moment1, moment2, gradient, NULL, p->elements, 0};
    bool aligned =
        is_aligned(weights) && is_aligned(moment1) && is_aligned(moment2) && is_aligned(gradient);
    void *memory;
    TRY(cuda_take_scratch(k, 2 * static_cast<size_t>(p->sums) * sizeof(double), &memory));
    double *blocks = static_cast<double *>(memory);
    LAUNCH(k, lamb_parts_moments_pass, static_cast<unsigned>(p->sums), LAMB_THREADS, 0, blocks, all,
           p->parts, static_cast<int>(p->part_count), p->first_sum, p->origin, aligned, *settings,
           make_moment_rates(settings));
    LAUNCH(k, add_part_sums, dim3(static_cast<unsigned>(p->part_count), 2), LAMB_THREADS, 0, sums,
           static_cast<const double *>(blocks), p->sums, p->parts, p->first_sum);
    return STATUS_OK;
}

extern "C" status cuda_lamb_parts_apply(struct kernels *k, float *weights, bf16 *copy,
                                        const float *moment1, const float *moment2,
                                        const double *ratios, const struct adamw_parts *p,
                                        const struct adamw *settings)
{
    static_assert(ADAMW_PARTS_BLOCK == LAMB_THREADS * LANE_ELEMS, "a block updates these elements");
    const struct lamb_slices all = {weights,
                                    const_cast<float *>(moment1),
                                    const_cast<float *>(moment2),
                                    NULL,
                                    copy,
                                    p->elements,
                                    0};
    bool aligned =
        is_aligned(weights) && is_aligned(moment1) && is_aligned(moment2) && is_aligned(copy);
    LAUNCH(k, lamb_parts_apply_pass, static_cast<unsigned>(p->blocks), LAMB_THREADS, 0, all,
           p->parts, static_cast<int>(p->part_count), ratios, p->first_block, p->origin, aligned,
           *settings, make_moment_rates(settings));
    return STATUS_OK;
}
