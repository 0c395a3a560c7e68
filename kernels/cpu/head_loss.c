/* The loss of a fine-tuning head. This file is compiled once, so that its results do not depend on
 * the instruction set. A head has few outputs, so one thread suffices. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/head_loss_terms.h"

/* Returns -log p(label). Sets *correct to whether the label has the largest output. */
static double compute_softmax(const struct head_loss_softmax *s, bool *correct)
{
    const float *outputs = s->outputs;
    int64_t stride = s->stride, best = 0;
    double sum = 0;
    for (int64_t i = 1; i < s->count; i++) {
        best = outputs[i * stride] > outputs[best * stride] ? i : best;
    }
    double maximum = (double)outputs[best * stride];
    for (int64_t i = 0; i < s->count; i++) {
        sum += head_loss_exponential(s, i, maximum);
    }
    for (int64_t i = 0; i < s->count; i++) {
        head_loss_set_gradient(s, i, maximum, sum);
    }
    *correct = best == s->label;
    return head_loss_softmax_loss(s, maximum, sum);
}

static void add_row(double *out, float *gradients, const float *outputs, int64_t columns,
                    const struct head_loss *h, int64_t row)
{
    bool correct = false;
    const struct head_loss_softmax s = {
        outputs + row * columns, gradients + row * columns, columns, 1, h->labels[row], 1};
    if (h->labels[row] == h->ignored) {
        memset(s.gradients, 0, (size_t)columns * sizeof *s.gradients);
        return;
    }
    out[HEAD_LOSS_VALUE] += compute_softmax(&s, &correct);
    out[HEAD_LOSS_COUNT] += 1;
    out[HEAD_LOSS_CORRECT] += correct;
}

static void add_columns(double *out, float *gradients, const float *outputs, int64_t columns,
                        const struct head_loss *h, int64_t example)
{
    int64_t row = h->example_rows[example], count = h->example_rows[example + 1] - row;
    bool all_correct = true, correct = false;
    for (int64_t c = 0; c < columns; c++) {
        int64_t offset = row * columns + c;
        const struct head_loss_softmax s = {outputs + offset,
                                            gradients + offset,
                                            count,
                                            columns,
                                            h->labels[example * columns + c],
                                            1.0 / (double)columns};
        out[HEAD_LOSS_VALUE] += compute_softmax(&s, &correct) / (double)columns;
        all_correct = all_correct && correct;
    }
    out[HEAD_LOSS_COUNT] += 1;
    out[HEAD_LOSS_CORRECT] += all_correct;
}

static void add_terms(double *out, struct head_loss_terms terms)
{
    for (int i = 0; i < HEAD_LOSS_SUMS; i++) {
        out[i] += terms.values[i];
    }
}

status cpu_head_loss_run(struct kernels *k, double *out, struct tensor gradients,
                         struct tensor outputs, const struct head_loss *h)
{
    (void)k;
    float *to = gradients.data;
    const float *from = outputs.data;
    memset(out, 0, HEAD_LOSS_SUMS * sizeof *out);
    for (int64_t i = 0; i < h->examples; i++) {
        switch (h->kind) {
        case HEAD_LOSS_ROWS:
            add_row(out, to, from, outputs.columns, h, i);
            break;
        case HEAD_LOSS_COLUMNS:
            add_columns(out, to, from, outputs.columns, h, i);
            break;
        case HEAD_LOSS_SQUARES:
            add_terms(out, head_loss_square_terms(to + i, from[i], h->targets[i]));
            break;
        case HEAD_LOSS_PAIRS:
            add_terms(out, head_loss_pair_terms(to + 2 * i, from + 2 * i, h->center));
            break;
        }
    }
    return STATUS_OK;
}
