/* Tokenizers in the files vocab.json and merges.txt, and the tokenizer of ByT5. */
#pragma once

#include "datasets/tokenizer/json_reader_impl.h"

/* tokenizer_byt5_exists - return whether folder/tokenizer_config.json names ByT5Tokenizer. */
bool tokenizer_byt5_exists(const char *folder);

/* tokenizer_byt5_open - make the tokenizer of ByT5 from folder/tokenizer_config.json: byte-level
 * BPE without merges.
 *
 * Errors    STATUS_DATA with the file and the reason */
status tokenizer_byt5_open(const char *folder, struct tokenizer **out);

/* vocab_merges_exists - return whether the folder contains vocab.json and merges.txt. */
bool vocab_merges_exists(const char *folder);

/* vocab_merges_open - read a byte-level BPE tokenizer from vocab.json and merges.txt.
 *
 * With <s>, </s> and <mask> in the vocabulary, the tokenizer has RoBERTa's special tokens,
 * otherwise only <|endoftext|>.
 *
 * Errors    STATUS_NO_INPUT; STATUS_DATA */
status vocab_merges_open(const char *folder, struct tokenizer **out);

/* vocab_merges_read_json - parse a vocab.json.
 *
 * Memory    the caller releases *out with json_decref
 * Errors    as file_read; STATUS_DATA: no JSON, or a key occurs twice */
status vocab_merges_read_json(const char *path, json_t **out);
