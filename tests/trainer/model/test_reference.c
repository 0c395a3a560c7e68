/* Compares tiny models with PyTorch in double precision (make_reference.py): logits, the
 * gradient of every parameter, and ten steps with gradient clipping. The models are GPT-2 with
 * AdamW, with and without a document mask, GPT-2 with LAMB, Llama, and similar families of
 * transformers. With LoRA, gradients and weights of the adapters are compared with peft. The
 * families are also tested as transformer_decoder with their parts. LongRoPE is tested with short
 * and with long factors.
 *
 * The error of a tensor is |a - b| / |b| in the Frobenius norm (reference_run.h).
 * ctest: name reference_pytorch */
#include "tests/trainer/model/reference_run.h"
#include "trainer/model/architecture.h"
#include "trainer/model/cache.h"
#include "trainer/recipe/recipe.h"

struct reference {
    struct run run;
    int64_t segments;
    int32_t *ids, *positions, *ignored, *starts;
};

/* Reads the factors of LongRoPE. The sequence length of the model selects the short or the long
 * factors. In transformers, the length of the batch selects them. */
static void read_longrope(hid_t f, int64_t positions, struct rotary_scaling *scaling)
{
    double original = run_attribute_or(f, "rope_original_positions", 0);
    if (!(original > 0)) {
        return;
    }
    static struct recipe recipe;
    recipe.model.max_position_embeddings = positions;
    recipe.model.rope_original_positions = (int64_t)original;
    int64_t count;
    double *factors =
        reference_dataset(f, recipe_uses_long_factors(&recipe) ? "long_factor" : "short_factor",
                          H5T_NATIVE_DOUBLE, sizeof *factors, &count);
    *scaling = (struct rotary_scaling){
        .kind = ROTARY_LONGROPE,
        .factor = reference_attribute(f, "rope_factor"),
        .original_positions = original,
        .attention_factor = reference_attribute(f, "rope_attention_factor"),
    };
    memcpy(scaling->pair_factors, factors, (size_t)count * sizeof *factors);
    free(factors);
}

static void read_reference(const char *name, const char *architecture, const char *targets,
                           struct reference *r)
{
    int64_t count;
    run_open(&r->run, name, architecture, targets);
    hid_t f = r->run.file;
    struct model_config *c = &r->run.config;
    c->kv_heads = (int64_t)run_attribute_or(f, "kv_heads", 0);
    c->head_width = (int64_t)run_attribute_or(f, "head_dim", 0);
    c->attention_bias = c->mlp_bias = run_attribute_or(f, "biases", 0) > 0;
    c->qkv_bias = run_attribute_or(f, "qkv_bias", 0) > 0;
    c->window = (int64_t)run_attribute_or(f, "sliding_window", 0);
    run_set_pattern(c, (int64_t)run_attribute_or(f, "sliding_window_pattern", 0),
                    run_attribute_or(f, "global_first", 0) > 0);
    c->no_rope_interval = (int64_t)run_attribute_or(f, "no_rope_interval", 0);
    c->attention_scale = run_attribute_or(f, "attention_scale", 0);
    c->embedding_multiplier = run_attribute_or(f, "embedding_multiplier", 0);
    c->residual_multiplier = run_attribute_or(f, "residual_multiplier", 0);
    c->logits_divisor = run_attribute_or(f, "logits_scaling", 0);
    c->attention_softcap = run_attribute_or(f, "attention_softcap", 0);
    c->logits_softcap = run_attribute_or(f, "logits_softcap", 0);
    c->rotary_width = (int64_t)run_attribute_or(f, "rotary_width", 0);
    c->rope_theta = run_attribute_or(f, "rope_theta", 0);
    c->rope_local_theta = run_attribute_or(f, "rope_local_theta", 0);
    c->norm_epsilon = 1e-5f;
    read_longrope(f, c->positions, &c->rope_scaling);
    r->ids = reference_dataset(f, "ids", H5T_NATIVE_INT32, 4, &count);
    r->positions = reference_dataset(f, "positions", H5T_NATIVE_INT32, 4, &count);
    r->ignored = reference_dataset(f, "ignored", H5T_NATIVE_INT32, 4, &count);
    r->starts = reference_dataset(f, "starts", H5T_NATIVE_INT32, 4, &r->segments);
}

static void close_reference(struct reference *r)
{
    free(r->ids);
    free(r->positions);
    free(r->ignored);
    free(r->starts);
    run_close(&r->run);
}

/* Sets the parts of a family in transformer_decoder. The parameters have the same order and other
 * names. */
static void set_parts(struct run *r)
{
    struct model_config *c = &r->config;
    const struct architecture *family = model_architecture(c->architecture);
    static const int placements[] = {[PLACEMENT_PRE] = PLACEMENT_PRE,
                                     [PLACEMENT_BRANCH] = PLACEMENT_BRANCH,
                                     [PLACEMENT_BOTH] = PLACEMENT_BOTH};
    static const int qk_norms[] = {[QK_NORM_NONE] = QK_NORM_NONE,
                                   [QK_NORM_HEADS] = QK_NORM_HEADS,
                                   [QK_NORM_ROWS] = QK_NORM_ROWS};
    int count;
    int64_t elements;
    CHECK_OK(model_layout(c, 1, 0, &r->named, &count, &elements));
    c->architecture = "transformer_decoder";
    c->parts = (struct model_parts){.positions = POSITIONS_ROTARY,
                                    .rms_norm = family->norm.kind == NORM_RMS,
                                    .norm_without_weight = family->norm.no_weight,
                                    .gated = family->feed_forward.gated};
    c->parts.norm_placement = placements[family->norm.placement];
    c->parts.qk_norm = qk_norms[family->attention.qk_norm];
    c->activation = family->feed_forward.gelu ? c->activation : ACTIVATION_SILU;
    c->qkv_bias = c->qkv_bias || family->attention.qkv_bias;
    c->embedding_multiplier =
        family->embedding.scaled ? sqrt((double)c->width) : c->embedding_multiplier;
    int same;
    struct model_parameter *parameters = NULL;
    CHECK_OK(model_layout(c, 1, 0, &parameters, &same, &elements));
    CHECK_EQUAL(same, count);
    free(parameters);
}

/* ---- training steps ---- */

struct training {
    struct reference r;
    float *losses;
    int32_t *inputs, *targets, *cu_rows;
};

static void fill_batch(struct training *t, int64_t step, struct batch *batch)
{
    const struct reference *r = &t->r;
    for (int64_t b = 0; b < r->run.batch; b++) {
        const int32_t *row = r->ids + (step * r->run.batch + b) * (r->run.tokens + 1);
        for (int64_t i = 0; i < r->run.tokens; i++) {
            int64_t index = b * r->run.tokens + i;
            t->inputs[index] = row[i];
            t->targets[index] = r->ignored[index] ? BATCH_IGNORED : row[i + 1];
        }
    }
    *batch = (struct batch){
        .sequences = r->run.batch,
        .tokens = r->run.tokens,
        .rows = r->run.batch * r->run.tokens,
        .inputs = t->inputs,
        .targets = t->targets,
        .positions = r->positions,
        .segments = r->segments,
        .cu_rows = t->cu_rows,
        .longest = r->run.tokens,
    };
}

static void check_logits(const struct training *t, struct tensor hidden)
{
    int64_t count, n = hidden.rows, v = t->r.run.config.vocabulary;
    float *expected = reference_dataset(t->r.run.file, "logits", H5T_NATIVE_FLOAT, 4, &count);
    float *logits = malloc((size_t)count * sizeof *logits);
    CHECK(logits != NULL);
    CHECK_EQUAL(count, n * v);
    CHECK_OK(model_logits(t->r.run.model, tensor_view(logits, DTYPE_F32, n, v), hidden));
    double error = reference_error(logits, expected, count);
    CHECK_NEAR(error, 0, tolerance);
    printf("logits: relative error %.2g\n", error);
    free(logits);
    free(expected);
}

/* Computes the logits of the first sequence with the key-value cache: first most of its tokens,
 * then the rest. */
static void check_cache(const struct training *t)
{
    const struct reference *r = &t->r;
    int64_t count, v = r->run.config.vocabulary, rest = 3, first_tokens = r->run.tokens - rest;
    struct model_cache *cache = NULL;
    struct tensor hidden;
    if (r->segments != r->run.batch) {
        return; /* a sequence contains several documents */
    }
    float *expected = reference_dataset(r->run.file, "logits", H5T_NATIVE_FLOAT, 4, &count);
    float *logits = malloc((size_t)(rest * v) * sizeof *logits);
    CHECK(logits != NULL);
    CHECK_OK(model_cache_create(t->r.run.model, 1, r->run.tokens, 0, &cache));
    CHECK_OK(model_forward_cached(t->r.run.model, cache, t->inputs, &first_tokens, &hidden));
    CHECK_OK(model_forward_cached(t->r.run.model, cache, t->inputs + first_tokens, &rest, &hidden));
    CHECK_OK(model_logits(t->r.run.model, tensor_view(logits, DTYPE_F32, rest, v), hidden));
    CHECK_NEAR(reference_error(logits, expected + first_tokens * v, rest * v), 0, tolerance);
    CHECK_OK(model_cache_destroy(&cache));
    free(logits);
    free(expected);
}

static void train_step(struct training *t, int64_t step)
{
    struct run *run = &t->r.run;
    struct batch batch;
    struct tensor hidden;
    double sums[OBJECTIVE_SUMS] = {0};
    fill_batch(t, step, &batch);
    struct model_input input = objective_input_model(&batch);
    input.training = input.first_micro_batch = true;
    run_invalidate_gradients(run);
    if (step == 0) {
        check_cache(t);
    }
    CHECK_OK(model_forward(run->model, &input, &hidden));
    if (step == 0) {
        check_logits(t, hidden);
    }
    struct objective_input views = {.scratch = {.losses = t->losses}, .device_sums = sums};
    objective_input_fill(&views, run->model, &batch, &input, hidden, run->parameter_gradients);
    run_end_step(run, &batch, &input, &views, step);
}

static void run_reference(const char *name, const char *architecture, const char *targets,
                          bool with_parts)
{
    struct training t = {0};
    struct reference *r = &t.r;
    read_reference(name, architecture, targets, r);
    if (with_parts) {
        set_parts(&r->run);
    }
    run_make(&r->run);
    int64_t rows = r->run.batch * r->run.tokens;
    t.losses = calloc((size_t)rows, sizeof *t.losses);
    t.inputs = calloc((size_t)rows, sizeof *t.inputs);
    t.targets = calloc((size_t)rows, sizeof *t.targets);
    t.cu_rows = calloc((size_t)r->segments + 1, sizeof *t.cu_rows);
    CHECK(t.losses && t.inputs && t.targets && t.cu_rows);
    memcpy(t.cu_rows, r->starts, (size_t)r->segments * sizeof *t.cu_rows);
    t.cu_rows[r->segments] = (int32_t)rows;
    for (int64_t step = 0; step < r->run.steps; step++) {
        train_step(&t, step);
    }
    printf("weights after %lld steps: relative error %.2g\n", (long long)r->run.steps,
           run_compare_tensors(&r->run, "trained", model_weights(r->run.model), tolerance, false));
    free(t.losses);
    free(t.inputs);
    free(t.targets);
    free(t.cu_rows);
    free(r->run.named);
    close_reference(r);
}

static void test_reference(const char *name, const char *architecture, const char *targets)
{
    run_reference(name, architecture, targets, false);
}

/* transformer_decoder with the parts of a family computes the numbers of the family. */
static void test_parts(const char *name, const char *architecture)
{
    printf("%s as transformer_decoder\n", architecture);
    run_reference(name, architecture, NULL, true);
}

int main(void)
{
    test_reference("gpt2_tanh.h5", "gpt2", NULL);
    test_reference("gpt2_erf_documents.h5", "gpt2", NULL);
    test_reference("gpt2_lamb.h5", "gpt2", NULL);
    test_reference("llama.h5", "llama", NULL);
    test_reference("qwen2.h5", "qwen2", NULL);
    test_reference("mistral.h5", "mistral", NULL);
    test_reference("qwen3.h5", "qwen3", NULL);
    test_reference("llama_biases.h5", "llama", NULL);
    test_reference("openai_gpt.h5", "openai-gpt", NULL);
    test_reference("gemma3_text.h5", "gemma3_text", NULL);
    test_reference("gemma3_layers.h5", "gemma3_text", NULL);
    test_reference("smollm3.h5", "smollm3", NULL);
    test_reference("granite.h5", "granite", NULL);
    test_reference("olmo2.h5", "olmo2", NULL);
    test_reference("phi3.h5", "phi3", NULL);
    test_reference("phi3_within.h5", "phi3", NULL);
    test_reference("phi3_beyond.h5", "phi3", NULL);
    test_reference("stablelm.h5", "stablelm", NULL);
    test_reference("gemma2.h5", "gemma2", NULL);
    test_reference("olmo.h5", "olmo", NULL);
    test_reference("gpt2_lora.h5", "gpt2", "c_attn, c_proj, c_fc");
    test_reference("llama_lora.h5", "llama", "q_proj, v_proj");
    test_reference("phi3_lora.h5", "phi3", "qkv_proj, gate_up_proj");
    test_reference("openai_gpt_lora.h5", "openai-gpt", "c_attn, mlp.c_proj");
    test_reference("gemma2_lora.h5", "gemma2", "q_proj, o_proj, down_proj");
    test_reference("qwen3_lora.h5", "qwen3", "all-linear");
    test_parts("llama_biases.h5", "llama");
    test_parts("qwen2.h5", "qwen2");
    test_parts("mistral.h5", "mistral");
    test_parts("qwen3.h5", "qwen3");
    test_parts("gemma2.h5", "gemma2");
    test_parts("gemma3_text.h5", "gemma3_text");
    test_parts("gemma3_layers.h5", "gemma3_text");
    test_parts("smollm3.h5", "smollm3");
    test_parts("granite.h5", "granite");
    test_parts("olmo2.h5", "olmo2");
    test_parts("stablelm.h5", "stablelm");
    test_parts("olmo.h5", "olmo");
    return 0;
}
