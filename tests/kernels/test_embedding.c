/* Tests the embedding lookup and its gradients against the oracle. The bits must not depend on the
 * number of threads. */
#include "base/memory.h"
#include "tests/kernels/operation.h"

struct shape {
    int64_t rows, columns, vocabulary, positions; /* N, C, V, P; P = 0: no position table */
    float dropout;
    bool dense; /* no gaps between the rows of y */
};

static const struct shape shapes[] = {
    {1, 1, 1, 1, 0},
    {7, 5, 3, 7, 0},
    {64, 48, 1, 16, 0},
    {257, 1, 66000, 100, 0},
    {100, 64, 40, 0, 0},
    {130, 33, 5, 13, 0.2f},
    {1000, 8, 2, 3, 0},
    {20, 264, 9, 5, 0.2f, true},
    {33, 1600, 7, 0, 0, true},
    /* ids with several partial sums: one id, columns that are not aligned, more than a block adds,
     * and more segments than the warps of a block read at a time */
    {300, 33, 1, 1, 0.2f},
    {900, 264, 3, 2, 0.2f, true},
    {640, 7, 5, 10, 0},
    {17000, 4, 1, 2, 0},
};

struct tensors {
    struct tensor tokens_table, positions_table, y, dy, d_tokens, d_positions;
};

static struct tensors make_tensors(const struct shape *s, enum dtype dtype)
{
    enum dtype sums = dtype == ORACLE_F64 ? ORACLE_F64 : DTYPE_F32;
    struct tensors m = {
        .tokens_table = operation_random(dtype, s->vocabulary, s->columns, 1, 1),
        .y = operation_tensor(dtype, s->rows, s->columns, s->columns + (s->dense ? 0 : 3)),
        .dy = operation_random(dtype, s->rows, s->columns, 3, 1),
        .d_tokens = operation_random(sums, s->vocabulary, s->columns, 4, 1),
    };
    if (s->positions > 0) {
        m.positions_table = operation_random(dtype, s->positions, s->columns, 2, 1);
        m.d_positions = operation_random(sums, s->positions, s->columns, 5, 1);
    }
    return m;
}

static void release_tensors(struct tensors *m)
{
    struct tensor *all[] = {&m->tokens_table, &m->positions_table, &m->y,
                            &m->dy,           &m->d_tokens,        &m->d_positions};
    for (int i = 0; i < COUNT(all); i++) {
        operation_release(all[i]);
    }
}

static void run_embedding(struct kernels *k, struct tensors m, const int32_t *tokens,
                          const int32_t *positions, struct dropout dropout)
{
    CHECK_OK(embedding_forward(k, m.y, tokens, positions, m.tokens_table, 0, m.positions_table,
                               dropout));
    CHECK_OK(embedding_backward(k, m.d_tokens, 0, m.d_positions, m.dy, tokens, positions, dropout));
}

static void check_difference(struct kernels *k, const char *name, struct tensor got,
                             struct tensor naive, struct tensor exact)
{
    if (got.data != NULL) {
        double tolerance = 2 * operation_difference(naive, exact) + 1e-5;
        operation_check_error(name, k, operation_difference(got, exact), tolerance);
    }
}

static void test_shape(struct kernels *k, struct kernels *other, const struct shape *s)
{
    int32_t *tokens = malloc((size_t)s->rows * sizeof *tokens);
    int32_t *positions = malloc((size_t)s->rows * sizeof *positions);
    CHECK(tokens != NULL && positions != NULL);
    for (int64_t i = 0; i < s->rows; i++) {
        tokens[i] = (int32_t)random_below(1, (uint64_t)i, (uint64_t)s->vocabulary);
        positions[i] = s->positions > 0 ? (int32_t)(i % s->positions) : 0;
    }
    struct dropout dropout = {s->dropout, random_key(1, RANDOM_DROPOUT, 2, 3), 12345, 0};
    enum dtype dtype = kernels_dtype(k);
    struct tensors m = make_tensors(s, dtype), repeated = make_tensors(s, dtype);
    struct tensors naive = make_tensors(s, dtype), exact = make_tensors(s, ORACLE_F64);
    oracle_cast(exact.tokens_table, m.tokens_table);
    oracle_cast(exact.dy, m.dy);
    if (s->positions > 0) {
        oracle_cast(exact.positions_table, m.positions_table);
    }
    run_embedding(k, m, tokens, positions, dropout);
    run_embedding(other, repeated, tokens, positions, dropout);
    CHECK(operation_equal(m.y, repeated.y) && operation_equal(m.d_tokens, repeated.d_tokens));
    CHECK(s->positions == 0 || operation_equal(m.d_positions, repeated.d_positions));
    if (s->positions > 0) { /* with a frozen token table */
        struct tensors frozen = make_tensors(s, dtype);
        CHECK_OK(embedding_backward(k, tensor_absent(), 0, frozen.d_positions, m.dy, tokens,
                                    positions, dropout));
        CHECK(operation_equal(frozen.d_positions, m.d_positions));
        release_tensors(&frozen);
    }
    const struct tensors both[] = {naive, exact};
    for (int i = 0; i < 2; i++) {
        oracle_embedding_forward(both[i].y, tokens, positions, both[i].tokens_table,
                                 both[i].positions_table, dropout);
        oracle_embedding_backward(both[i].d_tokens, both[i].d_positions, both[i].dy, tokens,
                                  positions, dropout);
    }
    check_difference(k, "embedding: y", m.y, naive.y, exact.y);
    check_difference(k, "embedding: token table", m.d_tokens, naive.d_tokens, exact.d_tokens);
    check_difference(k, "embedding: position table", m.d_positions, naive.d_positions,
                     exact.d_positions);
    release_tensors(&m);
    release_tensors(&repeated);
    release_tensors(&naive);
    release_tensors(&exact);
    free(tokens);
    free(positions);
}

/* Two shards of the vocabulary: the sum of their outputs is the output of the whole table, and
 * their gradients are the halves of its gradient. */
static void test_vocabulary_shards(struct kernels *k)
{
    const struct shape whole = {90, 33, 40, 7, 0.2f}, half = {90, 33, 20, 7, 0.2f};
    struct tensors m = make_tensors(&whole, kernels_dtype(k)), shard[2];
    int32_t tokens[90], positions[90];
    struct dropout dropout = {whole.dropout, random_key(1, RANDOM_DROPOUT, 2, 3), 12345, 0};
    for (int i = 0; i < 90; i++) {
        tokens[i] = (int32_t)random_below(1, (uint64_t)i, 40);
        positions[i] = i % 7;
    }
    run_embedding(k, m, tokens, positions, dropout);
    for (int i = 0; i < 2; i++) {
        shard[i] = make_tensors(&half, kernels_dtype(k));
        struct tensors initial = make_tensors(&whole, kernels_dtype(k));
        oracle_cast(shard[i].tokens_table, tensor_rows(m.tokens_table, 20 * i, 20));
        oracle_cast(shard[i].d_tokens, tensor_rows(initial.d_tokens, 20 * i, 20));
        release_tensors(&initial);
        CHECK_OK(embedding_forward(k, shard[i].y, tokens, positions, shard[i].tokens_table, 20 * i,
                                   i == 0 ? m.positions_table : tensor_absent(), dropout));
        CHECK_OK(embedding_backward(k, shard[i].d_tokens, 20 * i, shard[i].d_positions, m.dy,
                                    tokens, positions, dropout));
        CHECK(operation_equal(shard[i].d_tokens, tensor_rows(m.d_tokens, 20 * i, 20)));
        CHECK(operation_equal(shard[i].d_positions, m.d_positions));
    }
    double epsilon = kernels_dtype(k) == DTYPE_BF16 ? 2 * 0x1p-8 : 1e-6;
    for (int64_t r = 0; r < 90; r++) {
        for (int64_t c = 0; c < 33; c++) {
            double a = oracle_get(shard[0].y, r, c), b = oracle_get(shard[1].y, r, c);
            CHECK_NEAR(a + b, oracle_get(m.y, r, c), epsilon * (fabs(a) + fabs(b)));
        }
    }
    release_tensors(&m);
    release_tensors(&shard[0]);
    release_tensors(&shard[1]);
}

static void test_all(struct kernels *k, struct kernels *other)
{
    for (int i = 0; i < COUNT(shapes); i++) {
        test_shape(k, other, &shapes[i]);
    }
    test_vocabulary_shards(k);
}

int main(void)
{
    const struct kernels_limits limits = {17000, 1600, 1600, 1, 16, 16, 70000, true};
    operation_run_all(&limits, test_all);
    return 0;
}
