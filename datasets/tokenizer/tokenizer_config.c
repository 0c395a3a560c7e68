/* Reads tokenizer_config.json, which transformers writes next to tokenizer.json. Bireme uses it
 * to find the end-of-text token: a tokenizer may have several candidates, as those of Qwen and
 * Llama 3. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "datasets/tokenizer/json_reader.h"

status tokenizer_config_load(const char *folder, json_t **out)
{
    *out = NULL;
    char path[FILE_PATH_BYTES];
    TRY(file_join(path, folder, TOKENIZER_CONFIG));
    if (!file_exists(path)) {
        return STATUS_OK;
    }
    char *text = NULL;
    size_t bytes = 0;
    TRY(file_read(path, TOKENIZER_FILE_LIMIT_BYTES, &text, &bytes));
    json_error_t error;
    /* transformers writes 1000000000000000019884624838656 for an unlimited length */
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &error);
    free(text);
    if (!json_is_object(*out)) {
        json_t *value = *out;
        *out = NULL;
        json_decref(value);
        RAISE(STATUS_DATA, "%s:%d: %s", path, error.line,
              value == NULL ? error.text : "not an object");
    }
    return STATUS_OK;
}

status tokenizer_config_read_eos(const char *folder, struct tokenizer *t)
{
    json_t *root = NULL;
    TRY(tokenizer_config_load(folder, &root));
    const json_t *eos = json_object_get(root, "eos_token");
    if (json_is_object(eos)) { /* an AddedToken */
        eos = json_object_get(eos, "content");
    }
    int32_t id = json_is_string(eos) ? tokenizer_find(t, json_string_value(eos)) : -1;
    if (id >= 0 && tokenizer_is_special(t, id)) {
        t->eos = id;
    }
    json_decref(root);
    return STATUS_OK;
}
