/* The subset of cuBLASLt that the GEMMs of the back-end use, for the emulator (cublaslt.cc). Names,
 * values and the order of arguments are NVIDIA's; test_cublaslt_interface.c compares them with
 * cublasLt.h where it is installed. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "tests/simt/cuda/cublaslt_numbers.h"
#include "tests/simt/cuda/cuda_runtime_api.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CUBLAS_VER_MAJOR 13

#define CUBLASLT_NUMBER(name, number) name = number,
typedef enum { CUBLASLT_STATUS_NUMBERS(CUBLASLT_NUMBER) } cublasStatus_t;
typedef enum { CUBLASLT_TYPE_NUMBERS(CUBLASLT_NUMBER) } cudaDataType_t;
typedef enum { CUBLASLT_OPERATION_NUMBERS(CUBLASLT_NUMBER) } cublasOperation_t;
typedef enum { CUBLASLT_COMPUTE_NUMBERS(CUBLASLT_NUMBER) } cublasComputeType_t;
typedef enum { CUBLASLT_DESC_NUMBERS(CUBLASLT_NUMBER) } cublasLtMatmulDescAttributes_t;
typedef enum { CUBLASLT_SCALE_NUMBERS(CUBLASLT_NUMBER) } cublasLtMatmulMatrixScale_t;
typedef enum { CUBLASLT_PREF_NUMBERS(CUBLASLT_NUMBER) } cublasLtMatmulPreferenceAttributes_t;
typedef enum { CUBLASLT_EPILOGUE_NUMBERS(CUBLASLT_NUMBER) } cublasLtEpilogue_t;
typedef enum { CUBLASLT_REDUCTION_NUMBERS(CUBLASLT_NUMBER) } cublasLtReductionScheme_t;
#undef CUBLASLT_NUMBER

typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct simt_gemm_desc *cublasLtMatmulDesc_t;
typedef struct simt_layout *cublasLtMatrixLayout_t;
typedef struct simt_preference *cublasLtMatmulPreference_t;

typedef struct {
    uint64_t data[8];
} cublasLtMatmulAlgo_t;

typedef struct {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
    float wavesCount;
    int reserved[4];
} cublasLtMatmulHeuristicResult_t;

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out);
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle);
size_t cublasLtGetVersion(void);
const char *cublasLtGetStatusString(cublasStatus_t status);
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute,
                                        cudaDataType_t scale);
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc);
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t name,
                                              const void *value, size_t bytes);
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t type,
                                          uint64_t rows, uint64_t columns, int64_t stride);
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout);
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out);
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t name,
                                                    const void *value, size_t bytes);
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preference, int most,
                                              cublasLtMatmulHeuristicResult_t out[], int *count);
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algorithm,
                                       cublasLtMatmulHeuristicResult_t *out);
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                              cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                              cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream);

#ifdef __cplusplus
}
#endif
