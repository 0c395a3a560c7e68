#include "base/line_reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

status line_reader_open(const char *path, struct line_reader *out)
{
    *out = (struct line_reader){.file = stdin, .name = "standard input", .has_newline = true};
    if (path == NULL || strcmp(path, "-") == 0) {
        return STATUS_OK;
    }
    out->name = path;
    out->file = fopen(path, "r");
    REQUIRE(out->file != NULL, status_from_errno(errno, STATUS_NO_INPUT, STATUS_DATA),
            "cannot open %s: %s", path, strerror(errno));
    struct stat info;
    if (fstat(fileno(out->file), &info) != 0 || S_ISDIR(info.st_mode)) {
        line_reader_close(out);
        RAISE(STATUS_DATA, "%s is a folder, not a file", path);
    }
    return STATUS_OK;
}

status line_reader_open_descriptor(int file, const char *name, struct line_reader *out)
{
    *out = (struct line_reader){.file = fdopen(file, "r"), .name = name, .has_newline = true};
    REQUIRE(out->file != NULL, STATUS_INTERNAL, "out of memory while reading %s", name);
    return STATUS_OK;
}

void line_reader_close(struct line_reader *r)
{
    if (r->file != NULL && r->file != stdin) {
        fclose(r->file);
    }
    free(r->line);
    *r = (struct line_reader){0};
}

/* Makes room for one more character and the NUL. */
static status grow_line(struct line_reader *r)
{
    size_t capacity = r->capacity == 0 ? 256 : 2 * r->capacity;
    char *grown = realloc(r->line, capacity);
    REQUIRE(grown != NULL, STATUS_INTERNAL, "%s:%" PRId64 ": out of memory for a line of %zu bytes",
            r->name, r->number, capacity);
    r->line = grown;
    r->capacity = capacity;
    return STATUS_OK;
}

static status check_read(const struct line_reader *r)
{
    REQUIRE(!ferror(r->file), STATUS_DATA, "%s:%" PRId64 ": cannot read: %s", r->name, r->number,
            strerror(errno));
    return STATUS_OK;
}

status line_reader_next(struct line_reader *r, bool *found)
{
    int c = 0;
    *found = false;
    while (!r->has_newline && c != EOF) { /* the rest of a line that is too long */
        c = getc_unlocked(r->file);
        r->has_newline = c == '\n';
    }
    r->number++;
    r->bytes = 0;
    r->has_newline = r->too_long = false;
    while (c != EOF && !r->has_newline && !r->too_long) {
        c = getc_unlocked(r->file);
        if (r->bytes + 2 > r->capacity) {
            TRY(grow_line(r));
        }
        r->has_newline = c == '\n';
        r->too_long = c != EOF && !r->has_newline && r->bytes == LINE_READER_MAX_BYTES;
        if (c != EOF && !r->has_newline && !r->too_long) {
            r->line[r->bytes++] = (char)c;
        }
    }
    TRY(check_read(r));
    *found = r->bytes > 0 || r->has_newline;
    if (*found) {
        r->line[r->bytes] = '\0';
    }
    return STATUS_OK;
}

status line_reader_check_length(const struct line_reader *r)
{
    REQUIRE(!r->too_long, STATUS_DATA,
            "%s:%" PRId64 ": the line has more than 64 MiB: split it, or check that the file is "
            "text",
            r->name, r->number);
    return STATUS_OK;
}

/* Adds the name of the file and the line number to the message of a STATUS_DATA. */
static status add_line_number(const struct line_reader *r, status result)
{
    struct status_note note;
    if (result != STATUS_DATA) {
        return result;
    }
    status_take(&note);
    RAISE(STATUS_DATA, "%s:%" PRId64 ": %.1500s", r->name, r->number, note.text);
}

status line_reader_read(const char *path, line_reader_visit visit, void *user)
{
    struct line_reader r;
    TRY(line_reader_open(path, &r));
    status result = STATUS_OK;
    for (bool found = true; found && result == STATUS_OK;) {
        TRY_GOTO(result, done, line_reader_next(&r, &found));
        if (found) {
            TRY_GOTO(result, done, line_reader_check_length(&r));
            result = add_line_number(&r, visit(user, r.line, r.bytes));
        }
    }
done:
    line_reader_close(&r);
    return result;
}
