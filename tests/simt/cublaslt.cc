/* cuBLASLt for the emulator: products and their epilogues in plain loops, and what the real library refuses is
 * refused here.
 *
 * Algorithms  three for each product, which add in other orders: all at once; in two halves; in four quarters. A
 *             fourth adds in place (SIMT_REDUCTION_INPLACE): it is given only to who does not forbid it
 * Times       a product takes what simt_set_product_times says, in the emulator's time (pass_time); by default the
 *             library's first choice is the fastest, and what is fused is faster than what is not
 * Source      cublasLt.h of CUDA 13.0. Matrices lie by columns */
#include <algorithm>
#include <cstdio>
#include <vector>

#include "kernels/cuda/operation.cuh"
#include "tests/simt/gemm.h"

extern "C" {
#include "kernels/cuda/cublaslt.h"
}

struct cublasLtContext {
    int open;
};

struct simt_product {
    cublasOperation_t first = CUBLAS_OP_N, second = CUBLAS_OP_N;
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void *bias = nullptr, *kept = nullptr;
    int64_t kept_stride = 0;
};

struct simt_layout {
    cudaDataType_t type;
    int64_t rows, columns, stride;
};

struct simt_preference {
    uint64_t workspace = 0;
    uint32_t reductions = 7;
    uint32_t alignments[4] = {256, 256, 256, 256};
};

enum { ALGORITHMS = 4, IN_PLACE = 3, ALGORITHM_MARK = 0x51 };

static double default_times(int algorithm, unsigned epilogue)
{
    bool plain = epilogue == CUBLASLT_EPILOGUE_DEFAULT || epilogue == CUBLASLT_EPILOGUE_BIAS;
    return (plain ? 200 : 100) + algorithm;
}
static double (*product_times)(int algorithm, unsigned epilogue) = default_times;
static struct simt_products counted;

extern "C" void simt_set_product_times(double (*times)(int algorithm, unsigned epilogue))
{
    product_times = times != nullptr ? times : default_times;
}

extern "C" struct simt_products simt_products_seen(void)
{
    struct simt_products seen = counted;
    counted = {};
    return seen;
}

/* ---- the library's objects ---- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    *out = new cublasLtContext{1};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    delete handle;
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion()
{
    return 0;
}

const char *cublasLtGetStatusString(cublasStatus_t told)
{
    return told == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "invalid value";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    *out = new simt_product;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    delete desc;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t take(void *to, size_t size, const void *value, size_t bytes)
{
    if (bytes != size) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t bytes)
{
    switch (name) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return take(&desc->first, sizeof desc->first, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return take(&desc->second, sizeof desc->second, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return take(&desc->epilogue, sizeof desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return take(&desc->bias, sizeof desc->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return take(&desc->kept, sizeof desc->kept, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return take(&desc->kept_stride, sizeof desc->kept_stride, value, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t stride)
{
    if (stride < static_cast<int64_t>(rows)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    *out = new simt_layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), stride};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout)
{
    delete layout;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    *out = new simt_preference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference)
{
    delete preference;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void *value, size_t bytes)
{
    switch (name) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES:
        return take(&preference->workspace, sizeof preference->workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return take(&preference->reductions, sizeof preference->reductions, value, bytes);
    default:
        return take(&preference->alignments[name - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
                    sizeof(uint32_t), value, bytes);
    }
}

/* ---- what it refuses ---- */

static int64_t inner_of(const simt_product *desc, const simt_layout *a)
{
    return desc->first == CUBLAS_OP_N ? a->columns : a->rows;
}

static bool aligned(const void *p, size_t bytes)
{
    return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

static bool has_bias(uint32_t epilogue)
{
    return (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0 || epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

static bool has_kept(uint32_t epilogue)
{
    return (epilogue & 128) != 0;
}

static cublasStatus_t judge(const simt_product *desc, const simt_layout *a, const simt_layout *b,
                            const simt_layout *d)
{
    int64_t rows = desc->first == CUBLAS_OP_N ? a->rows : a->columns;
    int64_t columns = desc->second == CUBLAS_OP_N ? b->columns : b->rows;
    int64_t inner = desc->second == CUBLAS_OP_N ? b->rows : b->columns;
    if (rows != d->rows || columns != d->columns || inner != inner_of(desc, a) ||
        a->type != b->type || (d->type != a->type && d->type != CUDA_R_32F)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    size_t element = d->type == CUDA_R_32F ? 4 : 2;
    if (has_bias(desc->epilogue) && (desc->bias == nullptr || !aligned(desc->bias, element))) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (has_kept(desc->epilogue) && (desc->kept == nullptr || !aligned(desc->kept, 16) ||
                                     desc->kept_stride % 8 != 0 || desc->kept_stride < d->rows)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t out[], int *count)
{
    (void)handle;
    (void)c;
    *count = 0;
    cublasStatus_t told = judge(desc, a, b, d);
    if (told != CUBLAS_STATUS_SUCCESS) {
        return told;
    }
    bool in_place = (preference->reductions & CUBLASLT_REDUCTION_SCHEME_INPLACE) != 0;
    for (int i = 0; i < (in_place ? ALGORITHMS : IN_PLACE) && *count < most; i++) {
        cublasLtMatmulHeuristicResult_t &result = out[(*count)++];
        result = {};
        result.algo.data[0] = ALGORITHM_MARK;
        result.algo.data[1] = static_cast<uint64_t>(in_place ? IN_PLACE - i : i);
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algorithm,
                                       cublasLtMatmulHeuristicResult_t *out)
{
    (void)handle;
    (void)c;
    *out = {};
    bool known = algorithm->data[0] == ALGORITHM_MARK && algorithm->data[1] < ALGORITHMS;
    return known ? judge(desc, a, b, d) : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* ---- products ---- */

struct work {
    simt_product desc;
    simt_layout a_layout, b_layout, d_layout;
    const void *a, *b;
    void *d;
    float beta;
    int algorithm;
};

static float element(const void *data, cudaDataType_t type, int64_t at)
{
    return type == CUDA_R_32F ? static_cast<const float *>(data)[at]
                              : gpu_float(static_cast<const bf16 *>(data)[at]);
}

static void set_element(void *data, cudaDataType_t type, int64_t at, float x)
{
    if (type == CUDA_R_32F) {
        static_cast<float *>(data)[at] = x;
    } else {
        static_cast<bf16 *>(data)[at] = gpu_bf16(x);
    }
}

/* op(t), column after column. */
static std::vector<float> unpacked(const void *data, const simt_layout &t, cublasOperation_t op)
{
    bool across = op == CUBLAS_OP_T;
    int64_t rows = across ? t.columns : t.rows, columns = across ? t.rows : t.columns;
    std::vector<float> out(static_cast<size_t>(rows * columns));
    for (int64_t c = 0; c < columns; c++) {
        for (int64_t r = 0; r < rows; r++) {
            out[static_cast<size_t>(c * rows + r)] =
                element(data, t.type, across ? r * t.stride + c : c * t.stride + r);
        }
    }
    return out;
}

static float gelu(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static float gelu_slope(float x)
{
    float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
    float inner = 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x);
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
}

/* One element of d, from the sum and what was there. */
static void store(const struct work &w, int64_t row, int64_t column, float sum)
{
    const simt_product &desc = w.desc;
    cudaDataType_t type = w.d_layout.type;
    int64_t at = column * w.d_layout.stride + row, kept = column * desc.kept_stride + row;
    sum += w.beta != 0 ? w.beta * element(w.d, type, at) : 0.0f;
    sum += (desc.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0 ? element(desc.bias, type, row) : 0.0f;
    if (desc.epilogue == CUBLASLT_EPILOGUE_DGELU) {
        sum *= gelu_slope(element(desc.kept, type, kept));
    } else if ((desc.epilogue & CUBLASLT_EPILOGUE_GELU) != 0) {
        if (has_kept(desc.epilogue)) {
            set_element(desc.kept, type, kept, sum);
        }
        sum = gelu(sum);
    }
    set_element(w.d, type, at, sum);
}

static void multiply(const struct work &w)
{
    std::vector<float> a = unpacked(w.a, w.a_layout, w.desc.first),
                       b = unpacked(w.b, w.b_layout, w.desc.second);
    auto rows = static_cast<size_t>(w.d_layout.rows);
    auto inner = static_cast<size_t>(inner_of(&w.desc, &w.a_layout));
    size_t parts = size_t{1} << w.algorithm;
    std::vector<float> sums(rows), part(rows);
    for (size_t column = 0; column < static_cast<size_t>(w.d_layout.columns); column++) {
        std::fill(sums.begin(), sums.end(), 0.0f);
        float of_b = 0;
        for (size_t p = 0; p < parts; p++) {
            std::fill(part.begin(), part.end(), 0.0f);
            for (size_t l = inner * p / parts; l < inner * (p + 1) / parts; l++) {
                float factor = b[column * inner + l];
                of_b += factor;
                for (size_t row = 0; row < rows; row++) {
                    part[row] += a[l * rows + row] * factor;
                }
            }
            for (size_t row = 0; row < rows; row++) {
                sums[row] += part[row];
            }
        }
        for (size_t row = 0; row < rows; row++) {
            store(w, static_cast<int64_t>(row), static_cast<int64_t>(column), sums[row]);
        }
        if (w.desc.epilogue == CUBLASLT_EPILOGUE_BGRADB) {
            set_element(w.desc.bias, w.d_layout.type, static_cast<int64_t>(column), of_b);
        }
    }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    (void)handle;
    (void)workspace_bytes;
    cublasStatus_t told = judge(desc, a_layout, b_layout, d_layout);
    if (told != CUBLAS_STATUS_SUCCESS || algorithm->data[0] != ALGORITHM_MARK || c != d ||
        c_layout != d_layout || *static_cast<const float *>(alpha) != 1) {
        return told != CUBLAS_STATUS_SUCCESS ? told : CUBLAS_STATUS_INVALID_VALUE;
    }
    struct work w = {*desc,
                     *a_layout,
                     *b_layout,
                     *d_layout,
                     a,
                     b,
                     d,
                     *static_cast<const float *>(beta),
                     static_cast<int>(algorithm->data[1])};
    if (stream != nullptr) {
        const void *addresses[] = {a,
                                   b,
                                   d,
                                   workspace,
                                   has_bias(w.desc.epilogue) ? w.desc.bias : nullptr,
                                   has_kept(w.desc.epilogue) ? w.desc.kept : nullptr};
        simt::refuse_host_address(addresses, sizeof addresses);
    }
    counted.products++;
    counted.last_algorithm = w.algorithm;
    counted.last_epilogue = w.desc.epilogue;
    counted.in_place += w.algorithm == IN_PLACE;
    counted.epilogues |= w.desc.epilogue;
    double seconds = product_times(w.algorithm, w.desc.epilogue);
    simt::queue(stream, [w, seconds] {
        multiply(w);
        simt::pass_time(seconds);
    });
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- finding it ---- */

extern "C" status cublaslt_open(struct cublaslt *library)
{
#define CUBLASLT_TAKE(name) library->name = name;
    CUBLASLT_FUNCTIONS(CUBLASLT_TAKE)
#undef CUBLASLT_TAKE
    library->workspace_bytes =
        1 << 16; /* unused, and the emulator is slow to open and close memory */
    return STATUS_OK;
}

extern "C" void cublaslt_close(struct cublaslt *library)
{
    (void)library;
}
