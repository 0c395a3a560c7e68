/* Compares a model that is divided among all ranks with the same model on one rank: losses and all
 * gradients, with dropout. Replicated gradients must have the same bits on all ranks.
 *
 * Two micro-batches test that gradients are set and then added to. Sequence parallelism is on or
 * off; its shares of the 21 rows are unequal. The sources of an encoder-decoder have 13 rows in the
 * first micro-batch and 3 in the second one. Then one of four ranks has no row. In some cases
 * parameters are frozen on the divided model only; the gradients of the others must not change. In
 * other cases both models have adapters with dropout. Activation checkpointing must not change any
 * bit.
 *
 * usage: test_tensor_parallel [few]; "few" tests a fourth of the models in fp32.
 * ctest: timeout 300
 * ctest: ranks 2 3 4
 * ctest: run 2_hosts ranks=4 BIREME_COMM_NODES=2 few */
#include "base/memory.h"
#include "base/random.h"
#include "kernels/cpu/matmul.h"
#include "tests/trainer/model/model_instance.h"

static struct comm *world;
static int32_t inputs[MICRO_BATCHES][ROWS], targets[MICRO_BATCHES][ROWS], positions[ROWS];
static int32_t segments[ROWS], masked_rows[MICRO_BATCHES][ROWS], masked_ids[MICRO_BATCHES][ROWS];
static int64_t masked[MICRO_BATCHES];
static const int32_t cu_rows[SEQUENCES + 1] = {0, TOKENS, 2 * TOKENS, ROWS};
static const int32_t next_sentence[SEQUENCES] = {1, 0, 1};
static const int32_t cu_sources[MICRO_BATCHES][SEQUENCES + 1] = {{0, 2, 7, 13}, {0, 1, 2, 3}};

static void make_tokens(int64_t vocabulary)
{
    uint64_t key = random_key(3, RANDOM_TEST, 0, 0);
    for (int m = 0; m < MICRO_BATCHES; m++) {
        for (int i = 0; i < ROWS; i++) {
            uint64_t at = (uint64_t)(m * ROWS + i);
            inputs[m][i] = (int32_t)random_below(key, at, (uint64_t)vocabulary);
            bool ignored = random_below(key, 1000 + at, 6) == 0;
            targets[m][i] = ignored ? BATCH_IGNORED
                                    : (int32_t)random_below(key, 2000 + at, (uint64_t)vocabulary);
            positions[i] = i % TOKENS;
            segments[i] = i % TOKENS > 3;
        }
        masked[m] = 0;
        for (int i = 0; i < ROWS; i += 1 + i % 3) { /* rows of the masked language model */
            masked_rows[m][masked[m]] = i;
            masked_ids[m][masked[m]++] = targets[m][i];
        }
    }
}

/* Adds random values to the parameters with constant initial values: biases, norms and the second
 * matrix of adapters. A value depends only on the position in the whole parameter. */
static void randomize_constants(struct model *m)
{
    int count;
    const struct model_parameter *p = model_parameters(m, &count);
    for (int i = 0; i < count; i++) {
        bool is_constant = p[i].dimensions == 1 || p[i].role == MODEL_ADAPTER_OUT;
        for (int j = 0; is_constant && j < p[i].shard_count; j++) {
            const struct model_shard *shard = &p[i].shards[j];
            uint64_t key = random_key(8, RANDOM_TEST, (uint64_t)i, 0);
            bool has_f32 = p[i].first < model_f32_elements(m);
            float *w = (has_f32 ? model_weights(m) + p[i].first : model_vector(m, i).data);
            w += shard->first;
            for (int64_t e = 0; e < shard->rows * shard->columns; e++) {
                int64_t row = shard->row + e / shard->columns;
                int64_t column = shard->column + e % shard->columns;
                w[e] += 0.1f * random_normal(key, (uint64_t)(row * p[i].whole_columns + column));
            }
        }
    }
    CHECK_OK(model_sync_bf16(m));
}

/* Creates a model with random weights and gradients that the first micro-batch must overwrite. */
static void instance_create(struct model_instance *s, struct device *dev, enum dtype dtype,
                            const struct model_config *config, struct comm *tensor, bool sequence)
{
    model_instance_create(s, dev, dtype, config, tensor, sequence);
    CHECK_OK(model_init_weights(s->model, 5, 1));
    randomize_constants(s->model);
    memset(s->gradients, 0xff, (size_t)model_elems(s->model) * sizeof *s->gradients);
}

/* The sources of the targets of a micro-batch: tokens of the other micro-batch. */
static struct model_source make_sources(int m, int32_t source_positions[ROWS])
{
    const int32_t *bounds = cu_sources[m];
    for (int i = 0; i < SEQUENCES; i++) {
        for (int32_t row = bounds[i]; row < bounds[i + 1]; row++) {
            source_positions[row] = row - bounds[i];
        }
    }
    return (struct model_source){.rows = bounds[SEQUENCES],
                                 .tokens = inputs[1 - m],
                                 .positions = source_positions,
                                 .cu_rows = bounds,
                                 .longest = TOKENS,
                                 .first_row = 100 + m * ROWS};
}

static void run_micro_batch(struct model_instance *s, int m, bool training)
{
    int32_t source_positions[ROWS];
    bool has_source = model_get_config(s->model)->encoder_layers > 0;
    struct model_input input = {
        .rows = ROWS,
        .tokens = inputs[m],
        .positions = positions,
        .segments = SEQUENCES,
        .cu_rows = cu_rows,
        .longest = TOKENS,
        .first_row = m * ROWS,
        .source = has_source ? make_sources(m, source_positions) : (struct model_source){0},
        .seed = 11,
        .step = 2,
        .training = training,
        .first_micro_batch = m == 0,
    };
    struct batch batch = {.rows = ROWS, .targets = targets[m], .sequences = SEQUENCES};
    struct tensor hidden;
    double device_sums[OBJECTIVE_SUMS] = {0};
    bool is_mlm = model_get_config(s->model)->output_rows > 0;
    const struct objective *objective = is_mlm ? &objective_mlm : &objective_clm;
    if (is_mlm) {
        batch.kind = BATCH_SENTENCE_PAIRS;
        batch.outputs.count = masked[m];
        batch.outputs.targets = masked_ids[m];
        batch.sentence_pairs.next_sentence = next_sentence;
        input.token_type_ids = segments;
        input.output_rows = masked_rows[m];
        input.outputs = masked[m];
    }
    CHECK_OK(model_forward(s->model, &input, &hidden));
    struct objective_input views = {
        .scratch = {.losses = s->losses, .row_scales = s->scales, .argmax = s->argmax},
        .example_weight = 3,
        .label_smoothing = has_source ? 0.1 : 0,
        .device_sums = device_sums,
    };
    objective_input_fill(&views, s->model, &batch, &input, hidden,
                         training ? s->parameter_gradients : NULL);
    CHECK_OK(objective->loss(s->kernels, &batch, &views, training, s->sums));
    for (int i = 0; i < OBJECTIVE_SUMS; i++) {
        s->sums[i] += device_sums[i];
    }
    if (training) {
        CHECK_OK(model_backward(s->model, &input, s->parameter_gradients, NULL, NULL));
    }
}

static float find_largest(const float *x, int64_t count)
{
    float largest = 0;
    for (int64_t i = 0; i < count; i++) {
        largest = fmaxf(largest, fabsf(x[i]));
    }
    return largest;
}

/* Errors are relative to the largest gradient of the tensor plus 1/1000 of the largest of the
 * model. The gradient of a key bias is only rounding noise without rotary positions; there the
 * largest of the model counts in full. */
static void compare_gradients(const struct model_instance *part, const struct model_instance *whole,
                              double tolerance)
{
    int count;
    const struct model_parameter *p = model_parameters(part->model, &count);
    const struct model_parameter *w = model_parameters(whole->model, &count);
    float model_largest = find_largest(whole->gradients, model_elems(whole->model));
    for (int i = 0; i < count; i++) {
        const float *exact = whole->gradients + w[i].first;
        bool has_source = model_get_config(whole->model)->encoder_layers > 0;
        bool noise = strstr(w[i].name, ".key.bias") != NULL ||
                     strstr(w[i].name, "k_lin.bias") != NULL ||
                     (has_source && strstr(w[i].name, "k_proj.bias") != NULL);
        double size = find_largest(exact, w[i].whole_rows * w[i].whole_columns) +
                      (noise ? 1 : 1e-3) * model_largest;
        for (int j = 0; p[i].trained && j < p[i].shard_count; j++) {
            const struct model_shard *shard = &p[i].shards[j];
            const float *actual = part->gradients + p[i].first + shard->first;
            for (int64_t e = 0; e < shard->rows * shard->columns; e++) {
                int64_t row = shard->row + e / shard->columns;
                double expected = exact[row * w[i].columns + shard->column + e % shard->columns];
                if (!(fabs(actual[e] - expected) <= tolerance * size)) {
                    fprintf(stderr, "%s element %lld: %g, on one rank %g\n", p[i].name,
                            (long long)e, (double)actual[e], expected);
                    CHECK(false);
                }
            }
        }
    }
}

/* Replicated gradients have the same bits on all ranks. */
static void check_replicas(const struct model_instance *s)
{
    int count, ranks = comm_size(world);
    const struct model_parameter *p = model_parameters(s->model, &count);
    for (int i = 0; i < count; i++) {
        size_t bytes = (size_t)(p[i].rows * p[i].columns) * sizeof(float);
        if (p[i].replicated && p[i].trained) {
            char *all = malloc((size_t)ranks * bytes);
            CHECK(all != NULL);
            CHECK_OK(comm_all_gather_bytes(world, all, s->gradients + p[i].first, bytes));
            for (int r = 1; r < ranks; r++) {
                CHECK(memcmp(all, all + (size_t)r * bytes, bytes) == 0);
            }
            free(all);
        }
    }
}

/* Frozen parameters follow the trained ones in the flat buffer and receive no gradient. */
static void check_frozen(const struct model_instance *s, bool expected)
{
    int count;
    const struct model_parameter *p = model_parameters(s->model, &count);
    int64_t trained = model_trained_elems(p, count), frozen = 0;
    for (int i = 0; i < count; i++) {
        CHECK(p[i].trained == (p[i].first < trained));
        frozen += p[i].trained ? 0 : p[i].rows * p[i].columns;
    }
    CHECK((frozen > 0) == expected);
    CHECK(trained + frozen <= model_elems(s->model));
    for (int64_t i = trained; i < model_elems(s->model); i++) {
        CHECK(isnan(s->gradients[i]));
    }
}

/* Losses and gradients have the same bits when backward recomputes activations. */
static void check_recompute(struct device *dev, enum dtype dtype, const struct model_config *config,
                            bool sequence, const struct model_instance *reference)
{
    static const enum recompute_mode modes[] = {RECOMPUTE_SELECTIVE, RECOMPUTE_FULL};
    for (int i = 0; i < 2; i++) {
        struct model_instance recomputed;
        struct model_config other = *config;
        other.recompute = modes[i];
        instance_create(&recomputed, dev, dtype, &other, world, sequence);
        for (int m = 0; m < MICRO_BATCHES; m++) {
            run_micro_batch(&recomputed, m, true);
        }
        CHECK(memcmp(recomputed.sums, reference->sums, sizeof recomputed.sums) == 0);
        CHECK(memcmp(recomputed.gradients, reference->gradients,
                     (size_t)model_elems(reference->model) * sizeof(float)) == 0);
        model_instance_destroy(&recomputed);
    }
}

/* A model and its frozen parts. */
struct model_case {
    const char *architecture;
    bool tied;
    const char *frozen;
    const struct model_freezing *freezing; /* NULL: none */
    const struct model_adapter *adapter;   /* NULL: none */
    double tolerance;                      /* 0: 1e-5 */
    bool separate_embeddings;
    int64_t source_vocabulary;
    const struct model_parts *parts; /* NULL: some parts of the free families */
};

static struct model_config make_config(const struct model_case *c, enum dtype dtype)
{
    const char *architecture = c->architecture;
    bool is_encoder = !model_architecture(architecture)->attention.causal;
    bool has_pooler = model_architecture(architecture)->names->next_sentence != NULL;
    bool is_free = model_architecture(architecture)->free_parts;
    bool is_distilbert = strcmp(architecture, "distilbert") == 0;
    bool is_mistral = strcmp(architecture, "mistral") == 0;
    bool has_biases = c->tied && strcmp(architecture, "llama") == 0;
    bool is_qwen3 = strcmp(architecture, "qwen3") == 0;
    bool is_phi3 = strcmp(architecture, "phi3") == 0;
    bool is_stablelm = strcmp(architecture, "stablelm") == 0;
    bool is_granite = strcmp(architecture, "granite") == 0;
    bool is_modernbert = strcmp(architecture, "modernbert") == 0;
    bool is_gemma2 = strcmp(architecture, "gemma2") == 0;
    bool is_gemma = is_gemma2 || strcmp(architecture, "gemma3_text") == 0;
    bool has_decoder = architecture_has_decoder(model_architecture(architecture));
    bool is_t5 = strcmp(architecture, "t5") == 0;
    int64_t layers = dtype == DTYPE_F32 ? 3 : 2; /* bf16 errors grow with each layer */
    return (struct model_config){
        .architecture = architecture,
        .layers = layers + has_decoder,
        .encoder_layers = has_decoder ? layers - 1 : 0,
        .width = 48,
        .embedding_width = strcmp(architecture, "albert") == 0 ? 20 : 0,
        .heads = 12,
        .inner = 60,
        .positions = TOKENS + 2,
        .vocabulary = 101,
        .activation = is_distilbert ? ACTIVATION_RELU : ACTIVATION_GELU_TANH,
        .parts = {.norm_placement = c->tied ? PLACEMENT_BRANCH : PLACEMENT_PRE,
                  .positions = c->tied ? POSITIONS_DEFAULT : POSITIONS_ROTARY,
                  .qk_norm = c->tied ? QK_NORM_ROWS : QK_NORM_HEADS,
                  .rms_norm = c->tied,
                  .gated = !c->tied},
        .dropout = 0.1f,
        .attention_dropout = 0.2f,
        .activation_dropout = has_decoder ? 0.15f : 0,
        .norm_epsilon = 1e-5f,
        .rope_theta = 1e4,
        .initializer_range = is_t5 ? 1 : 0.2f,
        .attention_bias = has_biases,
        .mlp_bias = has_biases,
        /* wider together than the stream */
        .head_width = is_mistral || is_qwen3 || is_gemma || is_phi3 || is_free ? 6 : 0,
        .window = is_mistral || is_gemma || is_phi3 || is_modernbert || is_free ? 5 : 0,
        .rotary_width = is_phi3       ? 4
                        : is_stablelm ? 2
                        : is_free     ? 4
                                      : 0,
        .qkv_bias = is_stablelm || is_free,
        .layer_types = {is_gemma || is_modernbert || is_free, {is_modernbert ? 2 : 5}},
        .rope_local_theta = (is_gemma && !is_gemma2) || is_modernbert || is_free ? 50 : 0,
        .attention_scale = is_gemma || is_granite ? 0.3 : 0,
        .attention_softcap = is_gemma2 || is_free ? 2 : 0,
        .logits_softcap = is_gemma2 ? 3 : 0,
        .embedding_multiplier = is_granite || is_free || (has_decoder && !is_t5) ? 3 : 0,
        .residual_multiplier = is_granite ? 0.4 : 0,
        .logits_divisor = is_granite || is_t5 ? 2 : 0,
        .position_buckets = is_t5 ? 8 : 0,
        .max_distance = 5,
        .no_rope_interval = strcmp(architecture, "smollm3") == 0 ? 2 : 0,
        .adapter = c->adapter != NULL ? *c->adapter : (struct model_adapter){0},
        .tied = c->tied,
        .separate_embeddings = c->separate_embeddings,
        .source_vocabulary = c->source_vocabulary,
        .token_types = is_encoder && !is_distilbert && !is_free && !is_modernbert ? 2 : 0,
        .next_sentence = has_pooler,
        .output_rows = is_encoder ? ROWS : 0,
        .examples = is_encoder ? SEQUENCES : 0,
    };
}

/* Sets the parts of the case in a model with free parts. */
static void set_parts(const struct model_case *c, struct model_config *config)
{
    if (c->parts == NULL) {
        return;
    }
    bool factorized = c->parts->embedding_norm && !c->parts->head_without_transform;
    config->parts = *c->parts;
    config->embedding_width = factorized ? 20 : 0;
    config->token_types = 2;
    config->embedding_multiplier = 0;
    config->rope_local_theta = 0;
}

static void test_model(struct device *dev, enum dtype dtype, const struct model_case *c,
                       bool sequence)
{
    struct model_config config = make_config(c, dtype);
    const struct model_freezing none = {0}, freezing = c->freezing != NULL ? *c->freezing : none;
    double tolerance = c->tolerance > 0 ? c->tolerance : 1e-5;
    struct model_instance part, whole;
    set_parts(c, &config);
    make_tokens(config.vocabulary);
    config.frozen = c->frozen;
    config.freezing = freezing;
    instance_create(&part, dev, dtype, &config, world, sequence);
    config.frozen = NULL;
    config.freezing = none;
    instance_create(&whole, dev, dtype, &config, NULL, false);
    for (int m = 0; m < MICRO_BATCHES; m++) {
        run_micro_batch(&part, m, true);
        run_micro_batch(&whole, m, true);
        CHECK_NEAR(part.sums[OBJECTIVE_LOSS], whole.sums[OBJECTIVE_LOSS],
                   tolerance * whole.sums[OBJECTIVE_LOSS]);
        CHECK(part.sums[OBJECTIVE_COUNT] == whole.sums[OBJECTIVE_COUNT]);
    }
    compare_gradients(&part, &whole, tolerance);
    check_replicas(&part);
    check_frozen(&part, c->adapter != NULL || c->frozen != NULL || c->freezing != NULL);
    config.frozen = c->frozen;
    config.freezing = freezing;
    check_recompute(dev, dtype, &config, sequence, &part);
    run_micro_batch(&part, 0, false);
    run_micro_batch(&whole, 0, false);
    for (int i = 0; i < ROWS; i++) {
        CHECK_NEAR(part.losses[i], whole.losses[i], tolerance * (1 + fabsf(whole.losses[i])));
    }
    model_instance_destroy(&part);
    model_instance_destroy(&whole);
}

static const struct model_freezing low = {.embeddings = true, .layers = 1};
static const struct model_freezing blocks = {.embeddings = true, .layers = 2};
static const struct model_freezing backbone = {.backbone = true}, first = {.layers = 1};
static const struct model_freezing embeddings = {.embeddings = true};
static const struct model_adapter all_linear = {4, 6, 0.25f, "all-linear"};
static const struct model_adapter llama = {3, 3, 0, "q_proj, v_proj,up_proj,down_proj"};
static const struct model_adapter bert = {3, 3, 0.1f, "query, key, output.dense", true};

static const struct model_parts albert_parts = {.norm_placement = PLACEMENT_POST,
                                                .positions = POSITIONS_LEARNED,
                                                .embedding_norm = true,
                                                .shared_layers = true};
static const struct model_parts plain_parts = {.norm_placement = PLACEMENT_PRE,
                                               .positions = POSITIONS_LEARNED,
                                               .norm_without_bias = true,
                                               .embedding_norm = true,
                                               .head_without_transform = true,
                                               .head_without_bias = true};
static const struct model_parts shared_parts = {
    .norm_placement = PLACEMENT_PRE, .positions = POSITIONS_NONE, .shared_layers = true};

static const struct model_case cases[] = {
    {"gpt2", true},
    {"gpt2", false},
    {"bert", true},
    {"roberta", false},
    {"gpt2", true, .frozen = "transformer.wte.*,*.ln_1.*,*.0.attn.c_attn.bias, *.c_fc.weight"},
    {"bert", true, .frozen = "cls.*", .freezing = &low},
    {"gpt2", true, .freezing = &low},
    {"gpt2", true, .freezing = &blocks},
    {"gpt2", false, .freezing = &backbone},
    {"bert", true, .freezing = &backbone},
    {"roberta", false, .freezing = &first},
    {"gpt2", true, .adapter = &all_linear},
    {"llama", false, .adapter = &llama},
    {"llama", true},
    {"qwen2", true},
    {"qwen2", false, .adapter = &llama},
    {"mistral", false},
    {"mistral", true, .adapter = &all_linear},
    {"qwen3", false},
    {"qwen3", true, .frozen = "*.1.self_attn.q_norm.*", .freezing = &low},
    {"qwen3", true, .adapter = &all_linear},
    {"olmo2", false},
    {"olmo2", true, .frozen = "*.1.self_attn.k_norm.*", .freezing = &low},
    {"olmo2", true, .adapter = &all_linear},
    {"olmo", true},
    {"olmo", false, .freezing = &low},
    {"olmo", true, .adapter = &all_linear},
    {"granite", true},
    {"granite", false, .freezing = &low, .adapter = &llama},
    {"smollm3", true},
    {"smollm3", false, .adapter = &all_linear},
    {"stablelm", true},
    {"stablelm", false, .adapter = &all_linear},
    {"phi3", true},
    {"phi3", false, .adapter = &all_linear},
    {"gemma2", true},
    {"gemma2", false, .freezing = &low, .adapter = &all_linear},
    {"gemma3_text", true},
    {"gemma3_text", false, .frozen = "*_feedforward_layernorm.weight", .freezing = &low},
    {"gemma3_text", true, .adapter = &all_linear},
    {"openai-gpt", true},
    {"openai-gpt", false, .freezing = &first},
    {"openai-gpt", true, .freezing = &low},
    {"openai-gpt", true, .frozen = "*.0.ln_2.*", .freezing = &embeddings},
    {"openai-gpt", true, .adapter = &all_linear},
    {"bert", true, .adapter = &bert},
    {"distilbert", true},
    {"distilbert", false, .freezing = &low, .adapter = &all_linear},
    {"transformer_encoder", true},
    {"transformer_encoder", false, .freezing = &low, .adapter = &all_linear},
    {"transformer_encoder", true, .parts = &albert_parts},
    {"transformer_encoder", true, .parts = &plain_parts, .freezing = &low},
    {"transformer_encoder", false, .parts = &shared_parts, .adapter = &all_linear},
    {"transformer_decoder", true, .freezing = &low},
    {"transformer_decoder", false},
    {"transformer_decoder", false, .frozen = "*.1.attention.query_norm.*", .adapter = &all_linear},
    {"megatron-bert", true},
    {"megatron-bert", false, .freezing = &low, .adapter = &bert},
    {"albert", true},
    {"albert", false, .freezing = &embeddings},
    {"albert", true, .freezing = &backbone},
    {"albert", true, .frozen = "*.embedding_hidden_mapping_in.weight"},
    {"albert", true, .adapter = &all_linear},
    {"modernbert", true},
    {"modernbert", false, .freezing = &first},
    {"modernbert", true, .freezing = &low},
    {"modernbert", true, .adapter = &all_linear},
    {"marian", true},
    {"marian", true, .freezing = &low, .adapter = &all_linear},
    {"marian", true, .separate_embeddings = true},
    {"marian", true, .separate_embeddings = true, .source_vocabulary = 150},
    {"bart", true},
    {"bart", true, .freezing = &blocks},
    {"mbart", true},
    {"mbart", true, .adapter = &all_linear},
    {"t5", true},
    {"t5", false, .freezing = &low},
    {"t5", true, .adapter = &all_linear},
};

static const struct model_case bf16_cases[] = {
    {"gpt2", true, .adapter = &all_linear, .tolerance = 6e-2},
    {"gpt2", true, .tolerance = 6e-2},
    {"bert", true, .tolerance = 1e-1},
    {"megatron-bert", true, .tolerance = 1e-1},
    {"openai-gpt", true, .tolerance = 1e-1},
    {"albert", true, .tolerance = 1e-1},
    {"olmo2", true, .tolerance = 1e-1},
    {"marian", true, .tolerance = 1e-1},
    {"t5", false, .tolerance = 1e-1},
};

int main(int argc, char **argv)
{
    struct device *dev;
    CHECK_OK(comm_world_create(&argc, &argv, &world));
    CHECK_OK(device_create(DEVICE_CPU, 0, &dev));
    int step = argc > 1 ? 4 : 1;
    for (int sequence = 0; sequence < 2; sequence++) {
        for (int i = 0; i < COUNT(cases); i += step) {
            test_model(dev, DTYPE_F32, &cases[i], sequence == 1);
        }
        for (int i = 0; i < COUNT(bf16_cases) && matmul_supports(DTYPE_BF16); i++) {
            test_model(dev, DTYPE_BF16, &bf16_cases[i], sequence == 1);
        }
    }
    CHECK_OK(device_destroy(&dev));
    CHECK_OK(comm_destroy(&world));
    return 0;
}
