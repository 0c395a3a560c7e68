/* Waiting for NCCL, and the thread that looks after it.
 *
 * NCCL's communicators are non-blocking: a call that cannot be answered yet says so, and is asked about again
 * with the communicator's deadline. What is queued on the device can still fail, or never end, while the
 * main thread computes or waits for the device: so a thread looks at all communicators ten times a second.
 * Whoever sees an error ends the job: first all of this rank's communicators, whose kernels would otherwise
 * hold the device, and then all ranks. */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "comm/comm_nccl_impl.h"
#include "comm/heartbeat.h"

#define TURN_SECONDS 500e-6 /* the longest sleep between two questions */
#define TICK_SECONDS 0.1
#define LONGEST_TICK_SECONDS 1.0 /* a machine that was suspended makes nobody late */
#define GRACE_SECONDS 2.0
#define ABORT_SECONDS 3.0 /* for NCCL to let go; then the job ends all the same */

struct nccl_world nccl_world;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool ending; /* NCCL is let go of: under the lock */

void nccl_lock(void)
{
    pthread_mutex_lock(&lock);
    while (ending) {
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

static status status_of(enum nccl_result result)
{
    return result == NCCL_INTERNAL_ERROR || result == NCCL_INVALID_ARGUMENT ||
                   result == NCCL_INVALID_USAGE
               ? STATUS_INTERNAL
               : STATUS_LOST;
}

status nccl_raise(const struct nccl_state *state, enum nccl_result result, const char *what)
{
    const char *words = nccl_world.library->last_error(state->handle);
    RAISE(status_of(result),
          "NCCL: %s failed: %s%s%s: look at the other ranks' hosts; NCCL_DEBUG=INFO tells more",
          what, nccl_world.library->result_text(result),
          words != NULL && words[0] != '\0' ? ": " : "", words != NULL ? words : "");
}

/* Ranks of this host that do something else while this one waits. */
static void list_idle(char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < heartbeat_slots() && used + HEARTBEAT_TEXT_BYTES + 2 < bytes; i++) {
        struct heartbeat_view view = heartbeat_view(i);
        if (i != heartbeat_mine() && view.rank >= 0 && !view.waiting) {
            char one[HEARTBEAT_TEXT_BYTES];
            heartbeat_describe(view.rank, one);
            used += (size_t)snprintf(text + used, bytes - used, "%s%s", used > 0 ? ", " : "", one);
        }
    }
}

static status raise_hang(const char *what, double seconds)
{
    char text[8 * HEARTBEAT_TEXT_BYTES];
    list_idle(text, sizeof text);
    RAISE(
        STATUS_HANG,
        "NCCL: %s has not ended in %.1f s (this rank's phase '%s'); %s: look at those ranks and at "
        "the network (NCCL_DEBUG=INFO), then start again; the run goes on from its last checkpoint",
        what, seconds, heartbeat_view(heartbeat_mine()).phase,
        text[0] != '\0' ? text : "all ranks of this host wait");
}

/* A rank of this host is in a phase that may take longer than the deadline, and has time left. */
static bool excused(void)
{
    for (int i = 0; i < heartbeat_slots(); i++) {
        struct heartbeat_view view = heartbeat_view(i);
        if (view.rank >= 0 && (i == heartbeat_mine() || !view.waiting) && view.limit_seconds > 0 &&
            view.seconds < view.limit_seconds) {
            return true;
        }
    }
    return false;
}

/* ---- the main thread's waits ---- */

/* A wait's patience: the first time that it is at its end, ranks that come to wait this very moment get
 * time to show it. */
struct wait {
    struct patience patience;
    double until;
    bool warned;
};

static struct wait wait_begin(const struct nccl_state *state)
{
    return (struct wait){.patience = patience_begin(), .until = state->comm->deadline_seconds};
}

/* Does not return where time is up: a communicator that hangs is of no more use. */
static void wait_turn(const struct nccl_state *state, struct wait *wait, const char *what)
{
    heartbeat_waiting(true);
    patience_turn(&wait->patience, TURN_SECONDS);
    if (wait->patience.used_seconds <= wait->until) {
        return;
    }
    if (excused()) {
        wait->warned = false;
    } else if (wait->warned) {
        comm_abort(state->comm, raise_hang(what, wait->patience.used_seconds));
    } else {
        wait->warned = true;
    }
    wait->until = wait->patience.used_seconds + GRACE_SECONDS;
}

static enum nccl_result ask(const struct nccl_state *state)
{
    enum nccl_result error = NCCL_SUCCESS;
    nccl_lock();
    enum nccl_result result = nccl_world.library->get_async_error(state->handle, &error);
    nccl_unlock();
    return result == NCCL_SUCCESS ? error : result;
}

status nccl_settle(struct nccl_state *state, enum nccl_result result, const char *what)
{
    struct wait wait = wait_begin(state);
    while (result == NCCL_IN_PROGRESS) {
        wait_turn(state, &wait, what);
        result = ask(state);
    }
    heartbeat_waiting(false);
    return result == NCCL_SUCCESS ? STATUS_OK : nccl_raise(state, result, what);
}

status nccl_wait_event(struct nccl_state *state, struct event *event, const char *what)
{
    struct wait wait = wait_begin(state);
    status result = STATUS_OK;
    bool done = false;
    for (;;) {
        result = device_event_done(state->options.device, event, &done);
        if (done || result != STATUS_OK) {
            break;
        }
        wait_turn(state, &wait, what);
    }
    heartbeat_waiting(false);
    return result;
}

/* ---- the end of all communicators ---- */

static void *abort_all(void *ended)
{
    for (struct nccl_state *s = nccl_world.living; s != NULL; s = s->next) {
        if (s->handle != NULL) {
            nccl_world.library->comm_abort(s->handle);
        }
    }
    atomic_store((atomic_bool *)ended, true);
    return NULL;
}

/* Before the end of the job, in whatever thread. Somebody may hold the lock for ever: then without it. */
static void let_go(void)
{
    static atomic_bool ended;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    if (pthread_mutex_timedlock(&lock, &until) == 0) {
        ending = true;
        pthread_mutex_unlock(&lock);
    }
    pthread_t thread;
    if (pthread_create(&thread, NULL, abort_all, &ended) != 0) {
        return;
    }
    for (double start = clock_seconds();
         !atomic_load(&ended) && clock_seconds() - start < ABORT_SECONDS;) {
        clock_sleep(0.005);
    }
}

/* ---- the watch ---- */

static struct {
    pthread_t thread;
    bool running, stop;
} watch;

static status look_at_error(const struct nccl_state *state)
{
    enum nccl_result error = NCCL_SUCCESS;
    enum nccl_result result = nccl_world.library->get_async_error(state->handle, &error);
    result = result == NCCL_SUCCESS ? error : result;
    return result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS
               ? STATUS_OK
               : nccl_raise(state, result, "communication");
}

/* How long the oldest collective has been under way, while the main thread looks elsewhere. */
static status look_at_age(struct nccl_state *state, double seconds)
{
    bool done = true;
    if (state->finished < state->started) {
        struct comm_request *oldest = &state->ring[(state->finished + 1) % NCCL_UNDER_WAY];
        TRY(device_event_done(state->options.device, oldest->done, &done));
    }
    if (done || state->watched != state->finished || excused()) {
        state->age_seconds = 0;
        state->watched = state->finished;
        return STATUS_OK;
    }
    state->age_seconds += seconds;
    return state->age_seconds <= state->comm->deadline_seconds + GRACE_SECONDS
               ? STATUS_OK
               : raise_hang("a collective on the device", state->age_seconds);
}

static status look_at_all(double seconds, struct comm **failed)
{
    for (struct nccl_state *s = nccl_world.living; s != NULL; s = s->next) {
        *failed = s->comm;
        if (s->handle == NULL) { /* not yet */
            continue;
        }
        TRY(look_at_error(s));
        TRY(look_at_age(s, seconds));
    }
    return STATUS_OK;
}

static void *watch_over(void *nothing)
{
    (void)nothing;
    status result = STATUS_OK;
    struct comm *failed = NULL;
    double last = clock_seconds();
    while (result == STATUS_OK) {
        clock_sleep(TICK_SECONDS);
        double now = clock_seconds(), tick = now - last;
        last = now;
        nccl_lock();
        bool stop = watch.stop;
        if (!stop) {
            result =
                look_at_all(tick < LONGEST_TICK_SECONDS ? tick : LONGEST_TICK_SECONDS, &failed);
        }
        nccl_unlock();
        if (stop) {
            return NULL;
        }
    }
    comm_abort(failed, result);
}

status nccl_watch_start(void)
{
    if (watch.running) {
        return STATUS_OK;
    }
    watch.stop = false;
    int failed = thread_start(&watch.thread, watch_over, NULL);
    REQUIRE(failed == 0, STATUS_INTERNAL, "the thread that watches NCCL cannot start: %s",
            strerror(failed));
    watch.running = true;
    comm_before_end(let_go);
    return STATUS_OK;
}

void nccl_watch_stop(void)
{
    if (!watch.running) {
        return;
    }
    nccl_lock();
    watch.stop = true;
    nccl_unlock();
    pthread_join(watch.thread, NULL);
    watch.running = false;
    comm_before_end(NULL);
}
