/* Where each rank of this host is: a table in memory that all of them see.
 *
 * The main thread writes its phase, and whether it waits for others; whoever loses patience (a wait's
 * deadline, the watchdog) reads the others' and can name them. A process without a table has one slot
 * of its own. Everything is atomic: writers never wait, a torn phase text harms nobody.
 *
 * The table also elects who speaks at the end: of all the ranks of a host that meet the same end at
 * the same time, only the first tells it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm_impl.h"

#define HEARTBEAT_PHASE_BYTES 32
#define HEARTBEAT_TEXT_BYTES 160

/* heartbeat_bytes - memory of a table for so many ranks; filled with zeros before it is attached. */
size_t heartbeat_bytes(int local_ranks);

/* heartbeat_attach - this process is slot `mine` of the table; hosts [ranks][COMM_HOST_BYTES] names the
 * host of each rank of the world and is the caller's, for as long as the table is attached.
 * memory NULL: this process cannot share a table, and sees only itself. */
void heartbeat_attach(void *memory, int local_ranks, int mine, int rank, int ranks,
                      const char *hosts);
void heartbeat_detach(void);

void heartbeat_phase(const char *phase, double limit_seconds);

/* heartbeat_waiting - the main thread waits for other ranks: its own silence is not its fault. */
void heartbeat_waiting(bool waiting);

/* What can be seen of one slot. */
struct heartbeat_view {
    int rank;        /* of the world; -1: nobody has come yet */
    uint64_t serial; /* grows with each phase */
    char phase[HEARTBEAT_PHASE_BYTES];
    double seconds; /* in this phase, by the host's monotonic clock */
    double limit_seconds;
    bool waiting;
};

int heartbeat_slots(void);
int heartbeat_mine(void);
struct heartbeat_view heartbeat_view(int slot);

/* heartbeat_describe - "rank 2 host h in phase 'data' for 17.2 s (stopped)"; for ranks of other hosts
 * the host alone. Units: rank of the world. */
void heartbeat_describe(int rank, char text[HEARTBEAT_TEXT_BYTES]);

/* heartbeat_claim_end - whether this process is the one of its host that may tell the end. */
bool heartbeat_claim_end(void);
