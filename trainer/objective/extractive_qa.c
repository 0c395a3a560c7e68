/* Where in a text the answer stands: of each token's two numbers the first says how well the answer begins there, the
 * second how well it ends there. The loss is the mean of -log p(begin) and -log p(end), a mean over the windows.
 *
 * Both are shares among the window's tokens, those of the question among them, as in transformers; padding, which
 * transformers counts too, does not exist here. Without an answer in the window begin and end are its first token.
 *
 * Source    transformers' ...ForQuestionAnswering */
#include "trainer/objective/task_head.h"

enum { RIGHT = OBJECTIVE_COUNT + 1, ENDS = 2 };

static status answer_loss(struct kernels *k, const struct batch *batch,
                          const struct objective_views *views, bool gradient,
                          double sums[OBJECTIVE_SUMS])
{
    const float *outputs = NULL;
    float *slopes = NULL;
    TRY(head_check(batch, views));
    REQUIRE(views->labels.rows == ENDS, STATUS_INTERNAL, "answers with %lld outputs a token",
            (long long)views->labels.rows);
    TRY(head_forward(k, views, &outputs, &slopes));
    for (int64_t i = 0; i < batch->sequences; i++) {
        int64_t first = batch->example_rows[i], count = batch->example_rows[i + 1] - first;
        int64_t right = 0;
        for (int64_t end = 0; end < ENDS; end++) {
            int64_t best = 0, place = batch->labels[ENDS * i + end], at = ENDS * first + end;
            REQUIRE(place >= 0 && place < count, STATUS_INTERNAL, "token %lld of %lld",
                    (long long)place, (long long)count);
            const struct head_choice choice = {count, ENDS, place, 1.0 / ENDS};
            sums[OBJECTIVE_LOSS] += head_softmax(outputs + at, slopes + at, &choice, &best) / ENDS;
            right += best == place;
        }
        sums[OBJECTIVE_COUNT] += 1;
        sums[RIGHT] += right == ENDS;
    }
    TRY(head_tell(batch, views, outputs, ENDS, ENDS));
    return gradient ? head_backward(k, views) : STATUS_OK;
}

static const struct objective_metric metrics[] = {{"span_accuracy", RIGHT, OBJECTIVE_COUNT}, {0}};

const struct objective objective_answer = {.name = "answer",
                                           .metrics = metrics,
                                           .counted = "examples",
                                           .looks_ahead = true,
                                           .loss = answer_loss};
