/* The description of an architecture: the parts of a model, and the names of its tensors.
 *
 * The description is data. In trainer/model, a family of models is one row of the table in
 * architecture.c. The parameter layout (layout.c), the passes (forward.c, sublayers.c, attention.c,
 * ...) and the heads (heads.c) read the description and never the name of a family. The
 * checks of a recipe (trainer/recipe/check.c) and the import of models do compare names.
 *
 * A model has the parts
 *   embedding -> norm (if any) and dropout -> blocks -> final norm (not PLACEMENT_POST) -> head
 * and a block is a list of sub-layers: self-attention and a feed-forward network. Each sub-layer
 * has one or two norms.
 *
 * An encoder-decoder model has two stacks of blocks. The first stack, the encoder, reads the
 * sources and is bidirectional. The second one, the decoder, is causal. Its blocks have a third
 * sub-layer between the others: cross-attention to the output of the encoder. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "trainer/model/config.h"

/* Names of parameters in the Hugging Face state_dict, without the suffixes ".weight" and ".bias".
 * Names within a block follow the prefix "BLOCK.LAYER.". NULL: there is no such parameter. */
struct architecture_names {
    const char *token_table, *position_table, *token_type_table;
    const char *embedding_norm; /* norm of the embedding. With PLACEMENT_PRE it replaces norm1 of
                                 * the first block, unless embedding.extra_norm. NULL: none */
    const char *embedding_projection; /* maps a factorized embedding to the width */
    const char *block;
    const char *norm1; /* PLACEMENT_PRE and _BOTH: before attention; _POST: at the block's end */
    const char *qkv;   /* one matrix for queries, keys and values; NULL: three matrices */
    const char *query, *key, *value;
    const char *query_norm, *key_norm;
    const char *projection;
    const char *attention_norm; /* PLACEMENT_BRANCH and _BOTH: of the output of attention */
    const char *norm2;          /* between attention and the feed-forward network */
    const char *gate_fc;        /* one matrix for gate and fc; NULL: two matrices */
    const char *gate;           /* of a gated feed-forward network */
    const char *fc; /* the matrix before the activation; if gated, the one without activation */
    const char *ungated_fc; /* fc of a network without a gate; NULL: the same name */
    const char *fc_projection;
    const char *feed_forward_norm;    /* PLACEMENT_BRANCH and _BOTH: of the network's output */
    const char *final_norm;           /* not with PLACEMENT_POST */
    const char *separate_token_table; /* of the stack, with config.separate_embeddings */
    const char *position_bias;        /* POSITIONS_RELATIVE, in the first block of a stack */
    const char *cross_query, *cross_key, *cross_value, *cross_projection;
    const char *cross_norm; /* between attention and cross-attention */
    const char
        *cross_output_norm; /* PLACEMENT_BRANCH and _BOTH: of the output of cross-attention */
    const char *pooler;     /* dense layer on the first row of a sequence */
    const char *transform;  /* dense layer before the vocabulary matrix */
    const char *transform_norm;
    const char *decoder;        /* an untied vocabulary matrix */
    const char *decoder_bias;   /* bias of the vocabulary logits */
    const char *logits_bias;    /* full name of their constant bias, if config.logits_bias */
    const char *next_sentence;  /* matrix of the two labels of the second sentence */
    const char *sequence_dense; /* the dense layer of sequence labels, if it is not the pooler */
    const char *sequence_labels, *choice_labels, *token_labels; /* matrices of fine-tuning heads */
    const char *answer_labels; /* the same of answers; NULL: "qa_outputs" */
};

enum { STACKS_MAX = 2 }; /* an encoder and a decoder */

/* The kinds of sub-layers: one file each in this folder. */
enum sublayer_kind {
    SUBLAYER_SELF_ATTENTION,
    SUBLAYER_CROSS_ATTENTION, /* to the output of the encoder */
    SUBLAYER_FEED_FORWARD,
    SUBLAYER_KINDS
};

/* The sub-layers of a block in their order, at most one of each kind. */
struct block {
    int count;
    enum sublayer_kind sublayers[SUBLAYER_KINDS];
};

struct architecture {
    const char *name;                /* model_type in transformers */
    struct block blocks[STACKS_MAX]; /* of each stack. A row without them gets self-attention and a
                                      * feed-forward network; a decoder also cross-attention
                                      * between them */
    struct {
        enum position_kind positions;
        int64_t first_position; /* row of the position table for the first token of a sequence */
        bool adds_positions;    /* config.positions excludes the rows before first_position */
        bool sines_first;       /* sinusoidal: all sines before all cosines; else they alternate */
        bool scaled;            /* the token embeddings are multiplied by sqrt(width) */
        bool extra_norm;        /* norm1 of the first block reads the norm of the embedding */
        bool no_norm;           /* names.embedding_norm has no effect */
        bool no_token_types;    /* names.token_type_table has no effect */
    } embedding;
    struct {
        enum norm_kind kind; /* a layer norm has a bias, an RMS norm has none */
        bool no_bias;        /* layer norms have no bias either */
        bool no_weight;      /* norms, except the qk_norm norms, have neither weights nor biases */
        enum norm_placement placement;
    } norm;
    struct {
        bool causal; /* a decoder; else all rows of a segment attend to each other */
        bool qkv_bias, projection_bias;
        bool unscaled; /* the scores are not divided by sqrt(D) */
        enum qk_norm qk_norm;
    } attention;
    struct {
        bool gated; /* act(gate) * fc; else act(fc) */
        bool gelu;  /* gated only: act is config.activation; else it is SiLU */
        bool bias;
    } feed_forward;
    struct {
        bool transform;      /* names.transform and its norm precede the vocabulary matrix */
        bool no_bias;        /* names.transform has no bias */
        bool no_logits_bias; /* names.decoder_bias has no effect */
        bool separate_dense; /* sequence labels have names.sequence_dense instead of the pooler */
        bool relu_dense;     /* the dense layer of a fine-tuning head has ReLU instead of tanh */
        bool answer_dropout; /* dropout precedes the matrix of answers */
        bool task_transform; /* names.transform and its norm precede the matrix of a fine-tuning
                              * head, instead of the pooler */
    } head;
    bool output_dropout;   /* dropout also of the output of each stack */
    bool shared_layers;    /* all layers of the stack have the parameters of one block */
    bool free_parts;       /* config.parts sets the parts of the model */
    bool free_gate;        /* config.parts.gated sets the feed-forward network */
    bool scaled_residuals; /* initial projections into the stream are divided by sqrt(2 L) */
    bool fan_in_init;      /* initial deviations are initializer_range / sqrt(K) for K inputs */
    bool transposed;       /* files store the matrices of blocks as [in, out] */
    const struct architecture_names *names;
    const struct architecture_names *decoder_names; /* of the second stack; NULL: one stack */
};

/* model_architecture - find an architecture by name; NULL if it does not exist. */
const struct architecture *model_architecture(const char *name);

/* architecture_compose - return the description of a model: the row of its architecture, with the
 * parts of config->parts if the row has free_parts.
 *
 * Returns   a description without names if the architecture does not exist */
struct architecture architecture_compose(const struct model_config *config);

/* model_architecture_names - write all names to text[bytes] for messages: "gpt2, bert or llama".
 * Returns text. */
const char *model_architecture_names(char *text, size_t bytes);

/* architecture_is_post_norm - return whether the stream continues with the norms' outputs. */
static inline bool architecture_is_post_norm(const struct architecture *a)
{
    return a->norm.placement == PLACEMENT_POST;
}

/* architecture_has_embedding_norm - return whether a norm reads the sum of the embeddings. */
static inline bool architecture_has_embedding_norm(const struct architecture *a)
{
    return a->names->embedding_norm != NULL && !a->embedding.no_norm;
}

/* architecture_has_token_types - return whether token types have embeddings. */
static inline bool architecture_has_token_types(const struct architecture *a)
{
    return a->names->token_type_table != NULL && !a->embedding.no_token_types;
}

/* architecture_continues_norm1 - return whether the stream of a block continues with the output of
 * norm1. With PLACEMENT_POST this holds for each block, otherwise for the first block if the norm
 * of the embedding replaces its norm1. */
static inline bool architecture_continues_norm1(const struct architecture *a, bool is_first_block)
{
    return architecture_is_post_norm(a) ||
           (is_first_block && architecture_has_embedding_norm(a) && !a->embedding.extra_norm);
}

/* architecture_has_input_norms - return whether each sub-layer of a block reads a norm of the
 * stream that belongs to it. */
static inline bool architecture_has_input_norms(const struct architecture *a)
{
    return a->norm.placement == PLACEMENT_PRE || a->norm.placement == PLACEMENT_BOTH;
}

/* architecture_has_branch_norms - return whether the output of each sub-layer is normalized before
 * it is added to the stream. */
static inline bool architecture_has_branch_norms(const struct architecture *a)
{
    return a->norm.placement == PLACEMENT_BRANCH || a->norm.placement == PLACEMENT_BOTH;
}

/* architecture_has_first_norm - return whether a norm precedes the first block: the norm before its
 * attention, or the norm of the embedding. */
static inline bool architecture_has_first_norm(const struct architecture *a)
{
    return architecture_has_input_norms(a) || architecture_has_embedding_norm(a);
}

/* architecture_drops_sum - return whether dropout of the embedding follows the sum with the token
 * types, without a norm between them. */
static inline bool architecture_drops_sum(const struct architecture *a)
{
    return !architecture_is_post_norm(a) && architecture_has_token_types(a) &&
           !architecture_has_embedding_norm(a);
}

/* architecture_has_decoder - return whether the model has an encoder and a decoder. */
static inline bool architecture_has_decoder(const struct architecture *a)
{
    return a->decoder_names != NULL;
}

/* architecture_is_rotary - return whether queries and keys are rotated by their positions. */
static inline bool architecture_is_rotary(const struct architecture *a)
{
    return a->embedding.positions == POSITIONS_ROTARY;
}
