#define _GNU_SOURCE /* memmem */
/* Tests of shards: writing and reading, damaged files, and files with inconsistent content. */
#include <hdf5.h>

#include "base/number.h"
#include "base/random.h"
#include "datasets/shard/shard.h"
#include "datasets/shard/shared_examples.h"
#include "tests/datasets/folder.h"

#ifdef __SANITIZE_ADDRESS__
/* HDF5 leaks a few hundred bytes for each damaged object header. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libhdf5";
}
#endif

static const char *const tokenizer =
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

static int32_t make_token(int64_t i, int64_t vocab_size)
{
    return (int32_t)random_below(7, (uint64_t)i, (uint64_t)vocab_size);
}

/* Writes a shard of `tokens` tokens. Each document has `document` tokens, or fewer at the end. */
static void write_shard(const char *path, int64_t vocab_size, int64_t tokens, int64_t document)
{
    struct shard_header header = {.vocab_size = vocab_size, .eos_id = -1};
    snprintf(header.tokenizer_sha256, sizeof header.tokenizer_sha256, "%s", tokenizer);
    struct shard_writer *w;
    unlink(path);
    CHECK_OK(shard_writer_create(path, &header, &w));
    CHECK(!file_exists(path)); /* the file appears when it is complete */
    for (int64_t i = 0; i < tokens; i++) {
        int32_t id = make_token(i, vocab_size);
        CHECK_OK(shard_writer_append_tokens(w, &id, 1));
        if ((i + 1) % document == 0) {
            CHECK_OK(shard_writer_end_document(w));
            CHECK_OK(shard_writer_end_document(w)); /* an empty document is not written */
        }
    }
    CHECK_OK(shard_writer_close(&w));
    CHECK(w == NULL && file_exists(path));
}

static void check_round_trip(int64_t vocab_size, int64_t tokens, int64_t document)
{
    const char *path = folder_file("round.h5");
    write_shard(path, vocab_size, tokens, document);
    struct shard *s;
    CHECK_OK(shard_open(path, &s));
    const struct shard_header *h = shard_get_header(s);
    CHECK_EQUAL(h->tokens, tokens);
    CHECK_EQUAL(h->documents, number_divide_up(tokens, document));
    CHECK_EQUAL(h->vocab_size, vocab_size);
    CHECK_EQUAL(h->eos_id, -1);
    CHECK_EQUAL(h->token_bytes, vocab_size <= 65536 ? 2 : 4);
    CHECK_TEXT(h->tokenizer_sha256, tokenizer);
    CHECK_OK(shard_verify(s));
    int32_t *ids = malloc((size_t)tokens * sizeof *ids);
    CHECK_OK(shard_read(s, 0, tokens, ids));
    for (int64_t i = 0; i < tokens; i++) {
        CHECK_EQUAL(ids[i], make_token(i, vocab_size));
    }
    for (uint64_t i = 0; i < 200; i++) {
        int64_t first = (int64_t)random_below(1, i, (uint64_t)tokens);
        int64_t count = (int64_t)random_below(2, i, (uint64_t)(tokens - first) + 1);
        CHECK_OK(shard_read(s, first, count, ids));
        for (int64_t j = 0; j < count; j++) {
            CHECK_EQUAL(ids[j], make_token(first + j, vocab_size));
        }
        int64_t found;
        CHECK_OK(shard_find_document(s, first, &found));
        CHECK_EQUAL(found, first / document);
    }
    free(ids);
    int64_t starts[2];
    CHECK_OK(shard_read_documents(s, h->documents - 1, 2, starts));
    CHECK_EQUAL(starts[0], (h->documents - 1) * document);
    CHECK_EQUAL(starts[1], tokens);
    CHECK_OK(shard_check_tokenizer(s, vocab_size, tokenizer));
    CHECK_OK(shard_check_tokenizer(s, vocab_size + 1, tokenizer));
    CHECK_FAILS(shard_check_tokenizer(s, vocab_size - 1, tokenizer), STATUS_DATA, "round.h5");
    CHECK_OK(shard_check_tokenizer(s, vocab_size, NULL));
    CHECK_FAILS(shard_check_tokenizer(s, vocab_size + 1, NULL), STATUS_DATA, "round.h5");
    CHECK_FAILS(shard_check_tokenizer(s, vocab_size, "f"), STATUS_DATA, "another tokenizer");
    CHECK_OK(shard_close(&s));
}

static void test_round_trips(void)
{
    check_round_trip(65536, 1, 1);
    check_round_trip(65536, 32768, 32768);
    check_round_trip(50257, 32769, 1024);
    check_round_trip(100000, 16384 * 2 + 5, 7);
    check_round_trip(257, 100003, 31);
    check_round_trip(7, 5000, 1); /* more documents than one chunk holds */
    check_round_trip(7, 1023, 1);
    check_round_trip(7, 1024, 1);
}

static void test_same_bytes(void)
{
    write_shard(folder_file("a.h5"), 300, 40000, 999);
    write_shard(folder_file("b.h5"), 300, 40000, 999);
    size_t a_bytes, b_bytes;
    char *a = folder_read(folder_file("a.h5"), &a_bytes);
    char *b = folder_read(folder_file("b.h5"), &b_bytes);
    CHECK_EQUAL(a_bytes, b_bytes);
    CHECK(memcmp(a, b, a_bytes) == 0);
    free(a);
    free(b);
}

/* Not more examples are compared than the caller announces. */
static void test_shared_examples(void)
{
    int64_t shared = 0;
    write_shard(folder_file("train-00000-of-00001.h5"), 1000, 9, 3);
    write_shard(folder_file("validation-00000-of-00001.h5"), 1000, 9, 3);
    CHECK_OK(shared_examples_count(folder_file("."), 1, 1, 3, &shared));
    CHECK_EQUAL(shared, 3);
    CHECK_OK(shared_examples_count(folder_file("."), 1, 1, 1, &shared));
    CHECK_EQUAL(shared, 1);
}

static void test_writer_errors(void)
{
    struct shard_header header = {.vocab_size = 10, .eos_id = 9};
    snprintf(header.tokenizer_sha256, sizeof header.tokenizer_sha256, "%s", tokenizer);
    struct shard_writer *w;
    const int32_t bad[2] = {3, 10}, negative = -1;
    CHECK_FAILS(shard_writer_create(folder_file("no/x.h5"), &header, &w), STATUS_CREATE, "no/x.h5");
    CHECK_OK(shard_writer_create(folder_file("w.h5"), &header, &w));
    CHECK_FAILS(shard_writer_append_tokens(w, bad, 2), STATUS_DATA, "id 10");
    CHECK_FAILS(shard_writer_append_tokens(w, &negative, 1), STATUS_DATA, "id -1");
    CHECK_OK(shard_writer_abandon(&w));
    CHECK(!file_exists(folder_file("w.h5")) && !file_exists(folder_file("w.h5.tmp")));
    CHECK_OK(shard_writer_create(folder_file("w.h5"), &header, &w));
    CHECK_FAILS(shard_writer_close(&w), STATUS_DATA, "no tokens");
    CHECK(!file_exists(folder_file("w.h5")) && !file_exists(folder_file("w.h5.tmp")));
}

/* The content of a shard that is written without the shard writer. */
struct shard_content {
    const char *format;
    int64_t version, vocab_size, eos_id, tokens_attribute, documents_attribute;
    hid_t type;
    int64_t tokens;
    int64_t chunk; /* 0: contiguous */
    bool checksum;
    int64_t starts[4];
    int start_count;
    uint32_t id; /* of token 5 */
    const char *sha;
    bool oldest_format; /* of HDF5 */
};

static const struct shard_content good = {"bireme-tokens", 1, 50, 49,   20,   2, -1, 20, 16, true,
                                          {0, 12, 20},     3, 7,  NULL, false};

static void write_i64(hid_t file, const char *name, int64_t value)
{
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t a = H5Acreate2(file, name, H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(H5Awrite(a, H5T_NATIVE_INT64, &value) >= 0);
    H5Aclose(a);
    H5Sclose(space);
}

static void write_text(hid_t file, const char *name, const char *text)
{
    hid_t space = H5Screate(H5S_SCALAR), type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, strlen(text));
    hid_t a = H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(H5Awrite(a, type, text) >= 0);
    H5Aclose(a);
    H5Tclose(type);
    H5Sclose(space);
}

static void write_dataset(hid_t file, const char *name, hid_t type, hid_t memory, int64_t count,
                          int64_t chunk, bool checksum, const void *values)
{
    hsize_t size = (hsize_t)count, tile = (hsize_t)chunk, unlimited = H5S_UNLIMITED;
    hid_t space = H5Screate_simple(1, &size, chunk > 0 ? &unlimited : NULL),
          properties = H5Pcreate(H5P_DATASET_CREATE);
    if (chunk > 0) {
        CHECK(H5Pset_chunk(properties, 1, &tile) >= 0);
    }
    if (checksum) {
        CHECK(H5Pset_fletcher32(properties) >= 0);
    }
    hid_t dataset = H5Dcreate2(file, name, type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    CHECK(dataset >= 0);
    CHECK(count == 0 || H5Dwrite(dataset, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    H5Dclose(dataset);
    H5Pclose(properties);
    H5Sclose(space);
}

static void write_content(const char *path, const struct shard_content *r)
{
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5F_libver_t oldest = r->oldest_format ? H5F_LIBVER_EARLIEST : H5F_LIBVER_V110;
    CHECK(H5Pset_libver_bounds(access, oldest, H5F_LIBVER_V110) >= 0);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    H5Pclose(access);
    uint32_t ids[64] = {0};
    ids[5] = r->id;
    write_dataset(file, "tokens", r->type < 0 ? H5T_STD_U16LE : r->type, H5T_NATIVE_UINT32,
                  r->tokens, r->chunk, r->checksum, ids);
    write_dataset(file, "documents", H5T_STD_U64LE, H5T_NATIVE_INT64, r->start_count, 4, true,
                  r->starts);
    if (r->format != NULL) {
        write_text(file, "format", r->format);
    }
    write_i64(file, "format_version", r->version);
    write_i64(file, "vocab_size", r->vocab_size);
    write_i64(file, "eos_id", r->eos_id);
    write_i64(file, "tokens", r->tokens_attribute);
    write_i64(file, "documents", r->documents_attribute);
    write_text(file, "tokenizer_sha256", r->sha != NULL ? r->sha : tokenizer);
    H5Fclose(file);
}

static status open_and_verify(const char *path)
{
    struct shard *s;
    TRY(shard_open(path, &s));
    status result = shard_verify(s);
    KEEP_FIRST(result, shard_close(&s));
    return result;
}

static void check_content_refused(struct shard_content r, const char *text)
{
    const char *path = folder_file("content.h5");
    write_content(path, &r);
    CHECK_EQUAL(open_and_verify(path), STATUS_DATA);
    CHECK(strstr(status_pending()->text, path) != NULL);
    CHECK_FAILS(status_pending()->code, STATUS_DATA, text);
}

#define CHECK_REFUSED(text, ...)                                                                   \
    do {                                                                                           \
        struct shard_content r = good;                                                             \
        __VA_ARGS__;                                                                               \
        check_content_refused(r, text);                                                            \
    } while (0)

static void test_invalid_content(void)
{
    write_content(folder_file("good.h5"), &good); /* without the two SHA-256 of the shard writer */
    CHECK_OK(open_and_verify(folder_file("good.h5")));
    CHECK_REFUSED("oldest format", r.oldest_format = true);
    CHECK_REFUSED("not a token shard", r.format = NULL);
    CHECK_REFUSED("format is 'other'", r.format = "other");
    CHECK_REFUSED("format_version 2", r.version = 2);
    CHECK_REFUSED("vocab_size is 0", r.vocab_size = 0);
    CHECK_REFUSED("vocab_size is 1099511627776", r.vocab_size = INT64_C(1) << 40);
    CHECK_REFUSED("eos_id is 50", r.eos_id = 50);
    CHECK_REFUSED("eos_id is -2", r.eos_id = -2);
    CHECK_REFUSED("the attribute 'tokens' is 21", r.tokens_attribute = 21);
    CHECK_REFUSED("contains no tokens", r.tokens = 0);
    CHECK_REFUSED("the attribute 'documents' is 3", r.documents_attribute = 3);
    CHECK_REFUSED("integer of 4", r.type = H5T_STD_I32LE);
    CHECK_REFUSED("float of 4", r.type = H5T_IEEE_F32LE);
    CHECK_REFUSED("not stored in chunks", (r.chunk = 0, r.checksum = false));
    CHECK_REFUSED("not stored in chunks", r.checksum = false);
    CHECK_REFUSED("token 5 has the id 50", r.id = 50);
    CHECK_REFUSED("token 5 has the id 3000000000", (r.type = H5T_STD_U32LE, r.id = 3000000000u));
    CHECK_REFUSED("must increase", r.starts[1] = 0);
    CHECK_REFUSED("must increase", (r.starts[1] = -5));
    CHECK_REFUSED("must increase", r.starts[1] = 21);
    CHECK_REFUSED("must increase", (r.starts[2] = 11, r.starts[3] = 20, r.start_count = 4,
                                    r.documents_attribute = 3));
    CHECK_REFUSED("covers tokens 0 to 19", r.starts[2] = 19);
    CHECK_REFUSED("covers tokens 1 to 20", r.starts[0] = 1);
    CHECK_REFUSED("not a SHA-256", r.sha = "abc");
    CHECK_REFUSED("not a SHA-256",
                  r.sha = "../../../../../etc/passwd/../../../../../../../../../../../../");
}

/* After a flip of one bit the shard is refused, or its tokens still match their SHA-256. */
static void test_flipped_bits(void)
{
    const char *path = folder_file("whole.h5"), *broken = folder_file("broken.h5");
    write_shard(path, 1000, 70000, 333);
    size_t bytes;
    char *data = folder_read(path, &bytes);
    int refused_count = 0;
    for (uint64_t i = 0; i < 300; i++) {
        size_t at = (size_t)random_below(3, i, i % 2 == 0 ? bytes : 4096);
        data[at] = (char)(data[at] ^ (1 << random_below(4, i, 8)));
        folder_write(broken, data, bytes);
        status result = open_and_verify(broken);
        CHECK(result == STATUS_OK || result == STATUS_DATA);
        CHECK(result == STATUS_OK || strstr(status_pending()->text, broken) != NULL);
        status_clear();
        refused_count += result != STATUS_OK; /* otherwise the bit is unused */
        data[at] = (char)(data[at] ^ (1 << random_below(4, i, 8)));
    }
    CHECK(refused_count > 150);
    for (size_t size = 1; size < bytes; size += bytes / 23) {
        folder_write(broken, data, size);
        CHECK_FAILS(open_and_verify(broken), STATUS_DATA, broken);
    }
    free(data);
}

/* Two swapped chunks have correct Fletcher32 checksums. The SHA-256 detects them. */
static void test_swapped_chunks(void)
{
    const char *path = folder_file("whole.h5"), *broken = folder_file("swapped.h5");
    size_t bytes;
    char *data = folder_read(path, &bytes);
    enum { CHUNK = 16 << 10, STORED = CHUNK + 4 };
    size_t offset[2] = {0, 0};
    for (int chunk = 0; chunk < 2; chunk++) {
        uint16_t head[64];
        for (int i = 0; i < 64; i++) {
            head[i] = (uint16_t)make_token(chunk * CHUNK / 2 + i, 1000);
        }
        char *found = memmem(data, bytes, head, sizeof head);
        CHECK(found != NULL);
        offset[chunk] = (size_t)(found - data);
    }
    char *saved = malloc(STORED);
    memcpy(saved, data + offset[0], STORED);
    memcpy(data + offset[0], data + offset[1], STORED);
    memcpy(data + offset[1], saved, STORED);
    folder_write(broken, data, bytes);
    CHECK_FAILS(open_and_verify(broken), STATUS_DATA, "SHA-256");
    free(saved);
    free(data);
}

static void test_inspect(void)
{
    CHECK(freopen("/dev/null", "w", stdout) != NULL);
    CHECK_OK(shard_inspect(folder_file("whole.h5"), false));
    CHECK_OK(shard_inspect(folder_file("whole.h5"), true));
    CHECK_FAILS(shard_inspect(folder_file("swapped.h5"), true), STATUS_DATA, "damaged");
    CHECK_FAILS(shard_inspect(folder_file("none.h5"), true), STATUS_NO_INPUT, "none.h5");
}

int main(void)
{
    folder_make();
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    test_round_trips();
    test_same_bytes();
    test_shared_examples();
    test_writer_errors();
    test_invalid_content();
    test_flipped_bits();
    test_swapped_chunks();
    test_inspect();
    return 0;
}
