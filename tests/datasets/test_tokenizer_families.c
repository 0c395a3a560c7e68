/* Tests of tokenizers with the sections of published models (Qwen 2, SmolLM2, Granite, Llama 2,
 * Mistral, Gemma, GPT-1, GPT-NeoX): ids and decoded texts are the same as in the Python package
 * (make_tokenizer_reference.py). Also tested: the normal forms of every code point, texts
 * in parts, refusals and malicious files. */
#include <jansson.h>

#include "base/memory.h"
#include "base/random.h"
#include "base/utf8.h"
#include "datasets/tokenizer/tokenizer_impl.h"
#include "tests/check.h"
#include "tests/datasets/tokenizer_reference.h"

/* ---- ids and texts ---- */

/* Compares with the text of the package, which has U+FFFD for bytes that are not UTF-8. */
static void check_text(const char *name, const char *text, const char *expected)
{
    if (utf8_is_valid(text, strlen(text)) && strcmp(text, expected) != 0) {
        fprintf(stderr, "%s: decoded '%.80s', expected '%.80s'\n", name, text, expected);
        exit(1);
    }
}

static void check_decoded(const char *name, const struct tokenizer *t, const struct token_list *ids,
                          const char *text, const json_t *with, const json_t *without)
{
    char *decoded = NULL;
    size_t bytes = 0;
    const char *expected = json_is_null(with) ? text : json_string_value(with);
    CHECK_OK(tokenizer_decode(t, ids->ids, ids->count, false, &decoded, &bytes));
    CHECK_EQUAL(strlen(decoded), bytes);
    check_text(name, decoded, expected);
    free(decoded);
    CHECK_OK(tokenizer_decode(t, ids->ids, ids->count, true, &decoded, NULL));
    check_text(name, decoded, json_is_null(without) ? expected : json_string_value(without));
    free(decoded);
}

static void check_texts(const char *name, const struct tokenizer *t, const json_t *texts,
                        const json_t *expected)
{
    struct token_list ids = {0};
    const json_t *list = json_object_get(expected, "ids");
    CHECK(json_array_size(texts) > 60 && json_array_size(list) == json_array_size(texts));
    CHECK_EQUAL(tokenizer_bos(t), json_integer_value(json_object_get(expected, "bos")));
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const char *text = json_string_value(json_array_get(texts, i));
        ids.count = 0;
        CHECK_OK(tokenizer_encode(t, text, strlen(text), true, &ids));
        reference_check_ids(name, text, &ids, json_array_get(list, i));
        check_decoded(name, t, &ids, text, json_array_get(json_object_get(expected, "decoded"), i),
                      json_array_get(json_object_get(expected, "without_special"), i));
    }
    token_list_free(&ids);
}

/* Checks the tokens around a text. The post-processor determines them, not the vocabulary. */
static void check_around(const char *name, const struct tokenizer *t, const json_t *texts,
                         const json_t *expected)
{
    const json_t *around = json_object_get(expected, "around");
    struct tokenizer_specials s = tokenizer_get_specials(t);
    CHECK((s.cls >= 0) == json_is_array(around) && (s.sep >= 0) == json_is_array(around));
    for (size_t i = 0; i < json_array_size(around); i++) {
        const char *text = json_string_value(json_array_get(texts, i));
        struct token_list ids = {0};
        int64_t first;
        CHECK_OK(tokenizer_encode_pair(t, text, strlen(text), NULL, 0, true, 0, &ids, &first));
        reference_check_ids(name, text, &ids, json_array_get(around, i));
        token_list_free(&ids);
    }
}

static void test_reference(const json_t *root)
{
    const char *name;
    json_t *expected;
    json_object_foreach(json_object_get(root, "tokenizers"), name, expected)
    {
        struct tokenizer *t = NULL, *reopened = NULL;
        char *folder = folder_file(name);
        CHECK_OK(tokenizer_open(reference_path(name), &t));
        CHECK_EQUAL(tokenizer_get_kind(t), TOKENIZER_BPE);
        check_texts(name, t, json_object_get(root, "texts"), expected);
        check_around(name, t, json_object_get(root, "texts"), expected);
        CHECK_OK(tokenizer_save(t, folder)); /* saving and opening give the same tokenizer */
        CHECK_OK(tokenizer_open(folder, &reopened));
        CHECK_TEXT(tokenizer_sha256(t), tokenizer_sha256(reopened));
        check_texts(name, reopened, json_object_get(root, "texts"), expected);
        CHECK_OK(tokenizer_destroy(&reopened));
        CHECK_OK(tokenizer_destroy(&t));
    }
}

/* ---- normal forms ---- */

static void digest_form(enum normalizer_kind kind, char digest[HASH_TEXT_BYTES])
{
    struct normalizer n = {0};
    struct hash *hash = NULL;
    struct text_buffer out = {0};
    CHECK_OK(normalizer_add(&n, &(struct normalizer_step){.kind = kind}));
    CHECK_OK(hash_create(&hash));
    for (uint32_t code = 0; code < 0x110000; code++) {
        if (code >= 0xD800 && code < 0xE000) {
            continue;
        }
        char c[5] = {0}, text[64];
        size_t length = utf8_write(code, c), bytes = 0;
        const char *const parts[] = {"a", c, "\u0323\u0301", c, "b \u0301", c, "\u1161\u11a8"};
        const size_t lengths[] = {1, length, 4, length, 4, length, 6};
        for (int i = 0; i < 7; i++) {
            memcpy(text + bytes, parts[i], lengths[i]);
            bytes += lengths[i];
        }
        out.count = 0;
        CHECK_OK(normalizer_run(&n, text, bytes, false, &out));
        CHECK_OK(text_buffer_append(&out, "\n", 1));
        CHECK_OK(hash_update(hash, out.bytes, out.count));
    }
    CHECK_OK(hash_finish(&hash, digest));
    text_buffer_free(&out);
    normalizer_free(&n);
}

static void test_forms(const json_t *root)
{
    static const struct {
        const char *name;
        enum normalizer_kind kind;
    } forms[] = {{"NFC", NORMALIZER_NFC},
                 {"NFD", NORMALIZER_NFD},
                 {"NFKC", NORMALIZER_NFKC},
                 {"NFKD", NORMALIZER_NFKD},
                 {"Lowercase", NORMALIZER_LOWERCASE},
                 {"StripAccents", NORMALIZER_STRIP_ACCENTS}};
    for (int i = 0; i < COUNT(forms); i++) {
        char digest[HASH_TEXT_BYTES];
        digest_form(forms[i].kind, digest);
        const json_t *expected = json_object_get(json_object_get(root, "forms"), forms[i].name);
        CHECK_TEXT(digest, json_string_value(expected));
    }
}

static status count_word(void *context, const char *word, size_t bytes, size_t offset)
{
    (void)word;
    (void)offset;
    CHECK(bytes > 0);
    ++*(int *)context;
    return STATUS_OK;
}

/* Digits separates the same characters as the package. */
static void test_digits(const json_t *root)
{
    const struct word_split split = {{{.kind = WORD_SPLIT_EACH_DIGIT}}, 1};
    struct hash *hash = NULL;
    CHECK_OK(hash_create(&hash));
    for (uint32_t code = 0; code < 0x110000; code++) {
        if (code >= 0xD800 && code < 0xE000) {
            continue;
        }
        char text[8] = "a", line[16];
        size_t length = utf8_write(code, text + 1);
        int words = 0;
        text[1 + length] = 'b';
        CHECK_OK(word_split_run(&split, text, length + 2, true, false, count_word, &words));
        snprintf(line, sizeof line, "%d\n", words);
        CHECK_OK(hash_update(hash, line, strlen(line)));
    }
    char digest[HASH_TEXT_BYTES];
    CHECK_OK(hash_finish(&hash, digest));
    const json_t *expected = json_object_get(json_object_get(root, "forms"), "Digits");
    CHECK_TEXT(digest, json_string_value(expected));
}

/* A text of marks alone is sorted in linear time, and bytes that are not UTF-8 stay. */
static void test_marks(void)
{
    enum { MARKS = 400000 };
    struct normalizer n = {0};
    struct text_buffer text = {0}, out = {0};
    CHECK_OK(normalizer_add(&n, &(struct normalizer_step){.kind = NORMALIZER_NFC}));
    CHECK_OK(text_buffer_append(&text, "q", 1));
    for (int i = 0; i < MARKS; i++) {
        CHECK_OK(text_buffer_append(&text, i % 2 == 0 ? "\u0301" : "\u0323", 2));
    }
    CHECK_OK(normalizer_run(&n, text.bytes, text.count, false, &out));
    CHECK_EQUAL(out.count, text.count);
    CHECK(memcmp(out.bytes, "q\u0323\u0323", 5) == 0);
    CHECK(memcmp(out.bytes + out.count - 4, "\u0301\u0301", 4) == 0);
    out.count = 0;
    CHECK_OK(normalizer_run(&n,
                            "\xff"
                            "e\u0301\xc3",
                            5, false, &out));
    CHECK(out.count == 4 && memcmp(out.bytes, "\xff\u00e9\xc3", 4) == 0);
    text_buffer_free(&text);
    text_buffer_free(&out);
    normalizer_free(&n);
}

/* ---- texts in parts ---- */

/* The parts of a text, split before spaces, have the ids of the whole text. */
static void test_parts(const char *name, const char *text)
{
    struct tokenizer *t = NULL;
    struct token_list whole = {0}, parts = {0};
    CHECK_OK(tokenizer_open(reference_path(name), &t));
    CHECK_OK(tokenizer_encode(t, text, strlen(text), false, &whole));
    for (size_t pos = 0, end; text[pos] != '\0'; pos = end) {
        for (end = pos + 1; text[end] != '\0' && (text[end] != ' ' || text[end - 1] == ' ');) {
            end++;
        }
        CHECK_OK(pos == 0 ? tokenizer_encode(t, text, end, false, &parts)
                          : tokenizer_encode_continued(t, text + pos, end - pos, &parts));
    }
    CHECK_EQUAL(whole.count, parts.count);
    CHECK(memcmp(whole.ids, parts.ids, (size_t)whole.count * sizeof *whole.ids) == 0);
    char *first = NULL, *rest = NULL, *all = NULL; /* so have the texts of the parts of the ids */
    CHECK_OK(tokenizer_decode(t, whole.ids, whole.count, false, &all, NULL));
    CHECK_OK(tokenizer_decode(t, whole.ids, 1, false, &first, NULL));
    CHECK_OK(tokenizer_decode_continued(t, whole.ids + 1, whole.count - 1, false, &rest, NULL));
    CHECK(strncmp(all, first, strlen(first)) == 0);
    CHECK_TEXT(all + strlen(first), rest);
    free(first);
    free(rest);
    free(all);
    token_list_free(&whole);
    token_list_free(&parts);
    CHECK_OK(tokenizer_destroy(&t));
}

/* A text after a special token: Llama 2 puts U+2581 there too, Mistral only before a whole text. */
static void test_after_special(const char *name)
{
    struct tokenizer *t = NULL;
    struct token_list whole = {0}, part = {0};
    CHECK_OK(tokenizer_open(reference_path(name), &t));
    CHECK_OK(tokenizer_encode(t, "<s>the oars", 11, true, &whole));
    CHECK_OK(tokenizer_encode_after_special(t, "the oars", 8, &part));
    CHECK_EQUAL(whole.count, part.count + 1);
    CHECK(memcmp(whole.ids + 1, part.ids, (size_t)part.count * sizeof *part.ids) == 0);
    part.count = 0;
    CHECK_OK(tokenizer_encode_after_special(t, "", 0, &part));
    CHECK_EQUAL(part.count, 0);
    token_list_free(&whole);
    token_list_free(&part);
    CHECK_OK(tokenizer_destroy(&t));
}

/* Bytes that are not UTF-8 become byte tokens, or an error if the model has none. */
static void test_bytes(void)
{
    struct tokenizer *t = NULL;
    struct token_list ids = {0};
    CHECK_OK(tokenizer_open(reference_path("family_mistral"), &t));
    CHECK(tokenizer_keeps_bytes(t));
    CHECK_OK(tokenizer_encode(t, "\xff", 1, false, &ids));
    CHECK_EQUAL(ids.count, 2);
    CHECK_EQUAL(ids.ids[1], tokenizer_find(t, "<0xFF>"));
    token_list_free(&ids);
    CHECK_OK(tokenizer_destroy(&t));
    CHECK_OK(tokenizer_open(reference_path("family_crossing"), &t));
    CHECK(!tokenizer_keeps_bytes(t));
    CHECK_OK(tokenizer_destroy(&t));
    CHECK_OK(tokenizer_open(reference_path("family_qwen2"), &t));
    CHECK(tokenizer_keeps_bytes(t));
    CHECK_OK(tokenizer_destroy(&t));
}

/* ---- refusals ---- */

static char *replace_part(const char *name, const char *from, const char *to)
{
    char path[FILE_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    CHECK_OK(file_join(path, reference_path(name), "tokenizer.json"));
    CHECK_OK(file_read(path, 1 << 20, &text, &bytes));
    const char *at = strstr(text, from);
    if (at == NULL) {
        fprintf(stderr, "%s has no %s\n", name, from);
        exit(1);
    }
    size_t capacity = bytes + strlen(to) + 1;
    char *changed = malloc(capacity);
    CHECK(changed != NULL);
    snprintf(changed, capacity, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    free(text);
    return changed;
}

static void test_refusals(void)
{
    static const struct {
        const char *name, *from, *to, *reason;
    } cases[] = {
        {"family_llama2", "\"type\":\"Prepend\"", "\"type\":\"Nmt\"", "'Nmt' is not supported"},
        {"family_llama2", "\"prepend\":", "\"prefix\":", "'prefix'"},
        {"family_llama2", "{\"String\":\" \"}", "{\"Regex\":\"a+\"}", "'a+'"},
        {"family_llama2", "{\"String\":\" \"}", "{\"String\":\"\"}", "String is not a string of 1"},
        {"family_llama2", "\"type\":\"Strip\"", "\"type\":\"CTC\"", "'CTC' is not supported"},
        {"family_llama2", "\"start\":1", "\"start\":-1", "start and stop"},
        {"family_llama2", "\"unk_token\":\"<unk>\"", "\"unk_token\":\"<u>\"", "'<u>' is not in"},
        {"family_llama2", "\"pre_tokenizer\":null", "\"pre_tokenizer\":{\"type\":\"Punctuation\"}",
         "'Punctuation' is not supported"},
        {"family_gemma", "MergedWithPrevious", "Removed", "'Removed'"},
        {"family_gemma", "\"decoder\":{", "\"decoder\":null,\"x\":{", "'x'"},
        {"family_mistral", "\"first\"", "\"last\"", "prepend_scheme"},
        {"family_mistral", "\"replacement\":\"\u2581\"", "\"replacement\":\"ab\"",
         "not one character"},
        {"family_gpt1", "\"type\":\"BertPreTokenizer\"", "\"type\":\"WhitespaceSplit\"",
         "BertNormalizer is supported only"},
        {"family_gpt1", "\"end_of_word_suffix\":\"</w>\"", "\"end_of_word_suffix\":7",
         "end_of_word_suffix"},
        {"family_prefix", "{\"type\":\"NFKD\"}", "{\"type\":\"Nmt\"}", "'Nmt'"},
        {"family_prefix", "\"##", "\"", "continuing_subword_prefix"},
        {"family_smollm2", "\"individual_digits\":true", "\"individual_digits\":1",
         "individual_digits"},
        {"family_smollm2", "\"type\":\"Digits\"", "\"type\":\"Punctuation\"", "'Punctuation'"},
        {"family_smollm2", "\"normalizer\":null", "\"normalizer\":{\"type\":\"BertNormalizer\"}",
         "'BertNormalizer' is not supported"},
    };
    for (int i = 0; i < COUNT(cases); i++) {
        struct tokenizer *t = NULL;
        char *text = replace_part(cases[i].name, cases[i].from, cases[i].to);
        status result = tokenizer_from_text(text, strlen(text), "f.json", &t);
        if (i == 15) { /* a merge without the prefix */
            CHECK(result == STATUS_DATA);
        } else if (result != STATUS_DATA ||
                   strstr(status_pending()->text, cases[i].reason) == NULL) {
            fprintf(stderr, "case %d: expected a reason with '%s'\n", i, cases[i].reason);
            status_print();
            exit(1);
        }
        status_clear();
        free(text);
    }
}

/* Steps that double a text many times are stopped. */
static void test_growth(void)
{
    char list[2048], *text;
    size_t used = 0;
    struct tokenizer *t = NULL;
    struct token_list ids = {0};
    for (int i = 0; i < 16; i++) {
        used += (size_t)snprintf(list + used, sizeof list - used,
                                 "%s{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},"
                                 "\"content\":\"aaaaaaaa\"}",
                                 i > 0 ? "," : "");
    }
    char normalizer[2200];
    snprintf(normalizer, sizeof normalizer, "\"normalizers\":[%s]}", list);
    text = replace_part("family_llama2",
                        "\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"\u2581\"},{\"type\":"
                        "\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\u2581\"}]}",
                        normalizer);
    CHECK_OK(tokenizer_from_text(text, strlen(text), "f.json", &t));
    char letters[1000];
    memset(letters, 'a', sizeof letters);
    CHECK_FAILS(tokenizer_encode(t, letters, sizeof letters, true, &ids), STATUS_DATA,
                "normalizer makes a text more than 64 times");
    CHECK_EQUAL(ids.count, 0);
    token_list_free(&ids);
    CHECK_OK(tokenizer_destroy(&t));
    free(text);
}

/* Files with random changes are refused or give a tokenizer that reads back equal. */
static void test_changed_files(const char *name)
{
    static const char marks[] = "\"{}[],:01-tfe_";
    char *original = replace_part(name, "\"version\"", "\"version\"");
    size_t bytes = strlen(original);
    char *text = malloc(bytes + 1);
    int opened = 0;
    CHECK(text != NULL);
    for (uint64_t round = 0; round < 600; round++) {
        uint64_t key = random_key(23, RANDOM_TEST, round, 0);
        struct tokenizer *t = NULL;
        memcpy(text, original, bytes + 1);
        for (uint64_t i = 0; i < 2; i++) {
            text[random_below(key, 2 * i, bytes)] =
                marks[random_below(key, 2 * i + 1, sizeof marks - 1)];
        }
        status result = tokenizer_from_text(text, bytes, name, &t);
        CHECK(result == STATUS_OK || result == STATUS_DATA);
        status_clear();
        if (t != NULL) {
            struct tokenizer *again = NULL;
            char *written = NULL;
            size_t count = 0;
            CHECK_OK(tokenizer_to_text(t, &written, &count));
            CHECK_OK(tokenizer_from_text(written, count, "again", &again));
            CHECK_TEXT(tokenizer_sha256(t), tokenizer_sha256(again));
            free(written);
            CHECK_OK(tokenizer_destroy(&again));
            CHECK_OK(tokenizer_destroy(&t));
            opened++;
        }
    }
    printf("%s: %d of 600 changed files open\n", name, opened);
    free(text);
    free(original);
}

int main(void)
{
    json_error_t error;
    folder_make();
    json_t *root = json_load_file(reference_path("expected_families.json"), JSON_ALLOW_NUL, &error);
    CHECK(root != NULL);
    test_reference(root);
    test_forms(root);
    test_digits(root);
    test_marks();
    test_parts("family_llama2", "the two banks  pull in one stroke\n and row");
    test_parts("family_mistral", "the two banks  pull in one stroke\n and row");
    test_parts("family_gemma", "the two banks  pull in one stroke\n and row");
    test_parts("family_qwen2", "the two banks pull in one stroke and row");
    test_after_special("family_llama2");
    test_after_special("family_mistral");
    test_after_special("family_metaspace");
    test_bytes();
    test_refusals();
    test_growth();
    test_changed_files("family_llama2");
    test_changed_files("family_gpt1");
    test_changed_files("family_smollm2");
    json_decref(root);
    return 0;
}
