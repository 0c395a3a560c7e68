/* Sums of micro-batches that stay on a device until they are read together: the step's one wait for it. */
#pragma once

#include "trainer/objective/objective.h"

struct told;

enum { TOLD_SAMPLES_BYTES = 256 };

/* told_create - *out stays NULL on the CPU, where sums are read at once. */
status told_create(struct kernels *k, struct told **out);
void told_destroy(struct told **told);

/* told_name_samples - a blank and a number for each of a micro-batch's samples, as many as there is room for. */
void told_name_samples(const struct batch *batch, char text[TOLD_SAMPLES_BYTES]);

/* told_place - where the objective leaves a micro-batch's sums: zeros. Not while it is full. */
status told_place(struct told *t, const struct batch *batch, double **later);
bool told_is_full(const struct told *t);

/* told_fetch - all are on their way; told_pull waits for them. Nothing without a told. */
status told_fetch(const struct told *t);
status told_pull(const struct told *t);

/* told_next - of those that have arrived, and whose they are; NULL: that was all, and it is empty. */
const double *told_next(struct told *t, const char **samples);
