/* SwiGLU of the output of one GEMM. The first half of its columns is the gate g, the second half is
 * the up projection u.
 *
 *   y = g s(g) u,  with the sigmoid s
 *   du = dy g s(g),  dg = dy u s(g) (1 + g (1 - s(g)))
 *
 * Memory bandwidth limits the speed. The threads divide the rows.
 *
 * Source    Shazeer 2020, arXiv:2002.05202 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"

#define INLINE static inline __attribute__((always_inline))

INLINE void run_forward_row(struct tensor y, struct tensor gate_up, enum dtype dtype, int64_t n)
{
    int64_t gates = n * gate_up.stride, ups = gates + y.columns;
    for (int64_t c = 0; c < y.columns; c += VECTOR_LANES) {
        int64_t count = y.columns - c;
        vector gate = vector_get(gate_up.data, dtype, gates + c, count);
        vector up = vector_get(gate_up.data, dtype, ups + c, count);
        vector_put(y.data, dtype, n * y.stride + c, gate * math_sigmoid(gate) * up, count);
    }
}

status CPU(swiglu_forward)(struct kernels *k, struct tensor y, struct tensor gate_up)
{
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t n = 0; n < y.rows; n++) {
        if (y.dtype == DTYPE_F32) {
            run_forward_row(y, gate_up, DTYPE_F32, n);
        } else {
            run_forward_row(y, gate_up, DTYPE_BF16, n);
        }
    }
    return STATUS_OK;
}

INLINE void run_backward_row(struct tensor d_gate_up, struct tensor dy, struct tensor gate_up,
                             enum dtype dtype, int64_t n)
{
    int64_t gates = n * gate_up.stride, ups = gates + dy.columns;
    int64_t d_gates = n * d_gate_up.stride, d_ups = d_gates + dy.columns;
    for (int64_t c = 0; c < dy.columns; c += VECTOR_LANES) {
        int64_t count = dy.columns - c;
        vector gate = vector_get(gate_up.data, dtype, gates + c, count);
        vector up = vector_get(gate_up.data, dtype, ups + c, count);
        vector d = vector_get(dy.data, dtype, n * dy.stride + c, count);
        vector s = math_sigmoid(gate);
        vector_put(d_gate_up.data, dtype, d_ups + c, d * gate * s, count);
        vector slope = s * vector_fma(gate, 1.0f - s, vector_set(1.0f));
        vector_put(d_gate_up.data, dtype, d_gates + c, d * up * slope, count);
    }
}

status CPU(swiglu_backward)(struct kernels *k, struct tensor d_gate_up, struct tensor dy,
                            struct tensor gate_up)
{
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t n = 0; n < dy.rows; n++) {
        if (dy.dtype == DTYPE_F32) {
            run_backward_row(d_gate_up, dy, gate_up, DTYPE_F32, n);
        } else {
            run_backward_row(d_gate_up, dy, gate_up, DTYPE_BF16, n);
        }
    }
    return STATUS_OK;
}
