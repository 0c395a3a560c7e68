/* A request that the model answers. The thread of the HTTP library (http.c) creates it and sends
 * its output; the model's thread (server.c) writes the output. A job never waits for its client:
 * the output of a slow client stays in the job, and max_tokens limits its size. */
#pragma once

#include <pthread.h>
#include <stdarg.h>

#include "base/text_buffer.h"
#include "trainer/inference/server/request_impl.h"

enum { SERVER_JOB_ID_BYTES = 40 };

struct completion; /* completion.c */

struct server_job {
    struct server_job *next; /* in the queue of the server */
    struct request request;
    char id[SERVER_JOB_ID_BYTES];
    int64_t created;        /* Unix time */
    double arrival_seconds; /* monotonic clock */
    double first_token_seconds;
    struct token_list *prompts;     /* [prompt_count] token ids of each prompt */
    struct completion *completions; /* [completion_count]; owned by completion.c */
    int64_t prompt_count, completion_count, completions_started, completions_ended;
    json_t *predictions; /* answers of server_run_prediction so far; NULL: none */
    int64_t prompt_tokens, completion_tokens;

    /* shared between the threads; protected by `lock` */
    pthread_mutex_t lock;
    int references;
    int http_status;   /* 0: no output yet */
    bool is_done;      /* the output is complete */
    bool is_cancelled; /* the client has gone, so that the job can end */
    struct text_buffer output;
    size_t sent_bytes;                /* of the output */
    void *connection;                 /* NULL: the exchange has ended */
    int socket;                       /* of the connection */
    bool is_suspended;                /* the connection waits for output */
    void (*resume)(void *connection); /* ends the wait; called with the lock held */
};

/* server_job_create - create a job with one reference.
 *
 * Memory    takes over *request, also on failure */
status server_job_create(struct request *request, struct server_job **out);

/* server_job_retain - add a reference. */
void server_job_retain(struct server_job *job);

/* server_job_release - remove a reference; the last one frees the job. */
void server_job_release(struct server_job *job);

/* completion_destroy - free the completions of a job (completion.c). */
void completion_destroy(struct server_job *job);

/* server_job_write - append bytes to the output and wake the connection. The HTTP status is 200. */
void server_job_write(struct server_job *job, const char *bytes, size_t count);

/* server_job_end - declare the output as complete. */
void server_job_end(struct server_job *job);

/* server_job_http_status - return the HTTP status of an error: 400 if the request causes it, else
 * 500. */
int server_job_http_status(status result);

/* server_job_fail - end the job with an error. If output was already sent, the output ends without
 * an error.
 *
 * code: the word for programs, such as "context_length_exceeded"; NULL: none */
void server_job_fail(struct server_job *job, int http_status, const char *code, const char *text);

/* server_job_fail_pending - end the job with the pending note of this thread, and clear it. */
void server_job_fail_pending(struct server_job *job, status result);

/* server_job_is_cancelled - return whether nobody waits for the output. */
bool server_job_is_cancelled(struct server_job *job);

/* server_job_error_json - return the body of an error.
 *
 * Memory    the caller frees it with free(); NULL if memory is exhausted */
char *server_job_error_json(int http_status, const char *code, const char *parameter,
                            const char *text);

/* server_job_write_json - append a JSON value as the output, or as one event of a stream, and free
 * it. */
void server_job_write_json(struct server_job *job, json_t *value);
