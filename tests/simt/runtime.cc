/* The CUDA runtime of the emulator: device memory that the host cannot touch, and queues that do their work
 * as late as they may.
 *
 * Memory    one reserved range without access. It is opened while queued work runs and closed behind it: a
 *           host that reads a device pointer ends the program there and then. Fresh memory is 0xff in every
 *           byte. SIMT_MEMORY_MIB: how much there is (512). SIMT_DEVICES: how many GPUs (1)
 *           Work that is given an address of the host's memory is refused likewise
 * Streams   an operation waits in its queue until somebody waits for it or asks whether it is done, so that
 *           what the host reads too early is not there yet, and what it overwrites too early arrives changed.
 *           SIMT_STREAMS=eager runs everything as it is queued: the other end of what a GPU may do
 * Waits     SIMT_WAITS=FILE: at the end, how often the host has waited until a stream was through
 * Pageable  SIMT_PAGEABLE=FILE: how many copies it has waited for because the host's memory was not page-locked
 * Ranges    SIMT_RANGES=FILE: the names of NVTX's ranges are appended as they begin
 * Not seen  two streams at the same time: one runs, then the other */
#include <sys/mman.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unistd.h>

#include "tests/simt/cuda/nvtx3/nvToolsExt.h"
#include "tests/simt/fiber.h"
#include "tests/simt/runtime.h"

struct event_state {
    CUstream_st *stream = nullptr;
    uint64_t asked = 0, reached = 0; /* how often it was recorded, and how far the queue is */
    std::chrono::steady_clock::time_point when;
};

namespace
{
const size_t reserved_bytes = size_t{4} << 30, alignment = 256, gap = 256, page = 4096;

std::recursive_mutex mutex; /* a thread that writes checkpoints may copy too */
unsigned char *range;
size_t top; /* of what was ever handed out: this is opened and closed */
int opened;
std::map<size_t, size_t> blocks; /* first byte -> bytes */
std::map<const char *, size_t> pinned;
std::set<CUstream_st *> streams;

int ranges; /* one within the other */

std::chrono::steady_clock::duration passed; /* on the device, by pass_time */

struct wait_counter {
    const char *variable;
    long count = 0;
    ~wait_counter()
    {
        const char *path = getenv(variable);
        FILE *file = path != nullptr ? fopen(path, "w") : nullptr;
        if (file != nullptr) {
            fprintf(file, "%ld\n", count);
            fclose(file);
        }
    }
} waits{"SIMT_WAITS"}, pageable{"SIMT_PAGEABLE"};
} // namespace

struct CUevent_st {
    std::shared_ptr<event_state> state;
};

static size_t number(const char *name, size_t otherwise)
{
    const char *text = getenv(name);
    return text != nullptr ? strtoull(text, nullptr, 10) : otherwise;
}

static bool eager()
{
    const char *text = getenv("SIMT_STREAMS");
    return text != nullptr && strcmp(text, "eager") == 0;
}

/* ---- memory ---- */

#if !defined(SIMT_ASAN) && !defined(SIMT_TSAN)
static void say_touched(int signal_number, siginfo_t *info, void *context)
{
    (void)context;
    auto *at = static_cast<unsigned char *>(info->si_addr);
    if (at >= range && at < range + reserved_bytes) {
        static const char text[] = "simt: the host touched device memory\n";
        (void)!write(STDERR_FILENO, text, sizeof text - 1);
    }
    signal(signal_number, SIG_DFL); /* the fault happens again, and ends the program where it is */
}

static void watch_host()
{
    static char stack[1 << 16];
    stack_t alternative = {};
    alternative.ss_sp = stack;
    alternative.ss_size = sizeof stack;
    sigaltstack(&alternative, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = say_touched;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr);
}
#else
static void watch_host()
{
}
#endif

static void reserve()
{
    void *memory = mmap(nullptr, reserved_bytes, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        simt::fail("no address range for device memory");
    }
    range = static_cast<unsigned char *>(memory);
    watch_host();
}

static void protect(int how)
{
    size_t bytes = (top + page - 1) / page * page;
    if (bytes > 0 && mprotect(range, bytes, how) != 0) {
        simt::fail("mprotect of %zu bytes of device memory", bytes);
    }
}

namespace simt
{
device_access::device_access()
{
    mutex.lock();
    if (opened++ == 0) {
        protect(PROT_READ | PROT_WRITE);
    }
}

device_access::~device_access()
{
    if (--opened == 0) {
        protect(PROT_NONE);
    }
    mutex.unlock();
}
} // namespace simt

/* A word of arguments that is none of the device's addresses, and that large, is hardly ever anything but an address
 * where a page of this process is. The sanitizers' shadows take all that lies below the program. */
#if defined(SIMT_ASAN) || defined(SIMT_TSAN)
static const uintptr_t least_address = uintptr_t{0x50} << 40;
#else
static const uintptr_t least_address = uintptr_t{1} << 32;
#endif

static bool is_mapped(uintptr_t address)
{
    unsigned char resident;
    return mincore(reinterpret_cast<void *>(address / page * page), 1, &resident) == 0;
}

void simt::refuse_host_address(const void *argument, size_t bytes)
{
    const uintptr_t most = uintptr_t{1} << 47;
    auto first = reinterpret_cast<uintptr_t>(range);
    for (size_t at = 0; at + sizeof(uintptr_t) <= bytes; at += sizeof(uintptr_t)) {
        uintptr_t word;
        memcpy(&word, static_cast<const char *>(argument) + at, sizeof word);
        bool device = word >= first && word < first + reserved_bytes;
        if (word >= least_address && word < most && !device && is_mapped(word)) {
            fail("device work is given the address %p of the host's memory, %zu bytes into an "
                 "argument",
                 reinterpret_cast<void *>(word), at);
        }
    }
}

static size_t used_bytes()
{
    size_t sum = 0;
    for (const auto &block : blocks) {
        sum += block.second;
    }
    return sum;
}

static size_t memory_bytes()
{
    return number("SIMT_MEMORY_MIB", 512) << 20;
}

/* The first hole that is large enough. */
static size_t find_hole(size_t bytes)
{
    size_t at = alignment;
    for (const auto &block : blocks) {
        if (block.first >= at + bytes + gap) {
            break;
        }
        at = (block.first + block.second + gap + alignment - 1) / alignment * alignment;
    }
    return at;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    simt::device_access access;
    simt::refuse_in_capture("cudaMalloc");
    *out = nullptr;
    if (range == nullptr) {
        reserve();
    }
    if (bytes > memory_bytes() || used_bytes() > memory_bytes() - bytes) {
        return cudaErrorMemoryAllocation;
    }
    size_t at = find_hole(bytes);
    if (at + bytes + gap > reserved_bytes) {
        return cudaErrorMemoryAllocation;
    }
    blocks[at] = bytes;
    top = at + bytes + gap > top ? at + bytes + gap : top;
    protect(PROT_READ | PROT_WRITE);
    simt::fiber_poison(range + at - gap, gap);
    simt::fiber_unpoison(range + at, bytes);
    simt::fiber_poison(range + at + bytes, gap);
    memset(range + at, 0xff, bytes);
    *out = range + at;
    return cudaSuccess;
}

static void drain_all()
{
    for (CUstream_st *stream : std::set<CUstream_st *>(streams)) {
        cudaStreamSynchronize(stream);
    }
}

cudaError_t cudaFree(void *memory)
{
    simt::device_access access;
    simt::refuse_in_capture("cudaFree");
    drain_all();
    if (memory != nullptr) {
        auto found = blocks.find(static_cast<size_t>(static_cast<unsigned char *>(memory) - range));
        if (found == blocks.end()) {
            simt::fail("cudaFree(%p) of what cudaMalloc did not give", memory);
        }
        simt::fiber_poison(memory, found->second);
        blocks.erase(found);
    }
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned flags)
{
    simt::device_access access;
    simt::refuse_in_capture("cudaHostAlloc");
    (void)flags;
    *out = aligned_alloc(page, (bytes + page) / page * page);
    if (*out == nullptr) {
        return cudaErrorMemoryAllocation;
    }
    pinned[static_cast<const char *>(*out)] = bytes;
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *memory)
{
    simt::device_access access;
    simt::refuse_in_capture("cudaFreeHost");
    drain_all();
    if (pinned.erase(static_cast<const char *>(memory)) != 1) {
        simt::fail("cudaFreeHost(%p) of what cudaHostAlloc did not give", memory);
    }
    free(memory);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned flags)
{
    simt::device_access access;
    simt::refuse_in_capture("cudaHostRegister");
    (void)flags;
    bool fresh = pinned.emplace(static_cast<const char *>(memory), bytes).second;
    return fresh ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaHostUnregister(void *memory)
{
    simt::device_access access;
    simt::refuse_in_capture("cudaHostUnregister");
    drain_all();
    return pinned.erase(static_cast<const char *>(memory)) == 1 ? cudaSuccess
                                                                : cudaErrorInvalidValue;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *all_bytes)
{
    simt::device_access access;
    *all_bytes = memory_bytes();
    *free_bytes = *all_bytes - used_bytes();
    return cudaSuccess;
}

/* Device memory, or page-locked memory of the host. */
static bool is_known(const void *memory, size_t bytes)
{
    auto *at = static_cast<const char *>(memory);
    auto *first = reinterpret_cast<const char *>(range);
    if (at >= first && at < first + reserved_bytes) {
        auto block = blocks.upper_bound(static_cast<size_t>(at - first));
        if (block == blocks.begin() ||
            static_cast<size_t>(at - first) + bytes > (--block)->first + block->second) {
            simt::fail("a copy of %zu bytes at %p leaves its allocation", bytes, memory);
        }
        return true;
    }
    auto block = pinned.upper_bound(at);
    return block != pinned.begin() && (--block, at + bytes <= block->first + block->second);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    simt::device_access access;
    (void)kind;
    bool at_once = !is_known(to, bytes) || !is_known(from, bytes);
    pageable.count += at_once;
    simt::queue(stream, [=] { memcpy(to, from, bytes); });
    return at_once ? cudaStreamSynchronize(stream) : cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    simt::device_access access;
    if (!is_known(to, bytes)) {
        return cudaErrorInvalidValue;
    }
    simt::queue(stream, [=] { memset(to, value, bytes); });
    return cudaSuccess;
}

/* ---- queues ---- */

/* One operation of this stream, or of one that it waits for. */
static void advance(CUstream_st *stream)
{
    queued &next = stream->queue.front();
    if (next.waits != nullptr && next.waits->reached < next.target) {
        advance(next.waits->stream);
        return;
    }
    simt::task run = std::move(next.run);
    stream->queue.pop_front();
    if (run) {
        run();
    }
}

static void drain(CUstream_st *stream)
{
    simt::device_access access;
    while (!stream->queue.empty()) {
        advance(stream);
    }
}

static void push(CUstream_st *stream, queued item)
{
    stream->queue.push_back(std::move(item));
    if (eager()) {
        drain(stream);
    }
}

void simt::queue(void *stream, task what)
{
    if (stream == nullptr) { /* a test of the kernels alone, in the host's memory */
        what();
        return;
    }
    simt::device_access access;
    auto *to = static_cast<CUstream_st *>(stream);
    if (to->captured != nullptr) {
        capture_add(to->captured, nullptr, std::move(what));
        return;
    }
    queued item;
    item.run = std::move(what);
    push(to, std::move(item));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    simt::device_access access;
    if (flags != cudaStreamNonBlocking || priority > 0 || priority < -1) {
        return cudaErrorInvalidValue; /* the default stream would hold it up */
    }
    *out = new CUstream_st;
    streams.insert(*out);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -1;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    simt::device_access access;
    drain(stream);
    streams.erase(stream);
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    simt::device_access access;
    simt::refuse_in_capture("cudaStreamQuery");
    if (stream->queue.empty()) {
        waits.count++;
        return cudaSuccess;
    }
    for (int i = 0; i < 32 && !stream->queue.empty(); i++) {
        advance(stream);
    }
    return cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    waits.count++;
    simt::refuse_in_capture("cudaStreamSynchronize");
    drain(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    simt::device_access access;
    (void)flags;
    simt::refuse_in_capture("cudaStreamWaitEvent");
    queued item;
    item.waits = event->state;
    item.target = event->state->asked;
    push(stream, std::move(item));
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    (void)flags;
    *out = new CUevent_st{std::make_shared<event_state>()};
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    simt::device_access access;
    simt::refuse_in_capture("cudaEventRecord");
    std::shared_ptr<event_state> state = event->state;
    uint64_t which = ++state->asked;
    state->stream = stream;
    simt::queue(stream, [=] {
        state->reached = which;
        state->when = std::chrono::steady_clock::now() + passed;
    });
    return cudaSuccess;
}

void simt::pass_time(double seconds)
{
    passed += std::chrono::duration_cast<std::chrono::steady_clock::duration>(
        std::chrono::duration<double>(seconds));
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    simt::device_access access;
    event_state &state = *event->state;
    if (state.reached >= state.asked) {
        return cudaSuccess;
    }
    for (int i = 0; i < 32 && state.reached < state.asked; i++) {
        advance(state.stream);
    }
    return cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    while (cudaEventQuery(event) == cudaErrorNotReady) {
    }
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    std::chrono::duration<float, std::milli> passed = to->state->when - from->state->when;
    *milliseconds = passed.count();
    return cudaSuccess;
}

/* ---- for profilers ---- */

int nvtxRangePushA(const char *name)
{
    const char *path = getenv("SIMT_RANGES");
    FILE *file = path != nullptr ? fopen(path, "a") : nullptr;
    if (file != nullptr) {
        fprintf(file, "%d %s\n", ranges, name);
        fclose(file);
    }
    return ranges++;
}

int nvtxRangePop()
{
    return --ranges;
}

/* ---- devices ---- */

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess:
        return "no error";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorNoDevice:
        return "no CUDA-capable device is detected";
    case cudaErrorNotReady:
        return "device not ready";
    default:
        return "invalid argument";
    }
}

cudaError_t cudaGetLastError()
{
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = static_cast<int>(number("SIMT_DEVICES", 1));
    return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    *properties = {};
    snprintf(properties->name, sizeof properties->name, "emulated");
    properties->totalGlobalMem = memory_bytes();
    properties->major = static_cast<int>(number("SIMT_CAPABILITY", 9));
    snprintf(properties->uuid, sizeof properties->uuid, "emulated %d", device);
    return cudaSetDevice(device);
}

cudaError_t cudaSetDevice(int device)
{
    int count = 0;
    (void)cudaGetDeviceCount(&count);
    return device >= 0 && device < count ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}
