/* The repeated strings of a list of words, from their sorted suffixes. A string that occurs in
 * several places is a common prefix of neighboring suffixes. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "datasets/sentencepiece/unigram_train.h"

/* A suffix of a word, at most 16 characters of it. */
struct suffix {
    const char *text;
    uint32_t bytes;
    bool is_word; /* the whole word */
    int64_t count;
};

/* A common prefix of a range of suffixes. */
struct prefix {
    uint32_t bytes;
    int64_t count;
};

struct seeds {
    struct unigram_piece *pieces; /* score: characters times count */
    int64_t count, capacity;
};

static int compare_texts(const char *a, size_t a_bytes, const char *b, size_t b_bytes)
{
    int difference = memcmp(a, b, a_bytes < b_bytes ? a_bytes : b_bytes);
    return difference != 0 ? difference : (a_bytes > b_bytes) - (a_bytes < b_bytes);
}

static int compare_suffixes(const void *a, const void *b)
{
    const struct suffix *x = a, *y = b;
    return compare_texts(x->text, x->bytes, y->text, y->bytes);
}

static int compare_seeds(const void *a, const void *b)
{
    const struct unigram_piece *x = a, *y = b;
    return x->score != y->score ? (x->score < y->score ? 1 : -1)
                                : compare_texts(x->text, x->bytes, y->text, y->bytes);
}

static status add_seed(struct seeds *s, const char *text, size_t bytes, int64_t count)
{
    TRY(RESERVE(s->pieces, s->capacity, s->count + 1, "strings"));
    double score = (double)count * (double)utf8_count_characters(text, bytes);
    s->pieces[s->count++] = (struct unigram_piece){text, (uint32_t)bytes, score};
    return STATUS_OK;
}

/* Returns the bytes of at most 16 characters at the beginning of a text. */
static uint32_t limit_characters(const char *text, uint32_t bytes)
{
    uint32_t end = 0;
    for (int i = 0; i < UNIGRAM_PIECE_CHARACTERS && end < bytes; i++) {
        end += (uint32_t)utf8_character_bytes(text + end, bytes - end);
    }
    return end;
}

static status list_suffixes(const struct unigram_word *words, int64_t count, struct suffix **out,
                            int64_t *suffixes)
{
    int64_t total = 0;
    for (int64_t w = 0; w < count; w++) {
        total += utf8_count_characters(words[w].text, words[w].bytes);
    }
    struct suffix *list = NULL;
    TRY(ALLOCATE(list, (size_t)total + 1, "suffixes"));
    *suffixes = 0;
    for (int64_t w = 0; w < count; w++) {
        const char *text = words[w].text;
        for (uint32_t i = 0; i < words[w].bytes;) {
            uint32_t bytes = limit_characters(text + i, words[w].bytes - i);
            list[(*suffixes)++] =
                (struct suffix){text + i, bytes, i == 0 && bytes == words[w].bytes, words[w].count};
            i += (uint32_t)utf8_character_bytes(text + i, words[w].bytes - i);
        }
    }
    qsort(list, (size_t)*suffixes, sizeof *list, compare_suffixes);
    *out = list;
    return STATUS_OK;
}

/* Returns the bytes of the whole characters that two suffixes share at their beginning. */
static uint32_t count_shared_bytes(const struct suffix *a, const struct suffix *b)
{
    uint32_t shared = 0, limit = a->bytes < b->bytes ? a->bytes : b->bytes;
    while (shared < limit && a->text[shared] == b->text[shared]) {
        shared++;
    }
    while (shared > 0 && shared < a->bytes && ((unsigned char)a->text[shared] & 0xC0) == 0x80) {
        shared--;
    }
    return shared;
}

/* Adds the common prefixes. The stack holds the common prefixes of the suffixes so far, by
 * growing length. */
static status add_prefixes(struct seeds *s, const struct suffix *list, int64_t count)
{
    enum { DEPTH = 4 * UNIGRAM_PIECE_CHARACTERS + 2 };
    struct prefix stack[DEPTH] = {{0, 0}};
    int top = 0;
    for (int64_t i = 0; i < count; i++) {
        const struct suffix *a = &list[i];
        uint32_t shared = i + 1 < count ? count_shared_bytes(a, &list[i + 1]) : 0;
        int64_t occurrences = a->count;
        bool is_word_alone = a->is_word && shared < a->bytes && stack[top].bytes < a->bytes;
        if (is_word_alone && a->count > 1 && utf8_count_characters(a->text, a->bytes) > 1) {
            TRY(add_seed(s, a->text, a->bytes, a->count));
        }
        while (stack[top].bytes > shared) {
            occurrences += stack[top].count;
            if (utf8_count_characters(a->text, stack[top].bytes) > 1) {
                TRY(add_seed(s, a->text, stack[top].bytes, occurrences));
            }
            top--;
        }
        if (stack[top].bytes < shared) {
            stack[++top] = (struct prefix){shared, occurrences};
        } else {
            stack[top].count += occurrences;
        }
    }
    return STATUS_OK;
}

/* Adds each character with its count. Suffixes with the same first character are neighbors. */
static status add_characters(struct seeds *s, const struct suffix *list, int64_t count)
{
    for (int64_t i = 0; i < count;) {
        uint32_t bytes = (uint32_t)utf8_character_bytes(list[i].text, list[i].bytes);
        int64_t occurrences = 0, first = i;
        while (i < count && list[i].bytes >= bytes &&
               memcmp(list[i].text, list[first].text, bytes) == 0) {
            occurrences += list[i++].count;
        }
        TRY(add_seed(s, list[first].text, bytes, occurrences));
    }
    return STATUS_OK;
}

status unigram_find_seeds(const struct unigram_word *words, int64_t count, int64_t limit,
                          struct unigram_piece **out, int64_t *pieces, int64_t *characters)
{
    struct seeds s = {0};
    struct suffix *list = NULL;
    int64_t suffixes = 0;
    *out = NULL;
    TRY(list_suffixes(words, count, &list, &suffixes));
    status result = add_characters(&s, list, suffixes);
    *characters = s.count;
    if (result == STATUS_OK) {
        result = add_prefixes(&s, list, suffixes);
    }
    free(list);
    if (result != STATUS_OK) {
        free(s.pieces);
        return result;
    }
    qsort(s.pieces + *characters, (size_t)(s.count - *characters), sizeof *s.pieces, compare_seeds);
    *pieces = s.count - *characters > limit ? *characters + limit : s.count;
    *out = s.pieces;
    return STATUS_OK;
}
