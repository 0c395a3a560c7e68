/* Tests of warnings, errors, colors, widths and wrapped text: in files, on a pseudo-terminal. */
#define _XOPEN_SOURCE 600 /* posix_openpt */
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/log.h"
#include "base/terminal.h"
#include "tests/check.h"

/* Opens a pseudo-terminal; returns false if the machine has none. */
static bool open_terminal(int *controller, int *terminal)
{
    *controller = posix_openpt(O_RDWR | O_NOCTTY);
    if (*controller < 0 || grantpt(*controller) != 0 || unlockpt(*controller) != 0) {
        return false;
    }
    *terminal = open(ptsname(*controller), O_RDWR | O_NOCTTY);
    return *terminal >= 0;
}

static const char *paint_line(int descriptor, const char *line)
{
    static char out[64];
    return terminal_paint(descriptor, line, out, sizeof out);
}

static void test_colors(int terminal)
{
    CHECK(setenv("TERM", "xterm", 1) == 0 && unsetenv("NO_COLOR") == 0);
    CHECK_TEXT(paint_line(terminal, "error: a"), "\033[1;31merror:\033[0m a");
    CHECK_TEXT(paint_line(terminal, "warning: b"), "\033[1;33mwarning:\033[0m b");
    CHECK_TEXT(paint_line(terminal, "an error: c"), "an error: c");
    CHECK(setenv("NO_COLOR", "1", 1) == 0);
    CHECK_TEXT(paint_line(terminal, "error: a"), "error: a");
    CHECK(setenv("NO_COLOR", "", 1) == 0); /* no-color.org: an empty value has no effect */
    CHECK(terminal_has_colors(terminal));
    CHECK(setenv("TERM", "dumb", 1) == 0);
    CHECK_TEXT(paint_line(terminal, "error: a"), "error: a");
    CHECK(unsetenv("TERM") == 0);
    CHECK(!terminal_has_colors(terminal));
}

/* A warning in a file has no colors, one line and its name at the end, also if it is cut. */
static void test_warning(void)
{
    char path[] = "/tmp/bireme-test-XXXXXX", text[2 * STATUS_TEXT_BYTES] = "", expected[64];
    int file = mkstemp(path), own = dup(STDERR_FILENO);
    CHECK(file >= 0 && own >= 0 && setenv("TERM", "xterm", 1) == 0);
    CHECK(dup2(file, STDERR_FILENO) == STDERR_FILENO);
    log_keep_warnings();
    log_warning("BAD-ROW", "line %d\n\033", 7);
    log_warning("LONG", "%*d", STATUS_TEXT_BYTES, 0);
    CHECK(dup2(own, STDERR_FILENO) == STDERR_FILENO);
    ssize_t bytes = pread(file, text, sizeof text - 1, 0);
    snprintf(expected, sizeof expected, "warning: line 7?? [W-BAD-ROW]\nwarning:  ");
    CHECK(strncmp(text, expected, strlen(expected)) == 0);
    CHECK(bytes > STATUS_TEXT_BYTES && strcmp(text + bytes - 10, " [W-LONG]\n") == 0);
    struct log_entry *kept = log_take_warning();
    CHECK_TEXT(kept->name, "BAD-ROW");
    CHECK_TEXT(kept->text, "line 7??");
    free(kept);
    free(log_take_warning());
    CHECK(unlink(path) == 0 && close(file) == 0 && close(own) == 0);
}

/* Appends what the terminal shows to text[bytes], until it ends with `end`. */
static void read_terminal(int controller, char *text, size_t bytes, const char *end)
{
    size_t used = strlen(text);
    while (strstr(text, end) == NULL) {
        ssize_t count = read(controller, text + used, bytes - 1 - used);
        CHECK(count > 0);
        used += (size_t)count;
        text[used] = '\0';
    }
}

/* An error replaces the progress line, and is also in the log file, without colors. */
static void test_error_after_progress(int controller, int terminal)
{
    char path[] = "/tmp/bireme-test-XXXXXX", shown[1024] = "", logged[1024] = "";
    int file = mkstemp(path), own = dup(STDERR_FILENO);
    CHECK(file >= 0 && own >= 0 && setenv("TERM", "xterm", 1) == 0);
    CHECK(dup2(terminal, STDERR_FILENO) == STDERR_FILENO);
    CHECK_OK(log_open(path));
    log_progress("step %d", 1);
    (void)RAISE_STATUS(STATUS_DATA, "bad row");
    bool printed = status_print();
    log_progress("step %d", 2);
    log_clear_progress();
    log_clear_progress(); /* without a progress line: no output */
    log_info("end");
    CHECK_OK(log_close());
    CHECK(dup2(own, STDERR_FILENO) == STDERR_FILENO && printed);
    read_terminal(controller, shown, sizeof shown, "end\r\n");
    CHECK_TEXT(shown, "\rstep 1\033[K\r\033[K\033[1;31merror:\033[0m bad row [E-DATA]\r\n"
                      "\rstep 2\033[K\r\033[Kend\r\n");
    CHECK(pread(file, logged, sizeof logged - 1, 0) > 0);
    CHECK(strstr(logged, "Z error: bad row [E-DATA]\n") != NULL);
    CHECK(strstr(logged, "step") == NULL);
    CHECK(unlink(path) == 0 && close(file) == 0 && close(own) == 0);
}

/* ---- width and wrapped text ---- */

static void test_columns(int descriptor)
{
    CHECK(setenv("COLUMNS", "60", 1) == 0);
    CHECK_EQUAL(terminal_columns(descriptor), 60);
    CHECK(setenv("COLUMNS", "7", 1) == 0);
    CHECK_EQUAL(terminal_columns(descriptor), TERMINAL_COLUMNS_MIN);
    CHECK(setenv("COLUMNS", "wide", 1) == 0);
    CHECK_EQUAL(terminal_columns(descriptor), 80);
    CHECK(unsetenv("COLUMNS") == 0);
    CHECK_EQUAL(terminal_columns(descriptor), 80);
}

static void test_terminal_columns(int terminal)
{
    struct winsize size = {.ws_col = 0};
    CHECK(ioctl(terminal, TIOCSWINSZ, &size) == 0);
    test_columns(terminal); /* the terminal reports no width */
    size.ws_col = 101;
    CHECK(ioctl(terminal, TIOCSWINSZ, &size) == 0 && setenv("COLUMNS", "60", 1) == 0);
    CHECK_EQUAL(terminal_columns(terminal), 101);
}

static void check_wrapped(const char *text, int column, int indent, const char *expected)
{
    char *printed = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&printed, &bytes);
    CHECK(file != NULL);
    terminal_print_wrapped(file, text, column, indent, 12);
    CHECK(fclose(file) == 0);
    CHECK_TEXT(printed, expected);
    free(printed);
}

static void check_paragraphs(const char *text, const char *expected)
{
    char *printed = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&printed, &bytes);
    CHECK(file != NULL);
    terminal_print_paragraphs(file, text, 20);
    CHECK(fclose(file) == 0);
    CHECK_TEXT(printed, expected);
    free(printed);
}

static void test_wrapping(void)
{
    check_wrapped("", 0, 0, "\n");
    check_wrapped("one two three", 0, 0, "one two\nthree\n");
    check_wrapped("one two  12345", 0, 2, "one two\n  12345\n");
    check_wrapped("123456 78901 3", 0, 0, "123456 78901\n3\n"); /* exactly 12 columns */
    check_wrapped("one two", 10, 2, "\n  one two\n");           /* a long text before it */
    check_wrapped("a 1234567890123 b", 0, 0, "a\n1234567890123\nb\n");
    check_wrapped("(bpe|word|char|none) x", 2, 2, "(bpe|word|\n  char|none)\n  x\n");
    check_paragraphs("one\ntwo three four five\n\n  a    first item and\n       more\n  bb   b\n\n"
                     "last\n",
                     "one two three four\nfive\n\n  a    first item\n       and more\n  bb   b\n\n"
                     "last\n");
}

int main(void)
{
    test_columns(open("/dev/null", O_RDWR));
    test_wrapping();
    int controller, terminal, ends[2];
    test_warning();
    CHECK(setenv("TERM", "xterm", 1) == 0 && pipe(ends) == 0);
    CHECK_TEXT(paint_line(ends[1], "error: a"), "error: a");
    if (!open_terminal(&controller, &terminal)) {
        CHECK_SKIP("colors: the machine has no pseudo-terminals");
    }
    test_colors(terminal);
    test_error_after_progress(controller, terminal);
    test_terminal_columns(terminal);
    return 0;
}
