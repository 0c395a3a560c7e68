/* bireme bench step: the time of a training step, of its operations and of its GEMMs alone. */
#include "trainer/train/bench/bench.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/deadlines.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"
#include "datasets/loader/batch_upload.h"
#include "trainer/model/linear.h"
#include "trainer/setup/derive.h"
#include "trainer/train/bench/random_batch.h"
#include "trainer/train/step/loss_readback.h"
#include "trainer/train/step/micro_batch.h"
#include "trainer/train/step/sharded_optimizer.h"

struct bench {
    struct session *session;
    const struct objective *objective;
    struct sharded_optimizer *optimizer;
    struct batch_upload *upload;
    struct workspace *workspace;
    struct loss_readback *readback;
    struct preference_settings preference;
    struct random_batch random;
    int64_t steps;
    double first_losses[BENCH_LOSSES];
};

/* ---- a step on random tokens ---- */

static status bench_create(struct bench *b)
{
    struct session *s = b->session;
    const int64_t rows = derive_rows(&s->recipe);
    struct workspace_shape shape = micro_batch_workspace_shape(s->model, rows, 0, true);
    TRY(derive_preference_loss(&s->recipe, &b->preference));
    TRY(random_batch_create(s, &b->random));
    shape.batch_size = shape.contrastive ? b->random.batch.sequences : 0;
    TRY(batch_upload_create(s->device, kernels_stream(s->kernels), rows, &b->upload));
    TRY(workspace_create(s->kernels, b->objective, &shape, &b->workspace));
    TRY(loss_readback_create(s->kernels, &b->readback));
    TRY(model_init_weights(s->model, (uint64_t)s->recipe.seed, s->threads));
    TRY(sharded_optimizer_create_from_session(s, 1, &b->optimizer));
    return sharded_optimizer_release_weights(b->optimizer);
}

static status bench_destroy(struct bench *b)
{
    status result = sharded_optimizer_destroy(&b->optimizer);
    KEEP_FIRST(result, batch_upload_destroy(&b->upload));
    workspace_destroy(&b->workspace);
    loss_readback_destroy(&b->readback);
    random_batch_destroy(&b->random);
    return result;
}

static status run_step(struct bench *b)
{
    struct session *s = b->session;
    const struct batch *batch = &b->random.batch;
    double sums[OBJECTIVE_SUMS] = {0};
    const struct loss_samples *samples = NULL;
    struct loss_slot *slot = NULL;
    struct exact_sum squares;
    struct batch device_batch;
    const struct micro_batch_context context = {
        .kernels = s->kernels,
        .model = s->model,
        .objective = b->objective,
        .workspace = b->workspace,
        .optimizer = b->optimizer,
        .preference = &b->preference,
    };
    TRY(batch_upload_begin(b->upload, batch));
    TRY(batch_upload_end(b->upload, batch, &device_batch));
    TRY(loss_readback_add(b->readback, batch, &slot));
    struct micro_batch m = {
        .batch = batch,
        .device_batch = &device_batch,
        .example_weight = (double)batch->outputs.count / (double)batch->sequences,
        .training = true,
        .gradient = true,
        .first_micro_batch = true,
        .device_sums = slot->device_sums,
        .host_sums = slot->host_sums,
    };
    TRY(micro_batch_run(&context, &m));
    TRY(bucket_finish(sharded_optimizer_buckets(b->optimizer)));
    TRY(loss_readback_begin_copy(b->readback));
    TRY(sharded_optimizer_sum_of_squares(b->optimizer, &squares));
    while (loss_readback_next(b->readback, sums, &samples)) {
        /* one slot: its sums, then the end */
    }
    TRY(comm_sum_exact(s->mesh.world, &squares, 1));
    if (b->steps < BENCH_LOSSES) {
        b->first_losses[b->steps] = objective_loss(b->objective, sums);
    }
    TRY(model_fp8_advance(s->model, s->mesh.world, true));
    double scale = 1 / sums[OBJECTIVE_COUNT];
    return sharded_optimizer_step(b->optimizer, ++b->steps, s->recipe.optimizer.learning_rate,
                                  sqrt(exact_value(&squares)) * scale, scale);
}

static status time_step(struct bench *b, double *seconds)
{
    TRY(comm_barrier(b->session->mesh.world));
    double start = clock_seconds();
    TRY(run_step(b));
    TRY(device_wait(b->session->device, kernels_stream(b->session->kernels),
                    DEADLINE_DEVICE_STEP_SECONDS));
    *seconds = clock_seconds() - start;
    return STATUS_OK;
}

/* ---- roofline ---- */

enum { GEMMS_MAX = 42 };

static int64_t count_targets(const struct batch *batch)
{
    int64_t count = 0;
    for (int64_t i = 0; i < batch->rows; i++) {
        count += batch->targets[i] != BATCH_IGNORED;
    }
    return count;
}

/* Lists this rank's GEMMs in the linear layers of all blocks and in the output layers, one forward
 * and two backward each. */
static int list_gemms(const struct bench *b, struct gemm_shape out[GEMMS_MAX])
{
    const struct model_config *c = model_get_config(b->session->model);
    int ranks = comm_size(b->session->mesh.tensor);
    int64_t rows = b->random.batch.rows, outputs = b->random.batch.outputs.count;
    int64_t encoder = c->encoder_layers, source = encoder > 0 ? b->random.batch.source.rows : 0;
    int64_t layers_of_rows = c->layers - encoder, crossed = encoder > 0 ? layers_of_rows : 0;
    bool predicts_tokens = c->head == MODEL_HEAD_LM;
    int64_t attended = model_attention_width(c), embedding = model_embedding_width(c);
    int64_t qkv = attended + 2 * model_head_width(c) * model_kv_heads(c);
    const struct {
        int64_t rows, inner, outputs, count;
    } layers[] = {
        {source, c->width, qkv / ranks, encoder},
        {source, attended / ranks, c->width, encoder},
        {source, c->width, model_inner_outputs(c) / ranks, encoder},
        {source, c->inner / ranks, c->width, encoder},
        {source, c->width, 2 * attended / ranks, crossed}, /* keys and values */
        {crossed > 0 ? rows : 0, c->width, attended / ranks, crossed},
        {crossed > 0 ? rows : 0, attended / ranks, c->width, crossed},
        {rows, c->width, qkv / ranks, layers_of_rows},
        {rows, attended / ranks, c->width, layers_of_rows},
        {rows, c->width, model_inner_outputs(c) / ranks, layers_of_rows},
        {rows, c->inner / ranks, c->width, layers_of_rows},
        {c->head == MODEL_HEAD_NONE ? 0
         : outputs > 0              ? outputs
                                    : count_targets(&b->random.batch),
         predicts_tokens ? embedding : c->width,
         predicts_tokens ? model_vocabulary_rows(c, ranks) : c->labels, 1},
        {predicts_tokens ? outputs : 0, c->width, embedding, 1},
        {model_is_factorized(c) ? rows : 0, embedding, c->width, 1},
    };
    _Static_assert(COUNT(layers) * 3 <= GEMMS_MAX, "three GEMMs of each row of layers fit");
    int count = 0;
    for (int i = 0; i < COUNT(layers); i++) {
        for (int kind = GEMM_FORWARD; kind <= GEMM_BACKWARD_WEIGHT && layers[i].rows > 0; kind++) {
            out[count++] = (struct gemm_shape){(enum gemm_kind)kind, layers[i].rows,
                                               layers[i].inner, layers[i].outputs, layers[i].count};
        }
    }
    return count;
}

static double count_flops(const struct gemm_shape *gemms, int count)
{
    double flops = 0;
    for (int i = 0; i < count; i++) {
        const struct gemm_shape *p = &gemms[i];
        flops += 2.0 * (double)p->rows * (double)p->inner * (double)p->outputs * (double)p->count;
    }
    return flops;
}

/* Times of all GEMMs with all algorithms, in one measurement. */
typedef double gemm_times[GEMMS_MAX][KERNELS_ROOFLINE_ALGORITHMS];

/* Finds the algorithm of a GEMM with the smallest median time. */
static int find_fastest_algorithm(const gemm_times *times, int repeats, int gemm, double *scratch)
{
    double least = INFINITY;
    int fastest = 0;
    for (int algorithm = 0; algorithm < KERNELS_ROOFLINE_ALGORITHMS; algorithm++) {
        for (int i = 0; i < repeats; i++) {
            scratch[i] = times[i][gemm][algorithm];
        }
        double time = number_median(scratch, repeats);
        fastest = time < least ? algorithm : fastest;
        least = fmin(time, least);
    }
    return fastest;
}

/* Returns the median time of all GEMMs, each with its fastest algorithm. */
static double compute_roofline(const gemm_times *times, int repeats, int count, double *scratch)
{
    double *sums = scratch + repeats;
    memset(sums, 0, (size_t)repeats * sizeof *sums);
    for (int p = 0; p < count; p++) {
        int algorithm = find_fastest_algorithm(times, repeats, p, scratch);
        for (int i = 0; i < repeats; i++) {
            sums[i] += times[i][p][algorithm];
        }
    }
    return number_median(sums, repeats);
}

/* Measures the bytes per second that a copy larger than the caches reads and writes.
 *
 * The copy uses op_cast, and so the threads of the kernels, to get a reachable rate. */
static status measure_copy_rate(struct bench *b, double *out)
{
    enum { COPIES = 5 };
    struct session *s = b->session;
    const struct optimizer *o = sharded_optimizer_inner(b->optimizer);
    int64_t elements = optimizer_elems(o);
    enum dtype dtype = optimizer_moment_dtype(o);
    struct tensor to = tensor_view(optimizer_moment1(o), dtype, 1, elements);
    struct tensor from = tensor_view(optimizer_moment2(o), dtype, 1, elements);
    double seconds[COPIES];
    for (int i = 0; i < COPIES; i++) {
        double start = clock_seconds();
        TRY(op_cast(s->kernels, to, from));
        TRY(device_wait(s->device, kernels_stream(s->kernels), DEADLINE_DEVICE_STEP_SECONDS));
        seconds[i] = clock_seconds() - start;
    }
    *out = 2 * (double)dtype_bytes(dtype) * (double)elements / number_median(seconds, COPIES);
    return STATUS_OK;
}

/* ---- the measurement ---- */

/* One step with the times of its operations.
 *
 * On a CPU, each measured step is profiled, so the times add up to the reported step. On a GPU,
 * profiling waits for each operation. The measured steps are then not profiled, and an additional
 * step gives the times of the operations. */
struct timed_step {
    double seconds;
    int count;
    struct kernels_time times[KERNELS_OPERATIONS_MAX];
};

static void store_operations(const struct timed_step *step, double flop_rate,
                             struct bench_step *out)
{
    out->operation_count = step->count;
    out->profiled_seconds = step->seconds;
    for (int i = 0; i < out->operation_count; i++) {
        struct bench_operation *o = &out->operations[i];
        *o = (struct bench_operation){
            .name = step->times[i].operation,
            .calls = step->times[i].calls,
            .seconds = step->times[i].seconds,
            .flops = step->times[i].flops,
            .bytes = step->times[i].bytes,
        };
        const struct gemm_work *work = &step->times[i].gemm_work;
        o->idle_share = work->possible > 0 ? 1 - work->done / work->possible : 0;
        o->share = o->seconds / step->seconds;
        o->roofline_seconds = o->bytes / out->copy_bytes_per_second;
        if (flop_rate > 0) {
            o->roofline_seconds = fmax(o->roofline_seconds, o->flops / flop_rate);
        }
    }
}

static struct bench_traffic read_traffic(struct comm *comm, int repeats)
{
    struct comm_times times;
    comm_take_times(comm, &times);
    return (struct bench_traffic){
        .seconds = times.alone_seconds / repeats,
        .exposed_seconds = times.exposed_seconds / repeats,
        .hidden_share = comm_hidden_share(&times),
    };
}

/* Measures the GEMMs once, then runs one step that is not counted.
 *
 * In training, a step follows a step. The step after a roofline measurement finds other data in the
 * caches and took about a tenth longer in tests. */
static status measure_roofline(struct bench *b, double (*times)[KERNELS_ROOFLINE_ALGORITHMS],
                               const struct gemm_shape *gemms, int count)
{
    double ignored;
    TRY(kernels_roofline(b->session->kernels, times, gemms, count));
    return time_step(b, &ignored);
}

static status profile_step(struct bench *b, struct timed_step *out)
{
    struct kernels *k = b->session->kernels;
    kernels_profile(k, true);
    TRY(time_step(b, &out->seconds));
    kernels_profile(k, false);
    out->count = kernels_times(k, out->times);
    return STATUS_OK;
}

static status measure_steps(struct bench *b, int repeats, bool roofline, struct bench_step *out)
{
    struct gemm_shape gemms[GEMMS_MAX];
    int count = list_gemms(b, gemms);
    bool host = device_is_host(b->session->device);
    struct timed_step *steps = NULL;
    double *scratch = NULL, ignored;
    gemm_times *times = NULL;
    size_t free_bytes = 0, all_bytes = 0;
    status result = STATUS_OK;
    TRY_GOTO(result, done, ALLOCATE(steps, repeats + 1, "measurements"));
    TRY_GOTO(result, done, ALLOCATE(scratch, 2 * repeats, "measurements"));
    TRY_GOTO(result, done, ALLOCATE(times, repeats, "measurements"));
    const struct mesh *mesh = &b->session->mesh;
    /* with delayed scales, the first step with FP8 operands is the second one */
    int tuned_steps = derive_has_delayed_scales(&b->session->recipe) ? 2 : 1;
    log_info("%" PRId64 " parameters, %" PRId64 " tokens per step: %d warm-up steps, then %d steps",
             model_elems(b->session->model), b->random.batch.tokens_seen, tuned_steps + 1, repeats);
    for (int i = 0; i < tuned_steps; i++) {
        TRY_GOTO(result, done, time_step(b, &ignored));
        TRY_GOTO(result, done, session_tune(b->session, mesh->world, true));
    }
    TRY_GOTO(result, done, time_step(b, &ignored));
    (void)read_traffic(mesh->data, 1);
    (void)read_traffic(mesh->tensor, 1);
    for (int i = 0; i < repeats; i++) {
        log_progress("step %d of %d%s", i + 1, repeats, roofline ? " and its roofline" : "");
        if (roofline) {
            TRY_GOTO(result, done, measure_roofline(b, times[i], gemms, count));
        }
        TRY_GOTO(result, done, host ? profile_step(b, &steps[i]) : time_step(b, &steps[i].seconds));
    }
    out->data = read_traffic(mesh->data, roofline ? 2 * repeats : repeats);
    out->tensor = read_traffic(mesh->tensor, roofline ? 2 * repeats : repeats);
    qsort(steps, (size_t)repeats, sizeof *steps, number_compare);
    out->step_seconds = steps[repeats / 2].seconds;
    out->roofline_seconds = roofline ? compute_roofline(times, repeats, count, scratch) : 0;
    out->tokens = b->random.batch.tokens_seen * comm_size(mesh->data);
    TRY_GOTO(result, done, measure_copy_rate(b, &out->copy_bytes_per_second));
    TRY_GOTO(result, done,
             host ? STATUS_OK : device_memory(b->session->device, &free_bytes, &all_bytes));
    out->device_bytes = (int64_t)(all_bytes - free_bytes);
    double rate = roofline ? count_flops(gemms, count) / out->roofline_seconds : 0;
    TRY_GOTO(result, done, host ? STATUS_OK : profile_step(b, &steps[repeats]));
    store_operations(&steps[host ? repeats / 2 : repeats], rate, out);
    out->first_loss_count = b->steps < BENCH_LOSSES ? (int)b->steps : BENCH_LOSSES;
    memcpy(out->first_losses, b->first_losses, sizeof out->first_losses);
done:
    free(steps);
    free(scratch);
    free(times);
    return result;
}

status bench_step_run(struct session *s, const struct objective *objective, int repeats,
                      bool roofline, struct bench_step *out)
{
    struct bench b = {.session = s, .objective = objective};
    *out = (struct bench_step){0};
    status result = bench_create(&b);
    if (result == STATUS_OK) {
        result = measure_steps(&b, repeats, roofline, out);
    }
    KEEP_FIRST(result, bench_destroy(&b));
    return result;
}
