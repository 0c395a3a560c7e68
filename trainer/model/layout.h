/* The parameter layout of a model: names, shapes and places of all parameters on one rank. It
 * exists without a model, so that `bireme plan` can compute it. */
#pragma once

#include "trainer/model/config.h"

#define MODEL_NAME_BYTES 128

/* A rectangle of a whole matrix in this rank's part of it; contiguous there as [rows, columns]. */
struct model_shard {
    int64_t first;       /* offset of its first element within the local parameter */
    int64_t row, column; /* its position in the whole matrix, in memory orientation */
    int64_t rows, columns;
};

enum { MODEL_SHARDS_MAX = 3 };

/* The function of a parameter. A parameter with two dimensions, or a norm's gamma, is the weight of
 * its role. The others are biases. */
enum model_role {
    MODEL_TOKEN_TABLE,
    MODEL_POSITION_TABLE,
    MODEL_TOKEN_TYPE_TABLE,
    MODEL_POSITION_BIAS, /* POSITIONS_RELATIVE: the table of a stack [buckets, H] */
    MODEL_EMBEDDING_NORM,
    MODEL_EMBEDDING_PROJECTION, /* maps a factorized embedding to the width */
    MODEL_NORM1, /* PLACEMENT_PRE and _BOTH: the norm before attention, and the final norm of a
                  * stack; PLACEMENT_POST: the norm at the end of a block; PLACEMENT_BRANCH: the
                  * final norm only */
    MODEL_QKV,
    MODEL_QUERY_NORM, /* the norms of each head, or of all heads */
    MODEL_KEY_NORM,
    MODEL_PROJECTION,
    MODEL_CROSS_NORM, /* cross-attention: the norm before it, and its matrices */
    MODEL_CROSS_QUERY,
    MODEL_CROSS_KEY_VALUE,
    MODEL_CROSS_PROJECTION,
    MODEL_CROSS_OUTPUT_NORM, /* PLACEMENT_BRANCH and _BOTH: the norm of its output */
    MODEL_ATTENTION_NORM,    /* PLACEMENT_BRANCH and _BOTH: the norm of the output of attention */
    MODEL_NORM2,             /* the norm between attention and the feed-forward network */
    MODEL_FC,
    MODEL_FC_PROJECTION,
    MODEL_FEED_FORWARD_NORM, /* PLACEMENT_BRANCH and _BOTH: the norm of the network's output */
    MODEL_POOLER,
    MODEL_TRANSFORM,
    MODEL_TRANSFORM_NORM,
    MODEL_DECODER,     /* an untied vocabulary matrix, and the bias of the vocabulary logits */
    MODEL_LABELS,      /* BERT's two next-sentence labels, or the matrix of a fine-tuning head */
    MODEL_ADAPTER_IN,  /* A: reads the input of the frozen matrix */
    MODEL_ADAPTER_OUT, /* B: adds to the output of the frozen matrix */
    MODEL_ROLES
};

/* One parameter as stored on one of `ranks` tensor-parallel ranks. A vector has one row. */
struct model_parameter {
    char name[MODEL_NAME_BYTES]; /* in the Hugging Face state_dict */
    enum model_role role;
    int64_t layer;     /* index of its block; -1 before the blocks, L after them; the last norm of
                        * an encoder has the index of the last block before it */
    int stack;         /* 1 in a decoder that follows an encoder, else 0 */
    int fused_count;   /* this parameter and the fused_count - 1 next ones form one matrix (or bias)
                        * for a GEMM; 1: not fused */
    int adapter;       /* index of the parameter A of its adapter, B follows; 0: no adapter */
    int adapter_index; /* index of that adapter among its layer's adapters */
    bool trained;      /* has a gradient and moments; equal for all fused parameters */
    int64_t first;     /* offset in the flat buffer; trained parameters come first */
    int64_t vector_offset;             /* for a vector: offset in the buffer of all vectors */
    int64_t rows, columns;             /* local shape; rows may include vocabulary padding */
    int64_t whole_rows, whole_columns; /* shape over all ranks, without padding */
    struct model_shard shards[MODEL_SHARDS_MAX]; /* local rectangles in order, without padding */
    int shard_count;                             /* 0: this rank holds only padding */
    bool replicated;  /* each rank holds the whole parameter and an equal gradient */
    int dimensions;   /* 1 or 2 */
    bool transposed;  /* the Hugging Face file stores [in, out] */
    bool decay;       /* weight decay applies: matrices and embeddings */
    float init_value; /* initial value where init_std and init_bound are 0 */
    float init_std;   /* standard deviation of the initial normal distribution */
    float init_bound; /* > 0: the initial distribution is uniform in [-init_bound, init_bound) */
};

/* model_is_adapter - return whether a parameter is part of an adapter. */
static inline bool model_is_adapter(const struct model_parameter *p)
{
    return p->role == MODEL_ADAPTER_IN || p->role == MODEL_ADAPTER_OUT;
}

/* model_is_norm - return whether a parameter is gamma or beta of a norm. */
bool model_is_norm(const struct model_parameter *p);

/* model_is_task_head - return whether a parameter belongs to a fine-tuning head. Such a head is
 * trained in full, even with adapters. */
static inline bool model_is_task_head(const struct model_config *config,
                                      const struct model_parameter *p)
{
    return config->head != MODEL_HEAD_LM &&
           (p->role == MODEL_POOLER || p->role == MODEL_TRANSFORM ||
            p->role == MODEL_TRANSFORM_NORM || p->role == MODEL_LABELS);
}

/* model_vocabulary_rows - return the rows of one rank's token table shard.
 * The number is padded so that the output GEMM has whole vectors. */
int64_t model_vocabulary_rows(const struct model_config *config, int ranks);

/* model_layout - list the parameters that tensor-parallel rank `rank` of `ranks` holds.
 * The list and its order are the same on all ranks. No model is created, so that `bireme plan` can
 * call it.
 *
 * Shapes    split by rows: matrices that read the residual stream (heads of each of query, key and
 *           value; inner features) and the token table. Split by columns: matrices that write to
 *           the stream
 * Units     *elements is the length of the flat buffer
 * Memory    the caller frees *out with free()
 * Errors    STATUS_UNAVAILABLE if the architecture is unknown; STATUS_RECIPE if some but not all of
 *           a set of fused matrices are frozen, or if an adapter target matches no matrix
 * Source    Shoeybi et al. 2019, arXiv:1909.08053 */
status model_layout(const struct model_config *config, int ranks, int rank,
                    struct model_parameter **out, int *count, int64_t *elements);

/* model_parameter_uses - return how often a forward pass reads a parameter: once for each layer
 * that shares it. */
int64_t model_parameter_uses(const struct model_config *config, const struct model_parameter *p);

/* model_parameter_elems - return the local elements of a parameter, without padding. */
int64_t model_parameter_elems(const struct model_parameter *p);

/* model_layer_first - return the offset of the first trained element of a layer.
 * Layer L stands for the parameters after the blocks. */
int64_t model_layer_first(const struct model_parameter *parameters, int count, int64_t layer);

/* model_first_trained_layer - return the layer of the first trained parameter, where backward ends.
 * It is -1 before the blocks and L after them. */
int64_t model_first_trained_layer(const struct model_parameter *parameters, int count);

/* model_trained_elems - return the length of the trained part of the flat buffer. */
int64_t model_trained_elems(const struct model_parameter *parameters, int count);
