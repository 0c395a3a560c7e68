/* cuBLASLt's functions as the back-end calls them: found at run time, so that a machine without the library
 * starts the program too. In the emulator the tests' own functions take their place. */
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
    size_t workspace_bytes; /* of a stream, CUDA_PRODUCT_WORKSPACE at most */
#define CUBLASLT_POINTER(name) __typeof__(name) *name;
    CUBLASLT_FUNCTIONS(CUBLASLT_POINTER)
#undef CUBLASLT_POINTER
};

/* cublaslt_open - BIREME_CUBLASLT names a file that is taken instead of the system's library.
 *
 * Errors    STATUS_UNAVAILABLE naming the library or the function that is missing */
status cublaslt_open(struct cublaslt *library);
void cublaslt_close(struct cublaslt *library);
