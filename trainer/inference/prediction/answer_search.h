/* Answers of a model of objective answer: the best span of all windows of a context, as in
 * run_qa.py of Hugging Face transformers.
 *
 *     TRY(answer_search_open(session, &question, &context, &search));
 *     compute the outputs of each window of search.windows and call answer_search_add
 *     struct answer answer = answer_search_end(&search);
 *     answer_search_close(&search); */
#pragma once

#include "datasets/tokenizer/qa_windows.h"
#include "trainer/inference/answer_span.h"
#include "trainer/setup/session.h"

struct answer_search {
    struct text context;
    struct qa_windows windows;
    double no_answer_threshold;
    struct answer_span best;
    int64_t begin, end;      /* of the best span, in code points of the context */
    struct answer_span none; /* the no-answer span with the lowest score of all windows */
};

/* The bytes and code points [begin, end) of the context. They are empty if the context does not
 * contain an answer. */
struct answer {
    size_t begin_bytes, end_bytes;
    int64_t begin, end;
    double probability;
};

/* answer_search_open - encode question and context. Windows have the length of the recipe's
 * sequences, or the model's positions if they are fewer.
 *
 * Memory    the context must outlive *out; the caller calls answer_search_close, also after an
 *           error
 * Errors    as qa_windows_encode */
status answer_search_open(const struct session *s, const struct text *question,
                          const struct text *context, struct answer_search *out);

/* answer_search_add - compare the spans of a window with the best ones of the other windows.
 *
 * Shapes    outputs [tokens, 2]: begin score, end score
 * Units     max_tokens: maximum length of an answer */
void answer_search_add(struct answer_search *a, const struct qa_windows_window *window,
                       const float *outputs, int64_t tokens, int64_t max_tokens);

/* answer_search_end - return the answer. It is empty if the lowest no-answer score of all windows
 * exceeds the best score by more than the recipe's threshold. */
struct answer answer_search_end(const struct answer_search *a);

/* answer_search_close - free the windows. Accepts a struct of zeros. */
void answer_search_close(struct answer_search *a);
