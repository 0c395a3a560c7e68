/* Sums over flat slices in double precision, in the blocks of reduce.h. Each block is summed by
 * one thread. */
#include "kernels/cpu/reduce.h"

#include <math.h>

#include "base/number.h"
#include "kernels/cpu/cpu.h"

CPU_INLINE double sum_blocks(struct kernels *k, const float *x, int64_t count,
                             enum reduce_kind kind)
{
    double block_sums[REDUCE_BLOCKS_MAX];
    int64_t size = reduce_block_elems(count), blocks = number_divide_up(count, size);
#pragma omp parallel for num_threads(k->threads) schedule(static) if (blocks > 1)
    for (int64_t i = 0; i < blocks; i++) {
        int64_t left = count - i * size;
        block_sums[i] = reduce_block(x + i * size, number_min(left, size), kind);
    }
    double total = 0;
    for (int64_t i = 0; i < blocks; i++) {
        total += block_sums[i];
    }
    return total;
}

status CPU(op_sum_of_squares)(struct kernels *k, double *out, const float *x, int64_t count)
{
    *out = sum_blocks(k, x, count, REDUCE_SQUARES);
    return STATUS_OK;
}

status CPU(control_gradient_squares)(struct kernels *k, double *out, struct not_finite *found,
                                     const float *x, const struct gradient_parts *p)
{
    for (int64_t i = 0; i < p->count; i++) {
        const struct gradient_part *part = &p->parts[i];
        const float *from = x + part->offset;
        out[i] = sum_blocks(k, from, part->count, REDUCE_SQUARES);
        bool search = found != NULL && !isfinite(out[i]) && found->number == 0;
        for (int64_t j = 0; j < part->count && search; j++) {
            if (!isfinite(from[j])) {
                *found = (struct not_finite){part->first + j + 1, from[j]};
                search = false;
            }
        }
    }
    return STATUS_OK;
}

status CPU(op_add)(struct kernels *k, float *to, const float *from, int64_t count)
{
#pragma omp parallel for num_threads(k->threads) schedule(static) if (count > (1 << 16))
    for (int64_t i = 0; i < count; i++) {
        to[i] += from[i];
    }
    return STATUS_OK;
}

status CPU(op_loss_stats)(struct kernels *k, double *out, const struct loss_rows *t, int64_t rows)
{
    int64_t counted = 0, correct = 0;
    double entropy = 0;
    for (int64_t i = 0; i < rows; i++) {
        bool is_counted = t->targets[i] != t->ignored;
        counted += is_counted;
        correct += is_counted && t->argmax != NULL && t->argmax[i] == t->targets[i];
        entropy += is_counted && t->entropies != NULL ? (double)t->entropies[i] : 0;
    }
    out[0] = sum_blocks(k, t->losses, rows, REDUCE_PLAIN);
    out[1] = (double)counted;
    if (t->argmax != NULL) {
        out[2] = (double)correct;
    }
    if (t->entropies != NULL) {
        out[3] = entropy;
    }
    return STATUS_OK;
}
