#include "kernels/checks.h"

status split_norm_forward_sums(struct kernels *k, struct tensor sums, struct tensor x)
{
    SHAPE(sums, DTYPE_F32, x.rows, 1);
    SHAPE(x, k->dtype, sums.rows, x.columns);
    DISPATCH(k, split_norm_forward_sums, 2 * (double)x.rows * (double)x.columns,
             compute_tensor_bytes(x), k, sums, x);
}

/* Checks the shapes that three operations share. `output` is y, dy or dx. */
static status check_rows(const char *where, const struct kernels *k, struct tensor output,
                         struct tensor x, struct tensor statistics, struct tensor sums,
                         struct tensor gamma, int64_t whole_columns)
{
    TRY(check_shape(where, "x", x, k->dtype, x.rows, gamma.columns));
    TRY(check_shape(where, "the output or its gradient", output, k->dtype, x.rows, x.columns));
    TRY(check_shape(where, "statistics", statistics, DTYPE_F32, x.rows, 2));
    TRY(check_shape(where, "sums", sums, DTYPE_F32, x.rows, 1));
    TRY(check_shape(where, "gamma", gamma, DTYPE_F32, 1, x.columns));
    REQUIRE(whole_columns >= x.columns, STATUS_INTERNAL,
            "%s: this rank has %" PRId64 " columns; must be at most the %" PRId64
            " columns of all ranks",
            where, x.columns, whole_columns);
    return STATUS_OK;
}

status split_norm_forward(struct kernels *k, struct tensor y, struct tensor statistics,
                          struct tensor x, struct tensor sums, struct tensor gamma,
                          int64_t whole_columns, float epsilon)
{
    TRY(check_rows(__func__, k, y, x, statistics, sums, gamma, whole_columns));
    REQUIRE(epsilon > 0, STATUS_INTERNAL, "split_norm_forward: epsilon is %g; it must be above 0",
            (double)epsilon);
    DISPATCH(k, split_norm_forward, 2 * (double)x.rows * (double)x.columns,
             2 * compute_tensor_bytes(x), k, y, statistics, x, sums, gamma, whole_columns, epsilon);
}

status split_norm_backward_sums(struct kernels *k, struct tensor sums, struct tensor dgamma,
                                struct tensor dy, struct tensor x, struct tensor statistics,
                                struct tensor gamma)
{
    TRY(check_rows(__func__, k, dy, x, statistics, sums, gamma, x.columns));
    SHAPE(dgamma, DTYPE_F32, 1, x.columns);
    DISPATCH(k, split_norm_backward_sums, 6 * (double)x.rows * (double)x.columns,
             2 * compute_tensor_bytes(x), k, sums, dgamma, dy, x, statistics, gamma);
}

status split_norm_backward(struct kernels *k, struct tensor dx, struct tensor dy, struct tensor x,
                           struct tensor statistics, struct tensor sums, struct tensor gamma,
                           int64_t whole_columns)
{
    TRY(check_rows(__func__, k, dx, x, statistics, sums, gamma, whole_columns));
    SHAPE(dy, k->dtype, x.rows, x.columns);
    DISPATCH(k, split_norm_backward, 5 * (double)x.rows * (double)x.columns,
             3 * compute_tensor_bytes(x), k, dx, dy, x, statistics, sums, gamma, whole_columns);
}
