/* The heartbeat table: the state of each rank of this host, in shared memory.
 *
 *   phase  The named activity of the main thread of a rank, with a time limit.
 *   slot   The entry of one rank: its phase, and whether it waits for other ranks. A process
 *          without a shared table has a single slot.
 *   beat   A check of the watchdog thread. A process that has this thread, but no new beats, is
 *          stopped.
 *
 * The main thread writes its slot. If a wait misses its deadline, it reads the other slots and
 * names the late ranks. The watchdog does the same. All fields are atomic, so writers never wait. A
 * reader may get a mixture of two phase names; this affects only the text of an error.
 *
 * The table also elects the process that prints the final error: if several ranks of a host end at
 * the same time, only the first one prints.
 *
 * Calls     heartbeat_attach; heartbeat_set_phase, heartbeat_renew and heartbeat_waiting during the
 *           work; heartbeat_detach. heartbeat_read and heartbeat_describe at any time */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm_impl.h"

#define HEARTBEAT_PHASE_BYTES 32
#define HEARTBEAT_TEXT_BYTES 160

/* heartbeat_bytes - return the size of a table for this number of ranks.
 *
 * Memory    the caller fills it with zeros before heartbeat_attach */
size_t heartbeat_bytes(int local_ranks);

/* heartbeat_attach - use slot `local_rank` of the table for this process.
 *
 * Shapes    hosts [ranks][COMM_HOST_BYTES]: host name of each rank of the world
 * Memory    hosts belongs to the caller and stays valid until heartbeat_detach. With memory NULL
 *           this process has a single slot. */
void heartbeat_attach(void *memory, int local_ranks, int local_rank, int rank, int ranks,
                      const char *hosts);

/* heartbeat_detach - stop using the table; the process has a single slot again. */
void heartbeat_detach(void);

/* heartbeat_set_phase - set the phase of the main thread and reset its timer.
 *
 * Units     limit_seconds: 0 for the default */
void heartbeat_set_phase(const char *phase, double limit_seconds);

/* heartbeat_renew - reset the timer of the current phase. */
void heartbeat_renew(void);

/* heartbeat_waiting - mark the main thread as waiting for other ranks; repeat it in each poll. */
void heartbeat_waiting(bool waiting);

/* heartbeat_beat - count one check of this process's watchdog thread. While the thread runs, the
 * process is not stopped, however long its phase takes. */
void heartbeat_beat(void);

/* heartbeat_end_beats - reset the count: this process has no watchdog thread any more. */
void heartbeat_end_beats(void);

/* The content of one slot. */
struct heartbeat_view {
    int rank;        /* in the world; -1: not attached yet */
    uint64_t serial; /* incremented with each phase and each renewal */
    uint64_t beats;  /* checks of the watchdog thread; 0: there is no such thread */
    char phase[HEARTBEAT_PHASE_BYTES];
    double seconds; /* time in this phase, by the host's monotonic clock */
    double limit_seconds;
    bool waiting;
};

/* heartbeat_slot_count - return the number of slots of the table. */
int heartbeat_slot_count(void);

/* heartbeat_own_slot - return the slot of this process. */
int heartbeat_own_slot(void);

/* heartbeat_read - read a slot. */
struct heartbeat_view heartbeat_read(int slot);

/* heartbeat_describe - write "rank 2 host h in phase 'data' for 17.2 s (process is stopped)".
 *
 * For a rank of another host it writes only the rank and the host.
 *
 * Units     rank: in the world */
void heartbeat_describe(int rank, char text[HEARTBEAT_TEXT_BYTES]);

/* heartbeat_claim_end - return true in the first process of the host that calls it.
 *
 * That process prints the final error. */
bool heartbeat_claim_end(void);
