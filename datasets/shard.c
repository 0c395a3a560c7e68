/* Reading shards. A window is one H5Dread of 16- or 32-bit ids into a small buffer, widened to int32
 * and compared with vocab_size in one loop here. Every id that leaves this file was compared
 * with vocab_size, so that no reader of a batch has to. */
#include "datasets/shard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "datasets/h5file.h"
#include "datasets/shard_impl.h"

enum {
    PIECE_TOKENS = 32768, /* tokens of one H5Dread at most; at 16 bits as large as a chunk */
    CACHE_BYTES = 256 << 10,
    CACHE_SLOTS = 67
};

struct shard {
    struct shard_header header;
    hid_t file, tokens, documents;
    hid_t space; /* of /tokens; its selection moves */
    void *piece; /* [PIECE_TOKENS] of the file's type */
    char *path;
};

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

/* Chunks are read whole whatever the window, so their size is a cost that the file dictates. */
static status check_chunks(struct shard *s, hid_t dataset, const char *name, int64_t item_bytes)
{
    hid_t properties = H5Dget_create_plist(dataset);
    hsize_t chunk = 0;
    bool chunked =
        H5Pget_layout(properties) == H5D_CHUNKED && H5Pget_chunk(properties, 1, &chunk) == 1;
    bool summed = H5Pget_nfilters(properties) == 1; /* h5file_dataset accepts no other filter */
    H5Pclose(properties);
    REQUIRE(chunked && summed, STATUS_DATA,
            "%s: /%s is not stored in chunks with Fletcher32 checksums; `bireme prepare` does so",
            s->path, name);
    REQUIRE(chunk <= (hsize_t)(SHARD_CHUNK_LIMIT_BYTES / item_bytes), STATUS_DATA,
            "%s: /%s has chunks of %llu elements; at most %lld are accepted", s->path, name,
            (unsigned long long)chunk, (long long)(SHARD_CHUNK_LIMIT_BYTES / item_bytes));
    return STATUS_OK;
}

/* Random windows find nothing in a large cache; a few chunks serve windows that follow each other. */
static status reopen_with_cache(struct shard *s, hid_t *dataset, const char *name)
{
    hid_t access = H5Pcreate(H5P_DATASET_ACCESS);
    H5Pset_chunk_cache(access, CACHE_SLOTS, CACHE_BYTES, 1.0);
    H5Dclose(*dataset);
    *dataset = H5Dopen2(s->file, name, access);
    const char *why = *dataset >= 0 ? "" : h5file_reason();
    H5Pclose(access);
    REQUIRE(*dataset >= 0, STATUS_DATA, "%s: /%s cannot be opened: %s", s->path, name, why);
    return STATUS_OK;
}

static status open_tokens(struct shard *s)
{
    int64_t stored = 0;
    int rank = 0;
    TRY(h5file_dataset(s->file, s->path, "tokens", H5I_INVALID_HID, 1, &s->tokens, &stored, &rank));
    REQUIRE(rank == 1, STATUS_DATA, "%s: /tokens has %d dimensions instead of 1", s->path, rank);
    hid_t type = H5Dget_type(s->tokens);
    s->header.token_bytes = (int)H5Tget_size(type);
    H5Tclose(type);
    REQUIRE(stored > 0, STATUS_DATA, "%s holds no tokens", s->path);
    REQUIRE(stored == s->header.tokens, STATUS_DATA,
            "%s: /tokens holds %lld tokens, the attribute 'tokens' says %lld", s->path,
            (long long)stored, (long long)s->header.tokens);
    TRY(check_chunks(s, s->tokens, "tokens", s->header.token_bytes));
    TRY(reopen_with_cache(s, &s->tokens, "tokens"));
    s->space = H5Dget_space(s->tokens);
    REQUIRE(s->space >= 0, STATUS_DATA, "%s: /tokens cannot be read: %s", s->path, h5file_reason());
    s->piece = malloc((size_t)PIECE_TOKENS * (size_t)s->header.token_bytes);
    REQUIRE(s->piece != NULL, STATUS_INTERNAL, "out of memory: a window of %s", s->path);
    return STATUS_OK;
}

static status open_documents(struct shard *s)
{
    int64_t stored = 0;
    int rank = 0;
    TRY(h5file_dataset(s->file, s->path, "documents", H5T_STD_U64LE, 1, &s->documents, &stored,
                       &rank));
    REQUIRE(rank == 1, STATUS_DATA, "%s: /documents has %d dimensions instead of 1", s->path, rank);
    bool agrees = s->header.documents > 0 && stored - 1 == s->header.documents;
    REQUIRE(agrees, STATUS_DATA,
            "%s: /documents has %lld entries, the attribute 'documents' says %lld (one entry less)",
            s->path, (long long)stored, (long long)s->header.documents);
    TRY(check_chunks(s, s->documents, "documents", (int64_t)sizeof(uint64_t)));
    TRY(reopen_with_cache(s, &s->documents, "documents"));
    int64_t first = 0, last = 0;
    TRY(shard_read_documents(s, 0, 1, &first));
    TRY(shard_read_documents(s, s->header.documents, 1, &last));
    REQUIRE(first == 0 && last == s->header.tokens, STATUS_DATA,
            "%s: /documents covers tokens %lld to %lld instead of 0 to %lld", s->path,
            (long long)first, (long long)last, (long long)s->header.tokens);
    return STATUS_OK;
}

status shard_open(const char *path, struct shard **out)
{
    *out = NULL;
    struct shard *s = calloc(1, sizeof *s);
    REQUIRE(s != NULL, STATUS_INTERNAL, "out of memory: a shard");
    s->file = s->tokens = s->documents = s->space = H5I_INVALID_HID;
    s->path = strdup(path);
    status result = STATUS_OK;
    REQUIRE_GOTO(result, failed, s->path != NULL, STATUS_INTERNAL, "out of memory: a path");
    TRY_GOTO(result, failed, h5file_open(path, &s->file));
    TRY_GOTO(result, failed, read_header(s));
    TRY_GOTO(result, failed, open_tokens(s));
    TRY_GOTO(result, failed, open_documents(s));
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
    if (s->space >= 0) {
        H5Sclose(s->space);
    }
    if (s->tokens >= 0) {
        H5Dclose(s->tokens);
    }
    if (s->documents >= 0) {
        H5Dclose(s->documents);
    }
    if (s->file >= 0) {
        H5Fclose(s->file); /* read only: nothing can be lost */
    }
    free(s->piece);
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

/* NULL, or why elements [first, first + count) cannot be read. */
static const char *read_range(hid_t dataset, hid_t space, hid_t type, int64_t first, int64_t count,
                              void *out)
{
    hsize_t start = (hsize_t)first, length = (hsize_t)count;
    hid_t memory = H5Screate_simple(1, &length, NULL);
    bool read = memory >= 0 &&
                H5Sselect_hyperslab(space, H5S_SELECT_SET, &start, NULL, &length, NULL) >= 0 &&
                H5Dread(dataset, type, memory, space, H5P_DEFAULT, out) >= 0;
    const char *why = read ? NULL : h5file_reason();
    H5Sclose(memory);
    return why;
}

/* The ids as stored, in s->piece; count <= PIECE_TOKENS. */
static status read_stored(struct shard *s, int64_t first, int64_t count)
{
    h5file_start();
    hid_t type = s->header.token_bytes == 2 ? H5T_NATIVE_UINT16 : H5T_NATIVE_UINT32;
    const char *why = read_range(s->tokens, s->space, type, first, count, s->piece);
    REQUIRE(why == NULL, STATUS_DATA, "%s is damaged: tokens %lld to %lld cannot be read: %s",
            s->path, (long long)first, (long long)(first + count - 1), why);
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

static status read_piece(struct shard *s, int64_t first, int64_t count, int32_t *out)
{
    TRY(read_stored(s, first, count));
    uint32_t largest =
        s->header.token_bytes == 2 ? widen16(s->piece, count, out) : widen32(s->piece, count, out);
    return check_ids(s, first, count, out, largest);
}

status shard_read(struct shard *shard, int64_t first, int64_t count, int32_t *out)
{
    bool inside = first >= 0 && count >= 0 && first <= shard->header.tokens - count;
    REQUIRE(inside, STATUS_INTERNAL, "%s: tokens %lld + %lld of %lld asked for", shard->path,
            (long long)first, (long long)count, (long long)shard->header.tokens);
    while (count > 0) {
        int64_t piece = count < PIECE_TOKENS ? count : PIECE_TOKENS;
        TRY(read_piece(shard, first, piece, out));
        first += piece;
        out += piece;
        count -= piece;
    }
    return STATUS_OK;
}

status shard_read_documents(struct shard *shard, int64_t first, int64_t count, int64_t *out)
{
    bool inside = first >= 0 && count > 0 && first <= shard->header.documents + 1 - count;
    REQUIRE(inside, STATUS_INTERNAL, "%s: documents %lld + %lld of %lld asked for", shard->path,
            (long long)first, (long long)count, (long long)shard->header.documents);
    h5file_start();
    hid_t space = H5Dget_space(shard->documents);
    const char *why = read_range(shard->documents, space, H5T_NATIVE_UINT64, first, count, out);
    H5Sclose(space);
    REQUIRE(why == NULL, STATUS_DATA, "%s is damaged: /documents cannot be read: %s", shard->path,
            why);
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

status shard_document_at(struct shard *shard, int64_t position, int64_t *out_document)
{
    REQUIRE(position >= 0 && position < shard->header.tokens, STATUS_INTERNAL,
            "%s: token %lld of %lld asked for", shard->path, (long long)position,
            (long long)shard->header.tokens);
    int64_t low = 0, high = shard->header.documents; /* start[low] <= position < start[high] */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2, start = 0;
        TRY(shard_read_documents(shard, middle, 1, &start));
        if (start <= position) {
            low = middle;
        } else {
            high = middle;
        }
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
    for (int64_t first = 0; first < s->header.tokens; first += PIECE_TOKENS) {
        int64_t left = s->header.tokens - first;
        int64_t count = left < PIECE_TOKENS ? left : PIECE_TOKENS;
        TRY(read_piece(s, first, count, ids));
        TRY(hash_update(hash, s->piece, (size_t)count * (size_t)s->header.token_bytes));
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
done:
    hash_destroy(&hash);
    free(buffer);
    return result;
}
