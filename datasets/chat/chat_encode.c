/* Messages to tokens. Plain text is collected until a special token comes or the marks change, and then encoded as a
 * whole; only the template's own parts put special tokens in. */
#include <stdlib.h>
#include <string.h>

#include "datasets/chat/chat_impl.h"

struct writer {
    const struct chat_template *t;
    const struct tokenizer *tokenizer;
    struct chat_text *out;
    char *plain; /* collected */
    size_t bytes, capacity;
    int32_t marks;  /* of what is collected */
    int32_t always; /* marks of everything */
};

void chat_text_free(struct chat_text *text)
{
    token_list_free(&text->ids);
    token_list_free(&text->marks);
}

/* The marks of all tokens that have none yet. */
static status mark_rest(struct chat_text *text, int32_t marks)
{
    int64_t more = text->ids.count - text->marks.count;
    TRY(token_list_reserve(&text->marks, more));
    while (more-- > 0) {
        text->marks.ids[text->marks.count++] = marks;
    }
    return STATUS_OK;
}

static status flush(struct writer *w)
{
    if (w->bytes > 0) {
        TRY(tokenizer_encode(w->tokenizer, w->plain, w->bytes, false, &w->out->ids));
        w->bytes = 0;
    }
    return mark_rest(w->out, w->marks);
}

static status set_marks(struct writer *w, int32_t marks)
{
    if (w->marks != (marks | w->always)) {
        TRY(flush(w));
        w->marks = marks | w->always;
    }
    return STATUS_OK;
}

static status write_plain(struct writer *w, const char *text, size_t bytes)
{
    if (bytes > w->capacity - w->bytes) {
        size_t capacity = 2 * (w->bytes + bytes);
        char *grown = realloc(w->plain, capacity);
        REQUIRE(grown != NULL, STATUS_INTERNAL, "out of memory: a message of %zu bytes", bytes);
        w->plain = grown;
        w->capacity = capacity;
    }
    if (bytes > 0) {
        memcpy(w->plain + w->bytes, text, bytes);
        w->bytes += bytes;
    }
    return STATUS_OK;
}

static status write_special(struct writer *w, int32_t id)
{
    TRY(flush(w));
    TRY(token_list_reserve(&w->out->ids, 1));
    w->out->ids.ids[w->out->ids.count++] = id;
    return mark_rest(w->out, w->marks);
}

static status write_literal(struct writer *w, const struct chat_literal *l)
{
    for (int64_t i = 0; i < l->count; i++) {
        const struct chat_part *p = &l->parts[i];
        TRY(p->id >= 0 ? write_special(w, p->id) : write_plain(w, l->text + p->first, p->bytes));
    }
    return STATUS_OK;
}

static bool is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static status write_said(struct writer *w, const char *text, size_t bytes)
{
    while (w->t->strip && bytes > 0 && is_space(text[bytes - 1])) {
        bytes--;
    }
    while (w->t->strip && bytes > 0 && is_space(text[0])) {
        text++;
        bytes--;
    }
    return write_plain(w, text, bytes);
}

static status write_system(struct writer *w, const char *text, size_t bytes)
{
    TRY(write_literal(w, &w->t->before[CHAT_SYSTEM]));
    TRY(write_said(w, text, bytes));
    return write_literal(w, &w->t->after[CHAT_SYSTEM]);
}

/* system: a system message that stands inside of this user's message, or NULL. */
static status write_user(struct writer *w, const struct chat_message *m,
                         const struct chat_message *system)
{
    TRY(write_literal(w, &w->t->before[CHAT_USER]));
    TRY(system != NULL ? write_system(w, system->text, system->bytes) : STATUS_OK);
    TRY(write_said(w, m->text, m->bytes));
    if (m->input != NULL) {
        TRY(write_literal(w, &w->t->before_input));
        TRY(write_said(w, m->input, m->input_bytes));
        TRY(write_literal(w, &w->t->after_input));
    }
    return write_literal(w, &w->t->after[CHAT_USER]);
}

/* The answer's marks end behind the end of turn. */
static status write_answer(struct writer *w, const struct chat_message *m)
{
    const struct chat_literal *after = &w->t->after[CHAT_ASSISTANT];
    TRY(set_marks(w, CHAT_IS_ANSWER));
    TRY(write_literal(w, &w->t->lead));
    TRY(write_said(w, m->text, m->bytes));
    for (int64_t i = 0; i < after->count; i++) {
        const struct chat_part *p = &after->parts[i];
        TRY(p->id >= 0 ? write_special(w, p->id)
                       : write_plain(w, after->text + p->first, p->bytes));
        TRY(p->id == w->t->end_of_turn ? set_marks(w, 0) : STATUS_OK);
    }
    return set_marks(w, 0);
}

static bool is_blank(const struct chat_message *m)
{
    for (size_t i = 0; i < m->bytes; i++) {
        if (!is_space(m->text[i])) {
            return false;
        }
    }
    return true;
}

static status check_messages(const struct chat_template *t, const struct chat_message *messages,
                             int64_t count, struct chat_frame frame)
{
    REQUIRE(count > 0, STATUS_DATA, "no messages");
    REQUIRE(!frame.continues || messages[0].role == CHAT_ASSISTANT, STATUS_DATA,
            "the answer to a prompt begins with a message of the %s, not of the assistant",
            chat_role_name(messages[0].role));
    for (int64_t i = 0; i < count; i++) {
        const struct chat_message *m = &messages[i];
        bool alone = i + 1 == count || messages[i + 1].role != CHAT_USER;
        REQUIRE(m->role != CHAT_ASSISTANT || !is_blank(m), STATUS_DATA,
                "message %lld: an empty answer", (long long)i + 1);
        REQUIRE(m->role != CHAT_SYSTEM || !t->system_in_user || (i == 0 && !alone), STATUS_DATA,
                "message %lld: the template %s has a system message only first, with a user's "
                "message behind it",
                (long long)i + 1, t->name);
    }
    return STATUS_OK;
}

static status write_default_system(struct writer *w, const struct chat_message *first)
{
    const struct chat_template *t = w->t;
    const char *text = first->input != NULL && t->default_system_input != NULL
                           ? t->default_system_input
                           : t->default_system;
    bool wanted = text != NULL && first->role != CHAT_SYSTEM && !t->system_in_user;
    return wanted ? write_system(w, text, strlen(text)) : STATUS_OK;
}

static status write_message(struct writer *w, const struct chat_message *m,
                            const struct chat_message *before, bool prompted)
{
    bool inside = w->t->system_in_user;
    switch (m->role) {
    case CHAT_SYSTEM:
        return inside ? STATUS_OK : write_system(w, m->text, m->bytes);
    case CHAT_USER:
        return write_user(w, m,
                          inside && before != NULL && before->role == CHAT_SYSTEM ? before : NULL);
    default:
        TRY(prompted ? STATUS_OK : write_literal(w, &w->t->before[CHAT_ASSISTANT]));
        return write_answer(w, m);
    }
}

static status write_all(struct writer *w, const struct chat_message *messages, int64_t count,
                        struct chat_frame frame)
{
    if (!frame.continues) {
        TRY(write_literal(w, &w->t->begin));
        TRY(write_default_system(w, messages));
    }
    for (int64_t i = 0; i < count; i++) {
        const struct chat_message *before = i > 0 ? &messages[i - 1] : NULL;
        if (before != NULL && before->role == CHAT_ASSISTANT) {
            TRY(write_literal(w, &w->t->separator));
        }
        TRY(write_message(w, &messages[i], before, i == 0 && frame.continues));
    }
    if (frame.reply) {
        TRY(messages[count - 1].role == CHAT_ASSISTANT ? write_literal(w, &w->t->separator)
                                                       : STATUS_OK);
        TRY(write_literal(w, &w->t->before[CHAT_ASSISTANT]));
    }
    return flush(w);
}

status chat_encode(const struct chat_template *t, const struct tokenizer *tokenizer,
                   const struct chat_message *messages, int64_t count, struct chat_frame frame,
                   struct chat_text *out)
{
    TRY(check_messages(t, messages, count, frame));
    struct writer w = {.t = t, .tokenizer = tokenizer, .out = out};
    w.always = w.marks = frame.continues ? CHAT_IS_COMPLETION : 0;
    int64_t before = out->ids.count;
    status result = write_all(&w, messages, count, frame);
    free(w.plain);
    if (result != STATUS_OK) {
        out->ids.count = out->marks.count = before;
    }
    return result;
}

status chat_encode_plain(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                         bool end, int32_t marks, struct chat_text *out)
{
    TRY(tokenizer_encode(tokenizer, text, bytes, false, &out->ids));
    if (end && tokenizer_eos(tokenizer) >= 0) {
        TRY(token_list_reserve(&out->ids, 1));
        out->ids.ids[out->ids.count++] = tokenizer_eos(tokenizer);
    }
    return mark_rest(out, marks);
}

/* Names of the roles in use; ShareGPT's are the last two. */
static status read_role(const char *name, int64_t number, enum chat_role *out)
{
    static const struct {
        const char *name;
        enum chat_role role;
    } names[] = {{"system", CHAT_SYSTEM},
                 {"user", CHAT_USER},
                 {"assistant", CHAT_ASSISTANT},
                 {"human", CHAT_USER},
                 {"gpt", CHAT_ASSISTANT}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(names[i].name, name) == 0) {
            *out = names[i].role;
            return STATUS_OK;
        }
    }
    RAISE(STATUS_DATA, "message %lld: the role \"%.40s\" is none of system, user, assistant",
          (long long)number, name);
}

static const json_t *either(const json_t *object, const char *one, const char *other)
{
    const json_t *value = json_object_get(object, one);
    return value != NULL ? value : json_object_get(object, other);
}

static status read_message(const json_t *value, int64_t number, struct chat_message *out)
{
    const json_t *role = either(value, "role", "from"), *text = either(value, "content", "value");
    REQUIRE(json_is_string(role), STATUS_DATA, "message %lld: no \"role\" that is a string",
            (long long)number);
    REQUIRE(json_is_string(text), STATUS_DATA, "message %lld: no \"content\" that is a string",
            (long long)number);
    out->text = json_string_value(text);
    out->bytes = json_string_length(text);
    return read_role(json_string_value(role), number, &out->role);
}

status chat_messages_read(const json_t *value, const char *field, struct chat_message **out,
                          int64_t *count)
{
    *out = NULL;
    size_t size = json_array_size(value);
    REQUIRE(json_is_array(value) && size > 0, STATUS_DATA,
            "the field \"%s\" is no list of messages", field);
    struct chat_message *messages = calloc(size, sizeof *messages);
    REQUIRE(messages != NULL, STATUS_INTERNAL, "out of memory: %zu messages", size);
    for (size_t i = 0; i < size; i++) {
        status result = read_message(json_array_get(value, i), (int64_t)i + 1, &messages[i]);
        if (result != STATUS_OK) {
            free(messages);
            return result;
        }
    }
    *out = messages;
    *count = (int64_t)size;
    return STATUS_OK;
}
