/* Attention weights of GPT-2, a Llama with grouped heads, Mistral with a window, Qwen3 with norms
 * of its queries and keys, and BERT: those of transformers (scripts/make_reference.py attention),
 * in fp32 and, if the processor has it, bf16. */
#include "base/device.h"
#include "base/memory.h"
#include "comm/comm.h"
#include "datasets/shard/h5file.h"
#include "kernels/cpu/matmul.h"
#include "kernels/kernels.h"
#include "tests/trainer/formats/huggingface/huggingface_folder.h"
#include "trainer/formats/weights/open.h"
#include "trainer/inference/attention_weights.h"

enum { TOKENS_MAX = 16 };

static void compute_weights(const char *name, const char *precision, const int32_t *ids,
                            int64_t tokens, struct attention_weights *out)
{
    static struct recipe recipe;
    char folder[FILE_PATH_BYTES], checkpoint[FILE_PATH_BYTES], setting[64];
    int32_t positions[TOKENS_MAX], token_types[TOKENS_MAX] = {0};
    const int32_t cu_rows[] = {0, (int32_t)tokens};
    struct comm *self = NULL;
    struct session s = {0};
    snprintf(setting, sizeof setting, "train.precision=%s", precision);
    char *overrides[] = {setting};
    for (int32_t i = 0; i < tokens; i++) {
        positions[i] = i;
    }
    join_path(folder, reference, name);
    CHECK_OK(import_to(folder, name, checkpoint, &recipe));
    CHECK_OK(comm_self_create(&self));
    CHECK_OK(weights_open_checkpoint(&s, self, checkpoint, overrides, 1, tokens));
    const struct model_input input = {.rows = tokens,
                                      .tokens = ids,
                                      .positions = positions,
                                      .segments = 1,
                                      .cu_rows = cu_rows,
                                      .longest = tokens,
                                      .token_type_ids = token_types};
    CHECK_OK(attention_weights_compute(s.model, &input, out));
    CHECK_OK(session_stop(&s));
    CHECK_OK(comm_destroy(&self));
}

static void check_model(hid_t file, const char *name, const char *precision, double tolerance)
{
    struct attention_weights w;
    int64_t tokens, count;
    int32_t *ids = reference_dataset(file, "ids", H5T_NATIVE_INT32, 4, &tokens);
    double *expected = reference_dataset(file, name, H5T_NATIVE_DOUBLE, 8, &count);
    CHECK(tokens <= TOKENS_MAX);
    compute_weights(name, precision, ids, tokens, &w);
    CHECK_EQUAL(w.layers * w.heads * tokens * tokens, count);
    for (int64_t i = 0; i < count; i++) {
        CHECK_NEAR(w.values[i], expected[i], tolerance);
    }
    const float *row = attention_weights_row(&w, 1, 1, 2);
    CHECK_EQUAL(row - w.values, ((w.heads + 1) * tokens + 2) * tokens);
    attention_weights_free(&w);
    free(expected);
    free(ids);
}

int main(void)
{
    static const char *const names[] = {"whole", "llama", "mistral", "qwen3", "bert_untied"};
    struct device *cpu;
    huggingface_folder_start();
    h5file_init();
    CHECK_OK(device_create(DEVICE_CPU, 0, &cpu));
    bool has_bf16 = matmul_supports(DTYPE_BF16);
    CHECK_OK(device_destroy(&cpu));
    hid_t file = reference_open("attention.h5");
    for (int i = 0; i < COUNT(names); i++) {
        check_model(file, names[i], "fp32", 1e-5);
        if (has_bf16) {
            check_model(file, names[i], "bf16", 0.1);
        }
    }
    H5Fclose(file);
    CHECK_OK(file_remove_tree(root));
    return 0;
}
