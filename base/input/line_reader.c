#include "base/input/line_reader.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 64 << 10 };

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

/* Makes room for `more` further bytes and the NUL. */
static status reserve_line(struct line_reader *r, size_t more)
{
    size_t needed = r->bytes + more + 1, capacity = r->capacity == 0 ? 256 : 2 * r->capacity;
    if (needed <= r->capacity) {
        return STATUS_OK;
    }
    capacity = capacity < needed ? needed : capacity;
    char *grown = realloc(r->line, capacity);
    REQUIRE(grown != NULL, STATUS_INTERNAL, "%s:%" PRId64 ": out of memory for a line of %zu bytes",
            r->name, r->number, capacity);
    r->line = grown;
    r->capacity = capacity;
    return STATUS_OK;
}

status line_reader_locate(const char *name, int64_t number, status result)
{
    struct status_note note;
    if (result != STATUS_DATA) {
        return result;
    }
    status_take(&note);
    RAISE(STATUS_DATA, "%s:%" PRId64 ": %.1500s", name, number, note.text);
}

/* Reads the next block if the last one is used. *more is false at the end of the input. */
static status fill_block(struct line_reader *r, bool *more)
{
    if (r->block_used == r->block_bytes) {
        r->block_used = r->block_bytes = 0;
        TRY(line_reader_locate(r->name, r->number,
                               input_read(&r->input, r->block, BLOCK_BYTES, &r->block_bytes)));
    }
    *more = r->block_bytes > 0;
    return STATUS_OK;
}

/* Returns the number of bytes of the block before a newline or the end of the block. */
static size_t find_newline(const struct line_reader *r, bool *has_newline)
{
    const char *text = r->block + r->block_used;
    size_t left = r->block_bytes - r->block_used;
    const char *newline = memchr(text, '\n', left);
    *has_newline = newline != NULL;
    return newline != NULL ? (size_t)(newline - text) : left;
}

/* Skips the rest of a line that is too long. */
static status skip_rest(struct line_reader *r, bool *more)
{
    while (!r->has_newline && *more) {
        TRY(fill_block(r, more));
        size_t bytes = find_newline(r, &r->has_newline);
        r->block_used += bytes + (r->has_newline ? 1 : 0);
    }
    return STATUS_OK;
}

/* Moves bytes from the block to the line, up to its newline or its limit. */
static status take_part(struct line_reader *r)
{
    bool has_newline;
    size_t bytes = find_newline(r, &has_newline), room = LINE_READER_BYTES_MAX - r->bytes;
    r->too_long = bytes > room;
    bytes = r->too_long ? room : bytes;
    TRY(reserve_line(r, bytes));
    memcpy(r->line + r->bytes, r->block + r->block_used, bytes);
    r->bytes += bytes;
    r->has_newline = has_newline && !r->too_long;
    r->block_used += bytes + (r->has_newline ? 1 : 0);
    return STATUS_OK;
}

status line_reader_next(struct line_reader *r, bool *found)
{
    bool more = true;
    *found = false;
    TRY(skip_rest(r, &more));
    r->number++;
    r->bytes = 0;
    r->has_newline = r->too_long = false;
    while (more && !r->has_newline && !r->too_long) {
        TRY(fill_block(r, &more));
        TRY(take_part(r));
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
            result = line_reader_locate(r.name, r.number, visit(user, r.line, r.bytes));
        }
    }
done:
    line_reader_close(&r);
    return result;
}
