/* Internal declarations of the model, for the files of this folder and their tests.
 *
 * Letters in shapes have the same meaning as in model.h. t is the number of tensor-parallel ranks.
 * n is the number of rows of the residual stream on this rank: N, or about N/t with sequence
 * parallelism.
 *
 * Errors    unless stated otherwise, the errors of the operations (kernels.h) and of the
 *           collectives of the tensor-parallel group (comm.h) */
#pragma once

#include <string.h>

#include "base/device/arena.h"
#include "base/random.h"
#include "trainer/model/architecture.h"
#include "trainer/model/model.h"

/* Indices of a role's parameters in the parameter list. A norm without weight and bias has the
 * weight PARAM_CONSTANT_NORM and the bias PARAM_NONE. */
struct param_index {
    int weight, bias;
};

enum { PARAM_NONE = -1, PARAM_CONSTANT_NORM = -2 };

/* Dropout sites: the embedding (as layer -1), and three sites of each layer. model_cross_site and
 * model_extra_site return further layer numbers above the last layer. The sites after DROPOUT_SITES
 * have such a number: two sites of cross-attention, and the inner features of the feed-forward
 * network, which are DROPOUT_FC of the layer number model_extra_site. */
enum dropout_site {
    DROPOUT_ATTENTION,
    DROPOUT_PROJECTION,
    DROPOUT_FC,
    DROPOUT_SITES,
    DROPOUT_CROSS_ATTENTION,
    DROPOUT_CROSS_PROJECTION,
    DROPOUT_INNER
};

/* Local sizes of a layer on one tensor-parallel rank. */
struct layer_dims {
    int64_t heads; /* H/t */
    int64_t width; /* H D / t, all local heads together */
    int64_t kv_heads;
    int64_t kv_width; /* G D / t, all local key-value heads together */
    int64_t inner;    /* F/t */
};

/* Activations of BERT's heads for M masked rows and E examples. A fine-tuning head uses rows and
 * d_dense, and with a dense layer also dense and saved_for_backward. W is U for a masked language
 * model, and C for a fine-tuning head. */
struct head_activations {
    struct tensor rows;               /* [M, C] selected rows of the hidden states; masked language
                                       * model: then their gradient */
    struct tensor dense;              /* [M, W] after the activation; fine-tuning head: then the
                                       * gradient of rows */
    struct tensor saved_for_backward; /* [M, W] for the backward pass of the activation */
    struct tensor norm;               /* [M, W] input of the vocabulary matrix */
    struct tensor statistics;         /* f32 [M, 2] of norm */
    struct tensor d_dense;            /* [M, W] gradient of the head's output */
    struct tensor first_rows;         /* [E, C] first row of each example */
    struct tensor pooled;             /* [E, C] after tanh; then the gradient of first_rows */
    struct tensor pooled_saved;       /* [E, C] for the backward pass of tanh */
    struct tensor d_pooled;           /* [E, C] */
};

/* Working memory of one micro-batch. */
struct activations {
    struct layer_activations *layers; /* [L] (sublayers.h); without training all layers of a stack
                                       * share one set */
    /* for each stack in which the norm of the embedding is not norm1 of the first block: the sum
     * of the embeddings [n, U] and the statistics of its norm */
    struct tensor embedding_sum[STACKS_MAX], embedding_statistics[STACKS_MAX];
    struct tensor embedding_norm;   /* [n, U] of a factorized embedding */
    struct tensor last;             /* [n, C] residual stream after the last layer */
    struct tensor final_norm;       /* [n, C] */
    struct tensor final_statistics; /* f32 [n, 2] */
    /* the same of the encoder, with the n rows of the sources on this rank */
    struct tensor encoder_last, encoder_norm, encoder_statistics;
    struct tensor encoder_output; /* [S, C] all rows of encoder_norm */
    struct head_activations head;
    struct tensor position_table;   /* [P, C] sinusoidal positions, divided by the factor of the
                                        * token embeddings; absent: others */
    struct tensor rope_table;       /* f32 [P, R] cosines and sines of the rotary positions */
    struct tensor rope_local_table; /* the same for local layers; absent: rope_table */
    struct tensor position_bias[STACKS_MAX]; /* f32 [buckets, H/t], in bf16 precision only: copies
                                              * of the tables of the stacks */
    struct tensor zero_token_type_ids; /* int32 [1, N] zeros, if the token type table has one row */
    /* [N, C] input and output of reductions over the ranks. It holds one value at a time: the sum
     * that a block adds to the stream, the gradient of the hidden states from the objective, or the
     * gradient of a norm's output. */
    struct tensor exchange;
    /* gradients, with training only */
    struct tensor d_stream;         /* [n, C] gradient along the residual stream */
    struct tensor d_delta;          /* [n, C] gradient of the output of a sub-layer, if it differs
                                     * from d_stream: by dropout, a branch norm or
                                     * residual_multiplier. Otherwise absent */
    struct tensor d_qkv;            /* [N, (H + 2 G) D / t] */
    struct tensor d_inner;          /* [N, F/t]; its memory also has space for d_attended */
    struct tensor d_adapter_hidden; /* [N, 3 rank] of the adapters of one GEMM, three at most */
    struct tensor adapter_input;    /* [N, max(C, F/t, H D / t)] input of an adapter, or its
                                     * gradient */
    struct tensor d_encoder;        /* [S, C] gradient of encoder_output, summed over the layers of
                                     * the decoder, but not over the ranks */
    struct tensor frozen_norm_gradients; /* f32 [2, max(C, D)] discarded output */
};

/* A stack of blocks. A model has one stack, or an encoder and a decoder. */
struct stack {
    int64_t first, end;                          /* its layers */
    const struct block *block;                   /* their sub-layers */
    struct param_index param_index[MODEL_ROLES]; /* indices in the first block */
    struct param_index end_norm;                 /* the norm after the last layer */
    int layer_parameters;                        /* of one block, if it has several blocks */
    struct tensor *last, *norm, *statistics;     /* its outputs, in struct activations */
};

struct model {
    struct kernels *kernels;
    struct model_config config;
    struct architecture composed;
    const struct architecture *architecture;     /* &composed */
    struct param_index param_index[MODEL_ROLES]; /* of a block's role: indices in the first block */
    struct stack stacks[STACKS_MAX];
    int stack_count;
    struct comm *tensor_group; /* NULL: one rank holds the whole model */
    int ranks, rank;           /* of the tensor-parallel group */
    struct model_parallelism parallelism;
    struct layer_dims local;
    struct model_parameter *parameters;
    int parameter_count;
    int64_t elements;
    int64_t f32_elements; /* length of weights */
    float *weights;
    float *vectors;     /* after the weights are released, and for elements without f32 weights */
    bf16 *bf16_weights; /* NULL in fp32 precision */
    struct comm *gather_group; /* of model_register_weights; NULL: it was not called */
    int64_t rows;              /* largest N */
    bool training;
    struct arena arena;
    struct activations activations;
    /* in the group's communication window; none for one rank (sharing.c) */
    float *window; /* [N, C] sums over the ranks */
    struct comm_request *reduce_request, *gather_request;
    struct tensor gathered;    /* [N, C] all rows, with sequence parallelism */
    struct tensor norm_sums;   /* f32 [2, C] gradients of a norm, with sequence parallelism */
    float *embedding_sums;     /* [C, U] and [C] gradients of a factorized embedding, the same */
    float *adapter_sums;       /* [C rank] gradient of a replicated adapter matrix */
    float *qk_norm_sums;       /* [2, D] gradients of the QK norms of a layer; QK_NORM_ROWS:
                                * [N, 2] sums of the rows of the queries and keys */
    struct comm_range *ranges; /* [ranks] workspace for collectives */
    struct fp8_state *fp8;     /* NULL: no delayed scaling */
};

/* ---- linear.c ---- */

/* model_fp8_create - allocate scales and history of a model for training with delayed scaling. */
status model_fp8_create(struct model *m);

/* model_fp8_destroy - release the scales and the history. */
void model_fp8_destroy(struct model *m);

/* model_linear_forward - compute y = act(x W^T + bias), where W is the matrix of a role.
 *
 * Shapes    as linear_forward */
status model_linear_forward(struct model *m, const struct model_input *input, int64_t layer,
                            enum model_role role, struct tensor y, struct tensor saved,
                            struct tensor x, struct tensor bias, enum activation act);

/* ---- stack.c ---- */

/* model_param_index - return the parameter indices of a role in a block.
 * MODEL_NORM1 is the norm before the layer; both indices are PARAM_NONE if there is none. With
 * PLACEMENT_POST, MODEL_NORM1 is the norm at the end of the previous layer, or of the embedding. */
struct param_index model_param_index(const struct model *m, int64_t layer, enum model_role role);

/* model_get_stack - return the stack that reads this input. */
static inline const struct stack *model_get_stack(const struct model *m,
                                                  const struct model_input *input)
{
    return &m->stacks[input->is_source ? 0 : m->stack_count - 1];
}

/* model_token_table - return the parameter of the table of tokens that a stack reads. */
static inline int model_token_table(const struct model *m, const struct stack *stack)
{
    int separate = stack->param_index[MODEL_TOKEN_TABLE].weight;
    return separate >= 0 ? separate : m->param_index[MODEL_TOKEN_TABLE].weight;
}

/* model_output_table - return the parameter of the table that is the tied vocabulary matrix. */
static inline int model_output_table(const struct model *m)
{
    return model_token_table(m, &m->stacks[m->stack_count - 1]);
}

/* model_describe_stacks - find the stacks of a model, an encoder and a decoder or a single one, and
 * the first parameters of each role. */
void model_describe_stacks(struct model *m);

/* ---- model.c ---- */

/* model_matrix - return a matrix as GEMMs read it: the bf16 copy if it exists.
 * Fused parameters are one matrix. A negative parameter gives an absent tensor. */
struct tensor model_matrix(const struct model *m, int parameter);

/* model_vector - return a bias or a norm's weight in f32; absent for a negative parameter. */
struct tensor model_vector(const struct model *m, int parameter);

/* model_bias - return the bias of a linear layer in kernels_bias_dtype; absent for PARAM_NONE. */
struct tensor model_bias(const struct model *m, int parameter);

/* model_gradient - return a parameter's gradient; absent if frozen or for a negative parameter. */
struct tensor model_gradient(const struct model *m, int parameter, float *const *gradients);

/* model_norm_gradients - return the gradients of a norm's gamma and beta.
 * A frozen norm gets a scratch buffer. *dbeta is absent if the norm has no beta. Both are absent if
 * the norm has no parameters. */
void model_norm_gradients(const struct model *m, struct param_index index, float *const *gradients,
                          struct tensor *dgamma, struct tensor *dbeta);

/* ---- sharing.c ---- */

/* model_free_registered - free the memory of model_register_weights, if it was called. */
status model_free_registered(struct model *m);

/* ---- sharing.c: collectives of the tensor-parallel group. All are no-ops on one rank. ---- */

/* model_local_rows - return this rank's range of n rows of the stream.
 * Without sequence parallelism it is all rows. */
struct comm_range model_local_rows(const struct model *m, int64_t n);

/* model_reduce_start - start to sum the first n rows of `exchange` over the ranks.
 *
 * Order     collective; the rows must not be accessed until model_reduce_wait returns */
status model_reduce_start(struct model *m, int64_t n);

/* model_reduce_wait - wait until the sum of model_reduce_start is complete. model_reduced_rows
 * returns this rank's rows of it. */
status model_reduce_wait(struct model *m, int64_t n);

/* model_reduce - call model_reduce_start and model_reduce_wait. */
status model_reduce(struct model *m, int64_t n);

/* model_reduce_columns - sum rows as model_reduce does. They have this number of columns, at most
 * C. */
status model_reduce_columns(struct model *m, int64_t n, int64_t columns);

/* model_all_reduce - sum the first n rows of `exchange`, which have this number of columns; each
 * rank gets all n rows of the sum. */
status model_all_reduce(struct model *m, int64_t n, int64_t columns);

/* model_view_exchange - return a view of `exchange` with n rows of at most C columns. */
struct tensor model_view_exchange(const struct model *m, int64_t n, int64_t columns);

/* model_reduced_rows - return this rank's rows of the last sum, a view of `exchange`. */
struct tensor model_reduced_rows(const struct model *m, int64_t n);

/* model_reduced_columns - return this rank's rows of the last sum of model_reduce_columns. */
struct tensor model_reduced_columns(const struct model *m, int64_t n, int64_t columns);

/* model_all_gather_start - start to gather all n rows from the local rows of each rank.
 *
 * Memory    *all is a view of one shared buffer, valid until the next gather; without sequence
 *           parallelism it is local_rows itself
 * Order     collective; *all is complete when model_all_gather_wait returns */
status model_all_gather_start(struct model *m, struct tensor local_rows, int64_t n,
                              struct tensor *all);

/* model_all_gather_wait - wait until the gather is complete. */
status model_all_gather_wait(struct model *m);

/* model_all_gather - call model_all_gather_start and model_all_gather_wait. */
status model_all_gather(struct model *m, struct tensor local_rows, int64_t n, struct tensor *all);

/* model_gather_encoder - gather all n rows of the encoder's output, encoder_output.
 *
 * Memory    valid until the encoder runs again
 * Order     collective */
status model_gather_encoder(struct model *m, int64_t n);

/* model_norm_reduce_begin - replace *dgamma and *dbeta by buffers for this rank's partial sums.
 * Sequence parallelism only: the gradients of a norm are sums over the rows of all ranks. */
status model_norm_reduce_begin(struct model *m, struct tensor *dgamma, struct tensor *dbeta);

/* model_norm_reduce_end - all-reduce the partial sums and copy them to dgamma and dbeta. */
status model_norm_reduce_end(struct model *m, struct tensor dgamma, struct tensor dbeta);

/* model_embedding_reduce_begin - replace the gradients of a factorized embedding's matrix and bias
 * by buffers for this rank's partial sums, with sequence parallelism only. */
status model_embedding_reduce_begin(struct model *m, struct tensor gradients[2]);

/* model_embedding_reduce_end - all-reduce the partial sums and copy them to the gradients. */
status model_embedding_reduce_end(struct model *m, const struct tensor gradients[2]);

/* model_qk_norm_row_sums - return the memory of the sums of n rows [N, 2] that are added over the
 * ranks: column 0 of the queries, column 1 of the keys. */
struct tensor model_qk_norm_row_sums(const struct model *m, int64_t n);

/* model_qk_norm_reduce_rows - add the sums of n rows over the ranks. */
status model_qk_norm_reduce_rows(struct model *m, int64_t n);

/* model_qk_norm_reduce_begin - replace the gradients of the two weights by partial sums.
 * Each rank adds the terms of its heads to them. */
status model_qk_norm_reduce_begin(struct model *m, struct tensor sums[2]);

/* model_qk_norm_reduce_end - sum the partial sums over the ranks into the gradients. */
status model_qk_norm_reduce_end(struct model *m, const struct tensor gradients[2]);

/* model_adapter_reduce_begin - replace *gradient by a buffer for this rank's partial sum, for an
 * adapter matrix that is replicated on all ranks. The caller sets the buffer if first_micro_batch
 * is true, and otherwise adds to it. */
status model_adapter_reduce_begin(struct model *m, bool first_micro_batch, struct tensor *gradient);

/* model_adapter_reduce_end - all-reduce the partial sums and copy them to gradient. */
status model_adapter_reduce_end(struct model *m, struct tensor gradient);

/* ---- adapter.c ---- */

/* model_adapters_per_layer - count the adapters of a layer.
 *
 * Errors    as model_layout */
status model_adapters_per_layer(const struct model_config *config, int64_t layer, int *adapters);

/* model_has_adapter - return whether a matrix, or one that is fused with it, has an adapter. */
bool model_has_adapter(const struct model *m, struct param_index index);

/* model_adapters_forward - add the adapters' outputs to y, the output of a GEMM with input x. */
status model_adapters_forward(struct model *m, const struct model_input *input, int64_t layer,
                              struct param_index index, struct tensor y, struct tensor x);

/* model_adapters_backward_input - add the adapters' gradients to dx, unless dx is absent. */
status model_adapters_backward_input(struct model *m, const struct model_input *input,
                                     int64_t layer, struct param_index index, struct tensor dx,
                                     struct tensor dy);

/* model_adapters_backward_weight - compute the gradients of A and B.
 *
 * Order     right after model_adapters_backward_input, which stores intermediate results for it */
status model_adapters_backward_weight(struct model *m, const struct model_input *input,
                                      int64_t layer, struct param_index index,
                                      float *const *gradients, struct tensor dy, struct tensor x);

/* ---- descriptions of operations: model.c ---- */

/* model_dropout - describe the dropout of one site; layer -1 is the embedding. */
struct dropout model_dropout(const struct model *m, const struct model_input *input, int64_t layer,
                             enum dropout_site site);

/* model_dropout_columns - return the columns of the dropout at a layer; -1 is the embedding. */
static inline int64_t model_dropout_columns(const struct model *m, int64_t layer)
{
    return layer < 0 ? model_embedding_width(&m->config) : m->config.width;
}

/* model_cross_site - return the layer number of the dropout of the cross-attention of a layer.
 * It is greater than the numbers of all layers, so that their dropout is the same in all models. */
static inline int64_t model_cross_site(const struct model *m, int64_t layer)
{
    return m->config.layers + 1 + layer;
}

/* model_extra_site - return the layer number of the additional dropout sites of encoder-decoders.
 * Together with DROPOUT_FC, this number is the site of the inner features of the layer. Together
 * with DROPOUT_PROJECTION, it is the site of the output of the stack that begins with this layer
 * (architecture.output_dropout). The number is greater than all numbers of model_cross_site. */
static inline int64_t model_extra_site(const struct model *m, int64_t layer)
{
    return 2 * m->config.layers + 2 + layer;
}

/* model_source_input - return the input of the encoder: the sources as rows. */
struct model_input model_source_input(const struct model_input *input);

/* ---- positions.c ---- */

/* model_fill_positions - fill the constant tables of positions that the model has. */
status model_fill_positions(struct model *m);

/* model_position_bias_index - return the parameter of the relative position bias of the stack that
 * reads the input; -1: there is none. */
struct param_index model_position_bias_index(const struct model *m,
                                             const struct model_input *input);

/* model_update_position_bias - copy the relative position bias of the stack that reads the input to
 * f32, if the model has one and its precision is bf16. */
status model_update_position_bias(struct model *m, const struct model_input *input);

/* model_position_bias - return the relative position bias of the stack that reads the input. */
struct attention_bias model_position_bias(const struct model *m, const struct model_input *input);

/* ---- embedding.c ---- */

/* model_embed - compute the residual stream at the input of the first layer. */
status model_embed(struct model *m, const struct model_input *input);

/* model_first_norm - add the token types and compute the first norm. */
status model_first_norm(struct model *m, const struct model_input *input);

/* ---- parts of the forward pass that generation shares: forward.c ---- */

/* model_run_stack - run the embedding and all layers of the stack that reads the input. */
status model_run_stack(struct model *m, const struct model_input *input);

/* model_gather_hidden - return all rows of the final norm. */
status model_gather_hidden(struct model *m, int64_t n, struct tensor *hidden);

/* ---- heads: heads.c ---- */

/* model_bert_heads_forward - compute the inputs of the vocabulary matrix and of the label matrix.
 *
 * Shapes    hidden [N, C], all rows of the final norm; *out [M, C] */
status model_bert_heads_forward(struct model *m, const struct model_input *input,
                                struct tensor hidden, struct tensor *out);

/* model_bert_heads_backward - compute the gradient of all rows, in `exchange` on each rank. */
status model_bert_heads_backward(struct model *m, const struct model_input *input,
                                 float *const *gradients);

/* model_task_head_forward - compute the input of a fine-tuning head's matrix.
 *
 * Shapes    hidden [N, C], all rows of the final norm; *out [M, C] */
status model_task_head_forward(struct model *m, const struct model_input *input,
                               struct tensor hidden, struct tensor *out);

/* model_task_head_backward - compute the gradient of all rows, in `exchange` on each rank. */
status model_task_head_backward(struct model *m, const struct model_input *input,
                                float *const *gradients);
