/* GELU and its derivative with the exponential and the reciprocal of the hardware, for results in
 * bf16. The derivative of an element takes about 15 instructions (tanh) or 22 (erf). With tanhf,
 * erfcf and expf it takes about 50. Instructions, not memory bandwidth, then limit a kernel.
 *
 *   tanh  gelu(x) = x s(2 u),  u = sqrt(2 / pi) (x + GELU_CUBIC x^3),  s the sigmoid
 *   erf   gelu(x) = x (1 - q(x)) for x >= 0, x q(-x) otherwise
 *         q(x) = (1 - erf(x / sqrt(2))) / 2 = t (a1 + a2 t + ... + a5 t^4) exp(-x^2 / 2),
 *         t = 1 / (1 + p x / sqrt(2)), with an error of at most 7.5e-8
 *
 * Source    Abramowitz, Stegun 1964, Handbook of Mathematical Functions, 7.1.26 (erf) */
#pragma once

#include "kernels/cuda/operation.cuh"

/* fast_sigmoid - return 1 / (1 + exp(-x)), within a few units in the last place of f32. */
GPU_INLINE float fast_sigmoid(float x)
{
    return __fdividef(1.0f, 1.0f + gpu_exp2(-LOG2_E * x));
}

/* fast_gelu_tanh - return GELU by tanh, and its derivative in *derivative. */
GPU_INLINE float fast_gelu_tanh(float x, float *derivative)
{
    constexpr float linear = 2.0f * SQRT_2_OVER_PI, cubic = linear * GELU_CUBIC;
    float square = fminf(x * x, 256.0f); /* beyond +-16, the sigmoid is 0 or 1 */
    float s = fast_sigmoid(x * (linear + cubic * square));
    *derivative = s + x * (s - s * s) * (linear + 3.0f * cubic * square);
    return x * s;
}

/* fast_gelu_erf - return GELU by erf, and its derivative in *derivative. */
GPU_INLINE float fast_gelu_erf(float x, float *derivative)
{
    constexpr float p = 0.3275911f * SQRT_HALF;
    constexpr float a1 = 0.127414796f, a2 = -0.142248368f, a3 = 0.7107068705f, a4 = -0.7265760135f,
                    a5 = 0.5307027145f; /* half of the coefficients of erf */
    float t = __fdividef(1.0f, 1.0f + p * fabsf(x));
    float exponential = gpu_exp2(-0.5f * LOG2_E * (x * x));
    float q = t * (a1 + t * (a2 + t * (a3 + t * (a4 + t * a5)))) * exponential;
    float normal = x < 0.0f ? q : 1.0f - q;
    *derivative = normal + x * exponential * INVERSE_SQRT_2_PI;
    return x * normal;
}
