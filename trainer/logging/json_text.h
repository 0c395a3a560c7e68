/* JSON strings from text that may not be UTF-8, such as paths and the output of a model. */
#pragma once

#include <jansson.h>
#include <stddef.h>

/* json_text_create - create a JSON string. Each byte that is not part of a valid UTF-8 character
 * becomes '?'.
 *
 * Returns   NULL if memory runs out */
json_t *json_text_create(const char *text, size_t bytes);
