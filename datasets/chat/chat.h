/* Chat templates: how messages become one text of tokens, with the spans of the answers known exactly.
 *
 * A template is the file chat_template.json in the tokenizer's folder (docs/chat_templates.md describes it). Its own
 * texts may hold special tokens, listed by name; what messages say is encoded as plain text always, so that nobody
 * can write a special token, and with it another role, into a message. Text before an answer and the answer are
 * encoded apart: a prompt has the same ids whether an answer follows or is to be generated. All other text between
 * two special tokens is encoded as one.
 *
 * Immutable once open: any number of threads may encode. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "base/status.h"
#include "datasets/shard/example.h"
#include "datasets/tokenizer/tokenizer.h"

#define CHAT_FILE "chat_template.json"
#define CHAT_NAMES "chatml, alpaca, llama-2, llama-3"

struct chat_template;

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_ROLES };

/* Texts belong to the caller. */
struct chat_message {
    enum chat_role role;
    const char *text;
    size_t bytes;
    const char *input; /* Alpaca's further input of a user's message; NULL: none */
    size_t input_bytes;
};

/* What a token is part of; bits, those of example.h. */
enum { CHAT_IS_COMPLETION = EXAMPLE_IS_COMPLETION, CHAT_IS_ANSWER = EXAMPLE_IS_ANSWER };

/* Tokens and, for each, its marks. */
struct chat_text {
    struct token_list ids, marks;
};
void chat_text_free(struct chat_text *text);

/* chat_open - the template of a tokenizer's folder.
 *
 * Errors    STATUS_NO_INPUT: there is none; STATUS_DATA: file and reason; also a special token that the tokenizer has
 *           not got */
status chat_open(const char *folder, const struct tokenizer *tokenizer, struct chat_template **out);

/* chat_install - a shipped template by its name, or one in a file, into a tokenizer's folder.
 *
 * Errors    STATUS_DATA: as chat_open; the folder has another one already. STATUS_NO_INPUT, STATUS_WRITE */
status chat_install(const char *name_or_path, const char *folder,
                    const struct tokenizer *tokenizer);
void chat_close(struct chat_template **template);

const char *chat_name(const struct chat_template *t);
int32_t chat_end_of_turn(const struct chat_template *t);
bool chat_strips(const struct chat_template *t); /* white space around messages says nothing */

/* How chat_encode begins and ends. */
struct chat_frame {
    bool continues; /* `out` ends with a `reply`: the first message is that answer */
    bool reply;     /* end with what comes before an assistant's answer */
};

/* chat_encode - append the messages to *out.
 *
 * CHAT_IS_ANSWER marks what assistants said, with the end of turn behind it; CHAT_IS_COMPLETION, with
 * frame.continues, everything.
 * Errors    STATUS_DATA: messages that the template cannot have, an empty answer, a character that is not in the
 *           vocabulary; *out is then as it was */
status chat_encode(const struct chat_template *t, const struct tokenizer *tokenizer,
                   const struct chat_message *messages, int64_t count, struct chat_frame frame,
                   struct chat_text *out);

/* chat_encode_plain - append plain text, and the tokenizer's end token where asked for; special tokens in it are text.
 *
 * Units     marks: of these tokens */
status chat_encode_plain(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                         bool end, int32_t marks, struct chat_text *out);

/* chat_jinja - the template as transformers has them, in Jinja: messages become the same text.
 *
 * Memory    *out for free() */
status chat_jinja(const struct chat_template *t, const struct tokenizer *tokenizer, char **out,
                  size_t *bytes);

/* chat_messages_read - the messages in a row's field: [{"role", "content"}, ...], or with "from" and "value".
 *
 * Memory    *out for free(); its texts belong to the value
 * Errors    STATUS_DATA with the message's number and the reason */
status chat_messages_read(const json_t *value, const char *field, struct chat_message **out,
                          int64_t *count);
