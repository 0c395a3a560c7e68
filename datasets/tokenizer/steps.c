/* The sections of tokenizer.json that list steps: normalizer, pre_tokenizer and decoder. A step
 * that is not supported is refused by its name. */
#include "datasets/tokenizer/steps.h"

#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "base/utf8.h"
#include "datasets/tokenizer/json_reader_impl.h"

#define STEPS_MAX 16
#define TEXT_BYTES_MAX ((size_t)64)
#define STRIPPED_MAX 1000000
#define BLANKS_REGEX " {2,}"

/* Reads a member that is a string of at most TEXT_BYTES_MAX bytes. */
static status read_text(const struct json_reader *r, const json_t *object, const char *location,
                        const char *key, bool may_be_empty, const char **out)
{
    const json_t *value = json_object_get(object, key);
    *out = json_string_value(value);
    NEED(r,
         *out != NULL && (may_be_empty || json_string_length(value) > 0) &&
             json_string_length(value) <= TEXT_BYTES_MAX,
         "%s.%s is not a string of %d to %zu bytes", location, key, may_be_empty ? 0 : 1,
         TEXT_BYTES_MAX);
    return STATUS_OK;
}

/* Reads a member that is a string of one character. */
static status read_character(const struct json_reader *r, const json_t *object,
                             const char *location, const char *key, const char **out)
{
    uint32_t code;
    TRY(read_text(r, object, location, key, false, out));
    NEED(r, utf8_read(*out, strlen(*out), &code) == strlen(*out), "%s.%s is not one character",
         location, key);
    return STATUS_OK;
}

/* Reads a pattern, which is {"String": text}, or BLANKS_REGEX if allowed. *regex is then set. */
static status read_pattern(const struct json_reader *r, const json_t *object, const char *location,
                           bool regex_allowed, const char **out, bool *regex)
{
    json_t *pattern = json_object_get(object, "pattern");
    TRY(json_reader_check_keys(r, pattern, location,
                               regex_allowed ? "|String|Regex|" : "|String|"));
    const char *text = json_string_value(json_object_get(pattern, "Regex"));
    *regex = text != NULL && strcmp(text, BLANKS_REGEX) == 0 && json_object_size(pattern) == 1;
    NEED(r, text == NULL || *regex,
         "%s: the pattern '" EXCERPT "' is not supported; supported: a String, and the Regex "
         "'" BLANKS_REGEX "'",
         location, text);
    return *regex ? STATUS_OK : read_text(r, pattern, location, "String", false, out);
}

/* ---- normalizer ---- */

static const struct {
    const char *type;
    enum normalizer_kind kind;
} plain_normalizers[] = {{"NFC", NORMALIZER_NFC},
                         {"NFD", NORMALIZER_NFD},
                         {"NFKC", NORMALIZER_NFKC},
                         {"NFKD", NORMALIZER_NFKD},
                         {"Lowercase", NORMALIZER_LOWERCASE},
                         {"StripAccents", NORMALIZER_STRIP_ACCENTS}};
enum { PLAIN_NORMALIZERS = COUNT(plain_normalizers) };

static status read_replace(const struct json_reader *r, json_t *json, struct normalizer_step *step)
{
    const char *location = "normalizer (Replace)", *from = NULL, *to = NULL;
    bool blanks = false;
    TRY(json_reader_check_keys(r, json, location, "|type|pattern|content|"));
    TRY(read_pattern(r, json, location, true, &from, &blanks));
    TRY(read_text(r, json, location, "content", true, &to));
    *step =
        (struct normalizer_step){.kind = blanks ? NORMALIZER_REPLACE_BLANKS : NORMALIZER_REPLACE,
                                 .from = (char *)(uintptr_t)from,
                                 .to = (char *)(uintptr_t)to};
    return STATUS_OK;
}

static status read_precompiled(const struct json_reader *r, json_t *json,
                               struct normalizer_step *step)
{
    const json_t *map = json_object_get(json, "precompiled_charsmap");
    const char *text = json_string_value(map);
    TRY(json_reader_check_keys(r, json, "normalizer (Precompiled)", "|type|precompiled_charsmap|"));
    NEED(r, text != NULL, "normalizer.precompiled_charsmap is not a string");
    step->kind = NORMALIZER_PRECOMPILED;
    step->from = (char *)(uintptr_t)text;
    return precompiled_open(text, json_string_length(map), r->path, &step->map);
}

static status read_normalizer_step(const struct json_reader *r, json_t *json,
                                   struct normalizer_step *step)
{
    const char *type = json_reader_get_type(json), *to = NULL;
    *step = (struct normalizer_step){0};
    for (int i = 0; i < PLAIN_NORMALIZERS; i++) {
        if (strcmp(type, plain_normalizers[i].type) == 0) {
            step->kind = plain_normalizers[i].kind;
            return json_reader_check_keys(r, json, "normalizer", "|type|");
        }
    }
    if (strcmp(type, "Replace") == 0) {
        return read_replace(r, json, step);
    }
    if (strcmp(type, "Precompiled") == 0) {
        return read_precompiled(r, json, step);
    }
    if (strcmp(type, "Strip") == 0) {
        step->kind = NORMALIZER_STRIP;
        TRY(json_reader_check_keys(r, json, "normalizer", "|type|strip_left|strip_right|"));
        TRY(json_reader_read_bool(r, json, "normalizer", "strip_left", true, &step->left));
        return json_reader_read_bool(r, json, "normalizer", "strip_right", true, &step->right);
    }
    NEED(r, strcmp(type, "Prepend") == 0,
         "normalizer of the type '" EXCERPT
         "' is not supported; supported: NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, "
         "Prepend, Replace, Precompiled and Sequence",
         type);
    TRY(json_reader_check_keys(r, json, "normalizer", "|type|prepend|"));
    TRY(read_text(r, json, "normalizer", "prepend", false, &to));
    step->kind = NORMALIZER_PREPEND;
    step->to = (char *)(uintptr_t)to;
    return STATUS_OK;
}

static status add_normalizer(const struct json_reader *r, json_t *json)
{
    struct normalizer_step step;
    NEED(r, r->t->normalizer.count < STEPS_MAX, "normalizer has more than %d steps", STEPS_MAX);
    TRY(read_normalizer_step(r, json, &step));
    return normalizer_add(&r->t->normalizer, &step);
}

status steps_read_normalizer(const struct json_reader *r, json_t *json)
{
    if (json_reader_is_null(json)) {
        return STATUS_OK;
    }
    if (r->t->chars != NULL && strcmp(json_reader_get_type(json), "BertNormalizer") == 0) {
        struct char_bpe *c = r->t->chars;
        c->has_bert_options = true;
        return json_reader_read_bert(r, json, &c->bert, &c->accents_follow_case);
    }
    if (strcmp(json_reader_get_type(json), "Sequence") != 0) {
        return add_normalizer(r, json);
    }
    TRY(json_reader_check_keys(r, json, "normalizer", "|type|normalizers|"));
    json_t *list = json_object_get(json, "normalizers");
    NEED(r, json_is_array(list), "normalizer.normalizers is not a list");
    for (size_t i = 0; i < json_array_size(list); i++) {
        TRY(add_normalizer(r, json_array_get(list, i)));
    }
    return STATUS_OK;
}

static json_t *normalizer_step_to_json(const struct normalizer_step *s)
{
    switch (s->kind) {
    case NORMALIZER_STRIP:
        return json_pack("{s:s, s:b, s:b}", "type", "Strip", "strip_left", s->left ? 1 : 0,
                         "strip_right", s->right ? 1 : 0);
    case NORMALIZER_PRECOMPILED:
        return json_pack("{s:s, s:s}", "type", "Precompiled", "precompiled_charsmap", s->from);
    case NORMALIZER_PREPEND:
        return json_pack("{s:s, s:s}", "type", "Prepend", "prepend", s->to);
    case NORMALIZER_REPLACE:
        return json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", s->from,
                         "content", s->to);
    case NORMALIZER_REPLACE_BLANKS:
        return json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "Regex", BLANKS_REGEX,
                         "content", s->to);
    default:
        return json_pack("{s:s}", "type", plain_normalizers[s->kind].type);
    }
}

/* Returns the only member of a list, or an object with the list. */
static json_t *wrap_list(json_t *list, const char *key)
{
    if (json_array_size(list) == 1) {
        json_t *only = json_incref(json_array_get(list, 0));
        json_decref(list);
        return only;
    }
    return json_pack("{s:s, s:o}", "type", "Sequence", key, list);
}

json_t *steps_normalizer_json(const struct tokenizer *t)
{
    const struct char_bpe *c = t->chars;
    if (c != NULL && c->has_bert_options) {
        return json_reader_bert_json(&c->bert, c->accents_follow_case);
    }
    json_t *list = json_array();
    for (int i = 0; i < t->normalizer.count; i++) {
        json_array_append_new(list, normalizer_step_to_json(&t->normalizer.steps[i]));
    }
    if (t->normalizer.count == 0) {
        json_decref(list);
        return json_null();
    }
    return wrap_list(list, "normalizers");
}

/* ---- pre_tokenizer ---- */

static const char *const prepend_names[] = {"never", "first", "always"};

static status read_metaspace(const struct json_reader *r, json_t *json, const char *location,
                             const char **text, enum word_split_prepend *prepend, bool *split)
{
    TRY(json_reader_check_keys(r, json, location,
                               "|type|replacement|add_prefix_space|prepend_scheme|split|str_rep|"));
    bool add = true;
    TRY(read_character(r, json, location, "replacement", text));
    TRY(json_reader_read_bool(r, json, location, "add_prefix_space", true, &add));
    TRY(json_reader_read_bool(r, json, location, "split", true, split));
    const json_t *scheme = json_object_get(json, "prepend_scheme");
    *prepend = add ? WORD_SPLIT_ALWAYS : WORD_SPLIT_NEVER;
    if (json_reader_is_null(scheme)) {
        return STATUS_OK;
    }
    int index = 0;
    const char *name = json_string_value(scheme);
    while (index < 3 && (name == NULL || strcmp(name, prepend_names[index]) != 0)) {
        index++;
    }
    NEED(r, index < 3 && (add || index == 0),
         "%s.prepend_scheme is not 'always', 'first' or 'never', or contradicts "
         "add_prefix_space",
         location);
    *prepend = (enum word_split_prepend)index;
    return STATUS_OK;
}

static status read_split_after(const struct json_reader *r, json_t *json, const char *location,
                               struct word_split_step *step)
{
    bool regex = false, invert = false;
    const char *text = NULL;
    TRY(json_reader_check_keys(r, json, location, "|type|pattern|behavior|invert|"));
    TRY(read_pattern(r, json, location, false, &text, &regex));
    TRY(json_reader_read_bool(r, json, location, "invert", false, &invert));
    const char *behavior = json_string_value(json_object_get(json, "behavior"));
    NEED(r, behavior != NULL && strcmp(behavior, "MergedWithPrevious") == 0 && !invert,
         "%s: behavior '" EXCERPT "' with invert %s is not supported for a model over characters; "
         "supported: MergedWithPrevious",
         location, behavior == NULL ? "(none)" : behavior, invert ? "true" : "false");
    NEED(r, strlen(text) < sizeof step->text, "%s: the pattern has more than %zu bytes", location,
         sizeof step->text - 1);
    step->kind = WORD_SPLIT_AFTER_TEXT;
    memcpy(step->text, text, strlen(text) + 1);
    return STATUS_OK;
}

status steps_read_digits(const struct json_reader *r, json_t *json)
{
    bool each = false;
    struct word_split *s = &r->t->split;
    TRY(json_reader_check_keys(r, json, "pre_tokenizer (Digits)", "|type|individual_digits|"));
    TRY(json_reader_read_bool(r, json, "pre_tokenizer (Digits)", "individual_digits", false,
                              &each));
    NEED(r, s->count < WORD_SPLIT_STEPS, "pre_tokenizer has more than %d steps", WORD_SPLIT_STEPS);
    s->steps[s->count++] =
        (struct word_split_step){.kind = each ? WORD_SPLIT_EACH_DIGIT : WORD_SPLIT_DIGITS};
    return STATUS_OK;
}

static status add_split(const struct json_reader *r, json_t *json)
{
    struct word_split *s = &r->t->split;
    struct word_split_step step = {.kind = WORD_SPLIT_WHITE_SPACE};
    const char *type = json_reader_get_type(json), *location = "pre_tokenizer";
    NEED(r, s->count < WORD_SPLIT_STEPS, "pre_tokenizer has more than %d steps", WORD_SPLIT_STEPS);
    if (strcmp(type, "Digits") == 0) {
        return steps_read_digits(r, json);
    }
    if (strcmp(type, "Split") == 0) {
        TRY(read_split_after(r, json, "pre_tokenizer (Split)", &step));
    } else if (strcmp(type, "Metaspace") == 0) {
        const char *text = NULL;
        bool split = true;
        TRY(read_metaspace(r, json, "pre_tokenizer (Metaspace)", &text, &step.prepend, &split));
        step.kind = split ? WORD_SPLIT_METASPACES : WORD_SPLIT_METASPACE;
        memcpy(step.text, text, strlen(text) + 1);
    } else {
        NEED(r, strcmp(type, "WhitespaceSplit") == 0,
             "pre_tokenizer of the type '" EXCERPT
             "' is not supported; supported: ByteLevel, Digits, Split, Metaspace, WhitespaceSplit, "
             "BertPreTokenizer and Sequence",
             type);
        TRY(json_reader_check_keys(r, json, location, "|type|"));
    }
    s->steps[s->count++] = step;
    return STATUS_OK;
}

status steps_read_split(const struct json_reader *r, json_t *json)
{
    struct tokenizer *t = r->t;
    const char *type = json_reader_get_type(json);
    bool bert = strcmp(type, "BertPreTokenizer") == 0;
    NEED(r, t->chars == NULL || !t->chars->has_bert_options || bert,
         "normalizer BertNormalizer is supported only with the pre_tokenizer BertPreTokenizer");
    if (bert) {
        NEED(r, t->chars != NULL,
             "pre_tokenizer BertPreTokenizer is supported only for BPE models");
        NEED(r, t->normalizer.count == 0,
             "pre_tokenizer BertPreTokenizer is supported only with the normalizer BertNormalizer "
             "or none");
        t->chars->bert_words = true;
        return json_reader_check_keys(r, json, "pre_tokenizer", "|type|");
    }
    if (json_reader_is_null(json) || strcmp(type, "Sequence") != 0) {
        return json_reader_is_null(json) ? STATUS_OK : add_split(r, json);
    }
    TRY(json_reader_check_keys(r, json, "pre_tokenizer", "|type|pretokenizers|"));
    json_t *list = json_object_get(json, "pretokenizers");
    NEED(r, json_is_array(list), "pre_tokenizer.pretokenizers is not a list");
    for (size_t i = 0; i < json_array_size(list); i++) {
        TRY(add_split(r, json_array_get(list, i)));
    }
    return STATUS_OK;
}

static json_t *split_step_to_json(const struct word_split_step *s)
{
    switch (s->kind) {
    case WORD_SPLIT_DIGITS:
    case WORD_SPLIT_EACH_DIGIT:
        return json_pack("{s:s, s:b}", "type", "Digits", "individual_digits",
                         s->kind == WORD_SPLIT_EACH_DIGIT ? 1 : 0);
    case WORD_SPLIT_WHITE_SPACE:
        return json_pack("{s:s}", "type", "WhitespaceSplit");
    case WORD_SPLIT_AFTER_TEXT:
        return json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "String", s->text,
                         "behavior", "MergedWithPrevious", "invert", 0);
    default:
        return json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace", "replacement", s->text,
                         "prepend_scheme", prepend_names[s->prepend], "split",
                         s->kind == WORD_SPLIT_METASPACES ? 1 : 0);
    }
}

json_t *steps_split_json(const struct tokenizer *t, json_t *words)
{
    if (t->chars != NULL && t->chars->bert_words) {
        return json_pack("{s:s}", "type", "BertPreTokenizer");
    }
    json_t *list = json_array();
    for (int i = 0; i < t->split.count; i++) {
        json_array_append_new(list, split_step_to_json(&t->split.steps[i]));
    }
    for (size_t i = 0; i < json_array_size(words); i++) {
        json_array_append(list, json_array_get(words, i));
    }
    json_decref(words);
    if (json_array_size(list) == 0) {
        json_decref(list);
        return json_null();
    }
    return wrap_list(list, "pretokenizers");
}

/* ---- decoder ---- */

static status read_strip(const struct json_reader *r, json_t *json, struct decoder_step *step)
{
    const char *text = NULL, *location = "decoder (Strip)";
    TRY(json_reader_check_keys(r, json, location, "|type|content|start|stop|"));
    TRY(read_character(r, json, location, "content", &text));
    const json_t *start = json_object_get(json, "start"), *stop = json_object_get(json, "stop");
    *step = (struct decoder_step){.kind = DECODER_STRIP,
                                  .from = (char *)(uintptr_t)text,
                                  .left = json_integer_value(start),
                                  .right = json_integer_value(stop)};
    NEED(r,
         json_is_integer(start) && json_is_integer(stop) && step->left >= 0 && step->right >= 0 &&
             step->left <= STRIPPED_MAX && step->right <= STRIPPED_MAX,
         "%s: start and stop are not integers from 0 to %d", location, STRIPPED_MAX);
    return STATUS_OK;
}

static status read_decoder_texts(const struct json_reader *r, json_t *json, const char *type,
                                 struct decoder_step *step)
{
    const char *from = NULL, *to = NULL;
    bool flag = false;
    if (strcmp(type, "Replace") == 0) {
        step->kind = DECODER_REPLACE;
        TRY(json_reader_check_keys(r, json, "decoder (Replace)", "|type|pattern|content|"));
        TRY(read_pattern(r, json, "decoder (Replace)", false, &from, &flag));
        TRY(read_text(r, json, "decoder (Replace)", "content", true, &to));
    } else if (strcmp(type, "BPEDecoder") == 0) {
        step->kind = DECODER_SUFFIX;
        TRY(json_reader_check_keys(r, json, "decoder (BPEDecoder)", "|type|suffix|"));
        TRY(read_text(r, json, "decoder (BPEDecoder)", "suffix", false, &from));
    } else {
        enum word_split_prepend prepend = WORD_SPLIT_NEVER;
        NEED(r, strcmp(type, "Metaspace") == 0,
             "decoder of the type '" EXCERPT
             "' is not supported for this model; supported: Replace, ByteFallback, Fuse, Strip, "
             "Metaspace, BPEDecoder and Sequence",
             type);
        step->kind = DECODER_METASPACE;
        TRY(read_metaspace(r, json, "decoder (Metaspace)", &from, &prepend, &flag));
        step->drops_first = prepend != WORD_SPLIT_NEVER;
    }
    step->from = (char *)(uintptr_t)from;
    step->to = (char *)(uintptr_t)to;
    return STATUS_OK;
}

static status add_decoder(const struct json_reader *r, json_t *json)
{
    const char *type = json_reader_get_type(json);
    struct decoder_step step = {.kind = DECODER_FUSE};
    bool fallback = strcmp(type, "ByteFallback") == 0;
    NEED(r, r->t->decoder.count < STEPS_MAX, "decoder has more than %d steps", STEPS_MAX);
    if (fallback || strcmp(type, "Fuse") == 0) {
        TRY(json_reader_check_keys(r, json, "decoder", "|type|"));
        step.kind = fallback ? DECODER_BYTE_FALLBACK : DECODER_FUSE;
    } else if (strcmp(type, "Strip") == 0) {
        TRY(read_strip(r, json, &step));
    } else {
        TRY(read_decoder_texts(r, json, type, &step));
    }
    return decoder_add(&r->t->decoder, &step);
}

status steps_read_decoder(const struct json_reader *r, json_t *json)
{
    if (strcmp(json_reader_get_type(json), "Sequence") != 0) {
        return add_decoder(r, json);
    }
    TRY(json_reader_check_keys(r, json, "decoder", "|type|decoders|"));
    json_t *list = json_object_get(json, "decoders");
    NEED(r, json_array_size(list) > 0, "decoder.decoders is not a list of decoders");
    for (size_t i = 0; i < json_array_size(list); i++) {
        TRY(add_decoder(r, json_array_get(list, i)));
    }
    return STATUS_OK;
}

static json_t *decoder_step_to_json(const struct decoder_step *s)
{
    switch (s->kind) {
    case DECODER_REPLACE:
        return json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", s->from,
                         "content", s->to);
    case DECODER_BYTE_FALLBACK:
        return json_pack("{s:s}", "type", "ByteFallback");
    case DECODER_FUSE:
        return json_pack("{s:s}", "type", "Fuse");
    case DECODER_STRIP:
        return json_pack("{s:s, s:s, s:I, s:I}", "type", "Strip", "content", s->from, "start",
                         (json_int_t)s->left, "stop", (json_int_t)s->right);
    case DECODER_METASPACE:
        return json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace", "replacement", s->from,
                         "prepend_scheme", s->drops_first ? "always" : "never", "split", 1);
    case DECODER_SUFFIX:
        break;
    }
    return json_pack("{s:s, s:s}", "type", "BPEDecoder", "suffix", s->from);
}

json_t *steps_decoder_json(const struct tokenizer *t)
{
    json_t *list = json_array();
    for (int i = 0; i < t->decoder.count; i++) {
        json_array_append_new(list, decoder_step_to_json(&t->decoder.steps[i]));
    }
    return wrap_list(list, "decoders");
}
