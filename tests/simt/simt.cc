/* Scheduler of the emulator: runs blocks one after the other and switches between their threads.
 * Implements barriers, rendezvous and shared memory. */
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/simt/block.h"

namespace simt
{
thread *self;
block_state *running_block;

static const size_t shared_static_max = 48 << 10, red_zone = 16;
static const size_t shared_reserved = 1 << 10; /* of the system, as on sm_90 */
static const size_t shared_memory = 320 << 10; /* arrays and the red zones between them */

/* LOWEST and HIGHEST starve warps: a warp waits while one of a lower or higher number is ready. */
enum schedule { FIFO, LIFO, GREEDY, RANDOM, LOWEST, HIGHEST };

/* A linear congruential generator. It returns the upper half of its state, and is several times
 * faster than std::mt19937. */
struct generator {
    using result_type = uint32_t;
    uint64_t state = 0;

    static constexpr result_type min()
    {
        return 0;
    }
    static constexpr result_type max()
    {
        return UINT32_MAX;
    }
    result_type operator()()
    {
        state = state * 6364136223846793005 + 1442695040888963407;
        return static_cast<result_type>(state >> 32);
    }
};

static struct {
    bool is_set;
    schedule order;
    generator random;
} settings;

/* Ready threads in the order in which they became ready: a ring, because a block has at most
 * THREADS_MAX threads. */
struct ready_queue {
    worker *ring[THREADS_MAX];
    unsigned first = 0, count = 0;

    worker *&at(unsigned i)
    {
        return ring[(first + i) % THREADS_MAX];
    }
};

/* One queue for each warp; fifo, lifo and random use only the first one. */
enum { QUEUES = THREADS_MAX / WARP };
static ready_queue ready[QUEUES];
static int ready_count;
static std::deque<worker> pool;
static std::vector<std::pair<const void *, size_t>> allowed;
static fiber host;
static char begin_token, end_token;
static void (*kernel_body)(const void *context);
static const void *kernel_context;
static unsigned pool_offset; /* offset in the pool: consecutive blocks use different fibers */

/* ---- settings and errors ---- */

void set_schedule(const char *name, unsigned seed)
{
    static const char *const names[] = {"fifo", "lifo", "warp", "random", "lowest", "highest"};
    settings.is_set = true;
    settings.random.state = seed;
    for (int i = 0; i < 6; i++) {
        if (strcmp(name, names[i]) == 0) {
            settings.order = static_cast<schedule>(i);
            return;
        }
    }
    fail("SIMT_SCHEDULE=%s: must be fifo, lifo, warp, random, lowest or highest", name);
}

static void read_settings()
{
    if (!settings.is_set) {
        const char *name = getenv("SIMT_SCHEDULE"), *seed = getenv("SIMT_SEED");
        set_schedule(name != nullptr ? name : "fifo",
                     seed != nullptr ? static_cast<unsigned>(strtoul(seed, nullptr, 10)) : 1);
    }
}

static void print_thread(const thread *t)
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
        print_thread(self);
    }
    fprintf(stderr, "\n");
    _exit(3);
}

[[noreturn]] static void fail_deadlock()
{
    fprintf(stderr, "simt: deadlock\n");
    /* the first of the threads of a warp that wait at the same line */
    const worker *shown = nullptr;
    for (const worker *w : running_block->threads) {
        if (!w->finished && (shown == nullptr || w->warp != shown->warp ||
                             w->at.line != shown->at.line || w->at.file != shown->at.file)) {
            shown = w;
            fprintf(stderr, "    ");
            print_thread(w);
            fprintf(stderr, " waits in %s at %s:%d\n", w->waits, w->at.file, w->at.line);
        }
    }
    _exit(3);
}

/* ---- scheduling ---- */

static bool starves_warps()
{
    return settings.order == LOWEST || settings.order == HIGHEST;
}

void mark_ready(worker *w)
{
    ready_queue &queue = ready[settings.order == GREEDY || starves_warps() ? w->warp : 0];
    queue.at(queue.count++) = w;
    ready_count++;
}

/* Prefetches a thread that may run after the next one, and another one that may follow it. */
static void prefetch_threads(const worker *soon, const worker *later)
{
    __builtin_prefetch(soon->run.state);
    __builtin_prefetch(later);
    __builtin_prefetch(&later->run);
}

/* Selects one of the ready threads by the schedule. */
static worker *take_ready()
{
    int warp = settings.order == GREEDY && self != nullptr ? self->warp : 0, step = 1;
    if (settings.order == HIGHEST) {
        warp = QUEUES - 1;
        step = -1;
    }
    while (ready[warp].count == 0) {
        warp = (warp + step) % QUEUES;
    }
    ready_queue &queue = ready[warp];
    if (settings.order == RANDOM) {
        std::swap(queue.at(settings.random() % queue.count), queue.at(queue.count - 1));
    }
    ready_count--;
    queue.count--;
    if (settings.order == LIFO || settings.order == RANDOM) {
        if (queue.count >= 2) {
            prefetch_threads(queue.at(queue.count - 1), queue.at(queue.count - 2));
        }
        return queue.at(queue.count);
    }
    worker *next = queue.at(0);
    queue.first = (queue.first + 1) % THREADS_MAX;
    if (queue.count >= 2) {
        prefetch_threads(queue.at(0), queue.at(1));
    }
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

/* Runs one asynchronous operation: the oldest (fifo), any (random), or the first that a thread
 * waits for. Returns false if there is none. */
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

/* Selects the next thread; nullptr if the block is finished. */
static worker *next_worker()
{
    if (settings.order == RANDOM && settings.random() % 8 == 0) {
        run_operation();
    }
    while (starves_warps() && run_operation()) { /* copies are never slower than a warp */
    }
    while (ready_count == 0) {
        if (running_block->live == 0) {
            return nullptr;
        }
        if (!run_operation()) {
            fail_deadlock();
        }
    }
    return take_ready();
}

static void switch_to(fiber &from, worker *next)
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
        switch_to(me->run, next);
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
            mark_ready(w);
        }
    }
}

void add_operation(void (*run)(const void *context), const void *context, size_t bytes,
                   const void *event)
{
    auto *from = static_cast<const unsigned char *>(context);
    running_block->operations.push_back({run, {from, from + bytes}, event});
}

/* Compares literals. Equal literals of one file are usually one object. */
static bool is_same_text(const char *a, const char *b)
{
    return a == b || strcmp(a, b) == 0;
}

/* ---- barriers: exited threads count as arrived (sm_70 and newer) ---- */

static void open_barrier(int number)
{
    block_barrier &b = running_block->barriers[number];
    for (worker *w : b.waiting) {
        mark_ready(w);
    }
    b.waiting.clear();
    b.arrived = 0;
    b.tokens.phase++;
    running_block->open_barriers &= ~(1u << number);
}

void barrier(int number, int threads, bool wait, site here)
{
    unwatched inside;
    block_barrier &b = running_block->barriers[number];
    if (threads % WARP != 0 || threads > static_cast<int>(running_block->threads.size())) {
        fail("invalid thread count: barrier %d for %d threads at %s:%d", number, threads, here.file,
             here.line);
    }
    if (b.arrived == 0) {
        b.expected = threads;
        b.first = here;
        running_block->open_barriers |= 1u << number;
    } else if (b.expected != threads) {
        fail("barrier %d is for %d threads at %s:%d and for %d at %s:%d", number, b.expected,
             b.first.file, b.first.line, threads, here.file, here.line);
    } else if (number == 0 &&
               (b.first.line != here.line || !is_same_text(b.first.file, here.file))) {
        fail("divergent __syncthreads: %s:%d and %s:%d", b.first.file, b.first.line, here.file,
             here.line);
    }
    const void *token = b.tokens.now();
    fiber_release(token);
    b.arrived++;
    bool last = b.arrived == (threads != 0 ? threads : running_block->live);
    if (last) {
        open_barrier(number);
    }
    if (wait) {
        if (last) {
            mark_ready(running_worker()); /* another thread may continue first */
        } else {
            b.waiting.push_back(running_worker());
        }
        sleep(number == 0 ? "__syncthreads" : "a named barrier", here);
        fiber_acquire(token);
    }
}

/* ---- rendezvous ---- */

static rendezvous &find_rendezvous(int warp, uint32_t mask)
{
    std::deque<rendezvous> &all = running_block->rendezvous_by_warp[static_cast<size_t>(warp)];
    for (rendezvous &m : all) {
        if (m.mask == mask) {
            return m;
        }
    }
    all.emplace_back();
    all.back().mask = mask;
    return all.back();
}

void sync_warp(uint32_t mask, const char *what, void *slot, rendezvous_work *work, bool ordered,
               site here)
{
    unwatched inside;
    worker *me = running_worker();
    if ((mask >> me->lane & 1) == 0) {
        fail("%s with mask %08x, which excludes the calling lane, at %s:%d", what, mask, here.file,
             here.line);
    }
    int lanes = static_cast<int>(running_block->threads.size()) - me->warp * WARP;
    if (lanes < WARP) {
        mask &= (uint32_t{1} << lanes) - 1;
    }
    rendezvous &m = find_rendezvous(me->warp, mask);
    if (m.arrived == 0) {
        m.what = what;
        m.first = here;
    } else if (m.first.line != here.line || !is_same_text(m.what, what)) {
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
                mark_ready(m.members[i]);
            }
        }
    } else {
        sleep(what, here);
    }
    if (ordered) {
        fiber_acquire(token);
    }
}

void sync_warpgroup(const char *what, void *slot, rendezvous_work *work, site here)
{
    unwatched inside;
    worker *me = running_worker();
    group_rendezvous &m = running_block->groups[static_cast<size_t>(me->number / WARPGROUP)];
    if (m.arrived == 0) {
        m.what = what;
    } else if (!is_same_text(m.what, what)) {
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
                mark_ready(w);
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
        fail("static shared arrays exceed %zu bytes", shared_static_max);
    }
    if (b.base_was_read) {
        fail("a static shared array moves dynamic shared memory after its address was read");
    }
    fiber_unpoison(b.memory + at, bytes + red_zone);
    memset(b.memory + at, 0xff, bytes + red_zone);
    fiber_poison(b.memory + at + bytes, red_zone);
    b.used = at + bytes + red_zone;
    b.static_bytes = (b.static_bytes + alignment - 1) / alignment * alignment + bytes;
    if (b.static_bytes + b.dynamic_bytes > shared_limit()) {
        fail("%zu bytes of static and %zu of dynamic shared memory exceed the limit",
             b.static_bytes, b.dynamic_bytes);
    }
    b.arrays.push_back({key, b.memory + at});
    return b.memory + at;
}

uint32_t shared_base()
{
    running_block->base_was_read = true;
    return static_cast<uint32_t>(shared_reserved + (running_block->static_bytes + 15) / 16 * 16);
}

size_t shared_limit()
{
    const char *text = getenv("SIMT_SHARED_MAX");
    return text != nullptr ? strtoull(text, nullptr, 10) : 227 << 10;
}

bool allow_shared(const void *kernel, size_t bytes)
{
    if (bytes > shared_limit()) {
        return false;
    }
    for (auto &entry : allowed) {
        if (entry.first == kernel) {
            entry.second = std::max(entry.second, bytes);
            return true;
        }
    }
    allowed.push_back({kernel, bytes});
    return true;
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

/* With the thread sanitizer, each block has a new mapping, so that the sanitizer discards the
 * accesses of the last block. */
static void map_shared(block_state &b, size_t dynamic_bytes)
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
    memset(b.memory, 0xff, dynamic_bytes + red_zone); /* shared_array() fills static arrays */
    b.late.assign(dynamic_bytes, 0xff);
    b.fenced = false;
    b.barriers_fenced = true;
    fiber_poison(b.memory + dynamic_bytes, shared_memory - dynamic_bytes);
}

/* ---- blocks ---- */

/* Ends a thread and selects the next one. */
static worker *end_worker(worker *me)
{
    unwatched inside;
    copy_check_none();
    me->finished = true;
    running_block->live--;
    for (int i = 0; running_block->open_barriers >> i != 0; i++) {
        const block_barrier &b = running_block->barriers[i];
        if (b.arrived > 0 && b.expected == 0 && b.arrived == running_block->live) {
            open_barrier(i);
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
    switch_to(me->run, end_worker(me));
    abort(); /* a finished thread is only restarted, never continued */
}

static void check_block_end(const block_state &b)
{
    for (int i = 0; i < BARRIERS; i++) {
        if (b.barriers[i].arrived > 0) {
            fail("a block ends, and no thread waits at barrier %d, where %d threads arrived at "
                 "%s:%d",
                 i, b.barriers[i].arrived, b.barriers[i].first.file, b.barriers[i].first.line);
        }
    }
    for (const group_rendezvous &g : b.groups) {
        if (!g.open.empty() || !g.groups.empty()) {
            fail("a block ends with a wgmma that was never waited for");
        }
    }
    if (!b.operations.empty()) {
        fail("a block ends with a pending TMA copy");
    }
}

/* Returns the state of a block of `count` threads, which reuses the memory of the last block. For
 * the thread sanitizer it is new, so that the sanitizer discards the tokens of the last block. */
static block_state *prepare_state(size_t count)
{
    static std::unique_ptr<block_state> state;
#ifdef SIMT_TSAN
    state.reset();
#endif
    if (state == nullptr) {
        state.reset(new block_state);
    }
    block_state &b = *state;
    b.threads.clear();
    b.arrays.clear();
    b.live = static_cast<int>(count);
    b.static_bytes = 0;
    b.base_was_read = false;
    b.rendezvous_by_warp.resize((count + WARP - 1) / WARP);
    for (std::deque<rendezvous> &all : b.rendezvous_by_warp) {
        all.clear();
    }
    b.groups.resize((count + WARPGROUP - 1) / WARPGROUP);
    for (group_rendezvous &g : b.groups) {
        g.arrived = 0;
    }
    return &b;
}

static void run_block(dim3 grid, dim3 size, size_t shared_bytes, dim3 block_index)
{
    size_t count = size_t{size.x} * size.y * size.z;
    block_state &b = *prepare_state(count);
    map_shared(b, shared_bytes);
    running_block = &b;
    /* The pool is larger than a block, so that the offset changes the fibers. For the thread
     * sanitizer, no fiber of a block was in the previous block: a barrier there would order its
     * accesses. */
#ifdef SIMT_TSAN
    const size_t spare = count, step = count;
#else
    const size_t spare = WARP, step = 37;
#endif
    while (pool.size() < count + spare) {
        pool.emplace_back();
    }
    pool_offset += step;
    for (size_t i = 0; i < count; i++) {
        worker *w = &pool[(i + pool_offset) % pool.size()];
        unsigned n = static_cast<unsigned>(i);
        w->index = dim3(n % size.x, n / size.x % size.y, n / (size.x * size.y));
        w->block = block_index;
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
        mark_ready(w);
    }
    self = nullptr;
    switch_to(host, next_worker());
    self = nullptr;
    check_block_end(b);
    running_block = nullptr;
}

static void check_launch(dim3 grid, dim3 size, size_t shared_bytes, bool shared_allowed)
{
    uint64_t threads = uint64_t{size.x} * size.y * size.z;
    if (threads == 0 || threads > THREADS_MAX || size.z > 64) {
        fail("invalid block of %u x %u x %u threads", size.x, size.y, size.z);
    }
    if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffffu || grid.y > 65535 ||
        grid.z > 65535) {
        fail("invalid grid of %u x %u x %u blocks", grid.x, grid.y, grid.z);
    }
    if (shared_bytes > shared_limit() || !shared_allowed) {
        fail("%zu bytes of dynamic shared memory %s", shared_bytes,
             shared_bytes <= shared_limit() ? "without gpu_allow_shared" : "exceed the limit");
    }
}

void launch(dim3 grid, dim3 size, size_t shared_bytes, bool shared_allowed,
            void (*body)(const void *context), const void *context)
{
    unwatched inside;
    read_settings();
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
        run_block(grid, size, shared_bytes,
                  dim3(static_cast<unsigned>(i % grid.x),
                       static_cast<unsigned>(i / grid.x % grid.y),
                       static_cast<unsigned>(i / grid.x / grid.y)));
    }
    fiber_acquire(&end_token);
}
} // namespace simt
