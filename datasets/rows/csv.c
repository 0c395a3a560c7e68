#include "datasets/rows/csv.h"

#include <stdlib.h>
#include <string.h>

#include "datasets/prepare/input.h"

enum { READ_BYTES = 256 << 10, ROW_BYTES_MOST = 64 << 20 };

/* Where in a field the next character stands. */
enum place { BEFORE, PLAIN, QUOTED, BEHIND_QUOTE };

struct csv {
    const char *path;
    struct jsonl_bad *bad;
    status (*use)(void *user, struct jsonl_row *row);
    void *user;
    json_t *names;  /* of the fields; NULL: the first row has not come */
    json_t *fields; /* of this row */
    enum place place;
    char *text; /* of this field */
    size_t bytes, capacity, row_bytes;
    const char *wrong; /* with this row; NULL: nothing yet */
    int64_t line, row_line;
    bool marked; /* the file's first bytes were looked at */
};

static status add_byte(struct csv *c, char byte)
{
    if (++c->row_bytes > ROW_BYTES_MOST) {
        c->wrong = "longer than 64 MiB";
        return STATUS_OK;
    }
    if (c->bytes == c->capacity) {
        size_t capacity = 2 * c->capacity + 256;
        char *grown = realloc(c->text, capacity);
        REQUIRE(grown != NULL, STATUS_INTERNAL, "out of memory: a field of %zu bytes", capacity);
        c->text = grown;
        c->capacity = capacity;
    }
    c->text[c->bytes++] = byte;
    return STATUS_OK;
}

static status end_field(struct csv *c)
{
    if (c->fields == NULL) {
        c->fields = json_array();
    }
    json_t *text = json_stringn(c->text != NULL ? c->text : "", c->bytes);
    if (text == NULL) {
        c->wrong = "not valid UTF-8";
        text = json_string("");
    }
    int failed = json_array_append_new(c->fields, text);
    REQUIRE(failed == 0, STATUS_INTERNAL, "out of memory: a row of fields");
    c->bytes = 0;
    c->place = BEFORE;
    return STATUS_OK;
}

static status take_names(struct csv *c)
{
    REQUIRE(c->wrong == NULL, STATUS_DATA, "%s line %lld: %s", c->path, (long long)c->row_line,
            c->wrong);
    for (size_t i = 0; i < json_array_size(c->fields); i++) {
        const char *name = json_string_value(json_array_get(c->fields, i));
        REQUIRE(name[0] != '\0', STATUS_DATA, "%s line %lld: field %zu has no name", c->path,
                (long long)c->row_line, i + 1);
        for (size_t j = 0; j < i; j++) {
            REQUIRE(strcmp(name, json_string_value(json_array_get(c->fields, j))) != 0, STATUS_DATA,
                    "%s line %lld: two fields have the name \"%.200s\"", c->path,
                    (long long)c->row_line, name);
        }
    }
    c->names = c->fields;
    c->fields = NULL;
    return STATUS_OK;
}

static status make_row(struct csv *c, json_t **out)
{
    size_t fields = json_array_size(c->fields), wanted = json_array_size(c->names);
    REQUIRE(c->wrong == NULL, STATUS_DATA, "%s", c->wrong);
    REQUIRE(fields == wanted, STATUS_DATA, "%zu fields, the first row names %zu", fields, wanted);
    *out = json_object();
    int failed = *out == NULL;
    for (size_t i = 0; i < fields && failed == 0; i++) {
        failed = json_object_set(*out, json_string_value(json_array_get(c->names, i)),
                                 json_array_get(c->fields, i));
    }
    REQUIRE(failed == 0, STATUS_INTERNAL, "out of memory: a row of fields");
    return STATUS_OK;
}

static status use_row(struct csv *c)
{
    struct jsonl_row row = {.path = c->path, .line = c->row_line, .bytes = c->row_bytes};
    status result = make_row(c, &row.value);
    if (result == STATUS_OK) {
        result = c->use(c->user, &row);
    }
    json_decref(row.value);
    return result == STATUS_DATA && !row.blameless ? jsonl_refuse(c->bad, c->path, c->row_line)
                                                   : result;
}

static status end_row(struct csv *c)
{
    TRY(end_field(c));
    bool empty = json_array_size(c->fields) == 1 && c->row_bytes == 0 && c->wrong == NULL;
    status result = empty ? STATUS_OK : c->names == NULL ? take_names(c) : use_row(c);
    json_decref(c->fields);
    c->fields = NULL;
    c->wrong = NULL;
    c->row_bytes = 0;
    c->row_line = c->line;
    return result;
}

static status add_quoted(struct csv *c, char byte)
{
    if (byte == '"') {
        c->place = BEHIND_QUOTE;
        c->row_bytes++;
        return STATUS_OK;
    }
    return add_byte(c, byte);
}

/* A field's bytes outside of quotes, but for commas and line ends. */
static status add_plain(struct csv *c, char byte)
{
    if (byte == '"' && c->place == BEHIND_QUOTE) {
        c->place = QUOTED; /* two of them are one that belongs to the text */
        return add_byte(c, byte);
    }
    if (byte == '"' && c->place == BEFORE) {
        c->place = QUOTED;
        c->row_bytes++;
        return STATUS_OK;
    }
    if (byte == '"') {
        c->wrong = "a quote inside of a field that does not begin with one";
    } else if (c->place == BEHIND_QUOTE && byte != '\r') {
        c->wrong = "text behind a quoted field";
    }
    c->place = c->place == BEHIND_QUOTE ? BEHIND_QUOTE : PLAIN;
    return byte == '\r' && c->place == BEHIND_QUOTE ? STATUS_OK : add_byte(c, byte);
}

static status add_character(struct csv *c, char byte)
{
    c->line += byte == '\n';
    if (c->place == QUOTED) {
        return add_quoted(c, byte);
    }
    if (byte == ',') {
        c->row_bytes++;
        return end_field(c);
    }
    if (byte != '\n') {
        return add_plain(c, byte);
    }
    if (c->place == PLAIN && c->bytes > 0 && c->text[c->bytes - 1] == '\r') {
        c->bytes--;
        c->row_bytes--;
    }
    return end_row(c);
}

static status read_all(struct csv *c, struct reader *r, char *buffer)
{
    static const char mark[] = "\xEF\xBB\xBF";
    for (size_t got = 1; got > 0;) {
        TRY(reader_read(r, buffer, READ_BYTES, &got));
        bool skip = !c->marked && got >= 3 && memcmp(buffer, mark, 3) == 0;
        c->marked = true;
        for (size_t i = skip ? 3 : 0; i < got; i++) {
            TRY(add_character(c, buffer[i]));
        }
    }
    if (c->place == QUOTED) {
        c->wrong = "the file ends inside of quotes";
    }
    bool open = c->row_bytes > 0 || json_array_size(c->fields) > 0;
    TRY(open ? end_row(c) : STATUS_OK);
    REQUIRE(c->names != NULL, STATUS_DATA, "%s has no row that names the fields", c->path);
    return STATUS_OK;
}

status csv_read(const char *path, struct jsonl_bad *bad, int64_t *bytes,
                status (*use)(void *user, struct jsonl_row *row), void *user)
{
    struct reader r;
    TRY(reader_open(path, &r));
    struct csv c = {.path = path, .bad = bad, .use = use, .user = user, .line = 1, .row_line = 1};
    char *buffer = malloc(READ_BYTES);
    status result = STATUS_OK;
    REQUIRE_GOTO(result, done, buffer != NULL, STATUS_INTERNAL, "out of memory: reading %s", path);
    result = read_all(&c, &r, buffer);
    *bytes += r.bytes;
done:
    json_decref(c.names);
    json_decref(c.fields);
    free(c.text);
    free(buffer);
    reader_close(&r);
    return result;
}
