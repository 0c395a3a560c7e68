#include "datasets/tokenizer/qa_windows.h"

#include <stdlib.h>
#include <string.h>

void answers_free(struct answers *a)
{
    token_list_free(&a->question);
    token_list_free(&a->context);
    token_list_free(&a->begin);
    token_list_free(&a->end);
    *a = (struct answers){0};
}

/* ---- code points ---- */

static bool begins_point(char byte)
{
    return ((unsigned char)byte & 0xc0) != 0x80;
}

static int64_t points_in(const char *bytes, size_t count)
{
    int64_t points = 0;
    for (size_t i = 0; i < count; i++) {
        points += begins_point(bytes[i]);
    }
    return points;
}

int64_t answers_points(const struct text *text)
{
    return points_in(text->bytes, text->count);
}

size_t answers_byte(const struct text *text, int64_t point)
{
    size_t at = 0;
    for (int64_t seen = 0; at < text->count; at++) {
        if (begins_point(text->bytes[at]) && seen++ == point) {
            return at;
        }
    }
    return at;
}

/* ---- tokens of the context, with their places ---- */

static status add(struct token_list *list, int64_t value)
{
    TRY(token_list_reserve(list, 1));
    list->ids[list->count++] = (int32_t)value;
    return STATUS_OK;
}

static status add_place(struct answers *a, int64_t begin, int64_t end)
{
    TRY(add(&a->begin, begin));
    return add(&a->end, end);
}

static bool is_blank(char byte)
{
    return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

/* Where BERT cuts whatever stands around it. */
static bool is_mark(char byte)
{
    return (byte >= '!' && byte <= '/') || (byte >= ':' && byte <= '@') ||
           (byte >= '[' && byte <= '`') || (byte >= '{' && byte <= '~');
}

status answers_token(const struct tokenizer *t, int32_t id, char **out, size_t *count)
{
    size_t all = 0;
    TRY(tokenizer_decode(t, &id, 1, false, out, &all));
    bool piece = tokenizer_kind_of(t) == TOKENIZER_WORDPIECE && tokenizer_continues(t, id) &&
                 all > 2 && memcmp(*out, "##", 2) == 0;
    if (piece) {
        memmove(*out, *out + 2, all - 2);
    }
    *count = piece ? all - 2 : all;
    return STATUS_OK;
}

static status token_points(const struct tokenizer *t, int32_t id, int64_t *out)
{
    char *bytes = NULL;
    size_t count = 0;
    TRY(answers_token(t, id, &bytes, &count));
    *out = points_in(bytes, count);
    free(bytes);
    return STATUS_OK;
}

/* Tokens from `from` on are a word's, which has the code points [begin, end). */
static status place_word(const struct tokenizer *t, struct answers *a, int64_t from, int64_t begin,
                         int64_t end)
{
    int64_t all = 0, at = begin;
    for (int64_t i = from; i < a->context.count; i++) {
        int64_t points = 0;
        TRY(token_points(t, a->context.ids[i], &points));
        all += points;
    }
    bool exact = all == end - begin;
    for (int64_t i = from; i < a->context.count; i++) {
        int64_t points = 0;
        TRY(token_points(t, a->context.ids[i], &points));
        TRY(add_place(a, exact ? at : begin, exact ? at + points : end));
        at += points;
    }
    return STATUS_OK;
}

/* Word by word: blanks and ASCII's punctuation are boundaries of WordPiece, and within a word it sees no further. */
static status encode_words(const struct tokenizer *t, const struct text *text, struct answers *a)
{
    size_t at = 0;
    for (int64_t point = 0; at < text->count;) {
        size_t begin = at;
        if (is_blank(text->bytes[at])) {
            at++;
            point++;
            continue;
        }
        for (at++; at < text->count && !is_mark(text->bytes[begin]) && !is_blank(text->bytes[at]) &&
                   !is_mark(text->bytes[at]);
             at++) {
        }
        int64_t from = a->context.count, points = points_in(text->bytes + begin, at - begin);
        TRY(tokenizer_encode(t, text->bytes + begin, at - begin, false, &a->context));
        TRY(place_word(t, a, from, point, point + points));
        point += points;
    }
    return STATUS_OK;
}

/* A token may begin or end inside of a code point; blanks in front are not its own, and one of blanks alone has none. */
static status place_bytes(struct answers *a, const struct text *text, size_t begin, size_t end,
                          int64_t *point, size_t *counted)
{
    while (begin < end && is_blank(text->bytes[begin])) {
        begin++;
    }
    *point += points_in(text->bytes + *counted, begin - *counted);
    *counted = begin;
    int64_t first = *point - (begin < end && !begins_point(text->bytes[begin]));
    return add_place(a, first, *point + points_in(text->bytes + begin, end - begin));
}

static status encode_bytes(const struct tokenizer *t, const struct text *text, struct answers *a)
{
    size_t at = 0, counted = 0;
    int64_t point = 0;
    TRY(tokenizer_encode(t, text->bytes, text->count, false, &a->context));
    for (int64_t i = 0; i < a->context.count; i++) {
        char *bytes = NULL;
        size_t count = 0;
        TRY(answers_token(t, a->context.ids[i], &bytes, &count));
        bool same =
            count > 0 && count <= text->count - at && memcmp(bytes, text->bytes + at, count) == 0;
        free(bytes);
        REQUIRE(same, STATUS_DATA,
                "the tokenizer changes the text: where its tokens stand cannot be told");
        TRY(place_bytes(a, text, at, at + count, &point, &counted));
        at += count;
    }
    return STATUS_OK;
}

/* ---- windows ---- */

static status copy(const struct token_list *from, int64_t first, int64_t count, int32_t *to,
                   int most, int *out)
{
    REQUIRE(count >= 0 && count <= most, STATUS_INTERNAL, "%lld special tokens", (long long)count);
    memcpy(to, from->ids + first, (size_t)count * sizeof *to);
    *out = (int)count;
    return STATUS_OK;
}

/* What stands around question and context: that of a pair of empty texts. */
static status find_specials(const struct tokenizer *t, struct answers *a)
{
    struct tokenizer_specials s = tokenizer_specials_of(t);
    struct token_list around = {0};
    int64_t first = 0;
    status result = STATUS_OK;
    if (s.cls < 0 || s.sep < 0) {
        int32_t end = tokenizer_eos(t);
        result = end >= 0 ? add(&around, end) : tokenizer_encode(t, "\n", 1, false, &around);
        if (result == STATUS_OK) {
            result = copy(&around, 0, around.count, a->between, 8, &a->between_count);
        }
        a->first_of_between = a->between_count;
        token_list_free(&around);
        return result;
    }
    result = tokenizer_encode_pair(t, "", 0, "", 0, false, 0, &around, &first);
    if (result == STATUS_OK) {
        a->before[0] = around.ids[0];
        a->behind[0] = around.ids[around.count - 1];
        a->before_count = a->behind_count = 1;
        a->first_of_between = (int)first - 1;
        result = copy(&around, 1, around.count - 2, a->between, 8, &a->between_count);
    }
    token_list_free(&around);
    return result;
}

static status cut(struct answers *a, int64_t most)
{
    int64_t fixed = a->before_count + a->between_count + a->behind_count + a->question.count;
    a->room = most - fixed;
    REQUIRE(a->room > 0, STATUS_DATA,
            "the question has %lld tokens and leaves no room for a text in %lld",
            (long long)a->question.count, (long long)most);
    int64_t common = ANSWERS_STRIDE < a->room ? ANSWERS_STRIDE : a->room / 2;
    a->step = a->room - common;
    int64_t more = a->context.count - a->room;
    a->windows = 1 + (more > 0 ? (more + a->step - 1) / a->step : 0);
    return STATUS_OK;
}

status answers_encode(const struct tokenizer *t, const struct text *question,
                      const struct text *context, int64_t most, struct answers *out)
{
    *out = (struct answers){0};
    TRY(find_specials(t, out));
    TRY(tokenizer_encode(t, question->bytes, question->count, false, &out->question));
    TRY(tokenizer_kind_of(t) == TOKENIZER_WORDPIECE ? encode_words(t, context, out)
                                                    : encode_bytes(t, context, out));
    REQUIRE(out->question.count > 0 && out->context.count > 0, STATUS_DATA,
            "a question of %lld tokens and a text of %lld", (long long)out->question.count,
            (long long)out->context.count);
    return cut(out, most);
}

static status append(struct token_list *to, const int32_t *ids, int64_t count)
{
    TRY(token_list_reserve(to, count));
    if (count > 0) {
        memcpy(to->ids + to->count, ids, (size_t)count * sizeof *ids);
    }
    to->count += count;
    return STATUS_OK;
}

status answers_window(const struct answers *a, int64_t window, struct token_list *ids,
                      struct answers_window *out)
{
    int64_t token = window * a->step, left = a->context.count - token;
    int64_t tokens = left < a->room ? left : a->room;
    *out = (struct answers_window){
        .first = a->before_count + a->question.count + a->first_of_between,
        .context = a->before_count + a->question.count + a->between_count,
        .token = token,
        .tokens = tokens,
    };
    TRY(append(ids, a->before, a->before_count));
    TRY(append(ids, a->question.ids, a->question.count));
    TRY(append(ids, a->between, a->between_count));
    TRY(append(ids, a->context.ids + token, tokens));
    return append(ids, a->behind, a->behind_count);
}

bool answers_find(const struct answers *a, int64_t begin, int64_t end, int64_t *first,
                  int64_t *last)
{
    *first = *last = -1;
    for (int64_t i = 0; i < a->context.count; i++) {
        if (a->end.ids[i] > begin && a->begin.ids[i] < end) {
            *first = *first < 0 ? i : *first;
            *last = i;
        }
    }
    return *first >= 0;
}
