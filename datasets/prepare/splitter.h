/* Splits documents into chunks for the encoder. The chunks depend only on the text of a document,
 * not on the sizes of the writes.
 *
 * Calls     for each document: splitter_begin_document, splitter_write for each piece of text,
 *           splitter_end_document */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"
#include "datasets/prepare/encoder.h"
#include "datasets/prepare/prepare.h"

struct splitter {
    const struct tokenizer *tokenizer;
    struct encoder *encoder;
    struct prepare_report *report;
    enum prepare_sentence_rule sentence_rule;
    bool keep_sentences;       /* split at the end of a sentence if possible */
    bool sentence_rule_chosen; /* origin.split_at_punctuation is set for this document */
    /* Split only before a space: the tokenizer puts one before a text without a leading space, or
     * does not separate a newline from the word before it. */
    bool spaces_only;
    bool has_text;                /* the current document is not empty */
    struct encoder_origin origin; /* of the first byte in the buffer */
    size_t buffered_bytes;
    char *buffer; /* [ENCODER_CHUNK_BYTES] */
};

/* splitter_begin_document - begin a document at this location. */
void splitter_begin_document(struct splitter *s, struct encoder_origin origin);

/* splitter_write - append text to the current document.
 *
 * Errors    as encoder_add_chunk */
status splitter_write(struct splitter *s, const char *text, size_t bytes);

/* splitter_end_document - end the current document. An empty document is counted and not written.
 *
 * Errors    as encoder_add_chunk */
status splitter_end_document(struct splitter *s);

/* splitter_is_boundary - return whether every byte-level pattern has a word boundary before
 * text[position]; for tests.
 *
 * Units     0 < position < bytes; with spaces_only, only boundaries before a space count */
bool splitter_is_boundary(const char *text, size_t bytes, size_t position, bool spaces_only);

/* splitter_find_sentence_end - find the end of the sentence that begins at text[from].
 *
 * A sentence ends at a newline. With at_punctuation it also ends after . ? ! (and closing quotes or
 * brackets) before white space, and after the Chinese forms of this punctuation. Returns `bytes` if
 * the text has no sentence end. */
size_t splitter_find_sentence_end(const char *text, size_t bytes, size_t from, bool at_punctuation);
