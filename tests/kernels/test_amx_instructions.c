/* Tests tile_model.h: the model and the AMX instructions multiply the same random tiles, and the
 * results must have the same bits. Some elements are tiny, infinite or NaN. The test is skipped on
 * processors without AMX. */
#include "kernels/cpu/gemm/amx.h"
#include "tests/check.h"
#include "tests/kernels/tile_model.h"

#ifdef __AMX_BF16__
#include <immintrin.h>

enum { ROUNDS = 2000, WORDS = 256, KINDS = 4 };

static uint32_t next_random(void)
{
    static uint32_t state = 1;
    state = state * 1664525U + 1013904223U; /* the generator of Numerical Recipes */
    return state >> 8;
}

/* Returns a random bf16. Kind 0: about 1; 1: all exponents; 2: products about 2^-126; 3: all
 * bits. */
static uint16_t make_half(int kind)
{
    uint32_t sign = next_random() & 1, mantissa = next_random() & 0x7f, exponent = 127;
    switch (kind) {
    case 0:
        exponent += next_random() % 8 - 4;
        break;
    case 1:
        exponent = next_random() % 255;
        break;
    case 2:
        exponent = 64 + next_random() % 4 - 2;
        break;
    default:
        return (uint16_t)next_random();
    }
    return (uint16_t)(sign << 15 | exponent << 7 | mantissa);
}

static bool is_nan(uint32_t word)
{
    return (word & 0x7fffffffU) > 0x7f800000U;
}

/* The bits of a NaN may differ, because the model does not implement the rules by which the
 * processor selects one of two NaN operands. */
static void check_equal(const uint32_t *x, const uint32_t *y)
{
    for (int i = 0; i < WORDS; i++) {
        CHECK(x[i] == y[i] || (is_nan(x[i]) && is_nan(y[i])));
    }
}

int main(void)
{
    static uint32_t a[WORDS], b[WORDS], c[WORDS], model[WORDS];
    if (!amx_is_available()) {
        printf("skipped: this processor or kernel has no AMX\n");
        return CHECK_SKIPPED;
    }
    for (int round = 0; round < ROUNDS; round++) {
        int kind = round % KINDS;
        for (int i = 0; i < WORDS; i++) {
            a[i] = (uint32_t)make_half(kind) << 16 | make_half(kind);
            b[i] = (uint32_t)make_half(kind) << 16 | make_half(kind);
            c[i] = (uint32_t)make_half(kind) << 16 | (next_random() & 0xffff);
        }
        static const uint8_t configuration[64] = {
            1, [16] = 64, [18] = 64, [20] = 64, [48] = 16, [49] = 16, [50] = 16};
        tile_model_configure(configuration);
        tile_model_load(0, c, 64);
        tile_model_load(1, a, 64);
        tile_model_load(2, b, 64);
        tile_model_multiply(0, 1, 2);
        tile_model_store(0, model, 64);
        __asm__ volatile("" ::: "memory"); /* the compiler does not know that loads read memory */
        _tile_loadconfig(configuration);
        _tile_loadd(0, c, 64);
        _tile_loadd(1, a, 64);
        _tile_loadd(2, b, 64);
        _tile_dpbf16ps(0, 1, 2);
        _tile_stored(0, c, 64);
        _tile_release();
        check_equal(c, model);
    }
    return 0;
}
#else
int main(void)
{
    printf("skipped: this build has no code for AMX\n");
    return CHECK_SKIPPED;
}
#endif
