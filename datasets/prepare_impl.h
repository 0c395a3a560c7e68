/* The parts of prepare: inputs -> cutter -> encoder -> output. Only for the prepare files. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "datasets/prepare.h"

enum { PREPARE_PIECE_BYTES = 256 << 10 };

/* Output: documents of ids into shards of two sides, train and validation. */
struct output;

status output_open(const struct prepare_options *options, struct output **out);
/* output_tokens - more ids of the current document. */
status output_tokens(struct output *o, const int32_t *ids, int64_t count);
/* output_end_document - nothing happens if it holds no token. */
status output_end_document(struct output *o);
/* output_finish - hold out the validation part, name the shards, replace what was there. */
status output_finish(struct output *o, struct prepare_report *report);
/* output_close - remove what is unfinished. */
void output_close(struct output **o);

/* Encoder: pieces of text to ids by several threads, into the output in the order they came. */
struct encoder;

/* Where a piece came from, for messages. */
struct origin {
    const char *path; /* stays valid until encoder_drain */
    int64_t place;    /* a byte offset, or a line */
    bool is_line;
};

status encoder_open(const struct tokenizer *tokenizer, int workers, struct output *output,
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
