/* Compares a tiny encoder-decoder model with transformers in double precision
 * (reference_seq2seq.py): logits, the gradient of every parameter, and ten AdamW steps with
 * gradient clipping. The batches are padded there and packed here. With LoRA, gradients and weights
 * of the adapters in both stacks are compared with peft. With dropout, the model of transformers
 * has the masks of scripts/reference/reference_dropout.py.
 *
 * In exact arithmetic, the gradient of the key biases is zero, because softmax does not change if a
 * constant is added to a row of scores. They are compared by absolute error, and excluded from the
 * comparison of weights, because AdamW amplifies their rounding noise. */
#include "base/memory.h"
#include "tests/trainer/model/reference_run.h"

enum { PAIRS_MAX = 8 };

struct training {
    struct run run;
    int64_t pairs, source_rows, target_rows;
    int32_t *sources, *targets; /* [steps, rows] */
    int32_t *inputs, *positions, *source_positions;
    int32_t cu_rows[PAIRS_MAX + 1], source_cu_rows[PAIRS_MAX + 1];
    int32_t start;
    float *losses;
};

/* Reads the lengths of a side, and returns its positions. */
static int32_t *read_lengths(struct training *t, const char *name, int32_t cu_rows[], int64_t *rows)
{
    int32_t *lengths =
        reference_dataset(t->run.file, name, H5T_NATIVE_INT32, sizeof *lengths, &t->pairs);
    CHECK(t->pairs <= PAIRS_MAX);
    cu_rows[0] = 0;
    for (int64_t i = 0; i < t->pairs; i++) {
        cu_rows[i + 1] = cu_rows[i] + lengths[i];
    }
    *rows = cu_rows[t->pairs];
    int32_t *positions = calloc((size_t)*rows, sizeof *positions);
    CHECK(positions != NULL);
    for (int64_t i = 0, row = 0; i < t->pairs; i++) {
        for (int32_t position = 0; position < lengths[i]; position++) {
            positions[row++] = position;
        }
    }
    free(lengths);
    return positions;
}

static void open_training(struct training *t, const char *name, const char *architecture,
                          const char *targets)
{
    int64_t count;
    run_open(&t->run, name, architecture, targets);
    hid_t f = t->run.file;
    struct model_config *c = &t->run.config;
    c->encoder_layers = (int64_t)reference_attribute(f, "encoder_layers");
    c->embedding_multiplier =
        run_attribute_or(f, "scale_embedding", 0) > 0 ? sqrt((double)c->width) : 0;
    c->source_vocabulary = (int64_t)run_attribute_or(f, "source_vocabulary", 0);
    c->separate_embeddings = run_attribute_or(f, "separate", 0) > 0;
    c->parts.gated = run_attribute_or(f, "gated", 0) > 0;
    c->activation = c->parts.gated                       ? ACTIVATION_GELU_TANH
                    : run_attribute_or(f, "gelu", 0) > 0 ? ACTIVATION_GELU_ERF
                                                         : ACTIVATION_RELU;
    c->norm_epsilon = (float)run_attribute_or(f, "norm_epsilon", 1e-5);
    c->head_width = (int64_t)run_attribute_or(f, "head_width", 0);
    c->position_buckets = (int64_t)run_attribute_or(f, "buckets", 0);
    c->max_distance = (int64_t)run_attribute_or(f, "max_distance", 0);
    c->logits_divisor = run_attribute_or(f, "scale_outputs", 0) > 0 ? sqrt((double)c->width) : 0;
    c->dropout = (float)run_attribute_or(f, "dropout", 0);
    c->activation_dropout = (float)run_attribute_or(
        f, "activation_dropout", strcmp(architecture, "t5") == 0 ? c->dropout : 0);
    t->start = (int32_t)reference_attribute(f, "start");
    t->sources = reference_dataset(f, "sources", H5T_NATIVE_INT32, 4, &count);
    t->targets = reference_dataset(f, "targets", H5T_NATIVE_INT32, 4, &count);
    t->source_positions = read_lengths(t, "source_lengths", t->source_cu_rows, &t->source_rows);
    t->positions = read_lengths(t, "target_lengths", t->cu_rows, &t->target_rows);
    t->inputs = calloc((size_t)t->target_rows, sizeof *t->inputs);
    t->losses = calloc((size_t)t->target_rows, sizeof *t->losses);
    CHECK(t->inputs != NULL && t->losses != NULL);
}

static void fill_batch(struct training *t, int64_t step, struct batch *batch)
{
    const int32_t *targets = t->targets + step * t->target_rows;
    for (int64_t row = 0; row < t->target_rows; row++) {
        t->inputs[row] = t->positions[row] > 0 ? targets[row - 1] : t->start;
    }
    *batch = (struct batch){
        .kind = BATCH_SEQ2SEQ,
        .sequences = t->pairs,
        .tokens = t->run.tokens,
        .rows = t->target_rows,
        .inputs = t->inputs,
        .targets = targets,
        .positions = t->positions,
        .segments = t->pairs,
        .cu_rows = t->cu_rows,
        .longest = t->run.tokens,
        .source = {.rows = t->source_rows,
                   .inputs = t->sources + step * t->source_rows,
                   .positions = t->source_positions,
                   .cu_rows = t->source_cu_rows,
                   .longest = t->run.tokens},
    };
}

static void check_logits(const struct training *t, struct tensor hidden)
{
    int64_t count, n = hidden.rows, v = t->run.config.vocabulary;
    float *expected = reference_dataset(t->run.file, "logits", H5T_NATIVE_FLOAT, 4, &count);
    float *logits = malloc((size_t)count * sizeof *logits);
    CHECK(logits != NULL);
    CHECK_EQUAL(count, n * v);
    CHECK_OK(classifier_logits(t->run.kernels, tensor_view(logits, DTYPE_F32, n, v), hidden,
                               tensor_rows(model_lm_head(t->run.model), 0, v), tensor_absent()));
    double error = reference_error(logits, expected, count);
    CHECK_NEAR(error, 0, tolerance);
    printf("logits: relative error %.2g\n", error);
    free(logits);
    free(expected);
}

/* Compares the loss with label smoothing. Its gradients are overwritten later. */
static void check_smoothed_loss(const struct training *t, const struct batch *batch,
                                struct objective_input views)
{
    double sums[OBJECTIVE_SUMS] = {0}, expected = run_attribute_or(t->run.file, "smoothed_loss", 0);
    views.device_sums = sums;
    views.label_smoothing = 0.1;
    CHECK_OK(objective_seq2seq.loss(t->run.kernels, batch, &views, true, sums));
    if (expected > 0) {
        CHECK_NEAR(sums[OBJECTIVE_LOSS] / sums[OBJECTIVE_COUNT] / expected, 1, tolerance);
    }
}

/* Returns the id with the highest logit, or with the second highest one. */
static int32_t find_best(const float *logits, int64_t vocabulary, bool second)
{
    int32_t best = -1, next = -1;
    for (int32_t id = 0; id < vocabulary; id++) {
        if (best < 0 || logits[id] > logits[best]) {
            next = best;
            best = id;
        } else if (next < 0 || logits[id] > logits[next]) {
            next = id;
        }
    }
    return second ? next : best;
}

/* Compares the metric token_accuracy of an evaluation with the logits of transformers. The target
 * of each row is the id with the highest logit there, except in every third row. */
static void check_accuracy(const struct training *t, const struct batch *batch,
                           struct objective_input views)
{
    const struct objective_metric *metric = objective_seq2seq.metrics;
    double sums[OBJECTIVE_SUMS] = {0};
    int64_t count, n = batch->rows, v = t->run.config.vocabulary, correct = 0;
    float *logits = reference_dataset(t->run.file, "logits", H5T_NATIVE_FLOAT, 4, &count);
    int32_t *targets = calloc((size_t)n, sizeof *targets),
            *argmax = calloc((size_t)n, sizeof *argmax);
    CHECK(targets != NULL && argmax != NULL && count == n * v);
    for (int64_t row = 0; row < n; row++) {
        targets[row] = find_best(logits + row * v, v, row % 3 == 1);
        correct += row % 3 != 1;
    }
    struct batch evaluated = *batch;
    evaluated.targets = targets;
    views.device_batch = &evaluated;
    views.device_sums = sums;
    views.scratch.argmax = argmax;
    CHECK_OK(objective_seq2seq.loss(t->run.kernels, &evaluated, &views, false, sums));
    CHECK_TEXT(metric->name, "token_accuracy");
    CHECK(correct > 0 && correct < n);
    CHECK_NEAR(objective_mean(sums, metric), (double)correct / (double)n, 1e-12);
    free(argmax);
    free(targets);
    free(logits);
}

static void train_step(struct training *t, int64_t step)
{
    struct run *run = &t->run;
    struct batch batch;
    struct tensor hidden;
    double sums[OBJECTIVE_SUMS] = {0};
    fill_batch(t, step, &batch);
    struct model_input input = objective_input_model(&batch);
    input.training = input.first_micro_batch = true;
    input.step = step;
    run_invalidate_gradients(run);
    CHECK_OK(model_forward(run->model, &input, &hidden));
    if (step == 0) {
        check_logits(t, hidden);
    }
    struct objective_input views = {.scratch = {.losses = t->losses}, .device_sums = sums};
    objective_input_fill(&views, run->model, &batch, &input, hidden, run->parameter_gradients);
    if (step == 0) {
        check_smoothed_loss(t, &batch, views);
        check_accuracy(t, &batch, views);
    }
    run_end_step(run, &batch, &input, &views, step);
}

static void test_reference(const char *name, const char *architecture, const char *targets,
                           enum recompute_mode recompute)
{
    struct training t = {0};
    open_training(&t, name, architecture, targets);
    t.run.config.recompute = recompute;
    run_make(&t.run);
    for (int64_t step = 0; step < t.run.steps; step++) {
        train_step(&t, step);
    }
    printf("weights after %lld steps: relative error %.2g\n", (long long)t.run.steps,
           run_compare_tensors(&t.run, "trained", model_weights(t.run.model), tolerance, false));
    free(t.sources);
    free(t.targets);
    free(t.inputs);
    free(t.positions);
    free(t.source_positions);
    free(t.losses);
    run_close(&t.run);
}

int main(void)
{
    static const char *const files[][3] = {
        {"marian.h5", "marian"},
        {"marian_separate.h5", "marian"},
        {"bart.h5", "bart"},
        {"mbart.h5", "mbart"},
        {"t5.h5", "t5"},
        {"t5_gated.h5", "t5"},
        {"bart_dropout.h5", "bart"},
        {"mbart_dropout.h5", "mbart"},
        {"t5_dropout.h5", "t5"},
        {"t5_gated_dropout.h5", "t5"},
        {"marian_lora.h5", "marian", "all-linear"},
        {"t5_gated_lora.h5", "t5", "q, v, wi_0, wo"},
        {"mbart_lora.h5", "mbart", "q_proj, encoder_attn.k_proj, fc2"},
        {"bart_lora.h5", "bart", "encoder_attn.q_proj, encoder_attn.v_proj"},
    };
    for (int i = 0; i < COUNT(files); i++) {
        printf("%s\n", files[i][0]);
        for (int mode = RECOMPUTE_NONE; mode <= RECOMPUTE_FULL; mode++) {
            test_reference(files[i][0], files[i][1], files[i][2], (enum recompute_mode)mode);
        }
    }
    return 0;
}
