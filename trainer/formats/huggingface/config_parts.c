/* The keys of config.json for the parts of a model. Only the families of Bireme have them
 * (has_free_parts); the classes of transformers have fixed parts. */
#include <string.h>

#include "trainer/formats/huggingface/config_impl.h"

enum { PART_VALUES_MAX = 5 };

/* The values have the order of the enum in recipe.h, where the first value is null. */
static const struct part {
    const char *key;
    size_t recipe_offset;
    const char *values[PART_VALUES_MAX];
} parts[] = {
    {"norm_placement",
     offsetof(struct recipe, model.norm_placement),
     {NULL, "pre", "post", "branch", "both"}},
    {"norm_type", offsetof(struct recipe, model.norm_type), {NULL, "layernorm", "rmsnorm"}},
    {"position_embedding_type",
     offsetof(struct recipe, model.position_embedding_type),
     {NULL, "learned", "sinusoidal", "rotary", "none"}},
};

static status read_part(const struct config_document *c, const struct part *part, struct recipe *r)
{
    const char *value;
    TRY(config_read_string(c, part->key, NULL, &value));
    REQUIRE(value != NULL, STATUS_DATA, "%s: %s is missing", c->path, part->key);
    for (int i = 1; i < PART_VALUES_MAX && part->values[i] != NULL; i++) {
        if (strcmp(part->values[i], value) == 0) {
            memcpy((char *)r + part->recipe_offset, &i, sizeof i);
            return STATUS_OK;
        }
    }
    RAISE(STATUS_UNAVAILABLE, "%s: %s %.60s is not supported", c->path, part->key, value);
}

status config_read_parts(const struct config_document *c, struct recipe *r)
{
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        TRY(read_part(c, &parts[i], r));
    }
    return config_read_boolean(c, "gated_linear_unit", false, &r->model.gated_linear_unit);
}

void config_write_parts(FILE *file, const struct recipe *r)
{
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        int value;
        memcpy(&value, (const char *)r + parts[i].recipe_offset, sizeof value);
        fprintf(file, "  \"%s\": \"%s\",\n", parts[i].key, parts[i].values[value]);
    }
    fprintf(file, "  \"gated_linear_unit\": %s,\n", r->model.gated_linear_unit ? "true" : "false");
}
