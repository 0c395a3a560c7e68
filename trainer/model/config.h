/* The architectures, the configuration of a model, and the properties that follow from it. model.h
 * explains the letters of the sizes. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/kernels.h"

/* ---- architectures, and choices of a recipe that the model reads without a conversion ----
 *
 * The constants of each enum have the order of the choices in the settings table. A value 0 named
 * _DEFAULT stands for null: the choice of the architecture. */

/* All architectures: constant, and name in recipes (model.architecture). The enum, the choices of
 * the settings table and the names in trainer/recipe/names.c come from this list. architecture.c
 * describes the parts. Further properties are in trainer/recipe/names.c, in
 * trainer/recipe/table_macros.h and in trainer/formats/huggingface/architectures.c. The test
 * `architectures` compares these tables. */
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

/* ---- the configuration ---- */

/* Parameters that are frozen by their position in the model. */
struct model_freezing {
    bool embeddings; /* all parameters before the blocks */
    bool backbone;   /* the embeddings, all blocks and the final norm: only the head is trained */
    int64_t layers;  /* number of blocks to freeze, counted from the first one */
};

/* The head after the final norm. Names and order of operations follow the classes of the
 * transformers library. */
enum model_head_kind {
    MODEL_HEAD_LM,       /* next-token or masked-token prediction */
    MODEL_HEAD_SEQUENCE, /* ...ForSequenceClassification: labels of a sequence. Encoders read the
                          * first row through a dense layer, decoders the last row directly */
    MODEL_HEAD_MULTIPLE_CHOICE, /* ...ForMultipleChoice: one score per candidate; reads the same
                                 * rows as MODEL_HEAD_SEQUENCE */
    MODEL_HEAD_TOKEN,           /* ...ForTokenClassification: labels of tokens */
    MODEL_HEAD_QA,              /* ...ForQuestionAnswering: a start and an end logit per token */
    MODEL_HEAD_NONE             /* no head: the hidden states themselves */
};

/* The kinds of attention of the layers (layer_types in transformers). */
enum { MODEL_LAYER_WORDS = 16 };

struct model_layer_types {
    bool given;                        /* else every layer has the window and rope_theta */
    uint64_t local[MODEL_LAYER_WORDS]; /* bit l % 64 of word l / 64: layer l has
                                        * sliding_attention, else full_attention */
};

/* Low-rank adapters (adapter.c). With adapters, only they and the fine-tuning head are trained. */
struct model_adapter {
    int64_t rank; /* 0: no adapters */
    float alpha, dropout;
    const char *targets;  /* comma-separated suffixes of matrix names, or "all-linear" for all
                           * matrices of the blocks */
    bool rank_stabilized; /* scale is alpha / sqrt(rank) instead of alpha / rank */
};

/* Parts of an architecture with free_parts. 0: the default of the architecture. */
struct model_parts {
    enum norm_placement norm_placement;
    enum position_kind positions;
    enum qk_norm qk_norm;
    bool rms_norm;            /* RMS norms instead of layer norms */
    bool norm_without_weight; /* norms without weights and biases */
    bool norm_without_bias;   /* layer norms without biases */
    bool embedding_norm;      /* a norm of the embedding; with PLACEMENT_PRE, it takes the place of
                               * norm1 of the first block */
    bool shared_layers;       /* all layers have the parameters of one block */
    bool head_without_transform, head_without_transform_bias, head_without_bias;
    bool gated; /* gated feed-forward network with config.activation, SiLU or a GELU. It also
                 * applies to an architecture with free_gate */
};

/* FP8 matrices of the layers (linear.c). */
enum model_fp8_recipe { MODEL_FP8_NONE, MODEL_FP8_DELAYED, MODEL_FP8_ROWWISE };

struct model_fp8 {
    enum model_fp8_recipe recipe;
    int64_t amax_history; /* steps; of MODEL_FP8_DELAYED */
    bool first_last_bf16; /* the first and the last layer are not FP8 */
};

struct model_config {
    /* family and sizes */
    const char *architecture; /* "gpt2", "bert", ...: a name in architecture.c */
    int64_t layers, width, heads, inner, positions, vocabulary; /* L, C, H, F, position ids, V */
    int64_t embedding_width; /* U of a factorized embedding, at most the width; 0: not factorized */
    int64_t encoder_layers;  /* of an encoder-decoder model: the first ones of `layers` */
    /* parts, regularization and initial values */
    enum activation activation;
    struct model_parts parts;
    float dropout, attention_dropout, norm_epsilon, initializer_range;
    float activation_dropout; /* of the inner features of the feed-forward network */
    /* token tables and vocabulary matrix */
    bool tied;                 /* the vocabulary matrix is the token table of the decoder */
    int64_t source_vocabulary; /* V of the encoder's table if separate; 0: vocabulary */
    bool separate_embeddings;  /* encoder and decoder have separate token tables; marian */
    bool logits_bias;          /* a constant is added to the logits (names.logits_bias) */
    /* attention, and biases of the matrices */
    int64_t kv_heads;              /* key-value heads; 0: equal to heads */
    int64_t head_width;            /* D; 0: width / heads */
    bool attention_bias, mlp_bias; /* biases that the architecture does not have by default */
    bool qkv_bias;                 /* the same, of queries, keys and values alone */
    int64_t window;                /* a row attends to rows at a distance below this; 0: to all */
    struct model_layer_types layer_types; /* layers with the window, and layers without it */
    /* positions */
    double rope_theta;        /* base of the rotary frequencies */
    int64_t rotary_width;     /* first columns of a head that rotate; 0: all */
    double rope_local_theta;  /* base in layers with a window, never scaled; 0: rope_theta */
    int64_t no_rope_interval; /* n: every n-th layer has no rotary positions; 0: none */
    int64_t position_buckets; /* POSITIONS_RELATIVE: number of buckets of distances */
    int64_t max_distance;     /* the same: greater distances share the last bucket */
    /* factors and soft-caps; frequency scaling */
    double attention_scale;             /* factor of the scores; 0: 1 / sqrt(D) */
    double attention_softcap;           /* soft-cap of the scores, as in Gemma 2; 0: none */
    double embedding_multiplier;        /* factor of the token embeddings; 0: 1 */
    double residual_multiplier;         /* factor of the outputs of the sub-layers; 0: 1 */
    double logits_divisor;              /* divisor of the logits; 0: 1 */
    double logits_softcap;              /* soft-cap of the vocabulary logits; 0: none */
    struct rotary_scaling rope_scaling; /* frequency scaling for long contexts */
    /* memory of activations */
    enum recompute_mode recompute;
    /* inputs and heads of BERT, and the fine-tuning head */
    int64_t token_types; /* rows of BERT's token type table; 0: no table */
    bool next_sentence;  /* BERT with MODEL_HEAD_LM only: a pooler and a head of two labels */
    int64_t output_rows; /* maximum rows of a micro-batch that BERT's or a fine-tuning head reads */
    int64_t examples;    /* maximum examples of a micro-batch for next_sentence */
    enum model_head_kind head; /* the head after the final norm */
    int64_t labels;            /* outputs of a fine-tuning head */
    /* trained parameters, and their precision */
    struct model_adapter adapter;
    const char *frozen; /* comma-separated fnmatch patterns of parameters to freeze; NULL: none */
    struct model_freezing freezing; /* parameters to freeze by position */
    struct model_fp8 fp8;           /* of a model for training */
};

/* model_adapter_scale - return the factor s of the adapters' output (adapter.c). */
float model_adapter_scale(const struct model_adapter *adapter);

/* model_kv_heads - return the key-value heads of a layer over all ranks. */
int64_t model_kv_heads(const struct model_config *config);

/* model_head_width - return the width D of a head. */
int64_t model_head_width(const struct model_config *config);

/* model_rotary_width - return the number of columns of a head that rotate. */
int64_t model_rotary_width(const struct model_config *config);

/* model_attention_width - return the width H D of the output of attention over all ranks. */
int64_t model_attention_width(const struct model_config *config);

/* model_position_buckets - return the buckets of the relative position bias; 0: there is none. */
int64_t model_position_buckets(const struct model_config *config);

/* model_layer_stack - return the stack of a layer: 1 in a decoder after an encoder, else 0. */
int model_layer_stack(const struct model_config *config, int64_t layer);

/* model_layer_has_cross - return whether the block of a layer has cross-attention. */
bool model_layer_has_cross(const struct model_config *config, int64_t layer);

/* model_layer_is_local - return whether layer_types makes a layer local: it then has the window
 * and rope_local_theta. Without layer_types no layer is local. */
bool model_layer_is_local(const struct model_config *config, int64_t layer);

/* model_set_layer_type - set layer_types of a layer. `layer` is below 64 * MODEL_LAYER_WORDS. */
void model_set_layer_type(struct model_config *config, int64_t layer, bool is_local);

/* model_layer_has_rope - return whether a layer rotates its queries and keys. */
bool model_layer_has_rope(const struct model_config *config, int64_t layer);

/* model_layer_window - return the window of attention of a layer; 0: none. */
int64_t model_layer_window(const struct model_config *config, int64_t layer);

/* model_is_factorized - return whether a matrix maps the embedding to the width (ALBERT). */
static inline bool model_is_factorized(const struct model_config *config)
{
    return config->embedding_width > 0;
}

/* model_source_vocabulary - return the number of token ids of the sources of an encoder-decoder. */
static inline int64_t model_source_vocabulary(const struct model_config *config)
{
    return config->source_vocabulary > 0 ? config->source_vocabulary : config->vocabulary;
}

/* model_embedding_width - return U, the width of embedding tables and of the vocabulary matrix. */
static inline int64_t model_embedding_width(const struct model_config *config)
{
    return model_is_factorized(config) ? config->embedding_width : config->width;
}

/* model_has_qk_norm - return whether the queries and keys have norms. */
bool model_has_qk_norm(const struct model_config *config);

/* model_has_joint_qk_norm - return whether one norm reads all heads of the queries, and one all
 * heads of the keys. */
bool model_has_joint_qk_norm(const struct model_config *config);

/* model_norm_width - return the width of the widest row that a norm reads. */
int64_t model_norm_width(const struct model_config *config);

/* model_inner_outputs - return the output width of the GEMM before the activation.
 * It is F, or 2 F with SwiGLU. */
int64_t model_inner_outputs(const struct model_config *config);

/* model_positions - return the longest sequence that the position table supports. */
int64_t model_positions(const struct model_config *config);

/* model_require_positions - check that the model has positions for a text and for the new tokens
 * after it. The message begins with `name`, such as "the text".
 *
 * Units     new_tokens: 0, or 1 for a prompt
 * Errors    `code`, which is STATUS_DATA or STATUS_USAGE */
status model_require_positions(const struct model_config *config, const char *name, int64_t tokens,
                               int64_t new_tokens, status code);
