/* Private declarations of the checkpoint module: the state of a save, and its shards and files. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/file.h"
#include "trainer/formats/checkpoint/attachments.h"
#include "trainer/formats/checkpoint/checkpoint.h"
#include "trainer/formats/checkpoint/directory.h"
#include "trainer/formats/checkpoint/manifest.h"
#include "trainer/formats/checkpoint/rewrite.h"
#include "trainer/formats/checkpoint/run_lock.h"

enum { CHECKPOINT_SETS_MAX = 8 };

/* The rows of one tensor that this rank writes. Each element of a vector is a row. */
struct checkpoint_shard {
    int set; /* index of the tensor set */
    char *name;
    enum dtype dtype;
    char *dataset;  /* the name, or name@1, name@2 for further blocks of the same tensor */
    int dimensions; /* in the file */
    int64_t global_shape[2], offset[2], shape[2]; /* in the file */
    int64_t rows, columns;                        /* in memory */
    bool transposed;
    const void *source; /* the live tensor; NULL: read from save.source */
    const void *data;   /* data to write: the snapshot or source; NULL: read from save.source */
};

/* One rank's part of a save. The writer thread uses it, so it contains no communicator. */
struct checkpoint_save_state {
    char parent[FILE_PATH_BYTES];                   /* "RUN/checkpoints" */
    char name[CHECKPOINT_NAME_BYTES];               /* "step-00001000" */
    char temporary[CHECKPOINT_NAME_BYTES];          /* "tmp-step-00001000.NONCE" */
    char folder[FILE_PATH_BYTES];                   /* parent/temporary */
    const struct checkpoint_attachments *tokenizer; /* NULL: this rank writes none */
    const char *extra_file_name;                    /* an additional file in tokenizer/ */
    const char *extra_file_text;                    /* its content; NULL: none */
    int rank, ranks;
    struct checkpoint_state state;
    char set_names[CHECKPOINT_SETS_MAX][32];
    int set_count;
    struct checkpoint_shard *shards;
    int shard_count;
    int64_t bytes;                          /* of all shards in a snapshot */
    struct manifest written;                /* files and shards written by this rank */
    const struct checkpoint_source *source; /* data of shards without `data`; NULL: none */
};

struct checkpoint {
    char run_dir[FILE_PATH_BYTES];
    char folder[FILE_PATH_BYTES]; /* run_dir/checkpoints */
    const char *extra_file_name;
    char *extra_file_text, *recipe_text, *data_fingerprint, *version;
    int dropout_scheme;
    struct checkpoint_attachments tokenizer; /* on rank 0 */
    int64_t keep;                            /* number of newest checkpoints to keep */
    int64_t pinned_step;                     /* a step that is not deleted; -1: none */
    bool async;
    struct comm *world, *replica_group;
    struct run_lock *lock;           /* on rank 0 */
    char last_good[FILE_PATH_BYTES]; /* newest folder that is known to be valid; "": none */
    int64_t *bad;                    /* steps that are known to be damaged */
    int bad_count;
    char *snapshot;
    struct device *device; /* device that allocated the snapshot; NULL: the host */
    int64_t snapshot_bytes;
    bool active;   /* a save is in progress */
    bool threaded; /* a thread writes it */
    pthread_t thread;
    atomic_int done;         /* 1: this rank has written all files */
    struct status_note note; /* error of the writer */
    struct checkpoint_save_state save;
};

/* ---- checkpoint.c ---- */

/* checkpoint_copy_text - duplicate a string; NULL becomes "".
 *
 * Errors    STATUS_INTERNAL out of memory */
status checkpoint_copy_text(char **out, const char *text);

/* ---- save.c ---- */

/* checkpoint_save_abort - wait for the writer and discard the save; rank 0 deletes its files. */
void checkpoint_save_abort(struct checkpoint *c);

/* checkpoint_save_release - free the snapshot. */
void checkpoint_save_release(struct checkpoint *c);

/* ---- shards.c ---- */

/* checkpoint_shards_create - compute the shards that one rank of a replica group writes.
 *
 * Memory    the caller always calls checkpoint_shards_destroy
 * Errors    STATUS_INTERNAL */
status checkpoint_shards_create(struct checkpoint_save_state *save,
                                const struct checkpoint_tensor_set *sets, int count,
                                int replica_count, int replica_index);

/* checkpoint_shards_destroy - free the shards of the save. */
void checkpoint_shards_destroy(struct checkpoint_save_state *save);

/* checkpoint_shards_snapshot - copy all shards to memory[save->bytes] and set their `data`.
 *
 * Errors    errors of the device of a set */
status checkpoint_shards_snapshot(struct checkpoint_save_state *save,
                                  const struct checkpoint_tensor_set *sets, char *memory);

/* ---- write.c ---- */

/* checkpoint_write_files - write, sync and hash the files of save->rank, and fill save->written.
 *
 * Errors    STATUS_WRITE or STATUS_PERMISSION, naming the file */
status checkpoint_write_files(struct checkpoint_save_state *save);

/* checkpoint_write_manifest - write the manifest, which is the last file of a folder.
 *
 * Errors    STATUS_INTERNAL if the shards do not tile every tensor; STATUS_WRITE or
 *           STATUS_PERMISSION, naming the file */
status checkpoint_write_manifest(const char *folder, const struct manifest *whole);
