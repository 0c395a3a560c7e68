#include "datasets/tokenizer/text_pair.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "datasets/tokenizer/added.h"
#include "datasets/tokenizer/marian.h"
#include "datasets/tokenizer/post_processor.h"
#include "datasets/tokenizer/tokenizer_impl.h"

static status encode_for_encoder(const struct tokenizer *t, const struct text *text,
                                 const struct text *pair, int64_t max_tokens,
                                 struct token_list *out, int64_t *first_segment_tokens,
                                 int64_t *truncated)
{
    const char *b = pair != NULL ? pair->bytes : NULL;
    int64_t start = out->count;
    TRY(tokenizer_encode_pair(t, text->bytes, text->count, b, b != NULL ? pair->count : 0, false, 0,
                              out, first_segment_tokens));
    *truncated =
        max_tokens > 0 && out->count - start > max_tokens ? out->count - start - max_tokens : 0;
    if (*truncated == 0) {
        return STATUS_OK;
    }
    out->count = start;
    return tokenizer_encode_pair(t, text->bytes, text->count, b, b != NULL ? pair->count : 0, false,
                                 max_tokens, out, first_segment_tokens);
}

static status append_delimiter(const struct tokenizer *t, struct token_list *out)
{
    int32_t end = tokenizer_eos(t);
    if (end < 0) {
        return tokenizer_encode(t, "\n", 1, false, out);
    }
    return token_list_add(out, end);
}

/* Moves `count` ids from index `begin` down to `to` and makes them the end of the list. */
static void move_tail(struct token_list *list, int64_t to, int64_t begin, int64_t count)
{
    memmove(list->ids + to, list->ids + begin, (size_t)count * sizeof *list->ids);
    list->count = to + count;
}

/* Truncates text, delimiter and pair, which are concatenated in the list from index `start`. */
static status truncate_pair(struct token_list *out, int64_t start, int64_t text, int64_t delimiter,
                            int64_t max_tokens, int64_t *first_segment_tokens)
{
    int64_t pair = out->count - start - text - delimiter, a = text, b = pair;
    REQUIRE(max_tokens > delimiter + 1, STATUS_USAGE,
            "the limit of %" PRId64 " tokens leaves no room for two texts; raise it", max_tokens);
    while (a + b > max_tokens - delimiter) {
        *(a > b ? &a : &b) -= 1;
    }
    move_tail(out, start + a, start + text, delimiter + pair);
    out->count = start + a + delimiter + b;
    *first_segment_tokens = a + delimiter;
    return STATUS_OK;
}

static status encode_concatenated(const struct tokenizer *t, const struct text *text,
                                  const struct text *pair, int64_t max_tokens,
                                  struct token_list *out, int64_t *first_segment_tokens,
                                  int64_t *truncated)
{
    int64_t start = out->count;
    TRY(tokenizer_encode(t, text->bytes, text->count, false, out));
    int64_t count = out->count - start, delimiter = 0;
    REQUIRE(count > 0, STATUS_DATA, "the text has no tokens");
    if (pair != NULL && pair->bytes != NULL) {
        TRY(append_delimiter(t, out));
        delimiter = out->count - start - count;
        TRY(tokenizer_encode(t, pair->bytes, pair->count, false, out));
    }
    *first_segment_tokens = count + delimiter;
    int64_t total = out->count - start;
    *truncated = max_tokens > 0 && total > max_tokens ? total - max_tokens : 0;
    if (*truncated == 0) {
        return STATUS_OK;
    }
    if (total > count) {
        return truncate_pair(out, start, count, delimiter, max_tokens, first_segment_tokens);
    }
    out->count = start + max_tokens;
    *first_segment_tokens = max_tokens;
    return STATUS_OK;
}

status text_pair_encode(const struct tokenizer *t, const struct text *text, const struct text *pair,
                        int64_t max_tokens, struct token_list *out, int64_t *first_segment_tokens,
                        int64_t *truncated)
{
    struct tokenizer_specials s = tokenizer_get_specials(t);
    return s.cls >= 0 && s.sep >= 0
               ? encode_for_encoder(t, text, pair, max_tokens, out, first_segment_tokens, truncated)
               : encode_concatenated(t, text, pair, max_tokens, out, first_segment_tokens,
                                     truncated);
}

status text_pair_encode_word(const struct tokenizer *t, const struct text *word, bool first,
                             struct token_list *out, int64_t *begin)
{
    enum tokenizer_kind kind = tokenizer_get_kind(t);
    char text[TEXT_PAIR_WORD_BYTES + 1] = " ";
    bool is_added = added_is_at_start(t, word->bytes, word->count);
    size_t space_bytes = kind == TOKENIZER_BPE && !is_added;
    REQUIRE(word->count <= TEXT_PAIR_WORD_BYTES, STATUS_DATA,
            "a word has %zu bytes; at most %d are supported", word->count, TEXT_PAIR_WORD_BYTES);
    TRY(kind == TOKENIZER_CHAR && !first ? tokenizer_encode(t, " ", 1, false, out) : STATUS_OK);
    memcpy(text + space_bytes, word->bytes, word->count);
    *begin = out->count;
    TRY(space_bytes > 0 ? tokenizer_encode_continued(t, text, word->count + 1, out)
                        : tokenizer_encode(t, text, word->count, false, out));
    REQUIRE(word->count > 0 && out->count > *begin, STATUS_DATA,
            "the tokenizer has no tokens for the word '%.*s'",
            (int)(word->count < 100 ? word->count : 100), word->bytes);
    return STATUS_OK;
}

bool text_pair_has_segment_tokens(const struct tokenizer *t)
{
    struct tokenizer_specials s = tokenizer_get_specials(t);
    return s.cls >= 0 && s.sep >= 0;
}

static status encode_sequence(const struct tokenizer *t, const struct text *text, int32_t language,
                              enum text_side side, struct token_list *out)
{
    int64_t first_segment;
    t = side == TEXT_TARGET ? tokenizer_target(t) : t;
    if (tokenizer_language_place(t) != TOKENIZER_LANGUAGE_NONE) {
        return tokenizer_encode_language(t, text->bytes, text->count, false, language, 0, out);
    }
    if (text_pair_has_segment_tokens(t)) {
        return tokenizer_encode_pair(t, text->bytes, text->count, NULL, 0, false, 0, out,
                                     &first_segment);
    }
    TRY(t->kind == TOKENIZER_MARIAN
            ? marian_encode(t, text->bytes, text->count, false, side == TEXT_TARGET, out)
            : tokenizer_encode(t, text->bytes, text->count, false, out));
    return token_list_add(out, tokenizer_eos(t));
}

status text_pair_encode_sequence(const struct tokenizer *t, const char *prefix,
                                 const struct text *text, enum text_side side, int32_t language,
                                 struct token_list *out)
{
    size_t prefix_bytes = prefix != NULL ? strlen(prefix) : 0;
    if (prefix_bytes == 0) {
        return encode_sequence(t, text, language, side, out);
    }
    char *joined = NULL;
    TRY(ALLOCATE(joined, prefix_bytes + text->count, "a text"));
    memcpy(joined, prefix, prefix_bytes);
    memcpy(joined + prefix_bytes, text->bytes, text->count);
    const struct text whole = {joined, prefix_bytes + text->count};
    status result = encode_sequence(t, &whole, language, side, out);
    free(joined);
    return result;
}

status text_pair_enclose(const struct tokenizer *t, struct token_list *ids)
{
    struct tokenizer_specials s = tokenizer_get_specials(t);
    REQUIRE(tokenizer_language_place(t) == TOKENIZER_LANGUAGE_NONE, STATUS_UNAVAILABLE,
            "a chat template cannot be combined with the language tokens of the tokenizer; use "
            "plain prompts");
    if (!text_pair_has_segment_tokens(t)) {
        REQUIRE(tokenizer_eos(t) >= 0, STATUS_UNAVAILABLE,
                "the tokenizer has no end token; use a tokenizer with one");
        return token_list_add(ids, tokenizer_eos(t));
    }
    TRY(token_list_reserve(ids, 2));
    memmove(ids->ids + 1, ids->ids, (size_t)ids->count * sizeof *ids->ids);
    ids->ids[0] = s.cls;
    ids->ids[ids->count + 1] = s.sep;
    ids->count += 2;
    return STATUS_OK;
}

/* Shortens lengths a and b to a sum of max_tokens: first the longer one until both are equal, then
 * both. */
static void shorten_pair(int64_t *a, int64_t *b, int64_t max_tokens)
{
    int64_t *shorter = *a <= *b ? a : b, *longer = *a <= *b ? b : a;
    int64_t left = max_tokens - *shorter;
    if (left >= *shorter) {
        *longer = left;
    } else {
        *shorter = max_tokens / 2;
        *longer = max_tokens - max_tokens / 2;
    }
}

status tokenizer_encode_pair(const struct tokenizer *t, const char *a, size_t a_bytes,
                             const char *b, size_t b_bytes, bool special, int64_t max_tokens,
                             struct token_list *out, int64_t *first_segment_tokens)
{
    if (tokenizer_language_place(t) != TOKENIZER_LANGUAGE_NONE) {
        return post_processor_encode_input(t, a, a_bytes, b != NULL, special, max_tokens, out);
    }
    int32_t cls = t->specials.cls, sep = t->specials.sep;
    int64_t separators = t->post_processor == POST_PROCESSOR_ROBERTA && b != NULL ? 2 : 1;
    int64_t special_count = b == NULL ? 2 : 2 + separators, before = out->count;
    REQUIRE(cls >= 0 && sep >= 0, STATUS_DATA,
            "the tokenizer has no [CLS] and [SEP] tokens, which the input of an encoder needs");
    REQUIRE(max_tokens == 0 || max_tokens >= special_count, STATUS_USAGE,
            "the limit of %" PRId64 " tokens is too low: the special tokens alone are %" PRId64,
            max_tokens, special_count);
    TRY(token_list_reserve(out, special_count));
    out->ids[out->count++] = cls;
    status result = tokenizer_encode(t, a, a_bytes, special, out);
    int64_t b_begin = out->count;
    if (result == STATUS_OK && b != NULL) {
        result = tokenizer_encode(t, b, b_bytes, special, out);
    }
    if (result != STATUS_OK) {
        out->count = before;
        return result;
    }
    int64_t a_count = b_begin - before - 1, b_count = out->count - b_begin;
    if (max_tokens > 0 && a_count + b_count > max_tokens - special_count) {
        shorten_pair(&a_count, &b_count, max_tokens - special_count);
    }
    TRY(token_list_reserve(out, 3));
    *first_segment_tokens = a_count + 1 + separators;
    memmove(out->ids + before + *first_segment_tokens, out->ids + b_begin,
            (size_t)b_count * sizeof *out->ids);
    for (int64_t i = 0; i < separators; i++) {
        out->ids[before + a_count + 1 + i] = sep;
    }
    out->count = before + *first_segment_tokens + b_count;
    if (b != NULL) {
        out->ids[out->count++] = sep;
    }
    return STATUS_OK;
}
