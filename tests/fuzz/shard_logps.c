/* Fuzz target: log-probabilities that are stored next to preference pairs. All checksums are valid.
 * The input selects the attributes, the type and shape of the dataset, and the values. */
#include <math.h>
#include <stdlib.h>

#include "base/file.h"
#include "datasets/shard/h5file.h"
#include "datasets/shard/shard_logps.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/fuzz.h"

enum { PAIRS = 5, VALUES_MAX = 4096, TEXT_BYTES = 80 };

const struct fuzz_limits fuzz_limits = {.bytes = 4 << 20, .factor = 200};

static const struct shard_logps_key key = {
    .weights = "0123456789abcdef", .data = "fedcba9876543210", .precision = "fp32", .pairs = PAIRS};

/* Returns a text from the fuzz input; valid until the next call. */
static const char *read_text(struct byte_source *s)
{
    static char text[TEXT_BYTES + 1];
    int length = byte_source_next(s) % TEXT_BYTES;
    for (int i = 0; i < length; i++) {
        text[i] = (char)(1 + byte_source_next(s) % 255);
    }
    text[length] = '\0';
    return text;
}

/* Writes an attribute. The input selects this text, another text, a number, or no attribute. */
static void write_text(hid_t file, struct byte_source *s, const char *name, const char *text)
{
    const int64_t number = 1;
    uint8_t kind = byte_source_next(s) % 8;
    if (kind == 1) {
        return;
    }
    text = kind == 2 ? read_text(s) : text;
    status result = kind == 3 ? h5file_write_i64(file, "logps", name, &number, 1)
                              : h5file_write_text(file, "logps", name, text);
    fuzz_require(result == STATUS_OK, "an attribute can be written");
}

/* Writes an attribute: the valid number plus a difference from the input. The input may also select
 * several numbers or no attribute. */
static void write_number(hid_t file, struct byte_source *s, const char *name, int64_t valid)
{
    uint8_t count = byte_source_next(s) % 4;
    int64_t numbers[4];
    for (int i = 0; i < 4; i++) {
        numbers[i] = (int64_t)((uint64_t)valid + (uint64_t)byte_source_value(s));
    }
    if (count != 1) {
        fuzz_require(h5file_write_i64(file, "logps", name, numbers, count == 0 ? 1 : count) ==
                         STATUS_OK,
                     "an attribute can be written");
    }
}

static double read_value(struct byte_source *s)
{
    static const double special[] = {NAN, INFINITY, -INFINITY, 1, -0.0, -1e308, 5e-324, -1e9};
    uint8_t byte = byte_source_next(s);
    return byte < 0xf8 ? -(double)byte / 16 : special[byte - 0xf8];
}

/* Writes the dataset. It has PAIRS rows and two columns, plus differences from the input. */
static void write_dataset(hid_t file, struct byte_source *s)
{
    static double values[VALUES_MAX];
    const hid_t types[4] = {H5T_IEEE_F64LE, H5T_IEEE_F32LE, H5T_IEEE_F64BE, H5T_STD_I64LE};
    int rank = byte_source_next(s) % 4 == 1 ? 1 : 2;
    hsize_t rows = PAIRS + ((hsize_t)byte_source_value(s) & UINT32_MAX);
    hsize_t columns = 2 + byte_source_next(s) % 4, shape[2] = {rows, columns};
    hsize_t chunk[2] = {PAIRS - byte_source_next(s) % PAIRS, 2 - byte_source_next(s) % 2};
    hid_t properties = H5I_INVALID_HID, type = types[byte_source_next(s) % 4];
    fuzz_require(h5file_create_chunk_properties(rank, chunk, &properties) == STATUS_OK, "a chunk");
    hid_t space = H5Screate_simple(rank, shape, NULL);
    hid_t set = H5Dcreate2(file, "logps", type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    fuzz_require(set >= 0, "a dataset can be created");
    for (hsize_t i = 0; i < rows * columns && i < VALUES_MAX; i++) {
        values[i] = read_value(s);
    }
    if (rows * columns <= VALUES_MAX &&
        byte_source_next(s) % 4 != 1) { /* otherwise the dataset has no chunks */
        H5Dwrite(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
    }
    H5Dclose(set);
    H5Sclose(space);
    H5Pclose(properties);
}

static void write_file(const char *path, struct byte_source *s)
{
    hid_t file;
    fuzz_require(h5file_create(path, &file) == STATUS_OK, "a file can be created");
    write_text(file, s, "format", "bireme-logps");
    write_number(file, s, "format_version", 1);
    write_text(file, s, "weights", key.weights);
    write_text(file, s, "tokenizer_sha256", key.tokenizer_sha256);
    write_text(file, s, "data", key.data);
    write_text(file, s, "precision", key.precision);
    write_number(file, s, "done", PAIRS);
    if (byte_source_next(s) % 16 != 1) {
        write_dataset(file, s);
    }
    fuzz_require(h5file_close(path, &file) == STATUS_OK, "a file can be written");
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    char path[FILE_PATH_BYTES];
    struct byte_source source = {data, bytes};
    int64_t done = -1;
    double *values =
        malloc(2 * PAIRS * sizeof *values); /* the exact size, for the address sanitizer */
    fuzz_require(values != NULL, "memory for the values");
    TRY(file_join(path, fuzz_folder(), "logps.hdf5"));
    h5file_init();
    write_file(path, &source);
    status result = shard_logps_read(path, &key, values, &done);
    fuzz_require(result == STATUS_OK ? done >= 0 && done <= PAIRS : done == 0,
                 "the number of pairs is valid");
    for (int64_t i = 0; i < 2 * done; i++) {
        fuzz_require(isfinite(values[i]) && values[i] <= 0, "a log-probability is valid");
    }
    free(values);
    return result;
}
