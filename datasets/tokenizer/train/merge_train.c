/* Learns merges. The trainers of byte-level BPE and of WordPiece share this code.
 *
 * The words of the corpus are stored one after the other as symbols; neighbors in a word are
 * linked. For each pair of neighboring symbols we store its count, weighted by the counts of
 * its words, and every position at which it was seen. Then, until there are enough tokens:
 *
 *     take the pair with the highest count (of equals, the one with the smaller ids);
 *     at each of its positions that is still valid: join the two symbols, and move the counts of
 *     the pairs with the symbols before and after to the new pairs.
 *
 * A count grows only in the round that creates the pair. The heap may therefore contain counts
 * that are too high: an outdated entry is pushed again with the current count. A round takes as
 * many steps as the pair has positions. The sum over all rounds is at most (symbols of the
 * distinct words) x (depth of a token), however long the words are. */
#include "datasets/tokenizer/train/merge_train.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/heap.h"
#include "base/memory.h"

#define MIN_COUNT 2 /* a pair that occurs once compresses nothing */

struct pair {
    int32_t left;
    int32_t right;
    int64_t count;
    int32_t *positions;
    int32_t position_count; /* some positions may no longer be valid */
    int32_t capacity;
    int32_t round; /* the last round in which the count grew */
    bool merged;
};

struct candidate {
    int64_t count;
    int32_t left;
    int32_t right;
    int64_t pair;
};

void merge_train_free(struct merge_train *t)
{
    for (int64_t i = 0; i < t->pair_count; i++) {
        free(t->pairs[i].positions);
    }
    free(t->symbols);
    free(t->previous);
    free(t->next);
    free(t->word);
    free(t->word_counts);
    free(t->pairs);
    free(t->slots);
    free(t->heap);
    free(t->grown);
    free(t->token_bytes);
    free(t->token_lengths);
    free(t->merges);
    text_map_free(&t->tokens);
    text_store_free(&t->store);
}

static uint64_t find_pair_slot(const struct merge_train *t, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t pos = text_map_hash_int(key) & t->slot_mask;
    while (t->slots[pos] >= 0 &&
           (t->pairs[t->slots[pos]].left != left || t->pairs[t->slots[pos]].right != right)) {
        pos = (pos + 1) & t->slot_mask;
    }
    return pos;
}

static status reserve_slot(struct merge_train *t)
{
    if (t->slots != NULL && (uint64_t)t->pair_count * 2 < t->slot_mask) {
        return STATUS_OK;
    }
    uint64_t size = t->slots == NULL ? (uint64_t)1 << 16 : (t->slot_mask + 1) * 2;
    int64_t *slots = NULL;
    TRY(ALLOCATE(slots, size, "pairs"));
    memset(slots, 0xff, size * sizeof *slots);
    free(t->slots);
    t->slots = slots;
    t->slot_mask = size - 1;
    for (int64_t i = 0; i < t->pair_count; i++) {
        t->slots[find_pair_slot(t, t->pairs[i].left, t->pairs[i].right)] = i;
    }
    return STATUS_OK;
}

static status find_or_add_pair(struct merge_train *t, int32_t left, int32_t right, int64_t *out)
{
    TRY(reserve_slot(t));
    uint64_t pos = find_pair_slot(t, left, right);
    if (t->slots[pos] < 0) {
        TRY(RESERVE(t->pairs, t->pair_capacity, t->pair_count + 1, "pairs of tokens"));
        t->pairs[t->pair_count] = (struct pair){.left = left, .right = right, .round = -1};
        t->slots[pos] = t->pair_count++;
    }
    *out = t->slots[pos];
    return STATUS_OK;
}

/* Adds a position at which left and right are neighbors, and the count of its word. */
static status add_pair_position(struct merge_train *t, int32_t left, int32_t right,
                                int32_t position)
{
    int64_t index = -1;
    TRY(find_or_add_pair(t, left, right, &index));
    struct pair *pair = &t->pairs[index];
    if (pair->position_count == pair->capacity) {
        int32_t capacity = pair->capacity < 2               ? 2
                           : pair->capacity > INT32_MAX / 2 ? INT32_MAX
                                                            : pair->capacity * 2;
        REQUIRE(pair->position_count < INT32_MAX, STATUS_INTERNAL,
                "a pair of tokens has %d positions, the maximum; train on a part of the text",
                pair->position_count);
        TRY(GROW(pair->positions, capacity, "the positions of a pair"));
        pair->capacity = capacity;
    }
    pair->positions[pair->position_count++] = position;
    pair->count += t->word_counts[t->word[position]];
    if (pair->round != t->round) {
        pair->round = t->round;
        TRY(RESERVE(t->grown, t->grown_capacity, t->grown_count + 1, "pairs of tokens"));
        t->grown[t->grown_count++] = index;
    }
    return STATUS_OK;
}

static void reduce_pair_count(struct merge_train *t, int32_t left, int32_t right, int64_t count)
{
    t->pairs[t->slots[find_pair_slot(t, left, right)]].count -= count;
}

static bool is_better(const void *first, const void *second)
{
    const struct candidate *a = first, *b = second;
    if (a->count != b->count) {
        return a->count > b->count;
    }
    return a->left != b->left ? a->left < b->left : a->right < b->right;
}

static status push_pair(struct merge_train *t, int64_t index)
{
    const struct pair *pair = &t->pairs[index];
    if (pair->merged || pair->count < MIN_COUNT) {
        return STATUS_OK;
    }
    TRY(RESERVE(t->heap, t->heap_capacity, t->heap_count + 1, "pairs of tokens"));
    struct candidate candidate = {pair->count, pair->left, pair->right, index};
    heap_push(t->heap, t->heap_count++, &candidate, sizeof candidate, is_better);
    return STATUS_OK;
}

/* Removes the most frequent pair from the heap; *out is its index, -1 if the heap is empty. */
static status pop_most_frequent(struct merge_train *t, int64_t *out)
{
    *out = -1;
    while (t->heap_count > 0) {
        struct candidate top;
        heap_pop(t->heap, t->heap_count--, &top, sizeof top, is_better);
        const struct pair *pair = &t->pairs[top.pair];
        if (pair->merged) {
            continue;
        }
        if (pair->count == top.count) {
            *out = top.pair;
            return STATUS_OK;
        }
        if (pair->count < top.count) { /* outdated; if the count has grown, a newer entry exists */
            TRY(push_pair(t, top.pair));
        }
    }
    return STATUS_OK;
}

status merge_train_add_token(struct merge_train *t, const char *bytes, size_t length, int32_t *out)
{
    struct text_slot *slot;
    bool is_new;
    TRY(text_map_find_or_add(&t->tokens, &t->store, bytes, length, &slot, &is_new));
    if (is_new) {
        slot->value = t->token_count;
        t->token_bytes[t->token_count] = slot->text;
        t->token_lengths[t->token_count] = (uint32_t)length;
        t->token_count++;
    }
    *out = (int32_t)slot->value;
    return STATUS_OK;
}

/* Finds the id of the joined token: a new token, or an existing one with the same bytes. */
static status join_tokens(struct merge_train *t, int32_t left, int32_t right, int32_t *out)
{
    size_t left_bytes = t->token_lengths[left];
    size_t right_bytes = t->token_lengths[right] - t->prefix_bytes;
    char *joined = NULL;
    TRY(ALLOCATE(joined, left_bytes + right_bytes, "a token"));
    memcpy(joined, t->token_bytes[left], left_bytes);
    memcpy(joined + left_bytes, t->token_bytes[right] + t->prefix_bytes, right_bytes);
    status result = merge_train_add_token(t, joined, left_bytes + right_bytes, out);
    free(joined);
    return result;
}

static status merge_at(struct merge_train *t, int32_t pos, int32_t left, int32_t right,
                       int32_t joined)
{
    int32_t second = t->next[pos];
    if (t->symbols[pos] != left || second < 0 || t->symbols[second] != right) {
        return STATUS_OK; /* no longer valid */
    }
    int64_t count = t->word_counts[t->word[pos]];
    int32_t before = t->previous[pos];
    int32_t after = t->next[second];
    t->symbols[pos] = joined;
    t->symbols[second] = -1;
    t->next[pos] = after;
    if (before >= 0) {
        reduce_pair_count(t, t->symbols[before], left, count);
        TRY(add_pair_position(t, t->symbols[before], joined, before));
    }
    if (after >= 0) {
        t->previous[after] = pos;
        reduce_pair_count(t, right, t->symbols[after], count);
        TRY(add_pair_position(t, joined, t->symbols[after], pos));
    }
    return STATUS_OK;
}

static int compare_positions(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static status merge_pair(struct merge_train *t, int64_t index)
{
    struct pair pair = t->pairs[index];
    t->pairs[index].merged = true;
    t->pairs[index].positions = NULL;
    t->pairs[index].position_count = t->pairs[index].capacity = 0;
    t->round++;
    t->grown_count = 0;
    /* Merge from left to right in each word: in "aaa" only the first two symbols are joined. */
    qsort(pair.positions, (size_t)pair.position_count, sizeof *pair.positions, compare_positions);
    int32_t joined = -1;
    status result = join_tokens(t, pair.left, pair.right, &joined);
    for (int32_t i = 0; i < pair.position_count && result == STATUS_OK; i++) {
        result = merge_at(t, pair.positions[i], pair.left, pair.right, joined);
    }
    free(pair.positions);
    TRY(result);
    TRY(RESERVE(t->merges, t->merge_capacity, t->merge_count + 1, "merges"));
    t->merges[t->merge_count++] = (struct merge){pair.left, pair.right, joined};
    for (int64_t i = 0; i < t->grown_count; i++) {
        TRY(push_pair(t, t->grown[i]));
    }
    return STATUS_OK;
}

status merge_train_open(struct merge_train *t, int64_t positions, int64_t words, int64_t max_tokens)
{
    REQUIRE(positions < INT32_MAX, STATUS_DATA,
            "the distinct words of the input have %" PRId64 " symbols, and at most 2 Gi are "
            "supported: train on a part of the text",
            positions);
    size_t capacity = (size_t)positions + 1;
    TRY(ALLOCATE(t->symbols, capacity, "the symbols of distinct words"));
    TRY(ALLOCATE(t->previous, capacity, "the symbols of distinct words"));
    TRY(ALLOCATE(t->next, capacity, "the symbols of distinct words"));
    TRY(ALLOCATE(t->word, capacity, "the symbols of distinct words"));
    TRY(ALLOCATE(t->word_counts, words + 1, "distinct words"));
    TRY(ALLOCATE(t->token_bytes, max_tokens, "tokens"));
    t->max_tokens = max_tokens;
    return ALLOCATE(t->token_lengths, max_tokens, "tokens");
}

void merge_train_add_symbol(struct merge_train *t, int32_t id, bool begins_word)
{
    int32_t pos = (int32_t)t->positions++;
    t->symbols[pos] = id;
    t->previous[pos] = begins_word ? -1 : pos - 1;
    t->next[pos] = -1;
    if (!begins_word) {
        t->next[pos - 1] = pos;
    }
    t->word[pos] = (int32_t)t->words;
}

void merge_train_end_word(struct merge_train *t, int64_t count)
{
    t->word_counts[t->words++] = count;
}

status merge_train_learn(struct merge_train *t)
{
    for (int32_t pos = 0; pos < (int32_t)t->positions; pos++) {
        if (t->next[pos] >= 0) {
            TRY(add_pair_position(t, t->symbols[pos], t->symbols[t->next[pos]], pos));
        }
    }
    for (int64_t i = 0; i < t->pair_count; i++) {
        TRY(push_pair(t, i));
    }
    while (t->token_count < t->max_tokens) {
        int64_t best = -1;
        TRY(pop_most_frequent(t, &best));
        if (best < 0) {
            return STATUS_OK;
        }
        TRY(merge_pair(t, best));
    }
    return STATUS_OK;
}
