#include "datasets/rows/jsonl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/input/line_reader.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "base/text_buffer.h"
#include "base/utf8.h"
#include "datasets/rows/columns.h"
#include "datasets/rows/file_reader.h"

enum { READ_BYTES = 256 << 10, ROW_BYTES_MAX = LINE_READER_BYTES_MAX, WARNINGS_MAX = 10 };

/* State of reading a file: the callback and the line that is being assembled. */
struct line_splitter {
    const char *path;
    struct jsonl_bad_rows *bad;
    status (*use)(void *user, struct jsonl_row *row);
    void *user;
    struct text_buffer text;
    bool too_long; /* discard the rest of the line */
    bool stopped;  /* a line is too long, and bad rows are not skipped: stop reading */
    int64_t line;  /* from 1 */
};

status jsonl_report_bad_row(struct jsonl_bad_rows *bad, const char *path, int64_t line)
{
    struct status_note reason;
    if (bad->defer != NULL) {
        return bad->defer(bad->user, path, line);
    }
    status_take(&reason);
    REQUIRE(bad->skip, STATUS_DATA, "%s:%" PRId64 ": %.1500s%s", path, line, reason.text,
            bad->has_good_row ? "; use --skip-bad-rows to count such rows and continue" : "");
    if (bad->count++ < WARNINGS_MAX && !bad->quiet) {
        log_warning("BAD-ROW", "%s:%" PRId64 ": %.1500s; skipped", path, line, reason.text);
    }
    return STATUS_OK;
}

static status use_line(struct line_splitter *l);

/* Appends to the line. Without `skip`, a line that is too long is reported at once: the input can
 * be endless. */
static status append_to_line(struct line_splitter *l, const char *text, size_t bytes)
{
    if (l->too_long) {
        return STATUS_OK;
    }
    if (bytes > ROW_BYTES_MAX - l->text.count) {
        l->too_long = true;
        l->stopped = !l->bad->skip;
        return l->stopped ? use_line(l) : STATUS_OK;
    }
    return text_buffer_append(&l->text, text, bytes);
}

static bool is_blank_line(const struct line_splitter *l)
{
    for (size_t i = 0; i < l->text.count; i++) {
        if (!text_is_space(l->text.bytes[i])) {
            return false;
        }
    }
    return !l->too_long;
}

bool jsonl_has_extension(const char *path)
{
    return input_has_suffix(path, ".jsonl") || input_has_suffix(path, ".ndjson");
}

/* Returns whether the text is a line of a CoNLL file: columns between white space. The last one is
 * a label such as O or B-PER. */
static bool is_conll(const char *text, size_t bytes)
{
    size_t last = bytes;
    while (last > 0 && !text_is_space(text[last - 1])) {
        last--;
    }
    const char *label = text + last;
    size_t length = bytes - last;
    return last > 0 && ((length == 1 && label[0] == 'O') ||
                        (length > 2 && strchr("BIES", label[0]) != NULL && label[1] == '-'));
}

static const char *get_remedy(const char *text, size_t bytes, const json_error_t *error)
{
    if (json_error_code(error) == json_error_invalid_utf8) {
        return "; " UTF8_REMEDY;
    }
    while (bytes > 0 && text_is_space(text[0])) {
        text++;
        bytes--;
    }
    while (bytes > 0 && text_is_space(text[bytes - 1])) {
        bytes--;
    }
    if (bytes > 0 && text[0] != '{') {
        return is_conll(text, bytes)
                   ? "; this looks like CoNLL, one word and its label per line: write one sentence "
                     "per line, {\"tokens\": [\"Ada\", \"sleeps\"], \"labels\": [\"B-PER\", \"O\"]}"
                   : "; the input must be JSON Lines, one object per line";
    }
    return bytes == 1 ? "; write one object per line, for example with `jq -c .`" : "";
}

status jsonl_parse(const char *text, size_t bytes, json_t **out)
{
    json_error_t error;
    *out = NULL;
    REQUIRE(bytes <= ROW_BYTES_MAX, STATUS_DATA, JSONL_TOO_LONG);
    *out =
        json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &error);
    REQUIRE(*out != NULL, STATUS_DATA, "column %d: not valid JSON: %s%s", error.column, error.text,
            get_remedy(text, bytes, &error));
    REQUIRE(json_is_object(*out), STATUS_DATA, "not a JSON object%s",
            json_is_array(*out)
                ? " but a list: write one object per line, for example with `jq -c '.[]'`"
                : "");
    return STATUS_OK;
}

static status use_line(struct line_splitter *l)
{
    size_t bytes = l->text.count;
    struct jsonl_row row = {.path = l->path, .line = l->line, .bytes = bytes};
    status result =
        jsonl_parse(l->text.bytes, l->too_long ? (size_t)ROW_BYTES_MAX + 1 : bytes, &row.value);
    if (result == STATUS_OK) {
        result = l->use(l->user, &row);
        l->bad->has_good_row = l->bad->has_good_row || result == STATUS_OK;
    }
    json_decref(row.value);
    return result == STATUS_DATA && !row.fatal ? jsonl_report_bad_row(l->bad, l->path, l->line)
                                               : result;
}

static status end_line(struct line_splitter *l)
{
    struct text_buffer *text = &l->text;
    if (l->line == 1 && text->count >= 3 && memcmp(text->bytes, "\xEF\xBB\xBF", 3) == 0) {
        text->count -= 3; /* a byte order mark */
        memmove(text->bytes, text->bytes + 3, text->count);
    }
    status result = is_blank_line(l) ? STATUS_OK : use_line(l);
    text->count = 0;
    l->too_long = false;
    l->line++;
    return result;
}

static status split_lines(struct line_splitter *l, const char *text, size_t bytes)
{
    while (bytes > 0) {
        const char *newline = memchr(text, '\n', bytes);
        size_t line_bytes = newline != NULL ? (size_t)(newline - text) : bytes;
        TRY(append_to_line(l, text, line_bytes));
        if (newline == NULL || l->stopped) {
            return STATUS_OK;
        }
        TRY(end_line(l));
        text += line_bytes + 1;
        bytes -= line_bytes + 1;
    }
    return STATUS_OK;
}

static status read_lines(struct line_splitter *l, struct file_reader *r, char *buffer)
{
    for (size_t got = 1; got > 0 && !l->stopped;) {
        TRY(file_reader_read(r, buffer, READ_BYTES, &got));
        TRY(split_lines(l, buffer, got));
    }
    bool has_line = !l->stopped && (l->text.count > 0 || l->too_long);
    return has_line ? end_line(l) : STATUS_OK;
}

status jsonl_read_open(struct file_reader *r, struct jsonl_bad_rows *bad, int64_t *bytes,
                       status (*use)(void *user, struct jsonl_row *row), void *user)
{
    struct line_splitter lines = {.path = r->path, .bad = bad, .use = use, .user = user, .line = 1};
    char *buffer = NULL;
    TRY(ALLOCATE(buffer, READ_BYTES, r->path));
    status result = read_lines(&lines, r, buffer);
    *bytes += r->bytes;
    text_buffer_free(&lines.text);
    free(buffer);
    return result;
}

status jsonl_read(const char *path, struct jsonl_bad_rows *bad, int64_t *bytes,
                  status (*use)(void *user, struct jsonl_row *row), void *user)
{
    struct file_reader r;
    TRY(file_reader_open(path, &r));
    status result = jsonl_read_open(&r, bad, bytes, use, user);
    file_reader_close(&r);
    return result;
}

status jsonl_get_string(const json_t *row, const char *field, const char **text, size_t *bytes)
{
    const json_t *value = json_object_get(row, field);
    TRY(value != NULL ? STATUS_OK : columns_raise_missing(row, field));
    REQUIRE(json_is_string(value), STATUS_DATA, "the field '%s' is not a string", field);
    *text = json_string_value(value);
    *bytes = json_string_length(value);
    return STATUS_OK;
}
