/* The parameter layout: names, shapes, order, split and initial values of all parameters.
 *
 * One builder makes the list for every architecture from its description (architecture.h). A block
 * is a list of sub-layers, and the file of each kind appends its parameters (sublayers.h).
 * Parameters are in forward order. Matrices and embeddings start with N(0, initializer_range),
 * biases with 0, norms with 1. With scaled_residuals, the standard deviation of the projections
 * into the residual stream is divided by sqrt(2 L) (GPT-2). With fan_in_init (T5), the standard
 * deviation is initializer_range / sqrt(K) for a matrix of K inputs, and initializer_range for the
 * embeddings. A fine-tuning head comes last, with the names of ...ForSequenceClassification and
 * similar classes.
 */
#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/number.h"
#include "trainer/model/layout_impl.h"
#include "trainer/model/sublayers.h"

/* Each parameter starts on a 64-byte boundary, in f32 and in the bf16 copy. */
enum { ALIGNMENT_ELEMS = 32 };

static int64_t align_up(int64_t elements)
{
    return number_round_up(elements, ALIGNMENT_ELEMS);
}

/* Upper limits of the number of parameters in a block and outside the blocks. */
enum { BLOCK_PARAMETERS = 48, OTHER_PARAMETERS = 16 };

/* The rows of a vocabulary shard are a multiple of this, so that the output GEMM has whole vectors.
 * Padded rows stay zero. */
enum { VOCABULARY_UNIT = 32 };

static int64_t compute_shard_rows(int64_t vocabulary, int ranks)
{
    int64_t unit = (int64_t)VOCABULARY_UNIT * ranks;
    return number_divide_up(vocabulary, unit) * VOCABULARY_UNIT;
}

int64_t model_vocabulary_rows(const struct model_config *config, int ranks)
{
    return compute_shard_rows(config->vocabulary, ranks);
}

/* Trained parameters are in forward order, so those from `layer` on follow the earlier ones. */
int64_t model_layer_first(const struct model_parameter *parameters, int count, int64_t layer)
{
    int64_t first = 0;
    for (int i = 0; i < count && parameters[i].layer < layer; i++) {
        const struct model_parameter *p = &parameters[i];
        first = p->trained ? align_up(p->first + p->rows * p->columns) : first;
    }
    return first;
}

int64_t model_first_trained_layer(const struct model_parameter *parameters, int count)
{
    int i = 0;
    while (i + 1 < count && !parameters[i].trained) {
        i++;
    }
    return parameters[i].layer;
}

int64_t model_trained_elems(const struct model_parameter *parameters, int count)
{
    return model_layer_first(parameters, count, INT64_MAX);
}

int64_t model_parameter_elems(const struct model_parameter *p)
{
    int64_t elements = 0;
    for (int i = 0; i < p->shard_count; i++) {
        elements += p->shards[i].rows * p->shards[i].columns;
    }
    return elements;
}

static void append_shard(struct model_parameter *p, struct model_shard shard)
{
    if (shard.rows > 0 && shard.columns > 0) {
        shard.first = model_parameter_elems(p);
        p->shards[p->shard_count++] = shard;
    }
}

/* Computes this rank's shards of a split parameter. Padding is at the end of the last ranks. */
static void split_parameter(struct model_parameter *p, const struct shape *shape, int rank)
{
    bool along_rows = shape->split == SPLIT_ROWS;
    int64_t begin = 0, total = 0;
    for (int i = 0; i < shape->section_count; i++) {
        struct section s = shape->sections[i];
        int64_t first = s.local * rank, left = s.whole - first, position = begin + first;
        int64_t count = number_min(left, s.local);
        append_shard(p, along_rows ? (struct model_shard){0, position, 0, count, shape->columns}
                                   : (struct model_shard){0, 0, position, shape->rows, count});
        begin += s.whole;
        total += s.local;
    }
    *(along_rows ? &p->rows : &p->columns) = total;
}

static bool is_frozen(const char *patterns, const char *name)
{
    char pattern[MODEL_NAME_BYTES];
    for (const char *cursor = patterns; cursor != NULL && layout_next_item(&cursor, pattern);) {
        if (fnmatch(pattern, name, 0) == 0) {
            return true;
        }
    }
    return false;
}

/* Returns whether a parameter is the constant bias of the logits. */
static bool is_logits_bias(const struct architecture *a, const struct model_parameter *p)
{
    return a->names->logits_bias != NULL && strcmp(p->name, a->names->logits_bias) == 0;
}

static bool is_frozen_by_position(const struct model_config *c, const struct model_parameter *p)
{
    const struct model_freezing *f = &c->freezing;
    int64_t blocks = f->backbone ? c->layers : f->layers;
    bool last_norm = p->layer >= c->layers && p->role == MODEL_NORM1;
    return p->layer < 0 ? f->embeddings || f->backbone
                        : p->layer < blocks || (f->backbone && last_norm);
}

void layout_append(struct layout *layout, enum model_role role, struct shape shape,
                   const char *name)
{
    struct model_parameter *p = &layout->parameters[layout->count++];
    *p = (struct model_parameter){
        .role = role,
        .layer = layout->layer,
        .stack = layout->stack,
        .fused_count = shape.fused_count > 0 ? shape.fused_count : 1,
        .rows = shape.rows,
        .columns = shape.columns,
        .whole_rows = shape.rows,
        .whole_columns = shape.columns,
        .replicated = shape.split == SPLIT_NONE,
        .dimensions = shape.dimensions,
        .transposed = shape.transposed,
        .decay = shape.dimensions == 2,
        .init_value = shape.init_value,
        .init_std = shape.init_std,
        .init_bound = shape.init_bound,
    };
    if (shape.split == SPLIT_NONE) {
        append_shard(p, (struct model_shard){0, 0, 0, shape.rows, shape.columns});
    } else {
        split_parameter(p, &shape, layout->rank);
    }
    snprintf(p->name, sizeof p->name, "%s", name);
    p->trained = layout->config->adapter.rank > 0
                     ? model_is_adapter(p) || model_is_task_head(layout->config, p)
                     : !is_frozen(layout->config->frozen, p->name) &&
                           !is_frozen_by_position(layout->config, p) &&
                           !is_logits_bias(layout->architecture, p);
    if (layout->count - layout->block <= BLOCK_PARAMETERS) {
        layout->shapes[layout->count - layout->block - 1] = shape;
    }
}

/* Assigns offsets to all trained (or all frozen) parameters, after those that already have one. */
static void assign_offsets(struct layout *layout, bool trained)
{
    for (int i = 0; i < layout->count; i++) {
        struct model_parameter *p = &layout->parameters[i];
        int64_t size = p->rows * p->columns;
        if (p->trained == trained) {
            p->first = layout->elements;
            p->vector_offset = layout->vectors;
            layout->vectors += p->dimensions == 1 ? size : 0;
            layout->elements += size;
            layout->elements = p->fused_count > 1 ? layout->elements : align_up(layout->elements);
        }
    }
}

static status check_frozen_parameters(const struct layout *layout)
{
    REQUIRE(model_trained_elems(layout->parameters, layout->count) > 0, STATUS_RECIPE,
            "train.freeze freezes all parameters of the model; leave at least one to train");
    for (int i = 0; i < layout->count; i++) {
        const struct model_parameter *p = &layout->parameters[i];
        REQUIRE(p->fused_count == 1 || p[0].trained == p[1].trained, STATUS_RECIPE,
                "%s is frozen and %s is not, but a GEMM reads both as one matrix; freeze both or "
                "neither",
                p[p[0].trained ? 1 : 0].name, p[p[0].trained ? 0 : 1].name);
    }
    return STATUS_OK;
}

/* ---- shapes ---- */

static struct shape make_table(int64_t rows, int64_t columns, float init_std)
{
    return (struct shape){.rows = rows, .columns = columns, .dimensions = 2, .init_std = init_std};
}

static struct shape make_vector(int64_t columns, float init_value)
{
    return (struct shape){.rows = 1, .columns = columns, .dimensions = 1, .init_value = init_value};
}

/* Returns the initial deviation of a matrix with this number of inputs. */
static float compute_init_std(const struct layout *layout, int64_t inputs)
{
    float range = layout->config->initializer_range;
    return layout->architecture->fan_in_init ? range / sqrtf((float)inputs) : range;
}

/* Returns the shape of a matrix within a block. */
static struct shape make_block_matrix(const struct layout *layout, int64_t rows, int64_t columns)
{
    struct shape shape = make_table(rows, columns, compute_init_std(layout, columns));
    shape.transposed = layout->architecture->transposed;
    return shape;
}

static struct shape split_whole(struct shape shape, enum split split, int64_t whole, int64_t local)
{
    shape.split = split;
    shape.section_count = 1;
    shape.sections[0] = (struct section){whole, local};
    return shape;
}

/* Splits a matrix by rows, or its bias by columns. */
static struct shape split_outputs(struct shape shape, int ranks)
{
    int64_t outputs = shape.dimensions == 2 ? shape.rows : shape.columns;
    return split_whole(shape, shape.dimensions == 2 ? SPLIT_ROWS : SPLIT_COLUMNS, outputs,
                       outputs / ranks);
}

/* Splits a matrix by columns. Its bias is replicated, and one rank adds it. */
static struct shape split_inputs(struct shape shape, int ranks)
{
    return split_whole(shape, SPLIT_COLUMNS, shape.columns, shape.columns / ranks);
}

static struct shape make_fused(struct shape shape, int count)
{
    shape.fused_count = count;
    return shape;
}

static struct shape make_vocabulary(const struct layout *layout, int64_t vocabulary, float init_std)
{
    struct shape shape = make_table(vocabulary, model_embedding_width(layout->config), init_std);
    return split_whole(shape, SPLIT_ROWS, vocabulary,
                       compute_shard_rows(vocabulary, layout->ranks));
}

static struct shape make_decoder_bias(const struct layout *layout)
{
    int64_t vocabulary = layout->config->vocabulary;
    return split_whole(make_vector(vocabulary, 0), SPLIT_COLUMNS, vocabulary,
                       model_vocabulary_rows(layout->config, layout->ranks));
}

/* ---- parts ---- */

static void append_part(struct layout *layout, enum model_role role, struct shape shape,
                        const char *name, const char *suffix)
{
    char full_name[MODEL_NAME_BYTES];
    snprintf(full_name, sizeof full_name, "%s%s.%s", layout->prefix, name, suffix);
    layout_append(layout, role, shape, full_name);
}

void layout_append_gain(struct layout *layout, enum model_role role, int64_t columns, bool is_split,
                        const char *name)
{
    struct shape shape = make_vector(columns, 1);
    append_part(layout, role, is_split ? split_outputs(shape, layout->ranks) : shape, name,
                "weight");
}

static void append_norm_columns(struct layout *layout, enum model_role role, int64_t columns,
                                const char *name)
{
    if (layout->architecture->norm.no_weight) {
        return;
    }
    layout_append_gain(layout, role, columns, false, name);
    if (layout->architecture->norm.kind == NORM_LAYER && !layout->architecture->norm.no_bias) {
        append_part(layout, role, make_vector(columns, 0), name, "bias");
    }
}

static void append_norm(struct layout *layout, enum model_role role, const char *name)
{
    append_norm_columns(layout, role, layout->config->width, name);
}

/* Appends a dense layer of a head with its bias. Each rank holds all of it. */
static void append_dense(struct layout *layout, enum model_role role, int64_t outputs,
                         int64_t inputs, const char *name)
{
    float init_std = layout->config->initializer_range;
    append_part(layout, role, make_table(outputs, inputs, init_std), name, "weight");
    append_part(layout, role, make_vector(outputs, 0), name, "bias");
}

/* Appends the weights of all matrices, then their biases. */
static void append_separate(struct layout *layout, enum model_role role,
                            const struct input_matrix *matrices, int count, bool bias)
{
    for (int i = 0; i < count; i++) {
        struct shape shape = make_block_matrix(layout, matrices[i].rows, layout->config->width);
        shape.init_std *= matrices[i].init_factor;
        append_part(layout, role, make_fused(split_outputs(shape, layout->ranks), count - i),
                    matrices[i].name, "weight");
    }
    for (int i = 0; i < count && bias; i++) {
        struct shape shape = make_vector(matrices[i].rows, 0);
        append_part(layout, role, make_fused(split_outputs(shape, layout->ranks), count - i),
                    matrices[i].name, "bias");
    }
}

/* Splits each section of a joint matrix, or of its bias. One rank has one shard. */
static struct shape split_joint(struct shape shape, const struct input_matrix *matrices, int count,
                                int ranks)
{
    shape = split_outputs(shape, ranks);
    for (int i = 0; i < count && ranks > 1; i++) {
        shape.sections[i] = (struct section){matrices[i].rows, matrices[i].rows / ranks};
        shape.section_count = i + 1;
    }
    return shape;
}

/* Appends matrices that are one matrix of the file with this name. */
static void append_joint(struct layout *layout, enum model_role role, const char *name,
                         const struct input_matrix *matrices, int count, bool bias)
{
    int64_t rows = 0;
    for (int i = 0; i < count; i++) {
        rows += matrices[i].rows;
    }
    struct shape weight = make_block_matrix(layout, rows, layout->config->width);
    append_part(layout, role, split_joint(weight, matrices, count, layout->ranks), name, "weight");
    if (bias) {
        append_part(layout, role, split_joint(make_vector(rows, 0), matrices, count, layout->ranks),
                    name, "bias");
    }
}

void layout_append_inputs(struct layout *layout, enum model_role role, const char *joint,
                          const struct input_matrix *matrices, int count, bool bias)
{
    if (joint != NULL) {
        append_joint(layout, role, joint, matrices, count, bias);
    } else {
        append_separate(layout, role, matrices, count, bias);
    }
}

void layout_append_projection(struct layout *layout, enum model_role role, int64_t inputs,
                              bool bias, const char *name)
{
    const struct model_config *c = layout->config;
    struct shape shape = make_block_matrix(layout, c->width, inputs);
    if (layout->architecture->scaled_residuals) {
        shape.init_std = c->initializer_range / sqrtf(2.0f * (float)c->layers);
    }
    append_part(layout, role, split_inputs(shape, layout->ranks), name, "weight");
    if (bias) {
        append_part(layout, role, make_vector(c->width, 0), name, "bias");
    }
}

/* ---- blocks ---- */

/* Returns the name of a norm of a block. */
static const char *get_norm_name(const struct architecture_names *names, enum model_role role)
{
    switch (role) {
    case MODEL_NORM1:
        return names->norm1;
    case MODEL_ATTENTION_NORM:
        return names->attention_norm;
    case MODEL_CROSS_NORM:
        return names->cross_norm;
    case MODEL_CROSS_OUTPUT_NORM:
        return names->cross_output_norm;
    case MODEL_NORM2:
        return names->norm2;
    default:
        return names->feed_forward_norm;
    }
}

static void append_block_norm(struct layout *layout, enum model_role role)
{
    append_norm(layout, role, get_norm_name(layout->names, role));
}

/* Returns whether the norm before sub-layer i belongs to the current block. Before the first
 * sub-layer, this can be the norm of the embedding; with PLACEMENT_POST it belongs to the block
 * before. */
static bool has_input_norm(const struct layout *layout, int i)
{
    const struct architecture *a = layout->architecture;
    bool input_norms = architecture_has_input_norms(a);
    return i > 0 ? input_norms || architecture_is_post_norm(a)
                 : input_norms && !architecture_continues_norm1(a, layout->layer == 0);
}

/* Appends the parameters of sub-layer i of the current block. */
static void append_sublayer(struct layout *layout, const struct sublayer_type *type, int i)
{
    if (has_input_norm(layout, i)) {
        append_block_norm(layout, type->norm);
    }
    type->append_parameters(layout);
    if (architecture_has_branch_norms(layout->architecture)) {
        append_block_norm(layout, type->output_norm);
    }
}

/* Appends a block. With PLACEMENT_POST, the norm at its end has the role of the first norm. */
static void append_block(struct layout *layout)
{
    const struct architecture *a = layout->architecture;
    const struct block *block = &a->blocks[layout->stack];
    int64_t number = layout->layer - (layout->stack > 0 ? layout->config->encoder_layers : 0);
    layout->block = layout->count;
    snprintf(layout->prefix, sizeof layout->prefix, "%s.%d.", layout->names->block, (int)number);
    for (int i = 0; i < block->count; i++) {
        append_sublayer(layout, model_sublayer_type(block->sublayers[i]), i);
    }
    layout_append_adapters(layout);
    if (architecture_is_post_norm(a)) {
        append_block_norm(layout, model_sublayer_type(block->sublayers[0])->norm);
    }
    layout->prefix[0] = '\0';
}

/* Selects the stack of the parameters that are appended next. */
static void select_stack(struct layout *layout, int stack)
{
    const struct architecture *a = layout->architecture;
    layout->stack = stack;
    layout->names = stack > 0 ? a->decoder_names : a->names;
}

static void append_token_table(struct layout *layout, const char *name)
{
    const struct model_config *c = layout->config;
    bool is_source = layout->stack == 0 && c->source_vocabulary > 0;
    append_part(layout, MODEL_TOKEN_TABLE,
                make_vocabulary(layout, is_source ? c->source_vocabulary : c->vocabulary,
                                c->initializer_range),
                name, "weight");
}

/* Appends the parameters of the embedding of a stack. The token table is one of them only if each
 * stack has its own. */
static void append_embedding(struct layout *layout)
{
    const struct architecture *a = layout->architecture;
    const struct model_config *c = layout->config;
    const struct architecture_names *names = layout->names;
    int64_t columns = model_embedding_width(c);
    if (c->separate_embeddings) {
        append_token_table(layout, names->separate_token_table);
    }
    if (a->embedding.positions == POSITIONS_LEARNED) {
        int64_t rows = model_positions(c) + a->embedding.first_position;
        append_part(layout, MODEL_POSITION_TABLE, make_table(rows, columns, c->initializer_range),
                    names->position_table, "weight");
    }
    if (architecture_has_token_types(a) && c->token_types > 0) {
        append_part(layout, MODEL_TOKEN_TYPE_TABLE,
                    make_table(c->token_types, columns, c->initializer_range),
                    names->token_type_table, "weight");
    }
    if (a->embedding.positions == POSITIONS_RELATIVE) {
        struct shape shape =
            make_table(c->position_buckets, c->heads, compute_init_std(layout, c->width));
        append_part(layout, MODEL_POSITION_BIAS, split_inputs(shape, layout->ranks),
                    names->position_bias, "weight");
    }
    if (architecture_has_embedding_norm(a)) {
        append_norm_columns(layout, MODEL_EMBEDDING_NORM, columns, names->embedding_norm);
    }
    if (model_is_factorized(c)) {
        append_dense(layout, MODEL_EMBEDDING_PROJECTION, c->width, columns,
                     names->embedding_projection);
    }
}

/* Appends the blocks of a stack up to the layer `end`, and its final norm. Shared layers have one
 * block. In the encoder of an encoder-decoder, the final norm belongs to the last block: its
 * gradient is final before the gradients of the other parameters of this block. */
static void append_stack(struct layout *layout, int64_t end)
{
    for (; layout->layer < end; layout->layer++) {
        append_block(layout);
        layout->layer = layout->architecture->shared_layers ? end - 1 : layout->layer;
    }
    if (!architecture_is_post_norm(layout->architecture)) {
        layout->layer -= end < layout->config->layers ? 1 : 0;
        append_norm(layout, MODEL_NORM1, layout->names->final_norm);
        layout->layer = end;
    }
}

/* Appends the dense layer and the norm before the vocabulary matrix. */
static void append_transform(struct layout *layout, int64_t columns)
{
    const struct architecture *a = layout->architecture;
    const struct model_config *c = layout->config;
    append_part(layout, MODEL_TRANSFORM, make_table(columns, c->width, c->initializer_range),
                a->names->transform, "weight");
    if (!a->head.no_bias) {
        append_part(layout, MODEL_TRANSFORM, make_vector(columns, 0), a->names->transform, "bias");
    }
    append_norm_columns(layout, MODEL_TRANSFORM_NORM, columns, a->names->transform_norm);
}

static void append_lm_head(struct layout *layout)
{
    const struct architecture *a = layout->architecture;
    const struct model_config *c = layout->config;
    bool next_sentence = c->next_sentence && a->names->next_sentence != NULL;
    if (next_sentence) {
        append_dense(layout, MODEL_POOLER, c->width, c->width, a->names->pooler);
    }
    if (a->head.transform) {
        append_transform(layout, model_embedding_width(c));
    }
    if (!c->tied) {
        append_part(layout, MODEL_DECODER,
                    make_vocabulary(layout, c->vocabulary, compute_init_std(layout, c->width)),
                    a->names->decoder, "weight");
    }
    if (a->names->decoder_bias != NULL && !a->head.no_logits_bias) {
        append_part(layout, MODEL_DECODER, make_decoder_bias(layout), a->names->decoder_bias,
                    "bias");
    }
    if (c->logits_bias && a->names->logits_bias != NULL) {
        layout_append(layout, MODEL_DECODER, make_decoder_bias(layout), a->names->logits_bias);
    }
    if (next_sentence) {
        append_dense(layout, MODEL_LABELS, 2, c->width, a->names->next_sentence);
    }
}

static const char *get_labels_name(const struct layout *layout)
{
    const struct architecture_names *names = layout->architecture->names;
    switch (layout->config->head) {
    case MODEL_HEAD_SEQUENCE:
        return names->sequence_labels;
    case MODEL_HEAD_MULTIPLE_CHOICE:
        return names->choice_labels;
    case MODEL_HEAD_QA:
        return names->answer_labels != NULL ? names->answer_labels : "qa_outputs";
    default:
        return names->token_labels;
    }
}

/* Appends a fine-tuning head. Encoders read the first row of a sequence through a dense layer; with
 * task_transform, all rows go through a dense layer and a norm. Decoders read the last row
 * directly, and the matrix has no bias. */
static void append_task_head(struct layout *layout)
{
    const struct architecture *a = layout->architecture;
    const struct model_config *c = layout->config;
    bool texts = c->head == MODEL_HEAD_SEQUENCE || c->head == MODEL_HEAD_MULTIPLE_CHOICE;
    bool separate = a->head.separate_dense && c->head == MODEL_HEAD_SEQUENCE;
    if (a->head.task_transform) {
        append_transform(layout, c->width);
    } else if (!a->attention.causal && texts) {
        append_dense(layout, MODEL_POOLER, c->width, c->width,
                     separate ? a->names->sequence_dense : a->names->pooler);
    }
    const char *name = get_labels_name(layout);
    append_part(layout, MODEL_LABELS, make_table(c->labels, c->width, c->initializer_range), name,
                "weight");
    if (!a->attention.causal || !texts) {
        append_part(layout, MODEL_LABELS, make_vector(c->labels, 0), name, "bias");
    }
}

static void append_all(struct layout *layout)
{
    const struct model_config *c = layout->config;
    int stacks = architecture_has_decoder(layout->architecture) ? 2 : 1;
    if (!c->separate_embeddings) {
        append_token_table(layout, layout->architecture->names->token_table);
    }
    for (int i = 0; i < stacks; i++) {
        select_stack(layout, i);
        append_embedding(layout);
    }
    layout->layer = 0;
    for (int i = 0; i < stacks; i++) {
        select_stack(layout, i);
        append_stack(layout, i + 1 < stacks ? c->encoder_layers : c->layers);
    }
    if (c->head == MODEL_HEAD_LM) {
        append_lm_head(layout);
    } else if (c->head != MODEL_HEAD_NONE) {
        append_task_head(layout);
    }
}

status model_layout(const struct model_config *config, int ranks, int rank,
                    struct model_parameter **out, int *count, int64_t *elements)
{
    *out = NULL;
    const struct architecture composed = architecture_compose(config), *a = &composed;
    char names[256];
    REQUIRE(a->names != NULL, STATUS_UNAVAILABLE, "model.architecture %s is not available; use %s",
            config->architecture, model_architecture_names(names, sizeof names));
    REQUIRE(ranks > 0 && config->heads % ranks == 0 && model_kv_heads(config) % ranks == 0 &&
                config->inner % ranks == 0,
            STATUS_INTERNAL,
            "%d ranks cannot split %" PRId64 " heads, %" PRId64 " key-value heads and %" PRId64
            " inner features evenly",
            ranks, config->heads, model_kv_heads(config), config->inner);
    struct shape shapes[BLOCK_PARAMETERS];
    struct layout layout = {.config = config,
                            .architecture = a,
                            .shapes = shapes,
                            .ranks = ranks,
                            .rank = rank,
                            .layer = -1};
    size_t slots = OTHER_PARAMETERS + (size_t)config->layers * BLOCK_PARAMETERS;
    TRY(ALLOCATE(layout.parameters, slots, "parameters"));
    append_all(&layout);
    assign_offsets(&layout, true);
    assign_offsets(&layout, false);
    status result = layout_check_targets(&layout);
    if (result == STATUS_OK) {
        result = check_frozen_parameters(&layout);
    }
    if (result != STATUS_OK) {
        free(layout.parameters);
        return result;
    }
    *out = layout.parameters;
    *count = layout.count;
    *elements = layout.elements;
    return STATUS_OK;
}
