#include "trainer/formats/huggingface/pad_token.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "trainer/formats/huggingface/json_file.h"

/* Names of pad tokens. The first one that is free becomes the name of a new pad token. */
static const char *const names[] = {"<|pad|>", "<pad>", "[PAD]", "<|finetune_right_pad_id|>"};
enum { NAMES = COUNT(names) };

/* Takes the token as the pad token if it is a special token other than the end token. */
static bool take_token(const struct tokenizer *t, const char *text, struct pad_token *out)
{
    int32_t id = text != NULL && strlen(text) < sizeof out->text ? tokenizer_find(t, text) : -1;
    if (id < 0 || id == tokenizer_eos(t) || !tokenizer_is_special(t, id)) {
        return false;
    }
    *out = (struct pad_token){.id = id};
    snprintf(out->text, sizeof out->text, "%s", text);
    return true;
}

/* Takes pad_token of tokenizer_config.json. */
static status take_configured(const struct tokenizer *t, const char *tokenizer_folder,
                              struct pad_token *out, bool *found)
{
    json_t *config = NULL;
    TRY(json_file_read(tokenizer_folder, "tokenizer_config.json", &config));
    const json_t *value = json_object_get(config, "pad_token");
    value = json_is_object(value) ? json_object_get(value, "content") : value; /* an AddedToken */
    *found = take_token(t, json_string_value(value), out);
    json_decref(config);
    return STATUS_OK;
}

status pad_token_choose_or_end(const struct tokenizer *t, const char *tokenizer_folder,
                               struct pad_token *out)
{
    bool found = false;
    char *text = NULL;
    size_t bytes = 0;
    int32_t end = tokenizer_eos(t);
    TRY(take_configured(t, tokenizer_folder, out, &found));
    if (found || end < 0) {
        return STATUS_OK;
    }
    TRY(tokenizer_decode(t, &end, 1, false, &text, &bytes));
    if (bytes < sizeof out->text) {
        *out = (struct pad_token){.id = end};
        memcpy(out->text, text, bytes + 1);
    }
    free(text);
    return STATUS_OK;
}

status pad_token_choose(const struct tokenizer *t, const char *tokenizer_folder,
                        struct pad_token *out)
{
    bool found = false;
    TRY(take_configured(t, tokenizer_folder, out, &found));
    for (int i = 0; i < NAMES && !found; i++) {
        found = take_token(t, names[i], out);
    }
    if (!found && tokenizer_get_kind(t) == TOKENIZER_SENTENCEPIECE) {
        found = take_token(t, "<unk>", out); /* tokenizer.model gets no further token */
    }
    for (int i = 0; i < NAMES && !found; i++) {
        if (tokenizer_find(t, names[i]) < 0) {
            *out = (struct pad_token){.id = (int32_t)tokenizer_vocab_size(t), .is_new = true};
            snprintf(out->text, sizeof out->text, "%s", names[i]);
            found = true;
        }
    }
    REQUIRE(found, STATUS_DATA,
            "%s: no name is free for a pad token; set pad_token in its tokenizer_config.json to a "
            "special token other than the end token",
            tokenizer_folder);
    return STATUS_OK;
}

static status add_token(const struct pad_token *pad, const char *folder)
{
    json_t *root = NULL;
    TRY(json_file_read(folder, "tokenizer.json", &root));
    json_t *token =
        json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", pad->id, "content", pad->text,
                  "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1);
    bool added = json_array_append_new(json_object_get(root, "added_tokens"), token) == 0;
    if (!added) {
        json_decref(root);
        RAISE(STATUS_DATA, "%s: tokenizer.json has no added_tokens", folder);
    }
    return json_file_write(folder, "tokenizer.json", root);
}

static status name_token(const struct pad_token *pad, const char *folder, const char *name)
{
    json_t *root = NULL;
    TRY(json_file_read(folder, name, &root));
    if (root == NULL) {
        return STATUS_OK;
    }
    bool is_set = json_object_set_new(root, "pad_token", json_string(pad->text)) == 0;
    if (!is_set) {
        json_decref(root);
        RAISE(STATUS_DATA, "%s/%s: not a JSON object", folder, name);
    }
    return json_file_write(folder, name, root);
}

status pad_token_write(const struct pad_token *pad, const char *folder)
{
    TRY(pad->is_new ? add_token(pad, folder) : STATUS_OK);
    TRY(name_token(pad, folder, "tokenizer_config.json"));
    return name_token(pad, folder, "special_tokens_map.json");
}
