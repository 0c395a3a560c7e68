/* Requests of the server: JSON bodies in the format of the OpenAI API, checked and converted.
 *
 * A body comes from anyone who can reach the port. Unknown fields are ignored. Fields that would
 * change the answer, but that are not supported, are refused. */
#pragma once

#include <jansson.h>

#include "datasets/chat/chat.h"
#include "trainer/inference/generate.h"

enum request_kind {
    REQUEST_COMPLETION,
    REQUEST_CHAT,
    REQUEST_EMBEDDING,
    REQUEST_FILL_MASK,
    REQUEST_CLASSIFY,
    REQUEST_ANSWER,
    REQUEST_KINDS
};

enum {
    REQUEST_PROMPTS_MAX = 1024, /* texts of a request */
    REQUEST_CHOICES_MAX = 128,  /* n */
    REQUEST_TOP_MAX = 20        /* logprobs, top_logprobs */
};

/* A text, or token ids. The string belongs to request.root. */
struct request_prompt {
    const char *text; /* NULL: ids */
    size_t bytes;
    struct token_list ids;
};

struct request {
    enum request_kind kind;
    json_t *root;
    const char *model;              /* "": not given */
    struct request_prompt *prompts; /* prompt, input or text; the context of REQUEST_ANSWER */
    int64_t prompt_count;
    struct chat_message *messages; /* REQUEST_CHAT */
    int64_t message_count;
    const char *question; /* REQUEST_ANSWER */
    struct generate_options
        options; /* num_beams above 1: beam search; length_penalty NaN: not given */
    bool has_seed, has_early_stopping;
    int64_t n;
    int64_t max_tokens;   /* -1: not given */
    int64_t top_logprobs; /* -1: no log-probabilities */
    int64_t top_k;        /* REQUEST_FILL_MASK, REQUEST_CLASSIFY: predictions per text */
    bool stream, has_stream_usage, echo, is_base64;
};

/* request_parse - parse a body.
 *
 * Memory    the caller calls request_free, also after an error
 * Errors    STATUS_DATA with the reason; *parameter is then the name of the field, or NULL if the
 *           body is not a JSON object */
status request_parse(enum request_kind kind, const char *body, size_t bytes, struct request *out,
                     const char **parameter);

/* request_free - free everything. */
void request_free(struct request *q);
