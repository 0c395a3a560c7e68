/* WordPiece, the model of BERT's tokenizers: a word is cut from its beginning into the longest pieces of the
 * vocabulary; those that go on in a word are spelled with a prefix ("##"). */
#pragma once

#include "datasets/tokenizer/bert_text.h"
#include "datasets/tokenizer/tokenizer.h"

#define WORDPIECE_PREFIX "##"
#define WORDPIECE_UNKNOWN "[UNK]"
#define WORDPIECE_PREFIX_MOST 16
#define WORDPIECE_CHARACTERS 100 /* of a word; a longer one is unknown */

struct wordpiece_edge {
    uint32_t from; /* node << 8 | byte; UINT32_MAX: free */
    uint32_t to;
};

/* What a tokenizer of this kind has beyond its tokens. */
struct wordpiece {
    struct bert_text_options text;
    bool accents_follow_case; /* the file leaves strip_accents to lowercase */
    bool cleanup;             /* decoding draws punctuation to the word before it */
    int64_t characters_most;
    char prefix[WORDPIECE_PREFIX_MOST + 1];
    int32_t unknown;

    struct wordpiece_edge
        *edges;         /* derived: a trie of all pieces, hashed; nodes 0 and 1 are the roots of */
    uint32_t edge_mask; /* pieces that begin a word and of those that go on */
    int32_t *ids;       /* [nodes] the piece that ends here; -1: none */
};

/* wordpiece_build - the trie. */
status wordpiece_build(struct tokenizer *t);
void wordpiece_free(struct wordpiece *w);

/* wordpiece_encode - append the ids of text that holds no added token. */
status wordpiece_encode(const struct tokenizer *t, const char *text, size_t bytes,
                        struct token_list *out);

/* wordpiece_decode - as tokenizer_decode; the ids have been checked. */
status wordpiece_decode(const struct tokenizer *t, const int32_t *ids, int64_t count,
                        bool skip_special, char **out, size_t *out_bytes);

status wordpiece_train(int64_t vocab_size, char *const *files, int count, int workers,
                       struct tokenizer **out);

/* wordpiece_open_vocab - from folder/vocab.txt, a token a line, and folder/tokenizer_config.json where there is
 * one (do_lower_case, strip_accents, tokenize_chinese_chars).  wordpiece_save_vocab - write vocab.txt; nothing
 * where some id has no token.
 *
 * Errors    STATUS_NO_INPUT, STATUS_DATA naming file and line */
status wordpiece_open_vocab(const char *folder, struct tokenizer **out);
status wordpiece_save_vocab(const struct tokenizer *t, const char *folder);
