/* Fuzz target: a shard with valid checksums and arbitrary values. The input selects the kind, the
 * sizes, and the differences from valid values. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "datasets/shard/h5file.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/read_shard.h"

enum { VALUES_MAX = 512, CHUNK = 64 };

const struct fuzz_limits fuzz_limits = {.bytes = 4 << 20, .factor = 200};

static int64_t values[VALUES_MAX];

/* Writes values[count] as a dataset. */
static void write_dataset(hid_t file, const char *name, hid_t type, int count)
{
    hsize_t shape = (hsize_t)count, chunk = count < CHUNK ? shape : CHUNK;
    hid_t properties = H5I_INVALID_HID;
    fuzz_require(h5file_create_chunk_properties(1, &chunk, &properties) == STATUS_OK, "a chunk");
    hid_t space = H5Screate_simple(1, &shape, NULL);
    hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    fuzz_require(set >= 0, "a dataset can be created");
    H5Dwrite(set, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
    H5Dclose(set);
    H5Sclose(space);
    H5Pclose(properties);
}

static void write_integer(hid_t file, const char *name, int64_t value)
{
    fuzz_require(h5file_write_i64(file, "shard", name, &value, 1) == STATUS_OK, "an attribute");
}

static void write_text(hid_t file, const char *name, const char *text)
{
    fuzz_require(h5file_write_text(file, "shard", name, text) == STATUS_OK, "an attribute");
}

/* Writes the attributes with two of the input's differences. */
static void write_header(hid_t file, struct byte_source *s, enum example_kind kind, int tokens,
                         int documents)
{
    write_text(file, "format", "bireme-tokens");
    write_integer(file, "format_version", 1);
    write_integer(file, "vocab_size", (int64_t)(256 + (uint64_t)byte_source_value(s)));
    write_integer(file, "eos_id", -1 + byte_source_value(s) % 1000);
    write_integer(file, "tokens", tokens);
    write_integer(file, "documents", documents);
    write_text(file, "tokenizer_sha256",
               "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef");
    if (kind == EXAMPLE_TEXT) {
        return;
    }
    write_text(file, "examples", example_get_format(kind)->name);
    write_integer(file, "examples_version", example_get_format(kind)->version);
    write_integer(file, "longest", tokens / documents + 1 + byte_source_value(s) % INT32_MAX);
    if (kind == EXAMPLE_CLASSIFY || kind == EXAMPLE_CLASSIFY_TOKENS) {
        write_text(file, "labels", "[\"no\", \"yes\"]");
    }
}

static void write_columns(hid_t file, struct byte_source *s, enum example_kind kind, int tokens,
                          int documents)
{
    const struct example_format *format = example_get_format(kind);
    for (int c = 0; c < format->columns; c++) {
        const struct example_column *column = &format->column[c];
        int count = column->per_token ? tokens : documents;
        for (int i = 0; i < count; i++) {
            uint64_t least = c == 0 && !column->per_token;
            values[i] = (int64_t)(least + (uint64_t)byte_source_value(s));
        }
        write_dataset(file, column->name,
                      column->is_float     ? H5T_IEEE_F32LE
                      : column->bytes == 1 ? H5T_STD_U8LE
                                           : H5T_STD_U32LE,
                      count);
    }
}

static void write_shard(const char *path, struct byte_source *s)
{
    enum example_kind kind = byte_source_next(s) % EXAMPLE_KINDS;
    int documents = 1 + byte_source_next(s) % 16,
        tokens = documents * (1 + byte_source_next(s) % 32);
    hid_t file, type = byte_source_next(s) % 2 == 0 ? H5T_STD_U16LE : H5T_STD_U32LE;
    fuzz_require(h5file_create(path, &file) == STATUS_OK, "a shard can be created");
    write_header(file, s, kind, tokens, documents);
    for (int i = 0; i <= documents; i++) {
        int64_t change = i < documents ? byte_source_value(s) : 0;
        values[i] = (int64_t)((uint64_t)(i * (tokens / documents)) + (uint64_t)change);
    }
    write_dataset(file, "documents", H5T_STD_U64LE, documents + 1);
    write_columns(file, s, kind, tokens, documents);
    for (int i = 0; i < tokens; i++) {
        values[i] = byte_source_value(s);
    }
    write_dataset(file, "tokens", type, tokens);
    fuzz_require(h5file_close(path, &file) == STATUS_OK, "a shard can be written");
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    char path[FILE_PATH_BYTES];
    struct byte_source source = {data, bytes};
    TRY(file_join(path, fuzz_folder(), "shard.h5"));
    write_shard(path, &source);
    return read_shard(path);
}
