/* The HTTP side of the server, through libmicrohttpd. This is the only file that includes it. One
 * thread serves all connections. It never waits: a connection without output is suspended until
 * the model's thread resumes it. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/memory.h"
#include "base/text_buffer.h"
#include "build_info.h"
#include "chat_page.h"
#include "trainer/inference/server/server_impl.h"
#include "trainer/logging/json_text.h"

struct http {
    struct MHD_Daemon *daemon;
    struct server *server;
    bool is_loopback;
    MHD_socket closed_socket; /* after http_close_port */
};

enum { REPLY_JSON, REPLY_HTML, REPLY_TEXT };

/* One request on a connection. */
struct exchange {
    struct server *server;
    int kind; /* enum request_kind; -1: no job */
    struct text_buffer body;
    bool is_too_large;
    struct server_job *job; /* NULL: not submitted */
};

/* ---- responses ---- */

static enum MHD_Result queue_response(struct server *s, struct MHD_Connection *c, int code,
                                      const char *type, struct MHD_Response *response)
{
    if (response == NULL) {
        return MHD_NO;
    }
    MHD_add_response_header(response, "Content-Type", type);
    MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(response, "Cache-Control", "no-store");
    if (code == 401) {
        MHD_add_response_header(response, "WWW-Authenticate", "Bearer");
    }
    if (code == 503) {
        MHD_add_response_header(response, "Retry-After", "1");
    }
    enum MHD_Result result = MHD_queue_response(c, (unsigned)code, response);
    MHD_destroy_response(response);
    atomic_fetch_add(&s->metrics.responses[code < SERVER_METRICS_CODES ? code : 0], 1);
    return result;
}

static enum MHD_Result send_bytes(struct server *s, struct MHD_Connection *c, int code,
                                  const char *type, const char *body, size_t bytes)
{
    return queue_response(
        s, c, code, type,
        MHD_create_response_from_buffer(bytes, (void *)body, MHD_RESPMEM_MUST_COPY));
}

static enum MHD_Result reply_error(struct server *s, struct MHD_Connection *c, int http_status,
                                   const char *code, const char *parameter, const char *text)
{
    char *body = server_job_error_json(http_status, code, parameter, text);
    enum MHD_Result result =
        body != NULL ? send_bytes(s, c, http_status, "application/json", body, strlen(body))
                     : MHD_NO;
    free(body);
    return result;
}

static enum MHD_Result reply_json(struct server *s, struct MHD_Connection *c, json_t *value)
{
    char *text = value != NULL ? json_dumps(value, JSON_COMPACT) : NULL;
    json_decref(value);
    enum MHD_Result result =
        text != NULL ? send_bytes(s, c, 200, "application/json", text, strlen(text)) : MHD_NO;
    free(text);
    return result;
}

/* ---- pages without a job ---- */

static json_t *describe_model(const struct server *s)
{
    static const char *const names[REQUEST_KINDS] = {"completions", "chat",     "embeddings",
                                                     "fill-mask",   "classify", "answer"};
    json_t *tasks = json_array();
    for (int kind = 0; kind < REQUEST_KINDS; kind++) {
        if (server_can(s, (enum request_kind)kind)) {
            json_array_append_new(tasks, json_string(names[kind]));
        }
    }
    const char *name = s->options->checkpoint;
    return json_pack("{s:o, s:s, s:I, s:s, s:I, s:o}", "id", json_text_create(name, strlen(name)),
                     "object", "model", "created", (json_int_t)s->started, "owned_by", "bireme",
                     "max_model_len", (json_int_t)s->max_tokens, "tasks", tasks);
}

static enum MHD_Result reply_models(struct server *s, struct MHD_Connection *c)
{
    return reply_json(s, c, json_pack("{s:s, s:[o]}", "object", "list", "data", describe_model(s)));
}

static enum MHD_Result reply_metrics(struct server *s, struct MHD_Connection *c)
{
    char *text = NULL;
    size_t bytes = 0;
    if (server_metrics_format(&s->metrics, &text, &bytes) != STATUS_OK) {
        status_clear();
        return MHD_NO;
    }
    enum MHD_Result result = send_bytes(s, c, 200, "text/plain; version=0.0.4", text, bytes);
    free(text);
    return result;
}

static enum MHD_Result reply_health(struct server *s, struct MHD_Connection *c)
{
    pthread_mutex_lock(&s->lock);
    bool is_stopping = s->is_stopping;
    pthread_mutex_unlock(&s->lock);
    return is_stopping ? reply_error(s, c, 503, NULL, NULL, "the server stops")
                       : reply_json(s, c, json_pack("{s:s}", "status", "ok"));
}

static enum MHD_Result reply_page(struct server *s, struct MHD_Connection *c)
{
    struct MHD_Response *response = MHD_create_response_from_buffer(
        sizeof chat_page, (void *)chat_page, MHD_RESPMEM_PERSISTENT);
    if (response != NULL) {
        MHD_add_response_header(response, "Content-Security-Policy",
                                "default-src 'none'; style-src 'unsafe-inline'; script-src "
                                "'unsafe-inline'; connect-src 'self'; img-src data:; base-uri "
                                "'none'; form-action 'none'; frame-ancestors 'none'");
    }
    return queue_response(s, c, 200, "text/html; charset=utf-8", response);
}

/* ---- routes ---- */

struct route {
    const char *path, *method;
    int kind;
    enum MHD_Result (*reply)(struct server *s, struct MHD_Connection *c);
    bool is_public; /* needs no key */
};

static const struct route routes[] = {
    {"/v1/completions", "POST", REQUEST_COMPLETION, NULL, false},
    {"/v1/chat/completions", "POST", REQUEST_CHAT, NULL, false},
    {"/v1/embeddings", "POST", REQUEST_EMBEDDING, NULL, false},
    {"/v1/fill-mask", "POST", REQUEST_FILL_MASK, NULL, false},
    {"/v1/classify", "POST", REQUEST_CLASSIFY, NULL, false},
    {"/v1/answer", "POST", REQUEST_ANSWER, NULL, false},
    {"/v1/models", "GET", -1, reply_models, false},
    {"/health", "GET", -1, reply_health, true},
    {"/metrics", "GET", -1, reply_metrics, true},
    {"/", "GET", -1, reply_page, true},
};

static const struct route *find_route(const char *path)
{
    for (int i = 0; i < COUNT(routes); i++) {
        if (strcmp(routes[i].path, path) == 0) {
            return &routes[i];
        }
    }
    return NULL;
}

/* Compares in a time that does not depend on the place of the first difference. */
static bool is_equal_secret(const char *a, const char *b)
{
    size_t length = strlen(b);
    unsigned difference = strlen(a) != length;
    for (size_t i = 0; i < length && difference <= 1 && a[i] != '\0'; i++) {
        difference |= (unsigned)(a[i] != b[i]);
    }
    return difference == 0;
}

static bool has_key(const struct server *s, struct MHD_Connection *c)
{
    static const char prefix[] = "Bearer ";
    const char *given = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");
    return s->api_key[0] == '\0' ||
           (given != NULL && strncmp(given, prefix, sizeof prefix - 1) == 0 &&
            is_equal_secret(given + sizeof prefix - 1, s->api_key));
}

/* Returns whether a Host header names this machine's loopback address. A page of another site can
 * reach a loopback server through a name that resolves to 127.0.0.1, but only under that name. */
static bool is_loopback_name(const char *host)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};
    for (int i = 0; i < COUNT(names); i++) {
        size_t length = strlen(names[i]);
        if (strncasecmp(host, names[i], length) == 0 &&
            (host[length] == '\0' || host[length] == ':')) {
            return true;
        }
    }
    return false;
}

/* Returns whether the request comes from a program or from the page of this server, and not from a
 * page of another site. */
static bool has_allowed_origin(const struct http *h, struct MHD_Connection *c)
{
    const char *host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Host");
    const char *origin = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Origin");
    if (h->is_loopback && host != NULL && !is_loopback_name(host)) {
        return false;
    }
    const char *name = origin != NULL ? strstr(origin, "://") : NULL;
    return origin == NULL || (name != NULL && host != NULL && strcasecmp(name + 3, host) == 0);
}

/* Checks the first line and the headers. Returns the error's HTTP status; 0: none. */
static int check_request(struct server *s, struct MHD_Connection *c, const struct route *route,
                         const char *method, const char **text)
{
    const char *length = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Content-Length");
    bool is_read = strcmp(method, "GET") == 0 || strcmp(method, "HEAD") == 0;
    if (route == NULL) {
        *text = "there is no such path; docs/guide/serving.md lists the paths";
        return 404;
    }
    if (!(strcmp(route->method, "GET") == 0 ? is_read : strcmp(method, route->method) == 0)) {
        *text = strcmp(route->method, "GET") == 0 ? "this path accepts GET only"
                                                  : "this path accepts POST only";
        return 405;
    }
    if (!has_allowed_origin(s->http, c)) {
        *text = "the Host or Origin header is that of another site";
        return 403;
    }
    if (!route->is_public && !has_key(s, c)) {
        *text = "the key is missing or wrong; send the header Authorization: Bearer KEY";
        return 401;
    }
    if (length != NULL && strtoll(length, NULL, 10) > s->options->max_body_bytes) {
        *text = "the body is larger than --max-body-bytes";
        return 413;
    }
    return 0;
}

/* ---- jobs ---- */

static void resume_connection(void *connection)
{
    MHD_resume_connection(connection);
}

/* Copies output to the connection. Without output, suspends the connection until there is some. */
static ssize_t read_output(void *user, uint64_t position, char *buffer, size_t max)
{
    struct server_job *job = user;
    (void)position;
    pthread_mutex_lock(&job->lock);
    size_t left = job->output.count - job->sent_bytes, count = left < max ? left : max;
    ssize_t result = (ssize_t)count;
    if (count > 0) {
        memcpy(buffer, job->output.bytes + job->sent_bytes, count);
        job->sent_bytes += count;
    } else if (job->is_done) {
        result = MHD_CONTENT_READER_END_OF_STREAM;
    } else if (job->connection != NULL) {
        job->is_suspended = true;
        MHD_suspend_connection(job->connection);
    }
    pthread_mutex_unlock(&job->lock);
    return result;
}

static void release_job(void *user)
{
    server_job_release(user);
}

/* Sends the output of a job that is done, or the beginning of a stream. */
static enum MHD_Result send_job(struct server *s, struct MHD_Connection *c, struct server_job *job)
{
    pthread_mutex_lock(&job->lock);
    int code = job->http_status;
    bool is_done = job->is_done, is_stream = job->request.stream;
    if (!is_done && !(is_stream && code != 0)) {
        job->is_suspended = true;
        MHD_suspend_connection(c);
        pthread_mutex_unlock(&job->lock);
        return MHD_YES;
    }
    pthread_mutex_unlock(&job->lock);
    if (code == 0) {
        return MHD_NO; /* cancelled */
    }
    if (!is_stream) {
        return send_bytes(s, c, code, "application/json", job->output.bytes, job->output.count);
    }
    enum { BLOCK_BYTES = 4096 };
    server_job_retain(job);
    struct MHD_Response *response = MHD_create_response_from_callback(
        MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_output, job, release_job);
    if (response == NULL) {
        server_job_release(job);
    }
    return queue_response(s, c, code, "text/event-stream", response);
}

static enum MHD_Result reply_pending(struct server *s, struct MHD_Connection *c, status result,
                                     const char *code, const char *parameter)
{
    struct status_note note = {0};
    status_take(&note);
    return reply_error(s, c, server_job_http_status(result), code, parameter, note.text);
}

/* Parses and encodes a complete body, submits the job and suspends the connection. */
static enum MHD_Result submit_body(struct exchange *x, struct MHD_Connection *c)
{
    struct server *s = x->server;
    struct request request;
    const char *parameter = NULL, *code = NULL;
    struct server_job *job = NULL;
    const char *body = x->body.bytes != NULL ? x->body.bytes : "";
    status result =
        request_parse((enum request_kind)x->kind, body, x->body.count, &request, &parameter);
    if (result != STATUS_OK) {
        request_free(&request);
        return reply_pending(s, c, result, NULL, parameter);
    }
    result = server_job_create(&request, &job);
    if (result == STATUS_OK) {
        result = x->kind == REQUEST_COMPLETION || x->kind == REQUEST_CHAT
                     ? completion_prepare(s, job, &code)
                     : server_prepare_prediction(s, job, &code);
    }
    if (result != STATUS_OK) {
        if (job != NULL) {
            server_job_release(job);
        }
        return reply_pending(s, c, result, code, NULL);
    }
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    job->connection = c;
    job->socket = info != NULL ? info->connect_fd : -1;
    job->resume = resume_connection;
    server_job_retain(job); /* for the queue */
    if (!server_submit(s, job)) {
        server_job_release(job);
        server_job_release(job);
        return reply_error(s, c, 503, "server_busy", NULL,
                           "too many requests wait, or the server stops; try again later");
    }
    x->job = job;
    return send_job(s, c, job);
}

/* ---- callbacks of the library ---- */

static status append_body(struct exchange *x, const char *bytes, size_t count)
{
    if (x->is_too_large || x->body.count + count > (size_t)x->server->options->max_body_bytes) {
        x->is_too_large = true;
        return STATUS_OK;
    }
    return text_buffer_append(&x->body, bytes, count);
}

/* Receives the first line and the headers of a request. */
static enum MHD_Result begin_exchange(struct server *s, struct MHD_Connection *c, const char *path,
                                      const char *method, void **state)
{
    const char *text = NULL;
    const struct route *route = find_route(path);
    struct exchange *x = calloc(1, sizeof *x);
    if (x == NULL) {
        return MHD_NO;
    }
    *state = x;
    *x = (struct exchange){.server = s, .kind = route != NULL ? route->kind : -1};
    pthread_mutex_lock(&s->lock);
    s->open_exchanges++;
    pthread_mutex_unlock(&s->lock);
    int code = check_request(s, c, route, method, &text);
    if (code != 0) {
        return reply_error(s, c, code, NULL, NULL, text);
    }
    return MHD_YES;
}

static enum MHD_Result handle_request(void *user, struct MHD_Connection *c, const char *path,
                                      const char *method, const char *version, const char *data,
                                      size_t *data_bytes, void **state)
{
    struct server *s = user;
    struct exchange *x = *state;
    (void)version;
    if (x == NULL) {
        return begin_exchange(s, c, path, method, state);
    }
    if (x->job != NULL) {
        return send_job(s, c, x->job);
    }
    if (*data_bytes > 0) {
        status result = x->kind >= 0 ? append_body(x, data, *data_bytes) : STATUS_OK;
        *data_bytes = 0;
        status_clear();
        return result == STATUS_OK ? MHD_YES : MHD_NO;
    }
    if (x->is_too_large) {
        return reply_error(s, c, 413, NULL, NULL, "the body is larger than --max-body-bytes");
    }
    return x->kind >= 0 ? submit_body(x, c) : find_route(path)->reply(s, c);
}

/* Ends an exchange when its response is complete or its connection is lost. */
static void end_exchange(void *user, struct MHD_Connection *c, void **state,
                         enum MHD_RequestTerminationCode code)
{
    struct server *s = user;
    struct exchange *x = *state;
    (void)c;
    (void)code;
    if (x == NULL) {
        return;
    }
    if (x->job != NULL) {
        pthread_mutex_lock(&x->job->lock);
        x->job->connection = NULL;
        x->job->is_cancelled = x->job->is_cancelled || !x->job->is_done;
        pthread_mutex_unlock(&x->job->lock);
        server_job_release(x->job);
    }
    text_buffer_free(&x->body);
    free(x);
    *state = NULL;
    pthread_mutex_lock(&s->lock);
    s->open_exchanges--;
    pthread_cond_signal(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* ---- the address ---- */

static bool is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET6) {
        return IN6_IS_ADDR_LOOPBACK(
            &((const struct sockaddr_in6 *)(const void *)address)->sin6_addr);
    }
    return (ntohl(((const struct sockaddr_in *)(const void *)address)->sin_addr.s_addr) >> 24) ==
           127;
}

static status find_address(const struct server_options *o, struct addrinfo **out)
{
    char port[16];
    const struct addrinfo hints = {.ai_family = AF_UNSPEC,
                                   .ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    snprintf(port, sizeof port, "%d", (int)o->port);
    int error = getaddrinfo(o->host, port, &hints, out);
    REQUIRE(error == 0, STATUS_UNAVAILABLE, "cannot listen on %s: %s; give an address with --host",
            o->host, gai_strerror(error));
    return STATUS_OK;
}

/* Raises the limit of open files, so that --max-connections can be reached. */
static void raise_file_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static void drop_message(void *user, const char *format, va_list arguments)
{
    (void)user;
    (void)format;
    (void)arguments;
}

/* Starts the thread with all signals blocked, so that the main thread receives them. */
static struct MHD_Daemon *start_daemon(struct server *s, const struct addrinfo *address)
{
    enum { MEMORY_BYTES = 64 << 10, IDLE_SECONDS = 60, BACKLOG = 1024 };
    sigset_t all, before;
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
                     (address->ai_family == AF_INET6 ? MHD_USE_IPv6 : 0);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    struct MHD_Daemon *daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, handle_request, s, MHD_OPTION_EXTERNAL_LOGGER, drop_message, NULL,
        MHD_OPTION_SOCK_ADDR, address->ai_addr, MHD_OPTION_NOTIFY_COMPLETED, end_exchange, s,
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)s->options->max_connections,
        MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_SECONDS, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)MEMORY_BYTES, MHD_OPTION_LISTEN_BACKLOG_SIZE, (unsigned)BACKLOG,
        MHD_OPTION_LISTENING_ADDRESS_REUSE, 1u, MHD_OPTION_END);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return daemon;
}

status http_start(struct server *s, struct http **out, int *port)
{
    struct addrinfo *address = NULL;
    *out = NULL;
    TRY(find_address(s->options, &address));
    struct http *h = NULL;
    status result = ALLOCATE(h, 1, "the HTTP server");
    if (result != STATUS_OK) {
        freeaddrinfo(address);
        return result;
    }
    raise_file_limit();
    h->server = s;
    h->closed_socket = MHD_INVALID_SOCKET;
    h->is_loopback = is_loopback(address->ai_addr);
    *out = h; /* the first request may arrive before this function returns */
    errno = 0;
    h->daemon = start_daemon(s, address);
    int error = errno;
    freeaddrinfo(address);
    if (h->daemon == NULL) {
        free(h);
        *out = NULL;
        RAISE(STATUS_UNAVAILABLE, "cannot listen on %s, port %d: %s; choose another --port",
              s->options->host, (int)s->options->port,
              error != 0 ? strerror(error) : "the address is in use");
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_BIND_PORT);
    *port = info != NULL && info->port != 0 ? info->port : (int)s->options->port;
    return STATUS_OK;
}

void http_close_port(struct http *h)
{
    if (h->closed_socket == MHD_INVALID_SOCKET) {
        h->closed_socket = MHD_quiesce_daemon(h->daemon);
    }
}

void http_stop(struct http **h)
{
    if (*h != NULL) {
        MHD_stop_daemon((*h)->daemon);
        if ((*h)->closed_socket != MHD_INVALID_SOCKET) {
            close((*h)->closed_socket);
        }
        free(*h);
        *h = NULL;
    }
}
