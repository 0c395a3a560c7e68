/* What a function that can fail returns, and how its reason reaches the user exactly once.
 *
 * A status is also the program's exit code (docs/exit-codes.md; sysexits.h where one fits).
 * Whoever meets an error raises it: the reason is kept as this thread's pending note, the first
 * one wins, and every caller above passes the status on (TRY). Nobody prints on the way. The one
 * place that ends the work prints the note: main for a single process, comm_agree or comm_abort
 * for several ranks, so that an error that all ranks meet is told once. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef enum status {
    STATUS_OK = 0,
    STATUS_USAGE = 64,       /* wrong command line */
    STATUS_DATA = 65,        /* bad input data: file, place and reason are named */
    STATUS_NO_INPUT = 66,    /* an input does not exist */
    STATUS_UNAVAILABLE = 69, /* not in this build or not on this machine */
    STATUS_INTERNAL = 70,    /* an internal error: a bug, or memory ran out */
    STATUS_LOST = 71,        /* another rank or its host is lost */
    STATUS_CREATE = 73,      /* an output cannot be created, or another job holds the run folder */
    STATUS_WRITE = 74,       /* writing failed: disk full, input/output error */
    STATUS_STOPPED = 75,     /* stopped on request after saving */
    STATUS_HANG = 76,        /* a rank stopped answering */
    STATUS_PERMISSION = 77,  /* no permission */
    STATUS_RECIPE = 78,      /* wrong recipe */
    STATUS_NOT_FINITE = 79,  /* a loss or gradient that is not finite */
    STATUS_CHECKPOINT = 80,  /* checkpoints exist and none is usable */
    STATUS_DIVERGED = 81,    /* replicas that must be equal differ */
} status;

#define STATUS_TEXT_BYTES 2048

/* A pending error, to be carried from a worker thread to the thread that ends the work. */
struct status_note {
    status code;
    int64_t step; /* -1: outside of a step */
    char text[STATUS_TEXT_BYTES];
};

/* status_identify - who speaks in this process's error lines.
 *
 * Units     rank 0..ranks-1; host may be NULL for this machine's name */
void status_identify(int rank, int ranks, const char *host);

/* status_at_step - the step named in error lines from now on; -1 for none. */
void status_at_step(int64_t step);

/* status_raise - note the reason of an error for this thread, unless one is pending already.
 *
 * Errors    returns code, always; STATUS_INTERNAL in place of STATUS_OK */
status status_raise(status code, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* status_take - move this thread's pending note to *note (code STATUS_OK where there is none). */
void status_take(struct status_note *note);

/* status_restore - make *note this thread's pending note, unless one is pending already.
 *
 * Errors    returns note->code */
status status_restore(const struct status_note *note);

/* status_pending - this thread's pending note; code STATUS_OK where there is none. */
const struct status_note *status_pending(void);

/* status_format - the line that a user sees: `E-CODE rank R host H step S: reason`.
 *
 * Memory    line[bytes] is always terminated */
void status_format(const struct status_note *note, char *line, int bytes);

/* status_print - write this thread's pending note to standard error as one line and forget it.
 *
 * Errors    returns whether there was one */
bool status_print(void);

/* status_divert - from now on status_print of this thread moves the note to *note and prints nothing; NULL: it prints.
 */
void status_divert(struct status_note *note);

/* status_clear - forget this thread's pending note: the error was handled. */
void status_clear(void);

/* status_from_errno - the status for a failed system call on a file.
 *
 * ENOENT is fallback_missing (66 for inputs, 73 for outputs); EACCES, EPERM and EROFS are 77;
 * ENOSPC, EDQUOT and EIO are 74; anything else is `otherwise`. */
status status_from_errno(int error, status fallback_missing, status otherwise);

/* What was raised is never STATUS_OK: said to the compiler, so that it knows which outputs are set. */
static inline status status_raised(status code)
{
    if (code == STATUS_OK) {
        __builtin_unreachable();
    }
    return code;
}

#define RAISE(code, ...) return status_raised(status_raise((code), __FILE__, __LINE__, __VA_ARGS__))

#define REQUIRE(condition, code, ...)                                                              \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            return status_raised(status_raise((code), __FILE__, __LINE__, __VA_ARGS__));           \
        }                                                                                          \
    } while (0)

#define TRY(call)                                                                                  \
    do {                                                                                           \
        status try_status = (call);                                                                \
        if (try_status != STATUS_OK) {                                                             \
            return try_status;                                                                     \
        }                                                                                          \
    } while (0)

/* Where something is held: result = call; on failure go to the clean-up at label. */
#define TRY_GOTO(result, label, call)                                                              \
    do {                                                                                           \
        (result) = (call);                                                                         \
        if ((result) != STATUS_OK) {                                                               \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

#define REQUIRE_GOTO(result, label, condition, code, ...)                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            (result) = status_raised(status_raise((code), __FILE__, __LINE__, __VA_ARGS__));       \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

/* In clean-up: run call whatever happened before, keep the first failure. */
#define KEEP_FIRST(result, call)                                                                   \
    do {                                                                                           \
        status keep_status = (call);                                                               \
        if ((result) == STATUS_OK) {                                                               \
            (result) = keep_status;                                                                \
        }                                                                                          \
    } while (0)
