#include "trainer/train/step/sharded_optimizer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/device/mirror.h"
#include "base/memory.h"
#include "base/number.h"
#include "trainer/optimizer/trust_ratios.h"
#include "trainer/train/step/sharded_optimizer_layout.h"

struct sharded_optimizer {
    struct sharded_optimizer_options options;
    int stage;
    struct bucket_set *buckets;
    float **gradients;       /* [parameters] */
    struct optimizer *inner; /* of the owned elements */
    float *weights; /* f32 weights of this rank's shards; NULL: the model holds all of them */
    struct optimizer_range *ranges; /* of `weights`: ranges with moments, then frozen weights */
    int range_count;
    int64_t weight_elems;
    struct optimizer_squares *squares; /* [parameters], for trust ratios */
    struct mirror partial_squares;     /* f64, of the parts below */
    struct mirror gradient_parts;
    struct gradient_parts parts; /* of the reduced gradients that this rank owns */
    const float *origin;         /* of the offsets of the parts */
    struct trust_ratios *ratios; /* on the device; NULL without a control or LAMB */
    struct not_finite *found;    /* on the device; NULL: without sharded_optimizer_set_control */
};

int sharded_optimizer_stage(int zero_stage, int data_ranks)
{
    return data_ranks > 1 ? zero_stage : 0;
}

/* ---- creation ---- */

static status add_floats(void *user, float *to, const float *from, int64_t count)
{
    return op_add(user, to, from, count);
}

static status cast_range(void *user, struct tensor to, struct tensor from)
{
    return op_cast(user, to, from);
}

static status create_buckets(struct sharded_optimizer *sharded)
{
    const struct sharded_optimizer_options *o = &sharded->options;
    int count = 0;
    int64_t layers = model_get_config(o->model)->layers;
    const struct model_parameter *parameters = model_parameters(o->model, &count);
    struct bucket_segment *segments = NULL;
    status result = STATUS_OK;
    TRY_GOTO(result, done, ALLOCATE(segments, layers + 2, "gradients"));
    TRY_GOTO(result, done, ALLOCATE(sharded->gradients, count, "gradients"));
    struct bucket_options options = {
        .comm = o->mesh->data,
        .device = kernels_device(o->kernels),
        .stream = kernels_stream(o->kernels),
        .add = device_is_host(kernels_device(o->kernels)) ? NULL : add_floats,
        .cast = device_is_host(kernels_device(o->kernels)) ? NULL : cast_range,
        .bf16_transport = o->bf16_transport,
        .user = o->kernels,
        .segments = segments,
        .segment_count = sharded_optimizer_list_segments(
            parameters, count, layers, sharded->stage, o->reproducible_micro_batches > 0, segments),
        .bucket_elems = o->bucket_elems,
        .scatter = sharded->stage > 0,
        .micro_batches = o->micro_batches,
        .reproducible_micro_batches = o->reproducible_micro_batches,
    };
    TRY_GOTO(result, done, bucket_create(&options, &sharded->buckets));
    for (int i = 0; i < count; i++) {
        bool trained = parameters[i].trained;
        sharded->gradients[i] =
            trained ? bucket_gradient(sharded->buckets, parameters[i].first) : NULL;
    }
done:
    free(segments);
    return result;
}

/* Returns the number of ranges that this rank updates: 1 at stage 0, else one per bucket. */
static int count_owned_ranges(const struct sharded_optimizer *sharded)
{
    return sharded->stage == 0 ? 1 : bucket_count(sharded->buckets);
}

static int64_t count_trained_elements(const struct sharded_optimizer *sharded)
{
    int count = 0;
    const struct model_parameter *parameters = model_parameters(sharded->options.model, &count);
    return model_trained_elems(parameters, count);
}

static struct comm_range get_owned_range(const struct sharded_optimizer *sharded, int index)
{
    return sharded->stage == 0 ? (struct comm_range){0, count_trained_elements(sharded)}
                               : bucket_shard(sharded->buckets, index);
}

/* The elements of a trained parameter in a range that this rank owns. next_owned_part sets it, at
 * first to zeros. */
struct owned_part {
    const struct model_parameter *parameter;
    int tensor;                        /* index of the parameter */
    struct comm_range elements, owned; /* owned: the range, after `owned_before` elements */
    int64_t offset, owned_before;      /* offset: of the elements in all ranges */
    int next_range, next_tensor;
};

/* Finds the next part. Returns false after the last one; `owned_before` is then the number of
 * elements of all ranges. */
static bool next_owned_part(const struct sharded_optimizer *sharded, struct owned_part *part)
{
    int count = 0;
    const struct model_parameter *parameters = model_parameters(sharded->options.model, &count);
    for (;;) {
        while (part->next_tensor < count) {
            const struct model_parameter *p = &parameters[part->next_tensor];
            part->tensor = part->next_tensor++;
            part->parameter = p;
            part->elements = comm_range_intersect(
                part->owned, (struct comm_range){p->first, p->rows * p->columns});
            part->offset = part->owned_before + part->elements.first - part->owned.first;
            if (p->trained && part->elements.count > 0) {
                return true;
            }
        }
        part->owned_before += part->owned.count;
        if (part->next_range == count_owned_ranges(sharded)) {
            return false;
        }
        part->owned = get_owned_range(sharded, part->next_range++);
        part->next_tensor = 0;
    }
}

/* Finds the position, in the whole parameter, of the element at `offset` of this rank's parameter,
 * so that stochastic rounding is the same at any layout. Returns the number of elements up to the
 * end of that shard. Padding is always 0, which rounding keeps at any position. */
static int64_t locate_elements(const struct model_parameter *p, int64_t offset, bool stochastic,
                               struct rounding *out)
{
    *out = (struct rounding){.columns = p->columns, .pitch = p->columns};
    for (int j = 0; j < p->shard_count; j++) {
        const struct model_shard *shard = &p->shards[j];
        int64_t in = offset - shard->first, left = shard->rows * shard->columns - in;
        if (left > 0) {
            *out = (struct rounding){.stochastic = stochastic,
                                     .first = shard->row * p->whole_columns + shard->column,
                                     .offset = in,
                                     .columns = shard->columns,
                                     .pitch = p->whole_columns};
            return left;
        }
    }
    return p->rows * p->columns - offset;
}

/* Splits a range of a parameter at the ends of its shards if stochastic rounding of weights or
 * moments needs positions. Returns the number of ranges. */
static int split_range(const struct sharded_optimizer *sharded, const struct model_parameter *p,
                       struct optimizer_range range, struct optimizer_range *ranges)
{
    int used = 0;
    const struct optimizer_settings *settings = &sharded->options.optimizer;
    for (int64_t left = range.count; left > 0; left -= range.count) {
        range.count = left;
        if (optimizer_needs_positions(settings)) {
            int64_t run = locate_elements(p, range.first - p->first, settings->stochastic_rounding,
                                          &range.rounding);
            range.count = number_min(run, left);
        }
        ranges[used++] = range;
        range.first += range.count;
        range.moment_offset += range.count;
    }
    return used;
}

/* Lists the ranges of all trained parameters that this rank owns. Returns their number. */
static int list_ranges(const struct sharded_optimizer *sharded, struct optimizer_range *ranges,
                       int64_t *elements)
{
    int used = 0;
    struct owned_part part = {0};
    while (next_owned_part(sharded, &part)) {
        struct optimizer_range range = {.first = part.elements.first,
                                        .count = part.elements.count,
                                        .moment_offset = part.offset,
                                        .decay = part.parameter->decay,
                                        .tensor = part.tensor};
        used += split_range(sharded, part.parameter, range, ranges + used);
    }
    *elements = part.owned_before;
    return used;
}

static status create_optimizer(struct sharded_optimizer *sharded)
{
    int count = 0;
    int64_t elements = 0;
    (void)model_parameters(sharded->options.model, &count);
    size_t capacity = (MODEL_SHARDS_MAX + 1) * (size_t)count + (size_t)count_owned_ranges(sharded);
    TRY(ALLOCATE(sharded->squares, count, "the trust ratios"));
    struct optimizer_range *ranges = NULL;
    TRY(ALLOCATE(ranges, capacity, "ranges"));
    count = list_ranges(sharded, ranges, &elements);
    status result = optimizer_create(sharded->options.kernels, &sharded->options.optimizer, ranges,
                                     count, elements, &sharded->inner);
    free(ranges);
    return result;
}

static status calibrate_collectives(struct sharded_optimizer *sharded)
{
    TRY(bucket_calibrate(sharded->buckets));
    return sharded->stage > 0
               ? bucket_calibrate_gather(sharded->buckets, model_weights(sharded->options.model),
                                         sizeof(float))
               : STATUS_OK;
}

status sharded_optimizer_destroy(struct sharded_optimizer **sharded)
{
    status result = STATUS_OK;
    if (*sharded != NULL) {
        result = bucket_destroy(&(*sharded)->buckets);
        free((*sharded)->gradients);
        free((*sharded)->squares);
        trust_ratios_destroy(&(*sharded)->ratios);
        mirror_destroy(&(*sharded)->partial_squares);
        mirror_destroy(&(*sharded)->gradient_parts);
        free((*sharded)->ranges);
        if ((*sharded)->weights != NULL) {
            device_release(kernels_device((*sharded)->options.kernels), (*sharded)->weights,
                           (size_t)(*sharded)->weight_elems * sizeof(float));
        }
        KEEP_FIRST(result, optimizer_destroy(&(*sharded)->inner));
        free(*sharded);
        *sharded = NULL;
    }
    return result;
}

float *const *sharded_optimizer_gradients(const struct sharded_optimizer *sharded)
{
    return sharded->gradients;
}

bool sharded_optimizer_has_transient_gradients(const struct sharded_optimizer *sharded)
{
    return sharded->stage == 2;
}

struct bucket_set *sharded_optimizer_buckets(const struct sharded_optimizer *sharded)
{
    return sharded->buckets;
}

const struct optimizer *sharded_optimizer_inner(const struct sharded_optimizer *sharded)
{
    return sharded->inner;
}

float *sharded_optimizer_weights(const struct sharded_optimizer *sharded)
{
    return sharded->weights;
}

const struct optimizer_range *
sharded_optimizer_weight_ranges(const struct sharded_optimizer *sharded, int *count)
{
    *count = sharded->range_count;
    return sharded->ranges;
}

bool sharded_optimizer_is_sharded(const struct sharded_optimizer *sharded)
{
    return sharded->stage > 0;
}

/* ---- gradient norm ---- */

/* The parts of the gradients. parts NULL: they are only counted. */
struct part_list {
    struct gradient_part *parts;
    int64_t count;
    const float *origin; /* of the offsets: the first part */
};

/* Adds a range to the list. With reproducible sums there is one part per block of the bucket, so
 * that the parts are the same for any number of ranks. */
static void add_range(const struct sharded_optimizer *sharded, int bucket, struct comm_range range,
                      struct part_list *list)
{
    int64_t bucket_first = bucket_shard(sharded->buckets, bucket).first,
            end = range.first + range.count;
    for (int64_t first = range.first, next; first < end; first = next) {
        int64_t block =
            bucket_first + (first - bucket_first) / BUCKET_BLOCK * BUCKET_BLOCK + BUCKET_BLOCK;
        next = sharded->options.reproducible_micro_batches > 0 && block < end ? block : end;
        const float *gradient = bucket_reduced_gradient(sharded->buckets, bucket, first);
        list->origin = list->count == 0 ? gradient : list->origin;
        if (list->parts != NULL) {
            /* the buckets may lie in several allocations */
            intptr_t bytes = (intptr_t)gradient - (intptr_t)list->origin;
            list->parts[list->count] =
                (struct gradient_part){.offset = bytes / (intptr_t)sizeof *gradient,
                                       .first = first,
                                       .count = next - first};
        }
        list->count++;
    }
}

/* Adds one range per run of adjacent parameters in a bucket. The elements between parameters are
 * padding. Parameters that all ranks of the tensor-parallel group hold count once. */
static void add_bucket_ranges(const struct sharded_optimizer *sharded, int bucket,
                              struct part_list *list)
{
    int all_count = 0;
    bool is_first_rank = comm_rank(sharded->options.mesh->tensor) == 0;
    const struct model_parameter *parameters = model_parameters(sharded->options.model, &all_count);
    struct comm_range run = {0, 0};
    for (int i = 0; i < all_count; i++) {
        const struct model_parameter *p = &parameters[i];
        bool counts = p->trained && (is_first_rank || !p->replicated);
        struct comm_range all = {p->first, counts ? p->rows * p->columns : 0};
        struct comm_range part = comm_range_intersect(bucket_shard(sharded->buckets, bucket), all);
        if (part.count > 0 && part.first != run.first + run.count) {
            add_range(sharded, bucket, run, list);
            run = (struct comm_range){part.first, 0};
        }
        run.count += part.count;
    }
    add_range(sharded, bucket, run, list);
}

static void list_parts(const struct sharded_optimizer *sharded, struct part_list *list)
{
    for (int b = 0; b < bucket_count(sharded->buckets); b++) {
        add_bucket_ranges(sharded, b, list);
    }
}

static status create_squares(struct sharded_optimizer *sharded)
{
    struct device *dev = kernels_device(sharded->options.kernels);
    struct stream *stream = kernels_stream(sharded->options.kernels);
    struct part_list counted = {0};
    list_parts(sharded, &counted);
    const size_t count = (size_t)counted.count, part_bytes = sizeof(struct gradient_part);
    TRY(mirror_create(dev, stream, (count + 1) * sizeof(double), "the gradients' squares",
                      &sharded->partial_squares));
    TRY(mirror_create(dev, stream, (count + 1) * part_bytes, "the parts of the gradients",
                      &sharded->gradient_parts));
    struct part_list list = {.parts = sharded->gradient_parts.host};
    list_parts(sharded, &list);
    control_plan_gradients(list.parts, list.count, &sharded->parts);
    sharded->parts.parts = sharded->gradient_parts.device_data;
    sharded->origin = list.origin;
    return mirror_upload(&sharded->gradient_parts, 0, count * part_bytes);
}

/* Queues the sums of squares of all parts. */
static status queue_squares(const struct sharded_optimizer *sharded)
{
    return sharded->parts.count == 0
               ? STATUS_OK
               : control_gradient_squares(sharded->options.kernels,
                                          sharded->partial_squares.device_data, sharded->found,
                                          sharded->origin, &sharded->parts);
}

static status create_parts(struct sharded_optimizer *sharded)
{
    TRY(create_buckets(sharded));
    TRY(create_optimizer(sharded));
    TRY(create_squares(sharded));
    return calibrate_collectives(sharded);
}

status sharded_optimizer_create(const struct sharded_optimizer_options *options,
                                struct sharded_optimizer **out)
{
    *out = NULL;
    struct sharded_optimizer *sharded = NULL;
    TRY(comm_abort_on_error(options->mesh->world, ALLOCATE(sharded, 1, "the optimizer")));
    sharded->options = *options;
    sharded->stage = sharded_optimizer_stage(options->zero_stage, comm_size(options->mesh->data));
    status result = comm_abort_on_error(options->mesh->world, create_parts(sharded));
    if (result != STATUS_OK) {
        (void)sharded_optimizer_destroy(&sharded);
    }
    *out = sharded;
    return result;
}

status sharded_optimizer_sum_of_squares(struct sharded_optimizer *sharded, struct exact_sum *out)
{
    const int64_t count = sharded->parts.count;
    const double *squares = sharded->partial_squares.host;
    *out = (struct exact_sum){{0}, 0, 0};
    TRY(queue_squares(sharded));
    TRY(mirror_download_and_wait(&sharded->partial_squares, 0, (size_t)count * sizeof *squares));
    for (int64_t i = 0; i < count; i++) {
        exact_add(out, squares[i]);
    }
    return STATUS_OK;
}

status sharded_optimizer_set_control(struct sharded_optimizer *sharded,
                                     const struct update_control *control, struct not_finite *found)
{
    struct trust_ratios_options options = {.mesh = sharded->options.mesh,
                                           .kernels = sharded->options.kernels,
                                           .optimizer = sharded->inner,
                                           .sharded = sharded->stage > 0};
    options.parameters = model_parameters(sharded->options.model, &options.parameter_count);
    sharded->found = found;
    optimizer_set_control(sharded->inner, control);
    return optimizer_uses_trust_ratios(sharded->inner)
               ? trust_ratios_create(&options, &sharded->ratios)
               : STATUS_OK;
}

status sharded_optimizer_queue_squares(struct sharded_optimizer *sharded, double *out)
{
    struct kernels *k = sharded->options.kernels;
    TRY(device_zero(kernels_device(k), kernels_stream(k), sharded->found, sizeof *sharded->found));
    TRY(queue_squares(sharded));
    return control_sum_exact(k, out, sharded->partial_squares.device_data, sharded->parts.count);
}

static status raise_not_finite(const struct model_parameter *p, int64_t element, float value,
                               const char *samples)
{
    RAISE(STATUS_NOT_FINITE,
          "the gradient of %s is %g at element %" PRId64 ", with a finite loss on every "
          "rank; the weights were not updated. Lower optimizer.learning_rate or use fp32%s%s",
          p->name, (double)value, element,
          samples[0] != '\0' ? ". The samples of this rank are " : "", samples);
}

status sharded_optimizer_raise_not_finite(const struct sharded_optimizer *sharded,
                                          struct not_finite found, const char *samples)
{
    int count = 0;
    int64_t element = found.number - 1;
    const struct model_parameter *parameters = model_parameters(sharded->options.model, &count);
    for (int i = 0; i < count && element >= 0; i++) {
        const struct model_parameter *p = &parameters[i];
        if (p->trained && element >= p->first && element < p->first + p->rows * p->columns) {
            return raise_not_finite(p, element - p->first, found.value, samples);
        }
    }
    return STATUS_OK;
}

static status require_finite_gradient(const struct sharded_optimizer *sharded, int bucket,
                                      const struct model_parameter *p)
{
    struct comm_range part =
        comm_range_intersect(bucket_shard(sharded->buckets, bucket),
                             (struct comm_range){p->first, p->rows * p->columns});
    if (part.count == 0) {
        return STATUS_OK;
    }
    enum { CHUNK = 1 << 14 };
    struct kernels *k = sharded->options.kernels;
    const float *gradient = bucket_reduced_gradient(sharded->buckets, bucket, part.first);
    float values[CHUNK];
    for (int64_t e = 0; e < part.count; e++) {
        if (e % CHUNK == 0) {
            int64_t left = part.count - e, count = number_min(left, CHUNK);
            TRY(device_read(kernels_device(k), kernels_stream(k), values, gradient + e,
                            (size_t)count * sizeof *values));
        }
        float value = values[e % CHUNK];
        if (!isfinite(value)) {
            return raise_not_finite(p, part.first - p->first + e, value, "");
        }
    }
    return STATUS_OK;
}

status sharded_optimizer_require_finite(const struct sharded_optimizer *sharded)
{
    int count = 0;
    const struct model_parameter *parameters = model_parameters(sharded->options.model, &count);
    for (int i = 0; i < count; i++) {
        for (int b = 0; b < bucket_count(sharded->buckets) && parameters[i].trained; b++) {
            TRY(require_finite_gradient(sharded, b, &parameters[i]));
        }
    }
    return STATUS_OK;
}

/* ---- weights ---- */

static status copy_range(struct sharded_optimizer *sharded, struct comm_range range, int64_t offset)
{
    return device_copy(kernels_device(sharded->options.kernels),
                       kernels_stream(sharded->options.kernels), sharded->weights + offset,
                       model_weights(sharded->options.model) + range.first,
                       (size_t)range.count * sizeof *sharded->weights);
}

/* Copies the f32 weights of all owned ranges, one after the other, and then the frozen ones. */
static status copy_owned_weights(struct sharded_optimizer *sharded, struct comm_range frozen)
{
    int64_t offset = 0;
    for (int r = 0; r < count_owned_ranges(sharded); r++) {
        TRY(copy_range(sharded, get_owned_range(sharded, r), offset));
        offset += get_owned_range(sharded, r).count;
    }
    return copy_range(sharded, frozen, offset);
}

static status set_weight_ranges(struct sharded_optimizer *sharded, struct comm_range frozen)
{
    int count = 0;
    const struct optimizer_range *ranges = optimizer_ranges(sharded->inner, &count);
    int64_t owned = optimizer_elems(sharded->inner);
    TRY(ALLOCATE(sharded->ranges, count + 1, "ranges"));
    memcpy(sharded->ranges, ranges, (size_t)count * sizeof *ranges);
    sharded->ranges[count] =
        (struct optimizer_range){.first = frozen.first, frozen.count, .moment_offset = owned};
    sharded->range_count = count + 1;
    sharded->weight_elems = owned + frozen.count;
    return STATUS_OK;
}

status sharded_optimizer_release_weights(struct sharded_optimizer *sharded)
{
    struct model *m = sharded->options.model;
    if (sharded->stage == 0 || model_bf16_weights(m) == NULL) {
        return STATUS_OK;
    }
    struct comm *data = sharded->options.mesh->data;
    int count = 0;
    const struct model_parameter *parameters = model_parameters(m, &count);
    struct comm_range frozen = sharded_optimizer_frozen_range(parameters, count, model_elems(m),
                                                              comm_size(data), comm_rank(data));
    TRY(set_weight_ranges(sharded, frozen));
    TRY(device_allocate(kernels_device(sharded->options.kernels),
                        (size_t)sharded->weight_elems * sizeof(float),
                        "the f32 weights of this rank", (void **)&sharded->weights));
    TRY(copy_owned_weights(sharded, frozen));
    return model_release_weights(m);
}

status sharded_optimizer_round_weights(const struct sharded_optimizer *sharded, int64_t step)
{
    int count = 0;
    const struct model *m = sharded->options.model;
    bf16 *copy = model_bf16_weights(m);
    const struct model_parameter *parameters = model_parameters(m, &count);
    for (int i = 0; i < count && sharded->options.optimizer.stochastic_rounding; i++) {
        const struct model_parameter *p = &parameters[i];
        struct optimizer_range ranges[MODEL_SHARDS_MAX + 1];
        struct optimizer_range whole = {
            .first = p->first, .count = p->trained ? p->rows * p->columns : 0, .tensor = i};
        int range_count = split_range(sharded, p, whole, ranges);
        for (int j = 0; j < range_count; j++) {
            struct rounding rounding = optimizer_rounding(sharded->inner, &ranges[j], step);
            TRY(op_round_weights(sharded->options.kernels, copy + ranges[j].first,
                                 model_weights(m) + ranges[j].first, ranges[j].count, &rounding));
        }
    }
    return STATUS_OK;
}

/* Describes an owned range for the optimizer. If this rank keeps only its own f32 weights,
 * *weights points to the weights of the range and advances past them; else it is NULL. */
static struct optimizer_slice get_slice(const struct sharded_optimizer *sharded, int index,
                                        float **weights)
{
    struct comm_range owned = get_owned_range(sharded, index);
    bf16 *copy = model_bf16_weights(sharded->options.model);
    struct optimizer_slice slice = {
        .first = owned.first,
        .count = owned.count,
        .weights =
            *weights != NULL ? *weights : model_weights(sharded->options.model) + owned.first,
        .gradients = bucket_reduced_gradient(sharded->buckets, index, owned.first),
        .bf16_weights = copy != NULL ? copy + owned.first : NULL,
    };
    *weights += *weights != NULL ? owned.count : 0;
    return slice;
}

/* Runs the first half of LAMB: updates the moments, and computes the trust ratios of whole tensors.
 * Each rank holds a part of a tensor. */
static status compute_trust_ratios(struct sharded_optimizer *sharded, int64_t step, double scale)
{
    int count = 0;
    status result = STATUS_OK;
    float *weights = sharded->weights;
    const struct mesh *mesh = sharded->options.mesh;
    const struct model_parameter *parameters = model_parameters(sharded->options.model, &count);
    memset(sharded->squares, 0, (size_t)count * sizeof *sharded->squares);
    for (int r = 0; r < count_owned_ranges(sharded); r++) {
        struct optimizer_slice slice = get_slice(sharded, r, &weights);
        KEEP_FIRST(result, optimizer_update_moments(sharded->inner, &slice, step, scale));
    }
    if (sharded->ratios != NULL) {
        KEEP_FIRST(result, trust_ratios_queue(sharded->ratios));
        return result;
    }
    KEEP_FIRST(result, optimizer_add_squares(sharded->inner, sharded->squares));
    for (int i = 0; i < count && comm_rank(mesh->tensor) > 0; i++) {
        if (parameters[i].replicated) {
            sharded->squares[i] = (struct optimizer_squares){0};
        }
    }
    double *sums = &sharded->squares->weights;
    if (sharded->stage > 0) {
        KEEP_FIRST(result, comm_sum_doubles(mesh->data, sums, 2 * (int64_t)count));
    }
    KEEP_FIRST(result, comm_sum_doubles(mesh->tensor, sums, 2 * (int64_t)count));
    optimizer_set_trust_ratios(sharded->inner, sharded->squares);
    return result;
}

/* Gathers all vectors in f32 on every rank, as a sum: the rank that owns an element adds its value,
 * and the others add zero. */
static status gather_vectors(struct sharded_optimizer *sharded)
{
    int64_t elements = 0;
    float *vectors = model_vectors(sharded->options.model, &elements);
    struct device *dev = kernels_device(sharded->options.kernels);
    struct stream *stream = kernels_stream(sharded->options.kernels);
    if (elements == 0) { /* no biases and no weights of norms, as in olmo */
        return STATUS_OK;
    }
    TRY(device_zero(dev, stream, vectors, (size_t)elements * sizeof *vectors));
    struct owned_part part = {0};
    while (next_owned_part(sharded, &part)) {
        const struct model_parameter *p = part.parameter;
        if (p->dimensions == 1) {
            int64_t first = p->vector_offset + (part.elements.first - p->first);
            TRY(device_copy(dev, stream, vectors + first, sharded->weights + part.offset,
                            (size_t)part.elements.count * sizeof *vectors));
        }
    }
    return comm_all_reduce(sharded->options.mesh->data, vectors, elements);
}

static status start_gather(struct sharded_optimizer *sharded, int index)
{
    struct model *m = sharded->options.model;
    bool released = sharded->weights != NULL;
    void *gathered = released ? (void *)model_bf16_weights(m) : (void *)model_weights(m);
    return bucket_gather_start(sharded->buckets, index, gathered,
                               released ? sizeof(bf16) : sizeof(float));
}

/* The all-gather of a range overlaps the update of the next ones and the next forward pass.
 * Separate vectors are gathered first, because collectives complete in order. */
status sharded_optimizer_step(struct sharded_optimizer *sharded, int64_t step, double learning_rate,
                              double norm, double scale)
{
    bool released = sharded->weights != NULL;
    float *weights = sharded->weights;
    status result = STATUS_OK;
    scale *= optimizer_clip_factor(sharded->inner, norm);
    if (optimizer_uses_trust_ratios(sharded->inner)) {
        result = compute_trust_ratios(sharded, step, scale);
    }
    for (int r = 0; r < count_owned_ranges(sharded); r++) {
        struct optimizer_slice slice = get_slice(sharded, r, &weights);
        KEEP_FIRST(result, optimizer_update(sharded->inner, &slice, step, learning_rate, scale));
        if (sharded->stage > 0 && !released) {
            KEEP_FIRST(result, start_gather(sharded, r));
        }
    }
    if (released) {
        KEEP_FIRST(result, gather_vectors(sharded));
    }
    for (int r = 0; r < count_owned_ranges(sharded) && released; r++) {
        KEEP_FIRST(result, start_gather(sharded, r));
    }
    return result;
}

status sharded_optimizer_wait_until(struct sharded_optimizer *sharded, int64_t end)
{
    return sharded->stage > 0 ? bucket_gather_until(sharded->buckets, end) : STATUS_OK;
}

status sharded_optimizer_wait_all(struct sharded_optimizer *sharded)
{
    return sharded_optimizer_wait_until(sharded, count_trained_elements(sharded));
}
