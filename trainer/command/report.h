/* A command's result as one line of JSON on standard output. */
#pragma once

#include <jansson.h>

#include "base/status.h"

/* report_print - print it and give it up; NULL (memory ran out while it was made) is told too.
 *
 * Errors    STATUS_INTERNAL; a lost standard output is main's to tell */
status report_print(json_t *report);
