/* Tests attention, forward and backward, against the oracle. The bits must not depend on packing,
 * the number of threads or repetition. A change of a token must not change earlier rows. */
#include "base/memory.h"
#include "tests/kernels/attention_rows.h"
#include "tests/kernels/operation.h"

struct shape {
    const char *name;
    int heads, kv_heads; /* H, G */
    int64_t width;       /* D */
    bool causal;
    int64_t window;
    int64_t sequences;
    int64_t queries[SEQUENCES_MAX], keys[SEQUENCES_MAX];
    double size; /* standard deviation of the elements of q and keys */
    float dropout;
    int32_t prefix[2 * SEQUENCES_MAX]; /* shared_prefix_offsets; all 0: none */
    float softcap;
    int buckets; /* of a relative position bias; 0: none */
};

static const struct shape shapes[] = {
    {"one token", 1, 1, 1, true, 0, 1, {1}, {1}, 1, 0},
    {"gpt", 2, 2, 64, true, 0, 1, {130}, {130}, 1, 0},
    {"not causal", 2, 2, 32, false, 0, 2, {67, 64}, {67, 64}, 1, 0},
    {"documents", 2, 2, 64, true, 0, 4, {5, 0, 129, 1}, {5, 0, 129, 1}, 1, 0},
    {"grouped heads", 4, 2, 32, true, 0, 2, {70, 3}, {70, 3}, 1, 0},
    {"one key-value head", 3, 1, 16, false, 0, 1, {65}, {65}, 1, 0},
    {"width 96", 1, 1, 96, true, 0, 1, {100}, {100}, 1, 0},
    {"width 128", 1, 1, 128, true, 0, 1, {97}, {97}, 1, 0},
    {"width 256", 1, 1, 256, false, 0, 1, {37}, {37}, 1, 0},
    {"prime width", 2, 1, 37, true, 0, 2, {71, 2}, {71, 2}, 1, 0},
    {"long", 1, 1, 16, true, 0, 1, {301}, {301}, 1, 0},
    {"window", 2, 2, 24, true, 17, 2, {150, 40}, {150, 40}, 1, 0},
    {"window, not causal", 1, 1, 24, false, 70, 1, {90}, {90}, 1, 0},
    {"window, not causal, many tiles", 2, 1, 64, false, 65, 2, {300, 70}, {300, 70}, 1, 0},
    {"window of 2^31 - 1 tokens", 1, 1, 64, false, INT32_MAX, 1, {140}, {150}, 1, 0},
    {"window, not causal, width 128, dropout", 1, 1, 128, false, 5, 1, {140}, {140}, 1, 0.2f},
    {"window, not causal, other keys", 2, 2, 32, false, 9, 3, {30, 70, 1}, {200, 3, 80}, 1, 0},
    {"one query after a cache", 2, 1, 64, true, 0, 4, {1, 1, 1, 1}, {200, 1, 64, 65}, 1, 0},
    {"queries after a cache", 2, 2, 64, true, 0, 2, {3, 70}, {90, 133}, 1, 0},
    {"more queries than keys", 1, 1, 32, true, 0, 2, {70, 4}, {9, 0}, 1, 0},
    {"cross-attention", 2, 2, 32, false, 0, 2, {9, 70}, {140, 1}, 1, 0},
    {"large scores", 2, 2, 64, true, 0, 1, {130}, {130}, 35, 0},
    {"dropout", 2, 2, 64, true, 0, 2, {70, 33}, {70, 33}, 1, 0.3f},
    {"dropout, one query", 4, 2, 32, true, 0, 2, {1, 1}, {70, 33}, 1, 0.5f},
    {"lengths around tiles", 1, 1, 32, true, 0, 4, {127, 128, 129, 63}, {127, 128, 129, 63}, 1, 0},
    {"window over tiles", 2, 1, 32, true, 100, 2, {260, 65}, {260, 65}, 1, 0},
    {"dropout, grouped, window", 4, 2, 96, true, 50, 1, {140}, {150}, 1, 0.2f},
    {"many tiles", 2, 1, 64, true, 0, 2, {200, 70}, {420, 70}, 1, 0},
    {"many tiles, width 128", 1, 1, 128, false, 0, 1, {70}, {400}, 1, 0},
    {"full, many tiles, width 64", 1, 1, 64, false, 0, 1, {400}, {300}, 1, 0},
    {"many tiles, width 128, grouped", 2, 1, 128, true, 0, 1, {300}, {300}, 1, 0},
    {"window over many tiles, width 128", 1, 1, 128, true, 90, 1, {300}, {330}, 1, 0},
    {"window over many tiles", 1, 1, 64, true, 150, 1, {200}, {420}, 1, 0},
    {"tiles without queries", 2, 1, 64, true, 20, 3, {130, 3, 40}, {130, 400, 300}, 1, 0},
    {"tiles without queries, width 128", 2, 1, 128, true, 20, 2, {3, 200}, {300, 200}, 1, 0},
    {"tiles without queries, dropout", 1, 1, 128, true, 9, 3, {70, 3, 1}, {70, 300, 140}, 1, 0.2f},
    {"shared prefix", 2, 2, 64, true, 0, 2, {150, 30}, {150, 30}, 1, 0, {100, 120, 3, 17}},
    {"shared prefix, grouped heads", 2, 1, 32, true, 0, 1, {300}, {300}, 1, 0, {40, 170}},
    {"shared prefix, hidden tiles", 1, 1, 32, true, 0, 1, {290}, {290}, 1, 0, {100, 256}},
    {"shared prefix of whole tiles", 1, 1, 16, true, 0, 1, {260}, {260}, 1, 0, {64, 192}},
    {"shared prefix, empty", 2, 2, 24, true, 0, 2, {150, 70}, {150, 70}, 1, 0, {0, 75, 30, 70}},
    {"shared prefix, dropout", 2, 2, 64, true, 0, 2, {70, 33}, {70, 33}, 1, 0.3f, {20, 44, 33, 33}},
    {"cross-attention, grouped, dropout", 4, 2, 32, false, 0, 3, {17, 1, 5}, {23, 67, 0}, 1, 0.2f},
    {"softcap", 2, 1, 64, true, 0, 2, {67, 1}, {67, 1}, 2, 0, {0}, 3},
    {"softcap, width 72", 1, 1, 72, false, 0, 1, {37}, {37}, 2, 0, {0}, 2},
    {"softcap, width 80, one query", 2, 1, 80, true, 0, 2, {1, 1}, {67, 33}, 2, 0, {0}, 5},
    {"softcap, width 96, window", 1, 1, 96, true, 30, 1, {71}, {71}, 2, 0, {0}, 50},
    {"softcap, width 128, dropout", 2, 1, 128, true, 0, 1, {17}, {41}, 2, 0.2f, {0}, 4},
    {"softcap, width 256", 1, 1, 256, true, 20, 1, {31}, {31}, 2, 0, {0}, 2},
    {"softcap, shared prefix", 1, 1, 32, true, 0, 1, {75}, {75}, 2, 0, {20, 44}, 3},
    {"softcap, large scores", 1, 1, 64, true, 0, 1, {67}, {67}, 35, 0, {0}, 50},
    {"bias", 2, 2, 64, false, 0, 3, {70, 1, 5}, {70, 1, 5}, 0.5, 0, {0}, 0, 32},
    {"bias, causal, grouped, dropout", 4, 2, 32, true, 0, 2, {67, 9}, {67, 9}, 1, 0.2f, {0}, 0, 32},
    {"bias, one query", 2, 2, 64, true, 0, 3, {1, 1, 1}, {90, 1, 65}, 1, 0, {0}, 0, 16},
    {"bias, more keys, window", 2, 1, 72, true, 30, 1, {40}, {83}, 1, 0, {0}, 0, 12},
    {"bias, width 80, not causal", 1, 1, 80, false, 0, 1, {37}, {41}, 1, 0, {0}, 0, 8},
    {"bias, width 96", 1, 1, 96, false, 0, 1, {71}, {71}, 1, 0, {0}, 0, 6},
    {"bias, width 128", 1, 1, 128, true, 0, 1, {67}, {67}, 1, 0, {0}, 0, 32},
    {"bias, width 256", 1, 1, 256, false, 0, 1, {29}, {29}, 1, 0, {0}, 0, 128},
    {"bias, many tiles", 1, 1, 32, false, 0, 1, {200}, {270}, 1, 0, {0}, 0, 32},
};

enum { SHAPES = COUNT(shapes) };

/* Shapes of test_huge_scores: one sequence, no dropout. */
static const struct shape huge_shapes[] = {
    {"causal", 2, 1, 64, true, 0, 1, {150}, {200}, 1, 0},
    {"one query", 2, 1, 64, true, 0, 1, {1}, {200}, 1, 0},
    {"short, width 32", 1, 1, 32, false, 0, 1, {70}, {100}, 1, 0},
    {"window, width 128", 1, 1, 128, true, 60, 1, {140}, {140}, 1, 0},
    {"bias", 1, 1, 64, false, 0, 1, {70}, {140}, 1, 0, {0}, 0, 8},
    {"row kernels", 1, 1, 16, true, 0, 1, {40}, {100}, 1, 0},
};

#if defined(GPU_EMULATOR)
enum { HUGE_STEP = 8 };
#else
enum { HUGE_STEP = 3 };
#endif

struct tensors {
    struct tensor q, keys, values, d_o, o, lse, dq, dkeys, dvalues, bias, d_bias;
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
        .softcap = s->softcap,
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

/* Gaps between rows are multiples of this many elements: 1, or 8 with the argument `aligned`. Some
 * kernels need rows of whole 16-byte units. */
static int64_t stride_unit = 1;
/* With the argument `wgmma`, rows are aligned and only shapes of the wgmma kernels are tested. */
static bool wgmma_only;
/* The second argument is a head width. Only shapes with this head width are then tested. */
static int64_t only_width;

/* Creates tensors with gaps between the rows, as in views of a wider matrix. */
static struct tensors make_tensors(const struct problem *p, enum dtype dtype)
{
    int64_t columns = p->shape->heads * p->shape->width;
    int64_t kv_columns = p->shape->kv_heads * p->shape->width;
    enum dtype sums = dtype == ORACLE_F64 ? ORACLE_F64 : DTYPE_F32;
    struct tensors m = {
        .q = operation_tensor(dtype, p->rows_q, columns, columns + 5 * stride_unit),
        .keys = operation_tensor(dtype, p->rows_k, kv_columns, kv_columns + 3 * stride_unit),
        .values = operation_tensor(dtype, p->rows_k, kv_columns, kv_columns + 1 * stride_unit),
        .d_o = operation_tensor(dtype, p->rows_q, columns, columns),
        .o = operation_tensor(dtype, p->rows_q, columns, columns + 7 * stride_unit),
        .lse = operation_tensor(sums, p->shape->heads, p->rows_q, p->rows_q),
        .dq = operation_tensor(dtype, p->rows_q, columns, columns + 2 * stride_unit),
        .dkeys = operation_tensor(dtype, p->rows_k, kv_columns, kv_columns),
        .dvalues = operation_tensor(dtype, p->rows_k, kv_columns, kv_columns + 9 * stride_unit),
    };
    if (p->shape->buckets > 0) {
        int64_t heads = p->shape->heads;
        m.bias = operation_tensor(sums, p->shape->buckets, heads, heads + 1);
        m.d_bias = operation_tensor(sums, p->shape->buckets, heads, heads + 3);
    }
    return m;
}

static void fill_tensors(struct tensors m, double size)
{
    operation_fill(m.bias, 5, 1);
    operation_fill(m.q, 1, size);
    operation_fill(m.keys, 2, size);
    operation_fill(m.values, 3, isnan(size) ? size : 1);
    operation_fill(m.d_o, 4, isnan(size) ? size : 1);
}

static void copy_tensors(struct tensors to, struct tensors from)
{
    oracle_cast(to.q, from.q);
    oracle_cast(to.keys, from.keys);
    oracle_cast(to.values, from.values);
    oracle_cast(to.d_o, from.d_o);
    oracle_cast(to.bias, from.bias);
}

static void release_tensors(struct tensors *m)
{
    struct tensor *all[] = {&m->q,  &m->keys,  &m->values,  &m->d_o,  &m->o,     &m->lse,
                            &m->dq, &m->dkeys, &m->dvalues, &m->bias, &m->d_bias};
    for (int i = 0; i < COUNT(all); i++) {
        operation_release(all[i]);
    }
}

/* Returns the settings with the bias of m; its gradient, which is added to, is set to 1. */
static struct attention add_bias(const struct problem *p, struct tensors m)
{
    struct attention a = p->a;
    if (m.bias.data != NULL) {
        operation_set(m.d_bias, 1);
        a.bias = (struct attention_bias){m.bias, m.d_bias, 20 + p->shape->buckets};
    }
    return a;
}

static void run_attention(struct kernels *k, const struct problem *p, struct tensors m)
{
    struct attention a = add_bias(p, m);
    CHECK_OK(attention_forward(k, m.o, m.lse, m.q, m.keys, m.values, &a));
    CHECK_OK(attention_backward(k, m.dq, m.dkeys, m.dvalues, m.d_o, m.q, m.keys, m.values, m.o,
                                m.lse, &a));
}

static void run_oracle(const struct problem *p, struct tensors m)
{
    struct attention a = add_bias(p, m);
    oracle_attention_forward(m.o, m.lse, m.q, m.keys, m.values, &a);
    oracle_attention_backward(m.dq, m.dkeys, m.dvalues, m.d_o, m.q, m.keys, m.values, m.o, m.lse,
                              &a);
}

/* Compares the rows in sequences. The other rows must be untouched. */
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

static bool is_equal(struct tensors a, struct tensors b)
{
    return operation_equal(a.o, b.o) && operation_equal(a.lse, b.lse) &&
           operation_equal(a.dq, b.dq) && operation_equal(a.dkeys, b.dkeys) &&
           operation_equal(a.dvalues, b.dvalues) &&
           (a.bias.data == NULL || operation_equal(a.d_bias, b.d_bias));
}

enum { ERRORS = 6 };

/* Computes the errors of o, lse, dq, dkeys, dvalues and the gradient of the bias. */
static void compute_errors(double errors[ERRORS], const struct problem *p, struct tensors got,
                           struct tensors exact)
{
    int64_t sequences = p->shape->sequences;
    errors[0] = compute_rows_difference(got.o, exact.o, p->cu_q, sequences);
    errors[1] = compute_lse_difference(p, got.lse, exact.lse);
    errors[2] = compute_rows_difference(got.dq, exact.dq, p->cu_q, sequences);
    errors[3] = compute_rows_difference(got.dkeys, exact.dkeys, p->cu_k, sequences);
    errors[4] = compute_rows_difference(got.dvalues, exact.dvalues, p->cu_k, sequences);
    errors[5] = got.bias.data != NULL ? operation_difference(got.d_bias, exact.d_bias) : 0;
}

/* The oracle's results, computed once for each shape and dtype. `exact` is in double precision.
 * `naive` is rounded to the dtype where the operation rounds, as o before the backward pass. */
struct reference {
    struct tensors exact, naive;
};

static struct reference references[SHAPES][2];

static const struct reference *get_reference(const struct problem *p, int number, enum dtype dtype,
                                             struct tensors m)
{
    struct reference *t = &references[number][dtype];
    if (t->exact.q.data == NULL) {
        t->exact = make_tensors(p, ORACLE_F64);
        t->naive = make_tensors(p, dtype);
        copy_tensors(t->exact, m);
        copy_tensors(t->naive, m);
        run_oracle(p, t->exact);
        run_oracle(p, t->naive);
    }
    return t;
}

static void release_references(void)
{
    for (int i = 0; i < 2 * SHAPES; i++) {
        release_tensors(&references[i / 2][i % 2].exact);
        release_tensors(&references[i / 2][i % 2].naive);
    }
}

static void test_errors(struct kernels *k, const struct problem *p, struct tensors m,
                        const struct reference *reference)
{
    static const char *const names[] = {"o", "lse", "dq", "dkeys", "dvalues", "bias"};
    double errors[ERRORS], naive_errors[ERRORS];
    compute_errors(errors, p, m, reference->exact);
    compute_errors(naive_errors, p, reference->naive, reference->exact);
    for (int i = 0; i < ERRORS; i++) {
        char name[128];
        snprintf(name, sizeof name, "attention, %s: %s", p->shape->name, names[i]);
        /* Scores of several thousand have an f32 rounding error of up to 2.4e-4, which p inherits.
         * Tensor cores and bf16 instructions of processors multiply p and ds as bf16. */
        bool is_rounded = stride_unit > 1 || kernels_dtype(k) == DTYPE_BF16;
        double operands = is_rounded && i != 1 ? 0x1p-8 : 0;
        double rounding = operands + (p->shape->size > 1 ? 1e-3 : i < 2 ? 1e-5 : 2e-5);
        operation_check_error(name, k, errors[i], 2 * naive_errors[i] + rounding);
    }
}

/* Leaves NaN in the workspace of a context, with shape "gpt". */
static void fill_workspace(struct kernels *k)
{
    struct problem p;
    make_problem(&p, &shapes[1]);
    struct tensors m = make_tensors(&p, kernels_dtype(k));
    fill_tensors(m, NAN);
    run_attention(k, &p, m);
    release_tensors(&m);
}

static void test_shape(struct kernels *k, struct kernels *other, int number)
{
    struct problem p;
    make_problem(&p, &shapes[number]);
    struct tensors m = make_tensors(&p, kernels_dtype(k)),
                   repeated = make_tensors(&p, kernels_dtype(k));
    fill_tensors(m, p.shape->size);
    copy_tensors(repeated, m);
    run_attention(k, &p, m);
    if (!OPERATION_ON_GPU) {
        fill_workspace(k);
        fill_workspace(other);
    }
    run_attention(other, &p, repeated);
    CHECK(is_equal(m, repeated));
    run_attention(k, &p, repeated);
    CHECK(is_equal(m, repeated));
    test_errors(k, &p, m, get_reference(&p, number, kernels_dtype(k), m));
    release_tensors(&m);
    release_tensors(&repeated);
}

/* Two sequences in one call have the same bits as in separate calls. */
static void test_packed(struct kernels *k)
{
    const struct shape both = {"", 2, 2, 64, true, 0, 2, {75, 140}, {75, 140}, 1, 0};
    struct problem p, single;
    make_problem(&p, &both);
    struct tensors m = make_tensors(&p, kernels_dtype(k)), n = make_tensors(&p, kernels_dtype(k));
    fill_tensors(m, 1);
    copy_tensors(n, m);
    run_attention(k, &p, m);
    for (int i = 0; i < 2; i++) {
        single = p;
        single.a.sequences = 1;
        single.a.cu_q = p.cu_q + i;
        single.a.cu_k = p.cu_k + i;
        run_attention(k, &single, n);
    }
    CHECK(is_equal(m, n));
    release_tensors(&m);
    release_tensors(&n);
}

/* Two responses after a shared prompt have the same outputs as each response after a copy of the
 * prompt. */
static void test_shared_prefix(struct kernels *k)
{
    enum { PROMPT = 90, CHOSEN = 45, REJECTED = 70, BOTH = PROMPT + CHOSEN + REJECTED };
    enum { FIRST = PROMPT + CHOSEN, SECOND = PROMPT + REJECTED };
    const struct shape one = {"", 2, 1, 32, true, 0, 1, {BOTH}, {BOTH}, 1, 0, {PROMPT, FIRST}};
    const struct shape two = {"", 2, 1, 32, true, 0, 2, {FIRST, SECOND}, {FIRST, SECOND}, 1, 0};
    struct problem p, q;
    make_problem(&p, &one);
    make_problem(&q, &two);
    struct tensors m = make_tensors(&p, kernels_dtype(k)), n = make_tensors(&q, kernels_dtype(k));
    fill_tensors(m, 1);
    for (int64_t row = 0; row < FIRST + SECOND; row++) {
        int64_t from = row < FIRST ? row : row - FIRST;
        from += row >= FIRST && from >= PROMPT ? CHOSEN : 0;
        oracle_cast(tensor_rows(n.q, LEAD + row, 1), tensor_rows(m.q, LEAD + from, 1));
        oracle_cast(tensor_rows(n.keys, LEAD + row, 1), tensor_rows(m.keys, LEAD + from, 1));
        oracle_cast(tensor_rows(n.values, LEAD + row, 1), tensor_rows(m.values, LEAD + from, 1));
    }
    CHECK_OK(attention_forward(k, m.o, m.lse, m.q, m.keys, m.values, &p.a));
    CHECK_OK(attention_forward(k, n.o, n.lse, n.q, n.keys, n.values, &q.a));
    double epsilon = kernels_dtype(k) == DTYPE_BF16 ? 1e-2 : 1e-6;
    CHECK(operation_difference(tensor_rows(m.o, LEAD, FIRST), tensor_rows(n.o, LEAD, FIRST)) <=
          epsilon);
    CHECK(operation_difference(tensor_rows(m.o, LEAD + FIRST, REJECTED),
                               tensor_rows(n.o, LEAD + FIRST + PROMPT, REJECTED)) <= epsilon);
    release_tensors(&m);
    release_tensors(&n);
}

/* If a key and its value change, the outputs of earlier rows stay the same and the output of its
 * row changes. */
static void test_causality(struct kernels *k)
{
    const struct shape s = {"", 2, 2, 64, true, 0, 1, {150}, {150}, 1, 0};
    struct problem p;
    make_problem(&p, &s);
    struct tensors m = make_tensors(&p, kernels_dtype(k)), n = make_tensors(&p, kernels_dtype(k));
    fill_tensors(m, 1);
    copy_tensors(n, m);
    int64_t last = LEAD + 100;
    for (int64_t c = 0; c < m.q.columns; c++) {
        oracle_set(n.keys, last, c, 3);
        oracle_set(n.values, last, c, -2);
    }
    CHECK_OK(attention_forward(k, m.o, m.lse, m.q, m.keys, m.values, &p.a));
    CHECK_OK(attention_forward(k, n.o, n.lse, n.q, n.keys, n.values, &p.a));
    CHECK(memcmp(m.o.data, n.o.data, padded_bytes(tensor_rows(m.o, 0, last))) == 0);
    CHECK(!operation_equal(tensor_rows(m.o, last, 1), tensor_rows(n.o, last, 1)));
    release_tensors(&m);
    release_tensors(&n);
}

/* Runs the backward pass with the next smaller lse of each row. It simulates a compiler that fuses
 * different products with additions in the forward and the backward pass. */
static void run_inexact_backward(struct kernels *k, const struct problem *p, struct tensors m)
{
    struct attention a = add_bias(p, m);
    for (int64_t r = 0; r < m.lse.rows; r++) {
        for (int64_t c = 0; c < m.lse.columns; c++) {
            float lse = (float)oracle_get(m.lse, r, c);
            oracle_set(m.lse, r, c, (double)nextafterf(lse, -INFINITY));
        }
    }
    CHECK_OK(attention_backward(k, m.dq, m.dkeys, m.dvalues, m.d_o, m.q, m.keys, m.values, m.o,
                                m.lse, &a));
}

/* Tests scores of 2^20 to 2^100. From 2^31 on, their rounding errors exceed the exponent range of
 * f32. The key with the largest score of a row gets a probability of 1. The gradients are only
 * tested to be finite, because lse is too inexact to recompute the probabilities in the backward
 * pass. */
static void test_huge_scores(struct kernels *k, const struct shape *s)
{
    struct problem p;
    make_problem(&p, s);
    struct tensors m = make_tensors(&p, kernels_dtype(k)), exact = make_tensors(&p, ORACLE_F64);
    for (int exponent = 10; exponent <= 50; exponent += HUGE_STEP) {
        fill_tensors(m, ldexp(1, exponent));
        copy_tensors(exact, m);
        run_attention(k, &p, m);
        run_inexact_backward(k, &p, m);
        struct attention a = add_bias(&p, exact);
        oracle_attention_forward(exact.o, exact.lse, exact.q, exact.keys, exact.values, &a);
        double epsilon = kernels_dtype(k) == DTYPE_BF16 ? 1e-2 : 1e-5;
        for (int64_t r = LEAD; r < LEAD + s->queries[0]; r++) {
            for (int64_t head = 0; head < s->heads; head++) {
                double lse = oracle_get(exact.lse, head, r);
                CHECK_NEAR(oracle_get(m.lse, head, r), lse, epsilon * fabs(lse));
            }
            for (int64_t c = 0; c < m.o.columns; c++) {
                double o = oracle_get(exact.o, r, c);
                CHECK_NEAR(oracle_get(m.o, r, c), o, epsilon * (1 + fabs(o)));
                CHECK(isfinite(oracle_get(m.dq, r, c)));
            }
        }
        for (int64_t r = LEAD; r < LEAD + s->keys[0]; r++) {
            for (int64_t c = 0; c < m.dkeys.columns; c++) {
                CHECK(isfinite(oracle_get(m.dkeys, r, c)) && isfinite(oracle_get(m.dvalues, r, c)));
            }
        }
        for (int64_t r = 0; r < m.d_bias.rows; r++) {
            for (int64_t head = 0; head < s->heads; head++) {
                CHECK(isfinite(oracle_get(m.d_bias, r, head)));
            }
        }
    }
    release_tensors(&m);
    release_tensors(&exact);
}

/* NaN in a query affects o and lse of its row only; NaN in a key, the rows that attend to it. */
static void test_nan(struct kernels *k)
{
    const struct shape s = {"", 1, 1, 32, true, 0, 1, {70}, {70}, 1, 0};
    struct problem p;
    make_problem(&p, &s);
    struct tensors m = make_tensors(&p, kernels_dtype(k));
    fill_tensors(m, 1);
    oracle_set(m.q, LEAD + 5, 3, NAN);
    oracle_set(m.keys, LEAD + 66, 0, NAN);
    run_attention(k, &p, m);
    for (int64_t i = 0; i < 70; i++) {
        bool is_nan = i == 5 || i >= 66;
        CHECK(isnan(oracle_get(m.o, LEAD + i, 0)) == is_nan);
        CHECK(isnan(oracle_get(m.lse, 0, LEAD + i)) == is_nan);
    }
    CHECK(isnan(oracle_get(m.dq, LEAD + 69, 1)) && isnan(oracle_get(m.dkeys, LEAD, 1)));
    release_tensors(&m);
}

/* The results of a sequence do not depend on its neighbors, even if they contain NaN. */
static void test_neighbors(struct kernels *k, int64_t width)
{
    const struct shape both = {"", 2, 2, width, false, 0, 2, {75, 40}, {75, 40}, 1, 0};
    struct problem p;
    make_problem(&p, &both);
    struct tensors m = make_tensors(&p, kernels_dtype(k)), n = make_tensors(&p, kernels_dtype(k));
    fill_tensors(m, 1);
    copy_tensors(n, m);
    for (int64_t i = 0; i < 2 * 40; i++) {
        int64_t r = LEAD + 75 + i / 2, column = i % 2 * width; /* of a head */
        oracle_set(n.q, r, column + 3, NAN);
        oracle_set(n.keys, r, column + 5, NAN);
        oracle_set(n.values, r, column + 7, NAN);
        oracle_set(n.d_o, r, column + 9, NAN);
    }
    run_attention(k, &p, m);
    run_attention(k, &p, n);
    const struct tensor got[] = {n.o, n.dq, n.dkeys, n.dvalues};
    const struct tensor expected[] = {m.o, m.dq, m.dkeys, m.dvalues};
    for (int i = 0; i < 4; i++) {
        CHECK(operation_equal(tensor_rows(got[i], LEAD, 75), tensor_rows(expected[i], LEAD, 75)));
        CHECK(isnan(oracle_get(got[i], LEAD + 75, 9)));
    }
    release_tensors(&m);
    release_tensors(&n);
}

#if defined(GPU_EMULATOR) /* a GPU other than sm_90a has mma.sync only */
/* BIREME_ATTENTION=mma selects other kernels for the backward pass too: the sums of dq have another
 * order. */
static void test_selection(struct kernels *k, int64_t width)
{
    const struct shape s = {"", 1, 1, width, true, 0, 1, {300}, {300}, 1, 0};
    struct problem p;
    make_problem(&p, &s);
    struct tensors m = make_tensors(&p, kernels_dtype(k)), n = make_tensors(&p, kernels_dtype(k));
    fill_tensors(m, 1);
    copy_tensors(n, m);
    run_attention(k, &p, m);
    CHECK(setenv("BIREME_ATTENTION", "mma", 1) == 0);
    run_attention(k, &p, n);
    CHECK(unsetenv("BIREME_ATTENTION") == 0);
    CHECK(!operation_equal(m.dq, n.dq));
    CHECK(operation_difference(tensor_rows(m.dq, LEAD, 300), tensor_rows(n.dq, LEAD, 300)) <= 1e-2);
    release_tensors(&m);
    release_tensors(&n);
}

#endif

/* Two query heads that share a key-value head have the results of two heads with copies of it. */
static void test_grouped_heads(struct kernels *k)
{
    const struct shape one = {"", 2, 1, 64, true, 0, 1, {90}, {90}, 1, 0};
    const struct shape two = {"", 2, 2, 64, true, 0, 1, {90}, {90}, 1, 0};
    struct problem p, q;
    make_problem(&p, &one);
    make_problem(&q, &two);
    struct tensors m = make_tensors(&p, kernels_dtype(k)), n = make_tensors(&q, kernels_dtype(k));
    fill_tensors(m, 1);
    fill_tensors(n, 1);
    for (int half = 0; half < 2; half++) {
        oracle_cast(tensor_columns(n.keys, 64 * half, 64), m.keys);
        oracle_cast(tensor_columns(n.values, 64 * half, 64), m.values);
    }
    run_attention(k, &p, m);
    run_attention(k, &q, n);
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
    release_tensors(&m);
    release_tensors(&n);
}

/* If ranks share the heads, the results are the same: dropout uses the head index in the model. */
static void test_head_shards(struct kernels *k)
{
    const struct shape all = {"", 4, 4, 16, true, 0, 2, {70, 33}, {70, 33}, 1, 0.3f};
    struct shape half = all;
    half.heads = half.kv_heads = 2;
    struct problem p, q;
    make_problem(&p, &all);
    make_problem(&q, &half);
    q.a.all_heads = 4;
    struct tensors m = make_tensors(&p, kernels_dtype(k));
    fill_tensors(m, 1);
    run_attention(k, &p, m);
    for (int i = 0; i < 2; i++) {
        struct tensors n = make_tensors(&q, kernels_dtype(k));
        oracle_cast(n.q, tensor_columns(m.q, 32 * i, 32));
        oracle_cast(n.keys, tensor_columns(m.keys, 32 * i, 32));
        oracle_cast(n.values, tensor_columns(m.values, 32 * i, 32));
        oracle_cast(n.d_o, tensor_columns(m.d_o, 32 * i, 32));
        q.a.first_head = 2 * i;
        run_attention(k, &q, n);
        for (int64_t r = LEAD; r < LEAD + 103; r++) {
            for (int64_t c = 0; c < 32; c++) {
                CHECK(oracle_get(n.o, r, c) == oracle_get(m.o, r, 32 * i + c));
                CHECK(oracle_get(n.dq, r, c) == oracle_get(m.dq, r, 32 * i + c));
                CHECK(oracle_get(n.dkeys, r, c) == oracle_get(m.dkeys, r, 32 * i + c));
                CHECK(oracle_get(n.dvalues, r, c) == oracle_get(m.dvalues, r, 32 * i + c));
            }
        }
        release_tensors(&n);
    }
    release_tensors(&m);
}

/* Returns whether a shape is skipped. Aligned rows test the tiled kernels, which support only some
 * widths. Other rows test the row kernels: in the GPU emulator only with small shapes, and with the
 * thread sanitizer with smaller ones. */
static bool is_skipped(const struct shape *s)
{
    bool is_slow = false, is_too_long = false;
#if defined(SIMT_TSAN)
    is_slow = s->queries[0] * s->keys[0] * s->heads * s->width > 300000;
    is_too_long = s->queries[0] * s->keys[0] * s->heads * s->width > 6000000;
#elif defined(GPU_EMULATOR)
    is_slow = s->queries[0] * s->keys[0] * s->heads * s->width > 1700000;
#endif
    if (only_width != 0 && s->width != only_width) {
        return true;
    }
    if (wgmma_only) {
        return (s->width != 64 && s->width != 128) || is_too_long;
    }
    return stride_unit > 1 ? s->width % 32 != 0 || s->width > 128 : is_slow;
}

static void test_all(struct kernels *k, struct kernels *other)
{
    if (stride_unit > 1 && kernels_dtype(k) == DTYPE_F32) {
        return;
    }
    for (int i = 0; i < SHAPES; i++) {
        if (!is_skipped(&shapes[i])) {
            test_shape(k, other, i);
        }
    }
    test_packed(k);
    test_shared_prefix(k);
    test_causality(k);
    test_nan(k);
    for (int i = 0; i < (int)COUNT(huge_shapes); i++) {
        if (!is_skipped(&huge_shapes[i])) {
            test_huge_scores(k, &huge_shapes[i]);
        }
    }
    test_neighbors(k, 64);
    test_neighbors(k, 128);
#if defined(GPU_EMULATOR)
    for (int64_t width = 64; wgmma_only && width <= 128; width += 64) {
        test_selection(k, width);
    }
#endif
    test_grouped_heads(k);
    test_head_shards(k);
}

int main(int count, char **arguments)
{
    wgmma_only = count > 1 && strcmp(arguments[1], "wgmma") == 0;
    only_width = count > 2 ? strtol(arguments[2], NULL, 10) : 0;
    stride_unit = wgmma_only || (count > 1 && strcmp(arguments[1], "aligned") == 0) ? 8 : 1;
    const struct kernels_limits limits = {
        .rows = 512,
        .width = 256,
        .inner = 256,
        .heads = 4,
        .head_width = 256,
        .sequence = 420,
        .vocabulary = 16,
        .training = true,
        .bias_buckets = ATTENTION_BUCKETS_MAX,
    };
    operation_run_all(&limits, test_all);
    release_references();
    return 0;
}
