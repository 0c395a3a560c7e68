/* Linear layers with operands that are rounded to FP8 (kernels/fp8.h). A kernel rounds, measures
 * and, if necessary, transposes an operand in one pass. cuBLASLt multiplies the FP8 numbers.
 *
 * Layout    cuBLASLt multiplies FP8 matrices only if the inner dimension of both is contiguous:
 *             y  [N, M]   x [N, K]     w [M, K]
 *             dx [N, K]   dy [N, M]    w^T [K, M]
 *             dw [M, K]   dy^T [M, N]  x^T [K, N], with zeros up to a multiple of 16 rows
 * Row-wise  A vector for each operand contains the reciprocals of its scales. One kernel measures
 *           and casts an operand that is not transposed: the second read of a row comes from a
 *           cache. A transposed operand is read twice: a kernel stores the largest magnitudes of
 *           parts of its columns, then the cast combines them
 * Launch    grid (ceil(columns / 64), ceil(rows / 64)); block 256; 4.3 KiB of shared memory. A
 *           block casts a tile of 64 x 64 elements. Row-wise, a warp casts a row, or a block
 *           measures 64 columns of a part of the rows
 * Scales    grid ceil(operands / 32), block 256: update_scales reads the history once; warp g of a
 *           block reads every eighth row. After a skipped step, one warp moves the rows
 * Order     an atomic maximum of integers combines the maxima of the blocks. It gives the same bits
 *           in every order */
#include "kernels/cuda/operation.cuh"

enum { FP8_THREADS = 256, FP8_TILE = 64, FP8_PITCH = FP8_TILE + 4, FP8_SEGMENT = 16 };

/* Threads that load a row of a tile, and rows that a block loads at once: half a tile. */
enum { FP8_ROW_THREADS = FP8_TILE / LANE_ELEMS, FP8_LINES = FP8_THREADS / FP8_ROW_THREADS };
static_assert(2 * FP8_LINES == FP8_TILE, "a block loads a tile in two steps");

/* Row-wise: rows of a block in the cast of rows. */
enum { FP8_WARPS = FP8_THREADS / 32 };

/* Returns the FP8 number nearest to x, with ties to even. Every NaN becomes 0x7f. */
template <bool E5M2> GPU_INLINE uint32_t round_to_fp8(float x)
{
    const int fraction_bits = E5M2 ? 2 : 3, shift = 23 - fraction_bits, bias = E5M2 ? 15 : 7;
    const uint32_t infinity = 0x7f800000u, largest = E5M2 ? 0x7bu : 0x7eu;
    uint32_t bits = gpu_bits(x), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
    if (magnitude > infinity) {
        return 0x7fu;
    }
    /* Subnormal numbers are multiples of their distance. Adding a number that has this distance as
     * its last bit rounds x to such a multiple. */
    const uint32_t least = static_cast<uint32_t>(128 - bias) << 23;
    const uint32_t anchor = static_cast<uint32_t>(128 - bias - fraction_bits + 23) << 23;
    uint32_t code;
    if (magnitude < least) {
        code = gpu_bits(gpu_from_bits(magnitude) + gpu_from_bits(anchor)) - anchor;
    } else {
        uint32_t even = magnitude >> shift & 1u;
        uint32_t rounded = magnitude + even + ((1u << (shift - 1)) - 1);
        code = (rounded >> shift) - (static_cast<uint32_t>(127 - bias) << fraction_bits);
    }
    return sign | (code < largest ? code : largest);
}

/* Returns four FP8 numbers, the first one in the lowest byte. */
template <bool E5M2> GPU_INLINE uint32_t pack_fp8(const float *x)
{
    return round_to_fp8<E5M2>(x[0]) | round_to_fp8<E5M2>(x[1]) << 8 |
           round_to_fp8<E5M2>(x[2]) << 16 | round_to_fp8<E5M2>(x[3]) << 24;
}

/* The outputs of a cast; NULL: not written. */
struct fp8_outputs {
    uint8_t *rounded;    /* [rows, columns] */
    uint8_t *transposed; /* [columns, stride] */
    int64_t stride;
    uint32_t *maximum; /* bits of the largest magnitude */
};

/* Returns the bits of |x|. They have the order of the magnitudes. */
GPU_INLINE uint32_t get_magnitude(float x)
{
    return gpu_bits(x) & 0x7fffffffu;
}

/* Returns x scale. Infinity becomes NaN, and NaN remains. */
GPU_INLINE float scale_finite(float x, float scale)
{
    return x * (get_magnitude(x) < 0x7f800000u ? scale : 0.0f);
}

/* Sets bits = max(bits, other). */
GPU_INLINE void raise_bits(uint32_t &bits, uint32_t other)
{
    bits = other > bits ? other : bits;
}

GPU_INLINE void update_maximum(uint32_t *maximum, uint32_t bits, uint32_t *scratch)
{
#pragma unroll
    for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2) {
        raise_bits(bits, __shfl_xor_sync(~0u, bits, lane_mask));
    }
    if (threadIdx.x % 32 == 0) {
        scratch[threadIdx.x / 32] = bits;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (int i = 1; i < FP8_THREADS / 32; i++) {
            raise_bits(bits, scratch[i]);
        }
        gpu_atomic_max(maximum, bits);
    }
}

/* Eight elements of a tile of `from`, which a thread loads in one half of the tile's rows. */
struct tile_part {
    int r, c;            /* the first element in the tile */
    int64_t row, column; /* the first element in `from` */
    int64_t left;        /* elements that the row has from there on */
};

/* Loads the thread's part of the tile of this block. */
template <bool ALIGNED, typename T>
GPU_INLINE struct tile_part load_tile_part(float (&x)[LANE_ELEMS], const matrix<const T> &from,
                                           int half, int64_t rows, int64_t columns)
{
    struct tile_part part;
    part.r = half * FP8_LINES + threadIdx.x / FP8_ROW_THREADS;
    part.c = threadIdx.x % FP8_ROW_THREADS * LANE_ELEMS;
    part.row = static_cast<int64_t>(blockIdx.y) * FP8_TILE + part.r;
    part.column = static_cast<int64_t>(blockIdx.x) * FP8_TILE + part.c;
    part.left = part.row < rows ? columns - part.column : 0;
    load_eight<ALIGNED>(x, from.data + part.row * from.stride + part.column, part.left);
    return part;
}

/* Stores the tile of this block, of a matrix with `columns` columns, to out [columns, stride]. A
 * thread stores 16 elements of a column. */
GPU_INLINE void store_transposed(uint8_t *out, const uint8_t *tile, int64_t columns, int64_t stride)
{
    int64_t first_row = static_cast<int64_t>(blockIdx.y) * FP8_TILE;
    int64_t first_column = static_cast<int64_t>(blockIdx.x) * FP8_TILE;
    int c = threadIdx.x / (FP8_TILE / FP8_SEGMENT);
    int r = threadIdx.x % (FP8_TILE / FP8_SEGMENT) * FP8_SEGMENT;
    if (first_column + c < columns && first_row + r < stride) {
        uint32_t words[4] = {};
        for (int i = 0; i < FP8_SEGMENT; i++) {
            words[i / 4] |= static_cast<uint32_t>(tile[(r + i) * FP8_PITCH + c]) << (i % 4 * 8);
        }
        gpu_store16(out + (first_column + c) * stride + first_row + r,
                    uint4{words[0], words[1], words[2], words[3]});
    }
}

template <typename T, bool ALIGNED, bool E5M2>
__global__ void __launch_bounds__(FP8_THREADS)
    cast_to_fp8(const struct fp8_outputs out, const matrix<const T> from, int64_t rows,
                int64_t columns, const float *scale)
{
    GPU_SHARED(uint8_t, tile, FP8_TILE * FP8_PITCH);
    GPU_SHARED(uint32_t, scratch, FP8_THREADS / 32);
    float factor = scale != nullptr ? *scale : 1.0f;
    uint32_t largest = 0;
    for (int half = 0; half < 2; half++) {
        float x[LANE_ELEMS];
        const struct tile_part part = load_tile_part<ALIGNED>(x, from, half, rows, columns);
#pragma unroll
        for (int i = 0; i < LANE_ELEMS; i++) {
            raise_bits(largest, get_magnitude(x[i]));
            x[i] = scale_finite(x[i], factor);
        }
        const uint32_t words[2] = {pack_fp8<E5M2>(x), pack_fp8<E5M2>(x + 4)};
        if (out.rounded != nullptr && part.left > 0) {
            memcpy(out.rounded + part.row * columns + part.column, words, sizeof words);
        }
        if (out.transposed != nullptr) {
            for (int i = 0; i < LANE_ELEMS; i++) {
                tile[part.r * FP8_PITCH + part.c + i] =
                    static_cast<uint8_t>(words[i / 4] >> (i % 4 * 8));
            }
        }
    }
    if (out.maximum != nullptr) {
        update_maximum(out.maximum, largest, scratch);
    }
    if (out.transposed == nullptr) {
        return;
    }
    __syncthreads();
    store_transposed(out.transposed, tile, columns, out.stride);
}

/* ---- row-wise scales ---- */

/* The exponents of the largest FP8 numbers, 1.75 2^8 and 1.75 2^15. */
enum { E4M3_EXPONENT = 8, E5M2_EXPONENT = 15 };

/* fp8_row_scale and fp8_scale of kernels/fp8.h. */
GPU_INLINE float get_row_scale(uint32_t magnitude, int greatest_exponent = E4M3_EXPONENT)
{
    const int bias = 127;
    int exponent = bias + greatest_exponent - static_cast<int>(magnitude >> 23);
    exponent -= (magnitude & 0x7fffffu) > 0x600000u;
    exponent = exponent > FP8_EXPONENT_MAX ? FP8_EXPONENT_MAX : exponent;
    exponent = exponent < -FP8_EXPONENT_MAX ? -FP8_EXPONENT_MAX : exponent;
    return magnitude == 0 ? 1.0f : gpu_from_bits(static_cast<uint32_t>(bias + exponent) << 23);
}

/* Returns the reciprocal of a power of two. */
GPU_INLINE float invert_scale(float scale)
{
    return gpu_from_bits((254u << 23) - gpu_bits(scale));
}

/* Casts each row with its own scale. A warp casts a row. */
template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(FP8_THREADS)
    cast_rows_to_fp8(uint8_t *out, float *reciprocals, const matrix<const T> from, int64_t rows,
                     int64_t columns)
{
    int64_t row = static_cast<int64_t>(blockIdx.x) * FP8_WARPS + threadIdx.x / 32;
    int64_t first = threadIdx.x % 32 * LANE_ELEMS;
    const T *data = from.data + row * from.stride;
    uint32_t largest = 0;
    float x[LANE_ELEMS];
    if (row >= rows) {
        return;
    }
    for (int64_t column = first; column < columns; column += 32 * LANE_ELEMS) {
        load_eight<ALIGNED>(x, data + column, columns - column);
#pragma unroll
        for (int i = 0; i < LANE_ELEMS; i++) {
            raise_bits(largest, get_magnitude(x[i]));
        }
    }
#pragma unroll
    for (int lane_mask = 16; lane_mask > 0; lane_mask /= 2) {
        raise_bits(largest, __shfl_xor_sync(~0u, largest, lane_mask));
    }
    float scale = get_row_scale(largest);
    for (int64_t column = first; column < columns; column += 32 * LANE_ELEMS) {
        load_eight<ALIGNED>(x, data + column, columns - column);
#pragma unroll
        for (int i = 0; i < LANE_ELEMS; i++) {
            x[i] = scale_finite(x[i], scale);
        }
        const uint32_t words[2] = {pack_fp8<false>(x), pack_fp8<false>(x + 4)};
        memcpy(out + row * columns + column, words, sizeof words);
    }
    if (threadIdx.x % 32 == 0) {
        reciprocals[row] = invert_scale(scale);
    }
}

/* Stores the bits of the largest magnitudes of `part` rows of each column: parts
 * [gridDim.y, columns]. */
template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(FP8_THREADS)
    measure_columns(uint32_t *parts, const matrix<const T> from, int64_t rows, int64_t columns,
                    int64_t part)
{
    GPU_SHARED(uint32_t, found, FP8_WARPS * FP8_TILE);
    int64_t first_column = static_cast<int64_t>(blockIdx.x) * FP8_TILE;
    int64_t first_row = static_cast<int64_t>(blockIdx.y) * part;
    int64_t end = first_row + part < rows ? first_row + part : rows;
    int c = threadIdx.x % FP8_ROW_THREADS * LANE_ELEMS;
    int64_t column = first_column + c;
    uint32_t largest[LANE_ELEMS] = {};
#pragma unroll 4
    for (int64_t row = first_row + threadIdx.x / FP8_ROW_THREADS; row < end; row += FP8_LINES) {
        float x[LANE_ELEMS];
        load_eight<ALIGNED>(x, from.data + row * from.stride + column, columns - column);
#pragma unroll
        for (int i = 0; i < LANE_ELEMS; i++) {
            raise_bits(largest[i], get_magnitude(x[i]));
        }
    }
#pragma unroll
    for (int i = 0; i < LANE_ELEMS; i++) {
#pragma unroll
        for (int lane_mask = 16; lane_mask >= FP8_ROW_THREADS; lane_mask /= 2) {
            raise_bits(largest[i], __shfl_xor_sync(~0u, largest[i], lane_mask));
        }
        if (threadIdx.x % 32 < FP8_ROW_THREADS) {
            found[threadIdx.x / 32 * FP8_TILE + c + i] = largest[i];
        }
    }
    __syncthreads();
    if (threadIdx.x < FP8_TILE && first_column + threadIdx.x < columns) {
        uint32_t bits = 0;
        for (int i = 0; i < FP8_WARPS; i++) {
            raise_bits(bits, found[i * FP8_TILE + threadIdx.x]);
        }
        parts[blockIdx.y * columns + first_column + threadIdx.x] = bits;
    }
}

/* Casts a tile to out [columns, stride] with a scale for each column, as cast_to_fp8 does. The
 * blocks of the first rows store the reciprocals. */
template <typename T, bool ALIGNED>
__global__ void __launch_bounds__(FP8_THREADS)
    cast_columns_to_fp8(uint8_t *out, float *reciprocals, const uint32_t *parts, int part_count,
                        const matrix<const T> from, int64_t rows, int64_t columns, int64_t stride)
{
    GPU_SHARED(uint8_t, tile, FP8_TILE * FP8_PITCH);
    GPU_SHARED(float, scales, FP8_TILE);
    int64_t first_column = static_cast<int64_t>(blockIdx.x) * FP8_TILE;
    if (threadIdx.x < FP8_TILE && first_column + threadIdx.x < columns) {
        int64_t column = first_column + threadIdx.x;
        uint32_t bits = 0;
        for (int i = 0; i < part_count; i++) {
            raise_bits(bits, parts[i * columns + column]);
        }
        scales[threadIdx.x] = get_row_scale(bits);
        if (blockIdx.y == 0) {
            reciprocals[column] = invert_scale(scales[threadIdx.x]);
        }
    }
    __syncthreads();
    for (int half = 0; half < 2; half++) {
        float x[LANE_ELEMS];
        const struct tile_part part = load_tile_part<ALIGNED>(x, from, half, rows, columns);
        for (int i = 0; i < LANE_ELEMS; i++) {
            float scale = i < part.left ? scales[part.c + i] : 0.0f;
            tile[part.r * FP8_PITCH + part.c + i] =
                static_cast<uint8_t>(round_to_fp8<false>(scale_finite(x[i], scale)));
        }
    }
    __syncthreads();
    store_transposed(out, tile, columns, stride);
}

/* ---- delayed scales ---- */

/* Moves the rows of a ring by one, so that the newest row moves to row `row`. */
GPU_INLINE void rotate_column(const matrix<float> &history, int64_t length, int64_t row, int64_t i)
{
    const float oldest = history.data[row * history.stride + i];
    int64_t r = row;
    for (int64_t n = 1; n < length; n++) {
        int64_t next = r + 1 < length ? r + 1 : 0;
        history.data[r * history.stride + i] = history.data[next * history.stride + i];
        r = next;
    }
    history.data[r * history.stride + i] = oldest;
}

__global__ void __launch_bounds__(FP8_THREADS)
    update_scales(const matrix<float> scales, const matrix<float> history,
                  const matrix<const float> maxima, int64_t operands, int64_t length, int64_t ranks,
                  int64_t row, const struct update_control *control)
{
    GPU_SHARED(float, partial, FP8_THREADS);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int64_t i = static_cast<int64_t>(blockIdx.x) * 32 + lane;
    if (control != nullptr && control->skip != 0) {
        if (warp == 0 && i < operands) {
            rotate_column(history, length, row, i);
        }
        return;
    }
    float amax = 0;
    for (int64_t r = warp; r < length && i < operands; r += FP8_WARPS) {
        float x = r != row ? history.data[r * history.stride + i] : 0.0f;
        amax = x > amax ? x : amax;
    }
    partial[threadIdx.x] = amax;
    __syncthreads();
    if (warp != 0 || i >= operands) {
        return;
    }
    float newest = 0;
    for (int64_t r = 0; r < ranks; r++) {
        float x = maxima.data[r * maxima.stride + i];
        newest = x < INFINITY && x > newest ? x : newest;
    }
    history.data[row * history.stride + i] = newest;
    amax = newest;
    for (int w = 0; w < FP8_WARPS; w++) {
        amax = partial[32 * w + lane] > amax ? partial[32 * w + lane] : amax;
    }
    bool is_dy = i % FP8_OPERANDS == FP8_DY;
    float scale = get_row_scale(gpu_bits(amax), is_dy ? E5M2_EXPONENT : E4M3_EXPONENT);
    scales.data[i * scales.stride + FP8_RECIPROCAL] = invert_scale(scale);
    scales.data[i * scales.stride + FP8_SCALE] = scale;
}

/* ---- host ---- */

/* An operand of a GEMM. */
struct fp8_cast {
    struct tensor from, scales, maxima; /* maxima absent: not measured */
    enum fp8_operand operand;
    bool transposed;
};

/* Returns the address of the scale or of its reciprocal. */
static const float *get_factor(const struct fp8_cast *cast, int column)
{
    return static_cast<const float *>(cast->scales.data) + cast->operand * cast->scales.stride +
           column;
}

static status launch_cast(struct kernels *k, const struct fp8_cast *cast,
                          const struct fp8_outputs *out)
{
    const struct tensor *from = &cast->from;
    int64_t rows = out->transposed != nullptr ? out->stride : from->rows;
    dim3 grid(count_blocks(from->columns, FP8_TILE), count_blocks(rows, FP8_TILE));
    const float *scale = cast->scales.data != nullptr ? get_factor(cast, FP8_SCALE) : nullptr;
    if (from->rows == 0) {
        return STATUS_OK;
    }
    if (cast->operand == FP8_DY) {
        FOR_TYPE(k->dtype, operation_is_aligned(*from),
                 LAUNCH(k, (cast_to_fp8<T, ALIGNED, true>), grid, FP8_THREADS, 0, *out,
                        make_matrix<const T>(*from), from->rows, from->columns, scale));
    } else {
        FOR_TYPE(k->dtype, operation_is_aligned(*from),
                 LAUNCH(k, (cast_to_fp8<T, ALIGNED, false>), grid, FP8_THREADS, 0, *out,
                        make_matrix<const T>(*from), from->rows, from->columns, scale));
    }
    return STATUS_OK;
}

static uint32_t *get_maximum(const struct fp8_cast *cast)
{
    return cast->maxima.data != nullptr ? static_cast<uint32_t *>(cast->maxima.data) + cast->operand
                                        : nullptr;
}

static bool is_rounded(const struct kernels *k, struct tensor scales)
{
    return scales.data != nullptr || k->limits.fp8_rowwise;
}

/* Measures an operand that is not rounded. */
static status measure_operand(struct kernels *k, const struct fp8_cast *cast)
{
    struct fp8_outputs out = {};
    out.maximum = get_maximum(cast);
    return out.maximum != nullptr ? launch_cast(k, cast, &out) : STATUS_OK;
}

static status take_scratch(struct kernels *k, int64_t bytes, void **memory)
{
    return arena_take(&cuda_get_state(k)->scratch, static_cast<size_t>(bytes), memory);
}

static status cast_rows(struct kernels *k, struct tensor from, uint8_t *out, float *reciprocals)
{
    FOR_TYPE(k->dtype, operation_is_aligned(from),
             LAUNCH(k, (cast_rows_to_fp8<T, ALIGNED>), dim3(count_blocks(from.rows, FP8_WARPS)),
                    FP8_THREADS, 0, out, reciprocals, make_matrix<const T>(from), from.rows,
                    from.columns));
    return STATUS_OK;
}

/* Casts to out [columns, stride]. */
static status cast_columns(struct kernels *k, struct tensor from, uint8_t *out, float *reciprocals,
                           int64_t stride)
{
    /* A part is a multiple of the rows that a block reads at once. */
    int64_t lines = count_blocks(from.rows, FP8_LINES * CUDA_FP8_PARTS);
    int64_t part = lines * FP8_LINES;
    unsigned part_count = count_blocks(from.rows, part),
             blocks = count_blocks(from.columns, FP8_TILE);
    void *memory;
    TRY(take_scratch(k, part_count * from.columns * static_cast<int64_t>(sizeof(uint32_t)),
                     &memory));
    uint32_t *parts = static_cast<uint32_t *>(memory);
    FOR_TYPE(k->dtype, operation_is_aligned(from),
             LAUNCH(k, (measure_columns<T, ALIGNED>), dim3(blocks, part_count), FP8_THREADS, 0,
                    parts, make_matrix<const T>(from), from.rows, from.columns, part));
    FOR_TYPE(k->dtype, operation_is_aligned(from),
             LAUNCH(k, (cast_columns_to_fp8<T, ALIGNED>),
                    dim3(blocks, count_blocks(stride, FP8_TILE)), FP8_THREADS, 0, out, reciprocals,
                    const_cast<const uint32_t *>(parts), static_cast<int>(part_count),
                    make_matrix<const T>(from), from.rows, from.columns, stride));
    return STATUS_OK;
}

/* Casts an operand with a scale for each row of the result. */
static status cast_rowwise(struct kernels *k, const struct fp8_cast *cast, struct tensor *to,
                           const float **reciprocal)
{
    const struct tensor from = cast->from;
    const int64_t stride = number_divide_up(from.rows, FP8_MULTIPLE) * FP8_MULTIPLE;
    const int64_t scales = cast->transposed ? from.columns : from.rows;
    void *memory, *reciprocals;
    TRY(take_scratch(k, (cast->transposed ? stride : from.rows) * from.columns, &memory));
    TRY(take_scratch(k, scales * static_cast<int64_t>(sizeof(float)), &reciprocals));
    *to = cast->transposed ? tensor_view(memory, DTYPE_E4M3, from.columns, stride)
                           : tensor_view(memory, DTYPE_E4M3, from.rows, from.columns);
    *reciprocal = static_cast<const float *>(reciprocals);
    if (from.rows == 0) {
        return STATUS_OK;
    }
    return cast->transposed ? cast_columns(k, from, static_cast<uint8_t *>(memory),
                                           static_cast<float *>(reciprocals), stride)
                            : cast_rows(k, from, static_cast<uint8_t *>(memory),
                                        static_cast<float *>(reciprocals));
}

/* Casts an operand to scratch memory. *reciprocal receives its factor in the GEMM, or row-wise
 * its factors. */
static status cast_operand(struct kernels *k, const struct fp8_cast *cast, struct tensor *to,
                           const float **reciprocal)
{
    if (k->limits.fp8_rowwise) {
        return cast_rowwise(k, cast, to, reciprocal);
    }
    int64_t stride = number_divide_up(cast->from.rows, FP8_MULTIPLE) * FP8_MULTIPLE;
    int64_t rows = cast->transposed ? stride : cast->from.rows;
    enum dtype dtype = cast->operand == FP8_DY ? DTYPE_E5M2 : DTYPE_E4M3;
    void *memory;
    TRY(arena_take(&cuda_get_state(k)->scratch, static_cast<size_t>(rows * cast->from.columns),
                   &memory));
    struct fp8_outputs out = {};
    out.maximum = get_maximum(cast);
    *reciprocal = get_factor(cast, FP8_RECIPROCAL);
    if (cast->transposed) {
        out.transposed = static_cast<uint8_t *>(memory);
        out.stride = stride;
        *to = tensor_view(memory, dtype, cast->from.columns, stride);
    } else {
        out.rounded = static_cast<uint8_t *>(memory);
        *to = tensor_view(memory, dtype, rows, cast->from.columns);
    }
    return launch_cast(k, cast, &out);
}

/* Casts both operands and multiplies them: p->c (+)= a b^T. */
static status run_gemm(struct kernels *k, struct cuda_gemm *p, const struct fp8_cast *a,
                       const struct fp8_cast *b)
{
    struct arena *scratch = &cuda_get_state(k)->scratch;
    size_t mark = arena_mark(scratch);
    TRY(cast_operand(k, a, &p->a, &p->scale_a));
    TRY(cast_operand(k, b, &p->b, &p->scale_b));
    arena_release(scratch, mark);
    p->transpose_b = true;
    p->scales_rows = k->limits.fp8_rowwise;
    return cuda_gemm_run(k, p);
}

extern "C" status cuda_fp8_linear_forward(struct kernels *k, struct tensor y, struct tensor saved,
                                          struct tensor maxima, struct tensor x, struct tensor w,
                                          struct tensor bias, struct tensor scales,
                                          enum activation act)
{
    const struct fp8_cast a = {x, scales, maxima, FP8_X, false};
    const struct fp8_cast b = {w, scales, maxima, FP8_W, false};
    if (!is_rounded(k, scales)) {
        TRY(measure_operand(k, &a));
        TRY(measure_operand(k, &b));
        return cuda_linear_forward(k, y, saved, x, w, bias, act);
    }
    struct cuda_gemm p = {};
    p.c = y;
    p.bias = bias;
    p.act = act;
    p.aux = saved;
    return run_gemm(k, &p, &a, &b);
}

extern "C" status cuda_fp8_linear_backward_input(struct kernels *k, struct tensor dx,
                                                 struct bias_gradient dbias, struct tensor maxima,
                                                 struct tensor dy, struct tensor w,
                                                 struct tensor scales, enum activation act,
                                                 struct tensor saved)
{
    const struct fp8_cast a = {dy, scales, maxima, FP8_DY, false};
    const struct fp8_cast b = {w, scales, tensor_absent(), FP8_W, true};
    if (!is_rounded(k, scales)) {
        TRY(measure_operand(k, &a));
        return cuda_linear_backward_input(k, dx, dbias, dy, w, act, saved);
    }
    struct cuda_gemm p = {};
    p.c = dx;
    /* The sums need scratch memory, which contains the operands until the GEMM and its tuning end.
     * Therefore the derivative and the sums follow in a separate kernel. */
    const bool sums = dbias.sums.data != nullptr, activated = act != ACTIVATION_NONE;
    if (activated && !sums) {
        p.act = act;
        p.derivative = true;
        p.aux = saved;
    }
    TRY(run_gemm(k, &p, &a, &b));
    if (!sums) {
        return STATUS_OK;
    }
    return activated ? cuda_activation_backward_sums(k, dx, dbias, dx, saved, act)
                     : cuda_bias_gradient(k, dbias, dx);
}

extern "C" status cuda_fp8_linear_backward_weight(struct kernels *k, struct tensor dw,
                                                  struct tensor dbias, struct tensor maxima,
                                                  struct tensor dy, struct tensor x,
                                                  struct tensor scales, bool overwrite)
{
    const struct fp8_cast a = {dy, scales, maxima, FP8_DY, true};
    const struct fp8_cast b = {x, scales, tensor_absent(), FP8_X, true};
    if (!is_rounded(k, scales) || dw.data == nullptr) {
        TRY(measure_operand(k, &a));
        return cuda_linear_backward_weight(k, dw, dbias, dy, x, overwrite);
    }
    TRY(dbias.data != nullptr ? cuda_bias_gradient(k, {dbias, overwrite}, dy) : STATUS_OK);
    struct cuda_gemm p = {};
    p.c = dw;
    p.accumulate = !overwrite;
    return run_gemm(k, &p, &a, &b);
}

extern "C" status cuda_fp8_update_scales(struct kernels *k, struct tensor scales,
                                         struct tensor history, struct tensor maxima, int64_t row,
                                         const struct update_control *control)
{
    LAUNCH(k, update_scales, count_blocks(history.columns, 32), FP8_THREADS, 0,
           make_matrix<float>(scales), make_matrix<float>(history),
           make_matrix<const float>(maxima), history.columns, history.rows, maxima.rows, row,
           control);
    return STATUS_OK;
}
