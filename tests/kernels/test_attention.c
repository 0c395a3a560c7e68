/* Tests attention, forward and backward, against the oracle. Some results must be equal bit for
 * bit: packed and separate sequences, any number of threads, repetition, and past rows after a
 * change of future tokens. */
#include "tests/kernels/attention_rows.h"
#include "tests/kernels/operation.h"

struct shape {
    const char *name;
    int heads, kv_heads;
    int64_t width;
    bool causal;
    int64_t window;
    int64_t sequences;
    int64_t queries[SEQUENCES_MAX], keys[SEQUENCES_MAX];
    double size; /* standard deviation of the elements of q and k */
    float dropout;
    int32_t prefix[2 * SEQUENCES_MAX]; /* shared_prefix_offsets; all 0: none */
};

static const struct shape shapes[] = {
    {"one token", 1, 1, 1, true, 0, 1, {1}, {1}, 1, 0},
    {"gpt", 2, 2, 64, true, 0, 1, {130}, {130}, 1, 0},
    {"full", 2, 2, 32, false, 0, 2, {67, 64}, {67, 64}, 1, 0},
    {"documents", 2, 2, 64, true, 0, 4, {5, 0, 129, 1}, {5, 0, 129, 1}, 1, 0},
    {"grouped", 4, 2, 32, true, 0, 2, {70, 3}, {70, 3}, 1, 0},
    {"one key-value head", 3, 1, 16, false, 0, 1, {65}, {65}, 1, 0},
    {"width 96", 1, 1, 96, true, 0, 1, {100}, {100}, 1, 0},
    {"width 128", 1, 1, 128, true, 0, 1, {97}, {97}, 1, 0},
    {"width 256", 1, 1, 256, false, 0, 1, {37}, {37}, 1, 0},
    {"prime width", 2, 1, 37, true, 0, 2, {71, 2}, {71, 2}, 1, 0},
    {"long", 1, 1, 16, true, 0, 1, {301}, {301}, 1, 0},
    {"window", 2, 2, 24, true, 17, 2, {150, 40}, {150, 40}, 1, 0},
    {"window over all", 1, 1, 24, false, 70, 1, {90}, {90}, 1, 0},
    {"cache of one row", 2, 1, 64, true, 0, 4, {1, 1, 1, 1}, {200, 1, 64, 65}, 1, 0},
    {"cache of rows", 2, 2, 64, true, 0, 2, {3, 70}, {90, 133}, 1, 0},
    {"more queries than keys", 1, 1, 32, true, 0, 2, {70, 4}, {9, 0}, 1, 0},
    {"cross", 2, 2, 32, false, 0, 2, {9, 70}, {140, 1}, 1, 0},
    {"large scores", 2, 2, 64, true, 0, 1, {130}, {130}, 35, 0},
    {"dropout", 2, 2, 64, true, 0, 2, {70, 33}, {70, 33}, 1, 0.3f},
    {"dropout of a row", 4, 2, 32, true, 0, 2, {1, 1}, {70, 33}, 1, 0.5f},
    {"around tiles", 1, 1, 32, true, 0, 4, {127, 128, 129, 63}, {127, 128, 129, 63}, 1, 0},
    {"window of tiles", 2, 1, 32, true, 100, 2, {260, 65}, {260, 65}, 1, 0},
    {"dropout, grouped, window", 4, 2, 96, true, 50, 1, {140}, {150}, 1, 0.2f},
    {"many tiles", 2, 1, 64, true, 0, 2, {200, 70}, {420, 70}, 1, 0},
    {"many tiles of 128", 1, 1, 128, false, 0, 1, {70}, {400}, 1, 0},
    {"window of many tiles", 1, 1, 64, true, 150, 1, {200}, {420}, 1, 0},
    {"shared prefix", 2, 2, 64, true, 0, 2, {150, 30}, {150, 30}, 1, 0, {100, 120, 3, 17}},
    {"shared prefix of tiles, grouped", 2, 1, 32, true, 0, 1, {300}, {300}, 1, 0, {40, 170}},
    {"shared prefix, hidden tiles", 1, 1, 32, true, 0, 1, {290}, {290}, 1, 0, {100, 256}},
    {"shared prefix of whole tiles", 1, 1, 16, true, 0, 1, {260}, {260}, 1, 0, {64, 192}},
    {"empty shared prefix, empty second response",
     2,
     2,
     24,
     true,
     0,
     2,
     {150, 70},
     {150, 70},
     1,
     0,
     {0, 75, 30, 70}},
    {"shared prefix, dropout", 2, 2, 64, true, 0, 2, {70, 33}, {70, 33}, 1, 0.3f, {20, 44, 33, 33}},
};

enum { SHAPES = sizeof shapes / sizeof *shapes };

struct memory {
    struct tensor q, keys, values, d_o, o, lse, dq, dkeys, dvalues;
};

struct problem {
    const struct shape *shape;
    int32_t cu_q[SEQUENCES_MAX + 1], cu_k[SEQUENCES_MAX + 1];
    struct attention a;
    int64_t rows_q, rows_k;
};

static void make_problem(struct problem *p, const struct shape *s)
{
    *p = (struct problem){.shape = s};
    p->a = (struct attention){
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_width = s->width,
        .causal = s->causal,
        .window = s->window,
        .scale = (float)(1.0 / sqrt((double)s->width)),
        .sequences = s->sequences,
        .cu_q = p->cu_q,
        .cu_k = p->cu_k,
        .dropout = {s->dropout, random_key(7, RANDOM_DROPOUT, 3, 1), INT64_C(0xfffffff0), 0},
    };
    for (int64_t i = 0; i < 2 * s->sequences; i++) {
        p->a.shared_prefix_offsets = s->prefix[i] != 0 ? s->prefix : p->a.shared_prefix_offsets;
    }
    p->rows_q = attention_rows_set_offsets(p->cu_q, s->queries, s->sequences, &p->a.longest_q);
    p->rows_k = attention_rows_set_offsets(p->cu_k, s->keys, s->sequences, &p->a.longest_k);
}

/* The row strides are odd. With the argument `aligned` they are multiples of 16 bytes, which some
 * kernels need. */
static int64_t unit = 1;
/* With the argument `wgmma`: aligned, and only the shapes that the wgmma kernel supports. */
static bool wgmma_only;

/* Tensors with strides, as views into a wider matrix. */
static struct memory make_memory(const struct problem *p, enum dtype dtype)
{
    int64_t wide = p->shape->heads * p->shape->width, narrow = p->shape->kv_heads * p->shape->width;
    enum dtype sums = dtype == ORACLE_F64 ? ORACLE_F64 : DTYPE_F32;
    struct memory m = {
        .q = operation_tensor(dtype, p->rows_q, wide, wide + 5 * unit),
        .keys = operation_tensor(dtype, p->rows_k, narrow, narrow + 3 * unit),
        .values = operation_tensor(dtype, p->rows_k, narrow, narrow + 1 * unit),
        .d_o = operation_tensor(dtype, p->rows_q, wide, wide),
        .o = operation_tensor(dtype, p->rows_q, wide, wide + 7 * unit),
        .lse = operation_tensor(sums, p->shape->heads, p->rows_q, p->rows_q),
        .dq = operation_tensor(dtype, p->rows_q, wide, wide + 2 * unit),
        .dkeys = operation_tensor(dtype, p->rows_k, narrow, narrow),
        .dvalues = operation_tensor(dtype, p->rows_k, narrow, narrow + 9 * unit),
    };
    return m;
}

static void fill_memory(struct memory m, double size)
{
    operation_fill(m.q, 1, size);
    operation_fill(m.keys, 2, size);
    operation_fill(m.values, 3, 1);
    operation_fill(m.d_o, 4, 1);
}

static void copy_memory(struct memory to, struct memory from)
{
    oracle_cast(to.q, from.q);
    oracle_cast(to.keys, from.keys);
    oracle_cast(to.values, from.values);
    oracle_cast(to.d_o, from.d_o);
}

static void release_memory(struct memory *m)
{
    struct tensor *all[] = {&m->q,   &m->keys, &m->values, &m->d_o,    &m->o,
                            &m->lse, &m->dq,   &m->dkeys,  &m->dvalues};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        operation_release(all[i]);
    }
}

static void run(struct kernels *k, const struct problem *p, struct memory m)
{
    CHECK_OK(attention_forward(k, m.o, m.lse, m.q, m.keys, m.values, &p->a));
    CHECK_OK(attention_backward(k, m.dq, m.dkeys, m.dvalues, m.d_o, m.q, m.keys, m.values, m.o,
                                m.lse, &p->a));
}

static void run_oracle(const struct problem *p, struct memory m)
{
    oracle_attention_forward(m.o, m.lse, m.q, m.keys, m.values, &p->a);
    oracle_attention_backward(m.dq, m.dkeys, m.dvalues, m.d_o, m.q, m.keys, m.values, m.o, m.lse,
                              &p->a);
}

/* Compares the rows of sequences. The other rows must be untouched. */
static double compute_rows_difference(struct tensor got, struct tensor expected, const int32_t *cu,
                                      int64_t sequences)
{
    int64_t first = cu[0], count = cu[sequences] - cu[0];
    for (int64_t r = 0; r < got.rows; r++) {
        const unsigned char *row =
            (const unsigned char *)got.data + (size_t)(r * got.stride) * element_bytes(got.dtype);
        for (size_t i = 0; (r < first || r >= first + count) && i < element_bytes(got.dtype); i++) {
            CHECK(row[i] == UNTOUCHED);
        }
    }
    struct tensor a = got, b = expected;
    a.data = (char *)a.data + (size_t)(first * a.stride) * element_bytes(a.dtype);
    b.data = (char *)b.data + (size_t)(first * b.stride) * element_bytes(b.dtype);
    a.rows = b.rows = count;
    return operation_difference(a, b);
}

static double compute_lse_difference(const struct problem *p, struct tensor got,
                                     struct tensor expected)
{
    int64_t first = p->cu_q[0], count = p->cu_q[p->shape->sequences] - first;
    struct tensor a = got, b = expected;
    a.data = (char *)a.data + (size_t)first * element_bytes(a.dtype);
    b.data = (char *)b.data + (size_t)first * element_bytes(b.dtype);
    a.columns = b.columns = count;
    return operation_difference(a, b);
}

static bool is_memory_equal(struct memory a, struct memory b)
{
    return operation_equal(a.o, b.o) && operation_equal(a.lse, b.lse) &&
           operation_equal(a.dq, b.dq) && operation_equal(a.dkeys, b.dkeys) &&
           operation_equal(a.dvalues, b.dvalues);
}

/* Computes the errors of got against exact: o, lse, dq, dkeys, dvalues. */
static void compute_errors(double errors[5], const struct problem *p, struct memory got,
                           struct memory exact)
{
    int64_t sequences = p->shape->sequences;
    errors[0] = compute_rows_difference(got.o, exact.o, p->cu_q, sequences);
    errors[1] = compute_lse_difference(p, got.lse, exact.lse);
    errors[2] = compute_rows_difference(got.dq, exact.dq, p->cu_q, sequences);
    errors[3] = compute_rows_difference(got.dkeys, exact.dkeys, p->cu_k, sequences);
    errors[4] = compute_rows_difference(got.dvalues, exact.dvalues, p->cu_k, sequences);
}

/* The oracle's results, computed once for each dtype. exact is in double precision. naive is
 * rounded to the dtype at the same points as the operation (o and lse before the backward pass). */
struct truth {
    struct memory exact, naive;
};

static struct truth truths[SHAPES][2];

static const struct truth *get_truth(const struct problem *p, int number, enum dtype dtype,
                                     struct memory m)
{
    struct truth *t = &truths[number][dtype];
    if (t->exact.q.data == NULL) {
        t->exact = make_memory(p, ORACLE_F64);
        t->naive = make_memory(p, dtype);
        copy_memory(t->exact, m);
        copy_memory(t->naive, m);
        run_oracle(p, t->exact);
        run_oracle(p, t->naive);
    }
    return t;
}

static void release_truths(void)
{
    for (int i = 0; i < 2 * SHAPES; i++) {
        release_memory(&truths[i / 2][i % 2].exact);
        release_memory(&truths[i / 2][i % 2].naive);
    }
}

static void test_errors(struct kernels *k, const struct problem *p, struct memory m,
                        const struct truth *truth)
{
    static const char *const names[] = {"o", "lse", "dq", "dkeys", "dvalues"};
    double errors[5], naive_errors[5];
    compute_errors(errors, p, m, truth->exact);
    compute_errors(naive_errors, p, truth->naive, truth->exact);
    for (int i = 0; i < 5; i++) {
        char what[128];
        snprintf(what, sizeof what, "attention, %s: %s", p->shape->name, names[i]);
        /* Scores of several thousand have an f32 rounding error of up to 2.4e-4, and so has p.
         * Tensor cores and processors with bf16 instructions multiply p and ds as bf16. */
        bool rounded = unit > 1 || kernels_dtype(k) == DTYPE_BF16;
        double operands = rounded && i != 1 ? 0x1p-8 : 0;
        double rounding = operands + (p->shape->size > 1 ? 1e-3 : i < 2 ? 1e-5 : 2e-5);
        operation_check_error(what, k, errors[i], 2 * naive_errors[i] + rounding);
    }
}

static void test_shape(struct kernels *k, struct kernels *other, int number)
{
    struct problem p;
    make_problem(&p, &shapes[number]);
    struct memory m = make_memory(&p, kernels_dtype(k)), again = make_memory(&p, kernels_dtype(k));
    fill_memory(m, p.shape->size);
    copy_memory(again, m);
    run(k, &p, m);
    run(other, &p, again);
    CHECK(is_memory_equal(m, again));
    run(k, &p, again);
    CHECK(is_memory_equal(m, again));
    test_errors(k, &p, m, get_truth(&p, number, kernels_dtype(k), m));
    release_memory(&m);
    release_memory(&again);
}

/* Two sequences in one call and each in a separate call: the bits are equal. */
static void test_packed(struct kernels *k)
{
    const struct shape both = {"", 2, 2, 64, true, 0, 2, {75, 140}, {75, 140}, 1, 0};
    struct problem p, single;
    make_problem(&p, &both);
    struct memory m = make_memory(&p, kernels_dtype(k)), n = make_memory(&p, kernels_dtype(k));
    fill_memory(m, 1);
    copy_memory(n, m);
    run(k, &p, m);
    for (int i = 0; i < 2; i++) {
        single = p;
        single.a.sequences = 1;
        single.a.cu_q = p.cu_q + i;
        single.a.cu_k = p.cu_k + i;
        run(k, &single, n);
    }
    CHECK(is_memory_equal(m, n));
    release_memory(&m);
    release_memory(&n);
}

/* Two responses after a shared prompt, and each after a copy of the prompt. */
static void test_shared_prefix(struct kernels *k)
{
    enum { PROMPT = 90, CHOSEN = 45, REJECTED = 70, BOTH = PROMPT + CHOSEN + REJECTED };
    const struct shape one = {"", 2,      1,      32, true, 0,
                              1,  {BOTH}, {BOTH}, 1,  0,    {PROMPT, PROMPT + CHOSEN}};
    const struct shape two = {"",
                              2,
                              1,
                              32,
                              true,
                              0,
                              2,
                              {PROMPT + CHOSEN, PROMPT + REJECTED},
                              {PROMPT + CHOSEN, PROMPT + REJECTED},
                              1,
                              0,
                              {0}};
    struct problem p, q;
    make_problem(&p, &one);
    make_problem(&q, &two);
    struct memory m = make_memory(&p, kernels_dtype(k)), n = make_memory(&q, kernels_dtype(k));
    fill_memory(m, 1);
    for (int64_t row = 0; row < PROMPT + CHOSEN + PROMPT + REJECTED; row++) {
        int64_t from = row < PROMPT + CHOSEN ? row : row - PROMPT - CHOSEN;
        from += row >= PROMPT + CHOSEN && from >= PROMPT ? CHOSEN : 0;
        oracle_cast(tensor_rows(n.q, LEAD + row, 1), tensor_rows(m.q, LEAD + from, 1));
        oracle_cast(tensor_rows(n.keys, LEAD + row, 1), tensor_rows(m.keys, LEAD + from, 1));
        oracle_cast(tensor_rows(n.values, LEAD + row, 1), tensor_rows(m.values, LEAD + from, 1));
    }
    CHECK_OK(attention_forward(k, m.o, m.lse, m.q, m.keys, m.values, &p.a));
    CHECK_OK(attention_forward(k, n.o, n.lse, n.q, n.keys, n.values, &q.a));
    double epsilon = kernels_dtype(k) == DTYPE_BF16 ? 1e-2 : 1e-6;
    CHECK(operation_difference(tensor_rows(m.o, LEAD, PROMPT + CHOSEN),
                               tensor_rows(n.o, LEAD, PROMPT + CHOSEN)) <= epsilon);
    CHECK(operation_difference(tensor_rows(m.o, LEAD + PROMPT + CHOSEN, REJECTED),
                               tensor_rows(n.o, LEAD + PROMPT + CHOSEN + PROMPT, REJECTED)) <=
          epsilon);
    release_memory(&m);
    release_memory(&n);
}

/* Different tokens at the end: earlier rows keep their bits, later rows do not. */
static void test_past(struct kernels *k)
{
    const struct shape s = {"", 2, 2, 64, true, 0, 1, {150}, {150}, 1, 0};
    struct problem p;
    make_problem(&p, &s);
    struct memory m = make_memory(&p, kernels_dtype(k)), n = make_memory(&p, kernels_dtype(k));
    fill_memory(m, 1);
    copy_memory(n, m);
    int64_t last = LEAD + 100;
    for (int64_t c = 0; c < m.q.columns; c++) {
        oracle_set(n.keys, last, c, 3);
        oracle_set(n.values, last, c, -2);
    }
    CHECK_OK(attention_forward(k, m.o, m.lse, m.q, m.keys, m.values, &p.a));
    CHECK_OK(attention_forward(k, n.o, n.lse, n.q, n.keys, n.values, &p.a));
    CHECK(memcmp(m.o.data, n.o.data, tensor_bytes(tensor_rows(m.o, 0, last))) == 0);
    CHECK(!operation_equal(tensor_rows(m.o, last, 1), tensor_rows(n.o, last, 1)));
    release_memory(&m);
    release_memory(&n);
}

/* NaN in a query affects its row only; NaN in a key affects the rows that see it, and their lse. */
static void test_nan(struct kernels *k)
{
    const struct shape s = {"", 1, 1, 32, true, 0, 1, {70}, {70}, 1, 0};
    struct problem p;
    make_problem(&p, &s);
    struct memory m = make_memory(&p, kernels_dtype(k));
    fill_memory(m, 1);
    oracle_set(m.q, LEAD + 5, 3, NAN);
    oracle_set(m.keys, LEAD + 66, 0, NAN);
    run(k, &p, m);
    for (int64_t i = 0; i < 70; i++) {
        bool bad = i == 5 || i >= 66;
        CHECK(isnan(oracle_get(m.o, LEAD + i, 0)) == bad);
        CHECK(isnan(oracle_get(m.lse, 0, LEAD + i)) == bad);
    }
    CHECK(isnan(oracle_get(m.dq, LEAD + 69, 1)) && isnan(oracle_get(m.dkeys, LEAD, 1)));
    release_memory(&m);
}

/* A sequence does not depend on its neighbours, even if they contain NaN. */
static void test_neighbours(struct kernels *k)
{
    const struct shape both = {"", 1, 1, 64, false, 0, 2, {75, 40}, {75, 40}, 1, 0};
    struct problem p;
    make_problem(&p, &both);
    struct memory m = make_memory(&p, kernels_dtype(k)), n = make_memory(&p, kernels_dtype(k));
    fill_memory(m, 1);
    copy_memory(n, m);
    for (int64_t r = LEAD + 75; r < LEAD + 75 + 40; r++) {
        oracle_set(n.q, r, 3, NAN);
        oracle_set(n.keys, r, 5, NAN);
        oracle_set(n.values, r, 7, NAN);
    }
    CHECK_OK(attention_forward(k, m.o, m.lse, m.q, m.keys, m.values, &p.a));
    CHECK_OK(attention_forward(k, n.o, n.lse, n.q, n.keys, n.values, &p.a));
    CHECK(operation_equal(tensor_rows(m.o, LEAD, 75), tensor_rows(n.o, LEAD, 75)));
    CHECK(isnan(oracle_get(n.o, LEAD + 75, 7)));
    release_memory(&m);
    release_memory(&n);
}

/* Two query heads that share a key-value head equal two heads with copies of it. */
static void test_grouped(struct kernels *k)
{
    const struct shape one = {"", 2, 1, 64, true, 0, 1, {90}, {90}, 1, 0};
    const struct shape two = {"", 2, 2, 64, true, 0, 1, {90}, {90}, 1, 0};
    struct problem p, q;
    make_problem(&p, &one);
    make_problem(&q, &two);
    struct memory m = make_memory(&p, kernels_dtype(k)), n = make_memory(&q, kernels_dtype(k));
    fill_memory(m, 1);
    fill_memory(n, 1);
    for (int half = 0; half < 2; half++) {
        oracle_cast(tensor_columns(n.keys, 64 * half, 64), m.keys);
        oracle_cast(tensor_columns(n.values, 64 * half, 64), m.values);
    }
    run(k, &p, m);
    run(k, &q, n);
    CHECK(operation_equal(m.o, n.o) && operation_equal(m.lse, n.lse));
    CHECK(operation_equal(m.dq, n.dq));
    for (int64_t r = LEAD; r < LEAD + 90; r++) {
        for (int64_t c = 0; c < 64; c++) {
            double sum = oracle_get(n.dkeys, r, c) + oracle_get(n.dkeys, r, 64 + c);
            double size = fabs(oracle_get(n.dkeys, r, c)) + fabs(sum);
            double epsilon = kernels_dtype(k) == DTYPE_BF16 ? 1e-2 : 1e-5;
            CHECK_NEAR(oracle_get(m.dkeys, r, c), sum, epsilon * (size + 0.1));
        }
    }
    release_memory(&m);
    release_memory(&n);
}

/* Heads on other ranks do not change the results: dropout uses the model's head index. */
static void test_shared_heads(struct kernels *k)
{
    const struct shape all = {"", 4, 4, 16, true, 0, 2, {70, 33}, {70, 33}, 1, 0.3f};
    struct shape half = all;
    half.heads = half.kv_heads = 2;
    struct problem p, q;
    make_problem(&p, &all);
    make_problem(&q, &half);
    q.a.all_heads = 4;
    struct memory m = make_memory(&p, kernels_dtype(k));
    fill_memory(m, 1);
    run(k, &p, m);
    for (int i = 0; i < 2; i++) {
        struct memory n = make_memory(&q, kernels_dtype(k));
        oracle_cast(n.q, tensor_columns(m.q, 32 * i, 32));
        oracle_cast(n.keys, tensor_columns(m.keys, 32 * i, 32));
        oracle_cast(n.values, tensor_columns(m.values, 32 * i, 32));
        oracle_cast(n.d_o, tensor_columns(m.d_o, 32 * i, 32));
        q.a.first_head = 2 * i;
        run(k, &q, n);
        for (int64_t r = LEAD; r < LEAD + 103; r++) {
            for (int64_t c = 0; c < 32; c++) {
                CHECK(oracle_get(n.o, r, c) == oracle_get(m.o, r, 32 * i + c));
                CHECK(oracle_get(n.dq, r, c) == oracle_get(m.dq, r, 32 * i + c));
                CHECK(oracle_get(n.dkeys, r, c) == oracle_get(m.dkeys, r, 32 * i + c));
                CHECK(oracle_get(n.dvalues, r, c) == oracle_get(m.dvalues, r, 32 * i + c));
            }
        }
        release_memory(&n);
    }
    release_memory(&m);
}

/* Whether a shape is skipped. Aligned rows are for the tiled kernels, which support certain widths
 * only. In the GPU emulator the row kernels run smaller shapes, and even smaller ones with the
 * thread sanitizer. */
static bool is_skipped(const struct shape *s)
{
    bool slow = false;
#if defined(SIMT_TSAN)
    slow = s->queries[0] * s->keys[0] * s->heads * s->width > 300000;
#elif defined(OPERATION_SIMT)
    slow = s->queries[0] * s->keys[0] * s->heads * s->width > 1700000;
#endif
    if (wgmma_only) {
        return (s->width != 64 && s->width != 128) || s->dropout > 0;
    }
    return unit > 1 ? s->width % 32 != 0 || s->width > 128 : slow;
}

static void test_all(struct kernels *k, struct kernels *other)
{
    if (unit > 1 && kernels_dtype(k) == DTYPE_F32) {
        return;
    }
    for (int i = 0; i < SHAPES; i++) {
        if (!is_skipped(&shapes[i])) {
            test_shape(k, other, i);
        }
    }
    test_packed(k);
    test_shared_prefix(k);
    test_past(k);
    test_nan(k);
    test_neighbours(k);
    test_grouped(k);
    test_shared_heads(k);
}

int main(int count, char **arguments)
{
    wgmma_only = count > 1 && strcmp(arguments[1], "wgmma") == 0;
    unit = wgmma_only || (count > 1 && strcmp(arguments[1], "aligned") == 0) ? 8 : 1;
    const struct kernels_limits limits = {
        .rows = 512,
        .width = 256,
        .inner = 256,
        .heads = 4,
        .head_width = 256,
        .sequence = 420,
        .vocabulary = 16,
        .training = true,
    };
    operation_run_all(&limits, test_all);
    release_truths();
    return 0;
}
