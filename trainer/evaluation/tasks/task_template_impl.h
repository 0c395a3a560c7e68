/* Templates of task files: the part of Jinja that tasks of lm-evaluation-harness use.
 *
 *   {{ expression }}, {# comment #}, {% if e %} {% elif e %} {% else %} {% endif %}; a dash inside
 *   a tag removes the white space next to it
 *   expressions   fields (a.b, a['b'], a[0], a[1:], a[:-1]), strings, numbers, true, false, none,
 *                 lists; or, and, not, == != < <= > >=, in, not in, +, -, ~, a if b else c,
 *                 is defined, is none
 *   methods       strip, lstrip, rstrip, lower, upper, capitalize, split, replace, index,
 *                 startswith, endswith, join
 *   filters       trim, lower, upper, capitalize, replace, join, length, count, first, last, string
 *
 * Anything else is an error. The values equal the values of Jinja with StrictUndefined. */
#pragma once

#include <jansson.h>

#include "base/status.h"

struct task_template;

/* task_template_parse - parse a template.
 *
 * Memory    the caller calls task_template_free
 * Errors    STATUS_RECIPE with the character and the reason */
status task_template_parse(const char *text, struct task_template **out);

/* task_template_render - compute a template for a document.
 *
 * *out is a string. If the template is one expression and nothing else, *out is the value of the
 * expression, such as a list.
 *
 * Memory    *out is a new reference
 * Errors    STATUS_DATA with the reason, such as a field that the document does not have */
status task_template_render(const struct task_template *t, const json_t *document, json_t **out);

/* task_template_free - free a template and set *t to NULL; NULL is allowed. */
void task_template_free(struct task_template **t);
