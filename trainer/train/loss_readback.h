/* Sums of micro-batches that stay on a device until they are read together: the step's one wait for it. */
#pragma once

#include "datasets/loader/loader.h"
#include "trainer/objective/objective.h"

struct told;

/* A micro-batch's samples, to name them in a message: the first few, and how many there are. */
enum { TOLD_NAMED = 4 };
struct told_samples {
    int64_t numbers[TOLD_NAMED], count;
};

/* told_create - *out stays NULL on the CPU, where sums are read at once. */
status told_create(struct kernels *k, struct told **out);
void told_destroy(struct told **told);

/* told_keep_samples, told_name_samples - "12 (FILE tokens A to B), 13 (...) and 6 more", by the loader that they came from. */
struct told_samples told_keep_samples(const struct batch *batch);
void told_name_samples(const struct told_samples *samples, const struct loader *loader, char *text,
                       int bytes);

/* told_place - where the objective leaves a micro-batch's sums: zeros. Not while it is full. */
status told_place(struct told *t, const struct batch *batch, double **later);
bool told_is_full(const struct told *t);

/* told_fetch - all are on their way; told_pull waits for them. Nothing without a told. */
status told_fetch(const struct told *t);
status told_pull(const struct told *t);

/* told_next - of those that have arrived, and whose they are; NULL: that was all, and it is empty. */
const double *told_next(struct told *t, const struct told_samples **samples);
