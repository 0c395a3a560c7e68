/* Forward and backward pass of one micro-batch.
 *
 *   x_0 = embed(tokens)
 *   each layer:   m = x + proj(attention(norm1(x)));   x' = m + ffn(norm2(m))
 *   hidden = norm_f(x_L)
 *
 * With PLACEMENT_POST (BERT), additions and norms alternate in the same order, but the stream
 * continues with the norm's output: m = norm1(x) + ..., x' = norm2(m) + .... norm1 of layer 0 is
 * the norm of the embedding, or the identity (GPT-1). Dropout of the embedding follows it. With
 * PLACEMENT_PRE and a norm of the embedding (ModernBERT), norm1 of layer 0 is this norm, and the
 * stream continues with its output.
 *
 * With PLACEMENT_BRANCH (OLMo 2), the norms read the outputs of the sub-layers before they are
 * added: m = x + norm(attention(x)). PLACEMENT_BOTH (Gemma) has these norms and the norms of
 * PLACEMENT_PRE.
 *
 * Each addition to the residual stream is fused with the norm that follows it. Backward mirrors the
 * forward pass line by line, from the end of the flat gradient buffer to its start. The sub-layers
 * are in attention.c and feed_forward.c, the embedding is in embedding.c (sublayers.h).
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

struct dropout model_local_dropout(const struct model *m, const struct model_input *input,
                                   int64_t layer, enum dropout_site site)
{
    struct dropout dropout = model_dropout(m, input, layer, site);
    dropout.first += model_local_rows(m, input->rows).first * model_dropout_columns(m, layer);
    return dropout;
}

static enum norm_kind get_norm_kind(const struct model *m)
{
    return m->architecture->norm.kind;
}

status model_add_and_norm(struct model *m, struct tensor stream, struct tensor norm,
                          struct tensor statistics, struct tensor x, struct tensor delta,
                          struct param_index index, struct dropout dropout)
{
    bool has_norm = index.weight != PARAM_NONE;
    return residual_norm_forward(m->kernels, stream, has_norm ? norm : tensor_absent(), statistics,
                                 x, delta, model_vector(m, index.weight),
                                 model_vector(m, index.bias), get_norm_kind(m),
                                 m->config.norm_epsilon, dropout);
}

/* Applies the branch norm, or the factor residual_multiplier, to the output of a sub-layer in
 * `exchange`, if the architecture has one of them. `output` keeps the norm's input for backward. */
static status finish_branch(struct model *m, int64_t n, struct tensor output,
                            struct tensor statistics, struct param_index index)
{
    struct tensor branch = model_reduced_rows(m, n);
    if (index.weight == PARAM_NONE) {
        float factor = (float)m->config.residual_multiplier;
        return factor > 0 ? op_scale(m->kernels, branch, factor) : STATUS_OK;
    }
    output = model_view_local_rows(m, output, n);
    TRY(op_copy(m->kernels, output, branch));
    return model_add_and_norm(m, tensor_absent(), branch, model_view_local_rows(m, statistics, n),
                              output, tensor_absent(), index, (struct dropout){0});
}

/* Returns the stream and the norm after a layer: the stream and the norm of the next layer, or the
 * final ones of the stack. */
static struct param_index find_next_norm(struct model *m, const struct model_input *input,
                                         int64_t layer, struct tensor *stream, struct tensor *norm,
                                         struct tensor *statistics)
{
    const struct stack *stack = model_get_stack(m, input);
    bool last = layer + 1 == stack->end;
    int64_t n = input->rows;
    struct layer_activations *next = last ? NULL : &m->activations.layers[layer + 1];
    *stream = model_view_local_rows(m, last ? *stack->last : next->input, n);
    *norm = model_view_local_rows(m, last ? *stack->norm : next->norm1, n);
    *statistics = model_view_local_rows(m, last ? *stack->statistics : next->statistics1, n);
    return last ? stack->end_norm : model_param_index(m, layer + 1, MODEL_NORM1);
}

/* Runs cross-attention from the output of self-attention in `exchange` to its own output there.
 * *read becomes the value that the stream continues with. */
static status run_cross_attention(struct model *m, const struct model_input *input, int64_t layer,
                                  struct tensor *read)
{
    struct layer_activations *a = &m->activations.layers[layer];
    int64_t n = input->rows;
    struct tensor between = model_view_local_rows(m, a->between, n),
                  norm = model_view_local_rows(m, a->between_norm, n);
    TRY(model_add_and_norm(m, between, norm, model_view_local_rows(m, a->between_statistics, n),
                           *read, model_reduced_rows(m, n),
                           model_param_index(m, layer, MODEL_CROSS_NORM),
                           model_local_dropout(m, input, layer, DROPOUT_PROJECTION)));
    *read = architecture_is_post_norm(m->architecture) ? norm : between;
    return model_cross_attention_forward(m, input, layer);
}

/* Runs a layer from the attention's output in `exchange` to the inner features. */
static status run_layer_middle(struct model *m, const struct model_input *input, int64_t layer)
{
    struct layer_activations *a = &m->activations.layers[layer];
    int64_t n = input->rows;
    struct tensor read = model_view_local_rows(
        m, architecture_continues_norm1(m->architecture, layer == 0) ? a->norm1 : a->input, n);
    TRY(finish_branch(m, n, a->attention_output, a->attention_output_statistics,
                      model_param_index(m, layer, MODEL_ATTENTION_NORM)));
    bool has_cross = model_layer_has_cross(&m->config, layer);
    TRY(has_cross ? run_cross_attention(m, input, layer, &read) : STATUS_OK);
    TRY(model_add_and_norm(
        m, model_view_local_rows(m, a->middle, n), model_view_local_rows(m, a->norm2, n),
        model_view_local_rows(m, a->statistics2, n), read, model_reduced_rows(m, n),
        model_param_index(m, layer, MODEL_NORM2),
        model_local_dropout(m, input, has_cross ? model_cross_site(m, layer) : layer,
                            DROPOUT_PROJECTION)));
    return model_feed_forward_inner(m, input, layer);
}

status model_finish_layer(struct model *m, const struct model_input *input, int64_t layer)
{
    struct layer_activations *a = &m->activations.layers[layer];
    int64_t n = input->rows;
    bool post_norm = architecture_is_post_norm(m->architecture);
    struct tensor delta = model_reduced_rows(m, n), stream, norm, statistics;
    TRY(run_layer_middle(m, input, layer));
    TRY(model_project_output(m, input, layer, MODEL_FC_PROJECTION, model_view_rows(a->inner, n)));
    TRY(finish_branch(m, n, a->feed_forward_output, a->feed_forward_output_statistics,
                      model_param_index(m, layer, MODEL_FEED_FORWARD_NORM)));
    struct param_index index = find_next_norm(m, input, layer, &stream, &norm, &statistics);
    return model_add_and_norm(m, stream, norm, statistics,
                              model_view_local_rows(m, post_norm ? a->norm2 : a->middle, n), delta,
                              index, model_local_dropout(m, input, layer, DROPOUT_FC));
}

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
    bool after_layers = layer == m->config.layers;
    int64_t end = after_layers ? m->elements
                               : model_layer_first(m->parameters, m->parameter_count, layer + 1);
    return input->weights_hook == NULL ? STATUS_OK : input->weights_hook(input->user, end);
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
        TRY(model_attention_forward(m, input, layer));
        TRY(model_finish_layer(m, input, layer));
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
    switch (p->role) {
    case MODEL_TOKEN_TABLE:
        return m->config.tied && m->config.head == MODEL_HEAD_LM && head_is_used(m, input) &&
               parameter == model_output_table(m);
    case MODEL_POSITION_TABLE:
    case MODEL_TOKEN_TYPE_TABLE:
    case MODEL_POSITION_BIAS:
    case MODEL_EMBEDDING_NORM:
    case MODEL_EMBEDDING_PROJECTION:
    case MODEL_NORM1:
    case MODEL_NORM2:
    case MODEL_CROSS_NORM:
    case MODEL_ATTENTION_NORM:
    case MODEL_FEED_FORWARD_NORM:
    case MODEL_QUERY_NORM:
    case MODEL_KEY_NORM:
    case MODEL_TRANSFORM_NORM:
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

/* Recomputes a norm's output from its input z. PARAM_NONE: there is no norm. */
static status recompute_norm(struct model *m, int64_t n, struct tensor z, struct tensor norm,
                             struct tensor statistics, struct param_index index)
{
    if (index.weight == PARAM_NONE) {
        return STATUS_OK;
    }
    return model_add_and_norm(m, tensor_absent(), model_view_local_rows(m, norm, n),
                              model_view_local_rows(m, statistics, n),
                              model_view_local_rows(m, z, n), tensor_absent(), index,
                              (struct dropout){0});
}

/* Recomputes the activations that forward did not keep, with identical bits. This overwrites
 * `exchange`, which backward no longer reads. */
static status recompute_layer(struct backward *b, int64_t layer)
{
    struct model *m = b->m;
    struct layer_activations *a = &m->activations.layers[layer];
    enum recompute_mode mode = model_get_recompute(m, layer);
    if (mode == RECOMPUTE_NONE) {
        return STATUS_OK;
    }
    bool first = layer == model_get_stack(m, b->input)->first;
    if (first && model_is_factorized(&m->config)) {
        TRY(model_project_embedding(m, b->input));
    } else {
        TRY(recompute_norm(m, b->n, a->input, a->norm1, a->statistics1,
                           model_param_index(m, layer, MODEL_NORM1)));
        TRY(first ? model_drop_first_norm(m, b->input) : STATUS_OK);
    }
    if (mode == RECOMPUTE_FULL) {
        TRY(model_attention_forward(m, b->input, layer));
        return run_layer_middle(m, b->input, layer);
    }
    TRY(recompute_norm(m, b->n, a->middle, a->norm2, a->statistics2,
                       model_param_index(m, layer, MODEL_NORM2)));
    return model_recompute_inner(m, b->input, layer);
}

status model_run_norm_backward(struct backward *b, struct param_index index, struct tensor dz,
                               struct tensor ddelta, struct bias_gradient dbias, struct tensor dy,
                               struct tensor z, struct tensor statistics,
                               enum norm_residual residual, struct dropout dropout)
{
    struct model *m = b->m;
    struct tensor dgamma, dbeta;
    model_norm_gradients(m, index, b->gradients, &dgamma, &dbeta);
    struct tensor gamma_sums = dgamma, beta_sums = dbeta;
    TRY(model_norm_reduce_begin(m, &gamma_sums, &beta_sums));
    TRY(residual_norm_backward(m->kernels, dz, ddelta, gamma_sums, beta_sums, dbias, dy,
                               model_view_local_rows(m, z, b->n),
                               model_view_local_rows(m, statistics, b->n),
                               model_vector(m, index.weight), get_norm_kind(m), residual, dropout));
    return model_norm_reduce_end(m, dgamma, dbeta);
}

/* Runs the backward pass of an addition without a norm. *delta becomes the gradient of the value
 * that was added to the stream. */
static status addition_backward(struct backward *b, struct dropout dropout, struct tensor *delta)
{
    struct model *m = b->m;
    struct tensor stream = model_view_local_rows(m, m->activations.d_stream, b->n);
    struct tensor none = tensor_absent();
    *delta = stream;
    TRY(model_add_and_norm(m, stream, none, none, stream, model_reduced_rows(m, b->n),
                           (struct param_index){PARAM_NONE, PARAM_NONE}, (struct dropout){0}));
    if (!(dropout.probability > 0)) {
        return STATUS_OK;
    }
    *delta = model_view_local_rows(m, m->activations.d_delta, b->n);
    return dropout_apply(m->kernels, *delta, stream, dropout);
}

/* Runs the backward pass of a norm and of the addition before it. `exchange` holds the gradient of
 * the norm's output. *delta becomes the gradient of the value that was added to the stream. dbias
 * is the gradient of the bias of the linear layer that computed this value. PARAM_NONE: there is no
 * norm. */
static status norm_backward(struct backward *b, struct param_index index, struct tensor z,
                            struct tensor statistics, enum norm_residual residual,
                            struct dropout dropout, struct bias_gradient dbias,
                            struct tensor *delta)
{
    struct model *m = b->m;
    struct tensor stream = model_view_local_rows(m, m->activations.d_stream, b->n);
    bool dropped = dropout.probability > 0;
    if (index.weight == PARAM_NONE) {
        return addition_backward(b, dropout, delta);
    }
    *delta = dropped ? model_view_local_rows(m, m->activations.d_delta, b->n) : stream;
    return model_run_norm_backward(b, index, stream, dropped ? *delta : tensor_absent(), dbias,
                                   model_reduced_rows(m, b->n), z, statistics, residual, dropout);
}

/* Runs the backward pass of finish_branch. *delta becomes the gradient of the output of the
 * sub-layer. */
static status branch_backward(struct backward *b, struct param_index index, struct tensor output,
                              struct tensor statistics, struct tensor *delta)
{
    float factor = (float)b->m->config.residual_multiplier;
    struct tensor dy = *delta;
    if (index.weight == PARAM_NONE && !(factor > 0)) {
        return STATUS_OK;
    }
    *delta = model_view_local_rows(b->m, b->m->activations.d_delta, b->n);
    if (index.weight == PARAM_NONE) {
        TRY(delta->data != dy.data ? op_copy(b->m->kernels, *delta, dy) : STATUS_OK);
        return op_scale(b->m->kernels, *delta, factor);
    }
    return model_run_norm_backward(b, index, *delta, tensor_absent(), (struct bias_gradient){0}, dy,
                                   output, statistics, NORM_RESIDUAL_NONE, (struct dropout){0});
}

/* Returns the value that the stream continues with at the norms within the blocks. */
static enum norm_residual get_residual(const struct model *m)
{
    return architecture_is_post_norm(m->architecture) ? NORM_RESIDUAL_POST : NORM_RESIDUAL_PRE;
}

status model_norm1_backward(struct backward *b, int64_t layer, enum norm_residual residual,
                            struct tensor *delta)
{
    struct model *m = b->m;
    struct activations *activations = &m->activations;
    const struct stack *stack = model_get_stack(m, b->input);
    bool last = layer == stack->end;
    struct dropout dropout = {0};
    struct bias_gradient dbias = {0};
    if (layer > stack->first) {
        dropout = model_local_dropout(m, b->input, layer - 1, DROPOUT_FC);
        dbias = model_early_bias_gradient(b, layer - 1, MODEL_FC_PROJECTION);
    }
    return norm_backward(b, last ? stack->end_norm : model_param_index(m, layer, MODEL_NORM1),
                         last ? *stack->last : activations->layers[layer].input,
                         last ? *stack->statistics : activations->layers[layer].statistics1,
                         residual, dropout, dbias, delta);
}

/* Runs the backward pass of one layer, after which its gradients are final. On entry, *delta is the
 * gradient of the feed-forward network's output. On return, it is the gradient of the output of the
 * layer below, unless the stream continues with norm1. */
static status layer_backward(struct backward *b, int64_t layer, struct tensor *delta)
{
    struct model *m = b->m;
    struct layer_activations *a = &m->activations.layers[layer];
    TRY(recompute_layer(b, layer));
    TRY(branch_backward(b, model_param_index(m, layer, MODEL_FEED_FORWARD_NORM),
                        a->feed_forward_output, a->feed_forward_output_statistics, delta));
    TRY(model_feed_forward_backward(b, layer, *delta));
    bool has_cross = model_layer_has_cross(&m->config, layer);
    TRY(norm_backward(
        b, model_param_index(m, layer, MODEL_NORM2), a->middle, a->statistics2, get_residual(m),
        model_local_dropout(m, b->input, has_cross ? model_cross_site(m, layer) : layer,
                            DROPOUT_PROJECTION),
        model_early_bias_gradient(b, layer, has_cross ? MODEL_CROSS_PROJECTION : MODEL_PROJECTION),
        delta));
    if (has_cross) {
        TRY(model_cross_attention_backward(b, layer, *delta));
        TRY(norm_backward(b, model_param_index(m, layer, MODEL_CROSS_NORM), a->between,
                          a->between_statistics, get_residual(m),
                          model_local_dropout(m, b->input, layer, DROPOUT_PROJECTION),
                          model_early_bias_gradient(b, layer, MODEL_PROJECTION), delta));
    }
    TRY(branch_backward(b, model_param_index(m, layer, MODEL_ATTENTION_NORM), a->attention_output,
                        a->attention_output_statistics, delta));
    TRY(model_attention_backward(b, layer, *delta));
    bool last = architecture_continues_norm1(m->architecture, layer == 0) ||
                !model_needs_norm1_gradient(m, layer);
    return last ? STATUS_OK : model_norm1_backward(b, layer, NORM_RESIDUAL_PRE, delta);
}

/* Returns whether the norm at the end of a stack or any parameter before it is trained. */
static bool reaches_end_norm(const struct model *m, const struct stack *stack, int64_t lowest)
{
    int weight = stack->end_norm.weight;
    return lowest < stack->end || (weight >= 0 && m->parameters[weight].trained);
}

/* Computes the gradient of all rows from the gradient that the objective has written. */
static status output_backward(struct backward *b)
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
        TRY(layer_backward(b, layer, &delta));
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
    TRY(output_backward(&b));
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
