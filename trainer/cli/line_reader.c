#include "trainer/cli/line_reader.h"

#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Adds the name of the file and the line number to the message of a STATUS_DATA. */
static status add_line_number(const char *name, int64_t number, status result)
{
    struct status_note note;
    if (result != STATUS_DATA) {
        return result;
    }
    status_take(&note);
    RAISE(STATUS_DATA, "%s:%" PRId64 ": %.1500s", name, number, note.text);
}

static status read_lines(const char *name, FILE *file, line_reader_visit visit, void *user)
{
    char *line = NULL;
    size_t capacity = 0;
    int64_t number = 0;
    status result = STATUS_OK;
    for (ssize_t got; result == STATUS_OK && (got = getline(&line, &capacity, file)) >= 0;) {
        size_t bytes = (size_t)got - (got > 0 && line[got - 1] == '\n');
        line[bytes] = '\0';
        result = add_line_number(name, ++number, visit(user, line, bytes));
    }
    REQUIRE_GOTO(result, done, result != STATUS_OK || !ferror(file), STATUS_DATA,
                 "%s:%" PRId64 ": cannot read: %s", name, number + 1, strerror(errno));
done:
    free(line);
    return result;
}

status line_reader_read(const char *path, line_reader_visit visit, void *user)
{
    if (path == NULL || strcmp(path, "-") == 0) {
        return read_lines("standard input", stdin, visit, user);
    }
    FILE *file = fopen(path, "r");
    REQUIRE(file != NULL, status_from_errno(errno, STATUS_NO_INPUT, STATUS_DATA),
            "cannot open %s: %s", path, strerror(errno));
    status result = read_lines(path, file, visit, user);
    fclose(file);
    return result;
}
