/* BPE over characters, as in SentencePiece (Llama 2, Mistral, Gemma) and GPT-1.
 *
 * A word starts as the ids of its characters. A character may be spelled with a prefix (all but the
 * first) or a suffix (the last). A character without a token becomes the tokens of its bytes
 * (<0x0A>), or the unknown token. Merges then apply as in byte-level BPE (bpe.c).
 *
 * SentencePiece marks the beginning of a word with U+2581. Most of its tokenizers have no
 * pre-tokenizer, so a whole text is one word. If no merge crosses a boundary before U+2581, the
 * text can be split there without a change of its ids. The words are then short and can
 * be cached. */
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "datasets/tokenizer/bpe.h"
#include "datasets/tokenizer/char.h"
#include "datasets/tokenizer/tokenizer_impl.h"

#define MARK "\xe2\x96\x81" /* U+2581 */
#define MARK_BYTES ((size_t)3)
#define SPELLING_BYTES 40 /* prefix, character, suffix */

status char_bpe_create(struct tokenizer *t)
{
    TRY(ALLOCATE(t->chars, 1, "a tokenizer"));
    t->chars->unk = -1;
    return STATUS_OK;
}

static int32_t find_token(const struct tokenizer *t, const char *text, size_t bytes)
{
    const struct text_slot *slot = text_map_find(&t->by_bytes, text, bytes);
    return slot == NULL ? -1 : (int32_t)slot->value;
}

/* Returns whether U+2581 follows another character in the token. */
static bool has_inner_mark(const struct token *token)
{
    size_t pos = 0;
    while (token->length - pos >= MARK_BYTES && memcmp(token->bytes + pos, MARK, MARK_BYTES) == 0) {
        pos += MARK_BYTES;
    }
    return strstr(token->bytes + pos, MARK) != NULL;
}

static bool is_separable(const struct tokenizer *t)
{
    const struct char_bpe *c = t->chars;
    bool separable = find_token(t, MARK, MARK_BYTES) >= 0 && !t->ignore_merges &&
                     c->prefix[0] == '\0' && c->suffix[0] == '\0';
    for (int64_t i = 0; i < t->merge_count && separable; i++) {
        separable = !has_inner_mark(&t->tokens[t->merges[i].result]);
    }
    return separable;
}

status char_bpe_build(struct tokenizer *t)
{
    for (int byte = 0; byte < 256; byte++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)byte);
        t->chars->byte_ids[byte] = find_token(t, text, 6);
    }
    t->chars->separable = is_separable(t);
    return char_build(t);
}

/* Returns the id of a character with its prefix and suffix; -1: none. */
static int32_t find_symbol(const struct tokenizer *t, const char *text, size_t bytes, uint32_t code,
                           bool first, bool last)
{
    const char *prefix = first ? "" : t->chars->prefix, *suffix = last ? t->chars->suffix : "";
    if (prefix[0] == '\0' && suffix[0] == '\0') {
        return code < t->char_limit ? t->char_ids[code] : -1;
    }
    char spelling[SPELLING_BYTES];
    int length = snprintf(spelling, sizeof spelling, "%s%.*s%s", prefix, (int)bytes, text, suffix);
    return find_token(t, spelling, (size_t)length);
}

/* Appends the tokens of the bytes of a character, with its prefix and suffix. Returns false if one
 * of them has no token. */
static bool append_byte_tokens(const struct tokenizer *t, const char *text, size_t bytes,
                               bool first, bool last, struct token_list *out)
{
    const struct char_bpe *c = t->chars;
    const char *parts[3] = {first ? "" : c->prefix, text, last ? c->suffix : ""};
    const size_t lengths[3] = {strlen(parts[0]), bytes, strlen(parts[2])};
    int64_t begin = out->count;
    for (int part = 0; part < 3; part++) {
        for (size_t i = 0; i < lengths[part]; i++) {
            int32_t id = c->byte_ids[(unsigned char)parts[part][i]];
            if (id < 0) {
                out->count = begin;
                return false;
            }
            out->ids[out->count++] = id;
        }
    }
    return true;
}

static void append_unknown(const struct tokenizer *t, bool *unknown, struct token_list *out)
{
    if (*unknown) {
        out->ids[out->count++] = t->chars->unk;
    }
    *unknown = false;
}

/* Appends the symbols of one character. If *unknown is set, an unknown token waits: it is appended
 * before the next character that has a token, as in Hugging Face `tokenizers`. */
static status append_symbol(const struct tokenizer *t, const char *word, size_t bytes, size_t pos,
                            size_t offset, size_t *length, bool *unknown, struct token_list *out)
{
    const struct char_bpe *c = t->chars;
    uint32_t code = UINT32_MAX;
    *length = utf8_read(word + pos, bytes - pos, &code);
    bool valid = *length > 0;
    *length = valid ? *length : 1;
    bool first = pos == 0, last = pos + *length == bytes;
    int32_t id = valid ? find_symbol(t, word + pos, *length, code, first, last) : -1;
    TRY(token_list_reserve(out, 2 + SPELLING_BYTES));
    if (id >= 0) {
        append_unknown(t, unknown, out);
        out->ids[out->count++] = id;
        return STATUS_OK;
    }
    if (c->byte_fallback && append_byte_tokens(t, word + pos, *length, first, last, out)) {
        return STATUS_OK;
    }
    if (c->unk < 0 && valid) {
        return char_raise_missing(word + pos, *length, code, offset + pos);
    }
    REQUIRE(c->unk >= 0, STATUS_DATA, "byte 0x%02x at offset %zu of the text is not UTF-8",
            (unsigned char)word[pos], offset + pos);
    if (!c->fuse_unk) {
        append_unknown(t, unknown, out);
    }
    *unknown = true;
    return STATUS_OK;
}

status char_bpe_append_symbols(const struct tokenizer *t, const char *word, size_t bytes,
                               size_t offset, struct token_list *out)
{
    bool unknown = false;
    for (size_t pos = 0, length = 0; pos < bytes; pos += length) {
        TRY(append_symbol(t, word, bytes, pos, offset, &length, &unknown, out));
    }
    TRY(token_list_reserve(out, 1));
    append_unknown(t, &unknown, out);
    return STATUS_OK;
}

struct word_context {
    const struct tokenizer *t;
    struct bpe_encoder *encoder;
    size_t offset;
    struct token_list *out;
};

/* Returns the next U+2581 that follows another character than U+2581. */
static size_t find_word_end(const char *text, size_t bytes, size_t pos)
{
    while (bytes - pos >= MARK_BYTES && memcmp(text + pos, MARK, MARK_BYTES) == 0) {
        pos += MARK_BYTES;
    }
    while (bytes - pos >= MARK_BYTES) {
        const char *next = memchr(text + pos, MARK[0], bytes - pos - MARK_BYTES + 1);
        if (next == NULL) {
            break;
        }
        pos = (size_t)(next - text);
        if (memcmp(next, MARK, MARK_BYTES) == 0) {
            return pos;
        }
        pos++;
    }
    return bytes;
}

static status visit_word(void *context, const char *word, size_t bytes, size_t offset)
{
    const struct word_context *c = context;
    for (size_t pos = 0, end; pos < bytes; pos = end) {
        end = c->t->chars->separable ? find_word_end(word, bytes, pos) : bytes;
        TRY(bpe_encode_word(c->t, c->encoder, word + pos, end - pos, c->offset + offset + pos,
                            c->out));
    }
    return STATUS_OK;
}

static status visit_bert_word(void *context, const char *word, size_t bytes, size_t characters)
{
    const struct word_context *c = context;
    (void)characters;
    return bpe_encode_word(c->t, c->encoder, word, bytes, c->offset, c->out);
}

status char_bpe_encode(const struct tokenizer *t, struct bpe_encoder *encoder, const char *text,
                       size_t bytes, struct text_place place, struct token_list *out)
{
    struct word_context c = {t, encoder, place.offset, out};
    if (t->chars->bert_words) {
        return bert_text_split_words(&t->chars->bert, text, bytes, visit_bert_word, &c);
    }
    return word_split_run(&t->split, text, bytes, place.at_start, place.continued, visit_word, &c);
}
