/* Fuzz target: the import of a model folder. The parts of the input are config.json, the index of
 * the weights, and two files of weights. With an empty index there is one file. */
#include "base/file.h"
#include "tests/fuzz/fuzz.h"
#include "trainer/formats/huggingface/huggingface.h"

#include <stdio.h>
#include <unistd.h>

const struct fuzz_limits fuzz_limits = {.bytes = 16 << 20, .factor = 200};

static void write_folder(const char *folder, const uint8_t *data, size_t bytes)
{
    static const char *const indexed[] = {"in/config.json", "in/model.safetensors.index.json",
                                          "in/model-00001-of-00002.safetensors",
                                          "in/model-00002-of-00002.safetensors"};
    static const char *const whole[] = {"in/config.json", NULL, "in/model.safetensors", NULL};
    fuzz_require(file_remove_tree(folder) == STATUS_OK && file_make_folders(folder) == STATUS_OK,
                 "a folder can be created");
    struct fuzz_part parts[4];
    for (int i = 0; i < 4; i++) {
        parts[i] = fuzz_next_part(&data, &bytes);
    }
    const char *const *names = parts[1].bytes > 0 ? indexed : whole;
    for (int i = 0; i < 4; i++) {
        if (names[i] != NULL) {
            fuzz_write_file(names[i], parts[i].data, parts[i].bytes);
        }
    }
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    static struct recipe recipe;
    struct huggingface_summary summary;
    char folder[FILE_PATH_BYTES], output[FILE_PATH_BYTES];
    TRY(file_join(folder, fuzz_folder(), "in"));
    TRY(file_join(output, fuzz_folder(), "out"));
    write_folder(folder, data, bytes);
    fuzz_require(file_remove_tree(output) == STATUS_OK, "the output can be removed");
    return huggingface_import(folder, NULL, output, NULL, 0, &recipe, &summary);
}
