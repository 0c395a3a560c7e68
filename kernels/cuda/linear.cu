/* Linear layers: cuBLASLt computes the GEMMs (gemm.c); the kernels here compute activations and
 * bias gradients.
 *
 * Forward   a = x w^T + bias;  y = act(a);  saved = a, for the backward pass.
 * Backward  dx = (dy w) act'(a);  dw (+)= dy^T x;  dbias (+)= column sums of dy
 * Launch    block 256. Element-wise kernels: grid ceil(N ceil(M / 8) / 256), a thread for eight
 *           elements. Column sums, also of a derivative that is computed at the same time: grid
 *           (ceil(M / 256), min(N, CUDA_COLUMN_SLICES)), 8 KiB of shared memory
 * Order     the rows of dy are split into slices that depend on N alone; a block sums 256 columns
 *           of a slice, and cuda_reduce_parts adds the sums of the slices in order
 * Source    Hendrycks, Gimpel 2016, arXiv:1606.08415 (GELU, by the normal distribution or
 *           by tanh) */
#include "kernels/cuda/activation.cuh"

enum { LINEAR_THREADS = 256, LINEAR_WARPS = LINEAR_THREADS / 32, SLICE_COLUMNS = 32 * LANE_ELEMS };
enum { SLICE_SUMS = LINEAR_WARPS * SLICE_COLUMNS };
static_assert(SLICE_COLUMNS == LINEAR_THREADS, "a thread adds the sums of the warps of a column");

/* The switches have no default, so that the compiler reports a missing activation. */
GPU_INLINE float compute_activation(float x, enum activation act)
{
    switch (act) {
    case ACTIVATION_NONE:
        return x;
    case ACTIVATION_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x)));
    case ACTIVATION_GELU_ERF:
        return 0.5f * x * erfcf(-SQRT_HALF * x);
    case ACTIVATION_TANH:
        return tanhf(x);
    case ACTIVATION_RELU:
        return x < 0.0f ? 0.0f : x;
    case ACTIVATION_RELU2:
        return x < 0.0f ? 0.0f : x * x;
    case ACTIVATION_SILU:
        return x / (1.0f + expf(-x));
    }
    return gpu_from_bits(0x7fc00000u); /* NaN: kernels.c refuses other values */
}

GPU_INLINE float compute_derivative(float x, enum activation act)
{
    switch (act) {
    case ACTIVATION_NONE:
        return 1.0f;
    case ACTIVATION_GELU_TANH: {
        float t = tanhf(SQRT_2_OVER_PI * (x + GELU_CUBIC * x * x * x));
        float inner = SQRT_2_OVER_PI * (1.0f + 3.0f * GELU_CUBIC * x * x);
        return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
    }
    case ACTIVATION_GELU_ERF:
        return 0.5f * erfcf(-SQRT_HALF * x) + x * expf(-0.5f * x * x) * INVERSE_SQRT_2_PI;
    case ACTIVATION_TANH:
        return 1.0f - tanhf(x) * tanhf(x);
    case ACTIVATION_RELU:
        return x <= 0.0f ? 0.0f : 1.0f;
    case ACTIVATION_RELU2:
        return x < 0.0f ? 0.0f : 2.0f * x;
    case ACTIVATION_SILU: {
        float s = 1.0f / (1.0f + expf(-x));
        return s * (1.0f + x * (1.0f - s));
    }
    }
    return gpu_from_bits(0x7fc00000u);
}

/* Computes y = act(x) or, with DERIVATIVE, y *= act'(x), in the precision of T. The branches are
 * outside of the loops, so that the elements of a loop overlap. */
template <typename T, bool DERIVATIVE>
GPU_INLINE void apply_activation(float (&y)[LANE_ELEMS], const float (&x)[LANE_ELEMS],
                                 enum activation act)
{
    float derivative;
    if (sizeof(T) == sizeof(bf16) && act == ACTIVATION_GELU_TANH) {
#pragma unroll
        for (int j = 0; j < LANE_ELEMS; j++) {
            float gelu = fast_gelu_tanh(x[j], &derivative);
            y[j] = DERIVATIVE ? y[j] * derivative : gelu;
        }
    } else if (sizeof(T) == sizeof(bf16) && act == ACTIVATION_GELU_ERF) {
#pragma unroll
        for (int j = 0; j < LANE_ELEMS; j++) {
            float gelu = fast_gelu_erf(x[j], &derivative);
            y[j] = DERIVATIVE ? y[j] * derivative : gelu;
        }
    } else {
#pragma unroll
        for (int j = 0; j < LANE_ELEMS; j++) {
            y[j] =
                DERIVATIVE ? y[j] * compute_derivative(x[j], act) : compute_activation(x[j], act);
        }
    }
}

/* Computes y = act(a) or, with DERIVATIVE, y = dy act'(a), where dy may alias y. */
template <typename T, bool ALIGNED, bool DERIVATIVE>
__global__ void __launch_bounds__(LINEAR_THREADS)
    activation_kernel(const matrix<T> y, const matrix<const T> dy, const matrix<const T> a,
                      int64_t rows, int64_t columns, enum activation act)
{
    int64_t eights = (columns + LANE_ELEMS - 1) / LANE_ELEMS;
    int64_t i = static_cast<int64_t>(blockIdx.x) * LINEAR_THREADS + threadIdx.x;
    if (i >= rows * eights) {
        return;
    }
    int64_t n = i / eights, c = i % eights * LANE_ELEMS, left = columns - c;
    float x[LANE_ELEMS], out[LANE_ELEMS] = {};
    load_eight<ALIGNED>(x, a.data + n * a.stride + c, left);
    if (DERIVATIVE) {
        load_eight<ALIGNED>(out, dy.data + n * dy.stride + c, left);
    }
    apply_activation<T, DERIVATIVE>(out, x, act);
    store_eight<ALIGNED>(y.data + n * y.stride + c, out, left);
}

template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(LINEAR_THREADS)
    scale_rows(const matrix<T> x, int64_t rows, int64_t columns, float factor)
{
    int64_t eights = (columns + LANE_ELEMS - 1) / LANE_ELEMS;
    int64_t i = static_cast<int64_t>(blockIdx.x) * LINEAR_THREADS + threadIdx.x;
    if (i >= rows * eights) {
        return;
    }
    int64_t n = i / eights, c = i % eights * LANE_ELEMS, left = columns - c;
    float row[LANE_ELEMS];
    load_eight<ALIGNED>(row, x.data + n * x.stride + c, left);
#pragma unroll
    for (int j = 0; j < LANE_ELEMS; j++) {
        row[j] *= factor;
    }
    store_eight<ALIGNED>(x.data + n * x.stride + c, row, left);
}

/* The matrices of sum_column_slices. */
template <typename T> struct summed_columns {
    matrix<const T> dy;
    matrix<const T> saved; /* with DERIVATIVE: the inputs of the activation */
    matrix<T> dx;          /* with DERIVATIVE: the output */
    int64_t rows, columns;
    enum activation act;
};

/* Adds ROWS rows, n, n + LINEAR_WARPS, ..., to the sums of the eight columns from c on. With
 * DERIVATIVE, first multiplies the rows by act', rounds and stores them. */
template <typename T, bool ALIGNED, bool DERIVATIVE, int ROWS>
GPU_INLINE void add_rows(float (&sums)[LANE_ELEMS], const summed_columns<T> &s, int64_t n,
                         int64_t c)
{
    const int64_t left = ALIGNED ? int64_t{LANE_ELEMS} : s.columns - c;
    eight_bits<T> bits[ROWS], saved[DERIVATIVE ? ROWS : 1];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        load_bits<ALIGNED>(bits[i], s.dy.data + (n + LINEAR_WARPS * i) * s.dy.stride + c, left);
        if (DERIVATIVE) {
            load_bits<ALIGNED>(saved[DERIVATIVE ? i : 0],
                               s.saved.data + (n + LINEAR_WARPS * i) * s.saved.stride + c, left);
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (DERIVATIVE) {
            float x[LANE_ELEMS], out[LANE_ELEMS];
            convert_bits(x, saved[DERIVATIVE ? i : 0]);
            convert_bits(out, bits[i]);
            apply_activation<T, true>(out, x, s.act);
            round_eight_bits(bits[i], out);
            store_bits<ALIGNED>(s.dx.data + (n + LINEAR_WARPS * i) * s.dx.stride + c, bits[i],
                                left);
        }
        add_eight(sums, bits[i]);
    }
}

template <typename T, bool ALIGNED, bool DERIVATIVE>
__global__ void __launch_bounds__(LINEAR_THREADS, ALIGNED ? 4 + DERIVATIVE : 4)
    sum_column_slices(float *parts, const summed_columns<T> s)
{
    GPU_SHARED(float, scratch, SLICE_SUMS);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t c = static_cast<int64_t>(blockIdx.x) * SLICE_COLUMNS + lane * LANE_ELEMS;
    int64_t from = s.rows * blockIdx.y / gridDim.y, to = s.rows * (blockIdx.y + 1) / gridDim.y;
    const int loads = (DERIVATIVE ? 4 : 16) / sizeof(T); /* rows that a thread loads, then adds */
    int64_t n = c < s.columns ? from + warp : to;
    float sums[LANE_ELEMS] = {};
    for (; n + LINEAR_WARPS * (loads - 1) < to; n += LINEAR_WARPS * loads) {
        add_rows<T, ALIGNED, DERIVATIVE, loads>(sums, s, n, c);
    }
    for (; n < to; n += LINEAR_WARPS) {
        add_rows<T, ALIGNED, DERIVATIVE, 1>(sums, s, n, c);
    }
    for (int j = 0; j < LANE_ELEMS; j++) {
        scratch[warp * SLICE_COLUMNS + j * 32 + lane] = sums[j];
    }
    __syncthreads();
    /* Thread (j, lane) sums column 8 lane + j: the lanes of a warp read different banks. */
    float sum = 0;
    for (int i = 0; i < LINEAR_WARPS; i++) {
        sum += scratch[i * SLICE_COLUMNS + threadIdx.x];
    }
    int64_t column = static_cast<int64_t>(blockIdx.x) * SLICE_COLUMNS + lane * LANE_ELEMS + warp;
    if (column < s.columns) {
        parts[blockIdx.y * s.columns + column] = sum;
    }
}

GPU_INLINE void store_element(float *p, float x)
{
    *p = x;
}
GPU_INLINE void store_element(bf16 *p, float x)
{
    *p = gpu_bf16(x);
}
GPU_INLINE void store_element(bf16 *p, bf16 x)
{
    *p = x;
}

/* Copies a row to all rows of c. blockIdx.x selects the columns; the blocks of one column stride
 * over the rows. */
template <typename T, typename ROW>
__global__ void __launch_bounds__(LINEAR_THREADS)
    fill_rows(matrix<T> c, const ROW *row, int64_t rows, int64_t columns)
{
    int64_t column = static_cast<int64_t>(blockIdx.x) * LINEAR_THREADS + threadIdx.x;
    for (int64_t r = blockIdx.y; r < rows && column < columns; r += gridDim.y) {
        store_element(c.data + r * c.stride + column, row[column]);
    }
}

/* ---- host ---- */

template <bool DERIVATIVE>
static status launch_activation(struct kernels *k, struct tensor y, struct tensor dy,
                                struct tensor a, enum activation act)
{
    unsigned blocks =
        count_blocks(y.rows * number_divide_up(y.columns, LANE_ELEMS), LINEAR_THREADS);
    FOR_TYPE(k->dtype,
             operation_is_aligned(y) && operation_is_aligned(dy) && operation_is_aligned(a),
             LAUNCH(k, (activation_kernel<T, ALIGNED, DERIVATIVE>), blocks, LINEAR_THREADS, 0,
                    make_matrix<T>(y), make_matrix<const T>(dy), make_matrix<const T>(a), y.rows,
                    y.columns, act));
    return STATUS_OK;
}

extern "C" status cuda_activation_apply(struct kernels *k, struct tensor y, struct tensor a,
                                        enum activation act)
{
    return launch_activation<false>(k, y, tensor_absent(), a, act);
}

extern "C" status cuda_linear_forward(struct kernels *k, struct tensor y, struct tensor saved,
                                      struct tensor x, struct tensor w, struct tensor bias,
                                      enum activation act)
{
    struct cuda_gemm p = {};
    p.c = y;
    p.a = x;
    p.b = w;
    p.transpose_b = true;
    p.bias = bias;
    p.act = act;
    p.aux = saved;
    return cuda_gemm_run(k, &p);
}

extern "C" status cuda_linear_backward_input(struct kernels *k, struct tensor dx,
                                             struct bias_gradient dbias, struct tensor dy,
                                             struct tensor w, enum activation act,
                                             struct tensor saved)
{
    struct cuda_gemm p = {};
    p.c = dx;
    p.a = dy;
    p.b = w;
    p.act = act;
    p.derivative = act != ACTIVATION_NONE;
    p.aux = saved;
    p.sums = dbias;
    return cuda_gemm_run(k, &p);
}

extern "C" status cuda_linear_add(struct kernels *k, struct tensor y, struct tensor x,
                                  struct tensor w, bool back)
{
    struct cuda_gemm p = {};
    p.c = y;
    p.a = x;
    p.b = w;
    p.transpose_b = !back;
    p.accumulate = true;
    return cuda_gemm_run(k, &p);
}

/* Copies y to `saved` before it applies the activation: dropout with probability 0 is a copy. */
extern "C" status cuda_activation_forward(struct kernels *k, struct tensor y, struct tensor saved,
                                          enum activation act)
{
    if (y.rows == 0) {
        return STATUS_OK;
    }
    if (saved.data != NULL) {
        TRY(cuda_dropout_apply(k, saved, y, {}));
    }
    return cuda_activation_apply(k, y, y, act);
}

extern "C" status cuda_op_scale(struct kernels *k, struct tensor x, float factor)
{
    unsigned blocks =
        count_blocks(x.rows * number_divide_up(x.columns, LANE_ELEMS), LINEAR_THREADS);
    if (blocks == 0) {
        return STATUS_OK;
    }
    FOR_TYPE(x.dtype, operation_is_aligned(x),
             LAUNCH(k, (scale_rows<T, ALIGNED>), blocks, LINEAR_THREADS, 0, make_matrix<T>(x),
                    x.rows, x.columns, factor));
    return STATUS_OK;
}

extern "C" status cuda_activation_backward(struct kernels *k, struct tensor dx, struct tensor dy,
                                           struct tensor saved, enum activation act)
{
    return dx.rows == 0 ? STATUS_OK : launch_activation<true>(k, dx, dy, saved, act);
}

template <typename T, typename ROW>
static status launch_fill(struct kernels *k, struct tensor c, struct tensor row)
{
    const int64_t tall = 1024;
    dim3 grid(count_blocks(c.columns, LINEAR_THREADS),
              static_cast<unsigned>(number_min(c.rows, tall)));
    LAUNCH(k, (fill_rows<T, ROW>), grid, LINEAR_THREADS, 0, make_matrix<T>(c),
           static_cast<const ROW *>(row.data), c.rows, c.columns);
    return STATUS_OK;
}

extern "C" status cuda_fill_rows(struct kernels *k, struct tensor c, struct tensor row)
{
    if (c.dtype == DTYPE_F32) {
        return launch_fill<float, float>(k, c, row);
    }
    return row.dtype == DTYPE_F32 ? launch_fill<bf16, float>(k, c, row)
                                  : launch_fill<bf16, bf16>(k, c, row);
}

/* Sums the columns of dy. With DERIVATIVE, computes and stores dx = dy act' and sums the columns
 * of dx. */
template <bool DERIVATIVE>
static status launch_column_sums(struct kernels *k, struct bias_gradient sums, struct tensor dx,
                                 struct tensor dy, struct tensor saved, enum activation act,
                                 void *scratch)
{
    int64_t slices = number_min(dy.rows, CUDA_COLUMN_SLICES);
    float *parts = static_cast<float *>(scratch);
    dim3 grid(count_blocks(dy.columns, SLICE_COLUMNS), static_cast<unsigned>(slices));
    FOR_TYPE(k->dtype,
             operation_is_aligned(dy) && operation_is_aligned(dx) && operation_is_aligned(saved), {
                 const summed_columns<T> s = {make_matrix<const T>(dy),
                                              make_matrix<const T>(saved),
                                              make_matrix<T>(dx),
                                              dy.rows,
                                              dy.columns,
                                              act};
                 LAUNCH(k, (sum_column_slices<T, ALIGNED, DERIVATIVE>), grid, LINEAR_THREADS, 0,
                        parts, s);
             });
    const struct cuda_parts_sum sum = {static_cast<float *>(sums.sums.data), sums.overwrite};
    return cuda_reduce_parts(k, &sum, 1, parts, slices, dy.columns);
}

extern "C" status cuda_column_sums(struct kernels *k, struct bias_gradient sums, struct tensor dy,
                                   void *scratch)
{
    return launch_column_sums<false>(k, sums, tensor_absent(), dy, tensor_absent(), ACTIVATION_NONE,
                                     scratch);
}

extern "C" status cuda_bias_gradient(struct kernels *k, struct bias_gradient dbias,
                                     struct tensor dy)
{
    void *memory;
    if (dy.rows == 0) {
        return STATUS_OK;
    }
    TRY(cuda_take_scratch(k, cuda_column_sums_scratch(dy.columns), &memory));
    return cuda_column_sums(k, dbias, dy, memory);
}

extern "C" status cuda_activation_backward_sums(struct kernels *k, struct tensor dx,
                                                struct bias_gradient dbias, struct tensor dy,
                                                struct tensor saved, enum activation act)
{
    void *memory;
    if (dy.rows == 0) {
        return STATUS_OK;
    }
    TRY(cuda_take_scratch(k, cuda_column_sums_scratch(dy.columns), &memory));
    return launch_column_sums<true>(k, dbias, dx, dy, saved, act, memory);
}

extern "C" status cuda_linear_backward_weight(struct kernels *k, struct tensor dw,
                                              struct tensor dbias, struct tensor dy,
                                              struct tensor x, bool overwrite)
{
    if (dw.data == NULL) {
        return dbias.data != NULL ? cuda_bias_gradient(k, {dbias, overwrite}, dy) : STATUS_OK;
    }
    struct cuda_gemm p = {};
    p.c = dw;
    p.a = dy;
    p.b = x;
    p.transpose_a = true;
    p.accumulate = !overwrite;
    p.sums = {dbias, overwrite};
    return cuda_gemm_run(k, &p);
}
