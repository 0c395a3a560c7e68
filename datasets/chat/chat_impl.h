/* A chat template in memory; only for the chat files. */
#pragma once

#include "datasets/chat/chat.h"

/* A stretch of a template's text: one special token, or plain text. */
struct chat_part {
    int32_t id; /* -1: text */
    size_t first, bytes;
};

/* A text of the template, taken apart. */
struct chat_literal {
    char *text;
    struct chat_part *parts;
    int64_t count;
};

struct chat_template {
    char name[64];
    struct chat_literal begin, separator, lead;
    struct chat_literal before[CHAT_ROLES], after[CHAT_ROLES];
    struct chat_literal before_input, after_input;
    char *default_system, *default_system_input; /* NULL: none */
    bool system_in_user, strip;
    int32_t end_of_turn;
};

/* chat_shipped - the text of a shipped template; NULL: there is none of this name. */
const char *chat_shipped(const char *name);

/* chat_role_name - "system", "user", "assistant". */
const char *chat_role_name(enum chat_role role);
