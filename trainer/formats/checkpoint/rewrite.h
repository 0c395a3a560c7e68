/* Writing a checkpoint without a training run: from a callback that supplies the tensors block by
 * block (`bireme import`), or from another checkpoint (`bireme checkpoint reshard`). */
#pragma once

#include "trainer/formats/checkpoint/manifest.h"

struct checkpoint_source {
    /* Tensors with their shapes, state, version, recipe and data_fingerprint. Its files and shards
     * are not used. */
    const struct manifest *manifest;
    const char *tokenizer_dir;          /* copied to tokenizer/; NULL: none */
    const char *const *tokenizer_files; /* names to copy, NULL-terminated; NULL: all files */
    const char *extra_file_name;        /* an additional file in tokenizer/ */
    const char *extra_file_text;        /* its content; NULL: none */
    void *context;                      /* first argument of read */
    /* Reads a block of a tensor into out[shape[0], shape[1]], in the orientation of the file. A
     * vector is a matrix with one column. */
    status (*read)(void *context, const struct manifest_tensor *tensor, const int64_t offset[2],
                   const int64_t shape[2], float *out);
};

/* checkpoint_rewrite - write the folder `output` with the files that `ranks` ranks would write.
 *
 * The folder is published atomically after all files have been written.
 *
 * Memory    blocks of 4 MiB
 * Errors    STATUS_CREATE if output exists; STATUS_WRITE, STATUS_PERMISSION; errors of read */
status checkpoint_rewrite(const struct checkpoint_source *source, const char *output, int ranks);

/* checkpoint_reshard - copy a verified checkpoint to `output` with the files of `ranks` ranks.
 *
 * Memory    blocks of 4 MiB
 * Errors    STATUS_CREATE if output exists; STATUS_WRITE, STATUS_PERMISSION, STATUS_CHECKPOINT */
status checkpoint_reshard(const char *folder, const char *output, int ranks);
