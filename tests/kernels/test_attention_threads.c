/* Tests that the bits of attention do not depend on the number of threads. With many threads, heads
 * are divided into blocks of queries and tiles of keys, and several threads add to dq. */
#include "base/memory.h"
#include "base/number.h"
#include "kernels/cpu/matmul.h"
#include "tests/kernels/operation.h"

enum { SEQUENCES_MAX = 4 };

struct shape {
    const char *name;
    int sequences, heads, kv_heads;
    int64_t queries[SEQUENCES_MAX], keys[SEQUENCES_MAX], head_width, window;
    bool causal;
    float softcap, dropout;
};

static const struct shape shapes[] = {
    {"GPT-2", 4, 12, 12, {256, 256, 256, 256}, {256, 256, 256, 256}, 64, 0, true, 0, 0},
    {"not causal", 2, 4, 4, {130, 130}, {130, 130}, 32, 0, false, 0, 0},
    {"grouped heads, dropout", 1, 8, 2, {300}, {300}, 64, 0, true, 0, 0.1f},
    {"window on both sides", 1, 4, 4, {520}, {520}, 16, 100, false, 0, 0},
    {"causal window, soft-cap", 3, 4, 4, {90, 1, 200}, {90, 1, 200}, 32, 70, true, 5, 0},
    {"narrow heads", 2, 3, 3, {131, 65}, {131, 65}, 20, 0, true, 0, 0},
    {"unequal keys", 4, 3, 3, {70, 0, 1, 140}, {10, 5, 200, 64}, 16, 0, false, 0, 0},
};

static const int thread_counts[] = {3, 7, 64};

enum {
    SHAPES = COUNT(shapes),
    COUNTS = COUNT(thread_counts),
    REPETITIONS = 5, /* the order in which threads take work items differs */
    RESULTS = 5
};

/* The operands and results of a shape: o, lse, dq, dk, dv. */
struct tensors {
    struct tensor q, keys, values, d_o, results[RESULTS];
};

static int64_t count_rows(const int64_t lengths[SEQUENCES_MAX])
{
    int64_t rows = 0;
    for (int i = 0; i < SEQUENCES_MAX; i++) {
        rows += lengths[i];
    }
    return rows;
}

static int64_t find_longest(const int64_t lengths[SEQUENCES_MAX])
{
    int64_t longest = 0;
    for (int i = 0; i < SEQUENCES_MAX; i++) {
        longest = number_max(longest, lengths[i]);
    }
    return longest;
}

static struct tensors make_tensors(enum dtype dtype, const struct shape *s)
{
    int64_t rows = count_rows(s->queries), key_rows = count_rows(s->keys);
    int64_t width = s->heads * s->head_width, kv_width = s->kv_heads * s->head_width;
    return (struct tensors){
        .q = operation_random(dtype, rows, width, 1, 1.0),
        .keys = operation_random(dtype, key_rows, kv_width, 2, 1.0),
        .values = operation_random(dtype, key_rows, kv_width, 3, 1.0),
        .d_o = operation_random(dtype, rows, width, 4, 1.0),
        .results = {operation_tensor(dtype, rows, width, width),
                    operation_tensor(DTYPE_F32, s->heads, rows, rows),
                    operation_tensor(dtype, rows, width, width),
                    operation_tensor(dtype, key_rows, kv_width, kv_width),
                    operation_tensor(dtype, key_rows, kv_width, kv_width)},
    };
}

static void release_tensors(struct tensors *t)
{
    operation_release(&t->q);
    operation_release(&t->keys);
    operation_release(&t->values);
    operation_release(&t->d_o);
    for (int i = 0; i < RESULTS; i++) {
        operation_release(&t->results[i]);
    }
}

static void run_attention(struct kernels *k, const struct shape *s, struct tensors *t)
{
    int32_t cu_q[SEQUENCES_MAX + 1] = {0}, cu_k[SEQUENCES_MAX + 1] = {0};
    for (int i = 0; i < s->sequences; i++) {
        cu_q[i + 1] = cu_q[i] + (int32_t)s->queries[i];
        cu_k[i + 1] = cu_k[i] + (int32_t)s->keys[i];
    }
    const struct attention a = {
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_width = s->head_width,
        .causal = s->causal,
        .window = s->window,
        .scale = 1.0f / sqrtf((float)s->head_width),
        .sequences = s->sequences,
        .softcap = s->softcap,
        .dropout = {s->dropout, random_key(7, RANDOM_DROPOUT, 3, 1), 0, 0},
        .cu_q = cu_q,
        .cu_k = cu_k,
        .longest_q = find_longest(s->queries),
        .longest_k = find_longest(s->keys),
    };
    struct tensor *r = t->results;
    CHECK_OK(attention_forward(k, r[0], r[1], t->q, t->keys, t->values, &a));
    CHECK_OK(
        attention_backward(k, r[2], r[3], r[4], t->d_o, t->q, t->keys, t->values, r[0], r[1], &a));
}

static void check_shape(struct device *dev, enum dtype dtype, const struct shape *s)
{
    int64_t width = s->heads * s->head_width;
    int64_t rows = count_rows(s->queries), key_rows = count_rows(s->keys);
    int64_t longest_q = find_longest(s->queries), longest_k = find_longest(s->keys);
    int repetitions = operation_is_emulated() ? 1 : REPETITIONS;
    if (operation_is_too_long(rows * longest_k * width)) {
        return;
    }
    const struct kernels_limits limits = {
        .rows = number_max(rows, key_rows),
        .width = width,
        .inner = width,
        .heads = s->heads,
        .head_width = s->head_width,
        .sequence = number_max(longest_q, longest_k),
        .vocabulary = 16,
        .training = true,
    };
    struct tensors one = make_tensors(dtype, s), many = make_tensors(dtype, s);
    struct kernels *k = NULL;
    CHECK_OK(kernels_create(dev, dtype, 1, &limits, &k));
    run_attention(k, s, &one);
    CHECK_OK(kernels_destroy(&k));
    for (int i = 0; i < COUNTS * repetitions; i++) {
        CHECK_OK(kernels_create(dev, dtype, thread_counts[i % COUNTS], &limits, &k));
        run_attention(k, s, &many);
        run_attention(k, s, &many); /* the workspace has values of the first call */
        CHECK_OK(kernels_destroy(&k));
        for (int j = 0; j < RESULTS; j++) {
            if (!operation_equal(one.results[j], many.results[j])) {
                fprintf(stderr, "%s, %d threads: result %d differs\n", s->name,
                        thread_counts[i % COUNTS], j);
                exit(1);
            }
        }
    }
    release_tensors(&one);
    release_tensors(&many);
}

int main(void)
{
    struct device *dev = NULL;
    CHECK_OK(device_create(DEVICE_CPU, 0, &dev));
    for (int i = 0; i < SHAPES; i++) {
        check_shape(dev, DTYPE_F32, &shapes[i]);
        if (matmul_supports(DTYPE_BF16)) {
            check_shape(dev, DTYPE_BF16, &shapes[i]);
        }
    }
    CHECK_OK(device_destroy(&dev));
    return 0;
}
