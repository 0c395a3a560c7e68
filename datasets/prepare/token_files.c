/* All numbers are little-endian. Every size is checked against the file before it is used. Files
 * are read in windows, not as a whole.
 *
 * llm.c, *.bin: 256 int32 (magic, version, tokens, zeros), then the ids: uint16 for GPT-2 (magic
 * 20240520, version 1), uint32 for Llama 3 (magic 20240801, version 7). Each document starts with
 * the end token, or with the tokenizer's begin token if it has one.
 *
 * Megatron-LM, x.idx: "MMIDIDX\0\0", u64 version 1, u8 type (1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 8
 * u16), u64 sequences, u64 entries of the document index, i32 lengths[sequences], i64 byte
 * offsets[sequences], i64 documents[entries]. Document d is the sequences [documents[d],
 * documents[d + 1]). More data (modes) may follow. x.bin: only the ids. */
#include "datasets/prepare/token_files.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/number.h"
#include "datasets/rows/file_reader.h"

enum { WINDOW_TOKENS = 32768, LLMC_HEADER_BYTES = 1024, INDEX_ITEMS = 4096 };
static const char megatron_magic[9] = "MMIDIDX\0";
enum { MEGATRON_HEADER_BYTES = 9 + 8 + 1 + 8 + 8 };

/* A token file and a window of it. */
struct token_file {
    struct file_reader reader;
    int64_t file_bytes;
    int64_t vocab_size;
    int item_bytes;
    bool is_signed;
    void *raw;    /* [WINDOW_TOKENS * 8] bytes */
    int32_t *ids; /* [WINDOW_TOKENS] */
};

static status read_bytes_at(const struct file_reader *r, int64_t offset, void *out, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got =
            pread(r->input.file, (char *)out + done, bytes - done, offset + (int64_t)done);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        REQUIRE(got >= 0, STATUS_DATA, "cannot read %s at byte %" PRId64 ": %s", r->path, offset,
                strerror(errno));
        REQUIRE(got > 0, STATUS_DATA, "%s is truncated: it ends at byte %" PRId64, r->path,
                offset + (int64_t)done);
        done += (size_t)got;
    }
    return STATUS_OK;
}

static status get_file_size(const struct file_reader *r, int64_t *out)
{
    struct stat about;
    REQUIRE(fstat(r->input.file, &about) == 0 && S_ISREG(about.st_mode), STATUS_DATA,
            "%s is not a regular file", r->path);
    *out = (int64_t)about.st_size;
    return STATUS_OK;
}

static status open_token_file(const char *path, int64_t vocab_size, struct token_file *out)
{
    *out = (struct token_file){.vocab_size = vocab_size};
    TRY(file_reader_open(path, &out->reader));
    TRY(memory_allocate_array(&out->raw, WINDOW_TOKENS, 8, path));
    TRY(ALLOCATE(out->ids, WINDOW_TOKENS, path));
    return get_file_size(&out->reader, &out->file_bytes);
}

static void close_token_file(struct token_file *t)
{
    free(t->raw);
    free(t->ids);
    file_reader_close(&t->reader);
}

static int64_t get_item(const struct token_file *t, int64_t i)
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

/* Reads count <= WINDOW_TOKENS ids at a byte offset and checks them against the vocabulary. */
static status read_ids(struct token_file *t, int64_t offset, int64_t count)
{
    TRY(read_bytes_at(&t->reader, offset, t->raw, (size_t)(count * t->item_bytes)));
    for (int64_t i = 0; i < count; i++) {
        int64_t id = get_item(t, i);
        REQUIRE(id >= 0 && id < t->vocab_size, STATUS_DATA,
                "%s: the token at byte %" PRId64 " has the id %" PRId64
                ", outside of the tokenizer's vocabulary of %" PRId64
                "; use the tokenizer that made the file",
                t->reader.path, offset + i * t->item_bytes, id, t->vocab_size);
        t->ids[i] = (int32_t)id;
    }
    return STATUS_OK;
}

/* Copies ids of one document. */
static status copy_ids(struct prepare_input *in, struct token_file *t, int64_t offset,
                       int64_t count)
{
    while (count > 0) {
        int64_t n = number_min(count, WINDOW_TOKENS);
        TRY(read_ids(t, offset, n));
        TRY(prepare_output_write_tokens(in->output, t->ids, n));
        offset += n * t->item_bytes;
        count -= n;
    }
    return STATUS_OK;
}

/* Returns the bytes per id; 0 if this is not an llm.c token file. */
static int get_llmc_item_bytes(int32_t magic, int32_t version)
{
    return magic == 20240520 && version == 1 ? 2 : magic == 20240801 && version == 7 ? 4 : 0;
}

static status copy_llmc(struct prepare_input *in, struct token_file *t)
{
    int32_t head[LLMC_HEADER_BYTES / 4];
    const char *path = t->reader.path;
    REQUIRE(t->file_bytes >= LLMC_HEADER_BYTES, STATUS_DATA,
            "%s has %" PRId64
            " bytes, less than the header of an llm.c token file; a Megatron-LM .bin file needs "
            "its .idx file in the same folder",
            path, t->file_bytes);
    TRY(read_bytes_at(&t->reader, 0, head, sizeof head));
    t->item_bytes = get_llmc_item_bytes(head[0], head[1]);
    REQUIRE(
        t->item_bytes > 0, STATUS_DATA,
        "%s is not an llm.c token file (magic %d version %d instead of 20240520 version 1 or "
        "20240801 version 7); a Megatron-LM .bin file needs its .idx file in the same folder; ids "
        "without a header, as in nanoGPT, are not read: give the text",
        path, head[0], head[1]);
    int64_t tokens = head[2], expected = LLMC_HEADER_BYTES + t->item_bytes * tokens;
    REQUIRE(tokens >= 0 && t->file_bytes == expected, STATUS_DATA,
            "the header of %s claims %" PRId64 " tokens, but the file has %" PRId64
            " bytes instead of %" PRId64,
            path, tokens, t->file_bytes, expected);
    int32_t start_id = tokenizer_bos(in->options->tokenizer);
    start_id = start_id >= 0 ? start_id : tokenizer_eos(in->options->tokenizer);
    for (int64_t done = 0; done < tokens;) {
        int64_t n = number_min(tokens - done, WINDOW_TOKENS), begin = 0;
        TRY(read_ids(t, LLMC_HEADER_BYTES + t->item_bytes * done, n));
        for (int64_t i = 0; i < n; i++) {
            if (t->ids[i] == start_id) {
                TRY(prepare_output_write_tokens(in->output, t->ids + begin, i - begin));
                TRY(prepare_output_end_document(in->output));
                begin = i;
            }
        }
        TRY(prepare_output_write_tokens(in->output, t->ids + begin, n - begin));
        done += n;
        log_progress("%" PRId64 " of %" PRId64 " tokens of %s", done, tokens, path);
    }
    return prepare_output_end_document(in->output);
}

status token_files_read_llmc(struct prepare_input *in, const char *path)
{
    struct token_file t;
    status result = open_token_file(path, tokenizer_vocab_size(in->options->tokenizer), &t);
    if (result == STATUS_OK) {
        result = copy_llmc(in, &t);
        in->report->bytes += t.file_bytes;
    }
    close_token_file(&t);
    return result;
}

/* One array of the index file, read in windows. */
struct index_array {
    const struct file_reader *reader;
    int64_t offset; /* of item 0, in bytes */
    int item_bytes;
    int64_t first, window_items; /* range of items in the window */
    int64_t window[INDEX_ITEMS];
};

static status read_index_item(struct index_array *a, int64_t i, int64_t count, int64_t *out)
{
    if (i < a->first || i >= a->first + a->window_items) {
        a->first = i;
        a->window_items = number_min(count - i, INDEX_ITEMS);
        TRY(read_bytes_at(a->reader, a->offset + i * a->item_bytes, a->window,
                          (size_t)(a->window_items * a->item_bytes)));
    }
    *out =
        a->item_bytes == 4 ? ((const int32_t *)a->window)[i - a->first] : a->window[i - a->first];
    return STATUS_OK;
}

struct megatron_index {
    struct file_reader reader;
    int64_t sequences, document_entries;
    int64_t copied_tokens; /* of the sequences so far */
    struct index_array lengths, offsets, documents;
};

static status set_item_type(struct token_file *t, const char *idx_path, int code)
{
    static const int bytes[9] = {0, 1, 1, 2, 4, 8, 0, 0, 2};
    REQUIRE(code >= 1 && code <= 8 && bytes[code] > 0, STATUS_DATA,
            "%s: unsupported token type %d; the supported types are the integers 1, 2, 3, 4, 5, 8",
            idx_path, code);
    t->item_bytes = bytes[code];
    t->is_signed = code >= 2 && code <= 5;
    return STATUS_OK;
}

static status read_index_header(struct megatron_index *m, struct token_file *t)
{
    char head[MEGATRON_HEADER_BYTES];
    uint64_t version, counts[2];
    int64_t file_bytes;
    const char *path = m->reader.path;
    TRY(get_file_size(&m->reader, &file_bytes));
    REQUIRE(file_bytes >= MEGATRON_HEADER_BYTES, STATUS_DATA,
            "%s has %" PRId64 " bytes, less than the header of a Megatron-LM index", path,
            file_bytes);
    TRY(read_bytes_at(&m->reader, 0, head, sizeof head));
    memcpy(&version, head + 9, 8);
    memcpy(counts, head + 18, 16);
    REQUIRE(memcmp(head, megatron_magic, 9) == 0 && version == 1, STATUS_DATA,
            "%s is not a Megatron-LM index of version 1", path);
    TRY(set_item_type(t, path, (unsigned char)head[17]));
    uint64_t array_bytes = (uint64_t)(file_bytes - MEGATRON_HEADER_BYTES);
    bool fits = counts[0] <= array_bytes / 12 && counts[1] <= (array_bytes - 12 * counts[0]) / 8;
    REQUIRE(fits && counts[1] > 0, STATUS_DATA,
            "the header of %s claims %" PRIu64 " sequences and %" PRIu64
            " document entries, which do not fit into %" PRId64 " bytes",
            path, counts[0], counts[1], file_bytes);
    m->sequences = (int64_t)counts[0];
    m->document_entries = (int64_t)counts[1];
    m->lengths = (struct index_array){&m->reader, MEGATRON_HEADER_BYTES, 4, 0, 0, {0}};
    m->offsets =
        (struct index_array){&m->reader, MEGATRON_HEADER_BYTES + 4 * m->sequences, 8, 0, 0, {0}};
    m->documents =
        (struct index_array){&m->reader, MEGATRON_HEADER_BYTES + 12 * m->sequences, 8, 0, 0, {0}};
    return STATUS_OK;
}

static status copy_sequence(struct prepare_input *in, struct megatron_index *m,
                            struct token_file *t, int64_t sequence)
{
    int64_t length, offset;
    TRY(read_index_item(&m->lengths, sequence, m->sequences, &length));
    TRY(read_index_item(&m->offsets, sequence, m->sequences, &offset));
    bool inside = length >= 0 && offset >= 0 && offset <= t->file_bytes &&
                  length <= (t->file_bytes - offset) / t->item_bytes;
    REQUIRE(inside, STATUS_DATA,
            "%s: sequence %" PRId64 " has %" PRId64 " tokens at byte %" PRId64
            ", outside of %s with %" PRId64 " bytes",
            m->reader.path, sequence, length, offset, t->reader.path, t->file_bytes);
    /* A small index could otherwise repeat the same tokens without end. */
    m->copied_tokens += length;
    REQUIRE(m->copied_tokens <= t->file_bytes / t->item_bytes, STATUS_DATA,
            "%s: sequence %" PRId64
            " overlaps an earlier one: together they have more tokens than %s",
            m->reader.path, sequence, t->reader.path);
    return copy_ids(in, t, offset, length);
}

static status copy_megatron(struct prepare_input *in, struct megatron_index *m,
                            struct token_file *t)
{
    int64_t sequence = 0, end = 0;
    for (int64_t d = 0; d < m->document_entries; d++) {
        TRY(read_index_item(&m->documents, d, m->document_entries, &end));
        bool in_order = d == 0 ? end == 0 : end >= sequence && end <= m->sequences;
        REQUIRE(in_order, STATUS_DATA,
                "%s: entry %" PRId64 " of the document index is %" PRId64
                ", but the previous entry is %" PRId64,
                m->reader.path, d, end, sequence);
        for (; sequence < end; sequence++) {
            TRY(copy_sequence(in, m, t, sequence));
        }
        TRY(prepare_output_end_document(in->output));
        log_progress("%" PRId64 " of %" PRId64 " documents of %s", d, m->document_entries - 1,
                     t->reader.path);
    }
    REQUIRE(end == m->sequences, STATUS_DATA,
            "%s: the documents contain %" PRId64 " of %" PRId64 " sequences", m->reader.path, end,
            m->sequences);
    return STATUS_OK;
}

status token_files_read_megatron(struct prepare_input *in, const char *bin_path,
                                 const char *idx_path)
{
    struct token_file t = {.reader = {.input = {.file = -1}}};
    struct megatron_index *m = NULL;
    TRY(ALLOCATE(m, 1, idx_path));
    status result = file_reader_open(idx_path, &m->reader);
    TRY_GOTO(result, done, result);
    TRY_GOTO(result, done,
             open_token_file(bin_path, tokenizer_vocab_size(in->options->tokenizer), &t));
    TRY_GOTO(result, done, read_index_header(m, &t));
    TRY_GOTO(result, done, copy_megatron(in, m, &t));
    in->report->bytes += t.file_bytes;
done:
    close_token_file(&t);
    file_reader_close(&m->reader);
    free(m);
    return result;
}
