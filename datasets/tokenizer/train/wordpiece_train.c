/* Trains a WordPiece vocabulary, like the trainer of Hugging Face `tokenizers`: byte pair merges
 * by count over characters. A character inside a word is a different symbol ("##c") from the
 * same character at the beginning of a word. The pieces are all symbols that existed at any
 * time.
 *
 * Ids: [PAD] [UNK] [CLS] [SEP] [MASK], the alphabet in code point order, its "##" forms in the
 * same order, then the merges. Hugging Face `tokenizers` numbers the "##" forms in hash table
 * order and breaks ties by these numbers. Its vocabulary therefore varies between runs; this one
 * does not.
 *
 * The alphabet is the 1,000 most frequent characters. Words with other characters, and words
 * that are too long to be encoded, are ignored. Pairs that occur once are not merged. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "datasets/tokenizer/train/merge_train.h"
#include "datasets/tokenizer/word_count.h"
#include "datasets/tokenizer/wordpiece.h"

#define ALPHABET_MAX 1000
#define CODE_POINTS 0x110000u

static const char *const specials[] = {"[PAD]", WORDPIECE_UNKNOWN, "[CLS]", "[SEP]", "[MASK]"};

enum { SPECIALS = COUNT(specials) };

struct character {
    uint32_t code;
    int64_t count;
    bool inside; /* occurs after the first character of a word */
    bool in_alphabet;
};

static int compare_counts(const void *a, const void *b)
{
    const struct character *x = *(const struct character *const *)a;
    const struct character *y = *(const struct character *const *)b;
    if (x->count != y->count) {
        return x->count > y->count ? -1 : 1;
    }
    return (x->code > y->code) - (x->code < y->code);
}

static void count_characters(const struct word_count *words, struct character *characters)
{
    for (size_t i = 0; i < words->map.capacity; i++) {
        const struct text_slot *slot = &words->map.slots[i];
        for (size_t pos = 0; slot->text != NULL && pos < slot->bytes;) {
            uint32_t code = 0;
            size_t length = utf8_read(slot->text + pos, slot->bytes - pos, &code);
            characters[code].count += slot->value;
            characters[code].inside = characters[code].inside || pos > 0;
            pos += length;
        }
    }
}

/* Selects the most frequent characters; *pieces is the number of their symbols. */
static status choose_alphabet(struct character *characters, int64_t *pieces)
{
    int64_t count = 0;
    for (uint32_t code = 0; code < CODE_POINTS; code++) {
        characters[code].code = code;
        count += characters[code].count > 0;
    }
    const struct character **order = NULL;
    TRY(ALLOCATE(order, (size_t)count + 1, "characters"));
    count = 0;
    for (uint32_t code = 0; code < CODE_POINTS; code++) {
        if (characters[code].count > 0) {
            order[count++] = &characters[code];
        }
    }
    qsort(order, (size_t)count, sizeof *order, compare_counts);
    *pieces = 0;
    for (int64_t i = 0; i < count && i < ALPHABET_MAX; i++) {
        characters[order[i]->code].in_alphabet = true;
        *pieces += 1 + order[i]->inside;
    }
    free(order);
    return STATUS_OK;
}

static status add_alphabet(struct merge_train *m, const struct character *characters, bool inside)
{
    for (uint32_t code = 0; code < CODE_POINTS; code++) {
        char text[sizeof WORDPIECE_PREFIX + 4] = WORDPIECE_PREFIX;
        size_t prefix = inside ? strlen(WORDPIECE_PREFIX) : 0;
        if (characters[code].in_alphabet && (!inside || characters[code].inside)) {
            int32_t id;
            size_t length = prefix + utf8_write(code, text + prefix);
            TRY(merge_train_add_token(m, text, length, &id));
        }
    }
    return STATUS_OK;
}

/* Returns the number of characters of a word; 0 if one is not in the alphabet or there are
 * too many. */
static int64_t count_usable_symbols(const struct text_slot *slot,
                                    const struct character *characters)
{
    int64_t count = 0;
    for (size_t pos = 0; pos < slot->bytes; count++) {
        uint32_t code = 0;
        pos += utf8_read(slot->text + pos, slot->bytes - pos, &code);
        if (!characters[code].in_alphabet || count == WORDPIECE_MAX_WORD_CHARS) {
            return 0;
        }
    }
    return count;
}

static status add_word(struct merge_train *m, const struct text_slot *slot)
{
    char text[sizeof WORDPIECE_PREFIX + 4] = WORDPIECE_PREFIX;
    size_t prefix = strlen(WORDPIECE_PREFIX);
    for (size_t pos = 0; pos < slot->bytes;) {
        uint32_t code = 0;
        size_t length = utf8_read(slot->text + pos, slot->bytes - pos, &code);
        memcpy(text + prefix, slot->text + pos, length);
        int32_t id;
        TRY(pos == 0 ? merge_train_add_token(m, slot->text, length, &id)
                     : merge_train_add_token(m, text, prefix + length, &id));
        merge_train_add_symbol(m, id, pos == 0);
        pos += length;
    }
    merge_train_end_word(m, slot->value);
    return STATUS_OK;
}

static status learn_merges(struct merge_train *m, const struct word_count *words,
                           struct character *characters, int64_t vocab_size)
{
    count_characters(words, characters);
    int64_t pieces = 0, positions = 0;
    TRY(choose_alphabet(characters, &pieces));
    REQUIRE(pieces > 0, STATUS_DATA, "the input has no words; give files with text");
    REQUIRE(SPECIALS + pieces <= vocab_size, STATUS_USAGE,
            "a vocabulary of %" PRId64 " is too small: this text needs %" PRId64
            " (%d special tokens, and each character at the beginning and inside of words)",
            vocab_size, SPECIALS + pieces, (int)SPECIALS);
    for (size_t i = 0; i < words->map.capacity; i++) {
        const struct text_slot *slot = &words->map.slots[i];
        positions += slot->text != NULL ? count_usable_symbols(slot, characters) : 0;
    }
    TRY(merge_train_open(m, positions, (int64_t)words->map.count, vocab_size - SPECIALS));
    m->prefix_bytes = strlen(WORDPIECE_PREFIX);
    TRY(add_alphabet(m, characters, false));
    TRY(add_alphabet(m, characters, true));
    for (size_t i = 0; i < words->map.capacity; i++) {
        const struct text_slot *slot = &words->map.slots[i];
        if (slot->text != NULL && count_usable_symbols(slot, characters) > 0) {
            TRY(add_word(m, slot));
        }
    }
    return merge_train_learn(m);
}

static status create_tokenizer(const struct merge_train *m, struct tokenizer **out)
{
    TRY(tokenizer_allocate(TOKENIZER_WORDPIECE, SPECIALS + m->token_count, out));
    struct tokenizer *t = *out;
    t->wordpiece->unknown = 1;
    for (int32_t id = 0; id < SPECIALS; id++) {
        TRY(tokenizer_set_token(t, id, specials[id], strlen(specials[id])));
        TRY(tokenizer_register_added(t, (struct added_token){.id = id, .special = true}));
    }
    for (int64_t i = 0; i < m->token_count; i++) {
        TRY(tokenizer_set_token(t, SPECIALS + i, m->token_bytes[i], m->token_lengths[i]));
    }
    for (int64_t id = 0; id < t->vocab_size; id++) {
        t->tokens[id].in_model = true;
        t->tokens[id].literal = true;
    }
    return tokenizer_finish(t);
}

status wordpiece_train(int64_t vocab_size, const struct corpus_source *source, int workers,
                       struct tokenizer **out)
{
    const struct bert_text_options options = {true, true, true, true};
    REQUIRE(vocab_size > SPECIALS && vocab_size <= TOKENIZER_VOCAB_MAX, STATUS_USAGE,
            "a vocabulary of %" PRId64 ": wordpiece takes %d to %" PRId64, vocab_size, SPECIALS + 1,
            TOKENIZER_VOCAB_MAX);
    struct word_count words;
    TRY(word_count_bert(&options, source, workers, &words));
    struct merge_train m = {0};
    struct character *characters = NULL;
    status result = STATUS_OK;
    TRY_GOTO(result, done, ALLOCATE(characters, CODE_POINTS, "an alphabet"));
    TRY_GOTO(result, done, learn_merges(&m, &words, characters, vocab_size));
    result = create_tokenizer(&m, out);
done:
    free(characters);
    merge_train_free(&m);
    word_count_free(&words);
    return result;
}
