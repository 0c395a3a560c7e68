/* Tests of SentencePiece models and of Unigram models of tokenizer.json: ids and texts of the
 * Python packages, files, special tokens and damaged files. */
#include <jansson.h>

#include "base/file.h"
#include "datasets/sentencepiece/charsmap.h"
#include "datasets/sentencepiece/sentencepiece.h"
#include "datasets/tokenizer/tokenizer.h"
#include "tests/check.h"
#include "tests/datasets/tokenizer_reference.h"

static struct tokenizer *open_model(const char *name)
{
    struct tokenizer *t = NULL;
    CHECK_OK(tokenizer_open(folder_join(reference_path("sentencepiece"), name), &t));
    return t;
}

static void check_decoded(const struct tokenizer *t, const int32_t *ids, int64_t count,
                          const json_t *expected)
{
    char *text = NULL;
    size_t bytes = 0;
    CHECK_OK(tokenizer_decode(t, ids, count, true, &text, &bytes));
    CHECK_TEXT(text, json_string_value(expected)); /* up to a NUL */
    CHECK_EQUAL(json_string_length(expected), bytes);
    CHECK(memcmp(text, json_string_value(expected), bytes + 1) == 0);
    free(text);
}

/* The ids and the decoded text of each text. */
static void check_texts(const struct tokenizer *t, const char *name, const json_t *texts,
                        const json_t *model, bool special)
{
    const json_t *ids = json_object_get(model, "ids"), *decoded = json_object_get(model, "decoded");
    CHECK_EQUAL(json_array_size(texts), json_array_size(ids));
    struct token_list out = {0};
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i);
        out.count = 0;
        CHECK_OK(
            tokenizer_encode(t, json_string_value(text), json_string_length(text), special, &out));
        reference_check_ids(name, json_string_value(text), &out, json_array_get(ids, i));
        check_decoded(t, out.ids, out.count, json_array_get(decoded, i));
    }
    token_list_free(&out);
}

/* The decoded text of random ids. */
static void check_sequences(const struct tokenizer *t, const json_t *sequences)
{
    CHECK(json_array_size(sequences) > 50);
    for (size_t i = 0; i < json_array_size(sequences); i++) {
        const json_t *pair = json_array_get(sequences, i), *list = json_array_get(pair, 0);
        int32_t ids[16];
        CHECK(json_array_size(list) <= 16);
        for (size_t k = 0; k < json_array_size(list); k++) {
            ids[k] = (int32_t)json_integer_value(json_array_get(list, k));
        }
        check_decoded(t, ids, (int64_t)json_array_size(list), json_array_get(pair, 1));
    }
}

static json_t *load_expected(void)
{
    json_error_t error;
    json_t *expected =
        json_load_file(reference_path("sentencepiece/expected.json"), JSON_ALLOW_NUL, &error);
    CHECK(expected != NULL && json_array_size(json_object_get(expected, "texts")) > 50);
    return expected;
}

static void test_reference(void)
{
    json_t *expected = load_expected();
    const char *name;
    json_t *model;
    CHECK_EQUAL(json_object_size(json_object_get(expected, "models")), 6);
    json_object_foreach(json_object_get(expected, "models"), name, model)
    {
        struct tokenizer *t = open_model(name);
        CHECK_EQUAL(tokenizer_get_kind(t), TOKENIZER_SENTENCEPIECE);
        CHECK_EQUAL(tokenizer_eos(t), json_integer_value(json_object_get(model, "eos")));
        CHECK_EQUAL(tokenizer_bos(t), -1);
        check_texts(t, name, json_object_get(expected, "texts"), model, false);
        check_sequences(t, json_object_get(model, "sequences"));
        CHECK_OK(tokenizer_destroy(&t));
    }
    json_decref(expected);
}

/* ---- tokenizer.json ---- */

static void check_pair(const struct tokenizer *t, const char *name, const json_t *expected)
{
    struct token_list ids = {0};
    int64_t first = 0;
    if (tokenizer_get_specials(t).cls >= 0 && json_is_array(expected)) {
        CHECK_OK(tokenizer_encode_pair(t, "oars", 4, "banks", 5, true, 0, &ids, &first));
        reference_check_ids(name, "oars, banks", &ids, expected);
    }
    token_list_free(&ids);
}

static void check_saved(const struct tokenizer *t, const char *name, const json_t *texts,
                        const json_t *model)
{
    const char *folder = folder_file(name);
    struct tokenizer *again = NULL;
    CHECK_OK(tokenizer_save(t, folder));
    CHECK_OK(tokenizer_open(folder, &again));
    CHECK_TEXT(tokenizer_sha256(again), tokenizer_sha256(t));
    check_texts(again, name, texts, model, true);
    CHECK_OK(tokenizer_destroy(&again));
}

static void test_json(void)
{
    json_t *expected = load_expected();
    const json_t *texts = json_object_get(expected, "texts");
    const char *name;
    json_t *model;
    CHECK_EQUAL(json_object_size(json_object_get(expected, "json")), 4);
    json_object_foreach(json_object_get(expected, "json"), name, model)
    {
        struct tokenizer *t = open_model(name);
        CHECK_EQUAL(tokenizer_get_kind(t), TOKENIZER_UNIGRAM);
        CHECK_EQUAL(tokenizer_bos(t), -1);
        check_texts(t, name, texts, model, true);
        check_sequences(t, json_object_get(model, "sequences"));
        check_pair(t, name, json_object_get(model, "pair"));
        check_saved(t, name, texts, model);
        CHECK_OK(tokenizer_destroy(&t));
    }
    json_decref(expected);
}

/* Replaces a part of the file of t5; the error must contain the message. */
static void check_refused_json(const char *from, const char *to, const char *message)
{
    const char *folder = folder_file("refused");
    char *text = NULL;
    size_t bytes = 0;
    struct tokenizer *t = NULL;
    CHECK_OK(file_read(reference_path("sentencepiece/t5/tokenizer.json"), 1 << 20, &text, &bytes));
    char *found = strstr(text, from);
    size_t length = bytes - strlen(from) + strlen(to);
    char *changed = malloc(length + 1);
    CHECK(found != NULL && changed != NULL);
    snprintf(changed, length + 1, "%.*s%s%s", (int)(found - text), text, to, found + strlen(from));
    CHECK_OK(file_make_folders(folder));
    CHECK_OK(file_write(folder_join(folder, "tokenizer.json"), changed, length));
    CHECK_FAILS(tokenizer_open(folder, &t), STATUS_DATA, message);
    free(changed);
    free(text);
}

static void test_refused_json(void)
{
    check_refused_json("\"unk_id\":0", "\"unk_id\":99999",
                       "model.unk_id is neither null nor an id");
    check_refused_json("[\"</s>\",0.0]", "[\"<s>\",0.0]", "model.vocab has the piece '<s>' twice");
    check_refused_json("[\"</s>\",0.0]", "[\"</s>\",\"0\"]", "model.vocab[2] is not a piece and");
    check_refused_json("[\"</s>\",0.0]", "[\"</s>\"]", "model.vocab[2] is not a piece and");
    check_refused_json("\"precompiled_charsmap\":\"", "\"precompiled_charsmap\":\"*",
                       "normalizer.precompiled_charsmap is not base64");
    check_refused_json("\"precompiled_charsmap\":\"", "\"precompiled_charsmap\":\"////",
                       "the precompiled character map of");
    check_refused_json("\"WhitespaceSplit\"", "\"BertPreTokenizer\"",
                       "pre_tokenizer of the type 'BertPreTokenizer' is not supported");
}

/* ---- special tokens ---- */

static void check_encoding(const struct tokenizer *t, const char *text, bool special,
                           const int32_t *expected, int64_t count)
{
    struct token_list ids = {0};
    CHECK_OK(tokenizer_encode(t, text, strlen(text), special, &ids));
    CHECK_EQUAL(ids.count, count);
    CHECK(count == 0 || memcmp(ids.ids, expected, (size_t)count * sizeof *expected) == 0);
    token_list_free(&ids);
}

static void test_special_tokens(void)
{
    struct tokenizer *t = open_model("bpe_bytes");
    struct token_list plain = {0};
    CHECK_OK(tokenizer_encode(t, "oars", 4, false, &plain));
    int32_t expected[32] = {1, 2};
    CHECK(plain.count > 0 && plain.count < 30);
    memcpy(expected + 2, plain.ids, (size_t)plain.count * sizeof *expected);
    check_encoding(t, "<s></s>oars", true, expected, plain.count + 2);
    CHECK_EQUAL(tokenizer_find(t, "</s>"), 2);
    CHECK(tokenizer_is_special(t, 2) && !tokenizer_is_special(t, expected[2]));
    CHECK_EQUAL(tokenizer_find(t, "<0x41>"), 3 + 0x41);

    char *text = NULL;
    size_t bytes = 0;
    CHECK_OK(tokenizer_decode(t, expected, plain.count + 2, false, &text, &bytes));
    CHECK_TEXT(text, "<s></s> oars");
    free(text);
    CHECK_OK(tokenizer_destroy(&t));
    token_list_free(&plain);
}

/* A text that continues another one gets no leading space, and loses none. */
static void test_continued(void)
{
    static const char *const names[] = {"unigram", "bpe_bytes", "bpe_gemma", "t5", "bpe"};
    for (int i = 0; i < 5; i++) {
        struct tokenizer *t = open_model(names[i]);
        struct token_list whole = {0}, parts = {0};
        char *text = NULL;
        size_t bytes = 0;
        CHECK_OK(tokenizer_encode(t, "two banks of oars", 17, false, &whole));
        CHECK_OK(tokenizer_encode(t, "two banks", 9, false, &parts));
        int64_t first = parts.count;
        CHECK_OK(tokenizer_encode_continued(t, " of oars", 8, &parts));
        CHECK_EQUAL(parts.count, whole.count);
        CHECK(memcmp(parts.ids, whole.ids, (size_t)whole.count * sizeof *whole.ids) == 0);
        CHECK_OK(tokenizer_decode_continued(t, parts.ids + first, parts.count - first, true, &text,
                                            &bytes));
        CHECK_TEXT(text, i < 4 ? " of oars" : "of oars "); /* the last one has spaces after words */
        free(text);
        token_list_free(&whole);
        token_list_free(&parts);
        CHECK_OK(tokenizer_destroy(&t));
    }
}

static void test_added_tokens(void)
{
    struct tokenizer *t = open_model("bpe_bytes"), *larger = NULL;
    struct token_list plain = {0};
    CHECK_OK(tokenizer_encode(t, "oars", 4, false, &plain));
    int32_t expected[32] = {0, 2};
    memcpy(expected + 2, plain.ids, (size_t)plain.count * sizeof *expected);
    int64_t size = tokenizer_vocab_size(t);
    char user[] = "<|user|>", known[] = "</s>", end[] = "<|end|>", empty[] = "";
    CHECK_OK(tokenizer_add_special(t, (char *[]){user, known, end}, 3, &larger));
    CHECK_EQUAL(tokenizer_find_difference(t, larger), -1);
    CHECK_EQUAL(tokenizer_find_difference(larger, t), -1);
    CHECK_EQUAL(tokenizer_vocab_size(larger), size + 2);
    CHECK_EQUAL(tokenizer_find(larger, "<|end|>"), size + 1);
    CHECK_EQUAL(tokenizer_eos(larger), 2);
    expected[0] = (int32_t)size;
    check_encoding(larger, "<|user|></s>oars", true, expected, plain.count + 2);
    CHECK(strcmp(tokenizer_sha256(t), tokenizer_sha256(larger)) != 0);
    CHECK_OK(tokenizer_destroy(&larger));
    CHECK_FAILS(tokenizer_add_special(t, (char *[]){empty}, 1, &larger), STATUS_USAGE, "empty");
    CHECK(larger == NULL);
    token_list_free(&plain);
    CHECK_OK(tokenizer_destroy(&t));
}

/* ---- files ---- */

static void write_config(const char *folder, const char *text)
{
    CHECK_OK(file_write(folder_join(folder, "tokenizer_config.json"), text, strlen(text)));
}

/* A folder of Gemma: a token before each text, user-defined pieces that are no special tokens. */
static void test_gemma(void)
{
    const char *folder = folder_file("gemma");
    struct tokenizer *t = open_model("bpe_gemma");
    CHECK_OK(tokenizer_save(t, folder));
    CHECK_OK(tokenizer_destroy(&t));
    write_config(folder, "{\"tokenizer_class\": \"GemmaTokenizer\"}");
    CHECK_OK(tokenizer_open(folder, &t));
    CHECK_EQUAL(tokenizer_bos(t), 2);
    CHECK_EQUAL(tokenizer_eos(t), 1);
    int32_t newlines = tokenizer_find(t, "\n\n"), spaces = tokenizer_find(t, "\u2581\u2581");
    CHECK(newlines > 3 && spaces > 3 && !tokenizer_is_special(t, newlines));
    check_encoding(t, "  \n\n  ", false, (int32_t[]){spaces, newlines, spaces}, 3);
    check_encoding(t, "<bos>\n\n", true, (int32_t[]){2, newlines}, 2);
    CHECK_OK(tokenizer_destroy(&t));
}

static void test_files(void)
{
    const char *folder = folder_file("saved");
    struct tokenizer *t = open_model("unigram_bytes"), *again = NULL;
    CHECK_OK(tokenizer_save(t, folder));
    CHECK(tokenizer_exists(folder));
    CHECK_OK(tokenizer_open(folder, &again));
    CHECK_TEXT(tokenizer_sha256(again), tokenizer_sha256(t));
    CHECK_EQUAL(tokenizer_bos(again), -1);
    CHECK_OK(tokenizer_destroy(&again));

    write_config(folder, "{\"tokenizer_class\": \"LlamaTokenizer\", \"eos_token\": \"<c>\"}");
    CHECK_OK(tokenizer_open(folder, &again));
    CHECK_EQUAL(tokenizer_bos(again), 1);
    CHECK_EQUAL(tokenizer_eos(again), tokenizer_find(t, "<c>"));
    CHECK_OK(tokenizer_destroy(&again));
    write_config(folder, "{\"tokenizer_class\": \"GemmaTokenizer\", \"add_bos_token\": false}");
    CHECK_OK(tokenizer_open(folder, &again));
    CHECK_EQUAL(tokenizer_bos(again), -1);
    CHECK_OK(tokenizer_destroy(&again));
    write_config(folder, "{\"added_tokens_decoder\": {\"99999\": {\"content\": \"<new>\"}}}");
    CHECK_FAILS(tokenizer_open(folder, &again), STATUS_DATA, "'<new>' with the id 99999");
    CHECK_OK(tokenizer_destroy(&t));
}

/* ---- damaged files ---- */

/* A protobuf message. */
struct message {
    char data[4096];
    size_t bytes;
};

static void put_bytes(struct message *m, int field, const char *data, size_t bytes)
{
    CHECK(m->bytes + bytes + 8 < sizeof m->data && bytes < 1 << 14 && field < 1 << 10);
    m->data[m->bytes++] = (char)((field << 3 | 2) % 128 | 128);
    m->data[m->bytes++] = (char)((field << 3 | 2) / 128);
    m->data[m->bytes++] = (char)(bytes % 128 | 128);
    m->data[m->bytes++] = (char)(bytes / 128);
    memcpy(m->data + m->bytes, data, bytes);
    m->bytes += bytes;
}

static void put_number(struct message *m, int field, int value)
{
    CHECK(m->bytes + 3 < sizeof m->data && value < 128);
    m->data[m->bytes++] = (char)((field << 3) % 128 | 128);
    m->data[m->bytes++] = (char)((field << 3) / 128);
    m->data[m->bytes++] = (char)value;
}

/* Adds a piece of ModelProto. */
static void put_piece(struct message *m, const char *text, size_t bytes, float score, int type)
{
    struct message piece = {.bytes = 0};
    put_bytes(&piece, 1, text, bytes);
    piece.data[piece.bytes++] = 2 << 3 | 5;
    memcpy(piece.data + piece.bytes, &score, 4);
    piece.bytes += 4;
    put_number(&piece, 3, type);
    put_bytes(m, 1, piece.data, piece.bytes);
}

static struct message begin_model(void)
{
    struct message m = {.bytes = 0};
    put_piece(&m, "<unk>", 5, 0.0f, SENTENCEPIECE_UNKNOWN);
    put_piece(&m, "a", 1, -1.0f, SENTENCEPIECE_NORMAL);
    return m;
}

static void put_number_message(struct message *m, int field, int inner_field, int value)
{
    struct message inner = {.bytes = 0};
    put_number(&inner, inner_field, value);
    put_bytes(m, field, inner.data, inner.bytes);
}

static void put_map(struct message *m, int field, const char *data, size_t bytes)
{
    struct message inner = {.bytes = 0};
    put_bytes(&inner, 2, data, bytes);
    put_bytes(m, field, inner.data, inner.bytes);
}

static void write_model(const struct message *m, const char *name)
{
    CHECK_OK(file_make_folders(folder_file("damaged")));
    CHECK_OK(file_write(folder_join(folder_file("damaged"), name), m->data, m->bytes));
}

/* The model must be refused with this message, which names the file. */
static void check_refused(const struct message *m, const char *message)
{
    struct tokenizer *t = NULL;
    write_model(m, "tokenizer.model");
    status result = tokenizer_open(folder_file("damaged"), &t);
    CHECK(result == STATUS_DATA && t == NULL);
    CHECK(strstr(status_pending()->text, "damaged/tokenizer.model: ") != NULL);
    CHECK_FAILS(result, STATUS_DATA, message);
}

static void test_refused_pieces(void)
{
    struct message m = begin_model();
    put_piece(&m, "b\0c", 3, -1.0f, SENTENCEPIECE_NORMAL);
    check_refused(&m, "the piece 2 is not a text of 1 to 7999 bytes");
    m = begin_model();
    put_piece(&m, "b\xff", 2, -1.0f, SENTENCEPIECE_NORMAL);
    check_refused(&m, "in UTF-8");
    m = begin_model();
    put_piece(&m, "", 0, -1.0f, SENTENCEPIECE_NORMAL);
    check_refused(&m, "the piece 2 is not a text");
    m = begin_model();
    put_piece(&m, "a", 1, -2.0f, SENTENCEPIECE_USER_DEFINED);
    check_refused(&m, "the piece 'a' has two ids, 1 and 2");
    m = begin_model();
    put_piece(&m, "b", 1, NAN, SENTENCEPIECE_NORMAL);
    check_refused(&m, "the score of the piece 2, 'b', is not finite");
    m = begin_model();
    put_piece(&m, "b", 1, 0.0f, 9);
    check_refused(&m, "the piece 2, 'b', has the unknown type 9");
    m = begin_model();
    put_piece(&m, "b", 1, 0.0f, SENTENCEPIECE_UNKNOWN);
    check_refused(&m, "two pieces have the type UNKNOWN, 0 and 2");
    m = begin_model();
    put_piece(&m, "<0x41>", 6, 0.0f, SENTENCEPIECE_BYTE);
    check_refused(&m, "has the type BYTE, but byte_fallback is false");
    put_number_message(&m, 2, 35, 1);
    check_refused(&m, "the piece <0x00> of the type BYTE is missing");
    m = (struct message){.bytes = 0};
    put_piece(&m, "a", 1, -1.0f, SENTENCEPIECE_NORMAL);
    check_refused(&m, "no piece has the type UNKNOWN");
    m.bytes = 0;
    check_refused(&m, "it has 0 pieces");
}

static void test_refused_options(void)
{
    struct message m = begin_model();
    put_number_message(&m, 2, 3, 4);
    check_refused(&m, "model_type CHAR is not supported; supported: UNIGRAM and BPE");
    m = begin_model();
    put_number_message(&m, 3, 7, 1);
    check_refused(&m, "normalizer_spec has the field 7: not supported");
    m = begin_model();
    put_map(&m, 5, "abc", 3);
    check_refused(&m, "denormalizer_spec has a character map");
    m = begin_model();
    put_map(&m, 3, "\x08\0\0\0ab", 6);
    check_refused(&m, "the precompiled character map of 6 bytes is damaged");
    m = begin_model();
    m.bytes -= 3;
    check_refused(&m, "the protobuf message is damaged");
}

/* Fields that protobuf-c would allocate, in the model or in one of its messages. */
static void test_many_fields(void)
{
    static const char field[3] = {(char)(127 << 3 | 0x80), 127 >> 4, 0}; /* number 127, value 0 */
    enum { MODEL_FIELDS = (1 << 20) + 1024, INNER_FIELDS = 4 << 20 };
    for (int inner = 0; inner < 2; inner++) {
        struct message m = begin_model();
        size_t count = inner == 1 ? INNER_FIELDS + 1 : MODEL_FIELDS - 1, header = 0;
        char *text = malloc(m.bytes + 8 + count * sizeof field);
        CHECK(text != NULL);
        memcpy(text, m.data, m.bytes);
        if (inner == 1) { /* the options of the training, with their length */
            text[m.bytes + header++] = 2 << 3 | 2;
            for (size_t length = count * sizeof field; length > 0; length >>= 7) {
                text[m.bytes + header++] = (char)(length % 128 | (length >= 128 ? 128 : 0));
            }
        }
        char *fields = text + m.bytes + header;
        for (size_t i = 0; i < count; i++) {
            memcpy(fields + i * sizeof field, field, sizeof field);
        }
        CHECK_OK(file_write(folder_join(folder_file("damaged"), "tokenizer.model"), text,
                            m.bytes + header + count * sizeof field));
        free(text);
        struct tokenizer *t = NULL;
        CHECK_FAILS(tokenizer_open(folder_file("damaged"), &t), STATUS_DATA,
                    inner == 1 ? "4194311 in its messages" : "it has 1049601 fields");
    }
}

/* The smallest model; T5's name of the file. */
static void test_small_model(void)
{
    struct message m = begin_model();
    struct tokenizer *t = NULL;
    CHECK_OK(file_remove_tree(folder_file("damaged")));
    write_model(&m, "spiece.model");
    CHECK_OK(tokenizer_open(folder_file("damaged"), &t));
    check_encoding(t, "a", false, (int32_t[]){0, 1}, 2); /* U+2581 is unknown */
    check_encoding(t, "b", false, (int32_t[]){0}, 1);
    check_encoding(t, "  ", false, NULL, 0);
    CHECK_OK(tokenizer_destroy(&t));
}

static void test_damaged_map(void)
{
    struct charsmap map;
    static const uint8_t data[] = {8, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 'x', 0};
    CHECK_OK(charsmap_open(&map, data, sizeof data, "map"));
    CHECK_EQUAL(charsmap_find_longest(&map, "ab", 2).bytes, 0);
    charsmap_close(&map);
    for (size_t bytes = 1; bytes < 12; bytes++) {
        CHECK_FAILS(charsmap_open(&map, data, bytes, "map"), STATUS_DATA, "map: ");
    }
}

int main(void)
{
    folder_make();
    test_reference();
    test_json();
    test_refused_json();
    test_continued();
    test_special_tokens();
    test_added_tokens();
    test_files();
    test_gemma();
    test_refused_pieces();
    test_refused_options();
    test_many_fields();
    test_small_model();
    test_damaged_map();
    return 0;
}
