#include "trainer/logging/report/history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/input/line_reader.h"
#include "base/memory.h"
#include "trainer/recipe/recipe.h"

/* A foreign file must not create an unlimited number of curves. */
enum { SERIES_MAX = 512 };

const struct history_series *history_find(const struct history_table *table, const char *name)
{
    for (int i = 0; i < table->count; i++) {
        if (strcmp(table->series[i].name, name) == 0) {
            return &table->series[i];
        }
    }
    return NULL;
}

static status add_series(struct history_table *table, const char *name, struct history_series **out)
{
    *out = NULL;
    if (table->count == SERIES_MAX) {
        return STATUS_OK;
    }
    TRY(RESERVE(table->series, table->capacity, table->count + 1, "the fields of metrics.jsonl"));
    char *copy = NULL;
    TRY(memory_copy_text(&copy, name, "a name of metrics.jsonl"));
    *out = &table->series[table->count++];
    **out = (struct history_series){.name = copy};
    return STATUS_OK;
}

/* Appends a value. The lines of a step that was repeated replace the earlier lines. */
static status add_value(struct history_table *table, const char *name, double step, double value)
{
    struct history_series *s = (struct history_series *)history_find(table, name);
    if (s == NULL) {
        TRY(add_series(table, name, &s));
        if (s == NULL) {
            return STATUS_OK;
        }
    }
    while (s->count > 0 && s->steps[s->count - 1] >= step) {
        s->count--;
    }
    int64_t capacity = s->capacity;
    TRY(RESERVE(s->steps, capacity, s->count + 1, "the values of metrics.jsonl"));
    TRY(RESERVE(s->values, s->capacity, s->count + 1, "the values of metrics.jsonl"));
    s->steps[s->count] = step;
    s->values[s->count++] = value;
    return STATUS_OK;
}

static status add_numbers(struct history_table *table, json_t *line, double step)
{
    const char *name;
    json_t *value;
    json_object_foreach(line, name, value)
    {
        if (json_is_number(value) && strcmp(name, "step") != 0 && strcmp(name, "time") != 0) {
            TRY(add_value(table, name, step, json_number_value(value)));
        }
    }
    return STATUS_OK;
}

static void replace_line(json_t **target, json_t *line)
{
    json_decref(*target);
    *target = json_incref(line);
}

static status add_line(struct history *h, json_t *line)
{
    const char *event = json_string_value(json_object_get(line, "event"));
    const json_t *step_value = json_object_get(line, "step");
    if (event == NULL || !json_is_integer(step_value)) {
        return STATUS_OK;
    }
    int64_t step = (int64_t)json_integer_value(step_value);
    h->last_step = step;
    if (h->start_time == 0) {
        h->start_time = json_number_value(json_object_get(line, "time"));
    }
    if (strcmp(event, "train") == 0) {
        return add_numbers(&h->train, line, (double)step);
    }
    if (strcmp(event, "evaluate") == 0) {
        if (json_is_null(h->first_evaluate)) {
            replace_line(&h->first_evaluate, line);
        }
        replace_line(&h->last_evaluate, line);
        return add_numbers(&h->evaluate, line, (double)step);
    }
    if (strcmp(event, "start") == 0) {
        replace_line(&h->start, line);
        h->sessions++;
    } else if (strcmp(event, "end") == 0) {
        replace_line(&h->end, line);
    } else if (strcmp(event, "warning") == 0) {
        json_array_append(h->warnings, line);
    } else if (strcmp(event, "sample") == 0) {
        json_array_append(h->samples, line);
    }
    return STATUS_OK;
}

static status read_lines(struct line_reader *lines, struct history *h)
{
    bool found = true;
    status result = STATUS_OK;
    while (result == STATUS_OK) {
        TRY(line_reader_next(lines, &found));
        if (!found || !lines->has_newline) { /* A running job can be in the middle of a line. */
            return STATUS_OK;
        }
        json_t *line = json_loadb(lines->line, lines->bytes, JSON_REJECT_DUPLICATES, NULL);
        result = line != NULL ? add_line(h, line) : STATUS_OK;
        json_decref(line);
    }
    return result;
}

static status read_metrics(const char *folder, struct history *h)
{
    char path[FILE_PATH_BYTES];
    struct line_reader lines = {0};
    TRY(file_join(path, folder, "metrics.jsonl"));
    REQUIRE(file_size(path) >= 0, STATUS_NO_INPUT,
            "%s contains no metrics.jsonl; give the folder of a run (run_dir of its recipe)",
            folder);
    TRY(line_reader_open(path, &lines));
    status result = read_lines(&lines, h);
    line_reader_close(&lines);
    return result;
}

static void put_setting(void *user, const char *key, const char *text)
{
    json_t *settings = user;
    size_t length = strlen(key);
    json_t *value = json_loads(text, JSON_DECODE_ANY, NULL);
    if (value == NULL || length < 2 || strcmp(key + length - 2, "[]") != 0) {
        json_object_set_new(settings, key, value != NULL ? value : json_null());
        return;
    }
    json_t *list = json_object_get(settings, key);
    if (list == NULL) {
        json_object_set_new(settings, key, list = json_array());
    }
    json_array_append_new(list, value);
}

/* A folder of another version can have a recipe that this version cannot read. */
static status read_settings(const char *folder, struct history *h)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, folder, "recipe.yaml"));
    struct recipe *recipe = NULL;
    TRY(ALLOCATE(recipe, 1, folder));
    if (file_exists(path) && recipe_read(path, NULL, 0, recipe) == STATUS_OK) {
        json_decref(h->settings);
        h->settings = json_object();
        recipe_visit(recipe, put_setting, h->settings);
    }
    status_clear();
    free(recipe);
    return STATUS_OK;
}

status history_read(const char *folder, struct history *out)
{
    *out = (struct history){.start = json_null(),
                            .end = json_null(),
                            .first_evaluate = json_null(),
                            .last_evaluate = json_null(),
                            .warnings = json_array(),
                            .samples = json_array(),
                            .settings = json_null()};
    snprintf(out->name, sizeof out->name, "%s", folder);
    for (size_t i = strlen(out->name); i > 1 && out->name[i - 1] == '/'; i--) {
        out->name[i - 1] = '\0';
    }
    TRY(read_metrics(folder, out));
    return read_settings(folder, out);
}

static void free_table(struct history_table *table)
{
    for (int i = 0; i < table->count; i++) {
        free(table->series[i].name);
        free(table->series[i].steps);
        free(table->series[i].values);
    }
    free(table->series);
}

void history_free(struct history *h)
{
    free_table(&h->train);
    free_table(&h->evaluate);
    json_decref(h->start);
    json_decref(h->end);
    json_decref(h->first_evaluate);
    json_decref(h->last_evaluate);
    json_decref(h->warnings);
    json_decref(h->samples);
    json_decref(h->settings);
    *h = (struct history){0};
}
