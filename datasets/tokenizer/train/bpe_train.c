/* Trains a byte-level BPE tokenizer. The words of the corpus are counted once (word_count.h);
 * the symbols are bytes.
 *
 * Ids: the 256 bytes in the order of GPT-2's alphabet, the merges, the end-of-text token. With
 * RoBERTa's special tokens, these come first instead. The trainer of Hugging Face `tokenizers`
 * learns the same merges with a minimum frequency of 2. */
#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "datasets/text/alphabet.h"
#include "datasets/tokenizer/bpe.h"
#include "datasets/tokenizer/train/merge_train.h"
#include "datasets/tokenizer/word_count.h"

static void add_words(struct merge_train *t, const struct word_count *words)
{
    for (size_t i = 0; i < words->map.capacity; i++) {
        const struct text_slot *slot = &words->map.slots[i];
        if (slot->text == NULL) {
            continue;
        }
        for (size_t b = 0; b < slot->bytes; b++) {
            merge_train_add_symbol(t, alphabet_rank((unsigned char)slot->text[b]), b == 0);
        }
        merge_train_end_word(t, slot->value);
    }
}

static status learn_merges(struct merge_train *t, const struct word_count *words,
                           int64_t max_tokens)
{
    int64_t positions = 0;
    for (size_t i = 0; i < words->map.capacity; i++) {
        positions += words->map.slots[i].text != NULL ? (int64_t)words->map.slots[i].bytes : 0;
    }
    TRY(merge_train_open(t, positions, (int64_t)words->map.count, max_tokens));
    for (int rank = 0; rank < 256; rank++) {
        char byte = (char)alphabet_byte(rank);
        int32_t id;
        TRY(merge_train_add_token(t, &byte, 1, &id));
    }
    add_words(t, words);
    return merge_train_learn(t);
}

/* RoBERTa's special tokens, in the order of fairseq's dictionary. */
static const char *const roberta_tokens[] = {"<s>", "<pad>", "</s>", "<unk>", "<mask>"};
enum { ROBERTA_TOKENS = COUNT(roberta_tokens) };

static status add_special_token(struct tokenizer *t, int32_t id, const char *text)
{
    bool is_mask = strcmp(text, "<mask>") == 0; /* absorbs the space before it */
    TRY(tokenizer_set_token(t, id, text, strlen(text)));
    t->tokens[id].in_model = true;
    return tokenizer_register_added(
        t, (struct added_token){.id = id, .special = true, .lstrip = is_mask});
}

/* Moves the bytes and merges to the tokenizer; their ids begin at `first`. */
static status move_tokens(struct merge_train *t, struct tokenizer *tokenizer, int32_t first)
{
    for (int64_t id = 0; id < t->token_count; id++) {
        TRY(tokenizer_set_token(tokenizer, first + id, t->token_bytes[id], t->token_lengths[id]));
        tokenizer->tokens[first + id].in_model = true;
    }
    tokenizer->merges = t->merges;
    tokenizer->merge_count = t->merge_count;
    t->merges = NULL;
    for (int64_t i = 0; i < tokenizer->merge_count; i++) {
        struct merge *m = &tokenizer->merges[i];
        *m = (struct merge){m->left + first, m->right + first, m->result + first};
    }
    tokenizer->pattern = PRETOKENIZER_GPT2;
    return STATUS_OK;
}

static status create_tokenizer(struct merge_train *t, bool roberta, struct tokenizer **out)
{
    int32_t first = roberta ? ROBERTA_TOKENS : 0;
    TRY(tokenizer_allocate(TOKENIZER_BPE, t->token_count + (roberta ? first : 1), out));
    struct tokenizer *tokenizer = *out;
    TRY(move_tokens(t, tokenizer, first));
    for (int32_t i = 0; i < first; i++) {
        TRY(add_special_token(tokenizer, i, roberta_tokens[i]));
    }
    if (roberta) {
        tokenizer->post_processor = POST_PROCESSOR_ROBERTA;
    } else {
        TRY(add_special_token(tokenizer, (int32_t)t->token_count, TOKENIZER_EOS));
    }
    return tokenizer_finish(tokenizer);
}

status bpe_train(int64_t vocab_size, bool roberta, const struct corpus_source *source, int workers,
                 struct tokenizer **out)
{
    int special = roberta ? ROBERTA_TOKENS : 1;
    REQUIRE(vocab_size >= 256 + special && vocab_size <= TOKENIZER_VOCAB_MAX, STATUS_USAGE,
            "--vocab-size %" PRId64 ": bpe needs %d (256 bytes and %s) to %" PRId64, vocab_size,
            256 + special, roberta ? "5 special tokens" : TOKENIZER_EOS, TOKENIZER_VOCAB_MAX);
    struct word_count words;
    TRY(word_count_files(PRETOKENIZER_GPT2, source, workers, &words));
    struct merge_train trainer = {0};
    status result = learn_merges(&trainer, &words, vocab_size - special);
    word_count_free(&words);
    if (result == STATUS_OK) {
        result = create_tokenizer(&trainer, roberta, out);
    }
    merge_train_free(&trainer);
    return result;
}
