/* Fuzz target: the import of a folder of peft. The parts of the input are adapter_config.json and
 * adapter_model.safetensors. The base is a GPT-2 of two blocks, which is imported at the first
 * input. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tests/fuzz/fuzz.h"
#include "trainer/formats/huggingface/huggingface.h"

const struct fuzz_limits fuzz_limits = {.bytes = 16 << 20, .factor = 200};

enum { BLOCKS = 2, WIDTH = 4, INNER = 16, VOCABULARY = 8, POSITIONS = 4 };

/* Adds a tensor to the header, after *bytes bytes of data. columns 0: a vector. */
static void add_tensor(json_t *header, const char *name, int rows, int columns, int *bytes)
{
    int size = 4 * rows * (columns > 0 ? columns : 1);
    json_t *shape = columns > 0 ? json_pack("[i, i]", rows, columns) : json_pack("[i]", rows);
    json_object_set_new(header, name,
                        json_pack("{s:s, s:o, s:[i, i]}", "dtype", "F32", "shape", shape,
                                  "data_offsets", *bytes, *bytes + size));
    *bytes += size;
}

static void add_block(json_t *header, int block, int *bytes)
{
    static const struct {
        const char *name;
        int rows, columns;
    } tensors[] = {{"ln_1.weight", WIDTH, 0},
                   {"ln_1.bias", WIDTH, 0},
                   {"attn.c_attn.weight", WIDTH, 3 * WIDTH},
                   {"attn.c_attn.bias", 3 * WIDTH, 0},
                   {"attn.c_proj.weight", WIDTH, WIDTH},
                   {"attn.c_proj.bias", WIDTH, 0},
                   {"ln_2.weight", WIDTH, 0},
                   {"ln_2.bias", WIDTH, 0},
                   {"mlp.c_fc.weight", WIDTH, INNER},
                   {"mlp.c_fc.bias", INNER, 0},
                   {"mlp.c_proj.weight", INNER, WIDTH},
                   {"mlp.c_proj.bias", WIDTH, 0}};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        char name[64];
        snprintf(name, sizeof name, "h.%d.%s", block, tensors[i].name);
        add_tensor(header, name, tensors[i].rows, tensors[i].columns, bytes);
    }
}

/* Writes a file of weights that are all 0. */
static void write_weights(void)
{
    json_t *header = json_object();
    int bytes = 0;
    add_tensor(header, "wte.weight", VOCABULARY, WIDTH, &bytes);
    add_tensor(header, "wpe.weight", POSITIONS, WIDTH, &bytes);
    for (int i = 0; i < BLOCKS; i++) {
        add_block(header, i, &bytes);
    }
    add_tensor(header, "ln_f.weight", WIDTH, 0, &bytes);
    add_tensor(header, "ln_f.bias", WIDTH, 0, &bytes);
    char *text = json_dumps(header, JSON_COMPACT);
    uint64_t length = strlen(text);
    size_t size = sizeof length + length + (size_t)bytes;
    char *data = calloc(size, 1);
    fuzz_require(data != NULL, "memory for a file");
    memcpy(data, &length, sizeof length);
    memcpy(data + sizeof length, text, length);
    fuzz_write_file("gpt2/model.safetensors", data, size);
    free(data);
    free(text);
    json_decref(header);
}

static const char *get_base(void)
{
    static const char config[] =
        "{\"model_type\": \"gpt2\", \"architectures\": [\"GPT2LMHeadModel\"], \"vocab_size\": 8, "
        "\"n_embd\": 4, \"n_head\": 2, \"n_layer\": 2, \"n_positions\": 4}";
    static char base[FILE_PATH_BYTES];
    static struct recipe recipe;
    struct huggingface_summary summary;
    char folder[FILE_PATH_BYTES];
    if (base[0] == '\0') {
        status result = file_join(folder, fuzz_folder(), "gpt2");
        KEEP_FIRST(result, file_join(base, fuzz_folder(), "base"));
        KEEP_FIRST(result, file_make_folders(folder));
        fuzz_write_file("gpt2/config.json", config, sizeof config - 1);
        write_weights();
        KEEP_FIRST(result, huggingface_import(folder, NULL, base, NULL, 0, &recipe, &summary));
        fuzz_require(result == STATUS_OK, status_pending()->text);
    }
    return base;
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    static struct recipe recipe;
    struct huggingface_summary summary;
    char folder[FILE_PATH_BYTES], output[FILE_PATH_BYTES];
    const char *base = get_base();
    struct fuzz_part config = fuzz_next_part(&data, &bytes);
    TRY(file_join(folder, fuzz_folder(), "in"));
    TRY(file_join(output, fuzz_folder(), "out"));
    TRY(file_make_folders(folder));
    TRY(file_remove_tree(output));
    fuzz_write_file("in/adapter_config.json", config.data, config.bytes);
    fuzz_write_file("in/adapter_model.safetensors", data, bytes);
    return huggingface_import_adapter(folder, base, output, &recipe, &summary);
}
