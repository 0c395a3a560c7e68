/* Runs the command `train`, but does not train. Instead it saves, and makes each file call of a
 * save fail.
 *
 *   FAULT_DIR=checkpoints save_faults RECIPE.yaml [section.key=value ...]
 *
 * For each file call of each rank, there is a save in which this call fails (ENOSPC, EIO) or writes
 * half of its bytes. Before each call of one further save, the checkpoint folder is copied: the
 * copy is the state of the disk after a SIGKILL of the rank before this call. The checks:
 *
 * - A save that fails returns STATUS_WRITE on all ranks and leaves no temporary folder. The next
 *   save without a fault succeeds.
 * - Each folder step-* is valid, and its weights and moments have the same bits. The newest one is
 *   not older than the last save that succeeded.
 * - checkpoint_open and checkpoint_find select it in each copy, and no temporary folder remains.
 *
 * Prints a line: calls of each rank, copies, faults of each kind, failed saves. The first broken
 * check ends the program with 70. scripts/fault_sweep.sh --direct runs it in each layout. */
#include <dirent.h>
#include <inttypes.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/file.h"
#include "base/memory.h"
#include "tests/shim/fault_shim.h"
#include "trainer/cli/command.h"
#include "trainer/formats/checkpoint/verify.h"
#include "trainer/train/loop.h"

status __real_loop_run(struct job *job);
status __wrap_loop_run(struct job *job);

enum { RANKS_MAX = 8, CALLS_MAX = 1024, KINDS = 3 };

static const char *const kinds[KINDS] = {"enospc", "eio", "short"};

static struct sweep {
    struct job *job;
    struct manifest first; /* of the first save */
    char checkpoints[FILE_PATH_BYTES];
    int64_t saved; /* step of the last save that succeeded */
    long calls[RANKS_MAX], tried[KINDS], copies, failed;
    bool writes[CALLS_MAX]; /* the calls of this rank that write data */
} sweep;

/* ---- checks, on rank 0 ---- */

/* Checks that a folder is valid and has the weights and moments of the first save. */
static status check_folder(const char *folder)
{
    struct manifest m = {0};
    char reason[MANIFEST_REASON_BYTES];
    bool is_valid = checkpoint_verify_local(folder, true, &m, reason), is_equal = is_valid;
    for (int i = 0; i < sweep.first.file_count && is_equal; i++) {
        const struct manifest_file *a = &sweep.first.files[i];
        bool is_tensors = strncmp(a->name, "model-", 6) == 0 || strncmp(a->name, "optim", 5) == 0;
        bool is_found = !is_tensors;
        for (int k = 0; k < m.file_count && !is_found; k++) {
            is_found =
                strcmp(a->name, m.files[k].name) == 0 && strcmp(a->sha256, m.files[k].sha256) == 0;
        }
        is_equal = is_found;
    }
    manifest_destroy(&m);
    REQUIRE(is_valid, STATUS_INTERNAL, "%s: %s", folder, reason);
    REQUIRE(is_equal, STATUS_INTERNAL, "%s has other weights than the first save", folder);
    return STATUS_OK;
}

static bool is_temporary(const char *name)
{
    return strncmp(name, "tmp-", 4) == 0;
}

/* Checks all folders of checkpoints/. *newest: the newest step; -1: none. */
static status check_folders(const char *checkpoints, bool may_have_temporary, int64_t *newest)
{
    char path[FILE_PATH_BYTES];
    status result = STATUS_OK;
    DIR *folder = opendir(checkpoints);
    REQUIRE(folder != NULL, STATUS_INTERNAL, "cannot open %s", checkpoints);
    *newest = -1;
    for (struct dirent *entry; result == STATUS_OK && (entry = readdir(folder)) != NULL;) {
        const char *name = entry->d_name;
        if (is_temporary(name) && !may_have_temporary) {
            result = RAISE_STATUS(STATUS_INTERNAL, "%s/%s remains", checkpoints, name);
        } else if (strncmp(name, "step-", 5) == 0) {
            int64_t step = strtoll(name + 5, NULL, 10);
            *newest = step > *newest ? step : *newest;
            result = file_join(path, checkpoints, name);
            KEEP_FIRST(result, check_folder(path));
        }
    }
    closedir(folder);
    return result;
}

/* A folder that has its final name is kept if the sync after the rename fails. */
static status check_saved(void)
{
    int64_t newest;
    TRY(check_folders(sweep.checkpoints, false, &newest));
    REQUIRE(newest == sweep.saved || newest == sweep.saved + 1, STATUS_INTERNAL,
            "the newest step is %" PRId64 " instead of %" PRId64, newest, sweep.saved);
    return STATUS_OK;
}

/* ---- a save ---- */

/* Saves the next step. All ranks return the same status, and its error has been printed. */
static status save_step(void)
{
    struct job *job = sweep.job;
    struct checkpoint_tensor_set sets[JOB_TENSOR_SETS];
    int count = job_tensor_sets(job, sets);
    int64_t published;
    job->state.step = sweep.saved + 1;
    TRY(checkpoint_save(job->checkpoint, &job->state, sets, count, NULL));
    TRY(checkpoint_publish(job->checkpoint, &published));
    REQUIRE(published == job->state.step, STATUS_INTERNAL, "step %" PRId64 " is not published",
            job->state.step);
    sweep.saved = published;
    return STATUS_OK;
}

/* Saves with a fault in one call of a rank. */
static status save_with_fault(int kind, int rank, long at)
{
    struct job *job = sweep.job;
    bool is_victim = comm_rank(job->world) == rank;
    fault_shim_set(is_victim ? kinds[kind] : "", is_victim ? at : 0, NULL);
    status result = save_step();
    fault_shim_set("", 0, NULL);
    bool is_agreed = status_pending()->code == STATUS_OK;
    if (result == STATUS_WRITE && is_agreed) {
        sweep.failed++;
        result = STATUS_OK;
    }
    sweep.tried[kind]++;
    if (result == STATUS_OK && comm_rank(job->world) == 0) {
        result = check_saved();
    }
    if (result != STATUS_OK) {
        fprintf(stderr, "save_faults: %s at call %ld of rank %d: code %d\n", kinds[kind], at, rank,
                (int)result);
    }
    return comm_agree(job->world, result);
}

static status sweep_errors(int rank)
{
    for (int kind = 0; kind < KINDS; kind++) {
        for (long at = 1; at <= sweep.calls[rank]; at++) {
            bool applies = strcmp(kinds[kind], "short") != 0 || sweep.writes[at - 1];
            TRY(applies ? save_with_fault(kind, rank, at) : STATUS_OK);
        }
        TRY(save_step()); /* a save without a fault succeeds */
    }
    return STATUS_OK;
}

/* ---- copies ---- */

enum { COPY_BYTES = 64 };

static void format_copy(char out[COPY_BYTES], long number)
{
    snprintf(out, COPY_BYTES, "copies/%ld", number);
}

/* Copies checkpoints/ with a program that has not loaded the shim. */
static void copy_checkpoints(long number, const char *call)
{
    static char cp[] = "cp", recursive[] = "-r", path[] = "PATH=/usr/bin:/bin";
    char folder[COPY_BYTES];
    char *const arguments[] = {cp, recursive, sweep.checkpoints, folder, NULL};
    char *const environment[] = {path, NULL};
    pid_t child;
    int code = -1;
    format_copy(folder, number);
    sweep.writes[number <= CALLS_MAX ? number - 1 : 0] = strstr(call, "write") != NULL;
    if (number > CALLS_MAX || mkdir(folder, 0777) != 0 ||
        posix_spawnp(&child, cp, NULL, NULL, arguments, environment) != 0 ||
        waitpid(child, &code, 0) != child || code != 0) {
        fprintf(stderr, "save_faults: no copy before call %ld\n", number);
        exit(STATUS_INTERNAL);
    }
}

/* Opens a copy as the next start of the job does. */
static status check_copy(long number, int64_t saved)
{
    char run[COPY_BYTES], checkpoints[FILE_PATH_BYTES];
    struct comm *self = NULL;
    struct checkpoint *c = NULL;
    struct checkpoint_info found = {0};
    int64_t newest;
    format_copy(run, number);
    TRY(file_join(checkpoints, run, "checkpoints"));
    TRY(comm_self_create(&self));
    const struct checkpoint_options options = {.run_dir = run,
                                               .recipe_text = "",
                                               .data_fingerprint = "",
                                               .keep = 1,
                                               .world = self,
                                               .replica_group = self};
    status result = check_folders(checkpoints, true, &newest);
    KEEP_FIRST(result, result == STATUS_OK ? checkpoint_open(&options, &c) : result);
    KEEP_FIRST(result, result == STATUS_OK ? checkpoint_find(c, NULL, &found) : result);
    KEEP_FIRST(result, result == STATUS_OK ? check_folders(checkpoints, false, &newest) : result);
    if (result == STATUS_OK && (!found.found || found.state.step < saved)) {
        result = RAISE_STATUS(STATUS_INTERNAL,
                              "step %" PRId64 " was saved, but step %" PRId64 " is found", saved,
                              found.found ? found.state.step : -1);
    }
    free(found.recipe_text);
    KEEP_FIRST(result, checkpoint_close(&c));
    KEEP_FIRST(result, comm_destroy(&self));
    return result;
}

/* Makes a save with a copy before each call of a rank, and counts the calls. */
static status sweep_kills(int rank)
{
    struct job *job = sweep.job;
    bool is_victim = comm_rank(job->world) == rank;
    int64_t saved = sweep.saved;
    TRY(comm_agree(job->world, is_victim ? file_make_folders("copies") : STATUS_OK));
    fault_shim_set("", 0, is_victim ? copy_checkpoints : NULL);
    status result = save_step();
    sweep.calls[rank] = fault_shim_calls();
    fault_shim_set("", 0, NULL);
    TRY(result);
    TRY(comm_broadcast(job->world, &sweep.calls[rank], sizeof sweep.calls[rank], rank));
    TRY(comm_broadcast(job->world, sweep.writes, sizeof sweep.writes, rank));
    for (long at = 1; is_victim && at <= sweep.calls[rank] && result == STATUS_OK; at++) {
        result = check_copy(at, saved);
        if (result != STATUS_OK) {
            fprintf(stderr, "save_faults: kill at call %ld of rank %d\n", at, rank);
        }
    }
    sweep.copies += sweep.calls[rank];
    KEEP_FIRST(result, is_victim ? file_remove_tree("copies") : STATUS_OK);
    return comm_agree(job->world, result);
}

/* ---- the sweep ---- */

/* Makes a save, and reads its manifest on all ranks. */
static status save_first(void)
{
    char folder[FILE_PATH_BYTES], reason[MANIFEST_REASON_BYTES];
    TRY(save_step());
    TRY(checkpoint_step_path(sweep.job->checkpoint, sweep.saved, folder, sizeof folder));
    bool is_valid = checkpoint_verify_local(folder, true, &sweep.first, reason);
    REQUIRE(is_valid, STATUS_INTERNAL, "%s: %s", folder, reason);
    return STATUS_OK;
}

static void print_result(int ranks)
{
    printf("calls");
    for (int r = 0; r < ranks; r++) {
        printf(" %ld", sweep.calls[r]);
    }
    printf(" kill %ld", sweep.copies);
    for (int kind = 0; kind < KINDS; kind++) {
        printf(" %s %ld", kinds[kind], sweep.tried[kind]);
    }
    printf(" failed %ld\n", sweep.failed);
}

static status run_sweep(int ranks)
{
    TRY(save_first());
    TRY(save_step()); /* from now on each save removes a checkpoint */
    for (int r = 0; r < ranks; r++) {
        TRY(sweep_kills(r));
        REQUIRE(sweep.calls[r] > 10, STATUS_INTERNAL, "only %ld calls of rank %d were counted",
                sweep.calls[r], r);
        TRY(sweep_errors(r));
    }
    REQUIRE(sweep.failed > 10, STATUS_INTERNAL, "only %ld saves have failed", sweep.failed);
    return STATUS_OK;
}

status __wrap_loop_run(struct job *job)
{
    int ranks = comm_size(job->world);
    REQUIRE(ranks <= RANKS_MAX, STATUS_USAGE, "at most %d ranks", RANKS_MAX);
    sweep.job = job;
    TRY(file_join(sweep.checkpoints, job->session.recipe.run_dir, "checkpoints"));
    fault_shim_set("", 0, NULL);
    status result = run_sweep(ranks);
    if (result == STATUS_OK && comm_rank(job->world) == 0) {
        print_result(ranks);
    }
    manifest_destroy(&sweep.first);
    return result;
}

int main(int argc, char **argv)
{
    status result = command_train(argc, argv);
    status_print();
    return (int)result;
}
