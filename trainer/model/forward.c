/* Forward and backward pass of one micro-batch.
 *
 *   x_0 = embed(tokens)
 *   each layer:   m = x + attention(norm1(x));   x' = m + ffn(norm2(m))
 *   hidden = norm_f(x_L)
 *
 * With PLACEMENT_POST (BERT), additions and norms alternate in the same order, but the stream
 * continues with the norm's output: m = norm1(x) + ..., x' = norm2(m) + .... norm1 of layer 0 is
 * the norm of the embedding, or the identity (GPT-1). Dropout of the embedding follows it. With
 * PLACEMENT_PRE and a norm of the embedding (ModernBERT), norm1 of layer 0 is this norm, and the
 * stream continues with its output.
 *
 * This file runs the stacks and the heads; sublayers.c runs a layer, a list of sub-layers. The
 * embedding is in embedding.c. Backward mirrors the forward pass line by line, from the end of the
 * flat gradient buffer to its start.
 *
 * Shared layers (ALBERT): all layers of a stack have the parameters of one block. Their activations
 * are separate, and their gradients are added.
 *
 * Recompute: the recipe (train.activation_checkpointing) selects the activations that a layer keeps
 * for backward. Backward recomputes the others from these, with identical bits. Dropout draws from
 * counters and has no state.
 *
 * Tensor parallelism: each rank holds the whole residual stream, and some heads and inner features
 * of every layer. The ranks reduce their partial results of output projections and of the token
 * table. In backward they reduce the partial results of the matrices that read the stream.
 * Gradients of norms, of projection biases and of positions are complete and equal on each rank.
 * With sequence parallelism, a rank holds only some rows of the stream (sharing.c).
 *
 * Source    tensor parallelism: Shoeybi et al. 2019, arXiv:1909.08053; recompute: Chen et al. 2016,
 *           arXiv:1604.06174; selective: Korthikanti et al. 2022, arXiv:2205.05198 */
#include <inttypes.h>
#include <math.h>

#include "trainer/model/sublayers.h"

/* Divides the final norm of a language model, or its gradient, by the divisor of the logits. */
static status scale_logits(const struct model *m, struct tensor x)
{
    double divisor = m->config.logits_divisor;
    return divisor > 0 && m->config.head == MODEL_HEAD_LM
               ? op_scale(m->kernels, x, (float)(1 / divisor))
               : STATUS_OK;
}

status model_gather_hidden(struct model *m, int64_t n, struct tensor *hidden)
{
    TRY(scale_logits(m, model_view_local_rows(m, m->activations.final_norm, n)));
    return model_all_gather(m, model_view_local_rows(m, m->activations.final_norm, n), n, hidden);
}

/* Reports that forward next reads the weights up to the end of this layer. Layer L: all weights. */
static status require_weights(const struct model *m, const struct model_input *input, int64_t layer)
{
    if (input->weights_hook == NULL) {
        return STATUS_OK;
    }
    bool after_layers = layer == m->config.layers;
    int64_t end = after_layers ? m->elements
                               : model_layer_first(m->parameters, m->parameter_count, layer + 1);
    return input->weights_hook(input->user, end);
}

/* Applies the dropout of the output of a stack to this rank's rows of this output, or of its
 * gradient. */
static status drop_output(const struct model *m, const struct model_input *input, struct tensor x)
{
    int64_t site = model_extra_site(m, model_get_stack(m, input)->first);
    struct dropout dropout = model_local_dropout(m, input, site, DROPOUT_PROJECTION);
    return m->architecture->output_dropout && dropout.probability > 0
               ? dropout_apply(m->kernels, x, x, dropout)
               : STATUS_OK;
}

status model_run_stack(struct model *m, const struct model_input *input)
{
    const struct stack *stack = model_get_stack(m, input);
    TRY(model_embed(m, input));
    TRY(model_first_norm(m, input));
    for (int64_t layer = stack->first; layer < stack->end; layer++) {
        TRY(require_weights(m, input, layer + 1)); /* its norm1 is fused with this layer's end */
        TRY(model_run_layer(m, input, layer));
    }
    TRY(drop_output(m, input, model_view_local_rows(m, *stack->norm, input->rows)));
    return input->is_source ? model_gather_encoder(m, input->rows) : STATUS_OK;
}

struct model_input model_source_input(const struct model_input *input)
{
    struct model_input source = *input;
    source.is_source = true;
    source.rows = input->source.rows;
    source.tokens = input->source.tokens;
    source.positions = input->source.positions;
    source.cu_rows = input->source.cu_rows;
    source.longest = input->source.longest;
    source.first_row = input->source.first_row;
    return source;
}

status model_forward(struct model *m, const struct model_input *input, struct tensor *hidden)
{
    REQUIRE(input->rows <= m->rows, STATUS_INTERNAL,
            "a micro-batch has %" PRId64 " rows; %" PRId64 " are planned", input->rows, m->rows);
    TRY(require_weights(m, input, 0));
    if (m->stack_count > 1) {
        struct model_input source = model_source_input(input);
        REQUIRE(source.rows <= m->rows, STATUS_INTERNAL,
                "a micro-batch has %" PRId64 " rows of sources; %" PRId64 " are planned",
                source.rows, m->rows);
        TRY(model_run_stack(m, &source));
    }
    TRY(model_run_stack(m, input));
    TRY(model_gather_hidden(m, input->rows, hidden));
    if (input->output_rows == NULL) {
        return STATUS_OK;
    }
    TRY(kernels_graph_end_segment(m->kernels)); /* the number of output rows varies */
    return m->config.head != MODEL_HEAD_LM ? model_task_head_forward(m, input, *hidden, hidden)
                                           : model_bert_heads_forward(m, input, *hidden, hidden);
}

/* ---- backward ---- */

/* Returns whether the pass runs the head. BERT's head and fine-tuning heads need output rows. */
static bool head_is_used(const struct model *m, const struct model_input *input)
{
    bool always = m->architecture->attention.causal && m->config.head == MODEL_HEAD_LM;
    return always || input->output_rows != NULL;
}

/* Returns whether a GEMM of backward (or of the objective, for the head) sets the gradient in the
 * first micro-batch. Gradients of tables, norms and shared layers are always added to, so they must
 * be cleared. */
static bool gradient_is_set(const struct model *m, const struct model_input *input, int parameter)
{
    const struct model_parameter *p = &m->parameters[parameter];
    if (m->architecture->shared_layers && p->layer >= 0 && p->layer < m->config.layers) {
        return false;
    }
    if (model_is_norm(p)) {
        return false;
    }
    switch (p->role) {
    case MODEL_TOKEN_TABLE:
        return m->config.tied && m->config.head == MODEL_HEAD_LM && head_is_used(m, input) &&
               parameter == model_output_table(m);
    case MODEL_POSITION_TABLE:
    case MODEL_TOKEN_TYPE_TABLE:
    case MODEL_POSITION_BIAS:
    case MODEL_EMBEDDING_PROJECTION:
        return false;
    case MODEL_POOLER:
    case MODEL_TRANSFORM:
    case MODEL_LABELS:
    case MODEL_DECODER:
        return head_is_used(m, input);
    default:
        return true;
    }
}

static status clear_gradients(const struct model *m, const struct model_input *input,
                              float *const *gradients)
{
    struct device *dev = kernels_device(m->kernels);
    for (int i = 0; i < m->parameter_count; i++) {
        const struct model_parameter *p = &m->parameters[i];
        if (gradients[i] != NULL && !gradient_is_set(m, input, i)) {
            TRY(device_zero(dev, kernels_stream(m->kernels), gradients[i],
                            (size_t)(p->rows * p->columns) * sizeof(float)));
        }
    }
    return STATUS_OK;
}

/* Returns whether the norm at the end of a stack or any parameter before it is trained. */
static bool reaches_end_norm(const struct model *m, const struct stack *stack, int64_t lowest)
{
    int weight = stack->end_norm.weight;
    return lowest < stack->end || (weight >= 0 && m->parameters[weight].trained);
}

/* Computes the gradient of all rows from the gradient that the objective has written. */
static status head_backward(struct backward *b)
{
    if (b->input->output_rows == NULL) {
        TRY(model_reduce(b->m, b->n));
        return scale_logits(b->m, model_reduced_rows(b->m, b->n));
    }
    return b->m->config.head != MODEL_HEAD_LM
               ? model_task_head_backward(b->m, b->input, b->gradients)
               : model_bert_heads_backward(b->m, b->input, b->gradients);
}

/* Runs the backward pass of a stack from the gradient of its output in `exchange` to its embedding,
 * but not below the layer `lowest`. */
static status stack_backward(struct backward *b, int64_t lowest, model_gradient_hook hook,
                             void *user)
{
    struct model *m = b->m;
    const struct stack *stack = model_get_stack(m, b->input);
    bool post_norm = architecture_is_post_norm(m->architecture);
    struct tensor delta;
    if (reaches_end_norm(m, stack, lowest)) {
        TRY(drop_output(m, b->input, model_reduced_rows(m, b->n)));
        TRY(model_norm1_backward(b, stack->end, NORM_RESIDUAL_NONE, &delta));
    }
    for (int64_t layer = stack->end - 1; layer >= stack->first && layer >= lowest; layer--) {
        if (post_norm && layer + 1 < stack->end) {
            TRY(model_norm1_backward(b, layer + 1, NORM_RESIDUAL_POST, &delta));
        }
        TRY(model_layer_backward(b, layer, &delta));
        if (hook != NULL) {
            TRY(hook(user, model_layer_first(m->parameters, m->parameter_count, layer)));
        }
    }
    return lowest < 0 ? model_embedding_backward(b, &delta) : STATUS_OK;
}

/* Clears the sum of the gradients of the encoder's output. */
static status clear_encoder_gradient(const struct model *m, const struct model_input *input)
{
    struct tensor d = m->activations.d_encoder;
    size_t elements = (size_t)(input->source.rows * d.columns);
    return device_zero(kernels_device(m->kernels), kernels_stream(m->kernels), d.data,
                       elements * dtype_bytes(d.dtype));
}

status model_backward(struct model *m, const struct model_input *input, float *const *gradients,
                      model_gradient_hook hook, void *user)
{
    struct backward b = {m, input, gradients, input->rows};
    int64_t lowest = model_first_trained_layer(m->parameters, m->parameter_count);
    bool has_encoder = m->stack_count > 1;
    if (input->first_micro_batch) {
        TRY(clear_gradients(m, input, gradients));
    }
    TRY(head_backward(&b));
    TRY(kernels_graph_end_segment(m->kernels));
    TRY(has_encoder ? clear_encoder_gradient(m, input) : STATUS_OK);
    TRY(stack_backward(&b, lowest, hook, user));
    if (has_encoder && lowest < m->stacks[0].end) {
        struct model_input source = model_source_input(input);
        struct backward encoder = {m, &source, gradients, source.rows};
        TRY(op_copy(m->kernels, model_view_rows(m->activations.exchange, source.rows),
                    model_view_rows(m->activations.d_encoder, source.rows)));
        TRY(model_reduce(m, source.rows));
        TRY(stack_backward(&encoder, lowest, hook, user));
    }
    return hook != NULL ? hook(user, 0) : STATUS_OK;
}
