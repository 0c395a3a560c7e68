#include "trainer/optimizer/schedule.h"

#include <math.h>

#define PI 3.14159265358979323846

int64_t schedule_warmup(const struct recipe *recipe, int64_t total_steps)
{
    if (recipe->schedule.warmup_ratio < 0) {
        return recipe->schedule.warmup_steps > 0 ? recipe->schedule.warmup_steps : 0;
    }
    double steps = recipe->schedule.warmup_ratio * (double)total_steps;
    return (int64_t)ceil(steps * (1 - 1e-12)); /* 0.07 * 100 is 7, not 7.000000000000001 */
}

/* wsd: the last D steps fall; D need not be whole. */
static double stable_decay(double step, double total, double ratio)
{
    double decay = ratio * total;
    double done = step - (total - decay);
    return done <= 0 || !(decay > 0) ? 1.0 : 1.0 - sqrt(fmin(done / decay, 1.0));
}

static double course(const struct recipe *recipe, int64_t step, int64_t warmup, int64_t total)
{
    double progress =
        total > warmup ? fmin((double)(step - warmup) / (double)(total - warmup), 1.0) : 1.0;
    switch (recipe->schedule.name) {
    case SCHEDULE_CONSTANT:
        return 1.0;
    case SCHEDULE_LINEAR:
        return 1.0 - progress;
    case SCHEDULE_COSINE:
        return 0.5 * (1.0 + cos(PI * progress));
    case SCHEDULE_POLYNOMIAL:
        return pow(1.0 - progress, recipe->schedule.power);
    case SCHEDULE_POLYNOMIAL_NVIDIA:
        return pow(fmax(1.0 - (double)step / (double)total, 0.0), recipe->schedule.power);
    case SCHEDULE_WSD:
        return stable_decay((double)step, (double)total, recipe->schedule.decay_ratio);
    }
    return 1.0;
}

double schedule_rate(const struct recipe *recipe, int64_t step, int64_t total_steps)
{
    double highest = recipe->optimizer.learning_rate;
    int64_t warmup = schedule_warmup(recipe, total_steps);
    if (step < warmup) {
        return highest * (double)(step + 1) / (double)warmup;
    }
    if (recipe->schedule.name == SCHEDULE_CONSTANT) {
        return highest;
    }
    double least = recipe->schedule.min_ratio;
    return highest * (least + (1.0 - least) * course(recipe, step, warmup, total_steps));
}
