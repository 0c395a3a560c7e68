/* Warnings about settings: those without effect, because their condition in the settings table is
 * not satisfied, and positions that are not trained. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "trainer/recipe/settings.h"

/* The parts of setting.used. */
struct condition {
    int index; /* of the setting that it depends on */
    int count; /* 0: any value but null */
    const char *values[CHOICES_MAX];
    char text[CHOICES_BYTES];
};

static void parse_condition(const char *used, struct condition *out)
{
    char key[RECIPE_NAME_BYTES];
    size_t length = strcspn(used, "=");
    snprintf(key, sizeof key, "%.*s", (int)length, used);
    out->index = recipe_table_find(key);
    out->count =
        used[length] == '=' ? recipe_value_choices(used + length + 1, out->text, out->values) : 0;
}

static bool has_value(const struct recipe *recipe, const struct condition *c)
{
    char value[RECIPE_VALUE_BYTES], entry[RECIPE_NAME_BYTES];
    const struct setting *setting = &recipe_table[c->index];
    recipe_value_format(setting, recipe, false, value);
    if (c->count == 0) {
        return strcmp(value, "null") != 0;
    }
    const char *cursor =
        setting->kind == SETTING_LIST ? (const char *)recipe + setting->offset : value;
    while (recipe_list_next(&cursor, entry, sizeof entry)) {
        for (int i = 0; i < c->count; i++) {
            if (strcmp(entry, c->values[i]) == 0) {
                return true;
            }
        }
    }
    return false;
}

const char *recipe_find_failed_condition(const struct recipe *recipe, int index)
{
    struct condition c;
    for (const char *used = recipe_table[index].used; used != NULL;
         used = recipe_table[c.index].used) {
        parse_condition(used, &c);
        if (!has_value(recipe, &c)) {
            return used;
        }
    }
    return NULL;
}

/* Writes "KEY is VALUE, VALUE or VALUE", or "KEY is set". */
static void describe_condition(const char *used, char *out, size_t bytes)
{
    struct condition c;
    parse_condition(used, &c);
    size_t done = (size_t)snprintf(out, bytes, "%s is", recipe_table[c.index].key);
    for (int i = 0; i < c.count && done < bytes; i++) {
        done += (size_t)snprintf(out + done, bytes - done, "%s %s",
                                 i == 0             ? ""
                                 : i == c.count - 1 ? " or"
                                                    : ",",
                                 c.values[i]);
    }
    if (c.count == 0) {
        snprintf(out + done, bytes - done, " set");
    }
}

static void warn_unused(const struct recipe *recipe)
{
    char text[STATUS_TEXT_BYTES / 2], condition[2 * CHOICES_BYTES];
    size_t used = 0;
    int count = 0;
    for (int i = 0; i < recipe_table_count; i++) {
        const char *failed = recipe->origin.locations[i].kind != LOCATION_DEFAULT
                                 ? recipe_find_failed_condition(recipe, i)
                                 : NULL;
        if (failed == NULL || recipe_has_default(recipe, i)) {
            continue;
        }
        describe_condition(failed, condition, sizeof condition);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s (used if %s)",
                                 count > 0 ? "; " : "", recipe_table[i].key, condition);
        used = used < sizeof text ? used : sizeof text - 1;
        count++;
    }
    if (count > 0) {
        log_warning("UNUSED-SETTING", "%s: settings without effect: %s", recipe->origin.name, text);
    }
}

/* Learned positions beyond the training sequences keep their random initial values. An encoder may
 * be trained on short sequences first; weights of another run may contain all positions. */
static void warn_untrained_positions(const struct recipe *recipe)
{
    int64_t positions = recipe->model.max_position_embeddings;
    int64_t trained = recipe->data.sequence_length;
    if (trained < positions && recipe->model.init_from[0] == '\0' &&
        recipe_has_position_table(recipe) &&
        !recipe_architecture_is_encoder(recipe->model.architecture)) {
        log_warning("POSITIONS",
                    "model.max_position_embeddings is %" PRId64 ", but data.sequence_length is "
                    "%" PRId64 ": the learned positions after the first %" PRId64 " remain random; "
                    "set model.max_position_embeddings=%" PRId64 ", or train on longer sequences",
                    positions, trained, trained, trained);
    }
}

void recipe_warn(const struct recipe *recipe)
{
    warn_unused(recipe);
    warn_untrained_positions(recipe);
}
