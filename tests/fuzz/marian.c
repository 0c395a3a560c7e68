/* Fuzz target: the tokenizer of Marian. The parts of the input are vocab.json, source.spm,
 * target.spm, tokenizer_config.json and target_vocab.json. The last two can be missing. A tokenizer
 * that is accepted encodes sources and targets. */
#include <unistd.h>

#include "datasets/tokenizer/text_pair.h"
#include "tests/fuzz/use_tokenizer.h"

const struct fuzz_limits fuzz_limits = {.bytes = 16 << 20, .factor = 1200};

static status encode_target(void)
{
    static const char text[] = ">>es<< Hello  World 3,14 \xe2\x96\x81\xff end";
    struct tokenizer *t = NULL;
    struct token_list ids = {0};
    TRY(tokenizer_open(fuzz_folder(), &t));
    status result = text_pair_encode_sequence(t, NULL, &(struct text){text, sizeof text - 1},
                                              TEXT_TARGET, -1, &ids);
    for (int64_t i = 0; i < ids.count; i++) {
        fuzz_require(ids.ids[i] >= 0 && ids.ids[i] < tokenizer_vocab_size(tokenizer_target(t)),
                     "ids are valid");
    }
    token_list_free(&ids);
    KEEP_FIRST(result, tokenizer_destroy(&t));
    return result;
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    struct fuzz_part vocab = fuzz_next_part(&data, &bytes);
    struct fuzz_part source = fuzz_next_part(&data, &bytes);
    struct fuzz_part target = fuzz_next_part(&data, &bytes);
    struct fuzz_part config = fuzz_next_part(&data, &bytes);
    struct fuzz_part targets = fuzz_next_part(&data, &bytes);
    fuzz_write_file("vocab.json", vocab.data, vocab.bytes);
    fuzz_write_file("source.spm", source.data, source.bytes);
    fuzz_write_file("target.spm", target.data, target.bytes);
    const char *path = fuzz_write_file("tokenizer_config.json", config.data, config.bytes);
    if (config.bytes == 0) {
        unlink(path);
    }
    path = fuzz_write_file("target_vocab.json", targets.data, targets.bytes);
    if (targets.bytes == 0) {
        unlink(path);
    }
    TRY(use_tokenizer());
    return encode_target();
}
