/* Tests of chunks.h: checksums are the same as in HDF5 for every size and content, and chunks of
 * every index type are read. A damaged chunk, a missing one and one without checksum are refused,
 * and the message contains their position. */
#include <hdf5.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/random.h"
#include "datasets/shard/chunks.h"
#include "datasets/shard/fletcher32.h"
#include "datasets/shard/h5file.h"
#include "tests/datasets/folder.h"

enum { ITEMS = 1000, CHUNK = 64, CHUNK_BYTES = 2 * CHUNK };

/* Writes one chunk with the Fletcher32 filter of HDF5 and returns the checksum that it appends. */
static uint32_t compute_hdf5_checksum(const unsigned char *data, size_t bytes)
{
    hid_t access = H5Pcreate(H5P_FILE_ACCESS), properties = H5Pcreate(H5P_DATASET_CREATE);
    CHECK(H5Pset_fapl_core(access, 1 << 20, false) >= 0);
    hid_t file = H5Fcreate("in memory", H5F_ACC_TRUNC, H5P_DEFAULT, access);
    hsize_t size = bytes, zero = 0;
    CHECK(H5Pset_chunk(properties, 1, &size) >= 0 && H5Pset_fletcher32(properties) >= 0);
    hid_t space = H5Screate_simple(1, &size, NULL);
    hid_t dataset =
        H5Dcreate2(file, "x", H5T_STD_U8LE, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    CHECK(H5Dwrite(dataset, H5T_STD_U8LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0);
    CHECK(H5Fflush(file, H5F_SCOPE_LOCAL) >= 0);
    unsigned char *stored = malloc(bytes + 4);
    uint32_t mask;
    CHECK(stored != NULL && H5Dread_chunk(dataset, H5P_DEFAULT, &zero, &mask, stored) >= 0);
    uint32_t checksum;
    memcpy(&checksum, stored + bytes, sizeof checksum);
    free(stored);
    H5Sclose(space);
    H5Dclose(dataset);
    H5Pclose(properties);
    H5Pclose(access);
    H5Fclose(file);
    return checksum;
}

static void check_checksum(const unsigned char *data, size_t bytes)
{
    uint32_t expected = compute_hdf5_checksum(data, bytes);
    if (fletcher32(data, bytes) != expected) {
        fprintf(stderr, "%zu bytes: %08x instead of HDF5's %08x\n", bytes, fletcher32(data, bytes),
                expected);
        exit(1);
    }
}

static void test_checksum(void)
{
    static const size_t sizes[] = {16383, 16384, 16385, 65536, 65537, 262147, (1 << 20) + 31};
    size_t largest = sizes[COUNT(sizes) - 1];
    unsigned char *data = malloc(largest + 1);
    CHECK(data != NULL);
    for (int kind = 0; kind < 5; kind++) { /* random, 0x00, 0xff, one bit, sums near 65535 */
        for (size_t i = 0; i < largest + 1; i++) {
            unsigned char noise = (unsigned char)random_below(1, i, 256);
            data[i] = kind == 0 ? noise : kind == 2 ? 0xff : kind == 4 ? noise | 0xf0 : 0;
        }
        data[kind == 3 ? 4 : 0] |= kind == 3;
        for (size_t bytes = 1; bytes <= 150; bytes++) {
            check_checksum(data + bytes % 2, bytes);
        }
        for (int i = 0; i < COUNT(sizes); i++) {
            check_checksum(data + i % 2, sizes[i]);
        }
    }
    for (uint64_t i = 0; i < 300; i++) {
        size_t bytes = (size_t)random_below(2, i, 20000) + 1;
        for (size_t j = 0; j < bytes; j++) {
            data[j] = (unsigned char)random_below(3 + i, j, 256);
        }
        check_checksum(data, bytes);
    }
    free(data);
}

static uint16_t make_item(int64_t i)
{
    return (uint16_t)(i * 31 + 7);
}

/* Creates a dataset of ITEMS items; `version` and `grows` select the type of its chunk index. */
static hid_t write_items(const char *path, H5F_libver_t version, bool grows, int64_t chunk)
{
    hid_t access = H5Pcreate(H5P_FILE_ACCESS), properties = H5Pcreate(H5P_DATASET_CREATE);
    CHECK(H5Pset_libver_bounds(access, version, H5F_LIBVER_V110) >= 0);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    hsize_t size = ITEMS, unlimited = H5S_UNLIMITED, tile = (hsize_t)chunk;
    CHECK(H5Pset_chunk(properties, 1, &tile) >= 0 && H5Pset_fletcher32(properties) >= 0);
    hid_t space = H5Screate_simple(1, &size, grows ? &unlimited : NULL);
    hid_t dataset =
        H5Dcreate2(file, "tokens", H5T_STD_U16LE, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    uint16_t items[ITEMS];
    for (int i = 0; i < ITEMS; i++) {
        items[i] = make_item(i);
    }
    CHECK(H5Dwrite(dataset, H5T_NATIVE_UINT16, H5S_ALL, H5S_ALL, H5P_DEFAULT, items) >= 0);
    H5Dclose(dataset);
    H5Sclose(space);
    H5Pclose(properties);
    H5Pclose(access);
    return file;
}

static void check_items(const char *path, int64_t chunk)
{
    hid_t file;
    struct chunks *c;
    CHECK_OK(h5file_open(path, &file));
    CHECK_OK(chunks_open(file, path, "tokens", H5I_INVALID_HID, &c));
    CHECK_EQUAL(chunks_item_count(c), ITEMS);
    CHECK_EQUAL(chunks_item_bytes(c), 2);
    for (uint64_t i = 0; i < 2 * ITEMS; i++) { /* in order, then randomly */
        int64_t first = i < ITEMS ? (int64_t)i : (int64_t)random_below(5, i, ITEMS), count = 0;
        const void *items;
        CHECK_OK(chunks_read(c, first, &items, &count));
        int64_t end = (first / chunk + 1) * chunk;
        CHECK_EQUAL(first + count, number_min(end, ITEMS));
        for (int64_t j = 0; j < count; j++) {
            CHECK_EQUAL(((const uint16_t *)items)[j], make_item(first + j));
        }
    }
    chunks_close(&c);
    CHECK(c == NULL);
    CHECK_OK(h5file_close(path, &file));
}

/* The chunk indexes of HDF5 1.10: B-tree, extensible array, fixed array, single chunk. */
static void test_chunk_indexes(void)
{
    const char *path = folder_file("index.h5");
    for (int i = 0; i < 8; i++) {
        int64_t chunk = i & 4 ? ITEMS : CHUNK;
        hid_t file = write_items(path, i & 1 ? H5F_LIBVER_V110 : H5F_LIBVER_EARLIEST, i & 2, chunk);
        CHECK_OK(h5file_close(path, &file));
        check_items(path, chunk);
    }
}

/* The chunk of elements 192 to 255 is refused; the others can be read before and after. */
static void check_refused(const char *path, const char *text)
{
    hid_t file;
    struct chunks *c;
    const void *items;
    int64_t count;
    CHECK_OK(h5file_open(path, &file));
    CHECK_OK(chunks_open(file, path, "tokens", H5I_INVALID_HID, &c));
    CHECK_OK(chunks_read(c, 130, &items, &count));
    CHECK_FAILS(chunks_read(c, 200, &items, &count), STATUS_DATA, text);
    CHECK_FAILS(chunks_read(c, 192, &items, &count), STATUS_DATA, path);
    CHECK_FAILS(chunks_read(c, 192, &items, &count), STATUS_DATA, "/tokens");
    CHECK_FAILS(chunks_read(c, 192, &items, &count), STATUS_DATA, "192");
    status_clear();
    CHECK_OK(chunks_read(c, 130, &items, &count));
    CHECK_EQUAL(*(const uint16_t *)items, make_item(130));
    chunks_close(&c);
    CHECK_OK(h5file_close(path, &file));
}

/* Writes the stored bytes of the chunk of elements 192 to 255 without a filter. */
static void write_chunk(hid_t file, const void *stored, size_t bytes)
{
    hsize_t offset = 192;
    hid_t dataset = H5Dopen2(file, "tokens", H5P_DEFAULT);
    CHECK(H5Dwrite_chunk(dataset, H5P_DEFAULT, 0, &offset, bytes, stored) >= 0);
    H5Dclose(dataset);
}

static void test_refused(void)
{
    const char *path = folder_file("bad.h5");
    uint16_t stored[CHUNK + 2] = {1, 2, 3};
    uint32_t checksum = fletcher32(stored, CHUNK_BYTES);
    memcpy(stored + CHUNK, &checksum, sizeof checksum);
    hid_t file = write_items(path, H5F_LIBVER_V110, true, CHUNK);
    write_chunk(file, stored, sizeof stored);
    CHECK_OK(h5file_close(path, &file));
    struct chunks *c;
    const void *items;
    int64_t count;
    CHECK_OK(h5file_open(path, &file)); /* the chunk with its checksum is valid */
    CHECK_OK(chunks_open(file, path, "tokens", H5I_INVALID_HID, &c));
    CHECK_OK(chunks_read(c, 192, &items, &count));
    CHECK(memcmp(items, stored, CHUNK_BYTES) == 0);
    chunks_close(&c);
    CHECK_OK(h5file_close(path, &file));

    for (int bit = 0; bit < 8 * (int)sizeof stored; bit += 5) { /* bits of data and checksum */
        ((unsigned char *)stored)[bit / 8] ^= (unsigned char)(1 << bit % 8);
        file = write_items(path, H5F_LIBVER_V110, true, CHUNK);
        write_chunk(file, stored, sizeof stored);
        CHECK_OK(h5file_close(path, &file));
        check_refused(path, "checksum");
        ((unsigned char *)stored)[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    file = write_items(path, H5F_LIBVER_V110, true, CHUNK);
    write_chunk(file, stored, CHUNK_BYTES);
    CHECK_OK(h5file_close(path, &file));
    check_refused(path, "has another size");
}

/* The dataset stores more bytes than its elements need, but the chunk of elements 192 to 255 is
 * missing, or marked as written without checksum. */
static void check_invalid_chunk(bool marked, const char *text)
{
    const char *path = folder_file("holes.h5");
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    hsize_t size = 256, unlimited = H5S_UNLIMITED, tile = CHUNK;
    CHECK(H5Pset_chunk(properties, 1, &tile) >= 0 && H5Pset_fletcher32(properties) >= 0);
    hid_t space = H5Screate_simple(1, &size, &unlimited);
    hid_t dataset =
        H5Dcreate2(file, "tokens", H5T_STD_U16LE, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    for (hsize_t first = 0; first < (marked ? 256 : 192); first += CHUNK) {
        unsigned char stored[4096] = {0};
        uint16_t items[CHUNK];
        for (int i = 0; i < CHUNK; i++) {
            items[i] = make_item((int64_t)first + i);
        }
        uint32_t checksum = fletcher32(items, CHUNK_BYTES), mask = first == 192;
        memcpy(stored, items, CHUNK_BYTES);
        memcpy(stored + CHUNK_BYTES, &checksum, sizeof checksum);
        size_t bytes = first == 0 ? sizeof stored : CHUNK_BYTES + 4;
        CHECK(H5Dwrite_chunk(dataset, H5P_DEFAULT, mask, &first, bytes, stored) >= 0);
    }
    H5Dclose(dataset);
    H5Sclose(space);
    H5Pclose(properties);
    CHECK_OK(h5file_close(path, &file));
    check_refused(path, text);
}

static void test_layouts(void)
{
    const char *path = folder_file("layout.h5");
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hsize_t large = (4 << 20) / 2 + 1, shape[2] = {4, 4};
    hid_t properties = H5Pcreate(H5P_DATASET_CREATE), plane = H5Screate_simple(2, shape, NULL);
    CHECK(H5Pset_chunk(properties, 2, shape) >= 0 && H5Pset_fletcher32(properties) >= 0);
    H5Dclose(H5Dcreate2(file, "plane", H5T_STD_U16LE, plane, H5P_DEFAULT, properties, H5P_DEFAULT));
    hid_t space = H5Screate_simple(1, &large, NULL), one = H5Pcreate(H5P_DATASET_CREATE);
    CHECK(H5Pset_chunk(one, 1, &large) >= 0 && H5Pset_fletcher32(one) >= 0);
    CHECK(H5Pset_alloc_time(one, H5D_ALLOC_TIME_EARLY) >= 0);
    H5Dclose(H5Dcreate2(file, "large", H5T_STD_U16LE, space, H5P_DEFAULT, one, H5P_DEFAULT));
    struct chunks *c;
    CHECK_FAILS(chunks_open(file, path, "plane", H5I_INVALID_HID, &c), STATUS_DATA, "dimensions");
    CHECK_FAILS(chunks_open(file, path, "large", H5I_INVALID_HID, &c), STATUS_DATA, "2097152");
    CHECK_FAILS(chunks_open(file, path, "none", H5I_INVALID_HID, &c), STATUS_DATA, "no dataset");
    status_clear();
    H5Sclose(space);
    H5Sclose(plane);
    H5Pclose(one);
    H5Pclose(properties);
    CHECK_OK(h5file_close(path, &file));
}

int main(void)
{
    folder_make();
    h5file_init();
    test_checksum();
    test_chunk_indexes();
    test_refused();
    check_invalid_chunk(false, "cannot be read");
    check_invalid_chunk(true, "no checksum");
    test_layouts();
    return 0;
}
