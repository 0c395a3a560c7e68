#include "trainer/train/sharded_optimizer.h"

#include <math.h>
#include <stdlib.h>

#include "base/mirror.h"

#include "comm/partition.h"

struct update {
    struct update_options options;
    int stage;
    struct bucket_set *buckets;
    float **gradients; /* [parameters] */
    struct optimizer *optimizer;
    float *weights; /* f32, of this rank's shares; NULL: the model's */
    struct optimizer_range
        *ranges; /* where they lie: as the moments do, and what is frozen behind */
    int range_count;
    int64_t weight_elements;
    struct optimizer_squares *squares; /* [parameters], for trust ratios */
    struct mirror parts; /* f64, of the gradients' squares; not there: to be counted */
};

int update_stage(int zero_stage, int data_ranks)
{
    return data_ranks > 1 ? zero_stage : 0;
}

/* ---- making ---- */

/* What is frozen has no part in it. At stage 2 every layer is a segment that passes; tables and what is behind the layers stay, because
 * backward needs the head's gradient from its beginning to its end. Ordered sums are made over the same
 * segments at every stage. */
static int cut_segments(const struct model_parameter *parameters, int parameter_count,
                        int64_t layers, int stage, bool ordered, struct bucket_segment *out)
{
    int count = 0;
    int64_t first = 0, elements = model_trained_elements(parameters, parameter_count);
    for (int64_t l = 0; l <= layers && (stage == 2 || ordered); l++) {
        int64_t next = model_layer_first(parameters, parameter_count, l);
        out[count++] = (struct bucket_segment){next - first, l > 0 && stage == 2};
        first = next;
    }
    out[count++] = (struct bucket_segment){elements - first, false};
    return count;
}

static status add_floats(void *user, float *to, const float *from, int64_t count)
{
    return floats_add(user, to, from, count);
}

static status convert_range(void *user, struct tensor to, struct tensor from)
{
    return convert(user, to, from);
}

static status make_buckets(struct update *u)
{
    const struct update_options *o = &u->options;
    int count = 0;
    int64_t layers = model_config_of(o->model)->layers;
    const struct model_parameter *parameters = model_parameters(o->model, &count);
    struct bucket_segment *segments = calloc((size_t)layers + 2, sizeof *segments);
    u->gradients = calloc((size_t)count, sizeof *u->gradients);
    status result = STATUS_OK;
    REQUIRE_GOTO(result, done, segments != NULL && u->gradients != NULL, STATUS_INTERNAL,
                 "out of memory for %d gradients", count);
    struct bucket_options options = {
        .comm = o->mesh->data,
        .device = kernels_device(o->kernels),
        .stream = kernels_stream(o->kernels),
        .add = device_is_host(kernels_device(o->kernels)) ? NULL : add_floats,
        .convert = device_is_host(kernels_device(o->kernels)) ? NULL : convert_range,
        .narrow = o->narrow,
        .user = o->kernels,
        .segments = segments,
        .segment_count =
            cut_segments(parameters, count, layers, u->stage, o->ordered > 0, segments),
        .bucket_elems = o->bucket_elems,
        .scatter = u->stage > 0,
        .rounds = o->micro_batches,
        .ordered = o->ordered,
    };
    TRY_GOTO(result, done, bucket_create(&options, &u->buckets));
    for (int i = 0; i < count; i++) {
        bool trained = parameters[i].trained;
        u->gradients[i] = trained ? bucket_place(u->buckets, parameters[i].first) : NULL;
    }
done:
    free(segments);
    return result;
}

static struct range common(struct range a, struct range b)
{
    int64_t first = a.first > b.first ? a.first : b.first;
    int64_t a_end = a.first + a.count, b_end = b.first + b.count;
    int64_t end = a_end < b_end ? a_end : b_end;
    return (struct range){first, end > first ? end - first : 0};
}

/* Elements whose sums this rank has and which it updates together: all at once at stage 0, else its share of
 * a bucket. */
static int holdings(const struct update *u)
{
    return u->stage == 0 ? 1 : bucket_count(u->buckets);
}

static int64_t trained_elements(const struct update *u)
{
    int count = 0;
    const struct model_parameter *parameters = model_parameters(u->options.model, &count);
    return model_trained_elements(parameters, count);
}

static struct range holding(const struct update *u, int index)
{
    return u->stage == 0 ? (struct range){0, trained_elements(u)} : bucket_share(u->buckets, index);
}

/* Where a part that begins `offset` elements behind its parameter's first one lies, and how many elements lie there
 * before the next piece: each of the whole is rounded alike on all ranks. Padding is zero. */
static int64_t place_part(const struct model_parameter *p, int64_t offset, struct rounding *out)
{
    *out = (struct rounding){0};
    for (int j = 0; j < p->piece_count; j++) {
        const struct model_piece *piece = &p->pieces[j];
        int64_t in = offset - piece->first, left = piece->rows * piece->columns - in;
        if (left > 0) {
            *out = (struct rounding){.stochastic = true,
                                     .first = piece->row * p->whole_columns + piece->column,
                                     .offset = in,
                                     .columns = piece->columns,
                                     .pitch = p->whole_columns};
            return left;
        }
    }
    return p->rows * p->columns - offset;
}

/* A part of a parameter, cut into its pieces where their places are asked for; `range` is the whole part. */
static int cut_part(const struct update *u, const struct model_parameter *p,
                    struct optimizer_range range, struct optimizer_range *ranges)
{
    int used = 0;
    for (int64_t left = range.count; left > 0; left -= range.count) {
        range.count = left;
        if (u->options.optimizer.stochastic_rounding) {
            int64_t here = place_part(p, range.first - p->first, &range.rounding);
            range.count = here < left ? here : left;
        }
        ranges[used++] = range;
        range.first += range.count;
        range.at += range.count;
    }
    return used;
}

/* Parameters cut by what this rank holds; ranges [most_ranges]. */
static int cut_parameters(const struct update *u, struct optimizer_range *ranges, int64_t *elements)
{
    int count = 0, used = 0;
    const struct model_parameter *parameters = model_parameters(u->options.model, &count);
    *elements = 0;
    for (int h = 0; h < holdings(u); h++) {
        struct range held = holding(u, h);
        for (int i = 0; i < count; i++) {
            const struct model_parameter *p = &parameters[i];
            struct range part = common(held, (struct range){p->first, p->rows * p->columns});
            if (p->trained && part.count > 0) {
                struct optimizer_range range = {.first = part.first,
                                                .count = part.count,
                                                .at = *elements + part.first - held.first,
                                                .decay = p->decay,
                                                .tensor = i};
                used += cut_part(u, p, range, ranges + used);
            }
        }
        *elements += held.count;
    }
    return used;
}

static status make_optimizer(struct update *u)
{
    int count = 0;
    int64_t elements = 0;
    (void)model_parameters(u->options.model, &count);
    size_t most = (MODEL_PIECES_MAX + 1) * (size_t)count + (size_t)holdings(u);
    u->squares = calloc((size_t)count, sizeof *u->squares);
    REQUIRE(u->squares != NULL, STATUS_INTERNAL, "out of memory for %d trust ratios", count);
    struct optimizer_range *ranges = calloc(most, sizeof *ranges);
    REQUIRE(ranges != NULL, STATUS_INTERNAL, "out of memory for %zu ranges", most);
    count = cut_parameters(u, ranges, &elements);
    status result = optimizer_create(u->options.kernels, &u->options.optimizer, ranges, count,
                                     elements, &u->optimizer);
    free(ranges);
    return result;
}

static status rehearse(struct update *u)
{
    TRY(bucket_rehearse(u->buckets));
    return u->stage > 0
               ? bucket_rehearse_gather(u->buckets, model_weights(u->options.model), sizeof(float))
               : STATUS_OK;
}

status update_destroy(struct update **u)
{
    status result = STATUS_OK;
    if (*u != NULL) {
        result = bucket_destroy(&(*u)->buckets);
        free((*u)->gradients);
        free((*u)->squares);
        mirror_destroy(&(*u)->parts);
        free((*u)->ranges);
        if ((*u)->weights != NULL) {
            device_release(kernels_device((*u)->options.kernels), (*u)->weights,
                           (size_t)(*u)->weight_elements * sizeof(float));
        }
        KEEP_FIRST(result, optimizer_destroy(&(*u)->optimizer));
        free(*u);
        *u = NULL;
    }
    return result;
}

float *const *update_gradients(const struct update *u)
{
    return u->gradients;
}

struct bucket_set *update_buckets(const struct update *u)
{
    return u->buckets;
}

const struct optimizer *update_optimizer(const struct update *u)
{
    return u->optimizer;
}

float *update_weights(const struct update *u)
{
    return u->weights;
}

const struct optimizer_range *update_weight_ranges(const struct update *u, int *count)
{
    *count = u->range_count;
    return u->ranges;
}

bool update_is_sharded(const struct update *u)
{
    return u->stage > 0;
}

/* ---- the norm ---- */

/* In one piece, or by the blocks that a bucket has at any number of ranks. */
static status add_squares(const struct update *u, int bucket, struct range part, int64_t *count)
{
    double *parts = u->parts.placed;
    int64_t share = bucket_share(u->buckets, bucket).first, end = part.first + part.count;
    for (int64_t first = part.first, next; first < end; first = next) {
        int64_t block = share + (first - share) / BUCKET_BLOCK * BUCKET_BLOCK + BUCKET_BLOCK;
        next = u->options.ordered > 0 && block < end ? block : end;
        TRY(parts == NULL ? STATUS_OK
                          : sum_of_squares(u->options.kernels, parts + *count,
                                           bucket_sum(u->buckets, bucket, first), next - first));
        (*count)++;
    }
    return STATUS_OK;
}

/* A bucket's parameters in one piece where they touch. What lies between them is no gradient (bucket_gather_start), and
 * what every rank of the tensor group holds counts once. */
static status add_bucket(const struct update *u, int bucket, int64_t *count)
{
    int all_count = 0;
    bool first = comm_rank(u->options.mesh->tensor) == 0;
    const struct model_parameter *parameters = model_parameters(u->options.model, &all_count);
    struct range piece = {0, 0};
    for (int i = 0; i < all_count; i++) {
        const struct model_parameter *p = &parameters[i];
        bool counts = p->trained && (first || !p->replicated);
        struct range all = {p->first, counts ? p->rows * p->columns : 0};
        struct range part = common(bucket_share(u->buckets, bucket), all);
        if (part.count > 0 && part.first != piece.first + piece.count) {
            TRY(add_squares(u, bucket, piece, count));
            piece = (struct range){part.first, 0};
        }
        piece.count += part.count;
    }
    return add_squares(u, bucket, piece, count);
}

/* All parts of this rank, in their order. */
static status queue_squares(const struct update *u, int64_t *count)
{
    *count = 0;
    for (int b = 0; b < bucket_count(u->buckets); b++) {
        TRY(add_bucket(u, b, count));
    }
    return STATUS_OK;
}

static status make_parts(struct update *u)
{
    int64_t count = 0;
    TRY(queue_squares(u, &count));
    return mirror_create(kernels_device(u->options.kernels), kernels_stream(u->options.kernels),
                         (size_t)(count + 1) * sizeof(double), "the gradients' squares", &u->parts);
}

status update_create(const struct update_options *options, struct update **out)
{
    *out = NULL;
    struct update *u = calloc(1, sizeof *u);
    REQUIRE(u != NULL, STATUS_INTERNAL, "out of memory for the optimizer");
    u->options = *options;
    u->stage = update_stage(options->zero_stage, comm_size(options->mesh->data));
    status result = make_buckets(u);
    if (result == STATUS_OK) {
        result = make_optimizer(u);
    }
    if (result == STATUS_OK) {
        result = make_parts(u);
    }
    if (result == STATUS_OK) {
        result = rehearse(u);
    }
    if (result != STATUS_OK) {
        (void)update_destroy(&u);
    }
    *out = u;
    return result;
}

status update_sum_of_squares(struct update *u, struct exact_sum *out)
{
    int64_t count = 0;
    const double *parts = u->parts.host;
    *out = (struct exact_sum){{0}, 0, 0};
    TRY(queue_squares(u, &count));
    TRY(mirror_pull(&u->parts, 0, (size_t)count * sizeof *parts));
    for (int64_t i = 0; i < count; i++) {
        exact_add(out, parts[i]);
    }
    return STATUS_OK;
}

static status require_finite(const struct update *u, int bucket, const struct model_parameter *p)
{
    struct range part =
        common(bucket_share(u->buckets, bucket), (struct range){p->first, p->rows * p->columns});
    if (part.count == 0) {
        return STATUS_OK;
    }
    enum { CHUNK = 1 << 14 };
    struct kernels *k = u->options.kernels;
    const float *gradient = bucket_sum(u->buckets, bucket, part.first);
    float values[CHUNK];
    for (int64_t e = 0; e < part.count; e++) {
        if (e % CHUNK == 0) {
            int64_t left = part.count - e, count = left < CHUNK ? left : CHUNK;
            TRY(device_read(kernels_device(k), kernels_stream(k), values, gradient + e,
                            (size_t)count * sizeof *values));
        }
        float value = values[e % CHUNK];
        REQUIRE(isfinite(value), STATUS_NOT_FINITE,
                "the gradient of %s is %g at element %lld, with a finite loss on every rank; the "
                "weights were not updated. Lower optimizer.learning_rate or use fp32",
                p->name, (double)value, (long long)(part.first - p->first + e));
    }
    return STATUS_OK;
}

status update_require_finite(const struct update *u)
{
    int count = 0;
    const struct model_parameter *parameters = model_parameters(u->options.model, &count);
    for (int i = 0; i < count; i++) {
        for (int b = 0; b < bucket_count(u->buckets) && parameters[i].trained; b++) {
            TRY(require_finite(u, b, &parameters[i]));
        }
    }
    return STATUS_OK;
}

/* ---- the update ---- */

static status copy_share(struct update *u, struct range held, int64_t at)
{
    return device_copy(kernels_device(u->options.kernels), kernels_stream(u->options.kernels),
                       u->weights + at, model_weights(u->options.model) + held.first,
                       (size_t)held.count * sizeof *u->weights);
}

/* The shares lie one after the other. */
static status copy_shares(struct update *u, struct range frozen)
{
    int64_t at = 0;
    for (int h = 0; h < holdings(u); h++) {
        TRY(copy_share(u, holding(u, h), at));
        at += holding(u, h).count;
    }
    return copy_share(u, frozen, at);
}

/* What is frozen beside adapters is in no checkpoint. */
static bool is_beside_adapters(const struct model_parameter *parameters, int count)
{
    bool beside = false;
    for (int i = 0; i < count; i++) {
        beside = beside || model_is_adapter(&parameters[i]);
    }
    return beside;
}

/* What is frozen is shared out evenly: only checkpoints read it. */
static struct range frozen_share(const struct model_parameter *parameters, int count,
                                 int64_t elements, int ranks, int rank)
{
    int64_t trained = model_trained_elements(parameters, count);
    bool beside = is_beside_adapters(parameters, count);
    struct range share = partition_share(beside ? 0 : elements - trained, 1, ranks, rank);
    share.first += trained;
    return share;
}

static status place_shares(struct update *u, struct range frozen)
{
    int count = 0;
    const struct optimizer_range *ranges = optimizer_ranges(u->optimizer, &count);
    int64_t owned = optimizer_elements(u->optimizer);
    u->ranges = calloc((size_t)count + 1, sizeof *u->ranges);
    REQUIRE(u->ranges != NULL, STATUS_INTERNAL, "out of memory for %d ranges", count);
    memcpy(u->ranges, ranges, (size_t)count * sizeof *ranges);
    u->ranges[count] = (struct optimizer_range){.first = frozen.first, frozen.count, .at = owned};
    u->range_count = count + 1;
    u->weight_elements = owned + frozen.count;
    return STATUS_OK;
}

status update_release_weights(struct update *u)
{
    struct model *m = u->options.model;
    if (u->stage == 0 || model_copy(m) == NULL) {
        return STATUS_OK;
    }
    struct comm *data = u->options.mesh->data;
    int count = 0;
    const struct model_parameter *parameters = model_parameters(m, &count);
    struct range frozen =
        frozen_share(parameters, count, model_elements(m), comm_size(data), comm_rank(data));
    TRY(place_shares(u, frozen));
    TRY(device_allocate(kernels_device(u->options.kernels),
                        (size_t)u->weight_elements * sizeof(float), "the f32 weights of its shares",
                        (void **)&u->weights));
    TRY(copy_shares(u, frozen));
    return model_release_weights(m);
}

status update_round(const struct update *u, int64_t step)
{
    int count = 0;
    const struct model *m = u->options.model;
    bf16 *copy = model_copy(m);
    const struct model_parameter *parameters = model_parameters(m, &count);
    for (int i = 0; i < count && u->options.optimizer.stochastic_rounding; i++) {
        const struct model_parameter *p = &parameters[i];
        struct optimizer_range ranges[MODEL_PIECES_MAX + 1];
        struct optimizer_range whole = {
            .first = p->first, .count = p->trained ? p->rows * p->columns : 0, .tensor = i};
        int pieces = cut_part(u, p, whole, ranges);
        for (int j = 0; j < pieces; j++) {
            struct rounding rounding = optimizer_rounding(u->optimizer, &ranges[j], step);
            TRY(weights_round(u->options.kernels, copy + ranges[j].first,
                              model_weights(m) + ranges[j].first, ranges[j].count, &rounding));
        }
    }
    return STATUS_OK;
}

/* A holding's elements. *shares moves over the f32 weights of the shares, where these are all there is. */
static struct optimizer_slice slice_of(const struct update *u, int index, float **shares)
{
    struct range held = holding(u, index);
    bf16 *copy = model_copy(u->options.model);
    struct optimizer_slice slice = {
        .first = held.first,
        .count = held.count,
        .weights = *shares != NULL ? *shares : model_weights(u->options.model) + held.first,
        .gradients = bucket_sum(u->buckets, index, held.first),
        .copy = copy != NULL ? copy + held.first : NULL,
    };
    *shares += *shares != NULL ? held.count : 0;
    return slice;
}

/* LAMB's first half, and the ratios of whole tensors, of which ranks have parts. */
static status agree_trust(struct update *u, int64_t step, double scale)
{
    int count = 0;
    status result = STATUS_OK;
    float *shares = u->weights;
    const struct mesh *mesh = u->options.mesh;
    const struct model_parameter *parameters = model_parameters(u->options.model, &count);
    memset(u->squares, 0, (size_t)count * sizeof *u->squares);
    for (int h = 0; h < holdings(u); h++) {
        struct optimizer_slice slice = slice_of(u, h, &shares);
        KEEP_FIRST(result, optimizer_moments(u->optimizer, &slice, step, scale));
    }
    KEEP_FIRST(result, optimizer_squares(u->optimizer, u->squares));
    for (int i = 0; i < count && comm_rank(mesh->tensor) > 0; i++) {
        if (parameters[i].replicated) {
            u->squares[i] = (struct optimizer_squares){0};
        }
    }
    double *sums = &u->squares->weights;
    if (u->stage > 0) {
        KEEP_FIRST(result, comm_sum_doubles(mesh->data, sums, 2 * (int64_t)count));
    }
    KEEP_FIRST(result, comm_sum_doubles(mesh->tensor, sums, 2 * (int64_t)count));
    optimizer_trust(u->optimizer, u->squares);
    return result;
}

/* Every rank needs all vectors in f32. Each element is one rank's; to the others' zeros it adds up. */
static status gather_vectors(struct update *u)
{
    int count = 0;
    int64_t elements = 0;
    const struct model_parameter *parameters = model_parameters(u->options.model, &count);
    float *vectors = model_vectors(u->options.model, &elements), *weights = u->weights;
    struct device *dev = kernels_device(u->options.kernels);
    struct stream *stream = kernels_stream(u->options.kernels);
    TRY(device_zero(dev, stream, vectors, (size_t)elements * sizeof *vectors));
    for (int h = 0; h < holdings(u); h++) {
        struct range held = holding(u, h);
        for (int i = 0; i < count; i++) {
            const struct model_parameter *p = &parameters[i];
            struct range part = common(held, (struct range){p->first, p->rows * p->columns});
            if (p->trained && p->dimensions == 1 && part.count > 0) {
                TRY(device_copy(dev, stream, vectors + p->vector + (part.first - p->first),
                                weights + (part.first - held.first),
                                (size_t)part.count * sizeof *vectors));
            }
        }
        weights += held.count;
    }
    return comm_all_reduce(u->options.mesh->data, vectors, elements);
}

static status start_gather(struct update *u, int index)
{
    struct model *m = u->options.model;
    bool released = u->weights != NULL;
    void *gathered = released ? (void *)model_copy(m) : (void *)model_weights(m);
    return bucket_gather_start(u->buckets, index, gathered,
                               released ? sizeof(bf16) : sizeof(float));
}

/* A bucket's weights are on their way while the next one's are made, and through the next forward pass. Vectors
 * come first where they come apart: what is started completes in order. */
status update_apply(struct update *u, int64_t step, double learning_rate, double norm, double scale)
{
    bool released = u->weights != NULL;
    float *shares = u->weights;
    status result = STATUS_OK;
    scale *= optimizer_clip(u->optimizer, norm);
    if (optimizer_has_trust(u->optimizer)) {
        result = agree_trust(u, step, scale);
    }
    for (int h = 0; h < holdings(u); h++) {
        struct optimizer_slice slice = slice_of(u, h, &shares);
        KEEP_FIRST(result, optimizer_update(u->optimizer, &slice, step, learning_rate, scale));
        if (u->stage > 0 && !released) {
            KEEP_FIRST(result, start_gather(u, h));
        }
    }
    if (released) {
        KEEP_FIRST(result, gather_vectors(u));
    }
    for (int h = 0; h < holdings(u) && released; h++) {
        KEEP_FIRST(result, start_gather(u, h));
    }
    return result;
}

status update_await(struct update *u, int64_t end)
{
    return u->stage > 0 ? bucket_gather_until(u->buckets, end) : STATUS_OK;
}

status update_settle(struct update *u)
{
    return update_await(u, trained_elements(u));
}

/* ---- known beforehand ---- */

/* Elements that the first rank sends of a sum that stays with the owners. */
static int64_t scattered(const struct bucket_segment *segment, const struct update_plan *plan)
{
    struct bucket_options one = {.segments = segment,
                                 .segment_count = 1,
                                 .bucket_elems = plan->bucket_elems,
                                 .ordered = plan->reproducible};
    return segment->count - bucket_owned_elements(&one, plan->ranks, 0);
}

status update_bytes_of(const struct update_plan *plan, struct update_bytes *out)
{
    struct bucket_segment *segments = calloc((size_t)plan->layers + 2, sizeof *segments);
    REQUIRE(segments != NULL, STATUS_INTERNAL, "out of memory for %lld layers",
            (long long)plan->layers);
    int64_t trained = model_trained_elements(plan->parameters, plan->parameter_count);
    int count = cut_segments(plan->parameters, plan->parameter_count, plan->layers, plan->stage,
                             plan->reproducible, segments);
    struct bucket_options options = {.segments = segments,
                                     .segment_count = count,
                                     .bucket_elems = plan->bucket_elems,
                                     .ordered = plan->reproducible,
                                     .narrow = plan->narrow};
    double unit = plan->narrow ? sizeof(bf16) : sizeof(float); /* of a gradient on its way */
    *out = (struct update_bytes){0};
    bucket_memory_bytes(&options, plan->ranks, 0, &out->shared_gradients, &out->own_gradients);
    out->moments =
        8 * (plan->stage > 0 ? bucket_owned_elements(&options, plan->ranks, 0) : trained);
    int64_t vectors = 0, trained_vectors = 0;
    int64_t owned = out->moments / 8;
    owned +=
        frozen_share(plan->parameters, plan->parameter_count, plan->elements, plan->ranks, 0).count;
    for (int i = 0; i < plan->parameter_count; i++) {
        const struct model_parameter *p = &plan->parameters[i];
        int64_t vector = p->dimensions == 1 ? p->columns : 0;
        vectors += vector;
        trained_vectors += p->trained ? vector : 0;
    }
    bool released = plan->stage > 0 && plan->bf16;
    /* beside adapters in bf16 the frozen matrices were never there in f32 */
    bool beside = is_beside_adapters(plan->parameters, plan->parameter_count);
    int64_t kept = released               ? owned + vectors
                   : plan->bf16 && beside ? trained + vectors
                                          : plan->elements;
    out->weights = 4 * kept + (plan->bf16 ? 2 * plan->elements : 0);
    if (released) {
        out->sent = 8.0 * (double)(trained_vectors - trained_vectors / plan->ranks);
    }
    if (plan->stage == 0 && !plan->reproducible) {
        out->sent = 2 * unit * (double)(trained - trained / plan->ranks);
    }
    for (int i = 0; i < count && (plan->stage > 0 || plan->reproducible); i++) {
        bool each = segments[i].passing || plan->reproducible;
        int64_t rounds = each ? plan->micro_batches : 1;
        double bytes = unit * (double)rounds + (released ? 2 : 4);
        out->sent += bytes * (double)scattered(&segments[i], plan);
    }
    free(segments);
    return STATUS_OK;
}
