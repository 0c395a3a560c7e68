/* The collectives of shared_impl.h.
 *
 * Small: an exchange. Each rank lays its bytes into its control and counts up; on one node everybody
 * then reads everybody's. Between nodes the first rank of each node sends its node's block to the
 * others and lays the answer out for its own. Two buffers in turn: who enters exchange e + 2 has seen
 * all enter e + 1, so that all have read e.
 *
 * Large: a sum is a reduce-scatter, then an all-gather, over ranges of which rank r owns ranges[r].
 * On one node both are one pass: when all are ready, rank r adds up its range of all ranks' memory
 * and writes the sum to all. Over nodes, the sum of range r on each foreign node is made and sent to
 * r by one rank of that node (its handler for r), r adds the nodes' sums in order, and the result
 * goes back the same way. So each byte crosses the network as often as a ring would send it, and
 * every sum has one order: ranks within a node, then nodes.
 *
 * Ranks never wait in here: a collective is a state that shared_progress pushes as far as it goes. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "comm/partition.h"
#include "comm/shared_impl.h"

#define SHARE_BYTES 64 /* ranks write in whole cache lines of an all-reduce */
#define TAGS 8192

enum stage { STAGE_STARTED, STAGE_REDUCING, STAGE_GATHERING, STAGE_FINISHED };
enum message { MESSAGE_PARTIAL = 0, MESSAGE_RESULT = 1 };

struct comm_request {
    struct comm_request *next;
    enum comm_collective kind;
    enum stage stage;
    bool complete;
    bool fetched; /* all that this rank needs is here */
    uint64_t sequence;
    size_t element_bytes;
    struct range *ranges; /* [size] */
    char **peer;          /* [locals] each local rank's memory for this collective */
    struct shared_batch *batch;
    char *
        scratch; /* [nodes - 1][own range]: the other nodes' sums; to add: [far ranks][own range] */
    size_t scratch_bytes;
    char **part; /* [size] */
    struct comm_addition addition;
    char *landing;        /* of what is fetched; NULL: ranks write to each other */
    struct range *places; /* in it: [size] */
};

static struct shared_group *groups; /* all of this process: a wait in one pushes the others on */

size_t shared_control_bytes(int size)
{
    return sizeof(struct shared_control) + 2 * (size_t)size * COMM_SMALL_BYTES;
}

static const char *collective_name(enum comm_collective kind)
{
    switch (kind) {
    case COMM_ALL_REDUCE:
        return "all-reduce";
    case COMM_REDUCE_SCATTER:
        return "reduce-scatter";
    case COMM_ALL_GATHER:
        return "all-gather";
    case COMM_BROADCAST:
        return "broadcast";
    case COMM_ADD:
        return "addition";
    }
    return "collective";
}

static bool reduces(const struct comm_request *q)
{
    return q->kind == COMM_ALL_REDUCE || q->kind == COMM_REDUCE_SCATTER || q->kind == COMM_ADD;
}

/* ---- opening and closing ---- */

status shared_open(struct shared_group *group)
{
    group->cut = calloc((size_t)group->size, sizeof *group->cut);
    group->stages = calloc((size_t)group->locals, sizeof *group->stages);
    REQUIRE(group->cut != NULL && group->stages != NULL, STATUS_INTERNAL,
            "out of memory: ranges of %d ranks", group->size);
    for (int i = 0; i < group->locals; i++) {
        group->stages[i] = group->control[i]->stage;
    }
    if (group->nodes > 1) {
        TRY(group->link->batch_create(group->link_state, &group->exchange_batch));
    }
    group->next_group = groups;
    groups = group;
    return STATUS_OK;
}

static void request_free(struct shared_group *group, struct comm_request *q)
{
    if (q->batch != NULL) {
        group->link->batch_destroy(q->batch);
    }
    free(q->ranges);
    free(q->places);
    free(q->peer);
    free(q->part);
    free(q->scratch);
    free(q);
}

void shared_close(struct shared_group *group)
{
    for (struct shared_group **g = &groups; *g != NULL; g = &(*g)->next_group) {
        if (*g == group) {
            *g = group->next_group;
            break;
        }
    }
    struct comm_request *lists[] = {group->head, group->spare};
    for (int i = 0; i < 2; i++) {
        for (struct comm_request *q = lists[i], *next; q != NULL; q = next) {
            next = q->next;
            request_free(group, q);
        }
    }
    if (group->exchange_batch != NULL) {
        group->link->batch_destroy(group->exchange_batch);
    }
    free(group->cut);
    free(group->stages);
}

/* ---- small: the exchange ---- */

static char *answer_of(struct shared_group *group, uint64_t sequence)
{
    return group->control[0]->answer + (sequence & 1) * (size_t)group->size * COMM_SMALL_BYTES;
}

/* The first rank of a node: collect the node's block, trade it for the other nodes' blocks. */
static status answer_exchange(struct shared_group *group, uint64_t sequence, size_t bytes)
{
    struct shared_wish came = {
        .event = SHARED_CAME, .operation = "small exchange", .sequence = sequence};
    TRY(shared_until(group, &came));
    char *answer = answer_of(group, sequence);
    char *ours = answer + (size_t)group->first[group->node] * bytes;
    for (int i = 0; i < group->locals; i++) {
        memcpy(ours + (size_t)i * bytes, group->control[i]->small[sequence & 1], bytes);
    }
    struct shared_batch *batch = group->exchange_batch;
    int tag = (int)(sequence % TAGS);
    for (int n = 0; n < group->nodes; n++) {
        if (n == group->node) {
            continue;
        }
        int leader = group->member[group->first[n]];
        size_t block = (size_t)(group->first[n + 1] - group->first[n]) * bytes;
        TRY(group->link->receive(batch, SHARED_SMALL, leader, tag,
                                 answer + (size_t)group->first[n] * bytes, block));
        TRY(group->link->send(batch, SHARED_SMALL, leader, tag, ours,
                              (size_t)group->locals * bytes));
    }
    struct shared_wish messages = {.event = SHARED_MESSAGES,
                                   .operation = "small exchange",
                                   .sequence = sequence,
                                   .batch = batch};
    TRY(shared_until(group, &messages));
    atomic_store_explicit(&group->control[0]->answered, sequence, memory_order_release);
    return STATUS_OK;
}

status shared_exchange(struct shared_group *group, void *all, const void *mine, size_t bytes)
{
    uint64_t sequence = ++group->exchanged;
    struct shared_control *control = group->control[group->place];
    memcpy(control->small[sequence & 1], mine, bytes);
    atomic_store_explicit(&control->came, sequence, memory_order_release);
    if (group->nodes == 1) {
        struct shared_wish came = {
            .event = SHARED_CAME, .operation = "small exchange", .sequence = sequence};
        TRY(shared_until(group, &came));
        for (int i = 0; i < group->locals; i++) {
            memcpy((char *)all + (size_t)i * bytes, group->control[i]->small[sequence & 1], bytes);
        }
        return STATUS_OK;
    }
    if (group->place == 0) {
        TRY(answer_exchange(group, sequence, bytes));
    } else {
        struct shared_wish answered = {
            .event = SHARED_ANSWERED, .operation = "small exchange", .sequence = sequence};
        TRY(shared_until(group, &answered));
    }
    const char *answer = answer_of(group, sequence);
    for (int k = 0; k < group->size; k++) {
        memcpy((char *)all + (size_t)group->member[k] * bytes, answer + (size_t)k * bytes, bytes);
    }
    return STATUS_OK;
}

/* ---- large: one collective's states ---- */

/* The rank of node n that answers there for rank r. */
static int handler(const struct shared_group *group, int n, int r)
{
    int locals = group->first[n + 1] - group->first[n];
    return group->member[group->first[n] + r % locals];
}

static bool handles(const struct shared_group *group, int r)
{
    return group->node_of[r] != group->node && handler(group, group->node, r) == group->rank;
}

static char *own_memory(const struct shared_group *group, const struct comm_request *q, int r)
{
    return q->peer[group->place] + (size_t)q->ranges[r].first * q->element_bytes;
}

static size_t range_bytes(const struct comm_request *q, int r)
{
    return (size_t)q->ranges[r].count * q->element_bytes;
}

static int tag_of(const struct comm_request *q, enum message message)
{
    return (int)(q->sequence % TAGS) * 2 + (int)message;
}

/* Copy range r of this rank's memory to the other ranks of the node. */
static void spread(const struct shared_group *group, const struct comm_request *q, int r)
{
    size_t offset = (size_t)q->ranges[r].first * q->element_bytes;
    for (int i = 0; i < group->locals; i++) {
        if (i != group->place) {
            memcpy(q->peer[i] + offset, q->peer[group->place] + offset, range_bytes(q, r));
        }
    }
}

static void sum_locally(const struct shared_group *group, const struct comm_request *q, int r)
{
    sum_into(own_memory(group, q, r), q->peer, group->locals, q->ranges[r].first,
             q->ranges[r].count, q->element_bytes);
}

static status reserve_scratch(struct comm_request *q, size_t bytes)
{
    if (bytes > q->scratch_bytes) {
        free(q->scratch);
        q->scratch_bytes = 0;
        q->scratch = malloc(bytes);
        REQUIRE(q->scratch != NULL, STATUS_INTERNAL,
                "out of memory: %zu bytes for other hosts' sums", bytes);
        q->scratch_bytes = bytes;
    }
    return STATUS_OK;
}

static status make_scratch(const struct shared_group *group, struct comm_request *q)
{
    size_t each = range_bytes(q, group->rank);
    TRY(reserve_scratch(q, (size_t)(group->nodes - 1) * each));
    for (int n = 0, other = 0; n < group->nodes; n++) {
        q->part[n] = n == group->node ? own_memory(group, q, group->rank)
                                      : q->scratch + (size_t)other++ * each;
    }
    return STATUS_OK;
}

/* Every rank's elements of this rank's range, once they are here. */
static void add_in_order(const struct shared_group *group, struct comm_request *q)
{
    const struct comm_addition *a = &q->addition;
    sum_in_order(a->sums, a->fresh, q->part, a->addends, q->ranges[group->rank].count);
    q->stage = STAGE_FINISHED;
}

/* No node's sum can stand for its ranks' here: each far rank's elements come on their own. */
static status begin_add(struct shared_group *group, struct comm_request *q)
{
    int me = group->rank, far = 0;
    size_t each = range_bytes(q, me);
    TRY(reserve_scratch(q, (size_t)(group->size - group->locals) * each));
    for (int i = 0; i < group->locals; i++) {
        q->part[group->member[group->first[group->node] + i]] =
            q->peer[i] + (size_t)q->ranges[me].first * q->element_bytes;
    }
    for (int r = 0; r < group->size; r++) {
        if (group->node_of[r] == group->node) {
            continue;
        }
        if (each > 0 && r < q->addition.addends) {
            q->part[r] = q->scratch + (size_t)far++ * each;
            TRY(group->link->receive(q->batch, SHARED_DATA, r, tag_of(q, MESSAGE_PARTIAL),
                                     q->part[r], each));
        }
        if (me < q->addition.addends && range_bytes(q, r) > 0) {
            TRY(group->link->send(q->batch, SHARED_DATA, r, tag_of(q, MESSAGE_PARTIAL),
                                  own_memory(group, q, r), range_bytes(q, r)));
        }
    }
    q->stage = STAGE_REDUCING;
    if (group->nodes == 1) {
        add_in_order(group, q);
    }
    return STATUS_OK;
}

static status begin_reduce(struct shared_group *group, struct comm_request *q)
{
    int me = group->rank;
    if (q->kind == COMM_ADD) {
        return begin_add(group, q);
    }
    if (group->nodes == 1) {
        if (q->kind == COMM_ALL_REDUCE) {
            sum_spread(q->peer, group->locals, q->ranges[me].first, q->ranges[me].count,
                       q->element_bytes);
        } else {
            sum_locally(group, q, me);
        }
        q->stage = STAGE_FINISHED;
        return STATUS_OK;
    }
    TRY(make_scratch(group, q));
    for (int n = 0; n < group->nodes && q->ranges[me].count > 0; n++) {
        if (n != group->node) {
            TRY(group->link->receive(q->batch, SHARED_DATA, handler(group, n, me),
                                     tag_of(q, MESSAGE_PARTIAL), q->part[n], range_bytes(q, me)));
        }
    }
    for (int r = 0; r < group->size; r++) {
        if (q->ranges[r].count > 0 && handles(group, r)) {
            sum_locally(group, q, r);
            TRY(group->link->send(q->batch, SHARED_DATA, r, tag_of(q, MESSAGE_PARTIAL),
                                  own_memory(group, q, r), range_bytes(q, r)));
        }
    }
    sum_locally(group, q, me);
    q->stage = STAGE_REDUCING;
    return STATUS_OK;
}

/* The pages of another process that were read would count as this one's memory too. */
static void copy_and_forget(char *to, char *from, size_t bytes)
{
    for (size_t done = 0, piece; done < bytes; done += piece) {
        piece = bytes - done < SHARED_STAGE_BYTES ? bytes - done : SHARED_STAGE_BYTES;
        memcpy(to + done, from + done, piece);
        memory_forget(from + done, piece);
    }
}

/* Copy the other ranks' parts to where this rank alone sees them. */
static void fetch(const struct shared_group *group, struct comm_request *q)
{
    for (int i = 0; i < group->locals; i++) {
        int r = group->member[group->first[group->node] + i];
        if (i != group->place) {
            copy_and_forget(q->landing + (size_t)q->places[r].first * q->element_bytes,
                            q->peer[i] + (size_t)q->ranges[r].first * q->element_bytes,
                            range_bytes(q, r));
        }
    }
    q->fetched = true;
}

static status begin_gather(struct shared_group *group, struct comm_request *q)
{
    int me = group->rank;
    if (q->landing != NULL) {
        fetch(group, q);
        q->stage = STAGE_FINISHED;
        return STATUS_OK;
    }
    for (int r = 0; r < group->size && group->nodes > 1; r++) {
        if (q->ranges[r].count > 0 && handles(group, r)) {
            TRY(group->link->receive(q->batch, SHARED_DATA, r, tag_of(q, MESSAGE_RESULT),
                                     own_memory(group, q, r), range_bytes(q, r)));
        }
    }
    for (int n = 0; n < group->nodes && q->ranges[me].count > 0; n++) {
        if (n != group->node) {
            TRY(group->link->send(q->batch, SHARED_DATA, handler(group, n, me),
                                  tag_of(q, MESSAGE_RESULT), own_memory(group, q, me),
                                  range_bytes(q, me)));
        }
    }
    spread(group, q, me);
    q->stage = group->nodes > 1 ? STAGE_GATHERING : STAGE_FINISHED;
    return STATUS_OK;
}

static status end_reduce(struct shared_group *group, struct comm_request *q)
{
    if (q->kind == COMM_ADD) {
        add_in_order(group, q);
        return STATUS_OK;
    }
    sum_into(q->part[group->node], q->part, group->nodes, 0, q->ranges[group->rank].count,
             q->element_bytes);
    if (q->kind == COMM_ALL_REDUCE) {
        return begin_gather(group, q);
    }
    q->stage = STAGE_FINISHED;
    return STATUS_OK;
}

static void end_gather(struct shared_group *group, struct comm_request *q)
{
    for (int r = 0; r < group->size; r++) {
        if (q->ranges[r].count > 0 && handles(group, r)) {
            spread(group, q, r);
        }
    }
    q->stage = STAGE_FINISHED;
}

/* All ranks of the node have started number q->sequence: it must be the same collective. */
static status check_notices(const struct shared_group *group, const struct comm_request *q)
{
    size_t slot = q->sequence % SHARED_RING;
    const struct shared_notice *mine = &group->control[group->place]->notices[slot];
    for (int i = 0; i < group->locals; i++) {
        const struct shared_notice *other = &group->control[i]->notices[slot];
        REQUIRE(
            other->check == mine->check, STATUS_INTERNAL,
            "collective number %llu is %s of %llu bytes here and %s of %llu bytes on rank %d of "
            "the group, or on other memory: ranks call collectives in one order",
            (unsigned long long)q->sequence, collective_name((enum comm_collective)mine->kind),
            (unsigned long long)mine->bytes, collective_name((enum comm_collective)other->kind),
            (unsigned long long)other->bytes, group->member[group->first[group->node] + i]);
    }
    return STATUS_OK;
}

static status push(struct shared_group *group, struct comm_request *q)
{
    if (q->stage == STAGE_STARTED) {
        if (!shared_all_reached(group, offsetof(struct shared_control, ready), q->sequence)) {
            return STATUS_OK;
        }
        TRY(check_notices(group, q));
        TRY(reduces(q) ? begin_reduce(group, q) : begin_gather(group, q));
    }
    if (q->stage == STAGE_REDUCING || q->stage == STAGE_GATHERING) {
        bool done = false;
        TRY(group->link->test(q->batch, &done));
        if (done && q->stage == STAGE_REDUCING) {
            return end_reduce(group, q);
        }
        if (done) {
            end_gather(group, q);
        }
    }
    return STATUS_OK;
}

static status push_group(struct shared_group *group)
{
    for (struct comm_request *q = group->head; q != NULL; q = q->next) {
        TRY(push(group, q));
    }
    while (group->unpublished != NULL && group->unpublished->stage == STAGE_FINISHED) {
        atomic_store_explicit(&group->control[group->place]->done, group->unpublished->sequence,
                              memory_order_release);
        group->unpublished = group->unpublished->next;
    }
    while (
        group->head != group->unpublished &&
        shared_all_reached(group, offsetof(struct shared_control, done), group->head->sequence)) {
        struct comm_request *q = group->head;
        group->head = q->next;
        group->outstanding--;
        q->complete = q->fetched = true;
        comm_work_finished(group->comm);
    }
    return STATUS_OK;
}

status shared_progress(void)
{
    for (struct shared_group *group = groups; group != NULL; group = group->next_group) {
        if (group->head != NULL) {
            TRY(push_group(group));
        }
    }
    return STATUS_OK;
}

/* ---- large: starting ---- */

static status request_take(struct shared_group *group, struct comm_request **out)
{
    struct comm_request *q = group->spare;
    if (q != NULL) {
        group->spare = q->next;
        *out = q;
        return STATUS_OK;
    }
    q = calloc(1, sizeof *q);
    REQUIRE(q != NULL, STATUS_INTERNAL, "out of memory: a collective");
    q->ranges = calloc((size_t)group->size, sizeof *q->ranges);
    q->places = calloc((size_t)group->size, sizeof *q->places);
    q->peer = calloc((size_t)group->locals, sizeof *q->peer);
    q->part = calloc((size_t)group->size, sizeof *q->part);
    status result = STATUS_OK;
    REQUIRE_GOTO(result, failed,
                 q->ranges != NULL && q->places != NULL && q->peer != NULL && q->part != NULL,
                 STATUS_INTERNAL, "out of memory: a collective of %d ranks", group->size);
    if (group->nodes > 1) {
        TRY_GOTO(result, failed, group->link->batch_create(group->link_state, &q->batch));
    }
    *out = q;
    return STATUS_OK;
failed:
    request_free(group, q);
    return result;
}

static void fill_ranges(const struct shared_group *group, const struct comm_work *work,
                        struct range *ranges)
{
    for (int r = 0; r < group->size; r++) {
        if (work->kind == COMM_ALL_REDUCE) {
            ranges[r] = partition_share(work->count, SHARE_BYTES / (int64_t)work->element_bytes,
                                        group->size, r);
        } else if (work->kind == COMM_BROADCAST) {
            ranges[r] = (struct range){0, r == work->root ? work->count : 0};
        } else {
            ranges[r] = work->ranges[r];
        }
    }
}

/* Elements from the start of data to the end of the last range. */
static int64_t extent(const struct shared_group *group, const struct comm_work *work)
{
    int64_t end = work->count;
    for (int r = 0; r < group->size && work->ranges != NULL; r++) {
        int64_t last = work->ranges[r].first + work->ranges[r].count;
        end = last > end ? last : end;
    }
    return end;
}

/* FNV-1a over 64-bit words: tells ranks apart that are out of order, no defence against anybody. */
static uint64_t mix(uint64_t hash, uint64_t word)
{
    return (hash ^ word) * 1099511628211u;
}

static void post_notice(struct shared_group *group, const struct comm_request *q, uint64_t place)
{
    struct shared_notice notice = {.kind = q->kind};
    uint64_t hash = mix(mix(mix(14695981039346656037u, q->kind), q->element_bytes), place);
    hash = mix(mix(hash, q->addition.fresh), (uint64_t)q->addition.addends);
    for (int r = 0; r < group->size; r++) {
        notice.bytes += range_bytes(q, r);
        hash = mix(mix(hash, (uint64_t)q->ranges[r].first), (uint64_t)q->ranges[r].count);
    }
    notice.check = hash;
    struct shared_control *control = group->control[group->place];
    control->notices[q->sequence % SHARED_RING] = notice;
    atomic_store_explicit(&control->ready, q->sequence, memory_order_release);
}

status shared_launch(struct shared_group *group, const struct comm_work *work, char *const *base,
                     size_t offset, uint64_t id, struct comm_request **out)
{
    struct shared_wish room = {.event = SHARED_ROOM,
                               .operation = "the oldest collective under way",
                               .sequence = group->head == NULL ? 0 : group->head->sequence};
    TRY(shared_until(group, &room));
    struct comm_request *q = NULL;
    TRY(request_take(group, &q));
    q->next = NULL;
    q->kind = work->kind;
    q->stage = STAGE_STARTED;
    q->complete = q->fetched = false;
    q->element_bytes = work->element_bytes;
    q->addition = work->addition;
    q->sequence = ++group->started;
    fill_ranges(group, work, q->ranges);
    q->landing = work->lent != NULL ? work->data : NULL;
    for (int r = 0; r < group->size && work->lent != NULL; r++) { /* from there to here */
        q->places[r] = work->ranges[r];
        q->ranges[r] = work->places[r];
    }
    for (int i = 0; i < group->locals; i++) {
        q->peer[i] = base[i] + offset;
    }
    *(group->head == NULL ? &group->head : &group->tail->next) = q;
    group->tail = q;
    group->unpublished = group->unpublished == NULL ? q : group->unpublished;
    group->outstanding++;
    comm_work_started(group->comm);
    post_notice(group, q, mix(id, offset));
    *out = q;
    return shared_progress();
}

status shared_wait(struct shared_group *group, struct comm_request **request)
{
    struct comm_request *q = *request;
    *request = NULL;
    struct shared_wish wish = {.event = SHARED_COMPLETE,
                               .operation = collective_name(q->kind),
                               .sequence = q->sequence,
                               .batch = q->batch,
                               .complete = &q->complete};
    TRY(shared_until(group, &wish));
    q->next = group->spare;
    group->spare = q;
    return STATUS_OK;
}

status shared_fetch(struct shared_group *group, struct comm_request *q)
{
    struct shared_wish wish = {.event = SHARED_COMPLETE,
                               .operation = collective_name(q->kind),
                               .sequence = q->sequence,
                               .batch = q->batch,
                               .complete = &q->fetched};
    return shared_until(group, &wish);
}

/* ---- large: which memory ---- */

static struct shared_window *window_of(const struct shared_group *group, const char *data,
                                       size_t bytes)
{
    struct shared_window *w = group->windows;
    while (w != NULL &&
           !(data >= (char *)w->memory && data + bytes <= (char *)w->memory + w->bytes)) {
        w = w->next;
    }
    return w;
}

/* This rank's part lies in the window from now on. */
static status lend(struct shared_group *group, const struct comm_work *work,
                   const struct shared_window *window, struct comm_request **out)
{
    struct range from = work->ranges[group->rank], to = work->places[group->rank];
    memmove(work->lent + (size_t)to.first * work->element_bytes,
            work->data + (size_t)from.first * work->element_bytes,
            (size_t)from.count * work->element_bytes);
    return shared_launch(group, work, window->base, (size_t)(work->lent - (char *)window->memory),
                         window->id, out);
}

status shared_start(struct shared_group *group, const struct comm_work *start,
                    struct comm_request **out)
{
    const struct shared_window *window =
        start->lent != NULL && group->nodes == 1 ? window_of(group, start->lent, 0) : NULL;
    if (window != NULL) {
        return lend(group, start, window, out);
    }
    struct comm_work plain = *start, *work = &plain;
    plain.lent = NULL;
    size_t bytes = (size_t)extent(group, work) * work->element_bytes;
    window = window_of(group, work->data, bytes);
    if (window != NULL) {
        size_t offset = (size_t)(work->data - (char *)window->memory);
        return shared_launch(group, work, window->base, offset, window->id, out);
    }
    if (!group->staged) {
        char *own[] = {work->data};
        return shared_launch(group, work, own, 0, 0, out);
    }
    return shared_through_stage(group, work, extent(group, work));
}
