/* Choices of settings: every list fits into the buffers, messages contain all choices, and
 * the default targets of adapters are choices. The longest list of numbers is read whole. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "tests/check.h"
#include "tests/trainer/recipe/recipe_text.h"
#include "trainer/recipe/settings.h"

static const char head[] = "data: {tokenizer: t}\ntrain: {max_steps: 10}\n";

/* Returns whether a buffer of CHOICES_BYTES holds the choices, also if ", " separates them. */
static bool fits_choices(const char *choices)
{
    size_t bytes = 1, count = 1;
    for (const char *at = choices; at != NULL && *at != '\0'; at++) {
        bool separates = *at == '|';
        bytes += separates ? 2 : 1;
        count += separates;
    }
    return bytes <= CHOICES_BYTES && count <= CHOICES_MAX;
}

static void test_lengths(void)
{
    for (int i = 0; i < recipe_table_count; i++) {
        CHECK(fits_choices(recipe_table[i].choices));
        CHECK(fits_choices(recipe_table[i].used));
    }
}

/* A choice at the end of the longest list is accepted, and an error contains every choice. */
static void test_longest_list(void)
{
    const char *longest = "";
    for (int i = 0; i < recipe_table_count; i++) {
        const char *choices = recipe_table[i].choices;
        longest = choices != NULL && strlen(choices) > strlen(longest) ? choices : longest;
    }
    CHECK(longest == recipe_table[recipe_table_find("adapter.targets")].choices);
    const char *last = strrchr(longest, '|') + 1;
    char text[256], list[CHOICES_BYTES];
    const char *choices[CHOICES_MAX];
    struct recipe recipe;
    snprintf(text, sizeof text, "%sadapter: {targets: %s}\n", head, last);
    CHECK_OK(recipe_parse("good.yaml", text, strlen(text), NULL, 0, &recipe));
    CHECK_TEXT(recipe.adapter.targets, last);
    snprintf(text, sizeof text, "%sadapter: {targets: wrong}\n", head);
    CHECK_EQUAL(recipe_parse("bad.yaml", text, strlen(text), NULL, 0, &recipe), STATUS_RECIPE);
    for (int i = recipe_value_choices(longest, list, choices); i-- > 0;) {
        CHECK(strstr(status_pending()->text, choices[i]) != NULL);
    }
    status_clear();
}

/* An error about a value or a key of TRL or transformers names the value or key of Bireme. */
static void test_foreign_names(void)
{
    static const char *const expected[][2] = {
        {"sft.packing=true", "wrapped; did you mean 'bfd'?"},
        {"sft.packing=false", "wrapped; did you mean 'none'?"},
        {"train.activation_checkpointing=true", "did you mean 'full'?"},
        {"model.architecture=transformer", "did you mean 'marian'?"},
        {"model.architecture=olmo1", "did you mean 'olmo'?"},
        {"model.architecture=smollm", "did you mean 'llama'?"},
        {"model.architecture=gemma3", "did you mean 'gemma3_text'?"},
        {"dpo.max_length=9", "unknown key; sft has sft.max_length; every objective has data.seq"},
        {"dpo.precompute_ref_log_probs=true",
         "unknown key; the log-probabilities of the reference"},
    };
    struct recipe recipe;
    for (int i = 0; i < COUNT(expected); i++) {
        char *override = (char *)expected[i][0];
        CHECK_FAILS(recipe_parse("a.yaml", head, strlen(head), &override, 1, &recipe),
                    STATUS_RECIPE, expected[i][1]);
    }
}

/* A recipe that is written contains the same targets, and can be read. */
static void check_stored_targets(const struct recipe *recipe)
{
    static struct recipe stored;
    char *text = write_recipe_text(recipe);
    CHECK_OK(recipe_parse("stored.yaml", text, strlen(text), NULL, 0, &stored));
    CHECK_TEXT(stored.adapter.targets, recipe->adapter.targets);
    free(text);
}

/* The default targets of every architecture with adapters are read again. */
static void test_adapter_targets(void)
{
    const char *list = recipe_table[recipe_table_find("model.architecture")].choices;
    char text[CHOICES_BYTES], architecture[128];
    const char *choices[CHOICES_MAX];
    int count = recipe_value_choices(list, text, choices);
    CHECK_EQUAL(count, RECIPE_ARCHITECTURES);
    for (int i = 0; i < count; i++) {
        enum recipe_architecture a = (enum recipe_architecture)i;
        if (recipe_architecture_has_decoder(a)) {
            continue; /* without adapters */
        }
        snprintf(architecture, sizeof architecture, "model.architecture=%s", choices[i]);
        const char *overrides[] = {architecture, "adapter.type=lora", "model.init_from=x",
                                   recipe_architecture_is_encoder(a) ? "objective=mlm"
                                                                     : "objective=clm"};
        struct recipe recipe;
        CHECK_OK(
            recipe_parse("good.yaml", head, strlen(head), (char *const *)overrides, 4, &recipe));
        CHECK_TEXT(recipe.adapter.targets, recipe_architecture_targets(a));
        check_stored_targets(&recipe);
    }
}

/* The longest list: 128 factors of LongRoPE with all digits of a double. */
static void test_long_list(void)
{
    static const char entry[] = "1.0800000429153442";
    char text[2 * RECIPE_ROPE_LIST_BYTES + 512], list[RECIPE_ROPE_LIST_BYTES] = "";
    double factors[RECIPE_ROPE_FACTORS_MAX];
    struct recipe recipe;
    for (int i = 0; i < RECIPE_ROPE_FACTORS_MAX; i++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "",
                 i + 1 < RECIPE_ROPE_FACTORS_MAX ? entry : "64.76499938964844");
    }
    snprintf(text, sizeof text,
             "%smodel: {architecture: llama, head_dim: 256, rope_type: longrope, "
             "rope_short_factor: [%s], rope_long_factor: [%s]}\n",
             head, list, list);
    CHECK_OK(recipe_parse("r.yaml", text, strlen(text), NULL, 0, &recipe));
    CHECK(strcmp(recipe.model.rope_long_factor, list) == 0);
    CHECK_EQUAL(recipe_rope_factors(recipe.model.rope_long_factor, factors),
                RECIPE_ROPE_FACTORS_MAX);
    CHECK(factors[RECIPE_ROPE_FACTORS_MAX - 1] == 64.76499938964844);
}

/* The message of an unknown key contains the longest list of keys to its end. */
static void test_long_message(void)
{
    char unknown[] = "model.unheard_of=1";
    char *list[] = {unknown};
    struct recipe recipe;
    CHECK_FAILS(recipe_parse("r.yaml", head, strlen(head), list, 1, &recipe), STATUS_RECIPE,
                "init_from, ignore_mismatched_tokenizer");
}

int main(void)
{
    test_adapter_targets();
    test_lengths();
    test_longest_list();
    test_foreign_names();
    test_long_list();
    test_long_message();
    return 0;
}
