/* Objective embed, sentence embeddings: similar unit vectors for the two texts of a pair.
 *
 *   m = mean of the text's rows h_i,   u = m / max(|m|, 1e-12)
 *   loss = sum_i loss_i / pairs,       loss_i as in kernels/contrastive_loss.h
 *
 * The negatives of a pair are all other pairs of the global batch. The first pass collects the
 * vectors, and the second pass runs backward (contrastive_batch.h). With CONTRASTIVE_ALONE the
 * negatives are the other pairs of this micro-batch. The host does not wait for the device, unless
 * an evaluation reports the vectors.
 *
 * Source    Reimers, Gurevych 2019, arXiv:1908.10084; sentence-transformers: mean pooling,
 *           MultipleNegativesRankingLoss with scale 20 */
#include <stdlib.h>

#include "base/memory.h"
#include "trainer/objective/contrastive_batch.h"
#include "trainer/objective/task_head.h"

enum { CORRECT = OBJECTIVE_COUNT + 1 };

_Static_assert((int)CONTRASTIVE_SUM_PAIRS == (int)OBJECTIVE_COUNT - (int)OBJECTIVE_LOSS &&
                   (int)CONTRASTIVE_SUM_CORRECT == (int)CORRECT - (int)OBJECTIVE_LOSS,
               "the sums of the contrastive loss are consecutive sums of an objective");

/* Passes the unit vectors of each pair to the sink. */
static status report_pairs(struct kernels *k, const struct batch *batch,
                           const struct objective_input *in, const struct contrastive_texts *texts)
{
    const struct contrastive_pairs *pairs = &in->whole_batch.contrastive->pairs;
    int64_t width = pairs->width, values = TEXTS_PER_PAIR * width;
    double *units = NULL;
    float *outputs = NULL;
    status result = ALLOCATE(units, values, "two vectors");
    KEEP_FIRST(result, ALLOCATE(outputs, values, "two vectors"));
    for (int64_t i = 0; i < texts->pairs && result == STATUS_OK; i++) {
        const double *from = pairs->units + (texts->first + i) % pairs->size * values;
        result = device_read(kernels_device(k), kernels_stream(k), units, from,
                             (size_t)values * sizeof *units);
        for (int64_t c = 0; c < values; c++) {
            outputs[c] = (float)units[c];
        }
        const struct objective_example e = {.sample = batch->samples[i],
                                            .rows = TEXTS_PER_PAIR,
                                            .columns = width,
                                            .outputs = outputs};
        KEEP_FIRST(result, in->sink->consume(in->sink->user, &e));
    }
    free(units);
    free(outputs);
    return result;
}

/* Runs the first pass: stores the vectors of this micro-batch. */
static status collect_pairs(struct kernels *k, const struct batch *batch,
                            const struct objective_input *in, const struct contrastive_texts *texts)
{
    struct tensor rows;
    TRY(task_head_outputs(k, in, &rows));
    TRY(contrastive_batch_add(in->whole_batch.contrastive, rows, texts));
    return in->sink != NULL ? report_pairs(k, batch, in, texts) : STATUS_OK;
}

/* Runs the second pass: adds the losses of this micro-batch, and computes its gradients. */
static status add_losses(struct kernels *k, const struct objective_input *in,
                         const struct contrastive_texts *texts, bool gradient)
{
    const struct contrastive_pairs *pairs = &in->whole_batch.contrastive->pairs;
    TRY(contrastive_loss_sum(k, in->device_sums + OBJECTIVE_LOSS, pairs, texts->first,
                             texts->pairs));
    if (!gradient) {
        return STATUS_OK;
    }
    TRY(contrastive_loss_backward(k, task_head_gradients(in), pairs, texts));
    return task_head_backward(k, in);
}

/* Computes the loss with the pairs of this micro-batch only. */
static status run_alone(struct kernels *k, const struct batch *batch,
                        const struct objective_input *in, const struct contrastive_texts *texts,
                        bool gradient)
{
    struct contrastive_batch *whole = in->whole_batch.contrastive;
    TRY(contrastive_batch_clear(whole));
    TRY(collect_pairs(k, batch, in, texts));
    TRY(contrastive_loss_run(k, &whole->pairs, texts->pairs));
    return add_losses(k, in, texts, gradient);
}

static status check_batch(const struct batch *batch, const struct objective_input *in)
{
    TRY(task_head_check(batch, in, BATCH_TASK));
    REQUIRE(batch->segments == TEXTS_PER_PAIR * batch->sequences &&
                batch->outputs.count == batch->rows,
            STATUS_INTERNAL, "objective embed needs a batch of text pairs");
    REQUIRE(in->whole_batch.contrastive != NULL, STATUS_INTERNAL,
            "objective embed needs memory for the pairs of the global batch");
    return in->whole_batch.contrastive_phase == CONTRASTIVE_ALONE
               ? STATUS_OK
               : objective_check_samples(batch, "embed");
}

/* Computes the loss of a micro-batch. Its position in the global batch differs in each call. The
 * launches that depend on the position are therefore in a separate segment of the graph. */
static status embed_loss(struct kernels *k, const struct batch *batch,
                         const struct objective_input *in, bool gradient,
                         double sums[OBJECTIVE_SUMS])
{
    const struct objective_whole_batch *whole = &in->whole_batch;
    TRY(check_batch(batch, in));
    struct contrastive_texts texts = {.pairs = batch->sequences,
                                      .cu_rows = in->device_batch->cu_rows};
    if (whole->contrastive_phase != CONTRASTIVE_ALONE) {
        texts.first = batch->samples[0] % whole->contrastive->pairs.size;
    }
    if (whole->contrastive_phase == CONTRASTIVE_COLLECTING) {
        sums[OBJECTIVE_COUNT] += (double)batch->sequences;
        return collect_pairs(k, batch, in, &texts);
    }
    TRY(kernels_graph_end_segment(k));
    TRY(whole->contrastive_phase == CONTRASTIVE_ALONE ? run_alone(k, batch, in, &texts, gradient)
                                                      : add_losses(k, in, &texts, gradient));
    return kernels_graph_end_segment(k);
}

static const struct objective_metric metrics[] = {{"accuracy", CORRECT, OBJECTIVE_COUNT}, {0}};

const struct objective objective_embed = {
    .metrics = metrics, .unit = "pairs", .needs_global_counts = true, .loss = embed_loss};
