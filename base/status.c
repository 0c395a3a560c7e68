#include "base/status.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/terminal.h"
#include "base/text.h"

static struct {
    int rank;
    int ranks;
    char host[65];
} identity = {.rank = 0, .ranks = 1, .host = ""};

static _Atomic int64_t current_step = -1;
static _Thread_local struct status_note pending, *diverted_note;

const char *status_word(status code)
{
    switch (code) {
    case STATUS_OK:
        return "OK";
    case STATUS_USAGE:
        return "USAGE";
    case STATUS_DATA:
        return "DATA";
    case STATUS_NO_INPUT:
        return "NO-INPUT";
    case STATUS_UNAVAILABLE:
        return "UNAVAILABLE";
    case STATUS_INTERNAL:
        return "INTERNAL";
    case STATUS_LOST:
        return "RANK-LOST";
    case STATUS_CREATE:
        return "CREATE";
    case STATUS_WRITE:
        return "WRITE";
    case STATUS_STOPPED:
        return "STOPPED";
    case STATUS_HANG:
        return "HANG";
    case STATUS_PERMISSION:
        return "PERMISSION";
    case STATUS_RECIPE:
        return "RECIPE";
    case STATUS_NOT_FINITE:
        return "NONFINITE";
    case STATUS_CHECKPOINT:
        return "CHECKPOINT";
    case STATUS_DIVERGED:
        return "DIVERGED";
    }
    return "UNKNOWN";
}

void status_identify(int rank, int ranks, const char *host)
{
    identity.rank = rank;
    identity.ranks = ranks;
    if (host != NULL) {
        snprintf(identity.host, sizeof identity.host, "%s", host);
    }
}

void status_set_step(int64_t step)
{
    atomic_store_explicit(&current_step, step, memory_order_relaxed);
}

status status_raise(status code, const char *file, int line, const char *format, ...)
{
    if (code == STATUS_OK) {
        code = STATUS_INTERNAL;
    }
    if (pending.code != STATUS_OK) {
        return code;
    }
    va_list arguments;
    va_start(arguments, format);
    pending.code = code;
    pending.step = atomic_load_explicit(&current_step, memory_order_relaxed);
    vsnprintf(pending.text, sizeof pending.text, format, arguments);
    va_end(arguments);
    if (code == STATUS_INTERNAL) { /* a bug of this program: add the source location */
        size_t used = strlen(pending.text);
        snprintf(pending.text + used, sizeof pending.text - used, " (%s:%d)", file, line);
    }
    return code;
}

void status_take(struct status_note *note)
{
    *note = pending;
    pending.code = STATUS_OK;
}

status status_restore(const struct status_note *note)
{
    if (note->code != STATUS_OK && pending.code == STATUS_OK) {
        pending = *note;
    }
    return note->code;
}

status status_change(status code)
{
    if (pending.code != STATUS_OK) {
        pending.code = code;
    }
    return code;
}

const struct status_note *status_pending(void)
{
    return &pending;
}

/* Writes the place in front of a reason: " rank 1 host a step 7:", " step 7:" or nothing. */
static void format_place(int64_t step, char *place, size_t bytes)
{
    char rank[96] = "", number[32] = "";
    if (identity.host[0] == '\0' && gethostname(identity.host, sizeof identity.host - 1) != 0) {
        snprintf(identity.host, sizeof identity.host, "unknown");
    }
    if (identity.ranks != 1) {
        snprintf(rank, sizeof rank, " rank %d host %s", identity.rank, identity.host);
    }
    if (step >= 0) {
        snprintf(number, sizeof number, " step %" PRId64, step);
    }
    snprintf(place, bytes, "%s%s%s", rank, number, rank[0] + number[0] != 0 ? ":" : "");
}

void status_format(const struct status_note *note, char *line, int bytes)
{
    char place[160];
    format_place(note->step, place, sizeof place);
    snprintf(line, (size_t)bytes, "error:%s %s [E-%s]", place, note->text, status_word(note->code));
    for (char *c = line; *c != '\0'; c++) { /* one line, even if a file name contains a line feed */
        if (*c == '\n' || *c == '\r') {
            *c = ' ';
        }
    }
    text_replace_controls(line, "");
}

bool status_print(void)
{
    if (pending.code == STATUS_OK) {
        return false;
    }
    if (diverted_note != NULL) {
        status_take(diverted_note);
        return true;
    }
    char line[STATUS_TEXT_BYTES + 256], painted[sizeof line + TERMINAL_PAINT_BYTES];
    status_format(&pending, line, (int)sizeof line);
    log_clear_progress();
    fprintf(stderr, "%s\n", terminal_paint(STDERR_FILENO, line, painted, sizeof painted));
    fflush(stderr);
    log_write_error(line);
    pending.code = STATUS_OK;
    return true;
}

void status_divert(struct status_note *note)
{
    diverted_note = note;
}

void status_clear(void)
{
    pending.code = STATUS_OK;
}

status status_from_errno(int error, status fallback_missing, status otherwise)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR:
        return fallback_missing;
    case EACCES:
    case EPERM:
    case EROFS:
        return STATUS_PERMISSION;
    case ENOSPC:
    case EDQUOT:
    case EIO:
        return STATUS_WRITE;
    default:
        return otherwise;
    }
}
