/* bireme inspect: what a shard, a checkpoint, a tokenizer or a run folder holds, and whether it is
 * whole. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "datasets/shard.h"
#include "datasets/tokenizer/tokenizer.h"
#include "trainer/checkpoint.h"
#include "trainer/checkpoint_folder.h"
#include "trainer/command/command.h"
#include "trainer/command/options.h"
#include "trainer/command/settings.h"
#include "trainer/recipe.h"

static bool has_file(const char *folder, const char *name)
{
    char path[FILE_PATH_BYTES];
    status joined = file_join(path, folder, name);
    if (joined != STATUS_OK) {
        status_clear();
        return false;
    }
    return file_exists(path);
}

static status print_document(json_t *document)
{
    int failed = json_dumpf(document, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_decref(document);
    REQUIRE(failed == 0 && putchar('\n') != EOF && fflush(stdout) == 0, STATUS_WRITE,
            "cannot write to standard output: %s", strerror(errno));
    return STATUS_OK;
}

/* ---- a tokenizer ---- */

static const char *kind_name(enum tokenizer_kind kind)
{
    static const char *const names[] = {"bpe", "wordpiece", "char"};
    return names[kind];
}

static status inspect_tokenizer(const char *folder, bool json)
{
    struct tokenizer *t = NULL;
    TRY(tokenizer_open(folder, &t));
    status result = STATUS_OK;
    int eos = tokenizer_eos(t);
    if (json) {
        result = print_document(json_pack(
            "{s:s, s:s, s:b, s:s, s:I, s:i, s:s}", "kind", "tokenizer", "path", folder, "whole", 1,
            "type", kind_name(tokenizer_kind_of(t)), "vocab_size",
            (json_int_t)tokenizer_vocab_size(t), "eos_id", eos, "sha256", tokenizer_sha256(t)));
    } else {
        printf("%s: tokenizer, whole\n", folder);
        printf("  type        %s\n", kind_name(tokenizer_kind_of(t)));
        printf("  vocabulary  %lld\n", (long long)tokenizer_vocab_size(t));
        printf("  end token   %d%s\n", eos, eos < 0 ? " (none)" : "");
        printf("  sha256      %s\n", tokenizer_sha256(t));
    }
    KEEP_FIRST(result, tokenizer_destroy(&t));
    return result;
}

/* ---- a run folder ---- */

enum { LINE_BYTES_MAX = 1 << 16 };

/* last_line - the last whole line of metrics.jsonl as JSON; null where there is none. */
static json_t *last_line(const char *folder)
{
    char path[FILE_PATH_BYTES];
    char *text = malloc(LINE_BYTES_MAX + 1);
    FILE *file = NULL;
    json_t *line = NULL;
    if (text != NULL && file_join(path, folder, "metrics.jsonl") == STATUS_OK) {
        file = fopen(path, "r");
    }
    if (file != NULL && fseek(file, -(long)LINE_BYTES_MAX, SEEK_END) != 0) {
        rewind(file); /* shorter than that */
    }
    size_t bytes = file != NULL ? fread(text, 1, LINE_BYTES_MAX, file) : 0;
    while (bytes > 0 && text[bytes - 1] != '\n') { /* what a killed job left of a line */
        bytes--;
    }
    if (bytes > 0) {
        text[bytes - 1] = '\0';
        char *before = strrchr(text, '\n');
        line = json_loads(before != NULL ? before + 1 : text, 0, NULL);
    }
    if (file != NULL) {
        fclose(file);
    }
    free(text);
    return line != NULL ? line : json_null();
}

/* examine - one checkpoint of the run: {name, step, whole, reason}. */
static json_t *examine(struct comm *self, const char *parent, const char *name, bool *whole)
{
    char path[FILE_PATH_BYTES];
    struct checkpoint_found found = {0};
    status result = file_join(path, parent, name);
    if (result == STATUS_OK) {
        result = checkpoint_examine(self, path, &found);
    }
    *whole = result == STATUS_OK;
    json_t *entry = json_pack("{s:s, s:b}", "name", name, "whole", *whole);
    if (*whole) {
        json_object_set_new(entry, "step", json_integer((json_int_t)found.state.step));
        json_object_set_new(entry, "tokens", json_integer((json_int_t)found.state.tokens));
        json_object_set_new(entry, "ranks", json_integer(found.saved_ranks));
    } else {
        json_object_set_new(entry, "reason", json_string(status_pending()->text));
        status_clear();
    }
    free(found.recipe_text);
    return entry;
}

static status examine_all(const char *folder, json_t *list, int *damaged)
{
    char parent[FILE_PATH_BYTES];
    struct comm *self = NULL;
    int64_t *steps = NULL;
    int count = 0;
    bool whole = true;
    TRY(file_join(parent, folder, "checkpoints"));
    TRY(checkpoint_folder_list(parent, &steps, &count));
    status result = comm_self_create(&self);
    for (int i = count - 1; i >= 0 && result == STATUS_OK; i--) { /* oldest first */
        char name[CHECKPOINT_NAME_BYTES];
        checkpoint_folder_name(steps[i], name);
        json_array_append_new(list, examine(self, parent, name, &whole));
        *damaged += !whole;
    }
    if (result == STATUS_OK && has_file(folder, "final/manifest.json")) {
        json_array_append_new(list, examine(self, folder, "final", &whole));
        *damaged += !whole;
    }
    free(steps);
    KEEP_FIRST(result, comm_destroy(&self));
    return result;
}

static status print_run(const char *folder, const json_t *last, const json_t *list,
                        const struct recipe *recipe)
{
    char *text = json_dumps(last, JSON_ENCODE_ANY | JSON_REAL_PRECISION(7));
    printf("%s: run folder\n", folder);
    printf("  last line   %s\n", text != NULL ? text : "");
    free(text);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *entry = json_array_get(list, i);
        const char *reason = json_string_value(json_object_get(entry, "reason"));
        printf("  checkpoint  %s: %s%s\n", json_string_value(json_object_get(entry, "name")),
               reason == NULL ? "whole" : "damaged: ", reason == NULL ? "" : reason);
    }
    if (json_array_size(list) == 0) {
        printf("  checkpoint  none\n");
    }
    printf("settings%s\n", recipe == NULL ? ": no recipe.yaml" : "");
    return recipe != NULL ? recipe_write(recipe, stdout) : STATUS_OK;
}

/* run_recipe - the resolved recipe of the run; *found false where the folder has none. */
static status run_recipe(const char *folder, struct recipe *recipe, bool *found)
{
    char path[FILE_PATH_BYTES];
    *found = has_file(folder, "recipe.yaml");
    if (!*found) {
        return STATUS_OK;
    }
    TRY(file_join(path, folder, "recipe.yaml"));
    return recipe_read(path, NULL, 0, recipe);
}

static status inspect_run(const char *folder, bool json)
{
    struct recipe recipe;
    bool has_recipe = false;
    int damaged = 0;
    TRY(run_recipe(folder, &recipe, &has_recipe));
    json_t *list = json_array();
    json_t *last = last_line(folder);
    status result = examine_all(folder, list, &damaged);
    if (result == STATUS_OK && json) {
        json_t *event = json_object_get(last, "event");
        bool finished = json_is_string(event) && strcmp(json_string_value(event), "end") == 0;
        json_t *settings = has_recipe ? settings_json(&recipe) : json_null();
        result = print_document(json_pack("{s:s, s:s, s:b, s:b, s:O, s:O, s:o}", "kind", "run",
                                          "path", folder, "whole", damaged == 0, "ended", finished,
                                          "checkpoints", list, "last", last, "settings", settings));
    } else if (result == STATUS_OK) {
        result = print_run(folder, last, list, has_recipe ? &recipe : NULL);
    }
    json_decref(list);
    json_decref(last);
    TRY(result);
    REQUIRE(damaged == 0, STATUS_CHECKPOINT, "%s: %d of its checkpoints %s damaged", folder,
            damaged, damaged == 1 ? "is" : "are");
    return STATUS_OK;
}

/* ---- which of them ---- */

static bool named_like_checkpoint(const char *folder)
{
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/') {
        length--;
    }
    size_t first = length;
    while (first > 0 && folder[first - 1] != '/') {
        first--;
    }
    return length - first > 5 && strncmp(folder + first, "step-", 5) == 0;
}

static status inspect_folder(const char *path, bool json)
{
    if (has_file(path, "manifest.json") || named_like_checkpoint(path)) {
        return checkpoint_inspect(path, json);
    }
    if (has_file(path, "recipe.yaml") || has_file(path, "metrics.jsonl") ||
        has_file(path, "checkpoints")) {
        return inspect_run(path, json);
    }
    if (has_file(path, "tokenizer.json")) {
        return inspect_tokenizer(path, json);
    }
    RAISE(STATUS_DATA,
          "%s is neither a checkpoint (manifest.json), nor a run folder (recipe.yaml), nor a "
          "tokenizer "
          "(tokenizer.json); for shards name one file",
          path);
}

/* inspect_file - a shard, or the tokenizer.json of a folder. */
static status inspect_file(const char *path, bool json)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash != NULL ? slash + 1 : path;
    if (strcmp(name, "tokenizer.json") != 0) {
        return shard_inspect(path, json);
    }
    char folder[FILE_PATH_BYTES];
    int length = slash == NULL ? 1 : slash == path ? 1 : (int)(slash - path);
    snprintf(folder, sizeof folder, "%.*s", length, slash == NULL ? "." : path);
    return inspect_tokenizer(folder, json);
}

status command_inspect(int argc, char **argv)
{
    bool json = false;
    bool help = false;
    const struct option table[] = {
        {"json", OPTION_FLAG, &json, NULL, NULL, "print one JSON document", 0, 0, NULL},
    };
    struct options options = {
        .usage = "bireme inspect PATH [--json]",
        .about =
            "Tells what a shard, a checkpoint, a tokenizer or a run folder holds, and whether it "
            "is whole: every\nchecksum is verified, and what is damaged ends in code 65 (data) or "
            "80 (checkpoint).",
        .table = table,
        .count = 1,
        .operand = "PATH",
        .operands_least = 1,
        .operands_most = 1,
    };
    TRY(options_parse(&options, argc, argv, &help));
    if (help) {
        return STATUS_OK;
    }
    const char *path = options.operands[0];
    REQUIRE(file_exists(path), STATUS_NO_INPUT, "%s does not exist", path);
    return file_is_folder(path) ? inspect_folder(path, json) : inspect_file(path, json);
}
