/* The response to a loss spike (train.on_spike): a warning, a skipped update, or a rollback.
 *
 * A copy of weights, moments and counters is made at the start and at each checkpoint. A rollback
 * restores the last copy and continues after the samples of the spike. All samples since the copy
 * are skipped, as in PaLM (Chowdhery et al. 2022, arXiv:2204.02311, section 5.1). Each further
 * rollback to the same copy skips more global batches: 1, 2, 4, 8, ... A save right after a
 * rollback stores its counters, so that a resumed run does not repeat it. */
#pragma once

#include "trainer/train/job.h"

struct spike_response {
    struct checkpoint_state copy; /* counters of the last copy; at first the job's counters */
    bool after_spike;             /* the previous step was a spike */
    int warnings;                 /* number of warnings of this process with train.on_spike: warn */
};

/* The description of a spike for metrics.jsonl. */
struct spike_event {
    const char *action; /* "warn", "skip", "rollback"; NULL: no spike */
    int64_t step;       /* number of the step, from 1 */
    struct checkpoint_samples batch, skipped;
    double loss, gradient_norm;
    struct spike_score score;
};

/* spike_response_copy - copy the weights, the moments and the counters of the job.
 *
 * Order     collective */
status spike_response_copy(struct spike_response *response, struct job *job);

/* spike_response_apply - respond to a step that was just done. Call it before the counters advance.
 *
 * After a rollback (*out).action is "rollback", and the counters have the values of the copy.
 *
 * Order     collective
 * Errors    STATUS_NOT_FINITE if there are more than train.max_spikes spikes; on all ranks and
 *           printed once */
status spike_response_apply(struct spike_response *response, struct job *job,
                            const struct step_result *result, struct spike_event *out);

/* spike_response_write - write the line of a spike to metrics.jsonl, on rank 0. */
status spike_response_write(const struct job *job, const struct spike_event *event);
