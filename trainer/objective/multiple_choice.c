/* Which of several texts is right: the head gives each a number, and -log of the right one's share of their exp is the
 * loss, a mean over the examples.
 *
 * Source    transformers' ...ForMultipleChoice */
#include "trainer/objective/task_head.h"

enum { RIGHT = OBJECTIVE_COUNT + 1 };

static status choose_loss(struct kernels *k, const struct batch *batch,
                          const struct objective_views *views, bool gradient,
                          double sums[OBJECTIVE_SUMS])
{
    const float *outputs = NULL;
    float *slopes = NULL;
    TRY(head_check(batch, views));
    TRY(head_forward(k, views, &outputs, &slopes));
    for (int64_t i = 0; i < batch->sequences; i++) {
        int64_t first = batch->example_rows[i], count = batch->example_rows[i + 1] - first;
        int64_t best = 0, label = batch->labels[i];
        REQUIRE(label >= 0 && label < count, STATUS_INTERNAL, "choice %lld of %lld",
                (long long)label, (long long)count);
        const struct head_choice choice = {count, 1, label, 1};
        sums[OBJECTIVE_LOSS] += head_softmax(outputs + first, slopes + first, &choice, &best);
        sums[OBJECTIVE_COUNT] += 1;
        sums[RIGHT] += best == label;
    }
    TRY(head_tell(batch, views, outputs, 1, 1));
    return gradient ? head_backward(k, views) : STATUS_OK;
}

static const struct objective_metric metrics[] = {{"accuracy", RIGHT, OBJECTIVE_COUNT}, {0}};

const struct objective objective_choose = {.name = "choose",
                                           .metrics = metrics,
                                           .counted = "examples",
                                           .looks_ahead = true,
                                           .loss = choose_loss};
