/* A chat template as Jinja, the language of transformers' chat templates: for messages that both can have, what
 * apply_chat_template(messages) makes of it is the text that chat_encode encodes. Blanks and lines of the file itself
 * say nothing, since every tag has its dashes. Tools, and an Alpaca row's `input`, are not in messages there. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "datasets/chat/chat_impl.h"

struct jinja {
    const struct tokenizer *tokenizer;
    const struct chat_template *t;
    FILE *file;
};

static void put_escaped(FILE *file, const char *text, size_t bytes)
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

static status put_literal(const struct jinja *j, const struct chat_literal *l)
{
    fputc('\'', j->file);
    for (int64_t i = 0; i < l->count; i++) {
        const struct chat_part *p = &l->parts[i];
        char *token = NULL;
        size_t bytes = p->bytes;
        if (p->id >= 0) { /* {eos} stands for one */
            TRY(tokenizer_decode(j->tokenizer, &p->id, 1, false, &token, &bytes));
        }
        put_escaped(j->file, token != NULL ? token : l->text + p->first, bytes);
        free(token);
    }
    fputc('\'', j->file);
    return STATUS_OK;
}

/* The text of a role's message: `said` is an expression for what it says, NULL: the role's beginning alone. */
static status put_message(const struct jinja *j, enum chat_role role, const char *said)
{
    fputs("{{- ", j->file);
    TRY(put_literal(j, &j->t->before[role]));
    if (said != NULL) {
        if (role == CHAT_ASSISTANT && j->t->lead.count > 0) {
            fputs(" + ", j->file);
            TRY(put_literal(j, &j->t->lead));
        }
        fprintf(j->file, " + %s%s + ", said, j->t->strip ? "|trim" : "");
        TRY(put_literal(j, &j->t->after[role]));
    }
    fputs(" -}}\n", j->file);
    return STATUS_OK;
}

static status put_text(const struct jinja *j, const struct chat_literal *l)
{
    if (l->count > 0) {
        fputs("{{- ", j->file);
        TRY(put_literal(j, l));
        fputs(" -}}\n", j->file);
    }
    return STATUS_OK;
}

static status put_default_system(const struct jinja *j)
{
    const char *text = j->t->default_system;
    if (text == NULL || j->t->system_in_user) {
        return STATUS_OK;
    }
    fputs("{%- if messages[0]['role'] != 'system' -%}\n{%- set preset = '", j->file);
    put_escaped(j->file, text, strlen(text));
    fputs("' -%}\n", j->file);
    TRY(put_message(j, CHAT_SYSTEM, "preset"));
    fputs("{%- endif -%}\n", j->file);
    return STATUS_OK;
}

/* A system message that stands inside of the user's: Llama 2. */
static status put_user_around_system(const struct jinja *j)
{
    TRY(put_message(j, CHAT_USER, NULL));
    fputs("{%- if not loop.first and loop.previtem['role'] == 'system' -%}\n", j->file);
    TRY(put_message(j, CHAT_SYSTEM, "loop.previtem['content']"));
    fprintf(j->file, "{%%- endif -%%}\n{{- message['content']%s + ", j->t->strip ? "|trim" : "");
    TRY(put_literal(j, &j->t->after[CHAT_USER]));
    fputs(" -}}\n", j->file);
    return STATUS_OK;
}

static status put_messages(const struct jinja *j)
{
    const char *said = "message['content']";
    fputs("{%- for message in messages -%}\n", j->file);
    if (j->t->separator.count > 0) {
        fputs("{%- if not loop.first and loop.previtem['role'] == 'assistant' -%}\n", j->file);
        TRY(put_text(j, &j->t->separator));
        fputs("{%- endif -%}\n", j->file);
    }
    fputs("{%- if message['role'] == 'user' -%}\n", j->file);
    TRY(j->t->system_in_user ? put_user_around_system(j) : put_message(j, CHAT_USER, said));
    fputs("{%- elif message['role'] == 'assistant' -%}\n", j->file);
    TRY(put_message(j, CHAT_ASSISTANT, said));
    if (j->t->system_in_user) {
        fputs("{%- elif message['role'] != 'system' or not loop.first -%}\n", j->file);
    } else {
        fputs("{%- elif message['role'] == 'system' -%}\n", j->file);
        TRY(put_message(j, CHAT_SYSTEM, said));
        fputs("{%- else -%}\n", j->file);
    }
    fputs("{{- raise_exception('no such message here: ' + message['role']) -}}\n"
          "{%- endif -%}\n{%- endfor -%}\n",
          j->file);
    return STATUS_OK;
}

static status put_all(const struct jinja *j)
{
    TRY(put_text(j, &j->t->begin));
    TRY(put_default_system(j));
    TRY(put_messages(j));
    fputs("{%- if add_generation_prompt -%}\n", j->file);
    if (j->t->separator.count > 0) {
        fputs("{%- if messages[-1]['role'] == 'assistant' -%}\n", j->file);
        TRY(put_text(j, &j->t->separator));
        fputs("{%- endif -%}\n", j->file);
    }
    TRY(put_message(j, CHAT_ASSISTANT, NULL));
    fputs("{%- endif -%}\n", j->file);
    return STATUS_OK;
}

status chat_jinja(const struct chat_template *t, const struct tokenizer *tokenizer, char **out,
                  size_t *bytes)
{
    *out = NULL;
    struct jinja j = {.tokenizer = tokenizer, .t = t, .file = open_memstream(out, bytes)};
    REQUIRE(j.file != NULL, STATUS_INTERNAL, "out of memory: a chat template");
    status result = put_all(&j);
    bool written = fclose(j.file) == 0;
    if (result != STATUS_OK || !written) {
        free(*out);
        *out = NULL;
    }
    TRY(result);
    REQUIRE(written, STATUS_INTERNAL, "out of memory: a chat template");
    return STATUS_OK;
}
