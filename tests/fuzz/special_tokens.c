/* Fuzz target: the special tokens of a model folder. The parts of the input are tokenizer.json,
 * tokenizer_config.json and special_tokens_map.json; the last two can be missing. The tokenizer
 * gets further tokens, as with `import --add-tokens`, and a pad token, as in an export. */
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/fuzz/fuzz.h"
#include "trainer/formats/huggingface/added_tokens.h"
#include "trainer/formats/huggingface/pad_token.h"

const struct fuzz_limits fuzz_limits = {.bytes = 8 << 20, .factor = 400};

static void write_optional(const char *name, struct fuzz_part part)
{
    const char *path = fuzz_write_file(name, part.data, part.bytes);
    if (part.bytes == 0) {
        unlink(path);
    }
}

/* The pad token of the written folder is the one that was chosen. */
static status use_pad_token(const char *folder)
{
    struct tokenizer *t = NULL, *again = NULL;
    struct pad_token pad = {.id = -1};
    TRY(tokenizer_open(folder, &t));
    status result = pad_token_choose_or_end(t, folder, &pad);
    if (result == STATUS_OK) {
        result = pad_token_choose(t, folder, &pad);
    }
    if (result == STATUS_OK) {
        fuzz_require(pad.id >= 0 && pad.id <= tokenizer_vocab_size(t) &&
                         (pad.id == tokenizer_vocab_size(t)) == pad.is_new,
                     "the id of a pad token is in the vocabulary, or is the next one");
        result = pad_token_write(&pad, folder);
    }
    if (result == STATUS_OK) {
        result = tokenizer_open(folder, &again);
        fuzz_require(result == STATUS_OK && tokenizer_find(again, pad.text) == pad.id,
                     "the written tokenizer has the pad token");
    }
    (void)tokenizer_destroy(&again);
    (void)tokenizer_destroy(&t);
    return result;
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    static char first[] = "<|first|>", second[] = "<unk>";
    static char *const tokens[] = {first, second};
    struct fuzz_part tokenizer = fuzz_next_part(&data, &bytes);
    char output[FILE_PATH_BYTES];
    int64_t vocab_size = 0;
    const struct huggingface_import_job job = {
        .folder = fuzz_folder(), .tokens = tokens, .token_count = 2};
    fuzz_write_file("tokenizer.json", tokenizer.data, tokenizer.bytes);
    write_optional("tokenizer_config.json", fuzz_next_part(&data, &bytes));
    write_optional("special_tokens_map.json", fuzz_next_part(&data, &bytes));
    TRY(file_join(output, fuzz_folder(), "out"));
    TRY(file_remove_tree(output));
    TRY(added_tokens_make_tokenizer(&job, output, &vocab_size));
    fuzz_require(vocab_size > 0, "a tokenizer has ids");
    return use_pad_token(output);
}
