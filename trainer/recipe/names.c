/* Names and properties of enum values in recipes. test_recipe compares the names with the settings
 * table. */
#include <string.h>

#include "base/memory.h"
#include "trainer/recipe/recipe.h"

#define NAME(constant, name) name,
static const char *const objective_names[] = {OBJECTIVE_LIST(NAME, NAME)};
static const char *const architecture_names[] = {ARCHITECTURE_LIST(NAME, NAME)};

static const struct {
    const char *targets; /* default of adapter.targets */
    bool encoder, rotary;
    int64_t token_types;
    bool next_sentence, free_parts, has_decoder;
} architectures[RECIPE_ARCHITECTURES] = {
    [ARCHITECTURE_GPT2] = {.targets = "c_attn"},
    [ARCHITECTURE_BERT] = {.targets = "query, value",
                           .encoder = true,
                           .token_types = 2,
                           .next_sentence = true},
    [ARCHITECTURE_ROBERTA] = {.targets = "query, value", .encoder = true, .token_types = 1},
    [ARCHITECTURE_LLAMA] = {.targets = "q_proj, v_proj", .rotary = true},
    [ARCHITECTURE_QWEN2] = {.targets = "q_proj, v_proj", .rotary = true},
    [ARCHITECTURE_MISTRAL] = {.targets = "q_proj, v_proj", .rotary = true},
    [ARCHITECTURE_QWEN3] = {.targets = "q_proj, v_proj", .rotary = true},
    [ARCHITECTURE_OPENAI_GPT] = {.targets = "c_attn"},
    [ARCHITECTURE_GEMMA3_TEXT] = {.targets = "q_proj, v_proj", .rotary = true},
    [ARCHITECTURE_GEMMA2] = {.targets = "q_proj, v_proj", .rotary = true},
    [ARCHITECTURE_SMOLLM3] = {.targets = "q_proj, v_proj", .rotary = true},
    [ARCHITECTURE_GRANITE] = {.targets = "q_proj, v_proj", .rotary = true},
    [ARCHITECTURE_OLMO] = {.targets = "q_proj, v_proj", .rotary = true},
    [ARCHITECTURE_OLMO2] = {.targets = "q_proj, v_proj", .rotary = true},
    [ARCHITECTURE_DISTILBERT] = {.targets = "q_lin, v_lin", .encoder = true},
    [ARCHITECTURE_MEGATRON_BERT] = {.targets = "query, value",
                                    .encoder = true,
                                    .token_types = 2,
                                    .next_sentence = true},
    [ARCHITECTURE_MODERNBERT] = {.targets = "Wqkv", .encoder = true, .rotary = true},
    [ARCHITECTURE_ALBERT] = {.targets = "query, value",
                             .encoder = true,
                             .token_types = 2,
                             .next_sentence = true},
    [ARCHITECTURE_STABLELM] = {.targets = "q_proj, v_proj", .rotary = true},
    [ARCHITECTURE_PHI3] = {.targets = "qkv_proj", .rotary = true},
    [ARCHITECTURE_TRANSFORMER_ENCODER] = {.targets = "query, value",
                                          .encoder = true,
                                          .free_parts = true},
    [ARCHITECTURE_TRANSFORMER_DECODER] = {.targets = "query, value", .free_parts = true},
    [ARCHITECTURE_MARIAN] = {.targets = "q_proj, v_proj", .has_decoder = true},
    [ARCHITECTURE_T5] = {.targets = "q, v", .has_decoder = true},
    [ARCHITECTURE_BART] = {.targets = "q_proj, v_proj", .has_decoder = true},
    [ARCHITECTURE_MBART] = {.targets = "q_proj, v_proj", .has_decoder = true},
};

static const char *const rope_type_names[] = {"default", "linear",  "llama3",
                                              "yarn",    "dynamic", "longrope"};

const char *recipe_objective_name(enum recipe_objective objective)
{
    return objective_names[objective];
}

bool recipe_objective_find(const char *name, enum recipe_objective *out)
{
    for (int i = 0; i < RECIPE_OBJECTIVES; i++) {
        if (strcmp(objective_names[i], name) == 0) {
            *out = (enum recipe_objective)i;
            return true;
        }
    }
    return false;
}

bool recipe_activation_is_gelu(enum recipe_activation activation)
{
    return activation == RECIPE_GELU_TANH || activation == RECIPE_GELU_ERF;
}

bool recipe_activation_is_gate(enum recipe_activation activation)
{
    return recipe_activation_is_gelu(activation) || activation == RECIPE_SILU;
}

const char *recipe_architecture_name(enum recipe_architecture architecture)
{
    return architecture_names[architecture];
}

bool recipe_architecture_is_encoder(enum recipe_architecture architecture)
{
    return architectures[architecture].encoder;
}

bool recipe_architecture_has_decoder(enum recipe_architecture architecture)
{
    return architectures[architecture].has_decoder;
}

bool recipe_architecture_is_rotary(enum recipe_architecture architecture)
{
    return architectures[architecture].rotary;
}

bool recipe_architecture_is_free(enum recipe_architecture architecture)
{
    return architectures[architecture].free_parts;
}

bool recipe_is_rotary(const struct recipe *recipe)
{
    return recipe_architecture_is_rotary(recipe->model.architecture) ||
           recipe->model.position_embedding_type == POSITIONS_ROTARY;
}

bool recipe_has_position_table(const struct recipe *recipe)
{
    enum recipe_architecture architecture = recipe->model.architecture;
    if (recipe_architecture_is_free(architecture)) {
        return recipe->model.position_embedding_type == POSITIONS_LEARNED;
    }
    return !recipe_architecture_is_rotary(architecture) && architecture != ARCHITECTURE_MARIAN &&
           architecture != ARCHITECTURE_T5;
}

int64_t recipe_architecture_token_types(enum recipe_architecture architecture)
{
    return architectures[architecture].token_types;
}

bool recipe_architecture_has_next_sentence(enum recipe_architecture architecture)
{
    return architectures[architecture].next_sentence;
}

const char *recipe_architecture_targets(enum recipe_architecture architecture)
{
    return architectures[architecture].targets;
}

const char *recipe_rope_type_name(enum rotary_kind type)
{
    return rope_type_names[type];
}
