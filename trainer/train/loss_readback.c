#include "trainer/train/loss_readback.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/mirror.h"

enum { TOLD_MOST = 64 };

struct told {
    struct mirror sums; /* f64 [TOLD_MOST, OBJECTIVE_SUMS] */
    int count, next;
    struct told_samples samples[TOLD_MOST];
};

status told_create(struct kernels *k, struct told **out)
{
    *out = NULL;
    if (device_is_host(kernels_device(k))) {
        return STATUS_OK;
    }
    struct told *t = calloc(1, sizeof *t);
    REQUIRE(t != NULL, STATUS_INTERNAL, "out of memory for a step's sums");
    status result = mirror_create(kernels_device(k), kernels_stream(k),
                                  TOLD_MOST * OBJECTIVE_SUMS * sizeof(double), "sums", &t->sums);
    if (result != STATUS_OK) {
        told_destroy(&t);
    }
    *out = t;
    return result;
}

void told_destroy(struct told **told)
{
    if (*told != NULL) {
        mirror_destroy(&(*told)->sums);
        free(*told);
        *told = NULL;
    }
}

struct told_samples told_keep_samples(const struct batch *batch)
{
    struct told_samples kept = {.count = batch->sequences};
    for (int64_t i = 0; i < kept.count && i < TOLD_NAMED; i++) {
        kept.numbers[i] = batch->samples[i];
    }
    return kept;
}

void told_name_samples(const struct told_samples *samples, const struct loader *loader, char *text,
                       int bytes)
{
    int64_t named = samples->count < TOLD_NAMED ? samples->count : TOLD_NAMED;
    int used = 0;
    text[0] = '\0';
    for (int64_t i = 0; i < named && used < bytes; i++) {
        char place[512];
        loader_locate(loader, samples->numbers[i], place, (int)sizeof place);
        used += snprintf(text + used, (size_t)(bytes - used), "%s%lld (%s)", i > 0 ? ", " : "",
                         (long long)samples->numbers[i], place);
    }
    if (samples->count > named && used < bytes) {
        snprintf(text + used, (size_t)(bytes - used), " and %lld more",
                 (long long)(samples->count - named));
    }
}

static double *sums_at(void *side, int index)
{
    return (double *)side + (size_t)index * OBJECTIVE_SUMS;
}

status told_place(struct told *t, const struct batch *batch, double **later)
{
    t->samples[t->count] = told_keep_samples(batch);
    *later = sums_at(t->sums.placed, t->count++);
    return device_zero(t->sums.device, t->sums.stream, *later, OBJECTIVE_SUMS * sizeof **later);
}

bool told_is_full(const struct told *t)
{
    return t->count == TOLD_MOST;
}

static size_t used_bytes(const struct told *t)
{
    return (size_t)t->count * OBJECTIVE_SUMS * sizeof(double);
}

status told_fetch(const struct told *t)
{
    return t == NULL ? STATUS_OK : mirror_fetch(&t->sums, 0, used_bytes(t));
}

status told_pull(const struct told *t)
{
    return t == NULL ? STATUS_OK : mirror_pull(&t->sums, 0, used_bytes(t));
}

const double *told_next(struct told *t, const struct told_samples **samples)
{
    if (t == NULL || t->next == t->count) {
        if (t != NULL) {
            t->next = t->count = 0;
        }
        return NULL;
    }
    *samples = &t->samples[t->next];
    return sums_at(t->sums.host, t->next++);
}
