/* The keys of config.json for rotary positions and the kinds of attention of Llama and the families
 * like it. */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "base/text.h"
#include "trainer/huggingface/config_impl.h"

/* Numbers of rope_parameters for rope_type llama3; linear uses only the first. */
static const struct {
    const char *name;
    size_t setting;
} rope_numbers[] = {
    {"factor", offsetof(struct recipe, model.rope_factor)},
    {"low_freq_factor", offsetof(struct recipe, model.rope_low_freq_factor)},
    {"high_freq_factor", offsetof(struct recipe, model.rope_high_freq_factor)},
};

enum { ROPE_NUMBERS = sizeof rope_numbers / sizeof rope_numbers[0] };
static const char rope_positions_key[] = "original_max_position_embeddings";

static status read_rope_type(const struct config_document *c, struct recipe *r)
{
    const char *type, *type_before_v5;
    TRY(config_read_string(c, "type", "default", &type_before_v5));
    TRY(config_read_string(c, "rope_type", type_before_v5, &type));
    bool is_linear = strcmp(type, "linear") == 0, is_llama3 = strcmp(type, "llama3") == 0;
    REQUIRE(is_linear || is_llama3 || strcmp(type, "default") == 0, STATUS_UNAVAILABLE,
            "%s: the rope_type %.60s is not supported; default, linear and llama3 are", c->path,
            type);
    r->model.rope_type = is_llama3 ? ROPE_LLAMA3 : is_linear ? ROPE_LINEAR : ROPE_DEFAULT;
    for (int i = 0; i < (is_llama3 ? ROPE_NUMBERS : is_linear ? 1 : 0); i++) {
        double *value = (double *)((char *)r + rope_numbers[i].setting);
        REQUIRE(config_get_field(c, rope_numbers[i].name) != NULL, STATUS_DATA, "%s: %s has no %s",
                c->path, type, rope_numbers[i].name);
        TRY(config_read_number(c, rope_numbers[i].name, 0, value));
    }
    if (!is_llama3) {
        return STATUS_OK;
    }
    TRY(config_read_integer(c, rope_positions_key, r->model.max_position_embeddings,
                            &r->model.rope_original_positions));
    REQUIRE(r->model.rope_original_positions > 0, STATUS_DATA,
            "%s: %s is %" PRId64 "; it must be above 0", c->path, rope_positions_key,
            r->model.rope_original_positions);
    return STATUS_OK;
}

/* Every layer must have full attention. Newer versions of transformers list the kinds. */
static status check_layer_types(const struct config_document *c)
{
    const json_t *types = config_get_field(c, "layer_types");
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        REQUIRE(type != NULL, STATUS_DATA, "%s: layer_types is not a list of strings", c->path);
        REQUIRE(strcmp(type, "full_attention") == 0, STATUS_UNAVAILABLE,
                "%s: layer_types: %.60s is not supported; full_attention is", c->path, type);
    }
    return STATUS_OK;
}

status config_read_rotary(const struct config_document *c, struct recipe *r)
{
    const json_t *parameters = config_get_field(c, "rope_parameters");
    const json_t *scaling = parameters != NULL ? parameters : config_get_field(c, "rope_scaling");
    struct config_document nested = *c;
    TRY(check_layer_types(c));
    TRY(config_read_number(c, "rope_theta", 10000, &r->model.rope_theta));
    if (scaling != NULL) {
        REQUIRE(json_is_object(scaling), STATUS_DATA, "%s: %s is not an object", c->path,
                parameters != NULL ? "rope_parameters" : "rope_scaling");
        nested.document = (json_t *)scaling;
        TRY(config_read_number(&nested, "rope_theta", r->model.rope_theta, &r->model.rope_theta));
        TRY(read_rope_type(&nested, r));
    }
    return STATUS_OK;
}

void config_write_rotary(FILE *file, const struct recipe *r)
{
    bool is_llama3 = r->model.rope_type == ROPE_LLAMA3;
    bool is_default = r->model.rope_type == ROPE_DEFAULT;
    char text[TEXT_NUMBER_BYTES];
    config_write_number(file, "rope_theta", r->model.rope_theta);
    if (is_default) {
        return;
    }
    fprintf(file, "  \"rope_scaling\": {\"rope_type\": \"%s\"",
            recipe_rope_type_name(r->model.rope_type));
    for (int i = 0; i < (is_llama3 ? ROPE_NUMBERS : 1); i++) {
        const double *value = (const double *)((const char *)r + rope_numbers[i].setting);
        fprintf(file, ", \"%s\": %s", rope_numbers[i].name, text_from_number(*value, text));
    }
    if (is_llama3) {
        fprintf(file, ", \"%s\": %" PRId64, rope_positions_key, r->model.rope_original_positions);
    }
    fprintf(file, "},\n");
}
