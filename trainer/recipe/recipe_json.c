#include "trainer/recipe/recipe_json.h"

#include <stdio.h>
#include <string.h>

/* Adds one setting. "section.key" becomes a member of the object `section`; "section.key[]" is
 * appended to an array. */
static void put_setting(void *user, const char *key, const char *text)
{
    json_t *settings = user;
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    const char *dot = strchr(key, '.');
    if (dot == NULL) {
        json_object_set_new(settings, key, value);
        return;
    }
    char section[64];
    snprintf(section, sizeof section, "%.*s", (int)(dot - key), key);
    json_t *parent = json_object_get(settings, section);
    if (parent == NULL) {
        parent = json_object();
        json_object_set_new(settings, section, parent);
    }
    size_t length = strlen(dot + 1);
    if (length > 2 && strcmp(dot + 1 + length - 2, "[]") == 0) {
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)length - 2, dot + 1);
        if (json_object_get(parent, name) == NULL) {
            json_object_set_new(parent, name, json_array());
        }
        json_array_append_new(json_object_get(parent, name), value);
        return;
    }
    json_object_set_new(parent, dot + 1, value);
}

json_t *recipe_json_build(const struct recipe *recipe)
{
    json_t *settings = json_object();
    recipe_visit(recipe, put_setting, settings);
    return settings;
}
