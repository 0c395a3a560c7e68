/* bireme inspect: detects the kind of a path and inspects tokenizers. inspect_run.c and
 * inspect_shards.c handle the other kinds. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/terminal.h"
#include "base/text.h"
#include "datasets/shard/shard.h"
#include "datasets/tokenizer/tokenizer.h"
#include "trainer/cli/command.h"
#include "trainer/cli/inspect.h"
#include "trainer/cli/options.h"
#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/formats/checkpoint/directory.h"
#include "trainer/logging/report/report.h"

enum { PLOT_COLUMNS = 79 };

bool inspect_has_file(const char *folder, const char *name)
{
    char path[FILE_PATH_BYTES];
    status joined = file_join(path, folder, name);
    if (joined != STATUS_OK) {
        status_clear();
        return false;
    }
    return file_exists(path);
}

status inspect_print_json(json_t *document)
{
    REQUIRE(document != NULL, STATUS_DATA,
            "the path is not valid UTF-8 and cannot be printed as JSON");
    int failed = json_dumpf(document, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_decref(document);
    return terminal_flush(failed == 0 && putchar('\n') != EOF);
}

/* ---- tokenizers ---- */

static const char *get_kind_name(enum tokenizer_kind kind)
{
    static const char *const names[] = {"bpe",           "wordpiece", "char",
                                        "sentencepiece", "unigram",   "marian"};
    return names[kind];
}

static status inspect_tokenizer(const char *folder, bool json)
{
    struct tokenizer *t = NULL;
    TRY(tokenizer_open(folder, &t));
    status result = STATUS_OK;
    int eos = tokenizer_eos(t);
    int64_t targets = tokenizer_vocab_size(tokenizer_target(t));
    if (json) {
        result = inspect_print_json(
            json_pack("{s:s, s:s, s:b, s:s, s:I, s:I, s:i, s:s}", "kind", "tokenizer", "path",
                      folder, "whole", 1, "type", get_kind_name(tokenizer_get_kind(t)),
                      "vocab_size", (json_int_t)tokenizer_vocab_size(t), "target_vocab_size",
                      (json_int_t)targets, "eos_id", eos, "sha256", tokenizer_sha256(t)));
    } else {
        printf("%s: tokenizer, valid\n", folder);
        printf("  type        %s\n", get_kind_name(tokenizer_get_kind(t)));
        printf("  vocabulary  %" PRId64 "\n", tokenizer_vocab_size(t));
        if (tokenizer_has_target(t)) {
            printf("  targets     %" PRId64 "\n", targets);
        }
        if (eos < 0) {
            printf("  end token   none\n");
        } else {
            printf("  end token   %d\n", eos);
        }
        printf("  sha256      %s\n", tokenizer_sha256(t));
    }
    KEEP_FIRST(result, tokenizer_destroy(&t));
    return result;
}

/* ---- the kind of a path ---- */

static bool has_checkpoint_name(const char *folder)
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

static bool has_checkpoints(const char *folder)
{
    int64_t *steps = NULL;
    int count = 0;
    bool any = checkpoint_directory_list(folder, &steps, &count) == STATUS_OK && count > 0;
    status_clear();
    free(steps);
    return any;
}

static status inspect_folder(const char *path, bool json, bool settings)
{
    if (inspect_has_file(path, "manifest.json") || has_checkpoint_name(path)) {
        return checkpoint_inspect(path, json);
    }
    if (inspect_has_file(path, "recipe.yaml") || inspect_has_file(path, "metrics.jsonl") ||
        inspect_has_file(path, "checkpoints") || has_checkpoints(path)) {
        return inspect_run(path, json, settings);
    }
    if (inspect_has_shards(path)) {
        return inspect_shards(path, json);
    }
    if (tokenizer_exists(path)) {
        return inspect_tokenizer(path, json);
    }
    REQUIRE(access(path, R_OK | X_OK) == 0, status_from_errno(errno, STATUS_NO_INPUT, STATUS_DATA),
            "cannot list %s: %s", path, strerror(errno));
    RAISE(STATUS_DATA,
          "%s is not a checkpoint (manifest.json), a run folder (recipe.yaml), a tokenizer "
          "(tokenizer.json or tokenizer.model) or a folder of shards (*.h5); give the path of one "
          "of these",
          path);
}

/* Inspects a shard, a tokenizer.json or a tokenizer.model. */
static status inspect_file(const char *path, bool json)
{
    const char *slash = strrchr(path, '/');
    const char *name = slash != NULL ? slash + 1 : path;
    if (strcmp(name, "tokenizer.json") != 0 && strcmp(name, "tokenizer.model") != 0) {
        return shard_inspect(path, json);
    }
    char folder[FILE_PATH_BYTES];
    int length = slash == NULL ? 1 : slash == path ? 1 : (int)(slash - path);
    snprintf(folder, sizeof folder, "%.*s", length, slash == NULL ? "." : path);
    return inspect_tokenizer(folder, json);
}

/* Draws the loss of a run. */
static status plot_run(const char *path)
{
    struct history *run = NULL;
    TRY(ALLOCATE(run, 1, path));
    status result = history_read(path, run);
    if (result == STATUS_OK) {
        result = report_write_text(run, "loss", PLOT_COLUMNS, stdout);
    }
    history_free(run);
    free(run);
    return result;
}

/* Prints a sample of a recipe, of the recipe of a run folder, of a shard or a folder of shards. */
static status print_sample(const char *path, int64_t sample, const char *tokenizer, bool json)
{
    char recipe[FILE_PATH_BYTES];
    bool is_folder = file_is_folder(path);
    if (is_folder && inspect_has_file(path, "recipe.yaml")) {
        TRY(file_join(recipe, path, "recipe.yaml"));
        return inspect_training_sample(recipe, sample, tokenizer, json);
    }
    if (!is_folder && (text_has_suffix(path, ".yaml") || text_has_suffix(path, ".yml"))) {
        return inspect_training_sample(path, sample, tokenizer, json);
    }
    return inspect_sample(path, sample, tokenizer, json);
}

status command_inspect(int argc, char **argv)
{
    bool json = false, plot = false, settings = false;
    int64_t sample = -1;
    const char *tokenizer = NULL;
    const struct option table[] = {
        {"sample", OPTION_INTEGER, &sample, "INDEX", NULL,
         "print this example or document of a shard, or sample of a run, counted from 0", .min = 0,
         .max = INT64_MAX},
        {"tokenizer", OPTION_TEXT, &tokenizer, "DIR", NULL,
         "tokenizer for --sample (default: the recipe's, else the one in the folder of the shard, "
         "in its folder `tokenizer`, or in a folder `tokenizer` next to it)"},
        {"settings", OPTION_FLAG, &settings, NULL, NULL, "also print the settings of a run"},
        {"json", OPTION_FLAG, &json, NULL, NULL, "print one JSON document with exact numbers"},
        {"plot", OPTION_FLAG, &plot, NULL, NULL, "draw the loss of a run, and nothing else"},
    };
    struct options options = {
        .usage = "bireme inspect PATH [--settings | --json | --plot | --sample INDEX "
                 "[--tokenizer DIR]]",
        .description = "Shows the contents of a shard, a folder of shards, a checkpoint, a "
                       "tokenizer or a run folder, and verifies every checksum. A path is "
                       "reported as valid if all its checksums match. Exits with code 65 if data "
                       "is damaged, 77 if a shard cannot be read, and 80 if a checkpoint is "
                       "damaged. With --sample, prints one sample as text, with its parts, its "
                       "labels and the tokens that count in the loss. PATH is then a shard or a "
                       "folder of shards, of which the samples are counted in the order of the "
                       "file names; or a run folder or recipe (*.yaml) of objective clm or sft, "
                       "of which the samples are counted in the order of training.",
        .table = table,
        .count = COUNT(table),
        .examples = "bireme inspect data/mine\n"
                    "bireme inspect runs/mine --plot\n"
                    "bireme inspect data/mine --sample 3 \\\n"
                    "    --tokenizer data/mine/tokenizer",
        .operand_name = "PATH",
        .operands_min = 1,
        .operands_max = 1,
    };
    OPTIONS_PARSE(&options, argc, argv);
    const char *path = options.operands[0];
    REQUIRE(file_exists(path), STATUS_NO_INPUT,
            "%s does not exist; name a shard, a checkpoint, a tokenizer or a run folder", path);
    REQUIRE(!(plot && (json || settings || sample >= 0)), STATUS_USAGE,
            "--plot cannot be combined with other options");
    if (plot) {
        return plot_run(path);
    }
    REQUIRE(sample >= 0 || tokenizer == NULL, STATUS_USAGE, "--tokenizer needs --sample INDEX");
    if (sample >= 0) {
        return print_sample(path, sample, tokenizer, json);
    }
    return file_is_folder(path) ? inspect_folder(path, json, settings) : inspect_file(path, json);
}
