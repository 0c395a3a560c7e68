/* Fuzz target: tokenizer.model. A tokenizer that is accepted encodes and decodes a text, and reads
 * back equal. */
#include "tests/fuzz/use_tokenizer.h"

const struct fuzz_limits fuzz_limits = {.bytes = 8 << 20, .factor = 1200};

status fuzz_read(const uint8_t *data, size_t bytes)
{
    fuzz_write_file("tokenizer.model", data, bytes);
    return use_tokenizer();
}
