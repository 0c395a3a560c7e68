/* The losses of preference pairs, in double precision. preference_terms.h defines the formulas.
 *
 *   log p(response) = -sum of the losses of its tokens
 *   scale of a row  = -d loss / d log p of its response
 *
 * Order     each lane of a warp adds all losses of a response in their order. The first kernel
 *           writes PREFERENCE_PAIR_TERMS terms for each pair to scratch memory. In the second
 *           kernel, one thread for each sum adds its terms in the order of the pairs or of the
 *           tokens
 * Launch    compute_pairs: a warp for a pair, block 128, 1 KiB of shared memory. add_sums: one
 *           block of 256 threads, 14 KiB of shared memory */
#include "kernels/cuda/operation.cuh"
#include "kernels/cuda/ordered_sums.cuh"

#include "kernels/preference_terms.h"

enum { PAIR_THREADS = 128, PAIR_WARPS = PAIR_THREADS / 32 };

/* The terms of a token in the sums. */
enum { TOKEN_ENTROPY, TOKEN_LOGIT_CHOSEN, TOKEN_LOGIT_REJECTED, TOKEN_CORRECT, TOKEN_SUMS };

static_assert(static_cast<int>(PREFERENCE_PAIR_TERMS) <= 2 * 2 * HEAD_LOSS_SUMS,
              "a pair has two rows; the scratch memory holds two losses for each row");

/* Returns the log-probability of rows [first, end) to all lanes. shared: 32 doubles of the warp. */
GPU_INLINE double sum_logps(const float *losses, int64_t first, int64_t end, int lane,
                            double *shared)
{
    double sum = 0;
    for (; first < end; first += 32) {
        double loss = first + lane < end ? static_cast<double>(losses[first + lane]) : 0.0;
        sum = add_lanes(sum, -loss, lane, shared);
    }
    return sum;
}

GPU_INLINE struct preference_pair load_pair(const struct preference_rows &r, int64_t i, int lane,
                                            double *shared)
{
    struct preference_pair pair;
#pragma unroll
    for (int a = 0; a < RESPONSES; a++) {
        int64_t s = RESPONSES * i + a;
        double logps = sum_logps(r.losses, r.first[s], r.first[s + 1], lane, shared);
        preference_set_response(&pair, &r, i, a, logps);
    }
    return pair;
}

__global__ void __launch_bounds__(PAIR_THREADS)
    compute_pairs(struct preference_pair_terms *terms, float *row_scales, double *logps,
                  const struct preference_rows r, const struct preference_settings settings)
{
    GPU_SHARED(double, shared, PAIR_THREADS);
    int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    int64_t i = static_cast<int64_t>(blockIdx.x) * PAIR_WARPS + warp;
    if (i >= r.pairs) {
        return;
    }
    const struct preference_pair pair = load_pair(r, i, lane, shared + 32 * warp);
    const struct preference_gradient g = preference_get_gradient(&r, &settings, &pair, i);
    int64_t middle = r.first[RESPONSES * i + 1], end = r.first[RESPONSES * i + 2];
    for (int64_t row = r.first[RESPONSES * i] + lane; row < end && row_scales != nullptr;
         row += 32) {
        row_scales[row] = static_cast<float>(-g.logps[row < middle ? CHOSEN : REJECTED]);
    }
    if (lane == 0) {
        terms[i] = preference_get_pair_terms(&pair, settings.beta, g.loss);
    }
    if (lane < RESPONSES && logps != nullptr) {
        logps[RESPONSES * i + lane] = pair.logps[lane];
    }
}

/* Adds the values of all tokens. Thread c returns the sum of column c of enum TOKEN_*. A column of
 * one response does not read the tokens of the other. */
GPU_INLINE double add_token_terms(const struct preference_rows &r, double *shared)
{
    double sum = 0;
    int column = static_cast<int>(threadIdx.x);
    for (int64_t s = 0; s < RESPONSES * r.pairs; s++) {
        bool is_chosen = s % RESPONSES == CHOSEN;
        bool reads = column == TOKEN_ENTROPY || (column == TOKEN_LOGIT_REJECTED && !is_chosen) ||
                     ((column == TOKEN_LOGIT_CHOSEN || column == TOKEN_CORRECT) && is_chosen);
        for (int64_t first = r.first[s], end = r.first[s + 1]; first < end; first += ADD_ROWS) {
            int count = count_rows(end - first);
            int64_t row = first + threadIdx.x;
            if (row < end) {
                double *values = shared + TOKEN_SUMS * threadIdx.x;
                values[TOKEN_ENTROPY] = static_cast<double>(r.entropies[row]);
                values[TOKEN_LOGIT_CHOSEN] = static_cast<double>(r.mean_logits[row]);
                values[TOKEN_LOGIT_REJECTED] = values[TOKEN_LOGIT_CHOSEN];
                values[TOKEN_CORRECT] = r.argmax[row] == r.targets[row];
            }
            __syncthreads();
            for (int i = 0; i < count && reads; i++) {
                sum += shared[TOKEN_SUMS * i + column];
            }
            __syncthreads();
        }
    }
    return sum;
}

/* Returns the number of tokens of all responses of one kind. */
GPU_INLINE double count_tokens(const struct preference_rows &r, int response)
{
    int64_t tokens = 0;
    for (int64_t s = response; s < RESPONSES * r.pairs; s += RESPONSES) {
        tokens += r.first[s + 1] - r.first[s];
    }
    return static_cast<double>(tokens);
}

__global__ void __launch_bounds__(ADD_THREADS)
    add_sums(double *sums, const double *terms, const struct preference_rows r)
{
    static const int token_sums[TOKEN_SUMS] = {
        PREFERENCE_SUM_ENTROPY,
        PREFERENCE_SUM_LOGITS_CHOSEN,
        PREFERENCE_SUM_LOGITS_REJECTED,
        PREFERENCE_SUM_CORRECT_TOKENS,
    };
    GPU_SHARED(double, shared, ADD_ROWS *PREFERENCE_PAIR_TERMS);
    double pair_sum = add_columns<PREFERENCE_PAIR_TERMS>(terms, r.pairs, shared);
    double token_sum = add_token_terms(r, shared);
    if (threadIdx.x < PREFERENCE_PAIR_TERMS) {
        sums[preference_pair_sum(static_cast<int>(threadIdx.x))] = pair_sum;
    }
    if (threadIdx.x < TOKEN_SUMS) {
        sums[token_sums[threadIdx.x]] = token_sum;
    }
    if (threadIdx.x < RESPONSES) {
        sums[PREFERENCE_SUM_TOKENS_CHOSEN + threadIdx.x] =
            count_tokens(r, static_cast<int>(threadIdx.x));
    }
    if (threadIdx.x == 0) {
        sums[PREFERENCE_SUM_PAIRS] = static_cast<double>(r.pairs);
        sums[PREFERENCE_SUM_TOKENS] = static_cast<double>(r.first[RESPONSES * r.pairs]);
    }
}

/* ---- host ---- */

extern "C" status cuda_preference_loss_run(struct kernels *k, double *sums, float *row_scales,
                                           double *logps, const struct preference_rows *rows,
                                           const struct preference_settings *settings)
{
    void *terms;
    TRY(cuda_take_scratch(
        k, static_cast<size_t>(rows->pairs) * sizeof(struct preference_pair_terms), &terms));
    if (rows->pairs > 0) {
        LAUNCH(k, compute_pairs, count_blocks(rows->pairs, PAIR_WARPS), PAIR_THREADS, 0,
               static_cast<struct preference_pair_terms *>(terms), row_scales, logps, *rows,
               *settings);
    }
    if (sums != NULL) {
        LAUNCH(k, add_sums, 1, ADD_THREADS, 0, sums, static_cast<const double *>(terms), *rows);
    }
    return STATUS_OK;
}
