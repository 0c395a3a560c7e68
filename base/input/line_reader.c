#include "base/input/line_reader.h"

#include <inttypes.h>
#include <stdlib.h>

enum { BLOCK_BYTES = 64 << 10, NO_BYTE = -1 };

status line_reader_open_input(struct input *in, struct line_reader *out)
{
    *out = (struct line_reader){.input = {.file = -1}};
    char *block = malloc(BLOCK_BYTES);
    REQUIRE(block != NULL, STATUS_INTERNAL, "out of memory while reading %s", in->name);
    *out =
        (struct line_reader){.input = *in, .name = in->name, .block = block, .has_newline = true};
    *in = (struct input){.file = -1};
    return STATUS_OK;
}

status line_reader_open(const char *path, struct line_reader *out)
{
    struct input in;
    *out = (struct line_reader){.input = {.file = -1}};
    TRY(input_open(path, &in));
    status result = line_reader_open_input(&in, out);
    if (result != STATUS_OK) {
        input_close(&in);
    }
    return result;
}

void line_reader_close(struct line_reader *r)
{
    input_close(&r->input);
    free(r->block);
    free(r->line);
    *r = (struct line_reader){.input = {.file = -1}};
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

/* Reads the next byte; NO_BYTE at the end of the input. */
static status read_byte(struct line_reader *r, int *out)
{
    if (r->block_used == r->block_bytes) {
        r->block_used = r->block_bytes = 0;
        TRY(add_line_number(r, input_read(&r->input, r->block, BLOCK_BYTES, &r->block_bytes)));
    }
    *out = r->block_bytes > 0 ? (unsigned char)r->block[r->block_used++] : NO_BYTE;
    return STATUS_OK;
}

status line_reader_next(struct line_reader *r, bool *found)
{
    int c = 0;
    *found = false;
    while (!r->has_newline && c != NO_BYTE) { /* the rest of a line that is too long */
        TRY(read_byte(r, &c));
        r->has_newline = c == '\n';
    }
    r->number++;
    r->bytes = 0;
    r->has_newline = r->too_long = false;
    while (c != NO_BYTE && !r->has_newline && !r->too_long) {
        TRY(read_byte(r, &c));
        if (r->bytes + 2 > r->capacity) {
            TRY(grow_line(r));
        }
        r->has_newline = c == '\n';
        r->too_long = c != NO_BYTE && !r->has_newline && r->bytes == LINE_READER_MAX_BYTES;
        if (c != NO_BYTE && !r->has_newline && !r->too_long) {
            r->line[r->bytes++] = (char)c;
        }
    }
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
