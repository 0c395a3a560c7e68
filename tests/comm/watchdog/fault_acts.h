/* The faults of test_fault.c: what each rank does, and how the job must end. */
#pragma once

#include "comm/comm.h"

#define LIMIT_SECONDS 2.0 /* limit of waits and phases in this test */

struct fault {
    const char *mode;
    void (*act)(struct comm *world);
    int code;            /* exit code of mpirun */
    const char *line;    /* start of the only error or warning line; NULL: there is none */
    const char *word;    /* end of that line */
    const char *text;    /* part of that line */
    const char *setting; /* NAME=VALUE in the environment of the ranks, or NULL */
};

/* fault_acts_find - return the fault with this mode; without one, end the process with code 64. */
const struct fault *fault_acts_find(const char *mode);
