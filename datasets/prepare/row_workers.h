/* Encodes rows in worker threads and writes the examples in the order of the rows. An error of a
 * row is also reported in this order, so that the result does not depend on the threads.
 *
 * Calls     row_workers_open, row_workers_add or row_workers_defer for each row, row_workers_drain,
 *           row_workers_close */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "datasets/prepare/rows.h"
#include "datasets/rows/jsonl.h"

struct row_workers;

/* row_workers_open - start the worker threads.
 *
 * Memory    p and bad_rows are borrowed until row_workers_close
 * Errors    STATUS_INTERNAL (out of memory, threads) */
status row_workers_open(struct rows_preparation *p, struct jsonl_bad_rows *bad_rows,
                        struct row_workers **out);

/* row_workers_add - queue a row. It is a callback of jsonl_read and csv_read_open; `workers` is a
 * struct row_workers.
 *
 * Memory    takes row->value
 * Errors    errors of earlier rows, in order: as jsonl_report_bad_row and
 *           prepare_output_write_example */
status row_workers_add(void *workers, struct jsonl_row *row);

/* row_workers_defer - queue the pending error of a row that the reader rejected, so that it is
 * reported in the order of the rows. It is a callback of struct jsonl_bad_rows.
 *
 * Errors    errors of earlier rows, as row_workers_add */
status row_workers_defer(void *workers, const char *path, int64_t line);

/* row_workers_drain - wait until all queued rows are written or reported.
 *
 * Errors    as row_workers_add */
status row_workers_drain(struct row_workers *w);

/* row_workers_close - stop the threads and set *workers to NULL; NULL is allowed. */
void row_workers_close(struct row_workers **workers);
