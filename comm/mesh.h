/* The mesh: tensor-parallel and data-parallel groups. The number of ranks is tensor x data. The
 * ranks of a tensor-parallel group are consecutive.
 *
 * Calls     mesh_check, mesh_create, then mesh_regroup if the groups use device memory;
 *           mesh_destroy at the end */
#pragma once

#include "comm/comm.h"

struct mesh {
    struct comm *world;
    struct comm *tensor; /* tensor-parallel group: ranks that share one copy of the model */
    struct comm *data;   /* data-parallel group: ranks that hold the same part of the model */
};

/* mesh_check - check that `tensor` divides the number of ranks.
 *
 * model_divisor: a multiple of every valid value, from the sizes of the model; 0: not known.
 *
 * Errors    STATUS_RECIPE with the valid values */
status mesh_check(int ranks, int tensor, int64_t model_divisor);

/* mesh_create - split the world into tensor-parallel and data-parallel groups.
 *
 * It warns (W-TENSOR-HOSTS) if a tensor-parallel group spans several hosts.
 *
 * Order     collective
 * Errors    as mesh_check */
status mesh_create(struct comm *world, int tensor, struct mesh *out);

/* mesh_regroup - replace the groups by groups split from `all`, a communicator of the same ranks.
 *
 * The old groups are destroyed; mesh->world stays. The caller may destroy `all` afterwards.
 *
 * Order     collective */
status mesh_regroup(struct mesh *mesh, struct comm *all);

/* mesh_destroy - destroy both groups; the world stays.
 *
 * Order     collective */
status mesh_destroy(struct mesh *mesh);
