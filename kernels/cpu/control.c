/* The decision of a training step: sums over ranks, and the factor of the gradients. The CUDA
 * back-end computes them in device memory, with the same bits. This file is compiled once, so that
 * its results do not depend on the instruction set. */
#include "base/exact.h"
#include "kernels/control_terms.h"
#include "kernels/cpu/cpu.h"

status cpu_control_sum_exact(struct kernels *k, double *out, const double *x, int64_t count)
{
    (void)k;
    struct exact_sum sum = {{0}, 0, 0};
    for (int64_t i = 0; i < count; i++) {
        exact_add(&sum, x[i]);
    }
    *out = exact_value(&sum);
    return STATUS_OK;
}

status cpu_control_sum_rows(struct kernels *k, double *out, const double *x, const double *y,
                            int64_t rows, int64_t columns)
{
    (void)k;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t c = 0; c < columns; c++) {
            double term = x[r * columns + c] + (y != NULL ? y[r * columns + c] : 0);
            out[c] = r == 0 ? term : out[c] + term;
        }
    }
    return STATUS_OK;
}

status cpu_control_sum_segments(struct kernels *k, double *out, const double *x,
                                const int32_t *first, const int32_t *counts, int64_t segments,
                                int64_t columns)
{
    (void)k;
    for (int64_t i = 0; i < segments * columns; i++) {
        int64_t s = i / columns, c = i % columns;
        out[i] = 0;
        for (int64_t r = first[s]; r < first[s] + counts[s]; r++) {
            out[i] += x[r * columns + c];
        }
    }
    return STATUS_OK;
}

status cpu_control_trust_ratios(struct kernels *k, double *ratios, const double *squares,
                                const int32_t *tensors, int64_t count)
{
    (void)k;
    for (int64_t i = 0; i < count; i++) {
        const double *s = squares + 2 * (tensors[i] < 0 ? 0 : tensors[i]);
        ratios[i] = tensors[i] >= 0 ? control_get_trust_ratio(s[0], s[1]) : 1;
    }
    return STATUS_OK;
}

status cpu_control_decide_update(struct kernels *k, struct update_control *control,
                                 const struct update_sums *sums)
{
    (void)k;
    control_decide(control, sums);
    return STATUS_OK;
}
