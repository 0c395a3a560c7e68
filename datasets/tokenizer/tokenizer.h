/* Text to ids and back. Kinds: `bpe` (byte-level, as GPT-2), `wordpiece` (as BERT), `char`.
 *
 * A tokenizer lives in a folder as tokenizer.json in the Hugging Face `tokenizers` format (and, for
 * `char`, in the same format with a one-character vocabulary; for `wordpiece` vocab.txt lies beside it, and is
 * read where it is alone). Immutable once made: encode and decode may run in several threads at once. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"
#include "base/status.h"

struct tokenizer;

enum tokenizer_kind { TOKENIZER_BPE, TOKENIZER_WORDPIECE, TOKENIZER_CHAR };

/* Ids that grow as needed; ids are int32 everywhere. Free with token_list_free. */
struct token_list {
    int32_t *ids;
    int64_t count;
    int64_t capacity;
};
void token_list_free(struct token_list *list);

/* token_list_reserve - room for `more` further ids.  Errors: STATUS_INTERNAL */
status token_list_reserve(struct token_list *list, int64_t more);

/* tokenizer_train - learn a tokenizer of at most vocab_size ids from the texts of these files.
 *
 * For bpe: 256 bytes first, merges by count (ties: the pair with the smaller ids; pairs seen once
 * are not merged, so there may be fewer ids), and the special token <|endoftext|> last. For wordpiece: [PAD]
 * [UNK] [CLS] [SEP] [MASK], characters, pieces, of text as bert-base-uncased cleans it. For char: every character of the text in order of code points, no special token; vocab_size is only checked
 * as a limit (0: none).
 * Errors    STATUS_NO_INPUT, STATUS_DATA (char: invalid UTF-8, with the byte offset) */
status tokenizer_train(enum tokenizer_kind kind, int64_t vocab_size, char *const *files, int count,
                       int workers, struct tokenizer **out);

/* tokenizer_train_roberta - a byte-level tokenizer for encoders: <s> <pad> </s> <unk> <mask> first, as RoBERTa's ids
 * 0 to 4 (there <mask> is the last), then bytes and merges. */
status tokenizer_train_roberta(int64_t vocab_size, char *const *files, int count, int workers,
                               struct tokenizer **out);

/* tokenizer_exists - whether the folder holds one. */
bool tokenizer_exists(const char *folder);

/* tokenizer_open - read folder/tokenizer.json; where there is none, folder/vocab.txt.
 *
 * Errors    STATUS_NO_INPUT, STATUS_DATA naming file, place and reason (an unsupported part of the
 *           format is refused by name, never ignored) */
status tokenizer_open(const char *folder, struct tokenizer **out);

/* tokenizer_save - write folder/tokenizer.json (the folder is made), for wordpiece vocab.txt too. Same
 * tokenizer, same bytes. */
status tokenizer_save(const struct tokenizer *t, const char *folder);
status tokenizer_destroy(struct tokenizer **t);

enum tokenizer_kind tokenizer_kind_of(const struct tokenizer *t);
int64_t tokenizer_vocab_size(const struct tokenizer *t); /* largest id + 1 */
int32_t tokenizer_eos(const struct tokenizer *t);        /* <|endoftext|>, </s>, ...; -1: none */

/* tokenizer_begin - the token that its file puts before each text and nothing behind (Llama 3's <|begin_of_text|>); -1:
 * none. tokenizer_encode does not add it; tokenizer_put_begin appends it, where there is one. */
int32_t tokenizer_begin(const struct tokenizer *t);
status tokenizer_put_begin(const struct tokenizer *t, struct token_list *out);

/* tokenizer_sha256 - of the canonical tokenizer.json: names the tokenizer in shards and
 * checkpoints. */
const char *tokenizer_sha256(const struct tokenizer *t);

/* The tokens that the inputs of encoders such as BERT are made of, by their usual names ([CLS] or <s>, ...);
 * -1: the tokenizer has none. */
struct tokenizer_specials {
    int32_t cls, sep, pad, mask, unknown;
};
struct tokenizer_specials tokenizer_specials_of(const struct tokenizer *t);

/* tokenizer_is_roberta - whether its file puts <s> A </s> </s> B </s> around texts. */
bool tokenizer_is_roberta(const struct tokenizer *t);

/* tokenizer_is_special - a special token, or an id without a token. */
bool tokenizer_is_special(const struct tokenizer *t, int32_t id);

/* tokenizer_continues - whether a token goes on in the word of the token before it ("##ing"); special tokens do
 * not. For bpe: whether it begins without white space. */
bool tokenizer_continues(const struct tokenizer *t, int32_t id);

/* tokenizer_find - the id of a whole token by its text (special tokens too); -1: none. */
int32_t tokenizer_find(const struct tokenizer *t, const char *text);

/* tokenizer_encode - append the ids of text[bytes] to *out.
 *
 * Special tokens are recognised in the text only where `special` is true.
 * Errors    STATUS_DATA: char: a character that is not in the vocabulary, with its byte offset */
status tokenizer_encode(const struct tokenizer *t, const char *text, size_t bytes, bool special,
                        struct token_list *out);

/* tokenizer_decode - the bytes of ids; *out is the caller's, for free(), NUL-terminated.
 *
 * Special tokens are left out where skip_special is true.
 * Errors    STATUS_DATA: an id outside of the vocabulary, with its index */
status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, int64_t count,
                        bool skip_special, char **out, size_t *out_bytes);

/* tokenizer_encode_pair - append [CLS] a [SEP], or [CLS] a [SEP] b [SEP] where b is not NULL; RoBERTa's is
 * <s> a </s> </s> b </s>.
 *
 * At most `most` ids (0: any number): the longer of the two texts gives way first, at its end, as `transformers`
 * truncates. *first is the number of ids of the first segment, with its [CLS] and [SEP] (both </s>).
 * Errors    STATUS_DATA: no [CLS] or [SEP] in the vocabulary, and as tokenizer_encode; STATUS_USAGE: `most` is
 *           below the special tokens' number */
status tokenizer_encode_pair(const struct tokenizer *t, const char *a, size_t a_bytes,
                             const char *b, size_t b_bytes, bool special, int64_t most,
                             struct token_list *out, int64_t *first);
