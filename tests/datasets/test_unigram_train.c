/* Training of Unigram tokenizers: the seeds against a count of all substrings, the length of a text
 * in bits against the package sentencepiece, and a text that is encoded and decoded. */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "datasets/sentencepiece/unigram_train.h"
#include "datasets/tokenizer/tokenizer_impl.h"
#include "tests/datasets/folder.h"
#include "tests/datasets/train_tokenizer.h"

/* ---- seeds ---- */

/* Counts how often a string occurs in the words, and with how many different next characters. */
static int64_t count_string(const struct unigram_word *words, int64_t count, const char *text,
                            size_t bytes, int *continuations)
{
    int64_t found = 0;
    int last = -1; /* byte after the string; 0: the end of a word */
    *continuations = 0;
    for (int64_t w = 0; w < count; w++) {
        for (size_t i = 0; i + bytes <= words[w].bytes; i++) {
            if (memcmp(words[w].text + i, text, bytes) != 0) {
                continue;
            }
            int next = i + bytes < words[w].bytes ? (unsigned char)words[w].text[i + bytes] : 0;
            *continuations += next != last || next == 0;
            last = next;
            found += words[w].count;
        }
    }
    return found;
}

static int64_t find_seed(const struct unigram_piece *pieces, int64_t count, const char *text,
                         size_t bytes)
{
    int64_t found = -1;
    for (int64_t i = 0; i < count; i++) {
        if (pieces[i].bytes == bytes && memcmp(pieces[i].text, text, bytes) == 0) {
            CHECK_EQUAL(found, -1); /* no seed is listed twice */
            found = i;
        }
    }
    return found;
}

/* Every seed has the count of the string. Every string that several characters follow is a seed. */
static void test_seeds(void)
{
    static const struct unigram_word words[] = {
        {"banana", 6, 3},      {"bandana", 7, 1},
        {"ananas", 6, 2},      {"\xC3\xA4\xC3\xA4nan", 7, 5},
        {"nan\xC3\xA4", 5, 1}, {"abcdefghijklmnopqrstuvwxyz", 26, 2},
        {"once", 4, 4},        {"n", 1, 9},
    };
    enum { WORDS = COUNT(words) };
    struct unigram_piece *pieces = NULL;
    int64_t count = 0, characters = 0;
    CHECK_OK(unigram_find_seeds(words, WORDS, 1000, &pieces, &count, &characters));
    CHECK_EQUAL(characters, 27);
    for (int64_t i = 0; i < count; i++) {
        int continuations;
        size_t letters = 0;
        for (size_t k = 0; k < pieces[i].bytes; k++) {
            letters += ((unsigned char)pieces[i].text[k] & 0xC0) != 0x80;
        }
        CHECK(letters <= UNIGRAM_PIECE_CHARACTERS && (letters == 1) == (i < characters));
        int64_t expected =
            count_string(words, WORDS, pieces[i].text, pieces[i].bytes, &continuations);
        CHECK_NEAR(pieces[i].score, (double)letters * (double)expected, 0);
    }
    CHECK(find_seed(pieces, count, "ana", 3) >= characters);
    CHECK(find_seed(pieces, count, "nan", 3) >= characters);
    CHECK(find_seed(pieces, count, "\xC3\xA4n", 3) == -1); /* "an" always follows */
    CHECK(find_seed(pieces, count, "once", 4) >= characters);
    CHECK(find_seed(pieces, count, "bandana", 7) == -1); /* occurs once */
    CHECK(find_seed(pieces, count, "ban", 3) >= characters);
    struct unigram_piece *few = NULL;
    int64_t few_count = 0;
    CHECK_OK(unigram_find_seeds(words, WORDS, 2, &few, &few_count, &characters));
    CHECK_EQUAL(few_count, characters + 2);
    CHECK(few[characters].score >= few[characters + 1].score);
    free(few);
    free(pieces);
}

/* A model of one word: its probability is 1, because the pieces inside it are not needed. */
static void test_one_word(void)
{
    static const struct unigram_word words[] = {{"abab", 4, 1000}};
    struct unigram_piece *pieces = NULL;
    int64_t count = 0;
    CHECK_OK(unigram_train(words, 1, 3, 1, &pieces, &count));
    CHECK_EQUAL(count, 3);
    CHECK(pieces[0].bytes == 4 && pieces[0].score > -0.01);
    free(pieces);
}

/* ---- tokenizers ---- */

/* Returns the license with one space between its words. */
static char *read_license(size_t *bytes)
{
    char path[FILE_PATH_BYTES], *text = NULL;
    const char *source = getenv("BIREME_SOURCE_DIR");
    CHECK(source != NULL);
    CHECK_OK(file_join(path, source, "LICENSE"));
    CHECK_OK(file_read(path, 1 << 20, &text, bytes));
    size_t end = 0;
    for (size_t i = 0; i < *bytes; i++) {
        bool is_space = text[i] == ' ' || text[i] == '\n';
        if (!is_space) {
            text[end++] = text[i];
        } else if (end > 0 && text[end - 1] != ' ') {
            text[end++] = ' ';
        }
    }
    *bytes = end - (text[end - 1] == ' ');
    return text;
}

static json_t *read_reference(void)
{
    char path[FILE_PATH_BYTES];
    CHECK_OK(file_join(path, getenv("BIREME_SOURCE_DIR"),
                       "tests/reference/tokenizer/sentencepiece/training.json"));
    json_t *reference = json_load_file(path, 0, NULL);
    CHECK(reference != NULL);
    return reference;
}

/* Returns the bits of a text that needs no byte tokens. */
static double count_bits(const struct tokenizer *t, const char *text, size_t bytes)
{
    struct token_list ids = {0};
    double bits = 0;
    CHECK_OK(tokenizer_encode(t, text, bytes, false, &ids));
    for (int64_t i = 0; i < ids.count; i++) {
        CHECK(ids.ids[i] >= 259); /* a piece */
        bits -= t->unigram->model.scores[ids.ids[i]] / log(2);
    }
    token_list_free(&ids);
    return bits;
}

static void check_round_trip(const struct tokenizer *t, const char *text, size_t bytes)
{
    struct token_list ids = {0};
    char *decoded = NULL;
    size_t decoded_bytes = 0;
    CHECK_OK(tokenizer_encode(t, text, bytes, false, &ids));
    CHECK_OK(tokenizer_decode(t, ids.ids, ids.count, false, &decoded, &decoded_bytes));
    CHECK(decoded_bytes == bytes && memcmp(decoded, text, bytes) == 0);
    free(decoded);
    token_list_free(&ids);
}

static void test_tokenizer(void)
{
    static const char odd[] = "h\xC3\xA9llo \xE6\x97\xA5\xE6\x9C\xAC <0x0A> <s> \xF0\x9F\x98\x80\t"
                              "tab  two   spaces\n\n end ";
    json_t *reference = read_reference();
    size_t bytes = 0;
    char *text = read_license(&bytes);
    size_t split = (size_t)json_integer_value(json_object_get(reference, "split"));
    int64_t vocabulary = json_integer_value(json_object_get(reference, "vocabulary"));
    char *files[] = {folder_file("train.txt")};
    CHECK_OK(file_write(files[0], text, split));
    struct tokenizer *t = NULL, *other = NULL, *reopened = NULL;
    CHECK_OK(train_tokenizer(TOKENIZER_UNIGRAM, vocabulary, files, 1, 1, &t));
    CHECK_EQUAL(tokenizer_vocab_size(t), vocabulary);
    for (int workers = 2; workers <= 5; workers += 3) {
        CHECK_OK(train_tokenizer(TOKENIZER_UNIGRAM, vocabulary, files, 1, workers, &other));
        CHECK_TEXT(tokenizer_sha256(other), tokenizer_sha256(t));
        CHECK_OK(tokenizer_destroy(&other));
    }
    double bits = count_bits(t, text + split + 1, bytes - split - 1);
    double expected = json_number_value(json_object_get(reference, "bits"));
    printf("%.0f bits, sentencepiece %.0f\n", bits, expected);
    CHECK(bits <= 1.01 * expected);
    check_round_trip(t, text, bytes);
    check_round_trip(t, odd, sizeof odd - 1);
    CHECK_EQUAL(tokenizer_eos(t), 2);
    CHECK_OK(tokenizer_save(t, folder_path));
    CHECK_OK(tokenizer_open(folder_path, &reopened));
    CHECK_TEXT(tokenizer_sha256(reopened), tokenizer_sha256(t));
    CHECK_OK(tokenizer_destroy(&reopened));
    CHECK_OK(tokenizer_destroy(&t));
    CHECK_FAILS(train_tokenizer(TOKENIZER_UNIGRAM, 300, files, 1, 1, &t), STATUS_USAGE,
                "too small");
    CHECK_FAILS(train_tokenizer(TOKENIZER_UNIGRAM, 259, files, 1, 1, &t), STATUS_USAGE,
                "unigram takes 260 to");
    json_decref(reference);
    free(text);
}

/* Bytes that are not UTF-8, control characters and long words are no part of a piece. */
static void test_odd_corpus(void)
{
    enum { LONG = UNIGRAM_WORD_BYTES + 10 };
    static char text[LONG + 64] = "a\xFF\xFE"
                                  "b c\x01"
                                  "d\n";
    size_t bytes = strlen(text);
    memset(text + bytes, 'x', LONG);
    memcpy(text + bytes + LONG, " ok ok ok ok", 12);
    char *files[] = {folder_file("odd.txt")};
    CHECK_OK(file_write(files[0], text, bytes + LONG + 12));
    struct tokenizer *t = NULL;
    CHECK_OK(train_tokenizer(TOKENIZER_UNIGRAM, 1000, files, 1, 1, &t));
    CHECK(tokenizer_find(t, "\xE2\x96\x81ok") >= 0 && tokenizer_find(t, "xx") == -1);
    check_round_trip(t, text + bytes, LONG + 12);
    CHECK_OK(tokenizer_destroy(&t));
}

int main(void)
{
    folder_make();
    test_seeds();
    test_one_word();
    test_tokenizer();
    test_odd_corpus();
    printf("Unigram training: all checks passed\n");
    return 0;
}
