/* A vector of floats with the width of the instruction set that the source is compiled for.
 *
 * The compiler provides +, -, *, / and comparisons for vector types; this header adds the rest.
 * Only sources that are compiled once for each instruction set include it. The lanes of a vector
 * are summed in a fixed tree, so results depend on the instruction set only.
 *
 * Memory    no alignment is needed
 * Numerics  vector_fma rounds once where the processor has the instruction (AVX2 with FMA,
 *           AVX-512), else twice; rounding to bf16 equals f32_to_bf16, also for NaN, but the
 *           AVX-512 BF16 instruction treats numbers below 2^-126 as zero */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/tensor.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
#include <immintrin.h>
#define VECTOR_LANES 16
#define VECTOR_AVX512 1
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
#define VECTOR_LANES 8
#define VECTOR_AVX2 1
#else
#define VECTOR_LANES 4
#endif

typedef float vector __attribute__((vector_size(4 * VECTOR_LANES)));
typedef int32_t vector_bits __attribute__((vector_size(4 * VECTOR_LANES)));
typedef uint32_t vector_words __attribute__((vector_size(4 * VECTOR_LANES)));
typedef uint16_t vector_halves __attribute__((vector_size(2 * VECTOR_LANES)));

/* vector_set - return a vector with x in every lane. */
static inline vector vector_set(float x)
{
    return x - (vector){0};
}

/* vector_load - load a vector. */
static inline vector vector_load(const float *p)
{
    vector x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* vector_store - store a vector. */
static inline void vector_store(float *p, vector x)
{
    memcpy(p, &x, sizeof x);
}

/* vector_load_halves - load a vector of 16-bit words. */
static inline vector_halves vector_load_halves(const uint16_t *p)
{
    vector_halves x;
    memcpy(&x, p, sizeof x);
    return x;
}

/* vector_index - return the lane numbers 0, 1, 2, ... */
static inline vector_bits vector_index(void)
{
    vector_bits index = {0};
    for (int i = 0; i < VECTOR_LANES; i++) {
        index[i] = i;
    }
    return index;
}

/* vector_select - return a where the mask of the lane is all ones, and b where it is zero. */
static inline vector vector_select(vector_bits mask, vector a, vector b)
{
    return (vector)(((vector_bits)a & mask) | ((vector_bits)b & ~mask));
}

/* ---- functions with a definition for each instruction set ---- */

/* vector_fma - return a b + c. */
static inline vector vector_fma(vector a, vector b, vector c);

/* vector_max - return the maximum of each lane; x if either operand is NaN. */
static inline vector vector_max(vector limit, vector x);

/* vector_min - return the minimum of each lane; x if either operand is NaN. */
static inline vector vector_min(vector limit, vector x);

/* vector_sqrt - return the square root of each lane. */
static inline vector vector_sqrt(vector x);

/* vector_scale - return x 2^n.
 *
 * Units     n has integers in [-252, 254] */
static inline vector vector_scale(vector x, vector n);

/* vector_load_part - load `count` floats. The other lanes are 0. */
static inline vector vector_load_part(const float *p, int count);

/* vector_store_part - store the first `count` lanes. */
static inline void vector_store_part(float *p, vector x, int count);

/* vector_load_bf16 - load bf16 elements as floats. */
static inline vector vector_load_bf16(const bf16 *p);

/* vector_store_bf16 - round to bf16 and store. */
static inline void vector_store_bf16(bf16 *p, vector x);

/* vector_sum - return the sum of the lanes. */
static inline float vector_sum(vector x);

/* vector_maximum - return the maximum of the lanes. */
static inline float vector_maximum(vector x);

#if defined(VECTOR_AVX512)

static inline vector vector_fma(vector a, vector b, vector c)
{
    return (vector)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}

static inline vector vector_max(vector limit, vector x)
{
    return (vector)_mm512_max_ps((__m512)limit, (__m512)x);
}

static inline vector vector_min(vector limit, vector x)
{
    return (vector)_mm512_min_ps((__m512)limit, (__m512)x);
}

static inline vector vector_sqrt(vector x)
{
    return (vector)_mm512_sqrt_ps((__m512)x);
}

static inline vector vector_scale(vector x, vector n)
{
    return (vector)_mm512_scalef_ps((__m512)x, (__m512)n);
}

static inline vector vector_load_part(const float *p, int count)
{
    return (vector)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1u), p);
}

static inline void vector_store_part(float *p, vector x, int count)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << count) - 1u), (__m512)x);
}

static inline vector vector_load_bf16(const bf16 *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return (vector)_mm512_slli_epi32(wide, 16);
}

#if defined(__AVX512BF16__)
static inline void vector_store_bf16(bf16 *p, vector x)
{
    __m256bh packed = _mm512_cvtneps_pbh((__m512)x);
    memcpy(p, &packed, sizeof packed);
}
#else
static inline void vector_store_bf16(bf16 *p, vector x)
{
    __m512i bits = (__m512i)x;
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q);
    up = _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
    __m256i packed = _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16));
    _mm256_storeu_si256((__m256i *)(void *)p, packed);
}
#endif

static inline float vector_sum(vector x)
{
    return _mm512_reduce_add_ps((__m512)x);
}

static inline float vector_maximum(vector x)
{
    return _mm512_reduce_max_ps((__m512)x);
}

#else

static inline vector vector_load_part(const float *p, int count)
{
    vector x = {0};
    memcpy(&x, p, (size_t)count * sizeof *p);
    return x;
}

static inline void vector_store_part(float *p, vector x, int count)
{
    memcpy(p, &x, (size_t)count * sizeof *p);
}

static inline float vector_sum(vector x)
{
    for (int half = VECTOR_LANES / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) {
            x[i] += x[i + half];
        }
    }
    return x[0];
}

static inline float vector_maximum(vector x)
{
    float largest = x[0];
    for (int i = 1; i < VECTOR_LANES; i++) {
        largest = largest > x[i] ? largest : x[i];
    }
    return largest;
}

/* Two steps are needed, because 2^n alone may not be a normal number. */
static inline vector vector_scale(vector x, vector n)
{
    vector_bits whole = __builtin_convertvector(n, vector_bits);
    vector_bits half = whole >> 1;
    return x * (vector)((half + 127) << 23) * (vector)((whole - half + 127) << 23);
}

#if defined(VECTOR_AVX2)

static inline vector vector_fma(vector a, vector b, vector c)
{
    return (vector)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}

static inline vector vector_max(vector limit, vector x)
{
    return (vector)_mm256_max_ps((__m256)limit, (__m256)x);
}

static inline vector vector_min(vector limit, vector x)
{
    return (vector)_mm256_min_ps((__m256)limit, (__m256)x);
}

static inline vector vector_sqrt(vector x)
{
    return (vector)_mm256_sqrt_ps((__m256)x);
}

static inline vector vector_load_bf16(const bf16 *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return (vector)_mm256_slli_epi32(wide, 16);
}

static inline void vector_store_bf16(bf16 *p, vector x)
{
    vector_words bits = (vector_words)x, nan = (vector_words)(x != x);
    vector_words up = bits + (((bits >> 16) & 1) + 0x7fff);
    up = (((bits | 0x400000) & nan) | (up & ~nan)) >> 16;
    __m128i low = _mm256_castsi256_si128((__m256i)up);
    __m128i high = _mm256_extracti128_si256((__m256i)up, 1);
    _mm_storeu_si128((__m128i *)(void *)p, _mm_packus_epi32(low, high));
}

#else

static inline vector vector_fma(vector a, vector b, vector c)
{
    return a * b + c;
}

static inline vector vector_max(vector limit, vector x)
{
    return vector_select(limit > x, limit, x);
}

static inline vector vector_min(vector limit, vector x)
{
    return vector_select(limit < x, limit, x);
}

static inline vector vector_sqrt(vector x)
{
    for (int i = 0; i < VECTOR_LANES; i++) {
        x[i] = sqrtf(x[i]);
    }
    return x;
}

static inline vector vector_load_bf16(const bf16 *p)
{
    vector x;
    for (int i = 0; i < VECTOR_LANES; i++) {
        x[i] = bf16_to_f32(p[i]);
    }
    return x;
}

static inline void vector_store_bf16(bf16 *p, vector x)
{
    for (int i = 0; i < VECTOR_LANES; i++) {
        p[i] = f32_to_bf16(x[i]);
    }
}

#endif
#endif

/* vector_load_bf16_part - load `count` bf16 elements; the other lanes are 0. */
static inline vector vector_load_bf16_part(const bf16 *p, int count)
{
    bf16 part[VECTOR_LANES] = {0};
    memcpy(part, p, (size_t)count * sizeof *p);
    return vector_load_bf16(part);
}

/* vector_store_bf16_part - store the first `count` lanes as bf16. */
static inline void vector_store_bf16_part(bf16 *p, vector x, int count)
{
    bf16 part[VECTOR_LANES];
    vector_store_bf16(part, x);
    memcpy(p, part, (size_t)count * sizeof *p);
}

/* vector_get - load `count` elements of a dtype from index `at` on, at most one vector. */
static inline vector vector_get(const void *data, enum dtype dtype, int64_t at, int64_t count)
{
    if (dtype == DTYPE_F32) {
        const float *p = (const float *)data + at;
        return count >= VECTOR_LANES ? vector_load(p) : vector_load_part(p, (int)count);
    }
    const bf16 *p = (const bf16 *)data + at;
    return count >= VECTOR_LANES ? vector_load_bf16(p) : vector_load_bf16_part(p, (int)count);
}

/* vector_put - store `count` elements as a dtype from index `at` on, at most one vector. */
static inline void vector_put(void *data, enum dtype dtype, int64_t at, vector x, int64_t count)
{
    if (dtype == DTYPE_F32) {
        float *p = (float *)data + at;
        if (count >= VECTOR_LANES) {
            vector_store(p, x);
        } else {
            vector_store_part(p, x, (int)count);
        }
    } else if (count >= VECTOR_LANES) {
        vector_store_bf16((bf16 *)data + at, x);
    } else {
        vector_store_bf16_part((bf16 *)data + at, x, (int)count);
    }
}
