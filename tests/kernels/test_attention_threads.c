/* Tests that the bits of attention do not depend on the number of threads. With many threads, heads
 * are divided into blocks of queries and tiles of keys, and several threads add to dq. */
#include "tests/kernels/operation.h"

struct shape {
    const char *name;
    int sequences, heads, kv_heads;
    int64_t length, head_width, window;
    bool causal;
};

static const struct shape shapes[] = {
    {"GPT-2", 4, 12, 12, 256, 64, 0, true},
    {"not causal", 2, 4, 4, 130, 32, 0, false},
    {"grouped heads", 1, 8, 2, 300, 64, 0, true},
    {"window on both sides", 1, 4, 4, 520, 16, 100, false},
};

static const int thread_counts[] = {3, 7, 64};

enum {
    SHAPES = sizeof shapes / sizeof *shapes,
    COUNTS = sizeof thread_counts / sizeof *thread_counts,
    REPETITIONS = 5, /* the order in which threads take work items differs */
    RESULTS = 5
};

/* The operands and results of a shape: o, lse, dq, dk, dv. */
struct tensors {
    struct tensor q, keys, values, d_o, results[RESULTS];
};

static struct tensors make_tensors(enum dtype dtype, const struct shape *s)
{
    int64_t rows = s->sequences * s->length;
    int64_t width = s->heads * s->head_width, kv_width = s->kv_heads * s->head_width;
    return (struct tensors){
        .q = operation_random(dtype, rows, width, 1, 1.0),
        .keys = operation_random(dtype, rows, kv_width, 2, 1.0),
        .values = operation_random(dtype, rows, kv_width, 3, 1.0),
        .d_o = operation_random(dtype, rows, width, 4, 1.0),
        .results = {operation_tensor(dtype, rows, width, width),
                    operation_tensor(DTYPE_F32, s->heads, rows, rows),
                    operation_tensor(dtype, rows, width, width),
                    operation_tensor(dtype, rows, kv_width, kv_width),
                    operation_tensor(dtype, rows, kv_width, kv_width)},
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
    int32_t offsets[8];
    for (int i = 0; i <= s->sequences; i++) {
        offsets[i] = (int32_t)(i * s->length);
    }
    const struct attention a = {
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_width = s->head_width,
        .causal = s->causal,
        .window = s->window,
        .scale = 1.0f / sqrtf((float)s->head_width),
        .sequences = s->sequences,
        .cu_q = offsets,
        .cu_k = offsets,
        .longest_q = s->length,
        .longest_k = s->length,
    };
    struct tensor *r = t->results;
    CHECK_OK(attention_forward(k, r[0], r[1], t->q, t->keys, t->values, &a));
    CHECK_OK(
        attention_backward(k, r[2], r[3], r[4], t->d_o, t->q, t->keys, t->values, r[0], r[1], &a));
}

static void check_shape(struct device *dev, enum dtype dtype, const struct shape *s)
{
    int64_t width = s->heads * s->head_width;
    const struct kernels_limits limits = {.rows = s->sequences * s->length,
                                          .width = width,
                                          .inner = width,
                                          .heads = s->heads,
                                          .head_width = s->head_width,
                                          .sequence = s->length,
                                          .vocabulary = 16,
                                          .training = true};
    struct tensors one = make_tensors(dtype, s), many = make_tensors(dtype, s);
    struct kernels *k = NULL;
    CHECK_OK(kernels_create(dev, dtype, 1, &limits, &k));
    run_attention(k, s, &one);
    CHECK_OK(kernels_destroy(&k));
    for (int i = 0; i < COUNTS * REPETITIONS; i++) {
        CHECK_OK(kernels_create(dev, dtype, thread_counts[i % COUNTS], &limits, &k));
        run_attention(k, s, &many);
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
        if (kernels_supports(dev, DTYPE_BF16)) {
            check_shape(dev, DTYPE_BF16, &shapes[i]);
        }
    }
    CHECK_OK(device_destroy(&dev));
    return 0;
}
