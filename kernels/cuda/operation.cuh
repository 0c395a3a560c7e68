/* What the files of operations share: launches that are checked, and how elements are read, eight at a
 * time, whatever their type and alignment. */
#pragma once

#include <tuple>

#include "kernels/cuda/gpu.cuh"

extern "C" {
#include "kernels/cuda/cuda.h"
}

/* ---- host ---- */

/* LAUNCH - queue a kernel on k's stream and return where it was refused. */
#define LAUNCH(k, kernel, grid, block, shared_bytes, ...)                                          \
    TRY(launch_kernel((k), #kernel, (kernel), (grid), (block), (shared_bytes), __VA_ARGS__))

/* Equal arguments are equal in all bytes, so that nothing has to be set anew in a graph. */
template <typename T> static inline void clear_padding(T &argument)
{
#ifdef __has_builtin
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&argument);
#endif
#endif
    (void)argument;
}

/* The arguments as the kernel's types, whose addresses and sizes a launch is told. */
template <typename... P, typename... A>
static inline status launch_kernel(struct kernels *k, const char *name, void (*kernel)(P...),
                                   dim3 grid, dim3 block, size_t shared_bytes, const A &...given)
{
    static const size_t sizes[] = {sizeof(P)...};
    std::tuple<P...> values(static_cast<P>(given)...);
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
            return cuda_queue_kernel(k, &launch, arguments);
        },
        values);
}

static inline unsigned blocks_for(int64_t items, int64_t each)
{
    return static_cast<unsigned>((items + each - 1) / each);
}

static inline int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* operation_wide - whether rows can be read 16 bytes at a time: all eight elements or none. */
static inline bool operation_wide(struct tensor t)
{
    return t.data == NULL || (reinterpret_cast<uintptr_t>(t.data) % 16 == 0 && t.stride % 8 == 0 &&
                              t.columns % 8 == 0);
}

/* ---- device ---- */

enum { EIGHT = 8 };

/* Elements past `left` are 0. WIDE: the address is a multiple of 16 and left one of eight. */
template <bool WIDE> GPU_INLINE void load_eight(float (&x)[EIGHT], const float *p, int64_t left)
{
    if (WIDE && left > 0) {
        for (int i = 0; i < 2; i++) {
            uint4 word = gpu_load16(p + 4 * i);
            x[4 * i] = gpu_from_bits(word.x);
            x[4 * i + 1] = gpu_from_bits(word.y);
            x[4 * i + 2] = gpu_from_bits(word.z);
            x[4 * i + 3] = gpu_from_bits(word.w);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        x[i] = i < left ? p[i] : 0.0f;
    }
}

template <bool WIDE> GPU_INLINE void load_eight(float (&x)[EIGHT], const bf16 *p, int64_t left)
{
    if (WIDE && left > 0) {
        uint4 four = gpu_load16(p);
        const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[2 * i] = gpu_from_bits(words[i] << 16);
            x[2 * i + 1] = gpu_from_bits(words[i] & 0xffff0000u);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        x[i] = i < left ? gpu_float(p[i]) : 0.0f;
    }
}

template <bool WIDE> GPU_INLINE void store_eight(float *p, const float (&x)[EIGHT], int64_t left)
{
    if (WIDE && left > 0) {
        for (int i = 0; i < 2; i++) {
            gpu_store16(p + 4 * i, uint4{gpu_bits(x[4 * i]), gpu_bits(x[4 * i + 1]),
                                         gpu_bits(x[4 * i + 2]), gpu_bits(x[4 * i + 3])});
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        if (i < left) {
            p[i] = x[i];
        }
    }
}

template <bool WIDE> GPU_INLINE void store_eight(bf16 *p, const float (&x)[EIGHT], int64_t left)
{
    if (WIDE && left > 0) {
        gpu_store16(p, uint4{gpu_pack(x[0], x[1]), gpu_pack(x[2], x[3]), gpu_pack(x[4], x[5]),
                             gpu_pack(x[6], x[7])});
        return;
    }
#pragma unroll
    for (int i = 0; i < EIGHT; i++) {
        if (i < left) {
            p[i] = gpu_bf16(x[i]);
        }
    }
}

/* As it will be read back. */
GPU_INLINE float stored_as(float x, const float *)
{
    return x;
}
GPU_INLINE float stored_as(float x, const bf16 *)
{
    return gpu_float(gpu_bf16(x));
}

/* team_sum - over TEAM threads that lie together; all get it. A team of more than a warp is the block,
 * and scratch holds a float of each of its warps. */
template <int TEAM> GPU_INLINE float team_sum(float x, float *scratch)
{
#pragma unroll
    for (int with = 16; with > 0; with /= 2) {
        x += __shfl_xor_sync(~0u, x, with);
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

/* block_sum - over the block's threads, a power of two, as a tree; scratch holds a double of each. */
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

/* FOR_TYPE(dtype, wide, call) - call with T and WIDE as constants. */
#define FOR_TYPE(dtype, wide, ...)                                                                 \
    do {                                                                                           \
        if ((dtype) == DTYPE_F32 && (wide)) {                                                      \
            using T = float;                                                                       \
            constexpr bool WIDE = true;                                                            \
            __VA_ARGS__;                                                                           \
        } else if ((dtype) == DTYPE_F32) {                                                         \
            using T = float;                                                                       \
            constexpr bool WIDE = false;                                                           \
            __VA_ARGS__;                                                                           \
        } else if (wide) {                                                                         \
            using T = bf16;                                                                        \
            constexpr bool WIDE = true;                                                            \
            __VA_ARGS__;                                                                           \
        } else {                                                                                   \
            using T = bf16;                                                                        \
            constexpr bool WIDE = false;                                                           \
            __VA_ARGS__;                                                                           \
        }                                                                                          \
    } while (0)

/* A matrix as kernels see it. */
template <typename T> struct matrix {
    T *data;
    int64_t stride;
};

template <typename T> static inline matrix<T> matrix_of(struct tensor t)
{
    return {static_cast<T *>(t.data), t.stride};
}
