/* Matrices that read or write the residual stream, with their adapters. Each sub-layer begins with
 * one that reads it and ends with one that writes it. */
#include "trainer/model/sublayers.h"

/* Computes y = x w^T + b into `exchange`, reduced over the ranks' columns of x and w. Rank 0 adds
 * the bias. */
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
                                  b->input->first_micro_batch);
}

/* Computes the gradients of an output projection: those of its weights from dy and x, and dx for
 * this rank's columns of x, before the activation that made x. */
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

/* Computes the gradients of a matrix that reads the stream. needs_dx: also compute the gradient of
 * the norm's output x into `exchange`. Its reduction over the ranks overlaps with the GEMM for the
 * weight gradient. */
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
