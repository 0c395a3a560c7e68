/* Names and properties of enum values in recipes. test_recipe compares the names with the settings
 * table. */
#include <string.h>

#include "base/memory.h"
#include "trainer/model/architecture.h"
#include "trainer/recipe/recipe.h"

#define NAME(constant, name) name,
static const char *const objective_names[] = {OBJECTIVE_LIST(NAME, NAME)};
static const char *const architecture_names[] = {ARCHITECTURE_LIST(NAME, NAME)};

static const struct {
    const char *targets; /* default of adapter.targets */
    int64_t token_types; /* default of model.type_vocab_size */
} architectures[RECIPE_ARCHITECTURES] = {
    [ARCHITECTURE_GPT2] = {"c_attn"},
    [ARCHITECTURE_BERT] = {"query, value", 2},
    [ARCHITECTURE_ROBERTA] = {"query, value", 1},
    [ARCHITECTURE_LLAMA] = {"q_proj, v_proj"},
    [ARCHITECTURE_QWEN2] = {"q_proj, v_proj"},
    [ARCHITECTURE_MISTRAL] = {"q_proj, v_proj"},
    [ARCHITECTURE_QWEN3] = {"q_proj, v_proj"},
    [ARCHITECTURE_OPENAI_GPT] = {"c_attn"},
    [ARCHITECTURE_GEMMA3_TEXT] = {"q_proj, v_proj"},
    [ARCHITECTURE_GEMMA2] = {"q_proj, v_proj"},
    [ARCHITECTURE_SMOLLM3] = {"q_proj, v_proj"},
    [ARCHITECTURE_GRANITE] = {"q_proj, v_proj"},
    [ARCHITECTURE_OLMO] = {"q_proj, v_proj"},
    [ARCHITECTURE_OLMO2] = {"q_proj, v_proj"},
    [ARCHITECTURE_DISTILBERT] = {"q_lin, v_lin"},
    [ARCHITECTURE_MEGATRON_BERT] = {"query, value", 2},
    [ARCHITECTURE_MODERNBERT] = {"Wqkv"},
    [ARCHITECTURE_ALBERT] = {"query, value", 2},
    [ARCHITECTURE_STABLELM] = {"q_proj, v_proj"},
    [ARCHITECTURE_PHI3] = {"qkv_proj"},
    [ARCHITECTURE_TRANSFORMER_ENCODER] = {"query, value"},
    [ARCHITECTURE_TRANSFORMER_DECODER] = {"query, value"},
    [ARCHITECTURE_MARIAN] = {"q_proj, v_proj"},
    [ARCHITECTURE_T5] = {"q, v"},
    [ARCHITECTURE_BART] = {"q_proj, v_proj"},
    [ARCHITECTURE_MBART] = {"q_proj, v_proj"},
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

/* Returns the description of an architecture. Each one has a description (test_architectures). */
static const struct architecture *get_description(enum recipe_architecture architecture)
{
    return model_architecture(architecture_names[architecture]);
}

bool recipe_architecture_is_encoder(enum recipe_architecture architecture)
{
    const struct architecture *a = get_description(architecture);
    return !a->attention.causal && !architecture_has_decoder(a);
}

bool recipe_architecture_has_decoder(enum recipe_architecture architecture)
{
    return architecture_has_decoder(get_description(architecture));
}

bool recipe_architecture_is_rotary(enum recipe_architecture architecture)
{
    return architecture_is_rotary(get_description(architecture));
}

bool recipe_architecture_is_free(enum recipe_architecture architecture)
{
    return get_description(architecture)->free_parts;
}

bool recipe_is_rotary(const struct recipe *recipe)
{
    return recipe_architecture_is_rotary(recipe->model.architecture) ||
           recipe->model.position_embedding_type == POSITIONS_ROTARY;
}

bool recipe_has_position_table(const struct recipe *recipe)
{
    const struct architecture *a = get_description(recipe->model.architecture);
    return (a->free_parts ? recipe->model.position_embedding_type : a->embedding.positions) ==
           POSITIONS_LEARNED;
}

int64_t recipe_architecture_token_types(enum recipe_architecture architecture)
{
    return architectures[architecture].token_types;
}

bool recipe_architecture_has_next_sentence(enum recipe_architecture architecture)
{
    return get_description(architecture)->names->next_sentence != NULL;
}

const char *recipe_architecture_targets(enum recipe_architecture architecture)
{
    return architectures[architecture].targets;
}

const char *recipe_rope_type_name(enum rotary_kind type)
{
    return rope_type_names[type];
}
