/* Low-rank adapters (LoRA): two small trained matrices A and B next to each frozen matrix W.
 *
 *   forward    u = s A drop(x),    y = W x + B u,    A [rank, in], B [out, rank]
 *              s = alpha / rank, or rank-stabilized s = alpha / sqrt(rank)
 *   backward   du = s B^T dy,   dB = dy u^T,   dA = du drop(x)^T,   dx += drop'(A^T du)
 *
 * B starts with zeros, so that the model is unchanged at first. Each of a set of fused matrices
 * (query, key and value) has a separate adapter, which writes its columns of the output.
 *
 * Tensor parallelism: if W is split by its outputs, B is split too and A is replicated. If W is
 * split by its inputs, A is split too and B is replicated; the reduction of y over the ranks
 * includes the adapters. Each rank computes a partial gradient of a replicated matrix. These
 * partial gradients are all-reduced (sharing.c).
 *
 * Names, defaults and initial values are the same as in the Hugging Face peft library.
 *
 * Source    Hu et al. 2021, arXiv:2106.09685; rank-stabilized: Kalajdzievski 2023, arXiv:2312.03732
 */
#include <math.h>

#include "trainer/model/sublayers.h"

/* Dropout sites of adapters are numbered from here, after all other sites of the model. */
static const uint64_t first_adapter_site = UINT64_C(1) << 32;

/* One adapter of a GEMM and its activations. */
struct adapter {
    int in_param;          /* index of parameter A; B is the next one */
    int64_t column, count; /* its columns of the GEMM's output */
    int slot;              /* its index among the adapters of the GEMM */
    uint64_t site;         /* of its dropout */
    struct tensor u;       /* [N, rank] s A drop(x) */
};

bool model_has_adapter(const struct model *m, struct param_index index)
{
    bool adapted = false;
    for (int i = 0; i < m->parameters[index.weight].fused_count; i++) {
        adapted = adapted || m->parameters[index.weight + i].adapter > 0;
    }
    return adapted;
}

/* Finds the next adapter of a GEMM from fused parameter *i on; false if there is none. */
static bool next_adapter(const struct model *m, struct param_index index, int64_t layer, int64_t n,
                         int *i, struct adapter *a)
{
    int fused = m->parameters[index.weight].fused_count;
    for (; *i < fused; ++*i) {
        const struct model_parameter *p = &m->parameters[index.weight + *i];
        a->column += a->count;
        a->count = p->rows;
        if (p->adapter > 0) {
            int64_t rank = m->config.adapter.rank, first = rank * p->adapter_index;
            struct tensor all = m->activations.layers[layer].adapter_hidden;
            int64_t pass = m->architecture->shared_layers ? layer : 0;
            a->in_param = p->adapter;
            a->site = first_adapter_site + (uint64_t)(pass * m->parameter_count + p->adapter);
            a->u = tensor_columns(tensor_rows(all, 0, n), first, rank);
            ++*i;
            return true;
        }
    }
    return false;
}

float model_adapter_scale(const struct model_adapter *adapter)
{
    float rank = (float)adapter->rank;
    return adapter->alpha / (adapter->rank_stabilized ? sqrtf(rank) : rank);
}

static status apply_scale(const struct model *m, struct tensor u)
{
    float s = model_adapter_scale(&m->config.adapter);
    return s == 1.0f ? STATUS_OK : op_scale(m->kernels, u, s);
}

/* Describes the dropout of an adapter's input. The random index is the position in the whole input,
 * because this rank may hold only some of its columns. */
static struct dropout compute_dropout(const struct model *m, const struct model_input *input,
                                      const struct adapter *a)
{
    const struct model_parameter *p = &m->parameters[a->in_param];
    if (!input->training || !(m->config.adapter.dropout > 0)) {
        return (struct dropout){0};
    }
    return (struct dropout){
        .probability = m->config.adapter.dropout,
        .key = random_key(input->seed, RANDOM_DROPOUT, (uint64_t)input->step, a->site),
        .first = input->first_row * p->whole_columns + p->shards[0].column,
        .pitch = p->whole_columns,
    };
}

/* Replaces *x by the adapter's input after dropout. */
static status apply_adapter_dropout(struct model *m, const struct model_input *input,
                                    const struct adapter *a, struct tensor *x)
{
    struct dropout dropout = compute_dropout(m, input, a);
    if (!(dropout.probability > 0)) {
        return STATUS_OK;
    }
    struct tensor output =
        tensor_view(m->activations.adapter_input.data, x->dtype, x->rows, x->columns);
    TRY(dropout_apply(m->kernels, output, *x, dropout));
    *x = output;
    return STATUS_OK;
}

status model_adapters_forward(struct model *m, const struct model_input *input, int64_t layer,
                              struct param_index index, struct tensor y, struct tensor x)
{
    struct adapter a = {0};
    for (int i = 0; next_adapter(m, index, layer, x.rows, &i, &a);) {
        struct tensor dropped = x;
        TRY(apply_adapter_dropout(m, input, &a, &dropped));
        TRY(linear_forward(m->kernels, a.u, tensor_absent(), dropped, model_matrix(m, a.in_param),
                           tensor_absent(), ACTIVATION_NONE));
        TRY(apply_scale(m, a.u));
        TRY(linear_add(m->kernels, tensor_columns(y, a.column, a.count), a.u,
                       model_matrix(m, a.in_param + 1), false));
    }
    return STATUS_OK;
}

/* ---- backward ---- */

static struct tensor view_du(const struct model *m, const struct adapter *a)
{
    int64_t rank = m->config.adapter.rank;
    return tensor_columns(tensor_rows(m->activations.d_adapter_hidden, 0, a->u.rows),
                          rank * a->slot, rank);
}

static status add_input_gradient(struct model *m, const struct model_input *input,
                                 const struct adapter *a, struct tensor dx, struct tensor du)
{
    struct dropout dropout = compute_dropout(m, input, a);
    struct tensor matrix = model_matrix(m, a->in_param), none = tensor_absent();
    if (!(dropout.probability > 0)) {
        return linear_add(m->kernels, dx, du, matrix, true);
    }
    struct tensor delta =
        tensor_view(m->activations.adapter_input.data, dx.dtype, dx.rows, dx.columns);
    TRY(linear_backward_input(m->kernels, delta, (struct bias_gradient){0}, du, matrix,
                              ACTIVATION_NONE, none));
    TRY(dropout_apply(m->kernels, delta, delta, dropout));
    return residual_norm_forward(m->kernels, dx, none, none, dx, delta, none, none, NORM_RMS, 0,
                                 (struct dropout){0});
}

status model_adapters_backward_input(struct model *m, const struct model_input *input,
                                     int64_t layer, struct param_index index, struct tensor dx,
                                     struct tensor dy)
{
    struct adapter a = {0};
    for (int i = 0; next_adapter(m, index, layer, dy.rows, &i, &a); a.slot++) {
        struct tensor du = view_du(m, &a);
        TRY(linear_backward_input(
            m->kernels, du, (struct bias_gradient){0}, tensor_columns(dy, a.column, a.count),
            model_matrix(m, a.in_param + 1), ACTIVATION_NONE, tensor_absent()));
        TRY(apply_scale(m, du));
        TRY(dx.data != NULL ? add_input_gradient(m, input, &a, dx, du) : STATUS_OK);
    }
    return STATUS_OK;
}

/* Computes the gradient of A or B; for a replicated matrix, sum it over the ranks. */
static status add_gradient(struct model *m, const struct model_input *input, int parameter,
                           float *const *gradients, struct tensor dy, struct tensor x)
{
    bool sets = model_sets_gradients(m, input);
    struct tensor gradient = model_gradient(m, parameter, gradients), target = gradient;
    bool is_replicated = m->parameters[parameter].replicated;
    TRY(is_replicated ? model_adapter_reduce_begin(m, sets, &target) : STATUS_OK);
    TRY(linear_backward_weight(m->kernels, target, tensor_absent(), dy, x, sets));
    return is_replicated ? model_adapter_reduce_end(m, gradient) : STATUS_OK;
}

status model_adapters_backward_weight(struct model *m, const struct model_input *input,
                                      int64_t layer, struct param_index index,
                                      float *const *gradients, struct tensor dy, struct tensor x)
{
    struct adapter a = {0};
    for (int i = 0; next_adapter(m, index, layer, dy.rows, &i, &a); a.slot++) {
        struct tensor dropped = x;
        TRY(apply_adapter_dropout(m, input, &a, &dropped));
        TRY(add_gradient(m, input, a.in_param, gradients, view_du(m, &a), dropped));
        TRY(add_gradient(m, input, a.in_param + 1, gradients, tensor_columns(dy, a.column, a.count),
                         a.u));
    }
    return STATUS_OK;
}
