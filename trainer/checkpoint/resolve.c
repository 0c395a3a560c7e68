/* Which checkpoint a path or a run means: the newest that is whole. Rank 0 looks at the folders and tells
 * the others each candidate's name; all verify it together. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "trainer/checkpoint/checkpoint_impl.h"

/* What may be taken, best first: run_dir/final where `final` (it holds no optimizer), then steps. */
struct candidates {
    char parent[FILE_PATH_BYTES]; /* of the steps */
    char final[FILE_PATH_BYTES];  /* "": not among them */
    int64_t *steps;               /* newest first; rank 0's */
    int count;
};

/* What was skipped, for the error where nothing is left. */
struct skipped {
    int count;
    char text[STATUS_TEXT_BYTES / 2];
};

static status remember_bad(struct checkpoint *c, int64_t step)
{
    int64_t *more = realloc(c->bad, (size_t)(c->bad_count + 1) * sizeof *more);
    REQUIRE(more != NULL, STATUS_INTERNAL, "out of memory");
    c->bad = more;
    c->bad[c->bad_count++] = step;
    return STATUS_OK;
}

static void skip(struct comm *world, struct skipped *skipped, const char *folder,
                 const char *reason)
{
    skipped->count++;
    if (comm_rank(world) == 0) {
        size_t used = strlen(skipped->text);
        const char *slash = strrchr(folder, '/');
        snprintf(skipped->text + used, sizeof skipped->text - used, "; %s: %s",
                 slash != NULL ? slash + 1 : folder, reason);
        log_warning("CKPT-SKIP", "%s: %s", folder, reason);
    }
}

/* One candidate; step -1: any. */
static status try_folder(struct comm *world, const char *folder, int64_t step,
                         struct skipped *skipped, struct checkpoint_found *out)
{
    char reason[MANIFEST_REASON_BYTES];
    struct manifest m;
    bool good = false;
    status result = checkpoint_verify(world, folder, &m, &good, reason);
    if (result == STATUS_OK && good && step >= 0 && m.state.step != step) {
        good = false;
        snprintf(reason, sizeof reason, "its manifest is that of step %lld",
                 (long long)m.state.step);
    }
    if (result == STATUS_OK && good) {
        checkpoint_fill_found(out, folder, &m);
    } else if (result == STATUS_OK) {
        skip(world, skipped, folder, reason);
    }
    manifest_destroy(&m);
    return result;
}

/* The newest whole one; c (or NULL) remembers those that are not. */
static status try_all(struct comm *world, const struct candidates *all, struct checkpoint *c,
                      struct skipped *skipped, struct checkpoint_found *out)
{
    char folder[FILE_PATH_BYTES], name[CHECKPOINT_NAME_BYTES];
    if (all->final[0] != '\0') {
        TRY(try_folder(world, all->final, -1, skipped, out));
    }
    for (int i = 0; !out->found; i++) {
        int64_t step = i < all->count ? all->steps[i] : -1;
        TRY(comm_broadcast(world, &step, sizeof step, 0));
        if (step < 0) {
            break;
        }
        checkpoint_folder_name(step, name);
        TRY(file_join(folder, all->parent, name));
        TRY(try_folder(world, folder, step, skipped, out));
        if (c != NULL && !out->found) {
            TRY(comm_agree(world, remember_bad(c, step)));
        }
    }
    return STATUS_OK;
}

/* ---- of a run ---- */

static status find_newest(struct checkpoint *c, struct checkpoint_found *out)
{
    struct candidates all = {0};
    struct skipped skipped = {0};
    status result = STATUS_OK;
    snprintf(all.parent, sizeof all.parent, "%s", c->folder);
    if (comm_rank(c->world) == 0) {
        result = checkpoint_folder_list(c->folder, &all.steps, &all.count);
    }
    result = comm_agree(c->world, result);
    if (result == STATUS_OK) {
        result = try_all(c->world, &all, c, &skipped, out);
    }
    free(all.steps);
    TRY(result);
    if (!out->found && skipped.count > 0) {
        result =
            status_raise(STATUS_CHECKPOINT, __FILE__, __LINE__,
                         "no checkpoint in %s is usable%s; repair or move that folder away, or "
                         "start afresh with --resume never",
                         c->folder, skipped.text);
    }
    return comm_agree(c->world, result);
}

static status find_at(struct checkpoint *c, const char *path, struct checkpoint_found *out)
{
    TRY(checkpoint_choose(c->world, path, false, out));
    REQUIRE(!out->weights_alone, STATUS_CHECKPOINT,
            "%s holds weights alone, without the optimizer's moments: begin a new run from it with "
            "model.init_from, or name its run folder",
            path);
    return STATUS_OK;
}

status checkpoint_find(struct checkpoint *c, const char *path, struct checkpoint_found *out)
{
    *out = (struct checkpoint_found){0};
    status result =
        path != NULL ? comm_agree(c->world, find_at(c, path, out)) : find_newest(c, out);
    if (result == STATUS_OK && out->found) {
        snprintf(c->last_good, sizeof c->last_good, "%s", out->folder);
    }
    if (result != STATUS_OK) {
        free(out->recipe_text);
        *out = (struct checkpoint_found){0};
    }
    return result;
}

/* ---- of a path ---- */

static bool holds(const char *folder, const char *name, char path[FILE_PATH_BYTES])
{
    if (file_join(path, folder, name) != STATUS_OK) {
        status_clear();
        return false;
    }
    return file_exists(path);
}

/* What rank 0 sees at the path: a checkpoint itself (*exact), a run folder, or a folder of steps. */
static status look_at(const char *path, bool final, struct candidates *all, bool *exact)
{
    char inside[FILE_PATH_BYTES];
    REQUIRE(file_exists(path), STATUS_NO_INPUT, "there is no checkpoint at %s", path);
    REQUIRE(file_is_folder(path), STATUS_CHECKPOINT,
            "%s is a file; name a run folder, its checkpoints folder or one of these", path);
    *exact = holds(path, MANIFEST_FILE, inside);
    if (*exact) {
        return STATUS_OK;
    }
    bool has_final = holds(path, "final", inside);
    snprintf(all->final, sizeof all->final, "%s", final && has_final ? inside : "");
    bool run = holds(path, "checkpoints", inside);
    snprintf(all->parent, sizeof all->parent, "%s", run ? inside : path);
    TRY(checkpoint_folder_list(all->parent, &all->steps, &all->count));
    REQUIRE(all->count > 0 || all->final[0] != '\0', STATUS_CHECKPOINT,
            "%s is no checkpoint (it has no %s) and holds none%s; name a run folder, its "
            "checkpoints folder or one of these",
            path, MANIFEST_FILE,
            has_final ? " that training could go on from: final/ holds weights alone" : "");
    return STATUS_OK;
}

/* Rank 0's view to all ranks. */
static status share_view(struct comm *world, status seen, struct candidates *all, bool *exact,
                         const char *path)
{
    struct {
        int32_t seen, exact;
        char parent[FILE_PATH_BYTES], final[FILE_PATH_BYTES];
    } view = {.seen = (int32_t)seen, .exact = *exact};
    memcpy(view.parent, all->parent, sizeof view.parent);
    memcpy(view.final, all->final, sizeof view.final);
    TRY(comm_broadcast(world, &view, sizeof view, 0));
    memcpy(all->parent, view.parent, sizeof view.parent);
    memcpy(all->final, view.final, sizeof view.final);
    *exact = view.exact != 0;
    REQUIRE(view.seen == STATUS_OK, (status)view.seen, "rank 0 found no checkpoint at %s", path);
    return STATUS_OK;
}

static status choose(struct comm *world, const char *path, struct candidates *all, bool exact,
                     struct checkpoint_found *out)
{
    struct skipped skipped = {0};
    if (exact) {
        return checkpoint_examine(world, path, out);
    }
    TRY(try_all(world, all, NULL, &skipped, out));
    REQUIRE(out->found, STATUS_CHECKPOINT, "no checkpoint in %s is whole%s", path, skipped.text);
    return STATUS_OK;
}

status checkpoint_choose(struct comm *world, const char *path, bool final,
                         struct checkpoint_found *out)
{
    struct candidates all = {0};
    bool exact = false;
    status result = STATUS_OK;
    *out = (struct checkpoint_found){0};
    if (comm_rank(world) == 0) {
        result = look_at(path, final, &all, &exact);
    }
    result = share_view(world, result, &all, &exact, path);
    if (result == STATUS_OK) {
        result = choose(world, path, &all, exact, out);
    }
    free(all.steps);
    return result;
}
