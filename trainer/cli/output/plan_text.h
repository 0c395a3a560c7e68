/* The output of `bireme plan` for people: scaled units, at most 79 columns. */
#pragma once

#include "trainer/train/planner/predict.h"

enum { PLAN_LAYOUTS = 8 };

/* The predictions for a cluster. */
struct plan_forecast {
    struct cluster cluster;
    struct prediction step;
    int64_t micro_size; /* the largest that fits */
    struct prediction layouts[PLAN_LAYOUTS];
    int layout_count;
};

/* plan_text_print - print a plan on standard output. `forecast` is NULL without a cluster. With
 * `settings`, all settings follow as YAML.
 *
 * Errors    STATUS_WRITE */
status plan_text_print(const struct recipe *recipe, const struct plan *plan,
                       const struct plan_forecast *forecast, bool settings);
