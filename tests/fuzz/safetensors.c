/* Fuzz target: safetensors files. The input is a file, or its header, a separator and its data; the
 * length of the header is then correct. All tensors are found by name and read. */
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "tests/fuzz/fuzz.h"
#include "trainer/formats/huggingface/safetensors.h"

enum { BLOCK_ELEMENTS = 4096 };

const struct fuzz_limits fuzz_limits = {.bytes = 1 << 20, .factor = 16};

static status read_tensor(const struct safetensors *file, const struct safetensors_tensor *tensor)
{
    float block[BLOCK_ELEMENTS];
    fuzz_require(safetensors_find(file, tensor->name) != NULL, "a tensor is found by its name");
    for (int64_t done = 0; done < tensor->elements; done += BLOCK_ELEMENTS) {
        int64_t left = tensor->elements - done;
        TRY(safetensors_read(file, tensor, done, number_min(left, BLOCK_ELEMENTS), block));
    }
    return STATUS_OK;
}

static const char *write_file(const uint8_t *data, size_t bytes)
{
    struct fuzz_part header = fuzz_next_part(&data, &bytes);
    uint64_t length = header.bytes;
    if (bytes == 0) {
        return fuzz_write_file("model.safetensors", header.data, header.bytes);
    }
    char *text = malloc(sizeof length + header.bytes + bytes);
    fuzz_require(text != NULL, "memory for a file");
    memcpy(text, &length, sizeof length);
    memcpy(text + sizeof length, header.data, header.bytes);
    memcpy(text + sizeof length + header.bytes, data, bytes);
    const char *path =
        fuzz_write_file("model.safetensors", text, sizeof length + header.bytes + bytes);
    free(text);
    return path;
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    int count;
    struct safetensors *file = NULL;
    TRY(safetensors_open(write_file(data, bytes), &file));
    const struct safetensors_tensor *tensors = safetensors_tensors(file, &count);
    status result = STATUS_OK;
    for (int i = 0; i < count && result == STATUS_OK; i++) {
        result = read_tensor(file, &tensors[i]);
    }
    safetensors_close(&file);
    return result;
}
