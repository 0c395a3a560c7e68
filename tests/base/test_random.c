/* Tests of Philox with the published vectors of Random123 (kat_vectors), and of the functions that
 * use it. */
#include "base/memory.h"
#include "base/random.h"

#include "tests/check.h"

static void test_philox_vectors(void)
{
    static const struct {
        struct random_block counter;
        uint32_t key[2];
        struct random_block expected;
    } vectors[] = {
        {{{0, 0, 0, 0}}, {0, 0}, {{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}}},
        {{{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}},
         {0xffffffff, 0xffffffff},
         {{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}}},
        {{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}},
         {0xa4093822, 0x299f31d0},
         {{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}},
    };
    for (int i = 0; i < COUNT(vectors); i++) {
        struct random_block block =
            random_philox(vectors[i].counter, vectors[i].key[0], vectors[i].key[1]);
        CHECK(memcmp(&block, &vectors[i].expected, sizeof block) == 0);
    }
}

static void test_16_bit_numbers(void)
{
    const uint64_t key = 0x0123456789abcdef, first = UINT64_C(8) << 40;
    struct random_block counter = {{0, 256, 0, 0}}; /* the number of the block: 2^40 */
    struct random_block block = random_philox(counter, 0x89abcdef, 0x01234567);
    for (uint64_t i = 0; i < 8; i++) {
        CHECK_EQUAL(random_u16(key, first + i), block.word[i / 2] >> (i % 2 * 16) & 0xffff);
    }
    CHECK(random_u16(key, first + 8) != random_u16(key, first));
}

static void test_permutation(uint64_t count)
{
    unsigned char *seen = calloc(count, 1);
    CHECK(seen != NULL);
    uint64_t fixed_points = 0;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t target = random_permute(99, i, count);
        CHECK(target < count);
        CHECK(seen[target] == 0);
        seen[target] = 1;
        fixed_points += target == i;
    }
    CHECK(count < 100 || fixed_points < 20); /* one on average */
    free(seen);
}

static void test_moments(void)
{
    enum { SAMPLES = 200000 };
    uint64_t key = random_key(1, RANDOM_TEST, 2, 3);
    double sum = 0, squares = 0, fourth = 0, uniform = 0;
    for (uint64_t i = 0; i < SAMPLES; i++) {
        double x = random_normal(key, i);
        sum += x;
        squares += x * x;
        fourth += x * x * x * x;
        double u = random_uniform(key, i);
        CHECK(u >= 0 && u < 1);
        uniform += u;
        CHECK(random_below(key, i, 7) < 7);
    }
    CHECK_NEAR(sum / SAMPLES, 0, 0.01);
    CHECK_NEAR(squares / SAMPLES, 1, 0.02);
    CHECK_NEAR(fourth / SAMPLES, 3, 0.1);
    CHECK_NEAR(uniform / SAMPLES, 0.5, 0.005);
}

static void test_keys_differ(void)
{
    uint64_t key = random_key(1, RANDOM_TEST, 2, 3);
    CHECK(key == random_key(1, RANDOM_TEST, 2, 3));
    CHECK(key != random_key(2, RANDOM_TEST, 2, 3));
    CHECK(key != random_key(1, RANDOM_DROPOUT, 2, 3));
    CHECK(key != random_key(1, RANDOM_TEST, 3, 2));
    CHECK(key != random_key(1, RANDOM_TEST, 2, 4));
}

int main(void)
{
    test_philox_vectors();
    test_16_bit_numbers();
    static const uint64_t counts[] = {1, 2, 3, 5, 16, 17, 1000, 4096, 100003};
    for (int i = 0; i < COUNT(counts); i++) {
        test_permutation(counts[i]);
    }
    test_moments();
    test_keys_differ();
    return 0;
}
