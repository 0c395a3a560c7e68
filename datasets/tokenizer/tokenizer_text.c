/* Writing tokenizer.json: the canonical text of a tokenizer, whose SHA-256 is its name. Everything
 * that has an effect here is in it, in a fixed order: tokens by id, merges by rank. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "datasets/tokenizer/alphabet.h"
#include "datasets/tokenizer/json_reader.h"

/* The spelling of a token in the file; room for twice its bytes. */
static size_t spell(const struct token *token, char *out)
{
    if (token->literal) {
        memcpy(out, token->bytes, token->length);
        return token->length;
    }
    return alphabet_encode(token->bytes, token->length, out);
}

static size_t spelling_room(const struct tokenizer *t)
{
    size_t longest = 0;
    for (int64_t id = 0; id < t->vocab_size; id++) {
        longest = t->tokens[id].length > longest ? t->tokens[id].length : longest;
    }
    return 4 * longest + 2; /* two tokens and a blank */
}

json_t *tokenizer_text_vocab(const struct tokenizer *t, char *buffer)
{
    json_t *vocab = json_object();
    for (int64_t id = 0; id < t->vocab_size && vocab != NULL; id++) {
        if (t->tokens[id].in_model) {
            size_t length = spell(&t->tokens[id], buffer);
            if (json_object_setn_new_nocheck(vocab, buffer, length, json_integer(id)) != 0) {
                json_decref(vocab);
                return NULL;
            }
        }
    }
    return vocab;
}

static json_t *merges_json(const struct tokenizer *t, char *buffer)
{
    json_t *merges = json_array();
    for (int64_t rank = 0; rank < t->merge_count && merges != NULL; rank++) {
        size_t length = spell(&t->tokens[t->merges[rank].left], buffer);
        buffer[length++] = ' ';
        length += spell(&t->tokens[t->merges[rank].right], buffer + length);
        if (json_array_append_new(merges, json_stringn_nocheck(buffer, length)) != 0) {
            json_decref(merges);
            return NULL;
        }
    }
    return merges;
}

json_t *tokenizer_text_added(const struct tokenizer *t)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < t->added_count && list != NULL; i++) {
        const struct added_token *added = &t->added[i];
        const struct token *token = &t->tokens[added->id];
        json_t *one =
            json_pack("{s:i, s:s%, s:b, s:b, s:b, s:b, s:b}", "id", (int)added->id, "content",
                      token->bytes, (size_t)token->length, "single_word", 0, "lstrip",
                      added->lstrip ? 1 : 0, "rstrip", added->rstrip ? 1 : 0, "normalized",
                      added->normalized ? 1 : 0, "special", added->special ? 1 : 0);
        if (json_array_append_new(list, one) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *byte_level_json(bool add_prefix_space, bool trim_offsets, bool use_regex)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space",
                     add_prefix_space ? 1 : 0, "trim_offsets", trim_offsets ? 1 : 0, "use_regex",
                     use_regex ? 1 : 0);
}

static json_t *pre_tokenizer_json(const struct tokenizer *t)
{
    if (t->kind == TOKENIZER_CHAR) {
        return json_null();
    }
    if (t->pattern == PRETOKENISE_NONE || t->pattern == PRETOKENISE_GPT2) {
        return byte_level_json(t->add_prefix_space, true, t->pattern == PRETOKENISE_GPT2);
    }
    return json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, o]}", "type", "Sequence", "pretokenizers",
                     "type", "Split", "pattern", "Regex", pretokenise_published(t->pattern),
                     "behavior", "Isolated", "invert", 0, byte_level_json(false, true, false));
}

static json_t *model_json(const struct tokenizer *t, char *buffer)
{
    return json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout",
                     "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                     "byte_fallback", 0, "ignore_merges", t->ignore_merges ? 1 : 0, "vocab",
                     tokenizer_text_vocab(t, buffer), "merges", merges_json(t, buffer));
}

static json_t *root_json(const struct tokenizer *t, char *buffer)
{
    bool is_char = t->kind == TOKENIZER_CHAR;
    json_t *decoder =
        is_char ? json_pack("{s:s}", "type", "Fuse") : byte_level_json(true, true, true);
    return json_pack("{s:s, s:n, s:n, s:o, s:n, s:o, s:o, s:o, s:o}", "version", "1.0",
                     "truncation", "padding", "added_tokens", tokenizer_text_added(t), "normalizer",
                     "pre_tokenizer", pre_tokenizer_json(t), "post_processor", around_json(t),
                     "decoder", decoder, "model", model_json(t, buffer));
}

status tokenizer_to_text(const struct tokenizer *t, char **out, size_t *out_bytes)
{
    *out = NULL;
    char *buffer = malloc(spelling_room(t));
    REQUIRE(buffer != NULL, STATUS_INTERNAL, "out of memory: writing a tokenizer");
    json_t *root =
        t->kind == TOKENIZER_WORDPIECE ? wordpiece_root(t, buffer) : root_json(t, buffer);
    char *text = root == NULL ? NULL : json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    free(buffer);
    REQUIRE(text != NULL, STATUS_INTERNAL, "out of memory: writing a tokenizer of %lld tokens",
            (long long)t->vocab_size);
    *out = text;
    *out_bytes = strlen(text);
    return STATUS_OK;
}
