/* Comparison of the weights of data-parallel replicas (parallel.check_every).
 *
 * Faulty hardware can change a value without an error, and the replicas of the weights then differ
 * from that step on. Each rank hashes each of its tensors: the f32 weights, and the bf16 copy if
 * there is one. The ranks of a data-parallel group, which hold the same part of the model, compare
 * the hashes. The optimizer state and, under ZeRO, the f32 weights that only one rank holds have no
 * replica and are not compared. */
#pragma once

#include "trainer/setup/session.h"

struct replica_check;

/* replica_check_create - allocate the hashes of the model's tensors.
 *
 * Memory    16 bytes per tensor and data-parallel rank. For a model in device memory also a host
 *           block of 4 MiB. Release it with replica_check_destroy
 * Errors    STATUS_INTERNAL out of memory */
status replica_check_create(const struct session *session, struct replica_check **out);

/* replica_check_destroy - free a check and set *check to NULL; NULL is allowed. */
void replica_check_destroy(struct replica_check **check);

/* replica_check_run - compare the weights of all replicas.
 *
 * Order     collective; all weights must be gathered; waits for the device
 * Errors    STATUS_DIVERGED with the first tensor that differs and the ranks, on all ranks and
 *           printed once; errors of the device and of the collectives */
status replica_check_run(struct replica_check *check);
