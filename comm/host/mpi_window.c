/* Memory that the MPI ranks of a host share: its allocation, and the check of free space before. */
#ifdef BIREME_MPI

#include "comm/host/mpi_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "comm/shared/space.h"

#define PAGE 4096

static struct {
    MPI_Comm ranks;
    const char *name;
} host;

void comm_mpi_window_set_host(MPI_Comm ranks, const char *name)
{
    host.ranks = ranks;
    host.name = name;
}

status comm_mpi_check(int code, const char *operation)
{
    if (code == MPI_SUCCESS) {
        return STATUS_OK;
    }
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    RAISE(STATUS_LOST, "%s failed: %s", operation, text);
}

static bool allocate_shared_window(MPI_Comm local, int local_size, int local_rank,
                                   struct shared_window *out)
{
    MPI_Info info;
    MPI_Win window = MPI_WIN_NULL;
    void *own = NULL;
    MPI_Info_create(&info);
    /* each segment in the NUMA memory of its rank */
    MPI_Info_set(info, "alloc_shared_noncontig", "true");
    int code =
        MPI_Win_allocate_shared((MPI_Aint)(out->bytes + PAGE), 1, info, local, &own, &window);
    MPI_Info_free(&info);
    if (code != MPI_SUCCESS) {
        return false;
    }
    for (int i = 0; i < local_size; i++) {
        MPI_Aint size = 0;
        int unit = 0;
        char *base = NULL;
        code = MPI_Win_shared_query(window, i, &size, &unit, &base);
        /* mappings are page-aligned: rounding up gives the same location in every process */
        if (code != MPI_SUCCESS) {
            return false;
        }
        out->base[i] = base + (PAGE - (uintptr_t)base % PAGE) % PAGE;
    }
    memset(out->base[local_rank], 0, out->bytes);
    out->handle = malloc(sizeof window);
    if (out->handle == NULL) {
        return false;
    }
    memcpy(out->handle, &window, sizeof window);
    return true;
}

/* Warns that memory cannot be shared; each host warns at most once. */
static void warn_of_little_space(int64_t needed_bytes, int64_t free_bytes)
{
    static bool has_warned;
    char unused[512];
    int rank = 0;
    MPI_Comm_rank(host.ranks, &rank);
    if (!has_warned && rank == 0) {
        shared_space_describe_unused(unused, sizeof unused);
        log_warning("SHARED-MEMORY",
                    "host %s: " SHARED_SPACE_FOLDER " has %" PRId64 " bytes free, but %" PRId64
                    " bytes are needed; ranks exchange data more slowly without shared memory. "
                    "Enlarge " SHARED_SPACE_FOLDER
                    " (docker run --shm-size, mount -o remount,size=)%s",
                    host.name, free_bytes, needed_bytes, unused);
    }
    has_warned = true;
}

status comm_mpi_window_check_space(MPI_Comm local, int64_t bytes, bool *has_room)
{
    int host_ranks = 1, rank = 0;
    MPI_Comm_size(host.ranks, &host_ranks);
    MPI_Comm_rank(local, &rank);
    int64_t needed_bytes = shared_space_window_bytes(host_ranks, bytes), free_bytes = 0;
    int fits = shared_space_has_room(needed_bytes, &free_bytes);
    shared_space_count(needed_bytes);
    TRY(comm_mpi_check(MPI_Bcast(&fits, 1, MPI_INT, 0, local), "checking the shared memory"));
    *has_room = fits != 0;
    if (!*has_room) {
        warn_of_little_space(needed_bytes, free_bytes);
    }
    return STATUS_OK;
}

status comm_mpi_window_create(MPI_Comm all, MPI_Comm local, int local_size, int local_rank,
                              size_t bytes, struct shared_window *out, bool *is_made)
{
    *is_made = false;
    *out = (struct shared_window){.bytes = bytes};
    out->base = calloc((size_t)local_size, sizeof *out->base);
    int own = out->base != NULL && bytes < SIZE_MAX / 2;
    if (own && local_size == 1) {
        out->base[0] = memory_allocate_aligned(bytes);
        own = out->base[0] != NULL;
    } else if (local_size > 1) {
        bool has_room = false;
        TRY(comm_mpi_check(MPI_Allreduce(MPI_IN_PLACE, &own, 1, MPI_INT, MPI_MIN, local),
                           "creating shared memory"));
        TRY(own ? comm_mpi_window_check_space(local, (int64_t)bytes, &has_room) : STATUS_OK);
        own = has_room && allocate_shared_window(local, local_size, local_rank, out);
        TRY(comm_mpi_check(MPI_Allreduce(MPI_IN_PLACE, &own, 1, MPI_INT, MPI_MIN, local),
                           "creating shared memory"));
    }
    out->memory = own ? out->base[local_rank] : NULL;
    int all_made = 0;
    TRY(comm_mpi_check(MPI_Allreduce(&own, &all_made, 1, MPI_INT, MPI_MIN, all),
                       "creating shared memory"));
    *is_made = all_made != 0;
    if (!*is_made && own) { /* on all ranks of this node */
        comm_mpi_window_free(out);
    }
    return STATUS_OK;
}

void comm_mpi_window_free(struct shared_window *window)
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

#endif
