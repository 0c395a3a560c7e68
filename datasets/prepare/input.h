/* The parts of prepare: inputs -> cutter -> encoder -> output. Only for the prepare files. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "datasets/shard/example.h"
#include "datasets/rows/jsonl.h"
#include "datasets/shard/labels.h"
#include "datasets/prepare/prepare.h"
#include "datasets/tokenizer/text_pair.h"

enum { PREPARE_PIECE_BYTES = 256 << 10 };

/* Output: documents of ids into shards of two sides, train and validation. */
struct output;

status output_open(const struct prepare_options *options, enum example_kind kind,
                   struct output **out);
/* output_labels - names for every shard; before the first example. */
status output_labels(struct output *o, const struct labels *labels);
/* output_folder - of what is unfinished: it is removed in the end. */
const char *output_folder(const struct output *o);
/* output_example - a whole one; values: of each column of the kind, one value or `count` of them. */
enum output_side { OUTPUT_AS_SPLIT, OUTPUT_TRAIN, OUTPUT_VALIDATION };
status output_example(struct output *o, enum output_side side, const int32_t *ids, int64_t count,
                      const uint32_t *const *values);
/* output_stratum - of a split by chance: the document that is drawn from this stratum, which ends at *end. */
int64_t output_stratum(const struct prepare_options *options, int64_t stratum, int64_t *end);
/* output_tokens - more ids of the current document. */
status output_tokens(void *output, const int32_t *ids, int64_t count);
/* output_end_document - nothing happens if it holds no token. */
status output_end_document(void *output);
/* output_finish - hold out the validation part, name the shards, replace what was there. */
status output_finish(struct output *o, struct prepare_report *report);
/* output_close - remove what is unfinished. */
void output_close(struct output **o);

/* What a row gives, and its memory, which is used again. */
struct row_example {
    struct chat_text text; /* the tokens, and what `values` needs of them */
    struct chat_text prompt, chosen, rejected;
    uint32_t prompt_tokens, chosen_tokens;
    const uint32_t *values[EXAMPLE_COLUMNS_MAX]; /* of output_example */
    int64_t longest, learned_tokens;
    bool over_long;
};

/* Rows of JSON Lines to examples (prepare_rows.c): `use` writes them itself, in the calling thread, or `encode` makes one
 * of each row, in several threads (prepare_parallel.c). */
struct row_preparation {
    const struct prepare_options *options;
    struct prepare_report *report;
    enum example_kind kind;
    const char *what;       /* "rows": for messages */
    struct output **output; /* the user's, and its side: where `use` writes its examples */
    enum output_side *side;
    status (*use)(void *user, struct jsonl_row *row);
    void *user;
    struct labels *
        labels; /* the kind's names, found beforehand with `collect`, whose user is the list; NULL: none */
    status (*collect)(void *user, struct jsonl_row *row);
    status (*encode)(const struct prepare_options *options, const json_t *row,
                     struct row_example *out); /* STATUS_DATA: the row is a bad one */
};

/* Rows through `encode` into the output, in order (prepare_parallel.c).
 *
 * crew_row - for jsonl_read and csv_read, whose user is the crew.  crew_keep - likewise, of struct jsonl_bad.
 * crew_drain - all rows so far are in the output, or refused with `bad`.
 * Errors    of jsonl_refuse, output_example; those of all rows come in order */
struct crew;

status crew_open(const struct row_preparation *p, struct jsonl_bad *bad, struct crew **out);
status crew_row(void *crew, struct jsonl_row *row);
status crew_keep(void *crew, const char *path, int64_t line);
status crew_drain(struct crew *c);
void crew_close(struct crew **crew);

/* rows_survey - all inputs, those held out too, to a function beforehand. Rows that cannot be used are left out; the
 * second reading tells of them. */
status rows_survey(const struct prepare_options *options,
                   status (*use)(void *user, struct jsonl_row *row), void *user);

/* rows_prepare - the inputs in order, then those held out where they are given; *.csv is CSV, all else JSON Lines.
 *
 * Errors    of prepare_clm; STATUS_DATA: a bad row, or none that can be used */
status rows_prepare(const struct row_preparation *p);

/* What rows of texts have in common (prepare_texts.c). */
enum { PREPARE_LABEL_BYTES = 512 };

/* prepare_is_blank - nothing but white space. */
bool prepare_is_blank(const char *text, size_t bytes);

/* prepare_text_field - a text that is not blank.  Errors: STATUS_DATA */
status prepare_text_field(const json_t *row, const char *field, struct text *out);

/* prepare_label - a text or an integer as a label's name.
 * prepare_label_number - the number of that name. */
status prepare_label(const json_t *value, char out[PREPARE_LABEL_BYTES]);
status prepare_label_number(const struct labels *labels, const json_t *value, uint32_t *out);

/* prepare_count - an example of so many tokens, of which others were cut off. */
void prepare_count(struct prepare_report *report, int64_t tokens, int64_t cut);

/* Spool: encoded documents as sentences, first written, then read (prepare_spool.c). */
struct spool;

#define PREPARE_SENTENCE_END (-1) /* among ids: a sentence ends */

status spool_open(const char *folder, struct spool **out);
void spool_close(struct spool **spool);
status spool_tokens(void *spool, const int32_t *ids, int64_t count);
status spool_end_document(void *spool);
status spool_finish(struct spool *s); /* from here on it is read */
int64_t spool_documents(const struct spool *s);
int64_t spool_sentences(const struct spool *s);
/* spool_document - its sentences.  spool_starts - first tokens of sentences (there is one more than sentences).
 * spool_read - tokens.  spool_divide - the only document in two, the second with this fraction of the tokens. */
status spool_document(const struct spool *s, int64_t document, int64_t *first, int64_t *end);
status spool_starts(const struct spool *s, int64_t first, int64_t count, int64_t *starts);
status spool_read(const struct spool *s, int64_t first, int64_t count, int32_t *ids);
status spool_divide(struct spool *s, double fraction);

/* pairs_make - all sentence pairs of a spool into the output. */
status pairs_make(const struct prepare_options *options, struct spool *spool,
                  struct output *output);

/* Ring: work by several threads whose results are taken in order (prepare_ring.c). */
struct ring;

/* open: a slot, zeroed; NULL: nothing to do. run: in a worker, on what the caller filled in; keeps its error in the slot.
 * empty: in the caller's thread, in order; then the slot can be filled again. close: of those that were opened. */
struct ring_work {
    size_t slot_bytes;
    status (*open)(void *slot);
    void (*run)(void *user, void *slot);
    status (*empty)(void *user, void *slot);
    void (*close)(void *slot);
};

/* ring_open - workers: 0: one for each core.
 * ring_slot - the one to be filled next, empty.
 * ring_submit - it is full; others may be emptied.  ring_drain - all are emptied.
 * Errors    of `empty`; those of all slots come in order */
status ring_open(const struct ring_work *work, void *user, int workers, struct ring **out);
void *ring_slot(const struct ring *r);
status ring_submit(struct ring *r);
status ring_drain(struct ring *r);
void ring_close(struct ring **ring);

/* Where encoded documents go: the output, or a spool. */
struct sink {
    void *to;
    status (*tokens)(void *to, const int32_t *ids, int64_t count);
    status (*end_document)(void *to);
    bool sentences; /* ids are cut by PREPARE_SENTENCE_END, and no end token is appended */
};

/* Encoder: pieces of text to ids by several threads, into the output in the order they came. */
struct encoder;

/* Where a piece came from, for messages. */
struct origin {
    const char *path; /* stays valid until encoder_drain */
    int64_t place;    /* a byte offset, or a line */
    bool is_line;
    bool stops; /* sentences end at full stops too, not at lines' ends alone */
};

/* sentence_end - where the sentence that begins at text[from] ends: at a line's end, with `stops` also after
 * . ? ! (and what closes a quotation) before white space, and after their Chinese forms. `bytes`: not in here. */
size_t sentence_end(const char *text, size_t bytes, size_t from, bool stops);

status encoder_open(const struct tokenizer *tokenizer, int workers, struct sink sink,
                    struct encoder **out);
/* encoder_piece - bytes <= PREPARE_PIECE_BYTES; copied.
 *
 * Errors    also those of earlier pieces */
status encoder_piece(struct encoder *e, const char *text, size_t bytes, bool ends_document,
                     struct origin origin);
/* encoder_drain - wait until all is in the output. */
status encoder_drain(struct encoder *e);
void encoder_close(struct encoder **e);

/* Cutter: a document that arrives in any portions, into pieces whose places do not depend on those. */
struct cutter {
    struct encoder *encoder;
    struct prepare_report *report;
    enum prepare_sentences sentences; /* where pieces are cut, for sentence pairs */
    bool pairs;
    bool begun;           /* of this document it is known how its sentences end */
    bool blanks_only;     /* the tokenizer puts a blank before a text: pieces must begin with one */
    bool open;            /* a document has begun and holds something */
    struct origin origin; /* of the first byte held */
    size_t held;
    char *text; /* [PREPARE_PIECE_BYTES] */
};

/* cutter_begin - a document from this place on. */
void cutter_begin(struct cutter *c, struct origin origin);
status cutter_write(struct cutter *c, const char *text, size_t bytes);
/* cutter_end - the document is complete; an empty one is counted and left out. */
status cutter_end(struct cutter *c);
/* cutter_boundary - whether words end at text[at] for every byte-level pattern; 0 < at < bytes. */
bool cutter_boundary(const char *text, size_t bytes, size_t at, bool blanks_only);

/* An input, opened: reads in portions and counts bytes. */
struct reader {
    int file;
    const char *path;
    int64_t bytes; /* read so far */
};
status reader_open(const char *path, struct reader *out);
/* reader_read - up to `most` bytes; *got = 0 at the end. */
status reader_read(struct reader *r, char *out, size_t most, size_t *got);
void reader_close(struct reader *r);

/* prepare_check - the options that all objectives have, and that every input can be read. */
status prepare_check(const struct prepare_options *options);

/* What each kind of input does with itself. */
struct input {
    const struct prepare_options *options;
    struct cutter *cutter;
    struct encoder *encoder;
    struct output *output;
    struct prepare_report *report;
};

status prepare_text(struct input *in, const char *path);
status prepare_jsonl(struct input *in, const char *path);
status prepare_megatron(struct input *in, const char *bin_path, const char *idx_path);
status prepare_llmc(struct input *in, const char *path);
