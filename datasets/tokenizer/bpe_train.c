/* Learning the merges of a byte-level tokenizer.
 *
 * The words of the corpus are counted once (word_count.h); all their bytes lie one after the other
 * as symbols, neighbours linked. For each pair of neighbouring symbols we keep how often it occurs
 * (weighted by its words' counts) and every position where it was seen. Then, until there are
 * enough tokens:
 *
 *     take the pair of the highest count (of equals, the one with the smaller ids);
 *     at each of its positions that still holds: join the two symbols, and move the counts of the
 *     pair before and the pair after to the pairs that these have become.
 *
 * A count grows only in the round that makes the pair, so a heap whose entries may be too high is
 * enough: an entry that is outdated goes back with the count of now. The work of a round is the
 * number of its positions, and the sum over all rounds is below (bytes of the different words)
 * times (the depth of a token), however long the words are.
 *
 * Ids: 256 bytes in the order of GPT-2's alphabet, the merges, the end token. The merges are those
 * of the Python package's trainer with a minimum frequency of 2. */
#include <stdlib.h>
#include <string.h>

#include "datasets/tokenizer/alphabet.h"
#include "datasets/tokenizer/tokenizer_impl.h"
#include "datasets/tokenizer/word_count.h"

#define LEAST_COUNT 2 /* a pair that is seen once compresses nothing */

struct pair {
    int32_t left;
    int32_t right;
    int64_t count;
    int32_t *positions;
    int32_t seen; /* positions listed; some may not hold any more */
    int32_t room;
    int32_t round; /* the last round that raised the count */
    bool merged;
};

struct candidate {
    int64_t count;
    int32_t left;
    int32_t right;
    int64_t pair;
};

struct training {
    int32_t *symbols; /* -1: joined to the one before */
    int32_t *previous;
    int32_t *next;
    int32_t *word; /* which word a position belongs to */
    int64_t *word_times;
    int64_t positions;

    struct pair *pairs;
    int64_t pair_count;
    int64_t pair_room;
    int64_t *slots; /* hash table over pairs; -1: free */
    uint64_t slot_mask;

    struct candidate *heap;
    int64_t heap_count;
    int64_t heap_room;
    int64_t *raised; /* pairs whose count grew in this round */
    int64_t raised_count;
    int64_t raised_room;
    int32_t round;

    struct text_map tokens; /* bytes -> id */
    struct text_store store;
    const char **bytes; /* id -> bytes */
    uint32_t *lengths;
    int64_t token_count;
    struct merge *merges;
    int64_t merge_count;
    int64_t merge_room;
};

/* Room for one more element in an array that doubles. */
static status grow(void **array, int64_t *room, int64_t count, size_t element_bytes)
{
    if (count < *room) {
        return STATUS_OK;
    }
    int64_t more = *room < 64 ? 64 : *room * 2;
    void *bigger = realloc(*array, (size_t)more * element_bytes);
    REQUIRE(bigger != NULL, STATUS_INTERNAL, "out of memory: a tokenizer's training, %lld entries",
            (long long)more);
    *array = bigger;
    *room = more;
    return STATUS_OK;
}

static void training_free(struct training *t)
{
    for (int64_t i = 0; i < t->pair_count; i++) {
        free(t->pairs[i].positions);
    }
    free(t->symbols);
    free(t->previous);
    free(t->next);
    free(t->word);
    free(t->word_times);
    free(t->pairs);
    free(t->slots);
    free(t->heap);
    free(t->raised);
    free(t->bytes);
    free(t->lengths);
    free(t->merges);
    text_map_free(&t->tokens);
    text_store_free(&t->store);
}

static uint64_t pair_slot(const struct training *t, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t at = text_map_mix(key) & t->slot_mask;
    while (t->slots[at] >= 0 &&
           (t->pairs[t->slots[at]].left != left || t->pairs[t->slots[at]].right != right)) {
        at = (at + 1) & t->slot_mask;
    }
    return at;
}

static status grow_slots(struct training *t)
{
    if (t->slots != NULL && (uint64_t)t->pair_count * 2 < t->slot_mask) {
        return STATUS_OK;
    }
    uint64_t size = t->slots == NULL ? (uint64_t)1 << 16 : (t->slot_mask + 1) * 2;
    int64_t *slots = malloc(size * sizeof *slots);
    REQUIRE(slots != NULL, STATUS_INTERNAL, "out of memory: %llu pairs", (unsigned long long)size);
    memset(slots, 0xff, size * sizeof *slots);
    free(t->slots);
    t->slots = slots;
    t->slot_mask = size - 1;
    for (int64_t i = 0; i < t->pair_count; i++) {
        t->slots[pair_slot(t, t->pairs[i].left, t->pairs[i].right)] = i;
    }
    return STATUS_OK;
}

static status pair_of(struct training *t, int32_t left, int32_t right, int64_t *out)
{
    TRY(grow_slots(t));
    uint64_t at = pair_slot(t, left, right);
    if (t->slots[at] < 0) {
        TRY(grow((void **)&t->pairs, &t->pair_room, t->pair_count, sizeof *t->pairs));
        t->pairs[t->pair_count] = (struct pair){.left = left, .right = right, .round = -1};
        t->slots[at] = t->pair_count++;
    }
    *out = t->slots[at];
    return STATUS_OK;
}

/* One more place where left and right are neighbours. */
static status raise_pair(struct training *t, int32_t left, int32_t right, int32_t position)
{
    int64_t index = -1;
    TRY(pair_of(t, left, right, &index));
    struct pair *pair = &t->pairs[index];
    if (pair->seen == pair->room) {
        int32_t room = pair->room < 2 ? 2 : pair->room > INT32_MAX / 2 ? INT32_MAX : pair->room * 2;
        int32_t *bigger = realloc(pair->positions, (size_t)room * sizeof *bigger);
        REQUIRE(bigger != NULL && pair->seen < INT32_MAX, STATUS_INTERNAL,
                "out of memory: a pair seen %d times", pair->seen);
        pair->positions = bigger;
        pair->room = room;
    }
    pair->positions[pair->seen++] = position;
    pair->count += t->word_times[t->word[position]];
    if (pair->round != t->round) {
        pair->round = t->round;
        TRY(grow((void **)&t->raised, &t->raised_room, t->raised_count, sizeof *t->raised));
        t->raised[t->raised_count++] = index;
    }
    return STATUS_OK;
}

static void lower_pair(struct training *t, int32_t left, int32_t right, int64_t times)
{
    t->pairs[t->slots[pair_slot(t, left, right)]].count -= times;
}

static bool candidate_before(const struct candidate *a, const struct candidate *b)
{
    if (a->count != b->count) {
        return a->count > b->count;
    }
    return a->left != b->left ? a->left < b->left : a->right < b->right;
}

static status heap_push(struct training *t, int64_t index)
{
    const struct pair *pair = &t->pairs[index];
    if (pair->merged || pair->count < LEAST_COUNT) {
        return STATUS_OK;
    }
    TRY(grow((void **)&t->heap, &t->heap_room, t->heap_count, sizeof *t->heap));
    struct candidate candidate = {pair->count, pair->left, pair->right, index};
    int64_t at = t->heap_count++;
    while (at > 0 && candidate_before(&candidate, &t->heap[(at - 1) / 2])) {
        t->heap[at] = t->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    t->heap[at] = candidate;
    return STATUS_OK;
}

static struct candidate heap_pop(struct training *t)
{
    struct candidate top = t->heap[0];
    struct candidate last = t->heap[--t->heap_count];
    int64_t at = 0;
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= t->heap_count) {
            break;
        }
        if (child + 1 < t->heap_count && candidate_before(&t->heap[child + 1], &t->heap[child])) {
            child++;
        }
        if (!candidate_before(&t->heap[child], &last)) {
            break;
        }
        t->heap[at] = t->heap[child];
        at = child;
    }
    t->heap[at] = last;
    return top;
}

/* The index of the most frequent pair, -1 where there is none. */
static status most_frequent(struct training *t, int64_t *out)
{
    *out = -1;
    while (t->heap_count > 0) {
        struct candidate top = heap_pop(t);
        const struct pair *pair = &t->pairs[top.pair];
        if (pair->merged) {
            continue;
        }
        if (pair->count == top.count) {
            *out = top.pair;
            return STATUS_OK;
        }
        if (pair->count < top.count) { /* outdated; one that grew has a newer entry */
            TRY(heap_push(t, top.pair));
        }
    }
    return STATUS_OK;
}

/* The id of left and right joined: a new token, or the one that has these bytes already. */
static status join_tokens(struct training *t, int32_t left, int32_t right, int32_t *out)
{
    size_t left_bytes = t->lengths[left];
    size_t bytes = left_bytes + t->lengths[right];
    char *joined = malloc(bytes);
    REQUIRE(joined != NULL, STATUS_INTERNAL, "out of memory: a token of %zu bytes", bytes);
    memcpy(joined, t->bytes[left], left_bytes);
    memcpy(joined + left_bytes, t->bytes[right], t->lengths[right]);
    struct text_slot *slot = NULL;
    bool is_new = false;
    status result = text_map_slot(&t->tokens, &t->store, joined, bytes, &slot, &is_new);
    free(joined);
    TRY(result);
    if (is_new) {
        slot->value = t->token_count;
        t->bytes[t->token_count] = slot->text;
        t->lengths[t->token_count] = (uint32_t)bytes;
        t->token_count++;
    }
    *out = (int32_t)slot->value;
    return STATUS_OK;
}

static status merge_at(struct training *t, int32_t at, int32_t left, int32_t right, int32_t joined)
{
    int32_t second = t->next[at];
    if (t->symbols[at] != left || second < 0 || t->symbols[second] != right) {
        return STATUS_OK; /* it held once */
    }
    int64_t times = t->word_times[t->word[at]];
    int32_t before = t->previous[at];
    int32_t after = t->next[second];
    t->symbols[at] = joined;
    t->symbols[second] = -1;
    t->next[at] = after;
    if (before >= 0) {
        lower_pair(t, t->symbols[before], left, times);
        TRY(raise_pair(t, t->symbols[before], joined, before));
    }
    if (after >= 0) {
        t->previous[after] = at;
        lower_pair(t, right, t->symbols[after], times);
        TRY(raise_pair(t, joined, t->symbols[after], at));
    }
    return STATUS_OK;
}

static int compare_positions(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static status merge_pair(struct training *t, int64_t index)
{
    struct pair pair = t->pairs[index];
    t->pairs[index].merged = true;
    t->pairs[index].positions = NULL;
    t->pairs[index].seen = t->pairs[index].room = 0;
    t->round++;
    t->raised_count = 0;
    /* From left to right in each word, as in "aaa", where only the first two become one. */
    qsort(pair.positions, (size_t)pair.seen, sizeof *pair.positions, compare_positions);
    int32_t joined = -1;
    status result = join_tokens(t, pair.left, pair.right, &joined);
    for (int32_t i = 0; i < pair.seen && result == STATUS_OK; i++) {
        result = merge_at(t, pair.positions[i], pair.left, pair.right, joined);
    }
    free(pair.positions);
    TRY(result);
    TRY(grow((void **)&t->merges, &t->merge_room, t->merge_count, sizeof *t->merges));
    t->merges[t->merge_count++] = (struct merge){pair.left, pair.right, joined};
    for (int64_t i = 0; i < t->raised_count; i++) {
        TRY(heap_push(t, t->raised[i]));
    }
    return STATUS_OK;
}

static status lay_out_words(struct training *t, const struct word_count *words)
{
    int64_t positions = 0;
    for (size_t i = 0; i < words->map.capacity; i++) {
        positions += words->map.slots[i].text != NULL ? (int64_t)words->map.slots[i].bytes : 0;
    }
    REQUIRE(positions < INT32_MAX, STATUS_DATA,
            "the different words of the input have %lld bytes; at most 2 GiB can be learned from: "
            "train on a part of the text",
            (long long)positions);
    size_t room = (size_t)positions + 1;
    t->symbols = malloc(room * sizeof *t->symbols);
    t->previous = malloc(room * sizeof *t->previous);
    t->next = malloc(room * sizeof *t->next);
    t->word = malloc(room * sizeof *t->word);
    t->word_times = malloc((words->map.count + 1) * sizeof *t->word_times);
    REQUIRE(t->symbols != NULL && t->previous != NULL && t->next != NULL && t->word != NULL &&
                t->word_times != NULL,
            STATUS_INTERNAL, "out of memory: %lld bytes of different words", (long long)positions);
    int32_t at = 0;
    int32_t word = 0;
    for (size_t i = 0; i < words->map.capacity; i++) {
        const struct text_slot *slot = &words->map.slots[i];
        if (slot->text == NULL) {
            continue;
        }
        for (size_t b = 0; b < slot->bytes; b++, at++) {
            t->symbols[at] = alphabet_rank((unsigned char)slot->text[b]);
            t->previous[at] = b == 0 ? -1 : at - 1;
            t->next[at] = b + 1 == slot->bytes ? -1 : at + 1;
            t->word[at] = word;
        }
        t->word_times[word++] = slot->value;
    }
    t->positions = positions;
    return STATUS_OK;
}

static status prepare_tokens(struct training *t, int64_t limit)
{
    t->bytes = calloc((size_t)limit, sizeof *t->bytes);
    t->lengths = calloc((size_t)limit, sizeof *t->lengths);
    REQUIRE(t->bytes != NULL && t->lengths != NULL, STATUS_INTERNAL, "out of memory: %lld tokens",
            (long long)limit);
    for (int rank = 0; rank < 256; rank++) {
        char byte = (char)alphabet_byte(rank);
        struct text_slot *slot;
        bool is_new;
        TRY(text_map_slot(&t->tokens, &t->store, &byte, 1, &slot, &is_new));
        slot->value = rank;
        t->bytes[rank] = slot->text;
        t->lengths[rank] = 1;
    }
    t->token_count = 256;
    return STATUS_OK;
}

static status learn(struct training *t, const struct word_count *words, int64_t limit)
{
    TRY(lay_out_words(t, words));
    TRY(prepare_tokens(t, limit));
    for (int32_t at = 0; at < (int32_t)t->positions; at++) {
        if (t->next[at] >= 0) {
            TRY(raise_pair(t, t->symbols[at], t->symbols[t->next[at]], at));
        }
    }
    for (int64_t i = 0; i < t->pair_count; i++) {
        TRY(heap_push(t, i));
    }
    while (t->token_count < limit) {
        int64_t best = -1;
        TRY(most_frequent(t, &best));
        if (best < 0) {
            return STATUS_OK;
        }
        TRY(merge_pair(t, best));
    }
    return STATUS_OK;
}

static status make(struct training *t, struct tokenizer **out)
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
    struct training training = {0};
    status result = learn(&training, &words, vocab_size - 1);
    word_count_free(&words);
    if (result == STATUS_OK) {
        result = make(&training, out);
    }
    training_free(&training);
    return result;
}
