/* Compares every preference loss of a tiny GPT-2 and a tiny Qwen3 with TRL's DPOTrainer
 * (make_reference.py dpo): loss, metrics and the gradient of every parameter. Also tests
 * gradient accumulation and the pass that computes the reference log-probabilities. The two
 * responses of a pair are separate sequences, or share one prompt.
 *
 * In exact arithmetic the gradient of the key biases is zero; it is compared by absolute error. */
#include <math.h>

#include "base/memory.h"
#include "base/number.h"
#include "tests/trainer/reference_file.h"
#include "trainer/train/step/objective_input.h"

static const double tolerance = 1e-5;

enum { PAIRS = 8, ROWS = 256, CASE_BYTES = 64 };

struct setup {
    hid_t file;
    struct model_config config;
    struct device *dev;
    struct kernels *kernels;
    struct model *model;
    int64_t elements;
    float *gradients, *parameter_gradients[64];
    float losses[ROWS], entropies[ROWS], mean_logits[ROWS];
    float scales[ROWS];
    int32_t argmax[ROWS];
    double pair_values[3 * PAIRS], sums[OBJECTIVE_SUMS];
    struct tensor selected_rows, selected_gradient;
    int32_t *lengths, *ids; /* [PAIRS, 3]: prompt, chosen, rejected */
    double *reference;      /* [PAIRS, 2] */
    bool shared_prefix;     /* the prompt is stored once before both responses */
};

/* A micro-batch: pairs [first, first + count). */
struct micro_batch {
    struct batch batch;
    int32_t inputs[ROWS], targets[ROWS], positions[ROWS], cu_rows[RESPONSES * PAIRS + 1];
    int32_t prefix_offsets[RESPONSES * PAIRS];
    int32_t first_targets[RESPONSES * PAIRS + 1], target_rows[ROWS], target_ids[ROWS];
    int64_t samples[PAIRS];
};

/* Adds a prompt and a response without the first `shared` tokens. */
static void add_sequence(struct micro_batch *m, const int32_t *prompt, int32_t prompt_tokens,
                         const int32_t *response, int32_t response_tokens, int32_t shared)
{
    struct batch *b = &m->batch;
    int32_t tokens = prompt_tokens + response_tokens;
    CHECK(b->rows + tokens <= ROWS);
    for (int32_t i = shared; i < tokens; i++, b->rows++) {
        bool counted = i + 1 >= prompt_tokens && i + 1 < tokens;
        m->inputs[b->rows] = i < prompt_tokens ? prompt[i] : response[i - prompt_tokens];
        m->positions[b->rows] = i;
        m->targets[b->rows] = counted ? response[i + 1 - prompt_tokens] : BATCH_IGNORED;
    }
}

static void end_segment(struct micro_batch *m)
{
    struct batch *b = &m->batch;
    int64_t rows = b->rows - m->cu_rows[b->segments];
    b->longest = number_max(b->longest, rows);
    m->cu_rows[++b->segments] = (int32_t)b->rows;
}

static void make_micro_batch(const struct setup *s, int first, int count, struct micro_batch *m)
{
    *m = (struct micro_batch){
        .batch = {.sequences = count,
                  .tokens = 24,
                  .inputs = m->inputs,
                  .targets = m->targets,
                  .positions = m->positions,
                  .cu_rows = m->cu_rows,
                  .samples = m->samples,
                  .kind = BATCH_PREFERENCE_PAIRS,
                  .preference_pairs = {s->shared_prefix ? m->prefix_offsets : NULL,
                                       s->reference + RESPONSES * first, m->first_targets,
                                       m->target_rows, m->target_ids}}};
    const int32_t *ids = s->ids;
    for (int i = 0; i < first + count; i++) {
        const int32_t *lengths = s->lengths + 3 * i;
        if (i >= first) {
            m->samples[i - first] = i;
            int32_t shared = s->shared_prefix ? lengths[0] - 1 : 0;
            add_sequence(m, ids, lengths[0], ids + lengths[0], lengths[1], 0);
            m->prefix_offsets[RESPONSES * (i - first)] = shared;
            m->prefix_offsets[RESPONSES * (i - first) + 1] = lengths[0] + lengths[1];
            if (!s->shared_prefix) {
                end_segment(m);
            }
            add_sequence(m, ids, lengths[0], ids + lengths[0] + lengths[1], lengths[2], shared);
            end_segment(m);
        }
        ids += lengths[0] + lengths[1] + lengths[2];
    }
    batch_list_targets(&m->batch, m->first_targets, m->target_rows, m->target_ids);
}

static void make_setup(struct setup *s, const char *file, const char *architecture)
{
    int64_t count;
    hid_t f = s->file = reference_open(file);
    bool qwen3 = strcmp(architecture, "qwen3") == 0;
    s->config = reference_config(f, architecture);
    s->config.kv_heads = qwen3 ? 1 : 0;
    s->config.head_width = qwen3 ? 6 : 0;
    struct kernels_limits limits = {.rows = ROWS,
                                    .width = s->config.width,
                                    .inner = model_inner_outputs(&s->config),
                                    .heads = (int)s->config.heads,
                                    .head_width = model_head_width(&s->config),
                                    .sequence = RESPONSES * s->config.positions,
                                    .vocabulary = model_vocabulary_rows(&s->config, 1),
                                    .training = true};
    CHECK_OK(device_create(DEVICE_CPU, 0, &s->dev));
    CHECK_OK(kernels_create(s->dev, DTYPE_F32, 1, &limits, &s->kernels));
    CHECK_OK(model_create(s->kernels, &s->config, NULL, false, ROWS, true, &s->model));
    s->elements = model_elems(s->model);
    s->gradients = calloc((size_t)s->elements, sizeof *s->gradients);
    size_t selected_elements = (size_t)(ROWS * s->config.width);
    s->selected_rows = tensor_view(calloc(selected_elements, 4), DTYPE_F32, ROWS, s->config.width);
    s->selected_gradient =
        tensor_view(calloc(selected_elements, 4), DTYPE_F32, ROWS, s->config.width);
    s->lengths = reference_dataset(f, "lengths", H5T_NATIVE_INT32, 4, &count);
    CHECK_EQUAL(count, 3 * PAIRS);
    s->ids = reference_dataset(f, "ids", H5T_NATIVE_INT32, 4, &count);
    s->reference = reference_dataset(f, "reference", H5T_NATIVE_DOUBLE, 8, &count);
    CHECK(s->gradients && s->selected_rows.data && s->selected_gradient.data);
    int parameters;
    const struct model_parameter *p = model_parameters(s->model, &parameters);
    for (int i = 0; i < parameters; i++) {
        float *weights = reference_tensor(f, "weights", &p[i]);
        s->parameter_gradients[i] = s->gradients + p[i].first;
        memcpy(model_weights(s->model) + p[i].first, weights,
               (size_t)(p[i].whole_rows * p[i].columns) * sizeof *weights);
        free(weights);
    }
}

static void free_setup(struct setup *s)
{
    free(s->gradients);
    free(s->selected_rows.data);
    free(s->selected_gradient.data);
    free(s->lengths);
    free(s->ids);
    free(s->reference);
    CHECK_OK(model_destroy(&s->model));
    CHECK_OK(kernels_destroy(&s->kernels));
    CHECK_OK(device_destroy(&s->dev));
    H5Fclose(s->file);
}

static void run_micro_batch(struct setup *s, const struct objective *o,
                            const struct preference_settings *p, struct micro_batch *m,
                            bool first_micro_batch, double *logps, double sums[OBJECTIVE_SUMS])
{
    struct tensor hidden;
    const struct batch *b = &m->batch;
    struct model_input input = objective_input_model(b);
    input.training = true;
    input.first_micro_batch = first_micro_batch;
    CHECK_OK(model_forward(s->model, &input, &hidden));
    struct objective_input views = {
        .scratch =
            {
                .losses = s->losses,
                .entropies = s->entropies,
                .mean_logits = s->mean_logits,
                .argmax = s->argmax,
                .selected_rows = s->selected_rows,
                .pair_values = s->pair_values,
                .row_scales = s->scales,
                .selected_gradient = s->selected_gradient,
            },
        .preference = p,
        .device_sums = s->sums,
        .reference_logps = logps,
    };
    bool gradient = logps == NULL;
    objective_input_fill(&views, s->model, b, &input, hidden,
                         gradient ? s->parameter_gradients : NULL);
    memset(s->sums, 0, sizeof s->sums);
    CHECK_OK(o->loss(s->kernels, b, &views, gradient, sums));
    for (int i = 0; i < OBJECTIVE_SUMS; i++) {
        sums[i] += s->sums[i];
    }
    if (gradient) {
        CHECK_OK(model_backward(s->model, &input, s->parameter_gradients, NULL, NULL));
    }
}

/* ---- comparison with TRL ---- */

static void read_case(hid_t group, struct preference_settings *out, char text[CASE_BYTES + 1])
{
    char name[CASE_BYTES + 1] = "";
    int64_t count;
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, CASE_BYTES);
    char *names = reference_dataset(group, "losses", type, CASE_BYTES, &count);
    double *weights = reference_dataset(group, "loss_weights", H5T_NATIVE_DOUBLE, 8, &count);
    H5Tclose(type);
    memcpy(name, names, CASE_BYTES);
    memcpy(text, name, sizeof name);
    *out = (struct preference_settings){
        .beta = reference_attribute(group, "beta"),
        .label_smoothing = reference_attribute(group, "label_smoothing"),
        .discopop_tau = reference_attribute(group, "discopop_tau"),
    };
    for (char *word = name, *next; word != NULL; word = next) {
        next = strchr(word, ' ');
        if (next != NULL) {
            *next++ = '\0';
        }
        enum preference_loss loss = preference_find(word);
        CHECK(loss != PREFERENCE_LOSSES && out->terms < count);
        out->term[out->terms] = (struct preference_term){loss, weights[out->terms]};
        out->terms++;
    }
    free(names);
    free(weights);
}

static double relative_error(const float *a, const float *b, int64_t count, double scale)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += (a[i] * scale - b[i]) * (a[i] * scale - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(difference / size);
}

/* Returns the largest relative error of the gradient of a tensor. */
static double compare_gradients(const struct setup *s, hid_t group)
{
    int count;
    double largest = 0;
    const struct model_parameter *parameters = model_parameters(s->model, &count);
    for (int i = 0; i < count; i++) {
        const struct model_parameter *p = &parameters[i];
        float *expected = reference_tensor(group, "gradients", p);
        const float *actual = s->gradients + p->first;
        int64_t c = s->config.width;
        bool qkv_bias = strstr(p->name, "c_attn.bias") != NULL;
        double scale = 1.0 / PAIRS;
        double error = qkv_bias
                           ? check_max(relative_error(actual, expected, c, scale),
                                       relative_error(actual + 2 * c, expected + 2 * c, c, scale))
                           : relative_error(actual, expected, p->whole_rows * p->columns, scale);
        for (int64_t j = c; qkv_bias && j < 2 * c; j++) {
            CHECK_NEAR(actual[j] * scale, expected[j], tolerance);
        }
        if (!(error <= tolerance)) {
            fprintf(stderr, "%s: relative error %.3g\n", p->name, error);
            exit(1);
        }
        largest = fmax(largest, error);
        free(expected);
    }
    return largest;
}

static void compare_metrics(hid_t group, const double sums[OBJECTIVE_SUMS])
{
    for (const struct objective_metric *m = objective_dpo.metrics; m->name != NULL; m++) {
        char name[64];
        snprintf(name, sizeof name, "%s", m->name);
        if (strchr(name, '/') != NULL) {
            *strchr(name, '/') = '.';
        }
        double expected = reference_attribute(group, name), actual = objective_mean(sums, m);
        if (!(fabs(actual - expected) <= tolerance * fmax(1, fabs(expected)))) {
            fprintf(stderr, "%s: %.9g, expected %.9g\n", m->name, actual, expected);
            exit(1);
        }
    }
}

static void test_case(struct setup *s, int number)
{
    char name[32], text[CASE_BYTES + 1];
    struct preference_settings settings;
    struct micro_batch micro_batch;
    double sums[OBJECTIVE_SUMS] = {0};
    snprintf(name, sizeof name, "case_%d", number);
    hid_t group = H5Gopen2(s->file, name, H5P_DEFAULT);
    CHECK(group >= 0);
    read_case(group, &settings, text);
    for (int64_t i = 0; i < s->elements; i++) {
        s->gradients[i] = NAN; /* the first micro-batch must overwrite this */
    }
    make_micro_batch(s, 0, PAIRS, &micro_batch);
    run_micro_batch(s, &objective_dpo, &settings, &micro_batch, true, NULL, sums);
    double loss = sums[OBJECTIVE_LOSS] / sums[OBJECTIVE_COUNT];
    CHECK_NEAR(loss / reference_attribute(group, "loss"), 1, tolerance);
    compare_metrics(group, sums);
    printf("%-24s loss %.7f, gradients: relative error %.2g\n", text, loss,
           compare_gradients(s, group));
    H5Gclose(group);
}

/* ---- first step, accumulation ---- */

/* Losses of the first step, where policy and reference are equal, computed by the model in f32. */
static void test_first_step(struct setup *s)
{
    const struct {
        enum preference_loss loss;
        double expected;
    } cases[] = {{PREFERENCE_SIGMOID, log(2)},
                 {PREFERENCE_HINGE, 1},
                 {PREFERENCE_IPO, 25},
                 {PREFERENCE_NCA_PAIR, 2 * log(2)},
                 {PREFERENCE_BCO_PAIR, 2 * log(2)},
                 {PREFERENCE_APO_ZERO, 1},
                 {PREFERENCE_APO_DOWN, 1},
                 {PREFERENCE_SPPO_HARD, 50},
                 {PREFERENCE_ROBUST, log(2)},
                 {PREFERENCE_AOT, log(2)},
                 {PREFERENCE_AOT_UNPAIRED, log(2)},
                 {PREFERENCE_SIGMOID_NORM, log(2)}};
    struct micro_batch micro_batch;
    double logps[RESPONSES * PAIRS], reference_sums[OBJECTIVE_SUMS] = {0};
    double *file_reference = s->reference;
    for (int i = 0; i < PAIRS; i += 3) { /* other micro-batches than in the loss */
        make_micro_batch(s, i, i + 3 < PAIRS ? 3 : PAIRS - i, &micro_batch);
        run_micro_batch(s, &objective_dpo_reference, NULL, &micro_batch, false, logps,
                        reference_sums);
    }
    CHECK(reference_sums[OBJECTIVE_COUNT] == PAIRS);
    s->reference = logps;
    make_micro_batch(s, 0, PAIRS, &micro_batch);
    for (int i = 0; i < COUNT(cases); i++) {
        double sums[OBJECTIVE_SUMS] = {0};
        struct preference_settings settings = {
            .terms = 1, .term = {{cases[i].loss, 1}}, .beta = 0.1};
        run_micro_batch(s, &objective_dpo, &settings, &micro_batch, true, NULL, sums);
        double loss = sums[OBJECTIVE_LOSS] / PAIRS;
        printf("loss %d: first loss %.9f\n", (int)cases[i].loss, loss);
        CHECK(fabs(loss - cases[i].expected) <= 1e-6 * cases[i].expected);
    }
    s->reference = file_reference;
}

/* The gradient of a batch is the sum of the gradients of its parts. */
static void test_accumulation(struct setup *s)
{
    struct preference_settings settings = {
        .terms = 2, .term = {{PREFERENCE_SIGMOID, 1}, {PREFERENCE_IPO, 0.5}}, .beta = 0.2};
    struct micro_batch micro_batch;
    double whole[OBJECTIVE_SUMS] = {0}, parts[OBJECTIVE_SUMS] = {0};
    float *whole_gradient = malloc((size_t)s->elements * sizeof *whole_gradient);
    CHECK(whole_gradient != NULL);
    /* Clears the elements between the parameters too: all elements are compared. */
    memset(s->gradients, 0, (size_t)s->elements * sizeof *s->gradients);
    make_micro_batch(s, 0, PAIRS, &micro_batch);
    run_micro_batch(s, &objective_dpo, &settings, &micro_batch, true, NULL, whole);
    memcpy(whole_gradient, s->gradients, (size_t)s->elements * sizeof *whole_gradient);
    for (int i = 0; i < PAIRS; i++) {
        make_micro_batch(s, i, 1, &micro_batch);
        run_micro_batch(s, &objective_dpo, &settings, &micro_batch, i == 0, NULL, parts);
    }
    for (int i = 0; i < OBJECTIVE_SUMS; i++) {
        CHECK(fabs(whole[i] - parts[i]) <= tolerance * fmax(1, fabs(whole[i])));
    }
    double error = relative_error(s->gradients, whole_gradient, s->elements, 1);
    printf("8 micro-batches of 1 pair and 1 of 8: relative error %.2g\n", error);
    CHECK(error <= tolerance);
    free(whole_gradient);
}

/* Both passes refuse batches without the arrays that they read. */
static void test_checks(struct setup *s)
{
    const struct objective *objectives[] = {&objective_dpo, &objective_dpo_reference};
    const struct preference_settings settings = {
        .terms = 1, .term = {{PREFERENCE_AOT, 1}}, .beta = 0.1};
    struct preference_gradient gradients[PAIRS] = {{0}};
    double logps[RESPONSES * PAIRS], sums[OBJECTIVE_SUMS] = {0};
    struct objective_input in = {.preference = &settings, .reference_logps = logps};
    struct micro_batch m;
    in.whole_batch.gradients = gradients;
    in.whole_batch.size = PAIRS;
    for (int i = 0; i < COUNT(objectives); i++) {
        make_micro_batch(s, 0, PAIRS, &m);
        m.samples[PAIRS - 1]++;
        CHECK_FAILS(objectives[i]->loss(s->kernels, &m.batch, &in, false, sums), STATUS_INTERNAL,
                    "consecutive");
        m.batch.samples = NULL;
        CHECK_FAILS(objectives[i]->loss(s->kernels, &m.batch, &in, false, sums), STATUS_INTERNAL,
                    "consecutive");
        m.batch.preference_pairs.first_targets = NULL;
        CHECK_FAILS(objectives[i]->loss(s->kernels, &m.batch, &in, false, sums), STATUS_INTERNAL,
                    "lists of their targets");
    }
}

static void test_architecture(const char *file, const char *architecture)
{
    struct setup s = {0};
    make_setup(&s, file, architecture);
    int cases = (int)reference_attribute(s.file, "cases");
    CHECK(cases >= PREFERENCE_LOSSES);
    for (int i = 0; i < 2; i++) {
        s.shared_prefix = i > 0;
        printf("%s, %s\n", architecture, s.shared_prefix ? "shared prompt" : "separate prompts");
        for (int j = 0; j < cases; j++) {
            test_case(&s, j);
        }
        test_first_step(&s);
        test_accumulation(&s);
        test_checks(&s);
    }
    free_setup(&s);
}

int main(void)
{
    test_architecture("dpo.h5", "gpt2");
    test_architecture("dpo_qwen3.h5", "qwen3");
    return 0;
}
