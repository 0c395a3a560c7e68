/* One model over all ranks of the world against the same model on this rank alone: losses, gradients piece
 * by piece, dropout included; what every rank holds must be the same to the last bit. Two micro-batches,
 * so that gradients are set and then added to; with and without sequence parallelism, whose shares of the
 * 21 rows are uneven. What is frozen on the ranks is not on the one alone: the rest's gradients are the same;
 * also of adapters, with dropout of their own. What backward makes again instead of keeping it has no other bits. */
#include "base/random.h"
#include "tests/check.h"
#include "trainer/model/model_impl.h"
#include "trainer/train/objective_input.h"

enum { TOKENS = 7, SEQUENCES = 3, ROWS = TOKENS * SEQUENCES, MICRO_BATCHES = 2 };

struct shared {
    struct kernels *kernels;
    struct model *model;
    float *gradients, **places; /* the flat buffer, and each parameter's in it */
    float losses[ROWS], scales[ROWS];
    int32_t best[ROWS];
    double sums[OBJECTIVE_SUMS];
};

static struct comm *world;
static int32_t inputs[MICRO_BATCHES][ROWS], targets[MICRO_BATCHES][ROWS], positions[ROWS];
static int32_t segments[ROWS], masked_rows[MICRO_BATCHES][ROWS], masked_ids[MICRO_BATCHES][ROWS];
static int64_t masked[MICRO_BATCHES];
static const int32_t cu_rows[SEQUENCES + 1] = {0, TOKENS, 2 * TOKENS, ROWS};
static const int32_t next_sentence[SEQUENCES] = {1, 0, 1};

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
        for (int i = 0; i < ROWS; i += 1 + i % 3) { /* BERT's */
            masked_rows[m][masked[m]] = i;
            masked_ids[m][masked[m]++] = targets[m][i];
        }
    }
}

/* Biases and an adapter's second matrix are zero and norms one at first: here each element is something else,
 * wherever it lies. */
static void disturb(struct model *m)
{
    int count;
    const struct model_parameter *p = model_parameters(m, &count);
    for (int i = 0; i < count; i++) {
        bool alike = p[i].dimensions == 1 || p[i].role == MODEL_ADAPTER_OUT;
        for (int j = 0; alike && j < p[i].shard_count; j++) {
            const struct model_shard *piece = &p[i].shards[j];
            uint64_t key = random_key(8, RANDOM_TEST, (uint64_t)i, 0);
            bool kept = p[i].first < model_f32_elements(m);
            float *w = (kept ? model_weights(m) + p[i].first : model_vector(m, i).data);
            w += piece->first;
            for (int64_t e = 0; e < piece->rows * piece->columns; e++) {
                int64_t row = piece->row + e / piece->columns;
                int64_t column = piece->column + e % piece->columns;
                w[e] += 0.1f * random_normal(key, (uint64_t)(row * p[i].whole_columns + column));
            }
        }
    }
    CHECK_OK(model_sync_bf16(m));
}

static void shared_make(struct shared *s, struct device *dev, enum dtype dtype,
                        const struct model_config *config, struct comm *tensor, bool sequence)
{
    int ranks = tensor != NULL ? comm_size(tensor) : 1;
    struct kernels_limits limits = {.rows = ROWS,
                                    .width = config->width,
                                    .inner = config->inner,
                                    .heads = (int)config->heads,
                                    .head_width = config->width / config->heads,
                                    .sequence = TOKENS,
                                    .vocabulary = model_vocabulary_rows(config, ranks),
                                    .training = true,
                                    .vocabulary_shards = ranks};
    *s = (struct shared){0};
    CHECK_OK(kernels_create(dev, dtype, 1, &limits, &s->kernels));
    CHECK_OK(model_create(s->kernels, config, tensor, sequence, ROWS, true, &s->model));
    CHECK_OK(model_connect(s->model));
    CHECK_OK(model_init_weights(s->model, 5));
    disturb(s->model);
    s->gradients = malloc((size_t)model_elements(s->model) * sizeof *s->gradients);
    CHECK(s->gradients != NULL);
    memset(s->gradients, 0xff, (size_t)model_elements(s->model) * sizeof *s->gradients);
    int count;
    const struct model_parameter *p = model_parameters(s->model, &count);
    s->places = calloc((size_t)count, sizeof *s->places);
    CHECK(s->places != NULL);
    for (int i = 0; i < count; i++) {
        s->places[i] = p[i].trained ? s->gradients + p[i].first : NULL;
    }
}

static void shared_release(struct shared *s)
{
    CHECK_OK(model_destroy(&s->model));
    CHECK_OK(kernels_destroy(&s->kernels));
    free(s->gradients);
    free(s->places);
}

static void run(struct shared *s, int m, bool training)
{
    struct model_input input = {
        .rows = ROWS,
        .tokens = inputs[m],
        .positions = positions,
        .segments = SEQUENCES,
        .cu_rows = cu_rows,
        .longest = TOKENS,
        .first_row = m * ROWS,
        .seed = 11,
        .step = 2,
        .training = training,
        .first_micro_batch = m == 0,
    };
    struct batch batch = {.rows = ROWS, .targets = targets[m], .sequences = SEQUENCES};
    struct tensor hidden;
    double device_sums[OBJECTIVE_SUMS] = {0};
    bool masks = model_get_config(s->model)->output_rows > 0;
    const struct objective *objective = masks ? &objective_mlm : &objective_clm;
    if (masks) {
        batch.masked = masked[m];
        batch.masked_ids = masked_ids[m];
        batch.next_sentence = next_sentence;
        input.segment_ids = segments;
        input.output_rows = masked_rows[m];
        input.outputs = masked[m];
    }
    CHECK_OK(model_forward(s->model, &input, &hidden));
    struct objective_input views = {
        .losses = s->losses,
        .row_scales = s->scales,
        .argmax = s->best,
        .example_weight = 3,
        .device_sums = device_sums,
    };
    objective_input_fill(&views, s->model, &batch, &input, hidden, training ? s->places : NULL);
    CHECK_OK(objective->loss(s->kernels, &batch, &views, training, s->sums));
    for (int i = 0; i < OBJECTIVE_SUMS; i++) {
        s->sums[i] += device_sums[i];
    }
    if (training) {
        CHECK_OK(model_backward(s->model, &input, s->places, NULL, NULL));
    }
}

static float largest_of(const float *x, int64_t count)
{
    float largest = 0;
    for (int64_t i = 0; i < count; i++) {
        largest = fmaxf(largest, fabsf(x[i]));
    }
    return largest;
}

/* The keys' bias changes no score: its gradient is rounding alone, so that errors count against the largest
 * gradient of the model too. */
static void compare_gradients(const struct shared *part, const struct shared *whole,
                              double tolerance)
{
    int count;
    const struct model_parameter *p = model_parameters(part->model, &count);
    const struct model_parameter *w = model_parameters(whole->model, &count);
    float most = largest_of(whole->gradients, model_elements(whole->model));
    for (int i = 0; i < count; i++) {
        const float *exact = whole->gradients + w[i].first;
        bool noise = strstr(w[i].name, "self.key.bias") != NULL;
        double size =
            largest_of(exact, w[i].whole_rows * w[i].whole_columns) + (noise ? 1 : 1e-3) * most;
        for (int j = 0; p[i].trained && j < p[i].shard_count; j++) {
            const struct model_shard *piece = &p[i].shards[j];
            const float *got = part->gradients + p[i].first + piece->first;
            for (int64_t e = 0; e < piece->rows * piece->columns; e++) {
                int64_t row = piece->row + e / piece->columns;
                double expected = exact[row * w[i].columns + piece->column + e % piece->columns];
                if (!(fabs(got[e] - expected) <= tolerance * size)) {
                    fprintf(stderr, "%s element %lld: %g, alone %g\n", p[i].name, (long long)e,
                            (double)got[e], expected);
                    CHECK(false);
                }
            }
        }
    }
}

/* What every rank holds is the same on all. */
static void check_replicas(const struct shared *s)
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

/* Nothing is written for what is frozen, and it lies behind the rest. */
static void check_frozen(const struct shared *s, bool expected)
{
    int count;
    const struct model_parameter *p = model_parameters(s->model, &count);
    int64_t trained = model_trained_elements(p, count), frozen = 0;
    for (int i = 0; i < count; i++) {
        CHECK(p[i].trained == (p[i].first < trained));
        frozen += p[i].trained ? 0 : p[i].rows * p[i].columns;
    }
    CHECK((frozen > 0) == expected);
    CHECK(trained + frozen <= model_elements(s->model));
    for (int64_t i = trained; i < model_elements(s->model); i++) {
        CHECK(isnan(s->gradients[i]));
    }
}

/* Three sequences in a row, dropout, all ranks: recomputed or not. */
static void check_recompute(struct device *dev, enum dtype dtype, const struct model_config *config,
                            bool sequence, const struct shared *kept)
{
    static const enum model_recompute ways[] = {MODEL_RECOMPUTE_SELECTIVE, MODEL_RECOMPUTE_FULL};
    for (int i = 0; i < 2; i++) {
        struct shared again;
        struct model_config other = *config;
        other.recompute = ways[i];
        shared_make(&again, dev, dtype, &other, world, sequence);
        for (int m = 0; m < MICRO_BATCHES; m++) {
            run(&again, m, true);
        }
        CHECK(memcmp(again.sums, kept->sums, sizeof again.sums) == 0);
        CHECK(memcmp(again.gradients, kept->gradients,
                     (size_t)model_elements(kept->model) * sizeof(float)) == 0);
        shared_release(&again);
    }
}

static void test_model(struct device *dev, enum dtype dtype, const char *architecture, bool tied,
                       bool sequence, const char *frozen, struct model_freezing freezing,
                       struct model_adapter adapter, double tolerance)
{
    bool masks = architecture[0] == 'b' || architecture[0] == 'r';
    struct model_config config = {
        .architecture = architecture,
        .layers = dtype == DTYPE_F32 ? 3 : 2, /* bf16: rounding grows with each */
        .width = 48,
        .heads = 12,
        .inner = 60,
        .positions = TOKENS + 2,
        .vocabulary = 101,
        .activation = ACTIVATION_GELU_TANH,
        .dropout = 0.1f,
        .attention_dropout = 0.2f,
        .norm_epsilon = 1e-5f,
        .rope_theta = 1e4,
        .initializer_range = 0.2f,
        .adapter = adapter,
        .tied = tied,
        .segments = masks ? 2 : 0,
        .next_sentence = strcmp(architecture, "bert") == 0,
        .output_rows = masks ? ROWS : 0,
        .examples = masks ? SEQUENCES : 0,
    };
    struct shared part, whole;
    make_tokens(config.vocabulary);
    config.frozen = frozen;
    config.freezing = freezing;
    shared_make(&part, dev, dtype, &config, world, sequence);
    config.frozen = NULL;
    config.freezing = (struct model_freezing){0};
    shared_make(&whole, dev, dtype, &config, NULL, false);
    for (int m = 0; m < MICRO_BATCHES; m++) {
        run(&part, m, true);
        run(&whole, m, true);
        CHECK_NEAR(part.sums[OBJECTIVE_LOSS], whole.sums[OBJECTIVE_LOSS],
                   tolerance * whole.sums[OBJECTIVE_LOSS]);
        CHECK(part.sums[OBJECTIVE_COUNT] == whole.sums[OBJECTIVE_COUNT]);
    }
    compare_gradients(&part, &whole, tolerance);
    check_replicas(&part);
    check_frozen(&part, adapter.rank > 0 || frozen != NULL || freezing.embeddings ||
                            freezing.backbone || freezing.layers > 0);
    config.frozen = frozen;
    config.freezing = freezing;
    config.adapter = adapter;
    check_recompute(dev, dtype, &config, sequence, &part);
    run(&part, 0, false);
    run(&whole, 0, false);
    for (int i = 0; i < ROWS; i++) {
        CHECK_NEAR(part.losses[i], whole.losses[i], tolerance * (1 + fabsf(whole.losses[i])));
    }
    shared_release(&part);
    shared_release(&whole);
}

int main(int argc, char **argv)
{
    struct device *dev;
    CHECK_OK(comm_world_create(&argc, &argv, &world));
    CHECK_OK(device_create(DEVICE_CPU, 0, &dev));
    const struct model_freezing all = {0}, low = {.embeddings = true, .layers = 1},
                                blocks = {.embeddings = true, .layers = 2},
                                backbone = {.backbone = true}, inside = {.layers = 1};
    const char *some_gpt2 = "transformer.wte.*,*.ln_1.*,*.0.attn.c_attn.bias, *.c_fc.weight";
    const struct model_adapter none = {0}, wide = {4, 6, 0.25f, "all-linear"},
                               some = {3, 3, 0, "q_proj, v_proj,up_proj,down_proj"};
    const struct model_adapter masks = {3, 3, 0.1f, "query, key, output.dense", true};
    for (int sequence = 0; sequence < 2; sequence++) {
        bool rows = sequence == 1;
        test_model(dev, DTYPE_F32, "gpt2", true, rows, NULL, all, none, 1e-5);
        test_model(dev, DTYPE_F32, "gpt2", false, rows, NULL, all, none, 1e-5);
        test_model(dev, DTYPE_F32, "bert", true, rows, NULL, all, none, 1e-5);
        test_model(dev, DTYPE_F32, "roberta", false, rows, NULL, all, none, 1e-5);
        test_model(dev, DTYPE_F32, "gpt2", true, rows, some_gpt2, all, none, 1e-5);
        test_model(dev, DTYPE_F32, "bert", true, rows, "cls.*", low, none, 1e-5);
        test_model(dev, DTYPE_F32, "gpt2", true, rows, NULL, low, none, 1e-5);
        test_model(dev, DTYPE_F32, "gpt2", true, rows, NULL, blocks, none, 1e-5);
        test_model(dev, DTYPE_F32, "gpt2", false, rows, NULL, backbone, none, 1e-5);
        test_model(dev, DTYPE_F32, "bert", true, rows, NULL, backbone, none, 1e-5);
        test_model(dev, DTYPE_F32, "roberta", false, rows, NULL, inside, none, 1e-5);
        test_model(dev, DTYPE_F32, "gpt2", true, rows, NULL, all, wide, 1e-5);
        test_model(dev, DTYPE_F32, "llama", false, rows, NULL, all, some, 1e-5);
        test_model(dev, DTYPE_F32, "bert", true, rows, NULL, all, masks, 1e-5);
        if (kernels_supports(dev, DTYPE_BF16)) {
            test_model(dev, DTYPE_BF16, "gpt2", true, rows, NULL, all, wide, 6e-2);
            test_model(dev, DTYPE_BF16, "gpt2", true, rows, NULL, all, none, 6e-2);
            test_model(dev, DTYPE_BF16, "bert", true, rows, NULL, all, none, 1e-1);
        }
    }
    CHECK_OK(device_destroy(&dev));
    CHECK_OK(comm_destroy(&world));
    return 0;
}
