/* JSON files of a model folder. */
#pragma once

#include <jansson.h>
#include <stddef.h>

#include "base/status.h"

/* json_file_read - read folder/name. *out is NULL if the file does not exist.
 *
 * Some files contain an integer that exceeds 64 bits (model_max_length). Only then integers are
 * read as reals.
 *
 * Memory    the caller releases *out with json_decref
 * Errors    STATUS_DATA naming file, line and reason */
status json_file_read(const char *folder, const char *name, json_t **out);

/* json_file_load - read a JSON file of at most limit_bytes. Keys that occur twice are refused.
 *
 * Memory    the caller releases *out with json_decref
 * Errors    as file_read; STATUS_DATA naming file, line and reason */
status json_file_load(const char *path, size_t limit_bytes, json_t **out);

/* json_file_write - write folder/name and release the document. A document that is NULL means that
 * no memory was left to build it.
 *
 * Errors    STATUS_WRITE; STATUS_INTERNAL (memory, or a text is not UTF-8) */
status json_file_write(const char *folder, const char *name, json_t *document);
