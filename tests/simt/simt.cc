/* The emulator's schedule: blocks one after the other, their threads in turns, barriers, meetings. */
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/simt/block.h"

namespace simt
{
thread *self;
block_state *running_block;

static const size_t shared_static_max = 48 << 10, shared_max = 227 << 10, red_zone = 16;
static const size_t shared_memory = 320 << 10; /* arrays, and red zones between them */

enum schedule { FIFO, LIFO, GREEDY, RANDOM };

static struct {
    bool known;
    schedule order;
    std::mt19937 random;
} settings;

static std::deque<worker *>
    ready[THREADS_MAX / WARP]; /* of each warp; but for greedy all in the first */
static int ready_count;
static std::deque<worker> pool;
static std::vector<std::pair<const void *, size_t>> allowed;
static fiber host;
static char begin_token, end_token;
static void (*kernel_body)(const void *context);
static const void *kernel_context;
static unsigned turn; /* of the pool: a block's threads are other fibers than the last block's */

/* ---- settings and errors ---- */

void set_schedule(const char *name, unsigned seed)
{
    static const char *const names[] = {"fifo", "lifo", "warp", "random"};
    settings.known = true;
    settings.random.seed(seed);
    for (int i = 0; i < 4; i++) {
        if (strcmp(name, names[i]) == 0) {
            settings.order = static_cast<schedule>(i);
            return;
        }
    }
    fail("SIMT_SCHEDULE=%s: not fifo, lifo, warp or random", name);
}

static void settings_read()
{
    if (!settings.known) {
        const char *name = getenv("SIMT_SCHEDULE"), *seed = getenv("SIMT_SEED");
        set_schedule(name != nullptr ? name : "fifo",
                     seed != nullptr ? static_cast<unsigned>(strtoul(seed, nullptr, 10)) : 1);
    }
}

static void say_thread(const thread *t)
{
    fprintf(stderr, "block (%u, %u, %u) thread %d (warp %d lane %d)", t->block.x, t->block.y,
            t->block.z, t->number, t->warp, t->lane);
}

void fail(const char *format, ...)
{
    unwatched here;
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "simt: ");
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    if (self != nullptr) {
        fprintf(stderr, ": ");
        say_thread(self);
    }
    fprintf(stderr, "\n");
    _exit(3);
}

[[noreturn]] static void fail_stuck()
{
    fprintf(stderr, "simt: deadlock\n");
    int shown = 0;
    for (const worker *w : running_block->threads) {
        if (!w->finished && shown++ < 12) {
            fprintf(stderr, "    ");
            say_thread(w);
            fprintf(stderr, " waits in %s at %s:%d\n", w->waits, w->at.file, w->at.line);
        }
    }
    _exit(3);
}

/* ---- turns ---- */

void leave_ready(worker *w)
{
    ready[settings.order == GREEDY ? w->warp : 0].push_back(w);
    ready_count++;
}

/* The one whose turn it is by the schedule, out of those who are ready. */
static worker *take_ready()
{
    int warp = settings.order == GREEDY && self != nullptr ? self->warp : 0;
    while (ready[warp].empty()) {
        warp = (warp + 1) % (THREADS_MAX / WARP);
    }
    std::deque<worker *> &queue = ready[warp];
    if (settings.order == RANDOM) {
        std::swap(queue[settings.random() % queue.size()], queue.back());
    }
    bool last = settings.order == LIFO || settings.order == RANDOM;
    worker *next = last ? queue.back() : queue.front();
    if (last) {
        queue.pop_back();
    } else {
        queue.pop_front();
    }
    ready_count--;
    return next;
}

static bool is_waited_for(const operation &o)
{
    for (const worker *w : running_block->threads) {
        if (!w->finished && w->event == o.event) {
            return true;
        }
    }
    return false;
}

/* The next one: as they came (fifo), any (random), or the first that somebody waits for. */
static bool run_operation()
{
    std::deque<operation> &operations = running_block->operations;
    if (operations.empty()) {
        return false;
    }
    auto at = operations.begin();
    if (settings.order == RANDOM) {
        at += static_cast<std::ptrdiff_t>(settings.random() % operations.size());
    } else if (settings.order != FIFO) {
        auto found = std::find_if(operations.begin(), operations.end(), is_waited_for);
        at = found != operations.end() ? found : at;
    }
    operation chosen = std::move(*at);
    operations.erase(at);
    chosen.run(chosen.context.data());
    return true;
}

/* Who goes on; nullptr when the block is done. */
static worker *next_worker()
{
    if (settings.order == RANDOM && settings.random() % 8 == 0) {
        run_operation();
    }
    while (ready_count == 0) {
        if (running_block->live == 0) {
            return nullptr;
        }
        if (!run_operation()) {
            fail_stuck();
        }
    }
    return take_ready();
}

static void go_on(fiber &from, worker *next)
{
    self = next;
    fiber_switch(from, next != nullptr ? next->run : host);
}

void sleep(const char *what, site here)
{
    worker *me = running_worker();
    me->waits = what;
    me->at = here;
    worker *next = next_worker();
    if (next != me) {
        go_on(me->run, next);
    }
    self = me;
    me->waits = "";
}

void wait_for(const void *event, const char *what, site here)
{
    running_worker()->event = event;
    sleep(what, here);
}

void wake(const void *event)
{
    for (worker *w : running_block->threads) {
        if (!w->finished && w->event == event) {
            w->event = nullptr;
            leave_ready(w);
        }
    }
}

void later(void (*run)(const void *context), const void *context, size_t bytes, const void *event)
{
    auto *from = static_cast<const unsigned char *>(context);
    running_block->operations.push_back({run, {from, from + bytes}, event});
}

/* ---- barriers: exited threads have arrived (sm_70 and newer) ---- */

static void barrier_open(block_barrier &b)
{
    for (worker *w : b.waiting) {
        leave_ready(w);
    }
    b.waiting.clear();
    b.arrived = 0;
    b.tokens.phase++;
}

void barrier(int number, int threads, bool wait, site here)
{
    unwatched inside;
    block_barrier &b = running_block->barriers[number];
    if (threads % WARP != 0 || threads > static_cast<int>(running_block->threads.size())) {
        fail("barrier %d for %d threads at %s:%d", number, threads, here.file, here.line);
    }
    if (b.arrived == 0) {
        b.expected = threads;
        b.first = here;
    } else if (b.expected != threads) {
        fail("barrier %d is for %d threads at %s:%d and for %d at %s:%d", number, b.expected,
             b.first.file, b.first.line, threads, here.file, here.line);
    } else if (number == 0 && (b.first.line != here.line || strcmp(b.first.file, here.file) != 0)) {
        fail("divergent __syncthreads: %s:%d and %s:%d", b.first.file, b.first.line, here.file,
             here.line);
    }
    const void *token = b.tokens.now();
    fiber_release(token);
    b.arrived++;
    bool last = b.arrived == (threads != 0 ? threads : running_block->live);
    if (last) {
        barrier_open(b);
    }
    if (wait) {
        if (last) {
            leave_ready(running_worker()); /* whoever comes last has no right to be first */
        } else {
            b.waiting.push_back(running_worker());
        }
        sleep(number == 0 ? "__syncthreads" : "a named barrier", here);
        fiber_acquire(token);
    }
}

/* ---- meetings ---- */

static meeting &meeting_of(int warp, uint32_t mask)
{
    std::deque<meeting> &all = running_block->meetings[static_cast<size_t>(warp)];
    for (meeting &m : all) {
        if (m.mask == mask) {
            return m;
        }
    }
    all.emplace_back();
    all.back().mask = mask;
    return all.back();
}

void meet_warp(uint32_t mask, const char *what, void *slot, meeting_work *work, bool ordered,
               site here)
{
    unwatched inside;
    worker *me = running_worker();
    if ((mask >> me->lane & 1) == 0) {
        fail("%s with mask %08x, which leaves its own lane out, at %s:%d", what, mask, here.file,
             here.line);
    }
    int lanes = static_cast<int>(running_block->threads.size()) - me->warp * WARP;
    if (lanes < WARP) {
        mask &= (uint32_t{1} << lanes) - 1;
    }
    meeting &m = meeting_of(me->warp, mask);
    if (m.arrived == 0) {
        m.what = what;
        m.first = here;
    } else if (m.first.line != here.line || strcmp(m.what, what) != 0) {
        fail("divergent warp: %s at %s:%d and %s at %s:%d", m.what, m.first.file, m.first.line,
             what, here.file, here.line);
    }
    const void *token = m.tokens.now();
    if (ordered) {
        fiber_release(token);
    }
    m.slots[me->lane] = slot;
    m.members[me->lane] = me;
    m.arrived |= uint32_t{1} << me->lane;
    if (m.arrived == mask) {
        if (work != nullptr) {
            work(m.slots, mask);
        }
        m.arrived = 0;
        m.tokens.phase++;
        for (int i = 0; i < WARP; i++) {
            if ((mask >> i & 1) != 0 && i != me->lane) {
                leave_ready(m.members[i]);
            }
        }
    } else {
        sleep(what, here);
    }
    if (ordered) {
        fiber_acquire(token);
    }
}

void meet_warpgroup(const char *what, void *slot, meeting_work *work, site here)
{
    unwatched inside;
    worker *me = running_worker();
    group_meeting &m = running_block->groups[static_cast<size_t>(me->number / WARPGROUP)];
    if (m.arrived == 0) {
        m.what = what;
    } else if (strcmp(m.what, what) != 0) {
        fail("divergent warpgroup: %s and %s at %s:%d", m.what, what, here.file, here.line);
    }
    const void *token = m.tokens.now();
    fiber_release(token);
    m.slots[me->number % WARPGROUP] = slot;
    m.members[me->number % WARPGROUP] = me;
    if (++m.arrived < WARPGROUP) {
        sleep(what, here);
    } else {
        work(m.slots, ~0u);
        m.arrived = 0;
        m.tokens.phase++;
        for (worker *w : m.members) {
            if (w != me) {
                leave_ready(w);
            }
        }
    }
    fiber_acquire(token);
}

/* ---- shared memory ---- */

void *shared_array(const void *key, size_t bytes, size_t alignment)
{
    unwatched inside;
    block_state &b = *running_block;
    for (const auto &array : b.arrays) {
        if (array.first == key) {
            return array.second;
        }
    }
    size_t at = (b.used + alignment - 1) / alignment * alignment;
    if (at + bytes > b.dynamic_bytes + red_zone + shared_static_max) {
        fail("static shared arrays of more than %zu bytes", shared_static_max);
    }
    fiber_unpoison(b.memory + at, bytes);
    b.used = at + bytes + red_zone;
    b.arrays.push_back({key, b.memory + at});
    return b.memory + at;
}

void allow_shared(const void *kernel, size_t bytes)
{
    for (auto &entry : allowed) {
        if (entry.first == kernel) {
            entry.second = bytes;
            return;
        }
    }
    allowed.push_back({kernel, bytes});
}

bool shared_is_allowed(const void *kernel, size_t bytes)
{
    for (const auto &entry : allowed) {
        if (entry.first == kernel && bytes <= entry.second) {
            return true;
        }
    }
    return bytes <= shared_static_max;
}

/* A new mapping for each block where the thread sanitizer looks on: it forgets the last block's. */
static void shared_make(block_state &b, size_t dynamic_bytes)
{
    static unsigned char *memory;
#ifdef SIMT_TSAN
    if (memory != nullptr) {
        munmap(memory, shared_memory);
        memory = nullptr;
    }
#endif
    if (memory == nullptr) {
        void *fresh = mmap(nullptr, shared_memory, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (fresh == MAP_FAILED) {
            fail("no memory for a block's shared memory");
        }
        memory = static_cast<unsigned char *>(fresh);
    }
    b.memory = memory;
    b.dynamic_bytes = dynamic_bytes;
    b.used = dynamic_bytes + red_zone;
    fiber_unpoison(b.memory, shared_memory);
    memset(b.memory, 0xff, dynamic_bytes + red_zone + shared_static_max);
    b.late.assign(dynamic_bytes, 0xff);
    b.fenced = false;
    b.barriers_fenced = true;
    fiber_poison(b.memory + dynamic_bytes, shared_memory - dynamic_bytes);
}

/* ---- blocks ---- */

/* Who runs after this thread. */
static worker *worker_ends(worker *me)
{
    unwatched inside;
    copy_check_none();
    me->finished = true;
    running_block->live--;
    for (block_barrier &b : running_block->barriers) {
        if (b.arrived > 0 && b.expected == 0 && b.arrived == running_block->live) {
            barrier_open(b);
        }
    }
    return next_worker();
}

static void worker_entry()
{
    fiber_entered();
    worker *me = running_worker();
    fiber_acquire(&begin_token);
    kernel_body(kernel_context);
    fiber_release(&end_token);
    go_on(me->run, worker_ends(me));
    abort(); /* a finished thread is started anew, never gone on with */
}

static void check_nothing_left(const block_state &b)
{
    for (int i = 0; i < BARRIERS; i++) {
        if (b.barriers[i].arrived > 0) {
            fail("a block ends, and nobody waits at barrier %d, where %d threads arrived at %s:%d",
                 i, b.barriers[i].arrived, b.barriers[i].first.file, b.barriers[i].first.line);
        }
    }
    for (const group_meeting &g : b.groups) {
        if (!g.open.empty() || !g.groups.empty()) {
            fail("a block ends with a wgmma that nobody waited for");
        }
    }
    if (!b.operations.empty()) {
        fail("a block ends with a copy by TMA on its way");
    }
}

static void block_run(dim3 grid, dim3 size, size_t shared_bytes, dim3 which)
{
    size_t count = size_t{size.x} * size.y * size.z;
    /* On the heap: what the thread sanitizer knows of its tokens goes with it. */
    std::unique_ptr<block_state> owned(new block_state);
    block_state &b = *owned;
    shared_make(b, shared_bytes);
    running_block = &b;
    b.live = static_cast<int>(count);
    b.meetings.resize((count + WARP - 1) / WARP);
    b.groups.resize((count + WARPGROUP - 1) / WARPGROUP);
    while (pool.size() <
           count + WARP) { /* more than a block has: so that the turn makes a change */
        pool.emplace_back();
    }
    turn += 37;
    for (size_t i = 0; i < count; i++) {
        worker *w = &pool[(i + turn) % pool.size()];
        unsigned n = static_cast<unsigned>(i);
        w->index = dim3(n % size.x, n / size.x % size.y, n / (size.x * size.y));
        w->block = which;
        w->block_size = size;
        w->grid_size = grid;
        w->number = static_cast<int>(i);
        w->warp = w->number / WARP;
        w->lane = w->number % WARP;
        w->shared = b.memory;
        w->finished = false;
        w->wgmma_fenced = false;
        w->waits = "its start";
        fiber_start(w->run, worker_entry);
        b.threads.push_back(w);
        leave_ready(w);
    }
    self = nullptr;
    go_on(host, next_worker());
    self = nullptr;
    check_nothing_left(b);
    running_block = nullptr;
}

static void check_launch(dim3 grid, dim3 size, size_t shared_bytes, bool shared_allowed)
{
    uint64_t threads = uint64_t{size.x} * size.y * size.z;
    if (threads == 0 || threads > THREADS_MAX || size.z > 64) {
        fail("a block of %u x %u x %u threads", size.x, size.y, size.z);
    }
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 ||
        grid.z > 65535) {
        fail("a grid of %u x %u x %u blocks", grid.x, grid.y, grid.z);
    }
    if (shared_bytes > shared_max || !shared_allowed) {
        fail("%zu bytes of dynamic shared memory%s", shared_bytes,
             shared_bytes <= shared_max ? " that GPU_ALLOW_SHARED did not ask for" : "");
    }
}

void launch(dim3 grid, dim3 size, size_t shared_bytes, bool shared_allowed,
            void (*body)(const void *context), const void *context)
{
    unwatched inside;
    settings_read();
    check_launch(grid, size, shared_bytes, shared_allowed);
    if (host.state == nullptr) {
        fiber_adopt(host);
    }
    kernel_body = body;
    kernel_context = context;
    std::vector<uint64_t> order(uint64_t{grid.x} * grid.y * grid.z);
    for (size_t i = 0; i < order.size(); i++) {
        order[i] = settings.order == LIFO ? order.size() - 1 - i : i;
    }
    if (settings.order == RANDOM) {
        std::shuffle(order.begin(), order.end(), settings.random);
    }
    fiber_release(&begin_token);
    for (uint64_t i : order) {
        block_run(grid, size, shared_bytes,
                  dim3(static_cast<unsigned>(i % grid.x),
                       static_cast<unsigned>(i / grid.x % grid.y),
                       static_cast<unsigned>(i / grid.x / grid.y)));
    }
    fiber_acquire(&end_token);
}
} // namespace simt
