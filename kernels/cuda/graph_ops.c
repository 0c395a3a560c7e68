/* The operations of a segment of a CUDA graph, with copies of their arguments: kernel launches,
 * library calls, and work of other libraries (device_queue_work). */
#include <string.h>

#include "base/memory.h"
#include "kernels/cuda/graph_impl.h"

/* ---- direct launches ---- */

static dim3 make_dim3(const unsigned n[3])
{
    dim3 d = {n[0], n[1], n[2]};
    return d;
}

status graph_launch_directly(struct kernels *k, const struct cuda_launch *l, void *const *arguments)
{
    cudaError_t error = cudaLaunchKernel(l->kernel, make_dim3(l->grid), make_dim3(l->block),
                                         (void **)arguments, l->shared_bytes, graph_stream(k));
    REQUIRE(error == cudaSuccess, STATUS_INTERNAL, "%s: the launch failed: %s", l->name,
            cudaGetErrorString(error));
    return STATUS_OK;
}

static bool is_kernel(const struct recorded_op *w)
{
    return w->call == NULL && w->work == NULL;
}

/* Computes the addresses of the arguments of a recorded launch. */
static void get_arguments(const struct segment *p, const struct recorded_op *w,
                          void *arguments[ARGUMENTS_MAX])
{
    size_t offset = w->first;
    for (int i = 0; i < w->launch.count; i++) {
        arguments[i] = p->bytes + offset;
        offset += cuda_align_bytes(w->launch.sizes[i]);
    }
}

status graph_run_directly(struct cuda_graphs *g, const struct recorded_op *op, const void *argument,
                          bool captured)
{
    g->inside = true;
    status result = op->work != NULL ? op->work->queue(op->work->user, argument, captured)
                                     : op->call(g->kernels, argument);
    g->inside = false;
    return result;
}

status graph_launch_recorded(struct cuda_graphs *g, const struct segment *p,
                             const struct recorded_op *w, bool captured)
{
    void *arguments[ARGUMENTS_MAX];
    if (!is_kernel(w)) {
        return graph_run_directly(g, w, p->bytes + w->first, captured);
    }
    get_arguments(p, w, arguments);
    return graph_launch_directly(g->kernels, &w->launch, arguments);
}

/* ---- recorded operations ---- */

status graph_record(struct segment *p, const struct recorded_op *op, const void *const *arguments)
{
    size_t needed = p->used + cuda_align_bytes(op->bytes);
    if (p->count == p->capacity) {
        size_t capacity = 2 * p->capacity + 64;
        TRY(GROW(p->ops, capacity, "the launches of a graph"));
        p->capacity = capacity;
    }
    if (needed > p->size) {
        size_t size = 2 * needed + 4096;
        TRY(GROW(p->bytes, size, "the arguments of a graph"));
        p->size = size;
    }
    struct recorded_op *w = &p->ops[p->count++];
    void *recorded[ARGUMENTS_MAX];
    *w = *op;
    w->first = p->used;
    p->used = needed;
    memset(p->bytes + w->first, 0, cuda_align_bytes(w->bytes));
    if (!is_kernel(w)) {
        memcpy(p->bytes + w->first, arguments[0], w->bytes);
        return STATUS_OK;
    }
    get_arguments(p, w, recorded);
    for (int i = 0; i < w->launch.count; i++) {
        memcpy(recorded[i], arguments[i], w->launch.sizes[i]);
    }
    return STATUS_OK;
}

void graph_truncate(struct segment *p, size_t position)
{
    if (position < p->count) {
        p->used = p->ops[position].first;
        p->count = position;
    }
}

/* ---- replay: compare launches with the captured ones ---- */

static bool is_same_op(const struct recorded_op *a, const struct recorded_op *b)
{
    return a->call == b->call && a->work == b->work && a->bytes == b->bytes &&
           a->launch.kernel == b->launch.kernel;
}

/* Returns whether grid, block or arguments differ from the recorded ones, and records the
 * new ones. */
static bool update_arguments(const struct segment *p, struct recorded_op *w,
                             const struct recorded_op *op, const void *const *arguments)
{
    void *recorded[ARGUMENTS_MAX];
    const struct cuda_launch *l = &op->launch;
    bool differs = memcmp(w->launch.grid, l->grid, sizeof l->grid) != 0 ||
                   memcmp(w->launch.block, l->block, sizeof l->block) != 0 ||
                   w->launch.shared_bytes != l->shared_bytes;
    get_arguments(p, w, recorded);
    for (int i = 0; i < l->count; i++) {
        differs = differs || memcmp(recorded[i], arguments[i], l->sizes[i]) != 0;
    }
    w->launch = *l;
    for (int i = 0; i < l->count && differs; i++) {
        memcpy(recorded[i], arguments[i], l->sizes[i]);
    }
    return differs;
}

static cudaError_t set_node_arguments(const struct segment *p, const struct recorded_op *w)
{
    void *recorded[ARGUMENTS_MAX];
    get_arguments(p, w, recorded);
    struct cudaKernelNodeParams parameters = {
        .func = (void *)(uintptr_t)w->launch.kernel,
        .gridDim = make_dim3(w->launch.grid),
        .blockDim = make_dim3(w->launch.block),
        .sharedMemBytes = (unsigned)w->launch.shared_bytes,
        .kernelParams = recorded,
    };
    return cudaGraphExecKernelNodeSetParams(p->exec, w->node, &parameters);
}

bool graph_matches(const struct segment *p, size_t position, const struct recorded_op *op,
                   const void *const *arguments)
{
    if (position >= p->count || !is_same_op(&p->ops[position], op)) {
        return false;
    }
    struct recorded_op *w = &p->ops[position];
    if (!is_kernel(w)) {
        return memcmp(p->bytes + w->first, arguments[0], w->bytes) == 0;
    }
    return !update_arguments(p, w, op, arguments) || set_node_arguments(p, w) == cudaSuccess;
}

/* ---- capture ---- */

/* Returns the graph node of the launch that was captured last. */
static cudaGraphNode_t get_newest_node(const struct cuda_graphs *g)
{
    enum cudaStreamCaptureStatus mode = cudaStreamCaptureStatusNone;
    const cudaGraphNode_t *nodes = NULL;
    size_t count = 0;
    cudaError_t error =
        cudaStreamGetCaptureInfo(graph_stream(g->kernels), &mode, NULL, NULL, &nodes, NULL, &count);
    return error == cudaSuccess && count == 1 ? nodes[0] : NULL;
}

status graph_capture(struct cuda_graphs *g, struct segment *p, const struct recorded_op *op,
                     const void *const *arguments)
{
    TRY(graph_record(p, op, arguments));
    struct recorded_op *w = &p->ops[p->count - 1];
    TRY(graph_launch_recorded(g, p, w, true));
    w->node = is_kernel(w) ? get_newest_node(g) : NULL;
    return STATUS_OK;
}

/* ---- library calls ---- */

static status launch_gemm(struct kernels *k, const void *gemm_args)
{
    return cuda_gemm_launch(k, gemm_args);
}

status cuda_gemm_run(struct kernels *k, const struct cuda_gemm *p)
{
    struct cuda_gemm gemm_args = *p;
    __builtin_clear_padding(&gemm_args);
    return cuda_launch_call(k, launch_gemm, &gemm_args, sizeof gemm_args);
}

struct sort_args {
    int32_t *ids, *rows;
    const int32_t *from;
    int64_t count;
    void *scratch;
};

static status launch_sort(struct kernels *k, const void *argument)
{
    const struct sort_args *s = argument;
    return cuda_sort_launch(k, s->ids, s->rows, s->from, s->count, s->scratch);
}

status cuda_sort_rows(struct kernels *k, int32_t *sorted_ids, int32_t *sorted_rows,
                      const int32_t *ids, int64_t count, void *scratch)
{
    const struct sort_args sort_args = {sorted_ids, sorted_rows, ids, count, scratch};
    return cuda_launch_call(k, launch_sort, &sort_args, sizeof sort_args);
}
