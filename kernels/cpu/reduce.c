/* Sums over flat slices, in double precision.
 *
 * The slice is cut into at most BLOCKS_MAX blocks whose size depends on its length alone; each is
 * summed in several lanes, the lanes in order, the blocks in order: the same bits at any number of
 * threads. A float's square and the sum of 2^64 of them fit into a double, so only NaN and infinity
 * in the slice come out as such. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/vector.h"

enum { BLOCKS_MAX = 1024, BLOCK_MIN = 16384, LANES = 32 };

enum sum_kind { SUM_PLAIN, SUM_SQUARES };

static inline __attribute__((always_inline)) double block_sum(const float *x, int64_t count,
                                                              enum sum_kind kind)
{
    double lanes[LANES] = {0};
    int64_t whole = count / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            double value = x[i + j];
            lanes[j] += kind == SUM_SQUARES ? value * value : value;
        }
    }
    for (int64_t i = whole; i < count; i++) {
        double value = x[i];
        lanes[i - whole] += kind == SUM_SQUARES ? value * value : value;
    }
    double sum = 0;
    for (int j = 0; j < LANES; j++) {
        sum += lanes[j];
    }
    return sum;
}

static inline __attribute__((always_inline)) double sum(struct kernels *k, const float *x,
                                                        int64_t count, enum sum_kind kind)
{
    double parts[BLOCKS_MAX];
    int64_t even = (count + BLOCKS_MAX - 1) / BLOCKS_MAX;
    int64_t size = even > BLOCK_MIN ? (even + 1023) / 1024 * 1024 : BLOCK_MIN;
    int64_t blocks = (count + size - 1) / size;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (blocks > 1)
    for (int64_t i = 0; i < blocks; i++) {
        int64_t left = count - i * size;
        parts[i] = block_sum(x + i * size, left < size ? left : size, kind);
    }
    double total = 0;
    for (int64_t i = 0; i < blocks; i++) {
        total += parts[i];
    }
    return total;
}

status CPU(sum_of_squares)(struct kernels *k, double *out, const float *x, int64_t count)
{
    *out = sum(k, x, count, SUM_SQUARES);
    return STATUS_OK;
}

status CPU(sum_of_floats)(struct kernels *k, double *out, const float *x, int64_t count)
{
    *out = sum(k, x, count, SUM_PLAIN);
    return STATUS_OK;
}
