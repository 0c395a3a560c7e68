/* Sharded checkpoints: each rank writes its own files, rank 0 publishes the folder atomically.
 *
 *   checkpoints/step-00001000/manifest.json, model-*.h5, optimizer-*.h5, state-00000.h5, tokenizer/
 *
 * docs/reference/file_formats.md describes the files. A tensor name with a '/'
 * ("exp_avg/transformer.wte.weight") is a dataset in an HDF5 group.
 *
 * A save first copies the tensors into a snapshot. Training stops only for this copy. Then one
 * thread per rank writes, syncs and hashes the files. When all ranks have finished, rank 0 writes
 * and syncs the manifest: size and SHA-256 of each file, shards of each tensor. Then it renames the
 * temporary folder and syncs the parent folder. The message "saved step N" is logged only after
 * that.
 *
 * A resume uses the newest folder that passes the verification of manifest, sizes and hashes. A
 * damaged folder is skipped with the warning W-CKPT-SKIP, which names the folder and the reason.
 * This module does not depend on the model: callers pass named tensors. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/device/device.h"
#include "base/tensor.h"
#include "comm/comm.h"
#include "trainer/formats/checkpoint/state.h"

/* The remedy for a path without a checkpoint, for messages. */
#define CHECKPOINT_REMEDY "name a run folder, its checkpoints folder or a checkpoint in it"

/* The block of a named matrix or vector that this rank holds in memory.
 *
 * A rank may hold several blocks of one tensor, such as the shards of a fused matrix. Each block is
 * one entry. The entries of a tensor have the same name and are adjacent. */
struct checkpoint_tensor {
    const char *name; /* Hugging Face state_dict name: "transformer.h.0.attn.c_attn.weight" */
    int dimensions;   /* 1 or 2, in the file */
    int64_t global_shape[2]; /* shape of the whole tensor, in the file */
    int64_t offset[2];       /* first element of this rank's block, in the file */
    int64_t rows, columns;   /* block in memory; if transposed, the file stores [columns, rows] */
    bool transposed;
    void *data;     /* [rows, columns], contiguous, on the device of the tensor set */
    bool load_only; /* not saved by this replica group, because another one saves the same block */
    enum dtype dtype; /* in memory, and in the files of a save; a load converts to it */
};

/* A tensor set: the tensors that are stored together in files NAME-RANK-of-RANKS.h5.
 *
 * sharded false: all ranks of the replica group hold the same blocks, and each saves a part of
 * them. sharded true: each rank holds other blocks and saves all of them. */
struct checkpoint_tensor_set {
    const char *name; /* "model" or "optimizer" */
    const struct checkpoint_tensor *tensors;
    int count;
    bool sharded;
    struct device *device; /* device of all data; NULL: host */
    struct stream *stream; /* stream for the copies */
};

struct checkpoint_options {
    const char *run_dir;       /* contains checkpoints/ and the lock file */
    const char *tokenizer_dir; /* read by checkpoint_open, stored in each checkpoint; NULL: none */
    const char *recipe_text;   /* resolved recipe, stored in the manifest */
    const char *data_fingerprint; /* fingerprint of the training set, stored in the manifest */
    const char *version;          /* program version, stored in the manifest; NULL: unknown */
    int dropout_scheme;          /* number of the dropout scheme, stored in the manifest; 0: none */
    int64_t keep;                /* number of newest checkpoints to keep; at least 1 */
    bool async;                  /* write in a thread while training continues */
    const char *extra_file_name; /* an additional file in tokenizer/ */
    const char *extra_file_text; /* its content; NULL: none */
    struct comm *world;          /* all ranks of the job */
    /* the replica group: the ranks that hold the same part of the model (the data-parallel
     * group) */
    struct comm *replica_group;
};

struct checkpoint;

/* ---- open and close ---- */

/* checkpoint_open - lock the run folder and delete incomplete folders of a killed job.
 *
 * Order     collective
 * Errors    STATUS_CREATE naming host and process of another job that holds the lock for more than
 *           10 s; STATUS_PERMISSION */
status checkpoint_open(const struct checkpoint_options *options, struct checkpoint **out);

/* checkpoint_close - wait for an unpublished save, delete its files, and release the lock.
 *
 * Memory    *c may be NULL
 * Order     not collective; call checkpoint_publish first to keep the save
 * Returns   STATUS_OK */
status checkpoint_close(struct checkpoint **c);

/* checkpoint_archive_newer - move the run's checkpoints newer than `step` to checkpoints/old-N/.
 *
 * Used by `--resume never` (step -1) and by a resume from an older checkpoint. A later automatic
 * resume then finds no checkpoint of the abandoned run. Nothing is deleted.
 *
 * Order     collective
 * Errors    STATUS_CREATE, STATUS_WRITE, STATUS_PERMISSION */
status checkpoint_archive_newer(struct checkpoint *c, int64_t step);

/* checkpoint_pin_step - keep the checkpoint of `step` in addition to the newest ones.
 *
 * step -1 pins no checkpoint.
 *
 * Order     not collective; only the value of rank 0 has an effect */
void checkpoint_pin_step(struct checkpoint *c, int64_t step);

/* checkpoint_step_path - format the path of a step's folder, which does not have to exist.
 *
 * Errors    STATUS_INTERNAL if `bytes` is too small */
status checkpoint_step_path(const struct checkpoint *c, int64_t step, char *path, size_t bytes);

/* ---- save ---- */

/* checkpoint_memory_bytes - compute the size of the snapshot of an asynchronous save on one rank.
 *
 * Units     replica_count: size of the replica group; replica_index: the rank in it
 * Errors    STATUS_INTERNAL out of memory */
status checkpoint_memory_bytes(const struct checkpoint_tensor_set *sets, int count,
                               int replica_count, int replica_index, int64_t *bytes);

/* checkpoint_reserve - prepare the first save. Allocate and touch the snapshot if saves are
 * asynchronous. Warn (W-CKPT-SPACE) if the disk is too small for the next checkpoint.
 *
 * The first save is then as fast as later ones.
 *
 * Order     collective
 * Errors    STATUS_INTERNAL naming the bytes */
status checkpoint_reserve(struct checkpoint *c, const struct checkpoint_tensor_set *sets,
                          int count);

/* checkpoint_save - copy the tensors and start to write them; without async, write them now.
 *
 * checkpoint_publish publishes the result, also without async. If an earlier save is unpublished,
 * this function first waits for it and publishes it. Call checkpoint_publish first to get the step
 * of that save.
 *
 * Units     *stall_seconds: time that the caller was blocked; may be NULL
 * Order     collective
 * Errors    STATUS_WRITE naming needed and free bytes; STATUS_CREATE, STATUS_PERMISSION; the same
 *           on all ranks */
status checkpoint_save(struct checkpoint *c, const struct checkpoint_state *state,
                       const struct checkpoint_tensor_set *sets, int count, double *stall_seconds);

/* checkpoint_is_written - return 1 if this rank has written all files of the current save, else 0.
 *
 * Returns 0 if no save is in progress. The caller adds the value to the step reduction. If the sum
 * equals the size of the world, all ranks call checkpoint_publish.
 *
 * Order     not collective */
int checkpoint_is_written(const struct checkpoint *c);

/* checkpoint_publish - finish the save in progress; wait for it if necessary.
 *
 * *published_step is -1 if no save was in progress.
 *
 * Order     collective
 * Errors    STATUS_WRITE on all ranks: the temporary folder is deleted; the message names the last
 *           good checkpoint, which is unchanged */
status checkpoint_publish(struct checkpoint *c, int64_t *published_step);

/* checkpoint_write_final - write and publish `folder` (run_dir/final) without a thread.
 *
 * Order     collective
 * Errors    as checkpoint_save */
status checkpoint_write_final(struct checkpoint *c, const char *folder,
                              const struct checkpoint_state *state,
                              const struct checkpoint_tensor_set *sets, int count);

/* ---- find and verify ---- */

/* Content of a verified checkpoint folder. */
struct checkpoint_info {
    bool found;
    char folder[4096];
    struct checkpoint_state state;
    char *recipe_text; /* owned by the caller, who frees it with free() */
    char data_fingerprint[65];
    char version[64];   /* version of the program that wrote it */
    int dropout_scheme; /* number of the dropout scheme; 1 if the checkpoint does not store it */
    int saved_ranks;    /* number of ranks that wrote it */
    bool weights_only;  /* no optimizer state: training cannot resume from it */
};

/* checkpoint_find - find the checkpoint to resume from.
 *
 * path NULL selects the newest valid checkpoint of the run; otherwise path is resolved as in
 * checkpoint_resolve. The ranks share the verification of sizes and SHA-256.
 *
 * Order     collective
 * Returns   STATUS_OK with out->found false if the run has no checkpoint
 * Errors    STATUS_CHECKPOINT if path has weights only, or if folders exist and none is valid (with
 *           the reason for each); STATUS_NO_INPUT if path does not exist; the same on all ranks */
status checkpoint_find(struct checkpoint *c, const char *path, struct checkpoint_info *out);

/* checkpoint_resolve - find and verify the checkpoint that a path refers to.
 *
 * A checkpoint folder refers to itself. A run folder refers to its final weights if `final` is true
 * and they exist, otherwise to its newest valid checkpoint. A folder of checkpoints refers to the
 * newest valid one. Rank 0 lists the folders; all ranks get the same result. A damaged folder is
 * skipped with the warning W-CKPT-SKIP, unless path names that folder itself.
 *
 * Order     collective
 * Errors    STATUS_NO_INPUT, STATUS_CHECKPOINT: the same on all ranks, but the caller has to call
 *           comm_agree */
status checkpoint_resolve(struct comm *world, const char *path, bool final,
                          struct checkpoint_info *out);

/* checkpoint_find_recipe - find the checkpoint that a path refers to and read its manifest.
 *
 * Like checkpoint_resolve, but the files of the checkpoint are not verified. For its recipe, before
 * the weights are needed. */
status checkpoint_find_recipe(struct comm *world, const char *path, bool final,
                              struct checkpoint_info *out);

/* checkpoint_verify_folder - verify one folder: a checkpoint or run_dir/final.
 *
 * Order     collective
 * Errors    STATUS_NO_INPUT; STATUS_CHECKPOINT with the first fault: the same on all ranks, but the
 *           caller has to call comm_agree */
status checkpoint_verify_folder(struct comm *world, const char *folder,
                                struct checkpoint_info *out);

/* checkpoint_inspect - verify one folder in a single process and print its content.
 *
 * Errors    STATUS_NO_INPUT; STATUS_CHECKPOINT with the first fault; STATUS_WRITE */
status checkpoint_inspect(const char *folder, bool json);

/* ---- load ---- */

/* checkpoint_load - read all tensors of the sets from a verified folder.
 *
 * The number of ranks and the layout that wrote the folder may differ: each rank reads the
 * intersection of the stored shards with its own blocks.
 *
 * Order     collective
 * Errors    STATUS_CHECKPOINT naming the tensor and the shapes that differ, or the file */
status checkpoint_load(struct comm *world, const char *folder,
                       const struct checkpoint_tensor_set *sets, int count);

/* checkpoint_load_pretrained - read the tensors for a run with a different task.
 *
 * Like checkpoint_load, but heads may differ. A head that is missing in the folder, or that has
 * another shape there, keeps its current values. Stored heads that the model does not have are
 * ignored. Both cases are logged. */
status checkpoint_load_pretrained(struct comm *world, const char *folder,
                                  const struct checkpoint_tensor_set *sets, int count);

/* checkpoint_load_subset - read these tensors from a folder that may store other tensors too.
 *
 * Like checkpoint_load_pretrained, but logs nothing. */
status checkpoint_load_subset(struct comm *world, const char *folder,
                              const struct checkpoint_tensor_set *sets, int count);

/* checkpoint_check_tensors - check names and shapes as checkpoint_load does, but read no tensor.
 *
 * heads_may_differ selects the rules of checkpoint_load_pretrained.
 *
 * Order     collective
 * Errors    as checkpoint_load */
status checkpoint_check_tensors(struct comm *world, const char *folder,
                                const struct checkpoint_tensor_set *sets, int count,
                                bool heads_may_differ);
