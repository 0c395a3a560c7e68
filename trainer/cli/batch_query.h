/* Texts that a model is asked about, in batches: what `fill-mask`, `embed` and the commands like them share.
 *
 *     struct asking a = {.command = "embed", .answer = answer, .user = &mine};
 *     TRY(asking_open(&a, q));
 *     TRY(asking_add(&a, text, NULL));      calls answer when a batch is full
 *     TRY(asking_finish(&a));               and for what is left
 *     TRY(asking_close(&a));                always
 *
 * A text, or a pair of them, becomes tokens as texts.h has it. Texts of a batch lie one after the other, without padding. */
#pragma once

#include "trainer/cli/line_reader.h"
#include "trainer/cli/options.h"
#include "trainer/setup/session.h"

enum { ASKING_TEXTS = 32 };

/* What every one of these commands is asked; its own request begins with this. */
struct asking_request {
    const char *checkpoint, *path; /* NULL: standard input */
    struct option_list overrides;
    bool json, truncate;
    char *const *operands;
    int operand_count;
};

/* asking_command - run(q) as argv asks. To the flags in options->table, which are the command's own, come --checkpoint in
 * front and --set and --json behind, with truncates also --truncate. The first operand is the path.
 *
 * Errors    STATUS_USAGE; those of run */
status asking_command(const struct options *options, bool truncates, int argc, char **argv,
                      struct asking_request *q, status (*run)(const struct asking_request *q));

struct asking {
    const char *command;
    status (*answer)(struct asking *a); /* about the `count` texts of the batch */
    void *user;
    bool special;  /* special tokens are recognised in the texts */
    bool truncate; /* a text that is too long is cut, and counted; else it is an error */

    struct comm *world;
    struct session session;
    int64_t cut; /* texts that were cut */

    /* the batch */
    int count;
    char *text[ASKING_TEXTS];          /* as it was given, without its pair */
    int32_t cu_rows[ASKING_TEXTS + 1]; /* first row of each text, and the end */
    int64_t rows;                      /* at most */
    int32_t *ids, *positions, *segments;
};

/* asking_open - the checkpoint's model and tokenizer, on the CPU.
 *
 * Errors    of session_open_checkpoint; STATUS_DATA where there is no tokenizer, or an encoder's has no [CLS]
 *           and [SEP] */
status asking_open(struct asking *a, const struct asking_request *q);

/* asking_check - whether a text can be asked about.  Errors: STATUS_DATA: it is no UTF-8, or ends early */
status asking_check(const char *text, size_t bytes);

/* asking_read - likewise lines_read, with each line checked, and without the end of a line that Windows puts there. take's
 * user is a. */
status asking_read(struct asking *a, const char *path, lines_visit take);

/* asking_is_encoder - attention to both sides: its texts stand between [CLS] and [SEP]. */
bool asking_is_encoder(const struct asking *a);

/* asking_add - one more text; pair: what it is paired with, or NULL.
 *
 * Errors    STATUS_DATA: too long (and not to be cut), or without a token; those of answer */
status asking_add(struct asking *a, const char *text, const char *pair);

/* asking_add_tokens - one more, of these ids, of which the first `first` are the first segment. Likewise. */
status asking_add_tokens(struct asking *a, const char *text, const struct token_list *ids,
                         int64_t first);

/* asking_labels - outputs of a fine-tuned task's head for a row. */
int64_t asking_labels(const struct asking *a);

/* asking_outputs - what the head of a fine-tuned task says of these rows of the batch (rising), in answer().
 *
 * Shapes    outputs [count, asking_labels] */
status asking_outputs(struct asking *a, const int32_t *rows, int64_t count, float *outputs);

/* asking_flush - answers what is left; asking_finish - likewise, at the end, and tells how many texts were cut. */
status asking_flush(struct asking *a);
status asking_finish(struct asking *a);

/* asking_input - the batch for model_forward: hidden states of all rows, no head. */
struct model_input asking_input(const struct asking *a);

status asking_close(struct asking *a);
