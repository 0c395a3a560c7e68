/* Writes a GGUF file. Metadata and the list of tensors are collected in memory and written before
 * the first tensor. The file has a temporary name until it is complete. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/number.h"
#include "base/staged_folder.h"
#include "trainer/formats/gguf/gguf.h"

struct declared_tensor {
    char name[GGUF_NAME_BYTES];
    enum gguf_type type;
    int64_t rows, columns; /* rows 0: a vector */
    uint64_t offset;       /* in the data of all tensors */
};

struct gguf_writer {
    char path[FILE_PATH_BYTES], temporary[FILE_PATH_BYTES], folder[FILE_PATH_BYTES];
    int file;
    int64_t file_bytes;
    FILE *metadata; /* writes to `text` */
    char *text;
    size_t text_bytes;
    uint64_t keys;
    struct declared_tensor *tensors;
    int64_t tensor_count, tensor_capacity;
    int64_t written; /* tensors; -1: the header has not been written */
    uint64_t data_bytes;
};

static uint64_t align_bytes(uint64_t bytes)
{
    return (uint64_t)number_round_up((int64_t)bytes, GGUF_ALIGNMENT);
}

/* Writes the folder of a path and the temporary path of the file. */
static status make_paths(struct gguf_writer *w, const char *path)
{
    char temporary[STAGED_FOLDER_NAME_BYTES];
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    REQUIRE(strlen(path) < sizeof w->path && name[0] != '\0', STATUS_USAGE,
            "--output %s: the path must end with a file name and have less than %zu bytes", path,
            sizeof w->path);
    snprintf(w->path, sizeof w->path, "%s", path);
    snprintf(w->folder, sizeof w->folder, "%.*s",
             slash == NULL   ? 1
             : slash == path ? 1
                             : (int)(slash - path),
             slash == NULL ? "." : path);
    staged_folder_temporary_name(name, temporary);
    return file_join(w->temporary, w->folder, temporary);
}

status gguf_writer_create(const char *path, struct gguf_writer **out)
{
    *out = NULL;
    REQUIRE(!file_exists(path), STATUS_CREATE, "%s already exists; name a file that does not exist",
            path);
    struct gguf_writer *w = NULL;
    TRY(ALLOCATE(w, 1, path));
    w->file = w->written = -1;
    w->metadata = open_memstream(&w->text, &w->text_bytes);
    *out = w;
    REQUIRE(w->metadata != NULL, STATUS_INTERNAL, "out of memory for the metadata of %s", path);
    TRY(make_paths(w, path));
    TRY(file_make_folders(w->folder));
    return file_open_output(w->temporary, O_WRONLY | O_EXCL, &w->file);
}

/* ---- metadata ---- */

static void put_bytes(FILE *file, const void *data, size_t bytes)
{
    (void)fwrite(data, 1, bytes, file); /* ferror is checked before the header is written */
}

static void put_u32(FILE *file, uint32_t value)
{
    put_bytes(file, &value, sizeof value);
}

static void put_u64(FILE *file, uint64_t value)
{
    put_bytes(file, &value, sizeof value);
}

static void put_text(FILE *file, const char *text, size_t bytes)
{
    put_u64(file, bytes);
    put_bytes(file, text, bytes);
}

static void put_key(struct gguf_writer *w, const char *key, enum gguf_value type)
{
    w->keys++;
    put_text(w->metadata, key, strlen(key));
    put_u32(w->metadata, type);
}

void gguf_put_u32(struct gguf_writer *w, const char *key, int64_t value)
{
    put_key(w, key, GGUF_VALUE_U32);
    put_u32(w->metadata, (uint32_t)value);
}

void gguf_put_f32(struct gguf_writer *w, const char *key, double value)
{
    put_key(w, key, GGUF_VALUE_F32);
    gguf_add_f32(w, (float)value);
}

void gguf_put_bool(struct gguf_writer *w, const char *key, bool value)
{
    put_key(w, key, GGUF_VALUE_BOOL);
    gguf_add_bool(w, value);
}

void gguf_put_text(struct gguf_writer *w, const char *key, const char *text)
{
    put_key(w, key, GGUF_VALUE_TEXT);
    put_text(w->metadata, text, strlen(text));
}

void gguf_begin_array(struct gguf_writer *w, const char *key, enum gguf_value type, int64_t count)
{
    put_key(w, key, GGUF_VALUE_ARRAY);
    put_u32(w->metadata, type);
    put_u64(w->metadata, (uint64_t)count);
}

void gguf_add_text(struct gguf_writer *w, const char *prefix, const char *text)
{
    size_t before = strlen(prefix), bytes = strlen(text);
    put_u64(w->metadata, before + bytes);
    put_bytes(w->metadata, prefix, before);
    put_bytes(w->metadata, text, bytes);
}

void gguf_add_i32(struct gguf_writer *w, int32_t value)
{
    put_bytes(w->metadata, &value, sizeof value);
}

void gguf_add_bytes(struct gguf_writer *w, const uint8_t *data, size_t bytes)
{
    put_bytes(w->metadata, data, bytes);
}

void gguf_add_f32(struct gguf_writer *w, float value)
{
    put_bytes(w->metadata, &value, sizeof value);
}

void gguf_add_bool(struct gguf_writer *w, bool value)
{
    uint8_t byte = value;
    put_bytes(w->metadata, &byte, sizeof byte);
}

/* ---- tensors ---- */

static int64_t count_elements(const struct declared_tensor *t)
{
    return t->columns * (t->rows > 0 ? t->rows : 1);
}

status gguf_add_tensor(struct gguf_writer *w, const char *name, enum gguf_type type, int64_t rows,
                       int64_t columns)
{
    if (w->tensor_count == w->tensor_capacity) {
        int64_t capacity = w->tensor_capacity > 0 ? 2 * w->tensor_capacity : 64;
        TRY(GROW(w->tensors, capacity, "the tensors of a GGUF file"));
        w->tensor_capacity = capacity;
    }
    struct declared_tensor *t = &w->tensors[w->tensor_count];
    *t = (struct declared_tensor){
        .type = type, .rows = rows, .columns = columns, .offset = w->data_bytes};
    int length = snprintf(t->name, sizeof t->name, "%s", name);
    REQUIRE(length < GGUF_NAME_BYTES, STATUS_INTERNAL, "the tensor name %s is too long", name);
    w->data_bytes += align_bytes(gguf_type_bytes(type, count_elements(t)));
    w->tensor_count++;
    return STATUS_OK;
}

/* Writes the list of tensors after the metadata. */
static void put_tensors(struct gguf_writer *w)
{
    for (int64_t i = 0; i < w->tensor_count; i++) {
        const struct declared_tensor *t = &w->tensors[i];
        put_text(w->metadata, t->name, strlen(t->name));
        put_u32(w->metadata, t->rows > 0 ? 2 : 1);
        put_u64(w->metadata, (uint64_t)t->columns);
        if (t->rows > 0) {
            put_u64(w->metadata, (uint64_t)t->rows);
        }
        put_u32(w->metadata, t->type);
        put_u64(w->metadata, t->offset);
    }
}

/* Writes zeros up to a multiple of GGUF_ALIGNMENT. */
static status write_padding(struct gguf_writer *w)
{
    static const char zeros[GGUF_ALIGNMENT];
    size_t bytes = (size_t)(align_bytes((uint64_t)w->file_bytes) - (uint64_t)w->file_bytes);
    return file_append(w->file, w->path, &w->file_bytes, zeros, bytes);
}

static status write_header(struct gguf_writer *w)
{
    const uint32_t version = 3;
    uint64_t counts[] = {(uint64_t)w->tensor_count, w->keys};
    put_tensors(w);
    bool complete = ferror(w->metadata) == 0 && fflush(w->metadata) == 0;
    REQUIRE(complete, STATUS_INTERNAL, "out of memory for the metadata of %s", w->path);
    TRY(staged_folder_check_space(w->folder, (double)w->data_bytes + (double)w->text_bytes));
    TRY(file_append(w->file, w->path, &w->file_bytes, "GGUF", 4));
    TRY(file_append(w->file, w->path, &w->file_bytes, &version, sizeof version));
    TRY(file_append(w->file, w->path, &w->file_bytes, counts, sizeof counts));
    TRY(file_append(w->file, w->path, &w->file_bytes, w->text, w->text_bytes));
    w->written = 0;
    return write_padding(w);
}

status gguf_write_tensor(struct gguf_writer *w, const float *values)
{
    TRY(w->written < 0 ? write_header(w) : STATUS_OK);
    REQUIRE(w->written < w->tensor_count, STATUS_INTERNAL,
            "%s: a tensor is written after the last of the %" PRId64 " declared tensors", w->path,
            (int64_t)w->tensor_count);
    const struct declared_tensor *t = &w->tensors[w->written++];
    size_t bytes = gguf_type_bytes(t->type, count_elements(t));
    if (t->type == GGUF_F32) {
        TRY(file_append(w->file, w->path, &w->file_bytes, values, bytes));
        return write_padding(w);
    }
    char *encoded = NULL;
    TRY(ALLOCATE(encoded, bytes, t->name));
    gguf_encode(t->type, values, count_elements(t), encoded);
    status result = file_append(w->file, w->path, &w->file_bytes, encoded, bytes);
    free(encoded);
    return result == STATUS_OK ? write_padding(w) : result;
}

/* Syncs the file and gives it its name. */
static status publish_file(struct gguf_writer *w)
{
    REQUIRE(w->written == w->tensor_count, STATUS_INTERNAL,
            "%s: %" PRId64 " of %" PRId64 " declared tensors were written", w->path,
            (int64_t)w->written, (int64_t)w->tensor_count);
    REQUIRE(fsync(w->file) == 0, STATUS_WRITE, "cannot write %s: %s", w->path, strerror(errno));
    REQUIRE(rename(w->temporary, w->path) == 0, STATUS_CREATE, "cannot create %s: %s", w->path,
            strerror(errno));
    return file_sync(w->folder);
}

status gguf_writer_finish(struct gguf_writer **writer, status result)
{
    struct gguf_writer *w = *writer;
    if (w == NULL) {
        return result;
    }
    if (result == STATUS_OK) {
        result = publish_file(w);
    }
    if (w->file >= 0) {
        (void)close(w->file);
        (void)unlink(w->temporary);
    }
    if (w->metadata != NULL) {
        (void)fclose(w->metadata);
    }
    free(w->text);
    free(w->tensors);
    free(w);
    *writer = NULL;
    return result;
}
