#include "datasets/tokenizer/tokenizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/number.h"
#include "base/utf8.h"
#include "datasets/sentencepiece/sentencepiece.h"
#include "datasets/tokenizer/added.h"
#include "datasets/tokenizer/bpe.h"
#include "datasets/tokenizer/char.h"
#include "datasets/tokenizer/marian.h"
#include "datasets/tokenizer/sentencepiece_model.h"
#include "datasets/tokenizer/tokenizer_impl.h"
#include "datasets/tokenizer/unigram_model.h"
#include "datasets/tokenizer/vocab_merges.h"

/* End-of-text tokens of published tokenizers, in order of preference. They apply if no
 * tokenizer_config.json names the token. */
static const char *const known_eos_tokens[] = {TOKENIZER_EOS, "</s>",       "<|end_of_text|>",
                                               "<eos>",       "<|eot_id|>", "<|im_end|>"};

status tokenizer_allocate(enum tokenizer_kind kind, int64_t vocab_size, struct tokenizer **out)
{
    *out = NULL;
    struct tokenizer *t = NULL;
    TRY(ALLOCATE(t, 1, "a tokenizer"));
    t->kind = kind;
    t->vocab_size = vocab_size;
    t->eos = t->bos = t->end = t->language = -1;
    status result = ALLOCATE(t->tokens, vocab_size + 1, "a tokenizer");
    KEEP_FIRST(result, ALLOCATE(t->pool, 1, "a tokenizer"));
    if (result != STATUS_OK) {
        free(t->tokens);
        free(t->pool);
        free(t);
        return result;
    }
    pthread_mutex_init(&t->pool->lock, NULL);
    *out = t;
    if (kind == TOKENIZER_WORDPIECE) {
        TRY(ALLOCATE(t->wordpiece, 1, "a tokenizer"));
        *t->wordpiece = (struct wordpiece){.normalizer = {true, true, true, true},
                                           .accents_follow_case = true,
                                           .cleanup = true,
                                           .max_word_chars = WORDPIECE_MAX_WORD_CHARS,
                                           .prefix = WORDPIECE_PREFIX};
    }
    return STATUS_OK;
}

status tokenizer_destroy(struct tokenizer **tokenizer)
{
    struct tokenizer *t = *tokenizer;
    if (t == NULL) {
        return STATUS_OK;
    }
    while (t->pool->idle != NULL) {
        struct bpe_encoder *encoder = t->pool->idle;
        t->pool->idle = bpe_encoder_next(encoder);
        bpe_encoder_destroy(encoder);
    }
    pthread_mutex_destroy(&t->pool->lock);
    free(t->pool);
    tokenizer_destroy(&t->target);
    pretokenizer_destroy(t->pretokenizer);
    normalizer_free(&t->normalizer);
    decoder_free(&t->decoder);
    free(t->chars);
    wordpiece_free(t->wordpiece);
    unigram_model_free(t->unigram);
    sentencepiece_close(&t->sentencepiece);
    sentencepiece_close(&t->marian[0]);
    sentencepiece_close(&t->marian[1]);
    free(t->char_ids);
    free(t->pairs);
    text_map_free(&t->by_bytes);
    free(t->added_sets[0].entries);
    free(t->added_sets[1].entries);
    free(t->merges);
    free(t->added);
    text_store_free(&t->store);
    free(t->tokens);
    free(t);
    *tokenizer = NULL;
    return STATUS_OK;
}

status tokenizer_set_token(struct tokenizer *t, int64_t id, const char *bytes, size_t length)
{
    TRY(text_store_copy(&t->store, bytes, length, &t->tokens[id].bytes));
    t->tokens[id].length = (uint32_t)length;
    return STATUS_OK;
}

status tokenizer_register_added(struct tokenizer *t, struct added_token token)
{
    TRY(GROW(t->added, t->added_count + 1, "added tokens"));
    t->added[t->added_count++] = token;
    t->tokens[token.id].added = true;
    t->tokens[token.id].special = token.special;
    t->tokens[token.id].lstrip = token.lstrip;
    t->tokens[token.id].rstrip = token.rstrip;
    return STATUS_OK;
}

static status map_bytes(struct tokenizer *t)
{
    for (int64_t id = 0; id < t->vocab_size; id++) {
        const struct token *token = &t->tokens[id];
        if (!token->in_model || (token->literal && t->kind == TOKENIZER_BPE && t->chars == NULL)) {
            continue;
        }
        struct text_slot *slot;
        bool is_new;
        TRY(text_map_find_or_add(&t->by_bytes, NULL, token->bytes, token->length, &slot, &is_new));
        if (is_new) {
            slot->value = id;
        }
    }
    return STATUS_OK;
}

static int32_t find_added(const struct tokenizer *t, const char *text, size_t bytes)
{
    for (int64_t i = 0; i < t->added_count; i++) {
        const struct token *token = &t->tokens[t->added[i].id];
        if (token->length == bytes && memcmp(token->bytes, text, bytes) == 0) {
            return t->added[i].id;
        }
    }
    return -1;
}

/* Finds a special token by BERT's name or RoBERTa's. A vocabulary can have both; RoBERTa's
 * post-processor then decides. Llama 2 has RoBERTa's <s> and </s> too, but they do not enclose
 * its texts. */
static int32_t find_special(const struct tokenizer *t, const char *bert, const char *roberta)
{
    bool roberta_first = t->post_processor == POST_PROCESSOR_ROBERTA;
    if (t->post_processor == POST_PROCESSOR_BOS || t->chars != NULL ||
        (t->kind == TOKENIZER_MARIAN && strcmp(roberta, "<s>") == 0)) {
        return tokenizer_find(t, bert);
    }
    int32_t id = tokenizer_find(t, roberta_first ? roberta : bert);
    return id >= 0 ? id : tokenizer_find(t, roberta_first ? bert : roberta);
}

static status compute_sha256(struct tokenizer *t)
{
    if (t->kind == TOKENIZER_SENTENCEPIECE) {
        return sentencepiece_model_sha256(t, t->sha256);
    }
    if (t->kind == TOKENIZER_MARIAN) {
        return marian_sha256(t, t->sha256);
    }
    char *text = NULL;
    size_t bytes = 0;
    TRY(tokenizer_to_text(t, &text, &bytes));
    status result = hash_memory(text, bytes, t->sha256);
    free(text);
    return result;
}

status tokenizer_finish(struct tokenizer *t)
{
    if (t->kind == TOKENIZER_CHAR) {
        TRY(char_build(t));
    } else if (t->kind == TOKENIZER_SENTENCEPIECE || t->kind == TOKENIZER_MARIAN) {
        TRY(map_bytes(t));
    } else if (t->kind == TOKENIZER_UNIGRAM) {
        TRY(map_bytes(t));
        TRY(unigram_model_build(t));
    } else if (t->kind == TOKENIZER_WORDPIECE) {
        TRY(map_bytes(t));
        TRY(wordpiece_build(t));
    } else {
        TRY(map_bytes(t));
        TRY(bpe_build(t));
        TRY(t->chars != NULL ? char_bpe_build(t) : STATUS_OK);
        TRY(pretokenizer_create(t->pattern, &t->pretokenizer));
    }
    TRY(added_build(t));
    for (int i = 0; i < COUNT(known_eos_tokens) && t->eos < 0; i++) {
        t->eos = find_added(t, known_eos_tokens[i], strlen(known_eos_tokens[i]));
    }
    t->specials = (struct tokenizer_specials){.cls = find_special(t, "[CLS]", "<s>"),
                                              .sep = find_special(t, "[SEP]", "</s>"),
                                              .pad = find_special(t, "[PAD]", "<pad>"),
                                              .mask = find_special(t, "[MASK]", "<mask>"),
                                              .unknown = find_special(t, "[UNK]", "<unk>")};
    return compute_sha256(t);
}

status tokenizer_train(enum tokenizer_kind kind, bool roberta, int64_t vocab_size,
                       const struct corpus_source *source, int workers, struct tokenizer **out)
{
    *out = NULL;
    status result = STATUS_OK;
    switch (kind) {
    case TOKENIZER_BPE:
        result = bpe_train(vocab_size, roberta, source, workers, out);
        break;
    case TOKENIZER_CHAR:
        result = char_train(vocab_size, source, out);
        break;
    case TOKENIZER_WORDPIECE:
        result = wordpiece_train(vocab_size, source, workers, out);
        break;
    case TOKENIZER_UNIGRAM:
        result = unigram_model_train(vocab_size, source, workers, out);
        break;
    case TOKENIZER_SENTENCEPIECE:
    case TOKENIZER_MARIAN:
        result =
            RAISE_STATUS(STATUS_USAGE, "a file tokenizer.model cannot be trained; use unigram");
        break;
    }
    if (result != STATUS_OK) {
        tokenizer_destroy(out);
    }
    return result;
}

const struct tokenizer *tokenizer_target(const struct tokenizer *t)
{
    return t != NULL && t->target != NULL ? t->target : t;
}

bool tokenizer_has_target(const struct tokenizer *t)
{
    return t != NULL && t->target != NULL;
}

enum tokenizer_kind tokenizer_get_kind(const struct tokenizer *t)
{
    return t->kind;
}

int64_t tokenizer_vocab_size(const struct tokenizer *t)
{
    return t->vocab_size;
}

int64_t tokenizer_max_vocab_size(const struct tokenizer *t)
{
    int64_t targets = tokenizer_target(t)->vocab_size;
    return number_max(targets, t->vocab_size);
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

int32_t tokenizer_bos(const struct tokenizer *t)
{
    return t->bos;
}

status tokenizer_append_bos(const struct tokenizer *t, struct token_list *out)
{
    if (t->bos >= 0) {
        TRY(token_list_add(out, t->bos));
    }
    return STATUS_OK;
}

bool tokenizer_keeps_bytes(const struct tokenizer *t)
{
    bool keeps = t->kind == TOKENIZER_BPE && (t->chars == NULL || !t->chars->bert_words);
    for (int byte = 0; byte < 256 && keeps && t->chars != NULL; byte++) {
        keeps = t->chars->byte_fallback && t->chars->byte_ids[byte] >= 0;
    }
    return keeps;
}

bool tokenizer_has_character_words(const struct tokenizer *t)
{
    return t->chars != NULL || t->unigram != NULL || t->sentencepiece != NULL ||
           t->marian[0] != NULL;
}

const char *tokenizer_sha256(const struct tokenizer *t)
{
    return t->sha256;
}

struct tokenizer_specials tokenizer_get_specials(const struct tokenizer *t)
{
    return t->specials;
}

bool tokenizer_is_roberta(const struct tokenizer *t)
{
    return t->post_processor == POST_PROCESSOR_ROBERTA;
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return t->tokens[id].bytes == NULL || t->tokens[id].special;
}

bool tokenizer_is_continuation(const struct tokenizer *t, int32_t id)
{
    const struct token *token = &t->tokens[id];
    if (token->bytes == NULL || token->added || t->kind == TOKENIZER_CHAR) {
        return false;
    }
    if (t->kind == TOKENIZER_WORDPIECE) {
        return strncmp(token->bytes, t->wordpiece->prefix, strlen(t->wordpiece->prefix)) == 0;
    }
    if (t->kind == TOKENIZER_SENTENCEPIECE || t->kind == TOKENIZER_UNIGRAM ||
        t->kind == TOKENIZER_MARIAN) {
        return strncmp(token->bytes, SENTENCEPIECE_SPACE, strlen(SENTENCEPIECE_SPACE)) != 0;
    }
    if (t->chars != NULL) {
        return !t->chars->bert_words && strncmp(token->bytes, "\xe2\x96\x81", 3) != 0;
    }
    return strchr(" \t\r\n", token->bytes[0]) == NULL;
}

int32_t tokenizer_find_difference(const struct tokenizer *a, const struct tokenizer *b)
{
    int64_t count = number_min(a->vocab_size, b->vocab_size);
    for (int64_t i = 0; i < count; i++) {
        const struct token *x = &a->tokens[i], *y = &b->tokens[i];
        bool compared = x->bytes != NULL && y->bytes != NULL && !(x->special && y->special);
        if (compared && (x->length != y->length || memcmp(x->bytes, y->bytes, x->length) != 0)) {
            return (int32_t)i;
        }
    }
    return -1;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text)
{
    size_t bytes = strlen(text);
    int32_t added = find_added(t, text, bytes);
    if (added >= 0) {
        return added;
    }
    if (t->kind == TOKENIZER_CHAR) {
        uint32_t code;
        bool tokenizer_path = bytes > 0 && utf8_read(text, bytes, &code) == bytes;
        return tokenizer_path && code < t->char_limit ? t->char_ids[code] : -1;
    }
    const struct text_slot *slot = text_map_find(&t->by_bytes, text, bytes);
    return slot == NULL ? -1 : (int32_t)slot->value;
}

/* Arguments that all steps of an encoding share. */
struct encoding {
    const struct tokenizer *tokenizer;
    struct bpe_encoder *encoder;
    const char *text;
    bool special;
    bool at_start;  /* text[0] is the beginning of the whole text */
    bool continued; /* and continues another text */
    struct token_list *out;
};

static status encode_plain(const struct encoding *e, size_t from, size_t to)
{
    const struct tokenizer *t = e->tokenizer;
    const struct text_place place = {from, e->at_start && from == 0, e->continued && from == 0};
    if (t->kind == TOKENIZER_CHAR) {
        return char_encode(t, e->text + from, to - from, from, e->out);
    }
    if (t->kind == TOKENIZER_WORDPIECE) {
        return wordpiece_encode(t, e->text + from, to - from, e->out);
    }
    if (t->kind == TOKENIZER_SENTENCEPIECE) {
        return sentencepiece_model_encode(t, e->text + from, to - from, place.continued, e->out);
    }
    if (t->kind == TOKENIZER_MARIAN) {
        return marian_encode(t, e->text + from, to - from, place.continued, false, e->out);
    }
    if (t->kind == TOKENIZER_UNIGRAM) {
        return unigram_model_encode(t, e->text + from, to - from, place, e->out);
    }
    return t->chars != NULL
               ? char_bpe_encode(t, e->encoder, e->text + from, to - from, place, e->out)
               : bpe_encode(t, e->encoder, e->text + from, to - from, place, e->out);
}

static status encode_normalized(const struct encoding *e, size_t from, size_t to);

/* Encodes text[from, to): splits it at the added tokens of set 0, splits the rest at the added
 * tokens of set 1, and encodes the remaining text with the model. */
static status encode_around_added(const struct encoding *e, size_t from, size_t to, int set)
{
    if (set == 2) {
        return encode_plain(e, from, to);
    }
    struct added_match match = {.end = from, .next = from};
    do {
        size_t begin = match.end;
        added_find_next(e->tokenizer, set == 1, e->special, e->text, to, &match);
        if (match.start > begin) {
            TRY(set == 0 ? encode_normalized(e, begin, match.start)
                         : encode_around_added(e, begin, match.start, set + 1));
        }
        if (match.id >= 0 && match.start < match.end) {
            TRY(token_list_add(e->out, match.id));
        }
    } while (match.id >= 0);
    return STATUS_OK;
}

/* Normalizes text[from, to), which has no tokens of set 0, and encodes it. */
static status encode_normalized(const struct encoding *e, size_t from, size_t to)
{
    const struct normalizer *n = &e->tokenizer->normalizer;
    if (n->count == 0) {
        return encode_around_added(e, from, to, 1);
    }
    struct text_buffer text = {0};
    struct encoding inner = *e;
    inner.at_start = e->at_start && from == 0;
    inner.continued = e->continued && from == 0;
    status result = normalizer_run(n, e->text + from, to - from, inner.continued, &text);
    if (result == STATUS_OK && text.count > 0) {
        inner.text = text.bytes;
        result = encode_around_added(&inner, 0, text.count, 1);
    }
    text_buffer_free(&text);
    return result;
}

static status encode_text(const struct tokenizer *t, const char *text, size_t bytes, bool special,
                          bool at_start, bool continued, struct token_list *out)
{
    struct encoding e = {.tokenizer = t,
                         .text = text,
                         .special = special,
                         .at_start = at_start,
                         .continued = continued,
                         .out = out};
    if (t->kind == TOKENIZER_BPE) {
        TRY(bpe_encoder_acquire(t, &e.encoder));
    }
    int64_t before = out->count;
    status result = encode_around_added(&e, 0, bytes, 0);
    if (e.encoder != NULL) {
        bpe_encoder_release(t, e.encoder);
    }
    if (result != STATUS_OK) {
        out->count = before;
    }
    return result;
}

status tokenizer_encode(const struct tokenizer *t, const char *text, size_t bytes, bool special,
                        struct token_list *out)
{
    return encode_text(t, text, bytes, special, true, false, out);
}

status tokenizer_encode_continued(const struct tokenizer *t, const char *text, size_t bytes,
                                  struct token_list *out)
{
    return encode_text(t, text, bytes, false, true, true, out);
}

status tokenizer_encode_after_special(const struct tokenizer *t, const char *text, size_t bytes,
                                      struct token_list *out)
{
    return encode_text(t, text, bytes, false, false, false, out);
}

/* Returns the text of a token before the decoder's steps. */
static const char *get_text(const struct tokenizer *t, int32_t id, uint32_t *length)
{
    *length = t->tokens[id].length;
    return t->tokens[id].renamed ? added_get_text(t, id, length) : t->tokens[id].bytes;
}

static bool is_decoded(const struct token *token, bool skip_special)
{
    return !(skip_special && token->special);
}

/* Decodes ids that have been checked with the steps of t->decoder. */
static status run_decoder(const struct tokenizer *t, const int32_t *ids, int64_t count,
                          bool skip_special, bool continued, char **out, size_t *out_bytes)
{
    struct decoder_tokens tokens = {0};
    status result = STATUS_OK;
    for (int64_t i = 0; i < count && result == STATUS_OK; i++) {
        if (is_decoded(&t->tokens[ids[i]], skip_special)) {
            uint32_t length;
            const char *text = get_text(t, ids[i], &length);
            result = decoder_append(&tokens, text, length);
        }
    }
    KEEP_FIRST(result, decoder_run(&t->decoder, continued, &tokens));
    KEEP_FIRST(result, text_buffer_append(&tokens.text, "", 1));
    if (result == STATUS_OK) {
        *out = tokens.text.bytes;
        tokens.text.bytes = NULL;
        if (out_bytes != NULL) {
            *out_bytes = tokens.text.count - 1;
        }
    }
    decoder_tokens_free(&tokens);
    return result;
}

static status decode_ids(const struct tokenizer *t, const int32_t *ids, int64_t count,
                         bool skip_special, bool continued, char **out, size_t *out_bytes)
{
    *out = NULL;
    size_t bytes = 0;
    for (int64_t i = 0; i < count; i++) {
        REQUIRE(ids[i] >= 0 && ids[i] < t->vocab_size && t->tokens[ids[i]].bytes != NULL,
                STATUS_DATA,
                "id %d at index %" PRId64 ": the tokenizer's ids are 0 to %" PRId64 "%s", ids[i], i,
                t->vocab_size - 1,
                ids[i] >= 0 && ids[i] < t->vocab_size ? ", and this id is unused" : "");
        uint32_t length;
        get_text(t, ids[i], &length);
        bytes += is_decoded(&t->tokens[ids[i]], skip_special) ? length : 0;
    }
    if (t->kind == TOKENIZER_WORDPIECE) {
        return wordpiece_decode(t, ids, count, skip_special, out, out_bytes);
    }
    if (t->kind == TOKENIZER_MARIAN) {
        return marian_decode(t, ids, count, skip_special, continued, out, out_bytes);
    }
    if (t->kind == TOKENIZER_SENTENCEPIECE) {
        return sentencepiece_decode(t->sentencepiece, ids, count, skip_special, continued, out,
                                    out_bytes != NULL ? out_bytes : &bytes);
    }
    if (t->decoder.count > 0) {
        return run_decoder(t, ids, count, skip_special, continued, out, out_bytes);
    }
    char *text = NULL;
    TRY(ALLOCATE(text, bytes + 1, "a text"));
    size_t used = 0;
    for (int64_t i = 0; i < count; i++) {
        if (is_decoded(&t->tokens[ids[i]], skip_special)) {
            uint32_t length;
            const char *part = get_text(t, ids[i], &length);
            memcpy(text + used, part, length);
            used += length;
        }
    }
    text[used] = '\0';
    *out = text;
    if (out_bytes != NULL) {
        *out_bytes = used;
    }
    return STATUS_OK;
}

status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, int64_t count,
                        bool skip_special, char **out, size_t *out_bytes)
{
    return decode_ids(t, ids, count, skip_special, false, out, out_bytes);
}

status tokenizer_decode_continued(const struct tokenizer *t, const int32_t *ids, int64_t count,
                                  bool skip_special, char **out, size_t *out_bytes)
{
    return decode_ids(t, ids, count, skip_special, true, out, out_bytes);
}

int64_t tokenizer_count_final(const struct tokenizer *t, const int32_t *ids, int64_t count)
{
    bool fallback = t->sentencepiece != NULL;
    for (int i = 0; i < t->decoder.count; i++) {
        fallback = fallback || t->decoder.steps[i].kind == DECODER_BYTE_FALLBACK;
    }
    while (fallback && count > 0 && ids[count - 1] >= 0 && ids[count - 1] < t->vocab_size &&
           decoder_read_byte(t->tokens[ids[count - 1]].bytes, t->tokens[ids[count - 1]].length) >=
               0) {
        count--;
    }
    return count;
}
