/* Waiting for other ranks, and saying whose fault it is when they do not come.
 *
 * The numbers in the controls tell which ranks of this node a collective still lacks; the heartbeat
 * table tells what they do. A rank that itself waits for others is a witness, not a culprit. Where
 * all of this host wait, the culprit is on another host, whose ranks can name it, or has come this very
 * moment: there is some grace before this host speaks. */
#include <stdio.h>
#include <string.h>

#include "comm/heartbeat.h"
#include "comm/shared_impl.h"

#define TURN_SECONDS 500e-6    /* the longest sleep between two looks */
#define MESSAGE_SECONDS 100e-6 /* likewise while messages need pushing */
#define GRACE_SECONDS 2.0
#define LOST_SECONDS 3.0 /* who is killed in a shorter wait has no suspicion to tell */
#define LISTED 8         /* ranks named in one error */

static uint64_t counter(const struct shared_group *group, int place, size_t offset)
{
    const char *control = (const char *)group->control[place];
    const _Atomic uint64_t *value = (const _Atomic uint64_t *)(const void *)(control + offset);
    return atomic_load_explicit(value, memory_order_acquire);
}

bool shared_all_reached(const struct shared_group *group, size_t counter_offset, uint64_t sequence)
{
    for (int i = 0; i < group->locals; i++) {
        if (counter(group, i, counter_offset) < sequence) {
            return false;
        }
    }
    return true;
}

static status came_true(struct shared_group *group, const struct shared_wish *wish, bool *yes)
{
    *yes = false;
    switch (wish->event) {
    case SHARED_CAME:
        *yes = shared_all_reached(group, offsetof(struct shared_control, came), wish->sequence);
        return STATUS_OK;
    case SHARED_ANSWERED:
        *yes = counter(group, 0, offsetof(struct shared_control, answered)) >= wish->sequence;
        return STATUS_OK;
    case SHARED_MESSAGES:
        return group->link->test(wish->batch, yes);
    case SHARED_COMPLETE:
        *yes = *wish->complete;
        return STATUS_OK;
    case SHARED_ROOM:
        *yes = group->outstanding < SHARED_RING - 1;
        return STATUS_OK;
    }
    return STATUS_OK;
}

/* ---- who is missing ---- */

struct suspects {
    int ranks[LISTED]; /* of the world */
    int count;
    int more;
};

static void suspect(struct suspects *suspects, int world_rank)
{
    for (int i = 0; i < suspects->count; i++) {
        if (suspects->ranks[i] == world_rank) {
            return;
        }
    }
    if (suspects->count < LISTED) {
        suspects->ranks[suspects->count++] = world_rank;
    } else {
        suspects->more++;
    }
}

static bool waits_too(int world_rank)
{
    for (int i = 0; i < heartbeat_slots(); i++) {
        struct heartbeat_view view = heartbeat_view(i);
        if (view.rank == world_rank) {
            return view.waiting;
        }
    }
    return false;
}

static void suspect_below(struct shared_group *group, size_t offset, uint64_t sequence,
                          struct suspects *suspects)
{
    for (int i = 0; i < group->locals; i++) {
        int world_rank = group->world_rank[group->member[group->first[group->node] + i]];
        if (i != group->place && counter(group, i, offset) < sequence && !waits_too(world_rank)) {
            suspect(suspects, world_rank);
        }
    }
}

/* Ranks of this host that do something else while everybody waits. */
static void suspect_idle_witnesses(struct suspects *suspects)
{
    for (int i = 0; i < heartbeat_slots(); i++) {
        struct heartbeat_view view = heartbeat_view(i);
        if (i != heartbeat_mine() && view.rank >= 0 && !view.waiting) {
            suspect(suspects, view.rank);
        }
    }
}

static struct suspects find_suspects(struct shared_group *group, const struct shared_wish *wish)
{
    struct suspects suspects = {0};
    bool small = wish->event == SHARED_CAME || wish->event == SHARED_ANSWERED;
    size_t entered =
        small ? offsetof(struct shared_control, came) : offsetof(struct shared_control, ready);
    if (wish->event != SHARED_MESSAGES) {
        suspect_below(group, entered, wish->sequence, &suspects);
    }
    if (suspects.count == 0) {
        suspect_idle_witnesses(&suspects);
    }
    return suspects;
}

static void suspect_far_ranks(struct shared_group *group, const struct shared_wish *wish,
                              struct suspects *suspects)
{
    int missing[LISTED];
    int count = wish->batch == NULL ? 0 : group->link->missing(wish->batch, missing, LISTED);
    for (int i = 0; i < count; i++) {
        suspect(suspects, group->world_rank[missing[i]]);
    }
    for (int r = 0; count == 0 && r < group->size; r++) {
        if (group->node_of[r] != group->node) {
            suspect(suspects, group->world_rank[r]);
        }
    }
}

/* "no answer for 11.3 s in all-reduce number 7 (this rank's phase 'backward') from rank 2 host far ..." */
static void describe(const struct shared_wish *wish, const struct suspects *suspects,
                     double seconds, char *text, size_t bytes)
{
    struct heartbeat_view view = heartbeat_view(heartbeat_mine());
    size_t used = (size_t)snprintf(
        text, bytes, "no answer for %.1f s in %s number %llu (this rank's phase '%s') from %s",
        seconds, wish->operation, (unsigned long long)wish->sequence, view.phase,
        suspects->count == 0 ? "an unknown rank" : "");
    for (int i = 0; i < suspects->count && used < bytes; i++) {
        char one[HEARTBEAT_TEXT_BYTES];
        heartbeat_describe(suspects->ranks[i], one);
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i > 0 ? ", " : "", one);
    }
    if (suspects->more > 0 && used < bytes) {
        snprintf(text + used, bytes - used, " and %d more", suspects->more);
    }
}

_Noreturn static void end_for(struct shared_group *group, const struct shared_wish *wish,
                              const struct suspects *suspects, double seconds, status code)
{
    char text[LISTED * (HEARTBEAT_TEXT_BYTES + 2) + 256];
    describe(wish, suspects, seconds, text, sizeof text);
    status_raise(code, __FILE__, __LINE__,
                 code == STATUS_LOST
                     ? "%s, and the launcher ends this rank: look at those hosts and the network "
                       "to them, then start again; the run goes on from its last checkpoint"
                     : "%s: look at those ranks and their host, then start again; the run goes on "
                       "from its last checkpoint",
                 text);
    comm_abort(group->comm, code);
}

/* A phase with a limit of its own is given that time: a checkpoint may take longer than a step. */
static bool excused(const struct suspects *suspects)
{
    for (int i = 0; i < heartbeat_slots(); i++) {
        struct heartbeat_view view = heartbeat_view(i);
        bool asked = i == heartbeat_mine();
        for (int k = 0; k < suspects->count && !asked; k++) {
            asked = suspects->ranks[k] == view.rank;
        }
        if (asked && view.limit_seconds > 0 && view.seconds < view.limit_seconds) {
            return true;
        }
    }
    return false;
}

/* Time is up: give more of it, once more or while somebody has an excuse, or end the job. */
static double lose_patience(struct shared_group *group, const struct shared_wish *wish,
                            double seconds, bool *asked_all)
{
    struct suspects suspects = find_suspects(group, wish);
    if (excused(&suspects)) {
        *asked_all = false;
        return seconds + GRACE_SECONDS;
    }
    if (suspects.count == 0 && !*asked_all) {
        *asked_all = true;
        return seconds + GRACE_SECONDS;
    }
    if (suspects.count == 0) {
        suspect_far_ranks(group, wish, &suspects);
    }
    end_for(group, wish, &suspects, seconds, STATUS_HANG);
}

static bool (*ending)(void);

void comm_watch_end(bool (*ask)(void))
{
    ending = ask;
}

/* The launcher has given up already: who has been missing for so long is lost. */
static void end_if_killed(struct shared_group *group, const struct shared_wish *wish,
                          double seconds)
{
    if (ending == NULL || seconds < LOST_SECONDS || !ending()) {
        return;
    }
    struct suspects suspects = find_suspects(group, wish);
    if (suspects.count == 0) {
        suspect_far_ranks(group, wish, &suspects);
    }
    end_for(group, wish, &suspects, seconds, STATUS_LOST);
}

status shared_until(struct shared_group *group, const struct shared_wish *wish)
{
    struct patience patience = patience_begin();
    double until = group->comm->deadline_seconds;
    bool asked_all = false;
    status result = STATUS_OK;
    for (;;) {
        TRY_GOTO(result, out, shared_progress());
        bool yes = false;
        TRY_GOTO(result, out, came_true(group, wish, &yes));
        if (yes) {
            break;
        }
        heartbeat_waiting(true);
        patience_turn(&patience, group->nodes > 1 ? MESSAGE_SECONDS : TURN_SECONDS);
        end_if_killed(group, wish, patience.used_seconds);
        if (!(patience.used_seconds <= until)) {
            until = lose_patience(group, wish, patience.used_seconds, &asked_all);
        }
    }
out:
    heartbeat_waiting(false);
    return result;
}
