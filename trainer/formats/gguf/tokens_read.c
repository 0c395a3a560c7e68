/* Writes the tokenizer of a GGUF file as the files of a model folder: tokenizer.json for BPE over
 * bytes, tokenizer.model for SentencePiece and Unigram, vocab.txt for WordPiece. */
#include <float.h>
#include <inttypes.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/memory.h"
#include "datasets/sentencepiece/sentencepiece.h"
#include "datasets/text/pretokenizer.h"
#include "trainer/formats/gguf/gguf_impl.h"
#include "trainer/formats/huggingface/json_file.h"

/* The lists of the metadata; scores and types may be missing. */
struct token_lists {
    const struct gguf_file *file;
    const struct gguf_key *texts, *types, *scores;
};

static enum sentencepiece_type get_type(const struct token_lists *l, int64_t id)
{
    return l->types != NULL ? (enum sentencepiece_type)l->types->numbers[id] : SENTENCEPIECE_NORMAL;
}

/* Checks that the types are types of SentencePiece and that the scores are finite. */
static status check_lists(const struct token_lists *l)
{
    for (int64_t id = 0; id < l->texts->count; id++) {
        double type = l->types != NULL ? l->types->numbers[id] : SENTENCEPIECE_NORMAL;
        REQUIRE(type >= SENTENCEPIECE_NORMAL && type <= SENTENCEPIECE_BYTE, STATUS_DATA,
                "%s: the token %" PRId64 " has the type %g; %d to %d are known", gguf_path(l->file),
                id, type, SENTENCEPIECE_NORMAL, SENTENCEPIECE_BYTE);
        REQUIRE(l->scores == NULL || fabs(l->scores->numbers[id]) <= FLT_MAX, STATUS_DATA,
                "%s: the score of token %" PRId64 " is not finite", gguf_path(l->file), id);
    }
    return STATUS_OK;
}

static status read_lists(const struct gguf_file *file, struct token_lists *l)
{
    l->file = file;
    l->texts = gguf_find_key(file, "tokenizer.ggml.tokens");
    l->types = gguf_find_key(file, "tokenizer.ggml.token_type");
    l->scores = gguf_find_key(file, "tokenizer.ggml.scores");
    bool valid = l->texts != NULL && l->texts->texts != NULL;
    const struct gguf_key *numbers[] = {l->types, l->scores};
    for (int i = 0; i < COUNT(numbers) && valid; i++) {
        valid = numbers[i] == NULL ||
                (numbers[i]->numbers != NULL && numbers[i]->count == l->texts->count);
    }
    REQUIRE(valid, STATUS_DATA,
            "%s: tokenizer.ggml.tokens is missing, or token_type or scores have another length",
            gguf_path(file));
    return check_lists(l);
}

/* Returns the id of a special token; -1: the file has none. */
static int64_t get_special_id(const struct token_lists *l, const char *key)
{
    double id = gguf_get_number(l->file, key, -1);
    return id >= 0 && id < (double)l->texts->count ? (int64_t)id : -1;
}

/* Returns the text of a special token; NULL: the file has none. */
static const char *get_special(const struct token_lists *l, const char *key)
{
    int64_t id = get_special_id(l, key);
    return id >= 0 ? l->texts->texts[id] : NULL;
}

static bool get_flag(const struct token_lists *l, const char *name, bool default_value)
{
    return gguf_get_number(l->file, name, default_value) != 0;
}

/* ---- BPE over bytes ---- */

/* Patterns of words by tokenizer.ggml.pre. NULL: the pattern of GPT-2. */
static const struct {
    const char *name;
    enum pretokenizer_pattern pattern; /* PRETOKENIZER_NONE: as GPT-2, without a Split */
    bool digits, nfc, ignore_merges;
} patterns[] = {
    {"gpt-2", PRETOKENIZER_NONE, false, false, false},
    {"roberta-bpe", PRETOKENIZER_NONE, false, false, false},
    {"modern-bert", PRETOKENIZER_NONE, false, true, false},
    {"smollm", PRETOKENIZER_NONE, true, false, false},
    {"llama-bpe", PRETOKENIZER_LLAMA3, false, false, true},
    {"dbrx", PRETOKENIZER_CL100K, false, false, false},
    {"qwen2", PRETOKENIZER_QWEN2, false, true, false},
    {"gpt-4o", PRETOKENIZER_O200K, false, false, false},
};

static json_t *build_pre_tokenizer(int index, bool add_prefix_space)
{
    enum pretokenizer_pattern pattern = patterns[index].pattern;
    json_t *level =
        json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", add_prefix_space,
                  "trim_offsets", 1, "use_regex", pattern == PRETOKENIZER_NONE);
    if (patterns[index].digits) {
        return json_pack("{s:s, s:[{s:s, s:b}, o]}", "type", "Sequence", "pretokenizers", "type",
                         "Digits", "individual_digits", 1, level);
    }
    if (pattern == PRETOKENIZER_NONE) {
        return level;
    }
    return json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, o]}", "type", "Sequence", "pretokenizers",
                     "type", "Split", "pattern", "Regex", pretokenizer_published_regex(pattern),
                     "behavior", "Isolated", "invert", 0, level);
}

static json_t *build_special(const char *text, int type)
{
    return json_pack("{s:{s:s, s:i}}", "SpecialToken", "id", text, "type_id", type);
}

static json_t *build_sequence(const char *name, int type)
{
    return json_pack("{s:{s:s, s:i}}", "Sequence", "id", name, "type_id", type);
}

/* Builds the post-processor of BERT and ModernBERT: [CLS] A [SEP] B [SEP]. */
static json_t *build_bert_processor(const char *cls, int cls_id, const char *sep, int sep_id)
{
    return json_pack("{s:s, s:[o, o, o], s:[o, o, o, o, o], s:{s:{s:s, s:[i], s:[s]}, s:{s:s, "
                     "s:[i], s:[s]}}}",
                     "type", "TemplateProcessing", "single", build_special(cls, 0),
                     build_sequence("A", 0), build_special(sep, 0), "pair", build_special(cls, 0),
                     build_sequence("A", 0), build_special(sep, 0), build_sequence("B", 1),
                     build_special(sep, 1), "special_tokens", cls, "id", cls, "ids", cls_id,
                     "tokens", cls, sep, "id", sep, "ids", sep_id, "tokens", sep);
}

/* Builds the post-processor: RoBERTa's, BERT's, one that adds a token before each text, or none. */
static json_t *build_post_processor(const struct token_lists *l, bool roberta)
{
    const char *bos = get_special(l, "tokenizer.ggml.bos_token_id");
    const char *eos = get_special(l, "tokenizer.ggml.eos_token_id");
    int bos_id = (int)get_special_id(l, "tokenizer.ggml.bos_token_id");
    int eos_id = (int)get_special_id(l, "tokenizer.ggml.eos_token_id");
    if (roberta && bos != NULL && eos != NULL) {
        return json_pack("{s:s, s:[s, i], s:[s, i], s:b, s:b}", "type", "RobertaProcessing", "sep",
                         eos, eos_id, "cls", bos, bos_id, "trim_offsets", 1, "add_prefix_space", 0);
    }
    if (bos == NULL || !get_flag(l, "tokenizer.ggml.add_bos_token", false)) {
        return json_null();
    }
    bool has_both = eos != NULL && get_flag(l, "tokenizer.ggml.add_eos_token", false);
    if (has_both && strcmp(bos, "[CLS]") == 0 && strcmp(eos, "[SEP]") == 0) {
        return build_bert_processor(bos, bos_id, eos, eos_id);
    }
    return json_pack("{s:s, s:[{s:{s:s, s:i}}, {s:{s:s, s:i}}], s:[{s:{s:s, s:i}}, {s:{s:s, s:i}}, "
                     "{s:{s:s, s:i}}, {s:{s:s, s:i}}], s:{s:{s:s, s:[i], s:[s]}}}",
                     "type", "TemplateProcessing", "single", "SpecialToken", "id", bos, "type_id",
                     0, "Sequence", "id", "A", "type_id", 0, "pair", "SpecialToken", "id", bos,
                     "type_id", 0, "Sequence", "id", "A", "type_id", 0, "SpecialToken", "id", bos,
                     "type_id", 1, "Sequence", "id", "B", "type_id", 1, "special_tokens", bos, "id",
                     bos, "ids", bos_id, "tokens", bos);
}

/* Adds the tokens of the lists to the vocabulary and to the added tokens. */
static status fill_tokens(const struct token_lists *l, json_t *vocab, json_t *added)
{
    for (int64_t id = 0; id < l->texts->count; id++) {
        const char *text = l->texts->texts[id];
        enum sentencepiece_type type = get_type(l, id);
        bool special = type == SENTENCEPIECE_CONTROL, failed = false;
        if (type == SENTENCEPIECE_NORMAL) {
            failed = json_object_set_new(vocab, text, json_integer(id)) != 0;
        } else if (special || type == SENTENCEPIECE_USER_DEFINED) {
            json_t *entry = json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)id,
                                      "content", text, "single_word", 0, "lstrip", 0, "rstrip", 0,
                                      "normalized", 0, "special", special);
            failed = json_array_append_new(added, entry) != 0;
        }
        REQUIRE(!failed, STATUS_DATA, "%s: the token %" PRId64 " is not UTF-8", gguf_path(l->file),
                id);
    }
    return STATUS_OK;
}

static status fill_merges(const struct token_lists *l, json_t *merges)
{
    const struct gguf_key *key = gguf_find_key(l->file, "tokenizer.ggml.merges");
    REQUIRE(key != NULL && key->texts != NULL, STATUS_DATA, "%s: tokenizer.ggml.merges is missing",
            gguf_path(l->file));
    for (int64_t i = 0; i < key->count; i++) {
        REQUIRE(json_array_append_new(merges, json_string(key->texts[i])) == 0, STATUS_DATA,
                "%s: the merge %" PRId64 " is not UTF-8", gguf_path(l->file), i);
    }
    return STATUS_OK;
}

static int find_pattern(const char *name)
{
    for (int i = 0; name != NULL && i < COUNT(patterns); i++) {
        if (strcmp(patterns[i].name, name) == 0) {
            return i;
        }
    }
    return -1;
}

static status write_byte_bpe(const struct token_lists *l, const char *folder)
{
    const char *pre = gguf_get_text(l->file, "tokenizer.ggml.pre");
    int index = find_pattern(pre);
    REQUIRE(index >= 0, STATUS_UNAVAILABLE,
            "%s: tokenizer.ggml.pre '%.60s' is not supported; gpt-2, roberta-bpe, modern-bert, "
            "smollm, llama-bpe, dbrx, qwen2 and gpt-4o are",
            gguf_path(l->file), pre != NULL ? pre : "(missing)");
    bool prefix = gguf_get_number(l->file, "tokenizer.ggml.add_space_prefix", 0) != 0;
    json_t *vocab = json_object(), *merges = json_array(), *added = json_array();
    json_t *document =
        json_pack("{s:s, s:n, s:n, s:o, s:o, s:o, s:o, s:{s:s}, s:{s:s, s:b, s:o, s:o}}", "version",
                  "1.0", "truncation", "padding", "added_tokens", added, "normalizer",
                  patterns[index].nfc ? json_pack("{s:s}", "type", "NFC") : json_null(),
                  "pre_tokenizer", build_pre_tokenizer(index, prefix), "post_processor",
                  build_post_processor(l, strcmp(pre, "roberta-bpe") == 0), "decoder", "type",
                  "ByteLevel", "model", "type", "BPE", "ignore_merges",
                  patterns[index].ignore_merges, "vocab", vocab, "merges", merges);
    REQUIRE(document != NULL, STATUS_INTERNAL, "out of memory for tokenizer.json");
    status result = fill_tokens(l, vocab, added);
    if (result == STATUS_OK) {
        result = fill_merges(l, merges);
    }
    if (result != STATUS_OK) {
        json_decref(document);
        return result;
    }
    return json_file_write(folder, "tokenizer.json", document);
}

/* ---- SentencePiece and WordPiece ---- */

/* Reads the character map of a Unigram model; *data is NULL if there is none. */
static status read_charsmap(const struct token_lists *l, uint8_t **data, size_t *bytes)
{
    const struct gguf_key *key = gguf_find_key(l->file, "tokenizer.ggml.precompiled_charsmap");
    *data = NULL;
    *bytes = 0;
    if (key == NULL) {
        return STATUS_OK;
    }
    REQUIRE(key->is_list && (key->type == GGUF_VALUE_U8 || key->type == GGUF_VALUE_I8), STATUS_DATA,
            "%s: %s is not a list of bytes", gguf_path(l->file), key->name);
    TRY(ALLOCATE(*data, key->count + 1, "a character map"));
    for (int64_t i = 0; i < key->count; i++) {
        (*data)[i] = (uint8_t)(int)key->numbers[i];
    }
    *bytes = (size_t)key->count;
    return STATUS_OK;
}

/* Describes the model; the caller frees the character map. */
static status design_model(const struct token_lists *l, const struct sentencepiece_piece *pieces,
                           bool is_bpe, uint8_t **charsmap, struct sentencepiece_design *d)
{
    *d = (struct sentencepiece_design){
        .pieces = pieces,
        .count = l->texts->count,
        .is_bpe = is_bpe,
        .bos = get_special(l, "tokenizer.ggml.bos_token_id"),
        .eos = get_special(l, "tokenizer.ggml.eos_token_id"),
        .adds_space = get_flag(l, "tokenizer.ggml.add_space_prefix", is_bpe),
    };
    if (is_bpe) {
        return STATUS_OK;
    }
    d->merges_spaces = get_flag(l, "tokenizer.ggml.remove_extra_whitespaces", false);
    TRY(read_charsmap(l, charsmap, &d->charsmap_bytes));
    d->charsmap = *charsmap;
    return STATUS_OK;
}

static status write_pieces(const struct token_lists *l, bool is_bpe, const char *folder)
{
    char path[FILE_PATH_BYTES];
    struct sentencepiece_piece *pieces = NULL;
    struct sentencepiece_design design;
    struct sentencepiece *model = NULL;
    uint8_t *charsmap = NULL;
    size_t bytes;
    TRY(file_join(path, folder, "tokenizer.model"));
    TRY(ALLOCATE(pieces, l->texts->count, "the tokens of a GGUF file"));
    for (int64_t id = 0; id < l->texts->count; id++) {
        pieces[id].text = l->texts->texts[id];
        pieces[id].score = l->scores != NULL ? (float)l->scores->numbers[id] : 0;
        pieces[id].type = get_type(l, id);
    }
    status result = design_model(l, pieces, is_bpe, &charsmap, &design);
    KEEP_FIRST(result, result == STATUS_OK
                           ? sentencepiece_create(&design, gguf_path(l->file), &model)
                           : result);
    if (result == STATUS_OK) {
        const char *data = sentencepiece_data(model, &bytes);
        result = file_write(path, data, bytes);
    }
    sentencepiece_close(&model);
    free(pieces);
    free(charsmap);
    return result;
}

/* Writes vocab.txt. GGUF files mark the beginnings of words, vocab.txt their continuations. */
static status write_wordpiece(const struct token_lists *l, const char *folder)
{
    char path[FILE_PATH_BYTES], *text = NULL;
    size_t bytes = 0, mark = strlen(SENTENCEPIECE_SPACE);
    TRY(file_join(path, folder, "vocab.txt"));
    for (int64_t id = 0; id < l->texts->count; id++) {
        REQUIRE(strpbrk(l->texts->texts[id], "\r\n") == NULL, STATUS_DATA,
                "%s: the token %" PRId64 " contains a newline, which vocab.txt cannot store",
                gguf_path(l->file), id);
    }
    FILE *file = open_memstream(&text, &bytes);
    REQUIRE(file != NULL, STATUS_INTERNAL, "out of memory for vocab.txt");
    for (int64_t id = 0; id < l->texts->count; id++) {
        const char *token = l->texts->texts[id];
        bool begins = strncmp(token, SENTENCEPIECE_SPACE, mark) == 0;
        bool is_plain = get_type(l, id) != SENTENCEPIECE_NORMAL;
        fprintf(file, "%s%s\n", begins || is_plain ? "" : "##", token + (begins ? mark : 0));
    }
    bool complete = fclose(file) == 0;
    status result = complete ? file_write(path, text, bytes)
                             : RAISE_STATUS(STATUS_INTERNAL, "out of memory for vocab.txt");
    free(text);
    return result;
}

/* ---- the other files ---- */

/* Writes tokenizer_config.json. adds_bos: the value for a file without the key add_bos_token. */
static status write_tokenizer_config(const struct token_lists *l, const char *folder, bool pieces,
                                     bool adds_bos)
{
    const char *bos = get_special(l, "tokenizer.ggml.bos_token_id");
    const char *eos = get_special(l, "tokenizer.ggml.eos_token_id");
    json_t *config = json_object();
    if (bos != NULL) {
        json_object_set_new(config, "bos_token", json_string(bos));
    }
    if (eos != NULL) {
        json_object_set_new(config, "eos_token", json_string(eos));
    }
    if (pieces) {
        json_object_set_new(config, "add_bos_token",
                            json_boolean(get_flag(l, "tokenizer.ggml.add_bos_token", adds_bos)));
    }
    return json_file_write(folder, "tokenizer_config.json", config);
}

static status write_template(const struct gguf_file *file, const char *folder)
{
    char path[FILE_PATH_BYTES];
    const char *text = gguf_get_text(file, "tokenizer.chat_template");
    TRY(file_join(path, folder, "chat_template.jinja"));
    return text != NULL ? file_write(path, text, strlen(text)) : STATUS_OK;
}

status gguf_read_tokenizer(const struct gguf_file *file, const char *folder, bool *exists)
{
    struct token_lists lists;
    const char *kind = gguf_get_text(file, "tokenizer.ggml.model");
    *exists = kind != NULL && strcmp(kind, "no_vocab") != 0 && strcmp(kind, "none") != 0;
    if (!*exists) {
        return STATUS_OK;
    }
    bool is_bpe = strcmp(kind, "llama") == 0, is_pieces = is_bpe || strcmp(kind, "t5") == 0;
    bool is_wordpiece = strcmp(kind, "bert") == 0;
    REQUIRE(is_pieces || is_wordpiece || strcmp(kind, "gpt2") == 0, STATUS_UNAVAILABLE,
            "%s: tokenizer.ggml.model '%.60s' is not supported; gpt2, llama, t5, bert and no_vocab "
            "are",
            gguf_path(file), kind);
    TRY(read_lists(file, &lists));
    TRY(is_pieces      ? write_pieces(&lists, is_bpe, folder)
        : is_wordpiece ? write_wordpiece(&lists, folder)
                       : write_byte_bpe(&lists, folder));
    TRY(is_wordpiece ? STATUS_OK : write_tokenizer_config(&lists, folder, is_pieces, is_bpe));
    return write_template(file, folder);
}
