/* Architectures, and choices of a recipe that the model reads without a conversion.
 *
 * The constants of each enum have the order of the choices in the settings table. A value 0 named
 * _DEFAULT stands for null: the choice of the architecture. */
#pragma once

/* All architectures: constant, and name in recipes (model.architecture). The enum, the choices of
 * the settings table and the names of names.c come from this list. Other tables describe parts of
 * an architecture: names.c, table_macros.h, trainer/model/architecture.c and
 * trainer/formats/huggingface/architectures.c. The test `architectures` compares them. */
#define ARCHITECTURE_LIST(FIRST, NEXT)                                                             \
    FIRST(GPT2, "gpt2")                                                                            \
    NEXT(BERT, "bert")                                                                             \
    NEXT(ROBERTA, "roberta")                                                                       \
    NEXT(LLAMA, "llama")                                                                           \
    NEXT(QWEN2, "qwen2")                                                                           \
    NEXT(MISTRAL, "mistral")                                                                       \
    NEXT(QWEN3, "qwen3")                                                                           \
    NEXT(OPENAI_GPT, "openai-gpt")                                                                 \
    NEXT(GEMMA3_TEXT, "gemma3_text")                                                               \
    NEXT(SMOLLM3, "smollm3")                                                                       \
    NEXT(GRANITE, "granite")                                                                       \
    NEXT(OLMO2, "olmo2")                                                                           \
    NEXT(DISTILBERT, "distilbert")                                                                 \
    NEXT(MEGATRON_BERT, "megatron-bert")                                                           \
    NEXT(PHI3, "phi3")                                                                             \
    NEXT(STABLELM, "stablelm")                                                                     \
    NEXT(TRANSFORMER_ENCODER, "transformer_encoder")                                               \
    NEXT(TRANSFORMER_DECODER, "transformer_decoder")                                               \
    NEXT(MARIAN, "marian")                                                                         \
    NEXT(T5, "t5")                                                                                 \
    NEXT(BART, "bart")                                                                             \
    NEXT(GEMMA2, "gemma2")                                                                         \
    NEXT(MODERNBERT, "modernbert")                                                                 \
    NEXT(ALBERT, "albert")                                                                         \
    NEXT(MBART, "mbart")                                                                           \
    NEXT(OLMO, "olmo")

/* ARCHITECTURE_GPT2, ARCHITECTURE_BERT, ... */
#define ARCHITECTURE_CONSTANT(constant, name) ARCHITECTURE_##constant,
enum recipe_architecture { ARCHITECTURE_LIST(ARCHITECTURE_CONSTANT, ARCHITECTURE_CONSTANT) };

#define ARCHITECTURE_ONE_MORE(constant, name) +1
enum { RECIPE_ARCHITECTURES = 0 ARCHITECTURE_LIST(ARCHITECTURE_ONE_MORE, ARCHITECTURE_ONE_MORE) };

/* Place of the norms of a block (model.norm_placement). */
enum norm_placement {
    PLACEMENT_DEFAULT = 0,
    PLACEMENT_PRE,    /* the norm is before the sub-layer: x + f(norm(x)) */
    PLACEMENT_POST,   /* the norm is after the residual sum: norm(x + f(x)) */
    PLACEMENT_BRANCH, /* the norm is after the sub-layer: x + norm(f(x)) */
    PLACEMENT_BOTH    /* a norm before the sub-layer and one after it: x + norm(f(norm(x))) */
};

/* Positions of the tokens (model.position_embedding_type). */
enum position_kind {
    POSITIONS_DEFAULT = 0,
    POSITIONS_LEARNED,    /* a table of embeddings, added to the token embeddings */
    POSITIONS_SINUSOIDAL, /* fixed sines and cosines, added to the token embeddings */
    POSITIONS_ROTARY,     /* a rotation of queries and keys; no parameters */
    POSITIONS_NONE,
    POSITIONS_RELATIVE /* not a choice of a recipe: a bias of the scores of self-attention for each
                        * bucket of distances; the layers of a stack share a table (struct
                        * attention_bias) */
};

/* RMS norms of the queries and keys before the rotation (model.qk_norm). */
enum qk_norm {
    QK_NORM_NONE = 0,
    QK_NORM_HEADS, /* of each head; all heads share a weight */
    QK_NORM_ROWS   /* of all heads together */
};

/* Activations that backward recomputes instead of keeping them from forward
 * (train.activation_checkpointing). */
enum recompute_mode {
    RECOMPUTE_NONE = 0,
    RECOMPUTE_SELECTIVE, /* activations (GELU or SwiGLU) and norms */
    RECOMPUTE_FULL       /* the whole layer from its input */
};
