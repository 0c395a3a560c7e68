/* Text in, shards out, in a stream: memory does not depend on the size of the input.
 *
 * Inputs by name: *.jsonl and *.ndjson are JSON Lines, an object with a text field "text" a row, each a
 * document; x.bin with x.idx beside it (or x.idx alone) are Megatron's tokens; other *.bin are llm.c's;
 * all else is text. The ids of token files are taken as they are, nothing is appended; in Megatron's
 * files the index names the documents, in llm.c's each end token (or begin token, where there is one)
 * begins one.
 *
 * Long documents are encoded in pieces of at most 256 KiB, cut where the byte-level pre-tokenisations
 * (GPT-2, cl100k, o200k, Llama 3, Qwen 2) have a boundary whatever stands around it, so that the ids are
 * those of the whole text (prepare_cut.c). Only a stretch of 256 KiB without such a place is cut inside
 * of a word; the report counts these.
 *
 * The output is the same, byte for byte, at any number of workers. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "datasets/chat/chat.h"
#include "datasets/tokenizer/tokenizer.h"

/* What one document of a text file is: the file; lines between blank lines, without those; a line that is
 * not blank, without its end. */
enum prepare_documents { PREPARE_FILE, PREPARE_PARAGRAPH, PREPARE_LINE };

/* Where sentences end: at lines' ends; there and after . ? !; or as the document shows: at lines' ends where it has
 * several lines (in its first 256 KiB), else after . ? ! */
enum prepare_sentences { PREPARE_AUTO, PREPARE_LINES, PREPARE_STOPS };

struct prepare_options {
    const struct tokenizer *tokenizer;
    char *const *inputs;
    int input_count;
    char *const *validation_inputs; /* rows to hold out, instead of a fraction: examples of rows */
    int validation_input_count;
    const char *output; /* folder: train-00000-of-00004.h5, validation-... */
    enum prepare_documents documents;
    double validation_fraction; /* [0, 1): the last documents, or the end of the only one */
    bool shuffle_split; /* one document drawn of each 1 / fraction instead of the last ones */
    uint64_t split_seed;
    int64_t
        shard_tokens; /* tokens of a shard at most; a document that does not fit goes on in the next */
    int workers;      /* encoding threads; 0: all cores */
    enum prepare_sentences sentences; /* sentence pairs from here */
    int64_t sequence_tokens;          /* of an example at most, with [CLS] and both [SEP] */
    double short_fraction;            /* of the documents: shorter examples */
    uint64_t pair_seed;
    bool skip_bad_rows;               /* JSON Lines: count them instead of stopping */
    const struct chat_template *chat; /* of rows with messages; NULL: such rows are bad */
    const char *
        labels; /* "a,b,c" or a file of names, in the order of their numbers; NULL: as they are found */
};

struct prepare_report {
    int64_t documents;           /* of at least one token */
    int64_t sentences, examples; /* of sentence pairs */
    int64_t empty_documents;     /* left out: nothing in them */
    int64_t train_tokens, validation_tokens;
    int64_t bytes; /* of all inputs */
    int64_t bad_rows;
    int64_t over_long;  /* rows of more than sequence_tokens */
    int64_t longest;    /* tokens of the longest row, of a prompt with an answer */
    int64_t cut_tokens; /* of texts: those that were cut off */
    int labels;         /* of texts: names of labels */
    int64_t
        learned_tokens; /* sft: of those that are learned where the recipe says nothing; dpo: of answers */
    int64_t forced_cuts; /* pieces that end inside of a word */
    int train_shards, validation_shards;
    double seconds;
};

/* prepare_clm - documents, each followed by the end token where the tokenizer has one, into shards.
 *
 * The folder is made. Shards of an earlier preparation in it are replaced when the new ones are complete.
 * Memory    about 4 MiB a worker (29 MB in all measured with two) and the largest row of JSON Lines (64 MiB are accepted)
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION, STATUS_DATA (file, line or byte, reason),
 *           STATUS_CREATE (also: another preparation writes there), STATUS_WRITE; on failure nothing
 *           new is left in the output folder, and what was there stays */
status prepare_clm(const struct prepare_options *options, struct prepare_report *out);

/* prepare_mlm - sentence pairs for masked language modelling with next-sentence prediction (example.h); whole sentences
 * without pairs where the tokenizer is RoBERTa's.
 *
 * Token files are refused, for they have no sentences. As in prepare_clm otherwise; the tokens of all documents are
 * kept on disk in the output folder meanwhile, 4 bytes each.
 * Errors    also STATUS_DATA: the tokenizer has no [CLS] and [SEP]; STATUS_USAGE: examples of fewer than 8 tokens */
status prepare_mlm(const struct prepare_options *options, struct prepare_report *out);

/* prepare_sft - rows of JSON Lines into examples for supervised fine-tuning (example.h).
 *
 * Rows have, as for TRL, "prompt" and "completion" (texts, or both lists of messages), "messages" (or
 * "conversations"), or "text"; or, as Alpaca's, "instruction", "input" and "output". Plain text ends with the
 * tokenizer's end token. Nothing is cut; with sequence_tokens rows that are longer are counted, and a row whose
 * prompt leaves nothing to learn within them is a bad one.
 * Memory    a worker about 3 rows beside 200 KB, and what they are as tokens
 * Errors    as prepare_clm; a row that cannot be used is STATUS_DATA with file, line and reason */
status prepare_sft(const struct prepare_options *options, struct prepare_report *out);

/* prepare_preferences - preference pairs from JSON Lines into examples (example.h).
 *
 * Rows have "chosen" and "rejected", texts or both lists of messages, and "prompt" likewise, or else the prompt is what
 * both begin with. Answers are cut so that none has more than sequence_tokens with its prompt; over_long counts such rows.
 * Memory    a worker about 3 rows beside 200 KB, and what they are as tokens
 * Errors    as prepare_sft; bad rows are those without a part, with an empty one, with equal answers, or whose prompt
 *           leaves no room */
status prepare_preferences(const struct prepare_options *options, struct prepare_report *out);

/* prepare_classify, prepare_regress - texts, or pairs of texts, with a label or a number (example.h), one thread.
 *
 * Rows of JSON Lines or CSV have "text", perhaps "text_pair", and "label": a text or an integer, to be learned as one
 * of several; for regress a number. texts.h tells how texts become tokens; they are cut at sequence_tokens, and counted.
 * Memory    the largest row, and the labels' names
 * Errors    as prepare_sft; bad rows are those without a text or a label */
status prepare_classify(const struct prepare_options *options, struct prepare_report *out);
status prepare_regress(const struct prepare_options *options, struct prepare_report *out);

/* prepare_classify_tokens - words that have a label each (example.h), one thread: rows of JSON Lines with "tokens" and
 * "labels" (or "tags"), two lists of one length. A word's first token is the one that counts.
 * Errors    as prepare_classify; a word without a token makes its row a bad one */
status prepare_classify_tokens(const struct prepare_options *options, struct prepare_report *out);

/* prepare_answer - questions and texts that may hold the answer, in windows (example.h, answers.h), one thread: rows of
 * JSON Lines with "question", "context", "answer" and "answer_start", or "answers" as SQuAD has them.
 * Errors    as prepare_classify; an answer that is not where it is said to be makes its row a bad one */
status prepare_answer(const struct prepare_options *options, struct prepare_report *out);

/* prepare_choose - texts of which one is right (example.h), one thread: rows of JSON Lines with "text" (or "context"),
 * "choices" and "label".
 * Errors    as prepare_classify */
status prepare_choose(const struct prepare_options *options, struct prepare_report *out);

/* prepare_embed - texts that belong together (example.h), one thread: rows of JSON Lines or CSV with "text" and
 * "text_pair".
 * Errors    as prepare_classify */
status prepare_embed(const struct prepare_options *options, struct prepare_report *out);
