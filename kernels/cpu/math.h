/* Elementary functions on vectors of floats. There are no tables and no branches; NaN
 * propagates.
 *
 * The errors are the largest over the arguments of tests/kernels/test_math.c, which prints them.
 * The polynomials are Chebyshev interpolants that were computed in rational arithmetic.
 *
 *   math_exp2, math_exp   relative 1.5e-7; below 2^-126 the result is 0
 *   math_log              absolute 1e-7 max(1, |log x|), from 2^-126 on
 *   math_tanh             absolute 2e-7
 *   math_tanh_relative    relative 3e-7
 *   math_erf              absolute 4e-7
 *   math_normal           Phi, the normal distribution: absolute 2e-7, relative 1e-5 down to 1e-26
 *   math_gelu_*           absolute 4e-7 max(1, |x|), and its derivative; -infinity gives NaN */
#pragma once

#include "kernels/cpu/vector.h"

/* math_exp2 - compute 2^x. */
static inline vector math_exp2(vector x)
{
    vector_bits underflows = x < -126.0f;
    /* -127 would give a subnormal number. An operation on it takes more than 100 cycles. */
    x = vector_min(vector_set(129.0f), vector_max(vector_set(-126.0f), x));
    const vector shift = vector_set(12582912.0f); /* 1.5 2^23: adding it rounds to an integer */
    vector n = (x + shift) - shift;
    vector r = x - n;
    vector y = vector_set(0.0001546144469646172f);
    y = vector_fma(y, r, vector_set(0.0013400428177419153f));
    y = vector_fma(y, r, vector_set(0.00961805667852609f));
    y = vector_fma(y, r, vector_set(0.05550327226670944f));
    y = vector_fma(y, r, vector_set(0.24022650922288827f));
    y = vector_fma(y, r, vector_set(0.6931472067028321f));
    y = vector_fma(y, r, vector_set(1.0f));
    return (vector)((vector_bits)vector_scale(y, n) & ~underflows);
}

/* math_exp - compute e^x. */
static inline vector math_exp(vector x)
{
    vector_bits underflows = x < -87.33654f;
    x = vector_min(vector_set(89.5f), vector_max(vector_set(-88.0f), x));
    const vector shift = vector_set(12582912.0f);
    vector n = vector_fma(x, vector_set(1.44269504f), shift) - shift;
    vector r = vector_fma(n, vector_set(-0.693359375f), x);
    r = vector_fma(n, vector_set(2.12194440e-4f), r);
    vector y = vector_set(0.0013941108438804987f);
    y = vector_fma(y, r, vector_set(0.008375126398132253f));
    y = vector_fma(y, r, vector_set(0.04166635289669687f));
    y = vector_fma(y, r, vector_set(0.16666415514653618f));
    y = vector_fma(y, r, vector_set(0.5f));
    y = vector_fma(y, r, vector_set(1.0f));
    y = vector_fma(y, r, vector_set(1.0f));
    return (vector)((vector_bits)vector_scale(y, n) & ~underflows);
}

/* math_log - compute the natural logarithm of x > 0. For 0, the result is finite.
 *
 * Source    the polynomial of logf in Cephes (Moshier 1989) */
static inline vector math_log(vector x)
{
    const vector_bits root = (vector_bits)vector_set(0.707106781f);
    vector_bits exponent = ((vector_bits)x - root) >> 23;
    vector r = (vector)((vector_bits)x - (exponent << 23)) - 1.0f;
    vector n = __builtin_convertvector(exponent, vector);
    vector y = vector_set(7.0376836292e-2f);
    y = vector_fma(y, r, vector_set(-1.1514610310e-1f));
    y = vector_fma(y, r, vector_set(1.1676998740e-1f));
    y = vector_fma(y, r, vector_set(-1.2420140846e-1f));
    y = vector_fma(y, r, vector_set(1.4249322787e-1f));
    y = vector_fma(y, r, vector_set(-1.6668057665e-1f));
    y = vector_fma(y, r, vector_set(2.0000714765e-1f));
    y = vector_fma(y, r, vector_set(-2.4999993993e-1f));
    y = vector_fma(y, r, vector_set(3.3333331174e-1f));
    y = vector_fma(y, r, vector_set(-0.5f)) * r * r;
    y = vector_fma(n, vector_set(-2.12194440e-4f), y) + r;
    y = vector_fma(n, vector_set(0.693359375f), y);
    return vector_select(x == x, y, x);
}

/* math_sigmoid - compute 1 / (1 + exp(-x)), without cancellation on either side. */
static inline vector math_sigmoid(vector x)
{
    return 1.0f / (1.0f + math_exp(-x));
}

/* math_tanh - compute tanh(x). */
static inline vector math_tanh(vector x)
{
    return 2.0f * math_sigmoid(2.0f * x) - 1.0f;
}

/* math_tanh_relative - compute tanh(x) with a small relative error near 0, by a polynomial. */
static inline vector math_tanh_relative(vector x)
{
    vector z = x * x;
    vector y = vector_set(-0.0057049887f);
    y = vector_fma(y, z, vector_set(0.0206390888f));
    y = vector_fma(y, z, vector_set(-0.0537397155f));
    y = vector_fma(y, z, vector_set(0.133314422f));
    y = vector_fma(y, z, vector_set(-0.333332820f));
    return vector_select(z < 0.390625f, vector_fma(y * z, x, x), math_tanh(x));
}

/* math_erfc_tail - compute erfc(z) = exp(-z^2) t P(t) with t = 1 / (1 + 0.4 z), for z >= 0. */
static inline vector math_erfc_tail(vector z)
{
    vector t = 1.0f / vector_fma(vector_set(0.4f), z, vector_set(1.0f));
    vector p = vector_set(-0.033501126862686484f);
    p = vector_fma(p, t, vector_set(0.21878535607676156f));
    p = vector_fma(p, t, vector_set(-0.5465026176181237f));
    p = vector_fma(p, t, vector_set(0.6093421800651718f));
    p = vector_fma(p, t, vector_set(-0.33431187595175005f));
    p = vector_fma(p, t, vector_set(0.2979731944347038f));
    p = vector_fma(p, t, vector_set(0.12105998253339952f));
    p = vector_fma(p, t, vector_set(0.21668938594171913f));
    p = vector_fma(p, t, vector_set(0.22474866527593063f));
    p = vector_fma(p, t, vector_set(0.2257168574370054f));
    return math_exp(-z * z) * t * p;
}

/* math_absolute - compute |x|. */
static inline vector math_absolute(vector x)
{
    return (vector)((vector_bits)x & 0x7fffffff);
}

/* math_erf - compute the error function. */
static inline vector math_erf(vector x)
{
    vector size = 1.0f - math_erfc_tail(math_absolute(x));
    return (vector)((vector_bits)size | ((vector_bits)x & ~0x7fffffff));
}

/* math_normal - compute Phi(x) = erfc(-x / sqrt(2)) / 2, on the side without cancellation. */
static inline vector math_normal(vector x)
{
    vector tail = 0.5f * math_erfc_tail(math_absolute(x) * 0.70710678f);
    return vector_select(x < 0.0f, tail, 1.0f - tail);
}

/* math_sigmoid_exp2 - compute 1 / (1 + 2^x) for x in [-252, 252].
 *
 * It needs no special cases at the ends of this range, and half the precision of math_exp2. */
static inline vector math_sigmoid_exp2(vector x)
{
    const vector shift = vector_set(12582912.0f); /* as in math_exp2 */
    vector n = (x + shift) - shift;
    vector r = x - n;
    vector y = vector_set(0.0013390863364671234f);
    y = vector_fma(y, r, vector_set(0.009676031918322054f));
    y = vector_fma(y, r, vector_set(0.05550357114219078f));
    y = vector_fma(y, r, vector_set(0.2402210748530834f));
    y = vector_fma(y, r, vector_set(0.6931471880262288f));
    y = vector_fma(y, r, vector_set(1.0f));
    return 1.0f / (1.0f + vector_scale(y, n));
}

/* math_gelu_tanh_gate - compute sigmoid(2 u) with u = sqrt(2 / pi) (x + 0.044715 x^3).
 *
 * The tanh form of GELU equals x sigmoid(2 u). The form (1 + tanh u) / 2 would cancel. The
 * exponential is a power of two, with log2(e) in the coefficients. Beyond +-12 the sigmoid is 0 or
 * 1 in f32; clamping keeps x^3 finite and the exponent in range. */
static inline vector math_gelu_tanh_gate(vector x)
{
    x = vector_min(vector_set(12.0f), vector_max(vector_set(-12.0f), x));
    vector factor = vector_fma(x * x, vector_set(-0.1029432396f), vector_set(-2.302208198f));
    return math_sigmoid_exp2(x * factor);
}

/* math_gelu_tanh - compute the tanh form of GELU. */
static inline vector math_gelu_tanh(vector x)
{
    return x * math_gelu_tanh_gate(x);
}

/* math_gelu_tanh_derivative - compute the derivative of math_gelu_tanh. */
static inline vector math_gelu_tanh_derivative(vector x)
{
    vector gate = math_gelu_tanh_gate(x);
    x = vector_min(vector_set(12.0f), vector_max(vector_set(-12.0f), x));
    vector inner = vector_fma(x * x, vector_set(0.21406444884f), vector_set(1.59576912f));
    return vector_fma(x * inner, gate * (1.0f - gate), gate);
}

/* math_gelu_erf - compute x Phi(x). */
static inline vector math_gelu_erf(vector x)
{
    return x * math_normal(x);
}

/* math_gelu_erf_derivative - compute the derivative of math_gelu_erf. */
static inline vector math_gelu_erf_derivative(vector x)
{
    vector bounded = vector_min(vector_set(14.0f), vector_max(vector_set(-14.0f), x));
    vector density = 0.39894228f * math_exp(-0.5f * bounded * bounded);
    return vector_fma(bounded, density, math_normal(x));
}
