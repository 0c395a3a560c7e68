#include "comm/mesh.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/text.h"

/* Lists the common divisors of two numbers; every number divides 0. */
static void list_divisors(int ranks, int64_t other, char *list, size_t bytes)
{
    size_t used = 0;
    list[0] = '\0';
    for (int d = 1; d <= ranks && used + 16 < bytes; d++) {
        if (ranks % d == 0 && other % d == 0) {
            used += (size_t)snprintf(list + used, bytes - used, "%s%d", used > 0 ? ", " : "", d);
        }
    }
}

status mesh_check(int ranks, int tensor, int64_t model_divisor)
{
    if (ranks < 1 || tensor < 1 || ranks % tensor != 0) {
        char divisors[256];
        list_divisors(ranks, model_divisor, divisors, sizeof divisors);
        RAISE(STATUS_RECIPE,
              "parallel.tensor is %d, but there %s %d rank%s: use %d, %d, ... ranks (mpirun -np N, "
              "or --ranks N of plan), or set parallel.tensor to %s%s",
              tensor, ranks == 1 ? "is" : "are", ranks, text_plural(ranks), tensor, 2 * tensor,
              strchr(divisors, ',') == NULL ? "" : "one of ", divisors);
    }
    return STATUS_OK;
}

/* Warns if a tensor-parallel group spans hosts: its ranks communicate several times in each layer,
 * which takes most of the time of a step over a network. */
static status warn_if_tensor_group_spans_hosts(const struct mesh *mesh)
{
    int size = comm_size(mesh->tensor), local_size = comm_local_size(mesh->tensor);
    bool any = false;
    TRY(comm_agree_flag(mesh->world, local_size < size, &any));
    if (any && comm_rank(mesh->world) == 0) {
        log_warning(
            "TENSOR-HOSTS",
            "the %d ranks of a tensor-parallel group (parallel.tensor) are on several hosts: every "
            "layer waits for the network. Place neighboring ranks on the same host (mpirun "
            "--map-by slot, srun --distribution=block), start a number of ranks per host that %d "
            "divides, or lower parallel.tensor",
            size, size);
    }
    return STATUS_OK;
}

static status split_groups(struct comm *all, int tensor, struct mesh *out)
{
    int rank = comm_rank(all);
    status result = comm_split(all, rank / tensor, rank, &out->tensor);
    if (result == STATUS_OK) {
        result = comm_split(all, rank % tensor, rank, &out->data);
    }
    return result;
}

status mesh_create(struct comm *world, int tensor, struct mesh *out)
{
    memset(out, 0, sizeof *out);
    TRY(mesh_check(comm_size(world), tensor, 0));
    out->world = world;
    status result = split_groups(world, tensor, out);
    if (result == STATUS_OK) {
        result = warn_if_tensor_group_spans_hosts(out);
    }
    if (result != STATUS_OK) {
        KEEP_FIRST(result, mesh_destroy(out));
    }
    return result;
}

status mesh_regroup(struct mesh *mesh, struct comm *all)
{
    struct mesh groups = {.world = mesh->world};
    status result = split_groups(all, comm_size(mesh->tensor), &groups);
    if (result != STATUS_OK) {
        (void)mesh_destroy(&groups);
        return result;
    }
    result = mesh_destroy(mesh);
    *mesh = groups;
    return result;
}

status mesh_destroy(struct mesh *mesh)
{
    status result = comm_destroy(&mesh->data);
    KEEP_FIRST(result, comm_destroy(&mesh->tensor));
    mesh->world = NULL;
    return result;
}
