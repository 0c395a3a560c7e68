/* Tests combinations of attention features in bf16, against the oracle and against a plain
 * attention that stores its matrices.
 *
 * Cases     The features are head width, mask, heads, lengths and dropout. The cases cover all
 *           combinations of the values of two features; with BIREME_LONG=1, of three features.
 *           Without it, each of the emulator's four schedules and each instruction set of a
 *           processor runs a quarter of the cases.
 * Bounds    The relative error of each result in the Frobenius norm, and the largest error of lse,
 *           are at most `bounds`. Except for lse, the error is also at most twice the error of the
 *           plain attention.
 * Bits      Sequences that are packed into one call have the same bits as in separate calls. On a
 *           GPU this is checked a hundred times.
 * Memory    Rows in no sequence are NaN in operands and results, and stay NaN. Results are NaN
 *           before they are written. */
#include "tests/kernels/attention_rows.h"
#include "tests/kernels/operation.h"

enum { WIDTHS = 4, MASKS = 4, GROUPS = 4, LAYOUTS = 6, DROPOUTS = 2, FEATURES = 5 };
enum { CASES = WIDTHS * MASKS * GROUPS * LAYOUTS * DROPOUTS };

static const int feature_values[FEATURES] = {WIDTHS, MASKS, GROUPS, LAYOUTS, DROPOUTS};
static const int64_t widths[WIDTHS] = {32, 64, 96, 128}; /* D */
static const struct mask {
    const char *name;
    bool causal;
    int64_t window;
} masks[MASKS] = {
    {"causal", true, 0}, {"full", false, 0}, {"causal window", true, 40}, {"window", false, 40}};
static const int groups[GROUPS][2] = {{1, 1}, {2, 2}, {2, 1}, {3, 1}}; /* H, G */
static const float dropouts[DROPOUTS] = {0, 0.2f};
static const struct layout {
    const char *name;
    int64_t sequences, queries[SEQUENCES_MAX], keys[SEQUENCES_MAX];
} layouts[LAYOUTS] = {
    {"short", 4, {17, 1, 64, 0}, {17, 1, 64, 0}},  {"whole tiles", 2, {128, 16}, {128, 16}},
    {"more than a tile", 2, {15, 129}, {15, 129}}, {"more keys", 3, {9, 65, 0}, {140, 70, 5}},
    {"fewer keys", 2, {130, 16}, {127, 0}},        {"many keys", 1, {3}, {1000}},
};

enum result { O, DQ, DKEYS, DVALUES, LSE, RESULTS };
static const char *const names[RESULTS] = {"o", "dq", "dkeys", "dvalues", "lse"};
static const double bounds[RESULTS] = {5e-3, 1e-2, 1e-2, 8e-3, 1e-4};

/* With the argument `wgmma`, only cases of the wgmma kernels are tested. The forward pass of those
 * with dropout uses mma.sync. */
static bool wgmma_only;

/* ---- selection of cases ---- */

/* Returns the value of a feature in the case of this number. */
static int get_feature_value(int number, int feature)
{
    for (int f = 0; f < feature; f++) {
        number /= feature_values[f];
    }
    return number % feature_values[feature];
}

static bool is_allowed(int number)
{
    int64_t width = widths[get_feature_value(number, 0)];
    return !wgmma_only || width == 64 || width == 128;
}

/* Encodes the values that a case has for a subset of the features (a bit mask) as a number. */
static int encode_combination(int number, int features)
{
    int combination = 0;
    for (int f = 0, scale = 1; f < FEATURES; scale *= feature_values[f], f++) {
        combination += (features >> f & 1) != 0 ? scale * get_feature_value(number, f) : 0;
    }
    return features * CASES + combination;
}

/* Counts the combinations of `strength` features in this case that are not covered yet. If `mark`,
 * they are marked as covered. */
static int count_new_combinations(bool *covered, int number, int strength, bool mark)
{
    int count = 0;
    for (int features = 0; features < 1 << FEATURES; features++) {
        int size = 0;
        for (int f = 0; f < FEATURES; f++) {
            size += features >> f & 1;
        }
        int combination = encode_combination(number, features);
        if (size == strength && !covered[combination]) {
            count++;
            covered[combination] = mark;
        }
    }
    return count;
}

/* Repeatedly selects the case that covers the most new combinations, until all are covered. */
static int choose_cases(int cases[CASES], int strength)
{
    static bool covered[(1 << FEATURES) * CASES];
    memset(covered, 0, sizeof covered);
    for (int count = 0;; count++) {
        int best_case = 0, most_new = 0;
        for (int number = 0; number < CASES; number++) {
            int new =
                is_allowed(number) ? count_new_combinations(covered, number, strength, false) : 0;
            best_case = new > most_new ? number : best_case;
            most_new = new > most_new ? new : most_new;
        }
        if (most_new == 0) {
            return count;
        }
        count_new_combinations(covered, best_case, strength, true);
        cases[count] = best_case;
    }
}

/* Returns the quarters of the cases that this context runs, as bits. The quarters are divided among
 * the orders of threads. Without wgmma, the only orders are lifo, warp and random. */
static int get_case_quarters(bool wgmma)
{
    static int contexts;
    const char *order = getenv("SIMT_SCHEDULE");
    if (getenv("BIREME_LONG") != NULL || (OPERATION_ON_GPU && order == NULL)) {
        return 15;
    }
    if (order == NULL) {
        return 1 << contexts++ % 4;
    }
    if (strcmp(order, "random") == 0) {
        return wgmma ? 4 : 4 | 8;
    }
    return strcmp(order, "lifo") == 0 ? 1 : strcmp(order, "warp") == 0 ? 2 : 8;
}

/* ---- one case ---- */

struct problem {
    const struct layout *layout;
    char name[96];
    struct attention a;
    int32_t cu_q[SEQUENCES_MAX + 1], cu_k[SEQUENCES_MAX + 1];
    int64_t rows_q, rows_k;
};

static void make_problem(struct problem *p, int number)
{
    const struct mask *mask = &masks[get_feature_value(number, 1)];
    const int *heads = groups[get_feature_value(number, 2)];
    int64_t width = widths[get_feature_value(number, 0)];
    float dropout = dropouts[get_feature_value(number, 4)];
    *p = (struct problem){.layout = &layouts[get_feature_value(number, 3)]};
    p->a = (struct attention){
        .heads = heads[0],
        .kv_heads = heads[1],
        .head_width = width,
        .causal = mask->causal,
        .window = mask->window,
        .scale = (float)(1.0 / sqrt((double)width)),
        .sequences = p->layout->sequences,
        .cu_q = p->cu_q,
        .cu_k = p->cu_k,
        .dropout = {dropout, random_key(7, RANDOM_DROPOUT, 3, 1), INT64_C(0xfffffff0), 0},
    };
    p->rows_q =
        attention_rows_set_offsets(p->cu_q, p->layout->queries, p->a.sequences, &p->a.longest_q);
    p->rows_k =
        attention_rows_set_offsets(p->cu_k, p->layout->keys, p->a.sequences, &p->a.longest_k);
    snprintf(p->name, sizeof p->name, "%s, %s, width %d, heads %d:%d%s", p->layout->name,
             mask->name, (int)width, heads[0], heads[1], dropout > 0 ? ", dropout" : "");
}

struct tensors {
    struct tensor q, keys, values, d_o, out[RESULTS];
};

/* Returns the rows that are in sequences; the dtype may be ORACLE_F64. */
static struct tensor select_sequence_rows(struct tensor t)
{
    t.data = (char *)t.data + (size_t)(LEAD * t.stride) * element_bytes(t.dtype);
    t.rows -= LEAD + TRAIL;
    return t;
}

/* Returns the columns of lse that are in sequences. */
static struct tensor select_sequence_columns(struct tensor t)
{
    t.data = (char *)t.data + LEAD * element_bytes(t.dtype);
    t.columns -= LEAD + TRAIL;
    return t;
}

static struct tensors make_tensors(const struct problem *p, enum dtype dtype)
{
    int64_t columns = p->a.heads * p->a.head_width;
    int64_t kv_columns = p->a.kv_heads * p->a.head_width;
    enum dtype sums = dtype == ORACLE_F64 ? ORACLE_F64 : DTYPE_F32;
    struct tensors m = {
        .q = operation_tensor(dtype, p->rows_q, columns, columns + 40),
        .keys = operation_tensor(dtype, p->rows_k, kv_columns, kv_columns + 24),
        .values = operation_tensor(dtype, p->rows_k, kv_columns, kv_columns + 8),
        .d_o = operation_tensor(dtype, p->rows_q, columns, columns),
        .out = {operation_tensor(dtype, p->rows_q, columns, columns + 16),
                operation_tensor(dtype, p->rows_q, columns, columns + 8),
                operation_tensor(dtype, p->rows_k, kv_columns, kv_columns),
                operation_tensor(dtype, p->rows_k, kv_columns, kv_columns + 32),
                operation_tensor(sums, p->a.heads, p->rows_q, p->rows_q)},
    };
    struct tensor *operands[] = {&m.q, &m.keys, &m.values, &m.d_o};
    for (int i = 0; i < 4; i++) {
        operation_set(*operands[i], NAN);
        operation_fill(select_sequence_rows(*operands[i]), 1 + (uint64_t)i, 1);
    }
    for (int i = 0; i < RESULTS; i++) {
        operation_set(m.out[i], NAN);
    }
    return m;
}

static void release_tensors(struct tensors *m)
{
    struct tensor *operands[] = {&m->q, &m->keys, &m->values, &m->d_o};
    for (int i = 0; i < 4; i++) {
        operation_release(operands[i]);
    }
    for (int i = 0; i < RESULTS; i++) {
        operation_release(&m->out[i]);
    }
}

static void run_attention(struct kernels *k, const struct attention *a, struct tensors *m)
{
    CHECK_OK(attention_forward(k, m->out[O], m->out[LSE], m->q, m->keys, m->values, a));
    CHECK_OK(attention_backward(k, m->out[DQ], m->out[DKEYS], m->out[DVALUES], m->d_o, m->q,
                                m->keys, m->values, m->out[O], m->out[LSE], a));
}

/* ---- the plain attention ---- */

static double round_to_bf16(double x)
{
    return (double)bf16_to_f32(f32_to_bf16((float)x));
}

static double compute_dot(struct tensor a, int64_t a_row, int64_t a_first, struct tensor b,
                          int64_t b_row, int64_t b_first, int64_t width)
{
    double sum = 0;
    for (int64_t d = 0; d < width; d++) {
        sum += oracle_get(a, a_row, a_first + d) * oracle_get(b, b_row, b_first + d);
    }
    return sum;
}

/* Rows of the matrices of one query: p, p with dropout, and the gradients of the scores. */
struct plain_row {
    double *p, *dropped, *ds;
    int64_t begin, end;
};

/* Computes the rows of one query. Scores, probabilities and gradients are rounded to bf16; sums are
 * added in double precision. */
static void compute_plain_row(struct plain_row *r, const struct problem *p, const struct tensors *m,
                              int64_t sequence, int64_t i, int head)
{
    const struct attention *a = &p->a;
    int64_t queries = p->layout->queries[sequence], keys = p->layout->keys[sequence];
    int64_t d = a->head_width;
    int64_t row = a->cu_q[sequence] + i, key = a->cu_k[sequence], q_at = head * d;
    int64_t k_at = head / (a->heads / a->kv_heads) * d;
    double largest = -INFINITY, sum = 0, delta = 0;
    r->end = a->causal ? i + keys - queries + 1 : keys;
    r->end = r->end < 0 ? 0 : r->end;
    r->begin = a->window > 0 && r->end > a->window ? r->end - a->window : 0;
    for (int64_t j = r->begin; j < r->end; j++) {
        r->p[j] = round_to_bf16((double)a->scale *
                                compute_dot(m->q, row, q_at, m->keys, key + j, k_at, d));
        largest = r->p[j] > largest ? r->p[j] : largest;
    }
    for (int64_t j = r->begin; j < r->end; j++) {
        r->p[j] = exp(r->p[j] - largest);
        sum += r->p[j];
    }
    for (int64_t j = r->begin; j < r->end; j++) {
        double factor = oracle_dropout_factor(
            a->dropout, (row * a->heads + head) * ((a->longest_k + 7) / 8 * 8) + j);
        double dp = round_to_bf16(compute_dot(m->d_o, row, q_at, m->values, key + j, k_at, d));
        r->p[j] = round_to_bf16(r->p[j] / sum);
        r->dropped[j] = round_to_bf16(r->p[j] * factor);
        r->ds[j] = round_to_bf16(dp * factor);
        delta += r->p[j] * r->ds[j];
    }
    for (int64_t j = r->begin; j < r->end; j++) {
        r->ds[j] = round_to_bf16(r->p[j] * (r->ds[j] - delta));
    }
}

/* Computes o and dq of one query and adds its gradients to dkeys and dvalues, which are in double
 * precision. */
static void accumulate_plain_row(const struct plain_row *r, const struct problem *p,
                                 struct tensors *m, struct tensor dkeys, struct tensor dvalues,
                                 int64_t sequence, int64_t i, int head)
{
    const struct attention *a = &p->a;
    int64_t d = a->head_width, row = a->cu_q[sequence] + i, key = a->cu_k[sequence];
    int64_t q_at = head * d, k_at = head / (a->heads / a->kv_heads) * d;
    double scale = (double)a->scale;
    for (int64_t c = 0; c < d; c++) {
        double o = 0, dq = 0, q = oracle_get(m->q, row, q_at + c);
        double d_o = oracle_get(m->d_o, row, q_at + c);
        for (int64_t j = r->begin; j < r->end; j++) {
            o += r->dropped[j] * oracle_get(m->values, key + j, k_at + c);
            dq += scale * r->ds[j] * oracle_get(m->keys, key + j, k_at + c);
            oracle_set(dkeys, key + j, k_at + c,
                       oracle_get(dkeys, key + j, k_at + c) + scale * r->ds[j] * q);
            oracle_set(dvalues, key + j, k_at + c,
                       oracle_get(dvalues, key + j, k_at + c) + r->dropped[j] * d_o);
        }
        oracle_set(m->out[O], row, q_at + c, o);
        oracle_set(m->out[DQ], row, q_at + c, dq);
    }
}

static void run_plain(const struct problem *p, struct tensors *m)
{
    struct tensor sums[2];
    size_t keys = (size_t)p->a.longest_k + 1;
    struct plain_row r = {calloc(keys, 8), calloc(keys, 8), calloc(keys, 8), 0, 0};
    CHECK(r.p != NULL && r.dropped != NULL && r.ds != NULL);
    for (int i = 0; i < 2; i++) {
        sums[i] = operation_copy(m->out[DKEYS + i], ORACLE_F64);
        operation_set(select_sequence_rows(sums[i]), 0);
    }
    for (int64_t s = 0; s < p->a.sequences; s++) {
        for (int64_t i = 0; i < p->layout->queries[s]; i++) {
            for (int head = 0; head < p->a.heads; head++) {
                compute_plain_row(&r, p, m, s, i, head);
                accumulate_plain_row(&r, p, m, sums[0], sums[1], s, i, head);
            }
        }
    }
    for (int i = 0; i < 2; i++) {
        oracle_cast(m->out[DKEYS + i], sums[i]);
        operation_release(&sums[i]);
    }
    free(r.p);
    free(r.dropped);
    free(r.ds);
}

/* ---- errors ---- */

static double compute_frobenius_error(struct tensor got, struct tensor exact)
{
    double difference = 0, size = 0;
    for (int64_t r = 0; r < exact.rows; r++) {
        for (int64_t c = 0; c < exact.columns; c++) {
            double expected = oracle_get(exact, r, c);
            difference += (oracle_get(got, r, c) - expected) * (oracle_get(got, r, c) - expected);
            size += expected * expected;
        }
    }
    return difference == 0 ? 0 : sqrt(difference / size);
}

static double compute_max_difference(struct tensor got, struct tensor exact)
{
    double largest = 0;
    for (int64_t r = 0; r < exact.rows; r++) {
        for (int64_t c = 0; c < exact.columns; c++) {
            double a = oracle_get(got, r, c), b = oracle_get(exact, r, c);
            double difference = a == b ? 0 : fabs(a - b); /* infinities may be equal */
            largest = check_max(largest, difference);
        }
    }
    return largest;
}

static double compute_error(enum result i, struct tensor got, struct tensor exact)
{
    return i == LSE
               ? compute_max_difference(select_sequence_columns(got),
                                        select_sequence_columns(exact))
               : compute_frobenius_error(select_sequence_rows(got), select_sequence_rows(exact));
}

static void check_untouched(const struct problem *p, const struct tensors *m)
{
    for (int i = 0; i < LSE; i++) {
        int64_t rows = m->out[i].rows;
        for (int64_t r = 0; r < LEAD + TRAIL; r++) {
            int64_t row = r < LEAD ? r : rows - 1 - (r - LEAD);
            CHECK(isnan(oracle_get(m->out[i], row, 0)) &&
                  isnan(oracle_get(m->out[i], row, m->out[i].columns - 1)));
        }
    }
    CHECK(isnan(oracle_get(m->out[LSE], 0, LEAD - 1)) &&
          isnan(oracle_get(m->out[LSE], 0, p->rows_q - TRAIL)));
}

static void check_errors(struct kernels *k, const struct problem *p, const struct tensors *m)
{
    struct tensors exact = make_tensors(p, ORACLE_F64), plain = make_tensors(p, DTYPE_BF16);
    oracle_cast(exact.q, m->q);
    oracle_cast(exact.keys, m->keys);
    oracle_cast(exact.values, m->values);
    oracle_cast(exact.d_o, m->d_o);
    oracle_attention_forward(exact.out[O], exact.out[LSE], exact.q, exact.keys, exact.values,
                             &p->a);
    oracle_attention_backward(exact.out[DQ], exact.out[DKEYS], exact.out[DVALUES], exact.d_o,
                              exact.q, exact.keys, exact.values, exact.out[O], exact.out[LSE],
                              &p->a);
    run_plain(p, &plain);
    for (int i = 0; i < RESULTS; i++) {
        char name[160];
        double bound = bounds[i], error = compute_error(i, m->out[i], exact.out[i]);
        if (i != LSE) {
            double twice = 2 * compute_error(i, plain.out[i], exact.out[i]);
            bound = twice < bound ? twice : bound;
        }
        snprintf(name, sizeof name, "attention, %s: %s", p->name, names[i]);
        operation_check_error(name, k, error, bound);
    }
    release_tensors(&exact);
    release_tensors(&plain);
}

static void test_case(struct kernels *k, struct kernels *other, int number)
{
    struct problem p;
    make_problem(&p, number);
    struct tensors m = make_tensors(&p, DTYPE_BF16), separate = make_tensors(&p, DTYPE_BF16);
    run_attention(k, &p.a, &m);
    for (int64_t i = 0; i < p.a.sequences; i++) {
        struct attention one = p.a;
        one.sequences = 1;
        one.cu_q += i;
        one.cu_k += i;
        run_attention(other, &one, &separate);
    }
#ifdef GPU_EMULATOR
    const int repetitions = 1;
#else
    const int repetitions = OPERATION_HOST ? 1 : 100; /* a race on a GPU may be rare */
#endif
    for (int repetition = 0; repetition < repetitions; repetition++) {
        for (int i = 0; i < RESULTS; i++) {
            CHECK(operation_equal(m.out[i], separate.out[i]));
        }
        if (!OPERATION_HOST) {
            run_attention(k, &p.a, &separate);
        }
    }
    check_untouched(&p, &m);
    check_errors(k, &p, &m);
    release_tensors(&m);
    release_tensors(&separate);
}

static bool has_bf16;

static void test_all(struct kernels *k, struct kernels *other)
{
    if (kernels_dtype(k) != DTYPE_BF16) {
        return;
    }
    has_bf16 = true;
    int cases[CASES], count = choose_cases(cases, getenv("BIREME_LONG") != NULL ? 3 : 2);
    int quarters = get_case_quarters(wgmma_only);
    for (int i = 0; i < count; i++) {
        if (quarters >> i % 4 & 1) {
            test_case(k, other, cases[i]);
        }
    }
}

int main(int count, char **arguments)
{
    wgmma_only = count > 1 && strcmp(arguments[1], "wgmma") == 0;
    const struct kernels_limits limits = {
        .rows = 1024,
        .width = 384,
        .inner = 384,
        .heads = 3,
        .head_width = 128,
        .sequence = 1000,
        .vocabulary = 16,
        .training = true,
    };
    operation_run_all(&limits, test_all);
    if (!has_bf16) {
        CHECK_SKIP("this processor has no bf16");
    }
    return 0;
}
