/* Compares reward models with TRL's RewardTrainer in double precision
 * (reference_reward.py): loss, metrics and the gradient of every parameter of a tiny GPT-2
 * and Llama. The two responses of a pair are separate sequences in one micro-batch, or share one
 * prompt in several micro-batches. Errors are relative, in the Frobenius norm. Gradients of
 * parameters that change both rewards of a pair equally are zero except for rounding noise; they
 * are compared by absolute error. */
#include "base/number.h"
#include "tests/trainer/reference_file.h"
#include "trainer/objective/task_head.h"
#include "trainer/train/step/objective_input.h"

static const double tolerance = 1e-5;

enum { PAIRS = 8, ROWS = 256, PARAMETERS_MAX = 40 };

struct reward_test {
    hid_t group;
    struct model_config config;
    struct device *dev;
    struct kernels *kernels;
    struct model *model;
    struct task_head task_head;
    float *gradients, *parameter_gradients[PARAMETERS_MAX];
    int32_t *lengths, *ids; /* [PAIRS, 3]: prompt, chosen, rejected */
    bool shared_prefix;     /* the prompt is stored once before both responses */
};

/* A micro-batch: pairs [first, first + count). */
struct micro_batch {
    struct batch batch;
    int32_t inputs[ROWS], positions[ROWS], cu_rows[RESPONSES * PAIRS + 1];
    int32_t prefix_offsets[RESPONSES * PAIRS], last[RESPONSES * PAIRS], example_rows[PAIRS + 1];
    int64_t samples[PAIRS];
};

static void end_segment(struct micro_batch *m)
{
    struct batch *b = &m->batch;
    int64_t rows = b->rows - m->cu_rows[b->segments];
    b->longest = number_max(b->longest, rows);
    m->cu_rows[++b->segments] = (int32_t)b->rows;
}

/* Adds a prompt and a response without the first `shared` tokens. */
static void add_response(struct micro_batch *m, const int32_t *prompt, int32_t prompt_tokens,
                         const int32_t *response, int32_t response_tokens, int32_t shared)
{
    struct batch *b = &m->batch;
    CHECK(b->rows + prompt_tokens + response_tokens <= ROWS);
    for (int32_t i = shared; i < prompt_tokens + response_tokens; i++, b->rows++) {
        m->inputs[b->rows] = i < prompt_tokens ? prompt[i] : response[i - prompt_tokens];
        m->positions[b->rows] = i;
    }
    m->last[b->outputs.count++] = (int32_t)b->rows - 1;
}

static void make_micro_batch(const struct reward_test *t, int first, int count,
                             struct micro_batch *m)
{
    *m = (struct micro_batch){
        .batch = {.sequences = count,
                  .inputs = m->inputs,
                  .positions = m->positions,
                  .cu_rows = m->cu_rows,
                  .samples = m->samples,
                  .outputs = {.rows = m->last, .example_rows = m->example_rows},
                  .kind = BATCH_PREFERENCE_PAIRS,
                  .preference_pairs = {t->shared_prefix ? m->prefix_offsets : NULL, NULL}}};
    const int32_t *ids = t->ids;
    for (int i = 0; i < first + count; i++) {
        const int32_t *lengths = t->lengths + 3 * i;
        int at = i - first;
        if (at >= 0) {
            int32_t shared = t->shared_prefix ? lengths[0] - 1 : 0;
            add_response(m, ids, lengths[0], ids + lengths[0], lengths[1], 0);
            m->prefix_offsets[RESPONSES * at] = shared;
            m->prefix_offsets[RESPONSES * at + 1] = lengths[0] + lengths[1];
            if (!t->shared_prefix) {
                end_segment(m);
            }
            add_response(m, ids, lengths[0], ids + lengths[0] + lengths[1], lengths[2], shared);
            end_segment(m);
            m->example_rows[at + 1] = (int32_t)m->batch.outputs.count;
        }
        ids += lengths[0] + lengths[1] + lengths[2];
    }
}

static void run_micro_batch(struct reward_test *t, double center, struct micro_batch *m,
                            bool first_micro_batch, double sums[OBJECTIVE_SUMS])
{
    const struct batch *b = &m->batch;
    const struct preference_settings settings = {.center_rewards = center};
    struct model_input input = objective_input_model(b);
    input.longest = b->longest;
    input.training = true;
    input.first_micro_batch = first_micro_batch;
    struct tensor hidden;
    CHECK_OK(model_forward(t->model, &input, &hidden));
    double micro_batch_sums[OBJECTIVE_SUMS] = {0};
    struct objective_input views = {
        .task_head = &t->task_head, .preference = &settings, .device_sums = micro_batch_sums};
    objective_input_fill(&views, t->model, b, &input, hidden, t->parameter_gradients);
    CHECK_OK(objective_reward.loss(t->kernels, b, &views, true, sums));
    for (int i = 0; i < OBJECTIVE_SUMS; i++) {
        sums[i] += micro_batch_sums[i];
    }
    CHECK_OK(model_backward(t->model, &input, t->parameter_gradients, NULL, NULL));
}

static void compare_results(struct reward_test *t, hid_t group, const double sums[OBJECTIVE_SUMS])
{
    int count;
    double largest = 0, loss = objective_loss(&objective_reward, sums);
    const struct model_parameter *parameters = model_parameters(t->model, &count);
    CHECK_EQUAL(sums[OBJECTIVE_COUNT], PAIRS);
    CHECK_NEAR(loss / reference_attribute(group, "loss"), 1, tolerance);
    for (const struct objective_metric *m = objective_reward.metrics; m->name != NULL; m++) {
        CHECK_NEAR(objective_mean(sums, m), reference_attribute(group, m->name), tolerance);
    }
    for (int i = 0; i < count; i++) {
        const struct model_parameter *p = &parameters[i];
        int64_t elements = p->whole_rows * p->whole_columns;
        float *expected = reference_tensor(group, "gradients", p),
              *actual = t->gradients + p->first;
        for (int64_t j = 0; j < elements; j++) {
            actual[j] /= PAIRS;
        }
        double size = 0, difference = 0;
        for (int64_t j = 0; j < elements; j++) {
            size = fmax(size, fabs((double)expected[j]));
            difference = check_max(difference, fabs((double)actual[j] - (double)expected[j]));
        }
        double error = size > 1e-9 ? reference_error(actual, expected, elements) : difference;
        if (!(error <= tolerance)) {
            fprintf(stderr, "%s: relative error %.3g\n", p->name, error);
            exit(1);
        }
        largest = error > largest ? error : largest;
        free(expected);
    }
    printf("loss %.7f, gradients: relative error %.2g\n", loss, largest);
}

static void test_case(struct reward_test *t, int number, int micro_pairs)
{
    char name[32];
    struct micro_batch micro_batch;
    double sums[OBJECTIVE_SUMS] = {0};
    snprintf(name, sizeof name, "case_%d", number);
    hid_t group = H5Gopen2(t->group, name, H5P_DEFAULT);
    CHECK(group >= 0);
    for (int64_t i = 0; i < model_elems(t->model); i++) {
        t->gradients[i] = NAN; /* the first micro-batch must overwrite this */
    }
    for (int i = 0; i < PAIRS; i += micro_pairs) {
        make_micro_batch(t, i, i + micro_pairs < PAIRS ? micro_pairs : PAIRS - i, &micro_batch);
        run_micro_batch(t, reference_attribute(group, "center"), &micro_batch, i == 0, sums);
    }
    compare_results(t, group, sums);
    H5Gclose(group);
}

static void make_model(struct reward_test *t)
{
    struct kernels_limits limits = {.rows = ROWS,
                                    .width = t->config.width,
                                    .inner = model_inner_outputs(&t->config),
                                    .heads = (int)t->config.heads,
                                    .head_width = model_head_width(&t->config),
                                    .sequence = RESPONSES * t->config.positions,
                                    .vocabulary = model_vocabulary_rows(&t->config, 1),
                                    .training = true};
    int count;
    CHECK_OK(device_create(DEVICE_CPU, 0, &t->dev));
    CHECK_OK(kernels_create(t->dev, DTYPE_F32, 2, &limits, &t->kernels));
    CHECK_OK(model_create(t->kernels, &t->config, NULL, false, ROWS, true, &t->model));
    CHECK_OK(task_head_create(t->kernels, t->config.output_rows, t->config.labels, &t->task_head));
    const struct model_parameter *p = model_parameters(t->model, &count);
    t->gradients = malloc((size_t)model_elems(t->model) * sizeof *t->gradients);
    CHECK(t->gradients != NULL && count <= PARAMETERS_MAX);
    for (int i = 0; i < count; i++) {
        float *weights = reference_tensor(t->group, "weights", &p[i]);
        t->parameter_gradients[i] = t->gradients + p[i].first;
        memcpy(model_weights(t->model) + p[i].first, weights,
               (size_t)(p[i].whole_rows * p[i].whole_columns) * sizeof *weights);
        free(weights);
    }
}

static void test_architecture(hid_t file, const char *architecture)
{
    int64_t count;
    struct reward_test t = {.group = H5Gopen2(file, architecture, H5P_DEFAULT)};
    bool rotary = strcmp(architecture, "gpt2") != 0;
    CHECK(t.group >= 0);
    t.config = reference_config(file, architecture);
    t.config.kv_heads = rotary ? 1 : 0;
    t.config.head_width = strcmp(architecture, "qwen3") == 0 ? 6 : 0;
    t.config.head = MODEL_HEAD_SEQUENCE;
    t.config.labels = 1;
    t.config.output_rows = RESPONSES * PAIRS;
    t.lengths = reference_dataset(t.group, "lengths", H5T_NATIVE_INT32, 4, &count);
    CHECK_EQUAL(count, 3 * PAIRS);
    t.ids = reference_dataset(t.group, "ids", H5T_NATIVE_INT32, 4, &count);
    make_model(&t);
    for (int i = 0; i < 4; i++) {
        t.shared_prefix = i % 2 > 0;
        printf("%s, %s: ", architecture, t.shared_prefix ? "shared prompt" : "separate prompts");
        test_case(&t, i / 2, t.shared_prefix ? 3 : PAIRS);
    }
    task_head_destroy(&t.task_head);
    CHECK_OK(model_destroy(&t.model));
    CHECK_OK(kernels_destroy(&t.kernels));
    CHECK_OK(device_destroy(&t.dev));
    free(t.gradients);
    free(t.lengths);
    free(t.ids);
    H5Gclose(t.group);
}

int main(void)
{
    hid_t file = reference_open("reward.h5");
    test_architecture(file, "gpt2");
    test_architecture(file, "llama");
    test_architecture(file, "qwen3");
    H5Fclose(file);
    return 0;
}
