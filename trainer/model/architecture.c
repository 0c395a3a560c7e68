/* The layout of an architecture's parameters: names, shapes, order, initial values.
 *
 * gpt2 is Radford et al. 2019 with the tensor names of Hugging Face's GPT2LMHeadModel: weights
 * N(0, 0.02), residual projections N(0, 0.02 / sqrt(2 L)), biases 0, norms 1.
 * bert is Devlin et al. 2018, arXiv:1810.04805 with those of BertForPreTraining, or without next_sentence of
 * BertForMaskedLM; roberta is Liu et al. 2019, arXiv:1907.11692 with those of RobertaForMaskedLM, whose positions
 * begin with row 2: weights N(0, 0.02), biases 0, norms 1. Query, key and value have names of their own and lie
 * one after the other, so that products see one matrix.
 * llama is Touvron et al. 2023, arXiv:2302.13971 with the names of LlamaForCausalLM: weights N(0, 0.02), norms 1;
 * query, key and value lie one after the other too, and so do gate and up.
 * With a task its head comes last, with the names of ...ForSequenceClassification and its like. */
#include <fnmatch.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "trainer/model/layout_impl.h"

/* Every parameter starts on a 64-byte line, in f32 and in the bf16 copy. */
enum { ALIGNMENT_ELEMS = 32 };

static int64_t aligned(int64_t elements)
{
    return (elements + ALIGNMENT_ELEMS - 1) / ALIGNMENT_ELEMS * ALIGNMENT_ELEMS;
}

/* Most parameters of a block, and of all else. */
enum { BLOCK_PARAMETERS = 32, OTHER_PARAMETERS = 16 };

static const struct architecture architectures[] = {
    {.name = "gpt2", .causal = true},
    {.name = "bert", .post_norm = true, .transform = true, .names = "bert"},
    {.name = "roberta",
     .post_norm = true,
     .transform = true,
     .first_position = 2,
     .names = "roberta",
     .own_dense = true},
    {.name = "llama", .causal = true, .rms = true, .rotary = true, .gated = true},
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

/* Padding of the vocabulary: whole vectors in the output product; padded rows stay zero. */
enum { VOCABULARY_UNIT = 32 };

int64_t model_vocabulary_rows(const struct model_config *config, int ranks)
{
    int64_t unit = (int64_t)VOCABULARY_UNIT * ranks;
    return (config->vocabulary + unit - 1) / unit * VOCABULARY_UNIT;
}

/* What is trained lies in forward order: all that comes from `layer` on lies behind what comes before it. */
int64_t model_layer_first(const struct model_parameter *parameters, int count, int64_t layer)
{
    int64_t first = 0;
    for (int i = 0; i < count && parameters[i].layer < layer; i++) {
        const struct model_parameter *p = &parameters[i];
        first = p->trained ? aligned(p->first + p->rows * p->columns) : first;
    }
    return first;
}

int64_t model_lowest_trained(const struct model_parameter *parameters, int count)
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
    for (int i = 0; i < p->piece_count; i++) {
        elements += p->pieces[i].rows * p->pieces[i].columns;
    }
    return elements;
}

static void append_piece(struct model_parameter *p, struct model_piece piece)
{
    if (piece.rows > 0 && piece.columns > 0) {
        piece.first = model_parameter_elements(p);
        p->pieces[p->piece_count++] = piece;
    }
}

/* Padding lies behind the last row of the last ranks. */
static void cut_parameter(struct model_parameter *p, const struct shape *shape, int rank)
{
    bool along_rows = shape->split == SPLIT_ROWS;
    int64_t block = (along_rows ? shape->rows : shape->columns) / shape->blocks;
    int64_t first = shape->extent * rank, left = block - first;
    int64_t count = left < shape->extent ? left : shape->extent;
    for (int b = 0; b < shape->blocks; b++) {
        int64_t at = b * block + first;
        append_piece(p, along_rows ? (struct model_piece){0, at, 0, count, shape->columns}
                                   : (struct model_piece){0, 0, at, shape->rows, count});
    }
    *(along_rows ? &p->rows : &p->columns) = shape->extent * shape->blocks;
}

static bool is_frozen(const char *patterns, const char *name)
{
    char pattern[MODEL_NAME_BYTES];
    for (const char *at = patterns; at != NULL && layout_next_word(&at, pattern);) {
        if (fnmatch(pattern, name, 0) == 0) {
            return true;
        }
    }
    return false;
}

static bool lies_frozen(const struct model_config *c, const struct model_parameter *p)
{
    const struct model_freezing *f = &c->freezing;
    int64_t blocks = f->backbone ? c->layers : f->layers;
    bool last_norm = p->layer >= c->layers && p->role == MODEL_NORM1;
    return p->layer < 0 ? f->embeddings || f->backbone
                        : p->layer < blocks || (f->backbone && last_norm);
}

static void append(struct layout *layout, enum model_role role, struct shape shape,
                   const char *format, ...) __attribute__((format(printf, 4, 5)));

static void append(struct layout *layout, enum model_role role, struct shape shape,
                   const char *format, ...)
{
    struct model_parameter *p = &layout->parameters[layout->count++];
    *p = (struct model_parameter){
        .role = role,
        .layer = layout->layer,
        .joined = shape.joined > 0 ? shape.joined : 1,
        .rows = shape.rows,
        .columns = shape.columns,
        .whole_rows = shape.rows,
        .whole_columns = shape.columns,
        .replicated = shape.split == SPLIT_NONE,
        .dimensions = shape.dimensions,
        .transposed = shape.transposed,
        .decay = shape.dimensions == 2,
        .initial = shape.initial,
        .deviation = shape.deviation,
        .bound = shape.bound,
    };
    if (shape.split == SPLIT_NONE) {
        append_piece(p, (struct model_piece){0, 0, 0, shape.rows, shape.columns});
    } else {
        cut_parameter(p, &shape, layout->rank);
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(p->name, sizeof p->name, format, arguments);
    va_end(arguments);
    p->trained =
        layout->config->adapter.rank > 0
            ? model_is_adapter(p) || model_is_task_head(layout->config, p)
            : !is_frozen(layout->config->frozen, p->name) && !lies_frozen(layout->config, p);
    if (layout->count - layout->block <= BLOCK_PARAMETERS) {
        layout->shapes[layout->count - layout->block - 1] = shape;
    }
}

/* Those that are trained, or those that are not, behind what has its place already. */
static void place(struct layout *layout, bool trained)
{
    for (int i = 0; i < layout->count; i++) {
        struct model_parameter *p = &layout->parameters[i];
        int64_t size = p->rows * p->columns;
        if (p->trained == trained) {
            p->first = layout->elements;
            p->vector = layout->vectors;
            layout->vectors += p->dimensions == 1 ? size : 0;
            layout->elements += size;
            layout->elements = p->joined > 1 ? layout->elements : aligned(layout->elements);
        }
    }
}

static status check_frozen(const struct layout *layout)
{
    REQUIRE(model_trained_elements(layout->parameters, layout->count) > 0, STATUS_RECIPE,
            "train.freeze leaves nothing of the model to train");
    for (int i = 0; i < layout->count; i++) {
        const struct model_parameter *p = &layout->parameters[i];
        REQUIRE(p->joined == 1 || p[0].trained == p[1].trained, STATUS_RECIPE,
                "%s is frozen and %s is not, but both are one matrix to the products: freeze both, "
                "or none",
                p[p[0].trained ? 1 : 0].name, p[p[0].trained ? 0 : 1].name);
    }
    return STATUS_OK;
}

static struct shape matrix(int64_t rows, int64_t columns, float deviation)
{
    return (struct shape){.rows = rows,
                          .columns = columns,
                          .dimensions = 2,
                          .transposed = true,
                          .deviation = deviation};
}

static struct shape table(int64_t rows, int64_t columns, float deviation)
{
    return (struct shape){
        .rows = rows, .columns = columns, .dimensions = 2, .deviation = deviation};
}

static struct shape vector(int64_t columns, float initial)
{
    return (struct shape){.rows = 1, .columns = columns, .dimensions = 1, .initial = initial};
}

/* A matrix by its rows, its bias with it; in `blocks` where there are several ranks. */
static struct shape outputs_split(struct shape shape, int blocks, int ranks)
{
    shape.split = shape.dimensions == 2 ? SPLIT_ROWS : SPLIT_COLUMNS;
    shape.blocks = ranks > 1 ? blocks : 1;
    shape.extent = (shape.dimensions == 2 ? shape.rows : shape.columns) / shape.blocks / ranks;
    return shape;
}

/* A matrix by its columns; its bias is added once. */
static struct shape inputs_split(struct shape shape, int ranks)
{
    shape.split = SPLIT_COLUMNS;
    shape.blocks = 1;
    shape.extent = shape.columns / ranks;
    return shape;
}

static struct shape vocabulary_split(const struct model_config *c, int ranks)
{
    struct shape shape = table(c->vocabulary, c->width, c->initializer_range);
    shape.split = SPLIT_ROWS;
    shape.blocks = 1;
    shape.extent = model_vocabulary_rows(c, ranks);
    return shape;
}

void layout_append(struct layout *layout, enum model_role role, struct shape shape,
                   const char *name)
{
    append(layout, role, shape, "%s", name);
}

/* As the file has it: [out, in]. */
static struct shape dense(int64_t rows, int64_t columns, float deviation)
{
    return table(rows, columns, deviation);
}

/* What stands before the labels of whole texts: the model's pooler, or RoBERTa's own. */
static void append_task_dense(struct layout *layout, const struct model_config *c,
                              const struct architecture *a, bool own)
{
    char name[MODEL_NAME_BYTES / 2] = "classifier";
    if (!own) {
        snprintf(name, sizeof name, "%s.pooler", a->names);
    }
    append(layout, MODEL_POOLER, dense(c->width, c->width, c->initializer_range), "%s.dense.weight",
           name);
    append(layout, MODEL_POOLER, vector(c->width, 0), "%s.dense.bias", name);
}

static void append_task(struct layout *layout, const struct model_config *c,
                        const struct architecture *a)
{
    bool encoder = a->names != NULL;
    bool texts = c->task == MODEL_TEXTS || c->task == MODEL_CHOICES;
    bool own = a->own_dense && c->task == MODEL_TEXTS;
    if (c->task == MODEL_WORDS || c->task == MODEL_VECTORS) {
        return;
    }
    if (encoder && texts) {
        append_task_dense(layout, c, a, own);
    }
    const char *name = c->task == MODEL_SPANS             ? "qa_outputs"
                       : !encoder && (texts || a->rotary) ? "score"
                       : own                              ? "classifier.out_proj"
                                                          : "classifier";
    append(layout, MODEL_LABELS, dense(c->labels, c->width, c->initializer_range), "%s.weight",
           name);
    if (encoder || !texts) {
        append(layout, MODEL_LABELS, vector(c->labels, 0), "%s.bias", name);
    }
}

static void append_gpt2_layer(struct layout *layout, const struct model_config *c, int l)
{
    float deviation = c->initializer_range;
    float residual = deviation / sqrtf(2.0f * (float)c->layers);
    int ranks = layout->ranks;
    append(layout, MODEL_NORM1, vector(c->width, 1), "transformer.h.%d.ln_1.weight", l);
    append(layout, MODEL_NORM1, vector(c->width, 0), "transformer.h.%d.ln_1.bias", l);
    append(layout, MODEL_QKV, outputs_split(matrix(3 * c->width, c->width, deviation), 3, ranks),
           "transformer.h.%d.attn.c_attn.weight", l);
    append(layout, MODEL_QKV, outputs_split(vector(3 * c->width, 0), 3, ranks),
           "transformer.h.%d.attn.c_attn.bias", l);
    append(layout, MODEL_PROJECTION, inputs_split(matrix(c->width, c->width, residual), ranks),
           "transformer.h.%d.attn.c_proj.weight", l);
    append(layout, MODEL_PROJECTION, vector(c->width, 0), "transformer.h.%d.attn.c_proj.bias", l);
    append(layout, MODEL_NORM2, vector(c->width, 1), "transformer.h.%d.ln_2.weight", l);
    append(layout, MODEL_NORM2, vector(c->width, 0), "transformer.h.%d.ln_2.bias", l);
    append(layout, MODEL_FC, outputs_split(matrix(c->inner, c->width, deviation), 1, ranks),
           "transformer.h.%d.mlp.c_fc.weight", l);
    append(layout, MODEL_FC, outputs_split(vector(c->inner, 0), 1, ranks),
           "transformer.h.%d.mlp.c_fc.bias", l);
    append(layout, MODEL_FC_PROJECTION, inputs_split(matrix(c->width, c->inner, residual), ranks),
           "transformer.h.%d.mlp.c_proj.weight", l);
    append(layout, MODEL_FC_PROJECTION, vector(c->width, 0), "transformer.h.%d.mlp.c_proj.bias", l);
}

static void append_gpt2(struct layout *layout, const struct model_config *c)
{
    struct shape tokens = vocabulary_split(c, layout->ranks);
    append(layout, MODEL_TOKEN_TABLE, tokens, "transformer.wte.weight");
    append(layout, MODEL_POSITION_TABLE, table(c->positions, c->width, c->initializer_range),
           "transformer.wpe.weight");
    for (layout->layer = 0; layout->layer < c->layers; layout->layer++) {
        layout->block = layout->count;
        append_gpt2_layer(layout, c, (int)layout->layer);
        layout_adapters(layout);
    }
    append(layout, MODEL_NORM1, vector(c->width, 1), "transformer.ln_f.weight");
    append(layout, MODEL_NORM1, vector(c->width, 0), "transformer.ln_f.bias");
    if (!c->tied && c->task == MODEL_WORDS) {
        append(layout, MODEL_DECODER, tokens, "lm_head.weight");
    }
}

static struct shape joined(struct shape shape, int count)
{
    shape.joined = count;
    return shape;
}

static void append_norm(struct layout *layout, enum model_role role, const struct model_config *c,
                        const char *name)
{
    append(layout, role, vector(c->width, 1), "%s.weight", name);
    append(layout, role, vector(c->width, 0), "%s.bias", name);
}

static void append_qkv(struct layout *layout, const struct model_config *c, const char *block)
{
    static const char *const names[] = {"query", "key", "value"};
    struct shape weight =
        outputs_split(dense(c->width, c->width, c->initializer_range), 1, layout->ranks);
    struct shape bias = outputs_split(vector(c->width, 0), 1, layout->ranks);
    for (int i = 0; i < 3; i++) {
        append(layout, MODEL_QKV, joined(weight, 3 - i), "%s.attention.self.%s.weight", block,
               names[i]);
    }
    for (int i = 0; i < 3; i++) {
        append(layout, MODEL_QKV, joined(bias, 3 - i), "%s.attention.self.%s.bias", block,
               names[i]);
    }
}

static void append_bert_layer(struct layout *layout, const struct model_config *c,
                              const char *model)
{
    char block[MODEL_NAME_BYTES / 2], name[MODEL_NAME_BYTES];
    float deviation = c->initializer_range;
    int ranks = layout->ranks;
    snprintf(block, sizeof block, "%s.encoder.layer.%d", model, (int)layout->layer);
    append_qkv(layout, c, block);
    append(layout, MODEL_PROJECTION, inputs_split(dense(c->width, c->width, deviation), ranks),
           "%s.attention.output.dense.weight", block);
    append(layout, MODEL_PROJECTION, vector(c->width, 0), "%s.attention.output.dense.bias", block);
    snprintf(name, sizeof name, "%s.attention.output.LayerNorm", block);
    append_norm(layout, MODEL_NORM2, c, name);
    append(layout, MODEL_FC, outputs_split(dense(c->inner, c->width, deviation), 1, ranks),
           "%s.intermediate.dense.weight", block);
    append(layout, MODEL_FC, outputs_split(vector(c->inner, 0), 1, ranks),
           "%s.intermediate.dense.bias", block);
    append(layout, MODEL_FC_PROJECTION, inputs_split(dense(c->width, c->inner, deviation), ranks),
           "%s.output.dense.weight", block);
    append(layout, MODEL_FC_PROJECTION, vector(c->width, 0), "%s.output.dense.bias", block);
    layout_adapters(
        layout); /* from a norm to the next block's it is as far as from block to block */
    snprintf(name, sizeof name, "%s.output.LayerNorm", block);
    append_norm(layout, MODEL_NORM1, c, name);
}

static struct shape decoder_bias(const struct model_config *c, int ranks)
{
    struct shape shape = vector(c->vocabulary, 0);
    shape.split = SPLIT_COLUMNS;
    shape.blocks = 1;
    shape.extent = model_vocabulary_rows(c, ranks);
    return shape;
}

static void append_bert_heads(struct layout *layout, const struct model_config *c,
                              const char *model)
{
    bool bert = strcmp(model, "bert") == 0;
    float deviation = c->initializer_range;
    const char *head = bert ? "cls.predictions" : "lm_head";
    const char *transform = bert ? "cls.predictions.transform" : "lm_head";
    char name[MODEL_NAME_BYTES];
    if (c->next_sentence) {
        append(layout, MODEL_POOLER, dense(c->width, c->width, deviation), "%s.pooler.dense.weight",
               model);
        append(layout, MODEL_POOLER, vector(c->width, 0), "%s.pooler.dense.bias", model);
    }
    append(layout, MODEL_TRANSFORM, dense(c->width, c->width, deviation), "%s.dense.weight",
           transform);
    append(layout, MODEL_TRANSFORM, vector(c->width, 0), "%s.dense.bias", transform);
    snprintf(name, sizeof name, "%s.%s", transform, bert ? "LayerNorm" : "layer_norm");
    append_norm(layout, MODEL_TRANSFORM_NORM, c, name);
    if (!c->tied) {
        append(layout, MODEL_DECODER, vocabulary_split(c, layout->ranks), "%s.decoder.weight",
               head);
    }
    append(layout, MODEL_DECODER, decoder_bias(c, layout->ranks), "%s.bias", head);
    if (c->next_sentence) {
        append(layout, MODEL_LABELS, dense(2, c->width, deviation), "cls.seq_relationship.weight");
        append(layout, MODEL_LABELS, vector(2, 0), "cls.seq_relationship.bias");
    }
}

static void append_bert(struct layout *layout, const struct model_config *c, const char *model)
{
    char name[MODEL_NAME_BYTES];
    append(layout, MODEL_TOKEN_TABLE, vocabulary_split(c, layout->ranks),
           "%s.embeddings.word_embeddings.weight", model);
    append(layout, MODEL_POSITION_TABLE, table(c->positions, c->width, c->initializer_range),
           "%s.embeddings.position_embeddings.weight", model);
    if (c->segments > 0) {
        append(layout, MODEL_SEGMENT_TABLE, table(c->segments, c->width, c->initializer_range),
               "%s.embeddings.token_type_embeddings.weight", model);
    }
    snprintf(name, sizeof name, "%s.embeddings.LayerNorm", model);
    append_norm(layout, MODEL_NORM1, c, name);
    for (layout->layer = 0; layout->layer < c->layers; layout->layer++) {
        layout->block = layout->count;
        append_bert_layer(layout, c, model);
    }
    if (c->task == MODEL_WORDS) {
        append_bert_heads(layout, c, model);
    }
}

static void append_llama_layer(struct layout *layout, const struct model_config *c)
{
    static const char *const names[] = {"q_proj", "k_proj", "v_proj"};
    float deviation = c->initializer_range;
    int ranks = layout->ranks, l = (int)layout->layer;
    int64_t narrow = c->width / c->heads * model_kv_heads(c);
    append(layout, MODEL_NORM1, vector(c->width, 1), "model.layers.%d.input_layernorm.weight", l);
    for (int i = 0; i < 3; i++) {
        struct shape rows = dense(i == 0 ? c->width : narrow, c->width, deviation);
        append(layout, MODEL_QKV, joined(outputs_split(rows, 1, ranks), 3 - i),
               "model.layers.%d.self_attn.%s.weight", l, names[i]);
    }
    append(layout, MODEL_PROJECTION, inputs_split(dense(c->width, c->width, deviation), ranks),
           "model.layers.%d.self_attn.o_proj.weight", l);
    append(layout, MODEL_NORM2, vector(c->width, 1),
           "model.layers.%d.post_attention_layernorm.weight", l);
    struct shape inner = outputs_split(dense(c->inner, c->width, deviation), 1, ranks);
    append(layout, MODEL_FC, joined(inner, 2), "model.layers.%d.mlp.gate_proj.weight", l);
    append(layout, MODEL_FC, inner, "model.layers.%d.mlp.up_proj.weight", l);
    append(layout, MODEL_FC_PROJECTION, inputs_split(dense(c->width, c->inner, deviation), ranks),
           "model.layers.%d.mlp.down_proj.weight", l);
}

static void append_llama(struct layout *layout, const struct model_config *c)
{
    struct shape tokens = vocabulary_split(c, layout->ranks);
    append(layout, MODEL_TOKEN_TABLE, tokens, "model.embed_tokens.weight");
    for (layout->layer = 0; layout->layer < c->layers; layout->layer++) {
        layout->block = layout->count;
        append_llama_layer(layout, c);
        layout_adapters(layout);
    }
    append(layout, MODEL_NORM1, vector(c->width, 1), "model.norm.weight");
    if (!c->tied && c->task == MODEL_WORDS) {
        append(layout, MODEL_DECODER, tokens, "lm_head.weight");
    }
}

status model_layout(const struct model_config *config, int ranks, int rank,
                    struct model_parameter **out, int *count, int64_t *elements)
{
    *out = NULL;
    const struct architecture *a = model_architecture(config->architecture);
    REQUIRE(a != NULL, STATUS_UNAVAILABLE,
            "model.architecture %s is not in this version; gpt2, bert, roberta and llama are",
            config->architecture);
    REQUIRE(ranks > 0 && config->heads % ranks == 0 && model_kv_heads(config) % ranks == 0 &&
                config->inner % ranks == 0,
            STATUS_INTERNAL,
            "%d ranks do not share %lld heads, %lld key-value heads and %lld inner features evenly",
            ranks, (long long)config->heads, (long long)model_kv_heads(config),
            (long long)config->inner);
    struct shape shapes[BLOCK_PARAMETERS];
    struct layout layout = {
        .config = config, .shapes = shapes, .ranks = ranks, .rank = rank, .layer = -1};
    size_t slots = OTHER_PARAMETERS + (size_t)config->layers * BLOCK_PARAMETERS;
    layout.parameters = calloc(slots, sizeof *layout.parameters);
    REQUIRE(layout.parameters != NULL, STATUS_INTERNAL, "out of memory for %zu parameters", slots);
    if (a->names != NULL) {
        append_bert(&layout, config, a->names);
    } else if (a->gated) {
        append_llama(&layout, config);
    } else {
        append_gpt2(&layout, config);
    }
    append_task(&layout, config, a);
    place(&layout, true);
    place(&layout, false);
    status result = layout_check_targets(&layout);
    if (result == STATUS_OK) {
        result = check_frozen(&layout);
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
