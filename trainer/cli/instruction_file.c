#include "trainer/cli/instruction_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "trainer/recipe/settings.h"

enum { FILE_BYTES_MAX = 1 << 20, LOCATION_BYTES = 1024 };

/* Raises an error with the location of a node. */
static status fail_at(const char *path, const struct node *node, const char *key, const char *text)
{
    const struct recipe_reader reader = {.name = path};
    return recipe_fail(&reader, (struct source_location){LOCATION_FILE, node->line, node->column},
                       key, "%s", text);
}

static status fail_key(const char *path, const struct node *node, const char *const *keys,
                       int count, bool is_twice)
{
    char text[256];
    int nearest = text_nearest(node->key, keys, count);
    snprintf(text, sizeof text, "unknown key%s%s%s", nearest >= 0 ? "; did you mean '" : "",
             nearest >= 0 ? keys[nearest] : "", nearest >= 0 ? "'?" : "");
    return fail_at(path, node, node->key, is_twice ? "is given twice" : text);
}

/* Finds the values of all keys in a mapping. Other keys are errors. */
static status read_keys(const char *path, const struct node *mapping, const char *const *keys,
                        int count, const struct node **out)
{
    if (mapping->kind != NODE_MAPPING) {
        return fail_at(path, mapping, "templates",
                       "a template must be a mapping of name, input "
                       "and target");
    }
    for (const struct node *n = mapping->first; n != NULL; n = n->next) {
        int found = -1;
        for (int i = 0; i < count; i++) {
            found = strcmp(keys[i], n->key) == 0 ? i : found;
        }
        if (found < 0 || out[found] != NULL) {
            return fail_key(path, n, keys, count, found >= 0);
        }
        out[found] = n;
    }
    for (int i = 0; i < count; i++) {
        if (out[i] == NULL) {
            return fail_at(path, mapping, keys[i], "missing");
        }
    }
    return STATUS_OK;
}

static status add_template(const char *path, const struct node *node,
                           struct instruction_templates *out)
{
    static const char *const keys[] = {"name", "input", "target"};
    const struct node *values[COUNT(keys)] = {0};
    char location[LOCATION_BYTES];
    TRY(read_keys(path, node, keys, COUNT(keys), values));
    for (int i = 0; i < COUNT(keys); i++) {
        if (!recipe_node_is_scalar(values[i]) || recipe_node_is_null(values[i]) ||
            values[i]->text[0] == '\0') {
            return fail_at(path, values[i], keys[i], "must be a string that is not empty");
        }
    }
    snprintf(location, sizeof location, "%.900s:%d", path, node->line);
    const struct instruction_template_text text = {values[0]->text, values[1]->text,
                                                   values[2]->text, location};
    return instruction_templates_add(out, &text);
}

static status add_templates(const char *path, const struct node *tree,
                            struct instruction_templates *out)
{
    static const char *const keys[] = {"templates"};
    const struct node *list = NULL;
    if (tree->kind != NODE_MAPPING) {
        return fail_at(path, tree, NULL,
                       "a file of templates must be a mapping with the key templates");
    }
    TRY(read_keys(path, tree, keys, COUNT(keys), &list));
    if (list->kind != NODE_SEQUENCE || list->first == NULL) {
        return fail_at(path, list, "templates", "must be a list of templates");
    }
    for (const struct node *node = list->first; node != NULL; node = node->next) {
        TRY(add_template(path, node, out));
    }
    return STATUS_OK;
}

status instruction_file_read(const char *path, struct instruction_templates *out)
{
    struct node *tree = NULL;
    char *text = NULL;
    size_t bytes = 0;
    TRY(file_read(path, FILE_BYTES_MAX, &text, &bytes));
    status result = recipe_yaml_parse(path, text, bytes, RECIPE_YAML_LINES, &tree);
    if (result == STATUS_OK) {
        result = add_templates(path, tree, out);
    }
    recipe_yaml_free(&tree);
    free(text);
    return result;
}
