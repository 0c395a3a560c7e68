/* Inspection of a run folder or of a folder of checkpoints: the training progress and the state of
 * each checkpoint, with all checksums verified. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/input/line_reader.h"
#include "base/text.h"
#include "trainer/cli/inspect.h"
#include "trainer/cli/output/json_output.h"
#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/formats/checkpoint/directory.h"
#include "trainer/logging/json_text.h"
#include "trainer/recipe/recipe.h"
#include "trainer/recipe/recipe_json.h"

/* ---- metrics.jsonl ---- */

enum { NEWEST_TRAIN, NEWEST_EVALUATE, NEWEST_LINE, NEWEST };

/* Reads the last complete line of each event, and the last line of all, as JSON. Sets an element to
 * JSON null if there is no such line. */
static void read_newest_lines(const char *folder, json_t *out[NEWEST])
{
    static const char *const patterns[NEWEST] = {"\"event\":\"train\"", "\"event\":\"evaluate\"",
                                                 ""};
    char path[FILE_PATH_BYTES], *newest[NEWEST] = {NULL};
    struct line_reader lines = {0};
    bool found = file_join(path, folder, "metrics.jsonl") == STATUS_OK && file_size(path) >= 0 &&
                 line_reader_open(path, &lines) == STATUS_OK;
    while (found && line_reader_next(&lines, &found) == STATUS_OK && found) {
        if (!lines.has_newline) { /* A killed job can leave an incomplete line. */
            break;
        }
        for (int i = 0; i < NEWEST; i++) {
            if (strstr(lines.line, patterns[i]) != NULL) {
                free(newest[i]);
                newest[i] = strdup(lines.line);
            }
        }
    }
    line_reader_close(&lines);
    status_clear();
    for (int i = 0; i < NEWEST; i++) {
        out[i] = newest[i] != NULL ? json_loads(newest[i], 0, NULL) : NULL;
        out[i] = out[i] != NULL ? out[i] : json_null();
        free(newest[i]);
    }
}

/* ---- checkpoints ---- */

/* Verifies a checkpoint. Returns {name, whole, step, tokens, ranks} or {name, whole, reason}. */
static json_t *examine_checkpoint(struct comm *self, const char *parent, const char *name,
                                  bool *is_valid)
{
    char path[FILE_PATH_BYTES];
    struct checkpoint_info found = {0};
    status result = file_join(path, parent, name);
    if (result == STATUS_OK) {
        result = checkpoint_verify_folder(self, path, &found);
    }
    *is_valid = result == STATUS_OK;
    json_t *entry = json_pack("{s:s, s:b}", "name", name, "whole", *is_valid);
    if (*is_valid) {
        json_object_set_new(entry, "step", json_integer((json_int_t)found.state.step));
        json_object_set_new(entry, "tokens", json_integer((json_int_t)found.state.tokens));
        json_object_set_new(entry, "ranks", json_integer(found.saved_ranks));
    } else {
        const char *reason = status_pending()->text;
        json_object_set_new(entry, "reason", json_text_create(reason, strlen(reason)));
        status_clear();
    }
    free(found.recipe_text);
    return entry;
}

/* Verifies the checkpoints, the oldest first, then the final weights. */
static status examine_all(const char *folder, bool run, json_t *list, int *damaged)
{
    char parent[FILE_PATH_BYTES];
    struct comm *self = NULL;
    int64_t *steps = NULL;
    int count = 0;
    bool is_valid = true;
    if (run) {
        TRY(file_join(parent, folder, "checkpoints"));
    } else {
        snprintf(parent, sizeof parent, "%s", folder);
    }
    TRY(checkpoint_directory_list(parent, &steps, &count));
    status result = comm_self_create(&self);
    for (int i = count - 1; i >= 0 && result == STATUS_OK; i--) {
        char name[CHECKPOINT_NAME_BYTES];
        checkpoint_directory_step_name(steps[i], name);
        json_array_append_new(list, examine_checkpoint(self, parent, name, &is_valid));
        *damaged += !is_valid;
    }
    if (result == STATUS_OK && run && inspect_has_file(folder, "final")) {
        json_array_append_new(list, examine_checkpoint(self, folder, "final", &is_valid));
        *damaged += !is_valid;
    }
    free(steps);
    KEEP_FIRST(result, comm_destroy(&self));
    return result;
}

/* ---- text output ---- */

static int64_t get_integer(const json_t *line, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(line, key));
}

static void print_number(const char *name, const json_t *line, const char *key)
{
    const json_t *value = json_object_get(line, key);
    if (json_is_number(value)) {
        printf("  %-18s %.6g\n", name, json_number_value(value));
    }
}

static void print_state(const char *folder, json_t *const lines[NEWEST])
{
    char text[32];
    const char *event = json_string_value(json_object_get(lines[NEWEST_LINE], "event"));
    const char *reason = json_string_value(json_object_get(lines[NEWEST_LINE], "reason"));
    if (event == NULL) {
        printf("%s: run folder, no metrics yet\n", folder);
        return;
    }
    bool ended = strcmp(event, "end") == 0;
    printf("%s: run folder, %s%s%s\n", folder, ended ? "ended (" : "not ended: running or killed",
           ended && reason != NULL ? reason : "", ended ? ")" : "");
    printf("  %-18s %s\n", "step",
           json_output_format_count(get_integer(lines[NEWEST_LINE], "step"), text));
    if (json_is_object(lines[NEWEST_TRAIN])) {
        printf("  %-18s %s\n", "tokens",
               json_output_scale_count(get_integer(lines[NEWEST_TRAIN], "tokens"), text));
    }
    print_number("loss", lines[NEWEST_TRAIN], "loss");
    print_number("learning rate", lines[NEWEST_TRAIN], "learning_rate");
    const json_t *rate = json_object_get(lines[NEWEST_TRAIN], "tokens_per_second");
    if (json_is_number(rate)) {
        printf("  %-18s %s\n", "tokens per second",
               text_scale_count(json_number_value(rate), text));
    }
    print_number("validation loss", lines[NEWEST_EVALUATE], "loss");
    print_number("perplexity", lines[NEWEST_EVALUATE], "perplexity");
    if (json_is_object(lines[NEWEST_EVALUATE])) {
        printf("  %-18s %s\n", "evaluated at step",
               json_output_format_count(get_integer(lines[NEWEST_EVALUATE], "step"), text));
    }
}

static void print_checkpoints(const json_t *list)
{
    char step[32], tokens[32];
    if (json_array_size(list) == 0) {
        printf("  no checkpoints\n");
        return;
    }
    printf("\n  %-16s %14s %18s %6s  %s\n", "checkpoint", "step", "tokens", "ranks", "");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const char *name = json_string_value(json_object_get(entry, "name"));
        const char *reason = json_string_value(json_object_get(entry, "reason"));
        if (reason != NULL) {
            printf("  %-16s damaged: %s\n", name, reason);
            continue;
        }
        printf("  %-16s %14s %18s %6" PRId64 "  valid\n", name,
               json_output_format_count(get_integer(entry, "step"), step),
               json_output_scale_count(get_integer(entry, "tokens"), tokens),
               get_integer(entry, "ranks"));
    }
}

/* ---- inspect_run ---- */

/* Reads the resolved recipe of the run. Sets *found to false if the folder contains none. */
static status read_run_recipe(const char *folder, struct recipe *recipe, bool *found)
{
    char path[FILE_PATH_BYTES];
    *found = inspect_has_file(folder, "recipe.yaml");
    if (!*found) {
        return STATUS_OK;
    }
    TRY(file_join(path, folder, "recipe.yaml"));
    return recipe_read(path, NULL, 0, recipe);
}

static status print_text(const char *folder, bool run, json_t *const lines[NEWEST],
                         const json_t *list, const struct recipe *recipe, bool settings)
{
    if (!run) {
        printf("%s: folder of checkpoints\n", folder);
        print_checkpoints(list);
        return STATUS_OK;
    }
    print_state(folder, lines);
    print_checkpoints(list);
    if (!settings) {
        return STATUS_OK;
    }
    printf("\nsettings%s\n", recipe == NULL ? ": no recipe.yaml" : "");
    return recipe != NULL ? recipe_write(recipe, stdout) : STATUS_OK;
}

static json_t *make_json(const char *folder, bool run, bool is_valid, json_t *const lines[NEWEST],
                         json_t *list, const struct recipe *recipe)
{
    if (!run) {
        return json_pack("{s:s, s:s, s:b, s:O}", "kind", "checkpoints", "path", folder, "whole",
                         is_valid, "checkpoints", list);
    }
    const char *event = json_string_value(json_object_get(lines[NEWEST_LINE], "event"));
    bool ended = event != NULL && strcmp(event, "end") == 0;
    return json_pack("{s:s, s:s, s:b, s:b, s:O, s:O, s:O, s:O, s:o}", "kind", "run", "path", folder,
                     "whole", is_valid, "ended", ended, "checkpoints", list, "last",
                     lines[NEWEST_LINE], "train", lines[NEWEST_TRAIN], "evaluate",
                     lines[NEWEST_EVALUATE], "settings",
                     recipe != NULL ? recipe_json_build(recipe) : json_null());
}

status inspect_run(const char *folder, bool json, bool settings)
{
    struct recipe recipe;
    bool has_recipe = false;
    int damaged = 0;
    json_t *lines[NEWEST];
    bool run = inspect_has_file(folder, "recipe.yaml") ||
               inspect_has_file(folder, "metrics.jsonl") || inspect_has_file(folder, "checkpoints");
    TRY(read_run_recipe(folder, &recipe, &has_recipe));
    json_t *list = json_array();
    read_newest_lines(folder, lines);
    const struct recipe *known = has_recipe ? &recipe : NULL;
    status result = examine_all(folder, run, list, &damaged);
    if (result == STATUS_OK) {
        result = json ? inspect_print_json(make_json(folder, run, damaged == 0, lines, list, known))
                      : print_text(folder, run, lines, list, known, settings);
    }
    json_decref(list);
    for (int i = 0; i < NEWEST; i++) {
        json_decref(lines[i]);
    }
    TRY(result);
    REQUIRE(damaged == 0, STATUS_CHECKPOINT, "%s contains %d damaged checkpoint%s", folder, damaged,
            text_plural(damaged));
    return STATUS_OK;
}
