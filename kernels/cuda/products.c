/* Matrix products by cuBLASLt, which is opened at run time: a machine without it starts the program too.
 *
 * Layout    cuBLASLt's matrices lie by columns, so that a row-major t [rows, columns] is its transpose, and
 *           c = op(a) op(b) is asked for as c^T = op(b)^T op(a)^T
 * Plans     for each shape the library's first choice among the algorithms that fit the workspace, asked for
 *           once and kept. Sums of a split inner dimension are made in a second pass, never in place by
 *           whoever comes first: the same call gives the same bits
 * Memory    one workspace: products run on the context's stream, one after the other
 * Source    cublasLt.h of CUDA 13.0 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cublasLt.h>

#include "kernels/cuda/cuda.h"

enum { PLANS_MAX = 512, ALIGNMENT_MAX = 256 };

#define LIBRARY_TEXT_(major) "libcublasLt.so." #major
#define LIBRARY_TEXT(major) LIBRARY_TEXT_(major)
static const char library_name[] = LIBRARY_TEXT(CUBLAS_VER_MAJOR);

#define CUBLAS_FUNCTIONS(X)                                                                        \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtGetVersion)                                                                          \
    X(cublasLtGetStatusString)                                                                     \
    X(cublasLtMatmul)                                                                              \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)

struct library {
    void *handle;
#define LIBRARY_POINTER(name) __typeof__(name) *name;
    CUBLAS_FUNCTIONS(LIBRARY_POINTER)
#undef LIBRARY_POINTER
};

/* What a choice depends on; all of it is compared, so there is no padding. */
struct shape {
    int64_t rows[3], columns[3], stride[3]; /* of c, a, b as tensors */
    int32_t alignment[3];
    int32_t type, c_type, transpose_a, transpose_b, add;
};

struct plan {
    struct shape shape;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t layouts[3]; /* c, a, b */
    cublasLtMatmulAlgo_t algorithm;
};

struct cuda_products {
    struct library library;
    cublasLtHandle_t handle;
    struct device *device;
    void *workspace;
    char name[40];
    int count;
    struct plan plans[PLANS_MAX];
};

#define CHECK(p, what, call)                                                                       \
    do {                                                                                           \
        cublasStatus_t check_status = (call);                                                      \
        REQUIRE(check_status == CUBLAS_STATUS_SUCCESS, STATUS_INTERNAL, "cuBLASLt: %s: %s", what,  \
                (p)->library.cublasLtGetStatusString(check_status));                               \
    } while (0)

/* ---- the library ---- */

static status open_library(struct library *l)
{
    const char *path = getenv("BIREME_CUBLASLT");
    l->handle = dlopen(path != NULL ? path : library_name, RTLD_NOW | RTLD_LOCAL);
    const char *reason = l->handle == NULL ? dlerror() : "";
    REQUIRE(
        l->handle != NULL, STATUS_UNAVAILABLE,
        "device cuda: cuBLASLt cannot be opened: %s; install CUDA %d's libraries, name the file "
        "in BIREME_CUBLASLT, or set train.device to cpu",
        reason, CUBLAS_VER_MAJOR);
#define LIBRARY_FIND(name)                                                                         \
    *(void **)(void *)&l->name = dlsym(l->handle, #name);                                          \
    REQUIRE(l->name != NULL, STATUS_UNAVAILABLE,                                                   \
            "device cuda: %s has no " #name ": install CUDA %d's libraries, or set train.device "  \
            "to cpu",                                                                              \
            path != NULL ? path : library_name, CUBLAS_VER_MAJOR);
    CUBLAS_FUNCTIONS(LIBRARY_FIND)
#undef LIBRARY_FIND
    return STATUS_OK;
}

static status open_products(struct cuda_products *p)
{
    TRY(open_library(&p->library));
    size_t version = p->library.cublasLtGetVersion();
    snprintf(p->name, sizeof p->name, "cuBLASLt %zu.%zu.%zu", version / 10000, version / 100 % 100,
             version % 100);
    CHECK(p, "opening it", p->library.cublasLtCreate(&p->handle));
    return device_allocate(p->device, CUDA_PRODUCT_WORKSPACE, "the products' workspace",
                           &p->workspace);
}

status cuda_products_create(struct kernels *k, struct cuda_products **out)
{
    struct cuda_products *p = calloc(1, sizeof *p);
    *out = NULL;
    REQUIRE(p != NULL, STATUS_INTERNAL, "out of memory for products");
    p->device = k->device;
    status result = open_products(p);
    if (result != STATUS_OK) {
        cuda_products_destroy(&p);
    }
    *out = p;
    return result;
}

static void plan_destroy(const struct library *l, struct plan *plan)
{
    for (int i = 0; i < 3; i++) {
        if (plan->layouts[i] != NULL) {
            (void)l->cublasLtMatrixLayoutDestroy(plan->layouts[i]);
        }
    }
    if (plan->product != NULL) {
        (void)l->cublasLtMatmulDescDestroy(plan->product);
    }
    memset(plan, 0, sizeof *plan);
}

void cuda_products_destroy(struct cuda_products **products)
{
    struct cuda_products *p = *products;
    if (p == NULL) {
        return;
    }
    for (int i = 0; i < p->count; i++) {
        plan_destroy(&p->library, &p->plans[i]);
    }
    if (p->handle != NULL) {
        (void)p->library.cublasLtDestroy(p->handle);
    }
    device_release(p->device, p->workspace, CUDA_PRODUCT_WORKSPACE);
    if (p->library.handle != NULL) {
        (void)dlclose(p->library.handle);
    }
    free(p);
    *products = NULL;
}

const char *cuda_products_library(const struct cuda_products *products)
{
    return products->name;
}

/* ---- plans ---- */

static cudaDataType_t type_of(enum dtype dtype)
{
    return dtype == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static int32_t alignment_of(const void *data)
{
    uintptr_t address = (uintptr_t)data, lowest = address & (~address + 1);
    return lowest == 0 || lowest > ALIGNMENT_MAX ? ALIGNMENT_MAX : (int32_t)lowest;
}

static struct shape shape_of(const struct cuda_product *p, bool add)
{
    const struct tensor *tensors[3] = {&p->c, &p->a, &p->b};
    struct shape s;
    memset(&s, 0, sizeof s);
    for (int i = 0; i < 3; i++) {
        s.rows[i] = tensors[i]->rows;
        s.columns[i] = tensors[i]->columns;
        s.stride[i] = tensors[i]->stride;
        s.alignment[i] = alignment_of(tensors[i]->data);
    }
    s.type = (int32_t)type_of(p->a.dtype);
    s.c_type = (int32_t)type_of(p->c.dtype);
    s.transpose_a = p->transpose_a;
    s.transpose_b = p->transpose_b;
    s.add = add;
    return s;
}

/* b^T comes first: of a row-major b [inner, n] it is what lies there. */
static status describe(struct cuda_products *p, struct plan *plan)
{
    const struct library *l = &p->library;
    const struct shape *s = &plan->shape;
    cublasOperation_t first = s->transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = s->transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    CHECK(p, "a product",
          l->cublasLtMatmulDescCreate(&plan->product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CHECK(p, "a transposition",
          l->cublasLtMatmulDescSetAttribute(plan->product, CUBLASLT_MATMUL_DESC_TRANSA, &first,
                                            sizeof first));
    CHECK(p, "a transposition",
          l->cublasLtMatmulDescSetAttribute(plan->product, CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                            sizeof second));
    for (int i = 0; i < 3; i++) {
        cudaDataType_t type = (cudaDataType_t)(i == 0 ? s->c_type : s->type);
        CHECK(p, "a matrix",
              l->cublasLtMatrixLayoutCreate(&plan->layouts[i], type, (uint64_t)s->columns[i],
                                            (uint64_t)s->rows[i], s->stride[i]));
    }
    return STATUS_OK;
}

static status set_preference(struct cuda_products *p, const struct plan *plan,
                             cublasLtMatmulPreference_t preference)
{
    const struct library *l = &p->library;
    const struct shape *s = &plan->shape;
    size_t workspace = CUDA_PRODUCT_WORKSPACE;
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t c = (uint32_t)s->alignment[0], a = (uint32_t)s->alignment[1],
             b = (uint32_t)s->alignment[2];
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
        CHECK(p, "a preference",
              l->cublasLtMatmulPreferenceSetAttribute(preference, attributes[i].name,
                                                      attributes[i].value, attributes[i].bytes));
    }
    return STATUS_OK;
}

static status choose(struct cuda_products *p, struct plan *plan)
{
    const struct library *l = &p->library;
    const struct shape *s = &plan->shape;
    cublasLtMatmulPreference_t preference = NULL;
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    CHECK(p, "a preference", l->cublasLtMatmulPreferenceCreate(&preference));
    status result = set_preference(p, plan, preference);
    cublasStatus_t told = CUBLAS_STATUS_SUCCESS;
    if (result == STATUS_OK) {
        told = l->cublasLtMatmulAlgoGetHeuristic(p->handle, plan->product, plan->layouts[2],
                                                 plan->layouts[1], plan->layouts[0],
                                                 plan->layouts[0], preference, 1, &found, &count);
    }
    (void)l->cublasLtMatmulPreferenceDestroy(preference);
    TRY(result);
    REQUIRE(told == CUBLAS_STATUS_SUCCESS && count == 1, STATUS_INTERNAL,
            "cuBLASLt has no way to multiply [%lld, %lld]%s by [%lld, %lld]%s: %s",
            (long long)s->rows[1], (long long)s->columns[1], s->transpose_a ? "^T" : "",
            (long long)s->rows[2], (long long)s->columns[2], s->transpose_b ? "^T" : "",
            l->cublasLtGetStatusString(told));
    plan->algorithm = found.algo;
    return STATUS_OK;
}

static status find(struct cuda_products *p, const struct shape *shape, const struct plan **out)
{
    for (int i = 0; i < p->count; i++) {
        if (memcmp(&p->plans[i].shape, shape, sizeof *shape) == 0) {
            *out = &p->plans[i];
            return STATUS_OK;
        }
    }
    if (p->count == PLANS_MAX) { /* as generation's many lengths may bring about */
        plan_destroy(&p->library, &p->plans[--p->count]);
    }
    struct plan *plan = &p->plans[p->count];
    plan->shape = *shape;
    status result = describe(p, plan);
    if (result == STATUS_OK) {
        result = choose(p, plan);
    }
    if (result != STATUS_OK) {
        plan_destroy(&p->library, plan);
        return result;
    }
    p->count++;
    *out = plan;
    return STATUS_OK;
}

/* ---- running ---- */

/* An inner dimension of 0: nothing to add. */
static status clear(struct kernels *k, struct tensor c)
{
    for (int64_t r = 0; r < c.rows; r++) {
        TRY(device_zero(k->device, k->stream, tensor_rows(c, r, 1).data,
                        (size_t)c.columns * dtype_bytes(c.dtype)));
    }
    return STATUS_OK;
}

status cuda_product_queue(struct kernels *k, const struct cuda_product *p)
{
    struct cuda_products *products = cuda_of(k)->products;
    bool add = p->add;
    if (p->c.rows == 0 || p->c.columns == 0) {
        return STATUS_OK;
    }
    if (p->bias.data != NULL) {
        REQUIRE(!add, STATUS_INTERNAL, "a product with a bias is not added to what is there");
        TRY(cuda_rows_fill(k, p->c, p->bias));
        add = true;
    }
    if ((p->transpose_a ? p->a.rows : p->a.columns) == 0) {
        return add ? STATUS_OK : clear(k, p->c);
    }
    struct shape shape = shape_of(p, add);
    const struct plan *plan = NULL;
    TRY(find(products, &shape, &plan));
    const float one = 1, beta = add ? 1 : 0;
    CHECK(products, "a product",
          products->library.cublasLtMatmul(
              products->handle, plan->product, &one, p->b.data, plan->layouts[2], p->a.data,
              plan->layouts[1], &beta, p->c.data, plan->layouts[0], p->c.data, plan->layouts[0],
              &plan->algorithm, products->workspace, CUDA_PRODUCT_WORKSPACE,
              (cudaStream_t)device_stream_handle(k->device, k->stream)));
    return STATUS_OK;
}
