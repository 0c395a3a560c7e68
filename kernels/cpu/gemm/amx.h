/* Blocks of bf16 GEMMs with AMX (Intel Xeon since Sapphire Rapids).
 *
 *   block   AMX_SIDE x AMX_SIDE elements of the output, in f32
 *   panel   AMX_SIDE rows of a, or AMX_SIDE columns of b, copied in the order in which the
 *           instructions read them. The inner size is rounded up to a multiple of AMX_INNER
 *
 * Numerics  The inner size is processed in steps of AMX_INNER. For each step, the instruction
 *           adds the products of the even indexes, adds the products of the odd indexes, adds
 *           these two sums, and adds the result to the block, all in f32. The block is initialized
 *           with the start values. The old value of a bf16 output is added last. This instruction
 *           and the rounding to bf16 treat numbers below 2^-126 as
 *           zero (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, TDPBF16PS
 *           and VCVTNE2PS2BF16)
 *
 * Calls     amx_is_available; amx_begin on a thread, then amx_pack_a, amx_pack_b, amx_multiply and
 *           amx_store, then amx_end */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/number.h"
#include "base/tensor.h"

enum { AMX_SIDE = 32, AMX_INNER = 32 };

/* amx_is_available - return whether the processor has AMX for bf16 and the operating system permits
 * it. */
bool amx_is_available(void);

/* amx_begin - configure the tile registers of the calling thread.
 *
 * Each of the eight registers gets 16 rows of 64 bytes. Attention also uses this configuration
 * (attention/attention_gemm.h). */
void amx_begin(void);

/* amx_end - release the tile registers, so that the operating system need not save them. */
void amx_end(void);

/* A part of a matrix that is copied to panels. */
struct amx_source {
    const bf16 *from; /* the first element */
    int64_t stride;   /* elements between two rows of the matrix */
    bool transposed;  /* the inner index selects the row of the matrix */
    int64_t count;    /* of the rows of a or the columns of b. The rest of the last panel is zero */
    int64_t inner;
};

/* amx_panel_elems - return the number of elements of a panel. */
static inline int64_t amx_panel_elems(int64_t inner)
{
    return AMX_SIDE * number_round_up(inner, AMX_INNER);
}

/* amx_pack_a, amx_pack_b - copy panels, one after the other. `to` is aligned to 64 bytes. */
void amx_pack_a(bf16 *to, const struct amx_source *s);
void amx_pack_b(bf16 *to, const struct amx_source *s);

/* The first values of a block: values[row * stride + column]; values NULL: zeros. With stride 0 all
 * rows have the same values, for example a bias. */
struct amx_start {
    const float *values;
    int64_t stride;
};

/* amx_multiply - compute a block: c = start + a b. c may be the memory of the start values. */
void amx_multiply(float *c, int64_t stride, const bf16 *a, const bf16 *b, int64_t inner,
                  struct amx_start start);

/* amx_store - store rows x columns elements of a block in c as bf16. If `accumulate`, add the old
 * elements of c before rounding. The block has a stride of AMX_SIDE and is aligned to 64 bytes. */
void amx_store(bf16 *c, int64_t stride, const float *block, int64_t rows, int64_t columns,
               bool accumulate);
