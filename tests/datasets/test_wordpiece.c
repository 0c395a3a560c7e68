/* Tests of WordPiece: words, ids, pairs and decoded texts are the same as in the Python package.
 * Also tested: tokenizer.json and vocab.txt, training, and malicious texts and files. */
#include <jansson.h>

#include "base/memory.h"
#include "base/random.h"
#include "base/utf8.h"
#include "datasets/tokenizer/tokenizer_impl.h"
#include "tests/check.h"
#include "tests/datasets/tokenizer_reference.h"
#include "tests/datasets/train_tokenizer.h"

/* ---- words of texts with every code point ---- */

struct word_digest {
    struct hash *hash;
    int64_t words;
};

static status add_word(void *context, const char *word, size_t bytes, size_t characters)
{
    struct word_digest *digest = context;
    CHECK(characters > 0 && characters <= bytes);
    TRY(digest->words++ > 0 ? hash_update(digest->hash, "\x1f", 1) : STATUS_OK);
    return hash_update(digest->hash, word, bytes);
}

static void check_code_points(const char *flags, const char *expected)
{
    const struct bert_text_options options = {flags[0] == '1', flags[1] == '1', flags[2] == '1',
                                              flags[3] == '1'};
    struct word_digest digest = {0};
    CHECK_OK(hash_create(&digest.hash));
    for (uint32_t code = 0; code < 0x110000; code++) {
        if (code >= 0xD800 && code < 0xE000) {
            continue;
        }
        char c[5] = {0}, text[64];
        size_t length = utf8_write(code, c), used = 0;
        text[used++] = 'a';
        memcpy(text + used, c, length);
        used += length;
        memcpy(text + used, "b ", 2);
        used += 2;
        memcpy(text + used, c, length);
        used += length;
        memcpy(text + used, "\u302f\u0301c", 6);
        used += 6;
        digest.words = 0;
        CHECK_OK(bert_text_split_words(&options, text, used, add_word, &digest));
        CHECK_OK(hash_update(digest.hash, "\n", 1));
    }
    char found[HASH_TEXT_BYTES];
    CHECK_OK(hash_finish(&digest.hash, found));
    if (strcmp(found, expected) != 0) {
        fprintf(stderr, "options %s: the words of some code point differ\n", flags);
        exit(1);
    }
}

/* ---- reference ids ---- */

static void check_decoded(const struct tokenizer *t, const struct token_list *ids, bool skip,
                          const json_t *expected)
{
    char *text = NULL;
    size_t bytes = 0;
    CHECK_OK(tokenizer_decode(t, ids->ids, ids->count, skip, &text, &bytes));
    CHECK_EQUAL(bytes, strlen(text));
    if (strcmp(text, json_string_value(expected)) != 0) {
        fprintf(stderr, "decoded '%s', expected '%s'\n", text, json_string_value(expected));
        exit(1);
    }
    free(text);
}

static void check_pairs(const struct tokenizer *t, const json_t *pairs,
                        const json_t *reference_values)
{
    static const int64_t limits[] = {3, 4, 9, 16};
    struct token_list ids = {0};
    for (size_t i = 0; i < json_array_size(pairs); i++) {
        const json_t *a = json_array_get(json_array_get(pairs, i), 0);
        const json_t *b = json_array_get(json_array_get(pairs, i), 1);
        for (int limit = -1; limit < 4; limit++) {
            int64_t first = -1;
            ids.count = 0;
            CHECK_OK(tokenizer_encode_pair(t, json_string_value(a), json_string_length(a),
                                           json_string_value(b), json_string_length(b), true,
                                           limit < 0 ? 0 : limits[limit], &ids, &first));
            const json_t *expected =
                limit < 0
                    ? json_array_get(json_object_get(reference_values, "pairs"), i)
                    : json_array_get(json_array_get(json_object_get(reference_values, "truncated"),
                                                    (size_t)limit),
                                     i);
            reference_check_ids("pair", json_string_value(a), &ids, expected);
            const json_t *types = json_array_get(json_object_get(reference_values, "types"), i);
            for (int64_t k = 0; k < ids.count && limit < 0; k++) {
                CHECK_EQUAL(k >= first, json_integer_value(json_array_get(types, (size_t)k)));
            }
        }
    }
    token_list_free(&ids);
}

static void check_tokenizer(const char *name, const json_t *expected,
                            const json_t *reference_values)
{
    struct tokenizer *t = NULL;
    CHECK_OK(tokenizer_open(reference_path(name), &t));
    CHECK_EQUAL(tokenizer_get_kind(t), TOKENIZER_WORDPIECE);
    const struct tokenizer_specials s = tokenizer_get_specials(t);
    CHECK(s.pad == 0 && s.unknown == 1 && s.cls == 2 && s.sep == 3 && s.mask == 4);
    CHECK_EQUAL(tokenizer_eos(t), -1);
    const json_t *texts = json_object_get(expected, "texts");
    CHECK(json_array_size(texts) > 70);
    struct token_list ids = {0};
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i);
        ids.count = 0;
        CHECK_OK(
            tokenizer_encode(t, json_string_value(text), json_string_length(text), true, &ids));
        reference_check_ids(name, json_string_value(text), &ids,
                            json_array_get(json_object_get(reference_values, "ids"), i));
        for (size_t skip = 0; skip < 2; skip++) {
            const json_t *decoded =
                json_array_get(json_object_get(reference_values, "decoded"), skip);
            check_decoded(t, &ids, skip == 1, json_array_get(decoded, i));
        }
    }
    token_list_free(&ids);
    check_pairs(t, json_object_get(expected, "pairs"), reference_values);
    CHECK_OK(tokenizer_destroy(&t));
}

static void test_reference(void)
{
    json_error_t error;
    json_t *expected = json_load_file(reference_path("expected_bert.json"), JSON_ALLOW_NUL, &error);
    CHECK(expected != NULL);
    const char *name;
    json_t *value;
    int count = 0;
    json_object_foreach(json_object_get(expected, "digests"), name, value)
    {
        check_code_points(name, json_string_value(value));
        count++;
    }
    json_object_foreach(json_object_get(expected, "tokenizers"), name, value)
    {
        check_tokenizer(name, expected, value);
        count++;
    }
    CHECK_EQUAL(count, 6);
    json_decref(expected);
}

/* ---- files ---- */

static void check_same(const struct tokenizer *a, const struct tokenizer *b)
{
    CHECK_TEXT(tokenizer_sha256(a), tokenizer_sha256(b));
}

static void test_files(void)
{
    struct tokenizer *t = NULL, *reopened = NULL, *vocab_tokenizer = NULL;
    CHECK_OK(tokenizer_open(reference_path("bert_cased"), &t));
    char *folder = folder_file("saved"), *vocab_folder = folder_file("alone");
    CHECK_OK(tokenizer_save(t, folder));
    CHECK_OK(tokenizer_open(folder, &reopened));
    check_same(t, reopened);
    CHECK_OK(file_make_folders(vocab_folder));
    CHECK(rename(folder_file("saved/vocab.txt"), folder_file("alone/vocab.txt")) == 0);
    /* Without tokenizer_config.json the tokenizer lowercases, as in transformers. */
    CHECK_OK(tokenizer_open(vocab_folder, &vocab_tokenizer));
    CHECK(strcmp(tokenizer_sha256(t), tokenizer_sha256(vocab_tokenizer)) != 0);
    CHECK_OK(tokenizer_destroy(&vocab_tokenizer));
    const char config[] = "{\"do_lower_case\": false, \"model_max_length\": 512}";
    folder_write(folder_file("alone/tokenizer_config.json"), config, sizeof config - 1);
    CHECK_OK(tokenizer_open(vocab_folder, &vocab_tokenizer));
    check_same(t, vocab_tokenizer);
    CHECK_OK(tokenizer_destroy(&vocab_tokenizer));
    CHECK_OK(tokenizer_destroy(&reopened));
    CHECK_OK(tokenizer_destroy(&t));
}

static void check_vocab(const char *text, const char *reason)
{
    struct tokenizer *t = NULL;
    CHECK_OK(file_make_folders(folder_file("bad")));
    folder_write(folder_file("bad/vocab.txt"), text, strlen(text));
    if (reason == NULL) {
        CHECK_OK(tokenizer_open(folder_file("bad"), &t));
        CHECK_EQUAL(tokenizer_find(t, "b"), 2);
    } else {
        CHECK_FAILS(tokenizer_open(folder_file("bad"), &t), STATUS_DATA, reason);
    }
    CHECK_OK(tokenizer_destroy(&t));
}

static void test_bad_vocab(void)
{
    check_vocab("[UNK]\na\nb", NULL);
    check_vocab("[UNK]\r\na\r\nb\r\n", NULL);
    check_vocab("", "0 lines");
    check_vocab("a\nb\n", "[UNK]");
    check_vocab("[UNK]\na\n\nb\n", ":3: the line has no token");
    check_vocab("[UNK]\na\xc3\nb\n", ":2: the line is not valid UTF-8");
    check_vocab("[UNK]\na\na\n", ":3: the line repeats the token of line 2");
}

static char *read_valid_file(size_t *bytes)
{
    return folder_read(reference_path("bert/tokenizer.json"), bytes);
}

static void check_bad(const char *part, const char *replacement, const char *reason)
{
    size_t bytes = 0;
    char *valid_file = read_valid_file(&bytes), *at = strstr(valid_file, part);
    CHECK(at != NULL);
    size_t capacity = bytes + strlen(replacement) + 1;
    char *text = malloc(capacity);
    CHECK(text != NULL);
    int used = snprintf(text, capacity, "%.*s%s%s", (int)(at - valid_file), valid_file, replacement,
                        at + strlen(part));
    struct tokenizer *t = NULL;
    CHECK_FAILS(tokenizer_from_text(text, (size_t)used, "f.json", &t), STATUS_DATA, reason);
    free(text);
    free(valid_file);
}

static void test_bad_files(void)
{
    check_bad("\"BertNormalizer\"", "\"NFC\"", "'NFC'");
    check_bad("\"clean_text\":true", "\"clean_text\":1", "clean_text");
    check_bad("\"BertPreTokenizer\"", "\"Whitespace\"", "'Whitespace'");
    check_bad("\"TemplateProcessing\"", "\"RobertaProcessing\"", "'RobertaProcessing'");
    check_bad("\"id\":\"[CLS]\"", "\"id\":\"[SEP]\"", "post_processor");
    check_bad("\"decoder\":{\"type\":\"WordPiece\"", "\"decoder\":{\"type\":\"BPEDecoder\"",
              "'BPEDecoder'");
    check_bad("\"prefix\":\"##\"", "\"prefix\":\"@@\"", "prefix");
    check_bad("\"unk_token\":\"[UNK]\"", "\"unk_token\":\"none\"", "'none'");
    check_bad("\"unk_token\":\"[UNK]\"", "\"unk_token\":null", "unk_token");
    check_bad("\"continuing_subword_prefix\":\"##\"", "\"continuing_subword_prefix\":\"\"",
              "continuing_subword_prefix");
    check_bad("\"max_input_chars_per_word\":100", "\"max_input_chars_per_word\":0",
              "max_input_chars_per_word");
    check_bad("\"truncation\":null", "\"truncation\":{}", "set it to null");
    check_bad("\"normalized\":false", "\"normalized\":true", "normalized");
    check_bad("\"##a\":", "\"\":", "empty");
}

/* A file with random changes is refused or gives a tokenizer that encodes. */
static void test_changed_bytes(void)
{
    size_t bytes = 0;
    char *valid_file = read_valid_file(&bytes);
    char *text = malloc(bytes);
    CHECK(text != NULL);
    uint64_t key = random_key(6, RANDOM_TEST, 0, 0);
    for (uint64_t round = 0; round < 300; round++) {
        memcpy(text, valid_file, bytes);
        for (uint64_t i = 0; i < 1 + round % 3; i++) {
            uint64_t at = random_below(key, round * 8 + 2 * i, bytes);
            text[at] = (char)(random_u64(key, round * 8 + 2 * i + 1) & 0x7f);
        }
        struct tokenizer *t = NULL;
        status result = tokenizer_from_text(text, bytes, "f.json", &t);
        CHECK(result == STATUS_OK || result == STATUS_DATA);
        struct token_list ids = {0};
        if (result == STATUS_OK) {
            CHECK_OK(tokenizer_encode(t, "Two banks, one stroke", 21, true, &ids));
        }
        status_clear();
        token_list_free(&ids);
        CHECK_OK(tokenizer_destroy(&t));
    }
    free(text);
    free(valid_file);
}

/* ---- training ---- */

static struct tokenizer *train_wordpiece(int64_t vocab_size, int workers)
{
    char *files[] = {reference_path("corpus.txt")};
    struct tokenizer *t = NULL;
    CHECK_OK(train_tokenizer(TOKENIZER_WORDPIECE, vocab_size, files, 1, workers, &t));
    return t;
}

/* The Python package breaks ties randomly and merges pairs that occur once. Its vocabulary
 * therefore contains all but at most 3 of the pieces trained here. */
static void test_train(void)
{
    struct tokenizer *one_worker = train_wordpiece(700, 1),
                     *three_workers = train_wordpiece(700, 3), *package_tokenizer = NULL;
    check_same(one_worker, three_workers);
    CHECK_OK(tokenizer_open(reference_path("bert"), &package_tokenizer));
    int64_t shared = 0, size = tokenizer_vocab_size(one_worker);
    for (int64_t id = 0; id < size; id++) {
        shared += tokenizer_find(package_tokenizer, one_worker->tokens[id].bytes) >= 0;
    }
    CHECK(size > 300 && shared >= size - 3);
    CHECK(tokenizer_is_continuation(one_worker, tokenizer_find(one_worker, "##e")));
    CHECK(!tokenizer_is_continuation(one_worker, tokenizer_find(one_worker, "e")) &&
          !tokenizer_is_continuation(one_worker, 2));
    struct tokenizer *small = NULL;
    char *files[] = {reference_path("corpus.txt"), folder_file("blank")};
    CHECK_FAILS(train_tokenizer(TOKENIZER_WORDPIECE, 100, files, 1, 1, &small), STATUS_USAGE,
                "too small");
    folder_write(files[1], " \n ", 3);
    CHECK_FAILS(train_tokenizer(TOKENIZER_WORDPIECE, 100, files + 1, 1, 1, &small), STATUS_DATA,
                "no words");
    CHECK_OK(tokenizer_destroy(&package_tokenizer));
    CHECK_OK(tokenizer_destroy(&three_workers));
    CHECK_OK(tokenizer_destroy(&one_worker));
}

/* ---- malicious texts: an algorithm that is quadratic in their length would not end ---- */

static void test_malicious_texts(void)
{
    struct tokenizer *t = NULL;
    CHECK_OK(tokenizer_open(reference_path("bert"), &t));
    enum { BYTES = 4 << 20 };
    char *text = malloc(BYTES);
    CHECK(text != NULL);
    static const char *const patterns[] = {
        "a", "\u302f\U0001D165\U0001D16D", "\xff", "\u0301", "(", "\u6f22"};
    for (int p = 0; p < COUNT(patterns); p++) {
        size_t length = strlen(patterns[p]), used = 0;
        for (; used + length <= BYTES; used += length) {
            memcpy(text + used, patterns[p], length);
        }
        struct token_list ids = {0};
        CHECK_OK(tokenizer_encode(t, text, used, true, &ids));
        CHECK(ids.count == (p == 2 || p == 3 ? 0 : p < 4 ? 1 : (int64_t)(used / length)));
        token_list_free(&ids);
    }
    free(text);
    struct token_list ids = {0};
    int64_t first;
    CHECK_FAILS(tokenizer_encode_pair(t, "a", 1, "b", 1, false, 2, &ids, &first), STATUS_USAGE,
                "limit of 2 tokens");
    CHECK_EQUAL(ids.count, 0);
    token_list_free(&ids);
    CHECK_OK(tokenizer_destroy(&t));
}

int main(void)
{
    folder_make();
    test_reference();
    test_files();
    test_bad_vocab();
    test_bad_files();
    test_changed_bytes();
    test_train();
    test_malicious_texts();
    return 0;
}
