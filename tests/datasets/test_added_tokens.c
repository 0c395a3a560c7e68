/* Added tokens that are not special in long documents: a document is never split inside of one. */
#include "base/memory.h"
#include "base/random.h"
#include "datasets/prepare/splitter.h"
#include "tests/datasets/added_tokens.h"
#include "tests/datasets/train_tokenizer.h"

static struct tokenizer *tokenizer;

/* Tokens across word boundaries, one that absorbs white space, and a special one. */
static void make_tokenizer(void)
{
    static const struct added_content contents[] = {
        {"x the", false, false},    {"_name\n", false, false}, {"  ", false, false},
        {"merges 26", true, false}, {"don't", false, true},    {" größe.", false, false}};
    static const char text[] = "the merges of the words and the words of the merges 26 don't";
    struct tokenizer *bpe = NULL;
    char *path = folder_file("text");
    folder_write(path, text, sizeof text - 1);
    CHECK_OK(train_tokenizer(TOKENIZER_BPE, 300, &path, 1, 1, &bpe));
    tokenizer = added_tokens_make(bpe, contents, COUNT(contents));
    CHECK_OK(tokenizer_destroy(&bpe));
}

/* At each position that both functions allow, the two parts have the ids of the whole text. */
static void test_boundaries(uint64_t seed)
{
    static const char *const parts[] = {" the", "x", " merges", " 26",   "\n", "_name", "don't",
                                        "  ",   " ", " größe",  " 文字", ".",  "a",     "\r\n"};
    char text[600] = "";
    struct token_list whole = {0}, split = {0};
    size_t bytes = 0;
    for (uint64_t i = 0; bytes < 500; i++) {
        const char *part = parts[random_below(seed, i, COUNT(parts))];
        bytes += (size_t)snprintf(text + bytes, sizeof text - bytes, "%s", part);
    }
    CHECK_OK(tokenizer_encode(tokenizer, text, bytes, false, &whole));
    for (size_t position = 1; position < bytes; position++) {
        if (splitter_is_boundary(text, bytes, position, false) &&
            tokenizer_is_added_boundary(tokenizer, text, bytes, position)) {
            split.count = 0;
            CHECK_OK(tokenizer_encode(tokenizer, text, position, false, &split));
            CHECK_OK(tokenizer_encode(tokenizer, text + position, bytes - position, false, &split));
            CHECK_EQUAL(split.count, whole.count);
            CHECK(memcmp(split.ids, whole.ids, (size_t)whole.count * sizeof *whole.ids) == 0);
        }
    }
    token_list_free(&whole);
    token_list_free(&split);
}

static void test_positions(void)
{
    CHECK(!tokenizer_is_added_boundary(tokenizer, "x the", 5, 1));
    CHECK(!tokenizer_is_added_boundary(tokenizer, "x t", 3, 1)); /* perhaps "x the" */
    CHECK(tokenizer_is_added_boundary(tokenizer, "a the", 5, 1));
    CHECK(!tokenizer_is_added_boundary(tokenizer, "don't the", 9, 5));
    CHECK(tokenizer_is_added_boundary(tokenizer, "dont the", 8, 4));
}

static status collect_tokens(void *user, const int32_t *ids, int64_t count)
{
    return token_list_append(user, ids, count);
}

static status end_document(void *user)
{
    (void)user;
    return STATUS_OK;
}

/* Every space but one in 30,000 bytes is inside of an added token. */
static void test_long_document(void)
{
    enum { UNITS = 60000 };
    static char text[5 * UNITS + 32], buffer[ENCODER_CHUNK_BYTES];
    struct token_list whole = {0}, tokens = {0};
    struct prepare_report report = {0};
    struct encoder *encoder = NULL;
    const struct encoder_sink sink = {
        .user = &tokens, .write_tokens = collect_tokens, .end_document = end_document};
    struct splitter splitter = {.tokenizer = tokenizer, .report = &report, .buffer = buffer};
    size_t bytes = 0;
    for (int i = 0; i < UNITS; i++) {
        memcpy(text + bytes, i % 6000 == 1000 ? "a the" : "x the", 5);
        bytes += 5;
    }
    CHECK_OK(tokenizer_encode(tokenizer, text, bytes, false, &whole));
    CHECK_OK(encoder_open(tokenizer, 1, sink, &encoder));
    splitter.encoder = encoder;
    splitter_begin_document(&splitter, (struct encoder_origin){.path = "text"});
    CHECK_OK(splitter_write(&splitter, text, bytes));
    CHECK_OK(splitter_end_document(&splitter));
    CHECK_OK(encoder_drain(encoder));
    encoder_close(&encoder);
    CHECK_EQUAL(report.forced_splits, 0);
    CHECK_EQUAL(tokens.count, whole.count + 1); /* the end token */
    CHECK(memcmp(tokens.ids, whole.ids, (size_t)whole.count * sizeof *whole.ids) == 0);
    token_list_free(&whole);
    token_list_free(&tokens);
}

int main(void)
{
    folder_make();
    make_tokenizer();
    for (uint64_t seed = 0; seed < 40; seed++) {
        test_boundaries(seed);
    }
    test_positions();
    test_long_document();
    CHECK_OK(tokenizer_destroy(&tokenizer));
    return 0;
}
