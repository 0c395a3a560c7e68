#include "trainer/evaluation/tasks/few_shot.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/memory.h"

enum { SHIFT = 397 };

static void seed_state(uint32_t *s, uint32_t seed)
{
    s[0] = seed;
    for (uint32_t i = 1; i < FEW_SHOT_STATE; i++) {
        s[i] = 1812433253U * (s[i - 1] ^ (s[i - 1] >> 30)) + i;
    }
}

/* Mixes one more number into element i of the state; returns the next i, from 1. */
static uint32_t mix_number(uint32_t *s, uint32_t i, uint32_t factor, uint32_t added)
{
    s[i] = (s[i] ^ ((s[i - 1] ^ (s[i - 1] >> 30)) * factor)) + added;
    if (i + 1 < FEW_SHOT_STATE) {
        return i + 1;
    }
    s[0] = s[FEW_SHOT_STATE - 1];
    return 1;
}

void few_shot_seed(struct few_shot_random *r, uint32_t seed)
{
    uint32_t *s = r->state, i = 1;
    seed_state(s, 19650218U);
    for (int k = 0; k < FEW_SHOT_STATE; k++) {
        i = mix_number(s, i, 1664525U, seed);
    }
    for (int k = 0; k < FEW_SHOT_STATE - 1; k++) {
        i = mix_number(s, i, 1566083941U, 0U - i);
    }
    s[0] = 0x80000000U;
    r->index = FEW_SHOT_STATE;
}

static void refill_state(struct few_shot_random *r)
{
    uint32_t *s = r->state;
    for (int i = 0; i < FEW_SHOT_STATE; i++) {
        uint32_t y = (s[i] & 0x80000000U) | (s[(i + 1) % FEW_SHOT_STATE] & 0x7fffffffU);
        s[i] = s[(i + SHIFT) % FEW_SHOT_STATE] ^ (y >> 1) ^ ((y & 1) != 0 ? 0x9908b0dfU : 0);
    }
    r->index = 0;
}

static uint32_t next_number(struct few_shot_random *r)
{
    if (r->index == FEW_SHOT_STATE) {
        refill_state(r);
    }
    uint32_t y = r->state[r->index++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680U;
    y ^= (y << 15) & 0xefc60000U;
    return y ^ (y >> 18);
}

/* Returns a number in [0, limit), limit below 2^32. */
static int64_t draw_below(struct few_shot_random *r, int64_t limit)
{
    int bits = 0;
    int64_t value;
    while (limit >> bits > 0) {
        bits++;
    }
    do {
        value = next_number(r) >> (32 - bits);
    } while (value >= limit);
    return value;
}

/* Draws from a list of the remaining numbers. */
static status sample_pool(struct few_shot_random *r, int64_t population, int64_t count,
                          int64_t *out)
{
    int64_t *pool = NULL;
    TRY(ALLOCATE(pool, population + 1, "few-shot examples"));
    for (int64_t i = 0; i < population; i++) {
        pool[i] = i;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t j = draw_below(r, population - i);
        out[i] = pool[j];
        pool[j] = pool[population - i - 1];
    }
    free(pool);
    return STATUS_OK;
}

static bool contains_number(const int64_t *numbers, int64_t count, int64_t number)
{
    for (int64_t i = 0; i < count; i++) {
        if (numbers[i] == number) {
            return true;
        }
    }
    return false;
}

status few_shot_sample(struct few_shot_random *r, int64_t population, int64_t count, int64_t *out)
{
    double set_size = 21;
    if (count > 5) {
        set_size += pow(4, ceil(log(3 * (double)count) / log(4)));
    }
    if ((double)population <= set_size) {
        return sample_pool(r, population, count, out);
    }
    for (int64_t i = 0; i < count; i++) {
        do {
            out[i] = draw_below(r, population);
        } while (contains_number(out, i, out[i]));
    }
    return STATUS_OK;
}
