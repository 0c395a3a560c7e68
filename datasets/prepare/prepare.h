/* `bireme prepare`: converts text and tokens to HDF5 shards.
 *
 * Inputs are streamed, so memory does not depend on the size of an input.
 *
 * The name of an input file selects its reader:
 *   *.jsonl, *.ndjson  JSON Lines. Each row is an object; its field "text" is one document.
 *   *.csv, *.tsv       with a column for "text" (columns.h): rows as above; otherwise plain text
 *   x.idx with x.bin   a Megatron-LM index and its tokens; either name selects both files
 *   other *.bin        llm.c tokens
 *   all others         plain text
 * The ids of token files are copied unchanged, and nothing is appended without append_eod.
 * Megatron-LM indexes contain the documents. In llm.c files each end token starts a document, or
 * each begin token if the tokenizer has one.
 *
 * Long documents are encoded in chunks of at most 256 KiB. Chunks end where all byte-level
 * pre-tokenization patterns have a word boundary in every context: GPT-2, cl100k, o200k, Llama 3
 * and Qwen 2. Therefore, encoding the whole text at once gives the same ids (splitter.c). A chunk
 * without such a boundary is split inside of a word, and the report counts these splits.
 *
 * The output does not depend on the number of worker threads: it is equal byte for byte. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "datasets/chat/chat.h"
#include "datasets/rows/instruction_templates.h"
#include "datasets/rows/row_file.h"
#include "datasets/tokenizer/tokenizer.h"

/* The document unit of a plain text file. Paragraphs are groups of lines that are separated by
 * blank lines; the blank lines are not part of a document. With lines, every line that is not blank
 * is a document, without its newline. */
enum prepare_document_unit {
    PREPARE_DOCUMENT_FILE,
    PREPARE_DOCUMENT_PARAGRAPH,
    PREPARE_DOCUMENT_LINE
};

/* Sentence boundaries. LINES: at newlines. PUNCTUATION: at newlines and after . ? !
 * AUTO: LINES if the first 256 KiB of the document contain several lines, otherwise PUNCTUATION. */
enum prepare_sentence_rule {
    PREPARE_SENTENCE_AUTO,
    PREPARE_SENTENCE_LINES,
    PREPARE_SENTENCE_PUNCTUATION
};

/* The examples of each label in both sets. For classify_tokens: the words of each label. */
struct prepare_label_counts {
    int count;
    char **names;                /* [count] */
    int64_t *train, *validation; /* [count] */
};

struct prepare_options {
    const struct tokenizer *tokenizer;
    char *const *inputs; /* paths */
    int input_count;
    struct row_format format; /* of files with rows */
    /* Paths of the validation set, instead of validation_fraction. Only for row objectives. Without
     * inputs, only the validation set is written, and earlier training shards stay. */
    char *const *validation_inputs;
    int validation_input_count;
    /* prepare_seq2seq, and prepare_sft with templates: files of lines that are aligned with the
     * lines of the inputs (aligned_lines.h); NULL: the inputs have rows with both texts. */
    char *const *targets;            /* [input_count] */
    char *const *validation_targets; /* [validation_input_count] */
    const char *output;              /* folder for train-00000-of-00004.h5 and validation-... */
    enum prepare_document_unit document_unit;
    /* Fraction of the documents or rows in the validation set, in [0, 1). Without shuffle_split,
     * these are the last ones, or the end of a single document. */
    double validation_fraction;
    /* Draw the validation set at random: one of every 1 / validation_fraction documents, this
     * fraction of the rows of each label, or contexts with this fraction of the
     * rows (row_split.h). */
    bool shuffle_split;
    uint64_t split_seed; /* for shuffle_split */
    /* Maximum tokens per shard. A document that does not fit continues in the next shard. */
    int64_t shard_tokens;
    int workers; /* encoding threads; 0: all cores */
    /* prepare_clm: end each document with the end token, also in token files, unless it begins or
     * ends with it. Documents of text always end with it if the tokenizer has one. */
    bool append_eod;

    enum prepare_sentence_rule sentence_rule; /* prepare_mlm */
    int64_t sequence_tokens; /* maximum tokens per example, special tokens included */
    double short_fraction;   /* prepare_mlm: fraction of documents with shorter examples, [0, 1] */
    uint64_t pair_seed;      /* prepare_mlm: seed of the random pairs */
    bool sentence_order;     /* prepare_mlm: segments in their order or swapped, none is random */

    bool skip_bad_rows; /* count rows that cannot be used instead of stopping at the first one */
    const struct chat_template *chat_template; /* NULL: rows with messages are bad rows */
    struct instruction_templates *templates;   /* prepare_sft: render rows with them; NULL: none */
    bool join_encoding;   /* prepare_sft: encode a plain prompt and its completion as one text */
    bool encoder_decoder; /* prepare_sft: examples of seq2seq, the prompt is the source */
    /* prepare_seq2seq: languages in "translation" or of language tokens, and text before each
     * source. prepare_sft with encoder_decoder uses the languages only. NULL: not given */
    const char *source_language, *target_language, *source_prefix;
    /* Label names in the order of their indices, as labels_parse reads them. NULL: the names of all
     * rows, sorted. */
    const char *labels;
    struct prepare_label_counts *label_counts; /* filled if the objective has labels; NULL: not */
};

struct prepare_report {
    int64_t documents;                           /* documents or examples with at least one token */
    int64_t sentences;                           /* prepare_mlm: sentences of the documents */
    int64_t examples;                            /* examples written; 0 for prepare_clm */
    int64_t empty_documents;                     /* documents without text, not written */
    int64_t train_examples, validation_examples; /* documents for prepare_clm */
    int64_t train_tokens, validation_tokens;
    int64_t bytes;          /* size of all inputs */
    int64_t bad_rows;       /* rows that were skipped */
    int64_t overlong_rows;  /* rows with more than sequence_tokens tokens */
    int64_t plain_rows;     /* sft, dpo: rows of texts, which are encoded without a chat template */
    int64_t longest_tokens; /* tokens of the longest row; dpo: prompt and one response */
    int64_t truncated_tokens; /* fine-tuning tasks: tokens removed at sequence_tokens */
    int64_t most_truncated;   /* fine-tuning tasks: tokens removed from one example, at most */
    int label_count;          /* fine-tuning tasks: number of label names */
    /* sft: tokens in the default loss mask; dpo: of the responses; seq2seq: of the targets */
    int64_t learned_tokens;
    int64_t forced_splits;    /* chunks that end inside of a word */
    int64_t shared_examples;  /* rows: validation examples with the tokens of a training example */
    int64_t joined_documents; /* prepare_clm: documents after another one without an end token */
    int train_shards, validation_shards;
    double seconds;
};

/* prepare_clm - write documents as shards for causal language modeling.
 *
 * Each document is followed by the end token if the tokenizer has one. The output folder is created
 * if necessary. Shards of an earlier preparation are replaced once the new ones are complete.
 *
 * Memory    about 4 MiB per worker (29 MB in total measured with two), and the largest row of JSON
 *           Lines (at most 64 MiB)
 * Errors    STATUS_NO_INPUT, STATUS_PERMISSION, STATUS_DATA (file, line or byte, reason),
 *           STATUS_CREATE (also if another preparation writes to the folder), STATUS_WRITE. After
 *           an error the output folder has its earlier shards and no new ones. */
status prepare_clm(const struct prepare_options *options, struct prepare_report *out);

/* prepare_mlm - write sentence pairs for masked language modeling with next-sentence prediction
 * or, with sentence_order, for the prediction of the order of two segments.
 *
 * For a RoBERTa tokenizer, the examples are whole sentences without pairs. example.h describes the
 * format. Token files are refused because they contain no sentences. The tokens of all documents
 * are kept in temporary files in the output folder, 4 bytes per token.
 *
 * Memory    as prepare_clm
 * Errors    as prepare_clm; STATUS_DATA if the tokenizer has no [CLS] and [SEP]; STATUS_USAGE for
 *           examples of fewer than 8 tokens */
status prepare_mlm(const struct prepare_options *options, struct prepare_report *out);

/* prepare_sft - write rows of JSON Lines as examples for supervised fine-tuning (example.h).
 *
 * Rows have the fields of TRL: "prompt" and "completion" (two texts or two lists of messages),
 * "messages" (or "conversations"), or "text". The fields of Alpaca are accepted too: "instruction",
 * "input" and "output". Plain text is followed by the tokenizer's end token. Rows are not
 * truncated. A plain prompt and its completion are encoded separately, so that the prompt has the
 * same ids as in generation. With join_encoding they are encoded as one text, and as many tokens
 * belong to the prompt as the prompt alone has, as in TRL.
 *
 * If sequence_tokens is not 0, longer rows are counted; a row is bad if all its learned tokens lie
 * after sequence_tokens.
 *
 * With encoder_decoder, an example is a pair as in prepare_seq2seq. The source is the prompt, with
 * all messages before the last one. The target is the answer. Rows with "text" are bad.
 *
 * Memory    per worker 200 KB, about 3 rows, and the tokens of these rows
 * Errors    as prepare_clm; STATUS_DATA with file, line and reason for a bad row */
status prepare_sft(const struct prepare_options *options, struct prepare_report *out);

/* prepare_preferences - write preference pairs from JSON Lines (example.h).
 *
 * Rows have "chosen" and "rejected", two texts or two lists of messages, and "prompt" of the same
 * type. Without "prompt", the prompt is the common beginning of both responses. Responses are
 * truncated so that prompt and response together have at most sequence_tokens; overlong_rows counts
 * such rows.
 *
 * Memory    per worker 200 KB, about 3 rows, and the tokens of these rows
 * Errors    as prepare_sft. A row is bad if a field is missing or empty, if the responses are
 *           equal, or if the prompt leaves no room for a response. */
status prepare_preferences(const struct prepare_options *options, struct prepare_report *out);

/* prepare_seq2seq - write sources and targets, such as texts and their translations (example.h).
 *
 * Rows of JSON Lines or CSV have "source" and "target", or "translation", an object of languages
 * and texts. With `targets`, the inputs are files of lines instead, each aligned with a file of
 * targets. Each text is encoded with its special tokens: the special tokens of an encoder enclose
 * it, or the end token follows it. Texts are not truncated.
 *
 * Memory    as prepare_sft
 * Errors    as prepare_sft. A row is bad if a text is missing or empty, or has more than
 *           sequence_tokens tokens, or if a line has no counterpart. STATUS_DATA if the tokenizer
 *           has no end token; STATUS_USAGE if translations have no languages */
status prepare_seq2seq(const struct prepare_options *options, struct prepare_report *out);

/* prepare_classify - write texts or pairs of texts with a label (example.h).
 *
 * Rows of JSON Lines or CSV have "text", optionally "text_pair", and "label", a text or an integer.
 * Either all rows have "text_pair" or none; the first usable row determines it. text_pair.h
 * describes the encoding. Texts are truncated to sequence_tokens and counted. One thread.
 *
 * Memory    the largest row, and the label names
 * Errors    as prepare_sft; a row without a text or a label is bad */
status prepare_classify(const struct prepare_options *options, struct prepare_report *out);

/* prepare_regress - write texts or pairs of texts with a number (example.h).
 *
 * Like prepare_classify, but the label is a number. */
status prepare_regress(const struct prepare_options *options, struct prepare_report *out);

/* prepare_classify_tokens - write lists of words with one label per word (example.h).
 *
 * Rows of JSON Lines have two lists of equal length: "tokens", and "labels" or "tags". The first
 * token of a word gets its label. One thread.
 *
 * Errors    as prepare_classify; a row with a word that has no tokens is bad */
status prepare_classify_tokens(const struct prepare_options *options, struct prepare_report *out);

/* prepare_answer - write windows for extractive question answering (example.h, qa_windows.h).
 *
 * Rows of JSON Lines have "question" and "context", and either "answer" and "answer_start" or
 * SQuAD's "answers". One thread.
 *
 * Errors    as prepare_classify; a row is bad if the context does not contain the answer
 *           at answer_start */
status prepare_answer(const struct prepare_options *options, struct prepare_report *out);

/* prepare_choose - write multiple-choice examples (example.h).
 *
 * Rows of JSON Lines have "text" (or "context"), "choices" and "label". One thread.
 *
 * Errors    as prepare_classify */
status prepare_choose(const struct prepare_options *options, struct prepare_report *out);

/* prepare_embed - write pairs of related texts for sentence embeddings (example.h).
 *
 * Rows of JSON Lines or CSV have "text" and "text_pair". One thread.
 *
 * Errors    as prepare_classify */
status prepare_embed(const struct prepare_options *options, struct prepare_report *out);

/* prepare_label_counts_free - release the counts and set *counts to zeros. */
void prepare_label_counts_free(struct prepare_label_counts *counts);

/* prepare_options_check - check the options that all objectives use, and that every input can
 * be opened.
 *
 * Errors    STATUS_USAGE; STATUS_NO_INPUT, STATUS_PERMISSION, STATUS_DATA for an input */
status prepare_options_check(const struct prepare_options *options);
