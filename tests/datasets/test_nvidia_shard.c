/* Tests of nvidia_shard.h: chunks that are far larger than the data of the file. The contents of
 * shards are tested in test_sentence_pairs.c. */
#include <hdf5.h>

#include "datasets/shard/nvidia_shard.h"
#include "tests/check.h"
#include "tests/datasets/folder.h"

enum { N = 16, T = 32, P = 4 };

/* Writes a field of which only the first row is stored. */
static void write_field(hid_t file, const char *name, hid_t type, hsize_t width, hsize_t chunk_rows,
                        hsize_t chunk_columns)
{
    static const int32_t zeros[T];
    hsize_t shape[2] = {N, width}, start[2] = {0, 0}, count[2] = {1, width},
            limits[2] = {H5S_UNLIMITED, H5S_UNLIMITED};
    hsize_t chunk[2] = {chunk_rows, chunk_columns};
    int rank = width == 1 ? 1 : 2;
    hid_t space = H5Screate_simple(rank, shape, limits), properties = H5Pcreate(H5P_DATASET_CREATE);
    CHECK(H5Pset_chunk(properties, rank, chunk) >= 0 && H5Pset_deflate(properties, 4) >= 0);
    hid_t row = H5Screate_simple(rank, count, NULL);
    hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    CHECK(H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL) >= 0);
    CHECK(H5Dwrite(set, H5T_NATIVE_INT32, row, space, H5P_DEFAULT, zeros) >= 0);
    H5Sclose(row);
    H5Dclose(set);
    H5Pclose(properties);
    H5Sclose(space);
}

/* Writes a shard. The chunks of input_ids have this shape. */
static const char *write_shard(hsize_t chunk_rows, hsize_t chunk_columns)
{
    const char *path = folder_file("shard.hdf5");
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(file >= 0);
    write_field(file, "input_ids", H5T_STD_I32LE, T, chunk_rows, chunk_columns);
    write_field(file, "input_mask", H5T_STD_I8LE, T, N, T);
    write_field(file, "segment_ids", H5T_STD_I8LE, T, N, T);
    write_field(file, "masked_lm_positions", H5T_STD_I32LE, P, N, P);
    write_field(file, "masked_lm_ids", H5T_STD_I32LE, P, N, P);
    write_field(file, "next_sentence_labels", H5T_STD_I8LE, 1, N, 1);
    H5Fclose(file);
    return path;
}

int main(void)
{
    struct nvidia_shard *s = NULL;
    folder_make();
    CHECK_OK(nvidia_shard_open(write_shard(N, T), &s));
    CHECK_EQUAL(nvidia_shard_examples(s), N);
    nvidia_shard_close(&s);
    CHECK_OK(nvidia_shard_open(write_shard(1 << 10, 1 << 10), &s)); /* 4 MiB */
    nvidia_shard_close(&s);
    CHECK_FAILS(nvidia_shard_open(write_shard(1, 1 << 25), &s), STATUS_DATA,
                "chunks of 33554432 values");
    return 0;
}
