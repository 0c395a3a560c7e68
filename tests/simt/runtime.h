/* Internal header of the emulated CUDA runtime. */
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "tests/simt/cuda/cuda_runtime_api.h"
#include "tests/simt/graph_functions.h"
#include "tests/simt/simt.h"

struct event_state;

struct queued {
    simt::task run;
    std::shared_ptr<event_state> waits; /* the task waits for this event */
    uint64_t target = 0;
    bool computes = true; /* not a copy, a memset, an event or a wait */
};

struct CUstream_st {
    std::deque<queued> queue;
    CUgraph_st *captured = nullptr; /* capture in progress: tasks are added to this graph */
};

namespace simt
{
/* A position of a stream in a capture: the first `count` tasks of this stream. */
struct capture_position {
    unsigned long id = 0; /* of the capture; 0: none */
    CUstream_st *stream = nullptr;
    size_t count = 0;
};

/* capture_add - add a task to the graph of the capture of this stream. kernel is NULL for other
 * tasks. */
void capture_add(CUstream_st *stream, const void *kernel, task work);

/* capture_record - return the position of a stream that is being captured. */
capture_position capture_record(const CUstream_st *stream);

/* capture_wait - let a stream wait for a position of a capture. The stream joins the capture, if it
 * is not in it yet. */
cudaError_t capture_wait(CUstream_st *stream, const capture_position &position);

/* count_direct - count an operation that is queued outside of graphs. */
void count_direct(bool is_kernel);

/* refuse_in_capture - fail if a capture is in progress: a graph must not allocate or wait. */
void refuse_in_capture(const char *what);
} // namespace simt
