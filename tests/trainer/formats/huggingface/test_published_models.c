/* Configurations of published models (scripts/reference/reference_published.py): import reads each
 * config.json, and the plan of its recipe has the parameter count of the class in transformers. An
 * exported config.json reads back as the same recipe. `bireme plan --json` accepts the section of a
 * recipe that `bireme import` prints, and has the same parameter count. */
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/memory.h"
#include "base/thread/cores.h"
#include "tests/trainer/formats/huggingface/huggingface_folder.h"
#include "trainer/formats/huggingface/config.h"
#include "trainer/train/planner/plan.h"

static char folder[FILE_PATH_BYTES];
static const char *program; /* NULL: not built */
static int planned, too_large;

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

/* Writes a recipe for one example on the CPU, with the section `model` that import prints. */
static void write_recipe(const struct recipe *recipe, const char *path)
{
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    fprintf(file, "objective: %s\n", recipe_objective_name(recipe->objective));
    recipe_write_model(recipe, file);
    fprintf(file, "data: {sequence_length: 128}\nbatch: {global_size: 1, micro_size: 1}\n"
                  "train: {max_steps: 1, device: cpu}\n");
    CHECK(fclose(file) == 0);
}

/* The exit code is 78 if a rank needs more memory than this machine has. The plan is printed. */
static void check_exit_code(const char *name, int code, const json_t *plan, const char *messages)
{
    double bytes = (double)json_integer_value(json_object_get(plan, "device_bytes"));
    bool fits = bytes > 0 && bytes <= (double)cores_memory_bytes("");
    bool has_reason = strstr(messages, "error: the plan does not fit: a rank needs ") != NULL;
    if (code != (fits ? 0 : 78) || has_reason == fits) {
        fprintf(stderr, "%s: plan of %.0f bytes ended with %d: %s", name, bytes, code, messages);
        exit(1);
    }
    planned++;
    too_large += !fits;
}

/* Runs the program on the recipe of the model. */
static void check_program(const char *name, const struct recipe *recipe, int64_t expected)
{
    char command[4 * FILE_PATH_BYTES + 64], path[FILE_PATH_BYTES], *messages = NULL;
    join_path(path, folder, "recipe.yaml");
    write_recipe(recipe, path);
    snprintf(command, sizeof command,
             "'%s' plan '%s/recipe.yaml' --json >'%s/plan.json' 2>'%s/messages'", program, folder,
             folder, folder);
    int code = system(command);
    CHECK(WIFEXITED(code));
    join_path(path, folder, "messages");
    CHECK_OK(file_read(path, 1 << 20, &messages, NULL));
    join_path(path, folder, "plan.json");
    json_t *plan = json_load_file(path, 0, NULL);
    int64_t parameters = json_integer_value(json_object_get(plan, "parameters"));
    if (parameters != expected) {
        fprintf(stderr, "%s: plan --json printed %lld parameters, not %lld: %s", name,
                (long long)parameters, (long long)expected, messages);
        exit(1);
    }
    check_exit_code(name, WEXITSTATUS(code), plan, messages);
    json_decref(plan);
    free(messages);
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
    if (program != NULL) {
        check_program(name, &recipe, expected);
    }
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
        "objective: mlm\n"
        "model: {architecture: transformer_encoder, vocab_size: 50, num_layers: 4, "
        "sliding_window: 8, layer_types: [full_attention, sliding_attention, sliding_attention, "
        "full_attention]}\n"
        "train: {max_steps: 1}\n",
        "objective: mlm\n"
        "model: {architecture: transformer_encoder, vocab_size: 50, norm_bias: false, "
        "normalize_embedding: true, embedding_size: 24, num_hidden_groups: 1, type_vocab_size: 2, "
        "position_embedding_type: learned, classifier_bias: false, decoder_bias: false}\n"
        "train: {max_steps: 1}\n",
        "objective: mlm\n"
        "model: {architecture: transformer_encoder, vocab_size: 50, norm_placement: pre, "
        "type_vocab_size: 1, head_transform: false}\n"
        "train: {max_steps: 1}\n",
        "model: {architecture: gemma3_text, vocab_size: 50, num_layers: 3, sliding_window: 8, "
        "activation: gelu_tanh, layer_types: [full_attention, sliding_attention, full_attention]}\n"
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
    program = getenv("BIREME_PROGRAM");
    program = program != NULL && file_exists(program) ? program : NULL;
    for (size_t i = 0; i < json_array_size(models); i++) {
        check_model(json_array_get(models, i));
    }
    json_decref(models);
    test_free_parts();
    CHECK_OK(file_remove_tree(root));
    if (program == NULL) {
        CHECK_SKIP("plan --json: the program is not built");
    }
    printf("plan --json: %d models, of which %d need more memory\n", planned, too_large);
    return 0;
}
