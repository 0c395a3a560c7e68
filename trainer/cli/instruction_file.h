/* Reads the file of `bireme prepare --templates`: the instruction templates of a task. */
#pragma once

#include "datasets/rows/instruction_templates.h"

/* instruction_file_read - read a YAML or JSON file with the key `templates` and add its templates.
 *
 * Errors    as file_read; STATUS_RECIPE naming file, line and reason */
status instruction_file_read(const char *path, struct instruction_templates *out);
