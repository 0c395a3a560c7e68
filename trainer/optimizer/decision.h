/* The sums of a step over all ranks and the decision about its update, in device memory.
 *
 * The host does not wait for the sums before it queues the update. Kernels add the sums of the
 * micro-batches and of the ranks, and compute the factor of the gradients (kernels/control.h). The
 * host reads the results of a step while the device computes the next one. If a loss or a gradient
 * is not finite, this step and all later ones update nothing. After decision_set_averages, a spike
 * updates nothing either, but later steps update the weights again.
 *
 * All sums have the bits of a step on the host: they are added in the same order, and the squares
 * are added exactly. */
#pragma once

#include "comm/mesh.h"
#include "kernels/kernels.h"
#include "kernels/spike_score.h"
#include "trainer/objective/objective.h"

struct decision;

/* The sums of a step over one rank, or over all ranks. */
struct decision_sums {
    double sums[OBJECTIVE_SUMS];
    double squares; /* of the summed gradients */
};

/* The results of a step. */
struct decision_result {
    struct decision_sums total; /* over all ranks */
    struct not_finite found;    /* first element of this rank's gradients that is not finite */
    struct spike_state spikes;  /* after the step; zeros without decision_set_averages */
};

/* The time of a step on the device: from the end of the previous step to the end of this step. A
 * step ends when its results are complete. The host may read them later. */
struct decision_time {
    double ended_seconds; /* the end of the step, as a value of clock_seconds */
    double total_seconds; /* without the time in which no step was queued */
};

/* The largest number of steps that are queued and not yet read. */
enum { DECISION_STEPS = 2 };

/* decision_create - allocate the sums.
 *
 * Units     max_norm as in optimizer_settings
 * Memory    on the device and the host; release with decision_destroy
 * Errors    STATUS_INTERNAL out of memory; errors of the device */
status decision_create(const struct mesh *mesh, struct kernels *k, double max_norm,
                       struct decision **out);

/* decision_destroy - wait for queued steps, release the memory and set *d to NULL.
 *
 * Memory    *d may be NULL */
void decision_destroy(struct decision **d);

/* decision_own - return the address of this rank's sums on the device. The caller queues the
 * operations that compute them before decision_queue. */
struct decision_sums *decision_own(const struct decision *d);

/* decision_control - return the address of the decision on the device. Updates read it. */
const struct update_control *decision_control(const struct decision *d);

/* decision_found - return the address on the device of the first element that is not finite.
 * control_gradient_squares writes it. */
struct not_finite *decision_found(const struct decision *d);

/* decision_set_averages - set the averages of spike detection for the next step. From then on, the
 * device skips the updates of spikes, and a step that is not finite is a spike too.
 *
 * `loss` lists the means that are added to the loss; its pointers are not used.
 *
 * Order     queued. Call it only when the host has read the results of all queued steps */
status decision_set_averages(struct decision *d, const struct spike_averages *averages,
                             const struct spike_inputs *loss);

/* decision_begin - start the measurement of step `number`. Call it before any operation of the step
 * is queued. Step numbers are consecutive. */
status decision_begin(struct decision *d, int64_t number);

/* decision_queue - queue the sums over the ranks and the decision. Operations that read
 * decision_control may be queued next.
 *
 * Order     collective */
status decision_queue(struct decision *d);

/* decision_record - queue the copy of the results of step `number` to the host, after
 * decision_queue. The update may be queued next. */
status decision_record(struct decision *d, int64_t number);

/* decision_wait - wait for the results of step `number`, the oldest one that is queued. Copies that
 * were queued before decision_record have arrived too.
 *
 * Errors    STATUS_HANG if the device does not finish in time */
status decision_wait(struct decision *d, int64_t number, struct decision_result *out,
                     struct decision_time *time);
