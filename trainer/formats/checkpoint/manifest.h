/* manifest.json: the content of a checkpoint folder. It is written last, so a folder with a valid
 * manifest is complete.
 *
 * It lists each file with its size and SHA-256, and each tensor with its shards (file, offset,
 * shape). The shards must tile every tensor exactly once. The last field, "sha256", is the digest
 * of all bytes before that field, which detects a truncated or edited manifest.
 *
 * A manifest can come from a foreign source. manifest_parse, manifest_add_file and
 * manifest_add_shard check each value before its use. The name of a file has at most one '/', that
 * of a tensor or a dataset at most seven, and no component begins with a dot. The name of a tensor
 * set is [a-z_][a-z0-9_]{0,30}. Counts and products are bounded. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/status.h"
#include "base/tensor.h"
#include "base/text_map.h"
#include "trainer/formats/checkpoint/state.h"

enum { MANIFEST_FORMAT_VERSION = 1, MANIFEST_REASON_BYTES = 512 };
enum { MANIFEST_NAME_BYTES = FILE_NAME_BYTES };
#define MANIFEST_FILE "manifest.json"
#define MANIFEST_BYTES_MAX ((size_t)1 << 30)

struct manifest_file {
    char name[MANIFEST_NAME_BYTES]; /* relative to the folder, with at most one '/' */
    int64_t bytes;
    char sha256[HASH_TEXT_BYTES];
};

/* A block of a tensor and the HDF5 dataset that stores it. Vectors use only the first dimension. */
struct manifest_shard {
    int file; /* index in manifest.files */
    int64_t offset[2];
    int64_t shape[2];
    char *dataset;
};

struct manifest_tensor {
    char *set; /* tensor set: "model" or "optimizer" */
    char *name;
    enum dtype dtype; /* "f32" or "bf16" */
    int dimensions;
    int64_t shape[2]; /* shape[1] is 1 for a vector */
    struct manifest_shard *shards;
    int shard_count;
    int64_t shard_capacity;
};

struct manifest {
    struct checkpoint_state state;
    int ranks;          /* number of ranks that wrote the checkpoint */
    int dropout_scheme; /* number of the dropout scheme; written if above 1, read as 1 if missing */
    char *version;      /* version of the program that wrote it */
    char *recipe;       /* resolved recipe as text */
    char *data_fingerprint;
    struct manifest_file *files;
    int file_count;
    int64_t file_capacity;
    struct manifest_tensor *tensors;
    int tensor_count;
    int64_t tensor_capacity;
    /* Indices of the files by name and of the tensors by "set/name", and the texts of the keys. */
    struct text_map file_index, tensor_index;
    struct text_store index_keys;
};

/* manifest_destroy - free all members; accepts a manifest that is all zero. */
void manifest_destroy(struct manifest *m);

/* manifest_add_file - add a file.
 *
 * Errors    STATUS_INTERNAL out of memory, or the name is invalid */
status manifest_add_file(struct manifest *m, const char *name, int64_t bytes, const char *sha256);

/* manifest_find_file - return the index of a file in m->files; -1 if it does not exist. */
int manifest_find_file(const struct manifest *m, const char *name);

/* manifest_add_tensor - add a tensor without shards. manifest_add_shard adds missing tensors too.
 *
 * Shapes    shape [dimensions]
 * Errors    STATUS_INTERNAL out of memory, or a name is invalid */
status manifest_add_tensor(struct manifest *m, const char *set, const char *name, enum dtype dtype,
                           int dimensions, const int64_t *shape);

/* manifest_add_shard - add a shard of a tensor; adds the tensor with its first shard.
 *
 * Shapes    global_shape, offset, shape [dimensions]
 * Errors    STATUS_INTERNAL if a name is invalid, if `file` has not been added, or if the shards of
 *           the tensor have different dtypes or global shapes */
status manifest_add_shard(struct manifest *m, const char *set, const char *name, enum dtype dtype,
                          int dimensions, const int64_t *global_shape, const char *file,
                          const char *dataset, const int64_t *offset, const int64_t *shape);

/* manifest_check_tiling - check that the shards cover every tensor exactly once.
 *
 * Returns   false with the tensor and the fault in reason[MANIFEST_REASON_BYTES] */
bool manifest_check_tiling(const struct manifest *m, char *reason);

/* manifest_count_bytes - return the sum of the sizes of all files. */
int64_t manifest_count_bytes(const struct manifest *m);

/* manifest_rank_to_text - format the files and shards of one rank as text.
 *
 * Memory    the caller frees *out with free()
 * Errors    STATUS_INTERNAL */
status manifest_rank_to_text(const struct manifest *m, char **out);

/* manifest_merge_rank - add the files and shards of one rank from its text.
 *
 * Errors    STATUS_INTERNAL */
status manifest_merge_rank(struct manifest *m, const char *text);

/* manifest_to_text - format the complete manifest with its digest.
 *
 * Memory    the caller frees *out with free()
 * Errors    STATUS_INTERNAL */
status manifest_to_text(const struct manifest *m, char **out, size_t *out_bytes);

/* manifest_report_note - copy an error to reason[MANIFEST_REASON_BYTES], so that
 * manifest_lacks_memory recognizes a lack of memory. */
void manifest_report_note(const struct status_note *note, char *reason);

/* manifest_lacks_memory - return whether a reason is a lack of memory and not a damaged folder. */
bool manifest_lacks_memory(const char *reason);

/* manifest_parse - parse and check the text of a manifest: digest, version, names and tiling.
 *
 * Memory    the caller always releases *out with manifest_destroy
 * Returns   false with the fault in reason[MANIFEST_REASON_BYTES] */
bool manifest_parse(const char *text, size_t bytes, struct manifest *out, char *reason);

/* manifest_find_tensor - find a tensor by set and name; returns NULL if it does not exist. */
const struct manifest_tensor *manifest_find_tensor(const struct manifest *m, const char *set,
                                                   const char *name);
