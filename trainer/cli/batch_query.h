/* Runs a model on texts in batches. The commands fill-mask, embed, attention, classify and answer
 * use it.
 *
 *     struct batch_query b = {.command = "embed", .process_batch = process, .user = &state};
 *     TRY(batch_query_open(&b, request));
 *     TRY(batch_query_add(&b, text, NULL));   calls process_batch when a batch is full
 *     TRY(batch_query_finish(&b));            calls process_batch for the last batch
 *     TRY(batch_query_close(&b));             must be called even after an error
 *
 * A text or a pair of texts is encoded as in text_pair.h. The texts of a batch are concatenated
 * without padding. */
#pragma once

#include "datasets/rows/text_lines.h"
#include "trainer/cli/options.h"
#include "trainer/inference/prediction/text_batch.h"

/* Arguments that these commands share. The request struct of each command begins with it. */
struct batch_query_request {
    const char *checkpoint, *path; /* path NULL: standard input */
    const char *columns;           /* set by BATCH_QUERY_COLUMNS; NULL: each line is a text */
    struct option_list overrides;
    bool json, truncate;
    char *const *operands;
    int operand_count;
};

/* The option --columns, for the table of a command. `fields` names the fields that it reads. */
#define BATCH_QUERY_COLUMNS(request, fields)                                                       \
    {                                                                                              \
        "columns", OPTION_TEXT, &(request)->columns, "FIELD=COLUMN,...", NULL,                     \
            "read columns of *.csv, *.tsv or JSON Lines instead of lines; fields: " fields         \
    }

/* batch_query_run_command - parse argv, then call run(q).
 *
 * Adds shared options to the options of the command in options->table: --checkpoint before them,
 * --set and --json after them, and --truncate if has_truncate is true. The first operand is the
 * path.
 *
 * Errors    STATUS_USAGE; errors of run */
status batch_query_run_command(const struct options *options, bool has_truncate, int argc,
                               char **argv, struct batch_query_request *q,
                               status (*run)(const struct batch_query_request *q));

struct batch_query {
    const char *command;                            /* name for messages */
    status (*process_batch)(struct batch_query *b); /* called with `count` texts */
    void *user;                                     /* for process_batch */
    bool parse_special_tokens;                      /* recognize special tokens in the texts */
    bool accepts_seq2seq;                           /* the model may be an encoder-decoder */
    bool truncate; /* truncate and count a text that is too long; false: it is an error */

    struct comm *world;
    struct session session;
    int64_t truncated_count; /* number of truncated texts */

    struct text_batch batch;
    char *texts[TEXT_BATCH_TEXTS]; /* the input texts of the batch, without their pairs */
};

/* batch_query_open - load the model and the tokenizer of the checkpoint on the CPU.
 *
 * Errors    as weights_open_checkpoint; STATUS_DATA if there is no tokenizer, or if the
 *           tokenizer of an encoder has no [CLS] or [SEP]; STATUS_UNAVAILABLE on another device */
status batch_query_open(struct batch_query *b, const struct batch_query_request *q);

/* batch_query_read_texts - call `visit` with b as user for each line or row of the source.
 *
 * Like text_lines_read, but checks each text (text_input_check) and removes a carriage return
 * at the end of a line. */
status batch_query_read_texts(struct batch_query *b, const struct text_lines *source,
                              text_lines_visit visit);

/* batch_query_is_encoder - return whether the model attends to both sides. Its texts are enclosed
 * in [CLS] and [SEP]. */
bool batch_query_is_encoder(const struct batch_query *b);

/* batch_query_add - encode a text and add it to the batch. If pair is not NULL, it is the second
 * text of the pair.
 *
 * Errors    STATUS_DATA if the text has no tokens, or is too long and truncate is false; errors of
 *           process_batch */
status batch_query_add(struct batch_query *b, const char *text, const char *pair);

/* batch_query_add_tokens - add a text that is already encoded. The first `first` ids form segment
 * 0, the others form segment 1.
 *
 * Errors    STATUS_DATA if there are no ids or too many; errors of process_batch */
status batch_query_add_tokens(struct batch_query *b, const char *text, const struct token_list *ids,
                              int64_t first);

/* batch_query_flush - process the texts of an incomplete batch. */
status batch_query_flush(struct batch_query *b);

/* batch_query_log_truncated - log the number of truncated texts, unless it is 0. */
void batch_query_log_truncated(int64_t count, const struct model *model);

/* batch_query_finish - process the last batch and log the number of truncated texts. */
status batch_query_finish(struct batch_query *b);

/* batch_query_close - release everything. May be called after a failed batch_query_open. */
status batch_query_close(struct batch_query *b);
