/* Tests the losses of fine-tuning heads against their definitions, and the gradients against finite
 * differences of the definitions. */
#include "base/memory.h"
#include "tests/kernels/operation.h"

enum { IGNORED = -100, EXAMPLES_MAX = 400, ELEMENTS_MAX = 20000, PROBES = 40 };

/* One call of head_loss_run, with its operands. */
struct head_case {
    struct head_loss loss;
    int64_t rows, columns;
    int32_t labels[2 * EXAMPLES_MAX], example_rows[EXAMPLES_MAX + 1];
    float targets[EXAMPLES_MAX];
};

static struct head_case test; /* too large for the stack */

/* ---- the definitions ---- */

/* Adds -log p(label) / divisor for `count` outputs that are `stride` apart. */
static void add_softmax(double *sums, const double *x, int64_t count, int64_t stride, int64_t label,
                        double divisor, bool *correct)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += exp(x[i * stride] - x[label * stride]);
        *correct = *correct && (i < label ? x[i * stride] < x[label * stride]
                                          : x[i * stride] <= x[label * stride]);
    }
    sums[HEAD_LOSS_VALUE] += log(sum) / divisor;
}

static void compute_example(double *sums, const double *x, const struct head_case *t, int64_t i)
{
    const struct head_loss *h = &t->loss;
    bool correct = true;
    switch (h->kind) {
    case HEAD_LOSS_ROWS:
        if (t->labels[i] == IGNORED) {
            return;
        }
        add_softmax(sums, x + i * t->columns, t->columns, 1, t->labels[i], 1, &correct);
        break;
    case HEAD_LOSS_COLUMNS:
        for (int64_t c = 0; c < t->columns; c++) {
            add_softmax(sums, x + t->example_rows[i] * t->columns + c,
                        t->example_rows[i + 1] - t->example_rows[i], t->columns,
                        t->labels[i * t->columns + c], (double)t->columns, &correct);
        }
        break;
    case HEAD_LOSS_SQUARES:
        sums[HEAD_LOSS_VALUE] += pow(x[i] - (double)t->targets[i], 2);
        sums[HEAD_LOSS_COUNT] += 1;
        sums[HEAD_LOSS_ABSOLUTE] += fabs(x[i] - (double)t->targets[i]);
        return;
    case HEAD_LOSS_PAIRS:
        sums[HEAD_LOSS_VALUE] +=
            log(1 + exp(x[2 * i + 1] - x[2 * i])) + h->center * pow(x[2 * i] + x[2 * i + 1], 2);
        sums[HEAD_LOSS_MARGIN] += x[2 * i] - x[2 * i + 1];
        sums[HEAD_LOSS_TOTAL] += x[2 * i] + x[2 * i + 1];
        sums[HEAD_LOSS_OUTPUTS] += 2;
        correct = x[2 * i] > x[2 * i + 1];
        break;
    }
    sums[HEAD_LOSS_COUNT] += 1;
    sums[HEAD_LOSS_CORRECT] += correct;
}

static void compute_sums(double sums[HEAD_LOSS_SUMS], const double *x, const struct head_case *t)
{
    memset(sums, 0, HEAD_LOSS_SUMS * sizeof *sums);
    for (int64_t i = 0; i < t->loss.examples; i++) {
        compute_example(sums, x, t, i);
    }
}

/* ---- comparisons ---- */

/* Compares the gradients of about PROBES outputs with central differences of the losses. */
static void check_gradients(struct tensor gradients, struct tensor outputs,
                            const struct head_case *t)
{
    static double x[ELEMENTS_MAX];
    const int64_t count = t->rows * t->columns;
    const double step = 1e-4;
    for (int64_t i = 0; i < count; i++) {
        x[i] = (double)((float *)outputs.data)[i];
    }
    for (int64_t i = 0; i < count; i += 1 + count / PROBES) {
        double above[HEAD_LOSS_SUMS], below[HEAD_LOSS_SUMS], before = x[i];
        x[i] = before + step;
        compute_sums(above, x, t);
        x[i] = before - step;
        compute_sums(below, x, t);
        x[i] = before;
        double expected = (above[HEAD_LOSS_VALUE] - below[HEAD_LOSS_VALUE]) / (2 * step);
        CHECK_NEAR((double)((float *)gradients.data)[i], expected, 1e-6 * (1 + fabs(expected)));
    }
}

/* Checks the results, and that both contexts give the same bits. */
static void check_case(struct kernels *k, struct kernels *other, double scale)
{
    const struct head_case *t = &test;
    static double x[ELEMENTS_MAX];
    double sums[HEAD_LOSS_SUMS], others[HEAD_LOSS_SUMS], expected[HEAD_LOSS_SUMS];
    struct tensor outputs = operation_random(DTYPE_F32, t->rows, t->columns, 1, scale);
    struct tensor gradients = operation_tensor(DTYPE_F32, t->rows, t->columns, t->columns);
    struct tensor again = operation_tensor(DTYPE_F32, t->rows, t->columns, t->columns);
    CHECK(t->rows * t->columns <= ELEMENTS_MAX && t->loss.examples <= EXAMPLES_MAX);
    if (t->columns > 1 && t->loss.kind == HEAD_LOSS_ROWS) { /* equal outputs in the first row */
        ((float *)outputs.data)[t->columns - 1] = ((float *)outputs.data)[0] = 9;
    }
    for (int64_t i = 0; i < t->rows * t->columns; i++) {
        x[i] = (double)((float *)outputs.data)[i];
    }
    CHECK_OK(head_loss_run(k, sums, gradients, outputs, &t->loss));
    CHECK_OK(head_loss_run(other, others, again, outputs, &t->loss));
    CHECK(memcmp(sums, others, sizeof sums) == 0 && operation_equal(gradients, again));
    compute_sums(expected, x, t);
    for (int i = 0; i < HEAD_LOSS_SUMS; i++) {
        CHECK_NEAR(sums[i], expected[i], 1e-12 * (1 + fabs(expected[HEAD_LOSS_VALUE])));
    }
    check_gradients(gradients, outputs, t);
    ((float *)outputs.data)[t->rows * t->columns - 1] = NAN;
    CHECK_OK(head_loss_run(k, sums, gradients, outputs, &t->loss));
    CHECK(isnan(sums[HEAD_LOSS_VALUE]));
    CHECK(isnan(((float *)gradients.data)[t->rows * t->columns - 1]));
    operation_release(&outputs);
    operation_release(&gradients);
    operation_release(&again);
}

/* ---- cases ---- */

static void set_case(enum head_loss_kind kind, int64_t examples, int64_t rows, int64_t columns)
{
    memset(&test, 0, sizeof test);
    test.rows = rows;
    test.columns = columns;
    test.loss = (struct head_loss){.kind = kind, .examples = examples, .ignored = IGNORED};
}

/* Ignores every third label except the last one. The first label belongs to the first of two equal
 * outputs. */
static void test_rows(struct kernels *k, struct kernels *other, int64_t rows, int64_t columns)
{
    set_case(HEAD_LOSS_ROWS, rows, rows, columns);
    for (int64_t i = 0; i < rows; i++) {
        bool ignored = i % 3 == 1 && i < rows - 1;
        test.labels[i] = ignored ? IGNORED : (int32_t)(i * 5 % columns);
    }
    test.loss.labels = test.labels;
    check_case(k, other, 3);
}

static void test_columns(struct kernels *k, struct kernels *other, int64_t examples,
                         int64_t columns)
{
    static const int32_t counts[] = {1, 2, 31, 32, 33, 70, 5};
    set_case(HEAD_LOSS_COLUMNS, examples, 0, columns);
    for (int64_t i = 0; i < examples; i++) {
        int32_t count = counts[i % COUNT(counts)];
        for (int64_t c = 0; c < columns; c++) {
            test.labels[i * columns + c] = (int32_t)((7 * i + 3 * c) % count);
        }
        test.example_rows[i + 1] = test.example_rows[i] + count;
    }
    test.rows = test.example_rows[examples];
    test.loss.labels = test.labels;
    test.loss.example_rows = test.example_rows;
    check_case(k, other, 3);
}

static void test_numbers(struct kernels *k, struct kernels *other, int64_t count)
{
    set_case(HEAD_LOSS_SQUARES, count, count, 1);
    for (int64_t i = 0; i < count; i++) {
        test.targets[i] = (float)(i % 11) - 5.25f;
    }
    test.loss.targets = test.targets;
    check_case(k, other, 3);
    set_case(HEAD_LOSS_PAIRS, count, 2 * count, 1);
    check_case(k, other, 3);
    test.loss.center = 0.01;
    check_case(k, other, 3);
}

/* Checks that the sums are 0 without examples, and that very unequal outputs do not overflow. */
static void test_limits(struct kernels *k)
{
    float outputs[4] = {3e38f, -3e38f, 0, 1}, gradients[4] = {7, 7, 7, 7};
    int32_t labels[2] = {1, 0};
    double sums[HEAD_LOSS_SUMS] = {7, 7, 7, 7, 7, 7};
    struct head_loss h = {.kind = HEAD_LOSS_ROWS, .labels = labels, .ignored = IGNORED};
    CHECK_OK(head_loss_run(k, sums, tensor_view(gradients, DTYPE_F32, 0, 2),
                           tensor_view(outputs, DTYPE_F32, 0, 2), &h));
    for (int i = 0; i < HEAD_LOSS_SUMS; i++) {
        CHECK(sums[i] == 0);
    }
    h.examples = 2;
    struct tensor to = tensor_view(gradients, DTYPE_F32, 2, 2),
                  from = tensor_view(outputs, DTYPE_F32, 2, 2);
    CHECK_OK(head_loss_run(k, sums, to, from, &h));
    CHECK(isfinite(sums[HEAD_LOSS_VALUE]) && sums[HEAD_LOSS_VALUE] > 5e38);
    CHECK(gradients[0] == 1 && gradients[1] == -1);
    h = (struct head_loss){.kind = HEAD_LOSS_PAIRS, .examples = 2};
    CHECK_OK(head_loss_run(k, sums, tensor_view(gradients, DTYPE_F32, 4, 1),
                           tensor_view(outputs, DTYPE_F32, 4, 1), &h));
    CHECK(sums[HEAD_LOSS_CORRECT] == 1 && gradients[0] == 0 && gradients[1] == 0);

    h.examples = 1;
    CHECK_FAILS(head_loss_run(k, sums, tensor_view(gradients, DTYPE_F32, 4, 1),
                              tensor_view(outputs, DTYPE_F32, 4, 1), &h),
                STATUS_INTERNAL, "1 examples for outputs [4, 1]");
    h = (struct head_loss){.kind = HEAD_LOSS_COLUMNS, .examples = 1, .labels = labels};
    CHECK_FAILS(head_loss_run(k, sums, to, from, &h), STATUS_INTERNAL, "example_rows is missing");
    h = (struct head_loss){.kind = HEAD_LOSS_SQUARES, .examples = 2};
    CHECK_FAILS(head_loss_run(k, sums, to, from, &h), STATUS_INTERNAL, "targets is missing");
}

static void test_all(struct kernels *k, struct kernels *other)
{
    static const int64_t shapes[][2] = {{1, 1}, {2, 2}, {7, 3}, {31, 32}, {13, 37}, {300, 5}};
    for (int i = 0; i < COUNT(shapes); i++) {
        test_rows(k, other, shapes[i][0], shapes[i][1]);
    }
    for (int64_t columns = 1; columns <= 2; columns++) {
        test_columns(k, other, 1, columns);
        test_columns(k, other, 7, columns);
        test_columns(k, other, columns == 1 ? 290 : 150, columns);
    }
    test_numbers(k, other, 1);
    test_numbers(k, other, 7);
    test_numbers(k, other, 389);
    test_limits(k);
}

int main(void)
{
    const struct kernels_limits limits = operation_limits(8000);
    operation_run_all(&limits, test_all);
    return 0;
}
