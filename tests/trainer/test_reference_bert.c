/* Tiny BERTs and a RoBERTa against transformers in double precision (scripts/make_reference.py bert): logits of padded
 * batches, which have no padding here, both losses, the gradient of every parameter, ten steps of AdamW and of LAMB with
 * clipping. Errors are as in test_reference.c; the key biases, whose gradient is zero but for noise, are compared
 * absolutely, and left out where AdamW has blown that up. */
#include "tests/trainer/reference_file.h"
#include "trainer/optimizer/optimizer.h"
#include "trainer/views.h"

static const double tolerance = 1e-5;

enum { PARAMETERS_MAX = 64 };

struct reference {
    hid_t file;
    struct model_config config;
    int64_t batch, tokens, steps;
    int32_t *ids, *there, *segments, *labels, *next; /* of all steps, padded */
    double *losses, *norms;
    struct optimizer_settings optimizer;
    double learning_rate;
};

static int32_t *read_batches(hid_t file, const char *name)
{
    int64_t count;
    char path[64];
    snprintf(path, sizeof path, "batch/%s", name);
    return reference_dataset(file, path, H5T_NATIVE_INT32, 4, &count);
}

static void read_reference(const char *name, struct reference *r)
{
    char path[1024];
    const char *root = getenv("BIREME_SOURCE_DIR");
    CHECK(root != NULL);
    snprintf(path, sizeof path, "%s/tests/reference/%s", root, name);
    hid_t f = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    CHECK(f >= 0);
    bool roberta = reference_attribute(f, "roberta") > 0;
    bool tanh_gelu = reference_attribute(f, "gelu_tanh") > 0;
    *r = (struct reference){
        .file = f,
        .config = {.architecture = roberta ? "roberta" : "bert",
                   .layers = (int64_t)reference_attribute(f, "layers"),
                   .width = (int64_t)reference_attribute(f, "width"),
                   .heads = (int64_t)reference_attribute(f, "heads"),
                   .inner = (int64_t)reference_attribute(f, "inner"),
                   .positions = (int64_t)reference_attribute(f, "positions"),
                   .vocabulary = (int64_t)reference_attribute(f, "vocabulary"),
                   .activation = tanh_gelu ? ACTIVATION_GELU_TANH : ACTIVATION_GELU_ERF,
                   .norm_epsilon = 1e-12f,
                   .tied = true,
                   .segments = (int64_t)reference_attribute(f, "segments"),
                   .next_sentence = !roberta},
        .batch = (int64_t)reference_attribute(f, "batch"),
        .tokens = (int64_t)reference_attribute(f, "tokens"),
        .steps = (int64_t)reference_attribute(f, "steps"),
        .optimizer = {reference_attribute(f, "beta1"), reference_attribute(f, "beta2"),
                      reference_attribute(f, "epsilon"), reference_attribute(f, "weight_decay"),
                      reference_attribute(f, "max_grad_norm"),
                      reference_attribute(f, "lamb") > 0 ? OPTIMIZER_LAMB : OPTIMIZER_ADAMW},
        .learning_rate = reference_attribute(f, "learning_rate"),
    };
    int64_t count;
    r->config.output_rows = r->batch * r->tokens;
    r->config.examples = r->batch;
    r->ids = read_batches(f, "input_ids");
    r->there = read_batches(f, "attention_mask");
    r->segments = read_batches(f, "token_type_ids");
    r->labels = read_batches(f, "labels");
    r->next = read_batches(f, "next_sentence_label");
    r->losses = reference_dataset(f, "losses", H5T_NATIVE_DOUBLE, 8, &count);
    r->norms = reference_dataset(f, "norms", H5T_NATIVE_DOUBLE, 8, &count);
}

static void close_reference(struct reference *r)
{
    void *all[] = {r->ids, r->there, r->segments, r->labels, r->next, r->losses, r->norms};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        free(all[i]);
    }
    H5Fclose(r->file);
}

/* ---- comparisons ---- */

static void require(const char *what, double error)
{
    if (!(error <= tolerance)) {
        fprintf(stderr, "%s: relative error %.3g\n", what, error);
        exit(1);
    }
}

/* A flat buffer with a group of the file. */
static double compare(const struct reference *r, const struct model *m, const char *group,
                      const float *flat, bool key_biases)
{
    int count;
    double worst = 0;
    const struct model_parameter *parameters = model_parameters(m, &count);
    for (int i = 0; i < count; i++) {
        const struct model_parameter *p = &parameters[i];
        float *expected = reference_tensor(r->file, group, p);
        const float *got = flat + p->first;
        int64_t elements = p->whole_rows * p->whole_columns;
        if (strstr(p->name, "self.key.bias") != NULL) {
            for (int64_t j = 0; key_biases && j < elements; j++) {
                CHECK_NEAR(got[j], expected[j], tolerance);
            }
        } else {
            double error = reference_error(got, expected, elements);
            require(p->name, error);
            worst = fmax(worst, error);
        }
        free(expected);
    }
    return worst;
}

static void compare_dataset(const struct reference *r, const char *name, const float *got,
                            int64_t count)
{
    int64_t expected_count;
    float *expected = reference_dataset(r->file, name, H5T_NATIVE_FLOAT, 4, &expected_count);
    CHECK_EQUAL(expected_count, count);
    double error = reference_error(got, expected, count);
    require(name, error);
    printf("%s: relative error %.2g\n", name, error);
    free(expected);
}

/* ---- the same ten steps ---- */

struct training {
    struct reference *r;
    struct kernels *kernels;
    struct model *model;
    struct optimizer *optimizer;
    float *gradients, *places[PARAMETERS_MAX];
    float *floats;     /* losses, row scales */
    int32_t *integers; /* best, and the batch's */
    int32_t *ids, *positions, *segments, *masked_rows, *masked_ids, *all_rows;
    int32_t cu_rows[64];
};

/* The tokens that are there, one example after the other. */
static struct batch pack(struct training *t, int64_t step)
{
    const struct reference *r = t->r;
    struct batch b = {
        .sequences = r->batch,
        .tokens = r->tokens,
        .segments = r->batch,
        .inputs = t->ids,
        .positions = t->positions,
        .cu_rows = t->cu_rows,
        .segment_ids = t->segments,
        .masked_rows = t->masked_rows,
        .masked_ids = t->masked_ids,
        .next_sentence = r->next + step * r->batch,
    };
    for (int64_t e = 0; e < r->batch; e++) {
        int64_t at = (step * r->batch + e) * r->tokens;
        for (int64_t i = 0; i < r->tokens && r->there[at + i] != 0; i++) {
            t->ids[b.rows] = r->ids[at + i];
            t->positions[b.rows] = (int32_t)i;
            t->segments[b.rows] = r->segments[at + i];
            t->all_rows[b.rows] = (int32_t)b.rows;
            if (r->labels[at + i] >= 0) {
                t->masked_rows[b.masked] = (int32_t)b.rows;
                t->masked_ids[b.masked++] = r->labels[at + i];
            }
            b.rows++;
        }
        t->cu_rows[e + 1] = (int32_t)b.rows;
    }
    CHECK(b.rows < r->batch * r->tokens);
    return b;
}

static struct model_input input_of(const struct batch *b)
{
    struct model_input input = views_input(b);
    input.training = input.fresh = true;
    return input;
}

/* Of all tokens, not the masked ones alone; and of the labels. */
static void check_logits(struct training *t, const struct batch *b)
{
    int64_t v = t->r->config.vocabulary, n = b->rows;
    struct model_input input = input_of(b);
    struct tensor hidden;
    float *logits = malloc((size_t)(n * v) * sizeof *logits);
    CHECK(logits != NULL);
    input.output_rows = t->all_rows;
    input.outputs = n;
    CHECK_OK(model_forward(t->model, &input, &hidden));
    CHECK_OK(classifier_logits(t->kernels, tensor_view(logits, DTYPE_F32, n, v), hidden,
                               model_head(t->model), model_head_bias(t->model)));
    compare_dataset(t->r, "logits", logits, n * v);
    if (t->r->config.next_sentence) {
        struct model_labels labels = model_labels_of(t->model, &input, NULL);
        CHECK_OK(classifier_logits(t->kernels, tensor_view(logits, DTYPE_F32, b->sequences, 2),
                                   labels.hidden, labels.weight, labels.bias));
        compare_dataset(t->r, "label_logits", logits, 2 * b->sequences);
    }
    free(logits);
}

static void update(struct training *t, int64_t step, double scale)
{
    struct optimizer_slice whole = {.count = model_elements(t->model),
                                    .weights = model_weights(t->model),
                                    .gradients = t->gradients};
    if (optimizer_has_trust(t->optimizer)) {
        struct optimizer_squares tensors[PARAMETERS_MAX] = {{0}};
        CHECK_OK(optimizer_moments(t->optimizer, &whole, step + 1, scale));
        CHECK_OK(optimizer_squares(t->optimizer, tensors));
        optimizer_trust(t->optimizer, tensors);
    }
    CHECK_OK(optimizer_update(t->optimizer, &whole, step + 1, t->r->learning_rate, scale));
}

/* A fresh gradient is set, whatever was there. */
static void forget_gradients(struct training *t)
{
    int count;
    const struct model_parameter *parameters = model_parameters(t->model, &count);
    for (int i = 0; i < count; i++) {
        for (int64_t e = 0; e < parameters[i].rows * parameters[i].columns; e++) {
            t->gradients[parameters[i].first + e] = NAN;
        }
    }
}

static void train_step(struct training *t, int64_t step)
{
    struct batch b = pack(t, step);
    struct model_input input = input_of(&b);
    struct tensor hidden;
    double sums[OBJECTIVE_SUMS] = {0}, squares = 0, count = (double)b.masked;
    if (step == 0) {
        check_logits(t, &b);
    }
    forget_gradients(t);
    CHECK_OK(model_forward(t->model, &input, &hidden));
    struct objective_views views = {
        .losses = t->floats,
        .row_scales = t->floats + t->r->config.output_rows,
        .best = t->integers,
        .example_weight = (double)b.masked / (double)b.sequences,
    };
    views_add_model(&views, t->model, &b, &input, hidden, t->places);
    CHECK_OK(objective_mlm.loss(t->kernels, &b, &views, true, sums));
    CHECK_OK(model_backward(t->model, &input, t->places, NULL, NULL));
    CHECK(sums[OBJECTIVE_COUNT] == count);
    CHECK_NEAR(objective_loss(&objective_mlm, sums) / t->r->losses[step], 1, tolerance);
    CHECK_OK(sum_of_squares(t->kernels, &squares, t->gradients, model_elements(t->model)));
    double norm = sqrt(squares) / count;
    if (step == 0) {
        for (int64_t i = 0; i < model_elements(t->model); i++) {
            t->gradients[i] /= (float)count;
        }
        double error = compare(t->r, t->model, "gradients", t->gradients, true);
        printf("gradients: relative error %.2g\n", error);
        count = 1;
    }
    CHECK_NEAR(norm / t->r->norms[step], 1, tolerance);
    update(t, step, optimizer_clip(t->optimizer, norm) / count);
}

static void make_optimizer(struct training *t)
{
    int count;
    const struct model_parameter *parameters = model_parameters(t->model, &count);
    struct optimizer_range ranges[PARAMETERS_MAX];
    CHECK(count <= PARAMETERS_MAX);
    for (int i = 0; i < count; i++) {
        const struct model_parameter *p = &parameters[i];
        ranges[i] = (struct optimizer_range){p->first, p->rows * p->columns, p->first, p->decay, i};
        t->places[i] = t->gradients + p->first;
        float *weights = reference_tensor(t->r->file, "weights", p);
        memcpy(model_weights(t->model) + p->first, weights,
               (size_t)(p->whole_rows * p->whole_columns) * sizeof *weights);
        free(weights);
    }
    CHECK_OK(optimizer_create(t->kernels, &t->r->optimizer, ranges, count, model_elements(t->model),
                              &t->optimizer));
}

static void make_arrays(struct training *t)
{
    size_t rows = (size_t)t->r->config.output_rows;
    t->gradients = calloc((size_t)model_elements(t->model), sizeof *t->gradients);
    t->floats = calloc(2 * rows, sizeof *t->floats);
    t->integers = calloc(7 * rows, sizeof *t->integers);
    CHECK(t->gradients != NULL && t->floats != NULL && t->integers != NULL);
    int32_t **arrays[] = {&t->ids,         &t->positions,  &t->segments,
                          &t->masked_rows, &t->masked_ids, &t->all_rows};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        *arrays[i] = t->integers + (i + 1) * rows;
    }
}

static void test_reference(const char *name)
{
    struct reference r;
    struct device *dev = NULL;
    read_reference(name, &r);
    int64_t rows = r.config.output_rows;
    struct training t = {.r = &r};
    struct kernels_limits limits = {.rows = rows,
                                    .width = r.config.width,
                                    .inner = r.config.inner,
                                    .heads = (int)r.config.heads,
                                    .head_width = r.config.width / r.config.heads,
                                    .sequence = r.tokens,
                                    .vocabulary = model_vocabulary_rows(&r.config, 1),
                                    .training = true};
    CHECK_OK(device_create(DEVICE_CPU, 0, &dev));
    CHECK_OK(kernels_create(dev, DTYPE_F32, 2, &limits, &t.kernels));
    CHECK_OK(model_create(t.kernels, &r.config, NULL, false, rows, true, &t.model));
    make_arrays(&t);
    make_optimizer(&t);
    printf("%s\n", name);
    for (int64_t step = 0; step < r.steps; step++) {
        train_step(&t, step);
    }
    printf("weights after %lld steps: relative error %.2g\n", (long long)r.steps,
           compare(&r, t.model, "trained", model_weights(t.model), false));
    free(t.gradients);
    free(t.floats);
    free(t.integers);
    CHECK_OK(optimizer_destroy(&t.optimizer));
    CHECK_OK(model_destroy(&t.model));
    CHECK_OK(kernels_destroy(&t.kernels));
    CHECK_OK(device_destroy(&dev));
    close_reference(&r);
}

int main(void)
{
    test_reference("bert.h5");
    test_reference("bert_lamb.h5");
    test_reference("roberta.h5");
    return 0;
}
