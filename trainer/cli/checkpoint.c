/* bireme checkpoint: which there are, whether they are whole, whether two are the same; one cut anew for
 * another number of ranks. No model is made and no GPU is needed. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/comm.h"
#include "trainer/checkpoint/directory.h"
#include "trainer/checkpoint/diff.h"
#include "trainer/cli/command.h"
#include "trainer/cli/options.h"

static status print_document(json_t *document)
{
    int failed = json_dumpf(document, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    REQUIRE(failed == 0 && putchar('\n') != EOF && fflush(stdout) == 0, STATUS_WRITE,
            "cannot write to standard output: %s", strerror(errno));
    return STATUS_OK;
}

/* ---- list, verify ---- */

struct survey {
    bool digests;
    json_t *list;
    int damaged;
};

static int64_t bytes_of(const struct manifest *m)
{
    int64_t bytes = 0;
    for (int i = 0; i < m->file_count; i++) {
        bytes += m->files[i].bytes;
    }
    return bytes;
}

static void survey_folder(struct survey *s, const char *folder)
{
    char reason[MANIFEST_REASON_BYTES];
    struct manifest m;
    bool whole = checkpoint_look(folder, s->digests, &m, reason);
    json_t *entry = json_pack("{s:s, s:b}", "path", folder, "whole", whole);
    if (whole) {
        json_object_update_new(
            entry,
            json_pack("{s:I, s:I, s:I, s:f, s:i, s:i, s:i, s:I}", "step", (json_int_t)m.state.step,
                      "samples", (json_int_t)m.state.samples, "tokens", (json_int_t)m.state.tokens,
                      "train_seconds", m.state.train_seconds, "ranks", m.ranks, "tensors",
                      m.tensor_count, "files", m.file_count, "bytes", (json_int_t)bytes_of(&m)));
    } else {
        json_object_set_new(entry, "reason", json_string(reason));
        s->damaged++;
    }
    json_array_append_new(s->list, entry);
    manifest_destroy(&m);
}

/* The steps in a folder of checkpoints, the oldest first. */
static status survey_steps(struct survey *s, const char *parent)
{
    int64_t *steps = NULL;
    int count = 0;
    TRY(checkpoint_folder_list(parent, &steps, &count));
    status result = STATUS_OK;
    for (int i = count - 1; i >= 0 && result == STATUS_OK; i--) {
        char name[CHECKPOINT_NAME_BYTES], path[FILE_PATH_BYTES];
        checkpoint_folder_name(steps[i], name);
        result = file_join(path, parent, name);
        if (result == STATUS_OK) {
            survey_folder(s, path);
        }
    }
    free(steps);
    return result;
}

static bool named_like_checkpoint(const char *path)
{
    const char *slash = strrchr(path, '/');
    return strncmp(slash != NULL ? slash + 1 : path, "step-", 5) == 0;
}

/* A checkpoint, a run folder or a folder of checkpoints. */
static status survey_path(struct survey *s, const char *path)
{
    char inside[FILE_PATH_BYTES];
    REQUIRE(file_is_folder(path), STATUS_NO_INPUT, "there is no folder %s", path);
    TRY(file_join(inside, path, MANIFEST_FILE));
    if (file_exists(inside) || named_like_checkpoint(path)) {
        survey_folder(s, path);
        return STATUS_OK;
    }
    TRY(file_join(inside, path, "checkpoints"));
    TRY(survey_steps(s, file_is_folder(inside) ? inside : path));
    TRY(file_join(inside, path, "final"));
    if (file_is_folder(inside)) {
        survey_folder(s, inside);
    }
    REQUIRE(json_array_size(s->list) > 0, STATUS_NO_INPUT,
            "%s is no checkpoint and holds none (final/, checkpoints/step-*)", path);
    return STATUS_OK;
}

static int64_t integer(const json_t *entry, const char *key)
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
    int64_t ranks = integer(entry, "ranks");
    printf("%s: whole, step %lld, %lld tokens, %lld rank%s, %lld files, %lld bytes\n", path,
           (long long)integer(entry, "step"), (long long)integer(entry, "tokens"), (long long)ranks,
           text_plural(ranks), (long long)integer(entry, "files"),
           (long long)integer(entry, "bytes"));
}

static status print_survey(const struct survey *s, bool json)
{
    if (json) {
        return print_document(s->list);
    }
    for (size_t i = 0; i < json_array_size(s->list); i++) {
        print_entry(json_array_get(s->list, i));
    }
    return STATUS_OK;
}

static status survey(bool verify, int argc, char **argv)
{
    bool json = false, help = false;
    const struct option table[] = {
        {"json", OPTION_FLAG, &json, NULL, NULL, "print one JSON document", 0, 0, NULL},
    };
    struct options options = {
        .usage = verify ? "bireme checkpoint verify PATH [--json]"
                        : "bireme checkpoint list PATH [--json]",
        .about =
            verify
                ? "Checks every size and SHA-256 of a checkpoint, or of all of a run folder; code "
                  "80 where one is damaged."
                : "Lists the checkpoints of a run folder: step, tokens, ranks that wrote it, and "
                  "whether manifest and\nsizes hold (verify checks all bytes).",
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
    struct survey s = {.digests = verify, .list = json_array()};
    status result = survey_path(&s, options.operands[0]);
    if (result == STATUS_OK) {
        result = print_survey(&s, json);
    }
    json_decref(s.list);
    TRY(result);
    REQUIRE(!verify || s.damaged == 0, STATUS_CHECKPOINT, "%s: %d damaged checkpoint%s",
            options.operands[0], s.damaged, s.damaged == 1 ? "" : "s");
    return STATUS_OK;
}

/* ---- diff, reshard ---- */

/* The whole checkpoint that a path means, its newest one where it is a run folder. */
static status choose(const char *path, char folder[FILE_PATH_BYTES])
{
    struct comm *self = NULL;
    struct checkpoint_found found = {0};
    TRY(comm_self_create(&self));
    status result = checkpoint_choose(self, path, false, &found);
    snprintf(folder, FILE_PATH_BYTES, "%s", found.folder);
    free(found.recipe_text);
    KEEP_FIRST(result, comm_destroy(&self));
    return result;
}

static double real(const json_t *entry, const char *key)
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
        printf("%s %s: ", json_string_value(json_object_get(entry, "family")),
               json_string_value(json_object_get(entry, "name")));
        if (reason != NULL) {
            printf("%s\n", reason);
        } else {
            printf("%lld elements differ, by at most %.3g (%.3g of the largest element)\n",
                   (long long)integer(entry, "elements"), real(entry, "largest_difference"),
                   real(entry, "relative"));
        }
    }
    if (json_array_size(list) == 0) {
        printf("equal: %lld tensors\n", (long long)integer(report, "tensors"));
    }
}

static status diff(int argc, char **argv)
{
    bool json = false, help = false;
    double tolerance = 0;
    char a[FILE_PATH_BYTES], b[FILE_PATH_BYTES];
    const struct option table[] = {
        {"tolerance", OPTION_NUMBER, &tolerance, "T", "0",
         "allowed difference, as a part of a tensor's largest element; 0: the same bits", 0, 1,
         NULL},
        {"json", OPTION_FLAG, &json, NULL, NULL, "print one JSON document", 0, 0, NULL},
    };
    struct options options = {
        .usage = "bireme checkpoint diff A B [--tolerance T] [--json]",
        .about =
            "Compares all tensors of two checkpoints, whatever numbers of ranks wrote them (of a "
            "run folder: of its\nnewest one). Code 0 where they are equal, 81 where not.",
        .table = table,
        .count = 2,
        .operand = "A B",
        .operands_least = 2,
        .operands_most = 2,
    };
    TRY(options_parse(&options, argc, argv, &help));
    if (help) {
        return STATUS_OK;
    }
    TRY(choose(options.operands[0], a));
    TRY(choose(options.operands[1], b));
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

static status reshard(int argc, char **argv)
{
    bool help = false;
    int64_t ranks = 1;
    const char *output = NULL;
    char source[FILE_PATH_BYTES];
    const struct option table[] = {
        {"output", OPTION_TEXT, &output, "DIR", OPTION_REQUIRED, "folder to write; must not exist",
         0, 0, NULL},
        {"ranks", OPTION_INTEGER, &ranks, "N", "1", "as so many ranks would have written it", 1,
         65536, NULL},
    };
    struct options options = {
        .usage = "bireme checkpoint reshard PATH --output DIR [--ranks N]",
        .about =
            "Writes a checkpoint anew as N ranks would have written it: the same tensors and state "
            "in other files.\nTraining does not need this: any number of ranks reads what any "
            "number wrote.",
        .table = table,
        .count = 2,
        .operand = "PATH",
        .operands_least = 1,
        .operands_most = 1,
    };
    TRY(options_parse(&options, argc, argv, &help));
    if (help) {
        return STATUS_OK;
    }
    TRY(choose(options.operands[0], source));
    TRY(checkpoint_reshard(source, output, (int)ranks));
    log_info("%s: %s as %lld rank%s would have written it", output, source, (long long)ranks,
             text_plural(ranks));
    return STATUS_OK;
}

status command_checkpoint(int argc, char **argv)
{
    int choice = -1;
    TRY(options_choose(
        "bireme checkpoint list|verify|diff|reshard [flags]", "list|verify|diff|reshard",
        "  list     each checkpoint of a run: step, tokens, ranks, size; is it whole\n"
        "  verify   every byte of them against its checksum\n"
        "  diff     two checkpoints, tensor by tensor, whatever layouts wrote them\n"
        "  reshard  a checkpoint as another number of ranks would have written it",
        argc, argv, &choice));
    switch (choice) {
    case 0:
    case 1:
        return survey(choice == 1, argc - 1, argv + 1);
    case 2:
        return diff(argc - 1, argv + 1);
    case 3:
        return reshard(argc - 1, argv + 1);
    default:
        return STATUS_OK;
    }
}
