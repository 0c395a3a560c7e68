/* The report of bireme prepare: numbers in the units of the objective, and warnings. */
#pragma once

#include <stdbool.h>

#include "base/status.h"
#include "datasets/prepare/prepare.h"

/* prepare_report_print - print what was written. The sets go to standard output, everything else to
 * the log. With json, standard output gets one JSON document with exact numbers.
 *
 * has_rows: the objective reads rows; the report counts examples instead of documents.
 *
 * Errors    STATUS_WRITE; STATUS_INTERNAL (out of memory) */
status prepare_report_print(const struct prepare_options *options, const struct prepare_report *r,
                            bool has_rows, bool json);
