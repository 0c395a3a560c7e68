/* Residual sum and norm against the reference: both kinds, both types, dropout, views, tails. */
#include "tests/kernels/operation.h"

struct shape {
    int64_t rows, columns;
    enum norm_kind kind;
    bool beta, delta;
    enum norm_stream stream;
    float dropout;
    double offset; /* added to x: a mean that is large against the deviation */
    bool dense; /* rows follow each other, as a step's do: what can be read 16 bytes at a time is */
};

static const struct shape shapes[] = {
    {1, 1, NORM_RMS, false, true, NORM_STREAM_SUM, 0, 1},
    {1, 2, NORM_LAYER, true, true, NORM_STREAM_SUM, 0, 0},
    {3, 17, NORM_LAYER, true, false, NORM_STREAM_NOTHING, 0, 0},
    {67, 64, NORM_LAYER, true, true, NORM_STREAM_SUM, 0, 0},
    {67, 101, NORM_RMS, false, true, NORM_STREAM_SUM, 0, 0},
    {130, 96, NORM_LAYER, true, true, NORM_STREAM_NOTHING, 0, 0},
    {515, 33, NORM_LAYER, true, true, NORM_STREAM_SUM, 0, 0},
    {9, 200, NORM_LAYER, true, true, NORM_STREAM_SUM, 0, 100},
    {67, 101, NORM_LAYER, true, true, NORM_STREAM_SUM, 0.25f, 0},
    {5, 64, NORM_RMS, false, true, NORM_STREAM_NOTHING, 0.5f, 0},
    {67, 64, NORM_LAYER, true, true, NORM_STREAM_NORM, 0, 0},
    {33, 101, NORM_LAYER, true, true, NORM_STREAM_NORM, 0.25f, 0},
    /* each width that a GPU has kernels of its own for, and more rows than a block has at a time */
    {19, 64, NORM_LAYER, true, true, NORM_STREAM_SUM, 0.25f, 0, true},
    {11, 768, NORM_LAYER, true, true, NORM_STREAM_NORM, 0, 0, true},
    {20, 768, NORM_RMS, false, true, NORM_STREAM_SUM, 0, 0, true},
    {10, 1600, NORM_LAYER, true, true, NORM_STREAM_SUM, 0.25f, 0, true},
    {3, 2048, NORM_RMS, false, false, NORM_STREAM_NOTHING, 0, 0, true},
    {3, 4096, NORM_RMS, false, true, NORM_STREAM_SUM, 0, 0, true},
    {2, 8192, NORM_LAYER, true, true, NORM_STREAM_NORM, 0.25f, 100, true},
    {2, 8191, NORM_LAYER, true, true, NORM_STREAM_SUM, 0, 0},
};

struct memory {
    struct tensor x, delta, z, y, statistics, gamma, beta, dy, dz, ddelta, dgamma, dbeta;
};

static struct memory memory_make(const struct shape *s, enum dtype dtype)
{
    enum dtype sums = dtype == REFERENCE_F64 ? REFERENCE_F64 : DTYPE_F32;
    int64_t n = s->rows, c = s->columns, apart = s->dense ? 0 : 1;
    struct memory m = {
        .x = operation_tensor(dtype, n, c, c + 3 * apart),
        .z = operation_tensor(dtype, n, c, c),
        .y = operation_tensor(dtype, n, c, c + apart),
        .statistics = operation_tensor(sums, n, 2, 2),
        .gamma = operation_random(sums, 1, c, 3, 1),
        .dy = operation_tensor(dtype, n, c, c + 2 * apart),
        .dz = operation_tensor(dtype, n, c, c),
        .dgamma = operation_random(sums, 1, c, 6, 1),
    };
    if (s->delta) {
        m.delta = operation_tensor(dtype, n, c, c + 5 * apart);
        m.ddelta = operation_tensor(dtype, n, c, c + 4 * apart);
    }
    if (s->beta) {
        m.beta = operation_random(sums, 1, c, 4, 1);
        m.dbeta = operation_random(sums, 1, c, 7, 1);
    }
    return m;
}

static void memory_fill(struct memory m, double offset)
{
    operation_fill(m.x, 1, 1);
    for (int64_t r = 0; r < m.x.rows; r++) {
        for (int64_t c = 0; c < m.x.columns; c++) {
            reference_set(m.x, r, c, reference_get(m.x, r, c) + offset);
        }
    }
    operation_fill(m.dy, 5, 1);
    operation_fill(m.dz, 8, 1);
    if (m.delta.data != NULL) {
        operation_fill(m.delta, 2, 1);
    }
}

/* gamma, beta and sums are floats in every type of activations; they are copied as such. */
static void memory_copy(struct memory to, struct memory from)
{
    struct tensor pairs[][2] = {
        {to.x, from.x},           {to.delta, from.delta}, {to.dy, from.dy},
        {to.dz, from.dz},         {to.gamma, from.gamma}, {to.beta, from.beta},
        {to.dgamma, from.dgamma}, {to.dbeta, from.dbeta},
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        if (pairs[i][0].data != NULL) {
            reference_convert(pairs[i][0], pairs[i][1]);
        }
    }
}

static void memory_release(struct memory *m)
{
    struct tensor *all[] = {&m->x,    &m->delta, &m->z,  &m->y,      &m->statistics, &m->gamma,
                            &m->beta, &m->dy,    &m->dz, &m->ddelta, &m->dgamma,     &m->dbeta};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        operation_release(all[i]);
    }
}

static struct dropout dropout_of(const struct shape *s)
{
    return (struct dropout){s->dropout, random_key(1, RANDOM_DROPOUT, 2, 3), INT64_C(0xffffffe0),
                            0};
}

static void run(struct kernels *k, const struct shape *s, struct memory m)
{
    struct tensor in = s->delta ? m.z : m.x;
    CHECK_OK(residual_norm_forward(k, m.z, m.y, m.statistics, m.x, m.delta, m.gamma, m.beta,
                                   s->kind, 1e-5f, dropout_of(s)));
    CHECK_OK(residual_norm_backward(k, m.dz, m.ddelta, m.dgamma, m.dbeta, m.dy, in, m.statistics,
                                    m.gamma, s->kind, s->stream, dropout_of(s)));
}

static void reference_run(const struct shape *s, struct memory m)
{
    struct tensor in = s->delta ? m.z : m.x;
    reference_residual_norm_forward(m.z, m.y, m.statistics, m.x, m.delta, m.gamma, m.beta, s->kind,
                                    (double)1e-5f, dropout_of(s));
    reference_residual_norm_backward(m.dz, m.ddelta, m.dgamma, m.dbeta, m.dy, in, m.statistics,
                                     m.gamma, s->kind, s->stream, dropout_of(s));
}

static void compare(struct kernels *k, const char *what, struct tensor got, struct tensor naive,
                    struct tensor exact, double tolerance)
{
    if (got.data == NULL) {
        return;
    }
    double allowed = 2 * operation_difference(naive, exact) + tolerance;
    operation_within(what, k, operation_difference(got, exact), allowed);
}

static void test_shape(struct kernels *k, struct kernels *other, const struct shape *s)
{
    enum dtype dtype = kernels_dtype(k);
    struct memory m = memory_make(s, dtype), again = memory_make(s, dtype);
    struct memory naive = memory_make(s, dtype), exact = memory_make(s, REFERENCE_F64);
    memory_fill(m, s->offset);
    memory_copy(again, m);
    memory_copy(naive, m);
    memory_copy(exact, m);
    run(k, s, m);
    run(other, s, again);
    CHECK(operation_equal(m.y, again.y) && operation_equal(m.dz, again.dz));
    CHECK(operation_equal(m.dgamma, again.dgamma));
    CHECK(m.dbeta.data == NULL || operation_equal(m.dbeta, again.dbeta));
    CHECK(m.ddelta.data == NULL || operation_equal(m.ddelta, again.ddelta));
    reference_run(s, naive);
    reference_run(s, exact);
    double tolerance = s->offset > 1 ? 1e-4 : 1e-5;
    if (s->delta) {
        compare(k, "norm: z", m.z, naive.z, exact.z, 1e-6);
    }
    compare(k, "norm: y", m.y, naive.y, exact.y, tolerance);
    compare(k, "norm: statistics", m.statistics, naive.statistics, exact.statistics, tolerance);
    compare(k, "norm: dz", m.dz, naive.dz, exact.dz, tolerance);
    compare(k, "norm: ddelta", m.ddelta, naive.ddelta, exact.ddelta, tolerance);
    compare(k, "norm: dgamma", m.dgamma, naive.dgamma, exact.dgamma, tolerance);
    compare(k, "norm: dbeta", m.dbeta, naive.dbeta, exact.dbeta, tolerance);
    memory_release(&m);
    memory_release(&again);
    memory_release(&naive);
    memory_release(&exact);
}

/* z over x gives the same as z of its own; without y there is only the sum. */
static void test_alias(struct kernels *k)
{
    const struct shape s = {40, 50, NORM_LAYER, true, true, NORM_STREAM_SUM, 0, 0};
    struct memory m = memory_make(&s, kernels_dtype(k)), n = memory_make(&s, kernels_dtype(k));
    memory_fill(m, 0);
    memory_copy(n, m);
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
    memory_release(&m);
    memory_release(&n);
}

/* The first law: a second backward pass adds the parameters' gradients again, dz is set anew. */
static void test_law(struct kernels *k)
{
    const struct shape s = {40, 50, NORM_LAYER, true, true, NORM_STREAM_NOTHING, 0, 0};
    struct memory m = memory_make(&s, kernels_dtype(k));
    memory_fill(m, 0);
    operation_set(m.dgamma, 0);
    run(k, &s, m);
    struct tensor dz = operation_copy(m.dz, m.dz.dtype),
                  dgamma = operation_copy(m.dgamma, DTYPE_F32);
    run(k, &s, m);
    CHECK(operation_equal(dz, m.dz));
    for (int64_t c = 0; c < 50; c++) {
        CHECK(reference_get(m.dgamma, 0, c) == 2 * reference_get(dgamma, 0, c));
    }
    operation_release(&dz);
    operation_release(&dgamma);
    memory_release(&m);
}

static void test_nan(struct kernels *k)
{
    const struct shape s = {4, 40, NORM_LAYER, true, false, NORM_STREAM_NOTHING, 0, 0};
    struct memory m = memory_make(&s, kernels_dtype(k));
    memory_fill(m, 0);
    reference_set(m.x, 2, 39, NAN);
    run(k, &s, m);
    CHECK(isnan(reference_get(m.y, 2, 0)) && isfinite(reference_get(m.y, 1, 0)));
    CHECK(isnan(reference_get(m.dz, 2, 0)) && isfinite(reference_get(m.dz, 1, 0)));
    CHECK(isnan(reference_get(m.dgamma, 0, 0)));
    memory_release(&m);
}

static void test_all(struct kernels *k, struct kernels *other)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        test_shape(k, other, &shapes[i]);
    }
    test_alias(k);
    test_law(k);
    test_nan(k);
}

int main(void)
{
    const struct kernels_limits limits = {515, 8192, 8192, 1, 16, 16, 16, true};
    operation_each(&limits, test_all);
    return 0;
}
