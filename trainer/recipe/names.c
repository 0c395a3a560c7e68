/* Names of enum values in recipes. test_recipe compares them with the settings table. */
#include <string.h>

#include "base/memory.h"
#include "trainer/recipe/recipe.h"

static const char *const objective_names[] = {
    "clm",    "mlm",    "sft",   "dpo",     "reward",  "classify", "regress", "classify_tokens",
    "answer", "choose", "embed", "seq2seq", "denoise",
};

static const struct {
    const char *name;
    const char *targets; /* default of adapter.targets */
    bool encoder, rotary;
    int64_t token_types;
    bool next_sentence, free_parts, has_decoder;
} architectures[] = {
    [ARCHITECTURE_GPT2] = {"gpt2", "c_attn", false, false},
    [ARCHITECTURE_BERT] = {"bert", "query, value", true, false, 2, true},
    [ARCHITECTURE_ROBERTA] = {"roberta", "query, value", true, false, 1},
    [ARCHITECTURE_LLAMA] = {"llama", "q_proj, v_proj", false, true},
    [ARCHITECTURE_QWEN2] = {"qwen2", "q_proj, v_proj", false, true},
    [ARCHITECTURE_MISTRAL] = {"mistral", "q_proj, v_proj", false, true},
    [ARCHITECTURE_QWEN3] = {"qwen3", "q_proj, v_proj", false, true},
    [ARCHITECTURE_OPENAI_GPT] = {"openai-gpt", "c_attn", false, false},
    [ARCHITECTURE_GEMMA3_TEXT] = {"gemma3_text", "q_proj, v_proj", false, true},
    [ARCHITECTURE_GEMMA2] = {"gemma2", "q_proj, v_proj", false, true},
    [ARCHITECTURE_SMOLLM3] = {"smollm3", "q_proj, v_proj", false, true},
    [ARCHITECTURE_GRANITE] = {"granite", "q_proj, v_proj", false, true},
    [ARCHITECTURE_OLMO2] = {"olmo2", "q_proj, v_proj", false, true},
    [ARCHITECTURE_DISTILBERT] = {"distilbert", "q_lin, v_lin", true, false},
    [ARCHITECTURE_MEGATRON_BERT] = {"megatron-bert", "query, value", true, false, 2, true},
    [ARCHITECTURE_MODERNBERT] = {"modernbert", "Wqkv", true, true},
    [ARCHITECTURE_ALBERT] = {"albert", "query, value", true, false, 2, true},
    [ARCHITECTURE_STABLELM] = {"stablelm", "q_proj, v_proj", false, true},
    [ARCHITECTURE_PHI3] = {"phi3", "qkv_proj", false, true},
    [ARCHITECTURE_TRANSFORMER_ENCODER] = {"transformer_encoder", "query, value", true,
                                          .free_parts = true},
    [ARCHITECTURE_TRANSFORMER_DECODER] = {"transformer_decoder", "query, value",
                                          .free_parts = true},
    [ARCHITECTURE_MARIAN] = {"marian", "q_proj, v_proj", .has_decoder = true},
    [ARCHITECTURE_T5] = {"t5", "q, v", .has_decoder = true},
    [ARCHITECTURE_BART] = {"bart", "q_proj, v_proj", .has_decoder = true},
    [ARCHITECTURE_MBART] = {"mbart", "q_proj, v_proj", .has_decoder = true},
};

static const char *const rope_type_names[] = {"default", "linear", "llama3", "yarn", "dynamic"};

enum { OBJECTIVES = COUNT(objective_names) };

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
    return architectures[architecture].name;
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
           recipe->model.position_embedding_type == POSITION_ROTARY;
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

const char *recipe_rope_type_name(enum recipe_rope_type type)
{
    return rope_type_names[type];
}
