/* Tokenizers of Marian: source.spm and target.spm are the SentencePiece models of the two
 * languages, and vocab.json contains the ids of the pieces of both. With separate_vocabs: true in
 * tokenizer_config.json, vocab.json contains the pieces of the sources, and target_vocab.json those
 * of the targets.
 *
 * A piece that vocab.json does not contain is unknown. A text can begin with a language token of
 * the target, such as >>es<<. MarianTokenizer in transformers gives the same ids for sources
 * and targets. */
#include "datasets/tokenizer/marian.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "datasets/sentencepiece/sentencepiece.h"
#include "datasets/tokenizer/json_reader_impl.h"
#include "datasets/tokenizer/vocab_merges.h"

#define UNKNOWN "<unk>"
#define TARGET_VOCAB_JSON "target_vocab.json"

enum { MODELS = 2 };

static const char *const model_files[MODELS] = {"source.spm", "target.spm"};

bool marian_exists(const char *folder)
{
    char path[FILE_PATH_BYTES];
    bool exists = true;
    for (int i = 0; i < MODELS && exists; i++) {
        exists = file_join(path, folder, model_files[i]) == STATUS_OK && file_exists(path);
    }
    exists = exists && file_join(path, folder, VOCAB_JSON) == STATUS_OK && file_exists(path);
    status_clear();
    return exists;
}

/* ---- files ---- */

static status read_model(const char *folder, int i, struct tokenizer *t)
{
    char path[FILE_PATH_BYTES], *data = NULL;
    size_t bytes = 0;
    TRY(file_join(path, folder, model_files[i]));
    TRY(file_read(path, SENTENCEPIECE_FILE_BYTES_MAX, &data, &bytes));
    status result = sentencepiece_open(data, bytes, path, &t->marian[i]);
    free(data);
    TRY(result);
    REQUIRE(!sentencepiece_has_bytes(t->marian[i]), STATUS_DATA,
            "%s: a model of Marian with byte fallback is not supported", path);
    return STATUS_OK;
}

/* Checks the ids and finds the largest one. */
static status find_vocab_size(const char *path, const json_t *vocab, int64_t *out)
{
    const char *text;
    const json_t *value;
    *out = 0;
    json_object_foreach((json_t *)(uintptr_t)vocab, text, value)
    {
        TRY(json_reader_check_id(path, value, text, (int64_t)json_object_size(vocab), out));
    }
    REQUIRE(*out > 0, STATUS_DATA, "%s has no tokens", path);
    return STATUS_OK;
}

static status set_tokens(const char *path, const json_t *vocab, struct tokenizer *t)
{
    const char *text;
    const json_t *value;
    json_object_foreach((json_t *)(uintptr_t)vocab, text, value)
    {
        int64_t id = json_integer_value(value);
        REQUIRE(!t->tokens[id].in_model, STATUS_DATA,
                "%s: the tokens '" EXCERPT "' and '" EXCERPT "' have the id %" PRId64, path,
                t->tokens[id].bytes, text, id);
        TRY(tokenizer_set_token(t, id, text, strlen(text)));
        t->tokens[id].in_model = t->tokens[id].literal = true;
    }
    static const char *const specials[] = {"</s>", UNKNOWN, "<pad>"};
    for (int i = 0; i < COUNT(specials); i++) {
        const json_t *id = json_object_get(vocab, specials[i]);
        REQUIRE(id != NULL || i == 2, STATUS_DATA, "%s: there is no token %s", path, specials[i]);
        TRY(id == NULL ? STATUS_OK
                       : tokenizer_register_added(
                             t, (struct added_token){.id = (int32_t)json_integer_value(id),
                                                     .special = true}));
    }
    return STATUS_OK;
}

static status has_separate_vocabularies(const char *folder, bool *out)
{
    json_t *root = NULL;
    TRY(tokenizer_config_load(folder, &root));
    *out = json_is_true(json_object_get(root, "separate_vocabs"));
    json_decref(root);
    return STATUS_OK;
}

static status read_tokenizer(const char *folder, const char *path, const json_t *vocab,
                             struct tokenizer **out)
{
    int64_t vocab_size;
    TRY(find_vocab_size(path, vocab, &vocab_size));
    TRY(tokenizer_allocate(TOKENIZER_MARIAN, vocab_size, out));
    TRY(set_tokens(path, vocab, *out));
    for (int i = 0; i < MODELS; i++) {
        TRY(read_model(folder, i, *out));
    }
    TRY(tokenizer_finish(*out));
    return tokenizer_config_read_eos(folder, *out);
}

/* Opens the tokenizer with the vocabulary of one file. */
static status open_with_vocabulary(const char *folder, const char *name, struct tokenizer **out)
{
    char path[FILE_PATH_BYTES];
    json_t *vocab = NULL;
    TRY(file_join(path, folder, name));
    TRY(vocab_merges_read_json(path, &vocab));
    status result = read_tokenizer(folder, path, vocab, out);
    json_decref(vocab);
    if (result != STATUS_OK) {
        tokenizer_destroy(out);
    }
    return result;
}

/* Opens the vocabulary of the targets. MarianTokenizer ends sources and targets with one id. */
static status open_targets(const char *folder, struct tokenizer *t)
{
    TRY(open_with_vocabulary(folder, TARGET_VOCAB_JSON, &t->target));
    REQUIRE(t->target->eos == t->eos, STATUS_UNAVAILABLE,
            "%s: the end token has the id %" PRId32 " in " VOCAB_JSON " and the id %" PRId32
            " in " TARGET_VOCAB_JSON "; only equal ids are supported",
            folder, t->eos, t->target->eos);
    return STATUS_OK;
}

status marian_open(const char *folder, struct tokenizer **out)
{
    bool separate = false;
    *out = NULL;
    TRY(has_separate_vocabularies(folder, &separate));
    TRY(open_with_vocabulary(folder, VOCAB_JSON, out));
    status result = separate ? open_targets(folder, *out) : STATUS_OK;
    if (result != STATUS_OK) {
        tokenizer_destroy(out);
    }
    return result;
}

/* Writes the vocabulary in the order of the ids. The caller frees *out with free(). */
static status write_vocab(const struct tokenizer *t, char **out)
{
    json_t *vocab = json_object();
    for (int64_t id = 0; id < t->vocab_size; id++) {
        if (t->tokens[id].in_model) {
            json_object_set_new(vocab, t->tokens[id].bytes, json_integer(id));
        }
    }
    *out = json_dumps(vocab, JSON_INDENT(2));
    json_decref(vocab);
    REQUIRE(*out != NULL, STATUS_INTERNAL, "out of memory for a vocabulary of %" PRId64 " tokens",
            t->vocab_size);
    return STATUS_OK;
}

static status save_vocabulary(const struct tokenizer *t, const char *folder, const char *name)
{
    char path[FILE_PATH_BYTES], *vocab = NULL;
    TRY(file_join(path, folder, name));
    TRY(write_vocab(t, &vocab));
    status result = file_write(path, vocab, strlen(vocab));
    free(vocab);
    return result;
}

/* Writes the vocabulary of the targets, and the configuration that names it, if there is none. */
static status save_targets(const struct tokenizer *t, const char *folder)
{
    char path[FILE_PATH_BYTES], text[128];
    TRY(save_vocabulary(t->target, folder, TARGET_VOCAB_JSON));
    int bytes = snprintf(text, sizeof text,
                         "{\n  \"separate_vocabs\": true,\n"
                         "  \"tokenizer_class\": \"MarianTokenizer\"\n}\n");
    TRY(file_join(path, folder, TOKENIZER_CONFIG));
    return file_exists(path) ? STATUS_OK : file_write(path, text, (size_t)bytes);
}

status marian_save(const struct tokenizer *t, const char *folder)
{
    char path[FILE_PATH_BYTES];
    TRY(file_make_folders(folder));
    for (int i = 0; i < MODELS; i++) {
        size_t bytes;
        const char *data = sentencepiece_data(t->marian[i], &bytes);
        TRY(file_join(path, folder, model_files[i]));
        TRY(file_write(path, data, bytes));
    }
    TRY(save_vocabulary(t, folder, VOCAB_JSON));
    return t->target != NULL ? save_targets(t, folder) : STATUS_OK;
}

status marian_sha256(const struct tokenizer *t, char sha256[HASH_TEXT_BYTES])
{
    char *vocab = NULL, *all = NULL;
    size_t bytes[MODELS];
    const char *data[MODELS];
    for (int i = 0; i < MODELS; i++) {
        data[i] = sentencepiece_data(t->marian[i], &bytes[i]);
    }
    TRY(write_vocab(t, &vocab));
    size_t vocab_bytes = strlen(vocab);
    status result = ALLOCATE(all, bytes[0] + bytes[1] + vocab_bytes, "the files of a tokenizer");
    if (result == STATUS_OK) {
        memcpy(all, data[0], bytes[0]);
        memcpy(all + bytes[0], data[1], bytes[1]);
        memcpy(all + bytes[0] + bytes[1], vocab, vocab_bytes);
        result = hash_memory(all, bytes[0] + bytes[1] + vocab_bytes, sha256);
    }
    free(all);
    free(vocab);
    return result;
}

/* ---- texts to ids ---- */

/* Returns the id of a piece; if there is none, the id of the unknown token. */
static int32_t find_piece(const struct tokenizer *t, const char *piece, size_t bytes)
{
    const struct text_slot *slot = text_map_find(&t->by_bytes, piece, bytes);
    return slot != NULL ? (int32_t)slot->value : t->specials.unknown;
}

static status append_pieces(const struct tokenizer *t, const struct sentencepiece *model,
                            const char *text, size_t bytes, struct token_list *out)
{
    uint32_t *ends = NULL;
    int64_t count = 0;
    TRY(token_list_reserve(out, (int64_t)bytes));
    TRY(ALLOCATE(ends, bytes + 1, "the pieces of a text"));
    int32_t *ids = out->ids + out->count;
    status result = sentencepiece_split(model, text, bytes, ids, ends, &count);
    for (int64_t i = 0; result == STATUS_OK && i < count; i++) {
        size_t begin = i > 0 ? ends[i - 1] : 0;
        ids[i] = find_piece(t, text + begin, ends[i] - begin);
    }
    out->count += result == STATUS_OK ? count : 0;
    free(ends);
    return result;
}

/* Returns the bytes of a token such as >>es<< at the beginning of a text; 0: there is none. */
static size_t measure_language(const char *text, size_t bytes)
{
    if (bytes < 2 || memcmp(text, ">>", 2) != 0) {
        return 0;
    }
    for (size_t i = 0; i + 2 <= bytes; i++) {
        if (memcmp(text + i, "<<", 2) == 0) {
            return i + 2;
        }
    }
    return 0;
}

status marian_encode(const struct tokenizer *t, const char *text, size_t bytes, bool continued,
                     bool is_target, struct token_list *out)
{
    const struct sentencepiece *model = t->marian[is_target ? 1 : 0];
    int64_t before = out->count;
    char *normal = NULL;
    size_t normal_bytes = 0, language_bytes = continued ? 0 : measure_language(text, bytes);
    if (language_bytes > 0) {
        TRY(token_list_add(out, find_piece(t, text, language_bytes)));
    }
    status result = sentencepiece_normalize(model, text + language_bytes, bytes - language_bytes,
                                            continued, &normal, &normal_bytes);
    if (result == STATUS_OK) {
        result = append_pieces(t, model, normal, normal_bytes, out);
    }
    free(normal);
    out->count = result == STATUS_OK ? out->count : before;
    return result;
}

/* ---- ids to text ---- */

/* Appends a piece with U+2581 replaced by a space. At the start of the text this space
 * is omitted. */
static void append_piece(char *text, size_t *used, const struct token *piece, bool at_start)
{
    const size_t mark = strlen(SENTENCEPIECE_SPACE);
    for (size_t i = 0; i < piece->length;) {
        bool is_space =
            i + mark <= piece->length && memcmp(piece->bytes + i, SENTENCEPIECE_SPACE, mark) == 0;
        if (!is_space) {
            text[(*used)++] = piece->bytes[i++];
            continue;
        }
        if (!at_start || *used > 0) {
            text[(*used)++] = ' ';
        }
        i += mark;
    }
}

status marian_decode(const struct tokenizer *t, const int32_t *ids, int64_t count,
                     bool skip_special, bool continued, char **out, size_t *out_bytes)
{
    size_t bytes = 1, used = 0;
    char *text = NULL;
    for (int64_t i = 0; i < count; i++) {
        bytes += t->tokens[ids[i]].length + 1;
    }
    TRY(ALLOCATE(text, bytes, "a decoded text"));
    for (int64_t i = 0; i < count; i++) {
        const struct token *token = &t->tokens[ids[i]];
        if (!token->special) {
            append_piece(text, &used, token, !continued);
        } else if (!skip_special) {
            memcpy(text + used, token->bytes, token->length);
            used += token->length;
        }
    }
    while (!continued && used > 0 && text[used - 1] == ' ') {
        used--;
    }
    text[used] = '\0';
    *out = text;
    if (out_bytes != NULL) {
        *out_bytes = used;
    }
    return STATUS_OK;
}
