/* Shared by the files of this folder. */
#pragma once

#include "trainer/logging/report/chart.h"
#include "trainer/logging/report/history.h"

/* Names of curves, which a chart borrows. */
struct report_names {
    char train[CHART_CURVES_MAX][256], evaluate[CHART_CURVES_MAX][256];
};

/* report_add_curves - add the training and validation curves of a field in each run to a chart. */
void report_add_curves(struct chart *chart, const struct history *runs, int count,
                       const char *field, struct report_names *names);

/* report_field_unit - return how to print the values of a field. */
enum chart_unit report_field_unit(const char *field);

/* report_get_number - return a number of a line of metrics.jsonl; NaN if the line lacks it. */
double report_get_number(const json_t *line, const char *key);

/* report_write_count - write an integer with thousands separators. */
void report_write_count(double value, FILE *file);

/* report_begin_page - write the head of a page with the common style, up to the tag <h1>.
 *
 * title_end follows the title. more_style is "" or a <style> element. Neither is escaped. */
void report_begin_page(const char *title, const char *title_end, const char *more_style,
                       FILE *file);

/* report_begin_table - write the head of a table: the name of the first column, then the runs.
 *
 * Shapes    runs [count] */
void report_begin_table(const struct history *runs, int count, const char *first, FILE *file);

/* report_end_table - write the end of a table. */
void report_end_table(FILE *file);

/* report_write_peak_memory - write the measured peak memory of a run; returns whether it exists. */
bool report_write_peak_memory(const struct history *h, FILE *file);

/* report_write_figures - write the table of key figures.
 *
 * Shapes    runs [count] */
void report_write_figures(const struct history *runs, int count, FILE *file);
