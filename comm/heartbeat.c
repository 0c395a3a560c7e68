#include "comm/heartbeat.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

#define PHASE_WORDS (HEARTBEAT_PHASE_BYTES / 8)
#define STALE_SECONDS                                                                              \
    2.0 /* a rank that says it waits, but has not said so for this long, is stuck */

struct slot {
    _Alignas(128) _Atomic uint64_t serial;
    _Atomic uint64_t phase[PHASE_WORDS];
    _Atomic uint64_t since; /* the bits of a double: seconds of the host's monotonic clock */
    _Atomic uint64_t limit; /* likewise */
    _Atomic int rank;       /* rank + 1; 0: not here yet */
    _Atomic int pid;
    _Atomic uint64_t waited_at; /* likewise; renewed as long as the rank waits, 0: it does not */
};

struct table {
    _Alignas(128) _Atomic int ended_by; /* pid of the process that tells the end */
    struct slot slots[];
};

static struct {
    struct slot slot;
    _Atomic int ended_by;
} alone = {.slot.rank = 1};

static struct table *table; /* NULL: this process is alone */
static int slots = 1;
static int mine;
static int ranks = 1;
static const char *hosts;

static uint64_t bits_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double double_of(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static struct slot *slot_at(int index)
{
    return table == NULL ? &alone.slot : &table->slots[index];
}

size_t heartbeat_bytes(int local_ranks)
{
    return sizeof(struct table) + (size_t)local_ranks * sizeof(struct slot) + 128;
}

static struct table *aligned(void *memory)
{
    return (struct table *)(((uintptr_t)memory + 127) / 128 * 128);
}

void heartbeat_attach(void *memory, int local_ranks, int place, int rank, int world_ranks,
                      const char *host_names)
{
    table = memory == NULL ? NULL : aligned(memory);
    slots = memory == NULL ? 1 : local_ranks;
    mine = memory == NULL ? 0 : place;
    ranks = world_ranks;
    hosts = host_names;
    struct slot *slot = slot_at(mine);
    atomic_store(&slot->pid, (int)getpid());
    heartbeat_phase("init", 0);
    atomic_store(&slot->rank, rank + 1);
}

void heartbeat_detach(void)
{
    table = NULL;
    slots = 1;
    mine = 0;
    ranks = 1;
    hosts = NULL;
    atomic_store(&alone.slot.rank, 1);
}

void heartbeat_phase(const char *phase, double limit_seconds)
{
    struct slot *slot = slot_at(mine);
    uint64_t words[PHASE_WORDS] = {0};
    size_t length = strnlen(phase, HEARTBEAT_PHASE_BYTES - 1);
    memcpy(words, phase, length);
    for (int i = 0; i < PHASE_WORDS; i++) {
        atomic_store_explicit(&slot->phase[i], words[i], memory_order_relaxed);
    }
    atomic_store_explicit(&slot->since, bits_of(clock_seconds()), memory_order_relaxed);
    atomic_store_explicit(&slot->limit, bits_of(limit_seconds), memory_order_relaxed);
    atomic_fetch_add_explicit(&slot->serial, 1, memory_order_release);
}

void heartbeat_waiting(bool waiting)
{
    uint64_t at = waiting ? bits_of(clock_seconds()) : 0;
    atomic_store_explicit(&slot_at(mine)->waited_at, at, memory_order_relaxed);
}

int heartbeat_slots(void)
{
    return slots;
}

int heartbeat_mine(void)
{
    return mine;
}

struct heartbeat_view heartbeat_view(int index)
{
    struct slot *slot = slot_at(index);
    double now = clock_seconds();
    double waited_at = double_of(atomic_load(&slot->waited_at));
    struct heartbeat_view view = {.rank = atomic_load(&slot->rank) - 1,
                                  .serial = atomic_load(&slot->serial),
                                  .waiting = waited_at > 0 && now - waited_at < STALE_SECONDS,
                                  .limit_seconds = double_of(atomic_load(&slot->limit)),
                                  .seconds = now - double_of(atomic_load(&slot->since))};
    uint64_t words[PHASE_WORDS];
    for (int i = 0; i < PHASE_WORDS; i++) {
        words[i] = atomic_load_explicit(&slot->phase[i], memory_order_relaxed);
    }
    memcpy(view.phase, words, sizeof view.phase);
    view.phase[sizeof view.phase - 1] = '\0';
    return view;
}

/* What the kernel says about a process that does not answer. */
static const char *process_state(int pid)
{
    char path[64];
    char line[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return " (its process is gone)";
    }
    bool whole = fgets(line, sizeof line, file) != NULL;
    fclose(file);
    const char *end = whole ? strrchr(line, ')') : NULL;
    if (end == NULL || end[1] == '\0') {
        return "";
    }
    switch (end[2]) {
    case 'T':
    case 't':
        return " (its process is stopped)";
    case 'Z':
    case 'X':
        return " (its process is dead)";
    case 'D':
        return " (its process waits for a device or file system)";
    default:
        return "";
    }
}

void heartbeat_describe(int rank, char text[HEARTBEAT_TEXT_BYTES])
{
    const char *host = hosts == NULL || rank < 0 || rank >= ranks
                           ? "unknown"
                           : hosts + (size_t)rank * COMM_HOST_BYTES;
    for (int i = 0; i < slots; i++) {
        struct heartbeat_view view = heartbeat_view(i);
        if (view.rank == rank) {
            snprintf(text, HEARTBEAT_TEXT_BYTES, "rank %d host %.40s in phase '%s' for %.1f s%s",
                     rank, host, view.phase, view.seconds,
                     process_state(atomic_load(&slot_at(i)->pid)));
            return;
        }
    }
    snprintf(text, HEARTBEAT_TEXT_BYTES, "rank %d host %.40s (another host: phase unknown)", rank,
             host);
}

bool heartbeat_claim_end(void)
{
    _Atomic int *ended_by = table == NULL ? &alone.ended_by : &table->ended_by;
    int nobody = 0;
    return atomic_compare_exchange_strong(ended_by, &nobody, (int)getpid());
}
