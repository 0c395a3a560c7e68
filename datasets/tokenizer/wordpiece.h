/* WordPiece, the model of BERT's tokenizers.
 *
 * From the beginning of a word, the model repeatedly takes the longest piece of the vocabulary that
 * matches. Pieces that continue a word are spelled with a prefix ("##"). */
#pragma once

#include "datasets/text/bert_text.h"
#include "datasets/tokenizer/tokenizer.h"

#define WORDPIECE_PREFIX "##"
#define WORDPIECE_UNKNOWN "[UNK]"
#define WORDPIECE_MAX_PREFIX_BYTES 16
#define WORDPIECE_MAX_WORD_CHARS 100 /* default; a longer word becomes the unknown token */

struct wordpiece_edge {
    uint32_t from; /* node << 8 | byte; UINT32_MAX: free slot */
    uint32_t to;
};

/* Data of a WordPiece tokenizer, in addition to its tokens. */
struct wordpiece {
    struct bert_text_options normalizer;
    bool accents_follow_case; /* the file does not set strip_accents; it equals lowercase */
    bool cleanup;             /* decode removes the space before punctuation */
    int64_t max_word_chars;
    char prefix[WORDPIECE_MAX_PREFIX_BYTES + 1];
    int32_t unknown; /* id of the unknown token */

    /* Derived: a trie of all pieces as a hash table of edges. Node 0 is the root of the pieces that
     * begin a word, node 1 the root of the pieces that continue a word. */
    struct wordpiece_edge *edges;
    uint32_t edge_mask;
    int32_t *ids; /* [nodes] the piece that ends at the node; -1: none */
};

/* wordpiece_build - build the trie from the tokens.
 *
 * Errors    STATUS_DATA: the pieces are too long in total; STATUS_INTERNAL (out of memory) */
status wordpiece_build(struct tokenizer *t);

/* wordpiece_free - free the trie and the struct; NULL is allowed. */
void wordpiece_free(struct wordpiece *w);

/* wordpiece_encode - append the ids of a text without added tokens.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
status wordpiece_encode(const struct tokenizer *t, const char *text, size_t bytes,
                        struct token_list *out);

/* wordpiece_decode - decode ids that have been checked; otherwise like tokenizer_decode.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
status wordpiece_decode(const struct tokenizer *t, const int32_t *ids, int64_t count,
                        bool skip_special, char **out, size_t *out_bytes);

/* wordpiece_train - train a WordPiece tokenizer; see tokenizer_train. */
status wordpiece_train(int64_t vocab_size, const struct corpus_source *source, int workers,
                       struct tokenizer **out);

/* wordpiece_open_vocab - read a tokenizer from folder/vocab.txt, which has one token per line.
 *
 * If the folder contains tokenizer_config.json, its settings do_lower_case, strip_accents and
 * tokenize_chinese_chars apply.
 *
 * Errors    STATUS_NO_INPUT; STATUS_DATA with file and line */
status wordpiece_open_vocab(const char *folder, struct tokenizer **out);

/* wordpiece_save_vocab - write folder/vocab.txt.
 *
 * Writes nothing if an id has no token or a token contains a line end: a line number is an id.
 *
 * Errors    STATUS_WRITE; STATUS_INTERNAL (out of memory) */
status wordpiece_save_vocab(const struct tokenizer *t, const char *folder);
