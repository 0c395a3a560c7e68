/* Waits for NCCL, and the watchdog thread of NCCL communicators.
 *
 * The communicators are non-blocking. A call starts an operation that a thread of NCCL continues.
 * Some calls then return ncclInProgress; ncclCommSplit and ncclCommWindowRegister return
 * ncclSuccess (2.28). Therefore the communicator is polled after every call, with its deadline.
 *
 * Work that is queued on the device can still fail or hang while the main thread computes or waits
 * for the device. Therefore a thread checks all communicators ten times per second. The thread that
 * detects an error ends the job: it aborts all communicators of this rank, because their kernels
 * would block the device, and then all ranks. */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/deadlines.h"
#include "base/thread/thread.h"
#include "comm/device/nccl_impl.h"
#include "comm/watchdog/backoff.h"
#include "comm/watchdog/heartbeat.h"

#define MAX_SLEEP_SECONDS 500e-6 /* longest sleep between two polls */
#define CHECK_SECONDS 0.1

struct nccl_world nccl_world;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_ending; /* the communicators are being aborted; protected by lock */

void nccl_lock(void)
{
    pthread_mutex_lock(&lock);
    while (is_ending) {
        pthread_mutex_unlock(&lock);
        pause();
        pthread_mutex_lock(&lock);
    }
}

void nccl_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

/* ---- errors ---- */

static status get_status(enum nccl_result result)
{
    return result == NCCL_INTERNAL_ERROR || result == NCCL_INVALID_ARGUMENT ||
                   result == NCCL_INVALID_USAGE
               ? STATUS_INTERNAL
               : STATUS_LOST;
}

status nccl_raise(const struct nccl_state *state, enum nccl_result result, const char *operation)
{
    const char *message = nccl_world.library->last_error(state->handle);
    RAISE(get_status(result),
          "NCCL: %s failed: %s%s%s: check the hosts of the other ranks; set NCCL_DEBUG=INFO for "
          "details",
          operation, nccl_world.library->result_text(result),
          message != NULL && message[0] != '\0' ? ": " : "", message != NULL ? message : "");
}

/* Lists the ranks of this host that do not wait while this rank waits. */
static void list_busy_ranks(char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < heartbeat_slot_count() && used + HEARTBEAT_TEXT_BYTES + 2 < bytes; i++) {
        struct heartbeat_view view = heartbeat_read(i);
        if (i != heartbeat_own_slot() && view.rank >= 0 && !view.waiting) {
            char description[HEARTBEAT_TEXT_BYTES];
            heartbeat_describe(view.rank, description);
            used += (size_t)snprintf(text + used, bytes - used, "%s%s", used > 0 ? ", " : "",
                                     description);
        }
    }
}

static status raise_hang(const char *operation, double seconds)
{
    char text[8 * HEARTBEAT_TEXT_BYTES];
    list_busy_ranks(text, sizeof text);
    RAISE(
        STATUS_HANG,
        "NCCL: %s did not complete in %.1f s (this rank's phase '%s'); %s: check those ranks and "
        "the network (NCCL_DEBUG=INFO), then start again; the run resumes from its last checkpoint",
        operation, seconds, heartbeat_read(heartbeat_own_slot()).phase,
        text[0] != '\0' ? text : "all ranks of this host are waiting");
}

/* Returns whether a rank of this host is in a phase with a limit that has not passed. */
static bool is_within_phase_limit(void)
{
    for (int i = 0; i < heartbeat_slot_count(); i++) {
        struct heartbeat_view view = heartbeat_read(i);
        if (view.rank >= 0 && (i == heartbeat_own_slot() || !view.waiting) &&
            view.limit_seconds > 0 && view.seconds < view.limit_seconds) {
            return true;
        }
    }
    return false;
}

/* ---- waits of the main thread ---- */

/* A wait with a deadline. The first time the deadline passes, a grace period gives ranks that
 * arrive at this moment time to mark themselves as waiting. */
struct deadline_wait {
    struct backoff backoff;
    double limit_seconds;
    bool grace_used;
};

static struct deadline_wait begin_wait(const struct nccl_state *state)
{
    return (struct deadline_wait){.backoff = backoff_begin(),
                                  .limit_seconds = state->comm->deadline_seconds};
}

/* Waits one turn. It does not return after the deadline, because a communicator that hangs
 * is unusable. */
static void wait_once(const struct nccl_state *state, struct deadline_wait *deadline_wait,
                      const char *operation)
{
    heartbeat_waiting(true);
    backoff_wait(&deadline_wait->backoff, MAX_SLEEP_SECONDS);
    if (deadline_wait->backoff.waited_seconds <= deadline_wait->limit_seconds) {
        return;
    }
    if (is_within_phase_limit()) {
        deadline_wait->grace_used = false;
    } else if (deadline_wait->grace_used) {
        comm_abort(state->comm, raise_hang(operation, deadline_wait->backoff.waited_seconds));
    } else {
        deadline_wait->grace_used = true;
    }
    deadline_wait->limit_seconds = deadline_wait->backoff.waited_seconds + DEADLINE_GRACE_SECONDS;
}

static enum nccl_result get_async_error(const struct nccl_state *state)
{
    enum nccl_result error = NCCL_SUCCESS;
    nccl_lock();
    enum nccl_result result = nccl_world.library->get_async_error(state->handle, &error);
    nccl_unlock();
    return result == NCCL_SUCCESS ? error : result;
}

status nccl_wait_result(struct nccl_state *state, enum nccl_result result, const char *operation)
{
    struct deadline_wait deadline_wait = begin_wait(state);
    if (result == NCCL_SUCCESS) {
        result = get_async_error(state);
    }
    while (result == NCCL_IN_PROGRESS) {
        wait_once(state, &deadline_wait, operation);
        result = get_async_error(state);
    }
    heartbeat_waiting(false);
    return result == NCCL_SUCCESS ? STATUS_OK : nccl_raise(state, result, operation);
}

status nccl_wait_event(struct nccl_state *state, struct event *event, const char *operation)
{
    struct deadline_wait deadline_wait = begin_wait(state);
    status result = STATUS_OK;
    bool done = false;
    for (;;) {
        result = device_event_done(state->options.device, event, &done);
        if (done || result != STATUS_OK) {
            break;
        }
        wait_once(state, &deadline_wait, operation);
    }
    heartbeat_waiting(false);
    return result;
}

/* ---- end of the job ---- */

static atomic_int aborts_left;

static void *abort_communicator(void *handle)
{
    nccl_world.library->comm_abort(handle);
    atomic_fetch_sub(&aborts_left, 1);
    return NULL;
}

/* Aborts all communicators; the end hook, which any thread may call. If another thread holds the
 * lock for a second, it continues without the lock. ncclCommAbort first ends the kernels of a
 * communicator. Then it waits until its graphs are destroyed (init.cc, commDestroySync), which does
 * not happen here. Therefore a separate thread aborts each communicator. */
static void abort_before_end(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    if (pthread_mutex_timedlock(&lock, &until) == 0) {
        is_ending = true;
        pthread_mutex_unlock(&lock);
    }
    for (struct nccl_state *s = nccl_world.communicators; s != NULL; s = s->next) {
        pthread_t thread;
        if (s->handle != NULL) {
            atomic_fetch_add(&aborts_left, 1);
            if (pthread_create(&thread, NULL, abort_communicator, s->handle) != 0) {
                atomic_fetch_sub(&aborts_left, 1);
            }
        }
    }
    for (double start = clock_seconds();
         atomic_load(&aborts_left) > 0 && clock_seconds() - start < DEADLINE_NCCL_ABORT_SECONDS;) {
        clock_sleep(0.005);
    }
}

/* ---- watchdog ---- */

static struct {
    pthread_t thread;
    bool running, stop;
} watchdog;

static status check_error(const struct nccl_state *state)
{
    enum nccl_result error = NCCL_SUCCESS;
    enum nccl_result result = nccl_world.library->get_async_error(state->handle, &error);
    result = result == NCCL_SUCCESS ? error : result;
    return result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS
               ? STATUS_OK
               : nccl_raise(state, result, "communication");
}

/* Measures how long the oldest collective has been in flight, and reports a hang. */
static status check_age(struct nccl_state *state, double seconds)
{
    bool done = true;
    if (state->finished < state->started) {
        struct comm_request *oldest = &state->ring[(state->finished + 1) % NCCL_RING];
        TRY(device_event_done(state->options.device, oldest->done, &done));
    }
    if (done || state->last_finished != state->finished || is_within_phase_limit()) {
        state->age_seconds = 0;
        state->last_finished = state->finished;
        return STATUS_OK;
    }
    state->age_seconds += seconds;
    return state->age_seconds <= state->comm->deadline_seconds + DEADLINE_GRACE_SECONDS
               ? STATUS_OK
               : raise_hang("a collective on the device", state->age_seconds);
}

static status check_communicators(double seconds, struct comm **failed)
{
    for (struct nccl_state *s = nccl_world.communicators; s != NULL; s = s->next) {
        *failed = s->comm;
        if (s->handle == NULL) { /* not created yet */
            continue;
        }
        TRY(check_error(s));
        TRY(check_age(s, seconds));
    }
    return STATUS_OK;
}

static void *run_watchdog(void *unused)
{
    (void)unused;
    status result = STATUS_OK;
    struct comm *failed = NULL;
    double last = clock_seconds();
    while (result == STATUS_OK) {
        clock_sleep(CHECK_SECONDS);
        double now = clock_seconds(), elapsed_seconds = now - last;
        last = now;
        nccl_lock();
        bool stop = watchdog.stop;
        if (!stop) {
            result = check_communicators(elapsed_seconds < DEADLINE_MAX_COUNTED_SECONDS
                                             ? elapsed_seconds
                                             : DEADLINE_MAX_COUNTED_SECONDS,
                                         &failed);
        }
        nccl_unlock();
        if (stop) {
            return NULL;
        }
    }
    comm_abort(failed, result);
}

status nccl_watchdog_start(void)
{
    if (watchdog.running) {
        return STATUS_OK;
    }
    watchdog.stop = false;
    int failed = thread_start(&watchdog.thread, run_watchdog, NULL);
    REQUIRE(failed == 0, STATUS_INTERNAL, "cannot start the NCCL watchdog thread: %s",
            strerror(failed));
    watchdog.running = true;
    comm_set_end_hook(abort_before_end);
    return STATUS_OK;
}

void nccl_watchdog_stop(void)
{
    if (!watchdog.running) {
        return;
    }
    nccl_lock();
    watchdog.stop = true;
    nccl_unlock();
    pthread_join(watchdog.thread, NULL);
    watchdog.running = false;
    comm_set_end_hook(NULL);
}
