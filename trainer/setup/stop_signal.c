#include "trainer/setup/stop_signal.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"

static const int signals[] = {SIGUSR1, SIGTERM, SIGINT, SIGHUP};
enum { SIGNALS = COUNT(signals) };

static volatile sig_atomic_t requested, terminated;

/* oneDNN's generated kernels use the stack pointer as a general register. While such a kernel
 * runs, the stack pointer may point anywhere, and a handler on the normal stack would overwrite
 * the heap or a matrix. (Observed: with MALLOC_PERTURB_ set, every second SIGTERM crashed a rank
 * in a GEMM.) Therefore the handler runs on an alternate stack. Such a stack belongs to one thread.
 * Linux delivers a signal of the process to its main thread first, which installs the stack
 * here. */
static _Alignas(64) char handler_stack[64 << 10];

static const char saving[] = "stop requested: the run saves and ends\n";
static const char saving_or_ending[] =
    "stop requested: the run saves and ends\n"
    "  a second Ctrl-C or SIGTERM, more than a second later, ends it without saving\n";
static bool is_announced;        /* this process reports the first signal */
static bool has_launcher;        /* mpirun started this process */
static struct timespec last_end; /* the last SIGTERM or SIGINT; 0: none */

/* Notes a SIGTERM or SIGINT. Returns whether there was one before, more than a second ago. */
static bool note_end_request(void)
{
    struct timespec now, before = last_end;
    clock_gettime(CLOCK_MONOTONIC, &now);
    last_end = now;
    bool has_before = before.tv_sec != 0 || before.tv_nsec != 0;
    return has_before &&
           (double)(now.tv_sec - before.tv_sec) + 1e-9 * (double)(now.tv_nsec - before.tv_nsec) > 1;
}

/* Prints how the process responds to its first signal. A SIGTERM from mpirun has another cause,
 * such as a rank that has ended, and leaves no time for a save. */
static void announce_stop(int number)
{
    if (number == SIGTERM && has_launcher) {
        return;
    }
    if (number == SIGTERM || number == SIGINT) {
        (void)!write(STDERR_FILENO, saving_or_ending, sizeof saving_or_ending - 1);
    } else {
        (void)!write(STDERR_FILENO, saving, sizeof saving - 1);
    }
}

/* Calls only functions that are safe in a signal handler. */
static void handle_signal(int number)
{
    int error = errno;
    if (requested == 0 && is_announced) {
        announce_stop(number);
    }
    if ((number == SIGTERM || number == SIGINT) && note_end_request()) {
        signal(number, SIG_DFL);
        raise(number); /* it is blocked until the handler returns, and then ends the process */
    }
    requested = 1;
    if (number == SIGTERM) {
        terminated = 1;
    }
    errno = error;
}

status stop_signal_watch(bool announces)
{
    is_announced = announces;
    has_launcher = getenv("OMPI_COMM_WORLD_SIZE") != NULL;
    stack_t stack = {.ss_sp = handler_stack, .ss_size = sizeof handler_stack};
    REQUIRE(sigaltstack(&stack, NULL) == 0, STATUS_INTERNAL, "cannot set the signal stack: %s",
            strerror(errno));
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handle_signal;
    /* SA_RESTART: system calls, such as a write of a checkpoint, continue after the handler */
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < SIGNALS; i++) {
        sigaddset(&action.sa_mask, signals[i]);
    }
    for (int i = 0; i < SIGNALS; i++) {
        REQUIRE(sigaction(signals[i], &action, NULL) == 0, STATUS_INTERNAL,
                "cannot handle signal %d: %s", signals[i], strerror(errno));
    }
    return STATUS_OK;
}

bool stop_signal_received(void)
{
    return requested != 0;
}

bool stop_signal_from_launcher(void)
{
    return terminated != 0 && has_launcher;
}
