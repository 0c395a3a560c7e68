/* CUDA graphs in the emulator. A capture records the work that is queued on a stream as a list;
 * each launch of the graph runs the list in order.
 *
 * Kernel arguments keep their values from the capture until cudaGraphExecKernelNodeSetParams
 * changes them. A missing update leaves the old arguments, as on a GPU. Allocations, waits and
 * events during a capture end the program.
 *
 * SIMT_GRAPHS=FILE: writes at exit the number of graphs created, of launches and of argument
 * updates. SIMT_STALE=1: ignores all updates. SIMT_NO_GRAPHS: creating a graph fails. */
#include <cstdio>
#include <cstdlib>
#include <map>
#include <vector>

#include "tests/simt/runtime.h"

struct CUgraphNode_st {
    const void *kernel;
    size_t index;
};

struct CUgraph_st {
    std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
    std::vector<std::shared_ptr<simt::task>> tasks;
};

struct CUgraphExec_st {
    std::vector<std::shared_ptr<simt::task>> tasks;
};

namespace
{
std::map<const void *, simt::maker *> makers;
int captures; /* captures in progress */

struct graph_counter {
    long created = 0, launched = 0, updated = 0;
    ~graph_counter()
    {
        const char *path = getenv("SIMT_GRAPHS");
        FILE *file = path != nullptr ? fopen(path, "w") : nullptr;
        if (file != nullptr) {
            fprintf(file, "%ld %ld %ld\n", created, launched, updated);
            fclose(file);
        }
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
        simt::capture_add(stream->captured, kernel, std::move(work));
    } else {
        simt::queue(stream, std::move(work));
    }
    return cudaSuccess;
}

/* ---- captures ---- */

void simt::capture_add(CUgraph_st *graph, const void *kernel, task work)
{
    graph->nodes.emplace_back(new CUgraphNode_st{kernel, graph->tasks.size()});
    graph->tasks.push_back(std::make_shared<task>(std::move(work)));
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
    stream->captured = new CUgraph_st;
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
    *count = captured && !stream->captured->nodes.empty() ? 1 : 0;
    newest = *count == 1 ? stream->captured->nodes.back().get() : nullptr;
    *nodes = &newest;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *out)
{
    simt::device_access access;
    *out = stream->captured;
    if (stream->captured == nullptr) {
        return cudaErrorInvalidValue;
    }
    stream->captured = nullptr;
    captures--;
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
    *out = new CUgraphExec_st{graph->tasks};
    counts.created++;
    return cudaSuccess;
}

cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                             const struct cudaKernelNodeParams *p)
{
    simt::device_access access;
    if (node->kernel == nullptr || node->kernel != p->func || node->index >= exec->tasks.size()) {
        return cudaErrorInvalidValue;
    }
    counts.updated++;
    if (getenv("SIMT_STALE") == nullptr) {
        exec->tasks[node->index] = std::make_shared<simt::task>(make_kernel_task(
            p->func, p->gridDim, p->blockDim, p->kernelParams, p->sharedMemBytes, true));
    }
    return cudaSuccess;
}

/* A launched graph keeps its arguments, even if they are updated before it runs. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    simt::device_access access;
    simt::refuse_in_capture("cudaGraphLaunch");
    counts.launched++;
    simt::queue(stream, [tasks = exec->tasks] {
        for (const auto &task : tasks) {
            (*task)();
        }
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
