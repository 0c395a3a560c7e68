/* Tokenizers of the file tokenizer.model, a SentencePiece model (datasets/sentencepiece/).
 *
 * Without special tokens the package sentencepiece gives the same ids. Control pieces and the
 * unknown piece are special tokens. They are found in a text only if an option of the call enables
 * this. The text before and after a special token is then encoded separately, and each part gets
 * the leading space of the model, as in transformers. */
#include "datasets/tokenizer/sentencepiece_model.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "datasets/sentencepiece/sentencepiece.h"
#include "datasets/tokenizer/json_reader_impl.h"

#define MODEL_FILE "tokenizer.model"

/* Names of the file, the usual one first; T5 and ALBERT have the second one. */
static const char *const model_names[] = {MODEL_FILE, "spiece.model"};

/* Writes the path of the file to path; returns whether it exists. */
static bool find_file(const char *folder, char path[FILE_PATH_BYTES])
{
    for (int i = 0; i < COUNT(model_names); i++) {
        if (file_join(path, folder, model_names[i]) == STATUS_OK && file_exists(path)) {
            return true;
        }
    }
    return false;
}

bool sentencepiece_model_exists(const char *folder)
{
    char path[FILE_PATH_BYTES];
    bool exists = find_file(folder, path);
    status_clear();
    return exists;
}

static status add_token(struct tokenizer *t, int32_t id)
{
    struct sentencepiece_piece piece = sentencepiece_get_piece(t->sentencepiece, id);
    TRY(tokenizer_set_token(t, id, piece.text, piece.bytes));
    t->tokens[id].in_model = true;
    t->tokens[id].literal = true;
    bool is_special = piece.type == SENTENCEPIECE_CONTROL || piece.type == SENTENCEPIECE_UNKNOWN;
    return is_special ? tokenizer_register_added(t, (struct added_token){.id = id, .special = true})
                      : STATUS_OK;
}

/* Creates a tokenizer that owns the model. */
static status create_tokenizer(struct sentencepiece *model, const char *path,
                               struct tokenizer **out)
{
    status result = tokenizer_allocate(TOKENIZER_SENTENCEPIECE, sentencepiece_count(model), out);
    if (result != STATUS_OK) {
        sentencepiece_close(&model);
        return result;
    }
    struct tokenizer *t = *out;
    t->sentencepiece = model;
    t->source_path = path;
    for (int32_t id = 0; id < t->vocab_size; id++) {
        TRY(add_token(t, id));
    }
    t->eos = sentencepiece_eos(model);
    TRY(tokenizer_finish(t));
    t->source_path = NULL;
    return STATUS_OK;
}

/* Rejects tokens that transformers adds to the tokens of the model: they are missing in
 * the file. */
static status check_added_tokens(const char *folder, const struct tokenizer *t, json_t *root)
{
    const char *id;
    json_t *token;
    json_object_foreach(json_object_get(root, "added_tokens_decoder"), id, token)
    {
        const char *text = json_string_value(json_object_get(token, "content"));
        REQUIRE(strtoll(id, NULL, 10) < t->vocab_size, STATUS_DATA,
                "%s/" TOKENIZER_CONFIG ": the token '" EXCERPT "' with the id " EXCERPT
                " is not in " MODEL_FILE "; save the tokenizer as tokenizer.json with transformers",
                folder, text != NULL ? text : "(no content)", id);
    }
    return STATUS_OK;
}

/* Sets the token before each text. Llama and Gemma have one unless add_bos_token is false. */
static void read_bos(struct tokenizer *t, const json_t *root)
{
    const char *class = json_string_value(json_object_get(root, "tokenizer_class"));
    const json_t *add = json_object_get(root, "add_bos_token");
    bool usual =
        class != NULL && (strncmp(class, "Llama", 5) == 0 || strncmp(class, "CodeLlama", 9) == 0 ||
                          strncmp(class, "Gemma", 5) == 0);
    if (json_is_boolean(add) ? json_is_true(add) : usual) {
        t->bos = sentencepiece_bos(t->sentencepiece);
    }
}

static status read_config(const char *folder, struct tokenizer *t)
{
    json_t *root = NULL;
    TRY(tokenizer_config_load(folder, &root));
    read_bos(t, root);
    status result = check_added_tokens(folder, t, root);
    json_decref(root);
    return result == STATUS_OK ? tokenizer_config_read_eos(folder, t) : result;
}

status sentencepiece_model_open(const char *folder, struct tokenizer **out)
{
    char path[FILE_PATH_BYTES], *data = NULL;
    size_t bytes = 0;
    struct sentencepiece *model = NULL;
    *out = NULL;
    REQUIRE(find_file(folder, path), STATUS_NO_INPUT,
            "%s has neither " MODEL_FILE
            " nor spiece.model, the files of a SentencePiece tokenizer",
            folder);
    TRY(file_read(path, SENTENCEPIECE_FILE_BYTES_MAX, &data, &bytes));
    status result = sentencepiece_open(data, bytes, path, &model);
    free(data);
    TRY(result);
    result = create_tokenizer(model, path, out);
    KEEP_FIRST(result, result == STATUS_OK ? read_config(folder, *out) : result);
    if (result != STATUS_OK) {
        tokenizer_destroy(out);
    }
    return result;
}

status sentencepiece_model_save(const struct tokenizer *t, const char *folder)
{
    char path[FILE_PATH_BYTES];
    size_t bytes;
    const char *data = sentencepiece_data(t->sentencepiece, &bytes);
    TRY(file_join(path, folder, MODEL_FILE));
    TRY(file_make_folders(folder));
    return file_write(path, data, bytes);
}

status sentencepiece_model_sha256(const struct tokenizer *t, char sha256[HASH_TEXT_BYTES])
{
    size_t bytes;
    const char *data = sentencepiece_data(t->sentencepiece, &bytes);
    return hash_memory(data, bytes, sha256);
}

status sentencepiece_model_add_special(const struct tokenizer *t, char *const *tokens, int count,
                                       struct tokenizer **out)
{
    struct sentencepiece *model = NULL;
    *out = NULL;
    for (int i = 0; i < count; i++) {
        REQUIRE(tokens[i][0] != '\0', STATUS_USAGE, "an added token is empty");
    }
    TRY(sentencepiece_add_control(t->sentencepiece, tokens, count, &model));
    status result = create_tokenizer(model, "the tokenizer with added tokens", out);
    if (result != STATUS_OK) {
        tokenizer_destroy(out);
        return result;
    }
    (*out)->eos = t->eos;
    (*out)->bos = t->bos;
    return STATUS_OK;
}

status sentencepiece_model_encode(const struct tokenizer *t, const char *text, size_t bytes,
                                  bool continued, struct token_list *out)
{
    char *normal = NULL;
    size_t normal_bytes = 0;
    int64_t count = 0;
    TRY(sentencepiece_normalize(t->sentencepiece, text, bytes, continued, &normal, &normal_bytes));
    status result = token_list_reserve(out, (int64_t)normal_bytes);
    if (result == STATUS_OK) {
        result = sentencepiece_encode(t->sentencepiece, normal, normal_bytes, out->ids + out->count,
                                      &count);
    }
    out->count += count;
    free(normal);
    return result;
}
