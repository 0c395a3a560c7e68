/* CUDA graphs: the launches between kernels_graph_begin and kernels_graph_end (a region) start as
 * one graph, once the same launches repeat.
 *
 * The host executes the same code in every step, and every launch passes through this file. In the
 * first step a launch goes to the stream. In the second step it is captured. From the third step on
 * it is deferred and compared with the captured launch, and the graph starts at the end. Parameters
 * that differ (learning rate, bias corrections, dropout counters, pointers of a batch, grid sizes)
 * are updated in the graph. All parameters are compared, so none can be stale. If a launch differs
 * in another way (another kernel, a GEMM of another shape), all deferred launches go to the stream,
 * in order. The result of a step does not depend on graphs.
 *
 * Segments  A copy, a memset, an event or a wait of the stream, and an allocation or a release of
 *           memory, end a segment of the region: the deferred launches start before it. Therefore
 *           no graph allocates or waits. NCCL is outside of graphs, because its stream waits for an
 *           event of this one.
 * Memory    Host: arguments, about 100 KiB for each region of a 12-layer model. Device: the memory
 *           of CUDA's graphs.
 * Source    CUDA Runtime API 13.0: Graph Management; Stream Management, cudaStreamBeginCapture */
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "base/log.h"
#include "base/memory.h"
#include "kernels/cuda/cuda.h"

enum {
    REGIONS_MAX = 16,
    SEGMENTS_MAX = 64, /* of a region; later launches go to the stream directly */
    LAUNCHES_MIN = 4,  /* a segment with fewer launches uses no graph */
    MISSES_MAX = 4,    /* consecutive mismatches after which a segment uses no graph */
    ARGUMENTS_MAX = 32 /* limit of the arguments of a kernel */
};

struct recorded_op {
    struct cuda_launch launch;
    cuda_library_call *call; /* NULL: a kernel launch */
    size_t first, bytes;     /* offset and size of the arguments in the segment */
    cudaGraphNode_t node;
};

struct segment {
    struct recorded_op *ops;
    unsigned char *bytes; /* arguments of all ops: used of size bytes */
    size_t count, capacity, used, size;
    size_t direct_count; /* launches of the last pass in MODE_DIRECT */
    int misses;
    cudaGraph_t graph;
    cudaGraphExec_t exec; /* NULL: not yet captured */
};

struct region {
    struct kernels_graph_key key;
    uint64_t used; /* clock at the last use */
    struct segment segments[SEGMENTS_MAX];
};

struct cuda_graphs {
    struct kernels *kernels;
    bool enabled, inside; /* inside: within a library call, which makes its own launches */
    enum { MODE_DIRECT, MODE_CAPTURE, MODE_REPLAY } mode;
    struct region *region; /* NULL: no region is active */
    int segment_index;
    size_t position; /* launches of this segment so far */
    uint64_t clock;
    int region_count;
    struct region *regions[REGIONS_MAX];
};

/* The graphs with a region that the calling thread has begun; NULL: none. */
static _Thread_local struct cuda_graphs *active_graphs;

static cudaStream_t get_stream(const struct kernels *k)
{
    return (cudaStream_t)(void *)k->stream;
}

/* ---- direct launches ---- */

static dim3 make_dim3(const unsigned n[3])
{
    dim3 d = {n[0], n[1], n[2]};
    return d;
}

static status launch_directly(struct kernels *k, const struct cuda_launch *l,
                              void *const *arguments)
{
    cudaError_t error = cudaLaunchKernel(l->kernel, make_dim3(l->grid), make_dim3(l->block),
                                         (void **)arguments, l->shared_bytes, get_stream(k));
    REQUIRE(error == cudaSuccess, STATUS_INTERNAL, "%s: the launch failed: %s", l->name,
            cudaGetErrorString(error));
    return STATUS_OK;
}

static size_t align_bytes(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Computes the addresses of the arguments of a recorded launch. */
static void get_arguments(const struct segment *p, const struct recorded_op *w,
                          void *arguments[ARGUMENTS_MAX])
{
    size_t offset = w->first;
    for (int i = 0; i < w->launch.count; i++) {
        arguments[i] = p->bytes + offset;
        offset += align_bytes(w->launch.sizes[i]);
    }
}

static status launch_recorded(struct cuda_graphs *g, const struct segment *p,
                              const struct recorded_op *w)
{
    void *arguments[ARGUMENTS_MAX];
    if (w->call == NULL) {
        get_arguments(p, w, arguments);
        return launch_directly(g->kernels, &w->launch, arguments);
    }
    g->inside = true;
    status result = w->call(g->kernels, p->bytes + w->first);
    g->inside = false;
    return result;
}

/* ---- segments ---- */

static struct segment *get_segment(const struct cuda_graphs *g)
{
    return &g->region->segments[g->segment_index];
}

static void release_graph(struct cuda_graphs *g, struct segment *p)
{
    if (p->exec != NULL) {
        (void)cudaStreamSynchronize(get_stream(g->kernels)); /* the graph may be running */
        (void)cudaGraphExecDestroy(p->exec);
    }
    if (p->graph != NULL) {
        (void)cudaGraphDestroy(p->graph);
    }
    p->exec = NULL;
    p->graph = NULL;
    p->direct_count = 0;
}

static void free_segment(struct cuda_graphs *g, struct segment *p)
{
    release_graph(g, p);
    free(p->ops);
    free(p->bytes);
    *p = (struct segment){0};
}

/* Launches the first `count` recorded operations of a segment, in order. */
static status launch_all(struct cuda_graphs *g, const struct segment *p, size_t count)
{
    status result = STATUS_OK;
    for (size_t i = 0; i < count && result == STATUS_OK; i++) {
        result = launch_recorded(g, p, &p->ops[i]);
    }
    return result;
}

/* Handles a mismatch: launches the deferred operations and continues the segment in MODE_DIRECT. */
static status abandon_replay(struct cuda_graphs *g)
{
    struct segment *p = get_segment(g);
    g->mode = MODE_DIRECT;
    status result = launch_all(g, p, g->position);
    release_graph(g, p);
    p->misses++;
    return result;
}

static status record_op(struct segment *p, const struct recorded_op *op,
                        const void *const *arguments)
{
    size_t needed = p->used + align_bytes(op->bytes);
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
    memset(p->bytes + w->first, 0, align_bytes(w->bytes));
    if (w->call != NULL) {
        memcpy(p->bytes + w->first, arguments[0], w->bytes);
        return STATUS_OK;
    }
    get_arguments(p, w, recorded);
    for (int i = 0; i < w->launch.count; i++) {
        memcpy(recorded[i], arguments[i], w->launch.sizes[i]);
    }
    return STATUS_OK;
}

/* ---- replay: compare launches with the captured ones ---- */

static bool is_same_op(const struct recorded_op *a, const struct recorded_op *b)
{
    return a->call == b->call && a->bytes == b->bytes && a->launch.kernel == b->launch.kernel;
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

/* Returns whether the next operation matches the captured one, and updates the graph if its
 * parameters differ. */
static bool matches_next(const struct cuda_graphs *g, const struct recorded_op *op,
                         const void *const *arguments)
{
    struct segment *p = get_segment(g);
    struct recorded_op *w = &p->ops[g->position];
    if (g->position >= p->count || !is_same_op(w, op)) {
        return false;
    }
    if (w->call != NULL) {
        return memcmp(p->bytes + w->first, arguments[0], w->bytes) == 0;
    }
    return !update_arguments(p, w, op, arguments) || set_node_arguments(p, w) == cudaSuccess;
}

/* ---- capture ---- */

/* Disables graphs after an error of CUDA: all launches go to the stream from now on. */
static void disable_graphs(struct cuda_graphs *g, cudaError_t error)
{
    (void)cudaGetLastError();
    log_warning("CUDA-GRAPHS", "CUDA graphs are disabled: creating a graph failed: %s",
                cudaGetErrorString(error));
    g->enabled = false;
}

static void begin_segment(struct cuda_graphs *g)
{
    struct segment *p = g->segment_index < SEGMENTS_MAX ? get_segment(g) : NULL;
    bool direct = p == NULL || p->misses >= MISSES_MAX || !g->enabled;
    g->mode = direct                            ? MODE_DIRECT
              : p->exec != NULL                 ? MODE_REPLAY
              : p->direct_count >= LAUNCHES_MIN ? MODE_CAPTURE
                                                : MODE_DIRECT;
    if (g->mode != MODE_CAPTURE) {
        return;
    }
    p->count = p->used = 0;
    cudaError_t error =
        cudaStreamBeginCapture(get_stream(g->kernels), cudaStreamCaptureModeRelaxed);
    if (error != cudaSuccess) {
        disable_graphs(g, error);
        g->mode = MODE_DIRECT;
    }
}

/* Returns the graph node of the launch that was captured last. */
static cudaGraphNode_t get_newest_node(const struct cuda_graphs *g)
{
    enum cudaStreamCaptureStatus mode = cudaStreamCaptureStatusNone;
    const cudaGraphNode_t *nodes = NULL;
    size_t count = 0;
    cudaError_t error =
        cudaStreamGetCaptureInfo(get_stream(g->kernels), &mode, NULL, NULL, &nodes, NULL, &count);
    return error == cudaSuccess && count == 1 ? nodes[0] : NULL;
}

static status capture_op(struct cuda_graphs *g, const struct recorded_op *op,
                         const void *const *arguments)
{
    struct segment *p = get_segment(g);
    TRY(record_op(p, op, arguments));
    struct recorded_op *w = &p->ops[p->count - 1];
    TRY(launch_recorded(g, p, w));
    w->node = w->call == NULL ? get_newest_node(g) : NULL;
    return STATUS_OK;
}

static bool has_all_nodes(const struct segment *p)
{
    for (size_t i = 0; i < p->count; i++) {
        if (p->ops[i].call == NULL && p->ops[i].node == NULL) {
            return false;
        }
    }
    return true;
}

/* Ends a capture and launches the graph: capturing did not execute the launches. If creating the
 * graph fails, launches the recorded operations directly. */
static status end_capture(struct cuda_graphs *g)
{
    struct segment *p = get_segment(g);
    cudaError_t error = cudaStreamEndCapture(get_stream(g->kernels), &p->graph);
    if (error == cudaSuccess && has_all_nodes(p)) {
        error = cudaGraphInstantiate(&p->exec, p->graph, 0);
    }
    if (p->exec != NULL && error == cudaSuccess) {
        error = cudaGraphLaunch(p->exec, get_stream(g->kernels));
    }
    if (p->exec != NULL && error == cudaSuccess) {
        return STATUS_OK;
    }
    disable_graphs(g, error);
    g->mode = MODE_DIRECT;
    release_graph(g, p);
    return launch_all(g, p, p->count);
}

static status end_replay(struct cuda_graphs *g)
{
    struct segment *p = get_segment(g);
    if (g->position < p->count) {
        return abandon_replay(g);
    }
    cudaError_t error = cudaGraphLaunch(p->exec, get_stream(g->kernels));
    REQUIRE(error == cudaSuccess, STATUS_INTERNAL, "launching a graph of %zu operations failed: %s",
            p->count, cudaGetErrorString(error));
    p->misses = 0;
    return STATUS_OK;
}

static status end_segment(struct cuda_graphs *g)
{
    status result = STATUS_OK;
    if (g->position == 0) {
        return STATUS_OK;
    }
    if (g->mode == MODE_CAPTURE) {
        result = end_capture(g);
    } else if (g->mode == MODE_REPLAY) {
        result = end_replay(g);
    } else if (g->segment_index < SEGMENTS_MAX) {
        get_segment(g)->direct_count = g->position;
    }
    g->segment_index++;
    g->position = 0;
    return result;
}

/* ---- interface of the back-end ---- */

/* Handles a launch within a region. If *done is false, the caller must launch it. */
static status handle_op(struct cuda_graphs *g, const struct recorded_op *op,
                        const void *const *arguments, bool *done)
{
    *done = true;
    if (g->position == 0) {
        begin_segment(g);
    }
    status result = STATUS_OK;
    if (g->mode == MODE_CAPTURE) {
        result = capture_op(g, op, arguments);
    } else if (g->mode == MODE_DIRECT) {
        *done = false;
    } else if (!matches_next(g, op, arguments)) {
        result = abandon_replay(g);
        *done = false;
    }
    g->position++;
    return result;
}

/* Returns the graphs of k if a region is active and the caller is not within a library call, else
 * NULL. */
static struct cuda_graphs *get_active_graphs(const struct kernels *k)
{
    struct cuda_graphs *g = cuda_get_state(k)->graphs;
    return g != NULL && g->region != NULL && !g->inside ? g : NULL;
}

status cuda_launch_kernel(struct kernels *k, const struct cuda_launch *launch,
                          void *const *arguments)
{
    struct cuda_graphs *g = get_active_graphs(k);
    bool done = false;
    if (g != NULL) {
        struct recorded_op op = {.launch = *launch};
        REQUIRE(launch->count <= ARGUMENTS_MAX, STATUS_INTERNAL, "%s has %d arguments",
                launch->name, launch->count);
        for (int i = 0; i < launch->count; i++) {
            op.bytes += align_bytes(launch->sizes[i]);
        }
        TRY(handle_op(g, &op, (const void *const *)arguments, &done));
    }
    return done ? STATUS_OK : launch_directly(k, launch, arguments);
}

status cuda_launch_call(struct kernels *k, cuda_library_call *call, const void *argument,
                        size_t bytes)
{
    struct cuda_graphs *g = get_active_graphs(k);
    bool done = false;
    if (g == NULL) {
        return call(k, argument);
    }
    struct recorded_op op = {.call = call, .bytes = bytes};
    TRY(handle_op(g, &op, &argument, &done));
    if (done) {
        return STATUS_OK;
    }
    g->inside = true;
    status result = call(k, argument);
    g->inside = false;
    return result;
}

status cuda_graph_end_segment(const void *stream)
{
    struct cuda_graphs *g = active_graphs;
    bool touched = g != NULL && (stream == NULL || stream == (const void *)g->kernels->stream);
    return touched && !g->inside ? end_segment(g) : STATUS_OK;
}

/* ---- regions ---- */

/* Returns the region of this key. If there is none, creates it or reuses the least recently
 * used region. */
static struct region *find_region(struct cuda_graphs *g, const struct kernels_graph_key *key)
{
    struct region *oldest = NULL;
    for (int i = 0; i < g->region_count; i++) {
        struct region *r = g->regions[i];
        if (r->key.inputs == key->inputs && r->key.rows == key->rows &&
            r->key.variant == key->variant) {
            return r;
        }
        oldest = oldest == NULL || r->used < oldest->used ? r : oldest;
    }
    if (g->region_count < REGIONS_MAX) {
        struct region *r = calloc(1, sizeof *r);
        if (r != NULL) {
            g->regions[g->region_count++] = r;
            r->key = *key;
        }
        return r;
    }
    for (int i = 0; i < SEGMENTS_MAX; i++) {
        free_segment(g, &oldest->segments[i]);
    }
    oldest->key = *key;
    return oldest;
}

static status begin_region(struct kernels *k, const struct kernels_graph_key *key)
{
    struct cuda_graphs *g = cuda_get_state(k)->graphs;
    if (!g->enabled || k->profiling) {
        return STATUS_OK;
    }
    REQUIRE(g->region == NULL && active_graphs == NULL, STATUS_INTERNAL,
            "kernels_graph_begin: a graph region is already active");
    struct region *r = find_region(g, key);
    REQUIRE(r != NULL, STATUS_INTERNAL, "out of memory for a graph region");
    r->used = ++g->clock;
    g->region = r;
    g->segment_index = 0;
    g->position = 0;
    active_graphs = g;
    return STATUS_OK;
}

static status split_region(struct kernels *k)
{
    return cuda_graph_end_segment(k->stream);
}

static status end_region(struct kernels *k)
{
    struct cuda_graphs *g = cuda_get_state(k)->graphs;
    if (g->region == NULL) {
        return STATUS_OK;
    }
    status result = end_segment(g);
    g->region = NULL;
    active_graphs = NULL;
    return result;
}

static void free_regions(struct cuda_graphs *g)
{
    for (int i = 0; i < g->region_count; i++) {
        for (int p = 0; p < SEGMENTS_MAX; p++) {
            free_segment(g, &g->regions[i]->segments[p]);
        }
        free(g->regions[i]);
    }
    g->region_count = 0;
}

static void set_enabled(struct kernels *k, bool enabled)
{
    free_regions(cuda_get_state(k)->graphs);
    cuda_get_state(k)->graphs->enabled = enabled;
}

status cuda_graphs_create(struct kernels *k)
{
    struct cuda_graphs *g = NULL;
    TRY(ALLOCATE(g, 1, "graphs"));
    g->kernels = k;
    cuda_get_state(k)->graphs = g;
    k->table.graphs = (struct kernels_graphs){set_enabled, begin_region, split_region, end_region};
    return STATUS_OK;
}

void cuda_graphs_destroy(struct kernels *k)
{
    struct cuda_graphs *g = cuda_get_state(k)->graphs;
    if (g != NULL) {
        free_regions(g);
    }
    free(g);
    cuda_get_state(k)->graphs = NULL;
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
