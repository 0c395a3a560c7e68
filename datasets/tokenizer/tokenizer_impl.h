/* Internal declarations of the tokenizer folder. Only files of this folder and tests include
 * this header.
 *
 * A tokenizer is created in two steps. A reader or trainer (tokenizer_json.c, bpe_train.c, char.c,
 * ...) fills the tokens, merges, added tokens and options. Then tokenizer_finish checks them and
 * builds all derived members: the lookup tables, the compiled pattern and the SHA-256. After that
 * the tokenizer is read-only, so any number of threads may share it. The scratch memory of an
 * encoding is in a struct bpe_encoder, which a thread takes from a pool and returns. */
#pragma once

#include <pthread.h>

#include "base/text_map.h"
#include "datasets/sentencepiece/unigram.h"
#include "datasets/text/decoder.h"
#include "datasets/text/normalizer.h"
#include "datasets/text/pretokenizer.h"
#include "datasets/text/word_split.h"
#include "datasets/tokenizer/tokenizer.h"
#include "datasets/tokenizer/wordpiece.h"

#define TOKENIZER_FILE "tokenizer.json"
#define TARGET_TOKENIZER_FILE "target_tokenizer.json"
#define VOCAB_FILE "vocab.txt"
#define TOKENIZER_FILE_BYTES_MAX ((size_t)64 << 20)
#define TOKENIZER_VOCAB_MAX ((int64_t)1 << 24)
#define TOKENIZER_EOS "<|endoftext|>"

struct token {
    const char *bytes; /* decoded form, in the store; NULL: this id has no token */
    uint32_t length;
    bool literal;        /* the file spells it as is, not in the byte alphabet (alphabet.h) */
    bool in_model;       /* listed in model.vocab */
    bool added;          /* listed in added_tokens */
    bool special;        /* omitted by decode with skip_special */
    bool lstrip, rstrip; /* an added token absorbs the white space before it, after it */
    bool renamed;        /* an added token that the normalizer changes (added_get_text) */
};

/* A merge rule; its rank is its index. */
struct merge {
    int32_t left;
    int32_t right;
    int32_t result;
};

struct added_token {
    int32_t id;
    bool special;
    bool normalized; /* matched only in the text that the others leave */
    bool lstrip, rstrip;
};

/* The post-processor of a byte-level tokenizer: the special tokens around a text and a pair. */
enum post_processor {
    POST_PROCESSOR_NONE,
    POST_PROCESSOR_ROBERTA, /* <s> A </s>, and <s> A </s> </s> B </s> */
    POST_PROCESSOR_BERT,    /* [CLS] A [SEP], and [CLS] A [SEP] B [SEP], as ModernBERT and ALBERT */
    POST_PROCESSOR_BOS,     /* one token before each text, such as Llama 3's <|begin_of_text|> */
    POST_PROCESSOR_EOS,     /* one token after each text, such as T5's </s> */
    POST_PROCESSOR_LANGUAGE_FIRST, /* en_XX A </s>, as in mBART-50 */
    POST_PROCESSOR_LANGUAGE_LAST   /* A </s> en_XX, as in mBART */
};

/* An added token in a set. If `normalized` is true, its text is normalized. */
struct added_entry {
    const char *bytes; /* in the store */
    uint32_t length;
    int32_t id;
};

/* Added tokens in byte order, so that a scan of the text can narrow a range of candidates. */
struct added_set {
    struct added_entry *entries;
    int64_t count;
    uint32_t longest; /* bytes of the longest token */
    bool has_plain;   /* some tokens are not special */
    bool begins[256]; /* whether a token of the set begins with this byte */
};

/* A match: text[start, end) is the token id. id -1: no match up to the end of the text. */
struct added_match {
    int32_t id;
    size_t start;
    size_t end;
    size_t next; /* end of the token without the white space that it absorbs */
};

struct pair_slot {
    uint64_t key; /* left << 32 | right; PAIR_EMPTY: free slot */
    int32_t rank;
};

/* BPE over characters (char_bpe.c), in addition to the tokens and merges. */
struct char_bpe {
    bool byte_fallback;    /* a character without a token becomes the tokens <0x..> of its bytes */
    bool fuse_unk;         /* consecutive unknown characters become one token */
    int32_t unk;           /* -1: an unknown character is an error */
    char prefix[17];       /* spelled before a character that does not begin a word */
    char suffix[17];       /* spelled after the last character of a word */
    bool bert_words;       /* words as BERT's normalizer and pre-tokenizer find them */
    bool has_bert_options; /* the file has a BertNormalizer */
    bool accents_follow_case;
    struct bert_text_options bert;

    /* derived */
    int32_t byte_ids[256]; /* ids of the tokens <0x..>; -1: missing */
    bool separable;        /* no merge crosses a boundary before U+2581 */
};

/* A Unigram model of tokenizer.json (unigram_model.c), in addition to the tokens. */
struct unigram_model {
    struct unigram model; /* its trie and unknown_score are derived */
    int64_t count;        /* of pieces: the ids 0 to count - 1 */
    bool byte_fallback;
    int32_t byte_ids[256]; /* derived: ids of the tokens <0x..>; -1: missing */
};

/* Scratch memory of one thread: scanner state, word cache, merge queue. */
struct bpe_encoder;

struct bpe_encoder_pool {
    pthread_mutex_t lock;
    struct bpe_encoder *idle;
};

struct sentencepiece;

struct tokenizer {
    enum tokenizer_kind kind;
    const char *source_path; /* the file being read, for error messages; NULL: none */
    struct token *tokens;    /* [vocab_size] */
    int64_t vocab_size;
    struct text_store store; /* memory of the token texts */
    struct added_token *added;
    int64_t added_count;

    /* bpe only */
    enum pretokenizer_pattern pattern;
    bool add_prefix_space;
    bool ignore_merges;
    enum post_processor post_processor;
    int32_t bos;      /* the token of POST_PROCESSOR_BOS, otherwise -1 */
    int32_t end;      /* the end token of POST_PROCESSOR_EOS and _LANGUAGE_*, otherwise -1 */
    int32_t language; /* the language token of POST_PROCESSOR_LANGUAGE_*, otherwise -1 */
    struct merge *merges;
    int64_t merge_count;

    struct normalizer normalizer; /* not for wordpiece */
    struct word_split split;      /* before the pattern */
    struct decoder decoder;       /* empty: byte-level */
    struct char_bpe *chars;       /* NULL: the symbols are bytes */

    struct unigram_model *unigram;       /* NULL for the other kinds */
    struct wordpiece *wordpiece;         /* NULL for the other kinds */
    struct sentencepiece *sentencepiece; /* NULL for the other kinds */
    struct sentencepiece *marian[2];     /* of sources and of targets; NULL for the other kinds */
    struct tokenizer *target;            /* of targets with their own vocabulary; NULL: none */

    /* derived by tokenizer_finish */
    struct added_set added_sets[2]; /* index: normalized */
    struct text_map by_bytes;       /* tokens of the model -> id */
    int32_t byte_ids[256];          /* ids of single bytes; -1: missing */
    struct pair_slot *pairs;        /* hash table of the merges */
    uint64_t pair_mask;
    int32_t *char_ids; /* [char_limit] id of each code point; -1: missing */
    uint32_t char_limit;
    struct pretokenizer *pretokenizer;
    struct bpe_encoder_pool *pool;
    int32_t eos;
    struct tokenizer_specials specials;
    char sha256[HASH_TEXT_BYTES];
};

/* Where a part of a text lies that contains no added tokens. */
struct text_place {
    size_t offset;  /* bytes before it, for error messages */
    bool at_start;  /* it is the beginning of the text */
    bool continued; /* the text continues another one, so nothing is put before it */
};

/* tokenizer_allocate - create a tokenizer without tokens, for ids below vocab_size.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
status tokenizer_allocate(enum tokenizer_kind kind, int64_t vocab_size, struct tokenizer **out);

/* tokenizer_set_token - set the bytes of an id.
 *
 * Memory    the bytes are copied
 * Errors    STATUS_INTERNAL (out of memory) */
status tokenizer_set_token(struct tokenizer *t, int64_t id, const char *bytes, size_t length);

/* tokenizer_register_added - add to the list of added tokens; the id must have its bytes already.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
status tokenizer_register_added(struct tokenizer *t, struct added_token token);

/* tokenizer_finish - check the tokenizer and build the derived members.
 *
 * Errors    STATUS_DATA: the tokens or merges are not valid; STATUS_INTERNAL: out of memory, or
 *           the pattern does not compile */
status tokenizer_finish(struct tokenizer *t);

/* tokenizer_from_text - create a tokenizer from the text of a tokenizer.json.
 *
 * Errors    STATUS_DATA with `path`, location and reason */
status tokenizer_from_text(const char *text, size_t bytes, const char *path,
                           struct tokenizer **out);

/* tokenizer_config_read_eos - set the end-of-text token from folder/tokenizer_config.json.
 *
 * Does nothing if the file is missing or does not name a special token of this tokenizer.
 *
 * Errors    STATUS_DATA: the file is not valid JSON */
status tokenizer_config_read_eos(const char *folder, struct tokenizer *t);
