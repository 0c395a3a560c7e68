/* What the checkpoint's files share: a save under way, and the verification of a folder. */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/file.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/attachments.h"
#include "trainer/checkpoint/directory.h"
#include "trainer/checkpoint/rewrite.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/run_lock.h"

enum { CHECKPOINT_FAMILIES_MAX = 8 };

/* This rank's share of one tensor: some of its rows in memory. A vector's elements are its rows. */
struct checkpoint_piece {
    int family;
    char *name;
    char *dataset; /* the name, or name@1, name@2 where a rank holds several parts of one tensor */
    int dimensions;
    int64_t global_shape[2], offset[2], shape[2]; /* in the file */
    int64_t rows, columns;                        /* in memory */
    bool transposed;
    const float *source; /* the live tensor; NULL: it comes from job.source */
    const float *data;   /* what is written: the snapshot, or source */
};

/* A save under way, as the writing thread sees it: no communicator in it. */
struct checkpoint_job {
    char parent[FILE_PATH_BYTES];             /* "RUN/checkpoints" */
    char name[CHECKPOINT_NAME_BYTES];         /* "step-00001000" */
    char temporary[CHECKPOINT_NAME_BYTES];    /* "tmp-step-00001000.NONCE" */
    char folder[FILE_PATH_BYTES];             /* parent/temporary */
    const struct checkpoint_files *tokenizer; /* NULL: this rank writes none */
    const char *beside_name, *beside_text;    /* one more file beside it; NULL: none */
    int rank, ranks;
    struct checkpoint_state state;
    char stems[CHECKPOINT_FAMILIES_MAX][32];
    int families;
    struct checkpoint_piece *pieces;
    int count;
    int64_t elements;                       /* of all pieces */
    struct manifest part;                   /* what was written */
    const struct checkpoint_source *source; /* of pieces without a source of their own; else NULL */
};

/* checkpoint_pieces_create - this rank's shares.  Errors: STATUS_INTERNAL */
status checkpoint_pieces_create(struct checkpoint_job *job,
                                const struct checkpoint_family *families, int count, int replicas,
                                int replica);
void checkpoint_pieces_destroy(struct checkpoint_job *job);

/* checkpoint_pieces_snapshot - copy all pieces into memory[job->elements] and let them point there.
 *
 * Errors    a device's (checkpoint_family.device) */
status checkpoint_pieces_snapshot(struct checkpoint_job *job,
                                  const struct checkpoint_family *families, float *memory);

/* checkpoint_write_files - write, sync and digest this rank's files; fills job->part.
 *
 * Errors    STATUS_WRITE, STATUS_CREATE, STATUS_PERMISSION naming the file */
status checkpoint_write_files(struct checkpoint_job *job);

/* checkpoint_write_manifest - the last file of a folder.
 *
 * Errors    STATUS_INTERNAL if the pieces do not make up the whole; those of file_write */
status checkpoint_write_manifest(const char *folder, const struct manifest *whole);

/* checkpoint_temporary_name - "tmp-NAME.NONCE", which no other save has. */
void checkpoint_temporary_name(const char *name, char out[CHECKPOINT_NAME_BYTES]);

/* checkpoint_has_all_files - is there a manifest that holds, and each file with its size? No digests. */
bool checkpoint_has_all_files(const char *folder);

/* checkpoint_verify - manifest, sizes and digests of a folder; the ranks share the work. Collective.
 *
 * *good     false: why is in reason[MANIFEST_REASON_BYTES], the same on all ranks
 * Memory    out is for manifest_destroy in any case */
status checkpoint_verify(struct comm *world, const char *folder, struct manifest *out, bool *good,
                         char *reason);

/* checkpoint_fill_found - what a whole folder's manifest tells; its texts change hands. */
void checkpoint_fill_found(struct checkpoint_found *out, const char *folder, struct manifest *m);

/* checkpoint_read_manifest - rank 0 reads it, all ranks parse it. Collective. As checkpoint_verify. */
status checkpoint_read_manifest(struct comm *world, const char *folder, struct manifest *out,
                                bool *good, char *reason);

struct checkpoint {
    char run_dir[FILE_PATH_BYTES];
    char folder[FILE_PATH_BYTES]; /* run_dir/checkpoints */
    const char *beside_name;
    char *beside_text, *recipe_text, *data_fingerprint, *version;
    struct checkpoint_files tokenizer; /* rank 0's */
    int64_t keep, kept_besides;        /* a step, or -1: none */
    bool async;
    struct comm *world, *replicas;
    struct run_lock *lock;           /* rank 0's */
    char last_good[FILE_PATH_BYTES]; /* newest folder known to be whole; "": none */
    int64_t *bad;                    /* steps found damaged */
    int bad_count;
    float *snapshot;
    struct device *device; /* that the snapshot's memory was made for; NULL: malloc's */
    int64_t snapshot_elements;
    bool active;   /* a save is under way */
    bool threaded; /* and a thread writes it */
    pthread_t thread;
    atomic_int done;
    struct status_note note; /* the thread's error */
    struct checkpoint_job job;
};
