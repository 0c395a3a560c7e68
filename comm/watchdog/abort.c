/* The end of a job with an error: the first rank that fails prints the error line, then all ranks
 * end with its code. */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/deadlines.h"
#include "base/log.h"
#include "base/terminal.h"
#include "base/thread/thread.h"
#include "comm/comm_impl.h"
#include "comm/watchdog/heartbeat.h"

#define EXIT_CODE_MAX 125 /* shells and launchers use larger codes for signals */

enum { ERROR_LINE_BYTES = STATUS_TEXT_BYTES + 256 };

/* Writes the error line without stdio: another thread may hold its lock forever. */
static void write_error_line(const char *line)
{
    char painted[ERROR_LINE_BYTES + TERMINAL_PAINT_BYTES + 1];
    log_clear_progress();
    size_t length = strlen(terminal_paint(STDERR_FILENO, line, painted, sizeof painted - 1));
    painted[length++] = '\n';
    for (size_t done = 0; done < length;) {
        ssize_t written = write(STDERR_FILENO, painted + done, length - done);
        if (written <= 0) {
            return;
        }
        done += (size_t)written;
    }
}

static atomic_bool is_logged;

static void *log_line(void *line)
{
    log_write_error(line);
    atomic_store(&is_logged, true);
    return NULL;
}

/* Writes the error line to log.txt in a thread and waits at most one second: a file system that
 * does not answer must not delay the end of the job. */
static void log_error_line(char *line)
{
    pthread_t logger;
    if (thread_start(&logger, log_line, line) != 0) {
        return;
    }
    pthread_detach(logger);
    for (int i = 0; i < 100 && !atomic_load(&is_logged); i++) {
        clock_sleep(0.01);
    }
}

static void flush_results(void)
{
    if (ftrylockfile(stdout) == 0) {
        fflush(stdout);
        funlockfile(stdout);
    }
}

static void (*_Atomic end_hook)(void);

void comm_set_end_hook(void (*hook)(void))
{
    atomic_store(&end_hook, hook);
}

_Noreturn void comm_end_job(const struct comm_operations *operations, status code,
                            const struct status_note *note)
{
    char line[ERROR_LINE_BYTES];
    int exit_code = (int)code > 0 && (int)code <= EXIT_CODE_MAX ? (int)code : (int)STATUS_INTERNAL;
    signal(SIGALRM, SIG_DFL);
    alarm(DEADLINE_END_SECONDS);
    bool claimed = heartbeat_claim_end();
    if (note->code != STATUS_OK) {
        status_format(note, line, (int)sizeof line);
        if (claimed) {
            write_error_line(line);
        }
        log_error_line(line);
    }
    if (claimed) {
        clock_sleep(DEADLINE_FLUSH_SECONDS);
    } else {
        clock_sleep(DEADLINE_PEER_END_SECONDS);
    }
    flush_results();
    void (*hook)(void) = atomic_load(&end_hook);
    if (hook != NULL) {
        hook();
    }
    if (operations != NULL) {
        operations->end_job(exit_code);
    }
    _exit(exit_code);
}

_Noreturn void comm_abort(struct comm *comm, status code)
{
    struct status_note note;
    status_take(&note);
    comm_end_job(comm == NULL ? NULL : comm_get_host(comm)->operations, code, &note);
}

status comm_abort_on_error(struct comm *comm, status result)
{
    if (result != STATUS_OK && comm->size > 1) {
        comm_abort(comm, result);
    }
    return result;
}
