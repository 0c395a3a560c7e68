/* Tensors in one file, as Hugging Face's safetensors keeps them:
 *
 *     8 bytes      N, the header's length, little-endian
 *     N bytes      JSON: {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
 *                  "__metadata__": {"KEY": "TEXT"}}, filled up with blanks
 *     the rest     the tensors, row by row, little-endian, back to back; offsets count from here
 *
 * Nothing in a file is trusted: the lengths, offsets and shapes of all tensors must describe exactly the bytes
 * that are there, without overlaps and holes. Elements are read and written in blocks, never a whole file.
 * Source: the format's description in github.com/huggingface/safetensors */
#pragma once

#include <stdint.h>

#include "base/status.h"

enum { SAFETENSORS_DIMENSIONS_MAX = 8 };

enum safetensors_dtype {
    SAFETENSORS_F32,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_OTHER /* known by its size alone; cannot be read */
};

struct safetensors_tensor {
    char *name;
    enum safetensors_dtype dtype;
    char dtype_name[16];
    int dimensions; /* 0: a scalar */
    int64_t shape[SAFETENSORS_DIMENSIONS_MAX];
    int64_t elements;
    int64_t first_byte, end_byte; /* in the file */
};

struct safetensors;

/* safetensors_open - read and check the header.
 *
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION; STATUS_DATA naming file, tensor and reason */
status safetensors_open(const char *path, struct safetensors **out);
void safetensors_close(struct safetensors **file);

const char *safetensors_path(const struct safetensors *file);

/* safetensors_tensors - all of them, in the order of their data. Memory: the file's. */
const struct safetensors_tensor *safetensors_tensors(const struct safetensors *file, int *count);

/* safetensors_find - NULL where there is none of that name. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name);

/* safetensors_read - elements [first, first + count) of a tensor, converted to f32.
 *
 * Numerics  exact: f32 holds every f16 and bf16
 * Errors    STATUS_DATA for a dtype that is neither, and where the file ends early */
status safetensors_read(const struct safetensors *file, const struct safetensors_tensor *tensor,
                        int64_t first, int64_t count, float *out);

/* ---- writing ---- */

struct safetensors_shape {
    const char *name;
    int dimensions; /* 1 or 2 */
    int64_t shape[2];
};

struct safetensors_writer;

/* safetensors_create - a file of these tensors, whose elements follow through safetensors_write.
 *
 * dtype     SAFETENSORS_F32 or SAFETENSORS_BF16
 * Errors    STATUS_CREATE, STATUS_PERMISSION, STATUS_WRITE naming the file */
status safetensors_create(const char *path, enum safetensors_dtype dtype,
                          const struct safetensors_shape *tensors, int count,
                          struct safetensors_writer **out);

/* safetensors_write - the next elements, of one tensor after the other, row by row.
 *
 * Numerics  bf16: rounded to nearest even
 * Errors    STATUS_WRITE; STATUS_INTERNAL for more elements than the header says */
status safetensors_write(struct safetensors_writer *writer, const float *values, int64_t count);

/* safetensors_finish - sync and close what was written; closed in any case.
 *
 * Errors    STATUS_WRITE; STATUS_INTERNAL for fewer elements than the header says */
status safetensors_finish(struct safetensors_writer **writer);
