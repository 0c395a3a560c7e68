/* Adapters of low rank: beside a frozen matrix W of a product y = W x lie two small ones that are trained,
 *
 *   y = W x + s B (A drop(x)),   s = alpha / rank,   A [rank, in], B [out, rank], which begins with zeros
 *
 * (or, rank-stabilised, s = alpha / sqrt(rank)),
 *
 * so that the model begins as it was. Backward, with du = s B^T dy:  dB = dy (s A drop(x))^T,  dA = du drop(x)^T,
 * dx += drop'(A^T du). Of matrices that are one to the products (query, key and value) each has an adapter of its own,
 * and its columns of the output.
 *
 * Tensor-parallel ranks share the two as they share W: where W is split by its outputs B is, and every rank has all
 * of A; where by its inputs A is, and every rank has all of B and the ranks' sum of y holds that of the adapters. What
 * every rank has gets a part of its gradient on each: these are added up (sharing.c).
 *
 * Source    Hu et al. 2021, arXiv:2106.09685; Kalajdzievski 2023, arXiv:2312.03732; Hugging Face's peft, whose names, defaults and initial values these
 *           are */
#include <math.h>

#include "trainer/model/model_impl.h"

/* Behind the sites of dropout that a model has without adapters. */
static const uint64_t first_site = UINT64_C(1) << 32;

/* A matrix with its adapter, and where the latter's parts lie in this micro-batch. */
struct adapter {
    int in;                /* the parameter A; B is the next one */
    int64_t column, count; /* of the product's output */
    int among;             /* the product's adapters */
    struct tensor u;       /* [N, rank] s A drop(x) */
};

bool model_is_adapted(const struct model *m, struct place place)
{
    bool adapted = false;
    for (int i = 0; i < m->parameters[place.weight].joined; i++) {
        adapted = adapted || m->parameters[place.weight + i].adapter > 0;
    }
    return adapted;
}

/* The next adapter of the product from *index on; false: there is none. */
static bool next(const struct model *m, struct place place, int64_t layer, int64_t n, int *index,
                 struct adapter *a)
{
    int joined = m->parameters[place.weight].joined;
    for (; *index < joined; ++*index) {
        const struct model_parameter *p = &m->parameters[place.weight + *index];
        a->column += a->count;
        a->count = p->rows;
        if (p->adapter > 0) {
            int64_t rank = m->config.adapter.rank, at = rank * p->adapter_place;
            struct tensor all = m->activations.layers[layer].adapted;
            a->in = p->adapter;
            a->u = tensor_columns(tensor_rows(all, 0, n), at, rank);
            ++*index;
            return true;
        }
    }
    return false;
}

float model_adapter_scale(const struct model_adapter *adapter)
{
    float rank = (float)adapter->rank;
    return adapter->alpha / (adapter->by_root ? sqrtf(rank) : rank);
}

static status apply_factor(const struct model *m, struct tensor u)
{
    float s = model_adapter_scale(&m->config.adapter);
    return s == 1.0f ? STATUS_OK : scale(m->kernels, u, s);
}

/* Drawn by the place in the whole input, of which this rank may have some columns. */
static struct dropout dropout_of(const struct model *m, const struct model_input *input, int in)
{
    const struct model_parameter *p = &m->parameters[in];
    if (!input->training || !(m->config.adapter.dropout > 0)) {
        return (struct dropout){0};
    }
    return (struct dropout){
        .probability = m->config.adapter.dropout,
        .key = random_key(input->seed, RANDOM_DROPOUT, (uint64_t)input->step,
                          first_site + (uint64_t)in),
        .first = input->first_row * p->whole_columns + p->pieces[0].column,
        .pitch = p->whole_columns,
    };
}

/* *x as the adapter reads it. */
static status drop(struct model *m, const struct model_input *input, int in, struct tensor *x)
{
    struct dropout dropout = dropout_of(m, input, in);
    if (!(dropout.probability > 0)) {
        return STATUS_OK;
    }
    struct tensor to = tensor_view(m->activations.dropped.data, x->dtype, x->rows, x->columns);
    TRY(dropout_apply(m->kernels, to, *x, dropout));
    *x = to;
    return STATUS_OK;
}

status model_adapters_forward(struct model *m, const struct model_input *input, int64_t layer,
                              struct place place, struct tensor y, struct tensor x)
{
    struct adapter a = {0};
    for (int i = 0; next(m, place, layer, x.rows, &i, &a);) {
        struct tensor read = x;
        TRY(drop(m, input, a.in, &read));
        TRY(linear_forward(m->kernels, a.u, tensor_absent(), read, model_matrix(m, a.in),
                           tensor_absent(), ACTIVATION_NONE));
        TRY(apply_factor(m, a.u));
        TRY(linear_add(m->kernels, tensor_columns(y, a.column, a.count), a.u,
                       model_matrix(m, a.in + 1), false));
    }
    return STATUS_OK;
}

/* ---- backward ---- */

static struct tensor du_of(const struct model *m, const struct adapter *a)
{
    int64_t rank = m->config.adapter.rank;
    return tensor_columns(tensor_rows(m->activations.d_adapted, 0, a->u.rows), rank * a->among,
                          rank);
}

static status add_input_gradient(struct model *m, const struct model_input *input, int in,
                                 struct tensor dx, struct tensor du)
{
    struct dropout dropout = dropout_of(m, input, in);
    struct tensor matrix = model_matrix(m, in), none = tensor_absent();
    if (!(dropout.probability > 0)) {
        return linear_add(m->kernels, dx, du, matrix, true);
    }
    struct tensor part = tensor_view(m->activations.dropped.data, dx.dtype, dx.rows, dx.columns);
    TRY(linear_backward_input(m->kernels, part, du, matrix, ACTIVATION_NONE, none));
    TRY(dropout_apply(m->kernels, part, part, dropout));
    return residual_norm_forward(m->kernels, dx, none, none, dx, part, none, none, NORM_RMS, 0,
                                 (struct dropout){0});
}

status model_adapters_backward_input(struct model *m, const struct model_input *input,
                                     int64_t layer, struct place place, struct tensor dx,
                                     struct tensor dy)
{
    struct adapter a = {0};
    for (int i = 0; next(m, place, layer, dy.rows, &i, &a); a.among++) {
        struct tensor du = du_of(m, &a);
        TRY(linear_backward_input(m->kernels, du, tensor_columns(dy, a.column, a.count),
                                  model_matrix(m, a.in + 1), ACTIVATION_NONE, tensor_absent()));
        TRY(apply_factor(m, du));
        TRY(dx.data != NULL ? add_input_gradient(m, input, a.in, dx, du) : STATUS_OK);
    }
    return STATUS_OK;
}

/* Of A or B: where every rank has all of it, the sum over the ranks. */
static status add_gradient(struct model *m, bool fresh, int parameter, float *const *gradients,
                           struct tensor dy, struct tensor x)
{
    struct tensor gradient = model_gradient(m, parameter, gradients), sums = gradient;
    bool shared = m->parameters[parameter].replicated;
    TRY(shared ? model_adapter_sums_begin(m, fresh, &sums) : STATUS_OK);
    TRY(linear_backward_weight(m->kernels, sums, tensor_absent(), dy, x, fresh));
    return shared ? model_adapter_sums_end(m, gradient) : STATUS_OK;
}

status model_adapters_backward_weight(struct model *m, const struct model_input *input,
                                      int64_t layer, struct place place, float *const *gradients,
                                      struct tensor dy, struct tensor x)
{
    struct adapter a = {0};
    for (int i = 0; next(m, place, layer, dy.rows, &i, &a); a.among++) {
        struct tensor read = x;
        TRY(drop(m, input, a.in, &read));
        TRY(add_gradient(m, input->fresh, a.in, gradients, du_of(m, &a), read));
        TRY(add_gradient(m, input->fresh, a.in + 1, gradients,
                         tensor_columns(dy, a.column, a.count), a.u));
    }
    return STATUS_OK;
}
