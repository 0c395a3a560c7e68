#define _GNU_SOURCE /* POLLRDHUP */
#include "base/memory.h"
#include "trainer/inference/server/server_job_impl.h"

#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "trainer/logging/json_text.h"

status server_job_create(struct request *request, struct server_job **out)
{
    static atomic_ulong count;
    static const char *const prefixes[REQUEST_KINDS] = {"cmpl", "chatcmpl", "embd",
                                                        "mask", "cls",      "ans"};
    status result = ALLOCATE(*out, 1, "a request");
    if (result != STATUS_OK) {
        request_free(request);
        return result;
    }
    struct server_job *job = *out;
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

void server_job_retain(struct server_job *job)
{
    pthread_mutex_lock(&job->lock);
    job->references++;
    pthread_mutex_unlock(&job->lock);
}

void server_job_release(struct server_job *job)
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
    text_buffer_free(&job->output);
    free(job);
}

/* Wakes the connection. The lock is held. */
static void wake_connection(struct server_job *job)
{
    if (job->is_suspended && job->connection != NULL) {
        job->is_suspended = false;
        job->resume(job->connection);
    }
}

/* Appends to the output. Without memory the output ends, as if the connection were lost. */
static void append_output(struct server_job *job, const char *bytes, size_t count)
{
    if (text_buffer_append(&job->output, bytes, count) != STATUS_OK) {
        status_clear();
        job->is_done = job->is_cancelled = true;
    }
}

void server_job_write(struct server_job *job, const char *bytes, size_t count)
{
    pthread_mutex_lock(&job->lock);
    job->http_status = job->http_status == 0 ? 200 : job->http_status;
    append_output(job, bytes, count);
    if (job->request.stream) { /* other outputs are sent whole */
        wake_connection(job);
    }
    pthread_mutex_unlock(&job->lock);
}

void server_job_end(struct server_job *job)
{
    pthread_mutex_lock(&job->lock);
    job->is_done = true;
    wake_connection(job);
    pthread_mutex_unlock(&job->lock);
}

char *server_job_error_json(int http_status, const char *code, const char *parameter,
                            const char *text)
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

void server_job_fail(struct server_job *job, int http_status, const char *code, const char *text)
{
    char *body = server_job_error_json(http_status, code, NULL, text);
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

int server_job_http_status(status result)
{
    bool is_input = result == STATUS_DATA || result == STATUS_USAGE || result == STATUS_UNAVAILABLE;
    return is_input ? 400 : 500;
}

void server_job_fail_pending(struct server_job *job, status result)
{
    struct status_note note = {0};
    status_take(&note);
    server_job_fail(job, server_job_http_status(result), NULL, note.text);
}

bool server_job_is_cancelled(struct server_job *job)
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

void server_job_write_json(struct server_job *job, json_t *value)
{
    char *text = value != NULL ? json_dumps(value, JSON_COMPACT) : NULL;
    json_decref(value);
    if (text == NULL) {
        server_job_fail(job, 500, NULL, "out of memory for the answer");
        return;
    }
    if (job->request.stream) {
        server_job_write(job, "data: ", 6);
    }
    server_job_write(job, text, strlen(text));
    if (job->request.stream) {
        server_job_write(job, "\n\n", 2);
    }
    free(text);
}
