/* Random numbers as a pure function of (key, counter). There is no state. The numbers are the same
 * on every device, for any number of ranks, and after any resume.
 *
 * The generator is Philox 4x32-10. The tests compare it with the published vectors of Random123.
 *
 * Source: Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3". */
#pragma once

#include <stdint.h>

struct random_block {
    uint32_t word[4];
};

/* random_philox - compute one block of the generator. It is external only for tests. */
struct random_block random_philox(struct random_block counter, uint32_t key0, uint32_t key1);

/* The purpose of a stream of random numbers. Streams of different purposes that share one seed do
 * not overlap. */
enum random_purpose {
    RANDOM_INITIAL_WEIGHTS = 1,
    RANDOM_DATA_ORDER,
    RANDOM_DROPOUT,
    RANDOM_MASKING,
    RANDOM_SAMPLING,
    RANDOM_SPLIT,
    RANDOM_TEST,
    RANDOM_PAIRS,
    RANDOM_PACKING,
    RANDOM_ROUNDING,
    RANDOM_DENOISING,
    RANDOM_MOMENTS,
    RANDOM_TEMPLATES,
};

/* random_key - derive a 64-bit key from (seed, purpose, a, b). Equal inputs give equal keys. */
uint64_t random_key(uint64_t seed, enum random_purpose purpose, uint64_t a, uint64_t b);

/* random_u64 - return 64 random bits: element `index` of the stream `key`. */
uint64_t random_u64(uint64_t key, uint64_t index);

/* random_u16 - return 16 random bits: element `index` of the stream `key`. Eight elements, starting
 * at a multiple of eight, come from one block: the low half, then the high half of each of
 * its words. */
uint32_t random_u16(uint64_t key, uint64_t index);

/* random_below - return an integer in [0, bound); bound > 0.
 *
 * Numerics  the bias is at most 2^-64 */
uint64_t random_below(uint64_t key, uint64_t index, uint64_t bound);

/* random_uniform - return a float in [0, 1) with 24 random bits. */
float random_uniform(uint64_t key, uint64_t index);

/* random_normal - return a standard normal float, by the Box-Muller transform in
 * double precision. */
float random_normal(uint64_t key, uint64_t index);

/* random_permute - return the position of element `index` < count in a keyed permutation of
 * 0..count-1. Every key gives a bijection. It needs constant memory and allows random access.
 *
 * Numerics  a Feistel network of four rounds over the next power of four, applied repeatedly until
 *           the value is below count (cycle walking)
 * Source    Black, Rogaway 2002, "Ciphers with arbitrary finite domains" */
uint64_t random_permute(uint64_t key, uint64_t index, uint64_t count);
