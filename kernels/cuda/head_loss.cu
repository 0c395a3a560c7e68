/* The loss of a fine-tuning head, in double precision. head_loss_terms.h defines the formulas. No
 * product is fused with a sum (host_device_multiply), so only exp, log and log1p can differ from
 * the CPU.
 *
 * Order     the lanes of a warp compute the exponentials, and each lane adds all of them in the
 *           order of the outputs. The first kernel writes HEAD_LOSS_SUMS terms for each loss to
 *           scratch memory. In the second kernel, thread c adds the terms of column c in the order
 *           of the losses
 * Launch    softmax: a warp for a row or an example, block 128, 1 KiB of shared memory. square and
 *           pair: a thread for an example, block 128. add_terms: one block of 256 threads, 12 KiB
 *           of shared memory */
#include "kernels/cuda/operation.cuh"
#include "kernels/cuda/ordered_sums.cuh"

#include "kernels/head_loss_terms.h"

enum { LOSS_THREADS = 128, LOSS_WARPS = LOSS_THREADS / 32 };

struct largest {
    float value;
    int64_t index;
};

/* Returns the first of the largest outputs. If an output is NaN, the result can be any output; the
 * loss is then NaN. */
GPU_INLINE struct largest find_largest(const struct head_loss_softmax &s, int lane)
{
    struct largest found = {-INFINITY, s.count};
    for (int64_t i = lane; i < s.count; i += 32) {
        float x = s.outputs[i * s.stride];
        if (x > found.value || found.index == s.count) {
            found = {x, i};
        }
    }
#pragma unroll
    for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2) {
        float value = __shfl_xor_sync(~0u, found.value, lane_mask);
        int64_t index = __shfl_xor_sync(~0u, found.index, lane_mask);
        if (value > found.value || (value == found.value && index < found.index)) {
            found = {value, index};
        }
    }
    return found;
}

/* Writes the gradients, and returns -log p(label) to all lanes of a warp. shared: 32 doubles. */
GPU_INLINE double compute_softmax(const struct head_loss_softmax &s, int lane, double *shared,
                                  bool *correct)
{
    const struct largest best = find_largest(s, lane);
    double maximum = static_cast<double>(best.value), sum = 0;
    for (int64_t first = 0; first < s.count; first += 32) {
        int64_t i = first + lane;
        double exponential = i < s.count ? head_loss_exponential(&s, i, maximum) : 0.0;
        sum = add_lanes(sum, exponential, lane, shared);
    }
    for (int64_t i = lane; i < s.count; i += 32) {
        head_loss_set_gradient(&s, i, maximum, sum);
    }
    *correct = best.index == s.label;
    return head_loss_softmax_loss(&s, maximum, sum);
}

__global__ void __launch_bounds__(LOSS_THREADS)
    compute_row_losses(struct head_loss_terms *terms, float *gradients, const float *outputs,
                       int64_t columns, const struct head_loss h)
{
    GPU_SHARED(double, shared, LOSS_THREADS);
    int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    int64_t row = static_cast<int64_t>(blockIdx.x) * LOSS_WARPS + warp;
    if (row >= h.examples) {
        return;
    }
    struct head_loss_terms term = {};
    const struct head_loss_softmax s = {
        outputs + row * columns, gradients + row * columns, columns, 1, h.labels[row], 1.0};
    if (h.labels[row] == h.ignored) {
        for (int64_t i = lane; i < columns; i += 32) {
            s.gradients[i] = 0.0f;
        }
    } else {
        bool correct;
        term.values[HEAD_LOSS_VALUE] = compute_softmax(s, lane, shared + 32 * warp, &correct);
        term.values[HEAD_LOSS_COUNT] = 1;
        term.values[HEAD_LOSS_CORRECT] = correct;
    }
    if (lane == 0) {
        terms[row] = term;
    }
}

/* Each example has one term for each column. The term of the last column counts the example. */
__global__ void __launch_bounds__(LOSS_THREADS)
    compute_column_losses(struct head_loss_terms *terms, float *gradients, const float *outputs,
                          int64_t columns, const struct head_loss h)
{
    GPU_SHARED(double, shared, LOSS_THREADS);
    int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    int64_t example = static_cast<int64_t>(blockIdx.x) * LOSS_WARPS + warp;
    if (example >= h.examples) {
        return;
    }
    int64_t first = h.example_rows[example], count = h.example_rows[example + 1] - first;
    bool all_correct = true;
    for (int64_t c = 0; c < columns; c++) {
        int64_t offset = first * columns + c, label = h.labels[example * columns + c];
        const double number = static_cast<double>(columns);
        const struct head_loss_softmax s = {
            outputs + offset, gradients + offset, count, columns, label, 1.0 / number};
        struct head_loss_terms term = {};
        bool correct, is_last = c == columns - 1;
        term.values[HEAD_LOSS_VALUE] =
            compute_softmax(s, lane, shared + 32 * warp, &correct) / number;
        all_correct = all_correct && correct;
        term.values[HEAD_LOSS_COUNT] = is_last;
        term.values[HEAD_LOSS_CORRECT] = is_last && all_correct;
        if (lane == 0) {
            terms[example * columns + c] = term;
        }
    }
}

__global__ void __launch_bounds__(LOSS_THREADS)
    compute_squares(struct head_loss_terms *terms, float *gradients, const float *outputs,
                    const struct head_loss h)
{
    int64_t i = static_cast<int64_t>(blockIdx.x) * LOSS_THREADS + threadIdx.x;
    if (i < h.examples) {
        terms[i] = head_loss_square_terms(gradients + i, outputs[i], h.targets[i]);
    }
}

__global__ void __launch_bounds__(LOSS_THREADS)
    compute_pairs(struct head_loss_terms *terms, float *gradients, const float *outputs,
                  const struct head_loss h)
{
    int64_t i = static_cast<int64_t>(blockIdx.x) * LOSS_THREADS + threadIdx.x;
    if (i < h.examples) {
        terms[i] = head_loss_pair_terms(gradients + 2 * i, outputs + 2 * i, h.center);
    }
}

__global__ void __launch_bounds__(ADD_THREADS)
    add_terms(double *out, const double *terms, int64_t rows)
{
    GPU_SHARED(double, shared, ADD_ROWS *HEAD_LOSS_SUMS);
    double sum = add_columns<HEAD_LOSS_SUMS>(terms, rows, shared);
    if (threadIdx.x < HEAD_LOSS_SUMS) {
        out[threadIdx.x] = sum;
    }
}

/* ---- host ---- */

static status launch_losses(struct kernels *k, struct head_loss_terms *terms,
                            struct tensor gradients, struct tensor outputs,
                            const struct head_loss *h)
{
    float *to = static_cast<float *>(gradients.data);
    const float *from = static_cast<const float *>(outputs.data);
    const unsigned warps = count_blocks(h->examples, LOSS_WARPS),
                   threads = count_blocks(h->examples, LOSS_THREADS);
    switch (h->kind) {
    case HEAD_LOSS_ROWS:
        LAUNCH(k, compute_row_losses, warps, LOSS_THREADS, 0, terms, to, from, outputs.columns, *h);
        break;
    case HEAD_LOSS_COLUMNS:
        LAUNCH(k, compute_column_losses, warps, LOSS_THREADS, 0, terms, to, from, outputs.columns,
               *h);
        break;
    case HEAD_LOSS_SQUARES:
        LAUNCH(k, compute_squares, threads, LOSS_THREADS, 0, terms, to, from, *h);
        break;
    case HEAD_LOSS_PAIRS:
        LAUNCH(k, compute_pairs, threads, LOSS_THREADS, 0, terms, to, from, *h);
        break;
    }
    return STATUS_OK;
}

extern "C" status cuda_head_loss_run(struct kernels *k, double *out, struct tensor gradients,
                                     struct tensor outputs, const struct head_loss *h)
{
    const int64_t count =
        h->kind == HEAD_LOSS_COLUMNS ? h->examples * outputs.columns : h->examples;
    void *terms;
    TRY(cuda_take_scratch(k, cuda_head_loss_bytes(count), &terms));
    if (count > 0) {
        TRY(launch_losses(k, static_cast<struct head_loss_terms *>(terms), gradients, outputs, h));
    }
    LAUNCH(k, add_terms, 1, ADD_THREADS, 0, out, static_cast<const double *>(terms), count);
    return STATUS_OK;
}
