/* GGUF files: the types of elements, writing and reading, and damaged files. */
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/tensor.h"
#include "tests/check.h"
#include "trainer/formats/gguf/gguf_impl.h"
#include "trainer/formats/gguf/import.h"

enum { VALUES = 64 };

/* Reads the bytes of a line "NAME HEX" of the reference. */
static size_t read_reference(const char *name, unsigned char *out)
{
    char path[FILE_PATH_BYTES], *text;
    snprintf(path, sizeof path, "%s/tests/reference/gguf_types.txt", getenv("BIREME_SOURCE_DIR"));
    CHECK_OK(file_read(path, 1 << 20, &text, NULL));
    size_t count = 0;
    size_t length = strlen(name);
    for (const char *line = text; line != NULL && *line != '\0';) {
        if (strncmp(line, name, length) == 0 && line[length] == ' ') {
            for (const char *hex = line + length + 1; hex[0] != '\n'; hex += 2) {
                char digits[3] = {hex[0], hex[1], '\0'};
                out[count++] = (unsigned char)strtoul(digits, NULL, 16);
            }
        }
        line = strchr(line, '\n');
        line += line != NULL;
    }
    free(text);
    CHECK(count > 0);
    return count;
}

/* The encodings equal the encodings of llama.cpp's package gguf, bit for bit. */
static void test_types(void)
{
    static const enum gguf_type types[] = {GGUF_F16, GGUF_BF16, GGUF_Q8_0, GGUF_Q4_0};
    unsigned char bytes[4 * VALUES], expected[4 * VALUES], encoded[4 * VALUES + 1];
    float values[VALUES], decoded[VALUES];
    CHECK_EQUAL(read_reference("values", bytes), sizeof values);
    memcpy(values, bytes, sizeof values);
    for (int i = 0; i < 4; i++) {
        size_t count = read_reference(gguf_type_name(types[i]), expected);
        CHECK_EQUAL(count, gguf_type_bytes(types[i], VALUES));
        encoded[count] = 0xa5;
        gguf_encode(types[i], values, VALUES, encoded);
        CHECK(memcmp(encoded, expected, count) == 0);
        CHECK_EQUAL(encoded[count], 0xa5);
        gguf_decode(types[i], encoded, VALUES, decoded);
        double step = types[i] == GGUF_Q4_0 ? 3.0 / 8 : types[i] == GGUF_Q8_0 ? 3.0 / 127 : 0.02;
        for (int j = 0; j < GGUF_BLOCK; j++) {
            CHECK_NEAR(decoded[j], values[j], step);
        }
    }
}

/* Every f16 number is converted to f32 and back; numbers between two of them are rounded to the
 * nearest, ties to even. */
static void test_f16(void)
{
    for (unsigned x = 0; x < 0x7c00; x++) {
        float low = f16_to_f32((uint16_t)x), high = f16_to_f32((uint16_t)(x + 1));
        CHECK_EQUAL(f32_to_f16(low), x);
        CHECK_EQUAL(f32_to_f16(-low), x | 0x8000);
        if (x + 1 < 0x7c00) {
            float middle = low + (high - low) / 2;
            CHECK_EQUAL(f32_to_f16(middle), x % 2 == 0 ? x : x + 1);
            CHECK_EQUAL(f32_to_f16(nextafterf(middle, low)), x);
            CHECK_EQUAL(f32_to_f16(nextafterf(middle, high)), x + 1);
        }
    }
    CHECK_EQUAL(f32_to_f16(65519.996f), 0x7bff);
    CHECK_EQUAL(f32_to_f16(65520.0f), 0x7c00);
    CHECK_EQUAL(f32_to_f16(1e-10f), 0);
    CHECK(isnan(f16_to_f32(f32_to_f16(NAN))));
}

static void write_file(const char *path)
{
    struct gguf_writer *w;
    float vector[3] = {1, -2, 3}, matrix[64];
    for (int i = 0; i < 64; i++) {
        matrix[i] = (float)i - 31;
    }
    CHECK_OK(gguf_writer_create(path, &w));
    gguf_put_text(w, "general.architecture", "llama");
    gguf_put_u32(w, "count", 7);
    gguf_put_f32(w, "number", 0.5);
    gguf_put_bool(w, "flag", true);
    gguf_begin_array(w, "texts", GGUF_VALUE_TEXT, 2);
    gguf_add_text(w, "a", "b");
    gguf_add_text(w, "", "");
    gguf_begin_array(w, "integers", GGUF_VALUE_I32, 2);
    gguf_add_i32(w, -1);
    gguf_add_i32(w, 1 << 20);
    CHECK_OK(gguf_add_tensor(w, "vector", GGUF_F32, 0, 3));
    CHECK_OK(gguf_add_tensor(w, "matrix", GGUF_Q8_0, 2, 32));
    CHECK_OK(gguf_write_tensor(w, vector));
    CHECK_OK(gguf_write_tensor(w, matrix));
    CHECK_OK(gguf_writer_finish(&w, STATUS_OK));
}

static void test_round_trip(const char *path)
{
    struct gguf_file *f;
    float out[64];
    CHECK_OK(gguf_open(path, &f));
    CHECK_TEXT(gguf_find_key(f, "general.architecture")->texts[0], "llama");
    CHECK(gguf_find_key(f, "count")->numbers[0] == 7);
    CHECK(gguf_find_key(f, "number")->numbers[0] == 0.5);
    CHECK(gguf_find_key(f, "flag")->numbers[0] == 1);
    CHECK_TEXT(gguf_find_key(f, "texts")->texts[0], "ab");
    CHECK_TEXT(gguf_find_key(f, "texts")->texts[1], "");
    CHECK(gguf_find_key(f, "integers")->numbers[0] == -1);
    CHECK(gguf_find_key(f, "integers")->numbers[1] == 1 << 20);
    CHECK(gguf_find_key(f, "vector") == NULL && gguf_find_tensor(f, "count") == NULL);
    const struct gguf_tensor *vector = gguf_find_tensor(f, "vector");
    const struct gguf_tensor *matrix = gguf_find_tensor(f, "matrix");
    CHECK_EQUAL(vector->dimensions, 1);
    CHECK_EQUAL(matrix->shape[0], 32);
    CHECK_EQUAL(matrix->shape[1], 2);
    CHECK_EQUAL(matrix->first_byte % GGUF_ALIGNMENT, 0);
    CHECK_OK(gguf_read_tensor(f, vector, out));
    CHECK(out[0] == 1 && out[1] == -2 && out[2] == 3);
    CHECK_OK(gguf_read_tensor(f, matrix, out));
    CHECK_NEAR(out[63], 32, 0.2);
    CHECK_NEAR(out[0], -31, 0.2);
    gguf_close(&f);
    CHECK(f == NULL);
}

/* Tensors of more than one chunk: the first one, a copy, one with another last element, one with
 * another type, and a shorter one. */
static void test_compare(void)
{
    enum { COLUMNS = 32, ROWS = 5000, LAST = ROWS * COLUMNS - 1 };
    static const char *const names[] = {"first", "copy", "changed", "f16", "short"};
    static float values[ROWS * COLUMNS];
    struct gguf_writer *w;
    struct gguf_file *f;
    CHECK_OK(gguf_writer_create("compared.gguf", &w));
    for (int i = 0; i < COUNT(names); i++) {
        CHECK_OK(
            gguf_add_tensor(w, names[i], i == 3 ? GGUF_F16 : GGUF_F32, ROWS - (i == 4), COLUMNS));
    }
    for (int i = 0; i < COUNT(names); i++) {
        values[LAST] = i == 2;
        CHECK_OK(gguf_write_tensor(w, values));
    }
    CHECK_OK(gguf_writer_finish(&w, STATUS_OK));
    CHECK_OK(gguf_open("compared.gguf", &f));
    for (int i = 0; i < COUNT(names); i++) {
        bool equal = i > 1;
        CHECK_OK(gguf_compare_tensors(f, gguf_find_tensor(f, names[0]),
                                      gguf_find_tensor(f, names[i]), &equal));
        CHECK_EQUAL(equal, i <= 1);
    }
    gguf_close(&f);
}

/* No file with a changed or missing byte crashes the reader. A file that ends early is refused. */
static void test_damage(const char *path)
{
    char *data, damaged[] = "damaged.gguf";
    size_t bytes;
    struct gguf_file *f;
    CHECK_OK(file_read(path, 1 << 20, &data, &bytes));
    for (size_t length = 0; length < bytes; length++) {
        CHECK_OK(file_write(damaged, data, length));
        status result = gguf_open(damaged, &f);
        bool only_padding = length + GGUF_ALIGNMENT > bytes;
        CHECK(result == STATUS_DATA || (only_padding && result == STATUS_OK));
        status_clear();
        gguf_close(&f);
    }
    for (size_t i = 0; i < bytes; i++) {
        char kept = data[i];
        data[i] = (char)(kept ^ 0xff);
        CHECK_OK(file_write(damaged, data, bytes));
        status result = gguf_open(damaged, &f);
        CHECK(result == STATUS_OK || result == STATUS_DATA);
        status_clear();
        gguf_close(&f);
        data[i] = kept;
    }
    free(data);
    CHECK_FAILS(gguf_open("missing.gguf", &f), STATUS_NO_INPUT, "missing.gguf");
}

static void test_writer_errors(const char *path)
{
    struct gguf_writer *w;
    float value = 0;
    CHECK_FAILS(gguf_writer_create(path, &w), STATUS_CREATE, "already exists");
    CHECK(w == NULL);
    CHECK_OK(gguf_writer_create("unfinished.gguf", &w));
    CHECK_OK(gguf_add_tensor(w, "a", GGUF_F32, 0, 1));
    CHECK_OK(gguf_add_tensor(w, "b", GGUF_F32, 0, 1));
    CHECK_OK(gguf_write_tensor(w, &value));
    CHECK_FAILS(gguf_writer_finish(&w, STATUS_OK), STATUS_INTERNAL, "1 of 2 declared tensors");
    CHECK(!file_exists("unfinished.gguf"));
}

/* Writes a file with a tokenizer; `type` is the type of the second token. */
static void write_tokens(const char *path, const char *second, int type)
{
    struct gguf_writer *w;
    float value = 0;
    unlink(path);
    CHECK_OK(gguf_writer_create(path, &w));
    gguf_put_text(w, "tokenizer.ggml.model", "bert");
    gguf_begin_array(w, "tokenizer.ggml.tokens", GGUF_VALUE_TEXT, 2);
    gguf_add_text(w, "a", "");
    gguf_add_text(w, second, "");
    gguf_begin_array(w, "tokenizer.ggml.token_type", GGUF_VALUE_I32, 2);
    gguf_add_i32(w, 1);
    gguf_add_i32(w, type);
    CHECK_OK(gguf_add_tensor(w, "a", GGUF_F32, 0, 1));
    CHECK_OK(gguf_write_tensor(w, &value));
    CHECK_OK(gguf_writer_finish(&w, STATUS_OK));
}

static status read_tokens(const char *second, int type)
{
    struct gguf_file *f;
    bool exists = false;
    write_tokens("tokens.gguf", second, type);
    CHECK_OK(gguf_open("tokens.gguf", &f));
    status result = gguf_read_tokenizer(f, ".", &exists);
    gguf_close(&f);
    CHECK(exists);
    return result;
}

static void test_refused_tokens(void)
{
    CHECK_OK(read_tokens("b", 1));
    CHECK_FAILS(read_tokens("b\nc", 1), STATUS_DATA, "the token 1 contains a newline");
    CHECK_FAILS(read_tokens("b", 7), STATUS_DATA, "the token 1 has the type 7");
    CHECK_FAILS(read_tokens("b", -1), STATUS_DATA, "the token 1 has the type -1");
}

static void put_size(struct gguf_writer *w, const char *family, const char *name, int64_t value)
{
    char key[GGUF_NAME_BYTES];
    snprintf(key, sizeof key, "%s.%s", family, name);
    gguf_put_u32(w, key, value);
}

/* Writes a file with a token table, all sizes and `key` with this value, and imports it. */
static status import_sizes(const char *family, const char *key, double value)
{
    struct gguf_writer *w;
    struct recipe *recipe = calloc(1, sizeof *recipe);
    struct huggingface_summary summary;
    float matrix[32] = {0};
    unlink("counts.gguf");
    CHECK_OK(gguf_writer_create("counts.gguf", &w));
    gguf_put_text(w, "general.architecture", family);
    gguf_put_f32(w, key, value);
    put_size(w, family, "block_count", 1);
    put_size(w, family, "context_length", 8);
    put_size(w, family, "embedding_length", 8);
    put_size(w, family, "feed_forward_length", 8);
    put_size(w, family, "attention.head_count", 2);
    CHECK_OK(gguf_add_tensor(w, "token_embd.weight", GGUF_F32, 4, 8));
    CHECK_OK(gguf_write_tensor(w, matrix));
    CHECK_OK(gguf_writer_finish(&w, STATUS_OK));
    CHECK(recipe != NULL);
    status result = gguf_import("counts.gguf", NULL, "imported", NULL, 0, recipe, &summary);
    free(recipe);
    return result;
}

/* Counts that no integer can store are refused. */
static void test_refused_counts(void)
{
    static const double values[] = {NAN, 1e30, -1, 0.5};
    for (int i = 0; i < 4; i++) {
        CHECK_FAILS(import_sizes("llama", "llama.attention.head_count_kv", values[i]), STATUS_DATA,
                    "llama.attention.head_count_kv is not a whole number");
        CHECK_FAILS(import_sizes("t5", "t5.attention.key_length", values[i]), STATUS_DATA,
                    "t5.attention.key_length is missing or not a number");
    }
}

/* Bireme does not clip queries, keys and values. A limit of 0 means that nothing is clipped. */
static void test_refused_clipping(void)
{
    static const char key[] = "olmo.attention.clamp_kqv";
    CHECK_FAILS(import_sizes("olmo", key, 8), STATUS_UNAVAILABLE,
                "olmo.attention.clamp_kqv is 8; clipped queries");
    CHECK_FAILS(import_sizes("olmo", key, 0), STATUS_DATA, "is missing or does not have the shape");
}

int main(void)
{
    char folder[] = "/tmp/test_gguf_XXXXXX";
    CHECK(mkdtemp(folder) != NULL && chdir(folder) == 0);
    test_types();
    test_f16();
    write_file("file.gguf");
    test_round_trip("file.gguf");
    test_compare();
    test_damage("file.gguf");
    test_writer_errors("file.gguf");
    test_refused_tokens();
    test_refused_counts();
    test_refused_clipping();
    CHECK_OK(file_remove_tree(folder));
    return 0;
}
