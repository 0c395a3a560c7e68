/* Counters of the server, in the text format of Prometheus. */
#pragma once

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum { SERVER_METRICS_CODES = 600 };

struct server_metrics {
    atomic_llong responses[SERVER_METRICS_CODES]; /* by HTTP status */
    atomic_llong prompt_tokens, generation_tokens;
    atomic_llong cancelled;                /* requests without a client */
    atomic_llong open;                     /* requests that wait or run */
    atomic_llong running, waiting;         /* sequences that are generated; that wait */
    atomic_llong passes;                   /* forward passes of running sequences */
    atomic_llong first_tokens;             /* requests with a first token */
    atomic_llong first_token_microseconds; /* their sum */
    atomic_llong finished;                 /* finished requests */
    atomic_llong request_microseconds;     /* their sum */
};

/* server_metrics_format - write all counters.
 *
 * Memory    the caller frees *out with free() */
status server_metrics_format(struct server_metrics *m, char **out, size_t *bytes);
