/* Fuzz target: GGUF files, their tensors, the tokenizers in them, and the import of a model. */
#include "trainer/formats/gguf/gguf.h"

#include <stdlib.h>

#include "base/file.h"
#include "base/memory.h"
#include "tests/fuzz/fuzz.h"
#include "trainer/formats/gguf/gguf_impl.h"
#include "trainer/formats/gguf/import.h"

const struct fuzz_limits fuzz_limits = {.bytes = 24 << 20, .factor = 512};

static status read_tensors(const struct gguf_file *file)
{
    enum { ELEMENTS_MAX = 1 << 16 };
    static float out[ELEMENTS_MAX];
    /* the names in the corpus */
    static const char *const names[] = {"a.weight", "b.weight", "c.weight"};
    for (int i = 0; i < COUNT(names); i++) {
        const struct gguf_tensor *tensor = gguf_find_tensor(file, names[i]);
        TRY(tensor != NULL && tensor->elements <= ELEMENTS_MAX ? gguf_read_tensor(file, tensor, out)
                                                               : STATUS_OK);
    }
    return STATUS_OK;
}

static status import_model(const char *path)
{
    static struct recipe recipe;
    struct huggingface_summary summary;
    char output[FILE_PATH_BYTES];
    TRY(file_join(output, fuzz_folder(), "out"));
    fuzz_require(file_remove_tree(output) == STATUS_OK, "the output can be removed");
    return gguf_import(path, NULL, output, NULL, 0, &recipe, &summary);
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    struct gguf_file *file;
    bool exists;
    const char *path = fuzz_write_file("model.gguf", data, bytes);
    TRY(gguf_open(path, &file));
    status result = read_tensors(file);
    if (result == STATUS_OK) {
        result = gguf_read_tokenizer(file, fuzz_folder(), &exists);
    }
    gguf_close(&file);
    return result == STATUS_OK ? import_model(path) : result;
}
