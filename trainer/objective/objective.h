/* Training objectives: the loss of a batch and its gradient with respect to the hidden states.
 *
 * Each objective is one file (clm.c, dpo.c, ...) and one struct objective. An objective does not
 * call the model. The training step passes it the hidden states and the output matrix. An objective
 * returns sums and counts. The division by the count follows the reduction over all ranks
 * (kernels.h, convention 2), so the mean does not depend on the parallel layout.
 *
 * Letters in shapes: N rows, C width, V vocabulary, E examples. */
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

/* objective_sink - receives each example of an evaluation, on the rank that holds it. */
struct objective_sink {
    status (*consume)(void *user, const struct objective_example *example);
    void *user;
};

/* Inputs and outputs of an objective: views of the batch, the model and the workspace. */
struct objective_input {
    const struct batch *device_batch; /* the batch with its arrays in device memory */
    const struct mirror *row_mirror;  /* host and device memory of `losses` and the arrays after it;
                                       * NULL: they are host memory */
    struct tensor hidden;             /* [N, C] */
    struct tensor hidden_gradient; /* [N, C] gradient through this rank's vocabulary shard; absent
                                    * without gradient */
    struct tensor head;            /* [V padded, C] this rank's shard of the vocabulary matrix */
    struct tensor head_gradient;   /* f32 [V padded, C]; absent without gradient */
    bool first_micro_batch;        /* parameter gradients are set instead of added to */
    int64_t vocabulary;            /* V */
    struct vocabulary_shard vocabulary_shard;    /* the part of the vocabulary that `head` holds */
    struct tensor head_bias, head_bias_gradient; /* f32 [1, V padded]; absent: no bias */
    float *losses;                               /* f32 [N] workspace; so are the next six */
    float *entropies, *mean_logits, *row_scales;
    int32_t *argmax;                            /* most probable token of each row */
    int32_t *selected_index, *selected_targets; /* of selected rows */
    /* f64 [OBJECTIVE_SUMS] on the device, zero; output of objective_loss_stats. The sums of a
     * micro-batch are these plus the ones that `loss` returns */
    double *device_sums;
    /* [N, C] workspace, if the objective has scratch */
    struct tensor selected_rows, selected_gradient;
    void *scratch;                                /* host memory of scratch_bytes(N) */
    const struct preference_settings *preference; /* NULL: the recipe has no preference pairs */

    /* Losses over a whole global batch of pairs. In the first pass each pair is stored in
     * collected_pairs, at index sample % batch_size, and no loss is computed. In the second pass
     * batch_gradients holds the results. Both NULL: the loss is a sum over pairs. */
    struct preference_pair *collected_pairs;
    const struct preference_gradient *batch_gradients;
    int64_t batch_size;
    double *reference_logps; /* [samples, 2] output of objective_dpo_reference; else NULL */

    /* Classification of whole examples; each tensor-parallel rank holds all of it. pooled [E, C],
     * label_weight [labels, C], label_bias f32 [1, labels], and their gradients. Absent: the model
     * has no labels. */
    struct tensor pooled, label_weight, label_bias;
    struct tensor pooled_gradient, label_weight_gradient, label_bias_gradient;
    double example_weight; /* predictions per example in this step (needs_global_counts) */

    /* Fine-tuning heads (task_head.h): `hidden` are the rows that the head reads, label_weight and
     * label_bias its last matrix. */
    const struct task_head *task_head;
    const struct objective_sink *sink;           /* NULL: examples are not reported */
    const struct contrastive_batch *contrastive; /* vectors of a whole global batch; NULL: none */
    bool contrastive_ready; /* gradients of the whole batch are known; else vectors are collected */
};

struct objective {
    const char *name;                       /* in the recipe */
    const struct objective_metric *metrics; /* NULL: none */
    const char *unit; /* unit of the count that the loss is a mean over: "tokens", "pairs" */
    bool perplexity;  /* exp(loss) is a perplexity and is logged */
    /* The loss is the sum of these means. NULL: it is the mean of the first two sums. */
    const struct objective_metric *loss_terms;
    bool needs_global_counts; /* example_weight must be known before the first gradient of a step */

    /* Bytes of host scratch memory for `rows` rows. NULL: no scratch and no selected rows. */
    size_t (*scratch_bytes)(int64_t rows);

    /* Compute the loss, add to sums, and with `gradient` compute the gradients. */
    status (*loss)(struct kernels *k, const struct batch *batch, const struct objective_input *in,
                   bool gradient, double sums[OBJECTIVE_SUMS]);
};

/* objective_pull - copy `bytes` bytes of a row array from the device to the host.
 *
 * Memory    *host is the host copy, valid until the array is written again
 * Order     waits for the device */
status objective_pull(const struct objective_input *in, const void *array, size_t bytes,
                      const void **host);

/* objective_host_pointer - return the host memory of a row array, for objective_push. */
void *objective_host_pointer(const struct objective_input *in, void *array);

/* objective_push - copy `bytes` bytes of a row array from the host to the device. */
status objective_push(const struct objective_input *in, const void *array, size_t bytes);

/* objective_loss_stats - compute the loss, the count and, if given in t, correct predictions and
 * entropy of a micro-batch, and queue them to in->device_sums[first], [first + 1], ... */
status objective_loss_stats(struct kernels *k, const struct objective_input *in,
                            const struct loss_rows *t, int64_t rows, int first);

/* objective_set_row_scale - set in->row_scales of `rows` rows to one weight. */
status objective_set_row_scale(const struct objective_input *in, int64_t rows, double weight);

/* objective_mean - return the value of a metric; 0 if its count is 0. */
double objective_mean(const double sums[OBJECTIVE_SUMS], const struct objective_metric *m);

/* objective_loss - return the mean loss of these sums. */
double objective_loss(const struct objective *o, const double sums[OBJECTIVE_SUMS]);

/* objective_metric_count - return the number of metrics. */
int objective_metric_count(const struct objective *o);

/* objective_find - find an objective by its name in the recipe.
 *
 * Errors    STATUS_UNAVAILABLE if there is no such objective */
status objective_find(const char *name, const struct objective **out);

extern const struct objective objective_clm, objective_mlm, objective_sft, objective_dpo;
extern const struct objective objective_classify, objective_regress, objective_classify_tokens,
    objective_extractive_qa, objective_multiple_choice, objective_embed, objective_reward;

/* Computes the log-probabilities of the DPO reference into in->reference_logps. It has no name in a
 * recipe. */
extern const struct objective objective_dpo_reference;
