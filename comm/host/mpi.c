/* The communicator of ranks that mpirun or srun started. MPI finds the ranks, creates the memory
 * that the ranks of a node share, and carries the messages between nodes. The collectives are
 * in shared.c.
 *
 * Only the main thread calls MPI (MPI_THREAD_FUNNELED). The exception is MPI_Abort, which Open MPI
 * supports from any thread. MPI calls that create or free an object are collective and have no
 * deadline. Therefore a barrier with a deadline precedes each of them.
 *
 * The environment variable BIREME_COMM_NODES=k treats the ranks of each host as ranks of k nodes.
 * This tests the code for several nodes on one machine. */
#ifdef BIREME_MPI

#include "comm/host/mpi_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/deadlines.h"
#include "base/memory.h"
#include "base/number.h"
#include "comm/shared/shared.h"
#include "comm/watchdog/heartbeat.h"
#include "comm/watchdog/watchdog.h"

#define MESSAGE_BYTES ((size_t)1 << 30) /* MPI counts are ints: larger messages are split */

struct mpi_state {
    struct shared_group group;
    MPI_Comm channels[2]; /* indexed by enum shared_channel */
    MPI_Comm local;       /* the ranks of this node */
    struct shared_window control;
};

/* Facts about the world that every communicator uses. */
static struct {
    int rank, size;
    char *host_names;  /* [size][COMM_HOST_BYTES] */
    int64_t *host_of;  /* [size] the lowest rank on the same host */
    int64_t *node_key; /* [size] equal for ranks that share memory */
    MPI_Comm host;     /* the ranks of this host */
    MPI_Win heartbeat_window;
} world;

static void return_errors(MPI_Comm comm)
{
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
}

/* ---- messages ---- */

struct shared_batch {
    struct mpi_state *state;
    MPI_Request *requests;
    int *source_rank; /* the rank that sends the message; -1: an outgoing message */
    int count;
    int64_t capacity; /* of both arrays */
};

static status link_batch_create(void *state, struct shared_batch **out)
{
    TRY(ALLOCATE(*out, 1, "a batch of messages"));
    (*out)->state = state;
    return STATUS_OK;
}

static void link_batch_destroy(struct shared_batch *batch)
{
    free(batch->requests);
    free(batch->source_rank);
    free(batch);
}

/* Makes space for one more message. */
static status grow_batch(struct shared_batch *batch)
{
    int64_t capacity = batch->capacity;
    TRY(RESERVE(batch->requests, capacity, batch->count + 1, "messages"));
    return RESERVE(batch->source_rank, batch->capacity, batch->count + 1, "messages");
}

static status link_send(struct shared_batch *batch, enum shared_channel channel, int rank, int tag,
                        const void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes; done += MESSAGE_BYTES) {
        int chunk = (int)(bytes - done < MESSAGE_BYTES ? bytes - done : MESSAGE_BYTES);
        TRY(grow_batch(batch));
        TRY(comm_mpi_check(MPI_Isend((const char *)data + done, chunk, MPI_BYTE, rank, tag,
                                     batch->state->channels[channel],
                                     &batch->requests[batch->count]),
                           "sending to another host"));
        batch->source_rank[batch->count++] = -1;
    }
    return STATUS_OK;
}

static status link_receive(struct shared_batch *batch, enum shared_channel channel, int rank,
                           int tag, void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes; done += MESSAGE_BYTES) {
        int chunk = (int)(bytes - done < MESSAGE_BYTES ? bytes - done : MESSAGE_BYTES);
        TRY(grow_batch(batch));
        TRY(comm_mpi_check(MPI_Irecv((char *)data + done, chunk, MPI_BYTE, rank, tag,
                                     batch->state->channels[channel],
                                     &batch->requests[batch->count]),
                           "receiving from another host"));
        batch->source_rank[batch->count++] = rank;
    }
    return STATUS_OK;
}

static status link_test(struct shared_batch *batch, bool *done)
{
    int all_done = 0;
    TRY(comm_mpi_check(MPI_Testall(batch->count, batch->requests, &all_done, MPI_STATUSES_IGNORE),
                       "a message between hosts"));
    *done = all_done != 0;
    if (*done) {
        batch->count = 0;
    }
    return STATUS_OK;
}

static int link_late_sources(struct shared_batch *batch, int *ranks, int limit)
{
    int missing = 0;
    for (int i = 0; i < batch->count && missing < limit; i++) {
        int done = 0;
        if (batch->source_rank[i] >= 0) {
            MPI_Test(&batch->requests[i], &done, MPI_STATUS_IGNORE);
            if (!done) {
                ranks[missing++] = batch->source_rank[i];
            }
        }
    }
    return missing;
}

static const struct shared_link message_link = {.batch_create = link_batch_create,
                                                .batch_destroy = link_batch_destroy,
                                                .send = link_send,
                                                .receive = link_receive,
                                                .test = link_test,
                                                .late_sources = link_late_sources};

/* ---- groups ---- */

/* Numbers the nodes in the order of their lowest ranks. Shapes: keys [size]. */
static status assign_nodes(struct shared_group *group, const int64_t *keys)
{
    size_t size = (size_t)group->size;
    free(group->node_of);
    free(group->node_first);
    free(group->members);
    group->node_of = group->node_first = group->members = NULL; /* also after an error below */
    TRY(ALLOCATE(group->node_of, size, "a group of ranks"));
    TRY(ALLOCATE(group->node_first, size + 1, "a group of ranks"));
    TRY(ALLOCATE(group->members, size, "a group of ranks"));
    group->nodes = 0;
    int member_count = 0;
    for (int first_rank = 0; first_rank < group->size; first_rank++) {
        bool is_known = false;
        for (int r = 0; r < first_rank && !is_known; r++) {
            is_known = keys[r] == keys[first_rank];
        }
        for (int r = first_rank; r < group->size && !is_known; r++) {
            if (keys[r] == keys[first_rank]) {
                group->node_of[r] = group->nodes;
                group->members[member_count++] = r;
            }
        }
        if (!is_known) {
            group->node_first[++group->nodes] = member_count;
        }
    }
    group->node = group->node_of[group->rank];
    group->local_size = group->node_first[group->node + 1] - group->node_first[group->node];
    group->local_rank = 0;
    while (group->members[group->node_first[group->node] + group->local_rank] != group->rank) {
        group->local_rank++;
    }
    group->needs_staging = group->nodes < group->size;
    return STATUS_OK;
}

static status create_node_control(struct mpi_state *state, MPI_Comm all, const int64_t *keys,
                                  bool *is_made)
{
    struct shared_group *group = &state->group;
    TRY(assign_nodes(group, keys));
    TRY(comm_mpi_check(MPI_Comm_split(all, group->node, group->rank, &state->local),
                       "splitting by node"));
    return_errors(state->local);
    TRY(comm_mpi_window_create(all, state->local, group->local_size, group->local_rank,
                               shared_control_bytes(group->size), &state->control, is_made));
    return STATUS_OK;
}

/* Forms nodes of the ranks that share memory. If they cannot share memory, each rank is a node. */
static status connect_group(struct mpi_state *state, MPI_Comm all)
{
    struct shared_group *group = &state->group;
    int64_t *keys = NULL;
    TRY(ALLOCATE(keys, group->size, "the nodes of a group"));
    for (int r = 0; r < group->size; r++) {
        keys[r] = world.node_key[group->world_rank[r]];
    }
    bool is_made = false;
    status result = create_node_control(state, all, keys, &is_made);
    if (result == STATUS_OK && !is_made) {
        for (int r = 0; r < group->size; r++) {
            keys[r] = r;
        }
        MPI_Comm_free(&state->local);
        free(state->control.base);
        result = create_node_control(state, all, keys, &is_made);
    }
    free(keys);
    TRY(result);
    REQUIRE(is_made, STATUS_INTERNAL, "out of memory for %zu bytes for a communicator",
            shared_control_bytes(group->size));
    group->control = (struct shared_control **)(void *)state->control.base;
    return STATUS_OK;
}

static const struct comm_operations operations;

static void set_local_ranks(struct comm *comm, const struct shared_group *group)
{
    comm->local_size = 0;
    for (int r = 0; r < group->size; r++) {
        if (world.host_of[group->world_rank[r]] == world.host_of[world.rank]) {
            comm->local_rank = r == group->rank ? comm->local_size : comm->local_rank;
            comm->local_size++;
        }
    }
}

static void free_state(struct mpi_state *state)
{
    free(state->group.node_of);
    free(state->group.node_first);
    free(state->group.members);
    free(state->group.world_rank);
    free(state);
}

static status fill_state(struct mpi_state *state, MPI_Comm all)
{
    struct shared_group *group = &state->group;
    MPI_Comm_rank(all, &group->rank);
    MPI_Comm_size(all, &group->size);
    TRY(ALLOCATE(group->world_rank, group->size, "the ranks of a group"));
    TRY(comm_mpi_check(MPI_Allgather(&world.rank, 1, MPI_INT, group->world_rank, 1, MPI_INT, all),
                       "creating a communicator"));
    for (int i = 0; i < 2; i++) {
        TRY(comm_mpi_check(MPI_Comm_dup(all, &state->channels[i]), "creating a communicator"));
        return_errors(state->channels[i]);
    }
    TRY(connect_group(state, all));
    group->link = &message_link;
    group->link_state = state;
    return shared_open(group);
}

/* Creates a communicator of the ranks of `all`. The caller still owns `all`. */
static status mpi_create(MPI_Comm all, struct comm **out)
{
    struct mpi_state *state = NULL;
    TRY(ALLOCATE(state, 1, "a communicator"));
    struct comm *comm = NULL;
    status result = fill_state(state, all);
    if (result == STATUS_OK) {
        result = comm_create(&operations, state->group.rank, state->group.size, state, &comm);
    }
    if (result != STATUS_OK) {
        free_state(state);
        return result;
    }
    state->group.comm = comm;
    set_local_ranks(comm, &state->group);
    *out = comm;
    return STATUS_OK;
}

/* ---- operations ---- */

static status mpi_split(struct comm *comm, int color, int key, struct comm **out)
{
    struct mpi_state *state = comm->state;
    TRY(comm_barrier(comm));
    MPI_Comm split = MPI_COMM_NULL;
    TRY(comm_mpi_check(MPI_Comm_split(state->channels[SHARED_DATA], color, key, &split),
                       "splitting a communicator"));
    return_errors(split);
    status result = comm_abort_on_error(comm, mpi_create(split, out));
    MPI_Comm_free(&split);
    if (result == STATUS_OK) {
        (*out)->deadline_seconds = comm->deadline_seconds;
    }
    return result;
}

static status allocate_window(struct mpi_state *state, size_t bytes, void **out)
{
    struct shared_group *group = &state->group;
    struct shared_window *window = NULL;
    TRY(ALLOCATE(window, 1, "a window"));
    bool is_made = false;
    status result =
        comm_mpi_window_create(state->channels[SHARED_DATA], state->local, group->local_size,
                               group->local_rank, bytes, window, &is_made);
    if (result == STATUS_OK && is_made) {
        window->id = ++group->window_count;
        window->next = group->windows;
        group->windows = window;
        *out = window->memory;
        return STATUS_OK;
    }
    free(window->base);
    free(window);
    TRY(result);
    *out = memory_allocate_aligned(bytes); /* collectives on it use the staging buffers */
    REQUIRE(*out != NULL, STATUS_INTERNAL, "out of memory for %zu bytes for communication", bytes);
    return STATUS_OK;
}

static status mpi_allocate(struct comm *comm, size_t bytes, void **out)
{
    TRY(comm_barrier(comm));
    return comm_abort_on_error(comm, allocate_window(comm->state, bytes, out));
}

static status mpi_release(struct comm *comm, void *memory)
{
    struct shared_group *group = &((struct mpi_state *)comm->state)->group;
    TRY(comm_barrier(comm));
    for (struct shared_window **w = &group->windows; *w != NULL; w = &(*w)->next) {
        if ((*w)->memory == memory) {
            struct shared_window *window = *w;
            *w = window->next;
            comm_mpi_window_free(window);
            free(window);
            return STATUS_OK;
        }
    }
    free(memory);
    return STATUS_OK;
}

static status mpi_exchange(struct comm *comm, void *all, const void *own, size_t bytes)
{
    return shared_exchange(&((struct mpi_state *)comm->state)->group, all, own, bytes);
}

static status mpi_start(struct comm *comm, const struct comm_work *work, struct comm_request **out)
{
    return shared_start(&((struct mpi_state *)comm->state)->group, work, out);
}

static status mpi_progress(struct comm *comm)
{
    (void)comm;
    return shared_progress();
}

static status mpi_wait(struct comm *comm, struct comm_request **request)
{
    return shared_wait(&((struct mpi_state *)comm->state)->group, request);
}

static status mpi_gather_pull(struct comm *comm, struct comm_request *request)
{
    return shared_gather_pull(&((struct mpi_state *)comm->state)->group, request);
}

/* MPI_Abort of Open MPI prints eight lines and then calls this function. A direct call omits these
 * lines, which would hide the error of the rank. In other libraries, the pointer is NULL. */
typedef int abort_function(MPI_Comm comm, int code);
extern abort_function ompi_mpi_abort __attribute__((weak));

static void mpi_end(int code)
{
    if (ompi_mpi_abort != NULL) {
        ompi_mpi_abort(MPI_COMM_WORLD, code);
    }
    MPI_Abort(MPI_COMM_WORLD, code);
}

static void finalize_world(void)
{
    watchdog_stop();
    heartbeat_detach();
    if (watchdog_start(NULL, DEADLINE_MPI_FINALIZE_SECONDS) != STATUS_OK) {
        status_clear(); /* the shutdown continues without a watchdog */
    }
    watchdog_set_phase("finalize", 0);
    if (world.heartbeat_window != MPI_WIN_NULL) {
        MPI_Win_free(&world.heartbeat_window);
    }
    MPI_Comm_free(&world.host);
    MPI_Finalize();
    watchdog_stop();
    free(world.host_names);
    free(world.host_of);
    free(world.node_key);
    memset(&world, 0, sizeof world);
}

static status mpi_destroy(struct comm **comm)
{
    struct mpi_state *state = (*comm)->state;
    bool is_world = (*comm)->is_world;
    TRY(comm_barrier(*comm));
    shared_close(&state->group);
    while (state->group.windows != NULL) {
        struct shared_window *window = state->group.windows;
        state->group.windows = window->next;
        comm_mpi_window_free(window);
        free(window);
    }
    comm_mpi_window_free(&state->control);
    MPI_Comm_free(&state->local);
    MPI_Comm_free(&state->channels[SHARED_DATA]);
    MPI_Comm_free(&state->channels[SHARED_SMALL]);
    free_state(state);
    comm_release(comm);
    if (is_world) {
        finalize_world();
    }
    return STATUS_OK;
}

static const struct comm_operations operations = {.kind = "mpi",
                                                  .can_accumulate = true,
                                                  .destroy = mpi_destroy,
                                                  .split = mpi_split,
                                                  .allocate = mpi_allocate,
                                                  .release = mpi_release,
                                                  .exchange = mpi_exchange,
                                                  .start = mpi_start,
                                                  .progress = mpi_progress,
                                                  .wait = mpi_wait,
                                                  .gather_pull = mpi_gather_pull,
                                                  .end_job = mpi_end};

/* ---- the world ---- */

static status read_env_number(const char *name, double default_value, double *out)
{
    const char *text = getenv(name);
    *out = default_value;
    if (text == NULL) {
        return STATUS_OK;
    }
    char *end = NULL;
    *out = strtod(text, &end);
    REQUIRE(end != text && *end == '\0' && *out >= 1 && *out < 1e6, STATUS_USAGE,
            "environment variable %s=%s: must be a number from 1 to below 1000000", name, text);
    return STATUS_OK;
}

/* Reads the limit of the MPI start-up. An environment variable with a longer limit also extends the
 * limit of the whole start. */
static status read_init_limit(double *limit_seconds)
{
    double startup = watchdog_startup_limit();
    double default_seconds = startup > 0 ? startup : DEADLINE_START_SECONDS;
    TRY(read_env_number("BIREME_INIT_SECONDS", default_seconds, limit_seconds));
    return startup > 0 && *limit_seconds > startup ? watchdog_set_startup_limit(*limit_seconds)
                                                   : STATUS_OK;
}

/* Starts the watchdog and calls MPI_Init: a rank that hangs in it ends, and the launcher ends
 * the others. */
static status init_mpi(int *argc, char ***argv, double *limit_seconds)
{
    comm_identify_process();
    TRY(read_init_limit(limit_seconds));
    TRY(watchdog_start(NULL, *limit_seconds));
    watchdog_set_phase("MPI_Init", 0);
    int provided = MPI_THREAD_SINGLE;
    int code = MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
    REQUIRE(code == MPI_SUCCESS, STATUS_LOST, "MPI_Init_thread failed (code %d)", code);
    return_errors(MPI_COMM_WORLD);
    MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world.size);
    return STATUS_OK;
}

static status gather_host_names(void)
{
    size_t size = (size_t)world.size;
    TRY(ALLOCATE(world.host_names, size * COMM_HOST_BYTES, "the names of hosts"));
    TRY(ALLOCATE(world.host_of, size, "the hosts of the ranks"));
    TRY(ALLOCATE(world.node_key, size, "the nodes of the ranks"));
    char *own = world.host_names + (size_t)world.rank * COMM_HOST_BYTES;
    if (gethostname(own, COMM_HOST_BYTES - 1) != 0) {
        snprintf(own, COMM_HOST_BYTES, "unknown");
    }
    status_identify(world.rank, world.size, own);
    return comm_mpi_check(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, world.host_names,
                                        COMM_HOST_BYTES, MPI_CHAR, MPI_COMM_WORLD),
                          "gathering host names");
}

static status split_by_host(int *local_rank, int *local_size)
{
    TRY(comm_mpi_check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world.rank,
                                           MPI_INFO_NULL, &world.host),
                       "splitting by host"));
    return_errors(world.host);
    comm_mpi_window_set_host(world.host, world.host_names + (size_t)world.rank * COMM_HOST_BYTES);
    MPI_Comm_rank(world.host, local_rank);
    MPI_Comm_size(world.host, local_size);
    return STATUS_OK;
}

static status gather_node_keys(int local_rank, int local_size)
{
    double nodes_per_host = 1;
    TRY(read_env_number("BIREME_COMM_NODES", 1, &nodes_per_host));
    int64_t nodes = number_min((int64_t)nodes_per_host, local_size);
    int64_t own[2] = {world.rank, 0};
    TRY(comm_mpi_check(MPI_Bcast(&own[0], 1, MPI_INT64_T, 0, world.host),
                       "broadcasting the host's lowest rank"));
    own[1] = own[0] * world.size + local_rank * nodes / local_size;
    TRY(comm_mpi_check(
        MPI_Allgather(&own[0], 1, MPI_INT64_T, world.host_of, 1, MPI_INT64_T, MPI_COMM_WORLD),
        "gathering the hosts of the ranks"));
    return comm_mpi_check(
        MPI_Allgather(&own[1], 1, MPI_INT64_T, world.node_key, 1, MPI_INT64_T, MPI_COMM_WORLD),
        "gathering the hosts of the ranks");
}

/* Creates the heartbeat table of this host, or returns NULL if memory cannot be shared. */
static void *create_heartbeat_table(int local_rank, int local_size)
{
    void *table = NULL;
    bool has_room = false;
    MPI_Aint bytes = local_rank == 0 ? (MPI_Aint)heartbeat_bytes(local_size) : 0;
    status checked =
        comm_mpi_window_check_space(world.host, (int64_t)heartbeat_bytes(local_size), &has_room);
    if (checked != STATUS_OK || !has_room) {
        status_clear(); /* the barrier that follows fails too */
        world.heartbeat_window = MPI_WIN_NULL;
        return NULL;
    }
    if (MPI_Win_allocate_shared(bytes, 1, MPI_INFO_NULL, world.host, &table,
                                &world.heartbeat_window) != MPI_SUCCESS) {
        world.heartbeat_window = MPI_WIN_NULL;
        return NULL;
    }
    MPI_Aint size = 0;
    int unit = 0;
    if (MPI_Win_shared_query(world.heartbeat_window, 0, &size, &unit, &table) != MPI_SUCCESS) {
        return NULL;
    }
    if (local_rank == 0) {
        memset(table, 0, (size_t)size);
    }
    return table;
}

/* Attaches the heartbeat table and restarts the watchdog, which then checks all its slots. */
static status attach_heartbeat(int local_rank, int local_size, double limit_seconds)
{
    void *table = create_heartbeat_table(local_rank, local_size);
    TRY(comm_mpi_check(MPI_Barrier(world.host), "creating the heartbeat table"));
    watchdog_stop();
    heartbeat_attach(table, local_size, local_rank, world.rank, world.size, world.host_names);
    return watchdog_start(NULL, limit_seconds);
}

static status create_world(int *argc, char ***argv, struct comm **out)
{
    int local_rank = 0;
    int local_size = 1;
    double limit_seconds = 0;
    TRY(init_mpi(argc, argv, &limit_seconds));
    TRY(gather_host_names());
    TRY(split_by_host(&local_rank, &local_size));
    TRY(attach_heartbeat(local_rank, local_size, limit_seconds));
    TRY(gather_node_keys(local_rank, local_size));
    return mpi_create(MPI_COMM_WORLD, out);
}

status comm_mpi_world_create(int *argc, char ***argv, struct comm **out)
{
    status result = create_world(argc, argv, out);
    if (result != STATUS_OK || watchdog_startup_limit() == 0) {
        watchdog_stop(); /* otherwise it runs until the end of the start, without a gap */
    }
    TRY(result);
    (*out)->is_world = true;
    return STATUS_OK;
}

#endif
