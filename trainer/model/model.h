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
#include "trainer/model/layout.h"

struct model;
struct model_cache; /* key-value cache of generation */

/* model_weights_hook - called before forward reads the weights below element `end`.
 * `end` rises from call to call. */
typedef status (*model_weights_hook)(void *user, int64_t end);

/* model_attention_hook - called after the attention of each layer, in ascending order, and after
 * each cross-attention.
 *
 * Shapes    queries [N, H D / t] and keys [N, G D / t], with rotary positions; head h uses the keys
 *           of key-value head h / (H / G). is_cross: keys [S, H D / t] of the source
 * Memory    the views are valid during the call */
typedef status (*model_attention_hook)(void *user, int64_t layer, bool is_cross,
                                       const struct attention *a, struct tensor queries,
                                       struct tensor keys);

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

/* model_elems - return the length of the flat buffer. */
int64_t model_elems(const struct model *m);

/* model_weights - return the f32 weights [model_f32_elements]; NULL once released. */
float *model_weights(const struct model *m);

/* model_bf16_weights - return the bf16 weights [model_elems]; NULL in fp32 precision. */
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

/* model_register_weights - replace the memory of the weights that ZeRO gathers by zeroed memory of
 * comm_allocate. These are the bf16 weights, or in fp32 precision the f32 weights. Their values are
 * lost.
 *
 * Memory    group is the data-parallel group and must outlive the model
 * Order     collective over group; before the first use of the weights
 * Errors    STATUS_INTERNAL if memory is exhausted or on a second call */
status model_register_weights(struct model *m, struct comm *group);

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
 * Shapes    logits f32 [R, at most V padded]: the logits of the first ids of this rank's
 *           model_lm_head; hidden [R, C], rows of the output of model_forward or
 *           model_forward_cached */
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
