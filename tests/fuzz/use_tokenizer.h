/* Opens the tokenizer in the folder of a fuzz target and uses it. */
#pragma once

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "datasets/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

static inline status encode_and_decode(const struct tokenizer *t)
{
    static const char text[] =
        "Hello  World's 3,1415 naïve 你好 <|endoftext|>[MASK]\r\n\t\xff\xc3 end";
    struct token_list ids = {0};
    char *decoded = NULL;
    size_t bytes = 0;
    status result = tokenizer_encode(t, text, sizeof text - 1, true, &ids);
    if (result == STATUS_OK) {
        result = tokenizer_decode(t, ids.ids, ids.count, false, &decoded, &bytes);
    }
    for (int64_t i = 0; i < ids.count; i++) {
        fuzz_require(ids.ids[i] >= 0 && ids.ids[i] < tokenizer_vocab_size(t), "ids are valid");
    }
    token_list_free(&ids);
    free(decoded);
    return result;
}

static inline void save_and_compare(const struct tokenizer *t)
{
    char saved[FILE_PATH_BYTES];
    struct tokenizer *again = NULL;
    status result = file_join(saved, fuzz_folder(), "saved");
    /* tokenizer_save does not replace the files of a tokenizer of another kind */
    result = result == STATUS_OK ? file_remove_tree(saved) : result;
    result = result == STATUS_OK ? tokenizer_save(t, saved) : result;
    result = result == STATUS_OK ? tokenizer_open(saved, &again) : result;
    fuzz_require(result == STATUS_OK, status_pending()->text);
    fuzz_require(strcmp(tokenizer_sha256(t), tokenizer_sha256(again)) == 0,
                 "a tokenizer that was saved reads back equal");
    tokenizer_destroy(&again);
}

/* A tokenizer with further special tokens finds them, and keeps the other ids. */
static inline void add_tokens(const struct tokenizer *t)
{
    static char added[] = "<|fuzz|>", unknown[] = "<unk>", letter[] = "a";
    static char *const texts[] = {added, unknown, letter};
    struct tokenizer *extended = NULL;
    status result = tokenizer_add_special(t, texts, 3, &extended);
    if (result == STATUS_OK) {
        int32_t first = tokenizer_find(t, texts[0]), id = tokenizer_find(extended, texts[0]);
        fuzz_require(id >= 0 && (first < 0 || first == id) && tokenizer_is_special(extended, id) &&
                         tokenizer_find_difference(t, extended) < 0,
                     "an added token is special, and no other id changes");
    }
    fuzz_require(result != STATUS_INTERNAL, status_pending()->text);
    status_clear();
    (void)tokenizer_destroy(&extended);
}

static inline status use_tokenizer(void)
{
    struct tokenizer *t = NULL;
    struct token_list pair = {0};
    int64_t first;
    TRY(tokenizer_open(fuzz_folder(), &t));
    save_and_compare(t);
    add_tokens(t);
    status result = encode_and_decode(t);
    if (result == STATUS_OK) {
        result = tokenizer_encode_pair(t, "one text", 8, "another", 7, true, 12, &pair, &first);
    }
    token_list_free(&pair);
    KEEP_FIRST(result, tokenizer_destroy(&t));
    return result;
}
