/* The post_processor of tokenizer.json for byte-level and char tokenizers. Supported forms:
 * - none, which transformers 5 writes as a template that contains only the texts;
 * - RoBERTa's <s> A </s> </s> B </s>, as RobertaProcessing or as a template;
 * - BERT's [CLS] A [SEP] B [SEP], as in the files of ModernBERT and ALBERT;
 * - one token before each text (BOS), as in Llama 3's files;
 * - for Unigram models and for bytes without merges, one token after each text (T5, ByT5);
 * - A </s> en_XX or en_XX A </s> with any language token, as in mBART's files;
 * - ByteLevel, which only trims offsets. This code has no such offsets and ignores it. */
#include "datasets/tokenizer/post_processor.h"

#include <inttypes.h>
#include <string.h>

#include "datasets/tokenizer/json_reader_impl.h"

static json_t *build_special(const char *text, int type)
{
    return json_pack("{s:{s:s, s:i}}", "SpecialToken", "id", text, "type_id", type);
}

static json_t *build_sequence(const char *name, int type)
{
    return json_pack("{s:{s:s, s:i}}", "Sequence", "id", name, "type_id", type);
}

/* Adds a token to the special_tokens of a template. */
static void add_definition(json_t *tokens, const char *text, int32_t id)
{
    json_object_set_new(tokens, text,
                        json_pack("{s:s, s:[i], s:[s]}", "id", text, "ids", id, "tokens", text));
}

static json_t *build_template(json_t *single, json_t *pair, json_t *tokens)
{
    return json_pack("{s:s, s:o, s:o, s:o}", "type", "TemplateProcessing", "single", single, "pair",
                     pair, "special_tokens", tokens);
}

static json_t *build_roberta_template(int32_t bos, int32_t eos)
{
    json_t *tokens = json_object();
    add_definition(tokens, "<s>", bos);
    add_definition(tokens, "</s>", eos);
    return build_template(json_pack("[o, o, o]", build_special("<s>", 0), build_sequence("A", 0),
                                    build_special("</s>", 0)),
                          json_pack("[o, o, o, o, o, o]", build_special("<s>", 0),
                                    build_sequence("A", 0), build_special("</s>", 0),
                                    build_special("</s>", 0), build_sequence("B", 0),
                                    build_special("</s>", 0)),
                          tokens);
}

/* Builds BERT's template. second_type is the type_id of the second text and its [SEP]. */
static json_t *build_bert_template(int32_t cls, int32_t sep, int second_type)
{
    json_t *tokens = json_object();
    add_definition(tokens, "[CLS]", cls);
    add_definition(tokens, "[SEP]", sep);
    return build_template(json_pack("[o, o, o]", build_special("[CLS]", 0), build_sequence("A", 0),
                                    build_special("[SEP]", 0)),
                          json_pack("[o, o, o, o, o]", build_special("[CLS]", 0),
                                    build_sequence("A", 0), build_special("[SEP]", 0),
                                    build_sequence("B", second_type),
                                    build_special("[SEP]", second_type)),
                          tokens);
}

/* Builds the template without special tokens. second_type is the type_id of the second text, 0 or
 * 1. */
static json_t *build_bare_template(int second_type)
{
    return build_template(
        json_pack("[o]", build_sequence("A", 0)),
        json_pack("[o, o]", build_sequence("A", 0), build_sequence("B", second_type)),
        json_object());
}

static json_t *build_bos_template(const char *text, int32_t id, int second_type)
{
    json_t *tokens = json_object();
    add_definition(tokens, text, id);
    return build_template(json_pack("[o, o]", build_special(text, 0), build_sequence("A", 0)),
                          json_pack("[o, o, o, o]", build_special(text, 0), build_sequence("A", 0),
                                    build_special(text, second_type),
                                    build_sequence("B", second_type)),
                          tokens);
}

json_t *post_processor_eos_json(const char *text, int32_t id, int second_type)
{
    json_t *tokens = json_object();
    add_definition(tokens, text, id);
    return build_template(json_pack("[o, o]", build_sequence("A", 0), build_special(text, 0)),
                          json_pack("[o, o, o, o]", build_sequence("A", 0), build_special(text, 0),
                                    build_sequence("B", second_type),
                                    build_special(text, second_type)),
                          tokens);
}

/* Builds the template with the end token, and with the language token before a text or after its
 * end token. */
static json_t *build_language_template(const char *end, int32_t end_id, const char *language,
                                       int32_t language_id, bool first)
{
    json_t *tokens = json_object(), *single = json_array(), *pair = json_array();
    add_definition(tokens, end, end_id);
    add_definition(tokens, language, language_id);
    if (first) {
        json_array_append_new(single, build_special(language, 0));
        json_array_append_new(pair, build_special(language, 0));
    }
    json_array_append_new(single, build_sequence("A", 0));
    json_array_append_new(single, build_special(end, 0));
    json_array_append_new(pair, build_sequence("A", 0));
    json_array_append_new(pair, build_sequence("B", 0));
    json_array_append_new(pair, build_special(end, 0));
    if (!first) {
        json_array_append_new(single, build_special(language, 0));
        json_array_append_new(pair, build_special(language, 0));
    }
    return build_template(single, pair, tokens);
}

/* Compares with an expected value and frees that value. */
static bool equals_and_free(const json_t *post, json_t *expected)
{
    bool equal = expected != NULL && json_equal(post, expected);
    json_decref(expected);
    return equal;
}

/* Returns the special token at this position of a template for one text; NULL: none. */
static const char *get_token(const json_t *post, size_t position)
{
    const json_t *part = json_array_get(json_object_get(post, "single"), position);
    return json_string_value(json_object_get(json_object_get(part, "SpecialToken"), "id"));
}

/* Reads the template of one token after each text. Returns whether it is this template. */
static bool read_eos_template(const struct json_reader *r, const json_t *post)
{
    struct tokenizer *t = r->t;
    const char *end = get_token(post, 1);
    int32_t id = end != NULL ? json_reader_find_id(r, end) : -1;
    bool is_bytes = t->kind == TOKENIZER_BPE && t->chars == NULL && t->merge_count == 0;
    bool has_end = (t->kind == TOKENIZER_UNIGRAM || is_bytes) && id >= 0 &&
                   (equals_and_free(post, post_processor_eos_json(end, id, 0)) ||
                    equals_and_free(post, post_processor_eos_json(end, id, 1)));
    if (has_end) {
        t->post_processor = POST_PROCESSOR_EOS;
        t->end = id;
    }
    return has_end;
}

/* Reads a template with an end token and a language token. Returns false for other templates. */
static bool read_language_template(const struct json_reader *r, const json_t *post)
{
    struct tokenizer *t = r->t;
    bool first = get_token(post, 0) != NULL;
    const char *language = get_token(post, first ? 0 : 2), *end = get_token(post, first ? 2 : 1);
    int32_t id = language != NULL ? json_reader_find_id(r, language) : -1;
    int32_t end_id = end != NULL ? json_reader_find_id(r, end) : -1;
    bool is_language = id >= 0 && end_id >= 0 && strcmp(end, "</s>") == 0 &&
                       strcmp(language, "<s>") != 0 && id != end_id;
    if (is_language &&
        equals_and_free(post, build_language_template(end, end_id, language, id, first))) {
        t->post_processor = first ? POST_PROCESSOR_LANGUAGE_FIRST : POST_PROCESSOR_LANGUAGE_LAST;
        t->end = end_id;
        t->language = id;
        return true;
    }
    return false;
}

static status read_template(const struct json_reader *r, const json_t *post)
{
    struct tokenizer *t = r->t;
    if (equals_and_free(post, build_bare_template(0)) ||
        equals_and_free(post, build_bare_template(1))) {
        return STATUS_OK;
    }
    int32_t bos = json_reader_find_id(r, "<s>"), eos = json_reader_find_id(r, "</s>");
    if (bos >= 0 && eos >= 0 && equals_and_free(post, build_roberta_template(bos, eos))) {
        t->post_processor = POST_PROCESSOR_ROBERTA;
        return STATUS_OK;
    }
    int32_t cls = json_reader_find_id(r, "[CLS]"), sep = json_reader_find_id(r, "[SEP]");
    if (cls >= 0 && sep >= 0 &&
        (equals_and_free(post, build_bert_template(cls, sep, 0)) ||
         equals_and_free(post, build_bert_template(cls, sep, 1)))) {
        t->post_processor = POST_PROCESSOR_BERT;
        return STATUS_OK;
    }
    if (read_eos_template(r, post) || read_language_template(r, post)) {
        return STATUS_OK;
    }
    const char *text = get_token(post, 0);
    int32_t id = text != NULL ? json_reader_find_id(r, text) : -1;
    bool is_supported = id >= 0 && (equals_and_free(post, build_bos_template(text, id, 0)) ||
                                    equals_and_free(post, build_bos_template(text, id, 1)));
    NEED(r, is_supported,
         "post_processor's template is not supported; supported: the text alone, "
         "<s> A </s> </s> B </s>, [CLS] A [SEP] B [SEP], A </s> LANGUAGE, LANGUAGE A </s>, and one "
         "token before each text");
    t->post_processor = POST_PROCESSOR_BOS;
    t->bos = id;
    return STATUS_OK;
}

static status read_roberta(const struct json_reader *r, json_t *post)
{
    TRY(json_reader_check_keys(r, post, "post_processor",
                               "|type|sep|cls|trim_offsets|add_prefix_space|"));
    static const char *const keys[] = {"cls", "sep"}, *const texts[] = {"<s>", "</s>"};
    for (int i = 0; i < 2; i++) {
        int32_t id = json_reader_find_id(r, texts[i]);
        json_t *expected = json_pack("[s, i]", texts[i], id);
        NEED(r, equals_and_free(json_object_get(post, keys[i]), expected) && id >= 0,
             "post_processor.%s is not [\"%s\", its id]: not supported", keys[i], texts[i]);
    }
    r->t->post_processor = POST_PROCESSOR_ROBERTA;
    return STATUS_OK;
}

static status read_processor(const struct json_reader *r, json_t *post)
{
    const char *type = json_reader_get_type(post);
    bool has_template = r->t->kind != TOKENIZER_CHAR;
    if (has_template && strcmp(type, "RobertaProcessing") == 0) {
        return read_roberta(r, post);
    }
    if (has_template && strcmp(type, "TemplateProcessing") == 0) {
        return read_template(r, post);
    }
    NEED(r, strcmp(type, "ByteLevel") == 0,
         "post_processor of the type '" EXCERPT
         "' is not supported; supported: null, ByteLevel, RobertaProcessing, TemplateProcessing",
         type);
    return json_reader_check_keys(r, post, "post_processor",
                                  "|type|add_prefix_space|trim_offsets|use_regex|");
}

status post_processor_read(const struct json_reader *r, json_t *post)
{
    if (json_reader_is_null(post)) {
        return STATUS_OK;
    }
    if (strcmp(json_reader_get_type(post), "Sequence") != 0) {
        return read_processor(r, post);
    }
    TRY(json_reader_check_keys(r, post, "post_processor", "|type|processors|"));
    json_t *list = json_object_get(post, "processors");
    size_t count = json_array_size(list);
    NEED(r, count > 0 && count <= 2,
         "post_processor.processors has %zu members; 1 or 2 are supported", count);
    for (size_t i = 0; i < count; i++) {
        NEED(r, r->t->post_processor == POST_PROCESSOR_NONE,
             "post_processor.processors has two templates");
        TRY(read_processor(r, json_array_get(list, i)));
    }
    return STATUS_OK;
}

json_t *post_processor_to_json(const struct tokenizer *t)
{
    if (t->kind == TOKENIZER_CHAR ||
        ((t->chars != NULL || t->unigram != NULL) && t->post_processor == POST_PROCESSOR_NONE)) {
        return json_null();
    }
    if (t->post_processor == POST_PROCESSOR_EOS) {
        return post_processor_eos_json(t->tokens[t->end].bytes, t->end, 0);
    }
    if (t->language >= 0) {
        return build_language_template(t->tokens[t->end].bytes, t->end,
                                       t->tokens[t->language].bytes, t->language,
                                       t->post_processor == POST_PROCESSOR_LANGUAGE_FIRST);
    }
    if (t->post_processor == POST_PROCESSOR_ROBERTA) {
        return json_pack("{s:s, s:[s, i], s:[s, i], s:b, s:b}", "type", "RobertaProcessing", "sep",
                         "</s>", t->specials.sep, "cls", "<s>", t->specials.cls, "trim_offsets", 1,
                         "add_prefix_space", t->add_prefix_space ? 1 : 0);
    }
    if (t->post_processor == POST_PROCESSOR_BERT) {
        return build_bert_template(t->specials.cls, t->specials.sep, 1);
    }
    if (t->post_processor == POST_PROCESSOR_BOS) {
        return build_bos_template(t->tokens[t->bos].bytes, t->bos, 1);
    }
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 1,
                     "trim_offsets", 0, "use_regex", 1);
}

/* ---- language tokens ---- */

enum tokenizer_language tokenizer_language_place(const struct tokenizer *t)
{
    return t->post_processor == POST_PROCESSOR_LANGUAGE_FIRST  ? TOKENIZER_LANGUAGE_FIRST
           : t->post_processor == POST_PROCESSOR_LANGUAGE_LAST ? TOKENIZER_LANGUAGE_LAST
                                                               : TOKENIZER_LANGUAGE_NONE;
}

status tokenizer_find_language(const struct tokenizer *t, const char *code, const char *option,
                               int32_t *out)
{
    const struct tokenizer_specials s = t->specials;
    int32_t id = tokenizer_find(t, code);
    bool is_other = id == s.cls || id == s.sep || id == s.pad || id == s.mask || id == s.unknown;
    REQUIRE(tokenizer_language_place(t) != TOKENIZER_LANGUAGE_NONE, STATUS_USAGE,
            "%s %s: the tokenizer has no language tokens; omit the option", option, code);
    REQUIRE(id >= 0 && !is_other && tokenizer_is_special(t, id), STATUS_USAGE,
            "%s %s: the tokenizer has no token of this language; the codes are its special tokens, "
            "such as %s",
            option, code, t->tokens[t->language].bytes);
    *out = id;
    return STATUS_OK;
}

status tokenizer_encode_language(const struct tokenizer *t, const char *text, size_t bytes,
                                 bool special, int32_t language, int64_t max_tokens,
                                 struct token_list *out)
{
    int64_t before = out->count;
    int32_t code = language >= 0 ? language : t->language;
    bool first = tokenizer_language_place(t) == TOKENIZER_LANGUAGE_FIRST;
    REQUIRE(max_tokens == 0 || max_tokens >= 2, STATUS_USAGE,
            "the limit of %" PRId64 " tokens is too low: the special tokens alone are 2",
            max_tokens);
    TRY(token_list_reserve(out, 1));
    out->ids[out->count] = code;
    out->count += first;
    status result = tokenizer_encode(t, text, bytes, special, out);
    if (result != STATUS_OK) {
        out->count = before;
        return result;
    }
    int64_t most = before + max_tokens - (first ? 1 : 2);
    out->count = max_tokens > 0 && out->count > most ? most : out->count;
    TRY(token_list_reserve(out, 2));
    out->ids[out->count++] = t->end;
    out->ids[out->count] = code;
    out->count += !first;
    return STATUS_OK;
}

status post_processor_encode_input(const struct tokenizer *t, const char *text, size_t bytes,
                                   bool is_pair, bool special, int64_t max_tokens,
                                   struct token_list *out)
{
    REQUIRE(!is_pair, STATUS_UNAVAILABLE,
            "a tokenizer with language tokens does not encode pairs of texts");
    return tokenizer_encode_language(t, text, bytes, special, -1, max_tokens, out);
}
