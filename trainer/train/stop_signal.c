#include "trainer/train/stop_signal.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static const int watched[] = {SIGUSR1, SIGTERM, SIGINT, SIGHUP};
enum { WATCHED = sizeof watched / sizeof watched[0] };

static volatile sig_atomic_t requested, terminated;

/* oneDNN's generated kernels use the stack pointer as one more register: while one runs, it points anywhere,
 * and a handler that began below it would write its frame over the heap or over a matrix (seen: ranks that
 * crashed in a product at one SIGTERM in two, with MALLOC_PERTURB_ set). So the handler has a stack of its own.
 * A stack like this belongs to one thread; Linux hands a process's signal to its main thread, which waits
 * for it here, before all others. */
static _Alignas(64) char handler_stack[64 << 10];

static void note_signal(int number)
{
    requested = 1;
    if (number == SIGTERM) {
        terminated = 1;
    }
}

status stop_watch(void)
{
    stack_t stack = {.ss_sp = handler_stack, .ss_size = sizeof handler_stack};
    REQUIRE(sigaltstack(&stack, NULL) == 0, STATUS_INTERNAL, "no stack for signals: %s",
            strerror(errno));
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = note_signal;
    /* SA_RESTART: a write of the checkpoint is not cut short */
    action.sa_flags = SA_RESTART | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < WATCHED; i++) {
        sigaddset(&action.sa_mask, watched[i]);
    }
    for (int i = 0; i < WATCHED; i++) {
        REQUIRE(sigaction(watched[i], &action, NULL) == 0, STATUS_INTERNAL,
                "cannot watch signal %d: %s", watched[i], strerror(errno));
    }
    return STATUS_OK;
}

bool stop_requested(void)
{
    return requested != 0;
}

bool stop_by_launcher(void)
{
    return terminated != 0 && getenv("OMPI_COMM_WORLD_SIZE") != NULL;
}
