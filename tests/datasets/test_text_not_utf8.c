/* Tests of text files that are not UTF-8: an error that names the line, except with a byte-level
 * tokenizer, which encodes all bytes as they are. */
#include "base/log.h"
#include "datasets/prepare/prepare.h"
#include "datasets/shard/shard.h"
#include "tests/check.h"
#include "tests/datasets/folder.h"
#include "tests/datasets/train_tokenizer.h"

enum { BLOCK = 256 << 10 }; /* a file is read in blocks of this size */

static struct tokenizer *bpe, *wordpiece, *characters;

static void train_tokenizers(void)
{
    static const char text[] = "a b c\n中 ab";
    char *files[] = {folder_file("train.txt")};
    folder_write(files[0], text, sizeof text - 1);
    CHECK_OK(train_tokenizer(TOKENIZER_BPE, 257, files, 1, 1, &bpe));
    CHECK_OK(train_tokenizer(TOKENIZER_WORDPIECE, 40, files, 1, 1, &wordpiece));
    CHECK_OK(train_tokenizer(TOKENIZER_CHAR, 0, files, 1, 1, &characters));
}

static struct prepare_options make_options(const struct tokenizer *t, char *const *input)
{
    return (struct prepare_options){.tokenizer = t,
                                    .inputs = input,
                                    .input_count = 1,
                                    .output = folder_file("out"),
                                    .shard_tokens = 1 << 20,
                                    .workers = 1,
                                    .sequence_tokens = 16};
}

/* Writes letters, and a character of three bytes of which the first `split` are before the end of a
 * block; the file ends after `bytes` bytes of the character. */
static void write_split_character(const char *path, int split, int bytes)
{
    char *text = malloc(BLOCK + 8);
    CHECK(text != NULL);
    memset(text, 'a', BLOCK);
    text[1] = '\n';
    memcpy(text + BLOCK - split, "中", 3);
    folder_write(path, text, (size_t)(BLOCK - split + bytes));
    free(text);
}

static void test_ends_of_blocks(void)
{
    char *input[] = {folder_file("cut.txt")};
    struct prepare_options o = make_options(characters, input);
    struct prepare_report report;
    for (int split = 0; split <= 3; split++) {
        write_split_character(input[0], split, 3);
        CHECK_OK(prepare_clm(&o, &report));
        CHECK_EQUAL(report.train_tokens, BLOCK - split + 1);
        for (int bytes = 1; bytes < 3; bytes++) {
            write_split_character(input[0], split, bytes);
            CHECK_FAILS(prepare_clm(&o, &report), STATUS_DATA, "cut.txt:2: the byte 0xe4");
        }
    }
}

static void test_refused(void)
{
    char *input[] = {folder_file("latin1.txt")};
    struct prepare_options o = make_options(wordpiece, input);
    struct prepare_report report;
    folder_write(input[0], "a b.\nc \xe9 a.\n\xff", 13);
    CHECK_FAILS(prepare_mlm(&o, &report), STATUS_DATA, "latin1.txt:2: the byte 0xe9");
    o.document_unit = PREPARE_DOCUMENT_LINE;
    CHECK_FAILS(prepare_clm(&o, &report), STATUS_DATA, "latin1.txt:2: the byte 0xe9");
}

/* The shard contains the bytes of the file, and one warning names the first invalid byte. */
static void test_byte_level(void)
{
    static const char text[] = "a\xff b\n\xc3";
    char *input[] = {folder_file("bytes.txt")}, *decoded;
    struct prepare_options o = make_options(bpe, input);
    struct prepare_report report;
    struct shard *shard;
    int32_t ids[16];
    size_t bytes;
    folder_write(input[0], text, sizeof text - 1);
    log_keep_warnings();
    CHECK_OK(prepare_clm(&o, &report));
    struct log_entry *warning = log_take_warning();
    CHECK(warning != NULL && strcmp(warning->name, "TEXT") == 0);
    CHECK(strstr(warning->text, "bytes.txt:1: the byte 0xff") != NULL);
    CHECK(log_take_warning() == NULL);
    free(warning);
    CHECK_OK(shard_open(folder_file("out/train-00000-of-00001.h5"), &shard));
    int64_t count = shard_get_header(shard)->tokens;
    CHECK(count <= 16);
    CHECK_OK(shard_read(shard, 0, count, ids));
    CHECK_OK(tokenizer_decode(bpe, ids, count, true, &decoded, &bytes));
    CHECK(bytes == sizeof text - 1 && memcmp(decoded, text, bytes) == 0);
    free(decoded);
    CHECK_OK(shard_close(&shard));
}

int main(void)
{
    folder_make();
    train_tokenizers();
    test_ends_of_blocks();
    test_refused();
    test_byte_level();
    CHECK_OK(tokenizer_destroy(&bpe));
    CHECK_OK(tokenizer_destroy(&wordpiece));
    CHECK_OK(tokenizer_destroy(&characters));
    return 0;
}
