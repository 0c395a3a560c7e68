/* Operations of a transformer, forward and backward, on any device.
 *
 * kernels.c checks the shapes and calls the back-end through a table of functions
 * (kernels_table.h). The back-ends are cpu/ and cuda/. An operation is in the file with the same
 * stem in both, together with related operations. Further operations are in contrastive_loss.h,
 * fp8.h, preference_batch.h, preference_loss.h and spike_score.h. The oracle
 * (tests/kernels/oracle.c) computes each operation in double precision. All back-ends are tested
 * against it.
 *
 * Conventions
 *   1. Backward operations add to parameter gradients and to the gradient of the residual stream
 *      (+=). They set all other activation gradients (=). Operations with an `overwrite` argument
 *      can set the gradient of a matrix. The first micro-batch of a step does this, which avoids
 *      clearing and reading the gradient.
 *   2. A loss is a sum with a count of rows, not a mean. The caller divides once, after the
 *      all-reduce of both.
 *   3. Dropout is a pure function of (key, global element index). It has no state and does not
 *      depend on the memory layout or on the number of ranks.
 *   4. Arguments are in the order: context, outputs, inputs, scalars.
 *   5. kernels_* manage the context, graphs, tuning and the profile. All other functions are
 *      operations: a layer and its pass (linear_forward, swiglu_backward), or op_ and a verb for
 *      operations on rows or elements (op_gather_rows, op_cast).
 *
 * Letters   B batch, T tokens, N rows (= B T), C width, H heads, G key-value heads, D head width, F
 *           inner width, V vocabulary, L layers; in a GEMM, K inner size and M outputs
 * Memory    unless stated otherwise, pointers and tensors are on the context's device and owned by
 *           the caller; outputs do not alias inputs
 * Order     operations are queued on the context's stream and run in the order of the calls; no
 *           operation is collective, unless stated otherwise
 * Numerics  activations and the weights that GEMMs read have the context's dtype, f32 or bf16;
 *           sums, statistics, losses, parameter gradients and optimizer state are f32; equal calls
 *           give equal bits
 * Errors    STATUS_INTERNAL with the values if shapes do not fit (a defect of the caller) or if the
 *           device fails; an operation does not allocate, print or wait */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/device/device.h"
#include "base/status.h"
#include "base/tensor.h"
#include "kernels/adamw_parts.h"
#include "kernels/bias_gradient.h"
#include "kernels/control.h"
#include "kernels/dropout.h"
#include "kernels/head_loss.h"
#include "kernels/rotary.h"

struct kernels; /* context: the operations, threads and workspace of one device */

/* The largest sizes that the operations of a context will use. They determine its workspace. */
struct kernels_limits {
    int64_t rows;                     /* N of a micro-batch */
    int64_t width, inner;             /* C, F */
    int heads;                        /* H */
    int64_t head_width;               /* D */
    int64_t sequence;                 /* largest T */
    int64_t vocabulary;               /* V with padding; of this rank's shard */
    bool training;                    /* backward operations will be called */
    int vocabulary_shards;            /* ranks that share the vocabulary; 0 and 1: not sharded */
    int bias_buckets;                 /* of a relative position bias in attention; 0: none */
    int64_t fp8_columns, fp8_weights; /* largest K or M, and K M, of FP8 layers; 0: none */
    bool fp8_rowwise;                 /* each row of an FP8 operand has a scale (fp8.h) */
};

/* kernels_create - create a context on dev.
 *
 * Units     threads is the number of CPU threads; 0: all that this process may use
 * Memory    at most kernels_workspace_bytes() on dev; the GEMM library allocates its part on
 *           demand, the rest is allocated here; release with kernels_destroy
 * Errors    STATUS_UNAVAILABLE if the device does not support dtype; the message names devices
 *           that do */
status kernels_create(struct device *dev, enum dtype dtype, int threads,
                      const struct kernels_limits *limits, struct kernels **out);

/* kernels_destroy - release a context and set *k to NULL; *k may be NULL. */
status kernels_destroy(struct kernels **k);

/* cuda_register - register the CUDA back-end, so that `device: cuda` is available.
 *
 * Order     call once, before any device is created; needs no GPU and does not look for one */
void cuda_register(void);

/* kernels_workspace_bytes - compute the workspace of a context.
 *
 * Units     bytes on the device; a pure function, also used by `bireme plan` for other machines */
size_t kernels_workspace_bytes(enum device_kind kind, enum dtype dtype, int threads,
                               const struct kernels_limits *limits);

/* kernels_device - return the device of a context. */
struct device *kernels_device(const struct kernels *k);

/* kernels_bias_dtype - return the dtype of biases that linear_forward reads without a conversion:
 * the dtype of the context on a GPU, f32 on the CPU. */
enum dtype kernels_bias_dtype(const struct kernels *k);

/* kernels_stream - return the stream on which the operations are queued; NULL on the CPU. */
struct stream *kernels_stream(const struct kernels *k);

/* kernels_dtype - return the dtype of activations and weights. */
enum dtype kernels_dtype(const struct kernels *k);

/* kernels_threads - return the number of CPU threads. */
int kernels_threads(const struct kernels *k);

/* kernels_description - return a line with the instruction set or GPU, the GEMM library and
 * its version.
 *
 * Memory    owned by the context */
const char *kernels_description(const struct kernels *k);

/* ---- graphs: one launch for many operations; on the CPU these functions do nothing ---- */

/* Identifies a sequence of operations. Two sequences with equal keys usually have
 * equal launches. */
struct kernels_graph_key {
    const void *inputs; /* address of the inputs */
    int64_t rows;
    int variant;
};

/* kernels_graphs_enable - enable or disable graphs; they are disabled at creation.
 *
 * Memory    every call releases the existing graphs
 * Order     call it again after the back-end has changed its algorithms (kernels_tune) */
void kernels_graphs_enable(struct kernels *k, bool enabled);

/* kernels_graph_begin - begin a region: its operations may be captured in a graph.
 *
 * The back-end may delay the operations that this thread queues until kernels_graph_end, and then
 * launch them together. If a sequence repeats with an equal key, its graph is launched. The
 * back-end compares all operations with the graph, so results never depend on the key.
 *
 * Order     as without graphs: copies, zeros, events and waits on the stream follow the operations
 *           that were queued before them */
status kernels_graph_begin(struct kernels *k, const struct kernels_graph_key *key);

/* kernels_graph_end - end the region and launch its operations.
 *
 * result: of the operations of the region. After an error, the delayed operations are not launched,
 * and this rank takes part in no agreement with other ranks
 * Returns   result, or the first error of the launch */
status kernels_graph_end(struct kernels *k, status result);

/* kernels_graph_end_segment - split the region, for example between launches that repeat and
 * launches that differ in each call. Each segment is captured separately. */
status kernels_graph_end_segment(struct kernels *k);

/* ---- matrix multiplication (GEMM) ---- */

enum activation {
    ACTIVATION_NONE = 0,
    ACTIVATION_GELU_TANH,
    ACTIVATION_GELU_ERF,
    ACTIVATION_TANH,
    ACTIVATION_RELU,  /* max(x, 0) */
    ACTIVATION_RELU2, /* max(x, 0)^2 */
    ACTIVATION_SILU   /* x / (1 + exp(-x)) */
};
enum { ACTIVATIONS = ACTIVATION_SILU + 1 }; /* the number of values */

/* On CPUs, if a GEMM x w^T has at most this many rows, the bits of a row do not depend on the other
 * rows. This holds for linear_forward, linear_add without `backward`, and classifier_logits. */
enum { KERNELS_FEW_ROWS = 16 };

/* linear_forward - compute y = act(x w^T + bias).
 *
 * Shapes    y [N, M];  x [N, K];  w [M, K];  bias [1, M], f32 or kernels_bias_dtype, or absent;
 *           saved [N, M] or absent
 * Memory    saved receives the data that the backward pass of the activation needs: the back-end
 *           chooses the pre-activation or the derivative there; absent if act is ACTIVATION_NONE
 *           or if there is no backward pass
 * Numerics  f32 sums
 * Source    GELU: Hendrycks, Gimpel 2016, arXiv:1606.08415; RELU2: So et al. 2021,
 *           arXiv:2109.08668 */
status linear_forward(struct kernels *k, struct tensor y, struct tensor saved, struct tensor x,
                      struct tensor w, struct tensor bias, enum activation act);

/* linear_backward_input - compute dx = (dy w) * act', the gradient of u if x = act(u).
 *
 * dbias is the gradient of the bias of the linear layer that computed u.
 *
 * Shapes    dx [N, K];  dbias [1, K];  dy [N, M];  w [M, K];  saved [N, K] from the linear_forward
 *           that computed x, absent if act is ACTIVATION_NONE
 * Numerics  f32 sums; dbias is the sum of dx after it is rounded to its dtype */
status linear_backward_input(struct kernels *k, struct tensor dx, struct bias_gradient dbias,
                             struct tensor dy, struct tensor w, enum activation act,
                             struct tensor saved);

/* linear_backward_weight - compute dw += dy^T x and dbias += column sums of dy.
 *
 * Shapes    dw f32 [M, K] or absent;  dbias f32 [1, M] or absent;  dy [N, M];  x [N, K]
 * Memory    overwrite: dw and dbias are set, not added to; an absent gradient (a frozen parameter)
 *           costs no work
 * Numerics  f32 sums */
status linear_backward_weight(struct kernels *k, struct tensor dw, struct tensor dbias,
                              struct tensor dy, struct tensor x, bool overwrite);

/* linear_add - compute y += x w^T, or y += x w if `backward` is true. Adapters (LoRA) use it.
 *
 * Shapes    y [N, M];  x [N, K];  w [M, K], or [K, M] if `backward` is true
 * Source    Hu et al. 2021, arXiv:2106.09685 */
status linear_add(struct kernels *k, struct tensor y, struct tensor x, struct tensor w,
                  bool backward);

/* activation_forward - compute y = act(y), separately from a GEMM.
 *
 * Used where other terms are added between the GEMM and its activation.
 *
 * Shapes    y [N, M];  saved [N, M] as in linear_forward, or absent
 * Errors    STATUS_INTERNAL if act is ACTIVATION_NONE */
status activation_forward(struct kernels *k, struct tensor y, struct tensor saved,
                          enum activation act);

/* activation_backward - compute dx = dy * act', separately from a GEMM.
 *
 * Used where a norm or a classifier follows the activation.
 *
 * Shapes    dx, dy [N, M];  saved [N, M] from linear_forward
 * Memory    dx may alias dy
 * Errors    STATUS_INTERNAL if act is ACTIVATION_NONE */
status activation_backward(struct kernels *k, struct tensor dx, struct tensor dy,
                           struct tensor saved, enum activation act);

/* swiglu_forward - compute y = silu(gate) * up, with silu(x) = x / (1 + exp(-x)).
 *
 * Shapes    y [N, F];  gate_up [N, 2 F], the output of one GEMM: gate in columns [0, F), up in the
 *           others
 * Source    Shazeer 2020, arXiv:2002.05202 */
status swiglu_forward(struct kernels *k, struct tensor y, struct tensor gate_up);

/* swiglu_backward - compute the gradients of gate and up from dy.
 *
 * Shapes    d_gate_up, gate_up [N, 2 F];  dy [N, F]
 * Memory    d_gate_up may alias gate_up
 * Source    Shazeer 2020, arXiv:2002.05202 */
status swiglu_backward(struct kernels *k, struct tensor d_gate_up, struct tensor dy,
                       struct tensor gate_up);

/* geglu_forward - compute y = gelu(gate) * up.
 *
 * Shapes    as in swiglu_forward
 * Errors    STATUS_INTERNAL if act is neither ACTIVATION_GELU_TANH nor ACTIVATION_GELU_ERF
 * Source    Shazeer 2020, arXiv:2002.05202 */
status geglu_forward(struct kernels *k, struct tensor y, struct tensor gate_up,
                     enum activation act);

/* geglu_backward - compute the gradients of gate and up from dy.
 *
 * Shapes    as in swiglu_backward
 * Memory    d_gate_up may alias gate_up
 * Errors    as in geglu_forward
 * Source    Shazeer 2020, arXiv:2002.05202 */
status geglu_backward(struct kernels *k, struct tensor d_gate_up, struct tensor dy,
                      struct tensor gate_up, enum activation act);

/* ---- embedding ---- */

/* embedding_forward - compute y = drop(token_table[token - first_token] +
 * position_table[position]).
 *
 * A token outside the table contributes zero. The sum of the results of all vocabulary shards is
 * the result of the whole table, with dropout.
 *
 * Shapes    y [N, C];  token_table [V, C];  position_table [P, C] or absent;  tokens, positions
 *           int32 [N]
 * Errors    ids are not checked; the loader guarantees them */
status embedding_forward(struct kernels *k, struct tensor y, const int32_t *tokens,
                         const int32_t *positions, struct tensor token_table, int64_t first_token,
                         struct tensor position_table, struct dropout dropout);

/* embedding_backward - add each row of drop'(dy) to the gradient rows of its token and position.
 *
 * Shapes    d_token_table f32 [V, C] or absent;  d_position_table f32 [P, C] or absent;  dy [N, C];
 *           tokens, positions int32 [N]
 * Numerics  the rows of one token are added in the order of N, with any number of threads
 * Errors    ids are not checked; tokens outside the table are skipped */
status embedding_backward(struct kernels *k, struct tensor d_token_table, int64_t first_token,
                          struct tensor d_position_table, struct tensor dy, const int32_t *tokens,
                          const int32_t *positions, struct dropout dropout);

/* dropout_apply - compute y = drop(x). The same call computes the backward pass from a gradient.
 *
 * Shapes    y, x [N, C]
 * Memory    y may alias x
 * Source    Srivastava et al. 2014, JMLR 15 */
status dropout_apply(struct kernels *k, struct tensor y, struct tensor x, struct dropout dropout);

/* ---- selected rows: masked positions, the last token of each sequence ---- */

/* op_gather_rows - compute y[i] = x[rows[i]].
 *
 * Shapes    y [R, C];  x [N, C];  rows int32 [R], strictly increasing
 * Errors    STATUS_INTERNAL if rows is wrong and in host memory; not checked elsewhere */
status op_gather_rows(struct kernels *k, struct tensor y, struct tensor x, const int32_t *rows);

/* op_scatter_rows - compute dx[rows[i]] += dy[i], the backward pass of op_gather_rows.
 *
 * Shapes    dx [N, C];  dy [R, C];  rows as in op_gather_rows
 * Memory    overwrite: these rows of dx are set to dy, all other rows to 0
 * Errors    as op_gather_rows */
status op_scatter_rows(struct kernels *k, struct tensor dx, struct tensor dy, const int32_t *rows,
                       bool overwrite);

/* ---- norms ---- */

/* norm.h declares the residual addition with the norm. split_norm.h declares the norm of rows that
 * are split over tensor-parallel ranks. */
#include "kernels/norm.h"
#include "kernels/split_norm.h"

/* ---- attention ---- */

/* A relative position bias in buckets (T5). Query i of n and key j of m have the distance
 * j - (i + m - n). It selects a row of the table, which is added to the scaled scores. */
struct attention_bias {
    struct tensor table;    /* f32 [buckets, H]; absent: no bias */
    struct tensor gradient; /* f32 [buckets, H], added to by attention_backward; absent: none */
    int64_t max_distance;   /* larger distances have the last bucket */
};

/* The settings of one attention call. Sequences are packed: sequence i has the query rows [cu_q[i],
 * cu_q[i + 1]) and the key rows [cu_k[i], cu_k[i + 1]). A query attends only to keys of its
 * sequence. A document mask is therefore a list of sequences. Padding rows belong to no sequence,
 * and their output is not written. */
struct attention {
    int heads;                  /* H */
    int kv_heads;               /* G, divides H */
    int64_t head_width;         /* D */
    bool causal;                /* query i of n attends to key j of m if j <= i + m - n */
    int64_t window;             /* > 0: only keys at a distance of less than `window` */
    float scale;                /* of the scores, usually 1 / sqrt(D) */
    float softcap;              /* > 0: a score s becomes softcap * tanh(s / softcap); 0: none */
    struct attention_bias bias; /* not with softcap or shared_prefix_offsets */
    int64_t sequences;
    const int32_t *cu_q; /* int32 [sequences + 1] */
    const int32_t *cu_k; /* int32 [sequences + 1]; equal to cu_q for self-attention */
    /* int32 [2 sequences] or NULL. If not NULL, each sequence is a prompt followed by two
     * responses. In sequence i the first response begins at row shared_prefix_offsets[2 i] of the
     * sequence and the second one at row shared_prefix_offsets[2 i + 1]; the second does not attend
     * to the first. Only for causal self-attention without a window. */
    const int32_t *shared_prefix_offsets;
    int64_t longest_q;      /* largest number of queries of a sequence */
    int64_t longest_k;      /* largest number of keys of a sequence */
    struct dropout dropout; /* element index: (row of q * all_heads + first_head + head) *
                             * attention_dropout_pitch(longest_k) + key within the sequence */
    int first_head;         /* index of the first of these H heads in the model */
    int all_heads;          /* heads of the model, over all tensor-parallel ranks; 0: H */
};

enum { ATTENTION_BUCKETS_MAX = 128, ATTENTION_WIDTH_MAX = 256 };

/* attention_bucket - return the bucket of a distance (struct attention_bias).
 *
 * If causal, all buckets are for keys before the query. If not, the second half is for keys after
 * it. Half of the buckets of a side have one distance each, the others grow exponentially.
 *
 * Numerics  f32 logarithm, with the results of transformers
 * Source    Raffel et al. 2020, arXiv:1910.10683 */
int attention_bucket(const struct attention *a, int64_t distance);

/* attention_forward - compute o = softmax(scale q k^T) v for each head, with an online softmax.
 *
 * In cross-attention, queries and keys have separate numbers of rows, cu_q and cu_k.
 *
 * Shapes    q, o [Nq, H D];  keys, values [Nk, G D];  strided views into one QKV matrix are
 *           allowed; lse f32 [H, Nq], the log-sum-exp of each row's scores for the backward pass,
 *           or absent; a row without visible keys has o = 0 and lse = -infinity
 * Memory    no T x T matrix is stored
 * Errors    STATUS_INTERNAL if D > 256 or scale <= 0
 * Source    Milakov, Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135;
 *           softcap: Gemma Team 2024, arXiv:2408.00118 */
status attention_forward(struct kernels *k, struct tensor o, struct tensor lse, struct tensor q,
                         struct tensor keys, struct tensor values, const struct attention *a);

/* attention_backward - compute dq, dkeys and dvalues from d_o. The scores are recomputed from q,
 * keys and lse.
 *
 * Shapes    as attention_forward; dq, dkeys, dvalues may be views into one dQKV matrix
 * Numerics  deterministic; no atomic additions; the gradient of a bias is added in a fixed order
 * Errors    as attention_forward
 * Source    Dao et al. 2022, arXiv:2205.14135 */
status attention_backward(struct kernels *k, struct tensor dq, struct tensor dkeys,
                          struct tensor dvalues, struct tensor d_o, struct tensor q,
                          struct tensor keys, struct tensor values, struct tensor o,
                          struct tensor lse, const struct attention *a);

/* ---- classifier: the output GEMM and cross-entropy, fused over chunks of rows ---- */

/* A vocabulary that is split over ranks. Shard i holds the rows [i R, (i + 1) R) of w, with the
 * same R on all shards. The loss of a row needs three values of all shards: the maximum logit, the
 * sum of exponentials and the logit of the target. */
struct vocabulary_shard {
    int count; /* 0 and 1: not sharded; all_gather is not called */
    int index;
    /* Gathers own[bytes] of every shard into all[count][bytes]. Collective: called once for each
     * chunk of rows, in the same order on all shards. */
    status (*all_gather)(void *context, void *all, const void *own, size_t bytes);
    void *context;
};

struct classifier {
    int64_t vocabulary;     /* V without padding, over all shards; larger ids do not exist */
    int64_t ignored;        /* target that is not counted; the loss of its row is 0 */
    const float *row_scale; /* f32 [N], factor of each row's gradient; NULL: 1 */
    float label_smoothing; /* eps: the target distribution is (1 - eps) onehot + eps / V; 0: none */
    bool gradient;         /* compute dx, and dw where given */
    bool overwrite;        /* dw and dbias are set, not added to */
    float softcap;         /* > 0: a logit z becomes softcap * tanh(z / softcap); 0: none */
    struct tensor bias;    /* f32 [1, Vpadded], added to the logits; absent: none */
    struct tensor dbias;   /* f32 [1, Vpadded], gradient of bias; absent: not computed */
    float *entropies;      /* f32 [N], of each row's distribution, also ignored rows; NULL: none */
    float *mean_logits;    /* f32 [N], mean over the V logits; NULL if and only if entropies is */
    struct vocabulary_shard vocabulary_shard;
};

/* classifier_run - compute the cross-entropy of the logits x w^T + bias, and its gradients.
 *
 * Shapes    x, dx [N, C];  w [Vpadded, C];  dw f32 [Vpadded, C] or absent;  targets int32 [N];
 *           losses f32 [N]: -log p(target);  argmax int32 [N], the most probable id, or NULL
 * Memory    dw is added to, unless overwrite is set; the logits of one chunk of rows at a time are
 *           in the workspace
 * Order     collective over the vocabulary shards
 * Numerics  f32 statistics, merged in a fixed order; every shard gets the losses, argmax, entropies
 *           and mean logits of the whole vocabulary, but a partial dx: the gradient is the sum of
 *           dx over the shards. Logits are f32; with a gradient, a GPU rounds them to the type of x
 * Errors    STATUS_INTERNAL if a target is out of range and in host memory; not checked elsewhere
 * Source    Milakov, Gimelshein 2018, arXiv:1805.02867; softcap: Gemma Team 2024,
 *           arXiv:2408.00118 */
status classifier_run(struct kernels *k, float *losses, int32_t *argmax, struct tensor dx,
                      struct tensor dw, struct tensor x, struct tensor w, const int32_t *targets,
                      const struct classifier *c);

/* classifier_logits - compute the logits of a few rows, for generation.
 *
 * Shapes    logits f32 [N, V];  x [N, C];  w [Vpadded, C];  bias f32 [1, at least V] or absent */
status classifier_logits(struct kernels *k, struct tensor logits, struct tensor x, struct tensor w,
                         struct tensor bias);

/* ---- optimizer, sums and elementwise operations, most of them on flat slices ---- */

/* The rounding of f32 values to bf16: to nearest even, or stochastic (f32_to_bf16_stochastic),
 * which preserves the mean.
 *
 * The random bits do not depend on the sharding of the parameter. A rank holds a slice of a
 * rectangle of the parameter. Element i of the slice is element e = offset + i of the rectangle. In
 * the parameter, its index is first + e / columns * pitch + e % columns. This index selects the
 * bits: random_u16(key, index). */
struct rounding {
    bool stochastic;
    uint64_t key;           /* random_key(seed, RANDOM_ROUNDING, step, parameter) */
    int64_t first;          /* index of the rectangle's first element in the parameter */
    int64_t offset;         /* position of the slice's first element in the rectangle */
    int64_t columns, pitch; /* elements in a row of the rectangle, and of the parameter */
};

/* Hyperparameters of one AdamW or LAMB step. */
struct adamw {
    float learning_rate;
    double beta1, beta2; /* doubles, because 1 - (float)0.9999 has an error of 1.7e-4 */
    float epsilon, weight_decay;
    float gradient_scale;     /* 1 / tokens, times the clipping factor */
    float correction1;        /* 1 - beta1^t */
    float correction2;        /* 1 - beta2^t */
    struct rounding rounding; /* of the copy; its positions also apply to the moments */
    enum dtype moment_dtype;  /* DTYPE_BF16: the moments are rounded stochastically */
    uint64_t moment_keys[2];  /* random_key(seed, RANDOM_MOMENTS, step, 2 * parameter + 0 or 1) */
    const struct update_control *control; /* replaces gradient_scale; NULL: unused */
    const double *trust_ratio; /* lamb_apply: its product with base_rate replaces learning_rate */
    double base_rate;
};

/* adamw_update - update weights and moments by one AdamW step, in one pass.
 *
 * Shapes    weights, gradient f32 [count];  moment1, moment2 settings->moment_dtype [count];
 *           copy bf16 [count], the rounded weights for the GEMMs, or NULL
 * Numerics  elementwise; the moments are averages with weights beta and 1 - beta, both accurate
 *           to f32. bf16 moments are rounded after the update of the weights; weight decay is not
 *           scaled by the gradient
 * Source    Loshchilov, Hutter 2019, arXiv:1711.05101 */
status adamw_update(struct kernels *k, float *weights, bf16 *copy, void *moment1, void *moment2,
                    const float *gradient, int64_t count, const struct adamw *settings);

/* lamb_moments - update the moments and compute the norms of the trust ratio: the first half of a
 * LAMB step.
 *
 * The update direction is u = m / correction1 / (sqrt(v / correction2) + epsilon) + weight_decay w.
 *
 * Shapes    weights, gradient f32 [count], a tensor or a slice of it;  moment1, moment2
 *           settings->moment_dtype [count];  sums f64 [2] on the device: the sums of squares of
 *           the weights and of u
 * Order     sums is valid after a wait for the stream; the caller adds the sums of several slices
 *           or ranks
 * Numerics  sums in double precision, in a fixed order; u is computed from the moments after their
 *           rounding, as in lamb_apply
 * Source    You et al. 2019, arXiv:1904.00962; as in NVIDIA's Apex (FusedLAMB): the ratio is
 *           not clamped */
status lamb_moments(struct kernels *k, double *sums, const float *weights, void *moment1,
                    void *moment2, const float *gradient, int64_t count,
                    const struct adamw *settings);

/* lamb_apply - subtract learning_rate u from the weights, the second half of a LAMB step. u is
 * computed again from the moments.
 *
 * Shapes    as adamw_update
 * Units     learning_rate, or base_rate times *trust_ratio, includes the trust ratio |w| / |u|
 * Source    as lamb_moments */
status lamb_apply(struct kernels *k, float *weights, bf16 *copy, const void *moment1,
                  const void *moment2, int64_t count, const struct adamw *settings);

/* lamb_parts_moments - run lamb_moments for several parts.
 *
 * Shapes    as adamw_parts_update;  sums f64 [part_count, 2] on the device
 * Numerics  the bits of lamb_moments for each part
 * Errors    STATUS_INTERNAL with stochastic rounding, with moments in bf16, or with more than
 *           LAMB_PARTS_SUMS_MAX sums */
status lamb_parts_moments(struct kernels *k, double *sums, const float *weights, float *moment1,
                          float *moment2, const float *gradient, const struct adamw_parts *p,
                          const struct adamw *settings);

/* lamb_parts_apply - run lamb_apply for several parts.
 *
 * Shapes    as adamw_parts_update;  ratios f64 [part_count] on the device
 * Numerics  the bits of lamb_apply for each part, with base_rate times its ratio as learning rate
 * Errors    STATUS_INTERNAL with stochastic rounding or moments in bf16 */
status lamb_parts_apply(struct kernels *k, float *weights, bf16 *copy, const float *moment1,
                        const float *moment2, const double *ratios, const struct adamw_parts *p,
                        const struct adamw *settings);

/* op_round_weights - round weights to their bf16 copy, as adamw_update and lamb_apply do.
 *
 * Shapes    copy bf16 [count];  weights f32 [count]
 * Source    stochastic rounding: Gupta et al. 2015, arXiv:1502.02551 */
status op_round_weights(struct kernels *k, bf16 *copy, const float *weights, int64_t count,
                        const struct rounding *rounding);

/* op_sum_of_squares - compute the sum of squares of a slice.
 *
 * Shapes    out f64 [1] on the device;  x f32 [count]
 * Numerics  double precision, in a fixed order; NaN or infinity in any element propagates */
status op_sum_of_squares(struct kernels *k, double *out, const float *x, int64_t count);

/* The outputs of a classifier that op_loss_stats adds up. */
struct loss_rows {
    const float *losses;    /* f32 [N], 0 where the row is not counted */
    const int32_t *targets; /* int32 [N] */
    int32_t ignored;        /* target of rows that are not counted */
    const int32_t *argmax;  /* int32 [N]; NULL: no accuracy */
    const float *entropies; /* f32 [N]; NULL: no entropy; needs argmax */
};

/* op_loss_stats - sum losses, counted rows, correct rows (argmax equals the target) and entropies.
 *
 * Shapes    out f64 [2, 3 or 4] on the device: the requested sums, in this order
 * Numerics  double precision, in a fixed order
 * Errors    STATUS_INTERNAL if entropies are given without argmax */
status op_loss_stats(struct kernels *k, double *out, const struct loss_rows *t, int64_t rows);

/* op_scale - compute x *= factor.
 *
 * Shapes    x [N, C] in the type of the kernels, or f32 */
status op_scale(struct kernels *k, struct tensor x, float factor);

/* op_softcap - compute x = cap tanh(x / cap), for logits outside of classifier_run.
 *
 * Shapes    x f32 [N, C]
 * Errors    STATUS_INTERNAL if cap <= 0 */
status op_softcap(struct kernels *k, struct tensor x, float cap);

/* op_add - compute to += from.
 *
 * Shapes    to, from f32 [count] */
status op_add(struct kernels *k, float *to, const float *from, int64_t count);

/* op_cast - copy `from` to `to` and convert between f32 and bf16.
 *
 * Shapes    to, from [N, C], each f32 or bf16
 * Numerics  rounds to nearest even */
status op_cast(struct kernels *k, struct tensor to, struct tensor from);

/* op_copy - copy a tensor with contiguous rows; convert it as op_cast does if the types differ. */
status op_copy(struct kernels *k, struct tensor to, struct tensor from);

/* ---- choice of GEMM algorithms: by timing on a GPU; the CPU has one algorithm ---- */

/* kernels_tune - select the fastest algorithm for each GEMM shape.
 *
 * If `measure` is true, time the shapes that were used since creation or since the last call and
 * that have no result yet. The results are used from now on and stored in the user's file
 * (docs/design/gemm_tuning.md).
 *
 * Memory    *text: all results, for kernels_tune_import; "" on the CPU; the caller frees it with
 *           free(); text may be NULL
 * Order     call it between two steps, because it overwrites the outputs of GEMMs; waits for the
 *           device; not collective */
status kernels_tune(struct kernels *k, bool measure, char **text);

/* kernels_tune_import - replace all results by the results of another rank, so that all ranks use
 * the same algorithms. */
status kernels_tune_import(struct kernels *k, const char *text);

/* ---- profile, for `bireme bench step` ---- */

/* The work of the threads in GEMMs that are divided into units, counted in products of two
 * elements. The idle share is 1 - done / possible. */
struct gemm_work {
    double done;
    double possible; /* the work if each thread did as much as the busiest one */
};

struct kernels_time {
    const char *operation;
    double seconds;
    int64_t calls;
    double flops;               /* multiply and add count as two */
    double bytes;               /* each operand counts once */
    struct gemm_work gemm_work; /* zeros on a GPU, and without GEMMs */
};

enum { KERNELS_OPERATIONS_MAX = 64 };

/* kernels_profile - start (on) or stop profiling; a start resets all counters.
 *
 * Order     each profiled operation waits for the device */
void kernels_profile(struct kernels *k, bool on);

/* kernels_times - write the counters of all operations that were called.
 *
 * Returns   the number of counters */
int kernels_times(const struct kernels *k, struct kernels_time out[KERNELS_OPERATIONS_MAX]);

/* ---- roofline: the GEMMs of a step alone ---- */

enum gemm_kind {
    GEMM_FORWARD = 0,     /* y [N, M] = x [N, K] w [M, K]^T */
    GEMM_BACKWARD_INPUT,  /* dx [N, K] = dy [N, M] w [M, K] */
    GEMM_BACKWARD_WEIGHT, /* dw f32 [M, K] += dy [N, M]^T x [N, K] */
};

struct gemm_shape {
    enum gemm_kind kind;
    int64_t rows;    /* N */
    int64_t inner;   /* K */
    int64_t outputs; /* M */
    int64_t count;   /* how often a step runs it */
};

enum { KERNELS_ROOFLINE_ALGORITHMS = 2 };

/* kernels_roofline - time each GEMM shape alone, `count` times, with every algorithm of
 * the back-end.
 *
 * The GEMMs have no bias, activation or copy. To find the fastest algorithm of each shape, call it
 * several times, alternating with steps.
 *
 * Shapes    seconds [count][KERNELS_ROOFLINE_ALGORITHMS]
 * Memory    the first call allocates `count` operands for each shape; they stay in the context,
 *           because an allocation of hundreds of MiB makes the next steps slower
 * Order     waits for the device; not collective
 * Errors    STATUS_UNAVAILABLE if the back-end cannot measure it */
status kernels_roofline(struct kernels *k, double (*seconds)[KERNELS_ROOFLINE_ALGORITHMS],
                        const struct gemm_shape *shapes, int count);
