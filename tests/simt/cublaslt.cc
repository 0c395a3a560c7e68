/* The emulated cuBLASLt: GEMMs and their epilogues in plain loops. It refuses the same arguments as
 * the real library.
 *
 * Algorithms  Three for each GEMM, with different orders of summation: one sum, two halves, four
 *             quarters. A fourth one reduces in place (CUBLASLT_REDUCTION_SCHEME_INPLACE) and is
 *             offered only if the caller allows that
 * Times       A GEMM advances the emulated time (pass_time) as simt_set_gemm_times defines. By
 *             default the first algorithm is the fastest, and fused epilogues are faster than
 *             separate kernels. Without tuning (BIREME_PLANS=off) it does not advance the time
 * Layout      Matrices are column-major, as in cublasLt.h of CUDA 13.0 */
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kernels/cuda/operation.cuh"
#include "tests/simt/gemm.h"

extern "C" {
#include "kernels/cuda/gemm/cublaslt.h"
}

struct cublasLtContext {
    int open;
};

struct simt_gemm_desc {
    cublasOperation_t first = CUBLAS_OP_N, second = CUBLAS_OP_N;
    uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    void *bias = nullptr, *aux = nullptr;
    int64_t aux_stride = 0;
    const float *first_scale = nullptr, *second_scale = nullptr;
    int32_t first_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
    int32_t second_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
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

static double get_default_time(int algorithm, unsigned epilogue)
{
    const char *plans = getenv("BIREME_PLANS");
    bool plain = epilogue == CUBLASLT_EPILOGUE_DEFAULT || epilogue == CUBLASLT_EPILOGUE_BIAS;
    bool tuned = plans == nullptr || strcmp(plans, "off") != 0;
    return tuned ? (plain ? 200 : 100) + algorithm : 0;
}
static double (*gemm_times)(int algorithm, unsigned epilogue) = get_default_time;
static struct simt_gemm_calls calls;
static struct {
    int algorithm;
    unsigned epilogue;
} wrong = {-1, 0}, ignored = {-1, 0};

extern "C" void simt_set_wrong_gemm(int algorithm, unsigned epilogue)
{
    wrong = {algorithm, epilogue};
}

extern "C" void simt_set_ignored_epilogue(int algorithm, unsigned epilogue)
{
    ignored = {algorithm, epilogue};
}

extern "C" void simt_set_gemm_times(double (*times)(int algorithm, unsigned epilogue))
{
    gemm_times = times != nullptr ? times : get_default_time;
}

extern "C" struct simt_gemm_calls simt_gemm_reset_calls(void)
{
    struct simt_gemm_calls result = calls;
    calls = {};
    return result;
}

/* ---- descriptors, layouts and preferences ---- */

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

const char *cublasLtGetStatusString(cublasStatus_t result)
{
    return result == CUBLAS_STATUS_NOT_SUPPORTED ? "not supported" : "invalid value";
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale)
{
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    *out = new simt_gemm_desc;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    delete desc;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t copy_value(void *to, size_t size, const void *value, size_t bytes)
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
        return copy_value(&desc->first, sizeof desc->first, value, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return copy_value(&desc->second, sizeof desc->second, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return copy_value(&desc->epilogue, sizeof desc->epilogue, value, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return copy_value(&desc->bias, sizeof desc->bias, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return copy_value(&desc->aux, sizeof desc->aux, value, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return copy_value(&desc->aux_stride, sizeof desc->aux_stride, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
        return copy_value(&desc->first_scale, sizeof desc->first_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
        return copy_value(&desc->second_scale, sizeof desc->second_scale, value, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
        return copy_value(&desc->first_mode, sizeof desc->first_mode, value, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
        return copy_value(&desc->second_mode, sizeof desc->second_mode, value, bytes);
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
        return copy_value(&preference->workspace, sizeof preference->workspace, value, bytes);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return copy_value(&preference->reductions, sizeof preference->reductions, value, bytes);
    default:
        return copy_value(
            &preference->alignments[name - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES],
            sizeof(uint32_t), value, bytes);
    }
}

/* ---- argument checks ---- */

static int64_t get_inner(const simt_gemm_desc *desc, const simt_layout *a)
{
    return desc->first == CUBLAS_OP_N ? a->columns : a->rows;
}

static bool is_aligned(const void *p, size_t bytes)
{
    return reinterpret_cast<uintptr_t>(p) % bytes == 0;
}

static bool has_bias(uint32_t epilogue)
{
    return (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0 || epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

static bool has_aux(uint32_t epilogue)
{
    return (epilogue & 128) != 0;
}

static bool is_fp8(cudaDataType_t type)
{
    return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2;
}

static bool has_row_scales(const simt_gemm_desc *desc)
{
    return desc->first_mode == CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
}

/* Scales for each row: both matrices have them, both are E4M3, and the GPU is a Hopper. */
static bool supports_scales(const simt_gemm_desc *desc, const simt_layout *a, const simt_layout *b)
{
    const char *capability = getenv("SIMT_CAPABILITY");
    bool hopper = capability == nullptr || strcmp(capability, "9") == 0;
    return desc->first_mode == desc->second_mode &&
           (!has_row_scales(desc) ||
            (hopper && a->type == CUDA_R_8F_E4M3 && b->type == CUDA_R_8F_E4M3));
}

/* FP8 matrices as on Hopper: the first one is transposed and the second one is not, at most one is
 * E5M2, and all rows are aligned. The output and the bias are bf16, or the output is f32 without
 * bias. */
static bool supports_fp8(const simt_gemm_desc *desc, const simt_layout *a, const simt_layout *b,
                         const simt_layout *d)
{
    bool bias = (desc->epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
    return is_fp8(b->type) && supports_scales(desc, a, b) && desc->first == CUBLAS_OP_T &&
           desc->second == CUBLAS_OP_N &&
           (a->type == CUDA_R_8F_E4M3 || b->type == CUDA_R_8F_E4M3) && a->rows % 16 == 0 &&
           a->columns % 16 == 0 && a->stride % 16 == 0 && b->stride % 16 == 0 &&
           (d->type == CUDA_R_16BF ? d->stride % 8 == 0 : !bias && d->stride % 4 == 0) &&
           (bias ? desc->epilogue == CUBLASLT_EPILOGUE_BIAS
                 : desc->epilogue == CUBLASLT_EPILOGUE_DEFAULT);
}

static cublasStatus_t check_arguments(const simt_gemm_desc *desc, const simt_layout *a,
                                      const simt_layout *b, const simt_layout *d)
{
    int64_t rows = desc->first == CUBLAS_OP_N ? a->rows : a->columns;
    int64_t columns = desc->second == CUBLAS_OP_N ? b->columns : b->rows;
    int64_t inner = desc->second == CUBLAS_OP_N ? b->rows : b->columns;
    if (rows != d->rows || columns != d->columns || inner != get_inner(desc, a) ||
        (a->type != b->type && !is_fp8(a->type)) ||
        (d->type != a->type && d->type != CUDA_R_32F && !is_fp8(a->type))) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (is_fp8(a->type) && !supports_fp8(desc, a, b, d)) {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    size_t element = d->type == CUDA_R_32F ? 4 : 2;
    if (has_bias(desc->epilogue) && (desc->bias == nullptr || !is_aligned(desc->bias, element))) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    if (has_aux(desc->epilogue) && (desc->aux == nullptr || !is_aligned(desc->aux, 16) ||
                                    desc->aux_stride % 8 != 0 || desc->aux_stride < d->rows)) {
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
    cublasStatus_t checked = check_arguments(desc, a, b, d);
    if (checked != CUBLAS_STATUS_SUCCESS) {
        return checked;
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
    return known ? check_arguments(desc, a, b, d) : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* Checks the addresses that cublasLtMatmul refuses and the heuristic does not. Since version 12.9
 * the factors of FP8 matrices must be aligned to 16 bytes too. */
static cublasStatus_t check_addresses(const simt_gemm_desc *desc, const simt_layout *a,
                                      const void *const matrices[3])
{
    const void *const factors[2] = {desc->first_scale, desc->second_scale};
    bool has_factors = factors[0] != nullptr || factors[1] != nullptr;
    bool complete = factors[0] != nullptr && factors[1] != nullptr;
    bool aligned = is_aligned(factors[0], 16) && is_aligned(factors[1], 16);
    for (int i = 0; i < 3; i++) {
        aligned = aligned && is_aligned(matrices[i], 16);
    }
    if ((has_factors && !is_fp8(a->type)) || (has_row_scales(desc) && !complete)) {
        return CUBLAS_STATUS_INVALID_VALUE;
    }
    return aligned || !is_fp8(a->type) ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* ---- GEMMs ---- */

struct gemm_task {
    simt_gemm_desc desc;
    simt_layout a_layout, b_layout, d_layout;
    const void *a, *b;
    void *d;
    float beta;
    int algorithm;
};

/* Returns the value of an FP8 number. */
static float decode_fp8(uint8_t code, cudaDataType_t type)
{
    bool e5m2 = type == CUDA_R_8F_E5M2;
    int fraction_bits = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7, magnitude = code & 0x7f;
    int exponent = magnitude >> fraction_bits, fraction = magnitude & ((1 << fraction_bits) - 1);
    float value = exponent == 0 ? ldexpf(static_cast<float>(fraction), 1 - bias - fraction_bits)
                                : ldexpf(static_cast<float>(fraction + (1 << fraction_bits)),
                                         exponent - bias - fraction_bits);
    if (e5m2 && exponent == 31) {
        value = fraction == 0 ? INFINITY : NAN;
    } else if (!e5m2 && magnitude == 0x7f) {
        value = NAN;
    }
    return (code & 0x80) != 0 ? -value : value;
}

static float get_element(const void *data, cudaDataType_t type, int64_t at)
{
    if (is_fp8(type)) {
        return decode_fp8(static_cast<const uint8_t *>(data)[at], type);
    }
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

/* Returns op(matrix) in f32, column by column. */
static std::vector<float> unpack_matrix(const void *data, const simt_layout &t,
                                        cublasOperation_t op)
{
    bool transposed = op == CUBLAS_OP_T;
    int64_t rows = transposed ? t.columns : t.rows, columns = transposed ? t.rows : t.columns;
    std::vector<float> out(static_cast<size_t>(rows * columns));
    for (int64_t c = 0; c < columns; c++) {
        for (int64_t r = 0; r < rows; r++) {
            out[static_cast<size_t>(c * rows + r)] =
                get_element(data, t.type, transposed ? r * t.stride + c : c * t.stride + r);
        }
    }
    return out;
}

static float gelu(float x)
{
    return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

static float gelu_derivative(float x)
{
    float t = tanhf(0.7978845608f * (x + 0.044715f * x * x * x));
    float inner = 0.7978845608f * (1.0f + 3.0f * 0.044715f * x * x);
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
}

static bool ignores_epilogue(const struct gemm_task &w)
{
    return w.algorithm == ignored.algorithm && w.desc.epilogue == ignored.epilogue;
}

/* Computes one element of d: beta times the old value plus the sum, then the epilogue. */
static void store_element(const struct gemm_task &w, int64_t row, int64_t column, float sum)
{
    const simt_gemm_desc &desc = w.desc;
    cudaDataType_t type = w.d_layout.type;
    int64_t at = column * w.d_layout.stride + row, aux = column * desc.aux_stride + row;
    bool each = has_row_scales(&desc);
    sum *= desc.first_scale != nullptr ? desc.first_scale[each ? row : 0] : 1.0f;
    sum *= desc.second_scale != nullptr ? desc.second_scale[each ? column : 0] : 1.0f;
    sum += w.beta != 0 ? w.beta * get_element(w.d, type, at) : 0.0f;
    float used = ignores_epilogue(w) ? 0.0f : 1.0f; /* factor of the epilogue's operand */
    bool has_row_bias = (desc.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
    sum += has_row_bias ? used * get_element(desc.bias, type, row) : 0.0f;
    if (desc.epilogue == CUBLASLT_EPILOGUE_DGELU) {
        sum *= gelu_derivative(used * get_element(desc.aux, type, aux));
    } else if ((desc.epilogue & CUBLASLT_EPILOGUE_GELU) != 0) {
        if (has_aux(desc.epilogue)) {
            set_element(desc.aux, type, aux, sum);
        }
        sum = gelu(sum);
    }
    bool is_wrong = w.algorithm == wrong.algorithm && desc.epilogue == wrong.epilogue;
    set_element(w.d, type, at, is_wrong && row == 0 ? sum + 1 : sum);
}

static void run_gemm(const struct gemm_task &w)
{
    std::vector<float> a = unpack_matrix(w.a, w.a_layout, w.desc.first),
                       b = unpack_matrix(w.b, w.b_layout, w.desc.second);
    auto rows = static_cast<size_t>(w.d_layout.rows);
    auto inner = static_cast<size_t>(get_inner(&w.desc, &w.a_layout));
    size_t parts = size_t{1} << w.algorithm;
    std::vector<float> sums(rows), part(rows);
    for (size_t column = 0; column < static_cast<size_t>(w.d_layout.columns); column++) {
        std::fill(sums.begin(), sums.end(), 0.0f);
        float sum_of_b = 0;
        for (size_t p = 0; p < parts; p++) {
            std::fill(part.begin(), part.end(), 0.0f);
            for (size_t l = inner * p / parts; l < inner * (p + 1) / parts; l++) {
                float factor = b[column * inner + l];
                sum_of_b += factor;
                for (size_t row = 0; row < rows; row++) {
                    part[row] += a[l * rows + row] * factor;
                }
            }
            for (size_t row = 0; row < rows; row++) {
                sums[row] += part[row];
            }
        }
        for (size_t row = 0; row < rows; row++) {
            store_element(w, static_cast<int64_t>(row), static_cast<int64_t>(column), sums[row]);
        }
        if (w.desc.epilogue == CUBLASLT_EPILOGUE_BGRADB) {
            set_element(w.desc.bias, w.d_layout.type, static_cast<int64_t>(column),
                        ignores_epilogue(w) ? 0.0f : sum_of_b);
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
    const void *const matrices[3] = {a, b, d};
    cublasStatus_t result = check_arguments(desc, a_layout, b_layout, d_layout);
    if (result == CUBLAS_STATUS_SUCCESS) {
        result = check_addresses(desc, a_layout, matrices);
    }
    if (result != CUBLAS_STATUS_SUCCESS || algorithm->data[0] != ALGORITHM_MARK || c != d ||
        c_layout != d_layout || *static_cast<const float *>(alpha) != 1) {
        return result != CUBLAS_STATUS_SUCCESS ? result : CUBLAS_STATUS_INVALID_VALUE;
    }
    struct gemm_task w = {*desc,
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
                                   has_aux(w.desc.epilogue) ? w.desc.aux : nullptr,
                                   w.desc.first_scale,
                                   w.desc.second_scale};
        simt::refuse_host_address(addresses, sizeof addresses);
    }
    calls.gemms++;
    calls.last_algorithm = w.algorithm;
    calls.last_epilogue = w.desc.epilogue;
    calls.in_place += w.algorithm == IN_PLACE;
    calls.epilogues |= w.desc.epilogue;
    double seconds = gemm_times(w.algorithm, w.desc.epilogue);
    simt::queue(stream, [w, seconds] {
        run_gemm(w);
        simt::pass_time(seconds);
    });
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- opening ---- */

extern "C" status cublaslt_open(struct cublaslt *library)
{
#define CUBLASLT_ASSIGN(name) library->name = name;
    CUBLASLT_FUNCTIONS(CUBLASLT_ASSIGN)
#undef CUBLASLT_ASSIGN
    /* Unused. It is small because the emulator switches access to all device memory. */
    library->workspace_bytes = 1 << 16;
    return STATUS_OK;
}

extern "C" void cublaslt_close(struct cublaslt *library)
{
    (void)library;
}
