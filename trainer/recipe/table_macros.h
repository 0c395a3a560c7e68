/* Macros of the rows of the settings table (table.c). */
#pragma once

#include <stddef.h>

#include "trainer/recipe/settings.h"

#define FIELD(f) offsetof(struct recipe, f), sizeof(((struct recipe *)0)->f)
#define WITHIN(a, b) .range = {.min = (a), .max = (b)}
#define ABOVE(a, b) .range = {.min = (a), .max = (b), .exclusive_min = true}
#define BELOW(a, b) .range = {.min = (a), .max = (b), .exclusive_max = true}

/* Values of .choices that need several lines. */
#define ARCHITECTURES                                                                              \
    "gpt2|bert|roberta|llama|qwen2|mistral|qwen3|openai-gpt|gemma3_text|smollm3|granite|"          \
    "olmo2|distilbert|megatron-bert|phi3|stablelm|transformer_encoder|"                            \
    "transformer_decoder|marian|t5|bart|gemma2|modernbert|albert|mbart"
#define LOSS_TYPES                                                                                 \
    "sigmoid|hinge|ipo|exo_pair|nca_pair|robust|bco_pair|sppo_hard|aot|aot_unpaired|"              \
    "apo_zero|apo_down|discopop|sft|sigmoid_norm"

#define FP8 "train.precision=fp8"

/* Value of .used: architectures with rotary position embeddings. */
#define FREE "model.architecture=transformer_encoder|transformer_decoder"
#define ENCODER_DECODER "model.architecture=marian|t5|bart|mbart"
#define ROTARY                                                                                     \
    "model.architecture=llama|qwen2|mistral|qwen3|gemma2|gemma3_text|smollm3|granite|olmo2|phi3|"  \
    "stablelm|modernbert|transformer_encoder|transformer_decoder"

#define STEPS_MAX 1e12
#define MINUTES_MAX 1e6
