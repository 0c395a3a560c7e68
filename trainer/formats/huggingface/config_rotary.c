/* The keys of config.json for rotary positions and the kinds of attention of Llama and the families
 * like it. */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "trainer/formats/huggingface/config.h"
#include "trainer/formats/huggingface/config_impl.h"

enum {
    IS_LINEAR = 1 << ROTARY_LINEAR,
    IS_LLAMA3 = 1 << ROTARY_LLAMA3,
    IS_YARN = 1 << ROTARY_YARN,
    IS_DYNAMIC = 1 << ROTARY_DYNAMIC,
    IS_LONGROPE = 1 << ROTARY_LONGROPE
};

/* Numbers of rope_parameters, and the types that have them. A number without a default value is
 * required. attention_factor is not written if it is 0, which means the default. */
static const struct {
    const char *name;
    size_t setting;
    int types;
    bool is_required;
    double default_value;
} rope_numbers[] = {
    {"factor", offsetof(struct recipe, model.rope_factor),
     IS_LINEAR | IS_LLAMA3 | IS_YARN | IS_DYNAMIC, true, 0},
    {"factor", offsetof(struct recipe, model.rope_factor), IS_LONGROPE, false, 0},
    {"low_freq_factor", offsetof(struct recipe, model.rope_low_freq_factor), IS_LLAMA3, true, 0},
    {"high_freq_factor", offsetof(struct recipe, model.rope_high_freq_factor), IS_LLAMA3, true, 0},
    {"beta_fast", offsetof(struct recipe, model.rope_beta_fast), IS_YARN, false, 32},
    {"beta_slow", offsetof(struct recipe, model.rope_beta_slow), IS_YARN, false, 1},
    {"attention_factor", offsetof(struct recipe, model.rope_attention_factor),
     IS_YARN | IS_LONGROPE, false, 0},
};

/* Lists of rope_parameters with the type longrope. */
static const struct {
    const char *name;
    size_t setting;
} rope_lists[] = {
    {"short_factor", offsetof(struct recipe, model.rope_short_factor)},
    {"long_factor", offsetof(struct recipe, model.rope_long_factor)},
};

enum { ROPE_NUMBERS = COUNT(rope_numbers) };
static const char rope_positions_key[] = "original_max_position_embeddings";
static const char rotary_factor_key[] = "partial_rotary_factor";
static const char layer_types_key[] = "layer_types";
static const char full_attention[] = "full_attention", sliding_attention[] = "sliding_attention";

/* Returns whether the type has original_max_position_embeddings. */
static bool has_original_positions(enum rotary_kind type)
{
    return type == ROTARY_LLAMA3 || type == ROTARY_YARN || type == ROTARY_LONGROPE;
}

/* Refuses keys that change YaRN in families that Bireme does not have. */
static status check_yarn(const struct config_document *c)
{
    bool truncates;
    TRY(config_read_boolean(c, "truncate", true, &truncates));
    REQUIRE(truncates, STATUS_UNAVAILABLE, "%s: yarn with truncate: false is not supported",
            c->path);
    REQUIRE(config_get_field(c, "mscale") == NULL && config_get_field(c, "mscale_all_dim") == NULL,
            STATUS_UNAVAILABLE, "%s: yarn with mscale is not supported; attention_factor is",
            c->path);
    return STATUS_OK;
}

/* Reads the factors of LongRoPE. The default of `factor` is the ratio of the two lengths. */
static status read_longrope(const struct config_document *c, struct recipe *r)
{
    char text[TEXT_NUMBER_BYTES];
    for (int i = 0; i < COUNT(rope_lists); i++) {
        const json_t *list = config_get_field(c, rope_lists[i].name);
        char *out = (char *)r + rope_lists[i].setting;
        size_t used = 0, count = json_array_size(list);
        REQUIRE(count > 0 && count <= RECIPE_ROPE_FACTORS_MAX, STATUS_DATA,
                "%s: longrope: %s is not a list of 1 to %d numbers", c->path, rope_lists[i].name,
                RECIPE_ROPE_FACTORS_MAX);
        for (size_t j = 0; j < count; j++) {
            const json_t *number = json_array_get(list, j);
            REQUIRE(json_is_number(number) && json_number_value(number) > 0, STATUS_DATA,
                    "%s: longrope: entry %zu of %s is not a number above 0", c->path, j,
                    rope_lists[i].name);
            used += (size_t)snprintf(out + used, RECIPE_ROPE_LIST_BYTES - used, "%s%s",
                                     j > 0 ? ", " : "",
                                     text_from_number(json_number_value(number), text));
        }
    }
    if (!(r->model.rope_factor > 0)) {
        double ratio = (double)r->model.max_position_embeddings;
        ratio /= (double)r->model.rope_original_positions;
        r->model.rope_factor = ratio > 1 ? ratio : 1;
    }
    return STATUS_OK;
}

static status read_rope_type(const struct config_document *c, int64_t original_positions,
                             struct recipe *r)
{
    const char *name, *name_before_v5;
    TRY(config_read_string(c, "type", "default", &name_before_v5));
    TRY(config_read_string(c, "rope_type", name_before_v5, &name));
    enum rotary_kind type = ROTARY_PLAIN;
    while (type < ROTARY_LONGROPE && strcmp(name, recipe_rope_type_name(type)) != 0) {
        type++;
    }
    REQUIRE(strcmp(name, recipe_rope_type_name(type)) == 0, STATUS_UNAVAILABLE,
            "%s: the rope_type %.60s is not supported; default, linear, llama3, yarn, dynamic and "
            "longrope are",
            c->path, name);
    r->model.rope_type = type;
    for (int i = 0; i < ROPE_NUMBERS; i++) {
        if ((rope_numbers[i].types & 1 << type) == 0) {
            continue;
        }
        double *value = (double *)((char *)r + rope_numbers[i].setting);
        REQUIRE(!rope_numbers[i].is_required || config_get_field(c, rope_numbers[i].name) != NULL,
                STATUS_DATA, "%s: %s has no %s", c->path, name, rope_numbers[i].name);
        TRY(config_read_number(c, rope_numbers[i].name, rope_numbers[i].default_value, value));
    }
    if (!has_original_positions(type)) {
        return STATUS_OK;
    }
    TRY(type == ROTARY_YARN ? check_yarn(c) : STATUS_OK);
    TRY(config_read_integer(c, rope_positions_key, original_positions,
                            &r->model.rope_original_positions));
    REQUIRE(r->model.rope_original_positions > 0, STATUS_DATA,
            "%s: %s is %" PRId64 "; it must be above 0", c->path, rope_positions_key,
            r->model.rope_original_positions);
    return type == ROTARY_LONGROPE ? read_longrope(c, r) : STATUS_OK;
}

/* Checks the kinds of attention of a list. `other` is the second kind that is supported; NULL: each
 * layer must have full attention. */
static status check_layer_types(const struct config_document *c, const json_t *types,
                                const char *other)
{
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        REQUIRE(type != NULL, STATUS_DATA, "%s: layer_types is not a list of strings", c->path);
        REQUIRE(strcmp(type, full_attention) == 0 || (other != NULL && strcmp(type, other) == 0),
                STATUS_UNAVAILABLE, "%s: layer_types: %.60s is not supported; full_attention%s%s",
                c->path, type, other != NULL ? " and " : " is",
                other != NULL ? "sliding_attention are" : "");
    }
    return STATUS_OK;
}

static bool has_no_rope(const void *list, int64_t index)
{
    return json_integer_value(json_array_get(list, (size_t)index)) == 0;
}

int64_t huggingface_find_interval(const void *list, int64_t layers,
                                  bool (*is_special)(const void *list, int64_t index), bool begins,
                                  int64_t *interval)
{
    *interval = layers + 1;
    for (int64_t i = 0; i < layers; i++) {
        int64_t number = begins ? i : i + 1;
        bool found = is_special(list, i);
        *interval = found && *interval > layers && number > 0 ? number : *interval;
        if (found != (number % *interval == 0)) {
            return i;
        }
    }
    return -1;
}

/* Finds the interval of a list of config.json. */
static status find_interval(const struct config_document *c, const char *key, int64_t layers,
                            bool (*is_special)(const void *, int64_t), const char *special,
                            bool begins, int64_t *interval)
{
    int64_t wrong =
        huggingface_find_interval(config_get_field(c, key), layers, is_special, begins, interval);
    REQUIRE(wrong < 0, STATUS_UNAVAILABLE,
            "%s: %s of layer %" PRId64 " is not supported; %s is required in every n-th layer and "
            "in no other; here n is %" PRId64,
            c->path, key, wrong, special, *interval);
    return STATUS_OK;
}

status config_read_layer_types(const struct config_document *c, struct recipe *r)
{
    const json_t *types = config_get_field(c, layer_types_key);
    size_t count = json_array_size(types), used = 0, bytes = sizeof r->model.layer_types;
    REQUIRE((int64_t)count == r->model.num_layers, STATUS_DATA,
            "%s: layer_types has %zu entries for %" PRId64 " layers", c->path, count,
            r->model.num_layers);
    TRY(check_layer_types(c, types, sliding_attention));
    for (size_t i = 0; i < count && used < bytes; i++) {
        used += (size_t)snprintf(r->model.layer_types + used, bytes - used, "%s%s",
                                 i > 0 ? ", " : "", json_string_value(json_array_get(types, i)));
    }
    REQUIRE(used < bytes, STATUS_UNAVAILABLE, "%s: layer_types of %zu layers are too long", c->path,
            count);
    r->model.sliding_window_pattern = 0;
    return STATUS_OK;
}

static status read_positive_integer(const struct config_document *c, const char *key,
                                    int64_t default_value, int64_t *out)
{
    TRY(config_read_integer(c, key, default_value, out));
    REQUIRE(*out > 0, STATUS_DATA, "%s: %s is %" PRId64 "; it must be above 0", c->path, key, *out);
    return STATUS_OK;
}

/* Reads layer_types, or sliding_window_pattern of earlier versions of transformers. The recipe
 * then has the shortest form (recipe_shorten_layer_types). */
static status read_pattern(const struct config_document *c,
                           const struct huggingface_architecture *architecture, struct recipe *r)
{
    TRY(read_positive_integer(c, architecture->pattern.key, architecture->pattern.default_value,
                              &r->model.sliding_window_pattern));
    return config_get_field(c, layer_types_key) != NULL ? config_read_layer_types(c, r) : STATUS_OK;
}

static status read_softcaps(const struct config_document *c,
                            const struct huggingface_architecture *architecture, struct recipe *r)
{
    for (int i = 0; i < CONFIG_SOFTCAPS; i++) {
        const char *key = config_softcaps[i].key;
        bool is_null = json_is_null(json_object_get(c->document, key));
        double value;
        TRY(config_read_number(c, key, is_null ? 0 : architecture->softcaps[i], &value));
        REQUIRE(architecture->has_softcaps || config_get_field(c, key) == NULL, STATUS_UNAVAILABLE,
                "%s: %s is not supported; only null is", c->path, key);
        REQUIRE(value > 0 || config_get_field(c, key) == NULL, STATUS_DATA,
                "%s: %s is %g; it must be above 0", c->path, key, value);
        memcpy((char *)r + config_softcaps[i].recipe_offset, &value, sizeof value);
    }
    return STATUS_OK;
}

static void write_softcaps(FILE *file, const struct recipe *r)
{
    for (int i = 0; i < CONFIG_SOFTCAPS; i++) {
        double value;
        memcpy(&value, (const char *)r + config_softcaps[i].recipe_offset, sizeof value);
        if (value > 0) {
            config_write_number(file, config_softcaps[i].key, value);
        } else {
            fprintf(file, "  \"%s\": null,\n", config_softcaps[i].key);
        }
    }
}

/* Reads one set of rotary positions: rope_parameters, a member of it, or rope_scaling. */
static status read_rope_object(const struct config_document *c, const json_t *object,
                               const char *name, struct recipe *r)
{
    struct config_document nested = *c;
    int64_t original; /* Phi-3 has the key outside of rope_parameters */
    REQUIRE(json_is_object(object), STATUS_DATA, "%s: %s is not an object", c->path, name);
    TRY(config_read_integer(c, rope_positions_key, r->model.max_position_embeddings, &original));
    nested.document = (json_t *)object;
    TRY(config_read_number(&nested, "rope_theta", r->model.rope_theta, &r->model.rope_theta));
    TRY(config_read_number(&nested, rotary_factor_key, r->model.partial_rotary_factor,
                           &r->model.partial_rotary_factor));
    return read_rope_type(&nested, original, r);
}

/* Refuses settings of the rotary positions that this architecture does not have. */
static status check_rope(const struct config_document *c,
                         const struct huggingface_architecture *architecture,
                         const struct recipe *r)
{
    double factor = r->model.partial_rotary_factor;
    bool is_longrope = architecture->has_longrope && r->model.rope_type == ROTARY_LONGROPE;
    REQUIRE(!architecture->has_default_rope || r->model.rope_type == ROTARY_PLAIN || is_longrope,
            STATUS_UNAVAILABLE, "%s: the rope_type %s of %s is not supported; default%s", c->path,
            recipe_rope_type_name(r->model.rope_type), architecture->model_type,
            architecture->has_longrope ? " and longrope are" : " is");
    REQUIRE(architecture->rotary_factor > 0 || !(factor > 0) || factor == 1, STATUS_UNAVAILABLE,
            "%s: %s %g of %s is not supported; 1 is", c->path, rotary_factor_key, factor,
            architecture->model_type);
    return STATUS_OK;
}

/* Reads the rotary positions of the layers with a window. They must not be scaled. */
static status read_local_rope(const struct config_document *c, const json_t *object,
                              struct recipe *r)
{
    struct config_document nested = *c;
    const char *type;
    REQUIRE(json_is_object(object), STATUS_DATA, "%s: rope_parameters: %s is not an object",
            c->path, sliding_attention);
    nested.document = (json_t *)object;
    TRY(config_read_string(&nested, "rope_type", "default", &type));
    REQUIRE(strcmp(type, "default") == 0, STATUS_UNAVAILABLE,
            "%s: the rope_type %.60s of sliding_attention is not supported; default is", c->path,
            type);
    return config_read_number(&nested, "rope_theta", r->model.rope_local_base_freq,
                              &r->model.rope_local_base_freq);
}

/* Reads rope_parameters with one member for each kind of layer, or the keys of earlier versions. */
static status read_local_rope_layers(const struct config_document *c,
                                     const struct huggingface_architecture *architecture,
                                     struct recipe *r)
{
    const json_t *parameters = config_get_field(c, "rope_parameters"),
                 *scaling = config_get_field(c, "rope_scaling");
    double *const bases[] = {&r->model.rope_theta, &r->model.rope_local_base_freq};
    for (int i = 0; i < 2; i++) {
        TRY(config_read_number(c, architecture->rope_bases[i].key,
                               architecture->rope_bases[i].default_value, bases[i]));
    }
    const json_t *full = json_object_get(parameters, full_attention),
                 *local = json_object_get(parameters, sliding_attention);
    REQUIRE(parameters == NULL || full != NULL || local != NULL, STATUS_DATA,
            "%s: rope_parameters has neither %s nor %s", c->path, full_attention,
            sliding_attention);
    full = full != NULL && !json_is_null(full) ? full : scaling;
    TRY(full != NULL
            ? read_rope_object(c, full, full == scaling ? "rope_scaling" : full_attention, r)
            : STATUS_OK);
    TRY(local != NULL && !json_is_null(local) ? read_local_rope(c, local, r) : STATUS_OK);
    /* In a recipe, 0 would mean the base of the other layers. */
    REQUIRE(r->model.rope_local_base_freq > 0, STATUS_DATA,
            "%s: the base of the rotary positions of sliding_attention is 0; it must be above 0",
            c->path);
    return check_rope(c, architecture, r);
}

/* Reads no_rope_layers, a list with 0 for a layer without positions, or the interval of these
 * layers. */
static status read_no_rope_layers(const struct config_document *c, struct recipe *r)
{
    const json_t *list = config_get_field(c, "no_rope_layers");
    int64_t layers = r->model.num_layers, *interval = &r->model.no_rope_layer_interval;
    TRY(read_positive_integer(c, "no_rope_layer_interval", 4, interval));
    if (list == NULL) {
        return STATUS_OK;
    }
    REQUIRE((int64_t)json_array_size(list) >= layers, STATUS_DATA,
            "%s: no_rope_layers has %zu entries for %" PRId64 " layers", c->path,
            json_array_size(list), layers);
    for (size_t i = 0; i < json_array_size(list); i++) {
        REQUIRE(json_is_integer(json_array_get(list, i)), STATUS_DATA,
                "%s: no_rope_layers is not a list of integers", c->path);
    }
    return find_interval(c, "no_rope_layers", layers, has_no_rope, "0", false, interval);
}

status config_read_rotary(const struct config_document *c,
                          const struct huggingface_architecture *architecture, struct recipe *r)
{
    const json_t *parameters = config_get_field(c, "rope_parameters");
    const json_t *scaling = config_get_field(c, "rope_scaling");
    /* config_read_parts reads the soft-caps, layer_types and the share of columns of free parts. */
    TRY(!architecture->has_free_parts ? read_softcaps(c, architecture, r) : STATUS_OK);
    if (architecture->pattern.key != NULL) {
        TRY(read_pattern(c, architecture, r));
    } else if (!architecture->has_free_parts) {
        TRY(check_layer_types(c, config_get_field(c, layer_types_key), NULL));
    }
    if (architecture->rope_bases[0].key != NULL) {
        return read_local_rope_layers(c, architecture, r);
    }
    TRY(architecture->has_no_rope_layers ? read_no_rope_layers(c, r) : STATUS_OK);
    TRY(config_read_number(c, "rope_theta", 10000, &r->model.rope_theta));
    if (!architecture->has_free_parts) {
        TRY(config_read_number(c, rotary_factor_key, architecture->rotary_factor,
                               &r->model.partial_rotary_factor));
    }
    if (parameters != NULL) {
        TRY(read_rope_object(c, parameters, "rope_parameters", r));
    } else if (scaling != NULL) {
        TRY(read_rope_object(c, scaling, "rope_scaling", r));
    }
    if (architecture->has_free_parts) {
        return STATUS_OK;
    }
    TRY(check_rope(c, architecture, r));
    r->model.partial_rotary_factor =
        architecture->rotary_factor > 0 ? r->model.partial_rotary_factor : 0;
    return STATUS_OK;
}

void config_write_layer_types(FILE *file, const struct recipe *r)
{
    fprintf(file, "  \"%s\": [", layer_types_key);
    for (int64_t i = 0; i < r->model.num_layers; i++) {
        fprintf(file, "%s\"%s\"", i > 0 ? ", " : "",
                recipe_layer_is_local(r, i) ? sliding_attention : full_attention);
    }
    fprintf(file, "],\n");
}

static void write_local_layers(FILE *file, const struct huggingface_architecture *architecture,
                               const struct recipe *r)
{
    if (r->model.sliding_window_pattern > 0) {
        config_write_integer(file, architecture->pattern.key, r->model.sliding_window_pattern);
    }
    config_write_layer_types(file, r);
}

static void write_no_rope_layers(FILE *file, const struct recipe *r)
{
    int64_t interval = r->model.no_rope_layer_interval;
    config_write_integer(file, "no_rope_layer_interval", interval);
    fprintf(file, "  \"no_rope_layers\": [");
    for (int64_t i = 0; i < r->model.num_layers; i++) {
        fprintf(file, "%s%d", i > 0 ? ", " : "", (i + 1) % interval != 0);
    }
    fprintf(file, "],\n");
}

void config_write_rotary(FILE *file, const struct huggingface_architecture *architecture,
                         const struct recipe *r)
{
    enum rotary_kind type = r->model.rope_type;
    char text[TEXT_NUMBER_BYTES];
    const char *base = architecture->rope_bases[0].key;
    config_write_number(file, base != NULL ? base : "rope_theta", r->model.rope_theta);
    if (architecture->rotary_factor > 0) {
        double factor = r->model.partial_rotary_factor;
        config_write_number(file, rotary_factor_key, factor > 0 ? factor : 1);
    }
    if (base != NULL) {
        config_write_number(file, architecture->rope_bases[1].key, r->model.rope_local_base_freq);
    }
    if (architecture->pattern.key != NULL) {
        write_local_layers(file, architecture, r);
    }
    if (architecture->has_softcaps) {
        write_softcaps(file, r);
    }
    if (architecture->has_no_rope_layers) {
        write_no_rope_layers(file, r);
    }
    if (type == ROTARY_PLAIN) {
        return;
    }
    fprintf(file, "  \"rope_scaling\": {\"rope_type\": \"%s\"", recipe_rope_type_name(type));
    for (int i = 0; i < ROPE_NUMBERS; i++) {
        const double *value = (const double *)((const char *)r + rope_numbers[i].setting);
        if ((rope_numbers[i].types & 1 << type) != 0 &&
            (*value != 0 || rope_numbers[i].is_required)) {
            fprintf(file, ", \"%s\": %s", rope_numbers[i].name, text_from_number(*value, text));
        }
    }
    if (has_original_positions(type)) {
        fprintf(file, ", \"%s\": %" PRId64, rope_positions_key, r->model.rope_original_positions);
    }
    for (int i = 0; i < COUNT(rope_lists) && type == ROTARY_LONGROPE; i++) {
        fprintf(file, ", \"%s\": [%s]", rope_lists[i].name,
                (const char *)r + rope_lists[i].setting);
    }
    fprintf(file, "},\n");
    if (architecture->has_longrope) { /* Phi3Config has the key outside of rope_scaling too */
        config_write_integer(file, rope_positions_key, r->model.rope_original_positions);
    }
}
