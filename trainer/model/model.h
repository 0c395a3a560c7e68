/* One transformer; an architecture is a row of flags (architecture.c).
 *
 * gpt2 predicts the next token: causal attention, norms before each half of a block, a norm at the end. bert and
 * roberta predict masked tokens: attention to both sides, norms behind each half, and before the vocabulary's
 * matrix, for the masked rows alone, a dense layer and a norm; with next_sentence also a pooler of each example's
 * first row and two labels.
 * llama is gpt2 with RMS norms, rotary positions, key-value heads that several heads share, SwiGLU and no biases.
 * Instead of the vocabulary's matrix each has the small head of a task (enum model_task), which reads some of the rows.
 *
 * Parameters lie in forward order in one flat f32 buffer, those that are trained before those that are frozen; the
 * products read a bf16 copy of it where the precision is bf16. Gradients are the caller's, a place for each parameter,
 * NULL for a frozen one, whose products backward leaves out. Backward finishes them from the
 * last parameter downwards, layer by layer, and says so; the tied embedding comes first, so it is final last. The model knows nothing of objectives and of the reduction of gradients.
 *
 * Weights are [out, in] in memory; `transposed` says that the Hugging Face file holds [in, out]. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"
#include "kernels/kernels.h"

#define MODEL_NAME_BYTES 96

/* What is not trained by its place. embeddings: all before the blocks; layers: so many blocks from the first on;
 * backbone: all of these and the last norm, so that what is left is the head. */
struct model_freezing {
    bool embeddings, backbone;
    int64_t layers;
};

/* What the head behind the last norm is for. Names and order of operations are those of transformers' classes:
 * ...ForSequenceClassification, ...ForMultipleChoice, ...ForTokenClassification, ...ForQuestionAnswering. */
enum model_task {
    MODEL_WORDS, /* which token comes next, or stood there */
    MODEL_TEXTS, /* labels of a text: its first row through a dense layer in encoders, else its last row as it is */
    MODEL_CHOICES, /* one number for each text that may be chosen, likewise */
    MODEL_TOKENS,  /* labels of tokens */
    MODEL_SPANS,   /* where a span begins and ends: two numbers for each token */
    MODEL_VECTORS  /* none: the rows themselves */
};

/* Small matrices beside frozen ones (adapter.c): these are trained, and the head of a task. */
struct model_adapter {
    int64_t rank; /* 0: none */
    float alpha, dropout;
    const char *
        targets; /* what names of matrices end with, comma-separated; "all-linear": of every block */
    bool by_root; /* what they add is scaled by alpha / sqrt(rank), not alpha / rank */
};

/* What backward makes again instead of keeping it: GELU (or SwiGLU) and norms; or all of a layer but its input. */
enum model_recompute { MODEL_KEEP_ALL = 0, MODEL_RECOMPUTE_SELECTIVE, MODEL_RECOMPUTE_FULL };

struct model_config {
    const char *architecture; /* "gpt2", "bert", "roberta", "llama" */
    int64_t layers, width, heads, inner, positions, vocabulary;
    enum activation activation;
    float dropout, attention_dropout, norm_epsilon, initializer_range;
    bool tied;
    int64_t kv_heads;                   /* Llama: key-value heads; 0: as many as heads */
    double rope_theta;                  /* Llama: of its rotary positions, ... */
    struct rotary_scaling rope_scaling; /* ... and what slows them */
    enum model_recompute recompute;
    int64_t segments;    /* rows of BERT's segment table; 0: none */
    bool next_sentence;  /* BERT: pooler and a head of two labels; MODEL_WORDS alone has it */
    int64_t output_rows; /* rows of a micro-batch that BERT's head or a task's reads at most, ... */
    int64_t examples;    /* ... and examples of BERT's next_sentence */
    enum model_task task;
    int64_t labels; /* outputs of a task's head */
    struct model_adapter adapter;
    const char *frozen; /* patterns of names (fnmatch), comma-separated: not trained; NULL: none */
    struct model_freezing freezing; /* likewise, by place */
};

/* A rectangle of a whole matrix that lies in this rank's part of it, contiguous there: [rows, columns]. */
struct model_piece {
    int64_t first;       /* its first element, counted from the parameter's */
    int64_t row, column; /* where it begins in the whole, in memory's orientation */
    int64_t rows, columns;
};

enum { MODEL_PIECES_MAX = 3 };

/* What a parameter is to the model: a weight where it has two dimensions or belongs to a norm, else its bias. */
enum model_role {
    MODEL_TOKEN_TABLE,
    MODEL_POSITION_TABLE,
    MODEL_SEGMENT_TABLE,
    MODEL_NORM1, /* whose output attention reads; layer L's is the last one */
    MODEL_QKV,
    MODEL_PROJECTION,
    MODEL_NORM2, /* whose output the feed-forward layers read */
    MODEL_FC,
    MODEL_FC_PROJECTION,
    MODEL_POOLER,
    MODEL_TRANSFORM,
    MODEL_TRANSFORM_NORM,
    MODEL_DECODER,     /* the vocabulary's matrix where it is not the token table, and its bias */
    MODEL_LABELS,      /* BERT's two labels, or the matrix of a task */
    MODEL_ADAPTER_IN,  /* A: reads what the frozen matrix reads */
    MODEL_ADAPTER_OUT, /* B: adds to what it makes */
    MODEL_ROLES
};

/* One parameter as one rank of `ranks` tensor-parallel ones holds it. A vector is a matrix of one row. */
struct model_parameter {
    char name[MODEL_NAME_BYTES]; /* in the Hugging Face state_dict */
    enum model_role role;
    int64_t layer; /* the block that it lies in: -1 before them, L behind them */
    int joined;  /* it and the next ones, as many together, are one matrix (or bias) to products */
    int adapter; /* of a matrix: the parameter A of its adapter, B follows; 0: none */
    int adapter_place;     /* among those of its layer */
    bool trained;          /* has a gradient and moments; the same for all that are joined */
    int64_t first;         /* element in the flat buffer: trained ones come first */
    int64_t vector;        /* of a vector: its first element among all vectors' */
    int64_t rows, columns; /* of the part in memory; rows may be padded (vocabulary) */
    int64_t whole_rows, whole_columns;           /* of all ranks' parts together, without padding */
    struct model_piece pieces[MODEL_PIECES_MAX]; /* of the part, without padding, in its order */
    int piece_count;                             /* 0: nothing but padding fell to this rank */
    bool replicated; /* every rank holds the whole, and the same gradient of it */
    int dimensions;  /* 1 or 2 */
    bool transposed;
    bool decay;      /* weight decay applies: matrices and embeddings */
    float initial;   /* the value, where deviation is 0 */
    float deviation; /* of the normal distribution */
    float bound;     /* > 0: uniform between it and its negative */
};

/* model_is_adapter - whether it is a part of one, not of the model that it is for. */
static inline bool model_is_adapter(const struct model_parameter *p)
{
    return p->role == MODEL_ADAPTER_IN || p->role == MODEL_ADAPTER_OUT;
}

/* model_is_task_head - whether it belongs to the head of a task, which beside adapters is trained in full. */
static inline bool model_is_task_head(const struct model_config *config,
                                      const struct model_parameter *p)
{
    return config->task != MODEL_WORDS && (p->role == MODEL_POOLER || p->role == MODEL_LABELS);
}

/* model_adapter_scale - of what adapters add. */
float model_adapter_scale(const struct model_adapter *adapter);

struct model;
struct model_cache; /* keys and values of generation */

/* "The weights below element `end` are read from now on": told before they are, upwards. */
typedef status (*model_needed)(void *user, int64_t end);

/* What one forward pass reads (the trainer fills it from a batch). */
struct model_input {
    int64_t rows; /* N */
    const int32_t *tokens, *positions;
    int64_t segments;
    const int32_t *cu_rows;
    const int32_t *branches; /* as struct attention's; NULL: none */
    int64_t longest;
    const int32_t *segment_ids; /* [N], where the model has two segments */
    const int32_t *
        output_rows; /* [M] rising: the rows that BERT's head or a task's reads; NULL: no head, hidden states of all */
    int64_t outputs;      /* M, 1 at least */
    int64_t first_row;    /* global index of row 0, for dropout */
    int64_t first_output; /* likewise of the first row that a task's head reads */
    uint64_t seed;        /* dropout key: (seed, step) */
    int64_t step;
    bool training;       /* dropout on, activations kept for backward */
    bool fresh;          /* the gradients hold nothing yet: they are set, not added to */
    model_needed needed; /* NULL: all weights are there */
    void *user;          /* of needed */
};

/* model_vocabulary_rows - rows of one rank's part of the token table: whole vectors for the output product. */
int64_t model_vocabulary_rows(const struct model_config *config, int ranks);

/* model_layout - what rank `rank` of `ranks` tensor-parallel ones holds of a configuration's parameters,
 * without making it (for `bireme plan`). The list and its order are the same on all ranks.
 *
 * Split     rows of the matrices that read the stream (heads of each of query, key and value; inner
 *           features), columns of those that write to it, rows of the token table
 * Memory    *out is the caller's, for free(); *elements is the flat buffer's length
 * Errors    STATUS_UNAVAILABLE naming the architecture; STATUS_RECIPE naming matrices that are frozen in part, or an
 *           adapter's target that is none
 * Source    Shoeybi et al. 2019, arXiv:1909.08053 */
status model_layout(const struct model_config *config, int ranks, int rank,
                    struct model_parameter **out, int *count, int64_t *elements);

/* model_kv_heads - of a layer, over all ranks. */
int64_t model_kv_heads(const struct model_config *config);

/* model_inner_outputs - of the product before the feed-forward's activation: F, or with SwiGLU 2 F. */
int64_t model_inner_outputs(const struct model_config *config);

/* model_positions - the longest sequence that the position table has room for. */
int64_t model_positions(const struct model_config *config);

/* model_parameter_elements - weights that the part holds, without padding. */
int64_t model_parameter_elements(const struct model_parameter *p);

/* model_layer_first - the first trained element of a layer's parameters; for layer L: of those behind the layers. */
int64_t model_layer_first(const struct model_parameter *parameters, int count, int64_t layer);

/* model_lowest_trained - the layer (-1: before the blocks, L: behind them) of the first trained parameter: backward
 * ends there. */
int64_t model_lowest_trained(const struct model_parameter *parameters, int count);

/* model_trained_elements - how many of the flat buffer's belong to what is trained: its first ones. */
int64_t model_trained_elements(const struct model_parameter *parameters, int count);

/* How ranks share a model. */
struct model_sharing {
    int ranks;
    bool sequence; /* norms and dropout on a share of the rows each (sequence parallelism) */
};

/* model_activation_bytes - working memory of one rank for micro-batches of up to `rows` rows; pure. */
size_t model_activation_bytes(const struct model_config *config, struct model_sharing sharing,
                              enum dtype dtype, int64_t rows, bool training);

/* model_create - this rank's part of the weights (zeros) and working memory for micro-batches of up to
 * `rows` rows. tensor: the ranks that share the model, which stay the caller's; NULL: this one alone.
 * sequence: as in struct model_sharing; nothing for one rank. */
status model_create(struct kernels *k, const struct model_config *config, struct comm *tensor,
                    bool sequence, int64_t rows, bool training, struct model **out);
status model_destroy(struct model **m);

/* model_connect - the group's memory in which its ranks add up. Collective over `tensor`, before the model
 * is used; nothing where a rank is alone.
 *
 * Errors    STATUS_INTERNAL naming the bytes, on all ranks */
status model_connect(struct model *m);

const struct model_config *model_config_of(const struct model *m);
const struct model_parameter *model_parameters(const struct model *m, int *count);
int64_t model_elements(const struct model *m);
float *model_weights(const struct model *m); /* f32 [model_kept_elements] */
bf16 *model_copy(const struct model *m);     /* bf16 [elements]; NULL in fp32 */

/* model_kept_elements - the first elements, which have f32 weights: all of them, but beside adapters in bf16 those that
 * are trained. Of what is frozen then products read the bf16 copy, and only vectors are there in f32. */
int64_t model_kept_elements(const struct model *m);

/* model_set_frozen - weights f32 [elements.count] of elements that are not kept, on the model's device: matrices are
 * rounded. */
status model_set_frozen(struct model *m, struct range elements, float *weights);

/* model_initialise - weights as the architecture has them: a pure function of (seed, parameter, element
 * of the whole). */
status model_initialise(struct model *m, uint64_t seed);

/* model_initial - what that gives an element of parameter `index`, counted in the whole. */
float model_initial(const struct model_parameter *parameter, int index, uint64_t seed,
                    int64_t element);

/* model_release_weights - let go of the f32 weights where the precision is bf16: only the vectors (biases,
 * norms) stay, and whoever has the others keeps copy and vectors up to date. model_weights is NULL then. */
status model_release_weights(struct model *m);

/* model_vectors - f32 [count], the vectors of all trained parameters, once the weights are released. */
float *model_vectors(const struct model *m, int64_t *count);

/* model_weights_changed - round the bf16 copy after the f32 weights were set by hand. */
status model_weights_changed(struct model *m);

/* model_forward - hidden [N, C], after the final norm, or with output_rows what the head makes of these [M, C]; the
 * view is the model's. */
status model_forward(struct model *m, const struct model_input *input, struct tensor *hidden);

/* model_head - the matrix [V padded, C] that maps hidden states to logits, and its gradient's view; its bias f32
 * [1, V padded], absent in GPT-2. */
struct tensor model_head(const struct model *m);
struct tensor model_head_gradient(const struct model *m, float *const *gradients);
struct tensor model_head_bias(const struct model *m);
struct tensor model_head_bias_gradient(const struct model *m, float *const *gradients);

/* BERT's labels of whole examples: hidden [E, C] of the pooler (E segments), the matrix [labels, C] and its bias f32
 * [1, labels]. A task's: matrix and bias (or none), which read what model_forward gives. Every tensor-parallel rank has
 * all of it. */
struct model_labels {
    struct tensor hidden, weight, bias;
    struct tensor hidden_gradient, weight_gradient, bias_gradient; /* the objective's to write */
};

/* model_labels_of - of the last forward pass, which had output_rows; all absent where there are no labels. gradients
 * NULL: without them. */
struct model_labels model_labels_of(const struct model *m, const struct model_input *input,
                                    float *const *gradients);

/* model_head_parts - whose rows of the vocabulary that matrix holds, for the classifier. */
struct classifier_parts model_head_parts(struct model *m);

/* model_hidden_gradient - where the objective writes d hidden [N, C], or [M, C], before model_backward, which adds up
 * what the tensor-parallel ranks have written: what comes through their parts of the head. Of a task every rank
 * writes the whole. */
struct tensor model_hidden_gradient(const struct model *m);

/* "Gradients are final from element `first` on": as model_needed, a call upwards. */
typedef status (*model_final)(void *user, int64_t first);

/* model_backward - `+=` to gradients [parameters], or `=` where the input is fresh (the head's are the
 * objective's then). final may be NULL.
 *
 * Order     a layer's gradients are written after the next layer's were told to be final, and not before, but
 *           for clearing where the input is fresh */
status model_backward(struct model *m, const struct model_input *input, float *const *gradients,
                      model_final final, void *user);

/* ---- generation: one query row per sequence against cached keys and values ---- */

/* model_cache_create - room for `sequences` of up to `tokens` tokens.
 * Memory    2 L G D tokens sequences elements */
status model_cache_create(struct model *m, int64_t sequences, int64_t tokens,
                          struct model_cache **out);
status model_cache_destroy(struct model_cache **cache);

/* model_extend - feed `counts[i]` new tokens of each sequence (concatenated in tokens), append their keys
 * and values; hidden [sum counts, C] after the final norm. counts[i] may be 0. */
status model_extend(struct model *m, struct model_cache *cache, const int32_t *tokens,
                    const int64_t *counts, struct tensor *hidden);

/* model_cache_reorder - sequence i continues what sequence from[i] held (beams). */
status model_cache_reorder(struct model *m, struct model_cache *cache, const int32_t *from);

/* model_cache_clear - forget all tokens of sequence i. */
void model_cache_clear(struct model_cache *cache, int64_t sequence);
int64_t model_cache_length(const struct model_cache *cache, int64_t sequence);
