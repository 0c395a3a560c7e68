/* Tests operations on flat slices (AdamW, LAMB, rounded copies, sums in a fixed order), casts and
 * dropout. */
#include "base/number.h"
#include "tests/kernels/flat_slice.h"

static const int64_t counts[] = {1, 3, 16, 17, 4095, 4096, 4099, 16384, 16385, 100003};
enum { COUNTS = COUNT(counts) };

static void test_adamw(struct kernels *k, struct kernels *other, int64_t count)
{
    struct flat_slice s = flat_slice_create(count, DTYPE_F32),
                      t = flat_slice_create(count, DTYPE_F32),
                      r = flat_slice_create(count, DTYPE_F32);
    for (int step = 0; step < 3; step++) {
        operation_fill(s.gradient, 10 + (uint64_t)step, 1);
        operation_fill(t.gradient, 10 + (uint64_t)step, 1);
        operation_fill(r.gradient, 10 + (uint64_t)step, 1);
        CHECK_OK(adamw_update(k, s.weights.data, s.copy.data, s.moment1.data, s.moment2.data,
                              s.gradient.data, count, &flat_slice_settings));
        CHECK_OK(adamw_update(other, t.weights.data, NULL, t.moment1.data, t.moment2.data,
                              t.gradient.data, count, &flat_slice_settings));
        oracle_adamw_update(r.weights.data, r.copy.data, r.moment1.data, r.moment2.data,
                            r.gradient.data, count, &flat_slice_settings);
    }
    CHECK(operation_equal(s.weights, t.weights) && operation_equal(s.moment1, t.moment1));
    CHECK(operation_equal(s.moment2, t.moment2) && operation_equal(s.gradient, r.gradient));
    operation_check_error("adamw: weights", k, operation_difference(s.weights, r.weights), 1e-6);
    operation_check_error("adamw: moment1", k, operation_difference(s.moment1, r.moment1), 1e-6);
    operation_check_error("adamw: moment2", k, operation_difference(s.moment2, r.moment2), 1e-6);
    for (int64_t i = 0; i < count; i++) {
        CHECK(((bf16 *)s.copy.data)[i] == f32_to_bf16(((float *)s.weights.data)[i]));
    }
    flat_slice_release(&s);
    flat_slice_release(&t);
    flat_slice_release(&r);
}

static void test_adamw_nan(struct kernels *k)
{
    struct flat_slice s = flat_slice_create(40, DTYPE_F32);
    oracle_set(s.gradient, 0, 39, NAN);
    CHECK_OK(adamw_update(k, s.weights.data, NULL, s.moment1.data, s.moment2.data, s.gradient.data,
                          40, &flat_slice_settings));
    CHECK(isnan(oracle_get(s.weights, 0, 39)) && isfinite(oracle_get(s.weights, 0, 38)));
    flat_slice_release(&s);
}

/* Tests the moments of AdamW (or of LAMB) against averages in double precision over many steps. If
 * beta is rounded to f32, the second moments of beta2 0.999 have an error of 6e-6. */
static void test_moment_rates(struct kernels *k, double beta1, double beta2, bool lamb)
{
    enum { ELEMENTS = 19, STEPS = 1000 };
    struct adamw rates = flat_slice_settings;
    float w[ELEMENTS] = {0}, m[ELEMENTS] = {0}, v[ELEMENTS] = {0}, g[ELEMENTS];
    double exact_m[ELEMENTS] = {0}, exact_v[ELEMENTS] = {0}, sums[2], error = 0;
    rates.beta1 = beta1;
    rates.beta2 = beta2;
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < ELEMENTS; i++) {
            g[i] = (float)random_normal((uint64_t)step, (uint64_t)i);
            double scaled = (double)g[i] * flat_slice_settings.gradient_scale;
            exact_m[i] = beta1 * exact_m[i] + (1 - beta1) * scaled;
            exact_v[i] = beta2 * exact_v[i] + (1 - beta2) * scaled * scaled;
        }
        CHECK_OK(lamb ? lamb_moments(k, sums, w, m, v, g, ELEMENTS, &rates)
                      : adamw_update(k, w, NULL, m, v, g, ELEMENTS, &rates));
        for (int i = 0; i < ELEMENTS && (step < 10 || step == STEPS - 1); i++) {
            CHECK_NEAR(m[i], exact_m[i], 5e-7 * flat_slice_settings.gradient_scale);
            error = check_max(error, fabs(v[i] / exact_v[i] - 1));
        }
    }
    operation_check_error(lamb ? "lamb: rates" : "adamw: rates", k, error, 3e-6);
}

/* Computes the trust ratio from the sums of lamb_moments. */
static double compute_trust_ratio(const double sums[2])
{
    return sums[0] > 0 && sums[1] > 0 ? sqrt(sums[0] / sums[1]) : 1;
}

/* Tests LAMB on slices that begin at element `offset`, so that vector loads can be unaligned. */
static void test_lamb(struct kernels *k, struct kernels *other, int64_t count, int64_t offset)
{
    int64_t n = count - offset;
    struct flat_slice s = flat_slice_create(count, DTYPE_F32),
                      t = flat_slice_create(count, DTYPE_F32),
                      r = flat_slice_create(count, DTYPE_F32);
    struct flat_slice *all[] = {&s, &t, &r};
    struct kernels *both[] = {k, other};
    double sums[3][2];
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < 3; i++) {
            struct adamw step_settings = flat_slice_settings;
            float *p[4], *tensors[] = {all[i]->weights.data, all[i]->moment1.data,
                                       all[i]->moment2.data, all[i]->gradient.data};
            bf16 *copy = i == 1 ? NULL : (bf16 *)all[i]->copy.data + offset;
            operation_fill(all[i]->gradient, 10 + (uint64_t)step, 1);
            for (int j = 0; j < 4; j++) {
                p[j] = tensors[j] + offset;
            }
            if (i == 2) {
                oracle_lamb_moments(sums[i], p[0], p[1], p[2], p[3], n, &step_settings);
                step_settings.learning_rate *= (float)compute_trust_ratio(sums[i]);
                oracle_lamb_apply(p[0], copy, p[1], p[2], n, &step_settings);
            } else {
                CHECK_OK(lamb_moments(both[i], sums[i], p[0], p[1], p[2], p[3], n, &step_settings));
                step_settings.learning_rate *= (float)compute_trust_ratio(sums[i]);
                CHECK_OK(lamb_apply(both[i], p[0], copy, p[1], p[2], n, &step_settings));
            }
        }
        CHECK(memcmp(sums[0], sums[1], sizeof sums[0]) == 0);
        CHECK_NEAR(sums[0][0], sums[2][0], 1e-6 * sums[2][0]);
        CHECK_NEAR(sums[0][1], sums[2][1], 1e-6 * sums[2][1]);
    }
    CHECK(operation_equal(s.weights, t.weights) && operation_equal(s.moment1, t.moment1));
    CHECK(operation_equal(s.moment2, t.moment2) && operation_equal(s.gradient, r.gradient));
    operation_check_error("lamb: weights", k, operation_difference(s.weights, r.weights), 2e-6);
    operation_check_error("lamb: moment1", k, operation_difference(s.moment1, r.moment1), 1e-6);
    operation_check_error("lamb: moment2", k, operation_difference(s.moment2, r.moment2), 1e-6);
    for (int64_t i = offset; i < count; i++) {
        CHECK(((bf16 *)s.copy.data)[i] == f32_to_bf16(((float *)s.weights.data)[i]));
    }
    flat_slice_release(&s);
    flat_slice_release(&t);
    flat_slice_release(&r);
}

static void test_lamb_nan(struct kernels *k)
{
    struct flat_slice s = flat_slice_create(40, DTYPE_F32);
    double sums[2];
    oracle_set(s.gradient, 0, 39, NAN);
    CHECK_OK(lamb_moments(k, sums, s.weights.data, s.moment1.data, s.moment2.data, s.gradient.data,
                          40, &flat_slice_settings));
    CHECK(isnan(sums[1]) && isfinite(sums[0]));
    flat_slice_release(&s);
}

/* ---- stochastic rounding ---- */

/* Whole parameters and parts of their rows. Some starts and rows are not multiples of eight, and
 * some indices exceed 32 bits. */
static const struct rounding roundings[] = {
    {true, 0x123456789abcdef0, 0, 0, 64, 64},
    {true, 7, 5, 3, 100, 100},
    {true, 7, 16, 40, 24, 96},
    {true, 8, 11, 6, 7, 20},
    {true, 9, (INT64_C(1) << 35) - 13, 2, 1, 3},
    {true, 10, INT64_C(1) << 40, 4095, 333, 1001},
};
enum { ROUNDINGS = COUNT(roundings) };

/* Returns whether all bf16 elements from offset on are equal or both NaN. */
static bool is_equal_or_nan(struct tensor a, struct tensor b, int64_t offset)
{
    bool is_equal = true;
    for (int64_t i = offset; i < a.columns; i++) {
        bf16 x = ((const bf16 *)a.data)[i], y = ((const bf16 *)b.data)[i];
        is_equal = is_equal && (x == y || (isnan(bf16_to_f32(x)) && isnan(bf16_to_f32(y))));
    }
    return is_equal;
}

/* Tests the copies that adamw_update and lamb_apply write, and op_round_weights in two parts. */
static void test_rounding(struct kernels *k, struct kernels *other, int64_t count, int64_t offset,
                          const struct rounding *rounding)
{
    int64_t n = count - offset, half = n / 3 + 1;
    struct flat_slice s = flat_slice_create(count, DTYPE_F32);
    struct tensor expected = operation_random(DTYPE_BF16, 1, count, 2, 1);
    struct adamw rounded = flat_slice_settings;
    float *w = (float *)s.weights.data + offset, *m = (float *)s.moment1.data + offset;
    float *v = (float *)s.moment2.data + offset, *g = (float *)s.gradient.data + offset;
    bf16 *copy = (bf16 *)s.copy.data + offset, *expected_copy = (bf16 *)expected.data + offset;
    double sums[2];
    rounded.rounding = *rounding;
    CHECK_OK(adamw_update(other, w, copy, m, v, g, n, &rounded));
    oracle_round_weights(expected_copy, w, n, rounding);
    CHECK(operation_equal(s.copy, expected));
    rounded.rounding.key++;
    CHECK_OK(lamb_moments(k, sums, w, m, v, g, n, &rounded));
    CHECK_OK(lamb_apply(other, w, copy, m, v, n, &rounded));
    CHECK(n < 8 || !operation_equal(s.copy, expected));
    oracle_round_weights(expected_copy, w, n, &rounded.rounding);
    CHECK(operation_equal(s.copy, expected));
    operation_set(s.copy, 0);
    operation_set(expected, 0);
    oracle_round_weights(expected_copy, w, n, rounding);
    struct rounding rest = *rounding;
    rest.offset += half;
    CHECK_OK(op_round_weights(k, copy, w, number_min(half, n), rounding));
    if (half < n) {
        CHECK_OK(op_round_weights(other, copy + half, w + half, n - half, &rest));
    }
    CHECK(operation_equal(s.copy, expected));
    rest.stochastic = false;
    CHECK_OK(op_round_weights(other, copy, w, n, &rest));
    for (int64_t i = 0; i < n; i++) {
        CHECK(copy[i] == f32_to_bf16(w[i]));
    }
    flat_slice_release(&s);
    operation_release(&expected);
}

/* Tests every bf16 number with several patterns in the 16 bits below. The result is one of the two
 * neighbors, or the number itself if these bits are 0. Above the largest finite number it equals
 * rounding to nearest. */
static void test_rounding_values(struct kernels *k)
{
    const int64_t all = 65536;
    static const uint32_t below[] = {0, 1, 0x7fff, 0x8000, 0xffff};
    const struct rounding rounding = {true, 77, 0, 0, all, all};
    struct tensor x = operation_tensor(DTYPE_F32, 1, all, all);
    struct tensor copy = operation_tensor(DTYPE_BF16, 1, all, all);
    struct tensor expected = operation_tensor(DTYPE_BF16, 1, all, all);
    for (int j = 0; j < COUNT(below); j++) {
        int64_t rounded_up = 0;
        for (int64_t i = 0; i < all; i++) {
            uint32_t bits = (uint32_t)i << 16 | below[j];
            memcpy((float *)x.data + i, &bits, sizeof bits);
        }
        CHECK_OK(op_round_weights(k, copy.data, x.data, all, &rounding));
        oracle_round_weights(expected.data, x.data, all, &rounding);
        CHECK(is_equal_or_nan(copy, expected, 0));
        for (int64_t i = 0; i < all; i++) {
            float from = ((const float *)x.data)[i];
            bf16 to = ((const bf16 *)copy.data)[i];
            bool is_ordinary = (i & 0x7fff) < 0x7f7f; /* below the largest finite number */
            rounded_up += is_ordinary && to == (bf16)(i + 1);
            CHECK(!is_ordinary || to == (bf16)i || (below[j] > 0 && to == (bf16)(i + 1)));
            CHECK(is_ordinary || to == f32_to_bf16(from) ||
                  (isnan(from) && isnan(bf16_to_f32(to))));
        }
        double p = below[j] / 65536.0, numbers = 2.0 * 0x7f7f; /* p: probability to round up */
        CHECK_NEAR((double)rounded_up, numbers * p,
                   5 * sqrt(numbers * p * (1 - p)) + (below[j] > 0));
    }
    operation_release(&x);
    operation_release(&copy);
    operation_release(&expected);
}

/* Counts the elements that were rounded up, and those that equal `before`. */
static void count_rounded_up(struct tensor copy, struct tensor before, bf16 upper, double *up,
                             double *same)
{
    *up = *same = 0;
    for (int64_t i = 0; i < copy.columns; i++) {
        bf16 to = ((const bf16 *)copy.data)[i];
        CHECK(to == upper || to == upper - 1);
        *up += to == upper;
        *same += to == ((const bf16 *)before.data)[i];
    }
}

/* Over many draws, the mean is the number itself, and draws of neighbors and of steps are
 * independent. The tolerance is five standard deviations, which one test in two million exceeds.
 * The seed is fixed. */
static void test_rounding_mean(struct kernels *k)
{
    enum { DRAWS = 20000, STEPS = 4 };
    static const uint32_t fractions[] = {0x0100, 0x4000, 0x8000, 0xc123, 0xff00};
    struct tensor x = operation_tensor(DTYPE_F32, 1, DRAWS, DRAWS);
    struct tensor copy = operation_tensor(DTYPE_BF16, 1, DRAWS, DRAWS);
    struct tensor before = operation_random(DTYPE_BF16, 1, DRAWS, 1, 1);
    for (int j = 0; j < COUNT(fractions); j++) {
        /* probabilities to round up, and that two draws are equal */
        double p = fractions[j] / 65536.0, p_equal = p * p + (1 - p) * (1 - p);
        double all = 0, repeated = 0, up, same;
        uint32_t bits = 0xbd450000u | fractions[j]; /* about -0.048 */
        float number;
        memcpy(&number, &bits, sizeof number);
        operation_set(x, (double)number);
        for (uint64_t step = 0; step < STEPS; step++) {
            const struct rounding rounding = {
                true, random_key(5, RANDOM_ROUNDING, step, 3), 0, 0, 1, 1};
            CHECK_OK(op_round_weights(k, copy.data, x.data, DRAWS, &rounding));
            count_rounded_up(copy, before, 0xbd46, &up, &same);
            if (step > 0) {
                CHECK_NEAR(same, DRAWS * p_equal, 5 * sqrt(DRAWS * p_equal * (1 - p_equal)));
            }
            for (int64_t i = 1; i < DRAWS; i++) {
                repeated += ((bf16 *)copy.data)[i] == ((bf16 *)copy.data)[i - 1];
            }
            all += up;
            oracle_cast(before, copy);
        }
        double draws = (double)DRAWS * STEPS;
        CHECK_NEAR(all, draws * p, 5 * sqrt(draws * p * (1 - p)));
        CHECK_NEAR(repeated, draws * p_equal, 10 * sqrt(draws * p_equal * (1 - p_equal)));
    }
    operation_release(&x);
    operation_release(&copy);
    operation_release(&before);
}

/* ---- bf16 moments ---- */

/* A slice with moments in bf16; `from` has the same values in f32. */
static struct flat_slice make_bf16_slice(int64_t count, struct flat_slice *from)
{
    struct flat_slice s = flat_slice_create(count, DTYPE_F32);
    *from = flat_slice_create(count, DTYPE_F32);
    operation_release(&s.moment1);
    operation_release(&s.moment2);
    s.moment1 = operation_tensor(DTYPE_BF16, 1, count, count);
    s.moment2 = operation_tensor(DTYPE_BF16, 1, count, count);
    oracle_cast(s.moment1, from->moment1);
    oracle_cast(s.moment2, from->moment2);
    oracle_cast(from->moment1, s.moment1);
    oracle_cast(from->moment2, s.moment2);
    return s;
}

/* Returns the address of element i. */
static void *get_address(struct tensor t, int64_t i)
{
    return (char *)t.data + (size_t)i * dtype_bytes(t.dtype);
}

/* Runs AdamW, or both parts of LAMB, on the elements from `first` on. k NULL: the oracle. */
static void run_step(struct kernels *k, const struct flat_slice *s, int64_t first, int64_t end,
                     const struct adamw *step, bool lamb)
{
    float *w = get_address(s->weights, first), *g = get_address(s->gradient, first);
    void *m = get_address(s->moment1, first), *v = get_address(s->moment2, first);
    bf16 *copy = get_address(s->copy, first);
    double sums[2];
    if (k == NULL && lamb) {
        oracle_lamb_moments(sums, w, m, v, g, end - first, step);
        oracle_lamb_apply(w, copy, m, v, end - first, step);
    } else if (k == NULL) {
        oracle_adamw_update(w, copy, m, v, g, end - first, step);
    } else if (lamb) {
        CHECK_OK(lamb_moments(k, sums, w, m, v, g, end - first, step));
        CHECK_OK(lamb_apply(k, w, copy, m, v, end - first, step));
    } else {
        CHECK_OK(adamw_update(k, w, copy, m, v, g, end - first, step));
    }
}

/* Both numbers are rounded from nearly the same value with the same random bits. They are equal,
 * except near the bound between both results, where they differ by one unit. */
static void check_moments(struct tensor got, struct tensor expected)
{
    int64_t different = 0;
    for (int64_t i = 0; i < got.columns; i++) {
        int a = ((const bf16 *)got.data)[i], b = ((const bf16 *)expected.data)[i];
        different += a != b;
        CHECK(a - b <= 1 && b - a <= 1);
    }
    CHECK(different <= 1 + got.columns / 1000);
}

/* Tests one step with bf16 moments against the oracle. A slice in two parts has the same bits: the
 * random numbers depend on the position in the parameter. */
static void test_bf16_moments(struct kernels *k, struct kernels *other, int64_t count,
                              const struct rounding *rounding, bool lamb)
{
    struct flat_slice unused[3];
    struct flat_slice s = make_bf16_slice(count, &unused[0]),
                      t = make_bf16_slice(count, &unused[1]);
    struct flat_slice r = make_bf16_slice(count, &unused[2]);
    struct adamw step = flat_slice_settings, rest;
    int64_t part = number_min(count / 3 + 1, count);
    step.rounding = *rounding;
    step.rounding.stochastic = lamb; /* the moments do not depend on the rounding of the copy */
    step.moment_dtype = DTYPE_BF16;
    step.moment_keys[0] = rounding->key + 1;
    step.moment_keys[1] = rounding->key + 2;
    rest = step;
    rest.rounding.offset += part;
    run_step(k, &s, 0, count, &step, lamb);
    run_step(other, &t, 0, part, &step, lamb);
    if (part < count) {
        run_step(k, &t, part, count, &rest, lamb);
    }
    run_step(NULL, &r, 0, count, &step, lamb);
    CHECK(operation_equal(s.moment1, t.moment1) && operation_equal(s.moment2, t.moment2));
    CHECK(operation_equal(s.weights, t.weights) && operation_equal(s.copy, t.copy));
    check_moments(s.moment1, r.moment1);
    check_moments(s.moment2, r.moment2);
    operation_check_error("bf16 moments: weights", k, operation_difference(s.weights, r.weights),
                          lamb ? 1e-4
                               : 1e-6); /* LAMB: one unit of a moment that lies near a bound */
    struct flat_slice *all[] = {&s, &t, &r, &unused[0], &unused[1], &unused[2]};
    for (int i = 0; i < COUNT(all); i++) {
        flat_slice_release(all[i]);
    }
}

/* Over many steps the mean of bf16 moments equals the mean of exact averages. With rounding to
 * nearest, the second moment would stay at 0.25: a step adds less than half a unit to it. */
static void test_bf16_mean(struct kernels *k, bool lamb)
{
    enum { ELEMENTS = 2048, STEPS = 1000 };
    static float w[ELEMENTS], g[ELEMENTS];
    static bf16 m[ELEMENTS], v[ELEMENTS];
    struct adamw step = flat_slice_settings;
    double sums[2], exact = 1 - pow(0.999, STEPS), first = 0, second = 0;
    step.beta2 = 0.999;
    step.gradient_scale = 1;
    step.moment_dtype = DTYPE_BF16;
    step.rounding = (struct rounding){.columns = ELEMENTS, .pitch = ELEMENTS};
    for (int i = 0; i < ELEMENTS; i++) {
        w[i] = 0;
        m[i] = v[i] = 0;
        g[i] = 1;
    }
    for (uint64_t s = 0; s < STEPS; s++) {
        step.moment_keys[0] = random_key(3, RANDOM_MOMENTS, s, 0);
        step.moment_keys[1] = random_key(3, RANDOM_MOMENTS, s, 1);
        CHECK_OK(lamb ? lamb_moments(k, sums, w, m, v, g, ELEMENTS, &step)
                      : adamw_update(k, w, NULL, m, v, g, ELEMENTS, &step));
    }
    for (int i = 0; i < ELEMENTS; i++) {
        first += (double)bf16_to_f32(m[i]) / ELEMENTS;
        second += (double)bf16_to_f32(v[i]) / ELEMENTS;
    }
    CHECK_NEAR(first, 1, 0.002);
    CHECK_NEAR(second, exact, 0.003);
}

/* A moment that is not a number stays so, and padding stays 0. Wrong positions are refused. */
static void test_bf16_limits(struct kernels *k)
{
    struct flat_slice from, s = make_bf16_slice(40, &from);
    struct adamw step = flat_slice_settings;
    step.moment_dtype = DTYPE_BF16;
    step.rounding = (struct rounding){.columns = 40, .pitch = 40};
    oracle_set(s.gradient, 0, 39, NAN);
    oracle_set(s.gradient, 0, 3, 0);
    oracle_set(s.moment1, 0, 3, 0);
    oracle_set(s.moment2, 0, 3, 0);
    run_step(k, &s, 0, 40, &step, false);
    CHECK(isnan(oracle_get(s.moment1, 0, 39)) && isnan(oracle_get(s.moment2, 0, 39)));
    CHECK(isfinite(oracle_get(s.moment1, 0, 38)) && isfinite(oracle_get(s.weights, 0, 38)));
    CHECK(oracle_get(s.moment1, 0, 3) == 0 && oracle_get(s.moment2, 0, 3) == 0);
    step.rounding.columns = 0;
    CHECK_FAILS(adamw_update(k, s.weights.data, NULL, s.moment1.data, s.moment2.data,
                             s.gradient.data, 40, &step),
                STATUS_INTERNAL, "rounding from element");
    flat_slice_release(&s);
    flat_slice_release(&from);
}

/* ---- sums, casts and dropout ---- */

static void test_sums(struct kernels *k, struct kernels *other, int64_t count)
{
    struct tensor x = operation_random(DTYPE_F32, 1, count, 1, 1e20);
    float *p = x.data;
    double a, b;
    CHECK_OK(op_sum_of_squares(k, &a, p, count));
    CHECK_OK(op_sum_of_squares(other, &b, p, count));
    CHECK(memcmp(&a, &b, sizeof a) == 0);
    CHECK_NEAR(a, oracle_sum_of_squares(p, count), 1e-12 * a);
    p[count - 1] = INFINITY;
    CHECK_OK(op_sum_of_squares(k, &a, p, count));
    CHECK(isinf(a));
    p[count / 2] = NAN;
    CHECK_OK(op_sum_of_squares(k, &a, p, count));
    CHECK(isnan(a));
    CHECK_OK(op_sum_of_squares(k, &a, p, 0));
    CHECK(a == 0);
    operation_release(&x);
}

/* Every third row is ignored. Only the requested sums are written. */
static void test_loss_stats(struct kernels *k, struct kernels *other, int64_t count)
{
    struct tensor losses = operation_random(DTYPE_F32, 1, count, 1, 1);
    struct tensor entropies = operation_random(DTYPE_F32, 1, count, 2, 1);
    int32_t *targets = malloc((size_t)count * sizeof *targets);
    int32_t *argmax = malloc((size_t)count * sizeof *argmax);
    double correct = 0, counted = 0, entropy = 0;
    CHECK(targets != NULL && argmax != NULL);
    for (int64_t i = 0; i < count; i++) {
        bool is_counted = i % 3 != 1;
        targets[i] = is_counted ? (int32_t)(i % 7) : -100;
        argmax[i] = is_counted ? (int32_t)(i % 5) : -100;
        ((float *)losses.data)[i] *= is_counted ? 1.0f : 0.0f;
        correct += is_counted && i % 7 == i % 5;
        counted += is_counted;
        entropy += is_counted ? (double)((float *)entropies.data)[i] : 0;
    }
    struct loss_rows t = {losses.data, targets, -100, argmax, entropies.data};
    double a[4], b[4];
    CHECK_OK(op_loss_stats(k, a, &t, count));
    CHECK_OK(op_loss_stats(other, b, &t, count));
    CHECK(memcmp(a, b, sizeof a) == 0);
    CHECK_NEAR(a[0], oracle_sum_of_floats(losses.data, count), 1e-12 * (double)count);
    CHECK(a[1] == counted && a[2] == correct);
    CHECK_NEAR(a[3], entropy, 1e-12 * (double)count);
    t.entropies = NULL;
    t.argmax = NULL;
    a[2] = a[3] = 7;
    CHECK_OK(op_loss_stats(k, a, &t, count));
    CHECK(a[0] == b[0] && a[1] == counted && a[2] == 7 && a[3] == 7);
    ((float *)losses.data)[count - 1] = NAN;
    CHECK_OK(op_loss_stats(k, a, &t, count));
    CHECK(isnan(a[0]));
    free(targets);
    free(argmax);
    operation_release(&losses);
    operation_release(&entropies);
}

static void test_add(struct kernels *k, int64_t count)
{
    struct tensor to = operation_random(DTYPE_F32, 1, count, 1, 1);
    struct tensor from = operation_random(DTYPE_F32, 1, count, 2, 1);
    struct tensor before = operation_random(DTYPE_F32, 1, count, 1, 1);
    CHECK_OK(op_add(k, to.data, from.data, count));
    for (int64_t i = 0; i < count; i++) {
        CHECK(((float *)to.data)[i] == ((float *)before.data)[i] + ((float *)from.data)[i]);
    }
    CHECK_OK(op_add(k, NULL, NULL, 0));
    operation_release(&to);
    operation_release(&from);
    operation_release(&before);
}

/* Casts every bf16 number to f32 and back, and f32 numbers around ties, NaN, infinities and
 * subnormals to bf16. */
static void test_casts(struct kernels *k)
{
    const int64_t all = 65536;
    struct tensor from = operation_tensor(DTYPE_BF16, 256, all / 256, all / 256 + 1);
    struct tensor as_f32 = operation_tensor(DTYPE_F32, 256, all / 256, all / 256 + 3);
    struct tensor round_trip = operation_tensor(DTYPE_BF16, 256, all / 256, all / 256);
    for (int64_t i = 0; i < all; i++) {
        ((bf16 *)from.data)[i / 256 * from.stride + i % 256] = (bf16)i;
    }
    static const uint32_t below[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff};
    for (int j = 0; j < COUNT(below); j++) {
        CHECK_OK(op_cast(k, as_f32, from));
        for (int64_t i = 0; i < all; i++) {
            float *x = (float *)as_f32.data + i / 256 * as_f32.stride + i % 256;
            uint32_t bits;
            memcpy(&bits, x, sizeof bits);
            CHECK(bits == (uint32_t)i << 16);
            bits |= below[j];
            memcpy(x, &bits, sizeof bits);
        }
        CHECK_OK(op_cast(k, round_trip, as_f32));
        for (int64_t i = 0; i < all; i++) {
            float x = ((const float *)as_f32.data)[i / 256 * as_f32.stride + i % 256];
            bf16 got = ((const bf16 *)round_trip.data)[i], zero = signbit(x) ? 0x8000 : 0;
            bool are_nan = isnan(x) && isnan(bf16_to_f32(got));
            CHECK(got == f32_to_bf16(x) || are_nan || (fabsf(x) < 0x1p-126f && got == zero));
        }
    }
    operation_release(&from);
    operation_release(&as_f32);
    operation_release(&round_trip);
    struct tensor x = operation_random(DTYPE_F32, 1, 50001, 1, 1);
    struct tensor y = operation_tensor(DTYPE_F32, 1, 50001, 50001);
    CHECK_OK(op_cast(k, y, x));
    CHECK(operation_equal(x, y));
    operation_release(&x);
    operation_release(&y);
}

/* Casts of several blocks, with and without padded rows. */
static void test_copies(struct kernels *k, int64_t rows, int64_t columns, int64_t pad)
{
    enum dtype types[] = {DTYPE_F32, DTYPE_BF16};
    for (int i = 0; i < 4; i++) {
        struct tensor from = operation_random(types[i / 2], rows, columns, 1, 1);
        struct tensor to = operation_tensor(types[i % 2], rows, columns, columns + pad);
        CHECK_OK(op_cast(k, to, from));
        for (int64_t j = 0; j < rows * columns; j++) {
            double x = oracle_get(from, j / columns, j % columns);
            double error = fabs(oracle_get(to, j / columns, j % columns) - x);
            CHECK(error <= fabs(x) * (i == 1 ? 1.0 / 256 : 0));
        }
        operation_release(&from);
        operation_release(&to);
    }
}

/* Each element is zeroed or scaled according to its index, also in place. */
static void test_dropout(struct kernels *k, int64_t rows, int64_t columns, int64_t pad)
{
    enum dtype dtype = kernels_dtype(k);
    const struct dropout dropout = {0.25f, random_key(1, RANDOM_DROPOUT, 2, 3), 0xfffffff0, 0};
    struct tensor x = operation_tensor(dtype, rows, columns, columns + pad);
    struct tensor y = operation_tensor(dtype, rows, columns, columns + 2 * pad);
    operation_fill(x, 1, 1);
    CHECK_OK(dropout_apply(k, y, x, dropout));
    for (int64_t i = 0; i < rows * columns; i++) {
        int64_t r = i / columns, c = i % columns;
        double expected = oracle_get(x, r, c) * oracle_dropout_factor(dropout, i);
        double got = oracle_get(y, r, c);
        CHECK(fabs(got - expected) <= fabs(expected) * (dtype == DTYPE_BF16 ? 1.0 / 256 : 1e-6));
    }
    CHECK_OK(dropout_apply(k, x, x, dropout));
    CHECK(operation_difference(x, y) == 0);
    CHECK_OK(dropout_apply(k, y, x, (struct dropout){0}));
    CHECK(operation_difference(y, x) == 0);
    if (columns > 3) { /* a part of the columns has the same draws */
        struct dropout part = dropout;
        int64_t skipped = columns % 16 == 0 ? 8 : 2, left = columns - skipped - skipped % 8 / 2;
        struct tensor z = operation_tensor(dtype, rows, left, left);
        operation_fill(x, 1, 1);
        CHECK_OK(dropout_apply(k, y, x, dropout));
        part.first += skipped;
        part.pitch = columns;
        CHECK_OK(dropout_apply(k, z, tensor_columns(x, skipped, left), part));
        CHECK(operation_difference(z, tensor_columns(y, skipped, left)) == 0);
        operation_release(&z);
    }
    operation_release(&x);
    operation_release(&y);
}

/* op_scale has the type of its operand, not the type of the context. */
static void test_scale_f32(struct kernels *k)
{
    enum { COLUMNS = 13 };
    struct tensor x = operation_tensor(DTYPE_F32, 1, COLUMNS, COLUMNS);
    for (int64_t i = 0; i < COLUMNS; i++) {
        oracle_set(x, 0, i, (double)(1 + i));
    }
    CHECK_OK(op_scale(k, x, 2.51f));
    for (int64_t i = 0; i < COLUMNS; i++) {
        CHECK((float)oracle_get(x, 0, i) == 2.51f * (float)(1 + i));
    }
    operation_release(&x);
}

static void test_all(struct kernels *k, struct kernels *other)
{
    for (int i = 0; i < COUNTS; i++) {
        test_adamw(k, other, counts[i]);
        if (i % 2 == 0) {
            test_lamb(k, other, counts[i], 0);
        }
        test_sums(k, other, counts[i]);
        test_add(k, counts[i]);
        test_loss_stats(k, other, counts[i]);
    }
    test_lamb(k, other, 40003, 3);
    for (int i = 0; i < ROUNDINGS; i++) {
        test_rounding(k, other, counts[i], 0, &roundings[i]);
        test_rounding(k, other, 10007, i, &roundings[i]);
    }
    test_rounding_values(k);
    test_rounding_mean(k);
    for (int lamb = 0; lamb < 2; lamb++) {
        test_moment_rates(k, 0, 0, lamb);
        test_moment_rates(k, 0.9, 0.999, lamb);
        test_moment_rates(k, 0.999, 0.9999, lamb);
    }
    for (int i = 0; i < 2 * ROUNDINGS; i++) {
        test_bf16_moments(k, other, counts[i / 2], &roundings[i / 2], i % 2);
        test_bf16_moments(k, other, 10007, &roundings[i / 2], i % 2);
    }
    test_bf16_mean(k, false);
    test_bf16_mean(k, true);
    test_bf16_limits(k);
    test_lamb_nan(k);
    test_adamw_nan(k);
    test_casts(k);
    test_scale_f32(k);
    test_casts(other);
    test_dropout(k, 1, 1, 0);
    test_dropout(other, 5, 64, 8);
    test_dropout(other, 67, 33, 3);
    test_dropout(k, 70, 256, 0);
    test_dropout(k, 70, 256, 8);
    test_copies(k, 70, 256, 0);
    test_copies(k, 70, 256, 8);
}

int main(void)
{
    const struct kernels_limits limits = {16, 16, 16, 1, 16, 16, 16, true};
    operation_run_all(&limits, test_all);
    return 0;
}
