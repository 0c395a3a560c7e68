/* The time limits of waits, in seconds.
 *
 * A wait for the device or for another rank has a limit. After it, the wait ends with an error,
 * most often STATUS_HANG. Only a rank that ends with an error has threads that wait without a
 * limit, until the process exits (nccl_lock). This header lists the limits that several files share
 * or that depend on each other. The intervals of polling are in the files that poll. */
#pragma once

/* ---- waits for the device ---- */

/* Work that is queued on a stream: copies, and the kernels of a micro-batch. */
#define DEADLINE_DEVICE_SECONDS 300.0

/* The work of a whole step, or the first copy of a model to the device. */
#define DEADLINE_DEVICE_STEP_SECONDS 600.0

/* ---- waits for other ranks ---- */

/* A collective. In a job, parallel.timeout_seconds replaces it (comm_set_deadline). */
#define DEADLINE_COLLECTIVE_SECONDS 300.0

/* Phases of a job that take minutes with many gigabytes: opening shards, reading and
 * writing checkpoints. */
#define DEADLINE_LONG_PHASE_SECONDS 600.0

/* The whole start of a job, from before MPI_Init to the first evaluation or step. In a job,
 * parallel.start_seconds replaces it. In other commands it is the limit of MPI_Init, unless the
 * environment variable BIREME_INIT_SECONDS is set. */
#define DEADLINE_START_SECONDS 300.0
#define DEADLINE_MPI_FINALIZE_SECONDS 60.0

/* The maximum time that one poll adds to a wait. Therefore the time during which the machine is
 * suspended does not count. */
#define DEADLINE_MAX_COUNTED_SECONDS 1.0

/* ---- which rank reports a hang ----
 *
 * A stuck rank should report itself, because its own report is the most precise. The watchdogs of
 * the other ranks of its host report it if it does not. */

/* The watchdog of another rank reports a stuck rank this long after the limit of that rank. */
#define DEADLINE_OTHER_RANK_EXTRA_SECONDS 1.5

/* After the deadline of a collective, a rank that finds no late rank waits for this time once. A
 * late rank may have arrived just then, or another host may name it. While a late rank is in a
 * phase with a longer limit, the wait is repeated. */
#define DEADLINE_GRACE_SECONDS 2.0

/* A waiting rank renews its mark in the heartbeat table. A rank with an older mark is not waiting
 * but stuck. */
#define DEADLINE_STALE_SECONDS 2.0

/* If the launcher ends this rank after a shorter wait, no missing rank is reported as lost. */
#define DEADLINE_MIN_LOST_SECONDS 3.0

/* ---- the end of a job after an error ---- */

/* The rank that prints the error waits for this time, so that the launcher forwards the error
 * before it prints a message. */
#define DEADLINE_FLUSH_SECONDS 0.1

/* Limit of ncclCommAbort, which may hang. The job ends in any case. */
#define DEADLINE_NCCL_ABORT_SECONDS 3.0

/* Time that a rank waits to be ended by the rank that prints the error. */
#define DEADLINE_PEER_END_SECONDS 5.0

/* The kernel ends the process (alarm) if all of the above was not enough. */
#define DEADLINE_END_SECONDS 15

/* Time for a run lock: ranks of a killed job may exist for 3 s after the job has ended. */
#define DEADLINE_RUN_LOCK_SECONDS 10.0
