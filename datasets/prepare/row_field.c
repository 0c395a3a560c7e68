#include "datasets/prepare/row_field_impl.h"

#include <stdio.h>
#include <string.h>

#include "datasets/chat/chat.h"
#include "datasets/rows/columns.h"
#include "datasets/rows/jsonl.h"

bool row_field_is_blank(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (strchr(" \t\r\n\v\f", text[i]) == NULL || text[i] == '\0') {
            return false;
        }
    }
    return true;
}

status row_field_text(const json_t *row, const char *field, struct text *out)
{
    TRY(jsonl_get_string(row, field, &out->bytes, &out->count));
    REQUIRE(!row_field_is_blank(out->bytes, out->count), STATUS_DATA, "the field '%s' is empty",
            field);
    return STATUS_OK;
}

status row_field_require(const json_t *row, const char *field, const json_t **out)
{
    *out = json_object_get(row, field);
    return *out != NULL ? STATUS_OK : columns_raise_missing(row, field);
}

status row_field_require_template(const struct chat_template *template)
{
    REQUIRE(template != NULL, STATUS_DATA,
            "messages need a chat template; give --chat-template, one of " CHAT_NAMES " or a file");
    return STATUS_OK;
}

status row_field_label_name(const json_t *value, char out[ROW_FIELD_LABEL_BYTES])
{
    REQUIRE(json_is_string(value) || json_is_integer(value), STATUS_DATA,
            "a label is neither a string nor an integer; check the column of the labels "
            "(--columns)");
    if (json_is_integer(value)) {
        snprintf(out, ROW_FIELD_LABEL_BYTES, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        return STATUS_OK;
    }
    size_t bytes = json_string_length(value);
    REQUIRE(bytes > 0 && bytes < ROW_FIELD_LABEL_BYTES && strlen(json_string_value(value)) == bytes,
            STATUS_DATA, "a label has %zu bytes; it must have 1 to %d bytes and no NUL", bytes,
            ROW_FIELD_LABEL_BYTES - 1);
    memcpy(out, json_string_value(value), bytes + 1);
    return STATUS_OK;
}

status row_field_label_index(const struct labels *labels, const json_t *value, uint32_t *out)
{
    char name[ROW_FIELD_LABEL_BYTES];
    TRY(row_field_label_name(value, name));
    int index = labels_find(labels, name);
    REQUIRE(index >= 0, STATUS_DATA, "the label '%s' is not one of --labels", name);
    *out = (uint32_t)index;
    return STATUS_OK;
}
