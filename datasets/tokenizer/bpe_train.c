/* Learning the merges of a byte-level tokenizer: the words of the corpus, counted once (word_count.h), as bytes.
 *
 * Ids: 256 bytes in the order of GPT-2's alphabet, the merges, the end token; or RoBERTa's special tokens before them. The merges are those
 * of the Python package's trainer with a minimum frequency of 2. */
#include <string.h>

#include "datasets/tokenizer/alphabet.h"
#include "datasets/tokenizer/merge_train.h"
#include "datasets/tokenizer/word_count.h"

static void lay_out_words(struct merge_train *t, const struct word_count *words)
{
    for (size_t i = 0; i < words->map.capacity; i++) {
        const struct text_slot *slot = &words->map.slots[i];
        if (slot->text == NULL) {
            continue;
        }
        for (size_t b = 0; b < slot->bytes; b++) {
            merge_train_symbol(t, alphabet_rank((unsigned char)slot->text[b]), b == 0);
        }
        merge_train_end_word(t, slot->value);
    }
}

static status learn(struct merge_train *t, const struct word_count *words, int64_t limit)
{
    int64_t positions = 0;
    for (size_t i = 0; i < words->map.capacity; i++) {
        positions += words->map.slots[i].text != NULL ? (int64_t)words->map.slots[i].bytes : 0;
    }
    TRY(merge_train_open(t, positions, (int64_t)words->map.count, limit));
    for (int rank = 0; rank < 256; rank++) {
        char byte = (char)alphabet_byte(rank);
        int32_t id;
        TRY(merge_train_token(t, &byte, 1, &id));
    }
    lay_out_words(t, words);
    return merge_train_learn(t);
}

/* RoBERTa's, in the order of fairseq's dictionary. */
static const char *const roberta_tokens[] = {"<s>", "<pad>", "</s>", "<unk>", "<mask>"};
enum { ROBERTA_TOKENS = sizeof roberta_tokens / sizeof *roberta_tokens };

static status add_special(struct tokenizer *t, int32_t id, const char *text)
{
    bool mask = strcmp(text, "<mask>") == 0; /* a blank before it is its own */
    TRY(tokenizer_set(t, id, text, strlen(text)));
    t->tokens[id].in_model = true;
    return tokenizer_add(t, (struct added_token){.id = id, .special = true, .lstrip = mask});
}

/* Bytes and merges, with ids from `first` on. */
static status fill(struct merge_train *t, struct tokenizer *made, int32_t first)
{
    for (int64_t id = 0; id < t->token_count; id++) {
        TRY(tokenizer_set(made, first + id, t->bytes[id], t->lengths[id]));
        made->tokens[first + id].in_model = true;
    }
    made->merges = t->merges;
    made->merge_count = t->merge_count;
    t->merges = NULL;
    for (int64_t i = 0; i < made->merge_count; i++) {
        struct merge *m = &made->merges[i];
        *m = (struct merge){m->left + first, m->right + first, m->result + first};
    }
    made->pattern = PRETOKENISE_GPT2;
    return STATUS_OK;
}

static status make(struct merge_train *t, bool roberta, struct tokenizer **out)
{
    int32_t first = roberta ? ROBERTA_TOKENS : 0;
    TRY(tokenizer_allocate(TOKENIZER_BPE, t->token_count + (roberta ? first : 1), out));
    struct tokenizer *made = *out;
    TRY(fill(t, made, first));
    for (int32_t i = 0; i < first; i++) {
        TRY(add_special(made, i, roberta_tokens[i]));
    }
    if (roberta) {
        made->around = AROUND_ROBERTA;
    } else {
        TRY(add_special(made, (int32_t)t->token_count, TOKENIZER_EOS));
    }
    return tokenizer_finish(made);
}

status bpe_train(int64_t vocab_size, bool roberta, char *const *files, int count, int workers,
                 struct tokenizer **out)
{
    int special = roberta ? ROBERTA_TOKENS : 1;
    REQUIRE(vocab_size >= 256 + special && vocab_size <= TOKENIZER_VOCAB_LIMIT, STATUS_USAGE,
            "a vocabulary of %lld: bpe takes %d (256 bytes and %s) to %lld", (long long)vocab_size,
            256 + special, roberta ? "5 special tokens" : TOKENIZER_EOS,
            (long long)TOKENIZER_VOCAB_LIMIT);
    struct word_count words;
    TRY(word_count_files(PRETOKENISE_GPT2, files, count, workers, &words));
    struct merge_train training = {0};
    status result = learn(&training, &words, vocab_size - special);
    word_count_free(&words);
    if (result == STATUS_OK) {
        result = make(&training, roberta, out);
    }
    merge_train_free(&training);
    return result;
}
