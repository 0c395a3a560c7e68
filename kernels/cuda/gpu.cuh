/* Wrappers of the PTX instructions that kernels use, and the macros that declare shared memory and
 * launch kernels. CUDA kernels include this header only.
 *
 * Emulator  nvcc compiles the PTX below. For any other C++ compiler, GPU_EMULATOR names a header
 *           that defines the same names for the host (the emulator in tests/simt). Kernels then
 *           run, and are checked for races, on a machine without a GPU
 * Kernels   may use __shfl_*_sync, __ballot_sync, __syncwarp, __syncthreads and the wrappers below.
 *           They use no inline assembly, no cooperative groups, no __shared__ (use GPU_SHARED or
 *           GPU_SHARED_DYNAMIC) and no <<<>>> (use GPU_LAUNCH; put a template name that contains
 *           commas in parentheses)
 * sm_90a    GPU_HAS_SM90 is defined where mbarrier, TMA and wgmma are available. The same file
 *           builds for sm_80 and sm_90a
 * Source    PTX ISA 9.0, the sections named like the instructions */
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
#include GPU_EMULATOR
#else

#include <cuda.h>
#include <cuda_runtime.h>

#define GPU_INLINE static __device__ __forceinline__

#define GPU_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                 \
    (kernel)<<<(grid), (block), (shared_bytes), (cudaStream_t)(stream)>>>(__VA_ARGS__)
/* The address that identifies a kernel in calls of the CUDA runtime. */
#define GPU_KERNEL(kernel) (reinterpret_cast<const void *>(kernel))
#define GPU_SHARED(T, name, count) __shared__ __align__(16) T name[count]
/* A kernel with swizzled tiles has no static shared array: not every compiler aligns dynamic shared
 * memory after it (gpu_require_swizzle_base). */
#define GPU_SHARED_DYNAMIC(T, name)                                                                \
    extern __shared__ __align__(1024) unsigned char gpu_dynamic_[];                                \
    T *name = reinterpret_cast<T *>(gpu_dynamic_)

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define GPU_HAS_SM90 1
#endif

/* gpu_launch_error - return the error text of the last launch, or NULL if it succeeded. */
static inline const char *gpu_launch_error()
{
    cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? NULL : cudaGetErrorString(error);
}

/* gpu_capability - return the major compute capability of the current GPU, or 0 if there
 * is none. */
static inline int gpu_capability()
{
    int device = 0, major = 0;
    bool found_device =
        cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess;
    return found_device ? major : 0;
}

/* gpu_processors - return the number of multiprocessors of the current GPU, or 1 if there is
 * no GPU. */
static inline int gpu_processors()
{
    int device = 0, count = 0;
    bool found_device =
        cudaGetDevice(&device) == cudaSuccess &&
        cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) == cudaSuccess;
    return found_device && count > 0 ? count : 1;
}

/* gpu_shared_limit - return the largest shared memory of a block in bytes, static arrays included,
 * or 0 if there is no GPU. */
static inline size_t gpu_shared_limit()
{
    int device = 0, bytes = 0;
    bool found_device = cudaGetDevice(&device) == cudaSuccess &&
                        cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                               device) == cudaSuccess;
    return found_device ? static_cast<size_t>(bytes) : 0;
}

/* gpu_allow_shared - allow a kernel (GPU_KERNEL) at least this dynamic shared memory, which may
 * exceed 48 KiB. It never lowers the limit, because launches in a graph may need the larger one.
 * Returns the error text, or NULL if it succeeded. */
static inline const char *gpu_allow_shared(const void *kernel, size_t bytes)
{
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess &&
        attributes.maxDynamicSharedSizeBytes >= static_cast<int>(bytes)) {
        return NULL;
    }
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                             static_cast<int>(bytes));
    if (error == cudaSuccess) {
        return NULL;
    }
    (void)cudaGetLastError(); /* the next launch must not report it again */
    return cudaGetErrorString(error);
}

/* ---- numbers ---- */

GPU_INLINE float gpu_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* Returns the rounded product. The compiler does not fuse it with a later addition. */
GPU_INLINE float gpu_multiply(float x, float y)
{
    return __fmul_rn(x, y);
}
GPU_INLINE uint32_t gpu_bits(float x)
{
    return __float_as_uint(x);
}
GPU_INLINE float gpu_from_bits(uint32_t bits)
{
    return __uint_as_float(bits);
}
/* Rounds to nearest even; every NaN becomes 0x7fff. */
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

/* Sets *p = max(*p, value) atomically. */
GPU_INLINE void gpu_atomic_max(uint32_t *p, uint32_t value)
{
    atomicMax(p, value);
}

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
/* Ends the kernel with an error unless tiles that TMA swizzles can begin at p: the swizzle depends
 * on the address in shared memory, and the descriptors assume a multiple of 1024. The asm hides the
 * address from nvcc, which would remove the check because of the alignment in the declaration. */
GPU_INLINE void gpu_require_swizzle_base(const void *p)
{
    uint32_t address = gpu_shared_address(p);
    asm volatile("" : "+r"(address));
    if ((address & 1023) != 0) {
        __trap();
    }
}

/* Copies 16 bytes from global to shared memory asynchronously (cp.async); writes zeros if not
 * valid. The data is visible after gpu_copy_wait. */
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

/* ---- named barriers of some threads of a block: number 1..15, threads a multiple of 32 ---- */

GPU_INLINE void gpu_barrier_sync(int number, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}
GPU_INLINE void gpu_barrier_arrive(int number, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* ---- the order of blocks ---- */

/* gpu_take_ticket - return the number of earlier calls for this counter.
 *
 * Blocks that take their work by ticket may wait for blocks with lower tickets, which
 * have started. */
GPU_INLINE uint32_t gpu_take_ticket(uint32_t *counter)
{
    uint32_t ticket;
    asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;"
                 : "=r"(ticket)
                 : "l"(counter)
                 : "memory");
    return ticket;
}
/* Waits until `turn` was passed `count` times. All writes before that are then visible. */
GPU_INLINE void gpu_turn_wait(const uint32_t *turn, uint32_t count)
{
    asm volatile("{ .reg .pred p;\n"
                 ".reg .u32 passed;\n"
                 "wait_%=: ld.acquire.gpu.global.u32 passed, [%0];\n"
                 "setp.ne.u32 p, passed, %1;\n"
                 "@p bra wait_%=; }" ::"l"(turn),
                 "r"(count)
                 : "memory");
}
/* Passes the turn. The next block sees all writes of this thread, and all writes that a barrier
 * ordered before the call. */
GPU_INLINE void gpu_turn_pass(uint32_t *turn)
{
    asm volatile("fence.acq_rel.gpu;\n"
                 "red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(turn)
                 : "memory");
}

/* ---- tensor cores of sm_80: fragments as in mma.m16n8k16 and ldmatrix ----
 *
 * With g = lane / 4 and q = lane % 4:
 *   A 16 x 16   a0 (g, 2q..)  a1 (g + 8, 2q..)  a2 (g, 2q + 8..)  a3 (g + 8, 2q + 8..)
 *   B 16 x 8    b0 (2q.., g)  b1 (2q + 8.., g)
 *   D 16 x 8    d0, d1 (g, 2q..)  d2, d3 (g + 8, 2q..)
 * so that the packed pairs of D are the A operand of a following GEMM. */

GPU_INLINE void gpu_mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Loads four 8 x 8 matrices of 16-bit elements. Lane 8 i + r passes the address of row r of matrix
 * i; r[i] receives the lane's two elements of matrix i. */
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

/* gpu_map_make - create the TMA descriptor of a bf16 matrix, copied in boxes with the
 * 128-byte swizzle.
 *
 * Returns false if the driver refuses. The driver function is looked up by name, so that the
 * program does not link against the driver. */
static inline bool gpu_map_make(gpu_map *map, const void *base, int64_t rows, int64_t columns,
                                int64_t stride, int box_rows, int box_columns)
{
    typedef CUresult encode(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                            const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                            const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                            CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    void *function = NULL;
    cudaDriverEntryPointQueryResult query;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                         cudaEnableDefault, &query) != cudaSuccess ||
        function == NULL) {
        return false;
    }
    const cuuint64_t sizes[] = {(cuuint64_t)columns, (cuuint64_t)rows};
    const cuuint64_t strides[] = {(cuuint64_t)stride * 2};
    const cuuint32_t box[] = {(cuuint32_t)box_columns, (cuuint32_t)box_rows}, steps[] = {1, 1};
    return reinterpret_cast<encode *>(function)(
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
/* Arrives, and lets the phase also wait for `bytes` bytes copied by TMA. */
GPU_INLINE void gpu_mbarrier_expect(gpu_mbarrier *b, int bytes)
{
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(gpu_shared_address(b)),
        "r"(bytes)
        : "memory");
}
/* Waits until the phase of this parity is complete. */
GPU_INLINE void gpu_mbarrier_wait(gpu_mbarrier *b, int phase)
{
    asm volatile("{ .reg .pred p;\n"
                 "wait_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra wait_%=; }" ::"r"(gpu_shared_address(b)),
                 "r"(phase)
                 : "memory");
}
/* Copies a box of the map, from (row, column) on, by TMA. Elements outside of the matrix are zeros.
 * The bytes count towards the mbarrier b. */
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
/* Orders earlier accesses to global memory by this thread, such as the wait for a turn, before its
 * later bulk copies. */
GPU_INLINE void gpu_fence_async_global()
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
}
/* Bulk copies between shared and global memory by TMA. Addresses and sizes are multiples of 16.
 *
 * gpu_bulk_load - copy from global memory. The bytes count towards the mbarrier b.
 * gpu_bulk_store, gpu_bulk_add - copy to global memory, or add floats there. Each addition is
 * atomic; subnormal numbers may count as 0. Call gpu_fence_async after the writes to shared memory.
 * Before the thread passes a turn, it calls gpu_bulk_commit and gpu_bulk_wait.
 * gpu_bulk_wait_read - wait until the committed copies have read shared memory. Threads may then
 * overwrite it. */
GPU_INLINE void gpu_bulk_load(void *to, const float *from, int bytes, gpu_mbarrier *b)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(gpu_shared_address(to)),
                 "l"(from), "r"(bytes), "r"(gpu_shared_address(b))
                 : "memory");
}
GPU_INLINE void gpu_bulk_store(float *to, const void *from, int bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(gpu_shared_address(from)), "r"(bytes)
                 : "memory");
}
GPU_INLINE void gpu_bulk_add(float *to, const void *from, int bytes)
{
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 "
                 "[%0], [%1], %2;" ::"l"(to),
                 "r"(gpu_shared_address(from)), "r"(bytes)
                 : "memory");
}
GPU_INLINE void gpu_bulk_commit()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
GPU_INLINE void gpu_bulk_wait()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
GPU_INLINE void gpu_bulk_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
template <int REGISTERS> GPU_INLINE void gpu_registers_raise()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> GPU_INLINE void gpu_registers_lower()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
/* Marks registers of wgmma as read and written here. Use it at two places. After a wait, use it on
 * the accumulators, so that the compiler moves no read of them before the wait. Before a fence, use
 * it on all registers of the next wgmmas, so that the compiler moves no write of them after it. */
template <int N> GPU_INLINE void gpu_wgmma_order(float (&d)[N][4])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
    }
}
template <int N> GPU_INLINE void gpu_wgmma_order(uint32_t (&a)[N][4])
{
#pragma unroll
    for (int i = 0; i < N; i++) {
        asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
    }
}

/* gpu_wgmma - issue d [64, 8 N] (+)= A [64, 16] B, with N = 8 or 16.
 *
 * Warp w of the warpgroup holds rows 16 w ..; d[j] is the D fragment of mma for columns 8 j ...
 * With two descriptors (gpu_matrix_descriptor), both operands are K-major: B is stored as its
 * transpose [8 N, 16]. With A in registers (the A fragment of mma for the rows of the warp), B [16,
 * 8 N] is stored as it is (gpu_columns_descriptor). */
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
/* gpu_wgmma_columns - issue d [64, 64] (+)= A^T B, for A [16, 64] and B [16, 64] as they are stored
 * (gpu_columns_descriptor). */
GPU_INLINE void gpu_wgmma_columns(float (&d)[8][4], uint64_t a, uint64_t b, bool add)
{
    asm volatile(GPU_WGMMA("m64n64k16", GPU_32_NAMES, "%32, %33", "%34", "1, 1, 1, 1")
                 : GPU_32
                 : "l"(a), "l"(b), "r"((int)add));
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

/* gpu_matrix_descriptor - return the wgmma descriptor of a K-major tile in shared memory.
 *
 * The tile has rows of 128 bytes, is 1024-byte aligned and swizzled. Add 2 to the descriptor for
 * the next 16 columns (32 bytes). */
GPU_INLINE uint64_t gpu_matrix_descriptor(const void *tile)
{
    uint64_t address = (gpu_shared_address(tile) & 0x3ffff) >> 4;
    return address | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

/* gpu_columns_descriptor - return the wgmma descriptor of the same tile as 16 rows of a B operand
 * that is not transposed.
 *
 * The columns after its 64 columns begin next_columns bytes further on. Add 128 to the descriptor
 * for the next 16 rows (2048 bytes). */
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
