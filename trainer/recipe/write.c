/* Output that is generated from the settings table: the resolved recipe, recipes/README.md and the
 * differences that prevent a resume. */
#include <string.h>

#include "base/text.h"
#include "trainer/recipe/settings.h"

static const char *get_name(const char *key)
{
    const char *dot = strchr(key, '.');
    return dot != NULL ? dot + 1 : key;
}

static size_t get_section_length(const char *key)
{
    const char *dot = strchr(key, '.');
    return dot != NULL ? (size_t)(dot - key) : 0;
}

static bool is_same_section(const char *a, const char *b)
{
    size_t length = get_section_length(a);
    return length == get_section_length(b) && strncmp(a, b, length) == 0;
}

static bool is_single_source(const struct recipe *recipe)
{
    const struct recipe_source *first = &recipe->data.train[0];
    return recipe->data.train_count == 1 && first->weight == 1.0 && first->language[0] == '\0';
}

static void write_sources(const struct recipe *recipe, FILE *file)
{
    char text[RECIPE_VALUE_BYTES];
    char weight[TEXT_NUMBER_BYTES];
    if (recipe->data.train_count == 0 || is_single_source(recipe)) {
        fprintf(file, "  train: %s\n", recipe_value_quote(recipe->data.train[0].path, false, text));
        return;
    }
    fprintf(file, "  train:\n");
    for (int i = 0; i < recipe->data.train_count; i++) {
        const struct recipe_source *source = &recipe->data.train[i];
        fprintf(file, "    - {path: %s, weight: %s", recipe_value_quote(source->path, true, text),
                text_from_number(source->weight, weight));
        if (source->language[0] != '\0') {
            fprintf(file, ", language: %s", recipe_value_quote(source->language, true, text));
        }
        fprintf(file, "}\n");
    }
}

status recipe_write(const struct recipe *recipe, FILE *file)
{
    char text[RECIPE_VALUE_BYTES];
    for (int i = 0; i < recipe_table_count; i++) {
        const struct setting *setting = &recipe_table[i];
        size_t length = get_section_length(setting->key);
        if (length > 0 && (i == 0 || !is_same_section(setting->key, recipe_table[i - 1].key))) {
            fprintf(file, "%.*s:\n", (int)length, setting->key);
        }
        if (setting->kind == SETTING_SOURCES) {
            write_sources(recipe, file);
        } else {
            fprintf(file, "%s%s: %s\n", length > 0 ? "  " : "", get_name(setting->key),
                    recipe_value_format(setting, recipe, false, text));
        }
    }
    REQUIRE(!ferror(file), STATUS_WRITE, "the resolved recipe cannot be written");
    return STATUS_OK;
}

static void visit_sources(const struct recipe *recipe, recipe_visitor visit, void *user)
{
    static const char key[] = "data.train";
    char text[RECIPE_VALUE_BYTES];
    if (recipe->data.train_count == 0 || is_single_source(recipe)) {
        visit(user, key, recipe_value_quote(recipe->data.train[0].path, true, text));
        return;
    }
    for (int i = 0; i < recipe->data.train_count; i++) {
        char json[RECIPE_VALUE_BYTES + 64 + 6 * RECIPE_LANGUAGE_BYTES];
        char weight[TEXT_NUMBER_BYTES];
        const struct recipe_source *source = &recipe->data.train[i];
        int used = snprintf(json, sizeof json, "{\"path\": %s, \"weight\": %s",
                            recipe_value_quote(source->path, true, text),
                            text_from_number(source->weight, weight));
        if (source->language[0] != '\0') {
            used += snprintf(json + used, sizeof json - (size_t)used, ", \"language\": %s",
                             recipe_value_quote(source->language, true, text));
        }
        snprintf(json + used, sizeof json - (size_t)used, "}");
        visit(user, "data.train[]", json);
    }
}

void recipe_visit(const struct recipe *recipe, recipe_visitor visit, void *user)
{
    char text[RECIPE_VALUE_BYTES];
    for (int i = 0; i < recipe_table_count; i++) {
        const struct setting *setting = &recipe_table[i];
        if (setting->kind == SETTING_SOURCES) {
            visit_sources(recipe, visit, user);
        } else {
            visit(user, setting->key, recipe_value_format(setting, recipe, true, text));
        }
    }
}

struct model_writer {
    const struct recipe *recipe;
    FILE *file;
};

static void write_model_setting(void *user, const char *key, const char *json)
{
    const struct model_writer *w = user;
    if (strncmp(key, "model.", 6) == 0 && strcmp(key, "model.init_from") != 0 &&
        strcmp(json, "null") != 0 &&
        recipe_find_failed_condition(w->recipe, recipe_table_find(key)) == NULL) {
        fprintf(w->file, "  %s: %s\n", key + 6, json);
    }
}

void recipe_write_model(const struct recipe *recipe, FILE *file)
{
    struct model_writer w = {recipe, file};
    fprintf(file, "model:\n");
    recipe_visit(recipe, write_model_setting, &w);
}

/* ---- recipes/README.md ---- */

static void format_type(const struct setting *setting, char *out, size_t bytes)
{
    char bounds[96] = "";
    const struct number_range *range = &setting->range;
    switch (setting->kind) {
    case SETTING_INTEGER:
    case SETTING_NUMBER:
        if (range->max >= 1e6) {
            snprintf(bounds, sizeof bounds, " %s %.15g", range->exclusive_min ? "above" : "from",
                     range->min);
        } else {
            snprintf(bounds, sizeof bounds, " in %c%.15g, %.15g%c",
                     range->exclusive_min ? '(' : '[', range->min, range->max,
                     range->exclusive_max ? ')' : ']');
        }
        snprintf(out, bytes, "%s%s", setting->kind == SETTING_INTEGER ? "integer" : "number",
                 bounds);
        return;
    case SETTING_BOOLEAN:
        snprintf(out, bytes, "true, false");
        return;
    case SETTING_LIST:
        if (setting->choices == NULL) {
            snprintf(out, bytes, "number or list");
            return;
        } /* fall through */
    case SETTING_ENUM: {
        char text[CHOICES_BYTES];
        const char *choices[CHOICES_MAX];
        int count = recipe_value_choices(setting->choices, text, choices);
        out[0] = '\0';
        for (int i = 0; i < count; i++) {
            size_t used = strlen(out);
            snprintf(out + used, bytes - used, "%s%s", i > 0 ? ", " : "", choices[i]);
        }
        return;
    }
    case SETTING_SOURCES:
    case SETTING_PATHS:
        snprintf(out, bytes, "path or list");
        return;
    case SETTING_TEXT:
        snprintf(out, bytes, "string");
        return;
    case SETTING_PATH:
        snprintf(out, bytes, "path");
        return;
    }
}

static void write_setting(const struct setting *setting, FILE *file)
{
    char type[CHOICES_BYTES];
    format_type(setting, type, sizeof type);
    fprintf(file, "| `%s`%s | %s | %s | %s%s%s%s. |\n", get_name(setting->key),
            setting->resume ? " *" : "", type, setting->default_value, setting->description,
            setting->null != NULL ? " (null: " : "", setting->null != NULL ? setting->null : "",
            setting->null != NULL ? ")" : "");
}

/* Writes a text in lines of at most 100 columns. */
static void write_paragraph(const char *text, FILE *file)
{
    const int columns = 100;
    int column = 0;
    while (*text != '\0') {
        int length = (int)strcspn(text, " ");
        bool fits = column > 0 && column + 1 + length <= columns;
        fprintf(file, "%s%.*s", fits ? " " : column > 0 ? "\n" : "", length, text);
        column = fits ? column + 1 + length : length;
        text += length;
        text += strspn(text, " ");
    }
    fprintf(file, "\n\n");
}

static void write_introduction(FILE *file)
{
    fprintf(file, "# Recipes\n\n"
                  "A recipe is one YAML file that describes one job:\n\n"
                  "    bireme train recipes/NAME.yaml [section.key=value ...]\n\n");
    write_paragraph(
        "Settings on the command line override the file. If a key is given more than once on the "
        "command line, the last value applies. train.max_steps and train.epochs are alternatives: "
        "if the command line contains one of them, it replaces the other one in the file. The "
        "same holds for schedule.warmup_steps and schedule.warmup_ratio. The program checks all "
        "settings before any work begins. An unknown or repeated key, a wrong type, a value out "
        "of range or two conflicting settings end it with exit code 78. The message contains "
        "file, line, column, key and reason. The run folder stores the resolved recipe, which "
        "lists every key and can be used as a recipe.",
        file);
    write_paragraph("Numbers are decimal. Integers have no exponent (`1000`, not `1e3`); other "
                    "numbers may have one (`6.0e-4`). YAML anchors, aliases, tags and multiple "
                    "documents are not accepted.",
                    file);
    write_paragraph("A setting marked * may change when a run is resumed. Any other change ends it "
                    "with exit code 80.",
                    file);
    fprintf(file, "This file is generated from the settings table: `bireme plan --document-keys "
                  ">recipes/README.md`.\n");
}

void recipe_document(FILE *file)
{
    write_introduction(file);
    for (int s = 0; s < recipe_section_count; s++) {
        const char *section = recipe_sections[s].name;
        bool top = section[0] == '\0';
        fprintf(file, "\n## %s%s%s\n\n", top ? "Top level" : "`", section, top ? "" : "`");
        if (!top) {
            write_paragraph(recipe_sections[s].description, file);
        }
        fprintf(file, "| key | type | default | description |\n|---|---|---|---|\n");
        for (int i = 0; i < recipe_table_count; i++) {
            const char *key = recipe_table[i].key;
            if (get_section_length(key) == strlen(section) &&
                strncmp(key, section, strlen(section)) == 0) {
                write_setting(&recipe_table[i], file);
            }
        }
    }
}

/* ---- resume ---- */

struct differences {
    char *text;
    size_t bytes, used;
    int count;
};

static void add_difference(struct differences *d, const char *key, const char *saved,
                           const char *now)
{
    if (d->used < d->bytes) {
        int written = snprintf(d->text + d->used, d->bytes - d->used,
                               "%s%s: checkpoint %.200s, recipe %.200s", d->count > 0 ? "; " : "",
                               key, saved, now);
        d->used += written > 0 ? (size_t)written : 0;
    }
    d->count++;
}

/* Compares the weights of a mixture, because they determine the data order.
 *
 * The paths may change. */
static void add_source_differences(struct differences *d, const struct recipe *saved,
                                   const struct recipe *now)
{
    char a[TEXT_NUMBER_BYTES];
    char b[TEXT_NUMBER_BYTES];
    if (saved->data.train_count != now->data.train_count) {
        snprintf(a, sizeof a, "%d", saved->data.train_count);
        snprintf(b, sizeof b, "%d", now->data.train_count);
        add_difference(d, "data.train (entries)", a, b);
        return;
    }
    for (int i = 0; i < now->data.train_count; i++) {
        double before = saved->data.train[i].weight;
        double after = now->data.train[i].weight;
        if (before != after) {
            add_difference(d, "data.train.weight", text_from_number(before, a),
                           text_from_number(after, b));
        }
    }
}

int recipe_differences(const struct recipe *saved, const struct recipe *now, char *text,
                       size_t bytes)
{
    char a[RECIPE_VALUE_BYTES];
    char b[RECIPE_VALUE_BYTES];
    struct differences d = {.text = text, .bytes = bytes};
    if (bytes > 0) {
        text[0] = '\0';
    }
    for (int i = 0; i < recipe_table_count; i++) {
        const struct setting *setting = &recipe_table[i];
        if (setting->kind == SETTING_SOURCES) {
            add_source_differences(&d, saved, now);
        } else if (!setting->resume) {
            recipe_value_format(setting, saved, false, a);
            recipe_value_format(setting, now, false, b);
            bool same = setting->unordered
                            ? recipe_list_same_entries((const char *)saved + setting->offset,
                                                       (const char *)now + setting->offset)
                            : strcmp(a, b) == 0;
            /* A value that follows from another setting is not listed with that setting. */
            if (!same && !(recipe_has_default(saved, i) && recipe_has_default(now, i))) {
                add_difference(&d, setting->key, a, b);
            }
        }
    }
    return d.count;
}
