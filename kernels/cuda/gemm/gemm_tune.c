/* GEMM tuning: measures every fusion and algorithm with events of the device, on the operands of
 * the last use.
 *
 * Operands  The measurements multiply the values that the step left, and overwrite the results: the
 *           next step recomputes all of them. A GEMM that accumulates is measured without
 *           accumulation. The bias and some rows of other inputs are replaced for the comparison of
 *           results (gemm_check.c), and restored. FP8 operands are lost after the step, and numbers
 *           of a fixed pattern replace them.
 * Results   The first candidate that fuses nothing gives the expected results (gemm_check.c).
 *           Candidates with other results are reported and not chosen.
 * Order     Every candidate runs twice, the first time as a warm-up. Then the default and the
 *           fastest few run in ROUNDS rounds. The minimum counts. */
#include <cuda_runtime_api.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/deadlines.h"
#include "base/log.h"
#include "base/memory.h"
#include "kernels/cuda/gemm/gemm.h"

enum { CANDIDATES_MAX = GEMM_FUSIONS_MAX * GEMM_ALGORITHMS_MAX, FINALISTS = 4, ROUNDS = 5 };

struct candidate {
    int fused;
    cublasLtMatmulAlgo_t algorithm;
    float seconds; /* INFINITY: not measured, or refused by cuBLASLt */
    bool wrong;    /* its results differ from the reference */
};

/* Elements of the results: of the reference (expected) and of a candidate (got). */
struct results {
    float *expected, *got;
    struct gemm_check_changes changes; /* of the operands */
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
            out[(*count)++] = (struct candidate){fusions[i], algorithms[j], INFINITY, false};
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

/* Computes the expected results with the first candidate that fuses nothing, or else with the first
 * that cuBLASLt does not refuse. */
static status compute_expected(const struct stopwatch *watch, struct gemm_plan *plan,
                               const struct cuda_gemm *p, const struct candidate *candidates,
                               int count, float *expected)
{
    for (int i = 0; i < 2 * count; i++) {
        struct candidate c = candidates[i % count];
        if (i < count && c.fused != 0) {
            continue;
        }
        TRY(measure_candidate(watch, plan, p, &c, 1));
        if (isfinite(c.seconds)) {
            return gemm_check_read(watch->k, p, expected);
        }
    }
    RAISE(STATUS_INTERNAL, "cuBLASLt refuses every algorithm that it returned for a GEMM");
}

static void warn_wrong(const struct cuda_gemm *p, const struct candidate *c)
{
    log_warning("GEMM-PLANS",
                "an algorithm of cuBLASLt with the fused parts %d gives another result than the "
                "separate form, for the GEMM of [%" PRId64 ", %" PRId64 "]%s by [%" PRId64
                ", %" PRId64 "]%s; it is not used",
                c->fused, p->a.rows, p->a.columns, p->transpose_a ? "^T" : "", p->b.rows,
                p->b.columns, p->transpose_b ? "^T" : "");
}

/* Computes the expected results with operands that make every epilogue visible. */
static status prepare_comparison(const struct stopwatch *watch, struct gemm_plan *plan,
                                 struct cuda_gemm *p, const struct candidate *candidates, int count,
                                 struct results *results)
{
    bool filled = false;
    TRY(compute_expected(watch, plan, p, candidates, count, results->expected));
    TRY(gemm_check_fill_input(watch->k, p, results->expected, &results->changes, &filled));
    if (filled) {
        TRY(compute_expected(watch, plan, p, candidates, count, results->expected));
    }
    if (p->bias.data == NULL && !p->derivative) {
        return STATUS_OK;
    }
    TRY(gemm_check_fill_epilogue(watch->k, p, results->expected, &results->changes));
    return compute_expected(watch, plan, p, candidates, count, results->expected);
}

/* Measures all candidates and checks their results. Removes wrong and refused candidates, except
 * for the default, which is the first. */
static status measure_all(const struct stopwatch *watch, struct gemm_plan *plan,
                          const struct cuda_gemm *p, const struct results *results,
                          struct candidate *candidates, int *count)
{
    int kept = 0;
    for (int i = 0; i < *count; i++) {
        struct candidate c = candidates[i];
        TRY(gemm_check_clear(watch->k, p));
        TRY(measure_candidate(watch, plan, p, &c, 2));
        TRY(gemm_check_read(watch->k, p, results->got));
        bool refused = !isfinite(c.seconds);
        c.wrong = !refused && !gemm_check_agrees(p, results->expected, results->got);
        if (c.wrong) {
            warn_wrong(p, &c);
        }
        if (i == 0 || (!refused && !c.wrong)) {
            candidates[kept++] = c;
        }
    }
    *count = kept;
    return STATUS_OK;
}

static status choose_fastest(const struct stopwatch *watch, struct gemm_plan *plan,
                             struct cuda_gemm *operands, struct results *results)
{
    struct candidate candidates[CANDIDATES_MAX];
    int count = 0;
    TRY(list_candidates(cuda_get_state(watch->k)->gemm, plan, operands, candidates, &count));
    REQUIRE(count > 0, STATUS_INTERNAL,
            "cuBLASLt returned no algorithm for a GEMM that it supported before");
    TRY(prepare_comparison(watch, plan, operands, candidates, count, results));
    TRY(measure_all(watch, plan, operands, results, candidates, &count));
    sort_tail(candidates, count);
    int finalists = count < FINALISTS ? count : FINALISTS;
    int best = candidates[0].wrong && count > 1 ? 1 : 0;
    for (int i = 0; i < finalists; i++) {
        candidates[i].seconds = INFINITY;
    }
    for (int i = 0; i < finalists * ROUNDS; i++) {
        TRY(measure_candidate(watch, plan, operands, &candidates[i % finalists], 1));
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

/* Allocates the results and chooses. */
static status choose_right(const struct stopwatch *watch, struct gemm_plan *plan)
{
    struct cuda_gemm operands = plan->operands;
    operands.accumulate = false;
    operands.sums.overwrite = true;
    int64_t count = gemm_check_elems(&operands);
    struct results results = {0};
    status result = ALLOCATE(results.expected, count, "tuning a GEMM");
    KEEP_FIRST(result, ALLOCATE(results.got, count, "tuning a GEMM"));
    if (result == STATUS_OK && gemm_plan_is_fp8(&plan->key)) {
        result = gemm_check_fill_fp8(watch->k, &operands);
    }
    if (result == STATUS_OK) {
        result = choose_fastest(watch, plan, &operands, &results);
    }
    status restored = gemm_check_restore(watch->k, &results.changes);
    free(results.expected);
    free(results.got);
    return result != STATUS_OK ? result : restored;
}

status gemm_tune_plan(struct kernels *k, struct gemm_plan *plan)
{
    struct stopwatch watch = {.k = k};
    WATCH_CHECK(cudaEventCreateWithFlags(&watch.begin, cudaEventDefault));
    cudaError_t error = cudaEventCreateWithFlags(&watch.end, cudaEventDefault);
    status result = error == cudaSuccess ? choose_right(&watch, plan)
                                         : RAISE_STATUS(STATUS_INTERNAL, "tuning a GEMM: %s",
                                                        cudaGetErrorString(error));
    (void)cudaEventDestroy(watch.begin);
    if (error == cudaSuccess) {
        (void)cudaEventDestroy(watch.end);
    }
    return result;
}
