/* Reads a GGUF file from anyone. Each count and length is checked against the bytes that remain in
 * the file before memory is allocated for it. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/text_map.h"
#include "base/utf8.h"
#include "trainer/formats/gguf/gguf.h"

enum { NAME_BYTES_MAX = 1 << 16, CHUNK_ELEMENTS = 1 << 16, CHUNK_BYTES = 4 * CHUNK_ELEMENTS };

struct gguf_file {
    char path[FILE_PATH_BYTES];
    FILE *stream;
    int64_t size, position;
    struct gguf_key *keys;
    int64_t key_count;
    struct gguf_tensor *tensors;
    int64_t tensor_count;
    int64_t data_start;
    struct text_map names; /* of keys and tensors; values: index of a key, or -1 - index */
};

#define NEED(file, condition, ...)                                                                 \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            char reason[STATUS_TEXT_BYTES / 2];                                                    \
            snprintf(reason, sizeof reason, __VA_ARGS__);                                          \
            RAISE(STATUS_DATA, "%s is not a valid GGUF file: %s", (file)->path, reason);           \
        }                                                                                          \
    } while (0)

/* ---- parsing ---- */

static status read_bytes(struct gguf_file *f, void *out, size_t bytes)
{
    NEED(f, (int64_t)bytes <= f->size - f->position && fread(out, 1, bytes, f->stream) == bytes,
         "it ends at byte %" PRId64 ", within its header", f->size);
    f->position += (int64_t)bytes;
    return STATUS_OK;
}

static status read_u32(struct gguf_file *f, uint32_t *out)
{
    return read_bytes(f, out, sizeof *out);
}

/* Reads a count of elements that have at least `bytes` bytes each in the file. */
static status read_count(struct gguf_file *f, size_t bytes, const char *what, int64_t *out)
{
    uint64_t value = 0;
    TRY(read_bytes(f, &value, sizeof value));
    NEED(f, value <= (uint64_t)(f->size - f->position) / bytes,
         "the number of %s, %" PRIu64 ", is larger than the file", what, value);
    *out = (int64_t)value;
    return STATUS_OK;
}

static status read_text(struct gguf_file *f, const char *what, char **out)
{
    int64_t bytes;
    *out = NULL;
    TRY(read_count(f, 1, what, &bytes));
    TRY(ALLOCATE(*out, bytes + 1, what));
    TRY(read_bytes(f, *out, (size_t)bytes));
    NEED(f, utf8_is_valid(*out, (size_t)bytes) && memchr(*out, '\0', (size_t)bytes) == NULL,
         "one of the %s is not UTF-8, or contains a NUL byte", what);
    return STATUS_OK;
}

/* Bytes of a number in the file; 0 for the other types. */
static size_t get_number_bytes(enum gguf_value type)
{
    static const uint8_t bytes[GGUF_VALUES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < GGUF_VALUES ? bytes[type] : 0;
}

static double convert_number(enum gguf_value type, const unsigned char *data)
{
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        float f32;
        uint64_t u64;
        int64_t i64;
        double f64;
    } value;
    memcpy(&value, data, get_number_bytes(type));
    switch (type) {
    case GGUF_VALUE_U8:
    case GGUF_VALUE_BOOL:
        return value.u8;
    case GGUF_VALUE_I8:
        return value.i8;
    case GGUF_VALUE_U16:
        return value.u16;
    case GGUF_VALUE_I16:
        return value.i16;
    case GGUF_VALUE_U32:
        return value.u32;
    case GGUF_VALUE_I32:
        return value.i32;
    case GGUF_VALUE_F32:
        return (double)value.f32;
    case GGUF_VALUE_U64:
        return (double)value.u64;
    case GGUF_VALUE_I64:
        return (double)value.i64;
    case GGUF_VALUE_F64:
        return value.f64;
    default:
        return NAN;
    }
}

static status read_numbers(struct gguf_file *f, struct gguf_key *key)
{
    size_t bytes = get_number_bytes(key->type);
    TRY(ALLOCATE(key->numbers, key->count + 1, "the metadata of a GGUF file"));
    for (int64_t i = 0; i < key->count; i++) {
        unsigned char data[8];
        TRY(read_bytes(f, data, bytes));
        key->numbers[i] = convert_number(key->type, data);
    }
    return STATUS_OK;
}

static status read_texts(struct gguf_file *f, struct gguf_key *key)
{
    TRY(ALLOCATE(key->texts, key->count + 1, "the metadata of a GGUF file"));
    for (int64_t i = 0; i < key->count; i++) {
        TRY(read_text(f, "texts", &key->texts[i]));
    }
    return STATUS_OK;
}

/* Adds a name to the map. A name may occur once. */
static status add_name(struct gguf_file *f, const char *name, int64_t value)
{
    struct text_slot *slot;
    bool is_new;
    TRY(text_map_find_or_add(&f->names, NULL, name, strlen(name), &slot, &is_new));
    NEED(f, is_new, "it contains %.80s twice", name);
    slot->value = value;
    return STATUS_OK;
}

static status read_key(struct gguf_file *f, int64_t index)
{
    struct gguf_key *key = &f->keys[index];
    uint32_t type;
    TRY(read_text(f, "names of keys", &key->name));
    NEED(f, key->name[0] != '\0' && strlen(key->name) < NAME_BYTES_MAX, "a key has no usable name");
    TRY(add_name(f, key->name, index));
    TRY(read_u32(f, &type));
    key->count = 1;
    key->is_list = type == GGUF_VALUE_ARRAY;
    if (key->is_list) {
        TRY(read_u32(f, &type));
        size_t bytes = type < GGUF_VALUES ? get_number_bytes(type) : 0;
        TRY(read_count(f, bytes > 0 ? bytes : 8, "elements of a list", &key->count));
    }
    key->type = type < GGUF_VALUES ? (enum gguf_value)type : GGUF_VALUES;
    NEED(f, key->type == GGUF_VALUE_TEXT || get_number_bytes(key->type) > 0,
         "%.80s has the type %" PRIu32 ", which is not supported", key->name, type);
    return key->type == GGUF_VALUE_TEXT ? read_texts(f, key) : read_numbers(f, key);
}

static bool is_known_type(int type)
{
    return type == GGUF_F32 || type == GGUF_F16 || type == GGUF_BF16 || type == GGUF_Q8_0 ||
           type == GGUF_Q4_0;
}

static status read_shape(struct gguf_file *f, struct gguf_tensor *t)
{
    uint32_t dimensions;
    TRY(read_u32(f, &dimensions));
    NEED(f, dimensions >= 1 && dimensions <= GGUF_DIMENSIONS_MAX,
         "tensor %s has %" PRIu32 " dimensions", t->name, dimensions);
    t->dimensions = (int)dimensions;
    t->elements = 1;
    for (int i = 0; i < t->dimensions; i++) {
        uint64_t length = 0;
        TRY(read_bytes(f, &length, sizeof length));
        NEED(f, length > 0 && length <= (uint64_t)(INT64_MAX / 8 / t->elements),
             "tensor %s has a dimension of %" PRIu64, t->name, length);
        t->shape[i] = (int64_t)length;
        t->elements *= t->shape[i];
    }
    return STATUS_OK;
}

static status read_tensor(struct gguf_file *f, int64_t index)
{
    struct gguf_tensor *t = &f->tensors[index];
    char *name;
    uint32_t type;
    uint64_t offset = 0;
    status result = read_text(f, "names of tensors", &name);
    if (result == STATUS_OK) {
        snprintf(t->name, sizeof t->name, "%s", name);
        bool fits = name[0] != '\0' && strlen(name) < sizeof t->name;
        free(name);
        NEED(f, fits, "a tensor has no usable name");
    } else {
        free(name);
        return result;
    }
    TRY(add_name(f, t->name, -1 - index));
    TRY(read_shape(f, t));
    TRY(read_u32(f, &type));
    TRY(read_bytes(f, &offset, sizeof offset));
    NEED(f, offset <= (uint64_t)f->size, "tensor %s lies outside the file", t->name);
    t->type = type <= INT32_MAX ? (int)type : -1;
    t->first_byte = (int64_t)offset;
    return STATUS_OK;
}

/* Converts the offsets of the tensors to positions in the file and checks them. */
static status place_tensors(struct gguf_file *f)
{
    const struct gguf_key *key = gguf_find_key(f, "general.alignment");
    double value =
        key != NULL && key->numbers != NULL && !key->is_list ? key->numbers[0] : GGUF_ALIGNMENT;
    NEED(f, value >= 1 && value <= 1 << 20, "general.alignment is %g", value);
    int64_t alignment = (int64_t)value;
    f->data_start = number_round_up(f->position, alignment);
    for (int64_t i = 0; i < f->tensor_count; i++) {
        struct gguf_tensor *t = &f->tensors[i];
        bool has_blocks = t->type == GGUF_Q8_0 || t->type == GGUF_Q4_0;
        NEED(f, !has_blocks || t->shape[0] % GGUF_BLOCK == 0,
             "the rows of tensor %s are not a multiple of %d", t->name, GGUF_BLOCK);
        int64_t bytes = is_known_type(t->type)
                            ? (int64_t)gguf_type_bytes((enum gguf_type)t->type, t->elements)
                            : 0;
        t->first_byte += f->data_start;
        NEED(f, t->first_byte <= f->size && bytes <= f->size - t->first_byte,
             "tensor %s ends after the file", t->name);
    }
    return STATUS_OK;
}

static status read_header(struct gguf_file *f)
{
    char magic[4];
    uint32_t version;
    TRY(read_bytes(f, magic, sizeof magic));
    NEED(f, memcmp(magic, "GGUF", sizeof magic) == 0, "it does not begin with 'GGUF'");
    TRY(read_u32(f, &version));
    NEED(f, version == 2 || version == 3, "its version is %" PRIu32 "; 2 and 3 are supported",
         version);
    TRY(read_count(f, 24, "tensors", &f->tensor_count));
    TRY(read_count(f, 13, "keys", &f->key_count));
    TRY(ALLOCATE(f->keys, f->key_count + 1, "the metadata of a GGUF file"));
    TRY(ALLOCATE(f->tensors, f->tensor_count + 1, "the tensors of a GGUF file"));
    for (int64_t i = 0; i < f->key_count; i++) {
        TRY(read_key(f, i));
    }
    for (int64_t i = 0; i < f->tensor_count; i++) {
        TRY(read_tensor(f, i));
    }
    return place_tensors(f);
}

status gguf_open(const char *path, struct gguf_file **out)
{
    struct stat about;
    TRY(ALLOCATE(*out, 1, path));
    struct gguf_file *f = *out;
    snprintf(f->path, sizeof f->path, "%s", path);
    int descriptor = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    f->stream = descriptor >= 0 ? fdopen(descriptor, "rb") : NULL;
    status result = STATUS_OK;
    if (f->stream == NULL) {
        result = RAISE_STATUS(status_from_errno(errno, STATUS_NO_INPUT, STATUS_NO_INPUT),
                              "cannot open %s: %s", path, strerror(errno));
    } else if (fstat(descriptor, &about) != 0 || !S_ISREG(about.st_mode)) {
        result = RAISE_STATUS(STATUS_DATA, "%s is not a regular file", path);
    } else {
        f->size = about.st_size;
        result = read_header(f);
    }
    if (result != STATUS_OK) {
        gguf_close(out);
    }
    return result;
}

void gguf_close(struct gguf_file **file)
{
    struct gguf_file *f = *file;
    if (f == NULL) {
        return;
    }
    for (int64_t i = 0; i < f->key_count && f->keys != NULL; i++) {
        for (int64_t j = 0; j < f->keys[i].count && f->keys[i].texts != NULL; j++) {
            free(f->keys[i].texts[j]);
        }
        free(f->keys[i].texts);
        free(f->keys[i].numbers);
        free(f->keys[i].name);
    }
    text_map_free(&f->names);
    free(f->keys);
    free(f->tensors);
    if (f->stream != NULL) {
        (void)fclose(f->stream);
    }
    free(f);
    *file = NULL;
}

/* ---- access ---- */

const char *gguf_path(const struct gguf_file *file)
{
    return file->path;
}

const struct gguf_key *gguf_find_key(const struct gguf_file *file, const char *name)
{
    const struct text_slot *slot = text_map_find(&file->names, name, strlen(name));
    return slot != NULL && slot->value >= 0 ? &file->keys[slot->value] : NULL;
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf_file *file, const char *name)
{
    const struct text_slot *slot = text_map_find(&file->names, name, strlen(name));
    return slot != NULL && slot->value < 0 ? &file->tensors[-1 - slot->value] : NULL;
}

static status require_known_type(const struct gguf_file *file, const struct gguf_tensor *t)
{
    REQUIRE(is_known_type(t->type), STATUS_UNAVAILABLE,
            "%s: tensor %s has the GGUF type %d; f32, f16, bf16, q8_0 and q4_0 are supported",
            file->path, t->name, t->type);
    return STATUS_OK;
}

/* Reads the bytes of at most CHUNK_ELEMENTS elements from `first` on to data. */
static status read_chunk(const struct gguf_file *file, const struct gguf_tensor *t, int64_t first,
                         unsigned char *data, int64_t *elements, size_t *bytes)
{
    enum gguf_type type = (enum gguf_type)t->type;
    int64_t left = t->elements - first;
    *elements = number_min(left, CHUNK_ELEMENTS);
    *bytes = gguf_type_bytes(type, *elements);
    off_t place = (off_t)(t->first_byte + (int64_t)gguf_type_bytes(type, first));
    ssize_t got = pread(fileno(file->stream), data, *bytes, place);
    REQUIRE(got == (ssize_t)*bytes, STATUS_DATA, "cannot read tensor %s of %s: %s", t->name,
            file->path, got < 0 ? strerror(errno) : "the file was truncated while it was read");
    return STATUS_OK;
}

status gguf_read_tensor(const struct gguf_file *file, const struct gguf_tensor *t, float *out)
{
    unsigned char *data;
    int64_t n;
    size_t bytes;
    TRY(require_known_type(file, t));
    TRY(ALLOCATE(data, CHUNK_BYTES, "reading a GGUF file"));
    status result = STATUS_OK;
    for (int64_t done = 0; done < t->elements && result == STATUS_OK; done += n) {
        result = read_chunk(file, t, done, data, &n, &bytes);
        if (result == STATUS_OK) {
            gguf_decode((enum gguf_type)t->type, data, n, out + done);
        }
    }
    free(data);
    return result;
}

status gguf_compare_tensors(const struct gguf_file *file, const struct gguf_tensor *a,
                            const struct gguf_tensor *b, bool *equal)
{
    unsigned char *data;
    int64_t n;
    size_t bytes;
    *equal = a->type == b->type && a->elements == b->elements;
    TRY(require_known_type(file, a));
    TRY(ALLOCATE(data, 2 * CHUNK_BYTES, "reading a GGUF file"));
    status result = STATUS_OK;
    for (int64_t done = 0; done < a->elements && *equal && result == STATUS_OK; done += n) {
        result = read_chunk(file, a, done, data, &n, &bytes);
        if (result == STATUS_OK) {
            result = read_chunk(file, b, done, data + CHUNK_BYTES, &n, &bytes);
        }
        *equal = result == STATUS_OK && memcmp(data, data + CHUNK_BYTES, bytes) == 0;
    }
    free(data);
    return result;
}
