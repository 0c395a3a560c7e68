/* Learning the pieces of a WordPiece tokenizer, as the Python package's trainer does: byte pair merging by count
 * over characters, where a character inside of a word is another symbol ("##c") than the same one at its
 * beginning; the pieces are all symbols that there have been.
 *
 * Ids: [PAD] [UNK] [CLS] [SEP] [MASK], the alphabet by code point, its "##" forms likewise, then the merges. The
 * package numbers the "##" forms in the order of a hash table, and by those numbers it breaks ties: its
 * vocabulary is another one each time, this one is not. The alphabet is the 1,000 most frequent characters;
 * words with others, and words too long to be encoded, teach nothing. Pairs seen once are not merged. */
#include <stdlib.h>
#include <string.h>

#include "datasets/tokenizer/merge_train.h"
#include "datasets/tokenizer/word_count.h"
#include "datasets/tokenizer/wordpiece.h"

#define ALPHABET_MOST 1000
#define CODE_POINTS 0x110000u

static const char *const specials[] = {"[PAD]", WORDPIECE_UNKNOWN, "[CLS]", "[SEP]", "[MASK]"};

enum { SPECIALS = sizeof specials / sizeof *specials };

struct letter {
    uint32_t code;
    int64_t times;
    bool inside; /* occurs after the first character of a word */
    bool kept;
};

static int by_count(const void *a, const void *b)
{
    const struct letter *x = *(const struct letter *const *)a;
    const struct letter *y = *(const struct letter *const *)b;
    if (x->times != y->times) {
        return x->times > y->times ? -1 : 1;
    }
    return (x->code > y->code) - (x->code < y->code);
}

static void count_letters(const struct word_count *words, struct letter *letters)
{
    for (size_t i = 0; i < words->map.capacity; i++) {
        const struct text_slot *slot = &words->map.slots[i];
        for (size_t at = 0; slot->text != NULL && at < slot->bytes;) {
            uint32_t code = 0;
            size_t length = pretokenise_character(slot->text + at, slot->bytes - at, &code);
            letters[code].times += slot->value;
            letters[code].inside = letters[code].inside || at > 0;
            at += length;
        }
    }
}

/* Mark the most frequent ones; *pieces: how many symbols they are. */
static status choose_alphabet(struct letter *letters, int64_t *pieces)
{
    int64_t count = 0;
    for (uint32_t code = 0; code < CODE_POINTS; code++) {
        letters[code].code = code;
        count += letters[code].times > 0;
    }
    const struct letter **order = malloc(((size_t)count + 1) * sizeof *order);
    REQUIRE(order != NULL, STATUS_INTERNAL, "out of memory: %lld characters", (long long)count);
    count = 0;
    for (uint32_t code = 0; code < CODE_POINTS; code++) {
        if (letters[code].times > 0) {
            order[count++] = &letters[code];
        }
    }
    qsort(order, (size_t)count, sizeof *order, by_count);
    *pieces = 0;
    for (int64_t i = 0; i < count && i < ALPHABET_MOST; i++) {
        letters[order[i]->code].kept = true;
        *pieces += 1 + order[i]->inside;
    }
    free(order);
    return STATUS_OK;
}

static status add_letters(struct merge_train *m, const struct letter *letters, bool inside)
{
    for (uint32_t code = 0; code < CODE_POINTS; code++) {
        char text[sizeof WORDPIECE_PREFIX + 4] = WORDPIECE_PREFIX;
        size_t prefix = inside ? strlen(WORDPIECE_PREFIX) : 0;
        if (letters[code].kept && (!inside || letters[code].inside)) {
            int32_t id;
            size_t length = prefix + pretokenise_put(code, text + prefix);
            TRY(merge_train_token(m, text, length, &id));
        }
    }
    return STATUS_OK;
}

/* The characters of a word; 0: one of them is not kept, or there are too many. */
static int64_t usable_symbols(const struct text_slot *slot, const struct letter *letters)
{
    int64_t count = 0;
    for (size_t at = 0; at < slot->bytes; count++) {
        uint32_t code = 0;
        at += pretokenise_character(slot->text + at, slot->bytes - at, &code);
        if (!letters[code].kept || count == WORDPIECE_CHARACTERS) {
            return 0;
        }
    }
    return count;
}

static status lay_out_word(struct merge_train *m, const struct text_slot *slot)
{
    char text[sizeof WORDPIECE_PREFIX + 4] = WORDPIECE_PREFIX;
    size_t prefix = strlen(WORDPIECE_PREFIX);
    for (size_t at = 0; at < slot->bytes;) {
        uint32_t code = 0;
        size_t length = pretokenise_character(slot->text + at, slot->bytes - at, &code);
        memcpy(text + prefix, slot->text + at, length);
        int32_t id;
        TRY(at == 0 ? merge_train_token(m, slot->text, length, &id)
                    : merge_train_token(m, text, prefix + length, &id));
        merge_train_symbol(m, id, at == 0);
        at += length;
    }
    merge_train_end_word(m, slot->value);
    return STATUS_OK;
}

static status learn(struct merge_train *m, const struct word_count *words, struct letter *letters,
                    int64_t vocab_size)
{
    count_letters(words, letters);
    int64_t pieces = 0, positions = 0;
    TRY(choose_alphabet(letters, &pieces));
    REQUIRE(pieces > 0, STATUS_DATA, "the input has no words to learn from");
    REQUIRE(SPECIALS + pieces <= vocab_size, STATUS_USAGE,
            "a vocabulary of %lld is too small: this text needs %lld (%d special tokens, and each "
            "character alone and inside of words)",
            (long long)vocab_size, (long long)(SPECIALS + pieces), (int)SPECIALS);
    for (size_t i = 0; i < words->map.capacity; i++) {
        const struct text_slot *slot = &words->map.slots[i];
        positions += slot->text != NULL ? usable_symbols(slot, letters) : 0;
    }
    TRY(merge_train_open(m, positions, (int64_t)words->map.count, vocab_size - SPECIALS));
    m->prefix_bytes = strlen(WORDPIECE_PREFIX);
    TRY(add_letters(m, letters, false));
    TRY(add_letters(m, letters, true));
    for (size_t i = 0; i < words->map.capacity; i++) {
        const struct text_slot *slot = &words->map.slots[i];
        if (slot->text != NULL && usable_symbols(slot, letters) > 0) {
            TRY(lay_out_word(m, slot));
        }
    }
    return merge_train_learn(m);
}

static status make(const struct merge_train *m, struct tokenizer **out)
{
    TRY(tokenizer_allocate(TOKENIZER_WORDPIECE, SPECIALS + m->token_count, out));
    struct tokenizer *t = *out;
    t->wordpiece->unknown = 1;
    for (int32_t id = 0; id < SPECIALS; id++) {
        TRY(tokenizer_set(t, id, specials[id], strlen(specials[id])));
        TRY(tokenizer_add(t, (struct added_token){.id = id, .special = true}));
    }
    for (int64_t i = 0; i < m->token_count; i++) {
        TRY(tokenizer_set(t, SPECIALS + i, m->bytes[i], m->lengths[i]));
    }
    for (int64_t id = 0; id < t->vocab_size; id++) {
        t->tokens[id].in_model = true;
        t->tokens[id].literal = true;
    }
    return tokenizer_finish(t);
}

status wordpiece_train(int64_t vocab_size, char *const *files, int count, int workers,
                       struct tokenizer **out)
{
    const struct bert_text_options options = {true, true, true, true};
    REQUIRE(vocab_size > SPECIALS && vocab_size <= TOKENIZER_VOCAB_LIMIT, STATUS_USAGE,
            "a vocabulary of %lld: wordpiece takes %d to %lld", (long long)vocab_size, SPECIALS + 1,
            (long long)TOKENIZER_VOCAB_LIMIT);
    struct word_count words;
    TRY(word_count_bert(&options, files, count, workers, &words));
    struct merge_train m = {0};
    struct letter *letters = calloc(CODE_POINTS, sizeof *letters);
    status result = STATUS_OK;
    REQUIRE_GOTO(result, done, letters != NULL, STATUS_INTERNAL, "out of memory: an alphabet");
    TRY_GOTO(result, done, learn(&m, &words, letters, vocab_size));
    result = make(&m, out);
done:
    free(letters);
    merge_train_free(&m);
    word_count_free(&words);
    return result;
}
