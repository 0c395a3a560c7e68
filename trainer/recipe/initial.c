/* Settings of the model that come from the recipe of model.init_from. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "trainer/recipe/settings.h"

static bool is_given(const struct recipe *recipe, int index)
{
    char value[RECIPE_VALUE_BYTES];
    return recipe->origin.locations[index].kind != LOCATION_DEFAULT &&
           strcmp(recipe_value_format(&recipe_table[index], recipe, false, value), "null") != 0;
}

/* A checkpoint without a weight for each position accepts another number of positions. */
static enum initial_rule get_rule(const struct recipe *initial, const struct setting *setting)
{
    bool positions = setting->offset == offsetof(struct recipe, model.max_position_embeddings);
    return positions && !recipe_has_position_table(initial) ? INITIAL_DEFAULT : setting->initial;
}

/* Lists the given settings of a rule that differ from the checkpoint, as "KEY: its value (line N:
 * the recipe's value)". Returns their number. */
static int list_differences(const struct recipe *recipe, const struct recipe *initial,
                            enum initial_rule rule, char *text, size_t bytes)
{
    int count = 0;
    size_t used = 0;
    char own[RECIPE_VALUE_BYTES], other[RECIPE_VALUE_BYTES], where[32];
    text[0] = '\0';
    for (int i = 0; i < recipe_table_count; i++) {
        const struct setting *setting = &recipe_table[i];
        if (get_rule(initial, setting) != rule || !is_given(recipe, i)) {
            continue;
        }
        recipe_value_format(setting, recipe, false, own);
        recipe_value_format(setting, initial, false, other);
        if (strcmp(own, other) == 0 || strcmp(other, "null") == 0) {
            continue;
        }
        struct source_location given = recipe->origin.locations[i];
        snprintf(where, sizeof where, given.kind == LOCATION_FILE ? "line %d" : "command line",
                 given.line);
        used += (size_t)snprintf(text + used, bytes - used, "%s%s: %.60s (%s: %.60s)",
                                 count > 0 ? ", " : "", strchr(setting->key, '.') + 1, other, where,
                                 own);
        used = used < bytes ? used : bytes - 1;
        count++;
    }
    return count;
}

/* Expands a given sliding_window_pattern if the initial model has a list without a pattern. */
static void expand_given_pattern(struct recipe *recipe, const struct recipe *initial)
{
    int types = recipe_table_find("model.layer_types");
    int pattern = recipe_table_find("model.sliding_window_pattern");
    if (is_given(recipe, pattern) && initial->model.sliding_window_pattern == 0 &&
        initial->model.layer_types[0] != '\0') {
        recipe->model.num_layers = initial->model.num_layers;
        recipe_expand_layer_types(recipe);
        recipe->origin.locations[types] = recipe->origin.locations[pattern];
    }
}

status recipe_compare_initial(const struct recipe *recipe, const struct recipe *initial)
{
    char text[STATUS_TEXT_BYTES / 2];
    struct recipe own = *recipe, expanded = *initial;
    recipe_expand_layer_types(&expanded);
    expand_given_pattern(&own, &expanded);
    if (list_differences(&own, &expanded, INITIAL_SHAPE, text, sizeof text) > 0) {
        return recipe_raise(recipe, STATUS_RECIPE, "model.init_from",
                            "the model in %.300s has other sizes than the recipe; remove these "
                            "settings or set them to: %s",
                            initial->origin.name, text);
    }
    if (list_differences(&own, &expanded, INITIAL_NUMERICS, text, sizeof text) > 0) {
        log_warning("INIT-SETTINGS",
                    "the weights in %s were trained with other settings than this run: %s",
                    initial->origin.name, text);
    }
    return STATUS_OK;
}

static void copy_value(const struct setting *setting, struct recipe *to, const struct recipe *from)
{
    memcpy((char *)to + setting->offset, (const char *)from + setting->offset, setting->bytes);
}

/* Returns whether the recipe gives the setting that takes the place of this one. */
static bool is_displaced(const struct recipe *recipe, int index)
{
    int types = recipe_table_find("model.layer_types");
    int pattern = recipe_table_find("model.sliding_window_pattern");
    return (index == types && is_given(recipe, pattern)) ||
           (index == pattern && is_given(recipe, types));
}

void recipe_take_initial(struct recipe *recipe, const struct recipe *initial)
{
    for (int i = 0; i < recipe_table_count; i++) {
        if (recipe_table[i].initial != INITIAL_UNRELATED && !is_given(recipe, i) &&
            !is_displaced(recipe, i)) {
            copy_value(&recipe_table[i], recipe, initial);
        }
    }
}
