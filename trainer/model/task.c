/* The head of a fine-tuning task: some rows behind the last norm, in encoders a dense layer for whole texts, and dropout
 * where transformers has it. The task's own small matrix behind it is the objective's to use.
 *
 *   texts, choices   BERT      h = drop(tanh(P x + q)),              logits W h + b
 *                    RoBERTa   h = drop(tanh(D drop(x) + d)) of texts, as BERT of choices
 *                    else      h = x, of the text's last row,        logits W h
 *   tokens           h = drop(x),  logits W h + b
 *   spans, vectors   h = x
 *
 * Tensor-parallel ranks have all of it and do the same.
 *
 * Source    transformers' BertForSequenceClassification, RobertaClassificationHead, GPT2ForSequenceClassification, ... */
#include "trainer/model/model_impl.h"

static struct tensor outputs(const struct model_input *input, struct tensor t)
{
    return tensor_rows(t, 0, input->outputs);
}

static bool has_dense(const struct model *m)
{
    return m->places[MODEL_POOLER].weight >= 0;
}

/* Before the dense layer, and behind everything. */
static bool drops_before(const struct model *m)
{
    return has_dense(m) && m->config.task == MODEL_TEXTS && m->architecture->own_dense;
}

static bool drops_behind(const struct model *m)
{
    return has_dense(m) || m->config.task == MODEL_TOKENS;
}

/* Sites behind the last layer's; rows are numbered as the head reads them. */
static status drop(struct model *m, const struct model_input *input, enum dropout_place place,
                   struct tensor x)
{
    struct dropout dropout = model_dropout(m, input, m->config.layers, place);
    dropout.first = input->first_output * m->config.width;
    return dropout.probability > 0 ? dropout_apply(m->kernels, x, x, dropout) : STATUS_OK;
}

status model_task_forward(struct model *m, const struct model_input *input, struct tensor hidden,
                          struct tensor *out)
{
    struct head_activations *a = &m->activations.head;
    struct place dense = m->places[MODEL_POOLER];
    REQUIRE(input->outputs <= m->config.output_rows, STATUS_INTERNAL,
            "%lld rows for the head of a task, %lld are planned", (long long)input->outputs,
            (long long)m->config.output_rows);
    *out = outputs(input, a->rows);
    TRY(gather_rows(m->kernels, *out, hidden, input->output_rows));
    TRY(drops_before(m) ? drop(m, input, DROPOUT_PROJECTION, *out) : STATUS_OK);
    if (has_dense(m)) {
        struct tensor rows = *out;
        *out = outputs(input, a->dense);
        TRY(linear_forward(m->kernels, *out, outputs(input, a->kept), rows,
                           model_matrix(m, dense.weight), model_vector(m, dense.bias),
                           ACTIVATION_TANH));
    }
    return drops_behind(m) ? drop(m, input, DROPOUT_FC, *out) : STATUS_OK;
}

status model_task_backward(struct model *m, const struct model_input *input,
                           float *const *gradients)
{
    struct head_activations *a = &m->activations.head;
    struct tensor all = tensor_rows(m->activations.exchange, 0, input->rows);
    struct tensor dy = outputs(input, a->d_dense), dx = dy;
    TRY(drops_behind(m) ? drop(m, input, DROPOUT_FC, dy) : STATUS_OK);
    if (has_dense(m)) {
        dx = outputs(input, a->dense);
        TRY(activation_backward(m->kernels, dy, dy, outputs(input, a->kept), ACTIVATION_TANH));
        TRY(model_dense_backward(m, input, gradients, m->places[MODEL_POOLER], dx, dy,
                                 outputs(input, a->rows)));
    }
    TRY(drops_before(m) ? drop(m, input, DROPOUT_PROJECTION, dx) : STATUS_OK);
    return scatter_rows(m->kernels, all, dx, input->output_rows, true);
}
