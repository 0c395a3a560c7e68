/* Sums over the memory of several ranks. A part is an array of elements in the memory of one rank.
 *
 * The sums are computed in one pass: each input is read once and each output is written once. The
 * parts are added in order, element by element. Therefore the result does not depend on the rank
 * that adds or on the division into ranges.
 *
 * Two parts, the common case, are added in registers. More parts use a block that stays in the
 * first-level cache, because the hardware prefetcher follows only a few arrays at a time. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* sum_to_all - add parts[i][first .. first + count) in the order of i and write the sum to
 * every part.
 *
 * Units     element_bytes 4: f32; 2: bf16, added in f32 and rounded once */
void sum_to_all(char *const *parts, int part_count, int64_t first, int64_t count,
                size_t element_bytes);

/* sum_into - add as sum_to_all and write the sum to out[0 .. count).
 *
 * Memory    out may be parts[i] + first for one i */
void sum_into(void *out, char *const *parts, int part_count, int64_t first, int64_t count,
              size_t element_bytes);

/* sum_accumulate - add parts[0], then parts[1], ... to sums.
 *
 * With overwrite, parts[0] replaces sums. */
void sum_accumulate(float *sums, bool overwrite, char *const *parts, int part_count, int64_t count);
