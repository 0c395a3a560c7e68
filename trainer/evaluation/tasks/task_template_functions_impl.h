/* Methods and filters of templates. Private to trainer/evaluation/tasks. */
#pragma once

#include <jansson.h>

#include "base/status.h"
#include "base/text_buffer.h"

/* task_template_call - apply a method or a filter to operands[0]; the other operands are its
 * arguments.
 *
 * Memory    *out is a new reference; NULL: the result is undefined
 * Errors    STATUS_DATA: an operand has the wrong type */
status task_template_call(const char *name, json_t *const *operands, int count, json_t **out);

/* task_template_make_text - return the text of a value, as Python's str().
 *
 * Memory    *out is a new reference; NULL after an error */
status task_template_make_text(const json_t *value, json_t **out);

/* task_template_make_string - create a string from UTF-8.
 *
 * Memory    *out is a new reference; NULL after an error
 * Errors    STATUS_INTERNAL: out of memory, or the text is not UTF-8 */
status task_template_make_string(const char *text, size_t bytes, json_t **out);

/* task_template_take_buffer - create a string from a buffer if `result` is STATUS_OK, and free the
 * buffer. Returns `result`, or the errors of task_template_make_string. */
status task_template_take_buffer(struct text_buffer *b, status result, json_t **out);

/* task_template_require_memory - return STATUS_INTERNAL, out of memory, if the value is NULL. */
status task_template_require_memory(const json_t *value);

/* task_template_append - append a value to an array and release the value.
 *
 * Errors    STATUS_INTERNAL: out of memory, also if the value is NULL */
status task_template_append(json_t *array, json_t *value);

/* task_template_length - return the number of characters of a text, or of elements. */
int64_t task_template_length(const json_t *value);

/* task_template_index - return a new reference to an element; NULL: there is none. */
json_t *task_template_index(const json_t *value, const json_t *key);

/* task_template_equals - compare as Jinja's == does. */
bool task_template_equals(const json_t *a, const json_t *b);
