#include "datasets/tokenizer/text_pair.h"

#include <string.h>

static status encode_for_encoder(const struct tokenizer *t, const struct text *text,
                                 const struct text *pair, int64_t most, struct token_list *out,
                                 int64_t *first, int64_t *cut)
{
    const char *b = pair != NULL ? pair->bytes : NULL;
    int64_t before = out->count;
    TRY(tokenizer_encode_pair(t, text->bytes, text->count, b, b != NULL ? pair->count : 0, false, 0,
                              out, first));
    *cut = most > 0 && out->count - before > most ? out->count - before - most : 0;
    if (*cut == 0) {
        return STATUS_OK;
    }
    out->count = before;
    return tokenizer_encode_pair(t, text->bytes, text->count, b, b != NULL ? pair->count : 0, false,
                                 most, out, first);
}

static status add_delimiter(const struct tokenizer *t, struct token_list *out)
{
    int32_t end = tokenizer_eos(t);
    if (end < 0) {
        return tokenizer_encode(t, "\n", 1, false, out);
    }
    TRY(token_list_reserve(out, 1));
    out->ids[out->count++] = end;
    return STATUS_OK;
}

/* The second part of the list, from `begin` on, moves down to `to`. */
static void close_gap(struct token_list *list, int64_t to, int64_t begin, int64_t count)
{
    memmove(list->ids + to, list->ids + begin, (size_t)count * sizeof *list->ids);
    list->count = to + count;
}

/* Text and delimiter and pair lie one after the other. */
static status shorten(struct token_list *out, int64_t before, int64_t text, int64_t delimiter,
                      int64_t most, int64_t *first)
{
    int64_t pair = out->count - before - text - delimiter, a = text, b = pair;
    REQUIRE(most > delimiter + 1, STATUS_USAGE, "at most %lld ids leave no room for two texts",
            (long long)most);
    while (a + b > most - delimiter) {
        *(a > b ? &a : &b) -= 1;
    }
    close_gap(out, before + a, before + text, delimiter + pair);
    out->count = before + a + delimiter + b;
    *first = a + delimiter;
    return STATUS_OK;
}

static status encode_behind_each_other(const struct tokenizer *t, const struct text *text,
                                       const struct text *pair, int64_t most,
                                       struct token_list *out, int64_t *first, int64_t *cut)
{
    int64_t before = out->count;
    TRY(tokenizer_encode(t, text->bytes, text->count, false, out));
    int64_t count = out->count - before, delimiter = 0;
    REQUIRE(count > 0, STATUS_DATA, "a text without a token");
    if (pair != NULL && pair->bytes != NULL) {
        TRY(add_delimiter(t, out));
        delimiter = out->count - before - count;
        TRY(tokenizer_encode(t, pair->bytes, pair->count, false, out));
    }
    *first = count + delimiter;
    int64_t all = out->count - before;
    *cut = most > 0 && all > most ? all - most : 0;
    if (*cut == 0) {
        return STATUS_OK;
    }
    if (all > count) {
        return shorten(out, before, count, delimiter, most, first);
    }
    out->count = before + most;
    *first = most;
    return STATUS_OK;
}

status texts_encode(const struct tokenizer *t, const struct text *text, const struct text *pair,
                    int64_t most, struct token_list *out, int64_t *first, int64_t *cut)
{
    struct tokenizer_specials s = tokenizer_specials_of(t);
    return s.cls >= 0 && s.sep >= 0
               ? encode_for_encoder(t, text, pair, most, out, first, cut)
               : encode_behind_each_other(t, text, pair, most, out, first, cut);
}

status texts_encode_word(const struct tokenizer *t, const struct text *word, bool first,
                         struct token_list *out, int64_t *begin)
{
    enum tokenizer_kind kind = tokenizer_kind_of(t);
    char text[TEXTS_WORD_BYTES + 1] = " ";
    size_t blank = kind == TOKENIZER_BPE;
    REQUIRE(word->count <= TEXTS_WORD_BYTES, STATUS_DATA, "a word of %zu bytes, more than %d",
            word->count, TEXTS_WORD_BYTES);
    TRY(kind == TOKENIZER_CHAR && !first ? tokenizer_encode(t, " ", 1, false, out) : STATUS_OK);
    memcpy(text + blank, word->bytes, word->count);
    *begin = out->count;
    TRY(tokenizer_encode(t, text, word->count + blank, false, out));
    REQUIRE(word->count > 0 && out->count > *begin, STATUS_DATA,
            "the word \"%.*s\" is none for the tokenizer",
            (int)(word->count < 100 ? word->count : 100), word->bytes);
    return STATUS_OK;
}
