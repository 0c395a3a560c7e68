/* Recognizes the Jinja chat templates that are equal to a shipped template: the published texts,
 * and the texts that chat_jinja writes. Templates are compared in a normal form. Blanks inside of
 * tags and between them are removed where transformers ignores them (trim_blocks, lstrip_blocks,
 * dashes).
 *
 * Source    ChatML: the template of TRL's clone_chat_template and of the transformers manual.
 *           Llama 3: tokenizer_config.json of Meta-Llama-3-8B-Instruct. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "datasets/chat/chat_impl.h"

enum { JINJA_BYTES = 1 << 20 };
#define BLANKS " \t\r\n"

static const struct {
    const char *name, *jinja;
} published[] = {
    {"chatml", "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
               "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt "
               "%}{{ '<|im_start|>assistant\\n' }}{% endif %}"},
    {"chatml", "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + "
               "message['content'] + '<|im_end|>\\n'}}{% endfor %}{% if add_generation_prompt "
               "%}{{ '<|im_start|>assistant\\n' }}{% endif %}"},
    {"llama-3",
     "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = "
     "'<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | "
     "trim "
     "+ '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif "
     "%}{{ "
     "content }}{% endfor %}{% if add_generation_prompt %}{{ "
     "'<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"}};

/* ---- the normal form ---- */

/* Writes a tag without its dashes, and without blanks outside of quotes. */
static void write_tag(FILE *out, const char *tag, size_t bytes)
{
    char quote = '\0';
    for (size_t i = 0; i < bytes; i++) {
        char c = tag[i];
        bool is_dash = c == '-' && (i == 2 || i + 3 == bytes);
        if (quote == '\0' && (is_dash || strchr(BLANKS, c) != NULL)) {
            continue;
        }
        if (c == '\\' && i + 1 < bytes && quote != '\0') {
            fputc(c, out);
            c = tag[++i];
        } else if (c == '\n') {
            fputs("\\n", out);
            continue;
        } else if (quote == '\0' ? c == '\'' || c == '"' : c == quote) {
            quote = quote == '\0' ? c : '\0';
            c = '\'';
        }
        fputc(c, out);
    }
}

/* Writes the text between two tags, without the blanks that transformers ignores. `before` and
 * `after` are the tags; NULL: the beginning or the end of the template. */
static void write_between(FILE *out, const char *text, size_t bytes, const char *before_end,
                          const char *after)
{
    size_t first = 0;
    bool cut_end = after != NULL && after[2] == '-';
    if (before_end != NULL && before_end[-3] == '-') {
        first += strspn(text, BLANKS);
    } else if (before_end != NULL && before_end[-2] == '%' && bytes > 0 && text[0] == '\n') {
        first = 1; /* trim_blocks */
    }
    first = first < bytes ? first : bytes;
    size_t end = bytes, line = bytes;
    while (end > first && cut_end && strchr(BLANKS, text[end - 1]) != NULL) {
        end--;
    }
    while (line > 0 && (text[line - 1] == ' ' || text[line - 1] == '\t')) {
        line--;
    }
    bool at_line_start = line > 0 ? text[line - 1] == '\n' : before_end == NULL;
    if (!cut_end && after != NULL && after[1] == '%' && at_line_start) {
        end = line > first ? line : first; /* lstrip_blocks */
    }
    if (after == NULL && end > first && text[end - 1] == '\n') {
        end--; /* Jinja removes one newline at the end */
    }
    fwrite(text + first, 1, end - first, out);
}

/* Returns the first pair of characters in a text; NULL: there is none. Unlike strstr under the
 * address sanitizer, it does not read the text beyond the pair. */
static const char *find_pair(const char *text, const char pair[2])
{
    for (; *text != '\0'; text++) {
        if (text[0] == pair[0] && text[1] == pair[1]) {
            return text;
        }
    }
    return NULL;
}

/* Finds a tag at or after text. *found is the result of the last call for this tag, so that a
 * template is searched once. */
static void find_tag(const char *text, const char *tag, const char **found)
{
    if (*found != NULL && *found < text) {
        *found = find_pair(text, tag);
    }
}

/* Returns the normal form; NULL: not a template, or out of memory. */
static char *normalize_jinja(const char *text)
{
    char *normal = NULL;
    size_t bytes = 0;
    const char *before_end = NULL, *expression = find_pair(text, "{{"),
               *block = find_pair(text, "{%");
    FILE *out = open_memstream(&normal, &bytes);
    while (out != NULL) {
        find_tag(text, "{{", &expression);
        find_tag(text, "{%", &block);
        const char *tag =
            expression == NULL || (block != NULL && block < expression) ? block : expression;
        const char *end = tag == NULL ? NULL : find_pair(tag + 2, tag[1] == '%' ? "%}" : "}}");
        size_t between = end != NULL ? (size_t)(tag - text) : strlen(text);
        write_between(out, text, between, before_end, end != NULL ? tag : NULL);
        if (end == NULL) {
            break;
        }
        write_tag(out, tag, (size_t)(end + 2 - tag));
        text = before_end = end + 2;
    }
    if (out != NULL) {
        fclose(out);
    }
    return normal;
}

static bool is_same_template(const char *a, const char *b)
{
    char *first = normalize_jinja(a), *second = normalize_jinja(b);
    bool same = first != NULL && second != NULL && strcmp(first, second) == 0;
    free(first);
    free(second);
    return same;
}

/* ---- recognition ---- */

/* Returns whether a text is published for a shipped template. */
static bool is_published(const char *text, const char *name)
{
    bool same = false;
    for (int i = 0; i < COUNT(published); i++) {
        same = same ||
               (strcmp(published[i].name, name) == 0 && is_same_template(text, published[i].jinja));
    }
    return same;
}

/* Returns whether a text is equal to a shipped template, which the tokenizer can encode: published,
 * or written by chat_jinja. */
static bool is_shipped(const char *text, const char *name, const struct tokenizer *tokenizer)
{
    struct chat_template *t = NULL;
    char *jinja = NULL;
    size_t bytes = 0;
    bool same = chat_open_shipped(name, tokenizer, &t) == STATUS_OK &&
                chat_jinja(t, tokenizer, &jinja, &bytes) == STATUS_OK &&
                (is_published(text, name) || is_same_template(text, jinja));
    status_clear(); /* the tokenizer can lack the template's special tokens */
    free(jinja);
    chat_close(&t);
    return same;
}

const char *chat_recognize_jinja(const char *text, const struct tokenizer *tokenizer)
{
    static const char *const names[] = {"chatml", "alpaca", "llama-2", "llama-3"};
    for (int i = 0; i < COUNT(names); i++) {
        if (is_shipped(text, names[i], tokenizer)) {
            return names[i];
        }
    }
    return NULL;
}

/* ---- folders ---- */

/* Reads the template of tokenizer_config.json, as in older folders. */
static char *read_config_template(const char *folder)
{
    char path[FILE_PATH_BYTES], *text = NULL, *found = NULL;
    size_t bytes = 0;
    if (file_join(path, folder, "tokenizer_config.json") == STATUS_OK && file_exists(path) &&
        file_read(path, JINJA_BYTES, &text, &bytes) == STATUS_OK) {
        json_t *root = json_loadb(text, bytes, JSON_DECODE_INT_AS_REAL, NULL);
        const char *jinja = json_string_value(json_object_get(root, "chat_template"));
        found = jinja != NULL ? strdup(jinja) : NULL;
        json_decref(root);
    }
    status_clear();
    free(text);
    return found;
}

status chat_read_jinja(const char *folder, char **out)
{
    char path[FILE_PATH_BYTES];
    size_t bytes = 0;
    *out = NULL;
    TRY(file_join(path, folder, "chat_template.jinja"));
    if (file_exists(path)) {
        return file_read(path, JINJA_BYTES, out, &bytes);
    }
    *out = read_config_template(folder);
    return STATUS_OK;
}
