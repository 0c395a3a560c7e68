/* The parameter layout of each architecture: names, shapes, order, initial values.
 *
 * gpt2     names of GPT2LMHeadModel. Weights N(0, 0.02), residual projections
 *          N(0, 0.02 / sqrt(2 L)), biases 0, norms 1.
 *          Source: Radford et al. 2019
 * bert     names of BertForPreTraining, or of BertForMaskedLM without next_sentence. Weights
 *          N(0, 0.02), biases 0, norms 1. Query, key and value are separate tensors in the file.
 *          They are contiguous in memory, so that a GEMM reads them as one matrix.
 *          Source: Devlin et al. 2018, arXiv:1810.04805
 * roberta  names of RobertaForMaskedLM; as bert, but positions begin with row 2 of the table.
 *          Source: Liu et al. 2019, arXiv:1907.11692
 * llama    names of LlamaForCausalLM. Weights N(0, 0.02), norms 1. Query, key and value are
 *          contiguous in memory, and so are gate and up.
 *          Source: Touvron et al. 2023, arXiv:2302.13971
 *
 * A fine-tuning head comes last, with the names of ...ForSequenceClassification and similar
 * classes. */
#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "trainer/model/layout_impl.h"

/* Each parameter starts on a 64-byte boundary, in f32 and in the bf16 copy. */
enum { ALIGNMENT_ELEMS = 32 };

static int64_t align_up(int64_t elements)
{
    return (elements + ALIGNMENT_ELEMS - 1) / ALIGNMENT_ELEMS * ALIGNMENT_ELEMS;
}

/* Upper limits of the parameters of a block and outside the blocks. */
enum { BLOCK_PARAMETERS = 32, OTHER_PARAMETERS = 16 };

static const struct architecture architectures[] = {
    {.name = "gpt2", .causal = true},
    {.name = "bert", .post_norm = true, .transform = true, .name_prefix = "bert"},
    {.name = "roberta",
     .post_norm = true,
     .transform = true,
     .first_position = 2,
     .name_prefix = "roberta",
     .classifier_dense = true},
    {.name = "llama", .causal = true, .rms_norm = true, .rotary = true, .gated = true},
};

const struct architecture *model_architecture(const char *name)
{
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++) {
        if (strcmp(architectures[i].name, name) == 0) {
            return &architectures[i];
        }
    }
    return NULL;
}

int64_t model_kv_heads(const struct model_config *config)
{
    return config->kv_heads > 0 ? config->kv_heads : config->heads;
}

int64_t model_inner_outputs(const struct model_config *config)
{
    const struct architecture *a = model_architecture(config->architecture);
    return a != NULL && a->gated ? 2 * config->inner : config->inner;
}

int64_t model_positions(const struct model_config *config)
{
    const struct architecture *a = model_architecture(config->architecture);
    return config->positions - (a != NULL ? a->first_position : 0);
}

/* The rows of a vocabulary shard are a multiple of this, so that the output GEMM has whole vectors.
 * Padded rows stay zero. */
enum { VOCABULARY_UNIT = 32 };

int64_t model_vocabulary_rows(const struct model_config *config, int ranks)
{
    int64_t unit = (int64_t)VOCABULARY_UNIT * ranks;
    return (config->vocabulary + unit - 1) / unit * VOCABULARY_UNIT;
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

int64_t model_trained_elements(const struct model_parameter *parameters, int count)
{
    return model_layer_first(parameters, count, INT64_MAX);
}

int64_t model_parameter_elements(const struct model_parameter *p)
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
        shard.first = model_parameter_elements(p);
        p->shards[p->shard_count++] = shard;
    }
}

/* Computes this rank's shards of a split parameter. Padding is at the end of the last ranks. */
static void split_parameter(struct model_parameter *p, const struct shape *shape, int rank)
{
    bool along_rows = shape->split == SPLIT_ROWS;
    int64_t block = (along_rows ? shape->rows : shape->columns) / shape->blocks;
    int64_t first = shape->extent * rank, left = block - first;
    int64_t count = left < shape->extent ? left : shape->extent;
    for (int b = 0; b < shape->blocks; b++) {
        int64_t position = b * block + first;
        append_shard(p, along_rows ? (struct model_shard){0, position, 0, count, shape->columns}
                                   : (struct model_shard){0, 0, position, shape->rows, count});
    }
    *(along_rows ? &p->rows : &p->columns) = shape->extent * shape->blocks;
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

static bool is_frozen_by_position(const struct model_config *c, const struct model_parameter *p)
{
    const struct model_freezing *f = &c->freezing;
    int64_t blocks = f->backbone ? c->layers : f->layers;
    bool last_norm = p->layer >= c->layers && p->role == MODEL_NORM1;
    return p->layer < 0 ? f->embeddings || f->backbone
                        : p->layer < blocks || (f->backbone && last_norm);
}

static void add_tensor(struct layout *layout, enum model_role role, struct shape shape,
                       const char *format, ...) __attribute__((format(printf, 4, 5)));

static void add_tensor(struct layout *layout, enum model_role role, struct shape shape,
                       const char *format, ...)
{
    struct model_parameter *p = &layout->parameters[layout->count++];
    *p = (struct model_parameter){
        .role = role,
        .layer = layout->layer,
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
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(p->name, sizeof p->name, format, arguments);
    va_end(arguments);
    p->trained = layout->config->adapter.rank > 0
                     ? model_is_adapter(p) || model_is_task_head(layout->config, p)
                     : !is_frozen(layout->config->frozen, p->name) &&
                           !is_frozen_by_position(layout->config, p);
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
    REQUIRE(model_trained_elements(layout->parameters, layout->count) > 0, STATUS_RECIPE,
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

static struct shape make_matrix(int64_t rows, int64_t columns, float init_std)
{
    return (struct shape){.rows = rows,
                          .columns = columns,
                          .dimensions = 2,
                          .transposed = true,
                          .init_std = init_std};
}

static struct shape make_table(int64_t rows, int64_t columns, float init_std)
{
    return (struct shape){.rows = rows, .columns = columns, .dimensions = 2, .init_std = init_std};
}

static struct shape make_vector(int64_t columns, float init_value)
{
    return (struct shape){.rows = 1, .columns = columns, .dimensions = 1, .init_value = init_value};
}

/* Splits a matrix by rows, or its bias by columns, in `blocks` sections that are each split. */
static struct shape split_outputs(struct shape shape, int blocks, int ranks)
{
    shape.split = shape.dimensions == 2 ? SPLIT_ROWS : SPLIT_COLUMNS;
    shape.blocks = ranks > 1 ? blocks : 1;
    shape.extent = (shape.dimensions == 2 ? shape.rows : shape.columns) / shape.blocks / ranks;
    return shape;
}

/* Splits a matrix by columns. Its bias is replicated, and one rank adds it. */
static struct shape split_inputs(struct shape shape, int ranks)
{
    shape.split = SPLIT_COLUMNS;
    shape.blocks = 1;
    shape.extent = shape.columns / ranks;
    return shape;
}

static struct shape make_vocabulary(const struct model_config *c, int ranks)
{
    struct shape shape = make_table(c->vocabulary, c->width, c->initializer_range);
    shape.split = SPLIT_ROWS;
    shape.blocks = 1;
    shape.extent = model_vocabulary_rows(c, ranks);
    return shape;
}

void layout_append(struct layout *layout, enum model_role role, struct shape shape,
                   const char *name)
{
    add_tensor(layout, role, shape, "%s", name);
}

/* Returns the shape of a matrix that the Hugging Face file stores as [out, in]. */
static struct shape make_dense(int64_t rows, int64_t columns, float init_std)
{
    return make_table(rows, columns, init_std);
}

/* Appends the dense layer before the labels of sequences: the model's pooler, or RoBERTa's separate
 * layer. */
static void append_task_dense(struct layout *layout, const struct model_config *c,
                              const struct architecture *a, bool separate)
{
    char name[MODEL_NAME_BYTES / 2] = "classifier";
    if (!separate) {
        snprintf(name, sizeof name, "%s.pooler", a->name_prefix);
    }
    add_tensor(layout, MODEL_POOLER, make_dense(c->width, c->width, c->initializer_range),
               "%s.dense.weight", name);
    add_tensor(layout, MODEL_POOLER, make_vector(c->width, 0), "%s.dense.bias", name);
}

static void append_task(struct layout *layout, const struct model_config *c,
                        const struct architecture *a)
{
    bool encoder = a->name_prefix != NULL;
    bool texts = c->head == MODEL_HEAD_SEQUENCE || c->head == MODEL_HEAD_MULTIPLE_CHOICE;
    bool separate = a->classifier_dense && c->head == MODEL_HEAD_SEQUENCE;
    if (c->head == MODEL_HEAD_LM || c->head == MODEL_HEAD_NONE) {
        return;
    }
    if (encoder && texts) {
        append_task_dense(layout, c, a, separate);
    }
    const char *name = c->head == MODEL_HEAD_QA           ? "qa_outputs"
                       : !encoder && (texts || a->rotary) ? "score"
                       : separate                         ? "classifier.out_proj"
                                                          : "classifier";
    add_tensor(layout, MODEL_LABELS, make_dense(c->labels, c->width, c->initializer_range),
               "%s.weight", name);
    if (encoder || !texts) {
        add_tensor(layout, MODEL_LABELS, make_vector(c->labels, 0), "%s.bias", name);
    }
}

static void append_gpt2_layer(struct layout *layout, const struct model_config *c, int l)
{
    float init_std = c->initializer_range;
    float residual_std = init_std / sqrtf(2.0f * (float)c->layers);
    int ranks = layout->ranks;
    add_tensor(layout, MODEL_NORM1, make_vector(c->width, 1), "transformer.h.%d.ln_1.weight", l);
    add_tensor(layout, MODEL_NORM1, make_vector(c->width, 0), "transformer.h.%d.ln_1.bias", l);
    add_tensor(layout, MODEL_QKV,
               split_outputs(make_matrix(3 * c->width, c->width, init_std), 3, ranks),
               "transformer.h.%d.attn.c_attn.weight", l);
    add_tensor(layout, MODEL_QKV, split_outputs(make_vector(3 * c->width, 0), 3, ranks),
               "transformer.h.%d.attn.c_attn.bias", l);
    add_tensor(layout, MODEL_PROJECTION,
               split_inputs(make_matrix(c->width, c->width, residual_std), ranks),
               "transformer.h.%d.attn.c_proj.weight", l);
    add_tensor(layout, MODEL_PROJECTION, make_vector(c->width, 0),
               "transformer.h.%d.attn.c_proj.bias", l);
    add_tensor(layout, MODEL_NORM2, make_vector(c->width, 1), "transformer.h.%d.ln_2.weight", l);
    add_tensor(layout, MODEL_NORM2, make_vector(c->width, 0), "transformer.h.%d.ln_2.bias", l);
    add_tensor(layout, MODEL_FC, split_outputs(make_matrix(c->inner, c->width, init_std), 1, ranks),
               "transformer.h.%d.mlp.c_fc.weight", l);
    add_tensor(layout, MODEL_FC, split_outputs(make_vector(c->inner, 0), 1, ranks),
               "transformer.h.%d.mlp.c_fc.bias", l);
    add_tensor(layout, MODEL_FC_PROJECTION,
               split_inputs(make_matrix(c->width, c->inner, residual_std), ranks),
               "transformer.h.%d.mlp.c_proj.weight", l);
    add_tensor(layout, MODEL_FC_PROJECTION, make_vector(c->width, 0),
               "transformer.h.%d.mlp.c_proj.bias", l);
}

static void append_gpt2(struct layout *layout, const struct model_config *c)
{
    struct shape tokens = make_vocabulary(c, layout->ranks);
    add_tensor(layout, MODEL_TOKEN_TABLE, tokens, "transformer.wte.weight");
    add_tensor(layout, MODEL_POSITION_TABLE,
               make_table(c->positions, c->width, c->initializer_range), "transformer.wpe.weight");
    for (layout->layer = 0; layout->layer < c->layers; layout->layer++) {
        layout->block = layout->count;
        append_gpt2_layer(layout, c, (int)layout->layer);
        layout_append_adapters(layout);
    }
    add_tensor(layout, MODEL_NORM1, make_vector(c->width, 1), "transformer.ln_f.weight");
    add_tensor(layout, MODEL_NORM1, make_vector(c->width, 0), "transformer.ln_f.bias");
    if (!c->tied && c->head == MODEL_HEAD_LM) {
        add_tensor(layout, MODEL_DECODER, tokens, "lm_head.weight");
    }
}

static struct shape make_fused(struct shape shape, int count)
{
    shape.fused_count = count;
    return shape;
}

static void append_norm(struct layout *layout, enum model_role role, const struct model_config *c,
                        const char *name)
{
    add_tensor(layout, role, make_vector(c->width, 1), "%s.weight", name);
    add_tensor(layout, role, make_vector(c->width, 0), "%s.bias", name);
}

static void append_qkv(struct layout *layout, const struct model_config *c, const char *block)
{
    static const char *const names[] = {"query", "key", "value"};
    struct shape weight =
        split_outputs(make_dense(c->width, c->width, c->initializer_range), 1, layout->ranks);
    struct shape bias = split_outputs(make_vector(c->width, 0), 1, layout->ranks);
    for (int i = 0; i < 3; i++) {
        add_tensor(layout, MODEL_QKV, make_fused(weight, 3 - i), "%s.attention.self.%s.weight",
                   block, names[i]);
    }
    for (int i = 0; i < 3; i++) {
        add_tensor(layout, MODEL_QKV, make_fused(bias, 3 - i), "%s.attention.self.%s.bias", block,
                   names[i]);
    }
}

static void append_bert_layer(struct layout *layout, const struct model_config *c,
                              const char *model)
{
    char block[MODEL_NAME_BYTES / 2], name[MODEL_NAME_BYTES];
    float init_std = c->initializer_range;
    int ranks = layout->ranks;
    snprintf(block, sizeof block, "%s.encoder.layer.%d", model, (int)layout->layer);
    append_qkv(layout, c, block);
    add_tensor(layout, MODEL_PROJECTION,
               split_inputs(make_dense(c->width, c->width, init_std), ranks),
               "%s.attention.output.dense.weight", block);
    add_tensor(layout, MODEL_PROJECTION, make_vector(c->width, 0), "%s.attention.output.dense.bias",
               block);
    snprintf(name, sizeof name, "%s.attention.output.LayerNorm", block);
    append_norm(layout, MODEL_NORM2, c, name);
    add_tensor(layout, MODEL_FC, split_outputs(make_dense(c->inner, c->width, init_std), 1, ranks),
               "%s.intermediate.dense.weight", block);
    add_tensor(layout, MODEL_FC, split_outputs(make_vector(c->inner, 0), 1, ranks),
               "%s.intermediate.dense.bias", block);
    add_tensor(layout, MODEL_FC_PROJECTION,
               split_inputs(make_dense(c->width, c->inner, init_std), ranks),
               "%s.output.dense.weight", block);
    add_tensor(layout, MODEL_FC_PROJECTION, make_vector(c->width, 0), "%s.output.dense.bias",
               block);
    /* The norm below is MODEL_NORM1 of the next layer. Adapters precede it, so that it follows
     * MODEL_NORM1 of this layer at a distance of one block (model_param_index). */
    layout_append_adapters(layout);
    snprintf(name, sizeof name, "%s.output.LayerNorm", block);
    append_norm(layout, MODEL_NORM1, c, name);
}

static struct shape make_decoder_bias(const struct model_config *c, int ranks)
{
    struct shape shape = make_vector(c->vocabulary, 0);
    shape.split = SPLIT_COLUMNS;
    shape.blocks = 1;
    shape.extent = model_vocabulary_rows(c, ranks);
    return shape;
}

static void append_bert_heads(struct layout *layout, const struct model_config *c,
                              const char *model)
{
    bool bert = strcmp(model, "bert") == 0;
    float init_std = c->initializer_range;
    const char *head = bert ? "cls.predictions" : "lm_head";
    const char *transform = bert ? "cls.predictions.transform" : "lm_head";
    char name[MODEL_NAME_BYTES];
    if (c->next_sentence) {
        add_tensor(layout, MODEL_POOLER, make_dense(c->width, c->width, init_std),
                   "%s.pooler.dense.weight", model);
        add_tensor(layout, MODEL_POOLER, make_vector(c->width, 0), "%s.pooler.dense.bias", model);
    }
    add_tensor(layout, MODEL_TRANSFORM, make_dense(c->width, c->width, init_std), "%s.dense.weight",
               transform);
    add_tensor(layout, MODEL_TRANSFORM, make_vector(c->width, 0), "%s.dense.bias", transform);
    snprintf(name, sizeof name, "%s.%s", transform, bert ? "LayerNorm" : "layer_norm");
    append_norm(layout, MODEL_TRANSFORM_NORM, c, name);
    if (!c->tied) {
        add_tensor(layout, MODEL_DECODER, make_vocabulary(c, layout->ranks), "%s.decoder.weight",
                   head);
    }
    add_tensor(layout, MODEL_DECODER, make_decoder_bias(c, layout->ranks), "%s.bias", head);
    if (c->next_sentence) {
        add_tensor(layout, MODEL_LABELS, make_dense(2, c->width, init_std),
                   "cls.seq_relationship.weight");
        add_tensor(layout, MODEL_LABELS, make_vector(2, 0), "cls.seq_relationship.bias");
    }
}

static void append_bert(struct layout *layout, const struct model_config *c, const char *model)
{
    char name[MODEL_NAME_BYTES];
    add_tensor(layout, MODEL_TOKEN_TABLE, make_vocabulary(c, layout->ranks),
               "%s.embeddings.word_embeddings.weight", model);
    add_tensor(layout, MODEL_POSITION_TABLE,
               make_table(c->positions, c->width, c->initializer_range),
               "%s.embeddings.position_embeddings.weight", model);
    if (c->token_types > 0) {
        add_tensor(layout, MODEL_TOKEN_TYPE_TABLE,
                   make_table(c->token_types, c->width, c->initializer_range),
                   "%s.embeddings.token_type_embeddings.weight", model);
    }
    snprintf(name, sizeof name, "%s.embeddings.LayerNorm", model);
    append_norm(layout, MODEL_NORM1, c, name);
    for (layout->layer = 0; layout->layer < c->layers; layout->layer++) {
        layout->block = layout->count;
        append_bert_layer(layout, c, model);
    }
    if (c->head == MODEL_HEAD_LM) {
        append_bert_heads(layout, c, model);
    }
}

static void append_llama_layer(struct layout *layout, const struct model_config *c)
{
    static const char *const names[] = {"q_proj", "k_proj", "v_proj"};
    float init_std = c->initializer_range;
    int ranks = layout->ranks, l = (int)layout->layer;
    int64_t kv_width = c->width / c->heads * model_kv_heads(c);
    add_tensor(layout, MODEL_NORM1, make_vector(c->width, 1),
               "model.layers.%d.input_layernorm.weight", l);
    for (int i = 0; i < 3; i++) {
        struct shape rows = make_dense(i == 0 ? c->width : kv_width, c->width, init_std);
        add_tensor(layout, MODEL_QKV, make_fused(split_outputs(rows, 1, ranks), 3 - i),
                   "model.layers.%d.self_attn.%s.weight", l, names[i]);
    }
    add_tensor(layout, MODEL_PROJECTION,
               split_inputs(make_dense(c->width, c->width, init_std), ranks),
               "model.layers.%d.self_attn.o_proj.weight", l);
    add_tensor(layout, MODEL_NORM2, make_vector(c->width, 1),
               "model.layers.%d.post_attention_layernorm.weight", l);
    struct shape inner = split_outputs(make_dense(c->inner, c->width, init_std), 1, ranks);
    add_tensor(layout, MODEL_FC, make_fused(inner, 2), "model.layers.%d.mlp.gate_proj.weight", l);
    add_tensor(layout, MODEL_FC, inner, "model.layers.%d.mlp.up_proj.weight", l);
    add_tensor(layout, MODEL_FC_PROJECTION,
               split_inputs(make_dense(c->width, c->inner, init_std), ranks),
               "model.layers.%d.mlp.down_proj.weight", l);
}

static void append_llama(struct layout *layout, const struct model_config *c)
{
    struct shape tokens = make_vocabulary(c, layout->ranks);
    add_tensor(layout, MODEL_TOKEN_TABLE, tokens, "model.embed_tokens.weight");
    for (layout->layer = 0; layout->layer < c->layers; layout->layer++) {
        layout->block = layout->count;
        append_llama_layer(layout, c);
        layout_append_adapters(layout);
    }
    add_tensor(layout, MODEL_NORM1, make_vector(c->width, 1), "model.norm.weight");
    if (!c->tied && c->head == MODEL_HEAD_LM) {
        add_tensor(layout, MODEL_DECODER, tokens, "lm_head.weight");
    }
}

status model_layout(const struct model_config *config, int ranks, int rank,
                    struct model_parameter **out, int *count, int64_t *elements)
{
    *out = NULL;
    const struct architecture *a = model_architecture(config->architecture);
    REQUIRE(a != NULL, STATUS_UNAVAILABLE,
            "model.architecture %s is not available; use gpt2, bert, roberta or llama",
            config->architecture);
    REQUIRE(ranks > 0 && config->heads % ranks == 0 && model_kv_heads(config) % ranks == 0 &&
                config->inner % ranks == 0,
            STATUS_INTERNAL,
            "%d ranks cannot split %" PRId64 " heads, %" PRId64 " key-value heads and %" PRId64
            " inner features evenly",
            ranks, config->heads, model_kv_heads(config), config->inner);
    struct shape shapes[BLOCK_PARAMETERS];
    struct layout layout = {
        .config = config, .shapes = shapes, .ranks = ranks, .rank = rank, .layer = -1};
    size_t slots = OTHER_PARAMETERS + (size_t)config->layers * BLOCK_PARAMETERS;
    layout.parameters = calloc(slots, sizeof *layout.parameters);
    REQUIRE(layout.parameters != NULL, STATUS_INTERNAL, "out of memory for %zu parameters", slots);
    if (a->name_prefix != NULL) {
        append_bert(&layout, config, a->name_prefix);
    } else if (a->gated) {
        append_llama(&layout, config);
    } else {
        append_gpt2(&layout, config);
    }
    append_task(&layout, config, a);
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
