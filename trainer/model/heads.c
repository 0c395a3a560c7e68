/* BERT's pre-training heads: masked language modelling and next-sentence prediction.
 *
 *   masked rows:  h = norm(act(W x + b));  logits h E^T + c with the token table E. W maps to the
 *                 columns of E
 *   first rows:   p = tanh(P x + q);       logits p L^T + l of two labels
 *
 * The objective computes the logits. Only the masked rows go through W. Each tensor-parallel rank
 * holds all of W, P and L and computes the same values. E is split: backward reduces the gradient
 * of h over the ranks first.
 *
 * Source    Devlin et al. 2018, arXiv:1810.04805 */
#include <inttypes.h>

#include "trainer/model/model_impl.h"

static struct tensor select_outputs(const struct model_input *input, struct tensor t)
{
    return tensor_rows(t, 0, input->outputs);
}

static struct tensor select_examples(const struct model_input *input, struct tensor t)
{
    return tensor_rows(t, 0, input->segments);
}

/* Runs the pooler on the first row of each segment. A segment is one example. */
static status pool_examples(struct model *m, const struct model_input *input, struct tensor hidden)
{
    struct head_activations *a = &m->activations.head;
    struct param_index pooler = m->param_index[MODEL_POOLER];
    struct tensor first = select_examples(input, a->first_rows);
    REQUIRE(input->segments <= m->config.examples, STATUS_INTERNAL,
            "a micro-batch has %" PRId64 " examples; %" PRId64 " are planned", input->segments,
            m->config.examples);
    TRY(op_gather_rows(m->kernels, first, hidden, input->cu_rows));
    return linear_forward(
        m->kernels, select_examples(input, a->pooled), select_examples(input, a->pooled_saved),
        first, model_matrix(m, pooler.weight), model_bias(m, pooler.bias), ACTIVATION_TANH);
}

status model_bert_heads_forward(struct model *m, const struct model_input *input,
                                struct tensor hidden, struct tensor *out)
{
    struct head_activations *a = &m->activations.head;
    struct param_index dense = m->param_index[MODEL_TRANSFORM],
                       norm = m->param_index[MODEL_TRANSFORM_NORM];
    REQUIRE(m->architecture->head.transform && input->outputs <= m->config.output_rows,
            STATUS_INTERNAL,
            "%s: a micro-batch has %" PRId64 " masked rows; %" PRId64 " are planned",
            m->architecture->name, input->outputs, m->config.output_rows);
    if (m->config.next_sentence) {
        TRY(pool_examples(m, input, hidden));
    }
    struct tensor rows = select_outputs(input, a->rows), y = select_outputs(input, a->dense);
    TRY(op_gather_rows(m->kernels, rows, hidden, input->output_rows));
    TRY(linear_forward(m->kernels, y, select_outputs(input, a->saved_for_backward), rows,
                       model_matrix(m, dense.weight), model_bias(m, dense.bias),
                       m->config.activation));
    *out = select_outputs(input, a->norm);
    return residual_norm_forward(
        m->kernels, tensor_absent(), *out, select_outputs(input, a->statistics), y, tensor_absent(),
        model_vector(m, norm.weight), model_vector(m, norm.bias), m->architecture->norm.kind,
        m->config.norm_epsilon, (struct dropout){0});
}

struct model_label_head model_get_label_head(const struct model *m, const struct model_input *input,
                                             float *const *gradients)
{
    const struct head_activations *a = &m->activations.head;
    struct param_index labels = m->param_index[MODEL_LABELS];
    struct model_label_head out = {0};
    if (labels.weight < 0 || input->output_rows == NULL) {
        return out;
    }
    /* a fine-tuning head reads model_forward's output */
    bool pooled = m->config.head == MODEL_HEAD_LM;
    out.hidden = pooled ? select_examples(input, a->pooled) : tensor_absent();
    out.weight = model_matrix(m, labels.weight);
    out.bias = model_vector(m, labels.bias);
    if (gradients != NULL) {
        out.hidden_gradient = pooled ? select_examples(input, a->d_pooled) : tensor_absent();
        out.weight_gradient = model_gradient(m, labels.weight, gradients);
        out.bias_gradient = model_gradient(m, labels.bias, gradients);
    }
    return out;
}

/* ---- backward ---- */

status model_dense_backward(struct model *m, const struct model_input *input,
                            float *const *gradients, struct param_index index, struct tensor dx,
                            struct tensor dy, struct tensor x)
{
    TRY(linear_backward_weight(m->kernels, model_gradient(m, index.weight, gradients),
                               model_gradient(m, index.bias, gradients), dy, x,
                               input->first_micro_batch));
    return linear_backward_input(m->kernels, dx, (struct bias_gradient){0}, dy,
                                 model_matrix(m, index.weight), ACTIVATION_NONE, tensor_absent());
}

static status transform_backward(struct model *m, const struct model_input *input,
                                 float *const *gradients)
{
    struct head_activations *a = &m->activations.head;
    struct param_index norm = m->param_index[MODEL_TRANSFORM_NORM];
    struct tensor y = select_outputs(input, a->dense), dy = select_outputs(input, a->d_dense);
    struct tensor dgamma, dbeta;
    model_norm_gradients(m, norm, gradients, &dgamma, &dbeta);
    TRY(residual_norm_backward(
        m->kernels, dy, tensor_absent(), dgamma, dbeta, (struct bias_gradient){0},
        model_view_exchange(m, input->outputs, y.columns), y, select_outputs(input, a->statistics),
        model_vector(m, norm.weight), m->architecture->norm.kind, NORM_RESIDUAL_NONE,
        (struct dropout){0}));
    TRY(activation_backward(m->kernels, dy, dy, select_outputs(input, a->saved_for_backward),
                            m->config.activation));
    struct tensor rows = select_outputs(input, a->rows);
    return model_dense_backward(m, input, gradients, m->param_index[MODEL_TRANSFORM], rows, dy,
                                rows);
}

static status pool_backward(struct model *m, const struct model_input *input,
                            float *const *gradients)
{
    struct head_activations *a = &m->activations.head;
    struct tensor dy = select_examples(input, a->d_pooled);
    TRY(activation_backward(m->kernels, dy, dy, select_examples(input, a->pooled_saved),
                            ACTIVATION_TANH));
    return model_dense_backward(m, input, gradients, m->param_index[MODEL_POOLER],
                                select_examples(input, a->pooled), dy,
                                select_examples(input, a->first_rows));
}

status model_bert_heads_backward(struct model *m, const struct model_input *input,
                                 float *const *gradients)
{
    struct head_activations *a = &m->activations.head;
    struct tensor all = tensor_rows(m->activations.exchange, 0, input->rows);
    TRY(model_all_reduce(m, input->outputs, model_embedding_width(&m->config)));
    TRY(transform_backward(m, input, gradients));
    TRY(op_scatter_rows(m->kernels, all, select_outputs(input, a->rows), input->output_rows, true));
    if (!m->config.next_sentence) {
        return STATUS_OK;
    }
    TRY(pool_backward(m, input, gradients));
    return op_scatter_rows(m->kernels, all, select_examples(input, a->pooled), input->cu_rows,
                           false);
}
