/* An HTTP server in front of a checkpoint, with the interface of the OpenAI API and a chat page. */
#pragma once

#include <stdint.h>

#include "base/status.h"

struct server_options {
    const char *checkpoint;
    char *const *overrides; /* settings "section.key=value" */
    int override_count;
    /* languages of an encoder-decoder; NULL: not given */
    const char *source_language, *target_language;
    const char *host;         /* address to listen on */
    int64_t port;             /* 0: the kernel chooses one */
    const char *api_key_file; /* its first line is the key that /v1 requires; NULL: none */
    int64_t max_num_seqs;     /* sequences that are generated at a time */
    int64_t max_model_len;    /* tokens of a sequence with its prompt; 0: the model's positions */
    int64_t max_queue;        /* requests that wait or run */
    int64_t max_connections;  /* open connections */
    int64_t max_body_bytes;   /* of a request */
    int64_t timeout_seconds;  /* of a request; the answer ends then */
};

/* server_run - open the checkpoint and serve it until SIGTERM, SIGINT or SIGHUP. Running answers
 * are finished first. Prints one line with the address to standard output.
 *
 * Errors    as weights_open_checkpoint; STATUS_UNAVAILABLE if the address cannot be used or
 *           the device is not the CPU; STATUS_NO_INPUT, STATUS_DATA for the key file */
status server_run(const struct server_options *options);
