/* Tests the oracle: its backward passes against finite differences of its forward passes in double
 * precision, and some known values.
 *
 * A problem is a function of several matrices with one result: the sum of the outputs multiplied by
 * fixed random weights. The gradient of each element of each matrix is compared with the central
 * difference. */
#include "tests/kernels/operation.h"

enum { INPUTS_MAX = 4 };

struct problem {
    const char *name;
    int inputs;
    struct tensor input[INPUTS_MAX], gradient[INPUTS_MAX];
    struct tensor weights; /* factors of the outputs in the sum: their gradients */
    double (*value)(const struct problem *p);
    void (*gradients)(const struct problem *p);
    int choice; /* activation, norm kind or mask */
};

static struct tensor make_matrix(int64_t rows, int64_t columns, uint64_t seed)
{
    return operation_random(ORACLE_F64, rows, columns, seed, 1);
}

static void add_input(struct problem *p, int64_t rows, int64_t columns)
{
    p->input[p->inputs] = make_matrix(rows, columns, 10 + (uint64_t)p->inputs);
    p->gradient[p->inputs] = make_matrix(rows, columns, 20);
    operation_set(p->gradient[p->inputs], 0);
    p->inputs++;
}

static double compute_weighted_sum(struct tensor y, struct tensor weights)
{
    double sum = 0;
    for (int64_t r = 0; r < y.rows; r++) {
        for (int64_t c = 0; c < y.columns; c++) {
            sum += oracle_get(y, r, c) * oracle_get(weights, r, c);
        }
    }
    return sum;
}

static void check_gradients(struct problem *p)
{
    const double h = 1e-5;
    p->gradients(p);
    for (int i = 0; i < p->inputs; i++) {
        struct tensor x = p->input[i];
        for (int64_t at = 0; at < x.rows * x.columns; at++) {
            int64_t r = at / x.columns, c = at % x.columns;
            double before = oracle_get(x, r, c);
            oracle_set(x, r, c, before + h);
            double above = p->value(p);
            oracle_set(x, r, c, before - h);
            double below = p->value(p);
            oracle_set(x, r, c, before);
            double expected = (above - below) / (2 * h), got = oracle_get(p->gradient[i], r, c);
            if (!(fabs(got - expected) <= 1e-7 * (1 + fabs(expected)))) {
                fprintf(stderr, "%s %d: input %d at (%d, %d): gradient %.9g, difference %.9g\n",
                        p->name, p->choice, i, (int)r, (int)c, got, expected);
                exit(1);
            }
        }
    }
    for (int i = 0; i < p->inputs; i++) {
        operation_release(&p->input[i]);
        operation_release(&p->gradient[i]);
    }
    operation_release(&p->weights);
}

/* ---- linear layer with activation ---- */

static double compute_linear_value(const struct problem *p)
{
    struct tensor y = make_matrix(p->weights.rows, p->weights.columns, 1);
    oracle_linear_forward(y, tensor_absent(), p->input[0], p->input[1], p->input[2],
                          (enum activation)p->choice);
    double sum = compute_weighted_sum(y, p->weights);
    operation_release(&y);
    return sum;
}

/* linear_backward_input multiplies by the derivative of the activation of its x. Therefore a GEMM
 * with the identity matrix computes the gradient of the pre-activation of this layer. */
static void compute_linear_gradients(const struct problem *p)
{
    int64_t n = p->weights.rows, m = p->weights.columns;
    struct tensor y = make_matrix(n, m, 1), pre = make_matrix(n, m, 1), dpre = make_matrix(n, m, 1);
    struct tensor identity = make_matrix(m, m, 1);
    for (int64_t i = 0; i < m * m; i++) {
        oracle_set(identity, i / m, i % m, i / m == i % m);
    }
    enum activation act = (enum activation)p->choice;
    oracle_linear_forward(y, pre, p->input[0], p->input[1], p->input[2], act);
    oracle_linear_backward_input(dpre, p->weights, identity, act, pre);
    oracle_linear_backward_input(p->gradient[0], dpre, p->input[1], ACTIVATION_NONE,
                                 tensor_absent());
    oracle_linear_backward_weight(p->gradient[1], p->gradient[2], dpre, p->input[0]);
    operation_release(&y);
    operation_release(&pre);
    operation_release(&dpre);
    operation_release(&identity);
}

static void test_linear(void)
{
    for (int act = ACTIVATION_NONE; act < ACTIVATIONS; act++) {
        struct problem p = {.name = "linear", .choice = act};
        add_input(&p, 5, 7);
        add_input(&p, 4, 7);
        add_input(&p, 1, 4);
        p.weights = make_matrix(5, 4, 2);
        p.value = compute_linear_value;
        p.gradients = compute_linear_gradients;
        check_gradients(&p);
    }
}

/* ---- embedding ---- */

static const int32_t tokens[] = {2, 0, 2, 1, 2}, positions[] = {0, 1, 2, 0, 1};
static const struct dropout dropout = {0.4f, 77, 5, 0};

static double compute_embedding_value(const struct problem *p)
{
    struct tensor y = make_matrix(5, 6, 1);
    oracle_embedding_forward(y, tokens, positions, p->input[0], p->input[1], dropout);
    double sum = compute_weighted_sum(y, p->weights);
    operation_release(&y);
    return sum;
}

static void compute_embedding_gradients(const struct problem *p)
{
    oracle_embedding_backward(p->gradient[0], p->gradient[1], p->weights, tokens, positions,
                              dropout);
}

static void test_embedding(void)
{
    struct problem p = {.name = "embedding"};
    add_input(&p, 3, 6);
    add_input(&p, 3, 6);
    p.weights = make_matrix(5, 6, 2);
    p.value = compute_embedding_value;
    p.gradients = compute_embedding_gradients;
    check_gradients(&p);
}

/* ---- gated linear units and rotary position embedding ---- */

static double compute_gated_value(const struct problem *p)
{
    struct tensor y = make_matrix(5, 3, 1);
    oracle_gated_forward(y, p->input[0], (enum activation)p->choice);
    double sum = compute_weighted_sum(y, p->weights);
    operation_release(&y);
    return sum;
}

static void compute_gated_gradients(const struct problem *p)
{
    oracle_gated_backward(p->gradient[0], p->weights, p->input[0], (enum activation)p->choice);
}

static double compute_rotary_value(const struct problem *p)
{
    struct tensor y = operation_copy(p->input[0], ORACLE_F64);
    oracle_rotary_apply(y, 4, p->choice, 50, positions, false);
    double sum = compute_weighted_sum(y, p->weights);
    operation_release(&y);
    return sum;
}

static void compute_rotary_gradients(const struct problem *p)
{
    oracle_cast(p->gradient[0], p->weights);
    oracle_rotary_apply(p->gradient[0], 4, p->choice, 50, positions, true);
}

static void test_llama(void)
{
    struct problem p;
    for (int act = ACTIVATION_NONE; act <= ACTIVATION_GELU_ERF; act++) {
        p = (struct problem){.name = "gated unit",
                             .choice = act,
                             .value = compute_gated_value,
                             .gradients = compute_gated_gradients};
        add_input(&p, 5, 6);
        p.weights = make_matrix(5, 3, 2);
        check_gradients(&p);
    }
    for (int rotated = 2; rotated <= 4; rotated += 2) {
        p = (struct problem){.name = "rotary",
                             .choice = rotated,
                             .value = compute_rotary_value,
                             .gradients = compute_rotary_gradients};
        add_input(&p, 5, 8);
        p.weights = make_matrix(5, 8, 2);
        check_gradients(&p);
    }
    float table[2 * 4]; /* position 1: angles 1 and 50^(-1/2) */
    rotary_fill_table(table, 2, 4, 50, &(struct rotary_scaling){0});
    CHECK(table[0] == 1 && table[1] == 1 && table[2] == 0 && table[3] == 0);
    CHECK_NEAR(table[4], cos(1), 1e-7);
    CHECK_NEAR(table[7], sin(sqrt(1.0 / 50)), 1e-7);
}

/* ---- selected rows ---- */

static const int32_t selected_rows[] = {0, 3, 4};

static double compute_rows_value(const struct problem *p)
{
    struct tensor y = make_matrix(3, 6, 1);
    oracle_gather_rows(y, p->input[0], selected_rows);
    double sum = compute_weighted_sum(y, p->weights);
    operation_release(&y);
    return sum;
}

static void compute_rows_gradients(const struct problem *p)
{
    oracle_scatter_rows(p->gradient[0], p->weights, selected_rows, p->choice == 1);
}

static void test_rows(void)
{
    for (int overwrite = 0; overwrite < 2; overwrite++) {
        struct problem p = {.name = "rows", .choice = overwrite};
        add_input(&p, 6, 6);
        p.weights = make_matrix(3, 6, 2);
        p.value = compute_rows_value;
        p.gradients = compute_rows_gradients;
        check_gradients(&p);
    }
}

/* ---- residual addition and norm; z and y are outputs ---- */

/* A layer norm without weight and bias; enum norm_kind has the other choices. */
enum { NORM_WITHOUT_WEIGHT = NORM_RMS + 1 };

static enum norm_kind get_norm_kind(const struct problem *p)
{
    return p->choice == NORM_RMS ? NORM_RMS : NORM_LAYER;
}

static double compute_norm_value(const struct problem *p)
{
    struct tensor z = make_matrix(4, 6, 1), y = make_matrix(4, 6, 1),
                  statistics = make_matrix(4, 2, 1);
    oracle_residual_norm_forward(z, y, statistics, p->input[0], p->input[1], p->input[2],
                                 p->input[3], get_norm_kind(p), 1e-3, dropout);
    double sum = compute_weighted_sum(z, tensor_columns(p->weights, 0, 6)) +
                 compute_weighted_sum(y, (struct tensor){(double *)p->weights.data + 6, ORACLE_F64,
                                                         4, 6, p->weights.stride});
    operation_release(&z);
    operation_release(&y);
    operation_release(&statistics);
    return sum;
}

static void compute_norm_gradients(const struct problem *p)
{
    struct tensor z = make_matrix(4, 6, 1), y = make_matrix(4, 6, 1),
                  statistics = make_matrix(4, 2, 1);
    oracle_residual_norm_forward(z, y, statistics, p->input[0], p->input[1], p->input[2],
                                 p->input[3], get_norm_kind(p), 1e-3, dropout);
    struct tensor dy = {(double *)p->weights.data + 6, ORACLE_F64, 4, 6, p->weights.stride};
    oracle_cast(p->gradient[0], tensor_columns(p->weights, 0, 6));
    oracle_residual_norm_backward(p->gradient[0], p->gradient[1], p->gradient[2], p->gradient[3],
                                  tensor_absent(), dy, z, statistics, p->input[2], get_norm_kind(p),
                                  false, dropout);
    operation_release(&z);
    operation_release(&y);
    operation_release(&statistics);
}

static void test_norm(void)
{
    static const int vectors[] = {[NORM_LAYER] = 2, [NORM_RMS] = 1, [NORM_WITHOUT_WEIGHT] = 0};
    for (int kind = NORM_LAYER; kind <= NORM_WITHOUT_WEIGHT; kind++) {
        struct problem p = {.name = "norm", .choice = kind};
        add_input(&p, 4, 6);
        add_input(&p, 4, 6);
        for (int i = 0; i < vectors[kind]; i++) {
            add_input(&p, 1, 6);
        }
        p.weights = make_matrix(4, 12, 2);
        p.value = compute_norm_value;
        p.gradients = compute_norm_gradients;
        check_gradients(&p);
    }
}

/* ---- attention: two sequences with different numbers of queries and keys; grouped heads ---- */

static const int32_t cu_q[] = {0, 3, 7}, cu_k[] = {0, 5, 8};

/* Bits of choice: causal, window, dropout, soft-cap, bias. The bias is input 3. */
static struct attention make_attention(const struct problem *p)
{
    int choice = p->choice;
    struct attention a = {
        .heads = 2,
        .kv_heads = 1,
        .head_width = 3,
        .causal = (choice & 1) != 0,
        .window = (choice & 2) != 0 ? 2 : 0,
        .scale = 0.7f,
        .softcap = (choice & 8) != 0 ? 1.5f : 0,
        .sequences = 2,
        .cu_q = cu_q,
        .cu_k = cu_k,
        .longest_q = 4,
        .longest_k = 5,
        .dropout = (choice & 4) != 0 ? dropout : (struct dropout){0},
    };
    if ((choice & 16) != 0) {
        a.bias = (struct attention_bias){p->input[3], p->gradient[3], 5};
    }
    return a;
}

static double compute_attention_value(const struct problem *p)
{
    struct attention a = make_attention(p);
    struct tensor o = make_matrix(7, 6, 1);
    oracle_attention_forward(o, tensor_absent(), p->input[0], p->input[1], p->input[2], &a);
    double sum = compute_weighted_sum(o, p->weights);
    operation_release(&o);
    return sum;
}

static void compute_attention_gradients(const struct problem *p)
{
    struct attention a = make_attention(p);
    struct tensor o = make_matrix(7, 6, 1), lse = make_matrix(2, 7, 1);
    oracle_attention_forward(o, lse, p->input[0], p->input[1], p->input[2], &a);
    oracle_attention_backward(p->gradient[0], p->gradient[1], p->gradient[2], p->weights,
                              p->input[0], p->input[1], p->input[2], o, lse, &a);
    operation_release(&o);
    operation_release(&lse);
}

static void test_attention(void)
{
    for (int choice = 0; choice < 32; choice++) {
        struct problem p = {.name = "attention", .choice = choice};
        add_input(&p, 7, 6);
        add_input(&p, 8, 3);
        add_input(&p, 8, 3);
        if ((choice & 16) != 0) {
            add_input(&p, 6, 2);
        }
        p.weights = make_matrix(7, 6, 2);
        p.value = compute_attention_value;
        p.gradients = compute_attention_gradients;
        check_gradients(&p);
    }
}

/* ---- classifier: weighted rows, an ignored row, padded vocabulary ---- */

static const int32_t targets[] = {4, 0, -1, 2};
static const float row_scale[] = {1.5f, -0.5f, 3, 1};

static struct classifier make_classifier(bool gradient)
{
    return (struct classifier){
        .vocabulary = 5, .ignored = -1, .row_scale = row_scale, .gradient = gradient};
}

static double compute_classifier_value(const struct problem *p)
{
    double losses[4], sum = 0;
    struct classifier c = make_classifier(false);
    oracle_classifier_run(losses, NULL, tensor_absent(), tensor_absent(), p->input[0], p->input[1],
                          targets, &c);
    for (int i = 0; i < 4; i++) {
        sum += losses[i] * row_scale[i];
    }
    return sum;
}

static void compute_classifier_gradients(const struct problem *p)
{
    double losses[4];
    int32_t argmax[4];
    struct classifier c = make_classifier(true);
    oracle_classifier_run(losses, argmax, p->gradient[0], p->gradient[1], p->input[0], p->input[1],
                          targets, &c);
    CHECK(losses[2] == 0 && argmax[0] >= 0 && argmax[0] < 5);
}

static void test_classifier(void)
{
    struct problem p = {.name = "classifier"};
    add_input(&p, 4, 6);
    add_input(&p, 7, 6);
    p.weights = make_matrix(1, 1, 2);
    p.value = compute_classifier_value;
    p.gradients = compute_classifier_gradients;
    check_gradients(&p);
}

/* ---- known values ---- */

static void test_known_values(void)
{
    CHECK_NEAR(oracle_activation(1, ACTIVATION_GELU_ERF), 0.84134474606854293, 1e-15);
    CHECK_NEAR(oracle_activation(1, ACTIVATION_GELU_TANH), 0.84119199060827604, 1e-14);
    float weight = 1, moment1 = 0, moment2 = 0, gradient = 4;
    const struct adamw first = {0.1f, 0.9, 0.999, 0, 0.5f, 1, 0.1f, 0.001f};
    oracle_adamw_update(&weight, NULL, &moment1, &moment2, &gradient, 1, &first);
    /* The first step uses only the sign of the gradient. */
    CHECK_NEAR(weight, 1 - 0.1 * (1 + 0.5 * 1), 1e-5);
    CHECK_NEAR(moment1, 0.4, 1e-6);
    CHECK_NEAR(moment2, 0.016, 1e-6);
    /* LAMB with weight 2 and gradient 3: the update is the sign 1 plus the weight decay 0.5 * 2. */
    float two = 2, three = 3, none = 0;
    double sums[2];
    moment1 = 0;
    oracle_lamb_moments(sums, &two, &moment1, &none, &three, 1, &first);
    CHECK_NEAR(sums[0], 4, 1e-12);
    CHECK_NEAR(sums[1], 4, 1e-5);
    oracle_lamb_apply(&two, NULL, &moment1, &none, 1, &first);
    CHECK_NEAR(two, 2 - 0.1 * 2, 1e-6);
}

int main(void)
{
    test_linear();
    test_embedding();
    test_rows();
    test_llama();
    test_norm();
    test_attention();
    test_classifier();
    test_known_values();
    return 0;
}
