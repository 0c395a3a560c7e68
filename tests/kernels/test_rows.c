/* Tests op_gather_rows and op_scatter_rows. They only copy and add to distinct rows, so that the
 * results must equal the results of the oracle. */
#include "base/memory.h"
#include "tests/kernels/operation.h"

struct shape {
    int64_t rows, columns, stride; /* N, C, elements from row to row */
    int64_t every, count;          /* select `count` rows: every `every`-th row */
};

static const struct shape shapes[] = {
    {1, 1, 1, 1, 1},     {9, 5, 5, 3, 3},    {64, 48, 48, 1, 64},
    {130, 64, 72, 7, 5}, {50, 33, 40, 2, 0}, {1000, 8, 8, 37, 27},
};

static int32_t *make_rows(const struct shape *s)
{
    int32_t *rows = malloc((size_t)(s->count + 1) * sizeof *rows);
    CHECK(rows != NULL);
    for (int64_t i = 0; i < s->count; i++) {
        rows[i] = (int32_t)(i * s->every + (s->every - 1) / 2);
    }
    return rows;
}

static struct tensor make_matrix(const struct shape *s, enum dtype dtype, int64_t rows,
                                 uint64_t seed)
{
    struct tensor t = operation_tensor(dtype, rows, s->columns, s->stride);
    operation_fill(t, seed, 1);
    return t;
}

static void test_gather(struct kernels *k, const struct shape *s, const int32_t *rows)
{
    enum dtype dtype = kernels_dtype(k);
    struct tensor x = make_matrix(s, dtype, s->rows, 1);
    struct tensor y = make_matrix(s, dtype, s->count, 2),
                  expected = make_matrix(s, dtype, s->count, 3);
    CHECK_OK(op_gather_rows(k, y, x, rows));
    oracle_gather_rows(expected, x, rows);
    CHECK(operation_equal(y, expected));
    operation_release(&x);
    operation_release(&y);
    operation_release(&expected);
}

static void test_scatter(struct kernels *k, const struct shape *s, const int32_t *rows,
                         bool overwrite)
{
    enum dtype dtype = kernels_dtype(k);
    struct tensor dy = make_matrix(s, dtype, s->count, 4);
    struct tensor dx = make_matrix(s, dtype, s->rows, 5),
                  expected = make_matrix(s, dtype, s->rows, 5);
    if (overwrite) {
        operation_set(dx, NAN); /* previous values must not be read */
    }
    CHECK_OK(op_scatter_rows(k, dx, dy, rows, overwrite));
    oracle_scatter_rows(expected, dy, rows, overwrite);
    CHECK(operation_equal(dx, expected));
    operation_release(&dy);
    operation_release(&dx);
    operation_release(&expected);
}

static void test_errors(struct kernels *k)
{
    static const int32_t equal[] = {3, 3}, descending[] = {3, 2}, outside[] = {3, 9};
    const int32_t *const wrong[] = {equal, descending, outside};
    struct tensor x = operation_random(kernels_dtype(k), 9, 4, 1, 1);
    struct tensor y = operation_random(kernels_dtype(k), 2, 4, 1, 1);
    for (int i = 0; i < 3; i++) {
        CHECK_FAILS(op_gather_rows(k, y, x, wrong[i]), STATUS_INTERNAL, "row 1");
        CHECK_FAILS(op_scatter_rows(k, x, y, wrong[i], false), STATUS_INTERNAL, "row 1");
    }
    operation_release(&x);
    operation_release(&y);
}

static void test_all(struct kernels *k, struct kernels *other)
{
    for (int i = 0; i < COUNT(shapes); i++) {
        int32_t *rows = make_rows(&shapes[i]);
        struct kernels *both[] = {k, other};
        for (int j = 0; j < 2; j++) {
            test_gather(both[j], &shapes[i], rows);
            test_scatter(both[j], &shapes[i], rows, false);
            test_scatter(both[j], &shapes[i], rows, true);
        }
        free(rows);
    }
    if (OPERATION_HOST) { /* row numbers in GPU memory are not checked */
        test_errors(k);
    }
}

int main(void)
{
    const struct kernels_limits limits = {1000, 64, 64, 1, 16, 16, 16, true};
    operation_run_all(&limits, test_all);
    return 0;
}
