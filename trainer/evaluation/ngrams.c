#include "trainer/evaluation/ngrams.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "datasets/text/char_class.h"

enum { TABLE_VALUES_MAX = 1 << 28 }; /* of the longest common subsequence: 1 GiB */

/* ---- tokens ---- */

status ngrams_append_word(struct ngrams_words *words, const char *text, size_t bytes,
                          struct token_list *out)
{
    struct text_slot *slot = NULL;
    bool is_new = false;
    TRY(text_map_find_or_add(&words->map, &words->store, text, bytes, &slot, &is_new));
    slot->value = is_new ? (int64_t)words->map.count : slot->value;
    return token_list_add(out, (int32_t)slot->value);
}

status ngrams_append_words(struct ngrams_words *words, const char *text, size_t bytes,
                           struct token_list *out)
{
    size_t begin = 0;
    for (size_t i = 0, length; i < bytes; i += length) {
        uint32_t code;
        length = char_class_read(text + i, bytes - i, &code);
        if (char_class_is_space(code)) {
            TRY(i > begin ? ngrams_append_word(words, text + begin, i - begin, out) : STATUS_OK);
            begin = i + length;
        }
    }
    return bytes > begin ? ngrams_append_word(words, text + begin, bytes - begin, out) : STATUS_OK;
}

status ngrams_append_characters(const char *text, size_t bytes, struct token_list *out)
{
    for (size_t i = 0, length; i < bytes; i += length) {
        uint32_t code;
        length = char_class_read(text + i, bytes - i, &code);
        TRY(char_class_is_space(code) ? STATUS_OK : token_list_add(out, (int32_t)code));
    }
    return STATUS_OK;
}

/* ---- counts ---- */

static status reserve_scratch(struct ngrams_scratch *s, int64_t values)
{
    if (values <= s->capacity) {
        return STATUS_OK;
    }
    free(s->memory);
    *s = (struct ngrams_scratch){0};
    TRY(ALLOCATE(s->memory, values, "n-grams"));
    s->capacity = values;
    return STATUS_OK;
}

struct ngram {
    int32_t ids[NGRAMS_ORDER_MAX]; /* zeros after the last one */
};

static int compare_ngrams(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct ngram));
}

/* Writes the n-grams of a text in the order of their bytes. */
static void sort_ngrams(const struct token_list *text, int order, struct ngram *out)
{
    int64_t total = ngrams_total(text->count, order);
    memset(out, 0, (size_t)total * sizeof *out);
    for (int64_t i = 0; i < total; i++) {
        memcpy(out[i].ids, text->ids + i, (size_t)order * sizeof *text->ids);
    }
    qsort(out, (size_t)total, sizeof *out, compare_ngrams);
}

int64_t ngrams_total(int64_t tokens, int order)
{
    return tokens >= order ? tokens - order + 1 : 0;
}

status ngrams_count_matches(struct ngrams_scratch *scratch, const struct token_list *a,
                            const struct token_list *b, int order, int64_t *out)
{
    int64_t total_a = ngrams_total(a->count, order), total_b = ngrams_total(b->count, order);
    *out = 0;
    if (total_a == 0 || total_b == 0) {
        return STATUS_OK;
    }
    TRY(reserve_scratch(scratch, (total_a + total_b) * NGRAMS_ORDER_MAX));
    struct ngram *ngrams_a = (struct ngram *)(void *)scratch->memory,
                 *ngrams_b = ngrams_a + total_a;
    sort_ngrams(a, order, ngrams_a);
    sort_ngrams(b, order, ngrams_b);
    for (int64_t i = 0, j = 0; i < total_a && j < total_b;) {
        int difference = compare_ngrams(&ngrams_a[i], &ngrams_b[j]);
        *out += difference == 0;
        i += difference <= 0;
        j += difference >= 0;
    }
    return STATUS_OK;
}

/* ---- the longest common subsequence ---- */

status ngrams_mark_common(struct ngrams_scratch *scratch, const struct token_list *a,
                          const struct token_list *b, bool *marks, int64_t *count)
{
    int64_t rows = a->count + 1, columns = b->count + 1;
    REQUIRE(rows <= TABLE_VALUES_MAX / columns, STATUS_DATA,
            "texts of %" PRId64 " and %" PRId64 " words are too long for ROUGE-L", a->count,
            b->count);
    TRY(reserve_scratch(scratch, rows * columns));
    int32_t *table = scratch->memory; /* [rows, columns] lengths for the beginnings of a and b */
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            int32_t *cell = table + i * columns + j;
            if (i == 0 || j == 0) {
                *cell = 0;
            } else if (a->ids[i - 1] == b->ids[j - 1]) {
                *cell = cell[-columns - 1] + 1;
            } else {
                *cell = cell[-columns] > cell[-1] ? cell[-columns] : cell[-1];
            }
        }
    }
    *count = table[rows * columns - 1];
    for (int64_t i = a->count, j = b->count; marks != NULL && i > 0 && j > 0;) {
        const int32_t *cell = table + i * columns + j;
        bool equal = a->ids[i - 1] == b->ids[j - 1], left = !equal && cell[-1] > cell[-columns];
        if (equal) {
            marks[i - 1] = true;
        }
        i -= !left;
        j -= equal || left;
    }
    return STATUS_OK;
}

void ngrams_free(struct ngrams_words *words, struct ngrams_scratch *scratch)
{
    text_map_free(&words->map);
    text_store_free(&words->store);
    free(scratch->memory);
    *words = (struct ngrams_words){0};
    *scratch = (struct ngrams_scratch){0};
}
