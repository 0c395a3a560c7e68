/* Checks and the call of the loss of a fine-tuning head. */
#include "kernels/checks.h"

static status check_arrays(const struct head_loss *h)
{
    switch (h->kind) {
    case HEAD_LOSS_COLUMNS:
        TRY(check_present("head_loss_run", "example_rows", h->example_rows));
        return check_present("head_loss_run", "labels", h->labels);
    case HEAD_LOSS_ROWS:
        return check_present("head_loss_run", "labels", h->labels);
    case HEAD_LOSS_SQUARES:
        return check_present("head_loss_run", "targets", h->targets);
    case HEAD_LOSS_PAIRS:
        return STATUS_OK;
    }
    RAISE(STATUS_INTERNAL, "head_loss_run: kind %d does not exist", (int)h->kind);
}

/* Returns the number of examples that these outputs must have; -1: any number. */
static int64_t count_examples(const struct head_loss *h, struct tensor outputs)
{
    switch (h->kind) {
    case HEAD_LOSS_COLUMNS:
        return -1;
    case HEAD_LOSS_PAIRS:
        return outputs.rows / 2;
    default:
        return outputs.rows;
    }
}

status head_loss_run(struct kernels *k, double *out, struct tensor gradients, struct tensor outputs,
                     const struct head_loss *h)
{
    bool is_softmax = h->kind == HEAD_LOSS_ROWS || h->kind == HEAD_LOSS_COLUMNS;
    int64_t expected = count_examples(h, outputs);
    double elements = (double)(outputs.rows * outputs.columns);
    PRESENT(out);
    SHAPE(gradients, DTYPE_F32, outputs.rows, outputs.columns);
    SHAPE(outputs, DTYPE_F32, gradients.rows, gradients.columns);
    TRY(check_arrays(h));
    REQUIRE(h->examples >= 0 && (expected < 0 || h->examples == expected) &&
                (h->kind != HEAD_LOSS_PAIRS || outputs.rows % 2 == 0) &&
                (is_softmax || outputs.columns == 1) && outputs.columns > 0 &&
                outputs.stride == outputs.columns && gradients.stride == outputs.columns,
            STATUS_INTERNAL,
            "head_loss_run: %" PRId64 " examples for outputs [%" PRId64 ", %" PRId64
            "] with strides %" PRId64 " and %" PRId64
            "; the kind of the loss needs other sizes, or rows without padding",
            h->examples, outputs.rows, outputs.columns, outputs.stride, gradients.stride);
    DISPATCH(k, head_loss_run, 10 * elements, 8 * elements, k, out, gradients, outputs, h);
}
