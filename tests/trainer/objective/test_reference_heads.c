/* Compares the fine-tuning heads with transformers in double precision
 * (reference_heads.py): outputs, loss, and the gradient of every parameter, for tiny models
 * of each architecture. Models with adapters and a frozen backbone are compared with peft. Errors
 * are relative, in the Frobenius norm. Gradients that are zero except for rounding noise are
 * compared by absolute error: the gradients of the key biases, and of parameters that change all
 * scores of a softmax equally. */
#include "base/memory.h"
#include "tests/trainer/reference_file.h"
#include "trainer/model/architecture.h"
#include "trainer/objective/contrastive_batch.h"
#include "trainer/objective/task_head.h"
#include "trainer/train/step/objective_input.h"

static const double tolerance = 1e-5;

enum { PARAMETERS_MAX = 40, NAMES_BYTES = 4096 };

struct kind {
    const char *name;
    enum model_head_kind task;
    const struct objective *objective;
};

static const struct kind kinds[] = {
    {"texts", MODEL_HEAD_SEQUENCE, &objective_classify},
    {"numbers", MODEL_HEAD_SEQUENCE, &objective_regress},
    {"tokens", MODEL_HEAD_TOKEN, &objective_classify_tokens},
    {"spans", MODEL_HEAD_QA, &objective_extractive_qa},
    {"choices", MODEL_HEAD_MULTIPLE_CHOICE, &objective_multiple_choice},
    {"vectors", MODEL_HEAD_NONE, &objective_embed},
};

struct head_case {
    hid_t group;
    struct model_config config;
    const struct kind *kind;
    struct kernels *kernels;
    struct model *model;
    struct task_head task_head;
    struct contrastive_batch pairs; /* vectors */
    float *gradients, *parameter_gradients[PARAMETERS_MAX];
    int32_t *ids, *segments, *cu_rows, *rows, *example_rows, *positions, *labels;
    float *numbers;
    struct batch batch;
    int64_t samples[16];
    int consumed;                       /* examples that the sink has received */
    const float *outputs;               /* expected outputs of the next example */
    double squared_error, squared_size; /* of the outputs so far */
};

static int32_t *read_integers(const struct head_case *t, const char *name, int64_t *count)
{
    return reference_dataset(t->group, name, H5T_NATIVE_INT32, sizeof(int32_t), count);
}

/* Settings of the families in scripts/reference/reference_heads.py. */
static const struct model_config decoders[] = {
    {.architecture = "llama"},
    {.architecture = "qwen2"},
    {.architecture = "mistral", .window = 4},
    {.architecture = "qwen3", .head_width = 6},
    {.architecture = "smollm3", .no_rope_interval = 2},
    {.architecture = "phi3", .head_width = 6, .rotary_width = 4, .window = 4},
    {.architecture = "stablelm", .rotary_width = 2},
    {.architecture = "olmo2"},
    {.architecture = "gemma3_text",
     .head_width = 6,
     .window = 4,
     .layer_types = {true, {0x5}}, /* layers 0 and 2 have the window */
     .rope_local_theta = 50,
     .attention_scale = 0.44721359549995793}, /* 1 / sqrt(5) */
    {.architecture = "openai-gpt"},
    {.architecture = "olmo"},
};

/* Encoders with other settings than BERT. */
static const struct model_config encoders[] = {
    {.architecture = "albert", .embedding_width = 6},
    {.architecture = "modernbert",
     .window = 4,
     .layer_types = {true, {0xa}}, /* layers 1 and 3 have the window */
     .rope_local_theta = 50},
};

static struct model_config find_settings(const char *architecture)
{
    for (int i = 0; i < COUNT(decoders); i++) {
        if (strcmp(decoders[i].architecture, architecture) == 0) {
            return decoders[i];
        }
    }
    for (int i = 0; i < COUNT(encoders); i++) {
        if (strcmp(encoders[i].architecture, architecture) == 0) {
            return encoders[i];
        }
    }
    return (struct model_config){.architecture = architecture};
}

enum { LAYERS, WIDTH, HEADS, KV_HEADS, INNER, POSITIONS, VOCABULARY, LABELS, LONGEST, SIZES };

static void read_config(struct head_case *t, const char *architecture)
{
    double sizes[SIZES];
    hid_t a = H5Aopen(t->group, "sizes", H5P_DEFAULT);
    CHECK(a >= 0 && H5Aread(a, H5T_NATIVE_DOUBLE, sizes) >= 0);
    H5Aclose(a);
    bool encoder = !model_architecture(architecture)->attention.causal;
    struct model_config *c = &t->config;
    *c = find_settings(architecture);
    c->layers = (int64_t)sizes[LAYERS];
    c->width = (int64_t)sizes[WIDTH];
    c->heads = (int64_t)sizes[HEADS];
    c->kv_heads = (int64_t)sizes[KV_HEADS];
    c->inner = (int64_t)sizes[INNER];
    c->positions = (int64_t)sizes[POSITIONS];
    c->vocabulary = (int64_t)sizes[VOCABULARY];
    c->activation = encoder ? ACTIVATION_GELU_ERF : ACTIVATION_GELU_TANH;
    c->norm_epsilon = encoder ? 1e-12f : 1e-5f;
    c->initializer_range = 0.02f;
    c->tied = true;
    c->rope_theta = 10000;
    bool has_two_types = strcmp(architecture, "albert") == 0 || strcmp(architecture, "bert") == 0 ||
                         strcmp(architecture, "megatron-bert") == 0;
    c->token_types = has_two_types ? 2 : strcmp(architecture, "roberta") == 0 ? 1 : 0;
    c->head = t->kind->task;
    c->labels = (int64_t)sizes[LABELS];
    t->batch.longest = t->batch.tokens = (int64_t)sizes[LONGEST];
}

static void read_batch(struct head_case *t)
{
    int64_t rows, segments, examples, answers;
    struct batch *b = &t->batch;
    t->ids = read_integers(t, "ids", &rows);
    t->segments = read_integers(t, "segments", &rows);
    t->cu_rows = read_integers(t, "cu_rows", &segments);
    t->rows = read_integers(t, "rows", &b->outputs.count);
    t->example_rows = read_integers(t, "example_rows", &examples);
    if (t->kind->task != MODEL_HEAD_NONE) {
        t->labels = read_integers(t, "answers", &answers);
        t->numbers = reference_dataset(t->group, "answers", H5T_NATIVE_FLOAT, 4, &answers);
    }
    t->positions = calloc((size_t)rows, sizeof *t->positions);
    CHECK(t->positions != NULL);
    for (int64_t s = 0; s + 1 < segments; s++) {
        for (int32_t i = t->cu_rows[s]; i < t->cu_rows[s + 1]; i++) {
            t->positions[i] = i - t->cu_rows[s];
        }
    }
    b->rows = rows;
    b->segments = segments - 1;
    b->sequences = examples - 1;
    b->inputs = t->ids;
    b->cu_rows = t->cu_rows;
    b->outputs.rows = t->rows;
    b->outputs.example_rows = t->example_rows;
    bool numbers = t->kind->objective == &objective_regress;
    b->kind = BATCH_TASK;
    b->task.float_labels = numbers ? t->numbers : NULL;
    b->task.labels = numbers ? NULL : t->labels;
    for (int64_t i = 0; i < b->sequences; i++) {
        t->samples[i] = 100 + i;
    }
    b->samples = t->samples;
}

/* ---- weights and gradients: contiguous in the file, in the order of the names ---- */

static const struct model_parameter *find_parameter(const struct head_case *t, const char *name,
                                                    size_t length)
{
    int count;
    const struct model_parameter *p = model_parameters(t->model, &count);
    for (int i = 0; i < count; i++) {
        if (strlen(p[i].name) == length && strncmp(p[i].name, name, length) == 0) {
            return &p[i];
        }
    }
    fprintf(stderr, "the model has no %.*s\n", (int)length, name);
    exit(1);
}

/* Copies a parameter of the file to the orientation of memory. */
static void copy_parameter(const struct model_parameter *p, const float *file, float *out)
{
    int64_t rows = p->whole_rows, columns = p->whole_columns;
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            out[i * columns + j] = p->transposed ? file[j * rows + i] : file[i * columns + j];
        }
    }
}

static void compare_gradient(const struct model_parameter *p, const float *actual,
                             const float *expected)
{
    int64_t elements = p->whole_rows * p->whole_columns;
    double size = 0;
    for (int64_t i = 0; i < elements; i++) {
        size += fabs((double)expected[i]);
    }
    if (!(size > 1e-9)) {
        for (int64_t i = 0; i < elements; i++) {
            CHECK_NEAR(actual[i], expected[i], tolerance);
        }
        return;
    }
    double error = reference_error(actual, expected, elements);
    if (!(error <= tolerance)) {
        fprintf(stderr, "%s: relative error %.3g\n", p->name, error);
        exit(1);
    }
}

/* Copies the weights of the file to the model, or compares the gradients. */
static void visit_values(struct head_case *t, bool gradients, double count)
{
    char names[NAMES_BYTES] = "";
    int64_t all, found = 0;
    int parameters;
    float *values = reference_dataset(t->group, "values", H5T_NATIVE_FLOAT, 4, &all);
    float *parameter = malloc((size_t)all * sizeof *parameter);
    hid_t a = H5Aopen(t->group, "names", H5P_DEFAULT), type = H5Aget_type(a);
    CHECK(parameter != NULL && H5Tget_size(type) < sizeof names && H5Aread(a, type, names) >= 0);
    H5Tclose(type);
    H5Aclose(a);
    const float *at = values + (gradients ? all / 2 : 0);
    for (const char *name = names; *name != '\0'; name = strchr(name, '\n') + 1, found++) {
        const struct model_parameter *p = find_parameter(t, name, strcspn(name, "\n"));
        int64_t elements = p->whole_rows * p->whole_columns;
        float *flat = (gradients ? t->gradients : model_weights(t->model)) + p->first;
        copy_parameter(p, at, parameter);
        for (int64_t i = 0; i < elements && gradients && p->trained; i++) {
            flat[i] /= (float)count;
        }
        if (gradients && p->trained) {
            compare_gradient(p, flat, parameter);
        } else if (!gradients) {
            memcpy(flat, parameter, (size_t)elements * sizeof *flat);
        }
        at += elements;
    }
    (void)model_parameters(t->model, &parameters);
    CHECK_EQUAL(found, parameters);
    CHECK(at == values + (gradients ? all : all / 2));
    free(values);
    free(parameter);
}

/* ---- a step ---- */

static status check_outputs(void *user, const struct objective_example *e)
{
    struct head_case *t = user;
    CHECK_EQUAL(e->sample, 100 + t->consumed++);
    for (int64_t i = 0; i < e->rows * e->columns; i++) {
        t->squared_error += pow((double)e->outputs[i] - (double)t->outputs[i], 2);
        t->squared_size += pow((double)t->outputs[i], 2);
    }
    t->outputs += e->rows * e->columns;
    return STATUS_OK;
}

static void make_model(struct head_case *t)
{
    struct kernels_limits limits = {.rows = t->batch.rows,
                                    .width = model_norm_width(&t->config),
                                    .inner = model_inner_outputs(&t->config),
                                    .heads = (int)t->config.heads,
                                    .head_width = model_head_width(&t->config),
                                    .sequence = t->batch.tokens,
                                    .vocabulary = model_vocabulary_rows(&t->config, 1),
                                    .training = true};
    struct device *dev = NULL;
    int count;
    CHECK_OK(device_create(DEVICE_CPU, 0, &dev));
    CHECK_OK(kernels_create(dev, DTYPE_F32, 2, &limits, &t->kernels));
    t->config.output_rows = t->batch.outputs.count;
    CHECK_OK(model_create(t->kernels, &t->config, NULL, false, t->batch.rows, true, &t->model));
    const struct model_parameter *p = model_parameters(t->model, &count);
    t->gradients = malloc((size_t)model_elems(t->model) * sizeof *t->gradients);
    CHECK(t->gradients != NULL && count <= PARAMETERS_MAX);
    for (int64_t i = 0; i < model_elems(t->model); i++) {
        t->gradients[i] = NAN; /* the first micro-batch must overwrite this */
    }
    for (int i = 0; i < count; i++) {
        t->parameter_gradients[i] = p[i].trained ? t->gradients + p[i].first : NULL;
    }
    int64_t outputs = t->kind->task == MODEL_HEAD_NONE ? t->config.width : t->config.labels;
    CHECK_OK(task_head_create(t->kernels, t->batch.outputs.count, outputs, &t->task_head));
    if (t->kind->task == MODEL_HEAD_NONE) {
        CHECK_OK(contrastive_batch_create(t->kernels, t->batch.sequences, t->config.width, 1,
                                          &t->pairs));
    }
}

static void run_step(struct head_case *t)
{
    const struct batch *b = &t->batch;
    struct model_input input = objective_input_model(b);
    input.positions = t->positions;
    input.token_type_ids = t->segments;
    input.training = input.first_micro_batch = true;
    struct tensor hidden;
    double sums[OBJECTIVE_SUMS] = {0};
    CHECK_OK(model_forward(t->model, &input, &hidden));
    const struct objective_sink sink = {check_outputs, t};
    double device_sums[OBJECTIVE_SUMS] = {0};
    struct objective_input views = {
        .task_head = &t->task_head,
        .whole_batch = {.contrastive = t->pairs.memory != NULL ? &t->pairs : NULL},
        .sink = &sink,
        .device_sums = device_sums};
    objective_input_fill(&views, t->model, b, &input, hidden, t->parameter_gradients);
    CHECK_OK(t->kind->objective->loss(t->kernels, b, &views, true, sums));
    for (int i = 0; i < OBJECTIVE_SUMS; i++) {
        sums[i] += device_sums[i];
    }
    CHECK_OK(model_backward(t->model, &input, t->parameter_gradients, NULL, NULL));
    CHECK(sums[OBJECTIVE_COUNT] == reference_attribute(t->group, "count"));
    double loss = objective_loss(t->kind->objective, sums);
    CHECK_NEAR(loss / reference_attribute(t->group, "loss"), 1, tolerance);
    CHECK_EQUAL(t->consumed, b->sequences);
    CHECK(sqrt(t->squared_error / t->squared_size) <= tolerance);
    visit_values(t, true, sums[OBJECTIVE_COUNT]);
    printf("loss %.6f\n", loss);
    if (t->pairs.memory != NULL) {
        views.whole_batch.contrastive_phase = CONTRASTIVE_COLLECTING;
        t->samples[b->sequences - 1]++;
        CHECK_FAILS(t->kind->objective->loss(t->kernels, b, &views, true, sums), STATUS_INTERNAL,
                    "embed needs pairs with consecutive sample numbers");
    }
}

/* The settings of peft in scripts/reference/reference_heads.py. */
static struct model_adapter make_adapter(const char *architecture)
{
    bool roberta = strcmp(architecture, "roberta") == 0;
    return (struct model_adapter){
        .rank = 3,
        .alpha = 5,
        .rank_stabilized = roberta,
        .targets = roberta ? "query, value"
                   : strcmp(architecture, "bert") == 0
                       ? "query, value, attention.output.dense, intermediate.dense, output.dense"
                   : strcmp(architecture, "gpt2") == 0   ? "c_attn, c_fc, c_proj"
                   : strcmp(architecture, "albert") == 0 ? "query, value, dense, ffn"
                                                         : "q_proj, v_proj, gate_proj, down_proj",
    };
}

static void test_case(hid_t file, const char *architecture, const char *kind, bool adapters)
{
    char name[64];
    int64_t count;
    struct head_case t = {.kind = kinds};
    while (strcmp(t.kind->name, kind) != 0) {
        t.kind++;
    }
    snprintf(name, sizeof name, "%s_%s", architecture, kind);
    printf("%s\n", name);
    t.group = H5Gopen2(file, name, H5P_DEFAULT);
    CHECK(t.group >= 0);
    float *outputs = reference_dataset(t.group, "outputs", H5T_NATIVE_FLOAT, 4, &count);
    t.outputs = outputs;
    read_config(&t, architecture);
    if (adapters) {
        t.config.adapter = make_adapter(architecture);
    }
    read_batch(&t);
    make_model(&t);
    visit_values(&t, false, 1);
    run_step(&t);
    struct device *dev = kernels_device(t.kernels);
    task_head_destroy(&t.task_head);
    contrastive_batch_destroy(&t.pairs);
    CHECK_OK(model_destroy(&t.model));
    CHECK_OK(kernels_destroy(&t.kernels));
    CHECK_OK(device_destroy(&dev));
    void *all[] = {t.gradients,    t.ids,       t.segments, t.cu_rows, t.rows,
                   t.example_rows, t.positions, t.labels,   t.numbers, outputs};
    for (int i = 0; i < COUNT(all); i++) {
        free(all[i]);
    }
    H5Gclose(t.group);
}

/* Adds two texts of one row each, with these vectors. */
static void add_pair(struct contrastive_batch *b, int64_t index, float vectors[4])
{
    const int32_t cu_rows[] = {0, 1, 2};
    const struct contrastive_texts texts = {.pairs = 1, .first = index, .cu_rows = cu_rows};
    CHECK_OK(contrastive_batch_add(b, tensor_view(vectors, DTYPE_F32, 2, 2), &texts));
}

/* Three pairs; the last one is missing. A NaN in a vector makes the loss of its pair NaN. */
static void test_contrastive_batch(void)
{
    struct contrastive_batch w;
    struct comm *self = NULL;
    struct device *dev = NULL;
    struct kernels *k = NULL;
    struct kernels_limits limits = {.rows = 2,
                                    .width = 2,
                                    .inner = 2,
                                    .heads = 1,
                                    .head_width = 2,
                                    .sequence = 2,
                                    .vocabulary = 2};
    bool failed = true;
    double sums[CONTRASTIVE_SUMS];
    float vectors[][4] = {{2, 0, 0.6f, 0.8f}, {0, 1, 4, -3}};
    CHECK_OK(comm_self_create(&self));
    CHECK_OK(device_create(DEVICE_CPU, 0, &dev));
    CHECK_OK(kernels_create(dev, DTYPE_F32, 1, &limits, &k));
    CHECK_OK(contrastive_batch_create(k, 3, 2, 1, &w));
    CHECK_OK(contrastive_batch_clear(&w));
    add_pair(&w, 0, vectors[0]);
    add_pair(&w, 1, vectors[1]);
    CHECK_OK(contrastive_batch_gather(self, &w, true, &failed));
    CHECK(!failed && w.exchange.count == 2);
    double first = log(exp(20 * 0.6) + exp(20 * 0.8)) - 20 * 0.6;
    CHECK_NEAR(w.pairs.results[CONTRASTIVE_LOSS], first, 1e-6);
    double second = log(exp(20 * 0.8) + exp(20 * -0.6)) - 20 * -0.6;
    CHECK_OK(contrastive_batch_read_sums(&w, sums));
    CHECK_NEAR(sums[CONTRASTIVE_SUM_LOSS], first + second, 1e-6);
    CHECK(sums[CONTRASTIVE_SUM_PAIRS] == 2 && sums[CONTRASTIVE_SUM_CORRECT] == 0);
    CHECK_OK(contrastive_batch_clear(&w));
    vectors[0][1] = NAN;
    add_pair(&w, 0, vectors[0]);
    add_pair(&w, 1, vectors[1]);
    CHECK_OK(contrastive_batch_gather(self, &w, true, &failed));
    CHECK(isnan(w.pairs.results[0]) && isfinite(w.pairs.results[CONTRASTIVE_RESULTS]));
    CHECK_OK(contrastive_batch_clear(&w));
    CHECK_OK(contrastive_batch_gather(self, &w, false, &failed));
    CHECK(failed);
    add_pair(&w, 2, vectors[1]); /* an incomplete batch begins with pair 0 */
    CHECK_FAILS(contrastive_batch_gather(self, &w, true, &failed), STATUS_INTERNAL,
                "a batch of 1 pairs begins with pair 2 of 3");
    contrastive_batch_destroy(&w);
    CHECK_OK(kernels_destroy(&k));
    CHECK_OK(device_destroy(&dev));
    CHECK_OK(comm_destroy(&self));
}

/* Each family of decoders with each task that transformers has a class for. */
static void test_decoders(void)
{
    char name[64];
    int cases = 0;
    hid_t file = reference_open("heads_decoders.h5");
    for (int i = 0; i < COUNT(decoders); i++) {
        for (int k = 0; k < COUNT(kinds); k++) {
            snprintf(name, sizeof name, "%s_%s", decoders[i].architecture, kinds[k].name);
            if (H5Lexists(file, name, H5P_DEFAULT) > 0) {
                test_case(file, decoders[i].architecture, kinds[k].name, false);
                cases++;
            }
        }
    }
    CHECK_EQUAL(cases, 56);
    H5Fclose(file);
}

int main(void)
{
    static const char *const lora[][2] = {
        {"bert", "texts"}, {"roberta", "texts"}, {"gpt2", "texts"},   {"llama", "texts"},
        {"bert", "spans"}, {"gpt2", "tokens"},   {"bert", "choices"}, {"bert", "vectors"}};
    static const char *const others[] = {"texts", "tokens", "spans", "choices", "vectors"};
    hid_t file = reference_open("heads.h5");
    for (int k = 0; k < COUNT(kinds); k++) {
        test_case(file, "bert", kinds[k].name, false);
        test_case(file, "gpt2", kinds[k].name, false);
    }
    test_case(file, "roberta", "texts", false);
    test_case(file, "roberta", "choices", false);
    test_case(file, "llama", "texts", false);
    for (int k = 0; k < COUNT(others); k++) {
        test_case(file, "distilbert", others[k], false);
        test_case(file, "megatron-bert", others[k], false);
    }
    H5Fclose(file);
    file = reference_open("heads_lora.h5");
    for (int i = 0; i < COUNT(lora); i++) {
        test_case(file, lora[i][0], lora[i][1], true);
    }
    H5Fclose(file);
    file = reference_open("heads_albert.h5");
    for (int k = 0; k < COUNT(others); k++) {
        test_case(file, "albert", others[k], false);
    }
    H5Fclose(file);
    file = reference_open("heads_modernbert.h5");
    for (int k = 0; k < COUNT(others) - 1; k++) { /* but "vectors" */
        test_case(file, "modernbert", others[k], false);
    }
    H5Fclose(file);
    file = reference_open("heads_albert_lora.h5");
    test_case(file, "albert", "texts", true);
    H5Fclose(file);
    test_decoders();
    test_contrastive_batch();
    return 0;
}
