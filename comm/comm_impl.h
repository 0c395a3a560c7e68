/* Internals that the communicators share: the table of operations that each kind provides.
 *
 * comm.c implements comm.h. It checks the arguments, measures the times, handles groups of one rank
 * and forwards all other work to the operations of the kind.
 *
 *   control communicator  The communicator in host memory from which a communicator in device
 *                         memory is created. It has the same ranks.
 *   exchange              A collective on small data: every rank gets the bytes of all ranks. All
 *                         collectives on small data are made of exchanges.
 *   work                  A collective on large data.
 *
 * Calls     A kind calls comm_create, or comm_create_over_control for device memory. It calls
 *           comm_work_started and comm_work_finished for each collective that stays in flight, and
 *           comm_release in its operation `destroy`. */
#pragma once

#include <stdatomic.h>

#include "comm/comm.h"

/* Maximum bytes per rank of one exchange; larger small collectives are split into chunks. */
#define COMM_SMALL_BYTES ((size_t)4096)
#define COMM_HOST_BYTES 65

enum comm_collective {
    COMM_ALL_REDUCE = 1,
    COMM_REDUCE_SCATTER,
    COMM_ALL_GATHER,
    COMM_BROADCAST,
    COMM_ACCUMULATE,
};
#define COMM_COLLECTIVES ((int)COMM_ACCUMULATE + 1)

/* A collective on large data. Only the fields of its kind are set. */
struct comm_work {
    enum comm_collective kind;
    char *data;
    size_t element_bytes;
    int64_t count;                   /* all-reduce, broadcast */
    const struct comm_range *ranges; /* reduce-scatter, all-gather, accumulate: [size] */
    int root;                        /* broadcast */
    struct comm_accumulation accumulation;
    /* lazy all-gather: memory that other ranks pull from; NULL: each rank writes its range to
     * the others */
    char *shared_source;
    const struct comm_range *source_ranges; /* in shared_source: [size] */
};

/* Operations of one kind of communicator. A device communicator has no exchange and no end_job. It
 * uses these operations of its control communicator. */
struct comm_operations {
    const char *kind;
    bool can_accumulate; /* start supports COMM_ACCUMULATE */
    status (*destroy)(struct comm **comm);
    status (*split)(struct comm *comm, int color, int key, struct comm **out);
    status (*allocate)(struct comm *comm, size_t bytes, void **out);
    status (*release)(struct comm *comm, void *memory);
    /* gathers own[bytes] of every rank into all[size][bytes]; bytes <= COMM_SMALL_BYTES */
    status (*exchange)(struct comm *comm, void *all, const void *own, size_t bytes);
    /* leaves *out NULL if the work is complete on return */
    status (*start)(struct comm *comm, const struct comm_work *work, struct comm_request **out);
    status (*progress)(struct comm *comm);
    status (*wait)(struct comm *comm, struct comm_request **request);
    /* adds the measured waits of the computing stream to times.exposed_seconds; `discard` drops the
     * waits that the device has not reached. NULL: exposed_seconds is the time of the host */
    status (*read_waits)(struct comm *comm, bool discard);
    /* waits until this rank has all data; NULL: use wait, and no lazy gather */
    status (*gather_pull)(struct comm *comm, struct comm_request *request);
    /* ends all ranks with this exit code; called from any thread; may return */
    void (*end_job)(int code);
};

struct comm {
    const struct comm_operations *operations;
    void *state; /* private data of the kind */
    /* control communicator of a device communicator; otherwise NULL */
    struct comm *control;
    int rank;
    int size;
    int local_rank;
    int local_size;
    bool is_world;
    double deadline_seconds;
    char *exchange_buffer; /* [size][COMM_SMALL_BYTES]: result of the last exchange */

    /* times of communication (comm.c) */
    int call_depth;       /* nested public calls; only the outermost is timed */
    int in_flight;        /* collectives started and not complete */
    bool exposed;         /* the current public call has a collective in flight */
    bool waits_on_device; /* exposed_seconds comes from read_waits, not from the host's clock */
    double entered_seconds;
    struct comm_times times;
    double seconds_per_byte[COMM_COLLECTIVES]; /* calibrated rates; 0: not measured */
    enum comm_collective last_kind;            /* kind of the last started collective */
};

/* comm_create - allocate a communicator with the default deadline. */
status comm_create(const struct comm_operations *operations, int rank, int size, void *state,
                   struct comm **out);

/* comm_release - free the struct only, not the state of its kind. */
void comm_release(struct comm **comm);

/* comm_create_over_control - create a device communicator of the same ranks as control. */
status comm_create_over_control(const struct comm_operations *operations, struct comm *control,
                                void *state, struct comm **out);

/* comm_get_host - return the communicator for small data and for the end of the job: the control
 * communicator of a device communicator, or comm. */
struct comm *comm_get_host(struct comm *comm);

/* comm_work_started - count one more collective in flight. */
void comm_work_started(struct comm *comm);

/* comm_work_finished - count one collective in flight less. */
void comm_work_finished(struct comm *comm);

/* comm_end_job - print the note, unless another rank of the host already printed, and end the job.
 *
 * Order     may be called from any thread */
_Noreturn void comm_end_job(const struct comm_operations *operations, status code,
                            const struct status_note *note);

/* comm_set_end_hook - set a function that comm_end_job calls after it printed and before it ends
 * the job, in any thread; NULL for none. */
void comm_set_end_hook(void (*hook)(void));

#define COMM_CHECK_BYTES 128 /* compared by comm_check_equal */

/* comm_mpi_world_create - implement comm_world_create for a process that a launcher
 * started (host/mpi.c). */
status comm_mpi_world_create(int *argc, char ***argv, struct comm **out);
