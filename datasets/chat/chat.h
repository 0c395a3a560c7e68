/* Chat templates: convert messages to token ids, with a loss mask that selects the assistant's
 * messages exactly.
 *
 * A template is the file chat_template.json in the tokenizer's folder (see docs/guide/data.md). The
 * template's own texts may contain the special tokens that it lists. The text of a message is
 * always encoded as plain text. A message therefore cannot inject a special token, and with it
 * another role.
 *
 * The text before an assistant message and the assistant message are encoded separately: a prompt
 * has the same ids in training and in generation. All other text between two special tokens is
 * encoded as one string.
 *
 * A template is immutable after chat_open. Any number of threads may encode with it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "datasets/shard/example.h"
#include "datasets/tokenizer/tokenizer.h"

#define CHAT_FILE "chat_template.json"
#define CHAT_NAMES "chatml, alpaca, llama-2, llama-3"

struct chat_template;

enum chat_role { CHAT_SYSTEM, CHAT_USER, CHAT_ASSISTANT, CHAT_ROLES };

/* chat_role_name - return "system", "user" or "assistant". */
const char *chat_role_name(enum chat_role role);

/* The strings belong to the caller. */
struct chat_message {
    enum chat_role role;
    const char *text;
    size_t bytes;
    const char *input; /* the "input" field of an Alpaca row, for a user message; NULL: none */
    size_t input_bytes;
};

/* Bits of the loss mask, as in example.h. */
enum { CHAT_IS_COMPLETION = EXAMPLE_IS_COMPLETION, CHAT_IS_ANSWER = EXAMPLE_IS_ASSISTANT };

/* Token ids and the loss mask bits of each token. */
struct chat_text {
    struct token_list ids, loss_mask;
};

/* chat_text_free - free both lists. */
void chat_text_free(struct chat_text *text);

/* chat_open - read the chat template of a tokenizer's folder.
 *
 * Errors    STATUS_NO_INPUT: the folder has no template; STATUS_DATA: file and reason, for example
 *           a special token that the tokenizer does not have */
status chat_open(const char *folder, const struct tokenizer *tokenizer, struct chat_template **out);

/* chat_install - write a shipped template (by name) or a template file into a tokenizer's folder.
 *
 * Errors    STATUS_NO_INPUT: no such template; STATUS_DATA: as chat_open, or the folder already has
 *           a different template; STATUS_WRITE */
status chat_install(const char *name_or_path, const char *folder,
                    const struct tokenizer *tokenizer);

/* chat_close - free a template and set *template to NULL. */
void chat_close(struct chat_template **template);

/* chat_name - return the template's name. */
const char *chat_name(const struct chat_template *t);

/* chat_end_of_turn - return the id of the token that ends an assistant message. */
int32_t chat_end_of_turn(const struct chat_template *t);

/* chat_strips - return whether the template strips white space around messages. */
bool chat_strips(const struct chat_template *t);

/* Beginning and end of the text that chat_encode appends. */
struct chat_frame {
    bool after_generation_prompt; /* *out ends with a generation prompt; the first message is the
                                   * assistant message that follows it */
    bool add_generation_prompt;   /* end with the text that precedes an assistant message */
};

/* chat_encode - append the messages to *out.
 *
 * The loss mask of the assistant's messages, up to and including the end-of-turn token, has
 * CHAT_IS_ANSWER. With frame.after_generation_prompt, every appended token has CHAT_IS_COMPLETION.
 *
 * Errors    STATUS_DATA: the template cannot represent the messages, an assistant message is empty,
 *           or a character is not in the vocabulary; *out is then unchanged */
status chat_encode(const struct chat_template *t, const struct tokenizer *tokenizer,
                   const struct chat_message *messages, int64_t count, struct chat_frame frame,
                   struct chat_text *out);

/* chat_encode_prompt - encode a conversation as the prompt of the next answer. The prompt of an
 * encoder-decoder (is_source) is its source and has the special tokens of a source.
 *
 * Memory    *out is empty at the call; the caller releases it with token_list_free
 * Errors    as chat_encode and text_pair_enclose */
status chat_encode_prompt(const struct chat_template *t, const struct tokenizer *tokenizer,
                          const struct chat_message *messages, int64_t count, bool is_source,
                          struct token_list *out);

/* chat_encode_answer - append an answer as the target of an encoder-decoder. The end token of the
 * tokenizer ends it, not the template's end of turn.
 *
 * Errors    STATUS_DATA: the message is not an answer, or is empty; as text_pair_encode_sequence */
status chat_encode_answer(const struct chat_template *t, const struct tokenizer *tokenizer,
                          const struct chat_message *answer, struct token_list *out);

/* chat_encode_plain - append plain text, without a template.
 *
 * With `end`, the tokenizer's end-of-text token follows, if it has one. Special tokens in the text
 * are encoded as plain text. Every appended token gets the given loss mask bits.
 *
 * Errors    as tokenizer_encode */
status chat_encode_plain(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                         bool end, int32_t loss_mask, struct chat_text *out);

/* chat_jinja - convert the template to a Jinja chat template for transformers.
 *
 * Memory    the caller frees *out with free() */
status chat_jinja(const struct chat_template *t, const struct tokenizer *tokenizer, char **out,
                  size_t *bytes);

/* chat_recognize_jinja - return the name of the shipped template that is equal to a Jinja template;
 * NULL: none is, or the tokenizer lacks its special tokens. */
const char *chat_recognize_jinja(const char *text, const struct tokenizer *tokenizer);

/* chat_read_jinja - read the Jinja template of a tokenizer's folder: chat_template.jinja, or
 * chat_template in tokenizer_config.json.
 *
 * Memory    the caller frees *out with free(); NULL if the folder has none
 * Errors    as file_read */
status chat_read_jinja(const char *folder, char **out);

struct json_t;

/* chat_messages_read - read the list of messages in a row's field.
 *
 * A message is an object with "role" and "content", or with "from" and "value" (ShareGPT).
 *
 * Memory    the caller frees *out with free(); the strings belong to `value`
 * Errors    STATUS_DATA: the message's number and the reason */
status chat_messages_read(const struct json_t *value, const char *field, struct chat_message **out,
                          int64_t *count);
