/* A micro-batch through the model and back, pre-layer-norm:
 *
 *   x_0 = embed(tokens);   per layer:  m = x + proj(attention(norm1(x)));  x' = m + ffn(norm2(m))
 *   hidden = norm_f(x_L)
 *
 * Each addition to the residual stream is fused with the norm that follows it. Backward mirrors
 * this line by line, from the end of the flat gradient buffer downwards.
 *
 * Tensor-parallel ranks have the whole stream each, and some heads and inner features of every layer: what
 * their parts of an output projection, of the token table and (backward) of the matrices that read the
 * stream give is added up over the ranks. The gradients of norms, of the projections' biases and of the
 * positions are whole, and the same, on every rank. (Shoeybi et al. 2019, arXiv:1909.08053) */
#include "trainer/model/model_impl.h"

/* Only the first n rows of the working memory take part in this micro-batch. */
static struct tensor first(struct tensor t, int64_t n)
{
    return tensor_rows(t, 0, n);
}

/* A statistic per head lies [H, rows]: its row stride stays that of the largest micro-batch. */
static struct tensor first_columns(struct tensor t, int64_t n)
{
    return tensor_columns(t, 0, n);
}

static status norm_after(struct model *m, struct tensor stream, struct tensor norm,
                         struct tensor statistics, struct tensor x, struct tensor delta,
                         int parameter, struct dropout dropout)
{
    return residual_norm_forward(m->kernels, stream, norm, statistics, x, delta,
                                 model_vector(m, parameter), model_vector(m, parameter + 1),
                                 NORM_LAYER, m->config.norm_epsilon, dropout);
}

status model_project_qkv(struct model *m, int64_t layer, int64_t n)
{
    struct layer_activations *a = &m->activations.layers[layer];
    return linear_forward(m->kernels, first(a->qkv, n), tensor_absent(), first(a->norm1, n),
                          model_matrix(m, model_layer_parameter(layer, LAYER_QKV_WEIGHT)),
                          model_vector(m, model_layer_parameter(layer, LAYER_QKV_BIAS)),
                          ACTIVATION_NONE);
}

/* The first id of this rank's part of the token table. */
static int64_t first_token(const struct model *m)
{
    return m->rank * m->parameters[MODEL_TOKEN_TABLE].rows;
}

/* y = x w^T + b over all ranks' columns of x and w, into `exchange`; one rank adds the bias. */
static status project(struct model *m, int parameter, struct tensor x)
{
    TRY(linear_forward(m->kernels, first(m->activations.exchange, x.rows), tensor_absent(), x,
                       model_matrix(m, parameter),
                       m->rank == 0 ? model_vector(m, parameter + 1) : tensor_absent(),
                       ACTIVATION_NONE));
    return model_add_up(m, x.rows);
}

status model_project_attended(struct model *m, int64_t layer, int64_t n)
{
    return project(m, model_layer_parameter(layer, LAYER_PROJECTION_WEIGHT),
                   first(m->activations.layers[layer].attended, n));
}

static status attention_block(struct model *m, const struct model_input *input, int64_t layer)
{
    struct layer_activations *a = &m->activations.layers[layer];
    int64_t c = m->share.width, n = input->rows;
    struct tensor qkv = first(a->qkv, n);
    struct attention attention = model_attention(m, input, layer);
    TRY(model_project_qkv(m, layer, n));
    TRY(attention_forward(m->kernels, first(a->attended, n), first_columns(a->lse, n),
                          tensor_columns(qkv, 0, c), tensor_columns(qkv, c, c),
                          tensor_columns(qkv, 2 * c, c), &attention));
    return model_project_attended(m, layer, n);
}

static status feed_forward_block(struct model *m, int64_t layer, int64_t n)
{
    struct kernels *k = m->kernels;
    struct layer_activations *a = &m->activations.layers[layer];
    TRY(linear_forward(k, first(a->inner, n), first(a->kept, n), first(a->norm2, n),
                       model_matrix(m, model_layer_parameter(layer, LAYER_FC_WEIGHT)),
                       model_vector(m, model_layer_parameter(layer, LAYER_FC_BIAS)),
                       m->config.activation));
    return project(m, model_layer_parameter(layer, LAYER_FC_PROJECTION_WEIGHT), first(a->inner, n));
}

/* Positions are added by one rank. */
status model_embed(struct model *m, const struct model_input *input)
{
    int64_t n = input->rows;
    bool alone = m->ranks == 1;
    struct tensor stream = first(m->activations.layers[0].input, n);
    struct tensor sum = first(m->activations.exchange, n);
    TRY(embedding_forward(m->kernels, alone ? stream : sum, input->tokens, input->positions,
                          model_matrix(m, MODEL_TOKEN_TABLE), first_token(m),
                          m->rank == 0 ? model_matrix(m, MODEL_POSITION_TABLE) : tensor_absent(),
                          model_dropout(m, input, -1, DROPOUT_PROJECTION)));
    TRY(model_add_up(m, n));
    return alone ? STATUS_OK
                 : device_copy(kernels_device(m->kernels), kernels_stream(m->kernels), stream.data,
                               sum.data, (size_t)(n * sum.columns) * dtype_bytes(sum.dtype));
}

/* The stream and the norm that follow layer `layer`: the next layer's, or the final ones. */
static void after_layer(struct model *m, int64_t layer, int64_t n, struct tensor *stream,
                        struct tensor *norm, struct tensor *statistics)
{
    struct activations *all = &m->activations;
    bool last = layer + 1 == m->config.layers;
    struct layer_activations *next = last ? NULL : &all->layers[layer + 1];
    *stream = first(last ? all->last : next->input, n);
    *norm = first(last ? all->final_norm : next->norm1, n);
    *statistics = first(last ? all->final_statistics : next->statistics1, n);
}

/* From the attention's output in `exchange` to the next layer's norm1 (or the final norm). */
status model_layer_rest(struct model *m, const struct model_input *input, int64_t layer)
{
    struct layer_activations *a = &m->activations.layers[layer];
    int64_t n = input->rows;
    struct tensor delta = first(m->activations.exchange, n), stream, norm, statistics;
    TRY(norm_after(m, first(a->middle, n), first(a->norm2, n), first(a->statistics2, n),
                   first(a->input, n), delta, model_layer_parameter(layer, LAYER_NORM2_WEIGHT),
                   model_dropout(m, input, layer, DROPOUT_PROJECTION)));
    TRY(feed_forward_block(m, layer, n));
    after_layer(m, layer, n, &stream, &norm, &statistics);
    return norm_after(m, stream, norm, statistics, first(a->middle, n), delta,
                      model_layer_parameter(layer + 1, LAYER_NORM1_WEIGHT),
                      model_dropout(m, input, layer, DROPOUT_FC));
}

status model_first_norm(struct model *m, int64_t n)
{
    struct layer_activations *a = &m->activations.layers[0];
    return norm_after(m, tensor_absent(), first(a->norm1, n), first(a->statistics1, n),
                      first(a->input, n), tensor_absent(),
                      model_layer_parameter(0, LAYER_NORM1_WEIGHT), (struct dropout){0});
}

status model_forward(struct model *m, const struct model_input *input, struct tensor *hidden)
{
    REQUIRE(input->rows <= m->rows, STATUS_INTERNAL, "a micro-batch of %lld rows, %lld are planned",
            (long long)input->rows, (long long)m->rows);
    TRY(model_embed(m, input));
    TRY(model_first_norm(m, input->rows));
    for (int64_t layer = 0; layer < m->config.layers; layer++) {
        TRY(attention_block(m, input, layer));
        TRY(model_layer_rest(m, input, layer));
    }
    *hidden = first(m->activations.final_norm, input->rows);
    return STATUS_OK;
}

/* ---- backward ---- */

struct backward {
    struct model *m;
    const struct model_input *input;
    float *const *gradients;
    int64_t n;
};

/* Whether backward (or, for the head, the objective) sets a fresh gradient by a product; tables and norms
 * are added to. */
static bool gradient_is_set(const struct model *m, int parameter)
{
    if (parameter < MODEL_FIRST_LAYER || parameter >= model_final_norm(m)) {
        return m->config.tied ? parameter == MODEL_TOKEN_TABLE
                              : parameter == m->parameter_count - 1;
    }
    switch ((parameter - MODEL_FIRST_LAYER) % MODEL_LAYER_PARAMETERS) {
    case LAYER_NORM1_WEIGHT:
    case LAYER_NORM1_BIAS:
    case LAYER_NORM2_WEIGHT:
    case LAYER_NORM2_BIAS:
        return false;
    default:
        return true;
    }
}

static status clear_sums(const struct model *m, float *const *gradients)
{
    struct device *dev = kernels_device(m->kernels);
    for (int i = 0; i < m->parameter_count; i++) {
        const struct model_parameter *p = &m->parameters[i];
        if (!gradient_is_set(m, i)) {
            TRY(device_zero(dev, kernels_stream(m->kernels), gradients[i],
                            (size_t)(p->rows * p->columns) * sizeof(float)));
        }
    }
    return STATUS_OK;
}

static status weight_backward(struct backward *b, int parameter, struct tensor dy, struct tensor x)
{
    struct model *m = b->m;
    return linear_backward_weight(m->kernels, model_gradient(m, parameter, b->gradients),
                                  model_gradient(m, parameter + 1, b->gradients), dy, x,
                                  b->input->fresh);
}

/* Gradients of an output projection: of its weights from dy and x, and of this rank's columns of x (before
 * their own activation). */
static status project_backward(struct backward *b, int parameter, struct tensor dx,
                               struct tensor dy, struct tensor x, enum activation act,
                               struct tensor kept)
{
    TRY(weight_backward(b, parameter, dy, x));
    return linear_backward_input(b->m->kernels, dx, dy, model_matrix(b->m, parameter), act, kept);
}

/* Of a matrix that reads the stream: of its weights, and of the norm's output x into `exchange`, added up
 * over the ranks behind the product of the weights. */
static status reader_backward(struct backward *b, int parameter, struct tensor dy, struct tensor x)
{
    struct model *m = b->m;
    TRY(linear_backward_input(m->kernels, first(m->activations.exchange, b->n), dy,
                              model_matrix(m, parameter), ACTIVATION_NONE, tensor_absent()));
    TRY(model_add_up_start(m, b->n));
    TRY(weight_backward(b, parameter, dy, x));
    return model_add_up_wait(m, b->n);
}

/* The norm at `parameter`, and what was added to the stream before it; *delta is its gradient. */
static status norm_backward(struct backward *b, int parameter, struct tensor dy, struct tensor z,
                            struct tensor statistics, bool overwrite, struct dropout dropout,
                            struct tensor *delta)
{
    struct model *m = b->m;
    struct tensor stream = first(m->activations.d_stream, b->n);
    bool dropped = dropout.probability > 0;
    *delta = dropped ? first(m->activations.d_delta, b->n) : stream;
    return residual_norm_backward(m->kernels, stream, dropped ? *delta : tensor_absent(),
                                  model_gradient(m, parameter, b->gradients),
                                  model_gradient(m, parameter + 1, b->gradients), dy, z, statistics,
                                  model_vector(m, parameter), NORM_LAYER, overwrite, dropout);
}

static status feed_forward_backward(struct backward *b, int64_t layer, struct tensor delta)
{
    struct model *m = b->m;
    struct layer_activations *a = &m->activations.layers[layer];
    struct tensor d_inner = first(m->activations.d_inner, b->n);
    TRY(project_backward(b, model_layer_parameter(layer, LAYER_FC_PROJECTION_WEIGHT), d_inner,
                         delta, first(a->inner, b->n), m->config.activation, first(a->kept, b->n)));
    return reader_backward(b, model_layer_parameter(layer, LAYER_FC_WEIGHT), d_inner,
                           first(a->norm2, b->n));
}

static status attention_block_backward(struct backward *b, int64_t layer, struct tensor delta)
{
    struct model *m = b->m;
    struct layer_activations *a = &m->activations.layers[layer];
    int64_t c = m->share.width;
    struct tensor qkv = first(a->qkv, b->n), d_qkv = first(m->activations.d_qkv, b->n);
    struct tensor exchange = m->activations.exchange;
    struct tensor d_attended = tensor_view(exchange.data, exchange.dtype, b->n, c);
    struct attention attention = model_attention(m, b->input, layer);
    TRY(project_backward(b, model_layer_parameter(layer, LAYER_PROJECTION_WEIGHT), d_attended,
                         delta, first(a->attended, b->n), ACTIVATION_NONE, tensor_absent()));
    TRY(attention_backward(m->kernels, tensor_columns(d_qkv, 0, c), tensor_columns(d_qkv, c, c),
                           tensor_columns(d_qkv, 2 * c, c), d_attended, tensor_columns(qkv, 0, c),
                           tensor_columns(qkv, c, c), tensor_columns(qkv, 2 * c, c),
                           first(a->attended, b->n), first_columns(a->lse, b->n), &attention));
    return reader_backward(b, model_layer_parameter(layer, LAYER_QKV_WEIGHT), d_qkv,
                           first(a->norm1, b->n));
}

/* delta in: gradient of what the layer's feed-forward added; out: of what the layer below added. */
static status layer_backward(struct backward *b, int64_t layer, struct tensor *delta)
{
    struct model *m = b->m;
    struct layer_activations *a = &m->activations.layers[layer];
    struct tensor d_norm = first(m->activations.exchange, b->n);
    TRY(feed_forward_backward(b, layer, *delta));
    TRY(norm_backward(b, model_layer_parameter(layer, LAYER_NORM2_WEIGHT), d_norm,
                      first(a->middle, b->n), first(a->statistics2, b->n), false,
                      model_dropout(m, b->input, layer, DROPOUT_PROJECTION), delta));
    TRY(attention_block_backward(b, layer, *delta));
    struct dropout below =
        layer > 0 ? model_dropout(m, b->input, layer - 1, DROPOUT_FC) : (struct dropout){0};
    return norm_backward(b, model_layer_parameter(layer, LAYER_NORM1_WEIGHT), d_norm,
                         first(a->input, b->n), first(a->statistics1, b->n), false, below, delta);
}

status model_backward(struct model *m, const struct model_input *input, float *const *gradients,
                      model_final final, void *user)
{
    struct backward b = {m, input, gradients, input->rows};
    struct activations *all = &m->activations;
    struct tensor delta;
    if (input->fresh) {
        TRY(clear_sums(m, gradients));
    }
    TRY(model_add_up(m, b.n)); /* what the objective has written */
    TRY(norm_backward(&b, model_final_norm(m), first(all->exchange, b.n), first(all->last, b.n),
                      first(all->final_statistics, b.n), true,
                      model_dropout(m, input, m->config.layers - 1, DROPOUT_FC), &delta));
    for (int64_t layer = m->config.layers - 1; layer >= 0; layer--) {
        TRY(layer_backward(&b, layer, &delta));
        if (final != NULL) {
            TRY(final(user, m->parameters[model_layer_parameter(layer, 0)].first));
        }
    }
    TRY(embedding_backward(m->kernels, model_gradient(m, MODEL_TOKEN_TABLE, gradients),
                           first_token(m), model_gradient(m, MODEL_POSITION_TABLE, gradients),
                           first(all->d_stream, b.n), input->tokens, input->positions,
                           model_dropout(m, input, -1, DROPOUT_PROJECTION)));
    return final != NULL ? final(user, 0) : STATUS_OK;
}
