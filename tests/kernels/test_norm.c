/* Tests residual addition and norm against the oracle: both kinds of norm, both dtypes, dropout,
 * rows with gaps, and tails of vectors. The RMS norm of rows that are split by columns
 * (split_norm.h) gives the results of the norm of the whole rows. */
#include "base/memory.h"
#include "tests/kernels/operation.h"

struct shape {
    int64_t rows, columns; /* N, C */
    enum norm_kind kind;
    bool beta, delta;
    enum norm_residual residual;
    float dropout;
    double offset; /* added to x, so that the mean is large compared with the deviation */
    bool dense;    /* no gaps between rows, so that kernels with 16-byte loads run */
    bool no_gamma; /* no weight */
};

static const struct shape shapes[] = {
    {1, 1, NORM_RMS, false, true, NORM_RESIDUAL_PRE, 0, 1},
    {1, 2, NORM_LAYER, true, true, NORM_RESIDUAL_PRE, 0, 0},
    {3, 17, NORM_LAYER, true, false, NORM_RESIDUAL_NONE, 0, 0},
    {67, 64, NORM_LAYER, true, true, NORM_RESIDUAL_PRE, 0, 0},
    {67, 101, NORM_RMS, false, true, NORM_RESIDUAL_PRE, 0, 0},
    {67, 101, NORM_LAYER, false, true, NORM_RESIDUAL_PRE, 0, 0},
    {19, 64, NORM_LAYER, false, false, NORM_RESIDUAL_NONE, 0, 3, true},
    {130, 96, NORM_LAYER, true, true, NORM_RESIDUAL_NONE, 0, 0},
    {515, 33, NORM_LAYER, true, true, NORM_RESIDUAL_PRE, 0, 0},
    {9, 200, NORM_LAYER, true, true, NORM_RESIDUAL_PRE, 0, 100},
    {67, 101, NORM_LAYER, true, true, NORM_RESIDUAL_PRE, 0.25f, 0},
    {5, 64, NORM_RMS, false, true, NORM_RESIDUAL_NONE, 0.5f, 0},
    {67, 64, NORM_LAYER, true, true, NORM_RESIDUAL_POST, 0, 0},
    {33, 101, NORM_LAYER, true, true, NORM_RESIDUAL_POST, 0.25f, 0},
    /* widths with specialized GPU kernels, and more rows than a block processes at a time */
    {19, 64, NORM_LAYER, true, true, NORM_RESIDUAL_PRE, 0.25f, 0, true},
    {11, 768, NORM_LAYER, true, true, NORM_RESIDUAL_POST, 0, 0, true},
    {20, 768, NORM_RMS, false, true, NORM_RESIDUAL_PRE, 0, 0, true},
    {131, 776, NORM_LAYER, true, true, NORM_RESIDUAL_PRE, 0.25f, 0, true},
    {10, 1600, NORM_LAYER, true, true, NORM_RESIDUAL_PRE, 0.25f, 0, true},
    {3, 2048, NORM_RMS, false, false, NORM_RESIDUAL_NONE, 0, 0, true},
    {3, 4096, NORM_RMS, false, true, NORM_RESIDUAL_PRE, 0, 0, true},
    {2, 8192, NORM_LAYER, true, true, NORM_RESIDUAL_POST, 0.25f, 100, true},
    {2, 8191, NORM_LAYER, true, true, NORM_RESIDUAL_PRE, 0, 0},
    /* two or three rows for each group of threads in the backward pass */
    {4100, 24, NORM_LAYER, true, true, NORM_RESIDUAL_PRE, 0, 0, true},
    {2200, 520, NORM_LAYER, true, true, NORM_RESIDUAL_POST, 0.25f, 0, true},
    {270, 4104, NORM_RMS, false, true, NORM_RESIDUAL_PRE, 0, 0, true},
    {420, 2051, NORM_LAYER, true, false, NORM_RESIDUAL_NONE, 0, 0},
    {67, 101, NORM_LAYER, false, true, NORM_RESIDUAL_PRE, 0.25f, 0, false, true},
    {131, 776, NORM_LAYER, false, true, NORM_RESIDUAL_PRE, 0, 0, true, true},
    {20, 768, NORM_LAYER, false, true, NORM_RESIDUAL_POST, 0, 0, true, true},
    {9, 64, NORM_RMS, false, false, NORM_RESIDUAL_NONE, 0, 0, true, true},
};

struct tensors {
    struct tensor x, delta, z, y, statistics, gamma, beta, dy, dz, ddelta, dgamma, dbeta, dbias;
};

static struct tensors make_tensors(const struct shape *s, enum dtype dtype)
{
    enum dtype sums = dtype == ORACLE_F64 ? ORACLE_F64 : DTYPE_F32;
    int64_t n = s->rows, c = s->columns, pad = s->dense ? 0 : 1;
    struct tensors m = {
        .x = operation_tensor(dtype, n, c, c + 3 * pad),
        .z = operation_tensor(dtype, n, c, c),
        .y = operation_tensor(dtype, n, c, c + pad),
        .statistics = operation_tensor(sums, n, 2, 2),
        .dy = operation_tensor(dtype, n, c, c + 2 * pad),
        .dz = operation_tensor(dtype, n, c, c),
        .dbias = operation_random(sums, 1, c, 9, 1),
    };
    if (s->delta) {
        m.delta = operation_tensor(dtype, n, c, c + 5 * pad);
        m.ddelta = operation_tensor(dtype, n, c, c + 4 * pad);
    }
    if (!s->no_gamma) {
        m.gamma = operation_random(sums, 1, c, 3, 1);
        m.dgamma = operation_random(sums, 1, c, 6, 1);
    }
    if (s->beta) {
        m.beta = operation_random(sums, 1, c, 4, 1);
        m.dbeta = operation_random(sums, 1, c, 7, 1);
    }
    return m;
}

static void fill_tensors(struct tensors m, double offset)
{
    operation_fill(m.x, 1, 1);
    for (int64_t r = 0; r < m.x.rows; r++) {
        for (int64_t c = 0; c < m.x.columns; c++) {
            oracle_set(m.x, r, c, oracle_get(m.x, r, c) + offset);
        }
    }
    operation_fill(m.dy, 5, 1);
    operation_fill(m.dz, 8, 1);
    if (m.delta.data != NULL) {
        operation_fill(m.delta, 2, 1);
    }
}

/* Copies the inputs, and dgamma, dbeta and dbias, to which the operation adds. */
static void copy_tensors(struct tensors to, struct tensors from)
{
    struct tensor pairs[][2] = {
        {to.x, from.x},           {to.delta, from.delta}, {to.dy, from.dy},
        {to.dz, from.dz},         {to.gamma, from.gamma}, {to.beta, from.beta},
        {to.dgamma, from.dgamma}, {to.dbeta, from.dbeta}, {to.dbias, from.dbias},
    };
    for (int i = 0; i < COUNT(pairs); i++) {
        if (pairs[i][0].data != NULL) {
            oracle_cast(pairs[i][0], pairs[i][1]);
        }
    }
}

static void release_tensors(struct tensors *m)
{
    struct tensor *all[] = {&m->x,      &m->delta, &m->z,    &m->y,  &m->statistics,
                            &m->gamma,  &m->beta,  &m->dy,   &m->dz, &m->ddelta,
                            &m->dgamma, &m->dbeta, &m->dbias};
    for (int i = 0; i < COUNT(all); i++) {
        operation_release(all[i]);
    }
}

static struct dropout make_dropout(const struct shape *s)
{
    return (struct dropout){s->dropout, random_key(1, RANDOM_DROPOUT, 2, 3), INT64_C(0xffffffe0),
                            0};
}

static void run_backward(struct kernels *k, const struct shape *s, struct tensors m, bool overwrite)
{
    CHECK_OK(residual_norm_backward(
        k, m.dz, m.ddelta, m.dgamma, m.dbeta, (struct bias_gradient){m.dbias, overwrite}, m.dy,
        s->delta ? m.z : m.x, m.statistics, m.gamma, s->kind, s->residual, make_dropout(s)));
}

static void run_norm(struct kernels *k, const struct shape *s, struct tensors m)
{
    CHECK_OK(residual_norm_forward(k, m.z, m.y, m.statistics, m.x, m.delta, m.gamma, m.beta,
                                   s->kind, 1e-5f, make_dropout(s)));
    run_backward(k, s, m, false);
}

static void run_oracle(const struct shape *s, struct tensors m)
{
    struct tensor in = s->delta ? m.z : m.x;
    oracle_residual_norm_forward(m.z, m.y, m.statistics, m.x, m.delta, m.gamma, m.beta, s->kind,
                                 (double)1e-5f, make_dropout(s));
    oracle_residual_norm_backward(m.dz, m.ddelta, m.dgamma, m.dbeta, m.dbias, m.dy, in,
                                  m.statistics, m.gamma, s->kind, s->residual, make_dropout(s));
}

static void check_difference(struct kernels *k, const char *name, struct tensor got,
                             struct tensor naive, struct tensor exact, double tolerance)
{
    if (got.data == NULL) {
        return;
    }
    double bound = 2 * operation_difference(naive, exact) + tolerance;
    operation_check_error(name, k, operation_difference(got, exact), bound);
}

static void test_shape(struct kernels *k, struct kernels *other, const struct shape *s)
{
    if (OPERATION_THREAD_SANITIZER && (s->rows > 11 || s->columns > 1024)) {
        return;
    }
    enum dtype dtype = kernels_dtype(k);
    struct tensors m = make_tensors(s, dtype), repeated = make_tensors(s, dtype);
    struct tensors naive = make_tensors(s, dtype), exact = make_tensors(s, ORACLE_F64);
    fill_tensors(m, s->offset);
    copy_tensors(repeated, m);
    copy_tensors(naive, m);
    copy_tensors(exact, m);
    run_norm(k, s, m);
    run_norm(other, s, repeated);
    CHECK(operation_equal(m.y, repeated.y) && operation_equal(m.dz, repeated.dz));
    CHECK(m.dgamma.data == NULL || operation_equal(m.dgamma, repeated.dgamma));
    CHECK(m.dbeta.data == NULL || operation_equal(m.dbeta, repeated.dbeta));
    CHECK(operation_equal(m.dbias, repeated.dbias));
    operation_check_column_sums("norm: dbias", k, m.dbias, naive.dbias,
                                m.ddelta.data != NULL ? m.ddelta : m.dz);
    CHECK(m.ddelta.data == NULL || operation_equal(m.ddelta, repeated.ddelta));
    run_oracle(s, naive);
    run_oracle(s, exact);
    double tolerance = s->offset > 1 ? 1e-4 : 1e-5;
    if (s->delta) {
        check_difference(k, "norm: z", m.z, naive.z, exact.z, 1e-6);
    }
    check_difference(k, "norm: y", m.y, naive.y, exact.y, tolerance);
    check_difference(k, "norm: statistics", m.statistics, naive.statistics, exact.statistics,
                     tolerance);
    check_difference(k, "norm: dz", m.dz, naive.dz, exact.dz, tolerance);
    check_difference(k, "norm: ddelta", m.ddelta, naive.ddelta, exact.ddelta, tolerance);
    check_difference(k, "norm: dgamma", m.dgamma, naive.dgamma, exact.dgamma, tolerance);
    check_difference(k, "norm: dbeta", m.dbeta, naive.dbeta, exact.dbeta, tolerance);
    check_difference(k, "norm: dbias", m.dbias, naive.dbias, exact.dbias, tolerance);
    release_tensors(&m);
    release_tensors(&repeated);
    release_tensors(&naive);
    release_tensors(&exact);
}

/* z may alias x, with the same results. Without y only z is computed. */
static void test_alias(struct kernels *k)
{
    const struct shape s = {40, 50, NORM_LAYER, true, true, NORM_RESIDUAL_PRE, 0, 0};
    struct tensors m = make_tensors(&s, kernels_dtype(k)), n = make_tensors(&s, kernels_dtype(k));
    fill_tensors(m, 0);
    copy_tensors(n, m);
    struct dropout none = {0};
    CHECK_OK(residual_norm_forward(k, m.z, m.y, m.statistics, m.x, m.delta, m.gamma, m.beta,
                                   NORM_LAYER, 1e-5f, none));
    CHECK_OK(residual_norm_forward(k, n.z, tensor_absent(), tensor_absent(), n.x, n.delta,
                                   tensor_absent(), tensor_absent(), NORM_LAYER, 1e-5f, none));
    CHECK(operation_equal(m.z, n.z));
    CHECK_OK(residual_norm_forward(k, n.x, n.y, n.statistics, n.x, n.delta, n.gamma, n.beta,
                                   NORM_LAYER, 1e-5f, none));
    CHECK(operation_difference(n.x, m.z) == 0);
    CHECK(operation_equal(m.y, n.y));
    release_tensors(&m);
    release_tensors(&n);
}

/* Without a residual stream, the gradient of the input may replace the gradient of the output. */
static void test_gradient_alias(struct kernels *k)
{
    static const struct shape s[] = {{7, 24, NORM_RMS, false, false, NORM_RESIDUAL_NONE, 0, 0},
                                     {7, 128, NORM_RMS, false, false, NORM_RESIDUAL_NONE, 0, 0}};
    for (int i = 0; i < 2; i++) {
        struct tensors m = make_tensors(&s[i], kernels_dtype(k));
        fill_tensors(m, 0);
        run_norm(k, &s[i], m);
        CHECK_OK(residual_norm_backward(k, m.dy, m.ddelta, m.dgamma, m.dbeta,
                                        (struct bias_gradient){0}, m.dy, m.x, m.statistics, m.gamma,
                                        s[i].kind, s[i].residual, make_dropout(&s[i])));
        CHECK(operation_difference(m.dy, m.dz) == 0);
        release_tensors(&m);
    }
}

/* A second backward pass adds to the parameter gradients and sets dz to the same values. */
static void test_accumulation(struct kernels *k)
{
    const struct shape s = {7, 50, NORM_LAYER, true, true, NORM_RESIDUAL_NONE, 0, 0};
    struct tensors m = make_tensors(&s, kernels_dtype(k));
    fill_tensors(m, 0);
    operation_set(m.dgamma, 0);
    run_norm(k, &s, m);
    struct tensor dz = operation_copy(m.dz, m.dz.dtype),
                  dgamma = operation_copy(m.dgamma, DTYPE_F32);
    run_norm(k, &s, m);
    CHECK(operation_equal(dz, m.dz));
    for (int64_t c = 0; c < 50; c++) {
        CHECK(oracle_get(m.dgamma, 0, c) == 2 * oracle_get(dgamma, 0, c));
    }
    operation_release(&dz);
    operation_release(&dgamma);
    release_tensors(&m);
}

/* The operation adds to dbias, sets it, or omits it. The other results have the same bits. */
static void test_bias_shape(struct kernels *k, const struct shape *s)
{
    enum dtype dtype = kernels_dtype(k);
    struct tensors all[3]; /* dbias is added to, set, absent */
    for (int i = 0; i < 3; i++) {
        all[i] = make_tensors(s, dtype);
        fill_tensors(all[i], 0);
    }
    struct tensor before = operation_copy(all[0].dbias, DTYPE_F32);
    operation_release(&all[2].dbias);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(residual_norm_forward(k, all[i].z, all[i].y, all[i].statistics, all[i].x,
                                       all[i].delta, all[i].gamma, all[i].beta, s->kind, 1e-5f,
                                       make_dropout(s)));
        run_backward(k, s, all[i], i == 1);
        CHECK(operation_equal(all[i].dz, all[0].dz));
        CHECK(operation_equal(all[i].dgamma, all[0].dgamma));
        CHECK(all[i].ddelta.data == NULL || operation_equal(all[i].ddelta, all[0].ddelta));
    }
    for (int64_t c = 0; c < s->columns; c++) {
        float sum = (float)oracle_get(all[1].dbias, 0, c);
        CHECK((float)oracle_get(all[0].dbias, 0, c) == (float)oracle_get(before, 0, c) + sum);
    }
    operation_release(&before);
    for (int i = 0; i < 3; i++) {
        release_tensors(&all[i]);
    }
}

static void test_bias(struct kernels *k)
{
    static const struct shape bias_shapes[] = {
        {40, 50, NORM_LAYER, true, true, NORM_RESIDUAL_PRE, 0.25f, 0},
        {67, 64, NORM_RMS, false, false, NORM_RESIDUAL_NONE, 0, 0, true},
        {67, 768, NORM_LAYER, true, true, NORM_RESIDUAL_POST, 0, 0, true},
    };
    for (int i = 0; i < COUNT(bias_shapes); i++) {
        test_bias_shape(k, &bias_shapes[i]);
    }
}

static void test_nan(struct kernels *k)
{
    const struct shape s = {4, 40, NORM_LAYER, true, false, NORM_RESIDUAL_NONE, 0, 0};
    struct tensors m = make_tensors(&s, kernels_dtype(k));
    fill_tensors(m, 0);
    oracle_set(m.x, 2, 39, NAN);
    run_norm(k, &s, m);
    CHECK(isnan(oracle_get(m.y, 2, 0)) && isfinite(oracle_get(m.y, 1, 0)));
    CHECK(isnan(oracle_get(m.dz, 2, 0)) && isfinite(oracle_get(m.dz, 1, 0)));
    CHECK(isnan(oracle_get(m.dgamma, 0, 0)));
    release_tensors(&m);
}

/* ---- the norm of rows that are split by columns ---- */

enum { SPLIT_PARTS = 2 };

/* Returns the columns of one part: those before `middle`, or the others. */
static struct tensor view_part(struct tensor t, int64_t middle, int part)
{
    return part == 0 ? tensor_columns(t, 0, middle) : tensor_columns(t, middle, t.columns - middle);
}

/* Adds the sums of the parts, as an all-reduce does. */
static void add_sums(struct tensor sums)
{
    for (int64_t n = 0; n < sums.rows; n++) {
        double sum = oracle_get(sums, n, 0) + oracle_get(sums, n, 1);
        oracle_set(sums, n, 0, sum);
        oracle_set(sums, n, 1, sum);
    }
}

/* Runs both passes on all parts. `in_place`: dx replaces dy. */
static void run_split_norm(struct kernels *k, struct tensors m, int64_t middle, bool in_place)
{
    struct tensor sums = operation_tensor(DTYPE_F32, m.x.rows, SPLIT_PARTS, SPLIT_PARTS);
    struct tensor dx = in_place ? m.dy : m.dz;
    for (int i = 0; i < SPLIT_PARTS; i++) {
        CHECK_OK(split_norm_forward_sums(k, tensor_columns(sums, i, 1), view_part(m.x, middle, i)));
    }
    add_sums(sums);
    for (int i = 0; i < SPLIT_PARTS; i++) {
        CHECK_OK(split_norm_forward(k, view_part(m.y, middle, i), m.statistics,
                                    view_part(m.x, middle, i), tensor_columns(sums, i, 1),
                                    view_part(m.gamma, middle, i), m.x.columns, 1e-5f));
    }
    for (int i = 0; i < SPLIT_PARTS; i++) {
        CHECK_OK(split_norm_backward_sums(k, tensor_columns(sums, i, 1),
                                          view_part(m.dgamma, middle, i),
                                          view_part(m.dy, middle, i), view_part(m.x, middle, i),
                                          m.statistics, view_part(m.gamma, middle, i)));
    }
    add_sums(sums);
    for (int i = 0; i < SPLIT_PARTS; i++) {
        CHECK_OK(split_norm_backward(
            k, view_part(dx, middle, i), view_part(m.dy, middle, i), view_part(m.x, middle, i),
            m.statistics, tensor_columns(sums, i, 1), view_part(m.gamma, middle, i), m.x.columns));
    }
    operation_release(&sums);
}

static void test_split_shape(struct kernels *k, struct kernels *other, const struct shape *s)
{
    if (OPERATION_THREAD_SANITIZER && (s->rows > 11 || s->columns > 1024)) {
        return;
    }
    enum dtype dtype = kernels_dtype(k);
    int64_t middle = (s->columns + 2) / 3;
    struct tensors m = make_tensors(s, dtype), repeated = make_tensors(s, dtype);
    struct tensors naive = make_tensors(s, dtype), exact = make_tensors(s, ORACLE_F64);
    fill_tensors(m, s->offset);
    copy_tensors(repeated, m);
    copy_tensors(naive, m);
    copy_tensors(exact, m);
    run_split_norm(k, m, middle, false);
    run_split_norm(other, repeated, middle, true);
    CHECK(operation_equal(m.y, repeated.y) && operation_difference(repeated.dy, m.dz) == 0);
    CHECK(operation_equal(m.dgamma, repeated.dgamma));
    run_oracle(s, naive);
    run_oracle(s, exact);
    check_difference(k, "split norm: y", m.y, naive.y, exact.y, 1e-5);
    check_difference(k, "split norm: statistics", m.statistics, naive.statistics, exact.statistics,
                     1e-5);
    check_difference(k, "split norm: dx", m.dz, naive.dz, exact.dz, 1e-5);
    check_difference(k, "split norm: dgamma", m.dgamma, naive.dgamma, exact.dgamma, 1e-5);
    release_tensors(&m);
    release_tensors(&repeated);
    release_tensors(&naive);
    release_tensors(&exact);
}

static void test_split(struct kernels *k, struct kernels *other)
{
    static const struct shape split_shapes[] = {
        {1, 2, NORM_RMS, false, false, NORM_RESIDUAL_NONE, 0, 0},
        {7, 3, NORM_RMS, false, false, NORM_RESIDUAL_NONE, 0, 1},
        {67, 101, NORM_RMS, false, false, NORM_RESIDUAL_NONE, 0, 0},
        {515, 48, NORM_RMS, false, false, NORM_RESIDUAL_NONE, 0, 0, true},
        {19, 769, NORM_RMS, false, false, NORM_RESIDUAL_NONE, 0, 0},
    };
    for (int i = 0; i < COUNT(split_shapes); i++) {
        test_split_shape(k, other, &split_shapes[i]);
    }
}

static void test_all(struct kernels *k, struct kernels *other)
{
    for (int i = 0; i < COUNT(shapes); i++) {
        test_shape(k, other, &shapes[i]);
    }
    test_alias(k);
    test_alias(other);
    test_gradient_alias(k);
    test_gradient_alias(other);
    test_accumulation(k);
    test_bias(k);
    test_nan(k);
    test_split(k, other);
}

int main(void)
{
    const struct kernels_limits limits = {515, 8192, 8192, 1, 16, 16, 16, true};
    operation_run_all(&limits, test_all);
    return 0;
}
