/* Fuzz target: tokenizer_config.json of ByT5, which is a tokenizer without other files. */
#include "tests/fuzz/use_tokenizer.h"

const struct fuzz_limits fuzz_limits = {.bytes = 16 << 20, .factor = 1200};

status fuzz_read(const uint8_t *data, size_t bytes)
{
    fuzz_write_file("tokenizer_config.json", data, bytes);
    return use_tokenizer();
}
