/* What the program tells people: standard error, and the run folder's log.txt with times.
 *
 * Only rank 0 speaks (log_quiet on the others); errors take their own way (status.h). Results go
 * to standard output and not through here. Calls are safe from any thread. */
#pragma once

#include <stdbool.h>

#include "base/status.h"

/* A warning, for those who keep more than text. */
struct log_entry {
    struct log_entry *next;
    char name[32]; /* "CKPT-SKIP" */
    char text[STATUS_TEXT_BYTES];
};

/* log_quiet - say nothing from now on: this is not rank 0. */
void log_quiet(bool quiet);

/* log_open - append everything told from now on to the file at path too, each line with its time.
 *
 * Errors    STATUS_PERMISSION, STATUS_CREATE */
status log_open(const char *path);

/* log_close - close that file; STATUS_WRITE if a line was lost. */
status log_close(void);

/* log_info - one line for people. */
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* log_warning - one line `W-NAME: ...`: something was not as it should be, and work goes on. */
void log_warning(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* log_keep_warnings - from now on what is warned of also waits for log_take_warning. Silence keeps none. */
void log_keep_warnings(void);

/* log_take_warning - the oldest one that waits, for free(); NULL: none does. */
struct log_entry *log_take_warning(void);

/* log_progress - the state of a long job: rewrites its own line on a terminal; elsewhere a plain
 * line, at most one every ten seconds. Not written to the log file. */
void log_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
