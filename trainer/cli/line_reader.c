#include "trainer/cli/line_reader.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The reason says what is wrong with the line: say which line it is. */
static status at_line(const char *name, long long number, status result)
{
    struct status_note note;
    if (result != STATUS_DATA) {
        return result;
    }
    status_take(&note);
    RAISE(STATUS_DATA, "%s:%lld: %.1500s", name, number, note.text);
}

static status read_all(const char *name, FILE *file, lines_visit visit, void *user)
{
    char *line = NULL;
    size_t capacity = 0;
    long long number = 0;
    status result = STATUS_OK;
    for (ssize_t got; result == STATUS_OK && (got = getline(&line, &capacity, file)) >= 0;) {
        size_t bytes = (size_t)got - (got > 0 && line[got - 1] == '\n');
        line[bytes] = '\0';
        result = at_line(name, ++number, visit(user, line, bytes));
    }
    REQUIRE_GOTO(result, done, result != STATUS_OK || !ferror(file), STATUS_DATA,
                 "%s:%lld: cannot read: %s", name, number + 1, strerror(errno));
done:
    free(line);
    return result;
}

status lines_read(const char *path, lines_visit visit, void *user)
{
    if (path == NULL || strcmp(path, "-") == 0) {
        return read_all("standard input", stdin, visit, user);
    }
    FILE *file = fopen(path, "r");
    REQUIRE(file != NULL, status_from_errno(errno, STATUS_NO_INPUT, STATUS_DATA),
            "cannot open %s: %s", path, strerror(errno));
    status result = read_all(path, file, visit, user);
    fclose(file);
    return result;
}
