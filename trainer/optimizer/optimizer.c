#include "trainer/optimizer/optimizer.h"

#include <math.h>
#include <stdlib.h>

struct optimizer {
    struct kernels *kernels;
    struct optimizer_settings settings;
    struct optimizer_range *ranges;
    int count;
    int64_t elements;
    float *moment1, *moment2;
};

status optimizer_create(struct kernels *k, const struct optimizer_settings *settings,
                        const struct optimizer_range *ranges, int count, int64_t elements,
                        struct optimizer **out)
{
    *out = NULL;
    struct optimizer *o = calloc(1, sizeof *o);
    REQUIRE(o != NULL, STATUS_INTERNAL, "out of memory for the optimizer");
    *o = (struct optimizer){
        .kernels = k, .settings = *settings, .count = count, .elements = elements};
    status result = STATUS_OK;
    size_t bytes = (size_t)elements * sizeof(float);
    o->ranges = malloc((size_t)count * sizeof *ranges);
    REQUIRE_GOTO(result, fail, o->ranges != NULL, STATUS_INTERNAL, "out of memory: %d ranges",
                 count);
    memcpy(o->ranges, ranges, (size_t)count * sizeof *ranges);
    struct device *dev = kernels_device(k);
    TRY_GOTO(result, fail, device_allocate(dev, bytes, "first moments", (void **)&o->moment1));
    TRY_GOTO(result, fail, device_allocate(dev, bytes, "second moments", (void **)&o->moment2));
    *out = o;
    return STATUS_OK;
fail:
    (void)optimizer_destroy(&o);
    return result;
}

status optimizer_destroy(struct optimizer **o)
{
    if (*o != NULL) {
        struct device *dev = kernels_device((*o)->kernels);
        size_t bytes = (size_t)(*o)->elements * sizeof(float);
        device_release(dev, (*o)->moment1, bytes);
        device_release(dev, (*o)->moment2, bytes);
        free((*o)->ranges);
        free(*o);
        *o = NULL;
    }
    return STATUS_OK;
}

float *optimizer_moment1(const struct optimizer *o)
{
    return o->moment1;
}

float *optimizer_moment2(const struct optimizer *o)
{
    return o->moment2;
}

int64_t optimizer_elements(const struct optimizer *o)
{
    return o->elements;
}

const struct optimizer_range *optimizer_ranges(const struct optimizer *o, int *count)
{
    *count = o->count;
    return o->ranges;
}

double optimizer_clip(const struct optimizer *o, double norm)
{
    static const double avoids_division_by_zero = 1e-6;
    double limit = o->settings.max_grad_norm;
    if (!(limit > 0)) {
        return 1;
    }
    return fmin(1, limit / (norm + avoids_division_by_zero));
}

status optimizer_update(struct optimizer *o, const struct optimizer_slice *slice, int64_t step,
                        double learning_rate, double scale)
{
    const struct optimizer_settings *s = &o->settings;
    for (int i = 0; i < o->count; i++) {
        const struct optimizer_range *r = &o->ranges[i];
        int64_t in = r->first - slice->first;
        if (in < 0 || in >= slice->count) {
            continue;
        }
        struct adamw settings = {
            .learning_rate = (float)learning_rate,
            .beta1 = (float)s->beta1,
            .beta2 = (float)s->beta2,
            .epsilon = (float)s->epsilon,
            .weight_decay = r->decay ? (float)s->weight_decay : 0,
            .gradient_scale = (float)scale,
            .correction1 = (float)(1 - pow(s->beta1, (double)step)),
            .correction2 = (float)(1 - pow(s->beta2, (double)step)),
        };
        TRY(adamw_update(o->kernels, slice->weights + in,
                         slice->copy != NULL ? slice->copy + in : NULL, o->moment1 + r->at,
                         o->moment2 + r->at, slice->gradients + in, r->count, &settings));
    }
    return STATUS_OK;
}
