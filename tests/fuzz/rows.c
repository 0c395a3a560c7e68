/* Fuzz target: the rows of the fine-tuning objectives. The first byte selects the objective, and
 * its bit 7 selects CSV instead of JSON Lines; the rest is the file. */
#include "base/file.h"
#include "base/memory.h"
#include "datasets/chat/chat.h"
#include "datasets/prepare/prepare.h"
#include "tests/fuzz/small_tokenizer.h"

const struct fuzz_limits fuzz_limits = {.bytes = 32 << 20, .factor = 300};

typedef status prepare_function(const struct prepare_options *options, struct prepare_report *out);

static prepare_function *const functions[] = {
    prepare_sft,    prepare_preferences, prepare_classify, prepare_regress, prepare_classify_tokens,
    prepare_answer, prepare_choose,      prepare_embed,    prepare_seq2seq};

enum { FUNCTIONS = COUNT(functions), DECODERS = 2, CSV = 0x80 };

/* Returns the template of the objectives with messages. */
static const struct chat_template *get_template(const struct tokenizer *tokenizer)
{
    static struct chat_template *t;
    if (t == NULL) {
        status result = chat_install("chatml", fuzz_folder(), tokenizer);
        KEEP_FIRST(result, chat_open(fuzz_folder(), tokenizer, &t));
        fuzz_require(result == STATUS_OK, status_pending()->text);
    }
    return t;
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    char output[FILE_PATH_BYTES];
    struct prepare_report report = {0};
    uint8_t choice = bytes > 0 ? *data : 0;
    int function = (choice & 0x3f) % FUNCTIONS;
    const struct tokenizer *bpe = small_tokenizer(TOKENIZER_BPE); /* both at the first input */
    const struct tokenizer *wordpiece = small_tokenizer(TOKENIZER_WORDPIECE);
    const struct tokenizer *t = function < DECODERS ? bpe : wordpiece;
    const char *name = (choice & CSV) != 0 ? "rows.csv" : "rows.jsonl";
    char *path = (char *)fuzz_write_file(name, data + (bytes > 0), bytes - (bytes > 0));
    TRY(file_join(output, fuzz_folder(), "out"));
    struct prepare_options options = {.tokenizer = t,
                                      .inputs = &path,
                                      .input_count = 1,
                                      .output = output,
                                      .shard_tokens = 1 << 20,
                                      .sequence_tokens = 32,
                                      .workers = 1,
                                      .skip_bad_rows = (choice & 0x40) != 0,
                                      .chat_template =
                                          function < DECODERS ? get_template(t) : NULL};
    return functions[function](&options, &report);
}
