/* The losses of a whole batch of preference pairs, in double precision. preference_terms.h and
 * preference_batch_terms.h define the formulas.
 *
 * Order     the sorted position of a value is the number of smaller values, and of equal values of
 *           earlier pairs. A sort of N values takes N^2 comparisons. A pair has one value of each
 *           kind, so no two threads add to the same element
 * Launch    store_pairs: a thread for a response, block 256. run_terms: one block of 256 threads,
 *           8 bytes of shared memory */
#include "kernels/cuda/operation.cuh"

#include "kernels/preference_batch_terms.h"

enum { STORE_THREADS = 256, BATCH_THREADS = 256 };

__global__ void __launch_bounds__(STORE_THREADS)
    store_pairs(const struct preference_batch b, const double *logps,
                const struct preference_rows rows, int64_t first)
{
    int64_t s = static_cast<int64_t>(blockIdx.x) * STORE_THREADS + threadIdx.x;
    if (s < RESPONSES * rows.pairs) {
        int64_t i = s / RESPONSES;
        preference_set_response(&b.pairs[(first + i) % b.size], &rows, i,
                                static_cast<int>(s % RESPONSES), logps[s]);
    }
}

/* Sorts `count` values. */
GPU_INLINE void sort_values(struct preference_ranked *sorted,
                            const struct preference_ranked *values, int64_t count)
{
    for (int64_t i = threadIdx.x; i < count; i += BATCH_THREADS) {
        const struct preference_ranked own = values[i];
        int64_t rank = 0;
        for (int64_t j = 0; j < count; j++) {
            rank += preference_is_before(&values[j], &own) ? 1 : 0;
        }
        sorted[rank] = own;
    }
}

/* Adds the loss aot or aot_unpaired. */
GPU_INLINE void add_aot(const struct preference_batch &b, int64_t count,
                        const struct preference_settings &s, const struct preference_term *term)
{
    bool margins = term->loss == PREFERENCE_AOT;
    struct preference_ranked *high = b.ranked, *low = high + count;
    struct preference_ranked *sorted_high = low + count, *sorted_low = sorted_high + count;
    for (int64_t i = threadIdx.x; i < count; i += BATCH_THREADS) {
        const struct preference_values v = preference_get_values(&b.pairs[i], margins);
        high[i].value = v.high;
        low[i].value = v.low;
        high[i].pair = low[i].pair = i;
    }
    __syncthreads();
    sort_values(sorted_high, high, count);
    sort_values(sorted_low, low, count);
    __syncthreads();
    for (int64_t i = threadIdx.x; i < count; i += BATCH_THREADS) {
        preference_add_sorted(&s, term, &sorted_high[i], &sorted_low[i], margins, b.gradients);
    }
}

/* Adds a loss with a separate gradient for each pair. tokens: of all chosen responses. */
GPU_INLINE void add_pairs(const struct preference_batch &b, int64_t count,
                          const struct preference_settings &s, const struct preference_term *term,
                          double tokens)
{
    for (int64_t i = threadIdx.x; i < count; i += BATCH_THREADS) {
        if (term->loss == PREFERENCE_SFT) {
            preference_add_sft(term, &b.pairs[i], count, tokens, &b.gradients[i]);
        } else {
            preference_add_term(&s, term, &b.pairs[i], &b.gradients[i]);
        }
    }
}

/* Returns the tokens of all chosen responses to all threads. Integers have the same sum in any
 * order. */
GPU_INLINE double count_chosen_tokens(const struct preference_batch &b, int64_t count,
                                      double *shared)
{
    if (threadIdx.x == 0) {
        double tokens = 0;
        for (int64_t i = 0; i < count; i++) {
            tokens += static_cast<double>(b.pairs[i].tokens[CHOSEN]);
        }
        shared[0] = tokens;
    }
    __syncthreads();
    return shared[0];
}

__global__ void __launch_bounds__(BATCH_THREADS)
    run_terms(const struct preference_batch b, int64_t count,
              const struct preference_settings settings)
{
    GPU_SHARED(double, shared, 1);
    const double tokens = count_chosen_tokens(b, count, shared);
    for (int64_t i = threadIdx.x; i < count; i += BATCH_THREADS) {
        const struct preference_gradient none = {0, {0, 0}};
        b.gradients[i] = none;
    }
    for (int t = 0; t < settings.terms; t++) {
        const struct preference_term *term = &settings.term[t];
        __syncthreads();
        if (term->loss == PREFERENCE_AOT || term->loss == PREFERENCE_AOT_UNPAIRED) {
            add_aot(b, count, settings, term);
        } else {
            add_pairs(b, count, settings, term, tokens);
        }
    }
}

/* ---- host ---- */

extern "C" status cuda_preference_batch_store(struct kernels *k,
                                              const struct preference_batch *batch,
                                              const double *logps,
                                              const struct preference_rows *rows, int64_t first)
{
    if (rows->pairs > 0) {
        LAUNCH(k, store_pairs, count_blocks(RESPONSES * rows->pairs, STORE_THREADS), STORE_THREADS,
               0, *batch, logps, *rows, first);
    }
    return STATUS_OK;
}

extern "C" status cuda_preference_batch_run(struct kernels *k, const struct preference_batch *batch,
                                            int64_t count,
                                            const struct preference_settings *settings)
{
    LAUNCH(k, run_terms, 1, BATCH_THREADS, 0, *batch, count, *settings);
    return STATUS_OK;
}
