/* The embedding: from token ids to the residual stream at the input of the first block, and its
 * gradients.
 *
 *   e = table[token] + positions;   x_0 = e, or norm(e + token types)
 *
 * A factor of the token embeddings does not apply to a table of positions: its rows are added
 * later, like the rows of the token types.
 *
 * With a factorized embedding (ALBERT), tables and norm have U columns, and a matrix maps them to
 * the width: x_0 = M norm(e + token types) + b. The sum, its norm and the statistics then have
 * separate memory. Otherwise they are the input, norm1 and statistics1 of the first block. With
 * embedding.extra_norm (mBART), sum and statistics have separate memory, and the norm is the input
 * of the first block.
 *
 * Source    factorized: Lan et al. 2020, arXiv:1909.11942, section 3.1 */
#include <math.h>

#include "trainer/model/sublayers.h"

/* Returns the parameter of the token table of the stack that reads the input. */
static int find_token_table(const struct model *m, const struct model_input *input)
{
    return model_token_table(m, model_get_stack(m, input));
}

/* Returns the first token id of this rank's shard of a token table. */
static int64_t find_first_token(const struct model *m, int table)
{
    return m->rank * m->parameters[table].rows;
}

/* Returns the layer number of the dropout of a stack's embedding: -1, and for a decoder a number
 * above the numbers of all layers. */
static int64_t get_embedding_site(const struct model *m, const struct model_input *input)
{
    return model_get_stack(m, input)->first > 0 ? model_cross_site(m, m->config.layers) : -1;
}

/* Returns the first sub-layer of the stack that reads the input: its stream and its norm. */
static const struct sublayer_activations *get_first_sublayer(const struct model *m,
                                                             const struct model_input *input)
{
    return model_first_sublayer(m, model_get_stack(m, input)->first);
}

/* The sum of the embeddings, its norm and the statistics of the norm: this rank's rows. */
struct embedding {
    struct tensor sum, norm, statistics;
};

static bool has_extra_norm(const struct model *m)
{
    return m->architecture->embedding.extra_norm;
}

static struct embedding view_embedding(struct model *m, const struct model_input *input)
{
    const struct activations *a = &m->activations;
    const struct sublayer_activations *first = get_first_sublayer(m, input);
    int64_t n = input->rows, stack = model_get_stack(m, input) - m->stacks;
    bool factorized = model_is_factorized(&m->config), separate = factorized || has_extra_norm(m);
    struct tensor norm = factorized ? a->embedding_norm : separate ? first->stream : first->norm;
    return (struct embedding){
        model_view_local_rows(m, separate ? a->embedding_sum[stack] : first->stream, n),
        model_view_local_rows(m, norm, n),
        model_view_local_rows(m, separate ? a->embedding_statistics[stack] : first->statistics, n)};
}

/* Returns the parameter of the position table of the stack that reads the input; -1: none. */
static int find_position_table(const struct model *m, const struct model_input *input)
{
    return model_get_stack(m, input)->param_index[MODEL_POSITION_TABLE].weight;
}

/* Returns the rows of the position table from a sequence's first position on. */
static struct tensor skip_unused_positions(const struct model *m, struct tensor table)
{
    int64_t begin = table.data != NULL ? m->architecture->embedding.first_position : 0;
    return tensor_rows(table, begin, table.rows - begin);
}

static struct dropout get_embedding_dropout(const struct model *m, const struct model_input *input)
{
    return architecture_continues_norm1(m->architecture, true) || has_extra_norm(m) ||
                   architecture_drops_sum(m->architecture)
               ? (struct dropout){0}
               : model_dropout(m, input, get_embedding_site(m, input), DROPOUT_PROJECTION);
}

/* Returns the factor of the token embeddings; 0: none. */
static float get_embedding_factor(const struct model *m)
{
    return m->architecture->embedding.scaled ? sqrtf((float)m->config.width)
                                             : (float)m->config.embedding_multiplier;
}

/* Multiplies the token embeddings, or their gradient, by their factor. */
static status scale_embedding(const struct model *m, struct tensor x)
{
    float factor = get_embedding_factor(m);
    return factor > 0 ? op_scale(m->kernels, x, factor) : STATUS_OK;
}

/* Returns whether the positions are added after the token embeddings have been multiplied. */
static bool adds_positions_later(const struct model *m, const struct model_input *input)
{
    return get_embedding_factor(m) > 0 && find_position_table(m, input) >= 0;
}

/* Only rank 0 adds the positions, because the results are reduced over the ranks. */
status model_embed(struct model *m, const struct model_input *input)
{
    int64_t n = input->rows;
    bool single_rank = m->ranks == 1;
    int64_t columns = model_embedding_width(&m->config);
    int table = find_token_table(m, input);
    struct tensor stream = view_embedding(m, input).sum;
    bool fixed = m->architecture->embedding.positions == POSITIONS_SINUSOIDAL;
    struct tensor positions =
        fixed ? m->activations.position_table
        : adds_positions_later(m, input)
            ? tensor_absent()
            : skip_unused_positions(m, model_matrix(m, find_position_table(m, input)));
    TRY(model_update_position_bias(m, input));
    TRY(embedding_forward(m->kernels, single_rank ? stream : model_view_exchange(m, n, columns),
                          input->tokens, input->positions, model_matrix(m, table),
                          find_first_token(m, table), m->rank == 0 ? positions : tensor_absent(),
                          get_embedding_dropout(m, input)));
    TRY(model_reduce_columns(m, n, columns));
    TRY(single_rank ? STATUS_OK
                    : op_copy(m->kernels, stream, model_reduced_columns(m, n, columns)));
    return scale_embedding(m, stream);
}

static const int32_t *get_token_type_ids(const struct model *m, const struct model_input *input)
{
    return m->config.token_types == 1 ? m->activations.zero_token_type_ids.data
                                      : input->token_type_ids;
}

status model_drop_first_norm(struct model *m, const struct model_input *input)
{
    struct embedding e = view_embedding(m, input);
    struct dropout dropout =
        model_local_dropout(m, input, get_embedding_site(m, input), DROPOUT_PROJECTION);
    if (!architecture_continues_norm1(m->architecture, true)) {
        return STATUS_OK;
    }
    if (!architecture_has_first_norm(m->architecture)) {
        return dropout_apply(m->kernels, e.norm, e.sum, dropout);
    }
    return dropout.probability > 0 ? dropout_apply(m->kernels, e.norm, e.norm, dropout) : STATUS_OK;
}

/* Computes the embeddings of the token types of this rank's rows, or the embeddings of the
 * positions if they are added later; *delta is absent without them. No architecture has both. */
static status embed_addition(struct model *m, const struct model_input *input, struct tensor *delta)
{
    bool positions = adds_positions_later(m, input);
    *delta = tensor_absent();
    if (m->config.token_types == 0 && !positions) {
        return STATUS_OK;
    }
    *delta = model_reduced_columns(m, input->rows, model_embedding_width(&m->config));
    const int32_t *ids = positions ? input->positions : get_token_type_ids(m, input);
    struct tensor table =
        positions ? skip_unused_positions(m, model_matrix(m, find_position_table(m, input)))
                  : model_matrix(m, m->param_index[MODEL_TOKEN_TYPE_TABLE].weight);
    return embedding_forward(m->kernels, *delta, ids + model_local_rows(m, input->rows).first, NULL,
                             table, 0, tensor_absent(), (struct dropout){0});
}

/* If dropout follows the sum of embedding and token types (architecture_drops_sum), computes this
 * sum in the stream and applies dropout. *delta is then absent. */
static status drop_sum(struct model *m, const struct model_input *input, struct tensor stream,
                       struct tensor *delta)
{
    struct dropout dropout = model_local_dropout(m, input, -1, DROPOUT_PROJECTION);
    struct tensor none = tensor_absent(), sum = *delta;
    if (!architecture_drops_sum(m->architecture) || !(dropout.probability > 0)) {
        return STATUS_OK;
    }
    *delta = none;
    if (sum.data != NULL) {
        TRY(model_add_and_norm(m, stream, none, none, stream, sum,
                               (struct param_index){PARAM_NONE, PARAM_NONE}, (struct dropout){0}));
    }
    return dropout_apply(m->kernels, stream, stream, dropout);
}

status model_project_embedding(struct model *m, const struct model_input *input)
{
    struct param_index index = m->param_index[MODEL_EMBEDDING_PROJECTION];
    struct tensor y = model_view_local_rows(m, get_first_sublayer(m, input)->norm, input->rows);
    return linear_forward(m->kernels, y, tensor_absent(), view_embedding(m, input).norm,
                          model_matrix(m, index.weight), model_bias(m, index.bias),
                          ACTIVATION_NONE);
}

/* Applies dropout to the norm of the embedding, and computes norm1 of the first block from it. */
static status finish_extra_norm(struct model *m, const struct model_input *input)
{
    const struct sublayer_activations *first = get_first_sublayer(m, input);
    struct tensor x = view_embedding(m, input).norm;
    struct dropout dropout =
        model_local_dropout(m, input, get_embedding_site(m, input), DROPOUT_PROJECTION);
    TRY(dropout.probability > 0 ? dropout_apply(m->kernels, x, x, dropout) : STATUS_OK);
    return model_add_and_norm(
        m, tensor_absent(), model_view_local_rows(m, first->norm, input->rows),
        model_view_local_rows(m, first->statistics, input->rows), x, tensor_absent(),
        model_param_index(m, model_get_stack(m, input)->first, MODEL_NORM1), (struct dropout){0});
}

/* Returns the parameters of the norm that reads the sum of the embeddings. */
static struct param_index find_first_norm(const struct model *m, const struct model_input *input)
{
    const struct stack *stack = model_get_stack(m, input);
    return has_extra_norm(m) ? stack->param_index[MODEL_EMBEDDING_NORM]
                             : model_param_index(m, stack->first, MODEL_NORM1);
}

status model_first_norm(struct model *m, const struct model_input *input)
{
    struct embedding e = view_embedding(m, input);
    struct tensor delta;
    if (!architecture_has_first_norm(m->architecture)) {
        return model_drop_first_norm(m, input);
    }
    TRY(embed_addition(m, input, &delta));
    TRY(drop_sum(m, input, e.sum, &delta));
    TRY(model_add_and_norm(m, e.sum, e.norm, e.statistics, e.sum, delta, find_first_norm(m, input),
                           (struct dropout){0}));
    if (has_extra_norm(m)) {
        return finish_extra_norm(m, input);
    }
    TRY(model_drop_first_norm(m, input));
    return model_is_factorized(&m->config) ? model_project_embedding(m, input) : STATUS_OK;
}

/* ---- backward ---- */

/* Runs the backward pass of the embedding's norm if the stream continues with norm1. Dropout
 * follows the norm; it applies to both summands of the gradient. */
static status embedding_norm_backward(struct backward *b, struct tensor *delta)
{
    struct model *m = b->m;
    struct dropout dropout =
        model_local_dropout(m, b->input, get_embedding_site(m, b->input), DROPOUT_PROJECTION);
    struct tensor parts[] = {model_view_local_rows(m, m->activations.d_stream, b->n),
                             model_reduced_rows(m, b->n)};
    for (int i = 0; i < 2 && dropout.probability > 0; i++) {
        TRY(dropout_apply(m->kernels, parts[i], parts[i], dropout));
    }
    return model_norm1_backward(b, model_get_stack(m, b->input)->first, NORM_RESIDUAL_POST, delta);
}

/* Computes the gradients of the matrix that maps the embedding to the width. With sequence
 * parallelism each rank adds the terms of its rows.
 *
 * Shapes    dy [n, C], x [n, U] */
static status projection_weight_backward(struct backward *b, struct tensor dy, struct tensor x)
{
    struct model *m = b->m;
    struct param_index index = m->param_index[MODEL_EMBEDDING_PROJECTION];
    struct tensor gradients[2] = {model_gradient(m, index.weight, b->gradients),
                                  model_gradient(m, index.bias, b->gradients)};
    struct tensor sums[2] = {gradients[0], gradients[1]};
    TRY(model_embedding_reduce_begin(m, sums));
    TRY(linear_backward_weight(m->kernels, sums[0], sums[1], dy, x, false));
    return model_embedding_reduce_end(m, gradients);
}

/* Runs the backward pass of a factorized embedding from the gradient of x_0 to the gradient of the
 * sum e, which *delta receives. */
static status factorized_backward(struct backward *b, struct tensor *delta)
{
    struct model *m = b->m;
    struct embedding e = view_embedding(m, b->input);
    struct tensor none = tensor_absent();
    struct tensor dy = model_view_local_rows(m, m->activations.d_stream, b->n);
    struct dropout dropout = model_local_dropout(m, b->input, -1, DROPOUT_PROJECTION);
    TRY(model_add_and_norm(m, dy, none, none, dy, model_reduced_rows(m, b->n),
                           (struct param_index){PARAM_NONE, PARAM_NONE}, (struct dropout){0}));
    TRY(projection_weight_backward(b, dy, e.norm));
    *delta = model_reduced_columns(m, b->n, e.norm.columns);
    TRY(linear_backward_input(m->kernels, *delta, (struct bias_gradient){0}, dy,
                              model_matrix(m, m->param_index[MODEL_EMBEDDING_PROJECTION].weight),
                              ACTIVATION_NONE, none));
    if (dropout.probability > 0) {
        TRY(dropout_apply(m->kernels, *delta, *delta, dropout));
    }
    return model_run_norm_backward(b, m->param_index[MODEL_EMBEDDING_NORM], *delta, none,
                                   (struct bias_gradient){0}, *delta, e.sum, e.statistics,
                                   NORM_RESIDUAL_NONE, (struct dropout){0});
}

/* Runs the backward pass of the embedding's norm that precedes norm1 of the first block. */
static status extra_norm_backward(struct backward *b)
{
    struct model *m = b->m;
    struct embedding e = view_embedding(m, b->input);
    struct tensor stream = model_view_local_rows(m, m->activations.d_stream, b->n);
    struct dropout dropout =
        model_local_dropout(m, b->input, get_embedding_site(m, b->input), DROPOUT_PROJECTION);
    TRY(dropout.probability > 0 ? dropout_apply(m->kernels, stream, stream, dropout) : STATUS_OK);
    return model_run_norm_backward(b, find_first_norm(m, b->input), stream, tensor_absent(),
                                   (struct bias_gradient){0}, stream, e.sum, e.statistics,
                                   NORM_RESIDUAL_NONE, (struct dropout){0});
}

/* Computes the gradients of the tables.
 *
 * Shapes    stream [n, U], the gradient of the sum of the embeddings */
static status tables_backward(struct backward *b, struct tensor stream)
{
    struct model *m = b->m;
    const struct model_input *input = b->input;
    struct tensor positions = model_gradient(m, find_position_table(m, input), b->gradients);
    struct tensor delta;
    int table = find_token_table(m, input);
    struct dropout dropout = model_local_dropout(m, input, -1, DROPOUT_PROJECTION);
    if (architecture_drops_sum(m->architecture) && dropout.probability > 0) {
        TRY(dropout_apply(m->kernels, stream, stream, dropout));
    }
    TRY(model_all_gather(m, stream, b->n, &delta));
    if (adds_positions_later(m, input)) {
        TRY(embedding_backward(m->kernels, skip_unused_positions(m, positions), 0, tensor_absent(),
                               delta, input->positions, NULL, (struct dropout){0}));
        positions = tensor_absent();
    }
    TRY(scale_embedding(m, delta));
    if (m->config.token_types > 0) {
        struct tensor table_gradient =
            model_gradient(m, m->param_index[MODEL_TOKEN_TYPE_TABLE].weight, b->gradients);
        TRY(embedding_backward(m->kernels, table_gradient, 0, tensor_absent(), delta,
                               get_token_type_ids(m, input), NULL, (struct dropout){0}));
    }
    return embedding_backward(m->kernels, model_gradient(m, table, b->gradients),
                              find_first_token(m, table), skip_unused_positions(m, positions),
                              delta, input->tokens, input->positions,
                              get_embedding_dropout(m, input));
}

status model_embedding_backward(struct backward *b, struct tensor *delta)
{
    struct model *m = b->m;
    if (model_is_factorized(&m->config)) {
        TRY(factorized_backward(b, delta));
        return tables_backward(b, *delta);
    }
    bool continues = architecture_continues_norm1(m->architecture, true);
    TRY(continues ? embedding_norm_backward(b, delta) : STATUS_OK);
    TRY(has_extra_norm(m) ? extra_norm_backward(b) : STATUS_OK);
    return tables_backward(b, model_view_local_rows(m, m->activations.d_stream, b->n));
}
