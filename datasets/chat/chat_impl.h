/* Internal declarations of the chat files. Only files of this folder include this header. */
#pragma once

#include "datasets/chat/chat.h"

/* A segment of a template's text: one special token, or plain text. */
struct chat_part {
    int32_t id;          /* the special token; -1: plain text */
    size_t first, bytes; /* the segment is text[first, first + bytes) */
};

/* A text of the template, split into special tokens and plain text. */
struct chat_literal {
    char *text;
    struct chat_part *parts;
    int64_t count;
};

struct chat_template {
    char name[64];
    struct chat_literal begin, separator, lead; /* docs/guide/data.md describes the keys */
    struct chat_literal before[CHAT_ROLES], after[CHAT_ROLES];
    struct chat_literal before_input, after_input;
    /* The default system message, and the one for a first message with `input`. NULL: none. */
    char *default_system, *default_system_input;
    bool system_in_user, strip;
    int32_t end_of_turn;
};

/* chat_shipped - return the JSON text of a shipped template; NULL: no such name. */
const char *chat_shipped(const char *name);

/* chat_open_shipped - parse a shipped template.
 *
 * Errors    STATUS_DATA if the tokenizer lacks one of its special tokens */
status chat_open_shipped(const char *name, const struct tokenizer *tokenizer,
                         struct chat_template **out);
