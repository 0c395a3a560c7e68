/* The collectives of shared.h.
 *
 * Small data: the exchange. Each rank copies its bytes into its control block and increments a
 * counter. On one node, every rank then reads the blocks of all ranks. Between nodes, the first
 * rank of each node sends the block of its node to the other first ranks, and publishes the result
 * for its node. Two buffers are used in turn: a rank that enters exchange e + 2 has seen all ranks
 * enter e + 1, so all ranks have read the result of e.
 *
 * Large data: an all-reduce is a reduce-scatter followed by an all-gather, in which rank r owns
 * ranges[r]. On one node both are one pass: when all ranks are ready, rank r adds its range of all
 * ranks' memory and writes the sum to all of them. Between nodes, one rank of each other node (its
 * handler for r) adds range r over its node and sends the sum to r. Rank r adds the sums of the
 * nodes in order. The result returns the same way. Each byte therefore crosses the network as often
 * as in a ring algorithm. Every sum has a fixed order: ranks within a node, then nodes.
 *
 * Functions of this file do not wait for other ranks, except shared_wait_until. A collective is a
 * state machine that shared_progress advances as far as possible. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "comm/partition.h"
#include "comm/shared/shared.h"
#include "comm/sum.h"

#define SHARD_ALIGNMENT_BYTES 64 /* each rank writes whole cache lines of an all-reduce */
#define TAGS 8192

enum state { STATE_STARTED, STATE_REDUCING, STATE_GATHERING, STATE_FINISHED };
enum message_kind { MESSAGE_PARTIAL = 0, MESSAGE_RESULT = 1 };

struct comm_request {
    struct comm_request *next;
    enum comm_collective kind;
    enum state state;
    bool is_complete;
    bool is_pulled; /* this rank has all data */
    uint64_t sequence;
    size_t element_bytes;
    struct comm_range *ranges; /* [size] */
    char **peers;              /* [local_size]: each local rank's memory of this collective */
    struct shared_batch *batch;
    /* [nodes - 1][own range]: sums of the other nodes; accumulate: [remote ranks][own range] */
    char *scratch;
    size_t scratch_bytes;
    char **parts; /* [size] */
    struct comm_accumulation accumulation;
    char *pull_target; /* destination of a lazy gather; NULL: ranks write to each other */
    struct comm_range *target_ranges; /* in pull_target: [size] */
};

static struct shared_group *groups; /* of this process; a wait in one group advances all */

size_t shared_control_bytes(int size)
{
    return sizeof(struct shared_control) + 2 * (size_t)size * COMM_SMALL_BYTES;
}

static const char *get_collective_name(enum comm_collective kind)
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
    case COMM_ACCUMULATE:
        return "ordered reduce-scatter";
    }
    return "collective";
}

static bool is_reduction(const struct comm_request *q)
{
    return q->kind == COMM_ALL_REDUCE || q->kind == COMM_REDUCE_SCATTER ||
           q->kind == COMM_ACCUMULATE;
}

/* ---- creation and destruction ---- */

status shared_open(struct shared_group *group)
{
    TRY(ALLOCATE(group->chunk_ranges, group->size, "the ranges of ranks"));
    TRY(ALLOCATE(group->stages, group->local_size, "the ranges of ranks"));
    for (int i = 0; i < group->local_size; i++) {
        group->stages[i] = group->control[i]->stage;
    }
    if (group->nodes > 1) {
        TRY(group->link->batch_create(group->link_state, &group->exchange_batch));
    }
    group->next_group = groups;
    groups = group;
    return STATUS_OK;
}

static void free_request(struct shared_group *group, struct comm_request *q)
{
    if (q->batch != NULL) {
        group->link->batch_destroy(q->batch);
    }
    free(q->ranges);
    free(q->target_ranges);
    free(q->peers);
    free(q->parts);
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
    struct comm_request *lists[] = {group->head, group->free_requests};
    for (int i = 0; i < 2; i++) {
        for (struct comm_request *q = lists[i], *next; q != NULL; q = next) {
            next = q->next;
            free_request(group, q);
        }
    }
    if (group->exchange_batch != NULL) {
        group->link->batch_destroy(group->exchange_batch);
    }
    free(group->chunk_ranges);
    free(group->stages);
}

/* ---- small data: the exchange ---- */

static char *get_exchange_result(struct shared_group *group, uint64_t sequence)
{
    return group->control[0]->exchange_result +
           (sequence & 1) * (size_t)group->size * COMM_SMALL_BYTES;
}

/* Collects the block of a node on its first rank and exchanges it for the blocks of the
 * other nodes. */
static status exchange_between_nodes(struct shared_group *group, uint64_t sequence, size_t bytes)
{
    struct shared_wait_condition entered = {
        .event = SHARED_EXCHANGE_ENTERED, .operation = "small exchange", .sequence = sequence};
    TRY(shared_wait_until(group, &entered));
    char *exchange_result = get_exchange_result(group, sequence);
    char *ours = exchange_result + (size_t)group->node_first[group->node] * bytes;
    for (int i = 0; i < group->local_size; i++) {
        memcpy(ours + (size_t)i * bytes, group->control[i]->exchange_data[sequence & 1], bytes);
    }
    struct shared_batch *batch = group->exchange_batch;
    int tag = (int)(sequence % TAGS);
    for (int n = 0; n < group->nodes; n++) {
        if (n == group->node) {
            continue;
        }
        int leader = group->members[group->node_first[n]];
        size_t block = (size_t)(group->node_first[n + 1] - group->node_first[n]) * bytes;
        TRY(group->link->receive(batch, SHARED_SMALL, leader, tag,
                                 exchange_result + (size_t)group->node_first[n] * bytes, block));
        TRY(group->link->send(batch, SHARED_SMALL, leader, tag, ours,
                              (size_t)group->local_size * bytes));
    }
    struct shared_wait_condition messages = {.event = SHARED_MESSAGES_DONE,
                                             .operation = "small exchange",
                                             .sequence = sequence,
                                             .batch = batch};
    TRY(shared_wait_until(group, &messages));
    atomic_store_explicit(&group->control[0]->exchange_answered, sequence, memory_order_release);
    return STATUS_OK;
}

status shared_exchange(struct shared_group *group, void *all, const void *own, size_t bytes)
{
    uint64_t sequence = ++group->exchange_count;
    struct shared_control *control = group->control[group->local_rank];
    memcpy(control->exchange_data[sequence & 1], own, bytes);
    atomic_store_explicit(&control->exchange_entered, sequence, memory_order_release);
    if (group->nodes == 1) {
        struct shared_wait_condition entered = {
            .event = SHARED_EXCHANGE_ENTERED, .operation = "small exchange", .sequence = sequence};
        TRY(shared_wait_until(group, &entered));
        for (int i = 0; i < group->local_size; i++) {
            memcpy((char *)all + (size_t)i * bytes, group->control[i]->exchange_data[sequence & 1],
                   bytes);
        }
        return STATUS_OK;
    }
    if (group->local_rank == 0) {
        TRY(exchange_between_nodes(group, sequence, bytes));
    } else {
        struct shared_wait_condition answered = {
            .event = SHARED_EXCHANGE_ANSWERED, .operation = "small exchange", .sequence = sequence};
        TRY(shared_wait_until(group, &answered));
    }
    const char *exchange_result = get_exchange_result(group, sequence);
    for (int k = 0; k < group->size; k++) {
        memcpy((char *)all + (size_t)group->members[k] * bytes, exchange_result + (size_t)k * bytes,
               bytes);
    }
    return STATUS_OK;
}

/* ---- large data: states of a collective ---- */

/* Returns the rank of node n that reduces and forwards the range of rank r. */
static int get_handler(const struct shared_group *group, int n, int r)
{
    int local_size = group->node_first[n + 1] - group->node_first[n];
    return group->members[group->node_first[n] + r % local_size];
}

static bool is_handler(const struct shared_group *group, int r)
{
    return group->node_of[r] != group->node && get_handler(group, group->node, r) == group->rank;
}

static char *get_own_range(const struct shared_group *group, const struct comm_request *q, int r)
{
    return q->peers[group->local_rank] + (size_t)q->ranges[r].first * q->element_bytes;
}

static size_t get_range_bytes(const struct comm_request *q, int r)
{
    return (size_t)q->ranges[r].count * q->element_bytes;
}

static int get_tag(const struct comm_request *q, enum message_kind message_kind)
{
    return (int)(q->sequence % TAGS) * 2 + (int)message_kind;
}

/* Copies range r of this rank's memory to the other ranks of the node. */
static void copy_to_local_ranks(const struct shared_group *group, const struct comm_request *q,
                                int r)
{
    size_t offset = (size_t)q->ranges[r].first * q->element_bytes;
    for (int i = 0; i < group->local_size; i++) {
        if (i != group->local_rank) {
            memcpy(q->peers[i] + offset, q->peers[group->local_rank] + offset,
                   get_range_bytes(q, r));
        }
    }
}

static void sum_local_ranks(const struct shared_group *group, const struct comm_request *q, int r)
{
    sum_into(get_own_range(group, q, r), q->peers, group->local_size, q->ranges[r].first,
             q->ranges[r].count, q->element_bytes);
}

static status reserve_scratch(struct comm_request *q, size_t bytes)
{
    if (bytes > q->scratch_bytes) {
        TRY(GROW(q->scratch, bytes, "sums of other nodes"));
        q->scratch_bytes = bytes;
    }
    return STATUS_OK;
}

static status assign_node_buffers(const struct shared_group *group, struct comm_request *q)
{
    size_t own_bytes = get_range_bytes(q, group->rank);
    TRY(reserve_scratch(q, (size_t)(group->nodes - 1) * own_bytes));
    for (int n = 0, other = 0; n < group->nodes; n++) {
        q->parts[n] = n == group->node ? get_own_range(group, q, group->rank)
                                       : q->scratch + (size_t)other++ * own_bytes;
    }
    return STATUS_OK;
}

/* Adds every contributor's elements of this rank's range, after they have arrived. */
static void accumulate_in_order(const struct shared_group *group, struct comm_request *q)
{
    const struct comm_accumulation *a = &q->accumulation;
    sum_accumulate(a->sums, a->overwrite, q->parts, a->contributors, q->ranges[group->rank].count);
    q->state = STATE_FINISHED;
}

/* Starts to receive the elements of each remote rank separately: the order is by rank, so the sum
 * of a node cannot be used. */
static status begin_accumulate(struct shared_group *group, struct comm_request *q)
{
    int own_rank = group->rank, remote = 0;
    size_t own_bytes = get_range_bytes(q, own_rank);
    TRY(reserve_scratch(q, (size_t)(group->size - group->local_size) * own_bytes));
    for (int i = 0; i < group->local_size; i++) {
        q->parts[group->members[group->node_first[group->node] + i]] =
            q->peers[i] + (size_t)q->ranges[own_rank].first * q->element_bytes;
    }
    for (int r = 0; r < group->size; r++) {
        if (group->node_of[r] == group->node) {
            continue;
        }
        if (own_bytes > 0 && r < q->accumulation.contributors) {
            q->parts[r] = q->scratch + (size_t)remote++ * own_bytes;
            TRY(group->link->receive(q->batch, SHARED_DATA, r, get_tag(q, MESSAGE_PARTIAL),
                                     q->parts[r], own_bytes));
        }
        if (own_rank < q->accumulation.contributors && get_range_bytes(q, r) > 0) {
            TRY(group->link->send(q->batch, SHARED_DATA, r, get_tag(q, MESSAGE_PARTIAL),
                                  get_own_range(group, q, r), get_range_bytes(q, r)));
        }
    }
    q->state = STATE_REDUCING;
    if (group->nodes == 1) {
        accumulate_in_order(group, q);
    }
    return STATUS_OK;
}

static status begin_reduce(struct shared_group *group, struct comm_request *q)
{
    int own_rank = group->rank;
    if (q->kind == COMM_ACCUMULATE) {
        return begin_accumulate(group, q);
    }
    if (group->nodes == 1) {
        if (q->kind == COMM_ALL_REDUCE) {
            sum_to_all(q->peers, group->local_size, q->ranges[own_rank].first,
                       q->ranges[own_rank].count, q->element_bytes);
        } else {
            sum_local_ranks(group, q, own_rank);
        }
        q->state = STATE_FINISHED;
        return STATUS_OK;
    }
    TRY(assign_node_buffers(group, q));
    for (int n = 0; n < group->nodes && q->ranges[own_rank].count > 0; n++) {
        if (n != group->node) {
            TRY(group->link->receive(q->batch, SHARED_DATA, get_handler(group, n, own_rank),
                                     get_tag(q, MESSAGE_PARTIAL), q->parts[n],
                                     get_range_bytes(q, own_rank)));
        }
    }
    for (int r = 0; r < group->size; r++) {
        if (q->ranges[r].count > 0 && is_handler(group, r)) {
            sum_local_ranks(group, q, r);
            TRY(group->link->send(q->batch, SHARED_DATA, r, get_tag(q, MESSAGE_PARTIAL),
                                  get_own_range(group, q, r), get_range_bytes(q, r)));
        }
    }
    sum_local_ranks(group, q, own_rank);
    q->state = STATE_REDUCING;
    return STATUS_OK;
}

/* Copies, then releases the source pages. Otherwise the pages of another process would also count
 * as memory of this process. */
static void copy_and_release_pages(char *to, char *from, size_t bytes)
{
    for (size_t done = 0, chunk; done < bytes; done += chunk) {
        chunk = bytes - done < SHARED_STAGE_BYTES ? bytes - done : SHARED_STAGE_BYTES;
        memcpy(to + done, from + done, chunk);
        memory_forget(from + done, chunk);
    }
}

/* Copies the ranges of the other ranks of the node to this rank's private memory. */
static void pull_local_shards(const struct shared_group *group, struct comm_request *q)
{
    for (int i = 0; i < group->local_size; i++) {
        int r = group->members[group->node_first[group->node] + i];
        if (i != group->local_rank) {
            copy_and_release_pages(
                q->pull_target + (size_t)q->target_ranges[r].first * q->element_bytes,
                q->peers[i] + (size_t)q->ranges[r].first * q->element_bytes, get_range_bytes(q, r));
        }
    }
    q->is_pulled = true;
}

static status begin_gather(struct shared_group *group, struct comm_request *q)
{
    int own_rank = group->rank;
    if (q->pull_target != NULL) {
        pull_local_shards(group, q);
        q->state = STATE_FINISHED;
        return STATUS_OK;
    }
    for (int r = 0; r < group->size && group->nodes > 1; r++) {
        if (q->ranges[r].count > 0 && is_handler(group, r)) {
            TRY(group->link->receive(q->batch, SHARED_DATA, r, get_tag(q, MESSAGE_RESULT),
                                     get_own_range(group, q, r), get_range_bytes(q, r)));
        }
    }
    for (int n = 0; n < group->nodes && q->ranges[own_rank].count > 0; n++) {
        if (n != group->node) {
            TRY(group->link->send(q->batch, SHARED_DATA, get_handler(group, n, own_rank),
                                  get_tag(q, MESSAGE_RESULT), get_own_range(group, q, own_rank),
                                  get_range_bytes(q, own_rank)));
        }
    }
    copy_to_local_ranks(group, q, own_rank);
    q->state = group->nodes > 1 ? STATE_GATHERING : STATE_FINISHED;
    return STATUS_OK;
}

static status end_reduce(struct shared_group *group, struct comm_request *q)
{
    if (q->kind == COMM_ACCUMULATE) {
        accumulate_in_order(group, q);
        return STATUS_OK;
    }
    sum_into(q->parts[group->node], q->parts, group->nodes, 0, q->ranges[group->rank].count,
             q->element_bytes);
    if (q->kind == COMM_ALL_REDUCE) {
        return begin_gather(group, q);
    }
    q->state = STATE_FINISHED;
    return STATUS_OK;
}

static void end_gather(struct shared_group *group, struct comm_request *q)
{
    for (int r = 0; r < group->size; r++) {
        if (q->ranges[r].count > 0 && is_handler(group, r)) {
            copy_to_local_ranks(group, q, r);
        }
    }
    q->state = STATE_FINISHED;
}

/* Checks that all ranks of the node, which have started number q->sequence, run the
 * same collective. */
static status check_signatures(const struct shared_group *group, const struct comm_request *q)
{
    size_t slot = q->sequence % SHARED_RING;
    const struct shared_signature *own = &group->control[group->local_rank]->signatures[slot];
    for (int i = 0; i < group->local_size; i++) {
        const struct shared_signature *other = &group->control[i]->signatures[slot];
        REQUIRE(other->hash == own->hash, STATUS_INTERNAL,
                "collective number %" PRIu64 " is %s of %" PRIu64
                " bytes on this rank and %s of %" PRIu64
                " bytes on rank %d of the group, or it uses other memory: all ranks must call "
                "collectives in the same order",
                q->sequence, get_collective_name((enum comm_collective)own->kind), own->bytes,
                get_collective_name((enum comm_collective)other->kind), other->bytes,
                group->members[group->node_first[group->node] + i]);
    }
    return STATUS_OK;
}

static status advance_request(struct shared_group *group, struct comm_request *q)
{
    if (q->state == STATE_STARTED) {
        if (!shared_all_reached(group, offsetof(struct shared_control, ready), q->sequence)) {
            return STATUS_OK;
        }
        TRY(check_signatures(group, q));
        TRY(is_reduction(q) ? begin_reduce(group, q) : begin_gather(group, q));
    }
    if (q->state == STATE_REDUCING || q->state == STATE_GATHERING) {
        bool done = false;
        TRY(group->link->test(q->batch, &done));
        if (done && q->state == STATE_REDUCING) {
            return end_reduce(group, q);
        }
        if (done) {
            end_gather(group, q);
        }
    }
    return STATUS_OK;
}

static status advance_group(struct shared_group *group)
{
    for (struct comm_request *q = group->head; q != NULL; q = q->next) {
        TRY(advance_request(group, q));
    }
    while (group->first_unpublished != NULL && group->first_unpublished->state == STATE_FINISHED) {
        atomic_store_explicit(&group->control[group->local_rank]->done,
                              group->first_unpublished->sequence, memory_order_release);
        group->first_unpublished = group->first_unpublished->next;
    }
    while (
        group->head != group->first_unpublished &&
        shared_all_reached(group, offsetof(struct shared_control, done), group->head->sequence)) {
        struct comm_request *q = group->head;
        group->head = q->next;
        group->in_flight--;
        q->is_complete = q->is_pulled = true;
        comm_work_finished(group->comm);
    }
    return STATUS_OK;
}

status shared_progress(void)
{
    for (struct shared_group *group = groups; group != NULL; group = group->next_group) {
        if (group->head != NULL) {
            TRY(advance_group(group));
        }
    }
    return STATUS_OK;
}

/* ---- large data: start ---- */

static status get_request(struct shared_group *group, struct comm_request **out)
{
    struct comm_request *q = group->free_requests;
    if (q != NULL) {
        group->free_requests = q->next;
        *out = q;
        return STATUS_OK;
    }
    TRY(ALLOCATE(q, 1, "a collective"));
    status result = STATUS_OK;
    TRY_GOTO(result, failed, ALLOCATE(q->ranges, group->size, "a collective"));
    TRY_GOTO(result, failed, ALLOCATE(q->target_ranges, group->size, "a collective"));
    TRY_GOTO(result, failed, ALLOCATE(q->peers, group->local_size, "a collective"));
    TRY_GOTO(result, failed, ALLOCATE(q->parts, group->size, "a collective"));
    if (group->nodes > 1) {
        TRY_GOTO(result, failed, group->link->batch_create(group->link_state, &q->batch));
    }
    *out = q;
    return STATUS_OK;
failed:
    free_request(group, q);
    return result;
}

static void fill_ranges(const struct shared_group *group, const struct comm_work *work,
                        struct comm_range *ranges)
{
    for (int r = 0; r < group->size; r++) {
        if (work->kind == COMM_ALL_REDUCE) {
            ranges[r] = partition_shard(
                work->count, SHARD_ALIGNMENT_BYTES / (int64_t)work->element_bytes, group->size, r);
        } else if (work->kind == COMM_BROADCAST) {
            ranges[r] = (struct comm_range){0, r == work->root ? work->count : 0};
        } else {
            ranges[r] = work->ranges[r];
        }
    }
}

/* Returns the number of elements from the start of data to the end of the last range. */
static int64_t get_extent(const struct shared_group *group, const struct comm_work *work)
{
    int64_t end = work->count;
    for (int r = 0; r < group->size && work->ranges != NULL; r++) {
        int64_t last = work->ranges[r].first + work->ranges[r].count;
        end = number_max(end, last);
    }
    return end;
}

/* Adds a word to an FNV-1a hash of 64-bit words. The hash detects ranks that are out of order; it
 * is not cryptographic. */
static uint64_t mix_hash(uint64_t hash, uint64_t value)
{
    return (hash ^ value) * 1099511628211u;
}

static void post_signature(struct shared_group *group, const struct comm_request *q,
                           uint64_t location)
{
    struct shared_signature signature = {.kind = q->kind};
    uint64_t hash =
        mix_hash(mix_hash(mix_hash(14695981039346656037u, q->kind), q->element_bytes), location);
    hash =
        mix_hash(mix_hash(hash, q->accumulation.overwrite), (uint64_t)q->accumulation.contributors);
    for (int r = 0; r < group->size; r++) {
        signature.bytes += get_range_bytes(q, r);
        hash = mix_hash(mix_hash(hash, (uint64_t)q->ranges[r].first), (uint64_t)q->ranges[r].count);
    }
    signature.hash = hash;
    struct shared_control *control = group->control[group->local_rank];
    control->signatures[q->sequence % SHARED_RING] = signature;
    atomic_store_explicit(&control->ready, q->sequence, memory_order_release);
}

status shared_launch(struct shared_group *group, const struct comm_work *work, char *const *base,
                     size_t offset, uint64_t id, struct comm_request **out)
{
    struct shared_wait_condition has_room = {.event = SHARED_RING_HAS_ROOM,
                                             .operation = "the oldest collective in flight",
                                             .sequence =
                                                 group->head == NULL ? 0 : group->head->sequence};
    TRY(shared_wait_until(group, &has_room));
    struct comm_request *q = NULL;
    TRY(get_request(group, &q));
    q->next = NULL;
    q->kind = work->kind;
    q->state = STATE_STARTED;
    q->is_complete = q->is_pulled = false;
    q->element_bytes = work->element_bytes;
    q->accumulation = work->accumulation;
    q->sequence = ++group->started_count;
    fill_ranges(group, work, q->ranges);
    q->pull_target = work->shared_source != NULL ? work->data : NULL;
    /* a lazy gather pulls from source_ranges to ranges */
    for (int r = 0; r < group->size && work->shared_source != NULL; r++) {
        q->target_ranges[r] = work->ranges[r];
        q->ranges[r] = work->source_ranges[r];
    }
    for (int i = 0; i < group->local_size; i++) {
        q->peers[i] = base[i] + offset;
    }
    *(group->head == NULL ? &group->head : &group->tail->next) = q;
    group->tail = q;
    group->first_unpublished = group->first_unpublished == NULL ? q : group->first_unpublished;
    group->in_flight++;
    comm_work_started(group->comm);
    post_signature(group, q, mix_hash(id, offset));
    *out = q;
    return shared_progress();
}

status shared_wait(struct shared_group *group, struct comm_request **request)
{
    struct comm_request *q = *request;
    *request = NULL;
    struct shared_wait_condition condition = {.event = SHARED_REQUEST_DONE,
                                              .operation = get_collective_name(q->kind),
                                              .sequence = q->sequence,
                                              .batch = q->batch,
                                              .is_complete = &q->is_complete};
    TRY(shared_wait_until(group, &condition));
    q->next = group->free_requests;
    group->free_requests = q;
    return STATUS_OK;
}

status shared_gather_pull(struct shared_group *group, struct comm_request *q)
{
    struct shared_wait_condition condition = {.event = SHARED_REQUEST_DONE,
                                              .operation = get_collective_name(q->kind),
                                              .sequence = q->sequence,
                                              .batch = q->batch,
                                              .is_complete = &q->is_pulled};
    return shared_wait_until(group, &condition);
}

/* ---- large data: choice of memory ---- */

static struct shared_window *find_window(const struct shared_group *group, const char *data,
                                         size_t bytes)
{
    struct shared_window *w = group->windows;
    while (w != NULL &&
           !(data >= (char *)w->memory && data + bytes <= (char *)w->memory + w->bytes)) {
        w = w->next;
    }
    return w;
}

/* Copies this rank's range into the window, from where other ranks pull it. */
static status start_lazy_gather(struct shared_group *group, const struct comm_work *work,
                                const struct shared_window *window, struct comm_request **out)
{
    struct comm_range from = work->ranges[group->rank], to = work->source_ranges[group->rank];
    memmove(work->shared_source + (size_t)to.first * work->element_bytes,
            work->data + (size_t)from.first * work->element_bytes,
            (size_t)from.count * work->element_bytes);
    return shared_launch(group, work, window->base,
                         (size_t)(work->shared_source - (char *)window->memory), window->id, out);
}

status shared_start(struct shared_group *group, const struct comm_work *requested,
                    struct comm_request **out)
{
    const struct shared_window *window = requested->shared_source != NULL && group->nodes == 1
                                             ? find_window(group, requested->shared_source, 0)
                                             : NULL;
    if (window != NULL) {
        return start_lazy_gather(group, requested, window, out);
    }
    struct comm_work plain = *requested, *work = &plain;
    plain.shared_source = NULL;
    size_t bytes = (size_t)get_extent(group, work) * work->element_bytes;
    window = find_window(group, work->data, bytes);
    if (window != NULL) {
        size_t offset = (size_t)(work->data - (char *)window->memory);
        return shared_launch(group, work, window->base, offset, window->id, out);
    }
    if (!group->needs_staging) {
        char *own[] = {work->data};
        return shared_launch(group, work, own, 0, 0, out);
    }
    return shared_run_staged(group, work, get_extent(group, work));
}
