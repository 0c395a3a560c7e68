/* Functions to read and write the keys of config.json and adapter_config.json, for the files of
 * this folder. */
#pragma once

#include <jansson.h>

#include "base/file.h"
#include "trainer/formats/huggingface/architectures.h"
#include "trainer/recipe/recipe.h"

struct config_document {
    char path[FILE_PATH_BYTES]; /* for messages */
    json_t *document;
};

/* config_document_read - read the JSON object in folder/name.
 *
 * Memory    the caller releases out->document with json_decref, after an error too
 * Errors    STATUS_NO_INPUT; STATUS_DATA naming file, line and reason */
status config_document_read(const char *folder, const char *name, struct config_document *out);

/* config_get_field - return the value of a key; NULL if it is missing or null. */
const json_t *config_get_field(const struct config_document *c, const char *key);

/* config_read_integer - read an integer, or set *out to default_value if there is none.
 *
 * Errors    STATUS_DATA if the value has another type */
status config_read_integer(const struct config_document *c, const char *key, int64_t default_value,
                           int64_t *out);

/* config_read_number - read a number; default and errors are as in config_read_integer. */
status config_read_number(const struct config_document *c, const char *key, double default_value,
                          double *out);

/* config_read_boolean - read true or false; default and errors are as in config_read_integer. */
status config_read_boolean(const struct config_document *c, const char *key, bool default_value,
                           bool *out);

/* config_read_string - read a string; default and errors are as in config_read_integer.
 *
 * Memory    *out belongs to the document */
status config_read_string(const struct config_document *c, const char *key,
                          const char *default_value, const char **out);

/* config_write_number - write a line with a key and a number. */
void config_write_number(FILE *file, const char *key, double value);

/* config_write_integer - write a line with a key and an integer. */
void config_write_integer(FILE *file, const char *key, int64_t value);

/* A number of config.json and its setting. */
struct config_number {
    const char *key;
    size_t recipe_offset;
    bool is_integer;
};

/* The soft-caps of attention scores and logits, in the order of the architecture's defaults. */
enum { CONFIG_SOFTCAPS = 2 };
extern const struct config_number config_softcaps[CONFIG_SOFTCAPS];

/* config_read_rotary - read the attention of an architecture with rotary positions into r->model.
 *
 * Reads rope_parameters of transformers 5, or rope_theta and rope_scaling of earlier versions, and
 * the lists of layers of the architecture: layer_types or no_rope_layers.
 *
 * Errors    STATUS_UNAVAILABLE for a rope_type, soft-caps or lists that are not supported;
 *           STATUS_DATA for a wrong value */
status config_read_rotary(const struct config_document *c,
                          const struct huggingface_architecture *architecture, struct recipe *r);

/* config_write_rotary - write rope_theta and rope_scaling, which all versions of transformers
 * read, and the lists of layers. */
void config_write_rotary(FILE *file, const struct huggingface_architecture *architecture,
                         const struct recipe *r);

/* config_read_layer_types - read the list layer_types into r->model.
 *
 * Errors    STATUS_UNAVAILABLE for another kind of attention; STATUS_DATA for a wrong list */
status config_read_layer_types(const struct config_document *c, struct recipe *r);

/* config_write_layer_types - write the list layer_types. */
void config_write_layer_types(FILE *file, const struct recipe *r);

/* config_read_seq2seq - read the keys of an encoder-decoder model into r->model.
 *
 * Errors    STATUS_UNAVAILABLE for a decoder with other sizes than the encoder; STATUS_DATA for a
 *           wrong value */
status config_read_seq2seq(const struct config_document *c,
                           const struct huggingface_architecture *architecture, struct recipe *r);

/* config_write_seq2seq - write the keys of an encoder-decoder model. */
void config_write_seq2seq(FILE *file, const struct huggingface_architecture *architecture,
                          const struct recipe *r);

/* config_read_parts - read the keys of the parts of a model with has_free_parts into r->model.
 *
 * Errors    STATUS_DATA for a missing key; STATUS_UNAVAILABLE for another value */
status config_read_parts(const struct config_document *c, struct recipe *r);

/* config_write_parts - write the keys of the parts. */
void config_write_parts(FILE *file, const struct recipe *r);
