#include "comm/watchdog/heartbeat.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/deadlines.h"

#define PHASE_WORDS (HEARTBEAT_PHASE_BYTES / 8)

struct slot {
    _Alignas(128) _Atomic uint64_t serial;
    _Atomic uint64_t beats;
    _Atomic uint64_t phase[PHASE_WORDS];
    _Atomic uint64_t phase_start;   /* bits of a double: seconds of the host's monotonic clock */
    _Atomic uint64_t limit_seconds; /* bits of a double */
    _Atomic int rank;               /* rank + 1; 0: not attached yet */
    _Atomic int pid;
    /* bits of a double: last renewal of the waiting mark; 0: not waiting */
    _Atomic uint64_t wait_renewed_at;
};

struct table {
    _Alignas(128) _Atomic int ended_by_pid; /* pid of the process that prints the final error */
    struct slot slots[];
};

static struct {
    struct slot slot;
    _Atomic int ended_by_pid;
} single = {.slot.rank = 1};

static struct table *table; /* NULL: no shared table */
static int slot_count = 1;
static int own_slot;
static int world_size = 1;
static const char *host_names;

static uint64_t double_to_bits(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static double bits_to_double(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static struct slot *get_slot(int index)
{
    return table == NULL ? &single.slot : &table->slots[index];
}

size_t heartbeat_bytes(int local_ranks)
{
    return sizeof(struct table) + (size_t)local_ranks * sizeof(struct slot) + 128;
}

static struct table *align_table(void *memory)
{
    return (struct table *)(((uintptr_t)memory + 127) / 128 * 128);
}

void heartbeat_attach(void *memory, int local_ranks, int local_rank, int rank, int ranks,
                      const char *hosts)
{
    table = memory == NULL ? NULL : align_table(memory);
    slot_count = memory == NULL ? 1 : local_ranks;
    own_slot = memory == NULL ? 0 : local_rank;
    world_size = ranks;
    host_names = hosts;
    struct slot *slot = get_slot(own_slot);
    atomic_store(&slot->pid, (int)getpid());
    heartbeat_set_phase("init", 0);
    atomic_store(&slot->rank, rank + 1);
}

void heartbeat_detach(void)
{
    table = NULL;
    slot_count = 1;
    own_slot = 0;
    world_size = 1;
    host_names = NULL;
    atomic_store(&single.slot.rank, 1);
}

void heartbeat_set_phase(const char *phase, double limit_seconds)
{
    struct slot *slot = get_slot(own_slot);
    uint64_t words[PHASE_WORDS] = {0};
    size_t length = strnlen(phase, HEARTBEAT_PHASE_BYTES - 1);
    memcpy(words, phase, length);
    for (int i = 0; i < PHASE_WORDS; i++) {
        atomic_store_explicit(&slot->phase[i], words[i], memory_order_relaxed);
    }
    atomic_store_explicit(&slot->limit_seconds, double_to_bits(limit_seconds),
                          memory_order_relaxed);
    heartbeat_renew();
}

void heartbeat_renew(void)
{
    struct slot *slot = get_slot(own_slot);
    atomic_store_explicit(&slot->phase_start, double_to_bits(clock_seconds()),
                          memory_order_relaxed);
    atomic_fetch_add_explicit(&slot->serial, 1, memory_order_release);
}

void heartbeat_waiting(bool waiting)
{
    uint64_t at = waiting ? double_to_bits(clock_seconds()) : 0;
    atomic_store_explicit(&get_slot(own_slot)->wait_renewed_at, at, memory_order_relaxed);
}

void heartbeat_beat(void)
{
    atomic_fetch_add_explicit(&get_slot(own_slot)->beats, 1, memory_order_relaxed);
}

void heartbeat_end_beats(void)
{
    atomic_store_explicit(&get_slot(own_slot)->beats, 0, memory_order_relaxed);
}

int heartbeat_slot_count(void)
{
    return slot_count;
}

int heartbeat_own_slot(void)
{
    return own_slot;
}

struct heartbeat_view heartbeat_read(int index)
{
    struct slot *slot = get_slot(index);
    double now = clock_seconds();
    double wait_renewed_at = bits_to_double(atomic_load(&slot->wait_renewed_at));
    struct heartbeat_view view = {
        .rank = atomic_load(&slot->rank) - 1,
        .serial = atomic_load(&slot->serial),
        .beats = atomic_load(&slot->beats),
        .waiting = wait_renewed_at > 0 && now - wait_renewed_at < DEADLINE_STALE_SECONDS,
        .limit_seconds = bits_to_double(atomic_load(&slot->limit_seconds)),
        .seconds = now - bits_to_double(atomic_load(&slot->phase_start))};
    uint64_t words[PHASE_WORDS];
    for (int i = 0; i < PHASE_WORDS; i++) {
        words[i] = atomic_load_explicit(&slot->phase[i], memory_order_relaxed);
    }
    memcpy(view.phase, words, sizeof view.phase);
    view.phase[sizeof view.phase - 1] = '\0';
    return view;
}

/* Returns what the kernel reports about a process. */
static const char *describe_process_state(int pid)
{
    char path[64];
    char line[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return " (process does not exist)";
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
        return " (process is stopped)";
    case 'Z':
    case 'X':
        return " (process is dead)";
    case 'D':
        return " (process waits for a device or file system)";
    default:
        return "";
    }
}

void heartbeat_describe(int rank, char text[HEARTBEAT_TEXT_BYTES])
{
    const char *host = host_names == NULL || rank < 0 || rank >= world_size
                           ? "unknown"
                           : host_names + (size_t)rank * COMM_HOST_BYTES;
    for (int i = 0; i < slot_count; i++) {
        struct heartbeat_view view = heartbeat_read(i);
        if (view.rank == rank) {
            snprintf(text, HEARTBEAT_TEXT_BYTES, "rank %d host %.40s in phase '%s' for %.1f s%s",
                     rank, host, view.phase, view.seconds,
                     describe_process_state(atomic_load(&get_slot(i)->pid)));
            return;
        }
    }
    snprintf(text, HEARTBEAT_TEXT_BYTES, "rank %d host %.40s (another host: phase unknown)", rank,
             host);
}

bool heartbeat_claim_end(void)
{
    _Atomic int *ended_by_pid = table == NULL ? &single.ended_by_pid : &table->ended_by_pid;
    int no_pid = 0;
    return atomic_compare_exchange_strong(ended_by_pid, &no_pid, (int)getpid());
}
