/* manifest.json: what a checkpoint folder holds, written last, so that its presence is the promise.
 *
 * It names each file with its size and SHA-256, and each tensor with the pieces that make it up (file,
 * offset, shape); the pieces must tile every tensor exactly once. Its own last field, "sha256", is the
 * digest of all bytes before that field: a torn or edited manifest is noticed. Nothing in it is trusted
 * before these checks: names stay inside the folder, counts and products are bounded. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"
#include "trainer/checkpoint/checkpoint.h"

enum { MANIFEST_FORMAT_VERSION = 1, MANIFEST_NAME_BYTES = 256, MANIFEST_REASON_BYTES = 512 };
#define MANIFEST_FILE "manifest.json"
#define MANIFEST_LIMIT_BYTES ((size_t)1 << 30)

struct manifest_file {
    char name[MANIFEST_NAME_BYTES]; /* inside the folder, "tokenizer/..." at most one level down */
    int64_t bytes;
    char sha256[HASH_TEXT_BYTES];
};

/* A box of a tensor and the dataset that holds it. Vectors use only the first number. */
struct manifest_piece {
    int file; /* index in files */
    int64_t offset[2];
    int64_t shape[2];
    char *dataset;
};

struct manifest_tensor {
    char *family; /* "model", "optimizer" */
    char *name;
    int dimensions;
    int64_t shape[2]; /* shape[1] is 1 for a vector */
    struct manifest_piece *pieces;
    int count;
};

struct manifest {
    struct checkpoint_state state;
    int ranks;     /* that wrote it */
    char *version; /* of the program that wrote it */
    char *recipe;  /* the resolved recipe as text */
    char *data_fingerprint;
    struct manifest_file *files;
    int file_count;
    struct manifest_tensor *tensors;
    int tensor_count;
};

/* manifest_destroy - free what it holds; a zeroed one is fine. */
void manifest_destroy(struct manifest *m);

/* manifest_add_file - note a file.  Errors: STATUS_INTERNAL out of memory */
status manifest_add_file(struct manifest *m, const char *name, int64_t bytes, const char *sha256);

/* manifest_add_piece - note a piece of a tensor; the tensor itself is added when it is new.
 *
 * Shapes    shape, offset [dimensions]
 * Errors    STATUS_INTERNAL if the file is not noted yet, or if two pieces disagree on the shape */
status manifest_add_piece(struct manifest *m, const char *family, const char *name, int dimensions,
                          const int64_t *global_shape, const char *file, const char *dataset,
                          const int64_t *offset, const int64_t *shape);

/* manifest_tile - do the pieces cover every tensor exactly once?
 *
 * Errors    false, and the tensor and what is wrong in reason[MANIFEST_REASON_BYTES] */
bool manifest_tile(const struct manifest *m, char *reason);

/* manifest_part_text, manifest_add_part - one rank's files and pieces as text, and joined to the whole.
 *
 * Memory    *out is the caller's, for free() */
status manifest_part_text(const struct manifest *m, char **out);
status manifest_add_part(struct manifest *m, const char *text);

/* manifest_text - the whole manifest with its own digest.  Memory: *out for free() */
status manifest_text(const struct manifest *m, char **out, size_t *out_bytes);

/* manifest_parse - check a manifest's text completely: digest, version, names, tiling.
 *
 * Memory    *out is for manifest_destroy, also after a failure
 * Errors    false, and why in reason[MANIFEST_REASON_BYTES] */
bool manifest_parse(const char *text, size_t bytes, struct manifest *out, char *reason);

/* manifest_find - a tensor by family and name; NULL where there is none. */
const struct manifest_tensor *manifest_find(const struct manifest *m, const char *family,
                                            const char *name);
