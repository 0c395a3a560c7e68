/* Tests of tokenizer.json files that are invalid, unsupported or malicious. Each is refused with
 * STATUS_DATA and a reason, in bounded time and memory. Files with random changes are refused or
 * give a usable tokenizer. */
#include <jansson.h>
#include <sys/resource.h>
#include <time.h>

#include "base/memory.h"
#include "base/random.h"
#include "datasets/tokenizer/tokenizer_impl.h"
#include "tests/check.h"
#include "tests/datasets/folder.h"
#include "tests/datasets/train_tokenizer.h"

/* A small valid file. Each bad file is this one with one part replaced. */
static const char valid_file[] =
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,"
    "\"added_tokens\":[{\"id\":4,\"content\":\"<e>\",\"single_word\":false,\"lstrip\":false,"
    "\"rstrip\":false,\"normalized\":false,\"special\":true}],"
    "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
    "\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,"
    "\"decoder\":{\"type\":\"ByteLevel\"},"
    "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"vocab\":"
    "{\"a\":0,\"b\":1,\"ab\":2,\"aba\":3},\"merges\":[\"a b\",[\"ab\",\"a\"]]}}";

static status parse_text(const char *text, size_t bytes)
{
    struct tokenizer *t = NULL;
    status result = tokenizer_from_text(text, bytes, "f.json", &t);
    CHECK((result == STATUS_OK) == (t != NULL));
    CHECK_OK(tokenizer_destroy(&t));
    return result;
}

/* Returns the valid file with one part replaced. */
static char *replace_part(const char *part, const char *replacement)
{
    const char *at = strstr(valid_file, part);
    CHECK(at != NULL);
    size_t bytes = sizeof valid_file + strlen(replacement);
    char *text = malloc(bytes);
    CHECK(text != NULL);
    snprintf(text, bytes, "%.*s%s%s", (int)(at - valid_file), valid_file, replacement,
             at + strlen(part));
    return text;
}

struct bad_part {
    const char *part;
    const char *replacement;
    const char *reason;
};

static const struct bad_part bad_parts[] = {
    {"\"1.0\"", "\"2.0\"", "version"},
    {"\"version\"", "\"versiom\"", "versiom"},
    {"\"truncation\":null", "\"truncation\":{}", "truncation is set, which is not"},
    {"\"padding\":null", "\"padding\":{\"strategy\":\"x\"}", "set it to null"},
    {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Nmt\"}", "'Nmt'"},
    {"\"type\":\"BPE\"", "\"type\":\"WordLevel\"", "'WordLevel'"},
    {"\"type\":\"BPE\"", "\"type\":7", "(no type)"},
    {"\"dropout\":null", "\"dropout\":0.1", "dropout"},
    {"\"dropout\":null", "\"cache\":1", "'cache'"},
    {"\"unk_token\":null", "\"unk_token\":\"a\"", "unk_token"},
    {"\"unk_token\":null", "\"unk_token\":1", "unk_token"},
    {"\"dropout\":null", "\"byte_fallback\":true", "byte_fallback"},
    {"\"dropout\":null", "\"fuse_unk\":1", "fuse_unk"},
    {"\"dropout\":null", "\"continuing_subword_prefix\":\"##\"", "continuing_subword_prefix"},
    {"\"dropout\":null", "\"end_of_word_suffix\":\"</w>\"", "end_of_word_suffix"},
    {"\"use_regex\":true", "\"use_regex\":\"yes\"", "use_regex"},
    {"\"use_regex\":true", "\"individual\":true", "'individual'"},
    {"{\"type\":\"ByteLevel\",\"add", "{\"type\":\"Whitespace\",\"add", "'Whitespace'"},
    {"{\"type\":\"ByteLevel\",\"add", "{\"add", "(no type)"},
    {"\"pre_tokenizer\":{", "\"pre_tokenizer\":7,\"decoder\":{", "duplicate"},
    {"{\"type\":\"ByteLevel\"}", "{\"type\":\"WordPiece\"}", "'WordPiece'"},
    {"{\"type\":\"ByteLevel\"}", "null", "decoder"},
    {"\"post_processor\":null", "\"post_processor\":{\"type\":\"TemplateProcessing\"}",
     "post_processor's template"},
    {"\"single_word\":false", "\"single_word\":true", "single_word"},
    {"\"lstrip\":false", "\"lstrip\":1", "lstrip"},
    {"\"rstrip\":false", "\"rstrip\":1", "rstrip"},
    {"\"special\":true", "\"special\":1", "special"},
    {"\"special\":true", "\"x\":1", "'x'"},
    {"\"id\":4", "\"id\":3", "id 3"},
    {"\"id\":4", "\"id\":-1", "id -1"},
    {"\"id\":4", "\"id\":99999999999999", "99999999999999"},
    {"\"id\":4", "\"id\":9999999", "9999999"},
    {"\"id\":4", "\"id\":4.0", "integer"},
    {"\"id\":4", "\"id\":null", "integer"},
    {"\"<e>\"", "\"\"", "content"},
    {"\"<e>\"", "7", "content"},
    {"\"<e>\"", "\"ab\"", "'ab'"},
    {"[{\"id\":4", "[7,{\"id\":4", "added_tokens"},
    {"[{\"id\":4", "[{\"id\":4,\"content\":\"y\"},{\"id\":4", "id 4"},
    {"[{\"id\":4", "[{\"id\":5,\"content\":\"<e>\"},{\"id\":4", "'<e>'"},
    {"\"a\":0", "\"a\":1", "id 1 twice"},
    {"\"a\":0", "\"a\":\"0\"", "integer"},
    {"\"a\":0", "\"a\":-5", "id -5"},
    {"\"a\":0", "\"a\":2147483648", "2147483648"},
    {"\"a\":0", "\"\":0", "empty token"},
    {"\"a\":0", "\"a\":0,\"a\":7", "duplicate"},
    {"{\"a\":0,\"b\":1,\"ab\":2,\"aba\":3}", "{}", "vocab"},
    {"{\"a\":0,\"b\":1,\"ab\":2,\"aba\":3}", "[\"a\"]", "vocab"},
    {"\"a b\"", "\"ab\"", "merges[0]"},
    {"\"a b\"", "\"a b \"", "merges[0]"},
    {"\"a b\"", "\"a c\"", "right part 'c'"},
    {"\"a b\"", "\" a\"", "left part ''"},
    {"\"a b\"", "\"b a\"", "result 'ba'"},
    {"\"a b\"", "\"aba aba\"", "result"},
    {"\"a b\"", "\"a b\",\"a b\"", "same pair"},
    {"\"a b\"", "7", "merges[0]"},
    {"[\"ab\",\"a\"]", "[\"ab\"]", "merges[1]"},
    {"[\"ab\",\"a\"]", "[\"ab\",\"a\",\"b\"]", "merges[1]"},
    {"[\"ab\",\"a\"]", "[\"ab\",7]", "merges[1]"},
    {"[\"a b\",[\"ab\",\"a\"]]", "{}", "merges"},
    {"\"a b\"", "\"a\\u0000 b\"", "NUL"},
    {"\"a\":0", "\"\\ud800\":0", "invalid Unicode"},
    {"\"a\":0", "\"\xff\":0", "unable to decode byte 0xff"},
    {"{\"version\"", "[[[[{\"version\"", "expected"},
};

static void test_bad_parts(void)
{
    CHECK_OK(parse_text(valid_file, strlen(valid_file)));
    for (int i = 0; i < COUNT(bad_parts); i++) {
        char *text = replace_part(bad_parts[i].part, bad_parts[i].replacement);
        status result = parse_text(text, strlen(text));
        if (result != STATUS_DATA || strstr(status_pending()->text, bad_parts[i].reason) == NULL) {
            fprintf(stderr, "part %d, %s: returned %d, expected a reason with '%s'\n", i,
                    bad_parts[i].replacement, result, bad_parts[i].reason);
            status_print();
            exit(1);
        }
        CHECK(strncmp(status_pending()->text, "f.json:", 7) == 0);
        status_clear();
        free(text);
    }
}

static const char split_head[] = "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",";
static const char split_tail[] = "},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                                 "\"use_regex\":false}]}";

static status parse_split(const char *middle)
{
    char pre[2048];
    snprintf(pre, sizeof pre, "%s%s%s", split_head, middle, split_tail);
    char *text = replace_part("{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
                              "\"trim_offsets\":true,\"use_regex\":true}",
                              pre);
    status result = parse_text(text, strlen(text));
    free(text);
    return result;
}

static void test_splits(void)
{
#define GPT2_PATTERN                                                                               \
    "\"pattern\":{\"Regex\":\"'s|'t|'re|'ve|'m|'ll|'d| ?\\\\p{L}+| ?\\\\p{N}+|"                    \
    " ?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|\\\\s+\"}"
    CHECK_OK(parse_split(GPT2_PATTERN ",\"behavior\":\"Isolated\",\"invert\":false"));
    CHECK_OK(parse_split(GPT2_PATTERN ",\"behavior\":\"Removed\",\"invert\":true"));
    CHECK_FAILS(parse_split(GPT2_PATTERN ",\"behavior\":\"MergedWithNext\""), STATUS_DATA,
                "'MergedWithNext'");
    CHECK_FAILS(parse_split(GPT2_PATTERN ",\"behavior\":\"Isolated\",\"invert\":true"), STATUS_DATA,
                "invert true");
    CHECK_FAILS(parse_split("\"pattern\":{\"String\":\" \"},\"behavior\":\"Isolated\""),
                STATUS_DATA, "'String'");
    /* A pattern that needs exponential time is refused before it is compiled. */
    CHECK_FAILS(
        parse_split("\"pattern\":{\"Regex\":\"(a+)+(b+)+(c+)+$\"},\"behavior\":\"Isolated\""),
        STATUS_DATA, "'(a+)+(b+)+(c+)+$'");
}

static double read_cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Checks that a file of `head`, many copies of `unit`, and `tail` is refused. */
static void check_repeated_unit(const char *head, const char *unit, const char *tail, size_t bytes,
                                const char *reason)
{
    char *text = malloc(bytes + strlen(head) + strlen(unit) + strlen(tail) + 1);
    CHECK(text != NULL);
    size_t used = strlen(head);
    memcpy(text, head, used);
    while (used < bytes) {
        memcpy(text + used, unit, strlen(unit));
        used += strlen(unit);
    }
    memcpy(text + used, tail, strlen(tail));
    used += strlen(tail);
    double start = read_cpu_seconds();
    CHECK_FAILS(parse_text(text, used), STATUS_DATA, reason);
    printf("%.2f s for %.1f MB of %.12s\n", read_cpu_seconds() - start, (double)used / 1e6, unit);
    free(text);
}

static void test_large_files(void)
{
    check_repeated_unit("", "[", "", 4u << 20, "values");
    check_repeated_unit("", "[", "", 1u << 20, "depth");
    check_repeated_unit("", "{\"a\":", "", 1u << 20, "depth");
    check_repeated_unit("[", "1,", "1]", 32u << 20, "values");
    check_repeated_unit("[\"", "\\\\", "\"]", 32u << 20, "not an object");
    check_repeated_unit(
        "{\"decoder\":{\"type\":\"ByteLevel\"},\"pre_tokenizer\":{\"type\":\"ByteLevel\"},"
        "\"model\":{\"vocab\":{\"a\":0},\"merges\":[",
        "\"a a\",", "\"a a\"]}}", 2u << 20, "merges[0]: its result");
    CHECK_FAILS(parse_text("", 0), STATUS_DATA, ":1:");
    CHECK_FAILS(parse_text("\0\0\0", 3), STATUS_DATA, ":1:");
    struct rusage usage;
    CHECK(getrusage(RUSAGE_SELF, &usage) == 0);
    CHECK(usage.ru_maxrss < 600 * 1024); /* KiB */
}

static void test_folders(void)
{
    struct tokenizer *t = NULL;
    CHECK_FAILS(tokenizer_open(folder_file("none"), &t), STATUS_NO_INPUT,
                "none; a tokenizer is a folder with tokenizer.json, and nothing is downloaded");
    CHECK(t == NULL);
    char *large = folder_file("tokenizer.json");
    folder_write(large, "{", 1);
    CHECK_FAILS(tokenizer_open(folder_path, &t), STATUS_DATA, "tokenizer.json:1:");
    CHECK(truncate(large, (off_t)65 << 20) == 0);
    CHECK_FAILS(tokenizer_open(folder_path, &t), STATUS_DATA, "at most");
    CHECK_FAILS(tokenizer_open(large, &t), STATUS_NO_INPUT, "tokenizer.json");
}

/* Bytes without a token are an error that contains their offset. */
static void test_missing_bytes(void)
{
    struct tokenizer *t = NULL;
    CHECK_OK(tokenizer_from_text(valid_file, strlen(valid_file), "f.json", &t));
    struct token_list ids = {0};
    CHECK_OK(tokenizer_encode(t, "abaab<e>", 8, true, &ids));
    static const int32_t expected[] = {3, 2, 4};
    CHECK(ids.count == 3 && memcmp(ids.ids, expected, sizeof expected) == 0);
    CHECK_FAILS(tokenizer_encode(t, "ab ba", 5, true, &ids), STATUS_DATA, "offset 2");
    CHECK_EQUAL(ids.count, 3);
    char *text = NULL;
    int32_t id = 4;
    CHECK_OK(tokenizer_decode(t, &id, 1, true, &text, NULL));
    CHECK(text[0] == '\0');
    free(text);
    token_list_free(&ids);
    CHECK_OK(tokenizer_destroy(&t));
    char *sparse_file = replace_part("\"aba\":3", "\"aba\":300");
    CHECK_OK(tokenizer_from_text(sparse_file, strlen(sparse_file), "f.json", &t));
    CHECK_EQUAL(tokenizer_vocab_size(t), 301);
    id = 200;
    CHECK_FAILS(tokenizer_decode(t, &id, 1, true, &text, NULL), STATUS_DATA, "is unused");
    CHECK_OK(tokenizer_destroy(&t));
    free(sparse_file);
}

/* The longest added token is matched. A token that is not special is decoded even if special tokens
 * are omitted. */
static void test_added_tokens(void)
{
    char *text = replace_part("[{\"id\":4", "[{\"id\":5,\"content\":\"<e>b\",\"normalized\":false},"
                                            "{\"id\":4");
    struct tokenizer *t = NULL;
    CHECK_OK(tokenizer_from_text(text, strlen(text), "f.json", &t));
    struct token_list ids = {0};
    CHECK_OK(tokenizer_encode(t, "<e>ba<e>a<e>b", 13, true, &ids));
    static const int32_t expected[] = {5, 0, 4, 0, 5};
    CHECK(ids.count == 5 && memcmp(ids.ids, expected, sizeof expected) == 0);
    char *decoded = NULL;
    CHECK_OK(tokenizer_decode(t, ids.ids, ids.count, true, &decoded, NULL));
    CHECK_TEXT(decoded, "<e>baa<e>b");
    free(decoded);
    token_list_free(&ids);
    CHECK_OK(tokenizer_destroy(&t));
    free(text);
}

/* Added tokens that are not special are found without special tokens too. The text of a special
 * token is then skipped as a whole. Hugging Face tokenizers 0.23 gives these ids. */
static void test_plain_added_tokens(void)
{
    static const struct {
        const char *text;
        bool special;
        int32_t ids[4];
        int64_t count;
    } cases[] = {{"babba", false, {1, 2, 5}, 3},
                 {"babba", true, {4, 5}, 2},
                 {"abab", false, {2, 2}, 2},
                 {"abab", true, {0, 4}, 2},
                 {"abaab", false, {0, 5, 2}, 3},
                 {"bbaab", true, {1, 5, 2}, 3},
                 {"b", false, {1}, 1}};
    char *text = replace_part("\"content\":\"<e>\"", "\"content\":\"bab\"");
    size_t bytes = strlen(text) + 100;
    char *with_plain = malloc(bytes);
    const char *list = "\"added_tokens\":[", *at = strstr(text, list);
    struct tokenizer *t = NULL;
    CHECK(at != NULL && with_plain != NULL);
    snprintf(with_plain, bytes, "%.*s%s{\"id\":5,\"content\":\"ba\",\"normalized\":false},%s",
             (int)(at - text), text, list, at + strlen(list));
    CHECK_OK(tokenizer_from_text(with_plain, strlen(with_plain), "f.json", &t));
    for (int i = 0; i < COUNT(cases); i++) {
        struct token_list ids = {0};
        CHECK_OK(tokenizer_encode(t, cases[i].text, strlen(cases[i].text), cases[i].special, &ids));
        CHECK_EQUAL(ids.count, cases[i].count);
        CHECK(memcmp(ids.ids, cases[i].ids, (size_t)ids.count * sizeof *ids.ids) == 0);
        token_list_free(&ids);
    }
    CHECK_OK(tokenizer_destroy(&t));
    free(with_plain);
    free(text);
}

/* Checks that a tokenizer encodes and decodes, and that writing and reading do not change it. */
static void check_usable(struct tokenizer *t)
{
    struct token_list ids = {0};
    static const char text[] = "The two banks' oars <|endoftext|> pull 12 keep\n\n \xc3\xa9\xff";
    if (tokenizer_encode(t, text, sizeof text - 1, true, &ids) == STATUS_OK) {
        char *decoded = NULL;
        size_t bytes = 0;
        CHECK_OK(tokenizer_decode(t, ids.ids, ids.count, false, &decoded, &bytes));
        CHECK(t->add_prefix_space ||
              (bytes == sizeof text - 1 && memcmp(decoded, text, bytes) == 0));
        free(decoded);
    }
    status_clear();
    token_list_free(&ids);
    char *written = NULL;
    size_t bytes = 0;
    CHECK_OK(tokenizer_to_text(t, &written, &bytes));
    struct tokenizer *reopened = NULL;
    CHECK_OK(tokenizer_from_text(written, bytes, "reopened", &reopened));
    CHECK_TEXT(tokenizer_sha256(t), tokenizer_sha256(reopened));
    CHECK_OK(tokenizer_destroy(&reopened));
    free(written);
}

static void mutate_text(char *text, size_t *bytes, uint64_t key)
{
    static const char marks[] = "\"{}[],: 0123456789-\\ntfe\xc4\xff";
    uint64_t changes = 1 + random_below(key, 0, 4);
    for (uint64_t i = 0; *bytes > 8 && i < changes; i++) {
        size_t at = (size_t)random_below(key, 4 * i + 1, *bytes);
        char value = marks[random_below(key, 4 * i + 2, sizeof marks - 1)];
        size_t length = (size_t)random_below(key, 4 * i + 3, 40);
        length = length < *bytes - at ? length : *bytes - at;
        switch (random_below(key, 4 * i + 4, 4)) {
        case 0: /* remove bytes */
            memmove(text + at, text + at + length, *bytes - at - length);
            *bytes -= length;
            break;
        case 1: /* copy bytes to another position */
            memmove(text + random_below(key, 4 * i + 100, *bytes - length + 1), text + at, length);
            break;
        default:
            text[at] = value;
        }
    }
}

static void test_mutations(const char *name, uint64_t rounds)
{
    const char *source = getenv("BIREME_SOURCE_DIR");
    char path[FILE_PATH_BYTES];
    snprintf(path, sizeof path, "%s/tests/reference/tokenizer/%s/tokenizer.json",
             source == NULL ? "." : source, name);
    size_t original_bytes = 0;
    char *original = folder_read(path, &original_bytes);
    char *text = malloc(original_bytes);
    CHECK(text != NULL);
    uint64_t opened_count = 0;
    for (uint64_t round = 0; round < rounds; round++) {
        size_t bytes = original_bytes;
        memcpy(text, original, original_bytes);
        mutate_text(text, &bytes, random_key(19, RANDOM_TEST, round, 0));
        struct tokenizer *t = NULL;
        status result = tokenizer_from_text(text, bytes, name, &t);
        CHECK(result == STATUS_OK || result == STATUS_DATA);
        if (t != NULL) {
            check_usable(t);
            CHECK_OK(tokenizer_destroy(&t));
            opened_count++;
        }
        status_clear();
    }
    printf("%s: %llu of %llu changed files open\n", name, (unsigned long long)opened_count,
           (unsigned long long)rounds);
    free(text);
    free(original);
}

/* Writes vocab.json and merges.txt of a trained tokenizer, with Windows line ends. */
static void write_vocab_and_merges(const struct tokenizer *t, const char *folder)
{
    char path[FILE_PATH_BYTES], *text = NULL;
    size_t bytes = 0, index;
    json_t *merge;
    CHECK_OK(tokenizer_to_text(t, &text, &bytes));
    json_t *root = json_loadb(text, bytes, JSON_ALLOW_NUL, NULL);
    const json_t *model = json_object_get(root, "model");
    CHECK_OK(file_make_folders(folder));
    CHECK_OK(file_join(path, folder, "vocab.json"));
    CHECK(json_dump_file(json_object_get(model, "vocab"), path, 0) == 0);
    CHECK_OK(file_join(path, folder, "merges.txt"));
    FILE *file = fopen(path, "w");
    CHECK(file != NULL);
    fprintf(file, "#version: 0.2\r\n");
    json_array_foreach(json_object_get(model, "merges"), index, merge)
    {
        fprintf(file, "%s\r\n", json_string_value(merge));
    }
    CHECK(fclose(file) == 0);
    json_decref(root);
    free(text);
}

/* vocab.json with merges.txt give the same tokenizer as tokenizer.json. */
static void test_vocab_and_merges(void)
{
    static const char words[] = "the user of the work # the licensee, the user's work\n";
    char *text = folder_file("words"), *folder = folder_file("merges"), path[FILE_PATH_BYTES];
    const struct corpus_source source = {.files = &text, .count = 1};
    folder_write(text, words, sizeof words - 1);
    for (int roberta = 0; roberta < 2; roberta++) {
        struct tokenizer *trained = NULL, *t = NULL;
        CHECK_OK(tokenizer_train(TOKENIZER_BPE, roberta != 0, 280, &source, 1, &trained));
        write_vocab_and_merges(trained, folder);
        CHECK(tokenizer_exists(folder));
        CHECK_OK(tokenizer_open(folder, &t));
        CHECK(strcmp(tokenizer_sha256(t), tokenizer_sha256(trained)) == 0);
        CHECK(tokenizer_is_roberta(t) == (roberta == 1));
        CHECK(tokenizer_eos(t) == tokenizer_eos(trained));
        CHECK_OK(tokenizer_destroy(&t));
        CHECK_OK(tokenizer_destroy(&trained));
    }
    struct tokenizer *t = NULL;
    CHECK_OK(file_join(path, folder, "merges.txt"));
    folder_write(path, "a\n", 2);
    CHECK_FAILS(tokenizer_open(folder, &t), STATUS_DATA, "vocab.json");
    CHECK_OK(file_join(path, folder, "vocab.json"));
    folder_write(path, "[]", 2);
    CHECK_FAILS(tokenizer_open(folder, &t), STATUS_DATA, "vocab.json");
    folder_write(path, "{", 1);
    CHECK_FAILS(tokenizer_open(folder, &t), STATUS_DATA, "vocab.json");
}

int main(void)
{
    folder_make();
    test_bad_parts();
    test_vocab_and_merges();
    test_splits();
    test_folders();
    test_missing_bytes();
    test_added_tokens();
    test_plain_added_tokens();
    test_mutations("gpt2", 1500);
    test_mutations("llama3", 500);
    test_mutations("char", 1500);
    test_large_files();
    return 0;
}
