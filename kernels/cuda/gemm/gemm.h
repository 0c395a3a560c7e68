/* GEMM plans of cuBLASLt: the key of a plan, the plan, and the functions that create, tune and
 * store plans.
 *
 * Epilogue  After a GEMM, a bias is added, an activation or its derivative is applied, or an
 *           operand is summed (a bias gradient). cuBLASLt fuses such a part into the GEMM, or
 *           separate kernels compute it afterwards. The faster one depends on the shape and on
 *           the GPU
 * Default   cuBLASLt's first heuristic with only the bias fused, or with the fusion that was
 *           fastest for the nearest number of rows
 * Tuned     After the first step (FP8: the second), cuda_tune measures every fusion and several
 *           algorithms on the operands of that step and stores the fastest in a
 *           file (gemm_file.c) */
#pragma once

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm/cublaslt.h"

enum { GEMM_PLANS_MAX = 512, GEMM_ALGORITHMS_MAX = 8 };

enum gemm_epilogue { GEMM_BIAS = 1, GEMM_ACTIVATION = 2, GEMM_SUMS = 4 };

enum { GEMM_KEY_WORDS = 22 };

enum { GEMM_SCALES_ROWS = 1 << 16 }; /* FP8 operands have a factor for each row: scales_rows */

/* All values that the choice of a plan depends on. Keys are compared and written as bytes, so there
 * is no padding. */
struct gemm_key {
    int64_t rows[3], columns[3], stride[3]; /* of c, a, b as tensors */
    int64_t aux_stride;                     /* 0: aux is absent */
    int32_t alignment[5];                   /* bytes, of c, a, b, aux, and the bias or the sums */
    int32_t type; /* of a; if b differs, plus 256 (1 + type of b); GEMM_SCALES_ROWS */
    int32_t c_type, transpose_a, transpose_b;
    int32_t epilogue;               /* set of enum gemm_epilogue */
    int32_t activation, derivative; /* enum activation; 1: its derivative */
};

struct gemm_plan {
    struct gemm_key key;
    int fused; /* set of enum gemm_epilogue that cuBLASLt computes */
    cublasLtMatmulAlgo_t algorithm;
    bool tuned;
    float seconds, default_seconds;    /* time of this plan and of the default plan */
    bool used;                         /* since the context was created or last tuned */
    struct cuda_gemm operands;         /* of the last use */
    cublasLtMatmulDesc_t descriptor;   /* NULL until first use */
    cublasLtMatrixLayout_t layouts[3]; /* c, a, b */
};

struct cuda_gemm_context {
    struct cublaslt library;
    cublasLtHandle_t handle;
    struct device *device;
    void *workspace; /* cuBLASLt's workspace, then a vector: a converted bias or a bias gradient */
    size_t workspace_bytes;
    char name[40];     /* "cuBLASLt 13.1.0" */
    char machine[128]; /* GPU, driver and library version, on which the times depend */
    int count;
    struct gemm_plan plans[GEMM_PLANS_MAX];
};

/* GEMM_CHECK - raise an error and return if a call of cuBLASLt fails. `what` names the call. */
#define GEMM_CHECK(p, what, call)                                                                  \
    do {                                                                                           \
        cublasStatus_t check_status = (call);                                                      \
        REQUIRE(check_status == CUBLAS_STATUS_SUCCESS, STATUS_INTERNAL, "cuBLASLt: %s: %s", what,  \
                (p)->library.cublasLtGetStatusString(check_status));                               \
    } while (0)

/* gemm_perform - queue a GEMM and its epilogue on the stream of k, as the plan describes. */
status gemm_perform(struct kernels *k, struct gemm_plan *plan, const struct cuda_gemm *p);

/* ---- gemm_plan.c ---- */

/* gemm_plan_key - return the key of a GEMM. */
struct gemm_key gemm_plan_key(const struct cuda_gemm *p);

/* gemm_plan_is_fp8 - return whether the operands are FP8 numbers. They are in scratch memory, which
 * other operations overwrite. */
bool gemm_plan_is_fp8(const struct gemm_key *key);

enum { GEMM_TEXT_BYTES = 256 };

/* gemm_plan_format - format a GEMM that writes `output` for a message: shapes, types, strides and
 * the alignments of its addresses. */
void gemm_plan_format(const struct cuda_gemm *p, struct tensor output, char text[GEMM_TEXT_BYTES]);

enum { GEMM_FUSIONS_MAX = 4 };

/* gemm_plan_fusions - list the sets of epilogue parts that cuBLASLt can fuse, the default first.
 *
 * Returns   the number of sets */
int gemm_plan_fusions(const struct gemm_key *key, int fusions[GEMM_FUSIONS_MAX]);

/* gemm_plan_output - return the tensor that cuBLASLt writes: aux if the activation reads it
 * afterwards, else c. */
struct tensor gemm_plan_output(const struct cuda_gemm *p, int fused);

/* gemm_plan_describe - create the descriptor and the layouts of cuBLASLt for plan->key
 * and plan->fused. */
status gemm_plan_describe(struct cuda_gemm_context *gemm, struct gemm_plan *plan,
                          const struct cuda_gemm *p);

/* gemm_plan_release - destroy the descriptor and the layouts of a plan; its key and
 * algorithm stay. */
void gemm_plan_release(struct cuda_gemm_context *gemm, struct gemm_plan *plan);

/* gemm_plan_set_pointers - set the epilogue pointers for the next call: aux, and in `vector` the
 * bias or the bias gradient. */
status gemm_plan_set_pointers(struct cuda_gemm_context *gemm, struct gemm_plan *plan,
                              const struct cuda_gemm *p, const void *vector);

/* gemm_plan_algorithms - list the algorithms of cuBLASLt for a described plan, ordered by its
 * estimate of their speed. *count is 0 if it supports none. */
status gemm_plan_algorithms(struct cuda_gemm_context *gemm, const struct gemm_plan *plan,
                            int max_count, cublasLtMatmulAlgo_t *out, int *count);

/* gemm_plan_is_valid - return whether the plan's algorithm, read from a file, supports the
 * described plan. */
bool gemm_plan_is_valid(struct cuda_gemm_context *gemm, const struct gemm_plan *plan);

/* ---- gemm_check.c ---- */

/* gemm_check_elems - return the number of elements that are compared of a GEMM's outputs. */
int64_t gemm_check_elems(const struct cuda_gemm *p);

/* gemm_check_fill_fp8 - replace both FP8 operands and their row-wise factors, which other
 * operations have overwritten, by numbers of a fixed pattern. They are not restored. */
status gemm_check_fill_fp8(struct kernels *k, const struct cuda_gemm *p);

/* gemm_check_clear - queue an operation that zeroes these elements, so that the results of another
 * plan are not compared. */
status gemm_check_clear(struct kernels *k, const struct cuda_gemm *p);

/* gemm_check_read - read these elements as f32 and wait. */
status gemm_check_read(struct kernels *k, const struct cuda_gemm *p, float *out);

/* gemm_check_agrees - return whether the results of two plans differ by rounding only. */
bool gemm_check_agrees(const struct cuda_gemm *p, const float *expected, const float *got);

/* Operands that a comparison has replaced. */
struct gemm_check_changes {
    int count; /* of filled */
    struct {
        struct tensor tensor;
        void *previous; /* its sampled rows, in host memory */
    } filled[2];
    void *bias; /* device memory of another bias; NULL: none */
    size_t bias_bytes;
};

/* gemm_check_fill_input - fill rows of `a` if all compared elements of an output are zero, such as
 * the gradients of a layer before weights that are zero. *filled is whether they were filled.
 * FP8 operands are never filled: gemm_check_fill_fp8 has replaced them.
 *
 * Shapes    expected: the results of gemm_check_read
 * Memory    release with gemm_check_restore, also after an error */
status gemm_check_fill_input(struct kernels *k, const struct cuda_gemm *p, const float *expected,
                             struct gemm_check_changes *changes, bool *filled);

/* gemm_check_fill_epilogue - replace the operands of the epilogue by numbers. Each number changes
 * the results. A bias is often zero at the first step, which would hide errors.
 *
 * p->bias becomes another vector, as large as the results and with the same alignment. Rows of
 * p->aux are filled if it is the input of a derivative. Without memory for the vector, p->bias
 * stays.
 *
 * Shapes    expected: the results of gemm_check_read
 * Memory    as gemm_check_fill_input */
status gemm_check_fill_epilogue(struct kernels *k, struct cuda_gemm *p, const float *expected,
                                struct gemm_check_changes *changes);

/* gemm_check_restore - restore the filled rows and release all memory of the changes. */
status gemm_check_restore(struct kernels *k, struct gemm_check_changes *changes);

/* ---- gemm_tune.c ---- */

/* gemm_tune_plan - time all fusions and algorithms on plan->operands and store the fastest in
 * the plan.
 *
 * A candidate with another result than the separate form (GEMM, then epilogue) is reported and
 * not chosen.
 *
 * Memory    overwrites the outputs of the GEMM; rows of its inputs a and aux are replaced and
 *           restored (gemm_check_changes)
 * Order     waits until the measurements are complete */
status gemm_tune_plan(struct kernels *k, struct gemm_plan *plan);

/* ---- gemm_file.c ---- */

/* gemm_file_is_enabled - return whether GEMMs are tuned and their plans stored in a file. */
bool gemm_file_is_enabled(void);

/* gemm_file_read - load the plans of this machine from the file. Skips damaged lines, or a file of
 * another format, with a warning. */
void gemm_file_read(struct cuda_gemm_context *gemm);

/* gemm_file_write - add the tuned plans to the file, if it is enabled. A failure is a warning. */
void gemm_file_write(const struct cuda_gemm_context *gemm);

/* gemm_file_format - format the tuned plans as lines of the file.
 *
 * Memory    the caller frees *out with free() */
status gemm_file_format(const struct cuda_gemm_context *gemm, char **out);

/* gemm_file_parse - add the plans of this machine in `text` to the context. Skips damaged lines. */
void gemm_file_parse(struct cuda_gemm_context *gemm, const char *text);
