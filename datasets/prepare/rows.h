/* Prepares rows of JSON Lines or CSV: input order, splits, bad rows and labels.
 *
 * A file named *.csv is CSV; every other file is JSON Lines. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "base/status.h"
#include "datasets/chat/chat.h"
#include "datasets/prepare/output.h"
#include "datasets/prepare/prepare.h"
#include "datasets/prepare/row_split.h"
#include "datasets/rows/jsonl.h"
#include "datasets/shard/example.h"
#include "datasets/shard/labels.h"

/* The example of one row. Its memory is reused for later rows. */
struct rows_example {
    struct chat_text text; /* tokens of the example, and values that refer to them */
    struct chat_text prompt, chosen, rejected;   /* preference pairs: scratch memory */
    uint32_t prompt_tokens, chosen_tokens;       /* preference pairs */
    uint32_t source_tokens;                      /* seq2seq */
    const uint32_t *values[EXAMPLE_COLUMNS_MAX]; /* for prepare_output_write_example */
    int64_t longest_tokens, learned_tokens;      /* for the report */
    bool overlong;                               /* more than sequence_tokens tokens */
    bool is_plain; /* the fields are texts, not messages, so no chat template was used */
};

/* How an objective prepares its rows. Exactly one of process_row and encode_row is set. */
struct rows_preparation {
    const struct prepare_options *options;
    struct prepare_report *report;
    enum example_kind kind;
    const char *unit_name;         /* "rows": for messages */
    struct prepare_output *output; /* set by rows_prepare before the first row */
    struct row_split split;        /* set by rows_prepare: selects the split of a row */
    bool chooses_split; /* process_row selects the validation rows; split.input is the input's */
    /* Writes the examples of a row; called in the calling thread. */
    status (*process_row)(void *user, struct jsonl_row *row);
    void *user; /* argument of process_row */
    /* Label names, filled by rows_prepare; NULL: the kind has none. */
    struct labels *labels;
    /* Adds the label names of a row; `user` is the struct labels. */
    status (*collect_labels)(void *user, struct jsonl_row *row);
    /* Checks a row and finds its stratum, the index of its label; `user` as for process_row. NULL:
     * all rows are one stratum. */
    status (*find_stratum)(void *user, const json_t *row, int *out);
    /* Makes one example of a row; called in worker threads. STATUS_DATA: the row is bad. */
    status (*encode_row)(const struct prepare_options *options, const json_t *row,
                         struct rows_example *out);
};

/* rows_prescan - call a function for every row of all inputs, validation inputs included, before
 * the preparation.
 *
 * Bad rows are skipped without a message; the second pass reports them.
 *
 * Errors    as jsonl_read and csv_read_open */
status rows_prescan(const struct prepare_options *options,
                    status (*use)(void *user, struct jsonl_row *row), void *user);

/* rows_prepare - read the inputs, then the validation inputs, and write the shards.
 *
 * Errors    as prepare_clm; STATUS_DATA for a bad row, or if no row can be used */
status rows_prepare(struct rows_preparation *p);

/* rows_count_example - add an example of `tokens` tokens to the report; `truncated` tokens were
 * removed from it. */
void rows_count_example(struct prepare_report *report, int64_t tokens, int64_t truncated);
