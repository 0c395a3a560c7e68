/* Fuzz target: an NVIDIA shard with arbitrary sizes and values, compressed or not. */
#include <hdf5.h>
#include <string.h>

#include "base/file.h"
#include "datasets/shard/h5file.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/read_nvidia_shard.h"

enum { SIDE_MAX = 32, FIELDS = 6 };

const struct fuzz_limits fuzz_limits = {.bytes = 8 << 20, .factor = 200};

static int64_t values[SIDE_MAX * SIDE_MAX];

static void write_dataset(hid_t file, const char *name, hid_t type, hsize_t rows, hsize_t columns,
                          struct byte_source *s)
{
    hsize_t shape[2] = {rows, columns};
    hsize_t chunk[2] = {1 + byte_source_next(s) % 64, 1 + byte_source_next(s) % 64};
    int rank = columns > 1 ? 2 : 1;
    hid_t space = H5Screate_simple(rank, shape, NULL), properties = H5Pcreate(H5P_DATASET_CREATE);
    if (byte_source_next(s) % 4 == 1 && chunk[0] <= rows && chunk[1] <= columns) {
        H5Pset_chunk(properties, rank, chunk);
        H5Pset_deflate(properties, 4);
    }
    hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    fuzz_require(set >= 0, "a dataset can be created");
    for (hsize_t i = 0; i < rows * columns; i++) {
        values[i] = byte_source_value(s);
    }
    H5Dwrite(set, H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
    H5Dclose(set);
    H5Pclose(properties);
    H5Sclose(space);
}

/* Each field has the size that the others require, or another one. */
static void write_shard(const char *path, struct byte_source *s)
{
    static const struct {
        const char *name;
        bool is_int32;
        int side; /* 0: tokens, 1: predictions, 2: one value */
    } fields[FIELDS] = {{"input_ids", true, 0},     {"input_mask", false, 0},
                        {"segment_ids", false, 0},  {"masked_lm_positions", true, 1},
                        {"masked_lm_ids", true, 1}, {"next_sentence_labels", false, 2}};
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    fuzz_require(file >= 0, "a shard can be created");
    hsize_t rows = 1 + byte_source_next(s) % 16;
    hsize_t sides[3] = {2 + byte_source_next(s) % 30, 2 + byte_source_next(s) % 6, 1};
    for (int i = 0; i < FIELDS; i++) {
        uint8_t change = byte_source_next(s);
        write_dataset(file, fields[i].name, fields[i].is_int32 ? H5T_STD_I32LE : H5T_STD_I8LE,
                      rows + (change == 1), sides[fields[i].side] + (change == 2), s);
    }
    H5Fclose(file);
}

status fuzz_read(const uint8_t *data, size_t bytes)
{
    char path[FILE_PATH_BYTES];
    struct byte_source source = {data, bytes};
    TRY(file_join(path, fuzz_folder(), "shard.hdf5"));
    h5file_init();
    write_shard(path, &source);
    return read_nvidia_shard(path);
}
