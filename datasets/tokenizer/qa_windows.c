#include "datasets/tokenizer/qa_windows.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "base/utf8.h"
#include "datasets/tokenizer/added.h"
#include "datasets/tokenizer/tokenizer_impl.h"

void qa_windows_free(struct qa_windows *w)
{
    token_list_free(&w->question);
    token_list_free(&w->context);
    token_list_free(&w->char_begin);
    token_list_free(&w->char_end);
    *w = (struct qa_windows){0};
}

/* ---- code points ---- */

int64_t qa_windows_count_code_points(const struct text *text)
{
    return utf8_count_characters(text->bytes, text->count);
}

size_t qa_windows_byte_offset(const struct text *text, int64_t point)
{
    size_t pos = 0;
    for (int64_t points_seen = 0; pos < text->count; pos++) {
        if (!utf8_is_continuation(text->bytes[pos]) && points_seen++ == point) {
            return pos;
        }
    }
    return pos;
}

/* ---- tokens of the context and their character offsets ---- */

static status append_offsets(struct qa_windows *w, int64_t begin, int64_t end)
{
    TRY(token_list_add(&w->char_begin, (int32_t)begin));
    return token_list_add(&w->char_end, (int32_t)end);
}

static bool is_white_space(char byte)
{
    return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

/* Returns whether the byte is ASCII punctuation, which BERT's pre-tokenizer always separates. */
static bool is_ascii_punctuation(char byte)
{
    return (byte >= '!' && byte <= '/') || (byte >= ':' && byte <= '@') ||
           (byte >= '[' && byte <= '`') || (byte >= '{' && byte <= '~');
}

status qa_windows_token_text(const struct tokenizer *t, int32_t id, char **out, size_t *count)
{
    size_t decoded_bytes = 0;
    TRY(tokenizer_decode(t, &id, 1, false, out, &decoded_bytes));
    bool continuation = tokenizer_get_kind(t) == TOKENIZER_WORDPIECE &&
                        tokenizer_is_continuation(t, id) && decoded_bytes > 2 &&
                        memcmp(*out, "##", 2) == 0;
    if (continuation) {
        memmove(*out, *out + 2, decoded_bytes - 2);
    }
    *count = continuation ? decoded_bytes - 2 : decoded_bytes;
    return STATUS_OK;
}

static status count_token_code_points(const struct tokenizer *t, int32_t id, int64_t *out)
{
    char *bytes = NULL;
    size_t count = 0;
    TRY(qa_windows_token_text(t, id, &bytes, &count));
    *out = utf8_count_characters(bytes, count);
    free(bytes);
    return STATUS_OK;
}

/* Appends offsets for the context tokens from index `from`. They are the tokens of one word, which
 * is the code points [begin, end). */
static status append_word_offsets(const struct tokenizer *t, struct qa_windows *w, int64_t from,
                                  int64_t begin, int64_t end)
{
    int64_t token_points = 0, pos = begin;
    for (int64_t i = from; i < w->context.count; i++) {
        int64_t points = 0;
        TRY(count_token_code_points(t, w->context.ids[i], &points));
        token_points += points;
    }
    bool is_exact = token_points == end - begin;
    for (int64_t i = from; i < w->context.count; i++) {
        int64_t points = 0;
        TRY(count_token_code_points(t, w->context.ids[i], &points));
        TRY(append_offsets(w, is_exact ? pos : begin, is_exact ? pos + points : end));
        pos += points;
    }
    return STATUS_OK;
}

/* Encodes text[from, to) word by word. White space and ASCII punctuation are word boundaries of
 * WordPiece, and the tokens of a word depend only on that word. */
static status encode_words(const struct tokenizer *t, const char *text, size_t from, size_t to,
                           int64_t *point, struct qa_windows *w)
{
    for (size_t pos = from; pos < to;) {
        size_t begin = pos;
        if (is_white_space(text[pos])) {
            pos++;
            ++*point;
            continue;
        }
        for (pos++; pos < to && !is_ascii_punctuation(text[begin]) && !is_white_space(text[pos]) &&
                    !is_ascii_punctuation(text[pos]);
             pos++) {
        }
        int64_t first = w->context.count, points = utf8_count_characters(text + begin, pos - begin);
        TRY(tokenizer_encode(t, text + begin, pos - begin, false, &w->context));
        TRY(append_word_offsets(t, w, first, *point, *point + points));
        *point += points;
    }
    return STATUS_OK;
}

/* Encodes text[from, to). An added token may contain white space and punctuation, so the text is
 * first split at the added tokens of set 0. The rest is split at the added tokens of set 1, as in
 * tokenizer_encode. */
static status encode_around_added(const struct tokenizer *t, const char *text, size_t from,
                                  size_t to, int set, int64_t *point, struct qa_windows *w)
{
    if (set == 2) {
        return encode_words(t, text, from, to, point, w);
    }
    struct added_match match = {.end = from, .next = from};
    do {
        size_t begin = match.end;
        added_find_next(t, set == 1, false, text, to, &match);
        if (match.start > begin) {
            TRY(encode_around_added(t, text, begin, match.start, set + 1, point, w));
        }
        if (match.id >= 0 && match.start < match.end) {
            int64_t points = utf8_count_characters(text + match.start, match.end - match.start);
            TRY(token_list_add(&w->context, match.id));
            TRY(append_offsets(w, *point, *point + points));
            *point += points;
        }
    } while (match.id >= 0);
    return STATUS_OK;
}

/* Appends offsets for the token of text[begin, end). A token may begin or end inside a code point.
 * Its range excludes leading white space; a token of white space has an empty range. */
static status append_token_offsets(struct qa_windows *w, const struct text *text, size_t begin,
                                   size_t end, int64_t *point, size_t *counted_bytes)
{
    while (begin < end && is_white_space(text->bytes[begin])) {
        begin++;
    }
    *point += utf8_count_characters(text->bytes + *counted_bytes, begin - *counted_bytes);
    *counted_bytes = begin;
    int64_t first = *point - (begin < end && utf8_is_continuation(text->bytes[begin]));
    return append_offsets(w, first,
                          *point + utf8_count_characters(text->bytes + begin, end - begin));
}

static status encode_context_bytes(const struct tokenizer *t, const struct text *text,
                                   struct qa_windows *w)
{
    size_t pos = 0, counted_bytes = 0;
    int64_t point = 0;
    TRY(tokenizer_encode(t, text->bytes, text->count, false, &w->context));
    for (int64_t i = 0; i < w->context.count; i++) {
        char *bytes = NULL;
        size_t count = 0;
        TRY(qa_windows_token_text(t, w->context.ids[i], &bytes, &count));
        bool matches =
            count > 0 && count <= text->count - pos && memcmp(bytes, text->bytes + pos, count) == 0;
        free(bytes);
        REQUIRE(
            matches, STATUS_DATA,
            "the tokenizer changes the text, so the character offsets of its tokens are unknown");
        TRY(append_token_offsets(w, text, pos, pos + count, &point, &counted_bytes));
        pos += count;
    }
    return STATUS_OK;
}

/* ---- windows ---- */

static status copy_specials(const struct token_list *from, int64_t first, int64_t count,
                            int32_t *to, int capacity, int *out)
{
    REQUIRE(count >= 0 && count <= capacity, STATUS_INTERNAL,
            "the post-processor adds %" PRId64
            " special tokens in one place; at most %d are supported",
            count, capacity);
    memcpy(to, from->ids + first, (size_t)count * sizeof *to);
    *out = (int)count;
    return STATUS_OK;
}

/* Finds the special tokens around question and context by encoding a pair of empty texts. */
static status find_special_tokens(const struct tokenizer *t, struct qa_windows *w)
{
    struct tokenizer_specials s = tokenizer_get_specials(t);
    struct token_list specials = {0};
    int64_t first = 0;
    status result = STATUS_OK;
    if (s.cls < 0 || s.sep < 0) {
        int32_t end = tokenizer_eos(t);
        result = end >= 0 ? token_list_add(&specials, end)
                          : tokenizer_encode(t, "\n", 1, false, &specials);
        if (result == STATUS_OK) {
            result =
                copy_specials(&specials, 0, specials.count, w->separator, 8, &w->separator_count);
        }
        w->first_segment_separators = w->separator_count;
        token_list_free(&specials);
        return result;
    }
    result = tokenizer_encode_pair(t, "", 0, "", 0, false, 0, &specials, &first);
    if (result == STATUS_OK) {
        w->prefix[0] = specials.ids[0];
        w->suffix[0] = specials.ids[specials.count - 1];
        w->prefix_count = w->suffix_count = 1;
        w->first_segment_separators = (int)first - 1;
        result =
            copy_specials(&specials, 1, specials.count - 2, w->separator, 8, &w->separator_count);
    }
    token_list_free(&specials);
    return result;
}

/* Computes the number of windows and their distance. */
static status plan_windows(struct qa_windows *w, int64_t max_tokens)
{
    int64_t fixed_tokens =
        w->prefix_count + w->separator_count + w->suffix_count + w->question.count;
    w->capacity = max_tokens - fixed_tokens;
    REQUIRE(w->capacity > 0, STATUS_DATA,
            "the question has %" PRId64 " tokens and leaves no room for a context in %" PRId64,
            w->question.count, max_tokens);
    int64_t overlap = QA_WINDOWS_OVERLAP < w->capacity ? QA_WINDOWS_OVERLAP : w->capacity / 2;
    w->stride = w->capacity - overlap;
    int64_t excess = w->context.count - w->capacity;
    w->window_count = 1 + (excess > 0 ? number_divide_up(excess, w->stride) : 0);
    return STATUS_OK;
}

status qa_windows_encode(const struct tokenizer *t, const struct text *question,
                         const struct text *context, int64_t max_tokens, struct qa_windows *out)
{
    int64_t point = 0;
    *out = (struct qa_windows){0};
    TRY(find_special_tokens(t, out));
    TRY(tokenizer_encode(t, question->bytes, question->count, false, &out->question));
    TRY(tokenizer_get_kind(t) == TOKENIZER_WORDPIECE
            ? encode_around_added(t, context->bytes, 0, context->count, 0, &point, out)
            : encode_context_bytes(t, context, out));
    REQUIRE(out->question.count > 0 && out->context.count > 0, STATUS_DATA,
            "the question has %" PRId64 " tokens and the context %" PRId64
            "; both must have tokens",
            out->question.count, out->context.count);
    return plan_windows(out, max_tokens);
}

status qa_windows_window(const struct qa_windows *w, int64_t window, struct token_list *ids,
                         struct qa_windows_window *out)
{
    int64_t token = window * w->stride, remaining = w->context.count - token;
    int64_t tokens = number_min(remaining, w->capacity);
    *out = (struct qa_windows_window){
        .first_segment_tokens = w->prefix_count + w->question.count + w->first_segment_separators,
        .context_start = w->prefix_count + w->question.count + w->separator_count,
        .first_context_token = token,
        .context_tokens = tokens,
    };
    TRY(token_list_append(ids, w->prefix, w->prefix_count));
    TRY(token_list_append(ids, w->question.ids, w->question.count));
    TRY(token_list_append(ids, w->separator, w->separator_count));
    TRY(token_list_append(ids, w->context.ids + token, tokens));
    return token_list_append(ids, w->suffix, w->suffix_count);
}

bool qa_windows_find_tokens(const struct qa_windows *w, int64_t begin, int64_t end, int64_t *first,
                            int64_t *last)
{
    *first = *last = -1;
    for (int64_t i = 0; i < w->context.count; i++) {
        if (w->char_end.ids[i] > begin && w->char_begin.ids[i] < end) {
            *first = *first < 0 ? i : *first;
            *last = i;
        }
    }
    return *first >= 0;
}
