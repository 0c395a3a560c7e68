/* Internal header of the emulated CUDA runtime. */
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "tests/simt/cuda/cuda_runtime_api.h"
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
/* capture_add - add a task to the graph of a capture. kernel is NULL for other tasks. */
void capture_add(CUgraph_st *graph, const void *kernel, task work);

/* refuse_in_capture - fail if a capture is in progress: a graph must not allocate or wait. */
void refuse_in_capture(const char *what);
} // namespace simt
