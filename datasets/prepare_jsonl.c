/* JSON Lines: one object a line, its text in the field "text". Lines of blanks alone are no rows. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "datasets/prepare_impl.h"

enum { READ_BYTES = 256 << 10, ROW_BYTES_MOST = 64 << 20, WARNINGS_MOST = 10 };

/* The line that is being collected. */
struct row {
    char *text;
    size_t bytes, capacity;
    bool too_long; /* the rest of it is skipped */
    int64_t line;  /* from 1 */
};

/* A row that cannot be used: the end, or one more in the count. */
static status refuse(struct input *in, const char *path, int64_t line, const char *reason)
{
    REQUIRE(in->options->skip_bad_rows, STATUS_DATA,
            "%s line %lld: %s; --skip-bad-rows counts such rows and goes on", path, (long long)line,
            reason);
    if (in->report->bad_rows++ < WARNINGS_MOST) {
        log_warning("BAD-ROW", "%s line %lld: %s; skipped", path, (long long)line, reason);
    }
    return STATUS_OK;
}

static status add_to_row(struct row *row, const char *text, size_t bytes)
{
    if (row->too_long || bytes > ROW_BYTES_MOST - row->bytes) {
        row->too_long = true;
        return STATUS_OK;
    }
    if (row->bytes + bytes > row->capacity) {
        size_t capacity = 2 * (row->bytes + bytes);
        char *grown = realloc(row->text, capacity);
        REQUIRE(grown != NULL, STATUS_INTERNAL, "out of memory: a row of %zu bytes", capacity);
        row->text = grown;
        row->capacity = capacity;
    }
    memcpy(row->text + row->bytes, text, bytes);
    row->bytes += bytes;
    return STATUS_OK;
}

static bool is_blank_row(const struct row *row)
{
    for (size_t i = 0; i < row->bytes; i++) {
        if (strchr(" \t\r", row->text[i]) == NULL || row->text[i] == '\0') {
            return false;
        }
    }
    return true;
}

static status use_row(struct input *in, const char *path, const struct row *row)
{
    json_error_t error;
    json_t *root = json_loadb(row->text, row->bytes,
                              JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &error);
    if (root == NULL) {
        char reason[JSON_ERROR_TEXT_LENGTH + 64];
        snprintf(reason, sizeof reason, "column %d: not valid JSON: %s", error.column, error.text);
        return refuse(in, path, row->line, reason);
    }
    json_t *text = json_object_get(root, "text"); /* NULL also where root is no object */
    status result = STATUS_OK;
    if (!json_is_object(root)) {
        result = refuse(in, path, row->line, "not a JSON object");
    } else if (text == NULL) {
        result = refuse(in, path, row->line, "no field \"text\"");
    } else if (!json_is_string(text)) {
        result = refuse(in, path, row->line, "the field \"text\" is no string");
    } else {
        cutter_begin(in->cutter, (struct origin){path, row->line, true});
        result = cutter_write(in->cutter, json_string_value(text), json_string_length(text));
        if (result == STATUS_OK) {
            result = cutter_end(in->cutter);
        }
    }
    json_decref(root);
    return result;
}

static status end_row(struct input *in, const char *path, struct row *row)
{
    status result = STATUS_OK;
    if (row->line == 1 && row->bytes >= 3 && memcmp(row->text, "\xEF\xBB\xBF", 3) == 0) {
        row->bytes -= 3; /* a byte order mark */
        memmove(row->text, row->text + 3, row->bytes);
    }
    if (row->too_long) {
        result = refuse(in, path, row->line, "longer than 64 MiB");
    } else if (!is_blank_row(row)) {
        result = use_row(in, path, row);
    }
    row->bytes = 0;
    row->too_long = false;
    row->line++;
    return result;
}

static status add_rows(struct input *in, const char *path, struct row *row, const char *text,
                       size_t bytes)
{
    while (bytes > 0) {
        const char *newline = memchr(text, '\n', bytes);
        size_t part = newline != NULL ? (size_t)(newline - text) : bytes;
        TRY(add_to_row(row, text, part));
        if (newline == NULL) {
            return STATUS_OK;
        }
        TRY(end_row(in, path, row));
        text += part + 1;
        bytes -= part + 1;
    }
    return STATUS_OK;
}

static status read_rows(struct input *in, struct reader *r, struct row *row, char *buffer)
{
    for (size_t got = 1; got > 0;) {
        TRY(reader_read(r, buffer, READ_BYTES, &got));
        TRY(add_rows(in, r->path, row, buffer, got));
    }
    return row->bytes > 0 || row->too_long ? end_row(in, r->path, row) : STATUS_OK;
}

status prepare_jsonl(struct input *in, const char *path)
{
    struct reader r;
    TRY(reader_open(path, &r));
    struct row row = {.line = 1};
    char *buffer = malloc(READ_BYTES);
    status result = STATUS_OK;
    REQUIRE_GOTO(result, done, buffer != NULL, STATUS_INTERNAL, "out of memory: reading %s", path);
    result = read_rows(in, &r, &row, buffer);
    in->report->bytes += r.bytes;
done:
    free(row.text);
    free(buffer);
    reader_close(&r);
    return result;
}
