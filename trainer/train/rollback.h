/* A copy in host memory of the values that an optimizer step changes on this rank: the trained
 * weights and the moments. train.on_spike: rollback uses it. Restored values have the same bits. */
#pragma once

#include "trainer/train/step/sharded_optimizer.h"

struct rollback;

/* rollback_create - allocate the copy and touch its memory.
 *
 * Memory    rollback_compute_bytes; the session and the optimizer must outlive *out
 * Errors    STATUS_INTERNAL with the number of bytes */
status rollback_create(const struct session *session, const struct sharded_optimizer *optimizer,
                       struct rollback **out);

/* rollback_destroy - free a copy and set *rollback to NULL; NULL is allowed. */
void rollback_destroy(struct rollback **rollback);

/* rollback_copy - replace the copy by the current values.
 *
 * Order     all weights must be gathered; waits for the device */
status rollback_copy(struct rollback *rollback);

/* rollback_restore - set the weights and moments to the values of the copy.
 *
 * Order     as rollback_copy */
status rollback_restore(struct rollback *rollback);

/* rollback_compute_bytes - compute the size of the copy on one rank.
 *
 * Units     owned_elems: elements with moments on this rank; moment_bytes: bytes of both moments;
 *           released: the rank keeps the f32 weights of its shards only, as with ZeRO and bf16;
 *           has_bf16: the model has a bf16 copy of its weights */
int64_t rollback_compute_bytes(const struct model_parameter *parameters, int count, bool has_bf16,
                               bool released, int64_t owned_elems, int64_t moment_bytes);
