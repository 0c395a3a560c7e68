/* Sums over several ranks' memory in one pass: what a rank reads it reads once, what it writes it
 * writes once. The parts are added in order, element by element, so that the result does not depend
 * on who adds or on how the range is cut.
 *
 * Two parts, the common case, go straight through registers. More go through a block that stays in
 * the first-level cache, because many streams read and written at once defeat the prefetcher. */
#include <string.h>

#include "base/tensor.h"
#include "comm/shared_impl.h"

#define BLOCK 1024 /* floats */

/* Sanitizers are not yet there when the loader chooses among clones. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define WIDE __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define WIDE
#endif

WIDE static void add_both(float *restrict a, float *restrict b, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        float sum = a[i] + b[i];
        a[i] = sum;
        b[i] = sum;
    }
}

WIDE static void add(float *restrict sum, const float *restrict part, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        sum[i] += part[i];
    }
}

/* ---- bf16: added as floats, rounded once ---- */

WIDE static void add_narrow(float *restrict sum, const bf16 *restrict part, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        sum[i] += bf16_to_f32(part[i]);
    }
}

WIDE static void round_block(bf16 *restrict out, const float *restrict sum, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        out[i] = f32_to_bf16(sum[i]);
    }
}

/* ---- a block of all parts ---- */

static float *part_at(char *const *parts, int i, int64_t first)
{
    return (float *)(void *)parts[i] + first;
}

static void sum_floats(float *block, char *const *parts, int count_of_parts, int64_t first,
                       int64_t count)
{
    memcpy(block, part_at(parts, 0, first), (size_t)count * sizeof *block);
    for (int i = 1; i < count_of_parts; i++) {
        add(block, part_at(parts, i, first), count);
    }
}

static void sum_narrow(bf16 *block, char *const *parts, int count_of_parts, int64_t first,
                       int64_t count)
{
    float sums[BLOCK] = {0};
    for (int i = 0; i < count_of_parts; i++) {
        add_narrow(sums, (const bf16 *)(const void *)parts[i] + first, count);
    }
    round_block(block, sums, count);
}

union block {
    float floats[BLOCK];
    bf16 narrow[BLOCK];
};

static void sum_block(union block *block, char *const *parts, int count_of_parts, int64_t first,
                      int64_t count, size_t unit)
{
    if (unit == sizeof(bf16)) {
        sum_narrow(block->narrow, parts, count_of_parts, first, count);
    } else {
        sum_floats(block->floats, parts, count_of_parts, first, count);
    }
}

void sum_spread(char *const *parts, int count_of_parts, int64_t first, int64_t count, size_t unit)
{
    if (count_of_parts == 2 && unit == sizeof(float)) {
        add_both(part_at(parts, 0, first), part_at(parts, 1, first), count);
        return;
    }
    union block block;
    for (int64_t done = 0; done < count && count_of_parts > 1; done += BLOCK) {
        int64_t piece = count - done < BLOCK ? count - done : BLOCK;
        sum_block(&block, parts, count_of_parts, first + done, piece, unit);
        for (int i = 0; i < count_of_parts; i++) {
            memcpy(parts[i] + (size_t)(first + done) * unit, &block, (size_t)piece * unit);
        }
    }
}

void sum_in_order(float *sums, bool fresh, char *const *parts, int count_of_parts, int64_t count)
{
    for (int64_t done = 0; done < count; done += BLOCK) {
        int64_t piece = count - done < BLOCK ? count - done : BLOCK;
        for (int i = 0; i < count_of_parts; i++) {
            if (fresh && i == 0) {
                memcpy(sums + done, part_at(parts, i, done), (size_t)piece * sizeof *sums);
            } else {
                add(sums + done, part_at(parts, i, done), piece);
            }
        }
    }
}

void sum_into(void *into, char *const *parts, int count_of_parts, int64_t first, int64_t count,
              size_t unit)
{
    char *out = into;
    if (count_of_parts == 1 && unit == sizeof(float)) {
        const char *only = parts[0] + (size_t)first * unit;
        if (out != only) {
            memcpy(out, only, (size_t)count * unit);
        }
        return;
    }
    union block block;
    for (int64_t done = 0; done < count; done += BLOCK) {
        int64_t piece = count - done < BLOCK ? count - done : BLOCK;
        sum_block(&block, parts, count_of_parts, first + done, piece, unit);
        memcpy(out + (size_t)done * unit, &block, (size_t)piece * unit);
    }
}
