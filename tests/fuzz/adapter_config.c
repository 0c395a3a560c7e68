/* Fuzz target: adapter_config.json of peft, with its patterns of module names. */
#include "base/memory.h"
#include "tests/fuzz/fuzz.h"
#include "trainer/formats/huggingface/adapter_config_impl.h"

const struct fuzz_limits fuzz_limits = {.bytes = 1 << 20, .factor = 200};

static status read_targets(const struct adapter_config *config)
{
    static const char *const modules[] = {"h.0.attn.c_attn", "h.11.mlp.c_proj",
                                          "model.layers.10.self_attn.q_proj", "score"};
    bool selected;
    for (int i = 0; i < COUNT(modules); i++) {
        TRY(adapter_config_is_target(config, modules[i], &selected));
    }
    return STATUS_OK;
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    struct adapter_config config;
    enum recipe_objective objective;
    fuzz_write_file("adapter_config.json", data, bytes);
    status result = adapter_config_read(fuzz_folder(), &config);
    if (result == STATUS_OK) {
        result = adapter_config_find_objective(&config, huggingface_find_architecture("gpt2"), 2,
                                               &objective);
    }
    if (result == STATUS_OK) {
        result = read_targets(&config);
    }
    adapter_config_free(&config);
    return result;
}
