/* Tests the vector functions against the C library in double precision, and dropout factors against
 * base/random.h. CMake compiles the test once for each instruction set. It prints the largest
 * errors, which math.h documents. */
#include "base/memory.h"
#include "kernels/cpu/math.h"

#include "base/random.h"
#include "kernels/cpu/dropout.h"
#include "tests/check.h"
#include "tests/kernels/oracle.h"

enum { STEPS = 200000 };

static double compute_normal(double x)
{
    return 0.5 * erfc(-x / sqrt(2.0));
}

static double compute_gelu_tanh(double x)
{
    return oracle_activation(x, ACTIVATION_GELU_TANH);
}

static double compute_gelu_tanh_derivative(double x)
{
    return oracle_activation_derivative(x, ACTIVATION_GELU_TANH);
}

static double compute_gelu_erf(double x)
{
    return oracle_activation(x, ACTIVATION_GELU_ERF);
}

static double compute_gelu_erf_derivative(double x)
{
    return oracle_activation_derivative(x, ACTIVATION_GELU_ERF);
}

/* The value by which an error is divided: the exact result y, 1, max(|x|, 1) or max(|y|, 1). */
enum measure { RELATIVE, ABSOLUTE, ARGUMENT, RESULT };

struct function {
    const char *name;
    vector (*f)(vector x);
    double (*exact)(double x);
    double first, last;
    enum measure measure;
    double tolerance;
};

static const struct function functions[] = {
    {"exp2", math_exp2, exp2, -125.9, 127.9, RELATIVE, 1.5e-7},
    {"exp", math_exp, exp, -87, 88.7, RELATIVE, 1.5e-7},
    {"log", math_log, log, 1.2e-38, 1e-30, RESULT, 1e-7},
    {"log", math_log, log, 1e-6, 10, RESULT, 1e-7},
    {"log", math_log, log, 1, 1e38, RESULT, 1e-7},
    {"tanh", math_tanh, tanh, -10, 10, ABSOLUTE, 2e-7},
    {"tanh_relative", math_tanh_relative, tanh, -10, 10, RELATIVE, 3e-7},
    {"tanh_relative", math_tanh_relative, tanh, 1e-30, 0.1, RELATIVE, 3e-7},
    {"erf", math_erf, erf, -5, 5, ABSOLUTE, 4e-7},
    {"normal", math_normal, compute_normal, -10.5, 10.5, ABSOLUTE, 2e-7},
    {"normal", math_normal, compute_normal, -10.5, 5, RELATIVE, 1e-5},
    {"gelu_tanh", math_gelu_tanh, compute_gelu_tanh, -20, 20, ARGUMENT, 4e-7},
    {"gelu_tanh_derivative", math_gelu_tanh_derivative, compute_gelu_tanh_derivative, -20, 20,
     ARGUMENT, 4e-7},
    {"gelu_erf", math_gelu_erf, compute_gelu_erf, -20, 20, ARGUMENT, 4e-7},
    {"gelu_erf_derivative", math_gelu_erf_derivative, compute_gelu_erf_derivative, -20, 20,
     ARGUMENT, 4e-7},
};

static void test_function(const struct function *f)
{
    double max_error = 0;
    for (int i = 0; i <= STEPS; i++) {
        float x = (float)(f->first + (f->last - f->first) * i / STEPS);
        double exact = f->exact(x), size = 1;
        if (f->measure == RELATIVE) {
            size = fabs(exact);
        } else if (f->measure == ARGUMENT) {
            size = fmax(fabs(x), 1);
        } else if (f->measure == RESULT) {
            size = fmax(fabs(exact), 1);
        }
        double difference = fabs(f->f(vector_set(x))[VECTOR_LANES - 1] - exact);
        /* tanh(0) is 0, and so is its size */
        max_error = check_max(max_error, difference == 0 ? 0 : difference / size);
    }
    printf("%-16s %.3g\n", f->name, max_error);
    CHECK(max_error <= f->tolerance);
    CHECK(isnan(f->f(vector_set(NAN))[0]));
}

static void test_limits(void)
{
    vector infinity = vector_set(INFINITY);
    CHECK(math_exp(-infinity)[0] == 0 && isinf(math_exp(infinity)[0]));
    CHECK(math_exp2(-infinity)[0] == 0 && isinf(math_exp2(infinity)[0]));
    CHECK(math_exp2(vector_set(0))[0] == 1 && math_exp(vector_set(0))[0] == 1);
    CHECK(math_exp2(vector_set(-127))[0] == 0 && math_exp2(vector_set(-126))[0] > 0);
    CHECK(math_log(vector_set(1))[0] == 0 && isfinite(math_log(vector_set(0))[0]));
    CHECK(math_tanh(infinity)[0] == 1 && math_tanh(-infinity)[0] == -1);
    CHECK(math_tanh_relative(infinity)[0] == 1 && math_tanh_relative(-infinity)[0] == -1);
    CHECK(math_erf(infinity)[0] == 1 && math_erf(-infinity)[0] == -1);
    CHECK(math_gelu_tanh(vector_set(-1e30f))[0] == 0);
    CHECK(math_gelu_tanh_derivative(vector_set(1e30f))[0] == 1);
}

static void test_lanes(void)
{
    float x[VECTOR_LANES], sum = 0;
    for (int i = 0; i < VECTOR_LANES; i++) {
        x[i] = (float)((i * 7) % VECTOR_LANES);
        sum += x[i];
    }
    CHECK(vector_sum(vector_load(x)) == sum);
    CHECK(vector_maximum(vector_load(x)) == VECTOR_LANES - 1);
    for (int count = 0; count <= VECTOR_LANES; count++) {
        float to[VECTOR_LANES + 1];
        memset(to, 0xA5, sizeof to);
        float guard = to[count];
        vector part = vector_get(x, DTYPE_F32, 0, count);
        vector_put(to, DTYPE_F32, 0, part, count);
        CHECK(memcmp(to, x, (size_t)count * sizeof *x) == 0);
        CHECK(memcmp(&to[count], &guard, sizeof guard) == 0);
        CHECK(count == VECTOR_LANES || part[count] == 0);
    }
}

static const float probabilities[] = {0x1p-16f, 0.1f, 0.5f, 0.999f, 1 - 0x1p-16f};
enum { PROBABILITIES = COUNT(probabilities) };

/* Tests dropout factors, also where the counter of the blocks exceeds 32 bits. */
static void test_dropout(void)
{
    const uint64_t firsts[] = {0, 12345, UINT64_C(0xfffffff9), UINT64_C(0x7ffffffe4)};
    for (int p = 0; p < PROBABILITIES; p++) {
        double threshold = round((double)probabilities[p] * 65536);
        for (int i = 0; i < 4; i++) {
            struct dropout d = {probabilities[p], random_key(9, RANDOM_DROPOUT, 1, 2),
                                (int64_t)firsts[i], 0};
            for (int64_t element = 0; element < 100; element += 7) {
                struct dropout_row row;
                dropout_begin(&row, d, element);
                for (int j = 0; j < 3 * PHILOX_HALVES; j += VECTOR_LANES) {
                    vector factors = dropout_next(&row);
                    for (int lane = 0; lane < VECTOR_LANES; lane++) {
                        uint64_t at = firsts[i] + (uint64_t)(element + j + lane);
                        bool kept = random_u16(d.key, at) >= threshold;
                        CHECK(factors[lane] == (kept ? 65536 / (float)(65536 - threshold) : 0));
                    }
                }
            }
        }
    }
}

/* Tests the share of kept elements at each position of a block, and that adjacent elements and
 * blocks are independent: each count is within five standard deviations. */
static void test_dropout_statistics(void)
{
    enum { BLOCKS = 1 << 14 };
    for (int p = 1; p < PROBABILITIES - 1; p++) {
        struct dropout d = {probabilities[p], random_key(5, RANDOM_DROPOUT, 1, p), 0, 0};
        struct dropout_row row;
        double share = 1 - round((double)d.probability * 65536) / 65536;
        static float factors[8 * BLOCKS];
        double kept[8] = {0}, adjacent[8] = {0}, sum = 0;
        dropout_begin(&row, d, 0);
        for (int i = 0; i < 8 * BLOCKS; i += VECTOR_LANES) {
            vector_store(factors + i, dropout_next(&row));
        }
        for (int i = 0; i < 8 * BLOCKS; i++) {
            kept[i % 8] += factors[i] > 0;
            adjacent[i % 8] += factors[i] > 0 && factors[(i + 1) % (8 * BLOCKS)] > 0;
            sum += factors[i];
        }
        double deviation = sqrt(BLOCKS * share * (1 - share));
        double deviation2 = sqrt(BLOCKS * share * share * (1 - share * share));
        for (int i = 0; i < 8; i++) {
            CHECK(fabs(kept[i] - BLOCKS * share) <= 5 * deviation);
            CHECK(fabs(adjacent[i] - BLOCKS * share * share) <= 5 * deviation2);
        }
        CHECK(fabs(sum / (8 * BLOCKS) - 1) <= 5 * deviation / sqrt(8) / BLOCKS / share * 2);
        CHECK(fabs(share * (double)dropout_scale(d.probability) - 1) <= 0x1p-24);
    }
}

int main(void)
{
#if defined(VECTOR_AVX512)
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512dq")) {
        CHECK_SKIP("this processor has no AVX-512");
    }
#elif defined(VECTOR_AVX2)
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        CHECK_SKIP("this processor has no AVX2");
    }
#endif
    for (int i = 0; i < COUNT(functions); i++) {
        test_function(&functions[i]);
    }
    test_limits();
    test_lanes();
    test_dropout();
    test_dropout_statistics();
    return 0;
}
