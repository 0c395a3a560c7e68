/* Token files of other programs. Little endian, as both write them; every size is checked against the
 * file before it is used, and nothing is read into memory whole.
 *
 * llm.c, *.bin: 256 int32 (magic, version, tokens, zeros), then ids: uint16 for GPT-2 (magic 20240520, version 1),
 * uint32 for Llama 3 (20240801, 7). Each document begins with the end token, or with the tokenizer's begin token
 * where it has one.
 *
 * Megatron-LM, x.idx: "MMIDIDX\0\0", u64 version 1, u8 type (1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8 u16),
 * u64 sequences, u64 entries of the document index, i32 lengths[sequences], i64 byte places[sequences],
 * i64 documents[entries]: document d is the sequences [documents[d], documents[d + 1]). A tail (modes) may
 * follow. x.bin: the ids alone. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "datasets/prepare/input.h"

enum { WINDOW_TOKENS = 32768, LLMC_HEADER_BYTES = 1024, INDEX_ITEMS = 4096 };
static const char megatron_magic[9] = "MMIDIDX\0";
enum { MEGATRON_HEADER_BYTES = 9 + 8 + 1 + 8 + 8 };

/* A file of tokens and a window of it. */
struct tokens {
    struct reader reader;
    int64_t file_bytes;
    int64_t vocab_size;
    int item_bytes;
    bool is_signed;
    void *raw;    /* [WINDOW_TOKENS * 8] bytes */
    int32_t *ids; /* [WINDOW_TOKENS] */
};

static status read_at(const struct reader *r, int64_t place, void *out, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(r->file, (char *)out + done, bytes - done, place + (int64_t)done);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        REQUIRE(got >= 0, STATUS_DATA, "cannot read %s at byte %lld: %s", r->path, (long long)place,
                strerror(errno));
        REQUIRE(got > 0, STATUS_DATA, "%s ends in the middle, at byte %lld", r->path,
                (long long)(place + (int64_t)done));
        done += (size_t)got;
    }
    return STATUS_OK;
}

static status bytes_of(const struct reader *r, int64_t *out)
{
    struct stat about;
    REQUIRE(fstat(r->file, &about) == 0 && S_ISREG(about.st_mode), STATUS_DATA,
            "%s is not a regular file", r->path);
    *out = (int64_t)about.st_size;
    return STATUS_OK;
}

static status tokens_open(const char *path, int64_t vocab_size, struct tokens *out)
{
    *out = (struct tokens){.vocab_size = vocab_size};
    TRY(reader_open(path, &out->reader));
    out->raw = malloc((size_t)WINDOW_TOKENS * 8);
    out->ids = malloc(WINDOW_TOKENS * sizeof *out->ids);
    REQUIRE(out->raw != NULL && out->ids != NULL, STATUS_INTERNAL, "out of memory: reading %s",
            path);
    return bytes_of(&out->reader, &out->file_bytes);
}

static void tokens_close(struct tokens *t)
{
    free(t->raw);
    free(t->ids);
    reader_close(&t->reader);
}

static int64_t item(const struct tokens *t, int64_t i)
{
    switch (t->item_bytes) {
    case 1:
        return t->is_signed ? ((const int8_t *)t->raw)[i] : ((const uint8_t *)t->raw)[i];
    case 2:
        return t->is_signed ? ((const int16_t *)t->raw)[i] : ((const uint16_t *)t->raw)[i];
    case 4:
        return t->is_signed ? (int64_t)((const int32_t *)t->raw)[i] : ((const uint32_t *)t->raw)[i];
    default:
        return ((const int64_t *)t->raw)[i];
    }
}

/* count <= WINDOW_TOKENS ids from this byte on, checked against the vocabulary. */
static status read_ids(struct tokens *t, int64_t place, int64_t count)
{
    TRY(read_at(&t->reader, place, t->raw, (size_t)(count * t->item_bytes)));
    for (int64_t i = 0; i < count; i++) {
        int64_t id = item(t, i);
        REQUIRE(
            id >= 0 && id < t->vocab_size, STATUS_DATA,
            "%s: the token at byte %lld has the id %lld, outside of the tokenizer's vocabulary of "
            "%lld; was it made with another tokenizer?",
            t->reader.path, (long long)(place + i * t->item_bytes), (long long)id,
            (long long)t->vocab_size);
        t->ids[i] = (int32_t)id;
    }
    return STATUS_OK;
}

/* A run of ids without an end of a document in it. */
static status copy_ids(struct input *in, struct tokens *t, int64_t place, int64_t count)
{
    while (count > 0) {
        int64_t part = count < WINDOW_TOKENS ? count : WINDOW_TOKENS;
        TRY(read_ids(t, place, part));
        TRY(output_tokens(in->output, t->ids, part));
        place += part * t->item_bytes;
        count -= part;
    }
    return STATUS_OK;
}

/* Bytes of an id; 0: no file of llm.c's. */
static int llmc_item_bytes(int32_t magic, int32_t version)
{
    return magic == 20240520 && version == 1 ? 2 : magic == 20240801 && version == 7 ? 4 : 0;
}

static status copy_llmc(struct input *in, struct tokens *t)
{
    int32_t head[LLMC_HEADER_BYTES / 4];
    const char *path = t->reader.path;
    REQUIRE(
        t->file_bytes >= LLMC_HEADER_BYTES, STATUS_DATA,
        "%s has %lld bytes, less than the header of llm.c's token files; Megatron's need the .idx "
        "beside the .bin",
        path, (long long)t->file_bytes);
    TRY(read_at(&t->reader, 0, head, sizeof head));
    t->item_bytes = llmc_item_bytes(head[0], head[1]);
    REQUIRE(t->item_bytes > 0, STATUS_DATA,
            "%s is no token file of llm.c (magic %d version %d instead of 20240520 version 1 or "
            "20240801 version 7); Megatron's need the .idx beside the .bin",
            path, head[0], head[1]);
    int64_t tokens = head[2], wanted = LLMC_HEADER_BYTES + t->item_bytes * tokens;
    REQUIRE(tokens >= 0 && t->file_bytes == wanted, STATUS_DATA,
            "%s claims %lld tokens and has %lld bytes instead of %lld", path, (long long)tokens,
            (long long)t->file_bytes, (long long)wanted);
    int32_t first = tokenizer_begin(in->options->tokenizer);
    first = first >= 0 ? first : tokenizer_eos(in->options->tokenizer);
    for (int64_t done = 0; done < tokens;) {
        int64_t part = tokens - done < WINDOW_TOKENS ? tokens - done : WINDOW_TOKENS, begin = 0;
        TRY(read_ids(t, LLMC_HEADER_BYTES + t->item_bytes * done, part));
        for (int64_t i = 0; i < part; i++) {
            if (t->ids[i] == first) {
                TRY(output_tokens(in->output, t->ids + begin, i - begin));
                TRY(output_end_document(in->output));
                begin = i;
            }
        }
        TRY(output_tokens(in->output, t->ids + begin, part - begin));
        done += part;
        log_progress("%s: %lld of %lld tokens", path, (long long)done, (long long)tokens);
    }
    return output_end_document(in->output);
}

status prepare_llmc(struct input *in, const char *path)
{
    struct tokens t;
    status result = tokens_open(path, tokenizer_vocab_size(in->options->tokenizer), &t);
    if (result == STATUS_OK) {
        result = copy_llmc(in, &t);
        in->report->bytes += t.file_bytes;
    }
    tokens_close(&t);
    return result;
}

/* One array of the index, read in windows. */
struct index_array {
    const struct reader *reader;
    int64_t place; /* of item 0 */
    int item_bytes;
    int64_t first, held; /* items in the window */
    int64_t window[INDEX_ITEMS];
};

static status index_at(struct index_array *a, int64_t i, int64_t count, int64_t *out)
{
    if (i < a->first || i >= a->first + a->held) {
        a->first = i;
        a->held = count - i < INDEX_ITEMS ? count - i : INDEX_ITEMS;
        TRY(read_at(a->reader, a->place + i * a->item_bytes, a->window,
                    (size_t)(a->held * a->item_bytes)));
    }
    *out =
        a->item_bytes == 4 ? ((const int32_t *)a->window)[i - a->first] : a->window[i - a->first];
    return STATUS_OK;
}

struct megatron {
    struct reader reader; /* of the index */
    int64_t sequences, entries;
    struct index_array lengths, places, documents;
};

static status set_type(struct tokens *t, const char *idx_path, int code)
{
    static const int bytes[9] = {0, 1, 1, 2, 4, 8, 0, 0, 2};
    REQUIRE(code >= 1 && code <= 8 && bytes[code] > 0, STATUS_DATA,
            "%s: tokens of type %d; integers (1, 2, 3, 4, 5, 8) are accepted", idx_path, code);
    t->item_bytes = bytes[code];
    t->is_signed = code >= 2 && code <= 5;
    return STATUS_OK;
}

static status read_index_header(struct megatron *m, struct tokens *t)
{
    char head[MEGATRON_HEADER_BYTES];
    uint64_t version, counts[2];
    int64_t file_bytes;
    const char *path = m->reader.path;
    TRY(bytes_of(&m->reader, &file_bytes));
    REQUIRE(file_bytes >= MEGATRON_HEADER_BYTES, STATUS_DATA,
            "%s has %lld bytes, less than the header of Megatron's index", path,
            (long long)file_bytes);
    TRY(read_at(&m->reader, 0, head, sizeof head));
    memcpy(&version, head + 9, 8);
    memcpy(counts, head + 18, 16);
    REQUIRE(memcmp(head, megatron_magic, 9) == 0 && version == 1, STATUS_DATA,
            "%s is no index of Megatron's of version 1", path);
    TRY(set_type(t, path, (unsigned char)head[17]));
    uint64_t room = (uint64_t)(file_bytes - MEGATRON_HEADER_BYTES);
    bool fits = counts[0] <= room / 12 && counts[1] <= (room - 12 * counts[0]) / 8;
    REQUIRE(fits && counts[1] > 0, STATUS_DATA,
            "%s claims %llu sequences and %llu entries of documents in %lld bytes", path,
            (unsigned long long)counts[0], (unsigned long long)counts[1], (long long)file_bytes);
    m->sequences = (int64_t)counts[0];
    m->entries = (int64_t)counts[1];
    m->lengths = (struct index_array){&m->reader, MEGATRON_HEADER_BYTES, 4, 0, 0, {0}};
    m->places =
        (struct index_array){&m->reader, MEGATRON_HEADER_BYTES + 4 * m->sequences, 8, 0, 0, {0}};
    m->documents =
        (struct index_array){&m->reader, MEGATRON_HEADER_BYTES + 12 * m->sequences, 8, 0, 0, {0}};
    return STATUS_OK;
}

static status copy_sequence(struct input *in, struct megatron *m, struct tokens *t,
                            int64_t sequence)
{
    int64_t length, place;
    TRY(index_at(&m->lengths, sequence, m->sequences, &length));
    TRY(index_at(&m->places, sequence, m->sequences, &place));
    bool inside = length >= 0 && place >= 0 && place <= t->file_bytes &&
                  length <= (t->file_bytes - place) / t->item_bytes;
    REQUIRE(inside, STATUS_DATA,
            "%s: sequence %lld has %lld tokens at byte %lld, outside of %s with %lld bytes",
            m->reader.path, (long long)sequence, (long long)length, (long long)place,
            t->reader.path, (long long)t->file_bytes);
    return copy_ids(in, t, place, length);
}

static status copy_megatron(struct input *in, struct megatron *m, struct tokens *t)
{
    int64_t sequence = 0, end = 0;
    for (int64_t d = 0; d < m->entries; d++) {
        TRY(index_at(&m->documents, d, m->entries, &end));
        bool rises = d == 0 ? end == 0 : end >= sequence && end <= m->sequences;
        REQUIRE(rises, STATUS_DATA, "%s: entry %lld of the documents is %lld after %lld",
                m->reader.path, (long long)d, (long long)end, (long long)sequence);
        for (; sequence < end; sequence++) {
            TRY(copy_sequence(in, m, t, sequence));
        }
        TRY(output_end_document(in->output));
        log_progress("%s: %lld of %lld documents", t->reader.path, (long long)d,
                     (long long)m->entries - 1);
    }
    REQUIRE(end == m->sequences, STATUS_DATA, "%s: the documents hold %lld of %lld sequences",
            m->reader.path, (long long)end, (long long)m->sequences);
    return STATUS_OK;
}

status prepare_megatron(struct input *in, const char *bin_path, const char *idx_path)
{
    struct tokens t = {.reader = {.file = -1}};
    struct megatron *m = calloc(1, sizeof *m);
    REQUIRE(m != NULL, STATUS_INTERNAL, "out of memory: reading %s", idx_path);
    status result = reader_open(idx_path, &m->reader);
    TRY_GOTO(result, done, result);
    TRY_GOTO(result, done, tokens_open(bin_path, tokenizer_vocab_size(in->options->tokenizer), &t));
    TRY_GOTO(result, done, read_index_header(m, &t));
    TRY_GOTO(result, done, copy_megatron(in, m, &t));
    in->report->bytes += t.file_bytes;
done:
    tokens_close(&t);
    reader_close(&m->reader);
    free(m);
    return result;
}
