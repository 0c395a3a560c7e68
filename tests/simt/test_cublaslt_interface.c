/* Compares the constants and types of the emulator's cublasLt.h with NVIDIA's at compile time. At
 * run time, checks that the installed library, if any, has every function that the GEMMs call. It
 * needs no GPU. */
#include <cublasLt.h>

#include "kernels/cuda/gemm/cublaslt.h"
#include "tests/check.h"
#include "tests/simt/cuda/cublaslt_numbers.h"

#define CHECK_NUMBER(name, number) _Static_assert((long long)(name) == (number), #name);
CUBLASLT_STATUS_NUMBERS(CHECK_NUMBER)
CUBLASLT_TYPE_NUMBERS(CHECK_NUMBER)
CUBLASLT_OPERATION_NUMBERS(CHECK_NUMBER)
CUBLASLT_COMPUTE_NUMBERS(CHECK_NUMBER)
CUBLASLT_DESC_NUMBERS(CHECK_NUMBER)
CUBLASLT_SCALE_NUMBERS(CHECK_NUMBER)
CUBLASLT_PREF_NUMBERS(CHECK_NUMBER)
CUBLASLT_EPILOGUE_NUMBERS(CHECK_NUMBER)
CUBLASLT_REDUCTION_NUMBERS(CHECK_NUMBER)
#undef CHECK_NUMBER

_Static_assert(sizeof(cublasLtMatmulAlgo_t) == 8 * sizeof(uint64_t),
               "size of cublasLtMatmulAlgo_t");

int main(void)
{
    struct cublaslt library = {0};
    if (cublaslt_open(&library) != STATUS_OK) {
        printf("cublasLt.h is compared; the library cannot be loaded: %s\n",
               status_pending()->text);
        return CHECK_SKIPPED;
    }
    printf("cublasLt.h is compared; the library has version %zu\n", library.cublasLtGetVersion());
    cublaslt_close(&library);
    return 0;
}
