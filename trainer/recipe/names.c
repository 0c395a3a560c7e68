/* Names of enum values in recipes. test_recipe compares them with the settings table. */
#include <string.h>

#include "trainer/recipe/recipe.h"

static const char *const objective_names[] = {
    "clm",    "mlm",    "sft",   "dpo", "reward", "classify", "regress", "classify_tokens",
    "answer", "choose", "embed",
};

static const char *const architecture_names[] = {"gpt2", "bert", "roberta", "llama"};

static const char *const rope_type_names[] = {"default", "linear", "llama3"};

enum { OBJECTIVES = sizeof objective_names / sizeof objective_names[0] };

const char *recipe_objective_name(enum recipe_objective objective)
{
    return objective_names[objective];
}

bool recipe_objective_find(const char *name, enum recipe_objective *out)
{
    for (int i = 0; i < OBJECTIVES; i++) {
        if (strcmp(objective_names[i], name) == 0) {
            *out = (enum recipe_objective)i;
            return true;
        }
    }
    return false;
}

const char *recipe_architecture_name(enum recipe_architecture architecture)
{
    return architecture_names[architecture];
}

bool recipe_architecture_is_encoder(enum recipe_architecture architecture)
{
    return architecture == ARCHITECTURE_BERT || architecture == ARCHITECTURE_ROBERTA;
}

const char *recipe_rope_type_name(enum recipe_rope_type type)
{
    return rope_type_names[type];
}
