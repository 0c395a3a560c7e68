/* What is learned: from a batch and the model's hidden states to a loss and the gradient of it.
 *
 * One file per objective (clm.c, dpo.c, ...), behind one table. An objective calls no model: the step hands it
 * hidden states and the output matrix. It returns sums and counts; the division by the count comes after
 * the sum over all ranks (kernels.h, law 2), so that any layout gives the same mean. */
#pragma once

#include "datasets/loader/batch.h"
#include "kernels/kernels.h"
#include "trainer/objective/preference.h"

/* Sums over counted tokens (or examples); element 0 is the loss, element 1 the count. Objectives with own
 * metrics append theirs. All are added over micro-batches and ranks. */
enum { OBJECTIVE_LOSS = 0, OBJECTIVE_COUNT = 1, OBJECTIVE_SUMS = 20 };

/* What is told beside the loss: one sum over another. */
struct objective_metric {
    const char *name; /* NULL ends the list */
    int sum, count;
};

/* What a task's head says of one example, and what is right. Host memory, valid during the call. */
struct objective_example {
    int64_t sample; /* its number in the data (batch.samples) */
    int64_t rows,
        columns; /* classify: 1, labels; regress: 1, 1; classify_tokens: counted words, labels; answer: tokens,
                              2; choose: choices, 1; embed: 2, width */
    const float *outputs; /* [rows, columns] */
    const int32_t *
        labels; /* classify: 1; classify_tokens: [rows]; answer: first and last token; choose: 1; else NULL */
    const float *numbers;  /* regress: 1; else NULL */
    const int32_t *tokens; /* [token_count] ids, where the example is one text; else NULL */
    int64_t token_count;
    const int32_t *marks; /* answer: of each of these (datasets/example.h); else NULL */
    int32_t row;          /* answer: the row that this is a window of */
};

/* objective_sink - who wants to know: every example of an evaluation, on the ranks that have it. */
struct objective_sink {
    status (*take)(void *user, const struct objective_example *example);
    void *user;
};

/* Where the objective reads and writes; views of the model's memory. */
struct objective_views {
    const struct batch *placed; /* the batch with its arrays where kernels read them */
    const struct mirror
        *made;            /* where losses and the five arrays behind them are; NULL: the host */
    struct tensor hidden; /* [N, C] */
    struct tensor
        hidden_gradient; /* [N, C] what comes through this part of the head; absent without gradient */
    struct tensor head;                          /* [V padded, C], of this rank's part */
    struct tensor head_gradient;                 /* f32 [V padded, C]; absent without gradient */
    bool fresh;                                  /* the head's gradient is set, not added to */
    int64_t vocabulary;                          /* V */
    struct classifier_parts parts;               /* which rows of the vocabulary's the head is */
    struct tensor head_bias, head_bias_gradient; /* f32 [1, V padded]; absent: the head has none */
    float *losses;                               /* f32 [N], working memory; so are the next six */
    float *entropies, *mean_logits, *row_scales;
    int32_t *best;
    int32_t *some_index, *some_targets; /* of some of the rows */
    double *
        later; /* f64 [tallied] on the device, zero: read at the step's end; NULL: sums are told at once */
    struct tensor some_rows,
        some_gradient; /* [N, C] working memory, where the objective has a scratch */
    void *scratch;     /* host memory of scratch_bytes(N) */
    const struct preference_settings *preference; /* NULL: the recipe has none */
    /* Losses of a whole batch: where its pairs are told (and no loss), or what was made of them; [sample % batch_size].
     * NULL: the loss is a sum over pairs. */
    struct preference_pair *batch_pairs;
    const struct preference_slope *batch_slopes;
    int64_t batch_size;
    double *logps; /* where the reference's log-probabilities go, [samples, 2]; NULL: nowhere */

    /* Labels of whole examples, every rank's the whole: hidden [E, C], weight [labels, C], bias f32 [1, labels] and
     * their gradients. Absent: the model has none. */
    struct tensor pooled, labels, labels_bias;
    struct tensor pooled_gradient, labels_gradient, labels_bias_gradient;
    double example_weight; /* the step's predictions over its examples: what looks_ahead is for */

    /* The head of a task (head.h): hidden are the rows that it reads, labels and labels_bias its matrix. */
    const struct head_memory *task;
    const struct objective_sink *sink;   /* NULL: nobody wants to know */
    const struct whole_vectors *vectors; /* of a whole batch; NULL: there are none */
    bool vectors_known; /* what was made of them; else they are told (and no loss) */
};

struct objective {
    const char *name;
    const struct objective_metric *metrics; /* NULL: none */
    const char *counted;                    /* what the loss is a mean over: "tokens", "pairs" */
    bool perplexity;                        /* exp(loss) says something: it is told */
    const struct objective_metric
        *losses;      /* the loss is the sum of these means; NULL: of the first two sums */
    int tallied;      /* the first so many sums come from objective_tally alone */
    bool looks_ahead; /* example_weight is needed before a step's first gradient */

    size_t (*scratch_bytes)(int64_t rows); /* NULL: none, and no memory for some of the rows */

    /* Adds to sums. gradient false: only the loss. */
    status (*loss)(struct kernels *k, const struct batch *batch,
                   const struct objective_views *views, bool gradient, double sums[OBJECTIVE_SUMS]);
};

/* objective_read - wait for what kernels have made of one of those; *host is where the host reads it. */
status objective_read(const struct objective_views *views, const void *made, size_t bytes,
                      const void **host);

/* objective_host, objective_place - where the host writes one of those arrays, and its way to the kernels. */
void *objective_host(const struct objective_views *views, void *made);
status objective_place(const struct objective_views *views, const void *made, size_t bytes);

/* objective_tally - sums[first], and as many behind it as are wanted: to sums, or queued to views->later. */
status objective_tally(struct kernels *k, const struct objective_views *views,
                       const struct tally *t, int64_t rows, double *sums, int first);

/* objective_scale - the same weight for the gradients of `rows` rows, in views->row_scales. */
status objective_scale(const struct objective_views *views, int64_t rows, double weight);

/* objective_mean - a metric of these sums; 0 where nothing was counted. */
double objective_mean(const double sums[OBJECTIVE_SUMS], const struct objective_metric *m);

/* objective_loss - the mean loss that these sums come to. */
double objective_loss(const struct objective *o, const double sums[OBJECTIVE_SUMS]);

/* objective_metric_count - 0 where there are none. */
int objective_metric_count(const struct objective *o);

/* objective_find - by the recipe's name.  Errors: STATUS_UNAVAILABLE naming what there is */
status objective_find(const char *name, const struct objective **out);

extern const struct objective objective_clm, objective_mlm, objective_sft, objective_dpo;
extern const struct objective objective_classify, objective_regress, objective_classify_tokens,
    objective_answer, objective_choose, objective_embed, objective_reward;
extern const struct objective objective_dpo_reference; /* no recipe's: it fills views.logps */
