/* Training objectives: the loss of a batch and its gradient with respect to the hidden states.
 *
 * Each objective is one file (clm.c, dpo.c, ...) and one struct objective. An objective does not
 * call the model. The training step passes it the hidden states and the output matrix. An objective
 * returns sums and counts. The division by the count follows the reduction over all ranks
 * (kernels.h, convention 2), so the mean does not depend on the parallel layout.
 *
 * Letters in shapes: N rows, M output rows (batch.outputs), C width, V vocabulary, E examples. */
#pragma once

#include "datasets/loader/batch.h"
#include "kernels/kernels.h"
#include "trainer/objective/preference.h"

/* Sums over counted tokens (or examples). Element 0 is the loss, element 1 the count. The sums of
 * an objective's metrics follow. All sums are added over micro-batches and ranks. */
enum { OBJECTIVE_LOSS = 0, OBJECTIVE_COUNT = 1, OBJECTIVE_SUMS = 20 };

/* A metric that is logged next to the loss: one sum divided by another. */
struct objective_metric {
    const char *name; /* NULL ends the list */
    int sum, count;   /* indices of the sums */
};

/* The outputs of a fine-tuning head for one example, and its labels. Host memory, valid during the
 * call.
 *
 *   objective         rows             columns   labels
 *   classify          1                labels    [1]
 *   regress           1                1         NULL
 *   classify_tokens   counted words    labels    [rows]
 *   answer            tokens           2         [2] first and last token
 *   choose            choices          1         [1]
 *   embed             2                width     NULL */
struct objective_example {
    int64_t sample; /* sample number in the data (batch.samples) */
    int64_t rows, columns;
    const float *outputs; /* [rows, columns] */
    const int32_t *labels;
    const float *numbers;  /* regress: [1] target value; else NULL */
    const int32_t *tokens; /* [token_count] ids, if the example is one sequence; else NULL */
    int64_t token_count;
    /* answer: [token_count] flags of the tokens (datasets/shard/example.h); else NULL */
    const int32_t *token_flags;
    int32_t row; /* answer: the dataset row that this window belongs to */
};

/* Receives each example of an evaluation, on the rank that holds the example. */
struct objective_sink {
    status (*consume)(void *user, const struct objective_example *example);
    void *user;
};

/* The hidden states that the loss reads. */
struct objective_hidden {
    struct tensor value;    /* [N, C]; with output rows [M, C] */
    struct tensor gradient; /* the same shape; this rank's vocabulary shard only; absent: no
                             * gradient */
};

/* The language model head: this rank's shard of the vocabulary matrix. */
struct objective_lm_head {
    struct tensor weight;          /* [V padded, C] */
    struct tensor weight_gradient; /* f32 [V padded, C]; absent: no gradient */
    struct tensor bias_gradient;   /* f32 [1, V padded] */
    struct classifier classifier;  /* of the logits, without gradients (model_classifier) */
};

/* The last matrix of a fine-tuning head, or of next-sentence prediction. Each tensor-parallel rank
 * holds all of it. Absent: the model has no labels. */
struct objective_label_head {
    struct tensor weight, weight_gradient; /* [labels, C]; f32 [labels, C] */
    struct tensor bias, bias_gradient;     /* f32 [1, labels] */
    struct tensor pooled, pooled_gradient; /* [E, C] next-sentence prediction only: its input */
};

/* Working memory of a micro-batch, in device memory unless noted. */
struct objective_scratch {
    const struct mirror *row_mirror; /* host and device memory of the row arrays; NULL: they are
                                      * host memory */
    /* row arrays: f32 or int32 [N] */
    float *losses, *entropies, *mean_logits, *row_scales;
    int32_t *argmax;     /* most probable token of each row */
    double *pair_values; /* f64 [pairs, 3] log-probabilities or gradients of pairs */
    /* [N, C], if the objective selects rows */
    struct tensor selected_rows, selected_gradient;
};

/* A loss over all pairs of a global batch takes two passes. The first pass collects the pairs of
 * this rank and computes no loss. The second pass reads the gradients. All NULL: the loss is a sum
 * over the pairs of a micro-batch, or over its examples. Pair i of the batch has index samples[i] %
 * size. */
struct objective_whole_batch {
    int64_t size; /* preference pairs of a full global batch; for embed, see contrastive->pairs */
    struct pair_loss_batch *collected_pairs; /* in the first pass; else NULL */
    /* [size] on the device, in the second pass; else NULL */
    const struct preference_gradient *gradients;
    struct contrastive_batch *contrastive; /* embed: vectors, then their gradients; else NULL */
    enum {
        CONTRASTIVE_ALONE, /* the pairs of this micro-batch are the whole batch */
        CONTRASTIVE_COLLECTING,
        CONTRASTIVE_READY /* the second pass */
    } contrastive_phase;
};

/* Inputs and outputs of an objective: views of the batch, the model and the workspace. */
struct objective_input {
    const struct batch *device_batch; /* the batch with its arrays in device memory */
    struct objective_hidden hidden;
    struct objective_lm_head lm_head;
    struct objective_label_head label_head;
    struct objective_scratch scratch;
    struct objective_whole_batch whole_batch;
    const struct task_head *task_head;            /* outputs of a fine-tuning head; NULL: none */
    const struct preference_settings *preference; /* NULL: the recipe has no preference pairs */
    const struct objective_sink *sink;            /* NULL: examples are not reported */
    bool first_micro_batch; /* parameter gradients are set instead of added to */
    double label_smoothing; /* of the training loss over the vocabulary; 0: none */
    double example_weight;  /* predictions per example in this step (needs_global_counts) */
    /* f64 [OBJECTIVE_SUMS] on the device, initially zero; output of objective_loss_stats,
     * preference_loss_run and task_head_run. The sums of a micro-batch are device_sums plus the
     * sums that `loss` returns. */
    double *device_sums;
    double *reference_logps; /* [samples, 2] output of objective_dpo_reference; else NULL */
};

struct objective {
    const struct objective_metric *metrics; /* NULL: none */
    int main_metric;  /* index of the metric in progress lines; -1: only evaluations have metrics */
    const char *unit; /* unit of the count that the loss is a mean over: "tokens", "pairs" */
    bool perplexity;  /* exp(loss) is a perplexity and is logged */
    bool smooths_labels; /* train.label_smoothing_factor applies */
    /* The loss is the sum of these means. NULL: it is the mean of the first two sums. */
    const struct objective_metric *loss_terms;
    bool needs_global_counts; /* example_weight must be known before the first gradient of a step */

    bool selects_rows; /* the scratch memory has selected rows and their gradient */

    /* Compute the loss, add to sums, and with `gradient` compute the gradients. */
    status (*loss)(struct kernels *k, const struct batch *batch, const struct objective_input *in,
                   bool gradient, double sums[OBJECTIVE_SUMS]);
};

/* objective_lm_classifier - return the settings of a softmax over the vocabulary. Labels are
 * smoothed only with a gradient: the loss of an evaluation is the cross-entropy. */
struct classifier objective_lm_classifier(const struct objective_input *in, bool gradient);

/* objective_download - copy `count` row arrays from the device to the host: the first `bytes` bytes
 * of each array.
 *
 * Memory    replaces arrays[count] by the host copies, which are valid until the arrays are written
 *           again
 * Order     waits for the device once */
status objective_download(const struct objective_input *in, const void **arrays, int count,
                          size_t bytes);

/* objective_host_pointer - return the host memory of a row array, for objective_upload. */
void *objective_host_pointer(const struct objective_input *in, void *array);

/* objective_upload - copy `bytes` bytes of a row array from the host to the device. */
status objective_upload(const struct objective_input *in, const void *array, size_t bytes);

/* objective_loss_stats - compute the loss, the count and, if given in t, correct predictions and
 * entropy of a micro-batch. They are queued to in->device_sums[first], [first + 1], ... */
status objective_loss_stats(struct kernels *k, const struct objective_input *in,
                            const struct loss_rows *t, int64_t rows, int first);

/* objective_set_row_scale - set in->scratch.row_scales of `rows` rows to one weight. */
status objective_set_row_scale(const struct objective_input *in, int64_t rows, double weight);

/* objective_check_samples - check that the sample numbers of a batch are consecutive. The first
 * number then gives the position of each example in the global batch.
 *
 * Errors    STATUS_INTERNAL with the name of the objective */
status objective_check_samples(const struct batch *batch, const char *objective);

/* objective_mean - return the value of a metric; 0 if its count is 0. */
double objective_mean(const double sums[OBJECTIVE_SUMS], const struct objective_metric *m);

/* objective_loss_terms - return the means that are added to the loss; a name of NULL ends them. */
const struct objective_metric *objective_loss_terms(const struct objective *o);

/* objective_loss - return the mean loss of these sums. */
double objective_loss(const struct objective *o, const double sums[OBJECTIVE_SUMS]);

/* objective_metric_count - return the number of metrics. */
int objective_metric_count(const struct objective *o);

/* The objectives. objective_spec_objective (trainer/setup) returns the one of a recipe. */
extern const struct objective objective_clm, objective_mlm, objective_sft, objective_dpo;
extern const struct objective objective_classify, objective_regress, objective_classify_tokens,
    objective_extractive_qa, objective_multiple_choice, objective_embed, objective_reward,
    objective_seq2seq, objective_denoise;

/* Computes the log-probabilities of the DPO reference into in->reference_logps. It is no
 * objective of a recipe. */
extern const struct objective objective_dpo_reference;
