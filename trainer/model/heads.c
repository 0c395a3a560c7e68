/* BERT's heads: which token stood at a masked row, and whether the second segment follows the first.
 *
 *   masked rows:  h = norm(act(W x + b));  the objective makes logits h E^T + c with the token table E
 *   first rows:   p = tanh(P x + q);       and logits p L^T + l of two labels
 *
 * Only the masked rows are computed. Tensor-parallel ranks have all of W, P and L and do the same with them; what
 * comes back through their parts of E is added up before it goes on.
 *
 * Source    Devlin et al. 2018, arXiv:1810.04805 */
#include "trainer/model/model_impl.h"

static struct tensor outputs(const struct model_input *input, struct tensor t)
{
    return tensor_rows(t, 0, input->outputs);
}

static struct tensor examples(const struct model_input *input, struct tensor t)
{
    return tensor_rows(t, 0, input->segments);
}

/* Each segment's first row is its example's. */
static status pool(struct model *m, const struct model_input *input, struct tensor hidden)
{
    struct head_activations *a = &m->activations.head;
    struct place pooler = m->places[MODEL_POOLER];
    struct tensor first = examples(input, a->first);
    REQUIRE(input->segments <= m->config.examples, STATUS_INTERNAL,
            "%lld examples, %lld are planned", (long long)input->segments,
            (long long)m->config.examples);
    TRY(gather_rows(m->kernels, first, hidden, input->cu_rows));
    return linear_forward(m->kernels, examples(input, a->pooled), examples(input, a->pooled_kept),
                          first, model_matrix(m, pooler.weight), model_vector(m, pooler.bias),
                          ACTIVATION_TANH);
}

status model_heads_forward(struct model *m, const struct model_input *input, struct tensor hidden,
                           struct tensor *out)
{
    struct head_activations *a = &m->activations.head;
    struct place dense = m->places[MODEL_TRANSFORM], norm = m->places[MODEL_TRANSFORM_NORM];
    REQUIRE(m->architecture->transform && input->outputs <= m->config.output_rows, STATUS_INTERNAL,
            "%s with %lld masked rows, %lld are planned", m->architecture->name,
            (long long)input->outputs, (long long)m->config.output_rows);
    if (m->config.next_sentence) {
        TRY(pool(m, input, hidden));
    }
    struct tensor rows = outputs(input, a->rows), y = outputs(input, a->dense);
    TRY(gather_rows(m->kernels, rows, hidden, input->output_rows));
    TRY(linear_forward(m->kernels, y, outputs(input, a->kept), rows, model_matrix(m, dense.weight),
                       model_vector(m, dense.bias), m->config.activation));
    *out = outputs(input, a->norm);
    return residual_norm_forward(m->kernels, tensor_absent(), *out, outputs(input, a->statistics),
                                 y, tensor_absent(), model_vector(m, norm.weight),
                                 model_vector(m, norm.bias), NORM_LAYER, m->config.norm_epsilon,
                                 (struct dropout){0});
}

struct model_labels model_labels_of(const struct model *m, const struct model_input *input,
                                    float *const *gradients)
{
    const struct head_activations *a = &m->activations.head;
    struct place labels = m->places[MODEL_LABELS];
    struct model_labels out = {0};
    if (labels.weight < 0 || input->output_rows == NULL) {
        return out;
    }
    bool texts = m->config.task == MODEL_WORDS; /* a task's rows are what model_forward gives */
    out.hidden = texts ? examples(input, a->pooled) : tensor_absent();
    out.weight = model_matrix(m, labels.weight);
    out.bias = model_vector(m, labels.bias);
    if (gradients != NULL) {
        out.hidden_gradient = texts ? examples(input, a->d_pooled) : tensor_absent();
        out.weight_gradient = model_gradient(m, labels.weight, gradients);
        out.bias_gradient = model_gradient(m, labels.bias, gradients);
    }
    return out;
}

/* ---- backward ---- */

status model_dense_backward(struct model *m, const struct model_input *input,
                            float *const *gradients, struct place place, struct tensor dx,
                            struct tensor dy, struct tensor x)
{
    TRY(linear_backward_weight(m->kernels, model_gradient(m, place.weight, gradients),
                               model_gradient(m, place.bias, gradients), dy, x, input->fresh));
    return linear_backward_input(m->kernels, dx, dy, model_matrix(m, place.weight), ACTIVATION_NONE,
                                 tensor_absent());
}

static status transform_backward(struct model *m, const struct model_input *input,
                                 float *const *gradients)
{
    struct head_activations *a = &m->activations.head;
    struct place norm = m->places[MODEL_TRANSFORM_NORM];
    struct tensor y = outputs(input, a->dense), dy = outputs(input, a->d_dense);
    struct tensor dgamma, dbeta;
    model_norm_gradients(m, norm, gradients, &dgamma, &dbeta);
    TRY(residual_norm_backward(m->kernels, dy, tensor_absent(), dgamma, dbeta,
                               outputs(input, m->activations.exchange), y,
                               outputs(input, a->statistics), model_vector(m, norm.weight),
                               NORM_LAYER, NORM_STREAM_NOTHING, (struct dropout){0}));
    TRY(activation_backward(m->kernels, dy, dy, outputs(input, a->kept), m->config.activation));
    return model_dense_backward(m, input, gradients, m->places[MODEL_TRANSFORM], y, dy,
                                outputs(input, a->rows));
}

static status pool_backward(struct model *m, const struct model_input *input,
                            float *const *gradients)
{
    struct head_activations *a = &m->activations.head;
    struct tensor dy = examples(input, a->d_pooled);
    TRY(activation_backward(m->kernels, dy, dy, examples(input, a->pooled_kept), ACTIVATION_TANH));
    return model_dense_backward(m, input, gradients, m->places[MODEL_POOLER],
                                examples(input, a->pooled), dy, examples(input, a->first));
}

status model_heads_backward(struct model *m, const struct model_input *input,
                            float *const *gradients)
{
    struct head_activations *a = &m->activations.head;
    struct tensor all = tensor_rows(m->activations.exchange, 0, input->rows);
    TRY(model_add_up_all(m, input->outputs));
    TRY(transform_backward(m, input, gradients));
    TRY(scatter_rows(m->kernels, all, outputs(input, a->dense), input->output_rows, true));
    if (!m->config.next_sentence) {
        return STATUS_OK;
    }
    TRY(pool_backward(m, input, gradients));
    return scatter_rows(m->kernels, all, examples(input, a->pooled), input->cu_rows, false);
}
