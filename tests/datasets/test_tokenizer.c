/* Tests of byte-level and char tokenizers: ids of the Python package, decoding of arbitrary bytes,
 * training, files and threads. */
#include <jansson.h>
#include <pthread.h>

#include "base/file.h"
#include "base/random.h"
#include "datasets/rows/corpus.h"
#include "datasets/text/alphabet.h"
#include "datasets/tokenizer/tokenizer_impl.h"
#include "tests/check.h"
#include "tests/datasets/tokenizer_reference.h"
#include "tests/datasets/train_tokenizer.h"

static void encode_text(const struct tokenizer *t, const char *text, size_t bytes, bool special,
                        struct token_list *out)
{
    out->count = 0;
    CHECK_OK(tokenizer_encode(t, text, bytes, special, out));
}

static void check_round_trip(const struct tokenizer *t, const char *text, size_t bytes)
{
    static struct token_list ids;
    encode_text(t, text, bytes, false, &ids);
    char *decoded = NULL;
    size_t decoded_bytes = 0;
    CHECK_OK(tokenizer_decode(t, ids.ids, ids.count, false, &decoded, &decoded_bytes));
    CHECK_EQUAL(decoded_bytes, bytes);
    CHECK(memcmp(decoded, text, bytes) == 0);
    CHECK(decoded[bytes] == '\0');
    free(decoded);
}

static json_t *load_expected(void)
{
    json_error_t error;
    json_t *expected = json_load_file(reference_path("expected.json"), 0, &error);
    CHECK(expected != NULL && json_array_size(json_object_get(expected, "texts")) > 50);
    return expected;
}

static void check_reference_text(const struct tokenizer *t, const char *name, const json_t *text,
                                 const json_t *expected)
{
    struct token_list ids = {0};
    encode_text(t, json_string_value(text), json_string_length(text), true, &ids);
    bool equal = (size_t)ids.count == json_array_size(expected);
    for (int64_t i = 0; i < ids.count && equal; i++) {
        equal = ids.ids[i] == json_integer_value(json_array_get(expected, (size_t)i));
    }
    if (!equal) {
        fprintf(stderr, "%s: the ids of the text '%.60s' are wrong\n", name,
                json_string_value(text));
        exit(1);
    }
    token_list_free(&ids);
    if (strcmp(name, "prefix") != 0) {
        check_round_trip(t, json_string_value(text), json_string_length(text));
    }
}

static void test_reference_ids(void)
{
    json_t *expected = load_expected();
    const json_t *texts = json_object_get(expected, "texts");
    const char *name;
    json_t *rows;
    int tokenizers = 0;
    json_object_foreach(json_object_get(expected, "ids"), name, rows)
    {
        struct tokenizer *t = NULL;
        CHECK_OK(tokenizer_open(reference_path(name), &t));
        CHECK_EQUAL(json_array_size(rows), json_array_size(texts));
        for (size_t i = 0; i < json_array_size(rows); i++) {
            if (json_is_array(json_array_get(rows, i))) { /* null: not computed */
                check_reference_text(t, name, json_array_get(texts, i), json_array_get(rows, i));
            }
        }
        CHECK_OK(tokenizer_destroy(&t));
        tokenizers++;
    }
    CHECK_EQUAL(tokenizers, 9);
    json_decref(expected);
}

static void check_words(struct pretokenizer_scanner *scanner, const char *name, const json_t *text,
                        const json_t *lengths)
{
    pretokenizer_scanner_start(scanner, json_string_value(text), json_string_length(text));
    for (size_t i = 0;; i++) {
        size_t start = 0, end = 0;
        CHECK_OK(pretokenizer_scanner_next(scanner, &start, &end));
        if ((json_int_t)(end - start) != json_integer_value(json_array_get(lengths, i))) {
            fprintf(stderr, "%s: word %zu of '%.60s' has %zu bytes\n", name, i,
                    json_string_value(text), end - start);
            exit(1);
        }
        if (start == end) {
            CHECK_EQUAL(i, json_array_size(lengths));
            return;
        }
    }
}

static void test_reference_words(void)
{
    static const char *const names[PRETOKENIZER_PATTERNS] = {[PRETOKENIZER_GPT2] = "gpt2",
                                                             [PRETOKENIZER_LLAMA3] = "llama3",
                                                             [PRETOKENIZER_QWEN2] = "qwen2",
                                                             [PRETOKENIZER_CL100K] = "cl100k",
                                                             [PRETOKENIZER_O200K] = "o200k"};
    json_t *expected = load_expected();
    const json_t *texts = json_object_get(expected, "texts");
    for (int pattern = PRETOKENIZER_GPT2; pattern < PRETOKENIZER_PATTERNS; pattern++) {
        const json_t *rows = json_object_get(json_object_get(expected, "words"), names[pattern]);
        CHECK_EQUAL(json_array_size(rows), json_array_size(texts));
        struct pretokenizer *p = NULL;
        struct pretokenizer_scanner *scanner = NULL;
        CHECK_OK(pretokenizer_create((enum pretokenizer_pattern)pattern, &p));
        CHECK_OK(pretokenizer_scanner_create(p, &scanner));
        for (size_t i = 0; i < json_array_size(texts); i++) {
            check_words(scanner, names[pattern], json_array_get(texts, i), json_array_get(rows, i));
        }
        pretokenizer_scanner_destroy(scanner);
        pretokenizer_destroy(p);
    }
    json_decref(expected);
}

static struct tokenizer *train_bpe(int64_t vocab_size, int workers)
{
    char *files[] = {reference_path("corpus.txt")};
    struct tokenizer *t = NULL;
    CHECK_OK(train_tokenizer(TOKENIZER_BPE, vocab_size, files, 1, workers, &t));
    return t;
}

/* The package and this project learn the same merges. The package has two special tokens before
 * them, this project one after them. */
static void test_training_equals_package(void)
{
    struct tokenizer *reference = NULL;
    CHECK_OK(tokenizer_open(reference_path("gpt2"), &reference));
    struct tokenizer *t = NULL;
    CHECK_FAILS(tokenizer_open(reference_path("gpt2/tokenizer.json"), &t), STATUS_NO_INPUT,
                "tokenizer.json is a file; use its folder");
    struct tokenizer *trained = train_bpe(256 + reference->merge_count + 1, 1);
    CHECK_EQUAL(trained->merge_count, reference->merge_count);
    CHECK(trained->merge_count > 100);
    for (int64_t i = 0; i < trained->merge_count; i++) {
        CHECK_EQUAL(trained->merges[i].left, reference->merges[i].left - 2);
        CHECK_EQUAL(trained->merges[i].right, reference->merges[i].right - 2);
        CHECK_EQUAL(trained->merges[i].result, reference->merges[i].result - 2);
    }
    CHECK_EQUAL(tokenizer_eos(trained), tokenizer_vocab_size(trained) - 1);
    CHECK_EQUAL(tokenizer_eos(reference), 0);
    CHECK_OK(tokenizer_destroy(&trained));
    CHECK_OK(tokenizer_destroy(&reference));
}

static void write_file(const char *name, const char *text, size_t bytes)
{
    folder_write(folder_file(name), text, bytes);
}

/* Writes 9 MiB, so that several workers get chunks. */
static void write_long_corpus(void)
{
    char *corpus = NULL;
    size_t bytes = 0;
    CHECK_OK(file_read(reference_path("corpus.txt"), 1 << 20, &corpus, &bytes));
    size_t capacity = (size_t)9 << 20;
    char *text = malloc(capacity);
    CHECK(text != NULL);
    uint64_t key = random_key(7, RANDOM_TEST, 0, 0);
    size_t used = 0;
    for (uint64_t i = 0; used + 64 < capacity; i++) {
        size_t start = (size_t)random_below(key, 2 * i, bytes - 32);
        size_t length = 1 + (size_t)random_below(key, 2 * i + 1, 31);
        memcpy(text + used, corpus + start, length); /* splits characters too: invalid UTF-8 */
        used += length;
    }
    write_file("long.txt", text, used);
    free(text);
    free(corpus);
}

/* The chunks of a file together are the file. */
static void test_corpus(void)
{
    size_t bytes = 0;
    char *text = folder_read(folder_file("long.txt"), &bytes);
    char *files[] = {folder_file("long.txt")};
    struct corpus *corpus = NULL;
    const struct corpus_source source = {.files = files, .count = 1};
    CHECK_OK(corpus_open(&source, &corpus));
    struct corpus_chunk chunk = {0};
    size_t offset = 0;
    for (;;) {
        CHECK_OK(corpus_next(corpus, &chunk));
        if (chunk.bytes == 0) {
            break;
        }
        CHECK_EQUAL(chunk.offset, offset);
        CHECK(offset + chunk.bytes <= bytes && memcmp(chunk.text, text + offset, chunk.bytes) == 0);
        offset += chunk.bytes;
    }
    CHECK_EQUAL(offset, bytes);
    corpus_chunk_free(&chunk);
    corpus_close(corpus);
    free(text);
}

static void test_training_determinism(void)
{
    char *files[] = {folder_file("long.txt")};
    char name[HASH_TEXT_BYTES] = "";
    for (int workers = 1; workers <= 2; workers++) {
        struct tokenizer *t = NULL;
        CHECK_OK(train_tokenizer(TOKENIZER_BPE, 700, files, 1, workers, &t));
        CHECK_EQUAL(tokenizer_vocab_size(t), 700);
        CHECK(workers == 1 || strcmp(name, tokenizer_sha256(t)) == 0);
        snprintf(name, sizeof name, "%s", tokenizer_sha256(t));
        CHECK_OK(tokenizer_destroy(&t));
    }
}

/* The result does not depend on the division of the text into files, if no word is split. */
static void test_training_files(void)
{
    write_file("a.txt", "row row row", 11);
    write_file("b.txt", " your boat", 10);
    write_file("ab.txt", "row row row your boat", 21);
    write_file("empty.txt", "", 0);
    char *two[] = {folder_file("a.txt"), folder_file("empty.txt"), folder_file("b.txt")};
    struct tokenizer *a = NULL, *b = NULL;
    CHECK_OK(train_tokenizer(TOKENIZER_BPE, 300, two, 3, 2, &a));
    char *one[] = {folder_file("ab.txt")};
    CHECK_OK(train_tokenizer(TOKENIZER_BPE, 300, one, 1, 1, &b));
    CHECK_TEXT(tokenizer_sha256(a), tokenizer_sha256(b));
    /* " row" occurs more than once and becomes a token; " boat" occurs once. */
    CHECK(tokenizer_find(a, " row") >= 256);
    CHECK_EQUAL(tokenizer_find(a, " boat"), -1);
    CHECK_OK(tokenizer_destroy(&a));
    CHECK_OK(tokenizer_destroy(&b));
    char *empty[] = {folder_file("empty.txt")};
    for (int workers = 1; workers <= 2; workers++) {
        CHECK_FAILS(train_tokenizer(TOKENIZER_BPE, 300, empty, 1, workers, &a), STATUS_DATA,
                    "empty.txt has no text");
    }
    char *missing[] = {folder_file("missing.txt")};
    CHECK_FAILS(train_tokenizer(TOKENIZER_BPE, 300, missing, 1, 2, &a), STATUS_NO_INPUT, "missing");
    CHECK(a == NULL);
    CHECK_FAILS(train_tokenizer(TOKENIZER_BPE, 256, one, 1, 1, &a), STATUS_USAGE, "257");
    char *directory[] = {folder_path};
    CHECK_FAILS(train_tokenizer(TOKENIZER_BPE, 300, directory, 1, 1, &a), STATUS_DATA, folder_path);
}

static void test_round_trips(void)
{
    struct tokenizer *t = train_bpe(400, 1);
    char text[4096];
    for (int a = 0; a < 256; a++) {
        text[0] = (char)a;
        check_round_trip(t, text, 1);
        for (int b = 0; b < 256; b++) {
            text[1] = (char)b;
            check_round_trip(t, text, 2);
        }
    }
    /* Few byte values, so that valid and invalid UTF-8, spaces and letters are neighbors. */
    static const char mixed[] =
        "  \n\tabc'st09.,\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xff\x80\xed\xa0\xc0";
    for (uint64_t round = 0; round < 3000; round++) {
        uint64_t key = random_key(11, RANDOM_TEST, round, 0);
        size_t bytes = (size_t)random_below(key, 0, round % 50 == 0 ? sizeof text : 64);
        for (size_t i = 0; i < bytes; i++) {
            uint64_t value = random_u64(key, i + 1);
            text[i] = round % 2 == 0 ? (char)value : mixed[value % (sizeof mixed - 1)];
        }
        check_round_trip(t, text, bytes);
    }
    CHECK_OK(tokenizer_destroy(&t));
}

/* Very long words: encoding takes O(n log n), so that this test ends. */
static void test_long_words(void)
{
    struct tokenizer *t = train_bpe(400, 1);
    size_t bytes = (size_t)1 << 20;
    char *text = malloc(bytes);
    CHECK(text != NULL);
    uint64_t key = random_key(13, RANDOM_TEST, 0, 0);
    for (size_t i = 0; i < bytes; i++) {
        text[i] = "theonr"[random_below(key, i, 6)];
    }
    check_round_trip(t, text, bytes);
    memset(text, 'a', bytes);
    check_round_trip(t, text, bytes);
    memset(text, ' ', bytes);
    check_round_trip(t, text, bytes);
    memset(text, 0x80, bytes);
    check_round_trip(t, text, bytes);
    free(text);
    CHECK_OK(tokenizer_destroy(&t));
}

/* Merges as defined: of all pairs the one with the lowest rank first, from left to right. Returns
 * the number of ids. */
static int64_t merge_directly(const struct tokenizer *t, const char *word, size_t bytes,
                              int32_t *ids)
{
    int64_t count = (int64_t)bytes;
    for (size_t i = 0; i < bytes; i++) {
        ids[i] = alphabet_rank((unsigned char)word[i]);
    }
    for (int64_t rank = 0; rank < t->merge_count; rank++) {
        for (int64_t i = 0; i + 1 < count; i++) {
            if (ids[i] == t->merges[rank].left && ids[i + 1] == t->merges[rank].right) {
                ids[i] = t->merges[rank].result;
                memmove(ids + i + 1, ids + i + 2, (size_t)(count - i - 2) * sizeof *ids);
                count--;
                rank = -1;
                break;
            }
        }
    }
    return count;
}

static void test_merge_order(void)
{
    struct tokenizer *t = train_bpe(400, 1);
    struct token_list ids = {0};
    for (uint64_t round = 0; round < 400; round++) {
        uint64_t key = random_key(17, RANDOM_TEST, round, 0);
        char word[80];
        int32_t expected[80];
        size_t bytes = 1 + (size_t)random_below(key, 0, sizeof word - 1);
        for (size_t i = 0; i < bytes; i++) {
            word[i] = "theonrsi"[random_below(key, i + 1, 8)];
        }
        int64_t count = merge_directly(t, word, bytes, expected);
        for (int k = 0; k < 2; k++) { /* the second result is from the cache */
            encode_text(t, word, bytes, false, &ids);
            CHECK_EQUAL(ids.count, count);
            CHECK(memcmp(ids.ids, expected, (size_t)count * sizeof *expected) == 0);
        }
    }
    token_list_free(&ids);
    CHECK_OK(tokenizer_destroy(&t));
}

static void check_saved(struct tokenizer *t, const char *name)
{
    char first[FILE_PATH_BYTES], second[FILE_PATH_BYTES], second_name[64];
    snprintf(second_name, sizeof second_name, "%s-reopened", name);
    snprintf(first, sizeof first, "%s", folder_file(name));
    snprintf(second, sizeof second, "%s", folder_file(second_name));
    CHECK_OK(tokenizer_save(t, first));
    struct tokenizer *reopened = NULL;
    CHECK_OK(tokenizer_open(first, &reopened));
    CHECK_TEXT(tokenizer_sha256(t), tokenizer_sha256(reopened));
    CHECK_EQUAL(tokenizer_vocab_size(t), tokenizer_vocab_size(reopened));
    CHECK_EQUAL(tokenizer_eos(t), tokenizer_eos(reopened));
    CHECK_EQUAL(tokenizer_get_kind(t), tokenizer_get_kind(reopened));
    CHECK_OK(tokenizer_save(reopened, second));
    char a[HASH_TEXT_BYTES], b[HASH_TEXT_BYTES];
    CHECK_OK(hash_file(folder_join(first, TOKENIZER_FILE), a, NULL));
    CHECK_OK(hash_file(folder_join(second, TOKENIZER_FILE), b, NULL));
    CHECK(strcmp(a, b) == 0 && strcmp(a, tokenizer_sha256(t)) == 0);
    CHECK_OK(tokenizer_destroy(&reopened));
}

static void test_saving(void)
{
    struct tokenizer *t = train_bpe(400, 1);
    check_saved(t, "trained");
    CHECK_OK(tokenizer_destroy(&t));
    static const char *const names[] = {"gpt2",  "prefix", "whole", "ignore_merges", "llama3",
                                        "qwen2", "cl100k", "o200k", "char"};
    for (int i = 0; i < 9; i++) {
        CHECK_OK(tokenizer_open(reference_path(names[i]), &t));
        check_saved(t, names[i]);
        CHECK_OK(tokenizer_destroy(&t));
    }
}

static void test_special(void)
{
    struct tokenizer *t = train_bpe(300, 1);
    int32_t end = tokenizer_eos(t);
    CHECK_EQUAL(tokenizer_find(t, TOKENIZER_EOS), end);
    static const char text[] = "a<|endoftext|>b";
    struct token_list ids = {0};
    encode_text(t, text, sizeof text - 1, false, &ids);
    for (int64_t i = 0; i < ids.count; i++) {
        CHECK(ids.ids[i] != end);
    }
    encode_text(t, text, sizeof text - 1, true, &ids);
    CHECK_EQUAL(ids.count, 3);
    CHECK_EQUAL(ids.ids[1], end);
    char *decoded = NULL;
    CHECK_OK(tokenizer_decode(t, ids.ids, ids.count, true, &decoded, NULL));
    CHECK_TEXT(decoded, "ab");
    free(decoded);
    CHECK_OK(tokenizer_decode(t, ids.ids, ids.count, false, &decoded, NULL));
    CHECK_TEXT(decoded, text);
    free(decoded);
    ids.ids[2] = end + 1;
    CHECK_FAILS(tokenizer_decode(t, ids.ids, ids.count, false, &decoded, NULL), STATUS_DATA,
                "index 2");
    ids.ids[0] = -1;
    CHECK_FAILS(tokenizer_decode(t, ids.ids, ids.count, false, &decoded, NULL), STATUS_DATA,
                "id -1");
    token_list_free(&ids);
    CHECK_OK(tokenizer_destroy(&t));
}

static void test_char(void)
{
    static const char text[] = "b\xc3\xa9"
                               "a\n\xf0\x9f\x98\x80 a";
    write_file("char.txt", text, sizeof text - 1);
    char *files[] = {folder_file("char.txt")};
    struct tokenizer *t = NULL;
    CHECK_OK(train_tokenizer(TOKENIZER_CHAR, 0, files, 1, 1, &t));
    CHECK_EQUAL(tokenizer_vocab_size(t), 6);
    CHECK_EQUAL(tokenizer_eos(t), -1);
    static const char *const order[] = {"\n", " ", "a", "b", "\xc3\xa9", "\xf0\x9f\x98\x80"};
    for (int i = 0; i < 6; i++) {
        CHECK_EQUAL(tokenizer_find(t, order[i]), i);
    }
    CHECK_EQUAL(tokenizer_find(t, "c"), -1);
    CHECK_EQUAL(tokenizer_find(t, "ab"), -1);
    check_round_trip(t, text, sizeof text - 1);
    struct token_list ids = {0};
    CHECK_FAILS(tokenizer_encode(t, "ab\xc3\xa9z", 5, false, &ids), STATUS_DATA, "byte 4");
    CHECK_EQUAL(ids.count, 0);
    CHECK_FAILS(tokenizer_encode(t, "a\xff", 2, false, &ids), STATUS_DATA, "offset 1");
    token_list_free(&ids);
    check_saved(t, "char-trained");
    CHECK_OK(tokenizer_destroy(&t));
    CHECK_FAILS(train_tokenizer(TOKENIZER_CHAR, 5, files, 1, 1, &t), STATUS_USAGE, "6 different");
    write_file("bad.txt", "good \xc3(", 7);
    files[0] = folder_file("bad.txt");
    CHECK_FAILS(train_tokenizer(TOKENIZER_CHAR, 0, files, 1, 1, &t), STATUS_DATA, "offset 5");
}

struct thread_work {
    const struct tokenizer *t;
    const char *text;
    size_t bytes;
    const struct token_list *expected;
    bool equal;
};

static void *encode_repeatedly(void *argument)
{
    struct thread_work *w = argument;
    struct token_list ids = {0};
    w->equal = true;
    for (int i = 0; i < 20; i++) {
        ids.count = 0;
        w->equal &= tokenizer_encode(w->t, w->text, w->bytes, true, &ids) == STATUS_OK &&
                    ids.count == w->expected->count &&
                    memcmp(ids.ids, w->expected->ids, (size_t)ids.count * sizeof *ids.ids) == 0;
    }
    token_list_free(&ids);
    return NULL;
}

static void test_threads(void)
{
    char *corpus = NULL;
    size_t bytes = 0;
    CHECK_OK(file_read(reference_path("corpus.txt"), 1 << 20, &corpus, &bytes));
    struct tokenizer *t = train_bpe(400, 1);
    struct token_list expected = {0};
    encode_text(t, corpus, bytes, true, &expected);
    struct thread_work work[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        work[i] = (struct thread_work){t, corpus, bytes, &expected, false};
        CHECK(pthread_create(&threads[i], NULL, encode_repeatedly, &work[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        CHECK(work[i].equal);
    }
    token_list_free(&expected);
    free(corpus);
    CHECK_OK(tokenizer_destroy(&t));
}

int main(void)
{
    folder_make();
    test_reference_ids();
    test_reference_words();
    test_training_equals_package();
    write_long_corpus();
    test_corpus();
    test_training_determinism();
    test_training_files();
    test_round_trips();
    test_long_words();
    test_merge_order();
    test_saving();
    test_special();
    test_char();
    test_threads();
    return 0;
}
