/* The feed-forward network: y = act(x W1^T + b1) W2^T + b2. With a gate, the rows of W1 give gate
 * and up, and y = (act(gate) * up) W2^T + b2. Encoder-decoders may have dropout before
 * W2.
 *
 * A tensor-parallel rank has some of the inner features: rows of W1 and columns of W2. */
#include "trainer/model/sublayers.h"

/* Computes y = act(x W^T + b + adapters), and in `saved` the value that the backward pass of the
 * activation reads. */
static status project_and_activate(struct model *m, const struct model_input *input, int64_t layer,
                                   struct tensor y, struct tensor saved, struct tensor x,
                                   enum activation act)
{
    struct param_index index = model_param_index(m, layer, MODEL_FC);
    bool separate = act != ACTIVATION_NONE && model_has_adapter(m, index);
    TRY(model_linear_forward(m, input, layer, MODEL_FC, y, separate ? tensor_absent() : saved, x,
                             model_bias(m, index.bias), separate ? ACTIVATION_NONE : act));
    TRY(model_adapters_forward(m, input, layer, index, y, x));
    return separate ? activation_forward(m->kernels, y, saved, act) : STATUS_OK;
}

static status gate_forward(struct model *m, struct tensor inner, struct tensor gate_up)
{
    return m->architecture->feed_forward.gelu
               ? geglu_forward(m->kernels, inner, gate_up, m->config.activation)
               : swiglu_forward(m->kernels, inner, gate_up);
}

static status gate_backward(struct model *m, struct tensor d_gate_up, struct tensor d_inner,
                            struct tensor gate_up)
{
    return m->architecture->feed_forward.gelu
               ? geglu_backward(m->kernels, d_gate_up, d_inner, gate_up, m->config.activation)
               : swiglu_backward(m->kernels, d_gate_up, d_inner, gate_up);
}

/* Applies the dropout of the inner features to this rank's columns of them, or of their gradient.
 * It commutes with the factors of the backward pass of the activation. */
static status drop_inner(const struct model *m, const struct model_input *input, int64_t layer,
                         struct tensor x)
{
    struct param_index index = model_param_index(m, layer, MODEL_FC_PROJECTION);
    const struct model_parameter *p = &m->parameters[index.weight];
    struct dropout dropout = model_dropout(m, input, layer, DROPOUT_INNER);
    if (!(dropout.probability > 0)) {
        return STATUS_OK;
    }
    dropout.pitch = m->config.inner;
    dropout.first += p->shards[0].column;
    return dropout_apply(m->kernels, x, x, dropout);
}

/* Computes the activation from the GEMM's output in `saved_for_backward`. for_backward: also
 * replaces it by the value that the backward pass of the activation reads. */
static status apply_activation(struct model *m, int64_t layer, int64_t n, bool for_backward)
{
    struct layer_activations *a = &m->activations.layers[layer];
    struct tensor inner = model_view_rows(a->inner, n),
                  saved = model_view_rows(a->saved_for_backward, n);
    if (m->architecture->feed_forward.gated) {
        return gate_forward(m, inner, saved);
    }
    TRY(dropout_apply(m->kernels, inner, saved, (struct dropout){0})); /* a copy */
    return activation_forward(m->kernels, inner, for_backward ? saved : tensor_absent(),
                              m->config.activation);
}

status model_recompute_inner(struct model *m, const struct model_input *input, int64_t layer)
{
    TRY(apply_activation(m, layer, input->rows, true));
    return drop_inner(m, input, layer,
                      model_view_rows(m->activations.layers[layer].inner, input->rows));
}

status model_feed_forward_inner(struct model *m, const struct model_input *input, int64_t layer)
{
    int64_t n = input->rows;
    struct layer_activations *a = &m->activations.layers[layer];
    struct tensor norm, inner = model_view_rows(a->inner, n),
                        saved = model_view_rows(a->saved_for_backward, n);
    bool separate =
        m->architecture->feed_forward.gated || model_get_recompute(m, layer) == RECOMPUTE_SELECTIVE;
    TRY(model_all_gather(m, model_view_local_rows(m, a->norm2, n), n, &norm));
    if (separate) {
        TRY(project_and_activate(m, input, layer, saved, tensor_absent(), norm, ACTIVATION_NONE));
        TRY(apply_activation(m, layer, n, false));
    } else {
        TRY(project_and_activate(m, input, layer, inner, saved, norm, m->config.activation));
    }
    return drop_inner(m, input, layer, inner);
}

status model_feed_forward_backward(struct backward *b, int64_t layer, struct tensor delta)
{
    struct model *m = b->m;
    struct layer_activations *a = &m->activations.layers[layer];
    struct tensor d_inner = model_view_rows(m->activations.d_inner, b->n),
                  saved = model_view_rows(a->saved_for_backward, b->n), dy;
    bool gated = m->architecture->feed_forward.gated;
    TRY(model_all_gather(m, delta, b->n, &dy));
    TRY(model_project_backward(
        b, layer, MODEL_FC_PROJECTION, d_inner, dy, model_view_rows(a->inner, b->n),
        gated ? ACTIVATION_NONE : m->config.activation, gated ? tensor_absent() : saved));
    TRY(drop_inner(m, b->input, layer, d_inner));
    TRY(gated ? gate_backward(m, saved, d_inner, saved) : STATUS_OK);
    return model_input_matrix_backward(b, layer, MODEL_FC, true, gated ? saved : d_inner,
                                       model_view_local_rows(m, a->norm2, b->n));
}
