#include "trainer/optimizer/schedule.h"

#include <math.h>

#include "base/number.h"

#define PI 3.14159265358979323846
#define UNWARMED_SCALE 1e4 /* steps; the scale of inverse_sqrt without a warm-up */

int64_t schedule_warmup_steps(const struct recipe *recipe, int64_t total_steps)
{
    if (recipe->schedule.warmup_ratio < 0) {
        return number_max(recipe->schedule.warmup_steps, 0);
    }
    double steps = recipe->schedule.warmup_ratio * (double)total_steps;
    /* In floating point, 0.07 * 100 is 7.000000000000001. The result must be 7, not 8. */
    return (int64_t)ceil(steps * (1 - 1e-12));
}

/* Computes f of wsd. The decay length D = ratio * total may be fractional. */
static double compute_wsd_factor(double step, double total, double ratio)
{
    double decay = ratio * total;
    double done = step - (total - decay);
    return done <= 0 || !(decay > 0) ? 1.0 : 1.0 - sqrt(fmin(done / decay, 1.0));
}

/* Computes the factor of inverse_sqrt. */
static double compute_inverse_sqrt_factor(double step, double warmup)
{
    double scale = warmup > 0 ? warmup : UNWARMED_SCALE;
    return sqrt(scale / (step + scale - warmup));
}

/* Returns whether the rate falls to min_ratio of its maximum. */
static bool has_minimum(enum recipe_schedule name)
{
    return name != SCHEDULE_CONSTANT && name != SCHEDULE_INVERSE_SQRT;
}

/* Computes f(p) of schedule.h. */
static double compute_decay_factor(const struct recipe *recipe, int64_t step, int64_t warmup,
                                   int64_t total)
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
        return compute_wsd_factor((double)step, (double)total, recipe->schedule.decay_ratio);
    case SCHEDULE_INVERSE_SQRT:
        return compute_inverse_sqrt_factor((double)step, (double)warmup);
    }
    return 1.0;
}

double schedule_learning_rate(const struct recipe *recipe, int64_t step, int64_t total_steps)
{
    double max_rate = recipe->optimizer.learning_rate;
    int64_t warmup = schedule_warmup_steps(recipe, total_steps);
    if (step < warmup) {
        return max_rate * (double)(step + 1) / (double)warmup;
    }
    double min_ratio = has_minimum(recipe->schedule.name) ? recipe->schedule.min_ratio : 0;
    return max_rate * (min_ratio +
                       (1.0 - min_ratio) * compute_decay_factor(recipe, step, warmup, total_steps));
}
