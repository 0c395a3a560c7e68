/* What transformers keeps beside tokenizer.json and Bireme goes by: which token ends a text, since a tokenizer may have
 * several that could, as Qwen's and Llama 3's. */
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
    json_error_t
        error; /* transformers writes 1000000000000000019884624838656 for a length without limit */
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &error);
    free(text);
    if (!json_is_object(*out)) {
        json_t *other = *out;
        *out = NULL;
        json_decref(other);
        RAISE(STATUS_DATA, "%s: line %d: %s", path, error.line,
              other == NULL ? error.text : "not an object");
    }
    return STATUS_OK;
}

status tokenizer_config_end(const char *folder, struct tokenizer *t)
{
    json_t *root = NULL;
    TRY(tokenizer_config_load(folder, &root));
    const json_t *end = json_object_get(root, "eos_token");
    if (json_is_object(end)) { /* an AddedToken */
        end = json_object_get(end, "content");
    }
    int32_t id = json_is_string(end) ? tokenizer_find(t, json_string_value(end)) : -1;
    if (id >= 0 && tokenizer_is_special(t, id)) {
        t->eos = id;
    }
    json_decref(root);
    return STATUS_OK;
}
