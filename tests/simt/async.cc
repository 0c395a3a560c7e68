/* Asynchronous operations of the emulator: cp.async, mbarrier with TMA, wgmma. */
#include <cstdio>

#include "tests/simt/block.h"

namespace simt
{
/* ---- cp.async: groups of each thread ---- */

void copy_async(copy c, site here)
{
    unwatched inside;
    if (reinterpret_cast<uintptr_t>(c.to) % 16 != 0 ||
        reinterpret_cast<uintptr_t>(c.from) % 16 != 0) {
        fail("cp.async of 16 bytes from %p to %p at %s:%d", c.from, c.to, here.file, here.line);
    }
    worker *me = running_worker();
    me->has_copies = true;
    me->copies.push_back(c);
}

void copy_commit()
{
    unwatched inside;
    worker *me = running_worker();
    me->has_copies = true;
    me->groups.push_back(me->copies.size());
}

/* Removes the copies and groups that are complete. */
static void remove_done(worker *me)
{
    me->copies.erase(me->copies.begin(),
                     me->copies.begin() + static_cast<std::ptrdiff_t>(me->copies_done));
    me->groups.erase(me->groups.begin(),
                     me->groups.begin() + static_cast<std::ptrdiff_t>(me->groups_done));
    for (size_t &end : me->groups) {
        end -= me->copies_done;
    }
    me->copies_done = me->groups_done = 0;
}

int copy_due(int groups_left, const copy **copies)
{
    unwatched inside;
    worker *me = running_worker();
    remove_done(me);
    size_t left = static_cast<size_t>(groups_left);
    if (me->groups.size() > left) {
        me->groups_done = me->groups.size() - left;
        me->copies_done = me->groups[me->groups_done - 1];
    }
    *copies = me->copies.data();
    return static_cast<int>(me->copies_done);
}

void copy_check_none()
{
    worker *me = running_worker();
    if (!me->has_copies) {
        return;
    }
    if (me->copies.size() > me->copies_done) {
        fail("a thread ends with a cp.async that was never waited for");
    }
    if (!me->bulk_open.empty() || !me->bulk_committed.empty()) {
        fail("a thread ends with a bulk copy that was never waited for");
    }
    me->copies.clear();
    me->groups.clear();
    me->copies_done = me->groups_done = 0;
    me->has_copies = false;
}

/* ---- mbarrier: a phase is complete after all its arrivals and all its bytes ---- */

static const uint16_t phase_bit = 0x8000;

/* Two addresses within the barrier are the tokens of its two phases. */
static const void *phase_token(const gpu_mbarrier *b, int phase)
{
    return reinterpret_cast<const char *>(b) + 4 * (phase & 1);
}

static int get_phase(const gpu_mbarrier *b)
{
    return (b->expected_and_phase & phase_bit) != 0 ? 1 : 0;
}

static void complete_phase(gpu_mbarrier *b)
{
    if (b->pending == 0 && b->bytes == 0) {
        b->pending = b->expected_and_phase & static_cast<uint16_t>(~phase_bit);
        b->expected_and_phase ^= phase_bit;
        wake(b);
    }
}

static void receive_bytes(gpu_mbarrier *b, int bytes)
{
    b->bytes -= bytes;
    complete_phase(b);
}
} // namespace simt

using namespace simt;

void gpu_mbarrier_init(gpu_mbarrier *b, int arrivals)
{
    unwatched inside;
    *b = {0, static_cast<uint16_t>(arrivals), static_cast<uint16_t>(arrivals)};
    running_block->barriers_fenced = false;
}

void gpu_mbarrier_arrive(gpu_mbarrier *b, site here)
{
    unwatched inside;
    if (b->pending == 0 || b->pending > phase_bit) {
        fail("mbarrier: one arrival too many, or not initialized, at %s:%d", here.file, here.line);
    }
    fiber_release(phase_token(b, get_phase(b)));
    b->pending--;
    complete_phase(b);
}

void gpu_mbarrier_expect(gpu_mbarrier *b, int bytes, site here)
{
    {
        unwatched inside;
        b->bytes += bytes;
    }
    gpu_mbarrier_arrive(b, here);
}

void gpu_mbarrier_wait(gpu_mbarrier *b, int phase, site here)
{
    unwatched inside;
    while (get_phase(b) == (phase & 1)) {
        wait_for(b, "an mbarrier", here);
    }
    fiber_acquire(phase_token(b, phase));
}

/* ---- turns of blocks ---- */

uint32_t gpu_take_ticket(uint32_t *counter)
{
    unwatched inside; /* relaxed: it orders no other access */
    return (*counter)++;
}

void gpu_turn_wait(const uint32_t *turn, uint32_t count, site here)
{
    unwatched inside;
    while (*turn != count) {
        wait_for(turn, "a turn", here);
    }
    fiber_acquire(turn);
    running_worker()->turn_fenced = false;
}

void gpu_fence_async_global()
{
    unwatched inside;
    running_worker()->turn_fenced = true;
}

void gpu_turn_pass(uint32_t *turn)
{
    unwatched inside;
    fiber_release(turn);
    ++*turn;
    wake(turn);
}

/* ---- TMA ---- */

namespace simt
{
struct tma_box {
    size_t to; /* address in shared memory */
    gpu_map map;
    int column, row;
    gpu_mbarrier *barrier;
};

/* Returns the offset in dynamic shared memory of an address with bits 4..6 xor-ed with bits
 * 7..9. */
static size_t swizzled_offset(size_t address)
{
    size_t offset = (address ^ ((address >> 7 & 7) << 4)) - shared_base();
    if (offset + sizeof(uint16_t) > running_block->dynamic_bytes) {
        fail("TMA or wgmma: address 0x%zx is not in dynamic shared memory", address);
    }
    return offset;
}

static void copy_tma_box(const void *context)
{
    tma_box b;
    memcpy(&b, context, sizeof b);
    auto *from = static_cast<const uint16_t *>(b.map.base);
    for (int r = 0; r < b.map.box_rows; r++) {
        for (int c = 0; c < b.map.box_columns; c++) {
            int64_t row = b.row + r, column = b.column + c;
            bool inside = row >= 0 && row < b.map.rows && column >= 0 && column < b.map.columns;
            uint16_t value = inside ? from[row * b.map.stride + column] : 0;
            size_t at = static_cast<size_t>(r * b.map.box_columns + c) * sizeof value;
            memcpy(running_block->memory + swizzled_offset(b.to + at), &value, sizeof value);
            memcpy(&running_block->late[swizzled_offset(b.to + at)], &value, sizeof value);
        }
    }
    receive_bytes(b.barrier, b.map.box_rows * b.map.box_columns * 2);
}

/* ---- bulk copies ---- */

/* Lets TMA and wgmma read the writes of threads, if a fence followed them. */
static void make_writes_visible()
{
    if (running_block->fenced) {
        running_block->fenced = false;
        memcpy(running_block->late.data(), running_block->memory, running_block->dynamic_bytes);
    }
}

/* Returns the offset in dynamic shared memory of `bytes` bytes. */
static size_t check_bulk_copy(const void *global, const void *shared, int bytes, site here)
{
    size_t offset = gpu_shared_address(shared) - shared_base();
    if (reinterpret_cast<uintptr_t>(global) % 16 != 0 || gpu_shared_address(shared) % 16 != 0 ||
        bytes % 16 != 0) {
        fail("bulk copy of %d bytes between %p and %p at %s:%d: not a multiple of 16", bytes,
             global, shared, here.file, here.line);
    }
    if (bytes <= 0 || offset + static_cast<size_t>(bytes) > running_block->dynamic_bytes) {
        fail("bulk copy of %d bytes, not in dynamic shared memory, at %s:%d", bytes, here.file,
             here.line);
    }
    return offset;
}

static void check_turn_fenced(site here)
{
    if (!running_worker()->turn_fenced) {
        fail("bulk copy: no fence.proxy.async.global after the wait for a turn, at %s:%d",
             here.file, here.line);
    }
}

void bulk_copy_begin(float *to, const void *from, int bytes, bool add, site here)
{
    unwatched inside;
    check_turn_fenced(here);
    size_t offset = check_bulk_copy(to, from, bytes, here);
    make_writes_visible();
    running_worker()->has_copies = true;
    running_worker()->bulk_open.push_back(
        {to,
         reinterpret_cast<const float *>(&running_block->late[offset]),
         bytes / int{sizeof(float)},
         add,
         {}});
}

void bulk_copy_commit()
{
    unwatched inside;
    worker *me = running_worker();
    me->bulk_committed.insert(me->bulk_committed.end(), me->bulk_open.begin(), me->bulk_open.end());
    me->bulk_open.clear();
}

/* The flag is the event for which the thread waits. */
static void end_bulk_copy(const void *context)
{
    bool *ended;
    memcpy(&ended, context, sizeof ended);
    *ended = true;
    wake(ended);
}

static void wait_for_bulk_copies(const worker *me, site here)
{
    bool ended = me->bulk_committed.empty(), *context = &ended;
    if (!ended) {
        add_operation(end_bulk_copy, &context, sizeof context, &ended);
    }
    while (!ended) {
        wait_for(&ended, "bulk copies", here);
    }
}

void bulk_copy_read(site here)
{
    unwatched inside;
    worker *me = running_worker();
    wait_for_bulk_copies(me, here);
    for (bulk_copy &c : me->bulk_committed) {
        if (c.values.empty()) {
            c.values.assign(c.from, c.from + c.count);
            c.from = c.values.data();
        }
    }
}

int bulk_copy_due(const bulk_copy **copies, site here)
{
    unwatched inside;
    worker *me = running_worker();
    wait_for_bulk_copies(me, here);
    me->bulk_due = std::move(me->bulk_committed);
    me->bulk_committed.clear();
    *copies = me->bulk_due.data();
    return static_cast<int>(me->bulk_due.size());
}

struct bulk_load {
    size_t offset;
    const float *from;
    int bytes;
    gpu_mbarrier *barrier;
};

static void copy_bulk_load(const void *context)
{
    bulk_load l;
    memcpy(&l, context, sizeof l);
    memcpy(running_block->memory + l.offset, l.from, static_cast<size_t>(l.bytes));
    memcpy(&running_block->late[l.offset], l.from, static_cast<size_t>(l.bytes));
    receive_bytes(l.barrier, l.bytes);
}

/* ---- wgmma ---- */

struct wgmma_slot {
    float *d;
    const uint32_t *registers;
    int columns;
    wgmma_form form;
    uint64_t a, b;
    bool add;
};

static group_rendezvous &get_warpgroup()
{
    return running_block->groups[static_cast<size_t>(self->number / WARPGROUP)];
}

static void issue_wgmma(void *const *slots, uint32_t)
{
    auto *first = static_cast<const wgmma_slot *>(slots[0]);
    issued_wgmma p = {{}, {}, first->columns, first->form, first->a, first->b, first->add};
    for (int i = 0; i < WARPGROUP; i++) {
        auto *s = static_cast<const wgmma_slot *>(slots[i]);
        if (s->a != p.a || s->b != p.b || s->add != p.add || s->columns != p.columns ||
            s->form != p.form) {
            fail("wgmma: operands differ within the warpgroup");
        }
        p.d[i] = s->d;
        p.registers[i] = s->registers;
    }
    get_warpgroup().open.push_back(p);
    make_writes_visible();
}

/* Returns the number at a byte offset from the start address of a descriptor. */
static float read_tile(uint64_t descriptor, size_t bytes)
{
    size_t at = ((descriptor & 0x3fff) << 4) + bytes;
    uint16_t value;
    memcpy(&value, &running_block->late[swizzled_offset(at)], sizeof value);
    return gpu_from_bits(uint32_t{value} << 16);
}

/* Returns element (row, k) of a K-major tile with rows of 128 bytes, eight rows for each KiB. */
static float read_row_element(uint64_t descriptor, int row, int k)
{
    size_t eight_rows = (descriptor >> 32 & 0x3fff) << 4;
    return read_tile(descriptor, static_cast<size_t>(row / 8) * eight_rows +
                                     static_cast<size_t>(row % 8) * 128 +
                                     static_cast<size_t>(k) * 2);
}

/* Returns element (k, column) of a tile with one row for each k. Columns from 64 on are in another
 * tile. */
static float read_column_element(uint64_t descriptor, int k, int column)
{
    size_t eight_rows = (descriptor >> 32 & 0x3fff) << 4;
    size_t next_columns = (descriptor >> 16 & 0x3fff) << 4;
    return read_tile(descriptor, static_cast<size_t>(column / 64) * next_columns +
                                     static_cast<size_t>(k / 8) * eight_rows +
                                     static_cast<size_t>(k % 8) * 128 +
                                     static_cast<size_t>(column % 64) * 2);
}

/* Returns element (row, k) of A from the fragments of the warps. */
static float read_fragment_element(const issued_wgmma &p, int row, int k)
{
    int lane = row % 8 * 4 + k % 8 / 2, word = row % 16 / 8 + k / 8 * 2;
    uint32_t pair = p.registers[row / 16 * WARP + lane][word];
    return gpu_from_bits((k % 2 == 0 ? pair : pair >> 16) << 16);
}

static void compute_wgmma(const issued_wgmma &p)
{
    float a[64][16], b[128][16];
    for (int k = 0; k < 16; k++) {
        for (int i = 0; i < 64; i++) {
            a[i][k] = p.form == WGMMA_REGISTERS ? read_fragment_element(p, i, k)
                      : p.form == WGMMA_ROWS    ? read_row_element(p.a, i, k)
                                                : read_column_element(p.a, k, i);
        }
        for (int i = 0; i < 8 * p.columns; i++) {
            b[i][k] =
                p.form == WGMMA_ROWS ? read_row_element(p.b, i, k) : read_column_element(p.b, k, i);
        }
    }
    for (int t = 0; t < WARPGROUP; t++) {
        int warp = t / WARP, g = t % WARP / 4, q = t % 4;
        for (int i = 0; i < 4 * p.columns; i++) {
            int row = 16 * warp + g + 8 * (i / 2 % 2), column = i / 4 * 8 + 2 * q + i % 2;
            float sum = p.add ? p.d[t][i] : 0.0f;
            for (int k = 0; k < 16; k++) {
                sum += a[row][k] * b[column][k];
            }
            p.d[t][i] = sum;
        }
    }
}

void wgmma(float *d, int columns, wgmma_form form, const uint32_t *a_registers, uint64_t a,
           uint64_t b, bool add, site here)
{
    if ((form != WGMMA_REGISTERS && (a >> 62) != 1) || (b >> 62) != 1) {
        fail("wgmma: a descriptor without the 128-byte swizzle at %s:%d", here.file, here.line);
    }
    if (!running_worker()->wgmma_fenced) {
        fail("wgmma: no wgmma.fence since the last wait, which released its registers, at %s:%d",
             here.file, here.line);
    }
    wgmma_slot slot = {d, a_registers, columns, form, a, b, add};
    sync_warpgroup("wgmma", &slot, issue_wgmma, here);
}

static void commit_group(void *const *, uint32_t)
{
    group_rendezvous &g = get_warpgroup();
    g.groups.push_back(std::move(g.open));
    g.open.clear();
}

void wgmma_commit(site here)
{
    sync_warpgroup("wgmma.commit_group", nullptr, commit_group, here);
}

static void wait_groups(void *const *slots, uint32_t)
{
    group_rendezvous &g = get_warpgroup();
    while (static_cast<int>(g.groups.size()) > *static_cast<const int *>(slots[0])) {
        for (const issued_wgmma &p : g.groups.front()) {
            compute_wgmma(p);
        }
        g.groups.pop_front();
    }
}

void wgmma_wait(int groups_left, site here)
{
    sync_warpgroup("wgmma.wait_group", &groups_left, wait_groups, here);
    running_worker()->wgmma_fenced = false;
}
} // namespace simt

void gpu_wgmma_fence()
{
    running_worker()->wgmma_fenced = true;
}

void gpu_fence_async()
{
    unwatched inside;
    running_block->fenced = running_block->barriers_fenced = true;
}

static void check_barriers_fenced(site here)
{
    if (!running_block->barriers_fenced) {
        fail("TMA: no fence.proxy.async after the initialization of an mbarrier, at %s:%d",
             here.file, here.line);
    }
}

void gpu_bulk_load(void *to, const float *from, int bytes, gpu_mbarrier *b, site here)
{
    unwatched inside;
    check_barriers_fenced(here);
    check_turn_fenced(here);
    bulk_load l = {check_bulk_copy(from, to, bytes, here), from, bytes, b};
    make_writes_visible();
    add_operation(copy_bulk_load, &l, sizeof l, b);
}

void gpu_copy_box(void *to, const gpu_map *map, int column, int row, gpu_mbarrier *b, site here)
{
    unwatched inside;
    check_barriers_fenced(here);
    tma_box copied = {gpu_shared_address(to), *map, column, row, b};
    if (copied.to % 1024 != 0) {
        fail("TMA: the address of a swizzled box is not a multiple of 1024 at %s:%d", here.file,
             here.line);
    }
    add_operation(copy_tma_box, &copied, sizeof copied, b);
}
