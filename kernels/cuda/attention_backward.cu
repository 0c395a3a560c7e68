/* Attention backward: d_o . o of each row and head first, then the queries' and the keys' gradients, each by
 * its owner. */
#include "kernels/cuda/attention.cuh"

enum { DELTA_THREADS = 256 };

/* A warp for each row and head. */
template <typename T>
__global__ void __launch_bounds__(DELTA_THREADS) attention_delta(const attention_task<T> a)
{
    int64_t row = static_cast<int64_t>(blockIdx.x) * (DELTA_THREADS / 32) + threadIdx.x / 32;
    if (row >= a.rows_q) {
        return;
    }
    float sum = 0;
    for (int64_t c = threadIdx.x % 32; c < a.width; c += 32) {
        int64_t column = blockIdx.y * a.width + c;
        sum += gpu_float(a.o.data[row * a.o.stride + column]) *
               gpu_float(a.d_o.data[row * a.d_o.stride + column]);
    }
    sum = team_sum<32>(sum, nullptr);
    if (threadIdx.x % 32 == 0) {
        a.delta[blockIdx.y * a.rows_q + row] = sum;
    }
}

extern "C" size_t cuda_attention_scratch(const struct kernels_limits *limits)
{
    return cuda_rounded(static_cast<size_t>(limits->rows * limits->heads) * sizeof(float));
}

template <typename T>
static status delta_run(struct kernels *k, float *delta, struct tensor o, struct tensor d_o,
                        const struct attention *a)
{
    attention_task<T> t = {};
    t.o = matrix_of<const T>(o);
    t.d_o = matrix_of<const T>(d_o);
    t.delta = delta;
    t.rows_q = o.rows;
    t.width = a->head_width;
    dim3 grid(blocks_for(o.rows, DELTA_THREADS / 32), static_cast<unsigned>(a->heads));
    if (grid.x > 0) {
        LAUNCH(k, attention_delta<T>, grid, DELTA_THREADS, 0, t);
    }
    return STATUS_OK;
}

extern "C" status cuda_attention_backward(struct kernels *k, struct tensor dq, struct tensor dkeys,
                                          struct tensor dvalues, struct tensor d_o, struct tensor q,
                                          struct tensor keys, struct tensor values, struct tensor o,
                                          struct tensor lse, const struct attention *a)
{
    struct arena *scratch = &cuda_of(k)->scratch;
    size_t mark = arena_mark(scratch);
    void *memory;
    TRY(arena_take(scratch, static_cast<size_t>(o.rows * a->heads) * sizeof(float), &memory));
    arena_release(scratch, mark);
    float *delta = static_cast<float *>(memory);
    TRY(k->dtype == DTYPE_F32 ? delta_run<float>(k, delta, o, d_o, a)
                              : delta_run<bf16>(k, delta, o, d_o, a));
    return attention_rows_backward(k, dq, dkeys, dvalues, d_o, q, keys, values, lse, delta, a);
}
