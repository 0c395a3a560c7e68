#include "datasets/rows/jsonl.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "datasets/prepare/input.h"

enum { READ_BYTES = 256 << 10, ROW_BYTES_MOST = 64 << 20, WARNINGS_MOST = 10 };

/* A file as it is read, and the line that is being collected. */
struct lines {
    const char *path;
    struct jsonl_bad *bad;
    status (*use)(void *user, struct jsonl_row *row);
    void *user;
    char *text;
    size_t bytes, capacity;
    bool too_long; /* the rest of the line is skipped */
    int64_t line;  /* from 1 */
};

status jsonl_refuse(struct jsonl_bad *bad, const char *path, int64_t line)
{
    struct status_note reason;
    if (bad->keep != NULL) {
        return bad->keep(bad->user, path, line);
    }
    status_take(&reason);
    REQUIRE(bad->skip, STATUS_DATA,
            "%s line %lld: %.1500s; --skip-bad-rows counts such rows and goes on", path,
            (long long)line, reason.text);
    if (bad->count++ < WARNINGS_MOST && !bad->quiet) {
        log_warning("BAD-ROW", "%s line %lld: %.1500s; skipped", path, (long long)line,
                    reason.text);
    }
    return STATUS_OK;
}

static status add_to_line(struct lines *l, const char *text, size_t bytes)
{
    if (l->too_long || bytes > ROW_BYTES_MOST - l->bytes) {
        l->too_long = true;
        return STATUS_OK;
    }
    if (l->bytes + bytes > l->capacity) {
        size_t capacity = 2 * (l->bytes + bytes);
        char *grown = realloc(l->text, capacity);
        REQUIRE(grown != NULL, STATUS_INTERNAL, "out of memory: a row of %zu bytes", capacity);
        l->text = grown;
        l->capacity = capacity;
    }
    memcpy(l->text + l->bytes, text, bytes);
    l->bytes += bytes;
    return STATUS_OK;
}

static bool is_blank_line(const struct lines *l)
{
    for (size_t i = 0; i < l->bytes; i++) {
        if (strchr(" \t\r", l->text[i]) == NULL || l->text[i] == '\0') {
            return false;
        }
    }
    return !l->too_long;
}

bool jsonl_named(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot != NULL && (strcmp(dot, ".jsonl") == 0 || strcmp(dot, ".ndjson") == 0);
}

status jsonl_parse(const char *text, size_t bytes, json_t **out)
{
    json_error_t error;
    *out = NULL;
    REQUIRE(bytes <= ROW_BYTES_MOST, STATUS_DATA, "longer than 64 MiB");
    *out =
        json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &error);
    REQUIRE(*out != NULL, STATUS_DATA, "column %d: not valid JSON: %s", error.column, error.text);
    REQUIRE(json_is_object(*out), STATUS_DATA, "not a JSON object%s",
            json_is_array(*out)
                ? " but a list: write each of its objects in a line, as `jq -c '.[]'` does"
                : "");
    return STATUS_OK;
}

static status use_line(struct lines *l)
{
    struct jsonl_row row = {.path = l->path, .line = l->line, .bytes = l->bytes};
    status result =
        jsonl_parse(l->text, l->too_long ? (size_t)ROW_BYTES_MOST + 1 : l->bytes, &row.value);
    if (result == STATUS_OK) {
        result = l->use(l->user, &row);
    }
    json_decref(row.value);
    return result == STATUS_DATA && !row.blameless ? jsonl_refuse(l->bad, l->path, l->line)
                                                   : result;
}

static status end_line(struct lines *l)
{
    if (l->line == 1 && l->bytes >= 3 && memcmp(l->text, "\xEF\xBB\xBF", 3) == 0) {
        l->bytes -= 3; /* a byte order mark */
        memmove(l->text, l->text + 3, l->bytes);
    }
    status result = is_blank_line(l) ? STATUS_OK : use_line(l);
    l->bytes = 0;
    l->too_long = false;
    l->line++;
    return result;
}

static status add_lines(struct lines *l, const char *text, size_t bytes)
{
    while (bytes > 0) {
        const char *newline = memchr(text, '\n', bytes);
        size_t part = newline != NULL ? (size_t)(newline - text) : bytes;
        TRY(add_to_line(l, text, part));
        if (newline == NULL) {
            return STATUS_OK;
        }
        TRY(end_line(l));
        text += part + 1;
        bytes -= part + 1;
    }
    return STATUS_OK;
}

static status read_lines(struct lines *l, struct reader *r, char *buffer)
{
    for (size_t got = 1; got > 0;) {
        TRY(reader_read(r, buffer, READ_BYTES, &got));
        TRY(add_lines(l, buffer, got));
    }
    return l->bytes > 0 || l->too_long ? end_line(l) : STATUS_OK;
}

status jsonl_read(const char *path, struct jsonl_bad *bad, int64_t *bytes,
                  status (*use)(void *user, struct jsonl_row *row), void *user)
{
    struct reader r;
    TRY(reader_open(path, &r));
    struct lines lines = {.path = path, .bad = bad, .use = use, .user = user, .line = 1};
    char *buffer = malloc(READ_BYTES);
    status result = STATUS_OK;
    REQUIRE_GOTO(result, done, buffer != NULL, STATUS_INTERNAL, "out of memory: reading %s", path);
    result = read_lines(&lines, &r, buffer);
    *bytes += r.bytes;
done:
    free(lines.text);
    free(buffer);
    reader_close(&r);
    return result;
}

status jsonl_text(const json_t *row, const char *field, const char **text, size_t *bytes)
{
    const json_t *value = json_object_get(row, field);
    REQUIRE(value != NULL, STATUS_DATA, "no field \"%s\"", field);
    REQUIRE(json_is_string(value), STATUS_DATA, "the field \"%s\" is no string", field);
    *text = json_string_value(value);
    *bytes = json_string_length(value);
    return STATUS_OK;
}
