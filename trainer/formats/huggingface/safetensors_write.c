/* Writes safetensors files. All shapes are known in advance, so the header is written first and the
 * elements follow as a stream. The header is padded to a multiple of 8 bytes, which aligns the
 * elements if the file is mapped into memory. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/tensor.h"
#include "trainer/formats/huggingface/safetensors.h"

enum { BLOCK_ELEMENTS = 1 << 14, ALIGNMENT_BYTES = 8 };

struct safetensors_writer {
    char path[FILE_PATH_BYTES];
    int descriptor;
    int64_t bytes; /* written so far */
    enum safetensors_dtype dtype;
    int64_t left; /* elements not written yet */
};

static status append_bytes(struct safetensors_writer *w, const void *data, size_t bytes)
{
    return file_append(w->descriptor, w->path, &w->bytes, data, bytes);
}

static json_t *describe_tensor(const struct safetensors_shape *t, enum safetensors_dtype dtype,
                               int64_t *offset)
{
    bool is_matrix = t->dimensions == 2;
    int64_t first = *offset, elements = t->shape[0] * (is_matrix ? t->shape[1] : 1);
    *offset = first + elements * (dtype == SAFETENSORS_BF16 ? 2 : 4);
    json_t *shape = is_matrix
                        ? json_pack("[I, I]", (json_int_t)t->shape[0], (json_int_t)t->shape[1])
                        : json_pack("[I]", (json_int_t)t->shape[0]);
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype == SAFETENSORS_BF16 ? "BF16" : "F32",
                     "shape", shape, "data_offsets", (json_int_t)first, (json_int_t)*offset);
}

/* Makes the JSON header. "format": "pt" marks PyTorch's orientation; transformers requires it. */
static char *make_header(const struct safetensors_shape *tensors, int count,
                         enum safetensors_dtype dtype)
{
    int64_t offset = 0;
    json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    for (int i = 0; i < count; i++) {
        json_object_set_new(header, tensors[i].name, describe_tensor(&tensors[i], dtype, &offset));
    }
    char *text = json_dumps(header, JSON_COMPACT);
    json_decref(header);
    return text;
}

static status write_header(struct safetensors_writer *w, const struct safetensors_shape *tensors,
                           int count)
{
    static const char padding[ALIGNMENT_BYTES] = {' ', ' ', ' ', ' ', ' ', ' ', ' ', ' '};
    char *text = make_header(tensors, count, w->dtype);
    REQUIRE(text != NULL, STATUS_INTERNAL, "out of memory for the header of %s", w->path);
    size_t length = strlen(text), padding_bytes = (ALIGNMENT_BYTES - length % ALIGNMENT_BYTES) % 8;
    uint64_t header_bytes = length + padding_bytes;
    status result = append_bytes(w, &header_bytes, sizeof header_bytes);
    if (result == STATUS_OK) {
        result = append_bytes(w, text, length);
    }
    if (result == STATUS_OK) {
        result = append_bytes(w, padding, padding_bytes);
    }
    free(text);
    return result;
}

static status close_file(struct safetensors_writer **writer)
{
    struct safetensors_writer *w = *writer;
    bool closed = w->descriptor < 0 || close(w->descriptor) == 0;
    status result = STATUS_OK;
    if (!closed) {
        result = RAISE_STATUS(STATUS_WRITE, "cannot write %s: %s", w->path, strerror(errno));
    }
    free(w);
    *writer = NULL;
    return result;
}

status safetensors_create(const char *path, enum safetensors_dtype dtype,
                          const struct safetensors_shape *tensors, int count,
                          struct safetensors_writer **out)
{
    TRY(ALLOCATE(*out, 1, path));
    struct safetensors_writer *w = *out;
    snprintf(w->path, sizeof w->path, "%s", path);
    w->dtype = dtype;
    for (int i = 0; i < count; i++) {
        w->left += tensors[i].shape[0] * (tensors[i].dimensions == 2 ? tensors[i].shape[1] : 1);
    }
    w->descriptor = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    status result = STATUS_OK;
    if (w->descriptor < 0) {
        result = RAISE_STATUS(status_from_errno(errno, STATUS_CREATE, STATUS_CREATE),
                              "cannot create %s: %s", path, strerror(errno));
    }
    if (result == STATUS_OK) {
        result = write_header(w, tensors, count);
    }
    if (result != STATUS_OK) {
        (void)close_file(out);
    }
    return result;
}

status safetensors_write(struct safetensors_writer *w, const float *values, int64_t count)
{
    REQUIRE(count <= w->left, STATUS_INTERNAL, "%s: more elements than in its header", w->path);
    w->left -= count;
    if (w->dtype == SAFETENSORS_F32) {
        return append_bytes(w, values, (size_t)count * sizeof *values);
    }
    bf16 halves[BLOCK_ELEMENTS];
    for (int64_t done = 0; done < count;) {
        int64_t remaining = count - done, n = number_min(remaining, BLOCK_ELEMENTS);
        for (int64_t i = 0; i < n; i++) {
            halves[i] = f32_to_bf16(values[done + i]);
        }
        TRY(append_bytes(w, halves, (size_t)n * sizeof *halves));
        done += n;
    }
    return STATUS_OK;
}

status safetensors_finish(struct safetensors_writer **writer)
{
    const struct safetensors_writer *w = *writer;
    status result = STATUS_OK;
    if (w->left > 0) {
        result = RAISE_STATUS(STATUS_INTERNAL, "%s: %" PRId64 " elements fewer than in its header",
                              w->path, w->left);
    } else if (fsync(w->descriptor) != 0) {
        result = RAISE_STATUS(STATUS_WRITE, "cannot write %s: %s", w->path, strerror(errno));
    }
    KEEP_FIRST(result, close_file(writer));
    return result;
}
