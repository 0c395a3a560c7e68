/* Logging: lines on standard error, and the same lines with times in log.txt of the run folder.
 *
 * Only rank 0 logs; the other ranks call log_quiet. Errors are reported through status.h instead;
 * log.txt also contains the errors of rank 0. Results are written to standard output and do not
 * pass through this module. All functions may be called from any thread. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* A queued warning, see log_keep_warnings. */
struct log_entry {
    struct log_entry *next;
    char name[32]; /* "CKPT-SKIP" */
    char text[STATUS_TEXT_BYTES];
};

/* log_quiet - turn off all output of this process (true), or turn it on again (false). */
void log_quiet(bool quiet);

/* log_open - append all following lines, with times, to the file at path too.
 *
 * Errors    STATUS_PERMISSION, STATUS_CREATE */
status log_open(const char *path);

/* log_close - close the log file.
 *
 * Errors    STATUS_WRITE if a line could not be written */
status log_close(void);

/* log_info - log one line. */
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* log_text - print a text as log_info does, in lines of at most TEXT_LINE_COLUMNS. */
void log_text(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* log_warning - log one line `warning: ... [W-NAME]`: a problem that does not stop the work. */
void log_warning(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* log_keep_warnings - from now on, also queue each warning for log_take_warning. A quiet process
 * queues nothing. */
void log_keep_warnings(void);

/* log_take_warning - remove and return the oldest queued warning; NULL if the queue is empty.
 *
 * Memory    the caller frees it with free() */
struct log_entry *log_take_warning(void);

/* log_divert_warnings - from now on, append the warnings of this thread to text[bytes] as lines
 * `TEXT [W-NAME]`, also in a quiet process. A warning that does not fit is cut; text is always
 * terminated by NUL. NULL ends it. */
void log_divert_warnings(char *text, size_t bytes);

/* log_progress - show the state of a long job. On a terminal the line replaces the previous
 * progress line and is cut at the width of the terminal (at least 40), or at TEXT_LINE_COLUMNS.
 * Elsewhere it is a plain line, at most one every ten seconds. It is not written to log.txt. */
void log_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* log_clear_progress - remove the progress line from the terminal, before a line that does not pass
 * through this module. It does not wait: if another thread logs, it does nothing. */
void log_clear_progress(void);

/* log_write_error - append an error line to the log file only, if this process has one. */
void log_write_error(const char *line);
