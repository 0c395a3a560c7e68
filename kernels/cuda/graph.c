/* CUDA graphs. A region is the part of a step between kernels_graph_begin and kernels_graph_end.
 * When the launches of a region repeat, they start as one graph for each segment.
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
 *           no graph allocates, and a graph waits for no event that is not in it.
 * Work      Collectives (device_queue_work) are operations of a segment too. NCCL requires that a
 *           collective is captured on all ranks or on none, and that all ranks launch graphs of the
 *           same capture (NCCL user guide, "Using NCCL with CUDA Graphs"). Therefore the ranks
 *           agree at the end of each segment with work: whether the next pass is captured, whether
 *           a captured graph is launched, and whether it is launched again. If a launch differs on
 *           one rank, that rank defers the rest of the segment. At the end of the segment, all
 *           ranks launch the operations one by one.
 * Memory    Host: arguments, about 100 KiB for each region of a 12-layer model. Device: the memory
 *           of CUDA's graphs.
 * Source    CUDA Runtime API 13.0: Graph Management; Stream Management, cudaStreamBeginCapture */
#include <stdlib.h>

#include "base/log.h"
#include "base/memory.h"
#include "kernels/cuda/graph_impl.h"

/* The graphs with a region that the calling thread has begun; NULL: none. */
static _Thread_local struct cuda_graphs *active_graphs;

/* ---- segments ---- */

static struct segment *get_segment(const struct cuda_graphs *g)
{
    return &g->region->segments[g->segment_index];
}

static void release_graph(struct cuda_graphs *g, struct segment *p)
{
    if (p->exec != NULL) {
        (void)cudaStreamSynchronize(graph_stream(g->kernels)); /* the graph may be running */
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
        result = graph_launch_recorded(g, p, &p->ops[i], false);
    }
    return result;
}

/* Launches the deferred operations after a mismatch. The rest of the segment is not deferred. */
static status abandon_replay(struct cuda_graphs *g)
{
    struct segment *p = get_segment(g);
    g->mode = MODE_DIRECT;
    status result = launch_all(g, p, g->position);
    release_graph(g, p);
    p->misses++;
    return result;
}

/* Handles an operation that differs from the captured one. If *done is false, the caller must
 * launch it. If the graph has work, the ranks agree on the mismatch at the end of the segment. All
 * further operations are deferred until then. */
static status handle_mismatch(struct cuda_graphs *g, const struct recorded_op *op,
                              const void *const *arguments, bool *done)
{
    struct segment *p = get_segment(g);
    if (p->work == NULL) {
        *done = false;
        return abandon_replay(g);
    }
    g->mode = MODE_DEFER;
    graph_truncate(p, g->position);
    return graph_record(p, op, arguments);
}

/* Sets *all to whether all ranks pass true. Without work, *all is the value of this rank. */
static status agree_on_work(const struct device_work *work, bool own, bool *all)
{
    *all = own;
    return work != NULL ? work->agree(work->user, own, all) : STATUS_OK;
}

/* ---- capture ---- */

/* Disables captures after an error of CUDA. */
static void disable_captures(struct cuda_graphs *g, cudaError_t error)
{
    (void)cudaGetLastError();
    log_warning("CUDA-GRAPHS", "creating a CUDA graph failed, so no more are created: %s",
                cudaGetErrorString(error));
    g->failed = true;
}

/* Returns whether this rank would capture the next pass of a segment with `count` launches. */
static bool can_capture(const struct cuda_graphs *g, const struct segment *p, size_t count)
{
    return count >= LAUNCHES_MIN && p->misses < MISSES_MAX && !g->failed;
}

/* Starts a segment. With work, the ranks have agreed on exec and all_repeat. */
static status begin_segment(struct cuda_graphs *g)
{
    struct segment *p = g->segment_index < SEGMENTS_MAX ? get_segment(g) : NULL;
    g->mode = MODE_DIRECT;
    if (p == NULL) {
        return STATUS_OK;
    }
    if (p->exec != NULL) {
        g->mode = MODE_REPLAY;
        return STATUS_OK;
    }
    if (!(p->work != NULL ? p->all_repeat : can_capture(g, p, p->direct_count))) {
        return STATUS_OK;
    }
    p->count = p->used = 0;
    cudaError_t error =
        cudaStreamBeginCapture(graph_stream(g->kernels), cudaStreamCaptureModeRelaxed);
    if (error == cudaSuccess) {
        g->mode = MODE_CAPTURE;
        return STATUS_OK;
    }
    disable_captures(g, error);
    REQUIRE(p->work == NULL, STATUS_INTERNAL, "a capture cannot start, but it starts on all ranks");
    return STATUS_OK;
}

static bool has_all_nodes(const struct segment *p)
{
    for (size_t i = 0; i < p->count; i++) {
        if (p->ops[i].call == NULL && p->ops[i].work == NULL && p->ops[i].node == NULL) {
            return false;
        }
    }
    return true;
}

/* Ends a capture and creates a graph that can be launched. Returns whether this succeeded. */
static bool create_graph(struct cuda_graphs *g, struct segment *p)
{
    cudaError_t error = cudaStreamEndCapture(graph_stream(g->kernels), &p->graph);
    if (error == cudaSuccess && has_all_nodes(p)) {
        error = cudaGraphInstantiate(&p->exec, p->graph, 0);
    }
    if (error == cudaSuccess && p->exec != NULL) {
        error = cudaGraphUpload(p->exec, graph_stream(g->kernels)); /* allocates its memory */
    }
    bool is_created = error == cudaSuccess && p->exec != NULL;
    if (!is_created) {
        disable_captures(g, error);
    }
    return is_created;
}

static status launch_graph(struct cuda_graphs *g, const struct segment *p)
{
    cudaError_t error = cudaGraphLaunch(p->exec, graph_stream(g->kernels));
    REQUIRE(error == cudaSuccess, STATUS_INTERNAL, "launching a graph of %zu operations failed: %s",
            p->count, cudaGetErrorString(error));
    if (g->work == NULL) {
        return STATUS_OK;
    }
    g->inside = true; /* `launched` records events after the graph */
    status result = g->work->launched(g->work->user);
    g->inside = false;
    return result;
}

/* Discards a capture and launches its operations: capturing did not execute them. */
static status discard_capture(struct cuda_graphs *g)
{
    struct segment *p = get_segment(g);
    g->mode = MODE_DIRECT;
    release_graph(g, p);
    return launch_all(g, p, p->count);
}

/* Ends a capture and launches the graph, unless this or another rank could not create it. */
static status end_capture(struct cuda_graphs *g)
{
    struct segment *p = get_segment(g);
    bool all = false;
    TRY(agree_on_work(g->work, create_graph(g, p), &all));
    p->all_repeat = false;
    return all ? launch_graph(g, p) : discard_capture(g);
}

static status end_replay(struct cuda_graphs *g)
{
    struct segment *p = get_segment(g);
    bool all = false;
    TRY(agree_on_work(p->work, g->mode == MODE_REPLAY && g->position == p->count, &all));
    if (!all) {
        return abandon_replay(g);
    }
    p->misses = 0;
    return launch_graph(g, p);
}

/* Ends a pass without a graph, and decides whether the next pass is captured. */
static status end_direct(struct cuda_graphs *g)
{
    if (g->segment_index >= SEGMENTS_MAX) {
        return STATUS_OK;
    }
    struct segment *p = get_segment(g);
    p->direct_count = g->position;
    bool is_closed = g->open_works == 0 && !g->is_unbalanced;
    return agree_on_work(g->work, can_capture(g, p, g->position) && is_closed, &p->all_repeat);
}

static void go_to_next_segment(struct cuda_graphs *g)
{
    g->work = NULL;
    g->open_works = 0;
    g->is_unbalanced = false;
    g->segment_index++;
    g->position = 0;
}

static status end_segment(struct cuda_graphs *g)
{
    if (g->position == 0) {
        return STATUS_OK;
    }
    status result = g->mode == MODE_CAPTURE  ? end_capture(g)
                    : g->mode == MODE_DIRECT ? end_direct(g)
                                             : end_replay(g);
    if (g->segment_index < SEGMENTS_MAX) {
        get_segment(g)->work = g->work;
    }
    go_to_next_segment(g);
    return result;
}

/* Ends a segment after an error. The rank does not agree with other ranks: the job ends. */
static void drop_segment(struct cuda_graphs *g)
{
    if (g->position > 0 && g->mode == MODE_CAPTURE) {
        (void)cudaStreamEndCapture(graph_stream(g->kernels), &get_segment(g)->graph);
        release_graph(g, get_segment(g));
    }
    go_to_next_segment(g);
}

/* ---- interface of the back-end ---- */

/* Records that this pass has work. A capture ends without a graph in two cases. The first one: the
 * segment had no work before, so the ranks have not agreed on the capture. The second one: the work
 * waits for work outside of the capture. */
static status note_work(struct cuda_graphs *g, const struct device_work *work)
{
    g->work = work;
    g->open_works += work->opens;
    g->is_unbalanced = g->is_unbalanced || g->open_works < 0;
    if (g->mode != MODE_CAPTURE || (get_segment(g)->work != NULL && !g->is_unbalanced)) {
        return STATUS_OK;
    }
    (void)cudaStreamEndCapture(graph_stream(g->kernels), &get_segment(g)->graph);
    return discard_capture(g);
}

/* Handles a launch within a region. If *done is false, the caller must launch it. */
static status handle_op(struct cuda_graphs *g, const struct recorded_op *op,
                        const void *const *arguments, bool *done)
{
    *done = true;
    if (g->position == 0) {
        TRY(begin_segment(g));
    }
    if (op->work != NULL) {
        TRY(note_work(g, op->work));
    }
    status result = STATUS_OK;
    if (g->mode == MODE_CAPTURE) {
        result = graph_capture(g, get_segment(g), op, arguments);
    } else if (g->mode == MODE_DIRECT) {
        *done = false;
    } else if (g->mode == MODE_DEFER) {
        result = graph_record(get_segment(g), op, arguments);
    } else if (!graph_matches(get_segment(g), g->position, op, arguments)) {
        result = handle_mismatch(g, op, arguments, done);
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
            op.bytes += cuda_align_bytes(launch->sizes[i]);
        }
        TRY(handle_op(g, &op, (const void *const *)arguments, &done));
    }
    return done ? STATUS_OK : graph_launch_directly(k, launch, arguments);
}

static status queue_call(struct cuda_graphs *g, const struct recorded_op *op, const void *argument)
{
    bool done = false;
    TRY(handle_op(g, op, &argument, &done));
    return done ? STATUS_OK : graph_run_directly(g, op, argument, false);
}

status cuda_launch_call(struct kernels *k, cuda_library_call *call, const void *argument,
                        size_t bytes)
{
    struct cuda_graphs *g = get_active_graphs(k);
    const struct recorded_op op = {.call = call, .bytes = bytes};
    return g == NULL ? call(k, argument) : queue_call(g, &op, argument);
}

bool cuda_graph_is_active(const void *stream)
{
    return active_graphs != NULL && !active_graphs->inside &&
           stream == (const void *)active_graphs->kernels->stream;
}

status cuda_graph_queue_work(const void *stream, const struct device_work *work,
                             const void *argument, size_t bytes)
{
    const struct recorded_op op = {.work = work, .bytes = bytes};
    return cuda_graph_is_active(stream) ? queue_call(active_graphs, &op, argument)
                                        : work->queue(work->user, argument, false);
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

static status end_region(struct kernels *k, status result)
{
    struct cuda_graphs *g = cuda_get_state(k)->graphs;
    if (g->region == NULL) {
        return result;
    }
    if (result == STATUS_OK) {
        result = end_segment(g);
    } else {
        drop_segment(g);
    }
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
    cuda_get_state(k)->graphs->failed = false;
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
