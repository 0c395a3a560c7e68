/* Files in the GGUF format of llama.cpp, version 3, little-endian:
 *
 *     "GGUF", u32 version, u64 number of tensors, u64 number of metadata keys
 *     the metadata: for each key its name, the type of its value, and the value
 *     the tensors: for each one its name, dimensions, type, and offset in the data
 *     padding up to a multiple of 32 bytes, then the data of the tensors, each one padded
 *
 * A text is a u64 length and its bytes. The first dimension of a tensor is the length of its rows.
 *
 * Source    docs/gguf.md of github.com/ggml-org/ggml */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* The types of elements that this project reads and writes, with the numbers of the format. */
enum gguf_type { GGUF_F32 = 0, GGUF_F16 = 1, GGUF_Q4_0 = 2, GGUF_Q8_0 = 8, GGUF_BF16 = 30 };

enum {
    GGUF_BLOCK = 32, /* elements of a block of GGUF_Q4_0 and GGUF_Q8_0 */
    GGUF_NAME_BYTES = 64,
    GGUF_ALIGNMENT = 32
};

/* Types of metadata values, with the numbers of the format. */
enum gguf_value {
    GGUF_VALUE_U8 = 0,
    GGUF_VALUE_I8,
    GGUF_VALUE_U16,
    GGUF_VALUE_I16,
    GGUF_VALUE_U32,
    GGUF_VALUE_I32,
    GGUF_VALUE_F32,
    GGUF_VALUE_BOOL,
    GGUF_VALUE_TEXT,
    GGUF_VALUE_ARRAY,
    GGUF_VALUE_U64,
    GGUF_VALUE_I64,
    GGUF_VALUE_F64,
    GGUF_VALUES
};

/* gguf_type_name - return the name of a type: "f32", "f16", "bf16", "q8_0" or "q4_0". */
const char *gguf_type_name(enum gguf_type type);

/* gguf_type_bytes - return the bytes of `elements` elements, which fill whole blocks. */
size_t gguf_type_bytes(enum gguf_type type, int64_t elements);

/* gguf_encode - convert f32 values to a type.
 *
 * Units     count is a multiple of GGUF_BLOCK for GGUF_Q8_0 and GGUF_Q4_0
 * Numerics  f16 and bf16 are rounded to nearest even. A block of q8_0 has the scale max|x| / 127. A
 *           block of q4_0 has the scale x / -8 for the x with the largest magnitude. Both scales
 *           are f16 */
void gguf_encode(enum gguf_type type, const float *values, int64_t count, void *out);

/* gguf_decode - convert elements of a type to f32; the reverse of gguf_encode. */
void gguf_decode(enum gguf_type type, const void *data, int64_t count, float *out);

/* ---- writing ---- */

struct gguf_writer;

/* gguf_writer_create - begin a file. It gets its name when gguf_writer_finish publishes it.
 *
 * Order     metadata (gguf_put_...) and tensors (gguf_add_tensor), then the data of each tensor in
 *           the order of gguf_add_tensor (gguf_write_tensor), then gguf_writer_finish
 * Errors    STATUS_CREATE if the path exists or cannot be created; STATUS_INTERNAL (memory) */
status gguf_writer_create(const char *path, struct gguf_writer **out);

/* gguf_put_u32 - add a metadata key with an unsigned integer. Lack of memory is an error of the
 * first gguf_write_tensor; this also holds for the functions below. */
void gguf_put_u32(struct gguf_writer *w, const char *key, int64_t value);

/* gguf_put_f32 - add a metadata key with a number, rounded to f32. */
void gguf_put_f32(struct gguf_writer *w, const char *key, double value);

/* gguf_put_bool - add a metadata key with true or false. */
void gguf_put_bool(struct gguf_writer *w, const char *key, bool value);

/* gguf_put_text - add a metadata key with a text. */
void gguf_put_text(struct gguf_writer *w, const char *key, const char *text);

/* gguf_begin_array - add a metadata key with a list; `count` calls of a gguf_add_... function of
 * the same type must follow. */
void gguf_begin_array(struct gguf_writer *w, const char *key, enum gguf_value type, int64_t count);

/* gguf_add_text - add an element to a list of texts: the prefix and the text as one text. */
void gguf_add_text(struct gguf_writer *w, const char *prefix, const char *text);

/* gguf_add_i32 - add an element to a list of integers. */
void gguf_add_i32(struct gguf_writer *w, int32_t value);

/* gguf_add_f32 - add an element to a list of numbers. */
void gguf_add_f32(struct gguf_writer *w, float value);

/* gguf_add_bytes - add all elements of a list of GGUF_VALUE_U8. */
void gguf_add_bytes(struct gguf_writer *w, const uint8_t *data, size_t bytes);

/* gguf_add_bool - add an element to a list of truth values. */
void gguf_add_bool(struct gguf_writer *w, bool value);

/* gguf_add_tensor - declare a tensor of `rows` rows of `columns` elements; rows == 0: a vector.
 *
 * Errors    STATUS_INTERNAL if memory runs out or the name is too long */
status gguf_add_tensor(struct gguf_writer *w, const char *name, enum gguf_type type, int64_t rows,
                       int64_t columns);

/* gguf_write_tensor - write all elements of the next tensor, row by row.
 *
 * Errors    STATUS_WRITE naming the file, also for too little free space; STATUS_INTERNAL */
status gguf_write_tensor(struct gguf_writer *w, const float *values);

/* gguf_writer_finish - publish the file if `result` is STATUS_OK, otherwise delete it.
 *
 * Errors    result; STATUS_WRITE, STATUS_CREATE */
status gguf_writer_finish(struct gguf_writer **w, status result);

/* ---- reading ---- */

/* The value of a metadata key. */
struct gguf_key {
    char *name;
    enum gguf_value type; /* of the value, or of the elements of a list */
    bool is_list;
    int64_t count;   /* 1, or the elements of a list */
    double *numbers; /* [count]; NULL for texts. Integers above 2^53 are rounded */
    char **texts;    /* [count], each ends with a NUL; NULL for numbers */
};

enum { GGUF_DIMENSIONS_MAX = 4 };

struct gguf_tensor {
    char name[GGUF_NAME_BYTES];
    int type; /* enum gguf_type, or the number of a type that cannot be read */
    int dimensions;
    int64_t shape[GGUF_DIMENSIONS_MAX]; /* shape[0] is the length of a row */
    int64_t elements;
    int64_t first_byte; /* in the file */
};

struct gguf_file;

/* gguf_open - open a file, and read and check its metadata and its list of tensors. Files are not
 * trusted: each length is compared with the size of the file, and lists of lists are refused.
 *
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION; STATUS_DATA naming file, place and reason */
status gguf_open(const char *path, struct gguf_file **out);

/* gguf_close - close the file and set *file to NULL; *file may be NULL. */
void gguf_close(struct gguf_file **file);

/* gguf_path - return the path of the file. */
const char *gguf_path(const struct gguf_file *file);

/* gguf_find_key - find a metadata key; NULL if there is none. */
const struct gguf_key *gguf_find_key(const struct gguf_file *file, const char *name);

/* gguf_find_tensor - find a tensor; NULL if there is none. */
const struct gguf_tensor *gguf_find_tensor(const struct gguf_file *file, const char *name);

/* gguf_read_tensor - read all elements of a tensor and convert them to f32.
 *
 * Shapes    out [elements]
 * Errors    STATUS_UNAVAILABLE for a type that cannot be read; STATUS_DATA */
status gguf_read_tensor(const struct gguf_file *file, const struct gguf_tensor *tensor, float *out);

/* gguf_compare_tensors - set *equal to whether two tensors have the same type and the same bytes.
 *
 * Memory    two chunks of 256 KiB at most; reading stops at the first difference
 * Errors    STATUS_UNAVAILABLE for a type that cannot be read; STATUS_DATA */
status gguf_compare_tensors(const struct gguf_file *file, const struct gguf_tensor *a,
                            const struct gguf_tensor *b, bool *equal);
