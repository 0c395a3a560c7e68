/* Which way to do a product is the fastest: measured with the device's events, on the operands that it was met
 * with.
 *
 * Contents  what the step left in the operands is multiplied again, and the results are overwritten: the next step
 *           makes all of them anew. A product that is added to what is there is timed as one that is not
 * Order     every candidate once to warm up and once for a first time; the best few, and the untimed choice, in
 *           turns, of which the least counts */
#include <cuda_runtime_api.h>
#include <math.h>

#include "kernels/cuda/gemm.h"

enum { CANDIDATES_MAX = PRODUCT_WAYS_MAX * PRODUCT_ALGORITHMS, FINALISTS = 4, TURNS = 5 };

struct candidate {
    int fused;
    cublasLtMatmulAlgo_t algorithm;
    float seconds;
};

struct stopwatch {
    struct kernels *k;
    cudaEvent_t begin, end;
};

#define WATCH_CHECK(call)                                                                          \
    do {                                                                                           \
        cudaError_t watch_error = (call);                                                          \
        REQUIRE(watch_error == cudaSuccess, STATUS_INTERNAL, "timing a product: %s",               \
                cudaGetErrorString(watch_error));                                                  \
    } while (0)

/* INFINITY where the library refuses it after all. */
static status run_once(const struct stopwatch *watch, struct product_plan *plan,
                       const struct cuda_product *p, float *seconds)
{
    struct kernels *k = watch->k;
    cudaStream_t stream = (cudaStream_t)device_stream_handle(k->device, k->stream);
    float milliseconds = 0;
    WATCH_CHECK(cudaEventRecord(watch->begin, stream));
    if (products_perform(k, plan, p) != STATUS_OK) {
        status_clear();
        *seconds = INFINITY;
        return STATUS_OK;
    }
    WATCH_CHECK(cudaEventRecord(watch->end, stream));
    TRY(device_wait(k->device, k->stream, CUDA_WAIT_SECONDS));
    WATCH_CHECK(cudaEventElapsedTime(&milliseconds, watch->begin, watch->end));
    *seconds = milliseconds / 1e3f;
    return STATUS_OK;
}

/* The plan becomes the candidate for so many runs, of which the least time is kept. */
static status measure(const struct stopwatch *watch, struct product_plan *plan,
                      const struct cuda_product *p, struct candidate *c, int runs)
{
    struct cuda_products *products = cuda_of(watch->k)->products;
    product_plan_forget(products, plan);
    plan->fused = c->fused;
    plan->algorithm = c->algorithm;
    TRY(product_plan_describe(products, plan, p));
    for (int i = 0; i < runs; i++) {
        float seconds = INFINITY;
        TRY(run_once(watch, plan, p, &seconds));
        c->seconds = seconds < c->seconds ? seconds : c->seconds;
    }
    return STATUS_OK;
}

/* The ways and the library's algorithms for them; the first is the one that is taken untimed. */
static status list_candidates(struct cuda_products *products, struct product_plan *plan,
                              const struct cuda_product *p, struct candidate *out, int *count)
{
    int ways[PRODUCT_WAYS_MAX], way_count = product_plan_ways(&plan->key, ways);
    *count = 0;
    for (int i = 0; i < way_count; i++) {
        cublasLtMatmulAlgo_t algorithms[PRODUCT_ALGORITHMS];
        int found = 0;
        product_plan_forget(products, plan);
        plan->fused = ways[i];
        TRY(product_plan_describe(products, plan, p));
        TRY(product_plan_algorithms(products, plan, PRODUCT_ALGORITHMS, algorithms, &found));
        for (int j = 0; j < found; j++) {
            out[(*count)++] = (struct candidate){ways[i], algorithms[j], INFINITY};
        }
    }
    return STATUS_OK;
}

/* The best of them to the front, behind the first. */
static void sort(struct candidate *candidates, int count)
{
    for (int i = 1; i < count; i++) {
        struct candidate moved = candidates[i];
        int at = i;
        for (; at > 1 && moved.seconds < candidates[at - 1].seconds; at--) {
            candidates[at] = candidates[at - 1];
        }
        candidates[at] = moved;
    }
}

static status choose(const struct stopwatch *watch, struct product_plan *plan)
{
    struct candidate candidates[CANDIDATES_MAX];
    struct cuda_product operands = plan->operands;
    int count = 0;
    operands.add = false;
    TRY(list_candidates(cuda_of(watch->k)->products, plan, &operands, candidates, &count));
    REQUIRE(count > 0, STATUS_INTERNAL, "cuBLASLt has lost its way to do a product");
    for (int i = 0; i < count; i++) {
        TRY(measure(watch, plan, &operands, &candidates[i], 2));
        candidates[i].seconds = i == 0 ? INFINITY : candidates[i].seconds;
    }
    sort(candidates, count);
    int finalists = count < FINALISTS ? count : FINALISTS, best = 0;
    for (int i = 0; i < finalists; i++) {
        candidates[i].seconds = INFINITY;
    }
    for (int i = 0; i < finalists * TURNS; i++) {
        TRY(measure(watch, plan, &operands, &candidates[i % finalists], 1));
    }
    for (int i = 1; i < finalists; i++) {
        best = candidates[i].seconds < candidates[best].seconds ? i : best;
    }
    product_plan_forget(cuda_of(watch->k)->products, plan);
    plan->fused = candidates[best].fused;
    plan->algorithm = candidates[best].algorithm;
    plan->seconds = candidates[best].seconds;
    plan->untimed_seconds = candidates[0].seconds;
    plan->timed = true;
    return STATUS_OK;
}

status product_times_choose(struct kernels *k, struct product_plan *plan)
{
    struct stopwatch watch = {.k = k};
    WATCH_CHECK(cudaEventCreateWithFlags(&watch.begin, cudaEventDefault));
    cudaError_t error = cudaEventCreateWithFlags(&watch.end, cudaEventDefault);
    status result = error == cudaSuccess
                        ? choose(&watch, plan)
                        : status_raise(STATUS_INTERNAL, __FILE__, __LINE__, "timing a product: %s",
                                       cudaGetErrorString(error));
    (void)cudaEventDestroy(watch.begin);
    if (error == cudaSuccess) {
        (void)cudaEventDestroy(watch.end);
    }
    return result;
}
