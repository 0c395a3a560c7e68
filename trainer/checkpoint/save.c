/* Saving: a snapshot, a thread that writes, and a publication that all ranks agree on.
 *
 * The order is the promise: files are synced and digested, then the manifest, then the temporary
 * folder, then the rename, then the parent. Whatever instant the job is killed at, a folder named
 * step-* is whole, and one that is not is named tmp-* or trash-*. Every temporary folder has a name of
 * its own (a nonce), so that a rank of a killed job that still writes cannot meet those of the next. */
#include "trainer/checkpoint/checkpoint.h"

#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/thread.h"
#include "datasets/shard/h5file.h"
#include "trainer/checkpoint/checkpoint_impl.h"

static const double lock_wait_seconds = 10.0;
static const double space_margin = 1.05;
static const double family_overhead_bytes = 65536.0; /* HDF5's own, and the manifest's share */

/* ---- open and close ---- */

static status copy_text(char **out, const char *text)
{
    *out = strdup(text != NULL ? text : "");
    REQUIRE(*out != NULL, STATUS_INTERNAL, "out of memory");
    return STATUS_OK;
}

static status copy_options(struct checkpoint *c, const struct checkpoint_options *o)
{
    int used = snprintf(c->run_dir, sizeof c->run_dir, "%s", o->run_dir);
    REQUIRE(used > 0 && used < FILE_PATH_BYTES - 256, STATUS_USAGE, "unusable run_dir '%s'",
            o->run_dir);
    TRY(file_join(c->folder, c->run_dir, "checkpoints"));
    TRY(copy_text(&c->recipe_text, o->recipe_text));
    TRY(copy_text(&c->data_fingerprint, o->data_fingerprint));
    TRY(copy_text(&c->version, o->version != NULL ? o->version : "unknown"));
    if (o->tokenizer_dir != NULL && comm_rank(o->world) == 0) {
        TRY(checkpoint_files_read(o->tokenizer_dir, NULL, &c->tokenizer));
    }
    c->beside_name = o->beside_name;
    TRY(o->beside_text != NULL ? copy_text(&c->beside_text, o->beside_text) : STATUS_OK);
    c->keep = o->keep > 0 ? o->keep : 1;
    c->kept_besides = -1;
    c->async = o->async;
    c->world = o->world;
    c->replicas = o->replicas;
    return STATUS_OK;
}

/* A library without locks of its own must not be called from two threads. */
static void check_threads(struct checkpoint *c)
{
    hbool_t safe = 0;
    h5file_start();
    if (c->async && (H5is_library_threadsafe(&safe) < 0 || !safe)) {
        if (comm_rank(c->world) == 0) {
            log_warning("CKPT-SYNC", "this HDF5 library is not thread-safe: checkpoints are "
                                     "written while training waits");
        }
        c->async = false;
    }
}

/* Rank 0: the newest folder that has all its files is the one that an error may name as good. */
static status note_last_good(struct checkpoint *c)
{
    int64_t *steps = NULL;
    int count = 0;
    TRY(checkpoint_folder_list(c->folder, &steps, &count));
    status result = STATUS_OK;
    for (int i = 0; i < count && result == STATUS_OK; i++) {
        char name[CHECKPOINT_NAME_BYTES], path[FILE_PATH_BYTES];
        checkpoint_folder_name(steps[i], name);
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
    TRY(file_make_folders(c->folder));
    TRY(file_join(path, c->run_dir, "LOCK"));
    TRY(run_lock_take(path, lock_wait_seconds, &c->lock));
    TRY(checkpoint_folder_clean(c->folder, "step-"));
    TRY(checkpoint_folder_clean(c->run_dir, "final"));
    return note_last_good(c);
}

status checkpoint_open(const struct checkpoint_options *options, struct checkpoint **out)
{
    *out = NULL;
    status mine = STATUS_OK;
    struct checkpoint *c = calloc(1, sizeof *c);
    if (c == NULL) {
        mine = status_raise(STATUS_INTERNAL, __FILE__, __LINE__, "out of memory");
    } else {
        mine = copy_options(c, options);
    }
    if (mine == STATUS_OK) {
        check_threads(c);
    }
    if (mine == STATUS_OK && comm_rank(options->world) == 0) {
        mine = open_folder(c);
    }
    status result = comm_agree(options->world, mine);
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

/* ---- the job ---- */

static void wait_for_writer(struct checkpoint *c)
{
    if (c->threaded) {
        pthread_join(c->thread, NULL);
        c->threaded = false;
    }
}

/* Forget the job; rank 0 also removes what it wrote and did not publish. */
static void end_job(struct checkpoint *c, bool remove)
{
    if (remove && c->job.folder[0] != '\0' && comm_rank(c->world) == 0) {
        struct status_note first;
        status_take(&first);
        if (file_remove_tree(c->job.folder) != STATUS_OK) {
            log_warning("CKPT-CLEAN", "%s", status_pending()->text);
            status_clear();
        }
        status_restore(&first);
    }
    checkpoint_pieces_destroy(&c->job);
    manifest_destroy(&c->job.part);
    memset(&c->job, 0, sizeof c->job);
    c->active = false;
    atomic_store(&c->done, 0);
    c->note.code = STATUS_OK;
}

static void release_snapshot(struct checkpoint *c)
{
    if (c->device != NULL) {
        device_host_release(c->device, c->snapshot, (size_t)c->snapshot_elements * sizeof(float));
    } else {
        free(c->snapshot);
    }
    c->snapshot = NULL;
    c->device = NULL;
    c->snapshot_elements = 0;
}

status checkpoint_close(struct checkpoint **out)
{
    struct checkpoint *c = *out;
    if (c == NULL) {
        return STATUS_OK;
    }
    wait_for_writer(c);
    if (c->active) {
        end_job(c, true);
    }
    run_lock_release(&c->lock);
    free(c->beside_text);
    checkpoint_files_destroy(&c->tokenizer);
    free(c->recipe_text);
    free(c->data_fingerprint);
    free(c->version);
    free(c->bad);
    release_snapshot(c);
    free(c);
    *out = NULL;
    return STATUS_OK;
}

/* The pending error also says what is still there. */
static void name_last_good(const struct checkpoint *c)
{
    struct status_note note;
    status_take(&note);
    if (note.code == STATUS_OK) {
        return;
    }
    size_t used = strlen(note.text);
    if (c->last_good[0] != '\0') {
        snprintf(note.text + used, sizeof note.text - used,
                 "; the last good checkpoint is untouched: %.1024s", c->last_good);
    } else {
        snprintf(note.text + used, sizeof note.text - used, "; there is no earlier checkpoint");
    }
    status_restore(&note);
}

static status agree(struct checkpoint *c, status mine)
{
    if (mine != STATUS_OK) {
        name_last_good(c);
    }
    return comm_agree(c->world, mine);
}

static status grow_snapshot(struct checkpoint *c, struct device *device, int64_t elements)
{
    if (elements <= c->snapshot_elements) {
        return STATUS_OK;
    }
    release_snapshot(c);
    if (device != NULL) {
        TRY(device_host_allocate(device, (size_t)elements * sizeof(float),
                                 "a checkpoint's snapshot", (void **)&c->snapshot));
        c->device = device;
        c->snapshot_elements = elements;
        return STATUS_OK;
    }
    c->snapshot = malloc((size_t)elements * sizeof(float));
    c->snapshot_elements = c->snapshot != NULL ? elements : 0;
    REQUIRE(c->snapshot != NULL, STATUS_INTERNAL,
            "out of memory: %lld bytes for a checkpoint's snapshot; set checkpoint.async to false",
            (long long)elements * 4);
    /* So that no save meets new pages. Not 0: compilers make calloc of that, which touches nothing. */
    memset(c->snapshot, 1, (size_t)elements * sizeof(float));
    return STATUS_OK;
}

status checkpoint_reserve(struct checkpoint *c, const struct checkpoint_family *families, int count)
{
    if (!c->async) {
        return STATUS_OK;
    }
    int64_t bytes =
        checkpoint_memory_bytes(families, count, comm_size(c->replicas), comm_rank(c->replicas));
    return comm_agree(c->world,
                      grow_snapshot(c, families[0].device, bytes / (int64_t)sizeof(float)));
}

static status prepare(struct checkpoint *c, const struct checkpoint_state *state,
                      const struct checkpoint_family *families, int count, bool snapshot)
{
    c->active = true;
    c->job.rank = comm_rank(c->world);
    c->job.ranks = comm_size(c->world);
    c->job.state = *state;
    c->job.tokenizer = c->tokenizer.count > 0 ? &c->tokenizer : NULL;
    c->job.beside_name = c->beside_name;
    c->job.beside_text = c->job.rank == 0 ? c->beside_text : NULL;
    TRY(checkpoint_pieces_create(&c->job, families, count, comm_size(c->replicas),
                                 comm_rank(c->replicas)));
    return snapshot ? grow_snapshot(c, families[0].device, c->job.elements) : STATUS_OK;
}

void checkpoint_temporary_name(const char *name, char out[CHECKPOINT_NAME_BYTES])
{
    unsigned long nonce =
        (unsigned long)(clock_epoch_seconds() * 1e6) * 31ul + (unsigned long)getpid();
    snprintf(out, CHECKPOINT_NAME_BYTES, "tmp-%.31s.%08lx", name, nonce & 0xfffffffful);
}

static status make_temporary(struct checkpoint *c, const char *parent, const char *name,
                             double bytes)
{
    struct checkpoint_job *job = &c->job;
    snprintf(job->parent, sizeof job->parent, "%s", parent);
    snprintf(job->name, sizeof job->name, "%.31s", name);
    checkpoint_temporary_name(name, job->temporary);
    TRY(checkpoint_folder_space(parent, bytes));
    TRY(file_join(job->folder, parent, job->temporary));
    return file_make_folders(job->folder);
}

/* All ranks: is there room, and where to write. */
static status begin(struct checkpoint *c, const char *parent, const char *name)
{
    double bytes = (double)c->job.elements * 4.0 + (double)c->job.families * family_overhead_bytes;
    TRY(comm_sum_doubles(c->world, &bytes, 1));
    status mine = STATUS_OK;
    if (c->job.rank == 0) {
        mine = make_temporary(c, parent, name, bytes * space_margin);
    }
    TRY(agree(c, mine));
    return comm_broadcast(c->world, c->job.folder, sizeof c->job.folder, 0);
}

static void *write_behind(void *argument)
{
    struct checkpoint *c = argument;
    if (checkpoint_write_files(&c->job) != STATUS_OK) {
        status_take(&c->note);
    }
    atomic_store(&c->done, 1);
    return NULL;
}

/* Where no thread is to be had, the main one writes. */
static void start_writer(struct checkpoint *c, bool behind)
{
    c->threaded = behind && thread_start(&c->thread, write_behind, c) == 0;
    if (!c->threaded) {
        write_behind(c);
    }
}

static status start_save(struct checkpoint *c, const struct checkpoint_state *state,
                         const struct checkpoint_family *families, int count, const char *parent,
                         const char *name, bool behind)
{
    bool snapshot = behind || families[0].device != NULL; /* files are written from the host */
    status result = agree(c, prepare(c, state, families, count, snapshot));
    if (result == STATUS_OK) {
        result = begin(c, parent, name);
    }
    if (result == STATUS_OK && snapshot) {
        result = agree(c, checkpoint_pieces_snapshot(&c->job, families, c->snapshot));
    }
    if (result != STATUS_OK) {
        end_job(c, true);
        return result;
    }
    start_writer(c, behind);
    return STATUS_OK;
}

status checkpoint_save(struct checkpoint *c, const struct checkpoint_state *state,
                       const struct checkpoint_family *families, int count, double *stall_seconds)
{
    double start = clock_seconds();
    char name[CHECKPOINT_NAME_BYTES];
    int64_t published;
    TRY(checkpoint_publish(c, &published));
    checkpoint_folder_name(state->step, name);
    TRY(start_save(c, state, families, count, c->folder, name, c->async));
    if (stall_seconds != NULL) {
        *stall_seconds = clock_seconds() - start;
    }
    return STATUS_OK;
}

int checkpoint_written(const struct checkpoint *c)
{
    return c->active ? atomic_load(&c->done) : 0;
}

/* ---- publication ---- */

/* One rank's part, rank after rank, to rank 0. */
static status gather_parts(struct checkpoint *c, struct manifest *whole)
{
    char *mine = NULL;
    status result = agree(c, manifest_part_text(&c->job.part, &mine));
    for (int r = 0; r < c->job.ranks && result == STATUS_OK; r++) {
        int64_t bytes = mine != NULL ? (int64_t)strlen(mine) + 1 : 0;
        TRY_GOTO(result, done, comm_broadcast(c->world, &bytes, sizeof bytes, r));
        char *text = r == c->job.rank ? mine : malloc((size_t)bytes);
        status got = text != NULL
                         ? STATUS_OK
                         : status_raise(STATUS_INTERNAL, __FILE__, __LINE__, "out of memory");
        result = agree(c, got);
        if (result == STATUS_OK) {
            result = comm_broadcast(c->world, text, (size_t)bytes, r);
        }
        status added = STATUS_OK;
        if (result == STATUS_OK && c->job.rank == 0) {
            added = manifest_add_part(whole, text);
        }
        if (text != mine) {
            free(text);
        }
        if (result == STATUS_OK) {
            result = agree(c, added);
        }
    }
done:
    free(mine);
    return result;
}

status checkpoint_write_manifest(const char *folder, const struct manifest *whole)
{
    char reason[MANIFEST_REASON_BYTES], path[FILE_PATH_BYTES];
    REQUIRE(manifest_tile(whole, reason), STATUS_INTERNAL,
            "the ranks' parts do not make up the whole: %s", reason);
    char *text = NULL;
    size_t bytes = 0;
    TRY(manifest_text(whole, &text, &bytes));
    status result = file_join(path, folder, MANIFEST_FILE);
    if (result == STATUS_OK) {
        result = file_write(path, text, bytes);
    }
    free(text);
    return result;
}

/* Rank 0: the manifest, the name. */
static status publish_folder(struct checkpoint *c, struct manifest *whole)
{
    whole->state = c->job.state;
    whole->ranks = c->job.ranks;
    TRY(copy_text(&whole->version, c->version));
    TRY(copy_text(&whole->recipe, c->recipe_text));
    TRY(copy_text(&whole->data_fingerprint, c->data_fingerprint));
    TRY(checkpoint_write_manifest(c->job.folder, whole));
    return checkpoint_folder_publish(c->job.parent, c->job.temporary, c->job.name);
}

/* Wait for the writer, agree, and give the folder its name. Ends the job in any case. */
static status finish(struct checkpoint *c)
{
    wait_for_writer(c);
    struct manifest whole = {0};
    status result = agree(c, status_restore(&c->note));
    if (result == STATUS_OK) {
        result = gather_parts(c, &whole);
    }
    if (result == STATUS_OK) {
        result = agree(c, c->job.rank == 0 ? publish_folder(c, &whole) : STATUS_OK);
    }
    manifest_destroy(&whole);
    end_job(c, result != STATUS_OK);
    return result;
}

/* A step that was found damaged and has been written again is good now. */
static void forget_bad(struct checkpoint *c, int64_t step)
{
    for (int i = 0; i < c->bad_count; i++) {
        if (c->bad[i] == step) {
            c->bad[i--] = c->bad[--c->bad_count];
        }
    }
}

void checkpoint_keep_besides(struct checkpoint *c, int64_t step)
{
    c->kept_besides = step;
}

status checkpoint_step_path(const struct checkpoint *c, int64_t step, char *path, size_t bytes)
{
    char name[CHECKPOINT_NAME_BYTES], whole[FILE_PATH_BYTES];
    checkpoint_folder_name(step, name);
    TRY(file_join(whole, c->folder, name));
    REQUIRE(strlen(whole) < bytes, STATUS_INTERNAL, "path too long: %s", whole);
    memcpy(path, whole, strlen(whole) + 1);
    return STATUS_OK;
}

status checkpoint_publish(struct checkpoint *c, int64_t *published_step)
{
    *published_step = -1;
    if (!c->active) {
        return STATUS_OK;
    }
    int64_t step = c->job.state.step;
    TRY(finish(c));
    char name[CHECKPOINT_NAME_BYTES];
    checkpoint_folder_name(step, name);
    TRY(file_join(c->last_good, c->folder, name));
    forget_bad(c, step);
    if (comm_rank(c->world) == 0) {
        checkpoint_folder_retain(c->folder, step, c->keep, c->kept_besides, c->bad, c->bad_count);
    }
    *published_step = step;
    return STATUS_OK;
}

status checkpoint_write_final(struct checkpoint *c, const char *folder,
                              const struct checkpoint_state *state,
                              const struct checkpoint_family *families, int count)
{
    int64_t published;
    TRY(checkpoint_publish(c, &published));
    char parent_text[FILE_PATH_BYTES], name_text[FILE_PATH_BYTES];
    snprintf(parent_text, sizeof parent_text, "%s", folder);
    snprintf(name_text, sizeof name_text, "%s", folder);
    TRY(start_save(c, state, families, count, dirname(parent_text), basename(name_text), false));
    return finish(c);
}

status checkpoint_set_aside(struct checkpoint *c, int64_t step)
{
    status mine = STATUS_OK;
    if (comm_rank(c->world) == 0) {
        int moved = 0;
        char where[CHECKPOINT_NAME_BYTES] = "";
        mine = checkpoint_folder_set_aside(c->folder, step, &moved, where);
        if (moved > 0) {
            log_info("moved %d newer checkpoints to %s/%s", moved, c->folder, where);
        }
        c->last_good[0] = '\0';
        if (mine == STATUS_OK) {
            mine = note_last_good(c);
        }
    }
    TRY(comm_agree(c->world, mine));
    return comm_broadcast(c->world, c->last_good, sizeof c->last_good, 0);
}
