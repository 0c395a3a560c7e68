/* What the files of matrix products share: what a product's plan depends on, and what it is.
 *
 * Ways      what follows a product (its bias, an activation or its slope, the sums of its second operand) is done by
 *           the library in the same pass (`fused`) or by kernels of ours behind it. Which is faster differs from
 *           shape to shape and from GPU to GPU
 * Untimed   the library's first choice among the algorithms that fit, with the bias fused and nothing else, or
 *           with what was fastest at the nearest number of rows
 * Timed     cuda_tune: every way and several algorithms on the operands of the first step, behind it; the choice
 *           is kept in a file (product_file.c) */
#pragma once

#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cuda.h"

enum { PRODUCT_PLANS_MAX = 512, PRODUCT_ALGORITHMS = 8 };

enum product_part { PRODUCT_BIAS = 1, PRODUCT_ACTIVATION = 2, PRODUCT_SUMS = 4 };

enum { PRODUCT_KEY_WORDS = 22 };

/* What a choice depends on; all of it is compared and written, so there is no padding. */
struct product_key {
    int64_t rows[3], columns[3], stride[3]; /* of c, a, b as tensors */
    int64_t kept_stride;                    /* 0: nothing is kept */
    int32_t alignment[5];                   /* of c, a, b, what is kept, the bias or the sums */
    int32_t type, c_type, transpose_a, transpose_b;
    int32_t parts;             /* what follows the product: enum product_part */
    int32_t activation, slope; /* which one, forward or backward */
};

struct product_plan {
    struct product_key key;
    int fused; /* parts that the library does */
    cublasLtMatmulAlgo_t algorithm;
    bool timed;
    float seconds, untimed_seconds; /* of this way, and of the one that is taken without timing */
    bool met;                       /* with these operands, since the context was made or tuned */
    struct cuda_product operands;
    cublasLtMatmulDesc_t product;      /* NULL until it is used */
    cublasLtMatrixLayout_t layouts[3]; /* c, a, b */
};

struct cuda_products {
    struct cublaslt library;
    cublasLtHandle_t handle;
    struct device *device;
    void *workspace; /* the library's, and behind it a bias or its gradient in the product's type */
    size_t workspace_bytes;
    char name[40];     /* "cuBLASLt 13.1.0" */
    char machine[128]; /* what times depend on beside the key: GPU, driver, library */
    int count;
    struct product_plan plans[PRODUCT_PLANS_MAX];
};

/* PRODUCT_CHECK - return where the library says no. */
#define PRODUCT_CHECK(p, what, call)                                                               \
    do {                                                                                           \
        cublasStatus_t check_status = (call);                                                      \
        REQUIRE(check_status == CUBLAS_STATUS_SUCCESS, STATUS_INTERNAL, "cuBLASLt: %s: %s", what,  \
                (p)->library.cublasLtGetStatusString(check_status));                               \
    } while (0)

/* products_perform - all of a product in the plan's way. */
status products_perform(struct kernels *k, struct product_plan *plan, const struct cuda_product *p);

/* ---- product_plan.c ---- */

struct product_key product_plan_key(const struct cuda_product *p);

/* product_plan_ways - the sets of parts that the library may do at once, the untimed choice first. */
enum { PRODUCT_WAYS_MAX = 4 };
int product_plan_ways(const struct product_key *key, int ways[PRODUCT_WAYS_MAX]);

/* product_plan_output - where the library puts the product itself. */
struct tensor product_plan_output(const struct cuda_product *p, int fused);

/* product_plan_describe - fill in what the library wants to know of plan->key done as plan->fused. */
status product_plan_describe(struct cuda_products *products, struct product_plan *plan,
                             const struct cuda_product *p);
void product_plan_forget(struct cuda_products *products, struct product_plan *plan);

/* product_plan_point - the bias, its gradient or what is kept, for the call that follows. vector: where a bias or
 * its gradient lies. */
status product_plan_point(struct cuda_products *products, struct product_plan *plan,
                          const struct cuda_product *p, const void *vector);

/* product_plan_algorithms - the library's choices for a described plan, best first by its own estimate; 0: it
 * cannot do it so. */
status product_plan_algorithms(struct cuda_products *products, const struct product_plan *plan,
                               int most, cublasLtMatmulAlgo_t *out, int *count);

/* product_plan_valid - whether the plan's algorithm, from a file, fits what was described. */
bool product_plan_valid(struct cuda_products *products, const struct product_plan *plan);

/* ---- product_times.c ---- */

/* product_times_choose - time the ways to do plan->operands, and make the fastest the plan. Waits. */
status product_times_choose(struct kernels *k, struct product_plan *plan);

/* ---- product_file.c ---- */

/* product_file_wanted - whether products are timed and kept at all. */
bool product_file_wanted(void);

/* product_file_read - take the choices that the file has for this machine. What is damaged or not of the form is
 * left out with a warning. */
void product_file_read(struct cuda_products *products);

/* product_file_write - add what was timed to the file, where there is to be one; a warning where that fails. */
void product_file_write(const struct cuda_products *products);

/* product_file_text - the timed plans as lines of the file. Memory: *out is the caller's, for free() */
status product_file_text(const struct cuda_products *products, char **out);
void product_file_take(struct cuda_products *products, const char *text);
