/* CUDA kernels on a CPU: the host twins of kernels/cuda/gpu.cuh. Kernels include gpu.cuh, never this.
 *
 * Each CUDA thread is a fiber; blocks run one after the other. A warp operation is a meeting: every
 * lane of the mask leaves its operands and waits, the last one computes for all by the tables of the
 * PTX manual. Whatever the hardware leaves open is done in the least convenient way:
 *
 *   shared memory    begins as 0xff in every byte (NaN, -1) in every block
 *   cp.async         spoils its destination at once and delivers when it is waited for
 *   TMA              delivers when nobody can go on without it, and that alone (random schedule: anything at any time;
 *                    fifo: in order)
 *   wgmma            reads its operands, registers too, when it is waited for; of shared memory what TMA brought, and
 *                    what threads wrote only where a fence.proxy.async follows
 *   who runs next    SIMT_SCHEDULE=fifo | lifo | warp (one warp as far as it goes) | random,
 *                    SIMT_SEED=n; lifo and random change the order of blocks too
 *
 * What breaks a rule ends the program with a message that names block, thread, file and line: divergent
 * or unequal barriers, an absent lane, a misaligned address, copies and products never waited for, arrivals that nobody waits for,
 * too much shared memory, a wgmma without wgmma.fence since the last wait, TMA to an mbarrier that was made without a fence, a
 * deadlock (who waits where). Built with the address sanitizer (SIMT_ASAN), shared
 * arrays have red zones; with the thread sanitizer (SIMT_TSAN) accesses that no barrier orders are
 * races, between blocks as well.
 *
 * Not seen: races through wgmma's and TMA's own accesses, whose fence it was, weak memory order,
 * blocks that wait for each other, the order of additions and the rounding
 * inside mma, ex2.approx's error, speed. */
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <tuple>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
struct gpu_mbarrier;

namespace simt
{
/* Where a call stands in the kernel: now() as a default argument. */
struct site {
    const char *file;
    int line;
    static site now(const char *file_ = __builtin_FILE(), int line_ = __builtin_LINE())
    {
        return {file_, line_};
    }
};
#define SIMT_HERE simt::site here = simt::site::now()

struct thread {
    dim3 index, block, block_size, grid_size;
    int number, warp, lane; /* within the block */
    unsigned char *shared;  /* the block's dynamic shared memory */
};
extern thread *self;

/* ---- running kernels: simt.cc ---- */

void launch(dim3 grid, dim3 block, size_t shared_bytes, bool shared_allowed,
            void (*body)(const void *context), const void *context);

bool shared_is_allowed(const void *kernel, size_t bytes);

/* ---- device memory and streams: runtime.cc ---- */

typedef std::function<void()> task;

/* queue - do this in the order of the stream (a cudaStream_t); NULL: now. */
void queue(void *stream, task what);

/* pass_time - so much time has passed on the device, for its events. */
void pass_time(double seconds);

/* refuse_host_memory - fail where an argument of device work holds an address of the host's memory. What lies between
 * its members is made zero, since that may hold anything. */
void refuse_host_address(const void *argument, size_t bytes);
template <typename T> void refuse_host_memory(T &argument)
{
#ifdef __has_builtin
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding(&argument);
    refuse_host_address(&argument, sizeof argument);
#endif
#endif
}

/* While one exists, device memory can be touched. */
struct device_access {
    device_access();
    ~device_access();
    device_access(const device_access &) = delete;
    device_access &operator=(const device_access &) = delete;
};

template <typename... P> struct queued_kernel {
    void (*kernel)(P...);
    std::tuple<P...> arguments;

    static void run(const void *context)
    {
        auto *k = static_cast<const queued_kernel *>(context);
        std::apply(k->kernel, k->arguments);
    }
};

/* make_task - a kernel's run with the arguments as they are now. checked: none is an address of the host's memory. */
typedef task maker(const void *kernel, dim3 grid, dim3 block, size_t shared_bytes, void **arguments,
                   bool checked);
template <typename... P>
task make_task(const void *kernel, dim3 grid, dim3 block, size_t shared_bytes, void **arguments,
               bool checked)
{
    bool allowed = shared_is_allowed(kernel, shared_bytes);
    queued_kernel<P...> body = {reinterpret_cast<void (*)(P...)>(const_cast<void *>(kernel)), {}};
    std::apply([&](P &...argument) { (memcpy(&argument, *arguments++, sizeof argument), ...); },
               body.arguments);
    if (checked) {
        std::apply([](P &...argument) { (refuse_host_memory(argument), ...); }, body.arguments);
    }
    return [=] { launch(grid, block, shared_bytes, allowed, queued_kernel<P...>::run, &body); };
}

/* known - what the emulated runtime knows a kernel by. */
void know(const void *kernel, maker *make);
template <typename... P> const void *known(void (*kernel)(P...))
{
    auto *address = reinterpret_cast<const void *>(kernel);
    know(address, make_task<P...>);
    return address;
}

/* launch_queued - the arguments are taken now, as the kernel's types, whenever it runs. */
template <typename... P, typename... A>
void launch_queued(void (*kernel)(P...), dim3 grid, dim3 block, size_t shared_bytes, void *stream,
                   A... given)
{
    std::tuple<P...> values(static_cast<P>(given)...);
    std::apply(
        [&](P &...value) {
            void *arguments[] = {&value...};
            queue(stream, make_task<P...>(reinterpret_cast<const void *>(kernel), grid, block,
                                          shared_bytes, arguments, stream != nullptr));
        },
        values);
}

/* set_schedule - instead of what the environment says. */
void set_schedule(const char *name, unsigned seed);
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* shared_array - the block's array that this key stands for. */
void *shared_array(const void *key, size_t bytes, size_t alignment);
void allow_shared(const void *kernel, size_t bytes);

void barrier(int number, int threads, bool wait, site here);

/* A meeting of the lanes in mask, or of a warpgroup's 128 threads: `work` is called once, by the last to come, with
 * what everybody left in `slot`. ordered: what was written before is seen after (as __syncwarp). */
typedef void meeting_work(void *const *slots, uint32_t mask);
void meet_warp(uint32_t mask, const char *what, void *slot, meeting_work *work, bool ordered,
               site here);
void meet_warpgroup(const char *what, void *slot, meeting_work *work, site here);

/* wait_for, wake - sleep until `event` is woken. */
void wait_for(const void *event, const char *what, site here);
void wake(const void *event);

/* later - an operation of the block that may be done at any time, by when nobody can go on; it wakes `event`. */
void later(void (*operation)(const void *context), const void *context, size_t bytes,
           const void *event);

/* ---- warp operations: warp.cc ---- */

void shuffle(uint32_t mask, void *value, size_t bytes, int source, site here);
uint32_t ballot(uint32_t mask, bool vote, site here);
void mma_bf16(float *d, const uint32_t *a, const uint32_t *b, site here);

struct matrix_rows { /* of ldmatrix: what each lane brings and takes */
    const void *address;
    uint32_t row[4];
    uint32_t out[4];
    bool transposed;
};
void load_matrix(matrix_rows &rows, site here);

/* Bank conflicts of ldmatrix: how many of its phases were there, and how many cycles too many. */
struct bank_counts {
    uint64_t phases, extra;
};
extern bank_counts banks;

/* ---- asynchronous copies and products: async.cc ---- */

struct copy {
    void *to;
    const void *from; /* nullptr: zeros */
};
void copy_async(copy c, site here);
void copy_commit();
int copy_due(int groups_left, const copy **copies);
void copy_check_none(); /* at a thread's end */

/* d [64, 8 columns]; a: of the warp's rows in registers, or NULL: by descriptor. What it points at is read late. */
void wgmma(float *d, int columns, const uint32_t *a_registers, uint64_t a, uint64_t b, bool add,
           site here);
void wgmma_commit(site here);
void wgmma_wait(int groups_left, site here);
} // namespace simt

#define threadIdx (simt::self->index)
#define blockIdx (simt::self->block)
#define blockDim (simt::self->block_size)
#define gridDim (simt::self->grid_size)

/* ---- what CUDA C++ has by itself ---- */

inline void __syncthreads(SIMT_HERE)
{
    simt::barrier(0, 0, true, here);
}
inline void __syncwarp(uint32_t mask = ~0u, SIMT_HERE)
{
    simt::meet_warp(mask, "__syncwarp", nullptr, nullptr, true, here);
}
template <typename T> T __shfl_sync(uint32_t mask, T value, int source, SIMT_HERE)
{
    simt::shuffle(mask, &value, sizeof value, source & 31, here);
    return value;
}
template <typename T> T __shfl_xor_sync(uint32_t mask, T value, int with, SIMT_HERE)
{
    simt::shuffle(mask, &value, sizeof value, simt::self->lane ^ with, here);
    return value;
}
template <typename T> T __shfl_down_sync(uint32_t mask, T value, int by, SIMT_HERE)
{
    int source = simt::self->lane + by;
    simt::shuffle(mask, &value, sizeof value, source > 31 ? simt::self->lane : source, here);
    return value;
}
inline uint32_t __ballot_sync(uint32_t mask, bool vote, SIMT_HERE)
{
    return simt::ballot(mask, vote, here);
}
inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
inline uint32_t __umulhi(uint32_t a, uint32_t b)
{
    return static_cast<uint32_t>((uint64_t{a} * b) >> 32);
}

/* ---- gpu.cuh's own ---- */

#define GPU_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                 \
    simt::launch_queued((kernel), grid, block, shared_bytes, stream, __VA_ARGS__)
#define GPU_KERNEL(kernel) simt::known(kernel)
#define GPU_ALLOW_SHARED(kernel, bytes)                                                            \
    simt::allow_shared(reinterpret_cast<const void *>(&(kernel)), bytes)
#define GPU_SHARED(T, name, count)                                                                 \
    static const char name##_key = 0;                                                              \
    T *name = static_cast<T *>(                                                                    \
        simt::shared_array(&name##_key, sizeof(T) * (count), alignof(T) < 16 ? 16 : alignof(T)))
#define GPU_SHARED_DYNAMIC(T, name) T *name = reinterpret_cast<T *>(simt::self->shared)
#define GPU_HAS_SM90 1

inline const char *gpu_launch_error()
{
    return nullptr;
}
/* SIMT_CAPABILITY: 8 (without TMA and wgmma) unless it says 9. */
inline int gpu_capability()
{
    const char *wanted = getenv("SIMT_CAPABILITY");
    return wanted != nullptr && strcmp(wanted, "9") == 0 ? 9 : 8;
}

inline float gpu_exp2(float x)
{
    return exp2f(x);
}
inline uint32_t gpu_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
inline float gpu_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
/* As cvt.rn.bf16 rounds: to nearest even, every NaN becomes 0x7fff. */
inline uint16_t gpu_bf16(float x)
{
    uint32_t bits = gpu_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return 0x7fff;
    }
    return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline uint32_t gpu_pack(float low, float high)
{
    return gpu_bf16(low) | uint32_t{gpu_bf16(high)} << 16;
}

inline uint4 gpu_load16(const void *p, SIMT_HERE)
{
    if (reinterpret_cast<uintptr_t>(p) % 16 != 0) {
        simt::fail("a load of 16 bytes at %p at %s:%d", p, here.file, here.line);
    }
    return *static_cast<const uint4 *>(p);
}
inline void gpu_store16(void *p, uint4 value, SIMT_HERE)
{
    if (reinterpret_cast<uintptr_t>(p) % 16 != 0) {
        simt::fail("a store of 16 bytes at %p at %s:%d", p, here.file, here.line);
    }
    *static_cast<uint4 *>(p) = value;
}

inline void gpu_barrier_sync(int number, int threads, SIMT_HERE)
{
    simt::barrier(number, threads, true, here);
}
inline void gpu_barrier_arrive(int number, int threads, SIMT_HERE)
{
    simt::barrier(number, threads, false, here);
}

inline void gpu_mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], SIMT_HERE)
{
    simt::mma_bf16(d, a, b, here);
}

namespace simt
{
/* The addressing lane itself reads its row, so that sanitizers see who reads what. */
inline void load_matrix_as(uint32_t (&r)[4], const void *p, bool transposed, site here)
{
    if (reinterpret_cast<uintptr_t>(p) % 16 != 0) {
        fail("ldmatrix: a row's address is not a multiple of 16 at %s:%d", here.file, here.line);
    }
    matrix_rows rows;
    rows.address = p;
    rows.transposed = transposed;
    for (int i = 0; i < 4; i++) {
        rows.row[i] = static_cast<const volatile uint32_t *>(p)[i];
    }
    load_matrix(rows, here);
    for (int i = 0; i < 4; i++) {
        r[i] = rows.out[i];
    }
}
} // namespace simt
inline void gpu_load_matrix(uint32_t (&r)[4], const void *p, SIMT_HERE)
{
    simt::load_matrix_as(r, p, false, here);
}
inline void gpu_load_matrix_transposed(uint32_t (&r)[4], const void *p, SIMT_HERE)
{
    simt::load_matrix_as(r, p, true, here);
}

inline void gpu_copy_async(void *to, const void *from, bool valid, SIMT_HERE)
{
    simt::copy_async({to, valid ? from : nullptr}, here);
    for (int i = 0; i < 4; i++) {
        static_cast<volatile uint32_t *>(to)[i] = ~0u;
    }
}
inline void gpu_copy_commit()
{
    simt::copy_commit();
}
template <int GROUPS_LEFT> void gpu_copy_wait()
{
    const simt::copy *copies;
    int count = simt::copy_due(GROUPS_LEFT, &copies);
    for (int i = 0; i < count; i++) {
        auto *to = static_cast<volatile uint32_t *>(copies[i].to);
        auto *from = static_cast<const volatile uint32_t *>(copies[i].from);
        for (int j = 0; j < 4; j++) {
            to[j] = from != nullptr ? from[j] : 0;
        }
    }
}

/* Eight bytes of shared memory, as on the hardware; who waits is known by their address. */
struct alignas(8) gpu_mbarrier {
    int32_t bytes;
    uint16_t pending;
    uint16_t expected_and_phase;
};
void gpu_mbarrier_init(gpu_mbarrier *b, int arrivals);
void gpu_mbarrier_arrive(gpu_mbarrier *b, SIMT_HERE);
void gpu_mbarrier_expect(gpu_mbarrier *b, int bytes, SIMT_HERE);
void gpu_mbarrier_wait(gpu_mbarrier *b, int phase, SIMT_HERE);

/* A matrix in global memory and the boxes that are copied from it, with the swizzle of 128 bytes. */
struct gpu_map {
    const void *base;
    int64_t columns, rows, stride; /* elements of 2 bytes */
    int box_columns, box_rows;
};
inline bool gpu_map_make(gpu_map *map, const void *base, int64_t rows, int64_t columns,
                         int64_t stride, int box_rows, int box_columns)
{
    *map = {base, columns, rows, stride, box_columns, box_rows};
    return true;
}
void gpu_copy_box(void *to, const gpu_map *map, int column, int row, gpu_mbarrier *b, SIMT_HERE);

void gpu_fence_async();
inline uint32_t gpu_shared_address(const void *p)
{
    return static_cast<uint32_t>(static_cast<const unsigned char *>(p) - simt::self->shared);
}
void gpu_wgmma_fence();
template <int N> void gpu_wgmma_settle(float (&)[N][4])
{
}
template <int N> void gpu_wgmma(float (&d)[N][4], uint64_t a, uint64_t b, bool add, SIMT_HERE)
{
    simt::wgmma(d[0], N, nullptr, a, b, add, here);
}
template <int N>
void gpu_wgmma(float (&d)[N][4], const uint32_t (&a)[4], uint64_t b, bool add, SIMT_HERE)
{
    simt::wgmma(d[0], N, a, 0, b, add, here);
}
inline void gpu_wgmma_commit(SIMT_HERE)
{
    simt::wgmma_commit(here);
}
template <int GROUPS_LEFT> void gpu_wgmma_wait(SIMT_HERE)
{
    simt::wgmma_wait(GROUPS_LEFT, here);
}
template <int REGISTERS> void gpu_registers_raise()
{
}
template <int REGISTERS> void gpu_registers_lower()
{
}
