/* Reading shards. A window is taken out of the chunks that it touches: widened to int32 and compared
 * with vocab_size in one loop here. Every id that leaves this file was compared with vocab_size, so
 * that no reader of a batch has to. */
#include "datasets/shard/shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "datasets/shard/chunks.h"
#include "datasets/shard/h5file.h"
#include "datasets/shard/labels.h"
#include "datasets/shard/shard_impl.h"

enum { PIECE_TOKENS = 16384 }; /* verified at a time */

struct shard {
    struct shard_header header;
    hid_t file;
    struct chunks *tokens, *documents, *columns[EXAMPLE_COLUMNS_MAX];
    char columns_sha256[EXAMPLE_COLUMNS_MAX][HASH_TEXT_BYTES];
    char *path;
    char *labels;
};

const char *shard_labels(const struct shard *shard)
{
    return shard->labels;
}

const struct shard_header *shard_header_of(const struct shard *shard)
{
    return &shard->header;
}

const char *shard_path(const struct shard *shard)
{
    return shard->path;
}

static status read_hash(hid_t file, const char *path, const char *name, char out[HASH_TEXT_BYTES])
{
    TRY(h5file_read_text(file, path, name, out, HASH_TEXT_BYTES));
    bool whole = strlen(out) == HASH_TEXT_BYTES - 1 &&
                 strspn(out, "0123456789abcdef") == HASH_TEXT_BYTES - 1;
    REQUIRE(whole, STATUS_DATA, "%s: attribute '%s' is no SHA-256", path, name);
    return STATUS_OK;
}

static status read_header(struct shard *s)
{
    char format[64];
    int64_t version = 0;
    struct shard_header *h = &s->header;
    REQUIRE(
        h5file_has(s->file, "format"), STATUS_DATA,
        "%s is HDF5 but no shard of tokens: it has no attribute 'format'; `bireme prepare` makes "
        "shards",
        s->path);
    TRY(h5file_read_text(s->file, s->path, "format", format, (int)sizeof format));
    REQUIRE(strcmp(format, SHARD_FORMAT) == 0, STATUS_DATA,
            "%s is no shard of tokens: its format is '%s' instead of '" SHARD_FORMAT "'", s->path,
            format);
    TRY(h5file_read_i64(s->file, s->path, "format_version", &version, 1));
    REQUIRE(version == SHARD_FORMAT_VERSION, STATUS_DATA,
            "%s has format_version %lld; this program reads %d", s->path, (long long)version,
            SHARD_FORMAT_VERSION);
    TRY(h5file_read_i64(s->file, s->path, "vocab_size", &h->vocab_size, 1));
    TRY(h5file_read_i64(s->file, s->path, "eos_id", &h->eos_id, 1));
    TRY(h5file_read_i64(s->file, s->path, "tokens", &h->tokens, 1));
    TRY(h5file_read_i64(s->file, s->path, "documents", &h->documents, 1));
    TRY(read_hash(s->file, s->path, "tokenizer_sha256", h->tokenizer_sha256));
    if (h5file_has(s->file, "tokens_sha256")) {
        TRY(read_hash(s->file, s->path, "tokens_sha256", h->tokens_sha256));
    }
    if (h5file_has(s->file, "documents_sha256")) {
        TRY(read_hash(s->file, s->path, "documents_sha256", h->documents_sha256));
    }
    REQUIRE(h->vocab_size > 0 && h->vocab_size <= SHARD_VOCAB_LIMIT, STATUS_DATA,
            "%s: vocab_size is %lld", s->path, (long long)h->vocab_size);
    REQUIRE(h->eos_id >= -1 && h->eos_id < h->vocab_size, STATUS_DATA,
            "%s: eos_id is %lld with a vocabulary of %lld", s->path, (long long)h->eos_id,
            (long long)h->vocab_size);
    return STATUS_OK;
}

static status open_tokens(struct shard *s)
{
    TRY(chunks_open(s->file, s->path, "tokens", H5I_INVALID_HID, &s->tokens));
    int64_t stored = chunks_items(s->tokens);
    s->header.token_bytes = chunks_item_bytes(s->tokens);
    REQUIRE(stored > 0, STATUS_DATA, "%s holds no tokens", s->path);
    REQUIRE(stored == s->header.tokens, STATUS_DATA,
            "%s: /tokens holds %lld tokens, the attribute 'tokens' says %lld", s->path,
            (long long)stored, (long long)s->header.tokens);
    return STATUS_OK;
}

static status open_documents(struct shard *s)
{
    TRY(chunks_open(s->file, s->path, "documents", H5T_STD_U64LE, &s->documents));
    int64_t stored = chunks_items(s->documents);
    bool agrees = s->header.documents > 0 && stored - 1 == s->header.documents;
    REQUIRE(agrees, STATUS_DATA,
            "%s: /documents has %lld entries, the attribute 'documents' says %lld (one entry less)",
            s->path, (long long)stored, (long long)s->header.documents);
    int64_t first = 0, last = 0;
    TRY(shard_read_documents(s, 0, 1, &first));
    TRY(shard_read_documents(s, s->header.documents, 1, &last));
    REQUIRE(first == 0 && last == s->header.tokens, STATUS_DATA,
            "%s: /documents covers tokens %lld to %lld instead of 0 to %lld", s->path,
            (long long)first, (long long)last, (long long)s->header.tokens);
    return STATUS_OK;
}

static status read_kind(struct shard *s)
{
    if (!h5file_has(s->file, "examples")) {
        return STATUS_OK; /* text */
    }
    char name[SHARD_NAME_BYTES];
    int64_t version = 0;
    TRY(h5file_read_text(s->file, s->path, "examples", name, (int)sizeof name));
    TRY(h5file_read_i64(s->file, s->path, "examples_version", &version, 1));
    TRY(h5file_read_i64(s->file, s->path, "longest", &s->header.longest, 1));
    s->header.kind = example_kind_named(name);
    REQUIRE(s->header.kind != EXAMPLE_KINDS, STATUS_DATA,
            "%s holds examples of the kind '%s', which this program does not know", s->path, name);
    REQUIRE(version == example_format_of(s->header.kind)->version, STATUS_DATA,
            "%s holds %s of version %lld; this program reads %lld", s->path, name,
            (long long)version, (long long)example_format_of(s->header.kind)->version);
    return STATUS_OK;
}

/* What tells examples apart whose tokens are the same: where they end, what is learned of them. */
static status hash_examples(struct shard *s)
{
    struct hash *hash = NULL;
    status result = STATUS_OK;
    if (s->header.kind == EXAMPLE_TEXT) {
        return STATUS_OK;
    }
    TRY(hash_create(&hash));
    TRY_GOTO(result, failed,
             hash_update(hash, s->header.documents_sha256, sizeof s->header.documents_sha256));
    TRY_GOTO(result, failed, hash_update(hash, s->columns_sha256, sizeof s->columns_sha256));
    return hash_finish(&hash, s->header.examples_sha256);
failed:
    hash_destroy(&hash);
    return result;
}

static status read_labels(struct shard *s)
{
    struct labels labels;
    if (!h5file_has(s->file, "labels")) {
        return STATUS_OK;
    }
    s->labels = malloc(LABELS_TEXT_BYTES);
    REQUIRE(s->labels != NULL, STATUS_INTERNAL, "out of memory: names of labels");
    TRY(h5file_read_text(s->file, s->path, "labels", s->labels, LABELS_TEXT_BYTES));
    TRY(labels_read_text(s->labels, s->path, &labels));
    s->header.labels = labels.count;
    labels_free(&labels);
    return labels_hash(s->labels, s->header.labels_sha256);
}

/* As the file has it; in memory a column's values are 32 bits, those of a number its f32's. */
static hid_t column_type(const struct example_column *c)
{
    return c->number ? H5T_IEEE_F32LE : c->bytes == 1 ? H5T_STD_U8LE : H5T_STD_U32LE;
}

static status open_columns(struct shard *s)
{
    TRY(read_kind(s));
    TRY(read_labels(s));
    const struct example_format *format = example_format_of(s->header.kind);
    for (int i = 0; i < format->columns; i++) {
        const struct example_column *c = &format->column[i];
        char name[SHARD_NAME_BYTES];
        TRY(chunks_open(s->file, s->path, c->name, column_type(c), &s->columns[i]));
        int64_t stored = chunks_items(s->columns[i]);
        int64_t wanted = c->per_token ? s->header.tokens : s->header.documents;
        REQUIRE(stored == wanted, STATUS_DATA, "%s: /%s has %lld values instead of %lld", s->path,
                c->name, (long long)stored, (long long)wanted);
        snprintf(name, sizeof name, "%s_sha256", c->name);
        if (h5file_has(s->file, name)) {
            TRY(read_hash(s->file, s->path, name, s->columns_sha256[i]));
        }
    }
    return hash_examples(s);
}

status shard_read_column(struct shard *s, int column, int64_t first, int64_t count, uint32_t *out)
{
    struct chunks *c = s->columns[column];
    REQUIRE(first >= 0 && count >= 0 && first <= chunks_items(c) - count, STATUS_INTERNAL,
            "%s: values %lld + %lld of %lld asked for", s->path, (long long)first, (long long)count,
            (long long)chunks_items(c));
    for (int64_t done = 0, held = 0; done < count; done += held) {
        const void *stored;
        TRY(chunks_at(c, first + done, &stored, &held));
        held = held < count - done ? held : count - done;
        for (int64_t i = 0; i < held; i++) {
            out[done + i] = chunks_item_bytes(c) == 1 ? ((const uint8_t *)stored)[i]
                                                      : ((const uint32_t *)stored)[i];
        }
    }
    return STATUS_OK;
}

status shard_open(const char *path, struct shard **out)
{
    *out = NULL;
    struct shard *s = calloc(1, sizeof *s);
    REQUIRE(s != NULL, STATUS_INTERNAL, "out of memory: a shard");
    s->file = H5I_INVALID_HID;
    s->path = strdup(path);
    status result = STATUS_OK;
    REQUIRE_GOTO(result, failed, s->path != NULL, STATUS_INTERNAL, "out of memory: a path");
    TRY_GOTO(result, failed, h5file_open_checked(path, &s->file));
    TRY_GOTO(result, failed, read_header(s));
    TRY_GOTO(result, failed, open_tokens(s));
    TRY_GOTO(result, failed, open_documents(s));
    TRY_GOTO(result, failed, open_columns(s));
    *out = s;
    return STATUS_OK;
failed:
    shard_close(&s);
    return result;
}

status shard_close(struct shard **shard)
{
    struct shard *s = *shard;
    if (s == NULL) {
        return STATUS_OK;
    }
    *shard = NULL;
    h5file_start();
    chunks_close(&s->tokens);
    chunks_close(&s->documents);
    for (int i = 0; i < EXAMPLE_COLUMNS_MAX; i++) {
        chunks_close(&s->columns[i]);
    }
    if (s->file >= 0) {
        H5Fclose(s->file); /* read only: nothing can be lost */
    }
    free(s->labels);
    free(s->path);
    free(s);
    return STATUS_OK;
}

status shard_expect(const struct shard *shard, int64_t vocab_size, const char *tokenizer_sha256)
{
    const struct shard_header *h = &shard->header;
    REQUIRE(h->vocab_size == vocab_size, STATUS_DATA,
            "%s was made with a vocabulary of %lld tokens, the tokenizer has %lld", shard->path,
            (long long)h->vocab_size, (long long)vocab_size);
    bool same = tokenizer_sha256 == NULL || strcmp(h->tokenizer_sha256, tokenizer_sha256) == 0;
    REQUIRE(same, STATUS_DATA,
            "%s was made with another tokenizer (SHA-256 %.12s..., ours is %.12s...); run `bireme "
            "prepare` again",
            shard->path, h->tokenizer_sha256, tokenizer_sha256);
    return STATUS_OK;
}

static uint32_t widen16(const uint16_t *ids, int64_t count, int32_t *out)
{
    uint16_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        out[i] = ids[i];
        largest = ids[i] > largest ? ids[i] : largest;
    }
    return largest;
}

static uint32_t widen32(const uint32_t *ids, int64_t count, int32_t *out)
{
    uint32_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        out[i] = (int32_t)ids[i];
        largest = ids[i] > largest ? ids[i] : largest;
    }
    return largest;
}

static status check_ids(const struct shard *s, int64_t first, int64_t count, const int32_t *ids,
                        uint32_t largest)
{
    if (largest < s->header.vocab_size) {
        return STATUS_OK;
    }
    for (int64_t i = 0; i < count; i++) {
        uint32_t id = (uint32_t)ids[i];
        REQUIRE(id < s->header.vocab_size, STATUS_DATA,
                "%s: token %lld has the id %u, outside of the vocabulary of %lld", s->path,
                (long long)(first + i), id, (long long)s->header.vocab_size);
    }
    return STATUS_OK;
}

/* Tokens from `first` on, of one chunk and `limit` at most: as stored, and in out[*count]. */
static status read_piece(struct shard *s, int64_t first, int64_t limit, const void **stored,
                         int64_t *count, int32_t *out)
{
    TRY(chunks_at(s->tokens, first, stored, count));
    *count = *count < limit ? *count : limit;
    uint32_t largest =
        s->header.token_bytes == 2 ? widen16(*stored, *count, out) : widen32(*stored, *count, out);
    return check_ids(s, first, *count, out, largest);
}

status shard_read(struct shard *shard, int64_t first, int64_t count, int32_t *out)
{
    bool inside = first >= 0 && count >= 0 && first <= shard->header.tokens - count;
    REQUIRE(inside, STATUS_INTERNAL, "%s: tokens %lld + %lld of %lld asked for", shard->path,
            (long long)first, (long long)count, (long long)shard->header.tokens);
    while (count > 0) {
        const void *stored;
        int64_t held = 0;
        TRY(read_piece(shard, first, count, &stored, &held, out));
        first += held;
        out += held;
        count -= held;
    }
    return STATUS_OK;
}

status shard_read_documents(struct shard *shard, int64_t first, int64_t count, int64_t *out)
{
    bool inside = first >= 0 && count > 0 && first <= shard->header.documents + 1 - count;
    REQUIRE(inside, STATUS_INTERNAL, "%s: documents %lld + %lld of %lld asked for", shard->path,
            (long long)first, (long long)count, (long long)shard->header.documents);
    for (int64_t done = 0; done < count;) {
        const void *stored;
        int64_t held = 0;
        TRY(chunks_at(shard->documents, first + done, &stored, &held));
        held = held < count - done ? held : count - done;
        memcpy(out + done, stored, (size_t)held * sizeof *out);
        done += held;
    }
    int64_t before = first > 0 ? 0 : -1; /* only entry 0 may be 0 */
    for (int64_t i = 0; i < count; i++) {
        REQUIRE(
            out[i] > before && out[i] <= shard->header.tokens, STATUS_DATA,
            "%s: entry %lld of /documents is %lld after %lld: starts must rise up to %lld tokens",
            shard->path, (long long)(first + i), (long long)out[i], (long long)before,
            (long long)shard->header.tokens);
        before = out[i];
    }
    return STATUS_OK;
}

/* A guess as if all documents were of one length, then steps of 1, 2, 4, ... towards the place, then
 * halves: starts near each other are in one chunk, and few chunks are read. */
status shard_document_at(struct shard *shard, int64_t position, int64_t *out_document)
{
    int64_t tokens = shard->header.tokens, documents = shard->header.documents;
    REQUIRE(position >= 0 && position < tokens, STATUS_INTERNAL, "%s: token %lld of %lld asked for",
            shard->path, (long long)position, (long long)tokens);
    int64_t low = 0, high = documents; /* start[low] <= position < start[high] */
    int64_t probe = (int64_t)((double)position / (double)tokens * (double)documents), step = 1;
    while (high - low > 1) {
        int64_t start = 0;
        probe = probe > low && probe < high ? probe : low + (high - low) / 2;
        TRY(shard_read_documents(shard, probe, 1, &start));
        if (start <= position) {
            low = probe;
            probe += step;
        } else {
            high = probe;
            probe -= step;
        }
        step *= step < documents ? 2 : 1;
    }
    *out_document = low;
    return STATUS_OK;
}

static status compare_hash(const struct shard *s, const char *name, const char *stored,
                           struct hash **hash)
{
    char found[HASH_TEXT_BYTES];
    TRY(hash_finish(hash, found));
    REQUIRE(stored[0] == '\0' || strcmp(stored, found) == 0, STATUS_DATA,
            "%s is damaged: /%s has the SHA-256 %.12s..., its header says %.12s...", s->path, name,
            found, stored);
    return STATUS_OK;
}

static status verify_tokens(struct shard *s, struct hash *hash, int32_t *ids)
{
    for (int64_t first = 0, count = 0; first < s->header.tokens; first += count) {
        const void *stored;
        TRY(read_piece(s, first, PIECE_TOKENS, &stored, &count, ids));
        TRY(hash_update(hash, stored, (size_t)count * (size_t)s->header.token_bytes));
    }
    return STATUS_OK;
}

static status verify_documents(struct shard *s, struct hash *hash, int64_t *starts)
{
    int64_t entries = s->header.documents + 1, before = -1;
    for (int64_t first = 0; first < entries; first += SHARD_DOCUMENT_CHUNK) {
        int64_t left = entries - first;
        int64_t count = left < SHARD_DOCUMENT_CHUNK ? left : SHARD_DOCUMENT_CHUNK;
        TRY(shard_read_documents(s, first, count, starts));
        REQUIRE(starts[0] > before, STATUS_DATA,
                "%s: entry %lld of /documents is %lld after %lld: starts must rise", s->path,
                (long long)first, (long long)starts[0], (long long)before);
        before = starts[count - 1];
        TRY(hash_update(hash, starts, (size_t)count * sizeof *starts));
    }
    return STATUS_OK;
}

/* The bytes of a column as they are stored. */
static status verify_column(struct shard *s, int column)
{
    struct hash *hash = NULL;
    TRY(hash_create(&hash));
    status result = STATUS_OK;
    struct chunks *c = s->columns[column];
    for (int64_t first = 0, held = 0; first < chunks_items(c); first += held) {
        const void *stored;
        TRY_GOTO(result, done, chunks_at(c, first, &stored, &held));
        TRY_GOTO(result, done,
                 hash_update(hash, stored, (size_t)held * (size_t)chunks_item_bytes(c)));
    }
    result = compare_hash(s, example_format_of(s->header.kind)->column[column].name,
                          s->columns_sha256[column], &hash);
done:
    hash_destroy(&hash);
    return result;
}

status shard_verify(struct shard *shard)
{
    struct hash *hash = NULL;
    status result = STATUS_OK;
    void *buffer = malloc(PIECE_TOKENS * sizeof(int32_t)); /* or SHARD_DOCUMENT_CHUNK starts */
    REQUIRE_GOTO(result, done, buffer != NULL, STATUS_INTERNAL, "out of memory: a window");
    TRY_GOTO(result, done, hash_create(&hash));
    TRY_GOTO(result, done, verify_tokens(shard, hash, buffer));
    TRY_GOTO(result, done, compare_hash(shard, "tokens", shard->header.tokens_sha256, &hash));
    TRY_GOTO(result, done, hash_create(&hash));
    TRY_GOTO(result, done, verify_documents(shard, hash, buffer));
    TRY_GOTO(result, done, compare_hash(shard, "documents", shard->header.documents_sha256, &hash));
    for (int i = 0; i < example_format_of(shard->header.kind)->columns; i++) {
        TRY_GOTO(result, done, verify_column(shard, i));
    }
done:
    hash_destroy(&hash);
    free(buffer);
    return result;
}
