/* The emulated CUDA runtime: device memory that the host cannot access, and streams that execute
 * work as late as possible.
 *
 * Memory    One reserved address range. It is accessible only while queued work runs: a host access
 *           to a device pointer ends the program at once. New memory is filled with 0xff bytes.
 *           Work with an argument that is an address of host memory ends the program too.
 *           SIMT_MEMORY_MIB: size of the memory (512). SIMT_DEVICES: number of GPUs (1).
 *           SIMT_NAME: model of the GPUs ("emulated")
 * Streams   An operation stays in its queue until the host waits for it or queries it. If the host
 *           reads results too early, it reads old data; if it overwrites inputs too early, the
 *           device uses the new data. SIMT_STREAMS=eager executes all work when it is queued, the
 *           other extreme of the behavior of a GPU
 * Waits     SIMT_WAITS=FILE: writes at exit the number of times that the host waited for a stream
 *           or for an event that was not reached. SIMT_IDLE=FILE: the number of these waits after
 *           which no stream had a kernel, so that a GPU would be idle until the host queues more
 * Pageable  SIMT_PAGEABLE=FILE: writes at exit the number of copies that waited because host memory
 *           was not page-locked
 * Ranges    SIMT_RANGES=FILE: appends the name of each NVTX range when it begins
 * Limits    Streams do not overlap: one operation runs at a time */
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
    uint64_t recorded = 0, executed = 0; /* number of records queued, and of records executed */
    std::chrono::steady_clock::time_point when;
};

namespace
{
const size_t reserved_bytes = size_t{4} << 30, alignment = 256, gap = 256, page = 4096;
const size_t huge_page = size_t{2} << 20;

std::recursive_mutex mutex; /* the thread that writes checkpoints copies too */
unsigned char *range;
size_t top;  /* end of all memory ever allocated; access to this range is switched */
int entered; /* depth of nested device_access */
bool opened; /* device memory is accessible */
std::map<size_t, size_t> blocks; /* first byte -> bytes */
std::map<const char *, size_t> pinned;
std::set<CUstream_st *> streams;

int ranges; /* depth of nested ranges */

std::chrono::steady_clock::duration passed; /* device time added by pass_time */

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
} waits{"SIMT_WAITS"}, idle{"SIMT_IDLE"}, pageable{"SIMT_PAGEABLE"};
} // namespace

struct CUevent_st {
    std::shared_ptr<event_state> state;
    bool timed;
    simt::capture_position captured; /* recorded in a capture */
};

static size_t get_env_number(const char *name, size_t otherwise)
{
    const char *text = getenv(name);
    return text != nullptr ? strtoull(text, nullptr, 10) : otherwise;
}

static bool is_eager()
{
    const char *text = getenv("SIMT_STREAMS");
    return text != nullptr && strcmp(text, "eager") == 0;
}

/* ---- memory ---- */

#if !defined(SIMT_ASAN) && !defined(SIMT_TSAN)
static void report_access(int signal_number, siginfo_t *info, void *context)
{
    (void)context;
    auto *at = static_cast<unsigned char *>(info->si_addr);
    if (at >= range && at < range + reserved_bytes) {
        static const char text[] = "simt: the host accessed device memory\n";
        (void)!write(STDERR_FILENO, text, sizeof text - 1);
    }
    signal(signal_number, SIG_DFL); /* the fault repeats and ends the program */
}

static void install_handler()
{
    static char stack[1 << 16];
    stack_t alternative = {};
    alternative.ss_sp = stack;
    alternative.ss_size = sizeof stack;
    sigaltstack(&alternative, nullptr);
    struct sigaction action = {};
    action.sa_sigaction = report_access;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaction(SIGSEGV, &action, nullptr);
}
#else
static void install_handler()
{
}
#endif

/* Requests huge pages, because the time of mprotect is proportional to the number of pages. */
static void reserve_range()
{
    void *memory = mmap(nullptr, reserved_bytes + huge_page, PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        simt::fail("cannot reserve an address range for device memory");
    }
    uintptr_t first = reinterpret_cast<uintptr_t>(memory) + huge_page - 1;
    range = reinterpret_cast<unsigned char *>(first / huge_page * huge_page);
    (void)madvise(range, reserved_bytes, MADV_HUGEPAGE);
    install_handler();
}

static void protect_range(int access)
{
    size_t bytes = (top + huge_page - 1) / huge_page * huge_page;
    if (bytes > 0 && mprotect(range, bytes, access) != 0) {
        simt::fail("mprotect of %zu bytes of device memory failed", bytes);
    }
}

/* Makes device memory accessible until the last device_access ends. mprotect is slow, so only work
 * that runs opens it. */
static void open_memory()
{
    if (!opened) {
        opened = true;
        protect_range(PROT_READ | PROT_WRITE);
    }
}

namespace simt
{
device_access::device_access()
{
    mutex.lock();
    entered++;
}

device_access::~device_access()
{
    if (--entered == 0 && opened) {
        opened = false;
        protect_range(PROT_NONE);
    }
    mutex.unlock();
}
} // namespace simt

/* The smallest value that counts as a host address. An argument word is almost certainly a host
 * address if it is at least this large, is not a device address, and lies in a mapped page of this
 * process. With sanitizers, their shadow memory occupies the addresses below the program. */
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
            fail("an argument of device work contains the host address %p at byte %zu",
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
    return get_env_number("SIMT_MEMORY_MIB", 512) << 20;
}

/* Returns the offset of the first free range that is large enough. */
static size_t find_free_offset(size_t bytes)
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
        reserve_range();
    }
    if (bytes > memory_bytes() || used_bytes() > memory_bytes() - bytes) {
        return cudaErrorMemoryAllocation;
    }
    size_t at = find_free_offset(bytes);
    if (at + bytes + gap > reserved_bytes) {
        return cudaErrorMemoryAllocation;
    }
    blocks[at] = bytes;
    top = at + bytes + gap > top ? at + bytes + gap : top;
    opened = false; /* the range may be longer now */
    open_memory();
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
            simt::fail("cudaFree(%p): not allocated by cudaMalloc", memory);
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
        simt::fail("cudaFreeHost(%p): not allocated by cudaHostAlloc", memory);
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

/* Returns whether a range is device memory or page-locked host memory. */
static bool is_device_or_pinned(const void *memory, size_t bytes)
{
    auto *at = static_cast<const char *>(memory);
    auto *first = reinterpret_cast<const char *>(range);
    if (at >= first && at < first + reserved_bytes) {
        auto block = blocks.upper_bound(static_cast<size_t>(at - first));
        if (block == blocks.begin() ||
            static_cast<size_t>(at - first) + bytes > (--block)->first + block->second) {
            simt::fail("a copy of %zu bytes at %p exceeds its allocation", bytes, memory);
        }
        return true;
    }
    auto block = pinned.upper_bound(at);
    return block != pinned.begin() && (--block, at + bytes <= block->first + block->second);
}

/* Marks the last operation of a stream as one that computes nothing. */
static void mark_last(CUstream_st *stream)
{
    if (stream != nullptr && stream->captured == nullptr && !stream->queue.empty()) {
        stream->queue.back().computes = false;
    }
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    simt::device_access access;
    (void)kind;
    bool at_once = !is_device_or_pinned(to, bytes) || !is_device_or_pinned(from, bytes);
    pageable.count += at_once;
    simt::queue(stream, [=] { memcpy(to, from, bytes); });
    mark_last(stream);
    return at_once ? cudaStreamSynchronize(stream) : cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    simt::device_access access;
    if (!is_device_or_pinned(to, bytes)) {
        return cudaErrorInvalidValue;
    }
    simt::queue(stream, [=] { memset(to, value, bytes); });
    mark_last(stream);
    return cudaSuccess;
}

/* ---- queues ---- */

/* Executes one operation of this stream, or of a stream that it waits for. */
static void advance_stream(CUstream_st *stream)
{
    queued &next = stream->queue.front();
    if (next.waits != nullptr && next.waits->executed < next.target) {
        advance_stream(next.waits->stream);
        return;
    }
    simt::task run = std::move(next.run);
    stream->queue.pop_front();
    if (run) {
        open_memory();
        run();
    }
}

static void drain_stream(CUstream_st *stream)
{
    simt::device_access access;
    while (!stream->queue.empty()) {
        advance_stream(stream);
    }
}

/* Counts a wait of the host that has ended. */
static void count_wait()
{
    bool has_work = false;
    for (const CUstream_st *stream : streams) {
        for (const queued &item : stream->queue) {
            has_work = has_work || item.computes;
        }
    }
    waits.count++;
    idle.count += has_work ? 0 : 1;
}

static void push_operation(CUstream_st *stream, queued item)
{
    stream->queue.push_back(std::move(item));
    if (is_eager()) {
        drain_stream(stream);
    }
}

void simt::queue(void *stream, task work)
{
    if (stream == nullptr) { /* tests of single kernels run in host memory */
        work();
        return;
    }
    simt::device_access access;
    auto *to = static_cast<CUstream_st *>(stream);
    if (to->captured != nullptr) {
        capture_add(to, nullptr, std::move(work));
        return;
    }
    count_direct(false);
    queued item;
    item.run = std::move(work);
    push_operation(to, std::move(item));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, unsigned flags, int priority)
{
    simt::device_access access;
    if (flags != cudaStreamNonBlocking || priority > 0 || priority < -1) {
        return cudaErrorInvalidValue; /* a blocking stream would wait for the default stream */
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
    drain_stream(stream);
    streams.erase(stream);
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    simt::device_access access;
    simt::refuse_in_capture("cudaStreamQuery");
    if (stream->queue.empty()) {
        count_wait();
        return cudaSuccess;
    }
    for (int i = 0; i < 32 && !stream->queue.empty(); i++) {
        advance_stream(stream);
    }
    return cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    simt::refuse_in_capture("cudaStreamSynchronize");
    drain_stream(stream);
    count_wait();
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    simt::device_access access;
    (void)flags;
    if (stream->captured != nullptr || event->captured.id != 0) {
        return simt::capture_wait(stream, event->captured);
    }
    simt::refuse_in_capture("cudaStreamWaitEvent");
    simt::count_direct(false);
    queued item;
    item.waits = event->state;
    item.target = event->state->recorded;
    item.computes = false;
    push_operation(stream, std::move(item));
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned flags)
{
    *out = new CUevent_st{std::make_shared<event_state>(), flags != cudaEventDisableTiming, {}};
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
    if (stream != nullptr && stream->captured != nullptr) {
        event->captured = simt::capture_record(stream);
        return cudaSuccess;
    }
    simt::refuse_in_capture("cudaEventRecord");
    event->captured = {};
    std::shared_ptr<event_state> state = event->state;
    uint64_t which = ++state->recorded;
    state->stream = stream;
    simt::queue(stream, [=] {
        state->executed = which;
        state->when = std::chrono::steady_clock::now() + passed;
    });
    mark_last(stream);
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
    if (event->captured.id != 0) {
        return cudaErrorCapturedEvent;
    }
    if (state.executed >= state.recorded) {
        return cudaSuccess;
    }
    for (int i = 0; i < 32 && state.executed < state.recorded; i++) {
        advance_stream(state.stream);
    }
    if (state.executed >= state.recorded) {
        count_wait();
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
    if (!from->timed || !to->timed) {
        return cudaErrorInvalidValue;
    }
    if (from->state->executed < from->state->recorded ||
        to->state->executed < to->state->recorded) {
        return cudaErrorNotReady;
    }
    std::chrono::duration<float, std::milli> passed = to->state->when - from->state->when;
    *milliseconds = passed.count();
    return cudaSuccess;
}

/* ---- NVTX ranges ---- */

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
    *count = static_cast<int>(get_env_number("SIMT_DEVICES", 1));
    return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    *properties = {};
    const char *name = getenv("SIMT_NAME");
    snprintf(properties->name, sizeof properties->name, "%s", name != NULL ? name : "emulated");
    properties->totalGlobalMem = memory_bytes();
    properties->major = static_cast<int>(get_env_number("SIMT_CAPABILITY", 9));
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
