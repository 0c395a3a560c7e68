#include "trainer/recipe/recipe.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "trainer/recipe/settings.h"

enum { FILE_BYTES_MAX = 1 << 20, KEY_TEXT_BYTES = 256 };

static struct place key_place(const struct node *node)
{
    return (struct place){PLACE_FILE, node->key_line, node->key_column};
}

static struct place value_place(const struct node *node)
{
    return (struct place){PLACE_FILE, node->line, node->column};
}

static const char *last_word(const char *key)
{
    const char *dot = strchr(key, '.');
    return dot != NULL ? dot + 1 : key;
}

static bool in_section(const char *key, const char *section)
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

/* candidates - what may stand in a section: its settings' names, at the top level sections too. */
static int candidates(const char *section, const char **words)
{
    int count = 0;
    for (int i = 0; i < recipe_table_count; i++) {
        if (in_section(recipe_table[i].key, section)) {
            words[count++] = last_word(recipe_table[i].key);
        }
    }
    for (int i = 1; section[0] == '\0' && i < recipe_section_count; i++) {
        words[count++] = recipe_sections[i].name;
    }
    return count;
}

static const char *find_word(const char *word, const char *const *words, int count)
{
    for (int i = 0; i < count && word != NULL; i++) {
        if (strcmp(words[i], word) == 0) {
            return words[i];
        }
    }
    return NULL;
}

/* meant_key - the key that was probably meant by `word` in `section`, NULL where none is close: a
 * synonym or a near miss in the section, else the same word or a synonym in another section. */
static const char *meant_key(const char *section, const char *word)
{
    const char *words[SETTINGS_MAX + SECTIONS_MAX];
    int count = candidates(section, words);
    const char *synonym = recipe_table_synonym(word);
    const char *found = find_word(synonym, words, count);
    if (found != NULL) {
        return found;
    }
    for (int i = 0; i < recipe_table_count; i++) {
        const char *name = last_word(recipe_table[i].key);
        if (strcmp(name, word) == 0 || (synonym != NULL && strcmp(name, synonym) == 0)) {
            return recipe_table[i].key;
        }
    }
    if (strchr(word, '.') != NULL) { /* of a section that there is not */
        for (count = 0; count < recipe_table_count; count++) {
            words[count] = recipe_table[count].key;
        }
    }
    int nearest = text_nearest(word, words, count);
    return nearest >= 0 ? words[nearest] : NULL;
}

static status fail_unknown(const struct reading *r, struct place place, const char *section,
                           const char *word)
{
    char key[KEY_TEXT_BYTES];
    snprintf(key, sizeof key, "%.60s%s%.100s", section, section[0] != '\0' ? "." : "", word);
    const char *meant = meant_key(section, word);
    bool path = place.kind == PLACE_COMMAND && meant != NULL && section[0] != '\0' &&
                strchr(meant, '.') == NULL;
    return recipe_fail(r, place, key, "unknown key%s%s%s%s%s",
                       meant != NULL ? "; did you mean '" : "", path ? section : "",
                       path ? "." : "", meant != NULL ? meant : "", meant != NULL ? "'?" : "");
}

static status take_setting(struct reading *r, const char *section, const struct node *node)
{
    char key[KEY_TEXT_BYTES];
    snprintf(key, sizeof key, "%.60s%s%.100s", section, section[0] != '\0' ? "." : "", node->key);
    int index = recipe_table_find(key);
    if (index < 0) {
        return fail_unknown(r, key_place(node), section, node->key);
    }
    if (r->places[index].kind == PLACE_FILE) {
        return recipe_fail(r, key_place(node), key, "given twice, first in line %d",
                           r->places[index].line);
    }
    r->places[index] = key_place(node);
    return recipe_value_set(r, value_place(node), &recipe_table[index], node);
}

static status take_section(struct reading *r, const struct node *section)
{
    if (section->kind != NODE_MAPPING) {
        return recipe_fail(r, value_place(section), section->key, "%s",
                           section->text != NULL && section->text[0] == '\0'
                               ? "the section is empty; leave it out"
                               : "must be a section: settings below it, indented");
    }
    for (const struct node *node = section->first; node != NULL; node = node->next) {
        TRY(take_setting(r, section->key, node));
    }
    return STATUS_OK;
}

static status take_tree(struct reading *r, const struct node *tree)
{
    int lines[SECTIONS_MAX] = {0};
    for (const struct node *node = tree->first; node != NULL; node = node->next) {
        if (!is_section(node->key)) {
            TRY(take_setting(r, "", node));
            continue;
        }
        for (int i = 1; i < recipe_section_count; i++) {
            if (strcmp(recipe_sections[i].name, node->key) == 0) {
                if (lines[i] != 0) {
                    return recipe_fail(r, key_place(node), node->key,
                                       "given twice, first in line %d", lines[i]);
                }
                lines[i] = node->key_line;
            }
        }
        TRY(take_section(r, node));
    }
    return STATUS_OK;
}

/* override_value - a list, a mapping or a quoted text is YAML; anything else is taken as it stands, so
 * that a glob needs no second pair of quotes. */
static status override_value(const char *key, const char *text, struct node **out)
{
    char name[KEY_TEXT_BYTES + 32];
    snprintf(name, sizeof name, "command line: %s", key);
    size_t bytes = strlen(text);
    if (bytes > 0 && strchr("[{\"'", text[0]) != NULL) {
        return recipe_yaml_parse(name, text, bytes, true, out);
    }
    for (size_t i = 0; i < bytes; i++) {
        if (recipe_yaml_control(text + i)) {
            RAISE(STATUS_RECIPE, "%s: a control character (byte value %d) in a text", name,
                  (unsigned char)text[i]);
        }
    }
    char *quoted = malloc(2 * bytes + sizeof "null");
    REQUIRE(quoted != NULL, STATUS_INTERNAL, "out of memory: %s", name);
    recipe_value_quote(text, true, quoted);
    status result = recipe_yaml_parse(name, bytes > 0 ? quoted : "\"\"",
                                      bytes > 0 ? strlen(quoted) : 2, true, out);
    free(quoted);
    if (result == STATUS_OK) {
        (*out)->kind = NODE_RAW;
    }
    return result;
}

static status take_override(struct reading *r, const char *text)
{
    struct place place = {.kind = PLACE_COMMAND};
    char key[KEY_TEXT_BYTES];
    size_t length = strcspn(text, "=");
    snprintf(key, sizeof key, "%.*s", (int)(length < 200 ? length : 200), text);
    if (text[length] != '=') {
        return recipe_fail(r, place, key, "not of the form section.key=value");
    }
    int index = recipe_table_find(key);
    if (index < 0) {
        char *dot = strchr(key, '.');
        if (is_section(key)) {
            return recipe_fail(r, place, key, "is a section; write %s.KEY=value", key);
        }
        if (dot != NULL) {
            *dot = '\0';
        }
        bool known = dot != NULL && is_section(key);
        if (dot != NULL && !known) {
            *dot = '.';
        }
        return fail_unknown(r, place, known ? key : "", known ? dot + 1 : key);
    }
    struct node *node = NULL;
    TRY(override_value(key, text + length + 1, &node));
    r->places[index] = place;
    status result = recipe_value_set(r, place, &recipe_table[index], node);
    recipe_yaml_free(&node);
    return result;
}

void recipe_preset(struct recipe *out)
{
    memset(out, 0, sizeof *out);
    for (int i = 0; i < recipe_table_count; i++) {
        recipe_value_preset(&recipe_table[i], out);
    }
}

static void keep_origin(const struct reading *r)
{
    struct recipe *recipe = r->recipe;
    struct recipe_origin *origin = &recipe->origin;
    snprintf(origin->name, sizeof origin->name, "%s", r->name);
    for (int i = 0; i < recipe_table_count; i++) {
        struct place p = r->places[i];
        origin->places[i] = p.kind == PLACE_COMMAND ? (struct recipe_place){-1, 0}
                                                    : (struct recipe_place){p.line, p.column};
    }
}

status recipe_parse(const char *name, const char *text, size_t bytes, char *const *overrides,
                    int count, struct recipe *out)
{
    recipe_preset(out);
    struct reading reading = {.name = name, .recipe = out};
    struct node *tree = NULL;
    TRY(recipe_yaml_parse(name, text, bytes, false, &tree));
    status result = take_tree(&reading, tree);
    recipe_yaml_free(&tree);
    TRY(result);
    for (int i = 0; i < count; i++) {
        TRY(take_override(&reading, overrides[i]));
    }
    keep_origin(&reading);
    return recipe_check_resolve(&reading);
}

status recipe_read(const char *path, char *const *overrides, int count, struct recipe *out)
{
    char *text = NULL;
    size_t bytes = 0;
    status result = file_read(path, FILE_BYTES_MAX, &text, &bytes);
    if (result == STATUS_DATA) { /* a folder, too large: the recipe is what is wrong */
        struct status_note note;
        status_take(&note);
        RAISE(STATUS_RECIPE, "%s; name the YAML file of a job", note.text);
    }
    TRY(result);
    result = recipe_parse(path, text, bytes, overrides, count, out);
    free(text);
    return result;
}
