/* bireme checkpoint: lists, verifies, compares and reshards checkpoints. These commands create no
 * model and need no GPU. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/terminal.h"
#include "base/text.h"
#include "comm/comm.h"
#include "trainer/cli/command.h"
#include "trainer/cli/options.h"
#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/formats/checkpoint/diff.h"
#include "trainer/formats/checkpoint/directory.h"
#include "trainer/formats/checkpoint/rewrite.h"
#include "trainer/formats/checkpoint/verify.h"
#include "trainer/logging/json_text.h"

#define LIST_EXAMPLE "bireme checkpoint list runs/mine"
#define VERIFY_EXAMPLE "bireme checkpoint verify runs/mine"
#define DIFF_EXAMPLE "bireme checkpoint diff runs/mine runs/other"

static status print_document(json_t *document)
{
    int failed = json_dumpf(document, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    return terminal_flush(failed == 0 && putchar('\n') != EOF);
}

/* ---- list, verify ---- */

struct listing {
    bool check_digests;
    json_t *entries; /* one object per checkpoint */
    int damaged_count;
};

static void add_checkpoint(struct listing *listing, const char *folder)
{
    char reason[MANIFEST_REASON_BYTES];
    struct manifest m;
    bool is_valid = checkpoint_verify_local(folder, listing->check_digests, &m, reason);
    json_t *entry = json_pack("{s:o, s:b}", "path", json_text_create(folder, strlen(folder)),
                              "whole", is_valid);
    if (is_valid) {
        json_object_update_new(
            entry, json_pack("{s:I, s:I, s:I, s:f, s:i, s:i, s:i, s:I}", "step",
                             (json_int_t)m.state.step, "samples", (json_int_t)m.state.samples,
                             "tokens", (json_int_t)m.state.tokens, "train_seconds",
                             m.state.train_seconds, "ranks", m.ranks, "tensors", m.tensor_count,
                             "files", m.file_count, "bytes", (json_int_t)manifest_count_bytes(&m)));
    } else {
        json_object_set_new(entry, "reason", json_text_create(reason, strlen(reason)));
        listing->damaged_count++;
    }
    json_array_append_new(listing->entries, entry);
    manifest_destroy(&m);
}

/* Adds all checkpoints of a checkpoints/ folder, the oldest first. */
static status add_steps(struct listing *listing, const char *parent)
{
    int64_t *steps = NULL;
    int count = 0;
    TRY(checkpoint_directory_list(parent, &steps, &count));
    status result = STATUS_OK;
    for (int i = count - 1; i >= 0 && result == STATUS_OK; i--) {
        char name[CHECKPOINT_NAME_BYTES], path[FILE_PATH_BYTES];
        checkpoint_directory_step_name(steps[i], name);
        result = file_join(path, parent, name);
        if (result == STATUS_OK) {
            add_checkpoint(listing, path);
        }
    }
    free(steps);
    return result;
}

static bool has_checkpoint_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return strncmp(slash != NULL ? slash + 1 : path, "step-", 5) == 0;
}

/* Adds a checkpoint, or all checkpoints of a run folder or of a checkpoints/ folder. */
static status add_path(struct listing *listing, const char *path)
{
    char inside[FILE_PATH_BYTES];
    REQUIRE(file_exists(path), STATUS_NO_INPUT, "there is no checkpoint at %s; " CHECKPOINT_REMEDY,
            path);
    REQUIRE(file_is_folder(path), STATUS_NO_INPUT, "%s is a file; " CHECKPOINT_REMEDY, path);
    TRY(file_join(inside, path, MANIFEST_FILE));
    if (file_exists(inside) || has_checkpoint_name(path)) {
        add_checkpoint(listing, path);
        return STATUS_OK;
    }
    TRY(file_join(inside, path, "checkpoints"));
    TRY(add_steps(listing, file_is_folder(inside) ? inside : path));
    TRY(file_join(inside, path, "final"));
    if (file_is_folder(inside)) {
        add_checkpoint(listing, inside);
    }
    REQUIRE(
        json_array_size(listing->entries) > 0, STATUS_NO_INPUT,
        "%s is not a checkpoint and contains none (final/, checkpoints/step-*); " CHECKPOINT_REMEDY,
        path);
    return STATUS_OK;
}

static int64_t get_integer(const json_t *entry, const char *key)
{
    return (int64_t)json_integer_value(json_object_get(entry, key));
}

static void print_entry(const json_t *entry)
{
    const char *path = json_string_value(json_object_get(entry, "path"));
    const char *reason = json_string_value(json_object_get(entry, "reason"));
    if (reason != NULL) {
        printf("%s: damaged: %s\n", path, reason);
        return;
    }
    int64_t ranks = get_integer(entry, "ranks");
    char tokens[TEXT_NUMBER_BYTES], bytes[TEXT_NUMBER_BYTES], text[256];
    snprintf(text, sizeof text,
             "valid, step %" PRId64 ", %s tokens, %" PRId64 " rank%s, %" PRId64 " files, %s",
             get_integer(entry, "step"),
             text_scale_count((double)get_integer(entry, "tokens"), tokens), ranks,
             text_plural(ranks), get_integer(entry, "files"),
             text_scale_bytes((double)get_integer(entry, "bytes"), bytes));
    printf("%s: ", path);
    terminal_print_wrapped(stdout, text, (int)strlen(path) + 2, 2, TEXT_LINE_COLUMNS);
}

static status print_listing(const struct listing *listing, bool json)
{
    if (json) {
        return print_document(listing->entries);
    }
    for (size_t i = 0; i < json_array_size(listing->entries); i++) {
        print_entry(json_array_get(listing->entries, i));
    }
    return STATUS_OK;
}

static status list_or_verify(bool verify, int argc, char **argv)
{
    bool json = false;
    const struct option table[] = {
        {"json", OPTION_FLAG, &json, NULL, NULL, "print one JSON document"},
    };
    struct options options = {
        .usage = verify ? "bireme checkpoint verify PATH [--json]"
                        : "bireme checkpoint list PATH [--json]",
        .description =
            verify ? "Checks the size and the SHA-256 of every file of a checkpoint, or of all "
                     "checkpoints of a run folder. Exits with code 80 if a checkpoint is damaged."
                   : "Lists the checkpoints of a run folder: step, tokens and number of ranks. "
                     "Checks the manifest and the file sizes; use verify to check all bytes.",
        .table = table,
        .count = 1,
        .examples = verify ? VERIFY_EXAMPLE : LIST_EXAMPLE,
        .operand_name = "PATH",
        .operands_min = 1,
        .operands_max = 1,
    };
    OPTIONS_PARSE(&options, argc, argv);
    struct listing listing = {.check_digests = verify, .entries = json_array()};
    status result = add_path(&listing, options.operands[0]);
    if (result == STATUS_OK) {
        result = print_listing(&listing, json);
    }
    json_decref(listing.entries);
    TRY(result);
    REQUIRE(!verify || listing.damaged_count == 0, STATUS_CHECKPOINT,
            "%s contains %d damaged checkpoint%s", options.operands[0], listing.damaged_count,
            text_plural(listing.damaged_count));
    return STATUS_OK;
}

/* ---- diff, reshard ---- */

/* Finds the checkpoint that a path names: the path, or the newest valid checkpoint of a run. */
static status find_checkpoint(const char *path, char folder[FILE_PATH_BYTES])
{
    struct comm *self = NULL;
    struct checkpoint_info found = {0};
    TRY(comm_self_create(&self));
    status result = checkpoint_resolve(self, path, false, &found);
    snprintf(folder, FILE_PATH_BYTES, "%s", found.folder);
    free(found.recipe_text);
    KEEP_FIRST(result, comm_destroy(&self));
    return result;
}

/* Returns NAN if the entry has no such number. */
static double get_number(const json_t *entry, const char *key)
{
    const json_t *value = json_object_get(entry, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void print_differences(const json_t *report)
{
    size_t i;
    const json_t *entry;
    const json_t *list = json_object_get(report, "different");
    json_array_foreach(list, i, entry)
    {
        const char *reason = json_string_value(json_object_get(entry, "reason"));
        char text[256], line[1024];
        snprintf(text, sizeof text,
                 "%" PRId64 " elements differ, by at most %.3g (%.3g of the largest element)",
                 get_integer(entry, "elements"), get_number(entry, "largest_difference"),
                 get_number(entry, "relative"));
        snprintf(line, sizeof line, "%s %s: %s",
                 json_string_value(json_object_get(entry, "family")),
                 json_string_value(json_object_get(entry, "name")), reason != NULL ? reason : text);
        terminal_print_wrapped(stdout, line, 0, 2, TEXT_LINE_COLUMNS);
    }
    if (json_array_size(list) == 0) {
        printf("equal: %" PRId64 " tensors\n", get_integer(report, "tensors"));
    }
}

static status run_diff(int argc, char **argv)
{
    bool json = false;
    double tolerance = 0;
    char a[FILE_PATH_BYTES], b[FILE_PATH_BYTES];
    const struct option table[] = {
        {"tolerance", OPTION_NUMBER, &tolerance, "T", "0",
         "allowed difference relative to the largest element of the tensor; 0: equal bit for bit",
         .min = 0, .max = 1},
        {"json", OPTION_FLAG, &json, NULL, NULL, "print one JSON document"},
    };
    struct options options = {
        .usage = "bireme checkpoint diff A B [--tolerance T] [--json]",
        .description = "Compares all tensors of two checkpoints; the numbers of ranks that wrote "
                       "them may differ. For a run folder, the newest checkpoint is compared. "
                       "Exits with code 0 if they are equal, with code 81 if not.",
        .table = table,
        .count = 2,
        .examples = DIFF_EXAMPLE,
        .operand_name = "A B",
        .operands_min = 2,
        .operands_max = 2,
    };
    OPTIONS_PARSE(&options, argc, argv);
    TRY(find_checkpoint(options.operands[0], a));
    TRY(find_checkpoint(options.operands[1], b));
    json_t *report = NULL;
    TRY(checkpoint_diff(a, b, tolerance, &report));
    status result = STATUS_OK;
    if (json) {
        result = print_document(report);
    } else {
        print_differences(report);
    }
    size_t count = json_array_size(json_object_get(report, "different"));
    json_decref(report);
    TRY(result);
    REQUIRE(count == 0, STATUS_DIVERGED, "%zu tensors of %s and %s differ", count, a, b);
    return STATUS_OK;
}

static status run_reshard(int argc, char **argv)
{
    int64_t ranks = 1;
    const char *output = NULL;
    char source[FILE_PATH_BYTES];
    const struct option table[] = {
        {"output", OPTION_TEXT, &output, "DIR", OPTION_REQUIRED, "folder to write; must not exist"},
        {"ranks", OPTION_INTEGER, &ranks, "N", "1", "number of ranks to write the checkpoint for",
         .min = 1, .max = 65536},
    };
    struct options options = {
        .usage = "bireme checkpoint reshard PATH --output DIR [--ranks N]",
        .description = "Writes the tensors and the state of a checkpoint to new files, as N ranks "
                       "would write them. Training does not need this: any number of ranks can "
                       "resume from any checkpoint.",
        .table = table,
        .count = 2,
        .examples = "bireme checkpoint reshard runs/mine \\\n"
                    "    --output runs/mine_one_file --ranks 1",
        .operand_name = "PATH",
        .operands_min = 1,
        .operands_max = 1,
    };
    OPTIONS_PARSE(&options, argc, argv);
    TRY(find_checkpoint(options.operands[0], source));
    TRY(checkpoint_reshard(source, output, (int)ranks));
    log_info("wrote %s: %s resharded for %" PRId64 " rank%s", output, source, ranks,
             text_plural(ranks));
    return STATUS_OK;
}

status command_checkpoint(int argc, char **argv)
{
    int choice = -1;
    TRY(options_select_subcommand(
        "bireme checkpoint list|verify|diff|reshard [options]", "list|verify|diff|reshard",
        "  list     list the checkpoints of a run with step, tokens, ranks and size\n"
        "  verify   check every file against its checksum\n"
        "  diff     compare two checkpoints tensor by tensor\n"
        "  reshard  rewrite a checkpoint for another number of ranks",
        LIST_EXAMPLE "\n" VERIFY_EXAMPLE "\n" DIFF_EXAMPLE, argc, argv, &choice));
    switch (choice) {
    case 0:
    case 1:
        return list_or_verify(choice == 1, argc - 1, argv + 1);
    case 2:
        return run_diff(argc - 1, argv + 1);
    case 3:
        return run_reshard(argc - 1, argv + 1);
    default:
        return STATUS_OK;
    }
}
