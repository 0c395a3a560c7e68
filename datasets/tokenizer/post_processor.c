/* What tokenizer.json puts around a text (post_processor) of a byte-level tokenizer: nothing, which transformers 5 writes
 * as a template of the texts alone; RoBERTa's <s> A </s> </s> B </s>, as RobertaProcessing or as a template; or one token
 * before each text, as Llama 3's files have it.
 * ByteLevel's only trims offsets, which do not exist here. */
#include <string.h>

#include "datasets/tokenizer/json_reader.h"

static json_t *special(const char *text, int type)
{
    return json_pack("{s:{s:s, s:i}}", "SpecialToken", "id", text, "type_id", type);
}

static json_t *sequence(const char *name, int type)
{
    return json_pack("{s:{s:s, s:i}}", "Sequence", "id", name, "type_id", type);
}

/* The entry of a template's special_tokens. */
static void define(json_t *tokens, const char *text, int32_t id)
{
    json_object_set_new(tokens, text,
                        json_pack("{s:s, s:[i], s:[s]}", "id", text, "ids", id, "tokens", text));
}

static json_t *template_json(json_t *single, json_t *pair, json_t *tokens)
{
    return json_pack("{s:s, s:o, s:o, s:o}", "type", "TemplateProcessing", "single", single, "pair",
                     pair, "special_tokens", tokens);
}

static json_t *roberta_template(int32_t begin, int32_t end)
{
    json_t *tokens = json_object();
    define(tokens, "<s>", begin);
    define(tokens, "</s>", end);
    return template_json(
        json_pack("[o, o, o]", special("<s>", 0), sequence("A", 0), special("</s>", 0)),
        json_pack("[o, o, o, o, o, o]", special("<s>", 0), sequence("A", 0), special("</s>", 0),
                  special("</s>", 0), sequence("B", 0), special("</s>", 0)),
        tokens);
}

/* second_type: files have 1 and 0 for the second text. */
static json_t *bare_template(int second_type)
{
    return template_json(json_pack("[o]", sequence("A", 0)),
                         json_pack("[o, o]", sequence("A", 0), sequence("B", second_type)),
                         json_object());
}

static json_t *begin_template(const char *text, int32_t id, int second_type)
{
    json_t *tokens = json_object();
    define(tokens, text, id);
    return template_json(json_pack("[o, o]", special(text, 0), sequence("A", 0)),
                         json_pack("[o, o, o, o]", special(text, 0), sequence("A", 0),
                                   special(text, second_type), sequence("B", second_type)),
                         tokens);
}

static bool equals(const json_t *post, json_t *built)
{
    bool equal = built != NULL && json_equal(post, built);
    json_decref(built);
    return equal;
}

/* The token that a template begins with; NULL: none. */
static const char *first_token(const json_t *post)
{
    const json_t *piece = json_array_get(json_object_get(post, "single"), 0);
    return json_string_value(json_object_get(json_object_get(piece, "SpecialToken"), "id"));
}

static status read_template(const struct json_reader *r, const json_t *post)
{
    struct tokenizer *t = r->t;
    if (equals(post, bare_template(0)) || equals(post, bare_template(1))) {
        return STATUS_OK;
    }
    int32_t begin = json_reader_id(r, "<s>"), end = json_reader_id(r, "</s>");
    if (begin >= 0 && end >= 0 && equals(post, roberta_template(begin, end))) {
        t->around = AROUND_ROBERTA;
        return STATUS_OK;
    }
    const char *text = first_token(post);
    int32_t id = text != NULL ? json_reader_id(r, text) : -1;
    bool known = id >= 0 && (equals(post, begin_template(text, id, 0)) ||
                             equals(post, begin_template(text, id, 1)));
    NEED(r, known,
         "post_processor's template is neither the text alone, nor <s> A </s> </s> B </s>, nor one "
         "token before each text: not supported");
    t->around = AROUND_BEGIN;
    t->begin = id;
    return STATUS_OK;
}

static status read_roberta(const struct json_reader *r, json_t *post)
{
    TRY(json_reader_keys(r, post, "post_processor",
                         "|type|sep|cls|trim_offsets|add_prefix_space|"));
    static const char *const keys[] = {"cls", "sep"}, *const texts[] = {"<s>", "</s>"};
    for (int i = 0; i < 2; i++) {
        int32_t id = json_reader_id(r, texts[i]);
        json_t *wanted = json_pack("[s, i]", texts[i], id);
        NEED(r, equals(json_object_get(post, keys[i]), wanted) && id >= 0,
             "post_processor.%s is not [\"%s\", its id]: not supported", keys[i], texts[i]);
    }
    r->t->around = AROUND_ROBERTA;
    return STATUS_OK;
}

static status read_one(const struct json_reader *r, json_t *post)
{
    const char *type = json_reader_type(post);
    bool bytes = r->t->kind == TOKENIZER_BPE;
    if (bytes && strcmp(type, "RobertaProcessing") == 0) {
        return read_roberta(r, post);
    }
    if (bytes && strcmp(type, "TemplateProcessing") == 0) {
        return read_template(r, post);
    }
    NEED(r, strcmp(type, "ByteLevel") == 0,
         "post_processor of the type '" SHOWN
         "' is not supported: null, ByteLevel, RobertaProcessing and TemplateProcessing are",
         type);
    return json_reader_keys(r, post, "post_processor",
                            "|type|add_prefix_space|trim_offsets|use_regex|");
}

status around_read(const struct json_reader *r, json_t *post)
{
    if (json_reader_absent(post)) {
        return STATUS_OK;
    }
    if (strcmp(json_reader_type(post), "Sequence") != 0) {
        return read_one(r, post);
    }
    TRY(json_reader_keys(r, post, "post_processor", "|type|processors|"));
    json_t *list = json_object_get(post, "processors");
    size_t count = json_array_size(list);
    NEED(r, count > 0 && count <= 2,
         "post_processor.processors has %zu members; 1 or 2 are "
         "supported",
         count);
    for (size_t i = 0; i < count; i++) {
        NEED(r, r->t->around == AROUND_NOTHING, "post_processor.processors has two templates");
        TRY(read_one(r, json_array_get(list, i)));
    }
    return STATUS_OK;
}

json_t *around_json(const struct tokenizer *t)
{
    if (t->kind == TOKENIZER_CHAR) {
        return json_null();
    }
    if (t->around == AROUND_ROBERTA) {
        return json_pack("{s:s, s:[s, i], s:[s, i], s:b, s:b}", "type", "RobertaProcessing", "sep",
                         "</s>", t->specials.sep, "cls", "<s>", t->specials.cls, "trim_offsets", 1,
                         "add_prefix_space", t->add_prefix_space ? 1 : 0);
    }
    if (t->around == AROUND_BEGIN) {
        return begin_template(t->tokens[t->begin].bytes, t->begin, 1);
    }
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 1,
                     "trim_offsets", 0, "use_regex", 1);
}
