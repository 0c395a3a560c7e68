/* The feed-forward network, a sub-layer of every block. x [N, C] is the norm of the stream:
 *
 *   h = act(x W1^T + b1)                        [N, F]
 *   h = act(gate) * up, gate, up = x W1^T + b1  with a gate
 *   y = drop(h) W2^T + b2                       [N, C]
 *
 * drop is the dropout of the inner features, which some encoder-decoders have.
 *
 * Parameters  W1 [F, C] and b1; with a gate [2 F, C]: one matrix of the file, or two that are
 *             contiguous in memory; W2 [C, F] and b2
 * Split       a tensor-parallel rank has F/t of the inner features: rows of W1 and b1, columns of
 *             W2. Rank 0 adds b2
 * Memory      struct feed_forward_activations; backward needs d_inner, which all layers share.
 *             Selective recompute keeps the output of the first GEMM and computes h again
 *
 * Source    gate: Shazeer 2020, arXiv:2002.05202 */
#include "trainer/model/feed_forward_impl.h"

#include "trainer/model/layout_impl.h"
#include "trainer/model/sublayers.h"

/* ---- parameters ---- */

static void append_parameters(struct layout *layout)
{
    const struct architecture *a = layout->architecture;
    const struct model_config *c = layout->config;
    const struct architecture_names *names = layout->names;
    bool gated = a->feed_forward.gated, bias = a->feed_forward.bias || c->mlp_bias;
    const char *fc = gated || names->ungated_fc == NULL ? names->fc : names->ungated_fc;
    const struct input_matrix matrices[] = {{names->gate, c->inner, 1}, {fc, c->inner, 1}};
    int skipped = gated ? 0 : 1;
    layout_append_inputs(layout, MODEL_FC, names->gate_fc, matrices + skipped, 2 - skipped, bias);
    layout_append_projection(layout, MODEL_FC_PROJECTION, c->inner, bias, names->fc_projection);
}

/* ---- memory ---- */

static status arrange_kept(const struct arrangement *a, struct layer_activations *out)
{
    int64_t outputs = model_inner_outputs(a->config) / a->ranks;
    struct tensor *saved = &out->feed_forward.saved_for_backward;
    *saved = tensor_absent();
    return a->training || outputs > a->local.inner
               ? arena_take_tensor(a->arena, a->dtype, a->rows, outputs, saved)
               : STATUS_OK;
}

static status arrange_recomputed(const struct arrangement *a, struct layer_activations *out)
{
    return arena_take_tensor(a->arena, a->dtype, a->rows, a->local.inner, &out->feed_forward.inner);
}

/* The gradient of the attention's output uses the memory of d_inner if `exchange` is too narrow for
 * it (model_view_d_attended). */
static status arrange_gradients(const struct arrangement *a, struct activations *out)
{
    int64_t inner = a->local.inner, attended = a->local.width;
    bool widens = attended > a->config->width && attended > inner;
    struct tensor *d_inner = &out->d_inner;
    TRY(arena_take_tensor(a->arena, a->dtype, a->rows, widens ? attended : inner, d_inner));
    *d_inner = tensor_view(d_inner->data, a->dtype, a->rows, inner);
    return STATUS_OK;
}

/* ---- forward ---- */

static struct tensor view_norm(const struct model *m, int64_t layer, int64_t n)
{
    const struct layer_activations *a = &m->activations.layers[layer];
    return model_view_local_rows(m, a->sublayers[SUBLAYER_FEED_FORWARD].norm, n);
}

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
    const struct feed_forward_activations *a = &m->activations.layers[layer].feed_forward;
    struct tensor inner = model_view_rows(a->inner, n),
                  saved = model_view_rows(a->saved_for_backward, n);
    if (m->architecture->feed_forward.gated) {
        return gate_forward(m, inner, saved);
    }
    TRY(dropout_apply(m->kernels, inner, saved, (struct dropout){0})); /* a copy */
    return activation_forward(m->kernels, inner, for_backward ? saved : tensor_absent(),
                              m->config.activation);
}

static status run_forward(struct model *m, const struct model_input *input, int64_t layer,
                          struct tensor *interior)
{
    int64_t n = input->rows;
    const struct feed_forward_activations *a = &m->activations.layers[layer].feed_forward;
    struct tensor norm, inner = model_view_rows(a->inner, n),
                        saved = model_view_rows(a->saved_for_backward, n);
    bool separate =
        m->architecture->feed_forward.gated || model_get_recompute(m, layer) == RECOMPUTE_SELECTIVE;
    *interior = inner;
    TRY(model_all_gather(m, view_norm(m, layer, n), n, &norm));
    if (separate) {
        TRY(project_and_activate(m, input, layer, saved, tensor_absent(), norm, ACTIVATION_NONE));
        TRY(apply_activation(m, layer, n, false));
    } else {
        TRY(project_and_activate(m, input, layer, inner, saved, norm, m->config.activation));
    }
    return drop_inner(m, input, layer, inner);
}

/* Computes the inner features again from the GEMM's output in `saved_for_backward`. Then replaces
 * this output by the value that the backward pass of the activation reads. */
static status recompute_inner(struct model *m, const struct model_input *input, int64_t layer)
{
    struct tensor inner = m->activations.layers[layer].feed_forward.inner;
    TRY(apply_activation(m, layer, input->rows, true));
    return drop_inner(m, input, layer, model_view_rows(inner, input->rows));
}

/* ---- backward ---- */

static status run_backward(struct backward *b, int64_t layer, bool needs_dx, struct tensor delta)
{
    struct model *m = b->m;
    const struct feed_forward_activations *a = &m->activations.layers[layer].feed_forward;
    struct tensor d_inner = model_view_rows(m->activations.d_inner, b->n),
                  saved = model_view_rows(a->saved_for_backward, b->n), dy;
    bool gated = m->architecture->feed_forward.gated;
    TRY(model_all_gather(m, delta, b->n, &dy));
    TRY(model_project_backward(
        b, layer, MODEL_FC_PROJECTION, d_inner, dy, model_view_rows(a->inner, b->n),
        gated ? ACTIVATION_NONE : m->config.activation, gated ? tensor_absent() : saved));
    TRY(drop_inner(m, b->input, layer, d_inner));
    TRY(gated ? gate_backward(m, saved, d_inner, saved) : STATUS_OK);
    return model_input_matrix_backward(b, layer, MODEL_FC, needs_dx, gated ? saved : d_inner,
                                       view_norm(m, layer, b->n));
}

const struct sublayer_type model_feed_forward = {
    .norm = MODEL_NORM2,
    .output_norm = MODEL_FEED_FORWARD_NORM,
    .projection = MODEL_FC_PROJECTION,
    .dropout = DROPOUT_FC,
    .append_parameters = append_parameters,
    .arrange_kept = arrange_kept,
    .arrange_recomputed = arrange_recomputed,
    .arrange_gradients = arrange_gradients,
    .forward = run_forward,
    .recompute = recompute_inner,
    .backward = run_backward,
};

int64_t model_inner_outputs(const struct model_config *config)
{
    const struct architecture a = architecture_compose(config);
    return a.feed_forward.gated ? 2 * config->inner : config->inner;
}
