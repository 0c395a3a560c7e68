/* Conversion between f32 and the element types of GGUF. */
#include <math.h>
#include <string.h>

#include "base/tensor.h"
#include "trainer/formats/gguf/gguf.h"

enum {
    Q8_0_BYTES = 2 + GGUF_BLOCK,    /* the scale in f16, then 32 signed bytes */
    Q4_0_BYTES = 2 + GGUF_BLOCK / 2 /* the scale in f16, then elements i and i + 16 in byte i */
};

const char *gguf_type_name(enum gguf_type type)
{
    switch (type) {
    case GGUF_F32:
        return "f32";
    case GGUF_F16:
        return "f16";
    case GGUF_BF16:
        return "bf16";
    case GGUF_Q8_0:
        return "q8_0";
    case GGUF_Q4_0:
        return "q4_0";
    }
    return "unknown";
}

size_t gguf_type_bytes(enum gguf_type type, int64_t elements)
{
    size_t n = (size_t)elements;
    switch (type) {
    case GGUF_F32:
        return 4 * n;
    case GGUF_F16:
    case GGUF_BF16:
        return 2 * n;
    case GGUF_Q8_0:
        return n / GGUF_BLOCK * Q8_0_BYTES;
    case GGUF_Q4_0:
        return n / GGUF_BLOCK * Q4_0_BYTES;
    }
    return 0;
}

static void encode_q8_0(const float *x, uint8_t *out)
{
    float largest = 0;
    for (int i = 0; i < GGUF_BLOCK; i++) {
        largest = fmaxf(largest, fabsf(x[i]));
    }
    float scale = largest / 127, inverse = scale > 0 ? 1 / scale : 0;
    uint16_t half = f32_to_f16(scale);
    memcpy(out, &half, sizeof half);
    for (int i = 0; i < GGUF_BLOCK; i++) {
        out[2 + i] = (uint8_t)(int8_t)roundf(x[i] * inverse);
    }
}

static uint8_t quantize_4_bits(float x)
{
    int value = (int)(x + 8.5f);
    return (uint8_t)(value < 15 ? value : 15);
}

static void encode_q4_0(const float *x, uint8_t *out)
{
    float largest = 0;
    for (int i = 0; i < GGUF_BLOCK; i++) {
        largest = fabsf(x[i]) > fabsf(largest) ? x[i] : largest;
    }
    float scale = largest / -8, inverse = scale != 0 ? 1 / scale : 0;
    uint16_t half = f32_to_f16(scale);
    memcpy(out, &half, sizeof half);
    for (int i = 0; i < GGUF_BLOCK / 2; i++) {
        unsigned low = quantize_4_bits(x[i] * inverse);
        unsigned high = quantize_4_bits(x[i + GGUF_BLOCK / 2] * inverse);
        out[2 + i] = (uint8_t)(low | high << 4);
    }
}

void gguf_encode(enum gguf_type type, const float *values, int64_t count, void *out)
{
    uint8_t *bytes = out;
    uint16_t *halves = out;
    switch (type) {
    case GGUF_F32:
        memcpy(out, values, (size_t)count * sizeof *values);
        break;
    case GGUF_F16:
        for (int64_t i = 0; i < count; i++) {
            halves[i] = f32_to_f16(values[i]);
        }
        break;
    case GGUF_BF16:
        for (int64_t i = 0; i < count; i++) {
            halves[i] = f32_to_bf16(values[i]);
        }
        break;
    case GGUF_Q8_0:
        for (int64_t i = 0; i < count / GGUF_BLOCK; i++) {
            encode_q8_0(values + i * GGUF_BLOCK, bytes + i * Q8_0_BYTES);
        }
        break;
    case GGUF_Q4_0:
        for (int64_t i = 0; i < count / GGUF_BLOCK; i++) {
            encode_q4_0(values + i * GGUF_BLOCK, bytes + i * Q4_0_BYTES);
        }
        break;
    }
}

static float read_scale(const uint8_t *block)
{
    uint16_t half;
    memcpy(&half, block, sizeof half);
    return f16_to_f32(half);
}

static void decode_q8_0(const uint8_t *block, float *out)
{
    float scale = read_scale(block);
    for (int i = 0; i < GGUF_BLOCK; i++) {
        out[i] = scale * (float)(int8_t)block[2 + i];
    }
}

static void decode_q4_0(const uint8_t *block, float *out)
{
    float scale = read_scale(block);
    for (int i = 0; i < GGUF_BLOCK / 2; i++) {
        out[i] = scale * (float)((block[2 + i] & 15) - 8);
        out[i + GGUF_BLOCK / 2] = scale * (float)((block[2 + i] >> 4) - 8);
    }
}

void gguf_decode(enum gguf_type type, const void *data, int64_t count, float *out)
{
    const uint8_t *bytes = data;
    const uint16_t *halves = data;
    switch (type) {
    case GGUF_F32:
        memcpy(out, data, (size_t)count * sizeof *out);
        break;
    case GGUF_F16:
        for (int64_t i = 0; i < count; i++) {
            out[i] = f16_to_f32(halves[i]);
        }
        break;
    case GGUF_BF16:
        for (int64_t i = 0; i < count; i++) {
            out[i] = bf16_to_f32(halves[i]);
        }
        break;
    case GGUF_Q8_0:
        for (int64_t i = 0; i < count / GGUF_BLOCK; i++) {
            decode_q8_0(bytes + i * Q8_0_BYTES, out + i * GGUF_BLOCK);
        }
        break;
    case GGUF_Q4_0:
        for (int64_t i = 0; i < count / GGUF_BLOCK; i++) {
            decode_q4_0(bytes + i * Q4_0_BYTES, out + i * GGUF_BLOCK);
        }
        break;
    }
}
