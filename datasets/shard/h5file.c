#include "datasets/shard/h5file.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

enum {
    DIMENSIONS_MAX = 8,
    NAME_BYTES_MAX = 1024,
    TEXT_BYTES_MAX = 65536,
    DEFLATE_RATIO_MAX = 1032 /* largest expansion of one compressed byte (zlib) */
};
static const uint64_t elements_limit = UINT64_C(1) << 48;

static pthread_once_t started = PTHREAD_ONCE_INIT;
static bool is_ready; /* the library is started, without plugins and external links */

static void start_library(void)
{
    H5dont_atexit(); /* closing at exit can crash, or complete a file that must stay broken */
    is_ready =
        H5open() >= 0 && H5PLset_loading_state(0) >= 0 && H5Lunregister(H5L_TYPE_EXTERNAL) >= 0;
}

/* Starts the library in this thread. No file is opened or created if that fails. */
static status require_library(void)
{
    h5file_init();
    REQUIRE(is_ready, STATUS_INTERNAL, "the HDF5 library cannot be started: out of memory?");
    return STATUS_OK;
}

void h5file_init(void)
{
    static _Thread_local bool quiet; /* each thread has its own error stack */
    pthread_once(&started, start_library);
    if (!quiet && is_ready) {
        H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
        quiet = true;
    }
}

status h5file_require_thread_safety(void)
{
    h5file_init();
    hbool_t safe = 0;
    H5is_library_threadsafe(&safe);
    REQUIRE(safe, STATUS_UNAVAILABLE,
            "this HDF5 library was built without --enable-threadsafe; use a thread-safe build, "
            "such as the libhdf5 package of Debian");
    return STATUS_OK;
}

static _Thread_local char reason[256];
static _Thread_local int reason_errno;    /* of the failed system call; 0: none */
static _Thread_local bool failed_to_lock; /* the failed system call is flock or fcntl */

/* Keeps the text of the innermost error; of an error of the file system only its reason. */
static herr_t keep_innermost(unsigned n, const H5E_error2_t *error, void *unused)
{
    (void)unused;
    if (n > 0) {
        return 0;
    }
    static const char begin[] = "error message = '", number[] = ", errno = ";
    const char *text = error->desc != NULL ? error->desc : "unknown reason";
    const char *system = strstr(text, begin), *code = strstr(text, number);
    reason_errno = code != NULL ? (int)strtol(code + sizeof number - 1, NULL, 10) : 0;
    failed_to_lock = strstr(text, "lock file") != NULL; /* "unable to lock file, errno = ..." */
    const char *end = system != NULL ? strchr(system + sizeof begin - 1, '\'') : NULL;
    if (end != NULL) {
        system += sizeof begin - 1;
        snprintf(reason, sizeof reason, "%.*s", (int)(end - system), system);
    } else {
        snprintf(reason, sizeof reason, "%s", text);
    }
    return 0;
}

const char *h5file_reason(void)
{
    snprintf(reason, sizeof reason, "unknown reason");
    reason_errno = 0;
    failed_to_lock = false;
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_innermost, NULL);
    return reason;
}

/* Returns whether the metadata of a file has checksums, which superblock 2 introduced. Damage to
 * older files makes HDF5 1.10 divide by zero, write out of bounds or read wrong data. The
 * superblock must be at the start of the file. */
static bool has_checked_metadata(int descriptor)
{
    static const unsigned char signature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    unsigned char head[sizeof signature + 1] = {0};
    return pread(descriptor, head, sizeof head, 0) == (ssize_t)sizeof head &&
           memcmp(head, signature, sizeof signature) == 0 && head[sizeof signature] >= 2;
}

/* Disables the locks of HDF5 if the last call failed because the file system has no locks. HDF5
 * itself continues without locks only after ENOSYS. */
static bool disable_missing_locks(hid_t access)
{
    (void)h5file_reason();
#if H5_VERSION_GE(1, 10, 7)
    return failed_to_lock && file_is_lock_unsupported(reason_errno) &&
           H5Pset_file_locking(access, 0, 1) >= 0;
#else
    (void)access;
    return false;
#endif
}

static status open_file(const char *path, bool need_checked, hid_t *out)
{
    *out = H5I_INVALID_HID;
    TRY(require_library());
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    REQUIRE(descriptor >= 0, status_from_errno(errno, STATUS_NO_INPUT, STATUS_DATA),
            "cannot open %s: %s", path, strerror(errno));
    struct stat info;
    int failed = fstat(descriptor, &info);
    bool checked = !need_checked || has_checked_metadata(descriptor);
    close(descriptor);
    REQUIRE(failed != 0 || !S_ISDIR(info.st_mode), STATUS_DATA,
            "%s is a folder; name its shards, for example %s/train-*.h5", path, path);
    REQUIRE(failed == 0 && S_ISREG(info.st_mode), STATUS_DATA, "%s is not a regular file", path);
    REQUIRE(info.st_size > 0, STATUS_DATA, "%s is empty (0 bytes)", path);
    htri_t is_hdf5 = H5Fis_hdf5(path);
    REQUIRE(is_hdf5 > 0, STATUS_DATA, "%s is not an HDF5 file%s%s", path, is_hdf5 < 0 ? ": " : "",
            is_hdf5 < 0 ? h5file_reason() : "");
    REQUIRE(checked, STATUS_DATA,
            "%s is in the oldest format of HDF5, which has no checksums of metadata; write it with "
            "the bounds H5F_LIBVER_V110 (h5py: libver='v110')",
            path);
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    REQUIRE(access >= 0, STATUS_INTERNAL, "HDF5: %s", h5file_reason());
    H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
    hid_t file = H5Fopen(path, H5F_ACC_RDONLY, access);
    if (file < 0 && disable_missing_locks(access)) {
        file = H5Fopen(path, H5F_ACC_RDONLY, access);
    }
    if (file < 0) {
        char why[sizeof reason];
        snprintf(why, sizeof why, "%s", h5file_reason());
        H5Pclose(access);
        RAISE(STATUS_DATA, "%s is damaged, incomplete or still being written: %s", path, why);
    }
    H5Pclose(access);
    *out = file;
    return STATUS_OK;
}

status h5file_open(const char *path, hid_t *out)
{
    return open_file(path, false, out);
}

status h5file_open_checked(const char *path, hid_t *out)
{
    return open_file(path, true, out);
}

/* Removes a file or a symbolic link. The new file would otherwise be written into its target. */
static void remove_earlier(const char *path)
{
    struct stat about;
    if (lstat(path, &about) == 0 && (S_ISREG(about.st_mode) || S_ISLNK(about.st_mode))) {
        (void)unlink(path);
    }
}

status h5file_create(const char *path, hid_t *out)
{
    *out = H5I_INVALID_HID;
    TRY(require_library());
    remove_earlier(path);
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    hid_t creation = H5Pcreate(H5P_FILE_CREATE);
    bool set = access >= 0 && creation >= 0 &&
               H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110) >= 0 &&
               H5Pset_fclose_degree(access, H5F_CLOSE_STRONG) >= 0 &&
               H5Pset_obj_track_times(creation, 0) >= 0;
    hid_t file = set ? H5Fcreate(path, H5F_ACC_EXCL, creation, access) : H5I_INVALID_HID;
    if (set && file < 0 && disable_missing_locks(access)) {
        remove_earlier(path); /* the first call has created an empty file */
        file = H5Fcreate(path, H5F_ACC_EXCL, creation, access);
    }
    char why[sizeof reason];
    snprintf(why, sizeof why, "%s", file < 0 ? h5file_reason() : "");
    H5Pclose(access);
    H5Pclose(creation);
    REQUIRE(file >= 0, status_from_errno(reason_errno, STATUS_CREATE, STATUS_CREATE),
            "cannot create %s: %s", path, why);
    *out = file;
    return STATUS_OK;
}

status h5file_close(const char *path, hid_t *file)
{
    if (*file < 0) {
        return STATUS_OK;
    }
    h5file_init();
    status result = STATUS_OK;
    if (H5Fflush(*file, H5F_SCOPE_LOCAL) < 0) {
        result = RAISE_STATUS(STATUS_WRITE, "cannot write %s: %s", path, h5file_reason());
    }
    if (H5Fclose(*file) < 0 && result == STATUS_OK) {
        result = RAISE_STATUS(STATUS_WRITE, "cannot write %s: %s", path, h5file_reason());
    }
    *file = H5I_INVALID_HID;
    return result;
}

status h5file_create_chunk_properties(int dimensions, const hsize_t *chunk, hid_t *out)
{
    h5file_init();
    *out = H5Pcreate(H5P_DATASET_CREATE);
    bool set = *out >= 0 && H5Pset_chunk(*out, dimensions, chunk) >= 0 &&
               H5Pset_fletcher32(*out) >= 0 && H5Pset_obj_track_times(*out, 0) >= 0;
    REQUIRE(set, STATUS_INTERNAL, "HDF5 refused a chunk shape: %s", h5file_reason());
    return STATUS_OK;
}

/* Checks that all data is in this file, is not virtual, and uses only the accepted filters. */
static status check_storage(hid_t dataset, const char *path, const char *name, bool deflate)
{
    hid_t properties = H5Dget_create_plist(dataset);
    REQUIRE(properties >= 0, STATUS_DATA, "%s: /%s cannot be read: %s", path, name,
            h5file_reason());
    int external = H5Pget_external_count(properties);
    H5D_layout_t layout = H5Pget_layout(properties);
    int filters = H5Pget_nfilters(properties);
    const char *refused = NULL;
    if (external != 0) {
        refused = "uses external storage";
    } else if (layout == H5D_VIRTUAL) {
        refused = "is a virtual dataset";
    } else if (layout < 0 || filters < 0) {
        refused = "has an unreadable layout";
    }
    int filter_id = H5Z_FILTER_FLETCHER32;
    for (int i = 0; i < filters && refused == NULL; i++) {
        unsigned flags = 0, config = 0;
        size_t values = 0;
        filter_id =
            H5Pget_filter2(properties, (unsigned)i, &flags, &values, NULL, 0, NULL, &config);
        bool is_accepted = filter_id == H5Z_FILTER_FLETCHER32 ||
                           (deflate && filter_id == H5Z_FILTER_DEFLATE && i == 0);
        filter_id = is_accepted ? H5Z_FILTER_FLETCHER32 : filter_id;
        refused = is_accepted ? NULL : "uses a filter";
    }
    H5Pclose(properties);
    REQUIRE(refused == NULL || filter_id == H5Z_FILTER_FLETCHER32, STATUS_DATA,
            "%s: /%s uses the filter %d (1 is gzip); only Fletcher32 is accepted", path, name,
            filter_id);
    REQUIRE(refused == NULL, STATUS_DATA, "%s: /%s %s; refused", path, name, refused);
    return STATUS_OK;
}

hid_t h5file_float_type(enum dtype dtype)
{
    h5file_init();
    hid_t type = H5Tcopy(H5T_IEEE_F32LE);
    bool done = type >= 0;
    if (dtype == DTYPE_BF16) { /* sign, 8 bits of exponent, 7 bits of mantissa; the bias stays */
        done = done && H5Tset_fields(type, 15, 7, 8, 0, 7) >= 0 &&
               H5Tset_precision(type, 16) >= 0 && H5Tset_size(type, 2) >= 0;
    }
    if (!done) {
        H5Tclose(type);
        return H5I_INVALID_HID;
    }
    return type;
}

static status check_type(hid_t dataset, const char *path, const char *name, hid_t type)
{
    hid_t found = H5Dget_type(dataset);
    REQUIRE(found >= 0, STATUS_DATA, "%s: the type of /%s cannot be read: %s", path, name,
            h5file_reason());
    bool matches = type >= 0
                       ? H5Tequal(found, type) > 0
                       : H5Tequal(found, H5T_STD_U16LE) > 0 || H5Tequal(found, H5T_STD_U32LE) > 0;
    H5T_class_t class = H5Tget_class(found);
    size_t bytes = H5Tget_size(found);
    H5Tclose(found);
    const char *type_name = class == H5T_INTEGER ? "integer"
                            : class == H5T_FLOAT ? "float"
                                                 : "other";
    REQUIRE(matches, STATUS_DATA, "%s: /%s has another type than expected (%s of %zu bytes)%s",
            path, name, type_name, bytes,
            type >= 0 ? "" : "; uint16 and uint32, little endian, are accepted");
    return STATUS_OK;
}

static status check_shape(hid_t file, hid_t dataset, const char *path, const char *name,
                          int dimension_limit, uint64_t inflation, int64_t *out_shape,
                          int *out_dimensions)
{
    hid_t space = H5Dget_space(dataset);
    int dimensions = space >= 0 ? H5Sget_simple_extent_ndims(space) : -1;
    bool simple = dimensions >= 0 && H5Sget_simple_extent_type(space) != H5S_NULL;
    hsize_t shape[DIMENSIONS_MAX] = {0};
    bool fits = simple && dimensions <= dimension_limit && dimensions <= DIMENSIONS_MAX;
    if (fits && dimensions > 0) {
        fits = H5Sget_simple_extent_dims(space, shape, NULL) == dimensions;
    }
    H5Sclose(space);
    REQUIRE(fits, STATUS_DATA, "%s: /%s has %d dimensions, at most %d are accepted", path, name,
            dimensions, dimension_limit);
    uint64_t elements = 1;
    for (int i = 0; i < dimensions; i++) {
        bool in_range =
            shape[i] <= elements_limit && (shape[i] == 0 || elements <= elements_limit / shape[i]);
        REQUIRE(in_range, STATUS_DATA, "%s: /%s declares %llu elements along dimension %d; refused",
                path, name, (unsigned long long)shape[i], i);
        elements *= shape[i];
        out_shape[i] = (int64_t)shape[i];
    }
    hid_t type = H5Dget_type(dataset);
    uint64_t bytes = elements * H5Tget_size(type);
    H5Tclose(type);
    uint64_t stored = H5Dget_storage_size(dataset);
    hsize_t file_bytes = 0;
    H5Fget_filesize(file, &file_bytes);
    REQUIRE(bytes / inflation <= stored && stored <= file_bytes, STATUS_DATA,
            "%s: /%s declares %llu elements (%llu bytes), but stores %llu bytes in a file of %llu "
            "bytes; refused",
            path, name, (unsigned long long)elements, (unsigned long long)bytes,
            (unsigned long long)stored, (unsigned long long)file_bytes);
    *out_dimensions = dimensions;
    return STATUS_OK;
}

/* Returns the largest ratio of the elements to the stored bytes. Only chunks can be compressed. */
static uint64_t get_largest_inflation(hid_t dataset, bool deflate)
{
    hid_t properties = H5Dget_create_plist(dataset);
    bool chunked = properties >= 0 && H5Pget_layout(properties) == H5D_CHUNKED;
    H5Pclose(properties);
    return deflate && chunked ? DEFLATE_RATIO_MAX : 1;
}

static status check_link(hid_t file, const char *path, const char *name)
{
    H5L_info_t link;
    REQUIRE(H5Lget_info(file, name, &link, H5P_DEFAULT) >= 0, STATUS_DATA, "%s has no dataset /%s",
            path, name);
    REQUIRE(link.type == H5L_TYPE_HARD, STATUS_DATA, "%s: /%s is %s link; refused", path, name,
            link.type == H5L_TYPE_SOFT ? "a soft" : "an external");
    return STATUS_OK;
}

/* Checks that the link of each component of "group/name" is hard: HDF5 would follow a soft or
 * external link out of the file. */
static status check_links(hid_t file, const char *path, const char *name)
{
    char component[NAME_BYTES_MAX];
    REQUIRE(strlen(name) < sizeof component, STATUS_DATA, "%s: the name /%.60s... is too long",
            path, name);
    for (const char *slash = strchr(name, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        snprintf(component, sizeof component, "%.*s", (int)(slash - name), name);
        TRY(check_link(file, path, component));
    }
    return check_link(file, path, name);
}

static status open_dataset(hid_t file, const char *path, const char *name, hid_t type,
                           int dimension_limit, bool deflate, hid_t *out, int64_t *out_shape,
                           int *out_dimensions)
{
    *out = H5I_INVALID_HID;
    h5file_init();
    TRY(check_links(file, path, name));
    hid_t object = H5Oopen(file, name, H5P_DEFAULT);
    REQUIRE(object >= 0, STATUS_DATA, "%s: /%s cannot be opened: %s", path, name, h5file_reason());
    status result = STATUS_OK;
    REQUIRE_GOTO(result, failed, H5Iget_type(object) == H5I_DATASET, STATUS_DATA,
                 "%s: /%s is not a dataset", path, name);
    TRY_GOTO(result, failed, check_storage(object, path, name, deflate));
    TRY_GOTO(result, failed, check_type(object, path, name, type));
    TRY_GOTO(result, failed,
             check_shape(file, object, path, name, dimension_limit,
                         get_largest_inflation(object, deflate), out_shape, out_dimensions));
    *out = object;
    return STATUS_OK;
failed:
    H5Oclose(object);
    return result;
}

status h5file_open_dataset(hid_t file, const char *path, const char *name, hid_t type,
                           int dimension_limit, hid_t *out, int64_t *out_shape, int *out_dimensions)
{
    return open_dataset(file, path, name, type, dimension_limit, false, out, out_shape,
                        out_dimensions);
}

status h5file_open_deflated_dataset(hid_t file, const char *path, const char *name, hid_t type,
                                    int dimension_limit, hid_t *out, int64_t *out_shape,
                                    int *out_dimensions)
{
    return open_dataset(file, path, name, type, dimension_limit, true, out, out_shape,
                        out_dimensions);
}

/* The chunks of a dataset with one or two dimensions. The second one is 1 if there is only one. */
struct chunk_shape {
    bool chunked;
    hsize_t shape[2];
    hsize_t stored_bytes; /* of each chunk: its elements, and 4 bytes for each checksum */
};

static struct chunk_shape get_chunk_shape(hid_t dataset)
{
    struct chunk_shape c = {.shape = {1, 1}};
    hid_t properties = H5Dget_create_plist(dataset), type = H5Dget_type(dataset);
    c.chunked =
        H5Pget_layout(properties) == H5D_CHUNKED && H5Pget_chunk(properties, 2, c.shape) > 0;
    c.stored_bytes =
        c.shape[0] * c.shape[1] * H5Tget_size(type) + 4 * (hsize_t)H5Pget_nfilters(properties);
    H5Tclose(type);
    H5Pclose(properties);
    return c;
}

status h5file_check_chunks(hid_t dataset, const char *path, const char *name, const hsize_t *start,
                           const hsize_t *count)
{
    h5file_init();
    struct chunk_shape c = get_chunk_shape(dataset);
    hid_t space = H5Dget_space(dataset);
    bool matrix = H5Sget_simple_extent_ndims(space) == 2;
    H5Sclose(space);
    hsize_t column = matrix ? start[1] : 0, columns = matrix ? count[1] : 1, offset[2];
    if (!c.chunked) {
        return STATUS_OK;
    }
    REQUIRE(c.shape[0] > 0 && c.shape[1] > 0, STATUS_DATA, "%s is damaged: /%s has empty chunks",
            path, name);
    for (offset[0] = start[0] - start[0] % c.shape[0]; offset[0] < start[0] + count[0];
         offset[0] += c.shape[0]) {
        for (offset[1] = column - column % c.shape[1]; offset[1] < column + columns;
             offset[1] += c.shape[1]) {
            hsize_t stored = 0;
            bool found = H5Dget_chunk_storage_size(dataset, offset, &stored) >= 0;
            REQUIRE(found && stored == c.stored_bytes, STATUS_DATA,
                    "%s is damaged: a chunk of /%s is missing or has another size", path, name);
        }
    }
    return STATUS_OK;
}

static hid_t attribute_space(int count)
{
    hsize_t shape = (hsize_t)count;
    return count == 1 ? H5Screate(H5S_SCALAR) : H5Screate_simple(1, &shape, NULL);
}

static status write_attribute(hid_t object, const char *path, const char *name, hid_t file_type,
                              hid_t memory_type, int count, const void *values)
{
    h5file_init();
    hid_t space = attribute_space(count);
    hid_t attribute = H5Acreate2(object, name, file_type, space, H5P_DEFAULT, H5P_DEFAULT);
    bool written = attribute >= 0 && H5Awrite(attribute, memory_type, values) >= 0;
    char why[sizeof reason];
    snprintf(why, sizeof why, "%s", written ? "" : h5file_reason());
    if (attribute >= 0) {
        H5Aclose(attribute);
    }
    H5Sclose(space);
    REQUIRE(written, STATUS_WRITE, "cannot write attribute '%s' of %s: %s", name, path, why);
    return STATUS_OK;
}

status h5file_write_i64(hid_t object, const char *path, const char *name, const int64_t *values,
                        int count)
{
    return write_attribute(object, path, name, H5T_STD_I64LE, H5T_NATIVE_INT64, count, values);
}

static hid_t text_type(size_t bytes, H5T_cset_t characters)
{
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, bytes);
    H5Tset_strpad(type, H5T_STR_NULLTERM);
    H5Tset_cset(type, characters);
    return type;
}

status h5file_write_text(hid_t object, const char *path, const char *name, const char *text)
{
    size_t bytes = strlen(text) + 1;
    REQUIRE(bytes <= TEXT_BYTES_MAX, STATUS_INTERNAL,
            "attribute '%s' of %s has %zu bytes, at most %d can be written", name, path, bytes,
            TEXT_BYTES_MAX);
    h5file_init();
    hid_t type = text_type(bytes, H5T_CSET_UTF8);
    status result = write_attribute(object, path, name, type, type, 1, text);
    H5Tclose(type);
    return result;
}

/* Returns whether the attribute is a scalar (count 1) or a vector of exactly count elements. */
static bool attribute_has_shape(hid_t attribute, int count)
{
    hid_t space = H5Aget_space(attribute);
    H5S_class_t class = space >= 0 ? H5Sget_simple_extent_type(space) : H5S_NO_CLASS;
    bool matches = count == 1 && class == H5S_SCALAR;
    if (class == H5S_SIMPLE && count > 1 && H5Sget_simple_extent_ndims(space) == 1) {
        hsize_t length = 0;
        H5Sget_simple_extent_dims(space, &length, NULL);
        matches = length == (hsize_t)count;
    }
    if (space >= 0) {
        H5Sclose(space);
    }
    return matches;
}

static status open_attribute(hid_t object, const char *path, const char *name, int count,
                             hid_t *out)
{
    h5file_init();
    REQUIRE(H5Aexists(object, name) > 0, STATUS_DATA, "%s has no attribute '%s'", path, name);
    *out = H5Aopen(object, name, H5P_DEFAULT);
    REQUIRE(*out >= 0, STATUS_DATA, "%s: attribute '%s' cannot be read: %s", path, name,
            h5file_reason());
    if (!attribute_has_shape(*out, count)) {
        H5Aclose(*out);
        RAISE(STATUS_DATA, "%s: attribute '%s' has another shape than expected (%s); refused", path,
              name, count == 1 ? "a scalar" : "a short array");
    }
    return STATUS_OK;
}

status h5file_read_i64(hid_t object, const char *path, const char *name, int64_t *values, int count)
{
    hid_t attribute;
    TRY(open_attribute(object, path, name, count, &attribute));
    hid_t type = H5Aget_type(attribute);
    bool matches = H5Tequal(type, H5T_STD_I64LE) > 0;
    bool read = matches && H5Aread(attribute, H5T_NATIVE_INT64, values) >= 0;
    const char *why = read ? "" : h5file_reason();
    H5Tclose(type);
    H5Aclose(attribute);
    REQUIRE(matches, STATUS_DATA, "%s: attribute '%s' is not a 64-bit integer; refused", path,
            name);
    REQUIRE(read, STATUS_DATA, "%s: attribute '%s' cannot be read: %s", path, name, why);
    return STATUS_OK;
}

status h5file_read_text(hid_t object, const char *path, const char *name, char *out, int bytes)
{
    hid_t attribute;
    TRY(open_attribute(object, path, name, 1, &attribute));
    hid_t type = H5Aget_type(attribute);
    bool fixed = H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) == 0;
    size_t stored = fixed ? H5Tget_size(type) : 0;
    size_t needed = stored + (fixed && H5Tget_strpad(type) != H5T_STR_NULLTERM);
    bool fits = fixed && needed <= (size_t)bytes;
    bool read = false;
    const char *why = "";
    if (fits) {
        hid_t memory_type = text_type((size_t)bytes, H5Tget_cset(type));
        read = H5Aread(attribute, memory_type, out) >= 0;
        why = read ? "" : h5file_reason();
        out[bytes - 1] = '\0';
        H5Tclose(memory_type);
    }
    H5Tclose(type);
    H5Aclose(attribute);
    REQUIRE(fixed, STATUS_DATA, "%s: attribute '%s' is not a string of fixed size; refused", path,
            name);
    REQUIRE(fits, STATUS_DATA, "%s: attribute '%s' has %zu bytes, at most %d are accepted", path,
            name, stored, bytes - 1);
    REQUIRE(read, STATUS_DATA, "%s: attribute '%s' cannot be read: %s", path, name, why);
    return STATUS_OK;
}

bool h5file_has_attribute(hid_t object, const char *name)
{
    h5file_init();
    return H5Aexists(object, name) > 0;
}
