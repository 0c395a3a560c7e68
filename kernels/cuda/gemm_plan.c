/* A product as cuBLASLt is told of it, and which algorithms it has for it.
 *
 * Layout    cuBLASLt's matrices lie by columns, so that a row-major t [rows, columns] is its transpose, and
 *           c = op(a) op(b) is asked for as c^T = op(b)^T op(a)^T: its rows are our columns. A bias is one of its
 *           columns, and the sums of our a over the inner dimension are those of its B (BGRADB)
 * Order     sums of a split inner dimension are made in a second pass, never in place by whoever comes first: the
 *           same call gives the same bits
 * Source    cublasLt.h of CUDA 13.0: GELU there is the form by tanh; what is kept of it has rows of a multiple of
 *           eight elements */
#include <string.h>

#include "kernels/cuda/gemm.h"

enum { ALIGNMENT_MAX = 256, ALIGNMENT_KEPT = 16, KEPT_ROW_ELEMS = 8 };

static cudaDataType_t type_of(enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static int32_t alignment_of(const void *data)
{
    uintptr_t address = (uintptr_t)data, lowest = address & (~address + 1);
    return lowest == 0 || lowest > ALIGNMENT_MAX ? ALIGNMENT_MAX : (int32_t)lowest;
}

/* What follows the product. */
static int parts_of(const struct cuda_product *p)
{
    return (p->bias.data != NULL ? PRODUCT_BIAS : 0) |
           (p->act != ACTIVATION_NONE ? PRODUCT_ACTIVATION : 0) |
           (p->sums.data != NULL ? PRODUCT_SUMS : 0);
}

struct product_key product_plan_key(const struct cuda_product *p)
{
    const struct tensor *tensors[3] = {&p->c, &p->a, &p->b};
    const void *vector = p->sums.data != NULL ? p->sums.data : p->bias.data;
    const void *aligned[5] = {p->c.data, p->a.data, p->b.data, p->kept.data, vector};
    struct product_key key;
    memset(&key, 0, sizeof key);
    for (int i = 0; i < 3; i++) {
        key.rows[i] = tensors[i]->rows;
        key.columns[i] = tensors[i]->columns;
        key.stride[i] = tensors[i]->stride;
    }
    for (int i = 0; i < 5; i++) {
        key.alignment[i] = alignment_of(aligned[i]);
    }
    key.kept_stride = p->kept.data != NULL ? p->kept.stride : 0;
    key.type = (int32_t)type_of(p->a.dtype);
    key.c_type = (int32_t)type_of(p->c.dtype);
    key.transpose_a = p->transpose_a;
    key.transpose_b = p->transpose_b;
    key.parts = parts_of(p);
    key.activation = (int32_t)p->act;
    key.slope = p->slope;
    return key;
}

/* The library has the form of GELU by tanh, and reads and writes what is kept of it 16 bytes at a time. */
static bool has_activation(const struct product_key *key)
{
    bool kept = key->kept_stride > 0;
    return key->activation == (int32_t)ACTIVATION_GELU_TANH &&
           (!kept ||
            (key->kept_stride % KEPT_ROW_ELEMS == 0 && key->alignment[3] >= ALIGNMENT_KEPT));
}

int product_plan_ways(const struct product_key *key, int ways[PRODUCT_WAYS_MAX])
{
    int count = 0, bias = key->parts & PRODUCT_BIAS;
    ways[count++] = bias;
    if ((key->parts & PRODUCT_ACTIVATION) != 0 && has_activation(key)) {
        ways[count++] = bias | PRODUCT_ACTIVATION;
    }
    if ((key->parts & PRODUCT_SUMS) != 0) {
        ways[count++] = PRODUCT_SUMS;
    }
    if (bias != 0) {
        ways[count++] = 0;
    }
    return count;
}

struct tensor product_plan_output(const struct cuda_product *p, int fused)
{
    bool apart = p->act != ACTIVATION_NONE && !p->slope && (fused & PRODUCT_ACTIVATION) == 0;
    return apart && p->kept.data != NULL ? p->kept : p->c;
}

static uint32_t epilogue_of(const struct product_plan *plan)
{
    bool bias = (plan->fused & PRODUCT_BIAS) != 0, kept = plan->key.kept_stride > 0;
    if ((plan->fused & PRODUCT_ACTIVATION) != 0) {
        if (plan->key.slope) {
            return CUBLASLT_EPILOGUE_DGELU;
        }
        return kept ? (bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX)
                    : (bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU);
    }
    if ((plan->fused & PRODUCT_SUMS) != 0) {
        return CUBLASLT_EPILOGUE_BGRADB;
    }
    return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

static status set(struct cuda_products *products, struct product_plan *plan,
                  cublasLtMatmulDescAttributes_t name, const void *value, size_t bytes)
{
    PRODUCT_CHECK(
        products, "an attribute of a product",
        products->library.cublasLtMatmulDescSetAttribute(plan->product, name, value, bytes));
    return STATUS_OK;
}

status product_plan_point(struct cuda_products *products, struct product_plan *plan,
                          const struct cuda_product *p, const void *vector)
{
    if ((plan->fused & (PRODUCT_BIAS | PRODUCT_SUMS)) != 0) {
        TRY(set(products, plan, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &vector, sizeof vector));
    }
    if ((plan->fused & PRODUCT_ACTIVATION) != 0 && p->kept.data != NULL) {
        int64_t stride = p->kept.stride;
        TRY(set(products, plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &p->kept.data,
                sizeof p->kept.data));
        TRY(set(products, plan, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &stride, sizeof stride));
    }
    return STATUS_OK;
}

/* b^T comes first: of a row-major b [inner, n] it is what lies there. */
static status describe(struct cuda_products *products, struct product_plan *plan,
                       const struct cuda_product *p)
{
    const struct cublaslt *l = &products->library;
    const struct tensor tensors[3] = {product_plan_output(p, plan->fused), p->a, p->b};
    cublasOperation_t first = p->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = p->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    uint32_t epilogue = epilogue_of(plan);
    PRODUCT_CHECK(products, "a product",
                  l->cublasLtMatmulDescCreate(&plan->product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    TRY(set(products, plan, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    TRY(set(products, plan, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    TRY(set(products, plan, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    for (int i = 0; i < 3; i++) {
        const struct tensor *t = &tensors[i];
        PRODUCT_CHECK(products, "a matrix",
                      l->cublasLtMatrixLayoutCreate(&plan->layouts[i], type_of(t->dtype),
                                                    (uint64_t)t->columns, (uint64_t)t->rows,
                                                    t->stride));
    }
    /* The library reads alignments from the addresses. */
    return product_plan_point(products, plan, p,
                              p->sums.data != NULL ? p->sums.data : products->workspace);
}

status product_plan_describe(struct cuda_products *products, struct product_plan *plan,
                             const struct cuda_product *p)
{
    status result = describe(products, plan, p);
    if (result != STATUS_OK) {
        product_plan_forget(products, plan);
    }
    return result;
}

void product_plan_forget(struct cuda_products *products, struct product_plan *plan)
{
    const struct cublaslt *l = &products->library;
    for (int i = 0; i < 3; i++) {
        if (plan->layouts[i] != NULL) {
            (void)l->cublasLtMatrixLayoutDestroy(plan->layouts[i]);
        }
        plan->layouts[i] = NULL;
    }
    if (plan->product != NULL) {
        (void)l->cublasLtMatmulDescDestroy(plan->product);
    }
    plan->product = NULL;
}

static status set_preference(struct cuda_products *products, const struct product_plan *plan,
                             cublasLtMatmulPreference_t preference)
{
    size_t workspace = products->library.workspace_bytes;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const int32_t *alignment = plan->key.alignment;
    bool into_kept = !plan->key.slope && (plan->key.parts & PRODUCT_ACTIVATION) != 0 &&
                     (plan->fused & PRODUCT_ACTIVATION) == 0 && plan->key.kept_stride > 0;
    uint32_t c = (uint32_t)alignment[into_kept ? 3 : 0], a = (uint32_t)alignment[1],
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
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        PRODUCT_CHECK(
            products, "a preference",
            products->library.cublasLtMatmulPreferenceSetAttribute(
                preference, attributes[i].name, attributes[i].value, attributes[i].bytes));
    }
    return STATUS_OK;
}

status product_plan_algorithms(struct cuda_products *products, const struct product_plan *plan,
                               int most, cublasLtMatmulAlgo_t *out, int *count)
{
    const struct cublaslt *l = &products->library;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t found[PRODUCT_ALGORITHMS];
    int told = 0;
    *count = 0;
    PRODUCT_CHECK(products, "a preference", l->cublasLtMatmulPreferenceCreate(&preference));
    status result = set_preference(products, plan, preference);
    if (result == STATUS_OK &&
        l->cublasLtMatmulAlgoGetHeuristic(
            products->handle, plan->product, plan->layouts[2], plan->layouts[1], plan->layouts[0],
            plan->layouts[0], preference, most, found, &told) != CUBLAS_STATUS_SUCCESS) {
        told = 0; /* that is how it says that there are none */
    }
    (void)l->cublasLtMatmulPreferenceDestroy(preference);
    for (int i = 0; i < told; i++) {
        if (found[i].state == CUBLAS_STATUS_SUCCESS) {
            out[(*count)++] = found[i].algo;
        }
    }
    return result;
}

bool product_plan_valid(struct cuda_products *products, const struct product_plan *plan)
{
    cublasLtMatmulHeuristicResult_t found;
    return products->library.cublasLtMatmulAlgoCheck(
               products->handle, plan->product, plan->layouts[2], plan->layouts[1],
               plan->layouts[0], plan->layouts[0], &plan->algorithm,
               &found) == CUBLAS_STATUS_SUCCESS &&
           found.workspaceSize <= products->library.workspace_bytes;
}
