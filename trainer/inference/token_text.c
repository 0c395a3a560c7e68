#include "trainer/inference/token_text.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"

status token_text_describe(const struct tokenizer *t, int32_t id, char **out)
{
    char *text = NULL;
    size_t bytes = 0;
    TRY(tokenizer_decode_continued(t, &id, 1, false, &text, &bytes));
    json_t *valid = json_stringn(text, bytes);
    *out = text;
    status result = STATUS_OK;
    if (valid == NULL || strlen(text) != bytes) {
        result = ALLOCATE(*out, 6 * (bytes + 1), "a token");
        for (size_t i = 0; *out != NULL && i < bytes; i++) {
            snprintf(*out + 6 * i, 7, "<0x%02X>", (unsigned char)text[i]);
        }
        free(text);
    }
    json_decref(valid);
    return result;
}

status token_text_quote(const struct tokenizer *t, int32_t id, char **out)
{
    char *text = NULL;
    TRY(token_text_describe(t, id, &text));
    json_t *string = json_string(text);
    *out = string != NULL ? json_dumps(string, JSON_ENCODE_ANY) : NULL;
    json_decref(string);
    free(text);
    REQUIRE(*out != NULL, STATUS_INTERNAL, "out of memory for the text of a token");
    return STATUS_OK;
}
