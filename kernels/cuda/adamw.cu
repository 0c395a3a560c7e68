/* AdamW update over flat slices of parameters, in one pass.
 *
 *   g = gradient gradient_scale;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
 *   w -= learning_rate (m / c1 / (sqrt(v / c2) + epsilon) + weight_decay w)
 *
 * Traffic   reads 16 bytes and writes 12 bytes for each parameter, and 2 more for its bf16 copy;
 *           with bf16 moments it reads 12 and writes 8
 * Launch    grid ceil(count / 2048); block 256; no shared memory. A thread updates eight elements.
 *           A second launch with scalar accesses updates the last count % 8 elements, or all
 *           elements if an array is not 16-byte aligned. adamw_parts_update uses one launch for all
 *           parts; a block updates 2048 elements of one part
 * Source    Loshchilov, Hutter 2019, arXiv:1711.05101 */
#include "kernels/cuda/moments.cuh"

enum { ADAMW_THREADS = 256 };

struct adamw_slices {
    float *weights;
    void *moment1, *moment2;
    const float *gradient;
    bf16 *copy;
    int64_t count;
};

/* Updates eight elements from `first` on; `left` elements of the slice begin there. */
template <class MOMENT, bool ALIGNED>
GPU_INLINE void update_eight(const struct adamw_slices &p, const struct adamw &s,
                             const struct moment_rates &rates, float scale, float weight_decay,
                             int64_t first, int64_t left)
{
    MOMENT *moment1 = static_cast<MOMENT *>(p.moment1) + first;
    MOMENT *moment2 = static_cast<MOMENT *>(p.moment2) + first;
    float w[EIGHT], m[EIGHT], v[EIGHT], g[EIGHT];
    load_eight<ALIGNED>(w, p.weights + first, left);
    load_eight<ALIGNED>(m, moment1, left);
    load_eight<ALIGNED>(v, moment2, left);
    load_eight<ALIGNED>(g, p.gradient + first, left);
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        float scaled = g[i] * scale;
        m[i] = update_moment(rates.first, m[i], scaled);
        v[i] = update_moment(rates.second, v[i], scaled * scaled);
        float step = m[i] / s.correction1 / (sqrtf(v[i] / s.correction2) + s.epsilon);
        w[i] -= s.learning_rate * (step + weight_decay * w[i]);
    }
    store_eight<ALIGNED>(p.weights + first, w, left);
    round_moments(m, moment1, s, 0, first);
    round_moments(v, moment2, s, 1, first);
    store_eight<ALIGNED>(moment1, m, left);
    store_eight<ALIGNED>(moment2, v, left);
    if (p.copy != nullptr) {
        round_eight(w, s.rounding, first);
        store_eight<ALIGNED>(p.copy + first, w, left);
    }
}

template <class MOMENT, bool ALIGNED>
__global__ void __launch_bounds__(ADAMW_THREADS)
    adamw_step(const struct adamw_slices p, const struct adamw s, const struct moment_rates rates)
{
    int64_t first = (static_cast<int64_t>(blockIdx.x) * ADAMW_THREADS + threadIdx.x) * EIGHT;
    if (first < p.count && !is_skipped(s)) {
        update_eight<MOMENT, ALIGNED>(p, s, rates, get_gradient_scale(s), s.weight_decay, first,
                                      p.count - first);
    }
}

/* A block updates elements of the last part that begins at this block or before it. */
__global__ void __launch_bounds__(ADAMW_THREADS)
    adamw_parts_step(struct adamw_slices p, const struct adamw_part *parts, int64_t part_count,
                     int64_t first_block, int64_t origin, bool aligned, const struct adamw s,
                     const struct moment_rates rates)
{
    int64_t block = first_block + blockIdx.x, low = 0, high = part_count - 1;
    while (low < high) {
        int64_t middle = (low + high + 1) / 2;
        if (parts[middle].first_block <= block) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    const struct adamw_part part = parts[low];
    int64_t first = (block - part.first_block) * ADAMW_PARTS_BLOCK + threadIdx.x * EIGHT;
    int64_t left = part.count - first, begin = part.first - origin;
    if (left <= 0 || is_skipped(s)) {
        return;
    }
    const float scale = get_gradient_scale(s);
    p.weights += begin;
    p.gradient += begin;
    p.copy = p.copy == nullptr ? nullptr : p.copy + begin;
    p.moment1 = static_cast<float *>(p.moment1) + part.moment;
    p.moment2 = static_cast<float *>(p.moment2) + part.moment;
    if (aligned && begin % EIGHT == 0 && part.moment % EIGHT == 0 && left >= EIGHT) {
        update_eight<float, true>(p, s, rates, scale, part.weight_decay, first, left);
    } else {
        update_eight<float, false>(p, s, rates, scale, part.weight_decay, first, left);
    }
}

static bool is_aligned(const void *p)
{
    return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

template <class MOMENT>
static status launch_step(struct kernels *k, const struct adamw_slices &p, const struct adamw &s,
                          bool aligned)
{
    const struct moment_rates rates = make_moment_rates(&s);
    const unsigned blocks = count_blocks(p.count, ADAMW_THREADS * EIGHT);
    if (p.count > 0 && aligned) {
        LAUNCH(k, (adamw_step<MOMENT, true>), blocks, ADAMW_THREADS, 0, p, s, rates);
    } else if (p.count > 0) {
        LAUNCH(k, (adamw_step<MOMENT, false>), blocks, ADAMW_THREADS, 0, p, s, rates);
    }
    return STATUS_OK;
}

static status launch_for_dtype(struct kernels *k, const struct adamw_slices &p,
                               const struct adamw &s, bool aligned)
{
    return s.moment_dtype == DTYPE_BF16 ? launch_step<bf16>(k, p, s, aligned)
                                        : launch_step<float>(k, p, s, aligned);
}

/* Groups of eight elements use 16-byte accesses; the remaining elements use scalar accesses. */
extern "C" status cuda_adamw_update(struct kernels *k, float *weights, bf16 *copy, void *moment1,
                                    void *moment2, const float *gradient, int64_t count,
                                    const struct adamw *settings)
{
    bool aligned = is_aligned(weights) && is_aligned(moment1) && is_aligned(moment2) &&
                   is_aligned(gradient) && is_aligned(copy);
    int64_t vectorized = aligned ? count / EIGHT * EIGHT : 0;
    struct adamw_slices p = {weights, moment1, moment2, gradient, copy, vectorized};
    TRY(launch_for_dtype(k, p, *settings, true));
    p = {weights + vectorized,
         get_moment_address(moment1, settings->moment_dtype, vectorized),
         get_moment_address(moment2, settings->moment_dtype, vectorized),
         gradient + vectorized,
         copy,
         count - vectorized};
    p.copy = copy == NULL ? NULL : copy + vectorized;
    struct adamw rest = *settings;
    rest.rounding.offset += vectorized;
    return launch_for_dtype(k, p, rest, false);
}

extern "C" status cuda_adamw_parts_update(struct kernels *k, float *weights, bf16 *copy,
                                          float *moment1, float *moment2, const float *gradient,
                                          const struct adamw_parts *p, const struct adamw *settings)
{
    static_assert(ADAMW_PARTS_BLOCK == ADAMW_THREADS * EIGHT, "a block updates these elements");
    const struct adamw_slices slices = {weights, moment1, moment2, gradient, copy, p->elements};
    bool aligned = is_aligned(weights) && is_aligned(moment1) && is_aligned(moment2) &&
                   is_aligned(gradient) && is_aligned(copy);
    LAUNCH(k, adamw_parts_step, static_cast<unsigned>(p->blocks), ADAMW_THREADS, 0, slices,
           p->parts, p->part_count, p->first_block, p->origin, aligned, *settings,
           make_moment_rates(settings));
    return STATUS_OK;
}
