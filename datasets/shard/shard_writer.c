/* Writing shards. Tokens collect in one chunk, document starts in another; a full one is appended to
 * its dataset and to its running SHA-256. The file grows under a temporary name and is renamed when
 * it is complete and on the disk; after any error it is removed, because HDF5 may leave a file that
 * opens and reads as zeros. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "datasets/shard/h5file.h"
#include "datasets/shard/shard.h"
#include "datasets/shard/shard_impl.h"

/* A dataset that grows by whole chunks. */
struct column {
    const char *name;
    hid_t dataset;
    hid_t type; /* in memory, which has the same bytes as the file on this machine's byte order */
    size_t item_bytes;
    int64_t chunk_items;
    int64_t written; /* items in the file */
    int64_t held;    /* items in buffer */
    void *buffer;    /* [chunk_items] */
    struct hash *hash;
};

struct shard_writer {
    struct shard_header header; /* tokens: appended so far; documents: ended so far */
    hid_t file;
    struct column tokens, documents, columns[EXAMPLE_COLUMNS_MAX];
    int64_t document_start;
    char *path, *temporary;
};

static status column_open(struct shard_writer *w, struct column *c, const char *name,
                          hid_t file_type, hid_t memory_type, int64_t chunk_items)
{
    c->name = name;
    c->type = memory_type;
    c->item_bytes = H5Tget_size(file_type);
    c->chunk_items = chunk_items;
    c->buffer = malloc((size_t)chunk_items * c->item_bytes);
    REQUIRE(c->buffer != NULL, STATUS_INTERNAL, "out of memory: a chunk of %s", w->path);
    TRY(hash_create(&c->hash));
    hsize_t none = 0, unlimited = H5S_UNLIMITED, chunk = (hsize_t)chunk_items;
    hid_t properties;
    TRY(h5file_chunked(1, &chunk, &properties));
    hid_t space = H5Screate_simple(1, &none, &unlimited);
    c->dataset = H5Dcreate2(w->file, name, file_type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    const char *why = c->dataset >= 0 ? "" : h5file_reason();
    H5Sclose(space);
    H5Pclose(properties);
    REQUIRE(c->dataset >= 0, STATUS_WRITE, "cannot write %s: %s", w->temporary, why);
    return STATUS_OK;
}

static status column_flush(struct shard_writer *w, struct column *c)
{
    if (c->held == 0) {
        return STATUS_OK;
    }
    hsize_t start = (hsize_t)c->written, count = (hsize_t)c->held, size = start + count;
    bool grown = H5Dset_extent(c->dataset, &size) >= 0;
    hid_t memory = H5Screate_simple(1, &count, NULL);
    hid_t space = grown ? H5Dget_space(c->dataset) : H5I_INVALID_HID;
    bool written = space >= 0 &&
                   H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, NULL, &count, NULL) >= 0 &&
                   H5Dwrite(c->dataset, c->type, memory, space, H5P_DEFAULT, c->buffer) >= 0;
    const char *why = written ? "" : h5file_reason();
    H5Sclose(memory);
    if (space >= 0) {
        H5Sclose(space);
    }
    REQUIRE(written, STATUS_WRITE, "cannot write %s: %s", w->temporary, why);
    TRY(hash_update(c->hash, c->buffer, (size_t)c->held * c->item_bytes));
    c->written += c->held;
    c->held = 0;
    return STATUS_OK;
}

static status write_hash(struct shard_writer *w, struct column *c, const char *name)
{
    char text[HASH_TEXT_BYTES];
    TRY(hash_finish(&c->hash, text));
    return h5file_write_text(w->file, w->temporary, name, text);
}

static bool column_close(struct column *c)
{
    bool closed = H5Dclose(c->dataset) >= 0;
    c->dataset = H5I_INVALID_HID;
    return closed;
}

static void column_free(struct column *c)
{
    if (c->dataset >= 0) {
        H5Dclose(c->dataset);
    }
    hash_destroy(&c->hash);
    free(c->buffer);
    *c = (struct column){.dataset = H5I_INVALID_HID};
}

static char *temporary_name(const char *path)
{
    size_t bytes = strlen(path) + sizeof ".tmp";
    char *name = malloc(bytes);
    if (name != NULL) {
        snprintf(name, bytes, "%s.tmp", path);
    }
    return name;
}

static status open_file(struct shard_writer *w)
{
    const struct shard_header *h = &w->header;
    REQUIRE(h->vocab_size > 0 && h->vocab_size <= SHARD_VOCAB_LIMIT, STATUS_DATA,
            "a shard cannot have a vocabulary of %lld tokens", (long long)h->vocab_size);
    TRY(h5file_create(w->temporary, &w->file));
    bool narrow = h->vocab_size <= 65536;
    w->header.token_bytes = narrow ? 2 : 4;
    TRY(column_open(w, &w->tokens, "tokens", narrow ? H5T_STD_U16LE : H5T_STD_U32LE,
                    narrow ? H5T_NATIVE_UINT16 : H5T_NATIVE_UINT32,
                    SHARD_CHUNK_BYTES / w->header.token_bytes));
    TRY(column_open(w, &w->documents, "documents", H5T_STD_U64LE, H5T_NATIVE_UINT64,
                    SHARD_DOCUMENT_CHUNK));
    const struct example_format *format = example_format_of(h->kind);
    for (int i = 0; i < format->columns; i++) {
        const struct example_column *c = &format->column[i];
        TRY(column_open(w, &w->columns[i], c->name,
                        c->number       ? H5T_IEEE_F32LE
                        : c->bytes == 1 ? H5T_STD_U8LE
                                        : H5T_STD_U32LE,
                        c->number       ? H5T_NATIVE_FLOAT
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
    struct shard_writer *w = calloc(1, sizeof *w);
    REQUIRE(w != NULL, STATUS_INTERNAL, "out of memory: a shard");
    w->file = w->tokens.dataset = w->documents.dataset = H5I_INVALID_HID;
    for (int i = 0; i < EXAMPLE_COLUMNS_MAX; i++) {
        w->columns[i].dataset = H5I_INVALID_HID;
    }
    w->header = *header;
    w->header.tokens = w->header.documents = w->header.longest = 0;
    w->path = strdup(path);
    w->temporary = temporary_name(path);
    status result = STATUS_OK;
    REQUIRE_GOTO(result, failed, w->path != NULL && w->temporary != NULL, STATUS_INTERNAL,
                 "out of memory: a path");
    TRY_GOTO(result, failed, open_file(w));
    *out = w;
    return STATUS_OK;
failed:
    shard_writer_abandon(&w);
    return result;
}

status shard_writer_labels(struct shard_writer *w, const char *labels)
{
    return h5file_write_text(w->file, w->temporary, "labels", labels);
}

static status check_id(const struct shard_writer *w, int32_t id)
{
    REQUIRE(id >= 0 && id < w->header.vocab_size, STATUS_DATA,
            "token %lld for %s has the id %d, outside of the vocabulary of %lld",
            (long long)(w->tokens.written + w->tokens.held), w->path, id,
            (long long)w->header.vocab_size);
    return STATUS_OK;
}

status shard_writer_append(struct shard_writer *w, const int32_t *ids, int64_t count)
{
    struct column *c = &w->tokens;
    for (int64_t i = 0; i < count; i++) {
        TRY(check_id(w, ids[i]));
        if (c->item_bytes == 2) {
            ((uint16_t *)c->buffer)[c->held++] = (uint16_t)ids[i];
        } else {
            ((uint32_t *)c->buffer)[c->held++] = (uint32_t)ids[i];
        }
        if (c->held == c->chunk_items) {
            TRY(column_flush(w, c));
        }
    }
    w->header.tokens += count;
    return STATUS_OK;
}

static status append_start(struct shard_writer *w, int64_t start)
{
    struct column *c = &w->documents;
    ((uint64_t *)c->buffer)[c->held++] = (uint64_t)start;
    return c->held == c->chunk_items ? column_flush(w, c) : STATUS_OK;
}

status shard_writer_values(struct shard_writer *w, int column, const uint32_t *values,
                           int64_t count)
{
    struct column *c = &w->columns[column];
    for (int64_t i = 0; i < count; i++) {
        if (c->item_bytes == 1) {
            ((uint8_t *)c->buffer)[c->held++] = (uint8_t)values[i];
        } else {
            ((uint32_t *)c->buffer)[c->held++] = values[i];
        }
        if (c->held == c->chunk_items) {
            TRY(column_flush(w, c));
        }
    }
    return STATUS_OK;
}

/* Every example and every token has its value. */
static status check_columns(const struct shard_writer *w)
{
    const struct example_format *format = example_format_of(w->header.kind);
    for (int i = 0; i < format->columns; i++) {
        int64_t values = w->columns[i].written + w->columns[i].held;
        int64_t wanted = format->column[i].per_token ? w->header.tokens : w->header.documents;
        REQUIRE(values == wanted, STATUS_INTERNAL, "%s: %lld values of %s instead of %lld", w->path,
                (long long)values, format->column[i].name, (long long)wanted);
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
    w->header.longest = tokens > w->header.longest ? tokens : w->header.longest;
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
    const struct example_format *format = example_format_of(w->header.kind);
    if (w->header.kind == EXAMPLE_TEXT) {
        return STATUS_OK;
    }
    TRY(h5file_write_text(w->file, w->temporary, "examples", format->name));
    TRY(h5file_write_i64(w->file, w->temporary, "examples_version", &format->version, 1));
    TRY(h5file_write_i64(w->file, w->temporary, "longest", &w->header.longest, 1));
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
    TRY(write_hash(w, &w->tokens, "tokens_sha256"));
    TRY(write_hash(w, &w->documents, "documents_sha256"));
    return write_columns(w);
}

static status finish(struct shard_writer *w)
{
    TRY(shard_writer_end_document(w));
    REQUIRE(w->header.tokens > 0, STATUS_DATA, "%s would hold no tokens", w->path);
    TRY(append_start(w, w->header.tokens));
    TRY(column_flush(w, &w->tokens));
    TRY(column_flush(w, &w->documents));
    for (int i = 0; i < example_format_of(w->header.kind)->columns; i++) {
        TRY(column_flush(w, &w->columns[i]));
    }
    TRY(write_attributes(w));
    bool closed = column_close(&w->tokens) && column_close(&w->documents);
    for (int i = 0; i < example_format_of(w->header.kind)->columns; i++) {
        closed = closed && column_close(&w->columns[i]);
    }
    const char *why = closed ? "" : h5file_reason();
    REQUIRE(closed, STATUS_WRITE, "cannot write %s: %s", w->temporary, why);
    TRY(h5file_close(w->temporary, &w->file));
    TRY(file_sync(w->temporary));
    REQUIRE(rename(w->temporary, w->path) == 0,
            status_from_errno(errno, STATUS_CREATE, STATUS_CREATE), "cannot create %s: %s", w->path,
            strerror(errno));
    return STATUS_OK;
}

static void columns_free(struct shard_writer *w)
{
    column_free(&w->tokens);
    column_free(&w->documents);
    for (int i = 0; i < EXAMPLE_COLUMNS_MAX; i++) {
        column_free(&w->columns[i]);
    }
}

static void writer_free(struct shard_writer *w)
{
    columns_free(w);
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
    h5file_start();
    status result = finish(w);
    if (result != STATUS_OK) {
        shard_writer_abandon(writer);
        return result;
    }
    *writer = NULL;
    writer_free(w);
    return STATUS_OK;
}

status shard_writer_abandon(struct shard_writer **writer)
{
    struct shard_writer *w = *writer;
    if (w == NULL) {
        return STATUS_OK;
    }
    *writer = NULL;
    h5file_start();
    columns_free(w);
    if (w->file >= 0) {
        H5Fclose(w->file); /* whatever it says: the file goes */
    }
    if (w->temporary != NULL) {
        unlink(w->temporary);
    }
    writer_free(w);
    return STATUS_OK;
}
