/* Attention against its formula in double precision, forward and backward; and what must hold to
 * the last bit: packing, threads, repetition, the blindness of the past to the future. */
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
    double size; /* of the elements of q and k */
    float dropout;
    int32_t branches[2 * SEQUENCES_MAX]; /* none where all are 0 */
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
    {"branches", 2, 2, 64, true, 0, 2, {150, 30}, {150, 30}, 1, 0, {100, 120, 3, 17}},
    {"branches of tiles, grouped", 2, 1, 32, true, 0, 1, {300}, {300}, 1, 0, {40, 170}},
    {"branches, hidden tiles", 1, 1, 32, true, 0, 1, {290}, {290}, 1, 0, {100, 256}},
    {"branches of whole tiles", 1, 1, 16, true, 0, 1, {260}, {260}, 1, 0, {64, 192}},
    {"nothing before a branch, nothing behind",
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
    {"branches, dropout", 2, 2, 64, true, 0, 2, {70, 33}, {70, 33}, 1, 0.3f, {20, 44, 33, 33}},
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

static void problem_make(struct problem *p, const struct shape *s)
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
        p->a.branches = s->branches[i] != 0 ? s->branches : p->a.branches;
    }
    p->rows_q = attention_rows_lay_out(p->cu_q, s->queries, s->sequences, &p->a.longest_q);
    p->rows_k = attention_rows_lay_out(p->cu_k, s->keys, s->sequences, &p->a.longest_k);
}

/* Rows are apart by odd numbers of elements; or, where the argument is `aligned`, by multiples of 16 bytes,
 * which is what some kernels ask for. */
static int64_t unit = 1;
static bool wide_only; /* `wgmma`: aligned, and only what is written for that */

/* Strided, as views into a wider matrix would be. */
static struct memory memory_make(const struct problem *p, enum dtype dtype)
{
    int64_t wide = p->shape->heads * p->shape->width, narrow = p->shape->kv_heads * p->shape->width;
    enum dtype sums = dtype == REFERENCE_F64 ? REFERENCE_F64 : DTYPE_F32;
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

static void memory_fill(struct memory m, double size)
{
    operation_fill(m.q, 1, size);
    operation_fill(m.keys, 2, size);
    operation_fill(m.values, 3, 1);
    operation_fill(m.d_o, 4, 1);
}

static void memory_copy(struct memory to, struct memory from)
{
    reference_convert(to.q, from.q);
    reference_convert(to.keys, from.keys);
    reference_convert(to.values, from.values);
    reference_convert(to.d_o, from.d_o);
}

static void memory_release(struct memory *m)
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

static void reference_run(const struct problem *p, struct memory m)
{
    reference_attention_forward(m.o, m.lse, m.q, m.keys, m.values, &p->a);
    reference_attention_backward(m.dq, m.dkeys, m.dvalues, m.d_o, m.q, m.keys, m.values, m.o, m.lse,
                                 &p->a);
}

/* Rows of sequences only; then the rows outside of them must be as memory came. */
static double rows_difference(struct tensor got, struct tensor wanted, const int32_t *cu,
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
    struct tensor a = got, b = wanted;
    a.data = (char *)a.data + (size_t)(first * a.stride) * element_bytes(a.dtype);
    b.data = (char *)b.data + (size_t)(first * b.stride) * element_bytes(b.dtype);
    a.rows = b.rows = count;
    return operation_difference(a, b);
}

static double lse_difference(const struct problem *p, struct tensor got, struct tensor wanted)
{
    int64_t first = p->cu_q[0], count = p->cu_q[p->shape->sequences] - first;
    struct tensor a = got, b = wanted;
    a.data = (char *)a.data + (size_t)first * element_bytes(a.dtype);
    b.data = (char *)b.data + (size_t)first * element_bytes(b.dtype);
    a.columns = b.columns = count;
    return operation_difference(a, b);
}

static bool memory_equal(struct memory a, struct memory b)
{
    return operation_equal(a.o, b.o) && operation_equal(a.lse, b.lse) &&
           operation_equal(a.dq, b.dq) && operation_equal(a.dkeys, b.dkeys) &&
           operation_equal(a.dvalues, b.dvalues);
}

/* Errors of got against exact: o, lse, dq, dkeys, dvalues. */
static void errors_of(double errors[5], const struct problem *p, struct memory got,
                      struct memory exact)
{
    int64_t sequences = p->shape->sequences;
    errors[0] = rows_difference(got.o, exact.o, p->cu_q, sequences);
    errors[1] = lse_difference(p, got.lse, exact.lse);
    errors[2] = rows_difference(got.dq, exact.dq, p->cu_q, sequences);
    errors[3] = rows_difference(got.dkeys, exact.dkeys, p->cu_k, sequences);
    errors[4] = rows_difference(got.dvalues, exact.dvalues, p->cu_k, sequences);
}

/* The reference's results, computed once for each type: exact in double, naive rounded to the type
 * where ours are (o and lse before they are used backward). */
struct truth {
    struct memory exact, naive;
};

static struct truth truths[SHAPES][2];

static const struct truth *truth_of(const struct problem *p, int number, enum dtype dtype,
                                    struct memory m)
{
    struct truth *t = &truths[number][dtype];
    if (t->exact.q.data == NULL) {
        t->exact = memory_make(p, REFERENCE_F64);
        t->naive = memory_make(p, dtype);
        memory_copy(t->exact, m);
        memory_copy(t->naive, m);
        reference_run(p, t->exact);
        reference_run(p, t->naive);
    }
    return t;
}

static void truths_release(void)
{
    for (int i = 0; i < 2 * SHAPES; i++) {
        memory_release(&truths[i / 2][i % 2].exact);
        memory_release(&truths[i / 2][i % 2].naive);
    }
}

static void test_errors(struct kernels *k, const struct problem *p, struct memory m,
                        const struct truth *truth)
{
    static const char *const names[] = {"o", "lse", "dq", "dkeys", "dvalues"};
    double errors[5], naive_errors[5];
    errors_of(errors, p, m, truth->exact);
    errors_of(naive_errors, p, truth->naive, truth->exact);
    for (int i = 0; i < 5; i++) {
        char what[128];
        snprintf(what, sizeof what, "attention, %s: %s", p->shape->name, names[i]);
        /* scores of some thousands are rounded by up to 2.4e-4 as floats, and p with them; tensor cores
         * and processors with products of bf16 multiply p and ds as bf16 */
        bool rounded = unit > 1 || kernels_dtype(k) == DTYPE_BF16;
        double operands = rounded && i != 1 ? 0x1p-8 : 0;
        double rounding = operands + (p->shape->size > 1 ? 1e-3 : i < 2 ? 1e-5 : 2e-5);
        operation_within(what, k, errors[i], 2 * naive_errors[i] + rounding);
    }
}

static void test_shape(struct kernels *k, struct kernels *other, int number)
{
    struct problem p;
    problem_make(&p, &shapes[number]);
    struct memory m = memory_make(&p, kernels_dtype(k)), again = memory_make(&p, kernels_dtype(k));
    memory_fill(m, p.shape->size);
    memory_copy(again, m);
    run(k, &p, m);
    run(other, &p, again);
    CHECK(memory_equal(m, again));
    run(k, &p, again);
    CHECK(memory_equal(m, again));
    test_errors(k, &p, m, truth_of(&p, number, kernels_dtype(k), m));
    memory_release(&m);
    memory_release(&again);
}

/* Two documents in one call and each in a call of its own: equal bits. */
static void test_packed(struct kernels *k)
{
    const struct shape both = {"", 2, 2, 64, true, 0, 2, {75, 140}, {75, 140}, 1, 0};
    struct problem p, single;
    problem_make(&p, &both);
    struct memory m = memory_make(&p, kernels_dtype(k)), n = memory_make(&p, kernels_dtype(k));
    memory_fill(m, 1);
    memory_copy(n, m);
    run(k, &p, m);
    for (int i = 0; i < 2; i++) {
        single = p;
        single.a.sequences = 1;
        single.a.cu_q = p.cu_q + i;
        single.a.cu_k = p.cu_k + i;
        run(k, &single, n);
    }
    CHECK(memory_equal(m, n));
    memory_release(&m);
    memory_release(&n);
}

/* Two answers behind one prompt, and each behind a copy of it. */
static void test_branches(struct kernels *k)
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
    problem_make(&p, &one);
    problem_make(&q, &two);
    struct memory m = memory_make(&p, kernels_dtype(k)), n = memory_make(&q, kernels_dtype(k));
    memory_fill(m, 1);
    for (int64_t row = 0; row < PROMPT + CHOSEN + PROMPT + REJECTED; row++) {
        int64_t from = row < PROMPT + CHOSEN ? row : row - PROMPT - CHOSEN;
        from += row >= PROMPT + CHOSEN && from >= PROMPT ? CHOSEN : 0;
        reference_convert(tensor_rows(n.q, LEAD + row, 1), tensor_rows(m.q, LEAD + from, 1));
        reference_convert(tensor_rows(n.keys, LEAD + row, 1), tensor_rows(m.keys, LEAD + from, 1));
        reference_convert(tensor_rows(n.values, LEAD + row, 1),
                          tensor_rows(m.values, LEAD + from, 1));
    }
    CHECK_OK(attention_forward(k, m.o, m.lse, m.q, m.keys, m.values, &p.a));
    CHECK_OK(attention_forward(k, n.o, n.lse, n.q, n.keys, n.values, &q.a));
    double epsilon = kernels_dtype(k) == DTYPE_BF16 ? 1e-2 : 1e-6;
    CHECK(operation_difference(tensor_rows(m.o, LEAD, PROMPT + CHOSEN),
                               tensor_rows(n.o, LEAD, PROMPT + CHOSEN)) <= epsilon);
    CHECK(operation_difference(tensor_rows(m.o, LEAD + PROMPT + CHOSEN, REJECTED),
                               tensor_rows(n.o, LEAD + PROMPT + CHOSEN + PROMPT, REJECTED)) <=
          epsilon);
    memory_release(&m);
    memory_release(&n);
}

/* Other tokens at the end: the rows before them keep their bits, those after do not. */
static void test_past(struct kernels *k)
{
    const struct shape s = {"", 2, 2, 64, true, 0, 1, {150}, {150}, 1, 0};
    struct problem p;
    problem_make(&p, &s);
    struct memory m = memory_make(&p, kernels_dtype(k)), n = memory_make(&p, kernels_dtype(k));
    memory_fill(m, 1);
    memory_copy(n, m);
    int64_t last = LEAD + 100;
    for (int64_t c = 0; c < m.q.columns; c++) {
        reference_set(n.keys, last, c, 3);
        reference_set(n.values, last, c, -2);
    }
    CHECK_OK(attention_forward(k, m.o, m.lse, m.q, m.keys, m.values, &p.a));
    CHECK_OK(attention_forward(k, n.o, n.lse, n.q, n.keys, n.values, &p.a));
    CHECK(memcmp(m.o.data, n.o.data, tensor_bytes(tensor_rows(m.o, 0, last))) == 0);
    CHECK(!operation_equal(tensor_rows(m.o, last, 1), tensor_rows(n.o, last, 1)));
    memory_release(&m);
    memory_release(&n);
}

/* NaN in a query poisons its row only; in a key, the rows that see it; in lse's place too. */
static void test_nan(struct kernels *k)
{
    const struct shape s = {"", 1, 1, 32, true, 0, 1, {70}, {70}, 1, 0};
    struct problem p;
    problem_make(&p, &s);
    struct memory m = memory_make(&p, kernels_dtype(k));
    memory_fill(m, 1);
    reference_set(m.q, LEAD + 5, 3, NAN);
    reference_set(m.keys, LEAD + 66, 0, NAN);
    run(k, &p, m);
    for (int64_t i = 0; i < 70; i++) {
        bool bad = i == 5 || i >= 66;
        CHECK(isnan(reference_get(m.o, LEAD + i, 0)) == bad);
        CHECK(isnan(reference_get(m.lse, 0, LEAD + i)) == bad);
    }
    CHECK(isnan(reference_get(m.dq, LEAD + 69, 1)) && isnan(reference_get(m.dkeys, LEAD, 1)));
    memory_release(&m);
}

/* A sequence knows nothing of its neighbours' numbers, be they no numbers at all. */
static void test_neighbours(struct kernels *k)
{
    const struct shape both = {"", 1, 1, 64, false, 0, 2, {75, 40}, {75, 40}, 1, 0};
    struct problem p;
    problem_make(&p, &both);
    struct memory m = memory_make(&p, kernels_dtype(k)), n = memory_make(&p, kernels_dtype(k));
    memory_fill(m, 1);
    memory_copy(n, m);
    for (int64_t r = LEAD + 75; r < LEAD + 75 + 40; r++) {
        reference_set(n.q, r, 3, NAN);
        reference_set(n.keys, r, 5, NAN);
        reference_set(n.values, r, 7, NAN);
    }
    CHECK_OK(attention_forward(k, m.o, m.lse, m.q, m.keys, m.values, &p.a));
    CHECK_OK(attention_forward(k, n.o, n.lse, n.q, n.keys, n.values, &p.a));
    CHECK(operation_equal(tensor_rows(m.o, LEAD, 75), tensor_rows(n.o, LEAD, 75)));
    CHECK(isnan(reference_get(n.o, LEAD + 75, 7)));
    memory_release(&m);
    memory_release(&n);
}

/* Two query heads on one key-value head equal two on two copies of it. */
static void test_grouped(struct kernels *k)
{
    const struct shape one = {"", 2, 1, 64, true, 0, 1, {90}, {90}, 1, 0};
    const struct shape two = {"", 2, 2, 64, true, 0, 1, {90}, {90}, 1, 0};
    struct problem p, q;
    problem_make(&p, &one);
    problem_make(&q, &two);
    struct memory m = memory_make(&p, kernels_dtype(k)), n = memory_make(&q, kernels_dtype(k));
    memory_fill(m, 1);
    memory_fill(n, 1);
    for (int half = 0; half < 2; half++) {
        reference_convert(tensor_columns(n.keys, 64 * half, 64), m.keys);
        reference_convert(tensor_columns(n.values, 64 * half, 64), m.values);
    }
    run(k, &p, m);
    run(k, &q, n);
    CHECK(operation_equal(m.o, n.o) && operation_equal(m.lse, n.lse));
    CHECK(operation_equal(m.dq, n.dq));
    for (int64_t r = LEAD; r < LEAD + 90; r++) {
        for (int64_t c = 0; c < 64; c++) {
            double sum = reference_get(n.dkeys, r, c) + reference_get(n.dkeys, r, 64 + c);
            double size = fabs(reference_get(n.dkeys, r, c)) + fabs(sum);
            double epsilon = kernels_dtype(k) == DTYPE_BF16 ? 1e-2 : 1e-5;
            CHECK_NEAR(reference_get(m.dkeys, r, c), sum, epsilon * (size + 0.1));
        }
    }
    memory_release(&m);
    memory_release(&n);
}

/* Heads that another rank holds change nothing: dropout counts the model's heads. */
static void test_shared_heads(struct kernels *k)
{
    const struct shape all = {"", 4, 4, 16, true, 0, 2, {70, 33}, {70, 33}, 1, 0.3f};
    struct shape half = all;
    half.heads = half.kv_heads = 2;
    struct problem p, q;
    problem_make(&p, &all);
    problem_make(&q, &half);
    q.a.all_heads = 4;
    struct memory m = memory_make(&p, kernels_dtype(k));
    memory_fill(m, 1);
    run(k, &p, m);
    for (int i = 0; i < 2; i++) {
        struct memory n = memory_make(&q, kernels_dtype(k));
        reference_convert(n.q, tensor_columns(m.q, 32 * i, 32));
        reference_convert(n.keys, tensor_columns(m.keys, 32 * i, 32));
        reference_convert(n.values, tensor_columns(m.values, 32 * i, 32));
        reference_convert(n.d_o, tensor_columns(m.d_o, 32 * i, 32));
        q.a.first_head = 2 * i;
        run(k, &q, n);
        for (int64_t r = LEAD; r < LEAD + 103; r++) {
            for (int64_t c = 0; c < 32; c++) {
                CHECK(reference_get(n.o, r, c) == reference_get(m.o, r, 32 * i + c));
                CHECK(reference_get(n.dq, r, c) == reference_get(m.dq, r, 32 * i + c));
                CHECK(reference_get(n.dkeys, r, c) == reference_get(m.dkeys, r, 32 * i + c));
                CHECK(reference_get(n.dvalues, r, c) == reference_get(m.dvalues, r, 32 * i + c));
            }
        }
        memory_release(&n);
    }
    memory_release(&m);
}

/* Aligned rows are for tiles, which have some widths only. Attention by rows has smaller shapes where a GPU is emulated,
 * and small ones where the thread sanitizer looks at each access. */
static bool left_out(const struct shape *s)
{
    bool slow = false;
#if defined(SIMT_TSAN)
    slow = s->queries[0] * s->keys[0] * s->heads * s->width > 300000;
#elif defined(OPERATION_SIMT)
    slow = s->queries[0] * s->keys[0] * s->heads * s->width > 1700000;
#endif
    if (wide_only) {
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
        if (!left_out(&shapes[i])) {
            test_shape(k, other, i);
        }
    }
    test_packed(k);
    test_branches(k);
    test_past(k);
    test_nan(k);
    test_neighbours(k);
    test_grouped(k);
    test_shared_heads(k);
}

int main(int count, char **arguments)
{
    wide_only = count > 1 && strcmp(arguments[1], "wgmma") == 0;
    unit = wide_only || (count > 1 && strcmp(arguments[1], "aligned") == 0) ? 8 : 1;
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
    operation_each(&limits, test_all);
    truths_release();
    return 0;
}
