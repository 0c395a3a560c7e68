#include "datasets/rows/text_lines.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/input/line_reader.h"
#include "base/log.h"
#include "datasets/rows/row_file.h"

struct text_reader {
    const struct text_lines *source;
    text_lines_visit visit;
    void *user;
    bool has_first; /* the first line was read */
};

/* ---- lines ---- */

static void warn_table(const struct text_lines *s)
{
    bool splits = s->splits_tabs && s->path != NULL && input_has_suffix(s->path, ".tsv");
    if (s->path != NULL && row_file_is_table(s->path) && !splits) {
        log_warning("PLAIN-TEXT",
                    "%s is read as plain text, each line with all columns, the names of the "
                    "columns included; use --columns %s=COLUMN to read one column",
                    s->path, s->field);
    }
}

/* Warns if the first line is a JSON object. */
static void warn_json(const struct text_lines *s, const char *line, size_t bytes)
{
    json_t *row = NULL;
    if (line[0] != '{') {
        return;
    }
    if (jsonl_parse(line, bytes, &row) == STATUS_OK) {
        log_warning("PLAIN-TEXT",
                    "%s has JSON Lines, but is read as plain text, with its braces and names; use "
                    "--columns %s=NAME to read one field",
                    s->path != NULL && strcmp(s->path, "-") != 0 ? s->path : "standard input",
                    s->field);
    }
    status_clear();
    json_decref(row);
}

static status visit_line(void *user, const char *line, size_t bytes)
{
    struct text_reader *r = user;
    if (!r->has_first) {
        r->has_first = true;
        warn_json(r->source, line, bytes);
    }
    return r->visit(r->user, line, bytes, NULL);
}

/* ---- rows ---- */

static status get_text(const json_t *row, const char *field, const char **text, size_t *bytes)
{
    TRY(jsonl_get_string(row, field, text, bytes));
    REQUIRE(strlen(*text) == *bytes, STATUS_DATA, "the field '%s' contains a NUL character", field);
    return STATUS_OK;
}

/* Writes a text, or a tab and a text, to a line of texts. */
static status write_part(FILE *line, const char *lead, const char *text)
{
    REQUIRE(strchr(text, '\t') == NULL, STATUS_DATA,
            "a text contains a tab, which separates the texts of a row; replace it by a space");
    fprintf(line, "%s%s", lead, text);
    return STATUS_OK;
}

/* Writes an element of a list after a tab. */
static status write_element(FILE *line, const json_t *element, const char *field, size_t i)
{
    const char *text = json_string_value(element);
    REQUIRE(text != NULL && text[0] != '\0' && strlen(text) == json_string_length(element),
            STATUS_DATA,
            "the field '%s': element %zu is not a string, is empty, or contains a NUL character",
            field, i);
    return write_part(line, "\t", text);
}

static status write_list(FILE *line, const json_t *row, const char *field, const char *text)
{
    const json_t *list = json_object_get(row, field), *element;
    size_t i;
    TRY(list != NULL ? STATUS_OK : columns_raise_missing(row, field));
    REQUIRE(json_is_array(list), STATUS_DATA,
            "the field '%s' is not a list; if each text has a column, write --columns %s=A,%s=B",
            field, field, field);
    TRY(write_part(line, "", text));
    json_array_foreach(list, i, element)
    {
        TRY(write_element(line, element, field, i));
    }
    return STATUS_OK;
}

/* Visits a text and the list of texts of the same row as one line. */
static status visit_list(const struct text_reader *r, const json_t *row, const char *text)
{
    char *line = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&line, &bytes);
    REQUIRE(file != NULL, STATUS_INTERNAL, "out of memory for a row");
    status result = write_list(file, row, r->source->list, text);
    bool complete = fclose(file) == 0 && line != NULL;
    if (result == STATUS_OK && !complete) {
        result = RAISE_STATUS(STATUS_INTERNAL, "out of memory for a row");
    }
    if (result == STATUS_OK) {
        result = r->visit(r->user, line, bytes, NULL);
    }
    free(line);
    return result;
}

static status visit_row(void *user, struct jsonl_row *row)
{
    const struct text_reader *r = user;
    const char *text = NULL, *second = NULL, *name = r->source->second;
    size_t bytes = 0, second_bytes = 0;
    TRY(get_text(row->value, r->source->field, &text, &bytes));
    if (r->source->list != NULL) {
        return visit_list(r, row->value, text);
    }
    const json_t *value = name != NULL ? json_object_get(row->value, name) : NULL;
    TRY(value != NULL && !json_is_null(value) ? get_text(row->value, name, &second, &second_bytes)
                                              : STATUS_OK);
    return r->visit(r->user, text, bytes, second);
}

/* Adds file and line to the error of a row. */
static status raise_bad_row(void *user, const char *path, int64_t line)
{
    struct status_note reason;
    (void)user;
    status_take(&reason);
    RAISE(STATUS_DATA, "%s:%" PRId64 ": %.1500s", path, line, reason.text);
}

status text_lines_read_rows(const char *path, const char *columns,
                            status (*use)(void *user, struct jsonl_row *row), void *user)
{
    struct row_format format = {0};
    struct jsonl_bad_rows bad = {.defer = raise_bad_row};
    int64_t bytes = 0;
    TRY(columns != NULL ? columns_parse(columns, &format.columns) : STATUS_OK);
    return row_file_read(&format, path != NULL ? path : "-", &bad, &bytes, use, user);
}

status text_lines_read(const struct text_lines *source, text_lines_visit visit, void *user)
{
    struct text_reader r = {.source = source, .visit = visit, .user = user};
    if (source->columns == NULL) {
        warn_table(source);
        return line_reader_read(source->path, visit_line, &r);
    }
    return text_lines_read_rows(source->path, source->columns, visit_row, &r);
}
