/* CUDA graphs: what is queued between kernels_graph_begin and kernels_graph_end starts as a whole, once it was seen
 * to come again.
 *
 * The host goes the same way each time, and every launch arrives here. The first time it goes to the stream; the
 * second time it is captured; from the third on it is held against what was captured then, and nothing is launched:
 * parameters that differ (learning rate, bias corrections, dropout's counters, a batch's pointers, sizes of grids) are
 * set in the graph, which starts at the end. So none can be stale: all are compared, whatever they are for. What
 * differs in more - another kernel, a product of another shape - sends what was held back to the stream, in
 * order: a step never depends on a graph, it is only started by one.
 *
 * Pieces    a copy, zeros, an event or a wait of the stream, and memory that comes or goes, ends a piece: what was held
 *           back starts before it. So NCCL, whose stream waits for an event of this one, is outside of graphs, and
 *           nothing in a graph allocates or waits
 * Memory    of the host: arguments, about 100 KiB for each region of a 12-layer model; of the device, CUDA's own
 * Source    CUDA Runtime API 13.0: Graph Management; Stream Management, cudaStreamBeginCapture */
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "base/log.h"
#include "kernels/cuda/cuda.h"

enum {
    REGIONS = 16,
    PIECES = 64,   /* of a region; what comes behind is launched one by one */
    LEAST = 4,     /* fewer launches are not worth a graph */
    MISSES = 4,    /* in a row: what changes so often is left alone */
    ARGUMENTS = 32 /* of a kernel */
};

struct work {
    struct cuda_launch launch;
    cuda_call *call;     /* NULL: a kernel's launch */
    size_t first, bytes; /* of its arguments, in its piece */
    cudaGraphNode_t node;
};

struct piece {
    struct work *work;
    unsigned char *bytes;
    size_t count, room, used, size;
    size_t seen; /* launches that the last pass made one by one */
    int misses;
    cudaGraph_t graph;
    cudaGraphExec_t start; /* NULL: it is none yet */
};

struct region {
    struct kernels_graph_key key;
    uint64_t used;
    struct piece pieces[PIECES];
};

struct cuda_graphs {
    struct kernels *kernels;
    bool wanted, inside; /* inside a call: its own launches belong to it */
    enum { ONE_BY_ONE, CAPTURED, HELD_BACK } how;
    struct region *now; /* NULL: nothing has begun */
    int piece;
    size_t at; /* launches of this piece so far */
    uint64_t clock;
    int region_count;
    struct region *regions[REGIONS];
};

/* Only the thread that has begun can be in the middle of it. */
static _Thread_local struct cuda_graphs *begun;

static cudaStream_t stream_of(const struct kernels *k)
{
    return (cudaStream_t)(void *)k->stream;
}

/* ---- launches as they come ---- */

static dim3 dim3_of(const unsigned n[3])
{
    dim3 d = {n[0], n[1], n[2]};
    return d;
}

static status launch_now(struct kernels *k, const struct cuda_launch *l, void *const *arguments)
{
    cudaError_t error = cudaLaunchKernel(l->kernel, dim3_of(l->grid), dim3_of(l->block),
                                         (void **)arguments, l->shared_bytes, stream_of(k));
    REQUIRE(error == cudaSuccess, STATUS_INTERNAL, "%s: the GPU refused it: %s", l->name,
            cudaGetErrorString(error));
    return STATUS_OK;
}

static size_t rounded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Where a launch's arguments lie in its piece. */
static void arguments_of(const struct piece *p, const struct work *w, void *arguments[ARGUMENTS])
{
    size_t at = w->first;
    for (int i = 0; i < w->launch.count; i++) {
        arguments[i] = p->bytes + at;
        at += rounded(w->launch.sizes[i]);
    }
}

static status again(struct cuda_graphs *g, const struct piece *p, const struct work *w)
{
    void *arguments[ARGUMENTS];
    if (w->call == NULL) {
        arguments_of(p, w, arguments);
        return launch_now(g->kernels, &w->launch, arguments);
    }
    g->inside = true;
    status result = w->call(g->kernels, p->bytes + w->first);
    g->inside = false;
    return result;
}

/* ---- pieces ---- */

static struct piece *piece_now(const struct cuda_graphs *g)
{
    return &g->now->pieces[g->piece];
}

static void piece_forget(struct cuda_graphs *g, struct piece *p)
{
    if (p->start != NULL) {
        (void)cudaStreamSynchronize(stream_of(g->kernels)); /* it may be under way */
        (void)cudaGraphExecDestroy(p->start);
    }
    if (p->graph != NULL) {
        (void)cudaGraphDestroy(p->graph);
    }
    p->start = NULL;
    p->graph = NULL;
    p->seen = 0;
}

static void piece_free(struct cuda_graphs *g, struct piece *p)
{
    piece_forget(g, p);
    free(p->work);
    free(p->bytes);
    *p = (struct piece){0};
}

/* The first `count` launches of a piece, in order, to the stream. */
static status send(struct cuda_graphs *g, const struct piece *p, size_t count)
{
    status result = STATUS_OK;
    for (size_t i = 0; i < count && result == STATUS_OK; i++) {
        result = again(g, p, &p->work[i]);
    }
    return result;
}

/* It is not what was captured: what was held back goes out, and so does the rest. */
static status give_up(struct cuda_graphs *g)
{
    struct piece *p = piece_now(g);
    g->how = ONE_BY_ONE;
    status result = send(g, p, g->at);
    piece_forget(g, p);
    p->misses++;
    return result;
}

static status keep(struct piece *p, const struct work *work, const void *const *arguments)
{
    size_t needed = p->used + rounded(work->bytes);
    if (p->count == p->room) {
        size_t room = 2 * p->room + 64;
        struct work *larger = realloc(p->work, room * sizeof *larger);
        REQUIRE(larger != NULL, STATUS_INTERNAL, "out of memory for a graph's launches");
        p->work = larger;
        p->room = room;
    }
    if (needed > p->size) {
        size_t size = 2 * needed + 4096;
        unsigned char *larger = realloc(p->bytes, size);
        REQUIRE(larger != NULL, STATUS_INTERNAL, "out of memory for a graph's arguments");
        p->bytes = larger;
        p->size = size;
    }
    struct work *w = &p->work[p->count++];
    void *places[ARGUMENTS];
    *w = *work;
    w->first = p->used;
    p->used = needed;
    memset(p->bytes + w->first, 0, rounded(w->bytes));
    if (w->call != NULL) {
        memcpy(p->bytes + w->first, arguments[0], w->bytes);
        return STATUS_OK;
    }
    arguments_of(p, w, places);
    for (int i = 0; i < w->launch.count; i++) {
        memcpy(places[i], arguments[i], w->launch.sizes[i]);
    }
    return STATUS_OK;
}

/* ---- held against what was captured ---- */

static bool same_kernel(const struct work *a, const struct work *b)
{
    return a->call == b->call && a->bytes == b->bytes && a->launch.kernel == b->launch.kernel;
}

/* Whether parameters differ; the new ones are kept. */
static bool take_arguments(const struct piece *p, struct work *w, const struct work *work,
                           const void *const *arguments)
{
    void *places[ARGUMENTS];
    const struct cuda_launch *l = &work->launch;
    bool differs = memcmp(w->launch.grid, l->grid, sizeof l->grid) != 0 ||
                   memcmp(w->launch.block, l->block, sizeof l->block) != 0 ||
                   w->launch.shared_bytes != l->shared_bytes;
    arguments_of(p, w, places);
    for (int i = 0; i < l->count; i++) {
        differs = differs || memcmp(places[i], arguments[i], l->sizes[i]) != 0;
    }
    w->launch = *l;
    for (int i = 0; i < l->count && differs; i++) {
        memcpy(places[i], arguments[i], l->sizes[i]);
    }
    return differs;
}

static cudaError_t set_arguments(const struct piece *p, const struct work *w)
{
    void *places[ARGUMENTS];
    arguments_of(p, w, places);
    struct cudaKernelNodeParams parameters = {
        .func = (void *)(uintptr_t)w->launch.kernel,
        .gridDim = dim3_of(w->launch.grid),
        .blockDim = dim3_of(w->launch.block),
        .sharedMemBytes = (unsigned)w->launch.shared_bytes,
        .kernelParams = places,
    };
    return cudaGraphExecKernelNodeSetParams(p->start, w->node, &parameters);
}

/* Whether the piece goes on as it was captured. */
static bool follows(const struct cuda_graphs *g, const struct work *work,
                    const void *const *arguments)
{
    struct piece *p = piece_now(g);
    struct work *w = &p->work[g->at];
    if (g->at >= p->count || !same_kernel(w, work)) {
        return false;
    }
    if (w->call != NULL) {
        return memcmp(p->bytes + w->first, arguments[0], w->bytes) == 0;
    }
    return !take_arguments(p, w, work, arguments) || set_arguments(p, w) == cudaSuccess;
}

/* ---- captured ---- */

/* Graphs are not to be had: everything goes to the stream from now on. */
static void refuse(struct cuda_graphs *g, cudaError_t error)
{
    (void)cudaGetLastError();
    log_warning("CUDA-GRAPHS", "no graph can be made (%s): launches go out one by one",
                cudaGetErrorString(error));
    g->wanted = false;
}

static void piece_begin(struct cuda_graphs *g)
{
    struct piece *p = g->piece < PIECES ? piece_now(g) : NULL;
    bool alone = p == NULL || p->misses >= MISSES || !g->wanted;
    g->how = alone              ? ONE_BY_ONE
             : p->start != NULL ? HELD_BACK
             : p->seen >= LEAST ? CAPTURED
                                : ONE_BY_ONE;
    if (g->how != CAPTURED) {
        return;
    }
    p->count = p->used = 0;
    cudaError_t error = cudaStreamBeginCapture(stream_of(g->kernels), cudaStreamCaptureModeRelaxed);
    if (error != cudaSuccess) {
        refuse(g, error);
        g->how = ONE_BY_ONE;
    }
}

/* What the launch that was captured last became. */
static cudaGraphNode_t newest_node(const struct cuda_graphs *g)
{
    enum cudaStreamCaptureStatus how = cudaStreamCaptureStatusNone;
    const cudaGraphNode_t *nodes = NULL;
    size_t count = 0;
    cudaError_t error =
        cudaStreamGetCaptureInfo(stream_of(g->kernels), &how, NULL, NULL, &nodes, NULL, &count);
    return error == cudaSuccess && count == 1 ? nodes[0] : NULL;
}

static status capture(struct cuda_graphs *g, const struct work *work, const void *const *arguments)
{
    struct piece *p = piece_now(g);
    TRY(keep(p, work, arguments));
    struct work *w = &p->work[p->count - 1];
    TRY(again(g, p, w));
    w->node = w->call == NULL ? newest_node(g) : NULL;
    return STATUS_OK;
}

static bool has_nodes(const struct piece *p)
{
    for (size_t i = 0; i < p->count; i++) {
        if (p->work[i].call == NULL && p->work[i].node == NULL) {
            return false;
        }
    }
    return true;
}

/* The captured launches have not gone out: the graph starts them, or nobody has. */
static status capture_end(struct cuda_graphs *g)
{
    struct piece *p = piece_now(g);
    cudaError_t error = cudaStreamEndCapture(stream_of(g->kernels), &p->graph);
    if (error == cudaSuccess && has_nodes(p)) {
        error = cudaGraphInstantiate(&p->start, p->graph, 0);
    }
    if (p->start != NULL && error == cudaSuccess) {
        error = cudaGraphLaunch(p->start, stream_of(g->kernels));
    }
    if (p->start != NULL && error == cudaSuccess) {
        return STATUS_OK;
    }
    refuse(g, error);
    g->how = ONE_BY_ONE;
    piece_forget(g, p);
    return send(g, p, p->count);
}

static status held_back_end(struct cuda_graphs *g)
{
    struct piece *p = piece_now(g);
    if (g->at < p->count) {
        return give_up(g);
    }
    cudaError_t error = cudaGraphLaunch(p->start, stream_of(g->kernels));
    REQUIRE(error == cudaSuccess, STATUS_INTERNAL,
            "a graph of %zu launches: the GPU refused it: %s", p->count, cudaGetErrorString(error));
    p->misses = 0;
    return STATUS_OK;
}

static status piece_end(struct cuda_graphs *g)
{
    status result = STATUS_OK;
    if (g->at == 0) {
        return STATUS_OK;
    }
    if (g->how == CAPTURED) {
        result = capture_end(g);
    } else if (g->how == HELD_BACK) {
        result = held_back_end(g);
    } else if (g->piece < PIECES) {
        piece_now(g)->seen = g->at;
    }
    g->piece++;
    g->at = 0;
    return result;
}

/* ---- what the back-end calls ---- */

static status queue(struct cuda_graphs *g, const struct work *work, const void *const *arguments,
                    bool *done)
{
    *done = true;
    if (g->at == 0) {
        piece_begin(g);
    }
    status result = STATUS_OK;
    if (g->how == CAPTURED) {
        result = capture(g, work, arguments);
    } else if (g->how == ONE_BY_ONE) {
        *done = false;
    } else if (!follows(g, work, arguments)) {
        result = give_up(g);
        *done = false;
    }
    g->at++;
    return result;
}

static struct cuda_graphs *graphs_now(const struct kernels *k)
{
    struct cuda_graphs *g = cuda_of(k)->graphs;
    return g != NULL && g->now != NULL && !g->inside ? g : NULL;
}

status cuda_queue_kernel(struct kernels *k, const struct cuda_launch *launch,
                         void *const *arguments)
{
    struct cuda_graphs *g = graphs_now(k);
    bool done = false;
    if (g != NULL) {
        struct work work = {.launch = *launch};
        REQUIRE(launch->count <= ARGUMENTS, STATUS_INTERNAL, "%s has %d arguments", launch->name,
                launch->count);
        for (int i = 0; i < launch->count; i++) {
            work.bytes += rounded(launch->sizes[i]);
        }
        TRY(queue(g, &work, (const void *const *)arguments, &done));
    }
    return done ? STATUS_OK : launch_now(k, launch, arguments);
}

status cuda_queue_call(struct kernels *k, cuda_call *call, const void *argument, size_t bytes)
{
    struct cuda_graphs *g = graphs_now(k);
    bool done = false;
    if (g == NULL) {
        return call(k, argument);
    }
    struct work work = {.call = call, .bytes = bytes};
    TRY(queue(g, &work, &argument, &done));
    if (done) {
        return STATUS_OK;
    }
    g->inside = true;
    status result = call(k, argument);
    g->inside = false;
    return result;
}

status cuda_graph_cut(const void *stream)
{
    struct cuda_graphs *g = begun;
    bool touched = g != NULL && (stream == NULL || stream == (const void *)g->kernels->stream);
    return touched && !g->inside ? piece_end(g) : STATUS_OK;
}

/* ---- regions ---- */

/* The one of this key; else a new one, in the place of that which was not used for longest. */
static struct region *find(struct cuda_graphs *g, const struct kernels_graph_key *key)
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
    if (g->region_count < REGIONS) {
        struct region *r = calloc(1, sizeof *r);
        if (r != NULL) {
            g->regions[g->region_count++] = r;
            r->key = *key;
        }
        return r;
    }
    for (int i = 0; i < PIECES; i++) {
        piece_free(g, &oldest->pieces[i]);
    }
    oldest->key = *key;
    return oldest;
}

static status begin(struct kernels *k, const struct kernels_graph_key *key)
{
    struct cuda_graphs *g = cuda_of(k)->graphs;
    if (!g->wanted || k->profiling) {
        return STATUS_OK;
    }
    REQUIRE(g->now == NULL && begun == NULL, STATUS_INTERNAL, "a graph in a graph");
    struct region *r = find(g, key);
    REQUIRE(r != NULL, STATUS_INTERNAL, "out of memory for a graph");
    r->used = ++g->clock;
    g->now = r;
    g->piece = 0;
    g->at = 0;
    begun = g;
    return STATUS_OK;
}

static status cut(struct kernels *k)
{
    return cuda_graph_cut(k->stream);
}

static status end(struct kernels *k)
{
    struct cuda_graphs *g = cuda_of(k)->graphs;
    if (g->now == NULL) {
        return STATUS_OK;
    }
    status result = piece_end(g);
    g->now = NULL;
    begun = NULL;
    return result;
}

static void forget_all(struct cuda_graphs *g)
{
    for (int i = 0; i < g->region_count; i++) {
        for (int p = 0; p < PIECES; p++) {
            piece_free(g, &g->regions[i]->pieces[p]);
        }
        free(g->regions[i]);
    }
    g->region_count = 0;
}

static void want(struct kernels *k, bool wanted)
{
    forget_all(cuda_of(k)->graphs);
    cuda_of(k)->graphs->wanted = wanted;
}

status cuda_graphs_create(struct kernels *k)
{
    struct cuda_graphs *g = calloc(1, sizeof *g);
    REQUIRE(g != NULL, STATUS_INTERNAL, "out of memory for graphs");
    g->kernels = k;
    cuda_of(k)->graphs = g;
    k->table.graphs = (struct kernels_graphs){want, begin, cut, end};
    return STATUS_OK;
}

void cuda_graphs_destroy(struct kernels *k)
{
    struct cuda_graphs *g = cuda_of(k)->graphs;
    if (g != NULL) {
        forget_all(g);
    }
    free(g);
    cuda_of(k)->graphs = NULL;
}

/* ---- libraries' calls ---- */

static status product_call(struct kernels *k, const void *product)
{
    return cuda_product_queue(k, product);
}

status cuda_product_run(struct kernels *k, const struct cuda_product *p)
{
    struct cuda_product product = *p;
    __builtin_clear_padding(&product);
    return cuda_queue_call(k, product_call, &product, sizeof product);
}

struct sort {
    int32_t *ids, *rows;
    const int32_t *from;
    int64_t count;
    void *scratch;
};

static status sort_call(struct kernels *k, const void *argument)
{
    const struct sort *s = argument;
    return cuda_sort_queue(k, s->ids, s->rows, s->from, s->count, s->scratch);
}

status cuda_sort_rows(struct kernels *k, int32_t *sorted_ids, int32_t *sorted_rows,
                      const int32_t *ids, int64_t count, void *scratch)
{
    const struct sort sort = {sorted_ids, sorted_rows, ids, count, scratch};
    return cuda_queue_call(k, sort_call, &sort, sizeof sort);
}
