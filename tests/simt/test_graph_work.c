/* Tests work of other libraries in CUDA graphs (device_queue_work), on the emulated runtime. The
 * work is a copy on another stream, in place of a collective of NCCL. The other rank is simulated:
 * it agrees, or it refuses in some passes. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "tests/check.h"
#include "tests/simt/small_kernels.h"

enum { TIMES = 9 };

static struct device *gpu;

/* Memory of a rank, its stream for communication, its work, and the numbers of calls. */
static struct rank {
    struct kernels *k;
    float *x, *y, *z, *other;
    struct stream *side;
    struct event *ready, *done;
    struct device_work start, wait;
    bool peer_agrees;
    int direct, captured, agreements, launched;
} rank;

/* ---- queued work ---- */

static status queue_copy(void *user, const void *argument, bool captured)
{
    struct rank *r = user;
    *(captured ? &r->captured : &r->direct) += 1;
    float *to = NULL;
    memcpy(&to, argument, sizeof to);
    TRY(device_event_record(gpu, r->ready, kernels_stream(r->k)));
    TRY(device_stream_wait(gpu, r->side, r->ready));
    TRY(device_copy(gpu, r->side, to, r->x, COUNT * sizeof(float)));
    return device_event_record(gpu, r->done, r->side);
}

static status queue_wait(void *user, const void *argument, bool captured)
{
    const struct rank *r = user;
    (void)argument;
    (void)captured;
    return device_stream_wait(gpu, kernels_stream(r->k), r->done);
}

static status agree(void *user, bool own, bool *all)
{
    struct rank *r = user;
    r->agreements++;
    *all = own && r->peer_agrees;
    return STATUS_OK;
}

static status count_launch(void *user)
{
    ((struct rank *)user)->launched++;
    return STATUS_OK;
}

/* ---- a rank ---- */

static void rank_create(bool graphs)
{
    float host[COUNT];
    rank = (struct rank){.peer_agrees = true};
    rank.start = (struct device_work){queue_copy, agree, count_launch, &rank, 1};
    rank.wait = (struct device_work){queue_wait, agree, count_launch, &rank, -1};
    rank.k = create_small_kernels(gpu, graphs);
    rank.x = allocate_floats(gpu);
    rank.y = allocate_floats(gpu);
    rank.z = allocate_floats(gpu);
    rank.other = allocate_floats(gpu);
    for (int i = 0; i < COUNT; i++) {
        host[i] = (float)(i % 13) / 8;
    }
    CHECK_OK(device_write(gpu, kernels_stream(rank.k), rank.x, host, sizeof host));
    CHECK_OK(device_stream_create(gpu, 1, &rank.side));
    CHECK_OK(device_event_create(gpu, &rank.ready));
    CHECK_OK(device_event_create(gpu, &rank.done));
}

/* Reads the results and releases the rank. */
static void rank_finish(float out[2 * COUNT])
{
    CHECK_OK(device_read(gpu, kernels_stream(rank.k), out, rank.x, COUNT * sizeof *out));
    CHECK_OK(device_read(gpu, kernels_stream(rank.k), out + COUNT, rank.z, COUNT * sizeof *out));
    CHECK_OK(kernels_destroy(&rank.k));
    CHECK_OK(device_stream_destroy(gpu, &rank.side));
    CHECK_OK(device_event_destroy(gpu, &rank.ready));
    CHECK_OK(device_event_destroy(gpu, &rank.done));
    device_release(gpu, rank.x, COUNT * sizeof(float));
    device_release(gpu, rank.y, COUNT * sizeof(float));
    device_release(gpu, rank.z, COUNT * sizeof(float));
    device_release(gpu, rank.other, COUNT * sizeof(float));
}

/* ---- passes ---- */

/* A pass of a region. */
struct pass {
    bool has_work;
    bool to_other;    /* the copy writes to other memory */
    bool is_open;     /* the segment ends between the work and the wait */
    bool has_other;   /* one operation more */
    bool peer_agrees; /* at the end of the pass */
};

static struct tensor rows_of(float *data)
{
    return tensor_view(data, DTYPE_F32, ROWS, WIDTH);
}

static void run_pass(const struct pass *p, int time)
{
    const struct kernels_graph_key key = {rank.x, ROWS, 0};
    float *to = p->to_other ? rank.other : rank.y;
    rank.peer_agrees = p->peer_agrees;
    CHECK_OK(kernels_graph_begin(rank.k, &key));
    for (int i = 0; i < 3; i++) {
        CHECK_OK(op_scale(rank.k, rows_of(rank.x), 1 + 0.125f * (float)(time + i)));
    }
    if (p->has_work) {
        CHECK_OK(device_queue_work(gpu, kernels_stream(rank.k), &rank.start, &to, sizeof to));
    }
    CHECK_OK(op_scale(rank.k, rows_of(rank.z), 0.5f));
    if (p->is_open) {
        CHECK_OK(kernels_graph_end_segment(rank.k));
    }
    if (p->has_work) {
        CHECK_OK(device_queue_work(gpu, kernels_stream(rank.k), &rank.wait, &to, sizeof to));
        CHECK_OK(op_add(rank.k, rank.z, to, COUNT));
    }
    if (p->has_other) {
        CHECK_OK(op_scale(rank.k, rows_of(rank.z), 0.25f));
    }
    CHECK_OK(op_scale(rank.k, rows_of(rank.x), 0.75f));
    CHECK_OK(kernels_graph_end(rank.k, STATUS_OK));
}

static const struct pass usual = {.has_work = true, .peer_agrees = true};

/* Runs TIMES passes with and without graphs; those from `at` until `until` differ. The results must
 * be equal, and the ranks must agree this often. */
static void compare(const struct pass *other, int at, int until, int agreements)
{
    float results[2][2 * COUNT];
    struct rank counts = {0};
    for (int graphs = 0; graphs < 2; graphs++) {
        rank_create(graphs == 1);
        for (int time = 0; time < TIMES; time++) {
            run_pass(time >= at && time < until ? other : &usual, time);
        }
        CHECK_EQUAL(rank.agreements, graphs == 1 ? agreements : 0);
        counts = rank;
        rank_finish(results[graphs]);
    }
    CHECK(memcmp(results[0], results[1], sizeof results[0]) == 0);
    rank = counts;
}

/* The first pass is direct, the second one is captured, the others are replayed. */
static void test_usual(void)
{
    compare(&usual, 0, 0, TIMES);
    CHECK(rank.direct == 1 && rank.captured == 1 && rank.launched == TIMES - 1);
}

/* A pass with another pointer or with one more operation is direct on all ranks. */
static void test_mismatch(void)
{
    struct pass pointer = usual, more = usual;
    pointer.to_other = true;
    compare(&pointer, 5, 6, TIMES);
    CHECK(rank.direct == 3 && rank.captured == 2 && rank.launched == TIMES - 3);
    more.has_other = true;
    compare(&more, 5, 6, TIMES);
    CHECK(rank.direct == 3 && rank.captured == 2 && rank.launched == TIMES - 3);
}

/* If the other rank refuses, this rank uses no graph either: not to capture, not after a capture,
 * and not in a replay. */
static void test_refusal(void)
{
    struct pass refused = usual;
    refused.peer_agrees = false;
    compare(&refused, 0, TIMES, TIMES);
    CHECK(rank.direct == TIMES && rank.captured == 0 && rank.launched == 0);
    compare(&refused, 1, 2, TIMES);
    CHECK(rank.direct == 3 && rank.captured == 2 && rank.launched == TIMES - 3);
    compare(&refused, 5, 6, TIMES);
    CHECK(rank.direct == 3 && rank.captured == 2 && rank.launched == TIMES - 3);
}

/* A segment that ends before the wait for its work is never captured. */
static void test_open(void)
{
    struct pass open = usual;
    open.is_open = true;
    compare(&open, 0, TIMES, 2 * TIMES);
    CHECK(rank.direct == TIMES && rank.captured == 0 && rank.launched == 0);
}

/* The ranks have not agreed on a capture of a segment that had no work before. */
static void test_new_work(void)
{
    struct pass none = usual;
    none.has_work = false;
    compare(&none, 0, 1, TIMES - 1);
    CHECK(rank.direct == 1 && rank.captured == 1);
    compare(&none, 0, 4, TIMES - 4);
    CHECK(rank.direct == 1 && rank.captured == 1);
    compare(&none, 5, 7, TIMES - 1); /* pass 5 replays a graph with work */
    CHECK(rank.direct == 2 && rank.captured == 2);
}

int main(void)
{
    cuda_register();
    CHECK_OK(device_create(DEVICE_CUDA, 0, &gpu));
    test_usual();
    test_mismatch();
    test_refusal();
    test_open();
    test_new_work();
    CHECK_OK(device_destroy(&gpu));
    return 0;
}
