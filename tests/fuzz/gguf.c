/* Fuzz target: GGUF files, their tensors, and the tokenizers in them. */
#include "trainer/gguf/gguf.h"

#include <stdlib.h>

#include "tests/fuzz/fuzz.h"
#include "trainer/gguf/gguf_impl.h"

const struct fuzz_limits fuzz_limits = {.bytes = 8 << 20, .factor = 512};

static status read_tensors(const struct gguf_file *file)
{
    enum { ELEMENTS_MAX = 1 << 16 };
    static float out[ELEMENTS_MAX];
    int64_t count;
    const struct gguf_tensor *tensors = gguf_tensors(file, &count);
    for (int64_t i = 0; i < count; i++) {
        TRY(tensors[i].elements <= ELEMENTS_MAX ? gguf_read_tensor(file, &tensors[i], out)
                                                : STATUS_OK);
    }
    return STATUS_OK;
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    struct gguf_file *file;
    bool exists;
    TRY(gguf_open(fuzz_write_file("model.gguf", data, bytes), &file));
    status result = read_tensors(file);
    if (result == STATUS_OK) {
        result = gguf_read_tokenizer(file, fuzz_folder(), &exists);
    }
    gguf_close(&file);
    return result;
}
