/* Tests of h5file.h, mainly with files that the reader must refuse: damaged files, links out of the
 * file, false sizes, wrong types. The HDF5 library writes these files here. */
#include "base/memory.h"
#include "datasets/shard/h5file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/resource.h>

#include "tests/datasets/folder.h"

static hid_t create_file(const char *path)
{
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(file >= 0);
    return file;
}

static hid_t create_dataset(hid_t file, const char *name, hid_t type, hsize_t count,
                            hid_t properties)
{
    hid_t space = H5Screate_simple(1, &count, NULL);
    hid_t dataset = H5Dcreate2(file, name, type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    CHECK(dataset >= 0);
    H5Sclose(space);
    return dataset;
}

static void fill_and_close(hid_t dataset, int count)
{
    int values[256];
    CHECK(count <= 256);
    for (int i = 0; i < count; i++) {
        values[i] = i;
    }
    CHECK(H5Dwrite(dataset, H5T_NATIVE_INT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    H5Dclose(dataset);
}

/* Checks that the dataset "tokens" is refused with the path and this text in the message. */
static void check_name_refused(const char *path, const char *name, const char *text)
{
    hid_t file, dataset;
    int64_t shape[8];
    int dimensions;
    CHECK_OK(h5file_open(path, &file));
    CHECK_FAILS(
        h5file_open_dataset(file, path, name, H5T_STD_U16LE, 1, &dataset, shape, &dimensions),
        STATUS_DATA, text);
    CHECK_OK(h5file_close(path, &file));
}

static void check_refused(const char *path, hid_t type, int dimension_limit, const char *text)
{
    hid_t file, dataset;
    int64_t shape[8];
    int dimensions;
    CHECK_OK(h5file_open(path, &file));
    CHECK_EQUAL(h5file_open_dataset(file, path, "tokens", type, dimension_limit, &dataset, shape,
                                    &dimensions),
                STATUS_DATA);
    CHECK(strstr(status_pending()->text, path) != NULL);
    CHECK_FAILS(status_pending()->code, STATUS_DATA, text);
    CHECK_OK(h5file_close(path, &file));
}

/* Only chunks may store fewer bytes than their elements have, because they can be compressed. */
static void check_not_deflated(const char *path, const char *text)
{
    hid_t file, dataset;
    int64_t shape[1];
    int dimensions;
    CHECK_OK(h5file_open(path, &file));
    CHECK_FAILS(h5file_open_deflated_dataset(file, path, "tokens", H5I_INVALID_HID, 1, &dataset,
                                             shape, &dimensions),
                STATUS_DATA, text);
    CHECK_OK(h5file_close(path, &file));
}

static void test_round_trip(void)
{
    const char *path = folder_file("round.h5");
    const int64_t numbers[3] = {-1, INT64_MAX, 7};
    hid_t file, properties, dataset;
    CHECK_OK(h5file_create(path, &file));
    hsize_t chunk = 16;
    CHECK_OK(h5file_create_chunk_properties(1, &chunk, &properties));
    fill_and_close(create_dataset(file, "tokens", H5T_STD_U32LE, 100, properties), 100);
    H5Pclose(properties);
    CHECK_OK(h5file_write_i64(file, path, "one", numbers, 1));
    CHECK_OK(h5file_write_i64(file, path, "three", numbers, 3));
    CHECK_OK(h5file_write_text(file, path, "text", "über"));
    CHECK_OK(h5file_close(path, &file));

    int64_t shape[2], numbers_read[3];
    int dimensions;
    char text[16];
    CHECK_OK(h5file_open(path, &file));
    CHECK_OK(
        h5file_open_dataset(file, path, "tokens", H5T_STD_U32LE, 2, &dataset, shape, &dimensions));
    CHECK(dimensions == 1 && shape[0] == 100);
    uint32_t values[100];
    CHECK(H5Dread(dataset, H5T_NATIVE_UINT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    CHECK_EQUAL(values[99], 99);
    H5Dclose(dataset);
    CHECK_OK(h5file_read_i64(file, path, "one", numbers_read, 1));
    CHECK_EQUAL(numbers_read[0], -1);
    CHECK_OK(h5file_read_i64(file, path, "three", numbers_read, 3));
    CHECK_EQUAL(numbers_read[1], INT64_MAX);
    CHECK_OK(h5file_read_text(file, path, "text", text, (int)sizeof text));
    CHECK_TEXT(text, "über");
    CHECK(h5file_has_attribute(file, "text") && !h5file_has_attribute(file, "none"));
    CHECK_FAILS(h5file_read_text(file, path, "text", text, 5), STATUS_DATA, "at most 4");
    CHECK_FAILS(h5file_read_i64(file, path, "three", numbers_read, 1), STATUS_DATA, "shape");
    CHECK_FAILS(h5file_read_i64(file, path, "one", numbers_read, 3), STATUS_DATA, "shape");
    CHECK_FAILS(h5file_read_i64(file, path, "none", numbers_read, 1), STATUS_DATA,
                "no attribute 'none'");
    CHECK_FAILS(h5file_read_i64(file, path, "text", numbers_read, 1), STATUS_DATA,
                "64-bit integer");
    CHECK_FAILS(h5file_read_text(file, path, "one", text, 16), STATUS_DATA, "string of fixed size");
    CHECK_FAILS(
        h5file_open_dataset(file, path, "other", H5T_STD_U32LE, 2, &dataset, shape, &dimensions),
        STATUS_DATA, "no dataset /other");
    CHECK_OK(h5file_close(path, &file));
}

static void test_same_bytes(void)
{
    char *data[2];
    size_t bytes[2];
    for (int i = 0; i < 2; i++) {
        const char *path = folder_file(i == 0 ? "same0.h5" : "same1.h5");
        hid_t file, properties;
        CHECK_OK(h5file_create(path, &file));
        hsize_t chunk = 8;
        CHECK_OK(h5file_create_chunk_properties(1, &chunk, &properties));
        fill_and_close(create_dataset(file, "tokens", H5T_STD_U16LE, 20, properties), 20);
        H5Pclose(properties);
        CHECK_OK(h5file_write_text(file, path, "text", "x"));
        CHECK_OK(h5file_close(path, &file));
        data[i] = folder_read(path, &bytes[i]);
        sleep(i == 0); /* a stored time would differ by one second */
    }
    CHECK_EQUAL(bytes[0], bytes[1]);
    CHECK(memcmp(data[0], data[1], bytes[0]) == 0);
    free(data[0]);
    free(data[1]);
}

static void test_open(void)
{
    hid_t file;
    CHECK_FAILS(h5file_open(folder_file("missing.h5"), &file), STATUS_NO_INPUT, "missing.h5");
    CHECK_FAILS(h5file_open(folder_path, &file), STATUS_DATA, "is a folder; name its shards");
    folder_write(folder_file("empty.h5"), "", 0);
    CHECK_FAILS(h5file_open(folder_file("empty.h5"), &file), STATUS_DATA, "empty");
    folder_write(folder_file("text.h5"), "only text", 9);
    CHECK_FAILS(h5file_open(folder_file("text.h5"), &file), STATUS_DATA, "not an HDF5 file");
    CHECK_FAILS(h5file_create(folder_file("no/such/folder.h5"), &file), STATUS_CREATE, "no/such");
    CHECK_FAILS(h5file_create(folder_path, &file), STATUS_CREATE, folder_path);
    if (geteuid() != 0) {
        folder_write(folder_file("locked.h5"), "x", 1);
        CHECK(chmod(folder_file("locked.h5"), 0) == 0);
        CHECK_FAILS(h5file_open(folder_file("locked.h5"), &file), STATUS_PERMISSION, "locked.h5");
    }
}

static void test_truncated(void)
{
    size_t bytes;
    char *data = folder_read(folder_file("round.h5"), &bytes);
    hid_t file;
    for (size_t size = 1; size < bytes; size += size < 64 || size + 8 > bytes ? 1 : bytes / 29) {
        folder_write(folder_file("cut.h5"), data, size);
        status result = h5file_open(folder_file("cut.h5"), &file);
        CHECK_EQUAL(result, STATUS_DATA);
        CHECK(strstr(status_pending()->text, "cut.h5") != NULL);
        status_clear();
    }
    free(data);
}

/* A file that its writer did not close does not open. */
static void test_unfinished(void)
{
    const char *path = folder_file("unfinished.h5");
    hid_t file, reader;
    CHECK_OK(h5file_create(path, &file));
    fill_and_close(create_dataset(file, "tokens", H5T_STD_U16LE, 20, H5P_DEFAULT), 20);
    CHECK(H5Fflush(file, H5F_SCOPE_GLOBAL) >= 0);
    size_t bytes;
    char *data = folder_read(path, &bytes);
    folder_write(folder_file("dead.h5"), data, bytes);
    free(data);
    CHECK_FAILS(h5file_open(folder_file("dead.h5"), &reader), STATUS_DATA, "dead.h5");
    CHECK_OK(h5file_close(path, &file));
}

/* An earlier file is replaced. A symbolic link is replaced too, and its target does not change. */
static void test_replaced(void)
{
    const char *path = folder_file("replaced.h5"), *target = folder_file("precious");
    hid_t file;
    size_t bytes;
    folder_write(target, "precious", 8);
    CHECK(symlink("precious", path) == 0);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(h5file_create(path, &file));
        CHECK_OK(h5file_close(path, &file));
        CHECK_OK(h5file_open(path, &file));
        CHECK_OK(h5file_close(path, &file));
    }
    char *data = folder_read(target, &bytes);
    CHECK(bytes == 8 && memcmp(data, "precious", 8) == 0);
    free(data);
    struct stat about;
    CHECK(lstat(path, &about) == 0 && S_ISREG(about.st_mode));
    if (geteuid() != 0) {
        CHECK(mkdir(folder_file("locked"), 0500) == 0);
        CHECK_FAILS(h5file_create(folder_file("locked/x.h5"), &file), STATUS_PERMISSION,
                    "Permission denied");
    }
}

static int creations = -1; /* refused calls of open that create a file; negative: none is refused */

/* Replaces open of the C library, also for HDF5. */
int open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    unsigned mode = flags & O_CREAT ? va_arg(arguments, unsigned) : 0;
    va_end(arguments);
    if (creations < 0) {
        return openat(AT_FDCWD, path, flags, mode);
    }
    creations += (flags & O_CREAT) != 0;
    errno = EINVAL;
    return -1;
}

/* If a call other than flock fails, h5file_create does not try again without locks. */
static void test_no_second_try(void)
{
    hid_t file;
    creations = 0;
    status result = h5file_create(folder_file("refused.h5"), &file);
    int count = creations;
    creations = -1;
    CHECK_FAILS(result, STATUS_CREATE, "refused.h5: Invalid argument");
    CHECK_EQUAL(count, 1);
}

/* Writes external links. It must run before h5file_init, which unregisters their class. */
static void make_external_links(void)
{
    const char *path = folder_file("external.h5"), *target = folder_file("target.h5");
    hid_t file = create_file(target);
    fill_and_close(create_dataset(file, "tokens", H5T_STD_U16LE, 8, H5P_DEFAULT), 8);
    H5Fclose(file);
    file = create_file(path);
    CHECK(H5Lcreate_external(target, "/tokens", file, "tokens", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    CHECK(H5Lcreate_external(target, "/", file, "outside", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    H5Fclose(file);
}

/* ---- the targets of hostile files are not opened ---- */

static int watch;

static void watch_opens(const char *path)
{
    CHECK(inotify_add_watch(watch, path, IN_OPEN | IN_ACCESS) >= 0);
}

static bool was_opened(void)
{
    char events[4096];
    return read(watch, events, sizeof events) > 0;
}

/* Starts to watch the two files that external links and external storage name. */
static void start_watch(void)
{
    char *data;
    size_t bytes;
    watch = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (watch < 0) {
        fprintf(stderr, "not checked: the targets are not opened (no inotify)\n");
        return;
    }
    folder_write(folder_file("raw"), "0123456789012345678901234567890123456789", 40);
    watch_opens(folder_file("raw"));
    watch_opens(folder_file("target.h5"));
    data = folder_read(folder_file("raw"), &bytes);
    free(data);
    CHECK(was_opened()); /* an open is noticed */
}

static void test_links(void)
{
    const char *path = folder_file("links.h5");
    check_refused(folder_file("external.h5"), H5I_INVALID_HID, 1, "an external link");
    check_name_refused(folder_file("external.h5"), "outside/tokens", "/outside is an external");
    hid_t file = create_file(path);
    fill_and_close(create_dataset(file, "real", H5T_STD_U16LE, 8, H5P_DEFAULT), 8);
    CHECK(H5Lcreate_soft("/real", file, "tokens", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    H5Fclose(file);
    check_refused(path, H5I_INVALID_HID, 1, "a soft link");
    file = create_file(path);
    H5Gclose(H5Gcreate2(file, "tokens", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Fclose(file);
    check_refused(path, H5I_INVALID_HID, 1, "not a dataset");
    /* Links to the group of a dataset are refused too. */
    file = create_file(path);
    H5Gclose(H5Gcreate2(file, "real", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    fill_and_close(create_dataset(file, "real/tokens", H5T_STD_U16LE, 8, H5P_DEFAULT), 8);
    CHECK(H5Lcreate_soft("/real", file, "alias", H5P_DEFAULT, H5P_DEFAULT) >= 0);
    H5Fclose(file);
    check_name_refused(path, "alias/tokens", "/alias is a soft link");
    hid_t dataset;
    int64_t shape[8];
    int dimensions;
    CHECK_OK(h5file_open(path, &file));
    CHECK_OK(h5file_open_dataset(file, path, "real/tokens", H5T_STD_U16LE, 1, &dataset, shape,
                                 &dimensions));
    H5Dclose(dataset);
    CHECK_OK(h5file_close(path, &file));
}

static void test_storage(void)
{
    const char *path = folder_file("storage.h5");
    hid_t file = create_file(path);
    hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    CHECK(H5Pset_external(properties, folder_file("raw"), 0, 40) >= 0);
    H5Dclose(create_dataset(file, "tokens", H5T_STD_U16LE, 20, properties));
    H5Pclose(properties);
    H5Fclose(file);
    check_refused(path, H5I_INVALID_HID, 1, "external storage");

    file = create_file(path);
    properties = H5Pcreate(H5P_DATASET_CREATE);
    hsize_t count = 8, chunk = 4;
    hid_t space = H5Screate_simple(1, &count, NULL);
    CHECK(H5Pset_virtual(properties, space, folder_file("target.h5"), "/tokens", space) >= 0);
    H5Dclose(create_dataset(file, "tokens", H5T_STD_U16LE, count, properties));
    H5Sclose(space);
    H5Pclose(properties);
    H5Fclose(file);
    check_refused(path, H5I_INVALID_HID, 1, "virtual dataset");

    file = create_file(path);
    properties = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(properties, 1, &chunk);
    H5Pset_fletcher32(properties);
    CHECK(H5Pset_deflate(properties, 6) >= 0);
    fill_and_close(create_dataset(file, "tokens", H5T_STD_U16LE, 8, properties), 8);
    H5Pclose(properties);
    H5Fclose(file);
    check_refused(path, H5I_INVALID_HID, 1, "filter 1 ");
}

/* A stored chunk that is too short must not be read. */
static void test_short_chunks(void)
{
    static const char stored[160];
    const char *path = folder_file("short.h5");
    const hsize_t offset[2] = {4, 3}, start[2] = {0, 0}, count[2] = {8, 6}, left[2] = {8, 3};
    hsize_t chunk[2] = {4, 3};
    hid_t file, properties;
    CHECK_OK(h5file_create(path, &file));
    CHECK_OK(h5file_create_chunk_properties(2, chunk, &properties));
    hid_t space = H5Screate_simple(2, count, NULL);
    hid_t dataset =
        H5Dcreate2(file, "m", H5T_IEEE_F32LE, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    float values[48] = {0};
    CHECK(H5Dwrite(dataset, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    CHECK_OK(h5file_check_chunks(dataset, path, "m", start, count));
    for (size_t bytes = 8; bytes <= sizeof stored; bytes += sizeof stored - 8) {
        CHECK(H5Dwrite_chunk(dataset, H5P_DEFAULT, 1, offset, bytes, stored) >= 0);
        CHECK_FAILS(h5file_check_chunks(dataset, path, "m", start, count), STATUS_DATA,
                    "a chunk of /m is missing or has another size");
        CHECK_OK(h5file_check_chunks(dataset, path, "m", start, left)); /* without that chunk */
    }
    H5Dclose(dataset);
    H5Sclose(space);
    H5Pclose(properties);
    CHECK_OK(h5file_close(path, &file));
}

/* Declared sizes that are not stored must not cause an allocation. */
static void test_false_sizes(void)
{
    const char *path = folder_file("sizes.h5");
    hid_t file = create_file(path);
    hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    hsize_t chunk = 1024;
    H5Pset_chunk(properties, 1, &chunk);
    H5Dclose(create_dataset(file, "tokens", H5T_STD_U16LE, (hsize_t)1 << 40, properties));
    H5Fclose(file);
    check_refused(path, H5I_INVALID_HID, 1, "declares 1099511627776 elements");
    file = create_file(path);
    H5Dclose(create_dataset(file, "tokens", H5T_STD_U16LE, (hsize_t)1 << 50, properties));
    H5Fclose(file);
    check_refused(path, H5I_INVALID_HID, 1, "along dimension 0");
    H5Pclose(properties);
    file = create_file(path);
    H5Dclose(create_dataset(file, "tokens", H5T_STD_U16LE, 32, H5P_DEFAULT));
    H5Fclose(file);
    check_not_deflated(path, "declares 32 elements (64 bytes), but stores 0 bytes");

    file = create_file(path);
    hsize_t square[2] = {(hsize_t)1 << 33, (hsize_t)1 << 33}, tile[2] = {64, 64};
    properties = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(properties, 2, tile);
    hid_t space = H5Screate_simple(2, square, NULL);
    hid_t dataset =
        H5Dcreate2(file, "tokens", H5T_STD_U16LE, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    CHECK(dataset >= 0);
    H5Dclose(dataset);
    H5Sclose(space);
    H5Pclose(properties);
    H5Fclose(file);
    check_refused(path, H5I_INVALID_HID, 2, "declares ");
    check_refused(path, H5I_INVALID_HID, 1, "2 dimensions");
}

static void test_types(void)
{
    const struct {
        hid_t type;
        const char *reason;
    } wrong[] = {{H5T_STD_I32LE, "integer of 4"}, {H5T_STD_U16BE, "integer of 2"},
                 {H5T_STD_U64LE, "integer of 8"}, {H5T_STD_U8LE, "integer of 1"},
                 {H5T_IEEE_F32LE, "float of 4"},  {H5T_IEEE_F64LE, "float of 8"}};
    const char *path = folder_file("types.h5");
    for (int i = 0; i < COUNT(wrong); i++) {
        hid_t file = create_file(path);
        fill_and_close(create_dataset(file, "tokens", wrong[i].type, 8, H5P_DEFAULT), 8);
        H5Fclose(file);
        check_refused(path, H5I_INVALID_HID, 1, wrong[i].reason);
    }
    check_refused(path, H5T_IEEE_F32LE, 1, "another type");
}

static void test_attributes(void)
{
    const char *path = folder_file("attributes.h5");
    hid_t file = create_file(path);
    hsize_t many = (hsize_t)4 << 20;
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Fclose(file);
    H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110); /* for large attributes */
    file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    H5Pclose(access);
    hid_t space = H5Screate_simple(1, &many, NULL);
    hid_t attribute = H5Acreate2(file, "huge", H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(attribute >= 0);
    int64_t *values = calloc(many, sizeof *values);
    CHECK(H5Awrite(attribute, H5T_NATIVE_INT64, values) >= 0);
    free(values);
    H5Aclose(attribute);
    H5Sclose(space);
    space = H5Screate(H5S_SCALAR);
    hid_t variable = H5Tcopy(H5T_C_S1);
    H5Tset_size(variable, H5T_VARIABLE);
    attribute = H5Acreate2(file, "variable", variable, space, H5P_DEFAULT, H5P_DEFAULT);
    const char *text = "text";
    CHECK(H5Awrite(attribute, variable, &text) >= 0);
    H5Aclose(attribute);
    H5Tclose(variable);
    attribute = H5Acreate2(file, "short", H5T_STD_I32LE, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Aclose(attribute);
    H5Sclose(space);
    space = H5Screate(H5S_NULL);
    attribute = H5Acreate2(file, "null", H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Aclose(attribute);
    H5Sclose(space);
    H5Fclose(file);

    int64_t value;
    char out[64];
    CHECK_OK(h5file_open(path, &file));
    CHECK_FAILS(h5file_read_i64(file, path, "huge", &value, 1), STATUS_DATA, "another shape");
    CHECK_FAILS(h5file_read_text(file, path, "huge", out, 64), STATUS_DATA, "another shape");
    CHECK_FAILS(h5file_read_text(file, path, "variable", out, 64), STATUS_DATA, "fixed size");
    CHECK_FAILS(h5file_read_i64(file, path, "short", &value, 1), STATUS_DATA, "64-bit");
    CHECK_FAILS(h5file_read_i64(file, path, "null", &value, 1), STATUS_DATA, "another shape");
    CHECK_OK(h5file_close(path, &file));
}

/* A full disk causes an error at the latest when the file is closed: STATUS_WRITE. */
static void test_full_disk(void)
{
    hid_t file;
    if (access("/dev/full", W_OK) != 0) {
        return;
    }
    CHECK_OK(h5file_create(folder_file("gone.h5"), &file));
    CHECK_OK(h5file_close(folder_file("gone.h5"), &file));
    status result = h5file_create("/dev/full", &file);
    if (result == STATUS_OK) {
        CHECK_FAILS(h5file_close("/dev/full", &file), STATUS_WRITE, "No space left");
    } else {
        CHECK(result == STATUS_CREATE && strstr(status_pending()->text, "/dev/full") != NULL);
        status_clear();
    }
}

/* The message of a failed write has the reason of the system without the internals of HDF5. */
static void test_write_reason(void)
{
    struct rlimit before, small;
    hid_t file;
    CHECK_OK(h5file_create(folder_file("large.h5"), &file));
    CHECK_EQUAL(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){.rlim_cur = 16, .rlim_max = before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    CHECK_EQUAL(setrlimit(RLIMIT_FSIZE, &small), 0);
    status result = h5file_close(folder_file("large.h5"), &file);
    CHECK_EQUAL(setrlimit(RLIMIT_FSIZE, &before), 0);
    CHECK_EQUAL(result, STATUS_WRITE);
    CHECK(strstr(status_pending()->text, "large.h5: File too large") != NULL);
    CHECK(strstr(status_pending()->text, "errno") == NULL);
    status_clear();
}

int main(void)
{
    folder_make();
    H5dont_atexit(); /* as in h5file.c: closing at exit can crash after a failed write */
    make_external_links();
    h5file_init();
    start_watch();
    test_round_trip();
    test_same_bytes();
    test_open();
    test_truncated();
    test_unfinished();
    test_replaced();
    test_no_second_try();
    test_links();
    test_storage();
    CHECK(watch < 0 || !was_opened());
    test_short_chunks();
    test_false_sizes();
    test_types();
    test_attributes();
    test_full_disk();
    test_write_reason();
    return 0;
}
