#include "trainer/inference/server/token_json_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

/* Decodes a token. An id without a token has the text "". */
static void decode_token(const struct tokenizer *t, int32_t id, char **text, size_t *bytes)
{
    *text = NULL;
    *bytes = 0;
    if (tokenizer_decode_continued(t, &id, 1, false, text, bytes) != STATUS_OK) {
        status_clear();
    }
}

/* Returns the bytes as a string. Bytes that are not UTF-8 become "bytes:\xe2\x80", as in the OpenAI
 * API. */
static json_t *make_token_text(const char *text, size_t bytes)
{
    json_t *value = json_stringn(text != NULL ? text : "", bytes);
    if (value == NULL) {
        char *escaped = malloc(4 * bytes + 7);
        if (escaped == NULL) {
            return NULL;
        }
        memcpy(escaped, "bytes:", 7);
        for (size_t i = 0; i < bytes; i++) {
            snprintf(escaped + 6 + 4 * i, 5, "\\x%02x", (unsigned char)text[i]);
        }
        value = json_string(escaped);
        free(escaped);
    }
    return value;
}

static json_t *make_top_object(const struct tokenizer *t, const struct engine_token *token)
{
    json_t *object = json_object();
    for (int i = 0; i < token->top_count; i++) {
        char *text = NULL;
        size_t bytes = 0;
        decode_token(t, token->top_ids[i], &text, &bytes);
        json_t *key = make_token_text(text, bytes);
        size_t length = json_string_length(key);
        if (key != NULL && json_object_getn(object, json_string_value(key), length) == NULL) {
            json_object_setn_new(object, json_string_value(key), length,
                                 json_real(token->top_log_probabilities[i]));
        }
        json_decref(key);
        free(text);
    }
    return object;
}

json_t *token_json_completion(const struct tokenizer *t, const struct engine_token *tokens,
                              int64_t count, int64_t *text_offset)
{
    json_t *texts = json_array(), *values = json_array(), *tops = json_array(),
           *offsets = json_array();
    for (int64_t i = 0; i < count; i++) {
        char *text = NULL;
        size_t bytes = 0;
        bool has_value = tokens[i].top_count >= 0;
        decode_token(t, tokens[i].id, &text, &bytes);
        json_array_append_new(texts, make_token_text(text, bytes));
        json_array_append_new(offsets, json_integer(*text_offset));
        json_array_append_new(values,
                              has_value ? json_real(tokens[i].log_probability) : json_null());
        json_array_append_new(tops, has_value ? make_top_object(t, &tokens[i]) : json_null());
        *text_offset += utf8_count_characters(text, bytes);
        free(text);
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", texts, "token_logprobs", values,
                     "top_logprobs", tops, "text_offset", offsets);
}

static json_t *make_chat_token(const struct tokenizer *t, int32_t id, double log_probability)
{
    char *text = NULL;
    size_t bytes = 0;
    json_t *list = json_array();
    decode_token(t, id, &text, &bytes);
    for (size_t i = 0; i < bytes; i++) {
        json_array_append_new(list, json_integer((unsigned char)text[i]));
    }
    json_t *value = json_pack("{s:o, s:f, s:o}", "token", make_token_text(text, bytes), "logprob",
                              log_probability, "bytes", list);
    free(text);
    return value;
}

json_t *token_json_chat(const struct tokenizer *t, const struct engine_token *tokens, int64_t count)
{
    json_t *content = json_array();
    for (int64_t i = 0; i < count; i++) {
        json_t *value = make_chat_token(t, tokens[i].id, tokens[i].log_probability);
        json_t *top = json_array();
        for (int k = 0; k < tokens[i].top_count; k++) {
            json_array_append_new(
                top, make_chat_token(t, tokens[i].top_ids[k], tokens[i].top_log_probabilities[k]));
        }
        json_object_set_new(value, "top_logprobs", top);
        json_array_append_new(content, value);
    }
    return json_pack("{s:o}", "content", content);
}
