#include "trainer/bench/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mirror.h"
#include "base/random.h"
#include "trainer/train/batch_upload.h"
#include "trainer/train/objective_input.h"

struct bench {
    struct session *session;
    const struct objective *objective;
    struct update *update;
    struct feed *feed;
    float *losses;      /* on the device */
    struct mirror told; /* f64, sums of the objective's that are read once a step */
    struct batch batch;
    int32_t *tokens, *targets, *positions, *cu_rows;
    int32_t *segments, *masked_rows, *labels; /* of sentence pairs */
    int64_t steps;
    double first_losses[BENCH_LOSSES];
};

static const double step_seconds = 600; /* that one may take */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

/* ---- a step on random tokens ---- */

/* And scales, entropies, logits, best ids. */
static size_t losses_bytes(const struct session *s)
{
    const struct recipe *r = &s->recipe;
    return (size_t)(r->batch.micro_size * r->data.sequence_length) * 5 * sizeof(float);
}

static status make_batch(struct bench *b)
{
    const struct recipe *r = &b->session->recipe;
    int64_t sequences = r->batch.micro_size, tokens = r->data.sequence_length;
    int64_t rows = sequences * tokens;
    b->tokens = calloc((size_t)rows, sizeof *b->tokens);
    b->targets = calloc((size_t)rows, sizeof *b->targets);
    b->positions = calloc((size_t)rows, sizeof *b->positions);
    b->cu_rows = calloc((size_t)sequences + 1, sizeof *b->cu_rows);
    REQUIRE(b->tokens != NULL && b->targets != NULL && b->positions != NULL && b->cu_rows != NULL,
            STATUS_INTERNAL, "out of memory for a batch of %lld rows", (long long)rows);
    uint64_t vocabulary = (uint64_t)model_config_of(b->session->model)->vocabulary;
    uint64_t key = random_key((uint64_t)r->seed, RANDOM_TEST, 0, 0);
    for (int64_t i = 0; i < rows; i++) {
        b->tokens[i] = (int32_t)random_below(key, (uint64_t)i, vocabulary);
        b->targets[i] = (int32_t)random_below(key, (uint64_t)(rows + i), vocabulary);
        b->positions[i] = (int32_t)(i % tokens);
    }
    for (int64_t i = 0; i <= sequences; i++) {
        b->cu_rows[i] = (int32_t)(i * tokens);
    }
    b->batch = (struct batch){
        .sequences = sequences,
        .tokens = tokens,
        .rows = rows,
        .inputs = b->tokens,
        .targets = b->targets,
        .positions = b->positions,
        .segments = sequences,
        .cu_rows = b->cu_rows,
        .longest = tokens,
    };
    return STATUS_OK;
}

/* The share of a recipe of evenly spread rows that mlm predicts, and labels of whole examples. */
static status make_pairs(struct bench *b)
{
    const struct recipe *r = &b->session->recipe;
    struct batch *batch = &b->batch;
    int64_t tokens = r->data.sequence_length, most = r->mlm.max_predictions;
    REQUIRE(device_is_host(b->session->device), STATUS_UNAVAILABLE,
            "bench step: objective %s on the CPU only in this version", b->objective->name);
    int64_t each = (int64_t)floor(r->mlm.mask_probability * (double)tokens + 0.5);
    each = each < 1 ? 1 : each < most ? each : most;
    b->segments = calloc((size_t)batch->rows, sizeof *b->segments);
    b->masked_rows = calloc((size_t)batch->rows, sizeof *b->masked_rows);
    b->labels = calloc((size_t)batch->sequences, sizeof *b->labels);
    REQUIRE(b->segments != NULL && b->masked_rows != NULL && b->labels != NULL, STATUS_INTERNAL,
            "out of memory for %lld masked rows", (long long)batch->rows);
    for (int64_t i = 0; i < each * batch->sequences; i++) {
        b->masked_rows[i] = (int32_t)(i / each * tokens + i % each * tokens / each);
    }
    batch->segment_ids = b->segments;
    batch->next_sentence = b->labels;
    batch->masked = each * batch->sequences;
    batch->masked_rows = b->masked_rows;
    batch->masked_ids = b->targets;
    return STATUS_OK;
}

static status bench_create(struct bench *b)
{
    struct session *s = b->session;
    TRY(make_batch(b));
    TRY(b->objective->looks_ahead ? make_pairs(b) : STATUS_OK);
    TRY(feed_create(s->device, kernels_stream(s->kernels), b->batch.rows, &b->feed));
    TRY(device_allocate(s->device, losses_bytes(s), "losses", (void **)&b->losses));
    TRY(mirror_create(s->device, kernels_stream(s->kernels), OBJECTIVE_SUMS * sizeof(double),
                      "sums", &b->told));
    TRY(model_initialise(s->model, (uint64_t)s->recipe.seed));
    TRY(session_update(s, 1, &b->update));
    return update_release_weights(b->update);
}

static status bench_destroy(struct bench *b)
{
    status result = update_destroy(&b->update);
    KEEP_FIRST(result, feed_destroy(&b->feed));
    device_release(b->session->device, b->losses, losses_bytes(b->session));
    mirror_destroy(&b->told);
    free(b->tokens);
    free(b->targets);
    free(b->positions);
    free(b->cu_rows);
    free(b->segments);
    free(b->masked_rows);
    free(b->labels);
    return result;
}

static status on_final(void *user, int64_t first)
{
    struct bench *b = user;
    return bucket_advance(update_buckets(b->update), first);
}

static status on_needed(void *user, int64_t end)
{
    return update_await(user, end);
}

static status one_step(struct bench *b)
{
    struct session *s = b->session;
    struct model *m = s->model;
    struct tensor hidden;
    double sums[OBJECTIVE_SUMS] = {0};
    struct exact_sum squares;
    struct batch placed;
    TRY(feed_start(b->feed, &b->batch));
    TRY(feed_take(b->feed, &b->batch, &placed));
    struct model_input input = views_input(&placed);
    input.training = input.fresh = true;
    input.needed = on_needed;
    input.user = b->update;
    TRY(model_forward(m, &input, &hidden));
    struct objective_views views = {
        .example_weight = (double)b->batch.masked / (double)b->batch.sequences,
        .losses = b->losses,
        .entropies = b->losses + b->batch.rows,
        .mean_logits = b->losses + 2 * b->batch.rows,
        .row_scales = b->losses + 3 * b->batch.rows,
        .best = (int32_t *)(b->losses + 4 * b->batch.rows),
        .later = device_is_host(s->device) || b->objective->tallied == 0 ? NULL : b->told.placed,
    };
    views_add_model(&views, m, &placed, &input, hidden, update_gradients(b->update));
    TRY(bucket_begin_round(update_buckets(b->update)));
    TRY(b->objective->loss(s->kernels, &b->batch, &views, true, sums));
    TRY(model_backward(m, &input, update_gradients(b->update), on_final, b));
    TRY(bucket_finish(update_buckets(b->update)));
    TRY(update_sum_of_squares(b->update, &squares));
    if (views.later != NULL) {
        TRY(mirror_pull(&b->told, 0, sizeof sums));
        memcpy(sums, b->told.host, sizeof sums);
    }
    TRY(comm_sum_exact(s->mesh.world, &squares, 1));
    if (b->steps < BENCH_LOSSES) {
        b->first_losses[b->steps] = objective_loss(b->objective, sums);
    }
    double scale = 1 / sums[OBJECTIVE_COUNT];
    return update_apply(b->update, ++b->steps, s->recipe.optimizer.learning_rate,
                        sqrt(exact_value(&squares)) * scale, scale);
}

static status timed_step(struct bench *b, double *seconds)
{
    TRY(comm_barrier(b->session->mesh.world));
    double start = clock_seconds();
    TRY(one_step(b));
    TRY(device_wait(b->session->device, kernels_stream(b->session->kernels), step_seconds));
    *seconds = clock_seconds() - start;
    return STATUS_OK;
}

/* ---- floors ---- */

enum { PRODUCTS = 18 };

/* This rank's part of the linear layers of all blocks and of the output products, forward and twice
 * backward. */
static int list_products(const struct bench *b, struct product out[PRODUCTS])
{
    const struct model_config *c = model_config_of(b->session->model);
    int ranks = comm_size(b->session->mesh.tensor);
    int64_t rows = b->batch.rows, masked = b->batch.masked;
    int64_t qkv = c->width + 2 * (c->width / c->heads * model_kv_heads(c));
    const struct {
        int64_t rows, inner, outputs, count;
    } layers[] = {
        {rows, c->width, qkv / ranks, c->layers},
        {rows, c->width / ranks, c->width, c->layers},
        {rows, c->width, model_inner_outputs(c) / ranks, c->layers},
        {rows, c->inner / ranks, c->width, c->layers},
        {masked > 0 ? masked : rows, c->width, model_vocabulary_rows(c, ranks), 1},
        {masked, c->width, c->width, 1},
    };
    int count = 0;
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        for (int kind = PRODUCT_FORWARD; kind <= PRODUCT_WEIGHT && layers[i].rows > 0; kind++) {
            out[count++] = (struct product){(enum product_kind)kind, layers[i].rows,
                                            layers[i].inner, layers[i].outputs, layers[i].count};
        }
    }
    return count;
}

static double products_flops(const struct product *products, int count)
{
    double flops = 0;
    for (int i = 0; i < count; i++) {
        const struct product *p = &products[i];
        flops += 2.0 * (double)p->rows * (double)p->inner * (double)p->outputs * (double)p->count;
    }
    return flops;
}

/* The times of all products in all ways of one floor. */
typedef double floor_times[PRODUCTS][KERNELS_FLOOR_WAYS];

/* The way of a product that has the smaller median over all floors. */
static int fastest_way(const floor_times *floors, int repeats, int product, double *room)
{
    double least = INFINITY;
    int fastest = 0;
    for (int way = 0; way < KERNELS_FLOOR_WAYS; way++) {
        for (int i = 0; i < repeats; i++) {
            room[i] = floors[i][product][way];
        }
        double time = bench_median(room, repeats);
        fastest = time < least ? way : fastest;
        least = fmin(time, least);
    }
    return fastest;
}

/* Of each product one way, the same in all floors; the median of their sums, as a step's time is one. */
static double floor_seconds(const floor_times *floors, int repeats, int count, double *room)
{
    double *sums = room + repeats;
    memset(sums, 0, (size_t)repeats * sizeof *sums);
    for (int p = 0; p < count; p++) {
        int way = fastest_way(floors, repeats, p, room);
        for (int i = 0; i < repeats; i++) {
            sums[i] += floors[i][p][way];
        }
    }
    return bench_median(sums, repeats);
}

/* Bytes read and written a second by a copy much larger than the caches: the kernels' own threads copy
 * through `convert`, so that the rate is what an operation here can reach. */
static status copy_rate(struct bench *b, double *out)
{
    enum { COPIES = 5 };
    struct session *s = b->session;
    const struct optimizer *o = update_optimizer(b->update);
    int64_t elements = optimizer_elements(o);
    struct tensor to = tensor_view(optimizer_moment1(o), DTYPE_F32, 1, elements);
    struct tensor from = tensor_view(optimizer_moment2(o), DTYPE_F32, 1, elements);
    double seconds[COPIES];
    for (int i = 0; i < COPIES; i++) {
        double start = clock_seconds();
        TRY(convert(s->kernels, to, from));
        TRY(device_wait(s->device, kernels_stream(s->kernels), step_seconds));
        seconds[i] = clock_seconds() - start;
    }
    *out = 8 * (double)elements / bench_median(seconds, COPIES);
    return STATUS_OK;
}

/* ---- the measurement ---- */

/* One step with what its operations took: the list accounts for the very step whose time is told. Sorted by time.
 *
 * On a GPU each operation of such a step is waited for, which a step of a training is not: there the step whose time is told
 * goes without a list, and the list is of one more step. */
struct timed {
    double seconds;
    int count;
    struct kernels_time times[KERNELS_OPERATIONS_MAX];
};

static void list_operations(const struct timed *step, double flop_rate, struct bench_step *out)
{
    out->operation_count = step->count;
    out->listed_seconds = step->seconds;
    for (int i = 0; i < out->operation_count; i++) {
        struct bench_operation *o = &out->operations[i];
        *o = (struct bench_operation){
            .name = step->times[i].operation,
            .calls = step->times[i].calls,
            .seconds = step->times[i].seconds,
            .flops = step->times[i].flops,
            .bytes = step->times[i].bytes,
        };
        o->share = o->seconds / step->seconds;
        o->floor_seconds = o->bytes / out->copy_bytes_per_second;
        if (flop_rate > 0) {
            o->floor_seconds = fmax(o->floor_seconds, o->flops / flop_rate);
        }
    }
}

static struct bench_traffic take_traffic(struct comm *comm, int repeats)
{
    struct comm_times times;
    comm_take_times(comm, &times);
    return (struct bench_traffic){
        .seconds = times.alone_seconds / repeats,
        .exposed_seconds = times.exposed_seconds / repeats,
        .hidden_share = comm_hidden_share(&times),
    };
}

/* A step of a training follows a step: the one behind a floor finds its gigabytes gone from the caches, was seen to
 * take a tenth longer, and is not counted. */
static status floor_before(struct bench *b, double (*floor)[KERNELS_FLOOR_WAYS],
                           const struct product *products, int count)
{
    double ignored;
    TRY(kernels_floor(b->session->kernels, floor, products, count));
    return timed_step(b, &ignored);
}

static status profiled_step(struct bench *b, struct timed *out)
{
    struct kernels *k = b->session->kernels;
    kernels_profile(k, true);
    TRY(timed_step(b, &out->seconds));
    kernels_profile(k, false);
    out->count = kernels_times(k, out->times);
    return STATUS_OK;
}

static status measure(struct bench *b, int repeats, bool floor, struct bench_step *out)
{
    struct product products[PRODUCTS];
    int count = list_products(b, products);
    bool host = device_is_host(b->session->device);
    struct timed *steps = calloc((size_t)repeats + 1, sizeof *steps);
    double *room = calloc(2 * (size_t)repeats, sizeof *room), ignored;
    floor_times *floors = calloc((size_t)repeats, sizeof *floors);
    status result = STATUS_OK;
    REQUIRE_GOTO(result, done, steps != NULL && room != NULL && floors != NULL, STATUS_INTERNAL,
                 "out of memory for %d times", repeats);
    const struct mesh *mesh = &b->session->mesh;
    log_info("%lld parameters, %lld tokens a step: 2 steps to warm up, then %d",
             (long long)model_elements(b->session->model), (long long)b->batch.rows, repeats);
    TRY_GOTO(result, done, timed_step(b, &ignored));
    TRY_GOTO(result, done, session_tune(b->session, mesh->world, true));
    TRY_GOTO(result, done, timed_step(b, &ignored));
    (void)take_traffic(mesh->data, 1);
    (void)take_traffic(mesh->tensor, 1);
    for (int i = 0; i < repeats; i++) {
        log_progress("step %d of %d%s", i + 1, repeats, floor ? " and its floor" : "");
        if (floor) {
            TRY_GOTO(result, done, floor_before(b, floors[i], products, count));
        }
        TRY_GOTO(result, done,
                 host ? profiled_step(b, &steps[i]) : timed_step(b, &steps[i].seconds));
    }
    out->data = take_traffic(mesh->data, floor ? 2 * repeats : repeats);
    out->tensor = take_traffic(mesh->tensor, floor ? 2 * repeats : repeats);
    qsort(steps, (size_t)repeats, sizeof *steps, by_value);
    out->step_seconds = steps[repeats / 2].seconds;
    out->floor_seconds = floor ? floor_seconds(floors, repeats, count, room) : 0;
    out->tokens = b->batch.rows * comm_size(mesh->data);
    TRY_GOTO(result, done, copy_rate(b, &out->copy_bytes_per_second));
    double rate = floor ? products_flops(products, count) / out->floor_seconds : 0;
    TRY_GOTO(result, done, host ? STATUS_OK : profiled_step(b, &steps[repeats]));
    list_operations(&steps[host ? repeats / 2 : repeats], rate, out);
    out->first_loss_count = b->steps < BENCH_LOSSES ? (int)b->steps : BENCH_LOSSES;
    memcpy(out->first_losses, b->first_losses, sizeof out->first_losses);
done:
    free(steps);
    free(room);
    free(floors);
    return result;
}

status bench_step_run(struct session *s, const struct objective *objective, int repeats, bool floor,
                      struct bench_step *out)
{
    struct bench b = {.session = s, .objective = objective};
    *out = (struct bench_step){0};
    bool made_up =
        objective->scratch_bytes == NULL && model_config_of(s->model)->task == MODEL_WORDS;
    REQUIRE(made_up, STATUS_UNAVAILABLE,
            "bench step has no made-up examples for objective %s; time it with objective=clm",
            objective->name);
    status result = bench_create(&b);
    if (result == STATUS_OK) {
        result = measure(&b, repeats, floor, out);
    }
    KEEP_FIRST(result, bench_destroy(&b));
    return result;
}
