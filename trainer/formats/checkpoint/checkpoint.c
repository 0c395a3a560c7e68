/* Opening and closing the checkpoints of a run. save.c writes them, resolve.c finds them. */
#include "trainer/formats/checkpoint/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/deadlines.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "datasets/shard/h5file.h"
#include "trainer/formats/checkpoint/checkpoint_impl.h"
#include "trainer/formats/checkpoint/verify.h"

/* ---- open ---- */

status checkpoint_copy_text(char **out, const char *text)
{
    return memory_copy_text(out, text != NULL ? text : "", "a text of a checkpoint");
}

static status copy_options(struct checkpoint *c, const struct checkpoint_options *o)
{
    int used = snprintf(c->run_dir, sizeof c->run_dir, "%s", o->run_dir);
    REQUIRE(used > 0 && used < FILE_PATH_BYTES - 256, STATUS_USAGE,
            "run_dir: the path '%s' is empty or too long", o->run_dir);
    TRY(file_join(c->folder, c->run_dir, "checkpoints"));
    TRY(checkpoint_copy_text(&c->recipe_text, o->recipe_text));
    TRY(checkpoint_copy_text(&c->data_fingerprint, o->data_fingerprint));
    TRY(checkpoint_copy_text(&c->version, o->version != NULL ? o->version : "unknown"));
    if (o->tokenizer_dir != NULL && comm_rank(o->world) == 0) {
        TRY(checkpoint_attachments_read(o->tokenizer_dir, NULL, &c->tokenizer));
    }
    c->extra_file_name = o->extra_file_name;
    TRY(o->extra_file_text != NULL ? checkpoint_copy_text(&c->extra_file_text, o->extra_file_text)
                                   : STATUS_OK);
    c->dropout_scheme = o->dropout_scheme;
    c->keep = o->keep > 0 ? o->keep : 1;
    c->pinned_step = -1;
    c->async = o->async;
    c->world = o->world;
    c->replica_group = o->replica_group;
    return STATUS_OK;
}

/* Disables async if the HDF5 library has no internal locks: two threads must not call it then. */
static void check_thread_safety(struct checkpoint *c)
{
    hbool_t safe = 0;
    h5file_init();
    if (c->async && (H5is_library_threadsafe(&safe) < 0 || !safe)) {
        if (comm_rank(c->world) == 0) {
            log_warning("CKPT-SYNC", "this HDF5 library is not thread-safe: training waits while "
                                     "checkpoints are written");
        }
        c->async = false;
    }
}

/* Sets last_good to the newest folder that has all its files. Only rank 0 calls it. */
static status find_last_good(struct checkpoint *c)
{
    int64_t *steps = NULL;
    int count = 0;
    TRY(checkpoint_directory_list(c->folder, &steps, &count));
    status result = STATUS_OK;
    for (int i = 0; i < count && result == STATUS_OK; i++) {
        char name[CHECKPOINT_NAME_BYTES], path[FILE_PATH_BYTES];
        checkpoint_directory_step_name(steps[i], name);
        result = file_join(path, c->folder, name);
        if (result == STATUS_OK && checkpoint_has_all_files(path)) {
            snprintf(c->last_good, sizeof c->last_good, "%s", path);
            break;
        }
    }
    free(steps);
    return result;
}

static status open_folder(struct checkpoint *c)
{
    char path[FILE_PATH_BYTES];
    TRY(file_require_own_link(c->folder));
    TRY(file_make_folders(c->folder));
    TRY(file_join(path, c->run_dir, "LOCK"));
    TRY(run_lock_acquire(path, DEADLINE_RUN_LOCK_SECONDS, &c->lock));
    TRY(staged_folder_remove_leftovers(c->folder, "step-"));
    TRY(staged_folder_remove_leftovers(c->run_dir, "final"));
    return find_last_good(c);
}

status checkpoint_open(const struct checkpoint_options *options, struct checkpoint **out)
{
    *out = NULL;
    struct checkpoint *c = NULL;
    status own = ALLOCATE(c, 1, "the list of checkpoints");
    if (own == STATUS_OK) {
        own = copy_options(c, options);
    }
    if (own == STATUS_OK) {
        check_thread_safety(c);
    }
    if (own == STATUS_OK && comm_rank(options->world) == 0) {
        own = open_folder(c);
    }
    status result = comm_agree(options->world, own);
    if (result == STATUS_OK) {
        result = comm_broadcast(c->world, c->last_good, sizeof c->last_good, 0);
    }
    if (result != STATUS_OK) {
        checkpoint_close(&c);
        return result;
    }
    *out = c;
    return STATUS_OK;
}

/* ---- close ---- */

status checkpoint_close(struct checkpoint **out)
{
    struct checkpoint *c = *out;
    if (c == NULL) {
        return STATUS_OK;
    }
    checkpoint_save_abort(c);
    run_lock_release(&c->lock);
    free(c->extra_file_text);
    checkpoint_attachments_destroy(&c->tokenizer);
    free(c->recipe_text);
    free(c->data_fingerprint);
    free(c->version);
    free(c->bad);
    checkpoint_save_release(c);
    free(c);
    *out = NULL;
    return STATUS_OK;
}

/* ---- folders of the run ---- */

void checkpoint_pin_step(struct checkpoint *c, int64_t step)
{
    c->pinned_step = step;
}

status checkpoint_step_path(const struct checkpoint *c, int64_t step, char *path, size_t bytes)
{
    char name[CHECKPOINT_NAME_BYTES], full[FILE_PATH_BYTES];
    checkpoint_directory_step_name(step, name);
    TRY(file_join(full, c->folder, name));
    REQUIRE(strlen(full) < bytes, STATUS_INTERNAL, "path too long: %s", full);
    memcpy(path, full, strlen(full) + 1);
    return STATUS_OK;
}

status checkpoint_archive_newer(struct checkpoint *c, int64_t step)
{
    status own = STATUS_OK;
    if (comm_rank(c->world) == 0) {
        int moved = 0;
        char archive[CHECKPOINT_NAME_BYTES] = "";
        own = checkpoint_directory_archive_newer(c->folder, step, &moved, archive);
        if (moved > 0) {
            log_info("moved %d newer checkpoint%s to %s/%s", moved, text_plural(moved), c->folder,
                     archive);
        }
        c->last_good[0] = '\0';
        if (own == STATUS_OK) {
            own = find_last_good(c);
        }
    }
    TRY(comm_agree(c->world, own));
    return comm_broadcast(c->world, c->last_good, sizeof c->last_good, 0);
}
