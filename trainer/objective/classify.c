/* One label of several for a text (classify), or for each word of it (classify_tokens): -log p(label), a mean over the
 * texts, or over the words.
 *
 * Source    transformers' ...ForSequenceClassification with one label a text, ...ForTokenClassification */
#include "trainer/objective/task_head.h"

enum { RIGHT = OBJECTIVE_COUNT + 1 };

static status classify_loss(struct kernels *k, const struct batch *batch,
                            const struct objective_views *views, bool gradient,
                            double sums[OBJECTIVE_SUMS])
{
    const float *outputs = NULL;
    float *slopes = NULL;
    int64_t labels = views->labels.rows, best = 0;
    TRY(head_check(batch, views));
    TRY(head_forward(k, views, &outputs, &slopes));
    for (int64_t i = 0; i < batch->masked; i++) {
        int64_t label = batch->labels[i];
        if (label == BATCH_IGNORED) {
            memset(slopes + i * labels, 0, (size_t)labels * sizeof *slopes);
            continue;
        }
        REQUIRE(label >= 0 && label < labels, STATUS_INTERNAL, "label %lld of %lld",
                (long long)label, (long long)labels);
        const struct head_choice choice = {labels, 1, label, 1};
        sums[OBJECTIVE_LOSS] +=
            head_softmax(outputs + i * labels, slopes + i * labels, &choice, &best);
        sums[OBJECTIVE_COUNT] += 1;
        sums[RIGHT] += best == label;
    }
    TRY(head_tell(batch, views, outputs, labels, 0));
    return gradient ? head_backward(k, views) : STATUS_OK;
}

static const struct objective_metric metrics[] = {{"accuracy", RIGHT, OBJECTIVE_COUNT}, {0}};

const struct objective objective_classify = {.name = "classify",
                                             .metrics = metrics,
                                             .counted = "examples",
                                             .looks_ahead = true,
                                             .loss = classify_loss};

const struct objective objective_classify_tokens = {.name = "classify_tokens",
                                                    .metrics = metrics,
                                                    .counted = "words",
                                                    .looks_ahead = true,
                                                    .loss = classify_loss};
