/* Reads and writes tokenizer.json with a WordPiece model, as transformers writes it for BERT:
 * BertNormalizer, BertPreTokenizer, the template [CLS] A [SEP] B [SEP] and a WordPiece decoder.
 * Also reads and writes vocab.txt, BERT's older format. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/utf8.h"
#include "datasets/tokenizer/json_reader_impl.h"

#define VOCAB_FILE_BYTES_MAX TOKENIZER_FILE_BYTES_MAX
#define WORD_CHARS_MAX 100000

status json_reader_read_bert(const struct json_reader *r, json_t *normalizer,
                             struct bert_text_options *out, bool *follow)
{
    const char *location = "normalizer";
    TRY(json_reader_check_keys(r, normalizer, location,
                               "|type|clean_text|handle_chinese_chars|strip_accents|lowercase|"));
    TRY(json_reader_read_bool(r, normalizer, location, "clean_text", true, &out->clean_text));
    TRY(json_reader_read_bool(r, normalizer, location, "handle_chinese_chars", true,
                              &out->handle_chinese_chars));
    TRY(json_reader_read_bool(r, normalizer, location, "lowercase", true, &out->lowercase));
    *follow = json_reader_is_null(json_object_get(normalizer, "strip_accents"));
    return json_reader_read_bool(r, normalizer, location, "strip_accents", out->lowercase,
                                 &out->strip_accents);
}

json_t *json_reader_bert_json(const struct bert_text_options *options, bool follow)
{
    return json_pack("{s:s, s:b, s:b, s:o, s:b}", "type", "BertNormalizer", "clean_text",
                     options->clean_text ? 1 : 0, "handle_chinese_chars",
                     options->handle_chinese_chars ? 1 : 0, "strip_accents",
                     follow ? json_null() : json_boolean(options->strip_accents), "lowercase",
                     options->lowercase ? 1 : 0);
}

static status read_normalizer(const struct json_reader *r, json_t *normalizer)
{
    NEED(r, strcmp(json_reader_get_type(normalizer), "BertNormalizer") == 0,
         "normalizer of the type '" EXCERPT
         "' is not supported for WordPiece; supported: BertNormalizer",
         json_reader_get_type(normalizer));
    struct wordpiece *w = r->t->wordpiece;
    return json_reader_read_bert(r, normalizer, &w->normalizer, &w->accents_follow_case);
}

static status read_decoder(const struct json_reader *r, json_t *decoder)
{
    NEED(r, strcmp(json_reader_get_type(decoder), "WordPiece") == 0,
         "decoder of the type '" EXCERPT "' is not supported for this model; supported: WordPiece",
         json_reader_get_type(decoder));
    TRY(json_reader_check_keys(r, decoder, "decoder", "|type|prefix|cleanup|"));
    const char *prefix = json_string_value(json_object_get(decoder, "prefix"));
    NEED(r, prefix != NULL && strcmp(prefix, r->t->wordpiece->prefix) == 0,
         "decoder.prefix is not the model's continuing_subword_prefix");
    return json_reader_read_bool(r, decoder, "decoder", "cleanup", true, &r->t->wordpiece->cleanup);
}

/* Builds BERT's post-processor template for a text and a pair. Returns NULL if out of memory. */
static json_t *build_template(int32_t cls, int32_t sep)
{
    static const char special[] = "{s:{s:s, s:i}}", sequence[] = "{s:{s:s, s:i}}";
    json_t *single =
        json_pack("[o, o, o]", json_pack(special, "SpecialToken", "id", "[CLS]", "type_id", 0),
                  json_pack(sequence, "Sequence", "id", "A", "type_id", 0),
                  json_pack(special, "SpecialToken", "id", "[SEP]", "type_id", 0));
    json_t *pair = json_deep_copy(single);
    json_array_append_new(pair, json_pack(sequence, "Sequence", "id", "B", "type_id", 1));
    json_array_append_new(pair, json_pack(special, "SpecialToken", "id", "[SEP]", "type_id", 1));
    json_t *tokens =
        json_pack("{s:{s:s, s:[i], s:[s]}, s:{s:s, s:[i], s:[s]}}", "[CLS]", "id", "[CLS]", "ids",
                  cls, "tokens", "[CLS]", "[SEP]", "id", "[SEP]", "ids", sep, "tokens", "[SEP]");
    return json_pack("{s:s, s:o, s:o, s:o}", "type", "TemplateProcessing", "single", single, "pair",
                     pair, "special_tokens", tokens);
}

/* Checks that the post-processor is missing or is BERT's, in the newer or the older form. */
static status read_post_processor(const struct json_reader *r, json_t *post)
{
    if (json_reader_is_null(post)) {
        return STATUS_OK;
    }
    int32_t cls = json_reader_find_id(r, "[CLS]"), sep = json_reader_find_id(r, "[SEP]");
    json_t *template_form = build_template(cls, sep);
    json_t *bert_form = json_pack("{s:s, s:[s, i], s:[s, i]}", "type", "BertProcessing", "sep",
                                  "[SEP]", sep, "cls", "[CLS]", cls);
    bool is_supported = json_equal(post, template_form) || json_equal(post, bert_form);
    json_decref(template_form);
    json_decref(bert_form);
    NEED(r, is_supported,
         "post_processor of the type '" EXCERPT
         "' is not supported; supported: null and BERT's [CLS] A [SEP] B [SEP]",
         json_reader_get_type(post));
    return STATUS_OK;
}

static status read_model(struct json_reader *r, json_t *model)
{
    TRY(json_reader_check_keys(
        r, model, "model",
        "|type|unk_token|continuing_subword_prefix|max_input_chars_per_word|vocab|"));
    r->vocab = json_object_get(model, "vocab");
    NEED(r, json_is_object(r->vocab) && json_object_size(r->vocab) > 0,
         "model.vocab is not an object with tokens in it");
    return STATUS_OK;
}

static status read_options(const struct json_reader *r, const json_t *model)
{
    struct wordpiece *w = r->t->wordpiece;
    const json_t *prefix = json_object_get(model, "continuing_subword_prefix");
    size_t bytes = json_string_length(prefix);
    NEED(r, json_reader_is_null(prefix) || (bytes > 0 && bytes <= WORDPIECE_MAX_PREFIX_BYTES),
         "model.continuing_subword_prefix is not a string of 1 to %d bytes",
         WORDPIECE_MAX_PREFIX_BYTES);
    if (bytes > 0) {
        memcpy(w->prefix, json_string_value(prefix), bytes + 1);
    }
    const json_t *max_chars = json_object_get(model, "max_input_chars_per_word");
    w->max_word_chars =
        json_reader_is_null(max_chars) ? WORDPIECE_MAX_WORD_CHARS : json_integer_value(max_chars);
    NEED(r, w->max_word_chars > 0 && w->max_word_chars <= WORD_CHARS_MAX,
         "model.max_input_chars_per_word is not an integer from 1 to %d", WORD_CHARS_MAX);
    return STATUS_OK;
}

static status read_unknown(const struct json_reader *r, const json_t *model)
{
    const char *unknown = json_string_value(json_object_get(model, "unk_token"));
    NEED(r, unknown != NULL, "model.unk_token is not a string");
    r->t->wordpiece->unknown = json_reader_find_id(r, unknown);
    NEED(r, r->t->wordpiece->unknown >= 0, "model.unk_token '" EXCERPT "' is not in model.vocab",
         unknown);
    return STATUS_OK;
}

static status read_tokens(struct json_reader *r)
{
    char *buffer = NULL;
    TRY(ALLOCATE(buffer, json_reader_longest_token(r->vocab) + 1, "a token"));
    status result = json_reader_read_vocab(r, buffer);
    free(buffer);
    TRY(result);
    for (size_t i = 0; i < json_array_size(r->added); i++) {
        TRY(json_reader_read_added(r, json_array_get(r->added, i)));
        const struct added_token *added = &r->t->added[i];
        NEED(r, !added->normalized,
             "added token '" EXCERPT "' is normalized, which is not supported for WordPiece",
             r->t->tokens[added->id].bytes);
        r->t->tokens[added->id].literal = true;
    }
    return STATUS_OK;
}

status wordpiece_read_json(struct json_reader *r, json_t *root)
{
    json_t *model = json_object_get(root, "model");
    TRY(read_model(r, model));
    r->added = json_object_get(root, "added_tokens");
    NEED(r, json_reader_is_null(r->added) || json_is_array(r->added), "added_tokens is not a list");
    int64_t vocab_size = 0;
    TRY(json_reader_check_ids(r, &vocab_size));
    TRY(tokenizer_allocate(TOKENIZER_WORDPIECE, vocab_size, &r->t));
    r->t->source_path = r->path;
    TRY(read_options(r, model));
    TRY(read_normalizer(r, json_object_get(root, "normalizer")));
    json_t *pre = json_object_get(root, "pre_tokenizer");
    NEED(r, strcmp(json_reader_get_type(pre), "BertPreTokenizer") == 0,
         "pre_tokenizer of the type '" EXCERPT
         "' is not supported for WordPiece; supported: BertPreTokenizer",
         json_reader_get_type(pre));
    TRY(json_reader_check_keys(r, pre, "pre_tokenizer", "|type|"));
    TRY(read_decoder(r, json_object_get(root, "decoder")));
    TRY(read_tokens(r));
    TRY(read_unknown(r, model));
    return read_post_processor(r, json_object_get(root, "post_processor"));
}

json_t *wordpiece_to_json(const struct tokenizer *t, char *buffer)
{
    const struct wordpiece *w = t->wordpiece;
    const struct tokenizer_specials s = t->specials;
    bool has_template = tokenizer_find(t, "[CLS]") >= 0 && tokenizer_find(t, "[SEP]") >= 0;
    return json_pack("{s:s, s:n, s:n, s:o, s:o, s:{s:s}, s:o, s:{s:s, s:s, s:b}, "
                     "s:{s:s, s:s, s:s, s:I, s:o}}",
                     "version", "1.0", "truncation", "padding", "added_tokens",
                     tokenizer_text_added_json(t), "normalizer",
                     json_reader_bert_json(&w->normalizer, w->accents_follow_case), "pre_tokenizer",
                     "type", "BertPreTokenizer", "post_processor",
                     has_template ? build_template(s.cls, s.sep) : json_null(), "decoder", "type",
                     "WordPiece", "prefix", w->prefix, "cleanup", w->cleanup, "model", "type",
                     "WordPiece", "unk_token", t->tokens[w->unknown].bytes,
                     "continuing_subword_prefix", w->prefix, "max_input_chars_per_word",
                     (json_int_t)w->max_word_chars, "vocab", tokenizer_text_vocab_json(t, buffer));
}

/* ---- vocab.txt ---- */

static int64_t count_lines(const char *text, size_t bytes)
{
    int64_t lines = bytes > 0 && text[bytes - 1] != '\n';
    for (size_t i = 0; i < bytes; i++) {
        lines += text[i] == '\n';
    }
    return lines;
}

static status add_vocab_line(struct tokenizer *t, const char *path, struct text_map *seen,
                             int64_t id, const char *line, size_t length)
{
    length -= length > 0 && line[length - 1] == '\r';
    REQUIRE(length > 0 && memchr(line, 0, length) == NULL, STATUS_DATA,
            "%s:%" PRId64 ": the line has no token", path, id + 1);
    REQUIRE(utf8_is_valid(line, length), STATUS_DATA, "%s:%" PRId64 ": the line is not valid UTF-8",
            path, id + 1);
    TRY(tokenizer_set_token(t, id, line, length));
    t->tokens[id].in_model = true;
    t->tokens[id].literal = true;
    struct text_slot *slot;
    bool is_new;
    TRY(text_map_find_or_add(seen, NULL, t->tokens[id].bytes, length, &slot, &is_new));
    REQUIRE(is_new, STATUS_DATA, "%s:%" PRId64 ": the line repeats the token of line %" PRId64,
            path, id + 1, slot->value + 1);
    slot->value = id;
    bool special =
        strcmp(t->tokens[id].bytes, "[PAD]") == 0 || strcmp(t->tokens[id].bytes, "[UNK]") == 0 ||
        strcmp(t->tokens[id].bytes, "[CLS]") == 0 || strcmp(t->tokens[id].bytes, "[SEP]") == 0 ||
        strcmp(t->tokens[id].bytes, "[MASK]") == 0;
    return special ? tokenizer_register_added(
                         t, (struct added_token){.id = (int32_t)id, .special = true})
                   : STATUS_OK;
}

static status read_vocab_lines(struct tokenizer *t, const char *path, const char *text,
                               size_t bytes)
{
    struct text_map seen = {0};
    status result = STATUS_OK;
    int64_t id = 0;
    for (size_t at = 0; at < bytes && result == STATUS_OK; id++) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t length = end == NULL ? bytes - at : (size_t)(end - text) - at;
        result = add_vocab_line(t, path, &seen, id, text + at, length);
        at += length + 1;
    }
    const struct text_slot *unknown =
        text_map_find(&seen, WORDPIECE_UNKNOWN, strlen(WORDPIECE_UNKNOWN));
    t->wordpiece->unknown = unknown == NULL ? -1 : (int32_t)unknown->value;
    text_map_free(&seen);
    TRY(result);
    REQUIRE(t->wordpiece->unknown >= 0, STATUS_DATA, "%s has no " WORDPIECE_UNKNOWN, path);
    return STATUS_OK;
}

/* Reads the settings that affect ids from the folder's tokenizer_config.json, if it exists. */
static status read_config(struct tokenizer *t, const char *folder)
{
    json_t *root = NULL;
    struct json_reader r = {.path = folder, .t = t};
    struct wordpiece *w = t->wordpiece;
    TRY(tokenizer_config_load(folder, &root));
    if (root == NULL) {
        return STATUS_OK;
    }
    w->accents_follow_case = json_reader_is_null(json_object_get(root, "strip_accents"));
    status result = json_reader_read_bool(&r, root, TOKENIZER_CONFIG, "do_lower_case", true,
                                          &w->normalizer.lowercase);
    KEEP_FIRST(result,
               json_reader_read_bool(&r, root, TOKENIZER_CONFIG, "strip_accents",
                                     w->normalizer.lowercase, &w->normalizer.strip_accents));
    KEEP_FIRST(result, json_reader_read_bool(&r, root, TOKENIZER_CONFIG, "tokenize_chinese_chars",
                                             true, &w->normalizer.handle_chinese_chars));
    json_decref(root);
    return result;
}

static status create_from_vocab(const char *folder, const char *path, const char *text,
                                size_t bytes, struct tokenizer **out)
{
    int64_t lines = count_lines(text, bytes);
    REQUIRE(lines > 0 && lines <= TOKENIZER_VOCAB_MAX, STATUS_DATA,
            "%s has %" PRId64 " lines; 1 to %" PRId64 " are supported", path, lines,
            TOKENIZER_VOCAB_MAX);
    TRY(tokenizer_allocate(TOKENIZER_WORDPIECE, lines, out));
    (*out)->source_path = path;
    TRY(read_vocab_lines(*out, path, text, bytes));
    TRY(read_config(*out, folder));
    TRY(tokenizer_finish(*out));
    (*out)->source_path = NULL;
    return STATUS_OK;
}

status wordpiece_open_vocab(const char *folder, struct tokenizer **out)
{
    *out = NULL;
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, folder, VOCAB_FILE));
    char *text = NULL;
    size_t bytes = 0;
    TRY(file_read(path, VOCAB_FILE_BYTES_MAX, &text, &bytes));
    status result = create_from_vocab(folder, path, text, bytes, out);
    if (result != STATUS_OK) {
        tokenizer_destroy(out);
    }
    free(text);
    return result;
}

status wordpiece_save_vocab(const struct tokenizer *t, const char *folder)
{
    size_t bytes = 0;
    for (int64_t id = 0; id < t->vocab_size; id++) {
        const struct token *token = &t->tokens[id];
        if (token->bytes == NULL || strpbrk(token->bytes, "\r\n") != NULL) {
            return STATUS_OK; /* a line number is an id, so every id needs one line */
        }
        bytes += token->length + 1;
    }
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, folder, VOCAB_FILE));
    char *text = NULL;
    TRY(ALLOCATE(text, bytes + 1, "tokens"));
    size_t used = 0;
    for (int64_t id = 0; id < t->vocab_size; id++) {
        memcpy(text + used, t->tokens[id].bytes, t->tokens[id].length);
        used += t->tokens[id].length;
        text[used++] = '\n';
    }
    status result = file_write(path, text, bytes);
    free(text);
    return result;
}
