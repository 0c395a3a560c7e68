/* Compares tiny encoders with transformers in double precision (make_reference.py bert and
 * encoders): logits, both losses, the gradient of every parameter, and ten steps of AdamW and of
 * LAMB with gradient clipping. With LoRA, the adapters are compared with peft. The batches of
 * transformers are padded; here they have no padding. Errors and key biases are treated as in
 * test_reference.c. */
#include "base/memory.h"
#include "tests/trainer/model/reference_run.h"

/* AdamW amplifies the rounding of gradients that are nearly zero. The amount differs between
 * instruction sets. */
static const double tolerance_weights = 1e-4;

struct reference {
    struct run run;
    int32_t *ids, *attention_mask, *segments, *labels, *next; /* of all steps, padded */
};

static int32_t *read_batches(hid_t file, const char *name)
{
    int64_t count;
    char path[64];
    snprintf(path, sizeof path, "batch/%s", name);
    return reference_dataset(file, path, H5T_NATIVE_INT32, 4, &count);
}

static void read_parts(hid_t f, struct model_config *c)
{
    c->parts = (struct model_parts){.rms_norm = run_attribute_or(f, "rms_norm", 0) > 0,
                                    .gated = run_attribute_or(f, "gated", 0) > 0};
    c->parts.norm_placement = (int)run_attribute_or(f, "norm_placement", 0);
    c->parts.positions = (int)run_attribute_or(f, "positions_kind", 0);
    c->parts.qk_norm = (int)run_attribute_or(f, "qk_norm", 0);
    c->rotary_width = (int64_t)run_attribute_or(f, "rotary_width", 0);
    c->attention_softcap = run_attribute_or(f, "attention_softcap", 0);
    c->attention_scale = run_attribute_or(f, "attention_scale", 0);
    c->residual_multiplier = run_attribute_or(f, "residual_multiplier", 0);
    c->embedding_multiplier = run_attribute_or(f, "embedding_multiplier", 0);
    c->attention_bias = c->mlp_bias = run_attribute_or(f, "biases", 0) > 0;
    c->head_width = (int64_t)run_attribute_or(f, "head_dim", 0);
    c->rope_theta = run_attribute_or(f, "rope_theta", 0);
    c->rope_local_theta = run_attribute_or(f, "rope_local_theta", 0);
    c->window = (int64_t)run_attribute_or(f, "window", 0);
    run_set_pattern(c, (int64_t)run_attribute_or(f, "window_pattern", 0),
                    strcmp(c->architecture, "modernbert") == 0);
}

static void read_reference(const char *name, const char *architecture, const char *targets,
                           struct reference *r)
{
    run_open(&r->run, name, architecture, targets);
    hid_t f = r->run.file;
    struct model_config *c = &r->run.config;
    c->embedding_width = (int64_t)run_attribute_or(f, "embedding_size", 0);
    c->activation = run_attribute_or(f, "relu", 0) > 0 ? ACTIVATION_RELU : c->activation;
    c->activation = (enum activation)run_attribute_or(f, "activation", c->activation);
    read_parts(f, c);
    c->norm_epsilon = 1e-12f;
    c->tied = true;
    c->token_types = (int64_t)reference_attribute(f, "segments");
    c->next_sentence = H5Lexists(f, "label_logits", H5P_DEFAULT) > 0;
    c->output_rows = r->run.batch * r->run.tokens;
    c->examples = r->run.batch;
    r->ids = read_batches(f, "input_ids");
    r->attention_mask = read_batches(f, "attention_mask");
    r->segments = read_batches(f, "token_type_ids");
    r->labels = read_batches(f, "labels");
    r->next = read_batches(f, "next_sentence_label");
}

static void close_reference(struct reference *r)
{
    void *all[] = {r->ids, r->attention_mask, r->segments, r->labels, r->next};
    for (int i = 0; i < COUNT(all); i++) {
        free(all[i]);
    }
    run_close(&r->run);
}

/* ---- comparisons ---- */

static void compare_dataset(const struct run *r, const char *name, const float *actual,
                            int64_t count)
{
    int64_t expected_count;
    float *expected = reference_dataset(r->file, name, H5T_NATIVE_FLOAT, 4, &expected_count);
    CHECK_EQUAL(expected_count, count);
    double error = reference_error(actual, expected, count);
    printf("%s: relative error %.2g\n", name, error);
    CHECK(error <= tolerance);
    free(expected);
}

/* ---- training steps ---- */

struct training {
    struct reference r;
    float *floats;     /* losses, row scales */
    int32_t *integers; /* argmax, then the arrays of the batch */
    int32_t *ids, *positions, *segments, *masked_rows, *masked_ids, *all_rows;
    int32_t cu_rows[64];
};

/* Makes a batch of the tokens that are not padding, one example after the other. */
static struct batch make_batch(struct training *t, int64_t step)
{
    const struct reference *r = &t->r;
    struct batch b = {
        .sequences = r->run.batch,
        .tokens = r->run.tokens,
        .segments = r->run.batch,
        .inputs = t->ids,
        .positions = t->positions,
        .cu_rows = t->cu_rows,
        .token_type_ids = t->segments,
        .outputs = {.rows = t->masked_rows, .targets = t->masked_ids},
        .kind = BATCH_SENTENCE_PAIRS,
        .sentence_pairs = {.next_sentence = r->next + step * r->run.batch},
    };
    for (int64_t e = 0; e < r->run.batch; e++) {
        int64_t at = (step * r->run.batch + e) * r->run.tokens;
        for (int64_t i = 0; i < r->run.tokens && r->attention_mask[at + i] != 0; i++) {
            t->ids[b.rows] = r->ids[at + i];
            t->positions[b.rows] = (int32_t)i;
            t->segments[b.rows] = r->segments[at + i];
            t->all_rows[b.rows] = (int32_t)b.rows;
            if (r->labels[at + i] >= 0) {
                t->masked_rows[b.outputs.count] = (int32_t)b.rows;
                t->masked_ids[b.outputs.count++] = r->labels[at + i];
            }
            b.rows++;
        }
        t->cu_rows[e + 1] = (int32_t)b.rows;
    }
    CHECK(b.rows < r->run.batch * r->run.tokens);
    return b;
}

static struct model_input make_input(const struct batch *b)
{
    struct model_input input = objective_input_model(b);
    input.training = input.first_micro_batch = true;
    return input;
}

/* Compares the logits of all tokens, masked or not, and of the next-sentence labels. */
static void check_logits(struct training *t, const struct batch *b)
{
    int64_t v = t->r.run.config.vocabulary, n = b->rows;
    struct model_input input = make_input(b);
    struct tensor hidden;
    float *logits = malloc((size_t)(n * v) * sizeof *logits);
    CHECK(logits != NULL);
    input.output_rows = t->all_rows;
    input.outputs = n;
    CHECK_OK(model_forward(t->r.run.model, &input, &hidden));
    CHECK_OK(classifier_logits(t->r.run.kernels, tensor_view(logits, DTYPE_F32, n, v), hidden,
                               model_lm_head(t->r.run.model), model_lm_head_bias(t->r.run.model)));
    compare_dataset(&t->r.run, "logits", logits, n * v);
    if (t->r.run.config.next_sentence) {
        struct model_label_head labels = model_get_label_head(t->r.run.model, &input, NULL);
        CHECK_OK(classifier_logits(t->r.run.kernels,
                                   tensor_view(logits, DTYPE_F32, b->sequences, 2), labels.hidden,
                                   labels.weight, labels.bias));
        compare_dataset(&t->r.run, "label_logits", logits, 2 * b->sequences);
    }
    free(logits);
}

static void train_step(struct training *t, int64_t step)
{
    struct run *run = &t->r.run;
    struct batch b = make_batch(t, step);
    struct model_input input = make_input(&b);
    struct tensor hidden;
    double sums[OBJECTIVE_SUMS] = {0}, count = (double)b.outputs.count;
    if (step == 0) {
        check_logits(t, &b);
    }
    run_invalidate_gradients(run);
    CHECK_OK(model_forward(run->model, &input, &hidden));
    struct objective_input views = {
        .scratch =
            {
                .losses = t->floats,
                .row_scales = t->floats + run->config.output_rows,
                .argmax = t->integers,
            },
        .example_weight = (double)b.outputs.count / (double)b.sequences,
        .device_sums = sums,
    };
    objective_input_fill(&views, run->model, &b, &input, hidden, run->parameter_gradients);
    CHECK_OK(objective_mlm.loss(run->kernels, &b, &views, true, sums));
    CHECK_OK(model_backward(run->model, &input, run->parameter_gradients, NULL, NULL));
    CHECK(sums[OBJECTIVE_COUNT] == count);
    CHECK_NEAR(objective_loss(&objective_mlm, sums) / run->losses[step], 1, tolerance);
    if (step == 0) {
        run_divide_gradients(run, count);
        double error = run_compare_tensors(run, "gradients", run->gradients, tolerance, true);
        printf("gradients: relative error %.2g\n", error);
        count = 1;
    }
    run_update(run, step, count);
}

static void make_arrays(struct training *t)
{
    size_t rows = (size_t)t->r.run.config.output_rows;
    t->floats = calloc(2 * rows, sizeof *t->floats);
    t->integers = calloc(7 * rows, sizeof *t->integers);
    CHECK(t->floats != NULL && t->integers != NULL);
    int32_t **arrays[] = {&t->ids,         &t->positions,  &t->segments,
                          &t->masked_rows, &t->masked_ids, &t->all_rows};
    for (int i = 0; i < COUNT(arrays); i++) {
        *arrays[i] = t->integers + (i + 1) * rows;
    }
}

static void test_reference(const char *name, const char *architecture, const char *targets)
{
    struct training t = {0};
    struct run *run = &t.r.run;
    read_reference(name, architecture, targets, &t.r);
    run_make(run);
    make_arrays(&t);
    printf("%s\n", name);
    for (int64_t step = 0; step < run->steps; step++) {
        train_step(&t, step);
    }
    printf(
        "weights after %lld steps: relative error %.2g\n", (long long)run->steps,
        run_compare_tensors(run, "trained", model_weights(run->model), tolerance_weights, false));
    free(t.floats);
    free(t.integers);
    close_reference(&t.r);
}

int main(void)
{
    test_reference("bert.h5", "bert", NULL);
    test_reference("bert_lamb.h5", "bert", NULL);
    test_reference("roberta.h5", "roberta", NULL);
    test_reference("distilbert.h5", "distilbert", NULL);
    test_reference("megatron_bert.h5", "megatron-bert", NULL);
    test_reference("modernbert.h5", "modernbert", NULL);
    test_reference("albert.h5", "albert", NULL);
    test_reference("modernbert_lora.h5", "modernbert", "Wqkv, Wi");
    test_reference("distilbert_lora.h5", "distilbert", "q_lin, k_lin, out_lin, lin2");
    test_reference("transformer_post.h5", "transformer_encoder", NULL);
    test_reference("transformer_pre.h5", "transformer_encoder", NULL);
    test_reference("transformer_branch.h5", "transformer_encoder", NULL);
    test_reference("transformer_both.h5", "transformer_encoder", NULL);
    test_reference("transformer_parts.h5", "transformer_encoder", NULL);
    test_reference("transformer_bert.h5", "transformer_encoder", NULL);
    return 0;
}
