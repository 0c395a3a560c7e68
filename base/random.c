#include "base/random.h"

#include <math.h>

struct random_block random_philox(struct random_block counter, uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < 10; round++) {
        uint64_t product0 = (uint64_t)0xD2511F53u * counter.word[0];
        uint64_t product1 = (uint64_t)0xCD9E8D57u * counter.word[2];
        counter = (struct random_block){{
            (uint32_t)(product1 >> 32) ^ counter.word[1] ^ key0,
            (uint32_t)product1,
            (uint32_t)(product0 >> 32) ^ counter.word[3] ^ key1,
            (uint32_t)product0,
        }};
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}

static struct random_block compute_block(uint64_t key, uint64_t index, uint64_t purpose)
{
    struct random_block counter = {
        {(uint32_t)index, (uint32_t)(index >> 32), (uint32_t)purpose, (uint32_t)(purpose >> 32)}};
    return random_philox(counter, (uint32_t)key, (uint32_t)(key >> 32));
}

static uint64_t get_low64(struct random_block block)
{
    return block.word[0] | (uint64_t)block.word[1] << 32;
}

uint64_t random_key(uint64_t seed, enum random_purpose purpose, uint64_t a, uint64_t b)
{
    uint64_t key = get_low64(compute_block(seed, a, (uint64_t)purpose | UINT64_C(1) << 40));
    return get_low64(compute_block(key, b, (uint64_t)purpose | UINT64_C(2) << 40));
}

uint64_t random_u64(uint64_t key, uint64_t index)
{
    return get_low64(compute_block(key, index, 0));
}

uint32_t random_u16(uint64_t key, uint64_t index)
{
    uint32_t word = compute_block(key, index / 8, 0).word[index % 8 / 2];
    return index % 2 == 0 ? word & 0xffffu : word >> 16;
}

uint64_t random_below(uint64_t key, uint64_t index, uint64_t bound)
{
    return (uint64_t)(((unsigned __int128)random_u64(key, index) * bound) >> 64);
}

float random_uniform(uint64_t key, uint64_t index)
{
    return (float)(compute_block(key, index, 0).word[0] >> 8) * 0x1p-24f;
}

float random_normal(uint64_t key, uint64_t index)
{
    struct random_block block = compute_block(key, index, 0);
    double u = ((double)get_low64(block) + 0.5) * 0x1p-64;
    double angle = (double)block.word[2] * (2.0 * 3.14159265358979323846 * 0x1p-32);
    return (float)(sqrt(-2.0 * log(u)) * cos(angle));
}

uint64_t random_permute(uint64_t key, uint64_t index, uint64_t count)
{
    int half_bits = 1;
    while (half_bits < 32 && count > UINT64_C(1) << (2 * half_bits)) {
        half_bits++;
    }
    uint32_t mask = half_bits == 32 ? UINT32_MAX : (UINT32_C(1) << half_bits) - 1;
    do {
        uint32_t left = (uint32_t)(index >> half_bits) & mask;
        uint32_t right = (uint32_t)index & mask;
        for (uint64_t round = 0; round < 4; round++) {
            uint32_t round_output = compute_block(key, right, round + 1).word[0] & mask;
            uint32_t next = left ^ round_output;
            left = right;
            right = next;
        }
        index = (uint64_t)left << half_bits | right;
    } while (index >= count);
    return index;
}
