/* The pad token of exported decoders with a head.
 *
 * The classes of transformers read the head at the last token that is not the pad token. Bireme
 * trains and scores a reward model at the end token, so its pad token must not be the end token. A
 * tokenizer without a pad token, such as the tokenizer of GPT-2, gets a new one. The texts of other
 * heads do not end with the end token, so it can be the pad token. */
#pragma once

#include "datasets/tokenizer/tokenizer.h"

enum { PAD_TOKEN_BYTES = 128 };

struct pad_token {
    int32_t id;
    bool is_new; /* the tokenizer does not have it; the id is its vocabulary size */
    char text[PAD_TOKEN_BYTES];
};

/* pad_token_choose - choose the pad token of a tokenizer. It is the pad token of
 * tokenizer_config.json, else a special token with the name of a pad token, else a new token.
 *
 * Errors    STATUS_DATA: tokenizer_config.json is not valid JSON, or every name is taken */
status pad_token_choose(const struct tokenizer *t, const char *tokenizer_folder,
                        struct pad_token *out);

/* pad_token_choose_or_end - choose the pad token for a head of a decoder that is no reward model:
 * the one of tokenizer_config.json, else the end token. Without either, *out is unchanged.
 *
 * Errors    STATUS_DATA: tokenizer_config.json is not valid JSON */
status pad_token_choose_or_end(const struct tokenizer *t, const char *tokenizer_folder,
                               struct pad_token *out);

/* pad_token_write - write the pad token to the tokenizer files of an exported folder.
 *
 * A new token is added to tokenizer.json. tokenizer_config.json and special_tokens_map.json, where
 * they exist, name the token.
 *
 * Errors    STATUS_DATA: a file is not valid JSON; STATUS_WRITE; STATUS_INTERNAL (memory) */
status pad_token_write(const struct pad_token *pad, const char *folder);
