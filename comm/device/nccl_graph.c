/* Collectives of NCCL in CUDA graphs.
 *
 * In a graph region (kernels_graph_begin), a collective and the wait for it are queued as work of
 * the computing stream (device_queue_work). The back-end compares them with the captured ones. A
 * graph contains the fork to the stream of the communicator, the collective, and the join. NCCL's
 * arguments cannot be changed in a graph, so another pointer or count is a mismatch.
 *
 * NCCL has two rules (user guide, "Using NCCL with CUDA Graphs"). Either all ranks capture a
 * collective, or none does. All ranks launch graphs of the same capture. The reason is in its
 * sources (2.28.9, enqueue.cc): a captured collective may register its buffers, and it has another
 * limit for the work of a kernel. Therefore the ranks agree over the control communicator. Graphs
 * are used only for communicators on which all ranks queue the same operations
 * (comm_device_enable_graphs).
 *
 * Other collectives of the same communicator run between graphs. NCCL orders them with its graph
 * mixing support, so NCCL_GRAPH_MIXING_SUPPORT=0 disables graphs here. Ranks of several hosts do
 * not take part, because their collectives call the host from the graph.
 *
 * A communicator cannot be finalized before its graphs are destroyed (init.cc, commDestroySync). */
#include <inttypes.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "comm/device/nccl_impl.h"

/* A collective, for comparison. Every byte is defined. */
struct graph_collective {
    char *data;
    int64_t kind, element_bytes, count, root, slot;
    struct comm_range ranges[NCCL_GRAPH_RANKS];
};

/* ---- queued work ---- */

static bool has_ranges(const struct graph_collective *c)
{
    return c->kind == COMM_REDUCE_SCATTER || c->kind == COMM_ALL_GATHER;
}

static status queue_start(void *state, const void *argument, bool captured)
{
    struct nccl_state *s = state;
    const struct graph_collective *c = argument;
    const struct comm_work work = {.kind = (enum comm_collective)c->kind,
                                   .data = c->data,
                                   .element_bytes = (size_t)c->element_bytes,
                                   .count = c->count,
                                   .ranges = has_ranges(c) ? c->ranges : NULL,
                                   .root = (int)c->root};
    struct comm_request *request = NULL;
    if (!captured) {
        TRY(nccl_limit_in_flight(s, NCCL_RING - 1));
    }
    TRY(nccl_enqueue(s, &work, captured ? "capturing a collective" : "a collective"));
    TRY(device_event_record(s->options.device, s->slots[c->slot].done, s->stream));
    return captured ? STATUS_OK : nccl_count_started(s, work.kind, false, s->stream, &request);
}

/* Queues the wait. A captured event has no time, so a wait in a graph is not measured. */
static status queue_wait(void *state, const void *argument, bool captured)
{
    struct nccl_state *s = state;
    struct event *done = s->slots[*(const int64_t *)argument].done;
    return captured ? device_stream_wait(s->options.device, s->options.stream, done)
                    : nccl_waits_queue(s, done);
}

/* The vote of a rank, and the number of collectives that it has started in graph regions. */
struct vote {
    uint64_t collectives, agrees;
};

/* Sets *all to whether all ranks agree. Fails if the segments of two ranks end at different places:
 * the ranks have then started different numbers of collectives. */
static status agree_on_graph(void *state, bool own, bool *all)
{
    const struct nccl_state *s = state;
    const struct vote vote = {s->graph_collectives, own};
    struct vote votes[NCCL_GRAPH_RANKS];
    TRY(comm_all_gather_bytes(s->comm->control, votes, &vote, sizeof vote));
    *all = true;
    for (int r = 0; r < s->comm->size; r++) {
        REQUIRE(votes[r].collectives == vote.collectives, STATUS_INTERNAL,
                "a graph of rank %d follows %" PRIu64 " collectives, and that of rank %d %" PRIu64,
                r, votes[r].collectives, s->comm->rank, vote.collectives);
        *all = *all && votes[r].agrees != 0;
    }
    return STATUS_OK;
}

/* Adds the graph to the ring, so that the watchdog measures how long it is in flight. */
static status count_graph(void *state)
{
    struct nccl_state *s = state;
    struct comm_request *request = NULL;
    TRY(nccl_limit_in_flight(s, NCCL_RING - 1));
    return nccl_count_started(s, COMM_ALL_REDUCE, true, s->options.stream, &request);
}

/* ---- collectives ---- */

static int find_slot(const struct nccl_state *s)
{
    int i = 0;
    while (i < NCCL_GRAPH_SLOTS && s->slots[i].is_used) {
        i++;
    }
    return i;
}

status nccl_graph_start(struct nccl_state *s, const struct comm_work *work,
                        struct comm_request **out)
{
    struct graph_collective c;
    int slot = find_slot(s), ranks = s->comm->size;
    if (!s->in_graphs || slot == NCCL_GRAPH_SLOTS ||
        !device_in_graph(s->options.device, s->options.stream)) {
        return STATUS_OK;
    }
    memset(&c, 0, sizeof c);
    c.data = work->data;
    c.kind = work->kind;
    c.element_bytes = (int64_t)work->element_bytes;
    c.count = work->count;
    c.root = work->root;
    c.slot = slot;
    if (has_ranges(&c)) {
        memcpy(c.ranges, work->ranges, (size_t)ranks * sizeof *c.ranges);
    }
    size_t bytes = offsetof(struct graph_collective, ranges) + (size_t)ranks * sizeof *c.ranges;
    TRY(device_queue_work(s->options.device, s->options.stream, &s->graph_start, &c, bytes));
    s->graph_collectives++;
    s->slots[slot].is_used = true;
    *out = &s->slots[slot];
    return STATUS_OK;
}

bool nccl_graph_owns(const struct nccl_state *s, const struct comm_request *request)
{
    return request >= s->slots && request < s->slots + NCCL_GRAPH_SLOTS;
}

status nccl_graph_wait(struct nccl_state *s, struct comm_request *slot)
{
    const int64_t index = slot - s->slots;
    slot->is_used = false;
    return device_queue_work(s->options.device, s->options.stream, &s->graph_wait, &index,
                             sizeof index);
}

/* ---- creation and destruction ---- */

status nccl_graph_create(struct nccl_state *s)
{
    s->graph_start = (struct device_work){queue_start, agree_on_graph, count_graph, s, 1};
    s->graph_wait = (struct device_work){queue_wait, agree_on_graph, count_graph, s, -1};
    for (int i = 0; i < NCCL_GRAPH_SLOTS; i++) {
        TRY(device_event_create(s->options.device, &s->slots[i].done));
    }
    return STATUS_OK;
}

void nccl_graph_destroy(struct nccl_state *s)
{
    for (int i = 0; i < NCCL_GRAPH_SLOTS; i++) {
        (void)device_event_destroy(s->options.device, &s->slots[i].done);
    }
}

static bool is_capture_allowed(const struct nccl_state *s)
{
    const char *mixing = getenv("NCCL_GRAPH_MIXING_SUPPORT");
    return s->comm->size <= NCCL_GRAPH_RANKS && s->comm->local_size == s->comm->size &&
           (mixing == NULL || strcmp(mixing, "0") != 0);
}

status nccl_graph_enable(struct nccl_state *s)
{
    bool any_refuses = true;
    TRY(comm_agree_flag(s->comm->control, !is_capture_allowed(s), &any_refuses));
    s->in_graphs = !any_refuses;
    return STATUS_OK;
}
