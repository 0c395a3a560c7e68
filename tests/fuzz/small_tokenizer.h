/* A small tokenizer for fuzz targets that need one: bytes and the special tokens of the shipped
 * chat templates, or WordPiece. It is made at the first call. */
#pragma once

#include <jansson.h>

#include "base/file.h"
#include "base/memory.h"
#include "datasets/tokenizer/tokenizer.h"
#include "tests/datasets/train_tokenizer.h"
#include "tests/fuzz/fuzz.h"

static inline void small_tokenizer_add_special(json_t *added, int id, const char *text)
{
    json_array_append_new(added, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", id,
                                           "content", text, "single_word", 0, "lstrip", 0, "rstrip",
                                           0, "normalized", 0, "special", 1));
}

static inline void small_tokenizer_add_specials(const char *folder)
{
    static const char *const texts[] = {
        "<|im_start|>",        "<|im_end|>",       "<s>", "</s>", "<|begin_of_text|>", "<|eot_id|>",
        "<|start_header_id|>", "<|end_header_id|>"};
    char path[FILE_PATH_BYTES];
    fuzz_require(file_join(path, folder, "tokenizer.json") == STATUS_OK, "a path");
    json_t *root = json_load_file(path, 0, NULL), *added = json_object_get(root, "added_tokens");
    int first = 1 + (int)json_integer_value(
                        json_object_get(json_array_get(added, json_array_size(added) - 1), "id"));
    for (int i = 0; i < COUNT(texts); i++) {
        small_tokenizer_add_special(added, first + i, texts[i]);
    }
    fuzz_require(json_dump_file(root, path, 0) == 0, "a tokenizer can be written");
    json_decref(root);
}

/* small_tokenizer - return the tokenizer of a kind, bpe or wordpiece. */
static inline const struct tokenizer *small_tokenizer(enum tokenizer_kind kind)
{
    static struct tokenizer *tokenizers[2];
    static const char text[] = "the quick brown fox jumps over the lazy dog, the lazy dog sleeps. "
                               "What is a fox? It is a small animal. yes no 0 1 2";
    char folder[FILE_PATH_BYTES],
        *path = (char *)fuzz_write_file("corpus.txt", text, sizeof text - 1);
    if (tokenizers[kind] != NULL) {
        return tokenizers[kind];
    }
    status result = file_join(folder, fuzz_folder(), "small");
    KEEP_FIRST(result, train_tokenizer(kind, 300, &path, 1, 1, &tokenizers[kind]));
    if (kind == TOKENIZER_BPE) {
        KEEP_FIRST(result, tokenizer_save(tokenizers[kind], folder));
        KEEP_FIRST(result, tokenizer_destroy(&tokenizers[kind]));
        small_tokenizer_add_specials(folder);
        KEEP_FIRST(result, tokenizer_open(folder, &tokenizers[kind]));
    }
    fuzz_require(result == STATUS_OK, status_pending()->text);
    return tokenizers[kind];
}
