/* Matrix views, which do not own their memory, and the two storage types.
 *
 * All operands of the kernels are matrices of rows: activations [N, C], weights [M, K], vectors
 * [1, C]. All files use the same letters for shapes: B batch, T tokens of a sequence, N = B T rows,
 * C width, H heads, G key-value heads, D head width, F inner width, V vocabulary, L layers. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* E4M3 and E5M2 are the 8-bit types of the operands of FP8 GEMMs: 4 or 5 exponent bits, 3 or 2
 * fraction bits. E4M3 has no infinity. */
enum dtype { DTYPE_F32 = 0, DTYPE_BF16 = 1, DTYPE_E4M3 = 2, DTYPE_E5M2 = 3 };

typedef uint16_t bf16;

struct tensor {
    void *data; /* NULL: absent */
    enum dtype dtype;
    int64_t rows;
    int64_t columns;
    int64_t stride; /* elements from one row to the next; >= columns */
};

/* dtype_bytes - return the size of one element. */
static inline size_t dtype_bytes(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 4 : dtype == DTYPE_BF16 ? 2 : 1;
}

/* dtype_name - return "fp32", "bf16", "e4m3" or "e5m2". */
static inline const char *dtype_name(enum dtype dtype)
{
    static const char *const names[] = {"fp32", "bf16", "e4m3", "e5m2"};
    return names[dtype];
}

/* tensor_view - return a view of contiguous rows. */
static inline struct tensor tensor_view(void *data, enum dtype dtype, int64_t rows, int64_t columns)
{
    return (struct tensor){data, dtype, rows, columns, columns};
}

/* tensor_bytes - return the size of the elements of t. */
static inline size_t tensor_bytes(struct tensor t)
{
    return (size_t)(t.rows * t.columns) * dtype_bytes(t.dtype);
}

/* tensor_absent - return a view without data. */
static inline struct tensor tensor_absent(void)
{
    return (struct tensor){0};
}

/* tensor_rows - return a view of rows [first, first + count) of t. */
static inline struct tensor tensor_rows(struct tensor t, int64_t first, int64_t count)
{
    if (t.data != NULL) {
        t.data = (char *)t.data + (size_t)(first * t.stride) * dtype_bytes(t.dtype);
        t.rows = count;
    }
    return t;
}

/* tensor_columns - return a view of columns [first, first + count) of t. */
static inline struct tensor tensor_columns(struct tensor t, int64_t first, int64_t count)
{
    if (t.data != NULL) {
        t.data = (char *)t.data + (size_t)first * dtype_bytes(t.dtype);
        t.columns = count;
    }
    return t;
}

/* bf16_to_f32 - convert to f32, without rounding. */
static inline float bf16_to_f32(bf16 x)
{
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

/* tensor_get - return an element of a view of f32 or bf16 values in host memory. */
static inline float tensor_get(struct tensor t, int64_t row, int64_t column)
{
    int64_t index = row * t.stride + column;
    return t.dtype == DTYPE_F32 ? ((const float *)t.data)[index]
                                : bf16_to_f32(((const bf16 *)t.data)[index]);
}

/* f32_to_bf16 - round to nearest, ties to even. NaN stays NaN. */
static inline bf16 f32_to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (bf16)((bits >> 16) | 0x40u);
    }
    return (bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* f16_to_f32 - convert IEEE half precision to f32, without rounding. */
static inline float f16_to_f32(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16, exponent = (x >> 10) & 0x1fu;
    uint32_t fraction = x & 0x3ffu, bits;
    float value;
    if (exponent == 0) { /* a subnormal number, which is normal in f32 */
        value = (float)fraction * 0x1p-24f;
        return sign != 0 ? -value : value;
    }
    bits = exponent == 0x1f ? 0x7f800000u : (exponent + 112) << 23;
    bits |= sign | fraction << 13;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* f32_to_f16 - round to nearest, ties to even. Values above 65504 become infinite; NaN
 * stays NaN. */
static inline uint16_t f32_to_f16(float x)
{
    uint32_t bits, sign;
    memcpy(&bits, &x, sizeof bits);
    sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u);
    }
    if (bits >= 0x477ff000u) { /* 65520 and above */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (bits < 0x38800000u) { /* below 2^-14; the addition rounds to a multiple of 2^-24 */
        float magnitude;
        memcpy(&magnitude, &bits, sizeof magnitude);
        magnitude += 0.5f;
        memcpy(&bits, &magnitude, sizeof bits);
        return (uint16_t)(sign | (bits - 0x3f000000u));
    }
    return (uint16_t)(sign | (bits - 0x38000000u + 0xfffu + (bits >> 13 & 1u)) >> 13);
}

/* f32_to_bf16_stochastic - round up or down, as decided by 16 random bits.
 *
 * Numerics  the mean over all values of random_bits is x, also for subnormal numbers. Values that
 *           bf16 represents exactly do not change. Values beyond the largest finite bf16 number,
 *           and NaN, are rounded to nearest. */
static inline bf16 f32_to_bf16_stochastic(float x, uint32_t random_bits)
{
    const uint32_t largest = 0x7f7f0000u;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits & 0x7fffffffu) >= largest ? f32_to_bf16(x) : (bf16)((bits + random_bits) >> 16);
}
