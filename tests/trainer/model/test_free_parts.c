/* transformer_encoder and transformer_decoder with the parts of a family compute the numbers of the
 * family: with dropout, the loss and all gradients of two micro-batches are equal bit for bit. The
 * parts come from the description of the family (architecture.h).
 *
 * Parts that no family has are tested without a family. The gradient along random directions is
 * compared with differences of the loss. Token types with zero embeddings do not change the loss.
 * Layers with shared parameters are compared with separate layers of equal parameters: the gradient
 * of the block is the sum of the gradients of the layers. */
#include "base/memory.h"
#include "base/random.h"
#include "tests/trainer/model/model_instance.h"

enum { VOCABULARY = 101 };
enum { ROBERTA_POSITIONS = 2 }; /* rows of its position table that no token has */

static struct device *dev;
static int32_t inputs[MICRO_BATCHES][ROWS], targets[MICRO_BATCHES][ROWS], positions[ROWS];
static int32_t segments[ROWS], all_rows[ROWS];
static const int32_t cu_rows[SEQUENCES + 1] = {0, TOKENS, 2 * TOKENS, ROWS};

static void make_tokens(void)
{
    uint64_t key = random_key(3, RANDOM_TEST, 0, 0);
    for (int i = 0; i < MICRO_BATCHES * ROWS; i++) {
        uint64_t at = (uint64_t)i;
        inputs[i / ROWS][i % ROWS] = (int32_t)random_below(key, at, VOCABULARY);
        targets[i / ROWS][i % ROWS] = (int32_t)random_below(key, 1000 + at, VOCABULARY);
        positions[i % ROWS] = i % TOKENS;
        segments[i % ROWS] = i % TOKENS > 3;
        all_rows[i % ROWS] = i % ROWS;
    }
}

static void create_instance(struct model_instance *s, const struct model_config *config)
{
    model_instance_create(s, dev, DTYPE_F32, config, NULL, false);
}

/* Draws the weights. Constants, such as biases, differ between their elements. */
static void draw_weights(struct model_instance *s)
{
    int count;
    const struct model_parameter *p = model_parameters(s->model, &count);
    uint64_t key = random_key(8, RANDOM_TEST, 0, 0);
    CHECK_OK(model_init_weights(s->model, 5, 1));
    for (int i = 0; i < count; i++) {
        float *w = model_weights(s->model) + p[i].first;
        for (int64_t e = 0; p[i].dimensions == 1 && e < p[i].columns; e++) {
            w[e] += 0.1f * random_normal(key, (uint64_t)(p[i].first + e));
        }
    }
}

static void run_micro_batch(struct model_instance *s, int m)
{
    struct model_input input = {
        .rows = ROWS,
        .tokens = inputs[m],
        .positions = positions,
        .segments = SEQUENCES,
        .cu_rows = cu_rows,
        .longest = TOKENS,
        .first_row = m * ROWS,
        .token_type_ids = segments,
        .seed = 11,
        .step = 2,
        .training = true,
        .first_micro_batch = m == 0,
    };
    struct batch batch = {
        .kind = BATCH_SENTENCE_PAIRS, .rows = ROWS, .targets = targets[m], .sequences = SEQUENCES};
    struct tensor hidden;
    bool is_mlm = model_get_config(s->model)->output_rows > 0;
    if (is_mlm) {
        batch.outputs.count = ROWS;
        batch.outputs.targets = targets[m];
        input.output_rows = all_rows;
        input.outputs = ROWS;
    }
    CHECK_OK(model_forward(s->model, &input, &hidden));
    struct objective_input views = {
        .scratch = {.losses = s->losses, .row_scales = s->scales, .argmax = s->argmax},
        .device_sums = s->sums,
    };
    objective_input_fill(&views, s->model, &batch, &input, hidden, s->parameter_gradients);
    CHECK_OK((is_mlm ? &objective_mlm : &objective_clm)
                 ->loss(s->kernels, &batch, &views, true, s->sums));
    CHECK_OK(model_backward(s->model, &input, s->parameter_gradients, NULL, NULL));
}

static void run_instance(struct model_instance *s)
{
    for (int m = 0; m < MICRO_BATCHES; m++) {
        run_micro_batch(s, m);
    }
    CHECK(s->sums[OBJECTIVE_LOSS] > 1);
}

/* ---- families ---- */

static struct model_config make_family(const char *name)
{
    const struct architecture *a = model_architecture(name);
    bool roberta = strcmp(name, "roberta") == 0, phi3 = strcmp(name, "phi3") == 0;
    bool encoder = !a->attention.causal, rotary = architecture_is_rotary(a);
    bool gemma2 = strcmp(name, "gemma2") == 0, stablelm = strcmp(name, "stablelm") == 0;
    bool granite = strcmp(name, "granite") == 0, local = a->embedding.scaled || (rotary && encoder);
    bool biased = strcmp(name, "llama") == 0;
    return (struct model_config){
        .architecture = name,
        .layers = 3,
        .width = 32, /* a row of the position table ends at a boundary of the layout */
        .embedding_width = a->shared_layers ? 20 : 0,
        .heads = 4,
        .kv_heads = rotary && !encoder ? 2 : 0,
        .inner = 40,
        .positions = TOKENS + 1 + (roberta ? ROBERTA_POSITIONS : 0),
        .vocabulary = VOCABULARY,
        .activation =
            a->feed_forward.gated && !a->feed_forward.gelu ? ACTIVATION_SILU : ACTIVATION_GELU_ERF,
        .dropout = 0.1f,
        .attention_dropout = 0.2f,
        .norm_epsilon = 1e-6f,
        .initializer_range = 0.2f,
        .tied = !phi3,
        .rope_theta = 1e4,
        .window = local || phi3 || strcmp(name, "mistral") == 0 ? 4 : 0,
        .layer_types = {local, {encoder ? 2 : 5}},
        .rope_local_theta = local && !gemma2 ? 50 : 0,
        .rotary_width = phi3       ? 6
                        : stablelm ? 2
                                   : 0,
        .attention_bias = biased,
        .mlp_bias = biased,
        .no_rope_interval = strcmp(name, "smollm3") == 0 ? 2 : 0,
        .attention_scale = local || granite ? 0.3 : 0,
        .attention_softcap = gemma2 ? 2 : 0,
        .logits_softcap = gemma2 ? 3 : 0,
        .embedding_multiplier = granite ? 3 : 0,
        .residual_multiplier = granite ? 0.4 : 0,
        .logits_divisor = granite ? 2 : 0,
        .token_types = a->names->token_type_table == NULL ? 0
                       : roberta                          ? 1
                                                          : 2,
        .output_rows = encoder ? ROWS : 0,
    };
}

/* Returns transformer_encoder or transformer_decoder with the parts of the family. */
static struct model_config make_parts(const struct model_config *family)
{
    const struct architecture *a = model_architecture(family->architecture);
    struct model_config c = *family;
    c.architecture = a->attention.causal ? "transformer_decoder" : "transformer_encoder";
    c.positions -= a->embedding.first_position;
    c.parts = (struct model_parts){
        .norm_placement = a->norm.placement,
        .positions = a->embedding.positions,
        .qk_norm = a->attention.qk_norm,
        .rms_norm = a->norm.kind == NORM_RMS,
        .norm_without_weight = a->norm.no_weight,
        .norm_without_bias = a->norm.no_bias,
        .gated = a->feed_forward.gated,
        .embedding_norm = a->names->embedding_norm != NULL,
        .shared_layers = a->shared_layers,
        .head_without_transform_bias = a->head.no_bias,
    };
    c.attention_bias = c.attention_bias || a->attention.projection_bias;
    c.qkv_bias = a->attention.qkv_bias;
    c.mlp_bias = c.mlp_bias || a->feed_forward.bias;
    c.embedding_multiplier =
        a->embedding.scaled ? sqrt((double)c.width) : family->embedding_multiplier;
    return c;
}

/* Returns the first element and the number of the elements that only the family has: unused rows of
 * the position table. */
static int64_t find_unused(const struct model *family, int64_t *first)
{
    int count;
    const struct model_parameter *p = model_parameters(family, &count);
    const struct architecture *a = model_architecture(model_get_config(family)->architecture);
    *first = 0;
    for (int i = 0; i < count && a->embedding.first_position > 0; i++) {
        if (p[i].role == MODEL_POSITION_TABLE) {
            *first = p[i].first;
            return a->embedding.first_position * p[i].columns;
        }
    }
    return 0;
}

/* Writes which elements have weight decay. */
static void fill_decay(const struct model *m, char *out)
{
    int count;
    const struct model_parameter *p = model_parameters(m, &count);
    for (int i = 0; i < count; i++) {
        memset(out + p[i].first, p[i].decay ? 1 : 0, (size_t)(p[i].rows * p[i].columns));
    }
}

static void check_decay(const struct model *family, const struct model *parts, int64_t first,
                        int64_t unused)
{
    size_t elements = (size_t)model_elems(family);
    char *a = calloc(elements, 1), *b = calloc(elements, 1);
    CHECK(a != NULL && b != NULL);
    fill_decay(family, a);
    fill_decay(parts, b);
    CHECK(memcmp(a, b, (size_t)first) == 0);
    CHECK(memcmp(a + first + unused, b + first, elements - (size_t)(first + unused)) == 0);
    free(a);
    free(b);
}

static void test_family(const char *name)
{
    struct model_config config = make_family(name), other = make_parts(&config);
    struct model_instance family, parts;
    int64_t first;
    create_instance(&family, &config);
    create_instance(&parts, &other);
    int64_t unused = find_unused(family.model, &first);
    size_t before = (size_t)first * sizeof(float);
    size_t after = (size_t)(model_elems(parts.model) - first) * sizeof(float);
    CHECK_EQUAL(model_elems(family.model), model_elems(parts.model) + unused);
    check_decay(family.model, parts.model, first, unused);
    draw_weights(&family);
    memcpy(model_weights(parts.model), model_weights(family.model), before);
    memcpy(model_weights(parts.model) + first, model_weights(family.model) + first + unused, after);
    run_instance(&family);
    run_instance(&parts);
    bool equal = memcmp(family.sums, parts.sums, sizeof family.sums) == 0 &&
                 memcmp(family.gradients, parts.gradients, before) == 0 &&
                 memcmp(family.gradients + first + unused, parts.gradients + first, after) == 0;
    printf("%s as %s: loss %.9g and %.9g\n", name, other.architecture, family.sums[OBJECTIVE_LOSS],
           parts.sums[OBJECTIVE_LOSS]);
    CHECK(equal);
    model_instance_destroy(&family);
    model_instance_destroy(&parts);
}

/* ---- shared layers ---- */

/* Returns the parameter with a name. */
static const struct model_parameter *find_parameter(const struct model *m, const char *name)
{
    int count;
    const struct model_parameter *p = model_parameters(m, &count);
    for (int i = 0; i < count; i++) {
        if (strcmp(p[i].name, name) == 0) {
            return &p[i];
        }
    }
    fprintf(stderr, "there is no parameter %s\n", name);
    exit(1);
}

/* Returns the parameter of a layer that corresponds to one of the shared block. Layer -1: it is
 * outside of the blocks. */
static const struct model_parameter *find_twin(const struct model *m,
                                               const struct model_parameter *p, int64_t layer)
{
    char name[MODEL_NAME_BYTES + 16];
    if (layer < 0) {
        return find_parameter(m, p->name);
    }
    snprintf(name, sizeof name, "layers.%d.%s", (int)layer, p->name + strlen("layers.0."));
    return find_parameter(m, name);
}

/* Copies the weights of shared layers to separate ones, or compares the gradients. */
static void visit_parameters(struct model_instance *shared, struct model_instance *separate,
                             bool compares)
{
    int count;
    int64_t layers = model_get_config(shared->model)->layers;
    const struct model_parameter *p = model_parameters(shared->model, &count);
    for (int i = 0; i < count; i++) {
        bool in_block = strncmp(p[i].name, "layers.", 7) == 0;
        for (int64_t e = 0; e < p[i].rows * p[i].columns; e++) {
            double sum = 0, size = 0;
            for (int64_t l = in_block ? 0 : -1; l < (in_block ? layers : 0); l++) {
                const struct model_parameter *twin = find_twin(separate->model, &p[i], l);
                if (!compares) {
                    model_weights(separate->model)[twin->first + e] =
                        model_weights(shared->model)[p[i].first + e];
                }
                sum += separate->gradients[twin->first + e];
                size += fabs(separate->gradients[twin->first + e]);
            }
            CHECK(!compares || fabs(shared->gradients[p[i].first + e] - sum) <= 1e-5 * (1 + size));
        }
    }
}

static void test_shared(const char *architecture, const struct model_parts *parts)
{
    struct model_config config = make_family("bert");
    struct model_instance shared, separate;
    config.architecture = architecture;
    config.parts = *parts;
    config.token_types = strcmp(architecture, "transformer_encoder") == 0 ? 2 : 0;
    config.output_rows = config.token_types > 0 ? ROWS : 0;
    config.parts.shared_layers = true;
    create_instance(&shared, &config);
    config.parts.shared_layers = false;
    create_instance(&separate, &config);
    draw_weights(&shared);
    visit_parameters(&shared, &separate, false);
    run_instance(&shared);
    run_instance(&separate);
    CHECK(memcmp(shared.sums, separate.sums, sizeof shared.sums) == 0);
    visit_parameters(&shared, &separate, true);
    model_instance_destroy(&shared);
    model_instance_destroy(&separate);
}

/* ---- gradients ---- */

/* Returns the loss of the first micro-batch after the weights have been moved along a direction. */
static double measure_loss(struct model_instance *s, const float *direction, float step)
{
    int64_t elements = model_elems(s->model);
    for (int64_t i = 0; i < elements; i++) {
        model_weights(s->model)[i] += step * direction[i];
    }
    memset(s->sums, 0, sizeof s->sums);
    run_micro_batch(s, 0);
    for (int64_t i = 0; i < elements; i++) {
        model_weights(s->model)[i] -= step * direction[i];
    }
    return s->sums[OBJECTIVE_LOSS];
}

/* Compares the gradient along random directions with differences of the loss. The error is relative
 * to the gradient's usual size along a direction. */
static void check_gradient(struct model_instance *s)
{
    enum { DIRECTIONS = 4 };
    const float step = 2e-3f; /* for each element */
    int64_t elements = model_elems(s->model);
    float *direction = calloc((size_t)elements, sizeof *direction);
    CHECK(direction != NULL);
    for (int d = 0; d < DIRECTIONS; d++) {
        double squares = 0, expected = 0;
        memset(s->gradients, 0, (size_t)elements * sizeof *s->gradients);
        measure_loss(s, direction, 0);
        for (int64_t i = 0; i < elements; i++) {
            direction[i] = random_normal(random_key(9, RANDOM_TEST, (uint64_t)d, 0), (uint64_t)i);
            squares += (double)s->gradients[i] * s->gradients[i];
            expected += (double)s->gradients[i] * direction[i];
        }
        double difference = measure_loss(s, direction, step) - measure_loss(s, direction, -step);
        printf("gradient %.4g, difference %.4g, size %.4g\n", expected, difference / (2 * step),
               sqrt(squares));
        CHECK_NEAR(difference / (2 * step), expected, 0.05 * sqrt(squares));
        memset(direction, 0, (size_t)elements * sizeof *direction);
    }
    free(direction);
}

static void test_gradient(const struct model_parts *parts)
{
    struct model_config config = make_family("bert");
    struct model_instance s;
    config.architecture = "transformer_encoder";
    config.parts = *parts;
    create_instance(&s, &config);
    draw_weights(&s);
    check_gradient(&s);
    model_instance_destroy(&s);
}

/* Copies the weights of the parameters that both models have, and clears the others. */
static void copy_weights(const struct model *from, struct model *to)
{
    int count, others;
    const struct model_parameter *p = model_parameters(to, &count);
    const struct model_parameter *q = model_parameters(from, &others);
    for (int i = 0; i < count; i++) {
        size_t bytes = (size_t)(p[i].rows * p[i].columns) * sizeof(float);
        memset(model_weights(to) + p[i].first, 0, bytes);
        for (int j = 0; j < others; j++) {
            if (strcmp(p[i].name, q[j].name) == 0) {
                memcpy(model_weights(to) + p[i].first, model_weights(from) + q[j].first, bytes);
            }
        }
    }
}

static void test_zero_types(const struct model_parts *parts)
{
    struct model_config config = make_family("bert");
    struct model_instance with, without;
    config.architecture = "transformer_encoder";
    config.parts = *parts;
    create_instance(&with, &config);
    config.token_types = 0;
    create_instance(&without, &config);
    draw_weights(&without);
    copy_weights(without.model, with.model);
    run_instance(&without);
    run_instance(&with);
    CHECK(memcmp(with.sums, without.sums, sizeof with.sums) == 0);
    model_instance_destroy(&with);
    model_instance_destroy(&without);
}

int main(void)
{
    static const char *const families[] = {
        "gpt2",     "openai-gpt", "llama",   "qwen2",         "mistral",
        "qwen3",    "smollm3",    "granite", "olmo",          "olmo2",
        "stablelm", "phi3",       "gemma2",  "gemma3_text",   "bert",
        "roberta",  "distilbert", "albert",  "megatron-bert", "modernbert",
    };
    static const struct model_parts shared[] = {
        {.norm_placement = PLACEMENT_PRE, .positions = POSITIONS_LEARNED},
        {.norm_placement = PLACEMENT_PRE,
         .positions = POSITIONS_LEARNED,
         .norm_without_bias = true,
         .head_without_transform = true,
         .head_without_bias = true},
        {.norm_placement = PLACEMENT_BOTH,
         .positions = POSITIONS_ROTARY,
         .norm_without_weight = true},
        {.norm_placement = PLACEMENT_POST, .positions = POSITIONS_LEARNED, .embedding_norm = true},
    };
    static const struct model_parts parts[] = {
        {.norm_placement = PLACEMENT_PRE,
         .positions = POSITIONS_LEARNED,
         .embedding_norm = true,
         .head_without_transform = true},
        {.norm_placement = PLACEMENT_POST,
         .positions = POSITIONS_SINUSOIDAL,
         .embedding_norm = true,
         .norm_without_bias = true,
         .head_without_bias = true},
        {.norm_placement = PLACEMENT_PRE,
         .positions = POSITIONS_ROTARY,
         .embedding_norm = true,
         .norm_without_weight = true,
         .head_without_transform = true,
         .head_without_bias = true},
    };
    CHECK_OK(device_create(DEVICE_CPU, 0, &dev));
    make_tokens();
    for (int i = 0; i < COUNT(families); i++) {
        test_family(families[i]);
    }
    for (int i = 0; i < COUNT(shared); i++) {
        test_shared("transformer_encoder", &shared[i]);
        test_shared("transformer_decoder", &shared[i]);
    }
    for (int i = 0; i < COUNT(parts); i++) {
        test_gradient(&parts[i]);
        test_zero_types(&parts[i]);
    }
    CHECK_OK(device_destroy(&dev));
    return 0;
}
