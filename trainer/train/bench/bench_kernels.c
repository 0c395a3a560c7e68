/* bireme bench kernels: the times of the main operations of kernels.h, with the sizes of a recipe's
 * model and micro-batch. `runs` lists them. linear_add, fp8_linear_*, activation_forward,
 * classifier_logits, op_round_weights, op_loss_stats, head_loss_run, preference_loss_run,
 * preference_batch_*, contrastive_loss_*, op_scale, op_softcap, op_add and the operations of
 * control.h are not measured.
 *
 * A sample is a sequence of calls that takes a few milliseconds, followed by a wait for its end.
 * The launches on a GPU overlap as in a training step. Operands stay in the caches between calls
 * if all of them fit. The data are random, never zeros. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/deadlines.h"
#include "base/device/arena.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/random.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/session.h"
#include "trainer/train/bench/bench.h"

static const double sample_seconds = 0.01;

enum { CALLS_MAX = 200, BLOCK = 1 << 16, GATHERED = 8 };

/* Elements of flat slices. They must not fit into the caches. The caches of a GPU have 50 MB. */
enum { FLAT_ELEMS = 1 << 24, FLAT_ELEMS_ON_GPU = 1 << 27 };

struct kernels_bench {
    struct kernels *k;
    struct model_config config;
    int64_t rows, sequence, vocabulary, flat_elems;
    struct tensor x, y, z, delta;               /* [N, C] */
    struct tensor inner, act_gradient, d_inner; /* [N, F] */
    struct tensor gate_up, d_gate_up;           /* [N, 2 F] */
    struct tensor qkv, d_qkv;                   /* [N, 3 H D] */
    struct tensor attended, d_attended;         /* [N, H D] */
    struct tensor weights, table;               /* [F, C], [V, C] */
    struct tensor d_weights, d_table;           /* f32 */
    struct tensor statistics, lse;              /* f32 [N, 2], [H, N] */
    struct tensor gamma, beta, d_gamma, d_beta, bias, d_bias, angles, losses;
    struct tensor flat[4], copy;
    double *sums;
    int32_t *tokens, *positions, *selected_rows, *cu_rows;
    float label_smoothing; /* of the classifier */
    struct adamw adamw;
};

/* ---- memory ---- */

static status take_operands(struct kernels_bench *b, struct arena *arena)
{
    const enum dtype d = kernels_dtype(b->k), f = DTYPE_F32;
    const struct model_config *c = &b->config;
    int64_t n = b->rows, width = c->width, inner = c->inner;
    int64_t attended = model_attention_width(c);
    const struct {
        struct tensor *tensor;
        enum dtype dtype;
        int64_t rows, columns;
    } all[] = {
        {&b->x, d, n, width},
        {&b->y, d, n, width},
        {&b->z, d, n, width},
        {&b->delta, d, n, width},
        {&b->inner, d, n, inner},
        {&b->act_gradient, d, n, inner},
        {&b->d_inner, d, n, inner},
        {&b->gate_up, d, n, 2 * inner},
        {&b->d_gate_up, d, n, 2 * inner},
        {&b->qkv, d, n, 3 * attended},
        {&b->d_qkv, d, n, 3 * attended},
        {&b->attended, d, n, attended},
        {&b->d_attended, d, n, attended},
        {&b->weights, d, inner, width},
        {&b->table, d, b->vocabulary, width},
        {&b->d_weights, f, inner, width},
        {&b->d_table, f, b->vocabulary, width},
        {&b->statistics, f, n, 2},
        {&b->lse, f, c->heads, n},
        {&b->gamma, f, 1, width},
        {&b->beta, f, 1, width},
        {&b->d_gamma, f, 1, width},
        {&b->d_beta, f, 1, width},
        {&b->bias, f, 1, inner},
        {&b->d_bias, f, 1, inner},
        {&b->angles, f, b->sequence, model_head_width(c)},
        {&b->losses, f, 1, n},
        {&b->flat[0], f, 1, b->flat_elems},
        {&b->flat[1], f, 1, b->flat_elems},
        {&b->flat[2], f, 1, b->flat_elems},
        {&b->flat[3], f, 1, b->flat_elems},
        {&b->copy, DTYPE_BF16, 1, b->flat_elems},
    };
    for (int i = 0; i < COUNT(all); i++) {
        TRY(arena_take_tensor(arena, all[i].dtype, all[i].rows, all[i].columns, all[i].tensor));
    }
    TRY(arena_take(arena, 2 * sizeof *b->sums, (void **)&b->sums));
    TRY(arena_take(arena, (size_t)n * sizeof *b->tokens, (void **)&b->tokens));
    TRY(arena_take(arena, (size_t)n * sizeof *b->positions, (void **)&b->positions));
    TRY(arena_take(arena, (size_t)n * sizeof *b->selected_rows, (void **)&b->selected_rows));
    return arena_take(arena, (size_t)(n + 1) * sizeof *b->cu_rows, (void **)&b->cu_rows);
}

static status write_to_device(struct kernels_bench *b, void *to, const void *from, size_t bytes)
{
    struct device *dev = kernels_device(b->k);
    TRY(device_copy(dev, kernels_stream(b->k), to, from, bytes));
    return device_wait(dev, kernels_stream(b->k), DEADLINE_DEVICE_SECONDS);
}

/* Fills all operands with positive numbers near or below 1, which are valid for every
 * operand, second moments included. */
static status fill_random(struct kernels_bench *b, const struct arena *arena)
{
    float *block = NULL;
    TRY(ALLOCATE(block, BLOCK, "random numbers"));
    uint64_t key = random_key(1, RANDOM_TEST, 0, 0);
    for (int64_t i = 0; i < BLOCK; i++) {
        uint32_t bits; /* bf16 in both halves */
        float value = 0.01f + random_uniform(key, (uint64_t)i);
        memcpy(&bits, &value, sizeof bits);
        bits = (bits & 0xffff0000u) | bits >> 16;
        memcpy(&block[i], &bits, sizeof bits);
    }
    status result = STATUS_OK;
    for (size_t offset = 0; offset < arena->bytes && result == STATUS_OK;
         offset += BLOCK * sizeof *block) {
        size_t left = arena->bytes - offset;
        result = write_to_device(b, arena->memory + offset, block,
                                 left < BLOCK * sizeof *block ? left : BLOCK * sizeof *block);
    }
    free(block);
    return result;
}

static status fill_ids(struct kernels_bench *b)
{
    int64_t n = b->rows, sequences = n / b->sequence;
    size_t bytes = (size_t)n * sizeof(int32_t);
    int32_t *ids = NULL;
    TRY(ALLOCATE(ids, (size_t)n * 4 + 1, "ids"));
    uint64_t key = random_key(1, RANDOM_TEST, 1, 0);
    for (int64_t i = 0; i < n; i++) {
        ids[i] = (int32_t)random_below(key, (uint64_t)i, (uint64_t)b->config.vocabulary);
        ids[n + i] = (int32_t)(i % b->sequence);
        ids[2 * n + i] = (int32_t)(i * GATHERED);
        ids[3 * n + i] = (int32_t)(i * b->sequence);
    }
    ids[3 * n + sequences] = (int32_t)n;
    status result = write_to_device(b, b->tokens, ids, bytes);
    KEEP_FIRST(result, write_to_device(b, b->positions, ids + n, bytes));
    KEEP_FIRST(result, write_to_device(b, b->selected_rows, ids + 2 * n, bytes / GATHERED));
    KEEP_FIRST(result, write_to_device(b, b->cu_rows, ids + 3 * n,
                                       (size_t)(sequences + 1) * sizeof(int32_t)));
    free(ids);
    return result;
}

/* ---- the operations ---- */

static const struct dropout no_dropout = {0};

static struct attention describe_attention(const struct kernels_bench *b)
{
    const struct model_config *c = &b->config;
    int64_t head_width = model_head_width(c);
    return (struct attention){
        .heads = (int)c->heads,
        .kv_heads = (int)c->heads,
        .head_width = head_width,
        .causal = true,
        .scale = 1 / sqrtf((float)head_width),
        .sequences = b->rows / b->sequence,
        .cu_q = b->cu_rows,
        .cu_k = b->cu_rows,
        .longest_q = b->sequence,
        .longest_k = b->sequence,
    };
}

static struct tensor get_third(struct tensor qkv, int which)
{
    return tensor_columns(qkv, which * qkv.columns / 3, qkv.columns / 3);
}

static status run_linear_forward(struct kernels_bench *b)
{
    return linear_forward(b->k, b->inner, b->act_gradient, b->x, b->weights, b->bias,
                          ACTIVATION_GELU_TANH);
}

static status run_linear_backward_input(struct kernels_bench *b)
{
    return linear_backward_input(b->k, b->y, (struct bias_gradient){0}, b->d_inner, b->weights,
                                 ACTIVATION_NONE, tensor_absent());
}

static status run_linear_backward_weight(struct kernels_bench *b)
{
    return linear_backward_weight(b->k, b->d_weights, b->d_bias, b->d_inner, b->x, true);
}

static status run_activation_backward(struct kernels_bench *b)
{
    return activation_backward(b->k, b->d_inner, b->inner, b->act_gradient, ACTIVATION_GELU_TANH);
}

static status run_swiglu_forward(struct kernels_bench *b)
{
    return swiglu_forward(b->k, b->inner, b->gate_up);
}

static status run_swiglu_backward(struct kernels_bench *b)
{
    return swiglu_backward(b->k, b->d_gate_up, b->d_inner, b->gate_up);
}

static status run_geglu_forward(struct kernels_bench *b)
{
    return geglu_forward(b->k, b->inner, b->gate_up, ACTIVATION_GELU_TANH);
}

static status run_geglu_backward(struct kernels_bench *b)
{
    return geglu_backward(b->k, b->d_gate_up, b->d_inner, b->gate_up, ACTIVATION_GELU_TANH);
}

static status run_rotary(struct kernels_bench *b)
{
    return rotary_apply(b->k, b->x, b->angles, b->positions, b->angles.columns, false);
}

static status run_embedding_forward(struct kernels_bench *b)
{
    return embedding_forward(b->k, b->y, b->tokens, b->positions, b->table, 0, tensor_absent(),
                             no_dropout);
}

static status run_embedding_backward(struct kernels_bench *b)
{
    return embedding_backward(b->k, b->d_table, 0, tensor_absent(), b->y, b->tokens, b->positions,
                              no_dropout);
}

static status run_dropout(struct kernels_bench *b)
{
    return dropout_apply(b->k, b->y, b->x, (struct dropout){.probability = 0.1f, .key = 1});
}

static status run_gather(struct kernels_bench *b)
{
    return op_gather_rows(b->k, tensor_rows(b->y, 0, b->rows / GATHERED), b->x, b->selected_rows);
}

static status run_scatter(struct kernels_bench *b)
{
    return op_scatter_rows(b->k, b->z, tensor_rows(b->y, 0, b->rows / GATHERED), b->selected_rows,
                           true);
}

static status run_norm_forward(struct kernels_bench *b)
{
    return residual_norm_forward(b->k, b->z, b->y, b->statistics, b->x, b->delta, b->gamma, b->beta,
                                 NORM_LAYER, 1e-5f, no_dropout);
}

static status run_norm_backward(struct kernels_bench *b)
{
    return residual_norm_backward(b->k, b->delta, tensor_absent(), b->d_gamma, b->d_beta,
                                  (struct bias_gradient){0}, b->y, b->z, b->statistics, b->gamma,
                                  NORM_LAYER, NORM_RESIDUAL_PRE, no_dropout);
}

/* Returns memory for a sum of each row. */
static struct tensor view_row_sums(struct kernels_bench *b)
{
    return tensor_view(b->losses.data, DTYPE_F32, b->rows, 1);
}

static status run_split_norm_forward_sums(struct kernels_bench *b)
{
    return split_norm_forward_sums(b->k, view_row_sums(b), b->x);
}

static status run_split_norm_forward(struct kernels_bench *b)
{
    return split_norm_forward(b->k, b->y, b->statistics, b->x, view_row_sums(b), b->gamma,
                              2 * b->x.columns, 1e-5f);
}

static status run_split_norm_backward_sums(struct kernels_bench *b)
{
    return split_norm_backward_sums(b->k, view_row_sums(b), b->d_gamma, b->y, b->x, b->statistics,
                                    b->gamma);
}

static status run_split_norm_backward(struct kernels_bench *b)
{
    return split_norm_backward(b->k, b->z, b->y, b->x, b->statistics, view_row_sums(b), b->gamma,
                               2 * b->x.columns);
}

static status run_attention_forward(struct kernels_bench *b)
{
    struct attention a = describe_attention(b);
    return attention_forward(b->k, b->attended, b->lse, get_third(b->qkv, 0), get_third(b->qkv, 1),
                             get_third(b->qkv, 2), &a);
}

static status run_attention_backward(struct kernels_bench *b)
{
    struct attention a = describe_attention(b);
    return attention_backward(b->k, get_third(b->d_qkv, 0), get_third(b->d_qkv, 1),
                              get_third(b->d_qkv, 2), b->d_attended, get_third(b->qkv, 0),
                              get_third(b->qkv, 1), get_third(b->qkv, 2), b->attended, b->lse, &a);
}

static status run_classifier(struct kernels_bench *b)
{
    struct classifier c = {.vocabulary = b->config.vocabulary,
                           .ignored = -1,
                           .gradient = true,
                           .overwrite = true,
                           .label_smoothing = b->label_smoothing};
    return classifier_run(b->k, b->losses.data, NULL, b->y, b->d_table, b->x, b->table, b->tokens,
                          &c);
}

static struct adamw make_adamw(int64_t elements, enum dtype moments)
{
    return (struct adamw){.learning_rate = 1e-6f,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .epsilon = 1e-8f,
                          .gradient_scale = 1,
                          .correction1 = 0.1f,
                          .correction2 = 0.05f,
                          .rounding = {.columns = elements, .pitch = elements},
                          .moment_dtype = moments};
}

static bf16 *get_bf16_copy(const struct kernels_bench *b)
{
    return kernels_dtype(b->k) == DTYPE_BF16 ? b->copy.data : NULL;
}

static status run_adamw(struct kernels_bench *b)
{
    return adamw_update(b->k, b->flat[0].data, get_bf16_copy(b), b->flat[1].data, b->flat[2].data,
                        b->flat[3].data, b->flat_elems, &b->adamw);
}

static status run_lamb_moments(struct kernels_bench *b)
{
    return lamb_moments(b->k, b->sums, b->flat[0].data, b->flat[1].data, b->flat[2].data,
                        b->flat[3].data, b->flat_elems, &b->adamw);
}

static status run_lamb_apply(struct kernels_bench *b)
{
    return lamb_apply(b->k, b->flat[0].data, get_bf16_copy(b), b->flat[1].data, b->flat[2].data,
                      b->flat_elems, &b->adamw);
}

static status run_sum_of_squares(struct kernels_bench *b)
{
    return op_sum_of_squares(b->k, b->sums, b->flat[3].data, b->flat_elems);
}

static status run_convert(struct kernels_bench *b)
{
    return op_cast(b->k, b->copy, b->flat[0]);
}

static status run_copy(struct kernels_bench *b)
{
    return op_cast(b->k, b->flat[0], b->flat[3]);
}

static status (*const runs[])(struct kernels_bench *b) = {
    run_linear_forward,
    run_linear_backward_input,
    run_linear_backward_weight,
    run_activation_backward,
    run_swiglu_forward,
    run_swiglu_backward,
    run_geglu_forward,
    run_geglu_backward,
    run_rotary,
    run_embedding_forward,
    run_embedding_backward,
    run_dropout,
    run_gather,
    run_scatter,
    run_norm_forward,
    run_norm_backward,
    run_split_norm_forward_sums,
    run_split_norm_forward,
    run_split_norm_backward_sums,
    run_split_norm_backward,
    run_attention_forward,
    run_attention_backward,
    run_classifier,
    run_adamw,
    run_lamb_moments,
    run_lamb_apply,
    run_sum_of_squares,
    run_convert,
};

enum { RUNS = COUNT(runs) };

_Static_assert((int)RUNS <= (int)KERNELS_OPERATIONS_MAX, "more operations than a report can hold");

/* ---- timing ---- */

static status measure_sample(struct kernels_bench *b, status (*run)(struct kernels_bench *b),
                             int calls, double *seconds)
{
    double start = clock_seconds();
    for (int i = 0; i < calls; i++) {
        TRY(run(b));
    }
    TRY(device_wait(kernels_device(b->k), kernels_stream(b->k), DEADLINE_DEVICE_SECONDS));
    *seconds = (clock_seconds() - start) / calls;
    return STATUS_OK;
}

/* Computes the median time of `repeats` samples. A first call determines the number of calls per
 * sample. */
static status time_operation(struct kernels_bench *b, status (*run)(struct kernels_bench *b),
                             int repeats, double *seconds)
{
    double *samples = NULL;
    TRY(ALLOCATE(samples, repeats, "times"));
    status result = measure_sample(b, run, 1, seconds);
    int calls = (int)fmin(CALLS_MAX, 1 + sample_seconds / fmax(*seconds, 1e-9));
    for (int i = 0; i < repeats && result == STATUS_OK; i++) {
        result = measure_sample(b, run, calls, &samples[i]);
    }
    *seconds = number_median(samples, repeats);
    free(samples);
    return result;
}

/* Gets the name, FLOPs and bytes of an operation. The name stays NULL if the back-end does not
 * implement it. */
static status describe_operation(struct kernels_bench *b, status (*run)(struct kernels_bench *b),
                                 struct bench_operation *out)
{
    struct kernels_time times[KERNELS_OPERATIONS_MAX];
    kernels_profile(b->k, true);
    status result = run(b);
    int count = kernels_times(b->k, times);
    kernels_profile(b->k, false);
    if (result == STATUS_UNAVAILABLE) {
        status_clear();
        return STATUS_OK;
    }
    TRY(result);
    REQUIRE(count == 1, STATUS_INTERNAL, "one operation was counted %d times", count);
    *out = (struct bench_operation){
        .name = times[0].operation, .calls = 1, .flops = times[0].flops, .bytes = times[0].bytes};
    return STATUS_OK;
}

/* Measures the fastest algorithm of the GEMM library. If the back end cannot time single
 * algorithms, measures linear_forward. */
static status time_gemm(struct kernels_bench *b, int repeats, double *out)
{
    struct gemm_shape shape = {GEMM_FORWARD, b->rows, b->config.width, b->config.inner, 1};
    *out = INFINITY;
    for (int i = 0; i <= repeats; i++) { /* the first one is a warm-up */
        double algorithms[1][KERNELS_ROOFLINE_ALGORITHMS];
        status result = kernels_roofline(b->k, algorithms, &shape, 1);
        if (result == STATUS_UNAVAILABLE) {
            status_clear();
            return time_operation(b, run_linear_forward, repeats, out);
        }
        TRY(result);
        for (int w = 0; w < KERNELS_ROOFLINE_ALGORITHMS && i > 0; w++) {
            *out = fmin(*out, algorithms[0][w]);
        }
    }
    return STATUS_OK;
}

static status measure_rates(struct kernels_bench *b, int repeats, struct bench_kernels *out)
{
    const struct model_config *c = &b->config;
    double seconds = 0;
    TRY(time_gemm(b, repeats, &seconds));
    out->gemm_flops_per_second =
        2.0 * (double)b->rows * (double)c->width * (double)c->inner / seconds;
    TRY(time_operation(b, run_copy, repeats, &seconds));
    out->copy_bytes_per_second = 8 * (double)b->flat_elems / seconds;
    return STATUS_OK;
}

/* Returns the FLOPs of causal attention, 0 for other operations.
 *
 * On a GPU the kernels cannot count them, because the sequence boundaries are in device memory. */
static double get_attention_flops(const struct kernels_bench *b,
                                  status (*run)(struct kernels_bench *b))
{
    double pairs =
        (double)b->rows * (double)(b->sequence + 1) / 2 * (double)model_attention_width(&b->config);
    return run == run_attention_forward    ? 4 * pairs
           : run == run_attention_backward ? 10 * pairs
                                           : 0;
}

static status measure_operations(struct kernels_bench *b, int repeats, struct bench_kernels *out)
{
    TRY(measure_rates(b, repeats, out));
    for (int i = 0; i < RUNS; i++) {
        struct bench_operation *o = &out->operations[out->operation_count];
        *o = (struct bench_operation){0};
        TRY(describe_operation(b, runs[i], o));
        if (o->name == NULL) {
            continue;
        }
        log_progress("%s", o->name);
        o->flops = o->flops > 0 ? o->flops : get_attention_flops(b, runs[i]);
        TRY(time_operation(b, runs[i], repeats, &o->seconds));
        o->roofline_seconds =
            fmax(o->bytes / out->copy_bytes_per_second, o->flops / out->gemm_flops_per_second);
        o->share = o->roofline_seconds / o->seconds;
        out->operation_count++;
    }
    return STATUS_OK;
}

status bench_kernels_run(struct session *s, int repeats, struct bench_kernels *out)
{
    struct kernels_bench b = {.k = s->kernels, .config = *model_get_config(s->model)};
    struct arena arena = {0};
    *out = (struct bench_kernels){0};
    REQUIRE(comm_size(s->mesh.tensor) == 1, STATUS_RECIPE,
            "bench kernels: parallel.tensor must be 1; operations are timed on the whole model");
    b.sequence = s->recipe.data.sequence_length;
    b.rows = out->rows = s->recipe.batch.micro_size * b.sequence;
    b.vocabulary = model_vocabulary_rows(&b.config, 1);
    b.label_smoothing = (float)s->recipe.train.label_smoothing_factor;
    int64_t max_elems = device_is_host(s->device) ? FLAT_ELEMS : FLAT_ELEMS_ON_GPU;
    b.flat_elems = number_min(model_elems(s->model), max_elems);
    b.adamw = make_adamw(b.flat_elems, derive_moment_dtype(&s->recipe));
    TRY(arena_create(s->device, 0, "the operations' operands", &arena));
    status result = take_operands(&b, &arena);
    size_t bytes = arena.peak;
    arena_destroy(&arena);
    TRY(result);
    TRY(arena_create(s->device, bytes, "the operations' operands", &arena));
    result = take_operands(&b, &arena);
    KEEP_FIRST(result, fill_random(&b, &arena));
    KEEP_FIRST(result, fill_ids(&b));
    if (result == STATUS_OK) {
        result = measure_operations(&b, repeats, out);
    }
    arena_destroy(&arena);
    return result;
}
