/* Training steps of a reference file, and a model that repeats them with the weights and the
 * optimizer settings of the file. */
#pragma once

#include "tests/trainer/reference_file.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/train/step/objective_input.h"

enum { RUN_PARAMETERS = 160 };

static const double tolerance = 1e-5;

struct run {
    hid_t file;
    struct model_config config;
    int64_t batch, tokens, steps;
    double *losses, *norms; /* [steps] */
    struct optimizer_settings settings;
    double learning_rate;
    struct device *dev;
    struct kernels *kernels;
    struct model *model;
    struct optimizer *optimizer;
    float *gradients, *parameter_gradients[RUN_PARAMETERS];
    struct model_parameter *named; /* parameters with the names in the file, if the architecture of
                                    * the file differs; NULL: the model's parameters */
};

/* Returns the parameter with the name in the file. */
static inline const struct model_parameter *run_named(const struct run *r, int index)
{
    int count;
    const struct model_parameter *parameters = model_parameters(r->model, &count);
    return r->named != NULL ? &r->named[index] : &parameters[index];
}

/* Returns an attribute that not all files have. */
static inline double run_attribute_or(hid_t file, const char *name, double default_value)
{
    return H5Aexists(file, name) > 0 ? reference_attribute(file, name) : default_value;
}

/* Sets layer_types of a pattern n: every n-th layer has full attention, the first or the last of n.
 * 0: no layer_types. */
static inline void run_set_pattern(struct model_config *config, int64_t n, bool begins)
{
    for (int64_t i = 0; n > 0 && i < config->layers; i++) {
        model_set_layer_type(config, i, (begins ? i : i + 1) % n != 0);
    }
}

/* Opens tests/reference/`name`. The caller sets the other fields of the configuration. targets: of
 * the adapters; NULL: none. */
static inline void run_open(struct run *r, const char *name, const char *architecture,
                            const char *targets)
{
    int64_t count;
    hid_t f = reference_open(name);
    *r = (struct run){
        .file = f,
        .config = reference_config(f, architecture),
        .batch = (int64_t)reference_attribute(f, "batch"),
        .tokens = (int64_t)reference_attribute(f, "tokens"),
        .steps = (int64_t)reference_attribute(f, "steps"),
        .settings = {reference_attribute(f, "beta1"), reference_attribute(f, "beta2"),
                     reference_attribute(f, "epsilon"), reference_attribute(f, "weight_decay"),
                     reference_attribute(f, "max_grad_norm"),
                     run_attribute_or(f, "lamb", 0) > 0 ? OPTIMIZER_LAMB : OPTIMIZER_ADAMW},
        .learning_rate = reference_attribute(f, "learning_rate"),
    };
    r->config.activation =
        reference_attribute(f, "gelu_tanh") > 0 ? ACTIVATION_GELU_TANH : ACTIVATION_GELU_ERF;
    r->config.tied = run_attribute_or(f, "tied", 1) > 0;
    r->config.adapter.rank = (int64_t)run_attribute_or(f, "adapter_rank", 0);
    r->config.adapter.alpha = (float)run_attribute_or(f, "adapter_alpha", 0);
    r->config.adapter.targets = targets;
    r->losses = reference_dataset(f, "losses", H5T_NATIVE_DOUBLE, 8, &count);
    r->norms = reference_dataset(f, "norms", H5T_NATIVE_DOUBLE, 8, &count);
}

static inline void run_make_optimizer(struct run *r)
{
    int count, used = 0;
    struct optimizer_range ranges[RUN_PARAMETERS];
    const struct model_parameter *parameters = model_parameters(r->model, &count);
    CHECK(count <= RUN_PARAMETERS);
    for (int i = 0; i < count; i++) {
        const struct model_parameter *p = &parameters[i];
        if (p->trained) {
            ranges[used++] =
                (struct optimizer_range){p->first, p->rows * p->columns, p->first, p->decay, i};
            r->parameter_gradients[i] = r->gradients + p->first;
        }
        float *weights = reference_tensor(r->file, "weights", run_named(r, i));
        memcpy(model_weights(r->model) + p->first, weights,
               (size_t)(p->whole_rows * p->whole_columns) * sizeof *weights);
        free(weights);
    }
    CHECK_OK(optimizer_create(r->kernels, &r->settings, ranges, used, model_elems(r->model),
                              &r->optimizer));
}

/* Creates the model of the configuration with the weights of the file. */
static inline void run_make(struct run *r)
{
    int64_t rows = r->batch * r->tokens;
    struct kernels_limits limits = {.rows = rows,
                                    .width = r->config.width,
                                    .inner = model_inner_outputs(&r->config),
                                    .heads = (int)r->config.heads,
                                    .head_width = model_head_width(&r->config),
                                    .sequence = r->tokens,
                                    .vocabulary = model_vocabulary_rows(&r->config, 1),
                                    .training = true,
                                    .bias_buckets = (int)model_position_buckets(&r->config)};
    CHECK_OK(device_create(DEVICE_CPU, 0, &r->dev));
    CHECK_OK(kernels_create(r->dev, DTYPE_F32, 2, &limits, &r->kernels));
    CHECK_OK(model_create(r->kernels, &r->config, NULL, false, rows, true, &r->model));
    r->gradients = calloc((size_t)model_elems(r->model), sizeof *r->gradients);
    CHECK(r->gradients != NULL);
    run_make_optimizer(r);
}

/* Fills the gradients with NaN. The first micro-batch must overwrite them. */
static inline void run_invalidate_gradients(struct run *r)
{
    int count;
    const struct model_parameter *parameters = model_parameters(r->model, &count);
    for (int i = 0; i < count; i++) {
        int64_t size = parameters[i].rows * parameters[i].columns;
        for (int64_t e = 0; parameters[i].trained && e < size; e++) {
            r->gradients[parameters[i].first + e] = NAN;
        }
    }
}

/* Returns whether the gradient of this element of a parameter is 0 apart from rounding: softmax
 * does not change if a constant is added to a row of scores. This holds for the bias of the keys;
 * with rotary positions, for the columns that do not rotate. c_attn has the keys between queries
 * and values. */
static inline bool run_is_free(const struct run *r, const struct model_parameter *p,
                               int64_t element)
{
    int64_t head_width = model_head_width(&r->config);
    int64_t rotated = model_layer_has_rope(&r->config, 0) ? model_rotary_width(&r->config) : 0;
    bool is_key_bias = strstr(p->name, "k_proj.bias") != NULL ||
                       strstr(p->name, "key.bias") != NULL || strstr(p->name, "k_lin.bias") != NULL;
    return strstr(p->name, "c_attn.bias") != NULL ? element / r->config.width == 1
                                                  : is_key_bias && element % head_width >= rotated;
}

/* Returns the largest relative error of the parts of a parameter. The free elements are compared by
 * absolute error, with `compare_free`, and do not count. */
static inline double run_compare_tensor(const struct run *r, const struct model_parameter *p,
                                        const float *actual, float *expected, bool compare_free)
{
    int64_t elements = p->whole_rows * p->whole_columns;
    int parts = strstr(p->name, "c_attn.bias") != NULL ? 3 : 1;
    for (int64_t i = 0; i < elements; i++) {
        if (run_is_free(r, p, i)) {
            CHECK(!compare_free || fabs((double)actual[i] - (double)expected[i]) <= tolerance);
            expected[i] = actual[i];
        }
    }
    double largest = 0;
    for (int64_t first = 0, size = elements / parts; first < elements; first += size) {
        largest = run_is_free(r, p, first)
                      ? largest
                      : check_max(largest, reference_error(actual + first, expected + first, size));
    }
    return largest;
}

/* Compares the trained parameters of a flat buffer with a group of the file. Returns the largest
 * relative error. AdamW amplifies the rounding of free elements: compare_free is false after an
 * update. */
static inline double run_compare_tensors(const struct run *r, const char *group, const float *flat,
                                         double limit, bool compare_free)
{
    int count;
    double largest = 0;
    const struct model_parameter *parameters = model_parameters(r->model, &count);
    for (int i = 0; i < count; i++) {
        const struct model_parameter *p = &parameters[i];
        if (!p->trained) {
            continue;
        }
        const struct model_parameter *named = run_named(r, i);
        float *expected = reference_tensor(r->file, group, named);
        double error = run_compare_tensor(r, named, flat + p->first, expected, compare_free);
        if (!(error <= limit)) {
            fprintf(stderr, "%s/%s: relative error %.3g\n", group, p->name, error);
            exit(1);
        }
        largest = fmax(largest, error);
        free(expected);
    }
    return largest;
}

/* Computes the gradients of causal language modeling, and compares the loss with the file. Returns
 * the number of targets. */
static inline double run_clm(struct run *r, const struct batch *batch,
                             const struct model_input *input, struct objective_input *views,
                             int64_t step)
{
    double *sums = views->device_sums;
    CHECK_OK(objective_clm.loss(r->kernels, batch, views, true, sums));
    CHECK_OK(model_backward(r->model, input, r->parameter_gradients, NULL, NULL));
    CHECK_NEAR(sums[OBJECTIVE_LOSS] / sums[OBJECTIVE_COUNT] / r->losses[step], 1, tolerance);
    return sums[OBJECTIVE_COUNT];
}

static inline void run_divide_gradients(struct run *r, double count)
{
    for (int64_t i = 0; i < model_elems(r->model); i++) {
        r->gradients[i] /= (float)count;
    }
}

/* Divides the gradients by `count`, compares their norm with the file and updates the weights. */
static inline void run_update(struct run *r, int64_t step, double count)
{
    double squares = 0;
    CHECK_OK(op_sum_of_squares(r->kernels, &squares, r->gradients, model_elems(r->model)));
    double norm = sqrt(squares) / count;
    /* AdamW amplifies the rounding of gradients that are almost 0. */
    CHECK_NEAR(norm / r->norms[step], 1, step == 0 ? tolerance : 10 * tolerance);
    struct optimizer_slice whole = {.count = model_elems(r->model),
                                    .weights = model_weights(r->model),
                                    .gradients = r->gradients};
    double scale = optimizer_clip_factor(r->optimizer, norm) / count;
    if (optimizer_uses_trust_ratios(r->optimizer)) {
        struct optimizer_squares tensors[RUN_PARAMETERS] = {{0}};
        CHECK_OK(optimizer_update_moments(r->optimizer, &whole, step + 1, scale));
        CHECK_OK(optimizer_add_squares(r->optimizer, tensors));
        optimizer_set_trust_ratios(r->optimizer, tensors);
    }
    CHECK_OK(optimizer_update(r->optimizer, &whole, step + 1, r->learning_rate, scale));
}

/* Ends a step: computes the gradients of causal language modeling, compares those of the first step
 * with the file, and updates the weights. */
static inline void run_end_step(struct run *r, const struct batch *batch,
                                const struct model_input *input, struct objective_input *views,
                                int64_t step)
{
    double count = run_clm(r, batch, input, views, step);
    if (step == 0) {
        run_divide_gradients(r, count);
        printf("gradients: relative error %.2g\n",
               run_compare_tensors(r, "gradients", r->gradients, tolerance, true));
        count = 1;
    }
    run_update(r, step, count);
}

static inline void run_close(struct run *r)
{
    free(r->losses);
    free(r->norms);
    free(r->gradients);
    CHECK_OK(optimizer_destroy(&r->optimizer));
    CHECK_OK(model_destroy(&r->model));
    CHECK_OK(kernels_destroy(&r->kernels));
    CHECK_OK(device_destroy(&r->dev));
    H5Fclose(r->file);
}
