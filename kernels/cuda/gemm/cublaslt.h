/* Function pointers of cuBLASLt, looked up at run time, so that the program also starts on a
 * machine without the library. The emulator of the tests replaces them with its own functions
 * (tests/simt/cublaslt.cc). */
#pragma once

#include <cublasLt.h>

#include "base/status.h"

#define CUBLASLT_FUNCTIONS(X)                                                                      \
    X(cublasLtCreate)                                                                              \
    X(cublasLtDestroy)                                                                             \
    X(cublasLtGetVersion)                                                                          \
    X(cublasLtGetStatusString)                                                                     \
    X(cublasLtMatmul)                                                                              \
    X(cublasLtMatmulAlgoCheck)                                                                     \
    X(cublasLtMatmulAlgoGetHeuristic)                                                              \
    X(cublasLtMatmulDescCreate)                                                                    \
    X(cublasLtMatmulDescDestroy)                                                                   \
    X(cublasLtMatmulDescSetAttribute)                                                              \
    X(cublasLtMatmulPreferenceCreate)                                                              \
    X(cublasLtMatmulPreferenceDestroy)                                                             \
    X(cublasLtMatmulPreferenceSetAttribute)                                                        \
    X(cublasLtMatrixLayoutCreate)                                                                  \
    X(cublasLtMatrixLayoutDestroy)

struct cublaslt {
    void *handle;
    size_t workspace_bytes; /* for each GEMM; at most CUDA_GEMM_WORKSPACE_BYTES */
#define CUBLASLT_POINTER(name) __typeof__(name) *name;
    CUBLASLT_FUNCTIONS(CUBLASLT_POINTER)
#undef CUBLASLT_POINTER
};

/* cublaslt_open - open cuBLASLt: the file that BIREME_CUBLASLT names, or the library of the system.
 *
 * Errors    STATUS_UNAVAILABLE with the name of the missing library or function */
status cublaslt_open(struct cublaslt *library);

/* cublaslt_close - close the library; the function pointers become invalid. */
void cublaslt_close(struct cublaslt *library);
