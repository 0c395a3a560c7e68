/* Test of CUDA graphs on the emulated runtime: launches in a graph give the same results as direct
 * launches. Arguments, shapes and operations change between repetitions. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/cuda.h"
#include "tests/check.h"
#include "tests/simt/small_kernels.h"

enum { TIMES = 8, KEYS = 20 };

static struct device *gpu;

/* Weights, optimizer state and activations on the GPU. */
struct memory {
    struct kernels *k;
    float *weights, *moments[2], *gradient, *x, *y;
};

static void fill_array(const struct memory *m, float *to, int seed)
{
    float host[COUNT];
    for (int i = 0; i < COUNT; i++) {
        host[i] = (float)((i * 37 + seed * 11) % 101) / 50 - 1;
    }
    CHECK_OK(device_write(gpu, kernels_stream(m->k), to, host, sizeof host));
}

static void memory_create(struct memory *m, bool graphs)
{
    *m = (struct memory){0};
    m->k = create_small_kernels(gpu, graphs);
    float **all[] = {&m->weights, &m->moments[0], &m->moments[1], &m->gradient, &m->x, &m->y};
    for (int i = 0; i < 6; i++) {
        *all[i] = allocate_floats(gpu);
    }
    fill_array(m, m->weights, 1);
    fill_array(m, m->x, 2);
}

static void memory_release(struct memory *m)
{
    float *all[] = {m->weights, m->moments[0], m->moments[1], m->gradient, m->x, m->y};
    CHECK_OK(kernels_destroy(&m->k));
    for (int i = 0; i < 6; i++) {
        device_release(gpu, all[i], COUNT * sizeof(float));
    }
}

static struct tensor rows_of(float *data, int64_t rows)
{
    return tensor_view(data, DTYPE_F32, rows, WIDTH);
}

/* One step. The dropout counter, the learning rate and the number of rows may change between
 * steps. */
static void run_step(const struct memory *m, int time, int64_t rows, bool use_other_ops)
{
    const struct dropout dropout = {0.3f, (uint64_t)time * 77, time, 0};
    const struct adamw settings = {
        0.01f * (float)(1 + time), 0.9, 0.95, 1e-8f, 0.1f, 1.0f, 0.1f, 0.05f};
    struct tensor x = rows_of(m->x, rows), y = rows_of(m->y, rows), w = rows_of(m->weights, WIDTH);
    CHECK_OK(dropout_apply(m->k, y, x, dropout));
    CHECK_OK(linear_forward(m->k, x, tensor_absent(), y, w, tensor_absent(), ACTIVATION_NONE));
    CHECK_OK(op_scale(m->k, x, 1.0f / (float)(1 + time)));
    CHECK_OK(use_other_ops ? op_add(m->k, m->gradient, m->y, COUNT)
                           : op_add(m->k, m->gradient, m->x, COUNT));
    CHECK_OK(op_scale(m->k, rows_of(m->gradient, ROWS), use_other_ops ? 0.5f : 0.75f));
    CHECK_OK(adamw_update(m->k, m->weights, NULL, m->moments[0], m->moments[1], m->gradient, COUNT,
                          &settings));
    if (use_other_ops) {
        CHECK_OK(op_scale(m->k, rows_of(m->weights, ROWS), 0.9f));
    }
}

static void run_step_in_graph(const struct memory *m, int variant, int time, int64_t rows,
                              bool use_other_ops)
{
    const struct kernels_graph_key key = {m->x, ROWS, variant};
    CHECK_OK(kernels_graph_begin(m->k, &key));
    run_step(m, time, rows, use_other_ops);
    CHECK_OK(kernels_graph_end(m->k, STATUS_OK));
}

static void run_steps(const struct memory *m, int variants, bool rows_change, bool use_other_ops)
{
    for (int time = 0; time < TIMES * variants; time++) {
        int64_t rows = rows_change ? ROWS - time % 3 : ROWS;
        run_step_in_graph(m, time % variants, time, rows, use_other_ops && time % 5 == 4);
    }
}

static void check_equal(const struct memory *a, const struct memory *b)
{
    float *const of_a[] = {a->weights, a->moments[0], a->moments[1], a->gradient, a->x, a->y};
    float *const of_b[] = {b->weights, b->moments[0], b->moments[1], b->gradient, b->x, b->y};
    for (int i = 0; i < 6; i++) {
        float x[COUNT], y[COUNT];
        CHECK_OK(device_read(gpu, kernels_stream(a->k), x, of_a[i], sizeof x));
        CHECK_OK(device_read(gpu, kernels_stream(b->k), y, of_b[i], sizeof y));
        CHECK(memcmp(x, y, sizeof x) == 0);
    }
}

/* Changes of parameters, of GEMM shapes (rows_change) and of operations (use_other_ops) give the
 * same bits as without graphs. */
static void test_same_bits(int variants, bool rows_change, bool use_other_ops)
{
    struct memory graphs, single;
    memory_create(&graphs, true);
    memory_create(&single, false);
    run_steps(&graphs, variants, rows_change, use_other_ops);
    run_steps(&single, variants, rows_change, use_other_ops);
    check_equal(&graphs, &single);
    memory_release(&graphs);
    memory_release(&single);
}

/* With more keys than regions, the graph of the first key is discarded and created again. */
static void test_many_keys(void)
{
    struct memory both[2];
    for (int i = 0; i < 2; i++) {
        memory_create(&both[i], i == 0);
        for (int time = 0; time < KEYS + 8; time++) {
            int variant = time >= 4 && time < KEYS + 4 ? time : 0;
            run_step_in_graph(&both[i], variant, time, ROWS, false);
        }
    }
    check_equal(&both[0], &both[1]);
    memory_release(&both[0]);
    memory_release(&both[1]);
}

/* A copy or a read within a region uses the results of all earlier calls. */
static void test_split_regions(void)
{
    struct memory m;
    memory_create(&m, true);
    struct stream *stream = kernels_stream(m.k);
    for (int time = 0; time < TIMES; time++) {
        const struct kernels_graph_key key = {m.x, ROWS, 0};
        float host[COUNT];
        fill_array(&m, m.x, time);
        CHECK_OK(kernels_graph_begin(m.k, &key));
        for (int i = 0; i < 5; i++) {
            CHECK_OK(op_scale(m.k, rows_of(m.x, ROWS), 2));
        }
        CHECK_OK(device_copy(gpu, stream, m.y, m.x, sizeof host));
        for (int i = 0; i < 6; i++) {
            CHECK_OK(op_scale(m.k, rows_of(m.x, ROWS), 0.5f));
        }
        CHECK_OK(kernels_graph_end_segment(m.k));
        CHECK_OK(op_scale(m.k, rows_of(m.x, ROWS), 4));
        CHECK_OK(device_read(gpu, stream, host, m.x, sizeof host));
        CHECK(host[3] == 2 * ((float)((3 * 37 + time * 11) % 101) / 50 - 1));
        CHECK_OK(device_read(gpu, stream, host, m.y, sizeof host));
        CHECK(host[3] == 32 * ((float)((3 * 37 + time * 11) % 101) / 50 - 1));
        CHECK_OK(kernels_graph_end(m.k, STATUS_OK));
    }
    memory_release(&m);
}

static status call_forbidden(struct kernels *k, const void *argument)
{
    void *memory = NULL;
    switch (*(const int *)argument) {
    case 0:
        return device_allocate(gpu, 8, "a test", &memory);
    case 1:
        return device_wait(gpu, k->stream, 10);
    default:
        return STATUS_OK;
    }
}

/* A library call that allocates (0) or waits (1): the emulator ends the program when the call is
 * captured. */
static int run_child(int action)
{
    struct memory m;
    memory_create(&m, true);
    for (int time = 0; time < TIMES; time++) {
        const struct kernels_graph_key key = {m.x, ROWS, 0};
        CHECK_OK(kernels_graph_begin(m.k, &key));
        CHECK_OK(cuda_launch_call(m.k, call_forbidden, &action, sizeof action));
        run_step(&m, time, ROWS, false);
        CHECK_OK(kernels_graph_end(m.k, STATUS_OK));
    }
    return 0;
}

static void test_forbidden(void)
{
    for (int action = 0; action < 3; action++) {
        int exit_status = 0;
        pid_t pid = fork();
        if (pid == 0) {
            fclose(stderr);
            _exit(run_child(action));
        }
        CHECK(waitpid(pid, &exit_status, 0) == pid && WIFEXITED(exit_status));
        CHECK_EQUAL(WEXITSTATUS(exit_status), action < 2 ? 3 : 0);
    }
}

/* Tests test_same_bits: if the emulator ignores argument updates, the results differ. */
static void test_stale(void)
{
    struct memory graphs, single;
    float x[COUNT], y[COUNT];
    memory_create(&graphs, true);
    memory_create(&single, false);
    CHECK(setenv("SIMT_STALE", "1", 1) == 0);
    run_steps(&graphs, 1, false, false);
    CHECK(unsetenv("SIMT_STALE") == 0);
    run_steps(&single, 1, false, false);
    CHECK_OK(device_read(gpu, kernels_stream(graphs.k), x, graphs.weights, sizeof x));
    CHECK_OK(device_read(gpu, kernels_stream(single.k), y, single.weights, sizeof y));
    CHECK(memcmp(x, y, sizeof x) != 0);
    memory_release(&graphs);
    memory_release(&single);
}

int main(void)
{
    cuda_register();
    CHECK_OK(device_create(DEVICE_CUDA, 0, &gpu));
    test_same_bits(1, false, false);
    test_same_bits(2, false, false);
    test_same_bits(1, true, false);
    test_same_bits(1, false, true);
    test_many_keys();
    test_split_regions();
    test_stale();
    test_forbidden();
    CHECK_OK(device_destroy(&gpu));
    return 0;
}
