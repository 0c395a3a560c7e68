/* SwiGLU and GEGLU of the output of one GEMM. The first half of its columns is the gate g, the
 * second half is the up projection u.
 *
 *   y = act(g) u,  with act(g) = g s(g) and the sigmoid s, or GELU
 *   du = dy act(g),  dg = dy u act'(g)
 *
 * Memory bandwidth limits the speed. The threads divide the rows.
 *
 * Source    Shazeer 2020, arXiv:2002.05202 */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"

enum gate { GATE_SILU, GATE_GELU_TANH, GATE_GELU_ERF };

/* Calls a function for each dtype and gate, so that the compiler specializes it. */
#define SPECIALIZE(function, dtype, gate, ...)                                                     \
    switch ((gate) + 3 * ((dtype) != DTYPE_F32)) {                                                 \
    case GATE_SILU:                                                                                \
        function(__VA_ARGS__, DTYPE_F32, GATE_SILU);                                               \
        break;                                                                                     \
    case GATE_GELU_TANH:                                                                           \
        function(__VA_ARGS__, DTYPE_F32, GATE_GELU_TANH);                                          \
        break;                                                                                     \
    case GATE_GELU_ERF:                                                                            \
        function(__VA_ARGS__, DTYPE_F32, GATE_GELU_ERF);                                           \
        break;                                                                                     \
    case 3 + GATE_SILU:                                                                            \
        function(__VA_ARGS__, DTYPE_BF16, GATE_SILU);                                              \
        break;                                                                                     \
    case 3 + GATE_GELU_TANH:                                                                       \
        function(__VA_ARGS__, DTYPE_BF16, GATE_GELU_TANH);                                         \
        break;                                                                                     \
    default:                                                                                       \
        function(__VA_ARGS__, DTYPE_BF16, GATE_GELU_ERF);                                          \
    }

/* Returns x act(g). Another order of the three factors of SiLU would change the bits of a run. */
CPU_INLINE vector multiply_by_gate(vector x, vector g, enum gate gate)
{
    return gate == GATE_SILU        ? x * g * math_sigmoid(g)
           : gate == GATE_GELU_TANH ? x * math_gelu_tanh(g)
                                    : x * math_gelu_erf(g);
}

CPU_INLINE vector compute_derivative(vector g, enum gate gate)
{
    if (gate == GATE_SILU) {
        vector s = math_sigmoid(g);
        return s * vector_fma(g, 1.0f - s, vector_set(1.0f));
    }
    return gate == GATE_GELU_TANH ? math_gelu_tanh_derivative(g) : math_gelu_erf_derivative(g);
}

CPU_INLINE void run_forward_row(struct tensor y, struct tensor gate_up, int64_t n, enum dtype dtype,
                                enum gate gate)
{
    int64_t gates = n * gate_up.stride, ups = gates + y.columns;
    for (int64_t c = 0; c < y.columns; c += VECTOR_LANES) {
        int64_t count = y.columns - c;
        vector g = vector_get(gate_up.data, dtype, gates + c, count);
        vector up = vector_get(gate_up.data, dtype, ups + c, count);
        vector_put(y.data, dtype, n * y.stride + c,
                   multiply_by_gate(vector_set(1.0f), g, gate) * up, count);
    }
}

static status run_forward(struct kernels *k, struct tensor y, struct tensor gate_up, enum gate gate)
{
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t n = 0; n < y.rows; n++) {
        SPECIALIZE(run_forward_row, y.dtype, gate, y, gate_up, n)
    }
    return STATUS_OK;
}

CPU_INLINE void run_backward_row(struct tensor d_gate_up, struct tensor dy, struct tensor gate_up,
                                 int64_t n, enum dtype dtype, enum gate gate)
{
    int64_t gates = n * gate_up.stride, ups = gates + dy.columns;
    int64_t d_gates = n * d_gate_up.stride, d_ups = d_gates + dy.columns;
    for (int64_t c = 0; c < dy.columns; c += VECTOR_LANES) {
        int64_t count = dy.columns - c;
        vector g = vector_get(gate_up.data, dtype, gates + c, count);
        vector up = vector_get(gate_up.data, dtype, ups + c, count);
        vector d = vector_get(dy.data, dtype, n * dy.stride + c, count);
        vector_put(d_gate_up.data, dtype, d_ups + c, multiply_by_gate(d, g, gate), count);
        vector_put(d_gate_up.data, dtype, d_gates + c, d * up * compute_derivative(g, gate), count);
    }
}

static status run_backward(struct kernels *k, struct tensor d_gate_up, struct tensor dy,
                           struct tensor gate_up, enum gate gate)
{
#pragma omp parallel for num_threads(k->threads) schedule(static)
    for (int64_t n = 0; n < dy.rows; n++) {
        SPECIALIZE(run_backward_row, dy.dtype, gate, d_gate_up, dy, gate_up, n)
    }
    return STATUS_OK;
}

static enum gate get_gelu(enum activation act)
{
    return act == ACTIVATION_GELU_TANH ? GATE_GELU_TANH : GATE_GELU_ERF;
}

status CPU(swiglu_forward)(struct kernels *k, struct tensor y, struct tensor gate_up)
{
    return run_forward(k, y, gate_up, GATE_SILU);
}

status CPU(swiglu_backward)(struct kernels *k, struct tensor d_gate_up, struct tensor dy,
                            struct tensor gate_up)
{
    return run_backward(k, d_gate_up, dy, gate_up, GATE_SILU);
}

status CPU(geglu_forward)(struct kernels *k, struct tensor y, struct tensor gate_up,
                          enum activation act)
{
    return run_forward(k, y, gate_up, get_gelu(act));
}

status CPU(geglu_backward)(struct kernels *k, struct tensor d_gate_up, struct tensor dy,
                           struct tensor gate_up, enum activation act)
{
    return run_backward(k, d_gate_up, dy, gate_up, get_gelu(act));
}
