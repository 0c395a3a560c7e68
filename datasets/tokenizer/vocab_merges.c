/* Reads byte-level BPE without a tokenizer.json. The functions build the text of a tokenizer.json
 * and read this text, so that the result passes all checks of such a file.
 *
 * GPT-2 and RoBERTa have vocab.json (an object of tokens and ids) and merges.txt (a pair per line,
 * after a line "#version: ...").
 *
 * ByT5 has only tokenizer_config.json. Its tokens are bytes: BPE without merges and without words.
 * The ids 0, 1 and 2 are <pad>, </s> and <unk>. The bytes have the ids 3 to 258. Added tokens such
 * as <extra_id_0> have the ids after 258. */
#include "datasets/tokenizer/vocab_merges.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "datasets/text/alphabet.h"
#include "datasets/tokenizer/json_reader_impl.h"
#include "datasets/tokenizer/post_processor.h"

#define MERGES_FILE "merges.txt"

bool vocab_merges_exists(const char *folder)
{
    char vocab[FILE_PATH_BYTES], merges[FILE_PATH_BYTES];
    snprintf(vocab, sizeof vocab, "%.4000s/" VOCAB_JSON, folder);
    snprintf(merges, sizeof merges, "%.4000s/" MERGES_FILE, folder);
    return file_exists(vocab) && file_exists(merges);
}

status vocab_merges_read_json(const char *path, json_t **out)
{
    char *text = NULL;
    size_t bytes = 0;
    json_error_t error;
    TRY(file_read(path, TOKENIZER_FILE_BYTES_MAX, &text, &bytes));
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    free(text);
    REQUIRE(*out != NULL, STATUS_DATA, "%s:%d:%d: %s", path, error.line, error.column, error.text);
    return STATUS_OK;
}

static status read_merges(const char *folder, json_t *merges)
{
    char path[FILE_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    status result = STATUS_OK;
    TRY(file_join(path, folder, MERGES_FILE));
    TRY(file_read(path, TOKENIZER_FILE_BYTES_MAX, &text, &bytes));
    char *rest = text;
    for (char *line; result == STATUS_OK && (line = strsep(&rest, "\n")) != NULL;) {
        line[strcspn(line, "\r")] = '\0';
        bool is_comment = line == text && strncmp(line, "#version", 8) == 0;
        if (line[0] != '\0' && !is_comment &&
            json_array_append_new(merges, json_string(line)) != 0) {
            result = RAISE_STATUS(STATUS_DATA, "%s is not valid UTF-8", path);
        }
    }
    free(text);
    return result;
}

/* Adds a special token, if the vocabulary has it. */
static void add_special(json_t *list, const json_t *vocab, const char *token, bool lstrip)
{
    const json_t *id = json_object_get(vocab, token);
    if (id != NULL) {
        json_array_append_new(list, json_pack("{s:O, s:s, s:b, s:b, s:b, s:b, s:b}", "id",
                                              (json_t *)(uintptr_t)id, "content", token,
                                              "single_word", 0, "lstrip", lstrip, "rstrip", 0,
                                              "normalized", 0, "special", 1));
    }
}

/* Makes the list of special tokens and the post-processor: RoBERTa's if its tokens exist. */
static void make_special_parts(const json_t *vocab, json_t **added, json_t **processor)
{
    static const char *const roberta[] = {"<s>", "<pad>", "</s>", "<unk>"};
    json_t *cls = json_object_get(vocab, "<s>"), *sep = json_object_get(vocab, "</s>");
    bool is_roberta = cls != NULL && sep != NULL && json_object_get(vocab, "<mask>") != NULL;
    *added = json_array();
    for (int i = 0; is_roberta && i < COUNT(roberta); i++) {
        add_special(*added, vocab, roberta[i], false);
    }
    if (is_roberta) {
        add_special(*added, vocab, "<mask>", true);
        *processor =
            json_pack("{s:s, s:[s,O], s:[s,O], s:b, s:b}", "type", "RobertaProcessing", "sep",
                      "</s>", sep, "cls", "<s>", cls, "trim_offsets", 1, "add_prefix_space", 0);
        return;
    }
    add_special(*added, vocab, TOKENIZER_EOS, false);
    *processor = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 1,
                           "trim_offsets", 0, "use_regex", 1);
}

/* The parts of a tokenizer.json. open_parts takes their references. */
struct parts {
    json_t *vocab, *merges, *added, *processor;
    bool has_words; /* merges do not cross the words of GPT-2 */
};

/* Builds the text of a tokenizer.json and reads it. Takes the references of the parts. */
static status open_parts(const char *path, const struct parts *p, struct tokenizer **out)
{
    json_t *model =
        json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout",
                  "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0,
                  "byte_fallback", 0, "vocab", p->vocab, "merges", p->merges);
    json_t *root = json_pack(
        "{s:s, s:n, s:n, s:o, s:n, s:{s:s, s:b, s:b, s:b}, s:o, s:{s:s, s:b, s:b, s:b}, s:o}",
        "version", "1.0", "truncation", "padding", "added_tokens", p->added, "normalizer",
        "pre_tokenizer", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex",
        p->has_words ? 1 : 0, "post_processor", p->processor, "decoder", "type", "ByteLevel",
        "add_prefix_space", 1, "trim_offsets", 1, "use_regex", 1, "model", model);
    char *text = root != NULL ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    REQUIRE(text != NULL, STATUS_INTERNAL, "out of memory for %s", path);
    status result = tokenizer_from_text(text, strlen(text), path, out);
    free(text);
    return result;
}

status vocab_merges_open(const char *folder, struct tokenizer **out)
{
    char path[FILE_PATH_BYTES];
    struct parts parts = {.merges = json_array(), .has_words = true};
    *out = NULL;
    status result = file_join(path, folder, VOCAB_JSON);
    KEEP_FIRST(result, result == STATUS_OK ? vocab_merges_read_json(path, &parts.vocab) : result);
    KEEP_FIRST(result, result == STATUS_OK ? read_merges(folder, parts.merges) : result);
    if (result != STATUS_OK) {
        json_decref(parts.vocab);
        json_decref(parts.merges);
        return result;
    }
    make_special_parts(parts.vocab, &parts.added, &parts.processor);
    return open_parts(path, &parts, out);
}

/* ---- ByT5 ---- */

enum { SPECIALS = 3, BYTES = 256, END_ID = 1, EXTRA_IDS = 125, ADDED_MAX = 1000 };

static const char *const specials[SPECIALS][2] = {
    {"pad_token", "<pad>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}};

/* The configuration and the added tokens that it contains. */
struct byt5 {
    char path[FILE_PATH_BYTES];
    json_t *config;
    json_t *added;   /* members of added_tokens in tokenizer.json */
    int64_t next_id; /* of a further added token */
};

bool tokenizer_byt5_exists(const char *folder)
{
    json_t *config = NULL;
    if (tokenizer_config_load(folder, &config) != STATUS_OK) {
        status_clear();
    }
    const char *class = json_string_value(json_object_get(config, "tokenizer_class"));
    bool exists = class != NULL && strcmp(class, "ByT5Tokenizer") == 0;
    json_decref(config);
    return exists;
}

static bool get_flag(const json_t *token, const char *name, bool default_value)
{
    const json_t *value = json_object_get(token, name);
    return json_is_boolean(value) ? json_is_true(value) : default_value;
}

/* Adds a token. The configuration contains it as a string, or as an object with its flags. */
static status add_token(struct byt5 *b, int64_t id, const json_t *token, bool special)
{
    const json_t *content = json_is_object(token) ? json_object_get(token, "content") : token;
    bool strips = id < SPECIALS;
    REQUIRE(json_is_string(content), STATUS_DATA,
            "%s: the token with the id %" PRId64 " is not a string", b->path, id);
    json_t *entry = json_pack(
        "{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)id, "content",
        json_string_value(content), "single_word", get_flag(token, "single_word", false), "lstrip",
        get_flag(token, "lstrip", strips), "rstrip", get_flag(token, "rstrip", strips),
        "normalized", 0, "special", special || get_flag(token, "special", false));
    REQUIRE(json_array_append_new(b->added, entry) == 0, STATUS_INTERNAL,
            "out of memory for the tokens of %s", b->path);
    b->next_id = id >= b->next_id ? id + 1 : b->next_id;
    return STATUS_OK;
}

static bool has_token(const struct byt5 *b, const char *text)
{
    for (size_t i = 0; i < json_array_size(b->added); i++) {
        const json_t *content = json_object_get(json_array_get(b->added, i), "content");
        if (strcmp(json_string_value(content), text) == 0) {
            return true;
        }
    }
    return false;
}

static status add_specials(struct byt5 *b)
{
    const json_t *decoder = json_object_get(b->config, "added_tokens_decoder");
    for (int i = 0; i < SPECIALS; i++) {
        const char id[] = {(char)('0' + i), '\0'};
        const json_t *token = json_object_get(decoder, id);
        token = token != NULL ? token : json_object_get(b->config, specials[i][0]);
        json_t *usual = json_string(specials[i][1]);
        bool is_missing = token == NULL || json_is_null(token);
        status result = add_token(b, i, is_missing ? usual : token, true);
        json_decref(usual);
        TRY(result);
    }
    return STATUS_OK;
}

/* Adds the tokens of added_tokens_decoder, which has their ids as keys. */
static status add_listed_ids(struct byt5 *b)
{
    const char *key;
    json_t *decoder = json_object_get(b->config, "added_tokens_decoder"), *token;
    REQUIRE(json_object_size(decoder) <= ADDED_MAX, STATUS_DATA,
            "%s: added_tokens_decoder has %zu tokens; at most %d are supported", b->path,
            json_object_size(decoder), ADDED_MAX);
    json_object_foreach(decoder, key, token)
    {
        char *end;
        int64_t id = strtoll(key, &end, 10);
        REQUIRE(end != key && *end == '\0' && id >= 0 && id < TOKENIZER_VOCAB_MAX, STATUS_DATA,
                "%s: the key '" EXCERPT "' of added_tokens_decoder is not an id", b->path, key);
        TRY(id >= SPECIALS ? add_token(b, id, token, false) : STATUS_OK);
    }
    return STATUS_OK;
}

/* Adds the additional special tokens after the other ids: the tokens of a list, or <extra_id_0> and
 * its successors. */
static status add_extra_tokens(struct byt5 *b)
{
    static const char *const keys[] = {"additional_special_tokens", "extra_special_tokens"};
    const json_t *count = json_object_get(b->config, "extra_ids"), *list = NULL;
    double extra = json_is_number(count) ? json_number_value(count) : EXTRA_IDS;
    for (int i = 0; i < 2 && !json_is_array(list); i++) {
        list = json_object_get(b->config, keys[i]);
    }
    extra = json_is_array(list) ? (double)json_array_size(list) : extra;
    REQUIRE(extra >= 0 && extra <= ADDED_MAX, STATUS_DATA,
            "%s: it has %g additional tokens; 0 to %d are supported", b->path, extra, ADDED_MAX);
    size_t tokens = (size_t)extra;
    status result = STATUS_OK;
    for (size_t i = 0; i < tokens && result == STATUS_OK; i++) {
        json_t *token = json_is_array(list) ? json_incref(json_array_get(list, i))
                                            : json_sprintf("<extra_id_%zu>", i);
        const json_t *content = json_is_object(token) ? json_object_get(token, "content") : token;
        if (!json_is_string(content) || !has_token(b, json_string_value(content))) {
            result = add_token(b, b->next_id, token, true);
        }
        json_decref(token);
    }
    return result;
}

/* Builds model.vocab: the special tokens and the bytes. */
static json_t *build_vocab(const struct byt5 *b)
{
    json_t *vocab = json_object();
    for (int i = 0; i < SPECIALS; i++) {
        json_object_set(vocab,
                        json_string_value(json_object_get(json_array_get(b->added, i), "content")),
                        json_object_get(json_array_get(b->added, i), "id"));
    }
    for (int i = 0; i < BYTES; i++) {
        char byte = (char)i, text[3];
        size_t length = alphabet_encode(&byte, 1, text);
        json_object_setn_new(vocab, text, length, json_integer(SPECIALS + i));
    }
    return vocab;
}

static status read_config(struct byt5 *b, struct tokenizer **out)
{
    TRY(add_specials(b));
    b->next_id = SPECIALS + BYTES;
    TRY(add_listed_ids(b));
    TRY(add_extra_tokens(b));
    const json_t *end = json_object_get(json_array_get(b->added, END_ID), "content");
    const struct parts parts = {.vocab = build_vocab(b),
                                .merges = json_array(),
                                .added = json_incref(b->added),
                                .processor =
                                    post_processor_eos_json(json_string_value(end), END_ID, 0)};
    return open_parts(b->path, &parts, out);
}

status tokenizer_byt5_open(const char *folder, struct tokenizer **out)
{
    struct byt5 b = {0};
    *out = NULL;
    TRY(file_join(b.path, folder, TOKENIZER_CONFIG));
    TRY(tokenizer_config_load(folder, &b.config));
    b.added = json_array();
    status result = read_config(&b, out);
    json_decref(b.added);
    json_decref(b.config);
    return result;
}
