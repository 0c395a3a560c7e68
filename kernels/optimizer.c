/* Checks and calls of the optimizer's operations, as kernels.c does for the others. */
#include <math.h>

#include "base/number.h"
#include "kernels/checks.h"
#include "kernels/control_terms.h"

static status check_rounding(const char *operation, const struct rounding *r)
{
    REQUIRE(!r->stochastic ||
                (r->first >= 0 && r->offset >= 0 && r->columns > 0 && r->pitch >= r->columns),
            STATUS_INTERNAL,
            "%s: rounding from element %" PRId64 ", %" PRId64 " columns, pitch %" PRId64
            ", first element %" PRId64
            "; indices must be at least 0, columns above 0, the pitch at least the columns",
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
    REQUIRE(count >= 0, STATUS_INTERNAL, "adamw_update: %" PRId64 " elements; must be at least 0",
            count);
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

static status check_parts(const char *operation, const struct adamw_parts *p,
                          const struct adamw *settings)
{
    REQUIRE(p->parts != NULL && p->part_count > 0 && p->blocks > 0 && p->elements > 0,
            STATUS_INTERNAL,
            "%s: %" PRId64 " parts, %" PRId64 " blocks, %" PRId64 " elements; must be above 0",
            operation, p->part_count, p->blocks, p->elements);
    REQUIRE(!settings->rounding.stochastic && settings->moment_dtype == DTYPE_F32, STATUS_INTERNAL,
            "%s: parts support neither stochastic rounding nor bf16 moments", operation);
    return STATUS_OK;
}

status adamw_parts_update(struct kernels *k, float *weights, bf16 *copy, float *moment1,
                          float *moment2, const float *gradient, const struct adamw_parts *p,
                          const struct adamw *settings)
{
    TRY(check_parts("adamw_parts_update", p, settings));
    PRESENT(weights);
    PRESENT(moment1);
    PRESENT(moment2);
    PRESENT(gradient);
    double count = (double)p->elements;
    DISPATCH(k, adamw_parts_update, 18.0 * count,
             count * (copy == NULL ? 12.0 : 14.0) + 2 * get_moment_bytes(p->elements, settings), k,
             weights, copy, moment1, moment2, gradient, p, settings);
}

status lamb_moments(struct kernels *k, double *sums, const float *weights, void *moment1,
                    void *moment2, const float *gradient, int64_t count,
                    const struct adamw *settings)
{
    REQUIRE(count > 0, STATUS_INTERNAL, "lamb_moments: %" PRId64 " elements; must be above 0",
            count);
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
    REQUIRE(count > 0, STATUS_INTERNAL, "lamb_apply: %" PRId64 " elements; must be above 0", count);
    PRESENT(weights);
    PRESENT(moment1);
    PRESENT(moment2);
    TRY(check_adamw("lamb_apply", settings));
    DISPATCH(k, lamb_apply, 8.0 * (double)count,
             (double)count * (copy == NULL ? 8.0 : 10.0) + get_moment_bytes(count, settings), k,
             weights, copy, moment1, moment2, count, settings);
}

status lamb_parts_moments(struct kernels *k, double *sums, const float *weights, float *moment1,
                          float *moment2, const float *gradient, const struct adamw_parts *p,
                          const struct adamw *settings)
{
    TRY(check_parts("lamb_parts_moments", p, settings));
    REQUIRE(p->sums > 0 && p->sums <= LAMB_PARTS_SUMS_MAX, STATUS_INTERNAL,
            "lamb_parts_moments: %" PRId64 " sums; must be 1 to %d", p->sums,
            (int)LAMB_PARTS_SUMS_MAX);
    PRESENT(sums);
    PRESENT(weights);
    PRESENT(moment1);
    PRESENT(moment2);
    PRESENT(gradient);
    double count = (double)p->elements;
    DISPATCH(k, lamb_parts_moments, 22.0 * count,
             8.0 * count + 2 * get_moment_bytes(p->elements, settings), k, sums, weights, moment1,
             moment2, gradient, p, settings);
}

status lamb_parts_apply(struct kernels *k, float *weights, bf16 *copy, const float *moment1,
                        const float *moment2, const double *ratios, const struct adamw_parts *p,
                        const struct adamw *settings)
{
    TRY(check_parts("lamb_parts_apply", p, settings));
    PRESENT(weights);
    PRESENT(moment1);
    PRESENT(moment2);
    PRESENT(ratios);
    double count = (double)p->elements;
    DISPATCH(k, lamb_parts_apply, 8.0 * count,
             count * (copy == NULL ? 8.0 : 10.0) + get_moment_bytes(p->elements, settings), k,
             weights, copy, moment1, moment2, ratios, p, settings);
}

status op_round_weights(struct kernels *k, bf16 *copy, const float *weights, int64_t count,
                        const struct rounding *rounding)
{
    REQUIRE(count > 0, STATUS_INTERNAL, "op_round_weights: %" PRId64 " elements; must be above 0",
            count);
    PRESENT(copy);
    PRESENT(weights);
    TRY(check_rounding("op_round_weights", rounding));
    DISPATCH(k, op_round_weights, (double)count, 6.0 * (double)count, k, copy, weights, count,
             rounding);
}

/* ---- the decision of a step ---- */

double control_clip_factor(double norm, double max_norm)
{
    return control_get_clip_factor(norm, max_norm);
}

void control_plan_gradients(struct gradient_part *parts, int64_t count, struct gradient_parts *out)
{
    *out = (struct gradient_parts){.count = count, .block_elements = GRADIENT_BLOCK};
    for (int64_t i = 0; i < count; i++) {
        out->elements += parts[i].count;
    }
    while (count < GRADIENT_BLOCKS_MAX / 2 &&
           out->elements / out->block_elements + count > GRADIENT_BLOCKS_MAX) {
        out->block_elements *= 2;
    }
    for (int64_t i = 0; i < count; i++) {
        parts[i].first_block = out->blocks;
        out->blocks += number_divide_up(parts[i].count, out->block_elements);
    }
}

status control_gradient_squares(struct kernels *k, double *out, struct not_finite *found,
                                const float *x, const struct gradient_parts *p)
{
    REQUIRE(p->count > 0 && p->blocks > 0, STATUS_INTERNAL,
            "control_gradient_squares: %" PRId64 " parts in %" PRId64 " blocks; must be above 0",
            p->count, p->blocks);
    PRESENT(out);
    PRESENT(x);
    PRESENT(p->parts);
    DISPATCH(k, control_gradient_squares, 2.0 * (double)p->elements, 4.0 * (double)p->elements, k,
             out, found, x, p);
}

status control_sum_exact(struct kernels *k, double *out, const double *x, int64_t count)
{
    REQUIRE(count >= 0 && count < 1 << 20, STATUS_INTERNAL,
            "control_sum_exact: %" PRId64 " terms; must be 0 to 2^20 - 1", count);
    PRESENT(out);
    DISPATCH(k, control_sum_exact, (double)count, 8.0 * (double)count, k, out, x, count);
}

status control_sum_rows(struct kernels *k, double *out, const double *x, const double *y,
                        int64_t rows, int64_t columns)
{
    REQUIRE(rows > 0 && columns > 0, STATUS_INTERNAL,
            "control_sum_rows: [%" PRId64 ", %" PRId64 "]; sizes must be above 0", rows, columns);
    PRESENT(out);
    PRESENT(x);
    DISPATCH(k, control_sum_rows, (double)(rows * columns), 8.0 * (double)(rows * columns), k, out,
             x, y, rows, columns);
}

status control_sum_segments(struct kernels *k, double *out, const double *x, const int32_t *first,
                            const int32_t *counts, int64_t segments, int64_t columns)
{
    REQUIRE(segments > 0 && columns > 0, STATUS_INTERNAL,
            "control_sum_segments: %" PRId64 " segments of %" PRId64 " columns; must be above 0",
            segments, columns);
    PRESENT(out);
    PRESENT(x);
    PRESENT(first);
    PRESENT(counts);
    DISPATCH(k, control_sum_segments, (double)(segments * columns),
             16.0 * (double)(segments * columns), k, out, x, first, counts, segments, columns);
}

status control_trust_ratios(struct kernels *k, double *ratios, const double *squares,
                            const int32_t *tensors, int64_t count)
{
    REQUIRE(count > 0, STATUS_INTERNAL, "control_trust_ratios: %" PRId64 " ratios; must be above 0",
            count);
    PRESENT(ratios);
    PRESENT(squares);
    PRESENT(tensors);
    DISPATCH(k, control_trust_ratios, 2.0 * (double)count, 28.0 * (double)count, k, ratios, squares,
             tensors, count);
}

status control_decide_update(struct kernels *k, struct update_control *control,
                             const struct update_sums *sums)
{
    PRESENT(control);
    PRESENT(sums->loss);
    PRESENT(sums->count);
    PRESENT(sums->squares);
    REQUIRE(sums->max_norm >= 0, STATUS_INTERNAL,
            "control_decide_update: maximum norm %g; must be at least 0", sums->max_norm);
    DISPATCH(k, control_decide_update, 8, 32, k, control, sums);
}

status spike_score_run(struct kernels *k, struct update_control *control, struct spike_state *state,
                       const struct spike_inputs *in)
{
    PRESENT(control);
    PRESENT(state);
    PRESENT(in->sums);
    PRESENT(in->predictions);
    PRESENT(in->squares);
    REQUIRE(in->terms >= 0 && in->terms <= SPIKE_LOSS_TERMS, STATUS_INTERNAL,
            "spike_score_run: %d terms of the loss; at most %d", in->terms, (int)SPIKE_LOSS_TERMS);
    DISPATCH(k, spike_score_run, 100, 128, k, control, state, in);
}
