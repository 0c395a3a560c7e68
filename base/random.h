/* Random numbers as a pure function of (key, counter): no state, the same on any device, at any
 * number of ranks and after any resume.
 *
 * Philox 4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random numbers: as easy as 1, 2, 3");
 * checked against the published vectors of Random123. */
#pragma once

#include <stdint.h>

struct random_block {
    uint32_t word[4];
};

/* random_philox - one block of the generator. */
struct random_block random_philox(struct random_block counter, uint32_t key0, uint32_t key1);

/* What a stream of numbers is for: one seed serves all of them without overlap. */
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
};

/* random_key - a 64-bit key from (seed, purpose, a, b); equal inputs give equal keys. */
uint64_t random_key(uint64_t seed, enum random_purpose purpose, uint64_t a, uint64_t b);

/* random_u64 - 64 random bits, element `index` of the stream `key`. */
uint64_t random_u64(uint64_t key, uint64_t index);

/* random_half - 16 random bits, element `index` of the stream `key`. Eight elements, from a multiple of eight on, share
 * a block of the generator: the two halves of its words, the lower first. */
uint32_t random_half(uint64_t key, uint64_t index);

/* random_below - an integer in [0, bound), unbiased to 2^-64; bound > 0. */
uint64_t random_below(uint64_t key, uint64_t index, uint64_t bound);

/* random_uniform - a float in [0, 1) with 24 random bits. */
float random_uniform(uint64_t key, uint64_t index);

/* random_normal - a standard normal float (Box-Muller in double precision). */
float random_normal(uint64_t key, uint64_t index);

/* random_permute - where element `index` goes in a keyed permutation of 0..count-1.
 *
 * Numerics  a four-round Feistel network over the next even power of two, walked until the value
 *           is below count: constant memory, random access, a bijection for every key
 * Source    Black, Rogaway 2002, "Ciphers with arbitrary finite domains" */
uint64_t random_permute(uint64_t key, uint64_t index, uint64_t count);
