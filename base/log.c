#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/terminal.h"
#include "base/text.h"

enum { LINE_BYTES = STATUS_TEXT_BYTES + 64 };

static struct {
    pthread_mutex_t lock;
    FILE *file;
    bool lost_line; /* a line could not be written to file */
    bool quiet;
    bool keep_warnings;
    struct log_entry *oldest, *newest; /* queue of kept warnings */
    bool progress_shown;  /* the cursor of the terminal is at the end of a progress line */
    double last_progress; /* time of the last plain progress line */
} state = {.lock = PTHREAD_MUTEX_INITIALIZER, .last_progress = -1e9};

void log_quiet(bool quiet)
{
    pthread_mutex_lock(&state.lock);
    state.quiet = quiet;
    pthread_mutex_unlock(&state.lock);
}

status log_open(const char *path)
{
    TRY(log_close());
    int descriptor;
    TRY(file_open_output(path, O_WRONLY | O_APPEND, &descriptor));
    FILE *file = fdopen(descriptor, "a");
    if (file == NULL) {
        close(descriptor);
        RAISE(STATUS_INTERNAL, "out of memory for the log %s", path);
    }
    pthread_mutex_lock(&state.lock);
    state.file = file;
    state.lost_line = false;
    pthread_mutex_unlock(&state.lock);
    return STATUS_OK;
}

status log_close(void)
{
    pthread_mutex_lock(&state.lock);
    bool lost = state.lost_line;
    if (state.file != NULL && fclose(state.file) != 0) {
        lost = true;
    }
    state.file = NULL;
    state.lost_line = false;
    pthread_mutex_unlock(&state.lock);
    REQUIRE(!lost, STATUS_WRITE, "the log file is incomplete: a line could not be written");
    return STATUS_OK;
}

/* Appends a line with the time to the log file; the caller holds the lock. */
static void write_to_file(const char *line)
{
    if (state.file != NULL) {
        time_t now = time(NULL);
        struct tm parts;
        char stamp[32];
        strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &parts));
        if (fprintf(state.file, "%s %s\n", stamp, line) < 0 || fflush(state.file) != 0) {
            state.lost_line = true;
        }
    }
}

void log_write_error(const char *line)
{
    pthread_mutex_lock(&state.lock);
    write_to_file(line);
    pthread_mutex_unlock(&state.lock);
}

void log_clear_progress(void)
{
    static const char clear[] = "\r\033[K";
    if (pthread_mutex_trylock(&state.lock) == 0) {
        if (state.progress_shown) {
            (void)!write(STDERR_FILENO, clear, sizeof clear - 1);
            state.progress_shown = false;
        }
        pthread_mutex_unlock(&state.lock);
    }
}

static void write_line(char *line)
{
    char painted[LINE_BYTES + TERMINAL_PAINT_BYTES];
    text_replace_controls(line, " ");
    pthread_mutex_lock(&state.lock);
    if (!state.quiet) {
        fprintf(stderr, "%s%s\n", state.progress_shown ? "\r\033[K" : "",
                terminal_paint(STDERR_FILENO, line, painted, sizeof painted));
        fflush(stderr);
        state.progress_shown = false;
        write_to_file(line);
    }
    pthread_mutex_unlock(&state.lock);
}

void log_info(const char *format, ...)
{
    char line[STATUS_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    write_line(line);
}

void log_text(const char *format, ...)
{
    char text[STATUS_TEXT_BYTES], *lines = NULL;
    size_t bytes = 0;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    FILE *memory = open_memstream(&lines, &bytes);
    if (memory != NULL) {
        terminal_print_wrapped(memory, text, 0, 2, TEXT_LINE_COLUMNS);
        fclose(memory);
    }
    if (lines == NULL) { /* without memory, without line breaks */
        write_line(text);
    }
    for (char *line = lines, *end; line != NULL && (end = strchr(line, '\n')) != NULL;
         line = end + 1) {
        *end = '\0';
        write_line(line);
    }
    free(lines);
}

/* Where the warnings of this thread are appended; text NULL: nowhere. */
static _Thread_local struct {
    char *text;
    size_t bytes;
} diverted;

void log_divert_warnings(char *text, size_t bytes)
{
    diverted.text = text;
    diverted.bytes = bytes;
}

static void append_diverted(const char *name, const char *text)
{
    if (diverted.text != NULL) {
        size_t used = strlen(diverted.text);
        snprintf(diverted.text + used, diverted.bytes - used, "%s%s [W-%s]", used > 0 ? "\n" : "",
                 text, name);
    }
}

/* Queues a warning. If memory runs out, the warning is not queued; it has been printed already. */
static void queue_warning(const char *name, const char *text)
{
    append_diverted(name, text);
    pthread_mutex_lock(&state.lock);
    struct log_entry *entry = state.keep_warnings && !state.quiet ? malloc(sizeof *entry) : NULL;
    if (entry != NULL) {
        entry->next = NULL;
        snprintf(entry->name, sizeof entry->name, "%s", name);
        snprintf(entry->text, sizeof entry->text, "%s", text);
        *(state.oldest == NULL ? &state.oldest : &state.newest->next) = entry;
        state.newest = entry;
    }
    pthread_mutex_unlock(&state.lock);
}

void log_warning(const char *name, const char *format, ...)
{
    char text[STATUS_TEXT_BYTES], line[LINE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    text_replace_controls(text, " ");
    snprintf(line, sizeof line, "warning: %s [W-%s]", text, name);
    write_line(line);
    queue_warning(name, text);
}

void log_keep_warnings(void)
{
    pthread_mutex_lock(&state.lock);
    state.keep_warnings = true;
    pthread_mutex_unlock(&state.lock);
}

struct log_entry *log_take_warning(void)
{
    pthread_mutex_lock(&state.lock);
    struct log_entry *entry = state.oldest;
    if (entry != NULL) {
        state.oldest = entry->next;
    }
    pthread_mutex_unlock(&state.lock);
    return entry;
}

void log_progress(const char *format, ...)
{
    static const double plain_interval_seconds = 10;
    char line[STATUS_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    text_replace_controls(line, " ");
    pthread_mutex_lock(&state.lock);
    if (!state.quiet) {
        double now = clock_seconds();
        if (isatty(STDERR_FILENO)) {
            int columns = terminal_columns(STDERR_FILENO) - 1; /* a wrapped line would remain */
            fprintf(stderr, "\r%.*s\033[K",
                    columns < TEXT_LINE_COLUMNS ? columns : TEXT_LINE_COLUMNS, line);
            fflush(stderr);
            state.progress_shown = true;
        } else if (now - state.last_progress >= plain_interval_seconds) {
            fprintf(stderr, "%s\n", line);
            fflush(stderr);
            state.last_progress = now;
        }
    }
    pthread_mutex_unlock(&state.lock);
}
