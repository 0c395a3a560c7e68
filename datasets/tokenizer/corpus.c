#include "datasets/tokenizer/corpus.h"

#include <ctype.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/input/input.h"
#include "base/input/line_reader.h"
#include "base/log.h"
#include "datasets/rows/jsonl.h"

#define CHUNK_BYTES ((size_t)4 << 20)

/* State of reading a JSON Lines file. */
struct row_reader {
    struct line_reader lines;
    bool open; /* false: the open file is plain text */
    json_t *row;
    const char *text; /* the unread part of the row's text */
    size_t left;      /* bytes of `text` */
    struct jsonl_bad_rows bad;
};

struct corpus {
    char *const *files;
    int count;
    int current; /* index of the open file; if it is closed, of the next one to open */
    struct input input;
    int64_t offset; /* offset in the text of the first byte in carry */
    size_t carry_bytes;
    char *carry; /* bytes read ahead, for the next chunk */
    struct row_reader rows;
    pthread_mutex_t lock;
};

status corpus_open(char *const *files, int count, struct corpus **out)
{
    *out = NULL;
    struct corpus *c = calloc(1, sizeof *c);
    REQUIRE(c != NULL, STATUS_INTERNAL, "out of memory for a corpus");
    c->carry = malloc(CHUNK_BYTES);
    if (c->carry == NULL) {
        free(c);
        RAISE(STATUS_INTERNAL, "out of memory for a corpus");
    }
    c->files = files;
    c->count = count;
    c->input.file = -1;
    c->rows.bad.skip = true;
    pthread_mutex_init(&c->lock, NULL);
    *out = c;
    return STATUS_OK;
}

static void close_file(struct corpus *c)
{
    if (c->rows.open) {
        line_reader_close(&c->rows.lines);
    }
    input_close(&c->input);
    json_decref(c->rows.row);
    c->rows = (struct row_reader){.bad = c->rows.bad};
}

void corpus_close(struct corpus *c)
{
    if (c != NULL) {
        close_file(c);
        if (c->rows.bad.count > 0) {
            log_warning("SKIPPED-ROWS", "%" PRId64 " row%s skipped", c->rows.bad.count,
                        c->rows.bad.count == 1 ? " was" : "s were");
        }
        pthread_mutex_destroy(&c->lock);
        free(c->carry);
        free(c);
    }
}

void corpus_chunk_free(struct corpus_chunk *chunk)
{
    free(chunk->text);
    *chunk = (struct corpus_chunk){0};
}

status corpus_check_format(const char *path, const char *text, size_t bytes)
{
    static const struct {
        const char *magic;
        size_t bytes;
        const char *name;
    } formats[] = {{"\x1F\x8B", 2, "gzip"},
                   {"\x28\xB5\x2F\xFD", 4, "zstd"},
                   {"\xFD"
                    "7zXZ",
                    5, "xz"},
                   {"PK\x03\x04", 4, "zip"},
                   {"PAR1", 4, "Parquet"},
                   {"\x89HDF\r\n", 6, "HDF5"},
                   {"\xFF\xFE", 2, "UTF-16"},
                   {"\xFE\xFF", 2, "UTF-16"}};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        bool matches =
            bytes >= formats[i].bytes && memcmp(text, formats[i].magic, formats[i].bytes) == 0;
        REQUIRE(!matches, STATUS_DATA, "%s is a %s file, not text; decompress or convert it first",
                path, formats[i].name);
    }
    return STATUS_OK;
}

static bool is_white_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* Returns the position at which the chunk ends: before white space that follows a graphic
 * character. Without such a position, it is before the multi-byte character at the end, or
 * `bytes`. */
static size_t find_split(const char *text, size_t bytes)
{
    for (size_t pos = bytes - 1; pos > 0; pos--) {
        if (is_white_space(text[pos]) && isgraph((unsigned char)text[pos - 1])) {
            return pos;
        }
    }
    size_t pos = bytes;
    for (int i = 0; i < 3 && (text[pos - 1] & 0xc0) == 0x80; i++) {
        pos--;
    }
    bool has_multibyte_end = ((unsigned char)text[pos - 1] & 0xc0) == 0xc0;
    return has_multibyte_end ? pos - 1 : bytes;
}

static status parse_row(struct row_reader *r, const char *text, size_t bytes, bool too_long)
{
    json_decref(r->row);
    r->row = NULL;
    REQUIRE(!too_long, STATUS_DATA, "longer than 64 MiB");
    TRY(jsonl_parse(text, bytes, &r->row));
    return jsonl_get_string(r->row, "text", &r->text, &r->left);
}

/* Reads the next row with a text; r->left is 0 at the end of the file. Rows without a text are
 * skipped with a warning. */
static status read_next_row(struct row_reader *r, const char *path)
{
    while (r->left == 0) {
        const struct line_reader *lines = &r->lines;
        bool found;
        TRY(line_reader_next(&r->lines, &found));
        if (!found) {
            return STATUS_OK;
        }
        bool has_bom = lines->number == 1 && strncmp(lines->line, "\xEF\xBB\xBF", 3) == 0;
        const char *text = lines->line + (has_bom ? 3 : 0);
        if (text[strspn(text, " \t\r\n")] == '\0' && strlen(lines->line) == lines->bytes) {
            continue;
        }
        status result =
            parse_row(r, text, (size_t)(lines->line + lines->bytes - text), lines->too_long);
        TRY(result == STATUS_DATA ? jsonl_report_bad_row(&r->bad, path, lines->number) : result);
    }
    return STATUS_OK;
}

static status fill_chunk(struct corpus *c, struct corpus_chunk *chunk, bool *at_end)
{
    const char *path = c->files[c->current];
    memcpy(chunk->text, c->carry, c->carry_bytes);
    chunk->bytes = c->carry_bytes;
    chunk->path = path;
    chunk->offset = c->offset;
    *at_end = false;
    while (chunk->bytes < CHUNK_BYTES && !*at_end) {
        size_t got = 0;
        TRY(input_read(&c->input, chunk->text + chunk->bytes, CHUNK_BYTES - chunk->bytes, &got));
        chunk->bytes += got;
        *at_end = got == 0;
    }
    return STATUS_OK;
}

/* Reads a chunk of the current row. A chunk never contains parts of two rows, so no word does. */
static status next_row_chunk(struct corpus *c, struct corpus_chunk *chunk)
{
    struct row_reader *r = &c->rows;
    chunk->path = c->files[c->current];
    chunk->offset = 0;
    TRY(read_next_row(r, chunk->path));
    if (r->left == 0) {
        close_file(c);
        c->current++;
        return STATUS_OK;
    }
    chunk->bytes = r->left < CHUNK_BYTES ? r->left : CHUNK_BYTES;
    memcpy(chunk->text, r->text, chunk->bytes);
    chunk->bytes = chunk->bytes < r->left ? find_split(chunk->text, chunk->bytes) : chunk->bytes;
    r->text += chunk->bytes;
    r->left -= chunk->bytes;
    return STATUS_OK;
}

static status next_file_chunk(struct corpus *c, struct corpus_chunk *chunk)
{
    bool at_end = false;
    TRY(fill_chunk(c, chunk, &at_end));
    TRY(c->offset == 0 ? corpus_check_format(chunk->path, chunk->text, chunk->bytes) : STATUS_OK);
    if (at_end) {
        close_file(c);
        c->carry_bytes = 0;
        c->current++;
        return STATUS_OK;
    }
    size_t end = find_split(chunk->text, chunk->bytes);
    c->carry_bytes = chunk->bytes - end;
    memcpy(c->carry, chunk->text + end, c->carry_bytes);
    chunk->bytes = end;
    c->offset += (int64_t)end;
    return STATUS_OK;
}

static status open_next_file(struct corpus *c)
{
    const char *path = c->files[c->current];
    c->offset = 0;
    TRY(input_open(path, &c->input));
    bool is_rows = jsonl_has_extension(path);
    TRY(!is_rows && input_is_stream(path) ? input_looks_like_json(&c->input, &is_rows) : STATUS_OK);
    if (is_rows) {
        TRY(line_reader_open_input(&c->input, &c->rows.lines));
        c->rows.open = true;
    }
    return STATUS_OK;
}

static status read_next_chunk(struct corpus *c, struct corpus_chunk *chunk)
{
    chunk->bytes = 0;
    while (chunk->bytes == 0 && c->current < c->count) {
        TRY(c->rows.open || c->input.file >= 0 ? STATUS_OK : open_next_file(c));
        TRY(c->rows.open ? next_row_chunk(c, chunk) : next_file_chunk(c, chunk));
    }
    return STATUS_OK;
}

status corpus_next(struct corpus *c, struct corpus_chunk *chunk)
{
    if (chunk->text == NULL) {
        chunk->text = malloc(CHUNK_BYTES);
        REQUIRE(chunk->text != NULL, STATUS_INTERNAL, "out of memory for a chunk of text");
    }
    pthread_mutex_lock(&c->lock);
    status result = read_next_chunk(c, chunk);
    pthread_mutex_unlock(&c->lock);
    return result;
}
