/* Common parts of the operations' files: checked kernel launches, loads and stores of eight
 * elements of any type and alignment, and reductions within a block. */
#pragma once

#include <tuple>

#include "kernels/cuda/gpu.cuh"

extern "C" {
#include "base/number.h"
#include "kernels/cuda/cuda.h"
}

/* ---- host ---- */

/* LAUNCH - queue a kernel on the stream of k, with any dynamic shared memory that the GPU allows.
 * Returns from the calling function if the launch fails. */
#define LAUNCH(k, kernel, grid, block, shared_bytes, ...)                                          \
    TRY(launch_kernel((k), #kernel, (kernel), (grid), (block), (shared_bytes), __VA_ARGS__))

/* Zeroes the padding of an argument, so that equal arguments have equal bytes. CUDA graphs compare
 * arguments by their bytes (graph.c). */
template <typename T> static inline void clear_padding(T &argument)
{
#ifdef __has_builtin
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&argument);
#endif
#endif
    (void)argument;
}

/* Converts the arguments to the kernel's parameter types and passes their addresses and sizes. */
template <typename... P, typename... A>
static inline status launch_kernel(struct kernels *k, const char *name, void (*kernel)(P...),
                                   dim3 grid, dim3 block, size_t shared_bytes,
                                   const A &...arguments_in)
{
    static const size_t sizes[] = {sizeof(P)...};
    const char *refused =
        shared_bytes > 0 ? gpu_allow_shared(GPU_KERNEL(kernel), shared_bytes) : nullptr;
    REQUIRE(
        refused == nullptr, STATUS_UNAVAILABLE,
        "kernel %s needs %zu bytes of shared memory in each block, and this GPU allows %zu: %s; "
        "train with train.device: cpu or on another GPU",
        name, shared_bytes, gpu_shared_limit(), refused);
    std::tuple<P...> values(static_cast<P>(arguments_in)...);
    const struct cuda_launch launch = {name,
                                       GPU_KERNEL(kernel),
                                       {grid.x, grid.y, grid.z},
                                       {block.x, block.y, block.z},
                                       shared_bytes,
                                       static_cast<int>(sizeof...(P)),
                                       sizes};
    return std::apply(
        [&](P &...value) {
            (clear_padding(value), ...);
            void *arguments[] = {static_cast<void *>(&value)...};
            return cuda_launch_kernel(k, &launch, arguments);
        },
        values);
}

static inline unsigned count_blocks(int64_t items, int64_t each)
{
    return static_cast<unsigned>(number_divide_up(items, each));
}

/* operation_is_aligned - return whether each row can be read 16 bytes at a time: the address is a
 * multiple of 16, stride and columns are multiples of eight. An absent tensor counts as aligned. */
static inline bool operation_is_aligned(struct tensor t)
{
    return t.data == NULL || (reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.stride % 8 == 0 &&
                              t.columns % 8 == 0);
}

/* ---- device ---- */

/* VECTOR_ELEMS: the f32 elements of a 16-byte access. LANE_ELEMS: the consecutive elements that a
 * lane usually processes. */
enum { VECTOR_ELEMS = 4, LANE_ELEMS = 8 };

/* Constants of GELU, which is x/2 erfc(-x sqrt(1/2)), or x/2 (1 + tanh(sqrt(2/pi) (x +
 * GELU_CUBIC x^3))). */
constexpr float SQRT_HALF = 0.7071067812f, SQRT_2_OVER_PI = 0.7978845608f;
constexpr float INVERSE_SQRT_2_PI = 0.3989422804f; /* of the normal density */
constexpr float GELU_CUBIC = 0.044715f, LOG2_E = 1.44269504f;

/* Eight elements as they are stored. In bf16, elements that are not yet converted need half as many
 * registers, and no instruction waits for their load. */
template <typename T> struct eight_bits {
    uint4 words[sizeof(T) / 2];
};

/* load_bits - load eight consecutive elements.
 *
 * `left` counts the elements left in the row: further elements are loaded as 0. ALIGNED requires
 * that p is a multiple of 16 bytes and `left` a multiple of eight, and uses 16-byte accesses. */
template <bool ALIGNED, typename T>
GPU_INLINE void load_bits(eight_bits<T> &bits, const T *p, int64_t left)
{
    bits = {};
    if (ALIGNED && left > 0) {
#pragma unroll
        for (size_t i = 0; i < sizeof(T) / 2; i++) {
            bits.words[i] = gpu_load16(p + i * LANE_ELEMS / (sizeof(T) / 2));
        }
    } else if (!ALIGNED) {
        T x[LANE_ELEMS];
#pragma unroll
        for (int i = 0; i < LANE_ELEMS; i++) {
            x[i] = i < left ? p[i] : T{};
        }
        memcpy(&bits, x, sizeof bits);
    }
}

/* convert_bits - convert eight elements to f32. */
GPU_INLINE void convert_bits(float (&x)[LANE_ELEMS], const eight_bits<float> &bits)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        x[4 * i] = gpu_from_bits(bits.words[i].x);
        x[4 * i + 1] = gpu_from_bits(bits.words[i].y);
        x[4 * i + 2] = gpu_from_bits(bits.words[i].z);
        x[4 * i + 3] = gpu_from_bits(bits.words[i].w);
    }
}
GPU_INLINE void convert_bits(float (&x)[LANE_ELEMS], const eight_bits<bf16> &bits)
{
    const uint32_t words[4] = {bits.words[0].x, bits.words[0].y, bits.words[0].z, bits.words[0].w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[2 * i] = gpu_from_bits(words[i] << 16);
        x[2 * i + 1] = gpu_from_bits(words[i] & 0xffff0000u);
    }
}

/* add_eight - convert eight elements and add each one to its sum. */
template <typename T>
GPU_INLINE void add_eight(float (&sums)[LANE_ELEMS], const eight_bits<T> &bits)
{
    float x[LANE_ELEMS];
    convert_bits(x, bits);
#pragma unroll
    for (int i = 0; i < LANE_ELEMS; i++) {
        sums[i] += x[i];
    }
}

/* load_eight - load_bits and convert_bits. */
template <bool ALIGNED, typename T>
GPU_INLINE void load_eight(float (&x)[LANE_ELEMS], const T *p, int64_t left)
{
    eight_bits<T> bits;
    load_bits<ALIGNED>(bits, p, left);
    convert_bits(x, bits);
}

/* round_eight_bits - round eight elements to their type. */
GPU_INLINE void round_eight_bits(eight_bits<float> &bits, const float (&x)[LANE_ELEMS])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        bits.words[i] = {gpu_bits(x[4 * i]), gpu_bits(x[4 * i + 1]), gpu_bits(x[4 * i + 2]),
                         gpu_bits(x[4 * i + 3])};
    }
}
GPU_INLINE void round_eight_bits(eight_bits<bf16> &bits, const float (&x)[LANE_ELEMS])
{
    bits.words[0] = {gpu_pack(x[0], x[1]), gpu_pack(x[2], x[3]), gpu_pack(x[4], x[5]),
                     gpu_pack(x[6], x[7])};
}

/* store_bits - store eight elements. The arguments are as in load_bits. */
template <bool ALIGNED, typename T>
GPU_INLINE void store_bits(T *p, const eight_bits<T> &bits, int64_t left)
{
    if (ALIGNED && left > 0) {
#pragma unroll
        for (size_t i = 0; i < sizeof(T) / 2; i++) {
            gpu_store16(p + i * LANE_ELEMS / (sizeof(T) / 2), bits.words[i]);
        }
    } else if (!ALIGNED) {
        T x[LANE_ELEMS];
        memcpy(x, &bits, sizeof bits);
#pragma unroll
        for (int i = 0; i < LANE_ELEMS; i++) {
            if (i < left) {
                p[i] = x[i];
            }
        }
    }
}

/* store_eight - round_eight_bits and store_bits. */
template <bool ALIGNED, typename T>
GPU_INLINE void store_eight(T *p, const float (&x)[LANE_ELEMS], int64_t left)
{
    eight_bits<T> bits;
    round_eight_bits(bits, x);
    store_bits<ALIGNED>(p, bits, left);
}

/* load_four, store_four - load or store four elements as load_eight and store_eight do. ALIGNED
 * requires that p is aligned to four elements and that `left` is a multiple of four. */
template <bool ALIGNED> GPU_INLINE void load_four(float *x, const float *p, int64_t left)
{
    uint4 bits = {};
    if (ALIGNED && left > 0) {
        bits = gpu_load16(p);
    }
    const uint32_t words[VECTOR_ELEMS] = {bits.x, bits.y, bits.z, bits.w};
#pragma unroll
    for (int i = 0; i < VECTOR_ELEMS; i++) {
        x[i] = ALIGNED ? gpu_from_bits(words[i]) : i < left ? p[i] : 0.0f;
    }
}
template <bool ALIGNED> GPU_INLINE void load_four(float *x, const bf16 *p, int64_t left)
{
    uint64_t bits = 0;
    if (ALIGNED && left > 0) {
        bits = *reinterpret_cast<const uint64_t *>(p);
    }
#pragma unroll
    for (int i = 0; i < VECTOR_ELEMS; i++) {
        bf16 element = static_cast<bf16>(bits >> (16 * i));
        x[i] = gpu_float(ALIGNED ? element : i < left ? p[i] : bf16{});
    }
}
template <bool ALIGNED> GPU_INLINE void store_four(float *p, const float *x, int64_t left)
{
    if (ALIGNED && left > 0) {
        gpu_store16(p, {gpu_bits(x[0]), gpu_bits(x[1]), gpu_bits(x[2]), gpu_bits(x[3])});
    }
#pragma unroll
    for (int i = 0; i < VECTOR_ELEMS; i++) {
        if (!ALIGNED && i < left) {
            p[i] = x[i];
        }
    }
}
template <bool ALIGNED> GPU_INLINE void store_four(bf16 *p, const float *x, int64_t left)
{
    if (ALIGNED && left > 0) {
        *reinterpret_cast<uint64_t *>(p) =
            uint64_t{gpu_pack(x[2], x[3])} << 32 | gpu_pack(x[0], x[1]);
    }
#pragma unroll
    for (int i = 0; i < VECTOR_ELEMS; i++) {
        if (!ALIGNED && i < left) {
            p[i] = gpu_bf16(x[i]);
        }
    }
}

/* team_sum - sum x over a team of TEAM consecutive threads and return the sum to each of them.
 *
 * A team is a warp or the whole block. For a block, scratch holds one float for each warp. */
template <int TEAM> GPU_INLINE float team_sum(float x, float *scratch)
{
#pragma unroll
    for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2) {
        x += __shfl_xor_sync(~0u, x, lane_mask);
    }
    if (TEAM > 32) {
        if (threadIdx.x % 32 == 0) {
            scratch[threadIdx.x / 32] = x;
        }
        __syncthreads();
        x = 0;
        for (int i = 0; i < TEAM / 32; i++) {
            x += scratch[i];
        }
        __syncthreads();
    }
    return x;
}

/* block_sum - sum x over the threads of a block as a tree. THREADS is a power of two; scratch holds
 * THREADS doubles. */
template <int THREADS> GPU_INLINE double block_sum(double x, double *scratch)
{
    scratch[threadIdx.x] = x;
    __syncthreads();
    for (int half = THREADS / 2; half > 0; half /= 2) {
        if (static_cast<int>(threadIdx.x) < half) {
            scratch[threadIdx.x] += scratch[threadIdx.x + half];
        }
        __syncthreads();
    }
    return scratch[0];
}

/* ---- types at run time ---- */

/* FOR_TYPE(dtype, aligned, call) - execute `call` with the type T and the constant ALIGNED. */
#define FOR_TYPE(dtype, aligned, ...)                                                              \
    do {                                                                                           \
        if ((dtype) == DTYPE_F32 && (aligned)) {                                                   \
            using T = float;                                                                       \
            constexpr bool ALIGNED = true;                                                         \
            __VA_ARGS__;                                                                           \
        } else if ((dtype) == DTYPE_F32) {                                                         \
            using T = float;                                                                       \
            constexpr bool ALIGNED = false;                                                        \
            __VA_ARGS__;                                                                           \
        } else if (aligned) {                                                                      \
            using T = bf16;                                                                        \
            constexpr bool ALIGNED = true;                                                         \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            using T = bf16;                                                                        \
            constexpr bool ALIGNED = false;                                                        \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

/* A row-major matrix as a kernel argument. */
template <typename T> struct matrix {
    T *data;
    int64_t stride;
};

template <typename T> static inline matrix<T> make_matrix(struct tensor t)
{
    return {static_cast<T *>(t.data), t.stride};
}
