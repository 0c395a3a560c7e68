/* The layers of a fine-tuning head before its last matrix.
 *
 * The head selects rows of the final norm's output. Encoders apply a dense layer for sequence
 * labels. Dropout is applied at the sites of the transformers library. The objective applies the
 * last matrix W.
 *
 *   MODEL_HEAD_...
 *   SEQUENCE,         BERT      h = drop(tanh(P x + q)),                    logits W h + b
 *   MULTIPLE_CHOICE   RoBERTa   SEQUENCE: h = drop(tanh(D drop(x) + d)); else as BERT
 *                     DistilBERT  as BERT, with ReLU instead of tanh
 *                     decoders  h = x, the sequence's last row,             logits W h
 *   TOKEN             h = drop(x),                                          logits W h + b
 *   QA, NONE          h = x; DistilBERT, QA: h = drop(x)
 *
 * With ModernBERT, h = drop(norm(act(P x))) in all of them but NONE.
 *
 * Each tensor-parallel rank holds the whole head and computes the same values.
 *
 * Source    transformers' BertForSequenceClassification, RobertaClassificationHead,
 *           GPT2ForSequenceClassification, ... */
#include <inttypes.h>

#include "trainer/model/model_impl.h"

static struct tensor select_outputs(const struct model_input *input, struct tensor t)
{
    return tensor_rows(t, 0, input->outputs);
}

static bool has_norm(const struct model *m)
{
    return m->param_index[MODEL_TRANSFORM_NORM].weight >= 0;
}

static struct param_index get_dense(const struct model *m)
{
    return m->param_index[has_norm(m) ? MODEL_TRANSFORM : MODEL_POOLER];
}

static bool has_dense(const struct model *m)
{
    return get_dense(m).weight >= 0;
}

/* Returns whether there is dropout on the input of the dense layer. */
static bool has_input_dropout(const struct model *m)
{
    return has_dense(m) && m->config.head == MODEL_HEAD_SEQUENCE &&
           m->architecture->head.separate_dense;
}

/* Returns whether there is dropout on the output. */
static bool has_output_dropout(const struct model *m)
{
    return has_dense(m) || m->config.head == MODEL_HEAD_TOKEN ||
           (m->config.head == MODEL_HEAD_QA && m->architecture->head.answer_dropout);
}

static enum activation get_dense_activation(const struct model *m)
{
    return has_norm(m)                        ? m->config.activation
           : m->architecture->head.relu_dense ? ACTIVATION_RELU
                                              : ACTIVATION_TANH;
}

/* Applies dropout at a site numbered after those of the last layer. Rows are counted among the rows
 * that the head reads. */
static status apply_dropout(struct model *m, const struct model_input *input,
                            enum dropout_site site, struct tensor x)
{
    struct dropout dropout = model_dropout(m, input, m->config.layers, site);
    dropout.first = input->first_output * m->config.width;
    return dropout.probability > 0 ? dropout_apply(m->kernels, x, x, dropout) : STATUS_OK;
}

/* Applies the norm after the dense layer. *out becomes its output. */
static status apply_norm(struct model *m, const struct model_input *input, struct tensor *out)
{
    struct head_activations *a = &m->activations.head;
    struct param_index norm = m->param_index[MODEL_TRANSFORM_NORM];
    struct tensor x = *out;
    *out = select_outputs(input, a->norm);
    return residual_norm_forward(
        m->kernels, tensor_absent(), *out, select_outputs(input, a->statistics), x, tensor_absent(),
        model_vector(m, norm.weight), model_vector(m, norm.bias), m->architecture->norm.kind,
        m->config.norm_epsilon, (struct dropout){0});
}

/* Replaces the gradient of the norm's output by that of its input. */
static status norm_backward(struct model *m, const struct model_input *input,
                            float *const *gradients, struct tensor dy)
{
    struct head_activations *a = &m->activations.head;
    struct param_index norm = m->param_index[MODEL_TRANSFORM_NORM];
    struct tensor dgamma, dbeta;
    model_norm_gradients(m, norm, gradients, &dgamma, &dbeta);
    return residual_norm_backward(m->kernels, dy, tensor_absent(), dgamma, dbeta,
                                  (struct bias_gradient){0}, dy, select_outputs(input, a->dense),
                                  select_outputs(input, a->statistics),
                                  model_vector(m, norm.weight), m->architecture->norm.kind,
                                  NORM_RESIDUAL_NONE, (struct dropout){0});
}

status model_task_head_forward(struct model *m, const struct model_input *input,
                               struct tensor hidden, struct tensor *out)
{
    struct head_activations *a = &m->activations.head;
    struct param_index dense = get_dense(m);
    REQUIRE(input->outputs <= m->config.output_rows, STATUS_INTERNAL,
            "a micro-batch has %" PRId64 " rows for the fine-tuning head; %" PRId64 " are planned",
            input->outputs, m->config.output_rows);
    *out = select_outputs(input, a->rows);
    TRY(op_gather_rows(m->kernels, *out, hidden, input->output_rows));
    TRY(has_input_dropout(m) ? apply_dropout(m, input, DROPOUT_PROJECTION, *out) : STATUS_OK);
    if (has_dense(m)) {
        struct tensor rows = *out;
        *out = select_outputs(input, a->dense);
        TRY(linear_forward(m->kernels, *out, select_outputs(input, a->saved_for_backward), rows,
                           model_matrix(m, dense.weight), model_bias(m, dense.bias),
                           get_dense_activation(m)));
        TRY(has_norm(m) ? apply_norm(m, input, out) : STATUS_OK);
    }
    return has_output_dropout(m) ? apply_dropout(m, input, DROPOUT_FC, *out) : STATUS_OK;
}

status model_task_head_backward(struct model *m, const struct model_input *input,
                                float *const *gradients)
{
    struct head_activations *a = &m->activations.head;
    struct tensor all = tensor_rows(m->activations.exchange, 0, input->rows);
    struct tensor dy = select_outputs(input, a->d_dense), dx = dy;
    TRY(has_output_dropout(m) ? apply_dropout(m, input, DROPOUT_FC, dy) : STATUS_OK);
    if (has_dense(m)) {
        TRY(has_norm(m) ? norm_backward(m, input, gradients, dy) : STATUS_OK);
        dx = select_outputs(input, a->dense);
        TRY(activation_backward(m->kernels, dy, dy, select_outputs(input, a->saved_for_backward),
                                get_dense_activation(m)));
        TRY(model_dense_backward(m, input, gradients, get_dense(m), dx, dy,
                                 select_outputs(input, a->rows)));
    }
    TRY(has_input_dropout(m) ? apply_dropout(m, input, DROPOUT_PROJECTION, dx) : STATUS_OK);
    return op_scatter_rows(m->kernels, all, dx, input->output_rows, true);
}
