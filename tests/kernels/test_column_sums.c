/* Tests the gradient of a bias on the CPU. The sums must have the bits of a plain loop with the
 * documented order of additions, at every number of threads. */
#include "base/memory.h"
#include "kernels/cpu/division.h"
#include "kernels/fp8.h"
#include "tests/kernels/operation.h"

static const int thread_counts[] = {1, 2, 3, 5, 8, 17, 64};

/* Columns that are even and uneven for the threads, with and without a last partial vector. One
 * shape needs several rounds, and the last one is too wide for the scratch memory. */
static const struct shape {
    int64_t rows, columns, pad;
} shapes[] = {
    {1, 1, 0},     {63, 13, 3},   {64, 129, 0}, {65, 1, 2},        {129, 17, 0},
    {131, 770, 1}, {1024, 48, 0}, {1027, 7, 9}, {129, 2 * 768, 0}, {2 * 1280 + 67, 3073, 0},
    {67, 33001, 0}};

enum { SHAPES = COUNT(shapes), SEVERAL_ROUNDS = SHAPES - 2, TOO_WIDE = SHAPES - 1 };

/* Adds blocks of rows, then the sums of the blocks, then the value before. */
static float add_column(struct tensor dy, int64_t column, float before)
{
    float total = 0;
    for (int64_t first = 0; first < dy.rows; first += DIVISION_SUM_ROWS) {
        float part = 0;
        for (int64_t r = first; r < dy.rows && r < first + DIVISION_SUM_ROWS; r++) {
            part += (float)oracle_get(dy, r, column);
        }
        total += part;
    }
    return before + total;
}

struct operands {
    struct tensor x, dy, before;
    struct tensor exact[2]; /* added to `before`; overwritten */
};

static struct operands make_operands(enum dtype dtype, const struct shape *s)
{
    struct operands o = {
        .x = operation_random(dtype, s->rows, 1, 1, 1),
        .dy = operation_tensor(dtype, s->rows, s->columns, s->columns + s->pad),
        .before = operation_random(DTYPE_F32, 1, s->columns, 2, 1),
    };
    operation_fill(o.dy, 3, 1);
    for (int overwrite = 0; overwrite < 2; overwrite++) {
        o.exact[overwrite] = operation_tensor(DTYPE_F32, 1, s->columns, s->columns);
        for (int64_t c = 0; c < s->columns; c++) {
            float before = overwrite ? 0 : (float)oracle_get(o.before, 0, c);
            oracle_set(o.exact[overwrite], 0, c, add_column(o.dy, c, before));
        }
    }
    return o;
}

static void release_operands(struct operands *o)
{
    struct tensor *all[] = {&o->x, &o->dy, &o->before, &o->exact[0], &o->exact[1]};
    for (int i = 0; i < COUNT(all); i++) {
        operation_release(all[i]);
    }
}

static void check_sums(struct kernels *k, const struct operands *o, bool overwrite)
{
    struct tensor sums = operation_copy(o->before, DTYPE_F32);
    CHECK_OK(linear_backward_weight(k, tensor_absent(), sums, o->dy, o->x, overwrite));
    if (!operation_equal(sums, o->exact[overwrite])) {
        fprintf(stderr, "%s: [%d, %d]: the bits differ\n", kernels_description(k), (int)o->dy.rows,
                (int)o->dy.columns);
        exit(1);
    }
    operation_release(&sums);
}

static void test_set(struct device *dev, const char *set, const struct operands *o)
{
    const struct kernels_limits limits = operation_limits(o->dy.rows);
    for (int i = 0; i < COUNT(thread_counts); i++) {
        struct kernels *k = operation_context(dev, set, o->dy.dtype, thread_counts[i], &limits);
        if (k != NULL) {
            check_sums(k, o, false);
            check_sums(k, o, true);
        }
        CHECK_OK(kernels_destroy(&k));
    }
}

static void test_shape(struct device *dev, enum dtype dtype, const struct shape *s)
{
    if (operation_is_too_long(100 * s->rows * s->columns)) {
        return;
    }
    struct operands o = make_operands(dtype, s);
    for (int i = 0; i < OPERATION_VARIANTS; i++) {
        test_set(dev, operation_variants[i], &o);
    }
    release_operands(&o);
}

/* An FP8 layer with more inputs than rows: its operands fill their part of the scratch memory. */
enum { FP8_ROWS = 65, FP8_INPUTS = 112, FP8_OUTPUTS = 8192 };

/* The scratch memory has room for column sums while it has the operands of an FP8 layer. */
static void test_fp8_input(struct kernels *k, struct kernels *other)
{
    enum dtype dtype = kernels_dtype(k);
    struct tensor none = tensor_absent();
    struct tensor dy = operation_random(dtype, FP8_ROWS, FP8_OUTPUTS, 4, 1);
    struct tensor w = operation_tensor(dtype, FP8_OUTPUTS, FP8_INPUTS, FP8_INPUTS);
    struct tensor dx = operation_tensor(dtype, FP8_ROWS, FP8_INPUTS, FP8_INPUTS);
    struct tensor sums = operation_tensor(DTYPE_F32, 1, FP8_INPUTS, FP8_INPUTS);
    operation_set(w, 0.25);
    CHECK_OK(fp8_linear_backward_input(other, dx, (struct bias_gradient){sums, true}, none, dy, w,
                                       none, ACTIVATION_NONE, none));
    for (int64_t c = 0; c < FP8_INPUTS; c++) {
        CHECK((float)oracle_get(sums, 0, c) == add_column(dx, c, 0));
    }
    struct tensor *all[] = {&dy, &w, &dx, &sums};
    for (int i = 0; i < COUNT(all); i++) {
        operation_release(all[i]);
    }
}

/* Checks that `shapes` covers the cases that its comment lists. */
static void check_shapes(void)
{
    const struct shape *several = &shapes[SEVERAL_ROUNDS], *wide = &shapes[TOO_WIDE];
    int64_t most = division_sum_blocks(several->columns);
    CHECK(division_splits_sums(several->rows, several->columns, 128, 17));
    CHECK(several->rows > 2 * most * DIVISION_SUM_ROWS);
    CHECK(division_sum_blocks(wide->columns) < 1);
    for (int64_t unit = 32; unit <= 128; unit *= 2) {
        CHECK(division_splits_sums(FP8_ROWS, FP8_INPUTS, unit, 3));
    }
}

int main(void)
{
    struct device *dev = operation_device();
    check_shapes();
    for (int i = 0; i < SHAPES; i++) {
        test_shape(dev, DTYPE_F32, &shapes[i]);
        test_shape(dev, DTYPE_BF16, &shapes[i]);
    }
    operation_device_release(dev);
    struct kernels_limits limits = operation_limits(FP8_ROWS);
    limits.fp8_columns = FP8_OUTPUTS;
    limits.fp8_weights = (int64_t)FP8_INPUTS * FP8_OUTPUTS;
    limits.fp8_rowwise = true;
    operation_run_all(&limits, test_fp8_input);
    return 0;
}
