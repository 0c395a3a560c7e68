/* Scores of objective answer, extractive question answering. They are computed for each question as
 * in transformers' run_qa and SQuAD's evaluation script.
 *
 * A long context is split into overlapping windows. The prediction for a question is the best span
 * of all its windows, or "no answer". The reference answers of all windows are combined. Answer
 * texts are decoded from the window's tokens, with blanks where the context has them. */
#pragma once

#include "comm/comm.h"
#include "datasets/tokenizer/tokenizer.h"
#include "trainer/evaluation/scores.h"
#include "trainer/objective/objective.h"

struct squad;

/* squad_create - create an empty set of windows.
 *
 * Units     threshold: "no answer" is predicted if its score exceeds the score of the best span by
 *           more than this margin
 * Memory    the tokenizer is borrowed
 * Errors    STATUS_INTERNAL if memory runs out */
status squad_create(const struct tokenizer *t, double threshold, struct squad **out);

/* squad_destroy - free the windows and set *s to NULL. */
void squad_destroy(struct squad **s);

/* squad_clear - remove all windows. */
void squad_clear(struct squad *s);

/* squad_add_window - add one window of this rank.
 *
 * The windows of one question must have consecutive sample indices.
 *
 * Errors    STATUS_INTERNAL; STATUS_NOT_FINITE if a score is not finite */
status squad_add_window(struct squad *s, const struct objective_example *e);

/* squad_mean - compute the mean scores over the questions of all ranks.
 *
 * Order     collective over data */
status squad_mean(struct squad *s, struct comm *data, struct scores_answer *out);
