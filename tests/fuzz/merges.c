/* Fuzz target: vocab.json and merges.txt of GPT-2 or RoBERTa, with an optional
 * tokenizer_config.json. The parts are separated. */
#include <unistd.h>

#include "tests/fuzz/use_tokenizer.h"

const struct fuzz_limits fuzz_limits = {.bytes = 8 << 20, .factor = 300};

status fuzz_read(const uint8_t *data, size_t bytes)
{
    struct fuzz_part vocab = fuzz_next_part(&data, &bytes);
    struct fuzz_part merges = fuzz_next_part(&data, &bytes);
    struct fuzz_part config = fuzz_next_part(&data, &bytes);
    fuzz_write_file("vocab.json", vocab.data, vocab.bytes);
    fuzz_write_file("merges.txt", merges.data, merges.bytes);
    const char *path = fuzz_write_file("tokenizer_config.json", config.data, config.bytes);
    if (config.bytes == 0) {
        unlink(path);
    }
    return use_tokenizer();
}
