/* Memory in which NCCL's collectives run fastest: memory of ncclMemAlloc, registered as a symmetric
 * window. Ranks of an NVLink domain read and write each other's windows (NCCL 2.28 user guide,
 * section "Window registration").
 *
 * NCCL requires that all ranks register the same sizes in the same order, but does not check it.
 * Each rank computes the offset of a window by itself; ranks with other sizes or another order
 * would overwrite each other's data. A rank without the window would also hang in collectives,
 * because the window determines the kernel. Therefore all ranks compare their requests before, and
 * keep the window only if every rank got it. Without a window the collectives work, but more
 * slowly. This is the case without NVLink, on several hosts, without virtual memory management, and
 * with NCCL_WIN_ENABLE=0. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/memory.h"
#include "comm/device/nccl_impl.h"

/* The arguments of comm_allocate on a rank, for comparison. */
struct allocation_request {
    uint64_t bytes;
    uint64_t from_nccl;
};

static status check_requests(const struct allocation_request *all, int ranks, bool *all_from_nccl)
{
    *all_from_nccl = true;
    for (int r = 0; r < ranks; r++) {
        REQUIRE(all[r].bytes == all[0].bytes, STATUS_INTERNAL,
                "comm_allocate of %" PRIu64 " bytes on rank 0 and of %" PRIu64
                " bytes on rank %d: sizes must be equal",
                all[0].bytes, all[r].bytes, r);
        *all_from_nccl = *all_from_nccl && all[r].from_nccl != 0;
    }
    return STATUS_OK;
}

static status compare_requests(struct nccl_state *s, const struct nccl_memory *m,
                               bool *all_from_nccl)
{
    struct comm *control = s->comm->control;
    struct allocation_request own = {m->bytes, m->from_nccl};
    struct allocation_request *all = NULL;
    TRY(comm_abort_on_error(control, ALLOCATE(all, control->size, "the requests of the ranks")));
    status result = comm_all_gather_bytes(control, all, &own, sizeof own);
    KEEP_FIRST(result, check_requests(all, control->size, all_from_nccl));
    free(all);
    return result;
}

/* Registers a window. m->window is NULL if NCCL does not use windows here, or if it refuses without
 * an error of the communicator. */
static status register_window(struct nccl_state *s, struct nccl_memory *m)
{
    const struct nccl_library *nccl = nccl_world.library;
    enum nccl_result async_error = NCCL_SUCCESS;
    nccl_lock();
    enum nccl_result result =
        nccl->window_register(s->handle, m->memory, m->bytes, &m->window, NCCL_WINDOW_SYMMETRIC);
    bool is_refused = result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS &&
                      nccl->get_async_error(s->handle, &async_error) == NCCL_SUCCESS &&
                      async_error == NCCL_SUCCESS;
    nccl_unlock();
    if (is_refused) {
        m->window = NULL;
        return STATUS_OK;
    }
    return nccl_wait_result(s, result, "registering memory (set NCCL_WIN_ENABLE=0 to skip it)");
}

static status deregister_window(struct nccl_state *s, struct nccl_memory *m)
{
    if (m->window == NULL) {
        return STATUS_OK;
    }
    nccl_lock();
    enum nccl_result result = nccl_world.library->window_deregister(s->handle, m->window);
    nccl_unlock();
    m->window = NULL;
    return nccl_wait_result(s, result, "deregistering memory");
}

static status register_on_all_ranks(struct nccl_state *s, struct nccl_memory *m)
{
    bool all_from_nccl = false, any_missing = false;
    TRY(compare_requests(s, m, &all_from_nccl));
    if (!all_from_nccl || s->comm->size == 1) {
        return STATUS_OK;
    }
    TRY(register_window(s, m));
    TRY(comm_agree_flag(s->comm->control, m->window == NULL, &any_missing));
    return any_missing ? deregister_window(s, m) : STATUS_OK;
}

static status free_memory(struct nccl_state *s, struct nccl_memory *m)
{
    status result = deregister_window(s, m);
    if (m->from_nccl) {
        enum nccl_result freed = nccl_world.library->mem_free(m->memory);
        KEEP_FIRST(result,
                   freed == NCCL_SUCCESS ? STATUS_OK : nccl_raise(s, freed, "freeing memory"));
    } else {
        device_release(s->options.device, m->memory, m->bytes);
    }
    free(m);
    return result;
}

/* Allocates memory and adds it to the state, which frees it. */
static status allocate_memory(struct nccl_state *s, size_t bytes, struct nccl_memory **out)
{
    struct nccl_memory *m = NULL;
    TRY(ALLOCATE(m, 1, "an allocation record"));
    m->bytes = bytes > 0 ? bytes : 1;
    m->from_nccl = nccl_world.library->mem_alloc(&m->memory, m->bytes) == NCCL_SUCCESS;
    status result = STATUS_OK;
    if (m->from_nccl) {
        result = device_zero(s->options.device, s->options.stream, m->memory, m->bytes);
    } else { /* a device without virtual memory management */
        result = device_allocate(s->options.device, m->bytes, "communication", &m->memory);
    }
    if (result != STATUS_OK) {
        free(m);
        return result;
    }
    m->next = s->memories;
    s->memories = m;
    *out = m;
    return STATUS_OK;
}

status nccl_memory_create(struct nccl_state *s, size_t bytes, void **out)
{
    struct nccl_memory *m = NULL;
    TRY(comm_agree(s->comm->control, allocate_memory(s, bytes, &m)));
    TRY(register_on_all_ranks(s, m));
    *out = m->memory;
    return STATUS_OK;
}

status nccl_memory_destroy(struct nccl_state *s, void *memory)
{
    for (struct nccl_memory **m = &s->memories; *m != NULL; m = &(*m)->next) {
        if ((*m)->memory == memory) {
            struct nccl_memory *found = *m;
            *m = found->next;
            return free_memory(s, found);
        }
    }
    RAISE(STATUS_INTERNAL, "comm_free of memory that this communicator did not allocate");
}

status nccl_memory_destroy_all(struct nccl_state *s)
{
    status result = STATUS_OK;
    while (s->memories != NULL) {
        KEEP_FIRST(result, nccl_memory_destroy(s, s->memories->memory));
    }
    return result;
}
