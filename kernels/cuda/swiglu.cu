/* SwiGLU and GEGLU of the output of one GEMM. The first half of its columns is the gate g, the
 * second half is the up projection u.
 *
 *   y = act(g) u,  with act(g) = g s(g) and the sigmoid s, or GELU
 *   du = dy act(g),  dg = dy u act'(g)
 *
 * Launch    grid ceil(rows ceil(columns / 8) / 256); block 256; no shared memory. A thread handles
 *           eight elements of g and the same eight of u
 * Source    Shazeer 2020, arXiv:2002.05202 */
#include "kernels/cuda/activation.cuh"

enum { GATED_THREADS = 256 };

enum gate { GATE_SILU, GATE_GELU_TANH, GATE_GELU_ERF };

/* Returns act(g), in the precision of T; *derivative is its derivative. */
template <typename T, int GATE> GPU_INLINE float apply_gate(float g, float *derivative)
{
    if (GATE == GATE_GELU_TANH) {
        return fast_gelu_tanh(g, derivative);
    }
    if (GATE == GATE_GELU_ERF && sizeof(T) == sizeof(bf16)) {
        return fast_gelu_erf(g, derivative);
    }
    if (GATE == GATE_GELU_ERF) {
        float normal = 0.5f * erfcf(-SQRT_HALF * g);
        *derivative = normal + g * gpu_exp2(-0.5f * LOG2_E * g * g) * INVERSE_SQRT_2_PI;
        return g * normal;
    }
    float s = fast_sigmoid(g);
    *derivative = s * (1.0f + g * (1.0f - s));
    return g * s;
}

/* The arguments of a launch. Forward: out is y [rows, columns], and dy is absent. Backward: out is
 * d_gate_up [rows, 2 columns]. */
template <typename T> struct gated_task {
    matrix<T> out;
    matrix<const T> dy, gate_up;
    int64_t rows, columns;
};

template <typename T, bool ALIGNED, bool BACKWARD, int GATE>
__global__ void __launch_bounds__(GATED_THREADS) gated_rows(const gated_task<T> p)
{
    int64_t eights = (p.columns + LANE_ELEMS - 1) / LANE_ELEMS;
    int64_t i = static_cast<int64_t>(blockIdx.x) * GATED_THREADS + threadIdx.x;
    if (i >= p.rows * eights) {
        return;
    }
    int64_t n = i / eights, c = i % eights * LANE_ELEMS, left = p.columns - c;
    float gate[LANE_ELEMS], up[LANE_ELEMS], d[LANE_ELEMS];
    const T *in = p.gate_up.data + n * p.gate_up.stride + c;
    load_eight<ALIGNED>(gate, in, left);
    load_eight<ALIGNED>(up, in + p.columns, left);
    if (BACKWARD) {
        load_eight<ALIGNED>(d, p.dy.data + n * p.dy.stride + c, left);
    }
#pragma unroll
    for (int j = 0; j < LANE_ELEMS; j++) {
        float derivative, y = apply_gate<T, GATE>(gate[j], &derivative);
        if (BACKWARD) {
            gate[j] = d[j] * up[j] * derivative;
            up[j] = d[j] * y;
        } else {
            gate[j] = y * up[j];
        }
    }
    T *out = p.out.data + n * p.out.stride + c;
    store_eight<ALIGNED>(out, gate, left);
    if (BACKWARD) {
        store_eight<ALIGNED>(out + p.columns, up, left);
    }
}

/* ---- host ---- */

template <bool BACKWARD, int GATE>
static status launch_gated(struct kernels *k, struct tensor out, struct tensor dy,
                           struct tensor gate_up)
{
    int64_t columns = gate_up.columns / 2;
    unsigned blocks = count_blocks(out.rows * number_divide_up(columns, LANE_ELEMS), GATED_THREADS);
    if (blocks == 0) {
        return STATUS_OK;
    }
    bool aligned = operation_is_aligned(out) && operation_is_aligned(dy) &&
                   operation_is_aligned(gate_up) && columns % LANE_ELEMS == 0;
    FOR_TYPE(k->dtype, aligned, {
        gated_task<T> p = {make_matrix<T>(out), make_matrix<const T>(dy),
                           make_matrix<const T>(gate_up), out.rows, columns};
        LAUNCH(k, (gated_rows<T, ALIGNED, BACKWARD, GATE>), blocks, GATED_THREADS, 0, p);
    });
    return STATUS_OK;
}

extern "C" status cuda_swiglu_forward(struct kernels *k, struct tensor y, struct tensor gate_up)
{
    return launch_gated<false, GATE_SILU>(k, y, tensor_absent(), gate_up);
}

extern "C" status cuda_swiglu_backward(struct kernels *k, struct tensor d_gate_up, struct tensor dy,
                                       struct tensor gate_up)
{
    return launch_gated<true, GATE_SILU>(k, d_gate_up, dy, gate_up);
}

extern "C" status cuda_geglu_forward(struct kernels *k, struct tensor y, struct tensor gate_up,
                                     enum activation act)
{
    return act == ACTIVATION_GELU_TANH
               ? launch_gated<false, GATE_GELU_TANH>(k, y, tensor_absent(), gate_up)
               : launch_gated<false, GATE_GELU_ERF>(k, y, tensor_absent(), gate_up);
}

extern "C" status cuda_geglu_backward(struct kernels *k, struct tensor d_gate_up, struct tensor dy,
                                      struct tensor gate_up, enum activation act)
{
    return act == ACTIVATION_GELU_TANH
               ? launch_gated<true, GATE_GELU_TANH>(k, d_gate_up, dy, gate_up)
               : launch_gated<true, GATE_GELU_ERF>(k, d_gate_up, dy, gate_up);
}
