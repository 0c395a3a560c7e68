/* Reads the loss sums of micro-batches back from the device.
 *
 * Kernels add some sums of a micro-batch in device memory. The objective adds the others on the
 * host. Both stay in a slot until all slots are read together, so that a step waits for the device
 * only once. On the CPU the same slots are used and reading costs nothing. */
#pragma once

#include "datasets/loader/loader.h"
#include "trainer/objective/objective.h"

struct loss_readback;

/* The samples of a micro-batch, for error messages: the first few, and their total number. */
enum { LOSS_NAMED_SAMPLES = 4 };
struct loss_samples {
    int64_t numbers[LOSS_NAMED_SAMPLES], count;
};

/* The sums of one micro-batch. loss_readback_add sets both arrays to zero. */
struct loss_slot {
    double *device_sums; /* f64 [OBJECTIVE_SUMS] in device memory, for kernels */
    double *host_sums;   /* f64 [OBJECTIVE_SUMS], for the objective's host code */
    struct loss_samples samples;
};

/* loss_readback_create - allocate the slots.
 *
 * Memory    on the host and the device; release with loss_readback_destroy
 * Errors    STATUS_INTERNAL out of memory; errors of the device */
status loss_readback_create(struct kernels *k, struct loss_readback **out);

/* loss_readback_destroy - release the slots and set *r to NULL. *r may be NULL. */
void loss_readback_destroy(struct loss_readback **r);

/* loss_readback_is_full - return whether the slots must be read before another one is added. */
bool loss_readback_is_full(const struct loss_readback *r);

/* loss_readback_add - add a slot for a micro-batch. The device sums are zeroed on the stream.
 *
 * Memory    *out is valid until loss_readback_next has returned it */
status loss_readback_add(struct loss_readback *r, const struct batch *batch,
                         struct loss_slot **out);

/* loss_readback_queue_sums - queue the sum of carried and of all slots, in their order. `out` is
 * f64 [OBJECTIVE_SUMS] on the device.
 *
 * Order     no slot may be added until the stream has finished the sum
 * Numerics  the bits of a loop that adds the sums of loss_readback_next to carried */
status loss_readback_queue_sums(struct loss_readback *r, struct kernels *k, double *out,
                                const double carried[OBJECTIVE_SUMS]);

/* loss_readback_samples - return the samples of all slots that were added since
 * loss_readback_discard, also of those that loss_readback_next has returned. */
struct loss_samples loss_readback_samples(const struct loss_readback *r);

/* loss_readback_discard - remove all slots and their samples without reading them. */
void loss_readback_discard(struct loss_readback *r);

/* loss_readback_begin_copy - queue the copy of the device sums to the host. */
status loss_readback_begin_copy(const struct loss_readback *r);

/* loss_readback_wait - copy the device sums to the host and wait for them.
 *
 * Errors    STATUS_HANG if the device does not finish in time */
status loss_readback_wait(const struct loss_readback *r);

/* loss_readback_next - return the sums of the next slot, in the order of loss_readback_add. Returns
 * false after the last slot; the readback is empty then.
 *
 * Memory    *samples is valid until a slot is added
 * Order     after loss_readback_wait, or when the copy of loss_readback_begin_copy has arrived */
bool loss_readback_next(struct loss_readback *r, double sums[OBJECTIVE_SUMS],
                        const struct loss_samples **samples);

/* loss_readback_describe_samples - write "12 (FILE tokens A to B), 13 (...) and 6 more".
 *
 * Memory    text[bytes]; `loader` is the one that the samples came from */
void loss_readback_describe_samples(const struct loss_samples *samples, const struct loader *loader,
                                    char *text, int bytes);

/* loss_readback_require_finite - require that the loss of a micro-batch is finite.
 *
 * Memory    `loader` as in loss_readback_describe_samples
 * Errors    STATUS_NOT_FINITE with the samples */
status loss_readback_require_finite(double loss, const struct loss_samples *samples,
                                    const struct loader *loader);

/* loss_readback_require_all_finite - read all slots, and require that their losses are finite.
 *
 * Order     as loss_readback_next
 * Errors    STATUS_NOT_FINITE with the samples of the first micro-batch that is not finite */
status loss_readback_require_all_finite(struct loss_readback *r, const struct loader *loader);
