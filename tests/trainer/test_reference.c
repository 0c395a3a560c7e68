/* A tiny GPT-2 against PyTorch in double precision (scripts/make_reference.py): logits, the gradient of
 * every parameter, ten AdamW steps with clipping; with plain rows and with a document mask. And ten LAMB steps; and a tiny
 * Llama against transformers. With LoRA, against peft: the adapters' gradients and weights.
 *
 * Errors are relative by tensor: |a - b| / |b| in the Frobenius norm. The gradient of the key biases is
 * zero in theory (softmax does not see a constant added to a row of scores) and noise in practice, which
 * AdamW blows up: they are compared absolutely and left out of the weights' comparison. */
#include "tests/trainer/reference_file.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/views.h"

static const double tolerance = 1e-5;

struct reference {
    hid_t file;
    struct model_config config;
    int64_t batch, tokens, steps, segments;
    int32_t *ids, *positions, *ignored, *starts;
    double *losses, *norms;
    struct optimizer_settings optimizer;
    double learning_rate;
};

/* What GPT-2's files do not say. */
static double attribute_or(hid_t file, const char *name, double otherwise)
{
    return H5Aexists(file, name) > 0 ? reference_attribute(file, name) : otherwise;
}

static void read_reference(const char *name, const char *targets, struct reference *r)
{
    char path[1024];
    const char *root = getenv("BIREME_SOURCE_DIR");
    CHECK(root != NULL);
    snprintf(path, sizeof path, "%s/tests/reference/%s", root, name);
    hid_t f = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    CHECK(f >= 0);
    *r = (struct reference){
        .file = f,
        .config = {.architecture = H5Aexists(f, "kv_heads") > 0 ? "llama" : "gpt2",
                   .kv_heads = (int64_t)attribute_or(f, "kv_heads", 0),
                   .rope_theta = attribute_or(f, "rope_theta", 0),
                   .layers = (int64_t)reference_attribute(f, "layers"),
                   .width = (int64_t)reference_attribute(f, "width"),
                   .heads = (int64_t)reference_attribute(f, "heads"),
                   .inner = (int64_t)reference_attribute(f, "inner"),
                   .positions = (int64_t)reference_attribute(f, "positions"),
                   .vocabulary = (int64_t)reference_attribute(f, "vocabulary"),
                   .activation = reference_attribute(f, "gelu_tanh") > 0 ? ACTIVATION_GELU_TANH
                                                                         : ACTIVATION_GELU_ERF,
                   .norm_epsilon = 1e-5f,
                   .initializer_range = 0.02f,
                   .tied = attribute_or(f, "tied", 1) > 0,
                   .adapter = {.rank = (int64_t)attribute_or(f, "adapter_rank", 0),
                               .alpha = (float)attribute_or(f, "adapter_alpha", 0),
                               .targets = targets}},
        .batch = (int64_t)reference_attribute(f, "batch"),
        .tokens = (int64_t)reference_attribute(f, "tokens"),
        .steps = (int64_t)reference_attribute(f, "steps"),
        .optimizer = {reference_attribute(f, "beta1"), reference_attribute(f, "beta2"),
                      reference_attribute(f, "epsilon"), reference_attribute(f, "weight_decay"),
                      reference_attribute(f, "max_grad_norm"),
                      H5Aexists(f, "lamb") > 0 ? OPTIMIZER_LAMB : OPTIMIZER_ADAMW},
        .learning_rate = reference_attribute(f, "learning_rate"),
    };
    int64_t count;
    r->ids = reference_dataset(f, "ids", H5T_NATIVE_INT32, 4, &count);
    r->positions = reference_dataset(f, "positions", H5T_NATIVE_INT32, 4, &count);
    r->ignored = reference_dataset(f, "ignored", H5T_NATIVE_INT32, 4, &count);
    r->starts = reference_dataset(f, "starts", H5T_NATIVE_INT32, 4, &r->segments);
    r->losses = reference_dataset(f, "losses", H5T_NATIVE_DOUBLE, 8, &count);
    r->norms = reference_dataset(f, "norms", H5T_NATIVE_DOUBLE, 8, &count);
}

static void close_reference(struct reference *r)
{
    free(r->ids);
    free(r->positions);
    free(r->ignored);
    free(r->starts);
    free(r->losses);
    free(r->norms);
    H5Fclose(r->file);
}

/* ---- named tensors, transposed where the file holds [in, out] ---- */

/* Compares a flat buffer with a group of the file. key_biases: how those are treated. */
static double compare(const struct reference *r, const struct model *m, const char *group,
                      const float *flat, bool key_biases)
{
    int count;
    double worst = 0;
    const struct model_parameter *parameters = model_parameters(m, &count);
    for (int i = 0; i < count; i++) {
        const struct model_parameter *p = &parameters[i];
        if (!p->trained) {
            continue;
        }
        float *expected = reference_tensor(r->file, group, p);
        const float *got = flat + p->first;
        int64_t c = r->config.width;
        bool qkv_bias = strstr(p->name, "c_attn.bias") != NULL;
        double error = qkv_bias ? fmax(reference_error(got, expected, c),
                                       reference_error(got + 2 * c, expected + 2 * c, c))
                                : reference_error(got, expected, p->whole_rows * p->columns);
        for (int64_t j = c; qkv_bias && key_biases && j < 2 * c; j++) {
            CHECK_NEAR(got[j], expected[j], tolerance);
        }
        if (!(error <= tolerance)) {
            fprintf(stderr, "%s/%s: relative error %.3g\n", group, p->name, error);
            exit(1);
        }
        worst = fmax(worst, error);
        free(expected);
    }
    return worst;
}

/* ---- the same ten steps ---- */

struct training {
    struct reference *r;
    struct kernels *kernels;
    struct model *model;
    struct optimizer *optimizer;
    float *gradients, *places[64], *losses;
    int32_t *inputs, *targets, *cu_rows;
};

static void fill_batch(struct training *t, int64_t step, struct batch *batch)
{
    const struct reference *r = t->r;
    for (int64_t b = 0; b < r->batch; b++) {
        const int32_t *row = r->ids + (step * r->batch + b) * (r->tokens + 1);
        for (int64_t i = 0; i < r->tokens; i++) {
            int64_t at = b * r->tokens + i;
            t->inputs[at] = row[i];
            t->targets[at] = r->ignored[at] ? BATCH_IGNORED : row[i + 1];
        }
    }
    *batch = (struct batch){
        .sequences = r->batch,
        .tokens = r->tokens,
        .rows = r->batch * r->tokens,
        .inputs = t->inputs,
        .targets = t->targets,
        .positions = r->positions,
        .segments = r->segments,
        .cu_rows = t->cu_rows,
        .longest = r->tokens,
    };
}

static void check_logits(const struct training *t, struct tensor hidden)
{
    int64_t count, n = hidden.rows, v = t->r->config.vocabulary;
    float *expected = reference_dataset(t->r->file, "logits", H5T_NATIVE_FLOAT, 4, &count);
    float *logits = malloc((size_t)count * sizeof *logits);
    CHECK(logits != NULL);
    CHECK_EQUAL(count, n * v);
    CHECK_OK(classifier_logits(t->kernels, tensor_view(logits, DTYPE_F32, n, v), hidden,
                               tensor_rows(model_head(t->model), 0, v), tensor_absent()));
    double error = reference_error(logits, expected, count);
    CHECK_NEAR(error, 0, tolerance);
    printf("logits: relative error %.2g\n", error);
    free(logits);
    free(expected);
}

/* The first row again as generation sees it: most of its tokens, then the rest against kept keys and values. */
static void check_cache(const struct training *t)
{
    const struct reference *r = t->r;
    int64_t count, v = r->config.vocabulary, rest = 3, most = r->tokens - rest;
    struct model_cache *cache = NULL;
    struct tensor hidden;
    if (r->segments != r->batch) {
        return; /* documents within the rows */
    }
    float *expected = reference_dataset(r->file, "logits", H5T_NATIVE_FLOAT, 4, &count);
    float *logits = malloc((size_t)(rest * v) * sizeof *logits);
    CHECK(logits != NULL);
    CHECK_OK(model_cache_create(t->model, 1, r->tokens, &cache));
    CHECK_OK(model_extend(t->model, cache, t->inputs, &most, &hidden));
    CHECK_OK(model_extend(t->model, cache, t->inputs + most, &rest, &hidden));
    CHECK_OK(classifier_logits(t->kernels, tensor_view(logits, DTYPE_F32, rest, v), hidden,
                               tensor_rows(model_head(t->model), 0, v), tensor_absent()));
    CHECK_NEAR(reference_error(logits, expected + most * v, rest * v), 0, tolerance);
    CHECK_OK(model_cache_destroy(&cache));
    free(logits);
    free(expected);
}

/* A fresh gradient is set, whatever was there. */
static void forget_gradients(struct training *t)
{
    int count;
    const struct model_parameter *parameters = model_parameters(t->model, &count);
    for (int i = 0; i < count; i++) {
        int64_t size = parameters[i].rows * parameters[i].columns;
        for (int64_t e = 0; parameters[i].trained && e < size; e++) {
            t->gradients[parameters[i].first + e] = NAN;
        }
    }
}

static void train_step(struct training *t, int64_t step)
{
    struct batch batch;
    struct tensor hidden;
    double sums[OBJECTIVE_SUMS] = {0}, squares = 0;
    fill_batch(t, step, &batch);
    struct model_input input = views_input(&batch);
    input.training = input.fresh = true;
    forget_gradients(t);
    if (step == 0) {
        check_cache(t);
    }
    CHECK_OK(model_forward(t->model, &input, &hidden));
    if (step == 0) {
        check_logits(t, hidden);
    }
    struct objective_views views = {.losses = t->losses};
    views_add_model(&views, t->model, &batch, &input, hidden, t->places);
    CHECK_OK(objective_clm.loss(t->kernels, &batch, &views, true, sums));
    CHECK_OK(model_backward(t->model, &input, t->places, NULL, NULL));
    double count = sums[OBJECTIVE_COUNT], loss = sums[OBJECTIVE_LOSS] / count;
    CHECK_NEAR(loss / t->r->losses[step], 1, tolerance);
    if (step == 0) {
        for (int64_t i = 0; i < model_elements(t->model); i++) {
            t->gradients[i] /= (float)count;
        }
        printf("gradients: relative error %.2g\n",
               compare(t->r, t->model, "gradients", t->gradients, true));
        count = 1;
    }
    CHECK_OK(sum_of_squares(t->kernels, &squares, t->gradients, model_elements(t->model)));
    double norm = sqrt(squares) / count;
    CHECK_NEAR(norm / t->r->norms[step], 1, tolerance);
    struct optimizer_slice whole = {.count = model_elements(t->model),
                                    .weights = model_weights(t->model),
                                    .gradients = t->gradients};
    double scale = optimizer_clip(t->optimizer, norm) / count;
    if (optimizer_has_trust(t->optimizer)) {
        struct optimizer_squares tensors[64] = {{0}};
        CHECK_OK(optimizer_moments(t->optimizer, &whole, step + 1, scale));
        CHECK_OK(optimizer_squares(t->optimizer, tensors));
        optimizer_trust(t->optimizer, tensors);
    }
    CHECK_OK(optimizer_update(t->optimizer, &whole, step + 1, t->r->learning_rate, scale));
}

static void make_optimizer(struct training *t)
{
    int count;
    const struct model_parameter *parameters = model_parameters(t->model, &count);
    struct optimizer_range ranges[64];
    int ranges_used = 0;
    CHECK(count <= 64);
    for (int i = 0; i < count; i++) {
        const struct model_parameter *p = &parameters[i];
        if (p->trained) {
            ranges[ranges_used++] =
                (struct optimizer_range){p->first, p->rows * p->columns, p->first, p->decay, i};
            t->places[i] = t->gradients + p->first;
        }
        float *weights = reference_tensor(t->r->file, "weights", p);
        memcpy(model_weights(t->model) + p->first, weights,
               (size_t)(p->whole_rows * p->columns) * sizeof *weights);
        free(weights);
    }
    CHECK_OK(optimizer_create(t->kernels, &t->r->optimizer, ranges, ranges_used,
                              model_elements(t->model), &t->optimizer));
}

static void test_reference(const char *name, const char *targets)
{
    struct reference r;
    struct device *dev = NULL;
    read_reference(name, targets, &r);
    int64_t rows = r.batch * r.tokens;
    struct training t = {.r = &r};
    struct kernels_limits limits = {.rows = rows,
                                    .width = r.config.width,
                                    .inner = model_inner_outputs(&r.config),
                                    .heads = (int)r.config.heads,
                                    .head_width = r.config.width / r.config.heads,
                                    .sequence = r.tokens,
                                    .vocabulary = model_vocabulary_rows(&r.config, 1),
                                    .training = true};
    CHECK_OK(device_create(DEVICE_CPU, 0, &dev));
    CHECK_OK(kernels_create(dev, DTYPE_F32, 2, &limits, &t.kernels));
    CHECK_OK(model_create(t.kernels, &r.config, NULL, false, rows, true, &t.model));
    t.gradients = calloc((size_t)model_elements(t.model), sizeof *t.gradients);
    t.losses = calloc((size_t)rows, sizeof *t.losses);
    t.inputs = calloc((size_t)rows, sizeof *t.inputs);
    t.targets = calloc((size_t)rows, sizeof *t.targets);
    t.cu_rows = calloc((size_t)r.segments + 1, sizeof *t.cu_rows);
    CHECK(t.gradients && t.losses && t.inputs && t.targets && t.cu_rows);
    memcpy(t.cu_rows, r.starts, (size_t)r.segments * sizeof *t.cu_rows);
    t.cu_rows[r.segments] = (int32_t)rows;
    make_optimizer(&t);
    for (int64_t step = 0; step < r.steps; step++) {
        train_step(&t, step);
    }
    printf("weights after %lld steps: relative error %.2g\n", (long long)r.steps,
           compare(&r, t.model, "trained", model_weights(t.model), false));
    free(t.gradients);
    free(t.losses);
    free(t.inputs);
    free(t.targets);
    free(t.cu_rows);
    CHECK_OK(optimizer_destroy(&t.optimizer));
    CHECK_OK(model_destroy(&t.model));
    CHECK_OK(kernels_destroy(&t.kernels));
    CHECK_OK(device_destroy(&dev));
    close_reference(&r);
}

int main(void)
{
    test_reference("gpt2_tanh.h5", NULL);
    test_reference("gpt2_erf_documents.h5", NULL);
    test_reference("gpt2_lamb.h5", NULL);
    test_reference("llama.h5", NULL);
    test_reference("gpt2_lora.h5", "c_attn, c_proj, c_fc");
    test_reference("llama_lora.h5", "q_proj, v_proj");
    return 0;
}
