/* A micro-batch through the model and back.
 *
 *   x_0 = embed(tokens);   per layer:  m = x + proj(attention(norm1(x)));  x' = m + ffn(norm2(m))
 *   hidden = norm_f(x_L)
 *
 * With a norm behind each half of a block (BERT) sums and norms alternate in the same way, but what is added to
 * is the norm's output: m = norm1(x) + ..., x' = norm2(m) + ...; norm1 of the first layer belongs to the
 * embedding, and dropout there comes behind it.
 *
 * Each addition to the residual stream is fused with the norm that follows it. Backward mirrors
 * this line by line, from the end of the flat gradient buffer downwards.
 *
 * What a layer keeps for backward is the recipe's choice (train.activation_checkpointing): what is not kept is
 * made again from what is, with the same bits; dropout draws from counters, not from a state.
 * (Chen et al. 2016, arXiv:1604.06174; selective: Korthikanti et al. 2022, arXiv:2205.05198)
 *
 * Tensor-parallel ranks have the whole stream each, and some heads and inner features of every layer: what
 * their parts of an output projection, of the token table and (backward) of the matrices that read the
 * stream give is added up over the ranks. The gradients of norms, of the projections' biases and of the
 * positions are whole, and the same, on every rank. (Shoeybi et al. 2019, arXiv:1909.08053) With sequence
 * parallelism a rank has some rows of the stream alone (sharing.c). */
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

/* This rank's rows of the stream, from the beginning of its memory. */
static struct tensor own(const struct model *m, struct tensor t, int64_t n)
{
    return tensor_rows(t, 0, model_own_rows(m, n).count);
}

/* Dropout of what is added to these rows. */
static struct dropout own_dropout(const struct model *m, const struct model_input *input,
                                  int64_t layer, enum dropout_place place)
{
    struct dropout dropout = model_dropout(m, input, layer, place);
    dropout.first += model_own_rows(m, input->rows).first * m->config.width;
    return dropout;
}

static enum norm_kind norm_kind(const struct model *m)
{
    return m->architecture->rms ? NORM_RMS : NORM_LAYER;
}

static status norm_after(struct model *m, struct tensor stream, struct tensor norm,
                         struct tensor statistics, struct tensor x, struct tensor delta,
                         struct place place, struct dropout dropout)
{
    return residual_norm_forward(m->kernels, stream, norm, statistics, x, delta,
                                 model_vector(m, place.weight), model_vector(m, place.bias),
                                 norm_kind(m), m->config.norm_epsilon, dropout);
}

/* Queries and keys lie side by side, and are turned together. */
static status turn(struct model *m, const struct model_input *input, struct tensor qkv, bool back)
{
    struct tensor turned = tensor_columns(qkv, 0, m->share.width + m->share.kv_width);
    return m->architecture->rotary
               ? rotary_apply(m->kernels, turned, m->activations.angles, input->positions, back)
               : STATUS_OK;
}

status model_project_qkv(struct model *m, const struct model_input *input, int64_t layer)
{
    int64_t n = input->rows;
    struct layer_activations *a = &m->activations.layers[layer];
    struct place place = model_place(m, layer, MODEL_QKV);
    struct tensor norm, qkv = first(a->qkv, n);
    TRY(model_spread(m, own(m, a->norm1, n), n, &norm));
    TRY(linear_forward(m->kernels, qkv, tensor_absent(), norm, model_matrix(m, place.weight),
                       model_vector(m, place.bias), ACTIVATION_NONE));
    TRY(model_adapters_forward(m, input, layer, place, qkv, norm));
    return turn(m, input, qkv, false);
}

/* The first id of this rank's part of the token table. */
static int64_t first_token(const struct model *m)
{
    return m->rank * m->parameters[m->places[MODEL_TOKEN_TABLE].weight].rows;
}

/* y = x w^T + b over all ranks' columns of x and w, into `exchange`; one rank adds the bias. */
static status project(struct model *m, const struct model_input *input, int64_t layer,
                      struct place place, struct tensor x)
{
    struct tensor y = first(m->activations.exchange, x.rows);
    TRY(linear_forward(m->kernels, y, tensor_absent(), x, model_matrix(m, place.weight),
                       m->rank == 0 ? model_vector(m, place.bias) : tensor_absent(),
                       ACTIVATION_NONE));
    TRY(model_adapters_forward(m, input, layer, place, y, x));
    return model_add_up(m, x.rows);
}

status model_project_attended(struct model *m, const struct model_input *input, int64_t layer)
{
    return project(m, input, layer, model_place(m, layer, MODEL_PROJECTION),
                   first(m->activations.layers[layer].attended, input->rows));
}

static status attention_block(struct model *m, const struct model_input *input, int64_t layer)
{
    struct layer_activations *a = &m->activations.layers[layer];
    int64_t n = input->rows;
    struct tensor qkv = first(a->qkv, n);
    struct attention attention = model_attention(m, input, layer);
    TRY(model_project_qkv(m, input, layer));
    TRY(attention_forward(m->kernels, first(a->attended, n), first_columns(a->lse, n),
                          model_queries(m, qkv), model_keys(m, qkv), model_values(m, qkv),
                          &attention));
    return model_project_attended(m, input, layer);
}

/* y = act(x W^T + b), and what adapters add before the activation. */
static status activate(struct model *m, const struct model_input *input, int64_t layer,
                       struct place place, struct tensor y, struct tensor kept, struct tensor x,
                       enum activation act)
{
    bool apart = act != ACTIVATION_NONE && model_is_adapted(m, place);
    TRY(linear_forward(m->kernels, y, apart ? tensor_absent() : kept, x,
                       model_matrix(m, place.weight), model_vector(m, place.bias),
                       apart ? ACTIVATION_NONE : act));
    TRY(model_adapters_forward(m, input, layer, place, y, x));
    return apart ? activation_forward(m->kernels, y, kept, act) : STATUS_OK;
}

/* What backward makes again of this layer: the last one's memory was nobody's since. */
static enum model_recompute recomputed(const struct model *m, int64_t layer)
{
    return m->training && layer + 1 < m->config.layers ? m->config.recompute : MODEL_KEEP_ALL;
}

/* The activation of what the product has left in `kept`; again: and what goes backward through it. */
static status activate_kept(struct model *m, int64_t layer, int64_t n, bool again)
{
    struct layer_activations *a = &m->activations.layers[layer];
    struct tensor inner = first(a->inner, n), kept = first(a->kept, n);
    if (m->architecture->gated) {
        return swiglu_forward(m->kernels, inner, kept);
    }
    TRY(dropout_apply(m->kernels, inner, kept, (struct dropout){0})); /* a copy */
    return activation_forward(m->kernels, inner, again ? kept : tensor_absent(),
                              m->config.activation);
}

/* Up to the activation. Where that will be made again, what it was made of is kept. */
static status feed_forward_inner(struct model *m, const struct model_input *input, int64_t layer)
{
    int64_t n = input->rows;
    struct layer_activations *a = &m->activations.layers[layer];
    struct place place = model_place(m, layer, MODEL_FC);
    struct tensor norm, inner = first(a->inner, n), kept = first(a->kept, n);
    bool apart = m->architecture->gated || recomputed(m, layer) == MODEL_RECOMPUTE_SELECTIVE;
    TRY(model_spread(m, own(m, a->norm2, n), n, &norm));
    if (!apart) {
        return activate(m, input, layer, place, inner, kept, norm, m->config.activation);
    }
    TRY(activate(m, input, layer, place, kept, tensor_absent(), norm, ACTIVATION_NONE));
    return activate_kept(m, layer, n, false);
}

/* Rows of the position table from a sequence's first position on. */
static struct tensor positions_of(const struct model *m, struct tensor table)
{
    int64_t begin = m->architecture->first_position;
    return tensor_rows(table, begin, table.rows - begin);
}

static struct dropout embedding_dropout(const struct model *m, const struct model_input *input)
{
    return m->architecture->post_norm ? (struct dropout){0}
                                      : model_dropout(m, input, -1, DROPOUT_PROJECTION);
}

/* Positions are added by one rank. */
status model_embed(struct model *m, const struct model_input *input)
{
    int64_t n = input->rows;
    bool alone = m->ranks == 1;
    struct tensor stream = own(m, m->activations.layers[0].input, n), sum = model_added(m, n);
    struct tensor positions =
        positions_of(m, model_matrix(m, m->places[MODEL_POSITION_TABLE].weight));
    TRY(embedding_forward(m->kernels, alone ? stream : first(m->activations.exchange, n),
                          input->tokens, input->positions,
                          model_matrix(m, m->places[MODEL_TOKEN_TABLE].weight), first_token(m),
                          m->rank == 0 ? positions : tensor_absent(), embedding_dropout(m, input)));
    TRY(model_add_up(m, n));
    return alone ? STATUS_OK
                 : device_copy(kernels_device(m->kernels), kernels_stream(m->kernels), stream.data,
                               sum.data, (size_t)(sum.rows * sum.columns) * dtype_bytes(sum.dtype));
}

/* The stream and the norm that follow layer `layer`: the next layer's, or the final ones. */
static void after_layer(struct model *m, int64_t layer, int64_t n, struct tensor *stream,
                        struct tensor *norm, struct tensor *statistics)
{
    struct activations *all = &m->activations;
    bool last = layer + 1 == m->config.layers;
    struct layer_activations *next = last ? NULL : &all->layers[layer + 1];
    *stream = own(m, last ? all->last : next->input, n);
    *norm = own(m, last ? all->final_norm : next->norm1, n);
    *statistics = own(m, last ? all->final_statistics : next->statistics1, n);
}

/* From the attention's output in `exchange` to the inner features. */
static status layer_middle(struct model *m, const struct model_input *input, int64_t layer)
{
    struct layer_activations *a = &m->activations.layers[layer];
    int64_t n = input->rows;
    struct tensor read = own(m, m->architecture->post_norm ? a->norm1 : a->input, n);
    TRY(norm_after(m, own(m, a->middle, n), own(m, a->norm2, n), own(m, a->statistics2, n), read,
                   model_added(m, n), model_place(m, layer, MODEL_NORM2),
                   own_dropout(m, input, layer, DROPOUT_PROJECTION)));
    return feed_forward_inner(m, input, layer);
}

/* From the attention's output in `exchange` to the next layer's norm1 (or the final norm). */
status model_layer_rest(struct model *m, const struct model_input *input, int64_t layer)
{
    struct layer_activations *a = &m->activations.layers[layer];
    int64_t n = input->rows;
    bool post = m->architecture->post_norm;
    struct tensor delta = model_added(m, n), stream, norm, statistics;
    TRY(layer_middle(m, input, layer));
    TRY(project(m, input, layer, model_place(m, layer, MODEL_FC_PROJECTION), first(a->inner, n)));
    after_layer(m, layer, n, &stream, &norm, &statistics);
    return norm_after(m, stream, norm, statistics, own(m, post ? a->norm2 : a->middle, n), delta,
                      model_place(m, layer + 1, MODEL_NORM1),
                      own_dropout(m, input, layer, DROPOUT_FC));
}

static const int32_t *segment_ids(const struct model *m, const struct model_input *input)
{
    return m->config.segments == 1 ? m->activations.no_segments.data : input->segment_ids;
}

/* Behind the embedding's norm, where norms are behind. */
static status drop_first_norm(struct model *m, const struct model_input *input)
{
    struct tensor norm = own(m, m->activations.layers[0].norm1, input->rows);
    struct dropout dropout = own_dropout(m, input, -1, DROPOUT_PROJECTION);
    bool behind = m->architecture->post_norm && dropout.probability > 0;
    return behind ? dropout_apply(m->kernels, norm, norm, dropout) : STATUS_OK;
}

/* What segments add to this rank's rows of the stream. */
static status embed_segments(struct model *m, const struct model_input *input, struct tensor *delta)
{
    *delta = tensor_absent();
    if (m->config.segments == 0) {
        return STATUS_OK;
    }
    *delta = model_added(m, input->rows);
    return embedding_forward(m->kernels, *delta,
                             segment_ids(m, input) + model_own_rows(m, input->rows).first, NULL,
                             model_matrix(m, m->places[MODEL_SEGMENT_TABLE].weight), 0,
                             tensor_absent(), (struct dropout){0});
}

status model_first_norm(struct model *m, const struct model_input *input)
{
    int64_t n = input->rows;
    struct layer_activations *a = &m->activations.layers[0];
    struct tensor stream = own(m, a->input, n), norm = own(m, a->norm1, n), delta;
    TRY(embed_segments(m, input, &delta));
    TRY(norm_after(m, stream, norm, own(m, a->statistics1, n), stream, delta,
                   model_place(m, 0, MODEL_NORM1), (struct dropout){0}));
    return drop_first_norm(m, input);
}

status model_hidden(struct model *m, int64_t n, struct tensor *hidden)
{
    return model_spread(m, own(m, m->activations.final_norm, n), n, hidden);
}

/* Weights up to the end of this layer are read next; behind the layers, all of them. */
static status need(const struct model *m, const struct model_input *input, int64_t layer)
{
    bool behind = layer == m->config.layers;
    int64_t end =
        behind ? m->elements : model_layer_first(m->parameters, m->parameter_count, layer + 1);
    return input->needed == NULL ? STATUS_OK : input->needed(input->user, end);
}

status model_forward(struct model *m, const struct model_input *input, struct tensor *hidden)
{
    REQUIRE(input->rows <= m->rows, STATUS_INTERNAL, "a micro-batch of %lld rows, %lld are planned",
            (long long)input->rows, (long long)m->rows);
    TRY(need(m, input, 0));
    TRY(model_embed(m, input));
    TRY(model_first_norm(m, input));
    for (int64_t layer = 0; layer < m->config.layers; layer++) {
        TRY(need(m, input, layer + 1)); /* whose norm follows this one */
        TRY(attention_block(m, input, layer));
        TRY(model_layer_rest(m, input, layer));
    }
    TRY(model_hidden(m, input->rows, hidden));
    if (input->output_rows == NULL) {
        return STATUS_OK;
    }
    TRY(kernels_graph_cut(m->kernels)); /* each micro-batch has as many of these rows as it has */
    return m->config.task != MODEL_WORDS ? model_task_forward(m, input, *hidden, hidden)
                                         : model_heads_forward(m, input, *hidden, hidden);
}

/* ---- backward ---- */

struct backward {
    struct model *m;
    const struct model_input *input;
    float *const *gradients;
    int64_t n;
};

/* Without output rows BERT's head, or a task's, has no part in it. */
static bool head_is_used(const struct model *m, const struct model_input *input)
{
    bool all = !m->architecture->transform && m->config.task == MODEL_WORDS;
    return all || input->output_rows != NULL;
}

/* Whether backward (or, for the head, the objective) sets a fresh gradient by a product; tables and norms
 * are added to. */
static bool gradient_is_set(const struct model *m, const struct model_input *input, int parameter)
{
    switch (m->parameters[parameter].role) {
    case MODEL_TOKEN_TABLE:
        return m->config.tied && m->config.task == MODEL_WORDS && head_is_used(m, input);
    case MODEL_POSITION_TABLE:
    case MODEL_SEGMENT_TABLE:
    case MODEL_NORM1:
    case MODEL_NORM2:
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

static status clear_sums(const struct model *m, const struct model_input *input,
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

/* A norm's output from the sum that was kept. */
static status norm_again(struct model *m, int64_t n, struct tensor z, struct tensor norm,
                         struct tensor statistics, struct place place)
{
    return norm_after(m, tensor_absent(), own(m, norm, n), own(m, statistics, n), own(m, z, n),
                      tensor_absent(), place, (struct dropout){0});
}

/* What forward has not kept of a layer, to the bit. Whatever `exchange` held was read before. */
static status layer_again(struct backward *b, int64_t layer)
{
    struct model *m = b->m;
    struct layer_activations *a = &m->activations.layers[layer];
    enum model_recompute how = recomputed(m, layer);
    if (how == MODEL_KEEP_ALL) {
        return STATUS_OK;
    }
    TRY(norm_again(m, b->n, a->input, a->norm1, a->statistics1,
                   model_place(m, layer, MODEL_NORM1)));
    TRY(layer == 0 ? drop_first_norm(m, b->input) : STATUS_OK);
    if (how == MODEL_RECOMPUTE_FULL) {
        TRY(attention_block(m, b->input, layer));
        return layer_middle(m, b->input, layer);
    }
    TRY(norm_again(m, b->n, a->middle, a->norm2, a->statistics2,
                   model_place(m, layer, MODEL_NORM2)));
    return activate_kept(m, layer, b->n, true);
}

static status weight_backward(struct backward *b, struct place place, struct tensor dy,
                              struct tensor x)
{
    struct model *m = b->m;
    return linear_backward_weight(m->kernels, model_gradient(m, place.weight, b->gradients),
                                  model_gradient(m, place.bias, b->gradients), dy, x,
                                  b->input->fresh);
}

/* Gradients of an output projection: of its weights from dy and x, and of this rank's columns of x (before
 * their own activation). */
static status project_backward(struct backward *b, int64_t layer, enum model_role role,
                               struct tensor dx, struct tensor dy, struct tensor x,
                               enum activation act, struct tensor kept)
{
    struct model *m = b->m;
    struct place place = model_place(m, layer, role);
    struct tensor matrix = model_matrix(m, place.weight);
    TRY(weight_backward(b, place, dy, x));
    if (!model_is_adapted(m, place)) {
        return linear_backward_input(m->kernels, dx, dy, matrix, act, kept);
    }
    TRY(linear_backward_input(m->kernels, dx, dy, matrix, ACTIVATION_NONE, tensor_absent()));
    TRY(model_adapters_backward_input(m, b->input, layer, place, dx, dy));
    TRY(model_adapters_backward_weight(m, b->input, layer, place, b->gradients, dy, x));
    return act == ACTIVATION_NONE ? STATUS_OK : activation_backward(m->kernels, dx, dx, kept, act);
}

/* Of a matrix that reads the stream: of its weights, and, where something below is trained, of the norm's output x
 * into `exchange`, added up over the ranks behind the product of the weights. */
static status reader_backward(struct backward *b, int64_t layer, enum model_role role, bool below,
                              struct tensor dy, struct tensor x)
{
    struct model *m = b->m;
    struct place place = model_place(m, layer, role);
    struct tensor all, dx = below ? first(m->activations.exchange, b->n) : tensor_absent();
    TRY(model_spread_start(m, x, b->n, &all));
    TRY(below ? linear_backward_input(m->kernels, dx, dy, model_matrix(m, place.weight),
                                      ACTIVATION_NONE, tensor_absent())
              : STATUS_OK);
    TRY(model_adapters_backward_input(m, b->input, layer, place, dx, dy));
    TRY(model_spread_wait(m));
    TRY(below ? model_add_up_start(m, b->n) : STATUS_OK);
    TRY(weight_backward(b, place, dy, all));
    TRY(model_adapters_backward_weight(m, b->input, layer, place, b->gradients, dy, all));
    return below ? model_add_up_wait(m, b->n) : STATUS_OK;
}

/* Whether the norm before a layer's attention, or something before it, is trained. */
static bool is_trained_below(const struct model *m, int64_t layer)
{
    struct place norm = model_place(m, layer, MODEL_NORM1);
    return layer > model_lowest_trained(m->parameters, m->parameter_count) ||
           m->parameters[norm.weight].trained ||
           (norm.bias >= 0 && m->parameters[norm.bias].trained);
}

/* A norm with the gradient of its output in `exchange`, and what was added to the stream
 * before it; *delta is its gradient. */
static status norm_backward(struct backward *b, struct place place, struct tensor z,
                            struct tensor statistics, enum norm_stream reads,
                            struct dropout dropout, struct tensor *delta)
{
    struct model *m = b->m;
    struct tensor stream = own(m, m->activations.d_stream, b->n);
    struct tensor dgamma, dbeta;
    model_norm_gradients(m, place, b->gradients, &dgamma, &dbeta);
    struct tensor gamma_sums = dgamma, beta_sums = dbeta;
    bool dropped = dropout.probability > 0;
    *delta = dropped ? own(m, m->activations.d_delta, b->n) : stream;
    TRY(model_norm_sums_begin(m, &gamma_sums, &beta_sums));
    TRY(residual_norm_backward(m->kernels, stream, dropped ? *delta : tensor_absent(), gamma_sums,
                               beta_sums, model_added(m, b->n), own(m, z, b->n),
                               own(m, statistics, b->n), model_vector(m, place.weight),
                               norm_kind(m), reads, dropout));
    return model_norm_sums_end(m, dgamma, dbeta);
}

static status feed_forward_backward(struct backward *b, int64_t layer, struct tensor delta)
{
    struct model *m = b->m;
    struct layer_activations *a = &m->activations.layers[layer];
    struct tensor d_inner = first(m->activations.d_inner, b->n), kept = first(a->kept, b->n), dy;
    bool gated = m->architecture->gated;
    TRY(model_spread(m, delta, b->n, &dy));
    TRY(project_backward(b, layer, MODEL_FC_PROJECTION, d_inner, dy, first(a->inner, b->n),
                         gated ? ACTIVATION_NONE : m->config.activation,
                         gated ? tensor_absent() : kept));
    TRY(gated ? swiglu_backward(m->kernels, kept, d_inner, kept) : STATUS_OK);
    return reader_backward(b, layer, MODEL_FC, true, gated ? kept : d_inner,
                           own(m, a->norm2, b->n));
}

static status attention_block_backward(struct backward *b, int64_t layer, struct tensor delta)
{
    struct model *m = b->m;
    struct layer_activations *a = &m->activations.layers[layer];
    struct tensor qkv = first(a->qkv, b->n), d_qkv = first(m->activations.d_qkv, b->n);
    struct tensor exchange = m->activations.exchange;
    struct tensor d_attended = tensor_view(exchange.data, exchange.dtype, b->n, m->share.width);
    struct attention attention = model_attention(m, b->input, layer);
    struct tensor dy;
    TRY(model_spread(m, delta, b->n, &dy));
    TRY(project_backward(b, layer, MODEL_PROJECTION, d_attended, dy, first(a->attended, b->n),
                         ACTIVATION_NONE, tensor_absent()));
    TRY(attention_backward(m->kernels, model_queries(m, d_qkv), model_keys(m, d_qkv),
                           model_values(m, d_qkv), d_attended, model_queries(m, qkv),
                           model_keys(m, qkv), model_values(m, qkv), first(a->attended, b->n),
                           first_columns(a->lse, b->n), &attention));
    TRY(turn(m, b->input, d_qkv, true));
    return reader_backward(b, layer, MODEL_QKV, is_trained_below(m, layer), d_qkv,
                           own(m, a->norm1, b->n));
}

/* What the stream reads of the norms within. */
static enum norm_stream stream_reads(const struct model *m)
{
    return m->architecture->post_norm ? NORM_STREAM_NORM : NORM_STREAM_SUM;
}

/* The norm before attention of layer `layer`, or the last one. */
static status norm1_backward(struct backward *b, int64_t layer, enum norm_stream reads,
                             struct tensor *delta)
{
    struct model *m = b->m;
    struct activations *all = &m->activations;
    bool last = layer == m->config.layers;
    struct dropout below =
        layer > 0 ? own_dropout(m, b->input, layer - 1, DROPOUT_FC) : (struct dropout){0};
    return norm_backward(
        b, model_place(m, layer, MODEL_NORM1), last ? all->last : all->layers[layer].input,
        last ? all->final_statistics : all->layers[layer].statistics1, reads, below, delta);
}

/* delta in: gradient of what the layer's feed-forward added; out, in GPT-2: of what the layer below added. The
 * layer's gradients are final then. */
static status layer_backward(struct backward *b, int64_t layer, struct tensor *delta)
{
    struct model *m = b->m;
    struct layer_activations *a = &m->activations.layers[layer];
    TRY(layer_again(b, layer));
    TRY(feed_forward_backward(b, layer, *delta));
    TRY(norm_backward(b, model_place(m, layer, MODEL_NORM2), a->middle, a->statistics2,
                      stream_reads(m), own_dropout(m, b->input, layer, DROPOUT_PROJECTION), delta));
    TRY(attention_block_backward(b, layer, *delta));
    bool last = m->architecture->post_norm || !is_trained_below(m, layer);
    return last ? STATUS_OK : norm1_backward(b, layer, NORM_STREAM_SUM, delta);
}

/* Dropout behind the embedding's norm: of both parts of the gradient that norm1_backward adds up. */
static status embedded_backward(struct backward *b, struct tensor *delta)
{
    struct model *m = b->m;
    struct dropout dropout = own_dropout(m, b->input, -1, DROPOUT_PROJECTION);
    struct tensor parts[] = {own(m, m->activations.d_stream, b->n), model_added(m, b->n)};
    for (int i = 0; i < 2 && dropout.probability > 0; i++) {
        TRY(dropout_apply(m->kernels, parts[i], parts[i], dropout));
    }
    return norm1_backward(b, 0, NORM_STREAM_NORM, delta);
}

static status tables_backward(struct backward *b)
{
    struct model *m = b->m;
    const struct model_input *input = b->input;
    struct tensor positions =
        model_gradient(m, m->places[MODEL_POSITION_TABLE].weight, b->gradients);
    struct tensor delta;
    TRY(model_spread(m, own(m, m->activations.d_stream, b->n), b->n, &delta));
    if (m->config.segments > 0) {
        struct tensor segments =
            model_gradient(m, m->places[MODEL_SEGMENT_TABLE].weight, b->gradients);
        TRY(embedding_backward(m->kernels, segments, 0, tensor_absent(), delta,
                               segment_ids(m, input), NULL, (struct dropout){0}));
    }
    return embedding_backward(m->kernels,
                              model_gradient(m, m->places[MODEL_TOKEN_TABLE].weight, b->gradients),
                              first_token(m), positions_of(m, positions), delta, input->tokens,
                              input->positions, embedding_dropout(m, input));
}

/* Whether something behind the blocks' last sum, in it or before it is trained: else only the head is. */
static bool norm_is_reached(const struct model *m, int64_t lowest)
{
    int last = model_place(m, m->config.layers, MODEL_NORM1).weight;
    return lowest < m->config.layers || m->parameters[last].trained;
}

/* From what the objective has written to the gradient of all rows. */
static status output_backward(struct backward *b)
{
    if (b->input->output_rows == NULL) {
        return model_add_up(b->m, b->n);
    }
    return b->m->config.task != MODEL_WORDS ? model_task_backward(b->m, b->input, b->gradients)
                                            : model_heads_backward(b->m, b->input, b->gradients);
}

status model_backward(struct model *m, const struct model_input *input, float *const *gradients,
                      model_final final, void *user)
{
    struct backward b = {m, input, gradients, input->rows};
    bool post = m->architecture->post_norm;
    int64_t lowest = model_lowest_trained(m->parameters, m->parameter_count);
    struct tensor delta;
    if (input->fresh) {
        TRY(clear_sums(m, input, gradients));
    }
    TRY(output_backward(&b));
    TRY(kernels_graph_cut(m->kernels));
    if (norm_is_reached(m, lowest)) {
        TRY(norm1_backward(&b, m->config.layers, NORM_STREAM_NOTHING, &delta));
    }
    for (int64_t layer = m->config.layers - 1; layer >= 0 && layer >= lowest; layer--) {
        if (post && layer + 1 < m->config.layers) {
            TRY(norm1_backward(&b, layer + 1, NORM_STREAM_NORM, &delta));
        }
        TRY(layer_backward(&b, layer, &delta));
        if (final != NULL) {
            TRY(final(user, model_layer_first(m->parameters, m->parameter_count, layer)));
        }
    }
    if (lowest < 0) {
        TRY(post ? embedded_backward(&b, &delta) : STATUS_OK);
        TRY(tables_backward(&b));
    }
    return final != NULL ? final(user, 0) : STATUS_OK;
}
