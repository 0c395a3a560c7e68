/* Constants of cuBLASLt, for the emulator's cublasLt.h and for the test that compares them with
 * NVIDIA's. */
#pragma once

#define CUBLASLT_STATUS_NUMBERS(X)                                                                 \
    X(CUBLAS_STATUS_SUCCESS, 0)                                                                    \
    X(CUBLAS_STATUS_NOT_INITIALIZED, 1)                                                            \
    X(CUBLAS_STATUS_INVALID_VALUE, 7)                                                              \
    X(CUBLAS_STATUS_NOT_SUPPORTED, 15)
#define CUBLASLT_TYPE_NUMBERS(X)                                                                   \
    X(CUDA_R_32F, 0)                                                                               \
    X(CUDA_R_16BF, 14)                                                                             \
    X(CUDA_R_8F_E4M3, 28)                                                                          \
    X(CUDA_R_8F_E5M2, 29)
#define CUBLASLT_OPERATION_NUMBERS(X)                                                              \
    X(CUBLAS_OP_N, 0)                                                                              \
    X(CUBLAS_OP_T, 1)
#define CUBLASLT_COMPUTE_NUMBERS(X) X(CUBLAS_COMPUTE_32F, 68)
#define CUBLASLT_DESC_NUMBERS(X)                                                                   \
    X(CUBLASLT_MATMUL_DESC_TRANSA, 3)                                                              \
    X(CUBLASLT_MATMUL_DESC_TRANSB, 4)                                                              \
    X(CUBLASLT_MATMUL_DESC_EPILOGUE, 7)                                                            \
    X(CUBLASLT_MATMUL_DESC_BIAS_POINTER, 8)                                                        \
    X(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, 11)                                               \
    X(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 12)                                                    \
    X(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, 17)                                                    \
    X(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, 18)                                                    \
    X(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, 31)                                                       \
    X(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, 32)
#define CUBLASLT_SCALE_NUMBERS(X)                                                                  \
    X(CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, 0)                                                  \
    X(CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, 3)
#define CUBLASLT_PREF_NUMBERS(X)                                                                   \
    X(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 1)                                                 \
    X(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 3)                                               \
    X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 5)                                               \
    X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 6)                                               \
    X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 7)                                               \
    X(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 8)
#define CUBLASLT_EPILOGUE_NUMBERS(X)                                                               \
    X(CUBLASLT_EPILOGUE_DEFAULT, 1)                                                                \
    X(CUBLASLT_EPILOGUE_BIAS, 4)                                                                   \
    X(CUBLASLT_EPILOGUE_GELU, 32)                                                                  \
    X(CUBLASLT_EPILOGUE_GELU_BIAS, 36)                                                             \
    X(CUBLASLT_EPILOGUE_GELU_AUX, 160)                                                             \
    X(CUBLASLT_EPILOGUE_GELU_AUX_BIAS, 164)                                                        \
    X(CUBLASLT_EPILOGUE_DGELU, 192)                                                                \
    X(CUBLASLT_EPILOGUE_BGRADB, 512)
#define CUBLASLT_REDUCTION_NUMBERS(X)                                                              \
    X(CUBLASLT_REDUCTION_SCHEME_NONE, 0)                                                           \
    X(CUBLASLT_REDUCTION_SCHEME_INPLACE, 1)                                                        \
    X(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 2)                                                   \
    X(CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, 4)
