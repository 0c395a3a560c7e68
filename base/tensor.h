/* Views of matrices that own nothing, and the two storage types.
 *
 * Everything that the kernels touch is a matrix of rows: [N, C] activations, [M, K] weights,
 * [1, C] vectors. Letters used in all files: B batch, T tokens of a sequence, N = B T rows,
 * C width, H heads, G key-value heads, D head width, F inner width, V vocabulary, L layers. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum dtype { DTYPE_F32 = 0, DTYPE_BF16 = 1 };

typedef uint16_t bf16;

struct tensor {
    void *data; /* NULL: absent */
    enum dtype dtype;
    int64_t rows;
    int64_t columns;
    int64_t stride; /* elements from one row to the next; >= columns */
};

static inline size_t dtype_bytes(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? 4 : 2;
}

static inline const char *dtype_name(enum dtype dtype)
{
    return dtype == DTYPE_F32 ? "fp32" : "bf16";
}

static inline struct tensor tensor_view(void *data, enum dtype dtype, int64_t rows, int64_t columns)
{
    return (struct tensor){data, dtype, rows, columns, columns};
}

static inline struct tensor tensor_absent(void)
{
    return (struct tensor){0};
}

/* tensor_rows - rows [first, first + count) of t, sharing its memory. */
static inline struct tensor tensor_rows(struct tensor t, int64_t first, int64_t count)
{
    if (t.data != NULL) {
        t.data = (char *)t.data + (size_t)(first * t.stride) * dtype_bytes(t.dtype);
        t.rows = count;
    }
    return t;
}

/* tensor_columns - columns [first, first + count) of t, sharing its memory. */
static inline struct tensor tensor_columns(struct tensor t, int64_t first, int64_t count)
{
    if (t.data != NULL) {
        t.data = (char *)t.data + (size_t)first * dtype_bytes(t.dtype);
        t.columns = count;
    }
    return t;
}

static inline float bf16_to_f32(bf16 x)
{
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof y);
    return y;
}

/* f32_to_bf16 - round to nearest even; NaN stays NaN. */
static inline bf16 f32_to_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) {
        return (bf16)((bits >> 16) | 0x40u);
    }
    return (bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

/* f32_to_bf16_drawn - round up or down by 16 bits that were drawn: over all of them x is the mean, subnormal numbers
 * included, and what bf16 holds stays. Beyond the largest finite number there is no mean to keep: as to nearest. */
static inline bf16 f32_to_bf16_drawn(float x, uint32_t half)
{
    const uint32_t largest = 0x7f7f0000u;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits & 0x7fffffffu) >= largest ? f32_to_bf16(x) : (bf16)((bits + half) >> 16);
}
