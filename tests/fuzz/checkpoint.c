/* Fuzz target: a checkpoint folder. The input is a manifest and, after a separator, the HDF5 file
 * with the tensors. The digest of the manifest is corrected. All tensors are read. */
#include <stdlib.h>

#include "tests/fuzz/sign_manifest.h"
#include "trainer/formats/checkpoint/reader.h"

const struct fuzz_limits fuzz_limits = {.bytes = 8 << 20, .factor = 200};

static status read_tensor(struct checkpoint_reader *reader, const struct manifest_tensor *tensor,
                          float *block)
{
    int64_t offset[2] = {0, 0}, shape[2];
    while (checkpoint_reader_block(tensor, offset, shape)) {
        TRY(checkpoint_reader_read(reader, tensor, offset, shape, block));
        checkpoint_reader_next_block(tensor, offset, shape);
    }
    return STATUS_OK;
}

static status read_all(const char *folder, float *block)
{
    struct checkpoint_reader *reader = NULL;
    TRY(checkpoint_reader_open(folder, &reader));
    const struct manifest *m = checkpoint_reader_manifest(reader);
    status result = STATUS_OK;
    for (int i = 0; i < m->tensor_count && result == STATUS_OK; i++) {
        result = read_tensor(reader, &m->tensors[i], block);
    }
    checkpoint_reader_close(&reader);
    return result;
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    static float *block;
    struct fuzz_part manifest = fuzz_next_part(&data, &bytes);
    struct fuzz_part tensors = fuzz_next_part(&data, &bytes);
    size_t text_bytes = 0;
    char *text = sign_manifest(manifest.data, manifest.bytes, &text_bytes);
    fuzz_write_file(MANIFEST_FILE, text, text_bytes);
    free(text);
    fuzz_write_file("model-00000-of-00001.h5", tensors.data, tensors.bytes);
    block = block != NULL ? block : malloc(CHECKPOINT_READ_ELEMENTS * sizeof *block);
    fuzz_require(block != NULL, "memory for a block");
    return read_all(fuzz_folder(), block);
}
