/* Internals of CUDA graphs: the recorded operations of a segment (graph_ops.c), and the regions and
 * segments (graph.c, which describes them). */
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda.h"

enum {
    REGIONS_MAX = 16,
    SEGMENTS_MAX = 512, /* of a region; later launches go to the stream directly */
    LAUNCHES_MIN = 4,   /* a segment with fewer launches uses no graph */
    MISSES_MAX = 4,     /* consecutive mismatches after which a segment uses no graph */
    ARGUMENTS_MAX = 32  /* limit of the arguments of a kernel */
};

struct recorded_op {
    struct cuda_launch launch;
    cuda_library_call *call;        /* NULL: a kernel launch or work */
    const struct device_work *work; /* NULL: a kernel launch or a library call */
    size_t first, bytes;            /* offset and size of the arguments in the segment */
    cudaGraphNode_t node;
};

struct segment {
    struct recorded_op *ops;
    unsigned char *bytes; /* arguments of all ops: used of size bytes */
    size_t count, capacity, used, size;
    size_t direct_count; /* launches of the last pass in MODE_DIRECT */
    int misses;
    /* work of the last pass and of the graph, for which ranks decide together; NULL: none */
    const struct device_work *work;
    bool all_repeat; /* with work: all ranks capture the next pass */
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
    bool failed;          /* creating a graph failed on this rank: it captures no more */
    /* MODE_DEFER: a replay in which a launch differed, and all later launches are recorded */
    enum { MODE_DIRECT, MODE_CAPTURE, MODE_REPLAY, MODE_DEFER } mode;
    const struct device_work *work; /* of this pass; NULL: none */
    int open_works;                 /* begun and not waited for */
    bool is_unbalanced;             /* a wait in this pass is for work of another segment */
    struct region *region;          /* NULL: no region is active */
    int segment_index;
    size_t position; /* launches of this segment so far */
    uint64_t clock;
    int region_count;
    struct region *regions[REGIONS_MAX];
};

/* graph_stream - return the stream of a context. */
static inline cudaStream_t graph_stream(const struct kernels *k)
{
    return (cudaStream_t)(void *)k->stream;
}

/* graph_launch_directly - launch a kernel on the stream. */
status graph_launch_directly(struct kernels *k, const struct cuda_launch *launch,
                             void *const *arguments);

/* graph_run_directly - queue a library call or work. `captured`: the stream is being captured. */
status graph_run_directly(struct cuda_graphs *g, const struct recorded_op *op, const void *argument,
                          bool captured);

/* graph_record - append an operation and a copy of its arguments to a segment. */
status graph_record(struct segment *p, const struct recorded_op *op, const void *const *arguments);

/* graph_truncate - remove the recorded operations from this position on. */
void graph_truncate(struct segment *p, size_t position);

/* graph_launch_recorded - queue a recorded operation. */
status graph_launch_recorded(struct cuda_graphs *g, const struct segment *p,
                             const struct recorded_op *op, bool captured);

/* graph_capture - append an operation to a segment and capture it. */
status graph_capture(struct cuda_graphs *g, struct segment *p, const struct recorded_op *op,
                     const void *const *arguments);

/* graph_matches - return whether an operation matches the captured one at this position, and update
 * the graph if its parameters differ. */
bool graph_matches(const struct segment *p, size_t position, const struct recorded_op *op,
                   const void *const *arguments);
