/* The layers of the heads before their last matrices.
 *
 * ---- BERT's pre-training heads: masked language modeling and next-sentence prediction ----
 *
 *   masked rows:  h = norm(act(W x + b));  logits h E^T + c with the token table E. W maps to the
 *                 columns of E. Without a transform (transformer_encoder), h = x
 *   first rows:   p = tanh(P x + q);       logits p L^T + l of two labels
 *
 * The objective computes the logits. Only the masked rows go through W. Each tensor-parallel rank
 * holds all of W, P and L and computes the same values. E is split: backward reduces the gradient
 * of h over the ranks first.
 *
 * Source    Devlin et al. 2018, arXiv:1810.04805
 *
 * ---- fine-tuning heads ----
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

/* ---- BERT's pre-training heads ---- */

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

/* Computes the dense layer and the norm before the vocabulary matrix. */
static status transform_forward(struct model *m, const struct model_input *input,
                                struct tensor *out)
{
    struct head_activations *a = &m->activations.head;
    struct param_index dense = m->param_index[MODEL_TRANSFORM],
                       norm = m->param_index[MODEL_TRANSFORM_NORM];
    struct tensor y = select_outputs(input, a->dense);
    TRY(linear_forward(m->kernels, y, select_outputs(input, a->saved_for_backward), *out,
                       model_matrix(m, dense.weight), model_bias(m, dense.bias),
                       m->config.activation));
    *out = select_outputs(input, a->norm);
    return residual_norm_forward(
        m->kernels, tensor_absent(), *out, select_outputs(input, a->statistics), y, tensor_absent(),
        model_vector(m, norm.weight), model_vector(m, norm.bias), m->architecture->norm.kind,
        m->config.norm_epsilon, (struct dropout){0});
}

status model_bert_heads_forward(struct model *m, const struct model_input *input,
                                struct tensor hidden, struct tensor *out)
{
    REQUIRE(!m->architecture->attention.causal && input->outputs <= m->config.output_rows,
            STATUS_INTERNAL,
            "%s: a micro-batch has %" PRId64 " masked rows; %" PRId64 " are planned",
            m->architecture->name, input->outputs, m->config.output_rows);
    if (m->config.next_sentence) {
        TRY(pool_examples(m, input, hidden));
    }
    *out = select_outputs(input, m->activations.head.rows);
    TRY(op_gather_rows(m->kernels, *out, hidden, input->output_rows));
    return m->architecture->head.transform ? transform_forward(m, input, out) : STATUS_OK;
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

/* Computes the gradients of a dense layer. dy [M, W] is the gradient before its activation, and
 * dx [M, C] the gradient of its input x [M, C]. dx may alias x. */
static status run_dense_backward(struct model *m, const struct model_input *input,
                                 float *const *gradients, struct param_index index,
                                 struct tensor dx, struct tensor dy, struct tensor x)
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
    return run_dense_backward(m, input, gradients, m->param_index[MODEL_TRANSFORM], rows, dy, rows);
}

static status pool_backward(struct model *m, const struct model_input *input,
                            float *const *gradients)
{
    struct head_activations *a = &m->activations.head;
    struct tensor dy = select_examples(input, a->d_pooled);
    TRY(activation_backward(m->kernels, dy, dy, select_examples(input, a->pooled_saved),
                            ACTIVATION_TANH));
    return run_dense_backward(m, input, gradients, m->param_index[MODEL_POOLER],
                              select_examples(input, a->pooled), dy,
                              select_examples(input, a->first_rows));
}

status model_bert_heads_backward(struct model *m, const struct model_input *input,
                                 float *const *gradients)
{
    struct head_activations *a = &m->activations.head;
    struct tensor all = tensor_rows(m->activations.exchange, 0, input->rows);
    struct tensor rows = select_outputs(input, a->rows);
    TRY(model_all_reduce(m, input->outputs, model_embedding_width(&m->config)));
    TRY(m->architecture->head.transform
            ? transform_backward(m, input, gradients)
            : op_copy(m->kernels, rows, model_view_exchange(m, input->outputs, rows.columns)));
    TRY(op_scatter_rows(m->kernels, all, rows, input->output_rows, true));
    if (!m->config.next_sentence) {
        return STATUS_OK;
    }
    TRY(pool_backward(m, input, gradients));
    return op_scatter_rows(m->kernels, all, select_examples(input, a->pooled), input->cu_rows,
                           false);
}

/* ---- fine-tuning heads ---- */

static bool has_norm(const struct model *m)
{
    return m->param_index[MODEL_TRANSFORM_NORM].weight != PARAM_NONE;
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

/* Applies dropout at a site with a number after the sites of the last layer. Rows are counted among
 * the rows that the head reads. */
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

/* Replaces the gradient of the norm's output by the gradient of its input. */
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
        TRY(run_dense_backward(m, input, gradients, get_dense(m), dx, dy,
                               select_outputs(input, a->rows)));
    }
    TRY(has_input_dropout(m) ? apply_dropout(m, input, DROPOUT_PROJECTION, dx) : STATUS_OK);
    return op_scatter_rows(m->kernels, all, dx, input->output_rows, true);
}
