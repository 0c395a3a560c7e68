/* Error handling: every function that can fail returns a status, and each error is printed once.
 *
 * A status is also an exit code of the program (docs/reference/exit_codes.md; from sysexits.h where
 * possible). The function that detects an error raises it (RAISE, REQUIRE). The reason is stored as
 * the pending note of the thread. If a note is pending already, the first one is kept. Callers
 * return the status (TRY) and print nothing. The function that ends the work prints the note: main
 * in a single process, comm_agree or comm_abort with several ranks. An error on all ranks is
 * therefore printed once. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef enum status {
    STATUS_OK = 0,
    STATUS_USAGE = 64,       /* wrong command line */
    STATUS_DATA = 65,        /* bad input data; the message names file, position and reason */
    STATUS_NO_INPUT = 66,    /* an input does not exist */
    STATUS_UNAVAILABLE = 69, /* not available in this build or on this machine */
    STATUS_INTERNAL = 70,    /* an internal error: a bug, or out of memory */
    STATUS_LOST = 71,        /* another rank or its host was lost */
    STATUS_CREATE = 73,      /* cannot create an output, or another job uses the run folder */
    STATUS_WRITE = 74,       /* writing failed: disk full, I/O error */
    STATUS_STOPPED = 75,     /* stopped on request, after a checkpoint was saved */
    STATUS_HANG = 76,        /* a rank stopped responding */
    STATUS_PERMISSION = 77,  /* no permission */
    STATUS_RECIPE = 78,      /* invalid recipe */
    STATUS_NOT_FINITE = 79,  /* a loss or a gradient is infinite or NaN */
    STATUS_CHECKPOINT = 80,  /* checkpoints exist, but none is usable */
    STATUS_DIVERGED = 81,    /* replicas that must be equal differ */
} status;

#define STATUS_TEXT_BYTES 2048

/* The reason of an error. A worker thread passes it to the thread that ends the work. */
struct status_note {
    status code;
    int64_t step; /* training step; -1: outside of a step */
    char text[STATUS_TEXT_BYTES];
};

/* status_identify - set the rank and host that error lines of this process contain.
 *
 * Units     rank 0..ranks-1; ranks 0: not known yet; host may be NULL for this machine's name */
void status_identify(int rank, int ranks, const char *host);

/* status_set_step - set the step that later error lines contain; -1: none. */
void status_set_step(int64_t step);

/* status_raise - store the reason of an error as the pending note of this thread, unless one is
 * pending. Use the macros below instead of calling it.
 *
 * Returns   code, or STATUS_INTERNAL if code is STATUS_OK */
status status_raise(status code, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* status_take - move the pending note of this thread to *note; code STATUS_OK if there is none. */
void status_take(struct status_note *note);

/* status_restore - make *note the pending note of this thread, unless one is pending.
 *
 * Returns   note->code */
status status_restore(const struct status_note *note);

/* status_change - replace the code of the pending note of this thread; its text remains.
 *
 * Returns   code */
status status_change(status code);

/* status_pending - return the pending note of this thread; code is STATUS_OK if there is none. */
const struct status_note *status_pending(void);

/* status_word - return the word of a status in error lines, such as DATA in [E-DATA]. It is
 * external only for tests. */
const char *status_word(status code);

/* status_format - write the error line `error: rank R host H step S: reason [E-WORD]`.
 *
 * Memory    line[bytes] always ends with a NUL */
void status_format(const struct status_note *note, char *line, int bytes);

/* status_print - print the pending note of this thread to standard error as one line, and clear it.
 * The line is also appended to the log file (base/log.h).
 *
 * Returns   whether a note was pending */
bool status_print(void);

/* status_divert - let status_print of this thread move the note to *note instead of printing it;
 * NULL restores printing. */
void status_divert(struct status_note *note);

/* status_clear - clear the pending note of this thread, because the error was handled. */
void status_clear(void);

/* status_from_errno - return the status for a failed system call on a file.
 *
 * Returns   ENOENT, ENOTDIR: fallback_missing (66 for inputs, 73 for outputs); EACCES, EPERM,
 *           EROFS: 77; ENOSPC, EDQUOT, EIO: 74; all other values: `otherwise` */
status status_from_errno(int error, status fallback_missing, status otherwise);

/* status_raised - return code, and declare to the compiler that it is not STATUS_OK. This avoids
 * warnings about outputs that are not set. */
static inline status status_raised(status code)
{
    if (code == STATUS_OK) {
        __builtin_unreachable();
    }
    return code;
}

/* RAISE_STATUS - raise an error with a printf-style reason and evaluate to its status. The function
 * continues, for example with its clean-up. */
#define RAISE_STATUS(code, ...) status_raised(status_raise((code), __FILE__, __LINE__, __VA_ARGS__))

/* RAISE - raise an error with a printf-style reason and return its status. */
#define RAISE(code, ...) return RAISE_STATUS(code, __VA_ARGS__)

/* REQUIRE - raise an error and return its status, unless the condition holds. */
#define REQUIRE(condition, code, ...)                                                              \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            return RAISE_STATUS(code, __VA_ARGS__);                                                \
        }                                                                                          \
    } while (0)

/* TRY - return the status of a call from the current function, unless it is STATUS_OK. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        status try_status = (call);                                                                \
        if (try_status != STATUS_OK) {                                                             \
            return try_status;                                                                     \
        }                                                                                          \
    } while (0)

/* TRY_GOTO - store the status of a call in result, and go to the clean-up at label if it failed.
 * Use it in functions that must release something. */
#define TRY_GOTO(result, label, call)                                                              \
    do {                                                                                           \
        (result) = (call);                                                                         \
        if ((result) != STATUS_OK) {                                                               \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

/* REQUIRE_GOTO - like REQUIRE, but store the status in result and go to label. */
#define REQUIRE_GOTO(result, label, condition, code, ...)                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            (result) = RAISE_STATUS(code, __VA_ARGS__);                                            \
            goto label;                                                                            \
        }                                                                                          \
    } while (0)

/* KEEP_FIRST - run a call in clean-up code, also after a failure; keep the first failure. */
#define KEEP_FIRST(result, call)                                                                   \
    do {                                                                                           \
        status keep_status = (call);                                                               \
        if ((result) == STATUS_OK) {                                                               \
            (result) = keep_status;                                                                \
        }                                                                                          \
    } while (0)
