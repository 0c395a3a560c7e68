/* Reads and writes files in Hugging Face's safetensors format:
 *
 *     8 bytes      N, the length of the header, little-endian
 *     N bytes      JSON: {"NAME": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ...,
 *                  "__metadata__": {"KEY": "TEXT"}}, padded with blanks
 *     the rest     contiguous row-major tensors, little-endian; offsets count from here
 *
 * Files are not trusted: the lengths, offsets and shapes of all tensors must describe exactly the
 * bytes of the file, without overlaps and gaps. A file has at most 2^18 tensors, so the memory is
 * at most 64 MB more than the header. Elements are read and written in blocks.
 *
 * Source    format description in github.com/huggingface/safetensors */
#pragma once

#include <stdint.h>

#include "base/status.h"

enum { SAFETENSORS_DIMENSIONS_MAX = 8 };

enum safetensors_dtype {
    SAFETENSORS_F32,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_OTHER /* only the element size is known; cannot be read */
};

struct safetensors_tensor {
    const char *name;
    enum safetensors_dtype dtype;
    char dtype_name[16];
    int dimensions; /* 0: a scalar */
    int64_t shape[SAFETENSORS_DIMENSIONS_MAX];
    int64_t elements;
    int64_t first_byte, end_byte; /* in the file */
};

struct safetensors;

/* safetensors_open - open a file, read its header and check it.
 *
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION; STATUS_DATA naming file, tensor and reason */
status safetensors_open(const char *path, struct safetensors **out);

/* safetensors_close - close the file and set *file to NULL; *file may be NULL. */
void safetensors_close(struct safetensors **file);

/* safetensors_path - return the path of the file. */
const char *safetensors_path(const struct safetensors *file);

/* safetensors_tensors - return all tensors in the order of their data.
 *
 * Memory    owned by file */
const struct safetensors_tensor *safetensors_tensors(const struct safetensors *file, int *count);

/* safetensors_find - find a tensor by name; NULL if there is none. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name);

/* safetensors_read - read elements [first, first + count) of a tensor and convert them to f32.
 *
 * Numerics  exact: f32 holds every f16 and bf16
 * Errors    STATUS_DATA for another dtype, or if the file ends early */
status safetensors_read(const struct safetensors *file, const struct safetensors_tensor *tensor,
                        int64_t first, int64_t count, float *out);

/* ---- writing ---- */

struct safetensors_shape {
    const char *name;
    int dimensions; /* 1 or 2 */
    int64_t shape[2];
};

struct safetensors_writer;

/* safetensors_create - create a file and write its header; safetensors_write adds the elements.
 *
 * Units     dtype: SAFETENSORS_F32 or SAFETENSORS_BF16
 * Errors    STATUS_CREATE, STATUS_PERMISSION, STATUS_WRITE naming the file */
status safetensors_create(const char *path, enum safetensors_dtype dtype,
                          const struct safetensors_shape *tensors, int count,
                          struct safetensors_writer **out);

/* safetensors_write - append elements, tensor by tensor and row by row.
 *
 * Numerics  bf16: rounded to nearest even
 * Errors    STATUS_WRITE; STATUS_INTERNAL for more elements than in the header */
status safetensors_write(struct safetensors_writer *writer, const float *values, int64_t count);

/* safetensors_finish - sync and close the file; it is closed after an error too.
 *
 * Errors    STATUS_WRITE; STATUS_INTERNAL for fewer elements than in the header */
status safetensors_finish(struct safetensors_writer **writer);
