/* Reads safetensors files. The header is parsed one tensor at a time, so that the memory is at most
 * the header and 128 bytes per tensor. Every number in it is bounded before it is used. The
 * tensors, sorted by their first byte, must cover the data without gaps and overlaps. */
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
#include "base/number.h"
#include "base/tensor.h"
#include "trainer/formats/json/json_members.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "elements are read without a byte swap");

enum { LENGTH_BYTES = 8, BLOCK_ELEMENTS = 1 << 14 };
enum { TENSORS_MAX = 1 << 18, DESCRIPTION_BYTES_MAX = 4096 };
static const int64_t header_limit_bytes = 100000000; /* limit of the format */
static const int64_t elements_max = (int64_t)1 << 56;

struct safetensors {
    char path[FILE_PATH_BYTES];
    int descriptor;
    int64_t bytes, data_first; /* file size; offset of the first tensor */
    char *text;                /* the header, which contains the names */
    struct safetensors_tensor *tensors;
    int count;
    int64_t capacity;
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

static status parse_tensor(struct safetensors *f, char *name, const json_t *item)
{
    int element_bytes = 0;
    REQUIRE(f->count < TENSORS_MAX, STATUS_DATA, "%s: more than %d tensors", f->path, TENSORS_MAX);
    TRY(RESERVE(f->tensors, f->capacity, f->count + 1, f->path));
    struct safetensors_tensor *t = &f->tensors[f->count++];
    *t = (struct safetensors_tensor){.name = name};
    TRY(parse_dtype(f, item, t, &element_bytes));
    TRY(parse_shape(f, item, t));
    return parse_offsets(f, item, element_bytes, t);
}

/* ---- the header ---- */

static status check_metadata(const struct safetensors *f, struct json_members *header)
{
    char *key;
    REQUIRE(json_members_is_next(header, '{'), STATUS_DATA, "%s: __metadata__ is not an object",
            f->path);
    TRY(json_members_begin(header));
    TRY(json_members_next(header, &key));
    while (key != NULL) {
        REQUIRE(json_members_is_next(header, '"'), STATUS_DATA,
                "%s: __metadata__: %.200s is not a string", f->path, key);
        TRY(json_members_check_text(header));
        TRY(json_members_next(header, &key));
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
    for (int i = 1; i < f->count; i++) {
        REQUIRE(strcmp(f->by_name[i - 1]->name, f->by_name[i]->name) != 0, STATUS_DATA,
                "%s: duplicate tensor %.200s", f->path, f->by_name[i]->name);
    }
    return STATUS_OK;
}

static void sort_offsets(struct safetensors *f)
{
    if (f->count > 1) {
        qsort(f->tensors, (size_t)f->count, sizeof *f->tensors, compare_offsets);
    }
}

/* Checks that each byte of the data belongs to exactly one tensor. */
static status check_offsets(const struct safetensors *f)
{
    int64_t end = f->data_first;
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

static status parse_member(struct safetensors *f, struct json_members *header, char *name)
{
    json_t *item;
    if (strcmp(name, "__metadata__") == 0) {
        return check_metadata(f, header);
    }
    REQUIRE(json_members_is_next(header, '{'), STATUS_DATA,
            "%s: the description of %.200s is not an object", f->path, name);
    TRY(json_members_read(header, DESCRIPTION_BYTES_MAX, &item));
    status result = parse_tensor(f, name, item);
    json_decref(item);
    return result;
}

static status parse_header(struct safetensors *f, struct json_members *header)
{
    char *name;
    TRY(json_members_begin(header));
    TRY(json_members_next(header, &name));
    while (name != NULL) {
        TRY(parse_member(f, header, name));
        TRY(json_members_next(header, &name));
    }
    TRY(json_members_finish(header));
    sort_offsets(f);
    TRY(sort_names(f));
    return check_offsets(f);
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
    char source[FILE_PATH_BYTES + 16];
    TRY(read_length(f, &length));
    TRY(ALLOCATE(f->text, (size_t)length + 1, f->path));
    f->data_first = LENGTH_BYTES + length;
    TRY(read_bytes(f, LENGTH_BYTES, (size_t)length, f->text));
    snprintf(source, sizeof source, "%s: the header", f->path);
    struct json_members header = {.source = source, .text = f->text, .bytes = (size_t)length};
    return parse_header(f, &header);
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
    free(f->by_name);
    free(f->tensors);
    free(f->text);
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
    struct safetensors_tensor wanted = {.name = name};
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
        int64_t left = count - done, n = number_min(left, BLOCK_ELEMENTS);
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
