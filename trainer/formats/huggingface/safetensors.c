/* Reads safetensors files. jansson parses the header. Every number in it is bounded before it is
 * used. The tensors, sorted by their first byte, must cover the data without gaps and overlaps. */
#include "trainer/formats/huggingface/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/tensor.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "elements are read without a byte swap");

enum { LENGTH_BYTES = 8, BLOCK_ELEMENTS = 1 << 14 };
static const int64_t header_limit_bytes = 100000000; /* limit of the format */
static const int64_t elements_max = (int64_t)1 << 56;

struct safetensors {
    char path[FILE_PATH_BYTES];
    int descriptor;
    int64_t bytes, data_first; /* file size; offset of the first tensor */
    struct safetensors_tensor *tensors;
    int count;
    const struct safetensors_tensor **by_name; /* [count] sorted by name */
};

/* ---- bytes ---- */

static status read_bytes(const struct safetensors *f, int64_t first, size_t count, void *out)
{
    char *buffer = out;
    for (size_t done = 0; done < count;) {
        ssize_t bytes_read =
            pread(f->descriptor, buffer + done, count - done, first + (int64_t)done);
        if (bytes_read < 0 && errno == EINTR) {
            continue;
        }
        REQUIRE(bytes_read >= 0, STATUS_DATA, "%s: cannot read at byte %" PRId64 ": %s", f->path,
                first + (int64_t)done, strerror(errno));
        REQUIRE(bytes_read > 0, STATUS_DATA,
                "%s: the file ended at byte %" PRId64 " while it was read", f->path,
                first + (int64_t)done);
        done += (size_t)bytes_read;
    }
    return STATUS_OK;
}

/* ---- one tensor of the header ---- */

struct dtype_row {
    const char *name;
    int bytes;
    enum safetensors_dtype dtype;
};

static const struct dtype_row dtype_rows[] = {
    {"F32", 4, SAFETENSORS_F32},       {"F16", 2, SAFETENSORS_F16},
    {"BF16", 2, SAFETENSORS_BF16},     {"BOOL", 1, SAFETENSORS_OTHER},
    {"U8", 1, SAFETENSORS_OTHER},      {"I8", 1, SAFETENSORS_OTHER},
    {"F8_E5M2", 1, SAFETENSORS_OTHER}, {"F8_E4M3", 1, SAFETENSORS_OTHER},
    {"F8_E8M0", 1, SAFETENSORS_OTHER}, {"I16", 2, SAFETENSORS_OTHER},
    {"U16", 2, SAFETENSORS_OTHER},     {"I32", 4, SAFETENSORS_OTHER},
    {"U32", 4, SAFETENSORS_OTHER},     {"F64", 8, SAFETENSORS_OTHER},
    {"I64", 8, SAFETENSORS_OTHER},     {"U64", 8, SAFETENSORS_OTHER},
};

static const struct dtype_row *find_dtype(const char *name)
{
    for (int i = 0; name != NULL && i < COUNT(dtype_rows); i++) {
        if (strcmp(dtype_rows[i].name, name) == 0) {
            return &dtype_rows[i];
        }
    }
    return NULL;
}

static status parse_dtype(const struct safetensors *f, const json_t *item,
                          struct safetensors_tensor *t, int *bytes)
{
    const char *name = json_string_value(json_object_get(item, "dtype"));
    REQUIRE(name != NULL, STATUS_DATA, "%s: %s: dtype is missing or not a string", f->path,
            t->name);
    const struct dtype_row *row = find_dtype(name);
    REQUIRE(row != NULL, STATUS_DATA, "%s: %s: dtype %.40s is not known", f->path, t->name, name);
    snprintf(t->dtype_name, sizeof t->dtype_name, "%s", row->name);
    t->dtype = row->dtype;
    *bytes = row->bytes;
    return STATUS_OK;
}

static status parse_shape(const struct safetensors *f, const json_t *item,
                          struct safetensors_tensor *t)
{
    const json_t *shape = json_object_get(item, "shape");
    REQUIRE(json_is_array(shape), STATUS_DATA, "%s: %s: shape is missing or not a list", f->path,
            t->name);
    REQUIRE(json_array_size(shape) <= SAFETENSORS_DIMENSIONS_MAX, STATUS_DATA,
            "%s: %s: %zu dimensions; at most %d are supported", f->path, t->name,
            json_array_size(shape), SAFETENSORS_DIMENSIONS_MAX);
    t->dimensions = (int)json_array_size(shape);
    t->elements = 1;
    for (int d = 0; d < t->dimensions; d++) {
        const json_t *extent = json_array_get(shape, (size_t)d);
        int64_t n = (int64_t)json_integer_value(extent);
        REQUIRE(json_is_integer(extent) && n >= 0, STATUS_DATA,
                "%s: %s: extent %d of its shape is not an integer of 0 or more", f->path, t->name,
                d);
        REQUIRE(n == 0 || t->elements <= elements_max / n, STATUS_DATA,
                "%s: %s: its shape has more than 2^56 elements", f->path, t->name);
        t->shape[d] = n;
        t->elements *= n;
    }
    return STATUS_OK;
}

static status parse_offsets(const struct safetensors *f, const json_t *item, int element_bytes,
                            struct safetensors_tensor *t)
{
    const json_t *offsets = json_object_get(item, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    REQUIRE(json_array_size(offsets) == 2 && json_is_integer(first) && json_is_integer(end),
            STATUS_DATA, "%s: %s: data_offsets are not two integers", f->path, t->name);
    int64_t a = (int64_t)json_integer_value(first), b = (int64_t)json_integer_value(end);
    int64_t data_bytes = f->bytes - f->data_first;
    REQUIRE(a >= 0 && a <= b && b <= data_bytes, STATUS_DATA,
            "%s: %s: data_offsets [%" PRId64 ", %" PRId64 "] are not within the %" PRId64
            " bytes of data: the file is truncated or damaged; download it again",
            f->path, t->name, a, b, data_bytes);
    REQUIRE(b - a == t->elements * element_bytes, STATUS_DATA,
            "%s: %s: its data_offsets span %" PRId64 " bytes, its shape and dtype %s need %" PRId64,
            f->path, t->name, b - a, t->dtype_name, t->elements * element_bytes);
    t->first_byte = f->data_first + a;
    t->end_byte = f->data_first + b;
    return STATUS_OK;
}

static status parse_tensor(struct safetensors *f, const char *name, const json_t *item)
{
    struct safetensors_tensor *t = &f->tensors[f->count];
    int element_bytes = 0;
    REQUIRE(json_is_object(item), STATUS_DATA, "%s: the description of %.200s is not an object",
            f->path, name);
    t->name = strdup(name);
    REQUIRE(t->name != NULL, STATUS_INTERNAL, "out of memory for the header of %s", f->path);
    f->count++;
    TRY(parse_dtype(f, item, t, &element_bytes));
    TRY(parse_shape(f, item, t));
    return parse_offsets(f, item, element_bytes, t);
}

/* ---- the header ---- */

static status check_metadata(const struct safetensors *f, const json_t *metadata)
{
    const char *key;
    json_t *value;
    REQUIRE(json_is_object(metadata), STATUS_DATA, "%s: __metadata__ is not an object", f->path);
    json_object_foreach((json_t *)metadata, key, value)
    {
        REQUIRE(json_is_string(value), STATUS_DATA, "%s: __metadata__: %.200s is not a string",
                f->path, key);
    }
    return STATUS_OK;
}

static int compare_offsets(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;
    if (x->first_byte != y->first_byte) {
        return x->first_byte < y->first_byte ? -1 : 1;
    }
    return (x->end_byte > y->end_byte) - (x->end_byte < y->end_byte);
}

static int compare_names(const void *a, const void *b)
{
    const struct safetensors_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static status sort_names(struct safetensors *f)
{
    TRY(ALLOCATE(f->by_name, (size_t)f->count + 1, f->path));
    for (int i = 0; i < f->count; i++) {
        f->by_name[i] = &f->tensors[i];
    }
    qsort(f->by_name, (size_t)f->count, sizeof *f->by_name, compare_names);
    return STATUS_OK;
}

/* Checks that each byte of the data belongs to exactly one tensor. */
static status check_offsets(struct safetensors *f)
{
    int64_t end = f->data_first;
    if (f->count > 1) {
        qsort(f->tensors, (size_t)f->count, sizeof *f->tensors, compare_offsets);
    }
    for (int i = 0; i < f->count; i++) {
        const struct safetensors_tensor *t = &f->tensors[i];
        REQUIRE(t->first_byte >= end, STATUS_DATA, "%s: the bytes of %s and %s overlap", f->path,
                f->tensors[i > 0 ? i - 1 : 0].name, t->name);
        REQUIRE(t->first_byte == end, STATUS_DATA,
                "%s: %" PRId64 " bytes before %s belong to no tensor", f->path, t->first_byte - end,
                t->name);
        end = t->end_byte;
    }
    REQUIRE(end == f->bytes, STATUS_DATA, "%s: the last %" PRId64 " bytes belong to no tensor",
            f->path, f->bytes - end);
    return STATUS_OK;
}

static status parse_header(struct safetensors *f, json_t *header)
{
    const char *name;
    json_t *item;
    REQUIRE(json_is_object(header), STATUS_DATA, "%s: the header is not a JSON object", f->path);
    TRY(ALLOCATE(f->tensors, json_object_size(header) + 1, f->path));
    json_object_foreach(header, name, item)
    {
        if (strcmp(name, "__metadata__") == 0) {
            TRY(check_metadata(f, item));
        } else {
            TRY(parse_tensor(f, name, item));
        }
    }
    TRY(check_offsets(f));
    return sort_names(f);
}

static status read_length(struct safetensors *f, int64_t *out)
{
    unsigned char raw[LENGTH_BYTES];
    REQUIRE(f->bytes >= LENGTH_BYTES, STATUS_DATA,
            "%s: %" PRId64
            " bytes are not a safetensors file (a Git LFS pointer, or an interrupted "
            "download?)",
            f->path, f->bytes);
    TRY(read_bytes(f, 0, sizeof raw, raw));
    uint64_t length = 0;
    memcpy(&length, raw, sizeof length);
    REQUIRE(length <= (uint64_t)(f->bytes - LENGTH_BYTES) && length <= (uint64_t)header_limit_bytes,
            STATUS_DATA,
            "%s: a header of %" PRIu64 " bytes in a file of %" PRId64
            " bytes: not a safetensors file, or truncated",
            f->path, length, f->bytes);
    *out = (int64_t)length;
    return STATUS_OK;
}

static status read_header(struct safetensors *f)
{
    int64_t length = 0;
    TRY(read_length(f, &length));
    char *text = NULL;
    TRY(ALLOCATE(text, (size_t)length + 1, f->path));
    f->data_first = LENGTH_BYTES + length;
    status result = read_bytes(f, LENGTH_BYTES, (size_t)length, text);
    if (result == STATUS_OK) {
        json_error_t error;
        json_t *header = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &error);
        result = header != NULL ? parse_header(f, header)
                                : RAISE_STATUS(STATUS_DATA, "%s: the header, line %d column %d: %s",
                                               f->path, error.line, error.column, error.text);
        json_decref(header);
    }
    free(text);
    return result;
}

static status open_file(struct safetensors *f)
{
    struct stat info;
    f->descriptor = open(f->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    REQUIRE(f->descriptor >= 0, status_from_errno(errno, STATUS_NO_INPUT, STATUS_DATA),
            "cannot open %s: %s", f->path, strerror(errno));
    REQUIRE(fstat(f->descriptor, &info) == 0 && S_ISREG(info.st_mode), STATUS_DATA,
            "%s is not a regular file", f->path);
    f->bytes = info.st_size;
    return read_header(f);
}

status safetensors_open(const char *path, struct safetensors **out)
{
    TRY(ALLOCATE(*out, 1, path));
    (*out)->descriptor = -1;
    snprintf((*out)->path, sizeof(*out)->path, "%s", path);
    status result = open_file(*out);
    if (result != STATUS_OK) {
        safetensors_close(out);
    }
    return result;
}

void safetensors_close(struct safetensors **file)
{
    struct safetensors *f = *file;
    if (f == NULL) {
        return;
    }
    if (f->descriptor >= 0) {
        close(f->descriptor);
    }
    for (int i = 0; i < f->count; i++) {
        free(f->tensors[i].name);
    }
    free(f->by_name);
    free(f->tensors);
    free(f);
    *file = NULL;
}

const char *safetensors_path(const struct safetensors *file)
{
    return file->path;
}

const struct safetensors_tensor *safetensors_tensors(const struct safetensors *file, int *count)
{
    *count = file->count;
    return file->tensors;
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *file, const char *name)
{
    struct safetensors_tensor wanted = {.name = (char *)name};
    const struct safetensors_tensor *key = &wanted;
    const struct safetensors_tensor **found =
        bsearch(&key, file->by_name, (size_t)file->count, sizeof *file->by_name, compare_names);
    return found == NULL ? NULL : *found;
}

/* ---- elements ---- */

static status read_halves(const struct safetensors *f, const struct safetensors_tensor *t,
                          int64_t first, int64_t count, float *out)
{
    uint16_t halves[BLOCK_ELEMENTS];
    for (int64_t done = 0; done < count;) {
        int64_t left = count - done, n = left < BLOCK_ELEMENTS ? left : BLOCK_ELEMENTS;
        TRY(read_bytes(f, t->first_byte + (first + done) * 2, (size_t)n * 2, halves));
        for (int64_t i = 0; i < n; i++) {
            out[done + i] =
                t->dtype == SAFETENSORS_F16 ? f16_to_f32(halves[i]) : bf16_to_f32(halves[i]);
        }
        done += n;
    }
    return STATUS_OK;
}

status safetensors_read(const struct safetensors *f, const struct safetensors_tensor *t,
                        int64_t first, int64_t count, float *out)
{
    REQUIRE(first >= 0 && count >= 0 && count <= t->elements && first <= t->elements - count,
            STATUS_INTERNAL, "%s: elements [%" PRId64 ", +%" PRId64 ") are outside of %s", f->path,
            first, count, t->name);
    REQUIRE(t->dtype != SAFETENSORS_OTHER, STATUS_DATA,
            "%s: %s has dtype %s; supported are F32, F16 and BF16: save the model in one of them",
            f->path, t->name, t->dtype_name);
    if (t->dtype == SAFETENSORS_F32) {
        return read_bytes(f, t->first_byte + first * 4, (size_t)count * 4, out);
    }
    return read_halves(f, t, first, count, out);
}
