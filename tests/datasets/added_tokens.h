/* Copies of tokenizers with more added tokens. */
#pragma once

#include <jansson.h>

#include "datasets/tokenizer/tokenizer.h"
#include "tests/datasets/folder.h"

struct added_content {
    const char *text;
    bool special, rstrip;
};

/* added_tokens_make - return a copy of the tokenizer with these added tokens, the next ids of the
 * vocabulary; the caller destroys it. */
static inline struct tokenizer *added_tokens_make(const struct tokenizer *from,
                                                  const struct added_content *contents, int count)
{
    struct tokenizer *t = NULL;
    char *path = folder_file("added/tokenizer.json");
    int64_t size = tokenizer_vocab_size(from);
    CHECK_OK(tokenizer_save(from, folder_file("added")));
    json_t *root = json_load_file(path, 0, NULL), *list = json_object_get(root, "added_tokens");
    for (int i = 0; i < count; i++) {
        json_t *token =
            json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)size + i, "content",
                      contents[i].text, "single_word", 0, "lstrip", 0, "rstrip", contents[i].rstrip,
                      "normalized", 0, "special", contents[i].special);
        CHECK(json_array_append_new(list, token) == 0);
    }
    CHECK(json_dump_file(root, path, 0) == 0);
    json_decref(root);
    CHECK_OK(tokenizer_open(folder_file("added"), &t));
    return t;
}
