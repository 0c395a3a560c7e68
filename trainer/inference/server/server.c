/* The model's thread: takes jobs from the queue, runs the passes and writes the output. */
#include "trainer/inference/server/server.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "trainer/formats/weights/open.h"
#include "trainer/inference/generation_config.h"
#include "trainer/inference/server/server_impl.h"
#include "trainer/logging/json_text.h"
#include "trainer/setup/derive.h"
#include "trainer/setup/stop_signal.h"

enum { CHUNK_TOKENS = 256, IDLE_MILLISECONDS = 100, CLOSE_SECONDS = 10 };

/* ---- the queue ---- */

json_t *server_model_json(const struct server *s, const struct server_job *job)
{
    const char *name = job->request.model[0] != '\0' ? job->request.model : s->options->checkpoint;
    return json_text_create(name, strlen(name));
}

bool server_submit(struct server *s, struct server_job *job)
{
    pthread_mutex_lock(&s->lock);
    bool is_accepted = !s->is_stopping && s->open_jobs < s->options->max_queue;
    if (is_accepted) {
        s->open_jobs++;
        atomic_store(&s->metrics.open, s->open_jobs);
        job->next = NULL;
        if (s->first == NULL) {
            s->first = job;
        } else {
            s->last->next = job;
        }
        s->last = job;
        pthread_cond_signal(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
    return is_accepted;
}

/* Moves all jobs of the queue to the end of a list. */
static void take_jobs(struct server *s, struct server_job **list)
{
    while (*list != NULL) {
        list = &(*list)->next;
    }
    pthread_mutex_lock(&s->lock);
    *list = s->first;
    s->first = s->last = NULL;
    pthread_mutex_unlock(&s->lock);
}

static void finish_job(struct server *s, struct server_job *job)
{
    atomic_fetch_add(&s->metrics.finished, 1);
    atomic_fetch_add(&s->metrics.request_microseconds,
                     (long long)(1e6 * (clock_seconds() - job->arrival_seconds)));
    atomic_fetch_add(&s->metrics.prompt_tokens, (long long)job->prompt_tokens);
    pthread_mutex_lock(&s->lock);
    s->open_jobs--;
    atomic_store(&s->metrics.open, s->open_jobs);
    pthread_mutex_unlock(&s->lock);
    server_job_release(job);
}

/* ---- jobs ---- */

static bool is_done(struct server_job *job)
{
    pthread_mutex_lock(&job->lock);
    bool done = job->is_done;
    pthread_mutex_unlock(&job->lock);
    return done;
}

/* Starts the sequences of a job for which slots are free, or the beam searches for which there is
 * room. The jobs of each of the two kinds start in the order of their arrival. If a job has to
 * wait, is_full[has_beams] is set, and later jobs of its kind wait too. */
static status start_completions(struct server *s, struct server_job *job, bool is_full[2])
{
    bool *must_wait = &is_full[job->request.options.num_beams > 1];
    while (!*must_wait && job->completions_started < job->completion_count) {
        TRY(completion_start(s, job, must_wait));
    }
    return STATUS_OK;
}

/* Advances the state of a job without a pass of the engine. Returns whether it has ended. */
static bool update_job(struct server *s, struct server_job *job, bool is_full[2])
{
    bool is_late = clock_seconds() - job->arrival_seconds > (double)s->options->timeout_seconds;
    status result = STATUS_OK;
    if (server_job_is_cancelled(job)) {
        completion_cancel(s, job);
        atomic_fetch_add(&s->metrics.cancelled, 1);
        server_job_end(job);
        return true;
    }
    bool is_waiting = job->completion_count > 0 ? job->completions_started < job->completion_count
                                                : job->predictions == NULL;
    if (is_late && is_waiting) {
        completion_cancel(s, job);
        server_job_fail(job, 503, "timeout", "the server is busy; the request has waited too long");
        return true;
    }
    if (job->completion_count == 0) {
        result = server_run_prediction(s, job);
    } else {
        result = completion_update(s, job, is_late);
        if (result == STATUS_OK) {
            result = start_completions(s, job, is_full);
        }
    }
    if (result != STATUS_OK) {
        completion_cancel(s, job);
        server_job_fail_pending(job, result);
    }
    return is_done(job);
}

/* Updates all jobs, the oldest first, and removes those that have ended. */
static void update_jobs(struct server *s, struct server_job **list)
{
    bool is_full[2] = {false, false};
    int64_t running = 0, waiting = 0;
    while (*list != NULL) {
        struct server_job *job = *list;
        if (update_job(s, job, is_full)) {
            *list = job->next;
            completion_cancel(s, job);
            finish_job(s, job);
        } else {
            running += job->completions_started - job->completions_ended;
            waiting += job->completion_count - job->completions_started;
            list = &job->next;
        }
    }
    atomic_store(&s->metrics.running, running);
    atomic_store(&s->metrics.waiting, waiting);
}

/* Fails all running jobs after an error of a pass. */
static void fail_jobs(struct server *s, struct server_job *list, status result)
{
    struct status_note note = {0};
    (void)result;
    status_take(&note);
    log_warning("SERVE", "a pass of the model failed: %s", note.text);
    for (struct server_job *job = list; job != NULL; job = job->next) {
        if (job->completions_started > job->completions_ended) {
            completion_cancel(s, job);
            server_job_fail(job, 500, NULL, note.text);
        }
    }
}

/* ---- the loop ---- */

static bool engine_is_busy(const struct server *s)
{
    return s->engine != NULL && engine_is_running(s->engine);
}

static status run_pass(struct server *s)
{
    TRY(engine_read_prompts(s->engine, 1));
    atomic_fetch_add(&s->metrics.passes, 1);
    return engine_advance(s->engine);
}

/* Waits for a new job or a stop signal. */
static void wait_for_change(struct server *s)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += IDLE_MILLISECONDS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&s->lock);
    if (s->first == NULL) {
        pthread_cond_timedwait(&s->changed, &s->lock, &until);
    }
    pthread_mutex_unlock(&s->lock);
}

/* Refuses new requests from the first stop signal on. */
static void check_stop(struct server *s)
{
    if (!s->is_stopping && stop_signal_received()) {
        pthread_mutex_lock(&s->lock);
        s->is_stopping = true;
        int64_t open = s->open_jobs;
        pthread_mutex_unlock(&s->lock);
        http_close_port(s->http);
        log_text("stop requested: %" PRId64 " running or waiting requests are answered first; a "
                 "second Ctrl-C or SIGTERM, more than a second later, ends the server at once",
                 open);
    }
}

static status run_loop(struct server *s)
{
    struct server_job *list = NULL;
    for (;;) {
        check_stop(s);
        take_jobs(s, &list);
        update_jobs(s, &list);
        if (engine_is_busy(s)) {
            status result = run_pass(s);
            if (result != STATUS_OK) {
                fail_jobs(s, list, result);
            }
        } else if (list == NULL) {
            pthread_mutex_lock(&s->lock);
            bool is_finished = s->is_stopping && s->first == NULL;
            pthread_mutex_unlock(&s->lock);
            if (is_finished) {
                return STATUS_OK;
            }
            wait_for_change(s);
        }
    }
}

/* Waits until the clients have received all responses, at most CLOSE_SECONDS. */
static void wait_for_clients(struct server *s)
{
    double end = clock_seconds() + CLOSE_SECONDS;
    int64_t open = 1;
    while (open > 0 && clock_seconds() < end) {
        wait_for_change(s);
        pthread_mutex_lock(&s->lock);
        open = s->open_exchanges;
        pthread_mutex_unlock(&s->lock);
    }
}

/* ---- set-up ---- */

static status read_key(struct server *s)
{
    const char *path = s->options->api_key_file;
    char *text = NULL;
    size_t bytes = 0;
    if (path == NULL) {
        return STATUS_OK;
    }
    TRY(file_read(path, SERVER_KEY_BYTES, &text, &bytes));
    size_t length = strcspn(text, "\r\n");
    bool is_valid = length > 0 && length < sizeof s->api_key && strlen(text) >= length;
    for (size_t i = 0; i < length; i++) {
        is_valid = is_valid && text[i] > ' ' && text[i] < 0x7f;
    }
    if (is_valid) {
        memcpy(s->api_key, text, length);
    }
    free(text);
    REQUIRE(is_valid, STATUS_DATA,
            "%s: the first line must be a key of graphic ASCII characters without spaces", path);
    return STATUS_OK;
}

/* Reads the languages and generation_config.json of an encoder-decoder. */
static status read_source_settings(struct server *s)
{
    const struct session *session = &s->session;
    const struct model_config *c = model_get_config(session->model);
    const struct generation_context context = {
        .vocabulary = c->vocabulary,
        .positions = c->positions,
        .end_token = tokenizer_eos(tokenizer_target(session->tokenizer)),
        .max_new_tokens = c->positions - 1,
    };
    s->source = (struct source_text){.from = s->options->source_language,
                                     .to = s->options->target_language};
    REQUIRE(s->has_source || (s->source.from == NULL && s->source.to == NULL), STATUS_USAGE,
            "--source-lang and --target-lang can only be used with an encoder-decoder, not with %s",
            recipe_architecture_name(session->recipe.model.architecture));
    if (!s->has_source) {
        return STATUS_OK;
    }
    s->defaults = generation_config_unset();
    s->defaults.decoder_start = derive_decoder_start(&session->recipe, session->tokenizer);
    TRY(generation_config_complete(session->tokenizer_dir, &context, &s->defaults));
    TRY(source_text_resolve(session->tokenizer, &s->source, &s->defaults));
    REQUIRE(
        s->defaults.decoder_start >= 0 && s->defaults.decoder_start < c->vocabulary, STATUS_DATA,
        "the start token of the decoder is %" PRId32
        ", but the token ids of the model are 0 to %" PRId64 "; set model.decoder_start_token_id",
        s->defaults.decoder_start, c->vocabulary - 1);
    return STATUS_OK;
}

/* Opens the chat template of the tokenizer, if it has one. */
static status open_template(struct server *s)
{
    if (chat_open(s->session.tokenizer_dir, s->session.tokenizer, &s->template) != STATUS_OK) {
        REQUIRE(status_pending()->code == STATUS_NO_INPUT, status_pending()->code, "no template");
        status_clear();
    }
    return STATUS_OK;
}

/* Creates the engine of a causal model or an encoder-decoder. */
static status create_engine(struct server *s)
{
    const struct model_config *c = model_get_config(s->session.model);
    int64_t wanted = s->options->max_model_len;
    s->max_tokens = model_positions(c);
    s->has_source = recipe_architecture_has_decoder(s->session.recipe.model.architecture);
    TRY(read_source_settings(s));
    if (weights_require_generator(&s->session, s->options->checkpoint) != STATUS_OK) {
        status_clear();
        return STATUS_OK;
    }
    s->max_tokens = c->positions;
    REQUIRE(wanted <= s->max_tokens, STATUS_USAGE,
            "--max-model-len is %" PRId64 ", but the model has %" PRId64 " positions", wanted,
            s->max_tokens);
    s->max_tokens = wanted > 0 ? wanted : s->max_tokens;
    REQUIRE(!s->has_source || s->max_tokens > 1, STATUS_USAGE,
            "a sequence has at most one token, the start token of the target, so no text can be "
            "generated; %s",
            wanted > 0 ? "increase --max-model-len" : "the model has only one position");
    const struct engine_limits limits = {
        .slots = s->options->max_num_seqs,
        .max_tokens = s->max_tokens,
        .source_tokens = s->has_source ? s->max_tokens : 0,
        .chunk_tokens = CHUNK_TOKENS,
        .use_cache = true,
        .has_prompt_log_probabilities = !s->has_source,
    };
    TRY(engine_create(s->session.kernels, s->session.model, s->session.tokenizer, &limits,
                      &s->engine));
    return open_template(s);
}

static status open_server(struct server *s)
{
    const struct server_options *o = s->options;
    TRY(read_key(s));
    TRY(comm_self_create(&s->world));
    TRY(weights_open_checkpoint(&s->session, s->world, o->checkpoint, o->overrides,
                                o->override_count, CHUNK_TOKENS));
    TRY(weights_require_tokenizer(&s->session, o->checkpoint, "serve"));
    REQUIRE(device_is_host(s->session.device), STATUS_UNAVAILABLE,
            "serve runs on the CPU only in this version; add --set train.device=cpu");
    TRY(text_batch_create(&s->session, &s->batch));
    return create_engine(s);
}

/* Warns about a server that other machines can use without a key. */
static void warn_without_key(const struct server *s)
{
    const char *host = s->options->host;
    bool is_local =
        strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0;
    if (!is_local && s->api_key[0] == '\0') {
        log_warning("API-KEY",
                    "--host %s: every machine that reaches this address can use the server; "
                    "require a key with --api-key-file",
                    host);
    }
}

static status listen_and_serve(struct server *s)
{
    int port = 0;
    TRY(stop_signal_watch(false));
    TRY(http_start(s, &s->http, &port));
    warn_without_key(s);
    bool is_ipv6 = strchr(s->options->host, ':') != NULL;
    printf("listening on http://%s%s%s:%d\n", is_ipv6 ? "[" : "", s->options->host,
           is_ipv6 ? "]" : "", port);
    fflush(stdout);
    status result = run_loop(s);
    wait_for_clients(s);
    return result;
}

status server_run(const struct server_options *options)
{
    struct server s = {.options = options, .started = (int64_t)time(NULL)};
    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.changed, NULL);
    status result = open_server(&s);
    if (result == STATUS_OK) {
        result = listen_and_serve(&s);
    }
    http_stop(&s.http);
    engine_destroy(&s.engine);
    chat_close(&s.template);
    text_batch_destroy(&s.batch);
    KEEP_FIRST(result, session_stop(&s.session));
    KEEP_FIRST(result, comm_destroy(&s.world));
    pthread_mutex_destroy(&s.lock);
    pthread_cond_destroy(&s.changed);
    return result;
}
