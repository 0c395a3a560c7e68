#include "trainer/inference/prediction/text_input.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/text.h"
#include "base/utf8.h"

status text_input_check(const struct text *text)
{
    const char *nul = text->count > 0 ? memchr(text->bytes, '\0', text->count) : NULL;
    REQUIRE(nul == NULL, STATUS_DATA, "byte %zu is NUL, so this is not text",
            (size_t)(nul - text->bytes) + 1);
    json_t *valid = json_stringn(text->count > 0 ? text->bytes : "", text->count);
    bool is_valid = valid != NULL;
    json_decref(valid);
    REQUIRE(is_valid, STATUS_DATA, "the text is not valid UTF-8; " UTF8_REMEDY);
    return STATUS_OK;
}

status text_input_encode_masked(const struct session *s, const struct text *text,
                                const struct text *pair, struct token_list *ids, int64_t *first)
{
    return tokenizer_encode_pair(s->tokenizer, text->bytes, text->count, pair->bytes, pair->count,
                                 true, 0, ids, first);
}

status text_input_require_mask(const struct session *s, const struct token_list *ids,
                               const struct text *text)
{
    int32_t mask = tokenizer_get_specials(s->tokenizer).mask;
    for (int64_t i = 0; i < ids->count; i++) {
        if (ids->ids[i] == mask) {
            return STATUS_OK;
        }
    }
    char *mask_text = NULL, shown[64];
    TRY(tokenizer_decode(s->tokenizer, &mask, 1, false, &mask_text, NULL));
    snprintf(shown, sizeof shown, "%s", mask_text);
    free(mask_text);
    RAISE(STATUS_DATA,
          "the text has no mask token; write %s in place of the word to predict: '%.*s'", shown,
          text->count < 100 ? (int)text->count : 100, text->count > 0 ? text->bytes : "");
}

struct text text_input_next_word(struct text *rest)
{
    size_t begin = 0;
    while (begin < rest->count && text_is_space(rest->bytes[begin])) {
        begin++;
    }
    size_t end = begin;
    while (end < rest->count && !text_is_space(rest->bytes[end])) {
        end++;
    }
    struct text word = {rest->bytes + begin, end - begin};
    *rest = (struct text){rest->bytes + end, rest->count - end};
    return word;
}

static status add_special(const struct session *s, int32_t id, struct token_list *ids)
{
    if (!recipe_architecture_is_encoder(s->recipe.model.architecture)) {
        return STATUS_OK;
    }
    REQUIRE(id >= 0, STATUS_DATA,
            "the tokenizer has no [CLS] or no [SEP] token, which an encoder needs");
    return token_list_add(ids, id);
}

status text_input_encode_words(const struct session *s, const struct text *text,
                               struct token_list *ids, struct token_list *begins)
{
    struct tokenizer_specials special = tokenizer_get_specials(s->tokenizer);
    struct text rest = *text;
    TRY(add_special(s, special.cls, ids));
    for (struct text word; word = text_input_next_word(&rest), word.count > 0;) {
        int64_t begin = 0;
        TRY(text_pair_encode_word(s->tokenizer, &word, begins->count == 0, ids, &begin));
        TRY(token_list_add(begins, (int32_t)begin));
    }
    REQUIRE(begins->count > 0, STATUS_DATA,
            "the text contains no word; give a text that is not empty");
    return add_special(s, special.sep, ids);
}
