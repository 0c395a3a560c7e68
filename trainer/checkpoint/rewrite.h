/* A checkpoint that no run writes: its tensors come from somewhere else, box by box. */
#pragma once

#include "trainer/checkpoint/manifest.h"

struct checkpoint_source {
    /* Tensors with their shapes, state, version, recipe and data_fingerprint; its files and pieces do not
     * matter. */
    const struct manifest *manifest;
    const char *tokenizer_dir;          /* NULL: none */
    const char *const *tokenizer_files; /* those of it that belong there, up to a NULL; NULL: all */
    const char *beside_name, *beside_text; /* one more file beside it; NULL: none */
    void *context;
    /* out [shape[0], shape[1]], a box of a tensor in the orientation of the file; a vector is a column. */
    status (*read)(void *context, const struct manifest_tensor *tensor, const int64_t offset[2],
                   const int64_t shape[2], float *out);
};

/* checkpoint_source_write - the folder `output`, as `ranks` ranks would have written it; it appears when it is
 * whole. In memory are blocks of 4 MiB.
 *
 * Errors    STATUS_CREATE if output exists; STATUS_WRITE, STATUS_PERMISSION; those of read */
status checkpoint_source_write(const struct checkpoint_source *source, const char *output,
                               int ranks);
