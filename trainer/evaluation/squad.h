/* Answers of windows, put together: what is said of a question is the best span of all windows of its text, or that there is
 * no answer, and all right answers count, whichever window they are in, as in transformers' run_qa and SQuAD's script.
 *
 * Texts are those that a window's tokens stand for, with blanks where the context has them. */
#pragma once

#include "comm/comm.h"
#include "datasets/tokenizer/tokenizer.h"
#include "trainer/evaluation/scores.h"
#include "trainer/objective/objective.h"

struct grade_windows;

/* grade_windows_create - threshold: there is no answer where this scores so much more than the best span. */
status grade_windows_create(const struct tokenizer *t, double threshold,
                            struct grade_windows **out);
void grade_windows_destroy(struct grade_windows **w);
void grade_windows_clear(struct grade_windows *w);

/* grade_windows_take - one window of this rank; windows of a row have neighbouring samples. */
status grade_windows_take(struct grade_windows *w, const struct objective_example *e);

/* grade_windows_mean - over the questions of all ranks.  Order: collective over data */
status grade_windows_mean(struct grade_windows *w, struct comm *data, struct grade_answer *out);
