/* A thread that checks all ranks of this host four times per second.
 *
 * It counts how long each rank has been in its phase. One check counts for at most one second, so
 * the time during which the machine is suspended or its virtual machine is paused is not counted. A
 * rank that waits for other ranks is not checked: the wait has a deadline (comm/shared/wait.c). A
 * stuck rank ends the job itself. If the whole process is stopped, including its watchdog, other
 * ranks report it a moment later. The thread also counts its checks: a process without checks is
 * stopped, and the other ranks report it after the default limit, also in a phase with a
 * longer limit.
 *
 * The start of a job has one limit for all its phases. It also ends a start in which every phase is
 * within its own limit, and a start in which all ranks wait. */
#include "comm/watchdog/watchdog.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/deadlines.h"
#include "base/memory.h"
#include "base/thread/thread.h"
#include "comm/watchdog/heartbeat.h"

#define CHECK_SECONDS 0.25

struct watch {
    uint64_t serial, beats;
    double age_seconds;    /* in the same phase */
    double silent_seconds; /* without a check of that rank's watchdog */
};

static struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    bool running;
    bool stop;
    struct comm *world;
    double limit_seconds;
    struct watch *watches; /* [heartbeat_slot_count] */
} watchdog = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The start of a job; guarded by watchdog.lock. It is not reset when the thread is restarted. */
static struct {
    double limit_seconds; /* 0: no limit */
    double age_seconds;
    bool paused;
} startup;

static double get_limit(const struct heartbeat_view *view, int slot)
{
    double limit = view->limit_seconds > 0 ? view->limit_seconds : watchdog.limit_seconds;
    return slot == heartbeat_own_slot() ? limit : limit + DEADLINE_OTHER_RANK_EXTRA_SECONDS;
}

static void list_waiting(char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < heartbeat_slot_count() && used + 64 < bytes; i++) {
        struct heartbeat_view view = heartbeat_read(i);
        if (view.rank >= 0 && view.waiting) {
            used += (size_t)snprintf(text + used, bytes - used, "; rank %d waits in phase '%s'",
                                     view.rank, view.phase);
        }
    }
}

_Noreturn static void report_stuck_rank(const struct heartbeat_view *view, int slot,
                                        double age_seconds)
{
    char description[HEARTBEAT_TEXT_BYTES];
    char waiting[512];
    heartbeat_describe(view->rank, description);
    list_waiting(waiting, sizeof waiting);
    double limit = view->limit_seconds > 0 ? view->limit_seconds : watchdog.limit_seconds;
    RAISE_STATUS(STATUS_HANG,
                 "%s%s in phase '%s' for %.1f s, limit %.0f s%s: start again; the run resumes from "
                 "its last checkpoint",
                 slot == heartbeat_own_slot() ? "this rank is stuck" : "stuck: ",
                 slot == heartbeat_own_slot() ? "" : description, view->phase, age_seconds, limit,
                 waiting);
    comm_abort(watchdog.world, STATUS_HANG);
}

_Noreturn static void report_stopped_rank(const struct heartbeat_view *view, double silent_seconds)
{
    char description[HEARTBEAT_TEXT_BYTES];
    heartbeat_describe(view->rank, description);
    RAISE_STATUS(STATUS_HANG,
                 "no thread of %s has run for %.1f s, limit %.0f s: find out what stops this "
                 "process, then start again; the run resumes from its last checkpoint",
                 description, silent_seconds, watchdog.limit_seconds);
    comm_abort(watchdog.world, STATUS_HANG);
}

/* Lists the ranks of this host that do not wait for others; all of them if every rank waits. */
static void list_busy(char *text, size_t bytes)
{
    char description[HEARTBEAT_TEXT_BYTES];
    size_t used = 0;
    for (int pass = 0; pass < 2 && used == 0; pass++) {
        for (int i = 0; i < heartbeat_slot_count() && used + HEARTBEAT_TEXT_BYTES < bytes; i++) {
            struct heartbeat_view view = heartbeat_read(i);
            if (i == heartbeat_own_slot()) {
                snprintf(description, sizeof description, "this rank in phase '%s' for %.1f s",
                         view.phase, view.seconds);
            } else if (view.rank >= 0) {
                heartbeat_describe(view.rank, description);
            }
            if (view.rank >= 0 && (!view.waiting || pass == 1)) {
                used += (size_t)snprintf(text + used, bytes - used, "%s%s", used > 0 ? ", " : "",
                                         description);
            }
        }
    }
}

_Noreturn static void report_slow_start(void)
{
    char busy[1024] = "", waiting[512];
    list_busy(busy, sizeof busy);
    list_waiting(waiting, sizeof waiting);
    RAISE_STATUS(STATUS_HANG,
                 "the start of the job took longer than %.0f s (parallel.start_seconds): %s%s: "
                 "check these ranks and their hosts, then start again; if the start is only slow, "
                 "set a larger parallel.start_seconds",
                 startup.limit_seconds, busy, waiting);
    comm_abort(watchdog.world, STATUS_HANG);
}

/* Checks the limit of the start. A rank that waits has a longer limit, so that late ranks report
 * themselves first. */
static void check_startup(double elapsed_seconds)
{
    if (startup.limit_seconds <= 0 || startup.paused) {
        return;
    }
    startup.age_seconds += elapsed_seconds;
    bool waiting = heartbeat_read(heartbeat_own_slot()).waiting;
    double extra_seconds = waiting ? DEADLINE_OTHER_RANK_EXTRA_SECONDS : 0;
    if (startup.age_seconds > startup.limit_seconds + extra_seconds) {
        report_slow_start();
    }
}

/* Reports a process that is stopped. Its own watchdog does not run. */
static void check_beats(const struct heartbeat_view *view, struct watch *watch,
                        double elapsed_seconds)
{
    bool runs = view->beats == 0 || view->beats != watch->beats;
    watch->silent_seconds = runs ? 0 : watch->silent_seconds + elapsed_seconds;
    watch->beats = view->beats;
    if (watch->silent_seconds > watchdog.limit_seconds + DEADLINE_OTHER_RANK_EXTRA_SECONDS) {
        report_stopped_rank(view, watch->silent_seconds);
    }
}

static void check_ranks(double elapsed_seconds)
{
    heartbeat_beat();
    for (int i = 0; i < heartbeat_slot_count(); i++) {
        struct heartbeat_view view = heartbeat_read(i);
        struct watch *watch = &watchdog.watches[i];
        if (view.rank >= 0 && i != heartbeat_own_slot()) {
            check_beats(&view, watch, elapsed_seconds);
        }
        if (view.rank < 0 || view.waiting || view.serial != watch->serial) {
            watch->serial = view.serial;
            watch->age_seconds = 0;
            continue;
        }
        watch->age_seconds += elapsed_seconds;
        if (watch->age_seconds > get_limit(&view, i)) {
            report_stuck_rank(&view, i, watch->age_seconds);
        }
    }
}

static void *run_watchdog(void *unused)
{
    (void)unused;
    double last = clock_seconds();
    pthread_mutex_lock(&watchdog.lock);
    while (!watchdog.stop) {
        double wake = last + CHECK_SECONDS;
        struct timespec at = {.tv_sec = (time_t)wake};
        at.tv_nsec = (long)((wake - (double)at.tv_sec) * 1e9);
        pthread_cond_timedwait(&watchdog.wake, &watchdog.lock, &at);
        double now = clock_seconds();
        double elapsed_seconds = now - last;
        last = now;
        if (elapsed_seconds > DEADLINE_MAX_COUNTED_SECONDS) {
            elapsed_seconds = DEADLINE_MAX_COUNTED_SECONDS;
        }
        if (!watchdog.stop) {
            check_startup(elapsed_seconds);
            check_ranks(elapsed_seconds);
        }
    }
    pthread_mutex_unlock(&watchdog.lock);
    return NULL;
}

status watchdog_start(struct comm *world, double limit_seconds)
{
    watchdog_stop();
    REQUIRE(limit_seconds > 0, STATUS_INTERNAL, "watchdog limit %g s: must be above 0",
            limit_seconds);
    TRY(ALLOCATE(watchdog.watches, heartbeat_slot_count(), "the watchdog"));
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&watchdog.wake, &monotonic);
    pthread_condattr_destroy(&monotonic);
    watchdog.world = world;
    watchdog.limit_seconds = limit_seconds;
    watchdog.stop = false;
    heartbeat_set_phase("init", 0);
    heartbeat_beat(); /* the process may be stopped before the first check */
    int failed = thread_start(&watchdog.thread, run_watchdog, NULL);
    if (failed != 0) {
        heartbeat_end_beats();
        free(watchdog.watches);
        RAISE(STATUS_INTERNAL, "cannot start the watchdog thread: %s", strerror(failed));
    }
    watchdog.running = true;
    return STATUS_OK;
}

status watchdog_set_startup_limit(double limit_seconds)
{
    REQUIRE(limit_seconds > 0, STATUS_INTERNAL, "start-up limit %g s: must be above 0",
            limit_seconds);
    pthread_mutex_lock(&watchdog.lock);
    startup.limit_seconds = limit_seconds;
    pthread_mutex_unlock(&watchdog.lock);
    return watchdog.running ? STATUS_OK : watchdog_start(NULL, limit_seconds);
}

void watchdog_pause_startup(bool paused)
{
    pthread_mutex_lock(&watchdog.lock);
    startup.paused = paused;
    pthread_mutex_unlock(&watchdog.lock);
}

double watchdog_startup_limit(void)
{
    pthread_mutex_lock(&watchdog.lock);
    double limit_seconds = startup.limit_seconds;
    pthread_mutex_unlock(&watchdog.lock);
    return limit_seconds;
}

void watchdog_end_startup(void)
{
    pthread_mutex_lock(&watchdog.lock);
    startup.limit_seconds = 0;
    startup.age_seconds = 0;
    pthread_mutex_unlock(&watchdog.lock);
}

void watchdog_set_phase(const char *phase, double limit_seconds)
{
    heartbeat_set_phase(phase, limit_seconds);
}

void watchdog_renew(void)
{
    heartbeat_renew();
}

void watchdog_stop(void)
{
    if (!watchdog.running) {
        return;
    }
    pthread_mutex_lock(&watchdog.lock);
    watchdog.stop = true;
    pthread_cond_signal(&watchdog.wake);
    pthread_mutex_unlock(&watchdog.lock);
    pthread_join(watchdog.thread, NULL);
    heartbeat_end_beats();
    pthread_cond_destroy(&watchdog.wake);
    free(watchdog.watches);
    watchdog.watches = NULL;
    watchdog.running = false;
}
