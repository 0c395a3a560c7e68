/* Tensor x data groups: ranks = tensor x data, tensor ranks next to each other on a node. */
#pragma once

#include "comm/comm.h"

struct mesh {
    struct comm *world;
    struct comm *tensor; /* ranks that share one copy of the model */
    struct comm *data;   /* ranks that hold the same part of it */
};

/* mesh_check - whether so many ranks can be shared out: tensor must divide them.
 *
 * Errors    STATUS_RECIPE naming the divisors */
status mesh_check(int ranks, int tensor);

/* mesh_create - split the world; warns (TENSOR-HOSTS) where ranks of a tensor group are on several hosts.
 *
 * Errors    as mesh_check */
status mesh_create(struct comm *world, int tensor, struct mesh *out);

/* mesh_regroup - the same groups as parts of another communicator of the same ranks, which may be left afterwards. Those that
 * the mesh had are left; its world stays. Collective. */
status mesh_regroup(struct mesh *mesh, struct comm *all);
status mesh_destroy(struct mesh *mesh);
