/* CUDA graphs in the emulator. A capture records the work that is queued on a stream as a list;
 * each launch of the graph runs the list in order.
 *
 * Kernel arguments keep their values from the capture until cudaGraphExecKernelNodeSetParams
 * changes them. A missing update leaves the old arguments, as on a GPU. Allocations, waits of the
 * host, and events of other streams during a capture end the program.
 *
 * A stream that waits for an event of a capture joins it, until the first stream of the capture
 * waits for it. As on a GPU, the end of a capture fails if this wait is missing. In a graph the
 * work of such a stream runs as late as possible: when a stream waits for it. SIMT_STREAMS=eager
 * runs it in the order of the capture.
 *
 * SIMT_GRAPHS=FILE: writes at exit the number of graphs created, of launches and of argument
 * updates. SIMT_LAUNCHES=FILE: the number of kernels and of other operations that were queued
 * outside of graphs, and of launches of graphs. SIMT_STALE=1: ignores all updates. SIMT_NO_GRAPHS:
 * creating a graph fails. SIMT_REFUSE_UPDATES: updates of arguments fail. SIMT_FAIL_LAUNCH=N:
 * launch N of a graph fails. */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "tests/simt/runtime.h"

struct CUgraphNode_st {
    const void *kernel;
    size_t index;
    const CUstream_st *stream;
};

/* A task of a stream, or a wait for the first `count` tasks of this stream (no task). */
struct graph_item {
    std::shared_ptr<simt::task> run;
    CUstream_st *stream;
    size_t count;
};

/* A stream in a capture: its tasks so far, and those that another stream waits for. */
struct captured_stream {
    size_t tasks = 0, joined = 0;
};

struct CUgraph_st {
    unsigned long id;
    CUstream_st *origin;
    std::map<CUstream_st *, captured_stream> streams;
    std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
    std::vector<graph_item> items;
};

struct CUgraphExec_st {
    CUstream_st *origin;
    std::vector<graph_item> items;
};

namespace
{
std::map<const void *, simt::maker *> makers;
int captures; /* captures in progress */
unsigned long last_capture;

struct graph_counter {
    long created = 0, launched = 0, updated = 0, kernels = 0, others = 0;
    static void write(const char *variable, long a, long b, long c)
    {
        const char *path = getenv(variable);
        FILE *file = path != nullptr ? fopen(path, "w") : nullptr;
        if (file != nullptr) {
            fprintf(file, "%ld %ld %ld\n", a, b, c);
            fclose(file);
        }
    }
    ~graph_counter()
    {
        write("SIMT_GRAPHS", created, launched, updated);
        write("SIMT_LAUNCHES", kernels, others, launched);
    }
} counts;
} // namespace

/* ---- launches by address ---- */

void simt::register_maker(const void *kernel, maker *make)
{
    device_access access;
    makers[kernel] = make;
}

static simt::task make_kernel_task(const void *kernel, dim3 grid, dim3 block, void **arguments,
                                   size_t shared_bytes, bool checked)
{
    auto found = makers.find(kernel);
    if (found == makers.end()) {
        simt::fail("launch of %p, which is not a registered kernel", kernel);
    }
    return found->second(kernel, grid, block, shared_bytes, arguments, checked);
}

cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arguments,
                             size_t shared_bytes, cudaStream_t stream)
{
    if (stream == nullptr) {
        make_kernel_task(kernel, grid, block, arguments, shared_bytes, false)();
        return cudaSuccess;
    }
    simt::device_access access;
    simt::task work = make_kernel_task(kernel, grid, block, arguments, shared_bytes, true);
    if (stream->captured != nullptr) {
        simt::capture_add(stream, kernel, std::move(work));
    } else {
        simt::queue(stream, std::move(work));
        counts.kernels++;
        counts.others--; /* counted by queue */
    }
    return cudaSuccess;
}

/* ---- captures ---- */

void simt::count_direct(bool is_kernel)
{
    (is_kernel ? counts.kernels : counts.others)++;
}

void simt::capture_add(CUstream_st *stream, const void *kernel, task work)
{
    CUgraph_st *graph = stream->captured;
    graph->nodes.emplace_back(new CUgraphNode_st{kernel, graph->items.size(), stream});
    graph->items.push_back({std::make_shared<task>(std::move(work)), stream, 0});
    graph->streams[stream].tasks++;
}

simt::capture_position simt::capture_record(const CUstream_st *stream)
{
    CUgraph_st *graph = stream->captured;
    auto *key = const_cast<CUstream_st *>(stream);
    return {graph->id, key, graph->streams[key].tasks};
}

cudaError_t simt::capture_wait(CUstream_st *stream, const capture_position &position)
{
    CUgraph_st *graph = position.id != 0 ? position.stream->captured : nullptr;
    if (graph == nullptr || graph->id != position.id ||
        (stream->captured != nullptr && stream->captured != graph)) {
        return cudaErrorStreamCaptureIsolation;
    }
    stream->captured = graph;
    graph->streams[stream].tasks += 0; /* the stream is in the capture */
    captured_stream &other = graph->streams[position.stream];
    if (position.stream != stream && position.stream != graph->origin) {
        other.joined = position.count > other.joined ? position.count : other.joined;
        graph->items.push_back({nullptr, position.stream, position.count});
    }
    return cudaSuccess;
}

unsigned long simt_get_capture(const void *stream)
{
    simt::device_access access;
    const auto *captured = static_cast<const CUstream_st *>(stream)->captured;
    return captured != nullptr ? captured->id : 0;
}

void simt_queue_function(void *stream, void (*run)(void *argument), void *argument,
                         void (*release)(void *argument))
{
    std::shared_ptr<void> owner(argument, release);
    simt::queue(stream, [run, owner] { run(owner.get()); });
}

void simt::refuse_in_capture(const char *what)
{
    if (captures > 0) {
        fail("%s during the capture of a stream", what);
    }
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    simt::device_access access;
    if (stream->captured != nullptr || mode != cudaStreamCaptureModeRelaxed) {
        return cudaErrorInvalidValue;
    }
    stream->captured = new CUgraph_st{++last_capture, stream, {}, {}, {}};
    captures++;
    return cudaSuccess;
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *how,
                                     unsigned long long *id, cudaGraph_t *graph,
                                     const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges,
                                     size_t *count)
{
    static thread_local cudaGraphNode_t newest;
    simt::device_access access;
    if (id != nullptr || graph != nullptr || edges != nullptr) {
        return cudaErrorInvalidValue;
    }
    bool captured = stream->captured != nullptr;
    *how = captured ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    newest = nullptr;
    for (size_t i = captured ? stream->captured->nodes.size() : 0; i-- > 0 && newest == nullptr;) {
        const auto &node = stream->captured->nodes[i];
        newest = node->stream == stream ? node.get() : nullptr;
    }
    *count = newest != nullptr ? 1 : 0;
    *nodes = &newest;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    simt::device_access access;
    CUgraph_st *graph = stream->captured;
    *out = nullptr;
    if (graph == nullptr || graph->origin != stream) {
        return cudaErrorInvalidValue;
    }
    bool joined = true;
    for (const auto &item : graph->streams) {
        item.first->captured = nullptr;
        joined = joined && (item.first == stream || item.second.joined == item.second.tasks);
    }
    stream->captured = nullptr;
    captures--;
    if (!joined) {
        delete graph;
        return cudaErrorStreamCaptureUnjoined;
    }
    *out = graph;
    return cudaSuccess;
}

/* ---- graphs ---- */

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
    simt::device_access access;
    *out = nullptr;
    if (flags != 0 || getenv("SIMT_NO_GRAPHS") != nullptr) {
        return cudaErrorInvalidValue;
    }
    *out = new CUgraphExec_st{graph->origin, graph->items};
    counts.created++;
    return cudaSuccess;
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const struct cudaKernelNodeParams *p)
{
    simt::device_access access;
    if (getenv("SIMT_REFUSE_UPDATES") != nullptr || node->kernel == nullptr ||
        node->kernel != p->func || node->index >= exec->items.size()) {
        return cudaErrorInvalidValue;
    }
    counts.updated++;
    if (getenv("SIMT_STALE") == nullptr) {
        exec->items[node->index].run = std::make_shared<simt::task>(make_kernel_task(
            p->func, p->gridDim, p->blockDim, p->kernelParams, p->sharedMemBytes, true));
    }
    return cudaSuccess;
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    simt::device_access access;
    simt::refuse_in_capture("cudaGraphUpload");
    return exec != nullptr && stream != nullptr ? cudaSuccess : cudaErrorInvalidValue;
}

/* Runs the first `count` tasks of a stream, except those that have run. */
static void run_until(std::vector<simt::task *> &late, size_t &done, size_t count)
{
    while (done < count && done < late.size()) {
        (*late[done++])();
    }
}

static void run_items(const std::vector<graph_item> &items, const CUstream_st *origin, bool eager)
{
    std::map<CUstream_st *, std::pair<std::vector<simt::task *>, size_t>> late;
    for (const graph_item &item : items) {
        auto &other = late[item.stream];
        if (item.run == nullptr) {
            run_until(other.first, other.second, item.count);
        } else if (item.stream == origin || eager) {
            (*item.run)();
        } else {
            other.first.push_back(item.run.get());
        }
    }
}

/* A launched graph keeps its arguments, even if they are updated before it runs. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    simt::device_access access;
    simt::refuse_in_capture("cudaGraphLaunch");
    const char *failing = getenv("SIMT_FAIL_LAUNCH");
    if (++counts.launched == (failing != nullptr ? strtol(failing, nullptr, 10) : 0)) {
        return cudaErrorInvalidValue;
    }
    counts.others--; /* counted by queue */
    const char *text = getenv("SIMT_STREAMS");
    bool eager = text != nullptr && strcmp(text, "eager") == 0;
    simt::queue(stream, [items = exec->items, origin = exec->origin, eager] {
        run_items(items, origin, eager);
    });
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    delete exec;
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}
