/* What the files of this folder share: the tokenizer's inside. Nothing outside includes this but
 * tests.
 *
 * A tokenizer is made in two steps: a maker (bpe_train.c, char.c, tokenizer_json.c) fills tokens,
 * merges, added tokens and options; tokenizer_finish checks them and builds everything that is
 * derived (tables, the compiled pattern, the name). From then on it is only read, so any number of
 * threads may share it; what a thread needs to write while it encodes lies in an encoder, taken
 * from a pool and given back. */
#pragma once

#include <pthread.h>

#include "datasets/tokenizer/pretokenise.h"
#include "datasets/tokenizer/text_map.h"
#include "datasets/tokenizer/tokenizer.h"
#include "datasets/tokenizer/wordpiece.h"

#define TOKENIZER_FILE "tokenizer.json"
#define VOCAB_FILE "vocab.txt"
#define TOKENIZER_FILE_LIMIT_BYTES ((size_t)64 << 20)
#define TOKENIZER_VOCAB_LIMIT ((int64_t)1 << 24)
#define TOKENIZER_EOS "<|endoftext|>"

struct token {
    const char *bytes; /* what it decodes to, in the store; NULL: no token has this id */
    uint32_t length;
    bool literal;        /* the model's file has it as it is, not in the byte alphabet */
    bool in_model;       /* listed in model.vocab */
    bool added;          /* listed in added_tokens */
    bool special;        /* left out by decode where skip_special is true */
    bool lstrip, rstrip; /* an added token takes the white space before, behind it along */
};

struct merge { /* its rank is its index */
    int32_t left;
    int32_t right;
    int32_t result;
};

struct added_token {
    int32_t id;
    bool special;
    bool normalized; /* looked for after all that are not */
    bool lstrip, rstrip;
};

/* What a byte-level tokenizer's file puts around a text and between two. */
enum tokenizer_around {
    AROUND_NOTHING,
    AROUND_ROBERTA, /* <s> A </s>, and <s> A </s> </s> B </s> */
    AROUND_BEGIN    /* one token before each text: Llama 3's <|begin_of_text|> */
};

/* Added tokens in the order of their bytes, so that a walk down the text narrows a range. */
struct added_set {
    int32_t *ids;
    int64_t count;
    bool begins[256]; /* whether one begins with this byte */
};

struct added_match { /* text[start, end) is the token id; id -1: none is left */
    int32_t id;
    size_t start;
    size_t end;
};

struct pair_slot {
    uint64_t key; /* left << 32 | right; PAIR_EMPTY: free */
    int32_t rank;
};

struct encoder; /* one thread's scratch memory: regex state, word cache, merge queue */

struct encoder_pool {
    pthread_mutex_t lock;
    struct encoder *idle;
};

struct tokenizer {
    enum tokenizer_kind kind;
    const char *origin; /* the file it is being read from, for errors; NULL: learned */
    struct token *tokens;
    int64_t vocab_size;
    struct text_store store;
    struct added_token *added;
    int64_t added_count;

    enum pretokenise_pattern pattern; /* bpe from here */
    bool add_prefix_space;
    bool ignore_merges;
    enum tokenizer_around around;
    int32_t begin; /* of AROUND_BEGIN, else -1 */
    struct merge *merges;
    int64_t merge_count;

    struct wordpiece *wordpiece; /* NULL for the other kinds */

    struct added_set added_sets[2]; /* derived from here: not normalized, normalized */
    struct text_map by_bytes;       /* the model's tokens */
    int32_t byte_ids[256];          /* -1: missing */
    struct pair_slot *pairs;
    uint64_t pair_mask;
    int32_t *char_ids; /* by code point below char_limit; -1: missing */
    uint32_t char_limit;
    struct pretokeniser *pretokeniser;
    struct encoder_pool *pool;
    int32_t eos;
    struct tokenizer_specials specials;
    char sha256[HASH_TEXT_BYTES];
};

/* tokenizer_allocate - an empty tokenizer with room for ids below vocab_size. */
status tokenizer_allocate(enum tokenizer_kind kind, int64_t vocab_size, struct tokenizer **out);
/* tokenizer_set - give an id its bytes (copied). */
status tokenizer_set(struct tokenizer *t, int64_t id, const char *bytes, size_t length);
/* tokenizer_add - note an added token; its id must be set already. */
status tokenizer_add(struct tokenizer *t, struct added_token token);
/* tokenizer_finish - build what is derived. Errors: STATUS_INTERNAL (memory, the pattern) */
status tokenizer_finish(struct tokenizer *t);
/* tokenizer_to_text - the canonical tokenizer.json; *out for free(). */
status tokenizer_to_text(const struct tokenizer *t, char **out, size_t *out_bytes);
/* tokenizer_from_text - from the text of a tokenizer.json; `path` is named in errors. */
status tokenizer_from_text(const char *text, size_t bytes, const char *path,
                           struct tokenizer **out);

/* Encoders. encoder_take never returns one that another thread holds. */
status encoder_take(const struct tokenizer *t, struct encoder **out);
void encoder_give_back(const struct tokenizer *t, struct encoder *encoder);
struct encoder *encoder_next(const struct encoder *encoder); /* in the pool's list */
void encoder_destroy(struct encoder *encoder);

/* added_build - the sets.  added_find - the first added token of a set at or after text[from]. */
status added_build(struct tokenizer *t);
void added_find(const struct tokenizer *t, bool normalized, const char *text, size_t bytes,
                size_t from, struct added_match *match);

/* bpe_build - the pair table and the byte ids from tokens and merges. */
status bpe_build(struct tokenizer *t);
/* bpe_encode - append the ids of text that holds no added token; offset is added to the byte that
 * an error names. */
status bpe_encode(const struct tokenizer *t, struct encoder *encoder, const char *text,
                  size_t bytes, size_t offset, struct token_list *out);
status bpe_train(int64_t vocab_size, bool roberta, char *const *files, int count, int workers,
                 struct tokenizer **out);

/* char_build - the code point table.  char_encode - as bpe_encode. */
status char_build(struct tokenizer *t);
status char_encode(const struct tokenizer *t, const char *text, size_t bytes, size_t offset,
                   struct token_list *out);
status char_train(int64_t vocab_size, char *const *files, int count, struct tokenizer **out);

/* tokenizer_config_end - the end token, where the folder's tokenizer_config.json names one of the tokenizer's. */
status tokenizer_config_end(const char *folder, struct tokenizer *t);
