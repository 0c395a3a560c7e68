/* Converts a chat template to Jinja, the template language of transformers.
 *
 * For messages that both formats can represent, apply_chat_template(messages) yields the text that
 * chat_encode encodes. White space and newlines of the Jinja file have no effect, because every tag
 * has dashes. Tools, and the `input` of an Alpaca row, have no counterpart in these messages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "datasets/chat/chat_impl.h"

struct jinja_writer {
    const struct tokenizer *tokenizer;
    const struct chat_template *t;
    FILE *file;
};

static void write_escaped(FILE *file, const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c == '\'' || c == '\\') {
            fprintf(file, "\\%c", c);
        } else if (c == '\n') {
            fputs("\\n", file);
        } else if (c < 0x20 || c == 0x7f) {
            fprintf(file, "\\x%02x", c);
        } else {
            fputc(c, file);
        }
    }
}

static status write_literal(const struct jinja_writer *j, const struct chat_literal *l)
{
    fputc('\'', j->file);
    for (int64_t i = 0; i < l->count; i++) {
        const struct chat_part *p = &l->parts[i];
        char *token = NULL;
        size_t bytes = p->bytes;
        if (p->id >= 0) { /* {eos} is an alias: write the text of the token */
            TRY(tokenizer_decode(j->tokenizer, &p->id, 1, false, &token, &bytes));
        }
        write_escaped(j->file, token != NULL ? token : l->text + p->first, bytes);
        free(token);
    }
    fputc('\'', j->file);
    return STATUS_OK;
}

/* Writes a tag for a message of this role. `content` is a Jinja expression for the message's text;
 * NULL: only the text before the message. */
static status write_message(const struct jinja_writer *j, enum chat_role role, const char *content)
{
    fputs("{{- ", j->file);
    TRY(write_literal(j, &j->t->before[role]));
    if (content != NULL) {
        if (role == CHAT_ASSISTANT && j->t->lead.count > 0) {
            fputs(" + ", j->file);
            TRY(write_literal(j, &j->t->lead));
        }
        fprintf(j->file, " + %s%s + ", content, j->t->strip ? "|trim" : "");
        TRY(write_literal(j, &j->t->after[role]));
    }
    fputs(" -}}\n", j->file);
    return STATUS_OK;
}

static status write_text_tag(const struct jinja_writer *j, const struct chat_literal *l)
{
    if (l->count > 0) {
        fputs("{{- ", j->file);
        TRY(write_literal(j, l));
        fputs(" -}}\n", j->file);
    }
    return STATUS_OK;
}

static status write_default_system(const struct jinja_writer *j)
{
    const char *text = j->t->default_system;
    if (text == NULL || j->t->system_in_user) {
        return STATUS_OK;
    }
    fputs("{%- if messages[0]['role'] != 'system' -%}\n{%- set default_system = '", j->file);
    write_escaped(j->file, text, strlen(text));
    fputs("' -%}\n", j->file);
    TRY(write_message(j, CHAT_SYSTEM, "default_system"));
    fputs("{%- endif -%}\n", j->file);
    return STATUS_OK;
}

/* Writes a user message that contains the preceding system message (Llama 2). */
static status write_user_with_system(const struct jinja_writer *j)
{
    TRY(write_message(j, CHAT_USER, NULL));
    fputs("{%- if not loop.first and loop.previtem['role'] == 'system' -%}\n", j->file);
    TRY(write_message(j, CHAT_SYSTEM, "loop.previtem['content']"));
    fprintf(j->file, "{%%- endif -%%}\n{{- message['content']%s + ", j->t->strip ? "|trim" : "");
    TRY(write_literal(j, &j->t->after[CHAT_USER]));
    fputs(" -}}\n", j->file);
    return STATUS_OK;
}

static status write_message_loop(const struct jinja_writer *j)
{
    const char *content = "message['content']";
    fputs("{%- for message in messages -%}\n", j->file);
    if (j->t->separator.count > 0) {
        fputs("{%- if not loop.first and loop.previtem['role'] == 'assistant' -%}\n", j->file);
        TRY(write_text_tag(j, &j->t->separator));
        fputs("{%- endif -%}\n", j->file);
    }
    fputs("{%- if message['role'] == 'user' -%}\n", j->file);
    TRY(j->t->system_in_user ? write_user_with_system(j) : write_message(j, CHAT_USER, content));
    fputs("{%- elif message['role'] == 'assistant' -%}\n", j->file);
    TRY(write_message(j, CHAT_ASSISTANT, content));
    if (j->t->system_in_user) {
        fputs("{%- elif message['role'] != 'system' or not loop.first -%}\n", j->file);
    } else {
        fputs("{%- elif message['role'] == 'system' -%}\n", j->file);
        TRY(write_message(j, CHAT_SYSTEM, content));
        fputs("{%- else -%}\n", j->file);
    }
    fputs("{{- raise_exception('unsupported message role or position: ' + message['role']) -}}\n"
          "{%- endif -%}\n{%- endfor -%}\n",
          j->file);
    return STATUS_OK;
}

static status write_template(const struct jinja_writer *j)
{
    TRY(write_text_tag(j, &j->t->begin));
    TRY(write_default_system(j));
    TRY(write_message_loop(j));
    fputs("{%- if add_generation_prompt -%}\n", j->file);
    if (j->t->separator.count > 0) {
        fputs("{%- if messages[-1]['role'] == 'assistant' -%}\n", j->file);
        TRY(write_text_tag(j, &j->t->separator));
        fputs("{%- endif -%}\n", j->file);
    }
    TRY(write_message(j, CHAT_ASSISTANT, NULL));
    fputs("{%- endif -%}\n", j->file);
    return STATUS_OK;
}

status chat_jinja(const struct chat_template *t, const struct tokenizer *tokenizer, char **out,
                  size_t *bytes)
{
    *out = NULL;
    struct jinja_writer j = {.tokenizer = tokenizer, .t = t, .file = open_memstream(out, bytes)};
    REQUIRE(j.file != NULL, STATUS_INTERNAL, "out of memory for a chat template");
    status result = write_template(&j);
    bool written = fclose(j.file) == 0;
    if (result != STATUS_OK || !written) {
        free(*out);
        *out = NULL;
    }
    TRY(result);
    REQUIRE(written, STATUS_INTERNAL, "out of memory for a chat template");
    return STATUS_OK;
}
