/* The kinds of examples that shards can store, and an example in memory.
 *
 *   kind     The purpose of an example, such as sft or classify. All examples of a shard have the
 *            same kind.
 *   example  Document i of a shard, tokens[documents[i] : documents[i + 1]], with the values of
 *            its columns.
 *   column   A dataset in addition to /tokens and /documents. It has one value per example (d,) or
 *            per token (n,). It is stored in chunks with Fletcher32, and the attribute NAME_sha256
 *            contains its SHA-256.
 *
 * The attributes `examples` and `examples_version` on / store the kind and its version. `longest`
 * stores the number of tokens of the longest example. Shards of plain text (kind "text") have no
 * columns and none of these attributes.
 *
 *   kind             version column        type    per     content
 *   sentence_pairs   1       first_segment uint32  example tokens of segment 0: [CLS] A [SEP]. The
 *                                                          rest, B [SEP], is segment 1. With one
 *                                                          segment: all tokens
 *                            next_sentence uint8   example 0: B follows A in its document; 1: B is
 *                                                          random, or A follows B (pairs for
 *                                                          the prediction of their order)
 *   preference_pairs 1       prompt        uint32  example tokens of the prompt. The chosen and the
 *                                                          rejected response follow; each continues
 *                                                          the prompt
 *                            chosen        uint32  example tokens of the chosen response; the rest
 *                                                          is the rejected one
 *   sft              1       loss_mask     uint8   token   bits: roles of the token (see below)
 *   seq2seq          1       source        uint32  example tokens of the source, with its special
 *                                                          tokens; the rest is the target. Also for
 *                                                          sft of encoder-decoders
 *   classify         1       first_segment uint32  example as in sentence_pairs; for decoders:
 *                                                          tokens of the first text and the
 *                                                          delimiter (text_pair.h)
 *                            label         uint32  example number of the label in the attribute
 *                                                          `labels` of /, a JSON array of names
 *   regress          1       first_segment uint32  example as in classify
 *                            label         float32 example target value
 *   classify_tokens  1       label         uint32  token   number in the attribute `labels`;
 *                                                          4294967295: none
 *   answer           2       first_segment uint32  example as in classify
 *                            begin, end    uint32  example first and last token of the answer; 0,
 *                                                          0: not in this window
 *                            row           uint32  example number of the input row of this window,
 *                                                          from 0
 *                            from, to      uint32  token   range of code points of the context that
 *                                                          the token covers; 0, 0: the token is not
 *                                                          part of the context
 *                            right         uint32  token   bit k: the token is part of correct
 *                                                          answer k of the row. An answer may also
 *                                                          occur in other windows. begin and end
 *                                                          belong to the first answer
 *   choose           1       mark          uint8   token   bits: 1: second segment of its text; 2:
 *                                                          first token of a text
 *                            label         uint32  example number of the correct text
 *   embed            1       mark          uint8   token   as in choose; two texts per example
 *
 * To add a kind, add a row with its columns to the table in example.c. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

enum example_kind {
    EXAMPLE_TEXT,
    EXAMPLE_SENTENCE_PAIRS,
    EXAMPLE_PREFERENCE_PAIRS,
    EXAMPLE_SFT,
    EXAMPLE_SEQ2SEQ,
    EXAMPLE_CLASSIFY, /* this and all later kinds are for task heads */
    EXAMPLE_REGRESS,
    EXAMPLE_CLASSIFY_TOKENS,
    EXAMPLE_ANSWER,
    EXAMPLE_CHOOSE,
    EXAMPLE_EMBED,
    EXAMPLE_KINDS
};

/* example_label_count - return the number of labels of task examples with `outputs` rows that the
 * head reads. */
static inline int64_t example_label_count(enum example_kind kind, int64_t examples, int64_t outputs)
{
    return kind == EXAMPLE_ANSWER   ? 2 * examples
           : kind == EXAMPLE_CHOOSE ? examples
           : kind == EXAMPLE_EMBED  ? 0
                                    : outputs;
}

enum { EXAMPLE_COLUMNS_MAX = 7 };

struct example_column {
    const char *name;
    int bytes;      /* 1: uint8, 4: uint32 */
    bool per_token; /* one value per token; otherwise one per example */
    bool is_float;  /* float32; readers return its bits as uint32 */
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

/* example_get_format - return the format of a kind. */
const struct example_format *example_get_format(enum example_kind kind);

enum { EXAMPLE_LOSS_MASK };     /* the column of sft */
enum { EXAMPLE_SOURCE };        /* the column of seq2seq */
enum { EXAMPLE_TOKEN_LABEL };   /* the column of classify_tokens */
enum { EXAMPLE_NO_LABEL = -1 }; /* value of this column, as int32, for tokens without a label */
enum {                          /* columns of answer */
       EXAMPLE_ANSWER_FIRST_SEGMENT,
       EXAMPLE_ANSWER_BEGIN,
       EXAMPLE_ANSWER_END,
       EXAMPLE_ANSWER_ROW,
       EXAMPLE_ANSWER_FROM,
       EXAMPLE_ANSWER_TO,
       EXAMPLE_ANSWER_RIGHT
};
/* Bits of example.answer_flags: column `right`, and whether white space precedes the token. */
enum { EXAMPLE_ANSWERS_MAX = 30, EXAMPLE_AFTER_SPACE = 1 << EXAMPLE_ANSWERS_MAX };
enum { EXAMPLE_TEXTS_MARK, EXAMPLE_TEXTS_LABEL }; /* columns of choose; embed has the first only */
enum { EXAMPLE_SECOND_SEGMENT = 1, EXAMPLE_BEGINS_TEXT = 2 }; /* bits of column mark */

/* Bits of column loss_mask. DEFAULT marks the tokens that are trained on by default: the completion
 * of a row that has one, otherwise all tokens. */
enum {
    EXAMPLE_IS_COMPLETION = 1,
    EXAMPLE_IS_ASSISTANT = 2, /* a message of the assistant, with its end of turn */
    EXAMPLE_IS_DEFAULT = 4
};

/* example_find_kind - return the kind with this name; EXAMPLE_KINDS if there is none. */
enum example_kind example_find_kind(const char *name);

/* An example. The caller owns its arrays. */
struct example {
    int64_t token_capacity;  /* of ids, and of token_type_ids except for pairs */
    int64_t tokens;          /* number of tokens */
    int32_t *ids;            /* [token_capacity] */
    int32_t *token_type_ids; /* [token_capacity] 0 or 1 */
    int32_t next_sentence;   /* 0: B follows A, 1: B is random or A follows B */
    bool masked;             /* the file stores masked tokens, with positions and labels */
    int64_t predictions;
    int64_t prediction_capacity;
    /* [prediction_capacity]; for tasks: positions of the tokens that the head reads, and labels */
    int32_t *positions, *labels;
    int32_t input_row;            /* answer: number of the input row of this window */
    int32_t *answer_flags;        /* answer: [tokens], stored after the labels */
    float float_label;            /* regress: target value */
    int64_t texts, text_capacity; /* tasks: number of texts */
    int32_t *text_starts;         /* [text_capacity + 1] first token of each text, and the end */
    int64_t prompt, chosen;       /* preference pairs: tokens of prompt and chosen response */
    int64_t source;               /* seq2seq: tokens of the source */
};
