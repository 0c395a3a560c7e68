/* Checks and calls of the optimizer's operations, as kernels.c does for the others. */
#include "kernels/checks.h"

static status check_rounding(const char *operation, const struct rounding *r)
{
    REQUIRE(!r->stochastic ||
                (r->first >= 0 && r->offset >= 0 && r->columns > 0 && r->pitch >= r->columns),
            STATUS_INTERNAL,
            "%s: rounding of element %" PRId64 " with %" PRId64 " columns, pitch %" PRId64
            ", first element %" PRId64,
            operation, r->offset, r->columns, r->pitch, r->first);
    return STATUS_OK;
}

/* Checks the positions of the elements for stochastic rounding of the moments and the copy. */
static status check_adamw(const char *operation, const struct adamw *s)
{
    struct rounding rounding = s->rounding;
    rounding.stochastic = rounding.stochastic || s->moment_dtype == DTYPE_BF16;
    return check_rounding(operation, &rounding);
}

/* Returns the bytes that an access to both moments of `count` elements moves. */
static double get_moment_bytes(int64_t count, const struct adamw *s)
{
    return 2.0 * (double)count * (double)dtype_bytes(s->moment_dtype);
}

status adamw_update(struct kernels *k, float *weights, bf16 *copy, void *moment1, void *moment2,
                    const float *gradient, int64_t count, const struct adamw *settings)
{
    REQUIRE(count >= 0, STATUS_INTERNAL, "adamw_update: %" PRId64 " elements", count);
    if (count == 0) {
        return STATUS_OK;
    }
    PRESENT(weights);
    PRESENT(moment1);
    PRESENT(moment2);
    PRESENT(gradient);
    TRY(check_adamw("adamw_update", settings));
    DISPATCH(k, adamw_update, 18.0 * (double)count,
             (double)count * (copy == NULL ? 12.0 : 14.0) + 2 * get_moment_bytes(count, settings),
             k, weights, copy, moment1, moment2, gradient, count, settings);
}

status lamb_moments(struct kernels *k, double *sums, const float *weights, void *moment1,
                    void *moment2, const float *gradient, int64_t count,
                    const struct adamw *settings)
{
    REQUIRE(count > 0, STATUS_INTERNAL, "lamb_moments: %" PRId64 " elements", count);
    PRESENT(sums);
    PRESENT(weights);
    PRESENT(moment1);
    PRESENT(moment2);
    PRESENT(gradient);
    TRY(check_adamw("lamb_moments", settings));
    DISPATCH(k, lamb_moments, 22.0 * (double)count,
             8.0 * (double)count + 2 * get_moment_bytes(count, settings), k, sums, weights, moment1,
             moment2, gradient, count, settings);
}

status lamb_apply(struct kernels *k, float *weights, bf16 *copy, const void *moment1,
                  const void *moment2, int64_t count, const struct adamw *settings)
{
    REQUIRE(count > 0, STATUS_INTERNAL, "lamb_apply: %" PRId64 " elements", count);
    PRESENT(weights);
    PRESENT(moment1);
    PRESENT(moment2);
    TRY(check_adamw("lamb_apply", settings));
    DISPATCH(k, lamb_apply, 8.0 * (double)count,
             (double)count * (copy == NULL ? 8.0 : 10.0) + get_moment_bytes(count, settings), k,
             weights, copy, moment1, moment2, count, settings);
}

status op_round_weights(struct kernels *k, bf16 *copy, const float *weights, int64_t count,
                        const struct rounding *rounding)
{
    REQUIRE(count > 0, STATUS_INTERNAL, "op_round_weights: %" PRId64 " elements", count);
    PRESENT(copy);
    PRESENT(weights);
    TRY(check_rounding("op_round_weights", rounding));
    DISPATCH(k, op_round_weights, (double)count, 6.0 * (double)count, k, copy, weights, count,
             rounding);
}
