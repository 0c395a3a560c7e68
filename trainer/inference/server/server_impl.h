/* Private to trainer/inference/server: the state of a server.
 *
 * Two threads use it. The HTTP thread (http.c) reads requests, encodes them and puts jobs into the
 * queue. The model's thread (server.c) takes them out, and alone uses the model and the engine. */
#pragma once

#include "datasets/chat/chat.h"
#include "trainer/inference/engine.h"
#include "trainer/inference/prediction/text_batch.h"
#include "trainer/inference/server/server.h"
#include "trainer/inference/server/server_job_impl.h"
#include "trainer/inference/server/server_metrics.h"
#include "trainer/inference/source_text.h"
#include "trainer/setup/session.h"

enum { SERVER_KEY_BYTES = 512 };

struct http;

struct server {
    const struct server_options *options;
    struct comm *world;
    struct session session;
    struct chat_template *template;   /* NULL: the tokenizer has none */
    struct text_batch batch;          /* used by the model's thread */
    struct engine *engine;            /* NULL: the model generates no text */
    bool has_source;                  /* an encoder-decoder: the prompts are sources */
    struct source_text source;        /* of an encoder-decoder */
    struct generate_options defaults; /* of an encoder-decoder: start token and constraints */
    int64_t max_tokens;               /* of a sequence with its prompt */
    int64_t beams;                    /* of all running beam searches, at most max_num_seqs */
    char api_key[SERVER_KEY_BYTES];   /* "": none */
    int64_t started;                  /* Unix time */
    struct server_metrics metrics;
    struct http *http;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct server_job *first, *last; /* the queue */
    int64_t open_jobs;               /* in the queue, waiting or running */
    int64_t open_exchanges;          /* requests without a complete response */
    bool is_stopping;                /* new requests are refused */
};

/* server_submit - put a job into the queue. The queue takes over one reference.
 *
 * Returns   false: the queue is full, or the server stops */
bool server_submit(struct server *s, struct server_job *job);

/* server_can - return whether the model can answer this kind of request. */
bool server_can(const struct server *s, enum request_kind kind);

/* server_model_json - create the name of the model in a response: the one of the request, or the
 * checkpoint if the request has none.
 *
 * Memory    the caller owns the value; NULL if memory is exhausted */
json_t *server_model_json(const struct server *s, const struct server_job *job);

/* http_start - listen and start the HTTP thread.
 *
 * Units     *port: the port that is used
 * Errors    STATUS_UNAVAILABLE if the address cannot be used */
status http_start(struct server *s, struct http **out, int *port);

/* http_close_port - accept no more connections. */
void http_close_port(struct http *h);

/* http_stop - end the HTTP thread and set *h to NULL. Open connections are closed. */
void http_stop(struct http **h);

/* completion_prepare - encode the prompts of a completion or chat request and check their length.
 *
 * Order     called on the HTTP thread
 * Errors    STATUS_DATA; *code is then the word for programs, or NULL */
status completion_prepare(struct server *s, struct server_job *job, const char **code);

/* completion_start - put the next sequence of a job into the engine, or begin the beam search of
 * its next prompt.
 *
 * Returns   *is_full true: no slot is free, or too many beams are running */
status completion_start(struct server *s, struct server_job *job, bool *is_full);

/* completion_update - advance beam searches by one token, send the output of ended sequences and
 * remove them from the engine. Ends the job after its last sequence. stop: end the running ones at
 * their present length. */
status completion_update(struct server *s, struct server_job *job, bool stop);

/* completion_cancel - remove all sequences of a job from the engine, and end its beam searches. */
void completion_cancel(struct server *s, struct server_job *job);

/* server_prepare_prediction - encode the texts of a request for embeddings, masks, labels or
 * answers.
 *
 * Order     called on the HTTP thread
 * Errors    as completion_prepare */
status server_prepare_prediction(struct server *s, struct server_job *job, const char **code);

/* server_run_prediction - answer the next text of such a request with passes of the model. The job
 * ends after its last text. Other jobs advance between two texts.
 *
 * Order     called on the model's thread */
status server_run_prediction(struct server *s, struct server_job *job);

/* server_encode_prompt - encode one text or check one list of ids.
 *
 * Errors    STATUS_DATA */
status server_encode_prompt(struct server *s, const struct request_prompt *prompt,
                            struct token_list *out);
