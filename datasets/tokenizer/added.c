/* Added tokens (special ones such as <|endoftext|>): found in the text before it is cut into words.
 *
 * At each place the longest added token wins, and the search goes on behind it. Those marked lstrip or rstrip take the
 * white space before or behind them along (RoBERTa's <mask>). As in the
 * `tokenizers` package, those marked `normalized` are looked for only in what the others leave. The
 * ids of a set lie in the order of their bytes; a walk over the text narrows the range of those
 * that still agree, so a place costs at most (longest token) x log(their number). */
#include <stdlib.h>
#include <string.h>

#include "datasets/tokenizer/tokenizer_impl.h"

struct order { /* for qsort, which passes nothing along */
    const struct token *token;
    int32_t id;
};

static int compare_tokens(const void *a, const void *b)
{
    const struct token *x = ((const struct order *)a)->token;
    const struct token *y = ((const struct order *)b)->token;
    uint32_t shared = x->length < y->length ? x->length : y->length;
    int difference = memcmp(x->bytes, y->bytes, shared);
    return difference != 0 ? difference : (x->length > y->length) - (x->length < y->length);
}

static status build_set(struct tokenizer *t, bool normalized)
{
    struct added_set *set = &t->added_sets[normalized];
    struct order *order = malloc(((size_t)t->added_count + 1) * sizeof *order);
    set->ids = malloc(((size_t)t->added_count + 1) * sizeof *set->ids);
    if (order == NULL || set->ids == NULL) {
        free(order);
        RAISE(STATUS_INTERNAL, "out of memory: %lld added tokens", (long long)t->added_count);
    }
    for (int64_t i = 0; i < t->added_count; i++) {
        if (t->added[i].normalized == normalized) {
            order[set->count++] = (struct order){&t->tokens[t->added[i].id], t->added[i].id};
        }
    }
    qsort(order, (size_t)set->count, sizeof *order, compare_tokens);
    for (int64_t i = 0; i < set->count; i++) {
        set->ids[i] = order[i].id;
        set->begins[(unsigned char)order[i].token->bytes[0]] = true;
    }
    free(order);
    return STATUS_OK;
}

status added_build(struct tokenizer *t)
{
    TRY(build_set(t, false));
    return build_set(t, true);
}

/* The first index in [low, high) whose byte at `depth` is at least `byte`. */
static int64_t lower_bound(const struct tokenizer *t, const struct added_set *set, int64_t low,
                           int64_t high, uint32_t depth, int byte)
{
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const struct token *token = &t->tokens[set->ids[middle]];
        int there = depth < token->length ? (unsigned char)token->bytes[depth] : -1;
        if (there < byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* The longest token of the set that text begins with, -1: none. */
static int32_t longest_at(const struct tokenizer *t, const struct added_set *set, const char *text,
                          size_t bytes)
{
    int64_t low = 0;
    int64_t high = set->count;
    int32_t best = -1;
    for (uint32_t depth = 0; depth < bytes && low < high; depth++) {
        int byte = (unsigned char)text[depth];
        low = lower_bound(t, set, low, high, depth, byte);
        high = lower_bound(t, set, low, high, depth, byte + 1);
        if (low < high && t->tokens[set->ids[low]].length == depth + 1) {
            best = set->ids[low];
        }
    }
    return best;
}

static bool is_white(uint32_t code)
{
    return code == ' ' || (code >= 9 && code <= 13) || code == 0x85 || code == 0xa0 ||
           code == 0x1680 || (code >= 0x2000 && code <= 0x200a) || code == 0x2028 ||
           code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

/* The beginning of the white space that text[from, end) ends with. */
static size_t white_before(const char *text, size_t from, size_t end)
{
    while (end > from) {
        size_t at = end - 1;
        uint32_t code = 0;
        while (at > from && end - at < 4 && ((unsigned char)text[at] & 0xc0) == 0x80) {
            at--;
        }
        if (pretokenise_character(text + at, end - at, &code) != end - at || !is_white(code)) {
            break;
        }
        end = at;
    }
    return end;
}

/* The end of the white space that text[at, bytes) begins with. */
static size_t white_behind(const char *text, size_t at, size_t bytes)
{
    uint32_t code = 0;
    for (size_t length;
         (length = pretokenise_character(text + at, bytes - at, &code)) > 0 && is_white(code);) {
        at += length;
    }
    return at;
}

void added_find(const struct tokenizer *t, bool normalized, const char *text, size_t bytes,
                size_t from, struct added_match *match)
{
    const struct added_set *set = &t->added_sets[normalized];
    for (size_t at = from; at < bytes && set->count > 0; at++) {
        if (!set->begins[(unsigned char)text[at]]) {
            continue;
        }
        int32_t id = longest_at(t, set, text + at, bytes - at);
        if (id >= 0) {
            const struct token *token = &t->tokens[id];
            size_t end = at + token->length;
            *match = (struct added_match){
                .id = id,
                .start = token->lstrip ? white_before(text, from, at) : at,
                .end = token->rstrip ? white_behind(text, end, bytes) : end,
            };
            return;
        }
    }
    *match = (struct added_match){.id = -1, .start = bytes, .end = bytes};
}
