/* The transformer model: configuration, parameter layout, forward and backward passes, generation.
 *
 * An architecture is a description of the parts of a model (architecture.h). architecture.c has the
 * description of each family, such as gpt2, bert and llama. A fine-tuning head can take the place
 * of the vocabulary matrix (enum model_head_kind). It reads selected rows of the hidden states. The
 * model does not depend on the objectives or on the gradient reduction.
 *
 * Parameters  one flat f32 buffer in forward order, trained parameters before frozen ones. In bf16
 *             precision the GEMMs read a bf16 copy of this buffer. Weights are [out, in];
 *             `transposed` marks those that the Hugging Face file stores as [in, out]
 * Gradients   owned by the caller, who passes one pointer for each parameter. NULL: the parameter
 *             is frozen, and backward skips the GEMM for its gradient
 * Order       backward finishes the gradients layer by layer, from the last parameter to the first,
 *             and calls a hook after each part. A tied embedding is the first parameter, so its
 *             gradient is final last
 * Letters     B batch, T tokens, N = B T rows, C width, H heads, G key-value heads, D head width,
 *             F inner width, V vocabulary, L layers, M selected output rows, E examples, U width of
 *             the tables of embeddings: C, or less if the embedding is factorized */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"
#include "kernels/kernels.h"

#define MODEL_NAME_BYTES 128

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

/* Low-rank adapters (adapter.c). With adapters, only they and the fine-tuning head are trained. */
struct model_adapter {
    int64_t rank; /* 0: no adapters */
    float alpha, dropout;
    const char *targets;  /* comma-separated suffixes of matrix names, or "all-linear" for all
                           * matrices of the blocks */
    bool rank_stabilized; /* scale is alpha / sqrt(rank) instead of alpha / rank */
};

/* Activations that backward recomputes instead of keeping them from forward. */
enum model_recompute {
    MODEL_RECOMPUTE_NONE = 0,
    MODEL_RECOMPUTE_SELECTIVE, /* activations (GELU or SwiGLU) and norms */
    MODEL_RECOMPUTE_FULL       /* the whole layer from its input */
};

/* Parts of an architecture with free_parts. 0: the default of the architecture. */
struct model_parts {
    enum {
        MODEL_PLACEMENT_DEFAULT = 0,
        MODEL_PLACEMENT_PRE,
        MODEL_PLACEMENT_POST,
        MODEL_PLACEMENT_BRANCH,
        MODEL_PLACEMENT_BOTH
    } norm_placement;
    enum {
        MODEL_POSITIONS_DEFAULT = 0,
        MODEL_POSITIONS_LEARNED,
        MODEL_POSITIONS_SINUSOIDAL,
        MODEL_POSITIONS_ROTARY,
        MODEL_POSITIONS_NONE
    } positions;
    enum {
        MODEL_QK_NORM_NONE = 0,
        MODEL_QK_NORM_HEADS, /* a norm of each head of the queries and keys */
        MODEL_QK_NORM_ROWS   /* one norm of all heads together */
    } qk_norm;
    bool rms_norm; /* RMS norms instead of layer norms */
    bool gated;    /* gated feed-forward network with config.activation: SiLU or a GELU; also an
                    * architecture with free_gate has this part */
};

/* FP8 matrices of the layers (linear.c). */
struct model_fp8 {
    int64_t amax_history; /* steps; 0: no FP8 */
    bool first_last_bf16; /* the first and the last layer are not FP8 */
};

struct model_config {
    const char *architecture; /* "gpt2", "bert", ...: a name in architecture.c */
    int64_t layers, width, heads, inner, positions, vocabulary;
    int64_t embedding_width; /* U of a factorized embedding, at most the width; 0: not factorized */
    int64_t encoder_layers;  /* of an encoder-decoder model: the first ones of `layers` */
    enum activation activation;
    struct model_parts parts;
    float dropout, attention_dropout, norm_epsilon, initializer_range;
    bool tied;                     /* the vocabulary matrix is the token table */
    bool logits_bias;              /* a constant is added to the logits (names.logits_bias) */
    int64_t kv_heads;              /* key-value heads; 0: equal to heads */
    int64_t head_width;            /* D; 0: width / heads */
    bool attention_bias, mlp_bias; /* biases in addition to those of the architecture */
    bool qkv_bias;                 /* the same, of queries, keys and values alone */
    int64_t window;                /* a row attends to rows at a distance below this; 0: to all */
    int64_t window_pattern;        /* n: every n-th layer has no window; 0: all layers have it */
    double rope_theta;             /* base of the rotary frequencies */
    int64_t rotary_width;          /* first columns of a head that rotate; 0: all */
    double rope_local_theta;       /* base in layers with a window, never scaled; 0: rope_theta */
    int64_t no_rope_interval;      /* n: every n-th layer has no rotary positions; 0: none */
    int64_t position_buckets;      /* POSITIONS_RELATIVE: number of buckets of distances */
    int64_t max_distance;          /* the same: greater distances share the last bucket */
    double attention_scale;        /* factor of the scores; 0: 1 / sqrt(D) */
    double attention_softcap;      /* soft-cap of the scores, as in Gemma 2; 0: none */
    double embedding_multiplier;   /* factor of the token embeddings; 0: 1 */
    double residual_multiplier;    /* factor of the outputs of the sub-layers; 0: 1 */
    double logits_divisor;         /* divisor of the logits; 0: 1 */
    double logits_softcap;         /* soft-cap of the vocabulary logits; 0: none */
    struct rotary_scaling rope_scaling; /* frequency scaling for long contexts */
    enum model_recompute recompute;
    int64_t token_types; /* rows of BERT's token type table; 0: no table */
    bool next_sentence;  /* BERT with MODEL_HEAD_LM only: a pooler and a head of two labels */
    int64_t output_rows; /* maximum rows of a micro-batch that BERT's or a fine-tuning head reads */
    int64_t examples;    /* maximum examples of a micro-batch for next_sentence */
    enum model_head_kind head; /* the head after the final norm */
    int64_t labels;            /* outputs of a fine-tuning head */
    struct model_adapter adapter;
    const char *frozen; /* comma-separated fnmatch patterns of parameters to freeze; NULL: none */
    struct model_freezing freezing; /* parameters to freeze by position */
    struct model_fp8 fp8;           /* of a model for training */
};

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
    MODEL_ATTENTION_NORM, /* PLACEMENT_BRANCH and _BOTH: the norm of the output of attention */
    MODEL_NORM2,          /* the norm between attention and the feed-forward network */
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

/* One parameter as stored on one of `ranks` tensor-parallel ranks. A vector is a matrix of one
 * row. */
struct model_parameter {
    char name[MODEL_NAME_BYTES]; /* in the Hugging Face state_dict */
    enum model_role role;
    int64_t layer;     /* index of its block; -1 before the blocks, L after them; the last norm of
                        * an encoder has that of the last block before it */
    int stack;         /* 1 in a decoder that follows an encoder, else 0 */
    int fused_count;   /* this parameter and the fused_count - 1 next ones form one matrix (or bias)
                        * for a GEMM; 1: not fused */
    int adapter;       /* index of the parameter A of its adapter, B follows; 0: no adapter */
    int adapter_index; /* index of that adapter among those of its layer */
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

/* model_adapter_scale - return the factor s of the adapters' output (adapter.c). */
float model_adapter_scale(const struct model_adapter *adapter);

struct model;
struct model_cache; /* key-value cache of generation */

/* model_weights_hook - called before forward reads the weights below element `end`.
 * `end` rises from call to call. */
typedef status (*model_weights_hook)(void *user, int64_t end);

/* model_attention_hook - called after the attention of each layer, in ascending order.
 *
 * Shapes    queries [N, H D / t] and keys [N, G D / t], with rotary positions; keys of head h are
 *           those of key-value head h / (H / G)
 * Memory    the views are valid during the call */
typedef status (*model_attention_hook)(void *user, int64_t layer, const struct attention *a,
                                       struct tensor queries, struct tensor keys);

/* The sources of an encoder-decoder model: the rows that the encoder reads. Segment i of the
 * sources belongs to segment i of the targets. */
struct model_source {
    int64_t rows; /* S */
    const int32_t *tokens, *positions;
    const int32_t *cu_rows; /* [segments + 1] */
    int64_t longest;
    int64_t first_row;
};

/* Inputs of one forward pass. The training step fills it from a batch. All pointers are on the
 * model's device. */
struct model_input {
    int64_t rows; /* N */
    const int32_t *tokens, *positions;
    int64_t segments; /* ranges of rows that attention must not leave */
    const int32_t *cu_rows;
    const int32_t *shared_prefix_offsets; /* as in struct attention; NULL: no shared prefixes */
    int64_t longest;                      /* rows of the longest segment */
    const int32_t *token_type_ids;        /* [N], if the model has two token types */
    const int32_t *output_rows; /* [M] ascending: rows that BERT's or a fine-tuning head reads;
                                 * NULL: no head, forward returns the hidden states of all rows */
    int64_t outputs;            /* M, at least 1 */
    int64_t first_row;          /* global index of row 0, for dropout */
    int64_t first_output;       /* global index of the first output row, for dropout */
    struct model_source source; /* encoder-decoder models only */
    bool is_source;             /* set by the model while it runs the encoder */
    struct model_cache *cache;  /* set by model_forward_cached */
    uint64_t seed;              /* the dropout key is (seed, step) */
    int64_t step;
    bool training;                       /* apply dropout and keep activations for backward */
    bool first_micro_batch;              /* gradients are set instead of added to */
    bool transient_gradients;            /* gradients have memory only in their layer's backward */
    model_weights_hook weights_hook;     /* NULL: all weights are already available */
    model_attention_hook attention_hook; /* without training only; NULL: none */
    void *user;                          /* argument of the hooks */
};

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

/* model_layer_has_cross - return whether a layer belongs to the decoder of an encoder-decoder
 * model. */
bool model_layer_has_cross(const struct model_config *config, int64_t layer);

/* model_layer_is_local - return whether window_pattern makes a layer local: it then has the window
 * and rope_local_theta. Without window_pattern no layer is local. */
bool model_layer_is_local(const struct model_config *config, int64_t layer);

/* model_layer_has_rope - return whether a layer rotates its queries and keys. */
bool model_layer_has_rope(const struct model_config *config, int64_t layer);

/* model_layer_window - return the window of attention of a layer; 0: all earlier rows. */
int64_t model_layer_window(const struct model_config *config, int64_t layer);

/* model_block_norms - return the number of norms of the stream and of the branches in a block. */
int model_block_norms(const struct model_config *config);

/* model_parameter_uses - return how often a forward pass reads a parameter: once for each layer
 * that shares it. */
int64_t model_parameter_uses(const struct model_config *config, const struct model_parameter *p);

/* model_is_factorized - return whether a matrix maps the embedding to the width (ALBERT). */
static inline bool model_is_factorized(const struct model_config *config)
{
    return config->embedding_width > 0;
}

/* model_embedding_width - return U, the columns of the tables of embeddings and of the vocabulary
 * matrix. */
static inline int64_t model_embedding_width(const struct model_config *config)
{
    return model_is_factorized(config) ? config->embedding_width : config->width;
}

/* model_has_qk_norm - return whether the queries and keys have norms. */
bool model_has_qk_norm(const struct model_config *config);

/* model_has_joint_qk_norm - return whether one norm reads all heads of the queries, and one all
 * heads of the keys. */
bool model_has_joint_qk_norm(const struct model_config *config);

/* model_qk_norm_width - return the number of columns that a norm of the queries or keys reads. */
int64_t model_qk_norm_width(const struct model_config *config, bool keys);

/* model_norm_width - return the width of the widest row that a norm reads. */
int64_t model_norm_width(const struct model_config *config);

/* model_inner_outputs - return the output width of the GEMM before the activation.
 * It is F, or 2 F with SwiGLU. */
int64_t model_inner_outputs(const struct model_config *config);

/* model_positions - return the longest sequence that the position table supports. */
int64_t model_positions(const struct model_config *config);

/* model_parameter_elements - return the local elements of a parameter, without padding. */
int64_t model_parameter_elements(const struct model_parameter *p);

/* model_layer_first - return the offset of the first trained element of a layer.
 * Layer L stands for the parameters after the blocks. */
int64_t model_layer_first(const struct model_parameter *parameters, int count, int64_t layer);

/* model_first_trained_layer - return the layer of the first trained parameter, where backward ends.
 * It is -1 before the blocks and L after them. */
int64_t model_first_trained_layer(const struct model_parameter *parameters, int count);

/* model_trained_elements - return the length of the trained part of the flat buffer. */
int64_t model_trained_elements(const struct model_parameter *parameters, int count);

/* The parallelism of one model over a tensor-parallel group. */
struct model_parallelism {
    int ranks;
    bool sequence_parallel; /* each rank runs norms and dropout on its share of the rows only */
};

/* model_activation_bytes - compute the working memory of one rank.
 *
 * Units     rows is the largest number of rows of a micro-batch; *bytes includes the communication
 *           window
 * Errors    STATUS_INTERNAL if host memory is exhausted; *bytes is 0 then */
status model_activation_bytes(const struct model_config *config,
                              struct model_parallelism parallelism, enum dtype dtype, int64_t rows,
                              bool training, size_t *bytes);

/* model_window_bytes - return the size of one rank's window of comm_allocate in the tensor-parallel
 * group; 0 with one rank. */
size_t model_window_bytes(const struct model_config *config, struct model_parallelism parallelism,
                          enum dtype dtype, int64_t rows);

/* ---- FP8: linear.c ---- */

/* The sizes of the FP8 matrices on one tensor-parallel rank; zeros: there is none. */
struct model_fp8_sizes {
    int64_t columns;      /* largest K and M */
    int64_t weights;      /* largest K M */
    int64_t not_multiple; /* a K or M that is not a multiple of FP8_MULTIPLE; 0: there is none */
};

/* model_fp8_sizes - find the sizes of the FP8 matrices. */
struct model_fp8_sizes model_fp8_sizes(const struct model_config *config, int ranks);

/* model_fp8_bytes - return the memory of scales and history; 0 without FP8. */
size_t model_fp8_bytes(const struct model_config *config);

/* model_fp8_history - return the amax history, newest step first. The largest magnitudes of the
 * operands are equal on all ranks.
 *
 * Shapes    f32 [*length, *operands]
 * Memory    host memory, owned by the model; NULL without FP8 */
float *model_fp8_history(const struct model *m, int64_t *length, int64_t *operands);

/* model_fp8_sync - compute the scales after the caller changed the history. */
status model_fp8_sync(struct model *m);

/* model_fp8_advance - end a step: add the largest magnitudes over all ranks to the history, and
 * compute the scales of the next step. keep is false if the step was skipped; its magnitudes are
 * then discarded. Does nothing without FP8.
 *
 * Order     collective; waits for the device */
status model_fp8_advance(struct model *m, struct comm *world, bool keep);

/* model_create - create this rank's shard of the model with zero weights and its working memory.
 *
 * Units     rows is the largest number of rows of a micro-batch
 * Memory    k and tensor_group remain owned by the caller and must outlive the model. *out is NULL
 *           on failure. tensor_group is the communicator of the ranks that share the model; NULL:
 *           one rank holds the whole model. sequence_parallel has no effect on one rank
 * Errors    as model_layout; STATUS_INTERNAL if memory is exhausted */
status model_create(struct kernels *k, const struct model_config *config, struct comm *tensor_group,
                    bool sequence_parallel, int64_t rows, bool training, struct model **out);

/* model_destroy - free a model and set *m to NULL. */
status model_destroy(struct model **m);

/* model_connect - allocate the communication window of the tensor-parallel group.
 *
 * Order     collective over the group, before the first use of the model; no-op on one rank
 * Errors    STATUS_INTERNAL with the size of the window, on all ranks */
status model_connect(struct model *m);

/* model_get_config - return the configuration of a model. */
const struct model_config *model_get_config(const struct model *m);

/* model_rows - return the largest number of rows of a pass. */
int64_t model_rows(const struct model *m);

/* model_parameters - return the parameter list of a model. */
const struct model_parameter *model_parameters(const struct model *m, int *count);

/* model_elements - return the length of the flat buffer. */
int64_t model_elements(const struct model *m);

/* model_weights - return the f32 weights [model_f32_elements]; NULL once released. */
float *model_weights(const struct model *m);

/* model_bf16_weights - return the bf16 weights [model_elements]; NULL in fp32 precision. */
bf16 *model_bf16_weights(const struct model *m);

/* model_f32_elements - return the number of elements, from the first on, that have f32 weights.
 * All elements have them, except with adapters in bf16: then only the trained ones do. Frozen
 * matrices exist in bf16 only then; frozen vectors exist in f32 too. */
int64_t model_f32_elements(const struct model *m);

/* model_set_frozen - set a range of elements that have no f32 weights.
 * Matrices are rounded to bf16.
 *
 * Shapes    weights f32 [elements.count]
 * Memory    weights is on the model's device */
status model_set_frozen(struct model *m, struct comm_range elements, float *weights);

/* model_init_weights - initialize all weights as the architecture defines, with `threads` CPU
 * threads.
 *
 * Numerics  a value depends on seed, parameter index and element of the whole parameter only */
status model_init_weights(struct model *m, uint64_t seed, int threads);

/* model_initial_value - return the initial value of one element of parameter `index`.
 *
 * Units     element counts within the whole parameter */
float model_initial_value(const struct model_parameter *parameter, int index, uint64_t seed,
                          int64_t element);

/* model_release_weights - free the f32 weights of a bf16 model.
 * Only the vectors (biases, norms) remain in f32.
 * The owner of the master weights must update the bf16 weights and the vectors from then on.
 * model_weights returns NULL after this call.
 *
 * Errors    STATUS_INTERNAL if the model is not bf16 or the weights are already released */
status model_release_weights(struct model *m);

/* model_vectors - return the f32 vectors of all trained parameters [*count].
 * They are NULL, and *count is 0, as long as all vectors are part of model_weights. */
float *model_vectors(const struct model *m, int64_t *count);

/* model_sync_bf16 - round the f32 weights to the bf16 copy; no-op in fp32 precision. */
status model_sync_bf16(struct model *m);

/* model_forward - compute the hidden states of one micro-batch.
 *
 * Shapes    hidden [N, C] after the final norm; with output_rows [M, C], the output of the head's
 *           layers before its last matrix
 * Memory    hidden is a view of the model's memory, valid until the next pass
 * Order     collective over the tensor-parallel group
 * Errors    STATUS_INTERNAL if the micro-batch is larger than planned */
status model_forward(struct model *m, const struct model_input *input, struct tensor *hidden);

/* model_lm_head - return the vocabulary matrix [V padded, C]; absent for a fine-tuning head. */
struct tensor model_lm_head(const struct model *m);

/* model_logits - compute the vocabulary logits of a few rows, with the bias and the soft-cap.
 *
 * Shapes    logits f32 [R, at most V padded]: those of the first ids of this rank's model_lm_head;
 *           hidden [R, C], rows of the output of model_forward or model_forward_cached */
status model_logits(struct model *m, struct tensor logits, struct tensor hidden);

/* model_lm_head_gradient - return the gradient of model_lm_head, f32 [V padded, C]. */
struct tensor model_lm_head_gradient(const struct model *m, float *const *gradients);

/* model_lm_head_bias - return the bias of the vocabulary logits, f32 [1, V padded]; absent if the
 * model has none (GPT-2, Llama). */
struct tensor model_lm_head_bias(const struct model *m);

/* model_lm_head_bias_gradient - return the gradient of model_lm_head_bias. */
struct tensor model_lm_head_bias_gradient(const struct model *m, float *const *gradients);

/* The classification matrix: BERT's next-sentence labels or a fine-tuning head.
 * Each tensor-parallel rank holds all of it. */
struct model_label_head {
    struct tensor hidden; /* [E, C] pooler output of BERT's examples (E segments); absent for a
                           * fine-tuning head, which reads the output of model_forward */
    struct tensor weight; /* [labels, C] */
    struct tensor bias;   /* f32 [1, labels], or absent */
    struct tensor hidden_gradient, weight_gradient, bias_gradient; /* written by the objective */
};

/* model_get_label_head - return the classification matrix and its input for the last forward pass.
 * All tensors are absent if the model has no labels or the pass had no output_rows. If gradients is
 * NULL, the gradient tensors are absent. */
struct model_label_head model_get_label_head(const struct model *m, const struct model_input *input,
                                             float *const *gradients);

/* model_lm_head_shard - return the part of the vocabulary that this rank's model_lm_head holds. */
struct vocabulary_shard model_lm_head_shard(struct model *m);

/* model_classifier - return the settings of classifier_run for the vocabulary logits of the model,
 * without gradients. `ignored` is the target that is not counted. */
struct classifier model_classifier(struct model *m, int64_t ignored);

/* model_hidden_gradient - return the buffer where the objective writes d hidden, before
 * model_backward.
 *
 * Shapes    [N, U], or [M, C] for a fine-tuning head
 * Order     with MODEL_HEAD_LM each rank writes the part that comes through its vocabulary shard,
 *           and model_backward reduces the parts. With a fine-tuning head each rank writes the
 *           whole */
struct tensor model_hidden_gradient(const struct model *m);

/* model_gradient_hook - called when the gradients from element `first` on are final.
 * `first` falls from call to call. */
typedef status (*model_gradient_hook)(void *user, int64_t first);

/* model_backward - compute the gradients of all trained parameters.
 *
 * Shapes    gradients [parameters], NULL for frozen parameters
 * Memory    adds to the gradients, or sets them if input->first_micro_batch. In that case the
 *           objective must have set the gradient of the head. hook may be NULL
 * Order     collective over the tensor-parallel group. With input->transient_gradients, a layer's
 *           gradients are written only after the hook was called for the next layer. Otherwise the
 *           gradient of the layer's last bias is written before that call. Gradients are cleared
 *           (first_micro_batch) before all other writes */
status model_backward(struct model *m, const struct model_input *input, float *const *gradients,
                      model_gradient_hook hook, void *user);

/* ---- generation: new rows of each sequence attend to cached keys and values ---- */

/* model_cache_create - create a key-value cache for `sequences` sequences of up to `tokens` tokens.
 * The sequences of an encoder-decoder model have sources of up to `source_tokens` tokens.
 *
 * Memory    2 L G D tokens sequences elements (L layers of the decoder, G of this rank) on the
 *           model's device; with an encoder also 2 L H D source_tokens sequences
 * Errors    STATUS_USAGE if the model has fewer positions than `tokens` or `source_tokens` */
status model_cache_create(struct model *m, int64_t sequences, int64_t tokens, int64_t source_tokens,
                          struct model_cache **out);

/* model_cache_destroy - free a cache and set *cache to NULL. */
status model_cache_destroy(struct model_cache **cache);

/* model_cache_read_source - run the encoder of an encoder-decoder model on the source of one
 * sequence, and store the keys and values of cross-attention.
 *
 * Shapes    tokens [count] on the host
 * Order     before the first model_forward_cached with this sequence; collective over the
 *           tensor-parallel group
 * Errors    STATUS_INTERNAL if the source is longer than planned */
status model_cache_read_source(struct model *m, struct model_cache *cache, int64_t sequence,
                               const int32_t *tokens, int64_t count);

/* model_forward_cached - run counts[i] new tokens of each sequence i against the cache.
 * Their keys and values are appended to the cache.
 *
 * Shapes    tokens [sum of counts], the sequences one after the other; counts[i] may be 0;
 *           hidden [sum of counts, C] after the final norm
 * Order     collective over the tensor-parallel group
 * Errors    STATUS_INTERNAL if the cache overflows */
status model_forward_cached(struct model *m, struct model_cache *cache, const int32_t *tokens,
                            const int64_t *counts, struct tensor *hidden);

/* model_cache_reorder - replace sequence i by a copy of sequence from[i], for all i (beam search).
 * Both then share the memory of a source.
 *
 * Memory    the first call allocates a second cache of the same size */
status model_cache_reorder(struct model *m, struct model_cache *cache, const int32_t *from);

/* model_cache_clear - remove all tokens of one sequence. Its source remains. */
void model_cache_clear(struct model_cache *cache, int64_t sequence);

/* model_cache_length - return the number of cached tokens of one sequence. */
int64_t model_cache_length(const struct model_cache *cache, int64_t sequence);
