/* Selects few-shot examples as random.Random(1234).sample in Python does. lm-evaluation-harness
 * uses this sampler by default.
 *
 * Source    Matsumoto, Nishimura 1998, "Mersenne Twister" (MT19937) */
#pragma once

#include <stdint.h>

#include "base/status.h"

enum { FEW_SHOT_SEED = 1234, FEW_SHOT_STATE = 624 };

struct few_shot_random {
    uint32_t state[FEW_SHOT_STATE];
    int index;
};

/* few_shot_seed - start as random.Random(seed) does. */
void few_shot_seed(struct few_shot_random *r, uint32_t seed);

/* few_shot_sample - draw `count` different numbers of [0, population), as random.sample does.
 *
 * Shapes    out [count];  count <= population
 * Errors    STATUS_INTERNAL (out of memory) */
status few_shot_sample(struct few_shot_random *r, int64_t population, int64_t count, int64_t *out);
