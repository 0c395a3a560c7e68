/* Adds special tokens through the text of tokenizer.json, so that the result passes all checks of a
 * file. */
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "datasets/tokenizer/tokenizer_impl.h"

/* Marks a token that is listed already as special. Returns whether it is listed. */
static bool mark_special(json_t *list, const char *token)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *entry = json_array_get(list, i);
        const char *content = json_string_value(json_object_get(entry, "content"));
        if (content != NULL && strcmp(content, token) == 0) {
            json_object_set_new(entry, "special", json_true());
            return true;
        }
    }
    return false;
}

/* Adds the tokens to the list. A token of the vocabulary keeps its id. */
static status extend_list(const struct tokenizer *t, json_t *list, char *const *tokens, int count)
{
    int64_t next = tokenizer_vocab_size(t);
    for (int i = 0; i < count; i++) {
        REQUIRE(tokens[i][0] != '\0', STATUS_USAGE, "an added token is empty");
        if (mark_special(list, tokens[i])) {
            continue;
        }
        int32_t id = tokenizer_find(t, tokens[i]);
        json_t *entry =
            json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id",
                      (json_int_t)(id >= 0 ? id : next), "content", tokens[i], "single_word", 0,
                      "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
        REQUIRE(entry != NULL, STATUS_USAGE, "the added token %d is not valid UTF-8", i + 1);
        REQUIRE(json_array_append_new(list, entry) == 0, STATUS_INTERNAL,
                "out of memory: the added tokens");
        next += id < 0;
    }
    return STATUS_OK;
}

static status parse_text(const json_t *root, struct tokenizer **out)
{
    char *text = json_dumps(root, JSON_COMPACT);
    REQUIRE(text != NULL, STATUS_INTERNAL, "out of memory: a tokenizer");
    status result = tokenizer_from_text(text, strlen(text), "the tokenizer with added tokens", out);
    free(text);
    return result;
}

status tokenizer_add_special(const struct tokenizer *t, char *const *tokens, int count,
                             struct tokenizer **out)
{
    char *text = NULL;
    size_t bytes = 0;
    *out = NULL;
    TRY(tokenizer_to_text(t, &text, &bytes));
    json_t *root = json_loadb(text, bytes, JSON_ALLOW_NUL, NULL);
    free(text);
    json_t *list = json_object_get(root, "added_tokens");
    status result = STATUS_OK;
    if (root != NULL && list == NULL) {
        list = json_array();
        json_object_set_new(root, "added_tokens", list);
    }
    REQUIRE_GOTO(result, done, json_is_array(list), STATUS_INTERNAL, "out of memory: a tokenizer");
    TRY_GOTO(result, done, extend_list(t, list, tokens, count));
    result = parse_text(root, out);
done:
    json_decref(root);
    return result;
}
