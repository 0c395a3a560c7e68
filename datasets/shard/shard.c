/* Reads shards. A window is copied from the chunks that it overlaps. One loop converts the ids to
 * int32 and finds the largest id, which is compared with vocab_size. All ids that this file returns
 * are therefore valid, and later code does not check them. */
#include "datasets/shard/shard.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/number.h"
#include "datasets/shard/chunks.h"
#include "datasets/shard/h5file.h"
#include "datasets/shard/labels.h"
#include "datasets/shard/shard_impl.h"

enum { VERIFY_TOKENS = 16384 }; /* tokens that shard_verify checks at a time */

struct shard {
    struct shard_header header;
    hid_t file;
    struct chunks *tokens, *documents, *columns[EXAMPLE_COLUMNS_MAX];
    char columns_sha256[EXAMPLE_COLUMNS_MAX][HASH_TEXT_BYTES];
    char *path;
    char *labels; /* JSON array of label names; NULL: none */
};

const char *shard_labels(const struct shard *shard)
{
    return shard->labels;
}

const struct shard_header *shard_get_header(const struct shard *shard)
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
    bool valid = strlen(out) == HASH_TEXT_BYTES - 1 &&
                 strspn(out, "0123456789abcdef") == HASH_TEXT_BYTES - 1;
    REQUIRE(valid, STATUS_DATA, "%s: attribute '%s' is not a SHA-256", path, name);
    return STATUS_OK;
}

static status read_header(struct shard *s)
{
    char format[64];
    int64_t version = 0;
    struct shard_header *h = &s->header;
    REQUIRE(h5file_has_attribute(s->file, "format"), STATUS_DATA,
            "%s is an HDF5 file but not a token shard: it has no attribute 'format'; make shards "
            "with `bireme prepare`",
            s->path);
    TRY(h5file_read_text(s->file, s->path, "format", format, (int)sizeof format));
    REQUIRE(strcmp(format, SHARD_FORMAT) == 0, STATUS_DATA,
            "%s is not a token shard: its format is '%s' instead of '" SHARD_FORMAT "'", s->path,
            format);
    TRY(h5file_read_i64(s->file, s->path, "format_version", &version, 1));
    REQUIRE(version == SHARD_FORMAT_VERSION, STATUS_DATA,
            "%s has format_version %" PRId64 "; this program reads version %d", s->path, version,
            SHARD_FORMAT_VERSION);
    TRY(h5file_read_i64(s->file, s->path, "vocab_size", &h->vocab_size, 1));
    TRY(h5file_read_i64(s->file, s->path, "eos_id", &h->eos_id, 1));
    TRY(h5file_read_i64(s->file, s->path, "tokens", &h->tokens, 1));
    TRY(h5file_read_i64(s->file, s->path, "documents", &h->documents, 1));
    TRY(read_hash(s->file, s->path, "tokenizer_sha256", h->tokenizer_sha256));
    if (h5file_has_attribute(s->file, "tokens_sha256")) {
        TRY(read_hash(s->file, s->path, "tokens_sha256", h->tokens_sha256));
    }
    if (h5file_has_attribute(s->file, "documents_sha256")) {
        TRY(read_hash(s->file, s->path, "documents_sha256", h->documents_sha256));
    }
    REQUIRE(h->vocab_size > 0 && h->vocab_size <= SHARD_VOCAB_MAX, STATUS_DATA,
            "%s: vocab_size is %" PRId64 ", outside of 1 to 2^31", s->path, h->vocab_size);
    REQUIRE(h->eos_id >= -1 && h->eos_id < h->vocab_size, STATUS_DATA,
            "%s: eos_id is %" PRId64 " with a vocabulary of %" PRId64, s->path, h->eos_id,
            h->vocab_size);
    return STATUS_OK;
}

static status open_tokens(struct shard *s)
{
    TRY(chunks_open(s->file, s->path, "tokens", H5I_INVALID_HID, &s->tokens));
    int64_t stored = chunks_item_count(s->tokens);
    s->header.token_bytes = chunks_item_bytes(s->tokens);
    REQUIRE(stored > 0, STATUS_DATA, "%s contains no tokens", s->path);
    REQUIRE(stored == s->header.tokens, STATUS_DATA,
            "%s: /tokens has %" PRId64 " tokens, but the attribute 'tokens' is %" PRId64, s->path,
            stored, s->header.tokens);
    return STATUS_OK;
}

static status open_documents(struct shard *s)
{
    TRY(chunks_open(s->file, s->path, "documents", H5T_STD_U64LE, &s->documents));
    int64_t stored = chunks_item_count(s->documents);
    bool matches = s->header.documents > 0 && stored - 1 == s->header.documents;
    REQUIRE(matches, STATUS_DATA,
            "%s: /documents has %" PRId64 " entries, but the attribute 'documents' is %" PRId64
            " (it must be one less)",
            s->path, stored, s->header.documents);
    int64_t first = 0, last = 0;
    TRY(shard_read_documents(s, 0, 1, &first));
    TRY(shard_read_documents(s, s->header.documents, 1, &last));
    REQUIRE(first == 0 && last == s->header.tokens, STATUS_DATA,
            "%s: /documents covers tokens %" PRId64 " to %" PRId64 " instead of 0 to %" PRId64,
            s->path, first, last, s->header.tokens);
    return STATUS_OK;
}

static status read_kind(struct shard *s)
{
    if (!h5file_has_attribute(s->file, "examples")) {
        return STATUS_OK; /* text */
    }
    char name[SHARD_NAME_BYTES];
    int64_t version = 0;
    TRY(h5file_read_text(s->file, s->path, "examples", name, (int)sizeof name));
    TRY(h5file_read_i64(s->file, s->path, "examples_version", &version, 1));
    TRY(h5file_read_i64(s->file, s->path, "longest", &s->header.longest_tokens, 1));
    s->header.kind = example_find_kind(name);
    REQUIRE(s->header.kind != EXAMPLE_KINDS, STATUS_DATA,
            "%s contains examples of the unknown kind '%s'", s->path, name);
    REQUIRE(version == example_get_format(s->header.kind)->version, STATUS_DATA,
            "%s contains %s of version %" PRId64 "; this program reads version %" PRId64, s->path,
            name, version, example_get_format(s->header.kind)->version);
    s->header.join_encoding = h5file_has_attribute(s->file, "join_encoding");
    return STATUS_OK;
}

/* Hashes everything except the tokens: the document starts and the columns. */
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
    if (!h5file_has_attribute(s->file, "labels")) {
        return STATUS_OK;
    }
    TRY(ALLOCATE(s->labels, LABELS_TEXT_BYTES, "label names"));
    TRY(h5file_read_text(s->file, s->path, "labels", s->labels, LABELS_TEXT_BYTES));
    TRY(labels_parse_json(s->labels, s->path, &labels));
    s->header.label_count = labels.count;
    labels_free(&labels);
    return labels_hash(s->labels, s->header.labels_sha256);
}

/* Returns the type in the file. In memory all values are uint32; a float32 is kept as its bits. */
static hid_t get_column_type(const struct example_column *c)
{
    return c->is_float ? H5T_IEEE_F32LE : c->bytes == 1 ? H5T_STD_U8LE : H5T_STD_U32LE;
}

static status open_columns(struct shard *s)
{
    TRY(read_kind(s));
    TRY(read_labels(s));
    const struct example_format *format = example_get_format(s->header.kind);
    for (int i = 0; i < format->columns; i++) {
        const struct example_column *c = &format->column[i];
        char name[SHARD_NAME_BYTES];
        TRY(chunks_open(s->file, s->path, c->name, get_column_type(c), &s->columns[i]));
        int64_t stored = chunks_item_count(s->columns[i]);
        int64_t expected = c->per_token ? s->header.tokens : s->header.documents;
        REQUIRE(stored == expected, STATUS_DATA,
                "%s: /%s has %" PRId64 " values instead of %" PRId64, s->path, c->name, stored,
                expected);
        snprintf(name, sizeof name, "%s_sha256", c->name);
        if (h5file_has_attribute(s->file, name)) {
            TRY(read_hash(s->file, s->path, name, s->columns_sha256[i]));
        }
    }
    return hash_examples(s);
}

status shard_read_column(struct shard *s, int column, int64_t first, int64_t count, uint32_t *out)
{
    struct chunks *c = s->columns[column];
    REQUIRE(first >= 0 && count >= 0 && first <= chunks_item_count(c) - count, STATUS_INTERNAL,
            "%s: %" PRId64 " values from index %" PRId64 " are outside of the %" PRId64 " values",
            s->path, count, first, chunks_item_count(c));
    for (int64_t done = 0, available = 0; done < count; done += available) {
        const void *stored;
        TRY(chunks_read(c, first + done, &stored, &available));
        available = number_min(available, count - done);
        for (int64_t i = 0; i < available; i++) {
            out[done + i] = chunks_item_bytes(c) == 1 ? ((const uint8_t *)stored)[i]
                                                      : ((const uint32_t *)stored)[i];
        }
    }
    return STATUS_OK;
}

status shard_open(const char *path, struct shard **out)
{
    *out = NULL;
    struct shard *s;
    TRY(ALLOCATE(s, 1, "a shard"));
    s->file = H5I_INVALID_HID;
    status result = STATUS_OK;
    TRY_GOTO(result, failed, memory_copy_text(&s->path, path, "a path"));
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
    h5file_init();
    chunks_close(&s->tokens);
    chunks_close(&s->documents);
    for (int i = 0; i < EXAMPLE_COLUMNS_MAX; i++) {
        chunks_close(&s->columns[i]);
    }
    if (s->file >= 0) {
        H5Fclose(s->file); /* read only, so a failure loses no data */
    }
    free(s->labels);
    free(s->path);
    free(s);
    return STATUS_OK;
}

status shard_for_each_part(const char *folder, const char *set, int shards, shard_visit *visit,
                           void *context)
{
    for (int i = 0; i < shards; i++) {
        char path[FILE_PATH_BYTES], name[64];
        struct shard *shard = NULL;
        snprintf(name, sizeof name, "%s-%05d-of-%05d.h5", set, i, shards);
        TRY(file_join(path, folder, name));
        TRY(shard_open(path, &shard));
        status result = visit(shard, context);
        KEEP_FIRST(result, shard_close(&shard));
        TRY(result);
    }
    return STATUS_OK;
}

status shard_check_tokenizer(const struct shard *shard, int64_t vocab_size,
                             const char *tokenizer_sha256)
{
    const struct shard_header *h = &shard->header;
    bool fits =
        tokenizer_sha256 != NULL ? h->vocab_size <= vocab_size : h->vocab_size == vocab_size;
    REQUIRE(fits, STATUS_DATA,
            "%s was made with a vocabulary of %" PRId64 " tokens, but the %s %" PRId64, shard->path,
            h->vocab_size, tokenizer_sha256 != NULL ? "model has" : "recipe has model.vocab_size",
            vocab_size);
    bool matches_hash =
        tokenizer_sha256 == NULL || strcmp(h->tokenizer_sha256, tokenizer_sha256) == 0;
    REQUIRE(matches_hash, STATUS_DATA,
            "%s was made with another tokenizer (SHA-256 %.12s..., the configured one has "
            "%.12s...); run `bireme prepare` again",
            shard->path, h->tokenizer_sha256, tokenizer_sha256);
    return STATUS_OK;
}

/* Converts ids to int32 and returns the largest. */
static uint32_t convert_uint16_ids(const uint16_t *ids, int64_t count, int32_t *out)
{
    uint16_t largest = 0;
    for (int64_t i = 0; i < count; i++) {
        out[i] = ids[i];
        largest = ids[i] > largest ? ids[i] : largest;
    }
    return largest;
}

static uint32_t convert_uint32_ids(const uint32_t *ids, int64_t count, int32_t *out)
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
                "%s: token %" PRId64 " has the id %u, outside of the vocabulary of %" PRId64,
                s->path, first + i, id, s->header.vocab_size);
    }
    return STATUS_OK;
}

/* Reads at most `limit` tokens from `first` to the end of its chunk: as stored, and as int32 in
 * out[*count]. */
static status read_chunk_ids(struct shard *s, int64_t first, int64_t limit, const void **stored,
                             int64_t *count, int32_t *out)
{
    TRY(chunks_read(s->tokens, first, stored, count));
    *count = number_min(*count, limit);
    uint32_t largest = s->header.token_bytes == 2 ? convert_uint16_ids(*stored, *count, out)
                                                  : convert_uint32_ids(*stored, *count, out);
    return check_ids(s, first, *count, out, largest);
}

status shard_read(struct shard *shard, int64_t first, int64_t count, int32_t *out)
{
    bool in_range = first >= 0 && count >= 0 && first <= shard->header.tokens - count;
    REQUIRE(in_range, STATUS_INTERNAL,
            "%s: %" PRId64 " tokens from index %" PRId64 " are outside of the %" PRId64 " tokens",
            shard->path, count, first, shard->header.tokens);
    while (count > 0) {
        const void *stored;
        int64_t available = 0;
        TRY(read_chunk_ids(shard, first, count, &stored, &available, out));
        first += available;
        out += available;
        count -= available;
    }
    return STATUS_OK;
}

status shard_read_documents(struct shard *shard, int64_t first, int64_t count, int64_t *out)
{
    bool in_range = first >= 0 && count > 0 && first <= shard->header.documents + 1 - count;
    REQUIRE(in_range, STATUS_INTERNAL,
            "%s: %" PRId64 " entries of /documents from index %" PRId64
            " are outside of the %" PRId64 " documents",
            shard->path, count, first, shard->header.documents);
    for (int64_t done = 0; done < count;) {
        const void *stored;
        int64_t available = 0;
        TRY(chunks_read(shard->documents, first + done, &stored, &available));
        available = number_min(available, count - done);
        memcpy(out + done, stored, (size_t)available * sizeof *out);
        done += available;
    }
    int64_t previous = first > 0 ? 0 : -1; /* only entry 0 may be 0 */
    for (int64_t i = 0; i < count; i++) {
        REQUIRE(out[i] > previous && out[i] <= shard->header.tokens, STATUS_DATA,
                "%s: entry %" PRId64 " of /documents is %" PRId64 " after %" PRId64
                ": the entries must increase up to %" PRId64,
                shard->path, first + i, out[i], previous, shard->header.tokens);
        previous = out[i];
    }
    return STATUS_OK;
}

/* Searches from a first guess that assumes documents of equal length, with steps of 1, 2, 4, ...
 * and then by bisection. Entries close to each other are in the same chunk, so that few chunks
 * are read. */
status shard_find_document(struct shard *shard, int64_t position, int64_t *out_document)
{
    int64_t tokens = shard->header.tokens, documents = shard->header.documents;
    REQUIRE(position >= 0 && position < tokens, STATUS_INTERNAL,
            "%s: token %" PRId64 " is outside of the %" PRId64 " tokens", shard->path, position,
            tokens);
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
            "%s is damaged: /%s has the SHA-256 %.12s..., but its header stores %.12s...", s->path,
            name, found, stored);
    return STATUS_OK;
}

static status verify_tokens(struct shard *s, struct hash *hash, int32_t *ids)
{
    for (int64_t first = 0, count = 0; first < s->header.tokens; first += count) {
        const void *stored;
        TRY(read_chunk_ids(s, first, VERIFY_TOKENS, &stored, &count, ids));
        TRY(hash_update(hash, stored, (size_t)count * (size_t)s->header.token_bytes));
    }
    return STATUS_OK;
}

static status verify_documents(struct shard *s, struct hash *hash, int64_t *starts)
{
    int64_t entries = s->header.documents + 1, previous = -1;
    for (int64_t first = 0; first < entries; first += SHARD_DOCUMENT_CHUNK) {
        int64_t left = entries - first;
        int64_t count = number_min(left, SHARD_DOCUMENT_CHUNK);
        TRY(shard_read_documents(s, first, count, starts));
        REQUIRE(starts[0] > previous, STATUS_DATA,
                "%s: entry %" PRId64 " of /documents is %" PRId64 " after %" PRId64
                ": the entries must increase",
                s->path, first, starts[0], previous);
        previous = starts[count - 1];
        TRY(hash_update(hash, starts, (size_t)count * sizeof *starts));
    }
    return STATUS_OK;
}

/* Reads a column and compares the SHA-256 of its stored bytes. */
static status verify_column(struct shard *s, int column)
{
    struct hash *hash = NULL;
    TRY(hash_create(&hash));
    status result = STATUS_OK;
    struct chunks *c = s->columns[column];
    for (int64_t first = 0, available = 0; first < chunks_item_count(c); first += available) {
        const void *stored;
        TRY_GOTO(result, done, chunks_read(c, first, &stored, &available));
        TRY_GOTO(result, done,
                 hash_update(hash, stored, (size_t)available * (size_t)chunks_item_bytes(c)));
    }
    result = compare_hash(s, example_get_format(s->header.kind)->column[column].name,
                          s->columns_sha256[column], &hash);
done:
    hash_destroy(&hash);
    return result;
}

status shard_verify(struct shard *shard)
{
    struct hash *hash = NULL;
    status result = STATUS_OK;
    /* also large enough for SHARD_DOCUMENT_CHUNK starts */
    void *buffer = NULL;
    TRY_GOTO(result, done,
             memory_allocate_array(&buffer, VERIFY_TOKENS, sizeof(int32_t), "a window"));
    TRY_GOTO(result, done, hash_create(&hash));
    TRY_GOTO(result, done, verify_tokens(shard, hash, buffer));
    TRY_GOTO(result, done, compare_hash(shard, "tokens", shard->header.tokens_sha256, &hash));
    TRY_GOTO(result, done, hash_create(&hash));
    TRY_GOTO(result, done, verify_documents(shard, hash, buffer));
    TRY_GOTO(result, done, compare_hash(shard, "documents", shard->header.documents_sha256, &hash));
    for (int i = 0; i < example_get_format(shard->header.kind)->columns; i++) {
        TRY_GOTO(result, done, verify_column(shard, i));
    }
done:
    hash_destroy(&hash);
    free(buffer);
    return result;
}
