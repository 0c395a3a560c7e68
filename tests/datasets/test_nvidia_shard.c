/* Tests of nvidia_shard.h: chunks that are far larger than the data of the file, and stored chunks
 * that have another size. The contents of shards are tested in test_sentence_pairs.c. */
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

/* Writes the chunk of next_sentence_labels again, with these stored bytes. skipped is the bit mask
 * of the filters that were not applied. */
static const char *write_chunk(const void *stored, size_t bytes, uint32_t skipped)
{
    const char *path = write_shard(N, T);
    const hsize_t offset[1] = {0};
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    hid_t set = H5Dopen2(file, "next_sentence_labels", H5P_DEFAULT);
    CHECK(H5Dwrite_chunk(set, H5P_DEFAULT, skipped, offset, bytes, stored) >= 0);
    H5Dclose(set);
    H5Fclose(file);
    return path;
}

static void check_read(const char *path, const char *reason)
{
    struct nvidia_shard *s = NULL;
    int32_t memory[2 * T + 2 * P];
    struct example e = {.token_capacity = T,
                        .ids = memory,
                        .token_type_ids = memory + T,
                        .prediction_capacity = P,
                        .positions = memory + 2 * T,
                        .labels = memory + 2 * T + P};
    CHECK_OK(nvidia_shard_open(path, &s));
    CHECK_FAILS(nvidia_shard_read(s, 0, 100, &e), STATUS_DATA, reason);
    nvidia_shard_close(&s);
}

/* HDF5 would read beyond the end of a chunk that is too short. */
static void test_sizes_of_chunks(void)
{
    static const int8_t values[2 * N];
    static const unsigned char deflated[] = {0x78, 0x9c, 0x63, 0x60, 0x80, 0x00,
                                             0x00, 0x00, 0x08, 0x00, 0x01}; /* eight zeros */
    check_read(write_chunk(values, N, 1), "example 0 has 0 tokens");
    check_read(write_chunk(values, N / 2, 1), "/next_sentence_labels: a chunk has another size");
    check_read(write_chunk(values, 2 * N, 1), "/next_sentence_labels: a chunk has another size");
    check_read(write_chunk(deflated, sizeof deflated, 0), "is damaged or has another size");
    check_read(write_chunk(values, N, 0), "is damaged or has another size");
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
    test_sizes_of_chunks();
    return 0;
}
