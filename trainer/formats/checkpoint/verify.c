#include "trainer/formats/checkpoint/verify.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/terminal.h"
#include "base/text.h"

/* ---- manifest ---- */

/* Moves the pending error to `reason`: a damaged folder is not an error of the program. */
static void move_note_to_reason(char *reason)
{
    struct status_note note;
    status_take(&note);
    manifest_report_note(&note, reason);
}

static bool read_manifest_text(const char *folder, char **text, size_t *bytes, char *reason)
{
    char path[FILE_PATH_BYTES];
    *text = NULL;
    *bytes = 0;
    if (file_join(path, folder, MANIFEST_FILE) != STATUS_OK ||
        file_read(path, MANIFEST_BYTES_MAX, text, bytes) != STATUS_OK) {
        move_note_to_reason(reason);
        return false;
    }
    return true;
}

/* Ends the job if memory was missing: the folder is then not verified, and may be undamaged. */
static status require_memory(struct comm *world, const char *folder, bool good, const char *reason)
{
    if (good || !manifest_lacks_memory(reason)) {
        return STATUS_OK;
    }
    return comm_abort_on_error(
        world, RAISE_STATUS(STATUS_INTERNAL, "cannot verify %s: %s", folder, reason));
}

/* Broadcasts the text of rank 0. *bytes is -1 if rank 0 could not read it. */
static status broadcast_text(struct comm *world, char **text, int64_t *bytes, char *reason)
{
    TRY(comm_broadcast(world, bytes, sizeof *bytes, 0));
    TRY(comm_broadcast(world, reason, MANIFEST_REASON_BYTES, 0));
    if (*bytes < 0) {
        return STATUS_OK;
    }
    status own = STATUS_OK;
    if (comm_rank(world) != 0) {
        own = ALLOCATE(*text, *bytes + 1, "a manifest");
    }
    TRY(comm_agree(world, own));
    return *bytes > 0 ? comm_broadcast(world, *text, (size_t)*bytes, 0) : STATUS_OK;
}

status checkpoint_read_manifest(struct comm *world, const char *folder, struct manifest *out,
                                bool *good, char *reason)
{
    *out = (struct manifest){0};
    *good = false;
    memset(reason, 0, MANIFEST_REASON_BYTES);
    char *text = NULL;
    int64_t bytes = -1;
    if (comm_rank(world) == 0) {
        size_t read = 0;
        bytes = read_manifest_text(folder, &text, &read, reason) ? (int64_t)read : -1;
        TRY(require_memory(world, folder, bytes >= 0, reason));
    }
    status result = broadcast_text(world, &text, &bytes, reason);
    if (result == STATUS_OK && bytes >= 0) {
        *good = manifest_parse(text, (size_t)bytes, out, reason);
        result = require_memory(world, folder, *good, reason);
    }
    free(text);
    return result;
}

/* ---- files ---- */

static bool check_size(const char *folder, const struct manifest_file *file, char *reason)
{
    char path[FILE_PATH_BYTES];
    if (file_join(path, folder, file->name) != STATUS_OK) {
        move_note_to_reason(reason);
        return false;
    }
    int64_t bytes = file_size(path);
    if (bytes != file->bytes) {
        if (bytes < 0) {
            snprintf(reason, MANIFEST_REASON_BYTES, "%.255s is missing", file->name);
        } else {
            snprintf(reason, MANIFEST_REASON_BYTES,
                     "%.255s has %" PRId64 " bytes instead of %" PRId64, file->name, bytes,
                     file->bytes);
        }
        return false;
    }
    return true;
}

static bool check_digest(const char *folder, const struct manifest_file *file, char *reason)
{
    char path[FILE_PATH_BYTES], digest[HASH_TEXT_BYTES];
    if (file_join(path, folder, file->name) != STATUS_OK ||
        hash_file(path, digest, NULL) != STATUS_OK) {
        move_note_to_reason(reason);
        return false;
    }
    if (strcmp(digest, file->sha256) != 0) {
        snprintf(reason, MANIFEST_REASON_BYTES,
                 "%.255s: sha256 mismatch (%.12s... instead of %.12s...)", file->name, digest,
                 file->sha256);
        return false;
    }
    return true;
}

/* Checks the sizes of all files, which is fast, and then the digests of every ranks-th file. */
static bool check_files(const char *folder, const struct manifest *m, int rank, int ranks,
                        char *reason)
{
    for (int i = 0; i < m->file_count; i++) {
        if (!check_size(folder, &m->files[i], reason)) {
            return false;
        }
    }
    for (int i = rank; i < m->file_count; i += ranks) {
        if (!check_digest(folder, &m->files[i], reason)) {
            return false;
        }
    }
    return true;
}

/* Sets *good and `reason` on all ranks to the fault of the lowest rank that found one. */
static status agree_on_fault(struct comm *world, bool *good, char *reason)
{
    int ranks = comm_size(world);
    char *all = NULL;
    status result = comm_agree(
        world, ALLOCATE(all, (size_t)ranks * MANIFEST_REASON_BYTES, "the results of the ranks"));
    if (*good) {
        reason[0] = '\0';
    }
    if (result == STATUS_OK) {
        result = comm_all_gather_bytes(world, all, reason, MANIFEST_REASON_BYTES);
    }
    for (int r = ranks - 1; r >= 0 && result == STATUS_OK; r--) {
        const char *text = all + (size_t)r * MANIFEST_REASON_BYTES;
        if (text[0] != '\0') {
            memcpy(reason, text, MANIFEST_REASON_BYTES);
            *good = false;
        }
    }
    free(all);
    return result;
}

/* ---- whole folders ---- */

status checkpoint_verify(struct comm *world, const char *folder, struct manifest *out, bool *good,
                         char *reason)
{
    TRY(checkpoint_read_manifest(world, folder, out, good, reason));
    if (*good) {
        *good = check_files(folder, out, comm_rank(world), comm_size(world), reason);
        TRY(require_memory(world, folder, *good, reason));
    }
    return agree_on_fault(world, good, reason);
}

bool checkpoint_verify_local(const char *folder, bool digests, struct manifest *out, char *reason)
{
    char *text;
    size_t bytes;
    *out = (struct manifest){0};
    if (!read_manifest_text(folder, &text, &bytes, reason)) {
        return false;
    }
    bool good = manifest_parse(text, bytes, out, reason);
    for (int i = 0; good && i < out->file_count; i++) {
        good = check_size(folder, &out->files[i], reason);
    }
    for (int i = 0; good && digests && i < out->file_count; i++) {
        good = check_digest(folder, &out->files[i], reason);
    }
    free(text);
    return good;
}

bool checkpoint_has_all_files(const char *folder)
{
    char reason[MANIFEST_REASON_BYTES];
    struct manifest m;
    bool good = checkpoint_verify_local(folder, false, &m, reason) || manifest_lacks_memory(reason);
    manifest_destroy(&m);
    return good;
}

void checkpoint_fill_info(struct checkpoint_info *out, const char *folder, struct manifest *m)
{
    out->found = true;
    snprintf(out->folder, sizeof out->folder, "%s", folder);
    out->state = m->state;
    out->saved_ranks = m->ranks;
    out->dropout_scheme = m->dropout_scheme;
    out->weights_only = true;
    for (int i = 0; i < m->tensor_count; i++) {
        out->weights_only = out->weights_only && strcmp(m->tensors[i].set, "model") == 0;
    }
    snprintf(out->data_fingerprint, sizeof out->data_fingerprint, "%s", m->data_fingerprint);
    snprintf(out->version, sizeof out->version, "%.63s", m->version);
    out->recipe_text = m->recipe;
    m->recipe = NULL;
}

status checkpoint_verify_folder(struct comm *world, const char *folder, struct checkpoint_info *out)
{
    *out = (struct checkpoint_info){0};
    char exists = file_is_folder(folder);
    TRY(comm_broadcast(world, &exists, 1, 0));
    REQUIRE(exists, STATUS_NO_INPUT, "there is no checkpoint at %s; " CHECKPOINT_REMEDY, folder);
    struct manifest m;
    bool good = false;
    char reason[MANIFEST_REASON_BYTES];
    status result = checkpoint_verify(world, folder, &m, &good, reason);
    if (result == STATUS_OK && good) {
        checkpoint_fill_info(out, folder, &m);
    }
    manifest_destroy(&m);
    TRY(result);
    REQUIRE(good, STATUS_CHECKPOINT, "%s is damaged: %s", folder, reason);
    return STATUS_OK;
}

/* ---- inspect ---- */

static int64_t count_elements(const struct manifest *m, const char *set)
{
    int64_t elements = 0;
    for (int i = 0; i < m->tensor_count; i++) {
        if (strcmp(m->tensors[i].set, set) == 0) {
            elements += m->tensors[i].shape[0] * m->tensors[i].shape[1];
        }
    }
    return elements;
}

static json_t *shape_to_json(const struct manifest_tensor *t)
{
    return t->dimensions == 1
               ? json_pack("[I]", (json_int_t)t->shape[0])
               : json_pack("[I, I]", (json_int_t)t->shape[0], (json_int_t)t->shape[1]);
}

static json_t *folder_to_json(const char *folder, const struct manifest *m)
{
    json_t *tensors = json_array(), *files = json_array();
    for (int i = 0; i < m->tensor_count; i++) {
        const struct manifest_tensor *t = &m->tensors[i];
        json_array_append_new(tensors,
                              json_pack("{s:s, s:s, s:o, s:i}", "family", t->set, "name", t->name,
                                        "shape", shape_to_json(t), "pieces", t->shard_count));
    }
    for (int i = 0; i < m->file_count; i++) {
        const struct manifest_file *f = &m->files[i];
        json_array_append_new(files, json_pack("{s:s, s:I, s:s}", "name", f->name, "bytes",
                                               (json_int_t)f->bytes, "sha256", f->sha256));
    }
    return json_pack("{s:s, s:s, s:b, s:I, s:I, s:I, s:f, s:i, s:s, s:I, s:I, s:o, s:o}", "kind",
                     "checkpoint", "path", folder, "whole", 1, "step", (json_int_t)m->state.step,
                     "samples", (json_int_t)m->state.samples, "tokens", (json_int_t)m->state.tokens,
                     "train_seconds", m->state.train_seconds, "ranks", m->ranks, "version",
                     m->version, "parameters", (json_int_t)count_elements(m, "model"), "bytes",
                     (json_int_t)manifest_count_bytes(m), "files", files, "tensors", tensors);
}

static status print_json(const char *folder, const struct manifest *m)
{
    json_t *document = folder_to_json(folder, m);
    REQUIRE(document != NULL, STATUS_DATA,
            "the path %s is not valid UTF-8 and cannot be printed as JSON", folder);
    bool written = json_dumpf(document, stdout, JSON_INDENT(1)) == 0 && putchar('\n') != EOF;
    json_decref(document);
    return terminal_flush(written);
}

static status print_text(const char *folder, const struct manifest *m)
{
    printf("%s: checkpoint, valid (all sizes and SHA-256 digests match)\n", folder);
    char samples[TEXT_NUMBER_BYTES], tokens[TEXT_NUMBER_BYTES], seconds[TEXT_NUMBER_BYTES];
    char parameters[TEXT_NUMBER_BYTES], bytes[TEXT_NUMBER_BYTES];
    printf("  step %" PRId64 ", %s samples, %s tokens, %s of training\n", m->state.step,
           text_scale_count((double)m->state.samples, samples),
           text_scale_count((double)m->state.tokens, tokens),
           text_scale_seconds(m->state.train_seconds, seconds));
    printf("  written by %d rank%s, version %s\n", m->ranks, text_plural(m->ranks), m->version);
    printf("  %s parameters, %d tensors, %d files, %s\n",
           text_scale_count((double)count_elements(m, "model"), parameters), m->tensor_count,
           m->file_count, text_scale_bytes((double)manifest_count_bytes(m), bytes));
    for (int i = 0; i < m->tensor_count; i++) {
        const struct manifest_tensor *t = &m->tensors[i];
        printf("  %-9s %-44s [%" PRId64, t->set, t->name, t->shape[0]);
        if (t->dimensions == 2) {
            printf(", %" PRId64, t->shape[1]);
        }
        printf("] shards: %d\n", t->shard_count);
    }
    return terminal_flush(true);
}

status checkpoint_inspect(const char *folder, bool json)
{
    REQUIRE(file_is_folder(folder), STATUS_NO_INPUT,
            "there is no checkpoint at %s; " CHECKPOINT_REMEDY, folder);
    char reason[MANIFEST_REASON_BYTES];
    struct manifest m;
    bool good = checkpoint_verify_local(folder, true, &m, reason);
    status result = STATUS_OK;
    if (!good) {
        bool memory = manifest_lacks_memory(reason);
        result = RAISE_STATUS(memory ? STATUS_INTERNAL : STATUS_CHECKPOINT, "%s %s: %s", folder,
                              memory ? "cannot be verified" : "is damaged", reason);
    } else {
        result = json ? print_json(folder, &m) : print_text(folder, &m);
    }
    manifest_destroy(&m);
    return result;
}
