/* Byte-level byte pair encoding: merges the bytes of each word by rank.
 *
 * A word starts as the ids of its bytes. In each step, the pair of neighbors with the lowest rank
 * (of equals, the leftmost) is replaced by its result. The steps end if no pair has a merge:
 *
 *     while (there are pairs): i = argmin rank(s[i], s[i+1]); s[i] = result; remove s[i+1]
 *
 * Short words do this over a small array. A megabyte without white space is one word; in such long
 * words, the symbols are in a linked list and the pairs in a heap, which takes n log n steps. Most
 * words of a text have occurred before; a direct-mapped cache of short words returns their ids.
 *
 * Source    Sennrich, Haddow, Birch 2016, arXiv:1508.07909; Radford et al. 2019 (GPT-2) */
#include "datasets/tokenizer/bpe.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "datasets/tokenizer/char.h"
#include "datasets/tokenizer/tokenizer_impl.h"

#define PAIR_EMPTY UINT64_MAX
#define NO_RANK INT32_MAX
#define SHORT_WORD 32
#define CACHE_SLOTS ((size_t)1 << 16)
#define CACHE_WORD_BYTES 22
#define CACHE_WORD_IDS 10

/* An entry of the word cache; 64 bytes, one cache line. */
struct cached_word {
    uint8_t bytes; /* 0: free entry */
    uint8_t count;
    char text[CACHE_WORD_BYTES];
    int32_t ids[CACHE_WORD_IDS];
};

struct symbol {
    int32_t id;
    int32_t rank; /* rank of the pair that begins here */
    int32_t previous;
    int32_t next;
};

struct bpe_encoder {
    struct bpe_encoder *next;
    struct pretokenizer_scanner *scanner;
    struct cached_word *cache;
    struct symbol *symbols;
    size_t symbol_capacity;
    uint64_t *heap; /* entries are rank << 32 | position, so the smallest entry is merged first */
    size_t heap_count;
};

static int32_t find_pair_rank(const struct tokenizer *t, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (uint64_t pos = text_map_hash_int(key) & t->pair_mask;; pos = (pos + 1) & t->pair_mask) {
        if (t->pairs[pos].key == key) {
            return t->pairs[pos].rank;
        }
        if (t->pairs[pos].key == PAIR_EMPTY) {
            return NO_RANK;
        }
    }
}

static status build_pairs(struct tokenizer *t)
{
    uint64_t capacity = 16;
    while (capacity < (uint64_t)t->merge_count * 2) {
        capacity *= 2;
    }
    TRY(ALLOCATE(t->pairs, capacity, "merges"));
    t->pair_mask = capacity - 1;
    for (uint64_t i = 0; i < capacity; i++) {
        t->pairs[i] = (struct pair_slot){.key = PAIR_EMPTY, .rank = NO_RANK};
    }
    for (int64_t rank = 0; rank < t->merge_count; rank++) {
        const struct merge *m = &t->merges[rank];
        uint64_t key = (uint64_t)(uint32_t)m->left << 32 | (uint32_t)m->right;
        uint64_t pos = text_map_hash_int(key) & t->pair_mask;
        while (t->pairs[pos].key != PAIR_EMPTY) {
            REQUIRE(t->pairs[pos].key != key, STATUS_DATA,
                    "%s: model.merges[%" PRId64 "] is the same pair as model.merges[%d]",
                    t->source_path == NULL ? "training" : t->source_path, rank, t->pairs[pos].rank);
            pos = (pos + 1) & t->pair_mask;
        }
        t->pairs[pos] = (struct pair_slot){.key = key, .rank = (int32_t)rank};
    }
    return STATUS_OK;
}

status bpe_build(struct tokenizer *t)
{
    for (int byte = 0; byte < 256; byte++) {
        char text = (char)byte;
        const struct text_slot *slot = text_map_find(&t->by_bytes, &text, 1);
        t->byte_ids[byte] = slot == NULL ? -1 : (int32_t)slot->value;
    }
    return build_pairs(t);
}

struct bpe_encoder *bpe_encoder_next(const struct bpe_encoder *encoder)
{
    return encoder->next;
}

void bpe_encoder_destroy(struct bpe_encoder *encoder)
{
    if (encoder != NULL) {
        pretokenizer_scanner_destroy(encoder->scanner);
        free(encoder->cache);
        free(encoder->symbols);
        free(encoder->heap);
        free(encoder);
    }
}

static status create_encoder(const struct tokenizer *t, struct bpe_encoder **out)
{
    struct bpe_encoder *encoder = NULL;
    TRY(ALLOCATE(encoder, 1, "an encoder"));
    status result = STATUS_OK;
    TRY_GOTO(result, failed, ALLOCATE(encoder->cache, CACHE_SLOTS, "an encoder's cache"));
    TRY_GOTO(result, failed, pretokenizer_scanner_create(t->pretokenizer, &encoder->scanner));
    *out = encoder;
    return STATUS_OK;
failed:
    bpe_encoder_destroy(encoder);
    return result;
}

status bpe_encoder_acquire(const struct tokenizer *t, struct bpe_encoder **out)
{
    pthread_mutex_lock(&t->pool->lock);
    struct bpe_encoder *encoder = t->pool->idle;
    if (encoder != NULL) {
        t->pool->idle = encoder->next;
    }
    pthread_mutex_unlock(&t->pool->lock);
    *out = encoder;
    return encoder != NULL ? STATUS_OK : create_encoder(t, out);
}

void bpe_encoder_release(const struct tokenizer *t, struct bpe_encoder *encoder)
{
    pthread_mutex_lock(&t->pool->lock);
    encoder->next = t->pool->idle;
    t->pool->idle = encoder;
    pthread_mutex_unlock(&t->pool->lock);
}

static status reserve_symbols(struct bpe_encoder *e, size_t symbols)
{
    REQUIRE(symbols < INT32_MAX / 2, STATUS_DATA,
            "a word of %zu bytes: the pre-tokenizer's words may have at most 1 GiB", symbols);
    if (e->symbol_capacity < symbols) {
        size_t capacity = symbols + symbols / 2 + 64;
        TRY(GROW(e->symbols, capacity, "a word"));
        /* one pair per symbol at first, then at most two new pairs per merge */
        TRY(GROW(e->heap, 3 * capacity, "a word"));
        e->symbol_capacity = capacity;
    }
    return STATUS_OK;
}

static void heap_push(struct bpe_encoder *e, uint64_t value)
{
    size_t pos = e->heap_count++;
    while (pos > 0 && e->heap[(pos - 1) / 2] > value) {
        e->heap[pos] = e->heap[(pos - 1) / 2];
        pos = (pos - 1) / 2;
    }
    e->heap[pos] = value;
}

static uint64_t heap_pop(struct bpe_encoder *e)
{
    uint64_t top = e->heap[0];
    uint64_t value = e->heap[--e->heap_count];
    size_t pos = 0;
    for (;;) {
        size_t child = 2 * pos + 1;
        if (child >= e->heap_count) {
            break;
        }
        if (child + 1 < e->heap_count && e->heap[child + 1] < e->heap[child]) {
            child++;
        }
        if (e->heap[child] >= value) {
            break;
        }
        e->heap[pos] = e->heap[child];
        pos = child;
    }
    e->heap[pos] = value;
    return top;
}

static void update_rank(const struct tokenizer *t, struct bpe_encoder *e, int32_t pos)
{
    struct symbol *s = &e->symbols[pos];
    s->rank = s->next < 0 ? NO_RANK : find_pair_rank(t, s->id, e->symbols[s->next].id);
    if (s->rank != NO_RANK) {
        heap_push(e, (uint64_t)(uint32_t)s->rank << 32 | (uint32_t)pos);
    }
}

static void merge_at(const struct tokenizer *t, struct bpe_encoder *e, int32_t pos)
{
    struct symbol *s = &e->symbols[pos];
    struct symbol *removed = &e->symbols[s->next];
    s->id = t->merges[s->rank].result;
    s->next = removed->next;
    removed->rank = NO_RANK;
    if (s->next >= 0) {
        e->symbols[s->next].previous = pos;
    }
    update_rank(t, e, pos);
    if (s->previous >= 0) {
        update_rank(t, e, s->previous);
    }
}

/* Merges ids[0, count) in place; returns how many remain. */
static int64_t merge_long_word(const struct tokenizer *t, struct bpe_encoder *e, int32_t *ids,
                               int32_t count)
{
    e->heap_count = 0;
    for (int32_t i = 0; i < count; i++) {
        e->symbols[i] = (struct symbol){
            .id = ids[i], .rank = NO_RANK, .previous = i - 1, .next = i + 1 < count ? i + 1 : -1};
    }
    for (int32_t i = 0; i < count; i++) {
        update_rank(t, e, i);
    }
    while (e->heap_count > 0) {
        uint64_t top = heap_pop(e);
        int32_t pos = (int32_t)(uint32_t)top;
        if (e->symbols[pos].rank == (int32_t)(top >> 32)) { /* otherwise the entry is outdated */
            merge_at(t, e, pos);
        }
    }
    int64_t left = 0;
    for (int32_t i = 0; i >= 0; i = e->symbols[i].next) {
        ids[left++] = e->symbols[i].id;
    }
    return left;
}

/* Merges the pairs of a word as merge_long_word does, for at most SHORT_WORD ids. */
static int64_t merge_short_word(const struct tokenizer *t, int32_t *ids, size_t count)
{
    int32_t ranks[SHORT_WORD];
    for (size_t i = 0; i + 1 < count; i++) {
        ranks[i] = find_pair_rank(t, ids[i], ids[i + 1]);
    }
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++) {
            best = ranks[i] < ranks[best] ? i : best;
        }
        if (ranks[best] == NO_RANK) {
            break;
        }
        ids[best] = t->merges[ranks[best]].result;
        count--;
        memmove(ids + best + 1, ids + best + 2, (count - best - 1) * sizeof *ids);
        if (best + 1 < count) {
            memmove(ranks + best + 1, ranks + best + 2, (count - best - 2) * sizeof *ranks);
            ranks[best] = find_pair_rank(t, ids[best], ids[best + 1]);
        }
        if (best > 0) {
            ranks[best - 1] = find_pair_rank(t, ids[best - 1], ids[best]);
        }
    }
    return (int64_t)count;
}

/* Appends the ids of the bytes of a word. */
static status append_bytes(const struct tokenizer *t, const char *word, size_t bytes, size_t offset,
                           struct token_list *out)
{
    TRY(token_list_reserve(out, (int64_t)bytes));
    for (size_t i = 0; i < bytes; i++) {
        unsigned char byte = (unsigned char)word[i];
        REQUIRE(t->byte_ids[byte] >= 0, STATUS_DATA,
                "byte 0x%02x at offset %zu of the text is not in the tokenizer's vocabulary", byte,
                offset + i);
        out->ids[out->count + (int64_t)i] = t->byte_ids[byte];
    }
    out->count += (int64_t)bytes;
    return STATUS_OK;
}

static status merge_word(const struct tokenizer *t, struct bpe_encoder *e, const char *word,
                         size_t bytes, size_t offset, struct token_list *out)
{
    if (t->ignore_merges) {
        const struct text_slot *slot = text_map_find(&t->by_bytes, word, bytes);
        if (slot != NULL) {
            return token_list_add(out, (int32_t)slot->value);
        }
    }
    int64_t begin = out->count;
    TRY(t->chars != NULL ? char_bpe_append_symbols(t, word, bytes, offset, out)
                         : append_bytes(t, word, bytes, offset, out));
    size_t count = (size_t)(out->count - begin);
    if (count <= SHORT_WORD) {
        out->count = begin + merge_short_word(t, out->ids + begin, count);
        return STATUS_OK;
    }
    TRY(reserve_symbols(e, count));
    out->count = begin + merge_long_word(t, e, out->ids + begin, (int32_t)count);
    return STATUS_OK;
}

status bpe_encode_word(const struct tokenizer *t, struct bpe_encoder *e, const char *word,
                       size_t bytes, size_t offset, struct token_list *out)
{
    if (bytes > CACHE_WORD_BYTES) {
        return merge_word(t, e, word, bytes, offset, out);
    }
    struct cached_word *slot = &e->cache[text_map_hash(word, bytes) & (CACHE_SLOTS - 1)];
    if (slot->bytes == bytes && memcmp(slot->text, word, bytes) == 0) {
        return token_list_append(out, slot->ids, slot->count);
    }
    int64_t before = out->count;
    TRY(merge_word(t, e, word, bytes, offset, out));
    if (out->count - before <= CACHE_WORD_IDS) {
        slot->bytes = (uint8_t)bytes;
        slot->count = (uint8_t)(out->count - before);
        memcpy(slot->text, word, bytes);
        memcpy(slot->ids, out->ids + before, slot->count * sizeof *slot->ids);
    }
    return STATUS_OK;
}

static status encode_words(const struct tokenizer *t, struct bpe_encoder *e, const char *text,
                           size_t bytes, size_t offset, struct token_list *out)
{
    pretokenizer_scanner_start(e->scanner, text, bytes);
    for (;;) {
        size_t start = 0, end = 0;
        TRY(pretokenizer_scanner_next(e->scanner, &start, &end));
        if (start == end) {
            return STATUS_OK;
        }
        TRY(bpe_encode_word(t, e, text + start, end - start, offset + start, out));
    }
}

/* Encodes a part of a text, with a space before it if the tokenizer adds one. */
static status encode_part(const struct tokenizer *t, struct bpe_encoder *encoder, const char *text,
                          size_t bytes, size_t offset, struct token_list *out)
{
    if (!t->add_prefix_space || bytes == 0 || text[0] == ' ') {
        return encode_words(t, encoder, text, bytes, offset, out);
    }
    char *prefixed = NULL;
    TRY(ALLOCATE(prefixed, bytes + 1, "a text"));
    prefixed[0] = ' ';
    memcpy(prefixed + 1, text, bytes);
    status result = encode_words(t, encoder, prefixed, bytes + 1, offset, out);
    free(prefixed);
    return result;
}

struct part_context {
    const struct tokenizer *t;
    struct bpe_encoder *encoder;
    size_t offset;
    struct token_list *out;
};

static status visit_part(void *context, const char *text, size_t bytes, size_t offset)
{
    const struct part_context *c = context;
    return encode_part(c->t, c->encoder, text, bytes, c->offset + offset, c->out);
}

status bpe_encode(const struct tokenizer *t, struct bpe_encoder *encoder, const char *text,
                  size_t bytes, struct text_place place, struct token_list *out)
{
    if (t->split.count == 0) {
        return encode_part(t, encoder, text, bytes, place.offset, out);
    }
    struct part_context c = {t, encoder, place.offset, out};
    return word_split_run(&t->split, text, bytes, place.at_start, place.continued, visit_part, &c);
}
