/* One value: from a YAML scalar into its field, strictly, and from the field back to text. */
#include <stdarg.h>
#include <string.h>

#include "base/text.h"
#include "trainer/recipe/settings.h"

static void *field_of(const struct setting *setting, struct recipe *recipe)
{
    return (char *)recipe + setting->offset;
}

static const void *field_in(const struct setting *setting, const struct recipe *recipe)
{
    return (const char *)recipe + setting->offset;
}

/* raise_at - "place: key: reason"; control characters are replaced. */
static status raise_at(const char *name, struct place place, status code, const char *key,
                       const char *format, va_list arguments)
{
    char where[1200];
    if (place.kind == PLACE_COMMAND) {
        snprintf(where, sizeof where, "command line");
    } else if (place.kind == PLACE_FILE) {
        snprintf(where, sizeof where, "%.1000s:%d:%d", name, place.line, place.column);
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

status recipe_fail(const struct reading *r, struct place place, const char *key, const char *format,
                   ...)
{
    va_list arguments;
    va_start(arguments, format);
    status result = raise_at(r->name, place, STATUS_RECIPE, key, format, arguments);
    va_end(arguments);
    return result;
}

static struct place place_of(const struct recipe *recipe, const char *key)
{
    const struct recipe_place *p = &recipe->origin.places[recipe_table_find(key)];
    enum place_kind kind = p->line > 0 ? PLACE_FILE : p->line == 0 ? PLACE_DEFAULT : PLACE_COMMAND;
    return (struct place){kind, p->line, p->column};
}

status recipe_raise(const struct recipe *recipe, status code, const char *key, const char *format,
                    ...)
{
    va_list arguments;
    va_start(arguments, format);
    status result =
        raise_at(recipe->origin.name, place_of(recipe, key), code, key, format, arguments);
    va_end(arguments);
    return result;
}

status recipe_blame(const struct recipe *recipe, const char *key, status result, const char *remedy)
{
    struct status_note note;
    if (result == STATUS_OK) {
        return STATUS_OK;
    }
    status_take(&note);
    if (note.code == STATUS_OK) { /* told already */
        return result;
    }
    return recipe_raise(recipe, result, key, "%s%s%s", note.text, remedy[0] != '\0' ? "; " : "",
                        remedy);
}

static bool is_scalar(const struct node *node)
{
    return node->kind == NODE_PLAIN || node->kind == NODE_QUOTED || node->kind == NODE_RAW;
}

static bool is_null(const struct node *node)
{
    return (node->kind == NODE_PLAIN || node->kind == NODE_RAW) &&
           (strcmp(node->text, "null") == 0 || strcmp(node->text, "~") == 0);
}

static const char *kind_name(enum setting_kind kind)
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
    case SETTING_CHOICE:
    case SETTING_ENUM:
    case SETTING_PATH:
    case SETTING_TEXT:
        break;
    }
    return "a text";
}

/* describe_range - "must lie in (0, 1]", or "must be above 0" where the upper limit is far away. */
static void describe_range(const struct setting *s, char *out, size_t bytes)
{
    const struct range_of *range = &s->range;
    if (range->most >= 1e6 && range->least <= 1) {
        snprintf(out, bytes, "must be %s %.15g and at most %.15g",
                 range->above ? "above" : "at least", range->least, range->most);
    } else {
        snprintf(out, bytes, "must lie in %c%.15g, %.15g%c", range->above ? '(' : '[', range->least,
                 range->most, range->below ? ')' : ']');
    }
}

static bool in_range(const struct setting *s, double value)
{
    const struct range_of *range = &s->range;
    bool low = range->above ? value > range->least : value >= range->least;
    bool high = range->below ? value < range->most : value <= range->most;
    return low && high;
}

static status set_number(const struct reading *r, struct place place, const struct setting *setting,
                         const struct node *node)
{
    char reason[TEXT_REASON_BYTES];
    if (node->kind == NODE_QUOTED) {
        return recipe_fail(r, place, setting->key,
                           "\"%.40s\" is a text, %s is wanted; leave the quotes out", node->text,
                           kind_name(setting->kind));
    }
    void *field = field_of(setting, r->recipe);
    int64_t integer = 0;
    double number = 0;
    bool whole = setting->kind == SETTING_INTEGER;
    if (whole ? !text_to_integer(node->text, &integer, reason)
              : !text_to_number(node->text, &number, reason)) {
        return recipe_fail(r, place, setting->key, "%s", reason);
    }
    if (!in_range(setting, whole ? (double)integer : number)) {
        char range[128];
        describe_range(setting, range, sizeof range);
        return recipe_fail(r, place, setting->key, "%.40s %s", node->text, range);
    }
    if (whole) {
        *(int64_t *)field = integer;
    } else {
        *(double *)field = number;
    }
    return STATUS_OK;
}

static status set_boolean(const struct reading *r, struct place place,
                          const struct setting *setting, const struct node *node)
{
    bool yes = node->kind != NODE_QUOTED && strcmp(node->text, "true") == 0;
    bool no = node->kind != NODE_QUOTED && strcmp(node->text, "false") == 0;
    if (!yes && !no) {
        return recipe_fail(r, place, setting->key, "'%.40s' is neither true nor false", node->text);
    }
    *(bool *)field_of(setting, r->recipe) = yes;
    return STATUS_OK;
}

/* check_text - a text that is one: not a number or a boolean that was left without quotes. */
static status check_text(const struct reading *r, struct place place, const char *key,
                         const struct node *node, size_t bytes)
{
    char reason[TEXT_REASON_BYTES];
    double number;
    if (!is_scalar(node)) {
        return recipe_fail(r, place, key, "must be a text");
    }
    if (node->text[0] == '\0') {
        return recipe_fail(r, place, key, "has no value");
    }
    if (node->kind == NODE_PLAIN &&
        (text_to_number(node->text, &number, reason) || strcmp(node->text, "true") == 0 ||
         strcmp(node->text, "false") == 0)) {
        return recipe_fail(r, place, key, "%.40s is not a text; write \"%.40s\" in quotes",
                           node->text, node->text);
    }
    if (strlen(node->text) >= bytes) {
        return recipe_fail(r, place, key, "a text of %zu bytes, at most %zu are accepted",
                           strlen(node->text), bytes - 1);
    }
    return STATUS_OK;
}

static status set_text(const struct reading *r, struct place place, const struct setting *setting,
                       const struct node *node)
{
    TRY(check_text(r, place, setting->key, node, setting->bytes));
    memset(field_of(setting, r->recipe), 0, setting->bytes);
    memcpy(field_of(setting, r->recipe), node->text, strlen(node->text));
    return STATUS_OK;
}

static status fail_choice(const struct reading *r, struct place place,
                          const struct setting *setting, const char *word, const char **words,
                          int count)
{
    const char *meant = recipe_table_synonym(word);
    int index = -1;
    for (int i = 0; i < count && meant != NULL; i++) {
        index = strcmp(words[i], meant) == 0 ? i : index;
    }
    index = index >= 0 ? index : text_nearest(word, words, count);
    char list[256] = "";
    for (int i = 0; i < count; i++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "", words[i]);
    }
    return recipe_fail(r, place, setting->key, "'%.40s' is not accepted, only %s%s%s%s", word, list,
                       index >= 0 ? "; did you mean '" : "", index >= 0 ? words[index] : "",
                       index >= 0 ? "'?" : "");
}

static status set_choice(const struct reading *r, struct place place, const struct setting *setting,
                         const struct node *node)
{
    char text[256];
    const char *words[CHOICES_MAX];
    int count = recipe_table_choices(setting->choices, text, sizeof text, words);
    for (int i = 0; i < count; i++) {
        if (strcmp(words[i], node->text) == 0) {
            if (setting->kind == SETTING_ENUM) {
                memcpy(field_of(setting, r->recipe), &(unsigned){(unsigned)i}, sizeof(unsigned));
                return STATUS_OK;
            }
            return set_text(r, place, setting, node);
        }
    }
    return fail_choice(r, place, setting, node->text, words, count);
}

/* ---- data.train ---- */

static const char *const source_keys[] = {"path", "weight"};

static status set_weight(const struct reading *r, struct place place, const struct node *node,
                         double *out)
{
    const struct setting weight = {.key = "data.train.weight",
                                   .kind = SETTING_NUMBER,
                                   .range = {.least = 0, .most = 1e9, .above = true}};
    struct recipe scratch = {0};
    struct reading into = {.name = r->name, .recipe = &scratch};
    if (!is_scalar(node)) {
        return recipe_fail(r, place, weight.key, "must be a number");
    }
    TRY(set_number(&into, place, &weight, node));
    memcpy(out, &scratch, sizeof *out); /* the scratch setting has offset 0 */
    return STATUS_OK;
}

static struct place place_in(struct place parent, int line, int column)
{
    return parent.kind == PLACE_FILE ? (struct place){PLACE_FILE, line, column} : parent;
}

static status set_source_key(const struct reading *r, struct place place, const struct node *node,
                             struct recipe_source *source, bool seen[2])
{
    struct place key_place = place_in(place, node->key_line, node->key_column);
    struct place value_place = place_in(place, node->line, node->column);
    int index = -1;
    for (int i = 0; i < 2; i++) {
        index = strcmp(node->key, source_keys[i]) == 0 ? i : index;
    }
    if (index < 0) {
        int nearest = text_nearest(node->key, source_keys, 2);
        return recipe_fail(r, key_place, "data.train",
                           "unknown key '%.40s', only path and weight%s%s%s", node->key,
                           nearest >= 0 ? "; did you mean '" : "",
                           nearest >= 0 ? source_keys[nearest] : "", nearest >= 0 ? "'?" : "");
    }
    if (seen[index]) {
        return recipe_fail(r, key_place, "data.train", "%s is given twice", node->key);
    }
    seen[index] = true;
    if (index == 1) {
        return set_weight(r, value_place, node, &source->weight);
    }
    TRY(check_text(r, value_place, "data.train.path", node, sizeof source->path));
    memcpy(source->path, node->text, strlen(node->text));
    return STATUS_OK;
}

static status set_source(const struct reading *r, struct place place, const struct node *node,
                         struct recipe_source *source)
{
    bool seen[2] = {false, false};
    struct place here = place_in(place, node->line, node->column);
    memset(source, 0, sizeof *source);
    source->weight = 1.0;
    if (node->kind != NODE_MAPPING) {
        return recipe_fail(r, here, "data.train",
                           "each entry of the list is {path: ..., weight: ...}");
    }
    for (const struct node *pair = node->first; pair != NULL; pair = pair->next) {
        TRY(set_source_key(r, place, pair, source, seen));
    }
    if (!seen[0]) {
        return recipe_fail(r, here, "data.train", "an entry without a path");
    }
    return STATUS_OK;
}

static status set_sources(const struct reading *r, struct place place,
                          const struct setting *setting, const struct node *node)
{
    struct recipe *recipe = r->recipe;
    memset(recipe->data.train, 0, sizeof recipe->data.train);
    recipe->data.train_count = 0;
    if (node->kind == NODE_MAPPING) {
        return recipe_fail(r, place, setting->key, "must be %s", kind_name(setting->kind));
    }
    if (node->kind != NODE_SEQUENCE) {
        TRY(check_text(r, place, setting->key, node, sizeof recipe->data.train[0].path));
        memcpy(recipe->data.train[0].path, node->text, strlen(node->text));
        recipe->data.train[0].weight = 1.0;
        recipe->data.train_count = 1;
        return STATUS_OK;
    }
    for (const struct node *entry = node->first; entry != NULL; entry = entry->next) {
        if (recipe->data.train_count == RECIPE_SOURCES_MAX) {
            return recipe_fail(r, place_in(place, entry->line, entry->column), setting->key,
                               "more than %d entries", RECIPE_SOURCES_MAX);
        }
        TRY(set_source(r, place, entry, &recipe->data.train[recipe->data.train_count++]));
    }
    if (recipe->data.train_count == 0) {
        return recipe_fail(r, place, setting->key, "the list is empty");
    }
    return STATUS_OK;
}

/* ---- lists ---- */

bool recipe_list_next(const char **at, char *word, size_t bytes)
{
    size_t length = strcspn(*at, ",");
    if (length == 0) {
        return false;
    }
    snprintf(word, bytes, "%.*s", (int)length, *at);
    *at += length;
    *at += strspn(*at, ", ");
    return true;
}

static status check_word(const struct reading *r, struct place place, const struct setting *setting,
                         const char *word)
{
    char text[256];
    const char *words[CHOICES_MAX];
    int count = recipe_table_choices(setting->choices, text, sizeof text, words);
    for (int i = 0; i < count; i++) {
        if (strcmp(words[i], word) == 0) {
            return STATUS_OK;
        }
    }
    return fail_choice(r, place, setting, word, words, count);
}

/* An entry as it is kept: the word itself, or the number as it is printed. */
static status read_entry(const struct reading *r, struct place place, const struct setting *setting,
                         const struct node *node, char out[RECIPE_NAME_BYTES])
{
    if (!is_scalar(node) || strlen(node->text) >= RECIPE_NAME_BYTES || node->text[0] == '\0') {
        return recipe_fail(r, place, setting->key, "each entry of the list is %s",
                           setting->choices != NULL ? "a name" : "a number");
    }
    if (setting->choices != NULL) {
        snprintf(out, RECIPE_NAME_BYTES, "%s", node->text);
        return check_word(r, place, setting, node->text);
    }
    struct recipe scratch;
    struct reading into = {.name = r->name, .recipe = &scratch};
    struct setting number = {.key = setting->key,
                             .kind = SETTING_NUMBER,
                             .offset = offsetof(struct recipe, dpo.beta),
                             .bytes = sizeof scratch.dpo.beta,
                             .range = setting->range};
    TRY(set_number(&into, place, &number, node));
    text_from_number(scratch.dpo.beta, out);
    return STATUS_OK;
}

static status set_list(const struct reading *r, struct place place, const struct setting *setting,
                       const struct node *node)
{
    char text[RECIPE_LIST_BYTES] = "", entry[RECIPE_NAME_BYTES];
    const struct node *first = is_scalar(node) ? node : node->first;
    if (first == NULL || node->kind == NODE_MAPPING) {
        return recipe_fail(r, place, setting->key, "must be %s", kind_name(setting->kind));
    }
    for (const struct node *n = first; n != NULL; n = n == node ? NULL : n->next) {
        struct place there = n == node ? place : place_in(place, n->line, n->column);
        TRY(read_entry(r, there, setting, n, entry));
        size_t used = strlen(text);
        if (used + strlen(entry) + 3 > sizeof text) {
            return recipe_fail(r, there, setting->key, "the list is too long");
        }
        snprintf(text + used, sizeof text - used, "%s%s", used > 0 ? ", " : "", entry);
    }
    memcpy(field_of(setting, r->recipe), text, sizeof text);
    return STATUS_OK;
}

/* ---- all kinds ---- */

static void set_null(const struct setting *setting, struct recipe *recipe)
{
    void *field = field_of(setting, recipe);
    memset(field, 0, setting->bytes);
    if (setting->kind == SETTING_INTEGER) {
        *(int64_t *)field = (int64_t)setting->null_value;
    } else if (setting->kind == SETTING_NUMBER) {
        *(double *)field = setting->null_value;
    } else if (setting->kind == SETTING_SOURCES) {
        recipe->data.train_count = 0;
    }
}

status recipe_value_set(const struct reading *r, struct place place, const struct setting *setting,
                        const struct node *node)
{
    if (setting->kind == SETTING_SOURCES && !is_scalar(node)) {
        return set_sources(r, place, setting, node);
    }
    if (setting->kind == SETTING_LIST && !is_scalar(node)) {
        return set_list(r, place, setting, node);
    }
    if (!is_scalar(node)) {
        return recipe_fail(r, place, setting->key, "must be %s, not a %s", kind_name(setting->kind),
                           node->kind == NODE_MAPPING ? "mapping" : "list");
    }
    if (is_null(node)) {
        if (setting->null == NULL) {
            return recipe_fail(r, place, setting->key, "null is not accepted, %s is wanted",
                               kind_name(setting->kind));
        }
        set_null(setting, r->recipe);
        return STATUS_OK;
    }
    if (node->text[0] == '\0') {
        return recipe_fail(r, place, setting->key, "has no value%s",
                           setting->null != NULL ? "; write null" : "");
    }
    switch (setting->kind) {
    case SETTING_INTEGER:
    case SETTING_NUMBER:
        return set_number(r, place, setting, node);
    case SETTING_BOOLEAN:
        return set_boolean(r, place, setting, node);
    case SETTING_CHOICE:
    case SETTING_ENUM:
        return set_choice(r, place, setting, node);
    case SETTING_SOURCES:
        return set_sources(r, place, setting, node);
    case SETTING_LIST:
        return set_list(r, place, setting, node);
    case SETTING_TEXT:
    case SETTING_PATH:
        break;
    }
    return set_text(r, place, setting, node);
}

void recipe_value_preset(const struct setting *setting, struct recipe *recipe)
{
    char text[64];
    snprintf(text, sizeof text, "%s", setting->preset);
    const struct node node = {.kind = NODE_PLAIN, .text = text};
    const struct reading reading = {.name = "the settings table", .recipe = recipe};
    recipe_value_set(&reading, (struct place){0}, setting, &node); /* a test reads every default */
}

/* ---- back to text ---- */

static bool is_safe(const char *text)
{
    static const char safe[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-*";
    char reason[TEXT_REASON_BYTES];
    double number;
    return strspn(text, safe) == strlen(text) && strchr("*-", text[0]) == NULL &&
           !text_to_number(text, &number, reason) && strcmp(text, "true") != 0 &&
           strcmp(text, "false") != 0 && strcmp(text, "null") != 0;
}

char *recipe_value_quote(const char *text, bool json, char *out)
{
    if (text[0] == '\0') {
        return strcpy(out, "null");
    }
    if (!json && is_safe(text)) {
        return strcpy(out, text);
    }
    char *to = out;
    *to++ = '"';
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '"' || *c == '\\') {
            *to++ = '\\';
        }
        *to++ = *c;
    }
    *to++ = '"';
    *to = '\0';
    return out;
}

/* One entry alone, or several in brackets. */
static char *list_text(const struct setting *setting, const char *list, bool json, char *out)
{
    char entry[RECIPE_NAME_BYTES], quoted[2 * RECIPE_NAME_BYTES + 3];
    bool several = strchr(list, ',') != NULL;
    size_t used = 0;
    for (const char *at = list; recipe_list_next(&at, entry, sizeof entry);) {
        const char *text =
            setting->choices != NULL ? recipe_value_quote(entry, json, quoted) : entry;
        used += (size_t)snprintf(out + used, RECIPE_VALUE_BYTES - used, "%s%s",
                                 used > 0  ? ", "
                                 : several ? "["
                                           : "",
                                 text);
    }
    snprintf(out + used, RECIPE_VALUE_BYTES - used, "%s", several ? "]" : used == 0 ? "null" : "");
    return out;
}

static char *enum_text(const struct setting *setting, unsigned value, bool json, char *out)
{
    char text[256];
    const char *words[CHOICES_MAX];
    int count = recipe_table_choices(setting->choices, text, sizeof text, words);
    return recipe_value_quote(value < (unsigned)count ? words[value] : "", json, out);
}

char *recipe_value_text(const struct setting *setting, const struct recipe *recipe, bool json,
                        char *out)
{
    const void *field = field_in(setting, recipe);
    switch (setting->kind) {
    case SETTING_INTEGER: {
        int64_t value = *(const int64_t *)field;
        if (setting->null != NULL && value == (int64_t)setting->null_value) {
            return strcpy(out, "null");
        }
        snprintf(out, RECIPE_VALUE_BYTES, "%lld", (long long)value);
        return out;
    }
    case SETTING_NUMBER: {
        double value = *(const double *)field;
        if (setting->null != NULL && value == setting->null_value) {
            return strcpy(out, "null");
        }
        return text_from_number(value, out);
    }
    case SETTING_BOOLEAN:
        return strcpy(out, *(const bool *)field ? "true" : "false");
    case SETTING_ENUM: {
        unsigned value;
        memcpy(&value, field, sizeof value);
        return enum_text(setting, value, json, out);
    }
    case SETTING_LIST:
        return list_text(setting, field, json, out);
    case SETTING_TEXT:
    case SETTING_PATH:
    case SETTING_CHOICE:
    case SETTING_SOURCES:
        break;
    }
    return recipe_value_quote(field, json, out);
}
