/* The data consists of words w_1 .. w_n of 16 bits, high byte first. An odd last byte is a
 * high byte.
 *
 *   A = sum of w_i,   B = sum of (n + 1 - i) w_i,   checksum = B' 2^16 + A'
 *
 * x' is x modulo 65535, except that a positive multiple of 65535 becomes 65535: sums with
 * end-around carry never reach 0. Two facts make the computation fast. First, modulo 65535 a swap
 * of the bytes of a word is a multiplication by 256. The sums are therefore computed over the words
 * as stored, and the bytes of the sums are swapped. Second, 16 lanes compute in parallel. Lane j
 * has the words j, 16 + j, 32 + j, ... and computes a += w and b += a. After s steps, b is the sum
 * of (s - step) w. The distance of a word from the end of the block is 16 (s - step) - j words.
 *
 * Source: J. G. Fletcher, "An arithmetic checksum for serial transmissions", 1982; H5checksum.c. */
#include "datasets/shard/fletcher32.h"

#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the lanes are the halves of little-endian 32-bit words"
#endif

enum {
    LANES = 16,
    LANE_STEPS = 256 /* 65535 * 256 * 257 / 2 < 2^32: b does not overflow */
};

typedef uint32_t quad __attribute__((vector_size(16)));

struct sums {
    uint64_t words; /* A of the words so far; at most 65535 after each block, 0 only if all are 0 */
    uint64_t weighted; /* B */
};

/* Reduces modulo 65535 to 1..65535; only 0 gives 0. */
static uint64_t reduce_sum(uint64_t sum)
{
    return sum == 0 ? 0 : (sum - 1) % 65535 + 1;
}

static uint64_t swap_bytes(uint64_t reduced)
{
    return (reduced & 0xff) << 8 | reduced >> 8;
}

/* Appends `words` words with the sums A and B to the sums so far. */
static void append_sums(struct sums *s, uint64_t words, uint64_t sum, uint64_t weighted)
{
    s->weighted = reduce_sum(s->weighted + words * s->words + weighted);
    s->words = reduce_sum(s->words + sum);
}

static void append_block(struct sums *s, const unsigned char *data, size_t steps)
{
    quad a0 = {0}, a1 = {0}, a2 = {0},
         a3 = {0}; /* lanes 0 2 4 6, 1 3 5 7, 8 10 12 14, 9 11 13 15 */
    quad b0 = {0}, b1 = {0}, b2 = {0}, b3 = {0};
    for (size_t i = 0; i < steps; i++, data += LANES * sizeof(uint16_t)) {
        quad pairs[2];
        memcpy(pairs, data, sizeof pairs);
        a0 += pairs[0] & 0xffff;
        a1 += pairs[0] >> 16;
        a2 += pairs[1] & 0xffff;
        a3 += pairs[1] >> 16;
        b0 += a0;
        b1 += a1;
        b2 += a2;
        b3 += a3;
    }
    const quad a[4] = {a0, a1, a2, a3}, b[4] = {b0, b1, b2, b3};
    uint64_t sum = 0, weighted = 0;
    for (int lane = 0; lane < LANES; lane++) {
        int group = lane / 8 * 2 + lane % 2, item = lane % 8 / 2;
        sum += a[group][item];
        weighted += (uint64_t)LANES * b[group][item] - (uint64_t)lane * a[group][item];
    }
    append_sums(s, steps * LANES, sum, weighted);
}

uint32_t fletcher32(const void *data, size_t bytes)
{
    const unsigned char *next = data;
    struct sums s = {0, 0};
    size_t left = bytes / sizeof(uint16_t); /* words */
    while (left >= LANES) {
        size_t steps = left / LANES < LANE_STEPS ? left / LANES : LANE_STEPS;
        append_block(&s, next, steps);
        next += steps * LANES * sizeof(uint16_t);
        left -= steps * LANES;
    }
    for (; left > 0; left--, next += sizeof(uint16_t)) {
        uint16_t word;
        memcpy(&word, next, sizeof word);
        append_sums(&s, 1, word, word);
    }
    if (bytes % 2 != 0) {
        append_sums(&s, 1, *next, *next);
    }
    return (uint32_t)(swap_bytes(s.weighted) << 16 | swap_bytes(s.words));
}
