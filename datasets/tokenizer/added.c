/* Finds added tokens, such as the special token <|endoftext|>, in a text before it is split
 * into words.
 *
 * At each position the longest added token matches, and the search continues after it. A token
 * with lstrip or rstrip (such as RoBERTa's <mask>) absorbs the white space before or after it.
 * As in Hugging Face `tokenizers`, tokens marked `normalized` are matched only in the text that
 * the others leave.
 *
 * The ids of a set are in the byte order of their tokens. A scan of the text narrows the range
 * of candidates, so a position costs at most (longest token) x log(number of tokens). */
#include "datasets/tokenizer/added.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "datasets/tokenizer/sentencepiece_model.h"
#include "datasets/tokenizer/tokenizer_impl.h"

/* An element for qsort. `order` makes the sort stable. */
struct sort_entry {
    struct added_entry entry;
    int64_t order;
};

static int compare_tokens(const void *a, const void *b)
{
    const struct sort_entry *x = a, *y = b;
    uint32_t x_length = x->entry.length, y_length = y->entry.length;
    int difference =
        memcmp(x->entry.bytes, y->entry.bytes, x_length < y_length ? x_length : y_length);
    if (difference == 0) {
        difference = (x_length > y_length) - (x_length < y_length);
    }
    return difference != 0 ? difference : (x->order > y->order) - (x->order < y->order);
}

/* Makes the entry of an added token. Tokens of a normalized set are matched in normalized text. */
static status make_entry(struct tokenizer *t, const struct added_token *added,
                         struct added_entry *entry)
{
    const struct token *token = &t->tokens[added->id];
    *entry = (struct added_entry){token->bytes, token->length, added->id};
    if (!added->normalized || t->normalizer.count == 0) {
        return STATUS_OK;
    }
    struct text_buffer text = {0};
    status result = normalizer_run(&t->normalizer, token->bytes, token->length, false, &text);
    if (result == STATUS_OK) {
        result = text_store_copy(&t->store, text.bytes, text.count, &entry->bytes);
        entry->length = (uint32_t)text.count;
        t->tokens[added->id].renamed = text.count > 0;
    }
    text_buffer_free(&text);
    return result;
}

static void add_entry(const struct tokenizer *t, struct added_set *set,
                      const struct added_entry *entry)
{
    set->entries[set->count++] = *entry;
    set->begins[(unsigned char)entry->bytes[0]] = true;
    set->has_plain = set->has_plain || !t->tokens[entry->id].special;
    set->longest = entry->length > set->longest ? entry->length : set->longest;
}

static status build_set(struct tokenizer *t, bool normalized)
{
    struct added_set *set = &t->added_sets[normalized];
    struct sort_entry *sorted = NULL;
    int64_t count = 0;
    status result = STATUS_OK;
    TRY_GOTO(result, done, ALLOCATE(sorted, t->added_count + 1, "added tokens"));
    TRY_GOTO(result, done, ALLOCATE(set->entries, t->added_count + 1, "added tokens"));
    for (int64_t i = 0; i < t->added_count; i++) {
        if (t->added[i].normalized == normalized) {
            TRY_GOTO(result, done, make_entry(t, &t->added[i], &sorted[count].entry));
            sorted[count].order = t->added[i].special ? i - t->added_count : i;
            count += sorted[count].entry.length > 0;
        }
    }
    qsort(sorted, (size_t)count, sizeof *sorted, compare_tokens);
    for (int64_t i = 0; i < count; i++) {
        add_entry(t, set, &sorted[i].entry);
    }
done:
    free(sorted);
    return result;
}

const char *added_get_text(const struct tokenizer *t, int32_t id, uint32_t *length)
{
    const struct added_set *set = &t->added_sets[1];
    for (int64_t i = 0; i < set->count; i++) {
        if (set->entries[i].id == id) {
            *length = set->entries[i].length;
            return set->entries[i].bytes;
        }
    }
    *length = t->tokens[id].length;
    return t->tokens[id].bytes;
}

status added_build(struct tokenizer *t)
{
    TRY(build_set(t, false));
    return build_set(t, true);
}

/* Returns the first index in [low, high) of a token with a byte of at least `byte` at `depth`. */
static int64_t find_lower_bound(const struct added_set *set, int64_t low, int64_t high,
                                uint32_t depth, int byte)
{
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const struct added_entry *token = &set->entries[middle];
        int token_byte = depth < token->length ? (unsigned char)token->bytes[depth] : -1;
        if (token_byte < byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/* Returns the longest token of the set at the beginning of the text; NULL: none. */
static const struct added_entry *find_longest_at(const struct added_set *set, const char *text,
                                                 size_t bytes)
{
    int64_t low = 0;
    int64_t high = set->count;
    const struct added_entry *best = NULL;
    for (uint32_t depth = 0; depth < bytes && low < high; depth++) {
        int byte = (unsigned char)text[depth];
        low = find_lower_bound(set, low, high, depth, byte);
        high = find_lower_bound(set, low, high, depth, byte + 1);
        if (low < high && set->entries[low].length == depth + 1) {
            best = &set->entries[low];
        }
    }
    return best;
}

/* Returns the start of the white space at the end of text[from, end); from, if it is not before
 * the end. */
static size_t find_white_space_start(const char *text, size_t from, size_t end)
{
    if (from > end) {
        return from;
    }
    while (end > from) {
        size_t pos = end - 1;
        uint32_t code = 0;
        while (pos > from && end - pos < 4 && utf8_is_continuation(text[pos])) {
            pos--;
        }
        if (utf8_read(text + pos, end - pos, &code) != end - pos ||
            !unicode_form_is_white_space(code)) {
            break;
        }
        end = pos;
    }
    return end;
}

/* Returns the end of the white space at the beginning of text[pos, bytes). */
static size_t skip_white_space(const char *text, size_t pos, size_t bytes)
{
    uint32_t code = 0;
    for (size_t length; (length = utf8_read(text + pos, bytes - pos, &code)) > 0 &&
                        unicode_form_is_white_space(code);) {
        pos += length;
    }
    return pos;
}

void added_find_next(const struct tokenizer *t, bool normalized, bool special, const char *text,
                     size_t bytes, struct added_match *match)
{
    const struct added_set *set = &t->added_sets[normalized];
    bool is_relevant = special ? set->count > 0 : set->has_plain;
    for (size_t pos = match->next; pos < bytes && is_relevant; pos++) {
        if (!set->begins[(unsigned char)text[pos]]) {
            continue;
        }
        const struct added_entry *entry = find_longest_at(set, text + pos, bytes - pos);
        const struct token *token = entry != NULL ? &t->tokens[entry->id] : NULL;
        if (token != NULL && token->special && !special) {
            pos += entry->length - 1; /* the text of a special token remains in one part */
        } else if (token != NULL) {
            size_t next = pos + entry->length;
            *match = (struct added_match){
                .id = entry->id,
                .start = token->lstrip ? find_white_space_start(text, match->end, pos) : pos,
                .end = token->rstrip ? skip_white_space(text, next, bytes) : next,
                .next = next,
            };
            return;
        }
    }
    *match = (struct added_match){.id = -1, .start = bytes, .end = bytes, .next = bytes};
}

bool added_is_at_start(const struct tokenizer *t, const char *text, size_t bytes)
{
    for (int set = 0; set < 2; set++) {
        struct added_match match = {0};
        added_find_next(t, set == 1, false, text, bytes, &match);
        if (match.id >= 0 && match.start == 0) {
            return true;
        }
    }
    return false;
}

/* Returns whether a token of the set that begins at text[0] ends after text[0, end). White space
 * that the token absorbs counts. */
static bool reaches_beyond(const struct tokenizer *t, const struct added_set *set, const char *text,
                           size_t bytes, size_t end)
{
    int64_t low = 0, high = set->count;
    for (uint32_t depth = 0; depth < bytes && low < high; depth++) {
        int byte = (unsigned char)text[depth];
        low = find_lower_bound(set, low, high, depth, byte);
        high = find_lower_bound(set, low, high, depth, byte + 1);
        const struct added_entry *first = low < high ? &set->entries[low] : NULL;
        if (first != NULL && (depth == end || (depth + 1 == end && first->length == end &&
                                               t->tokens[first->id].rstrip))) {
            return true;
        }
    }
    return false;
}

bool tokenizer_is_added_boundary(const struct tokenizer *t, const char *text, size_t bytes,
                                 size_t position)
{
    for (int i = 0; i < 2; i++) {
        const struct added_set *set = &t->added_sets[i];
        for (size_t back = 1; back <= set->longest && back <= position; back++) {
            size_t begin = position - back;
            if (set->begins[(unsigned char)text[begin]] &&
                reaches_beyond(t, set, text + begin, bytes - begin, back)) {
                return false;
            }
        }
    }
    return true;
}

/* ---- further special tokens ---- */

/* Marks a token that is listed already as special. Returns whether it is listed. */
static bool mark_special(json_t *list, const char *token)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        json_t *entry = json_array_get(list, i);
        const char *content = json_string_value(json_object_get(entry, "content"));
        if (content != NULL && strcmp(content, token) == 0) {
            json_object_set_new(entry, "special", json_true());
            return true;
        }
    }
    return false;
}

/* Adds the tokens to the list. A token of the vocabulary keeps its id. */
static status extend_list(const struct tokenizer *t, json_t *list, char *const *tokens, int count)
{
    int64_t next = tokenizer_vocab_size(t);
    for (int i = 0; i < count; i++) {
        REQUIRE(tokens[i][0] != '\0', STATUS_USAGE, "an added token is empty");
        if (mark_special(list, tokens[i])) {
            continue;
        }
        int32_t id = tokenizer_find(t, tokens[i]);
        json_t *entry =
            json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id",
                      (json_int_t)(id >= 0 ? id : next), "content", tokens[i], "single_word", 0,
                      "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
        REQUIRE(entry != NULL, STATUS_USAGE, "the added token %d is not valid UTF-8", i + 1);
        REQUIRE(json_array_append_new(list, entry) == 0, STATUS_INTERNAL,
                "out of memory for the added tokens");
        next += id < 0;
    }
    return STATUS_OK;
}

static status parse_text(const json_t *root, struct tokenizer **out)
{
    char *text = json_dumps(root, JSON_COMPACT);
    REQUIRE(text != NULL, STATUS_INTERNAL, "out of memory for a tokenizer");
    status result = tokenizer_from_text(text, strlen(text), "the tokenizer with added tokens", out);
    free(text);
    return result;
}

/* Works on the text of tokenizer.json, so that the result passes all checks of a file. */
status tokenizer_add_special(const struct tokenizer *t, char *const *tokens, int count,
                             struct tokenizer **out)
{
    char *text = NULL;
    size_t bytes = 0;
    *out = NULL;
    REQUIRE(t->target == NULL, STATUS_UNAVAILABLE,
            "tokens cannot be added to a tokenizer with two vocabularies");
    if (t->kind == TOKENIZER_SENTENCEPIECE) {
        return sentencepiece_model_add_special(t, tokens, count, out);
    }
    REQUIRE(t->kind != TOKENIZER_MARIAN, STATUS_UNAVAILABLE,
            "tokens cannot be added to a tokenizer with source.spm and target.spm");
    TRY(tokenizer_to_text(t, &text, &bytes));
    json_t *root = json_loadb(text, bytes, JSON_ALLOW_NUL, NULL);
    free(text);
    json_t *list = json_object_get(root, "added_tokens");
    status result = STATUS_OK;
    if (root != NULL && list == NULL) {
        list = json_array();
        json_object_set_new(root, "added_tokens", list);
    }
    REQUIRE_GOTO(result, done, json_is_array(list), STATUS_INTERNAL,
                 "out of memory for a tokenizer");
    TRY_GOTO(result, done, extend_list(t, list, tokens, count));
    result = parse_text(root, out);
done:
    json_decref(root);
    return result;
}
