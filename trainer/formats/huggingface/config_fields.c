/* Reads and writes the values of config.json (config_impl.h). */
#include <inttypes.h>

#include "base/text.h"
#include "trainer/formats/huggingface/config_impl.h"
#include "trainer/formats/huggingface/json_file.h"

enum { DOCUMENT_BYTES_MAX = 1 << 20 };

status config_document_read(const char *folder, const char *name, struct config_document *out)
{
    out->document = NULL;
    TRY(file_join(out->path, folder, name));
    TRY(json_file_load(out->path, DOCUMENT_BYTES_MAX, &out->document));
    REQUIRE(json_is_object(out->document), STATUS_DATA, "%s: not a JSON object", out->path);
    return STATUS_OK;
}

const json_t *config_get_field(const struct config_document *c, const char *key)
{
    const json_t *value = json_object_get(c->document, key);
    return json_is_null(value) ? NULL : value;
}

status config_read_integer(const struct config_document *c, const char *key, int64_t default_value,
                           int64_t *out)
{
    const json_t *value = config_get_field(c, key);
    REQUIRE(value == NULL || json_is_integer(value), STATUS_DATA, "%s: %s is not an integer",
            c->path, key);
    *out = value != NULL ? (int64_t)json_integer_value(value) : default_value;
    return STATUS_OK;
}

status config_read_number(const struct config_document *c, const char *key, double default_value,
                          double *out)
{
    const json_t *value = config_get_field(c, key);
    REQUIRE(value == NULL || json_is_number(value), STATUS_DATA, "%s: %s is not a number", c->path,
            key);
    *out = value != NULL ? json_number_value(value) : default_value;
    return STATUS_OK;
}

status config_read_boolean(const struct config_document *c, const char *key, bool default_value,
                           bool *out)
{
    const json_t *value = config_get_field(c, key);
    REQUIRE(value == NULL || json_is_boolean(value), STATUS_DATA,
            "%s: %s is neither true nor false", c->path, key);
    *out = value != NULL ? json_is_true(value) : default_value;
    return STATUS_OK;
}

status config_read_string(const struct config_document *c, const char *key,
                          const char *default_value, const char **out)
{
    const json_t *value = config_get_field(c, key);
    REQUIRE(value == NULL || json_is_string(value), STATUS_DATA, "%s: %s is not a string", c->path,
            key);
    *out = value != NULL ? json_string_value(value) : default_value;
    return STATUS_OK;
}

void config_write_number(FILE *file, const char *key, double value)
{
    char text[TEXT_NUMBER_BYTES];
    fprintf(file, "  \"%s\": %s,\n", key, text_from_number(value, text));
}

void config_write_integer(FILE *file, const char *key, int64_t value)
{
    fprintf(file, "  \"%s\": %" PRId64 ",\n", key, value);
}
