/* What shards hold for each kind of example, and an example once it is read. All kinds are described here.
 *
 * Example i of a shard is its document i: tokens[documents[i] : documents[i + 1]]. Beside /tokens and /documents
 * there is a dataset for each further column of the kind, a value for each example (d,) or for each token (n,),
 * in chunks with Fletcher32, and its SHA-256 in the attribute NAME_sha256. The attributes `examples` and
 * `examples_version` on / name the kind, `longest` has the tokens of the longest example; shards of plain text (kind
 * "text") have none of them.
 *
 *   kind            version  column         type    one per  what
 *   sentence_pairs  1        first_segment  uint32  example  tokens of segment 0: [CLS] A [SEP]; all of them where
 *                                                            there is one segment; the rest, B [SEP], is segment 1
 *                            next_sentence  uint8   example  0: B follows A in its document; 1: B is random
 *   preference_pairs 1       prompt         uint32  example  tokens of the prompt; behind it lie the chosen and the
 *                                                            rejected answer, each to be read behind the prompt
 *                            chosen         uint32  example  tokens of the chosen answer; the rest is the rejected one
 *
 *   sft             1        loss_mask      uint8   token    bits: what may be learned of it, and of what row it is (below)
 *
 *   classify        1        first_segment  uint32  example  as of sentence pairs; of decoders: tokens of the first text
 *                                                            and the delimiter (texts.h)
 *                            label          uint32  example  its number in the attribute `labels` of /, a JSON array of
 *                                                            names
 *   regress         1        first_segment  uint32  example  likewise
 *                            label          float32 example  the number to be learned
 *   classify_tokens 1        label          uint32  token    its number in the attribute `labels`; 4294967295: none
 *   answer          2        first_segment  uint32  example  as of classify
 *                            begin, end     uint32  example  first and last token of the answer; 0, 0: it is not here
 *                            row            uint32  example  which of the rows it is a window of, from 0
 *                            from, to       uint32  token    code points of the context that the token stands for; 0, 0:
 *                                                            it is none of the context's
 *                            right          uint32  token    bit k: a part of right answer k of the row, which may be
 *                                                            in other windows too; begin and end are those of the first
 *   choose          1        mark           uint8   token    bits: 1: of the text's second segment; 2: a text begins here
 *                            label          uint32  example  the number of the right text
 *   embed           1        mark           uint8   token    likewise; two texts an example
 *
 * A kind of a later objective is a row of the table in example.c and its columns: one value for each token (a loss
 * mask) or for each example (where the second answer of a preference pair begins, a label) is all that they need. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum example_kind {
    EXAMPLE_TEXT,
    EXAMPLE_SENTENCE_PAIRS,
    EXAMPLE_PREFERENCE_PAIRS,
    EXAMPLE_SFT,
    EXAMPLE_CLASSIFY, /* from here on: what the heads of tasks learn from */
    EXAMPLE_REGRESS,
    EXAMPLE_CLASSIFY_TOKENS,
    EXAMPLE_ANSWER,
    EXAMPLE_CHOOSE,
    EXAMPLE_EMBED,
    EXAMPLE_KINDS
};

enum { EXAMPLE_COLUMNS_MAX = 7 };

struct example_column {
    const char *name;
    int bytes;      /* 1: uint8, 4: uint32 */
    bool per_token; /* else one for each example */
    bool number;    /* a float32; its bits are the value in memory */
};

struct example_format {
    const char *name;
    int64_t version;
    int columns;
    struct example_column column[EXAMPLE_COLUMNS_MAX];
};

enum { EXAMPLE_FIRST_SEGMENT, EXAMPLE_NEXT_SENTENCE };   /* columns of sentence pairs */
enum { EXAMPLE_PROMPT, EXAMPLE_CHOSEN };                 /* columns of preference pairs */
enum { EXAMPLE_TASK_FIRST_SEGMENT, EXAMPLE_TASK_LABEL }; /* columns of classify, regress */

const struct example_format *example_format_of(enum example_kind kind);

enum { EXAMPLE_LOSS_MASK };     /* the column of sft */
enum { EXAMPLE_TOKEN_LABEL };   /* the column of classify_tokens */
enum { EXAMPLE_NO_LABEL = -1 }; /* in it, as an int32 */
enum {                          /* columns of answer */
       EXAMPLE_ANSWER_FIRST_SEGMENT,
       EXAMPLE_ANSWER_BEGIN,
       EXAMPLE_ANSWER_END,
       EXAMPLE_ANSWER_ROW,
       EXAMPLE_ANSWER_FROM,
       EXAMPLE_ANSWER_TO,
       EXAMPLE_ANSWER_RIGHT
};
/* Marks of a window's tokens in memory: the bits of `right`, and whether a blank stands before it in the text. */
enum { EXAMPLE_RIGHT_MOST = 30, EXAMPLE_BEHIND_BLANK = 1 << EXAMPLE_RIGHT_MOST };
enum { EXAMPLE_SEVERAL_MARK, EXAMPLE_SEVERAL_LABEL }; /* columns of choose; embed has the first */
enum { EXAMPLE_SECOND_SEGMENT = 1, EXAMPLE_BEGINS_TEXT = 2 }; /* bits of mark */

/* Bits of loss_mask. PRESET is what is learned where nothing is asked for: the completion of a row that has one, else
 * everything. */
enum {
    EXAMPLE_IS_COMPLETION = 1,
    EXAMPLE_IS_ANSWER = 2, /* an assistant's, with its end of turn */
    EXAMPLE_IS_PRESET = 4
};

/* example_kind_named - EXAMPLE_KINDS: none has this name. */
enum example_kind example_kind_named(const char *name);

/* An example in the caller's memory. */
struct example {
    int64_t room;          /* of ids (and of segments, of sentence pairs): tokens at most */
    int64_t tokens;        /* of this one */
    int32_t *ids;          /* [room] */
    int32_t *segments;     /* [room] 0, 1 */
    int32_t next_sentence; /* 0: B follows A, 1: random */
    bool masked;           /* already, in the file: then these tell the predictions */
    int64_t predictions;
    int64_t predictions_room;
    int32_t *positions,
        *labels; /* [predictions_room]; of a task: the tokens that its head reads, and their labels */
    int32_t row, *marks; /* of answer: which row it is a window of; [tokens], behind the labels */
    float number;        /* to be learned, of regress */
    int64_t texts, texts_room; /* of a task: one or several */
    int32_t *text_first;       /* [texts_room + 1] their first tokens, and the end */
    int64_t prompt, chosen;    /* tokens of a preference pair's first two parts */
};
