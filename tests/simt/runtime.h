/* What the files of the emulated CUDA runtime share. */
#pragma once

#include <cstdint>
#include <deque>
#include <memory>

#include "tests/simt/cuda/cuda_runtime_api.h"
#include "tests/simt/simt.h"

struct event_state;

struct queued {
    simt::task run;
    std::shared_ptr<event_state> waits; /* begins once this is past */
    uint64_t target = 0;
};

struct CUstream_st {
    std::deque<queued> queue;
    CUgraph_st *captured = nullptr; /* what is queued goes there */
};

namespace simt
{
/* capture_add - to the graph that a stream is captured into; the kernel is NULL of what is none. */
void capture_add(CUgraph_st *graph, const void *kernel, task what);

/* refuse_in_capture - fail where a stream is being captured: a graph neither has memory nor waits. */
void refuse_in_capture(const char *what);
} // namespace simt
