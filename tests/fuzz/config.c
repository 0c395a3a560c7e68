/* Fuzz target: config.json of a model folder. An accepted file can be written and read again. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/fuzz/fuzz.h"
#include "trainer/formats/huggingface/config.h"

const struct fuzz_limits fuzz_limits = {.bytes = 2 << 20, .factor = 200};

static status write_config(const struct recipe *recipe, const struct labels *labels)
{
    struct huggingface_special_tokens tokens = {-1, -1, -1};
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    fuzz_require(file != NULL, "memory for a text");
    status result = huggingface_config_write(recipe, recipe->model.vocab_size, tokens, labels,
                                             SAFETENSORS_F32, file);
    fclose(file);
    fuzz_write_file("config.json", text, bytes);
    free(text);
    return result;
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    static struct recipe recipe, again;
    struct huggingface_config config = {0}, written = {0};
    fuzz_write_file("config.json", data, bytes);
    status result = huggingface_config_read(fuzz_folder(), NULL, &recipe, &config);
    if (result == STATUS_OK) {
        result = write_config(&recipe, &config.labels);
        fuzz_require(result == STATUS_OK, "a configuration can be written");
        result = huggingface_config_read(fuzz_folder(), NULL, &again, &written);
        fuzz_require(result == STATUS_OK, status_pending()->text);
    }
    labels_free(&config.labels);
    labels_free(&written.labels);
    return result;
}
