/* Configurations of published models (scripts/reference/reference_published.py): import reads each
 * config.json, and the plan of its recipe has the parameter count of the class in transformers. An
 * exported config.json reads back as the same recipe. */
#include <sys/stat.h>

#include "base/memory.h"
#include "tests/trainer/formats/huggingface/huggingface_folder.h"
#include "trainer/formats/huggingface/config.h"
#include "trainer/train/planner/plan.h"

static char folder[FILE_PATH_BYTES];

static void write_text(const char *text)
{
    char path[FILE_PATH_BYTES];
    join_path(path, folder, "config.json");
    CHECK_OK(file_write(path, text, strlen(text)));
}

/* Writes the recipe as config.json and reads it again. */
static void check_round_trip(const struct recipe *recipe)
{
    static struct recipe again;
    char differences[STATUS_TEXT_BYTES], *text = NULL;
    size_t bytes = 0;
    struct huggingface_config config;
    struct labels labels = {0};
    struct huggingface_special_tokens tokens = {-1, -1, -1,
                                                (int32_t)recipe->model.decoder_start_token_id};
    FILE *file = open_memstream(&text, &bytes);
    CHECK(file != NULL);
    CHECK_OK(huggingface_config_write(recipe, recipe->model.vocab_size, tokens, &labels,
                                      SAFETENSORS_F32, file));
    fclose(file);
    write_text(text);
    free(text);
    CHECK_OK(huggingface_config_read(folder, NULL, &again, &config));
    CHECK_EQUAL(recipe_differences(recipe, &again, differences, sizeof differences), 0);
}

static void check_model(const json_t *model)
{
    static struct recipe recipe;
    const char *name = json_string_value(json_object_get(model, "name"));
    int64_t expected = json_integer_value(json_object_get(model, "parameters"));
    char *text = json_dumps(json_object_get(model, "config"), 0);
    struct huggingface_config config;
    struct plan plan;
    CHECK(text != NULL);
    write_text(text);
    free(text);
    CHECK_OK(huggingface_config_read(folder, NULL, &recipe, &config));
    CHECK_OK(plan_make(&recipe, 1, &plan));
    if (plan.parameters != expected) {
        fprintf(stderr, "%s: %lld parameters, expected %lld\n", name, (long long)plan.parameters,
                (long long)expected);
        exit(1);
    }
    printf("%s: %lld parameters\n", name, (long long)expected);
    bool has_no_head = recipe.objective == OBJECTIVE_CLM && recipe.model.tie_word_embeddings;
    CHECK(!has_no_head || plan.part[PLAN_OUTPUT] == 0);
    check_round_trip(&recipe);
}

/* config.json of a family of Bireme keeps each part. */
static void test_free_parts(void)
{
    static struct recipe recipe;
    static const char *const texts[] = {
        "model: {architecture: transformer_decoder, vocab_size: 50, qk_norm: head, "
        "norm_placement: pre, norm_type: rmsnorm, position_embedding_type: rotary, "
        "gated_linear_unit: true, activation: silu, use_qkv_bias: true, num_kv_heads: 4, "
        "head_dim: 32, sliding_window: 9, sliding_window_pattern: 3, rope_local_base_freq: 50, "
        "no_rope_layer_interval: 4, partial_rotary_factor: 0.5, embedding_multiplier: 3, "
        "attention_multiplier: 0.1, residual_multiplier: 0.4, logits_scaling: 2, "
        "attn_logit_softcapping: 20, final_logit_softcapping: 30}\n"
        "train: {max_steps: 1}\n",
        "objective: mlm\n"
        "model: {architecture: transformer_encoder, vocab_size: 50, qk_norm: full, "
        "position_embedding_type: none, sliding_window: 8, attn_logit_softcapping: 20}\n"
        "train: {max_steps: 1}\n",
    };
    for (int i = 0; i < COUNT(texts); i++) {
        CHECK_OK(recipe_parse("free.yaml", texts[i], strlen(texts[i]), NULL, 0, &recipe));
        check_round_trip(&recipe);
    }
}

int main(void)
{
    char path[FILE_PATH_BYTES];
    huggingface_folder_start();
    join_path(folder, root, "published");
    CHECK(mkdir(folder, 0700) == 0);
    join_path(path, reference, "../published.json");
    json_t *models = json_load_file(path, 0, NULL);
    CHECK(json_array_size(models) > 0);
    for (size_t i = 0; i < json_array_size(models); i++) {
        check_model(json_array_get(models, i));
    }
    json_decref(models);
    test_free_parts();
    CHECK_OK(file_remove_tree(root));
    return 0;
}
