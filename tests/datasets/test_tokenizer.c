/* Tokenizers: ids of the Python package, round trips of any bytes, training, files, threads. */
#include <jansson.h>
#include <pthread.h>

#include "base/file.h"
#include "base/random.h"
#include "datasets/tokenizer/alphabet.h"
#include "datasets/tokenizer/corpus.h"
#include "datasets/tokenizer/tokenizer_impl.h"
#include "tests/check.h"
#include "tests/datasets/folder.h"

static char reference[FILE_PATH_BYTES];

static const char *path_of(const char *root, const char *name)
{
    static char path[4][FILE_PATH_BYTES];
    static int next = 0;
    next = (next + 1) % 4;
    CHECK_OK(file_join(path[next], root, name));
    return path[next];
}

static void encode(const struct tokenizer *t, const char *text, size_t bytes, bool special,
                   struct token_list *out)
{
    out->count = 0;
    CHECK_OK(tokenizer_encode(t, text, bytes, special, out));
}

static void check_round_trip(const struct tokenizer *t, const char *text, size_t bytes)
{
    static struct token_list ids;
    encode(t, text, bytes, false, &ids);
    char *back = NULL;
    size_t back_bytes = 0;
    CHECK_OK(tokenizer_decode(t, ids.ids, ids.count, false, &back, &back_bytes));
    CHECK_EQUAL(back_bytes, bytes);
    CHECK(memcmp(back, text, bytes) == 0);
    CHECK(back[bytes] == '\0');
    free(back);
}

static json_t *load_expected(void)
{
    json_error_t error;
    json_t *expected = json_load_file(path_of(reference, "expected.json"), 0, &error);
    CHECK(expected != NULL && json_array_size(json_object_get(expected, "texts")) > 50);
    return expected;
}

static void check_reference_text(const struct tokenizer *t, const char *name, const json_t *text,
                                 const json_t *wanted)
{
    struct token_list ids = {0};
    encode(t, json_string_value(text), json_string_length(text), true, &ids);
    bool equal = (size_t)ids.count == json_array_size(wanted);
    for (int64_t i = 0; i < ids.count && equal; i++) {
        equal = ids.ids[i] == json_integer_value(json_array_get(wanted, (size_t)i));
    }
    if (!equal) {
        fprintf(stderr, "%s: the text '%.60s' has other ids\n", name, json_string_value(text));
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
        CHECK_OK(tokenizer_open(path_of(reference, name), &t));
        CHECK_EQUAL(json_array_size(rows), json_array_size(texts));
        for (size_t i = 0; i < json_array_size(rows); i++) {
            if (json_is_array(json_array_get(rows, i))) { /* null: not of this one */
                check_reference_text(t, name, json_array_get(texts, i), json_array_get(rows, i));
            }
        }
        CHECK_OK(tokenizer_destroy(&t));
        tokenizers++;
    }
    CHECK_EQUAL(tokenizers, 9);
    json_decref(expected);
}

static void check_words(struct pretokenise_scanner *scanner, const char *name, const json_t *text,
                        const json_t *lengths)
{
    pretokenise_scanner_start(scanner, json_string_value(text), json_string_length(text));
    for (size_t i = 0;; i++) {
        size_t start = 0, end = 0;
        CHECK_OK(pretokenise_scanner_next(scanner, &start, &end));
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
    static const char *const names[PRETOKENISE_PATTERNS] = {[PRETOKENISE_GPT2] = "gpt2",
                                                            [PRETOKENISE_LLAMA3] = "llama3",
                                                            [PRETOKENISE_QWEN2] = "qwen2",
                                                            [PRETOKENISE_CL100K] = "cl100k",
                                                            [PRETOKENISE_O200K] = "o200k"};
    json_t *expected = load_expected();
    const json_t *texts = json_object_get(expected, "texts");
    for (int pattern = PRETOKENISE_GPT2; pattern < PRETOKENISE_PATTERNS; pattern++) {
        const json_t *rows = json_object_get(json_object_get(expected, "words"), names[pattern]);
        CHECK_EQUAL(json_array_size(rows), json_array_size(texts));
        struct pretokeniser *p = NULL;
        struct pretokenise_scanner *scanner = NULL;
        CHECK_OK(pretokeniser_create((enum pretokenise_pattern)pattern, &p));
        CHECK_OK(pretokenise_scanner_create(p, &scanner));
        for (size_t i = 0; i < json_array_size(texts); i++) {
            check_words(scanner, names[pattern], json_array_get(texts, i), json_array_get(rows, i));
        }
        pretokenise_scanner_destroy(scanner);
        pretokeniser_destroy(p);
    }
    json_decref(expected);
}

static struct tokenizer *train(int64_t vocab_size, int workers)
{
    char *files[] = {(char *)path_of(reference, "corpus.txt")};
    struct tokenizer *t = NULL;
    CHECK_OK(tokenizer_train(TOKENIZER_BPE, vocab_size, files, 1, workers, &t));
    return t;
}

/* The package put two special tokens first where ours has one last, and was given the same size. */
static void test_training_equals_package(void)
{
    struct tokenizer *package = NULL;
    CHECK_OK(tokenizer_open(path_of(reference, "gpt2"), &package));
    struct tokenizer *ours = train(256 + package->merge_count + 1, 1);
    CHECK_EQUAL(ours->merge_count, package->merge_count);
    CHECK(ours->merge_count > 100);
    for (int64_t i = 0; i < ours->merge_count; i++) {
        CHECK_EQUAL(ours->merges[i].left, package->merges[i].left - 2);
        CHECK_EQUAL(ours->merges[i].right, package->merges[i].right - 2);
        CHECK_EQUAL(ours->merges[i].result, package->merges[i].result - 2);
    }
    CHECK_EQUAL(tokenizer_eos(ours), tokenizer_vocab_size(ours) - 1);
    CHECK_EQUAL(tokenizer_eos(package), 0);
    CHECK_OK(tokenizer_destroy(&ours));
    CHECK_OK(tokenizer_destroy(&package));
}

static void write_text(const char *name, const char *text, size_t bytes)
{
    folder_write(folder_file(name), text, bytes);
}

/* Nine megabytes, so that several pieces go to several workers. */
static void write_long_corpus(void)
{
    char *corpus = NULL;
    size_t bytes = 0;
    CHECK_OK(file_read(path_of(reference, "corpus.txt"), 1 << 20, &corpus, &bytes));
    size_t room = (size_t)9 << 20;
    char *text = malloc(room);
    CHECK(text != NULL);
    uint64_t key = random_key(7, RANDOM_TEST, 0, 0);
    size_t used = 0;
    for (uint64_t i = 0; used + 64 < room; i++) {
        size_t start = (size_t)random_below(key, 2 * i, bytes - 32);
        size_t length = 1 + (size_t)random_below(key, 2 * i + 1, 31);
        memcpy(text + used, corpus + start, length); /* cuts characters too: invalid UTF-8 */
        used += length;
    }
    write_text("long.txt", text, used);
    free(text);
    free(corpus);
}

/* The pieces of a file are the file. */
static void test_corpus(void)
{
    size_t bytes = 0;
    char *text = folder_read(folder_file("long.txt"), &bytes);
    char *files[] = {folder_file("long.txt")};
    struct corpus *corpus = NULL;
    CHECK_OK(corpus_open(files, 1, &corpus));
    struct corpus_chunk piece = {0};
    size_t at = 0;
    for (;;) {
        CHECK_OK(corpus_next(corpus, &piece));
        if (piece.bytes == 0) {
            break;
        }
        CHECK_EQUAL(piece.offset, at);
        CHECK(at + piece.bytes <= bytes && memcmp(piece.text, text + at, piece.bytes) == 0);
        at += piece.bytes;
    }
    CHECK_EQUAL(at, bytes);
    corpus_chunk_free(&piece);
    corpus_close(corpus);
    free(text);
}

static void test_training_determinism(void)
{
    char *files[] = {folder_file("long.txt")};
    char name[HASH_TEXT_BYTES] = "";
    for (int workers = 1; workers <= 2; workers++) {
        struct tokenizer *t = NULL;
        CHECK_OK(tokenizer_train(TOKENIZER_BPE, 700, files, 1, workers, &t));
        CHECK_EQUAL(tokenizer_vocab_size(t), 700);
        CHECK(workers == 1 || strcmp(name, tokenizer_sha256(t)) == 0);
        snprintf(name, sizeof name, "%s", tokenizer_sha256(t));
        CHECK_OK(tokenizer_destroy(&t));
    }
}

/* Words are counted the same however the text is cut into files, as long as no word is cut. */
static void test_training_files(void)
{
    write_text("a.txt", "row row row", 11);
    write_text("b.txt", " your boat", 10);
    write_text("ab.txt", "row row row your boat", 21);
    write_text("empty.txt", "", 0);
    char *two[] = {folder_file("a.txt"), folder_file("empty.txt"), folder_file("b.txt")};
    struct tokenizer *a = NULL, *b = NULL;
    CHECK_OK(tokenizer_train(TOKENIZER_BPE, 300, two, 3, 2, &a));
    char *one[] = {folder_file("ab.txt")};
    CHECK_OK(tokenizer_train(TOKENIZER_BPE, 300, one, 1, 1, &b));
    CHECK(strcmp(tokenizer_sha256(a), tokenizer_sha256(b)) == 0);
    /* "ow" and "row" come twice or more; what comes once is not learned. */
    CHECK(tokenizer_find(a, " row") >= 256);
    CHECK_EQUAL(tokenizer_find(a, " boat"), -1);
    CHECK_OK(tokenizer_destroy(&a));
    CHECK_OK(tokenizer_destroy(&b));
    char *empty[] = {folder_file("empty.txt")};
    CHECK_OK(tokenizer_train(TOKENIZER_BPE, 300, empty, 1, 1, &a));
    CHECK_EQUAL(tokenizer_vocab_size(a), 257);
    CHECK_OK(tokenizer_destroy(&a));
    char *missing[] = {folder_file("missing.txt")};
    CHECK_FAILS(tokenizer_train(TOKENIZER_BPE, 300, missing, 1, 2, &a), STATUS_NO_INPUT, "missing");
    CHECK(a == NULL);
    CHECK_FAILS(tokenizer_train(TOKENIZER_BPE, 256, one, 1, 1, &a), STATUS_USAGE, "257");
    char *directory[] = {folder_path};
    CHECK_FAILS(tokenizer_train(TOKENIZER_BPE, 300, directory, 1, 1, &a), STATUS_DATA, folder_path);
}

static void test_round_trips(void)
{
    struct tokenizer *t = train(400, 1);
    char text[4096];
    for (int a = 0; a < 256; a++) {
        text[0] = (char)a;
        check_round_trip(t, text, 1);
        for (int b = 0; b < 256; b++) {
            text[1] = (char)b;
            check_round_trip(t, text, 2);
        }
    }
    /* Bytes from few values, so that valid and invalid UTF-8, blanks and letters meet. */
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

/* A word that goes on and on takes n log n, with the ids of the plain method. */
static void test_long_words(void)
{
    struct tokenizer *t = train(400, 1);
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

/* Merging by its definition: the lowest rank of all pairs, leftmost first. */
static int64_t merge_plainly(const struct tokenizer *t, const char *word, size_t bytes,
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
    struct tokenizer *t = train(400, 1);
    struct token_list ids = {0};
    for (uint64_t round = 0; round < 400; round++) {
        uint64_t key = random_key(17, RANDOM_TEST, round, 0);
        char word[80];
        int32_t plain[80];
        size_t bytes = 1 + (size_t)random_below(key, 0, sizeof word - 1);
        for (size_t i = 0; i < bytes; i++) {
            word[i] = "theonrsi"[random_below(key, i + 1, 8)];
        }
        int64_t count = merge_plainly(t, word, bytes, plain);
        for (int again = 0; again < 2; again++) { /* the second time from the cache */
            encode(t, word, bytes, false, &ids);
            CHECK_EQUAL(ids.count, count);
            CHECK(memcmp(ids.ids, plain, (size_t)count * sizeof *plain) == 0);
        }
    }
    token_list_free(&ids);
    CHECK_OK(tokenizer_destroy(&t));
}

static void check_saved(struct tokenizer *t, const char *name)
{
    char first[FILE_PATH_BYTES], second[FILE_PATH_BYTES], other[64];
    snprintf(other, sizeof other, "%s-again", name);
    snprintf(first, sizeof first, "%s", folder_file(name));
    snprintf(second, sizeof second, "%s", folder_file(other));
    CHECK_OK(tokenizer_save(t, first));
    struct tokenizer *back = NULL;
    CHECK_OK(tokenizer_open(first, &back));
    CHECK(strcmp(tokenizer_sha256(t), tokenizer_sha256(back)) == 0);
    CHECK_EQUAL(tokenizer_vocab_size(t), tokenizer_vocab_size(back));
    CHECK_EQUAL(tokenizer_eos(t), tokenizer_eos(back));
    CHECK_EQUAL(tokenizer_get_kind(t), tokenizer_get_kind(back));
    CHECK_OK(tokenizer_save(back, second));
    char a[HASH_TEXT_BYTES], b[HASH_TEXT_BYTES];
    CHECK_OK(hash_file(path_of(first, TOKENIZER_FILE), a, NULL));
    CHECK_OK(hash_file(path_of(second, TOKENIZER_FILE), b, NULL));
    CHECK(strcmp(a, b) == 0 && strcmp(a, tokenizer_sha256(t)) == 0);
    CHECK_OK(tokenizer_destroy(&back));
}

static void test_saving(void)
{
    struct tokenizer *t = train(400, 1);
    check_saved(t, "trained");
    CHECK_OK(tokenizer_destroy(&t));
    static const char *const names[] = {"gpt2",  "prefix", "whole", "ignore_merges", "llama3",
                                        "qwen2", "cl100k", "o200k", "char"};
    for (int i = 0; i < 9; i++) {
        CHECK_OK(tokenizer_open(path_of(reference, names[i]), &t));
        check_saved(t, names[i]);
        CHECK_OK(tokenizer_destroy(&t));
    }
}

static void test_special(void)
{
    struct tokenizer *t = train(300, 1);
    int32_t end = tokenizer_eos(t);
    CHECK_EQUAL(tokenizer_find(t, TOKENIZER_EOS), end);
    static const char text[] = "a<|endoftext|>b";
    struct token_list ids = {0};
    encode(t, text, sizeof text - 1, false, &ids);
    for (int64_t i = 0; i < ids.count; i++) {
        CHECK(ids.ids[i] != end);
    }
    encode(t, text, sizeof text - 1, true, &ids);
    CHECK_EQUAL(ids.count, 3);
    CHECK_EQUAL(ids.ids[1], end);
    char *back = NULL;
    CHECK_OK(tokenizer_decode(t, ids.ids, ids.count, true, &back, NULL));
    CHECK(strcmp(back, "ab") == 0);
    free(back);
    CHECK_OK(tokenizer_decode(t, ids.ids, ids.count, false, &back, NULL));
    CHECK(strcmp(back, text) == 0);
    free(back);
    ids.ids[2] = end + 1;
    CHECK_FAILS(tokenizer_decode(t, ids.ids, ids.count, false, &back, NULL), STATUS_DATA,
                "index 2");
    ids.ids[0] = -1;
    CHECK_FAILS(tokenizer_decode(t, ids.ids, ids.count, false, &back, NULL), STATUS_DATA, "id -1");
    token_list_free(&ids);
    CHECK_OK(tokenizer_destroy(&t));
}

static void test_char(void)
{
    static const char text[] = "b\xc3\xa9"
                               "a\n\xf0\x9f\x98\x80 a";
    write_text("char.txt", text, sizeof text - 1);
    char *files[] = {folder_file("char.txt")};
    struct tokenizer *t = NULL;
    CHECK_OK(tokenizer_train(TOKENIZER_CHAR, 0, files, 1, 1, &t));
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
    CHECK_FAILS(tokenizer_train(TOKENIZER_CHAR, 5, files, 1, 1, &t), STATUS_USAGE, "6 different");
    write_text("bad.txt", "good \xc3(", 7);
    files[0] = folder_file("bad.txt");
    CHECK_FAILS(tokenizer_train(TOKENIZER_CHAR, 0, files, 1, 1, &t), STATUS_DATA, "offset 5");
}

struct thread_work {
    const struct tokenizer *t;
    const char *text;
    size_t bytes;
    const struct token_list *wanted;
    bool equal;
};

static void *encode_often(void *argument)
{
    struct thread_work *w = argument;
    struct token_list ids = {0};
    w->equal = true;
    for (int i = 0; i < 20; i++) {
        ids.count = 0;
        w->equal &= tokenizer_encode(w->t, w->text, w->bytes, true, &ids) == STATUS_OK &&
                    ids.count == w->wanted->count &&
                    memcmp(ids.ids, w->wanted->ids, (size_t)ids.count * sizeof *ids.ids) == 0;
    }
    token_list_free(&ids);
    return NULL;
}

static void test_threads(void)
{
    char *corpus = NULL;
    size_t bytes = 0;
    CHECK_OK(file_read(path_of(reference, "corpus.txt"), 1 << 20, &corpus, &bytes));
    struct tokenizer *t = train(400, 1);
    struct token_list wanted = {0};
    encode(t, corpus, bytes, true, &wanted);
    struct thread_work work[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        work[i] = (struct thread_work){t, corpus, bytes, &wanted, false};
        CHECK(pthread_create(&threads[i], NULL, encode_often, &work[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        CHECK(work[i].equal);
    }
    token_list_free(&wanted);
    free(corpus);
    CHECK_OK(tokenizer_destroy(&t));
}

int main(void)
{
    const char *source = getenv("BIREME_SOURCE_DIR");
    CHECK_OK(file_join(reference, source == NULL ? "." : source, "tests/reference/tokenizer"));
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
