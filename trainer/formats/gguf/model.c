/* The metadata of a model in GGUF files. Keys begin with the name of the family. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "trainer/formats/gguf/gguf_impl.h"
#include "trainer/setup/derive.h"

/* Values of general.file_type. */
static int64_t get_file_type(enum gguf_type type)
{
    switch (type) {
    case GGUF_F32:
        return 0;
    case GGUF_F16:
        return 1;
    case GGUF_Q4_0:
        return 2;
    case GGUF_Q8_0:
        return 7;
    case GGUF_BF16:
        return 32;
    }
    return 0;
}

enum { POOLING_MEAN = 1 }; /* value of FAMILY.pooling_type */

/* The writer, and the name of the family that begins the keys. */
struct model_keys {
    struct gguf_writer *writer;
    const char *family;
};

static const char *make_key(const struct model_keys *k, const char *name, char out[GGUF_NAME_BYTES])
{
    snprintf(out, GGUF_NAME_BYTES, "%s.%s", k->family, name);
    return out;
}

static void put_integer(const struct model_keys *k, const char *name, int64_t value)
{
    char key[GGUF_NAME_BYTES];
    gguf_put_u32(k->writer, make_key(k, name, key), value);
}

static void put_number(const struct model_keys *k, const char *name, double value)
{
    char key[GGUF_NAME_BYTES];
    gguf_put_f32(k->writer, make_key(k, name, key), value);
}

static void put_text(const struct model_keys *k, const char *name, const char *value)
{
    char key[GGUF_NAME_BYTES];
    gguf_put_text(k->writer, make_key(k, name, key), value);
}

/* Writes a number unless it is 0, the value of a factor that the recipe does not have. */
static void put_factor(const struct model_keys *k, const char *name, double value)
{
    if (value > 0) {
        put_number(k, name, value);
    }
}

/* Checks the soft-caps. Families with soft-caps require them, because llama.cpp has defaults. */
static status check_softcaps(const struct export_source *source, const struct gguf_family *family)
{
    const struct model_config *c = &source->config;
    bool valid = family->has_softcaps ? c->attention_softcap > 0 && c->logits_softcap > 0
                                      : !(c->attention_softcap > 0) && !(c->logits_softcap > 0);
    REQUIRE(valid, STATUS_UNAVAILABLE,
            "%s: model.attn_logit_softcapping and model.final_logit_softcapping of %s must be %s "
            "for the GGUF export, because llama.cpp supports nothing else",
            source->found.folder, c->architecture,
            family->has_softcaps ? "greater than 0" : "null");
    return STATUS_OK;
}

/* Checks the activation. llama.cpp supports only ReLU in T5 without a gate, and only the tanh form
 * of GELU in T5 with a gate. */
static status check_activation(const struct export_source *source)
{
    const struct model_config *c = &source->config;
    struct architecture a = architecture_compose(c);
    bool is_gelu = c->activation == ACTIVATION_GELU_TANH || c->activation == ACTIVATION_GELU_ERF;
    if (a.free_gate) {
        REQUIRE(c->activation == (a.feed_forward.gated ? ACTIVATION_GELU_TANH : ACTIVATION_RELU),
                STATUS_UNAVAILABLE,
                "%s: model.activation is not %s; llama.cpp supports no other for %s %s a gate",
                source->found.folder, a.feed_forward.gated ? "gelu_tanh" : "relu", c->architecture,
                a.feed_forward.gated ? "with" : "without");
        return STATUS_OK;
    }
    REQUIRE(a.feed_forward.gated || is_gelu, STATUS_UNAVAILABLE,
            "%s: model.activation is not a GELU; llama.cpp has only GELU for %s",
            source->found.folder, c->architecture);
    return STATUS_OK;
}

/* Checks the parts of the model that have no key in GGUF files. */
static status check_parts(const struct export_source *source, const struct gguf_family *family)
{
    const struct model_config *c = &source->config;
    TRY(check_activation(source));
    REQUIRE(family->max_distance == 0 || c->max_distance == family->max_distance,
            STATUS_UNAVAILABLE,
            "%s: model.relative_attention_max_distance is %" PRId64
            "; llama.cpp supports only %" PRId64,
            source->found.folder, c->max_distance, family->max_distance);
    REQUIRE(c->layers <= 2 * c->encoder_layers || c->encoder_layers == 0, STATUS_UNAVAILABLE,
            "%s: model.num_decoder_layers is greater than model.num_layers; llama.cpp cannot load "
            "such a model",
            source->found.folder);
    REQUIRE(family->has_biases || (!c->attention_bias && !c->mlp_bias), STATUS_UNAVAILABLE,
            "%s: llama.cpp does not have model.attention_bias and model.mlp_bias of %s",
            source->found.folder, c->architecture);
    REQUIRE(!family->width_is_heads || c->heads * model_head_width(c) == c->width,
            STATUS_UNAVAILABLE,
            "%s: model.head_dim times model.num_heads is %" PRId64
            "; for %s, llama.cpp requires model.hidden_size, %" PRId64,
            source->found.folder, c->heads * model_head_width(c), c->architecture, c->width);
    return STATUS_OK;
}

status gguf_check_model(const struct export_source *source, const struct gguf_family *family)
{
    const struct model_config *c = &source->config;
    double family_scale =
        gguf_family_scale(family, c->layers, c->width, c->heads, model_head_width(c));
    bool causal = model_architecture(c->architecture)->attention.causal;
    REQUIRE(c->head == MODEL_HEAD_LM || c->head == MODEL_HEAD_NONE, STATUS_UNAVAILABLE,
            "%s has the head of the objective %s, which the GGUF export does not support; models "
            "of text and of embeddings are supported",
            source->found.folder, recipe_objective_name(source->recipe.objective));
    REQUIRE(!family->rotates_every_fourth || c->no_rope_interval == 4, STATUS_UNAVAILABLE,
            "%s: model.no_rope_layer_interval is %" PRId64 "; llama.cpp supports only 4",
            source->found.folder, c->no_rope_interval);
    REQUIRE(!family->fixed_scale || !(fabs(c->attention_scale - family_scale) > 1e-6),
            STATUS_UNAVAILABLE,
            "%s: model.query_pre_attn_scalar is not %.0f, the only value of llama.cpp for %" PRId64
            " layers",
            source->found.folder, 1 / (family_scale * family_scale), c->layers);
    REQUIRE(source->recipe.model.layer_types[0] == '\0', STATUS_UNAVAILABLE,
            "%s: llama.cpp supports full_attention only in every n-th layer, but model.layer_types "
            "has another order",
            source->found.folder);
    TRY(check_softcaps(source, family));
    TRY(check_parts(source, family));
    REQUIRE(c->rope_scaling.kind != ROTARY_DYNAMIC ||
                c->rope_scaling.positions <= c->rope_scaling.original_positions,
            STATUS_UNAVAILABLE,
            "%s: model.rope_type is dynamic, which llama.cpp does not have; set "
            "model.max_position_embeddings to model.rope_original_positions",
            source->found.folder);
    REQUIRE(c->rope_scaling.kind != ROTARY_LONGROPE, STATUS_UNAVAILABLE,
            "%s: model.rope_type is longrope, which the GGUF export does not support",
            source->found.folder);
    if (family->ignores_window && c->window > 0 && c->window < model_positions(c)) {
        log_warning("EXPORT",
                    "llama.cpp does not have the window of %s: texts of more than %" PRId64
                    " tokens give other results there",
                    c->architecture, c->window);
    }
    if (!causal) {
        log_warning("EXPORT",
                    "llama.cpp uses encoders for embeddings only, so the export of %s "
                    "has no head",
                    c->architecture);
    }
    return STATUS_OK;
}

static void put_rotary(const struct model_keys *k, const struct model_config *c)
{
    const struct rotary_scaling *s = &c->rope_scaling;
    put_number(k, "rope.freq_base", c->rope_theta);
    put_factor(k, "rope.freq_base_swa", c->rope_local_theta);
    put_integer(k, "rope.dimension_count", model_rotary_width(c));
    if (s->kind == ROTARY_LINEAR || s->kind == ROTARY_YARN) {
        put_text(k, "rope.scaling.type", s->kind == ROTARY_LINEAR ? "linear" : "yarn");
        put_number(k, "rope.scaling.factor", s->factor);
    }
    if (s->kind == ROTARY_YARN) {
        put_integer(k, "rope.scaling.original_context_length", (int64_t)s->original_positions);
        put_number(k, "rope.scaling.yarn_beta_fast", s->beta_fast);
        put_number(k, "rope.scaling.yarn_beta_slow", s->beta_slow);
        put_factor(k, "rope.scaling.yarn_attn_factor", s->attention_factor);
    }
}

/* `window` is the window of the recipe: an encoder attends to half of it on each side. */
static void put_windows(const struct model_keys *k, const struct model_config *c, int64_t window)
{
    char key[GGUF_NAME_BYTES];
    put_integer(k, "attention.sliding_window", window);
    gguf_begin_array(k->writer, make_key(k, "attention.sliding_window_pattern", key),
                     GGUF_VALUE_BOOL, c->layers);
    for (int64_t layer = 0; layer < c->layers; layer++) {
        gguf_add_bool(k->writer, model_layer_is_local(c, layer));
    }
}

/* Writes the number of layers, and the settings that only encoder-decoders have. Their logit_scale
 * is 1, because the final norm of the decoder contains the scale of the logits. */
static void put_layers(const struct model_keys *k, const struct export_source *source)
{
    const struct model_config *c = &source->config;
    if (!architecture_has_decoder(model_architecture(c->architecture))) {
        put_integer(k, "block_count", c->layers);
        put_factor(k, "logit_scale", c->logits_divisor);
        return;
    }
    int32_t start = derive_decoder_start(&source->recipe, source->tokenizer);
    put_integer(k, "block_count", c->encoder_layers);
    put_integer(k, "decoder_block_count", c->layers - c->encoder_layers);
    put_integer(k, "attention.relative_buckets_count", c->position_buckets);
    put_number(k, "logit_scale", 1);
    if (start >= 0) {
        put_integer(k, "decoder_start_token_id", start);
    }
}

void gguf_put_model(struct gguf_writer *w, const struct export_source *source,
                    const struct gguf_family *family, enum gguf_type type)
{
    const struct model_config *c = &source->config;
    const struct architecture *a = model_architecture(c->architecture);
    struct model_keys keys = {w, family->name}, *k = &keys;
    gguf_put_text(w, "general.architecture", family->name);
    gguf_put_text(w, "general.type", "model");
    gguf_put_u32(w, "general.file_type", get_file_type(type));
    gguf_put_u32(w, "general.quantization_version", 2);
    put_integer(k, "vocab_size", source->vocabulary);
    put_layers(k, source);
    put_integer(k, "context_length", model_positions(c));
    put_integer(k, "embedding_length", c->width);
    put_integer(k, "feed_forward_length", c->inner);
    put_integer(k, "attention.head_count", c->heads);
    put_integer(k, "attention.head_count_kv", model_kv_heads(c));
    put_integer(k, "attention.key_length", model_head_width(c));
    put_integer(k, "attention.value_length", model_head_width(c));
    put_number(k,
               a->norm.kind == NORM_RMS ? "attention.layer_norm_rms_epsilon"
                                        : "attention.layer_norm_epsilon",
               (double)c->norm_epsilon);
    if (architecture_is_rotary(a)) {
        put_rotary(k, c);
    }
    if (c->window > 0 && !family->ignores_window) {
        put_windows(k, c, source->recipe.model.sliding_window);
    } else if (c->window > 0 && family->stores_window) {
        put_integer(k, "attention.sliding_window", c->window);
    }
    if (!family->fixed_scale) {
        put_factor(k, "attention.scale", c->attention_scale);
    }
    put_factor(k, "embedding_scale", c->embedding_multiplier);
    put_factor(k, "residual_scale", c->residual_multiplier);
    put_factor(k, "attn_logit_softcapping", c->attention_softcap);
    put_factor(k, "final_logit_softcapping", c->logits_softcap);
    if (!a->attention.causal) {
        char key[GGUF_NAME_BYTES];
        gguf_put_bool(w, make_key(k, "attention.causal", key), false);
        put_integer(k, "pooling_type", POOLING_MEAN);
    }
}
