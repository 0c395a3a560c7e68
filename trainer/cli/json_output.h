/* A command's result: one line of JSON on standard output, or numbers for people. */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "base/status.h"

/* report_print - print it and give it up; NULL (memory ran out while it was made) is told too.
 *
 * Errors    STATUS_INTERNAL; a lost standard output is main's to tell */
status report_print(json_t *report);

/* report_count - 124439808 as "124,439,808", for people; returns out. */
const char *report_count(int64_t value, char out[32]);
