/* GEMMs of a sub-layer and their adapters. Each sub-layer begins with a matrix that reads the
 * residual stream, and ends with an output projection that writes to it. */
#include "trainer/model/sublayers.h"

status model_project_output(struct model *m, const struct model_input *input, int64_t layer,
                            struct param_index index, struct tensor x)
{
    struct tensor y = model_view_rows(m->activations.exchange, x.rows);
    TRY(linear_forward(m->kernels, y, tensor_absent(), x, model_matrix(m, index.weight),
                       m->rank == 0 ? model_vector(m, index.bias) : tensor_absent(),
                       ACTIVATION_NONE));
    TRY(model_adapters_forward(m, input, layer, index, y, x));
    return model_reduce(m, x.rows);
}

static status weight_backward(struct backward *b, struct param_index index, struct tensor dy,
                              struct tensor x)
{
    struct model *m = b->m;
    return linear_backward_weight(m->kernels, model_gradient(m, index.weight, b->gradients),
                                  model_gradient(m, index.bias, b->gradients), dy, x,
                                  model_sets_gradients(m, b->input));
}

status model_project_backward(struct backward *b, int64_t layer, enum model_role role,
                              struct tensor dx, struct tensor dy, struct tensor x,
                              enum activation act, struct tensor saved)
{
    struct model *m = b->m;
    struct param_index index = model_param_index(m, layer, role);
    struct tensor matrix = model_matrix(m, index.weight);
    TRY(weight_backward(b, index, dy, x));
    if (!model_has_adapter(m, index)) {
        return linear_backward_input(m->kernels, dx, dy, matrix, act, saved);
    }
    TRY(linear_backward_input(m->kernels, dx, dy, matrix, ACTIVATION_NONE, tensor_absent()));
    TRY(model_adapters_backward_input(m, b->input, layer, index, dx, dy));
    TRY(model_adapters_backward_weight(m, b->input, layer, index, b->gradients, dy, x));
    return act == ACTIVATION_NONE ? STATUS_OK : activation_backward(m->kernels, dx, dx, saved, act);
}

status model_input_matrix_backward(struct backward *b, int64_t layer, enum model_role role,
                                   bool needs_dx, struct tensor dy, struct tensor x)
{
    struct model *m = b->m;
    struct param_index index = model_param_index(m, layer, role);
    struct tensor gathered,
        dx = needs_dx ? model_view_rows(m->activations.exchange, b->n) : tensor_absent();
    TRY(model_all_gather_start(m, x, b->n, &gathered));
    TRY(needs_dx ? linear_backward_input(m->kernels, dx, dy, model_matrix(m, index.weight),
                                         ACTIVATION_NONE, tensor_absent())
                 : STATUS_OK);
    TRY(model_adapters_backward_input(m, b->input, layer, index, dx, dy));
    TRY(model_all_gather_wait(m));
    TRY(needs_dx ? model_reduce_start(m, b->n) : STATUS_OK);
    TRY(weight_backward(b, index, dy, gathered));
    TRY(model_adapters_backward_weight(m, b->input, layer, index, b->gradients, dy, gathered));
    return needs_dx ? model_reduce_wait(m, b->n) : STATUS_OK;
}
