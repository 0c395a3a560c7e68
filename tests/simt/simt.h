/* Emulator of CUDA kernels on a CPU: the host version of kernels/cuda/gpu.cuh. Kernels include
 * gpu.cuh, never this file.
 *
 * Each CUDA thread is a fiber; blocks run one after the other. In a warp operation (a rendezvous)
 * every lane of the mask deposits its operands and waits; the last lane computes the results of all
 * lanes by the tables of the PTX manual. Where the hardware leaves the behavior open, the emulator
 * chooses the least convenient one:
 *
 *   shared memory  is filled with 0xff bytes (NaN, -1) at the start of every block. Dynamic memory
 *                  follows the static arrays without alignment; TMA and wgmma swizzle by address
 *   cp.async       poisons its destination when it is issued, and writes the data when a thread
 *                  waits for it
 *   TMA            writes the data only when no thread can continue without it, and only that copy
 *                  (random schedule: any copy at any time; fifo: in order; lowest and highest:
 *                  as soon as a thread waits)
 *   bulk copies    to global memory read and write only when the thread waits for them, at the time
 *                  when the schedule would deliver a copy by TMA. Data that threads wrote is read
 *                  only if fence.proxy.async follows
 *   wgmma          reads its operands, including registers, when a thread waits for it. It reads
 *                  data that TMA wrote; data that threads wrote only if fence.proxy.async follows
 *   schedule       SIMT_SCHEDULE selects the next thread:
 *                    fifo | lifo        the thread that was ready first or last
 *                    random             any ready thread; SIMT_SEED=n seeds the choice
 *                    warp               one warp runs as far as possible
 *                    lowest | highest   the ready warp of that number, so that others starve
 *                  lifo and random also change the order of blocks
 *
 * An error ends the program with a message that names block, thread, file and line. Errors are:
 *
 *   - divergent or unequal barriers, an absent lane
 *   - a misaligned address, too much shared memory
 *   - copies and wgmmas that are never waited for, barrier arrivals that no thread waits for
 *   - a wgmma without wgmma.fence since the last wait
 *   - TMA to an mbarrier that was initialized without a fence
 *   - a block that waits for a later block
 *   - a deadlock (the message lists the waiting threads)
 *
 * With the address sanitizer (SIMT_ASAN) shared arrays have red zones. With the thread sanitizer
 * (SIMT_TSAN) accesses that no barrier orders are reported as races, also between blocks.
 *
 * Not detected: races through the accesses of wgmma and TMA themselves, a fence by the wrong
 * thread, weak memory order, the order of additions and the rounding within mma, the error of
 * ex2.approx, and speed. */
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <tuple>
#include <vector>

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
/* The source location of a call in a kernel; now() is used as a default argument. */
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

/* queue - append a task to a stream (a cudaStream_t); NULL: run it now. */
void queue(void *stream, task work);

/* pass_time - advance the device time that events read. */
void pass_time(double seconds);

/* refuse_host_memory - fail if an argument of device work contains an address of host memory.
 * Zeroes the padding of the argument first, since it may hold any value. */
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

/* Locks the runtime. Work that runs while an object of this type exists may access device
 * memory. */
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

/* make_task - return a task that runs a kernel with a copy of the arguments. checked: fail if an
 * argument contains an address of host memory. */
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

/* register_kernel - make a kernel available to cudaLaunchKernel and return its address. */
void register_maker(const void *kernel, maker *make);
template <typename... P> const void *register_kernel(void (*kernel)(P...))
{
    auto *address = reinterpret_cast<const void *>(kernel);
    register_maker(address, make_task<P...>);
    return address;
}

/* launch_queued - queue a kernel. The arguments are converted and copied now. */
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

/* set_schedule - set the schedule and its seed; overrides the environment. */
void set_schedule(const char *name, unsigned seed);
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* shared_array - return the static shared array that a key identifies, allocated at its first use
 * in a block. */
void *shared_array(const void *key, size_t bytes, size_t alignment);

/* shared_base - return the address of dynamic shared memory in the address space of shared memory.
 * As with the least convenient compiler, it follows the static arrays of the block without
 * alignment. A block that reads this address must not add a static array later. */
uint32_t shared_base();
/* shared_limit - return the largest shared memory of a block in bytes: SIMT_SHARED_MAX, or the
 * limit of sm_90. allow_shared - allow a kernel this dynamic memory; false: it is too large. */
size_t shared_limit();
bool allow_shared(const void *kernel, size_t bytes);

void barrier(int number, int threads, bool wait, site here);

/* A rendezvous of the lanes in mask, or of the 128 threads of a warpgroup. The last thread to
 * arrive calls `work` once, with the slots of all threads. ordered: the rendezvous also orders
 * memory accesses (as __syncwarp). */
typedef void rendezvous_work(void *const *slots, uint32_t mask);
void sync_warp(uint32_t mask, const char *what, void *slot, rendezvous_work *work, bool ordered,
               site here);
void sync_warpgroup(const char *what, void *slot, rendezvous_work *work, site here);

/* wait_for, wake - sleep until wake is called with the same event; wake all its threads. */
void wait_for(const void *event, const char *what, site here);
void wake(const void *event);

/* add_operation - add an asynchronous operation of the block. It runs at any time, at the latest
 * when no thread can continue, and wakes `event`. */
void add_operation(void (*operation)(const void *context), const void *context, size_t bytes,
                   const void *event);

/* ---- warp operations: warp.cc ---- */

void shuffle(uint32_t mask, void *value, size_t bytes, int source, site here);
uint32_t ballot(uint32_t mask, bool vote, site here);
void mma_bf16(float *d, const uint32_t *a, const uint32_t *b, site here);

struct matrix_rows { /* the operand and the result of each lane of ldmatrix */
    const void *address;
    uint32_t row[4];
    uint32_t out[4];
    bool transposed;
};
void load_matrix(matrix_rows &rows, site here);

/* Bank conflicts of ldmatrix: the number of its phases and of additional cycles. */
struct bank_counts {
    uint64_t phases, extra;
};
extern bank_counts banks;

/* ---- asynchronous copies and wgmma: async.cc ---- */

struct copy {
    void *to;
    const void *from; /* nullptr: zeros */
};
void copy_async(copy c, site here);
void copy_commit();
int copy_due(int groups_left, const copy **copies);
void copy_check_none(); /* called at the end of a thread */

/* A bulk copy to global memory. `from` is in the copy of shared memory that TMA reads. After
 * bulk_copy_read it is in `values`. */
struct bulk_copy {
    float *to;
    const float *from;
    int count;
    bool add;
    std::vector<float> values;
};
void bulk_copy_begin(float *to, const void *from, int bytes, bool add, site here);
void bulk_copy_commit();
void bulk_copy_read(site here);
int bulk_copy_due(const bulk_copy **copies, site here);

/* The operands of wgmma. WGMMA_REGISTERS: A in registers and B MN-major; WGMMA_ROWS: both K-major;
 * WGMMA_COLUMNS: both MN-major. */
enum wgmma_form { WGMMA_REGISTERS, WGMMA_ROWS, WGMMA_COLUMNS };

/* wgmma - d [64, 8 columns] (+)= a b. a_registers is the A fragment of the warp's rows, or NULL if
 * the descriptor a is used. Operands are read when the wgmma is waited for. */
void wgmma(float *d, int columns, wgmma_form form, const uint32_t *a_registers, uint64_t a,
           uint64_t b, bool add, site here);
void wgmma_commit(site here);
void wgmma_wait(int groups_left, site here);
} // namespace simt

#define threadIdx (simt::self->index)
#define blockIdx (simt::self->block)
#define blockDim (simt::self->block_size)
#define gridDim (simt::self->grid_size)

/* ---- built-in functions of CUDA C++ ---- */

inline void __syncthreads(SIMT_HERE)
{
    simt::barrier(0, 0, true, here);
}
inline void __syncwarp(uint32_t mask = ~0u, SIMT_HERE)
{
    simt::sync_warp(mask, "__syncwarp", nullptr, nullptr, true, here);
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
inline int __popc(uint32_t x)
{
    int count = 0;
    for (; x != 0; x &= x - 1) {
        count++;
    }
    return count;
}
inline void __threadfence()
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
inline double __dmul_rn(double a, double b)
{
    return a * b;
}
inline uint32_t __umulhi(uint32_t a, uint32_t b)
{
    return static_cast<uint32_t>((uint64_t{a} * b) >> 32);
}

/* ---- wrappers of gpu.cuh ---- */

#define GPU_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                 \
    simt::launch_queued((kernel), grid, block, shared_bytes, stream, __VA_ARGS__)
#define GPU_KERNEL(kernel) simt::register_kernel(kernel)
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
/* Returns 9 if SIMT_CAPABILITY is 9, else 8 (without TMA and wgmma). */
inline int gpu_capability()
{
    const char *wanted = getenv("SIMT_CAPABILITY");
    return wanted != nullptr && strcmp(wanted, "9") == 0 ? 9 : 8;
}

inline int gpu_processors()
{
    return 3;
}

inline size_t gpu_shared_limit()
{
    return simt::shared_limit();
}
inline const char *gpu_allow_shared(const void *kernel, size_t bytes)
{
    return simt::allow_shared(kernel, bytes) ? nullptr : "invalid argument";
}

inline float __fdividef(float x, float y)
{
    return x / y;
}
inline float gpu_exp2(float x)
{
    return exp2f(x);
}
inline float gpu_multiply(float x, float y)
{
    return x * y; /* -ffp-contract=off */
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
/* Rounds like cvt.rn.bf16: to nearest even; every NaN becomes 0x7fff. */
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

inline void gpu_atomic_max(uint32_t *p, uint32_t value)
{
    uint32_t before = __atomic_load_n(p, __ATOMIC_RELAXED);
    while (before < value && !__atomic_compare_exchange_n(p, &before, value, false,
                                                          __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}
inline uint4 gpu_load16(const void *p, SIMT_HERE)
{
    if (reinterpret_cast<uintptr_t>(p) % 16 != 0) {
        simt::fail("16-byte load from the misaligned address %p at %s:%d", p, here.file, here.line);
    }
    return *static_cast<const uint4 *>(p);
}
inline void gpu_store16(void *p, uint4 value, SIMT_HERE)
{
    if (reinterpret_cast<uintptr_t>(p) % 16 != 0) {
        simt::fail("16-byte store to the misaligned address %p at %s:%d", p, here.file, here.line);
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
/* Each lane reads the row that it addresses, so that sanitizers attribute the read to the lane. */
inline void load_matrix_as(uint32_t (&r)[4], const void *p, bool transposed, site here)
{
    if (reinterpret_cast<uintptr_t>(p) % 16 != 0) {
        fail("ldmatrix: the address of a row is not a multiple of 16 at %s:%d", here.file,
             here.line);
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

/* Eight bytes of shared memory, as on the hardware. Its address identifies the waiting threads. */
struct alignas(8) gpu_mbarrier {
    int32_t bytes;
    uint16_t pending;
    uint16_t expected_and_phase;
};
void gpu_mbarrier_init(gpu_mbarrier *b, int arrivals);
void gpu_mbarrier_arrive(gpu_mbarrier *b, SIMT_HERE);
void gpu_mbarrier_expect(gpu_mbarrier *b, int bytes, SIMT_HERE);
void gpu_mbarrier_wait(gpu_mbarrier *b, int phase, SIMT_HERE);

/* TMA descriptor: a matrix in global memory and the size of its boxes, with the 128-byte
 * swizzle. */
struct gpu_map {
    const void *base;
    int64_t columns, rows, stride; /* elements of 2 bytes */
    int box_columns, box_rows;
};
/* Ends the program where the driver would refuse a map: kernels fall back without a message. */
inline bool gpu_map_make(gpu_map *map, const void *base, int64_t rows, int64_t columns,
                         int64_t stride, int box_rows, int box_columns)
{
    if (box_columns * 2 != 128 || box_rows > 256 || stride % 8 != 0 || stride < columns ||
        rows < 1 || columns < 1 || reinterpret_cast<uintptr_t>(base) % 16 != 0) {
        simt::fail("TMA: the driver would refuse a map of %lld x %lld elements in rows of %lld at "
                   "%p, in boxes of %d x %d",
                   static_cast<long long>(rows), static_cast<long long>(columns),
                   static_cast<long long>(stride), base, box_rows, box_columns);
    }
    *map = {base, columns, rows, stride, box_columns, box_rows};
    return true;
}
/* Blocks run one after the other, so waiting for a turn that only a later block passes is a
 * deadlock. */
uint32_t gpu_take_ticket(uint32_t *counter);
void gpu_turn_wait(const uint32_t *turn, uint32_t count, SIMT_HERE);
void gpu_turn_pass(uint32_t *turn);
void gpu_fence_async_global();
void gpu_bulk_load(void *to, const float *from, int bytes, gpu_mbarrier *b, SIMT_HERE);
inline void gpu_bulk_store(float *to, const void *from, int bytes, SIMT_HERE)
{
    simt::bulk_copy_begin(to, from, bytes, false, here);
}
inline void gpu_bulk_add(float *to, const void *from, int bytes, SIMT_HERE)
{
    simt::bulk_copy_begin(to, from, bytes, true, here);
}
inline void gpu_bulk_commit()
{
    simt::bulk_copy_commit();
}
inline void gpu_bulk_wait_read(SIMT_HERE)
{
    simt::bulk_copy_read(here);
}
/* The thread itself accesses global memory, so that sanitizers attribute the accesses to it. */
inline void gpu_bulk_wait(SIMT_HERE)
{
    const simt::bulk_copy *copies;
    int count = simt::bulk_copy_due(&copies, here);
    for (int i = 0; i < count; i++) {
        const simt::bulk_copy &c = copies[i];
        for (int j = 0; j < c.count; j++) {
            c.to[j] = c.add ? c.to[j] + c.from[j] : c.from[j];
        }
    }
}

void gpu_copy_box(void *to, const gpu_map *map, int column, int row, gpu_mbarrier *b, SIMT_HERE);

void gpu_fence_async();
inline uint32_t gpu_shared_address(const void *p)
{
    return simt::shared_base() +
           static_cast<uint32_t>(static_cast<const unsigned char *>(p) - simt::self->shared);
}
inline void gpu_require_swizzle_base(const void *p, SIMT_HERE)
{
    if (gpu_shared_address(p) % 1024 != 0) {
        simt::fail("trap: the base of swizzled tiles is not a multiple of 1024 at %s:%d", here.file,
                   here.line);
    }
}
void gpu_wgmma_fence();
template <typename T, int N> void gpu_wgmma_order(T (&)[N][4])
{
}
template <int N> void gpu_wgmma(float (&d)[N][4], uint64_t a, uint64_t b, bool add, SIMT_HERE)
{
    simt::wgmma(d[0], N, simt::WGMMA_ROWS, nullptr, a, b, add, here);
}
template <int N>
void gpu_wgmma(float (&d)[N][4], const uint32_t (&a)[4], uint64_t b, bool add, SIMT_HERE)
{
    simt::wgmma(d[0], N, simt::WGMMA_REGISTERS, a, 0, b, add, here);
}
inline void gpu_wgmma_columns(float (&d)[8][4], uint64_t a, uint64_t b, bool add, SIMT_HERE)
{
    simt::wgmma(d[0], 8, simt::WGMMA_COLUMNS, nullptr, a, b, add, here);
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
