/* The sub-layers of a block, with the norms and the additions to the residual stream around them.
 *
 * Each pass walks the list of the block, which is data (architecture.h). A sub-layer of any kind
 * reads a norm of the stream and adds to the stream:
 *
 *   PLACEMENT_PRE     x' = x + drop(f(norm(x)))
 *   PLACEMENT_POST    y = norm(x), x' = y + drop(f(y)): the stream continues with the norm's output
 *   PLACEMENT_BRANCH  x' = x + drop(output_norm(f(x)))
 *   PLACEMENT_BOTH    x' = x + drop(output_norm(f(norm(x))))
 *
 * Each addition is fused with the norm that follows it: the norm of the next sub-layer, the first
 * norm of the next layer, or the final norm of the stack. The first norm of a stack belongs to the
 * embedding (embedding.c).
 *
 * Recompute: full recompute keeps the stream at the input of a layer and runs the list again, up to
 * the last output projection. Selective recompute keeps the interior of the sub-layers and the
 * stream between them, and computes norms and activations again. Both give identical bits. */
#include "trainer/model/sublayers.h"

static const struct sublayer_type *const types[SUBLAYER_KINDS] = {
    [SUBLAYER_SELF_ATTENTION] = &model_self_attention,
    [SUBLAYER_CROSS_ATTENTION] = &model_cross_attention,
    [SUBLAYER_FEED_FORWARD] = &model_feed_forward,
};

const struct sublayer_type *model_sublayer_type(enum sublayer_kind kind)
{
    return types[kind];
}

static const struct block *get_block(const struct model *m, int64_t layer)
{
    return m->stacks[layer < m->stacks[0].end ? 0 : m->stack_count - 1].block;
}

/* Returns the activations of sub-layer i of a layer. */
static struct sublayer_activations *get_sublayer(const struct model *m, int64_t layer, int i)
{
    return &m->activations.layers[layer].sublayers[get_block(m, layer)->sublayers[i]];
}

struct sublayer_activations *model_first_sublayer(const struct model *m, int64_t layer)
{
    return get_sublayer(m, layer, 0);
}

/* ---- memory ---- */

/* Returns whether a layer needs memory for tensors that this recompute mode does not keep. The
 * first layer of a stack has memory for all tensors, because the later ones may use it. */
static bool has_memory(const struct arrangement *a, bool first, enum recompute_mode recomputed)
{
    return first || (a->training && a->config->recompute < recomputed);
}

static status take_stream(const struct arrangement *a, struct tensor *out)
{
    return arena_take_tensor(a->arena, a->dtype, a->local_rows, a->config->width, out);
}

static status take_statistics(const struct arrangement *a, struct tensor *out)
{
    return arena_take_tensor(a->arena, DTYPE_F32, a->local_rows, 2, out);
}

/* Takes the input of the norm of a sub-layer's output, and its statistics. */
static status arrange_output(const struct arrangement *a, struct sublayer_activations *s)
{
    if (architecture_has_branch_norms(a->architecture)) {
        TRY(take_stream(a, &s->output));
        TRY(take_statistics(a, &s->output_statistics));
    }
    return STATUS_OK;
}

/* Takes the activations of sub-layer i of a block: those of its kind, and the stream before it.
 * Full recompute begins after the input of a layer and ends before the output of its last
 * sub-layer. Therefore the stream at both places is always kept. */
static status arrange_sublayer(const struct arrangement *a, const struct block *block, int i,
                               bool first, struct layer_activations *out)
{
    const struct sublayer_type *type = types[block->sublayers[i]];
    struct sublayer_activations *s = &out->sublayers[block->sublayers[i]];
    bool always = first || a->training, interior = has_memory(a, first, RECOMPUTE_FULL),
         activations = has_memory(a, first, RECOMPUTE_SELECTIVE);
    bool norm_reads_stream = a->architecture->norm.placement == PLACEMENT_BRANCH;
    TRY((i == 0 ? always : interior) ? take_stream(a, &s->stream) : STATUS_OK);
    TRY((i + 1 == block->count ? always : interior) ? arrange_output(a, s) : STATUS_OK);
    if (!norm_reads_stream && (type->keeps_norm ? interior : activations)) {
        TRY(take_stream(a, &s->norm));
    }
    if (interior) {
        TRY(take_statistics(a, &s->statistics));
        TRY(type->arrange_kept(a, out));
    }
    if (activations && type->arrange_recomputed != NULL) {
        TRY(type->arrange_recomputed(a, out));
    }
    s->norm = norm_reads_stream ? s->stream : s->norm;
    return STATUS_OK;
}

status model_arrange_layer(const struct arrangement *a, struct layer_activations *layers,
                           int64_t layer)
{
    const struct model_config *c = a->config;
    int stack = model_layer_stack(c, layer), adapters = 0;
    int64_t base = stack > 0 ? c->encoder_layers : 0;
    const struct block *block = &a->architecture->blocks[stack];
    bool first = layer == base;
    struct layer_activations *out = &layers[layer];
    *out = layers[base];
    if (first || a->training) {
        TRY(model_adapters_per_layer(c, layer, &adapters));
        TRY(arena_take_tensor(a->arena, a->dtype, a->rows, c->adapter.rank * adapters,
                              &out->adapter_hidden));
    }
    for (int i = 0; i < block->count; i++) {
        TRY(arrange_sublayer(a, block, i, first, out));
    }
    return STATUS_OK;
}

status model_arrange_gradients(const struct arrangement *a, struct activations *out)
{
    for (int kind = 0; kind < SUBLAYER_KINDS; kind++) {
        if (types[kind]->arrange_gradients != NULL) {
            TRY(types[kind]->arrange_gradients(a, out));
        }
    }
    return STATUS_OK;
}

/* ---- forward ---- */

struct dropout model_local_dropout(const struct model *m, const struct model_input *input,
                                   int64_t layer, enum dropout_site site)
{
    struct dropout dropout = model_dropout(m, input, layer, site);
    dropout.first += model_local_rows(m, input->rows).first * model_dropout_columns(m, layer);
    return dropout;
}

status model_add_and_norm(struct model *m, struct tensor stream, struct tensor norm,
                          struct tensor statistics, struct tensor x, struct tensor delta,
                          struct param_index index, struct dropout dropout)
{
    bool has_norm = index.weight != PARAM_NONE;
    return residual_norm_forward(m->kernels, stream, has_norm ? norm : tensor_absent(), statistics,
                                 x, delta, model_vector(m, index.weight),
                                 model_vector(m, index.bias), m->architecture->norm.kind,
                                 m->config.norm_epsilon, dropout);
}

/* A norm of the stream: this rank's rows of its input, its output and its statistics, and its
 * parameters. */
struct stream_norm {
    struct tensor stream, norm, statistics;
    struct param_index index;
};

/* Returns the norm before sub-layer i of a layer. After the last sub-layer it is the first norm of
 * the next layer, or the norm at the end of the stack. */
static struct stream_norm find_norm(const struct model *m, const struct model_input *input,
                                    int64_t layer, int i)
{
    const struct stack *stack = model_get_stack(m, input);
    int64_t n = input->rows;
    layer += i / stack->block->count;
    i %= stack->block->count;
    if (layer == stack->end) {
        return (struct stream_norm){
            model_view_local_rows(m, *stack->last, n), model_view_local_rows(m, *stack->norm, n),
            model_view_local_rows(m, *stack->statistics, n), stack->end_norm};
    }
    const struct sublayer_activations *s = get_sublayer(m, layer, i);
    return (struct stream_norm){
        model_view_local_rows(m, s->stream, n), model_view_local_rows(m, s->norm, n),
        model_view_local_rows(m, s->statistics, n),
        model_param_index(m, layer, types[stack->block->sublayers[i]]->norm)};
}

/* Applies the norm of the output, or the factor residual_multiplier, to the output of a sub-layer
 * in `exchange`, if the architecture has one of them. s->output keeps the norm's input for
 * backward. */
static status finish_output(struct model *m, int64_t n, const struct sublayer_activations *s,
                            struct param_index index)
{
    struct tensor y = model_reduced_rows(m, n), output = model_view_local_rows(m, s->output, n);
    if (index.weight == PARAM_NONE) {
        float factor = (float)m->config.residual_multiplier;
        return factor > 0 ? op_scale(m->kernels, y, factor) : STATUS_OK;
    }
    TRY(op_copy(m->kernels, output, y));
    return model_add_and_norm(m, tensor_absent(), y,
                              model_view_local_rows(m, s->output_statistics, n), output,
                              tensor_absent(), index, (struct dropout){0});
}

/* Adds the output of sub-layer i in `exchange` to the stream, and computes the next norm. */
static status add_output(struct model *m, const struct model_input *input, int64_t layer, int i,
                         enum dropout_site site)
{
    struct stream_norm read = find_norm(m, input, layer, i),
                       next = find_norm(m, input, layer, i + 1);
    bool continues_norm = architecture_continues_norm1(m->architecture, layer == 0 && i == 0);
    return model_add_and_norm(
        m, next.stream, next.norm, next.statistics, continues_norm ? read.norm : read.stream,
        model_reduced_rows(m, input->rows), next.index, model_local_dropout(m, input, layer, site));
}

/* Runs the sub-layers of a layer. for_backward: without the last output projection and what follows
 * it, because backward does not read their results. */
static status run_sublayers(struct model *m, const struct model_input *input, int64_t layer,
                            bool for_backward)
{
    const struct block *block = get_block(m, layer);
    for (int i = 0; i < block->count; i++) {
        const struct sublayer_type *type = types[block->sublayers[i]];
        struct tensor interior;
        TRY(type->forward(m, input, layer, &interior));
        if (for_backward && i + 1 == block->count) {
            break;
        }
        TRY(model_project_output(m, input, layer, type->projection, interior));
        TRY(finish_output(m, input->rows, get_sublayer(m, layer, i),
                          model_param_index(m, layer, type->output_norm)));
        TRY(add_output(m, input, layer, i, type->dropout));
    }
    return STATUS_OK;
}

status model_run_layer(struct model *m, const struct model_input *input, int64_t layer)
{
    return run_sublayers(m, input, layer, false);
}

/* ---- recompute ---- */

/* Computes the output of the norm before sub-layer i from the stream again, if there is a norm. */
static status recompute_norm(struct model *m, const struct model_input *input, int64_t layer, int i)
{
    struct stream_norm norm = find_norm(m, input, layer, i);
    return norm.index.weight == PARAM_NONE
               ? STATUS_OK
               : model_add_and_norm(m, tensor_absent(), norm.norm, norm.statistics, norm.stream,
                                    tensor_absent(), norm.index, (struct dropout){0});
}

/* Computes the output of the first norm of a layer again, with what the embedding does to it. */
static status recompute_first_norm(struct model *m, const struct model_input *input, int64_t layer)
{
    bool first = layer == model_get_stack(m, input)->first;
    if (first && model_is_factorized(&m->config)) {
        return model_project_embedding(m, input);
    }
    TRY(recompute_norm(m, input, layer, 0));
    return first ? model_drop_first_norm(m, input) : STATUS_OK;
}

/* Computes what selective recompute does not keep, except the output of the first norm. */
static status recompute_selected(struct model *m, const struct model_input *input, int64_t layer)
{
    const struct block *block = get_block(m, layer);
    for (int i = 0; i < block->count; i++) {
        const struct sublayer_type *type = types[block->sublayers[i]];
        TRY(i > 0 && !type->keeps_norm ? recompute_norm(m, input, layer, i) : STATUS_OK);
        TRY(type->recompute != NULL ? type->recompute(m, input, layer) : STATUS_OK);
    }
    return STATUS_OK;
}

/* Recomputes the activations that forward did not keep, with identical bits. This overwrites
 * `exchange`, which backward no longer reads. */
static status recompute_layer(struct model *m, const struct model_input *input, int64_t layer)
{
    enum recompute_mode mode = model_get_recompute(m, layer);
    if (mode == RECOMPUTE_NONE) {
        return STATUS_OK;
    }
    TRY(recompute_first_norm(m, input, layer));
    return mode == RECOMPUTE_FULL ? run_sublayers(m, input, layer, true)
                                  : recompute_selected(m, input, layer);
}

/* ---- backward ---- */

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
    TRY(residual_norm_backward(
        m->kernels, dz, ddelta, gamma_sums, beta_sums, dbias, dy, model_view_local_rows(m, z, b->n),
        model_view_local_rows(m, statistics, b->n), model_vector(m, index.weight),
        m->architecture->norm.kind, residual, dropout));
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

/* Runs the backward pass of the norm before sub-layer i of a layer, and of the addition before it:
 * add_output of the previous sub-layer. `exchange` holds the gradient of the norm's output. *delta
 * becomes the gradient of the value that was added to the stream. The addition also sums the bias
 * gradient of the output projection that computed this value. */
static status norm_backward(struct backward *b, int64_t layer, int i, enum norm_residual residual,
                            struct tensor *delta)
{
    struct model *m = b->m;
    const struct stack *stack = model_get_stack(m, b->input);
    struct stream_norm norm = find_norm(m, b->input, layer, i);
    struct tensor stream = model_view_local_rows(m, m->activations.d_stream, b->n);
    struct dropout dropout = {0};
    struct bias_gradient dbias = {0};
    if (i > 0 || layer > stack->first) {
        int64_t before = i > 0 ? layer : layer - 1;
        int previous = (i > 0 ? i : stack->block->count) - 1;
        const struct sublayer_type *type = types[stack->block->sublayers[previous]];
        dropout = model_local_dropout(m, b->input, before, type->dropout);
        dbias = model_early_bias_gradient(b, before, type->projection);
    }
    if (norm.index.weight == PARAM_NONE) {
        return addition_backward(b, dropout, delta);
    }
    bool dropped = dropout.probability > 0;
    *delta = dropped ? model_view_local_rows(m, m->activations.d_delta, b->n) : stream;
    return model_run_norm_backward(b, norm.index, stream, dropped ? *delta : tensor_absent(), dbias,
                                   model_reduced_rows(m, b->n), norm.stream, norm.statistics,
                                   residual, dropout);
}

status model_norm1_backward(struct backward *b, int64_t layer, enum norm_residual residual,
                            struct tensor *delta)
{
    return norm_backward(b, layer, 0, residual, delta);
}

/* Runs the backward pass of finish_output. *delta becomes the gradient of the output of the
 * sub-layer. */
static status output_backward(struct backward *b, const struct sublayer_activations *s,
                              struct param_index index, struct tensor *delta)
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
                                   s->output, s->output_statistics, NORM_RESIDUAL_NONE,
                                   (struct dropout){0});
}

status model_layer_backward(struct backward *b, int64_t layer, struct tensor *delta)
{
    struct model *m = b->m;
    const struct block *block = get_block(m, layer);
    enum norm_residual residual =
        architecture_is_post_norm(m->architecture) ? NORM_RESIDUAL_POST : NORM_RESIDUAL_PRE;
    bool needs_first = model_needs_norm1_gradient(m, layer);
    TRY(recompute_layer(m, b->input, layer));
    for (int i = block->count - 1; i >= 0; i--) {
        const struct sublayer_type *type = types[block->sublayers[i]];
        TRY(output_backward(b, get_sublayer(m, layer, i),
                            model_param_index(m, layer, type->output_norm), delta));
        TRY(type->backward(b, layer, i > 0 || needs_first, *delta));
        TRY(i > 0 ? norm_backward(b, layer, i, residual, delta) : STATUS_OK);
    }
    bool ends = architecture_continues_norm1(m->architecture, layer == 0) || !needs_first;
    return ends ? STATUS_OK : norm_backward(b, layer, 0, NORM_RESIDUAL_PRE, delta);
}
