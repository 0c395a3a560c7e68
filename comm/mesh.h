/* Tensor x data groups: ranks = tensor x data, tensor ranks next to each other on a node. */
#pragma once

#include "comm/comm.h"

struct mesh {
    struct comm *world;
    struct comm *tensor; /* ranks that share one copy of the model */
    struct comm *data;   /* ranks that hold the same part of it */
};

/* mesh_create - split the world.
 *
 * Errors    STATUS_RECIPE if tensor does not divide the number of ranks, naming divisors that do */
status mesh_create(struct comm *world, int tensor, struct mesh *out);
status mesh_destroy(struct mesh *mesh);
