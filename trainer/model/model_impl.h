/* The model's inside, for the files of this folder and their tests. */
#pragma once

#include <string.h>

#include "base/arena.h"
#include "base/random.h"
#include "trainer/model/model.h"

/* Places of the parameters in the flat list: two tables, the layers, the final norm, perhaps a
 * head. */
enum {
    MODEL_TOKEN_TABLE = 0,
    MODEL_POSITION_TABLE = 1,
    MODEL_FIRST_LAYER = 2,
    MODEL_LAYER_PARAMETERS = 12,
    MODEL_HEAD_PARAMETERS = 5
};

/* Within a layer. */
enum layer_parameter {
    LAYER_NORM1_WEIGHT,
    LAYER_NORM1_BIAS,
    LAYER_QKV_WEIGHT,
    LAYER_QKV_BIAS,
    LAYER_PROJECTION_WEIGHT,
    LAYER_PROJECTION_BIAS,
    LAYER_NORM2_WEIGHT,
    LAYER_NORM2_BIAS,
    LAYER_FC_WEIGHT,
    LAYER_FC_BIAS,
    LAYER_FC_PROJECTION_WEIGHT,
    LAYER_FC_PROJECTION_BIAS
};

/* Where dropout draws its numbers: the embedding, and three places of each layer. */
enum dropout_place { DROPOUT_ATTENTION, DROPOUT_PROJECTION, DROPOUT_FC, DROPOUT_PLACES };

/* What one of t tensor-parallel ranks holds of a layer's insides. */
struct layer_share {
    int64_t heads; /* H/t */
    int64_t width; /* C/t, of its heads together */
    int64_t inner; /* F/t */
};

/* What a layer keeps from forward for backward. Letters: kernels.h; t tensor-parallel ranks; n
 * rows of the stream on this rank: N, or with sequence parallelism about N/t. */
struct layer_activations {
    struct tensor input;       /* [n, C] the residual stream that enters */
    struct tensor norm1;       /* [n, C] */
    struct tensor statistics1; /* f32 [n, 2] */
    struct tensor qkv;         /* [N, 3C/t] */
    struct tensor lse;         /* f32 [H/t, N] */
    struct tensor attended;    /* [N, C/t] */
    struct tensor middle;      /* [n, C] the residual stream after attention */
    struct tensor norm2;       /* [n, C] */
    struct tensor statistics2; /* f32 [n, 2] */
    struct tensor kept;        /* [N, F] of the activation, for backward */
    struct tensor inner;       /* [N, F/t] after it */
};

/* Working memory of one micro-batch. */
struct activations {
    struct layer_activations *layers; /* [L]; without training all share one set */
    struct tensor last;               /* [n, C] the residual stream after the last layer */
    struct tensor final_norm;         /* [n, C] */
    struct tensor final_statistics;   /* f32 [n, 2] */
    /* [N, C] what the ranks add up, and one at a time lives: what a block adds to the stream; the gradient
     * of the hidden states, which the objective writes; of a norm's output */
    struct tensor exchange;
    /* gradients, with training only */
    struct tensor d_stream; /* [n, C] along the residual stream */
    struct tensor d_delta;  /* [n, C] behind dropout; absent without */
    struct tensor d_qkv;    /* [N, 3C/t] */
    struct tensor d_inner;  /* [N, F/t] */
};

struct model {
    struct kernels *kernels;
    struct model_config config;
    struct comm *tensor; /* NULL: this rank alone */
    int ranks, rank;     /* of it */
    struct model_sharing sharing;
    struct layer_share share;
    struct model_parameter *parameters;
    int parameter_count;
    int64_t elements;
    float *weights;
    float *vectors; /* once the weights are released */
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
    struct range *ranges;    /* [ranks] */
};

/* model_arrange - take all views of the working memory from the arena (or measure them). */
status model_arrange(const struct model_config *config, struct model_sharing sharing,
                     enum dtype dtype, int64_t rows, bool training,
                     struct layer_activations *layers, struct arena *arena,
                     struct activations *out);

/* model_share - a layer's insides over so many ranks. */
struct layer_share model_share(const struct model_config *config, int ranks);

/* model_matrix - a weight that products read: the bf16 copy where there is one. */
struct tensor model_matrix(const struct model *m, int parameter);
/* model_vector - a bias or norm weight, always f32. */
struct tensor model_vector(const struct model *m, int parameter);
/* model_gradient - a parameter's gradient, where the caller has it. */
struct tensor model_gradient(const struct model *m, int parameter, float *const *gradients);

/* model_layer_parameter - the place in the flat list. */
static inline int model_layer_parameter(int64_t layer, enum layer_parameter which)
{
    return MODEL_FIRST_LAYER + (int)layer * MODEL_LAYER_PARAMETERS + (int)which;
}

static inline int model_final_norm(const struct model *m)
{
    return model_layer_parameter(m->config.layers, LAYER_NORM1_WEIGHT);
}

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

/* model_dropout - the numbers of one place: layer -1 is the embedding. */
struct dropout model_dropout(const struct model *m, const struct model_input *input, int64_t layer,
                             enum dropout_place place);

/* model_attention - the description of self attention over the batch's segments. */
struct attention model_attention(const struct model *m, const struct model_input *input,
                                 int64_t layer);

/* Pieces of the forward pass (forward.c) that generation shares. */
status model_embed(struct model *m, const struct model_input *input);
status model_first_norm(struct model *m, int64_t n);
status model_project_qkv(struct model *m, int64_t layer, int64_t n);
status model_project_attended(struct model *m, int64_t layer, int64_t n);
/* model_hidden - all rows behind the final norm. */
status model_hidden(struct model *m, int64_t n, struct tensor *hidden);
/* model_layer_rest - from what attention adds to the stream to the next layer's first norm. */
status model_layer_rest(struct model *m, const struct model_input *input, int64_t layer);
