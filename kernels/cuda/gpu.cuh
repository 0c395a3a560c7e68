/* The one header that CUDA kernels include: each instruction that CUDA C++ has no word for is one
 * wrapper here, and every kernel is launched through one macro.
 *
 * Twins     nvcc compiles the PTX below. For any other C++ compiler the build names a file in
 *           GPU_TWIN that gives the same names for the host (the emulator of the tests): kernels
 *           then run, and are checked for races, on a machine without a GPU.
 * Kernels   use __shfl_*_sync, __ballot_sync, __syncwarp, __syncthreads, the wrappers below, and
 *           nothing else that is special: no inline assembly, no cooperative groups, no __shared__
 *           (GPU_SHARED, GPU_SHARED_DYNAMIC), no <<<>>> (GPU_LAUNCH; a template's name with commas
 *           in it is put in parentheses).
 * sm_90a    where GPU_HAS_SM90 is defined: mbarrier, TMA, wgmma. One file builds for both.
 * Source    PTX ISA 9.0, the sections named by the instructions */
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

extern "C" {
#include "base/status.h"
#include "base/tensor.h"
}

#ifndef __CUDACC__
#include GPU_TWIN
#else

#include <cuda.h>
#include <cuda_runtime.h>

#define GPU_INLINE static __device__ __forceinline__

#define GPU_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                 \
    (kernel)<<<(grid), (block), (shared_bytes), (cudaStream_t)(stream)>>>(__VA_ARGS__)
/* What the runtime knows a kernel by. */
#define GPU_KERNEL(kernel) (reinterpret_cast<const void *>(kernel))
/* More than 48 KiB of dynamic shared memory must be asked for. A refusal shows at the launch. */
#define GPU_ALLOW_SHARED(kernel, bytes)                                                            \
    ((void)cudaFuncSetAttribute((kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,             \
                                (int)(bytes)))
#define GPU_SHARED(T, name, count) __shared__ __align__(16) T name[count]
#define GPU_SHARED_DYNAMIC(T, name)                                                                \
    extern __shared__ __align__(1024) unsigned char gpu_dynamic_[];                                \
    T *name = reinterpret_cast<T *>(gpu_dynamic_)

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define GPU_HAS_SM90 1
#endif

/* What the last launch was refused for; NULL where it was not. */
static inline const char *gpu_launch_error()
{
    cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? NULL : cudaGetErrorString(error);
}

/* gpu_capability - the first number of the chosen GPU's; 0 where there is none. */
static inline int gpu_capability()
{
    int device = 0, major = 0;
    bool known =
        cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess;
    return known ? major : 0;
}

/* ---- numbers ---- */

GPU_INLINE float gpu_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
GPU_INLINE uint32_t gpu_bits(float x)
{
    return __float_as_uint(x);
}
GPU_INLINE float gpu_from_bits(uint32_t bits)
{
    return __uint_as_float(bits);
}
/* To nearest even; every NaN becomes 0x7fff. */
GPU_INLINE bf16 gpu_bf16(float x)
{
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
}
GPU_INLINE uint32_t gpu_pack(float low, float high)
{
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
}

/* ---- memory ---- */

GPU_INLINE uint4 gpu_load16(const void *p)
{
    return *static_cast<const uint4 *>(p);
}
GPU_INLINE void gpu_store16(void *p, uint4 value)
{
    *static_cast<uint4 *>(p) = value;
}
GPU_INLINE uint32_t gpu_shared_address(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/* 16 bytes from global to shared memory, zeros where not valid; there when waited for. */
GPU_INLINE void gpu_copy_async(void *to, const void *from, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(gpu_shared_address(to)),
                 "l"(from), "r"(valid ? 16 : 0)
                 : "memory");
}
GPU_INLINE void gpu_copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int GROUPS_LEFT> GPU_INLINE void gpu_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS_LEFT) : "memory");
}

/* ---- barriers of a part of the block: number 1..15, threads a multiple of 32 ---- */

GPU_INLINE void gpu_barrier_sync(int number, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
GPU_INLINE void gpu_barrier_arrive(int number, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* ---- tensor cores of sm_80: fragments as in mma.m16n8k16 and ldmatrix ----
 *
 * With g = lane / 4 and q = lane % 4:
 *   A 16 x 16   a0 (g, 2q..)  a1 (g + 8, 2q..)  a2 (g, 2q + 8..)  a3 (g + 8, 2q + 8..)
 *   B 16 x 8    b0 (2q.., g)  b1 (2q + 8.., g)
 *   D 16 x 8    d0, d1 (g, 2q..)  d2, d3 (g + 8, 2q..)
 * so that D's pairs, packed, are A's of a following product. */

GPU_INLINE void gpu_mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Four 8 x 8 matrices of 16 bits: lane 8 i + r names row r of matrix i; r[i] is lane's part of it. */
GPU_INLINE void gpu_load_matrix(uint32_t (&r)[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(gpu_shared_address(p))
                 : "memory");
}
GPU_INLINE void gpu_load_matrix_transposed(uint32_t (&r)[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(gpu_shared_address(p))
                 : "memory");
}

/* ---- sm_90a: mbarrier, TMA, wgmma ---- */

struct alignas(8) gpu_mbarrier {
    uint64_t state;
};
typedef CUtensorMap gpu_map;

/* gpu_map_make - how boxes of a bf16 matrix are copied, with the swizzle of 128 bytes; false where
 * the driver refuses. The driver's function is asked for by name: nothing is linked. */
static inline bool gpu_map_make(gpu_map *map, const void *base, int64_t rows, int64_t columns,
                                int64_t stride, int box_rows, int box_columns)
{
    typedef CUresult encode(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                            const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                            const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    void *found = NULL;
    cudaDriverEntryPointQueryResult how;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                         &how) != cudaSuccess ||
        found == NULL) {
        return false;
    }
    const cuuint64_t sizes[] = {(cuuint64_t)columns, (cuuint64_t)rows};
    const cuuint64_t strides[] = {(cuuint64_t)stride * 2};
    const cuuint32_t box[] = {(cuuint32_t)box_columns, (cuuint32_t)box_rows}, steps[] = {1, 1};
    return reinterpret_cast<encode *>(found)(
               map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void *>(base), sizes, strides,
               box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
               CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

#ifdef GPU_HAS_SM90
GPU_INLINE void gpu_mbarrier_init(gpu_mbarrier *b, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(gpu_shared_address(b)),
                 "r"(arrivals)
                 : "memory");
}
GPU_INLINE void gpu_mbarrier_arrive(gpu_mbarrier *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(gpu_shared_address(b))
                 : "memory");
}
/* Arrives, and the phase waits for so many bytes of TMA as well. */
GPU_INLINE void gpu_mbarrier_expect(gpu_mbarrier *b, int bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(gpu_shared_address(b)),
        "r"(bytes)
        : "memory");
}
/* Until the phase of this parity is over. */
GPU_INLINE void gpu_mbarrier_wait(gpu_mbarrier *b, int phase)
{
    asm volatile("{ .reg .pred p;\n"
                 "wait_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra wait_%=; }" ::"r"(gpu_shared_address(b)),
                 "r"(phase)
                 : "memory");
}
/* A box of the map from (row, column) on, zeros outside of the matrix; its bytes count at b. */
GPU_INLINE void gpu_copy_box(void *to, const gpu_map *map, int column, int row, gpu_mbarrier *b)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(gpu_shared_address(to)),
                 "l"(map), "r"(gpu_shared_address(b)), "r"(column), "r"(row)
                 : "memory");
}
GPU_INLINE void gpu_fence_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
GPU_INLINE void gpu_wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
GPU_INLINE void gpu_wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int GROUPS_LEFT> GPU_INLINE void gpu_wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS_LEFT) : "memory");
}
template <int REGISTERS> GPU_INLINE void gpu_registers_raise()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> GPU_INLINE void gpu_registers_lower()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
/* What a wgmma writes is there now that it was waited for: nothing that reads it may move up. */
template <int N> GPU_INLINE void gpu_wgmma_settle(float (&d)[N][4])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
    }
}

/* d [64, 8 N] (+)= A [64, 16] B, N 8 or 16. Warp w of the warpgroup holds rows 16 w..; d[j] is mma's d of columns 8 j...
 * Both operands by descriptor (gpu_matrix_descriptor): K-major, B [8 N, 16] as its transpose. A in registers,
 * mma's a of the warp's rows: B [16, 8 N] as it lies (gpu_columns_descriptor). */
#define GPU_FOUR(i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#define GPU_32                                                                                     \
    GPU_FOUR(0), GPU_FOUR(1), GPU_FOUR(2), GPU_FOUR(3), GPU_FOUR(4), GPU_FOUR(5), GPU_FOUR(6),     \
        GPU_FOUR(7)
#define GPU_64                                                                                     \
    GPU_32, GPU_FOUR(8), GPU_FOUR(9), GPU_FOUR(10), GPU_FOUR(11), GPU_FOUR(12), GPU_FOUR(13),      \
        GPU_FOUR(14), GPU_FOUR(15)
#define GPU_32_NAMES                                                                               \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"   \
    "%25,%26,%27,%28,%29,%30,%31"
#define GPU_64_NAMES                                                                               \
    GPU_32_NAMES ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,"   \
                 "%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define GPU_WGMMA(shape, names, operands, predicate, immediates)                                   \
    "{ .reg .pred p;\n"                                                                            \
    "setp.ne.b32 p, " predicate ", 0;\n"                                                           \
    "wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 {" names "}, " operands                  \
    ", p, " immediates "; }"

GPU_INLINE void gpu_wgmma(float (&d)[8][4], uint64_t a, uint64_t b, bool add)
{
    asm volatile(GPU_WGMMA("m64n64k16", GPU_32_NAMES, "%32, %33", "%34", "1, 1, 0, 0")
                 : GPU_32
                 : "l"(a), "l"(b), "r"((int)add));
}
GPU_INLINE void gpu_wgmma(float (&d)[16][4], uint64_t a, uint64_t b, bool add)
{
    asm volatile(GPU_WGMMA("m64n128k16", GPU_64_NAMES, "%64, %65", "%66", "1, 1, 0, 0")
                 : GPU_64
                 : "l"(a), "l"(b), "r"((int)add));
}
GPU_INLINE void gpu_wgmma(float (&d)[8][4], const uint32_t (&a)[4], uint64_t b, bool add)
{
    asm volatile(GPU_WGMMA("m64n64k16", GPU_32_NAMES, "{%32, %33, %34, %35}, %36", "%37", "1, 1, 1")
                 : GPU_32
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}
GPU_INLINE void gpu_wgmma(float (&d)[16][4], const uint32_t (&a)[4], uint64_t b, bool add)
{
    asm volatile(
        GPU_WGMMA("m64n128k16", GPU_64_NAMES, "{%64, %65, %66, %67}, %68", "%69", "1, 1, 1")
        : GPU_64
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}
#undef GPU_WGMMA
#undef GPU_64_NAMES
#undef GPU_32_NAMES
#undef GPU_64
#undef GPU_32
#undef GPU_FOUR
#endif
#endif

#ifndef GPU_INLINE
#define GPU_INLINE static __attribute__((unused)) inline
#endif

/* gpu_matrix_descriptor - where a tile of rows of 128 bytes lies, 1024-byte aligned and swizzled,
 * for wgmma; the next 16 columns (32 bytes) are 2 further on. */
GPU_INLINE uint64_t gpu_matrix_descriptor(const void *tile)
{
    uint64_t address = (gpu_shared_address(tile) & 0x3ffff) >> 4;
    return address | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

/* gpu_columns_descriptor - the same tile as the 16 rows of a B that is not transposed; what follows its 64 columns
 * lies so many bytes further on. The next 16 rows (2048 bytes) are 128 further on. */
GPU_INLINE uint64_t gpu_columns_descriptor(const void *tile, int next_columns)
{
    uint64_t address = (gpu_shared_address(tile) & 0x3ffff) >> 4;
    return address | static_cast<uint64_t>(next_columns >> 4) << 16 | uint64_t{1024 >> 4} << 32 |
           uint64_t{1} << 62;
}

GPU_INLINE float gpu_float(bf16 x)
{
    return gpu_from_bits(static_cast<uint32_t>(x) << 16);
}
GPU_INLINE float gpu_float(float x)
{
    return x;
}
