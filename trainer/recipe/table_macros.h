/* Macros of the rows of the settings table (table.c). */
#pragma once

#include <stddef.h>

#include "trainer/recipe/settings.h"

#define FIELD(f) offsetof(struct recipe, f), sizeof(((struct recipe *)0)->f)
#define WITHIN(a, b) .range = {.min = (a), .max = (b)}
#define ABOVE(a, b) .range = {.min = (a), .max = (b), .exclusive_min = true}
#define BELOW(a, b) .range = {.min = (a), .max = (b), .exclusive_max = true}

/* Values of .choices and .description that need several lines. */
#define FIRST_CHOICE(constant, name) name
#define NEXT_CHOICE(constant, name) "|" name
#define OBJECTIVES OBJECTIVE_LIST(FIRST_CHOICE, NEXT_CHOICE)
#define ARCHITECTURES ARCHITECTURE_LIST(FIRST_CHOICE, NEXT_CHOICE)
#define LOSS_TYPES                                                                                 \
    "sigmoid|hinge|ipo|exo_pair|nca_pair|robust|bco_pair|sppo_hard|aot|aot_unpaired|"              \
    "apo_zero|apo_down|discopop|sft|sigmoid_norm"

#define OBJECTIVE_DESCRIPTION                                                                      \
    "Training objective. clm: causal language modeling; mlm: masked language modeling, with "      \
    "next-sentence prediction if model.next_sentence is true; sft: supervised fine-tuning on "     \
    "prompts and completions; dpo: direct preference optimization on chosen and rejected "         \
    "responses; reward: reward modeling on the same pairs; classify: sequence classification "     \
    "of a text or a text pair; regress: sequence regression; classify_tokens: token "              \
    "classification; answer: extractive question answering; choose: multiple choice; embed: "      \
    "sentence embeddings with a contrastive loss; seq2seq: targets from sources, such as "         \
    "translations, with an encoder-decoder model; denoise: pretraining of such a model on "        \
    "texts with noise"
#define MIXING_DESCRIPTION                                                                         \
    "How data.train is mixed. weight: in proportion to the weights; examples: in proportion to "   \
    "min(weight * examples, data.mixing_maximum)^(1 / data.mixing_temperature), the "              \
    "examples-proportional mixing of T5 and FLAN. For clm, mlm and denoise the examples are "      \
    "sequences"

#define FP8 "train.precision=fp8"

/* A row of the settings table: a list of factors of LongRoPE. */
#define ROPE_FACTORS(field, range_of_lengths)                                                      \
    {                                                                                              \
        "model." #field, SETTING_LIST, FIELD(model.field), "null",                                 \
            .null = "none", ABOVE(0, 1e6), .initial = INITIAL_NUMERICS,                            \
            .used = "model.rope_type=longrope",                                                    \
            .description = "rope_type longrope: divisors of the frequencies if "                   \
                           "max_position_embeddings is " range_of_lengths                          \
                           " rope_original_positions, one for each pair of rotated columns"        \
    }

/* Other architectures refuse the key. */
#define ONLY_FOR(architectures) .used = architectures, .refused_if_unused = true

/* Values of .used: the architectures that read a key. The test `architectures` compares the lists
 * with the descriptions of the architectures.
 *
 * FREE        free_parts in trainer/model/architecture.c
 * FREE_ENCODER  of these, the encoders
 * ROTARY      the positions are rotary, or can be
 * ACTIVATED   model.activation has several values
 * ..._BIASED  model.attention_bias, model.mlp_bias */
#define FREE "model.architecture=transformer_encoder|transformer_decoder"
#define FREE_ENCODER "model.architecture=transformer_encoder"
#define ENCODER_DECODER "model.architecture=marian|t5|bart|mbart"
#define ROTARY                                                                                     \
    "model.architecture=llama|qwen2|mistral|qwen3|gemma2|gemma3_text|smollm3|granite|olmo|olmo2|"  \
    "phi3|stablelm|modernbert|transformer_encoder|transformer_decoder"
#define ACTIVATED                                                                                  \
    "model.architecture=gpt2|bert|roberta|openai-gpt|gemma2|gemma3_text|distilbert|"               \
    "megatron-bert|modernbert|albert|transformer_encoder|transformer_decoder|marian|t5|bart|mbart"
#define ATTENTION_BIASED                                                                           \
    "model.architecture=llama|qwen3|gemma2|gemma3_text|smollm3|granite|olmo|olmo2|modernbert|"     \
    "transformer_encoder|transformer_decoder"
#define MLP_BIASED                                                                                 \
    "model.architecture=llama|smollm3|granite|modernbert|transformer_encoder|transformer_decoder"

#define STEPS_MAX 1e12
#define MINUTES_MAX 1e6
