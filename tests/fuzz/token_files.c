/* Fuzz target: token files. The input is a file of llm.c, or the index of Megatron-LM, a separator
 * and its tokens. */
#include "base/file.h"
#include "datasets/prepare/prepare.h"
#include "tests/fuzz/small_tokenizer.h"

#include <unistd.h>

const struct fuzz_limits fuzz_limits = {.bytes = 16 << 20, .factor = 200};

status fuzz_read(const uint8_t *data, size_t bytes)
{
    char output[FILE_PATH_BYTES];
    struct prepare_report report = {0};
    struct fuzz_part first = fuzz_next_part(&data, &bytes);
    struct fuzz_part tokens = fuzz_next_part(&data, &bytes);
    bool megatron = tokens.bytes > 0;
    const char *index = fuzz_write_file("x.idx", first.data, first.bytes);
    struct fuzz_part content = megatron ? tokens : first;
    char *path = (char *)fuzz_write_file("x.bin", content.data, content.bytes);
    if (!megatron) {
        unlink(index);
    }
    TRY(file_join(output, fuzz_folder(), "out"));
    struct prepare_options options = {.tokenizer = small_tokenizer(TOKENIZER_BPE),
                                      .inputs = &path,
                                      .input_count = 1,
                                      .output = output,
                                      .shard_tokens = 1 << 20,
                                      .workers = 1};
    return prepare_clm(&options, &report);
}
