#define _GNU_SOURCE /* POLLRDHUP */
#include "trainer/inference/server/job_impl.h"

#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "trainer/logging/json_text.h"

status job_create(struct request *request, struct job **out)
{
    static atomic_ulong count;
    static const char *const prefixes[REQUEST_KINDS] = {"cmpl", "chatcmpl", "embd",
                                                        "mask", "cls",      "ans"};
    struct job *job = calloc(1, sizeof *job);
    *out = job;
    if (job == NULL) {
        request_free(request);
        RAISE(STATUS_INTERNAL, "out of memory for a request");
    }
    job->request = *request;
    *request = (struct request){0};
    job->references = 1;
    job->socket = -1;
    job->created = (int64_t)time(NULL);
    job->arrival_seconds = clock_seconds();
    snprintf(job->id, sizeof job->id, "%s-%" PRIx64 "%04lx", prefixes[job->request.kind],
             (uint64_t)job->created, atomic_fetch_add(&count, 1) & 0xffff);
    pthread_mutex_init(&job->lock, NULL);
    return STATUS_OK;
}

void job_retain(struct job *job)
{
    pthread_mutex_lock(&job->lock);
    job->references++;
    pthread_mutex_unlock(&job->lock);
}

void job_release(struct job *job)
{
    pthread_mutex_lock(&job->lock);
    bool is_last = --job->references == 0;
    pthread_mutex_unlock(&job->lock);
    if (!is_last) {
        return;
    }
    for (int64_t i = 0; i < job->prompt_count; i++) {
        token_list_free(&job->prompts[i]);
    }
    free(job->prompts);
    completion_destroy(job);
    json_decref(job->predictions);
    request_free(&job->request);
    pthread_mutex_destroy(&job->lock);
    free(job->output);
    free(job);
}

/* Wakes the connection. The lock is held. */
static void wake_connection(struct job *job)
{
    if (job->is_suspended && job->connection != NULL) {
        job->is_suspended = false;
        job->resume(job->connection);
    }
}

/* Appends to the output. Without memory the output ends, as if the connection were lost. */
static void append_output(struct job *job, const char *bytes, size_t count)
{
    if (job->output_bytes + count > job->capacity) {
        size_t capacity = 2 * (job->output_bytes + count) + 1024;
        char *grown = realloc(job->output, capacity);
        if (grown == NULL) {
            job->is_done = job->is_cancelled = true;
            return;
        }
        job->output = grown;
        job->capacity = capacity;
    }
    memcpy(job->output + job->output_bytes, bytes, count);
    job->output_bytes += count;
}

void job_write(struct job *job, const char *bytes, size_t count)
{
    pthread_mutex_lock(&job->lock);
    job->http_status = job->http_status == 0 ? 200 : job->http_status;
    append_output(job, bytes, count);
    if (job->request.stream) { /* other outputs are sent whole */
        wake_connection(job);
    }
    pthread_mutex_unlock(&job->lock);
}

void job_end(struct job *job)
{
    pthread_mutex_lock(&job->lock);
    job->is_done = true;
    wake_connection(job);
    pthread_mutex_unlock(&job->lock);
}

char *job_error_json(int http_status, const char *code, const char *parameter, const char *text)
{
    const char *type = http_status == 401   ? "authentication_error"
                       : http_status >= 500 ? "server_error"
                                            : "invalid_request_error";
    json_t *body = json_pack("{s:{s:o, s:s, s:s?, s:s?}}", "error", "message",
                             json_text_create(text, strlen(text)), "type", type, "param", parameter,
                             "code", code);
    char *dumped = body != NULL ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    return dumped;
}

void job_fail(struct job *job, int http_status, const char *code, const char *text)
{
    char *body = job_error_json(http_status, code, NULL, text);
    pthread_mutex_lock(&job->lock);
    if (job->http_status == 0) {
        job->http_status = http_status;
        job->request.stream = false; /* an error is one JSON object */
        if (body != NULL) {
            append_output(job, body, strlen(body));
        }
    } else if (job->request.stream && !job->is_done && body != NULL) {
        append_output(job, "data: ", 6);
        append_output(job, body, strlen(body));
        append_output(job, "\n\n", 2);
    }
    job->is_done = true;
    wake_connection(job);
    pthread_mutex_unlock(&job->lock);
    free(body);
}

void job_fail_pending(struct job *job, status result)
{
    struct status_note note = {0};
    status_take(&note);
    bool is_input = result == STATUS_DATA || result == STATUS_USAGE;
    job_fail(job, is_input ? 400 : 500, NULL, note.text);
}

bool job_is_cancelled(struct job *job)
{
    pthread_mutex_lock(&job->lock);
    if (!job->is_cancelled && job->connection != NULL && job->is_suspended) {
        struct pollfd poll_socket = {.fd = job->socket, .events = POLLRDHUP};
        job->is_cancelled = poll(&poll_socket, 1, 0) > 0 &&
                            (poll_socket.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
    }
    bool is_cancelled = job->is_cancelled;
    pthread_mutex_unlock(&job->lock);
    return is_cancelled;
}

void job_write_json(struct job *job, json_t *value)
{
    char *text = value != NULL ? json_dumps(value, JSON_COMPACT) : NULL;
    json_decref(value);
    if (text == NULL) {
        job_fail(job, 500, NULL, "out of memory for the answer");
        return;
    }
    if (job->request.stream) {
        job_write(job, "data: ", 6);
    }
    job_write(job, text, strlen(text));
    if (job->request.stream) {
        job_write(job, "\n\n", 2);
    }
    free(text);
}
