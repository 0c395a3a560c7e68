/* Sums over flat slices, in double precision: the blocks of reduce.h, each one thread's. */
#include "kernels/cpu/reduce.h"

#include "kernels/cpu/cpu.h"

static inline __attribute__((always_inline)) double sum(struct kernels *k, const float *x,
                                                        int64_t count, enum reduce_kind kind)
{
    double parts[REDUCE_BLOCKS_MAX];
    int64_t size = reduce_block_elems(count), blocks = (count + size - 1) / size;
#pragma omp parallel for num_threads(k->threads) schedule(static) if (blocks > 1)
    for (int64_t i = 0; i < blocks; i++) {
        int64_t left = count - i * size;
        parts[i] = reduce_block(x + i * size, left < size ? left : size, kind);
    }
    double total = 0;
    for (int64_t i = 0; i < blocks; i++) {
        total += parts[i];
    }
    return total;
}

status CPU(sum_of_squares)(struct kernels *k, double *out, const float *x, int64_t count)
{
    *out = sum(k, x, count, REDUCE_SQUARES);
    return STATUS_OK;
}

status CPU(floats_add)(struct kernels *k, float *to, const float *from, int64_t count)
{
#pragma omp parallel for num_threads(k->threads) schedule(static) if (count > (1 << 16))
    for (int64_t i = 0; i < count; i++) {
        to[i] += from[i];
    }
    return STATUS_OK;
}

status CPU(tally_rows)(struct kernels *k, double *out, const struct tally *t, int64_t rows)
{
    int64_t counted = 0, right = 0;
    double entropy = 0;
    for (int64_t i = 0; i < rows; i++) {
        bool counts = t->targets[i] != t->ignored;
        counted += counts;
        right += counts && t->best != NULL && t->best[i] == t->targets[i];
        entropy += counts && t->entropies != NULL ? (double)t->entropies[i] : 0;
    }
    out[0] = sum(k, t->losses, rows, REDUCE_PLAIN);
    out[1] = (double)counted;
    if (t->best != NULL) {
        out[2] = (double)right;
    }
    if (t->entropies != NULL) {
        out[3] = entropy;
    }
    return STATUS_OK;
}
