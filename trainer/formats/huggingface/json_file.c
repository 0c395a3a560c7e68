#include "trainer/formats/huggingface/json_file.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"

static const size_t file_limit_bytes = (size_t)256 << 20;

status json_file_read(const char *folder, const char *name, json_t **out)
{
    char path[FILE_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    json_error_t error;
    *out = NULL;
    TRY(file_join(path, folder, name));
    if (!file_exists(path)) {
        return STATUS_OK;
    }
    TRY(file_read(path, file_limit_bytes, &text, &bytes));
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (*out == NULL && json_error_code(&error) == json_error_numeric_overflow) {
        *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &error);
    }
    free(text);
    REQUIRE(*out != NULL, STATUS_DATA, "%s:%d:%d: %s", path, error.line, error.column, error.text);
    return STATUS_OK;
}

status json_file_load(const char *path, size_t limit_bytes, json_t **out)
{
    char *text = NULL;
    size_t bytes = 0;
    json_error_t error;
    *out = NULL;
    TRY(file_read(path, limit_bytes, &text, &bytes));
    *out = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    free(text);
    REQUIRE(*out != NULL, STATUS_DATA, "%s:%d:%d: %s", path, error.line, error.column, error.text);
    return STATUS_OK;
}

status json_file_write(const char *folder, const char *name, json_t *document)
{
    char path[FILE_PATH_BYTES];
    char *text = document != NULL ? json_dumps(document, JSON_INDENT(2)) : NULL;
    json_decref(document);
    REQUIRE(text != NULL, STATUS_INTERNAL, "out of memory for %s, or a text is not UTF-8", name);
    status result = file_join(path, folder, name);
    if (result == STATUS_OK) {
        result = file_write(path, text, strlen(text));
    }
    free(text);
    return result;
}
