/* The metadata of a Unigram tokenizer in GGUF files, which llama.cpp reads as "t5": the pieces with
 * their scores, SentencePiece's character map, and two settings for spaces.
 *
 * llama.cpp normalizes a text as SentencePiece does. The steps of tokenizer.json must be the steps
 * that transformers uses for such a model; other steps are refused. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "datasets/text/precompiled.h"
#include "trainer/formats/gguf/tokens_impl.h"

/* The normalization of the spaces of a text. */
struct spaces {
    bool adds;          /* a space before the text */
    bool merges;        /* see sentencepiece_merges_spaces */
    bool equal_at_ends; /* texts with spaces at their ends give equal tokens in llama.cpp */
};

static status put_charsmap(const struct token_table *t, const struct charsmap *map)
{
    uint8_t *data;
    size_t bytes;
    TRY(charsmap_data(map, &data, &bytes));
    if (bytes > 0) {
        gguf_begin_array(t->writer, "tokenizer.ggml.precompiled_charsmap", GGUF_VALUE_U8,
                         (int64_t)bytes);
        gguf_add_bytes(t->writer, data, bytes);
    }
    free(data);
    return STATUS_OK;
}

/* Writes the metadata after the tokens are listed. */
static status put_model(struct token_table *t, struct spaces spaces, const struct charsmap *map,
                        int64_t unknown, bool has_bytes)
{
    REQUIRE(unknown >= 0 && unknown == tokenizer_get_specials(t->source->tokenizer).unknown,
            STATUS_UNAVAILABLE,
            "%s: the token of unknown characters is not <unk> or [UNK], which the GGUF export of "
            "Unigram models requires",
            t->source->tokenizer_folder);
    REQUIRE(spaces.adds || !spaces.merges, STATUS_UNAVAILABLE,
            "%s removes spaces and does not add one before a text, which llama.cpp does not "
            "support",
            t->source->tokenizer_folder);
    if (has_bytes) {
        log_warning("EXPORT",
                    "llama.cpp writes characters that are not in the vocabulary of %s as the "
                    "unknown token, not as their bytes",
                    t->source->tokenizer_folder);
    }
    if (!spaces.equal_at_ends) {
        log_warning("EXPORT",
                    "texts that begin or end with a space can have other tokens in llama.cpp than "
                    "with %s",
                    t->source->tokenizer_folder);
    }
    gguf_put_text(t->writer, "tokenizer.ggml.model", "t5");
    gguf_put_text(t->writer, "tokenizer.ggml.pre", "default");
    gguf_put_bool(t->writer, "tokenizer.ggml.add_space_prefix", spaces.adds);
    gguf_put_bool(t->writer, "tokenizer.ggml.remove_extra_whitespaces", spaces.merges);
    gguf_put_token_lists(t, true);
    return put_charsmap(t, map);
}

/* ---- tokenizer.model ---- */

status gguf_put_unigram_pieces(struct token_table *t, const struct sentencepiece *model)
{
    struct spaces spaces = {sentencepiece_adds_space(model), sentencepiece_merges_spaces(model),
                            true};
    int64_t unknown = -1;
    bool has_bytes = false;
    REQUIRE(sentencepiece_has_usual_spaces(model), STATUS_UNAVAILABLE,
            "%s puts the space after a word, or does not write it as U+2581; llama.cpp supports "
            "neither",
            t->source->tokenizer_folder);
    TRY(gguf_list_pieces(t, model));
    for (int64_t id = 0; id < t->count; id++) {
        unknown = t->tokens[id].type == TOKEN_UNKNOWN ? id : unknown;
        has_bytes = has_bytes || t->tokens[id].type == TOKEN_BYTE;
    }
    return put_model(t, spaces, sentencepiece_charsmap(model), unknown, has_bytes);
}

/* ---- tokenizer.json ---- */

/* The steps of a section that are not read yet. */
struct steps {
    json_t *list; /* borrowed; NULL: `single` is the only step */
    json_t *single;
    size_t next, count;
};

static struct steps begin_steps(json_t *section, const char *list_name)
{
    json_t *list = json_object_get(section, list_name);
    struct steps s = {.list = list, .single = section};
    s.count = list != NULL ? json_array_size(list) : json_is_object(section) ? 1 : 0;
    return s;
}

/* Returns the next step if it has this type, and advances; else NULL. */
static json_t *take_step(struct steps *s, const char *type)
{
    json_t *step = s->next >= s->count ? NULL
                   : s->list != NULL   ? json_array_get(s->list, s->next)
                                       : s->single;
    const char *found = json_string_value(json_object_get(step, "type"));
    if (found == NULL || strcmp(found, type) != 0) {
        return NULL;
    }
    s->next++;
    return step;
}

static bool has_text(const json_t *step, const char *name, const char *text)
{
    const char *value = json_string_value(json_object_get(step, name));
    return value != NULL && strcmp(value, text) == 0;
}

static bool has_pattern(const json_t *step, const char *name, const char *text)
{
    return has_text(json_object_get(step, "pattern"), name, text);
}

/* Returns whether a step replaces the space, or another pattern, by U+2581 or, if `plain` is true,
 * by a space. */
static bool is_replacement(const json_t *step, const char *name, const char *pattern, bool plain)
{
    return has_pattern(step, name, pattern) && (has_text(step, "content", SENTENCEPIECE_SPACE) ||
                                                (plain && has_text(step, "content", " ")));
}

/* Reads the steps of the normalizer after the character map. Returns false for other steps. */
static bool read_normalizer(struct steps *s, struct spaces *spaces)
{
    const json_t *strip = take_step(s, "Strip"), *prepend = take_step(s, "Prepend");
    const json_t *replace = take_step(s, "Replace");
    bool known = s->next == s->count;
    if (strip != NULL) {
        spaces->merges = spaces->equal_at_ends = true;
        known = known && prepend == NULL && json_is_true(json_object_get(strip, "strip_right"));
    }
    if (prepend != NULL) {
        spaces->adds = spaces->equal_at_ends = has_text(prepend, "prepend", SENTENCEPIECE_SPACE);
        return known && spaces->adds && is_replacement(replace, "String", " ", false);
    }
    if (is_replacement(replace, "Regex", " {2,}", true)) {
        spaces->merges = true;
        return known;
    }
    return known && strip == NULL &&
           (replace == NULL || is_replacement(replace, "String", " ", false));
}

/* Reads the steps of the pre-tokenizer. Returns false for other steps. */
static bool read_pre_tokenizer(struct steps *s, struct spaces *spaces, bool *splits)
{
    if (take_step(s, "WhitespaceSplit") != NULL) {
        spaces->merges = spaces->equal_at_ends = true;
    }
    const json_t *step = take_step(s, "Metaspace");
    bool adds = !has_text(step, "prepend_scheme", "never");
    spaces->equal_at_ends = spaces->equal_at_ends || (!adds && !spaces->merges);
    spaces->adds = spaces->adds || adds;
    *splits = json_is_true(json_object_get(step, "split"));
    return step != NULL && has_text(step, "replacement", SENTENCEPIECE_SPACE) &&
           s->next == s->count;
}

/* Lists the pieces and the added tokens. Their texts belong to the document. */
static status list_pieces(struct token_table *t, int64_t unknown, bool has_bytes)
{
    json_t *vocab = json_object_get(json_object_get(t->document, "model"), "vocab"), *piece;
    json_t *added = json_object_get(t->document, "added_tokens"), *token;
    size_t id;
    json_array_foreach(vocab, id, piece)
    {
        const char *text = json_string_value(json_array_get(piece, 0));
        unsigned byte;
        char end = '\0', close = '\0';
        bool is_byte = has_bytes && sscanf(text, "<0x%2X%c%c", &byte, &close, &end) == 2 &&
                       close == '>' && strlen(text) == strlen("<0x00>");
        int32_t type = (int64_t)id == unknown ? TOKEN_UNKNOWN : is_byte ? TOKEN_BYTE : TOKEN_NORMAL;
        float score = (float)json_number_value(json_array_get(piece, 1));
        TRY(gguf_set_token(t, (int64_t)id, (struct listed_token){text, type, score}));
    }
    json_array_foreach(added, id, token)
    {
        bool special = json_is_true(json_object_get(token, "special"));
        int64_t number = json_integer_value(json_object_get(token, "id"));
        const char *text = json_string_value(json_object_get(token, "content"));
        int32_t type = special ? TOKEN_CONTROL : TOKEN_USER_DEFINED;
        TRY(number == unknown ? STATUS_OK
                              : gguf_set_token(t, number, (struct listed_token){text, type, 0}));
    }
    return STATUS_OK;
}

/* Requires that no piece continues after a space if the pre-tokenizer splits the text there:
 * llama.cpp does not split. */
static status check_pieces(const struct token_table *t)
{
    for (int64_t id = 0; id < t->count; id++) {
        const struct listed_token *token = &t->tokens[id];
        bool is_piece = token->text != NULL && token->type == TOKEN_NORMAL && *token->text != '\0';
        REQUIRE(!is_piece || strstr(token->text + 1, SENTENCEPIECE_SPACE) == NULL,
                STATUS_UNAVAILABLE,
                "%s: the piece '%.60s' contains a space, at which the pre-tokenizer splits; "
                "llama.cpp does not split texts",
                t->source->tokenizer_folder, token->text);
    }
    return STATUS_OK;
}

static status put_json(struct token_table *t, const struct charsmap *map, struct spaces spaces,
                       bool splits)
{
    static const struct charsmap none = {0};
    json_t *model = json_object_get(t->document, "model");
    json_t *unk = json_object_get(model, "unk_id");
    int64_t unknown = json_is_integer(unk) ? json_integer_value(unk) : -1;
    bool has_bytes = json_is_true(json_object_get(model, "byte_fallback"));
    TRY(list_pieces(t, unknown, has_bytes));
    TRY(splits ? check_pieces(t) : STATUS_OK);
    return put_model(t, spaces, map != NULL ? map : &none, unknown, has_bytes);
}

status gguf_put_unigram(struct token_table *t)
{
    struct steps normalizer =
        begin_steps(json_object_get(t->document, "normalizer"), "normalizers");
    struct steps words =
        begin_steps(json_object_get(t->document, "pre_tokenizer"), "pretokenizers");
    json_t *step = take_step(&normalizer, "Precompiled");
    json_t *text = json_object_get(step, "precompiled_charsmap");
    struct charsmap *map = NULL;
    struct spaces spaces = {0};
    bool splits = false;
    bool known =
        read_normalizer(&normalizer, &spaces) && read_pre_tokenizer(&words, &spaces, &splits);
    REQUIRE(known, STATUS_UNAVAILABLE,
            "%s: llama.cpp does not support the normalizer or the pre-tokenizer of this Unigram "
            "model; it supports tokenizers that were converted from SentencePiece models",
            t->source->tokenizer_folder);
    TRY(text != NULL ? precompiled_open(json_string_value(text), json_string_length(text),
                                        t->source->tokenizer_folder, &map)
                     : STATUS_OK);
    status result = put_json(t, map, spaces, splits);
    precompiled_close(map);
    return result;
}
