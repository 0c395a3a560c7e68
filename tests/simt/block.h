/* Internal header of the emulator: the state of a block of threads while it runs. simt.cc creates
 * and runs a block; async.cc stores its copies and wgmmas here. */
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "tests/simt/fiber.h"
#include "tests/simt/simt.h"

namespace simt
{
enum { WARP = 32, WARPGROUP = 128, BARRIERS = 16, THREADS_MAX = 1024 };

/* A thread, the event that it waits for, and its pending copies. The first cache lines contain the
 * fields that a switch reads. */
struct alignas(64) worker : thread {
    fiber run;
    bool finished = true;
    bool has_copies = false; /* it has started a copy */
    const char *waits = "";
    const void *event = nullptr;
    site at = {"", 0};
    std::vector<copy> copies;   /* of cp.async; those before copies_done are complete */
    std::vector<size_t> groups; /* where each group ends in copies, from groups_done on */
    size_t copies_done = 0, groups_done = 0;
    std::vector<bulk_copy> bulk_open, bulk_committed, bulk_due;
    bool wgmma_fenced = false; /* wgmma.fence was executed since the last wait */
    bool turn_fenced = true;   /* fence.proxy.async.global was executed since the last turn */
};

/* Tokens of the thread sanitizer, one for the even and one for the odd phases of a barrier. An
 * arrival at the next phase then does not order the reads of a thread that is still in this one. */
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

struct rendezvous {
    uint32_t mask = 0, arrived = 0;
    const char *what = "";
    site first = {"", 0};
    void *slots[WARP];
    worker *members[WARP];
    phase_tokens tokens;
};

struct issued_wgmma {
    float *d[WARPGROUP];                  /* D fragment of each thread */
    const uint32_t *registers[WARPGROUP]; /* A fragments, if A has no descriptor */
    int columns;                          /* groups of eight columns */
    wgmma_form form;
    uint64_t a, b;
    bool add;
};

struct group_rendezvous {
    int arrived = 0;
    const char *what = "";
    void *slots[WARPGROUP];
    worker *members[WARPGROUP];
    phase_tokens tokens;
    std::vector<issued_wgmma> open;
    std::deque<std::vector<issued_wgmma>> groups;
};

struct operation {
    void (*run)(const void *context);
    std::vector<unsigned char> context;
    const void *event; /* woken when it has run */
};

struct block_state {
    std::vector<worker *> threads;
    int live = 0;
    unsigned open_barriers = 0;      /* bit i: threads have arrived at barriers[i] */
    unsigned char *memory = nullptr; /* shared */
    size_t dynamic_bytes = 0, used = 0;
    size_t static_bytes = 0;    /* of static arrays, without red zones */
    bool base_was_read = false; /* shared_base() was called */
    /* Dynamic shared memory as TMA and wgmma read it: without the writes of threads since the last
     * fence. */
    std::vector<unsigned char> late;
    bool fenced = false;         /* a fence makes the writes of threads visible */
    bool barriers_fenced = true; /* no mbarrier was initialized since the last fence */
    std::vector<std::pair<const void *, void *>> arrays;
    block_barrier barriers[BARRIERS];
    std::vector<std::deque<rendezvous>> rendezvous_by_warp; /* for each warp */
    std::vector<group_rendezvous> groups;                   /* for each warpgroup */
    std::deque<operation> operations;
};

extern block_state *running_block;

static inline worker *running_worker()
{
    return static_cast<worker *>(self);
}

/* mark_ready - mark a thread as ready; the schedule selects when it runs. */
void mark_ready(worker *w);
void sleep(const char *what, site here);
} // namespace simt
