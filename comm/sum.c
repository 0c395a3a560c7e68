#include "comm/sum.h"

#include <string.h>

#include "base/number.h"
#include "base/tensor.h"

#define BLOCK 1024 /* elements */

/* Not with sanitizers: they are not initialized yet when the loader chooses among the clones. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SIMD_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define SIMD_CLONES
#endif

SIMD_CLONES static void add_two(float *restrict a, float *restrict b, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        float sum = a[i] + b[i];
        a[i] = sum;
        b[i] = sum;
    }
}

SIMD_CLONES static void add_f32(float *restrict sum, const float *restrict part, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        sum[i] += part[i];
    }
}

/* ---- bf16: added in f32, rounded once ---- */

SIMD_CLONES static void add_bf16(float *restrict sum, const bf16 *restrict part, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        sum[i] += bf16_to_f32(part[i]);
    }
}

SIMD_CLONES static void round_to_bf16(bf16 *restrict out, const float *restrict sum, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        out[i] = f32_to_bf16(sum[i]);
    }
}

/* ---- one block of all parts ---- */

static float *get_f32_part(char *const *parts, int i, int64_t first)
{
    return (float *)(void *)parts[i] + first;
}

static void sum_f32_block(float *block, char *const *parts, int part_count, int64_t first,
                          int64_t count)
{
    memcpy(block, get_f32_part(parts, 0, first), (size_t)count * sizeof *block);
    for (int i = 1; i < part_count; i++) {
        add_f32(block, get_f32_part(parts, i, first), count);
    }
}

static void sum_bf16_block(bf16 *block, char *const *parts, int part_count, int64_t first,
                           int64_t count)
{
    float sums[BLOCK] = {0};
    for (int i = 0; i < part_count; i++) {
        add_bf16(sums, (const bf16 *)(const void *)parts[i] + first, count);
    }
    round_to_bf16(block, sums, count);
}

union block {
    float f32_values[BLOCK];
    bf16 bf16_values[BLOCK];
};

static void sum_block(union block *block, char *const *parts, int part_count, int64_t first,
                      int64_t count, size_t element_bytes)
{
    if (element_bytes == sizeof(bf16)) {
        sum_bf16_block(block->bf16_values, parts, part_count, first, count);
    } else {
        sum_f32_block(block->f32_values, parts, part_count, first, count);
    }
}

void sum_to_all(char *const *parts, int part_count, int64_t first, int64_t count,
                size_t element_bytes)
{
    if (part_count == 2 && element_bytes == sizeof(float)) {
        add_two(get_f32_part(parts, 0, first), get_f32_part(parts, 1, first), count);
        return;
    }
    union block block;
    for (int64_t done = 0; done < count && part_count > 1; done += BLOCK) {
        int64_t chunk = number_min(count - done, BLOCK);
        sum_block(&block, parts, part_count, first + done, chunk, element_bytes);
        for (int i = 0; i < part_count; i++) {
            memcpy(parts[i] + (size_t)(first + done) * element_bytes, &block,
                   (size_t)chunk * element_bytes);
        }
    }
}

void sum_accumulate(float *sums, bool overwrite, char *const *parts, int part_count, int64_t count)
{
    for (int64_t done = 0; done < count; done += BLOCK) {
        int64_t chunk = number_min(count - done, BLOCK);
        for (int i = 0; i < part_count; i++) {
            if (overwrite && i == 0) {
                memcpy(sums + done, get_f32_part(parts, i, done), (size_t)chunk * sizeof *sums);
            } else {
                add_f32(sums + done, get_f32_part(parts, i, done), chunk);
            }
        }
    }
}

void sum_into(void *target, char *const *parts, int part_count, int64_t first, int64_t count,
              size_t element_bytes)
{
    char *out = target;
    if (part_count == 1 && element_bytes == sizeof(float)) {
        const char *only = parts[0] + (size_t)first * element_bytes;
        if (out != only) {
            memcpy(out, only, (size_t)count * element_bytes);
        }
        return;
    }
    union block block;
    for (int64_t done = 0; done < count; done += BLOCK) {
        int64_t chunk = number_min(count - done, BLOCK);
        sum_block(&block, parts, part_count, first + done, chunk, element_bytes);
        memcpy(out + (size_t)done * element_bytes, &block, (size_t)chunk * element_bytes);
    }
}
