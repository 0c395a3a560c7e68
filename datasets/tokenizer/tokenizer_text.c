/* Opens and saves tokenizers: finds the format of a folder and the tokenizer of targets, and writes
 * tokenizer.json in canonical form. The SHA-256 of this text is the SHA-256 of the tokenizer. The
 * text contains everything that affects the ids, in a fixed order: tokens by id, merges by rank. */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "datasets/text/alphabet.h"
#include "datasets/tokenizer/char.h"
#include "datasets/tokenizer/json_reader_impl.h"
#include "datasets/tokenizer/marian.h"
#include "datasets/tokenizer/post_processor.h"
#include "datasets/tokenizer/sentencepiece_model.h"
#include "datasets/tokenizer/steps.h"
#include "datasets/tokenizer/unigram_model.h"
#include "datasets/tokenizer/vocab_merges.h"

/* Writes the spelling of a token in the file; out has room for twice the token's bytes. */
static size_t write_spelling(const struct token *token, char *out)
{
    if (token->literal) {
        memcpy(out, token->bytes, token->length);
        return token->length;
    }
    return alphabet_encode(token->bytes, token->length, out);
}

static size_t compute_buffer_bytes(const struct tokenizer *t)
{
    size_t longest = 0;
    for (int64_t id = 0; id < t->vocab_size; id++) {
        longest = t->tokens[id].length > longest ? t->tokens[id].length : longest;
    }
    return 4 * longest + 2; /* two tokens and a space */
}

json_t *tokenizer_text_vocab_json(const struct tokenizer *t, char *buffer)
{
    json_t *vocab = json_object();
    for (int64_t id = 0; id < t->vocab_size && vocab != NULL; id++) {
        if (t->tokens[id].in_model) {
            size_t length = write_spelling(&t->tokens[id], buffer);
            if (json_object_setn_new_nocheck(vocab, buffer, length, json_integer(id)) != 0) {
                json_decref(vocab);
                return NULL;
            }
        }
    }
    return vocab;
}

/* Returns whether a part of a merge contains a space, so that "a b" would be ambiguous. */
static bool has_spaces(const struct tokenizer *t)
{
    for (int64_t rank = 0; rank < t->merge_count && t->chars != NULL; rank++) {
        if (strchr(t->tokens[t->merges[rank].result].bytes, ' ') != NULL) {
            return true;
        }
    }
    return false;
}

static json_t *build_merge(const struct tokenizer *t, const struct merge *merge, bool pair,
                           char *buffer)
{
    size_t left = write_spelling(&t->tokens[merge->left], buffer);
    buffer[left] = ' ';
    char *second = buffer + left + 1;
    size_t right = write_spelling(&t->tokens[merge->right], second);
    return pair ? json_pack("[o, o]", json_stringn_nocheck(buffer, left),
                            json_stringn_nocheck(second, right))
                : json_stringn_nocheck(buffer, left + 1 + right);
}

static json_t *build_merges(const struct tokenizer *t, char *buffer)
{
    json_t *merges = json_array();
    bool pairs = has_spaces(t);
    for (int64_t rank = 0; rank < t->merge_count && merges != NULL; rank++) {
        json_t *merge = build_merge(t, &t->merges[rank], pairs, buffer);
        if (json_array_append_new(merges, merge) != 0) {
            json_decref(merges);
            return NULL;
        }
    }
    return merges;
}

json_t *tokenizer_text_added_json(const struct tokenizer *t)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < t->added_count && list != NULL; i++) {
        const struct added_token *added = &t->added[i];
        const struct token *token = &t->tokens[added->id];
        json_t *entry =
            json_pack("{s:i, s:s%, s:b, s:b, s:b, s:b, s:b}", "id", (int)added->id, "content",
                      token->bytes, (size_t)token->length, "single_word", 0, "lstrip",
                      added->lstrip ? 1 : 0, "rstrip", added->rstrip ? 1 : 0, "normalized",
                      added->normalized ? 1 : 0, "special", added->special ? 1 : 0);
        if (json_array_append_new(list, entry) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *build_byte_level(bool add_prefix_space, bool trim_offsets, bool use_regex)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space",
                     add_prefix_space ? 1 : 0, "trim_offsets", trim_offsets ? 1 : 0, "use_regex",
                     use_regex ? 1 : 0);
}

/* Builds the list of the steps that split a text into words of bytes. */
static json_t *build_byte_words(const struct tokenizer *t)
{
    if (t->pattern == PRETOKENIZER_NONE || t->pattern == PRETOKENIZER_GPT2) {
        return json_pack(
            "[o]", build_byte_level(t->add_prefix_space, true, t->pattern == PRETOKENIZER_GPT2));
    }
    return json_pack("[{s:s, s:{s:s}, s:s, s:b}, o]", "type", "Split", "pattern", "Regex",
                     pretokenizer_published_regex(t->pattern), "behavior", "Isolated", "invert", 0,
                     build_byte_level(false, true, false));
}

static json_t *build_model(const struct tokenizer *t, char *buffer)
{
    const struct char_bpe *c = t->chars;
    bool unk = c != NULL && c->unk >= 0, prefix = c != NULL && c->prefix[0] != '\0';
    bool suffix = c != NULL && c->suffix[0] != '\0';
    return json_pack("{s:s, s:n, s:o, s:o, s:o, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout",
                     "unk_token", unk ? json_string(t->tokens[c->unk].bytes) : json_null(),
                     "continuing_subword_prefix", prefix ? json_string(c->prefix) : json_null(),
                     "end_of_word_suffix", suffix ? json_string(c->suffix) : json_null(),
                     "fuse_unk", c != NULL && c->fuse_unk ? 1 : 0, "byte_fallback",
                     c != NULL && c->byte_fallback ? 1 : 0, "ignore_merges",
                     t->ignore_merges ? 1 : 0, "vocab", tokenizer_text_vocab_json(t, buffer),
                     "merges", build_merges(t, buffer));
}

static json_t *build_decoder(const struct tokenizer *t)
{
    if (t->kind == TOKENIZER_CHAR) {
        return json_pack("{s:s}", "type", "Fuse");
    }
    bool has_steps = t->chars != NULL || t->unigram != NULL;
    return has_steps ? steps_decoder_json(t) : build_byte_level(true, true, true);
}

static json_t *build_root(const struct tokenizer *t, char *buffer)
{
    bool bytes = t->kind == TOKENIZER_BPE && t->chars == NULL;
    json_t *model = t->unigram != NULL ? unigram_model_to_json(t) : build_model(t, buffer);
    return json_pack("{s:s, s:n, s:n, s:o, s:o, s:o, s:o, s:o, s:o}", "version", "1.0",
                     "truncation", "padding", "added_tokens", tokenizer_text_added_json(t),
                     "normalizer", steps_normalizer_json(t), "pre_tokenizer",
                     steps_split_json(t, bytes ? build_byte_words(t) : NULL), "post_processor",
                     post_processor_to_json(t), "decoder", build_decoder(t), "model", model);
}

status tokenizer_to_text(const struct tokenizer *t, char **out, size_t *out_bytes)
{
    *out = NULL;
    char *buffer = NULL;
    TRY(ALLOCATE(buffer, compute_buffer_bytes(t), "a tokenizer"));
    json_t *root =
        t->kind == TOKENIZER_WORDPIECE ? wordpiece_to_json(t, buffer) : build_root(t, buffer);
    char *text = root == NULL ? NULL : json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    free(buffer);
    REQUIRE(text != NULL, STATUS_INTERNAL,
            "out of memory while writing a tokenizer of %" PRId64 " tokens", t->vocab_size);
    *out = text;
    *out_bytes = strlen(text);
    return STATUS_OK;
}

/* ---- folders ---- */

bool tokenizer_exists(const char *folder)
{
    char tokenizer_path[FILE_PATH_BYTES], vocab_path[FILE_PATH_BYTES];
    snprintf(tokenizer_path, sizeof tokenizer_path, "%s/%s", folder, TOKENIZER_FILE);
    snprintf(vocab_path, sizeof vocab_path, "%s/%s", folder, VOCAB_FILE);
    return file_exists(tokenizer_path) || file_exists(vocab_path) || vocab_merges_exists(folder) ||
           sentencepiece_model_exists(folder) || marian_exists(folder) ||
           tokenizer_byt5_exists(folder);
}

static status open_json(const char *path, struct tokenizer **out)
{
    char *text = NULL;
    size_t bytes = 0;
    TRY(file_read(path, TOKENIZER_FILE_BYTES_MAX, &text, &bytes));
    status result = tokenizer_from_text(text, bytes, path, out);
    free(text);
    if (result != STATUS_OK) {
        tokenizer_destroy(out);
    }
    return result;
}

/* Reads the end token of a tokenizer from its folder. Destroys the tokenizer after an error. */
static status finish_folder(const char *folder, struct tokenizer **out)
{
    status result = tokenizer_config_read_eos(folder, *out);
    if (result != STATUS_OK) {
        tokenizer_destroy(out);
    }
    return result;
}

/* Opens a tokenizer without tokenizer.json. */
static status open_without_json(const char *folder, struct tokenizer **out)
{
    TRY(vocab_merges_exists(folder) ? vocab_merges_open(folder, out)
                                    : tokenizer_byt5_open(folder, out));
    return finish_folder(folder, out);
}

/* Opens the tokenizer of a folder, without target_tokenizer.json. */
static status open_folder(const char *folder, struct tokenizer **out)
{
    *out = NULL;
    REQUIRE(!file_exists(folder) || file_is_folder(folder), STATUS_NO_INPUT,
            "the tokenizer %s is a file; use its folder", folder);
    REQUIRE(file_exists(folder), STATUS_NO_INPUT,
            "there is no folder %s; a tokenizer is a folder with tokenizer.json, and nothing is "
            "downloaded; create it with `bireme tokenizer train --vocab-size N --input FILE... "
            "--output %s`",
            folder, folder);
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, folder, VOCAB_FILE));
    bool vocab_alone = file_exists(path);
    TRY(file_join(path, folder, TOKENIZER_FILE));
    if (!file_exists(path) && sentencepiece_model_exists(folder)) {
        return sentencepiece_model_open(folder, out);
    }
    if (!file_exists(path) && marian_exists(folder)) {
        return marian_open(folder, out);
    }
    if (vocab_alone && !file_exists(path)) {
        return wordpiece_open_vocab(folder, out);
    }
    if (!file_exists(path) && (vocab_merges_exists(folder) || tokenizer_byt5_exists(folder))) {
        return open_without_json(folder, out);
    }
    char inner[FILE_PATH_BYTES];
    TRY(file_join(inner, folder, "tokenizer"));
    REQUIRE(file_exists(path) || !tokenizer_exists(inner), STATUS_NO_INPUT,
            "%s contains no tokenizer; use the folder %s", folder, inner);
    TRY(open_json(path, out));
    return finish_folder(folder, out);
}

/* Replaces the SHA-256 of a tokenizer with one of both vocabularies. */
static status add_target_sha256(struct tokenizer *t)
{
    char both[2 * HASH_TEXT_BYTES];
    int bytes = snprintf(both, sizeof both, "%s %s", t->sha256, t->target->sha256);
    return hash_memory(both, (size_t)bytes, t->sha256);
}

static status open_target(const char *folder, struct tokenizer *t)
{
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, folder, TARGET_TOKENIZER_FILE));
    if (t->target == NULL && file_exists(path)) {
        REQUIRE(t->kind != TOKENIZER_MARIAN, STATUS_UNAVAILABLE,
                "%s next to source.spm is not supported; use target_vocab.json, with "
                "separate_vocabs: true in tokenizer_config.json",
                path);
        TRY(open_json(path, &t->target));
    }
    return t->target != NULL ? add_target_sha256(t) : STATUS_OK;
}

status tokenizer_open(const char *folder, struct tokenizer **out)
{
    TRY(open_folder(folder, out));
    status result = open_target(folder, *out);
    if (result != STATUS_OK) {
        tokenizer_destroy(out);
    }
    return result;
}

static status save_json(const struct tokenizer *t, const char *folder, const char *name)
{
    char path[FILE_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    TRY(file_join(path, folder, name));
    TRY(tokenizer_to_text(t, &text, &bytes));
    status result = file_write(path, text, bytes);
    free(text);
    return result;
}

/* Saves the tokenizer without target_tokenizer.json. */
static status save_folder(const struct tokenizer *t, const char *folder)
{
    if (t->kind == TOKENIZER_SENTENCEPIECE) {
        return sentencepiece_model_save(t, folder);
    }
    if (t->kind == TOKENIZER_MARIAN) {
        return marian_save(t, folder);
    }
    TRY(file_make_folders(folder));
    TRY(save_json(t, folder, TOKENIZER_FILE));
    return t->kind == TOKENIZER_WORDPIECE ? wordpiece_save_vocab(t, folder) : STATUS_OK;
}

status tokenizer_save(const struct tokenizer *t, const char *folder)
{
    TRY(save_folder(t, folder));
    return t->target == NULL || t->kind == TOKENIZER_MARIAN
               ? STATUS_OK
               : save_json(t->target, folder, TARGET_TOKENIZER_FILE);
}
