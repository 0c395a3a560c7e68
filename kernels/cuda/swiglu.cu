/* SwiGLU of the output of one GEMM. The first half of its columns is the gate g, the second half is
 * the up projection u.
 *
 *   y = g s(g) u,  with the sigmoid s
 *   du = dy g s(g),  dg = dy u s(g) (1 + g (1 - s(g)))
 *
 * Launch    grid ceil(rows ceil(columns / 8) / 256); block 256; no shared memory. A thread handles
 *           eight elements of g and the same eight of u
 * Source    Shazeer 2020, arXiv:2002.05202 */
#include "kernels/cuda/operation.cuh"

enum { SWIGLU_THREADS = 256 };

GPU_INLINE float sigmoid(float x)
{
    return 1.0f / (1.0f + gpu_exp2(-1.44269504f * x));
}

/* The arguments of a launch. Forward: out is y [rows, columns], and dy is absent. Backward: out is
 * d_gate_up [rows, 2 columns]. */
template <typename T> struct swiglu_task {
    matrix<T> out;
    matrix<const T> dy, gate_up;
    int64_t rows, columns;
};

template <typename T, bool ALIGNED, bool BACKWARD>
__global__ void __launch_bounds__(SWIGLU_THREADS) swiglu_rows(const swiglu_task<T> p)
{
    int64_t eights = (p.columns + EIGHT - 1) / EIGHT;
    int64_t i = static_cast<int64_t>(blockIdx.x) * SWIGLU_THREADS + threadIdx.x;
    if (i >= p.rows * eights) {
        return;
    }
    int64_t n = i / eights, c = i % eights * EIGHT, left = p.columns - c;
    float gate[EIGHT], up[EIGHT], d[EIGHT];
    const T *in = p.gate_up.data + n * p.gate_up.stride + c;
    load_eight<ALIGNED>(gate, in, left);
    load_eight<ALIGNED>(up, in + p.columns, left);
    if (BACKWARD) {
        load_eight<ALIGNED>(d, p.dy.data + n * p.dy.stride + c, left);
    }
#pragma unroll
    for (int j = 0; j < EIGHT; j++) {
        float s = sigmoid(gate[j]), silu = gate[j] * s;
        if (BACKWARD) {
            gate[j] = d[j] * up[j] * s * (1.0f + gate[j] * (1.0f - s));
            up[j] = d[j] * silu;
        } else {
            gate[j] = silu * up[j];
        }
    }
    T *out = p.out.data + n * p.out.stride + c;
    store_eight<ALIGNED>(out, gate, left);
    if (BACKWARD) {
        store_eight<ALIGNED>(out + p.columns, up, left);
    }
}

/* ---- host ---- */

template <bool BACKWARD>
static status launch_swiglu(struct kernels *k, struct tensor out, struct tensor dy,
                            struct tensor gate_up)
{
    int64_t columns = gate_up.columns / 2;
    unsigned blocks = count_blocks(out.rows * ((columns + EIGHT - 1) / EIGHT), SWIGLU_THREADS);
    if (blocks == 0) {
        return STATUS_OK;
    }
    bool aligned = operation_is_aligned(out) && operation_is_aligned(dy) &&
                   operation_is_aligned(gate_up) && columns % EIGHT == 0;
    FOR_TYPE(k->dtype, aligned, {
        swiglu_task<T> p = {make_matrix<T>(out), make_matrix<const T>(dy),
                            make_matrix<const T>(gate_up), out.rows, columns};
        LAUNCH(k, (swiglu_rows<T, ALIGNED, BACKWARD>), blocks, SWIGLU_THREADS, 0, p);
    });
    return STATUS_OK;
}

extern "C" status cuda_swiglu_forward(struct kernels *k, struct tensor y, struct tensor gate_up)
{
    return launch_swiglu<false>(k, y, tensor_absent(), gate_up);
}

extern "C" status cuda_swiglu_backward(struct kernels *k, struct tensor d_gate_up, struct tensor dy,
                                       struct tensor gate_up)
{
    return launch_swiglu<true>(k, d_gate_up, dy, gate_up);
}
