/* Finds the checkpoint that a path or a run refers to: the newest valid one. Rank 0 lists the
 * folders and broadcasts the name of each candidate. All ranks verify a candidate together. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "trainer/formats/checkpoint/checkpoint_impl.h"
#include "trainer/formats/checkpoint/verify.h"

/* Candidates in the order of preference: run_dir/final (if allowed: it has no optimizer state),
 * then the steps. */
struct candidates {
    char parent[FILE_PATH_BYTES]; /* folder of the steps */
    char final[FILE_PATH_BYTES];  /* "": not a candidate */
    int64_t *steps;               /* newest first; only on rank 0 */
    int count;
    bool manifest_only; /* read the manifests; do not verify the files that they list */
};

/* Skipped candidates and their reasons, for the error if none is valid. */
struct skipped {
    int count;
    char text[STATUS_TEXT_BYTES / 2];
};

static status add_bad_step(struct checkpoint *c, int64_t step)
{
    TRY(GROW(c->bad, c->bad_count + 1, "skipped checkpoints"));
    c->bad[c->bad_count++] = step;
    return STATUS_OK;
}

/* Only a verification logs a warning, so that each damaged folder is reported once. */
static void skip_folder(struct comm *world, const struct candidates *all, struct skipped *skipped,
                        const char *folder, const char *reason)
{
    skipped->count++;
    if (comm_rank(world) == 0) {
        size_t used = strlen(skipped->text);
        const char *slash = strrchr(folder, '/');
        snprintf(skipped->text + used, sizeof skipped->text - used, "; %s: %s",
                 slash != NULL ? slash + 1 : folder, reason);
        if (!all->manifest_only) {
            log_warning("CKPT-SKIP", "%s: %s", folder, reason);
        }
    }
}

/* Verifies one candidate. The manifest must have the given step; -1 allows any step. */
static status try_folder(struct comm *world, const struct candidates *all, const char *folder,
                         int64_t step, struct skipped *skipped, struct checkpoint_info *out)
{
    char reason[MANIFEST_REASON_BYTES];
    struct manifest m;
    bool good = false;
    status result = all->manifest_only ? checkpoint_read_manifest(world, folder, &m, &good, reason)
                                       : checkpoint_verify(world, folder, &m, &good, reason);
    if (result == STATUS_OK && good && step >= 0 && m.state.step != step) {
        good = false;
        snprintf(reason, sizeof reason, "its manifest has step %" PRId64, m.state.step);
    }
    if (result == STATUS_OK && good) {
        checkpoint_fill_info(out, folder, &m);
    } else if (result == STATUS_OK) {
        skip_folder(world, all, skipped, folder, reason);
    }
    manifest_destroy(&m);
    return result;
}

/* Takes the first valid candidate. Adds damaged steps to c->bad; c may be NULL. */
static status try_candidates(struct comm *world, const struct candidates *all, struct checkpoint *c,
                             struct skipped *skipped, struct checkpoint_info *out)
{
    char folder[FILE_PATH_BYTES], name[CHECKPOINT_NAME_BYTES];
    if (all->final[0] != '\0') {
        TRY(try_folder(world, all, all->final, -1, skipped, out));
    }
    for (int i = 0; !out->found; i++) {
        int64_t step = i < all->count ? all->steps[i] : -1;
        TRY(comm_broadcast(world, &step, sizeof step, 0));
        if (step < 0) {
            break;
        }
        checkpoint_directory_step_name(step, name);
        TRY(file_join(folder, all->parent, name));
        TRY(try_folder(world, all, folder, step, skipped, out));
        if (c != NULL && !out->found) {
            TRY(comm_agree(world, add_bad_step(c, step)));
        }
    }
    return STATUS_OK;
}

/* ---- the checkpoint of a run ---- */

static status find_newest(struct checkpoint *c, struct checkpoint_info *out)
{
    struct candidates all = {0};
    struct skipped skipped = {0};
    status result = STATUS_OK;
    snprintf(all.parent, sizeof all.parent, "%s", c->folder);
    if (comm_rank(c->world) == 0) {
        result = checkpoint_directory_list(c->folder, &all.steps, &all.count);
    }
    result = comm_agree(c->world, result);
    if (result == STATUS_OK) {
        result = try_candidates(c->world, &all, c, &skipped, out);
    }
    free(all.steps);
    TRY(result);
    if (!out->found && skipped.count > 0) {
        result =
            RAISE_STATUS(STATUS_CHECKPOINT,
                         "no checkpoint in %s is valid%s; repair or move that folder, or start "
                         "from the beginning with --resume never",
                         c->folder, skipped.text);
    }
    return comm_agree(c->world, result);
}

static status find_at_path(struct checkpoint *c, const char *path, struct checkpoint_info *out)
{
    TRY(checkpoint_resolve(c->world, path, false, out));
    REQUIRE(!out->weights_only, STATUS_CHECKPOINT,
            "%s holds weights only, without the optimizer state: start a new run from it with "
            "model.init_from, or name its run folder",
            path);
    return STATUS_OK;
}

status checkpoint_find(struct checkpoint *c, const char *path, struct checkpoint_info *out)
{
    *out = (struct checkpoint_info){0};
    status result =
        path != NULL ? comm_agree(c->world, find_at_path(c, path, out)) : find_newest(c, out);
    if (result == STATUS_OK && out->found) {
        snprintf(c->last_good, sizeof c->last_good, "%s", out->folder);
    }
    if (result != STATUS_OK) {
        free(out->recipe_text);
        *out = (struct checkpoint_info){0};
    }
    return result;
}

/* ---- the checkpoint of a path ---- */

static bool has_entry(const char *folder, const char *name, char path[FILE_PATH_BYTES])
{
    if (file_join(path, folder, name) != STATUS_OK) {
        status_clear();
        return false;
    }
    return file_exists(path);
}

/* Lists the candidates at the path on rank 0. *exact: the path itself is a checkpoint folder. */
static status list_candidates(const char *path, bool final, struct candidates *all, bool *exact)
{
    char inside[FILE_PATH_BYTES];
    REQUIRE(path[0] != '\0', STATUS_NO_INPUT,
            "the path of the checkpoint is empty; " CHECKPOINT_REMEDY);
    REQUIRE(file_exists(path), STATUS_NO_INPUT, "there is no checkpoint at %s; " CHECKPOINT_REMEDY,
            path);
    REQUIRE(file_is_folder(path), STATUS_CHECKPOINT, "%s is a file; " CHECKPOINT_REMEDY, path);
    *exact = has_entry(path, MANIFEST_FILE, inside);
    if (*exact) {
        return STATUS_OK;
    }
    bool has_final = has_entry(path, "final", inside);
    snprintf(all->final, sizeof all->final, "%s", final && has_final ? inside : "");
    bool run = has_entry(path, "checkpoints", inside);
    snprintf(all->parent, sizeof all->parent, "%s", run ? inside : path);
    TRY(checkpoint_directory_list(all->parent, &all->steps, &all->count));
    REQUIRE(all->count > 0 || all->final[0] != '\0' || !has_entry(path, "config.json", inside),
            STATUS_CHECKPOINT,
            "%s is a Hugging Face model folder, not a checkpoint; convert it with `bireme import "
            "%s --output DIR` and name DIR",
            path, path);
    REQUIRE(all->count > 0 || all->final[0] != '\0', STATUS_CHECKPOINT,
            "%s is not a checkpoint (it has no %s) and contains none%s; " CHECKPOINT_REMEDY, path,
            MANIFEST_FILE,
            has_final ? " that training can resume from: final/ holds weights only" : "");
    return STATUS_OK;
}

/* Sends the result of list_candidates from rank 0 to all ranks, except the steps. */
static status broadcast_candidates(struct comm *world, status found, struct candidates *all,
                                   bool *exact, const char *path)
{
    struct {
        int32_t found, exact;
        char parent[FILE_PATH_BYTES], final[FILE_PATH_BYTES];
    } message = {.found = (int32_t)found, .exact = *exact};
    memcpy(message.parent, all->parent, sizeof message.parent);
    memcpy(message.final, all->final, sizeof message.final);
    TRY(comm_broadcast(world, &message, sizeof message, 0));
    memcpy(all->parent, message.parent, sizeof message.parent);
    memcpy(all->final, message.final, sizeof message.final);
    *exact = message.exact != 0;
    REQUIRE(message.found == STATUS_OK, (status)message.found, "rank 0 found no checkpoint at %s",
            path);
    return STATUS_OK;
}

static status verify_candidates(struct comm *world, const char *path, struct candidates *all,
                                bool exact, struct checkpoint_info *out)
{
    struct skipped skipped = {0};
    if (exact && !all->manifest_only) {
        return checkpoint_verify_folder(world, path, out);
    }
    if (exact) {
        snprintf(all->final, sizeof all->final, "%s", path);
    }
    TRY(try_candidates(world, all, NULL, &skipped, out));
    REQUIRE(out->found, STATUS_CHECKPOINT, "no checkpoint in %s is valid%s", path, skipped.text);
    return STATUS_OK;
}

static status resolve_path(struct comm *world, const char *path, bool final, bool manifest_only,
                           struct checkpoint_info *out)
{
    struct candidates all = {.manifest_only = manifest_only};
    bool exact = false;
    status result = STATUS_OK;
    *out = (struct checkpoint_info){0};
    if (comm_rank(world) == 0) {
        result = list_candidates(path, final, &all, &exact);
    }
    result = broadcast_candidates(world, result, &all, &exact, path);
    if (result == STATUS_OK) {
        result = verify_candidates(world, path, &all, exact, out);
    }
    free(all.steps);
    return result == STATUS_INTERNAL ? comm_abort_on_error(world, result) : result;
}

status checkpoint_resolve(struct comm *world, const char *path, bool final,
                          struct checkpoint_info *out)
{
    return resolve_path(world, path, final, false, out);
}

status checkpoint_find_recipe(struct comm *world, const char *path, bool final,
                              struct checkpoint_info *out)
{
    return resolve_path(world, path, final, true, out);
}
