/* Tests the linear layer, forward and backward, against the oracle. The bits must not depend on the
 * number of threads and must be the same in repeated calls. */
#include "base/memory.h"
#include "tests/kernels/operation.h"

struct shape {
    int64_t rows, inner, outputs; /* N, K, M */
    int64_t pad;                  /* elements between the rows of x, y, dx and dy */
};

static const struct shape shapes[] = {
    {1, 1, 1, 0},    {1, 7, 5, 0},     {3, 1, 2, 3},      {2, 16, 1, 0},     {17, 31, 13, 0},
    {67, 97, 33, 5}, {128, 64, 48, 0}, {130, 128, 96, 8}, {257, 96, 384, 0}, {64, 515, 129, 0},
    {70, 1, 449, 3}, {5, 131, 29, 1},  {16, 67, 43, 0},
};

enum { SHAPES = COUNT(shapes) };

struct operands {
    struct tensor x, w, bias, dy, pre_x; /* pre_x: the pre-activation of x */
};

struct results {
    struct tensor y, saved, dx, dw, dbias; /* saved of the oracle: the pre-activation */
    struct tensor dx_sums; /* gradient of the bias of the layer that computed pre_x */
};

static struct tensor make_padded(enum dtype dtype, int64_t rows, int64_t columns, int64_t pad,
                                 uint64_t seed, double scale)
{
    struct tensor t = operation_tensor(dtype, rows, columns, columns + pad);
    operation_fill(t, seed, scale);
    return t;
}

#define FUNCTION_ERROR 0x1p-20 /* absolute, of tanh, exp and erf */

/* Creates the bias. cuBLASLt reads it in the dtype of y, so that it must be exact in bf16. */
static struct tensor make_bias(enum dtype dtype, const struct shape *s)
{
    struct tensor bias = operation_random(DTYPE_F32, 1, s->outputs, 3, 0.5);
    for (int64_t i = 0; OPERATION_ON_GPU && dtype == DTYPE_BF16 && i < s->outputs; i++) {
        oracle_set(bias, 0, i, bf16_to_f32(f32_to_bf16((float)oracle_get(bias, 0, i))));
    }
    return bias;
}

static struct operands make_operands(enum dtype dtype, const struct shape *s)
{
    double scale = 1.0 / sqrt((double)s->inner);
    return (struct operands){
        .x = make_padded(dtype, s->rows, s->inner, s->pad, 1, 1.0),
        .w = operation_random(dtype, s->outputs, s->inner, 2, scale),
        .bias = make_bias(dtype, s),
        .dy = make_padded(dtype, s->rows, s->outputs, s->pad, 4, 1.0),
        .pre_x = operation_random(dtype, s->rows, s->inner, 5, 1.5),
    };
}

static void release_operands(struct operands *o)
{
    operation_release(&o->x);
    operation_release(&o->w);
    operation_release(&o->bias);
    operation_release(&o->dy);
    operation_release(&o->pre_x);
}

/* Creates the results. Parameter gradients are not zero, because the operation adds to them. */
static struct results make_results(enum dtype dtype, enum dtype sums, const struct shape *s,
                                   bool with_saved)
{
    struct results r = {
        .y = operation_tensor(dtype, s->rows, s->outputs, s->outputs + s->pad),
        .saved =
            with_saved ? operation_tensor(dtype, s->rows, s->outputs, s->outputs) : tensor_absent(),
        .dx = operation_tensor(dtype, s->rows, s->inner, s->inner + s->pad),
        .dw = operation_random(sums, s->outputs, s->inner, 6, 1.0),
        .dbias = operation_random(sums, 1, s->outputs, 7, 1.0),
        .dx_sums = operation_random(sums, 1, s->inner, 8, 1.0),
    };
    operation_set(r.y, NAN);
    operation_set(r.dx, NAN);
    if (with_saved) {
        operation_set(r.saved, NAN);
    }
    return r;
}

static void release_results(struct results *r)
{
    operation_release(&r->y);
    operation_release(&r->saved);
    operation_release(&r->dx);
    operation_release(&r->dw);
    operation_release(&r->dbias);
    operation_release(&r->dx_sums);
}

/* Sets the parameter gradients. With overwrite, the previous values must not affect the result. */
static void set_parameter_gradients(struct results *r, double value)
{
    operation_set(r->dw, value);
    operation_set(r->dbias, value);
    operation_set(r->dx_sums, value);
}

/* Applies an activation by a GEMM with the identity matrix. Returns the saved data, and the result
 * in *result unless it is NULL. */
static struct tensor make_saved(struct kernels *k, struct tensor values, enum activation act,
                                struct tensor *result)
{
    if (act == ACTIVATION_NONE) {
        return tensor_absent();
    }
    int64_t n = values.columns;
    struct tensor identity = operation_tensor(values.dtype, n, n, n);
    struct tensor saved = operation_tensor(values.dtype, values.rows, n, n);
    struct tensor y = operation_tensor(values.dtype, values.rows, n, n);
    operation_set(identity, 0);
    for (int64_t i = 0; i < n; i++) {
        oracle_set(identity, i, i, 1);
    }
    CHECK_OK(linear_forward(k, y, saved, values, identity, tensor_absent(), act));
    operation_release(&identity);
    if (result == NULL) {
        operation_release(&y);
    } else {
        *result = y;
    }
    return saved;
}

static void run_linear(struct kernels *k, struct results *r, const struct operands *o,
                       enum activation act, bool overwrite)
{
    CHECK_OK(linear_forward(k, r->y, r->saved, o->x, o->w, o->bias, act));
    struct tensor saved = make_saved(k, o->pre_x, act, NULL);
    CHECK_OK(linear_backward_input(k, r->dx, (struct bias_gradient){r->dx_sums, overwrite}, o->dy,
                                   o->w, act, saved));
    operation_release(&saved);
    CHECK_OK(linear_backward_weight(k, r->dw, r->dbias, o->dy, o->x, overwrite));
}

static void run_oracle(struct results *r, const struct operands *o, enum activation act)
{
    oracle_linear_forward(r->y, r->saved, o->x, o->w, o->bias, act);
    oracle_linear_backward_input(r->dx, o->dy, o->w, act, o->pre_x);
    oracle_linear_backward_weight(r->dw, r->dbias, o->dy, o->x);
}

/* Computes the error of a naive bf16 implementation, which rounds the output of the GEMM and then
 * the result of the activation. pre is the pre-activation for the backward pass; if it is absent,
 * the activation is applied to the output of the GEMM. */
static double compute_naive_error(struct tensor exact, struct tensor gemm_output, struct tensor pre,
                                  enum activation act)
{
    struct tensor naive = operation_tensor(DTYPE_BF16, exact.rows, exact.columns, exact.columns);
    for (int64_t i = 0; i < exact.rows; i++) {
        for (int64_t j = 0; j < exact.columns; j++) {
            double x = bf16_to_f32(f32_to_bf16((float)oracle_get(gemm_output, i, j)));
            x = pre.data == NULL ? oracle_activation(x, act)
                                 : x * oracle_activation_derivative(oracle_get(pre, i, j), act);
            oracle_set(naive, i, j, x);
        }
    }
    double error = operation_difference(naive, exact);
    operation_release(&naive);
    return error;
}

/* ---- tolerances in f32, as fractions of the largest element ----
 *
 * Sums        the error of a sum of n terms is about sqrt(n) u times the sum of their magnitudes,
 *             with u = 2^-24 (Higham, Mary 2019, doi:10.1137/18M1226312). The tolerance is twice
 *             as large. TF32 rounds the operands with u = 2^-11
 * Activations tanh, exp and erf may have an absolute error of 2^-20. The derivative of GELU,
 *             (1 + t) / 2 + x (1 - t^2) s / 2 with the slope s = sqrt(2 / pi) (1 + 0.134 x^2),
 *             multiplies the error of t = tanh by up to 1 + |x| s: by 20 at x = 5.3 */

static struct tensor make_magnitudes(struct tensor from)
{
    struct tensor t = from;
    if (from.data != NULL) {
        t = operation_tensor(ORACLE_F64, from.rows, from.columns, from.columns);
        for (int64_t i = 0; i < t.rows * t.columns; i++) {
            int64_t row = i / t.columns, column = i % t.columns;
            oracle_set(t, row, column, fabs(oracle_get(from, row, column)));
        }
    }
    return t;
}

/* Returns the tolerance of a sum of n terms. */
static double get_sum_tolerance(int64_t n, double magnitudes)
{
    return 2 * 0x1p-24 * sqrt((double)n) * magnitudes;
}

/* Returns the largest |act'(x)|. */
static double find_derivative(struct tensor x, enum activation act)
{
    double slope = 0;
    for (int64_t i = 0; i < x.rows * x.columns; i++) {
        double value = oracle_get(x, i / x.columns, i % x.columns);
        slope = fmax(slope, fabs(oracle_activation_derivative(value, act)));
    }
    return slope;
}

/* Returns the tolerance of y. pre is its pre-activation. */
static double get_forward_tolerance(struct tensor exact, struct tensor pre,
                                    const struct operands *o, struct tensor bias,
                                    enum activation act)
{
    struct tensor x = make_magnitudes(o->x), w = make_magnitudes(o->w), b = make_magnitudes(bias);
    struct tensor sizes = operation_tensor(ORACLE_F64, exact.rows, exact.columns, exact.columns);
    oracle_linear_forward(sizes, tensor_absent(), x, w, b, ACTIVATION_NONE);
    double sums = get_sum_tolerance(x.columns + 1, oracle_largest(sizes));
    double function = act != ACTIVATION_NONE ? FUNCTION_ERROR * (1 + oracle_largest(pre)) : 0;
    operation_release(&x);
    operation_release(&w);
    operation_release(&b);
    operation_release(&sizes);
    return (find_derivative(pre, act) * sums + function) / oracle_largest(exact);
}

/* Returns the factor of an error of tanh, exp or erf in act'(x). */
static double get_amplification(double x, enum activation act)
{
    double slope = act == ACTIVATION_GELU_TANH ? 0.8 * (1 + 0.134 * x * x) : 1;
    return act == ACTIVATION_NONE ? 0 : 1 + fabs(x) * slope;
}

/* Returns the tolerance of dx. sums is dx before the multiplication with the derivative. */
static double get_input_tolerance(struct tensor exact, struct tensor sums, const struct operands *o,
                                  enum activation act)
{
    struct tensor dy = make_magnitudes(o->dy), w = make_magnitudes(o->w);
    struct tensor sizes = operation_tensor(ORACLE_F64, exact.rows, exact.columns, exact.columns);
    oracle_linear_backward_input(sizes, dy, w, ACTIVATION_NONE, tensor_absent());
    double error = get_sum_tolerance(dy.columns, oracle_largest(sizes)), function = 0;
    for (int64_t i = 0; i < exact.rows * exact.columns; i++) {
        int64_t row = i / exact.columns, column = i % exact.columns;
        double factor = get_amplification(oracle_get(o->pre_x, row, column), act);
        function = fmax(function, FUNCTION_ERROR * factor * fabs(oracle_get(sums, row, column)));
    }
    operation_release(&dy);
    operation_release(&w);
    operation_release(&sizes);
    return (find_derivative(o->pre_x, act) * error + function) / oracle_largest(exact);
}

static void check_near(struct kernels *k, const char *name, struct tensor got, struct tensor exact,
                       double tolerance)
{
    char text[80]; /* with the shape */
    snprintf(text, sizeof text, "%s [%lld, %lld]", name, (long long)got.rows,
             (long long)got.columns);
    operation_check_error(text, k, operation_difference(got, exact), tolerance);
}

/* Compares y with the naive implementation in bf16. */
static void check_forward(struct kernels *k, struct tensor got, struct tensor exact,
                          struct tensor pre, const struct operands *o, struct tensor bias,
                          enum activation act)
{
    double tolerance = got.dtype == DTYPE_BF16
                           ? 2 * compute_naive_error(exact, pre, tensor_absent(), act)
                           : get_forward_tolerance(exact, pre, o, bias, act);
    check_near(k, "y", got, exact, tolerance);
}

/* Compares dw and dbias, which are f32. Their previous values are smaller than the sums of the
 * magnitudes and the largest result. */
static void check_weight(struct kernels *k, const struct results *got, const struct results *exact,
                         const struct operands *o)
{
    struct tensor dy = make_magnitudes(o->dy), x = make_magnitudes(o->x);
    struct tensor dw = operation_tensor(ORACLE_F64, dy.columns, x.columns, x.columns);
    struct tensor dbias = operation_tensor(ORACLE_F64, 1, dy.columns, dy.columns);
    double largest_dw = oracle_largest(exact->dw), largest_dbias = oracle_largest(exact->dbias);
    operation_set(dw, largest_dw);
    operation_set(dbias, largest_dbias);
    oracle_linear_backward_weight(dw, dbias, dy, x);
    check_near(k, "dw", got->dw, exact->dw,
               get_sum_tolerance(x.rows + 1, oracle_largest(dw)) / largest_dw);
    check_near(k, "dbias", got->dbias, exact->dbias,
               get_sum_tolerance(x.rows + 1, oracle_largest(dbias)) / largest_dbias);
    operation_release(&dy);
    operation_release(&x);
    operation_release(&dw);
    operation_release(&dbias);
}

/* Compares y and dx, which are rounded to the dtype. */
static void check_rounded(struct kernels *k, const struct results *got, const struct results *exact,
                          const struct operands *o, enum activation act)
{
    bool with_saved = got->saved.data != NULL;
    struct tensor dx =
        operation_tensor(ORACLE_F64, exact->dx.rows, exact->dx.columns, exact->dx.columns);
    oracle_linear_backward_input(dx, o->dy, o->w, ACTIVATION_NONE, tensor_absent());
    struct tensor pre = with_saved ? exact->saved : exact->y;
    check_forward(k, got->y, exact->y, pre, o, o->bias, act);
    check_near(k, "dx", got->dx, exact->dx,
               got->dx.dtype == DTYPE_BF16 ? 2 * compute_naive_error(exact->dx, dx, o->pre_x, act)
                                           : get_input_tolerance(exact->dx, dx, o, act));
    operation_release(&dx);
}

static void check_equal(struct results *a, struct results *b)
{
    CHECK(operation_equal(a->y, b->y));
    CHECK(a->saved.data == NULL || operation_equal(a->saved, b->saved));
    CHECK(operation_equal(a->dx, b->dx));
    CHECK(operation_equal(a->dw, b->dw));
    CHECK(operation_equal(a->dbias, b->dbias));
    CHECK(operation_equal(a->dx_sums, b->dx_sums));
}

static void test_shape(struct kernels *k, struct kernels *other, const struct shape *s,
                       enum activation act, bool overwrite)
{
    enum dtype dtype = kernels_dtype(k);
    bool with_saved = act != ACTIVATION_NONE;
    struct operands o = make_operands(dtype, s);
    struct results got = make_results(dtype, DTYPE_F32, s, with_saved);
    struct results repeated = make_results(dtype, DTYPE_F32, s, with_saved);
    struct results threads = make_results(dtype, DTYPE_F32, s, with_saved);
    struct results exact = make_results(ORACLE_F64, ORACLE_F64, s, with_saved);
    oracle_cast(exact.dw, got.dw);
    oracle_cast(exact.dbias, got.dbias);
    oracle_cast(exact.dx_sums, got.dx_sums);
    if (overwrite) {
        set_parameter_gradients(&got, NAN);
        set_parameter_gradients(&repeated, NAN);
        set_parameter_gradients(&threads, NAN);
        set_parameter_gradients(&exact, 0);
    }
    run_linear(k, &got, &o, act, overwrite);
    run_linear(k, &repeated, &o, act, overwrite);
    run_linear(other, &threads, &o, act, overwrite);
    run_oracle(&exact, &o, act);
    check_rounded(k, &got, &exact, &o, act);
    check_weight(k, &got, &exact, &o);
    operation_check_column_sums("sums of dx", k, got.dx_sums, exact.dx_sums, got.dx);
    check_equal(&got, &repeated);
    check_equal(&got, &threads);
    if (overwrite) { /* with a frozen matrix */
        set_parameter_gradients(&repeated, NAN);
        CHECK_OK(linear_backward_weight(k, tensor_absent(), repeated.dbias, o.dy, o.x, true));
        CHECK(operation_equal(repeated.dbias, got.dbias));
        CHECK_OK(linear_backward_weight(k, tensor_absent(), tensor_absent(), o.dy, o.x, true));
    }
    release_operands(&o);
    release_results(&got);
    release_results(&repeated);
    release_results(&threads);
    release_results(&exact);
}

static void run_with_pre_activation(struct kernels *k, struct results *r, const struct operands *o)
{
    const enum activation act = ACTIVATION_GELU_TANH;
    CHECK_OK(linear_forward(k, r->y, r->saved, o->x, o->w, o->bias, act));
    CHECK_OK(linear_backward_input(k, r->dx, (struct bias_gradient){r->dx_sums, true}, o->dy, o->w,
                                   act, o->pre_x));
    CHECK_OK(linear_backward_weight(k, r->dw, r->dbias, o->dy, o->x, true));
}

/* Tests the GEMM plans that kernels_tune selects. The backward pass reads pre_x as saved data. This
 * is correct only on the GPU, where the saved data is the pre-activation. */
static void test_tuned(struct kernels *k, const struct shape *s)
{
    const enum activation act = ACTIVATION_GELU_TANH;
    struct operands o = make_operands(kernels_dtype(k), s);
    struct results got = make_results(kernels_dtype(k), DTYPE_F32, s, true);
    struct results exact = make_results(ORACLE_F64, ORACLE_F64, s, true);
    set_parameter_gradients(&exact, 0);
    CHECK_OK(kernels_tune(k, false, NULL));
    run_with_pre_activation(k, &got, &o);
    CHECK_OK(kernels_tune(k, true, NULL));
    set_parameter_gradients(&got, NAN);
    run_with_pre_activation(k, &got, &o);
    run_oracle(&exact, &o, act);
    if (OPERATION_ON_GPU) {
        check_rounded(k, &got, &exact, &o, act);
    }
    check_weight(k, &got, &exact, &o);
    operation_check_column_sums("sums of dx", k, got.dx_sums, exact.dx_sums, got.dx);
    release_operands(&o);
    release_results(&got);
    release_results(&exact);
}

/* A bias in kernels_bias_dtype gives the same bits as a bias in f32 with the same numbers. The
 * shapes use GEMMs with and without a fused bias and activation. */
static void test_bias_dtype(struct kernels *k, const struct shape *s, enum activation act)
{
    enum dtype dtype = kernels_dtype(k);
    struct operands o = make_operands(dtype, s);
    struct tensor bias = operation_tensor(kernels_bias_dtype(k), 1, s->outputs, s->outputs);
    struct tensor y[2];
    for (int64_t j = 0; j < s->outputs; j++) {
        oracle_set(bias, 0, j, oracle_get(o.bias, 0, j));
        oracle_set(o.bias, 0, j, oracle_get(bias, 0, j));
    }
    for (int i = 0; i < 2; i++) {
        y[i] = operation_tensor(dtype, s->rows, s->outputs, s->outputs);
        CHECK_OK(linear_forward(k, y[i], tensor_absent(), o.x, o.w, i == 0 ? o.bias : bias, act));
    }
    CHECK(memcmp(y[0].data, y[1].data, (size_t)(s->rows * s->outputs) * dtype_bytes(dtype)) == 0);
    operation_release(&y[0]);
    operation_release(&y[1]);
    operation_release(&bias);
    release_operands(&o);
}

/* Tests the operations of an adapter with matrices a [r, K] and b [M, r]: op_scale and linear_add,
 * forward and backward. */
static void test_adapter(struct kernels *k, int64_t rows, int64_t inner, int64_t outputs, int64_t r)
{
    enum dtype dtype = kernels_dtype(k);
    double tolerance = dtype == DTYPE_BF16 ? 0x1p-7 : 3e-6;
    struct tensor x = make_padded(dtype, rows, inner, 3, 1, 1), none = tensor_absent();
    struct tensor a = operation_random(dtype, r, inner, 2, 0.1);
    struct tensor b = operation_random(dtype, outputs, r, 3, 0.3);
    struct tensor y = make_padded(dtype, rows, outputs, 5, 4, 1);
    struct tensor u = operation_tensor(dtype, rows, r, r);
    struct tensor exact = operation_tensor(ORACLE_F64, rows, outputs, outputs);
    struct tensor expected_dx = operation_tensor(ORACLE_F64, rows, inner, inner);
    CHECK_OK(linear_forward(k, u, none, x, a, none, ACTIVATION_NONE));
    CHECK_OK(op_scale(k, u, 2.5f));
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < outputs; j++) {
            double sum = oracle_get(y, i, j);
            for (int64_t l = 0; l < r; l++) {
                sum += oracle_get(u, i, l) * oracle_get(b, j, l);
            }
            oracle_set(exact, i, j, sum);
        }
        for (int64_t j = 0; j < inner; j++) {
            double sum = oracle_get(x, i, j);
            for (int64_t l = 0; l < r; l++) {
                sum += oracle_get(u, i, l) * oracle_get(a, l, j);
            }
            oracle_set(expected_dx, i, j, sum);
        }
        double first = 0;
        for (int64_t j = 0; j < inner; j++) {
            first += 2.5 * oracle_get(x, i, j) * oracle_get(a, 0, j);
        }
        CHECK(fabs(first - oracle_get(u, i, 0)) <= 4 * tolerance);
    }
    CHECK_OK(linear_add(k, y, u, b, false));
    CHECK_OK(linear_add(k, x, u, a, true));
    operation_check_error("linear_add", k, operation_difference(y, exact), tolerance);
    operation_check_error("linear_add, backward", k, operation_difference(x, expected_dx),
                          tolerance);
    operation_release(&x);
    operation_release(&a);
    operation_release(&b);
    operation_release(&y);
    operation_release(&u);
    operation_release(&exact);
    operation_release(&expected_dx);
}

/* The bias gradient of many rows, of which a block of a GPU adds several groups. */
static void test_many_rows(struct kernels *k, int64_t rows, int64_t outputs, int64_t pad)
{
    struct tensor dy = make_padded(kernels_dtype(k), rows, outputs, pad, 1, 1);
    struct tensor sums = operation_random(DTYPE_F32, 1, outputs, 2, 1), none = tensor_absent();
    struct tensor x = operation_tensor(kernels_dtype(k), rows, 1, 1);
    struct tensor exact = operation_copy(sums, ORACLE_F64);
    double largest = 0; /* sum of magnitudes */
    for (int64_t c = 0; c < outputs; c++) {
        double sum = oracle_get(exact, 0, c), magnitudes = fabs(sum);
        for (int64_t r = 0; r < rows; r++) {
            sum += oracle_get(dy, r, c);
            magnitudes += fabs(oracle_get(dy, r, c));
        }
        oracle_set(exact, 0, c, sum);
        largest = fmax(largest, magnitudes);
    }
    CHECK_OK(linear_backward_weight(k, none, sums, dy, x, false));
    check_near(k, "dbias of many rows", sums, exact,
               get_sum_tolerance(rows + 1, largest) / oracle_largest(exact));
    operation_release(&dy);
    operation_release(&sums);
    operation_release(&x);
    operation_release(&exact);
}

/* The column sums of many rows of dx are correct. Computing them changes dx at most by rounding. */
static void test_many_input_rows(struct kernels *k, int64_t rows, int64_t inner, int64_t pad)
{
    const enum activation act = ACTIVATION_GELU_ERF;
    enum dtype dtype = kernels_dtype(k);
    struct tensor dy = operation_random(dtype, rows, 1, 1, 1);
    struct tensor w = operation_random(dtype, 1, inner, 2, 1);
    struct tensor pre_x = operation_random(dtype, rows, inner, 3, 1.5);
    struct tensor saved = make_saved(k, pre_x, act, NULL);
    struct tensor sums = operation_random(DTYPE_F32, 1, inner, 4, 1);
    struct tensor before = operation_copy(sums, DTYPE_F32);
    struct tensor dx = operation_tensor(dtype, rows, inner, inner + pad);
    struct tensor alone = operation_tensor(dtype, rows, inner, inner + pad);
    CHECK_OK(linear_backward_input(k, dx, (struct bias_gradient){sums, false}, dy, w, act, saved));
    CHECK_OK(linear_backward_input(k, alone, (struct bias_gradient){0}, dy, w, act, saved));
    operation_check_error("dx of many rows", k, operation_difference(dx, alone),
                          dtype == DTYPE_BF16 ? 0x1p-7 : 1e-6);
    operation_check_column_sums("sums of many rows of dx", k, sums, before, dx);
    struct tensor *all[] = {&dy, &w, &pre_x, &saved, &sums, &before, &dx, &alone};
    for (int i = 0; i < COUNT(all); i++) {
        operation_release(all[i]);
    }
}

/* activation_forward gives the results of linear_forward with the identity matrix.
 * activation_backward multiplies dy by the derivative, also in place. */
static void test_activation(struct kernels *k, enum activation act)
{
    enum dtype dtype = kernels_dtype(k);
    struct tensor pre = make_padded(dtype, 67, 33, 5, 1, 1.5), y;
    struct tensor dy = make_padded(dtype, 67, 33, 5, 2, 1.0);
    struct tensor dx = operation_tensor(dtype, 67, 33, 36), got = operation_copy(dx, dtype);
    struct tensor exact = operation_tensor(ORACLE_F64, 67, 33, 33);
    struct tensor saved = make_saved(k, pre, act, &y);
    for (int64_t i = 0; i < 67; i++) {
        for (int64_t j = 0; j < 33; j++) {
            double derivative = oracle_activation_derivative(oracle_get(pre, i, j), act);
            oracle_set(exact, i, j, oracle_get(dy, i, j) * derivative);
        }
    }
    CHECK_OK(activation_backward(k, dx, dy, saved, act));
    CHECK_OK(activation_backward(k, dy, dy, saved, act));
    CHECK_OK(activation_forward(k, pre, got, act));
    double tolerance = dtype == DTYPE_BF16 ? 0x1p-7 : 1e-6;
    operation_check_error("dx of an activation", k, operation_difference(dx, exact),
                          dtype == DTYPE_BF16 ? tolerance : 3e-6);
    CHECK(operation_difference(dy, dx) == 0);
    CHECK(operation_difference(pre, y) <= tolerance);
    CHECK(operation_difference(got, saved) <= tolerance);
    operation_release(&pre);
    operation_release(&y);
    operation_release(&dy);
    operation_release(&dx);
    operation_release(&got);
    operation_release(&exact);
    operation_release(&saved);
}

/* Tests an activation and its derivative element by element, for small and for huge numbers. */
static void test_activation_values(struct kernels *k, enum activation act)
{
    static const double values[] = {0,   0x1p-20, 0.01, 0.3, 0.7, 1,  1.5, 2,    2.5,
                                    3.5, 4.5,     5.5,  7,   9,   14, 30,  1000, 1e9};
    enum { VALUES = 2 * COUNT(values) };
    const double relative = kernels_dtype(k) == DTYPE_BF16 ? 0x1p-8 : 1e-6;
    struct tensor x = operation_tensor(kernels_dtype(k), 1, VALUES, VALUES), y;
    for (int64_t i = 0; i < VALUES; i++) {
        oracle_set(x, 0, i, i % 2 == 0 ? values[i / 2] : -values[i / 2]);
    }
    struct tensor saved = make_saved(k, x, act, &y), dx = operation_copy(x, x.dtype);
    operation_set(dx, 1);
    CHECK_OK(activation_backward(k, dx, dx, saved, act));
    for (int64_t i = 0; i < VALUES; i++) {
        double exact = oracle_activation(oracle_get(x, 0, i), act);
        double derivative = oracle_activation_derivative(oracle_get(x, 0, i), act);
        CHECK_NEAR(oracle_get(y, 0, i), exact, relative * fabs(exact) + 1e-6);
        CHECK_NEAR(oracle_get(dx, 0, i), derivative, relative * fabs(derivative) + 2e-6);
    }
    operation_release(&x);
    operation_release(&saved);
    operation_release(&y);
    operation_release(&dx);
}

/* linear_forward needs neither bias nor saved data. */
static void test_without_bias(struct kernels *k)
{
    const struct shape s = {9, 20, 18, 0};
    enum dtype dtype = kernels_dtype(k);
    struct operands o = make_operands(dtype, &s);
    struct tensor y = operation_tensor(dtype, s.rows, s.outputs, s.outputs);
    struct tensor exact = operation_tensor(ORACLE_F64, s.rows, s.outputs, s.outputs);
    struct tensor pre = operation_tensor(ORACLE_F64, s.rows, s.outputs, s.outputs);
    struct tensor none = tensor_absent();
    CHECK_OK(linear_forward(k, y, none, o.x, o.w, none, ACTIVATION_GELU_TANH));
    oracle_linear_forward(exact, pre, o.x, o.w, none, ACTIVATION_GELU_TANH);
    check_forward(k, y, exact, pre, &o, none, ACTIVATION_GELU_TANH);
    operation_release(&pre);
    operation_release(&y);
    operation_release(&exact);
    release_operands(&o);
}

/* NaN in x affects its row of y and its column of dw only. */
static void test_nan(struct kernels *k)
{
    const struct shape s = {19, 21, 17, 0};
    struct operands o = make_operands(kernels_dtype(k), &s);
    struct results r = make_results(kernels_dtype(k), DTYPE_F32, &s, false);
    oracle_set(o.x, 4, 3, NAN);
    run_linear(k, &r, &o, ACTIVATION_NONE, false);
    for (int64_t i = 0; i < s.rows; i++) {
        for (int64_t j = 0; j < s.outputs; j++) {
            CHECK(isnan(oracle_get(r.y, i, j)) == (i == 4));
        }
    }
    for (int64_t i = 0; i < s.outputs; i++) {
        for (int64_t j = 0; j < s.inner; j++) {
            CHECK(isnan(oracle_get(r.dw, i, j)) == (j == 3));
        }
    }
    release_results(&r);
    release_operands(&o);
}

static void test_errors(struct kernels *k)
{
    enum dtype dtype = kernels_dtype(k);
    struct tensor x = operation_random(dtype, 4, 8, 1, 1);
    struct tensor w = operation_random(dtype, 3, 8, 2, 1);
    struct tensor y = operation_tensor(dtype, 4, 3, 3);
    struct tensor none = tensor_absent();
    CHECK_FAILS(linear_forward(k, tensor_rows(y, 0, 3), none, x, w, none, ACTIVATION_NONE),
                STATUS_INTERNAL, "[4, 8]");
    CHECK_FAILS(linear_forward(k, y, y, x, w, none, ACTIVATION_NONE), STATUS_INTERNAL,
                "saved without an activation");
    enum activation bad = (enum activation)ACTIVATIONS;
    char text[64];
    snprintf(text, sizeof text, "activation %d does not exist; the values are 0 to %d", ACTIVATIONS,
             ACTIVATIONS - 1);
    CHECK_FAILS(linear_forward(k, y, none, x, w, none, bad), STATUS_INTERNAL, text);
    CHECK_FAILS(linear_backward_input(k, x, (struct bias_gradient){0}, y, w, bad, x),
                STATUS_INTERNAL, text);
    CHECK_FAILS(activation_forward(k, y, none, (enum activation) - 1), STATUS_INTERNAL,
                "activation -1");
    CHECK_FAILS(activation_backward(k, y, y, y, bad), STATUS_INTERNAL, text);
    CHECK_FAILS(
        linear_backward_input(k, x, (struct bias_gradient){0}, y, w, ACTIVATION_GELU_TANH, none),
        STATUS_INTERNAL, "saved");
    CHECK_FAILS(linear_backward_weight(k, w, none, x, x, false), STATUS_INTERNAL,
                "linear_backward_weight");
    CHECK_FAILS(activation_backward(k, x, x, x, ACTIVATION_NONE), STATUS_INTERNAL, "no activation");
    operation_release(&x);
    operation_release(&w);
    operation_release(&y);
}

static void test_all(struct kernels *k, struct kernels *other)
{
    for (int i = 0; i < SHAPES; i++) {
        test_shape(k, other, &shapes[i], (enum activation)(i % ACTIVATIONS), i % 2 == 1);
    }
    for (int i = 0; i < ACTIVATIONS; i++) {
        test_shape(k, other, &shapes[5], (enum activation)i, false);
        test_bias_dtype(k, &shapes[i == 0 ? 7 : 5], (enum activation)i);
    }
    for (int i = 1; i < ACTIVATIONS; i++) {
        test_activation(k, (enum activation)i);
    }
    test_activation_values(k, ACTIVATION_GELU_TANH);
    test_activation_values(k, ACTIVATION_GELU_ERF);
    test_tuned(k, &shapes[7]);
    test_tuned(k, &shapes[5]);
    test_adapter(k, 67, 33, 45, 8);
    test_adapter(k, 1, 64, 96, 1);
    test_adapter(k, 130, 96, 64, 3);
    test_adapter(k, 16, 65, 31, 4);
    test_many_rows(k, 9000, 40, 0);
    test_many_rows(k, 16500, 13, 3);
    test_many_input_rows(k, 2600, 40, 0);
    test_many_input_rows(k, 4100, 13, 3);
    test_without_bias(k);
    test_nan(k);
    test_errors(k);
}

int main(void)
{
    const struct kernels_limits limits = {.rows = 257,
                                          .width = 515,
                                          .inner = 515,
                                          .heads = 1,
                                          .head_width = 64,
                                          .sequence = 64,
                                          .vocabulary = 64,
                                          .training = true};
    operation_run_all(&limits, test_all);
    return 0;
}
