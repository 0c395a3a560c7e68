/* The emulator's inside: a block of threads while it runs. simt.cc makes and runs it; async.cc keeps
 * its copies and products here. */
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "tests/simt/fiber.h"
#include "tests/simt/simt.h"

namespace simt
{
enum { WARP = 32, WARPGROUP = 128, BARRIERS = 16, THREADS_MAX = 1024 };

/* A thread, what it waits for, and its copies on the way. */
struct worker : thread {
    fiber run;
    bool finished = true;
    const char *waits = "";
    const void *event = nullptr;
    site at = {"", 0};
    std::vector<copy> open, due;
    std::deque<std::vector<copy>> groups;
    bool wgmma_fenced = false; /* since it last waited for products */
};

/* Fences alternate with the phases of what is waited for, so that an arrival at the next phase does
 * not order what a straggler of this one reads. */
struct phase_tokens {
    char token[2];
    unsigned phase = 0;
    const void *now() const
    {
        return &token[phase & 1];
    }
};

struct block_barrier {
    int arrived = 0, expected = 0;
    site first = {"", 0};
    std::vector<worker *> waiting;
    phase_tokens tokens;
};

struct meeting {
    uint32_t mask = 0, arrived = 0;
    const char *what = "";
    site first = {"", 0};
    void *slots[WARP];
    worker *members[WARP];
    phase_tokens tokens;
};

struct product { /* a wgmma that was issued: a D fragment of each thread */
    float *d[WARPGROUP];
    const uint32_t *registers[WARPGROUP]; /* A's, where it has no descriptor */
    int columns;                          /* of eight */
    uint64_t a, b;
    bool add;
};

struct group_meeting {
    int arrived = 0;
    const char *what = "";
    void *slots[WARPGROUP];
    worker *members[WARPGROUP];
    phase_tokens tokens;
    std::vector<product> open;
    std::deque<std::vector<product>> groups;
};

struct operation {
    void (*run)(const void *context);
    std::vector<unsigned char> context;
    const void *event; /* what it wakes */
};

struct block_state {
    std::vector<worker *> threads;
    int live = 0;
    unsigned char *memory = nullptr; /* shared */
    size_t dynamic_bytes = 0, used = 0;
    std::vector<unsigned char>
        late; /* dynamic memory as TMA and wgmma see it: without what threads wrote since */
    bool fenced = false;         /* what they wrote is to be seen */
    bool barriers_fenced = true; /* no mbarrier was made since */
    std::vector<std::pair<const void *, void *>> arrays;
    block_barrier barriers[BARRIERS];
    std::vector<std::deque<meeting>> meetings; /* of each warp */
    std::vector<group_meeting> groups;         /* of each warpgroup */
    std::deque<operation> operations;
};

extern block_state *running_block;

static inline worker *running_worker()
{
    return static_cast<worker *>(self);
}

/* leave_ready - this thread may run again; the schedule says when. */
void leave_ready(worker *w);
void sleep(const char *what, site here);
} // namespace simt
