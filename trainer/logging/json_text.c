#include "trainer/logging/json_text.h"

#include <stdlib.h>
#include <string.h>

json_t *json_text_create(const char *text, size_t bytes)
{
    char *copy = malloc(bytes + 1);
    json_t *value = NULL;
    if (copy != NULL) {
        memcpy(copy, text, bytes);
        for (size_t offset = 0; offset < bytes;) {
            size_t length = 1;
            json_t *character = json_stringn(copy + offset, length);
            while (character == NULL && length < 4 && offset + length < bytes) {
                character = json_stringn(copy + offset, ++length);
            }
            copy[offset] = character != NULL ? copy[offset] : '?';
            offset += character != NULL ? length : 1;
            json_decref(character);
        }
        value = json_stringn(copy, bytes);
    }
    free(copy);
    return value;
}
