/* Tokenizers of Marian: source.spm and target.spm are the SentencePiece models of the two
 * languages, and vocab.json contains the ids of the pieces of both.
 *
 * A piece that vocab.json does not contain is unknown. A text can begin with a language token of
 * the target, such as >>es<<. The ids of sources and targets are those of MarianTokenizer in
 * transformers. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "datasets/sentencepiece/sentencepiece.h"
#include "datasets/tokenizer/json_reader_impl.h"

#define UNKNOWN "<unk>"

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
    TRY(file_read(path, SENTENCEPIECE_FILE_LIMIT_BYTES, &data, &bytes));
    status result = sentencepiece_open(data, bytes, path, &t->marian[i]);
    free(data);
    TRY(result);
    REQUIRE(!sentencepiece_has_bytes(t->marian[i]), STATUS_DATA,
            "%s: a model of Marian with byte fallback is not supported", path);
    return STATUS_OK;
}

/* Finds the largest id of the vocabulary. */
static status find_vocab_size(const char *folder, const json_t *vocab, int64_t *out)
{
    const char *text;
    const json_t *value;
    *out = 0;
    json_object_foreach((json_t *)(uintptr_t)vocab, text, value)
    {
        int64_t id = json_integer_value(value);
        REQUIRE(json_is_integer(value) && id >= 0 && id < TOKENIZER_VOCAB_LIMIT, STATUS_DATA,
                "%s/" VOCAB_JSON ": the id of the token '" EXCERPT "' is not an integer from 0 to "
                "%" PRId64,
                folder, text, TOKENIZER_VOCAB_LIMIT - 1);
        *out = id >= *out ? id + 1 : *out;
    }
    REQUIRE(*out > 0, STATUS_DATA, "%s/" VOCAB_JSON " has no tokens", folder);
    return STATUS_OK;
}

static status set_tokens(const char *folder, const json_t *vocab, struct tokenizer *t)
{
    const char *text;
    const json_t *value;
    json_object_foreach((json_t *)(uintptr_t)vocab, text, value)
    {
        int64_t id = json_integer_value(value);
        REQUIRE(!t->tokens[id].in_model, STATUS_DATA,
                "%s/" VOCAB_JSON ": the tokens '" EXCERPT "' and '" EXCERPT
                "' have the id %" PRId64,
                folder, t->tokens[id].bytes, text, id);
        TRY(tokenizer_set_token(t, id, text, strlen(text)));
        t->tokens[id].in_model = t->tokens[id].literal = true;
    }
    static const char *const specials[] = {"</s>", UNKNOWN, "<pad>"};
    for (int i = 0; i < COUNT(specials); i++) {
        const json_t *id = json_object_get(vocab, specials[i]);
        REQUIRE(id != NULL || i == 2, STATUS_DATA, "%s/" VOCAB_JSON ": there is no token %s",
                folder, specials[i]);
        TRY(id == NULL ? STATUS_OK
                       : tokenizer_register_added(
                             t, (struct added_token){.id = (int32_t)json_integer_value(id),
                                                     .special = true}));
    }
    return STATUS_OK;
}

/* Refuses a vocabulary of targets that differs from that of sources. */
static status check_config(const char *folder)
{
    json_t *root = NULL;
    TRY(tokenizer_config_load(folder, &root));
    bool separate = json_is_true(json_object_get(root, "separate_vocabs"));
    json_decref(root);
    REQUIRE(!separate, STATUS_UNAVAILABLE,
            "%s/" TOKENIZER_CONFIG ": separate_vocabs: true is not supported", folder);
    return STATUS_OK;
}

static status read_tokenizer(const char *folder, const json_t *vocab, struct tokenizer **out)
{
    int64_t vocab_size;
    TRY(find_vocab_size(folder, vocab, &vocab_size));
    TRY(tokenizer_allocate(TOKENIZER_MARIAN, vocab_size, out));
    TRY(set_tokens(folder, vocab, *out));
    for (int i = 0; i < MODELS; i++) {
        TRY(read_model(folder, i, *out));
    }
    TRY(tokenizer_finish(*out));
    return tokenizer_config_read_eos(folder, *out);
}

status marian_open(const char *folder, struct tokenizer **out)
{
    json_t *vocab = NULL;
    *out = NULL;
    TRY(check_config(folder));
    TRY(vocab_merges_read_vocab(folder, &vocab));
    status result = read_tokenizer(folder, vocab, out);
    json_decref(vocab);
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

status marian_save(const struct tokenizer *t, const char *folder)
{
    char path[FILE_PATH_BYTES], *vocab = NULL;
    TRY(file_make_folders(folder));
    for (int i = 0; i < MODELS; i++) {
        size_t bytes;
        const char *data = sentencepiece_data(t->marian[i], &bytes);
        TRY(file_join(path, folder, model_files[i]));
        TRY(file_write(path, data, bytes));
    }
    TRY(file_join(path, folder, VOCAB_JSON));
    TRY(write_vocab(t, &vocab));
    status result = file_write(path, vocab, strlen(vocab));
    free(vocab);
    return result;
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

/* Returns the id of a piece, or that of the unknown token. */
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

/* Appends a piece with U+2581 replaced by a space. At the start of the text this space is
 * omitted. */
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
