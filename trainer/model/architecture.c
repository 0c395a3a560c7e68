/* The layout of an architecture's parameters: names, shapes, order, initial values.
 *
 * gpt2 is Radford et al. 2019 with the tensor names of Hugging Face's GPT2LMHeadModel: weights
 * N(0, 0.02), residual projections N(0, 0.02 / sqrt(2 L)), biases 0, norms 1. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "trainer/model/model_impl.h"

/* Every parameter starts on a 64-byte line, in f32 and in the bf16 copy. */
enum { ALIGNMENT_ELEMS = 32 };

/* Padding of the vocabulary: whole vectors in the output product; padded rows stay zero. */
enum { VOCABULARY_UNIT = 32 };

int64_t model_padded_vocabulary(const struct model_config *config)
{
    return (config->vocabulary + VOCABULARY_UNIT - 1) / VOCABULARY_UNIT * VOCABULARY_UNIT;
}

struct layout {
    struct model_parameter *parameters;
    int count;
    int64_t elements;
};

struct shape {
    int64_t rows, columns;
    int dimensions;
    bool transposed;
    float initial, deviation;
};

static struct model_parameter *append(struct layout *layout, struct shape shape, const char *format,
                                      ...) __attribute__((format(printf, 3, 4)));

static struct model_parameter *append(struct layout *layout, struct shape shape, const char *format,
                                      ...)
{
    struct model_parameter *p = &layout->parameters[layout->count++];
    *p = (struct model_parameter){
        .first = layout->elements,
        .rows = shape.rows,
        .columns = shape.columns,
        .file_rows = shape.rows,
        .dimensions = shape.dimensions,
        .transposed = shape.transposed,
        .decay = shape.dimensions == 2,
        .initial = shape.initial,
        .deviation = shape.deviation,
    };
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(p->name, sizeof p->name, format, arguments);
    va_end(arguments);
    int64_t size = shape.rows * shape.columns;
    layout->elements += (size + ALIGNMENT_ELEMS - 1) / ALIGNMENT_ELEMS * ALIGNMENT_ELEMS;
    return p;
}

static struct shape matrix(int64_t rows, int64_t columns, float deviation)
{
    return (struct shape){rows, columns, 2, true, 0, deviation};
}

static struct shape table(int64_t rows, int64_t columns, float deviation)
{
    return (struct shape){rows, columns, 2, false, 0, deviation};
}

static struct shape vector(int64_t columns, float initial)
{
    return (struct shape){1, columns, 1, false, initial, 0};
}

static void append_gpt2_layer(struct layout *layout, const struct model_config *c, int l)
{
    float deviation = c->initializer_range;
    float residual = deviation / sqrtf(2.0f * (float)c->layers);
    append(layout, vector(c->width, 1), "transformer.h.%d.ln_1.weight", l);
    append(layout, vector(c->width, 0), "transformer.h.%d.ln_1.bias", l);
    append(layout, matrix(3 * c->width, c->width, deviation), "transformer.h.%d.attn.c_attn.weight",
           l);
    append(layout, vector(3 * c->width, 0), "transformer.h.%d.attn.c_attn.bias", l);
    append(layout, matrix(c->width, c->width, residual), "transformer.h.%d.attn.c_proj.weight", l);
    append(layout, vector(c->width, 0), "transformer.h.%d.attn.c_proj.bias", l);
    append(layout, vector(c->width, 1), "transformer.h.%d.ln_2.weight", l);
    append(layout, vector(c->width, 0), "transformer.h.%d.ln_2.bias", l);
    append(layout, matrix(c->inner, c->width, deviation), "transformer.h.%d.mlp.c_fc.weight", l);
    append(layout, vector(c->inner, 0), "transformer.h.%d.mlp.c_fc.bias", l);
    append(layout, matrix(c->width, c->inner, residual), "transformer.h.%d.mlp.c_proj.weight", l);
    append(layout, vector(c->width, 0), "transformer.h.%d.mlp.c_proj.bias", l);
}

status model_layout(const struct model_config *config, struct model_parameter **out, int *count,
                    int64_t *elements)
{
    *out = NULL;
    REQUIRE(strcmp(config->architecture, "gpt2") == 0, STATUS_UNAVAILABLE,
            "model.architecture %s is not in this version; gpt2 is", config->architecture);
    struct layout layout = {0};
    size_t slots = MODEL_HEAD_PARAMETERS + (size_t)config->layers * MODEL_LAYER_PARAMETERS;
    layout.parameters = calloc(slots, sizeof *layout.parameters);
    REQUIRE(layout.parameters != NULL, STATUS_INTERNAL, "out of memory for %zu parameters", slots);
    int64_t padded = model_padded_vocabulary(config);
    struct shape tokens = table(padded, config->width, config->initializer_range);
    append(&layout, tokens, "transformer.wte.weight")->file_rows = config->vocabulary;
    append(&layout, table(config->positions, config->width, config->initializer_range),
           "transformer.wpe.weight");
    for (int l = 0; l < config->layers; l++) {
        append_gpt2_layer(&layout, config, l);
    }
    append(&layout, vector(config->width, 1), "transformer.ln_f.weight");
    append(&layout, vector(config->width, 0), "transformer.ln_f.bias");
    if (!config->tied) {
        append(&layout, tokens, "lm_head.weight")->file_rows = config->vocabulary;
    }
    *out = layout.parameters;
    *count = layout.count;
    *elements = layout.elements;
    return STATUS_OK;
}

status model_initialise(struct model *m, uint64_t seed)
{
    for (int i = 0; i < m->parameter_count; i++) {
        const struct model_parameter *p = &m->parameters[i];
        float *w = m->weights + p->first;
        uint64_t key = random_key(seed, RANDOM_INITIAL_WEIGHTS, (uint64_t)i, 0);
        int64_t count = p->file_rows * p->columns;
        for (int64_t e = 0; e < count; e++) {
            w[e] = p->deviation > 0 ? p->deviation * random_normal(key, (uint64_t)e) : p->initial;
        }
    }
    return model_weights_changed(m);
}
