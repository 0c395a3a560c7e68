/* Every operation of a transformer, forward and backward, on any device.
 *
 * kernels.c checks the shapes once and dispatches to the device's table (kernels_table.h): cpu/ and
 * cuda/ with the same file stems. The plain reference of each operation (kernels/cpu/reference.c,
 * double precision) is the specification that both are tested against.
 *
 * Three laws
 *   1. Parameter gradients `+=`, activation gradients `=`, the residual stream's gradient `+=`. The two
 *      operations that write a matrix's gradient also set it (overwrite), for a step's first
 *      micro-batch: nothing is cleared and read for that.
 *   2. Losses are sums and come with counts, never means: one division, after the sum over all ranks.
 *   3. Dropout is a pure function of (key, global element index): no state, no layout in it.
 *
 * Manner    arguments: where, outputs, inputs, scalars. Activations and the weights that products
 *           read are all f32 or all bf16 (the context's dtype); sums, statistics, losses, gradients of
 *           parameters and optimizer state are f32. A queued operation allocates nothing, prints
 *           nothing and waits for nothing.
 * Order     calls on one context run in the order given; the same calls give the same bits.
 * Errors    STATUS_INTERNAL with the values for shapes that do not fit (our bug, not the user's);
 *           device failures as STATUS_INTERNAL too.
 * Letters   N rows (= B T tokens), C width, K inner size of a product, M its outputs, H heads,
 *           G key-value heads, D head width, V vocabulary. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/device.h"
#include "base/status.h"
#include "base/tensor.h"

struct kernels; /* a device's operations, its threads and its working memory */

/* The largest sizes that a context will meet: its working memory is made from them at creation. */
struct kernels_limits {
    int64_t rows;       /* N of a micro-batch */
    int64_t width;      /* C */
    int64_t inner;      /* F, the wider side of the feed-forward */
    int heads;          /* H */
    int64_t head_width; /* D */
    int64_t sequence;   /* longest T */
    int64_t vocabulary; /* V, padded; of this rank's part */
    bool training;      /* backward will be called */
    int parts;          /* of the vocabulary, over the ranks that share it; 0 and 1: all is here */
};

/* kernels_create - a context on dev.
 *
 * Units     threads is the CPU threads that operations may use; 0 for all that this process may
 * Memory    at most kernels_workspace_bytes(limits, ...) on dev: nearly all at once, the matrix library's part as it asks
 * Errors    STATUS_UNAVAILABLE if the device cannot do dtype (named with what can) */
status kernels_create(struct device *dev, enum dtype dtype, int threads,
                      const struct kernels_limits *limits, struct kernels **out);
status kernels_destroy(struct kernels **k);

/* cuda_register - make `device: cuda` known, in a program with that back-end; needs no GPU and looks for none yet. Once,
 * before any device. */
void cuda_register(void);

/* kernels_workspace_bytes - what a context needs for itself; a pure function, for `bireme plan`. */
size_t kernels_workspace_bytes(enum device_kind kind, enum dtype dtype, int threads,
                               const struct kernels_limits *limits);

/* kernels_supports - whether dtype runs at the processor's own speed on this device. */
bool kernels_supports(struct device *dev, enum dtype dtype);

struct device *kernels_device(const struct kernels *k);
struct stream *kernels_stream(const struct kernels *k);
enum dtype kernels_dtype(const struct kernels *k);
int kernels_threads(const struct kernels *k);

/* kernels_description - the back-end in words: instruction set, matrix library and its version. */
const char *kernels_description(const struct kernels *k);

/* ---- graphs: many launches started as one, on a GPU; elsewhere these do nothing ---- */

/* What tells two sequences of operations apart whose launches are not alike. */
struct kernels_graph_key {
    const void *inputs; /* where they lie */
    int64_t rows;
    int variant;
};

/* kernels_graphs - whether graphs are wanted; not, until told. Those that were made are forgotten: also to be called
 * where the back-end does the same from now on in another way (another plan of a product). */
void kernels_graphs(struct kernels *k, bool wanted);

/* kernels_graph_begin - until kernels_graph_end the operations of this context, called by this thread, may be held
 * back, and started together. What comes again under an equal key is; nothing has to be the same for the result's
 * sake, whatever differs is noticed.
 *
 * Order     as without: copies, zeros, events and waits on the stream come behind what was called before them */
status kernels_graph_begin(struct kernels *k, const struct kernels_graph_key *key);
status kernels_graph_end(struct kernels *k);

/* kernels_graph_cut - between what is alike each time and what is not: the one can be a graph without the other. */
status kernels_graph_cut(struct kernels *k);

/* ---- matrix products: kernels/cpu/matmul.c ---- */

enum activation { ACTIVATION_NONE = 0, ACTIVATION_GELU_TANH, ACTIVATION_GELU_ERF, ACTIVATION_TANH };

/* linear_forward - y = act(x w^T + bias).
 *
 * Shapes    y [N, M], x [N, K], w [M, K]; bias f32 [1, M] or absent
 * Memory    kept [N, M] receives what linear_backward_input needs of the activation, in a form of the
 *           back-end's own (the value before it, or its slope there); absent where act is
 *           ACTIVATION_NONE or nothing will go backward */
status linear_forward(struct kernels *k, struct tensor y, struct tensor kept, struct tensor x,
                      struct tensor w, struct tensor bias, enum activation act);

/* linear_backward_input - dx = (dy w) * act': the gradient before the activation that made x.
 *
 * Shapes    dx [N, K], dy [N, M], w [M, K]; kept [N, K] from the forward pass that made x,
 *           absent where act is ACTIVATION_NONE */
status linear_backward_input(struct kernels *k, struct tensor dx, struct tensor dy, struct tensor w,
                             enum activation act, struct tensor kept);

/* linear_backward_weight - dw += dy^T x, dbias += column sums of dy; overwrite: `=`. Of what is frozen there is no
 * gradient, and no work.
 *
 * Shapes    dw f32 [M, K] or absent, dbias f32 [1, M] or absent, dy [N, M], x [N, K] */
status linear_backward_weight(struct kernels *k, struct tensor dw, struct tensor dbias,
                              struct tensor dy, struct tensor x, bool overwrite);

/* linear_add - y += x w^T, or with `back` y += x w: what an adapter adds to a product, or to its input's gradient.
 *
 * Shapes    y [N, M], x [N, K], w [M, K], or [K, M] with `back` */
status linear_add(struct kernels *k, struct tensor y, struct tensor x, struct tensor w, bool back);

/* activation_forward - y = act(y), where more was added to a product behind which linear_forward puts it.
 *
 * Shapes    y [N, M]; kept as linear_forward's, or absent */
status activation_forward(struct kernels *k, struct tensor y, struct tensor kept,
                          enum activation act);

/* scale - x *= factor. */
status scale(struct kernels *k, struct tensor x, float factor);

/* activation_backward - dx = dy * act': where no product follows the activation, but a norm or a classifier.
 *
 * Shapes    dx, dy [N, M]; kept [N, M] from linear_forward. dx may alias dy */
status activation_backward(struct kernels *k, struct tensor dx, struct tensor dy,
                           struct tensor kept, enum activation act);

/* swiglu_forward - y = silu(gate) * up, with silu(x) = x / (1 + exp(-x)).
 *
 * Shapes    y [N, F]; gate_up [N, 2 F], one product's output: gate in its first F columns, up in the rest
 * Source    Shazeer 2020, arXiv:2002.05202 */
status swiglu_forward(struct kernels *k, struct tensor y, struct tensor gate_up);

/* swiglu_backward - d_gate_up from dy.
 *
 * Shapes    d_gate_up, gate_up [N, 2 F]; dy [N, F]. d_gate_up may alias gate_up */
status swiglu_backward(struct kernels *k, struct tensor d_gate_up, struct tensor dy,
                       struct tensor gate_up);

/* ---- rotary positions ---- */

/* Longer texts than the first ones, with slower angles (rotary.c). */
enum rotary_kind { ROTARY_PLAIN = 0, ROTARY_LINEAR, ROTARY_LLAMA3 };

struct rotary_scaling {
    enum rotary_kind kind;
    double factor;
    double low, high, positions; /* llama3: turns within so many positions */
};

/* rotary_angles - the table of rotary_apply, in host memory: cosines, then sines, of p theta^(-2 i / D), scaled.
 *
 * Shapes    table f32 [P, D]: row p for position p; cosines of i = 0 .. D/2 - 1, then their sines
 * Numerics  angles in double precision */
void rotary_angles(float *table, int64_t positions, int64_t head_width, double theta,
                   const struct rotary_scaling *scaling);

/* rotary_apply - turn the pairs (i, i + D/2) of each head by its row's angles, in place; inverse: back, which
 * is the backward pass too.
 *
 * Shapes    x [N, heads D], as many heads as it has columns for: queries and keys that lie side by side are turned
 *           together; table f32 [P, D], D even; positions int32 [N]
 * Errors    positions are the caller's promise
 * Source    Su et al. 2021, arXiv:2104.09864; halves as in Hugging Face's Llama */
status rotary_apply(struct kernels *k, struct tensor x, struct tensor table,
                    const int32_t *positions, bool inverse);

/* ---- embedding ---- */

/* Dropout by counter: element i of a site is kept where random_uniform(key, first + i) >=
 * probability, and scaled by 1 / (1 - probability). */
struct dropout {
    float probability; /* 0: none */
    uint64_t key;      /* random_key(seed, RANDOM_DROPOUT, step, site) */
    int64_t first;     /* global index of this call's first element (row-major over the site) */
    int64_t
        pitch; /* dropout_apply alone: elements of a row of the site, of which x may have some; 0: x's columns */
};

/* embedding_forward - y = drop(tokens_table[token - first_token] + positions_table[position]).
 *
 * A token whose row is not in the table adds nothing: of a vocabulary that is shared out, the parts' results
 * add up to the whole's, dropout included.
 * Shapes    y [N, C], token_table [V, C], position_table [P, C] or absent; tokens, positions int32 [N]
 * Errors    ids are the caller's promise (the loader checks them) */
status embedding_forward(struct kernels *k, struct tensor y, const int32_t *tokens,
                         const int32_t *positions, struct tensor token_table, int64_t first_token,
                         struct tensor position_table, struct dropout dropout);

/* embedding_backward - add each row of drop'(dy) to the gradient rows of its token, where the table has
 * it, and of its position.
 *
 * Shapes    d_token_table f32 [V, C] or absent, d_position_table f32 [P, C] or absent, dy [N, C]
 * Numerics  rows of one token are added in the order of N: deterministic at any thread count */
status embedding_backward(struct kernels *k, struct tensor d_token_table, int64_t first_token,
                          struct tensor d_position_table, struct tensor dy, const int32_t *tokens,
                          const int32_t *positions, struct dropout dropout);

/* dropout_apply - y = drop(x): forward, and backward of the gradient.
 *
 * Shapes    y, x [N, C]; y may alias x */
status dropout_apply(struct kernels *k, struct tensor y, struct tensor x, struct dropout dropout);

/* ---- some of the rows: masked positions, the last token of each text ---- */

/* gather_rows - y[i] = x[rows[i]].
 *
 * Shapes    y [R, C], x [N, C]; rows int32 [R], rising, none twice
 * Errors    rows are the caller's promise: checked where the host can read them */
status gather_rows(struct kernels *k, struct tensor y, struct tensor x, const int32_t *rows);

/* scatter_rows - its backward: dx[rows[i]] += dy[i]; overwrite: dx is dy[i] there and 0 in all other rows.
 *
 * Shapes    dx [N, C], dy [R, C]; rows as for gather_rows */
status scatter_rows(struct kernels *k, struct tensor dx, struct tensor dy, const int32_t *rows,
                    bool overwrite);

/* ---- residual and norm, in one pass ---- */

enum norm_kind { NORM_LAYER = 0, NORM_RMS };

/* residual_norm_forward - z = x + drop(delta); y = norm(z) * gamma + beta.
 *
 * Shapes    z, y, x, delta [N, C]; gamma, beta f32 [1, C] (beta absent for RMS);
 *           statistics f32 [N, 2]: mean (0 for RMS) and reciprocal deviation of each row
 * Memory    delta absent: z is not written, y = norm(x). y absent: only the sum. z may alias x
 * Units     epsilon is added to the variance, not to the deviation; > 0
 * Numerics  two passes over a row, f32 sums
 * Source    Ba, Kiros, Hinton 2016, arXiv:1607.06450; Zhang, Sennrich 2019, arXiv:1910.07467 */
status residual_norm_forward(struct kernels *k, struct tensor z, struct tensor y,
                             struct tensor statistics, struct tensor x, struct tensor delta,
                             struct tensor gamma, struct tensor beta, enum norm_kind kind,
                             float epsilon, struct dropout dropout);

/* What the residual stream reads. */
enum norm_stream {
    NORM_STREAM_SUM = 0, /* z, before the norm: dz += norm'(dy) */
    NORM_STREAM_NOTHING, /* neither: dz = norm'(dy) */
    NORM_STREAM_NORM,    /* y, behind the norm: dz = norm'(dy + dz) */
};

/* residual_norm_backward - dz (+)= norm'(dy); ddelta = drop'(dz).
 *
 * Shapes    dz, dy, z [N, C]; dgamma, dbeta f32 [1, C] `+=`; statistics from the forward pass
 * Memory    dz holds the gradient that arrives along the residual stream, and leaves with that of z;
 *           ddelta absent where there was no dropout: then it equals dz */
status residual_norm_backward(struct kernels *k, struct tensor dz, struct tensor ddelta,
                              struct tensor dgamma, struct tensor dbeta, struct tensor dy,
                              struct tensor z, struct tensor statistics, struct tensor gamma,
                              enum norm_kind kind, enum norm_stream stream, struct dropout dropout);

/* ---- attention ---- */

/* Sequences lie one after the other in the rows: sequence i has query rows cu_q[i] .. cu_q[i + 1]
 * and key rows cu_k[i] .. cu_k[i + 1]. A query sees keys of its own sequence only, so a document
 * mask is a list of documents, and padding is rows in no sequence (their output is not written). */
struct attention {
    int heads;          /* H */
    int kv_heads;       /* G, divides H */
    int64_t head_width; /* D */
    bool causal;        /* query i of n sees key j of m where j <= i + m - n */
    int64_t window;     /* > 0: only the last `window` visible keys */
    float scale;        /* of the scores, usually 1 / sqrt(D) */
    int64_t sequences;
    const int32_t *cu_q; /* int32 [sequences + 1] */
    const int32_t *cu_k; /* the same array as cu_q for self attention */
    /* int32 [2 sequences], or NULL: two continuations of one beginning. Sequence i's queries from branches[2 i + 1]
     * on do not see its keys branches[2 i] .. branches[2 i + 1]. Causal self attention without a window only. */
    const int32_t *branches;
    int64_t longest_q;
    int64_t longest_k;
    struct dropout
        dropout;    /* element index: (row of q * all_heads + first_head + head) * longest_k +
                             * key in sequence */
    int first_head; /* of these H among the model's, where ranks share them */
    int all_heads;  /* of the model; 0: H */
};

/* attention_forward - o = softmax(scale q k^T) v per head, with an online softmax.
 *
 * Shapes    q, o [Nq, H D]; k, v [Nk, G D]; strided views into one QKV matrix are fine;
 *           lse f32 [H, Nq], the logarithm of each row's sum of exponentials, for backward (may be
 *           absent); a row that sees no key gives o = 0 and lse = -infinity
 * Memory    never a T x T matrix
 * Errors    STATUS_INTERNAL if D is above 256 or scale is not above 0
 * Source    Milakov, Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135 */
status attention_forward(struct kernels *k, struct tensor o, struct tensor lse, struct tensor q,
                         struct tensor keys, struct tensor values, const struct attention *a);

/* attention_backward - dq, dk, dv from d_o, recomputing the scores from q, k and lse.
 *
 * Shapes    as in the forward pass; dq, dk, dv may be views into one dQKV matrix
 * Numerics  deterministic; no atomics */
status attention_backward(struct kernels *k, struct tensor dq, struct tensor dkeys,
                          struct tensor dvalues, struct tensor d_o, struct tensor q,
                          struct tensor keys, struct tensor values, struct tensor o,
                          struct tensor lse, const struct attention *a);

/* ---- classifier: the output product and cross-entropy, fused over chunks of rows ---- */

/* A vocabulary that is shared out: part i of `count` holds the rows [i R, (i + 1) R) of the whole w, all
 * parts the same number R. A row's loss needs the largest logit, the sum of exponentials and the target's
 * logit over all parts: `gather` lays every part's bytes one after the other. All parts call it for the
 * same rows in the same order, once for each chunk. */
struct classifier_parts {
    int count; /* 0 and 1: the whole vocabulary is here, and gather is not called */
    int index;
    status (*gather)(void *context, void *all, const void *mine, size_t bytes);
    void *context;
};

struct classifier {
    int64_t vocabulary;     /* V without padding, of all parts: ids from here on do not exist */
    int64_t ignored;        /* this target is not counted; its row's loss is 0 */
    const float *row_scale; /* f32 [N]: weight of each row's gradient; NULL: 1 */
    bool gradient;          /* also dx, and dw where it is given */
    bool overwrite;         /* dw is set, not added to */
    struct tensor bias;     /* f32 [1, Vpadded] of the logits; absent: none */
    struct tensor dbias;    /* its gradient, added to or set as dw is; absent: not wanted */
    float *entropies;   /* f32 [N]: of each row's distribution, ignored or not; NULL: not wanted */
    float *mean_logits; /* f32 [N]: mean over the V logits; given with entropies or not at all */
    struct classifier_parts parts;
};

/* classifier_run - losses of x w^T + bias against targets, and the gradient in the same sweep.
 *
 * Shapes    x, dx [N, C]; w [Vpadded, C], dw f32 [Vpadded, C] `+=`, or absent; targets int32 [N];
 *           losses f32 [N]: -log p(target); best int32 [N]: the most probable id, or NULL; these and
 *           what the settings name are the whole vocabulary's on every part; dx is this part's: the sum over parts is the gradient
 * Memory    logits live for one chunk of rows at a time, in the context's working memory */
status classifier_run(struct kernels *k, float *losses, int32_t *best, struct tensor dx,
                      struct tensor dw, struct tensor x, struct tensor w, const int32_t *targets,
                      const struct classifier *c);

/* classifier_logits - logits f32 [N, V] of a few rows, for generation.
 *
 * Shapes    bias f32 [1, V at least] or absent */
status classifier_logits(struct kernels *k, struct tensor logits, struct tensor x, struct tensor w,
                         struct tensor bias);

/* ---- flat slices: optimizer and sums ---- */

/* How weights become their bf16 copy: to nearest even, or at random up or down so that the mean is kept
 * (f32_to_bf16_drawn). Element i of a slice draws random_half(key, index) with its index in the whole parameter,
 * first + e / columns * pitch + e % columns for e = offset + i: the same bits however the parameter is shared out. */
struct rounding {
    bool stochastic;
    uint64_t key;           /* random_key(seed, RANDOM_ROUNDING, step, parameter) */
    int64_t first;          /* index of the first element of a rectangle that the slice lies in */
    int64_t offset;         /* the slice's first element, counted in the rectangle */
    int64_t columns, pitch; /* elements of the rectangle's rows, and of the whole's */
};

struct adamw {
    float learning_rate, beta1, beta2, epsilon, weight_decay;
    float gradient_scale; /* 1 / tokens, times the clipping factor */
    float correction1;    /* 1 - beta1^t */
    float correction2;    /* 1 - beta2^t */
    struct rounding rounding;
};

/* adamw_update - one step over `count` elements in one pass.
 *
 * Shapes    weights, moment1, moment2, gradient f32 [count]; copy bf16 [count], the weights rounded
 *           for the products, or NULL
 * Source    Loshchilov, Hutter 2019, arXiv:1711.05101 (decay not scaled by the gradient) */
status adamw_update(struct kernels *k, float *weights, bf16 *copy, float *moment1, float *moment2,
                    const float *gradient, int64_t count, const struct adamw *settings);

/* lamb_moments - the first half of a LAMB step over a tensor or a part of it: new moments, and what its
 * trust ratio |w| / |u| is made from, with u = m / correction1 / (sqrt(v / correction2) + epsilon) +
 * weight_decay w.
 *
 * Shapes    weights, moment1, moment2, gradient f32 [count]; sums f64 [2] on the device: the sums of squares of
 *           the weights and of u, in double precision with a fixed order
 * Order     queued: sums are there once the stream was waited for. What several ranks or slices have of a
 *           tensor is the caller's to add up
 * Source    You et al. 2019, arXiv:1904.00962; as in NVIDIA's apex (FusedLAMB): no clamp of the ratio */
status lamb_moments(struct kernels *k, double *sums, const float *weights, float *moment1,
                    float *moment2, const float *gradient, int64_t count,
                    const struct adamw *settings);

/* lamb_apply - the second half: w -= learning_rate u, with u made anew from the moments. The trust ratio is the
 * caller's, a factor of learning_rate.
 *
 * Shapes    as adamw_update's */
status lamb_apply(struct kernels *k, float *weights, bf16 *copy, const float *moment1,
                  const float *moment2, int64_t count, const struct adamw *settings);

/* weights_round - the bf16 copy of weights alone, as adamw_update and lamb_apply make it.
 *
 * Shapes    copy bf16 [count], weights f32 [count] */
status weights_round(struct kernels *k, bf16 *copy, const float *weights, int64_t count,
                     const struct rounding *rounding);

/* sum_of_squares - of f32 [count] in double precision with a fixed order; NaN or infinity in any
 * element comes out as such. out: f64 on the device. */
status sum_of_squares(struct kernels *k, double *out, const float *x, int64_t count);

/* What is told of a classifier's rows. */
struct tally {
    const float *losses;    /* f32 [N], 0 where a row is not counted */
    const int32_t *targets; /* int32 [N] */
    int32_t ignored;        /* this target is not counted */
    const int32_t *best;    /* int32 [N]; NULL: not wanted */
    const float *entropies; /* f32 [N]; given with best or not at all */
};

/* tally_rows - the sum of the losses, the counted rows, those of them whose best id is the target, and the sum of their
 * entropies, in a fixed order.
 *
 * Shapes    out: f64 [2, 3 or 4] on the device, as much of it as is wanted */
status tally_rows(struct kernels *k, double *out, const struct tally *t, int64_t rows);

/* floats_add - to += from, f32 [count]. */
status floats_add(struct kernels *k, float *to, const float *from, int64_t count);

/* convert - to = from, between f32 and bf16. */
status convert(struct kernels *k, struct tensor to, struct tensor from);

/* ---- the fastest way to do a product: timed on a GPU, nothing to choose on the CPU ---- */

/* kernels_tune - measure: time the ways to do the products that were met since the context was made or tuned and are
 * not known yet, take the fastest from now on and keep them in the user's file (docs/cuda.md). Between two steps: what
 * products have written is overwritten.
 *
 * Memory    *text: all that is known, for kernels_tuned, the caller's, for free(); "" on the CPU. NULL: not wanted
 * Order     waits until everything is done; not collective */
status kernels_tune(struct kernels *k, bool measure, char **text);

/* kernels_tuned - what another rank has found instead of what is known here, so that all do the same. */
status kernels_tuned(struct kernels *k, const char *text);

/* ---- where the time goes, for `bireme bench step` ---- */

struct kernels_time {
    const char *operation;
    double seconds;
    int64_t calls;
    double flops; /* multiply and add count as two */
    double bytes; /* each operand once */
};

enum { KERNELS_OPERATIONS_MAX = 32 };

/* kernels_profile - start counting from zero (on) or stop. */
void kernels_profile(struct kernels *k, bool on);

/* kernels_times - what was counted; returns the number of entries in out. */
int kernels_times(const struct kernels *k, struct kernels_time out[KERNELS_OPERATIONS_MAX]);

/* ---- the floor under a step: its matrix products alone ---- */

enum product_kind {
    PRODUCT_FORWARD = 0, /* y [N, M] = x [N, K] w [M, K]^T */
    PRODUCT_INPUT,       /* dx [N, K] = dy [N, M] w [M, K] */
    PRODUCT_WEIGHT,      /* dw f32 [M, K] += dy [N, M]^T x [N, K] */
};

struct product {
    enum product_kind kind;
    int64_t rows;    /* N */
    int64_t inner;   /* K */
    int64_t outputs; /* M */
    int64_t count;   /* how often the step does it */
};

enum { KERNELS_FLOOR_WAYS = 2 };

/* kernels_floor - the time that each of these products alone takes, as often as the step does it, in the
 * matrix library: no bias, no activation, no copy, in each of the ways to divide it that the back-end has.
 * What is called several times, in turn with steps, shows which way is the fastest.
 *
 * Shapes    seconds [count][KERNELS_FLOOR_WAYS]
 * Memory    operands are the context's from the first call on, of each product as many as it is done: to
 *           allocate and release hundreds of MiB between a program's steps slows these down
 * Order     waits until everything is done */
status kernels_floor(struct kernels *k, double (*seconds)[KERNELS_FLOOR_WAYS],
                     const struct product *products, int count);
