/* The model's inside, for the files of this folder and their tests. */
#pragma once

#include <string.h>

#include "base/arena.h"
#include "base/random.h"
#include "trainer/model/model.h"

/* What an architecture is. */
struct architecture {
    const char *name;
    bool causal;
    bool post_norm; /* a norm behind each half of a block, and the stream reads its output */
    bool transform; /* a dense layer and a norm before the vocabulary's matrix, which has a bias */
    int64_t first_position; /* row of the position table that a sequence begins with */
    const char *names;      /* of BERT's parameters: what they begin with */
    bool rms;               /* RMS norms, without a beta; and no biases */
    bool rotary;            /* positions turn queries and keys; there is no table of them */
    bool gated;     /* SwiGLU: two matrices read the second norm, and lie one after the other */
    bool own_dense; /* the dense layer for labels of texts is the head's, not the model's pooler */
};

/* model_architecture - NULL: there is none of this name. */
const struct architecture *model_architecture(const char *name);

/* Where parameters are in the flat list; -1: the model has none of this role. */
struct place {
    int weight, bias;
};

/* Where dropout draws its numbers: the embedding, and three places of each layer. */
enum dropout_place { DROPOUT_ATTENTION, DROPOUT_PROJECTION, DROPOUT_FC, DROPOUT_PLACES };

/* What one of t tensor-parallel ranks holds of a layer's insides. */
struct layer_share {
    int64_t heads; /* H/t */
    int64_t width; /* C/t, of its heads together */
    int64_t kv_heads;
    int64_t kv_width; /* of its key-value heads together; C/t where they are as many */
    int64_t inner;    /* F/t */
};

/* What a layer keeps from forward for backward. Letters: kernels.h; t tensor-parallel ranks; n
 * rows of the stream on this rank: N, or with sequence parallelism about N/t. */
struct layer_activations {
    struct tensor input;       /* [n, C] the residual stream that enters */
    struct tensor norm1;       /* [n, C]; with a norm behind each half this is the stream */
    struct tensor statistics1; /* f32 [n, 2] */
    struct tensor qkv;         /* [N, (H + 2 G) D / t] */
    struct tensor lse;         /* f32 [H/t, N] */
    struct tensor attended;    /* [N, C/t] */
    struct tensor middle;      /* [n, C] the residual stream after attention */
    struct tensor norm2;       /* [n, C] */
    struct tensor statistics2; /* f32 [n, 2] */
    struct tensor kept;  /* [N, F/t] of the activation, for backward; SwiGLU: [N, 2F/t] before it */
    struct tensor inner; /* [N, F/t] after it */
    struct tensor adapted; /* [N, rank x adapters] what these have of their inputs */
};

/* What BERT's heads keep: M masked rows, E examples. A task's head has the first three (dense and kept where it has a
 * dense layer) and the gradient of what it gives. */
struct head_activations {
    struct tensor rows;       /* [M, C] of the hidden states */
    struct tensor dense;      /* [M, C] behind the activation; then the gradient of rows */
    struct tensor kept;       /* [M, C] of the activation, for backward */
    struct tensor norm;       /* [M, C] what the vocabulary's matrix reads */
    struct tensor statistics; /* f32 [M, 2] */
    struct tensor d_dense;    /* [M, C] */
    struct tensor first;      /* [E, C] each example's first row */
    struct tensor pooled;     /* [E, C] behind tanh; then the gradient of first */
    struct tensor pooled_kept;
    struct tensor d_pooled; /* [E, C] */
};

/* Working memory of one micro-batch. */
struct activations {
    struct layer_activations *layers; /* [L]; without training all share one set */
    struct tensor last;               /* [n, C] the residual stream after the last layer */
    struct tensor final_norm;         /* [n, C] */
    struct tensor final_statistics;   /* f32 [n, 2] */
    struct head_activations head;
    struct tensor angles;      /* f32 [P, D] of rotary positions */
    struct tensor no_segments; /* int32 [1, N] zeros, where the segment table has one row */
    /* [N, C] what the ranks add up, and one at a time lives: what a block adds to the stream; the gradient
     * of the hidden states, which the objective writes; of a norm's output */
    struct tensor exchange;
    /* gradients, with training only */
    struct tensor d_stream;  /* [n, C] along the residual stream */
    struct tensor d_delta;   /* [n, C] behind dropout; absent without */
    struct tensor d_qkv;     /* [N, (H + 2 G) D / t] */
    struct tensor d_inner;   /* [N, F/t] */
    struct tensor d_adapted; /* [N, 3 rank] of a product's adapters at most */
    struct tensor dropped;   /* [N, C or F/t] an adapter's input behind dropout */
    struct tensor unused;    /* f32 [2, C] gradients of a frozen norm */
};

struct model {
    struct kernels *kernels;
    struct model_config config;
    const struct architecture *architecture;
    struct place places[MODEL_ROLES]; /* of a block: the first one's */
    int layer_parameters;             /* from a block's to the next one's */
    struct comm *tensor;              /* NULL: this rank alone */
    int ranks, rank;                  /* of it */
    struct model_sharing sharing;
    struct layer_share share;
    struct model_parameter *parameters;
    int parameter_count;
    int64_t elements;
    int64_t kept; /* elements of weights */
    float *weights;
    float *vectors; /* once the weights are released, and of elements that are not kept */
    bf16 *copy;
    int64_t rows; /* largest N */
    bool training;
    struct arena arena;
    struct activations activations;
    /* in the group's memory; none for one rank (sharing.c) */
    float *window; /* [N, C] sums */
    struct comm_request *adding, *spreading;
    struct tensor gathered;  /* [N, C] all rows, with sequence parallelism */
    struct tensor norm_sums; /* f32 [2, C] likewise */
    float *adapter_sums;     /* [C rank] */
    struct range *ranges;    /* [ranks] */
};

/* model_place - of a block's parameters, or, with layer 0, of others. NORM1 has a layer L too. */
struct place model_place(const struct model *m, int64_t layer, enum model_role role);

/* model_matrix - a weight that products read: the bf16 copy where there is one. Of this and the next two: absent
 * for parameter -1. */
struct tensor model_matrix(const struct model *m, int parameter);
/* model_vector - a bias or norm weight, always f32. */
struct tensor model_vector(const struct model *m, int parameter);
/* model_gradient - a parameter's gradient, where the caller has it; absent for a frozen one. */
struct tensor model_gradient(const struct model *m, int parameter, float *const *gradients);
/* model_norm_gradients - of a norm's weight and, where it has one, bias; of frozen ones a place that nobody reads. */
void model_norm_gradients(const struct model *m, struct place place, float *const *gradients,
                          struct tensor *dgamma, struct tensor *dbeta);

/* ---- sharing.c; each does nothing where there is one rank ---- */

/* model_window_bytes - of a rank in the group's memory. */
size_t model_window_bytes(const struct model_config *config, struct model_sharing sharing,
                          enum dtype dtype, int64_t rows);

/* model_own_rows - of n rows of the stream those that this rank has: all without sequence parallelism. */
struct range model_own_rows(const struct model *m, int64_t n);

/* model_add_up_start, _wait - the sum over the ranks of the first n rows of `exchange`; model_added has this
 * rank's own rows of it. Between start and wait the rows are nobody's. */
status model_add_up_start(struct model *m, int64_t n);
status model_add_up_wait(struct model *m, int64_t n);
status model_add_up(struct model *m, int64_t n);

/* model_add_up_all - likewise, but every rank has all n rows of the sum. */
status model_add_up_all(struct model *m, int64_t n);
struct tensor model_added(const struct model *m, int64_t n);

/* model_spread_start, _wait - all n rows of what each rank has its own rows of. The memory behind *all is
 * one for all of them: the next spread ends its use. */
status model_spread_start(struct model *m, struct tensor own, int64_t n, struct tensor *all);
status model_spread_wait(struct model *m);
status model_spread(struct model *m, struct tensor own, int64_t n, struct tensor *all);

/* model_norm_sums_begin - where a norm's gradients of this rank's rows are added to, instead of *dgamma and
 * *dbeta; _end brings the sum over the ranks back to these. */
status model_norm_sums_begin(struct model *m, struct tensor *dgamma, struct tensor *dbeta);
status model_norm_sums_end(struct model *m, struct tensor dgamma, struct tensor dbeta);

/* model_adapter_sums_begin - where a rank's part of a gradient of an adapter's matrix that all ranks have is added to,
 * or, fresh, is set, instead of *gradient; _end brings the sum over the ranks back to it. */
status model_adapter_sums_begin(struct model *m, bool fresh, struct tensor *gradient);
status model_adapter_sums_end(struct model *m, struct tensor gradient);

/* ---- adapter.c ---- */

/* model_adapters_of - how many a layer has. */
int model_adapters_of(const struct model_config *config);

/* model_is_adapted - whether a matrix, or one that is joined to it, has an adapter. */
bool model_is_adapted(const struct model *m, struct place place);

/* model_adapters_forward - y += what the adapters of a product with the output y make of its input x. */
status model_adapters_forward(struct model *m, const struct model_input *input, int64_t layer,
                              struct place place, struct tensor y, struct tensor x);

/* model_adapters_backward_input - dx, where it is asked for, += theirs; _weight, which comes next, their gradients. */
status model_adapters_backward_input(struct model *m, const struct model_input *input,
                                     int64_t layer, struct place place, struct tensor dx,
                                     struct tensor dy);
status model_adapters_backward_weight(struct model *m, const struct model_input *input,
                                      int64_t layer, struct place place, float *const *gradients,
                                      struct tensor dy, struct tensor x);

/* model_dropout - the numbers of one place: layer -1 is the embedding. */
struct dropout model_dropout(const struct model *m, const struct model_input *input, int64_t layer,
                             enum dropout_place place);

/* The parts of a fused [N, (H + 2 G) D / t]. */
static inline struct tensor model_queries(const struct model *m, struct tensor qkv)
{
    return tensor_columns(qkv, 0, m->share.width);
}

static inline struct tensor model_keys(const struct model *m, struct tensor qkv)
{
    return tensor_columns(qkv, m->share.width, m->share.kv_width);
}

static inline struct tensor model_values(const struct model *m, struct tensor qkv)
{
    return tensor_columns(qkv, m->share.width + m->share.kv_width, m->share.kv_width);
}

/* model_attention - the description of self attention over the batch's segments. */
struct attention model_attention(const struct model *m, const struct model_input *input,
                                 int64_t layer);

/* Pieces of the forward pass (forward.c) that generation shares. */
status model_embed(struct model *m, const struct model_input *input);
status model_first_norm(struct model *m, const struct model_input *input);
status model_project_qkv(struct model *m, const struct model_input *input, int64_t layer);
status model_project_attended(struct model *m, const struct model_input *input, int64_t layer);
/* model_hidden - all rows behind the final norm. */
status model_hidden(struct model *m, int64_t n, struct tensor *hidden);
/* model_heads_forward - from all rows behind the last norm to what the vocabulary's matrix and the labels' read;
 * _backward from their gradients to that of all rows, in `exchange` on every rank. */
status model_heads_forward(struct model *m, const struct model_input *input, struct tensor hidden,
                           struct tensor *out);
status model_heads_backward(struct model *m, const struct model_input *input,
                            float *const *gradients);
/* model_task_forward, _backward - likewise for the head of a task (task.c). */
status model_task_forward(struct model *m, const struct model_input *input, struct tensor hidden,
                          struct tensor *out);
status model_task_backward(struct model *m, const struct model_input *input,
                           float *const *gradients);
/* model_dense_backward - of a dense layer whose output has the gradient dy before its activation; dx is its input's. */
status model_dense_backward(struct model *m, const struct model_input *input,
                            float *const *gradients, struct place place, struct tensor dx,
                            struct tensor dy, struct tensor x);
/* model_layer_rest - from what attention adds to the stream to the next layer's first norm. */
status model_layer_rest(struct model *m, const struct model_input *input, int64_t layer);
