/* Dropout factors of consecutive elements (kernels/dropout.h), a vector at a time.
 *
 * On every instruction set, the factors have the same bits as with base/random.h; a test compares
 * them. A vector of Philox blocks gives the random bits of PHILOX_HALVES elements. */
#pragma once

#include "kernels/cpu/philox.h"
#include "kernels/kernels.h"

/* Random bits of the elements from `first`, a multiple of eight, on. */
struct dropout_row {
    uint64_t key, first;
    int at; /* position of the next element in `bits` */
    int32_t threshold;
    float scale;
    uint16_t bits[PHILOX_HALVES];
};

/* dropout_active - return whether any element can be dropped. */
static inline bool dropout_active(struct dropout dropout)
{
    return dropout.probability > 0;
}

/* dropout_begin - set the element at which dropout_next starts. Only if dropout_active. */
static inline void dropout_begin(struct dropout_row *row, struct dropout dropout, int64_t element)
{
    row->key = dropout.key;
    row->first = (uint64_t)(dropout.first + element) - PHILOX_HALVES;
    row->at = PHILOX_HALVES;
    row->threshold = dropout_threshold(dropout.probability);
    row->scale = dropout_scale(dropout.probability);
}

/* dropout_refill - generate the bits from the block of the next element on. */
static __attribute__((noinline)) void dropout_refill(struct dropout_row *row)
{
    uint64_t next = row->first + (uint64_t)row->at;
    row->at = (int)(next % 8);
    row->first = next - (uint64_t)row->at;
    philox_fill_halves(row->bits, row->key, row->first / 8);
}

/* dropout_next - compute the factors, 0 or 65536 / (65536 - threshold), of the next elements. */
static inline vector dropout_next(struct dropout_row *row)
{
    if (row->at > PHILOX_HALVES - VECTOR_LANES) {
        dropout_refill(row);
    }
    vector_bits bits =
        __builtin_convertvector(vector_load_halves(row->bits + row->at), vector_bits);
    row->at += VECTOR_LANES;
    return (vector)((vector_bits)vector_set(row->scale) & (bits >= row->threshold));
}
