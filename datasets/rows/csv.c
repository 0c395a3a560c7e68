#include "datasets/rows/csv.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/input/line_reader.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/text_buffer.h"
#include "base/utf8.h"
#include "datasets/rows/file_reader.h"

enum { READ_BYTES = 256 << 10, ROW_BYTES_MAX = LINE_READER_BYTES_MAX };

/* Position of the next byte relative to a field. */
enum field_state { FIELD_START, IN_UNQUOTED, IN_QUOTES, AFTER_QUOTES };

struct csv {
    struct file_reader *reader;
    const char *path;
    char *buffer;   /* [READ_BYTES] */
    bool started;   /* the first block was read */
    char delimiter; /* '\0': not known yet */
    struct jsonl_bad_rows *bad;
    status (*use)(void *user, struct jsonl_row *row);
    void *user;
    json_t *names;  /* the field names; NULL before the first row */
    json_t *fields; /* values of the current row */
    enum field_state state;
    struct text_buffer text; /* the current field */
    size_t row_bytes;
    const char *error; /* reason why the current row is bad; NULL: none */
    int64_t line, row_line;
    bool warned;  /* about quotes between tabs */
    bool stopped; /* a row is too long, and bad rows are not skipped: stop reading */
};

static status append_byte(struct csv *c, char byte)
{
    if (++c->row_bytes > ROW_BYTES_MAX) {
        c->error = "the row is longer than 64 MiB; check its quotes";
        c->stopped = c->names == NULL || !c->bad->skip; /* the input can be endless */
        return STATUS_OK;
    }
    TRY(text_buffer_reserve(&c->text, 1));
    c->text.bytes[c->text.count++] = byte;
    return STATUS_OK;
}

/* Warns once if a field between tabs looks like a quoted one: a name in quotes, or text in quotes
 * that contains doubled quotes. */
static void warn_quotes(struct csv *c)
{
    const char *text = c->text.bytes;
    size_t bytes = c->text.count;
    bool is_name = c->names == NULL, warn = is_name;
    if (c->warned || c->bad->quiet || c->delimiter != '\t' || bytes < 3 || text[0] != '"' ||
        text[bytes - 1] != '"') {
        return;
    }
    for (size_t i = 1; i + 2 < bytes && !warn; i++) {
        warn = text[i] == '"' && text[i + 1] == '"';
    }
    if (warn) {
        c->warned = true;
        log_warning(
            "QUOTES",
            "%s:%" PRId64 ": a %s in double quotes: between tabs, quotes are ordinary "
            "characters and stay in the text; save the table with commas, or without quotes",
            c->path, c->row_line, is_name ? "name" : "field");
    }
}

static status end_field(struct csv *c)
{
    warn_quotes(c);
    if (c->fields == NULL) {
        c->fields = json_array();
    }
    json_t *text = json_stringn(c->text.bytes != NULL ? c->text.bytes : "", c->text.count);
    if (text == NULL) {
        c->error = "not valid UTF-8; " UTF8_REMEDY;
        text = json_string("");
    }
    int failed = json_array_append_new(c->fields, text);
    REQUIRE(failed == 0, STATUS_INTERNAL, "out of memory for a row of fields");
    c->text.count = 0;
    c->state = FIELD_START;
    return STATUS_OK;
}

/* Checks that the fields of the first row have different names; `seen` collects the names. */
static status check_names(const struct csv *c, json_t *seen)
{
    for (size_t i = 0; i < json_array_size(c->fields); i++) {
        const char *name = json_string_value(json_array_get(c->fields, i));
        REQUIRE(name[0] != '\0', STATUS_DATA, "%s:%" PRId64 ": field %zu has no name", c->path,
                c->row_line, i + 1);
        REQUIRE(json_object_get(seen, name) == NULL, STATUS_DATA,
                "%s:%" PRId64 ": two fields have the name '%.200s'", c->path, c->row_line, name);
        int failed = json_object_set_new(seen, name, json_null());
        REQUIRE(failed == 0, STATUS_INTERNAL, "out of memory for the names of the fields");
    }
    return STATUS_OK;
}

static status read_header(struct csv *c)
{
    REQUIRE(c->error == NULL, STATUS_DATA, "%s:%" PRId64 ": %s", c->path, c->row_line, c->error);
    json_t *seen = json_object();
    status result = check_names(c, seen);
    json_decref(seen);
    TRY(result);
    c->names = c->fields;
    c->fields = NULL;
    return STATUS_OK;
}

static status make_row(struct csv *c, json_t **out)
{
    size_t fields = json_array_size(c->fields), expected = json_array_size(c->names);
    REQUIRE(c->error == NULL, STATUS_DATA, "%s", c->error);
    REQUIRE(fields == expected, STATUS_DATA, "%zu field%s, but the first row names %zu", fields,
            text_plural((int64_t)fields), expected);
    *out = json_object();
    int failed = *out == NULL;
    for (size_t i = 0; i < fields && failed == 0; i++) {
        failed = json_object_set(*out, json_string_value(json_array_get(c->names, i)),
                                 json_array_get(c->fields, i));
    }
    REQUIRE(failed == 0, STATUS_INTERNAL, "out of memory for a row of fields");
    return STATUS_OK;
}

static status use_row(struct csv *c)
{
    struct jsonl_row row = {.path = c->path, .line = c->row_line, .bytes = c->row_bytes};
    status result = make_row(c, &row.value);
    if (result == STATUS_OK) {
        result = c->use(c->user, &row);
        c->bad->has_good_row = c->bad->has_good_row || result == STATUS_OK;
    }
    json_decref(row.value);
    return result == STATUS_DATA && !row.fatal ? jsonl_report_bad_row(c->bad, c->path, c->row_line)
                                               : result;
}

static status end_row(struct csv *c)
{
    struct text_buffer *text = &c->text;
    if (c->state == IN_UNQUOTED && text->count > 0 && text->bytes[text->count - 1] == '\r') {
        text->count--; /* of CRLF; the last row may end without its LF */
        c->row_bytes--;
    }
    TRY(end_field(c));
    bool empty = json_array_size(c->fields) == 1 && c->row_bytes == 0 && c->error == NULL;
    status result = empty ? STATUS_OK : c->names == NULL ? read_header(c) : use_row(c);
    json_decref(c->fields);
    c->fields = NULL;
    c->error = NULL;
    c->row_bytes = 0;
    c->row_line = c->line;
    return result;
}

static status add_quoted_byte(struct csv *c, char byte)
{
    if (byte == '"') {
        c->state = AFTER_QUOTES;
        c->row_bytes++;
        return STATUS_OK;
    }
    return append_byte(c, byte);
}

/* Adds a byte outside quotes that is neither a delimiter nor a line end. */
static status add_unquoted_byte(struct csv *c, char byte)
{
    if (byte == '"' && c->state == AFTER_QUOTES) {
        c->state = IN_QUOTES; /* a doubled quote is one quote of the text */
        return append_byte(c, byte);
    }
    if (byte == '"' && c->state == FIELD_START && c->delimiter != '\t') {
        c->state = IN_QUOTES;
        c->row_bytes++;
        return STATUS_OK;
    }
    if (byte == '"' && c->delimiter != '\t') {
        c->error = "a quote inside an unquoted field";
    } else if (c->state == AFTER_QUOTES && byte != '\r') {
        c->error = "text after a quoted field";
    }
    c->state = c->state == AFTER_QUOTES ? AFTER_QUOTES : IN_UNQUOTED;
    return byte == '\r' && c->state == AFTER_QUOTES ? STATUS_OK : append_byte(c, byte);
}

static status add_file_byte(struct csv *c, char byte)
{
    c->line += byte == '\n';
    if (c->state == IN_QUOTES) {
        return add_quoted_byte(c, byte);
    }
    if (byte == c->delimiter) {
        c->row_bytes++;
        return end_field(c);
    }
    return byte == '\n' ? end_row(c) : add_unquoted_byte(c, byte);
}

/* Returns the most frequent delimiter of the first line, outside of quotes. */
static char find_delimiter(const char *text, size_t bytes)
{
    static const char delimiters[] = {',', ';', '\t'};
    int counts[3] = {0}, best = 0;
    bool quoted = false;
    for (size_t i = 0; i < bytes && (quoted || text[i] != '\n'); i++) {
        quoted = quoted != (text[i] == '"');
        for (int d = 0; d < 3; d++) {
            counts[d] += !quoted && text[i] == delimiters[d];
        }
    }
    for (int d = 1; d < 3; d++) {
        best = counts[d] > counts[best] ? d : best;
    }
    return delimiters[best];
}

/* Reads the beginning of the file, with the whole first line if it fits into the buffer. A single
 * read can return a few bytes only. */
static status read_start(struct file_reader *r, char *buffer, size_t *bytes)
{
    *bytes = 0;
    for (size_t got = 1; got > 0 && *bytes < READ_BYTES && memchr(buffer, '\n', *bytes) == NULL;) {
        TRY(file_reader_read(r, buffer + *bytes, READ_BYTES - *bytes, &got));
        *bytes += got;
    }
    return STATUS_OK;
}

static status add_block(struct csv *c, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes && !c->stopped; i++) {
        TRY(add_file_byte(c, text[i]));
    }
    return STATUS_OK;
}

/* Ends the last row. */
static status end_file(struct csv *c)
{
    if (c->state == IN_QUOTES && !c->stopped) {
        c->error = "the file ends inside quotes";
    }
    bool row_started = c->row_bytes > 0 || json_array_size(c->fields) > 0;
    TRY(row_started ? end_row(c) : STATUS_OK);
    REQUIRE(c->names != NULL, STATUS_DATA, "%s has no rows; the first row must name the fields",
            c->path);
    return STATUS_OK;
}

status csv_read_block(struct csv *c, bool *more)
{
    static const char bom[] = "\xEF\xBB\xBF";
    size_t got, skipped = 0;
    TRY(c->started ? file_reader_read(c->reader, c->buffer, READ_BYTES, &got)
                   : read_start(c->reader, c->buffer, &got));
    if (!c->started) {
        c->started = true;
        skipped = got >= 3 && memcmp(c->buffer, bom, 3) == 0 ? 3 : 0;
        c->delimiter = c->delimiter == '\0' ? find_delimiter(c->buffer, got) : c->delimiter;
    }
    TRY(add_block(c, c->buffer + skipped, got - skipped));
    *more = got > 0 && !c->stopped;
    return *more ? STATUS_OK : end_file(c);
}

status csv_open(struct file_reader *r, char delimiter, struct jsonl_bad_rows *bad,
                status (*use)(void *user, struct jsonl_row *row), void *user, struct csv **out)
{
    bool tabs = input_has_suffix(r->path, ".tsv");
    TRY(ALLOCATE(*out, 1, "a table"));
    **out = (struct csv){.reader = r,
                         .path = r->path,
                         .delimiter = delimiter == '\0' && tabs ? '\t' : delimiter,
                         .bad = bad,
                         .use = use,
                         .user = user,
                         .line = 1,
                         .row_line = 1};
    status result = ALLOCATE((*out)->buffer, READ_BYTES, "a block of a table");
    if (result != STATUS_OK) {
        csv_close(out);
    }
    return result;
}

void csv_close(struct csv **c)
{
    if (*c != NULL) {
        json_decref((*c)->names);
        json_decref((*c)->fields);
        text_buffer_free(&(*c)->text);
        free((*c)->buffer);
        free(*c);
        *c = NULL;
    }
}

status csv_read_open(struct file_reader *r, char delimiter, struct jsonl_bad_rows *bad,
                     int64_t *bytes, status (*use)(void *user, struct jsonl_row *row), void *user)
{
    struct csv *c = NULL;
    status result = csv_open(r, delimiter, bad, use, user, &c);
    for (bool more = true; more && result == STATUS_OK;) {
        result = csv_read_block(c, &more);
    }
    csv_close(&c);
    *bytes += r->bytes;
    return result;
}
