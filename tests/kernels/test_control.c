/* Tests the operations of a step's decision in device memory, and the updates that read it. All
 * back-ends must give the bits of the host, except in the scores and averages of spikes. */
#include "base/exact.h"
#include "kernels/fp8.h"
#include "kernels/spike_terms.h"
#include "tests/kernels/flat_slice.h"

/* ---- exact sums ---- */

/* Fills x with numbers from 2^-400 to 2^319 of both signs, and numbers that cancel. */
static void fill_terms(double *x, int64_t count, uint64_t seed)
{
    uint64_t key = random_key(seed, RANDOM_TEST, 0, 0);
    for (int64_t i = 0; i < count; i++) {
        double exponent = 60 * random_normal(key, (uint64_t)(2 * i));
        exponent = fmax(-400, fmin(318, exponent));
        x[i] = ldexp(random_normal(key, (uint64_t)(2 * i + 1)), (int)exponent);
        if (i % 5 == 4) {
            x[i] = -x[i - 3];
        }
    }
}

static void check_exact_sum(struct kernels *k, const double *x, int64_t count)
{
    struct exact_sum sum = {{0}, 0, 0};
    double got = 0;
    for (int64_t i = 0; i < count; i++) {
        exact_add(&sum, x[i]);
    }
    double expected = exact_value(&sum);
    CHECK_OK(control_sum_exact(k, &got, x, count));
    CHECK(isnan(expected) ? isnan(got) : memcmp(&got, &expected, sizeof got) == 0);
}

static void test_exact_sums(struct kernels *k)
{
    enum { TERMS = 1009 };
    static const double special[] = {0.0,
                                     -0.0,
                                     0x1p-1074,
                                     0x1p-330,
                                     0x1p-320,
                                     -0x1.8p-321,
                                     0x1p319,
                                     -1e-300,
                                     1.0,
                                     -1.0,
                                     0x1.fffffffffffffp39,
                                     0x1p-280,
                                     3.0,
                                     -0x1p319,
                                     1e16,
                                     1e-16};
    double x[TERMS];
    for (uint64_t seed = 0; seed < 8; seed++) {
        fill_terms(x, TERMS, seed);
        check_exact_sum(k, x, seed < 2 ? TERMS : (int64_t)(seed * seed));
    }
    check_exact_sum(k, x, 0);
    for (int i = 0; i < COUNT(special); i++) {
        check_exact_sum(k, special + i, 1);
        check_exact_sum(k, special, (int64_t)i);
    }
    const double infinite[] = {INFINITY, -INFINITY, NAN, 0x1p320, -0x1p320};
    for (int i = 0; i < 5; i++) {
        fill_terms(x, TERMS, 9);
        x[500] = infinite[i];
        check_exact_sum(k, x, TERMS);
    }
    x[501] = INFINITY;
    x[502] = -INFINITY;
    check_exact_sum(k, x, TERMS);
}

/* ---- sums over ranks, and the decision ---- */

static void test_row_sums(struct kernels *k, int64_t rows, int64_t columns)
{
    struct tensor x = operation_random(ORACLE_F64, rows, columns, 1, 1);
    struct tensor y = operation_random(ORACLE_F64, rows, columns, 2, 1e10);
    struct tensor out = operation_tensor(ORACLE_F64, 1, columns, columns);
    for (int both = 0; both < 2; both++) {
        CHECK_OK(control_sum_rows(k, out.data, x.data, both ? y.data : NULL, rows, columns));
        for (int64_t c = 0; c < columns; c++) {
            double sum = 0;
            for (int64_t r = 0; r < rows; r++) {
                sum += oracle_get(x, r, c) + (both ? oracle_get(y, r, c) : 0);
            }
            CHECK(oracle_get(out, 0, c) == sum);
        }
    }
    operation_release(&x);
    operation_release(&y);
    operation_release(&out);
}

/* Tests segments in any order, also empty ones. */
static void test_segments(struct kernels *k)
{
    enum { SEGMENTS = 150, ROWS = 400 };
    int32_t first[SEGMENTS], counts[SEGMENTS];
    double x[ROWS][2], out[SEGMENTS][2];
    for (int i = 0; i < ROWS; i++) {
        x[i][0] = random_normal(1, (uint64_t)i);
        x[i][1] = 1e9 * random_normal(2, (uint64_t)i);
    }
    for (int i = 0; i < SEGMENTS; i++) {
        first[i] = (7 * i) % (ROWS - 10);
        counts[i] = i % 11;
    }
    CHECK_OK(control_sum_segments(k, &out[0][0], &x[0][0], first, counts, SEGMENTS, 2));
    for (int i = 0; i < SEGMENTS; i++) {
        double sums[2] = {0, 0};
        for (int r = first[i]; r < first[i] + counts[i]; r++) {
            sums[0] += x[r][0];
            sums[1] += x[r][1];
        }
        CHECK(memcmp(out[i], sums, sizeof sums) == 0);
    }
}

static void test_trust_ratios(struct kernels *k)
{
    const double squares[][2] = {{2, 3}, {0, 1}, {1, 0}, {1e-30, 7e20}, {NAN, 1}};
    const int32_t tensors[] = {3, -1, 0, 1, 2, 0, -5};
    enum { RATIOS = COUNT(tensors) };
    double ratios[RATIOS];
    const double expected[RATIOS] = {sqrt(1e-30 / 7e20), 1, sqrt(2.0 / 3), 1, 1, sqrt(2.0 / 3), 1};
    CHECK_OK(control_trust_ratios(k, ratios, &squares[0][0], tensors, RATIOS));
    CHECK(memcmp(ratios, expected, sizeof ratios) == 0);
    const int32_t last = 4;
    CHECK_OK(control_trust_ratios(k, ratios, &squares[0][0], &last, 1));
    CHECK(isnan(ratios[0]));
}

static struct update_control compute_control(struct kernels *k, double loss, double count,
                                             double squares, double max_norm, int32_t skip)
{
    const struct update_sums sums = {&loss, &count, &squares, max_norm};
    struct update_control control = {-7, skip};
    CHECK_OK(control_decide_update(k, &control, &sums));
    return control;
}

static void test_decision(struct kernels *k)
{
    for (uint64_t i = 0; i < 200; i++) {
        double count = floor(1000 * fabs(random_normal(5, i)));
        double squares = exp(10 * random_normal(6, i)), max_norm = i % 3 == 0 ? 0 : 0.5;
        double scale = 1 / fmax(1, count), norm = sqrt(squares) * scale;
        struct update_control control = compute_control(k, 1, count, squares, max_norm, 0);
        CHECK(control.gradient_scale == (float)(scale * control_clip_factor(norm, max_norm)));
        CHECK(control.skip == 0);
    }
    CHECK(compute_control(k, 1, 0, 0, 1, 0).gradient_scale == 1);
    CHECK(compute_control(k, NAN, 1, 1, 1, 0).skip != 0 &&
          compute_control(k, INFINITY, 1, 1, 1, 0).skip != 0);
    CHECK(compute_control(k, 1, 1, NAN, 0, 0).skip != 0 &&
          compute_control(k, 1, 1, INFINITY, 1, 0).skip != 0);
    CHECK(compute_control(k, 1, 1, 1, 1, 1).skip != 0); /* it stays set */
    struct update_control unused;
    const struct update_sums missing = {0};
    CHECK_FAILS(control_decide_update(k, &unused, &missing), STATUS_INTERNAL, "missing");
}

/* ---- spikes ---- */

/* Values of step i: noise around a falling loss, a spike every 40 steps, and two steps that are not
 * finite. sums: two losses with their counts. */
static void set_spike_values(int i, double sums[4], double *squares)
{
    double spike = i % 40 == 39 ? 20 : 1;
    sums[0] = 100 * spike * (2 + exp(-0.02 * i)) * exp(0.02 * random_normal(7, (uint64_t)i));
    sums[1] = 100;
    sums[2] = i % 7;
    sums[3] = i % 3 == 0 ? 0 : 5;
    *squares = i == 150 ? NAN : 1e4 * spike * exp(0.1 * random_normal(8, (uint64_t)i));
    sums[0] = i == 170 ? INFINITY : sums[0];
}

static void check_trend(const struct spike_trend *a, const struct spike_trend *b)
{
    CHECK(a->count == b->count);
    CHECK_NEAR(a->mean, b->mean, 1e-12);
    CHECK_NEAR(a->change, b->change, 1e-12);
    CHECK_NEAR(a->last, b->last, 1e-12);
}

/* The scores and the averages of 200 steps equal those of spike_score_observe. A step after a spike
 * is not skipped. */
static void test_spikes(struct kernels *k)
{
    double sums[4], squares;
    struct spike_averages averages = {{0}, {0}};
    struct spike_state state = {{{0}, {0}}, {0}};
    struct update_control control = {0.5f, 1};
    const struct spike_inputs in = {sums, &sums[1], &squares, 2, {0, 2}, {1, 3}};
    int spikes = 0;
    for (int i = 0; i < 200; i++) {
        set_spike_values(i, sums, &squares);
        double loss = sums[0] / sums[1] + (sums[3] > 0 ? sums[2] / sums[3] : 0);
        struct spike_score expected =
            spike_score_observe(&averages, loss, sqrt(squares) * (1 / sums[1]), sums[1]);
        CHECK_OK(spike_score_run(k, &control, &state, &in));
        CHECK(state.score.is_spike == expected.is_spike && control.skip == expected.is_spike);
        CHECK(isinf(expected.loss) ? isinf(state.score.loss)
                                   : fabs(state.score.loss - expected.loss) <= 1e-9);
        CHECK(isinf(expected.gradient_norm)
                  ? isinf(state.score.gradient_norm)
                  : fabs(state.score.gradient_norm - expected.gradient_norm) <= 1e-9);
        check_trend(&state.averages.loss, &averages.loss);
        check_trend(&state.averages.gradient_norm, &averages.gradient_norm);
        CHECK(i >= 64 || !expected.is_spike);
        spikes += expected.is_spike;
    }
    CHECK(spikes >= 5 && spikes < 20);
    CHECK(control.gradient_scale == 0.5f);
    const struct spike_inputs missing = {sums, NULL, &squares, 0, {0}, {0}};
    CHECK_FAILS(spike_score_run(k, &control, &state, &missing), STATUS_INTERNAL, "missing");
}

enum { GRADIENT_PARTS = 300 };

/* Splits `count` elements into parts of unequal sizes with gaps between them. */
static struct gradient_parts make_gradient_parts(struct gradient_part *parts, int64_t count)
{
    struct gradient_parts p;
    int64_t n = 0, at = 0;
    for (int64_t size = 1; n < GRADIENT_PARTS && at + size <= count; size = 1 + size * 3 % 40009) {
        parts[n++] = (struct gradient_part){.offset = at, .first = 11 + at, .count = size};
        at += size + n % 5;
    }
    control_plan_gradients(parts, n, &p);
    p.parts = parts;
    return p;
}

/* The sums have the bits of op_sum_of_squares. The first non-finite element is found once. */
static void test_gradient_squares(struct kernels *k, int64_t count)
{
    struct tensor x = operation_random(DTYPE_F32, 1, count, 1, 1e20);
    struct gradient_part parts[GRADIENT_PARTS];
    struct gradient_parts p = make_gradient_parts(parts, count);
    float *data = x.data;
    struct not_finite found = {0, 7};
    double expected, got[GRADIENT_PARTS];
    CHECK_OK(control_gradient_squares(k, got, &found, data, &p));
    CHECK(found.number == 0 && found.value == 7);
    for (int64_t i = 0; i < p.count; i++) {
        CHECK_OK(op_sum_of_squares(k, &expected, data + parts[i].offset, parts[i].count));
        CHECK(memcmp(&got[i], &expected, sizeof expected) == 0);
    }
    for (int64_t i = p.count - 1; i >= 0; i -= 1 + p.count / 3) {
        int64_t bad = parts[i].offset + parts[i].count / 2;
        data[bad] = i % 2 == 0 ? -INFINITY : NAN;
        found.number = 0;
        CHECK_OK(control_gradient_squares(k, got, &found, data, &p));
        CHECK(!isfinite(got[i]) && found.number == 11 + bad + 1);
        CHECK(i % 2 == 0 ? found.value == -INFINITY : isnan(found.value));
        /* A second call keeps `found`, although an element before it is not finite now. */
        data[parts[0].offset] = INFINITY;
        CHECK_OK(control_gradient_squares(k, got, &found, data, &p));
        CHECK(isinf(got[0]) && found.number == 11 + bad + 1);
        data[parts[0].offset] = 1;
    }
    data[parts[p.count - 1].offset] = NAN;
    CHECK_OK(control_gradient_squares(k, got, NULL, data, &p));
    CHECK(isnan(got[p.count - 1]));
    operation_release(&x);
}

/* Gradients that would need too many blocks have larger blocks. */
static void test_gradient_blocks(void)
{
    struct gradient_part parts[2] = {{.count = INT64_C(1) << 33}, {.offset = 7, .count = 3}};
    struct gradient_parts p;
    control_plan_gradients(parts, 2, &p);
    CHECK(p.block_elements == 4 * GRADIENT_BLOCK && p.blocks == (1 << 17) + 1);
    CHECK(parts[0].first_block == 0 && parts[1].first_block == 1 << 17);
}

/* A CPU has any number of parts: with parallel.reproducible, one for each 4096 gradients. */
static void test_many_gradient_parts(struct kernels *k)
{
    const int64_t count = GRADIENT_BLOCKS_MAX + 3;
    struct gradient_part *parts = calloc((size_t)count, sizeof *parts);
    float *x = malloc((size_t)count * sizeof *x);
    double *squares = malloc((size_t)count * sizeof *squares);
    CHECK(parts != NULL && x != NULL && squares != NULL);
    for (int64_t i = 0; i < count; i++) {
        parts[i] = (struct gradient_part){.offset = i, .first = i, .count = 1};
        x[i] = (float)(i % 1000);
    }
    struct gradient_parts p;
    control_plan_gradients(parts, count, &p);
    CHECK(p.block_elements == GRADIENT_BLOCK && p.blocks == count);
    p.parts = parts;
    if (OPERATION_ON_GPU) {
        CHECK_FAILS(control_gradient_squares(k, squares, NULL, x, &p), STATUS_INTERNAL, "blocks");
    } else {
        CHECK_OK(control_gradient_squares(k, squares, NULL, x, &p));
    }
    for (int64_t i = 0; !OPERATION_ON_GPU && i < count; i++) {
        CHECK(squares[i] == (double)x[i] * (double)x[i]);
    }
    free(parts);
    free(x);
    free(squares);
}

/* ---- updates ---- */

static void run_update(struct kernels *k, const struct flat_slice *a, const struct adamw *settings,
                       bool lamb, double sums[2])
{
    int64_t count = a->weights.columns;
    if (lamb) {
        CHECK_OK(lamb_moments(k, sums, a->weights.data, a->moment1.data, a->moment2.data,
                              a->gradient.data, count, settings));
        CHECK_OK(lamb_apply(k, a->weights.data, a->copy.data, a->moment1.data, a->moment2.data,
                            count, settings));
    } else {
        CHECK_OK(adamw_update(k, a->weights.data, a->copy.data, a->moment1.data, a->moment2.data,
                              a->gradient.data, count, settings));
    }
}

static bool are_equal(const struct flat_slice *a, const struct flat_slice *b)
{
    return operation_equal(a->weights, b->weights) && operation_equal(a->copy, b->copy) &&
           operation_equal(a->moment1, b->moment1) && operation_equal(a->moment2, b->moment2);
}

/* An update that reads its factor from the control has the bits of one with the same factor in its
 * settings. A skipped one changes nothing, also with gradients that are not numbers. */
static void test_updates(struct kernels *k, int64_t count, enum dtype moments, bool lamb)
{
    struct update_control control = {0.37f, 0};
    struct adamw host = flat_slice_settings;
    host.gradient_scale = control.gradient_scale;
    host.rounding = (struct rounding){.columns = count, .pitch = count};
    host.moment_dtype = moments;
    host.moment_keys[0] = 1;
    host.moment_keys[1] = 2;
    struct adamw device = host;
    device.gradient_scale = 0;
    device.control = &control;
    double ratio = 0.6;
    host.learning_rate = (float)(0.01 * ratio);
    device.trust_ratio = lamb ? &ratio : NULL;
    device.base_rate = 0.01;
    device.learning_rate = lamb ? 0 : host.learning_rate;
    struct flat_slice a = flat_slice_create(count, moments), b = flat_slice_create(count, moments);
    double sums[2], other_sums[2];
    run_update(k, &a, &host, lamb, sums);
    run_update(k, &b, &device, lamb, other_sums);
    CHECK(are_equal(&a, &b));
    CHECK(!lamb || memcmp(sums, other_sums, sizeof sums) == 0);
    control.skip = 1;
    oracle_set(b.gradient, 0, count / 2, NAN);
    run_update(k, &b, &device, lamb, other_sums);
    CHECK(are_equal(&a, &b));
    CHECK(!lamb || (other_sums[0] == 0 && other_sums[1] == 0));
    control.skip = 0;
    run_update(k, &b, &device, lamb, other_sums);
    CHECK(!are_equal(&a, &b));
    flat_slice_release(&a);
    flat_slice_release(&b);
}

/* Tests moments and gradients that are zero, very small or very large. */
static void test_limits(struct kernels *k)
{
    static const float limits[] = {0, 1e-40f, 1e-30f, 1e-24f, 1e-12f, 1, 1e12f, 1e18f};
    enum { LIMITS = COUNT(limits), ELEMENTS = 4 * LIMITS * LIMITS * LIMITS };
    struct flat_slice a = flat_slice_create(ELEMENTS, DTYPE_F32),
                      b = flat_slice_create(ELEMENTS, DTYPE_F32);
    struct flat_slice *both[] = {&a, &b};
    for (int j = 0; j < 2; j++) {
        for (int64_t i = 0; i < ELEMENTS; i++) { /* usual values surround each unusual one */
            int64_t l = i % 4 == 0 ? i / 4 : 0;
            oracle_set(both[j]->moment1, 0, i, l == 0 ? 0.5 : -limits[l % LIMITS]);
            oracle_set(both[j]->moment2, 0, i, l == 0 ? 0.25 : limits[l / LIMITS % LIMITS]);
            oracle_set(both[j]->gradient, 0, i, l == 0 ? 1 : limits[l / LIMITS / LIMITS]);
        }
    }
    double sums[2];
    run_update(k, &a, &flat_slice_settings, false, sums);
    oracle_adamw_update(b.weights.data, b.copy.data, b.moment1.data, b.moment2.data,
                        b.gradient.data, ELEMENTS, &flat_slice_settings);
    for (int64_t i = 0; i < ELEMENTS; i++) {
        double x = oracle_get(a.weights, 0, i), y = oracle_get(b.weights, 0, i);
        operation_check_error("limits", k, fabs(x - y) / (fabs(y) + 1), 1e-6);
    }
    flat_slice_release(&a);
    flat_slice_release(&b);
}

enum { PARTS_MAX = 1100, SKIPPED_PARTS = 2, PARTS_ELEMENTS = 65536 };

/* Fills `count` parts with different lengths and alignments, and with gaps between them. Some are
 * longer than a block. Returns all but the first ones. */
static struct adamw_parts make_parts(struct adamw_part *parts, int count, int64_t gap)
{
    enum { LONGER = 10 };
    static const int64_t counts[LONGER] = {8, 64, 1, 17, 2048, 4099, 640, 2047, 5, 33001};
    int64_t first = 100, moment = 0, blocks = 0, sums = 0;
    CHECK(count <= PARTS_MAX);
    for (int i = 0; i < count; i++) {
        int64_t elements = i < LONGER ? counts[i] : i % 5 + 1;
        float decay = i % 3 == 0 ? 0 : 0.1f;
        parts[i] = (struct adamw_part){first, elements, moment, blocks, decay, sums};
        first += elements + gap;
        moment += elements + (i % 2 == 0 ? gap : 0);
        blocks += adamw_parts_blocks(&parts[i]);
        sums += lamb_parts_sums(&parts[i]);
    }
    const struct adamw_part *used = parts + SKIPPED_PARTS;
    const struct adamw_parts all = {.parts = used,
                                    .part_count = count - SKIPPED_PARTS,
                                    .blocks = blocks - used->first_block,
                                    .first_block = used->first_block,
                                    .origin = 96,
                                    .elements = PARTS_ELEMENTS,
                                    .moment_elems = PARTS_ELEMENTS,
                                    .sums = sums - used->first_sum,
                                    .first_sum = used->first_sum};
    CHECK(first < PARTS_ELEMENTS + all.origin);
    return all;
}

/* Parts have the bits of separate updates, and the elements of gaps between them do not change. */
static void test_parts(struct kernels *k, struct kernels *other, int count, int64_t gap)
{
    struct adamw_part parts[PARTS_MAX];
    struct adamw part_settings = flat_slice_settings;
    const struct adamw_parts all = make_parts(parts, count, gap);
    struct flat_slice a = flat_slice_create(PARTS_ELEMENTS, DTYPE_F32),
                      b = flat_slice_create(PARTS_ELEMENTS, DTYPE_F32);
    CHECK_OK(adamw_parts_update(k, a.weights.data, a.copy.data, a.moment1.data, a.moment2.data,
                                a.gradient.data, &all, &part_settings));
    for (int i = SKIPPED_PARTS; i < count; i++) {
        int64_t at = parts[i].first - all.origin;
        part_settings.weight_decay = parts[i].weight_decay;
        CHECK_OK(adamw_update(other, (float *)b.weights.data + at, (bf16 *)b.copy.data + at,
                              (float *)b.moment1.data + parts[i].moment,
                              (float *)b.moment2.data + parts[i].moment,
                              (float *)b.gradient.data + at, parts[i].count, &part_settings));
    }
    CHECK(are_equal(&a, &b));
    part_settings.moment_dtype = DTYPE_BF16;
    CHECK_FAILS(adamw_parts_update(k, a.weights.data, NULL, a.moment1.data, a.moment2.data,
                                   a.gradient.data, &all, &part_settings),
                STATUS_INTERNAL, "bf16 moments");
    flat_slice_release(&a);
    flat_slice_release(&b);
}

/* The same for LAMB. Its sums have the bits of lamb_moments too. */
static void test_lamb_parts(struct kernels *k, struct kernels *other, int count, int64_t gap)
{
    struct adamw_part parts[PARTS_MAX];
    double sums[PARTS_MAX][2], ratios[PARTS_MAX], expected[2];
    struct update_control control = {.gradient_scale = 0.25f};
    struct adamw part_settings = flat_slice_settings;
    const struct adamw_parts all = make_parts(parts, count, gap);
    struct flat_slice a = flat_slice_create(PARTS_ELEMENTS, DTYPE_F32),
                      b = flat_slice_create(PARTS_ELEMENTS, DTYPE_F32);
    part_settings.control = &control;
    part_settings.base_rate = 0.01;
    part_settings.trust_ratio = NULL;
    for (int i = 0; i < count; i++) {
        ratios[i] = 0.5 + 0.01 * i;
    }
    CHECK_OK(lamb_parts_moments(k, sums[0], a.weights.data, a.moment1.data, a.moment2.data,
                                a.gradient.data, &all, &part_settings));
    CHECK_OK(lamb_parts_apply(k, a.weights.data, a.copy.data, a.moment1.data, a.moment2.data,
                              ratios, &all, &part_settings));
    for (int i = 0; i < all.part_count; i++) {
        const struct adamw_part *part = &all.parts[i];
        float *weights = (float *)b.weights.data + part->first - all.origin;
        float *moment1 = (float *)b.moment1.data + part->moment;
        float *moment2 = (float *)b.moment2.data + part->moment;
        part_settings.weight_decay = part->weight_decay;
        part_settings.trust_ratio = &ratios[i];
        CHECK_OK(lamb_moments(other, expected, weights, moment1, moment2,
                              (float *)b.gradient.data + part->first - all.origin, part->count,
                              &part_settings));
        CHECK(memcmp(expected, sums[i], sizeof expected) == 0);
        CHECK_OK(lamb_apply(other, weights, (bf16 *)b.copy.data + part->first - all.origin, moment1,
                            moment2, part->count, &part_settings));
    }
    CHECK(are_equal(&a, &b));
    control.skip = 1;
    part_settings.trust_ratio = NULL;
    CHECK_OK(lamb_parts_moments(k, sums[0], a.weights.data, a.moment1.data, a.moment2.data,
                                a.gradient.data, &all, &part_settings));
    CHECK_OK(lamb_parts_apply(k, a.weights.data, a.copy.data, a.moment1.data, a.moment2.data,
                              ratios, &all, &part_settings));
    CHECK(are_equal(&a, &b) && sums[all.part_count - 1][0] == 0);
    part_settings.moment_dtype = DTYPE_BF16;
    CHECK_FAILS(lamb_parts_apply(k, a.weights.data, NULL, a.moment1.data, a.moment2.data, ratios,
                                 &all, &part_settings),
                STATUS_INTERNAL, "bf16 moments");
    CHECK_FAILS(lamb_parts_moments(k, sums[0], a.weights.data, a.moment1.data, a.moment2.data,
                                   a.gradient.data, &all, &part_settings),
                STATUS_INTERNAL, "bf16 moments");
    flat_slice_release(&a);
    flat_slice_release(&b);
}

/* ---- scales of FP8 ---- */

enum { SCALES = 35, SCALE_ROWS = 19, SCALE_RANKS = 3 };

/* Fills a row with magnitudes between subnormal numbers and the largest f32 numbers, zeros, and
 * numbers next to 1.75 times a power of two, where the scales change. */
static void fill_magnitudes(float *x, uint64_t seed)
{
    uint64_t key = random_key(seed, RANDOM_TEST, 0, 0);
    for (int i = 0; i < SCALES; i++) {
        float change = ldexpf(1.75f, (int)(40 * random_normal(key, (uint64_t)i)));
        x[i] = i % 7 == 0   ? 0.0f
               : i % 7 == 1 ? change
               : i % 7 == 2 ? nextafterf(change, INFINITY)
                            : (float)fabs(random_normal(key, (uint64_t)(100 + i)));
    }
    x[10] = 0x1p-149f;
    x[11] = 0x1.fffffep127f;
}

/* The history is a ring. Only rows in it determine the scales. */
static void test_scales(struct kernels *k, int64_t ranks)
{
    float history[SCALE_ROWS][SCALES], maxima[SCALE_RANKS][SCALES];
    float scales[SCALES][FP8_SCALES_STRIDE] = {{0}};
    const struct update_control kept = {1, 0};
    for (int step = 0; step < SCALE_ROWS; step++) {
        fill_magnitudes(history[step], (uint64_t)step);
    }
    for (int step = 0; step < 4; step++) {
        const int row = (2 * SCALE_ROWS - 2 - step) % SCALE_ROWS;
        for (int r = 0; r < SCALE_RANKS; r++) {
            fill_magnitudes(maxima[r], (uint64_t)(100 + 10 * step + r));
            maxima[r][20 + r] = r == 0 ? NAN : INFINITY;
        }
        CHECK_OK(fp8_update_scales(k, tensor_view(scales, DTYPE_F32, SCALES, FP8_SCALES_STRIDE),
                                   tensor_view(history, DTYPE_F32, SCALE_ROWS, SCALES),
                                   tensor_view(maxima, DTYPE_F32, ranks, SCALES), row,
                                   step % 2 == 0 ? NULL : &kept));
        for (int i = 0; i < SCALES; i++) {
            float newest = 0, amax = 0;
            for (int r = 0; r < ranks; r++) {
                newest = isfinite(maxima[r][i]) ? fmaxf(newest, maxima[r][i]) : newest;
            }
            for (int r = 0; r < SCALE_ROWS; r++) {
                amax = fmaxf(amax, history[r][i]);
            }
            CHECK(history[row][i] == newest);
            CHECK(scales[i][FP8_SCALE] == fp8_scale(amax, (enum fp8_operand)(i % FP8_OPERANDS)));
            CHECK(scales[i][FP8_RECIPROCAL] == 1 / scales[i][FP8_SCALE]);
            CHECK(scales[i][2] == 0 && scales[i][3] == 0);
        }
    }
    CHECK_FAILS(fp8_update_scales(k, tensor_view(scales, DTYPE_F32, SCALES, FP8_SCALES_STRIDE),
                                  tensor_view(history, DTYPE_F32, SCALE_ROWS, SCALES),
                                  tensor_view(maxima, DTYPE_F32, ranks, SCALES), SCALE_ROWS, NULL),
                STATUS_INTERNAL, "row");
    CHECK(fp8_scale(0, FP8_X) == 1 && fp8_scale(448, FP8_W) == 1 && fp8_scale(57344, FP8_DY) == 1);
    CHECK(fp8_scale(449, FP8_X) == 0.5f && fp8_scale(0x1p-149f, FP8_X) == 0x1p100f);
}

/* After a skipped step, row `row` and the rows after it have the same steps as before, from the
 * newest one on. The scales do not change. */
static void test_skipped_scales(struct kernels *k, int64_t rows, int64_t row)
{
    float before[SCALE_ROWS][SCALES], history[SCALE_ROWS][SCALES], maxima[SCALES];
    float scales[SCALES][FP8_SCALES_STRIDE] = {{7}}, same[SCALES][FP8_SCALES_STRIDE] = {{7}};
    const struct update_control skipped = {1, 1};
    for (int64_t r = 0; r < rows; r++) {
        fill_magnitudes(before[r], (uint64_t)r);
    }
    memcpy(history, before, sizeof history);
    fill_magnitudes(maxima, 99);
    CHECK_OK(fp8_update_scales(k, tensor_view(scales, DTYPE_F32, SCALES, FP8_SCALES_STRIDE),
                               tensor_view(history, DTYPE_F32, rows, SCALES),
                               tensor_view(maxima, DTYPE_F32, 1, SCALES), row, &skipped));
    for (int64_t r = 0; r < rows; r++) {
        CHECK(memcmp(history[(row + r) % rows], before[(row + 1 + r) % rows], sizeof history[0]) ==
              0);
    }
    CHECK(memcmp(scales, same, sizeof scales) == 0);
}

static void test_all(struct kernels *k, struct kernels *other)
{
    test_limits(k);
    test_skipped_scales(k, SCALE_ROWS, SCALE_ROWS - 1);
    test_skipped_scales(k, SCALE_ROWS, 3);
    test_skipped_scales(other, 1, 0);
    test_scales(k, 1);
    test_scales(other, SCALE_RANKS);
    test_lamb_parts(k, other, 10, 0);
    test_lamb_parts(k, other, 10, 8);
    test_lamb_parts(k, other, 1100, 8);
    test_lamb_parts(k, other, 10, 3);
    test_parts(k, other, 10, 0);
    test_parts(k, other, 10, 8);
    test_parts(k, other, 1100, 8);
    test_parts(k, other, 10, 3);
    test_exact_sums(k);
    test_row_sums(k, 1, 1);
    test_row_sums(k, 65, 20);
    test_row_sums(other, 3, 131);
    test_decision(k);
    test_spikes(k);
    test_segments(k);
    test_trust_ratios(k);
    test_gradient_squares(k, 3);
    test_gradient_squares(k, 400003);
    test_gradient_blocks();
    test_many_gradient_parts(k);
    for (int i = 0; i < 8; i++) {
        enum dtype moments = i % 2 == 0 ? DTYPE_F32 : DTYPE_BF16;
        test_updates(i % 4 < 2 ? k : other, i < 4 ? 3 : 5003, moments, i % 4 >= 2);
        test_updates(k, 4096, moments, i < 4);
    }
}

int main(void)
{
    const struct kernels_limits limits = {16, 16, 16, 1, 16, 16, 16, true};
    operation_run_all(&limits, test_all);
    return 0;
}
