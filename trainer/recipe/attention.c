/* Settings of attention: rotary positions, and the kinds of attention of the layers. The kinds are
 * a list of all layers (model.layer_types), or the distance between the layers with full attention
 * (model.sliding_window_pattern). */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "trainer/recipe/relation_impl.h"

/* ---- rotary positions ---- */

int64_t recipe_rotary_width(const struct recipe *recipe)
{
    double factor = recipe->model.partial_rotary_factor;
    return factor > 0 ? (int64_t)((double)recipe->model.head_dim * factor) : recipe->model.head_dim;
}

bool recipe_uses_long_factors(const struct recipe *recipe)
{
    return recipe->model.max_position_embeddings > recipe->model.rope_original_positions;
}

int64_t recipe_rope_factors(const char *list, double out[RECIPE_ROPE_FACTORS_MAX])
{
    char number[TEXT_NUMBER_BYTES];
    int64_t count = 0;
    for (const char *at = list; recipe_list_next(&at, number, sizeof number); count++) {
        if (count < RECIPE_ROPE_FACTORS_MAX) {
            out[count] = strtod(number, NULL);
        }
    }
    return count;
}

status recipe_check_longrope(const struct recipe *recipe)
{
    const struct {
        const char *key, *list;
    } lists[] = {{"model.rope_short_factor", recipe->model.rope_short_factor},
                 {"model.rope_long_factor", recipe->model.rope_long_factor}};
    double factors[RECIPE_ROPE_FACTORS_MAX];
    int64_t pairs = recipe_rotary_width(recipe) / 2;
    for (int i = 0; i < 2 && recipe->model.rope_type == ROTARY_LONGROPE; i++) {
        int64_t count = recipe_rope_factors(lists[i].list, factors);
        if (count != pairs) {
            return recipe_raise(recipe, STATUS_RECIPE, lists[i].key,
                                "%" PRId64 " numbers; rope_type longrope requires %" PRId64
                                ", one for each pair of rotated columns of a head",
                                count, pairs);
        }
    }
    return STATUS_OK;
}

/* ---- kinds of attention ---- */

enum { LAYERS_MAX = RECIPE_LAYER_TYPES_BYTES / 16 };

static const char full_type[] = "full_attention", local_type[] = "sliding_attention";

/* Returns whether the pattern n makes a layer local. In ModernBERT, the first of n layers has full
 * attention. In the other families it is the last one. */
static bool is_local_in_pattern(const struct recipe *recipe, int64_t pattern, int64_t layer)
{
    bool begins = recipe->model.architecture == ARCHITECTURE_MODERNBERT;
    return (begins ? layer : layer + 1) % pattern != 0;
}

/* Reads which entries of model.layer_types are sliding_attention. Returns the number of entries. */
static int64_t read_types(const struct recipe *recipe, bool local[LAYERS_MAX])
{
    char type[RECIPE_NAME_BYTES];
    int64_t count = 0;
    for (const char *at = recipe->model.layer_types; recipe_list_next(&at, type, sizeof type);) {
        local[count++] = strcmp(type, local_type) == 0;
    }
    return count;
}

bool recipe_has_layer_types(const struct recipe *recipe)
{
    return recipe->model.layer_types[0] != '\0' || recipe->model.sliding_window_pattern > 0;
}

bool recipe_layer_is_local(const struct recipe *recipe, int64_t layer)
{
    bool local[LAYERS_MAX];
    int64_t pattern = recipe->model.sliding_window_pattern, count = read_types(recipe, local);
    return count > 0 ? layer < count && local[layer]
                     : pattern > 0 && is_local_in_pattern(recipe, pattern, layer);
}

void recipe_expand_layer_types(struct recipe *recipe)
{
    char list[RECIPE_LAYER_TYPES_BYTES] = "";
    size_t used = 0;
    for (int64_t i = 0; recipe_has_layer_types(recipe) && i < recipe->model.num_layers; i++) {
        used += used < sizeof list
                    ? (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "",
                                       recipe_layer_is_local(recipe, i) ? local_type : full_type)
                    : 0;
    }
    if (used < sizeof list) {
        memcpy(recipe->model.layer_types, list, sizeof list);
    }
}

status recipe_check_layer_types(const struct recipe_reader *reader)
{
    const struct recipe *recipe = reader->recipe;
    static const char key[] = "model.layer_types", layers[] = "model.num_layers";
    bool local[LAYERS_MAX];
    bool given = recipe->model.layer_types[0] != '\0';
    int64_t count = read_types(recipe, local);
    const struct relation relations[] = {
        {given && recipe->model.sliding_window_pattern > 0, key, "conflicts with",
         "model.sliding_window_pattern", "set one of them to null"},
        {given && recipe->model.sliding_window == 0 &&
             recipe_architecture_is_free(recipe->model.architecture),
         key, "requires", "model.sliding_window", "set it"},
    };
    if (given && count != recipe->model.num_layers) {
        return recipe_fail(reader, relation_find_location(reader, key, layers), key,
                           "%" PRId64 " entries, but %s is %" PRId64 "; set one for each layer",
                           count, layers, recipe->model.num_layers);
    }
    return CHECK_RELATIONS(reader, relations);
}

static bool has_pattern(const struct recipe *recipe, const bool *local, int64_t count, int64_t n)
{
    for (int64_t i = 0; i < count; i++) {
        if (local[i] != is_local_in_pattern(recipe, n, i)) {
            return false;
        }
    }
    return true;
}

void recipe_shorten_layer_types(struct recipe *recipe)
{
    bool local[LAYERS_MAX];
    struct source_location *locations = recipe->origin.locations;
    int64_t count = read_types(recipe, local), pattern = 1;
    while (pattern <= count && !has_pattern(recipe, local, count, pattern)) {
        pattern++;
    }
    if (count == 0 || !has_pattern(recipe, local, count, pattern)) {
        return;
    }
    memset(recipe->model.layer_types, 0, sizeof recipe->model.layer_types);
    recipe->model.sliding_window_pattern = pattern;
    locations[recipe_table_find("model.sliding_window_pattern")] =
        locations[recipe_table_find("model.layer_types")];
}
