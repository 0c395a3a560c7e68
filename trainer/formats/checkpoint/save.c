/* Saving: a snapshot, a writer thread, and a publication that all ranks agree on.
 *
 * The order guarantees that a folder step-* is complete whenever the job is killed:
 *
 *   1. write, sync and digest the files     4. rename the temporary folder
 *   2. write and sync the manifest          5. sync the parent folder
 *   3. sync the temporary folder
 *
 * An incomplete folder is named tmp-* or trash-*. A rank of a killed job may still be writing. The
 * name of a temporary folder contains a nonce, so this rank cannot write into the folder of the
 * next job. */
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/thread/thread.h"
#include "trainer/formats/checkpoint/checkpoint_impl.h"
#include "trainer/formats/checkpoint/verify.h"

static const double space_margin = 1.05;
static const double set_overhead_bytes = 65536.0; /* HDF5 metadata and manifest, per tensor set */

/* ---- end of a save ---- */

static void wait_for_writer(struct checkpoint *c)
{
    if (c->threaded) {
        pthread_join(c->thread, NULL);
        c->threaded = false;
    }
}

/* Resets the state of the save. If `remove`, rank 0 also deletes the folder that was not
 * published. */
static void end_save(struct checkpoint *c, bool remove)
{
    if (remove && c->save.folder[0] != '\0' && comm_rank(c->world) == 0) {
        struct status_note first;
        status_take(&first);
        staged_folder_warn(file_remove_tree(c->save.folder));
        status_restore(&first);
    }
    checkpoint_shards_destroy(&c->save);
    manifest_destroy(&c->save.written);
    memset(&c->save, 0, sizeof c->save);
    c->active = false;
    atomic_store(&c->done, 0);
    c->note.code = STATUS_OK;
}

/* Ends a save that failed on all ranks. They wait until rank 0 has removed the folder: the first
 * rank that returns ends the job. After a loss of communication no rank waits. */
static status abandon_save(struct checkpoint *c, status result)
{
    struct status_note first;
    end_save(c, true);
    if (result != STATUS_LOST && result != STATUS_HANG) {
        status_take(&first);
        (void)comm_barrier(c->world);
        status_clear();
        (void)status_restore(&first);
    }
    return result;
}

void checkpoint_save_abort(struct checkpoint *c)
{
    wait_for_writer(c);
    if (c->active) {
        end_save(c, true);
    }
}

/* Appends the name of the last good checkpoint to the pending error. The folder may have been
 * removed during the run. */
static void append_last_good(const struct checkpoint *c)
{
    struct status_note note;
    status_take(&note);
    if (note.code == STATUS_OK) {
        return;
    }
    size_t used = strlen(note.text);
    if (c->last_good[0] != '\0') {
        bool present = checkpoint_has_all_files(c->last_good);
        status_clear();
        snprintf(note.text + used, sizeof note.text - used,
                 "; the last good checkpoint %s: %.1024s", present ? "is unchanged" : "was removed",
                 c->last_good);
    } else {
        snprintf(note.text + used, sizeof note.text - used, "; there is no earlier checkpoint");
    }
    status_restore(&note);
}

/* Calls comm_agree and adds the name of the last good checkpoint to an error. */
static status agree_on_status(struct checkpoint *c, status own)
{
    if (own != STATUS_OK) {
        append_last_good(c);
    }
    return comm_agree(c->world, own);
}

/* ---- snapshot ---- */

void checkpoint_save_release(struct checkpoint *c)
{
    if (c->device != NULL) {
        device_host_release(c->device, c->snapshot, (size_t)c->snapshot_bytes);
    } else {
        free(c->snapshot);
    }
    c->snapshot = NULL;
    c->device = NULL;
    c->snapshot_bytes = 0;
}

static status grow_snapshot(struct checkpoint *c, struct device *device, int64_t snapshot_bytes)
{
    if (snapshot_bytes <= c->snapshot_bytes) {
        return STATUS_OK;
    }
    checkpoint_save_release(c);
    size_t bytes = (size_t)snapshot_bytes;
    if (device != NULL) {
        TRY(device_host_allocate(device, bytes, "a checkpoint's snapshot", (void **)&c->snapshot));
        c->device = device;
        c->snapshot_bytes = snapshot_bytes;
        return STATUS_OK;
    }
    TRY(ALLOCATE(c->snapshot, bytes,
                 "a checkpoint's snapshot (checkpoint.async: false needs none)"));
    c->snapshot_bytes = snapshot_bytes;
    /* Touch all pages now, so that no save has page faults. An allocation of zeros touches none. */
    memset(c->snapshot, 1, bytes);
    return STATUS_OK;
}

/* Sums the bytes of a checkpoint over the ranks. The margin covers metadata of the file system. */
static status count_needed_bytes(struct checkpoint *c, int64_t own_bytes, int count, double *bytes)
{
    *bytes = ((double)own_bytes + (double)count * set_overhead_bytes) * space_margin;
    return comm_sum_doubles(c->world, bytes, 1);
}

/* Warns if the disk is too small for the next checkpoint. The user can free space before it. */
static status warn_full_disk(struct checkpoint *c, int64_t own_bytes, int count)
{
    double bytes = 0;
    TRY(count_needed_bytes(c, own_bytes, count, &bytes));
    if (comm_rank(c->world) == 0 && staged_folder_check_space(c->folder, bytes) != STATUS_OK) {
        struct status_note note;
        status_take(&note);
        log_warning("CKPT-SPACE", "the next checkpoint does not fit: %s", note.text);
    }
    return STATUS_OK;
}

status checkpoint_reserve(struct checkpoint *c, const struct checkpoint_tensor_set *sets, int count)
{
    int64_t bytes = 0;
    status result = checkpoint_memory_bytes(sets, count, comm_size(c->replica_group),
                                            comm_rank(c->replica_group), &bytes);
    if (result == STATUS_OK && c->async) {
        result = grow_snapshot(c, sets[0].device, bytes);
    }
    TRY(comm_agree(c->world, result));
    return warn_full_disk(c, bytes, count);
}

/* ---- start of a save ---- */

static status prepare_save(struct checkpoint *c, const struct checkpoint_state *state,
                           const struct checkpoint_tensor_set *sets, int count, bool snapshot)
{
    c->active = true;
    c->save.rank = comm_rank(c->world);
    c->save.ranks = comm_size(c->world);
    c->save.state = *state;
    c->save.tokenizer = c->tokenizer.count > 0 ? &c->tokenizer : NULL;
    c->save.extra_file_name = c->extra_file_name;
    c->save.extra_file_text = c->save.rank == 0 ? c->extra_file_text : NULL;
    TRY(checkpoint_shards_create(&c->save, sets, count, comm_size(c->replica_group),
                                 comm_rank(c->replica_group)));
    return snapshot ? grow_snapshot(c, sets[0].device, c->save.bytes) : STATUS_OK;
}

static status create_temporary(struct checkpoint *c, const char *parent, const char *name,
                               double bytes)
{
    struct checkpoint_save_state *save = &c->save;
    TRY(run_lock_check(c->lock));
    snprintf(save->parent, sizeof save->parent, "%s", parent);
    snprintf(save->name, sizeof save->name, "%.31s", name);
    staged_folder_temporary_name(name, save->temporary);
    TRY(staged_folder_check_space(parent, bytes));
    TRY(file_join(save->folder, parent, save->temporary));
    return staged_folder_make(save->folder);
}

/* Checks the free space and creates the temporary folder on rank 0; sends its path to all ranks. */
static status begin_folder(struct checkpoint *c, const char *parent, const char *name)
{
    double bytes = 0;
    TRY(count_needed_bytes(c, c->save.bytes, c->save.set_count, &bytes));
    status own = STATUS_OK;
    if (c->save.rank == 0) {
        own = create_temporary(c, parent, name, bytes);
    }
    TRY(agree_on_status(c, own));
    return comm_broadcast(c->world, c->save.folder, sizeof c->save.folder, 0);
}

static void *run_writer(void *argument)
{
    struct checkpoint *c = argument;
    if (checkpoint_write_files(&c->save) != STATUS_OK) {
        status_take(&c->note);
    }
    atomic_store(&c->done, 1);
    return NULL;
}

/* Writes in this thread if `async` is false or no thread can be started. */
static void start_writer(struct checkpoint *c, bool async)
{
    c->threaded = async && thread_start(&c->thread, run_writer, c) == 0;
    if (!c->threaded) {
        run_writer(c);
    }
}

static status start_save(struct checkpoint *c, const struct checkpoint_state *state,
                         const struct checkpoint_tensor_set *sets, int count, const char *parent,
                         const char *name, bool async)
{
    bool snapshot = async || sets[0].device != NULL; /* files are written from host memory */
    status result = agree_on_status(c, prepare_save(c, state, sets, count, snapshot));
    if (result == STATUS_OK) {
        result = begin_folder(c, parent, name);
    }
    if (result == STATUS_OK && snapshot) {
        result = agree_on_status(c, checkpoint_shards_snapshot(&c->save, sets, c->snapshot));
    }
    if (result != STATUS_OK) {
        return abandon_save(c, result);
    }
    start_writer(c, async);
    return STATUS_OK;
}

status checkpoint_save(struct checkpoint *c, const struct checkpoint_state *state,
                       const struct checkpoint_tensor_set *sets, int count, double *stall_seconds)
{
    double start = clock_seconds();
    char name[CHECKPOINT_NAME_BYTES];
    int64_t published;
    TRY(checkpoint_publish(c, &published));
    checkpoint_directory_step_name(state->step, name);
    TRY(start_save(c, state, sets, count, c->folder, name, c->async));
    if (stall_seconds != NULL) {
        *stall_seconds = clock_seconds() - start;
    }
    return STATUS_OK;
}

int checkpoint_is_written(const struct checkpoint *c)
{
    return c->active ? atomic_load(&c->done) : 0;
}

/* ---- publication ---- */

/* Merges the manifests of all ranks on rank 0, one rank after the other. */
static status gather_manifests(struct checkpoint *c, struct manifest *whole)
{
    char *own_text = NULL;
    status result = agree_on_status(c, manifest_rank_to_text(&c->save.written, &own_text));
    for (int r = 0; r < c->save.ranks && result == STATUS_OK; r++) {
        int64_t bytes = own_text != NULL ? (int64_t)strlen(own_text) + 1 : 0;
        TRY_GOTO(result, done, comm_broadcast(c->world, &bytes, sizeof bytes, r));
        char *text = own_text;
        result = agree_on_status(
            c, r == c->save.rank ? STATUS_OK : ALLOCATE(text, bytes, "the manifest of a rank"));
        if (result == STATUS_OK) {
            result = comm_broadcast(c->world, text, (size_t)bytes, r);
        }
        status merged = STATUS_OK;
        if (result == STATUS_OK && c->save.rank == 0) {
            merged = manifest_merge_rank(whole, text);
        }
        if (text != own_text) {
            free(text);
        }
        if (result == STATUS_OK) {
            result = agree_on_status(c, merged);
        }
    }
done:
    free(own_text);
    return result;
}

/* Writes the manifest and renames the folder. Only rank 0 calls it. */
static status publish_folder(struct checkpoint *c, struct manifest *whole)
{
    whole->state = c->save.state;
    whole->ranks = c->save.ranks;
    whole->dropout_scheme = c->dropout_scheme;
    TRY(checkpoint_copy_text(&whole->version, c->version));
    TRY(checkpoint_copy_text(&whole->recipe, c->recipe_text));
    TRY(checkpoint_copy_text(&whole->data_fingerprint, c->data_fingerprint));
    TRY(checkpoint_write_manifest(c->save.folder, whole));
    return staged_folder_publish(c->save.parent, c->save.temporary, c->save.name);
}

/* Waits for the writer of this rank and returns its result. */
static status get_writer_result(struct checkpoint *c)
{
    wait_for_writer(c);
    TRY(status_restore(&c->note));
    REQUIRE(atomic_load(&c->done) != 0, STATUS_WRITE,
            "the thread that writes the checkpoint %s ended before its work was done",
            c->save.name);
    return STATUS_OK;
}

/* Waits for the writers of all ranks and publishes the folder. Always ends the save. */
static status finish_save(struct checkpoint *c)
{
    struct manifest whole = {0};
    status result = agree_on_status(c, get_writer_result(c));
    if (result == STATUS_OK) {
        result = gather_manifests(c, &whole);
    }
    if (result == STATUS_OK) {
        result = agree_on_status(c, c->save.rank == 0 ? publish_folder(c, &whole) : STATUS_OK);
    }
    manifest_destroy(&whole);
    if (result != STATUS_OK) {
        return abandon_save(c, result);
    }
    end_save(c, false);
    return STATUS_OK;
}

/* Removes a step from the list of damaged steps, because it has been written again. */
static void forget_bad(struct checkpoint *c, int64_t step)
{
    for (int i = 0; i < c->bad_count; i++) {
        if (c->bad[i] == step) {
            c->bad[i--] = c->bad[--c->bad_count];
        }
    }
}

status checkpoint_publish(struct checkpoint *c, int64_t *published_step)
{
    *published_step = -1;
    if (!c->active) {
        return STATUS_OK;
    }
    int64_t step = c->save.state.step;
    TRY(finish_save(c));
    char name[CHECKPOINT_NAME_BYTES];
    checkpoint_directory_step_name(step, name);
    TRY(file_join(c->last_good, c->folder, name));
    forget_bad(c, step);
    if (comm_rank(c->world) == 0) {
        checkpoint_directory_retain(c->folder, step, c->keep, c->pinned_step, c->bad, c->bad_count);
    }
    *published_step = step;
    return STATUS_OK;
}

status checkpoint_write_final(struct checkpoint *c, const char *folder,
                              const struct checkpoint_state *state,
                              const struct checkpoint_tensor_set *sets, int count)
{
    int64_t published;
    TRY(checkpoint_publish(c, &published));
    char parent_text[FILE_PATH_BYTES], name_text[FILE_PATH_BYTES];
    snprintf(parent_text, sizeof parent_text, "%s", folder);
    snprintf(name_text, sizeof name_text, "%s", folder);
    TRY(start_save(c, state, sets, count, dirname(parent_text), basename(name_text), false));
    return finish_save(c);
}
