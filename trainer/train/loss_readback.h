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
    double *device_sums;              /* f64 [OBJECTIVE_SUMS] in device memory, for kernels */
    double host_sums[OBJECTIVE_SUMS]; /* for the objective's host code */
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
