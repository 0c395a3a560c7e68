/* SwiGLU on one product's output, gate and up side by side: eight elements of each a thread.
 *
 *   y = g s(g) u with s the sigmoid;  du = dy g s(g);  dg = dy u s(g) (1 + g (1 - s(g))) */
#include "kernels/cuda/operation.cuh"

enum { SWIGLU_THREADS = 256 };

GPU_INLINE float sigmoid(float x)
{
    return 1.0f / (1.0f + gpu_exp2(-1.44269504f * x));
}

/* Forward out is y [rows, columns]; backward out is d_gate_up, and dy is there. */
template <typename T> struct swiglu {
    matrix<T> out;
    matrix<const T> dy, gate_up;
    int64_t rows, columns;
};

template <typename T, bool WIDE, bool BACKWARD>
__global__ void __launch_bounds__(SWIGLU_THREADS) swiglu_rows(const swiglu<T> p)
{
    int64_t eights = (p.columns + EIGHT - 1) / EIGHT;
    int64_t i = static_cast<int64_t>(blockIdx.x) * SWIGLU_THREADS + threadIdx.x;
    if (i >= p.rows * eights) {
        return;
    }
    int64_t n = i / eights, c = i % eights * EIGHT, left = p.columns - c;
    float gate[EIGHT], up[EIGHT], d[EIGHT];
    const T *in = p.gate_up.data + n * p.gate_up.stride + c;
    load_eight<WIDE>(gate, in, left);
    load_eight<WIDE>(up, in + p.columns, left);
    if (BACKWARD) {
        load_eight<WIDE>(d, p.dy.data + n * p.dy.stride + c, left);
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
    store_eight<WIDE>(out, gate, left);
    if (BACKWARD) {
        store_eight<WIDE>(out + p.columns, up, left);
    }
}

/* ---- host ---- */

template <bool BACKWARD>
static status run(struct kernels *k, struct tensor out, struct tensor dy, struct tensor gate_up)
{
    int64_t columns = gate_up.columns / 2;
    unsigned blocks = blocks_for(out.rows * ((columns + EIGHT - 1) / EIGHT), SWIGLU_THREADS);
    if (blocks == 0) {
        return STATUS_OK;
    }
    bool wide = operation_wide(out) && operation_wide(dy) && operation_wide(gate_up) &&
                columns % EIGHT == 0;
    FOR_TYPE(k->dtype, wide, {
        swiglu<T> p = {matrix_of<T>(out), matrix_of<const T>(dy), matrix_of<const T>(gate_up),
                       out.rows, columns};
        LAUNCH(k, (swiglu_rows<T, WIDE, BACKWARD>), blocks, SWIGLU_THREADS, 0, p);
    });
    return STATUS_OK;
}

extern "C" status cuda_swiglu_forward(struct kernels *k, struct tensor y, struct tensor gate_up)
{
    return run<false>(k, y, tensor_absent(), gate_up);
}

extern "C" status cuda_swiglu_backward(struct kernels *k, struct tensor d_gate_up, struct tensor dy,
                                       struct tensor gate_up)
{
    return run<true>(k, d_gate_up, dy, gate_up);
}
