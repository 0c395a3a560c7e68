/* Output of a command: one line of JSON on standard output, or numbers formatted for people. */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "base/status.h"

/* json_output_print - print a JSON value as one line on standard output.
 *
 * Memory    takes ownership of report
 * Errors    STATUS_INTERNAL if report is NULL or memory runs out. main.c detects a failed write. */
status json_output_print(json_t *report);

/* json_output_format_count - write a number with thousands separators: "124,439,808".
 *
 * Returns   out */
const char *json_output_format_count(int64_t value, char out[32]);

/* json_output_scale_count - write a number exactly below a million, "786,432", and with three
 * digits and a unit from there on: "38.6 M".
 *
 * Returns   out */
const char *json_output_scale_count(int64_t value, char out[32]);
