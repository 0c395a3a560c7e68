/* Linear layers with operands that are rounded to FP8 (kernels/fp8.h). A kernel rounds, measures
 * and, if necessary, transposes an operand in one pass. cuBLASLt multiplies the FP8 numbers.
 *
 * Layout    cuBLASLt multiplies FP8 matrices only if the inner dimension of both is contiguous:
 *             y  [N, M]   x [N, K]     w [M, K]
 *             dx [N, K]   dy [N, M]    w^T [K, M]
 *             dw [M, K]   dy^T [M, N]  x^T [K, N], with zeros up to a multiple of 16 rows
 * Launch    grid (ceil(columns / 64), ceil(rows / 64)); block 256; 4.3 KiB of shared memory. A
 *           block casts a tile of 64 x 64 elements
 * Order     an atomic maximum of integers combines the maxima of the blocks. It gives the same bits
 *           in every order */
#include "kernels/cuda/operation.cuh"

enum { FP8_THREADS = 256, FP8_TILE = 64, FP8_PITCH = FP8_TILE + 4, FP8_SEGMENT = 16 };

/* Returns the FP8 number nearest to x, with ties to even. Every NaN becomes 0x7f. */
template <bool E5M2> GPU_INLINE uint32_t round_to_fp8(float x)
{
    const int fraction_bits = E5M2 ? 2 : 3, shift = 23 - fraction_bits, bias = E5M2 ? 15 : 7;
    const uint32_t infinity = 0x7f800000u, largest = E5M2 ? 0x7bu : 0x7eu;
    uint32_t bits = gpu_bits(x), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
    if (magnitude > infinity) {
        return 0x7fu;
    }
    /* Subnormal numbers are multiples of their distance. Adding a number that has this distance as
     * its last bit rounds x to such a multiple. */
    const uint32_t least = static_cast<uint32_t>(128 - bias) << 23;
    const uint32_t anchor = static_cast<uint32_t>(128 - bias - fraction_bits + 23) << 23;
    uint32_t code;
    if (magnitude < least) {
        code = gpu_bits(gpu_from_bits(magnitude) + gpu_from_bits(anchor)) - anchor;
    } else {
        uint32_t even = magnitude >> shift & 1u;
        uint32_t rounded = magnitude + even + ((1u << (shift - 1)) - 1);
        code = (rounded >> shift) - (static_cast<uint32_t>(127 - bias) << fraction_bits);
    }
    return sign | (code < largest ? code : largest);
}

/* Returns four FP8 numbers, the first one in the lowest byte. */
template <bool E5M2> GPU_INLINE uint32_t pack_fp8(const float *x)
{
    return round_to_fp8<E5M2>(x[0]) | round_to_fp8<E5M2>(x[1]) << 8 |
           round_to_fp8<E5M2>(x[2]) << 16 | round_to_fp8<E5M2>(x[3]) << 24;
}

/* The outputs of a cast; NULL: not written. */
struct fp8_outputs {
    uint8_t *rounded;    /* [rows, columns] */
    uint8_t *transposed; /* [columns, stride] */
    int64_t stride;
    uint32_t *maximum; /* bits of the largest magnitude */
};

GPU_INLINE void update_maximum(uint32_t *maximum, uint32_t bits, uint32_t *scratch)
{
#pragma unroll
    for (int with = 16; with > 0; with /= 2) {
        uint32_t other = __shfl_xor_sync(~0u, bits, with);
        bits = other > bits ? other : bits;
    }
    if (threadIdx.x % 32 == 0) {
        scratch[threadIdx.x / 32] = bits;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < FP8_THREADS / 32; i++) {
            bits = scratch[i] > bits ? scratch[i] : bits;
        }
        gpu_atomic_max(maximum, bits);
    }
}

template <typename T, bool ALIGNED, bool E5M2>
__global__ void __launch_bounds__(FP8_THREADS)
    cast_to_fp8(const struct fp8_outputs out, const matrix<const T> from, int64_t rows,
                int64_t columns, const float *scale)
{
    GPU_SHARED(uint8_t, tile, FP8_TILE * FP8_PITCH);
    GPU_SHARED(uint32_t, scratch, FP8_THREADS / 32);
    int64_t first_row = static_cast<int64_t>(blockIdx.y) * FP8_TILE;
    int64_t first_column = static_cast<int64_t>(blockIdx.x) * FP8_TILE;
    float factor = scale != nullptr ? *scale : 1.0f;
    uint32_t largest = 0;
    for (int half = 0; half < 2; half++) {
        int r = half * (FP8_TILE / 2) + threadIdx.x / EIGHT, c = threadIdx.x % EIGHT * EIGHT;
        int64_t row = first_row + r, column = first_column + c;
        int64_t left = row < rows ? columns - column : 0;
        float x[EIGHT];
        load_eight<ALIGNED>(x, from.data + row * from.stride + column, left);
#pragma unroll
        for (int i = 0; i < EIGHT; i++) {
            uint32_t magnitude = gpu_bits(x[i]) & 0x7fffffffu;
            largest = magnitude > largest ? magnitude : largest;
            x[i] *= magnitude < 0x7f800000u ? factor : 0.0f; /* infinity becomes NaN */
        }
        const uint32_t words[2] = {pack_fp8<E5M2>(x), pack_fp8<E5M2>(x + 4)};
        if (out.rounded != nullptr && left > 0) {
            memcpy(out.rounded + row * columns + column, words, sizeof words);
        }
        if (out.transposed != nullptr) {
            for (int i = 0; i < EIGHT; i++) {
                tile[r * FP8_PITCH + c + i] = static_cast<uint8_t>(words[i / 4] >> (i % 4 * 8));
            }
        }
    }
    if (out.maximum != nullptr) {
        update_maximum(out.maximum, largest, scratch);
    }
    if (out.transposed == nullptr) {
        return;
    }
    __syncthreads();
    int c = threadIdx.x / (FP8_TILE / FP8_SEGMENT);
    int r = threadIdx.x % (FP8_TILE / FP8_SEGMENT) * FP8_SEGMENT;
    if (first_column + c < columns && first_row + r < out.stride) {
        uint32_t words[4] = {};
        for (int i = 0; i < FP8_SEGMENT; i++) {
            words[i / 4] |= static_cast<uint32_t>(tile[(r + i) * FP8_PITCH + c]) << (i % 4 * 8);
        }
        gpu_store16(out.transposed + (first_column + c) * out.stride + first_row + r,
                    uint4{words[0], words[1], words[2], words[3]});
    }
}

/* ---- host ---- */

/* An operand of a GEMM. */
struct fp8_cast {
    struct tensor from, scales, maxima; /* maxima absent: not measured */
    enum fp8_operand operand;
    bool transposed;
};

/* Returns the address of the scale or of its reciprocal. */
static const float *get_factor(const struct fp8_cast *cast, int column)
{
    return static_cast<const float *>(cast->scales.data) + cast->operand * cast->scales.stride +
           column;
}

static status launch_cast(struct kernels *k, const struct fp8_cast *cast,
                          const struct fp8_outputs *out)
{
    const struct tensor *from = &cast->from;
    int64_t rows = out->transposed != nullptr ? out->stride : from->rows;
    dim3 grid(count_blocks(from->columns, FP8_TILE), count_blocks(rows, FP8_TILE));
    const float *scale = cast->scales.data != nullptr ? get_factor(cast, FP8_SCALE) : nullptr;
    if (from->rows == 0) {
        return STATUS_OK;
    }
    if (cast->operand == FP8_DY) {
        FOR_TYPE(k->dtype, operation_is_aligned(*from),
                 LAUNCH(k, (cast_to_fp8<T, ALIGNED, true>), grid, FP8_THREADS, 0, *out,
                        make_matrix<const T>(*from), from->rows, from->columns, scale));
    } else {
        FOR_TYPE(k->dtype, operation_is_aligned(*from),
                 LAUNCH(k, (cast_to_fp8<T, ALIGNED, false>), grid, FP8_THREADS, 0, *out,
                        make_matrix<const T>(*from), from->rows, from->columns, scale));
    }
    return STATUS_OK;
}

static uint32_t *get_maximum(const struct fp8_cast *cast)
{
    return cast->maxima.data != nullptr ? static_cast<uint32_t *>(cast->maxima.data) + cast->operand
                                        : nullptr;
}

/* Measures an operand that is not rounded. */
static status measure_operand(struct kernels *k, const struct fp8_cast *cast)
{
    struct fp8_outputs out = {};
    out.maximum = get_maximum(cast);
    return out.maximum != nullptr ? launch_cast(k, cast, &out) : STATUS_OK;
}

/* Casts an operand to scratch memory. *reciprocal receives its factor in the GEMM. */
static status cast_operand(struct kernels *k, const struct fp8_cast *cast, struct tensor *to,
                           const float **reciprocal)
{
    int64_t stride = (cast->from.rows + FP8_MULTIPLE - 1) / FP8_MULTIPLE * FP8_MULTIPLE;
    int64_t rows = cast->transposed ? stride : cast->from.rows;
    enum dtype dtype = cast->operand == FP8_DY ? DTYPE_E5M2 : DTYPE_E4M3;
    void *memory;
    TRY(arena_take(&cuda_get_state(k)->scratch, static_cast<size_t>(rows * cast->from.columns),
                   &memory));
    struct fp8_outputs out = {};
    out.maximum = get_maximum(cast);
    *reciprocal = get_factor(cast, FP8_RECIPROCAL);
    if (cast->transposed) {
        out.transposed = static_cast<uint8_t *>(memory);
        out.stride = stride;
        *to = tensor_view(memory, dtype, cast->from.columns, stride);
    } else {
        out.rounded = static_cast<uint8_t *>(memory);
        *to = tensor_view(memory, dtype, rows, cast->from.columns);
    }
    return launch_cast(k, cast, &out);
}

/* Casts both operands and multiplies them: p->c (+)= a b^T. */
static status run_gemm(struct kernels *k, struct cuda_gemm *p, const struct fp8_cast *a,
                       const struct fp8_cast *b)
{
    struct arena *scratch = &cuda_get_state(k)->scratch;
    size_t mark = arena_mark(scratch);
    TRY(cast_operand(k, a, &p->a, &p->scale_a));
    TRY(cast_operand(k, b, &p->b, &p->scale_b));
    arena_release(scratch, mark);
    p->transpose_b = true;
    return cuda_gemm_run(k, p);
}

extern "C" status cuda_fp8_linear_forward(struct kernels *k, struct tensor y, struct tensor saved,
                                          struct tensor maxima, struct tensor x, struct tensor w,
                                          struct tensor bias, struct tensor scales,
                                          enum activation act)
{
    const struct fp8_cast a = {x, scales, maxima, FP8_X, false};
    const struct fp8_cast b = {w, scales, maxima, FP8_W, false};
    if (scales.data == nullptr) {
        TRY(measure_operand(k, &a));
        TRY(measure_operand(k, &b));
        return cuda_linear_forward(k, y, saved, x, w, bias, act);
    }
    struct cuda_gemm p = {};
    p.c = y;
    p.bias = bias;
    p.act = act;
    p.aux = saved;
    return run_gemm(k, &p, &a, &b);
}

extern "C" status cuda_fp8_linear_backward_input(struct kernels *k, struct tensor dx,
                                                 struct bias_gradient dbias, struct tensor maxima,
                                                 struct tensor dy, struct tensor w,
                                                 struct tensor scales, enum activation act,
                                                 struct tensor saved)
{
    const struct fp8_cast a = {dy, scales, maxima, FP8_DY, false};
    const struct fp8_cast b = {w, scales, tensor_absent(), FP8_W, true};
    if (scales.data == nullptr) {
        TRY(measure_operand(k, &a));
        return cuda_linear_backward_input(k, dx, dbias, dy, w, act, saved);
    }
    struct cuda_gemm p = {};
    p.c = dx;
    /* The sums need scratch memory, which contains the operands until the GEMM and its tuning end.
     * So the derivative and the sums follow in a separate kernel. */
    const bool sums = dbias.sums.data != nullptr, activated = act != ACTIVATION_NONE;
    if (activated && !sums) {
        p.act = act;
        p.derivative = true;
        p.aux = saved;
    }
    TRY(run_gemm(k, &p, &a, &b));
    if (!sums) {
        return STATUS_OK;
    }
    return activated ? cuda_activation_backward_sums(k, dx, dbias, dx, saved, act)
                     : cuda_bias_gradient(k, dbias, dx);
}

extern "C" status cuda_fp8_linear_backward_weight(struct kernels *k, struct tensor dw,
                                                  struct tensor dbias, struct tensor maxima,
                                                  struct tensor dy, struct tensor x,
                                                  struct tensor scales, bool overwrite)
{
    const struct fp8_cast a = {dy, scales, maxima, FP8_DY, true};
    const struct fp8_cast b = {x, scales, tensor_absent(), FP8_X, true};
    if (scales.data == nullptr || dw.data == nullptr) {
        TRY(measure_operand(k, &a));
        return cuda_linear_backward_weight(k, dw, dbias, dy, x, overwrite);
    }
    TRY(dbias.data != nullptr ? cuda_bias_gradient(k, {dbias, overwrite}, dy) : STATUS_OK);
    struct cuda_gemm p = {};
    p.c = dw;
    p.accumulate = !overwrite;
    return run_gemm(k, &p, &a, &b);
}
