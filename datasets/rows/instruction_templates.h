/* Instruction templates. Each makes a prompt and an answer from the fields of a row, as in FLAN.
 *
 *   input   "Translate to Spanish: {source}"
 *   target  "{target}"
 *
 * The syntax is as in Python's str.format, without format specifications. {field} is a field of the
 * row. {field[key]} is a field of the object, or an element of the list, in this field. Doubled
 * braces, {{ and }}, stand for braces. The values are texts or integers.
 *
 * `bireme prepare` selects one template for each row at random. Shards store tokens, so another
 * selection in each epoch would need the tokens of all templates. The selection is a pure function
 * of the seed, the number of the input file and the line. It depends neither on the number of
 * workers nor on invalid rows.
 *
 * Source    Wei et al. 2022, "Finetuned Language Models Are Zero-Shot Learners" (FLAN),
 *           arXiv:2109.01652 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "datasets/rows/jsonl.h"

enum { INSTRUCTION_TEMPLATES_MAX = 256 };

struct instruction_templates;

/* The texts of a template, and its location for messages: "FILE:LINE". The strings are copied. */
struct instruction_template_text {
    const char *name, *input, *target, *location;
};

/* instruction_templates_create - make an empty list.
 *
 * Units     as_messages: render lists of messages, to which a chat template is applied
 * Memory    release it with instruction_templates_destroy
 * Errors    STATUS_INTERNAL (out of memory) */
status instruction_templates_create(uint64_t seed, bool as_messages,
                                    struct instruction_templates **out);

/* instruction_templates_destroy - free a list and set *t to NULL; NULL is allowed. */
void instruction_templates_destroy(struct instruction_templates **t);

/* instruction_templates_add - parse a template and append it.
 *
 * Errors    STATUS_RECIPE: location and reason, such as a brace that is not closed, a text without
 *           a field, or a name that an earlier template has; STATUS_INTERNAL (out of memory) */
status instruction_templates_add(struct instruction_templates *t,
                                 const struct instruction_template_text *text);

/* instruction_templates_render - replace the row by {"prompt", "completion"} of one template.
 *
 * Order     counts the row of its template; one thread
 * Errors    STATUS_DATA: location of the template and reason, such as a missing or empty field */
status instruction_templates_render(struct instruction_templates *t, int64_t file,
                                    struct jsonl_row *row);

/* instruction_templates_count - return the number of templates. */
int instruction_templates_count(const struct instruction_templates *t);

/* instruction_templates_name - return the name of template i, and the rows that were rendered with
 * it. */
const char *instruction_templates_name(const struct instruction_templates *t, int i, int64_t *rows);
