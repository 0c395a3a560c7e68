/* Checkpoints: sharded by rank, published atomically, verified before use, written behind training.
 *
 *   checkpoints/step-00001000/manifest.json, model-*.h5, optimizer-*.h5, state-00000.h5, tokenizer/
 *
 * docs/checkpoints.md describes the files. A name with a '/' ("exp_avg/transformer.wte.weight") is a
 * dataset in a group.
 *
 * A save copies the tensors (the only stall), and a thread per rank writes, syncs and hashes; when all
 * ranks are done, rank 0 writes the manifest (sizes and SHA-256 of each file, the tiling of each tensor),
 * syncs, renames the temporary folder to its name and syncs the parent. Only then "saved step N" is told.
 * Resuming takes the newest folder whose manifest and hashes hold; a damaged one is skipped with a
 * warning W-CKPT-SKIP naming it and the reason. This room knows no model: it is given named tensors. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/device.h"
#include "comm/comm.h"

/* One named matrix or vector as this rank holds it, f32. In the file it has global_shape. A rank may
 * hold several parts of one tensor (a fused matrix that is split): several with the same name. */
struct checkpoint_tensor {
    const char *name; /* of the Hugging Face state_dict: "transformer.h.0.attn.c_attn.weight" */
    int dimensions;   /* 1 or 2, in the file */
    int64_t global_shape[2]; /* in the file */
    int64_t offset[2];       /* where this rank's part begins, in the file */
    int64_t rows,
        columns; /* of this rank's part in memory; the file holds [columns, rows] if transposed */
    bool transposed;
    float *data;    /* [rows, columns], contiguous; on the family's device */
    bool read_only; /* another rank, no replica, holds the same and writes it */
};

/* A family of files, "model" or "optimizer": all ranks of `replicas` hold the same tensors, and each
 * writes a contiguous share of every tensor's rows; or, sharded, each holds others and writes them all. Parts of
 * one tensor follow each other. */
struct checkpoint_family {
    const char *stem;
    const struct checkpoint_tensor *tensors;
    int count;
    bool sharded;
    struct device *device; /* where all data is; NULL: the host */
    struct stream *stream; /* of its copies */
};

struct checkpoint_state {
    int64_t step;    /* optimizer steps done */
    int64_t samples; /* global samples consumed: the data cursor */
    int64_t tokens;  /* tokens seen */
    double train_seconds;
};

struct checkpoint_options {
    const char *run_dir;          /* checkpoints/ and the lock live here */
    const char *tokenizer_dir;    /* read now, written into each checkpoint; NULL: none */
    const char *recipe_text;      /* the resolved recipe, kept in the manifest */
    const char *data_fingerprint; /* of the training set; kept in the manifest */
    const char *version;          /* of this program; kept in the manifest; NULL: unknown */
    int64_t keep;                 /* newest N are kept; at least 1 */
    bool async;
    const char *beside_name, *beside_text; /* one more file in tokenizer/; NULL: none */
    struct comm *world;                    /* for decisions */
    struct comm *replicas;                 /* ranks that hold the same tensors */
};

struct checkpoint;

/* checkpoint_open - take the run folder's lock, remove what a killed job left half-written. Collective.
 *
 * Errors    STATUS_CREATE if another job still holds it after 10 s (host and process named);
 *           STATUS_PERMISSION */
status checkpoint_open(const struct checkpoint_options *options, struct checkpoint **out);

/* checkpoint_close - wait for a save under way and give it up, release the lock. Not collective.
 *
 * Order     after checkpoint_publish, which keeps the save
 * Errors    none of its own; NULL is fine */
status checkpoint_close(struct checkpoint **c);

/* checkpoint_memory_bytes - the snapshot that an asynchronous save holds on this rank. */
int64_t checkpoint_memory_bytes(const struct checkpoint_family *families, int count, int replicas,
                                int replica);

/* checkpoint_reserve - allocate and touch the snapshot now, so that the first save stands still no
 * longer than the later ones. Not needed where !async. Collective.
 *
 * Errors    STATUS_INTERNAL naming the bytes */
status checkpoint_reserve(struct checkpoint *c, const struct checkpoint_family *families,
                          int count);

/* checkpoint_set_aside - move the run's checkpoints newer than step into checkpoints/old-N/: for
 * `--resume never` (step -1) and for going back to an older one, so that a later automatic resume does
 * not take them for this run's. Nothing is deleted. Collective. */
status checkpoint_set_aside(struct checkpoint *c, int64_t step);

/* checkpoint_save - snapshot now; write behind training (or at once where !async). Collective.
 *
 * It is published by checkpoint_publish, also where !async. Waits first for a save still under way
 * and publishes that; call checkpoint_publish before, to learn its step.
 * Units     *stall_seconds: how long the caller stood still
 * Errors    STATUS_WRITE naming needed and free bytes; STATUS_CREATE, STATUS_PERMISSION; agreed */
status checkpoint_save(struct checkpoint *c, const struct checkpoint_state *state,
                       const struct checkpoint_family *families, int count, double *stall_seconds);

/* checkpoint_written - 1 if this rank's thread has nothing left to do for the save under way, 0 if it
 * still writes or none is under way. Local and cheap: it rides along the step's small reduction, and
 * when the sum over ranks is the world's size all ranks call checkpoint_publish. */
int checkpoint_written(const struct checkpoint *c);

/* checkpoint_publish - finish the save under way, waiting for it where needed. Collective.
 *
 * *published_step = -1 where none was under way.
 * Errors    STATUS_WRITE (agreed on all ranks): the temporary folder is removed, the last good checkpoint
 *           is untouched and named */
status checkpoint_publish(struct checkpoint *c, int64_t *published_step);

/* checkpoint_keep_besides - the checkpoint of this step is not removed, however old it is; -1: none is kept besides
 * the newest. Local: rank 0's counts. */
void checkpoint_keep_besides(struct checkpoint *c, int64_t step);

/* checkpoint_step_path - the folder of a step's checkpoint, whether it is there or not. */
status checkpoint_step_path(const struct checkpoint *c, int64_t step, char *path, size_t bytes);

/* What a resume found. */
struct checkpoint_found {
    bool found;
    char folder[4096];
    struct checkpoint_state state;
    char *recipe_text; /* free() */
    char data_fingerprint[65];
    int saved_ranks;
    bool weights_alone; /* training cannot go on from it */
};

/* checkpoint_find - the newest whole checkpoint of the run (path NULL), or what checkpoint_choose takes
 * at path. Collective.
 *
 * Every file's size and SHA-256 is verified (the ranks share the work).
 * Errors    STATUS_CHECKPOINT if path names weights alone, or folders exist and none is usable, each with its reason; STATUS_NO_INPUT
 *           for a path that does not exist. *out->found = false only where there is no checkpoint at all.
 *           Agreed */
status checkpoint_find(struct checkpoint *c, const char *path, struct checkpoint_found *out);

/* checkpoint_choose - the checkpoint that a path means, verified: a checkpoint's folder is meant itself;
 * of a run folder its final weights (where `final`), else its newest whole checkpoint; of a folder of
 * checkpoints the newest whole one. Rank 0 looks, all ranks take the same. A damaged one is skipped with
 * a warning W-CKPT-SKIP, unless it is the one that was named. Collective.
 *
 * Errors    STATUS_NO_INPUT, STATUS_CHECKPOINT: the same on all ranks, for the caller to agree on */
status checkpoint_choose(struct comm *world, const char *path, bool final,
                         struct checkpoint_found *out);

/* checkpoint_examine - one folder: a checkpoint or run_dir/final. Collective.
 *
 * Errors    STATUS_NO_INPUT; STATUS_CHECKPOINT with the first fault: the same on all ranks, for the
 *           caller to agree on */
status checkpoint_examine(struct comm *world, const char *folder, struct checkpoint_found *out);

/* checkpoint_load - fill the families' tensors from a found folder, whatever layout wrote it: stored
 * boxes are intersected with mine. Collective.
 *
 * Errors    STATUS_CHECKPOINT naming tensor, file and the shapes that differ */
status checkpoint_load(struct comm *world, const char *folder,
                       const struct checkpoint_family *families, int count);

/* checkpoint_load_body - likewise for a run that learns something else: a head that the folder has not got, or of another
 * shape, keeps what it holds, and heads that the run's model has not got are left out. Both are told. */
status checkpoint_load_body(struct comm *world, const char *folder,
                            const struct checkpoint_family *families, int count);

/* checkpoint_load_part - these tensors of a folder, whatever else it holds; a head that it has not got keeps what it
 * holds. Nothing is told. */
status checkpoint_load_part(struct comm *world, const char *folder,
                            const struct checkpoint_family *families, int count);

/* checkpoint_compare - what checkpoint_load, or with body checkpoint_load_body, would say of names and shapes; nothing is
 * read. Collective. */
status checkpoint_compare(struct comm *world, const char *folder,
                          const struct checkpoint_family *families, int count, bool body);

/* checkpoint_write_final - weights alone into folder (run_dir/final), the same format. Collective. */
status checkpoint_write_final(struct checkpoint *c, const char *folder,
                              const struct checkpoint_state *state,
                              const struct checkpoint_family *families, int count);

/* checkpoint_inspect - verify one checkpoint folder without a job; prints to standard output.
 * Errors    STATUS_CHECKPOINT with the first fault */
status checkpoint_inspect(const char *folder, bool json);
