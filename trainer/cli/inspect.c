/* bireme inspect: what a path is, and what a tokenizer holds; inspect_run.c and inspect_shards.c look at the
 * others. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "datasets/shard/shard.h"
#include "datasets/tokenizer/tokenizer.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/directory.h"
#include "trainer/cli/command.h"
#include "trainer/cli/inspect.h"
#include "trainer/cli/options.h"

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

status inspect_print(json_t *document)
{
    int failed = document == NULL ||
                 json_dumpf(document, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) != 0;
    json_decref(document);
    REQUIRE(!failed && putchar('\n') != EOF && fflush(stdout) == 0, STATUS_WRITE,
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
        result = inspect_print(json_pack(
            "{s:s, s:s, s:b, s:s, s:I, s:i, s:s}", "kind", "tokenizer", "path", folder, "whole", 1,
            "type", kind_name(tokenizer_kind_of(t)), "vocab_size",
            (json_int_t)tokenizer_vocab_size(t), "eos_id", eos, "sha256", tokenizer_sha256(t)));
    } else {
        printf("%s: tokenizer, whole\n", folder);
        printf("  type        %s\n", kind_name(tokenizer_kind_of(t)));
        printf("  vocabulary  %lld\n", (long long)tokenizer_vocab_size(t));
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

static bool holds_checkpoints(const char *folder)
{
    int64_t *steps = NULL;
    int count = 0;
    bool any = checkpoint_folder_list(folder, &steps, &count) == STATUS_OK && count > 0;
    status_clear();
    free(steps);
    return any;
}

static status inspect_folder(const char *path, bool json)
{
    if (inspect_has_file(path, "manifest.json") || named_like_checkpoint(path)) {
        return checkpoint_inspect(path, json);
    }
    if (inspect_has_file(path, "recipe.yaml") || inspect_has_file(path, "metrics.jsonl") ||
        inspect_has_file(path, "checkpoints") || holds_checkpoints(path)) {
        return inspect_run(path, json);
    }
    if (inspect_has_shards(path)) {
        return inspect_shards(path, json);
    }
    if (inspect_has_file(path, "tokenizer.json")) {
        return inspect_tokenizer(path, json);
    }
    RAISE(STATUS_DATA,
          "%s is neither a checkpoint (manifest.json), nor a run folder (recipe.yaml), nor a "
          "tokenizer (tokenizer.json), nor does it hold shards (*.h5)",
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
            "Tells what a shard or a folder of shards, a checkpoint, a tokenizer or a run folder "
            "holds, and whether it\nis whole: every checksum is verified, and what is damaged ends "
            "in code 65 (data) or "
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
