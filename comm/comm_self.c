/* A world of one rank. The collectives of a group of one are answered in comm.c; what is left is
 * memory and the end. */
#include <stdlib.h>

#include "base/memory.h"
#include "comm/comm_impl.h"

static status self_destroy(struct comm **comm)
{
    if ((*comm)->is_world) {
        watchdog_stop();
    }
    comm_release(comm);
    return STATUS_OK;
}

static const struct comm_operations operations;

static status self_split(struct comm *comm, int colour, int key, struct comm **out)
{
    (void)colour;
    (void)key;
    TRY(comm_create(&operations, 0, 1, NULL, out));
    (*out)->deadline_seconds = comm->deadline_seconds;
    return STATUS_OK;
}

static status self_allocate(struct comm *comm, size_t bytes, void **out)
{
    (void)comm;
    *out = memory_allocate(bytes);
    REQUIRE(*out != NULL, STATUS_INTERNAL, "out of memory: %zu bytes for communication", bytes);
    return STATUS_OK;
}

static status self_release(struct comm *comm, void *memory)
{
    (void)comm;
    free(memory);
    return STATUS_OK;
}

static void self_end(int code)
{
    (void)code; /* the caller leaves the process */
}

static const struct comm_operations operations = {.kind = "self",
                                                  .adds = true,
                                                  .destroy = self_destroy,
                                                  .split = self_split,
                                                  .allocate = self_allocate,
                                                  .release = self_release,
                                                  .end = self_end};

status comm_self_create(struct comm **out)
{
    TRY(comm_create(&operations, 0, 1, NULL, out));
    (*out)->is_world = true;
    status_identify(0, 1, NULL);
    return STATUS_OK;
}
