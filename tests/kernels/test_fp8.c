/* Tests the FP8 linear layers. A GEMM with the identity matrix shows how an operand is rounded: all
 * bf16 numbers, and the f32 numbers at which PyTorch's rounding changes (reference_fp8.py).
 * The other GEMMs are compared with linear_* of rounded operands. Both are repeated with row-wise
 * scales. */
#include "base/memory.h"
#include "kernels/fp8.h"
#include "tests/kernels/operation.h"
#include "tests/reference/fp8.inc"

enum { E4M3_CODES = sizeof e4m3_thresholds / 4, E5M2_CODES = sizeof e5m2_thresholds / 4 };
enum { WIDTH = 16, CAST_ROWS = 65536 / WIDTH };

/* ---- rounding ---- */
static double decode_fp8(int code, enum fp8_operand operand)
{
    int fraction_bits = operand == FP8_DY ? 2 : 3, bias = operand == FP8_DY ? 15 : 7;
    int exponent = code >> fraction_bits, fraction = code & ((1 << fraction_bits) - 1);
    return exponent == 0 ? ldexp(fraction, 1 - bias - fraction_bits)
                         : ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

/* Limits x to the largest number and rounds it as PyTorch does. */
static double round_reference(float x, enum fp8_operand operand)
{
    const uint32_t *thresholds = operand == FP8_DY ? e5m2_thresholds : e4m3_thresholds;
    int codes = operand == FP8_DY ? E5M2_CODES : E4M3_CODES, code = 0;
    float size = fabsf(x);
    uint32_t bits;
    memcpy(&bits, &size, sizeof bits);
    while (code < codes && thresholds[code] <= bits) {
        code++;
    }
    return isnan(x) ? NAN : copysign(decode_fp8(code, operand), x);
}

static float round_scaled(double x, double scale, enum fp8_operand operand)
{
    return (float)(round_reference((float)(x * scale), operand) / scale);
}

/* Returns a copy with rounded elements. */
static struct tensor make_rounded(struct tensor from, struct tensor scales,
                                  enum fp8_operand operand)
{
    struct tensor t = operation_tensor(from.dtype, from.rows, from.columns, from.columns);
    for (int64_t i = 0; i < t.rows; i++) {
        for (int64_t j = 0; j < t.columns; j++) {
            double scale = oracle_get(scales, operand, FP8_SCALE);
            oracle_set(t, i, j, (double)round_scaled(oracle_get(from, i, j), scale, operand));
        }
    }
    return t;
}

/* Returns the largest power of two p, up to 2^100, such that p * `largest` is at most 448. */
static double find_row_scale(double largest)
{
    double scale = largest > 0 ? 0x1p100 : 1;
    while (scale * largest > 448 && scale > 0x1p-100) {
        scale /= 2;
    }
    return scale;
}

/* Returns a copy in which each row, or each column, is rounded to E4M3 with its own scale. */
static struct tensor make_rowwise(struct tensor from, bool by_columns)
{
    struct tensor t = operation_tensor(from.dtype, from.rows, from.columns, from.columns);
    int64_t outer = by_columns ? t.columns : t.rows, inner = by_columns ? t.rows : t.columns;
    for (int64_t i = 0; i < outer; i++) {
        double largest = 0;
        for (int64_t j = 0; j < inner; j++) {
            double x = by_columns ? oracle_get(from, j, i) : oracle_get(from, i, j);
            largest = fmax(largest, fabs(x));
        }
        double scale = find_row_scale(largest);
        for (int64_t j = 0; j < inner; j++) {
            int64_t row = by_columns ? j : i, column = by_columns ? i : j;
            float rounded = round_scaled(oracle_get(from, row, column), scale, FP8_X);
            oracle_set(t, row, column, (double)rounded);
        }
    }
    return t;
}

static struct tensor make_scales(int x, int w, int dy)
{
    struct tensor scales = operation_tensor(DTYPE_F32, FP8_OPERANDS, 2, FP8_SCALES_STRIDE);
    const int exponents[FP8_OPERANDS] = {x, w, dy};
    for (int i = 0; i < FP8_OPERANDS; i++) {
        oracle_set(scales, i, FP8_SCALE, ldexp(1, exponents[i]));
        oracle_set(scales, i, FP8_RECIPROCAL, ldexp(1, -exponents[i]));
    }
    return scales;
}

static struct tensor make_maxima(void)
{
    struct tensor maxima = operation_tensor(DTYPE_F32, 1, FP8_OPERANDS, FP8_OPERANDS);
    operation_set(maxima, 0);
    return maxima;
}

static struct tensor make_identity(enum dtype dtype, int64_t size)
{
    struct tensor identity = operation_tensor(dtype, size, size, size);
    operation_set(identity, 0);
    for (int64_t i = 0; i < size; i++) {
        oracle_set(identity, i, i, 1);
    }
    return identity;
}

/* Rounds x by a GEMM with the identity matrix, as the operand x or dy. */
static void run_cast(struct kernels *k, struct tensor y, struct tensor x, struct tensor scales,
                     struct tensor maxima, enum fp8_operand operand)
{
    struct tensor none = tensor_absent(), identity = make_identity(x.dtype, WIDTH);
    if (operand == FP8_X) {
        CHECK_OK(
            fp8_linear_forward(k, y, none, maxima, x, identity, none, scales, ACTIVATION_NONE));
    } else {
        CHECK_OK(fp8_linear_backward_input(k, y, (struct bias_gradient){0}, maxima, x, identity,
                                           scales, ACTIVATION_NONE, none));
    }
    operation_release(&identity);
}

static void check_number(struct kernels *k, double from, double got, double expected)
{
    if (got != expected) {
        fprintf(stderr, "%s: %a became %a, not %a\n", kernels_description(k), from, got, expected);
        exit(1);
    }
}

static void check_cast(struct kernels *k, struct tensor x, int exponent, enum fp8_operand operand)
{
    struct tensor y = operation_tensor(x.dtype, x.rows, x.columns, x.columns);
    struct tensor scales = make_scales(exponent, 0, exponent), maxima = make_maxima();
    double largest = 0;
    run_cast(k, y, x, scales, maxima, operand);
    for (int64_t i = 0; i < x.rows; i++) {
        for (int64_t j = 0; j < x.columns; j++) {
            double from = oracle_get(x, i, j), got = oracle_get(y, i, j);
            float expected = round_scaled(from, ldexp(1, exponent), operand);
            largest = fmax(largest, fabs(from));
            check_number(k, from, got, (double)expected);
        }
    }
    CHECK(oracle_get(maxima, 0, operand) == largest);
    operation_release(&y);
    operation_release(&scales);
    operation_release(&maxima);
}

/* Fills x with all finite bf16 numbers, and with zero instead of infinity and NaN. */
static void fill_bf16(struct tensor x)
{
    for (int64_t i = 0; i < 65536; i++) {
        float value = bf16_to_f32((bf16)i);
        oracle_set(x, i / WIDTH, i % WIDTH, isfinite(value) ? (double)value : 0);
    }
}

/* Fills x with numbers near the thresholds, and with other numbers of all sizes. */
static void fill_f32(struct tensor x, const uint32_t *thresholds, int count)
{
    uint64_t key = random_key(1, RANDOM_TEST, 0, 0);
    for (int64_t i = 0; i < 65536; i++) {
        uint32_t bits = (uint32_t)(random_uniform(key, (uint64_t)i) * 0x7f800000);
        if (i < 6 * count) {
            bits = thresholds[i / 6] + (uint32_t)(i % 3) - 1;
        }
        float value;
        memcpy(&value, &bits, sizeof value);
        oracle_set(x, i / WIDTH, i % WIDTH, i / 3 % 2 == 0 ? (double)value : -(double)value);
    }
}

static void test_cast(struct kernels *k)
{
    struct tensor x = operation_tensor(kernels_dtype(k), CAST_ROWS, WIDTH, WIDTH);
    fill_bf16(x);
    check_cast(k, x, 0, FP8_X);
    check_cast(k, x, 0, FP8_DY);
    if (kernels_dtype(k) == DTYPE_F32) {
        fill_f32(x, e4m3_thresholds, E4M3_CODES);
        check_cast(k, x, 0, FP8_X);
        fill_f32(x, e5m2_thresholds, E5M2_CODES);
        check_cast(k, x, 0, FP8_DY);
    }
    operation_fill(x, 3, 0.02);
    check_cast(k, x, 13, FP8_X);
    check_cast(k, x, 19, FP8_DY);
    operation_fill(x, 4, 3000);
    check_cast(k, x, -4, FP8_X);
    operation_fill(x, 5, 1e37); /* the product with the scale exceeds f32 */
    check_cast(k, x, 13, FP8_X);
    check_cast(k, x, 19, FP8_DY);
    operation_release(&x);
}

/* An element that is infinite or NaN becomes NaN, and the maximum is its magnitude. */
static void check_not_finite(struct kernels *k, struct tensor y, struct tensor x,
                             struct tensor scales, struct tensor maxima, double value)
{
    oracle_set(x, 33, 5, value);
    for (int operand = FP8_X; operand <= FP8_DY; operand += FP8_DY - FP8_X) {
        run_cast(k, y, x, scales, maxima, (enum fp8_operand)operand);
        double maximum = oracle_get(maxima, 0, operand);
        CHECK(isnan(value) ? isnan(maximum) : maximum == INFINITY);
        for (int64_t i = 0; i < y.rows; i++) {
            CHECK((bool)isnan(oracle_get(y, i, 5)) == (i == 33));
        }
    }
}

/* A maximum is never lowered. */
static void test_not_finite_and_maxima(struct kernels *k)
{
    struct tensor x = operation_random(kernels_dtype(k), 40, WIDTH, 1, 1.0);
    struct tensor y = operation_tensor(kernels_dtype(k), 40, WIDTH, WIDTH);
    struct tensor scales = make_scales(0, 0, 0), maxima = make_maxima();
    operation_set(maxima, 1e6);
    for (int operand = FP8_X; operand <= FP8_DY; operand += FP8_DY - FP8_X) {
        run_cast(k, y, x, scales, maxima, (enum fp8_operand)operand);
        CHECK(oracle_get(maxima, 0, operand) == 1e6);
    }
    check_not_finite(k, y, x, scales, maxima, INFINITY);
    check_not_finite(k, y, x, scales, maxima, -INFINITY);
    check_not_finite(k, y, x, scales, maxima, NAN);
    operation_release(&x);
    operation_release(&y);
    operation_release(&scales);
    operation_release(&maxima);
}

/* ---- GEMMs ---- */

struct shape {
    int64_t rows, inner, outputs; /* N, K, M */
    int64_t pad;                  /* elements between the rows of x and dy */
};

static const struct shape shapes[] = {
    {1, 16, 16, 0}, {7, 48, 32, 8}, {33, 80, 144, 3}, {130, 128, 64, 0}, {257, 64, 208, 16},
};

struct operands {
    struct tensor x, w, bias, dy, saved; /* saved: of x = act(u) */
};

struct results {
    struct tensor y, saved, dx, dw, dbias, maxima;
    struct tensor dx_sums; /* sums of the columns of dx */
};

static struct operands make_operands(struct kernels *k, const struct shape *s)
{
    enum dtype dtype = kernels_dtype(k);
    struct operands o = {
        .x = operation_tensor(dtype, s->rows, s->inner, s->inner + s->pad),
        .w = operation_random(dtype, s->outputs, s->inner, 2, 0.05),
        .bias = operation_random(DTYPE_F32, 1, s->outputs, 3, 0.5),
        .dy = operation_tensor(dtype, s->rows, s->outputs, s->outputs + s->pad),
        .saved = operation_random(dtype, s->rows, s->inner, 5, 1.0),
    };
    operation_fill(o.x, 1, 2.0);
    operation_fill(o.dy, 4, 0.01);
    for (int64_t i = 0; i < s->outputs; i++) { /* cuBLASLt reads it in the dtype of y */
        oracle_set(o.bias, 0, i, bf16_to_f32(f32_to_bf16((float)oracle_get(o.bias, 0, i))));
    }
    return o;
}

static void release_operands(struct operands *o)
{
    struct tensor *const all[] = {&o->x, &o->w, &o->bias, &o->dy, &o->saved};
    for (int i = 0; i < COUNT(all); i++) {
        operation_release(all[i]);
    }
}

static struct results make_results(struct kernels *k, const struct shape *s)
{
    enum dtype dtype = kernels_dtype(k);
    return (struct results){
        .y = operation_tensor(dtype, s->rows, s->outputs, s->outputs),
        .saved = operation_tensor(dtype, s->rows, s->outputs, s->outputs),
        .dx = operation_tensor(dtype, s->rows, s->inner, s->inner),
        .dw = operation_random(DTYPE_F32, s->outputs, s->inner, 6, 0.01),
        .dbias = operation_random(DTYPE_F32, 1, s->outputs, 7, 0.01),
        .dx_sums = operation_random(DTYPE_F32, 1, s->inner, 8, 0.01),
        .maxima = make_maxima(),
    };
}

/* Row-wise, the operations do not measure. */
static struct results make_rowwise_results(struct kernels *k, const struct shape *s)
{
    struct results r = make_results(k, s);
    operation_release(&r.maxima);
    return r;
}

static void release_results(struct results *r)
{
    struct tensor *const all[] = {&r->y,     &r->saved,   &r->dx,    &r->dw,
                                  &r->dbias, &r->dx_sums, &r->maxima};
    for (int i = 0; i < COUNT(all); i++) {
        operation_release(all[i]);
    }
}

static void run_fp8(struct kernels *k, struct results *r, const struct operands *o,
                    struct tensor scales, enum activation act, bool overwrite)
{
    bool activated = act != ACTIVATION_NONE;
    struct tensor none = tensor_absent();
    CHECK_OK(fp8_linear_forward(k, r->y, activated ? r->saved : none, r->maxima, o->x, o->w,
                                o->bias, scales, act));
    CHECK_OK(fp8_linear_backward_input(k, r->dx, (struct bias_gradient){r->dx_sums, overwrite},
                                       r->maxima, o->dy, o->w, scales, act,
                                       activated ? o->saved : none));
    CHECK_OK(
        fp8_linear_backward_weight(k, r->dw, r->dbias, r->maxima, o->dy, o->x, scales, overwrite));
}

/* Runs linear_* with rounded operands. The gradient of the bias uses dy without rounding. */
static void run_expected(struct kernels *k, struct results *r, const struct operands *o,
                         struct tensor scales, enum activation act, bool overwrite)
{
    bool activated = act != ACTIVATION_NONE, rounds = scales.data != NULL;
    struct tensor none = tensor_absent();
    struct tensor x = rounds ? make_rounded(o->x, scales, FP8_X) : o->x;
    struct tensor w = rounds ? make_rounded(o->w, scales, FP8_W) : o->w;
    struct tensor dy = rounds ? make_rounded(o->dy, scales, FP8_DY) : o->dy;
    CHECK_OK(linear_forward(k, r->y, activated ? r->saved : none, x, w, o->bias, act));
    CHECK_OK(linear_backward_input(k, r->dx, (struct bias_gradient){r->dx_sums, overwrite}, dy, w,
                                   act, activated ? o->saved : none));
    CHECK_OK(linear_backward_weight(k, none, r->dbias, o->dy, o->x, overwrite));
    CHECK_OK(linear_backward_weight(k, r->dw, none, dy, x, overwrite));
    if (rounds) {
        operation_release(&x);
        operation_release(&w);
        operation_release(&dy);
    }
}

/* Returns the tolerance of a sum of `terms` products, as a fraction of the largest sum. A CPU gives
 * the same bits as linear_*. The tensor cores of Hopper cut every addend to 13 fraction bits of the
 * largest one (kernels/fp8.h). Therefore the error of each addend is at most 2^-13 of about the
 * largest sum. The tolerance is the root sum square of these errors, because they are
 * independent. */
static double get_tolerance(int64_t terms)
{
    return OPERATION_ON_GPU ? 0x1p-13 * sqrt((double)terms) : 0;
}

/* On a GPU the results may also be rounded to another bf16 number. */
static void check_results(struct kernels *k, const struct results *got,
                          const struct results *expected, const struct operands *o,
                          enum activation act)
{
    bool activated = act != ACTIVATION_NONE;
    double rounded = OPERATION_ON_GPU && kernels_dtype(k) == DTYPE_BF16 ? 0x1p-7 : 0;
    double y = get_tolerance(o->x.columns) + rounded, dx = get_tolerance(o->dy.columns) + rounded;
    operation_check_error("y", k, operation_difference(got->y, expected->y), y);
    if (activated) {
        operation_check_error("saved", k, operation_difference(got->saved, expected->saved), y);
    }
    operation_check_error("dx", k, operation_difference(got->dx, expected->dx), dx);
    operation_check_error("dw", k, operation_difference(got->dw, expected->dw),
                          get_tolerance(o->x.rows));
    CHECK(operation_equal(got->dbias, expected->dbias));
    CHECK(OPERATION_ON_GPU || operation_equal(got->dx_sums, expected->dx_sums));
    if (got->maxima.data == NULL) {
        return;
    }
    CHECK(oracle_get(got->maxima, 0, FP8_X) == oracle_largest(o->x));
    CHECK(oracle_get(got->maxima, 0, FP8_W) == oracle_largest(o->w));
    CHECK(oracle_get(got->maxima, 0, FP8_DY) == oracle_largest(o->dy));
}

static void check_equal(const struct results *a, const struct results *b)
{
    CHECK(operation_equal(a->y, b->y) && operation_equal(a->dx, b->dx));
    CHECK(operation_equal(a->dw, b->dw) && operation_equal(a->dbias, b->dbias));
    CHECK(operation_equal(a->dx_sums, b->dx_sums));
    CHECK(a->maxima.data == NULL || operation_equal(a->maxima, b->maxima));
}

static void test_shape(struct kernels *k, struct kernels *other, const struct shape *s,
                       struct tensor scales, enum activation act, bool overwrite)
{
    struct operands o = make_operands(k, s);
    struct results got = make_results(k, s), repeated = make_results(k, s);
    struct results threads = make_results(k, s), expected = make_results(k, s);
    run_fp8(k, &got, &o, scales, act, overwrite);
    run_fp8(k, &repeated, &o, scales, act, overwrite);
    run_fp8(other, &threads, &o, scales, act, overwrite);
    run_expected(k, &expected, &o, scales, act, overwrite);
    check_results(k, &got, &expected, &o, act);
    operation_set(expected.dx_sums, 0);
    struct results first = make_results(k, s);
    operation_check_column_sums("sums of dx", k, got.dx_sums,
                                overwrite ? expected.dx_sums : first.dx_sums, got.dx);
    release_results(&first);
    check_equal(&got, &repeated);
    check_equal(&got, &threads);
    /* with a frozen matrix */
    struct tensor none = tensor_absent();
    operation_set(repeated.maxima, 0);
    CHECK_OK(fp8_linear_backward_weight(k, none, repeated.dbias, repeated.maxima, o.dy, o.x, scales,
                                        true));
    CHECK(oracle_get(repeated.maxima, 0, FP8_DY) == oracle_largest(o.dy));
    CHECK_OK(linear_backward_weight(k, none, threads.dbias, o.dy, o.x, true));
    CHECK(operation_equal(repeated.dbias, threads.dbias));
    release_operands(&o);
    release_results(&got);
    release_results(&repeated);
    release_results(&threads);
    release_results(&expected);
}

/* The operands are neither rounded nor measured without scales and maxima. On a GPU the results of
 * both calls have other addresses, and cuBLASLt may choose another algorithm for them. */
static void test_plain(struct kernels *k)
{
    const struct shape s = {9, 32, 48, 0};
    struct operands o = make_operands(k, &s);
    struct results got = make_results(k, &s), expected = make_results(k, &s);
    struct tensor none = tensor_absent();
    operation_release(&got.maxima);
    run_fp8(k, &got, &o, none, ACTIVATION_NONE, true);
    run_expected(k, &expected, &o, none, ACTIVATION_NONE, true);
    double sums = OPERATION_ON_GPU ? 3e-6 : 0;
    double rounded = sums > 0 && kernels_dtype(k) == DTYPE_BF16 ? 0x1p-7 : sums;
    operation_check_error("y", k, operation_difference(got.y, expected.y), rounded);
    operation_check_error("dx", k, operation_difference(got.dx, expected.dx), rounded);
    operation_check_error("dw", k, operation_difference(got.dw, expected.dw), sums);
    operation_check_error("dbias", k, operation_difference(got.dbias, expected.dbias), sums);
    release_operands(&o);
    release_results(&got);
    release_results(&expected);
}

static void test_refused(struct kernels *k, int64_t inner, int64_t outputs)
{
    const struct shape s = {4, inner, outputs, 0};
    struct operands o = make_operands(k, &s);
    struct results r = make_results(k, &s);
    struct tensor none = tensor_absent(), scales = make_scales(0, 0, 0);
    CHECK_FAILS(fp8_linear_forward(k, r.y, none, none, o.x, o.w, none, scales, ACTIVATION_NONE),
                STATUS_INTERNAL, "the sizes of w must be multiples of");
    operation_release(&scales);
    release_operands(&o);
    release_results(&r);
}

/* An unknown activation, and factors that are not aligned, which cuBLASLt refuses. */
static void test_refused_arguments(struct kernels *k)
{
    const struct shape s = {4, 16, 16, 0};
    struct operands o = make_operands(k, &s);
    struct results r = make_results(k, &s);
    struct tensor none = tensor_absent(), scales = make_scales(0, 0, 0), misaligned = scales;
    misaligned.data = (float *)scales.data + 1;
    CHECK_FAILS(fp8_linear_forward(k, r.y, none, none, o.x, o.w, none, misaligned, ACTIVATION_NONE),
                STATUS_INTERNAL, "the rows of scales are not aligned to 16 bytes");
    misaligned.data = scales.data;
    misaligned.stride = 2;
    CHECK_FAILS(fp8_linear_backward_input(k, r.dx, (struct bias_gradient){0}, none, o.dy, o.w,
                                          misaligned, ACTIVATION_NONE, none),
                STATUS_INTERNAL, "the rows of scales are not aligned to 16 bytes");
    CHECK_FAILS(fp8_linear_forward(k, r.y, none, none, o.x, o.w, none, scales, (enum activation)99),
                STATUS_INTERNAL, "fp8_linear_forward: activation");
    operation_release(&scales);
    release_operands(&o);
    release_results(&r);
}

static void test_all(struct kernels *k, struct kernels *other)
{
    if (!OPERATION_THREAD_SANITIZER) { /* test_shape runs the same kernels */
        test_cast(k);
    }
    test_not_finite_and_maxima(k);
    struct tensor scales = make_scales(5, 12, 21), none = tensor_absent();
    for (int i = 0; i < COUNT(shapes); i++) {
        if (OPERATION_THREAD_SANITIZER && shapes[i].rows > 40) {
            continue;
        }
        test_shape(k, other, &shapes[i], scales, ACTIVATION_NONE, false);
        test_shape(k, other, &shapes[i], scales, ACTIVATION_GELU_TANH, true);
        test_shape(k, other, &shapes[i], none, ACTIVATION_NONE, true);
    }
    operation_release(&scales);
    test_plain(k);
    test_refused(k, 24, 16);
    test_refused(k, 16, 8);
    test_refused(k, 16, 224);
    test_refused_arguments(k);
}

/* ---- row-wise scales ---- */

/* Multiplies by the identity: y is x with rounded rows, dx is w with rounded columns. */
static void check_rowwise_cast(struct kernels *k, struct tensor x, bool by_columns)
{
    struct tensor none = tensor_absent(), expected = make_rowwise(x, by_columns);
    struct tensor y = operation_tensor(x.dtype, x.rows, x.columns, x.columns);
    struct tensor identity = make_identity(x.dtype, by_columns ? x.rows : x.columns);
    if (by_columns) {
        CHECK_OK(fp8_linear_backward_input(k, y, (struct bias_gradient){0}, none, identity, x, none,
                                           ACTIVATION_NONE, none));
    } else {
        CHECK_OK(fp8_linear_forward(k, y, none, none, x, identity, none, none, ACTIVATION_NONE));
    }
    for (int64_t i = 0; i < x.rows * x.columns; i++) { /* -0 may become 0 */
        int64_t row = i / x.columns, column = i % x.columns;
        check_number(k, oracle_get(x, row, column), oracle_get(y, row, column),
                     oracle_get(expected, row, column));
    }
    operation_release(&expected);
    operation_release(&y);
    operation_release(&identity);
}

/* Fills each row with zeros and numbers of many sizes, some of which become subnormal. The largest
 * one is 448, 449 or 450 times a power of two. Row 3 is zero. */
static void fill_magnitudes(struct tensor x)
{
    uint64_t key = random_key(2, RANDOM_TEST, 0, 0);
    for (int64_t i = 0; i < x.rows * x.columns; i++) {
        int64_t row = i / x.columns, column = i % x.columns;
        int exponent = (int)(7 * (row % 32)) - 120;
        double number = 448 * random_uniform(key, (uint64_t)i) - 224;
        number = column == row % x.columns ? 448 + (double)(row % 3)
                                           : ldexp(number, -(int)(column % 24));
        oracle_set(x, row, column, column % 5 == 4 || row == 3 ? 0 : ldexp(number, exponent));
    }
}

/* Exchanges rows and columns. */
static struct tensor make_transposed(struct tensor x)
{
    struct tensor t = operation_tensor(x.dtype, x.columns, x.rows, x.rows);
    for (int64_t i = 0; i < x.rows * x.columns; i++) {
        oracle_set(t, i % x.columns, i / x.columns, oracle_get(x, i / x.columns, i % x.columns));
    }
    return t;
}

static void test_rowwise_cast(struct kernels *k)
{
    enum { ROWS = 208, COLUMNS = 64 };
    struct tensor x = operation_tensor(kernels_dtype(k), CAST_ROWS, WIDTH, WIDTH);
    fill_bf16(x); /* a row has 16 neighbors */
    check_rowwise_cast(k, x, false);
    operation_release(&x);
    x = operation_tensor(kernels_dtype(k), ROWS, COLUMNS, COLUMNS);
    fill_magnitudes(x);
    struct tensor transposed = make_transposed(x);
    check_rowwise_cast(k, x, false);
    check_rowwise_cast(k, transposed, true);
    operation_release(&x);
    operation_release(&transposed);
}

/* A number that is infinite or NaN makes exactly the sums NaN that contain it. */
static void test_rowwise_not_finite(struct kernels *k)
{
    static const double values[] = {INFINITY, -INFINITY, NAN};
    struct tensor none = tensor_absent(), w = make_identity(kernels_dtype(k), WIDTH);
    struct tensor y = operation_tensor(kernels_dtype(k), 40, WIDTH, WIDTH);
    struct tensor dw = operation_tensor(DTYPE_F32, WIDTH, WIDTH, WIDTH);
    for (int v = 0; v < COUNT(values); v++) {
        struct tensor x = operation_random(kernels_dtype(k), 40, WIDTH, 1, 1.0);
        oracle_set(x, 33, 5, values[v]);
        CHECK_OK(fp8_linear_forward(k, y, none, none, x, w, none, none, ACTIVATION_NONE));
        CHECK_OK(fp8_linear_backward_weight(k, dw, none, none, y, x, none, true));
        for (int64_t i = 0; i < y.rows; i++) {
            CHECK((bool)isnan(oracle_get(y, i, 3)) == (i == 33));
        }
        operation_set(y, 1);
        CHECK_OK(fp8_linear_backward_weight(k, dw, none, none, y, x, none, true));
        for (int64_t i = 0; i < dw.columns; i++) {
            CHECK((bool)isnan(oracle_get(dw, 3, i)) == (i == 5));
        }
        operation_release(&x);
    }
    operation_release(&w);
    operation_release(&y);
    operation_release(&dw);
}

/* Runs linear_* with operands that are rounded by rows or columns (kernels/fp8.h). */
static void run_rowwise_expected(struct kernels *k, struct results *r, const struct operands *o,
                                 enum activation act, bool overwrite)
{
    bool activated = act != ACTIVATION_NONE;
    struct tensor none = tensor_absent();
    struct tensor x = make_rowwise(o->x, false), w = make_rowwise(o->w, false);
    struct tensor dy = make_rowwise(o->dy, false), w_columns = make_rowwise(o->w, true);
    struct tensor x_columns = make_rowwise(o->x, true), dy_columns = make_rowwise(o->dy, true);
    CHECK_OK(linear_forward(k, r->y, activated ? r->saved : none, x, w, o->bias, act));
    CHECK_OK(linear_backward_input(k, r->dx, (struct bias_gradient){r->dx_sums, overwrite}, dy,
                                   w_columns, act, activated ? o->saved : none));
    CHECK_OK(linear_backward_weight(k, none, r->dbias, o->dy, o->x, overwrite));
    CHECK_OK(linear_backward_weight(k, r->dw, none, dy_columns, x_columns, overwrite));
    struct tensor *const all[] = {&x, &w, &dy, &w_columns, &x_columns, &dy_columns};
    for (int i = 0; i < COUNT(all); i++) {
        operation_release(all[i]);
    }
}

static void test_rowwise_shape(struct kernels *k, struct kernels *other, const struct shape *s,
                               enum activation act, bool overwrite)
{
    struct operands o = make_operands(k, s);
    struct results got = make_rowwise_results(k, s), repeated = make_rowwise_results(k, s);
    struct results threads = make_rowwise_results(k, s), expected = make_rowwise_results(k, s);
    struct tensor none = tensor_absent();
    for (int64_t row = 0; row < o.x.rows; row += 3) { /* rows of different sizes */
        oracle_set(o.x, row, row % o.x.columns, ldexp(1.7, (int)(row % 16)));
        oracle_set(o.dy, row, row % o.dy.columns, ldexp(-1.9, (int)(row % 9)));
    }
    run_fp8(k, &got, &o, none, act, overwrite);
    run_fp8(k, &repeated, &o, none, act, overwrite);
    run_fp8(other, &threads, &o, none, act, overwrite);
    run_rowwise_expected(k, &expected, &o, act, overwrite);
    check_results(k, &got, &expected, &o, act);
    check_equal(&got, &repeated);
    check_equal(&got, &threads);
    CHECK_OK(fp8_linear_backward_weight(k, none, repeated.dbias, none, o.dy, o.x, none, true));
    CHECK_OK(linear_backward_weight(k, none, threads.dbias, o.dy, o.x, true));
    CHECK(operation_equal(repeated.dbias, threads.dbias));
    release_operands(&o);
    release_results(&got);
    release_results(&repeated);
    release_results(&threads);
    release_results(&expected);
}

/* Scales and maxima belong to delayed scaling. */
static void test_rowwise_refused(struct kernels *k)
{
    const struct shape s = {4, 16, 16, 0};
    struct operands o = make_operands(k, &s);
    struct results r = make_results(k, &s);
    struct tensor none = tensor_absent(), scales = make_scales(0, 0, 0);
    CHECK_FAILS(fp8_linear_forward(k, r.y, none, none, o.x, o.w, none, scales, ACTIVATION_NONE),
                STATUS_INTERNAL, "row-wise scales are computed from the operands");
    CHECK_FAILS(fp8_linear_forward(k, r.y, none, r.maxima, o.x, o.w, none, none, ACTIVATION_NONE),
                STATUS_INTERNAL, "row-wise scales are computed from the operands");
    operation_release(&scales);
    release_operands(&o);
    release_results(&r);
}

static void test_rowwise(struct kernels *k, struct kernels *other)
{
    if (!OPERATION_THREAD_SANITIZER) { /* test_rowwise_shape runs the same kernels */
        test_rowwise_cast(k);
    }
    test_rowwise_not_finite(k);
    const struct shape many = {1100, 32, 16, 0}; /* columns in parts of several rows a thread */
    test_rowwise_shape(k, other, &many, ACTIVATION_NONE, true);
    for (int i = 0; i < COUNT(shapes); i++) {
        if (OPERATION_THREAD_SANITIZER && shapes[i].rows > 40) {
            continue;
        }
        test_rowwise_shape(k, other, &shapes[i], ACTIVATION_NONE, false);
        test_rowwise_shape(k, other, &shapes[i], ACTIVATION_GELU_TANH, true);
    }
    test_rowwise_refused(k);
}

int main(void)
{
    const struct kernels_limits limits = {.rows = CAST_ROWS,
                                          .width = 208,
                                          .inner = 208,
                                          .heads = 1,
                                          .head_width = 64,
                                          .sequence = 64,
                                          .vocabulary = 64,
                                          .training = true,
                                          .fp8_columns = 208,
                                          .fp8_weights = 64 * 208};
    struct kernels_limits rowwise = limits;
    rowwise.fp8_rowwise = true;
    operation_run_all(&limits, test_all);
    operation_run_all(&rowwise, test_rowwise);
    return 0;
}
