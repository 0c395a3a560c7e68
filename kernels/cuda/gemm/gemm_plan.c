/* GEMM plans: descriptors and layouts of cuBLASLt, and its algorithms for a plan.
 *
 * Layout    Matrices of cuBLASLt are column-major: a row-major t [rows, columns] is its transpose
 *           there. Therefore c = op(a) op(b) is computed as c^T = op(b)^T op(a)^T, and cuBLASLt's
 *           rows are our columns. A bias is one column of cuBLASLt. The sums of our a over the
 *           inner dimension are the sums of its B (BGRADB).
 * FP8       The first operand of cuBLASLt is our b, so its factor is the factor of b. Row-wise
 *           factors are vectors for the rows and the columns of the result (OUTER_VEC_32F).
 * Order     The sums of a split inner dimension are reduced in a second pass, never in place in
 *           order of arrival: the same call gives the same bits.
 * Source    cublasLt.h of CUDA 13.0: its GELU is the tanh approximation; the leading dimension of
 *           its AUX matrix is a multiple of eight elements */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "kernels/cuda/gemm/gemm.h"

enum { ALIGNMENT_MAX = 256, ALIGNMENT_AUX = 16, AUX_ROW_ELEMS = 8 };

static cudaDataType_t get_cuda_type(enum dtype dtype)
{
    static const cudaDataType_t types[] = {[DTYPE_F32] = CUDA_R_32F,
                                           [DTYPE_BF16] = CUDA_R_16BF,
                                           [DTYPE_E4M3] = CUDA_R_8F_E4M3,
                                           [DTYPE_E5M2] = CUDA_R_8F_E5M2};
    return types[dtype];
}

static int32_t get_alignment(const void *data)
{
    uintptr_t address = (uintptr_t)data, lowest = address & (~address + 1);
    return lowest == 0 || lowest > ALIGNMENT_MAX ? ALIGNMENT_MAX : (int32_t)lowest;
}

/* Returns the set of epilogue parts of a GEMM. */
static int get_epilogue(const struct cuda_gemm *p)
{
    return (p->bias.data != NULL ? GEMM_BIAS : 0) |
           (p->act != ACTIVATION_NONE ? GEMM_ACTIVATION : 0) |
           (p->sums.sums.data != NULL ? GEMM_SUMS : 0);
}

struct gemm_key gemm_plan_key(const struct cuda_gemm *p)
{
    const struct tensor *tensors[3] = {&p->c, &p->a, &p->b};
    const void *vector = p->sums.sums.data != NULL ? p->sums.sums.data : p->bias.data;
    const void *aligned[5] = {p->c.data, p->a.data, p->b.data, p->aux.data, vector};
    struct gemm_key key;
    memset(&key, 0, sizeof key);
    for (int i = 0; i < 3; i++) {
        key.rows[i] = tensors[i]->rows;
        key.columns[i] = tensors[i]->columns;
        key.stride[i] = tensors[i]->stride;
    }
    for (int i = 0; i < 5; i++) {
        key.alignment[i] = get_alignment(aligned[i]);
    }
    key.aux_stride = p->aux.data != NULL ? p->aux.stride : 0;
    key.type = (int32_t)get_cuda_type(p->a.dtype);
    if (p->b.dtype != p->a.dtype) { /* E5M2 by E4M3 */
        key.type |= ((int32_t)get_cuda_type(p->b.dtype) + 1) << 8;
    }
    key.type |= p->scales_rows ? GEMM_SCALES_ROWS : 0;
    key.c_type = (int32_t)get_cuda_type(p->c.dtype);
    key.transpose_a = p->transpose_a;
    key.transpose_b = p->transpose_b;
    key.epilogue = get_epilogue(p);
    key.activation = (int32_t)p->act;
    key.derivative = p->derivative;
    return key;
}

bool gemm_plan_is_fp8(const struct gemm_key *key)
{
    int32_t type = key->type & 0xff;
    return type == (int32_t)CUDA_R_8F_E4M3 || type == (int32_t)CUDA_R_8F_E5M2;
}

/* cuBLASLt fuses the tanh approximation of GELU only, and accesses aux 16 bytes at a time. The
 * activation of an FP8 GEMM is a separate kernel. */
static bool supports_activation(const struct gemm_key *key)
{
    bool aux = key->aux_stride > 0;
    return key->activation == (int32_t)ACTIVATION_GELU_TANH && !gemm_plan_is_fp8(key) &&
           (!aux || (key->aux_stride % AUX_ROW_ELEMS == 0 && key->alignment[3] >= ALIGNMENT_AUX));
}

int gemm_plan_fusions(const struct gemm_key *key, int fusions[GEMM_FUSIONS_MAX])
{
    /* With FP8 operands and an f32 output, cuBLASLt reads the bias as bf16. */
    bool wide = gemm_plan_is_fp8(key) && key->c_type == (int32_t)CUDA_R_32F;
    int count = 0, bias = wide ? 0 : key->epilogue & GEMM_BIAS;
    fusions[count++] = bias;
    if ((key->epilogue & GEMM_ACTIVATION) != 0 && supports_activation(key)) {
        fusions[count++] = bias | GEMM_ACTIVATION;
    }
    if ((key->epilogue & GEMM_SUMS) != 0 && key->transpose_a != 0) {
        fusions[count++] = GEMM_SUMS;
    }
    if (bias != 0) {
        fusions[count++] = 0;
    }
    return count;
}

struct tensor gemm_plan_output(const struct cuda_gemm *p, int fused)
{
    bool separate = p->act != ACTIVATION_NONE && !p->derivative && (fused & GEMM_ACTIVATION) == 0;
    return separate && p->aux.data != NULL ? p->aux : p->c;
}

static uint32_t get_epilogue_code(const struct gemm_plan *plan)
{
    bool bias = (plan->fused & GEMM_BIAS) != 0, aux = plan->key.aux_stride > 0;
    if ((plan->fused & GEMM_ACTIVATION) != 0) {
        if (plan->key.derivative) {
            return CUBLASLT_EPILOGUE_DGELU;
        }
        return aux ? (bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX)
                   : (bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU);
    }
    if ((plan->fused & GEMM_SUMS) != 0) {
        return CUBLASLT_EPILOGUE_BGRADB;
    }
    return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

void gemm_plan_format(const struct cuda_gemm *p, struct tensor output, char text[GEMM_TEXT_BYTES])
{
    snprintf(text, GEMM_TEXT_BYTES,
             "[%" PRId64 ", %" PRId64 "]%s %s by [%" PRId64 ", %" PRId64 "]%s %s to %s, strides "
             "%" PRId64 ", %" PRId64 " and %" PRId64 ", addresses aligned to %d, %d and %d bytes, "
             "factors to %d and %d",
             p->a.rows, p->a.columns, p->transpose_a ? "^T" : "", dtype_name(p->a.dtype), p->b.rows,
             p->b.columns, p->transpose_b ? "^T" : "", dtype_name(p->b.dtype),
             dtype_name(output.dtype), p->a.stride, p->b.stride, output.stride,
             get_alignment(p->a.data), get_alignment(p->b.data), get_alignment(output.data),
             get_alignment(p->scale_a), get_alignment(p->scale_b));
}

static status set_attribute(struct cuda_gemm_context *gemm, struct gemm_plan *plan,
                            cublasLtMatmulDescAttributes_t name, const void *value, size_t bytes)
{
    GEMM_CHECK(gemm, "setting an attribute of a GEMM",
               gemm->library.cublasLtMatmulDescSetAttribute(plan->descriptor, name, value, bytes));
    return STATUS_OK;
}

status gemm_plan_set_pointers(struct cuda_gemm_context *gemm, struct gemm_plan *plan,
                              const struct cuda_gemm *p, const void *vector)
{
    if (p->scale_a != NULL) {
        TRY(set_attribute(gemm, plan, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &p->scale_b,
                          sizeof p->scale_b));
        TRY(set_attribute(gemm, plan, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &p->scale_a,
                          sizeof p->scale_a));
    }
    if ((plan->fused & (GEMM_BIAS | GEMM_SUMS)) != 0) {
        TRY(set_attribute(gemm, plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector));
    }
    if ((plan->fused & GEMM_ACTIVATION) != 0 && p->aux.data != NULL) {
        int64_t stride = p->aux.stride;
        TRY(set_attribute(gemm, plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &p->aux.data,
                          sizeof p->aux.data));
        TRY(set_attribute(gemm, plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &stride,
                          sizeof stride));
    }
    return STATUS_OK;
}

/* b^T is the first operand: a row-major b [inner, n] is a column-major b^T
 * without transposition. */
static status create_descriptors(struct cuda_gemm_context *gemm, struct gemm_plan *plan,
                                 const struct cuda_gemm *p)
{
    const struct cublaslt *l = &gemm->library;
    const struct tensor tensors[3] = {gemm_plan_output(p, plan->fused), p->a, p->b};
    cublasOperation_t first = p->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = p->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint32_t epilogue = get_epilogue_code(plan);
    GEMM_CHECK(gemm, "creating a descriptor",
               l->cublasLtMatmulDescCreate(&plan->descriptor, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    TRY(set_attribute(gemm, plan, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    TRY(set_attribute(gemm, plan, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    TRY(set_attribute(gemm, plan, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    for (int i = 0; i < 3; i++) {
        const struct tensor *t = &tensors[i];
        GEMM_CHECK(gemm, "creating a layout",
                   l->cublasLtMatrixLayoutCreate(&plan->layouts[i], get_cuda_type(t->dtype),
                                                 (uint64_t)t->columns, (uint64_t)t->rows,
                                                 t->stride));
    }
    if (p->scales_rows) {
        const int32_t mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
        TRY(set_attribute(gemm, plan, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &mode, sizeof mode));
        TRY(set_attribute(gemm, plan, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &mode, sizeof mode));
    }
    /* cuBLASLt derives alignments from the addresses. */
    return gemm_plan_set_pointers(gemm, plan, p,
                                  p->sums.sums.data != NULL ? p->sums.sums.data : gemm->workspace);
}

status gemm_plan_describe(struct cuda_gemm_context *gemm, struct gemm_plan *plan,
                          const struct cuda_gemm *p)
{
    status result = create_descriptors(gemm, plan, p);
    if (result != STATUS_OK) {
        gemm_plan_release(gemm, plan);
    }
    return result;
}

void gemm_plan_release(struct cuda_gemm_context *gemm, struct gemm_plan *plan)
{
    const struct cublaslt *l = &gemm->library;
    for (int i = 0; i < 3; i++) {
        if (plan->layouts[i] != NULL) {
            (void)l->cublasLtMatrixLayoutDestroy(plan->layouts[i]);
        }
        plan->layouts[i] = NULL;
    }
    if (plan->descriptor != NULL) {
        (void)l->cublasLtMatmulDescDestroy(plan->descriptor);
    }
    plan->descriptor = NULL;
}

static status set_preference(struct cuda_gemm_context *gemm, const struct gemm_plan *plan,
                             cublasLtMatmulPreference_t preference)
{
    size_t workspace = gemm->library.workspace_bytes;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const int32_t *alignment = plan->key.alignment;
    bool writes_aux = !plan->key.derivative && (plan->key.epilogue & GEMM_ACTIVATION) != 0 &&
                      (plan->fused & GEMM_ACTIVATION) == 0 && plan->key.aux_stride > 0;
    uint32_t c = (uint32_t)alignment[writes_aux ? 3 : 0], a = (uint32_t)alignment[1],
             b = (uint32_t)alignment[2];
    const struct {
        cublasLtMatmulPreferenceAttributes_t name;
        const void *value;
        size_t bytes;
    } attributes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &b, sizeof b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &a, sizeof a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof c},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof c},
    };
    for (int i = 0; i < COUNT(attributes); i++) {
        GEMM_CHECK(gemm, "setting a preference",
                   gemm->library.cublasLtMatmulPreferenceSetAttribute(
                       preference, attributes[i].name, attributes[i].value, attributes[i].bytes));
    }
    return STATUS_OK;
}

status gemm_plan_algorithms(struct cuda_gemm_context *gemm, const struct gemm_plan *plan,
                            int max_count, cublasLtMatmulAlgo_t *out, int *count)
{
    const struct cublaslt *l = &gemm->library;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t found[GEMM_ALGORITHMS_MAX];
    int returned = 0;
    *count = 0;
    GEMM_CHECK(gemm, "creating a preference", l->cublasLtMatmulPreferenceCreate(&preference));
    status result = set_preference(gemm, plan, preference);
    if (result == STATUS_OK &&
        l->cublasLtMatmulAlgoGetHeuristic(
            gemm->handle, plan->descriptor, plan->layouts[2], plan->layouts[1], plan->layouts[0],
            plan->layouts[0], preference, max_count, found, &returned) != CUBLAS_STATUS_SUCCESS) {
        returned = 0; /* an error here means that it has no algorithm */
    }
    (void)l->cublasLtMatmulPreferenceDestroy(preference);
    for (int i = 0; i < returned; i++) {
        if (found[i].state == CUBLAS_STATUS_SUCCESS) {
            out[(*count)++] = found[i].algo;
        }
    }
    return result;
}

bool gemm_plan_is_valid(struct cuda_gemm_context *gemm, const struct gemm_plan *plan)
{
    cublasLtMatmulHeuristicResult_t found;
    return gemm->library.cublasLtMatmulAlgoCheck(
               gemm->handle, plan->descriptor, plan->layouts[2], plan->layouts[1], plan->layouts[0],
               plan->layouts[0], &plan->algorithm, &found) == CUBLAS_STATUS_SUCCESS &&
           found.workspaceSize <= gemm->library.workspace_bytes;
}
