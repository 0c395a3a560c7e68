/* The metadata of a tokenizer in GGUF files. llama.cpp has one algorithm for each kind:
 * "gpt2" for BPE over bytes, with a name for the pattern that splits the words; "llama" for BPE of
 * SentencePiece; "t5" for Unigram (unigram.c); "bert" for WordPiece; "no_vocab" for a model
 * without a tokenizer. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/memory.h"
#include "datasets/chat/chat.h"
#include "datasets/sentencepiece/sentencepiece.h"
#include "datasets/text/pretokenizer.h"
#include "trainer/formats/gguf/tokens_impl.h"

/* Score of an id without a token, as in llama.cpp's converter. */
static const float unused_score = -10000;

/* ---- the list of tokens ---- */

static void put_token_texts(const struct token_table *t)
{
    gguf_begin_array(t->writer, "tokenizer.ggml.tokens", GGUF_VALUE_TEXT, t->count);
    for (int64_t id = 0; id < t->count; id++) {
        char unused[32];
        const char *text = t->tokens[id].text, *prefix = "";
        if (text == NULL) {
            snprintf(unused, sizeof unused, "[PAD%" PRId64 "]", id);
            text = unused;
        } else if (t->is_wordpiece && t->tokens[id].type == TOKEN_NORMAL) {
            bool continues = strncmp(text, "##", 2) == 0; /* GGUF marks the beginnings of words */
            text += continues ? 2 : 0;
            prefix = continues ? "" : SENTENCEPIECE_SPACE;
        }
        gguf_add_text(t->writer, prefix, text);
    }
}

static void put_token_types(const struct token_table *t)
{
    gguf_begin_array(t->writer, "tokenizer.ggml.token_type", GGUF_VALUE_I32, t->count);
    for (int64_t id = 0; id < t->count; id++) {
        gguf_add_i32(t->writer, t->tokens[id].text != NULL ? t->tokens[id].type : TOKEN_UNUSED);
    }
}

static void put_token_scores(const struct token_table *t)
{
    gguf_begin_array(t->writer, "tokenizer.ggml.scores", GGUF_VALUE_F32, t->count);
    for (int64_t id = 0; id < t->count; id++) {
        gguf_add_f32(t->writer, t->tokens[id].text != NULL ? t->tokens[id].score : unused_score);
    }
}

void gguf_put_token_lists(const struct token_table *t, bool has_scores)
{
    put_token_texts(t);
    if (has_scores) {
        put_token_scores(t);
    }
    put_token_types(t);
}

status gguf_set_token(struct token_table *t, int64_t id, struct listed_token token)
{
    REQUIRE(id >= 0 && id < t->count, STATUS_UNAVAILABLE,
            "%s: token %" PRId64 " is beyond the %" PRId64 " rows of the embedding",
            t->source->tokenizer_folder, id, t->count);
    t->tokens[id] = token;
    return STATUS_OK;
}

/* Lists the tokens of tokenizer.json. Their texts belong to the document. */
static status list_tokens(struct token_table *t)
{
    const char *text;
    json_t *id;
    json_object_foreach(json_object_get(json_object_get(t->document, "model"), "vocab"), text, id)
    {
        TRY(gguf_set_token(t, json_integer_value(id),
                           (struct listed_token){text, TOKEN_NORMAL, 0}));
    }
    json_t *added = json_object_get(t->document, "added_tokens");
    for (size_t i = 0; i < json_array_size(added); i++) {
        json_t *token = json_array_get(added, i);
        bool special = json_is_true(json_object_get(token, "special"));
        TRY(gguf_set_token(
            t, json_integer_value(json_object_get(token, "id")),
            (struct listed_token){json_string_value(json_object_get(token, "content")),
                                  special ? TOKEN_CONTROL : TOKEN_USER_DEFINED, 0}));
    }
    return STATUS_OK;
}

status gguf_list_pieces(struct token_table *t, const struct sentencepiece *model)
{
    for (int64_t id = 0; id < sentencepiece_count(model); id++) {
        struct sentencepiece_piece piece = sentencepiece_get_piece(model, (int32_t)id);
        TRY(gguf_set_token(t, id,
                           (struct listed_token){piece.text, (int32_t)piece.type, piece.score}));
    }
    return STATUS_OK;
}

/* ---- BPE over bytes ---- */

/* Returns the name of the pattern in llama.cpp; NULL: llama.cpp does not have it. */
static const char *find_pattern_name(const struct token_table *t)
{
    json_t *pre = json_object_get(t->document, "pre_tokenizer");
    json_t *steps = json_object_get(pre, "pretokenizers");
    json_t *first = json_is_array(steps) ? json_array_get(steps, 0) : pre;
    json_t *last = json_is_array(steps) ? json_array_get(steps, json_array_size(steps) - 1) : pre;
    const char *type = json_string_value(json_object_get(first, "type"));
    const char *regex =
        json_string_value(json_object_get(json_object_get(first, "pattern"), "Regex"));
    bool plain = json_is_true(json_object_get(last, "use_regex"));
    bool ignores_merges =
        json_is_true(json_object_get(json_object_get(t->document, "model"), "ignore_merges"));
    if (type != NULL && strcmp(type, "Digits") == 0 && json_array_size(steps) == 2) {
        bool single = json_is_true(json_object_get(first, "individual_digits"));
        return single && plain ? "smollm" : NULL;
    }
    switch (regex != NULL ? pretokenizer_find_pattern(regex) : PRETOKENIZER_NONE) {
    case PRETOKENIZER_LLAMA3:
    case PRETOKENIZER_CL100K: /* the same words, written in another way */
        return ignores_merges ? "llama-bpe" : "dbrx";
    case PRETOKENIZER_QWEN2:
        return "qwen2";
    case PRETOKENIZER_O200K:
        return "gpt-4o";
    default:
        return first == last && plain ? "gpt-2" : NULL;
    }
}

static void put_merges(const struct token_table *t)
{
    json_t *merges = json_object_get(json_object_get(t->document, "model"), "merges");
    gguf_begin_array(t->writer, "tokenizer.ggml.merges", GGUF_VALUE_TEXT,
                     (int64_t)json_array_size(merges));
    for (size_t i = 0; i < json_array_size(merges); i++) {
        gguf_add_text(t->writer, "", json_string_value(json_array_get(merges, i)));
    }
}

static status put_byte_bpe(struct token_table *t)
{
    json_t *pre = json_object_get(t->document, "pre_tokenizer");
    const char *normalizer =
        json_string_value(json_object_get(json_object_get(t->document, "normalizer"), "type"));
    const char *decoder =
        json_string_value(json_object_get(json_object_get(t->document, "decoder"), "type"));
    REQUIRE(decoder != NULL && strcmp(decoder, "ByteLevel") == 0, STATUS_UNAVAILABLE,
            "%s is BPE over characters, which the GGUF export does not support; if the model came "
            "with tokenizer.model, import it with this file alone",
            t->source->tokenizer_folder);
    const char *pattern = find_pattern_name(t);
    REQUIRE(pattern != NULL && (normalizer == NULL || strcmp(normalizer, "NFC") == 0),
            STATUS_UNAVAILABLE,
            "%s: llama.cpp does not support this normalizer or pattern of words; it supports "
            "GPT-2, SmolLM2, cl100k, Llama 3, Qwen 2 and o200k",
            t->source->tokenizer_folder);
    bool roberta = tokenizer_is_roberta(t->source->tokenizer);
    /* ModernBERT normalizes with NFC and then splits words as GPT-2 does. */
    bool is_modern = strcmp(t->source->config.architecture, "modernbert") == 0 &&
                     strcmp(pattern, "gpt-2") == 0 && normalizer != NULL;
    gguf_put_text(t->writer, "tokenizer.ggml.model", "gpt2");
    gguf_put_text(t->writer, "tokenizer.ggml.pre",
                  roberta     ? "roberta-bpe"
                  : is_modern ? "modern-bert"
                              : pattern);
    gguf_put_bool(t->writer, "tokenizer.ggml.add_space_prefix",
                  json_is_true(json_object_get(pre, "add_prefix_space")));
    TRY(list_tokens(t));
    gguf_put_token_lists(t, false);
    put_merges(t);
    return STATUS_OK;
}

/* ---- the other kinds ---- */

static status put_wordpiece(struct token_table *t)
{
    json_t *lowercase = json_object_get(json_object_get(t->document, "normalizer"), "lowercase");
    if (!json_is_true(lowercase)) {
        log_warning("EXPORT",
                    "llama.cpp converts all text of WordPiece tokenizers to lower case, which %s "
                    "does not do",
                    t->source->tokenizer_folder);
    }
    t->is_wordpiece = true;
    gguf_put_text(t->writer, "tokenizer.ggml.model", "bert");
    gguf_put_text(t->writer, "tokenizer.ggml.pre", "default");
    TRY(list_tokens(t));
    gguf_put_token_lists(t, false);
    return STATUS_OK;
}

static status put_pieces(struct token_table *t, const struct sentencepiece *model)
{
    if (!sentencepiece_is_bpe(model)) {
        return gguf_put_unigram_pieces(t, model);
    }
    gguf_put_text(t->writer, "tokenizer.ggml.model", "llama");
    gguf_put_text(t->writer, "tokenizer.ggml.pre", "default");
    gguf_put_bool(t->writer, "tokenizer.ggml.add_space_prefix", sentencepiece_adds_space(model));
    TRY(gguf_list_pieces(t, model));
    gguf_put_token_lists(t, true);
    return STATUS_OK;
}

static status put_sentencepiece(struct token_table *t)
{
    static const char *const names[] = {"tokenizer.model", "spiece.model"};
    char path[FILE_PATH_BYTES], *data = NULL;
    size_t bytes;
    struct sentencepiece *model = NULL;
    TRY(file_join(path, t->source->tokenizer_folder, names[0]));
    if (!file_exists(path)) {
        TRY(file_join(path, t->source->tokenizer_folder, names[1]));
    }
    TRY(file_read(path, SENTENCEPIECE_FILE_BYTES_MAX, &data, &bytes));
    status result = sentencepiece_open(data, bytes, path, &model);
    free(data);
    if (result == STATUS_OK) {
        result = put_pieces(t, model);
    }
    sentencepiece_close(&model);
    return result;
}

static void put_no_tokenizer(const struct token_table *t)
{
    gguf_put_text(t->writer, "tokenizer.ggml.model", "no_vocab");
    log_warning("EXPORT", "the file has no tokenizer, because %s; llama.cpp takes and returns ids",
                t->source->tokenizer == NULL ? "the checkpoint has none"
                                             : "llama.cpp does not have one token per character");
}

static status put_kind(struct token_table *t)
{
    if (t->source->tokenizer == NULL) {
        put_no_tokenizer(t);
        return STATUS_OK;
    }
    switch (tokenizer_get_kind(t->source->tokenizer)) {
    case TOKENIZER_BPE:
        return put_byte_bpe(t);
    case TOKENIZER_WORDPIECE:
        return put_wordpiece(t);
    case TOKENIZER_SENTENCEPIECE:
        return put_sentencepiece(t);
    case TOKENIZER_UNIGRAM:
        return gguf_put_unigram(t);
    case TOKENIZER_CHAR:
    case TOKENIZER_MARIAN:
        put_no_tokenizer(t);
        break;
    }
    return STATUS_OK;
}

/* ---- special tokens and the chat template ---- */

static void put_special(struct gguf_writer *w, const char *key, int32_t id)
{
    if (id >= 0) {
        gguf_put_u32(w, key, id);
    }
}

/* Returns the token at the beginning of a text, whether it is added or not; else the end token. */
static int32_t find_bos(const struct tokenizer *t)
{
    int32_t bos = tokenizer_bos(t), piece = tokenizer_find(t, "<s>");
    bool has_pieces = tokenizer_get_kind(t) == TOKENIZER_SENTENCEPIECE ||
                      tokenizer_get_kind(t) == TOKENIZER_UNIGRAM;
    return bos >= 0 ? bos : has_pieces && piece >= 0 ? piece : tokenizer_eos(t);
}

/* Writes the special tokens. The sources of an encoder-decoder have an end token. They have a begin
 * token only if the tokenizer has the tokens CLS and SEP. */
static void put_specials(struct gguf_writer *w, const struct export_source *source)
{
    const struct tokenizer *t = source->tokenizer;
    const struct architecture *a = model_architecture(source->config.architecture);
    struct tokenizer_specials specials = tokenizer_get_specials(t);
    bool has_decoder = architecture_has_decoder(a);
    bool is_encoder =
        !a->attention.causal || (has_decoder && specials.cls >= 0 && specials.sep >= 0);
    put_special(w, "tokenizer.ggml.eos_token_id", is_encoder ? specials.sep : tokenizer_eos(t));
    put_special(w, "tokenizer.ggml.bos_token_id",
                is_encoder    ? specials.cls
                : has_decoder ? -1
                              : find_bos(t));
    put_special(w, "tokenizer.ggml.padding_token_id", specials.pad);
    put_special(w, "tokenizer.ggml.unknown_token_id", specials.unknown);
    if (!is_encoder) {
        gguf_put_bool(w, "tokenizer.ggml.add_bos_token", !has_decoder && tokenizer_bos(t) >= 0);
        gguf_put_bool(w, "tokenizer.ggml.add_eos_token", has_decoder);
        return;
    }
    put_special(w, "tokenizer.ggml.cls_token_id", specials.cls);
    put_special(w, "tokenizer.ggml.seperator_token_id", specials.sep);
    put_special(w, "tokenizer.ggml.mask_token_id", specials.mask);
    gguf_put_bool(w, "tokenizer.ggml.add_bos_token", specials.cls >= 0);
    gguf_put_bool(w, "tokenizer.ggml.add_eos_token", specials.sep >= 0);
    gguf_put_u32(w, "tokenizer.ggml.token_type_count",
                 source->config.token_types > 0 ? source->config.token_types : 1);
}

/* Writes the chat template of the run, or the Jinja template of an imported tokenizer. */
static status put_chat_template(struct gguf_writer *w, const struct export_source *source)
{
    char path[FILE_PATH_BYTES], *text = NULL;
    struct chat_template *chat = NULL;
    size_t bytes = 0;
    TRY(file_join(path, source->tokenizer_folder, CHAT_FILE));
    if (!file_exists(path)) {
        TRY(chat_read_jinja(source->tokenizer_folder, &text));
    } else {
        TRY(chat_open(source->tokenizer_folder, source->tokenizer, &chat));
        put_special(w, "tokenizer.ggml.eot_token_id", chat_end_of_turn(chat));
        status result = chat_jinja(chat, source->tokenizer, &text, &bytes);
        chat_close(&chat);
        TRY(result);
    }
    if (text != NULL) {
        gguf_put_text(w, "tokenizer.chat_template", text);
    }
    free(text);
    return STATUS_OK;
}

static status parse_tokenizer(struct token_table *t)
{
    char *text;
    size_t bytes;
    if (t->source->tokenizer == NULL ||
        tokenizer_get_kind(t->source->tokenizer) == TOKENIZER_SENTENCEPIECE) {
        return STATUS_OK;
    }
    TRY(tokenizer_to_text(t->source->tokenizer, &text, &bytes));
    t->document = json_loadb(text, bytes, JSON_ALLOW_NUL, NULL);
    free(text);
    REQUIRE(t->document != NULL, STATUS_INTERNAL, "out of memory for the tokens of %s",
            t->source->tokenizer_folder);
    return STATUS_OK;
}

status gguf_put_tokenizer(struct gguf_writer *w, const struct export_source *source)
{
    struct token_table table = {.writer = w, .source = source, .count = source->vocabulary};
    TRY(ALLOCATE(table.tokens, table.count, "the tokens of a GGUF file"));
    status result = parse_tokenizer(&table);
    if (result == STATUS_OK) {
        result = put_kind(&table);
    }
    json_decref(table.document);
    free(table.tokens);
    TRY(result);
    bool has_tokens =
        source->tokenizer != NULL && tokenizer_get_kind(source->tokenizer) != TOKENIZER_CHAR;
    if (has_tokens) {
        put_specials(w, source);
        return put_chat_template(w, source);
    }
    return STATUS_OK;
}
