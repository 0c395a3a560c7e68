#include "base/terminal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/memory.h"

status terminal_flush(bool written)
{
    REQUIRE(written && fflush(stdout) == 0 && !ferror(stdout), STATUS_WRITE,
            "cannot write to standard output: %s", strerror(errno));
    return STATUS_OK;
}

bool terminal_has_colors(int descriptor)
{
    const char *forbidden = getenv("NO_COLOR"), *type = getenv("TERM");
    return (forbidden == NULL || forbidden[0] == '\0') && type != NULL && type[0] != '\0' &&
           strcmp(type, "dumb") != 0 && isatty(descriptor);
}

char *terminal_paint(int descriptor, const char *line, char *out, size_t bytes)
{
    static const struct {
        const char *word, *color;
    } words[] = {{"error:", "\033[1;31m"}, {"warning:", "\033[1;33m"}};
    for (int i = 0; i < COUNT(words) && terminal_has_colors(descriptor); i++) {
        size_t length = strlen(words[i].word);
        if (strncmp(line, words[i].word, length) == 0) {
            snprintf(out, bytes, "%s%s\033[0m%s", words[i].color, words[i].word, line + length);
            return out;
        }
    }
    snprintf(out, bytes, "%s", line);
    return out;
}

int terminal_columns(int descriptor)
{
    struct winsize size = {0};
    const char *setting = getenv("COLUMNS");
    long columns = TERMINAL_COLUMNS_DEFAULT;
    if (ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
        columns = size.ws_col;
    } else if (setting != NULL && strtol(setting, NULL, 10) > 0) {
        columns = strtol(setting, NULL, 10);
    }
    return columns < TERMINAL_COLUMNS_MIN   ? TERMINAL_COLUMNS_MIN
           : columns > TERMINAL_COLUMNS_MAX ? TERMINAL_COLUMNS_MAX
                                            : (int)columns;
}

/* Returns the length of the part of a word that fits into `room` columns: all of it, or up to the
 * last '|' in it, or all of a word that cannot be broken. */
static size_t fit_word(const char *word, size_t length, size_t room)
{
    size_t fitting = 0;
    for (size_t i = 0; i < length && i < room && length > room; i++) {
        fitting = word[i] == '|' ? i + 1 : fitting;
    }
    return fitting > 0 ? fitting : length;
}

void terminal_print_wrapped(FILE *file, const char *text, int column, int indent, int columns)
{
    size_t at = (size_t)column, start = (size_t)indent, end = (size_t)columns;
    bool is_first = true;
    while (*(text += strspn(text, " \n")) != '\0') {
        size_t length = strcspn(text, " \n"), gap = is_first ? 0 : 1;
        if (at + gap + length > end && at > start) {
            fprintf(file, "\n%*s", indent, "");
            at = start;
            gap = 0;
        }
        size_t part = fit_word(text, length, end > start ? end - start : 0);
        fprintf(file, "%*s%.*s", (int)gap, "", (int)part, text);
        at += gap + part;
        is_first = part < length; /* the rest of a broken word follows without a space */
        text += part;
    }
    fputc('\n', file);
}

/* Returns the column in which the text of a list item begins. */
static int find_item_text(const char *item)
{
    size_t name = 2 + strcspn(item + 2, " \n");
    size_t text = name + strspn(item + name, " ");
    return text >= name + 2 ? (int)text : 4;
}

/* Returns the length of a paragraph, list item or empty line, without the newline at its end. */
static size_t find_paragraph_end(const char *text)
{
    size_t end = strcspn(text, "\n");
    while (end > 0 && text[end] == '\n') {
        const char *next = text + end + 1;
        size_t indent = strspn(next, " ");
        if (next[indent] == '\n' || next[indent] == '\0' || indent == 2) {
            break;
        }
        end += 1 + strcspn(next, "\n");
    }
    return end;
}

void terminal_print_paragraphs(FILE *file, const char *text, int columns)
{
    while (*text != '\0') {
        size_t end = find_paragraph_end(text);
        char *copy = strndup(text, end);
        if (copy == NULL) {
            fprintf(file, "%.*s\n", (int)end, text); /* without memory, without line breaks */
        } else if (strspn(copy, " ") == 2) {
            int indent = find_item_text(copy);
            fprintf(file, "%.*s", indent, copy);
            terminal_print_wrapped(file, copy + indent, indent, indent, columns);
        } else {
            terminal_print_wrapped(file, copy, 0, 0, columns);
        }
        free(copy);
        text += end + (text[end] == '\n' ? 1 : 0);
    }
}
