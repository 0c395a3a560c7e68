/* Warnings about settings: the conditions of the settings table, settings without effect, and
 * positions that are not trained. */
#include <dirent.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "tests/check.h"
#include "trainer/recipe/settings.h"
#include "trainer/setup/objective_spec.h"

#define HEAD "data: {tokenizer: t}\ntrain: {max_steps: 10}\n"

/* Each condition names a key and its values, so that it cannot become wrong unnoticed. */
static void test_conditions(void)
{
    int count = 0;
    for (int i = 0; i < recipe_table_count; i++) {
        const char *used = recipe_table[i].used;
        if (used == NULL) {
            continue;
        }
        char key[64], text[CHOICES_BYTES], values[CHOICES_BYTES];
        const char *choices[CHOICES_MAX], *wanted[CHOICES_MAX];
        size_t length = strcspn(used, "=");
        snprintf(key, sizeof key, "%.*s", (int)length, used);
        int index = recipe_table_find(key);
        CHECK(index >= 0);
        CHECK(index != i);
        count++;
        if (used[length] == '\0') {
            CHECK_TEXT(recipe_table[index].default_value, "null");
            continue;
        }
        bool is_boolean = recipe_table[index].kind == SETTING_BOOLEAN;
        int known = recipe_value_choices(is_boolean ? "true|false" : recipe_table[index].choices,
                                         text, choices);
        int n = recipe_value_choices(used + length + 1, values, wanted);
        CHECK(n > 0);
        for (int v = 0; v < n; v++) {
            int found = 0;
            for (int c = 0; c < known; c++) {
                found += strcmp(choices[c], wanted[v]) == 0;
            }
            CHECK(found == 1);
        }
    }
    CHECK(count > 40);
}

/* The condition of train.label_smoothing_factor names exactly the objectives that smooth labels. */
static void test_smoothing(void)
{
    char text[CHOICES_BYTES], values[CHOICES_BYTES];
    const char *names[CHOICES_MAX], *used[CHOICES_MAX];
    const char *condition = recipe_table[recipe_table_find("train.label_smoothing_factor")].used;
    int count =
        recipe_value_choices(recipe_table[recipe_table_find("objective")].choices, text, names);
    int smoothing = recipe_value_choices(strchr(condition, '=') + 1, values, used);
    CHECK(count > smoothing);
    for (int i = 0; i < count; i++) {
        struct recipe recipe = {.objective = (enum recipe_objective)i};
        int found = 0;
        for (int j = 0; j < smoothing; j++) {
            found += strcmp(names[i], used[j]) == 0;
        }
        CHECK_EQUAL(objective_spec_objective(&recipe)->smooths_labels, found);
    }
}

/* Compares the warning of a recipe with a text; NULL: no warning. */
static void check_named_warning(const char *text, const char *name, const char *expected)
{
    struct recipe recipe;
    CHECK_OK(recipe_parse("some.yaml", text, strlen(text), NULL, 0, &recipe));
    recipe_warn(&recipe);
    struct log_entry *warning = log_take_warning();
    CHECK((warning != NULL) == (expected != NULL));
    if (expected != NULL) {
        CHECK_TEXT(warning->name, name);
        CHECK_TEXT(warning->text, expected);
        free(warning);
    }
    CHECK(log_take_warning() == NULL);
}

static void check_warning(const char *text, const char *expected)
{
    check_named_warning(text, "UNUSED-SETTING", expected);
}

static void test_positions(void)
{
    static const char learned[] = "data: {tokenizer: t, sequence_length: 64}\n"
                                  "train: {max_steps: 10}\n";
    char text[512];
    check_named_warning(learned, "POSITIONS",
                        "model.max_position_embeddings is 1024, but data.sequence_length is 64: "
                        "the learned positions after the first 64 remain random; set "
                        "model.max_position_embeddings=64, or train on longer sequences");
    static const char *const quiet[] = {"model: {max_position_embeddings: 64}\n",
                                        "model: {architecture: llama}\n",
                                        "objective: mlm\nmodel: {architecture: bert}\n",
                                        "model: {init_from: x}\n",
                                        "objective: seq2seq\nmodel: {architecture: marian}\n",
                                        "objective: seq2seq\nmodel: {architecture: t5}\n"};
    for (int i = 0; i < COUNT(quiet); i++) {
        snprintf(text, sizeof text, "%s%s", learned, quiet[i]);
        check_warning(text, NULL);
    }
}

static void test_warning(void)
{
    check_warning(HEAD, NULL);
    check_warning(
        HEAD "model: {rope_theta: 5.0e5}\n",
        "some.yaml: settings without effect: model.rope_theta (used if "
        "model.architecture is llama, qwen2, mistral, qwen3, gemma2, gemma3_text, smollm3, "
        "granite, olmo, olmo2, phi3, stablelm, modernbert, transformer_encoder or "
        "transformer_decoder)");
    check_warning(HEAD "schedule: {power: 2.0, decay_ratio: 0.2}\nmlm: {mask_probability: 0.2}\n",
                  "some.yaml: settings without effect: mlm.mask_probability (used if objective is "
                  "mlm); schedule.power (used if schedule.name is polynomial or "
                  "polynomial_nvidia); schedule.decay_ratio (used if schedule.name is wsd)");
    check_warning(HEAD "model: {architecture: llama, activation: gelu_erf}\n",
                  "some.yaml: settings without effect: model.activation (used if "
                  "model.architecture is gpt2, bert, roberta, openai-gpt, "
                  "gemma2, gemma3_text, distilbert, megatron-bert, modernbert, albert, "
                  "transformer_encoder, transformer_decoder, marian, t5, bart or mbart)");
    check_warning(HEAD "model: {type_vocab_size: 2}\n",
                  "some.yaml: settings without effect: model.type_vocab_size (used if "
                  "model.architecture is bert, roberta, megatron-bert, albert or "
                  "transformer_encoder)");
    check_warning(HEAD "generate: {temperature: 0.8}\n",
                  "some.yaml: settings without effect: generate.temperature (used if "
                  "generate.prompt is set)");
    check_warning(HEAD "model: {architecture: llama, rope_type: linear, rope_factor: 2.0}\n", NULL);
    /* a condition of a setting that is itself not used; a list */
    check_warning(HEAD "dpo: {loss_type: [hinge, robust], label_smoothing: 0.1}\n",
                  "some.yaml: settings without effect: dpo.loss_type (used if objective is dpo); "
                  "dpo.label_smoothing (used if objective is dpo)");
    check_warning(HEAD "objective: dpo\nmodel: {init_from: x}\n"
                       "dpo: {loss_type: [hinge, robust], label_smoothing: 0.1}\n",
                  NULL);
    /* values that change nothing, as in a resolved recipe */
    check_warning(HEAD "schedule: {decay_ratio: 0.1}\nsft: {max_length: 1024}\n"
                       "mlm: {max_predictions: 154}\nevaluate: {every: 0}\n",
                  NULL);
}

static void test_shipped_recipes(void)
{
    char folder[FILE_PATH_BYTES], path[FILE_PATH_BYTES + 300];
    const char *source = getenv("BIREME_SOURCE_DIR");
    if (source == NULL) {
        CHECK_SKIP("BIREME_SOURCE_DIR is not set");
    }
    snprintf(folder, sizeof folder, "%s/recipes", source);
    DIR *entries = opendir(folder);
    CHECK(entries != NULL);
    int count = 0;
    for (struct dirent *e; (e = readdir(entries)) != NULL;) {
        struct recipe recipe;
        const char *dot = strrchr(e->d_name, '.');
        if (dot == NULL || strcmp(dot, ".yaml") != 0) {
            continue;
        }
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        if (recipe_read_draft(path, NULL, 0, &recipe) == STATUS_OK) {
            recipe_warn(&recipe);
            CHECK(log_take_warning() == NULL);
            count++;
        }
    }
    closedir(entries);
    CHECK(count >= 20);
}

int main(void)
{
    log_keep_warnings();
    test_conditions();
    test_smoothing();
    test_warning();
    test_positions();
    test_shipped_recipes();
    return 0;
}
