/* Counters of a training run that every checkpoint stores. */
#pragma once

#include <stdint.h>

struct checkpoint_state {
    int64_t step;         /* optimizer steps completed */
    int64_t samples;      /* samples consumed by all ranks: the position of the data loader */
    int64_t tokens;       /* tokens consumed by all ranks */
    double train_seconds; /* wall time spent in training */
};
