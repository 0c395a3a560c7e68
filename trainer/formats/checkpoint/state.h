/* Counters of a training run that every checkpoint stores. */
#pragma once

#include <stdint.h>

#include "kernels/spike_score.h"

/* Samples [first, end) of the run, as the loader counts them. */
struct checkpoint_samples {
    int64_t first, end;
};

enum { CHECKPOINT_SPIKES_MAX = 64 };

/* The loss spikes of a run so far. */
struct checkpoint_spikes {
    struct spike_averages averages;
    int64_t updated_step; /* the step of the last update of the weights */
    int64_t count;        /* spikes that were skipped or rolled back */
    int64_t rollbacks;    /* those that were rolled back to this step */
    /* samples that no update of the current weights has used, in increasing order */
    struct checkpoint_samples skipped[CHECKPOINT_SPIKES_MAX];
    int skipped_count;
};

struct checkpoint_state {
    int64_t step;    /* optimizer steps completed */
    int64_t samples; /* the position of the data loader: samples used or skipped by all ranks */
    int64_t tokens;  /* tokens consumed by all ranks */
    double train_seconds; /* wall time spent in training */
    struct checkpoint_spikes spikes;
};
