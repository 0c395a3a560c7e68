/* Stop requests during an evaluation that generates or scores many texts. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct stop_poll {
    /* Polls for a stop, between two batches. Collective over all ranks, which get the same *stop */
    status (*run)(void *user, bool *stop);
    void *user;
    /* Called before each token. Returns whether this rank has a stop request. It ends the
     * generation of a batch early; the next call of `run` must then set *stop. NULL: none */
    bool (*is_requested)(void);
    void (*progress)(void); /* called after each forward pass that scores texts; NULL: none */
};

/* stop_poll_run - poll for a stop; NULL: never stop. */
static inline status stop_poll_run(const struct stop_poll *p, bool *stop)
{
    *stop = false;
    return p != NULL ? p->run(p->user, stop) : STATUS_OK;
}

/* stop_poll_progress - report that texts have been scored. */
static inline void stop_poll_progress(const struct stop_poll *p)
{
    if (p != NULL && p->progress != NULL) {
        p->progress();
    }
}
