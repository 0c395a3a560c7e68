/* What the communicators of this room share and nobody outside may see: the table that each kind of
 * communicator fills, and how a wait is passed. */
#pragma once

#include <stdatomic.h>

#include "comm/comm.h"

/* The most that one exchange carries per rank; larger small collectives are cut into pieces. */
#define COMM_SMALL_BYTES ((size_t)4096)
#define COMM_HOST_BYTES 65
#define COMM_DEADLINE_SECONDS 300.0

enum comm_collective {
    COMM_ALL_REDUCE = 1,
    COMM_REDUCE_SCATTER,
    COMM_ALL_GATHER,
    COMM_BROADCAST,
    COMM_ADD,
};
#define COMM_KINDS ((int)COMM_ADD + 1)

/* A collective on large data, whichever: sums where `reduces`, moves where `gathers`. */
struct comm_work {
    enum comm_collective kind;
    char *data;
    size_t element_bytes;
    int64_t count;              /* all-reduce, broadcast */
    const struct range *ranges; /* reduce-scatter, all-gather, add: [size] */
    int root;                   /* broadcast */
    struct comm_addition addition;
    char *
        lent; /* all-gather: where ranks may fetch each other's parts; NULL: each writes its own to all */
    const struct range *places; /* of lent: [size] */
};

/* A device's communicator has neither exchange nor end: its control answers. */
struct comm_operations {
    const char *kind;
    bool adds; /* COMM_ADD is among what it starts */
    status (*destroy)(struct comm **comm);
    status (*split)(struct comm *comm, int colour, int key, struct comm **out);
    status (*allocate)(struct comm *comm, size_t bytes, void **out);
    status (*release)(struct comm *comm, void *memory);
    /* mine[bytes] of every rank reaches all[size][bytes]; bytes <= COMM_SMALL_BYTES */
    status (*exchange)(struct comm *comm, void *all, const void *mine, size_t bytes);
    /* *out stays NULL where the work is complete on return */
    status (*start)(struct comm *comm, const struct comm_work *work, struct comm_request **out);
    status (*progress)(struct comm *comm);
    status (*wait)(struct comm *comm, struct comm_request **request);
    /* until this rank has got everything; NULL: as wait, and nothing is lent */
    status (*fetch)(struct comm *comm, struct comm_request *request);
    /* end all ranks with this exit code; any thread; may return */
    void (*end)(int code);
};

struct comm {
    const struct comm_operations *operations;
    void *state; /* the kind's own */
    struct comm
        *control; /* of a device's communicator: the one between hosts that it was made over */
    int rank;
    int size;
    int local_rank;
    int local_ranks;
    bool is_world;
    double deadline_seconds;
    char *small; /* [size][COMM_SMALL_BYTES], what an exchange brought */

    /* measured communication (comm.c) */
    int depth;     /* public calls on the stack: only the outermost is timed */
    int in_flight; /* started, not complete */
    bool exposed;  /* the public call on the stack has something under way */
    double entered;
    struct comm_times times;
    double byte_seconds[COMM_KINDS]; /* rehearsed; 0: not */
    enum comm_collective newest;     /* kind that was started last */
};

status comm_create(const struct comm_operations *operations, int rank, int size, void *state,
                   struct comm **out);
void comm_release(struct comm **comm); /* the struct alone */

/* comm_around - a device's communicator of the same ranks. */
status comm_around(const struct comm_operations *operations, struct comm *control, void *state,
                   struct comm **out);

/* comm_work_started, comm_work_finished - an implementation tells what is under way. */
void comm_work_started(struct comm *comm);
void comm_work_finished(struct comm *comm);

/* comm_end - the last act of any thread: the line if it is ours to say, then the end of the job. */
_Noreturn void comm_end(const struct comm_operations *operations, status code,
                        const struct status_note *note);

/* comm_before_end - what the last act does between its line and the end of the job, in any thread; NULL: nothing. */
void comm_before_end(void (*act)(void));

#define COMM_CHECK_BYTES 64 /* compared by comm_check_equal: enough for a SHA-256 in hexadecimal */

/* comm_mpi_world_create - comm_world_create where a launcher started us (comm_mpi.c). */
status comm_mpi_world_create(int *argc, char ***argv, struct comm **out);

/* sum_in_order - sums += parts[0], then += parts[1], ...; fresh: sums is parts[0] first (sum.c). */
void sum_in_order(float *sums, bool fresh, char *const *parts, int count_of_parts, int64_t count);

/* ---- waiting (patience.c): spin, then yield, then sleep ---- */

/* Seconds waited are counted in turns of at most one second each, so that a machine that was suspended
 * or a virtual machine that was paused does not count its absence as anybody's silence. */
struct patience {
    double last;
    double used_seconds;
    double sleep_seconds;
};

struct patience patience_begin(void);

/* patience_turn - one turn of waiting, of at most longest_seconds. */
void patience_turn(struct patience *patience, double longest_seconds);
