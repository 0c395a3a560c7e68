/* Tests the operations that Llama and Gemma use and GPT does not: SwiGLU, GEGLU and rotary position
 * embedding. */
#include "base/memory.h"
#include "tests/kernels/operation.h"

struct shape {
    int64_t rows, columns, pad; /* N, F, elements between rows */
};

static const struct shape swiglu_shapes[] = {
    {1, 1, 0}, {7, 5, 3}, {64, 48, 0}, {33, 17, 1}, {130, 64, 8}, {3, 515, 0},
};

/* Checks that the error is at most twice the error of `naive`. `naive` is the oracle with results
 * in the dtype. */
static void check_naive_error(struct kernels *k, const char *name, struct tensor got,
                              struct tensor naive, struct tensor exact)
{
    double tolerance = 2 * operation_difference(naive, exact) + 1e-6;
    operation_check_error(name, k, operation_difference(got, exact), tolerance);
}

static struct tensor make_padded(enum dtype dtype, int64_t rows, int64_t columns, int64_t pad,
                                 uint64_t seed, double scale)
{
    struct tensor t = operation_tensor(dtype, rows, columns, columns + pad);
    operation_fill(t, seed, scale);
    return t;
}

/* Calls SwiGLU if act is ACTIVATION_NONE, else GEGLU. */
static status run_forward(struct kernels *k, struct tensor y, struct tensor in, enum activation act)
{
    return act == ACTIVATION_NONE ? swiglu_forward(k, y, in) : geglu_forward(k, y, in, act);
}

static status run_backward(struct kernels *k, struct tensor d, struct tensor dy, struct tensor in,
                           enum activation act)
{
    return act == ACTIVATION_NONE ? swiglu_backward(k, d, dy, in)
                                  : geglu_backward(k, d, dy, in, act);
}

static void test_gated(struct kernels *k, struct kernels *other, const struct shape *s,
                       enum activation act)
{
    enum dtype dtype = kernels_dtype(k), types[] = {dtype, dtype, dtype, ORACLE_F64};
    struct tensor y[4], in[4], dy[4], d[4];
    for (int i = 0; i < 4; i++) {
        y[i] = make_padded(types[i], s->rows, s->columns, s->pad, 1, 1);
        in[i] = make_padded(types[i], s->rows, 2 * s->columns, s->pad, 2, 3);
        dy[i] = make_padded(types[i], s->rows, s->columns, s->pad, 3, 1);
        d[i] = make_padded(types[i], s->rows, 2 * s->columns, s->pad, 4, 1);
    }
    oracle_cast(in[3], in[0]);
    oracle_cast(dy[3], dy[0]);
    struct kernels *both[] = {k, other};
    for (int i = 0; i < 2; i++) {
        CHECK_OK(run_forward(both[i], y[i], in[i], act));
        CHECK_OK(run_backward(both[i], d[i], dy[i], in[i], act));
        CHECK_OK(run_backward(both[i], in[i], dy[i], in[i], act)); /* in place */
        oracle_gated_forward(y[2 + i], in[2 + i], act);
        oracle_gated_backward(d[2 + i], dy[2 + i], in[2 + i], act);
    }
    CHECK(operation_equal(y[0], y[1]) && operation_equal(d[0], d[1]));
    CHECK(operation_equal(in[0], d[0]));
    check_naive_error(k, "gated unit: y", y[0], y[2], y[3]);
    check_naive_error(k, "gated unit: d_gate_up", d[0], d[2], d[3]);
    for (int i = 0; i < 4; i++) {
        operation_release(&y[i]);
        operation_release(&in[i]);
        operation_release(&dy[i]);
        operation_release(&d[i]);
    }
}

/* For large inputs the gate is 0 or the input, without overflow. NaN propagates. */
static void test_gated_extremes(struct kernels *k, enum activation act)
{
    static const float gates[] = {-1e4f, -200, 0, 200, 1e4f, NAN};
    struct tensor in = operation_tensor(kernels_dtype(k), 1, 12, 12);
    struct tensor y = operation_tensor(kernels_dtype(k), 1, 6, 6);
    for (int i = 0; i < 6; i++) {
        oracle_set(in, 0, i, gates[i]);
        oracle_set(in, 0, 6 + i, 0.5);
    }
    CHECK_OK(run_forward(k, y, in, act));
    for (int i = 0; i < 5; i++) {
        double expected = gates[i] > 0 ? oracle_get(in, 0, i) / 2 : 0;
        CHECK_NEAR(oracle_get(y, 0, i), expected, 1e-3 * expected);
    }
    CHECK(isnan(oracle_get(y, 0, 5)));
    CHECK_FAILS(geglu_forward(k, y, in, ACTIVATION_TANH), STATUS_INTERNAL, "not a GELU");
    CHECK_FAILS(geglu_backward(k, in, y, in, ACTIVATION_NONE), STATUS_INTERNAL, "not a GELU");
    operation_release(&in);
    operation_release(&y);
}

struct rotary_shape {
    int64_t rows, heads, width, pad; /* N, H, D, elements between rows */
    int64_t rotated;                 /* R */
};

static const struct rotary_shape rotary_shapes[] = {
    {1, 1, 2, 0, 2},     {5, 3, 6, 7, 6},   {17, 2, 64, 0, 64}, {40, 5, 32, 16, 32},
    {9, 1, 128, 3, 128}, {6, 4, 34, 0, 34}, {7, 3, 80, 16, 32}, {5, 2, 64, 8, 16},
    {4, 3, 10, 1, 2},    {3, 2, 20, 4, 16},
};

static const struct rotary_scaling unscaled = {0};

static void test_rotary(struct kernels *k, struct kernels *other, const struct rotary_shape *s)
{
    const double theta = 500;
    const int64_t positions = 61;
    enum dtype dtype = kernels_dtype(k), types[] = {dtype, dtype, dtype, ORACLE_F64};
    struct tensor table = operation_tensor(DTYPE_F32, positions, s->rotated, s->rotated), x[4];
    int32_t row_positions[64];
    rotary_fill_table(table.data, positions, s->rotated, theta, &unscaled);
    for (int64_t n = 0; n < s->rows; n++) {
        row_positions[n] = (int32_t)random_below(1, (uint64_t)n, (uint64_t)positions);
    }
    for (int i = 0; i < 4; i++) {
        x[i] = make_padded(types[i], s->rows, s->heads * s->width, s->pad, 1, 1);
    }
    oracle_cast(x[3], x[0]);
    CHECK_OK(rotary_apply(k, x[0], table, row_positions, s->width, false));
    CHECK_OK(rotary_apply(other, x[1], table, row_positions, s->width, false));
    CHECK(operation_equal(x[0], x[1]));
    oracle_rotary_apply(x[2], s->width, s->rotated, theta, row_positions, false);
    oracle_rotary_apply(x[3], s->width, s->rotated, theta, row_positions, false);
    check_naive_error(k, "rotary", x[0], x[2], x[3]);
    CHECK_OK(rotary_apply(k, x[0], table, row_positions, s->width, true));
    oracle_rotary_apply(x[2], s->width, s->rotated, theta, row_positions, true);
    oracle_rotary_apply(x[3], s->width, s->rotated, theta, row_positions, true);
    check_naive_error(k, "rotary, inverse", x[0], x[2], x[3]);
    for (int i = 0; i < 4; i++) {
        operation_release(&x[i]);
    }
    operation_release(&table);
}

static void test_all(struct kernels *k, struct kernels *other)
{
    for (int i = 0; i < COUNT(swiglu_shapes); i++) {
        test_gated(k, other, &swiglu_shapes[i], ACTIVATION_NONE);
        test_gated(k, other, &swiglu_shapes[i], ACTIVATION_GELU_TANH);
        test_gated(k, other, &swiglu_shapes[i], ACTIVATION_GELU_ERF);
    }
    test_gated_extremes(k, ACTIVATION_NONE);
    test_gated_extremes(k, ACTIVATION_GELU_TANH);
    test_gated_extremes(k, ACTIVATION_GELU_ERF);
    for (int i = 0; i < COUNT(rotary_shapes); i++) {
        test_rotary(k, other, &rotary_shapes[i]);
    }
}

/* Tests the tables of scaled frequencies. The expected frequencies are those that
 * ROPE_INIT_FUNCTIONS["llama3"] of transformers computes in single precision for Llama 3.2 1B:
 * theta 5e5, head width 64, factor 32, low 1, high 4 and 8192 original positions. */
static void test_rotary_scaling(void)
{
    static const struct {
        int index;
        double frequency;
    } expected[] = {{0, 1.0},
                    {4, 0.193922758102417},
                    {8, 0.03760603070259094},
                    {12, 0.00729266507551074},
                    {14, 0.0032114461064338684},
                    {15, 0.0012905480107292533},
                    {16, 0.000429556705057621},
                    {20, 8.570255886297673e-06},
                    {24, 1.6619674170215148e-06},
                    {31, 9.418306490260875e-08}};
    const struct rotary_scaling llama3 = {.kind = ROTARY_LLAMA3,
                                          .factor = 32,
                                          .low_frequency_factor = 1,
                                          .high_frequency_factor = 4,
                                          .original_positions = 8192};
    const struct rotary_scaling linear = {.kind = ROTARY_LINEAR, .factor = 4};
    float table[2 * 64], scaled[5 * 64], plain[2 * 64];
    rotary_fill_table(table, 2, 64, 5e5, &llama3);
    for (int i = 0; i < COUNT(expected); i++) {
        double sine = sin(expected[i].frequency);
        CHECK_NEAR(table[64 + expected[i].index], cos(expected[i].frequency), 1e-6);
        CHECK_NEAR(table[64 + 32 + expected[i].index], sine, 2e-6 * sine);
    }
    rotary_fill_table(scaled, 5, 64, 5e5, &linear);
    rotary_fill_table(plain, 2, 64, 5e5, &unscaled);
    for (int i = 0; i < 64; i++) {
        CHECK_NEAR(scaled[4 * 64 + i], plain[64 + i], 1e-7);
    }
}

/* Tests the table of YaRN against ROPE_INIT_FUNCTIONS["yarn"] of transformers: theta 1e6, width
 * of a head 64, factor 4, 32,768 original positions, betas 32 and 1. */
static void test_rotary_yarn(void)
{
    static const struct {
        int index;
        double frequency;
    } expected[] = {{0, 1.0},
                    {8, 0.03162277862429619},
                    {12, 0.005154795479029417},
                    {16, 0.0005833333707414567},
                    {17, 0.00032469083089381456},
                    {18, 0.0001757068675942719},
                    {20, 4.4456985051510856e-05},
                    {24, 7.905693564680405e-06},
                    {31, 3.8498163235090033e-07}};
    struct rotary_scaling yarn = {.kind = ROTARY_YARN,
                                  .factor = 4,
                                  .original_positions = 32768,
                                  .beta_fast = 32,
                                  .beta_slow = 1};
    float table[2 * 64];
    rotary_fill_table(table, 2, 64, 1e6, &yarn);
    for (int i = 0; i < COUNT(expected); i++) {
        double sine = 1.138629436111989 * sin(expected[i].frequency);
        CHECK_NEAR(table[64 + 32 + expected[i].index], sine, 2e-6 * sine);
    }
    CHECK_NEAR(table[0], 1.138629436111989, 1e-6);
    yarn.attention_factor = 0.5;
    rotary_fill_table(table, 2, 64, 1e6, &yarn);
    CHECK_NEAR(table[0], 0.5, 0);
}

/* Tests the table of a dynamic base against ROPE_INIT_FUNCTIONS["dynamic"] of transformers: theta
 * 1e4, width of a head 64, factor 2, 2,048 original positions, a text of 5,000 tokens. */
static void test_rotary_dynamic(void)
{
    static const struct {
        int index;
        double frequency;
    } expected[] = {{0, 1.0},
                    {1, 0.7177864909172058},
                    {8, 0.07046318054199219},
                    {20, 0.0013179699890315533},
                    {31, 3.4344215237069875e-05}};
    struct rotary_scaling dynamic = {
        .kind = ROTARY_DYNAMIC, .factor = 2, .original_positions = 2048, .positions = 5000};
    struct rotary_scaling plain = {.kind = ROTARY_PLAIN};
    for (int i = 0; i < COUNT(expected); i++) {
        double frequency = rotary_frequency(expected[i].index, 64, 1e4, &dynamic);
        CHECK_NEAR(frequency, expected[i].frequency, 1e-6 * expected[i].frequency);
    }
    dynamic.positions = 2000; /* a context that is not longer changes nothing */
    for (int i = 0; i < 32; i++) {
        double expected_frequency = rotary_frequency(i, 64, 1e4, &plain);
        CHECK_NEAR(rotary_frequency(i, 64, 1e4, &dynamic), expected_frequency,
                   1e-12 * expected_frequency);
    }
}

/* Tests LongRoPE: each frequency is divided by its number. The sizes are the sizes of Phi-3 with
 * 128k tokens; ln(32) / ln(4096) is 5 / 12. */
static void test_rotary_longrope(void)
{
    float table[2 * 4];
    struct rotary_scaling longrope = {.kind = ROTARY_LONGROPE,
                                      .factor = 32,
                                      .original_positions = 4096,
                                      .pair_factors = {1.25, 8}};
    CHECK_NEAR(rotary_attention_factor(&longrope), sqrt(17.0 / 12), 1e-12);
    CHECK_NEAR(rotary_frequency(0, 4, 1e4, &longrope), 0.8, 1e-12);
    CHECK_NEAR(rotary_frequency(1, 4, 1e4, &longrope), 0.00125, 1e-12);
    rotary_fill_table(table, 2, 4, 1e4, &longrope);
    CHECK_NEAR(table[4], sqrt(17.0 / 12) * cos(0.8), 1e-6);
    longrope.factor = 1;
    CHECK(rotary_attention_factor(&longrope) == 1);
    longrope.attention_factor = 1.5;
    CHECK(rotary_attention_factor(&longrope) == 1.5);
}

int main(void)
{
    test_rotary_scaling();
    test_rotary_yarn();
    test_rotary_dynamic();
    test_rotary_longrope();
    const struct kernels_limits limits = {1000, 64, 64, 1, 16, 16, 16, true, 0};
    operation_run_all(&limits, test_all);
    return 0;
}
