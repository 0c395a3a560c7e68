/* Memory that NCCL's collectives run fastest in: NCCL's own, registered as a symmetric window, so that ranks of one NVLink
 * domain read and write each other's (NCCL 2.28, section "Window registration" of its guide).
 *
 * NCCL demands that all ranks register the same bytes in the same order, and does not look: it places each
 * window by counting, and ranks that counted differently would write over each other. A rank without the window would also
 * wait for ever in a collective of the others, who choose their kernels by it. So all ranks compare what they have before,
 * and keep the window only if all got it. Without it everything goes its slower way: where there is no NVLink or more than
 * one host, where virtual memory is missing, and with NCCL_WIN_ENABLE=0. */
#include <stdlib.h>

#include "comm/comm_nccl_impl.h"

/* What a rank brings to comm_allocate. */
struct brought {
    uint64_t bytes;
    uint64_t from_nccl;
};

static status judge(const struct brought *all, int ranks, bool *all_from_nccl)
{
    *all_from_nccl = true;
    for (int r = 0; r < ranks; r++) {
        REQUIRE(
            all[r].bytes == all[0].bytes, STATUS_INTERNAL,
            "comm_allocate of %llu bytes on rank 0 and of %llu on rank %d: it is for equal sizes",
            (unsigned long long)all[0].bytes, (unsigned long long)all[r].bytes, r);
        *all_from_nccl = *all_from_nccl && all[r].from_nccl != 0;
    }
    return STATUS_OK;
}

static status compare(struct nccl_state *s, const struct nccl_memory *m, bool *all_from_nccl)
{
    struct comm *control = s->comm->control;
    struct brought mine = {m->bytes, m->from_nccl};
    struct brought *all = calloc((size_t)control->size, sizeof *all);
    REQUIRE(all != NULL, STATUS_INTERNAL, "out of memory: %d ranks' memory", control->size);
    status result = comm_all_gather_bytes(control, all, &mine, sizeof mine);
    KEEP_FIRST(result, judge(all, control->size, all_from_nccl));
    free(all);
    return result;
}

/* NULL where NCCL has no use for a window here, and where it refuses and is well all the same. */
static status open_window(struct nccl_state *s, struct nccl_memory *m)
{
    const struct nccl_library *nccl = nccl_world.library;
    enum nccl_result well = NCCL_SUCCESS;
    nccl_lock();
    enum nccl_result result =
        nccl->window_register(s->handle, m->memory, m->bytes, &m->window, NCCL_WINDOW_SYMMETRIC);
    bool refused = result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS &&
                   nccl->get_async_error(s->handle, &well) == NCCL_SUCCESS && well == NCCL_SUCCESS;
    nccl_unlock();
    if (refused) {
        m->window = NULL;
        return STATUS_OK;
    }
    return nccl_settle(s, result, "registering memory (NCCL_WIN_ENABLE=0 does without)");
}

static status close_window(struct nccl_state *s, struct nccl_memory *m)
{
    if (m->window == NULL) {
        return STATUS_OK;
    }
    nccl_lock();
    enum nccl_result result = nccl_world.library->window_deregister(s->handle, m->window);
    nccl_unlock();
    m->window = NULL;
    return nccl_settle(s, result, "taking registered memory back");
}

static status share(struct nccl_state *s, struct nccl_memory *m)
{
    bool all_from_nccl = false, lacking = false;
    TRY(compare(s, m, &all_from_nccl));
    if (!all_from_nccl || s->comm->size == 1) {
        return STATUS_OK;
    }
    TRY(open_window(s, m));
    TRY(comm_agree_flag(s->comm->control, m->window == NULL, &lacking));
    return lacking ? close_window(s, m) : STATUS_OK;
}

static status give_back(struct nccl_state *s, struct nccl_memory *m)
{
    status result = close_window(s, m);
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

/* The state's from here on, whatever becomes of it. */
static status take(struct nccl_state *s, size_t bytes, struct nccl_memory **out)
{
    struct nccl_memory *m = calloc(1, sizeof *m);
    REQUIRE(m != NULL, STATUS_INTERNAL, "out of memory: a buffer's name");
    m->bytes = bytes > 0 ? bytes : 1;
    m->from_nccl = nccl_world.library->mem_alloc(&m->memory, m->bytes) == NCCL_SUCCESS;
    status result = STATUS_OK;
    if (m->from_nccl) {
        result = device_zero(s->options.device, s->options.stream, m->memory, m->bytes);
    } else { /* a device without virtual memory */
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
    TRY(comm_agree(s->comm->control, take(s, bytes, &m)));
    TRY(share(s, m));
    *out = m->memory;
    return STATUS_OK;
}

status nccl_memory_destroy(struct nccl_state *s, void *memory)
{
    for (struct nccl_memory **m = &s->memories; *m != NULL; m = &(*m)->next) {
        if ((*m)->memory == memory) {
            struct nccl_memory *found = *m;
            *m = found->next;
            return give_back(s, found);
        }
    }
    RAISE(STATUS_INTERNAL, "comm_free of memory that this communicator did not give");
}

status nccl_memory_destroy_all(struct nccl_state *s)
{
    status result = STATUS_OK;
    while (s->memories != NULL) {
        KEEP_FIRST(result, nccl_memory_destroy(s, s->memories->memory));
    }
    return result;
}
