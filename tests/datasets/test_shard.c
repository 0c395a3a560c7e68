#define _GNU_SOURCE /* memmem */
/* Shards: what is written comes back; what is damaged, foreign or contradicts itself is refused. */
#include <hdf5.h>

#include "base/random.h"
#include "datasets/shard/shard.h"
#include "tests/datasets/folder.h"

#ifdef __SANITIZE_ADDRESS__
/* HDF5 itself loses a few hundred bytes for each damaged object header that it meets. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libhdf5";
}
#endif

static const char *const tokenizer =
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

static int32_t token_at(int64_t i, int64_t vocab_size)
{
    return (int32_t)random_below(7, (uint64_t)i, (uint64_t)vocab_size);
}

/* A shard of `tokens` tokens in documents of `document` tokens (the last one may be shorter). */
static void write_shard(const char *path, int64_t vocab_size, int64_t tokens, int64_t document)
{
    struct shard_header header = {.vocab_size = vocab_size, .eos_id = -1};
    snprintf(header.tokenizer_sha256, sizeof header.tokenizer_sha256, "%s", tokenizer);
    struct shard_writer *w;
    unlink(path);
    CHECK_OK(shard_writer_create(path, &header, &w));
    CHECK(!file_exists(path)); /* it appears when it is complete */
    for (int64_t i = 0; i < tokens; i++) {
        int32_t id = token_at(i, vocab_size);
        CHECK_OK(shard_writer_append_tokens(w, &id, 1));
        if ((i + 1) % document == 0) {
            CHECK_OK(shard_writer_end_document(w));
            CHECK_OK(shard_writer_end_document(w)); /* an empty document is none */
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
    CHECK_EQUAL(h->documents, (tokens + document - 1) / document);
    CHECK_EQUAL(h->vocab_size, vocab_size);
    CHECK_EQUAL(h->eos_id, -1);
    CHECK_EQUAL(h->token_bytes, vocab_size <= 65536 ? 2 : 4);
    CHECK(strcmp(h->tokenizer_sha256, tokenizer) == 0);
    CHECK_OK(shard_verify(s));
    int32_t *ids = malloc((size_t)tokens * sizeof *ids);
    CHECK_OK(shard_read(s, 0, tokens, ids));
    for (int64_t i = 0; i < tokens; i++) {
        CHECK_EQUAL(ids[i], token_at(i, vocab_size));
    }
    for (uint64_t i = 0; i < 200; i++) {
        int64_t first = (int64_t)random_below(1, i, (uint64_t)tokens);
        int64_t count = (int64_t)random_below(2, i, (uint64_t)(tokens - first) + 1);
        CHECK_OK(shard_read(s, first, count, ids));
        for (int64_t j = 0; j < count; j++) {
            CHECK_EQUAL(ids[j], token_at(first + j, vocab_size));
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
    check_round_trip(7, 5000, 1); /* more documents than a chunk of them */
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

/* A shard of an opponent: each part as asked for. */
struct recipe {
    const char *format;
    int64_t version, vocab_size, eos_id, says_tokens, says_documents;
    hid_t type;
    int64_t tokens;
    int64_t chunk; /* 0: contiguous */
    bool checksum;
    int64_t starts[4];
    int start_count;
    uint32_t id; /* of token 5 */
    const char *sha;
    bool old; /* HDF5's oldest format */
};

static const struct recipe good = {"bireme-tokens", 1, 50, 49,   20,   2, -1, 20, 16, true,
                                   {0, 12, 20},     3, 7,  NULL, false};

static void put_i64(hid_t file, const char *name, int64_t value)
{
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t a = H5Acreate2(file, name, H5T_STD_I64LE, space, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(H5Awrite(a, H5T_NATIVE_INT64, &value) >= 0);
    H5Aclose(a);
    H5Sclose(space);
}

static void put_text(hid_t file, const char *name, const char *text)
{
    hid_t space = H5Screate(H5S_SCALAR), type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, strlen(text));
    hid_t a = H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    CHECK(H5Awrite(a, type, text) >= 0);
    H5Aclose(a);
    H5Tclose(type);
    H5Sclose(space);
}

static void put_dataset(hid_t file, const char *name, hid_t type, hid_t memory, int64_t count,
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
    hid_t d = H5Dcreate2(file, name, type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
    CHECK(d >= 0);
    CHECK(count == 0 || H5Dwrite(d, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    H5Dclose(d);
    H5Pclose(properties);
    H5Sclose(space);
}

static void forge(const char *path, const struct recipe *r)
{
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5F_libver_t oldest = r->old ? H5F_LIBVER_EARLIEST : H5F_LIBVER_V110;
    CHECK(H5Pset_libver_bounds(access, oldest, H5F_LIBVER_V110) >= 0);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    H5Pclose(access);
    uint32_t ids[64] = {0};
    ids[5] = r->id;
    put_dataset(file, "tokens", r->type < 0 ? H5T_STD_U16LE : r->type, H5T_NATIVE_UINT32, r->tokens,
                r->chunk, r->checksum, ids);
    put_dataset(file, "documents", H5T_STD_U64LE, H5T_NATIVE_INT64, r->start_count, 4, true,
                r->starts);
    if (r->format != NULL) {
        put_text(file, "format", r->format);
    }
    put_i64(file, "format_version", r->version);
    put_i64(file, "vocab_size", r->vocab_size);
    put_i64(file, "eos_id", r->eos_id);
    put_i64(file, "tokens", r->says_tokens);
    put_i64(file, "documents", r->says_documents);
    put_text(file, "tokenizer_sha256", r->sha != NULL ? r->sha : tokenizer);
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

static void forged(struct recipe r, const char *text)
{
    const char *path = folder_file("forged.h5");
    forge(path, &r);
    CHECK_EQUAL(open_and_verify(path), STATUS_DATA);
    CHECK(strstr(status_pending()->text, path) != NULL);
    CHECK_FAILS(status_pending()->code, STATUS_DATA, text);
}

#define FORGED(text, ...)                                                                          \
    do {                                                                                           \
        struct recipe r = good;                                                                    \
        __VA_ARGS__;                                                                               \
        forged(r, text);                                                                           \
    } while (0)

static void test_forged(void)
{
    forge(folder_file("good.h5"), &good); /* of another program, without our two SHA-256 */
    CHECK_OK(open_and_verify(folder_file("good.h5")));
    FORGED("oldest format", r.old = true);
    FORGED("not a token shard", r.format = NULL);
    FORGED("format is 'other'", r.format = "other");
    FORGED("format_version 2", r.version = 2);
    FORGED("vocab_size is 0", r.vocab_size = 0);
    FORGED("vocab_size is 1099511627776", r.vocab_size = INT64_C(1) << 40);
    FORGED("eos_id is 50", r.eos_id = 50);
    FORGED("eos_id is -2", r.eos_id = -2);
    FORGED("the attribute 'tokens' is 21", r.says_tokens = 21);
    FORGED("contains no tokens", r.tokens = 0);
    FORGED("the attribute 'documents' is 3", r.says_documents = 3);
    FORGED("integer of 4", r.type = H5T_STD_I32LE);
    FORGED("float of 4", r.type = H5T_IEEE_F32LE);
    FORGED("not stored in chunks", (r.chunk = 0, r.checksum = false));
    FORGED("not stored in chunks", r.checksum = false);
    FORGED("token 5 has the id 50", r.id = 50);
    FORGED("token 5 has the id 3000000000", (r.type = H5T_STD_U32LE, r.id = 3000000000u));
    FORGED("must increase", r.starts[1] = 0);
    FORGED("must increase", (r.starts[1] = -5));
    FORGED("must increase", r.starts[1] = 21);
    FORGED("must increase",
           (r.starts[2] = 11, r.starts[3] = 20, r.start_count = 4, r.says_documents = 3));
    FORGED("covers tokens 0 to 19", r.starts[2] = 19);
    FORGED("covers tokens 1 to 20", r.starts[0] = 1);
    FORGED("not a SHA-256", r.sha = "abc");
    FORGED("not a SHA-256",
           r.sha = "../../../../../etc/passwd/../../../../../../../../../../../../");
}

/* One bit anywhere: never a crash, never other tokens than those written. */
static void test_flips(void)
{
    const char *path = folder_file("whole.h5"), *broken = folder_file("broken.h5");
    write_shard(path, 1000, 70000, 333);
    size_t bytes;
    char *data = folder_read(path, &bytes);
    int refused = 0;
    for (uint64_t i = 0; i < 300; i++) {
        size_t at = (size_t)random_below(3, i, i % 2 == 0 ? bytes : 4096);
        data[at] = (char)(data[at] ^ (1 << random_below(4, i, 8)));
        folder_write(broken, data, bytes);
        status result = open_and_verify(broken);
        CHECK(result == STATUS_OK || result == STATUS_DATA);
        CHECK(result == STATUS_OK || strstr(status_pending()->text, broken) != NULL);
        status_clear();
        refused += result != STATUS_OK; /* else an unused byte: the SHA-256 fits */
        data[at] = (char)(data[at] ^ (1 << random_below(4, i, 8)));
    }
    CHECK(refused > 150);
    for (size_t kept = 1; kept < bytes; kept += bytes / 23) {
        folder_write(broken, data, kept);
        CHECK_FAILS(open_and_verify(broken), STATUS_DATA, broken);
    }
    free(data);
}

/* What Fletcher32 cannot see: two chunks that changed places. */
static void test_swapped_chunks(void)
{
    const char *path = folder_file("whole.h5"), *broken = folder_file("swapped.h5");
    size_t bytes;
    char *data = folder_read(path, &bytes);
    enum { CHUNK = 16 << 10, STORED = CHUNK + 4 };
    size_t place[2] = {0, 0};
    for (int chunk = 0; chunk < 2; chunk++) {
        uint16_t head[64];
        for (int i = 0; i < 64; i++) {
            head[i] = (uint16_t)token_at(chunk * CHUNK / 2 + i, 1000);
        }
        char *found = memmem(data, bytes, head, sizeof head);
        CHECK(found != NULL);
        place[chunk] = (size_t)(found - data);
    }
    char *kept = malloc(STORED);
    memcpy(kept, data + place[0], STORED);
    memcpy(data + place[0], data + place[1], STORED);
    memcpy(data + place[1], kept, STORED);
    folder_write(broken, data, bytes);
    CHECK_FAILS(open_and_verify(broken), STATUS_DATA, "SHA-256");
    free(kept);
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
    test_writer_errors();
    test_forged();
    test_flips();
    test_swapped_chunks();
    test_inspect();
    return 0;
}
