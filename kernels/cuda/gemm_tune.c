/* GEMM tuning: measures every fusion and algorithm with events of the device, on the operands of
 * the last use.
 *
 * Operands  The measurements multiply the values that the step left, and overwrite the results: the
 *           next step recomputes all of them. A GEMM that accumulates is measured without
 *           accumulation.
 * Order     Every candidate runs twice, the first time as a warm-up. Then the default and the
 *           fastest few run in ROUNDS rounds. The minimum counts. */
#include <cuda_runtime_api.h>
#include <math.h>

#include "base/deadlines.h"
#include "kernels/cuda/gemm.h"

enum { CANDIDATES_MAX = GEMM_FUSIONS_MAX * GEMM_ALGORITHMS_MAX, FINALISTS = 4, ROUNDS = 5 };

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
        REQUIRE(watch_error == cudaSuccess, STATUS_INTERNAL, "tuning a GEMM: %s",                  \
                cudaGetErrorString(watch_error));                                                  \
    } while (0)

/* Measures one run. *seconds is INFINITY if cuBLASLt refuses the candidate. */
static status run_once(const struct stopwatch *watch, struct gemm_plan *plan,
                       const struct cuda_gemm *p, float *seconds)
{
    struct kernels *k = watch->k;
    cudaStream_t stream = (cudaStream_t)device_stream_handle(k->device, k->stream);
    float milliseconds = 0;
    WATCH_CHECK(cudaEventRecord(watch->begin, stream));
    if (gemm_perform(k, plan, p) != STATUS_OK) {
        status_clear();
        *seconds = INFINITY;
        return STATUS_OK;
    }
    WATCH_CHECK(cudaEventRecord(watch->end, stream));
    TRY(device_wait(k->device, k->stream, DEADLINE_DEVICE_SECONDS));
    WATCH_CHECK(cudaEventElapsedTime(&milliseconds, watch->begin, watch->end));
    *seconds = milliseconds / 1e3f;
    return STATUS_OK;
}

/* Sets the plan to the candidate, runs it `runs` times and stores the minimum time. */
static status measure_candidate(const struct stopwatch *watch, struct gemm_plan *plan,
                                const struct cuda_gemm *p, struct candidate *c, int runs)
{
    struct cuda_gemm_context *gemm = cuda_get_state(watch->k)->gemm;
    gemm_plan_release(gemm, plan);
    plan->fused = c->fused;
    plan->algorithm = c->algorithm;
    TRY(gemm_plan_describe(gemm, plan, p));
    for (int i = 0; i < runs; i++) {
        float seconds = INFINITY;
        TRY(run_once(watch, plan, p, &seconds));
        c->seconds = seconds < c->seconds ? seconds : c->seconds;
    }
    return STATUS_OK;
}

/* Lists the algorithms of every fusion. The first candidate is the default. */
static status list_candidates(struct cuda_gemm_context *gemm, struct gemm_plan *plan,
                              const struct cuda_gemm *p, struct candidate *out, int *count)
{
    int fusions[GEMM_FUSIONS_MAX], fusion_count = gemm_plan_fusions(&plan->key, fusions);
    *count = 0;
    for (int i = 0; i < fusion_count; i++) {
        cublasLtMatmulAlgo_t algorithms[GEMM_ALGORITHMS_MAX];
        int found = 0;
        gemm_plan_release(gemm, plan);
        plan->fused = fusions[i];
        TRY(gemm_plan_describe(gemm, plan, p));
        TRY(gemm_plan_algorithms(gemm, plan, GEMM_ALGORITHMS_MAX, algorithms, &found));
        for (int j = 0; j < found; j++) {
            out[(*count)++] = (struct candidate){fusions[i], algorithms[j], INFINITY};
        }
    }
    return STATUS_OK;
}

/* Sorts all candidates after the first by their time. */
static void sort_tail(struct candidate *candidates, int count)
{
    for (int i = 1; i < count; i++) {
        struct candidate inserted = candidates[i];
        int slot = i;
        for (; slot > 1 && inserted.seconds < candidates[slot - 1].seconds; slot--) {
            candidates[slot] = candidates[slot - 1];
        }
        candidates[slot] = inserted;
    }
}

static status choose_fastest(const struct stopwatch *watch, struct gemm_plan *plan)
{
    struct candidate candidates[CANDIDATES_MAX];
    struct cuda_gemm operands = plan->operands;
    int count = 0;
    operands.accumulate = false;
    TRY(list_candidates(cuda_get_state(watch->k)->gemm, plan, &operands, candidates, &count));
    REQUIRE(count > 0, STATUS_INTERNAL,
            "cuBLASLt returned no algorithm for a GEMM that it supported before");
    for (int i = 0; i < count; i++) {
        TRY(measure_candidate(watch, plan, &operands, &candidates[i], 2));
        candidates[i].seconds = i == 0 ? INFINITY : candidates[i].seconds;
    }
    sort_tail(candidates, count);
    int finalists = count < FINALISTS ? count : FINALISTS, best = 0;
    for (int i = 0; i < finalists; i++) {
        candidates[i].seconds = INFINITY;
    }
    for (int i = 0; i < finalists * ROUNDS; i++) {
        TRY(measure_candidate(watch, plan, &operands, &candidates[i % finalists], 1));
    }
    for (int i = 1; i < finalists; i++) {
        best = candidates[i].seconds < candidates[best].seconds ? i : best;
    }
    gemm_plan_release(cuda_get_state(watch->k)->gemm, plan);
    plan->fused = candidates[best].fused;
    plan->algorithm = candidates[best].algorithm;
    plan->seconds = candidates[best].seconds;
    plan->default_seconds = candidates[0].seconds;
    plan->tuned = true;
    return STATUS_OK;
}

status gemm_tune_plan(struct kernels *k, struct gemm_plan *plan)
{
    struct stopwatch watch = {.k = k};
    WATCH_CHECK(cudaEventCreateWithFlags(&watch.begin, cudaEventDefault));
    cudaError_t error = cudaEventCreateWithFlags(&watch.end, cudaEventDefault);
    status result = error == cudaSuccess ? choose_fastest(&watch, plan)
                                         : RAISE_STATUS(STATUS_INTERNAL, "tuning a GEMM: %s",
                                                        cudaGetErrorString(error));
    (void)cudaEventDestroy(watch.begin);
    if (error == cudaSuccess) {
        (void)cudaEventDestroy(watch.end);
    }
    return result;
}
