/* The decision of a training step in device memory: sums over ranks, and the factor of the
 * gradients. The bits must equal the bits of the CPU, so no product may be fused with a sum.
 *
 *   control_sum_exact:      out = sum_i x_i, in fixed point with digits of 40 bits (base/exact.c)
 *   control_sum_rows:       out[c] = sum_r (x[r, c] + y[r, c]), in the order of r
 *   control_sum_segments:   out[s, c] = sum of the rows of segment s
 *   control_trust_ratios, control_decide_update:  the formulas of control_terms.h
 *   spike_score_run:        the formulas of spike_terms.h
 *
 * Launch    control_sum_exact: one warp; lane d adds digit d of all terms. control_sum_rows,
 *           control_sum_segments, control_trust_ratios: a thread for each output, block 128.
 *           control_decide_update, spike_score_run: one thread
 * Source    control_sum_exact: the long accumulator of Kulisch */
#include "kernels/cuda/operation.cuh"

extern "C" {
#include "base/exact.h"
}
#include "kernels/control_terms.h"
#include "kernels/spike_terms.h"

enum { EXACT_THREADS = 32, ROWS_THREADS = 128, MANTISSA_BITS = 53, EXPONENT_BIAS = 1075 };

static_assert(EXACT_DIGITS + 2 <= EXACT_THREADS, "a lane for each digit");

GPU_INLINE int64_t get_digit_size()
{
    return static_cast<int64_t>(1) << EXACT_DIGIT_BITS;
}

/* Returns 2^exponent, a normal number. */
GPU_INLINE double get_power(int exponent)
{
    int64_t bits = static_cast<int64_t>(exponent + 1023) << (MANTISSA_BITS - 1);
    double power;
    memcpy(&power, &bits, sizeof power);
    return power;
}

/* Returns whether |x| < 2^EXACT_HIGHEST; false for NaN. */
GPU_INLINE bool fits_digits(double x)
{
    return fabs(x) < get_power(EXACT_HIGHEST);
}

/* Returns the contribution of x to a digit of the sum. As in exact_add, bits below the lowest digit
 * are truncated. fits_digits(x) must be true. */
GPU_INLINE int64_t get_digit(double x, int digit)
{
    int64_t all;
    memcpy(&all, &x, sizeof all);
    int exponent = static_cast<int>(all >> (MANTISSA_BITS - 1) & 0x7ff);
    int64_t fraction = all & ((static_cast<int64_t>(1) << (MANTISSA_BITS - 1)) - 1);
    if (exponent == 0) {
        return 0; /* less than 2^EXACT_LOWEST */
    }
    int64_t bits = fraction | static_cast<int64_t>(1) << (MANTISSA_BITS - 1);
    int position = exponent - EXPONENT_BIAS - EXACT_LOWEST;
    if (position < 0) {
        bits = position > -MANTISSA_BITS ? bits >> -position : 0;
        position = 0;
    }
    int first = position / EXACT_DIGIT_BITS, shift = position % EXACT_DIGIT_BITS;
    int64_t low = bits & ((get_digit_size() >> shift) - 1);
    int64_t high = bits >> (EXACT_DIGIT_BITS - shift);
    int64_t part = digit == first       ? low << shift
                   : digit == first + 1 ? high % get_digit_size()
                   : digit == first + 2 ? high / get_digit_size()
                                        : 0;
    return all < 0 ? -part : part;
}

GPU_INLINE void carry_digits(int64_t *digits)
{
    for (int i = 0; i + 1 < EXACT_DIGITS; i++) {
        int64_t carry = digits[i] / get_digit_size() - (digits[i] % get_digit_size() < 0);
        digits[i] -= carry * get_digit_size();
        digits[i + 1] += carry;
    }
}

/* Returns the value of the digits, as exact_value does. */
GPU_INLINE double get_value(int64_t *digits)
{
    carry_digits(digits);
    bool negative = digits[EXACT_DIGITS - 1] < 0;
    for (int i = 0; i < EXACT_DIGITS && negative; i++) {
        digits[i] = -digits[i];
    }
    carry_digits(digits);
    int top = EXACT_DIGITS - 1;
    while (top > 2 && digits[top] == 0) {
        top--;
    }
    double value = 0;
    for (int i = top - 2; i <= top; i++) { /* the products are exact */
        value += static_cast<double>(digits[i]) * get_power(i * EXACT_DIGIT_BITS + EXACT_LOWEST);
    }
    return negative ? -value : value;
}

__global__ void __launch_bounds__(EXACT_THREADS)
    sum_exactly(double *out, const double *x, int64_t count)
{
    GPU_SHARED(int64_t, digits, EXACT_THREADS);
    int lane = static_cast<int>(threadIdx.x);
    int64_t digit = 0;
    double overflow = 0; /* sum of infinities and NaN, the same on all lanes */
    for (int64_t i = 0; i < count; i++) {
        double term = x[i];
        if (fits_digits(term)) {
            digit += get_digit(term, lane);
        } else {
            overflow += host_device_is_finite(term) ? (term < 0 ? -INFINITY : INFINITY) : term;
        }
    }
    digits[lane] = digit;
    __syncthreads();
    if (lane == 0) {
        *out = overflow != 0 ? overflow : get_value(digits);
    }
}

__global__ void __launch_bounds__(ROWS_THREADS)
    sum_rows(double *out, const double *x, const double *y, int64_t rows, int64_t columns)
{
    int64_t c = static_cast<int64_t>(blockIdx.x) * ROWS_THREADS + threadIdx.x;
    if (c >= columns) {
        return;
    }
    double sum = 0;
    for (int64_t r = 0; r < rows; r++) {
        double term = x[r * columns + c] + (y != nullptr ? y[r * columns + c] : 0.0);
        sum = r == 0 ? term : sum + term;
    }
    out[c] = sum;
}

__global__ void __launch_bounds__(ROWS_THREADS)
    sum_segments(double *out, const double *x, const int32_t *first, const int32_t *counts,
                 int64_t segments, int64_t columns)
{
    int64_t i = static_cast<int64_t>(blockIdx.x) * ROWS_THREADS + threadIdx.x;
    if (i >= segments * columns) {
        return;
    }
    int64_t s = i / columns, from = first[s], to = from + counts[s];
    double sum = 0;
    for (int64_t r = from; r < to; r++) {
        sum += x[r * columns + i % columns];
    }
    out[i] = sum;
}

__global__ void __launch_bounds__(ROWS_THREADS)
    compute_trust_ratios(double *ratios, const double *squares, const int32_t *tensors,
                         int64_t count)
{
    int64_t i = static_cast<int64_t>(blockIdx.x) * ROWS_THREADS + threadIdx.x;
    if (i >= count) {
        return;
    }
    int64_t tensor = tensors[i] < 0 ? 0 : tensors[i];
    double ratio = control_get_trust_ratio(squares[2 * tensor], squares[2 * tensor + 1]);
    ratios[i] = tensors[i] >= 0 ? ratio : 1.0;
}

__global__ void decide_update(struct update_control *control, const struct update_sums s)
{
    control_decide(control, &s);
}

__global__ void decide_spike(struct update_control *control, struct spike_state *state,
                             const struct spike_inputs in)
{
    control->skip = spike_score_decide(state, &in);
}

/* ---- host ---- */

extern "C" status cuda_control_sum_exact(struct kernels *k, double *out, const double *x,
                                         int64_t count)
{
    LAUNCH(k, sum_exactly, 1, EXACT_THREADS, 0, out, x, count);
    return STATUS_OK;
}

extern "C" status cuda_control_sum_rows(struct kernels *k, double *out, const double *x,
                                        const double *y, int64_t rows, int64_t columns)
{
    LAUNCH(k, sum_rows, count_blocks(columns, ROWS_THREADS), ROWS_THREADS, 0, out, x, y, rows,
           columns);
    return STATUS_OK;
}

extern "C" status cuda_control_sum_segments(struct kernels *k, double *out, const double *x,
                                            const int32_t *first, const int32_t *counts,
                                            int64_t segments, int64_t columns)
{
    LAUNCH(k, sum_segments, count_blocks(segments * columns, ROWS_THREADS), ROWS_THREADS, 0, out, x,
           first, counts, segments, columns);
    return STATUS_OK;
}

extern "C" status cuda_control_trust_ratios(struct kernels *k, double *ratios,
                                            const double *squares, const int32_t *tensors,
                                            int64_t count)
{
    LAUNCH(k, compute_trust_ratios, count_blocks(count, ROWS_THREADS), ROWS_THREADS, 0, ratios,
           squares, tensors, count);
    return STATUS_OK;
}

extern "C" status cuda_control_decide_update(struct kernels *k, struct update_control *control,
                                             const struct update_sums *sums)
{
    LAUNCH(k, decide_update, 1, 1, 0, control, *sums);
    return STATUS_OK;
}

extern "C" status cuda_spike_score_run(struct kernels *k, struct update_control *control,
                                       struct spike_state *state, const struct spike_inputs *in)
{
    LAUNCH(k, decide_spike, 1, 1, 0, control, state, *in);
    return STATUS_OK;
}
