/* Writes shards. Each dataset has a buffer of one chunk. A full buffer is appended to its dataset
 * and to its running SHA-256. The file is written under a temporary name, and renamed when it is
 * complete and synced. After an error it is removed, because HDF5 may leave a file that opens and
 * reads as zeros. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/number.h"
#include "datasets/shard/h5file.h"
#include "datasets/shard/shard.h"
#include "datasets/shard/shard_impl.h"

/* A dataset that is written chunk by chunk. */
struct column {
    const char *name;
    hid_t dataset;
    hid_t type; /* type in memory; the same bytes as in the file, because both are little endian */
    size_t item_bytes;
    int64_t chunk_items;
    int64_t written;  /* items in the file */
    int64_t buffered; /* items in buffer */
    void *buffer;     /* [chunk_items] */
    struct hash *hash;
};

struct shard_writer {
    struct shard_header header; /* tokens: appended so far; documents: finished so far */
    hid_t file;
    struct column tokens, documents, columns[EXAMPLE_COLUMNS_MAX];
    int64_t document_start;
    char *path, *temporary;
};

static status open_column(struct shard_writer *w, struct column *c, const char *name,
                          hid_t file_type, hid_t memory_type, int64_t chunk_items)
{
    c->name = name;
    c->type = memory_type;
    c->item_bytes = H5Tget_size(file_type);
    c->chunk_items = chunk_items;
    TRY(memory_allocate_array(&c->buffer, (size_t)chunk_items, c->item_bytes, w->path));
    TRY(hash_create(&c->hash));
    hsize_t none = 0, unlimited = H5S_UNLIMITED, chunk = (hsize_t)chunk_items;
    hid_t properties;
    TRY(h5file_create_chunk_properties(1, &chunk, &properties));
    hid_t space = H5Screate_simple(1, &none, &unlimited);
    c->dataset = H5Dcreate2(w->file, name, file_type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    const char *reason = c->dataset >= 0 ? "" : h5file_reason();
    H5Sclose(space);
    H5Pclose(properties);
    REQUIRE(c->dataset >= 0, STATUS_WRITE, "cannot write %s: %s", w->temporary, reason);
    return STATUS_OK;
}

static status flush_column(struct shard_writer *w, struct column *c)
{
    if (c->buffered == 0) {
        return STATUS_OK;
    }
    hsize_t start = (hsize_t)c->written, count = (hsize_t)c->buffered, size = start + count;
    bool grown = H5Dset_extent(c->dataset, &size) >= 0;
    hid_t memory = H5Screate_simple(1, &count, NULL);
    hid_t space = grown ? H5Dget_space(c->dataset) : H5I_INVALID_HID;
    bool written = space >= 0 &&
                   H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, NULL, &count, NULL) >= 0 &&
                   H5Dwrite(c->dataset, c->type, memory, space, H5P_DEFAULT, c->buffer) >= 0;
    const char *reason = written ? "" : h5file_reason();
    H5Sclose(memory);
    if (space >= 0) {
        H5Sclose(space);
    }
    REQUIRE(written, STATUS_WRITE, "cannot write %s: %s", w->temporary, reason);
    TRY(hash_update(c->hash, c->buffer, (size_t)c->buffered * c->item_bytes));
    c->written += c->buffered;
    c->buffered = 0;
    return STATUS_OK;
}

static status write_hash(struct shard_writer *w, struct column *c, const char *name)
{
    char text[HASH_TEXT_BYTES];
    TRY(hash_finish(&c->hash, text));
    return h5file_write_text(w->file, w->temporary, name, text);
}

static bool close_column(struct column *c)
{
    bool closed = H5Dclose(c->dataset) >= 0;
    c->dataset = H5I_INVALID_HID;
    return closed;
}

static void free_column(struct column *c)
{
    if (c->dataset >= 0) {
        H5Dclose(c->dataset);
    }
    hash_destroy(&c->hash);
    free(c->buffer);
    *c = (struct column){.dataset = H5I_INVALID_HID};
}

static status set_names(struct shard_writer *w, const char *path)
{
    size_t bytes = strlen(path) + 1;
    TRY(ALLOCATE(w->path, bytes, "a path"));
    TRY(ALLOCATE(w->temporary, bytes + strlen(".tmp"), "a path"));
    memcpy(w->path, path, bytes);
    snprintf(w->temporary, bytes + strlen(".tmp"), "%s.tmp", path);
    return STATUS_OK;
}

static status open_file(struct shard_writer *w)
{
    const struct shard_header *h = &w->header;
    REQUIRE(h->vocab_size > 0 && h->vocab_size <= SHARD_VOCAB_MAX, STATUS_DATA,
            "a shard cannot have a vocabulary of %" PRId64 " tokens", h->vocab_size);
    TRY(h5file_create(w->temporary, &w->file));
    bool is_16_bit = h->vocab_size <= 65536;
    w->header.token_bytes = is_16_bit ? 2 : 4;
    TRY(open_column(w, &w->tokens, "tokens", is_16_bit ? H5T_STD_U16LE : H5T_STD_U32LE,
                    is_16_bit ? H5T_NATIVE_UINT16 : H5T_NATIVE_UINT32,
                    SHARD_CHUNK_BYTES / w->header.token_bytes));
    TRY(open_column(w, &w->documents, "documents", H5T_STD_U64LE, H5T_NATIVE_UINT64,
                    SHARD_DOCUMENT_CHUNK));
    const struct example_format *format = example_get_format(h->kind);
    for (int i = 0; i < format->columns; i++) {
        const struct example_column *c = &format->column[i];
        TRY(open_column(w, &w->columns[i], c->name,
                        c->is_float     ? H5T_IEEE_F32LE
                        : c->bytes == 1 ? H5T_STD_U8LE
                                        : H5T_STD_U32LE,
                        c->is_float     ? H5T_NATIVE_FLOAT
                        : c->bytes == 1 ? H5T_NATIVE_UINT8
                                        : H5T_NATIVE_UINT32,
                        SHARD_CHUNK_BYTES / c->bytes));
    }
    return STATUS_OK;
}

status shard_writer_create(const char *path, const struct shard_header *header,
                           struct shard_writer **out)
{
    *out = NULL;
    struct shard_writer *w;
    TRY(ALLOCATE(w, 1, "a shard"));
    w->file = w->tokens.dataset = w->documents.dataset = H5I_INVALID_HID;
    for (int i = 0; i < EXAMPLE_COLUMNS_MAX; i++) {
        w->columns[i].dataset = H5I_INVALID_HID;
    }
    w->header = *header;
    w->header.tokens = w->header.documents = w->header.longest_tokens = 0;
    status result = STATUS_OK;
    TRY_GOTO(result, failed, set_names(w, path));
    TRY_GOTO(result, failed, open_file(w));
    *out = w;
    return STATUS_OK;
failed:
    shard_writer_abandon(&w);
    return result;
}

status shard_writer_write_labels(struct shard_writer *w, const char *labels)
{
    return h5file_write_text(w->file, w->temporary, "labels", labels);
}

static status check_id(const struct shard_writer *w, int32_t id)
{
    REQUIRE(id >= 0 && id < w->header.vocab_size, STATUS_DATA,
            "token %" PRId64 " for %s has the id %d, outside of the vocabulary of %" PRId64,
            w->tokens.written + w->tokens.buffered, w->path, id, w->header.vocab_size);
    return STATUS_OK;
}

status shard_writer_append_tokens(struct shard_writer *w, const int32_t *ids, int64_t count)
{
    struct column *c = &w->tokens;
    for (int64_t i = 0; i < count; i++) {
        TRY(check_id(w, ids[i]));
        if (c->item_bytes == 2) {
            ((uint16_t *)c->buffer)[c->buffered++] = (uint16_t)ids[i];
        } else {
            ((uint32_t *)c->buffer)[c->buffered++] = (uint32_t)ids[i];
        }
        if (c->buffered == c->chunk_items) {
            TRY(flush_column(w, c));
        }
    }
    w->header.tokens += count;
    return STATUS_OK;
}

static status append_start(struct shard_writer *w, int64_t start)
{
    struct column *c = &w->documents;
    ((uint64_t *)c->buffer)[c->buffered++] = (uint64_t)start;
    return c->buffered == c->chunk_items ? flush_column(w, c) : STATUS_OK;
}

status shard_writer_append_values(struct shard_writer *w, int column, const uint32_t *values,
                                  int64_t count)
{
    struct column *c = &w->columns[column];
    for (int64_t i = 0; i < count; i++) {
        if (c->item_bytes == 1) {
            ((uint8_t *)c->buffer)[c->buffered++] = (uint8_t)values[i];
        } else {
            ((uint32_t *)c->buffer)[c->buffered++] = values[i];
        }
        if (c->buffered == c->chunk_items) {
            TRY(flush_column(w, c));
        }
    }
    return STATUS_OK;
}

/* Checks that each column has a value for every example or token. */
static status check_columns(const struct shard_writer *w)
{
    const struct example_format *format = example_get_format(w->header.kind);
    for (int i = 0; i < format->columns; i++) {
        int64_t values = w->columns[i].written + w->columns[i].buffered;
        int64_t expected = format->column[i].per_token ? w->header.tokens : w->header.documents;
        REQUIRE(values == expected, STATUS_INTERNAL,
                "%s: %" PRId64 " values of %s were appended instead of %" PRId64, w->path, values,
                format->column[i].name, expected);
    }
    return STATUS_OK;
}

status shard_writer_end_document(struct shard_writer *w)
{
    if (w->header.tokens == w->document_start) {
        return STATUS_OK;
    }
    TRY(append_start(w, w->document_start));
    int64_t tokens = w->header.tokens - w->document_start;
    w->header.longest_tokens = number_max(w->header.longest_tokens, tokens);
    w->document_start = w->header.tokens;
    w->header.documents++;
    return check_columns(w);
}

int64_t shard_writer_tokens(const struct shard_writer *w)
{
    return w->header.tokens;
}

static status write_columns(struct shard_writer *w)
{
    const struct example_format *format = example_get_format(w->header.kind);
    if (w->header.kind == EXAMPLE_TEXT) {
        return STATUS_OK;
    }
    TRY(h5file_write_text(w->file, w->temporary, "examples", format->name));
    TRY(h5file_write_i64(w->file, w->temporary, "examples_version", &format->version, 1));
    TRY(h5file_write_i64(w->file, w->temporary, "longest", &w->header.longest_tokens, 1));
    for (int i = 0; i < format->columns; i++) {
        char name[SHARD_NAME_BYTES];
        snprintf(name, sizeof name, "%s_sha256", format->column[i].name);
        TRY(write_hash(w, &w->columns[i], name));
    }
    return STATUS_OK;
}

static status write_attributes(struct shard_writer *w)
{
    const int64_t version = SHARD_FORMAT_VERSION;
    const struct shard_header *h = &w->header;
    const char *path = w->temporary;
    TRY(h5file_write_text(w->file, path, "format", SHARD_FORMAT));
    TRY(h5file_write_i64(w->file, path, "format_version", &version, 1));
    TRY(h5file_write_i64(w->file, path, "vocab_size", &h->vocab_size, 1));
    TRY(h5file_write_text(w->file, path, "tokenizer_sha256", h->tokenizer_sha256));
    TRY(h5file_write_i64(w->file, path, "eos_id", &h->eos_id, 1));
    TRY(h5file_write_i64(w->file, path, "tokens", &h->tokens, 1));
    TRY(h5file_write_i64(w->file, path, "documents", &h->documents, 1));
    if (h->join_encoding) {
        const int64_t join = 1;
        TRY(h5file_write_i64(w->file, path, "join_encoding", &join, 1));
    }
    TRY(write_hash(w, &w->tokens, "tokens_sha256"));
    TRY(write_hash(w, &w->documents, "documents_sha256"));
    return write_columns(w);
}

static status finish_file(struct shard_writer *w)
{
    TRY(shard_writer_end_document(w));
    REQUIRE(w->header.tokens > 0, STATUS_DATA, "%s would contain no tokens", w->path);
    TRY(append_start(w, w->header.tokens));
    TRY(flush_column(w, &w->tokens));
    TRY(flush_column(w, &w->documents));
    for (int i = 0; i < example_get_format(w->header.kind)->columns; i++) {
        TRY(flush_column(w, &w->columns[i]));
    }
    TRY(write_attributes(w));
    bool closed = close_column(&w->tokens) && close_column(&w->documents);
    for (int i = 0; i < example_get_format(w->header.kind)->columns; i++) {
        closed = closed && close_column(&w->columns[i]);
    }
    const char *reason = closed ? "" : h5file_reason();
    REQUIRE(closed, STATUS_WRITE, "cannot write %s: %s", w->temporary, reason);
    TRY(h5file_close(w->temporary, &w->file));
    TRY(file_sync(w->temporary));
    REQUIRE(rename(w->temporary, w->path) == 0,
            status_from_errno(errno, STATUS_CREATE, STATUS_CREATE), "cannot create %s: %s", w->path,
            strerror(errno));
    return STATUS_OK;
}

static void free_columns(struct shard_writer *w)
{
    free_column(&w->tokens);
    free_column(&w->documents);
    for (int i = 0; i < EXAMPLE_COLUMNS_MAX; i++) {
        free_column(&w->columns[i]);
    }
}

static void free_writer(struct shard_writer *w)
{
    free_columns(w);
    free(w->path);
    free(w->temporary);
    free(w);
}

status shard_writer_close(struct shard_writer **writer)
{
    struct shard_writer *w = *writer;
    if (w == NULL) {
        return STATUS_OK;
    }
    h5file_init();
    status result = finish_file(w);
    if (result != STATUS_OK) {
        shard_writer_abandon(writer);
        return result;
    }
    *writer = NULL;
    free_writer(w);
    return STATUS_OK;
}

status shard_writer_abandon(struct shard_writer **writer)
{
    struct shard_writer *w = *writer;
    if (w == NULL) {
        return STATUS_OK;
    }
    *writer = NULL;
    h5file_init();
    free_columns(w);
    if (w->file >= 0) {
        H5Fclose(w->file); /* errors do not matter, because the file is removed */
    }
    if (w->temporary != NULL) {
        unlink(w->temporary);
    }
    free_writer(w);
    return STATUS_OK;
}
