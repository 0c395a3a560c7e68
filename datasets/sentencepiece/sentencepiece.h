/* SentencePiece models: the file tokenizer.model of Llama 2, Mistral, T5, Gemma and others.
 *
 * A model converts a text to ids in two steps. sentencepiece_normalize replaces characters and
 * writes spaces as U+2581. sentencepiece_encode divides the result into pieces, by Unigram (the
 * most probable segmentation) or BPE (the pair with the highest score is merged first). The Python
 * package sentencepiece gives the same ids and texts. A model is immutable, so threads may
 * share it.
 *
 * Source    Kudo, Richardson 2018, arXiv:1808.06226 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "datasets/sentencepiece/charsmap.h"

struct sentencepiece;

#define SENTENCEPIECE_FILE_BYTES_MAX ((size_t)32 << 20)
#define SENTENCEPIECE_SPACE "\xe2\x96\x81" /* U+2581 */

/* The type of a piece, with the numbers of the file. */
enum sentencepiece_type {
    SENTENCEPIECE_NORMAL = 1,
    SENTENCEPIECE_UNKNOWN,      /* stands for unknown characters; exactly one */
    SENTENCEPIECE_CONTROL,      /* never found in a text, such as </s> */
    SENTENCEPIECE_USER_DEFINED, /* always found in a text */
    SENTENCEPIECE_UNUSED,
    SENTENCEPIECE_BYTE /* a byte of an unknown character, <0x00> to <0xFF> */
};

struct sentencepiece_piece {
    const char *text; /* ends with a NUL */
    size_t bytes;
    float score;
    enum sentencepiece_type type;
};

/* sentencepiece_open - read a model from the content of a file. path is used in messages.
 *
 * Memory    the data is copied
 * Errors    STATUS_DATA: the data is not a valid model, or uses an unsupported feature;
 *           STATUS_INTERNAL (out of memory) */
status sentencepiece_open(const char *data, size_t bytes, const char *path,
                          struct sentencepiece **out);

/* The parts of a new model. */
struct sentencepiece_design {
    const struct sentencepiece_piece *pieces; /* [count]; `bytes` is not used */
    int64_t count;
    bool is_bpe;             /* false: Unigram */
    const char *bos, *eos;   /* control pieces around a text; NULL: the defaults <s> and </s> */
    bool adds_space;         /* adds a space before a text */
    bool merges_spaces;      /* removes spaces at both ends, and after another space */
    const uint8_t *charsmap; /* data of the character map */
    size_t charsmap_bytes;   /* 0: characters are not replaced */
};

/* sentencepiece_create - create a model from its parts.
 *
 * Memory    all parts are copied
 * Errors    STATUS_DATA: the model is not valid, with path; STATUS_INTERNAL (out of memory) */
status sentencepiece_create(const struct sentencepiece_design *design, const char *path,
                            struct sentencepiece **out);

/* sentencepiece_add_control - create a model with further control pieces after the last id. A piece
 * that exists becomes a control piece and keeps its id.
 *
 * Errors    STATUS_DATA: the new model is not valid; STATUS_INTERNAL (out of memory) */
status sentencepiece_add_control(const struct sentencepiece *s, char *const *texts, int count,
                                 struct sentencepiece **out);

/* sentencepiece_close - free a model and set *s to NULL; does nothing if *s is NULL. */
void sentencepiece_close(struct sentencepiece **s);

/* sentencepiece_data - return the content of the file of this model. */
const char *sentencepiece_data(const struct sentencepiece *s, size_t *bytes);

/* sentencepiece_count - return the number of pieces; the ids are 0 to this number - 1. */
int64_t sentencepiece_count(const struct sentencepiece *s);

/* sentencepiece_get_piece - return the piece of an id. */
struct sentencepiece_piece sentencepiece_get_piece(const struct sentencepiece *s, int32_t id);

/* sentencepiece_is_bpe - return whether the model merges pairs; false: Unigram. */
bool sentencepiece_is_bpe(const struct sentencepiece *s);

/* sentencepiece_adds_space - return whether a space is added before a text. */
bool sentencepiece_adds_space(const struct sentencepiece *s);

/* sentencepiece_merges_spaces - return whether spaces at both ends of a text, and spaces after a
 * space, are removed. */
bool sentencepiece_merges_spaces(const struct sentencepiece *s);

/* sentencepiece_has_usual_spaces - return whether spaces become U+2581, and the added space comes
 * before a text, not after it. */
bool sentencepiece_has_usual_spaces(const struct sentencepiece *s);

/* sentencepiece_charsmap - return the character map. */
const struct charsmap *sentencepiece_charsmap(const struct sentencepiece *s);

/* sentencepiece_has_bytes - return whether unknown characters become bytes. */
bool sentencepiece_has_bytes(const struct sentencepiece *s);

/* sentencepiece_bos - return the control piece at the beginning of a text, such as <s>; -1: none.
 * sentencepiece_encode does not add it. */
int32_t sentencepiece_bos(const struct sentencepiece *s);

/* sentencepiece_eos - return the control piece at the end of a text, such as </s>; -1: none. */
int32_t sentencepiece_eos(const struct sentencepiece *s);

/* sentencepiece_normalize - normalize text[0, bytes). Invalid UTF-8 becomes U+FFFD.
 *
 * continued: the text follows another part of the same text. Its leading spaces remain, and no
 * space is added before it. A model with spaces after words has already added one space to the
 * previous part, so the first space of this part is removed.
 *
 * Memory    the caller frees *out with free(); *out_bytes <= INT32_MAX
 * Errors    STATUS_DATA: the normalized text is too long; STATUS_INTERNAL (out of memory) */
status sentencepiece_normalize(const struct sentencepiece *s, const char *text, size_t bytes,
                               bool continued, char **out, size_t *out_bytes);

/* sentencepiece_encode - write the ids of a normalized text.
 *
 * Shapes    ids [bytes]; *count receives the number of ids
 * Errors    STATUS_INTERNAL (out of memory) */
status sentencepiece_encode(const struct sentencepiece *s, const char *text, size_t bytes,
                            int32_t *ids, int64_t *count);

/* sentencepiece_split - split a text as above, and also return the end of each piece in the text.
 * An unknown piece contains all consecutive unknown characters. Not for models with byte fallback.
 *
 * Shapes    ids, ends [bytes]; *count receives the number of pieces
 * Errors    STATUS_INTERNAL (out of memory) */
status sentencepiece_split(const struct sentencepiece *s, const char *text, size_t bytes,
                           int32_t *ids, uint32_t *ends, int64_t *count);

/* sentencepiece_decode - convert ids to text. Control pieces are omitted if skip_control is true;
 * otherwise their text is written. continued: the ids continue a text, so the space at their
 * beginning remains.
 *
 * Memory    ids are valid; the caller frees *out, which ends with a NUL, with free()
 * Errors    STATUS_INTERNAL (out of memory) */
status sentencepiece_decode(const struct sentencepiece *s, const int32_t *ids, int64_t count,
                            bool skip_control, bool continued, char **out, size_t *out_bytes);
