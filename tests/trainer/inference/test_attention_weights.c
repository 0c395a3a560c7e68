/* Compares attention weights with the weights of transformers (scripts/reference/make_reference.py
 * attention), in fp32 and, if the processor supports it, bf16. The decoders are GPT-2, Llama
 * (grouped heads), Mistral (a window), Qwen3 (norms of queries and keys), Gemma 2 (a soft-cap) and
 * Gemma 3. The encoders are BERT, DistilBERT, ALBERT, and ModernBERT with a window on both sides of
 * a query. T5, Marian, BART and mBART have three attentions. */
#include "base/device/device.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "datasets/shard/h5file.h"
#include "kernels/cpu/matmul.h"
#include "kernels/kernels.h"
#include "tests/trainer/formats/huggingface/huggingface_folder.h"
#include "trainer/formats/weights/open.h"
#include "trainer/inference/attention_weights.h"

enum { TOKENS_MAX = 16 };

struct fixture {
    hid_t file;
    int32_t *ids, *target_ids;
    int64_t tokens, target_tokens;
};

static struct model_input make_input(const struct fixture *f, bool has_source)
{
    static const int32_t positions[TOKENS_MAX] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12},
                         token_types[TOKENS_MAX] = {0};
    static int32_t cu_rows[2], target_cu_rows[2];
    CHECK(f->tokens <= TOKENS_MAX && f->target_tokens <= TOKENS_MAX);
    cu_rows[1] = (int32_t)f->tokens;
    target_cu_rows[1] = (int32_t)f->target_tokens;
    if (!has_source) {
        return (struct model_input){.rows = f->tokens,
                                    .tokens = f->ids,
                                    .positions = positions,
                                    .segments = 1,
                                    .cu_rows = cu_rows,
                                    .longest = f->tokens,
                                    .token_type_ids = token_types};
    }
    return (struct model_input){.rows = f->target_tokens,
                                .tokens = f->target_ids,
                                .positions = positions,
                                .segments = 1,
                                .cu_rows = target_cu_rows,
                                .longest = f->target_tokens,
                                .source = {.rows = f->tokens,
                                           .tokens = f->ids,
                                           .positions = positions,
                                           .cu_rows = cu_rows,
                                           .longest = f->tokens}};
}

static void compute_weights(const struct fixture *f, const char *name, bool has_source,
                            const char *precision, struct attention_weights out[ATTENTION_KINDS])
{
    static struct recipe recipe;
    char folder[FILE_PATH_BYTES], checkpoint[FILE_PATH_BYTES], setting[64];
    struct comm *self = NULL;
    struct session s = {0};
    const struct model_input input = make_input(f, has_source);
    snprintf(setting, sizeof setting, "train.precision=%s", precision);
    char *overrides[] = {setting};
    join_path(folder, reference, name);
    CHECK_OK(import_to(folder, name, checkpoint, &recipe));
    CHECK_OK(comm_self_create(&self));
    CHECK_OK(weights_open_checkpoint(&s, self, checkpoint, overrides, 1, TOKENS_MAX));
    CHECK_OK(attention_weights_compute(s.model, &input, out));
    CHECK_OK(session_stop(&s));
    CHECK_OK(comm_destroy(&self));
}

static void compare_weights(const struct fixture *f, const char *dataset,
                            const struct attention_weights *w, int64_t queries, int64_t keys,
                            double tolerance)
{
    int64_t count;
    double *expected = reference_dataset(f->file, dataset, H5T_NATIVE_DOUBLE, 8, &count);
    CHECK_EQUAL(w->queries, queries);
    CHECK_EQUAL(w->keys, keys);
    CHECK_EQUAL(w->layers * w->heads * queries * keys, count);
    for (int64_t i = 0; i < count; i++) {
        CHECK_NEAR(w->values[i], expected[i], tolerance);
    }
    const float *row = attention_weights_row(w, 1, 1, 2);
    CHECK_EQUAL(row - w->values, ((w->heads + 1) * queries + 2) * keys);
    free(expected);
}

static void check_model(const struct fixture *f, const char *name, const char *precision,
                        double tolerance)
{
    struct attention_weights w[ATTENTION_KINDS];
    compute_weights(f, name, false, precision, w);
    compare_weights(f, name, &w[ATTENTION_SELF], f->tokens, f->tokens, tolerance);
    CHECK(w[ATTENTION_DECODER].values == NULL && w[ATTENTION_CROSS].values == NULL);
    attention_weights_free(w);
}

static void check_encoder_decoder(const struct fixture *f, const char *name, const char *precision,
                                  double tolerance)
{
    static const char *const kinds[] = {"encoder_attentions", "decoder_attentions",
                                        "cross_attentions"};
    const int64_t queries[] = {f->tokens, f->target_tokens, f->target_tokens},
                  keys[] = {f->tokens, f->target_tokens, f->tokens};
    struct attention_weights w[ATTENTION_KINDS];
    char dataset[64];
    compute_weights(f, name, true, precision, w);
    for (int kind = 0; kind < ATTENTION_KINDS; kind++) {
        snprintf(dataset, sizeof dataset, "%s/%s", name, kinds[kind]);
        compare_weights(f, dataset, &w[kind], queries[kind], keys[kind], tolerance);
    }
    attention_weights_free(w);
}

int main(void)
{
    static const char *const names[] = {"whole",  "llama",       "mistral",     "qwen3",
                                        "gemma2", "gemma3_text", "bert_untied", "distilbert",
                                        "albert", "modernbert"};
    static const char *const seq2seq_names[] = {"t5", "marian", "bart", "mbart"};
    struct device *cpu;
    huggingface_folder_start();
    h5file_init();
    CHECK_OK(device_create(DEVICE_CPU, 0, &cpu));
    bool has_bf16 = matmul_supports(DTYPE_BF16);
    CHECK_OK(device_destroy(&cpu));
    struct fixture f = {.file = reference_open("attention.h5")};
    f.ids = reference_dataset(f.file, "ids", H5T_NATIVE_INT32, 4, &f.tokens);
    f.target_ids = reference_dataset(f.file, "target_ids", H5T_NATIVE_INT32, 4, &f.target_tokens);
    for (int i = 0; i < COUNT(names); i++) {
        check_model(&f, names[i], "fp32", 1e-5);
        if (has_bf16) {
            check_model(&f, names[i], "bf16", 0.1);
        }
    }
    for (int i = 0; i < COUNT(seq2seq_names); i++) {
        check_encoder_decoder(&f, seq2seq_names[i], "fp32", 1e-5);
        if (has_bf16) {
            check_encoder_decoder(&f, seq2seq_names[i], "bf16", 0.1);
        }
    }
    free(f.ids);
    free(f.target_ids);
    H5Fclose(f.file);
    CHECK_OK(file_remove_tree(root));
    return 0;
}
