#include "datasets/rows/corpus.h"

#include <ctype.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/input/line_reader.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/utf8.h"
#include "datasets/rows/csv.h"
#include "datasets/rows/jsonl.h"
#include "datasets/rows/row_file.h"

#define CHUNK_BYTES ((size_t)4 << 20)

/* State of reading rows. */
struct row_reader {
    bool open; /* false: the open file is plain text */
    const struct columns *columns;
    struct line_reader lines; /* JSON Lines */
    json_t *row;
    struct csv *table; /* NULL: JSON Lines */
    struct file_reader table_file;
    json_t *texts;    /* of the rows of the last block of the table */
    size_t next_text; /* index of the next one */
    bool more_blocks;
    const char *text; /* the unread part of the row's text */
    size_t left;      /* bytes of `text` */
    struct jsonl_bad_rows bad;
};

struct corpus {
    struct corpus_source source;
    int current; /* index of the open file; if it is closed, of the next one to open */
    struct input input;
    bool has_text;   /* a chunk was read */
    bool is_invalid; /* the open file is not UTF-8, and a warning was logged */
    int64_t offset;  /* offset in the text of the first byte in carry */
    size_t carry_bytes;
    char *carry; /* bytes read ahead, for the next chunk */
    struct row_reader rows;
    pthread_mutex_t lock;
};

status corpus_open(const struct corpus_source *source, struct corpus **out)
{
    *out = NULL;
    struct corpus *c = NULL;
    TRY(ALLOCATE(c, 1, "a corpus"));
    status result = ALLOCATE(c->carry, CHUNK_BYTES, "a corpus");
    if (result != STATUS_OK) {
        free(c);
        return result;
    }
    c->source = *source;
    c->input.file = -1;
    c->rows.bad.skip = true;
    pthread_mutex_init(&c->lock, NULL);
    *out = c;
    return STATUS_OK;
}

static void close_file(struct corpus *c)
{
    if (c->rows.table != NULL) {
        csv_close(&c->rows.table);
        file_reader_close(&c->rows.table_file);
    } else if (c->rows.open) {
        line_reader_close(&c->rows.lines);
    }
    input_close(&c->input);
    json_decref(c->rows.row);
    json_decref(c->rows.texts);
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
    static const char unpack[] = "decompress or convert it first";
    static const char recode[] = "convert it, for example with `iconv -f utf-16 -t utf-8`";
    static const struct {
        const char *magic;
        size_t bytes;
        const char *name, *remedy;
    } formats[] = {{"\x1F\x8B", 2, "gzip", unpack},
                   {"\x28\xB5\x2F\xFD", 4, "zstd", unpack},
                   {"\xFD"
                    "7zXZ",
                    5, "xz", unpack},
                   {"PK\x03\x04", 4, "zip", unpack},
                   {"PAR1", 4, "Parquet", unpack},
                   {"%PDF-", 5, "PDF", unpack},
                   {"\x89HDF\r\n", 6, "HDF5", unpack},
                   {"\xFF\xFE", 2, "UTF-16", recode},
                   {"\xFE\xFF", 2, "UTF-16", recode}};
    for (int i = 0; i < COUNT(formats); i++) {
        bool matches =
            bytes >= formats[i].bytes && memcmp(text, formats[i].magic, formats[i].bytes) == 0;
        REQUIRE(!matches, STATUS_DATA, "%s is a %s file, not text; %s", path, formats[i].name,
                formats[i].remedy);
    }
    return STATUS_OK;
}

status corpus_warn_rows(const char *path, struct input *in)
{
    bool is_json = false;
    if (row_file_is_table(path)) {
        log_warning("PLAIN-TEXT",
                    "%s is read as plain text, with its delimiters and all columns; use --columns "
                    "text=COLUMN to read the text of one column, or `bireme prepare --objective "
                    "classify` for rows with labels",
                    path);
        return STATUS_OK;
    }
    TRY(input_looks_like_json(in, &is_json));
    if (is_json) {
        log_warning("PLAIN-TEXT",
                    "%s begins like JSON, but is read as plain text, with its braces and names; "
                    "name JSON Lines *.jsonl to read the field 'text' of each row (--columns "
                    "text=NAME reads another field)",
                    path);
    }
    return STATUS_OK;
}

/* Returns the position at which the chunk ends: before white space that follows a graphic
 * character. Without such a position, it is before the multi-byte character at the end, or
 * `bytes`. */
static size_t find_split(const char *text, size_t bytes)
{
    for (size_t pos = bytes - 1; pos > 0; pos--) {
        if (text_is_space(text[pos]) && isgraph((unsigned char)text[pos - 1])) {
            return pos;
        }
    }
    size_t pos = bytes;
    for (int i = 0; i < 3 && utf8_is_continuation(text[pos - 1]); i++) {
        pos--;
    }
    bool has_multibyte_end = ((unsigned char)text[pos - 1] & 0xc0) == 0xc0;
    return has_multibyte_end ? pos - 1 : bytes;
}

static status parse_row(struct row_reader *r, const char *text, size_t bytes, bool too_long)
{
    json_decref(r->row);
    r->row = NULL;
    REQUIRE(!too_long, STATUS_DATA, JSONL_TOO_LONG);
    TRY(jsonl_parse(text, bytes, &r->row));
    TRY(r->columns != NULL ? columns_rename(r->columns, r->row) : STATUS_OK);
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

/* Keeps the text of a row of a table. */
static status add_table_text(void *user, struct jsonl_row *row)
{
    struct row_reader *r = user;
    const char *text;
    size_t bytes;
    TRY(columns_rename(r->columns, row->value));
    TRY(jsonl_get_string(row->value, "text", &text, &bytes));
    int failed = json_array_append(r->texts, json_object_get(row->value, "text"));
    REQUIRE(failed == 0, STATUS_INTERNAL, "out of memory for the texts of a table");
    return STATUS_OK;
}

/* Reads the next row of a table; r->left is 0 at the end of the file. */
static status read_next_table_row(struct row_reader *r)
{
    while (r->left == 0 && (r->more_blocks || r->next_text < json_array_size(r->texts))) {
        const json_t *text = json_array_get(r->texts, r->next_text);
        if (text != NULL) {
            r->text = json_string_value(text);
            r->left = json_string_length(text);
            r->next_text++;
            continue;
        }
        json_array_clear(r->texts);
        r->next_text = 0;
        TRY(csv_read_block(r->table, &r->more_blocks));
    }
    return STATUS_OK;
}

static status fill_chunk(struct corpus *c, struct corpus_chunk *chunk, bool *at_end)
{
    const char *path = c->source.files[c->current];
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
    chunk->path = c->source.files[c->current];
    chunk->offset = 0;
    TRY(r->table != NULL ? read_next_table_row(r) : read_next_row(r, chunk->path));
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

/* Warns about the first byte of the file that is not UTF-8. */
static void warn_invalid(struct corpus *c, const struct corpus_chunk *chunk)
{
    size_t pos = utf8_find_valid_end(chunk->text, chunk->bytes, 0);
    if (pos < chunk->bytes) {
        c->is_invalid = true;
        log_warning("TEXT", "%s: the byte 0x%02x at offset %" PRId64 " is not UTF-8; " UTF8_REMEDY,
                    chunk->path, (unsigned char)chunk->text[pos], chunk->offset + (int64_t)pos);
    }
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

static status open_table(struct corpus *c)
{
    struct row_reader *r = &c->rows;
    r->table_file = (struct file_reader){.input = c->input, .path = c->input.name};
    r->texts = json_array();
    REQUIRE(r->texts != NULL, STATUS_INTERNAL, "out of memory for the texts of a table");
    TRY(csv_open(&r->table_file, '\0', &r->bad, add_table_text, r, &r->table));
    c->input = (struct input){.file = -1}; /* moved to the table */
    r->open = r->more_blocks = true;
    return STATUS_OK;
}

static status open_next_file(struct corpus *c)
{
    const char *path = c->source.files[c->current];
    c->offset = 0;
    c->is_invalid = false;
    TRY(input_open(path, &c->input));
    bool is_json = jsonl_has_extension(path), is_stream = input_is_stream(path);
    TRY(!is_json && is_stream ? input_looks_like_json(&c->input, &is_json) : STATUS_OK);
    c->rows.columns = c->source.columns;
    if (is_json) {
        TRY(line_reader_open_input(&c->input, &c->rows.lines));
        c->rows.open = true;
        return STATUS_OK;
    }
    if (c->source.columns == NULL) {
        return corpus_warn_rows(path, &c->input);
    }
    REQUIRE(row_file_is_table(path) || is_stream, STATUS_USAGE,
            "%s is read as plain text, which has no columns; leave out --columns, or name rows "
            "*.jsonl, and tables *.csv or *.tsv",
            path);
    return open_table(c);
}

static status read_next_chunk(struct corpus *c, struct corpus_chunk *chunk)
{
    chunk->bytes = 0;
    while (chunk->bytes == 0 && c->current < c->source.count) {
        TRY(c->rows.open || c->input.file >= 0 ? STATUS_OK : open_next_file(c));
        bool is_file = !c->rows.open;
        TRY(is_file ? next_file_chunk(c, chunk) : next_row_chunk(c, chunk));
        if (is_file && !c->is_invalid) { /* rows are checked when they are parsed */
            warn_invalid(c, chunk);
        }
    }
    c->has_text = c->has_text || chunk->bytes > 0;
    REQUIRE(c->has_text, STATUS_DATA, "%s%s%s no text", c->source.files[0],
            c->source.count > 1 ? " and the other files of the input" : "",
            c->source.count > 1 ? " have" : " has");
    return STATUS_OK;
}

status corpus_next(struct corpus *c, struct corpus_chunk *chunk)
{
    if (chunk->text == NULL) {
        TRY(ALLOCATE(chunk->text, CHUNK_BYTES, "a chunk of text"));
    }
    pthread_mutex_lock(&c->lock);
    status result = read_next_chunk(c, chunk);
    pthread_mutex_unlock(&c->lock);
    return result;
}
