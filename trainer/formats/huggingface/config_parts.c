/* The keys of config.json for the parts of a model. Only the families of Bireme have them
 * (has_free_parts); the classes of transformers have fixed parts. */
#include <string.h>

#include "base/memory.h"
#include "trainer/formats/huggingface/config_impl.h"

enum { PART_VALUES_MAX = 5 };

/* The values have the order of the enum in recipe.h. The first one is the default, or null if the
 * key is required. */
static const struct part {
    const char *key;
    size_t recipe_offset;
    const char *values[PART_VALUES_MAX];
} parts[] = {
    {"norm_placement",
     offsetof(struct recipe, model.norm_placement),
     {NULL, "pre", "post", "branch", "both"}},
    {"norm_type",
     offsetof(struct recipe, model.norm_type),
     {NULL, "layernorm", "rmsnorm", "nonparametric_layernorm"}},
    {"position_embedding_type",
     offsetof(struct recipe, model.position_embedding_type),
     {NULL, "learned", "sinusoidal", "rotary", "none"}},
    {"qk_norm", offsetof(struct recipe, model.qk_norm), {"none", "head", "full"}},
};

/* Numbers and counts of parts. The value 0 means none and is not written. */
static const struct config_number numbers[] = {
    {"sliding_window", offsetof(struct recipe, model.sliding_window), true},
    {"sliding_window_pattern", offsetof(struct recipe, model.sliding_window_pattern), true},
    {"no_rope_layer_interval", offsetof(struct recipe, model.no_rope_layer_interval), true},
    {"partial_rotary_factor", offsetof(struct recipe, model.partial_rotary_factor), false},
    {"rope_local_base_freq", offsetof(struct recipe, model.rope_local_base_freq), false},
    {"embedding_multiplier", offsetof(struct recipe, model.embedding_multiplier), false},
    {"attention_multiplier", offsetof(struct recipe, model.attention_multiplier), false},
    {"residual_multiplier", offsetof(struct recipe, model.residual_multiplier), false},
    {"logits_scaling", offsetof(struct recipe, model.logits_scaling), false},
    {"embedding_size", offsetof(struct recipe, model.embedding_size), true},
    {"num_hidden_groups", offsetof(struct recipe, model.num_hidden_groups), true},
    {"type_vocab_size", offsetof(struct recipe, model.type_vocab_size), true},
};

static const struct {
    const char *key;
    size_t recipe_offset;
    bool default_value; /* not written */
} switches[] = {
    {"norm_bias", offsetof(struct recipe, model.norm_bias), true},
    {"normalize_embedding", offsetof(struct recipe, model.normalize_embedding), false},
    {"head_transform", offsetof(struct recipe, model.head_transform), true},
    {"classifier_bias", offsetof(struct recipe, model.classifier_bias), true},
    {"decoder_bias", offsetof(struct recipe, model.decoder_bias), true},
};

const struct config_number config_softcaps[CONFIG_SOFTCAPS] = {
    {"attn_logit_softcapping", offsetof(struct recipe, model.attn_logit_softcapping), false},
    {"final_logit_softcapping", offsetof(struct recipe, model.final_logit_softcapping), false},
};

static status read_number(const struct config_document *c, const struct config_number *number,
                          struct recipe *r)
{
    void *setting = (char *)r + number->recipe_offset;
    return number->is_integer ? config_read_integer(c, number->key, 0, setting)
                              : config_read_number(c, number->key, 0, setting);
}

static void write_number(FILE *file, const struct config_number *number, const struct recipe *r)
{
    const void *setting = (const char *)r + number->recipe_offset;
    if (number->is_integer && *(const int64_t *)setting != 0) {
        config_write_integer(file, number->key, *(const int64_t *)setting);
    } else if (!number->is_integer && *(const double *)setting != 0) {
        config_write_number(file, number->key, *(const double *)setting);
    }
}

static status read_part(const struct config_document *c, const struct part *part, struct recipe *r)
{
    const char *value;
    TRY(config_read_string(c, part->key, part->values[0], &value));
    REQUIRE(value != NULL, STATUS_DATA, "%s: %s is missing", c->path, part->key);
    for (int i = 0; i < PART_VALUES_MAX; i++) {
        if (part->values[i] != NULL && strcmp(part->values[i], value) == 0) {
            memcpy((char *)r + part->recipe_offset, &i, sizeof i);
            return STATUS_OK;
        }
    }
    RAISE(STATUS_UNAVAILABLE, "%s: %s %.60s is not supported", c->path, part->key, value);
}

status config_read_parts(const struct config_document *c, struct recipe *r)
{
    for (int i = 0; i < COUNT(parts); i++) {
        TRY(read_part(c, &parts[i], r));
    }
    for (int i = 0; i < COUNT(numbers); i++) {
        TRY(read_number(c, &numbers[i], r));
    }
    for (int i = 0; i < CONFIG_SOFTCAPS; i++) {
        TRY(read_number(c, &config_softcaps[i], r));
    }
    for (int i = 0; i < COUNT(switches); i++) {
        TRY(config_read_boolean(c, switches[i].key, switches[i].default_value,
                                (bool *)((char *)r + switches[i].recipe_offset)));
    }
    TRY(config_get_field(c, "layer_types") != NULL ? config_read_layer_types(c, r) : STATUS_OK);
    return config_read_boolean(c, "gated_linear_unit", false, &r->model.gated_linear_unit);
}

void config_write_parts(FILE *file, const struct recipe *r)
{
    for (int i = 0; i < COUNT(parts); i++) {
        int value;
        memcpy(&value, (const char *)r + parts[i].recipe_offset, sizeof value);
        fprintf(file, "  \"%s\": \"%s\",\n", parts[i].key, parts[i].values[value]);
    }
    for (int i = 0; i < COUNT(numbers); i++) {
        write_number(file, &numbers[i], r);
    }
    for (int i = 0; i < CONFIG_SOFTCAPS; i++) {
        write_number(file, &config_softcaps[i], r);
    }
    for (int i = 0; i < COUNT(switches); i++) {
        bool value = *(const bool *)((const char *)r + switches[i].recipe_offset);
        if (value != switches[i].default_value) {
            fprintf(file, "  \"%s\": %s,\n", switches[i].key, value ? "true" : "false");
        }
    }
    if (r->model.layer_types[0] != '\0') {
        config_write_layer_types(file, r);
    }
    fprintf(file, "  \"gated_linear_unit\": %s,\n", r->model.gated_linear_unit ? "true" : "false");
}
