/* Learning merges: what the trainers of byte pairs and of WordPiece share.
 *
 * The words of the corpus lie one after the other as symbols, neighbours linked. For each pair of neighbouring
 * symbols we keep how often it occurs (weighted by its words' counts) and every position where it was seen.
 * Then, until there are enough tokens:
 *
 *     take the pair of the highest count (of equals, the one with the smaller ids);
 *     at each of its positions that still holds: join the two symbols, and move the counts of the
 *     pair before and the pair after to the pairs that these have become.
 *
 * A count grows only in the round that makes the pair, so a heap whose entries may be too high is
 * enough: an entry that is outdated goes back with the count of now. The work of a round is the
 * number of its positions, and the sum over all rounds is below (symbols of the different words)
 * times (the depth of a token), however long the words are. */
#include "datasets/tokenizer/merge_train.h"

#include <stdlib.h>
#include <string.h>

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

void merge_train_free(struct merge_train *t)
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

static uint64_t pair_slot(const struct merge_train *t, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t at = text_map_mix(key) & t->slot_mask;
    while (t->slots[at] >= 0 &&
           (t->pairs[t->slots[at]].left != left || t->pairs[t->slots[at]].right != right)) {
        at = (at + 1) & t->slot_mask;
    }
    return at;
}

static status grow_slots(struct merge_train *t)
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

static status pair_of(struct merge_train *t, int32_t left, int32_t right, int64_t *out)
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
static status raise_pair(struct merge_train *t, int32_t left, int32_t right, int32_t position)
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

static void lower_pair(struct merge_train *t, int32_t left, int32_t right, int64_t times)
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

static status heap_push(struct merge_train *t, int64_t index)
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

static struct candidate heap_pop(struct merge_train *t)
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
static status most_frequent(struct merge_train *t, int64_t *out)
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

status merge_train_token(struct merge_train *t, const char *bytes, size_t length, int32_t *out)
{
    struct text_slot *slot;
    bool is_new;
    TRY(text_map_slot(&t->tokens, &t->store, bytes, length, &slot, &is_new));
    if (is_new) {
        slot->value = t->token_count;
        t->bytes[t->token_count] = slot->text;
        t->lengths[t->token_count] = (uint32_t)length;
        t->token_count++;
    }
    *out = (int32_t)slot->value;
    return STATUS_OK;
}

/* The id of left and right joined: a new token, or the one that has these bytes already. */
static status join_tokens(struct merge_train *t, int32_t left, int32_t right, int32_t *out)
{
    size_t left_bytes = t->lengths[left];
    size_t right_bytes = t->lengths[right] - t->prefix_bytes;
    char *joined = malloc(left_bytes + right_bytes);
    REQUIRE(joined != NULL, STATUS_INTERNAL, "out of memory: a token of %zu bytes",
            left_bytes + right_bytes);
    memcpy(joined, t->bytes[left], left_bytes);
    memcpy(joined + left_bytes, t->bytes[right] + t->prefix_bytes, right_bytes);
    status result = merge_train_token(t, joined, left_bytes + right_bytes, out);
    free(joined);
    return result;
}

static status merge_at(struct merge_train *t, int32_t at, int32_t left, int32_t right,
                       int32_t joined)
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

static status merge_pair(struct merge_train *t, int64_t index)
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

status merge_train_open(struct merge_train *t, int64_t positions, int64_t words, int64_t limit)
{
    REQUIRE(positions < INT32_MAX, STATUS_DATA,
            "the different words of the input have %lld symbols; at most 2 Gi can be learned from: "
            "train on a part of the text",
            (long long)positions);
    size_t room = (size_t)positions + 1;
    t->symbols = malloc(room * sizeof *t->symbols);
    t->previous = malloc(room * sizeof *t->previous);
    t->next = malloc(room * sizeof *t->next);
    t->word = malloc(room * sizeof *t->word);
    t->word_times = malloc(((size_t)words + 1) * sizeof *t->word_times);
    t->bytes = calloc((size_t)limit, sizeof *t->bytes);
    t->lengths = calloc((size_t)limit, sizeof *t->lengths);
    t->limit = limit;
    REQUIRE(t->symbols != NULL && t->previous != NULL && t->next != NULL && t->word != NULL &&
                t->word_times != NULL && t->bytes != NULL && t->lengths != NULL,
            STATUS_INTERNAL, "out of memory: %lld symbols of different words, %lld tokens",
            (long long)positions, (long long)limit);
    return STATUS_OK;
}

void merge_train_symbol(struct merge_train *t, int32_t id, bool begins_word)
{
    int32_t at = (int32_t)t->positions++;
    t->symbols[at] = id;
    t->previous[at] = begins_word ? -1 : at - 1;
    t->next[at] = -1;
    if (!begins_word) {
        t->next[at - 1] = at;
    }
    t->word[at] = (int32_t)t->words;
}

void merge_train_end_word(struct merge_train *t, int64_t times)
{
    t->word_times[t->words++] = times;
}

status merge_train_learn(struct merge_train *t)
{
    for (int32_t at = 0; at < (int32_t)t->positions; at++) {
        if (t->next[at] >= 0) {
            TRY(raise_pair(t, t->symbols[at], t->symbols[t->next[at]], at));
        }
    }
    for (int64_t i = 0; i < t->pair_count; i++) {
        TRY(heap_push(t, i));
    }
    while (t->token_count < t->limit) {
        int64_t best = -1;
        TRY(most_frequent(t, &best));
        if (best < 0) {
            return STATUS_OK;
        }
        TRY(merge_pair(t, best));
    }
    return STATUS_OK;
}
