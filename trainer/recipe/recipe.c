/* Reads a recipe: the YAML tree, then the overrides of the command line, then the checks. */
#include "trainer/recipe/recipe.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "trainer/recipe/foreign.h"
#include "trainer/recipe/settings.h"

enum { FILE_BYTES_MAX = 1 << 20, KEY_TEXT_BYTES = 256, KEYS_BYTES = 1360, UNKNOWN_BYTES = 900 };

static struct source_location get_key_location(const struct node *node)
{
    return (struct source_location){LOCATION_FILE, node->key_line, node->key_column};
}

static struct source_location get_value_location(const struct node *node)
{
    return (struct source_location){LOCATION_FILE, node->line, node->column};
}

static const char *get_name(const char *key)
{
    const char *dot = strchr(key, '.');
    return dot != NULL ? dot + 1 : key;
}

static bool is_in_section(const char *key, const char *section)
{
    size_t length = strlen(section);
    return length == 0 ? strchr(key, '.') == NULL
                       : strncmp(key, section, length) == 0 && key[length] == '.';
}

static bool is_section(const char *name)
{
    for (int i = 1; i < recipe_section_count; i++) {
        if (strcmp(recipe_sections[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

/* Lists the valid names in a section: its settings and, at the top level, sections. */
static int list_names(const char *section, const char **names)
{
    int count = 0;
    for (int i = 0; i < recipe_table_count; i++) {
        if (is_in_section(recipe_table[i].key, section)) {
            names[count++] = get_name(recipe_table[i].key);
        }
    }
    for (int i = 1; section[0] == '\0' && i < recipe_section_count; i++) {
        names[count++] = recipe_sections[i].name;
    }
    return count;
}

static const char *find_name(const char *name, const char *const *names, int count)
{
    for (int i = 0; i < count && name != NULL; i++) {
        if (strcmp(names[i], name) == 0) {
            return names[i];
        }
    }
    return NULL;
}

/* Returns the key that `name` in `section` probably stands for, or NULL.
 *
 * It is a synonym in the section, else the same name or a synonym in another section, else the name
 * with the smallest edit distance. */
static const char *suggest_key(const char *section, const char *name)
{
    const char *names[SETTINGS_MAX + SECTIONS_MAX];
    int count = list_names(section, names);
    const char *synonym = recipe_find_synonym(name);
    const char *found = find_name(synonym, names, count);
    if (found != NULL) {
        return found;
    }
    for (int i = 0; i < recipe_table_count; i++) {
        const char *other = get_name(recipe_table[i].key);
        if (strcmp(other, name) == 0 || (synonym != NULL && strcmp(other, synonym) == 0)) {
            return recipe_table[i].key;
        }
    }
    if (strchr(name, '.') != NULL) { /* the section does not exist */
        for (count = 0; count < recipe_table_count; count++) {
            names[count] = recipe_table[count].key;
        }
    }
    int nearest = text_nearest(name, names, count);
    return nearest >= 0 ? names[nearest] : NULL;
}

/* Lists the valid names of a section. */
static void write_names(const char *section, char out[KEYS_BYTES])
{
    const char *names[SETTINGS_MAX + SECTIONS_MAX];
    int count = list_names(section, names);
    size_t used = 0;
    for (int i = 0; i < count && used < KEYS_BYTES; i++) {
        used +=
            (size_t)snprintf(out + used, KEYS_BYTES - used, "%s%s", i > 0 ? ", " : "", names[i]);
    }
}

/* Returns what the missing feature needs that a part of "section.name" names, or NULL. */
static const char *find_missing(const char *name)
{
    char part[KEY_TEXT_BYTES];
    const char *need = NULL;
    for (const char *at = name; need == NULL && *at != '\0'; at += strspn(at, ".")) {
        size_t length = strcspn(at, ".");
        snprintf(part, sizeof part, "%.*s", (int)(length < 200 ? length : 200), at);
        need = foreign_find_missing(part);
        at += length;
    }
    return need;
}

static status fail_unknown(const struct recipe_reader *r, struct source_location location,
                           const char *section, const char *name)
{
    char key[KEY_TEXT_BYTES];
    snprintf(key, sizeof key, "%.60s%s%.100s", section, section[0] != '\0' ? "." : "", name);
    const char *need = find_missing(name);
    if (need != NULL) {
        return recipe_fail_missing(r, location, key, name, need);
    }
    const char *hint =
        strchr(name, ':') != NULL ? "write a space after the colon" : foreign_find_hint(name);
    if (hint != NULL) {
        return recipe_fail(r, location, key, "unknown key; %s", hint);
    }
    const char *suggestion = suggest_key(section, name);
    if (suggestion == NULL) {
        char list[KEYS_BYTES];
        write_names(section, list);
        return recipe_fail(r, location, key, "unknown key; %s%s: %s",
                           section[0] != '\0' ? "the keys of " : "the sections and keys", section,
                           list);
    }
    bool path = location.kind == LOCATION_COMMAND_LINE && section[0] != '\0' &&
                strchr(suggestion, '.') == NULL;
    return recipe_fail(r, location, key, "unknown key; did you mean '%s%s%s'?", path ? section : "",
                       path ? "." : "", suggestion);
}

static status read_setting(struct recipe_reader *r, const char *section, const struct node *node)
{
    char key[KEY_TEXT_BYTES];
    snprintf(key, sizeof key, "%.60s%s%.100s", section, section[0] != '\0' ? "." : "", node->key);
    int index = recipe_table_find(key);
    if (index < 0) {
        return fail_unknown(r, get_key_location(node), section, node->key);
    }
    if (r->locations[index].kind == LOCATION_FILE) {
        return recipe_fail(r, get_key_location(node), key, "given twice; first on line %d",
                           r->locations[index].line);
    }
    r->locations[index] = get_key_location(node);
    return recipe_value_set(r, get_value_location(node), &recipe_table[index], node);
}

static status read_section(struct recipe_reader *r, const struct node *section)
{
    if (section->kind != NODE_MAPPING) {
        return recipe_fail(r, get_value_location(section), section->key, "%s",
                           section->text != NULL && section->text[0] == '\0'
                               ? "the section is empty; remove it"
                               : "must be a section with indented settings below it");
    }
    for (const struct node *node = section->first; node != NULL; node = node->next) {
        TRY(read_setting(r, section->key, node));
    }
    return STATUS_OK;
}

static status read_tree(struct recipe_reader *r, const struct node *tree)
{
    int lines[SECTIONS_MAX] = {0};
    for (const struct node *node = tree->first; node != NULL; node = node->next) {
        if (!is_section(node->key)) {
            TRY(read_setting(r, "", node));
            continue;
        }
        for (int i = 1; i < recipe_section_count; i++) {
            if (strcmp(recipe_sections[i].name, node->key) == 0) {
                if (lines[i] != 0) {
                    return recipe_fail(r, get_key_location(node), node->key,
                                       "given twice; first on line %d", lines[i]);
                }
                lines[i] = node->key_line;
            }
        }
        TRY(read_section(r, node));
    }
    return STATUS_OK;
}

/* A list of unknown keys for a message; its end is lost if it is too long. */
struct unknown_keys {
    const char *first; /* message about the key that is not listed again */
    const char *name;  /* of the file */
    char text[UNKNOWN_BYTES];
    size_t used;
};

/* Adds a key to the list if it is unknown. */
static void add_unknown(struct unknown_keys *u, const char *section, const char *name, bool in_file,
                        const char *place)
{
    char key[KEY_TEXT_BYTES];
    snprintf(key, sizeof key, "%.60s%s%.100s", section, section[0] != '\0' ? "." : "", name);
    if (recipe_table_find(key) >= 0 || u->used >= sizeof u->text) {
        return;
    }
    const char *suggestion = find_missing(name) == NULL ? suggest_key(section, name) : NULL;
    char hint[KEY_TEXT_BYTES] = "";
    if (suggestion != NULL) {
        bool path = !in_file && section[0] != '\0' && strchr(suggestion, '.') == NULL;
        snprintf(hint, sizeof hint, " (did you mean '%s%s%s'?)", path ? section : "",
                 path ? "." : "", suggestion);
    }
    u->used += (size_t)snprintf(u->text + u->used, sizeof u->text - u->used, "%s%s %s%s",
                                u->used > 0 ? ", " : "; also unknown: ", key, place, hint);
}

/* Adds a key of the file to the list if it is unknown and not the first one. */
static void add_unknown_of_file(struct unknown_keys *u, const char *section,
                                const struct node *node)
{
    char first[RECIPE_PATH_BYTES + 64], place[32];
    snprintf(first, sizeof first, "%.1000s:%d:%d: ", u->name, node->key_line, node->key_column);
    snprintf(place, sizeof place, "on line %d", node->key_line);
    if (strncmp(u->first, first, strlen(first)) != 0) {
        add_unknown(u, section, node->key, true, place);
    }
}

/* A key of the command line: "section.name" of an existing section, or a name without a section. */
struct override_key {
    char key[KEY_TEXT_BYTES]; /* as it was given */
    char section[KEY_TEXT_BYTES];
    const char *name; /* in `key` */
};

static void split_override(const char *text, struct override_key *out)
{
    size_t length = strcspn(text, "=");
    snprintf(out->key, sizeof out->key, "%.*s", (int)(length < 200 ? length : 200), text);
    size_t section = strcspn(out->key, ".");
    snprintf(out->section, sizeof out->section, "%.*s", (int)section, out->key);
    bool has_section = out->key[section] == '.' && is_section(out->section);
    out->section[has_section ? section : 0] = '\0';
    out->name = out->key + (has_section ? section + 1 : 0);
}

/* Adds the unknown keys of the command line to the list, but not the first one. */
static void add_unknown_overrides(struct unknown_keys *u, char *const *overrides, int count)
{
    for (int i = 0; i < count; i++) {
        struct override_key k;
        char first[KEY_TEXT_BYTES + 32];
        split_override(overrides[i], &k);
        snprintf(first, sizeof first, "command line: %s: ", k.key);
        if (strchr(overrides[i], '=') != NULL && !is_section(k.key) &&
            strncmp(u->first, first, strlen(first)) != 0) {
            add_unknown(u, k.section, k.name, false, "on the command line");
        }
    }
}

/* Adds the other unknown keys of the file and of the command line to the pending error, so that one
 * run shows all. `tree` is NULL if the keys of the file are known. */
static status list_unknown(const struct recipe_reader *r, const struct node *tree,
                           char *const *overrides, int count, status result)
{
    struct status_note note;
    if (result != STATUS_RECIPE && result != STATUS_UNAVAILABLE) {
        return result;
    }
    status_take(&note);
    struct unknown_keys unknown = {.first = note.text, .name = r->name};
    for (const struct node *node = tree != NULL ? tree->first : NULL; node != NULL;
         node = node->next) {
        if (!is_section(node->key)) {
            add_unknown_of_file(&unknown, "", node);
            continue;
        }
        for (const struct node *n = node->kind == NODE_MAPPING ? node->first : NULL; n != NULL;
             n = n->next) {
            add_unknown_of_file(&unknown, node->key, n);
        }
    }
    add_unknown_overrides(&unknown, overrides, count);
    text_replace_controls(unknown.text, "");
    RAISE(result, "%s%s", note.text, unknown.text);
}

/* Parses the value of an override.
 *
 * A list, a mapping or a quoted string is parsed as YAML. Any other value is used literally, so
 * that a glob needs no second pair of quotes. */
static status parse_override(const char *key, const char *text, struct node **out)
{
    char name[KEY_TEXT_BYTES + 32];
    snprintf(name, sizeof name, "command line: %s", key);
    size_t bytes = strlen(text);
    if (bytes > 0 && strchr("[{\"'", text[0]) != NULL) {
        return recipe_yaml_parse(name, text, bytes, RECIPE_YAML_ANY_KIND, out);
    }
    for (size_t i = 0; i < bytes; i++) {
        if (recipe_yaml_is_control(text + i)) {
            RAISE(STATUS_RECIPE, "%s: contains a control character (byte value %d)", name,
                  (unsigned char)text[i]);
        }
    }
    char *quoted = NULL;
    TRY(ALLOCATE(quoted, 2 * bytes + sizeof "null", name));
    recipe_value_quote(text, true, quoted);
    status result = recipe_yaml_parse(name, bytes > 0 ? quoted : "\"\"",
                                      bytes > 0 ? strlen(quoted) : 2, RECIPE_YAML_ANY_KIND, out);
    free(quoted);
    if (result == STATUS_OK) {
        (*out)->kind = NODE_RAW;
    }
    return result;
}

static status read_override(struct recipe_reader *r, const char *text)
{
    struct source_location location = {.kind = LOCATION_COMMAND_LINE};
    struct override_key k;
    size_t length = strcspn(text, "=");
    split_override(text, &k);
    if (text[length] != '=') {
        return recipe_fail(r, location, k.key, "is not of the form section.key=value");
    }
    int index = recipe_table_find(k.key);
    if (index < 0 && is_section(k.key)) {
        return recipe_fail(r, location, k.key, "is a section; write %s.KEY=value", k.key);
    }
    if (index < 0) {
        return fail_unknown(r, location, k.section, k.name);
    }
    struct node *node = NULL;
    TRY(parse_override(k.key, text + length + 1, &node));
    r->locations[index] = location;
    status result = recipe_value_set(r, location, &recipe_table[index], node);
    recipe_yaml_free(&node);
    return result;
}

void recipe_set_defaults(struct recipe *out)
{
    memset(out, 0, sizeof *out);
    for (int i = 0; i < recipe_table_count; i++) {
        recipe_value_set_default(&recipe_table[i], out);
    }
}

static void store_origin(const struct recipe_reader *r)
{
    struct recipe *recipe = r->recipe;
    struct recipe_origin *origin = &recipe->origin;
    snprintf(origin->name, sizeof origin->name, "%s", r->name);
    for (int i = 0; i < recipe_table_count; i++) {
        origin->locations[i] = r->locations[i];
    }
}

/* ---- alternatives ---- */

/* Pairs of settings; a run has only one setting of a pair. */
static const char *const alternatives[][2] = {
    {"train.max_steps", "train.epochs"},
    {"schedule.warmup_steps", "schedule.warmup_ratio"},
    {"model.sliding_window_pattern", "model.layer_types"},
};

static bool is_null_value(const struct recipe_reader *r, int index)
{
    char value[RECIPE_VALUE_BYTES];
    return strcmp(recipe_value_format(&recipe_table[index], r->recipe, false, value), "null") == 0;
}

/* Sets a setting of the file to null if the command line gives its alternative. */
static status displace_setting(struct recipe_reader *r, const char *given, const char *other)
{
    int index = recipe_table_find(given), displaced = recipe_table_find(other);
    struct source_location *location = &r->locations[displaced];
    if (r->locations[index].kind != LOCATION_COMMAND_LINE || is_null_value(r, index) ||
        location->kind != LOCATION_FILE || is_null_value(r, displaced)) {
        return STATUS_OK;
    }
    char value[RECIPE_VALUE_BYTES], replaced[RECIPE_VALUE_BYTES], null[] = "null";
    static atomic_bool is_logged[SETTINGS_MAX]; /* train reads the recipe twice */
    if (!atomic_exchange(&is_logged[displaced], true)) {
        log_info("%s=%s of the command line replaces %s: %s (%s:%d)", given,
                 recipe_value_format(&recipe_table[index], r->recipe, false, value), other,
                 recipe_value_format(&recipe_table[displaced], r->recipe, false, replaced), r->name,
                 location->line);
    }
    const struct node node = {.kind = NODE_PLAIN, .text = null};
    TRY(recipe_value_set(r, *location, &recipe_table[displaced], &node));
    *location = (struct source_location){0};
    return STATUS_OK;
}

static status displace_alternatives(struct recipe_reader *r)
{
    for (int i = 0; i < COUNT(alternatives); i++) {
        TRY(displace_setting(r, alternatives[i][0], alternatives[i][1]));
        TRY(displace_setting(r, alternatives[i][1], alternatives[i][0]));
    }
    return STATUS_OK;
}

/* ---- draft and complete recipe ---- */

static void set_run_dir(const struct recipe_reader *reader)
{
    struct recipe *recipe = reader->recipe;
    const char *slash = strrchr(reader->name, '/');
    const char *stem = slash != NULL ? slash + 1 : reader->name;
    size_t length = strlen(stem);
    const char *dot = strrchr(stem, '.');
    if (dot != NULL && dot != stem) {
        length = (size_t)(dot - stem);
    }
    snprintf(recipe->run_dir, sizeof recipe->run_dir, "runs/%.*s",
             (int)(length < 200 ? length : 200), stem);
}

static status parse_draft(const char *name, const char *text, size_t bytes, char *const *overrides,
                          int count, struct recipe *out)
{
    recipe_set_defaults(out);
    struct recipe_reader reading = {.name = name, .recipe = out};
    struct node *tree = NULL;
    TRY(recipe_yaml_parse(name, text, bytes, RECIPE_YAML_MAPPING, &tree));
    status result = list_unknown(&reading, tree, overrides, count, read_tree(&reading, tree));
    recipe_yaml_free(&tree);
    TRY(result);
    for (int i = 0; i < count; i++) {
        TRY(list_unknown(&reading, NULL, overrides, count, read_override(&reading, overrides[i])));
    }
    TRY(displace_alternatives(&reading));
    if (out->run_dir[0] == '\0') {
        set_run_dir(&reading);
    }
    store_origin(&reading);
    return STATUS_OK;
}

status recipe_complete(struct recipe *recipe, const struct recipe *initial)
{
    struct recipe_reader reading = {.name = recipe->origin.name, .recipe = recipe};
    for (int i = 0; i < recipe_table_count; i++) {
        reading.locations[i] = recipe->origin.locations[i];
    }
    if (initial != NULL) {
        recipe_take_initial(recipe, initial);
    }
    return recipe_check_resolve(&reading);
}

status recipe_parse(const char *name, const char *text, size_t bytes, char *const *overrides,
                    int count, struct recipe *out)
{
    TRY(parse_draft(name, text, bytes, overrides, count, out));
    return recipe_complete(out, NULL);
}

status recipe_read_draft(const char *path, char *const *overrides, int count, struct recipe *out)
{
    char *text = NULL;
    size_t bytes = 0;
    status result = file_read(path, FILE_BYTES_MAX, &text, &bytes);
    if (result == STATUS_DATA) { /* a folder, or a file that is too large: an error of the recipe */
        struct status_note note;
        char example[FILE_PATH_BYTES];
        status_take(&note);
        bool is_run = file_join(example, path, "recipe.yaml") == STATUS_OK && file_exists(example);
        status_clear();
        RAISE(STATUS_RECIPE, "%s; give the YAML file of a job%s%s", note.text,
              is_run ? ", for example " : "", is_run ? example : "");
    }
    if (result == STATUS_NO_INPUT && strchr(path, '=') != NULL) {
        status_clear();
        RAISE(STATUS_NO_INPUT,
              "there is no recipe %s; write the path of the recipe before the settings", path);
    }
    TRY(result);
    result = parse_draft(path, text, bytes, overrides, count, out);
    free(text);
    return result;
}

status recipe_read(const char *path, char *const *overrides, int count, struct recipe *out)
{
    TRY(recipe_read_draft(path, overrides, count, out));
    return recipe_complete(out, NULL);
}
