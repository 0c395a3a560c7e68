/* One value of a recipe: from a YAML node to the field in struct recipe. */
#include <stdarg.h>
#include <string.h>

#include "base/text.h"
#include "trainer/recipe/foreign.h"
#include "trainer/recipe/settings.h"

int recipe_value_choices(const char *choices, char *text, const char **out)
{
    snprintf(text, CHOICES_BYTES, "%s", choices);
    int count = 0;
    for (char *rest = text; rest != NULL && count < CHOICES_MAX; count++) {
        out[count] = rest;
        rest = strchr(rest, '|');
        if (rest != NULL) {
            *rest++ = '\0';
        }
    }
    return count;
}

static void *get_field(const struct setting *setting, struct recipe *recipe)
{
    return (char *)recipe + setting->offset;
}

/* Raises an error with the message "location: key: reason".
 *
 * Control characters in the reason are replaced by "?". */
static status raise_at(const char *name, struct source_location location, status code,
                       const char *key, const char *format, va_list arguments)
{
    char where[1200];
    if (location.kind == LOCATION_COMMAND_LINE) {
        snprintf(where, sizeof where, "command line");
    } else if (location.kind == LOCATION_FILE) {
        snprintf(where, sizeof where, "%.1000s:%d:%d", name, location.line, location.column);
    } else {
        snprintf(where, sizeof where, "%.1000s", name);
    }
    char reason[1400];
    vsnprintf(reason, sizeof reason, format, arguments);
    for (char *c = reason; *c != '\0'; c++) {
        *c = (unsigned char)*c < 0x20 || *c == 0x7f ? '?' : *c;
    }
    RAISE(code, "%s: %.200s%s%s", where, key != NULL ? key : "", key != NULL ? ": " : "", reason);
}

status recipe_fail(const struct recipe_reader *r, struct source_location location, const char *key,
                   const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    status result = raise_at(r->name, location, STATUS_RECIPE, key, format, arguments);
    va_end(arguments);
    return result;
}

status recipe_fail_missing(const struct recipe_reader *r, struct source_location location,
                           const char *key, const char *name, const char *need)
{
    char text[256];
    snprintf(text, sizeof text, FOREIGN_MISSING, name, need);
    recipe_fail(r, location, key, "%s", text);
    return status_change(STATUS_UNAVAILABLE);
}

/* Returns the location of a setting of a parsed recipe. */
static struct source_location find_location(const struct recipe *recipe, const char *key)
{
    return recipe->origin.locations[recipe_table_find(key)];
}

bool recipe_is_given(const struct recipe *recipe, const char *key)
{
    return find_location(recipe, key).kind != LOCATION_DEFAULT;
}

bool recipe_is_on_command_line(const struct recipe *recipe, const char *key)
{
    return find_location(recipe, key).kind == LOCATION_COMMAND_LINE;
}

status recipe_raise(const struct recipe *recipe, status code, const char *key, const char *format,
                    ...)
{
    va_list arguments;
    va_start(arguments, format);
    struct source_location location = find_location(recipe, key);
    status result = raise_at(recipe->origin.name, location, code, key, format, arguments);
    va_end(arguments);
    return result;
}

status recipe_annotate_error(const struct recipe *recipe, const char *key, status result,
                             const char *remedy)
{
    struct status_note note;
    if (result == STATUS_OK) {
        return STATUS_OK;
    }
    status_take(&note);
    if (note.code == STATUS_OK) { /* the note is logged already */
        return result;
    }
    return recipe_raise(recipe, result, key, "%s%s%s", note.text, remedy[0] != '\0' ? "; " : "",
                        remedy);
}

bool recipe_node_is_scalar(const struct node *node)
{
    return node->kind == NODE_PLAIN || node->kind == NODE_QUOTED || node->kind == NODE_RAW;
}

bool recipe_node_is_null(const struct node *node)
{
    return (node->kind == NODE_PLAIN || node->kind == NODE_RAW) &&
           (strcmp(node->text, "null") == 0 || strcmp(node->text, "~") == 0);
}

static const char *describe_kind(enum setting_kind kind)
{
    switch (kind) {
    case SETTING_INTEGER:
        return "an integer";
    case SETTING_NUMBER:
        return "a number";
    case SETTING_BOOLEAN:
        return "true or false";
    case SETTING_SOURCES:
        return "a path, a glob or a list of {path, weight}";
    case SETTING_LIST:
        return "one value or a list of them";
    case SETTING_PATHS:
        return "a path or a list of paths";
    case SETTING_ENUM:
    case SETTING_PATH:
    case SETTING_TEXT:
        break;
    }
    return "a string";
}

/* Writes "must be in (0, 1]", or "must be above 0 and at most 1e9" for a large maximum. */
static void describe_range(const struct setting *s, char *out, size_t bytes)
{
    const struct number_range *range = &s->range;
    if (range->max >= 1e6 && range->min <= 1) {
        snprintf(out, bytes, "must be %s %.15g and at most %.15g",
                 range->exclusive_min ? "above" : "at least", range->min, range->max);
    } else {
        snprintf(out, bytes, "must be in %c%.15g, %.15g%c", range->exclusive_min ? '(' : '[',
                 range->min, range->max, range->exclusive_max ? ')' : ']');
    }
}

static bool is_in_range(const struct setting *s, double value)
{
    const struct number_range *range = &s->range;
    bool above_min = range->exclusive_min ? value > range->min : value >= range->min;
    bool below_max = range->exclusive_max ? value < range->max : value <= range->max;
    return above_min && below_max;
}

static status set_number(const struct recipe_reader *r, struct source_location location,
                         const struct setting *setting, const struct node *node)
{
    char reason[TEXT_REASON_BYTES];
    if (node->kind == NODE_QUOTED) {
        return recipe_fail(r, location, setting->key,
                           "'%.40s' is a string, but %s is required; remove the quotes", node->text,
                           describe_kind(setting->kind));
    }
    void *field = get_field(setting, r->recipe);
    int64_t integer = 0;
    double number = 0;
    bool is_integer = setting->kind == SETTING_INTEGER;
    if (is_integer ? !text_to_integer(node->text, &integer, reason)
                   : !text_to_number(node->text, &number, reason)) {
        return recipe_fail(r, location, setting->key, "%s", reason);
    }
    if (!is_in_range(setting, is_integer ? (double)integer : number)) {
        char range[128], feature[64];
        snprintf(feature, sizeof feature, "%s=%.20s", setting->key, node->text);
        const char *need = foreign_find_missing(feature);
        if (need != NULL) {
            return recipe_fail_missing(r, location, setting->key, node->text, need);
        }
        describe_range(setting, range, sizeof range);
        return recipe_fail(r, location, setting->key, "%.40s %s", node->text, range);
    }
    if (is_integer) {
        *(int64_t *)field = integer;
    } else {
        *(double *)field = number;
    }
    return STATUS_OK;
}

static status set_boolean(const struct recipe_reader *r, struct source_location location,
                          const struct setting *setting, const struct node *node)
{
    bool yes = node->kind != NODE_QUOTED && strcmp(node->text, "true") == 0;
    bool no = node->kind != NODE_QUOTED && strcmp(node->text, "false") == 0;
    if (!yes && !no) {
        return recipe_fail(r, location, setting->key,
                           "'%.40s' is not a boolean; write true or false", node->text);
    }
    *(bool *)get_field(setting, r->recipe) = yes;
    return STATUS_OK;
}

/* Requires a string; rejects a number or boolean without quotes. */
static status check_text(const struct recipe_reader *r, struct source_location location,
                         const char *key, const struct node *node, size_t bytes)
{
    char reason[TEXT_REASON_BYTES];
    double number;
    if (!recipe_node_is_scalar(node)) {
        return recipe_fail(r, location, key, "must be a string");
    }
    if (node->text[0] == '\0') {
        return recipe_fail(r, location, key, "has no value");
    }
    if (node->kind == NODE_PLAIN &&
        (text_to_number(node->text, &number, reason) || strcmp(node->text, "true") == 0 ||
         strcmp(node->text, "false") == 0)) {
        return recipe_fail(r, location, key, "'%.40s' is not a string; put it in quotes",
                           node->text);
    }
    if (strlen(node->text) >= bytes) {
        return recipe_fail(r, location, key, "the string has %zu bytes; at most %zu are accepted",
                           strlen(node->text), bytes - 1);
    }
    return STATUS_OK;
}

static status set_text(const struct recipe_reader *r, struct source_location location,
                       const struct setting *setting, const struct node *node)
{
    TRY(check_text(r, location, setting->key, node, setting->bytes));
    memset(get_field(setting, r->recipe), 0, setting->bytes);
    memcpy(get_field(setting, r->recipe), node->text, strlen(node->text));
    return STATUS_OK;
}

/* Returns the index of the choice that another framework calls `value`; -1: none. */
static int find_synonym(const char *value, const char **choices, int count)
{
    for (int i = 0; i < recipe_synonym_count; i++) {
        for (int k = 0; k < count && strcmp(recipe_synonyms[i].alias, value) == 0; k++) {
            if (strcmp(recipe_synonyms[i].name, choices[k]) == 0) {
                return k;
            }
        }
    }
    return -1;
}

static status fail_choice(const struct recipe_reader *r, struct source_location location,
                          const struct setting *setting, const char *value, const char **choices,
                          int count)
{
    const char *need = foreign_find_missing(value);
    if (need != NULL) {
        return recipe_fail_missing(r, location, setting->key, value, need);
    }
    int index = find_synonym(value, choices, count);
    index = index >= 0 ? index : text_nearest(value, choices, count);
    char list[CHOICES_BYTES] = "";
    for (int i = 0; i < count; i++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", choices[i]);
    }
    return recipe_fail(r, location, setting->key, "'%.40s' is not accepted; use one of %s%s%s%s",
                       value, list, index >= 0 ? "; did you mean '" : "",
                       index >= 0 ? choices[index] : "", index >= 0 ? "'?" : "");
}

/* Finds the index of a name among the choices of a setting. */
static status find_choice(const struct recipe_reader *r, struct source_location location,
                          const struct setting *setting, const char *name, unsigned *out)
{
    char text[CHOICES_BYTES];
    const char *choices[CHOICES_MAX];
    int count = recipe_value_choices(setting->choices, text, choices);
    for (int i = 0; i < count; i++) {
        if (strcmp(choices[i], name) == 0) {
            *out = (unsigned)i;
            return STATUS_OK;
        }
    }
    return fail_choice(r, location, setting, name, choices, count);
}

static status set_choice(const struct recipe_reader *r, struct source_location location,
                         const struct setting *setting, const struct node *node)
{
    unsigned value;
    TRY(find_choice(r, location, setting, node->text, &value));
    value += setting->null != NULL ? 1 : 0;
    memcpy(get_field(setting, r->recipe), &value, sizeof value);
    return STATUS_OK;
}

/* ---- data.train ---- */

enum { SOURCE_PATH, SOURCE_WEIGHT, SOURCE_LANGUAGE, SOURCE_KEYS };

static const char *const source_keys[SOURCE_KEYS] = {"path", "weight", "language"};

static status set_weight(const struct recipe_reader *r, struct source_location location,
                         const struct node *node, double *out)
{
    const struct setting weight = {.key = "data.train.weight",
                                   .kind = SETTING_NUMBER,
                                   .range = {.min = 0, .max = 1e9, .exclusive_min = true}};
    struct recipe scratch = {0};
    struct recipe_reader into = {.name = r->name, .recipe = &scratch};
    if (!recipe_node_is_scalar(node)) {
        return recipe_fail(r, location, weight.key, "must be a number");
    }
    TRY(set_number(&into, location, &weight, node));
    memcpy(out, &scratch, sizeof *out); /* the temporary setting has offset 0 */
    return STATUS_OK;
}

static struct source_location locate_node(struct source_location parent, int line, int column)
{
    return parent.kind == LOCATION_FILE ? (struct source_location){LOCATION_FILE, line, column}
                                        : parent;
}

static status set_source_key(const struct recipe_reader *r, struct source_location location,
                             const struct node *node, struct recipe_source *source, bool seen[])
{
    struct source_location key_location = locate_node(location, node->key_line, node->key_column);
    struct source_location value_location = locate_node(location, node->line, node->column);
    int index = -1;
    for (int i = 0; i < SOURCE_KEYS; i++) {
        index = strcmp(node->key, source_keys[i]) == 0 ? i : index;
    }
    if (index < 0) {
        int nearest = text_nearest(node->key, source_keys, SOURCE_KEYS);
        return recipe_fail(r, key_location, "data.train",
                           "unknown key '%.40s'; the keys are path, weight and language%s%s%s",
                           node->key, nearest >= 0 ? "; did you mean '" : "",
                           nearest >= 0 ? source_keys[nearest] : "", nearest >= 0 ? "'?" : "");
    }
    if (seen[index]) {
        return recipe_fail(r, key_location, "data.train", "%s is given twice", node->key);
    }
    seen[index] = true;
    if (index == SOURCE_WEIGHT) {
        return set_weight(r, value_location, node, &source->weight);
    }
    if (index == SOURCE_LANGUAGE) {
        TRY(check_text(r, value_location, "data.train.language", node, sizeof source->language));
        memcpy(source->language, node->text, strlen(node->text));
        return STATUS_OK;
    }
    TRY(check_text(r, value_location, "data.train.path", node, sizeof source->path));
    memcpy(source->path, node->text, strlen(node->text));
    return STATUS_OK;
}

static status set_source(const struct recipe_reader *r, struct source_location location,
                         const struct node *node, struct recipe_source *source)
{
    bool seen[SOURCE_KEYS] = {false};
    struct source_location node_location = locate_node(location, node->line, node->column);
    memset(source, 0, sizeof *source);
    source->weight = 1.0;
    if (node->kind != NODE_MAPPING) {
        return recipe_fail(r, node_location, "data.train",
                           "each list entry must be {path: ..., weight: ...}");
    }
    for (const struct node *pair = node->first; pair != NULL; pair = pair->next) {
        TRY(set_source_key(r, location, pair, source, seen));
    }
    if (!seen[SOURCE_PATH]) {
        return recipe_fail(r, node_location, "data.train", "an entry has no path");
    }
    return STATUS_OK;
}

static status set_sources(const struct recipe_reader *r, struct source_location location,
                          const struct setting *setting, const struct node *node)
{
    struct recipe *recipe = r->recipe;
    memset(recipe->data.train, 0, sizeof recipe->data.train);
    recipe->data.train_count = 0;
    if (node->kind == NODE_MAPPING) {
        return recipe_fail(r, location, setting->key, "must be %s", describe_kind(setting->kind));
    }
    if (node->kind != NODE_SEQUENCE) {
        TRY(check_text(r, location, setting->key, node, sizeof recipe->data.train[0].path));
        memcpy(recipe->data.train[0].path, node->text, strlen(node->text));
        recipe->data.train[0].weight = 1.0;
        recipe->data.train_count = 1;
        return STATUS_OK;
    }
    for (const struct node *entry = node->first; entry != NULL; entry = entry->next) {
        if (recipe->data.train_count == RECIPE_SOURCES_MAX) {
            return recipe_fail(r, locate_node(location, entry->line, entry->column), setting->key,
                               "the list has more than %d entries", RECIPE_SOURCES_MAX);
        }
        TRY(set_source(r, location, entry, &recipe->data.train[recipe->data.train_count++]));
    }
    if (recipe->data.train_count == 0) {
        return recipe_fail(r, location, setting->key, "the list is empty");
    }
    return STATUS_OK;
}

/* ---- lists ---- */

bool recipe_list_next(const char **cursor, char *entry, size_t bytes)
{
    size_t length = strcspn(*cursor, ",");
    if (length == 0) {
        return false;
    }
    snprintf(entry, bytes, "%.*s", (int)length, *cursor);
    *cursor += length;
    *cursor += strspn(*cursor, ", ");
    return true;
}

bool recipe_list_contains(const char *list, const char *wanted)
{
    char entry[RECIPE_NAME_BYTES];
    while (recipe_list_next(&list, entry, sizeof entry)) {
        if (strcmp(entry, wanted) == 0) {
            return true;
        }
    }
    return false;
}

static bool contains_all(const char *list, const char *wanted)
{
    char entry[RECIPE_NAME_BYTES];
    while (recipe_list_next(&wanted, entry, sizeof entry)) {
        if (!recipe_list_contains(list, entry)) {
            return false;
        }
    }
    return true;
}

bool recipe_list_same_entries(const char *a, const char *b)
{
    return contains_all(a, b) && contains_all(b, a);
}

/* Checks a list entry and writes it as stored: the name, or the formatted number. */
static status read_entry(const struct recipe_reader *r, struct source_location location,
                         const struct setting *setting, const struct node *node,
                         char out[RECIPE_PATH_BYTES])
{
    if (setting->kind == SETTING_PATHS) {
        TRY(check_text(r, location, setting->key, node, RECIPE_PATH_BYTES));
        snprintf(out, RECIPE_PATH_BYTES, "%s", node->text);
        return strchr(out, ',') == NULL
                   ? STATUS_OK
                   : recipe_fail(r, location, setting->key, "the path contains a comma");
    }
    if (!recipe_node_is_scalar(node) || strlen(node->text) >= RECIPE_NAME_BYTES ||
        node->text[0] == '\0') {
        return recipe_fail(r, location, setting->key, "each list entry must be %s",
                           setting->choices != NULL ? "a name" : "a number");
    }
    if (setting->choices != NULL) {
        unsigned choice;
        snprintf(out, RECIPE_PATH_BYTES, "%s", node->text);
        return find_choice(r, location, setting, node->text, &choice);
    }
    struct recipe scratch;
    struct recipe_reader into = {.name = r->name, .recipe = &scratch};
    struct setting number = {.key = setting->key,
                             .kind = SETTING_NUMBER,
                             .offset = offsetof(struct recipe, dpo.beta),
                             .bytes = sizeof scratch.dpo.beta,
                             .range = setting->range};
    TRY(set_number(&into, location, &number, node));
    text_from_number(scratch.dpo.beta, out);
    return STATUS_OK;
}

static status set_list(const struct recipe_reader *r, struct source_location location,
                       const struct setting *setting, const struct node *node)
{
    char text[RECIPE_ROPE_LIST_BYTES] = "", entry[RECIPE_PATH_BYTES]; /* the longest list */
    const struct node *first = recipe_node_is_scalar(node) ? node : node->first;
    if (first == NULL || node->kind == NODE_MAPPING) {
        return recipe_fail(r, location, setting->key, "must be %s", describe_kind(setting->kind));
    }
    for (const struct node *n = first; n != NULL; n = n == node ? NULL : n->next) {
        struct source_location entry_location =
            n == node ? location : locate_node(location, n->line, n->column);
        TRY(read_entry(r, entry_location, setting, n, entry));
        size_t used = strlen(text);
        if (used + strlen(entry) + 3 > setting->bytes) {
            return recipe_fail(r, entry_location, setting->key, "the list is too long");
        }
        snprintf(text + used, sizeof text - used, "%s%s", used > 0 ? ", " : "", entry);
    }
    memcpy(get_field(setting, r->recipe), text, setting->bytes);
    return STATUS_OK;
}

/* ---- all kinds ---- */

static void set_null(const struct setting *setting, struct recipe *recipe)
{
    void *field = get_field(setting, recipe);
    memset(field, 0, setting->bytes);
    if (setting->kind == SETTING_INTEGER) {
        *(int64_t *)field = (int64_t)setting->null_value;
    } else if (setting->kind == SETTING_NUMBER) {
        *(double *)field = setting->null_value;
    } else if (setting->kind == SETTING_SOURCES) {
        recipe->data.train_count = 0;
    }
}

status recipe_value_set(const struct recipe_reader *r, struct source_location location,
                        const struct setting *setting, const struct node *node)
{
    if (setting->kind == SETTING_SOURCES && !recipe_node_is_scalar(node)) {
        return set_sources(r, location, setting, node);
    }
    bool is_list = setting->kind == SETTING_LIST || setting->kind == SETTING_PATHS;
    if (is_list && !recipe_node_is_scalar(node)) {
        return set_list(r, location, setting, node);
    }
    if (!recipe_node_is_scalar(node)) {
        return recipe_fail(r, location, setting->key, "must be %s, not a %s",
                           describe_kind(setting->kind),
                           node->kind == NODE_MAPPING ? "mapping" : "list");
    }
    if (recipe_node_is_null(node)) {
        if (setting->null == NULL) {
            return recipe_fail(r, location, setting->key, "null is not accepted; %s is required",
                               describe_kind(setting->kind));
        }
        set_null(setting, r->recipe);
        return STATUS_OK;
    }
    if (node->text[0] == '\0') {
        return recipe_fail(r, location, setting->key, "has no value%s",
                           setting->null != NULL ? "; write null" : "");
    }
    switch (setting->kind) {
    case SETTING_INTEGER:
    case SETTING_NUMBER:
        return set_number(r, location, setting, node);
    case SETTING_BOOLEAN:
        return set_boolean(r, location, setting, node);
    case SETTING_ENUM:
        return set_choice(r, location, setting, node);
    case SETTING_SOURCES:
        return set_sources(r, location, setting, node);
    case SETTING_LIST:
    case SETTING_PATHS:
        return set_list(r, location, setting, node);
    case SETTING_TEXT:
    case SETTING_PATH:
        break;
    }
    return set_text(r, location, setting, node);
}

void recipe_value_set_default(const struct setting *setting, struct recipe *recipe)
{
    char text[64];
    snprintf(text, sizeof text, "%s", setting->default_value);
    const struct node node = {.kind = NODE_PLAIN, .text = text};
    const struct recipe_reader reading = {.name = "the settings table", .recipe = recipe};
    recipe_value_set(&reading, (struct source_location){0}, setting,
                     &node); /* a test sets every default */
}
