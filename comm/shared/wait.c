/* Waits for other ranks, and the report of late ranks after the deadline.
 *
 * The counters in the control blocks show which ranks of this node are late. The heartbeat table
 * shows their phases. A rank that waits for other ranks itself is not reported as late. If all
 * ranks of this host wait, there are two cases. A late rank has just arrived, or it is on another
 * host. The ranks of that host can name it. Therefore this host waits for a grace period before it
 * reports. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/deadlines.h"
#include "comm/shared/shared.h"
#include "comm/watchdog/backoff.h"
#include "comm/watchdog/heartbeat.h"

#define SLEEP_SECONDS_MAX 500e-6         /* longest sleep between two checks */
#define MESSAGE_SLEEP_SECONDS_MAX 100e-6 /* longest sleep while messages must be advanced */
#define LISTED_MAX 8                     /* late ranks named in one error */

static uint64_t read_counter(const struct shared_group *group, int local_rank, size_t offset)
{
    const char *control = (const char *)group->control[local_rank];
    const _Atomic uint64_t *value = (const _Atomic uint64_t *)(const void *)(control + offset);
    return atomic_load_explicit(value, memory_order_acquire);
}

bool shared_all_reached(const struct shared_group *group, size_t counter_offset, uint64_t sequence)
{
    for (int i = 0; i < group->local_size; i++) {
        if (read_counter(group, i, counter_offset) < sequence) {
            return false;
        }
    }
    return true;
}

static status test_condition(struct shared_group *group,
                             const struct shared_wait_condition *condition, bool *is_met)
{
    *is_met = false;
    switch (condition->event) {
    case SHARED_EXCHANGE_ENTERED:
        *is_met = shared_all_reached(group, offsetof(struct shared_control, exchange_entered),
                                     condition->sequence);
        return STATUS_OK;
    case SHARED_EXCHANGE_ANSWERED:
        *is_met = read_counter(group, 0, offsetof(struct shared_control, exchange_answered)) >=
                  condition->sequence;
        return STATUS_OK;
    case SHARED_MESSAGES_DONE:
        return group->link->test(condition->batch, is_met);
    case SHARED_REQUEST_DONE:
        *is_met = *condition->is_complete;
        return STATUS_OK;
    case SHARED_RING_HAS_ROOM:
        *is_met = group->in_flight < SHARED_RING - 1;
        return STATUS_OK;
    }
    return STATUS_OK;
}

/* ---- late ranks ---- */

struct late_ranks {
    int ranks[LISTED_MAX]; /* in the world */
    int count;
    int more;
};

static void add_late_rank(struct late_ranks *late_ranks, int world_rank)
{
    for (int i = 0; i < late_ranks->count; i++) {
        if (late_ranks->ranks[i] == world_rank) {
            return;
        }
    }
    if (late_ranks->count < LISTED_MAX) {
        late_ranks->ranks[late_ranks->count++] = world_rank;
    } else {
        late_ranks->more++;
    }
}

static bool is_waiting(int world_rank)
{
    for (int i = 0; i < heartbeat_slot_count(); i++) {
        struct heartbeat_view view = heartbeat_read(i);
        if (view.rank == world_rank) {
            return view.waiting;
        }
    }
    return false;
}

static void add_ranks_below(struct shared_group *group, size_t offset, uint64_t sequence,
                            struct late_ranks *late_ranks)
{
    for (int i = 0; i < group->local_size; i++) {
        int world_rank = group->world_rank[group->members[group->node_first[group->node] + i]];
        if (i != group->local_rank && read_counter(group, i, offset) < sequence &&
            !is_waiting(world_rank)) {
            add_late_rank(late_ranks, world_rank);
        }
    }
}

/* Adds the ranks of this host that do not wait while this rank waits. */
static void add_busy_ranks(struct late_ranks *late_ranks)
{
    for (int i = 0; i < heartbeat_slot_count(); i++) {
        struct heartbeat_view view = heartbeat_read(i);
        if (i != heartbeat_own_slot() && view.rank >= 0 && !view.waiting) {
            add_late_rank(late_ranks, view.rank);
        }
    }
}

static struct late_ranks find_late_ranks(struct shared_group *group,
                                         const struct shared_wait_condition *condition)
{
    struct late_ranks late_ranks = {0};
    bool is_exchange =
        condition->event == SHARED_EXCHANGE_ENTERED || condition->event == SHARED_EXCHANGE_ANSWERED;
    size_t entered = is_exchange ? offsetof(struct shared_control, exchange_entered)
                                 : offsetof(struct shared_control, ready);
    if (condition->event != SHARED_MESSAGES_DONE) {
        add_ranks_below(group, entered, condition->sequence, &late_ranks);
    }
    if (late_ranks.count == 0) {
        add_busy_ranks(&late_ranks);
    }
    return late_ranks;
}

static void add_remote_ranks(struct shared_group *group,
                             const struct shared_wait_condition *condition,
                             struct late_ranks *late_ranks)
{
    int late_sources[LISTED_MAX];
    int count = condition->batch == NULL
                    ? 0
                    : group->link->late_sources(condition->batch, late_sources, LISTED_MAX);
    for (int i = 0; i < count; i++) {
        add_late_rank(late_ranks, group->world_rank[late_sources[i]]);
    }
    for (int r = 0; count == 0 && r < group->size; r++) {
        if (group->node_of[r] != group->node) {
            add_late_rank(late_ranks, group->world_rank[r]);
        }
    }
}

/* Writes "no answer for 11.3 s in all-reduce number 7 (this rank's phase 'backward') from rank 2
 * host far ...". */
static void describe_wait(const struct shared_wait_condition *condition,
                          const struct late_ranks *late_ranks, double seconds, char *text,
                          size_t bytes)
{
    struct heartbeat_view view = heartbeat_read(heartbeat_own_slot());
    size_t used = (size_t)snprintf(text, bytes,
                                   "no answer for %.1f s in %s number %" PRIu64
                                   " (this rank's phase '%s') from %s",
                                   seconds, condition->operation, condition->sequence, view.phase,
                                   late_ranks->count == 0 ? "an unknown rank" : "");
    for (int i = 0; i < late_ranks->count && used < bytes; i++) {
        char description[HEARTBEAT_TEXT_BYTES];
        heartbeat_describe(late_ranks->ranks[i], description);
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i > 0 ? ", " : "", description);
    }
    if (late_ranks->more > 0 && used < bytes) {
        snprintf(text + used, bytes - used, " and %d more", late_ranks->more);
    }
}

_Noreturn static void end_job(struct shared_group *group,
                              const struct shared_wait_condition *condition,
                              const struct late_ranks *late_ranks, double seconds, status code)
{
    char text[LISTED_MAX * (HEARTBEAT_TEXT_BYTES + 2) + 256];
    describe_wait(condition, late_ranks, seconds, text, sizeof text);
    RAISE_STATUS(code,
                 code == STATUS_LOST
                     ? "%s, and the launcher ends this rank: check those hosts and the network "
                       "to them, then start again; the run resumes from its last checkpoint"
                     : "%s: check those ranks and their hosts, then start again; the run resumes "
                       "from its last checkpoint",
                 text);
    comm_abort(group->comm, code);
}

/* Returns whether this rank or a late rank is in a phase with a longer limit. For example, a
 * checkpoint may take longer than a step. */
static bool is_within_phase_limit(const struct late_ranks *late_ranks)
{
    for (int i = 0; i < heartbeat_slot_count(); i++) {
        struct heartbeat_view view = heartbeat_read(i);
        bool is_relevant = i == heartbeat_own_slot();
        for (int k = 0; k < late_ranks->count && !is_relevant; k++) {
            is_relevant = late_ranks->ranks[k] == view.rank;
        }
        if (is_relevant && view.limit_seconds > 0 && view.seconds < view.limit_seconds) {
            return true;
        }
    }
    return false;
}

/* Extends the deadline that has passed, once or while a phase limit allows it, or ends the job. */
static double extend_or_end(struct shared_group *group,
                            const struct shared_wait_condition *condition, double seconds,
                            bool *grace_used)
{
    struct late_ranks late_ranks = find_late_ranks(group, condition);
    if (is_within_phase_limit(&late_ranks)) {
        *grace_used = false;
        return seconds + DEADLINE_GRACE_SECONDS;
    }
    if (late_ranks.count == 0 && !*grace_used) {
        *grace_used = true;
        return seconds + DEADLINE_GRACE_SECONDS;
    }
    if (late_ranks.count == 0) {
        add_remote_ranks(group, condition, &late_ranks);
    }
    end_job(group, condition, &late_ranks, seconds, STATUS_HANG);
}

static bool (*is_terminating)(void);

void comm_set_termination_check(bool (*check)(void))
{
    is_terminating = check;
}

/* Ends the job and reports the missing ranks as lost, if the launcher is about to end this rank and
 * the wait has lasted for a while. */
static void end_if_terminating(struct shared_group *group,
                               const struct shared_wait_condition *condition, double seconds)
{
    if (is_terminating == NULL || seconds < DEADLINE_MIN_LOST_SECONDS || !is_terminating()) {
        return;
    }
    struct late_ranks late_ranks = find_late_ranks(group, condition);
    if (late_ranks.count == 0) {
        add_remote_ranks(group, condition, &late_ranks);
    }
    end_job(group, condition, &late_ranks, seconds, STATUS_LOST);
}

status shared_wait_until(struct shared_group *group, const struct shared_wait_condition *condition)
{
    struct backoff backoff = backoff_begin();
    double limit_seconds = group->comm->deadline_seconds;
    bool grace_used = false;
    status result = STATUS_OK;
    for (;;) {
        TRY_GOTO(result, out, shared_progress());
        bool is_met = false;
        TRY_GOTO(result, out, test_condition(group, condition, &is_met));
        if (is_met) {
            break;
        }
        heartbeat_waiting(true);
        backoff_wait(&backoff, group->nodes > 1 ? MESSAGE_SLEEP_SECONDS_MAX : SLEEP_SECONDS_MAX);
        end_if_terminating(group, condition, backoff.waited_seconds);
        if (!(backoff.waited_seconds <= limit_seconds)) {
            limit_seconds = extend_or_end(group, condition, backoff.waited_seconds, &grace_used);
        }
    }
out:
    heartbeat_waiting(false);
    return result;
}
