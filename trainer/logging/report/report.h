/* A page about one run or several runs: curves, key figures, settings, warnings. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "base/status.h"
#include "trainer/logging/report/history.h"

/* report_write_page - write a self-contained HTML page. It loads nothing from the network.
 *
 * Figures and charts without data are left out. The caller checks the file for errors.
 *
 * Shapes    runs [count]; count >= 1 */
void report_write_page(const struct history *runs, int count, FILE *file);

/* report_write_plot - write one field of the runs as a standalone SVG picture.
 *
 * The picture contains the training and the validation curve of the field in each run.
 *
 * Shapes    runs [count]
 * Errors    STATUS_USAGE if no run has two values of the field; lists the fields of the runs */
status report_write_plot(const struct history *runs, int count, const char *field, FILE *file);

/* report_write_text - write a field as a chart of block characters for a terminal.
 *
 * Units     columns: width of the chart in characters, at least 20
 * Errors    as for report_write_plot */
status report_write_text(const struct history *run, const char *field, int columns, FILE *file);

/* The attention weights of a text. */
struct report_attention {
    const char *title;         /* name of the model */
    const char *const *tokens; /* [count] UTF-8 */
    int64_t count, layers, heads;
    const float *weights; /* [layers, heads, count, count]: query, then key */
};

/* report_attention_bytes - return the approximate size of the page of report_write_attention. */
int64_t report_attention_bytes(int64_t layers, int64_t heads, int64_t tokens);

/* report_write_attention - write a self-contained HTML page with a picture of each head.
 *
 * The weights are rounded to 1/65535. The caller checks the file for errors. */
void report_write_attention(const struct report_attention *a, FILE *file);

/* report_check_output - check that a file may be written at this path: it does not exist, is empty,
 * or is a page or a picture of this module.
 *
 * Errors    STATUS_CREATE */
status report_check_output(const char *path);

/* report_write_run - write report.html into a run folder.
 *
 * Errors    those of history_read and file_write; STATUS_INTERNAL out of memory */
status report_write_run(const char *folder);
