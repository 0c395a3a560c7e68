/* Learning the merges of a byte-level tokenizer: the words of the corpus, counted once (word_count.h), as bytes.
 *
 * Ids: 256 bytes in the order of GPT-2's alphabet, the merges, the end token. The merges are those
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

static status make(struct merge_train *t, struct tokenizer **out)
{
    TRY(tokenizer_allocate(TOKENIZER_BPE, t->token_count + 1, out));
    struct tokenizer *made = *out;
    for (int64_t id = 0; id < t->token_count; id++) {
        TRY(tokenizer_set(made, id, t->bytes[id], t->lengths[id]));
        made->tokens[id].in_model = true;
    }
    TRY(tokenizer_set(made, t->token_count, TOKENIZER_EOS, strlen(TOKENIZER_EOS)));
    made->tokens[t->token_count].in_model = true;
    made->merges = t->merges;
    made->merge_count = t->merge_count;
    t->merges = NULL;
    made->pattern = PRETOKENISE_GPT2;
    TRY(tokenizer_add(made, (struct added_token){.id = (int32_t)t->token_count, .special = true}));
    return tokenizer_finish(made);
}

status bpe_train(int64_t vocab_size, char *const *files, int count, int workers,
                 struct tokenizer **out)
{
    REQUIRE(vocab_size >= 257 && vocab_size <= TOKENIZER_VOCAB_LIMIT, STATUS_USAGE,
            "a vocabulary of %lld: bpe takes 257 (256 bytes and %s) to %lld", (long long)vocab_size,
            TOKENIZER_EOS, (long long)TOKENIZER_VOCAB_LIMIT);
    struct word_count words;
    TRY(word_count_files(PRETOKENISE_GPT2, files, count, workers, &words));
    struct merge_train training = {0};
    status result = learn(&training, &words, vocab_size - 1);
    word_count_free(&words);
    if (result == STATUS_OK) {
        result = make(&training, out);
    }
    merge_train_free(&training);
    return result;
}
