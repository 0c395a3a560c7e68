/* A communicator of one rank. comm.c completes the collectives of a group of one rank; this file
 * provides memory and the end of the job. */
#include <stdlib.h>

#include "base/memory.h"
#include "comm/comm_impl.h"
#include "comm/watchdog/watchdog.h"

static status self_destroy(struct comm **comm)
{
    if ((*comm)->is_world) {
        watchdog_stop();
    }
    comm_release(comm);
    return STATUS_OK;
}

static const struct comm_operations operations;

static status self_split(struct comm *comm, int color, int key, struct comm **out)
{
    (void)color;
    (void)key;
    TRY(comm_create(&operations, 0, 1, NULL, out));
    (*out)->deadline_seconds = comm->deadline_seconds;
    return STATUS_OK;
}

static status self_allocate(struct comm *comm, size_t bytes, void **out)
{
    (void)comm;
    *out = memory_allocate_aligned(bytes);
    REQUIRE(*out != NULL, STATUS_INTERNAL, "out of memory for %zu bytes for communication", bytes);
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
    (void)code; /* the caller ends the process */
}

static const struct comm_operations operations = {.kind = "self",
                                                  .can_accumulate = true,
                                                  .destroy = self_destroy,
                                                  .split = self_split,
                                                  .allocate = self_allocate,
                                                  .release = self_release,
                                                  .end_job = self_end};

status comm_self_create(struct comm **out)
{
    return comm_create(&operations, 0, 1, NULL, out);
}
