/* The loss of a fine-tuning head. This file is compiled once, so that its results do not depend on
 * the instruction set. A head has few outputs, so one thread suffices. */
#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

/* `count` outputs that are `stride` apart, and their gradients. */
struct softmax {
    const float *outputs;
    float *gradients;
    int64_t count, stride, label;
    double weight; /* factor of the gradients */
};

/* Returns -log p(label). Sets *correct to whether the label has the largest output. */
static double compute_softmax(const struct softmax *s, bool *correct)
{
    const float *outputs = s->outputs;
    int64_t stride = s->stride, best = 0;
    double sum = 0;
    for (int64_t i = 1; i < s->count; i++) {
        best = outputs[i * stride] > outputs[best * stride] ? i : best;
    }
    double maximum = (double)outputs[best * stride];
    for (int64_t i = 0; i < s->count; i++) {
        sum += exp((double)outputs[i * stride] - maximum);
    }
    for (int64_t i = 0; i < s->count; i++) {
        double probability = exp((double)outputs[i * stride] - maximum) / sum;
        s->gradients[i * stride] = (float)(s->weight * (probability - (double)(i == s->label)));
    }
    *correct = best == s->label;
    return log(sum) + maximum - (double)outputs[s->label * stride];
}

static void add_row(double *out, float *gradients, const float *outputs, int64_t columns,
                    const struct head_loss *h, int64_t row)
{
    bool correct = false;
    const struct softmax s = {
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
        const struct softmax s = {outputs + offset,
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

static void add_square(double *out, float *gradients, const float *outputs,
                       const struct head_loss *h, int64_t row)
{
    double difference = (double)outputs[row] - (double)h->targets[row];
    out[HEAD_LOSS_VALUE] += difference * difference;
    out[HEAD_LOSS_COUNT] += 1;
    out[HEAD_LOSS_ABSOLUTE] += difference < 0 ? -difference : difference;
    gradients[row] = (float)(2 * difference);
}

/* Returns -log s(d); *gradient is its derivative. */
static double compute_logistic_loss(double d, double *gradient)
{
    double exponential = exp(-fabs(d));
    *gradient = -(d > 0 ? exponential : 1) / (1 + exponential);
    return log1p(exponential) + (d < 0 ? -d : 0);
}

static void add_pair(double *out, float *gradients, const float *outputs, const struct head_loss *h,
                     int64_t pair)
{
    double chosen = (double)outputs[2 * pair], rejected = (double)outputs[2 * pair + 1];
    double total = chosen + rejected, gradient = 0;
    out[HEAD_LOSS_VALUE] +=
        compute_logistic_loss(chosen - rejected, &gradient) + h->center * total * total;
    out[HEAD_LOSS_COUNT] += 1;
    out[HEAD_LOSS_CORRECT] += chosen > rejected;
    out[HEAD_LOSS_MARGIN] += chosen - rejected;
    out[HEAD_LOSS_TOTAL] += total;
    out[HEAD_LOSS_OUTPUTS] += 2;
    gradients[2 * pair] = (float)(gradient + 2 * h->center * total);
    gradients[2 * pair + 1] = (float)(-gradient + 2 * h->center * total);
}

status cpu_head_loss_run(struct kernels *k, double *out, struct tensor gradients,
                         struct tensor outputs, const struct head_loss *h)
{
    (void)k;
    memset(out, 0, HEAD_LOSS_SUMS * sizeof *out);
    for (int64_t i = 0; i < h->examples; i++) {
        switch (h->kind) {
        case HEAD_LOSS_ROWS:
            add_row(out, gradients.data, outputs.data, outputs.columns, h, i);
            break;
        case HEAD_LOSS_COLUMNS:
            add_columns(out, gradients.data, outputs.data, outputs.columns, h, i);
            break;
        case HEAD_LOSS_SQUARES:
            add_square(out, gradients.data, outputs.data, h, i);
            break;
        case HEAD_LOSS_PAIRS:
            add_pair(out, gradients.data, outputs.data, h, i);
            break;
        }
    }
    return STATUS_OK;
}
