#include "trainer/optimizer/optimizer.h"

#include <math.h>
#include <stdlib.h>

#include "base/deadlines.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/random.h"

struct optimizer {
    struct kernels *kernels;
    struct optimizer_settings settings;
    struct optimizer_range *ranges;
    int count;
    int64_t elements;
    void *moment1, *moment2; /* of settings.moment_dtype */
    /* LAMB, for each range: sums of squares on the device, their copy on the host, trust ratios. */
    struct optimizer_squares *device_squares, *squares;
    double *ratios;
    const struct update_control *control;
    struct adamw_part *parts, *device_parts; /* [count] each; NULL: an update for each range */
    const double *device_ratios;             /* f64 [count]; NULL: `ratios` apply */
};

static size_t get_moment_bytes(const struct optimizer *o, int64_t elements)
{
    return (size_t)elements * dtype_bytes(o->settings.moment_dtype);
}

/* Returns the address of the first moment of a range in `moments`. */
static void *get_moment(const struct optimizer *o, void *moments, const struct optimizer_range *r)
{
    return (char *)moments + get_moment_bytes(o, r->moment_offset);
}

static status allocate_trust_ratios(struct optimizer *o)
{
    size_t bytes = (size_t)o->count * sizeof *o->squares;
    TRY(ALLOCATE(o->squares, o->count + 1, "the sums of squares of ranges"));
    TRY(ALLOCATE(o->ratios, o->count + 1, "the trust ratios of ranges"));
    return device_allocate(kernels_device(o->kernels), bytes, "trust ratios",
                           (void **)&o->device_squares);
}

/* Lists the ranges for operations on parts, which do not use the positions of elements. */
static status create_parts(struct optimizer *o)
{
    struct device *dev = kernels_device(o->kernels);
    size_t bytes = (size_t)o->count * sizeof *o->parts;
    int64_t blocks = 0, sums = 0;
    TRY(ALLOCATE(o->parts, o->count + 1, "ranges"));
    for (int i = 0; i < o->count; i++) {
        const struct optimizer_range *r = &o->ranges[i];
        o->parts[i] =
            (struct adamw_part){.first = r->first,
                                .count = r->count,
                                .moment = r->moment_offset,
                                .first_block = blocks,
                                .weight_decay = r->decay ? (float)o->settings.weight_decay : 0,
                                .first_sum = sums};
        blocks += adamw_parts_blocks(&o->parts[i]);
        sums += lamb_parts_sums(&o->parts[i]);
    }
    TRY(device_allocate(dev, bytes, "the ranges of the optimizer", (void **)&o->device_parts));
    return device_write(dev, kernels_stream(o->kernels), o->device_parts, o->parts, bytes);
}

/* Returns whether one launch updates many ranges. A CPU updates the ranges of LAMB one by one, so
 * that its threads share the elements of each. */
static bool has_parts(const struct optimizer *o)
{
    int64_t sums = 0;
    for (int i = 0; i < o->count; i++) {
        sums += number_divide_up(o->ranges[i].count, LAMB_PARTS_SUM);
    }
    bool fits = !device_is_host(kernels_device(o->kernels)) && sums <= LAMB_PARTS_SUMS_MAX;
    return !optimizer_needs_positions(&o->settings) && (fits || !optimizer_uses_trust_ratios(o));
}

status optimizer_create(struct kernels *k, const struct optimizer_settings *settings,
                        const struct optimizer_range *ranges, int count, int64_t elements,
                        struct optimizer **out)
{
    *out = NULL;
    struct optimizer *o = NULL;
    TRY(ALLOCATE(o, 1, "the optimizer"));
    *o = (struct optimizer){
        .kernels = k, .settings = *settings, .count = count, .elements = elements};
    status result = STATUS_OK;
    size_t bytes = get_moment_bytes(o, elements);
    TRY_GOTO(result, fail, ALLOCATE(o->ranges, count, "ranges"));
    memcpy(o->ranges, ranges, (size_t)count * sizeof *ranges);
    struct device *dev = kernels_device(k);
    TRY_GOTO(result, fail, device_allocate(dev, bytes, "first moments", &o->moment1));
    TRY_GOTO(result, fail, device_allocate(dev, bytes, "second moments", &o->moment2));
    if (optimizer_uses_trust_ratios(o)) {
        TRY_GOTO(result, fail, allocate_trust_ratios(o));
    }
    if (has_parts(o)) {
        TRY_GOTO(result, fail, create_parts(o));
    }
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
        size_t bytes = get_moment_bytes(*o, (*o)->elements);
        device_release(dev, (*o)->moment1, bytes);
        device_release(dev, (*o)->moment2, bytes);
        device_release(dev, (*o)->device_squares, (size_t)(*o)->count * sizeof *(*o)->squares);
        device_release(dev, (*o)->device_parts, (size_t)(*o)->count * sizeof *(*o)->parts);
        free((*o)->parts);
        free((*o)->squares);
        free((*o)->ratios);
        free((*o)->ranges);
        free(*o);
        *o = NULL;
    }
    return STATUS_OK;
}

void *optimizer_moment1(const struct optimizer *o)
{
    return o->moment1;
}

void *optimizer_moment2(const struct optimizer *o)
{
    return o->moment2;
}

enum dtype optimizer_moment_dtype(const struct optimizer *o)
{
    return o->settings.moment_dtype;
}

int64_t optimizer_elems(const struct optimizer *o)
{
    return o->elements;
}

const struct optimizer_range *optimizer_ranges(const struct optimizer *o, int *count)
{
    *count = o->count;
    return o->ranges;
}

double optimizer_clip_factor(const struct optimizer *o, double norm)
{
    return control_clip_factor(norm, o->settings.max_grad_norm);
}

double optimizer_max_norm(const struct optimizer *o)
{
    return o->settings.max_grad_norm;
}

void optimizer_set_trust_ratios_on_device(struct optimizer *o, const double *ratios)
{
    o->device_ratios = ratios;
}

const struct optimizer_squares *optimizer_device_squares(const struct optimizer *o)
{
    return o->device_squares;
}

bool optimizer_has_trust_ratio(const struct optimizer *o, int range)
{
    return (o->ranges[range].decay && o->settings.weight_decay > 0) || o->settings.trust_all;
}

void optimizer_set_control(struct optimizer *o, const struct update_control *control)
{
    o->control = control;
}

struct rounding optimizer_rounding(const struct optimizer *o, const struct optimizer_range *r,
                                   int64_t step)
{
    struct rounding rounding = r->rounding;
    rounding.key =
        random_key(o->settings.seed, RANDOM_ROUNDING, (uint64_t)step, (uint64_t)r->tensor);
    return rounding;
}

/* Returns the kernel arguments for a range. */
static struct adamw make_settings(const struct optimizer *o, const struct optimizer_range *r,
                                  int64_t step, double learning_rate, double scale)
{
    const struct optimizer_settings *s = &o->settings;
    uint64_t moments = 2 * (uint64_t)r->tensor;
    return (struct adamw){
        .learning_rate = (float)learning_rate,
        .beta1 = s->beta1,
        .beta2 = s->beta2,
        .epsilon = (float)s->epsilon,
        .weight_decay = r->decay ? (float)s->weight_decay : 0,
        .gradient_scale = (float)scale,
        .control = o->control,
        .correction1 = (float)(1 - pow(s->beta1, (double)step)),
        .correction2 = (float)(1 - pow(s->beta2, (double)step)),
        .rounding = optimizer_rounding(o, r, step),
        .moment_dtype = s->moment_dtype,
        .moment_keys = {random_key(s->seed, RANDOM_MOMENTS, (uint64_t)step, moments),
                        random_key(s->seed, RANDOM_MOMENTS, (uint64_t)step, moments + 1)},
    };
}

/* Returns whether the range begins in the slice. */
static bool is_range_in_slice(const struct optimizer_range *r, const struct optimizer_slice *slice)
{
    return r->first >= slice->first && r->first < slice->first + slice->count;
}

/* Returns the consecutive parts of the ranges that begin in the slice, and in *first the number of
 * the first one. */
static struct adamw_parts list_parts(const struct optimizer *o, const struct optimizer_slice *slice,
                                     int *first)
{
    struct adamw_parts parts = {
        .origin = slice->first, .elements = slice->count, .moment_elems = o->elements};
    for (int i = 0; i < o->count; i++) {
        if (is_range_in_slice(&o->ranges[i], slice)) {
            if (parts.part_count == 0) {
                *first = i;
                parts.parts = o->device_parts + i;
                parts.first_block = o->parts[i].first_block;
                parts.first_sum = o->parts[i].first_sum;
            }
            parts.part_count++;
            parts.blocks += adamw_parts_blocks(&o->parts[i]);
            parts.sums += lamb_parts_sums(&o->parts[i]);
        }
    }
    return parts;
}

/* ---- LAMB: moments and trust ratios ---- */

bool optimizer_uses_trust_ratios(const struct optimizer *o)
{
    return o->settings.kind == OPTIMIZER_LAMB;
}

status optimizer_update_moments(struct optimizer *o, const struct optimizer_slice *slice,
                                int64_t step, double scale)
{
    if (o->parts != NULL) {
        int first = 0;
        const struct optimizer_range any = {0};
        const struct adamw settings = make_settings(o, &any, step, 0, scale);
        const struct adamw_parts parts = list_parts(o, slice, &first);
        return parts.part_count == 0
                   ? STATUS_OK
                   : lamb_parts_moments(o->kernels, &o->device_squares[first].weights,
                                        slice->weights, o->moment1, o->moment2, slice->gradients,
                                        &parts, &settings);
    }
    for (int i = 0; i < o->count; i++) {
        const struct optimizer_range *r = &o->ranges[i];
        if (is_range_in_slice(r, slice)) {
            int64_t offset = r->first - slice->first;
            struct adamw settings = make_settings(o, r, step, 0, scale);
            TRY(lamb_moments(o->kernels, &o->device_squares[i].weights, slice->weights + offset,
                             get_moment(o, o->moment1, r), get_moment(o, o->moment2, r),
                             slice->gradients + offset, r->count, &settings));
        }
    }
    return STATUS_OK;
}

status optimizer_add_squares(struct optimizer *o, struct optimizer_squares *squares)
{
    struct device *dev = kernels_device(o->kernels);
    struct stream *stream = kernels_stream(o->kernels);
    TRY(device_copy(dev, stream, o->squares, o->device_squares,
                    (size_t)o->count * sizeof *o->squares));
    TRY(device_wait(dev, stream, DEADLINE_DEVICE_STEP_SECONDS));
    for (int i = 0; i < o->count; i++) {
        squares[o->ranges[i].tensor].weights += o->squares[i].weights;
        squares[o->ranges[i].tensor].update += o->squares[i].update;
    }
    return STATUS_OK;
}

void optimizer_set_trust_ratios(struct optimizer *o, const struct optimizer_squares *squares)
{
    for (int i = 0; i < o->count; i++) {
        const struct optimizer_range *r = &o->ranges[i];
        struct optimizer_squares s = squares[r->tensor];
        bool has_ratio = optimizer_has_trust_ratio(o, i) && s.weights != 0 && s.update != 0;
        o->ratios[i] = has_ratio ? sqrt(s.weights / s.update) : 1;
    }
}

/* ---- update ---- */

static status update_range(struct optimizer *o, const struct optimizer_slice *slice, int index,
                           const struct adamw *settings)
{
    const struct optimizer_range *r = &o->ranges[index];
    int64_t offset = r->first - slice->first;
    bf16 *bf16_weights = slice->bf16_weights != NULL ? slice->bf16_weights + offset : NULL;
    if (optimizer_uses_trust_ratios(o)) {
        return lamb_apply(o->kernels, slice->weights + offset, bf16_weights,
                          get_moment(o, o->moment1, r), get_moment(o, o->moment2, r), r->count,
                          settings);
    }
    return adamw_update(o->kernels, slice->weights + offset, bf16_weights,
                        get_moment(o, o->moment1, r), get_moment(o, o->moment2, r),
                        slice->gradients + offset, r->count, settings);
}

/* Updates the ranges that begin in the slice, in one launch. */
static status update_parts(struct optimizer *o, const struct optimizer_slice *slice, int64_t step,
                           double learning_rate, double scale)
{
    int first = 0;
    const struct optimizer_range any = {0};
    struct adamw settings = make_settings(o, &any, step, learning_rate, scale);
    const struct adamw_parts parts = list_parts(o, slice, &first);
    if (parts.part_count == 0) {
        return STATUS_OK;
    }
    settings.base_rate = learning_rate;
    if (optimizer_uses_trust_ratios(o)) {
        return lamb_parts_apply(o->kernels, slice->weights, slice->bf16_weights, o->moment1,
                                o->moment2, o->device_ratios + first, &parts, &settings);
    }
    return adamw_parts_update(o->kernels, slice->weights, slice->bf16_weights, o->moment1,
                              o->moment2, slice->gradients, &parts, &settings);
}

status optimizer_update(struct optimizer *o, const struct optimizer_slice *slice, int64_t step,
                        double learning_rate, double scale)
{
    if (o->parts != NULL && (o->device_ratios != NULL || !optimizer_uses_trust_ratios(o))) {
        return update_parts(o, slice, step, learning_rate, scale);
    }
    for (int i = 0; i < o->count; i++) {
        if (is_range_in_slice(&o->ranges[i], slice)) {
            double ratio = optimizer_uses_trust_ratios(o) ? o->ratios[i] : 1;
            struct adamw settings =
                make_settings(o, &o->ranges[i], step, learning_rate * ratio, scale);
            settings.base_rate = learning_rate;
            settings.trust_ratio = o->device_ratios != NULL ? o->device_ratios + i : NULL;
            TRY(update_range(o, slice, i, &settings));
        }
    }
    return STATUS_OK;
}
