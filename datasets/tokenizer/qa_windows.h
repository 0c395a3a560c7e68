/* Objective answer, extractive question answering: splits a context into windows of tokens and maps
 * tokens to character offsets.
 *
 * A long context becomes several overlapping windows. Every window contains the whole question.
 * For encoders a window is [CLS] question [SEP] context part [SEP]. For other models it is
 * question, delimiter, context part (see text_pair.h).
 *
 * Character offsets count Unicode code points, as in SQuAD, so the answer text can be recovered.
 * Byte-level tokens have the offsets of their bytes, without the white space at their beginning.
 * WordPiece normalizes its text. The offsets are exact if the pieces of a word have as many code
 * points as the word; otherwise each piece has the offsets of the whole word. */
#pragma once

#include "datasets/tokenizer/text_pair.h"

enum { QA_WINDOWS_OVERLAP = 128 }; /* context tokens that neighboring windows share */

struct qa_windows {
    struct token_list question, context;    /* ids */
    struct token_list char_begin, char_end; /* code point range [begin, end) per context token */
    int32_t prefix[4], separator[8], suffix[4]; /* special tokens of a window */
    int prefix_count, separator_count, suffix_count;
    int first_segment_separators; /* separator tokens that belong to the first segment */
    int64_t capacity;             /* context tokens of a full window */
    int64_t stride;               /* context tokens from one window's start to the next */
    int64_t window_count;
};

/* One window: its context tokens are [first_context_token, + context_tokens) of the context. */
struct qa_windows_window {
    int64_t first_segment_tokens; /* size of the first segment */
    int64_t context_start;        /* index in the window of its first context token */
    int64_t first_context_token;  /* index in the context of that token */
    int64_t context_tokens;
};

/* qa_windows_encode - encode question and context for windows of at most max_tokens tokens.
 *
 * Memory    the caller frees *out with qa_windows_free, also after an error
 * Errors    STATUS_DATA: the question or the context has no tokens, the question leaves no room for
 *           the context, or the tokenizer changes the text, so that offsets are unknown */
status qa_windows_encode(const struct tokenizer *t, const struct text *question,
                         const struct text *context, int64_t max_tokens, struct qa_windows *out);

/* qa_windows_free - free the lists and zero the struct. */
void qa_windows_free(struct qa_windows *w);

/* qa_windows_window - append the ids of one window to *ids and describe it in *out.
 *
 * Errors    STATUS_INTERNAL (out of memory) */
status qa_windows_window(const struct qa_windows *w, int64_t window, struct token_list *ids,
                         struct qa_windows_window *out);

/* qa_windows_find_tokens - find the first and last context token that overlap code points
 * [begin, end); return false if there are none. */
bool qa_windows_find_tokens(const struct qa_windows *w, int64_t begin, int64_t end, int64_t *first,
                            int64_t *last);

/* qa_windows_token_text - decode one token, without the "##" of a WordPiece continuation.
 *
 * Memory    the caller frees *out with free() */
status qa_windows_token_text(const struct tokenizer *t, int32_t id, char **out, size_t *count);

/* qa_windows_count_code_points - return the number of code points in the text. */
int64_t qa_windows_count_code_points(const struct text *text);

/* qa_windows_byte_offset - return the byte offset of a code point; text->count if there is none. */
size_t qa_windows_byte_offset(const struct text *text, int64_t point);
