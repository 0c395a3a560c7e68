/* Declarations that tokens.c and unigram.c share. */
#pragma once

#include <jansson.h>

#include "datasets/sentencepiece/sentencepiece.h"
#include "trainer/formats/gguf/gguf_impl.h"

/* Types of tokens, with the numbers of the format. SentencePiece has the same numbers. */
enum {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN,
    TOKEN_CONTROL,
    TOKEN_USER_DEFINED,
    TOKEN_UNUSED,
    TOKEN_BYTE
};

/* A token in a list by id; text NULL: no token has this id. */
struct listed_token {
    const char *text;
    int32_t type;
    float score;
};

struct token_table {
    struct gguf_writer *writer;
    const struct export_source *source;
    json_t *document; /* the canonical tokenizer.json; NULL for SentencePiece */
    struct listed_token *tokens;
    int64_t count;
    bool is_wordpiece;
};

/* gguf_set_token - set the token of an id.
 *
 * Memory    the text belongs to the caller
 * Errors    STATUS_UNAVAILABLE if the embedding has no such row */
status gguf_set_token(struct token_table *t, int64_t id, struct listed_token token);

/* gguf_list_pieces - set the tokens of a SentencePiece model.
 *
 * Errors    as gguf_set_token */
status gguf_list_pieces(struct token_table *t, const struct sentencepiece *model);

/* gguf_put_token_lists - write the texts and types of all tokens, and the scores. */
void gguf_put_token_lists(const struct token_table *t, bool has_scores);

/* gguf_put_unigram - write the Unigram tokenizer of tokenizer.json.
 *
 * Errors    STATUS_UNAVAILABLE for steps that llama.cpp does not have; errors of gguf_set_token */
status gguf_put_unigram(struct token_table *t);

/* gguf_put_unigram_pieces - write a Unigram model of SentencePiece.
 *
 * Errors    as in gguf_put_unigram */
status gguf_put_unigram_pieces(struct token_table *t, const struct sentencepiece *model);
