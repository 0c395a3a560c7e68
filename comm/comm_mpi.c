/* Ranks that mpirun or srun started: MPI finds them, makes the memory that ranks of a host share, and
 * carries the messages between hosts. The collectives themselves are in shared.c.
 *
 * Only the main thread calls MPI (MPI_THREAD_FUNNELED), but for MPI_Abort, which Open MPI carries out
 * from any thread. Calls that make or free something are collective and cannot be given a deadline:
 * a barrier that has one goes before each.
 *
 * BIREME_COMM_NODES=k in the environment treats the ranks of each host as if they lived on k hosts,
 * so that one machine can exercise what several do. */
#ifdef BIREME_MPI

#include "comm/comm_impl.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "comm/heartbeat.h"
#include "comm/shared_impl.h"

#define MESSAGE_BYTES ((size_t)1 << 30) /* MPI counts are ints: larger messages go in pieces */
#define PAGE 4096
#define FINALIZE_SECONDS 60.0
#define INIT_SECONDS 300.0

struct mpi_state {
    struct shared_group group;
    MPI_Comm channels[2]; /* indexed by shared_channel */
    MPI_Comm local;       /* the ranks of this node */
    struct shared_window control;
};

/* What every communicator must know about the world. */
static struct {
    int rank, size;
    char *hosts;       /* [size][COMM_HOST_BYTES] */
    int64_t *host_of;  /* [size] the lowest rank on the same host */
    int64_t *node_key; /* [size] equal for ranks that share memory */
    MPI_Comm host;     /* the ranks of this host */
    MPI_Win heartbeat_window;
} world;

static status check(int code, const char *what)
{
    if (code == MPI_SUCCESS) {
        return STATUS_OK;
    }
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    RAISE(STATUS_LOST, "%s failed: %s", what, text);
}

static void return_errors(MPI_Comm comm)
{
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
}

/* ---- messages ---- */

struct shared_batch {
    struct mpi_state *state;
    MPI_Request *requests;
    int *from; /* the rank that a message comes from; -1: it goes out */
    int count;
    int capacity;
};

static status link_batch_create(void *state, struct shared_batch **out)
{
    *out = calloc(1, sizeof **out);
    REQUIRE(*out != NULL, STATUS_INTERNAL, "out of memory: messages");
    (*out)->state = state;
    return STATUS_OK;
}

static void link_batch_destroy(struct shared_batch *batch)
{
    free(batch->requests);
    free(batch->from);
    free(batch);
}

static status make_room(struct shared_batch *batch)
{
    if (batch->count < batch->capacity) {
        return STATUS_OK;
    }
    int capacity = 2 * batch->capacity + 8;
    MPI_Request *requests = realloc(batch->requests, (size_t)capacity * sizeof *requests);
    REQUIRE(requests != NULL, STATUS_INTERNAL, "out of memory: %d messages", capacity);
    batch->requests = requests;
    int *from = realloc(batch->from, (size_t)capacity * sizeof *from);
    REQUIRE(from != NULL, STATUS_INTERNAL, "out of memory: %d messages", capacity);
    batch->from = from;
    batch->capacity = capacity;
    return STATUS_OK;
}

static status link_send(struct shared_batch *batch, enum shared_channel channel, int rank, int tag,
                        const void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes; done += MESSAGE_BYTES) {
        int piece = (int)(bytes - done < MESSAGE_BYTES ? bytes - done : MESSAGE_BYTES);
        TRY(make_room(batch));
        TRY(check(MPI_Isend((const char *)data + done, piece, MPI_BYTE, rank, tag,
                            batch->state->channels[channel], &batch->requests[batch->count]),
                  "sending to another host"));
        batch->from[batch->count++] = -1;
    }
    return STATUS_OK;
}

static status link_receive(struct shared_batch *batch, enum shared_channel channel, int rank,
                           int tag, void *data, size_t bytes)
{
    for (size_t done = 0; done < bytes; done += MESSAGE_BYTES) {
        int piece = (int)(bytes - done < MESSAGE_BYTES ? bytes - done : MESSAGE_BYTES);
        TRY(make_room(batch));
        TRY(check(MPI_Irecv((char *)data + done, piece, MPI_BYTE, rank, tag,
                            batch->state->channels[channel], &batch->requests[batch->count]),
                  "receiving from another host"));
        batch->from[batch->count++] = rank;
    }
    return STATUS_OK;
}

static status link_test(struct shared_batch *batch, bool *done)
{
    int all = 0;
    TRY(check(MPI_Testall(batch->count, batch->requests, &all, MPI_STATUSES_IGNORE),
              "a message between hosts"));
    *done = all != 0;
    if (*done) {
        batch->count = 0;
    }
    return STATUS_OK;
}

static int link_missing(struct shared_batch *batch, int *ranks, int limit)
{
    int missing = 0;
    for (int i = 0; i < batch->count && missing < limit; i++) {
        int done = 0;
        if (batch->from[i] >= 0) {
            MPI_Test(&batch->requests[i], &done, MPI_STATUS_IGNORE);
            if (!done) {
                ranks[missing++] = batch->from[i];
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
                                                .missing = link_missing};

/* ---- memory that ranks of a node share ---- */

static bool window_allocate(MPI_Comm local, int locals, int place, struct shared_window *out)
{
    MPI_Info info;
    MPI_Win window = MPI_WIN_NULL;
    void *mine = NULL;
    MPI_Info_create(&info);
    MPI_Info_set(info, "alloc_shared_noncontig", "true"); /* each part on its rank's memory node */
    int code =
        MPI_Win_allocate_shared((MPI_Aint)(out->bytes + PAGE), 1, info, local, &mine, &window);
    MPI_Info_free(&info);
    if (code != MPI_SUCCESS) {
        return false;
    }
    for (int i = 0; i < locals; i++) {
        MPI_Aint size = 0;
        int unit = 0;
        char *base = NULL;
        code = MPI_Win_shared_query(window, i, &size, &unit, &base);
        /* mappings are page-aligned in each process: rounding up finds the same place in all */
        if (code != MPI_SUCCESS) {
            return false;
        }
        out->base[i] = base + (PAGE - (uintptr_t)base % PAGE) % PAGE;
    }
    memset(out->base[place], 0, out->bytes);
    out->handle = malloc(sizeof window);
    if (out->handle == NULL) {
        return false;
    }
    memcpy(out->handle, &window, sizeof window);
    return true;
}

/* Collective over `verdict`: the window of this node, or *made = false on all ranks. */
static status window_make(MPI_Comm verdict, MPI_Comm local, int locals, int place, size_t bytes,
                          struct shared_window *out, bool *made)
{
    *made = false;
    *out = (struct shared_window){.bytes = bytes};
    out->base = calloc((size_t)locals, sizeof *out->base);
    int mine = out->base != NULL && bytes < SIZE_MAX - PAGE;
    if (mine && locals == 1) {
        out->base[0] = memory_allocate(bytes);
        mine = out->base[0] != NULL;
    } else if (mine) {
        mine = window_allocate(local, locals, place, out);
    }
    out->memory = mine ? out->base[place] : NULL;
    int all = 0;
    TRY(check(MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MIN, verdict), "making shared memory"));
    *made = all != 0;
    return STATUS_OK;
}

static void window_free(struct shared_window *window)
{
    if (window->handle != NULL) {
        MPI_Win win;
        memcpy(&win, window->handle, sizeof win);
        MPI_Win_free(&win);
        free(window->handle);
    } else {
        free(window->memory);
    }
    free(window->base);
    *window = (struct shared_window){0};
}

/* ---- groups ---- */

/* Nodes are numbered in the order in which the ranks meet them. keys [size]. */
static status group_nodes(struct shared_group *group, const int64_t *keys)
{
    size_t size = (size_t)group->size;
    free(group->node_of);
    free(group->first);
    free(group->member);
    group->node_of = calloc(size, sizeof *group->node_of);
    group->first = calloc(size + 1, sizeof *group->first);
    group->member = calloc(size, sizeof *group->member);
    REQUIRE(group->node_of != NULL && group->first != NULL && group->member != NULL,
            STATUS_INTERNAL, "out of memory: a group of %d ranks", group->size);
    group->nodes = 0;
    int placed = 0;
    for (int lead = 0; lead < group->size; lead++) {
        bool met = false;
        for (int r = 0; r < lead && !met; r++) {
            met = keys[r] == keys[lead];
        }
        for (int r = lead; r < group->size && !met; r++) {
            if (keys[r] == keys[lead]) {
                group->node_of[r] = group->nodes;
                group->member[placed++] = r;
            }
        }
        if (!met) {
            group->first[++group->nodes] = placed;
        }
    }
    group->node = group->node_of[group->rank];
    group->locals = group->first[group->node + 1] - group->first[group->node];
    group->place = 0;
    while (group->member[group->first[group->node] + group->place] != group->rank) {
        group->place++;
    }
    group->staged = group->nodes < group->size;
    return STATUS_OK;
}

static status group_control(struct mpi_state *state, MPI_Comm all, const int64_t *keys, bool *made)
{
    struct shared_group *group = &state->group;
    TRY(group_nodes(group, keys));
    TRY(check(MPI_Comm_split(all, group->node, group->rank, &state->local), "finding the node"));
    return_errors(state->local);
    TRY(window_make(all, state->local, group->locals, group->place,
                    shared_control_bytes(group->size), &state->control, made));
    return STATUS_OK;
}

/* Make nodes of the ranks that share memory; where that cannot be, each rank is a node. */
static status group_connect(struct mpi_state *state, MPI_Comm all)
{
    struct shared_group *group = &state->group;
    int64_t *keys = calloc((size_t)group->size, sizeof *keys);
    REQUIRE(keys != NULL, STATUS_INTERNAL, "out of memory: a group of %d ranks", group->size);
    for (int r = 0; r < group->size; r++) {
        keys[r] = world.node_key[group->world_rank[r]];
    }
    bool made = false;
    status result = group_control(state, all, keys, &made);
    if (result == STATUS_OK && !made) {
        for (int r = 0; r < group->size; r++) {
            keys[r] = r;
        }
        MPI_Comm_free(&state->local);
        free(state->control.base);
        result = group_control(state, all, keys, &made);
    }
    free(keys);
    TRY(result);
    REQUIRE(made, STATUS_INTERNAL, "out of memory: %zu bytes for a communicator",
            shared_control_bytes(group->size));
    group->control = (struct shared_control **)(void *)state->control.base;
    return STATUS_OK;
}

static const struct comm_operations operations;

static void count_locals(struct comm *comm, const struct shared_group *group)
{
    comm->local_ranks = 0;
    for (int r = 0; r < group->size; r++) {
        if (world.host_of[group->world_rank[r]] == world.host_of[world.rank]) {
            comm->local_rank = r == group->rank ? comm->local_ranks : comm->local_rank;
            comm->local_ranks++;
        }
    }
}

static void state_free(struct mpi_state *state)
{
    free(state->group.node_of);
    free(state->group.first);
    free(state->group.member);
    free(state->group.world_rank);
    free(state);
}

static status state_fill(struct mpi_state *state, MPI_Comm all)
{
    struct shared_group *group = &state->group;
    MPI_Comm_rank(all, &group->rank);
    MPI_Comm_size(all, &group->size);
    group->world_rank = calloc((size_t)group->size, sizeof *group->world_rank);
    REQUIRE(group->world_rank != NULL, STATUS_INTERNAL, "out of memory: a group of %d ranks",
            group->size);
    TRY(check(MPI_Allgather(&world.rank, 1, MPI_INT, group->world_rank, 1, MPI_INT, all),
              "making a communicator"));
    for (int i = 0; i < 2; i++) {
        TRY(check(MPI_Comm_dup(all, &state->channels[i]), "making a communicator"));
        return_errors(state->channels[i]);
    }
    TRY(group_connect(state, all));
    group->link = &message_link;
    group->link_state = state;
    return shared_open(group);
}

/* A communicator over `all`, which stays the caller's. */
static status mpi_create(MPI_Comm all, struct comm **out)
{
    struct mpi_state *state = calloc(1, sizeof *state);
    REQUIRE(state != NULL, STATUS_INTERNAL, "out of memory: a communicator");
    struct comm *comm = NULL;
    status result = state_fill(state, all);
    if (result == STATUS_OK) {
        result = comm_create(&operations, state->group.rank, state->group.size, state, &comm);
    }
    if (result != STATUS_OK) {
        state_free(state);
        return result;
    }
    state->group.comm = comm;
    count_locals(comm, &state->group);
    *out = comm;
    return STATUS_OK;
}

/* ---- the table ---- */

static status mpi_split(struct comm *comm, int colour, int key, struct comm **out)
{
    struct mpi_state *state = comm->state;
    TRY(comm_barrier(comm));
    MPI_Comm part = MPI_COMM_NULL;
    TRY(check(MPI_Comm_split(state->channels[SHARED_DATA], colour, key, &part),
              "splitting a communicator"));
    return_errors(part);
    status result = mpi_create(part, out);
    MPI_Comm_free(&part);
    if (result == STATUS_OK) {
        (*out)->deadline_seconds = comm->deadline_seconds;
    }
    return result;
}

static status mpi_allocate(struct comm *comm, size_t bytes, void **out)
{
    struct mpi_state *state = comm->state;
    struct shared_group *group = &state->group;
    TRY(comm_barrier(comm));
    struct shared_window *window = malloc(sizeof *window);
    REQUIRE(window != NULL, STATUS_INTERNAL, "out of memory: a window");
    bool made = false;
    status result = window_make(state->channels[SHARED_DATA], state->local, group->locals,
                                group->place, bytes, window, &made);
    if (result == STATUS_OK && made) {
        window->id = ++group->windows_made;
        window->next = group->windows;
        group->windows = window;
        *out = window->memory;
        return STATUS_OK;
    }
    free(window->base);
    free(window);
    TRY(result);
    *out = memory_allocate(bytes); /* collectives on it go through the stage */
    REQUIRE(*out != NULL, STATUS_INTERNAL, "out of memory: %zu bytes for communication", bytes);
    return STATUS_OK;
}

static status mpi_release(struct comm *comm, void *memory)
{
    struct shared_group *group = &((struct mpi_state *)comm->state)->group;
    TRY(comm_barrier(comm));
    for (struct shared_window **w = &group->windows; *w != NULL; w = &(*w)->next) {
        if ((*w)->memory == memory) {
            struct shared_window *window = *w;
            *w = window->next;
            window_free(window);
            free(window);
            return STATUS_OK;
        }
    }
    free(memory);
    return STATUS_OK;
}

static status mpi_exchange(struct comm *comm, void *all, const void *mine, size_t bytes)
{
    return shared_exchange(&((struct mpi_state *)comm->state)->group, all, mine, bytes);
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

static status mpi_fetch(struct comm *comm, struct comm_request *request)
{
    return shared_fetch(&((struct mpi_state *)comm->state)->group, request);
}

static void mpi_end(int code)
{
    MPI_Abort(MPI_COMM_WORLD, code);
}

static void leave_world(void)
{
    watchdog_stop();
    heartbeat_detach();
    if (watchdog_start(NULL, FINALIZE_SECONDS) != STATUS_OK) {
        status_clear(); /* the end goes on without a guard */
    }
    watchdog_phase("finalize", 0);
    if (world.heartbeat_window != MPI_WIN_NULL) {
        MPI_Win_free(&world.heartbeat_window);
    }
    MPI_Comm_free(&world.host);
    MPI_Finalize();
    watchdog_stop();
    free(world.hosts);
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
        window_free(window);
        free(window);
    }
    window_free(&state->control);
    MPI_Comm_free(&state->local);
    MPI_Comm_free(&state->channels[SHARED_DATA]);
    MPI_Comm_free(&state->channels[SHARED_SMALL]);
    state_free(state);
    comm_release(comm);
    if (is_world) {
        leave_world();
    }
    return STATUS_OK;
}

static const struct comm_operations operations = {.kind = "mpi",
                                                  .adds = true,
                                                  .destroy = mpi_destroy,
                                                  .split = mpi_split,
                                                  .allocate = mpi_allocate,
                                                  .release = mpi_release,
                                                  .exchange = mpi_exchange,
                                                  .start = mpi_start,
                                                  .progress = mpi_progress,
                                                  .wait = mpi_wait,
                                                  .fetch = mpi_fetch,
                                                  .end = mpi_end};

/* ---- the world ---- */

static status setting(const char *name, double otherwise, double *out)
{
    const char *text = getenv(name);
    *out = otherwise;
    if (text == NULL) {
        return STATUS_OK;
    }
    char *end = NULL;
    *out = strtod(text, &end);
    REQUIRE(end != text && *end == '\0' && *out >= 1 && *out < 1e6, STATUS_USAGE,
            "%s=%s in the environment: must be a number of at least 1", name, text);
    return STATUS_OK;
}

/* MPI_Init, guarded: a rank that hangs in it ends, and the launcher ends the others. */
static status init(int *argc, char ***argv, double *limit)
{
    const char *launched_as =
        getenv("PMIX_RANK") != NULL ? getenv("PMIX_RANK") : getenv("PMI_RANK");
    if (launched_as != NULL) {
        status_identify((int)strtol(launched_as, NULL, 10), 1, NULL); /* until MPI tells */
    }
    TRY(setting("BIREME_INIT_SECONDS", INIT_SECONDS, limit));
    TRY(watchdog_start(NULL, *limit));
    watchdog_phase("MPI_Init", 0);
    int provided = MPI_THREAD_SINGLE;
    int code = MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided);
    watchdog_stop();
    REQUIRE(code == MPI_SUCCESS, STATUS_LOST, "MPI does not start (code %d)", code);
    return_errors(MPI_COMM_WORLD);
    MPI_Comm_rank(MPI_COMM_WORLD, &world.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world.size);
    return STATUS_OK;
}

static status learn_hosts(void)
{
    size_t size = (size_t)world.size;
    world.hosts = calloc(size, COMM_HOST_BYTES);
    world.host_of = calloc(size, sizeof *world.host_of);
    world.node_key = calloc(size, sizeof *world.node_key);
    REQUIRE(world.hosts != NULL && world.host_of != NULL && world.node_key != NULL, STATUS_INTERNAL,
            "out of memory: the names of %d hosts", world.size);
    char *mine = world.hosts + (size_t)world.rank * COMM_HOST_BYTES;
    if (gethostname(mine, COMM_HOST_BYTES - 1) != 0) {
        snprintf(mine, COMM_HOST_BYTES, "unknown");
    }
    status_identify(world.rank, world.size, mine);
    return check(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, world.hosts, COMM_HOST_BYTES,
                               MPI_CHAR, MPI_COMM_WORLD),
                 "learning the hosts' names");
}

static status find_host(int *place, int *locals)
{
    TRY(check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, world.rank, MPI_INFO_NULL,
                                  &world.host),
              "finding the ranks of this host"));
    return_errors(world.host);
    MPI_Comm_rank(world.host, place);
    MPI_Comm_size(world.host, locals);
    return STATUS_OK;
}

static status learn_nodes(int place, int locals)
{
    double pretended = 1;
    TRY(setting("BIREME_COMM_NODES", 1, &pretended));
    int64_t nodes = (int64_t)pretended < locals ? (int64_t)pretended : locals;
    int64_t mine[2] = {world.rank, 0};
    TRY(check(MPI_Bcast(&mine[0], 1, MPI_INT64_T, 0, world.host), "naming this host"));
    mine[1] = mine[0] * world.size + place * nodes / locals;
    TRY(check(
        MPI_Allgather(&mine[0], 1, MPI_INT64_T, world.host_of, 1, MPI_INT64_T, MPI_COMM_WORLD),
        "learning who lives where"));
    return check(
        MPI_Allgather(&mine[1], 1, MPI_INT64_T, world.node_key, 1, MPI_INT64_T, MPI_COMM_WORLD),
        "learning who lives where");
}

/* The table of this host, or NULL where memory cannot be shared. */
static void *make_table(int place, int locals)
{
    void *table = NULL;
    MPI_Aint bytes = place == 0 ? (MPI_Aint)heartbeat_bytes(locals) : 0;
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
    if (place == 0) {
        memset(table, 0, (size_t)size);
    }
    return table;
}

static status attach_heartbeat(int place, int locals)
{
    void *table = make_table(place, locals);
    TRY(check(MPI_Barrier(world.host), "making the heartbeat table"));
    heartbeat_attach(table, locals, place, world.rank, world.size, world.hosts);
    return STATUS_OK;
}

status comm_mpi_world_create(int *argc, char ***argv, struct comm **out)
{
    int place = 0;
    int locals = 1;
    double limit = 0;
    TRY(init(argc, argv, &limit));
    TRY(learn_hosts());
    TRY(find_host(&place, &locals));
    TRY(attach_heartbeat(place, locals));
    TRY(watchdog_start(NULL, limit));
    status result = learn_nodes(place, locals);
    if (result == STATUS_OK) {
        result = mpi_create(MPI_COMM_WORLD, out);
    }
    watchdog_stop();
    TRY(result);
    (*out)->is_world = true;
    return STATUS_OK;
}

#endif
