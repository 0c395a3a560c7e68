/* Attention's features in each other's company, in bf16, beside a plain attention that writes its matrices down.
 *
 * Cases     width, mask, grouped heads, lengths, dropout: each pair of features has all its values (BIREME_LONG=1: each
 *           three, and all of them). Else each of the emulator's four schedules in CI, and each of a processor's
 *           instruction sets, has a quarter of the cases
 * Bounds    Frobenius norms of the errors, relative, and of lse the largest error: those of `limits`, and never more
 *           than twice the plain attention's
 * Bits      sequences packed into one call have the bits that each has in a call of its own; on a GPU a hundred times
 * Memory    rows in no sequence are NaN, in operands and results, and stay so; results are NaN before they are written */
#include "tests/kernels/attention_rows.h"
#include "tests/kernels/operation.h"

enum { WIDTHS = 4, MASKS = 4, GROUPS = 4, LAYOUTS = 6, DROPOUTS = 2, FEATURES = 5 };
enum { CASES = WIDTHS * MASKS * GROUPS * LAYOUTS * DROPOUTS };

static const int values_of[FEATURES] = {WIDTHS, MASKS, GROUPS, LAYOUTS, DROPOUTS};
static const int64_t widths[WIDTHS] = {32, 64, 96, 128};
static const struct mask {
    const char *name;
    bool causal;
    int64_t window;
} masks[MASKS] = {
    {"causal", true, 0}, {"full", false, 0}, {"causal window", true, 40}, {"window", false, 40}};
static const int groups[GROUPS][2] = {{1, 1}, {2, 2}, {2, 1}, {3, 1}};
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

/* `wgmma`: what that is written for, forward alone. */
static bool forward_only;

/* ---- which cases ---- */

static int value_of(int number, int feature)
{
    for (int f = 0; f < feature; f++) {
        number /= values_of[f];
    }
    return number % values_of[feature];
}

static bool is_allowed(int number)
{
    int64_t width = widths[value_of(number, 0)];
    return !forward_only || ((width == 64 || width == 128) && !(dropouts[value_of(number, 4)] > 0));
}

/* The values that a case has of some of the features, as a number. */
static int tuple_of(int number, int features)
{
    int tuple = 0;
    for (int f = 0, scale = 1; f < FEATURES; scale *= values_of[f], f++) {
        tuple += (features >> f & 1) != 0 ? scale * value_of(number, f) : 0;
    }
    return features * CASES + tuple;
}

/* How many tuples of so many features the case has that no case had before; which are marked where that is wanted. */
static int new_tuples(bool *covered, int number, int strength, bool mark)
{
    int count = 0;
    for (int features = 0; features < 1 << FEATURES; features++) {
        int size = 0;
        for (int f = 0; f < FEATURES; f++) {
            size += features >> f & 1;
        }
        int tuple = tuple_of(number, features);
        if (size == strength && !covered[tuple]) {
            count++;
            covered[tuple] = mark;
        }
    }
    return count;
}

/* Until nothing is left to cover, the case that covers most. */
static int choose_cases(int cases[CASES], int strength)
{
    static bool covered[(1 << FEATURES) * CASES];
    memset(covered, 0, sizeof covered);
    for (int count = 0;; count++) {
        int best = 0, most = 0;
        for (int number = 0; number < CASES; number++) {
            int new = is_allowed(number) ? new_tuples(covered, number, strength, false) : 0;
            best = new > most ? number : best;
            most = new > most ? new : most;
        }
        if (most == 0) {
            return count;
        }
        new_tuples(covered, best, strength, true);
        cases[count] = best;
    }
}

/* Which of four shares of the cases is this context's; -1: all. */
static int own_share(void)
{
    static int contexts;
    const char *order = getenv("SIMT_SCHEDULE"), *seed = getenv("SIMT_SEED");
    if (getenv("BIREME_LONG") != NULL || (OPERATION_ON_GPU && order == NULL)) {
        return -1;
    }
    if (order == NULL) {
        return contexts++ % 4;
    }
    bool second = seed != NULL && strcmp(seed, "2") == 0;
    return strcmp(order, "lifo") == 0 ? 0 : strcmp(order, "warp") == 0 ? 1 : second ? 3 : 2;
}

/* ---- a case ---- */

struct problem {
    const struct layout *layout;
    char name[96];
    struct attention a;
    int32_t cu_q[SEQUENCES_MAX + 1], cu_k[SEQUENCES_MAX + 1];
    int64_t rows_q, rows_k;
};

static void problem_make(struct problem *p, int number)
{
    const struct mask *mask = &masks[value_of(number, 1)];
    const int *heads = groups[value_of(number, 2)];
    int64_t width = widths[value_of(number, 0)];
    float dropout = dropouts[value_of(number, 4)];
    *p = (struct problem){.layout = &layouts[value_of(number, 3)]};
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
        attention_rows_lay_out(p->cu_q, p->layout->queries, p->a.sequences, &p->a.longest_q);
    p->rows_k = attention_rows_lay_out(p->cu_k, p->layout->keys, p->a.sequences, &p->a.longest_k);
    snprintf(p->name, sizeof p->name, "%s, %s, width %d, heads %d:%d%s", p->layout->name,
             mask->name, (int)width, heads[0], heads[1], dropout > 0 ? ", dropout" : "");
}

struct memory {
    struct tensor q, keys, values, d_o, out[RESULTS];
};

/* The rows that are in sequences, also in double precision. */
static struct tensor inside(struct tensor t)
{
    t.data = (char *)t.data + (size_t)(LEAD * t.stride) * element_bytes(t.dtype);
    t.rows -= LEAD + TRAIL;
    return t;
}

static struct tensor inside_columns(struct tensor t)
{
    t.data = (char *)t.data + LEAD * element_bytes(t.dtype);
    t.columns -= LEAD + TRAIL;
    return t;
}

static struct memory memory_make(const struct problem *p, enum dtype dtype)
{
    int64_t wide = p->a.heads * p->a.head_width, narrow = p->a.kv_heads * p->a.head_width;
    enum dtype sums = dtype == REFERENCE_F64 ? REFERENCE_F64 : DTYPE_F32;
    struct memory m = {
        .q = operation_tensor(dtype, p->rows_q, wide, wide + 40),
        .keys = operation_tensor(dtype, p->rows_k, narrow, narrow + 24),
        .values = operation_tensor(dtype, p->rows_k, narrow, narrow + 8),
        .d_o = operation_tensor(dtype, p->rows_q, wide, wide),
        .out = {operation_tensor(dtype, p->rows_q, wide, wide + 16),
                operation_tensor(dtype, p->rows_q, wide, wide + 8),
                operation_tensor(dtype, p->rows_k, narrow, narrow),
                operation_tensor(dtype, p->rows_k, narrow, narrow + 32),
                operation_tensor(sums, p->a.heads, p->rows_q, p->rows_q)},
    };
    struct tensor *operands[] = {&m.q, &m.keys, &m.values, &m.d_o};
    for (int i = 0; i < 4; i++) {
        operation_set(*operands[i], NAN);
        operation_fill(inside(*operands[i]), 1 + (uint64_t)i, 1);
    }
    for (int i = 0; i < RESULTS; i++) {
        operation_set(m.out[i], NAN);
    }
    return m;
}

static void memory_release(struct memory *m)
{
    struct tensor *operands[] = {&m->q, &m->keys, &m->values, &m->d_o};
    for (int i = 0; i < 4; i++) {
        operation_release(operands[i]);
    }
    for (int i = 0; i < RESULTS; i++) {
        operation_release(&m->out[i]);
    }
}

static void run(struct kernels *k, const struct attention *a, struct memory *m)
{
    CHECK_OK(attention_forward(k, m->out[O], m->out[LSE], m->q, m->keys, m->values, a));
    if (!forward_only) {
        CHECK_OK(attention_backward(k, m->out[DQ], m->out[DKEYS], m->out[DVALUES], m->d_o, m->q,
                                    m->keys, m->values, m->out[O], m->out[LSE], a));
    }
}

/* ---- the plain attention ---- */

static double rounded(double x)
{
    return (double)bf16_to_f32(f32_to_bf16((float)x));
}

static double dot(struct tensor a, int64_t a_row, int64_t a_first, struct tensor b, int64_t b_row,
                  int64_t b_first, int64_t width)
{
    double sum = 0;
    for (int64_t d = 0; d < width; d++) {
        sum += reference_get(a, a_row, a_first + d) * reference_get(b, b_row, b_first + d);
    }
    return sum;
}

/* What a row of the matrices holds: p, p with dropout, and the gradient of the scores. */
struct plain_row {
    double *p, *dropped, *ds;
    int64_t begin, end;
};

/* One query's row: scores, probabilities and gradients are matrices of bf16, what leads to them is not rounded. */
static void plain_row_make(struct plain_row *r, const struct problem *p, const struct memory *m,
                           int64_t sequence, int64_t i, int head)
{
    const struct attention *a = &p->a;
    int64_t n = p->layout->queries[sequence], all = p->layout->keys[sequence], d = a->head_width;
    int64_t row = a->cu_q[sequence] + i, key = a->cu_k[sequence], q_at = head * d;
    int64_t k_at = head / (a->heads / a->kv_heads) * d;
    double most = -INFINITY, sum = 0, delta = 0;
    r->end = a->causal ? i + all - n + 1 : all;
    r->end = r->end < 0 ? 0 : r->end;
    r->begin = a->window > 0 && r->end > a->window ? r->end - a->window : 0;
    for (int64_t j = r->begin; j < r->end; j++) {
        r->p[j] = rounded((double)a->scale * dot(m->q, row, q_at, m->keys, key + j, k_at, d));
        most = r->p[j] > most ? r->p[j] : most;
    }
    for (int64_t j = r->begin; j < r->end; j++) {
        r->p[j] = exp(r->p[j] - most);
        sum += r->p[j];
    }
    for (int64_t j = r->begin; j < r->end; j++) {
        double keep = reference_keep(a->dropout, (row * a->heads + head) * a->longest_k + j);
        double dp = rounded(dot(m->d_o, row, q_at, m->values, key + j, k_at, d));
        r->p[j] = rounded(r->p[j] / sum);
        r->dropped[j] = rounded(r->p[j] * keep);
        r->ds[j] = rounded(dp * keep);
        delta += r->p[j] * r->ds[j];
    }
    for (int64_t j = r->begin; j < r->end; j++) {
        r->ds[j] = rounded(r->p[j] * (r->ds[j] - delta));
    }
}

/* What the row gives to o, dq and, in double precision, to the sums of dkeys and dvalues. */
static void plain_row_add(const struct plain_row *r, const struct problem *p, struct memory *m,
                          struct tensor dkeys, struct tensor dvalues, int64_t sequence, int64_t i,
                          int head)
{
    const struct attention *a = &p->a;
    int64_t d = a->head_width, row = a->cu_q[sequence] + i, key = a->cu_k[sequence];
    int64_t q_at = head * d, k_at = head / (a->heads / a->kv_heads) * d;
    double scale = (double)a->scale;
    for (int64_t c = 0; c < d; c++) {
        double o = 0, dq = 0, q = reference_get(m->q, row, q_at + c);
        double d_o = reference_get(m->d_o, row, q_at + c);
        for (int64_t j = r->begin; j < r->end; j++) {
            o += r->dropped[j] * reference_get(m->values, key + j, k_at + c);
            dq += scale * r->ds[j] * reference_get(m->keys, key + j, k_at + c);
            reference_set(dkeys, key + j, k_at + c,
                          reference_get(dkeys, key + j, k_at + c) + scale * r->ds[j] * q);
            reference_set(dvalues, key + j, k_at + c,
                          reference_get(dvalues, key + j, k_at + c) + r->dropped[j] * d_o);
        }
        reference_set(m->out[O], row, q_at + c, o);
        reference_set(m->out[DQ], row, q_at + c, dq);
    }
}

static void plain_run(const struct problem *p, struct memory *m)
{
    struct tensor sums[2];
    size_t keys = (size_t)p->a.longest_k + 1;
    struct plain_row r = {calloc(keys, 8), calloc(keys, 8), calloc(keys, 8), 0, 0};
    CHECK(r.p != NULL && r.dropped != NULL && r.ds != NULL);
    for (int i = 0; i < 2; i++) {
        sums[i] = operation_copy(m->out[DKEYS + i], REFERENCE_F64);
        operation_set(inside(sums[i]), 0);
    }
    for (int64_t s = 0; s < p->a.sequences; s++) {
        for (int64_t i = 0; i < p->layout->queries[s]; i++) {
            for (int head = 0; head < p->a.heads; head++) {
                plain_row_make(&r, p, m, s, i, head);
                plain_row_add(&r, p, m, sums[0], sums[1], s, i, head);
            }
        }
    }
    for (int i = 0; i < 2; i++) {
        reference_convert(m->out[DKEYS + i], sums[i]);
        operation_release(&sums[i]);
    }
    free(r.p);
    free(r.dropped);
    free(r.ds);
}

/* ---- errors ---- */

static double frobenius(struct tensor got, struct tensor exact)
{
    double apart = 0, size = 0;
    for (int64_t r = 0; r < exact.rows; r++) {
        for (int64_t c = 0; c < exact.columns; c++) {
            double wanted = reference_get(exact, r, c);
            apart += (reference_get(got, r, c) - wanted) * (reference_get(got, r, c) - wanted);
            size += wanted * wanted;
        }
    }
    return apart == 0 ? 0 : sqrt(apart / size);
}

static double largest_difference(struct tensor got, struct tensor exact)
{
    double most = 0;
    for (int64_t r = 0; r < exact.rows; r++) {
        for (int64_t c = 0; c < exact.columns; c++) {
            double a = reference_get(got, r, c), b = reference_get(exact, r, c);
            double apart = a == b ? 0 : fabs(a - b); /* infinities */
            most = !(apart <= most) ? apart : most;
        }
    }
    return most;
}

static double error_of(enum result i, struct tensor got, struct tensor exact)
{
    return i == LSE ? largest_difference(inside_columns(got), inside_columns(exact))
                    : frobenius(inside(got), inside(exact));
}

static void check_untouched(const struct problem *p, const struct memory *m)
{
    for (int i = 0; i < (forward_only ? O + 1 : LSE); i++) {
        int64_t rows = m->out[i].rows;
        for (int64_t r = 0; r < LEAD + TRAIL; r++) {
            int64_t row = r < LEAD ? r : rows - 1 - (r - LEAD);
            CHECK(isnan(reference_get(m->out[i], row, 0)) &&
                  isnan(reference_get(m->out[i], row, m->out[i].columns - 1)));
        }
    }
    CHECK(isnan(reference_get(m->out[LSE], 0, LEAD - 1)) &&
          isnan(reference_get(m->out[LSE], 0, p->rows_q - TRAIL)));
}

static void check_errors(struct kernels *k, const struct problem *p, const struct memory *m)
{
    struct memory exact = memory_make(p, REFERENCE_F64), plain = memory_make(p, DTYPE_BF16);
    reference_convert(exact.q, m->q);
    reference_convert(exact.keys, m->keys);
    reference_convert(exact.values, m->values);
    reference_convert(exact.d_o, m->d_o);
    reference_attention_forward(exact.out[O], exact.out[LSE], exact.q, exact.keys, exact.values,
                                &p->a);
    reference_attention_backward(exact.out[DQ], exact.out[DKEYS], exact.out[DVALUES], exact.d_o,
                                 exact.q, exact.keys, exact.values, exact.out[O], exact.out[LSE],
                                 &p->a);
    plain_run(p, &plain);
    for (int i = 0; i < RESULTS; i++) {
        if (forward_only && i != O && i != LSE) {
            continue;
        }
        char what[160];
        double bound = bounds[i], error = error_of(i, m->out[i], exact.out[i]);
        if (i != LSE) {
            double twice = 2 * error_of(i, plain.out[i], exact.out[i]);
            bound = twice < bound ? twice : bound;
        }
        snprintf(what, sizeof what, "attention, %s: %s", p->name, names[i]);
        operation_within(what, k, error, bound);
    }
    memory_release(&exact);
    memory_release(&plain);
}

static void test_case(struct kernels *k, struct kernels *other, int number)
{
    struct problem p;
    problem_make(&p, number);
    struct memory m = memory_make(&p, DTYPE_BF16), alone = memory_make(&p, DTYPE_BF16);
    run(k, &p.a, &m);
    for (int64_t i = 0; i < p.a.sequences; i++) {
        struct attention one = p.a;
        one.sequences = 1;
        one.cu_q += i;
        one.cu_k += i;
        run(other, &one, &alone);
    }
    for (int again = OPERATION_HOST ? 1 : 100; again > 0; again--) { /* a GPU may do it otherwise */
        for (int i = 0; i < RESULTS; i++) {
            CHECK(operation_equal(m.out[i], alone.out[i]));
        }
        if (!OPERATION_HOST) {
            run(k, &p.a, &alone);
        }
    }
    check_untouched(&p, &m);
    check_errors(k, &p, &m);
    memory_release(&m);
    memory_release(&alone);
}

static void test_all(struct kernels *k, struct kernels *other)
{
    if (kernels_dtype(k) != DTYPE_BF16) {
        return;
    }
    int cases[CASES], count = choose_cases(cases, getenv("BIREME_LONG") != NULL ? 3 : 2);
    int share = own_share();
    for (int i = 0; i < count; i++) {
        if (share < 0 || i % 4 == share) {
            test_case(k, other, cases[i]);
        }
    }
}

int main(int count, char **arguments)
{
    forward_only = count > 1 && strcmp(arguments[1], "wgmma") == 0;
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
    operation_each(&limits, test_all);
    return 0;
}
