/* Fuzz target: the texts of pre-training, also compressed. The bits of the first byte select the
 * objective, the tokenizer, the unit of a document and the name of the file; the rest is the
 * file. */
#include "base/file.h"
#include "datasets/prepare/prepare.h"
#include "tests/fuzz/small_tokenizer.h"

/* liblzma allocates windows that do not depend on the size of the file. */
const struct fuzz_limits fuzz_limits = {.bytes = (size_t)1200 << 20, .factor = 600};

enum { MLM = 1, LINES = 2, PARAGRAPHS = 4, NAMES = 4 };

status fuzz_read(const uint8_t *data, size_t bytes)
{
    static const char *const names[NAMES] = {"x.txt", "x.jsonl", "x.csv", "x.tsv.gz"};
    char output[FILE_PATH_BYTES];
    struct prepare_report report = {0};
    uint8_t choice = bytes > 0 ? *data : 0;
    const struct tokenizer *bpe = small_tokenizer(TOKENIZER_BPE); /* both at the first input */
    const struct tokenizer *wordpiece = small_tokenizer(TOKENIZER_WORDPIECE);
    bool mlm = (choice & MLM) != 0;
    char *path =
        (char *)fuzz_write_file(names[choice / 8 % NAMES], data + (bytes > 0), bytes - (bytes > 0));
    TRY(file_join(output, fuzz_folder(), "out"));
    struct prepare_options options = {.tokenizer = mlm ? wordpiece : bpe,
                                      .inputs = &path,
                                      .input_count = 1,
                                      .output = output,
                                      .shard_tokens = 1 << 20,
                                      .sequence_tokens = 32,
                                      .workers = 1,
                                      .validation_fraction = (choice & 0x40) != 0 ? 0.25 : 0,
                                      .shuffle_split = (choice & 0x80) != 0,
                                      .document_unit = (choice & LINES) != 0 ? PREPARE_DOCUMENT_LINE
                                                       : (choice & PARAGRAPHS) != 0
                                                           ? PREPARE_DOCUMENT_PARAGRAPH
                                                           : PREPARE_DOCUMENT_FILE};
    return (mlm ? prepare_mlm : prepare_clm)(&options, &report);
}
