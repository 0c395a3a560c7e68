/* Reads and checks the fields of a row. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "base/status.h"
#include "datasets/shard/labels.h"
#include "datasets/tokenizer/text_pair.h"

struct chat_template;

enum { ROW_FIELD_LABEL_BYTES = 512 }; /* size of a label name, NUL included */

/* row_field_is_blank - return whether a text contains only white space. */
bool row_field_is_blank(const char *text, size_t bytes);

/* row_field_text - get a text field that is not blank.
 *
 * Memory    *out refers to the row
 * Errors    STATUS_DATA */
status row_field_text(const json_t *row, const char *field, struct text *out);

/* row_field_require - get a required field of any type.
 *
 * Errors    STATUS_DATA: the field is missing, with the fields of the row */
status row_field_require(const json_t *row, const char *field, const json_t **out);

/* row_field_require_template - check that there is a template for a field of messages.
 *
 * Errors    STATUS_DATA if the template is NULL */
status row_field_require_template(const struct chat_template *template);

/* row_field_label_name - convert a label, which is a string or an integer, to its name.
 *
 * Errors    STATUS_DATA */
status row_field_label_name(const json_t *value, char out[ROW_FIELD_LABEL_BYTES]);

/* row_field_label_index - find the index of a label among the label names.
 *
 * Errors    STATUS_DATA if the list does not contain the name */
status row_field_label_index(const struct labels *labels, const json_t *value, uint32_t *out);
