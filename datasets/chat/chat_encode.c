/* Encodes messages. The writer collects plain text until a special token follows or the loss mask
 * changes, and then encodes the text as one string. Only the template inserts special tokens. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text_buffer.h"
#include "datasets/chat/chat_impl.h"
#include "datasets/tokenizer/text_pair.h"

struct writer {
    const struct chat_template *t;
    const struct tokenizer *tokenizer;
    struct chat_text *out;
    struct text_buffer plain; /* collected text, not encoded yet */
    int32_t mask;             /* loss mask bits of the collected text */
    int32_t base_mask;        /* loss mask bits of every token */
    bool after_plain;         /* the text before was encoded in another part, not a special token */
};

void chat_text_free(struct chat_text *text)
{
    token_list_free(&text->ids);
    token_list_free(&text->loss_mask);
}

/* Sets the loss mask bits of all tokens that have none yet. */
static status fill_loss_mask(struct chat_text *text, int32_t mask)
{
    int64_t more = text->ids.count - text->loss_mask.count;
    TRY(token_list_reserve(&text->loss_mask, more));
    while (more-- > 0) {
        text->loss_mask.ids[text->loss_mask.count++] = mask;
    }
    return STATUS_OK;
}

static status encode_collected(struct writer *w)
{
    const char *text = w->plain.bytes;
    size_t bytes = w->plain.count;
    if (bytes > 0) {
        struct token_list *ids = &w->out->ids;
        TRY(w->after_plain   ? tokenizer_encode_continued(w->tokenizer, text, bytes, ids)
            : ids->count > 0 ? tokenizer_encode_after_special(w->tokenizer, text, bytes, ids)
                             : tokenizer_encode(w->tokenizer, text, bytes, false, ids));
        w->plain.count = 0;
        w->after_plain = true;
    }
    return fill_loss_mask(w->out, w->mask);
}

static status set_loss_mask(struct writer *w, int32_t mask)
{
    if (w->mask != (mask | w->base_mask)) {
        TRY(encode_collected(w));
        w->mask = mask | w->base_mask;
    }
    return STATUS_OK;
}

static status write_plain(struct writer *w, const char *text, size_t bytes)
{
    return text_buffer_append(&w->plain, text, bytes);
}

static status write_special(struct writer *w, int32_t id)
{
    TRY(encode_collected(w));
    w->after_plain = false;
    TRY(token_list_add(&w->out->ids, id));
    return fill_loss_mask(w->out, w->mask);
}

static status write_literal(struct writer *w, const struct chat_literal *l)
{
    for (int64_t i = 0; i < l->count; i++) {
        const struct chat_part *p = &l->parts[i];
        TRY(p->id >= 0 ? write_special(w, p->id) : write_plain(w, l->text + p->first, p->bytes));
    }
    return STATUS_OK;
}

/* Returns the bytes of the white space character at the beginning of the text; 0: none. White space
 * is defined as in Python's str.strip, which `trim` in Jinja calls. */
static size_t match_white_space(const char *text, size_t bytes)
{
    const unsigned char *u = (const unsigned char *)text;
    if (bytes >= 1 &&
        (u[0] == ' ' || (u[0] >= 0x09 && u[0] <= 0x0d) || (u[0] >= 0x1c && u[0] <= 0x1f))) {
        return 1;
    }
    if (bytes >= 2 && u[0] == 0xc2) {
        return u[1] == 0x85 || u[1] == 0xa0 ? 2 : 0; /* U+0085, U+00A0 */
    }
    if (bytes < 3) {
        return 0;
    }
    uint32_t code = (uint32_t)u[0] << 16 | (uint32_t)u[1] << 8 | u[2];
    bool is_wide = code == 0xe19a80 ||                       /* U+1680 */
                   (code >= 0xe28080 && code <= 0xe2808a) || /* U+2000 to U+200A */
                   code == 0xe280a8 || code == 0xe280a9 ||   /* U+2028, U+2029 */
                   code == 0xe280af || code == 0xe2819f ||   /* U+202F, U+205F */
                   code == 0xe38080;                         /* U+3000 */
    return is_wide ? 3 : 0;
}

/* Returns the bytes of the white space character at the end of the text; 0: none. */
static size_t match_last_white_space(const char *text, size_t bytes)
{
    for (size_t length = 1; length <= 3 && length <= bytes; length++) {
        if (match_white_space(text + bytes - length, length) == length) {
            return length;
        }
    }
    return 0;
}

/* Removes the white space around a text if the template does so. */
static struct text strip_content(const struct chat_template *t, const char *text, size_t bytes)
{
    size_t length;
    while (t->strip && (length = match_last_white_space(text, bytes)) > 0) {
        bytes -= length;
    }
    while (t->strip && (length = match_white_space(text, bytes)) > 0) {
        text += length;
        bytes -= length;
    }
    return (struct text){text, bytes};
}

static status write_content(struct writer *w, const char *text, size_t bytes)
{
    struct text content = strip_content(w->t, text, bytes);
    return write_plain(w, content.bytes, content.count);
}

static status write_system(struct writer *w, const char *text, size_t bytes)
{
    TRY(write_literal(w, &w->t->before[CHAT_SYSTEM]));
    TRY(write_content(w, text, bytes));
    return write_literal(w, &w->t->after[CHAT_SYSTEM]);
}

/* Appends a user message. `system` is a system message to write inside of it; NULL: none. */
static status write_user(struct writer *w, const struct chat_message *m,
                         const struct chat_message *system)
{
    TRY(write_literal(w, &w->t->before[CHAT_USER]));
    TRY(system != NULL ? write_system(w, system->text, system->bytes) : STATUS_OK);
    TRY(write_content(w, m->text, m->bytes));
    if (m->input != NULL) {
        TRY(write_literal(w, &w->t->before_input));
        TRY(write_content(w, m->input, m->input_bytes));
        TRY(write_literal(w, &w->t->after_input));
    }
    return write_literal(w, &w->t->after[CHAT_USER]);
}

/* Appends an assistant message. CHAT_IS_ANSWER covers it up to and including the
 * end-of-turn token. */
static status write_assistant(struct writer *w, const struct chat_message *m)
{
    const struct chat_literal *after = &w->t->after[CHAT_ASSISTANT];
    TRY(set_loss_mask(w, CHAT_IS_ANSWER));
    TRY(write_literal(w, &w->t->lead));
    TRY(write_content(w, m->text, m->bytes));
    for (int64_t i = 0; i < after->count; i++) {
        const struct chat_part *p = &after->parts[i];
        TRY(p->id >= 0 ? write_special(w, p->id)
                       : write_plain(w, after->text + p->first, p->bytes));
        TRY(p->id == w->t->end_of_turn ? set_loss_mask(w, 0) : STATUS_OK);
    }
    return set_loss_mask(w, 0);
}

static bool is_blank(const struct chat_message *m)
{
    size_t length, begin = 0;
    while ((length = match_white_space(m->text + begin, m->bytes - begin)) > 0) {
        begin += length;
    }
    return begin == m->bytes;
}

static status check_messages(const struct chat_template *t, const struct chat_message *messages,
                             int64_t count, struct chat_frame frame)
{
    REQUIRE(count > 0, STATUS_DATA, "the list of messages is empty; it needs at least one message");
    REQUIRE(!frame.after_generation_prompt || messages[0].role == CHAT_ASSISTANT, STATUS_DATA,
            "the completion begins with a %s message; it must begin with an assistant message",
            chat_role_name(messages[0].role));
    for (int64_t i = 0; i < count; i++) {
        const struct chat_message *m = &messages[i];
        bool alone = i + 1 == count || messages[i + 1].role != CHAT_USER;
        REQUIRE(m->role != CHAT_ASSISTANT || !is_blank(m), STATUS_DATA,
                "message %" PRId64 ": the assistant message is empty", i + 1);
        REQUIRE(m->role != CHAT_SYSTEM || !t->system_in_user || (i == 0 && !alone), STATUS_DATA,
                "message %" PRId64 ": the template %s accepts a system message only as the first "
                "message, followed by a user message",
                i + 1, t->name);
    }
    return STATUS_OK;
}

static status write_default_system(struct writer *w, const struct chat_message *first)
{
    const struct chat_template *t = w->t;
    const char *text = first->input != NULL && t->default_system_input != NULL
                           ? t->default_system_input
                           : t->default_system;
    bool needed = text != NULL && first->role != CHAT_SYSTEM && !t->system_in_user;
    return needed ? write_system(w, text, strlen(text)) : STATUS_OK;
}

static status write_message(struct writer *w, const struct chat_message *m,
                            const struct chat_message *before, bool after_prompt)
{
    bool system_in_user = w->t->system_in_user;
    switch (m->role) {
    case CHAT_SYSTEM:
        return system_in_user ? STATUS_OK : write_system(w, m->text, m->bytes);
    case CHAT_USER:
        return write_user(
            w, m, system_in_user && before != NULL && before->role == CHAT_SYSTEM ? before : NULL);
    default:
        TRY(after_prompt ? STATUS_OK : write_literal(w, &w->t->before[CHAT_ASSISTANT]));
        return write_assistant(w, m);
    }
}

static status write_all(struct writer *w, const struct chat_message *messages, int64_t count,
                        struct chat_frame frame)
{
    if (!frame.after_generation_prompt) {
        TRY(write_literal(w, &w->t->begin));
        TRY(write_default_system(w, messages));
    }
    for (int64_t i = 0; i < count; i++) {
        const struct chat_message *before = i > 0 ? &messages[i - 1] : NULL;
        if (before != NULL && before->role == CHAT_ASSISTANT) {
            TRY(write_literal(w, &w->t->separator));
        }
        TRY(write_message(w, &messages[i], before, i == 0 && frame.after_generation_prompt));
    }
    if (frame.add_generation_prompt) {
        TRY(messages[count - 1].role == CHAT_ASSISTANT ? write_literal(w, &w->t->separator)
                                                       : STATUS_OK);
        TRY(write_literal(w, &w->t->before[CHAT_ASSISTANT]));
    }
    return encode_collected(w);
}

/* Returns whether a prompt ends with text, not with a special token. */
static bool ends_prompt_with_text(const struct chat_template *t)
{
    const struct chat_literal *end = &t->before[CHAT_ASSISTANT];
    end = end->count > 0 ? end : &t->after[CHAT_USER];
    return end->count > 0 && end->parts[end->count - 1].id < 0;
}

status chat_encode(const struct chat_template *t, const struct tokenizer *tokenizer,
                   const struct chat_message *messages, int64_t count, struct chat_frame frame,
                   struct chat_text *out)
{
    TRY(check_messages(t, messages, count, frame));
    struct writer w = {.t = t, .tokenizer = tokenizer, .out = out};
    w.base_mask = w.mask = frame.after_generation_prompt ? CHAT_IS_COMPLETION : 0;
    w.after_plain = frame.after_generation_prompt && ends_prompt_with_text(t);
    int64_t before = out->ids.count;
    status result = write_all(&w, messages, count, frame);
    text_buffer_free(&w.plain);
    if (result != STATUS_OK) {
        out->ids.count = out->loss_mask.count = before;
    }
    return result;
}

status chat_encode_prompt(const struct chat_template *t, const struct tokenizer *tokenizer,
                          const struct chat_message *messages, int64_t count, bool is_source,
                          struct token_list *out)
{
    struct chat_text text = {.ids = *out};
    status result = chat_encode(t, tokenizer, messages, count,
                                (struct chat_frame){.add_generation_prompt = true}, &text);
    if (result == STATUS_OK && is_source) {
        result = text_pair_enclose(tokenizer, &text.ids);
    }
    token_list_free(&text.loss_mask);
    *out = text.ids;
    return result;
}

status chat_encode_answer(const struct chat_template *t, const struct tokenizer *tokenizer,
                          const struct chat_message *answer, struct token_list *out)
{
    REQUIRE(answer->role == CHAT_ASSISTANT, STATUS_DATA,
            "the last message is a %s message; the answer must be an assistant message",
            chat_role_name(answer->role));
    REQUIRE(!is_blank(answer), STATUS_DATA, "the assistant message is empty");
    struct text content = strip_content(t, answer->text, answer->bytes);
    return text_pair_encode_sequence(tokenizer, NULL, &content, TEXT_TARGET, -1, out);
}

status chat_encode_plain(const struct tokenizer *tokenizer, const char *text, size_t bytes,
                         bool end, int32_t mask, struct chat_text *out)
{
    TRY(out->ids.count > 0 ? tokenizer_encode_continued(tokenizer, text, bytes, &out->ids)
                           : tokenizer_encode(tokenizer, text, bytes, false, &out->ids));
    if (end && tokenizer_eos(tokenizer) >= 0) {
        TRY(token_list_add(&out->ids, tokenizer_eos(tokenizer)));
    }
    return fill_loss_mask(out, mask);
}

/* Reads a role name: the common names, and "human" and "gpt" of ShareGPT. */
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
    for (int i = 0; i < COUNT(names); i++) {
        if (strcmp(names[i].name, name) == 0) {
            *out = names[i].role;
            return STATUS_OK;
        }
    }
    RAISE(STATUS_DATA, "message %" PRId64 ": the role '%.40s' is none of system, user, assistant",
          number, name);
}

static const json_t *get_either_key(const json_t *object, const char *one, const char *other)
{
    const json_t *value = json_object_get(object, one);
    return value != NULL ? value : json_object_get(object, other);
}

static status read_message(const json_t *value, int64_t number, struct chat_message *out)
{
    const json_t *role = get_either_key(value, "role", "from"),
                 *text = get_either_key(value, "content", "value");
    REQUIRE(json_is_string(role), STATUS_DATA, "message %" PRId64 ": no 'role' string", number);
    REQUIRE(json_is_string(text), STATUS_DATA, "message %" PRId64 ": no 'content' string", number);
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
            "the field '%s' is not a non-empty list of messages", field);
    struct chat_message *messages = NULL;
    TRY(ALLOCATE(messages, size, "messages"));
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
