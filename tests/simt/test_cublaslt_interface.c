/* Compares the constants and types of the emulator's cublasLt.h with NVIDIA's at compile time. At
 * run time, checks that the installed library, if any, has every function that the GEMMs call. It
 * needs no GPU. */
#include <cublasLt.h>

#include "kernels/cuda/cublaslt.h"
#include "tests/check.h"
#include "tests/simt/cuda/cublaslt_numbers.h"

#define SAME(name, number) _Static_assert((long long)(name) == (number), #name);
CUBLASLT_STATUS_NUMBERS(SAME)
CUBLASLT_TYPE_NUMBERS(SAME)
CUBLASLT_OPERATION_NUMBERS(SAME)
CUBLASLT_COMPUTE_NUMBERS(SAME)
CUBLASLT_DESC_NUMBERS(SAME)
CUBLASLT_PREF_NUMBERS(SAME)
CUBLASLT_EPILOGUE_NUMBERS(SAME)
CUBLASLT_REDUCTION_NUMBERS(SAME)
#undef SAME

_Static_assert(sizeof(cublasLtMatmulAlgo_t) == 8 * sizeof(uint64_t), "an algorithm's bytes");

int main(void)
{
    struct cublaslt library = {0};
    if (cublaslt_open(&library) != STATUS_OK) {
        printf("compared with cublasLt.h; no library here: %s\n", status_pending()->text);
        return CHECK_SKIPPED;
    }
    printf("compared with cublasLt.h; the library is version %zu\n", library.cublasLtGetVersion());
    cublaslt_close(&library);
    return 0;
}
