#include "trainer/evaluation/rouge.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/number.h"
#include "datasets/text/char_class.h"

enum { KELVIN_SIGN = 0x212a, CAPITAL_I_WITH_DOT = 0x130 };

/* ---- words ---- */

/* Returns the lower case of a character if it is an ASCII letter or digit, otherwise 0. The lower
 * case of the capital I with a dot is an i and a combining dot. */
static char fold_character(uint32_t code)
{
    if (code == KELVIN_SIGN || code == CAPITAL_I_WITH_DOT) {
        return code == KELVIN_SIGN ? 'k' : 'i';
    }
    bool upper = code >= 'A' && code <= 'Z';
    bool used = upper || (code >= 'a' && code <= 'z') || (code >= '0' && code <= '9');
    return used ? (char)(upper ? code - 'A' + 'a' : code) : '\0';
}

/* Appends the words of a line. `word` has memory for the whole line. */
static status read_line(struct ngrams_words *words, const char *text, size_t bytes, char *word,
                        struct token_list *out)
{
    size_t used = 0;
    for (size_t i = 0, length; i < bytes; i += length) {
        uint32_t code;
        length = char_class_read(text + i, bytes - i, &code);
        char folded = fold_character(code);
        if (folded != '\0') {
            word[used++] = folded;
        }
        bool ends = folded == '\0' || code == CAPITAL_I_WITH_DOT || i + length == bytes;
        if (ends && used > 0) {
            TRY(ngrams_append_word(words, word, used, out));
            used = 0;
        }
    }
    return STATUS_OK;
}

static status end_line(struct rouge_text *t)
{
    return token_list_add(&t->ends, (int32_t)t->words.count);
}

static status read_lines(struct ngrams_words *words, const char *text, size_t bytes, char *word,
                         struct rouge_text *out)
{
    while (bytes > 0) {
        const char *newline = memchr(text, '\n', bytes);
        size_t line = newline != NULL ? (size_t)(newline - text) : bytes;
        if (line > 0) {
            TRY(read_line(words, text, line, word, &out->words));
            TRY(end_line(out));
        }
        text += line + (newline != NULL);
        bytes -= line + (newline != NULL);
    }
    return STATUS_OK;
}

status rouge_read(struct ngrams_words *words, const char *text, size_t bytes,
                  struct rouge_text *out)
{
    char *word = NULL;
    out->words.count = out->ends.count = 0;
    TRY(ALLOCATE(word, bytes + 1, "a text"));
    status result = read_lines(words, text, bytes, word, out);
    free(word);
    return result;
}

void rouge_text_free(struct rouge_text *text)
{
    token_list_free(&text->words);
    token_list_free(&text->ends);
}

/* ---- scores ---- */

static double compute_f1(int64_t matches, int64_t total, int64_t reference_total)
{
    double precision = (double)matches / (double)(total > 0 ? total : 1);
    double recall = (double)matches / (double)(reference_total > 0 ? reference_total : 1);
    return matches > 0 ? 2 * precision * recall / (precision + recall) : 0;
}

static struct token_list view_line(const struct rouge_text *t, int64_t line)
{
    int32_t first = line > 0 ? t->ends.ids[line - 1] : 0, count = t->ends.ids[line] - first;
    return (struct token_list){count > 0 ? t->words.ids + first : NULL, count, 0};
}

/* Counts the marked words, each at most as often as it occurs in the text and in the reference.
 *
 * left [2, words]: the occurrences that are not counted yet, in the text and in the reference. */
static int64_t count_hits(const struct token_list *line, const bool *marks, int32_t *left,
                          int64_t words)
{
    int64_t hits = 0;
    for (int64_t i = 0; i < line->count; i++) {
        int32_t *in_text = left + line->ids[i], *in_reference = in_text + words;
        if (marks[i] && *in_text > 0 && *in_reference > 0) {
            hits++;
            --*in_text;
            --*in_reference;
        }
    }
    return hits;
}

/* Marks the words of a line of the reference that are part of the longest common subsequence with
 * any line of the text. */
static status mark_union(struct ngrams_scratch *scratch, const struct rouge_text *text,
                         const struct token_list *line, bool *marks)
{
    memset(marks, 0, (size_t)line->count * sizeof *marks);
    for (int64_t i = 0; i < text->ends.count; i++) {
        struct token_list other = view_line(text, i);
        int64_t unused;
        TRY(ngrams_mark_common(scratch, line, &other, marks, &unused));
    }
    return STATUS_OK;
}

static int32_t find_largest_id(const struct token_list *words)
{
    int32_t largest = 0;
    for (int64_t i = 0; i < words->count; i++) {
        largest = words->ids[i] > largest ? words->ids[i] : largest;
    }
    return largest;
}

static void count_words(const struct token_list *words, int32_t *counts)
{
    for (int64_t i = 0; i < words->count; i++) {
        counts[words->ids[i]]++;
    }
}

static status score_lines(struct ngrams_scratch *scratch, const struct rouge_text *text,
                          const struct rouge_text *reference, double *out)
{
    int32_t a = find_largest_id(&text->words), b = find_largest_id(&reference->words);
    int64_t words = number_max(a, b) + 1, hits = 0;
    int32_t *left = NULL;
    bool *marks = NULL;
    status result = STATUS_OK;
    TRY_GOTO(result, done, ALLOCATE(left, 2 * words, "the words of a text"));
    TRY_GOTO(result, done, ALLOCATE(marks, reference->words.count + 1, "the words of a text"));
    count_words(&text->words, left);
    count_words(&reference->words, left + words);
    for (int64_t i = 0; i < reference->ends.count; i++) {
        struct token_list line = view_line(reference, i);
        TRY_GOTO(result, done, mark_union(scratch, text, &line, marks));
        hits += count_hits(&line, marks, left, words);
    }
    *out = compute_f1(hits, text->words.count, reference->words.count);
done:
    free(left);
    free(marks);
    return result;
}

status rouge_score(struct ngrams_scratch *scratch, const struct rouge_text *text,
                   const struct rouge_text *reference, double out[ROUGE_SCORES])
{
    const struct token_list *a = &text->words, *b = &reference->words;
    int64_t matches;
    for (int order = 1; order <= 2; order++) {
        TRY(ngrams_count_matches(scratch, a, b, order, &matches));
        out[ROUGE_1 + order - 1] =
            compute_f1(matches, ngrams_total(a->count, order), ngrams_total(b->count, order));
    }
    TRY(ngrams_mark_common(scratch, b, a, NULL, &matches));
    out[ROUGE_L] = compute_f1(matches, a->count, b->count);
    return score_lines(scratch, text, reference, &out[ROUGE_LSUM]);
}
