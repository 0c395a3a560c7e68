#include "datasets/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "datasets/tokenizer/tokenizer_impl.h"

/* End tokens of published tokenizers, the first that a tokenizer has is taken where no tokenizer_config.json names one. */
static const char *const end_tokens[] = {TOKENIZER_EOS, "</s>",       "<|end_of_text|>",
                                         "<eos>",       "<|eot_id|>", "<|im_end|>"};

void token_list_free(struct token_list *list)
{
    free(list->ids);
    *list = (struct token_list){0};
}

status token_list_reserve(struct token_list *list, int64_t more)
{
    if (list->capacity - list->count >= more) {
        return STATUS_OK;
    }
    int64_t capacity = list->count + more + list->capacity / 2 + 64;
    int32_t *ids = realloc(list->ids, (size_t)capacity * sizeof *ids);
    REQUIRE(ids != NULL, STATUS_INTERNAL, "out of memory: %lld token ids", (long long)capacity);
    list->ids = ids;
    list->capacity = capacity;
    return STATUS_OK;
}

status tokenizer_allocate(enum tokenizer_kind kind, int64_t vocab_size, struct tokenizer **out)
{
    *out = NULL;
    struct tokenizer *t = calloc(1, sizeof *t);
    REQUIRE(t != NULL, STATUS_INTERNAL, "out of memory: a tokenizer");
    t->kind = kind;
    t->vocab_size = vocab_size;
    t->eos = t->begin = -1;
    t->tokens = calloc((size_t)vocab_size + 1, sizeof *t->tokens);
    t->pool = calloc(1, sizeof *t->pool);
    if (t->tokens == NULL || t->pool == NULL) {
        free(t->tokens);
        free(t->pool);
        free(t);
        RAISE(STATUS_INTERNAL, "out of memory: a tokenizer of %lld tokens", (long long)vocab_size);
    }
    pthread_mutex_init(&t->pool->lock, NULL);
    *out = t;
    if (kind == TOKENIZER_WORDPIECE) {
        t->wordpiece = calloc(1, sizeof *t->wordpiece);
        REQUIRE(t->wordpiece != NULL, STATUS_INTERNAL, "out of memory: a tokenizer");
        *t->wordpiece = (struct wordpiece){.text = {true, true, true, true},
                                           .accents_follow_case = true,
                                           .cleanup = true,
                                           .characters_most = WORDPIECE_CHARACTERS,
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
        struct encoder *encoder = t->pool->idle;
        t->pool->idle = encoder_next(encoder);
        encoder_destroy(encoder);
    }
    pthread_mutex_destroy(&t->pool->lock);
    free(t->pool);
    pretokeniser_destroy(t->pretokeniser);
    wordpiece_free(t->wordpiece);
    free(t->char_ids);
    free(t->pairs);
    text_map_free(&t->by_bytes);
    free(t->added_sets[0].ids);
    free(t->added_sets[1].ids);
    free(t->merges);
    free(t->added);
    text_store_free(&t->store);
    free(t->tokens);
    free(t);
    *tokenizer = NULL;
    return STATUS_OK;
}

status tokenizer_set(struct tokenizer *t, int64_t id, const char *bytes, size_t length)
{
    TRY(text_store_copy(&t->store, bytes, length, &t->tokens[id].bytes));
    t->tokens[id].length = (uint32_t)length;
    return STATUS_OK;
}

status tokenizer_add(struct tokenizer *t, struct added_token token)
{
    struct added_token *added = realloc(t->added, ((size_t)t->added_count + 1) * sizeof *added);
    REQUIRE(added != NULL, STATUS_INTERNAL, "out of memory: %lld added tokens",
            (long long)t->added_count);
    t->added = added;
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
        if (!token->in_model || (token->literal && t->kind == TOKENIZER_BPE)) {
            continue;
        }
        struct text_slot *slot;
        bool is_new;
        TRY(text_map_slot(&t->by_bytes, NULL, token->bytes, token->length, &slot, &is_new));
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

static int32_t find_either(const struct tokenizer *t, const char *one, const char *other)
{
    int32_t id = tokenizer_find(t, one);
    return id >= 0 ? id : tokenizer_find(t, other);
}

static status name_tokenizer(struct tokenizer *t)
{
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
    } else if (t->kind == TOKENIZER_WORDPIECE) {
        TRY(map_bytes(t));
        TRY(wordpiece_build(t));
    } else {
        TRY(map_bytes(t));
        TRY(bpe_build(t));
        TRY(pretokeniser_create(t->pattern, &t->pretokeniser));
    }
    TRY(added_build(t));
    for (size_t i = 0; i < sizeof end_tokens / sizeof *end_tokens && t->eos < 0; i++) {
        t->eos = find_added(t, end_tokens[i], strlen(end_tokens[i]));
    }
    t->specials = (struct tokenizer_specials){.cls = find_either(t, "[CLS]", "<s>"),
                                              .sep = find_either(t, "[SEP]", "</s>"),
                                              .pad = find_either(t, "[PAD]", "<pad>"),
                                              .mask = find_either(t, "[MASK]", "<mask>"),
                                              .unknown = find_either(t, "[UNK]", "<unk>")};
    return name_tokenizer(t);
}

status tokenizer_train(enum tokenizer_kind kind, int64_t vocab_size, char *const *files, int count,
                       int workers, struct tokenizer **out)
{
    *out = NULL;
    status result = STATUS_OK;
    switch (kind) {
    case TOKENIZER_BPE:
        result = bpe_train(vocab_size, false, files, count, workers, out);
        break;
    case TOKENIZER_CHAR:
        result = char_train(vocab_size, files, count, out);
        break;
    case TOKENIZER_WORDPIECE:
        result = wordpiece_train(vocab_size, files, count, workers, out);
        break;
    }
    if (result != STATUS_OK) {
        tokenizer_destroy(out);
    }
    return result;
}

status tokenizer_train_roberta(int64_t vocab_size, char *const *files, int count, int workers,
                               struct tokenizer **out)
{
    *out = NULL;
    status result = bpe_train(vocab_size, true, files, count, workers, out);
    if (result != STATUS_OK) {
        tokenizer_destroy(out);
    }
    return result;
}

bool tokenizer_exists(const char *folder)
{
    char whole[FILE_PATH_BYTES], vocab[FILE_PATH_BYTES];
    snprintf(whole, sizeof whole, "%s/%s", folder, TOKENIZER_FILE);
    snprintf(vocab, sizeof vocab, "%s/%s", folder, VOCAB_FILE);
    return file_exists(whole) || file_exists(vocab);
}

status tokenizer_open(const char *folder, struct tokenizer **out)
{
    *out = NULL;
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, folder, VOCAB_FILE));
    bool vocab_alone = file_exists(path);
    TRY(file_join(path, folder, TOKENIZER_FILE));
    if (vocab_alone && !file_exists(path)) {
        return wordpiece_open_vocab(folder, out);
    }
    char inner[FILE_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    TRY(file_join(inner, folder, "tokenizer"));
    REQUIRE(file_exists(path) || !tokenizer_exists(inner), STATUS_NO_INPUT,
            "%s holds no tokenizer itself; the folder %s does", folder, inner);
    TRY(file_read(path, TOKENIZER_FILE_LIMIT_BYTES, &text, &bytes));
    status result = tokenizer_from_text(text, bytes, path, out);
    free(text);
    if (result == STATUS_OK) {
        result = tokenizer_config_end(folder, *out);
    }
    if (result != STATUS_OK) {
        tokenizer_destroy(out);
    }
    return result;
}

status tokenizer_save(const struct tokenizer *t, const char *folder)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, folder, TOKENIZER_FILE));
    TRY(file_make_folders(folder));
    char *text = NULL;
    size_t bytes = 0;
    TRY(tokenizer_to_text(t, &text, &bytes));
    status result = file_write(path, text, bytes);
    free(text);
    TRY(result);
    return t->kind == TOKENIZER_WORDPIECE ? wordpiece_save_vocab(t, folder) : STATUS_OK;
}

enum tokenizer_kind tokenizer_kind_of(const struct tokenizer *t)
{
    return t->kind;
}

int64_t tokenizer_vocab_size(const struct tokenizer *t)
{
    return t->vocab_size;
}

int32_t tokenizer_eos(const struct tokenizer *t)
{
    return t->eos;
}

int32_t tokenizer_begin(const struct tokenizer *t)
{
    return t->begin;
}

status tokenizer_put_begin(const struct tokenizer *t, struct token_list *out)
{
    if (t->begin >= 0) {
        TRY(token_list_reserve(out, 1));
        out->ids[out->count++] = t->begin;
    }
    return STATUS_OK;
}

const char *tokenizer_sha256(const struct tokenizer *t)
{
    return t->sha256;
}

struct tokenizer_specials tokenizer_specials_of(const struct tokenizer *t)
{
    return t->specials;
}

bool tokenizer_is_roberta(const struct tokenizer *t)
{
    return t->around == AROUND_ROBERTA;
}

bool tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return t->tokens[id].bytes == NULL || t->tokens[id].special;
}

bool tokenizer_continues(const struct tokenizer *t, int32_t id)
{
    const struct token *token = &t->tokens[id];
    if (token->bytes == NULL || token->added || t->kind == TOKENIZER_CHAR) {
        return false;
    }
    if (t->kind == TOKENIZER_WORDPIECE) {
        return strncmp(token->bytes, t->wordpiece->prefix, strlen(t->wordpiece->prefix)) == 0;
    }
    return strchr(" \t\r\n", token->bytes[0]) == NULL;
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
        bool whole = bytes > 0 && pretokenise_character(text, bytes, &code) == bytes;
        return whole && code < t->char_limit ? t->char_ids[code] : -1;
    }
    const struct text_slot *slot = text_map_find(&t->by_bytes, text, bytes);
    return slot == NULL ? -1 : (int32_t)slot->value;
}

/* What an encoding works on, so that its steps need few arguments. */
struct encoding {
    const struct tokenizer *tokenizer;
    struct encoder *encoder;
    const char *text;
    struct token_list *out;
};

static status encode_plain(const struct encoding *e, size_t from, size_t to)
{
    const struct tokenizer *t = e->tokenizer;
    if (t->kind == TOKENIZER_CHAR) {
        return char_encode(t, e->text + from, to - from, from, e->out);
    }
    if (t->kind == TOKENIZER_WORDPIECE) {
        return wordpiece_encode(t, e->text + from, to - from, e->out);
    }
    return bpe_encode(t, e->encoder, e->text + from, to - from, from, e->out);
}

/* Text between added tokens; set 0 first, in what it leaves set 1, in what that leaves words. */
static status encode_between(const struct encoding *e, size_t from, size_t to, int set)
{
    if (set == 2) {
        return encode_plain(e, from, to);
    }
    while (from < to) {
        struct added_match match;
        added_find(e->tokenizer, set == 1, e->text, to, from, &match);
        if (match.start > from) {
            TRY(encode_between(e, from, match.start, set + 1));
        }
        if (match.id >= 0) {
            TRY(token_list_reserve(e->out, 1));
            e->out->ids[e->out->count++] = match.id;
        }
        from = match.end;
    }
    return STATUS_OK;
}

status tokenizer_encode(const struct tokenizer *t, const char *text, size_t bytes, bool special,
                        struct token_list *out)
{
    struct encoding e = {.tokenizer = t, .text = text, .out = out};
    if (t->kind == TOKENIZER_BPE) {
        TRY(encoder_take(t, &e.encoder));
    }
    int64_t before = out->count;
    status result = encode_between(&e, 0, bytes, special ? 0 : 2);
    if (e.encoder != NULL) {
        encoder_give_back(t, e.encoder);
    }
    if (result != STATUS_OK) {
        out->count = before;
    }
    return result;
}

static bool is_written(const struct token *token, bool skip_special)
{
    return !(skip_special && token->special);
}

status tokenizer_decode(const struct tokenizer *t, const int32_t *ids, int64_t count,
                        bool skip_special, char **out, size_t *out_bytes)
{
    *out = NULL;
    size_t bytes = 0;
    for (int64_t i = 0; i < count; i++) {
        REQUIRE(ids[i] >= 0 && ids[i] < t->vocab_size && t->tokens[ids[i]].bytes != NULL,
                STATUS_DATA, "id %d at index %lld: the tokenizer's ids are 0 to %lld%s", ids[i],
                (long long)i, (long long)t->vocab_size - 1,
                ids[i] >= 0 && ids[i] < t->vocab_size ? ", and this one is not used" : "");
        const struct token *token = &t->tokens[ids[i]];
        bytes += is_written(token, skip_special) ? token->length : 0;
    }
    if (t->kind == TOKENIZER_WORDPIECE) {
        return wordpiece_decode(t, ids, count, skip_special, out, out_bytes);
    }
    char *text = malloc(bytes + 1);
    REQUIRE(text != NULL, STATUS_INTERNAL, "out of memory: %zu bytes of text", bytes);
    size_t used = 0;
    for (int64_t i = 0; i < count; i++) {
        const struct token *token = &t->tokens[ids[i]];
        if (is_written(token, skip_special)) {
            memcpy(text + used, token->bytes, token->length);
            used += token->length;
        }
    }
    text[used] = '\0';
    *out = text;
    if (out_bytes != NULL) {
        *out_bytes = used;
    }
    return STATUS_OK;
}

/* Of lengths a and b with a sum above `most`: the longer one gives way until they are equal, then both. */
static void truncate_pair(int64_t *a, int64_t *b, int64_t most)
{
    int64_t *shorter = *a <= *b ? a : b, *longer = *a <= *b ? b : a;
    int64_t left = most - *shorter;
    if (left >= *shorter) {
        *longer = left;
    } else {
        *shorter = most / 2;
        *longer = most - most / 2;
    }
}

status tokenizer_encode_pair(const struct tokenizer *t, const char *a, size_t a_bytes,
                             const char *b, size_t b_bytes, bool special, int64_t most,
                             struct token_list *out, int64_t *first)
{
    int32_t cls = t->specials.cls, sep = t->specials.sep;
    int64_t between = t->around == AROUND_ROBERTA && b != NULL ? 2 : 1;
    int64_t around = b == NULL ? 2 : 2 + between, before = out->count;
    REQUIRE(cls >= 0 && sep >= 0, STATUS_DATA,
            "the tokenizer has no [CLS] and [SEP], so that it cannot make an encoder's input");
    REQUIRE(most == 0 || most >= around, STATUS_USAGE,
            "at most %lld ids: the special tokens alone are %lld", (long long)most,
            (long long)around);
    TRY(token_list_reserve(out, around));
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
    if (most > 0 && a_count + b_count > most - around) {
        truncate_pair(&a_count, &b_count, most - around);
    }
    TRY(token_list_reserve(out, 3));
    *first = a_count + 1 + between;
    memmove(out->ids + before + *first, out->ids + b_begin, (size_t)b_count * sizeof *out->ids);
    for (int64_t i = 0; i < between; i++) {
        out->ids[before + a_count + 1 + i] = sep;
    }
    out->count = before + *first + b_count;
    if (b != NULL) {
        out->ids[out->count++] = sep;
    }
    return STATUS_OK;
}
