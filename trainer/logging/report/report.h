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

/* One attention of a model, for example the cross-attention of an encoder-decoder. */
struct report_attention_part {
    const char *name;           /* shown to select the part; not used if there is only one */
    const char *const *queries; /* [query_count] UTF-8 */
    const char *const *keys;    /* [key_count]; equal to queries for self-attention */
    int64_t query_count, key_count, layers;
    const float *weights; /* [layers, heads, query_count, key_count] */
};

/* The attention weights of a text, or of a source and its target. */
struct report_attention {
    const char *title; /* name of the model */
    int64_t heads;
    const struct report_attention_part *parts; /* [part_count] */
    int part_count;
};

/* report_attention_bytes - return the approximate size of one attention in the page of
 * report_write_attention. */
int64_t report_attention_bytes(int64_t layers, int64_t heads, int64_t queries, int64_t keys);

/* report_write_attention - write a self-contained HTML page with a picture of each head.
 *
 * The weights are rounded to 1/65535. The caller checks the file for errors. */
void report_write_attention(const struct report_attention *a, FILE *file);

/* report_check_output - check that a file may be written at this path: it does not exist, is empty,
 * or is a page or a picture of this module.
 *
 * Errors    STATUS_CREATE */
status report_check_output(const char *path);

enum { REPORT_PAGE_SUFFIXES = 3 };
extern const char *const report_page_suffixes[REPORT_PAGE_SUFFIXES]; /* .html and others */

/* report_check_suffix - refuse a file name such as page.png: a reader would expect another format.
 * A name without a suffix is accepted.
 *
 * Units     what: the content of the file, as a sentence for the error
 * Errors    STATUS_USAGE: the suffix is none of suffixes[count] */
status report_check_suffix(const char *path, const char *const *suffixes, int count,
                           const char *what);

/* report_write_run - write report.html into a run folder.
 *
 * Errors    as history_read and file_write; STATUS_INTERNAL out of memory */
status report_write_run(const char *folder);
